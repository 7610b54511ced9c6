//! The local APIC against the manual, section by section, and against a model that has no bit arithmetic.
#![allow(unused_must_use, reason = "a test looks at the effects that it is about")]

use super::*;
use crate::message::BROADCAST;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A TSC of 2 GHz: two ticks to a nanosecond, which is a tick of the timer.
const RATES: Rates = Rates::new(2_000_000);

const EOI: u32 = 0x80B;
const SVR: u32 = 0x80F;
const ESR: u32 = 0x828;
const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const LVT_ERROR: u32 = 0x837;
const INITIAL: u32 = 0x838;
const CURRENT: u32 = 0x839;
const DIVIDE: u32 = 0x83E;

/// In xAPIC mode, enabled by software.
fn xapic(id: u32) -> LocalApic {
    let mut apic = LocalApic::new(id, RATES);
    let _ = apic.mmio_write(0xF0, 0x1FF, 0);
    apic
}

/// In x2APIC mode, enabled by software, the timer counting undivided.
fn x2apic(id: u32) -> LocalApic {
    let mut apic = LocalApic::new(id, RATES);
    apic.msr_write(MSR_APIC_BASE, apic.base() | BASE_X2APIC, 0).unwrap();
    apic.msr_write(SVR, 0x1FF, 0).unwrap();
    apic.msr_write(DIVIDE, 0b1011, 0).unwrap();
    apic
}

fn write(apic: &mut LocalApic, msr: u32, value: u64) -> Effect {
    apic.msr_write(msr, value, 0).unwrap()
}

#[test]
fn sdm_11_4_7_1_state_at_power_up() {
    let mut apic = LocalApic::new(3, RATES);
    assert_eq!((apic.base(), apic.is_xapic(), apic.is_enabled()), (0xFEE0_0800, true, false));
    assert_eq!(LocalApic::new(0, RATES).base(), 0xFEE0_0900, "processor 0 boots");
    for (offset, value) in [
        (0x20, 3 << 24),
        (0x30, 0x0005_0014),
        (0x80, 0),
        (0xD0, 0),
        (0xE0, u32::MAX),
        (0xF0, 0xFF),
        (0x280, 0),
        (0x300, 0),
        (0x320, 1 << 16),
        (0x370, 1 << 16),
        (0x380, 0),
        (0x390, 0),
        (0x3E0, 0),
    ] {
        assert_eq!(apic.mmio_read(offset, 0), value, "{offset:#x}");
    }
}

#[test]
fn sdm_11_4_7_2_software_disabled() {
    let mut apic = xapic(0);
    let _ = apic.mmio_write(0x320, 0x41, 0);
    apic.request(0x50, false);
    let _ = apic.mmio_write(0xF0, 0xFF, 0);
    assert_eq!(apic.mmio_read(0x320, 0), 0x1_0041, "entries are masked");
    let _ = apic.mmio_write(0x320, 0x41, 0);
    assert_eq!(apic.mmio_read(0x320, 0), 0x1_0041, "and stay so");
    apic.request(0x60, false);
    assert_eq!(apic.highest_pending(), None);
    let _ = apic.mmio_write(0xF0, 0x1FF, 0);
    assert_eq!(apic.highest_pending(), Some(0x50), "what was pending is kept, what came later is not");
}

#[test]
fn sdm_11_5_3_errors() {
    let mut apic = x2apic(0);
    write(&mut apic, LVT_ERROR, 0xFE);
    assert_eq!(write(&mut apic, ICR, 0x0F), Effect::Pending);
    assert_eq!(apic.highest_pending(), Some(0xFE));
    assert_eq!(apic.msr_read(ESR, 0), Ok(0), "not latched yet");
    write(&mut apic, ESR, 0);
    assert_eq!(apic.msr_read(ESR, 0), Ok(1 << 5));
    apic.request(3, false);
    write(&mut apic, ESR, 0);
    assert_eq!(apic.msr_read(ESR, 0), Ok(1 << 6));
    write(&mut apic, LVT_ERROR, 0x05);
    apic.request(3, false);
    write(&mut apic, ESR, 0);
    assert_eq!(apic.msr_read(ESR, 0), Ok(1 << 6), "an illegal error vector ends there");

    let mut apic = xapic(0);
    assert_eq!(apic.mmio_read(0x2F0, 0), 0);
    let _ = apic.mmio_write(0x280, 0, 0);
    assert_eq!(apic.mmio_read(0x280, 0), 1 << 7, "no such register");
}

