//! Instructions that a kernel executes as if it had the privilege, and writes to page tables as if they were writable.

use crate::abi::{Error, MAX_LINES, vcpu_info};
use crate::bounce::PAGE_FAULT;
use crate::guest::gpr;
use crate::memory::leaf;
use crate::{After, Guest, Host, Registers};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use sluice_insn::operand::{Fault, Segment};
use sluice_insn::plain::PlainWord;
use sluice_insn::walk::Kind;
use sluice_pagetypes::{Entry, Mfn, Old};

/// Breakpoint.
const BP: u8 = 3;
/// Overflow.
const OF: u8 = 4;
/// Invalid opcode.
const UD: u8 = 6;
/// Device not available.
const NM: u8 = 7;
/// General protection.
const GP: u8 = 13;
/// Longest instruction.
const LONGEST: usize = 15;
/// UD2, "xen", CPUID (Linux: XEN_CPUID).
const XEN_CPUID: [u8; 7] = [0x0f, 0x0b, b'x', b'e', b'n', 0x0f, 0xa2];

/// CR0 as a guest reads it: PE, MP, ET, NE, WP, AM, PG.
const CR0: u64 = 0x8005_0033;
const CR0_TS: u64 = 1 << 3;
/// CR4 as a guest reads it: PAE, OSFXSR, OSXMMEXCPT.
const CR4: u64 = 0x620;

mod msr {
    pub const APIC_BASE: u32 = 0x1b;
    pub const MISC_ENABLE: u32 = 0x1a0;
    pub const PAT: u32 = 0x277;
    pub const EFER: u32 = 0xc000_0080;
    pub const FS_BASE: u32 = 0xc000_0100;
    pub const GS_BASE: u32 = 0xc000_0101;
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
    /// Of the processors' identification: what stands for no update of their microcode.
    pub const PATCH_LEVEL: u32 = 0x8b;
}

/// The page attribute table: write-back, write-through, uncached-, uncached, write-combining, write-protected.
pub const PAT: u64 = 0x0000_0501_0007_0406;
/// EFER as a guest reads it: SCE, LME, LMA, NXE.
const EFER: u64 = 0xd01;

impl Guest {
    /// #UD: a CPUID that was meant for the hypervisor, or the kernel's matter.
    pub fn invalid_opcode(&mut self, host: &mut impl Host, registers: &mut Registers) -> After {
        let (code, length) = self.fetch(host, registers.rip);
        if code.get(..length).is_some_and(|code| code.starts_with(&XEN_CPUID)) {
            self.counters.emulated += 1;
            self.cpuid(host, registers);
            registers.rip = registers.rip.wrapping_add(XEN_CPUID.len() as u64);
            return After::Enter;
        }
        self.exception(host, registers, UD, None, 0)
    }

    /// #NM: the kernel had the next floating-point instruction be one.
    pub fn device_not_available(&mut self, host: &mut impl Host, registers: &mut Registers) -> After {
        self.cpu.task_switched = false;
        self.exception(host, registers, NM, None, 0)
    }

    /// #GP: an instruction of the kernel's that needs a privilege which it has not, or its matter.
    pub fn general_protection(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        error: u32,
    ) -> After {
        if self.cpu.kernel && error == 0 && self.privileged(host, registers) {
            self.counters.emulated += 1;
            return After::Enter;
        }
        self.exception(host, registers, GP, Some(error), 0)
    }

    /// #PF: a write of the kernel's to a page table, or its matter.
    pub fn page_fault(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        error: u32,
        address: u64,
    ) -> After {
        /// The page is present, and was to be written.
        const PROTECTED_WRITE: u32 = 3;
        if self.cpu.kernel && error & 0xb == PROTECTED_WRITE {
            let table = leaf(host, self.cpu.root, address).map(|leaf| leaf.entry);
            let table = table.filter(|entry| entry.contains(Entry::PRESENT)).map(Entry::frame);
            let table = table.filter(|frame| {
                self.types.counts(*frame).is_some_and(|counts| counts.uses > 0 && counts.kind.is_table())
            });
            self.types.allow(MAX_LINES);
            match table.map(|table| (self.types.settle(host), table)) {
                // The instruction is executed again, when others have had a turn.
                Some((false, _)) => return After::Yield,
                Some((true, table)) => match self.write_table(host, registers, address, table) {
                    Written::Done => {
                        self.counters.emulated += 1;
                        return After::Enter;
                    }
                    Written::Later => return After::Yield,
                    Written::Refused => {}
                },
                None => {}
            }
        }
        self.exception(host, registers, PAGE_FAULT, Some(error), address)
    }

