//! A machine in memory with a small guest in it, for tests and for fuzzing.
#![allow(missing_docs, clippy::missing_panics_doc, clippy::unwrap_used, reason = "it is for tests")]

pub mod gate;

use crate::abi::{self, PAGE};
use crate::build::Memory;
use crate::guest::gpr;
use crate::{After, Guest, Hardware, Host, Image, Layout, Registers};
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use sluice_pagetypes::{ENTRIES, Entry, HOLE, Kind, LINE, Machine, Mfn, Types};

/// Number of the first frame.
pub const FIRST: u64 = 0x3_0300;
/// Frames of the domain.
pub const FRAMES: u64 = 4096;
/// Where the kernel is mapped.
pub const BASE: u64 = 0xffff_ffff_8000_0000;
/// Its list of frames.
pub const LIST: u64 = 0x80_0000_0000;

/// Memory of the domain, and what was asked of the machine.
pub struct Machinery {
    pub first: u64,
    pub memory: Vec<u8>,
    pub hole: [(usize, u64); 2],
    pub now: u64,
    pub flushes: u32,
    /// What a processor notes in an entry just before it is replaced: the table, the place, the bits.
    pub noted: Option<(Mfn, usize, u64)>,
    /// Processors that had to forget translations, as they were named.
    pub flushed_on: Vec<u64>,
    /// Processors that were told to look, and to begin.
    pub woken: Vec<u32>,
    pub started: Vec<u32>,
    pub output: Vec<u8>,
    pub input: Vec<u8>,
    /// Frames that devices reach.
    pub shown: BTreeSet<Mfn>,
    /// How often they lost frames, and got them.
    pub hides: u32,
    pub shows: u32,
    /// Ports that were read, and written with what.
    pub ports: Vec<(u16, u8, Option<u32>)>,
    /// Interrupt lines that were dealt with.
    pub ended: Vec<u32>,
    /// Lines that were read.
    pub lines: core::cell::Cell<u32>,
}

impl Machinery {
    fn at(&self, frame: Mfn, offset: usize) -> usize {
        assert!(offset <= PAGE as usize);
        let index = frame.0.checked_sub(self.first).expect("a frame of the domain's");
        index as usize * PAGE as usize + offset
    }

    pub fn word(&self, frame: Mfn, index: usize) -> u64 {
        let at = self.at(frame, index * 8);
        u64::from_le_bytes(self.memory[at..at + 8].try_into().unwrap())
    }