#[test]
fn sdm_11_5_4_one_shot() {
    let mut apic = x2apic(0);
    write(&mut apic, LVT_TIMER, 0x41);
    assert_eq!(apic.msr_write(INITIAL, 1000, 500), Ok(Effect::TimerChanged));
    assert_eq!(apic.timer_deadline(), Some(2500));
    assert_eq!(apic.msr_read(CURRENT, 500), Ok(1000));
    assert_eq!(apic.msr_read(CURRENT, 1500), Ok(500));
    assert!(!apic.poll_timer(2499));
    assert_eq!(apic.highest_pending(), None);
    assert!(apic.poll_timer(2500));
    assert_eq!(apic.highest_pending(), Some(0x41));
    assert_eq!((apic.timer_deadline(), apic.msr_read(CURRENT, 3000)), (None, Ok(0)));
    assert_eq!(apic.msr_read(INITIAL, 3000), Ok(1000));
    apic.msr_write(INITIAL, 1000, 3000).unwrap();
    apic.msr_write(INITIAL, 0, 3001).unwrap();
    assert_eq!(apic.timer_deadline(), None, "zero stops it");
}

#[test]
fn sdm_11_5_4_a_count_does_not_depend_on_the_tsc() {
    let mut apic = x2apic(0);
    write(&mut apic, LVT_TIMER, 0x41);
    apic.msr_write(INITIAL, 1000, 500).unwrap();
    apic.tsc_moved(1500, 7);
    assert_eq!((apic.timer_deadline(), apic.msr_read(CURRENT, 7)), (Some(1007), Ok(500)));
    apic.tsc_moved(7, u64::MAX - 3);
    assert_eq!(apic.timer_deadline(), Some(u64::MAX));
    write(&mut apic, LVT_TIMER, 0x4_0041);
    apic.msr_write(MSR_TSC_DEADLINE, 5000, 100).unwrap();
    apic.tsc_moved(100, 4000);
    assert_eq!(apic.timer_deadline(), Some(5000), "a deadline is a value of the TSC");
}

#[test]
fn sdm_11_5_4_periodic() {
    let mut apic = x2apic(0);
    write(&mut apic, LVT_TIMER, 0x2_0041);
    // A millisecond.
    apic.msr_write(INITIAL, 1_000_000, 0).unwrap();
    assert!(apic.poll_timer(2_000_010));
    assert_eq!(apic.timer_deadline(), Some(4_000_000), "late polls do not drift");
    assert_eq!(apic.msr_read(CURRENT, 3_000_000), Ok(500_000));
    assert!(apic.poll_timer(9_000_000));
    assert_eq!(apic.timer_deadline(), Some(10_000_000), "missed periods collapse");
    apic.msr_write(INITIAL, 1, 10_000_000).unwrap();
    assert!(apic.poll_timer(10_000_002));
    assert!(apic.timer_deadline() >= Some(10_100_000), "at most 20 kHz");
    apic.msr_write(INITIAL, 1_000_000, u64::MAX - 9).unwrap();
    assert!(apic.poll_timer(u64::MAX));
    assert_eq!(apic.timer_deadline(), None, "behind the last value of the TSC there is none");
}

#[test]
fn sdm_11_5_4_divide() {
    let mut apic = x2apic(0);
    write(&mut apic, LVT_TIMER, 0x41);
    for (code, divisor) in [(0, 2), (1, 4), (2, 8), (3, 16), (8, 32), (9, 64), (10, 128), (11, 1)] {
        apic.msr_write(DIVIDE, code, 0).unwrap();
        apic.msr_write(INITIAL, 100, 0).unwrap();
        assert_eq!(apic.timer_deadline(), Some(200 * divisor));
    }
    apic.msr_write(DIVIDE, 0, 100).unwrap();
    assert_eq!(apic.timer_deadline(), Some(300), "what is left goes on at the new rate");
}

