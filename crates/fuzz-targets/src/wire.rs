//! The card behind a network of virtual interfaces, which checks what is put on it; and what the targets of such networks have in common.

use crate::Input;
use sluice_nic::Offload;
use sluice_vif::{Attributes, Filter, Given, Mac, Outcome, VifId, VifSet, Wire};

/// Address of a guest.
pub fn mac(nth: usize) -> Mac {
    [2, 0, 0, 0, 0, nth as u8]
}

/// What is set of a guest's interface.
pub fn attributes(nth: usize, input: &mut Input<'_>) -> Attributes {
    Attributes {
        mac: mac(nth),
        share: input.u8(),
        limit: input.flag().then(|| u64::from(input.u32())),
        vlan: input.choose(&[None, None, Some(5)]),
        mtu: input.choose(&[1500, 600, 9000]),
        moderation: input.choose(&[0, 1]),
        filter: filter(nth),
    }
}

/// The guest that has addresses. Others say what they like.
const HELD: usize = 2;

/// What a guest may say.
fn filter(nth: usize) -> Filter {
    const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    Filter::new(if nth == HELD { &[MAPPED, [0xfd; 16]] } else { &[] })
}

/// Bytes of the longest frame that the card carries.
pub const LONGEST: u32 = 1518;

/// Asserts that a frame of one of so many guests may be on the wire.
pub fn check_frame(frame: &[u8], guests: usize) {
    assert!((14..=LONGEST as usize).contains(&frame.len()), "no frame is put on the wire");
    check_addresses(frame, guests);
}

/// The same of its addresses.
pub fn check_addresses(frame: &[u8], guests: usize) {
    assert!((0..guests).any(|nth| frame[6..12] == mac(nth)), "a frame of nobody's is put on the wire");
    assert!(frame[..6] != frame[6..12], "a frame to its sender is put on the wire");
    if frame[6..12] == mac(HELD) {
        let tag = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
        let plain = [&frame[..12], &frame[12 + tag..]].concat();
        assert!(filter(HELD).allows(mac(HELD), &plain), "a frame in the name of another is put on the wire");
    }
}

/// Brings frames from the wire. Returns how many.
pub fn bring(input: &mut Input<'_>, checked: bool, take: &mut dyn FnMut(&[u8], bool)) -> usize {
    let count = input.u8() % 3;
    for _ in 0..count {
        let mut frame = vec![0; usize::from(input.u16() % 1600)];
        let start = input.bytes(frame.len().min(20));
        frame[..start.len()].copy_from_slice(start);
        take(&frame, checked);
    }
    count.into()
}

/// Asserts that only VIFs are signalled, or broken, that are there.
pub fn check_signals(outcomes: &[Outcome], there: &[VifId]) {
    for Outcome { sent, received, broken, .. } in outcomes {
        let sets = [*sent, *received, *broken];
        assert!(sets.into_iter().flat_map(VifSet::iter).all(|id| there.contains(&id)));
    }
}

/// A card whose network has so many guests.
pub struct Card<'a, 'd> {
    pub input: &'a mut Input<'d>,
    pub guests: usize,
    pub busy: bool,
    /// It finishes packets.
    pub cuts: bool,
}

impl Wire for Card<'_, '_> {
    fn longest(&self) -> u32 {
        LONGEST
    }

    fn tells(&self) -> bool {
        true
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        check_frame(frame, self.guests);
        !self.busy
    }

    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given {
        if !self.cuts || offload.frames(len).is_none() {
            return Given::Never;
        }
        if self.busy {
            return Given::Full;
        }
        let mut packet = vec![0; len];
        if fill(&mut packet) {
            check_addresses(&packet, self.guests);
        }
        Given::Sent
    }

    fn receive(&mut self, _: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        bring(self.input, self.cuts, take)
    }

    fn flush(&mut self) {}
}
