//! Packets that lie whole in a driver's ring, of either kind of card that has them: read off it at once, for who has another card finish them.

use crate::dma::Dma;
use crate::{Budget, Offload};

/// Bytes of an Ethernet header, by which packets are sorted.
pub const HEAD: usize = 14;

/// A card whose packets may lie whole in its ring. Of two kinds, and not one that is either: a packet has room for all its descriptors, and is
/// not to be moved about.
pub trait Packets {
    /// The packet.
    type Whole;

    /// It may have one to send.
    fn has_packets(&self) -> bool;

    /// The next packet that it has to send, if that lies whole in its ring, would go to the wire, and is one that another card can finish. If there is
    /// none at all, an RTL8139 stops looking for one, as its `transmit` would have it.
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

    /// The packet, which began with `head`, is sent: its descriptors are done with, it is counted, and the card moves on.
    fn complete(&mut self, memory: &mut dyn Dma, whole: &Self::Whole, head: &[u8; HEAD], budget: &mut Budget);
}

/// What a packet is for who sends it.
#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    /// Bytes.
    pub len: usize,
    /// The frames that it becomes.
    pub frames: usize,
    /// What is left to be done to it.
    pub offload: &'a Offload,
}

impl Size<'_> {
    /// Bytes of all frames that it becomes.
    pub fn bytes(&self) -> usize {
        let header = self.offload.segments.map_or(0, |segments| usize::from(segments.header));
        self.len + (self.frames - 1) * header
    }
}
