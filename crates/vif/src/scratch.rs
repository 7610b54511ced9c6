//! A place where frames are put together that leave as another than they came.

use crate::chain::{Chain, Memory};
use crate::offload::{Field, Segment, Sum, Work};
use alloc::boxed::Box;
use core::ops::Range;
use sluice_virtio::Fault;

/// Bytes of the longest frame, with a tag: what Ethernet has cards carry that take more than 1,500 bytes.
pub(crate) const LONGEST: usize = 9018;
/// Offset of a VLAN tag, its bytes, and its first half.
pub(crate) const TAG: usize = 12;
pub(crate) const TAG_BYTES: usize = 4;
pub(crate) const TAGGED: [u8; 2] = [0x81, 0x00];

/// The tag of a VLAN.
pub(crate) const fn tag(vlan: u16) -> [u8; TAG_BYTES] {
    let ([t0, t1], [v0, v1]) = (TAGGED, vlan.to_be_bytes());
    [t0, t1, v0, v1]
}

/// The place. The frame begins behind room for a tag.
pub(crate) struct Scratch {
    bytes: Box<[u8; TAG_BYTES + LONGEST]>,
    len: usize,
}

impl Scratch {
    pub fn new() -> Self {
        Self { bytes: Box::new([0; TAG_BYTES + LONGEST]), len: 0 }
    }

    /// Has the frame put here, of as many bytes as `put` says.
    pub fn fill(&mut self, put: impl FnOnce(&mut [u8]) -> usize) {
        self.len = put(&mut self.bytes[TAG_BYTES..]).min(LONGEST);
    }

    /// The frame, without a tag.
    pub fn plain(&self) -> &[u8] {
        &self.bytes[TAG_BYTES..TAG_BYTES + self.len]
    }

    /// The frame, with the tag of a VLAN. `None`: it is too long with it. What [`Self::plain`] says is lost.
    pub fn tagged(&mut self, vlan: Option<u16>) -> Option<&[u8]> {
        let Some(vlan) = vlan else { return Some(self.plain()) };
        if self.len + TAG_BYTES > LONGEST {
            return None;
        }
        self.bytes.copy_within(TAG_BYTES..TAG_BYTES + TAG, 0);
        self.bytes[TAG..TAG + TAG_BYTES].copy_from_slice(&tag(vlan));
        Some(&self.bytes[..self.len + TAG_BYTES])
    }

    /// Takes a frame that has a tag. It has none from then on.
    pub fn untag(&mut self, frame: &[u8]) {
        let (addresses, rest) = frame.split_at(TAG);
        let rest = &rest[TAG_BYTES..];
        self.len = TAG + rest.len();
        self.bytes[TAG_BYTES..TAG_BYTES + TAG].copy_from_slice(addresses);
        self.bytes[TAG_BYTES + TAG..TAG_BYTES + self.len].copy_from_slice(rest);
    }

    fn range(&mut self, range: Range<usize>) -> &mut [u8] {
        self.bytes.get_mut(TAG_BYTES + range.start..TAG_BYTES + range.end).unwrap_or_default()
    }

    fn set(&mut self, Field { at, bytes }: Field) {
        let at = at as usize;
        self.range(at..at + 2).copy_from_slice(&bytes);
    }

    /// Takes a whole frame of at most [`LONGEST`] bytes that begins as was checked, and completes its checksum.
    pub fn take_whole<M: Memory>(
        &mut self,
        memory: &M,
        chain: Option<&Chain>,
        start: &[u8],
        work: Option<&Work>,
    ) -> Result<(), Fault> {
        self.len = chain.map_or(start.len(), |chain| chain.len() as usize).min(LONGEST);
        let (all, first) = (self.len, start.len().min(self.len));
        if let Some(chain) = chain {
            chain.read_at(memory, first as u32, self.range(first..all))?;
        }
        self.range(0..first).copy_from_slice(&start[..first]);
        if let Some(Work::Checksum(checksum)) = work {
            let Range { start, end } = checksum.range();
            let mut sum = Sum::new();
            // It is summed up as it was copied.
            sum.add(self.range(start as usize..end as usize));
            self.set(checksum.finish(sum));
        }
        Ok(())
    }

    /// Takes a segment of a frame.
    pub fn take_segment<M: Memory>(
        &mut self,
        memory: &M,
        chain: &Chain,
        segment: &Segment,
    ) -> Result<(), Fault> {
        self.len = (segment.bytes() as usize).min(LONGEST);
        let (first, all) = (segment.header_len, self.len);
        self.range(0..first).copy_from_slice(segment.headers());
        chain.read_at(memory, segment.payload.start, self.range(first..all))?;
        let mut sum = Sum::new();
        sum.add(self.range(first..all));
        self.set(segment.finish(sum));
        Ok(())
    }
}
