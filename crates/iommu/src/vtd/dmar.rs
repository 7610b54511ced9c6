//! The ACPI table that lists remapping units: DMAR (D51397, chapter 8).
//!
//! Firmware wrote it, and it is read as anything could stand there: what is cut off or unknown is skipped, what names
//! functions that do not exist is left out. Key types: [`Dmar`], [`UnitEntry`], [`Scope`].
//!
//! Paths to functions lead through bridges, by the bus numbers that they have now. Whoever calls [`Dmar::parse`] looks
//! them up, and must not renumber buses afterwards.
//!
//! Deviations: ATSR, RHSA, ANDD, SATC and SIDP structures are skipped: there are no device TLBs and no ACPI devices here.

use crate::RequesterId;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};
use sluice_memory::{Hpa, PAGE_SIZE};

/// Bytes before the first structure.
const HEADER: usize = 48;
const FLAGS: usize = 37;
const INTERRUPT_REMAPPING: u8 = 1;

const UNIT: u16 = 0;
const RESERVED_MEMORY: u16 = 1;

const ENDPOINT: u8 = 1;
const BRIDGE: u8 = 2;
const IO_APIC: u8 = 3;
const HPET: u8 = 4;
const ACPI_DEVICE: u8 = 5;

/// Functions that a structure is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One function.
    Function(RequesterId),
    /// A bridge, and everything on the buses behind it.
    Behind(RequesterId, RangeInclusive<u8>),
}

impl Scope {
    /// Whether the requester is one of them.
    pub fn covers(&self, requester: RequesterId) -> bool {
        match self {
            Self::Function(function) => *function == requester,
            Self::Behind(bridge, buses) => *bridge == requester || buses.contains(&requester.bus()),
        }
    }
}

/// A remapping unit (DRHD).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitEntry {
    /// Where its registers are.
    pub base: Hpa,
    /// PCI segment that its functions are on.
    pub segment: u16,
    /// It has all functions of the segment that no other unit has.
    pub takes_rest: bool,
    /// What it has.
    pub scopes: Vec<Scope>,
    /// I/O APICs behind it: identifier, and who requests their interrupts.
    pub io_apics: Vec<(u8, RequesterId)>,
    /// HPET blocks behind it, likewise.
    pub hpets: Vec<(u8, RequesterId)>,
}

/// Memory that functions must reach at its own address (RMRR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedMemory {
    /// Whole pages.
    pub range: Range<u64>,
    /// PCI segment of the functions.
    pub segment: u16,
    /// Which.
    pub scopes: Vec<Scope>,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dmar {
    /// The platform can remap interrupts.
    pub remaps_interrupts: bool,
    /// Units, in the table's order.
    pub units: Vec<UnitEntry>,
    /// Memory of functions.
    pub reserved: Vec<ReservedMemory>,
    /// Structures and scopes that were left out for not making sense here: cut off, or about functions that are not there.
    pub skipped: u32,
}

/// The bus numbers from the secondary to the subordinate of the bridge at a place; `None` if no bridge is there.
pub trait Bridges: Fn(RequesterId) -> Option<RangeInclusive<u8>> {}

impl<F: Fn(RequesterId) -> Option<RangeInclusive<u8>>> Bridges for F {}

impl Dmar {
    /// Reads the table, header included; its signature and checksum have been checked.
    pub fn parse(table: &[u8], bridges: impl Bridges) -> Self {
        let mut dmar = Self::default();
        let Some(flags) = table.get(FLAGS) else { return dmar };
        dmar.remaps_interrupts = flags & INTERRUPT_REMAPPING != 0;
        let mut rest = table.get(HEADER..).unwrap_or_default();
        while !rest.is_empty() {
            let structure = u16_at(rest, 2).map(usize::from).filter(|length| *length >= 4);
            let Some((structure, after)) = structure.and_then(|length| rest.split_at_checked(length)) else {
                dmar.skipped += 1;
                break;
            };
            rest = after;
            if dmar.read(structure, &bridges).is_none() {
                dmar.skipped += 1;
            }
        }
        dmar
    }

    /// Index of the unit that requests of a function of the segment come to. If several claim it, the first has it.
    pub fn unit_of(&self, segment: u16, requester: RequesterId) -> Option<usize> {
        let claims = |unit: &UnitEntry| {
            unit.segment == segment && unit.scopes.iter().any(|scope| scope.covers(requester))
        };
        self.units
            .iter()
            .position(claims)
            .or_else(|| self.units.iter().position(|unit| unit.segment == segment && unit.takes_rest))
    }

