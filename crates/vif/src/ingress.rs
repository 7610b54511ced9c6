//! What an engine takes from the wire.

use crate::chain::Memory;
use crate::engine::Engine;
use crate::frame::{Addresses, Frame};
use crate::offload::Header;
use crate::scratch::{LONGEST, TAG, TAGGED};
use crate::stream::{Part, STREAMS, Stream, WANTED};
use crate::wire::Wire;
use crate::{Mac, VifId, feature};
use sluice_switch::{is_for_the_link, is_group};

/// Frames that come from the wire between two turns.
const TURN: usize = 32;

impl<M: Memory> Engine<M> {
    /// Takes what has come from the wire, up to [`TURN`] frames. Returns whether there may be more.
    pub(crate) fn take_from(&mut self, wire: &mut dyn Wire) -> bool {
        let count = wire.receive(TURN, &mut |frame, checked| {
            if !self.take_in(frame, checked) {
                self.unclaimed += 1;
            }
        });
        (0..STREAMS).for_each(|slot| self.hand_stream(slot));
        count >= TURN
    }

    /// A frame from the wire. Returns whether it is for anybody.
    fn take_in(&mut self, frame: &[u8], checked: bool) -> bool {
        let Some(start) = frame.first_chunk::<{ Addresses::BYTES }>() else { return false };
        let Addresses { to, from, .. } = Addresses::of(start);
        if is_for_the_link(frame, to) || frame.len() > LONGEST || self.directory.find(from).is_some() {
            return false;
        }
        if start[TAG..] != TAGGED {
            return self.put(to, None, frame, checked);
        }
        let Some(&[high, low]) = frame.get(TAG + 2..TAG + 4) else { return false };
        let vlan = u16::from_be_bytes([high, low]) & 0xfff;
        // The VIF sees no tag.
        let Some(mut scratch) = self.scratch.take() else { return false };
        scratch.untag(frame);
        let claimed = self.put(to, Some(vlan).filter(|vlan| *vlan != 0), scratch.plain(), checked);
        self.scratch = Some(scratch);
        claimed
    }

    fn put(&mut self, to: Mac, vlan: Option<u16>, frame: &[u8], checked: bool) -> bool {
        if is_group(to) {
            for id in self.shared.live().iter() {
                if self.directory.is_in(id, vlan) && self.fits(id, frame) {
                    self.hand_stream(id.index() % STREAMS);
                    self.deliver(id, &Frame::plain(frame));
                }
            }
            return true;
        }
        let target = self.directory.find_in(to, vlan);
        target.is_some_and(|target| {
            if self.fits(target, frame) {
                self.put_together(target, frame, checked);
            }
            true
        })
    }

    /// Whether a frame is not too long for a VIF, which else loses it.
    fn fits(&self, id: VifId, frame: &[u8]) -> bool {
        let fits = !self.directory.is_too_long(id, frame.len() as u32);
        if !fits {
            self.lose(id);
        }
        fits
    }

    /// To one VIF, together with what comes before and after it, if its driver takes that.
    fn put_together(&mut self, target: VifId, frame: &[u8], checked: bool) {
        let slot = target.index() % STREAMS;
        let features = self.directory.features(target);
        let takes = features & WANTED == WANTED;
        let part = if takes { Part::of(frame, checked) } else { None };
        let add = |streams: &mut [Stream]| part.is_some_and(|part| streams[slot].add(part, target));
        if add(&mut self.streams) {
            return;
        }
        // In the order in which they came.
        let was_empty = self.streams[slot].is_empty();
        self.hand_stream(slot);
        if !was_empty && add(&mut self.streams) {
            return;
        }
        let flags = if checked && features & feature::GUEST_CSUM != 0 { Header::DATA_VALID } else { 0 };
        let header = Header { flags, ..Header::default() };
        self.deliver(target, &Frame { header, ..Frame::plain(frame) });
    }

    /// Hands over what was put together.
    fn hand_stream(&mut self, slot: usize) {
        if self.streams[slot].is_empty() {
            return;
        }
        let mut stream = core::mem::take(&mut self.streams[slot]);
        if let Some((target, frame)) = stream.take() {
            self.deliver(target, &frame);
        }
        self.streams[slot] = stream;
    }
}
