//! The instruction emulator: bytes, registers and page tables are all the guest's.

use crate::Input;
use sluice_insn::plain::{Met, Moves, PlainMove, PlainWord};
use sluice_insn::walk::{Access, Kind, WalkError};
use sluice_insn::{
    Addressing, Error, Fault, Machine, PagingState, Segment, SegmentRegister, StringIo, Tables, touch,
    translate,
};
use sluice_memory::Gpa;
use std::cell::{Cell, RefCell};

/// Where the toy memory begins.
const BASE: u64 = 0x1000;
/// Accesses that one call may make: a batch of a repeated move, looked for, read and written.
const MOST: usize = 4 * 512 + 4;

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
    &[0xa6],
    &[0xa7],
    &[0xae],
    &[0xaf],
    &[0x50],
    &[0x6a],
    &[0x68],
    &[0x58],
    &[0x0f, 0x10],
    &[0x0f, 0x11],
    &[0x0f, 0x12],
    &[0x0f, 0x13],
    &[0x0f, 0x16],
    &[0x0f, 0x17],
    &[0x0f, 0x28],
    &[0x0f, 0x29],
    &[0x0f, 0x2b],
    &[0x0f, 0x6e],
    &[0x0f, 0x6f],
    &[0x0f, 0x7e],
    &[0x0f, 0x7f],
    &[0x0f, 0xd6],
    &[0x0f, 0xe7],
    &[0x0f, 0xf0],
    &[0x0f, 0x38, 0x2a],
];
const PREFIXES: &[u8] =
    &[0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65, 0x40, 0x44, 0x48, 0x4f];

#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    gpr: [u64; 16],
    xmm: [u128; 16],
    rflags: u64,
    rip: u64,
    memory: Vec<u8>,
}

struct Toy {
    state: State,
    addressing: Addressing,
    segments: [SegmentRegister; 6],
    accesses: usize,
    /// Nothing is to be read of what is not to be written after all.
    reads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Missing,
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Toy {
    fn place(&mut self, at: u64, len: usize) -> Result<core::ops::Range<usize>, Refusal> {
        assert!(matches!(len, 1 | 2 | 4 | 8 | 16), "an operand of {len} bytes");
        self.accesses += 1;
        assert!(self.accesses <= MOST, "one call makes too many accesses");
        let start =
            usize::try_from(at.checked_sub(BASE).ok_or(Refusal::Missing)?).map_err(|_| Refusal::Missing)?;
        let end = start.checked_add(len).ok_or(Refusal::Missing)?;
        if end <= self.state.memory.len() { Ok(start..end) } else { Err(Refusal::Missing) }
    }
}

impl Machine for Toy {
    type Fault = Refusal;
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
    fn retire(&mut self, length: u64) {
        self.state.rip = self.state.rip.wrapping_add(length);
    }
    fn xmm(&self, index: usize) -> u128 {
        self.state.xmm[index]
    }
    fn set_xmm(&mut self, index: usize, value: u128) {
        self.state.xmm[index] = value;
    }
    fn bitness(&self) -> u32 {
        self.addressing.bitness
    }
    fn stack_bits(&self) -> u32 {
        self.addressing.bitness
    }
    fn linear(&self, segment: Segment, offset: u64, len: usize, kind: Kind) -> Result<u64, Refusal> {
        assert!(offset <= u64::MAX >> (64 - self.addressing.bitness.max(32)), "an offset of too many bits");
        let linear = self.addressing.linear(segment, &self.segments[segment as usize], offset, len, kind)?;
        assert!(self.addressing.bitness == 64 || linear <= 0xffff_ffff, "a linear address of too many bits");
        Ok(linear)
    }
    fn probe(&mut self, at: u64, len: usize, _: Kind) -> Result<(), Refusal> {
        self.place(at, len).map(|_| ())
    }
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Refusal> {
        let place = self.place(at, buffer.len())?;
        buffer.copy_from_slice(&self.state.memory[place]);
        self.reads += 1;
        Ok(())
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let place = self.place(at, bytes.len())?;
        self.state.memory[place].copy_from_slice(bytes);
        Ok(())
    }
}

/// One instruction. Asserts that accesses have sizes of operands and are bounded in number, that addresses have no more
/// bits than the mode, that RIP moves past the instruction or not at all, and that an instruction that failed left
/// everything as it was and had read nothing, but for the progress of a string instruction.
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
    let flat = SegmentRegister { base: 0, limit: u32::MAX, attributes: 0xc93 };
    let mut segments = [flat; 6];
    if input.u8() > 200 {
        segments = core::array::from_fn(|_| SegmentRegister {
            base: if input.flag() { 0 } else { input.u64() },
            limit: if input.flag() { u32::MAX } else { input.u32() },
            attributes: if input.flag() { flat.attributes } else { input.u16() },
        });
    }
    let xmm = core::array::from_fn(|index| 0x0123_4567_89ab_cdef_u128 << (4 * index));
    let paging = PagingState {
        cr0: u64::from(bitness != 16),
        efer: if bitness == 64 { 1 << 10 } else { 0 },
        ..PagingState::default()
    };
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

