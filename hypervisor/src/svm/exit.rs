//! Running a virtual processor: entry, exit, dispatch.
//!
//! The common path is: enter, one `match`, enter again. Everything that needs a closer look (posted
//! interrupts, timers, stops, the end of the slice) is a bit in [`Vcpu::events`] or follows an exit
//! that sets `attention`.

use super::vmcb::{Intercept3, Intercept4, VirtualInterrupt, event, exit_code};
use super::{cpuid, crash, inject, io, machine_check, mmio, msr};
use crate::cpu::tsc;
use crate::device;
use crate::domain::counters::{Exit, Refusal};
use crate::domain::vcpu::{Context, RunState, Vcpu, event as events};
use crate::domain::{Domain, EndReason};
use crate::sched::Processor;
use core::sync::atomic::Ordering;

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
    /// General protection.
    pub const GP: u8 = 13;
    /// Page fault.
    pub const PF: u8 = 14;
    /// Alignment check.
    pub const AC: u8 = 17;
    /// Machine check.
    pub const MC: u8 = 18;
}

const DR7_GD: u64 = 1 << 13;

/// Fills in what never changes in a control block.
pub fn initialize(ctx: &mut Context, domain: &Domain) {
    let control = &mut ctx.vmcb.control;
    control.intercept3 = (Intercept3::INTR
        | Intercept3::NMI
        | Intercept3::INIT
        | Intercept3::RDPMC
        | Intercept3::CPUID
        | Intercept3::INVD
        | Intercept3::HLT
        | Intercept3::INVLPGA
        | Intercept3::IOIO_PROT
        | Intercept3::MSR_PROT
        | Intercept3::SHUTDOWN)
        .bits();
    control.intercept4 = Intercept4::all().bits();
    // #DB and #AC can be raised by their own delivery, endlessly, inside the processor: an exit breaks
    // the chain, so that interrupts get through. A machine check of the real processor is not the guest's to handle.
    control.intercept_exceptions = 1 << exception::DB | 1 << exception::AC | 1 << exception::MC;
    control.iopm_base = domain.permission_map().as_u64();
    control.msrpm_base = msr::permission_map().as_u64();
    control.asid = domain.asid();
    // A domain built again has the identifier of its last life: forget that one's translations.
    control.tlb_control = 1;
    control.virtual_interrupt = VirtualInterrupt::INTR_MASKING.bits();
    control.nested_paging = 1;
    control.nested_cr3 = domain.nested_root().as_u64();
    ctx.vmcb.save.g_pat = ctx.pat;
}

/// Runs `vcpu` until its slice is over, it has nothing to do or its domain must stop.
pub fn run(domain: &Domain, vcpu: &Vcpu, processor: &mut Processor) {
    let mut guard = vcpu.context.lock();
    let ctx = &mut *guard;
    let started = tsc::now();
    let mut flow = Flow::Attend;
    loop {
        let look = flow == Flow::Attend || vcpu.events.load(Ordering::Relaxed) != 0;
        if look && !attend(domain, vcpu, ctx, processor) {
            break;
        }
        vcpu.in_guest.store(true, Ordering::SeqCst);
        if domain.is_frozen() || vcpu.events.load(Ordering::SeqCst) != 0 {
            vcpu.in_guest.store(false, Ordering::SeqCst);
            domain.wait_thawed();
            flow = Flow::Attend;
            continue;
        }
        // SAFETY: `initialize` pointed the block at this domain's nested tables and permission maps,
        // which live as long as the domain; SVM is enabled on every processor that runs guests.
        unsafe { super::enter(&processor.host, &mut ctx.regs, ctx.vmcb.address()) };
        vcpu.in_guest.store(false, Ordering::Release);
        flow = dispatch(domain, vcpu, ctx, processor);
        if flow == Flow::Leave {
            break;
        }
    }
    let now = tsc::now();
    vcpu.wake_at.store(ctx.timer_deadline(now).unwrap_or(u64::MAX), Ordering::SeqCst);
    let ran = now.wrapping_sub(started);
    vcpu.run_ticks.store(vcpu.run_ticks.load(Ordering::Relaxed).wrapping_add(ran), Ordering::Relaxed);
}

