//! Physical PCI functions: finding them, and what configuration space says of them.
//!
//! Source: PCI Local Bus Specification 3.0, 6.1 (header), 6.2.5 (base addresses, expansion ROM), 6.7 and 6.8 (capabilities,
//! MSI, MSI-X), 3.2.2.3.2 (mechanism 1).

use crate::firmware::acpi;
use crate::mm::{self, Hpa};
use crate::sync::{Rank, SpinLock};
use crate::x86::port::{inl, outl};
use arrayvec::ArrayVec;
use core::fmt;
use sluice_abi::config::Select;
use sluice_iommu::group::Bridge;
use sluice_platform::pci::ROM_BAR;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;

const COMMAND: u8 = 0x04;
const ROM: u8 = 0x30;
const ROM_ENABLE: u32 = 1 << 0;
const ROM_ADDRESS: u32 = !0x7ff;
/// Command register: the function answers to its ports.
pub const COMMAND_IO: u16 = 1 << 0;
/// Command register: the function answers to its memory.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// Command register: the function may master the bus.
pub const COMMAND_MASTER: u16 = 1 << 2;
/// Command register: the function must not assert INTx.
pub const COMMAND_NO_INTX: u16 = 1 << 10;

static ACCESS: SpinLock<()> = SpinLock::new(Rank::PciPorts, ());

/// Bus, device and function number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bdf {
    /// 0-255.
    pub bus: u8,
    /// 0-31.
    pub device: u8,
    /// 0-7.
    pub function: u8,
}

impl fmt::Display for Bdf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

impl Bdf {
    fn select(self, offset: u8) -> u32 {
        1 << 31
            | u32::from(self.bus) << 16
            | u32::from(self.device) << 11
            | u32::from(self.function) << 8
            | u32::from(offset & 0xfc)
    }

    /// Reads an aligned word of configuration space.
    pub fn read(self, offset: u8) -> u32 {
        let _guard = ACCESS.lock();
        outl(ADDRESS, self.select(offset));
        inl(DATA)
    }

    /// Reads an aligned word of extended configuration space, where the machine maps it.
    fn read_extended(self, offset: u16) -> Option<u32> {
        let window = acpi::ecams()
            .iter()
            .find(|ecam| ecam.segment == 0 && (ecam.first_bus..=ecam.last_bus).contains(&self.bus))?;
        let devfn = u64::from(self.device) << 3 | u64::from(self.function);
        let at = window.base + (u64::from(self.bus) << 20 | devfn << 12 | u64::from(offset & 0xffc));
        let word = mm::map_mmio(Hpa::new(at), 4);
        // SAFETY: a word of configuration space, mapped uncached; reading it has no effect.
        Some(unsafe { word.cast::<u32>().read_volatile() })
    }

    /// Writes an aligned word of configuration space.
    pub fn write(self, offset: u8, value: u32) {
        let _guard = ACCESS.lock();
        outl(ADDRESS, self.select(offset));
        outl(DATA, value);
    }

    /// Reads a byte.
    pub fn read8(self, offset: u8) -> u8 {
        (self.read(offset) >> (8 * (offset & 3))) as u8
    }

    /// Changes one half of an aligned word: `high` for bits 31:16. The other half is written as it was read.
    pub fn change16(self, offset: u8, high: bool, set: u16, clear: u16) {
        let shift = if high { 16 } else { 0 };
        let word = self.read(offset);
        let half = ((word >> shift) as u16 & !clear) | set;
        self.write(offset, word & !(0xffff << shift) | u32::from(half) << shift);
    }

    /// Changes the command register; the status bits above it are write-one-to-clear and left alone.
    pub fn set_command(self, set: u16, clear: u16) {
        let command = (self.read(COMMAND) as u16 | set) & !clear;
        self.write(COMMAND, u32::from(command));
    }
}