    let before = State { gpr, xmm, rflags, rip, memory };
    let addressing = Addressing { paging, rflags, cpl: 0, bitness };
    let mut toy = Toy { state: before.clone(), addressing, segments, accesses: 0, reads: 0 };
    let result = sluice_insn::step(&mut toy, &code);
    let reads = toy.reads;
    let mut after = toy.state;
    match result {
        Ok(()) => {
            let moved = after.rip.wrapping_sub(before.rip);
            assert!(moved <= 15, "RIP moved by {moved:#x}: {code:02x?}");
        }
        Err(error) => {
            assert_eq!(after.rip, before.rip, "{error:?}: {code:02x?}");
            if matches!(error, Error::Fault(_)) && string_progress(&before, &after) {
                // RAX, RCX, RSI, RDI, flags and memory belong to what was done before the fault.
                after.rflags = before.rflags;
                for index in [0, 1, 6, 7] {
                    after.gpr[index] = before.gpr[index];
                }
                after.memory.clone_from(&before.memory);
            } else {
                assert_eq!(after.rflags, before.rflags, "{error:?}: {code:02x?}");
                // An immediate apart, all of an instruction's operands can be known before the first is read.
                assert_eq!(reads, 0, "{error:?} came after a read: {code:02x?}");
            }
            assert!(after == before, "{error:?} left a change behind: {code:02x?}");
        }
    }
}

fn string_progress(before: &State, after: &State) -> bool {
    before.gpr[1] != after.gpr[1] && (before.gpr[6] != after.gpr[6] || before.gpr[7] != after.gpr[7])
}

/// Plain moves that are known again. Asserts that what is taken for one is an instruction of that length, and that one that is
/// kept is found where all is as it was, and not where its code, where that lies, or the direction of the access is another.
pub fn plain(data: &[u8]) {
    let mut input = Input::new(data);
    // Without paging, code is where RIP says: in the second of three pages.
    let (rip, cr3, base) = (0x1000 + input.u64() % 4096, input.u64() & !0xfff, input.u64());
    let mut code = [0; 15];
    code.iter_mut().for_each(|byte| *byte = input.u8());
    if let Some(word) = PlainWord::decode(&code) {
        assert_eq!(sluice_insn::length(&code, 64), Some(word.length.into()));
    }
    let Some(plain) = PlainMove::decode(&code) else { return };
    assert_eq!(sluice_insn::length(&code, 64), Some(plain.length.into()));
    let gpr = |register: usize| base.rotate_left(register as u32);
    let linear = plain.linear(rip, gpr);
    let met = Met { rip, cr3, gpa: Gpa::new(linear & 0xfff), is_write: plain.is_store };
    let mut memory = vec![0x90; 3 * 4096];
    memory[rip as usize..][..code.len()].copy_from_slice(&code);
    let locate = |at: Gpa| memory.get(at.as_u64() as usize..)?.first_chunk::<8>().map(|_| at);
    let word = |memory: &[u8], at: Gpa| {
        let bytes = memory.get(at.as_u64() as usize..).and_then(<[u8]>::first_chunk);
        u64::from_le_bytes(*bytes.expect("a word that was found"))
    };
    let mut moves = Moves::default();
    let state = PagingState { cr3, ..PagingState::default() };
    moves.keep(&state, rip, &code, locate, |at| word(&memory, at));
    let kept = rip % 4096 + u64::from(plain.length) <= 4096;
    let one_page = linear % 4096 + u64::from(plain.width) <= 4096;
    let found = moves.find(&met, gpr, &code, |_| panic!("the processor saved it"));
    assert_eq!(found, (kept && one_page).then_some(plain));
    assert_eq!(moves.find(&met, gpr, &[], |at| word(&memory, at)), found);
    let other = Met { is_write: !met.is_write, ..met };
    assert_eq!(moves.find(&other, gpr, &code, |_| 0), None);
    let changed = usize::from(input.u8()) % usize::from(plain.length);
    code[changed] ^= input.u8() | 1;
    assert_eq!(moves.find(&met, gpr, &code, |_| 0), None);
    let mut other = memory.clone();
    other[rip as usize..][..code.len()].copy_from_slice(&code);
    assert_eq!(moves.find(&met, gpr, &[], |at| word(&other, at)), None);
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
    let (width, count) = (input.choose(&[1, 2, 4]), new.max(1));
    let together = io.together(old, new, width, count);
    assert!((1..=count).contains(&together));
    if together > 1 {
        assert!((new & 0xfff) + together * width as u64 <= 0x1000, "not in one page");
        assert!((old & mask).checked_add((together - 1) * width as u64).is_some_and(|last| last <= mask));
    }
    let merged = io.merge(old, new);
    assert_eq!(merged & mask, new & mask);
    assert_eq!(io.merge(merged, merged), merged);
    if mask == 0xffff {
        assert_eq!(merged & !mask, old & !mask);
    }
}

