//! The processor at privilege level 0: executes the gate, instruction by instruction, on the memory of a machine.

use super::Machinery;
use crate::abi::PAGE;
use crate::guest::gpr;
use crate::memory::word;
use crate::{Guest, Registers};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use sluice_gate::word as at;
use sluice_pagetypes::{Entry, HOLE, Kind, Mfn};

/// How the gate was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// By SYSRET or IRET, without an exit.
    Passed,
    /// By VMMCALL.
    Called,
    /// By an exception that exits: an address that is none.
    Faulted,
    /// As many instructions were executed as were to be.
    Interrupted,
}

struct Processor<'a> {
    guest: &'a Guest,
    machine: &'a mut Machinery,
    registers: &'a mut Registers,
    root: Mfn,
    cr2: u64,
    zero: bool,
    carry: bool,
}

/// Why an instruction is not executed.
enum Fault {
    /// The page is not there, or not for that: error code, address.
    Page(u64, u64),
    /// An exception that exits.
    Other,
}

/// SYSCALL of 64-bit code, whose registers these are, and what the gate makes of it, up to so many instructions. The gate must write nothing that the guest could
/// not but its own words and the guest's `struct vcpu_info`, and read nothing of the hypervisor's for it.
pub fn syscall(
    guest: &Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    instructions: usize,
) -> Left {
    registers.gpr[gpr::RCX] = registers.rip;
    registers.gpr[gpr::R11] = registers.rflags;
    registers.rip = guest.cpu.area().gate_wide();
    (registers.cs, registers.ss) = (0xe008, 0xe010);
    Processor::new(guest, machine, registers).run(instructions)
}

/// A page fault of the guest's in the same way.
pub fn page_fault(
    guest: &Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    (error, address): (u64, u64),
    instructions: usize,
) -> Left {
    let mut processor = Processor::new(guest, machine, registers);
    processor.interrupt(error, address);
    processor.run(instructions)
}

impl<'a> Processor<'a> {
    fn new(guest: &'a Guest, machine: &'a mut Machinery, registers: &'a mut Registers) -> Self {
        let root = guest.active_root();
        Self { guest, machine, registers, root, cr2: 0, zero: false, carry: false }
    }

    fn run(mut self, instructions: usize) -> Left {
        for _ in 0..instructions {
            match self.step() {
                Ok(None) => {}
                Ok(Some(left)) => return left,
                Err(Fault::Page(error, address)) => self.interrupt(error, address),
                Err(Fault::Other) => return Left::Faulted,
            }
        }
        Left::Interrupted
    }

    /// Delivers a page fault by the table of interrupts that is among the gate's words.
    fn interrupt(&mut self, error: u64, address: u64) {
        let words = self.guest.cpu.gate_words;
        let get = |offset: usize| word(self.machine, words, offset);
        let [low, high] = [get(at::IDT + 14 * 16), get(at::IDT + 14 * 16 + 8)];
        assert_eq!(low >> 32 & 0xffff, 0x8e01, "present, for privilege level 0, by IST1");
        let to = low & 0xffff | low >> 48 << 16 | high << 32;
        let stack = get(at::IST);
        let code = (low >> 16) as u16;
        let (table, index) = (self.guest.layout.reserved_gdt, usize::from(code >> 3) % 512);
        assert_eq!(self.machine.word(table, index), sluice_gate::GATE_DESCRIPTOR);
        let registers = &mut *self.registers;
        let (cs, ss) = (u64::from(registers.cs), u64::from(registers.ss));
        let frame = [error, registers.rip, cs, registers.rflags, registers.gpr[gpr::RSP], ss];
        let start = self.guest.cpu.area().gate_words();
        assert_eq!((stack - 1) / PAGE, start / PAGE, "the gate's own stack");
        for (at, value) in (0..).zip(frame) {
            self.machine.set_word(words, (stack - start) as usize / 8 - frame.len() + at, value);
        }
        registers.gpr[gpr::RSP] = stack - 8 * frame.len() as u64;
        (registers.rip, registers.cs, registers.ss) = (to, code, 0);
        self.cr2 = address;
    }

