//! A frame that a VIF sends, with what is left to do for it.

use crate::chain::{Chain, Memory};
use crate::frame::{Addresses, Frame};
use crate::offload::{Header, Plan, Work};
use crate::scratch::{self, Scratch};
use crate::wire::{Given, Wire};
use sluice_nic::Offload;
use sluice_virtio::Fault;

/// The beginning of a chain: a header, and of the frame what is looked at.
pub(crate) struct Start {
    bytes: [u8; Header::BYTES + Plan::START],
    /// Bytes of the frame that are here.
    seen: usize,
}

impl Start {
    /// Of no frame yet.
    pub const fn new() -> Self {
        Self { bytes: [0; Header::BYTES + Plan::START], seen: 0 }
    }

    /// Reads the header and the addresses of a frame that has some.
    pub fn read<M: Memory>(&mut self, memory: &M, chain: &Chain) -> Result<(), Fault> {
        self.seen = Addresses::BYTES;
        chain.start(memory, &mut self.bytes[..Header::BYTES + Addresses::BYTES])
    }

    /// The beginning of the frame.
    pub fn frame(&self) -> &[u8] {
        &self.bytes[Header::BYTES..Header::BYTES + self.seen]
    }

    /// The addresses.
    pub fn addresses(&self) -> Addresses {
        Addresses::of(self.bytes[Header::BYTES..].first_chunk().unwrap_or(&[0; Addresses::BYTES]))
    }

    /// Reads all that is looked at of a frame, and not again what was read before.
    pub fn look<M: Memory>(&mut self, memory: &M, chain: &Chain) -> Result<(), Fault> {
        let seen = Plan::START.min(chain.len() as usize);
        let rest = &mut self.bytes[Header::BYTES + self.seen..Header::BYTES + seen];
        if !rest.is_empty() {
            chain.read_at(memory, self.seen as u32, rest)?;
        }
        self.seen = seen;
        Ok(())
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
        self.look(memory, chain)?;
        Ok(Plan::new(&header, self.frame(), chain.len(), longest).ok().map(Some))
    }
}

/// What became of frames for the wire.
pub(crate) enum Put {
    /// They are on it.
    Done {
        /// How many.
        frames: u32,
        /// Bytes of all.
        bytes: u32,
    },
    /// There is no room now.
    Full,
    /// They are not to be sent.
    Refused,
}

/// A frame on its way.
pub(crate) struct Outgoing<'a> {
    /// Where its sender has it. `None`: all of it is in `start`.
    pub chain: Option<&'a Chain>,
    /// What was checked of it.
    pub start: &'a [u8],
    /// What is left to do, if there is something.
    pub plan: Option<Plan>,
}

impl Outgoing<'_> {
    /// Bytes.
    pub fn len(&self) -> u32 {
        self.chain.map_or(self.start.len() as u32, Chain::len)
    }

    /// Bytes of the longest frame once that is done.
    pub fn longest(&self) -> u32 {
        match self.plan.as_ref().map(Plan::work) {
            Some(Work::Segments(tso)) => tso.segment_bytes().min(self.len()),
            _ => self.len(),
        }
    }

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
        Some(Frame { start: self.start, rest: self.chain.map(|chain| (memory, chain)), header })
    }

    /// Puts one of the frames together with which nothing is left to do.
    pub fn put_together<M: Memory>(&self, memory: &M, nth: u32, scratch: &mut Scratch) -> Result<(), Fault> {
        match self.plan.as_ref().map(Plan::work) {
            Some(Work::Segments(tso)) => {
                scratch.take_segment(memory, self.chain.ok_or(Fault)?, &tso.segment(nth))
            }
            work => scratch.take_whole(memory, self.chain, self.start, work),
        }
    }

    /// Puts one of the frames on the wire, or as many of those that follow it as a turn of so many bytes takes and the card makes itself,
    /// with the tag of a VLAN.
    pub fn put_on<M: Memory>(
        &self,
        wire: &mut dyn Wire,
        memory: &M,
        vlan: Option<u16>,
        (nth, turn): (u32, u32),
        scratch: &mut Scratch,
    ) -> Result<Put, Fault> {
        match self.hand(wire, memory, vlan, (nth, turn))? {
            (Given::Sent, frames, bytes) => return Ok(Put::Done { frames, bytes }),
            (Given::Full, ..) => return Ok(Put::Full),
            (Given::Never, ..) => {}
        }
        self.put_together(memory, nth, scratch)?;
        let Some(frame) = scratch.tagged(vlan) else { return Ok(Put::Refused) };
        let bytes = frame.len() as u32;
        Ok(if wire.send(frame) { Put::Done { frames: 1, bytes } } else { Put::Full })
    }

    /// Has the card make frames of this one, from one on, if it can. Returns how many they are, and the bytes of all.
    fn hand<M: Memory>(
        &self,
        wire: &mut dyn Wire,
        memory: &M,
        vlan: Option<u16>,
        (nth, turn): (u32, u32),
    ) -> Result<(Given, u32, u32), Fault> {
        let tag = vlan.map(scratch::tag);
        let tag = tag.as_slice().as_flattened();
        let behind = tag.len() as u32;
        let work = self.plan.as_ref().map(Plan::work);
        // Bytes and frames of the packet, and bytes that each frame but the first repeats.
        let (bytes, frames, repeated, offload) = match work {
            Some(Work::Segments(tso)) => {
                let most = turn.div_ceil(tso.segment_bytes() + behind);
                let frames = most.clamp(1, tso.most_together(nth).max(1));
                (tso.bytes_together(nth, frames), frames, tso.header_bytes() + behind, tso.offload(behind))
            }
            Some(Work::Checksum(checksum)) => {
                let Some(offload) = checksum.offload(behind) else { return Ok((Given::Never, 0, 0)) };
                (self.len(), 1, 0, offload)
            }
            _ => (self.len(), 1, 0, Offload::default()),
        };
        let len = bytes + behind;
        let mut filled = Ok(());
        let given = wire.send_packet(len as usize, &offload, &mut |into| {
            filled = match work {
                Some(Work::Segments(tso)) => {
                    let together = tso.together(nth, frames);
                    self.fill(memory, together.headers(), tag, together.payload.start, into)
                }
                _ => self.fill(memory, self.start, tag, self.start.len() as u32, into),
            };
            filled.is_ok()
        });
        filled?;
        Ok((given, frames, len + (frames - 1) * repeated))
    }

    /// Headers, with a tag behind the addresses, and of the frame what comes after so many bytes.
    fn fill<M: Memory>(
        &self,
        memory: &M,
        headers: &[u8],
        tag: &[u8],
        after: u32,
        into: &mut [u8],
    ) -> Result<(), Fault> {
        let (addresses, headers) = headers.split_at_checked(scratch::TAG).ok_or(Fault)?;
        let mut rest = into;
        for part in [addresses, tag, headers] {
            let (place, after) = rest.split_at_mut_checked(part.len()).ok_or(Fault)?;
            place.copy_from_slice(part);
            rest = after;
        }
        self.chain.map_or(Ok(()), |chain| chain.read_at(memory, after, rest))
    }
}
