//! The management channel: framed messages over a byte stream: a second UART, for the host that QEMU runs on, and the stream of each
//! control domain.
//!
//! A frame is a postcard message and its CRC-32 in COBS encoding, ended by a zero byte, so that either side can
//! resynchronize after a lost byte by skipping to the next zero. The CRC is against lines that damage bytes, not against
//! whoever writes to the channel.

use crate::DomainId;
use crate::config::{Vif, Virtio};
use crate::report::{DomainState, Report};
use alloc::string::String;
use alloc::vec::Vec;
use crc::{CRC_32_ISO_HDLC, Crc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of the messages, sent in [`Event::Hello`].
pub const VERSION: u32 = 9;

/// Longest encoded frame in bytes, including the final zero; longer ones are dropped. A report of as many domains as there can be
/// fits, with all their counters.
pub const MAX_FRAME: usize = 512 * 1024;

/// From the hypervisor to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// First message of a run, or to a control domain that has come. The state of each domain follows.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Names of the domains, in the order of their [`DomainId`]s.
        domains: Vec<String>,
    },
    /// Output of a guest's serial console.
    Console {
        /// The domain.
        domain: DomainId,
        /// What it wrote.
        bytes: Vec<u8>,
    },
    /// A domain changed its state.
    State {
        /// The domain.
        domain: DomainId,
        /// Its new state.
        state: DomainState,
        /// Why, for ends that were not asked for.
        reason: String,
    },
    /// Answer to the command with the same sequence number.
    Reply {
        /// Sequence number of the command.
        seq: u32,
        /// What came of it.
        result: Result<(), CommandError>,
    },
    /// Answer to [`Command::Report`], and the last message before the end of a run.
    Report {
        /// Sequence number of the command; 0 for the final report.
        seq: u32,
        /// The counters.
        report: Report,
    },
    /// All domains have ended; the machine is switched off when [`Command::Acknowledge`] has come, or after a few seconds. It may come
    /// again, with its report, if the answer takes long.
    Finished,
}

/// From the host to the hypervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host, not 0; the reply carries it.
    pub seq: u32,
    /// What to do.
    pub command: Command,
}