#[test]
fn sdm_11_5_4_a_masked_timer_delivers_nothing() {
    let mut apic = x2apic(0);
    write(&mut apic, LVT_TIMER, 0x1_0041);
    apic.msr_write(INITIAL, 10, 0).unwrap();
    assert_eq!(apic.timer_deadline(), None);
    // It expired while masked; unmasking does not bring it back.
    apic.msr_write(LVT_TIMER, 0x41, 1000).unwrap();
    assert!(!apic.poll_timer(1000));
    assert_eq!(apic.highest_pending(), None);
}

#[test]
fn sdm_11_5_4_1_tsc_deadline() {
    let mut apic = x2apic(0);
    assert_eq!(apic.msr_write(MSR_TSC_DEADLINE, 100, 0), Ok(Effect::TimerChanged));
    assert_eq!(apic.msr_read(MSR_TSC_DEADLINE, 0), Ok(0), "ignored in another mode");
    write(&mut apic, LVT_TIMER, 0x4_0041);
    apic.msr_write(MSR_TSC_DEADLINE, 100, 0).unwrap();
    assert_eq!((apic.timer_deadline(), apic.msr_read(MSR_TSC_DEADLINE, 99)), (Some(100), Ok(100)));
    apic.msr_write(INITIAL, 10, 0).unwrap();
    assert_eq!((apic.timer_deadline(), apic.msr_read(CURRENT, 0)), (Some(100), Ok(0)));
    assert!(apic.poll_timer(100));
    assert_eq!(apic.msr_read(MSR_TSC_DEADLINE, 100), Ok(0));
    apic.msr_write(MSR_TSC_DEADLINE, 50, 101).unwrap();
    assert!(apic.poll_timer(101), "a deadline in the past fires at once");
    apic.msr_write(MSR_TSC_DEADLINE, 500, 102).unwrap();
    apic.msr_write(MSR_TSC_DEADLINE, 0, 103).unwrap();
    assert_eq!(apic.timer_deadline(), None);
    apic.msr_write(MSR_TSC_DEADLINE, 500, 104).unwrap();
    apic.msr_write(LVT_TIMER, 0x41, 105).unwrap();
    assert_eq!(apic.timer_deadline(), None, "a change of mode disarms");
}

#[test]
fn sdm_11_6_1_commands() {
    let mut apic = x2apic(0);
    let plain = Ipi {
        dest: 5,
        logical: false,
        mode: DeliveryMode::Fixed,
        vector: 0xFB,
        shorthand: Shorthand::None,
        assert: true,
    };
    assert_eq!(write(&mut apic, ICR, 5 << 32 | 0xFB), Effect::Ipi(plain));
    assert_eq!(apic.msr_read(ICR, 0), Ok(5 << 32 | 0xFB));
    let startup = Ipi { mode: DeliveryMode::StartUp, vector: 0x9A, ..plain };
    assert_eq!(write(&mut apic, ICR, 5 << 32 | 0x69A), Effect::Ipi(startup));
    let init = Ipi { mode: DeliveryMode::Init, vector: 0, ..plain };
    assert_eq!(write(&mut apic, ICR, 5 << 32 | 0xC500), Effect::Ipi(init));
    assert_eq!(write(&mut apic, ICR, 5 << 32 | 0x8500), Effect::None, "INIT de-asserted");
    let others = Ipi { mode: DeliveryMode::Nmi, vector: 0, shorthand: Shorthand::Others, ..plain };
    assert_eq!(write(&mut apic, ICR, 5 << 32 | 0xC0402), Effect::Ipi(others));
    assert_eq!(write(&mut apic, ICR, 0x80402), Effect::None, "an NMI to all with the sender");
    assert_eq!(write(&mut apic, ICR, 0x200), Effect::None, "SMI");
    assert_eq!(write(&mut apic, ICR, 0x40033), Effect::Pending);
    assert_eq!(apic.highest_pending(), Some(0x33), "to itself");
    assert_eq!(write(&mut apic, 0x83F, 0x44), Effect::Pending);
    assert_eq!(apic.highest_pending(), Some(0x44), "self IPI register");

    let mut apic = xapic(0);
    let _ = apic.mmio_write(0x310, 0x0500_0000, 0);
    assert_eq!(apic.mmio_write(0x300, 0xFB, 0), Effect::Ipi(plain));
    let _ = apic.mmio_write(0x310, 0xFF00_0000, 0);
    let all = Ipi { dest: BROADCAST, logical: true, ..plain };
    assert_eq!(apic.mmio_write(0x300, 0x8FB, 0), Effect::Ipi(all));
    assert_eq!((apic.mmio_read(0x300, 0), apic.mmio_read(0x310, 0)), (0x8FB, 0xFF00_0000));
}

