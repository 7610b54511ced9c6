//! Model-specific registers of a guest, and the permission map that says which it may touch itself.
//!
//! Source: APM vol 2, 15.11 (MSR permission map), Linux Documentation/virt/kvm/x86/msr.rst (the
//! paravirtual clock and EOI registers).

use super::clock;
use super::flow::{Flow, exception, raise, skip};
use crate::domain::Domain;
use crate::domain::counters::{Exit, Refusal};
use crate::domain::vcpu::{Context, Vcpu};
use crate::firmware::rtc;
use crate::mm;
use crate::svm::vmcb::VirtualInterrupt;
use crate::sync::Once;
use crate::x86::msr::{APIC_BASE, EFER, PAT, TSC_AUX, TSC_DEADLINE};
use crate::x86::{self, tsc};
use sluice_memory::{Gpa, Hpa, PhysicalMemory};
use sluice_platform::clock::wall_clock;
use sluice_platform::lapic::Effect;

const TSC: u32 = 0x10;
const PREDICTION_COMMAND: u32 = 0x49;
const PATCH_LEVEL: u32 = 0x8b;
const MTRR_CAP: u32 = 0xfe;
const MCG_CAP: u32 = 0x179;
const MCG_STATUS: u32 = 0x17a;
const MC0_CTL: u32 = 0x400;
const MC0_MISC: u32 = 0x403;
const MTRR_DEFAULT: u32 = 0x2ff;
const X2APIC_FIRST: u32 = 0x800;
const X2APIC_TPR: u32 = 0x808;
const X2APIC_EOI: u32 = 0x80b;
const X2APIC_ICR: u32 = 0x830;
const X2APIC_INITIAL_COUNT: u32 = 0x838;
const X2APIC_LAST: u32 = 0x8ff;
const KVM_WALL_CLOCK: u32 = 0x4b56_4d00;
const KVM_SYSTEM_TIME: u32 = 0x4b56_4d01;
const KVM_PV_EOI: u32 = 0x4b56_4d04;
/// PerfEvtSel0-3, then PerfCtr0-3 (APM vol 2, 13.2.1).
const PERF_EVENT_SELECT: u32 = 0xc001_0000;
const PERF_COUNTER_LAST: u32 = 0xc001_0007;
const SYSCFG: u32 = 0xc001_0010;
const HWCR: u32 = 0xc001_0015;
const NB_CFG: u32 = 0xc001_001f;
const PATCH_LOADER: u32 = 0xc001_0020;
const INT_PENDING: u32 = 0xc001_0055;
const OSVW_FIRST: u32 = 0xc001_0140;
const OSVW_LAST: u32 = 0xc001_0141;
const LS_CFG: u32 = 0xc001_1020;
const DE_CFG: u32 = 0xc001_1029;

/// EFER bits a guest may set on every processor: SCE, LME, NXE.
const EFER_GUEST: u64 = 1 | 1 << 8 | 1 << 11;
const EFER_LME: u64 = 1 << 8;
/// EFER.FFXSR, where CPUID 8000_0001 EDX bit 25 says so: VMRUN refuses a bit that the processor lacks.
const EFER_FFXSR: u64 = 1 << 14;
const EFER_LMA: u64 = 1 << 10;
const CR0_PG: u64 = 1 << 31;

/// Registers that the processor swaps with VMRUN or VMLOAD, so that a guest may touch its own.
const DIRECT: &[u32] = &[
    0x174,
    0x175,
    0x176, // SYSENTER_CS, _ESP, _EIP
    0xc000_0081,
    0xc000_0082,
    0xc000_0083,
    0xc000_0084, // STAR, LSTAR, CSTAR, SFMASK
    0xc000_0100,
    0xc000_0101,
    0xc000_0102, // FS_BASE, GS_BASE, KernelGSBase
    TSC_AUX,     // swapped by the scheduler
];

