//! A packet that lies whole in a guest's ring, of either kind of card that has them.

use sluice_nic::dma::Dma;
use sluice_nic::{Budget, E1000, Offload, Rtl8139, e1000, rtl8139};

/// Bytes by which packets are sorted.
pub(crate) const HEAD: usize = e1000::HEAD;
const _: () = assert!(HEAD == rtl8139::HEAD);

/// A card whose packets may lie whole in its ring. Of two kinds, and not one that is either: a packet has room for all its descriptors, and is
/// not to be moved about.
pub(crate) trait Packets {
    /// The packet.
    type Whole;

    /// It may have one to send.
    fn has_packets(&self) -> bool;

    /// The next packet that it has to send, if that lies whole in its ring, would go to the wire, and is one that another card can finish.
    fn whole(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<Self::Whole>;

    /// Its length, the frames that it becomes, and what is left to be done to it.
    fn size(whole: &Self::Whole) -> Size<'_>;

    /// Copies the packet's bytes into `into`, which has its length. `accept` is shown its first bytes before the rest is copied.
    /// False if it refuses them, or memory refuses a part; nothing has happened to the card then.
    fn gather(
        &self,
        memory: &mut dyn Dma,
        whole: &Self::Whole,
        into: &mut [u8],
        budget: &mut Budget,
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool;

    /// The packet, which began with `head`, is sent.
    fn complete(&mut self, memory: &mut dyn Dma, whole: &Self::Whole, head: &[u8; HEAD], budget: &mut Budget);
}

/// What a packet is for who sends it.
#[derive(Clone, Copy)]
pub(crate) struct Size<'a> {
    /// Bytes.
    pub(crate) len: usize,
    /// The frames that it becomes.
    pub(crate) frames: usize,
    /// What is left to be done to it.
    pub(crate) offload: &'a Offload,
}

impl Size<'_> {
    /// Bytes of all frames that it becomes.
    pub(crate) fn bytes(&self) -> usize {
        let header = self.offload.segments.map_or(0, |segments| usize::from(segments.header));
        self.len + (self.frames - 1) * header
    }
}

impl Packets for E1000 {
    type Whole = e1000::Whole;

    fn has_packets(&self) -> bool {
        self.transmitting()
    }

    fn whole(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<e1000::Whole> {
        self.whole(memory, budget)
    }

    fn size(whole: &e1000::Whole) -> Size<'_> {
        Size { len: whole.len(), frames: whole.frames(), offload: whole.offload() }
    }

    fn gather(
        &self,
        memory: &mut dyn Dma,
        whole: &e1000::Whole,
        into: &mut [u8],
        budget: &mut Budget,
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        self.gather(memory, whole, into, budget, accept)
    }

    fn complete(
        &mut self,
        memory: &mut dyn Dma,
        whole: &e1000::Whole,
        head: &[u8; HEAD],
        budget: &mut Budget,
    ) {
        self.complete(memory, whole, head, budget);
    }
}

impl Packets for Rtl8139 {
    type Whole = rtl8139::Whole;

    fn has_packets(&self) -> bool {
        self.begins_packets()
    }

    fn whole(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<rtl8139::Whole> {
        self.whole(memory, budget)
    }

    fn size(whole: &rtl8139::Whole) -> Size<'_> {
        Size { len: whole.len(), frames: whole.frames(), offload: whole.offload() }
    }

    fn gather(
        &self,
        memory: &mut dyn Dma,
        whole: &rtl8139::Whole,
        into: &mut [u8],
        budget: &mut Budget,
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        self.gather(memory, whole, into, budget, accept)
    }

    fn complete(
        &mut self,
        memory: &mut dyn Dma,
        whole: &rtl8139::Whole,
        _: &[u8; HEAD],
        budget: &mut Budget,
    ) {
        self.complete(memory, whole, budget);
    }
}
