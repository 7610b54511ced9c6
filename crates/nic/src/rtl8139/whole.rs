//! A packet at once: taken from the C+ ring as it is, for who has a physical card finish it.
//!
//! Key type: [`Whole`]. [`Rtl8139::transmit`] puts a packet together, cuts it and sums it in software, whatever a driver thinks up. What drivers do
//! all the time is simpler: all descriptors of a packet are there when TPPoll is written, and it is TCP over IPv4 of which the card is to
//! put checksums in, or which it is to cut, or a frame of which nothing is left to be done. Such a packet is read off the ring
//! ([`Rtl8139::whole`]), its bytes are copied to where the physical card finds them ([`Rtl8139::gather`]), and its descriptors are done with
//! ([`Rtl8139::complete`]). Registers, descriptors and frames are then as they would have been the other way (`tests/whole.rs`). Everything else
//! is `None`, and nothing has happened.
//!
//! What is done to a packet, a card of this kind finds in its headers, and another kind is told. Either sees the headers that were read here:
//! they are copied once, and go out from the copy. In it a checksum holds what a card that is told where it is expects there: nothing, or the
//! pseudo-header's sum.
//!
//! Source: RTL8139C+(L) data sheet 1.6, section 6.2. Deviation from [`Rtl8139::transmit`]: none that a driver could notice; where QEMU's card
//! differs from it, see [`FIN`].

use super::Rtl8139;
use super::offload::{
    ETHERNET, IP_CHECKSUM, LARGE_SEND, SEGMENT, TCP, TCP_CHECKSUM, TCP_HEADER, UDP_CHECKSUM, pseudo_header,
    set_word, word,
};
use super::transmit::{DESCRIPTOR, Descriptor, END_OF_RING, ERRORS, FIRST, INSERT_TAG, LAST, OWN, RING};
use crate::checksum::fold;
use crate::dma::{BusMaster, Dma};
use crate::offload::{Checksum, Segments};
use crate::packets::{HEAD, Packets, Size};
use crate::{Budget, Offload};
use arrayvec::ArrayVec;

/// Most descriptors of a packet. Linux' driver uses one for the headers, and one for each of 17 pages.
pub const MOST_DESCRIPTORS: usize = 20;
/// Longest packet.
const MAX_LEN: usize = 0xffff;
/// Bytes of the longest headers: Ethernet, IPv4 and TCP with all their options.
const HEADERS: usize = ETHERNET + 60 + 60;
/// Descriptors that are read together.
const AHEAD: usize = 4;
/// TCP flag that says that this is the end. When QEMU's card cuts a packet it clears FIN, and PSH, in the headers that all segments
/// repeat, so that the last one lacks them, too (hw/net/rtl8139.c, `rtl8139_cplus_transmit_one`). A push is advice (RFC 9293, 3.9.1.2), and the last
/// segment goes to its receiver without it; an end that is lost is not sent again before a timer runs out. So such a packet is cut in software.
const FIN: u8 = 0x01;

/// A packet that lies whole in the ring.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Its descriptors, and where the first one and what follows the last one are.
    descriptors: ArrayVec<Descriptor, MOST_DESCRIPTORS>,
    first: u32,
    next: u32,
    /// There is nothing behind it.
    is_all: bool,
    /// The beginning of the packet as it is to be sent, if that was read: all its headers, and what lies behind them in the same buffer.
    start: ArrayVec<u8, HEADERS>,
    len: usize,
    frames: usize,
    offload: Offload,
}

impl Whole {
    /// Its length in bytes, [`HEAD`] to 65,535.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The frames that it becomes, 1 to [`MOST_SEGMENTS`](crate::offload::MOST_SEGMENTS).
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// What is left to be done to it.
    pub const fn offload(&self) -> &Offload {
        &self.offload
    }
}

impl Descriptor {
    /// Of its buffer.
    const fn bytes(self) -> usize {
        (self.status & 0xffff) as usize
    }
}