    /// An instruction that asks for a vector, of which it is known only where it stands: INT, and INT3 and INTO as QEMU's TCG tells of them.
    ///
    /// If there is something else by now, it is that which is executed: a kernel that patches its code puts INT3 there and takes it away again while other
    /// processors come by, and has no handler for one that is not there any more.
    pub fn software_interrupt_at(&mut self, host: &mut impl Host, registers: &mut Registers) -> After {
        /// INTO, which is none in 64-bit code.
        const INTO: u8 = 0xce;
        let (code, length) = self.fetch(host, registers.rip);
        let code = code.get(..length).unwrap_or_default();
        let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
        let (vector, length) = match (code.first(), instruction.mnemonic()) {
            (None, _) => return self.exception(host, registers, GP, Some(0), 0),
            (Some(&INTO), _) => (OF, 1),
            (_, Mnemonic::Int3) => (BP, instruction.len()),
            (_, Mnemonic::Int) => (instruction.immediate8(), instruction.len()),
            _ => {
                self.write_again(host, registers.rip);
                return After::Enter;
            }
        };
        self.software_interrupt(host, registers, vector, length as u64)
    }

    /// Writes what is at an address of code. QEMU's TCG before 8.1 may go on executing an instruction that was there (docs/debug.md, stale-int3), until
    /// somebody writes there.
    fn write_again(&self, host: &mut impl Host, address: u64) {
        if let Some(frame) = self.code(host, address) {
            let index = (address % 4096 / 8) as usize;
            let word = host.word(frame, index);
            // Whoever has written something else meanwhile has done it.
            let _ = host.replace(frame, index, word, word);
        }
    }

    /// The bytes at an address of the kernel's, and how many of them there are.
    fn fetch(&self, host: &impl Host, address: u64) -> ([u8; LONGEST], usize) {
        let mut code = [0; LONGEST];
        let here = (LONGEST).min(4096 - (address % 4096) as usize);
        let (first, second) = code.split_at_mut(here);
        if self.copy_code(host, address, first).is_err() {
            return (code, 0);
        }
        let next = address.wrapping_add(here as u64);
        let beyond = second.is_empty() || self.copy_code(host, next, second).is_ok();
        (code, if beyond { LONGEST } else { here })
    }

    /// The frame of what runs, which may be a program's. Code in registers is not looked at.
    fn code(&self, host: &impl Host, address: u64) -> Option<Mfn> {
        let entry = leaf(host, self.active_root(), address)?.entry;
        (entry.contains(Entry::PRESENT) && self.types.owns(entry.frame())).then(|| entry.frame())
    }

    fn copy_code(&self, host: &impl Host, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let frame = self.code(host, address).ok_or(Error::Fault)?;
        host.read(frame, (address % 4096) as usize, buffer);
        Ok(())
    }

    /// Executes a privileged instruction. Returns false if it is none that a kernel may execute.
    fn privileged(&mut self, host: &mut impl Host, registers: &mut Registers) -> bool {
        let (code, length) = self.fetch(host, registers.rip);
        let mut decoder = Decoder::new(64, code.get(..length).unwrap_or_default(), DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return false;
        }
        let done = match instruction.mnemonic() {
            Mnemonic::Rdmsr => self.read_msr(registers),
            Mnemonic::Wrmsr => self.write_msr(registers),
            // The kernel means its own interrupts, which are not these.
            Mnemonic::Cli | Mnemonic::Sti | Mnemonic::Wbinvd | Mnemonic::Hlt => true,
            Mnemonic::Clts => {
                self.cpu.task_switched = false;
                true
            }
            Mnemonic::Mov => self.control_register(host, registers, &instruction),
            Mnemonic::In => {
                let bits = match width_of(instruction.op0_register()) {
                    1 => 0xff,
                    2 => 0xffff,
                    // The upper half of the register is cleared where 32 bits are read.
                    _ => u64::MAX,
                };
                let port = port_of(registers, &instruction, instruction.op1_register());
                let value = self.read_port(host, port, width_of(instruction.op0_register()));
                registers.gpr[gpr::RAX] = registers.gpr[gpr::RAX] & !bits | u64::from(value);
                true
            }
            Mnemonic::Out => {
                let port = port_of(registers, &instruction, instruction.op0_register());
                let width = width_of(instruction.op1_register());
                self.write_port(host, port, width, registers.gpr[gpr::RAX] as u32);
                true
            }
            _ => false,
        };
        if done {
            registers.rip = registers.rip.wrapping_add(instruction.len() as u64);
        }
        done
    }