/// What the host can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Send the counters.
    Report,
    /// Run a created or ended domain (an ended one is built afresh).
    Start(DomainId),
    /// Stop its processors until [`Command::Resume`].
    Pause(DomainId),
    /// Let a paused domain go on.
    Resume(DomainId),
    /// Ask the guest to power off (ACPI power button); does not wait.
    Stop(DomainId),
    /// End it at once and take everything back.
    Destroy(DomainId),
    /// [`Command::Destroy`], then [`Command::Start`].
    Restart(DomainId),
    /// What the person at the machine's devices does is meant for this domain from now on, where device files are shared.
    Focus(DomainId),
    /// Bytes typed on the domain's console.
    ConsoleInput(DomainId, Vec<u8>),
    /// A piece of a bundle, for [`Command::Create`]: the next one. What was there before goes when `offset` is 0.
    Upload {
        /// Where the piece begins.
        offset: u64,
        /// Bytes of the whole bundle.
        total: u64,
        /// The piece, at most [`MAX_PIECE`] bytes.
        bytes: Vec<u8>,
    },
    /// Add the domains of the bundle that was uploaded. [`Event::Hello`] names all domains again, and their states follow; none of the
    /// new ones runs before [`Command::Start`]. Their devices are those of the configuration, by name.
    Create,
    /// Give a domain a virtual device, now and in its lives to come; [`Virtio::by`] is who serves it, a domain of this machine.
    Attach(DomainId, Virtio),
    /// Give a domain an interface on a network, now and in its lives to come.
    AttachVif {
        /// The domain.
        domain: DomainId,
        /// Name of the network: what the interface says of it does not count.
        network: String,
        /// The interface.
        vif: Vif,
    },
    /// Set what a domain's interface may send, its VLAN and when it hears of what it sent, now and in its lives to come.
    SetVif {
        /// The domain.
        domain: DomainId,
        /// Name of the interface.
        device: String,
        /// [`Vif::share`].
        share: u8,
        /// [`Vif::limit`].
        limit: Option<u64>,
        /// [`Vif::vlan`].
        vlan: Option<u16>,
        /// [`Vif::addresses`]; as they are if it does not say.
        addresses: Option<Vec<[u8; 16]>>,
        /// [`Vif::moderation`].
        moderation: u16,
    },
    /// Ask a domain for a virtual device; it has left when no report names it any more. One that does not run is not asked.
    Detach {
        /// The domain.
        domain: DomainId,
        /// Name of the device.
        device: String,
        /// Take it at once, whatever the guest does with it.
        force: bool,
    },
    /// Destroy all domains and switch the machine off.
    Shutdown,
    /// Note what is in memory that nobody may change, or compare with what was noted; a difference stops the machine.
    /// For tests: free memory is put to use as a tripwire.
    Verify,
    /// [`Event::Finished`] has arrived, and so has everything before it. It is not answered.
    Acknowledge,
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandError {
    /// No domain has this index.
    NoSuchDomain,
    /// The domain's state does not allow it (start of a running one, ...).
    WrongState,
    /// Not enough memory to build it again.
    OutOfMemory,
    /// Its kernel could not be loaded again.
    BadKernel,
    /// A device of it could not be given to it.
    DeviceBusy,
    /// A control domain may not do that, or a domain that is made by a command may not have that.
    NotAllowed,
    /// The bundle holds no configuration of this version, or one that contradicts itself.
    BadConfiguration,
    /// A domain that is made wants a device that the machine's configuration does not have, or a domain has no virtual device of this name.
    NoSuchDevice,
    /// There is a domain of this name, or the domain has a device of it.
    NameTaken,
    /// The domain lends nothing of its memory: a virtual device would not work.
    NothingLent,
    /// The bus of the guest, or of the domain that is to serve its device, is full.
    NoSlot,
    /// The domain has no device file.
    NoDeviceFile,
    /// There are as many domains as there can be.
    TooManyDomains,
    /// There is no network of this name, or nothing serves it.
    NoSuchNetwork,
    /// Another interface of the network has this address, or there are as many as there can be.
    AddressTaken,
    /// The network carries no frames as long as an interface's.
    FrameTooLong,
}

/// Longest piece of an upload in bytes: a frame holds it.
pub const MAX_PIECE: usize = 64 * 1024;

/// Ends a frame, and whatever came before the first.
pub const DELIMITER: u8 = 0;

/// What tells a frame that a line has damaged from one that it has not: behind the message, its lowest byte first.
static CHECK: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// Encodes one frame, final [`DELIMITER`] included.
///
/// # Errors
/// Fails only when the allocator does.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, postcard::Error> {
    Ok(frame(postcard::to_allocvec(message)?))
}

/// The frame of these bytes, whether they are a message or not.
pub fn frame(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(CHECK.checksum(&bytes).to_le_bytes());
    let mut frame = alloc::vec![0; cobs::max_encoding_length(bytes.len())];
    let len = cobs::encode(&bytes, &mut frame);
    frame.truncate(len);
    frame.push(DELIMITER);
    frame
}

/// Collects bytes into frames and decodes them.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    overflow: bool,
}

impl Decoder {
    /// Takes one byte; returns a message when it completes one. Damaged frames are dropped.
    pub fn push<T: DeserializeOwned>(&mut self, byte: u8) -> Option<T> {
        self.take(&[byte]).1
    }

