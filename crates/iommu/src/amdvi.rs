//! AMD-Vi.
//!
//! - [`page`]: page tables; [`device`]: the device table, which leads to them; [`interrupt`]: interrupt tables.
//! - [`table`]: how entries of these are changed while a unit reads them, and what it is told to forget.
//! - [`command`], [`event`], [`register`]: how a unit is spoken to and what it answers.
//! - [`ivrs`]: the ACPI table that lists the units.
//! - `model` (feature `model`): a unit that caches all it ever may: for tests of whoever changes tables.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882, revision 3.07; sections are given where an
//! item is. Deviations: no guest translation, no device IOTLBs (ATS), no peripheral page requests, no guest virtual
//! APIC; interrupt table entries have 32 bits, so that processors up to 254 can be reached.

pub mod command;
pub mod device;
pub mod event;
pub mod interrupt;
pub mod ivrs;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod page;
pub mod register;
pub mod table;
