//! What passes between the caller, the monitor and the hardware: accesses, outcomes, the raw device.

pub use sluice_abi::config::Reaction;
use sluice_model::RegisterId;
pub use sluice_uplink::RawDevice;

/// A client of one device: a slot number below [`Self::MAX`], given out by `attach`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(crate) u8);

impl ClientId {
    /// How many clients one device can have.
    pub const MAX: usize = 8;

    /// The slot, `0..MAX`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The client of a slot, for walking the bits of a [`crate::Changes`] mask.
    pub const fn from_index(index: usize) -> Option<Self> {
        if index < Self::MAX { Some(Self(index as u8)) } else { None }
    }

    /// The clients of a mask.
    pub(crate) fn of(mut mask: u8) -> impl Iterator<Item = Self> {
        core::iter::from_fn(move || {
            let client = Self::from_index(mask.trailing_zeros() as usize)?;
            mask &= !client.bit();
            Some(client)
        })
    }

    /// Bit of this client in a mask.
    pub const fn bit(self) -> u8 {
        1 << (self.0 & 7)
    }
}

/// A hooked access of a client. Bytes of strings are little-endian elements of `width` bytes each;
/// their length must be a multiple of `width`. The caller may split a long `rep` into several.
#[derive(Debug)]
pub enum RegisterAccess<'a> {
    /// IN.
    Read {
        /// Port, relative to the device.
        offset: u16,
        /// 1, 2 or 4.
        width: u8,
    },
    /// OUT.
    Write {
        /// Port, relative to the device.
        offset: u16,
        /// 1, 2 or 4.
        width: u8,
        /// Value; bits above the width are ignored.
        value: u32,
    },
    /// (REP) INS.
    ReadString {
        /// Port, relative to the device.
        offset: u16,
        /// 1, 2 or 4.
        width: u8,
        /// Where the elements go; wholly written unless the outcome is [`Outcome::Wait`].
        into: &'a mut [u8],
    },
    /// (REP) OUTS.
    WriteString {
        /// Port, relative to the device.
        offset: u16,
        /// 1, 2 or 4.
        width: u8,
        /// The elements.
        from: &'a [u8],
    },
}

impl RegisterAccess<'_> {
    /// Port and width.
    pub const fn place(&self) -> (u16, u8) {
        match *self {
            Self::Read { offset, width }
            | Self::Write { offset, width, .. }
            | Self::ReadString { offset, width, .. }
            | Self::WriteString { offset, width, .. } => (offset, width),
        }
    }

    /// Device elements: 1, or the number of elements of the string.
    pub const fn elements(&self) -> u64 {
        let (bytes, width) = match self {
            Self::Read { .. } | Self::Write { .. } => return 1,
            Self::ReadString { width, into, .. } => (into.len(), *width),
            Self::WriteString { width, from, .. } => (from.len(), *width),
        };
        if width == 0 { 0 } else { (bytes / width as usize) as u64 }
    }

    /// The client writes.
    pub const fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteString { .. })
    }
}

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Carried out; for [`RegisterAccess::Read`] the value read (else 0). Advance the guest's RIP.
    Done(u32),
    /// Nothing was done: the client does not hold the device. Deschedule it without advancing RIP;
    /// repeat the access when [`crate::Changes::wake`] names it.
    Wait,
    /// Refused. Counted.
    Refused(Refusal),
}

/// An access that had no effect: treat it as done with this value, and react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For [`RegisterAccess::Read`] the value read.
    pub value: u32,
    /// The register that it named, if any.
    pub register: Option<RegisterId>,
    /// What the client must see of it. An [`Reaction::Interrupt`] was raised already.
    pub reaction: Reaction,
}

/// Why a device refuses an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It is not the client's to make.
    RegisterAccess,
    /// It would send what is not the client's. Drivers wait for the end of what they send.
    Send,
}

/// What a device says of an access: the value, and if it was refused, why.
pub(crate) type Served = Result<u32, (u32, Cause)>;
