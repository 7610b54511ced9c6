//! The local APIC's timer: one-shot, periodic and TSC-deadline.
//!
//! It keeps no count that has to be stepped: only the guest TSC at which it fires next. The current count is
//! worked out from that when it is read.
//!
//! Source: Intel SDM vol. 3, 11.5.4 and 11.5.4.1.
//!
//! Deviations: a periodic timer faster than 20 kHz runs at 20 kHz, and periods that nobody looked at collapse
//! into one interrupt, so that a guest cannot make the hypervisor do nothing but tick for it.

/// The rates of the two clocks that a timer may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Guest TSC, in kHz.
    pub tsc_khz: u32,
    /// Input of the timer's divider, in kHz.
    pub timer_khz: u32,
}

impl Rates {
    /// A timer input of 1 GHz (a tick is a nanosecond) beside a TSC of `tsc_khz` kHz.
    pub const fn new(tsc_khz: u32) -> Self {
        Self { tsc_khz, timer_khz: super::TIMER_KHZ }
    }

    /// TSC ticks in `count` timer ticks divided by `1 << shift`, rounded up.
    fn to_tsc(self, count: u32, shift: u32) -> u64 {
        // 32 + 7 + 32 bits.
        let scaled = (u128::from(count) << shift) * u128::from(self.tsc_khz);
        u64::try_from(scaled.div_ceil(u128::from(self.timer_khz.max(1)))).unwrap_or(u64::MAX)
    }

    /// Divided timer ticks in `tsc` TSC ticks, rounded up: a timer that has not fired is not at zero.
    fn to_count(self, tsc: u64, shift: u32) -> u32 {
        let scaled = u128::from(tsc) * u128::from(self.timer_khz);
        let count = scaled.div_ceil(u128::from(self.tsc_khz.max(1)) << shift);
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

/// Bits 18:17 of the timer's LVT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    OneShot,
    Periodic,
    TscDeadline,
    Reserved,
}

impl Mode {
    pub fn of(lvt: u32) -> Self {
        match lvt >> 17 & 3 {
            0 => Self::OneShot,
            1 => Self::Periodic,
            2 => Self::TscDeadline,
            _ => Self::Reserved,
        }
    }

    /// Does the timer count down from the initial count?
    fn counts(self) -> bool {
        matches!(self, Self::OneShot | Self::Periodic)
    }
}

/// The timer, apart from its LVT entry.
#[derive(Clone, Debug)]
pub(super) struct Timer {
    rates: Rates,
    mode: Mode,
    initial: u32,
    divide: u32,
    /// Guest TSC at which it fires next.
    next: Option<u64>,
}

impl Timer {
    pub fn new(rates: Rates) -> Self {
        Self { rates, mode: Mode::OneShot, initial: 0, divide: 0, next: None }
    }

    pub fn rates(&self) -> Rates {
        self.rates
    }

    pub fn next(&self) -> Option<u64> {
        self.next
    }

    pub fn initial(&self) -> u32 {
        self.initial
    }

    pub fn divide(&self) -> u32 {
        self.divide
    }

    /// Going to or from TSC-deadline mode disarms the timer; between the counting modes it runs on.
    pub fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode && !(mode.counts() && self.mode.counts()) {
            self.next = None;
            self.initial = 0;
        }
        self.mode = mode;
    }

    /// Initial count register: starts the countdown, or stops it by zero. Ignored in TSC-deadline mode.
    pub fn set_initial(&mut self, count: u32, now: u64) {
        if !self.mode.counts() {
            return;
        }
        self.initial = count;
        self.next = (count != 0).then(|| now.saturating_add(self.rates.to_tsc(count, self.shift())));
    }

    /// Divide configuration register: what is left of the count goes on at the new rate.
    pub fn set_divide(&mut self, value: u32, now: u64) {
        let left = self.current(now);
        self.divide = value & 0b1011;
        if self.next.is_some() && self.mode.counts() {
            self.next = Some(now.saturating_add(self.rates.to_tsc(left, self.shift())));
        }
    }

    /// Current count register.
    pub fn current(&self, now: u64) -> u32 {
        let left = match self.next {
            Some(next) if self.mode.counts() => next.saturating_sub(now),
            _ => return 0,
        };
        self.rates.to_count(left, self.shift()).min(self.initial)
    }

    /// IA32_TSC_DEADLINE: zero disarms. Ignored in the other modes.
    pub fn set_deadline(&mut self, deadline: u64) {
        if self.mode == Mode::TscDeadline {
            self.next = (deadline != 0).then_some(deadline);
        }
    }

    /// IA32_TSC_DEADLINE as read: zero once it has passed.
    pub fn deadline(&self, now: u64) -> u64 {
        self.next.filter(|next| self.mode == Mode::TscDeadline && *next > now).unwrap_or(0)
    }

    /// The TSC was set: a count goes on as before, a deadline stays where it is on the new scale.
    pub fn tsc_moved(&mut self, from: u64, to: u64) {
        if self.mode.counts() {
            self.next = self.next.map(|next| to.saturating_add(next.saturating_sub(from)));
        }
    }

    /// Fires the timer if it is due at `now`; a periodic one is rearmed for the first period after it.
    pub fn expire(&mut self, now: u64) -> bool {
        let Some(next) = self.next.filter(|next| *next <= now) else { return false };
        let again = (self.mode == Mode::Periodic && self.initial != 0).then(|| {
            let shortest = u64::from(self.rates.tsc_khz / 20);
            let period = self.rates.to_tsc(self.initial, self.shift()).max(shortest).max(1);
            let missed = now.saturating_sub(next) / period;
            next.saturating_add(period.saturating_mul(missed.saturating_add(1)))
        });
        // A guest may set its counter to its last value: there is no later time.
        self.next = again.filter(|again| *again > now);
        true
    }

    /// log2 of the divisor: bits 3, 1 and 0 count 2, 4, ... 128, 1.
    fn shift(&self) -> u32 {
        let code = (self.divide >> 1 & 4) | (self.divide & 3);
        (code + 1) & 7
    }
}
