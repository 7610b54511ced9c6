//! The gate ([`sluice_gate`]) of a guest: what it is told, and what becomes of a guest that exits while it is there.

use crate::abi::{CS64, PAGE, SS, vcpu_info};
use crate::bounce::{PAGE_FAULT, SYSCALL, is_canonical};
use crate::guest::gpr;
use crate::{Guest, Host, Registers};
use sluice_gate::{FAULT_FRAME, FLAGS_ENTRY, FLAGS_SET, Place, RETURN};
use sluice_pagetypes::{HOLE, Mfn};

use sluice_gate::word as at;

/// Bytes of a program's frame on the kernel's stack.
const FRAME: u64 = 64;

impl Guest {
    /// Takes from the gate who runs. To be called before anything else is asked of an exit.
    #[inline]
    pub fn enter_host(&mut self, host: &impl Host) {
        self.cpu.kernel = host.word(self.cpu.gate_words, at::MODE / 8) != 0;
        self.cpu.gate_mode = self.cpu.kernel;
    }

    /// Tells the gate who runs, and what has changed for it. To be called after everything that an exit asked for.
    #[inline(always)]
    pub fn leave_host(&mut self, host: &mut impl Host) {
        if self.cpu.gate_mode != self.cpu.kernel {
            self.set_gate(host, at::MODE, u64::from(self.cpu.kernel));
            self.cpu.gate_mode = self.cpu.kernel;
        }
        if core::mem::take(&mut self.cpu.gate_is_stale) {
            self.tell_gate(host);
        }
    }

    fn set_gate(&self, host: &mut impl Host, offset: usize, value: u64) {
        host.write(self.cpu.gate_words, offset, &value.to_le_bytes());
    }

    #[inline(never)]
    fn tell_gate(&self, host: &mut impl Host) {
        let cpu = &*self.cpu;
        let root = |table: Option<Mfn>| table.map_or(0, |table| table.0 * PAGE);
        let entry = cpu.callbacks.get(SYSCALL).copied().unwrap_or_default();
        let stack = cpu.kernel_sp & !15;
        let fault = cpu.traps.get(usize::from(PAGE_FAULT)).copied().unwrap_or_default();
        let is_fault_open = fault.flags & 4 != 0 && is_canonical(fault.address) && is_own(stack);
        let is_open = entry.mask_events && is_canonical(entry.address) && is_own(stack);
        let (code, data) = if cpu.user_root.is_some() { cpu.program_segments } else { (0, 0) };
        let values = [
            (at::KERNEL_ROOT, root(Some(cpu.root))),
            (at::USER_ROOT, root(cpu.user_root)),
            (at::KERNEL_STACK, stack),
            (at::ENTRY, if is_open { entry.address } else { 0 }),
            (at::FAULT_ENTRY, if is_fault_open { fault.address } else { 0 }),
            (at::INFO, cpu.area().info() + cpu.info.1 as u64),
            (at::FLAGS, FLAGS_SET | u64::from(cpu.iopl) << 12),
            (at::USER_CODE, u64::from(code)),
            (at::USER_STACK, u64::from(data)),
        ];
        for (offset, value) in values {
            host.write(cpu.gate_words, offset, &value.to_le_bytes());
        }
    }

    /// Says by which selectors programs run that the gate may return to: flat 64-bit code, and a stack that can be written, as [`Guest::descriptor`] has
    /// them now.
    pub fn allow_program(&mut self, code: u16, stack: u16) {
        self.cpu.allow_program(code, stack);
    }

    /// Takes the registers of a guest that exited at privilege level 0, in the gate, out of it, and says what is asked for.
    pub fn leave_gate(&mut self, host: &mut impl Host, registers: &mut Registers) -> Asked {
        let asked = self.undo_or_finish(host, registers);
        self.set_gate(host, at::IST, self.cpu.area().gate_words() + at::STACK as u64);
        asked
    }