/// The MSR permission map: the same for every guest.
pub fn permission_map() -> Hpa {
    static MAP: Once<Hpa> = Once::new();
    *MAP.call_once(|| {
        let map = mm::allocate_zeroed(8192).expect("8 KiB at start-up");
        mm::Direct.fill(map, 8192, 0xff);
        // A barrier of branch predictions has its effect on the processor that orders it, and the register cannot be read.
        let barrier = super::cpuid::has_prediction_barrier().then_some(PREDICTION_COMMAND);
        for msr in DIRECT.iter().copied().chain(barrier) {
            // Two bits per register, three ranges of 8,192 registers (APM vol 2, 15.11).
            let (start, index) = match msr {
                0..=0x1fff => (0, msr),
                0xc000_0000..=0xc000_1fff => (0x800, msr & 0x1fff),
                _ => (0x1000, msr & 0x1fff),
            };
            let (byte, shift) = (start + u64::from(index / 4), index % 4 * 2);
            let at = Hpa::new(map.as_u64() + byte);
            let mut bits = [0];
            mm::Direct.read(at, &mut bits);
            mm::Direct.write(at, &[bits[0] & !(3 << shift)]);
        }
        map
    })
}

/// Handles RDMSR and WRMSR.
#[inline]
pub fn handle(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    let is_write = ctx.vmcb.control.exit_info1 & 1 != 0;
    match if is_write { handle_write(domain, vcpu, ctx) } else { handle_read(domain, vcpu, ctx) } {
        Some(flow) => {
            skip(ctx, 2);
            flow
        }
        None => {
            vcpu.refusals.count(Refusal::Msr as usize);
            raise(ctx, exception::GP, Some(0))
        }
    }
}

