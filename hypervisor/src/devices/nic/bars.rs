//! BARs of a guest's software card: where they are in the guest, and what the guest finds there without an exit.
//!
//! Its ports are where no physical device of the configuration has any, and do not move, as no guest's ports do. Its memory is
//! wherever the guest puts it.

use super::super::device::Device;
use super::super::ports::free_ports;
use super::mirror::Mirror;
use crate::domain::{Domain, PageHandler, Piece, PortHandler};
use arrayvec::ArrayVec;
use sluice_emulated::{Bar, Description, Direct, PAGES, Shown};
use sluice_memory::{Gpa, Hpa, PAGE_SIZE};
use sluice_platform::pci::{BarAddresses, BarKind, Builder};
use sluice_traps::Direction;

/// A BAR and where it is to begin with.
#[derive(Clone, Copy)]
struct CardBar {
    bar: Bar,
    initial: u64,
    /// Bytes: whole pages of memory, of which the card ignores what is behind its registers.
    size: u64,
}

/// The BARs of a guest's card.
pub struct Bars {
    bars: ArrayVec<CardBar, 6>,
    /// What the guest sees of the card's memory without an exit.
    mirror: Option<Mirror>,
}

/// Where the BARs answer now, and with what.
pub struct Mapping {
    /// By BAR: where it answers now.
    mapped: [Option<u64>; 6],
    /// In the memory BAR.
    shown: Shown,
}

impl Mapping {
    /// The BARs answer nowhere yet; the memory BAR will show this.
    pub fn new(shown: Shown) -> Self {
        Self { mapped: [None; 6], shown }
    }

    /// Offset in BAR `bar` of a guest-physical address; `None` where the BAR does not answer.
    pub fn offset(&self, bar: u8, gpa: Gpa) -> Option<u64> {
        let base = self.mapped.get(usize::from(bar)).copied().flatten()?;
        gpa.as_u64().checked_sub(base)
    }
}

impl Bars {
    /// Finds places for the BARs of a card; `None` if the guest has no room for them.
    pub fn new(description: &Description, slot: u8, addresses: &mut BarAddresses) -> Option<Self> {
        let mut bars = ArrayVec::new();
        for bar in description.bars {
            let size = u64::from(bar.size).max(if bar.io { 0 } else { PAGE_SIZE });
            let initial = if bar.io { free_ports(slot) } else { addresses.take(size) }?;
            bars.try_push(CardBar { bar: *bar, initial, size }).ok()?;
        }
        Some(Self { bars, mirror: None })
    }

    /// The same BARs, whose memory the guest can read without an exit where it makes no difference.
    pub fn mirrored(self, mirror: Mirror) -> Self {
        Self { mirror: Some(mirror), ..self }
    }

    /// Adds them to the guest's view of the card.
    pub fn describe(&self, mut builder: Builder) -> Builder {
        for CardBar { bar, initial, size } in &self.bars {
            let kind = if bar.io { BarKind::Io } else { BarKind::Mem32 { prefetchable: false } };
            builder = builder.bar(bar.index, kind, *size, *initial);
        }
        builder
    }

    /// Offset of a port in the port BAR.
    pub fn port_offset(&self, port: u16) -> Option<u32> {
        let ports = self.bars.iter().find(|bar| bar.bar.io)?;
        Some(u64::from(port).checked_sub(ports.initial)? as u32)
    }
}

/// The BARs of a guest's card in its domain: carries out where they are.
pub struct Mapper<'a> {
    /// The domain.
    pub domain: &'a Domain,
    /// Index of the function in the domain.
    pub index: u8,
    /// The physical card.
    pub device: &'a Device,
    /// The BARs.
    pub bars: &'a Bars,
}

impl Mapper<'_> {
    /// Has each BAR answer where it is wanted (by index).
    pub fn map(&self, mapping: &mut Mapping, wanted: &[Option<u64>; 6]) {
        let Mapping { mapped, shown } = mapping;
        // First away with what moves, so that two BARs can change places.
        for adding in [false, true] {
            for bar in &self.bars.bars {
                let index = usize::from(bar.bar.index);
                let (Some(wanted), Some(mapped)) = (wanted.get(index), mapped.get_mut(index)) else {
                    continue;
                };
                match *mapped {
                    Some(at) if !adding && *wanted != Some(at) => {
                        self.remove(bar, at);
                        *mapped = None;
                    }
                    None if adding => *mapped = wanted.filter(|at| self.add(bar, *at, *shown)),
                    _ => {}
                }
            }
        }
    }

    /// Lets a BAR answer at an address. False if it cannot.
    fn add(&self, bar: &CardBar, at: u64, shown: Shown) -> bool {
        if bar.bar.io {
            self.domain.hook_ports(at as u16, bar.size as u16, PortHandler::Device(self.index), 0);
            return true;
        }
        self.domain.map_device(
            self.handler(bar),
            self.behind(bar, shown),
            &pieces(bar.size, at, &shown.direct),
        )
    }

    /// Lets a BAR answer no more.
    fn remove(&self, bar: &CardBar, at: u64) {
        if bar.bar.io {
            return self.domain.hook_ports(at as u16, bar.size as u16, PortHandler::None, 0);
        }
        self.domain.unmap_device(&pieces(bar.size, at, &Direct::default()));
    }

    /// The guest finds something else in its card's memory from now on.
    pub fn show(&self, mapping: &mut Mapping, new: Shown) {
        let old = core::mem::replace(&mut mapping.shown, new);
        for bar in self.bars.bars.iter().filter(|bar| !bar.bar.io) {
            let Some(at) = mapping.mapped.get(usize::from(bar.bar.index)).copied().flatten() else {
                continue;
            };
            let pages = old.direct.iter().zip(&new.direct);
            for (piece, (old_direct, direct)) in pieces(bar.size, at, &new.direct).iter().zip(pages) {
                let same = old_direct == direct && (old.hardware == new.hardware || direct.is_empty());
                if !same && !self.domain.redirect_device(self.handler(bar), self.behind(bar, new), piece) {
                    log::warn!("domain {}: no memory to show registers in", self.domain.name());
                }
            }
        }
    }

    fn handler(&self, bar: &CardBar) -> PageHandler {
        PageHandler::Device { function: self.index, bar: bar.bar.index }
    }

    /// Where a memory BAR is: the mirror, or the physical card.
    fn behind(&self, bar: &CardBar, shown: Shown) -> Hpa {
        let physical = self.device.function.bar(bar.bar.index).filter(|_| shown.hardware);
        let mirror = self.bars.mirror.as_ref().map_or(Hpa::new(0), Mirror::hpa);
        physical.map_or(mirror, |bar| Hpa::new(bar.address))
    }
}

/// The pages of a memory BAR of so many bytes that can be direct, one by one, and the rest.
pub fn pieces(size: u64, at: u64, direct: &Direct) -> ArrayVec<Piece, { PAGES + 1 }> {
    let pages = (0..PAGES as u64).map(|page| page * PAGE_SIZE..(page + 1) * PAGE_SIZE);
    let rest = PAGES as u64 * PAGE_SIZE..size;
    pages
        .zip(direct.iter().copied())
        .chain([(rest, Direction::empty())])
        .filter(|(range, _)| !range.is_empty() && range.end <= size)
        .map(|(range, direct)| Piece { gpa: Gpa::new(at + range.start), range, direct })
        .collect()
}
