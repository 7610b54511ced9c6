//! How a kernel gets control: exceptions, system calls and events are frames on its stack; HYPERVISOR_iret takes one away.

use crate::abi::{CS64, Error, IN_SYSCALL, SS, rflags, vcpu_info};
use crate::guest::gpr;
use crate::processor::Callback;
use crate::{After, End, Guest, Host, Registers};

/// Number of the callback for events.
const EVENT: usize = 0;
/// Number of the callback for system calls.
pub(crate) const SYSCALL: usize = 2;
/// Number of the callback for system calls of 32-bit code.
const SYSCALL_32: usize = 7;

/// The page fault, whose address the kernel finds in its `struct vcpu_info`.
pub const PAGE_FAULT: u8 = 14;
/// General protection.
const GENERAL_PROTECTION: u8 = 13;
/// An error code of the page fault: software at privilege level 3.
const BY_USER: u32 = 1 << 2;

const KERNEL_LOST: After = After::End(End::Lost);

impl Guest {
    /// Gives an exception to the kernel; `error` where it has a code, `address` for a page fault.
    pub fn exception(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        vector: u8,
        error: Option<u32>,
        address: u64,
    ) -> After {
        let Some(trap) = self.cpu.traps.get(usize::from(vector)).copied() else { return KERNEL_LOST };
        let mut error = error;
        if vector == PAGE_FAULT {
            host.write(self.cpu.info.0, self.cpu.info.1 + vcpu_info::CR2, &address.to_le_bytes());
            // To the hardware both run at privilege level 3.
            let user = if self.cpu.kernel { 0 } else { BY_USER };
            error = error.map(|code| code & !BY_USER | user);
        }
        self.counters.exceptions += 1;
        let to = Callback { address: trap.address, mask_events: trap.flags & 4 != 0 };
        self.bounce(host, registers, to, error)
    }

    /// An instruction that asks for a vector, and is `length` bytes long. The kernel says who may.
    pub fn software_interrupt(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        vector: u8,
        length: u64,
    ) -> After {
        let needed = if self.cpu.kernel { 1 } else { 3 };
        let allowed = self.cpu.traps.get(usize::from(vector)).is_some_and(|trap| trap.flags & 3 >= needed);
        if !allowed {
            return self.exception(host, registers, 13, Some(u32::from(vector) << 3 | 2), 0);
        }
        registers.rip = registers.rip.wrapping_add(length);
        self.exception(host, registers, vector, None, 0)
    }

    /// SYSCALL, as far as the gate does not do it: a program's goes to the kernel, the kernel's is a hypercall. The processor has put RIP and RFLAGS where
    /// SYSCALL puts them.
    pub fn syscall(&mut self, host: &mut impl Host, registers: &mut Registers, wide: bool) -> After {
        registers.rip = registers.gpr[gpr::RCX];
        registers.rflags = sane(registers.gpr[gpr::R11]);
        (registers.cs, registers.ss) = (CS64, SS);
        if self.cpu.kernel {
            return self.hypercall(host, registers);
        }
        let number = if wide { SYSCALL } else { SYSCALL_32 };
        let to = self.cpu.callbacks.get(number).copied().unwrap_or_default();
        if to.address == 0 {
            return self.exception(host, registers, 13, Some(0), 0);
        }
        self.bounce(host, registers, to, None)
    }

    /// Tells the kernel of events, if some are pending and it wants to hear of them.
    pub fn deliver(&mut self, host: &mut impl Host, registers: &mut Registers) -> After {
        let to = self.cpu.callbacks.get(EVENT).copied().unwrap_or_default();
        if to.address == 0 || !self.cpu.is_pending(host) || self.cpu.upcall_mask(host) {
            return After::Enter;
        }
        self.counters.upcalls += 1;
        self.bounce(host, registers, Callback { mask_events: true, ..to }, None)
    }