#[test]
fn sdm_11_6_2_destinations() {
    let mut apic = xapic(3);
    assert!(apic.matches(3, false) && !apic.matches(2, false) && apic.matches(BROADCAST, false));
    // Flat model.
    let _ = apic.mmio_write(0xD0, 0x0800_0000, 0);
    assert!(apic.matches(0x0C, true) && !apic.matches(0x07, true) && apic.matches(BROADCAST, true));
    // Cluster 2, member 3.
    let _ = apic.mmio_write(0xE0, 0x0FFF_FFFF, 0);
    let _ = apic.mmio_write(0xD0, 0x2800_0000, 0);
    assert!(apic.matches(0x28, true) && apic.matches(0xF8, true));
    assert!(!apic.matches(0x18, true) && !apic.matches(0x27, true));
    assert!(!apic.matches(0x128, true), "eight bits");
}

#[test]
fn sdm_11_12_10_x2apic_destinations() {
    let apic = x2apic(0x25);
    assert_eq!(apic.msr_read(0x80D, 0), Ok(0x0002_0020));
    assert!(apic.matches(0x25, false) && apic.matches(BROADCAST, false) && !apic.matches(0xFF, false));
    assert!(apic.matches(0x0002_0030, true) && apic.matches(BROADCAST, true));
    assert!(!apic.matches(0x0003_0020, true) && !apic.matches(0x0002_0010, true));
}

#[test]
fn sdm_11_8_3_1_priorities() {
    let mut apic = x2apic(0);
    apic.request(0x41, false);
    apic.request(0x4F, false);
    assert_eq!(apic.highest_pending(), Some(0x4F));
    apic.acknowledge(0x4F);
    assert_eq!((apic.ppr(), apic.highest_pending()), (0x40, None), "same class");
    write(&mut apic, 0x808, 0x45);
    assert_eq!(apic.ppr(), 0x45);
    apic.set_cr8(5);
    assert_eq!((apic.tpr(), apic.cr8(), apic.ppr()), (0x50, 5, 0x50));
    write(&mut apic, 0x808, 0x5A);
    apic.observe_cr8(5);
    assert_eq!(apic.tpr(), 0x5A, "not written");
    apic.observe_cr8(3);
    assert_eq!((apic.tpr(), apic.cr8()), (0x30, 3));
    apic.request(0x60, false);
    assert_eq!(apic.highest_pending(), Some(0x60));
    apic.set_cr8(15);
    assert_eq!(apic.highest_pending(), None);
    apic.set_cr8(0);
    apic.eoi();
    apic.acknowledge(0x60);
    apic.eoi();
    assert_eq!((apic.has_in_service(), apic.highest_pending()), (false, Some(0x41)));
}

#[test]
fn an_interrupt_that_the_task_priority_holds_back_is_told_of() {
    let mut apic = x2apic(0);
    apic.set_cr8(15);
    for (register, value) in [(ICR, 0x40033), (0x83F, 0x44), (0x808, 0xF0), (EOI, 0)] {
        assert_eq!(write(&mut apic, register, value), Effect::Pending, "register {register:#x}");
    }
    assert_eq!(apic.highest_pending(), None);
    apic.observe_cr8(0);
    assert_eq!(apic.highest_pending(), Some(0x44));
}

