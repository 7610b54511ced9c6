//! How the hypervisor itself drives a network card: just enough to put frames on the wire and take all from it.
//!
//! Key types: [`Uplink`], which each driver implements, and [`Transmit`], how it sends; [`Queue`], what it gives away to send by; [`Card`], the way to the hardware: registers
//! ([`RawDevice`]) and, for bus masters, memory of the hypervisor's ([`DmaMemory`]). [`for_device`] finds the driver of a card.
//! Neighbours: `sluice_emulated` puts a switch and guests' software cards before an uplink; `sluice_vpio` works the
//! same NE2000 with the same ring while guests share it.
//!
//! A card is believed no more than a guest: whatever it writes into memory, or leaves in its own, is checked for
//! length and place before it is used. What makes no sense is dropped and counted, and the receiver begins anew. The
//! work of each call is bounded.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod e1000;
pub mod ne2000;
mod places;
pub mod rtl8139;
pub mod virtio;

use alloc::boxed::Box;
use alloc::vec::Vec;
use sluice_nic::Offload;

/// Bytes of the shortest frame a driver sends: two addresses and a type. It pads to [`MIN_PADDED`].
pub const MIN_FRAME: usize = 14;
/// Shorter frames are padded to this with zeros (IEEE 802.3, 4.2.8, less the CRC).
pub const MIN_PADDED: usize = 60;
/// Bytes of the longest frame without CRC, with a VLAN tag, unless a card is [stretched](Uplink::stretch).
pub const MAX_FRAME: usize = 1518;

/// The registers of a physical device. Offsets are relative to its port range or its memory BAR, widths are 1, 2 or
/// 4 bytes.
pub trait RawDevice {
    /// One read.
    fn read(&mut self, offset: u16, width: u8) -> u32;
    /// One write.
    fn write(&mut self, offset: u16, width: u8, value: u32);

    /// One read of a byte.
    fn read_byte(&mut self, offset: u16) -> u8 {
        self.read(offset, 1) as u8
    }

    /// One write of a byte.
    fn write_byte(&mut self, offset: u16, value: u8) {
        self.write(offset, 1, u32::from(value));
    }

    /// Reads one register repeatedly until `into` is full; its length is a multiple of `width`.
    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        for element in into.chunks_mut(usize::from(width).max(1)) {
            let value = self.read(offset, width).to_le_bytes();
            element.iter_mut().zip(value).for_each(|(to, from)| *to = from);
        }
    }

    /// Writes all of `from` to one register; its length is a multiple of `width`.
    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        for element in from.chunks(usize::from(width).max(1)) {
            let mut value = [0; 4];
            value.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
            self.write(offset, width, u32::from_le_bytes(value));
        }
    }
}

/// Memory of the hypervisor's that a bus-master card reaches, in one piece. The card may change it at any time.
/// What is written here before a register is, the card sees.
pub trait DmaMemory {
    /// Where the card finds the first byte: a multiple of 4096, and all of it below 4 GiB.
    fn bus(&self) -> u32;
    /// Copies out; `into` is left alone where it is not all inside.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Copies in; nothing where it is not all inside.
    fn write(&mut self, offset: usize, bytes: &[u8]);
    /// Shows `act` so many bytes as they are, which the card neither reads nor writes meanwhile unless it is broken: what they say may
    /// then be anything, but not how many they are. What `act` says; false where they are not all inside.
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool;
    /// Whether [`Self::bus`] is an address only by an IOMMU: a card that goes past it must not be given one.
    fn is_translated(&self) -> bool {
        false
    }
}

/// No memory, for cards that master no bus.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl DmaMemory for NoMemory {
    fn bus(&self) -> u32 {
        0
    }
    fn read(&self, _: usize, _: &mut [u8]) {}
    fn write(&mut self, _: usize, _: &[u8]) {}
    fn with(&mut self, _: usize, _: usize, _: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        false
    }
}

/// The way to the hardware, for the time of one call.
pub struct Card<'a> {
    /// Its registers.
    pub registers: &'a mut dyn RawDevice,
    /// [`Uplink::memory`] bytes that it reaches.
    pub memory: &'a mut dyn DmaMemory,
}

/// What became of a frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The card has it.
    Done,
    /// The card is busy. It interrupts when it is not, and the next [`Uplink::poll`] may be followed by another try.
    Full,
    /// It is no frame that the card carries: not 14 to 1518 bytes, or what it was [stretched](Uplink::stretch) to.
    Refused,
}

/// Where the bytes of a packet are to be put that the card finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here, in [`Card::memory`].
    At(usize),
    /// There is no room now. [`Transmit::await_room`] has the card tell when there is.
    Full,
    /// This card does not finish such a packet.
    Never,
}

impl Place {
    /// Where, if it is anywhere.
    pub const fn at(self) -> Option<usize> {
        if let Self::At(at) = self { Some(at) } else { None }
    }
}

/// What a driver counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames put on the wire.
    pub sent: u64,
    /// Frames taken from it.
    pub received: u64,
    /// Times the card lost frames for want of room.
    pub overruns: u64,
    /// Times what the card left made no sense, and the receiver began anew.
    pub restarts: u64,
}

