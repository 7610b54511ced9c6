//! A network card that a driver has in place of virtio's queues.

use crate::frame::Addresses;
use crate::scratch::Scratch;
use crate::wire::{Given, Wire};
use alloc::sync::Arc;

/// A network card, as engines need it: the driver of a VIF drives it by registers, and the engine looks what it wrote there. It is bounded what is
/// done in each call.
pub trait Card<M>: Send + Sync {
    /// Whether it has something to send. It looks what its driver wrote, unless it is at work.
    fn is_sending(&self) -> bool;

    /// How the next packet begins, if that is one that another card can finish.
    fn peek(&self, memory: &M) -> Option<[u8; Addresses::BYTES]>;

    /// Hands the next packet to the wire, for the physical card to finish: if it can, if the frames are no longer than so many bytes, and if `accept`
    /// agrees to its addresses and type.
    ///
    /// # Errors
    /// Nothing has happened: the wire is full, or the packet is not one to be sent so.
    fn send_packet(
        &self,
        memory: &M,
        longest: u32,
        accept: &mut dyn FnMut(&[u8; Addresses::BYTES]) -> bool,
        wire: &mut dyn Wire,
    ) -> Result<Packet, Given>;

    /// Sends on: the next frame, without a check sequence, may be in `into` then. One that does not fit is lost. `memory` is the guest's. How much
    /// work it was, in bytes, is added to `work`.
    fn send(&self, memory: &M, into: &mut [u8], work: &mut u32) -> Sending;

    /// Offers a frame without a check sequence, to be put into the guest's memory.
    fn receive(&self, memory: &M, frame: &[u8]) -> Receiving;

    /// That was all for now: its driver is told. Returns when this is to be called again at the latest, in nanoseconds.
    fn settle(&self, now: u64) -> Option<u64>;

    /// The engine looks no more, so that the driver is to tell of frames, or it does.
    fn listen(&self, wanted: bool);
}

/// A packet that was handed to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Bytes.
    pub len: u32,
    /// Frames that it becomes.
    pub frames: u32,
    /// Bytes of all these.
    pub bytes: u32,
}

/// What a card does next about sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// A frame of so many bytes.
    Frame(usize),
    /// No frame yet, but there is more to do.
    Busy,
    /// It has nothing to send.
    Idle,
}

/// What became of a frame that was offered to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// It is in its guest's memory.
    Stored,
    /// The card is not to have it: it is off, or its filters say so.
    Unwanted,
    /// There was no room for it.
    Missed,
}

/// The sending side of a card, and the frame that it has begun to send.
pub(crate) struct Outbox<M> {
    pub card: Arc<dyn Card<M>>,
    frame: Scratch,
    /// The frame is not on its way yet.
    pub is_full: bool,
}

impl<M> Outbox<M> {
    pub fn new(card: Arc<dyn Card<M>>) -> Self {
        Self { card, frame: Scratch::new(), is_full: false }
    }

    /// Has a frame to be sent, if the card has one. Adds to `work` how much that was, in bytes.
    pub fn fill(&mut self, memory: &M, work: &mut u32) -> Sending {
        if !self.is_full {
            let mut sending = Sending::Idle;
            let card = &*self.card;
            self.frame.fill(|into| {
                sending = card.send(memory, into, work);
                if let Sending::Frame(len) = sending { len } else { 0 }
            });
            if !matches!(sending, Sending::Frame(_)) {
                return sending;
            }
            self.is_full = true;
        }
        Sending::Frame(self.frame.plain().len())
    }

    /// The frame.
    pub fn frame(&self) -> &[u8] {
        self.frame.plain()
    }
}