#[test]
fn sdm_11_8_5_end_of_interrupt() {
    let mut apic = x2apic(0);
    assert_eq!(write(&mut apic, EOI, 0), Effect::None, "nothing in service");
    apic.request(0x41, true);
    apic.request(0x52, false);
    assert_eq!(apic.msr_read(0x81A, 0), Ok(1 << 1), "trigger mode of 0x41");
    for vector in [0x52, 0x41] {
        // Taken out of order, as if the processor had been slow.
        apic.acknowledge(vector);
    }
    assert_eq!(write(&mut apic, EOI, 0), Effect::None, "edge");
    assert_eq!(write(&mut apic, EOI, 0), Effect::Eoi { vector: 0x41, pending: false });
    apic.request(0x41, true);
    apic.acknowledge(0x41);
    apic.request(0x31, false);
    assert_eq!(write(&mut apic, EOI, 0), Effect::Eoi { vector: 0x41, pending: true });
    assert_eq!(apic.msr_write(EOI, 1, 0), Err(GeneralProtection));
}

#[test]
fn sdm_11_12_1_2_x2apic_registers() {
    let mut apic = x2apic(7);
    assert_eq!((apic.mmio_read(0x20, 0), apic.is_xapic()), (u32::MAX, false));
    let readable = |msr: u32| apic.msr_read(msr, 0).is_ok();
    let mut expected: BTreeSet<u32> = [0x802, 0x803, 0x808, 0x80A, 0x80D, 0x80F, 0x828, 0x830, 0x838, 0x839]
        .into_iter()
        .chain(0x810..0x828)
        .chain(0x832..=0x837)
        .collect();
    expected.insert(DIVIDE);
    assert_eq!((0x800..0x900).filter(|msr| readable(*msr)).collect::<BTreeSet<_>>(), expected);
    let mut writable = |msr: u32| apic.msr_write(msr, 0, 0).is_ok();
    let expected =
        [0x808, EOI, SVR, ESR, ICR, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837, INITIAL, DIVIDE, 0x83F];
    assert_eq!((0x800..0x900).filter(|msr| writable(*msr)).collect::<Vec<_>>(), expected);
    // Reserved bits.
    for (msr, value) in [
        (0x808, 0x100),
        (SVR, 0x1200),
        (ESR, 1),
        (ICR, 1 << 13),
        (LVT_TIMER, 1 << 19),
        (LVT_ERROR, 0x100),
        (INITIAL, 1 << 32),
        (DIVIDE, 4),
        (0x83F, 0x100),
    ] {
        assert_eq!(apic.msr_write(msr, value, 0), Err(GeneralProtection), "{msr:#x}");
    }
    assert_eq!(xapic(0).msr_read(0x802, 0), Err(GeneralProtection), "in xAPIC mode");
}

#[test]
fn sdm_11_12_5_modes() {
    const X: u64 = BASE | BASE_ENABLE;
    const X2: u64 = X | BASE_X2APIC;
    let states = [BASE, X, X2];
    // Rows from, columns to: disabled, xAPIC, x2APIC.
    let allowed = [[true, true, false], [true, true, true], [true, false, true]];
    for (from, row) in states.into_iter().zip(allowed) {
        for (to, allowed) in states.into_iter().zip(row) {
            let mut apic = LocalApic::new(1, RATES);
            if from != X {
                apic.msr_write(MSR_APIC_BASE, from, 0).unwrap();
            }
            assert_eq!(apic.msr_write(MSR_APIC_BASE, to, 0).is_ok(), allowed, "{from:#x} to {to:#x}");
            assert_eq!(apic.base(), if allowed { to } else { from });
        }
    }
    let mut apic = LocalApic::new(0, RATES);
    for illegal in [BASE | BASE_X2APIC, X | 1, X | 1 << 9, X + 0x1000, X | 1 << 40] {
        assert_eq!(apic.msr_write(MSR_APIC_BASE, illegal, 0), Err(GeneralProtection), "{illegal:#x}");
    }
    apic.msr_write(MSR_APIC_BASE, X2, 0).unwrap();
    assert_eq!(apic.base(), X2 | BASE_BSP, "who boots is not for software to say");
    write(&mut apic, SVR, 0x1FF);
    apic.request(0x41, false);
    apic.msr_write(MSR_APIC_BASE, BASE, 0).unwrap();
    apic.msr_write(MSR_APIC_BASE, X, 0).unwrap();
    assert_eq!((apic.is_enabled(), apic.highest_requested()), (false, None), "off and on again: as new");
}

