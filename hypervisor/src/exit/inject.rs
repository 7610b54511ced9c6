//! Bringing interrupts and exceptions into a guest.
//!
//! Source: APM vol 2, 15.20 (event injection) and 15.21 (virtual interrupts). Exceptions and NMIs are
//! injected; an interrupt is offered as the virtual interrupt, which the processor takes as soon as the guest's
//! interrupt flag is set, without an exit. What the guest has not taken by the next exit is decided again. Where an
//! interrupt must not be offered yet, the virtual interrupt is intercepted: its exit says that the guest's interrupt window is open.
//!
//! Why interrupts are not injected as well: QEMU's TCG does not clear the vector that was injected
//! (`exception_index` after `SVM_EVTINJ_TYPE_INTR` in its `helper_vmrun`). When another of its threads
//! then calls the processor out of the guest with no interrupt for it, the guest takes the vector once
//! more, whatever its interrupt flag says, and the call is lost (docs/debug.md).

use super::guest;
use crate::cpu::{self, qemu_tcg};
use crate::domain::Domain;
use crate::domain::vcpu::{Context, Vcpu, Watch, event as events};
use crate::svm::HostArea;
use crate::svm::vmcb::{INTERCEPT_CR8_WRITE, Intercept3, Segment, VirtualInterrupt, event, exit_code};
use core::sync::atomic::Ordering;
use sluice_memory::{Asid, Gpa};
use sluice_platform::nmi::{Action, Nmi};

const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_TF: u64 = 1 << 8;
/// DR6: breakpoints met; the exception was a single step.
const DR6_BREAKPOINTS: u64 = 0xf;
const DR6_BS: u64 = 1 << 14;
/// NMI as an event (type 2, vector 2).
const NMI: u64 = event::VALID | 2 << 8 | 2;

/// Decides what the next entry delivers. The local APIC is up to date ([`sync_local_apic`]).
#[inline]
pub fn next(domain: &Domain, ctx: &mut Context) {
    if ctx.vmcb.control.interrupt_shadow & 1 != 0 {
        ctx.shadow_at = ctx.vmcb.save.rip;
    }
    // Decided before, but the entry did not come about: decide again.
    if let Some(vector) = withdraw(ctx) {
        ctx.lapic.retract(vector);
    }
    if !ctx.lapic.any_requested() && ctx.inject == 0 {
        close_window(ctx);
        ctx.vmcb.control.intercept_cr &= !INTERCEPT_CR8_WRITE;
        return;
    }
    decide(domain, ctx);
    // What is requested may wait for a lower task priority. And QEMU aborts when a guest writes CR8 while a
    // virtual interrupt is pending (7.2: it raises an interrupt without its lock), so that guest would take
    // all others with it.
    ctx.vmcb.control.intercept_cr |= INTERCEPT_CR8_WRITE;
}

fn decide(domain: &Domain, ctx: &mut Context) {
    if ctx.vmcb.control.event_injection & event::VALID != 0 {
        // Decided before, and what it was for is done: another event must not replace it.
        if ctx.inject != 0 || ctx.lapic.any_requested() {
            open_window(ctx);
        }
        return;
    }
    if ctx.inject != 0 {
        ctx.last_event = ctx.inject;
        ctx.vmcb.control.event_injection = core::mem::take(&mut ctx.inject);
        ctx.vmcb.control.interrupt_shadow = 0;
        if ctx.lapic.highest_pending().is_some() {
            open_window(ctx);
        }
        return;
    }
    if ctx.watch.contains(Watch::STEP) {
        // An interrupt would save the trap flag, which is not the guest's. The step is over at once.
        close_window(ctx);
        return;
    }
    let Some(vector) = ctx.lapic.highest_pending() else {
        close_window(ctx);
        return;
    };
    // A shadow that hides an interrupt now; without the flag, there is nothing to hide.
    let shadow = ctx.vmcb.save.rflags & RFLAGS_IF != 0 && ctx.vmcb.control.interrupt_shadow & 1 != 0;
    let woken = (shadow || ctx.vmcb.save.rip == ctx.shadow_at) && ends_halt(domain, ctx);
    if shadow && !woken {
        open_window(ctx);
        return;
    }
    close_window(ctx);
    let alone = !ctx.lapic.has_in_service();
    ctx.lapic.acknowledge(vector);
    offer(ctx, vector);
    // Others that wait are looked at when this one ends, so its end must be seen.
    if alone && !ctx.lapic.any_requested() && !ctx.lapic.is_level(vector) {
        offer_pv_eoi(domain, ctx);
    }
}

/// Delivers an NMI that is latched, or sees to it that the processor comes back as soon as it can be delivered.
#[cold]
pub fn take_nmi(ctx: &mut Context) {
    if ctx.inject != 0 || ctx.vmcb.control.event_injection & event::VALID != 0 {
        // Another event goes first, with the flags that are the guest's own. An interrupt of this processor's own ends the entry
        // right behind it.
        if ctx.watch.contains(Watch::STEP) {
            end_step(ctx);
        }
        cpu::kick(cpu::this().index);
        return;
    }
    let shadow = ctx.vmcb.control.interrupt_shadow & 1 != 0;
    match ctx.nmi.next(ctx.vmcb.save.rip, shadow) {
        Action::None => {}
        Action::Deliver => {
            ctx.inject = NMI;
            ctx.vmcb.control.intercept3 |= Intercept3::IRET.bits();
        }
        Action::Step => step(ctx),
    }
}

