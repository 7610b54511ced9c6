//! The instruction emulator: bytes, registers and page tables are all the guest's.

use crate::Input;
use sluice_emulator::walk::{Access, Kind};
use sluice_emulator::{Error, Machine, PagingState, Segment, StringIo, translate};
use sluice_memory::Gpa;
use std::cell::Cell;

/// Where the toy memory begins.
const BASE: u64 = 0x1000;
/// Accesses that one call may make: a batch of a repeated move, read and written.
const MOST: usize = 2 * 512 + 4;

/// Opcodes that are understood; half of the inputs begin with one, after optional prefixes.
const OPCODES: &[&[u8]] = &[
    &[0x88],
    &[0x89],
    &[0x8a],
    &[0x8b],
    &[0xa0],
    &[0xa1],
    &[0xa2],
    &[0xa3],
    &[0xc6],
    &[0xc7],
    &[0x0f, 0xc3],
    &[0x0f, 0xb6],
    &[0x0f, 0xb7],
    &[0x0f, 0xbe],
    &[0x0f, 0xbf],
    &[0x63],
    &[0x0f, 0x38, 0xf0],
    &[0x0f, 0x38, 0xf1],
    &[0x00],
    &[0x01],
    &[0x03],
    &[0x09],
    &[0x11],
    &[0x19],
    &[0x21],
    &[0x29],
    &[0x31],
    &[0x39],
    &[0x3b],
    &[0x80],
    &[0x81],
    &[0x83],
    &[0x84],
    &[0x85],
    &[0x86],
    &[0x87],
    &[0xf6],
    &[0xf7],
    &[0xfe],
    &[0xff],
    &[0x8f],
    &[0xa4],
    &[0xa5],
    &[0xaa],
    &[0xab],
    &[0xac],
    &[0xad],
    &[0x0f, 0xa3],
    &[0x0f, 0xab],
    &[0x0f, 0xb3],
    &[0x0f, 0xbb],
    &[0x0f, 0xba],
    &[0x0f, 0xb0],
    &[0x0f, 0xb1],
    &[0x0f, 0xc0],
    &[0x0f, 0xc1],
];
const PREFIXES: &[u8] =
    &[0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65, 0x40, 0x44, 0x48, 0x4f];

#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    gpr: [u64; 16],
    rflags: u64,
    rip: u64,
    memory: Vec<u8>,
}

struct Toy {
    state: State,
    bases: [u64; 6],
    bitness: u32,
    accesses: usize,
    writes: usize,
}

impl Toy {
    fn place(&mut self, at: u64, len: usize) -> Result<core::ops::Range<usize>, ()> {
        assert!(matches!(len, 1 | 2 | 4 | 8), "an operand of {len} bytes");
        self.accesses += 1;
        assert!(self.accesses <= MOST, "one call makes too many accesses");
        let start = usize::try_from(at.checked_sub(BASE).ok_or(())?).map_err(|_| ())?;
        let end = start.checked_add(len).ok_or(())?;
        if end <= self.state.memory.len() { Ok(start..end) } else { Err(()) }
    }
}

impl Machine for Toy {
    type Fault = ();
    fn gpr(&self, index: usize) -> u64 {
        self.state.gpr[index]
    }
    fn set_gpr(&mut self, index: usize, value: u64) {
        self.state.gpr[index] = value;
    }
    fn rflags(&self) -> u64 {
        self.state.rflags
    }
    fn set_rflags(&mut self, value: u64) {
        self.state.rflags = value;
    }
    fn rip(&self) -> u64 {
        self.state.rip
    }
    fn set_rip(&mut self, value: u64) {
        self.state.rip = value;
    }
    fn segment_base(&self, segment: Segment) -> u64 {
        self.bases[segment as usize]
    }
    fn bitness(&self) -> u32 {
        self.bitness
    }
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), ()> {
        let place = self.place(at, buffer.len())?;
        buffer.copy_from_slice(&self.state.memory[place]);
        Ok(())
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), ()> {
        let place = self.place(at, bytes.len())?;
        self.state.memory[place].copy_from_slice(bytes);
        self.writes += 1;
        Ok(())
    }
}

