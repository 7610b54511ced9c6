//! What a guest does with its card without an exit: the mirror.
//!
//! A mirror is memory in which a guest finds its card's registers where the card would have them. The guest maps it
//! instead of the card: reads go to it, writes exit. Key types: [`Mirror`], which the owner of that memory implements;
//! [`Direct`], which accesses may go there now. A page with a register whose reading does something cannot be read there,
//! unless it would do nothing at the time: reading ICR while no cause is set. The mirror of ICR says so at all times, so
//! that a guest that reads it just before a cause is set has read it before.
//!
//! Writes stay direct where they do nothing until the card looks: the page of the 82540EM's receive ring while the
//! receiver is on and has room. The card looks there before it receives ([`look`]). Once the ring is full, writes exit
//! again, since frames wait for one.
//!
//! Source: Xia et al., section 5.2, hooks pages for lack of anything finer; that reads can stay direct is ours
//! (`docs/vpio.md`). Which pages can be read there is computed from the card's model. Deviation from a card: a read is
//! served at any width.

use crate::nic::{Nic, Register};
use sluice_model::{DeviceEvent, HookSet, Model, Questions, Seen, Tracker, hook_set};
use sluice_nic::E1000;
use sluice_nic::e1000::registers::{Receive, reg as e1000};
use sluice_nic::rtl8139::registers::reg as rtl8139;
pub use sluice_traps::Direction;

/// Bytes of a page, the unit of what can be direct.
const PAGE: u32 = 4096;
/// Pages from the beginning of a card's memory that have its registers: all that drivers use often.
const REGISTERS: usize = 6;
/// Pages of which some can be direct: those, and the one that a module shares ([`crate::symbiosis`]).
pub const PAGES: usize = REGISTERS + 1;

/// Which accesses may go to the mirror, by page.
pub type Direct = [Direction; PAGES];

/// What a guest finds in its card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Accesses that do not exit.
    pub direct: Direct,
    /// They go to the physical card, not to the mirror.
    pub hardware: bool,
    /// A module shares a page with the card, and may have dealt with an interrupt when it ends it.
    pub symbiotic: bool,
}

/// Memory that a guest sees in place of its card's.
pub trait Mirror: Send {
    /// Shows four bytes at an aligned offset below [`PAGES`] pages.
    fn show(&mut self, offset: u32, value: u32);

    /// What is there: what was shown, or what the guest has written since where writes are direct.
    fn look(&self, offset: u32) -> u32;

    /// The same at several offsets, one after the other, for one call.
    fn look_each(&self, offsets: &[u32], found: &mut [u32]) {
        found.iter_mut().zip(offsets).for_each(|(word, offset)| *word = self.look(*offset));
    }
}

/// Registers of the RTL8139 that change while frames come and go, four bytes each.
const MOVING_RTL8139: &[u16] = &[
    rtl8139::TSD,
    rtl8139::TSD + 4,
    rtl8139::TSD + 8,
    rtl8139::TSD + 12,
    rtl8139::CR & !3,
    rtl8139::CAPR,
    rtl8139::IMR,
    rtl8139::TCTR,
    rtl8139::MPC,
    rtl8139::SUMMARY,
];
/// Those of them that do so in C+ mode, where the others are written by the driver only.
const MOVING_CPLUS: &[u16] = &[rtl8139::CR & !3, rtl8139::CAPR, rtl8139::IMR, rtl8139::TCTR, rtl8139::MPC];
/// Registers whose writing changes no other than these.
const ALONE_RTL8139: [u16; 6] =
    [rtl8139::TSAD, rtl8139::CAPR, rtl8139::IMR, rtl8139::TPPOLL & !3, rtl8139::TSD, rtl8139::TSD + 4];

/// The same for the 82540EM, but for statistics and causes, which are not shown.
const MOVING_E1000: &[u32] = &[e1000::STATUS, e1000::IMS, e1000::RDH, e1000::TDH];

