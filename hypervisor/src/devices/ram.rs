//! A guest's memory, for what reads and writes it by the addresses that the guest's drivers use.

use crate::domain::Domain;
use alloc::sync::Arc;
use sluice_memory::Gpa;
use sluice_virtio::{Fault, Memory};

/// The memory of a guest. Every access is validated; what lies beyond it is a fault of the driver's.
#[derive(Clone)]
pub struct Ram(pub Arc<Domain>);

impl Memory for Ram {
    #[inline]
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        self.0.read(Gpa::new(address), buffer).map_err(|_| Fault)
    }

    #[inline]
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.0.write(Gpa::new(address), bytes).map_err(|_| Fault)
    }

    #[inline]
    fn read_u16(&self, address: u64) -> Result<u16, Fault> {
        self.0.read_u16(Gpa::new(address)).map_err(|_| Fault)
    }

    #[inline]
    fn write_u16(&self, address: u64, value: u16) -> Result<(), Fault> {
        self.0.write_u16(Gpa::new(address), value).map_err(|_| Fault)
    }
}

impl sluice_vif::Memory for Ram {
    #[inline]
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault> {
        self.0.copy(Gpa::new(from), (&other.0, Gpa::new(to)), len.into()).map_err(|_| Fault)
    }

    #[inline]
    fn holds(&self, address: u64, len: u32) -> bool {
        self.0.holds(Gpa::new(address), len.into())
    }
}
