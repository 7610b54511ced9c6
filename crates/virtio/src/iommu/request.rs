//! Requests and answers, as they are in memory (Virtio 1.2, 5.13.6).

/// Bytes of the longest request: [`Request::Probe`].
pub const LONGEST: usize = 72;
/// Bytes of the answer to that before its status.
pub const PROPERTIES: usize = 24;

/// Types of requests.
mod kind {
    pub const ATTACH: u8 = 1;
    pub const DETACH: u8 = 2;
    pub const MAP: u8 = 3;
    pub const UNMAP: u8 = 4;
    pub const PROBE: u8 = 5;
}

/// Flags of a mapping: it may be read, and written. What else there is was not offered.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// What a driver wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Gives a device an address space.
    Attach {
        /// The address space.
        domain: u32,
        /// The device.
        endpoint: u32,
    },
    /// Takes it away.
    Detach {
        /// The address space.
        domain: u32,
        /// The device.
        endpoint: u32,
    },
    /// Shows memory in an address space.
    Map {
        /// The address space.
        domain: u32,
        /// First address in it.
        first: u64,
        /// The last one.
        last: u64,
        /// Guest-physical address of the memory.
        gpa: u64,
        /// It may be written, too.
        writable: bool,
    },
    /// Shows nothing there any more.
    Unmap {
        /// The address space.
        domain: u32,
        /// First address.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// Asks what is peculiar to a device.
    Probe {
        /// The device.
        endpoint: u32,
    },
}

/// Why a request is not carried out (5.13.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Denied {
    /// The device cannot do that.
    Unsupported = 2,
    /// It makes no sense.
    Invalid = 4,
    /// An address cannot be.
    OutOfRange = 5,
    /// There is no such device, or address space.
    NoEntry = 6,
    /// There is no memory for tables.
    NoMemory = 8,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// It is none that was offered, or is cut off.
    pub fn decode(bytes: &[u8]) -> Result<Self, Denied> {
        let kind = *bytes.first().ok_or(Denied::Invalid)?;
        if !(kind::ATTACH..=kind::PROBE).contains(&kind) {
            return Err(Denied::Unsupported);
        }
        Self::body(kind, bytes).ok_or(Denied::Invalid)
    }

    fn body(kind: u8, bytes: &[u8]) -> Option<Self> {
        let number = word(bytes, 4)?;
        Some(match kind {
            // Flags after these say that the device passes by, which was not offered.
            kind::ATTACH => {
                (word(bytes, 12)? == 0).then_some(())?;
                Self::Attach { domain: number, endpoint: word(bytes, 8)? }
            }
            kind::DETACH => Self::Detach { domain: number, endpoint: word(bytes, 8)? },
            kind::MAP => {
                let flags = word(bytes, 32)?;
                (flags != 0 && flags & !(READ | WRITE) == 0).then_some(())?;
                Self::Map {
                    domain: number,
                    first: long(bytes, 8)?,
                    last: long(bytes, 16)?,
                    gpa: long(bytes, 24)?,
                    writable: flags & WRITE != 0,
                }
            }
            kind::UNMAP => Self::Unmap { domain: number, first: long(bytes, 8)?, last: long(bytes, 16)? },
            _ => Self::Probe { endpoint: number },
        })
    }
}

/// The answer to a request: its status.
pub fn ok(answer: Result<(), Denied>) -> [u8; 4] {
    [answer.map_or_else(|denied| denied as u8, |()| 0), 0, 0, 0]
}

/// The answer to [`Request::Probe`]: writes to where processors take messages are interrupts, and are not translated (5.13.6.7).
pub fn properties(answer: Result<(), Denied>) -> [u8; PROPERTIES + 4] {
    const RESERVED: u16 = 1;
    const MESSAGES: u8 = 1;
    const FIRST: u64 = 0xfee0_0000;
    const LAST: u64 = 0xfeef_ffff;
    let mut bytes = [0; PROPERTIES + 4];
    if answer.is_ok() {
        let mut put = |at: usize, from: &[u8]| {
            bytes.iter_mut().skip(at).zip(from).for_each(|(to, from)| *to = *from);
        };
        put(0, &RESERVED.to_le_bytes());
        put(2, &(PROPERTIES as u16 - 4).to_le_bytes());
        put(4, &[MESSAGES]);
        put(8, &FIRST.to_le_bytes());
        put(16, &LAST.to_le_bytes());
    }
    bytes.iter_mut().skip(PROPERTIES).zip(ok(answer)).for_each(|(to, from)| *to = from);
    bytes
}