    /// Where an address is, by the page tables that the processor walks, and whether it is one of the hypervisor's.
    fn find(&self, address: u64, write: bool) -> Result<(Mfn, usize), Fault> {
        if !matches!(address as i64 >> 47, 0 | -1) {
            return Err(Fault::Other);
        }
        let page = address / PAGE * PAGE;
        let area = self.guest.cpu.area();
        let is_own = [area.gate(), area.gate_words(), area.info()].contains(&page);
        let index = |shift: u32| (address >> shift & 511) as usize;
        assert!(is_own || !HOLE.contains(&index(39)), "{address:#x}, of the hypervisor's part, is tried");
        let mut table = self.root;
        let mut rights = Entry::USER | Entry::WRITE;
        for shift in [39, 30, 21, 12] {
            let index = index(shift);
            let entry = Entry::from_bits_retain(self.machine.word(table, index));
            if !entry.contains(Entry::PRESENT) {
                return Err(Fault::Page(u64::from(write) << 1, address));
            }
            rights &= entry;
            table = entry.frame();
        }
        if write && !rights.contains(Entry::WRITE) {
            return Err(Fault::Page(3, address));
        }
        if !is_own {
            assert!(rights.contains(Entry::USER), "{address:#x} is the hypervisor's");
            let kind = self.guest.types.counts(table).map(|counts| counts.kind);
            assert!(!write || kind == Some(Kind::Writable), "{address:#x} is written, and is {kind:?}");
        }
        assert!(!write || page != area.gate(), "code is not written");
        Ok((table, (address % PAGE) as usize))
    }

    fn load(&self, address: u64, size: usize) -> Result<u64, Fault> {
        let mut value = 0;
        for at in 0..size {
            let (frame, offset) = self.find(address.wrapping_add(at as u64), false)?;
            let byte = self.machine.word(frame, offset / 8).to_le_bytes()[offset % 8];
            value |= u64::from(byte) << (at * 8);
        }
        Ok(value)
    }

    fn store(&mut self, address: u64, size: usize, value: u64) -> Result<(), Fault> {
        // All of it or nothing.
        for at in 0..size {
            self.find(address.wrapping_add(at as u64), true)?;
        }
        for at in 0..size {
            let (frame, offset) = self.find(address.wrapping_add(at as u64), true)?;
            let mut word = self.machine.word(frame, offset / 8).to_le_bytes();
            word[offset % 8] = value.to_le_bytes()[at];
            self.machine.set_word(frame, offset / 8, u64::from_le_bytes(word));
        }
        Ok(())
    }

    fn address(&self, instruction: &Instruction) -> u64 {
        match instruction.memory_base() {
            Register::RIP => instruction.memory_displacement64(),
            base => self.registers.gpr[base.number()].wrapping_add(instruction.memory_displacement64()),
        }
    }

    /// An operand's value, and its bytes.
    fn operand(&self, instruction: &Instruction, index: u32) -> Result<(u64, usize), Fault> {
        match instruction.op_kind(index) {
            OpKind::Register => {
                let register = instruction.op_register(index);
                let mask = if register.size() == 8 { u64::MAX } else { (1 << (register.size() * 8)) - 1 };
                Ok((self.registers.gpr[register.number()] & mask, register.size()))
            }
            OpKind::Memory => {
                let size = instruction.memory_size().size();
                Ok((self.load(self.address(instruction), size)?, size))
            }
            _ => Ok((instruction.immediate(index), 8)),
        }
    }

