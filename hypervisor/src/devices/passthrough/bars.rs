//! BARs of a function that a guest owns, and its expansion ROM: where they are in the guest, and accesses to them that exit.
//!
//! Source: PCI Local Bus 3.0, 6.2.5.

use super::messages;
use crate::domain::{Domain, PageHandler, Piece, PortHandler, Transfer};
use crate::pci::reset::Registers;
use crate::pci::{self, Function};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::ops::Range;
use sluice_memory::{Gpa, Hpa, PAGE_SIZE};
use sluice_platform::pci::{Bar, BarAddresses, BarKind, Builder, ROM_BAR};
use sluice_traps::Direction;

/// A memory BAR as the guest sees it, or the expansion ROM.
#[derive(Clone, Copy, Debug)]
struct MemoryBar {
    index: u8,
    kind: BarKind,
    /// Whole pages: the guest gets at least one, which nothing else physical is in.
    size: u64,
    hpa: u64,
    /// Guest-physical address to begin with.
    initial: u64,
    /// Whether the MSI-X table is in it, and then which pages of it are trapped (offsets).
    trapped: (u64, u64),
}

impl MemoryBar {
    fn new(bar: &pci::Bar, function: &Function, addresses: Option<&mut BarAddresses>) -> Option<Self> {
        let size = bar.size.max(PAGE_SIZE);
        let prefetchable = bar.prefetch;
        let kind = match bar.index {
            ROM_BAR => BarKind::Rom,
            _ if bar.wide => BarKind::Mem64 { prefetchable },
            _ => BarKind::Mem32 { prefetchable },
        };
        // Without addresses of its own the guest has no MSI-X, and the table in the function means nothing.
        let table = messages::table_in(function, bar.index).filter(|_| addresses.is_some());
        let trapped = table.map_or((0, 0), |table| {
            (table.start & !(PAGE_SIZE - 1), table.end.next_multiple_of(PAGE_SIZE).min(size))
        });
        let initial = match addresses {
            Some(addresses) => addresses.take(size)?,
            None => bar.address,
        };
        Some(Self { index: bar.index, kind, size, hpa: bar.address, initial, trapped })
    }

    /// Whether it is memory, which may be read and written in any order and by anybody (PCI Local Bus 3.0, 6.2.5.1), and no registers.
    fn is_memory(&self) -> bool {
        matches!(self.kind, BarKind::Mem32 { prefetchable: true } | BarKind::Mem64 { prefetchable: true })
    }

    /// Its pieces at `gpa`: address, offset, bytes, whether accesses exit.
    fn pieces(&self, gpa: u64) -> ArrayVec<Piece, 3> {
        let (start, end) = self.trapped;
        let direct = if self.kind == BarKind::Rom { Direction::READ } else { Direction::all() };
        let all = [(0..start, direct), (start..end, Direction::empty()), (end..self.size, direct)];
        all.into_iter()
            .filter(|(range, _)| !range.is_empty())
            .map(|(range, direct)| Piece { gpa: Gpa::new(gpa.wrapping_add(range.start)), range, direct })
            .collect()
    }
}

/// Six BARs, and the expansion ROM.
const BARS: usize = ROM_BAR as usize + 1;

/// The BARs of a function, and where they answer in the guest now.
pub struct Bars {
    memory: ArrayVec<MemoryBar, BARS>,
    /// Guest-physical address at which a memory BAR is mapped now, by BAR.
    mapped: [Option<u64>; BARS],
    /// Whether a port BAR answers, by BAR.
    decoded: [bool; 6],
}

impl Bars {
    /// Finds guest addresses for the memory BARs of a function; `None` where there is no room for them. Without addresses they are where
    /// they physically are.
    pub fn new(function: &Function, mut addresses: Option<&mut BarAddresses>) -> Option<Self> {
        let memory = function.bars.iter().filter(|bar| !bar.io);
        let memory = memory.map(|bar| MemoryBar::new(bar, function, addresses.as_deref_mut()));
        let mut memory = memory.collect::<Option<ArrayVec<_, BARS>>>()?;
        // A guest that knows the machine has what it has for life. It can do without.
        if let (Some(rom), Some(addresses)) = (&function.rom, addresses) {
            memory.extend(MemoryBar::new(rom, function, Some(addresses)));
        }
        Some(Self { memory, mapped: [None; BARS], decoded: [false; 6] })
    }

    /// Frames of the memory BARs, where they physically are.
    pub fn registers(&self) -> Vec<Range<u64>> {
        let frames = |bar: &MemoryBar| bar.hpa / PAGE_SIZE..(bar.hpa + bar.size) / PAGE_SIZE;
        self.memory.iter().map(frames).collect()
    }

