//! A software 82540EM whose owner looks again and again at what its guest wrote, so that a stock driver sends without an exit.
//!
//! Key type: [`PolledNic`]. The guest has the pages of both rings as plain memory (the [`Mirror`]); all other registers exit. What is written
//! there counts when the card looks; that is done, too, before a register is written that exits, such as RCTL and TCTL: a driver that has switched a ring
//! off and comes back finds that it is. The card keeps heads to itself, and shows them when they have moved.
//!
//! Source: what a driver may rely on is the manual's (317453, 13.4); that doorbells are polled is Raj and Schwan's, "High Performance and Scalable I/O
//! Virtualization via Self-Virtualized Devices", 2.2, for an interface of their own.

use crate::mirror::{self, Direct, Mirror};
use crate::nic::Register;
use alloc::boxed::Box;
use sluice_nic::dma::Dma;
use sluice_nic::e1000::registers::reg;
use sluice_nic::e1000::{Reception, Transmission, Whole};
use sluice_nic::{Budget, E1000, HEAD, Packets};

/// The card.
pub struct PolledNic {
    card: Box<E1000>,
    mirror: Box<dyn Mirror>,
    /// RDH and TDH, as the guest last saw them.
    heads: [u32; 2],
    /// The packet that was asked for last.
    next: Option<Whole>,
}

/// What moves by itself.
const HEADS: [u32; 2] = [reg::RDH, reg::TDH];

impl PolledNic {
    /// A card just plugged in, with this station address. Allocates.
    pub fn new(mac: [u8; 6], mut mirror: Box<dyn Mirror>) -> Self {
        let card = Box::new(E1000::new(mac));
        mirror::show_rings(&card, 0..u32::MAX, &mut *mirror);
        let heads = HEADS.map(|offset| card.image(offset));
        Self { card, mirror, heads, next: None }
    }

    /// What its guest may access without an exit, while the owner looks again and again at what it sends, or not.
    pub fn direct(looks: bool) -> Direct {
        mirror::polled(looks)
    }

    /// It has more to send than it has said. It looks, unless there is more in the ring that it knows of.
    pub fn is_sending(&mut self) -> bool {
        let is_at_end = !self.card.transmitting() || self.card.image(reg::TDH) == self.card.image(reg::TDT);
        if is_at_end && self.has_rung() {
            self.look();
        }
        self.card.transmitting()
    }

    fn whole(&mut self, memory: &mut dyn Dma) -> Option<Whole> {
        self.is_sending().then(|| self.card.whole(memory, &mut Budget::default())).flatten()
    }

    /// How the next packet begins, if that is one that another card can finish. The guest may alter it yet.
    pub fn peek(&mut self, memory: &mut dyn Dma) -> Option<[u8; HEAD]> {
        let whole = self.whole(memory)?;
        let mut head = [0; HEAD];
        memory.read(whole.begins_at()?, &mut head).ok()?;
        Some(head)
    }

    /// The next packet, if it is one that another card can finish, and its frames are no longer than so many bytes. It is sent by
    /// [`Self::take_packet`].
    pub fn next_packet(&mut self, memory: &mut dyn Dma, longest: usize) -> Option<&Whole> {
        let frame = |whole: &Whole| {
            let cut = whole.offload().segments;
            cut.map_or(whole.len(), |cut| usize::from(cut.header) + usize::from(cut.payload))
        };
        self.next = self.whole(memory).filter(|whole| frame(whole) <= longest);
        self.next.as_ref()
    }

    /// Copies the bytes of [that packet](Self::next_packet) into `into`, which has its length, and has done with it, if `accept` agrees to how it begins.
    /// False, and nothing has happened, if not, or if it is not the next packet any more.
    pub fn take_packet(
        &mut self,
        memory: &mut dyn Dma,
        into: &mut [u8],
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        let Some(whole) = self.next.take().filter(|whole| self.card.is_next(whole)) else { return false };
        let budget = &mut Budget::default();
        let mut head = None;
        let gathered = self.card.gather(memory, &whole, into, budget, &mut |first| {
            head = Some(*first);
            accept(first)
        });
        let Some(head) = head.filter(|_| gathered) else { return false };
        self.card.complete(memory, &whole, &head, budget);
        true
    }

    /// The guest has written to the doorbell of its transmit ring since the card looked.
    fn has_rung(&self) -> bool {
        mirror::has_rung(&self.card, &*self.mirror)
    }

    /// Reads into `into`, of 1, 2 or 4 bytes.
    pub fn read(&mut self, register: Register, into: &mut [u8], now: u64) {
        self.card.advance(now);
        let width = into.len() as u8;
        let value = if register.io {
            self.card.read_port(register.offset as u16, width)
        } else {
            self.look();
            self.card.read(register.offset, width)
        };
        into.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    /// Writes 1, 2 or 4 bytes. What follows from it for frames is left to [`Self::send`] and [`Self::offer`].
    pub fn write(&mut self, register: Register, from: &[u8], now: u64) {
        self.card.advance(now);
        let mut value = [0; 4];
        value.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        let (width, value) = (from.len() as u8, u32::from_le_bytes(value));
        if register.io {
            return self.card.write_port(register.offset as u16, width, value);
        }
        self.look();
        self.card.write(register.offset, width, value);
        let end = register.offset.saturating_add(width.into());
        mirror::show_rings(&self.card, register.offset..end, &mut *self.mirror);
    }

    /// Shows heads that have moved: what the guest writes to one in just that moment is lost, as in a card.
    fn show_heads(&mut self) {
        for (offset, shown) in HEADS.into_iter().zip(&mut self.heads) {
            let head = self.card.image(offset);
            if core::mem::replace(shown, head) != head {
                self.mirror.show(offset, head);
            }
        }
    }

    /// Looks at what the guest has written. A head that has moved is not what it wrote.
    fn look(&mut self) {
        self.show_heads();
        mirror::look_at_rings(&mut self.card, &mut *self.mirror);
        self.heads = HEADS.map(|offset| self.card.image(offset));
    }

    /// Sends on, as far as `budget` lasts: a frame may be in `into` then. One that does not fit is lost.
    pub fn send(&mut self, memory: &mut dyn Dma, into: &mut [u8], budget: &mut Budget) -> Transmission {
        while self.is_sending() {
            let sent = self.card.transmit(memory, into, budget);
            if sent != Transmission::Idle {
                return sent;
            }
            // It may have been rung for meanwhile; a guest that rings for nothing has its time, too.
            budget.step();
            if budget.is_spent() {
                return Transmission::Busy;
            }
        }
        Transmission::Idle
    }

    /// Offers a frame.
    pub fn offer(&mut self, memory: &mut dyn Dma, frame: &[u8], now: u64) -> Reception {
        self.card.advance(now);
        if !self.card.can_receive() {
            self.look();
        }
        self.card.receive(memory, frame, &mut Budget::default())
    }

    /// That was all for now: what is due happens, and the guest sees how far its rings have come.
    pub fn settle(&mut self, now: u64) {
        self.card.advance(now);
        self.show_heads();
    }

    /// Level of its interrupt line.
    pub fn line(&self) -> bool {
        self.card.interrupt()
    }

    /// When [`Self::settle`] is to be called again: something is due.
    pub fn deadline(&self) -> Option<u64> {
        self.card.deadline()
    }
}