/// A base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Index, 0-5; of an expansion ROM [`ROM_BAR`].
    pub index: u8,
    /// In port space; otherwise in memory.
    pub io: bool,
    /// Takes two registers.
    pub wide: bool,
    /// Prefetchable.
    pub prefetch: bool,
    /// Address as firmware set it.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// A function's own MSI capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiCapability {
    /// Where it is.
    pub offset: u8,
    /// The message address has 64 bits.
    pub wide: bool,
}

/// A function's own MSI-X capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// Where it is.
    pub offset: u8,
    /// Entries of the table.
    pub vectors: u16,
    /// BAR and offset of the table.
    pub table: (u8, u32),
    /// BAR and offset of the pending bits.
    pub pending: (u8, u32),
}

/// Capability identifiers (PCI Code and ID Assignment 1.11, 2).
pub mod capability {
    /// Power management.
    pub const POWER: u8 = 0x01;
    /// Message-signalled interrupts.
    pub const MSI: u8 = 0x05;
    /// Defined by the vendor.
    pub const VENDOR: u8 = 0x09;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSIX: u8 = 0x11;
    /// Advanced features of conventional PCI.
    pub const ADVANCED: u8 = 0x13;
}

/// A function with what its header says.
#[derive(Clone)]
pub struct Function {
    /// Where it is.
    pub bdf: Bdf,
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Class, subclass, interface.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// Subsystem vendor and subsystem.
    pub subsystem: (u16, u16),
    /// INTx pin: 1-4, 0 for none.
    pub pin: u8,
    /// Base addresses.
    pub bars: ArrayVec<Bar, 6>,
    /// Its expansion ROM, which does not answer but while it is [shown](Self::show_rom).
    pub rom: Option<Bar>,
    /// Its MSI capability.
    pub msi: Option<MsiCapability>,
    /// Its MSI-X capability.
    pub msix: Option<MsixCapability>,
}

/// Class of a disk that is an NVM Express controller (PCI Code and ID Assignment 1.11, 1.2).
pub const CLASS_NVME: u32 = 0x01_0802;

/// Whether a function is an IDE controller whose first channel is at the ports and the interrupt of old
/// (PCI IDE Controller Specification 1.0, 2.2).
pub fn is_compatible_ide(function: &Function) -> bool {
    function.class >> 8 == 0x0101 && function.class & 1 == 0
}

impl Function {
    fn probe(bdf: Bdf) -> Option<Self> {
        let id = bdf.read(0);
        if id as u16 == 0xffff {
            return None;
        }
        let class = bdf.read(0x08);
        let subsystem = bdf.read(0x2c);
        let mut function = Self {
            bdf,
            vendor: id as u16,
            device: (id >> 16) as u16,
            class: class >> 8,
            revision: class as u8,
            subsystem: (subsystem as u16, (subsystem >> 16) as u16),
            pin: (bdf.read(0x3c) >> 8) as u8,
            bars: ArrayVec::new(),
            rom: None,
            msi: None,
            msix: None,
        };
        if bdf.read(0x0c) >> 16 & 0x7f == 0 {
            function.size_bars();
            function.find_messages();
        }
        Some(function)
    }

    /// Where the capability `id` is.
    pub fn capability(&self, id: u8) -> Option<u8> {
        self.capabilities().find_map(|(at, found)| (found == id).then_some(at))
    }

    /// Offsets and identifiers of all capabilities, in their order.
    pub fn capabilities(&self) -> impl Iterator<Item = (u8, u8)> {
        const STATUS_CAPABILITIES: u32 = 1 << 20;
        let bdf = self.bdf;
        let has_some = bdf.read(COMMAND) & STATUS_CAPABILITIES != 0;
        let mut at = if has_some { bdf.read8(0x34) & !3 } else { 0 };
        // There is room for 48; a list that goes in a circle ends too.
        (0..48).map_while(move |_| {
            let here = at;
            if here < 0x40 {
                return None;
            }
            let head = bdf.read(here);
            at = (head >> 8) as u8 & !3;
            Some((here, head as u8))
        })
    }

