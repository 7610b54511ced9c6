//! Every model-specific register of the ranges that exist: what RDMSR and WRMSR must do, by an exact list.
//!
//! Runs first: values are those of a processor that has just started.

use super::Verdict;
use crate::machine::{self, rdmsr, wrmsr};
use crate::trap;

const RANGES: [core::ops::Range<u32>; 4] =
    [0..0x2000, 0x4b56_4d00..0x4b56_4d10, 0xc000_0000..0xc000_2000, 0xc001_0000..0xc001_2000];

const GP: u64 = 13;

/// What there is to read, and whether the same can be written back. What is not here raises #GP, both ways.
fn readable(msr: u32) -> Option<(Option<u64>, bool)> {
    let value = |value| Some((Some(value), true));
    let read_only = |value| Some((Some(value), false));
    match msr {
        0x10 => Some((None, true)),
        0x1b => value(0xfee0_0d00),
        0x8b => value(1 << 24),
        0xfe => read_only(0),
        0x174..=0x176 => value(0),
        0x179 => read_only(0),
        0x17a => value(0),
        0x277 => value(0x0007_0406_0007_0406),
        0x2ff => value(0xc06),
        0x6e0 => value(0),
        // The local APIC (SDM vol 3, table 11-6).
        0x802 => read_only(0),
        0x803 => read_only(0x0005_0014),
        0x808 => value(0),
        0x80a => read_only(0),
        0x80d => read_only(1),
        0x80f => value(0x1ff),
        0x810..=0x827 | 0x839 => read_only(0),
        0x828 | 0x838 | 0x83e => value(0),
        // Written back, it would send: left alone.
        0x830 => Some((Some(0), false)),
        0x832..=0x837 => value(0x1_0000),
        0x4b56_4d00 | 0x4b56_4d01 | 0x4b56_4d04 => value(0),
        0xc000_0080 => value(0xd00),
        0xc000_0081..=0xc000_0084 | 0xc000_0100..=0xc000_0103 => value(0),
        // Performance counters that count nothing; SYSCFG, NB_CFG, interrupt pending, LS_CFG.
        0xc001_0000..=0xc001_0007 => value(0),
        0xc001_0010 | 0xc001_001f | 0xc001_0055 | 0xc001_1020 => value(0),
        // The TSC counts at P0's frequency.
        0xc001_0015 => value(0x100_0000),
        0xc001_0140 | 0xc001_0141 => read_only(0),
        0xc001_1029 => value(2),
        _ => None,
    }
}

/// Registers that cannot be read, and take a zero: end of interrupt, self IPI, the patch loader.
fn write_only(msr: u32) -> bool {
    // The barrier of branch predictions, where there is one.
    let barrier = core::arch::x86_64::__cpuid(0x8000_0008).ebx & 1 << 12 != 0;
    matches!(msr, 0x80b | 0x83f | 0xc001_0020) || barrier && msr == 0x49
}

/// Values with their register that it takes or refuses, whatever its own is. Those taken read back as the third says.
const WRITES: [(u32, u64, Option<u64>); 37] = [
    (0x1b, 0xfee0_0400, None),
    (0x1b, 0xfee0_1d00, None),
    (0x1b, 0x1_fee0_0d00, None),
    (0x277, 0x0106_0504_0001_0706, Some(0x0106_0504_0001_0706)),
    (0x277, 0x0206_0504_0001_0706, None),
    (0x277, 0x0106_0504_0001_0703, None),
    (0x277, 0x0806_0504_0001_0706, None),
    (0x277, 0x0007_0406_0007_0406, Some(0x0007_0406_0007_0406)),
    // MTRRdefType: types 2, 3, 7 and above; reserved bits (APM vol 2, figure 7-7).
    (0x2ff, 0xc00, Some(0xc00)),
    (0x2ff, 0x805, Some(0x805)),
    (0x2ff, 0xc02, None),
    (0x2ff, 0xc07, None),
    (0x2ff, 0xc16, None),
    (0x2ff, 0x1c06, None),
    (0x2ff, 0xd06, None),
    (0x2ff, 0xe06, None),
    (0x2ff, 0x8000_0000_0000_0c06, None),
    (0x2ff, 0xc06, Some(0xc06)),
    (0x808, 0x100, None),
    (0x808, 0x2b, Some(0x2b)),
    (0x808, 0, Some(0)),
    (0x80b, 1, None),
    (0x80f, 0x3ff, None),
    (0x828, 1, None),
    (0x832, 0x8_00ff_ffff, None),
    (0x83f, 0x100, None),
    (0x4b56_4d01, 0xffff_ffff_f001, None),
    (0x4b56_4d04, 3, None),
    // EFER: SVM, TCE, reserved, and long mode while paging is on.
    (0xc000_0080, 0x1d00, None),
    (0xc000_0080, 0x8d00, None),
    (0xc000_0080, 0xd02, None),
    (0xc000_0080, 0xc00, None),
    (0xc000_0080, 0xd01, Some(0xd01)),
    (0xc000_0080, 0xd00, Some(0xd00)),
    (0xc001_0000, 0x0053_00c0, Some(0)),
    (0xc001_0007, 0xffff_ffff_ffff, Some(0)),
    (0xc001_0015, 0, Some(0x100_0000)),
];

fn exception(function: impl FnMut()) -> u64 {
    trap::attempt(function).map_or(0, u64::from)
}

/// Runs the check.
pub fn run() {
    machine::x2apic();
    let mut verdict = Verdict::new("registers");
    for msr in RANGES.into_iter().flatten() {
        one(&mut verdict, msr);
    }
    for (msr, value, back) in WRITES {
        let raised = exception(|| wrmsr(msr, value));
        verdict.expect("WRMSR", value, raised, if back.is_some() { 0 } else { GP });
        if let Some(back) = back {
            verdict.expect("RDMSR after WRMSR", msr.into(), rdmsr(msr), back);
        }
    }
    verdict.report();
    presence();
}

fn one(verdict: &mut Verdict, msr: u32) {
    let expected = readable(msr);
    let mut is = 0;
    let raised = exception(|| is = rdmsr(msr));
    verdict.expect("exception of RDMSR", msr.into(), raised, if expected.is_some() { 0 } else { GP });
    match expected {
        Some((value, writable)) => {
            if let Some(value) = value {
                verdict.expect("RDMSR", msr.into(), is, value);
            }
            // The counter would go back, the command register would send.
            if msr != 0x10 && msr != 0x830 {
                let raised = exception(|| wrmsr(msr, is));
                verdict.expect("exception of WRMSR", msr.into(), raised, if writable { 0 } else { GP });
            }
        }
        None => {
            let raised = exception(|| wrmsr(msr, 0));
            verdict.expect(
                "exception of WRMSR of 0 to",
                msr.into(),
                raised,
                if write_only(msr) { 0 } else { GP },
            );
        }
    }
}

/// CPUID says that there is a local APIC while there is.
fn presence() {
    const APIC: u32 = 1 << 9;
    let mut verdict = Verdict::new("presence");
    for (base, present) in [(0xfee0_0d00, APIC), (0xfee0_0100, 0), (0xfee0_0900, APIC), (0xfee0_0d00, APIC)] {
        wrmsr(0x1b, base);
        for leaf in [1, 0x8000_0001] {
            verdict.expect(
                "APIC in leaf",
                leaf.into(),
                core::arch::x86_64::__cpuid(leaf).edx & APIC,
                present,
            );
        }
    }
    machine::x2apic();
    verdict.report();
}