    /// Ranges that a function must reach at their own addresses.
    pub fn unity(&self, segment: u16, requester: RequesterId) -> impl Iterator<Item = Range<u64>> {
        self.reserved
            .iter()
            .filter(move |memory| {
                memory.segment == segment && memory.scopes.iter().any(|scope| scope.covers(requester))
            })
            .map(|memory| memory.range.clone())
    }

    fn read(&mut self, structure: &[u8], bridges: &impl Bridges) -> Option<()> {
        match u16_at(structure, 0)? {
            UNIT => self.read_unit(structure, bridges),
            RESERVED_MEMORY => self.read_reserved(structure, bridges),
            _ => Some(()),
        }
    }

    fn read_unit(&mut self, structure: &[u8], bridges: &impl Bridges) -> Option<()> {
        const TAKES_REST: u8 = 1;
        let base = u64_at(structure, 8)?;
        if base == 0 || !base.is_multiple_of(PAGE_SIZE) {
            return None;
        }
        let mut unit = UnitEntry {
            base: Hpa::new(base),
            segment: u16_at(structure, 6)?,
            takes_rest: structure.get(4)? & TAKES_REST != 0,
            scopes: Vec::new(),
            io_apics: Vec::new(),
            hpets: Vec::new(),
        };
        self.skipped += each_scope(structure.get(16..)?, bridges, |kind, id, scope| match (kind, scope) {
            (IO_APIC, Scope::Function(requester)) => unit.io_apics.push((id, requester)),
            (HPET, Scope::Function(requester)) => unit.hpets.push((id, requester)),
            (_, scope) => unit.scopes.push(scope),
        });
        self.units.push(unit);
        Some(())
    }

    fn read_reserved(&mut self, structure: &[u8], bridges: &impl Bridges) -> Option<()> {
        let (start, last) = (u64_at(structure, 8)?, u64_at(structure, 16)?);
        let end = last.checked_add(1)?.checked_next_multiple_of(PAGE_SIZE)?;
        let start = start & !(PAGE_SIZE - 1);
        if start >= end {
            return None;
        }
        let mut memory =
            ReservedMemory { range: start..end, segment: u16_at(structure, 6)?, scopes: Vec::new() };
        self.skipped += each_scope(structure.get(24..)?, bridges, |kind, _, scope| {
            if matches!(kind, ENDPOINT | BRIDGE | ACPI_DEVICE) {
                memory.scopes.push(scope);
            }
        });
        self.reserved.push(memory);
        Some(())
    }
}

/// Reads the device scopes (8.3.1) to the end of their structure: kind, enumeration identifier, functions. Returns how
/// many were left out.
fn each_scope(mut rest: &[u8], bridges: &impl Bridges, mut take: impl FnMut(u8, u8, Scope)) -> u32 {
    const PATH: usize = 6;
    let mut skipped = 0;
    while let [kind, length, ..] = *rest {
        let whole = (usize::from(length) >= PATH).then(|| rest.split_at_checked(length.into())).flatten();
        let Some((scope, after)) = whole else { return skipped + 1 };
        rest = after;
        let read = || {
            let function = follow(*scope.get(5)?, scope.get(PATH..)?, bridges)?;
            match kind {
                ENDPOINT | IO_APIC | HPET | ACPI_DEVICE => Some(Scope::Function(function)),
                BRIDGE => Some(Scope::Behind(function, bridges(function)?)),
                _ => None,
            }
        };
        match (read(), scope.get(4)) {
            (Some(functions), Some(id)) => take(kind, *id, functions),
            _ => skipped += 1,
        }
    }
    skipped + u32::from(!rest.is_empty())
}

/// Follows a path of device and function numbers from a bus; all but the last are bridges.
fn follow(mut bus: u8, path: &[u8], bridges: &impl Bridges) -> Option<RequesterId> {
    let (steps, []) = path.as_chunks::<2>() else { return None };
    let ([device, function], above) = steps.split_last()?;
    for [device, function] in above {
        bus = *bridges(place(bus, *device, *function)?)?.start();
    }
    place(bus, *device, *function)
}

fn place(bus: u8, device: u8, function: u8) -> Option<RequesterId> {
    (device < 32 && function < 8).then(|| RequesterId::new(bus, device, function))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
