//! The gate ([`sluice_gate`]) of a guest: what it is told, and what becomes of a guest that exits while it is there.

use crate::abi::{CS64, GATE, GATE_INFO, PAGE, SS};
use crate::bounce::{SYSCALL, is_canonical};
use crate::guest::gpr;
use crate::memory::word;
use crate::{Guest, Host, Registers};
use sluice_gate::{FLAGS_ENTRY, FLAGS_SET, Place, RETURN};
use sluice_pagetypes::{HOLE, Mfn};

use sluice_gate::word as at;

/// Bytes of a program's frame on the kernel's stack.
const FRAME: u64 = 56;

/// Selectors of programs' code and stack, as the gate takes them. Zeros: it takes none.
pub(crate) type Selectors = (u16, u16);

impl Guest {
    /// Takes from the gate who runs. To be called before anything else is asked of an exit.
    #[inline]
    pub fn enter_host(&mut self, host: &impl Host) {
        self.kernel = host.word(self.layout.gate_words, at::MODE / 8) != 0;
    }

    /// Tells the gate who runs, and what has changed for it. To be called after everything that an exit asked for.
    #[inline]
    pub fn leave_host(&mut self, host: &mut impl Host) {
        self.set_gate(host, at::MODE, u64::from(self.kernel));
        if core::mem::take(&mut self.gate_is_stale) {
            self.tell_gate(host);
        }
    }

    fn set_gate(&self, host: &mut impl Host, offset: usize, value: u64) {
        host.write(self.layout.gate_words, offset, &value.to_le_bytes());
    }

    fn tell_gate(&self, host: &mut impl Host) {
        let root = |table: Option<Mfn>| table.map_or(0, |table| table.0 * PAGE);
        let entry = self.callbacks.get(SYSCALL).copied().unwrap_or_default();
        let stack = self.kernel_sp & !15;
        let is_open = entry.mask_events && is_canonical(entry.address) && is_own(stack);
        let (code, data) = if self.user_root.is_some() { self.program_segments } else { (0, 0) };
        let values = [
            (at::KERNEL_ROOT, root(Some(self.root))),
            (at::USER_ROOT, root(self.user_root)),
            (at::KERNEL_STACK, stack),
            (at::ENTRY, if is_open { entry.address } else { 0 }),
            (at::INFO, GATE_INFO + self.info.1 as u64),
            (at::FLAGS, FLAGS_SET | u64::from(self.iopl) << 12),
            (at::USER_CODE, u64::from(code)),
            (at::USER_STACK, u64::from(data)),
        ];
        for (offset, value) in values {
            self.set_gate(host, offset, value);
        }
    }

    /// Says by which selectors programs run that the gate may return to: flat 64-bit code, and a stack that can be written, as [`Guest::descriptor`] has
    /// them now.
    pub fn allow_program(&mut self, code: u16, stack: u16) {
        (self.program_segments, self.gate_is_stale) = ((code, stack), true);
    }

    /// Descriptors are others from now on.
    pub(crate) fn change_descriptors(&mut self) {
        self.descriptor_changes += 1;
        self.allow_program(0, 0);
    }

    /// Takes the registers of a guest that exited at privilege level 0, in the gate, out of it. Returns true if they are those of its kernel or of a program
    /// now, and the guest goes on with them; false if it is as if SYSCALL had led to a VMMCALL ([`Guest::syscall`]).
    pub fn leave_gate(&mut self, host: &mut impl Host, registers: &mut Registers) -> bool {
        let words = self.layout.gate_words;
        let get = |host: &_, offset| word(host, words, offset);
        // Whatever else it executes at privilege level 0 is a defect, and no harm is done by an exit for it.
        match Place::of(registers.rip.wrapping_sub(GATE)).unwrap_or(Place::Before) {
            Place::Before => false,
            Place::Calling => {
                registers.gpr[gpr::RAX] = get(host, at::RAX);
                registers.gpr[gpr::RSP] = get(host, at::RSP);
                false
            }
            Place::Returning => {
                registers.gpr[gpr::RAX] = RETURN;
                false
            }
            Place::Called { swapped, counted } => {
                if !swapped {
                    registers.swap_gs();
                }
                self.count(host, at::CALLS, !counted);
                self.kernel = true;
                self.set_upcall_mask(host, true);
                registers.rip = get(host, at::ENTRY);
                registers.rflags = registers.gpr[gpr::R11] & FLAGS_ENTRY | FLAGS_SET;
                (registers.gpr[gpr::RCX], registers.gpr[gpr::R11]) = (registers.rip, registers.rflags);
                (registers.cs, registers.ss) = (CS64, SS);
                true
            }
            Place::Returned { swap, to_program, counted } => {
                if swap {
                    registers.swap_gs();
                }
                self.count(host, at::RETURNS, !counted);
                self.kernel &= !to_program;
                self.set_upcall_mask(host, false);
                let [rip, cs, flags, rsp, ss] =
                    core::array::from_fn(|index| get(host, at::FRAME + index * 8));
                registers.rip = rip;
                registers.rflags = flags;
                (registers.cs, registers.ss) = (cs as u16, ss as u16);
                registers.gpr[gpr::RSP] = rsp;
                registers.gpr[gpr::RAX] = get(host, at::RAX);
                registers.gpr[gpr::RCX] = get(host, at::RCX);
                registers.gpr[gpr::R11] = get(host, at::R11);
                true
            }
        }
    }

    fn count(&self, host: &mut impl Host, offset: usize, is_new: bool) {
        let count = word(host, self.layout.gate_words, offset);
        self.set_gate(host, offset, count + u64::from(is_new));
    }

    /// Takes the gate's counts.
    pub fn count_gate(&mut self, host: &impl Host) {
        let count = |offset| word(host, self.layout.gate_words, offset);
        (self.counters.gate_calls, self.counters.gate_returns) = (count(at::CALLS), count(at::RETURNS));
    }
}

/// Whether the gate may write a program's frame below an address: what is there is the guest's, or a fault.
fn is_own(stack: u64) -> bool {
    let is_own = |address: u64| is_canonical(address) && !HOLE.contains(&(address as usize >> 39 & 511));
    is_own(stack) && is_own(stack.wrapping_sub(FRAME))
}

const _: () = {
    assert!(sluice_gate::KERNEL_CODE == CS64 && sluice_gate::KERNEL_STACK == SS);
    assert!(sluice_gate::RETURN == crate::abi::call::IRET);
    assert!(
        sluice_gate::FLAGS_OWN
            == crate::abi::rflags::KNOWN & !(crate::abi::rflags::IOPL | crate::abi::rflags::NT)
    );
};
