//! The IOMMU that a guest's stock driver drives (`grants = "iommu"`): what is mapped for a device is issued to it, and what is unmapped is taken
//! back.
//!
//! Key type: [`Translator`], a guest's IOMMU. An address of a device is a grant reference: the page that the guest maps at I/O page `n` is what it
//! could issue by reference `n` itself ([`crate::domain::grants`]).
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2, 5.13; Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and Efficient I/O
//! Virtualization", 3.4 (the same interface for an IOMMU).

use super::{Link, State, Which};
use crate::devices::ram::Ram;
use crate::domain::{Answer, Domain, grants, layout};
use crate::sync::{Rank, SpinLock};
use alloc::sync::Arc;
use core::ops::{Range, RangeInclusive};
use sluice_abi::DomainId;
use sluice_abi::config;
use sluice_hypercall::call::Error;
use sluice_hypercall::grant::{Call, GRANT_DEVICE, GRANT_MAX_BATCH};
use sluice_memory::PAGE_SIZE;
use sluice_virtio::iommu::{AT_ONCE, Behind, Iommu, REQUESTS, Refused, Served};
use sluice_virtio::{Changes, Fault};

const _: () = assert!(AT_ONCE <= GRANT_MAX_BATCH);

/// Its name, and kind.
pub const NAME: &str = "iommu";

/// A guest's IOMMU.
pub struct Translator {
    state: SpinLock<Iommu>,
}

impl Translator {
    /// That of a domain with so much memory.
    pub fn new(memory: u64) -> Self {
        Self { state: SpinLock::new(Rank::Translator, Iommu::new(addresses(memory))) }
    }

    /// The guest has told of requests.
    pub fn requests(&self, link: &Link, domain: &Arc<Domain>) -> Answer {
        let mut iommu = self.state.lock();
        let queue = link.with(|state| {
            state.count_kick(REQUESTS);
            state.device.live_queue(REQUESTS).copied()
        });
        let Some(queue) = queue else { return Answer::Done };
        match iommu.serve(&queue, &Ram(domain.clone()), &mut Devices::of(domain)) {
            Ok(Served { more, signals }) => {
                if signals {
                    link.with(|state| state.use_buffers(REQUESTS));
                }
                match (more, signals) {
                    (true, _) => Answer::Again,
                    (false, true) => Answer::Attend,
                    (false, false) => Answer::Done,
                }
            }
            Err(Fault) => {
                // If it was reset meanwhile, that was wrong of queues that it has no more.
                link.change(|state| {
                    let is_in_use = state.device.live_queue(REQUESTS) == Some(&queue);
                    ((), if is_in_use { state.iommu_broke(domain) } else { Changes::empty() })
                });
                Answer::Attend
            }
        }
    }

    /// The guest has written to a register of it: if that was a reset, nobody reaches anything any more that was mapped, once this is done.
    pub fn written(&self, link: &Link, domain: &Domain) -> Answer {
        let mut iommu = self.state.lock();
        if link.with(|state| !state.device.is_live()) {
            iommu.reset();
        }
        if iommu.leave(&mut Devices::of(domain)) { Answer::Again } else { Answer::Attend }
    }
}

/// Addresses that the devices of a domain with so much memory can have: where a back end looks for memory of it.
fn addresses(memory: u64) -> RangeInclusive<u64> {
    layout::HIGH_RAM..=memory.min(layout::PCI_MEMORY) / PAGE_SIZE * PAGE_SIZE - 1
}

/// The devices of a domain, which reach what is issued to them.
struct Devices<'a> {
    domain: &'a Domain,
    /// Slots of those for which something was issued or revoked, a bit each.
    unsettled: u32,
}

impl<'a> Devices<'a> {
    fn of(domain: &'a Domain) -> Self {
        Self { domain, unsettled: 0 }
    }
}

impl Behind for Devices<'_> {
    fn is_there(&self, slot: u8) -> bool {
        self.domain.has_space_for_device(slot)
    }

    fn open(&mut self, slot: u8) -> bool {
        grants::call(self.domain, &Call::Open(space(slot))).is_ok()
    }

    fn map(&mut self, slot: u8, pages: Range<u64>, gpa: u64, writable: bool) -> Result<u64, Refused> {
        self.unsettled |= 1 << (slot & 31);
        self.domain.issue_to_device(slot, pages, gpa, writable).map_err(|error| match error {
            Error::Absent | Error::NoPeer | Error::NotPermitted => Refused::NoDevice,
            Error::NoMemory => Refused::OutOfMemory,
            _ => Refused::BadPage,
        })
    }

    fn unmap(&mut self, slot: u8, pages: Range<u64>) -> u64 {
        self.unsettled |= 1 << (slot & 31);
        self.domain.revoke_from_device(slot, pages)
    }

    fn settle(&mut self) {
        let unsettled = core::mem::take(&mut self.unsettled);
        (0..32).filter(|slot| unsettled & 1 << slot != 0).for_each(|slot| self.domain.settle_device(slot));
    }
}

/// Number of the space of a device.
fn space(slot: u8) -> u8 {
    GRANT_DEVICE as u8 + slot
}

impl Link {
    /// The IOMMU of a guest.
    pub(super) fn of_iommu(guest: DomainId, domain: &config::Domain) -> Self {
        let state = State::new(sluice_virtio::iommu::device(&addresses(domain.memory)), None);
        Self::served_here(guest, Which::Iommu, (&domain.name, NAME), NAME, state)
    }
}

impl State {
    /// The driver of the guest's IOMMU broke the rules of the queue.
    fn iommu_broke(&mut self, domain: &Domain) -> Changes {
        if self.complains() {
            log::warn!("domain {}: its driver of the IOMMU breaks virtio's rules", domain.name());
        }
        self.device.break_down()
    }
}
