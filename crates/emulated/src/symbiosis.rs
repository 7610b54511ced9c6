//! The symbiotic half: what a module in the guest shares with its software card, so that the busy registers exit no more.
//!
//! Key types: [`Symbiosis`], one guest's; [`Request`], what the module asks for by a register that exits. The page's words are
//! `sluice_hypercall::symbiotic`'s: each is written by one side and read once. They decide when this guest is interrupted and when its tail is looked at,
//! and nothing else: descriptors, frames and work are checked and bounded where they always are (`shared_nic.rs`).
//!
//! An interrupt is not lost: either the module finds the raised counter changed after it has written how far it has come, or the counter was raised after that, and
//! whoever raised it finds what the module has written. The same holds for the tail and the wish for a doorbell. Both sides have a full barrier in between.
//!
//! Source: Xia et al., sections 2.3 and 7, which only propose it. That an interrupt is wanted past a number is virtio's (Virtio 1.2, 2.7.10).

use crate::mirror::{self, Direction, Mirror, Shown};
use crate::nic::Register;
use core::sync::atomic::{Ordering, fence};
use sluice_hypercall::symbiotic::*;
use sluice_nic::e1000::registers::{Cause, Control, reg};
use sluice_nic::{E1000, earliest};

const PAGE: u32 = 4096;
/// Causes that say only that something was sent.
const SENT: Cause = Cause::SENT.union(Cause::EMPTY);

/// What the module asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Symbiosis, from the beginning.
    Begin,
    /// None.
    End,
}

impl Request {
    /// What a write of four bytes asks for, if it is to one of the module's registers.
    pub(crate) const fn of(register: Register, width: u8, value: u32) -> Option<Self> {
        match (register.offset, value) {
            _ if register.io || width != 4 => None,
            (SYMBIOTIC_CONTROL, SYMBIOTIC_BEGIN) => Some(Self::Begin),
            (SYMBIOTIC_CONTROL, SYMBIOTIC_END) => Some(Self::End),
            _ => None,
        }
    }
}

/// The write rings for the tail.
pub(crate) const fn is_ring(register: Register, width: u8) -> bool {
    !register.io && register.offset == SYMBIOTIC_RING && width == 4
}

/// The write resets the card: nobody is to find anything of a former driver's.
pub(crate) const fn is_reset(register: Register, value: u32) -> bool {
    !register.io && register.offset == reg::CTRL && value & Control::RESET.bits() != 0
}

/// The read asks whether there is symbiosis.
pub(crate) const fn is_magic(register: Register, width: u8) -> bool {
    !register.io && register.offset == SYMBIOTIC_CONTROL && width == 4
}

/// More is memory than without symbiosis: the page of the transmit ring, and the module's.
pub(crate) fn add_to(shown: &mut Shown) {
    for offset in [reg::TDT, SYMBIOTIC_PAGE] {
        if let Some(page) = shown.direct.get_mut((offset / PAGE) as usize) {
            *page = Direction::READ | Direction::WRITE;
        }
    }
    shown.symbiotic = true;
}

/// For how many nanoseconds the line does not rise again: what Linux' driver sets the card to when it has much to do (4,000 interrupts a second).
const HOLD: u64 = 250_000;
/// For how many nanoseconds the end of sending waits for something that is received. Nobody else tells of it by then.
const SENT_WAITS: u64 = HOLD;

/// A guest's symbiosis with its card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbiosis {
    /// How often a cause of the rings was raised.
    pub(crate) raised: u32,
    /// The wish of the module's that the line rose for last.
    told: Option<u32>,
    /// The line is up until the module has seen something else than this.
    up: Option<u32>,
    /// The line does not rise before.
    held_until: u64,
    /// Something was raised meanwhile: then it is looked whether the module waits for it.
    held: bool,
    /// When the end of sending is raised.
    sent_at: Option<u64>,
    /// TDH, as the guest last saw it.
    head: u32,
}

