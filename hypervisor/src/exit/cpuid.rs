//! CPUID: the processor's own answer, filtered for a guest.

use super::flow::skip;
use crate::domain::Domain;
use crate::domain::vcpu::{Context, Vcpu};
use crate::x86::{self, tsc};
use sluice_platform::cpuid::{self, CpuInfo, filter};

/// Whether guests are told that they have a barrier of branch predictions.
pub fn has_prediction_barrier() -> bool {
    cpuid::has_prediction_barrier(x86::cpuid_checked(0x8000_0008, 0).ebx)
}

/// Answers the CPUID instruction that the guest stands at.
pub fn handle(vcpu: &Vcpu, ctx: &mut Context, domain: &Domain) {
    let (leaf, subleaf) = (ctx.vmcb.save.rax as u32, ctx.regs[1] as u32);
    let host = x86::cpuid(leaf, subleaf);
    let guest = CpuInfo {
        vcpu_id: vcpu.id,
        vcpus: domain.vcpus.len() as u32,
        tsc_khz: tsc::khz() as u32,
        apic_id: vcpu.id,
        apic_base: ctx.lapic.base(),
        cr4: ctx.vmcb.save.cr4,
    };
    let [eax, ebx, ecx, edx] = filter(leaf, subleaf, [host.eax, host.ebx, host.ecx, host.edx], &guest);
    ctx.vmcb.save.rax = u64::from(eax);
    ctx.regs[3] = u64::from(ebx);
    ctx.regs[1] = u64::from(ecx);
    ctx.regs[2] = u64::from(edx);
    skip(ctx, 2);
}
