//! Running a virtual processor: entry, exit, dispatch.
//!
//! The common path is: enter, one `match`, enter again. Everything that needs a closer look (posted
//! interrupts, timers, stops, the end of the slice) is a bit in [`Vcpu::events`] or follows an exit
//! that sets `attention`.

mod clock;
mod cpuid;
mod crash;
mod flow;
#[cfg(feature = "check-flushes")]
mod flushes;
pub mod guest;
mod hypercall;
pub mod inject;
mod io;
mod machine_check;
mod mmio;
mod moves;
mod msr;
pub mod paravirtual;

pub use flow::Flow;

use crate::cpu::fpu;
use crate::domain::counters::{Exit, Refusal};
use crate::domain::vcpu::{BlockReason, Context, RunState, Vcpu, event as events};
use crate::domain::{Domain, EndReason};
use crate::svm::vmcb::{Intercept3, Intercept4, VirtualInterrupt, exit_code};
use crate::svm::{self, HostArea};
use crate::x86::tsc;
use core::sync::atomic::Ordering;
use flow::{exception, raise, raise_page_fault, skip};
use sluice_memory::{Asid, Asids, Assigned};
use sluice_platform::GeneralProtection;

const DR7_GD: u64 = 1 << 13;

/// The physical processor in whose slice a virtual one runs.
pub trait Slice {
    /// What it needs to go in and out of guests.
    fn host(&mut self) -> &mut HostArea;
    /// Does what is not the guest's: device interrupts, the management channel.
    fn service(&mut self);
    /// Takes the physical interrupts that ended the guest's run.
    fn take_interrupts(&mut self);
    /// Decides how long the guest may run on, given when its own timer is due and the time now, in TSC ticks. Returns false
    /// when the slice is over and another virtual processor waits.
    fn prepare_timer(&mut self, guest_deadline: Option<u64>, now: u64) -> bool;
    /// What the processor may hold of guests.
    #[cfg(feature = "check-flushes")]
    fn translations(&mut self) -> &mut sluice_memory::flushes::Translations;
}

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
    control.virtual_interrupt = VirtualInterrupt::INTR_MASKING.bits();
    control.nested_paging = 1;
    control.nested_cr3 = domain.nested_root().as_u64();
    ctx.vmcb.save.g_pat = ctx.pat;
}

/// Runs `vcpu` until its slice is over, it has nothing to do or its domain must stop.
pub fn run(domain: &Domain, vcpu: &Vcpu, processor: &mut impl Slice) {
    let mut guard = vcpu.context.lock();
    let ctx = &mut *guard;
    vcpu.begin_slice(tsc::now());
    let mut flow = Flow::Attend;
    loop {
        if flow == Flow::Attend {
            if !attend(domain, vcpu, ctx, processor) {
                break;
            }
            // The identifier is this virtual processor's until its slice ends, or it gives it up in `attend`.
            renew_asid(ctx, &mut processor.host().asids);
        }
        vcpu.in_guest.store(true, Ordering::SeqCst);
        // In this order: what a freeze that has ended ordered is seen then, and one that begins later waits for this processor.
        let is_frozen = domain.is_frozen();
        let seen = vcpu.events.load(Ordering::SeqCst);
        if is_frozen || seen != 0 {
            vcpu.in_guest.store(false, Ordering::SeqCst);
            domain.wait_thawed();
            if flow == Flow::Enter && seen == events::FLUSH && vcpu.take_lone_flush() {
                // As after a call that took a page from the caller's own processor: nothing else is to be looked at.
                ctx.asid = Asid::default();
                renew_asid(ctx, &mut processor.host().asids);
            } else {
                flow = Flow::Attend;
            }
            continue;
        }
        #[cfg(feature = "check-flushes")]
        flushes::check(processor.translations(), domain, vcpu, ctx);
        let at = ctx.vmcb.address();
        let registers = match &mut ctx.paravirtual {
            Some(state) => &mut state.registers.gpr,
            None => &mut ctx.regs,
        };
        // SAFETY: `initialize` pointed the block at this domain's nested tables and permission maps,
        // which live as long as the domain; SVM is enabled on every processor that runs guests.
        unsafe { svm::enter(processor.host(), registers, at) };
        vcpu.in_guest.store(false, Ordering::Release);
        flow = dispatch(domain, vcpu, ctx, processor);
        if flow == Flow::Leave {
            break;
        }
    }
    if core::mem::take(&mut ctx.vmcb.control.tlb_control) != 0 {
        // The flush was ordered and the entry did not come about: others of the generation must not rely on it.
        processor.host().asids.expire();
    }
    let now = tsc::now();
    vcpu.wake_at.store(ctx.timer_deadline(now).unwrap_or(u64::MAX), Ordering::SeqCst);
    vcpu.end_slice(now);
}

/// Sees to it that the processor enters with an identifier that nobody else uses here.
#[inline]
fn renew_asid(ctx: &mut Context, asids: &mut Asids) {
    if let Some(Assigned { identifier, flush }) = asids.renew(&mut ctx.asid) {
        ctx.vmcb.control.asid = identifier;
        if flush {
            ctx.vmcb.control.tlb_control = 1;
        }
    }
}