    fn read_msr(&self, registers: &mut Registers) -> bool {
        let value = match registers.gpr[gpr::RCX] as u32 {
            msr::EFER => EFER,
            msr::PAT => PAT,
            msr::FS_BASE => registers.fs_base,
            msr::GS_BASE => registers.gs_base,
            msr::KERNEL_GS_BASE => registers.other_gs,
            msr::APIC_BASE | msr::MISC_ENABLE | msr::PATCH_LEVEL => 0,
            _ => return false,
        };
        registers.gpr[gpr::RAX] = value & 0xffff_ffff;
        registers.gpr[gpr::RDX] = value >> 32;
        true
    }

    fn write_msr(&mut self, registers: &mut Registers) -> bool {
        let value = registers.gpr[gpr::RDX] << 32 | registers.gpr[gpr::RAX] & 0xffff_ffff;
        let to = match registers.gpr[gpr::RCX] as u32 {
            msr::FS_BASE => &mut registers.fs_base,
            msr::GS_BASE => &mut registers.gs_base,
            msr::KERNEL_GS_BASE => &mut registers.other_gs,
            // What a kernel writes there is as the interface has it, or is nothing.
            msr::EFER | msr::PAT | msr::MISC_ENABLE | msr::APIC_BASE => return true,
            _ => return false,
        };
        if !crate::bounce::is_canonical(value) {
            return false;
        }
        *to = value;
        true
    }

    fn control_register(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        instruction: &Instruction,
    ) -> bool {
        let (to, from) = (instruction.op0_register(), instruction.op1_register());
        let number = |register: Register| register.is_gpr().then(|| register.full_register().number());
        if let Some(slot) = number(to).and_then(|number| registers.gpr.get_mut(number)) {
            *slot = match from {
                Register::CR0 => CR0 | if self.cpu.task_switched { CR0_TS } else { 0 },
                // Where the interface has it, too, and the kernel may write it.
                Register::CR2 => {
                    let mut address = [0; 8];
                    host.read(self.cpu.info.0, self.cpu.info.1 + vcpu_info::CR2, &mut address);
                    u64::from_le_bytes(address)
                }
                Register::CR3 => self.cpu.root.0 << 12,
                Register::CR4 => CR4,
                Register::DR6 => 0xffff_0ff0,
                Register::DR7 => 0x400,
                _ => return false,
            };
            return true;
        }
        let Some(value) = number(from).and_then(|number| registers.gpr.get(number)) else { return false };
        match to {
            Register::CR0 => self.cpu.task_switched = value & CR0_TS != 0,
            Register::CR4 => {}
            _ => return false,
        }
        true
    }

    /// Executes a write to a page table at `address`, which is in `table`.
    fn write_table(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        address: u64,
        table: Mfn,
    ) -> Written {
        let (code, length) = self.fetch(host, registers.rip);
        let gprs = |register: usize| registers.gpr.get(register).copied().unwrap_or_default();
        let plain = PlainWord::decode(code.get(..length).unwrap_or_default());
        let plain =
            plain.filter(|plain| plain.linear(registers.rip, gprs) == address && address.is_multiple_of(8));
        if let Some(plain) = plain {
            return self.write_word(host, registers, (table, (address % 4096) as usize / 8), &plain);
        }
        let mut step = TableWrite { guest: self, host, registers, address, table, read: None, later: false };
        let done = sluice_insn::step(&mut step, code.get(..length).unwrap_or_default());
        match done {
            Ok(_) => Written::Done,
            Err(_) if step.later => Written::Later,
            Err(_) => Written::Refused,
        }
    }

    /// The same for the instructions that most of them are.
    fn write_word(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        (table, index): (Mfn, usize),
        plain: &PlainWord,
    ) -> Written {
        let Some(register) = registers.gpr.get_mut(usize::from(plain.register)) else {
            return Written::Refused;
        };
        match self.write_entry(host, table, index, *register, Old::Lost) {
            Ok(old) if plain.is_exchange => *register = old,
            Ok(_) => {}
            Err(Error::Restart) => return Written::Later,
            Err(_) => return Written::Refused,
        }
        registers.rip = registers.rip.wrapping_add(plain.length.into());
        Written::Done
    }
}

