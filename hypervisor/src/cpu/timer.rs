//! The one-shot timer of this processor, set in TSC ticks; raises [`vector::TIMER`].
//!
//! With TSC-deadline mode the deadline is exact. Without it the local APIC's counter is used, and an interrupt may come
//! early by rounding, or because the deadline is further away than the counter reaches: compare the time and set
//! the deadline again.

use super::{apic, vector};
use crate::x86::{cpuid, msr, tsc};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static DEADLINE_MODE: AtomicBool = AtomicBool::new(false);
/// Timer ticks per TSC tick, times 2^32.
static RATIO: AtomicU64 = AtomicU64::new(0);

/// Measures the counter's frequency on the boot processor, once; needs [`tsc::init`] and [`apic::init`].
pub fn calibrate() {
    let deadline = cpuid(1, 0).ecx & 1 << 24 != 0;
    DEADLINE_MODE.store(deadline, Ordering::Relaxed);
    if deadline {
        log::info!("local APIC timer: TSC deadline");
        return;
    }
    apic::set_timer_mode(vector::TIMER, false);
    apic::set_timer_count(u32::MAX);
    let (start, first) = tsc::beside(apic::timer_count);
    tsc::delay_us(20_000);
    let (end, last) = tsc::beside(apic::timer_count);
    let elapsed = end - start;
    apic::set_timer_count(0);
    let ticks = u64::from(first - last);
    assert!(ticks > 0 && elapsed > 0, "the local APIC timer stands still");
    RATIO.store(((u128::from(ticks) << 32) / u128::from(elapsed)) as u64, Ordering::Relaxed);
    let khz = u128::from(ticks) * u128::from(tsc::khz()) / u128::from(elapsed);
    log::info!("local APIC timer: one-shot, {}.{:03} MHz", khz / 1000, khz % 1000);
}

/// Sets this processor's timer up, disarmed.
pub fn init() {
    apic::set_timer_mode(vector::TIMER, DEADLINE_MODE.load(Ordering::Relaxed));
    disarm();
}

/// Raises the timer's vector when the TSC reaches `deadline`; at once if it has. Replaces an earlier deadline.
#[inline]
pub fn set_deadline(deadline: u64) {
    if DEADLINE_MODE.load(Ordering::Relaxed) {
        // SAFETY: only raises an interrupt. Zero would disarm.
        unsafe { msr::wrmsr(msr::TSC_DEADLINE, deadline.max(1)) };
        return;
    }
    let left = deadline.saturating_sub(tsc::now());
    let count = (u128::from(left) * u128::from(RATIO.load(Ordering::Relaxed))) >> 32;
    apic::set_timer_count(u32::try_from(count).unwrap_or(u32::MAX).max(1));
}

/// Cancels the deadline. An interrupt that is already requested still comes.
#[inline]
pub fn disarm() {
    if DEADLINE_MODE.load(Ordering::Relaxed) {
        // SAFETY: only stops the timer.
        unsafe { msr::wrmsr(msr::TSC_DEADLINE, 0) };
    } else {
        apic::set_timer_count(0);
    }
}