    /// Adds them to the guest's view of the function.
    pub fn describe(&self, mut builder: Builder, function: &Function) -> Builder {
        for bar in function.bars.iter().filter(|bar| bar.io) {
            builder = builder.bar(bar.index, BarKind::Io, bar.size, bar.address);
        }
        for bar in &self.memory {
            builder = builder.bar(bar.index, bar.kind, bar.size, bar.initial);
        }
        builder
    }

    /// Has the port BARs answer while the guest wants them to.
    pub fn map_ports(&mut self, domain: &Domain, function: &Function, bars: &[Option<Bar>; BARS]) {
        for bar in function.bars.iter().filter(|bar| bar.io) {
            let enabled = answers(bars, bar.index).is_some();
            if core::mem::replace(&mut self.decoded[usize::from(bar.index)], enabled) != enabled {
                let (base, count) = (bar.address as u16, bar.size as u16);
                match enabled {
                    true => domain.open_ports(base, count),
                    false => domain.hook_ports(base, count, PortHandler::None, 0),
                }
            }
        }
    }

    /// Has the memory BARs answer where the guest put them, and the expansion ROM only while it wants that to: a function may not answer elsewhere
    /// meanwhile (6.2.5.2). `index` is the function's in the domain.
    pub fn map(&mut self, domain: &Domain, function: &Function, index: u8, bars: &[Option<Bar>; BARS]) {
        let showed_rom = self.shows_rom();
        // First away with what moves, so that two BARs can change places.
        for bar in &self.memory {
            let wanted = answers(bars, bar.index).map(|bar| bar.address);
            let mapped = &mut self.mapped[usize::from(bar.index)];
            if *mapped != wanted
                && let Some(gpa) = mapped.take()
            {
                domain.unmap_device(&bar.pieces(gpa));
                if bar.is_memory() {
                    domain.take_back_device_memory(bar.hpa..bar.hpa + bar.size);
                }
            }
        }
        for bar in &self.memory {
            let Some(wanted) = answers(bars, bar.index) else { continue };
            let mapped = &mut self.mapped[usize::from(bar.index)];
            if mapped.is_none() {
                let handler = PageHandler::Device { function: index, bar: bar.index };
                let (hpa, pieces) = (Hpa::new(bar.hpa), bar.pieces(wanted.address));
                let is_there = match bar.is_memory() {
                    true => domain.map_device_memory(handler, hpa, &pieces),
                    false => domain.map_device(handler, hpa, &pieces),
                };
                if is_there {
                    *mapped = Some(wanted.address);
                }
            }
        }
        if self.shows_rom() != showed_rom {
            function.show_rom(!showed_rom);
        }
    }

    fn shows_rom(&self) -> bool {
        self.mapped[usize::from(ROM_BAR)].is_some()
    }

    /// Offset in memory BAR `bar` of a guest-physical address; `None` where the BAR does not answer.
    pub fn offset(&self, bar: u8, gpa: Gpa) -> Option<u64> {
        let base = self.mapped.get(usize::from(bar)).copied().flatten()?;
        gpa.as_u64().checked_sub(base)
    }
}

/// Where a BAR answers in the guest, if it does.
fn answers(bars: &[Option<Bar>; BARS], index: u8) -> Option<Bar> {
    bars.get(usize::from(index)).copied().flatten().filter(|bar| bar.enabled)
}

/// Makes an access to the function itself, in the widest pieces that are aligned.
pub fn forward(function: &Function, bar: u8, offset: u64, mut transfer: Transfer<'_>) {
    let registers = Registers::of(function, bar);
    let mut done = 0;
    while done < transfer.len() {
        let (at, left) = (offset + done as u64, transfer.len() - done);
        let width = [8u8, 4, 2, 1]
            .into_iter()
            .find(|width| usize::from(*width) <= left && at.is_multiple_of(u64::from(*width)))
            .unwrap_or(1);
        let part = transfer.part(done..done + usize::from(width));
        match (part, &registers) {
            (Transfer::Read(buffer), Some(registers)) => {
                let value = registers.read_wide(at, width).unwrap_or(u64::MAX).to_le_bytes();
                buffer.iter_mut().zip(value).for_each(|(to, from)| *to = from);
            }
            (Transfer::Write(bytes), Some(registers)) => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                let _ = registers.write_wide(at, width, u64::from_le_bytes(word));
            }
            (Transfer::Read(buffer), None) => buffer.fill(0xff),
            (Transfer::Write(_), None) => {}
        }
        done += usize::from(width);
    }
}