    fn undo_or_finish(&mut self, host: &mut impl Host, registers: &mut Registers) -> Asked {
        // Whatever else it executes at privilege level 0 is a defect, and no harm is done by an exit for it.
        let (gate, words) = (self.cpu.area().gate(), self.cpu.area().gate_words());
        let place =
            |registers: &Registers| Place::of(registers.rip.wrapping_sub(gate)).unwrap_or(Place::Before);
        match place(registers) {
            Place::Before => Asked::Call,
            Place::Calling => {
                registers.gpr[gpr::RAX] = self.gate_word(host, at::RAX);
                registers.gpr[gpr::RSP] = self.gate_word(host, at::RSP);
                Asked::Call
            }
            Place::Returning => {
                registers.gpr[gpr::RAX] = RETURN;
                Asked::Call
            }
            Place::Called { swap, counted } => {
                if swap {
                    registers.swap_gs();
                }
                self.count(host, at::CALLS, !counted);
                self.cpu.set_upcall_mask(host, true);
                self.enter_kernel(host, registers, at::ENTRY, registers.gpr[gpr::R11]);
                Asked::Nothing
            }
            Place::Returned { swap, to_program, counted } => {
                if swap {
                    registers.swap_gs();
                }
                self.count(host, at::RETURNS, !counted);
                self.cpu.kernel &= !to_program;
                self.cpu.set_upcall_mask(host, false);
                let frame = core::array::from_fn(|index| self.gate_word(host, at::FRAME + index * 8));
                set_frame(registers, frame);
                self.restore_general(host, registers);
                Asked::Nothing
            }
            Place::Fault => {
                let is_second = registers.gpr[gpr::RSP] == words + (at::SECOND_STACK - FAULT_FRAME) as u64;
                let [_, frame @ ..] =
                    self.fault_frame(host, if is_second { at::SECOND_STACK } else { at::STACK });
                let [rip, cs, _, rsp, _] = frame;
                if cs & 3 != 0 {
                    // It happens again.
                    set_frame(registers, frame);
                    return Asked::Nothing;
                }
                // One of the gate's own, which is where it was.
                (registers.rip, registers.gpr[gpr::RSP]) = (rip, rsp);
                if place(registers) == Place::Fault {
                    Asked::Call
                } else {
                    self.undo_or_finish(host, registers)
                }
            }
            Place::Faulting => {
                let [error, frame @ ..] = self.fault_frame(host, at::STACK);
                set_frame(registers, frame);
                self.restore_general(host, registers);
                Asked::Fault { error: error as u32, address: self.gate_word(host, at::CR2) }
            }
            Place::Faulted { swap, counted } => {
                if swap {
                    registers.swap_gs();
                }
                self.count(host, at::FAULTS, !counted);
                let address = self.gate_word(host, at::CR2);
                host.write(self.cpu.info.0, self.cpu.info.1 + vcpu_info::CR2, &address.to_le_bytes());
                self.cpu.set_upcall_mask(host, true);
                registers.gpr[gpr::RAX] = self.gate_word(host, at::RAX);
                let [_, _, _, flags, ..] = self.fault_frame(host, at::STACK);
                self.enter_kernel(host, registers, at::FAULT_ENTRY, flags);
                Asked::Nothing
            }
        }
    }

    /// Goes on in the kernel, whose stack has its frame, as by SYSRET.
    fn enter_kernel(&mut self, host: &impl Host, registers: &mut Registers, entry: usize, flags: u64) {
        self.cpu.kernel = true;
        registers.rip = self.gate_word(host, entry);
        registers.rflags = flags & FLAGS_ENTRY | FLAGS_SET;
        (registers.gpr[gpr::RCX], registers.gpr[gpr::R11]) = (registers.rip, registers.rflags);
        (registers.cs, registers.ss) = (CS64, SS);
    }

    fn restore_general(&self, host: &impl Host, registers: &mut Registers) {
        registers.gpr[gpr::RAX] = self.gate_word(host, at::RAX);
        registers.gpr[gpr::RCX] = self.gate_word(host, at::RCX);
        registers.gpr[gpr::R11] = self.gate_word(host, at::R11);
    }

    fn gate_word(&self, host: &impl Host, offset: usize) -> u64 {
        host.word(self.cpu.gate_words, offset / 8)
    }

    /// The frame of a page fault: error code, RIP, CS, RFLAGS, RSP, SS.
    fn fault_frame(&self, host: &impl Host, stack: usize) -> [u64; 6] {
        core::array::from_fn(|index| self.gate_word(host, stack - FAULT_FRAME + index * 8))
    }

    fn count(&self, host: &mut impl Host, offset: usize, is_new: bool) {
        let count = self.gate_word(host, offset);
        self.set_gate(host, offset, count + u64::from(is_new));
    }

    /// Takes the counts of all processors' gates.
    pub fn count_gate(&mut self, host: &impl Host) {
        let counts = [at::CALLS, at::RETURNS, at::FAULTS];
        self.counters.gate = counts.map(|offset| {
            self.processors().map(|processor| host.word(processor.gate_words, offset / 8)).sum()
        });
    }
}

/// What a guest that was in the gate asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It goes on with the registers that it has now, which are those of its kernel or of a program.
    Nothing,
    /// What SYSCALL asks for ([`Guest::syscall`]).
    Call,
    /// A page fault ([`Guest::page_fault`]), if it was not an interrupt that led out of the gate; it happens again if the guest goes on.
    Fault {
        /// Error code.
        error: u32,
        /// CR2.
        address: u64,
    },
}

/// Takes what IRET takes: RIP, CS, RFLAGS, RSP, SS.
fn set_frame(registers: &mut Registers, [rip, cs, flags, rsp, ss]: [u64; 5]) {
    (registers.rip, registers.rflags, registers.gpr[gpr::RSP]) = (rip, flags, rsp);
    (registers.cs, registers.ss) = (cs as u16, ss as u16);
}

/// Whether the gate may write a program's frame below an address: what is there is the guest's, or a fault.
fn is_own(stack: u64) -> bool {
    let is_own = |address: u64| is_canonical(address) && !HOLE.contains(&(address as usize >> 39 & 511));
    is_own(stack) && is_own(stack.wrapping_sub(FRAME))
}

const _: () = {
    assert!(sluice_gate::KERNEL_CODE == CS64 && sluice_gate::KERNEL_STACK == SS);
    assert!(sluice_gate::RETURN == crate::abi::call::IRET);
    assert!(sluice_gate::FLAGS_OWN == crate::abi::rflags::KNOWN & !crate::abi::rflags::IOPL);
};
