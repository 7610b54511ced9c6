//! A stream of bytes between a guest and the hypervisor: a console device with one port that is not a console.
//!
//! The guest's stock driver shows it as `/dev/virtio-ports/NAME`. The driver's messages about ports go by queues of their own (Virtio 1.2,
//! 5.3.6.2): the device says that there is a port, the driver that it is ready, the device what its name is and that somebody is at
//! the other end, and the driver when a program opens and closes it.

use crate::device::{Device, Kind};
use crate::ring::{Buffer, Fault, Memory, Ring, buffers};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The device has ports, and queues for messages about them (5.3.3).
pub(crate) const MULTIPORT: u64 = 1 << 1;
/// Queues of a device with one port (5.3.2).
pub(crate) const QUEUES: u32 = 4;
/// Entries of each.
pub(crate) const QUEUE_SIZE: u32 = 64;
/// Bytes of the configuration: columns, rows, most ports, a byte for emergencies.
pub(crate) const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// Bytes for the guest.
const RECEIVE: u16 = 0;
/// Bytes from the guest.
const TRANSMIT: u16 = 1;
/// Messages to the guest.
const TELL: u16 = 2;
/// Messages from the guest.
const HEAR: u16 = 3;

/// Messages (5.3.6.2).
mod message {
    pub const DEVICE_READY: u16 = 0;
    pub const PORT_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const PORT_OPEN: u16 = 6;
    pub const PORT_NAME: u16 = 7;
    /// Bytes of a message without a name: number of the port, event, value.
    pub const SIZE: usize = 8;
}

/// Bytes from the guest that are kept until they are read: as long as there are so many, its buffers wait in the queue.
const INPUT: usize = 64 * 1024;
/// Longest buffer of a driver that is taken; Linux makes them half as long.
const LONGEST: u32 = 64 * 1024;
/// Messages to the guest that wait for a buffer. It asks once for each, in the order of things.
const MESSAGES: usize = 8;

/// What came of looking at the queues: a bit for each queue whose driver is to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u8);

impl Signals {
    /// The queues.
    pub fn queues(self) -> impl Iterator<Item = u16> {
        (0..QUEUES as u16).filter(move |queue| self.0 & 1 << queue != 0)
    }

    fn add(&mut self, queue: u16, wanted: bool) {
        self.0 |= u8::from(wanted) << queue;
    }
}

/// The stream.
#[derive(Debug)]
pub struct Port {
    name: &'static str,
    rings: [Ring; QUEUES as usize],
    messages: VecDeque<Vec<u8>>,
    input: VecDeque<u8>,
    /// A program of the guest's has it open.
    open: bool,
}

