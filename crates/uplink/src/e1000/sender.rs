//! What waits to be sent: a ring of descriptors, and a ring of bytes that they lead to ([`Places`]).

use super::{DESCRIPTOR, DONE, SEND_BUFFERS, SEND_BYTES, SENDERS};
use crate::DmaMemory;
use crate::places::Places;
use sluice_nic::{Offload, e1000};

/// Most bytes of a descriptor, below the 16,288 that a card takes (317453, 3.3.3).
const PIECE: usize = 0x2000;

/// Command bits, in a descriptor's third long word: last of its packet, CRC wanted, cut into segments, status wanted, not a legacy
/// descriptor; and which kind that is.
const END: u32 = 1 << 24;
const CRC: u32 = 1 << 25;
const CUT: u32 = 1 << 26;
const STATUS: u32 = 1 << 27;
const EXTENDED: u32 = 1 << 29;
const DATA: u32 = 1 << 20;
/// Options, in the fourth: checksums to be put in.
const SUM_IP: u32 = 1 << 8;
const SUM_TRANSPORT: u32 = 1 << 9;

/// Most descriptors that a packet of this length takes.
pub(super) const fn descriptors(len: usize) -> usize {
    1 + len.div_ceil(PIECE)
}

/// The ring of descriptors, and where its packets' bytes are.
#[derive(Debug)]
pub(super) struct Sender {
    places: Places<SENDERS, SEND_BYTES>,
    /// The contexts that the card has: without segmentation, and with it.
    contexts: [Option<u128>; 2],
    /// Where in the card's memory the ring begins; the bytes follow it.
    base: usize,
    /// The card has a context for each kind until this ring gives it another.
    keeps_contexts: bool,
}

impl Sender {
    /// Nothing waits, and the card was reset. The ring begins at `base` of the card's memory, and the bytes follow it. A card with another ring
    /// does not keep contexts.
    pub(super) const fn new(base: usize, keeps_contexts: bool) -> Self {
        Self { places: Places::new(), contexts: [None; 2], base, keeps_contexts }
    }

    /// The first descriptor that the card does not have.
    pub(super) const fn tail(&self) -> usize {
        self.places.tail()
    }

    /// Where in the card's memory so many bytes can be put, which take so many descriptors at most. `None`: there is no room now.
    pub(super) fn place(
        &mut self,
        memory: &dyn DmaMemory,
        descriptors: usize,
        bytes: usize,
    ) -> Option<usize> {
        let base = self.base;
        let found = self.places.place(descriptors, bytes, &mut |index| {
            let mut status = [0];
            memory.read(base + index * DESCRIPTOR + 12, &mut status);
            status[0] & DONE != 0
        })?;
        Some(self.buffers() + found)
    }

    /// Where the bytes begin.
    const fn buffers(&self) -> usize {
        self.base + SEND_BUFFERS
    }

    /// A frame, whose bytes are where [`Self::place`] said.
    pub(super) fn push_frame(&mut self, memory: &mut dyn DmaMemory, at: usize, len: usize) {
        self.push_piece(memory, at, (at, len), END, 0);
        self.end(at, len);
    }

    /// A packet that the card finishes, likewise.
    pub(super) fn push_packet(
        &mut self,
        memory: &mut dyn DmaMemory,
        at: usize,
        len: usize,
        offload: &Offload,
    ) {
        let cut = offload.segments.is_some();
        let sums = if offload.ip.is_some() { SUM_IP } else { 0 }
            | if offload.transport.is_some() { SUM_TRANSPORT } else { 0 };
        if !cut && sums == 0 {
            return self.push_frame(memory, at, len);
        }
        let kind = if cut { CUT } else { 0 };
        let context = u128::from_le_bytes(e1000::context_for(offload, len));
        let known = &mut self.contexts[usize::from(cut)];
        if *known != Some(context) || !self.keeps_contexts {
            *known = Some(context);
            self.push(memory, at, context | u128::from(kind | STATUS) << 64);
        }
        let mut done = 0;
        while done < len {
            let piece = PIECE.min(len - done);
            let end = if done + piece == len { END } else { 0 };
            self.push_piece(memory, at, (at + done, piece), end | kind | EXTENDED | DATA, sums);
            done += piece;
        }
        self.end(at, len);
    }

    fn push_piece(
        &mut self,
        memory: &mut dyn DmaMemory,
        place: usize,
        (at, len): (usize, usize),
        command: u32,
        options: u32,
    ) {
        let address = u64::from(memory.bus()) + at as u64;
        let lower = len as u32 | command | CRC | STATUS;
        self.push(memory, place, u128::from(address) | u128::from(lower) << 64 | u128::from(options) << 96);
    }

    /// One descriptor of the packet whose bytes begin at `place`.
    fn push(&mut self, memory: &mut dyn DmaMemory, place: usize, words: u128) {
        let index = self.places.push(place - self.buffers());
        memory.write(self.base + index * DESCRIPTOR, &words.to_le_bytes());
    }

    const fn end(&mut self, at: usize, len: usize) {
        self.places.end(at - self.buffers(), len);
    }
}
