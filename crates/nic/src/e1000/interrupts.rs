//! Interrupt causes, mask, and the delays between interrupts.
//!
//! Source: manual 317453, sections 3.2 and 3.4 (delays), 13.4. After the line rose it cannot rise again for as long as ITR says (256 ns
//! each), which is for all causes (13.4.18); if it says nothing, and this as QEMU's card does it, for the lesser of TADV after a descriptor
//! with IDE, and RADV if RDTR is not 0 (1024 ns each). At least it is 128 us. The first interrupt after a quiet time is never delayed.
//! RDTR and TIDV delay nothing themselves. Deviation from QEMU's card: there ITR, too, is only one of those of which the least counts, so
//! that a driver that asks for 4,000 interrupts a second, and sets TADV as Linux' does, has 7,813.

use super::E1000;
use super::registers::{Cause, reg};

/// Unit of ITR in nanoseconds; the delay registers count four of them.
const UNIT: u64 = 256;
/// Least delay: 7813 interrupts a second are the most.
const LEAST: u32 = 500;

/// The interrupt line and what holds it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The line is asserted.
    pub(super) level: bool,
    /// It cannot rise before this time.
    pub(super) held_until: Option<u64>,
    /// A descriptor with IDE came since the last delay began.
    pub(super) delay_transmit: bool,
    /// Where causes of the rings go.
    diversion: Diversion,
}

/// What becomes of causes that say only that a ring has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Diversion {
    /// They are set in ICR, as in any card.
    #[default]
    Off,
    /// The owner takes them: those that there were since.
    On(Cause),
}

/// Causes that say only that a ring has moved.
const RINGS: Cause =
    Cause::SENT.union(Cause::EMPTY).union(Cause::THRESHOLD).union(Cause::OVERRUN).union(Cause::RECEIVED);

impl E1000 {
    /// Level of the interrupt line.
    pub const fn interrupt(&self) -> bool {
        self.line.level
    }

    /// Adds causes.
    pub(super) fn raise(&mut self, mut causes: Cause) {
        if let Diversion::On(raised) = &mut self.line.diversion {
            raised.insert(causes.intersection(RINGS));
            causes.remove(RINGS);
        }
        self.set_causes(self.regs.get(reg::ICR) | causes.bits());
    }

    /// From now on the owner takes causes that say only that a ring has moved, those too that are in ICR.
    pub fn divert_causes(&mut self) {
        self.line.diversion = Diversion::On(Cause::empty());
        let causes = Cause::from_bits_retain(self.regs.get(reg::ICR));
        self.set_causes(causes.difference(RINGS).bits());
        self.raise(causes);
    }

    /// They are set in ICR again; one is, so that the driver looks at what it may have missed.
    pub fn restore_causes(&mut self) {
        self.line.diversion = Diversion::Off;
        self.raise(Cause::THRESHOLD);
    }

    /// Takes the causes that were diverted since the last call.
    pub const fn take_diverted(&mut self) -> Cause {
        match &mut self.line.diversion {
            Diversion::Off => Cause::empty(),
            Diversion::On(raised) => core::mem::replace(raised, Cause::empty()),
        }
    }

    /// The driver's mask lets causes of the rings interrupt.
    pub fn wants_ring_causes(&self) -> bool {
        Cause::from_bits_retain(self.regs.get(reg::IMS)).intersects(RINGS)
    }

    /// ICR becomes `causes`, and the line follows.
    pub(super) fn set_causes(&mut self, causes: u32) {
        self.regs.set(reg::ICR, causes);
        // ICS reads as ICR without clearing it.
        self.regs.set(reg::ICS, causes);
        let pending = causes & self.regs.get(reg::IMS);
        if !self.line.level && pending != 0 {
            if self.line.held_until.is_some() {
                return;
            }
            let delay = u64::from(self.delay(Cause::from_bits_retain(pending)));
            self.line.held_until = Some(self.now.saturating_add(delay * UNIT));
            self.line.delay_transmit = false;
        }
        self.line.level = pending != 0;
    }

    /// For how long the line cannot rise again, in units.
    fn delay(&self, pending: Cause) -> u32 {
        let transmit = self.line.delay_transmit && pending.intersects(Cause::EMPTY | Cause::SENT);
        let receive = self.regs.get(reg::RDTR) != 0 && pending.contains(Cause::RECEIVED);
        let delays = [
            if transmit { self.regs.get(reg::TADV).saturating_mul(4) } else { 0 },
            if receive { self.regs.get(reg::RADV).saturating_mul(4) } else { 0 },
        ];
        // 0 is none, not at once.
        let own = delays.into_iter().filter(|delay| *delay != 0).min().unwrap_or(0);
        let between = self.regs.get(reg::ITR);
        (if between != 0 { between } else { own }).max(LEAST)
    }

    /// The time in which the line could not rise is over.
    pub(super) fn release_line(&mut self) {
        self.set_causes(self.regs.get(reg::ICR));
    }
}
