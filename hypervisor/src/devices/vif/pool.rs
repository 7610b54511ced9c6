//! The memory of a native VIF: its structure, and the pages that its driver has handed over.

use crate::devices::nic::Mirror;
use crate::domain::Domain;
use crate::mm::Direct;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::DomainId;
use sluice_hypercall::vif::{VIF_POOL, VIF_STRUCTURE};
use sluice_memory::{Gpa, Hpa, PAGE_SIZE, PhysicalMemory};
use sluice_vif::native::POOL;
use sluice_virtio::Fault;

/// Bytes of an entry of a list of pages.
const ENTRY: usize = 8;
/// Entries that are read at once.
const CHUNK: usize = 64;
/// A page that is there; addresses of pages have no such bit.
const THERE: u64 = 1;

/// A VIF's structure and its pool.
pub struct Pool {
    structure: Mirror,
    /// Guest-physical addresses of its pages with [`THERE`], or 0. They change while its driver has not started.
    pages: Box<[AtomicU64]>,
}

impl Pool {
    /// Of a guest's interface, with no pages yet. `None`: there is no memory.
    pub fn new(guest: DomainId) -> Option<Self> {
        let structure = Mirror::new(guest, VIF_STRUCTURE as usize / PAGE_SIZE as usize)?;
        Some(Self { structure, pages: (0..VIF_POOL).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Where the structure is, for the guest's nested page tables.
    pub fn structure(&self) -> Hpa {
        self.structure.hpa()
    }

    /// Takes back all pages.
    pub fn clear(&self) {
        self.pages.iter().for_each(|page| page.store(0, Ordering::Relaxed));
    }

    /// Takes the pages of a list in the guest's memory, and no others any more. Without an answer it has none: they are too many, or are not all whole pages
    /// of the guest's memory.
    pub fn fill(&self, domain: &Domain, list: u64, count: u32) -> Option<()> {
        self.clear();
        let places = self.pages.get(..count as usize)?;
        let mut chunks = places.chunks(CHUNK).zip((0u64..).step_by(CHUNK * ENTRY));
        let taken = chunks.all(|(places, after)| {
            let Some(at) = list.checked_add(after) else { return false };
            let mut bytes = [0; CHUNK * ENTRY];
            let bytes = &mut bytes[..places.len() * ENTRY];
            let known = domain.read(Gpa::new(at), bytes).is_ok();
            known
                && places.iter().zip(bytes.as_chunks().0).all(|(place, word)| {
                    let page = u64::from_le_bytes(*word);
                    let good = page.is_multiple_of(PAGE_SIZE) && domain.holds(Gpa::new(page), PAGE_SIZE);
                    place.store(if good { page | THERE } else { 0 }, Ordering::Relaxed);
                    good
                })
        });
        if !taken {
            self.clear();
        }
        taken.then_some(())
    }

    /// Calls `each` with the guest-physical addresses and lengths that make up a range of the pool.
    pub fn pieces(
        &self,
        address: u64,
        len: u32,
        mut each: impl FnMut(Gpa, u32) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (mut at, mut left) = (address.checked_sub(POOL).ok_or(Fault)?, len);
        while left != 0 {
            let place = usize::try_from(at / PAGE_SIZE).map_err(|_| Fault)?;
            let page = self.pages.get(place).ok_or(Fault)?.load(Ordering::Relaxed);
            let offset = at % PAGE_SIZE;
            let part = left.min((PAGE_SIZE - offset) as u32);
            if page & THERE == 0 {
                return Err(Fault);
            }
            each(Gpa::new(page - THERE + offset), part)?;
            (at, left) = (at + u64::from(part), left - part);
        }
        Ok(())
    }

    fn place(&self, address: u64, len: usize) -> Result<Hpa, Fault> {
        self.structure.at(address, len as u64).ok_or(Fault)
    }

    /// Fills `buffer` from an address on.
    pub fn read(&self, domain: &Domain, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        if address < POOL {
            Direct.read(self.place(address, buffer.len())?, buffer);
            return Ok(());
        }
        let mut rest = buffer;
        self.pieces(address, rest.len() as u32, |at, len| {
            let (part, after) = core::mem::take(&mut rest).split_at_mut_checked(len as usize).ok_or(Fault)?;
            rest = after;
            domain.read(at, part).map_err(|_| Fault)
        })
    }

    /// Stores `bytes` from an address on.
    pub fn write(&self, domain: &Domain, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if address < POOL {
            Direct.write(self.place(address, bytes.len())?, bytes);
            return Ok(());
        }
        let mut rest = bytes;
        self.pieces(address, rest.len() as u32, |at, len| {
            let (part, after) = rest.split_at_checked(len as usize).ok_or(Fault)?;
            rest = after;
            domain.write(at, part).map_err(|_| Fault)
        })
    }

    /// Writes something of the structure that the driver can only read, or what it begins with.
    pub fn set(&self, offset: u32, bytes: &[u8]) {
        if let Some(at) = self.structure.at(offset.into(), bytes.len() as u64) {
            Direct.write(at, bytes);
        }
    }

    /// Reads two bytes of the structure at once.
    pub fn read_u16(&self, address: u64) -> Result<u16, Fault> {
        Ok(Direct.read_u16(self.place(address, 2)?))
    }

    /// Writes two bytes of the structure at once.
    pub fn write_u16(&self, address: u64, value: u16) -> Result<(), Fault> {
        Direct.write_u16(self.place(address, 2)?, value);
        Ok(())
    }
}