/// Looks at everything that may have happened besides the exit. Returns whether to enter.
fn attend(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, processor: &mut Processor) -> bool {
    processor.service();
    if !domain.may_run() {
        // What is pending stays so until the domain goes on.
        return false;
    }
    domain.release_held(tsc::now());
    let seen = vcpu.events.swap(0, Ordering::SeqCst);
    if seen & events::INTERRUPT != 0 {
        vcpu.collect(&mut ctx.lapic);
    }
    if seen & events::FLUSH != 0 {
        ctx.vmcb.control.tlb_control = 1;
    }
    if seen & events::INIT != 0 {
        ctx.lapic.reset();
        *vcpu.route.lock() = ctx.lapic.routing();
        vcpu.set_state(RunState::Off);
    }
    if seen & events::SIPI != 0 && vcpu.state() == RunState::Off {
        inject::start_up(ctx, vcpu.sipi_vector.load(Ordering::SeqCst));
        vcpu.set_state(RunState::Ready);
    }
    if vcpu.state() == RunState::Off {
        return false;
    }
    let now = tsc::now();
    inject::sync_pv_eoi(domain, ctx);
    ctx.lapic.poll_timer(ctx.guest_tsc_at(now));
    if seen & events::MACHINE_CHECK != 0 {
        machine_check::take(domain, vcpu, ctx);
    }
    if seen & events::NMI != 0 {
        if ctx.inject == 0 {
            ctx.inject = inject::NMI;
        } else {
            // An exception goes first.
            vcpu.events.fetch_or(events::NMI, Ordering::SeqCst);
        }
    }
    inject::next(domain, ctx);
    processor.prepare_timer(ctx.timer_deadline(now), now)
}

/// Handles one exit.
#[inline]
fn dispatch(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, processor: &mut Processor) -> Flow {
    ctx.vmcb.control.event_injection = 0;
    inject::settle(vcpu, ctx, &processor.host);
    let code = ctx.vmcb.control.exit_code as u32;
    let flow = match code {
        exit_code::CPUID => {
            vcpu.exits.count(Exit::Cpuid as usize);
            cpuid::handle(vcpu, ctx, domain);
            Flow::Enter
        }
        exit_code::IOIO => io::handle(domain, vcpu, ctx),
        exit_code::MSR => msr::handle(domain, vcpu, ctx),
        exit_code::NPF => mmio::handle(domain, vcpu, ctx),
        exit_code::INTR => {
            vcpu.exits.count(Exit::Interrupt as usize);
            processor.take_interrupts();
            Flow::Attend
        }
        exit_code::HLT => {
            vcpu.exits.count(Exit::Hlt as usize);
            skip(ctx, 1);
            halt(domain, vcpu, ctx)
        }
        exit_code::VINTR => {
            vcpu.exits.count(Exit::InterruptWindow as usize);
            inject::close_window(ctx);
            Flow::Attend
        }
        _ => rare(domain, vcpu, ctx, code),
    };
    ctx.vmcb.control.tlb_control = 0;
    // An interrupted event goes in again before anything else.
    if ctx.inject != 0 && flow == Flow::Enter { Flow::Attend } else { flow }
}

/// Exits that a well-behaved guest hardly ever causes.
#[cold]
fn rare(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, code: u32) -> Flow {
    match code {
        exit_code::NMI => {
            vcpu.exits.count(Exit::Nmi as usize);
            Flow::Attend
        }
        exit_code::INIT => Flow::Attend,
        exit_code::DB => {
            vcpu.exits.count(Exit::Exception as usize);
            // DR6 is in the VMCB already; the delivery that was intercepted would have cleared DR7.GD
            // (APM vol 2, 13.1.1.4).
            ctx.vmcb.save.dr7 &= !DR7_GD;
            raise(ctx, exception::DB, None)
        }
        exit_code::AC => {
            vcpu.exits.count(Exit::Exception as usize);
            raise(ctx, exception::AC, Some(0))
        }
        exit_code::CR8_WRITE => {
            vcpu.exits.count(Exit::Instruction as usize);
            write_cr8(domain, ctx)
        }
        exit_code::SHUTDOWN => {
            vcpu.exits.count(Exit::Shutdown as usize);
            crash::end(domain, vcpu, ctx, EndReason::TripleFault)
        }
        exit_code::INVALID => {
            vcpu.exits.count(Exit::Invalid as usize);
            crash::end(domain, vcpu, ctx, EndReason::InvalidState)
        }
        exit_code::WBINVD | exit_code::INVD => {
            // Memory is coherent and no device is mapped write-back: nothing to write back.
            vcpu.exits.count(Exit::Instruction as usize);
            skip_decoded(domain, ctx)
        }
        exit_code::VMMCALL => {
            // No hypercall exists yet: the answer is the KVM interface's "no such call" (-ENOSYS),
            // which is the interface that CPUID announces.
            vcpu.exits.count(Exit::Hypercall as usize);
            ctx.vmcb.save.rax = (-38i64) as u64;
            skip(ctx, 3);
            Flow::Enter
        }
        exit_code::XSETBV => {
            vcpu.exits.count(Exit::Instruction as usize);
            let value = ctx.regs[2] << 32 | ctx.vmcb.save.rax & 0xffff_ffff;
            if ctx.vmcb.save.cpl == 0 && ctx.regs[1] as u32 == 0 && crate::cpu::fpu::set_xcr0(value) {
                skip(ctx, 3);
                Flow::Enter
            } else {
                raise(ctx, exception::GP, Some(0))
            }
        }
        exit_code::VMRUN..=exit_code::SKINIT
        | exit_code::INVLPGA
        | exit_code::MONITOR
        | exit_code::MWAIT
        | exit_code::MWAIT_CONDITIONAL => {
            vcpu.exits.count(Exit::Instruction as usize);
            vcpu.refusals.count(Refusal::Privileged as usize);
            raise(ctx, exception::UD, None)
        }
        exit_code::RDPMC => {
            vcpu.exits.count(Exit::Instruction as usize);
            vcpu.refusals.count(Refusal::Privileged as usize);
            raise(ctx, exception::GP, Some(0))
        }
        _ => {
            vcpu.exits.count(Exit::Instruction as usize);
            crash::end(domain, vcpu, ctx, EndReason::UnexpectedExit(code))
        }
    }
}