    pub fn set_word(&mut self, frame: Mfn, index: usize, value: u64) {
        let at = self.at(frame, index * 8);
        self.memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

impl Memory for Machinery {
    fn write(&mut self, frame: Mfn, offset: u64, bytes: &[u8]) {
        let at = self.at(frame, 0) + offset as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Machine for Machinery {
    fn line(&self, frame: Mfn, line: usize) -> [u64; LINE] {
        self.lines.set(self.lines.get() + 1);
        core::array::from_fn(|at| self.word(frame, line * LINE + at))
    }

    fn replace(&mut self, frame: Mfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        if let Some((_, _, bits)) = self.noted.take_if(|(table, place, _)| (*table, *place) == (frame, index))
        {
            self.set_word(frame, index, self.word(frame, index) | bits);
        }
        let found = self.word(frame, index);
        if found == old {
            self.set_word(frame, index, new);
        }
        if found == old { Ok(()) } else { Err(found) }
    }

    fn clear(&mut self, frame: Mfn) {
        assert!(!self.shown.contains(&frame), "a device may write {frame} meanwhile");
        let at = self.at(frame, 0);
        self.memory[at..at + PAGE as usize].fill(0);
    }

    fn fill_hole(&mut self, frame: Mfn) {
        for index in HOLE {
            let entry = self.hole.iter().find(|(place, _)| *place == index).map_or(0, |(_, entry)| *entry);
            self.set_word(frame, index, entry);
        }
    }

    fn forget(&mut self) {
        self.flushes += 1;
    }

    fn hide(&mut self, frames: &[Mfn]) {
        self.hides += 1;
        for frame in frames {
            self.shown.remove(frame);
        }
    }

    fn show(&mut self, frames: &[Mfn]) {
        self.shows += 1;
        self.shown.extend(frames);
    }
}

impl Host for Machinery {
    fn read(&self, frame: Mfn, offset: usize, buffer: &mut [u8]) {
        assert!(offset + buffer.len() <= PAGE as usize, "one frame at a time");
        let at = self.at(frame, offset);
        buffer.copy_from_slice(&self.memory[at..at + buffer.len()]);
    }

    fn write(&mut self, frame: Mfn, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAGE as usize, "one frame at a time");
        let at = self.at(frame, offset);
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn invalidate(&mut self) {
        self.flushes += 1;
    }

    fn invalidate_on(&mut self, processors: u64) {
        self.flushed_on.push(processors);
    }

    fn wake(&mut self, processor: u32) {
        self.woken.push(processor);
    }

    fn start(&mut self, processor: u32) {
        self.started.push(processor);
    }

    fn read_port(&mut self, port: u16, width: u8) -> u32 {
        self.ports.push((port, width, None));
        // More than what was asked for.
        0x1234_5678
    }

    fn write_port(&mut self, port: u16, width: u8, value: u32) {
        self.ports.push((port, width, Some(value)));
    }

    fn end_of_line(&mut self, line: u32) {
        self.ended.push(line);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn console_output(&mut self, bytes: &[u8]) -> usize {
        self.output.extend(bytes);
        bytes.len()
    }

    fn console_input(&mut self, buffer: &mut [u8]) -> usize {
        let len = buffer.len().min(self.input.len());
        buffer[..len].copy_from_slice(&self.input[..len]);
        self.input.drain(..len);
        len
    }

    fn cpuid(&self, leaf: u32, _: u32) -> [u32; 4] {
        [leaf, u32::MAX, u32::MAX, u32::MAX]
    }
}

/// A kernel file of two pages at 1 MiB, with Xen's notes.
pub fn kernel() -> Vec<u8> {
    let mut file = vec![0; 64 + 2 * 56];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18] = 62;
    file[32] = 64;
    file[54] = 56;
    file[56] = 2;
    let mut notes = Vec::new();
    for (kind, value) in [(1u32, BASE + (1 << 20)), (3, BASE), (15, LIST), (16, 1)] {
        for word in [4, 8, kind] {
            notes.extend(word.to_le_bytes());
        }
        notes.extend(b"Xen\0");
        notes.extend(value.to_le_bytes());
    }
    let code: Vec<u8> = (0..0x1800u32).map(|at| at as u8).collect();
    let mut segment = |header: usize, kind: u64, bytes: &[u8], memory: u64| {
        let offset = file.len() as u64;
        let words = [
            (0, kind),
            (8, offset),
            (16, BASE + (1 << 20)),
            (24, 1 << 20),
            (32, bytes.len() as u64),
            (40, memory),
        ];
        for (at, word) in words {
            file[header + at..header + at + 8].copy_from_slice(&word.to_le_bytes());
        }
        file.extend(bytes);
    };
    segment(64, 1, &code, 0x2000);
    segment(64 + 56, 4, &notes, notes.len() as u64);
    file
}

/// A small guest that is about to start.
pub fn guest() -> (Guest, Machinery, Registers) {
    guest_of((FIRST, FRAMES, 1), &kernel(), "console=hvc0", b"ramdisk", Hardware::default())
}

/// The same with so many processors, of which the first one runs.
pub fn guest_with(processors: u32) -> (Guest, Machinery, Registers) {
    guest_of((FIRST, FRAMES, processors), &kernel(), "console=hvc0", b"ramdisk", Hardware::default())
}

/// Words of a `struct vcpu_guest_context`.
pub const CONTEXT_WORDS: usize = 646;

/// What a processor is begun with, as Linux says it: the kernel's page tables, a trap, an address to go on at, a stack.
pub fn context(guest: &Guest) -> [u64; CONTEXT_WORDS] {
    let page = |page: u64| BASE + page * PAGE;
    let mut words = [0; CONTEXT_WORDS];
    // VGCF_in_kernel; RIP, RFLAGS, RSP; the trap; the kernel's stack; CR3; the callback for events; GS.
    words[512 / 8] = 1 << 2;
    words[520 / 8 + 16] = BASE + (1 << 20) + 0x40;
    words[520 / 8 + 18] = 0x3202;
    words[520 / 8 + 19] = page(720);
    (words[720 / 8 + 14 * 2], words[720 / 8 + 14 * 2 + 1]) = (14 | 4 << 8, BASE + 0x9000);
    words[4976 / 8] = page(721);
    words[4984 / 8 + 3] = guest.cpu.root.0 << 12;
    words[5112 / 8] = BASE + 0xa000;
    words[5152 / 8] = page(722);
    words
}

/// A guest whose second processor runs, and the registers of both.
pub fn pair() -> (Guest, Machinery, [Registers; 2]) {
    /// VCPUOP_initialise, VCPUOP_up.
    const STEPS: [u64; 2] = [0, 1];
    let (mut guest, mut machine, mut first) = guest_with(2);
    let at = BASE + 710 * PAGE;
    guest.copy_out(&mut machine, at, context(&guest).map(u64::to_le_bytes).as_flattened()).unwrap();
    let before = first;
    for step in STEPS {
        first.gpr[gpr::RAX] = abi::call::VCPU_OP;
        (first.gpr[gpr::RDI], first.gpr[gpr::RSI], first.gpr[gpr::RDX]) = (step, 1, at);
        guest.syscall(&mut machine, &mut first, true);
        assert_eq!(first.gpr[gpr::RAX], 0);
    }
    assert_eq!(core::mem::take(&mut machine.started), [1]);
    guest.run(1);
    let second = *guest.take_start().expect("it has registers to start with");
    assert!(guest.take_start().is_none(), "once");
    guest.run(0);
    (guest, machine, [before, second])
}

/// Frames of the registers of [`owner`]'s device.
pub const REGISTERS: core::ops::Range<u64> = 0xf_eb80..0xf_eba0;
/// Its interrupt line.
pub const LINE_OF_DEVICE: u32 = 10;

/// The same with a device.
pub fn owner() -> (Guest, Machinery, Registers) {
    let hardware = Hardware { registers: vec![REGISTERS], lines: 1 << LINE_OF_DEVICE };
    guest_of((FIRST, FRAMES, 1), &kernel(), "console=hvc0", b"ramdisk", hardware)
}

/// A guest of this kernel file, with memory from a frame on, so many frames of it, and so many processors.
pub fn guest_of(
    (first, frames, processors): (u64, u64, u32),
    kernel: &[u8],
    cmdline: &str,
    ramdisk: &[u8],
    hardware: Hardware,
) -> (Guest, Machinery, Registers) {
    let layout = Layout::new(Mfn(first), frames, processors).unwrap();
    let mut machine = Machinery {
        first,
        memory: vec![0; (frames * PAGE) as usize],
        hole: [(0, 0); 2],
        now: 1000,
        flushes: 0,
        noted: None,
        flushed_on: Vec::new(),
        woken: Vec::new(),
        started: Vec::new(),
        output: Vec::new(),
        input: Vec::new(),
        shown: (first..first + frames).map(Mfn).collect(),
        hides: 0,
        shows: 0,
        ports: Vec::new(),
        ended: Vec::new(),
        lines: core::cell::Cell::new(0),
    };
    let image = Image::parse(kernel).unwrap();
    let told = (cmdline, hardware.is_initial());
    let built = layout.build(&mut machine, &image, told, ramdisk, &[0; 12]).unwrap();
    machine.hole = built.hole();
    let mut types = Types::new(Mfn(first), frames as usize).unwrap();
    for frame in layout.hidden() {
        types.reserve(Mfn(frame)).unwrap();
        machine.shown.remove(&Mfn(frame));
    }
    let guest = Guest::new(&mut machine, built, types, hardware).unwrap();
    let registers = guest.start();
    (guest, machine, registers)
}

/// Builds memory of any kernel.
///
/// # Errors
/// It cannot be started.
pub fn build(image: &Image<'_>) -> Result<(), crate::build::BuildError> {
    struct Nothing;
    impl Memory for Nothing {
        fn write(&mut self, frame: Mfn, offset: u64, bytes: &[u8]) {
            let end = frame.0 * PAGE + offset + bytes.len() as u64;
            assert!(frame.0 >= FIRST && end <= (FIRST + FRAMES) * PAGE, "within the domain");
        }
    }
    Layout::new(Mfn(FIRST), FRAMES, 1)
        .unwrap()
        .build(&mut Nothing, image, ("", false), &[], &[0; 12])
        .map(drop)
}

/// What the hypervisor makes of SYSCALL, by the short way where that is one ([`Guest::answer_quickly`]). The second answer says whether it was.
pub fn call(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers) -> (After, bool) {
    let [number, rcx, rdx, _, _, _, rsi, rdi, _, _, r10, r11, ..] = registers.gpr;
    let arguments = [rdi, rsi, rdx, r10];
    let answer = (number == crate::QUICK).then(|| guest.answer_quickly(machine, arguments)).flatten();
    let Some(answer) = answer else { return (guest.syscall(machine, registers, true), false) };
    registers.gpr[gpr::RAX] = answer;
    (registers.rip, registers.rflags) = (rcx, crate::sane(r11));
    (registers.cs, registers.ss) = (abi::CS64, abi::SS);
    (After::Enter, true)
}

/// What the hardware makes of the page tables: no table, no descriptor table and no frame of the hypervisor's can be written by a guest at privilege
/// level 3 or by its devices, and none of the hypervisor's is read but the table of page numbers. What is remembered of an address is what they say.
pub fn check(guest: &Guest, machine: &Machinery) {
    for (root, address, entry) in guest.remembered() {
        let now = crate::memory::leaf(machine, root, address).map(|leaf| leaf.entry);
        assert_eq!(now, Some(entry), "{address:#x} was remembered");
    }
    let running = || guest.processors().filter(|processor| processor.life != crate::processor::Life::Unknown);
    let mut open: Vec<_> = running().map(|processor| (processor.root, Kind::L4)).collect();
    open.extend(running().filter_map(|processor| processor.user_root).map(|root| (root, Kind::L4)));
    let mut seen = BTreeSet::new();
    while let Some((table, kind)) = open.pop() {
        if !seen.insert(table) {
            continue;
        }
        for index in 0..ENTRIES {
            let entry = Entry::from_bits_retain(machine.word(table, index));
            if !entry.contains(Entry::PRESENT) {
                continue;
            }
            let is_register = guest.hardware.frames().any(|own| own.contains(&entry.frame().0));
            if kind == Kind::L1 && is_register {
                continue;
            }
            let target = guest.types.counts(entry.frame()).expect("of the domain's");
            if kind == Kind::L4 && HOLE.contains(&index) {
                let known = machine.hole.contains(&(index, entry.bits()));
                assert!(known, "the hypervisor's entry {index} is {entry:?}");
                continue;
            }
            match kind.below() {
                Some(below) => {
                    assert_eq!(target.kind, below, "{entry:?} in a table of {kind:?}");
                    assert!(!entry.contains(Entry::LARGE));
                    open.push((entry.frame(), below));
                }
                None => {
                    assert!(target.kind != Kind::Hypervisor, "{entry:?} shows the hypervisor's memory");
                    assert!(!entry.is_writable() || target.kind == Kind::Writable, "{entry:?} is writable");
                }
            }
        }
    }
    if let Err(contradiction) = guest.verify(machine) {
        panic!("{contradiction}");
    }
    for (frame, counts) in guest.types.frames() {
        assert_eq!(machine.shown.contains(&frame), counts.is_for_devices(), "{frame}");
    }
    for frame in guest.processors().flat_map(|processor| processor.gdt.iter().chain(&processor.ldt).flatten())
    {
        let counts = guest.types.counts(*frame).expect("of the domain's");
        assert_eq!(counts.kind, Kind::Descriptors);
        for index in 0..ENTRIES {
            let descriptor = machine.word(*frame, index);
            let adjusted = sluice_pagetypes::Descriptor(descriptor).adjusted();
            assert_eq!(adjusted.map(|seen| seen.0), Some(descriptor), "a descriptor that code must not have");
        }
    }
    let constant = abi::RESERVED_DESCRIPTORS;
    for (index, descriptor) in constant {
        assert_eq!(machine.word(guest.layout.reserved_gdt, index), descriptor);
    }
}