/// The guest stands before the IRET that ends its NMI handler.
pub fn nmi_returns(ctx: &mut Context) {
    ctx.nmi.returns(ctx.vmcb.save.rip);
    ctx.vmcb.control.intercept3 &= !Intercept3::IRET.bits();
}

/// Has the next entry come back after one instruction, by the trap flag. An instruction that looks at the flag sees it, and
/// so does the handler of an exception that the instruction raises.
fn step(ctx: &mut Context) {
    if !ctx.watch.contains(Watch::STEP) {
        let save = &mut ctx.vmcb.save;
        let before = (save.rflags & RFLAGS_TF != 0, save.dr6);
        save.rflags |= RFLAGS_TF;
        ctx.before_step = before;
        ctx.watch |= Watch::STEP;
    }
}

/// Gives the guest its trap flag back.
fn end_step(ctx: &mut Context) {
    let (stepping, _) = ctx.before_step;
    if !stepping {
        ctx.vmcb.save.rflags &= !RFLAGS_TF;
    }
    ctx.watch -= Watch::STEP;
}

/// A debug exception: whether it is the end of a step of the hypervisor's, and nothing that the guest asked for.
pub fn ends_step(ctx: &mut Context) -> bool {
    if !ctx.watch.contains(Watch::STEP) {
        return false;
    }
    let (stepping, before) = ctx.before_step;
    if ctx.nmi.returning() {
        // IRET has loaded the guest's flags.
        ctx.watch -= Watch::STEP;
    } else {
        end_step(ctx);
    }
    ctx.nmi.stepped();
    if stepping {
        return false;
    }
    let dr6 = ctx.vmcb.save.dr6;
    ctx.vmcb.save.dr6 = dr6 & !DR6_BS | before & DR6_BS;
    dr6 & DR6_BREAKPOINTS & !before == 0
}

/// HLT in the shadow of STI ends at once when an interrupt waits: steps over it. The interrupt must not go in before it, or the
/// guest sleeps with nothing to wake it; but QEMU (7.2) knows no shadow at VMRUN.
fn ends_halt(domain: &Domain, ctx: &mut Context) -> bool {
    const HLT: u8 = 0xf4;
    let next = guest::fetch(domain, ctx);
    let halts = ctx.vmcb.save.cpl == 0 && next.is_ok_and(|code| code.first() == Some(&HLT));
    if halts {
        ctx.vmcb.save.rip = ctx.vmcb.save.rip.wrapping_add(1);
        ctx.vmcb.control.interrupt_shadow = 0;
    }
    halts
}

/// Brings the local APIC up to date with what the entry that an exit just ended has delivered.
#[inline]
pub fn settle(vcpu: &Vcpu, ctx: &mut Context, host: &HostArea) {
    let info = ctx.vmcb.control.exit_interrupt_info;
    if !ctx.watch.is_empty() || info & event::VALID != 0 {
        settle_delivery(vcpu, ctx, info, host);
    }
}