/// HLT: sleep unless something is already waiting.
fn halt(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    // Whoever has time to sleep is not drowned in interrupts.
    domain.release_held(u64::MAX - 1);
    vcpu.collect(&mut ctx.lapic);
    inject::sync_pv_eoi(domain, ctx);
    let now = tsc::now();
    if ctx.lapic.poll_timer(ctx.guest_tsc_at(now)) || ctx.lapic.highest_pending().is_some() {
        return Flow::Attend;
    }
    vcpu.wake_at.store(ctx.timer_deadline(now).unwrap_or(u64::MAX), Ordering::SeqCst);
    vcpu.set_state(RunState::Halted);
    // An interrupt posted before the state changed found nobody to wake.
    if vcpu.events.load(Ordering::SeqCst) != 0 {
        vcpu.set_state(RunState::Ready);
        return Flow::Attend;
    }
    if domain.vcpus.iter().all(|vcpu| matches!(vcpu.state(), RunState::Halted | RunState::Off)) {
        device::halted(domain);
    }
    Flow::Leave
}

/// Steps over an instruction of `length` bytes that was emulated.
///
/// Without NRIP save the length is the shortest encoding's: redundant prefixes on these
/// instructions, which no compiler emits, confuse only the guest that uses them.
#[inline]
pub fn skip(ctx: &mut Context, length: u64) {
    let next = ctx.vmcb.control.next_rip;
    let rip = ctx.vmcb.save.rip;
    ctx.vmcb.save.rip = if next != 0 { next } else { rip.wrapping_add(length) };
    ctx.vmcb.control.interrupt_shadow = 0;
}

/// MOV to CR8, which exits while an interrupt window is open.
fn write_cr8(domain: &Domain, ctx: &mut Context) -> Flow {
    let decoded = match mmio::fetch(domain, ctx) {
        Ok(code) => sluice_emulator::cr8_write(&code, mmio::bitness(ctx)),
        Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
    };
    let Some((source, length)) = decoded else { return raise(ctx, exception::UD, None) };
    let priority = mmio::gpr(ctx, source);
    if ctx.vmcb.save.cpl != 0 || priority > 15 {
        return raise(ctx, exception::GP, Some(0));
    }
    let word = &mut ctx.vmcb.control.virtual_interrupt;
    *word = *word & !0xff | priority;
    skip(ctx, length);
    Flow::Attend
}

/// Steps over an instruction whose prefixes mean something: WBNOINVD is WBINVD with one.
fn skip_decoded(domain: &Domain, ctx: &mut Context) -> Flow {
    let length = match mmio::fetch(domain, ctx) {
        Ok(code) => sluice_emulator::length(&code, mmio::bitness(ctx)),
        Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
    };
    match length {
        Some(length) => {
            skip(ctx, length);
            Flow::Enter
        }
        // Another processor of the guest changed it meanwhile.
        None => raise(ctx, exception::UD, None),
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