impl Packets for Rtl8139 {
    type Whole = Whole;

    fn has_packets(&self) -> bool {
        self.work.is_between_packets()
    }

    fn whole(&mut self, memory: &mut dyn Dma, budget: &mut Budget) -> Option<Whole> {
        let regs = &self.regs;
        let sends = regs.transmitting() && regs.sends_by_descriptor();
        if !sends || !self.has_packets() || regs.loopback() || !self.link() {
            return None;
        }
        let mut descriptors = ArrayVec::<Descriptor, MOST_DESCRIPTORS>::new();
        let mut next = regs.next_send;
        let mut len = 0;
        loop {
            let left = usize::from(self.work.polls()).min(MOST_DESCRIPTORS) - descriptors.len();
            let ready = AHEAD.min(left).min(u32::from(RING).checked_sub(next)? as usize);
            let mut bytes = [[0; DESCRIPTOR as usize]; AHEAD];
            let block = bytes.get_mut(..ready).filter(|block| !block.is_empty())?;
            budget.bytes(block.as_flattened().len());
            let at = regs.tnpds().wrapping_add(DESCRIPTOR.wrapping_mul(next.into()));
            memory.read(at, block.as_flattened_mut()).ok()?;
            for (index, bytes) in block.iter().enumerate() {
                let descriptor = Descriptor::new(bytes);
                let status = descriptor.status;
                if status & OWN == 0 && descriptors.is_empty() {
                    self.work.stop_polling();
                    return None;
                }
                if status & OWN == 0 || (status & FIRST != 0) != descriptors.is_empty() {
                    return None;
                }
                descriptors.try_push(descriptor).ok()?;
                len += descriptor.bytes();
                next = if status & END_OF_RING == 0 && next + 1 < u32::from(RING) { next + 1 } else { 0 };
                if status & LAST != 0 {
                    // What follows was read, too, as a card may that reads ahead: there need be no other look at it.
                    let after = block.get(index + 1).filter(|_| next != 0);
                    let is_all = after.is_some_and(|bytes| Descriptor::new(bytes).status & OWN == 0);
                    return self.describe(descriptors, (next, is_all), len, memory);
                }
                if next == 0 {
                    break;
                }
            }
        }
    }

    fn size(whole: &Whole) -> Size<'_> {
        Size { len: whole.len, frames: whole.frames, offload: &whole.offload }
    }

    fn gather(
        &self,
        memory: &mut dyn Dma,
        whole: &Whole,
        into: &mut [u8],
        budget: &mut Budget,
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        let mut known = whole.start.len();
        let Some(start) = into.get_mut(..known) else { return false };
        start.copy_from_slice(&whole.start);
        let mut asked = known >= HEAD;
        if asked && !into.first_chunk().is_some_and(&mut *accept) {
            return false;
        }
        let mut at = 0;
        for descriptor in &whole.descriptors {
            let end = at + descriptor.bytes();
            budget.bytes(descriptor.bytes());
            let Some(part) = into.get_mut(at + known..end) else { return false };
            if !part.is_empty() && memory.read(descriptor.buffer.wrapping_add(known as u64), part).is_err() {
                return false;
            }
            // All of them are in the first one.
            known = 0;
            at = end;
            if at >= HEAD && !asked {
                asked = true;
                if !into.first_chunk().is_some_and(&mut *accept) {
                    return false;
                }
            }
        }
        asked
    }

    fn complete(&mut self, memory: &mut dyn Dma, whole: &Whole, _: &[u8; HEAD], budget: &mut Budget) {
        let mut place = whole.first;
        for Descriptor { status, .. } in &whole.descriptors {
            budget.step();
            let at = self.regs.tnpds().wrapping_add(DESCRIPTOR.wrapping_mul(place.into()));
            let mut bus = BusMaster::new(memory, &mut self.refused);
            let done = bus.write(at, &(status & !OWN & !ERRORS).to_le_bytes());
            self.check(done);
            place = if status & END_OF_RING == 0 && place + 1 < u32::from(RING) { place + 1 } else { 0 };
        }
        (0..whole.frames).for_each(|_| budget.step());
        self.regs.next_send = whole.next;
        self.regs.tally.sent = self.regs.tally.sent.wrapping_add(1);
        self.work.take(whole.descriptors.len() as u8);
        if whole.is_all {
            self.work.stop_polling();
        }
    }
}