/// Apart from reading, which needs fewer registers.
#[inline(never)]
fn handle_write(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Option<Flow> {
    let msr = ctx.regs[1] as u32;
    let value = ctx.regs[2] << 32 | ctx.vmcb.save.rax & 0xffff_ffff;
    if count(vcpu, msr) {
        write_apic(domain, vcpu, ctx, msr, value)
    } else {
        write(domain, vcpu, ctx, msr, value)
    }
}

#[inline(never)]
fn handle_read(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Option<Flow> {
    let msr = ctx.regs[1] as u32;
    let value = if count(vcpu, msr) { read_apic(domain, ctx, msr) } else { read(ctx, msr) }?;
    ctx.vmcb.save.rax = value & 0xffff_ffff;
    ctx.regs[2] = value >> 32;
    Some(Flow::Enter)
}

/// Counts an access. Returns whether the register is one of the local APIC's.
fn count(vcpu: &Vcpu, msr: u32) -> bool {
    let is_apic = (X2APIC_FIRST..=X2APIC_LAST).contains(&msr) || matches!(msr, APIC_BASE | TSC_DEADLINE);
    vcpu.exits.count(if is_apic { apic_exit(msr) } else { Exit::Msr } as usize);
    is_apic
}

/// How an access to a register of the local APIC is counted.
fn apic_exit(msr: u32) -> Exit {
    match msr {
        X2APIC_EOI => Exit::ApicEoi,
        X2APIC_ICR => Exit::ApicIcr,
        TSC_DEADLINE | X2APIC_INITIAL_COUNT => Exit::ApicTimer,
        _ => Exit::ApicOther,
    }
}

fn read_apic(domain: &Domain, ctx: &mut Context, msr: u32) -> Option<u64> {
    super::inject::sync_local_apic(domain, ctx);
    ctx.lapic.msr_read(msr, ctx.guest_tsc()).ok()
}

fn write_apic(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, msr: u32, value: u64) -> Option<Flow> {
    super::inject::sync_local_apic(domain, ctx);
    let now = ctx.guest_tsc();
    let effect = ctx.lapic.msr_write(msr, value, now).ok()?;
    // Switched off, it forgets its priority.
    if msr == X2APIC_TPR || msr == APIC_BASE {
        reflect_tpr(ctx);
    }
    if msr == APIC_BASE {
        *vcpu.route.lock() = ctx.lapic.routing();
    }
    Some(apply(domain, vcpu, effect))
}

fn read(ctx: &Context, msr: u32) -> Option<u64> {
    Some(match msr {
        TSC => ctx.guest_tsc(),
        EFER => ctx.vmcb.save.efer & !crate::svm::EFER_SVME,
        PAT => ctx.pat,
        MTRR_CAP => 0,
        MTRR_DEFAULT => ctx.mtrr_default,
        MCG_CAP | MCG_STATUS | MC0_CTL..=MC0_MISC => return ctx.machine_check.read(msr),
        // Any level will do: microcode belongs to the host.
        PATCH_LEVEL => 1 << 24,
        KVM_SYSTEM_TIME => ctx.clock_msr,
        KVM_PV_EOI => ctx.pv_eoi_msr,
        KVM_WALL_CLOCK => 0,
        // The counter has one rate, that of P0 (TscFreqSel).
        HWCR => 1 << 24,
        SYSCFG | NB_CFG | INT_PENDING | LS_CFG | OSVW_FIRST..=OSVW_LAST => 0,
        // They count nothing: no leaf of CPUID tells of more than that they exist, which is since the first of this family.
        PERF_EVENT_SELECT..=PERF_COUNTER_LAST => 0,
        // LFENCE is serializing.
        DE_CFG => 1 << 1,
        _ => return None,
    })
}

fn write(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, msr: u32, value: u64) -> Option<Flow> {
    match msr {
        TSC => {
            let now = tsc::now();
            ctx.lapic.tsc_moved(ctx.guest_tsc_at(now), value);
            ctx.vmcb.control.tsc_offset = value.wrapping_sub(now);
            clock::moved(domain, vcpu, ctx);
            return Some(Flow::Attend);
        }
        EFER => write_efer(ctx, value)?,
        PAT => {
            // Eight types of which 2, 3 and above 7 are reserved (APM vol 2, 7.8.1).
            if value.to_le_bytes().iter().any(|t| matches!(t, 2 | 3 | 8..)) {
                return None;
            }
            ctx.pat = value;
            ctx.vmcb.save.g_pat = value;
        }
        MTRR_DEFAULT => {
            // Enables, and a type of which 2, 3 and above 6 are reserved (APM vol 2, 7.7.2).
            if value & !0xcff != 0 || matches!(value as u8, 2 | 3 | 7..) {
                return None;
            }
            ctx.mtrr_default = value;
        }
        KVM_SYSTEM_TIME => {
            let last = core::mem::replace(&mut ctx.clock_msr, value);
            if clock::publish(domain, ctx, false).is_err() {
                ctx.clock_msr = last;
                return None;
            }
        }
        KVM_WALL_CLOCK => {
            let boot = rtc::boot_time_ns();
            domain.write(Gpa::new(value), &wall_clock(boot)).ok()?;
        }
        KVM_PV_EOI => {
            if value & 2 != 0 {
                return None;
            }
            super::inject::sync_local_apic(domain, ctx);
            ctx.pv_eoi_msr = value;
        }
        MCG_STATUS | MC0_CTL..=MC0_MISC => ctx.machine_check.write(msr, value)?,
        // Accepted and without effect: microcode and errata belong to the host.
        PATCH_LEVEL | SYSCFG | HWCR | NB_CFG | INT_PENDING | LS_CFG | DE_CFG => {}
        PATCH_LOADER | PERF_EVENT_SELECT..=PERF_COUNTER_LAST => {}
        _ => return None,
    }
    Some(Flow::Enter)
}

/// EFER as a guest may write it (APM vol 2, 3.1.7).
fn write_efer(ctx: &mut Context, value: u64) -> Option<()> {
    let save = &mut ctx.vmcb.save;
    let has_ffxsr = x86::cpuid(0x8000_0001, 0).edx & 1 << 25 != 0;
    let own = EFER_GUEST | if has_ffxsr { EFER_FFXSR } else { 0 };
    if value & !(own | EFER_LMA) != 0 || (save.cr0 & CR0_PG != 0 && (value ^ save.efer) & EFER_LME != 0) {
        return None;
    }
    save.efer = value & own | save.efer & EFER_LMA | crate::svm::EFER_SVME;
    Some(())
}

/// Copies the task priority to where CR8 reads it.
pub fn reflect_tpr(ctx: &mut Context) {
    let word = &mut ctx.vmcb.control.virtual_interrupt;
    *word = *word & !VirtualInterrupt::TASK_PRIORITY.bits() | u64::from(ctx.lapic.cr8());
}

/// Carries out what a local APIC access asked for.
pub fn apply(domain: &Domain, vcpu: &Vcpu, effect: Effect) -> Flow {
    match effect {
        Effect::None => Flow::Enter,
        Effect::Ipi(ipi) => {
            domain.send_ipi(vcpu, &ipi);
            Flow::Attend
        }
        // What is delivered again is an event, which is seen before the entry.
        Effect::Eoi { vector, pending } => match domain.end_of_interrupt(vector) || pending {
            true => Flow::Attend,
            false => Flow::Enter,
        },
        Effect::TimerChanged | Effect::Pending => Flow::Attend,
    }
}