    fn find_messages(&mut self) {
        self.msi = self
            .capability(capability::MSI)
            .map(|offset| MsiCapability { offset, wide: self.bdf.read(offset) >> 16 & 1 << 7 != 0 });
        let place = |word: u32| ((word & 7) as u8, word & !7);
        self.msix = self.capability(capability::MSIX).map(|offset| MsixCapability {
            offset,
            vectors: (self.bdf.read(offset) >> 16) as u16 % 0x800 + 1,
            table: place(self.bdf.read(offset + 4)),
            pending: place(self.bdf.read(offset + 8)),
        });
    }

    /// BAR `index`.
    pub fn bar(&self, index: u8) -> Option<&Bar> {
        self.bars.iter().find(|bar| bar.index == index)
    }

    /// Writes the addresses of all BARs, as they were found or put, and hides the expansion ROM.
    pub fn write_bars(&self) {
        for bar in &self.bars {
            let offset = 0x10 + bar.index * 4;
            self.bdf.write(offset, bar.address as u32);
            if bar.wide {
                self.bdf.write(offset + 4, (bar.address >> 32) as u32);
            }
        }
        self.bdf.write(ROM, 0);
    }

    /// Has the expansion ROM answer where it was found, or nowhere.
    pub fn show_rom(&self, shown: bool) {
        if let Some(rom) = &self.rom {
            self.bdf.write(ROM, if shown { rom.address as u32 | ROM_ENABLE } else { 0 });
        }
    }

    /// Memory behind a type 1 header (a bridge): what it forwards, prefetchable and not.
    pub fn forwarded(&self) -> [core::ops::Range<u64>; 2] {
        let window = |word: u32| {
            let (base, limit) =
                (u64::from(word & 0xfff0) << 16, u64::from(word >> 16 & 0xfff0) << 16 | 0xf_ffff);
            if base < limit { base..limit + 1 } else { 0..0 }
        };
        match self.is_bridge() && self.bdf.read(0x0c) >> 16 & 0x7f == 1 {
            true => [window(self.bdf.read(0x20)), window(self.bdf.read(0x24))],
            false => [0..0, 0..0],
        }
    }

    /// What it leads to, if it is a bridge to another bus.
    pub fn bridge(&self) -> Option<Bridge> {
        const TO_CONVENTIONAL: u32 = 7;
        const FROM_CONVENTIONAL: u32 = 8;
        if self.bdf.read(0x0c) >> 16 & 0x7f != 1 {
            return None;
        }
        let secondary = (self.bdf.read(0x18) >> 8) as u8;
        let kind = self.express_kind();
        Some(Bridge {
            secondary,
            from_express: kind.is_some_and(|kind| kind != FROM_CONVENTIONAL),
            to_express: kind.is_some_and(|kind| kind != TO_CONVENTIONAL),
        })
    }

    /// Device or port type of a PCI Express function (PCI Express 4.0, 7.5.3.2).
    fn express_kind(&self) -> Option<u32> {
        self.capability(capability::EXPRESS).map(|at| self.bdf.read(at) >> 20 & 0xf)
    }

    /// Whether its access control services send all requests between peers upward, to the IOMMU
    /// (PCI Express 4.0, 6.12.1 and 7.7.8): source validation, request and completion redirect, upstream forwarding.
    pub fn isolates(&self) -> bool {
        const ACCESS_CONTROL: u16 = 0x0d;
        const NEEDED: u32 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4;
        const UPSTREAM_PORT: u32 = 5;
        match self.express_kind() {
            // It has no peers on its bus.
            Some(UPSTREAM_PORT) => true,
            Some(_) => self
                .extended_capability(ACCESS_CONTROL)
                .and_then(|at| self.bdf.read_extended(at + 4))
                .is_some_and(|word| word >> 16 & word & NEEDED == NEEDED),
            None => false,
        }
    }

