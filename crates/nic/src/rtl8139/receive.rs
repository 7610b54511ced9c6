//! Receiving: the address filter, the ring of C mode, and the C+ descriptor ring.
//!
//! Sources: RTL8139C(L) data sheet 1.4, sections 5.1-5.4 (packet header), 5.11 and 8; RTL8139C+(L) data sheet 1.6,
//! section 6.1 (receive descriptors). Deviations: see the crate's card.

use super::MIN_FRAME;
use super::Rtl8139;
use super::crc::frame_check;
use super::registers::{CplusCommand, Interrupt, Receive};
use super::transmit::{DESCRIPTOR, Descriptor, END_OF_RING, FIRST, LAST, OWN};
use crate::dma::{BusMaster, Dma};
use crate::hash::multicast_index;

/// Bytes that the card may write after a ring with RCR.WRAP, and a driver must have there (section 5.11).
pub const OVERRUN: u32 = 1536;
/// Bytes of the header before each frame in the ring.
const HEADER: usize = 4;
/// Bytes of the check sequence.
const CRC: usize = 4;
/// A ring that is not empty takes frames while it has this much room.
const ROOM: u32 = 1514;
/// Bytes before a VLAN tag.
const ADDRESSES: usize = 12;
/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// Header of the ring, and shifted by 11 status of a descriptor: multicast.
const MULTICAST: u32 = 0x8000;
/// The station's address.
const STATION: u32 = 0x4000;
/// Broadcast.
const BROADCAST: u32 = 0x2000;
/// Header of the ring: intact.
const INTACT: u32 = 0x0001;
/// Descriptor: bytes of its buffer; afterwards, of the frame and its CRC.
const SIZE: u32 = 0x1fff;
/// Second word of a descriptor: a tag was taken out.
const TAG_TAKEN: u32 = 1 << 16;

/// What became of a frame offered to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// In memory, ROK raised.
    Stored,
    /// Not for this card.
    Filtered,
    /// No room in the ring of C mode, RXOVW raised; it may be offered again once CAPR was written.
    Full,
    /// No descriptor, or one too small, in C+ mode; RDU raised. Lost.
    Missed,
    /// The receiver is off, has no ring, or there is no link. Lost.
    Stopped,
}

impl Rtl8139 {
    /// A frame should be offered now: the ring of C mode has room for a common one, or the driver wants to hear of
    /// overflows, or what is offered gets lost anyway.
    pub const fn has_room(&self) -> bool {
        let regs = &self.regs;
        let available = regs.available();
        !regs.running
            || !regs.receiving()
            || regs.receives_by_descriptor() && regs.rdsar != 0
            || available == 0
            || available >= ROOM
            || regs.imr & Interrupt::OVERFLOW.bits() != 0
    }

    /// Offers a frame (without CRC) to the receiver.
    pub fn receive(&mut self, frame: &[u8], memory: &mut dyn Dma) -> Reception {
        self.receive_with_fcs(frame, None, memory)
    }

    /// The same, where a card that took it from the wire said what its frame check sequence is: that need not be computed.
    pub fn receive_with_fcs(&mut self, frame: &[u8], fcs: Option<u32>, memory: &mut dyn Dma) -> Reception {
        if !self.regs.running || !self.regs.receiving() || !self.regs.link() {
            return Reception::Stopped;
        }
        let (short, mut padded) = (frame, [0; MIN_FRAME]);
        let frame = if frame.len() < MIN_FRAME {
            padded.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
            &padded
        } else {
            frame
        };
        let Some(kind) = self.filter(frame) else {
            let errors = &mut self.regs.tally.receive_errors;
            *errors = errors.wrapping_add(1);
            return Reception::Filtered;
        };
        // Whoever padded it here has another one.
        let fcs = fcs.filter(|_| short.len() >= MIN_FRAME);
        let reception = if !self.regs.receives_by_descriptor() {
            self.receive_to_ring(frame, fcs, kind, memory)
        } else if self.regs.rdsar != 0 {
            // In C+ mode the check is of the frame without padding.
            let check = fcs.unwrap_or_else(|| frame_check(short));
            self.receive_to_descriptor(frame, check, kind, memory)
        } else {
            // Linux turns the receiver on before it gives it a ring.
            Reception::Stopped
        };
        match reception {
            Reception::Stored => self.regs.isr |= Interrupt::RECEIVED.bits(),
            Reception::Full | Reception::Missed => {
                self.regs.isr |= Interrupt::OVERFLOW.bits();
                self.regs.mpc = self.regs.mpc.wrapping_add(1);
            }
            Reception::Filtered | Reception::Stopped => {}
        }
        reception
    }

    /// What kind of address the frame has, if RCR wants it; counts it. Who wants all gets no kind.
    fn filter(&mut self, frame: &[u8]) -> Option<u32> {
        let destination = frame.first_chunk::<6>()?;
        let rcr = Receive::from_bits_retain(self.regs.rcr);
        let tally = &mut self.regs.tally;
        if rcr.contains(Receive::ALL) {
            return Some(0);
        }
        if *destination == [0xff; 6] {
            rcr.contains(Receive::BROADCAST).then(|| {
                tally.broadcasts = tally.broadcasts.wrapping_add(1);
                BROADCAST
            })
        } else if destination[0] & 1 != 0 {
            let index = multicast_index(destination);
            let row = self.regs.mar.get(usize::from(index >> 3)).copied().unwrap_or(0);
            (rcr.contains(Receive::MULTICAST) && row & 1 << (index & 7) != 0).then(|| {
                tally.multicasts = tally.multicasts.wrapping_add(1);
                MULTICAST
            })
        } else {
            (rcr.contains(Receive::STATION) && *destination == self.regs.idr).then(|| {
                tally.station = tally.station.wrapping_add(1);
                STATION
            })
        }
    }