/// Registers of the page of the 82540EM's receive ring: nothing happens when they are written. (Those of its FIFO are for
/// diagnosis: what a driver writes there stays in the mirror.)
const POSTED: [u32; 7] =
    [e1000::RDBAL, e1000::RDBAH, e1000::RDLEN, e1000::RDH, e1000::RDT, e1000::RDTR, e1000::RADV];

/// Shows everything.
pub(crate) fn show_all(nic: &Nic, mirror: &mut dyn Mirror) {
    for offset in (0..REGISTERS as u32 * PAGE).step_by(4) {
        show(nic, offset, mirror);
    }
}

/// Shows what may have changed by itself.
pub(crate) fn show_moving(nic: &Nic, mirror: &mut dyn Mirror) {
    match nic {
        Nic::Ne2000(_) => {}
        Nic::Rtl8139(card) => {
            let moving = if card.regs.cplus { MOVING_CPLUS } else { MOVING_RTL8139 };
            moving.iter().for_each(|offset| show(nic, u32::from(*offset), mirror));
        }
        Nic::E1000(_) => MOVING_E1000.iter().for_each(|offset| show(nic, *offset, mirror)),
    }
}

/// Shows what was written, and what that may have changed for good.
pub(crate) fn show_written(nic: &Nic, register: Register, width: u8, mirror: &mut dyn Mirror) {
    let first = register.offset & !3;
    if let Nic::Rtl8139(_) = nic
        && !ALONE_RTL8139.contains(&(first as u16))
    {
        // Such as a reset. Seldom.
        return (0..u32::from(sluice_nic::rtl8139::PORTS))
            .step_by(4)
            .for_each(|offset| show(nic, offset, mirror));
    }
    // An access that is not aligned reaches into the next word. The summary is one of all TSD, and moves in C mode only.
    let is_status = (rtl8139::TSD..rtl8139::TSAD).contains(&(first as u16));
    let is_cplus = matches!(nic, Nic::Rtl8139(card) if card.regs.cplus);
    let summary = (is_cplus && is_status).then_some(rtl8139::SUMMARY.into());
    let straddles = (register.offset & 3) + u32::from(width) > 4;
    let next = first.checked_add(4).filter(|_| straddles);
    for offset in [Some(first), next, summary].into_iter().flatten() {
        if offset < REGISTERS as u32 * PAGE {
            show(nic, offset, mirror);
        }
    }
}

fn show(nic: &Nic, offset: u32, mirror: &mut dyn Mirror) {
    let value = match nic {
        Nic::Ne2000(_) => return,
        Nic::Rtl8139(card) => card.image(u16::try_from(offset).unwrap_or(u16::MAX)),
        Nic::E1000(_) if matches!(offset, e1000::ICR | e1000::ICS) => 0,
        Nic::E1000(card) => card.image(offset),
    };
    mirror.show(offset, value);
}

/// Shows what a write to a register that only decides about interrupts ([`Nic::decides_interrupts_only`]) may have changed.
pub(crate) fn show_interrupts(nic: &Nic, mirror: &mut dyn Mirror) {
    match nic {
        Nic::Ne2000(_) => {}
        // The card knows the time now.
        Nic::Rtl8139(_) => {
            [rtl8139::IMR, rtl8139::TCTR].iter().for_each(|at| show(nic, (*at).into(), mirror))
        }
        Nic::E1000(_) => show(nic, e1000::IMS, mirror),
    }
}

/// Registers of the page of the 82540EM's transmit ring, in the order in which the card looks at them. While it does so again and again, nothing
/// happens when they are written, either.
const POLLED: [u32; 7] =
    [e1000::TDBAL, e1000::TDBAH, e1000::TDLEN, e1000::TDH, e1000::TXDCTL, e1000::TADV, e1000::TDT];

