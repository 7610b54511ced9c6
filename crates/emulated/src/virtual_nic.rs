//! A guest's end of a shared card: its card, what it sees of it, what was counted.
//!
//! Key types: [`VirtualNic`]; [`Changes`], what a guest has to be told of.

use crate::environment::Guests;
use crate::mirror::{self, Direction, Mirror, Shown};
use crate::names;
use crate::nic::{Description, Nic, Offer, Register, describe};
use crate::owner::{self, CardOwner, DirectPolicy};
use crate::pace::Pace;
use crate::symbiosis::{self, Request, Symbiosis};
use alloc::boxed::Box;
use sluice_abi::config::NicModel;
use sluice_model::{Model, RegisterId, Seen, Tracker, models, named};
use sluice_nic::Budget;
use sluice_nic::dma::{Dma, DmaError};
use sluice_nic::e1000::registers::reg;
use sluice_nic::{E1000, earliest};
use sluice_switch::{MAX_PORTS, PortId};

/// Those of all ports.
pub(crate) type VirtualNics = [Option<Box<VirtualNic>>; MAX_PORTS];

/// A guest's end of a shared card.
pub(crate) struct VirtualNic {
    pub(crate) model: NicModel,
    /// The device state model of its card.
    pub(crate) device: Option<&'static Model>,
    /// Where that is.
    pub(crate) tracker: Tracker,
    pub(crate) nic: Nic,
    /// What the guest may do with the physical card.
    pub(crate) policy: DirectPolicy,
    /// The guest lets its card master the bus.
    pub(crate) master: bool,
    /// The guest has switched the line off.
    pub(crate) silent: bool,
    /// Level of its line.
    pub(crate) line: bool,
    /// When its card goes on with what is left to do, in the guest's own time.
    pub(crate) resumes_at: Option<u64>,
    /// Frames wait for it that its card took too long to store: it gets them in its own time.
    pub(crate) behind: bool,
    pub(crate) elements: u64,
    pub(crate) instructions: u64,
    pub(crate) by_register: [u64; names::MOST],
    pub(crate) rx_packets: u64,
    pub(crate) rx_missed: u64,
    pub(crate) mirror: Option<Box<dyn Mirror>>,
    pub(crate) shown: Shown,
    /// What decided what its mirror shows, and what that is.
    decided: Option<(mirror::Key, Shown)>,
    /// When there last was a cause that a read would have taken away.
    caused_at: Option<u64>,
    /// How often its line rises, if its driver cannot say.
    pace: Option<Pace>,
    /// What a module in the guest shares with it.
    symbiosis: Option<Symbiosis>,
    /// The same, ended, while the guest's pages may not exit yet.
    parting: Option<Symbiosis>,
    /// What the last one had counted to.
    raised: u32,
}

/// For how many nanoseconds after such a cause the page of causes goes on to exit. Where interrupts come often, a change of what
/// is mapped, with its flush, costs more than the few reads that exit in between.
const FREQUENT: u64 = 1_000_000;

/// There was a cause just now, so that another is to be expected.
fn is_often_caused(caused_at: Option<u64>, now: u64) -> bool {
    caused_at.is_some_and(|at| now < at.saturating_add(FREQUENT))
}

/// What changed for guests, by [`PortId::bit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// [`SharedNic::shown`](crate::SharedNic::shown): carry these out before the lines, then say so to [`SharedNic::carried_out`](crate::SharedNic::carried_out).
    pub shown: u16,
    /// [`SharedNic::line`](crate::SharedNic::line).
    pub lines: u16,
    /// [`SharedNic::resumes_at`](crate::SharedNic::resumes_at).
    pub resumes: u16,
}

impl Changes {
    /// Nothing changed.
    pub const fn is_empty(self) -> bool {
        self.shown | self.lines | self.resumes == 0
    }
}

/// Memory as a card sees it: none while it does not master the bus.
pub(crate) struct Bus<M>(Option<M>);

impl<M: Dma> Dma for Bus<M> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.as_mut().ok_or(DmaError)?.read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.as_mut().ok_or(DmaError)?.write(address, bytes)
    }
}

impl VirtualNic {
    /// A card just plugged in.
    pub(crate) fn new(model: NicModel, mac: [u8; 6]) -> Self {
        let Description { vendor, device, .. } = describe(model);
        Self {
            model,
            device: models::find_master(vendor, device),
            tracker: Tracker::new(),
            nic: Nic::new(model, mac),
            policy: DirectPolicy::Never,
            master: false,
            silent: false,
            line: false,
            resumes_at: None,
            behind: false,
            elements: 0,
            instructions: 0,
            by_register: [0; names::MOST],
            rx_packets: 0,
            rx_missed: 0,
            mirror: None,
            shown: Shown::default(),
            decided: None,
            caused_at: None,
            pace: matches!(model, NicModel::Rtl8139 | NicModel::Rtl8139c).then(Pace::default),
            symbiosis: None,
            parting: None,
            raised: 0,
        }
    }

