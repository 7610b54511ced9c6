//! A frame on its way, wherever its bytes are.

use crate::Mac;
use crate::chain::{Chain, Memory};
use crate::offload::Header;
use sluice_virtio::Fault;

/// A frame. What was looked at to decide where it goes is what arrives: a sender that changes it meanwhile changes nothing.
pub(crate) struct Frame<'a, M> {
    /// Its first bytes, or all.
    pub start: &'a [u8],
    /// Where the sender has all of it, if there is more.
    pub rest: Option<(&'a M, &'a Chain)>,
    /// What is left for its receiver to do.
    pub header: Header,
}

impl<'a, M: Memory> Frame<'a, M> {
    /// A frame with which nothing is left to do.
    pub fn plain(bytes: &'a [u8]) -> Self {
        Self { start: bytes, rest: None, header: Header::default() }
    }

    /// Bytes.
    pub fn len(&self) -> u32 {
        self.rest.map_or(self.start.len() as u32, |(_, chain)| chain.len())
    }

    /// Copies a range of it to a guest.
    ///
    /// # Errors
    /// The receiver's: all of the frame is memory of the sender's.
    pub fn copy(&self, from: u32, to: &M, at: u64, len: u32) -> Result<(), Fault> {
        let start = self.start.get(from as usize..).unwrap_or_default();
        let start = start.get(..len as usize).unwrap_or(start);
        if !start.is_empty() {
            sluice_virtio::Memory::write(to, at, start)?;
        }
        let done = start.len() as u32;
        match self.rest {
            Some((memory, chain)) if done < len => {
                let at = at.checked_add(u64::from(done)).ok_or(Fault)?;
                chain.copy(memory, from + done, to, at, len - done)
            }
            _ if done < len => Err(Fault),
            _ => Ok(()),
        }
    }
}

/// What decides where a frame goes.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub to: Mac,
    pub from: Mac,
    kind: [u8; 2],
}

impl Addresses {
    /// Bytes that say it, with the type.
    pub const BYTES: usize = 14;

    /// Of a frame that begins so.
    pub fn of(start: &[u8; Self::BYTES]) -> Self {
        let [t0, t1, t2, t3, t4, t5, f0, f1, f2, f3, f4, f5, k0, k1] = *start;
        Self { to: [t0, t1, t2, t3, t4, t5], from: [f0, f1, f2, f3, f4, f5], kind: [k0, k1] }
    }

    /// Whether a VLAN's tag follows (IEEE 802.1Q, 9.6): of a provider's, too.
    pub fn is_tagged(self) -> bool {
        matches!(self.kind, [0x81, 0x00] | [0x88, 0xa8] | [0x91, 0x00])
    }
}