/// Bytes that are read from a port, or written to it, by the register.
fn width_of(register: Register) -> u8 {
    match register {
        Register::AL => 1,
        Register::AX => 2,
        _ => 4,
    }
}

/// The port of an instruction: in DX, or in the instruction.
fn port_of(registers: &Registers, instruction: &Instruction, operand: Register) -> u16 {
    match operand {
        Register::DX => registers.gpr[gpr::RDX] as u16,
        _ => instruction.immediate8().into(),
    }
}

/// What became of a write to a page table.
enum Written {
    Done,
    /// There is more to validate than one exit may.
    Later,
    Refused,
}

/// An instruction whose one operand in memory is a word of a page table.
struct TableWrite<'a, H> {
    guest: &'a mut Guest,
    host: &'a mut H,
    registers: &'a mut Registers,
    address: u64,
    table: Mfn,
    /// What was read of a word that is not written yet: place, value. Another processor may note in it meanwhile that it is used.
    read: Option<(usize, u64)>,
    later: bool,
}

/// It is no such instruction, or the update was refused.
struct Not;

impl From<Fault> for Not {
    fn from(_: Fault) -> Self {
        Self
    }
}

impl<H: Host> TableWrite<'_, H> {
    /// Place of the word, of the operand in it, and whether the operand lies in it.
    fn word(&self, linear: u64, len: usize) -> Result<(usize, usize), Not> {
        let within = (linear % 8) as usize;
        if linear >> 12 != self.address >> 12 || within + len > 8 {
            return Err(Not);
        }
        Ok(((linear % 4096) as usize / 8, within))
    }

    fn current(&self, index: usize) -> [u8; 8] {
        crate::memory::entry(self.host, self.table, index).bits().to_le_bytes()
    }
}

impl<H: Host> sluice_insn::Machine for TableWrite<'_, H> {
    type Fault = Not;

    fn gpr(&self, index: usize) -> u64 {
        self.registers.gpr.get(index).copied().unwrap_or_default()
    }

    fn set_gpr(&mut self, index: usize, value: u64) {
        if let Some(register) = self.registers.gpr.get_mut(index) {
            *register = value;
        }
    }

    fn rflags(&self) -> u64 {
        self.registers.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.registers.rflags = crate::bounce::sane(value);
    }

    fn rip(&self) -> u64 {
        self.registers.rip
    }

    fn retire(&mut self, length: u64) {
        self.registers.rip = self.registers.rip.wrapping_add(length);
    }

    fn xmm(&self, _: usize) -> u128 {
        0
    }

    fn set_xmm(&mut self, _: usize, _: u128) {}

    fn bitness(&self) -> u32 {
        64
    }

    fn stack_bits(&self) -> u32 {
        64
    }

    fn linear(&self, segment: Segment, offset: u64, _: usize, _: Kind) -> Result<u64, Not> {
        let base = match segment {
            Segment::Fs => self.registers.fs_base,
            Segment::Gs => self.registers.gs_base,
            _ => 0,
        };
        Ok(base.wrapping_add(offset))
    }

    fn probe(&mut self, linear: u64, len: usize, _: Kind) -> Result<(), Not> {
        self.word(linear, len).map(drop)
    }

    fn read(&mut self, linear: u64, buffer: &mut [u8]) -> Result<(), Not> {
        let (index, within) = self.word(linear, buffer.len())?;
        let word = self.current(index);
        self.read = Some((index, u64::from_le_bytes(word)));
        buffer.copy_from_slice(word.get(within..within + buffer.len()).ok_or(Not)?);
        Ok(())
    }

    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Not> {
        let (index, within) = self.word(linear, bytes.len())?;
        let known = self.read.take().filter(|(read, _)| *read == index).map(|(_, word)| word);
        let mut word = known.map_or_else(|| self.current(index), u64::to_le_bytes);
        let found = word;
        word.get_mut(within..within + bytes.len()).ok_or(Not)?.copy_from_slice(bytes);
        let [found, word] = [found, word].map(u64::from_le_bytes);
        let written = self.guest.write_entry(self.host, self.table, index, word, Old::Known(found));
        // What has changed meanwhile is read again, by the same instruction.
        let has_changed = written == Err(Error::Busy) && self.current(index) != found.to_le_bytes();
        self.later |= written == Err(Error::Restart) || has_changed;
        written.map(drop).map_err(|_| Not)
    }
}
