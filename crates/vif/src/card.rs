//! A network card that a driver has in place of virtio's queues.

use crate::frame::Addresses;
use crate::scratch::Scratch;
use alloc::sync::Arc;
use sluice_nic::Offload;
use sluice_nic::e1000::{Reception, Transmission};

/// A network card, as engines need it: the driver of a VIF drives it by registers, and the engine looks what it wrote there. It is bounded what is
/// done in each call.
pub trait Card<M>: Send + Sync {
    /// Whether it has something to send. It looks what its driver wrote, unless it is at work.
    fn is_sending(&self) -> bool;

    /// How the next packet begins, if that is one that another card can finish.
    fn peek(&self, memory: &M) -> Option<[u8; Addresses::BYTES]>;

    /// The next packet, if it is one that another card can finish, into frames no longer than so many bytes.
    fn next_packet(&self, memory: &M, longest: u32) -> Option<Packet>;

    /// Copies that packet's bytes into `into`, which has its length, and has done with it, if `accept` agrees to its addresses and type. False, and nothing
    /// has happened, if not, or if its driver has thought better of it meanwhile.
    fn take_packet(
        &self,
        memory: &M,
        into: &mut [u8],
        accept: &mut dyn FnMut(&[u8; Addresses::BYTES]) -> bool,
    ) -> bool;

    /// Sends on: the next frame, without a check sequence, may be in `into` then. One that does not fit is lost. `memory` is the guest's. How much
    /// work it was, in bytes, is added to `work`.
    fn send(&self, memory: &M, into: &mut [u8], work: &mut u32) -> Transmission;

    /// Offers a frame without a check sequence, to be put into the guest's memory.
    fn receive(&self, memory: &M, frame: &[u8]) -> Reception;

    /// That was all for now: its driver is told. Returns when this is to be called again at the latest, in nanoseconds.
    fn settle(&self, now: u64) -> Option<u64>;

    /// The engine looks no more, so that the driver is to tell of frames, or it does.
    fn listen(&self, wanted: bool);
}

/// A packet that another card can finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Bytes.
    pub len: u32,
    /// Frames that it becomes.
    pub frames: u32,
    /// Bytes of all these.
    pub bytes: u32,
    /// What is left to be done to it.
    pub offload: Offload,
}

impl Packet {
    /// One of so many bytes. `None`: it is not for a card to finish.
    pub fn new(len: usize, offload: &Offload) -> Option<Self> {
        let (len, frames) = (len as u32, offload.frames(len)? as u32);
        let repeated = offload.segments.map_or(0, |cut| u32::from(cut.header));
        Some(Self { len, frames, bytes: len + (frames - 1) * repeated, offload: *offload })
    }
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
    pub fn fill(&mut self, memory: &M, work: &mut u32) -> Transmission {
        if !self.is_full {
            let mut sending = Transmission::Idle;
            let card = &*self.card;
            self.frame.fill(|into| {
                sending = card.send(memory, into, work);
                if let Transmission::Frame(len) = sending { len } else { 0 }
            });
            if !matches!(sending, Transmission::Frame(_)) {
                return sending;
            }
            self.is_full = true;
        }
        Transmission::Frame(self.frame.plain().len())
    }

    /// The frame.
    pub fn frame(&self) -> &[u8] {
        self.frame.plain()
    }
}