impl Port {
    /// A stream of this name, at whose other end nobody is.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            rings: [Ring::default(); QUEUES as usize],
            messages: VecDeque::new(),
            input: VecDeque::new(),
            open: false,
        }
    }

    /// Whether a program of the guest's has it open.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The device has other queues now, or none: what was under way is gone.
    pub fn reset(&mut self) {
        *self = Self::new(self.name);
    }

    /// Bytes that the guest wrote, at most so many.
    pub fn read(&mut self, most: usize) -> Vec<u8> {
        let most = most.min(self.input.len());
        self.input.drain(..most).collect()
    }

    /// Gives the guest as many bytes as its buffers take, and returns how many that were.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn write(
        &mut self,
        device: &Device,
        memory: &dyn Memory,
        bytes: &[u8],
    ) -> Result<(usize, Signals), Fault> {
        let (mut done, mut signals) = (0, Signals::default());
        while done < bytes.len() && self.open {
            let (written, wanted) = self.fill(device, memory, RECEIVE, &bytes[done..])?;
            signals.add(RECEIVE, wanted);
            done += written;
            if written == 0 {
                break;
            }
        }
        Ok((done, signals))
    }

    /// Looks what there is in the queues from the guest, and sends the messages that wait. It is bounded: by the entries of a queue, and by
    /// what is kept of the stream.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn serve(&mut self, device: &Device, memory: &dyn Memory) -> Result<Signals, Fault> {
        let mut signals = Signals::default();
        for _ in 0..QUEUE_SIZE {
            if self.messages.len() >= MESSAGES || !self.hear(device, memory, &mut signals)? {
                break;
            }
        }
        while let Some(message) = self.messages.front().cloned() {
            let (written, wanted) = self.fill(device, memory, TELL, &message)?;
            if written == 0 {
                break;
            }
            signals.add(TELL, wanted);
            self.messages.pop_front();
        }
        for _ in 0..QUEUE_SIZE {
            if self.input.len() >= INPUT || !self.take(device, memory, &mut signals)? {
                break;
            }
        }
        Ok(signals)
    }

    /// Fills the next chain of a queue to the guest with the beginning of `bytes`. Returns how many it took, and whether the driver wants to
    /// hear of it; 0 if there is no chain.
    fn fill(
        &mut self,
        device: &Device,
        memory: &dyn Memory,
        number: u16,
        bytes: &[u8],
    ) -> Result<(usize, bool), Fault> {
        let Some((queue, ring)) = device.live_queue(number).zip(self.rings.get_mut(usize::from(number)))
        else {
            return Ok((0, false));
        };
        let Some(head) = ring.next(queue, memory)? else { return Ok((0, false)) };
        let mut written = 0;
        for buffer in buffers(queue, memory, head) {
            let Buffer { address, len, writable } = buffer?;
            let part = bytes.get(written..).unwrap_or_default();
            let part = &part[..part.len().min(len as usize)];
            if !writable {
                return Err(Fault);
            }
            memory.write(address, part)?;
            written += part.len();
        }
        // A chain without room would be given back for ever.
        if written == 0 {
            return Err(Fault);
        }
        let wanted = ring.put(queue, memory, head, written as u32)?;
        Ok((written, wanted))
    }

    /// What the next chain of a queue from the guest says; `None` if there is none.
    fn drain(
        &mut self,
        device: &Device,
        memory: &dyn Memory,
        number: u16,
        signals: &mut Signals,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let Some((queue, ring)) = device.live_queue(number).zip(self.rings.get_mut(usize::from(number)))
        else {
            return Ok(None);
        };
        let Some(head) = ring.next(queue, memory)? else { return Ok(None) };
        let mut bytes = Vec::new();
        for buffer in buffers(queue, memory, head) {
            let Buffer { address, len, writable } = buffer?;
            if writable || len > LONGEST.saturating_sub(bytes.len() as u32) {
                return Err(Fault);
            }
            let from = bytes.len();
            bytes.resize(from + len as usize, 0);
            memory.read(address, &mut bytes[from..])?;
        }
        let wanted = ring.put(queue, memory, head, 0)?;
        signals.add(number, wanted);
        Ok(Some(bytes))
    }

    /// Takes a piece of the stream; false if there is none.
    fn take(&mut self, device: &Device, memory: &dyn Memory, signals: &mut Signals) -> Result<bool, Fault> {
        let piece = self.drain(device, memory, TRANSMIT, signals)?;
        Ok(piece.map(|bytes| self.input.extend(bytes)).is_some())
    }

    /// Takes a message; false if there is none.
    fn hear(&mut self, device: &Device, memory: &dyn Memory, signals: &mut Signals) -> Result<bool, Fault> {
        let Some(bytes) = self.drain(device, memory, HEAR, signals)? else { return Ok(false) };
        let Some(&[_, _, _, _, e0, e1, v0, v1]) = bytes.first_chunk::<{ message::SIZE }>() else {
            return Err(Fault);
        };
        let (event, value) = (u16::from_le_bytes([e0, e1]), u16::from_le_bytes([v0, v1]));
        match (event, value) {
            (message::DEVICE_READY, 1) => self.tell(message::PORT_ADD, 1, ""),
            (message::PORT_READY, 1) => {
                self.tell(message::PORT_NAME, 1, self.name);
                self.tell(message::PORT_OPEN, 1, "");
            }
            (message::PORT_OPEN, open) => {
                self.open = open != 0;
                if !self.open {
                    // What is left of a program's last words is no beginning of the next one's.
                    self.input.clear();
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// A message about the port.
    fn tell(&mut self, event: u16, value: u16, name: &str) {
        let mut bytes = alloc::vec![0; 4];
        bytes.extend(event.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes.extend(name.bytes());
        self.messages.push_back(bytes);
    }
}

impl Device {
    /// The device of a stream: it is there at once, since the hypervisor serves it.
    pub fn of_port() -> Self {
        Self::served_here(Kind::Port, MULTIPORT, QUEUES, QUEUE_SIZE, &CONFIG)
    }
}
