//! What follows an exit, and how an instruction that was emulated ends: it is stepped over, or raises an exception.

use crate::domain::vcpu::{Context, Vcpu};
use crate::svm::vmcb::event;

/// What follows an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Enter again.
    Enter,
    /// Look at interrupts and timers, then enter again.
    Attend,
    /// Nothing to run: the processor's state says why.
    Leave,
}

/// Exception vectors that Sluice injects itself.
pub mod exception {
    /// Debug.
    pub const DB: u8 = 1;
    /// Invalid opcode.
    pub const UD: u8 = 6;
    /// Stack.
    pub const SS: u8 = 12;
    /// General protection.
    pub const GP: u8 = 13;
    /// Page fault.
    pub const PF: u8 = 14;
    /// Alignment check.
    pub const AC: u8 = 17;
    /// Machine check.
    pub const MC: u8 = 18;
}

const RFLAGS_TF: u64 = 1 << 8;

const RFLAGS_RF: u64 = 1 << 16;

/// DR6: the exception is a single step.
const DR6_BS: u64 = 1 << 14;

/// The device is not here now: sleeps until it is, and makes the access again.
pub fn wait_for_device(vcpu: &Vcpu) -> Flow {
    if vcpu.wait_for_device() { Flow::Leave } else { Flow::Attend }
}

/// Steps over an instruction of `length` bytes that was emulated.
///
/// Without NRIP save the length is the shortest encoding's: redundant prefixes on these
/// instructions, which no compiler emits, confuse only the guest that uses them.
#[inline]
pub fn skip(ctx: &mut Context, length: u64) {
    let next = ctx.vmcb.control.next_rip;
    let rip = ctx.vmcb.save.rip;
    retire(ctx, if next != 0 { next } else { rip.wrapping_add(length) });
}

/// Ends an instruction that was emulated, or an iteration of one that repeats: the next is at `next`. Everything that emulates
/// comes here, so that a guest which steps through its code is trapped after each instruction (APM vol 2, 13.1.4).
#[inline]
pub fn retire(ctx: &mut Context, next: u64) {
    ctx.vmcb.save.rip = next;
    ctx.vmcb.control.interrupt_shadow = 0;
    if ctx.vmcb.save.rflags & (RFLAGS_TF | RFLAGS_RF) != 0 {
        trap(ctx);
    }
}

/// The single-step trap behind an emulated instruction. The resume flag has served its one instruction.
#[cold]
#[inline(never)]
fn trap(ctx: &mut Context) {
    ctx.vmcb.save.rflags &= !RFLAGS_RF;
    if ctx.vmcb.save.rflags & RFLAGS_TF != 0 {
        ctx.vmcb.save.dr6 |= DR6_BS;
        ctx.inject = event::exception(exception::DB, None);
    }
}

/// Raises an exception at the current instruction.
pub fn raise(ctx: &mut Context, vector: u8, error_code: Option<u32>) -> Flow {
    ctx.inject = event::exception(vector, error_code);
    Flow::Attend
}

/// Raises a page fault.
pub fn raise_page_fault(ctx: &mut Context, address: u64, error_code: u32) -> Flow {
    ctx.vmcb.save.cr2 = address;
    raise(ctx, exception::PF, Some(error_code))
}