    /// Where the extended capability `id` is (PCI Express 4.0, 7.6.3).
    fn extended_capability(&self, id: u16) -> Option<u16> {
        let mut at = 0x100;
        // There is room for 960; a list that goes in a circle ends too.
        for _ in 0..960 {
            let head = self.bdf.read_extended(at)?;
            if head as u16 == id {
                return Some(at);
            }
            at = (head >> 20) as u16 & !3;
            if at < 0x100 {
                return None;
            }
        }
        None
    }

    /// Whether it can master the bus. The command bit does not tell: QEMU's NE2000 lets it be set,
    /// although the card moves all data by port accesses.
    pub fn masters_bus(&self) -> bool {
        sluice_abi::config::masters_bus(self.vendor, self.device)
    }

    /// Whether it is a bridge: its bus mastering serves others.
    fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
    }

    fn size_bars(&mut self) {
        let command = self.bdf.read(COMMAND) as u16;
        self.bdf.set_command(0, COMMAND_IO | COMMAND_MEMORY);
        let mut index = 0;
        while index < 6 {
            let offset = 0x10 + index * 4;
            let low = self.bdf.read(offset);
            let io = low & 1 != 0;
            let wide = !io && low >> 1 & 3 == 2;
            let mask = if io { !3u32 } else { !15 };
            self.bdf.write(offset, !0);
            let mut sized = u64::from(self.bdf.read(offset) & mask);
            self.bdf.write(offset, low);
            let mut address = u64::from(low & mask);
            if wide {
                let high = self.bdf.read(offset + 4);
                self.bdf.write(offset + 4, !0);
                sized |= u64::from(self.bdf.read(offset + 4)) << 32;
                self.bdf.write(offset + 4, high);
                address |= u64::from(high) << 32;
            } else if sized != 0 {
                sized |= if io { !0xffff } else { !0xffff_ffff };
                if io {
                    sized |= 0xffff_0000;
                }
            }
            if sized != 0 {
                let size = (!sized).wrapping_add(1);
                self.bars.push(Bar { index, io, wide, prefetch: !io && low & 8 != 0, address, size });
            }
            index += if wide { 2 } else { 1 };
        }
        let found = self.bdf.read(ROM);
        self.bdf.write(ROM, ROM_ADDRESS);
        let sized = self.bdf.read(ROM) & ROM_ADDRESS;
        self.bdf.write(ROM, found);
        self.rom = (sized != 0).then(|| Bar {
            index: ROM_BAR,
            io: false,
            wide: false,
            prefetch: false,
            address: (found & ROM_ADDRESS).into(),
            size: (!sized).wrapping_add(1).into(),
        });
        self.bdf.write(COMMAND, u32::from(command));
    }
}

/// All functions, in bus order.
pub fn functions() -> impl Iterator<Item = Function> {
    (0..=255u8).flat_map(|bus| (0..32u8).map(move |device| (bus, device))).flat_map(|(bus, device)| {
        let first = Bdf { bus, device, function: 0 };
        let header = if first.read(0) as u16 == 0xffff { None } else { Some(first.read(0x0c) >> 16) };
        let count = match header {
            None => 0,
            Some(header) if header & 0x80 != 0 => 8,
            Some(_) => 1,
        };
        (0..count).filter_map(move |function| Function::probe(Bdf { bus, device, function }))
    })
}

/// The function that a configuration means.
pub fn find(select: &Select) -> Option<Function> {
    match *select {
        Select::Id { vendor, device, nth } => {
            functions().filter(|f| f.vendor == vendor && f.device == device).nth(usize::from(nth))
        }
        Select::Address { bus, device, function } => Function::probe(Bdf { bus, device, function }),
    }
}

/// Takes the bus away from every function that is not a bridge: nobody owns them yet. Before [`crate::iommu::start`], so that
/// it sees no request that firmware left under way.
pub fn quiet_all() {
    for function in functions().filter(|function| !function.is_bridge()) {
        function.bdf.set_command(0, COMMAND_MASTER);
    }
}