/// Looks at everything that may have happened besides the exit. Returns whether to enter.
fn attend(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, processor: &mut impl Slice) -> bool {
    processor.service();
    if !domain.may_run() {
        // What is pending stays so until the domain goes on.
        return false;
    }
    let now = tsc::now();
    domain.resume(now);
    domain.release_held(now);
    let seen = vcpu.events.swap(0, Ordering::SeqCst);
    if seen & events::INTERRUPT != 0 {
        vcpu.collect(&mut ctx.lapic);
    }
    if seen & events::FLUSH != 0 {
        ctx.asid = Asid::default();
    }
    if seen & events::INIT != 0 {
        ctx.lapic.reset();
        msr::reflect_tpr(ctx);
        *vcpu.route.lock() = ctx.lapic.routing();
        vcpu.set_state(RunState::Off);
    }
    if seen & events::SIPI != 0 && vcpu.state() == RunState::Off {
        // A paravirtual one has registers already.
        if ctx.paravirtual.is_none() {
            inject::start_up(ctx, vcpu.sipi_vector.load(Ordering::SeqCst));
        }
        vcpu.set_state(RunState::Ready);
    }
    if vcpu.state() == RunState::Off {
        return false;
    }
    let now = tsc::now();
    if ctx.paravirtual.is_some() {
        paravirtual::attend(domain, vcpu, ctx);
        return domain.may_run() && processor.prepare_timer(ctx.timer_deadline(now), now);
    }
    inject::sync_local_apic(domain, ctx);
    ctx.lapic.poll_timer(ctx.guest_tsc_at(now));
    let stood_still = seen & events::RESUMED != 0 || domain.stood_still(now);
    if stood_still || seen & events::CLOCK != 0 {
        // The page was RAM when the guest named it.
        let _ = clock::publish(domain, ctx, stood_still);
    }
    if seen & events::MACHINE_CHECK != 0 {
        machine_check::take(domain, vcpu, ctx);
    }
    if seen & events::NMI != 0 {
        ctx.nmi.request();
    }
    if ctx.nmi.wakes() {
        inject::take_nmi(ctx);
    }
    inject::next(domain, ctx);
    processor.prepare_timer(domain.until_release(ctx.timer_deadline(now)), now)
}

/// Handles one exit.
#[inline]
fn dispatch(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, processor: &mut impl Slice) -> Flow {
    ctx.vmcb.control.event_injection = 0;
    ctx.vmcb.control.tlb_control = 0;
    inject::settle(vcpu, ctx, processor.host());
    let code = ctx.vmcb.control.exit_code as u32;
    if ctx.paravirtual.is_some() && !matches!(code, exit_code::INTR | exit_code::NMI | exit_code::INIT) {
        return paravirtual::dispatch(domain, vcpu, ctx);
    }
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
        exit_code::VMMCALL => {
            vcpu.exits.count(Exit::Hypercall as usize);
            hypercall::handle(domain, ctx)
        }
        _ => rare(domain, vcpu, ctx, code),
    };
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
        exit_code::IRET => {
            vcpu.exits.count(Exit::Instruction as usize);
            inject::nmi_returns(ctx);
            Flow::Attend
        }
        exit_code::DB => {
            vcpu.exits.count(Exit::Exception as usize);
            if inject::ends_step(ctx) {
                return Flow::Attend;
            }
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
        exit_code::XSETBV => {
            vcpu.exits.count(Exit::Instruction as usize);
            set_extended_control(ctx)
        }
        exit_code::VMRUN..=exit_code::SKINIT
        | exit_code::INVLPGA
        | exit_code::MONITOR
        | exit_code::MWAIT
        | exit_code::MWAIT_CONDITIONAL
        | exit_code::RDPRU => {
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
    if ctx.inject != 0 || ctx.nmi.wakes() {
        // A single step over HLT traps, and ends it.
        return Flow::Attend;
    }
    // Whoever has time to sleep is not drowned in interrupts.
    domain.release_held(u64::MAX - 1);
    vcpu.collect(&mut ctx.lapic);
    inject::sync_local_apic(domain, ctx);
    let now = tsc::now();
    if ctx.lapic.poll_timer(ctx.guest_tsc_at(now)) || ctx.lapic.highest_pending().is_some() {
        return Flow::Attend;
    }
    if !vcpu.halt(domain, ctx.timer_deadline(now).unwrap_or(u64::MAX)) {
        return Flow::Attend;
    }
    let rests = |state| matches!(state, RunState::Blocked(BlockReason::Halt) | RunState::Off);
    if domain.vcpus.iter().all(|vcpu| rests(vcpu.state())) {
        domain.halted();
    }
    Flow::Leave
}

/// MOV to CR8, which exits while an interrupt is requested.
fn write_cr8(domain: &Domain, ctx: &mut Context) -> Flow {
    let decoded = match guest::fetch(domain, ctx) {
        Ok(code) => sluice_insn::cr8_write(&code, guest::bitness(ctx)),
        Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
    };
    let Some((source, length)) = decoded else { return raise(ctx, exception::UD, None) };
    let priority = guest::gpr(ctx, source);
    if ctx.vmcb.save.cpl != 0 || priority > 15 {
        return raise(ctx, exception::GP, Some(0));
    }
    ctx.lapic.set_cr8(priority as u8);
    msr::reflect_tpr(ctx);
    skip(ctx, length);
    Flow::Attend
}

/// XSETBV. QEMU 7.2 never exits for it: `selftest=xsetbv` comes here with exits of its own making.
pub fn set_extended_control(ctx: &mut Context) -> Flow {
    let value = ctx.regs[2] << 32 | ctx.vmcb.save.rax & 0xffff_ffff;
    match fpu::set_xcr(ctx.vmcb.save.cpl, ctx.regs[1] as u32, value) {
        Ok(()) => {
            skip(ctx, 3);
            Flow::Enter
        }
        Err(GeneralProtection) => raise(ctx, exception::GP, Some(0)),
    }
}

/// Steps over an instruction whose prefixes mean something: WBNOINVD is WBINVD with one.
fn skip_decoded(domain: &Domain, ctx: &mut Context) -> Flow {
    let length = match guest::fetch(domain, ctx) {
        Ok(code) => sluice_insn::length(&code, guest::bitness(ctx)),
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