    /// How the card reaches memory.
    pub(crate) fn bus<G: Guests>(&self, guests: &mut G, port: PortId) -> Bus<G::Memory> {
        Bus(if self.master { guests.memory(port) } else { None })
    }

    /// Has the card see what its guest wrote without an exit.
    pub(crate) fn look(&mut self) {
        if let Some((symbiosis, card, mirror)) = self.symbiotic() {
            symbiosis.look(card, mirror);
        } else if let Some(mirror) = &mut self.mirror {
            mirror::look(&mut self.nic, &mut **mirror);
        }
    }

    /// The same before it sends: with symbiosis, if the tail was written. Without it a guest writes nothing directly by which a card sends.
    pub(crate) fn look_at_tail(&mut self) {
        if let Some((symbiosis, card, mirror)) = self.symbiotic() {
            symbiosis.look_at_tail(card, mirror);
        }
    }

    /// The same when a module says that the tail was written: it may be as it was in a ring that is not.
    pub(crate) fn look_as_rung(&mut self) {
        self.look();
        if let Nic::E1000(card) = &mut self.nic {
            card.write(reg::TDT, 4, card.regs.get(reg::TDT));
        }
    }

    /// There is a page that a module could share: the card is an 82540EM that the guest never has in its own hands.
    pub(crate) fn can_be_symbiotic(&self) -> bool {
        let is_82540em = matches!(self.nic, Nic::E1000(_));
        is_82540em && self.mirror.is_some() && self.policy == DirectPolicy::Never
    }

    /// A module shares a page with the card.
    pub(crate) const fn is_symbiotic(&self) -> bool {
        self.symbiosis.is_some()
    }

    fn symbiotic(&mut self) -> Option<(&mut Symbiosis, &mut E1000, &mut dyn Mirror)> {
        match (&mut self.symbiosis, &mut self.nic, &mut self.mirror) {
            (Some(symbiosis), Nic::E1000(card), Some(mirror)) => Some((symbiosis, card, &mut **mirror)),
            _ => None,
        }
    }

    /// Does what a module asks for by a write that exits, and forgets the module when the card is reset.
    pub(crate) fn heed(&mut self, register: Register, width: u8, value: u32) {
        match Request::of(register, width, value) {
            Some(Request::Begin) => self.begin_symbiosis(),
            Some(Request::End) => self.end_symbiosis(),
            None if symbiosis::is_reset(register, value) => self.end_symbiosis(),
            None => {}
        }
    }

    fn begin_symbiosis(&mut self) {
        self.end_symbiosis();
        self.part();
        if self.can_be_symbiotic()
            && let (Nic::E1000(card), Some(mirror)) = (&mut self.nic, &mut self.mirror)
        {
            self.symbiosis = Some(Symbiosis::begin(card, &mut **mirror, self.raised));
            Symbiosis::want_doorbell(&mut **mirror, self.resumes_at.is_none());
        }
    }

    /// Causes are the card's own again. The guest may still write to its tail directly, until [`Self::part`].
    pub(crate) fn end_symbiosis(&mut self) {
        if let Some(symbiosis) = self.symbiosis.take()
            && let Nic::E1000(card) = &mut self.nic
        {
            card.restore_causes();
            self.raised = symbiosis.raised;
            self.parting = Some(symbiosis);
        }
    }

    /// What the guest wrote before its pages exited again counts. False if there was nothing to part from.
    pub(crate) fn part(&mut self) -> bool {
        let Some(mut symbiosis) = self.parting.take() else { return false };
        if let (Nic::E1000(card), Some(mirror)) = (&mut self.nic, &mut self.mirror) {
            symbiosis.look(card, &mut **mirror);
            mirror::show_all(&self.nic, &mut **mirror);
        }
        true
    }

    /// Tells the model of an access.
    pub(crate) fn follow(
        &mut self,
        register: Register,
        width: u8,
        value: u32,
        seen: fn(RegisterId, u32) -> Seen,
    ) {
        let Some(model) = self.device.filter(|_| self.mirror.is_some()) else { return };
        let page = self.tracker.page(model).unwrap_or(0);
        for (id, value) in named(model, page, register.offset, width, value) {
            self.tracker.step(model, seen(id, value));
        }
    }

    /// Offers a frame to the card. False if it has no room now. What spends the budget is the last for now.
    pub(crate) fn offer(
        &mut self,
        frame: &[u8],
        fcs: Option<u32>,
        memory: &mut dyn Dma,
        budget: &mut Budget,
    ) -> bool {
        match self.nic.offer(frame, fcs, memory, budget) {
            Offer::Stored => {
                self.rx_packets += 1;
                self.carried(1, frame.len());
            }
            Offer::Unwanted => {}
            Offer::Missed => self.rx_missed += 1,
            Offer::Later => return false,
        }
        self.behind = budget.is_spent();
        true
    }

