//! The physical card, as engines need it.

use sluice_nic::Offload;

/// What a card did with a packet that it was to finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// It has it.
    Sent,
    /// It is busy, and [tells](Wire::tells) when it is not.
    Full,
    /// It does not finish such a packet.
    Never,
}

/// The physical card.
pub trait Wire {
    /// Bytes of the longest frame that the card carries, with a tag and without CRC: 1518, or more.
    fn longest(&self) -> u32;

    /// Whether the card wakes this engine when it is busy no more. Else the engine looks again by itself.
    fn tells(&self) -> bool;

    /// Sends a frame without CRC, 14 bytes to [`Self::longest`]. False: the card is busy, and [tells](Self::tells) when it is not.
    fn send(&mut self, frame: &[u8]) -> bool;

    /// Sends a packet of so many bytes, of which the card finishes what `offload` says. `fill` puts them where the card finds them, or says that
    /// there is no such packet: then nothing is sent. It is called at most once.
    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given;

    /// Gives frames that have come, without CRC and in order, to `take`, and whether the card has found all their checksums right: about as
    /// many as are wanted at most. Returns how many.
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize;

    /// Lets the card go on with what was sent and taken.
    fn flush(&mut self);
}