    /// Takes bytes up to the end of a frame; returns how many, and the message if there is one. Damaged frames are dropped.
    pub fn take<T: DeserializeOwned>(&mut self, bytes: &[u8]) -> (usize, Option<T>) {
        let end = bytes.iter().position(|byte| *byte == DELIMITER);
        let piece = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        let room = MAX_FRAME - self.buffer.len();
        self.overflow |= piece.len() > room;
        self.buffer.extend_from_slice(&piece[..piece.len().min(room)]);
        let Some(end) = end else { return (piece.len(), None) };
        self.buffer.push(DELIMITER);
        let message = if self.overflow { None } else { decode(&mut self.buffer) };
        self.buffer.clear();
        self.overflow = false;
        (end + 1, message)
    }
}

/// The message of a whole frame, which has nothing else in it: of noise, most short frames begin with some message.
fn decode<T: DeserializeOwned>(frame: &mut [u8]) -> Option<T> {
    let len = cobs::decode_in_place(frame).ok()?;
    let (bytes, check) = frame.get(..len)?.split_last_chunk()?;
    if CHECK.checksum(bytes) != u32::from_le_bytes(*check) {
        return None;
    }
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MAX_DOMAINS;
    use crate::report::{Count, DeviceReport, DomainReport, ShareReport};
    use alloc::vec;

    #[test]
    fn the_largest_report_is_taken() {
        let name = "n".repeat(31);
        let counters = |count| vec![Count { name: "reason.of.an.exit".into(), value: u64::MAX }; count];
        let share =
            ShareReport { domain: name.clone(), hooked_by_register: counters(32), ..ShareReport::default() };
        let device =
            DeviceReport { name: name.clone(), shares: vec![share; MAX_DOMAINS], ..DeviceReport::default() };
        let domain = DomainReport {
            name,
            exits: counters(32),
            refused: counters(16),
            paravirtual: counters(48),
            ..DomainReport::default()
        };
        let report =
            Report { domains: vec![domain; MAX_DOMAINS], devices: vec![device; 4], ..Report::default() };
        let event = Event::Report { seq: 1, report };
        let mut decoder = Decoder::default();
        let got: Vec<Event> =
            encode(&event).unwrap().into_iter().filter_map(|byte| decoder.push(byte)).collect();
        assert_eq!(got, [event]);
    }

    #[test]
    fn a_message_with_something_behind_it_is_none() {
        let request = Request { seq: 7, command: Command::Shutdown };
        let mut bytes = postcard::to_allocvec(&request).unwrap();
        let mut decoder = Decoder::default();
        assert_eq!(decoder.take(&frame(bytes.clone())).1, Some(request));
        bytes.push(9);
        assert_eq!(decoder.take::<Request>(&frame(bytes)).1, None);
    }

    #[test]
    fn a_frame_that_the_line_has_damaged_is_dropped() {
        let request = Request { seq: 7, command: Command::ConsoleInput(DomainId(1), b"reboot".to_vec()) };
        let whole = encode(&request).unwrap();
        for bit in 0..8 * (whole.len() - 1) {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = Decoder::default();
            assert!(damaged.into_iter().all(|byte| decoder.push::<Request>(byte).is_none()), "bit {bit}");
        }
    }

    #[test]
    fn frames_survive_noise_before_them() {
        let request = Request { seq: 7, command: Command::ConsoleInput(DomainId(1), alloc::vec![0, 1, 0]) };
        let mut decoder = Decoder::default();
        let mut bytes = alloc::vec![9, 9, 9, 0];
        bytes.extend(encode(&request).unwrap());
        let got: Vec<Request> = bytes.into_iter().filter_map(|b| decoder.push(b)).collect();
        assert_eq!(got, [request]);
    }

    #[test]
    fn an_endless_frame_is_dropped_and_the_next_one_read() {
        let request = Request { seq: 1, command: Command::Report };
        let mut decoder = Decoder::default();
        for _ in 0..2 * MAX_FRAME {
            assert_eq!(decoder.push::<Request>(1), None);
        }
        assert_eq!(decoder.push::<Request>(0), None);
        let got: Vec<Request> =
            encode(&request).unwrap().into_iter().filter_map(|b| decoder.push(b)).collect();
        assert_eq!(got, [request]);
    }
}