    /// Says when its card goes on, or that it has nothing left to do.
    pub(crate) fn resume_at(&mut self, port: PortId, at: Option<u64>, changes: &mut Changes) {
        if self.resumes_at != at {
            self.resumes_at = at;
            changes.resumes |= port.bit();
            if let Some((_, _, mirror)) = self.symbiotic() {
                Symbiosis::want_doorbell(mirror, at.is_none());
            }
        }
    }

    /// Counts an access.
    pub(crate) fn count(&mut self, register: Register, width: u8, bytes: usize) {
        self.instructions += 1;
        self.elements += (bytes / usize::from(width).max(1)) as u64;
        if let Some(count) = self.by_register.get_mut(names::index(self.model, register.offset)) {
            *count += 1;
        }
    }

    /// A write of this register has no other effect than on its line, now: nothing waits for the guest to do something, and nothing
    /// is due.
    pub(crate) fn is_quiet_write(&self, register: Register, width: u8, now: u64, stuck: bool) -> bool {
        self.nic.decides_interrupts_only(register, width)
            && !stuck
            && self.nic.deadline().is_none_or(|at| at > now)
    }

    /// What a register holds that could be read in the mirror, were it not for causes that come often; and nothing is due.
    pub(crate) fn peek(&self, register: Register, width: u8, now: u64) -> Option<u32> {
        let is_due = self.nic.deadline().is_some_and(|at| at <= now);
        let is_plain = !is_due && !mirror::is_posted(register.offset);
        self.nic.peek(register, width).filter(|_| is_plain && is_often_caused(self.caused_at, now))
    }

    fn wants_line(&self) -> bool {
        self.nic.interrupt() && !self.silent
    }

    /// When something is due that nobody asks for: in the card, or on its line.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let held = self.pace.filter(|_| !self.line && self.wants_line()).map(|pace| pace.rises_at());
        let symbiosis = self.symbiosis.as_ref().and_then(Symbiosis::deadline);
        earliest([self.nic.deadline(), held, symbiosis])
    }

    /// The card has sent or received so many frames, of so many bytes in all.
    pub(crate) fn carried(&mut self, frames: usize, bytes: usize) {
        if let Some(pace) = &mut self.pace {
            pace.carry(frames, bytes);
        }
    }

    /// Brings the line up to date with its card.
    pub(crate) fn publish_line(&mut self, port: PortId, now: u64, changes: &mut Changes) {
        let rings =
            self.symbiotic().is_some_and(|(symbiosis, card, mirror)| symbiosis.publish(card, mirror, now));
        let line = self.wants_line() && (self.line || self.pace.is_none_or(|pace| pace.rises_at() <= now));
        let line = line || rings && !self.silent;
        if line != self.line {
            self.line = line;
            if let Some(pace) = self.pace.as_mut().filter(|_| line) {
                pace.rise(now);
            }
            // Up and down again before anyone has looked is no change.
            changes.lines ^= port.bit();
        }
    }

    /// The guest is about to end an interrupt: the line falls if a module has dealt with it. Returns its level.
    pub(crate) fn end_of_interrupt(&mut self) -> bool {
        let is_done = match self.symbiotic() {
            Some((symbiosis, _, mirror)) => !symbiosis.is_up(mirror),
            None => false,
        };
        self.line &= !is_done || self.wants_line();
        self.line
    }

    /// Brings what the guest sees up to date with its card.
    pub(crate) fn publish(
        &mut self,
        port: PortId,
        owner: CardOwner,
        (stuck, now): (u16, u64),
        changes: &mut Changes,
    ) {
        self.publish_line(port, now, changes);
        let (Some(mirror), Some(model)) = (&mut self.mirror, self.device) else { return };
        mirror::show_moving(&self.nic, &mut **mirror);
        let shown = match owner.guest() {
            Some(guest) if guest == port => owner::shown(model, self.policy, owner),
            _ => {
                let was_hooked =
                    !self.shown.direct.first().is_some_and(|page| page.contains(Direction::READ));
                let key = mirror::key(&self.nic, model, &mut self.tracker, stuck & port.bit() != 0);
                let mut shown = match self.decided {
                    Some((decided, shown)) if decided == key => shown,
                    _ => mirror::shown(model, &key),
                };
                self.decided = Some((key, shown));
                if let (Nic::E1000(card), Some(page)) = (&self.nic, shown.direct.first_mut()) {
                    let now = card.now();
                    if !page.contains(Direction::READ) {
                        self.caused_at = Some(now);
                    } else if was_hooked && is_often_caused(self.caused_at, now) {
                        page.remove(Direction::READ);
                    }
                }
                if self.symbiosis.is_some() {
                    symbiosis::add_to(&mut shown);
                }
                shown
            }
        };
        if shown != self.shown {
            self.shown = shown;
            changes.shown |= port.bit();
        }
    }
}