    /// C mode: header, frame and CRC go into the ring, the next frame starts at a multiple of four.
    fn receive_to_ring(
        &mut self,
        frame: &[u8],
        fcs: Option<u32>,
        kind: u32,
        memory: &mut dyn Dma,
    ) -> Reception {
        let regs = &mut self.regs;
        let (ring, available) = (regs.ring_len(), regs.available());
        let needed = HEADER + frame.len() + CRC;
        let Ok(needed) = u32::try_from(needed.next_multiple_of(4)) else { return Reception::Full };
        // An empty ring counts as 0 available. The card itself asks no more than this.
        let full = available != 0 && needed >= available;
        let at = regs.write_at & (ring - 1);
        let end = at.saturating_add(needed);
        if full || needed > ring || regs.overruns() && end > ring + OVERRUN {
            return Reception::Full;
        }
        let header = kind | INTACT | ((frame.len() + CRC) as u32) << 16;
        let mut ring = Ring {
            bus: BusMaster::new(memory, &mut self.refused),
            start: regs.rbstart,
            len: ring,
            at,
            overruns: regs.overruns(),
            done: true,
        };
        ring.write(&header.to_le_bytes());
        ring.write(frame);
        ring.write(&fcs.unwrap_or_else(|| frame_check(frame)).to_le_bytes());
        let done = ring.done;
        regs.write_at = ring.at.next_multiple_of(4) & (ring.len - 1);
        self.check(done);
        Reception::Stored
    }

    /// C+ mode: the frame goes into the buffer of the next descriptor, all of it.
    fn receive_to_descriptor(
        &mut self,
        frame: &[u8],
        check: u32,
        kind: u32,
        memory: &mut dyn Dma,
    ) -> Reception {
        let regs = &mut self.regs;
        let at = regs.rdsar.wrapping_add(DESCRIPTOR.wrapping_mul(regs.next_receive.into()));
        let mut bus = BusMaster::new(memory, &mut self.refused);
        let descriptor = Descriptor::read(at, &mut bus);
        let tagged = regs.cpcr & CplusCommand::VLAN.bits() != 0 && frame.get(12..14) == Some(&[0x81, 0x00]);
        let size = if tagged { (frame.len() - TAG).max(MIN_FRAME) } else { frame.len() };
        let room = |it: &Descriptor| it.status & OWN != 0 && size + CRC <= (it.status & SIZE) as usize;
        let Some(Descriptor { status, mut vlan, buffer }) = descriptor.filter(room) else {
            regs.tally.receive_errors = regs.tally.receive_errors.wrapping_add(1);
            regs.tally.missed = regs.tally.missed.wrapping_add(1);
            self.check(descriptor.is_some());
            return Reception::Missed;
        };
        let mut done = true;
        let mut filled = 0;
        let mut append = |bytes: &[u8]| {
            if !bytes.is_empty() {
                done &= bus.write(buffer.wrapping_add(filled), bytes);
            }
            filled = filled.wrapping_add(bytes.len() as u64);
        };
        if tagged {
            let (addresses, rest) = frame.split_at_checked(ADDRESSES).unwrap_or((frame, &[]));
            let rest = rest.get(TAG..).unwrap_or(&[]);
            append(addresses);
            append(rest);
            append([0; TAG].get(..size.saturating_sub(addresses.len() + rest.len())).unwrap_or(&[]));
            let tag = frame.get(14..).and_then(|tag| tag.first_chunk()).copied().unwrap_or([0; 2]);
            vlan = vlan & !0xffff | TAG_TAKEN | u32::from(u16::from_le_bytes(tag));
        } else {
            append(frame);
            vlan &= !TAG_TAKEN;
        }
        append(&check.to_le_bytes());
        // The kinds are bits 24-26 here, in the same order.
        let status = status & !OWN & !SIZE | FIRST | LAST | kind << 11 | (size + CRC) as u32;
        // Together: a driver that sees OWN gone sees the tag.
        let report = u64::from(status) | u64::from(vlan) << 32;
        done &= bus.write(at, &report.to_le_bytes());
        regs.tally.received = regs.tally.received.wrapping_add(1);
        regs.next_receive = if status & END_OF_RING != 0 { 0 } else { regs.next_receive.wrapping_add(1) };
        self.check(done);
        Reception::Stored
    }
}

/// The ring of C mode while a frame is put in.
struct Ring<'a> {
    bus: BusMaster<'a>,
    start: u32,
    len: u32,
    /// Where the next byte goes; may be past the end until the frame is complete.
    at: u32,
    overruns: bool,
    done: bool,
}

impl Ring<'_> {
    fn write(&mut self, bytes: &[u8]) {
        let before_end = self.len.saturating_sub(self.at) as usize;
        if self.overruns || bytes.len() <= before_end {
            self.put(bytes);
        } else {
            let (first, rest) = bytes.split_at_checked(before_end).unwrap_or((bytes, &[]));
            self.put(first);
            self.at = 0;
            self.put(rest);
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            // The card puts out 32 address bits.
            let address = u64::from(self.start.wrapping_add(self.at));
            self.done &= self.bus.write(address, bytes);
            self.at = self.at.wrapping_add(bytes.len() as u32);
        }
    }
}