/// Of a card that looks again and again: the pages of both rings, or the one of the receive ring.
pub(crate) fn polled(sends: bool) -> Direct {
    core::array::from_fn(|page| match page as u32 * PAGE {
        start if start == e1000::RDT / PAGE * PAGE => Direction::READ | Direction::WRITE,
        start if start == e1000::TDT / PAGE * PAGE && sends => Direction::READ | Direction::WRITE,
        start if start == e1000::TDT / PAGE * PAGE => Direction::READ,
        _ => Direction::empty(),
    })
}

/// What a guest writes at this offset of its mirror is seen only when the card looks.
pub(crate) fn is_posted(offset: u32) -> bool {
    POSTED.iter().any(|posted| posted / PAGE == offset / PAGE)
}

/// Has the card look at what its guest wrote directly: a register that is not as it was shown.
pub(crate) fn look(nic: &mut Nic, mirror: &mut dyn Mirror) {
    if let Nic::E1000(card) = nic {
        look_at(card, mirror, &POSTED);
    }
}

/// Shows the registers of both rings that a range of bytes is of.
pub(crate) fn show_rings(card: &E1000, range: core::ops::Range<u32>, mirror: &mut dyn Mirror) {
    let registers = POSTED.into_iter().chain(POLLED);
    let touched = registers.filter(|offset| *offset < range.end && range.start < offset + 4);
    touched.for_each(|offset| mirror.show(offset, card.image(offset)));
}

/// The guest has written to the doorbell of its transmit ring since the card looked.
pub(crate) fn has_rung(card: &E1000, mirror: &dyn Mirror) -> bool {
    mirror.look(e1000::TDT) != card.regs.get(e1000::TDT)
}

/// Has a card that looks again and again do so.
pub(crate) fn look_at_rings(card: &mut E1000, mirror: &mut dyn Mirror) {
    look_at(card, mirror, &POSTED);
    look_at(card, mirror, &POLLED);
}

fn look_at<const N: usize>(card: &mut E1000, mirror: &mut dyn Mirror, registers: &[u32; N]) {
    let mut found = [0; N];
    mirror.look_each(registers, &mut found);
    for (&offset, written) in registers.iter().zip(found) {
        if written == card.regs.get(offset) {
            continue;
        }
        card.write(offset, 4, written);
        // Only if it took something else: the guest may have written again meanwhile, which is not to be lost.
        let taken = card.regs.get(offset);
        if taken != written {
            mirror.show(offset, taken);
        }
    }
}

/// What decides which accesses may be direct.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    tracker: Tracker,
    /// The ring takes what its guest writes there.
    takes: bool,
}

/// What decides now; `stuck`: frames wait for room in its ring.
pub(crate) fn key(nic: &Nic, model: &'static Model, tracker: &mut Tracker, stuck: bool) -> Key {
    let mut takes = false;
    if let Nic::E1000(card) = nic {
        if card.regs.get(e1000::ICR) != 0 {
            tracker.step(model, Seen::Device(DeviceEvent::Caused));
        }
        takes = !stuck && card.regs.receive().contains(Receive::ENABLE);
    }
    Key { tracker: *tracker, takes }
}

/// What may be direct, as the model says.
pub(crate) fn shown(model: &'static Model, key: &Key) -> Shown {
    let mut direct = unhooked(hook_set(model, key.tracker.states(), Questions::MIRROR));
    if let Some(page) = direct.get_mut((e1000::RDT / PAGE) as usize).filter(|_| key.takes) {
        *page |= Direction::WRITE;
    }
    Shown { direct, hardware: false, symbiotic: false }
}

/// What a hook set leaves alone, of the pages that can be direct.
pub(crate) fn unhooked(hooks: HookSet) -> Direct {
    core::array::from_fn(|page| {
        let mut direct = Direction::empty();
        direct.set(Direction::READ, page < REGISTERS && !hooks.reads(page as u32));
        direct.set(Direction::WRITE, page < REGISTERS && !hooks.writes(page as u32));
        direct
    })
}
