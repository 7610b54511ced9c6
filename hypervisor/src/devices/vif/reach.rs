//! Memory of a guest as far as an engine reaches it.

use super::pool::Pool;
use crate::devices::ram::Ram;
use crate::domain::Domain;
use alloc::sync::Arc;
use sluice_memory::Gpa;
use sluice_virtio::{Fault, Memory};

/// Memory of a guest, by the addresses that the driver of its VIF uses.
#[derive(Clone)]
pub enum Reach {
    /// All of it: guest-physical addresses.
    Guest(Ram),
    /// What the driver of a native VIF has handed over.
    Native(Arc<Domain>, Arc<Pool>),
}

impl Reach {
    /// The guest, if all of its memory is reached.
    pub fn guest(&self) -> Option<&Domain> {
        match self {
            Self::Guest(Ram(domain)) => Some(domain),
            Self::Native(..) => None,
        }
    }

    /// Calls `each` with the guest, and the guest-physical addresses and lengths that make up a range.
    fn pieces(
        &self,
        address: u64,
        len: u32,
        mut each: impl FnMut(&Domain, Gpa, u32) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        match self {
            Self::Guest(Ram(domain)) => each(domain, Gpa::new(address), len),
            Self::Native(domain, pool) => pool.pieces(address, len, |at, len| each(domain, at, len)),
        }
    }
}

impl Memory for Reach {
    #[inline]
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        match self {
            Self::Guest(ram) => ram.read(address, buffer),
            Self::Native(domain, pool) => pool.read(domain, address, buffer),
        }
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Self::Guest(ram) => ram.write(address, bytes),
            Self::Native(domain, pool) => pool.write(domain, address, bytes),
        }
    }

    #[inline]
    fn read_u16(&self, address: u64) -> Result<u16, Fault> {
        match self {
            Self::Guest(ram) => ram.read_u16(address),
            Self::Native(_, pool) => pool.read_u16(address),
        }
    }

    #[inline]
    fn write_u16(&self, address: u64, value: u16) -> Result<(), Fault> {
        match self {
            Self::Guest(ram) => ram.write_u16(address, value),
            Self::Native(_, pool) => pool.write_u16(address, value),
        }
    }
}

impl sluice_vif::Memory for Reach {
    #[inline]
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault> {
        let mut done = 0;
        self.pieces(from, len, |source, at, len| {
            let mut here = at.as_u64();
            other.pieces(to.checked_add(done).ok_or(Fault)?, len, |target, to, len| {
                source.copy(Gpa::new(here), (target, to), len.into()).map_err(|_| Fault)?;
                here += u64::from(len);
                Ok(())
            })?;
            done += u64::from(len);
            Ok(())
        })
    }

    #[inline]
    fn holds(&self, address: u64, len: u32) -> bool {
        match self {
            Self::Guest(ram) => ram.holds(address, len),
            Self::Native(_, pool) => pool.pieces(address, len, |_, _| Ok(())).is_ok(),
        }
    }
}