    /// Puts a frame on the kernel's stack and goes on where it wants.
    fn bounce(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        to: Callback,
        error: Option<u32>,
    ) -> After {
        if to.address == 0 || !is_canonical(to.address) {
            return KERNEL_LOST;
        }
        let from_kernel = self.cpu.kernel;
        let (stack, cs) = match from_kernel {
            true => (registers.gpr[gpr::RSP], registers.cs & !3),
            false => (self.cpu.kernel_sp, registers.cs),
        };
        if !from_kernel {
            self.toggle(registers);
        }
        let mask = self.cpu.upcall_mask(host);
        let enabled = if mask { 0 } else { rflags::IF };
        let flags =
            registers.rflags & !(rflags::IF | rflags::IOPL) | enabled | u64::from(self.cpu.iopl) << 12;
        let top = [
            registers.rip,
            u64::from(cs) | u64::from(mask) << 32,
            flags,
            registers.gpr[gpr::RSP],
            u64::from(registers.ss),
        ];
        let bottom = [registers.gpr[gpr::RCX], registers.gpr[gpr::R11]];
        let words = bottom.into_iter().chain(error.map(u64::from)).chain(top);
        let mut frame = [0; 64];
        let mut bytes = 0;
        for (room, word) in frame.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
            bytes += 8;
        }
        let sp = (stack & !15).wrapping_sub(bytes);
        let frame = frame.get(..bytes as usize).unwrap_or_default();
        if self.copy_out(host, sp, frame).is_err() {
            return KERNEL_LOST;
        }
        if to.mask_events {
            self.cpu.set_upcall_mask(host, true);
        }
        registers.gpr[gpr::RSP] = sp;
        registers.rip = to.address;
        (registers.cs, registers.ss) = (CS64, SS);
        // The kernel's string instructions go forward, whatever the program's did: SYSCALL clears DF, and kernels rely on that.
        let cleared = rflags::DF | rflags::AC | rflags::VM | rflags::RF | rflags::NT | rflags::TF;
        registers.rflags = sane(registers.rflags & !cleared);
        After::Enter
    }

    /// Gives the kernel of a program whose selectors IRET does not take the exception that the processor has of such an IRET: a kernel returns to a program
    /// with any selectors that this wrote into the frame of a signal. Its error code is the first of them (APM vol 2, 8.2.14).
    pub fn refuse_selectors(&mut self, host: &mut impl Host, registers: &mut Registers) -> After {
        /// Of a descriptor's type: code.
        const CODE: u64 = 1 << 43;
        let is_code = self.descriptor(host, registers.cs).is_some_and(|word| word & CODE != 0);
        let selector = if is_code { registers.ss } else { registers.cs };
        self.exception(host, registers, GENERAL_PROTECTION, Some(u32::from(selector & !3)), 0)
    }

    /// HYPERVISOR_iret: goes on where the frame on the kernel's stack says, at privilege level 3 whatever it says.
    pub(crate) fn iret(&mut self, host: &mut impl Host, registers: &mut Registers) -> Result<After, Error> {
        let [rax, r11, rcx, how, rip, cs, flags, rsp, ss] = self.words::<9>(host, registers.gpr[gpr::RSP])?;
        if !is_canonical(rip) {
            return Ok(KERNEL_LOST);
        }
        // A kernel finds ring 0 in frames of its own, and means itself by all but ring 3.
        if cs & 3 == 3 {
            if self.cpu.user_root.is_none() {
                return Ok(KERNEL_LOST);
            }
            self.toggle(registers);
        }
        registers.gpr[gpr::RAX] = rax;
        (registers.gpr[gpr::RCX], registers.gpr[gpr::R11]) =
            if how & IN_SYSCALL != 0 { (rip, sane(flags)) } else { (rcx, r11) };
        registers.gpr[gpr::RSP] = rsp;
        registers.rip = rip;
        registers.rflags = sane(flags);
        (registers.cs, registers.ss) = (cs as u16 | 3, ss as u16 | 3);
        self.cpu.set_upcall_mask(host, flags & rflags::IF == 0);
        Ok(After::Enter)
    }
}

/// RFLAGS as a guest may have them: physical interrupts are taken, ports are not its.
pub fn sane(flags: u64) -> u64 {
    flags & rflags::KNOWN & !rflags::IOPL | rflags::IF | rflags::ONE
}

/// Whether an address has one sign in all its upper bits.
pub(crate) fn is_canonical(address: u64) -> bool {
    matches!(address as i64 >> 47, 0 | -1)
}