/// Page tables in words, which remember how often they were read.
struct Words {
    words: RefCell<Vec<u64>>,
    reads: Cell<usize>,
}

impl Tables for Words {
    fn read(&self, at: Gpa) -> Option<u64> {
        self.reads.set(self.reads.get() + 1);
        assert!(at.is_aligned(8), "an unaligned word");
        self.words.borrow().get(usize::try_from(at.as_u64() / 8).ok()?).copied()
    }

    fn replace(&self, at: Gpa, old: u64, new: u64) -> bool {
        assert_eq!(
            (new & old, new & !old & !0x60_0000_0060),
            (old, 0),
            "more than accessed and dirty bits is set"
        );
        let mut words = self.words.borrow_mut();
        let word = &mut words[(at.as_u64() / 8) as usize];
        let same = *word == old;
        if same {
            *word = new;
        }
        same
    }
}

/// Page tables. Asserts that a walk reads at most five aligned words, keeps the offset in the page, reports error codes
/// that fit the access, and that rights are monotonous: what may be written may be read, what a user may do the
/// kernel may do, unless SMEP or SMAP is on; and that an access sets accessed and dirty bits only, of present entries,
/// where a look allows it, and none where it does not.
pub fn walk(data: &[u8]) {
    const WORDS: usize = 8 * 512;
    let mut input = Input::new(data);
    let state = PagingState {
        cr0: u64::from(input.u8() & 1) << 16 | u64::from(input.u8() != 0) << 31 | 1,
        cr3: if input.u8() < 250 { u64::from(input.u8() % 8) << 12 } else { input.u64() },
        cr4: u64::from(input.u16()) & 0x1030 | u64::from(input.u8() & 3) << 20,
        efer: u64::from(input.u16()) & 0xd00,
        physical_bits: input.choose(&[32, 36, 40, 48, 52, 0, 99]),
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
    let tables = Words { words: RefCell::new(words), reads: Cell::new(0) };
    let pae = state.cr0 >> 31 == 1 && state.efer & 0x400 == 0 && state.cr4 & 0x20 != 0;
    let roots = (state.cr3 as u32 as usize / 32 * 4..).take(if pae { 4 } else { 0 });
    let go = |kind, user, ac| {
        tables.reads.set(0);
        let access = Access { kind, user, ac };
        let result = translate(&state, linear, access, &|at| tables.read(at));
        assert!(tables.reads.get() <= 5, "{} reads", tables.reads.get());
        match result {
            Ok(gpa) => assert_eq!(gpa.as_u64() & 0xfff, linear & 0xfff),
            Err(fault) => {
                assert_eq!(fault.error_code & 2 != 0, kind == Kind::Write);
                assert_eq!(fault.error_code & 4 != 0, user);
                assert_eq!(fault.error_code & !0x1f, 0);
                assert!(fault.error_code & 9 != 8, "reserved bits of what is not present");
            }
        }
        let before = tables.words.borrow().clone();
        let touched = touch(&state, linear, access, &tables);
        if roots.clone().any(|root| tables.words.borrow().get(root) != before.get(root)) {
            // A table that is also the roots of PAE paging: an accessed bit is a reserved one there, for the very access perhaps.
            *tables.words.borrow_mut() = before;
            return result.ok();
        }
        assert_eq!(touched, result.map_err(WalkError::Page), "an access differs from a look at it");
        assert!(touched.is_ok() || *tables.words.borrow() == before, "a fault set bits");
        assert!(translate(&state, linear, access, &|at| tables.read(at)) == result);
        result.ok()
    };
    let kernel = go(Kind::Read, false, true);
    for (kind, user) in [
        (Kind::Write, false),
        (Kind::Execute, false),
        (Kind::Read, true),
        (Kind::Write, true),
        (Kind::Execute, true),
    ] {
        let allowed = go(kind, user, true);
        if let Some(gpa) = allowed {
            assert_eq!(Some(gpa), kernel, "{kind:?}, user {user}: allowed, but the kernel may not read it");
        }
        let guarded = kind == Kind::Execute && state.cr4 & 1 << 20 != 0;
        if user && allowed.is_some() && !guarded {
            assert!(go(kind, false, true).is_some(), "a user may what the kernel may not: {kind:?}");
        }
    }
}