#[inline(never)]
fn settle_delivery(vcpu: &Vcpu, ctx: &mut Context, info: u64, host: &HostArea) {
    if host.loses_interrupts {
        // A physical interrupt that the entry lost is told of again.
        qemu_tcg::renew_task_priority();
    }
    if ctx.watch.contains(Watch::STEP) && ctx.vmcb.control.exit_code as u32 != exit_code::DB {
        // Something else came first.
        end_step(ctx);
    }
    let mut interrupted = false;
    let waits = ctx.vmcb.control.virtual_interrupt & VirtualInterrupt::IRQ.bits() != 0;
    if let Some(vector) = withdraw(ctx) {
        interrupted = event::is_interrupt(info, vector);
        if interrupted || waits {
            ctx.lapic.retract(vector);
            // Whatever the exit is for, what is offered is decided again before the guest goes on.
            vcpu.events.fetch_or(events::INTERRUPT, Ordering::SeqCst);
        } else {
            vcpu.interrupts.store(vcpu.interrupts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
    if event::can_be_injected(info) && !interrupted {
        ctx.inject = info;
    }
}

/// Offers the processor a vector that the local APIC has in service.
fn offer(ctx: &mut Context, vector: u8) {
    ctx.offered = vector;
    ctx.watch |= Watch::OFFER;
    ctx.last_event = event::interrupt(vector);
    request(ctx, vector);
}

/// Ends an offer. Returns the vector, which is in service.
#[inline]
fn withdraw(ctx: &mut Context) -> Option<u8> {
    if !ctx.watch.contains(Watch::OFFER) {
        return None;
    }
    ctx.watch -= Watch::OFFER;
    end_request(ctx);
    Some(ctx.offered)
}

fn open_window(ctx: &mut Context) {
    if !ctx.watch.contains(Watch::WINDOW) {
        ctx.watch |= Watch::WINDOW;
        ctx.vmcb.control.intercept3 |= Intercept3::VINTR.bits();
        request(ctx, 0);
    }
}

/// Withdraws the request for an interrupt window.
pub fn close_window(ctx: &mut Context) {
    if ctx.watch.contains(Watch::WINDOW) {
        ctx.watch -= Watch::WINDOW;
        ctx.vmcb.control.intercept3 &= !Intercept3::VINTR.bits();
        end_request(ctx);
    }
}

/// Sets the virtual interrupt.
fn request(ctx: &mut Context, vector: u8) {
    ctx.vmcb.control.virtual_interrupt |=
        (VirtualInterrupt::IRQ | VirtualInterrupt::IGNORE_TPR).bits() | u64::from(vector) << 32;
}

/// Clears it.
fn end_request(ctx: &mut Context) {
    ctx.vmcb.control.virtual_interrupt &=
        !(VirtualInterrupt::IRQ | VirtualInterrupt::IGNORE_TPR | VirtualInterrupt::VECTOR).bits();
}

/// Tells the guest that it may leave out the EOI of the interrupt that is about to be delivered.
///
/// KVM's paravirtual EOI (Linux Documentation/virt/kvm/x86/msr.rst, MSR_KVM_EOI_EN): the hypervisor
/// sets bit 0 of a word in guest memory, the guest clears it instead of writing the EOI register.
fn offer_pv_eoi(domain: &Domain, ctx: &mut Context) {
    if ctx.pv_eoi_msr & 1 != 0 {
        let word = Gpa::new(ctx.pv_eoi_msr & !3);
        ctx.pv_eoi_armed = domain.write(word, &1u32.to_le_bytes()).is_ok();
    }
}

/// Brings the local APIC up to date with what the guest did to it without an exit: it wrote CR8, which is V_TPR of the control
/// block, or the paravirtual EOI word. Before anything is asked of the local APIC or done to it.
///
/// Inlined where it is called, whatever the compiler thinks of its size: a call would cost a twentieth of an exit.
#[inline(always)]
pub fn sync_local_apic(domain: &Domain, ctx: &mut Context) {
    ctx.lapic
        .observe_cr8((ctx.vmcb.control.virtual_interrupt & VirtualInterrupt::TASK_PRIORITY.bits()) as u8);
    if ctx.pv_eoi_armed {
        take_pv_eoi(domain, ctx);
    }
}

/// Looks whether the guest left out the EOI that it was told it may.
#[inline(never)]
fn take_pv_eoi(domain: &Domain, ctx: &mut Context) {
    ctx.pv_eoi_armed = false;
    let word = Gpa::new(ctx.pv_eoi_msr & !3);
    let mut bytes = [0; 4];
    if domain.read(word, &mut bytes).is_ok() && bytes[0] & 1 == 0 {
        ctx.lapic.eoi();
    } else {
        // Still in service: from here on the guest must say so itself.
        let _ = domain.write(word, &0u32.to_le_bytes());
    }
}

/// Puts the processor at the start of real-mode code in page `vector` (SIPI; SDM vol 3, 9.4.3).
pub fn start_up(ctx: &mut Context, vector: u8) {
    let data = Segment { selector: 0, attributes: 0x093, limit: 0xffff, base: 0 };
    let save = &mut ctx.vmcb.save;
    save.cs = Segment {
        selector: u16::from(vector) << 8,
        attributes: 0x09b,
        limit: 0xffff,
        base: u64::from(vector) << 12,
    };
    (save.ds, save.es, save.fs, save.gs, save.ss) = (data, data, data, data, data);
    save.gdtr = Segment { limit: 0xffff, ..Segment::default() };
    save.idtr = Segment { limit: 0xffff, ..Segment::default() };
    save.ldtr = Segment { attributes: 0x082, limit: 0xffff, ..Segment::default() };
    save.tr = Segment { attributes: 0x08b, limit: 0xffff, ..Segment::default() };
    save.cr0 = 0x10;
    save.cr3 = 0;
    save.cr4 = 0;
    save.efer = crate::svm::EFER_SVME;
    save.rflags = 2;
    save.rip = 0;
    save.rsp = 0;
    save.rax = 0;
    save.cpl = 0;
    save.dr6 = 0xffff_0ff0;
    save.dr7 = 0x400;
    ctx.regs = [0; 16];
    ctx.inject = 0;
    // Translations by the page tables that it had before a reset are not those of real mode.
    ctx.asid = Asid::default();
    #[cfg(feature = "check-flushes")]
    {
        ctx.resets += 1;
    }
    ctx.vmcb.control.event_injection = 0;
    ctx.vmcb.control.interrupt_shadow = 0;
    close_window(ctx);
    // The local APIC was reset: nothing is in service.
    withdraw(ctx);
    ctx.nmi = Nmi::default();
    ctx.vmcb.control.intercept3 &= !Intercept3::IRET.bits();
    ctx.watch -= Watch::STEP;
}