impl Rtl8139 {
    /// The packet of these descriptors, the last of which says what is to be done to it.
    fn describe(
        &self,
        descriptors: ArrayVec<Descriptor, MOST_DESCRIPTORS>,
        (next, is_all): (u32, bool),
        len: usize,
        memory: &mut dyn Dma,
    ) -> Option<Whole> {
        let (first, last) = (*descriptors.first()?, *descriptors.last()?);
        let mut start = ArrayVec::new();
        let mut offload = Offload::default();
        if last.vlan & INSERT_TAG != 0 {
            return None;
        }
        if last.status & (LARGE_SEND | IP_CHECKSUM | UDP_CHECKSUM | TCP_CHECKSUM) != 0 {
            let mut bytes = [0; HEADERS];
            let read = bytes.get_mut(..first.bytes().min(HEADERS))?;
            memory.read(first.buffer, read).ok()?;
            offload = finish(read, last.status, len)?;
            start.try_extend_from_slice(read).ok()?;
        }
        let frames = offload.frames(len).filter(|_| (HEAD..=MAX_LEN).contains(&len))?;
        Some(Whole { descriptors, first: self.regs.next_send, next, is_all, start, len, frames, offload })
    }
}

/// What is left to be done to a packet that begins with these bytes and has that length. Puts in what a checksum begins with. `None`: it is
/// not what its descriptor claims, or no other card does the same.
fn finish(bytes: &mut [u8], status: u32, len: usize) -> Option<Offload> {
    let (ethernet, packet) = bytes.split_at_mut_checked(ETHERNET)?;
    let ip_header = usize::from(packet.first()? & 0x0f) * 4;
    let (header, tcp) = packet.split_at_mut_checked(ip_header)?;
    let is_ipv4 = ethernet.ends_with(&[0x08, 0x00]) && ip_header >= 20 && header.first()? >> 4 == 4;
    let total = usize::from(word(header, 2)?);
    if !is_ipv4 || *header.get(9)? != TCP || total + ETHERNET != len {
        return None;
    }
    let tcp_header = usize::from(tcp.get(12)? >> 4) * 4;
    let end = ETHERNET + ip_header + tcp_header;
    if tcp_header < TCP_HEADER || tcp.len() < tcp_header {
        return None;
    }
    let cut = status & LARGE_SEND != 0;
    if cut && *tcp.get(13)? & FIN != 0 {
        return None;
    }
    let (ip, transport) = (ETHERNET as u8, (ETHERNET + ip_header) as u8);
    let sums_ip = cut || status & IP_CHECKSUM != 0;
    let sums_tcp = cut || status & TCP_CHECKSUM != 0;
    let offload = Offload {
        ip: sums_ip.then_some(Checksum { start: ip, offset: ip + 10, end: u16::from(transport) - 1 }),
        transport: sums_tcp.then_some(Checksum { start: transport, offset: transport + 16, end: 0 }),
        segments: cut.then_some(Segments {
            header: end as u8,
            payload: (status >> 16) as u16 & SEGMENT,
            ip,
            transport,
            ipv4: true,
            tcp: true,
        }),
        is_in_headers: true,
    };
    if sums_ip {
        set_word(header, 10, 0)?;
    }
    if sums_tcp {
        // Without a length where the card cuts.
        let length = if cut { 0 } else { total - ip_header };
        set_word(tcp, 16, fold(pseudo_header(header, length)?))?;
    }
    Some(offload)
}
