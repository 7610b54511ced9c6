//! The account of frames, as maps of memory use it.
//!
//! Key type: [`Ledger`]. It is what stands between a map and another owner's memory: a frame is shown to a domain only if the
//! frame table says that it is the domain's own, whatever the rest of the hypervisor believes.

use super::frames;
use sluice_abi::{DomainId, DomainSet};
use sluice_iospace::{Contents, Foreign, Piece};
use sluice_memory::{FrameUse, Hpa};

/// Whose memory a map may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ledger {
    /// That of the domain, registers of devices, and what stands in for them; and in its windows that of the guests that it serves,
    /// or that grant it pages, and its own region.
    Domain {
        /// The domain.
        id: DomainId,
        /// Whose devices it serves.
        serves: DomainSet,
        /// Who grants it pages.
        shares: DomainSet,
    },
    /// What a domain issues to a device of its own, and regions of guests.
    Device(DomainId),
    /// Buffers of the hypervisor's own drivers, and memory of guests that a device does work for.
    Driver,
}

impl Ledger {
    /// That of a domain that serves nobody yet.
    pub const fn of(id: DomainId) -> Self {
        Self::Domain { id, serves: DomainSet::new(), shares: DomainSet::new() }
    }

    /// The domain's devices are served by this one from now on, or no longer: its windows may show their memory as long.
    pub fn serve(&mut self, guest: DomainId, served: bool) {
        if let Self::Domain { serves, .. } = self {
            *serves = if served { serves.with(guest) } else { serves.without(guest) };
        }
    }

    /// That one has a grant space for the domain from now on, or none any more.
    pub fn share(&mut self, granter: DomainId, shared: bool) {
        if let Self::Domain { shares, .. } = self {
            *shares = if shared { shares.with(granter) } else { shares.without(granter) };
        }
    }

    /// Whose devices it serves.
    pub fn serves(&self) -> DomainSet {
        match self {
            Self::Domain { serves, .. } => *serves,
            Self::Device(_) | Self::Driver => DomainSet::new(),
        }
    }
}

impl sluice_iospace::Ledger for Ledger {
    fn pin(&self, piece: &Piece) -> Result<(), Foreign> {
        let used_as = match (*self, piece.rights.contents) {
            (Self::Domain { id, .. } | Self::Device(id), Contents::Own) => FrameUse::Guest(id.0),
            // Registers lie where no memory is, and have no entries.
            (Self::Domain { .. }, Contents::Registers) if !frames::is_memory(piece.hpa, piece.len) => {
                return Ok(());
            }
            (Self::Domain { id, .. }, Contents::Registers) => FrameUse::Mirror(id.0),
            (Self::Domain { id, shares, .. }, Contents::DeviceMemory(of))
                if (of == id.0 || shares.contains(DomainId(of)))
                    && !frames::is_memory(piece.hpa, piece.len) =>
            {
                return Ok(());
            }
            (Self::Domain { serves, shares, .. }, Contents::Lent(by))
                if serves.contains(DomainId(by)) || shares.contains(DomainId(by)) =>
            {
                FrameUse::Guest(by)
            }
            (Self::Domain { id, .. } | Self::Device(id), Contents::Sink) => FrameUse::Sink(id.0),
            // Whose processors see a region is its guest, and no other domain.
            (Self::Domain { id, .. }, Contents::Region(of)) if of == id.0 => FrameUse::Region(of),
            (Self::Device(_), Contents::Region(of)) => FrameUse::Region(of),
            (Self::Driver, Contents::Own) => FrameUse::Buffer,
            // A disk that guests share moves their data from and to their own pages.
            (Self::Driver, Contents::Lent(by)) => FrameUse::Guest(by),
            (Self::Domain { .. }, Contents::Lent(_) | Contents::Region(_) | Contents::DeviceMemory(_))
            | (Self::Device(_), Contents::Lent(_) | Contents::Registers | Contents::DeviceMemory(_))
            | (Self::Driver, _) => {
                log::error!("fault of the hypervisor: {self:?} shows no {:?}", piece.rights.contents);
                return Err(Foreign);
            }
        };
        frames::pin(piece.hpa, piece.len, used_as).map_err(|error| {
            log::error!(
                "fault of the hypervisor: {} for {:#x} bytes is not to be shown as {used_as:?}: {error:x?}",
                piece.hpa,
                piece.len
            );
            Foreign
        })
    }

    fn unpin(&self, hpa: Hpa, len: u64) {
        if frames::is_memory(hpa, len) {
            frames::unpin(hpa, len);
        }
    }
}
