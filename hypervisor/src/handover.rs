//! What the boot loader hands over: the memory map, the boot module, the command line. Boot protocols fill it in.

use arrayvec::{ArrayString, ArrayVec};
use core::ops::Range;
use sluice_memory::{Hpa, PAGE_SIZE};
use sluice_screen::Geometry;

/// Most regions of the memory map that are kept.
pub const MAX_REGIONS: usize = 128;

/// What a range of physical addresses is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Memory, free to use.
    Usable,
    /// Memory that holds ACPI tables or state.
    Acpi,
    /// Anything else.
    Reserved,
}

impl RegionKind {
    /// From the type of an E820 or multiboot2 entry.
    fn from_e820(kind: u32) -> Self {
        match kind {
            1 => RegionKind::Usable,
            3 | 4 => RegionKind::Acpi,
            _ => RegionKind::Reserved,
        }
    }

    /// Whether it is to be mapped cached.
    pub fn is_memory(self) -> bool {
        self != RegionKind::Reserved
    }
}

/// A range of physical addresses.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// What it is for.
    pub kind: RegionKind,
}

impl Region {
    /// Its pages: the whole pages of usable memory, every page that holds some of a firmware table.
    pub fn pages(&self) -> Range<u64> {
        let (start, end) = (self.start, self.end);
        match self.kind {
            RegionKind::Usable => {
                let start = start.next_multiple_of(PAGE_SIZE);
                start..(end & !(PAGE_SIZE - 1)).max(start)
            }
            _ => start & !(PAGE_SIZE - 1)..end.next_multiple_of(PAGE_SIZE),
        }
    }
}

/// What the boot loader left on the machine's screen.
#[derive(Clone, Copy, Debug)]
pub enum Display {
    /// Characters, in the text mode of a VGA.
    Text {
        /// Where they are.
        address: Hpa,
        /// Characters in a row.
        columns: u32,
        /// Rows.
        rows: u32,
        /// Bytes from a row to the next.
        pitch: u32,
    },
    /// Pixels.
    Pixels {
        /// Where they are.
        address: Hpa,
        /// How they lie there.
        geometry: Geometry,
    },
}

/// What the boot loader told, copied out of its memory.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// Name of the protocol.
    pub protocol: &'static str,
    /// The memory map, in the loader's order.
    pub memory: ArrayVec<Region, MAX_REGIONS>,
    /// ACPI root pointer, if the loader knows.
    pub rsdp: Option<Hpa>,
    /// The boot module: address and bytes.
    pub bundle: Option<(Hpa, u64)>,
    /// The machine's screen, if the loader knows one.
    pub display: Option<Display>,
    /// The command line, cut off at 256 bytes.
    pub cmdline: ArrayString<256>,
}

impl BootInfo {
    /// What every protocol begins with.
    pub fn new(protocol: &'static str) -> Self {
        Self {
            protocol,
            memory: ArrayVec::new(),
            rsdp: None,
            bundle: None,
            display: None,
            cmdline: ArrayString::new(),
        }
    }

    /// Notes a range of the memory map; `kind` as in an E820 or multiboot2 entry.
    pub fn add_region(&mut self, start: u64, bytes: u64, kind: u32) {
        let region = Region { start, end: start.saturating_add(bytes), kind: RegionKind::from_e820(kind) };
        if bytes > 0 {
            let _ = self.memory.try_push(region);
        }
    }

    /// Notes the command line.
    pub fn set_cmdline(&mut self, bytes: impl Iterator<Item = u8>) {
        for byte in bytes.take(self.cmdline.capacity()) {
            self.cmdline.push(if byte.is_ascii_graphic() { char::from(byte) } else { ' ' });
        }
    }

    /// Value of `key=value` in the command line.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.cmdline.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}