    fn assign(&mut self, instruction: &Instruction, value: u64) -> Result<(), Fault> {
        if instruction.op0_kind() == OpKind::Memory {
            return self.store(self.address(instruction), instruction.memory_size().size(), value);
        }
        let register = instruction.op0_register();
        match register.size() {
            8 => self.registers.gpr[register.number()] = value,
            4 => self.registers.gpr[register.number()] = value & 0xffff_ffff,
            _ => panic!("{instruction:?}"),
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Left>, Fault> {
        let code: [u8; 15] = core::array::from_fn(|at| {
            self.load(self.registers.rip + at as u64, 1).map_or(0, |byte| byte as u8)
        });
        let mut decoder = Decoder::with_ip(64, &code, self.registers.rip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let mut next = instruction.next_ip();
        match instruction.mnemonic() {
            Mnemonic::Vmmcall => return Ok(Some(Left::Called)),
            Mnemonic::Mov if instruction.op0_register() == Register::CR3 => {
                self.root = Mfn(self.operand(&instruction, 1)?.0 / PAGE);
            }
            Mnemonic::Mov if instruction.op1_register() == Register::CR2 => {
                self.assign(&instruction, self.cr2)?
            }
            Mnemonic::Mov | Mnemonic::Movzx => {
                let (value, _) = self.operand(&instruction, 1)?;
                self.assign(&instruction, value)?;
            }
            Mnemonic::Lea => {
                let address = self.address(&instruction);
                self.assign(&instruction, address)?;
            }
            Mnemonic::Push => {
                let (value, _) = self.operand(&instruction, 0)?;
                let sp = self.registers.gpr[gpr::RSP].wrapping_sub(8);
                self.store(sp, 8, value)?;
                self.registers.gpr[gpr::RSP] = sp;
            }
            operation @ (Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Test
            | Mnemonic::Cmp
            | Mnemonic::Sar
            | Mnemonic::Inc
            | Mnemonic::Not) => self.compute(&instruction, operation)?,
            Mnemonic::Je if self.zero => next = instruction.near_branch_target(),
            Mnemonic::Jne if !self.zero => next = instruction.near_branch_target(),
            Mnemonic::Ja if !self.zero && !self.carry => next = instruction.near_branch_target(),
            Mnemonic::Jmp => next = instruction.near_branch_target(),
            Mnemonic::Je | Mnemonic::Jne | Mnemonic::Ja => {}
            Mnemonic::Swapgs => self.registers.swap_gs(),
            Mnemonic::Sysretq => {
                let registers = &mut *self.registers;
                let star = (sluice_gate::STAR >> 48) as u16;
                (registers.rip, registers.rflags) = (registers.gpr[gpr::RCX], registers.gpr[gpr::R11]);
                (registers.cs, registers.ss) = ((star + 16) | 3, (star + 8) | 3);
                return self.pass();
            }
            Mnemonic::Iretq => {
                let sp = self.registers.gpr[gpr::RSP];
                let mut frame = [0; 5];
                for (at, word) in (0..).zip(&mut frame) {
                    *word = self.load(sp + at * 8, 8)?;
                }
                let [rip, cs, flags, sp, ss] = frame;
                let registers = &mut *self.registers;
                (registers.rip, registers.rflags, registers.gpr[gpr::RSP]) = (rip, flags, sp);
                (registers.cs, registers.ss) = (cs as u16, ss as u16);
                return self.pass();
            }
            _ => panic!("the model's processor does not know {instruction:?}"),
        }
        self.registers.rip = next;
        Ok(None)
    }

    fn compute(&mut self, instruction: &Instruction, operation: Mnemonic) -> Result<(), Fault> {
        let (first, size) = self.operand(instruction, 0)?;
        let second = if instruction.op_count() > 1 { self.operand(instruction, 1)?.0 } else { 0 };
        let mask = if size == 8 { u64::MAX } else { (1 << (size * 8)) - 1 };
        let result = mask
            & match operation {
                Mnemonic::And | Mnemonic::Test => first & second,
                Mnemonic::Or => first | second,
                Mnemonic::Cmp => first.wrapping_sub(second),
                Mnemonic::Sar => (first as i64 >> second) as u64,
                Mnemonic::Inc => first.wrapping_add(1),
                _ => !first,
            };
        match operation {
            Mnemonic::Not => {}
            Mnemonic::Inc => self.zero = result == 0,
            _ => (self.zero, self.carry) = (result == 0, operation == Mnemonic::Cmp && first < second & mask),
        }
        if !matches!(operation, Mnemonic::Cmp | Mnemonic::Test) {
            self.assign(instruction, result)?;
        }
        Ok(())
    }

    /// What code at privilege level 3 may have, and nothing else.
    fn pass(&self) -> Result<Option<Left>, Fault> {
        let registers = &self.registers;
        assert_eq!((registers.cs & 3, registers.ss & 3), (3, 3), "privilege level 3");
        assert_eq!(crate::bounce::sane(registers.rflags), registers.rflags);
        assert!(crate::bounce::is_canonical(registers.rip));
        let runs_kernel = self.machine.word(self.guest.cpu.gate_words, at::MODE / 8) != 0;
        let root = if runs_kernel { Some(self.guest.cpu.root) } else { self.guest.cpu.user_root };
        assert_eq!(Some(self.root), root, "the page tables of who runs");
        Ok(Some(Left::Passed))
    }
}
