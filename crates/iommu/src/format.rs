//! The page tables of both kinds of IOMMU as one type, so that an I/O space does not care whose it has.

use crate::{amdvi, vtd};
use sluice_memory::{Access, Entry, Format, Hpa};

/// The format of an I/O space's page tables, as a unit demands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// AMD's I/O page tables.
    AmdVi(amdvi::page::HostFormat),
    /// Intel's second-level tables.
    Vtd(vtd::page::SecondLevel),
}

macro_rules! delegate {
    ($self:ident, $format:ident => $call:expr) => {
        match $self {
            Self::AmdVi($format) => $call,
            Self::Vtd($format) => $call,
        }
    };
}

impl Format for PageFormat {
    fn levels(self) -> u32 {
        delegate!(self, format => format.levels())
    }

    fn largest_leaf(self) -> u32 {
        delegate!(self, format => format.largest_leaf())
    }

    fn leaf(self, hpa: Hpa, access: Access, level: u32) -> u64 {
        delegate!(self, format => format.leaf(hpa, access, level))
    }

    fn table(self, table: Hpa, level: u32) -> u64 {
        delegate!(self, format => format.table(table, level))
    }

    fn decode(self, entry: u64, level: u32) -> Entry {
        delegate!(self, format => format.decode(entry, level))
    }
}
