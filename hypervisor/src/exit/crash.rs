//! What a virtual processor looked like when its domain crashed, for the log.
//!
//! Source: APM vol 2, appendix B (layout of the VMCB). A VMRUN that QEMU 7.2 refuses may leave the
//! hypervisor's own registers in the save area; a state that the guest itself put there shows as it was.

use super::flow::Flow;
use crate::cpu;
use crate::domain::vcpu::{Context, Vcpu, Watch};
use crate::domain::{Domain, EndReason};
use crate::svm::vmcb::{Control, Save, Segment};
use core::fmt;

/// Ends the domain for what its processor did, and logs the processor's state, once.
#[cold]
pub fn end(domain: &Domain, vcpu: &Vcpu, ctx: &Context, reason: EndReason) -> Flow {
    if !domain.has_ended() {
        let (name, others) = (domain.name(), Others(domain, vcpu));
        log::warn!("domain {name}: processor {}: {}{}{others}", vcpu.id, reason.text(), State(ctx));
    }
    domain.end(reason);
    Flow::Leave
}

/// What the domain's other processors do, on a line of its own.
struct Others<'a>(&'a Domain, &'a Vcpu);

impl fmt::Display for Others<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(domain, own) = self;
        for (nth, other) in domain.vcpus.iter().filter(|other| other.id != own.id).enumerate() {
            f.write_str(if nth == 0 { "\n  other processors: " } else { ", " })?;
            write!(f, "{} {}", other.id, other.state())?;
        }
        Ok(())
    }
}

/// The state on lines of their own.
struct State<'a>(&'a Context);

impl fmt::Display for State<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ctx = self.0;
        let vmcb = &*ctx.vmcb;
        control(&vmcb.control, ctx, f)?;
        registers(&vmcb.save, ctx, f)?;
        segments(&vmcb.save, f)
    }
}

fn control(control: &Control, ctx: &Context, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "\n  exit {:#x}  info1 {:#x}  info2 {:#x}  interrupted event {:#x}  on cpu{}\n  \
         last event {:#x}  waiting event {:#x}  offered {:x?}  window {}  virtual interrupt {:#x}  shadow {}\n  \
         asid {}  flush at entry {}  tsc offset {:#x}  nested cr3 {:#x}",
        control.exit_code,
        control.exit_info1,
        control.exit_info2,
        control.exit_interrupt_info,
        cpu::this().index,
        ctx.last_event,
        ctx.inject,
        ctx.watch.contains(Watch::OFFER).then_some(ctx.offered),
        u8::from(ctx.watch.contains(Watch::WINDOW)),
        control.virtual_interrupt,
        control.interrupt_shadow & 1,
        control.asid,
        control.tlb_control,
        control.tsc_offset,
        control.nested_cr3,
    )
}

fn registers(save: &Save, ctx: &Context, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let [_, rcx, rdx, rbx, _, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = ctx.regs;
    write!(
        f,
        "\n  rip {:016x}  rsp {:016x}  rflags {:08x}  cpl {}\n  \
         rax {:016x}  rbx {rbx:016x}  rcx {rcx:016x}  rdx {rdx:016x}\n  \
         rsi {rsi:016x}  rdi {rdi:016x}  rbp {rbp:016x}  r8  {r8:016x}\n  \
         r9  {r9:016x}  r10 {r10:016x}  r11 {r11:016x}  r12 {r12:016x}\n  \
         r13 {r13:016x}  r14 {r14:016x}  r15 {r15:016x}\n  \
         cr0 {:08x}  cr2 {:016x}  cr3 {:016x}  cr4 {:08x}  efer {:04x}\n  \
         dr6 {:08x}  dr7 {:08x}  lstar {:016x}  kernel gs {:016x}",
        save.rip,
        save.rsp,
        save.rflags,
        save.cpl,
        save.rax,
        save.cr0,
        save.cr2,
        save.cr3,
        save.cr4,
        save.efer,
        save.dr6,
        save.dr7,
        save.lstar,
        save.kernel_gs_base,
    )
}

fn segments(save: &Save, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let all: [(&str, &Segment); 10] = [
        ("cs", &save.cs),
        ("ss", &save.ss),
        ("ds", &save.ds),
        ("es", &save.es),
        ("fs", &save.fs),
        ("gs", &save.gs),
        ("tr", &save.tr),
        ("ldtr", &save.ldtr),
        ("gdtr", &save.gdtr),
        ("idtr", &save.idtr),
    ];
    for (index, (name, segment)) in all.into_iter().enumerate() {
        f.write_str(if index % 2 == 0 { "\n " } else { "  " })?;
        let Segment { selector, attributes, limit, base } = segment;
        write!(f, " {name:4} {selector:04x} attributes {attributes:03x} base {base:016x} limit {limit:08x}")?;
    }
    Ok(())
}
