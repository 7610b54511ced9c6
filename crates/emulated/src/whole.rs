//! A packet that lies whole in a guest's ring, of either kind of card that has them.

use crate::nic::Nic;
use sluice_nic::dma::Dma;
use sluice_nic::{Budget, Offload, e1000, rtl8139};

/// Bytes by which packets are sorted.
pub(crate) const HEAD: usize = e1000::HEAD;
const _: () = assert!(HEAD == rtl8139::HEAD);

/// The packet.
pub(crate) enum Whole {
    /// Of an 82540EM.
    E1000(e1000::Whole),
    /// Of an RTL8139C+.
    Rtl8139(rtl8139::Whole),
}

impl Whole {
    /// Its length in bytes.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::E1000(whole) => whole.len(),
            Self::Rtl8139(whole) => whole.len(),
        }
    }

    /// The frames that it becomes.
    pub(crate) const fn frames(&self) -> usize {
        match self {
            Self::E1000(whole) => whole.frames(),
            Self::Rtl8139(whole) => whole.frames(),
        }
    }

    /// What is left to be done to it.
    pub(crate) const fn offload(&self) -> &Offload {
        match self {
            Self::E1000(whole) => whole.offload(),
            Self::Rtl8139(whole) => whole.offload(),
        }
    }

    /// Bytes of all frames that it becomes.
    pub(crate) fn bytes(&self) -> usize {
        let header = self.offload().segments.map_or(0, |segments| usize::from(segments.header));
        self.len() + (self.frames() - 1) * header
    }
}

impl Nic {
    /// It may have packets to send that lie whole in its ring.
    pub(crate) const fn has_packets(&self) -> bool {
        match self {
            Self::Ne2000(_) => false,
            Self::Rtl8139(card) => card.begins_packets(),
            Self::E1000(card) => card.transmitting(),
        }
    }

    /// The next packet that it has to send, if that lies whole in its ring, would go to the wire, and is one that another card can finish.
    pub(crate) fn whole(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<Whole> {
        match self {
            Self::Ne2000(_) => None,
            Self::Rtl8139(card) => card.whole(memory, budget).map(Whole::Rtl8139),
            Self::E1000(card) => card.whole(memory, budget).map(Whole::E1000),
        }
    }

    /// Copies the packet's bytes into `into`, which has its length. `accept` is shown its first bytes before the rest is copied.
    /// False if it refuses them, or memory refuses a part; nothing has happened to the card then.
    pub(crate) fn gather(
        &self,
        memory: &mut dyn Dma,
        whole: &Whole,
        into: &mut [u8],
        budget: &mut Budget,
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        match (self, whole) {
            (Self::E1000(card), Whole::E1000(whole)) => card.gather(memory, whole, into, budget, accept),
            (Self::Rtl8139(card), Whole::Rtl8139(whole)) => card.gather(memory, whole, into, budget, accept),
            _ => false,
        }
    }

    /// The packet, which began with `head`, is sent.
    pub(crate) fn complete(
        &mut self,
        memory: &mut dyn Dma,
        whole: &Whole,
        head: &[u8; HEAD],
        budget: &mut Budget,
    ) {
        match (self, whole) {
            (Self::E1000(card), Whole::E1000(whole)) => card.complete(memory, whole, head, budget),
            (Self::Rtl8139(card), Whole::Rtl8139(whole)) => card.complete(memory, whole, budget),
            _ => {}
        }
    }
}
