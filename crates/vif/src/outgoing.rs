//! A frame that a VIF sends, with what is left to do for it.

use crate::chain::{Chain, Memory};
use crate::frame::{Addresses, Frame};
use crate::offload::{Header, Plan, Work};
use crate::scratch::Scratch;
use sluice_virtio::Fault;

/// The beginning of a chain: a header, and of the frame what is looked at.
pub(crate) struct Start {
    bytes: [u8; Header::BYTES + Plan::START],
    /// Bytes of the frame that are here.
    seen: usize,
}

impl Start {
    /// Reads the header and the addresses of a frame that has some.
    pub fn read<M: Memory>(memory: &M, chain: &Chain) -> Result<Self, Fault> {
        let mut start = Self { bytes: [0; Header::BYTES + Plan::START], seen: Addresses::BYTES };
        chain.start(memory, &mut start.bytes[..Header::BYTES + Addresses::BYTES])?;
        Ok(start)
    }

    /// The beginning of the frame.
    pub fn frame(&self) -> &[u8] {
        &self.bytes[Header::BYTES..Header::BYTES + self.seen]
    }

    /// The addresses.
    pub fn addresses(&self) -> Addresses {
        Addresses::of(self.bytes[Header::BYTES..].first_chunk().unwrap_or(&[0; Addresses::BYTES]))
    }

    /// What its header asks for. The frame may have so many bytes, or its segments. `None`: it is no such frame as may be sent.
    pub fn plan<M: Memory>(
        &mut self,
        memory: &M,
        chain: &Chain,
        longest: u32,
    ) -> Result<Option<Option<Plan>>, Fault> {
        let header = Header::parse(self.bytes.first_chunk().unwrap_or(&[0; Header::BYTES]));
        if header.flags & Header::NEEDS_CSUM == 0 && header.gso_type == Header::GSO_NONE {
            return Ok((chain.len() <= longest).then_some(None));
        }
        // Not again what was checked.
        let seen = Plan::START.min(chain.len() as usize);
        chain.read_at(
            memory,
            self.seen as u32,
            &mut self.bytes[Header::BYTES + self.seen..Header::BYTES + seen],
        )?;
        self.seen = seen;
        Ok(Plan::new(&header, self.frame(), chain.len(), longest).ok().map(Some))
    }
}

/// A frame on its way.
pub(crate) struct Outgoing<'a> {
    pub chain: &'a Chain,
    /// What was checked of it.
    pub start: &'a [u8],
    /// What is left to do, if there is something.
    pub plan: Option<Plan>,
}

impl Outgoing<'_> {
    /// How many frames it is once that is done.
    pub fn count(&self) -> u32 {
        match self.plan.as_ref().map(Plan::work) {
            Some(Work::Segments(tso)) => tso.count(),
            _ => 1,
        }
    }

    /// The frame as it is, if a driver with these features does the rest itself.
    pub fn as_it_is<'m, M>(&'m self, memory: &'m M, features: u64) -> Option<Frame<'m, M>> {
        let header = match &self.plan {
            None => Header::default(),
            Some(plan) if plan.suits(features) => plan.pass(0),
            Some(_) => return None,
        };
        Some(Frame { start: self.start, rest: Some((memory, self.chain)), header })
    }

    /// Puts one of the frames together with which nothing is left to do.
    pub fn put_together<M: Memory>(&self, memory: &M, nth: u32, scratch: &mut Scratch) -> Result<(), Fault> {
        match self.plan.as_ref().map(Plan::work) {
            Some(Work::Segments(tso)) => scratch.take_segment(memory, self.chain, &tso.segment(nth)),
            work => scratch.take_whole(memory, self.chain, self.start, work),
        }
    }
}