/// One instruction. Asserts that accesses have sizes of operands and are bounded in number, that RIP moves past the
/// instruction or not at all, and that an instruction that failed left everything as it was, but for the
/// progress of a string instruction.
pub fn step(data: &[u8]) {
    let mut input = Input::new(data);
    let bitness = input.choose(&[64, 64, 32, 16]);
    let mut gpr = [0; 16];
    for register in &mut gpr {
        *register = match input.u8() {
            0..=160 => BASE + u64::from(input.u8()) * 2,
            161..=200 => u64::from(input.u16()),
            201..=215 => 0,
            _ => input.u64(),
        };
    }
    let mut bases = [0; 6];
    if input.u8() > 200 {
        bases = core::array::from_fn(|_| input.u64());
    }
    let rflags = 2 | u64::from(input.u16()) & 0xcd5;
    let rip = if input.flag() { 0x40_0000 } else { input.u64() };
    let memory = (0..0x400u32).map(|at| at.wrapping_mul(37) as u8).collect();
    let mut code = Vec::new();
    if input.flag() {
        for _ in 0..input.u8() % 3 {
            code.push(input.choose(PREFIXES));
        }
        code.extend(input.choose(OPCODES));
    }
    code.extend(input.bytes(15usize.saturating_sub(code.len())));

    let before = State { gpr, rflags, rip, memory };
    let mut toy = Toy { state: before.clone(), bases, bitness, accesses: 0, writes: 0 };
    let result = sluice_emulator::step(&mut toy, &code);
    let mut after = toy.state;
    match result {
        Ok(()) => {
            let moved = after.rip.wrapping_sub(before.rip);
            let moved = if bitness == 64 { moved } else { moved & 0xffff };
            assert!(moved <= 15, "RIP moved by {moved:#x}: {code:02x?}");
        }
        Err(error) => {
            assert_eq!((after.rip, after.rflags), (before.rip, before.rflags), "{error:?}: {code:02x?}");
            if error == Error::Fault(()) && string_progress(&before, &after) {
                // RAX, RCX, RSI, RDI and memory belong to what was done before the fault.
                for index in [0, 1, 6, 7] {
                    after.gpr[index] = before.gpr[index];
                }
                after.memory.clone_from(&before.memory);
            }
            assert!(after == before, "{error:?} left a change behind: {code:02x?}");
        }
    }
}

fn string_progress(before: &State, after: &State) -> bool {
    before.gpr[1] != after.gpr[1] && (before.gpr[6] != after.gpr[6] || before.gpr[7] != after.gpr[7])
}

/// INS and OUTS. Asserts that counts stay within the address size and that merging a register back changes only the
/// bits that it must.
pub fn string_io(data: &[u8]) {
    let mut input = Input::new(data);
    let bitness = input.choose(&[64, 32, 16]);
    let (old, new) = (input.u64(), input.u64());
    let mut code = Vec::new();
    for _ in 0..input.u8() % 4 {
        code.push(input.choose(PREFIXES));
    }
    code.push(input.choose(&[0x6c, 0x6d, 0x6e, 0x6f]));
    code.extend(input.bytes(12));
    let Ok(io) = StringIo::decode(&code, bitness) else { return };
    let mask = io.address_mask();
    assert!(matches!(mask, 0xffff | 0xffff_ffff | u64::MAX));
    assert!(io.remaining(old) <= mask);
    assert!(io.repeats() || io.remaining(old) == 1);
    let merged = io.merge(old, new);
    assert_eq!(merged & mask, new & mask);
    assert_eq!(io.merge(merged, merged), merged);
    if mask == 0xffff {
        assert_eq!(merged & !mask, old & !mask);
    }
}

/// Page tables. Asserts that a walk reads at most five aligned words, keeps the offset in the page, reports error codes
/// that fit the access, and that rights are monotonous: what may be written may be read, what a user may do the
/// kernel may do.
pub fn walk(data: &[u8]) {
    const WORDS: usize = 8 * 512;
    let mut input = Input::new(data);
    let state = PagingState {
        cr0: u64::from(input.u8() & 1) << 16 | u64::from(input.u8() != 0) << 31 | 1,
        cr3: if input.u8() < 250 { u64::from(input.u8() % 8) << 12 } else { input.u64() },
        cr4: u64::from(input.u16()) & 0x1030,
        efer: u64::from(input.u16()) & 0xd00,
    };
    let linear = input.u64();
    let mut words = vec![0u64; WORDS];
    // Entries along the way of this address are the ones that matter: put most there.
    while !input.is_empty() {
        let page = usize::from(input.u8() % 8);
        let index = match input.u8() {
            level @ 0..=180 => (linear >> (12 + 9 * u32::from(level % 5))) as usize & 511,
            _ => usize::from(input.u16()) & 511,
        };
        let flags = u64::from(input.u8());
        let address = if input.u8() < 220 { u64::from(input.u8() % 8) << 12 } else { input.u64() & !0xfff };
        words[page * 512 + index] = address | flags | u64::from(input.u8() & 1) << 63;
    }
    let reads = Cell::new(0);
    let read = |gpa: Gpa| {
        reads.set(reads.get() + 1);
        assert!(gpa.is_aligned(8), "an unaligned word");
        words.get(usize::try_from(gpa.as_u64() / 8).ok()?).copied()
    };
    let go = |kind, user| {
        reads.set(0);
        let result = translate(&state, linear, Access { kind, user }, &read);
        assert!(reads.get() <= 5, "{} reads", reads.get());
        match result {
            Ok(gpa) => assert_eq!(gpa.as_u64() & 0xfff, linear & 0xfff),
            Err(fault) => {
                assert_eq!(fault.error_code & 2 != 0, kind == Kind::Write);
                assert_eq!(fault.error_code & 4 != 0, user);
                assert_eq!(fault.error_code & !0x17, 0);
            }
        }
        result.ok()
    };
    let kernel = go(Kind::Read, false);
    for (kind, user) in [
        (Kind::Write, false),
        (Kind::Execute, false),
        (Kind::Read, true),
        (Kind::Write, true),
        (Kind::Execute, true),
    ] {
        if let Some(gpa) = go(kind, user) {
            assert_eq!(Some(gpa), kernel, "{kind:?}, user {user}: allowed, but the kernel may not read it");
        }
        if user && go(kind, true).is_some() {
            assert!(go(kind, false).is_some(), "a user may what the kernel may not: {kind:?}");
        }
    }
}