impl Symbiosis {
    /// Begins: the module is told to look for what it may have missed. It goes on counting after what was raised `before`, so that nobody who has still to say what
    /// he has seen of a former symbiosis has seen that.
    pub(crate) fn begin(card: &mut E1000, mirror: &mut dyn Mirror, before: u32) -> Self {
        (SYMBIOTIC_PAGE..SYMBIOTIC_PAGE + PAGE).step_by(4).for_each(|offset| mirror.show(offset, 0));
        card.divert_causes();
        card.take_diverted();
        let raised = before.wrapping_add(1);
        mirror.show(SYMBIOTIC_RAISED, raised);
        mirror.show(SYMBIOTIC_TAKEN, before);
        mirror.show(SYMBIOTIC_EVENT, before);
        mirror.show(SYMBIOTIC_DOORBELL, SYMBIOTIC_DOORBELL_WANTED);
        let head = card.image(reg::TDH);
        mirror.show(reg::TDH, head);
        Self { raised, told: None, up: None, held_until: 0, held: false, sent_at: None, head }
    }

    /// Has the card see what was written to its transmit ring. A head that has moved is not what the guest wrote.
    pub(crate) fn look(&mut self, card: &mut E1000, mirror: &mut dyn Mirror) {
        self.show_head(card, mirror);
        mirror::look_at_rings(card, mirror);
        self.head = card.image(reg::TDH);
    }

    /// The same, if the guest has written to the tail.
    pub(crate) fn look_at_tail(&mut self, card: &mut E1000, mirror: &mut dyn Mirror) {
        if mirror::has_rung(card, mirror) {
            self.look(card, mirror);
        }
    }

    /// Shows how far the card has come.
    fn show_head(&mut self, card: &E1000, mirror: &mut dyn Mirror) {
        let head = card.image(reg::TDH);
        if core::mem::replace(&mut self.head, head) != head {
            mirror.show(reg::TDH, head);
        }
    }

    /// Says whether anybody looks at the tail who is not rung for. What was written before is to be looked at after this.
    pub(crate) fn want_doorbell(mirror: &mut dyn Mirror, wanted: bool) {
        mirror.show(
            SYMBIOTIC_DOORBELL,
            if wanted { SYMBIOTIC_DOORBELL_WANTED } else { SYMBIOTIC_DOORBELL_IDLE },
        );
        fence(Ordering::SeqCst);
    }

    /// Brings page and line up to date with the card. True if the line is up.
    pub(crate) fn publish(&mut self, card: &mut E1000, mirror: &mut dyn Mirror, now: u64) -> bool {
        self.show_head(card, mirror);
        if self.is_news(card.take_diverted(), now) {
            self.raised = self.raised.wrapping_add(1);
            mirror.show(SYMBIOTIC_RAISED, self.raised);
            self.hold(now < self.held_until, mirror);
        } else if self.held && now >= self.held_until {
            self.hold(false, mirror);
        }
        let taken = self.take(mirror);
        if !card.wants_ring_causes() {
            return false;
        }
        if self.up.is_none() && now >= self.held_until && taken != self.raised {
            let event = mirror.look(SYMBIOTIC_EVENT);
            if event != self.raised && self.told != Some(event) {
                (self.told, self.up) = (Some(event), Some(taken));
                self.held_until = now.saturating_add(HOLD);
            }
        }
        self.up.is_some()
    }

    /// Reads what the module has seen, by which the line falls.
    fn take(&mut self, mirror: &dyn Mirror) -> u32 {
        let taken = mirror.look(SYMBIOTIC_TAKEN);
        self.up = self.up.filter(|seen| *seen == taken);
        taken
    }

    /// The line is up: the module has not dealt with it.
    pub(crate) fn is_up(&mut self, mirror: &dyn Mirror) -> bool {
        self.take(mirror);
        self.up.is_some()
    }

    /// The module is to be told of something now: something was received, or what was sent has waited for that long enough.
    fn is_news(&mut self, causes: Cause, now: u64) -> bool {
        if causes.intersects(SENT) {
            self.sent_at.get_or_insert(now.saturating_add(SENT_WAITS));
        }
        let is_news = !causes.difference(SENT).is_empty() || self.sent_at.is_some_and(|at| at <= now);
        if is_news {
            self.sent_at = None;
        }
        is_news
    }

    /// Says whether it is too early for an interrupt. What the module has written before is to be looked at after this.
    fn hold(&mut self, held: bool, mirror: &mut dyn Mirror) {
        if core::mem::replace(&mut self.held, held) != held {
            mirror.show(SYMBIOTIC_HELD, held.into());
        }
        fence(Ordering::SeqCst);
    }

    /// When [`Self::publish`] is to be called again.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let held = self.held.then_some(self.held_until);
        earliest([held, self.sent_at])
    }
}