#[test]
fn sdm_11_12_5_1_init_keeps_the_mode() {
    let mut apic = x2apic(0x11);
    apic.request(0x41, false);
    write(&mut apic, 0x808, 0x20);
    apic.reset();
    assert!(apic.is_x2apic() && !apic.is_enabled());
    assert_eq!((apic.id(), apic.tpr(), apic.highest_requested()), (0x11, 0, None));
    assert_eq!(apic.msr_read(0x80D, 0), Ok(0x0001_0002));
}

/// Priorities as chapter 11.8 words them, on sets.
#[derive(Default)]
struct Model {
    requested: BTreeSet<u8>,
    serviced: BTreeSet<u8>,
    level: BTreeSet<u8>,
    tpr: u8,
}

impl Model {
    fn pending(&self) -> Option<u8> {
        let serviced = self.serviced.last().map_or(0, |vector| vector / 16);
        let floor = serviced.max(self.tpr / 16);
        self.requested.last().copied().filter(|vector| vector / 16 > floor)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(u8, bool),
    Take,
    Retract(u8),
    Eoi,
    Tpr(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (16u8.., any::<bool>()).prop_map(|(vector, level)| Step::Request(vector, level)),
        Just(Step::Take),
        (16u8..).prop_map(Step::Retract),
        Just(Step::Eoi),
        any::<u8>().prop_map(Step::Tpr),
    ]
}

proptest! {
    #[test]
    fn sdm_11_8_agrees_with_the_model(steps in proptest::collection::vec(step(), 1..200)) {
        let (mut apic, mut model) = (x2apic(0), Model::default());
        for step in steps {
            match step {
                Step::Request(vector, level) => {
                    apic.request(vector, level);
                    model.requested.insert(vector);
                    if level { model.level.insert(vector); } else { model.level.remove(&vector); }
                }
                Step::Take => if let Some(vector) = apic.highest_pending() {
                    apic.acknowledge(vector);
                    model.requested.remove(&vector);
                    model.serviced.insert(vector);
                },
                Step::Retract(any) => {
                    // One in service, and one that most often is not.
                    let taken = model.serviced.range(any..).next().copied();
                    for vector in taken.into_iter().chain([any]) {
                        apic.retract(vector);
                        if model.serviced.remove(&vector) {
                            model.requested.insert(vector);
                        }
                    }
                }
                Step::Eoi => {
                    let ended = model.serviced.pop_last().filter(|vector| model.level.contains(vector));
                    let pending = if model.requested.is_empty() { Effect::None } else { Effect::Pending };
                    let is_pending = pending == Effect::Pending;
                    let ended = ended.map(|vector| Effect::Eoi { vector, pending: is_pending });
                    prop_assert_eq!(write(&mut apic, EOI, 0), ended.unwrap_or(pending));
                }
                Step::Tpr(tpr) => {
                    write(&mut apic, 0x808, tpr.into());
                    model.tpr = tpr;
                }
            }
            prop_assert_eq!(apic.highest_pending(), model.pending());
            prop_assert_eq!(apic.has_in_service(), !model.serviced.is_empty());
        }
    }

    #[test]
    fn any_access_yields_a_value(
        steps in proptest::collection::vec((0u8..8, 0u32..0x48, any::<u64>(), any::<u64>()), 1..100),
        tsc_khz: u32,
        timer_khz: u32,
    ) {
        let mut apic = LocalApic::new(1, Rates { tsc_khz, timer_khz });
        for (kind, register, value, now) in steps {
            match kind {
                0 => { let _ = apic.mmio_read(register << 4 | value as u32 & 0xF, now); }
                1 | 2 => { let _ = apic.mmio_write(register << 4, value as u32, now); }
                3 => { let _ = apic.msr_read(0x800 + register, now); }
                // Values that fault less often, so that more of the writes land.
                4 => { let _ = apic.msr_write(0x800 + register, value & 0x6_00FF, now); }
                5 => { let _ = apic.msr_write(MSR_APIC_BASE, BASE | value & 0xD00, now); }
                6 => { let _ = apic.msr_write(MSR_TSC_DEADLINE, value, now); }
                _ => apic.request(value as u8, value & 0x100 != 0),
            }
            apic.poll_timer(now);
            if let Some(next) = apic.timer_deadline() {
                prop_assert!(next > now || now == u64::MAX, "a timer that was polled is not due");
            }
            if let Some(vector) = apic.highest_pending() {
                prop_assert!(vector >= 16 && vector >> 4 > apic.tpr() >> 4);
                apic.acknowledge(vector);
            }
        }
    }

    #[test]
    fn the_current_count_falls_to_zero_at_the_deadline(
        count in 1u32.., code in 0u64..8, tsc_khz in 1_000u32..10_000_000, part in 0u64..=1000,
    ) {
        let mut apic = LocalApic::new(0, Rates::new(tsc_khz));
        apic.msr_write(MSR_APIC_BASE, apic.base() | BASE_X2APIC, 0).unwrap();
        write(&mut apic, SVR, 0x1FF);
        write(&mut apic, LVT_TIMER, 0x41);
        write(&mut apic, DIVIDE, (code & 4) << 1 | code & 3);
        write(&mut apic, INITIAL, count.into());
        let deadline = apic.timer_deadline().unwrap();
        let now = (u128::from(deadline) * u128::from(part) / 1000) as u64;
        let current = apic.msr_read(CURRENT, now).unwrap();
        prop_assert!(current <= count.into());
        prop_assert_eq!(current == 0, now >= deadline);
        let expected = u128::from(count) * u128::from(deadline - now) / u128::from(deadline);
        // The deadline is a whole TSC tick, which may be many counts.
        prop_assert!(u128::from(current).abs_diff(expected) <= 2 + 1_000_000 / u128::from(tsc_khz));
    }
}

#[test]
fn sdm_11_4_1_widths() {
    let mut apic = xapic(5);
    apic.mmio_store(0x80, &[0x20, 0, 0, 0], 0);
    let load = |apic: &mut LocalApic, offset, len: usize| {
        let mut buffer = [0xee; 40];
        apic.mmio_load(offset, &mut buffer[..len], 0);
        assert!(buffer[len..].iter().all(|byte| *byte == 0xee));
        buffer
    };
    assert_eq!(load(&mut apic, 0x30, 4)[..4], 0x0005_0014u32.to_le_bytes());
    assert_eq!(load(&mut apic, 0x32, 1)[..1], [5]);
    assert_eq!(load(&mut apic, 0x30, 8)[..8], 0x0005_0014u64.to_le_bytes());
    assert_eq!(load(&mut apic, 0x32, 4)[..4], [5, 0, 0, 0]);
    assert_eq!(load(&mut apic, 0x34, 4)[..4], [0; 4]);
    // Across registers: the end of one, nothing, the beginning of the next.
    assert_eq!(load(&mut apic, 0x23, 16)[..16], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 5]);
    // Bytes between registers are none: a read of them is no error, but one of a register that does not exist is.
    apic.mmio_store(0x280, &[0; 4], 0);
    assert_eq!(apic.mmio_read(0x280, 0), 0);
    load(&mut apic, 0x40, 1);
    apic.mmio_store(0x280, &[0; 4], 0);
    assert_eq!(apic.mmio_read(0x280, 0), ERROR_REGISTER);
    // Writes of other widths and places do nothing.
    for (offset, len) in
        [(0x80, 1), (0x80, 2), (0x80, 3), (0x80, 8), (0x80, 16), (0x81, 4), (0x84, 4), (0x7c, 8)]
    {
        assert_eq!(apic.mmio_store(offset, &[0x50; 16][..len], 0), Effect::None);
        assert_eq!(apic.tpr(), 0x20, "{len} bytes at {offset:#x}");
    }
    assert_eq!(apic.mmio_store(0x80, &[0x50, 0, 0, 0], 0), Effect::None);
    assert_eq!(apic.tpr(), 0x50);
    // Elsewhere than in xAPIC mode there is nothing.
    assert_eq!(load(&mut x2apic(5), 0x30, 4)[..4], [0xff; 4]);
}