/// What sends frames: a driver, or a queue apart from it. The card comes with each call.
pub trait Transmit: Send {
    /// Sends a frame without CRC.
    fn send(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent {
        let sent = self.enqueue(card, frame);
        self.flush(card);
        sent
    }

    /// As [`Self::send`], but the card may not begin with it before [`Self::flush`].
    fn enqueue(&mut self, card: &mut Card<'_>, frame: &[u8]) -> Sent;

    /// Lets the card go on with what was queued.
    fn flush(&mut self, _: &mut Card<'_>) {}

    /// Where the bytes of a packet are to be put, of which the card finishes what `offload` says, before [`Self::enqueue_placed`].
    fn place(&mut self, _: &mut Card<'_>, _len: usize, _offload: &Offload) -> Place {
        Place::Never
    }

    /// Has the card interrupt when it has room again, as after [`Sent::Full`].
    fn await_room(&mut self, _: &mut Card<'_>) {}

    /// As [`Self::enqueue`], of a packet that [`Self::place`] has just found a place for.
    fn enqueue_placed(&mut self, _: &mut Card<'_>, _at: usize, _len: usize, _offload: &Offload) {}
}

/// A queue of a card to send from, apart from its driver: who has it works on it while others work on the card and on its other queues. The card
/// comes with memory that is the queue's alone.
pub trait Queue: Transmit {
    /// Bytes of memory that the card must reach: a multiple of 4096.
    fn memory(&self) -> usize;

    /// Puts it to use, after [`Uplink::start`].
    fn start(&mut self, card: &mut Card<'_>);

    /// Frames that it has put on the wire.
    fn sent(&self) -> u64;
}

/// A driver. It keeps what it knows of the card; the card itself comes with each call.
pub trait Uplink: Transmit {
    /// What it is called in reports.
    fn name(&self) -> &'static str;

    /// The card's registers are in this BAR.
    fn bar(&self) -> u8 {
        0
    }

    /// Has it carry frames of so many bytes without CRC, [`MAX_FRAME`] or more, from [`Self::start`] on. False: the card cannot.
    fn stretch(&mut self, longest: usize) -> bool {
        longest <= MAX_FRAME
    }

    /// Bytes of memory that the card must reach; 0 for one that masters no bus.
    fn memory(&self) -> usize {
        0
    }

    /// How many queues it can give away.
    fn queues(&self) -> usize {
        0
    }

    /// Whether it can have the card tell by messages (MSI-X) in place of its line.
    fn has_messages(&self) -> bool {
        false
    }

    /// Gives queues away, as many as are wanted of [`Self::queues`]: it sends nothing itself any more. After [`Self::stretch`], before
    /// [`Self::start`]. With `messages`, the card tells by these and not by its line: by message 0 of frames received after [`Self::poll`], and by
    /// 1 + *n* of room in queue *n*. Each is sent once, and not again before it is asked for anew.
    fn give_queues(&mut self, _wanted: usize, _messages: bool) -> Vec<Box<dyn Queue>> {
        Vec::new()
    }

    /// Resets the card and puts it on the wire: it takes every frame, and interrupts for them.
    /// False if the card does not answer as it should.
    fn start(&mut self, card: &mut Card<'_>) -> bool;

    /// Gives frames as [`Self::poll`] does, of which it may be cheaper, but acknowledges nothing: for who looks without being
    /// interrupted. Returns how many; about as many as are wanted at most.
    fn take(&mut self, card: &mut Card<'_>, _most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        self.poll(card, &mut |frame| {
            count += 1;
            take(frame);
        });
        count
    }

    /// As [`Self::take`], and says of each frame whether the card has found all its checksums right, of IP and what IP carries.
    fn take_checked(&mut self, card: &mut Card<'_>, most: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        self.take(card, most, &mut |frame| take(frame, false))
    }

    /// Acknowledges what the card interrupts for, and gives the frames it has received, without CRC and in order, to
    /// `take`. True if it may have more: call again, for the card will not interrupt for them.
    fn poll(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8])) -> bool;

    /// As [`Self::poll`], with each frame's check sequence if the card delivers it.
    fn poll_with_fcs(&mut self, card: &mut Card<'_>, take: &mut dyn FnMut(&[u8], Option<u32>)) -> bool {
        self.poll(card, &mut |frame| take(frame, None))
    }

    /// Takes the card off the wire. It interrupts no more, writes no memory, and keeps no frames that its next owner
    /// could read.
    fn stop(&mut self, card: &mut Card<'_>);

    /// What was counted since the driver was made.
    fn counters(&self) -> Counters;
}

/// A driver for the function with these PCI identifiers and this configuration. Allocates its buffers.
pub fn for_device(vendor: u16, device: u16, config: virtio::Configuration<'_>) -> Option<Box<dyn Uplink>> {
    match (vendor, device) {
        (0x10ec, 0x8029) => Some(Box::new(ne2000::Ne2000::new())),
        (0x10ec, 0x8139) => Some(Box::new(rtl8139::Rtl8139::new())),
        (0x8086, 0x100e) => Some(Box::new(e1000::E1000::new())),
        (0x8086, 0x10d3) => Some(Box::new(e1000::E1000::new_82574())),
        (0x1af4, 0x1000 | 0x1041) => Some(Box::new(virtio::VirtioNet::new(config)?)),
        _ => None,
    }
}

/// Whether a frame can be sent at all.
fn is_frame(frame: &[u8]) -> bool {
    (MIN_FRAME..=MAX_FRAME).contains(&frame.len())
}

/// Copies a frame that can be sent into the card's memory, padded with zeros; its length there.
fn put_frame(memory: &mut dyn DmaMemory, at: usize, frame: &[u8]) -> usize {
    memory.write(at, frame);
    let padding = [0; MIN_PADDED];
    if let Some(padding) = padding.get(frame.len()..) {
        memory.write(at.saturating_add(frame.len()), padding);
    }
    frame.len().max(MIN_PADDED)
}
