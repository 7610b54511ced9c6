//! One PCI function: 256 bytes of configuration space under a write mask, and what they mean.
//!
//! Source: PCI Local Bus 3.0, 6.1-6.2 (header), 6.2.5 (BARs, expansion ROM), 6.8 (MSI and MSI-X).

use super::{ConfigEffect, ones};
use crate::msix::ENTRY_SIZE;
use alloc::boxed::Box;

/// Bits of the command register (6.2.2).
pub mod command {
    /// Port BARs answer.
    pub const IO: u16 = 1 << 0;
    /// Memory BARs answer.
    pub const MEMORY: u16 = 1 << 1;
    /// The function may master the bus.
    pub const BUS_MASTER: u16 = 1 << 2;
    /// INTx is off.
    pub const INTX_DISABLE: u16 = 1 << 10;
    /// Bits that the guest may set: the above, special cycles and write-invalidate, parity and SERR.
    pub(super) const WRITABLE: u16 = 0x055F;
}

/// Offsets in the header.
mod reg {
    pub const COMMAND: u8 = 0x04;
    pub const STATUS: usize = 0x06;
    pub const CACHE_LINE: usize = 0x0C;
    pub const LATENCY: usize = 0x0D;
    pub const HEADER_TYPE: usize = 0x0E;
    pub const BARS: u8 = 0x10;
    pub const BARS_END: u8 = 0x28;
    pub const SUBSYSTEM: usize = 0x2C;
    pub const ROM: u8 = 0x30;
    pub const CAPABILITIES: usize = 0x34;
    pub const INTERRUPT_LINE: usize = 0x3C;
    pub const INTERRUPT_PIN: usize = 0x3D;
    /// Where the capabilities are put, the last up to the end of the space.
    pub const MSI: u8 = 0x50;
    pub const MSIX: u8 = 0x70;
    pub const OTHERS: u16 = 0x80;
}

/// The number of an expansion ROM where BARs have theirs.
pub const ROM_BAR: u8 = 6;
/// It answers (6.2.5.2).
const ROM_ENABLE: u32 = 1 << 0;

/// Header type: the device has more functions than this.
const MULTIFUNCTION: u8 = 1 << 7;
const STATUS_INTERRUPT: u16 = 1 << 3;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const MSI_ENABLE: u16 = 1 << 0;
const MSI_64_BIT: u16 = 1 << 7;
const MSI_MASKABLE: u16 = 1 << 8;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_MASK_ALL: u16 = 1 << 14;

/// Who a function says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class, subclass and programming interface: 24 bits.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
}

/// What a BAR decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// Ports.
    Io,
    /// Memory below 4 GiB.
    Mem32 {
        /// Reads have no side effects.
        prefetchable: bool,
    },
    /// Memory anywhere; the BAR takes two registers.
    Mem64 {
        /// Reads have no side effects.
        prefetchable: bool,
    },
    /// An expansion ROM, below 4 GiB: [`ROM_BAR`] only.
    Rom,
}

impl BarKind {
    /// The read-only low bits of the register (6.2.5.1, 6.2.5.2).
    fn flags(self) -> u32 {
        match self {
            Self::Io => 0b01,
            Self::Mem32 { prefetchable } => u32::from(prefetchable) << 3,
            Self::Mem64 { prefetchable } => 0b100 | u32::from(prefetchable) << 3,
            Self::Rom => 0,
        }
    }
}

/// What a BAR was built as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarWindow {
    /// What it decodes.
    pub kind: BarKind,
    /// Size in bytes, a power of two.
    pub size: u64,
    /// Address at reset.
    pub initial: u64,
}

/// Where a BAR is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// What it decodes.
    pub kind: BarKind,
    /// Port or guest-physical address, a multiple of the size.
    pub address: u64,
    /// Size in bytes, a power of two.
    pub size: u64,
    /// It answers: its bit of the command register is on, that of an expansion ROM itself, too, and its address is one that it may have.
    pub enabled: bool,
}

/// What the guest programmed into an MSI capability (6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// The function is to use MSI instead of INTx.
    pub enabled: bool,
    /// Message address.
    pub address: u64,
    /// Message data, its low bits zero if there are several vectors.
    pub data: u16,
    /// Vectors that the guest allows, 1-32.
    pub vectors: u8,
    /// Vectors that it masks, by bit.
    pub masked: u32,
}

/// An MSI-X capability (6.8.2). The table itself is in the BAR's memory: see [`crate::msix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// The function is to use MSI-X instead of INTx.
    pub enabled: bool,
    /// All vectors are masked.
    pub masked: bool,
    /// Vectors, 1-2048.
    pub vectors: u16,
    /// BAR and offset of the table.
    pub table: (u8, u32),
    /// BAR and offset of the pending bits.
    pub pending: (u8, u32),
}

/// Why a function cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The slot is taken, or there is none of this number.
    Slot(u8),
    /// There are six BARs, of which a 64-bit one takes two, and an expansion ROM is none of them.
    BarIndex(u8),
    /// The size is no power of two, or out of range for the kind (4 bytes to 256 ports; 16 bytes up; ROMs: 2 KiB to 16 MiB).
    BarSize(u8),
    /// The initial address is no multiple of the size, or beyond what the kind can hold.
    BarAddress(u8),
    /// Vectors: a power of two up to 32 for MSI, up to 2048 for MSI-X.
    Vectors,
    /// An MSI-X table or its pending bits lie outside a memory BAR.
    MsixTable,
    /// There is no room for all capabilities.
    Capabilities,
}

/// Builds a [`Function`].
#[derive(Clone, Debug)]
pub struct Builder {
    function: Function,
    msix: Option<MsixCapability>,
    msi: Option<u8>,
    error: Option<BuildError>,
}

impl Builder {
    /// A function without BARs, interrupts or capabilities.
    pub fn new(identity: Identity) -> Self {
        let mut function = Function {
            config: [0; 256],
            writable: [0; 256],
            bars: [None; ROM_BAR as usize + 1],
            fixed: false,
            has_msi: false,
            has_msix: false,
            free_capability: reg::OTHERS,
            facade: None,
            initial: None,
        };
        function.put16(0x00, identity.vendor);
        function.put16(0x02, identity.device);
        function.put32(0x08, identity.class << 8 | u32::from(identity.revision));
        function.put16(reg::SUBSYSTEM, identity.subsystem_vendor);
        function.put16(reg::SUBSYSTEM + 2, identity.subsystem);
        function.allow16(reg::COMMAND.into(), command::WRITABLE);
        function.allow8(reg::CACHE_LINE, 0xFF);
        function.allow8(reg::LATENCY, 0xFF);
        function.allow8(reg::INTERRUPT_LINE, 0xFF);
        Self { function, msix: None, msi: None, error: None }
    }

    /// The INTx pin (1 for INTA to 4 for INTD), and what the interrupt line register says at reset.
    pub fn interrupt(mut self, pin: u8, line: u8) -> Self {
        self.function.put8(reg::INTERRUPT_PIN, pin.min(4));
        self.function.put8(reg::INTERRUPT_LINE, line);
        self
    }

    /// The command register at reset.
    pub fn command(mut self, value: u16) -> Self {
        self.function.put16(reg::COMMAND.into(), value & command::WRITABLE);
        self
    }

    /// BAR `index`, of `size` bytes, at `address` to begin with; [`ROM_BAR`]: an expansion ROM, which does not answer to begin with.
    pub fn bar(mut self, index: u8, kind: BarKind, size: u64, address: u64) -> Self {
        if let Err(error) = self.function.add_bar(index, kind, size, address) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Port BARs cannot move: the guest may write and size them, but one that holds another address than the
    /// initial one does not answer. The permission map of a processor maps ports to themselves.
    pub fn fixed_ports(mut self) -> Self {
        self.function.fixed = true;
        self
    }

    /// An MSI capability of so many vectors (a power of two up to 32), with 64-bit address and masks.
    pub fn msi(mut self, vectors: u8) -> Self {
        self.msi = Some(vectors);
        self
    }

    /// An MSI-X capability: vectors, BAR and offset of the table, BAR and offset of the pending bits.
    pub fn msix(mut self, vectors: u16, table: (u8, u32), pending: (u8, u32)) -> Self {
        self.msix = Some(MsixCapability { enabled: false, masked: false, vectors, table, pending });
        self
    }

    /// Registers of its own from `offset` (40h or more) on, that the guest only reads.
    pub fn constant(mut self, offset: u8, bytes: &[u8]) -> Self {
        for (at, byte) in (offset..).zip(bytes) {
            self.function.put8(at.into(), *byte);
        }
        self
    }

    /// A capability that the guest only reads: its identifier, and what follows the pointer to the next.
    pub fn capability(mut self, id: u8, body: &[u8]) -> Self {
        if let Err(error) = self.function.add_constant(id, body) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// The function stands behind another, as function 1 of its slot: function 0 says who it is and can do nothing, without BARs, interrupts or
    /// capabilities. What a driver writes there has no effect beyond being read again. An operating system that loses the slot takes
    /// functions from it from the last to the first, so that function 0 is there as long as anything that depends on it.
    pub fn behind(mut self, identity: Identity) -> Self {
        let mut facade = Self::new(identity);
        for function in [&mut self.function, &mut facade.function] {
            function.put8(reg::HEADER_TYPE, MULTIFUNCTION);
        }
        facade.function.initial = Some(Box::new(facade.function.config));
        self.function.facade = Some(Box::new(facade.function));
        self
    }

    /// The function, as it is after reset.
    pub fn build(mut self) -> Result<Function, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if let Some(msix) = self.msix {
            self.function.add_msix(msix)?;
        }
        if let Some(vectors) = self.msi {
            self.function.add_msi(vectors)?;
        }
        self.function.initial = Some(Box::new(self.function.config));
        Ok(self.function)
    }
}

/// One PCI function.
#[derive(Clone, Debug)]
pub struct Function {
    config: [u8; 256],
    writable: [u8; 256],
    bars: [Option<BarWindow>; ROM_BAR as usize + 1],
    fixed: bool,
    has_msi: bool,
    has_msix: bool,
    /// Offset for the next capability that is constant.
    free_capability: u16,
    /// Function 0 of the slot, where this is function 1; it has none before it.
    facade: Option<Box<Self>>,
    /// Contents at reset.
    initial: Option<Box<[u8; 256]>>,
}

impl Function {
    /// The host bridge: QEMU's generic one, as it does nothing.
    pub(super) fn host_bridge() -> Self {
        let identity = Identity {
            vendor: 0x1B36,
            device: 0x0008,
            class: 0x06_0000,
            subsystem_vendor: 0x1AF4,
            subsystem: 0x1100,
            revision: 0,
        };
        Builder::new(identity).function
    }

    /// The effect of a reset: everything that the guest programmed is gone.
    pub fn reset(&mut self) {
        match &self.initial {
            Some(initial) => self.config = **initial,
            None => self.put16(reg::COMMAND.into(), 0),
        }
        self.facade.iter_mut().for_each(|facade| facade.reset());
    }

    /// The function of this number in the slot.
    pub(super) fn numbered(&self, number: u8) -> Option<&Self> {
        match (number, &self.facade) {
            (0, Some(facade)) => Some(facade),
            (0, None) | (1, Some(_)) => Some(self),
            _ => None,
        }
    }

    /// The command register.
    pub fn command(&self) -> u16 {
        self.get16(reg::COMMAND.into())
    }

    /// The interrupt pin: 1-4, or 0 for none.
    pub fn interrupt_pin(&self) -> u8 {
        self.config[reg::INTERRUPT_PIN]
    }

    /// Shows in the status register whether INTx is asserted.
    pub fn set_interrupt_status(&mut self, asserted: bool) {
        let status = self.get16(reg::STATUS);
        let cleared = status & !STATUS_INTERRUPT;
        self.put16(reg::STATUS, if asserted { cleared | STATUS_INTERRUPT } else { cleared });
    }

    /// What BAR `index` was built as, or [`ROM_BAR`].
    pub fn window(&self, index: u8) -> Option<BarWindow> {
        *self.bars.get(usize::from(index))?
    }

    /// Where BAR `index` is now, or [`ROM_BAR`]. A BAR at address 0, or one that would wrap, does not answer.
    pub fn bar(&self, index: u8) -> Option<Bar> {
        let BarWindow { kind, size, initial } = self.window(index)?;
        let offset = bar_register(index);
        let low = u64::from(self.get32(offset));
        let (address, limit, decode) = match kind {
            BarKind::Io => (low & !3 & 0xFFFF_FFFF, 1 << 16, command::IO),
            BarKind::Mem32 { .. } => (low & !15, 1 << 32, command::MEMORY),
            BarKind::Mem64 { .. } => {
                (u64::from(self.get32(offset + 4)) << 32 | low & !15, 1 << 52, command::MEMORY)
            }
            BarKind::Rom => (low & !u64::from(ROM_ENABLE), 1 << 32, command::MEMORY),
        };
        let on = kind != BarKind::Rom || low & u64::from(ROM_ENABLE) != 0;
        let fits = address != 0 && address.checked_add(size).is_some_and(|end| end <= limit);
        let stays = !self.fixed || kind != BarKind::Io || address == initial;
        Some(Bar { kind, address, size, enabled: on && fits && stays && self.command() & decode != 0 })
    }

    /// What the guest programmed into the MSI capability, if there is one.
    pub fn msi(&self) -> Option<Msi> {
        let base = usize::from(reg::MSI);
        let control = self.get16(base + 2);
        self.has_msi.then(|| Msi {
            enabled: control & MSI_ENABLE != 0,
            address: u64::from(self.get32(base + 8)) << 32 | u64::from(self.get32(base + 4)),
            data: self.get16(base + 12),
            // The guest may not allow itself more than the function has.
            vectors: 1 << (control >> 4 & 7).min(control >> 1 & 7),
            masked: self.get32(base + 16),
        })
    }

    /// The MSI-X capability, if there is one.
    pub fn msix(&self) -> Option<MsixCapability> {
        let base = usize::from(reg::MSIX);
        let control = self.get16(base + 2);
        let place = |offset: usize| {
            let value = self.get32(offset);
            ((value & 7) as u8, value & !7)
        };
        self.has_msix.then(|| MsixCapability {
            enabled: control & MSIX_ENABLE != 0,
            masked: control & MSIX_MASK_ALL != 0,
            vectors: (control & 0x7FF) + 1,
            table: place(base + 4),
            pending: place(base + 8),
        })
    }

    /// A read of `width` bytes, naturally aligned.
    pub(super) fn read(&self, offset: u8, width: u8) -> u32 {
        let offset = usize::from(offset);
        match width {
            1 => self.config[offset].into(),
            2 => self.get16(offset).into(),
            4 => self.get32(offset),
            _ => ones(width),
        }
    }

    /// A write of `width` bytes to the function of this number, naturally aligned, so that it stays within one doubleword.
    pub(super) fn write(
        &mut self,
        slot: u8,
        number: u8,
        (offset, width): (u8, u8),
        value: u32,
    ) -> ConfigEffect {
        match (number, &mut self.facade) {
            (0, Some(facade)) => {
                // It can do nothing, whatever its registers hold.
                facade.put_allowed(offset, width, value);
                ConfigEffect::None
            }
            (0, None) | (1, Some(_)) => {
                self.put_allowed(offset, width, value);
                self.effect(slot, offset)
            }
            _ => ConfigEffect::None,
        }
    }

    /// Changes what the guest may change.
    fn put_allowed(&mut self, offset: u8, width: u8, value: u32) {
        let bytes = value.to_le_bytes().into_iter().take(width.into());
        let cells = self.config.iter_mut().zip(&self.writable).skip(offset.into());
        for ((cell, writable), byte) in cells.zip(bytes) {
            *cell = *cell & !writable | byte & writable;
        }
    }

    /// What a write there asks for.
    fn effect(&self, slot: u8, offset: u8) -> ConfigEffect {
        match offset & !3 {
            reg::COMMAND if offset < reg::COMMAND + 2 => ConfigEffect::CommandChanged(slot, self.command()),
            reg::BARS..reg::BARS_END => ConfigEffect::BarsChanged(slot),
            reg::ROM if self.window(ROM_BAR).is_some() => ConfigEffect::BarsChanged(slot),
            // Control, address, data and mask.
            register if self.has_msi && (reg::MSI..reg::MSI + 20).contains(&register) => {
                ConfigEffect::MsiChanged(slot)
            }
            reg::MSIX if self.has_msix => ConfigEffect::MsixChanged(slot),
            _ => ConfigEffect::None,
        }
    }

    fn add_bar(&mut self, index: u8, kind: BarKind, size: u64, address: u64) -> Result<(), BuildError> {
        let registers: u8 = if matches!(kind, BarKind::Mem64 { .. }) { 2 } else { 1 };
        let last = index.checked_add(registers - 1);
        let is_place = |last: &u8| if kind == BarKind::Rom { *last == ROM_BAR } else { *last < ROM_BAR };
        let last = last.filter(is_place).ok_or(BuildError::BarIndex(index))?;
        let (smallest, largest, limit) = match kind {
            BarKind::Io => (4, 256, 1u64 << 16),
            BarKind::Mem32 { .. } => (16, 1 << 31, 1 << 32),
            BarKind::Mem64 { .. } => (16, 1 << 48, 1 << 52),
            BarKind::Rom => (1 << 11, 1 << 24, 1 << 32),
        };
        if !size.is_power_of_two() || !(smallest..=largest).contains(&size) {
            return Err(BuildError::BarSize(index));
        }
        if address & (size - 1) != 0 || address.checked_add(size).is_none_or(|end| end > limit) {
            return Err(BuildError::BarAddress(index));
        }
        if (index..=last).any(|index| self.is_taken(index)) {
            return Err(BuildError::BarIndex(index));
        }
        let mask = !(size - 1);
        let switch = if kind == BarKind::Rom { ROM_ENABLE } else { 0 };
        self.put32(bar_register(index), address as u32 | kind.flags());
        self.allow32(bar_register(index), mask as u32 | switch);
        if registers == 2 {
            self.put32(bar_register(last), (address >> 32) as u32);
            self.allow32(bar_register(last), (mask >> 32) as u32);
        }
        if let Some(bar) = self.bars.get_mut(usize::from(index)) {
            *bar = Some(BarWindow { kind, size, initial: address });
        }
        Ok(())
    }

    /// Is this register a BAR, or the upper half of one?
    fn is_taken(&self, index: u8) -> bool {
        let below = index.checked_sub(1).and_then(|below| self.window(below));
        let is_upper = below.is_some_and(|window| matches!(window.kind, BarKind::Mem64 { .. }));
        is_upper || self.window(index).is_some()
    }

    fn add_msi(&mut self, vectors: u8) -> Result<(), BuildError> {
        if !vectors.is_power_of_two() || vectors > 32 {
            return Err(BuildError::Vectors);
        }
        let base = usize::from(reg::MSI);
        self.add_capability(reg::MSI, 0x05);
        let capable = vectors.trailing_zeros() as u16;
        self.put16(base + 2, MSI_64_BIT | MSI_MASKABLE | capable << 1);
        self.allow16(base + 2, MSI_ENABLE | 7 << 4);
        self.allow32(base + 4, 0xFFFF_FFFC);
        self.allow32(base + 8, 0xFFFF_FFFF);
        self.allow16(base + 12, 0xFFFF);
        self.allow32(base + 16, u32::MAX >> (32 - u32::from(vectors)));
        self.has_msi = true;
        Ok(())
    }

    fn add_msix(&mut self, msix: MsixCapability) -> Result<(), BuildError> {
        if !(1..=2048).contains(&msix.vectors) {
            return Err(BuildError::Vectors);
        }
        let sizes = [
            (msix.table, u64::from(msix.vectors) * u64::from(ENTRY_SIZE)),
            (msix.pending, u64::from(msix.vectors).div_ceil(64) * 8),
        ];
        for ((index, offset), size) in sizes {
            let window = self.window(index).ok_or(BuildError::MsixTable)?;
            let end = u64::from(offset) + size;
            if matches!(window.kind, BarKind::Io | BarKind::Rom) || offset & 7 != 0 || end > window.size {
                return Err(BuildError::MsixTable);
            }
        }
        let base = usize::from(reg::MSIX);
        self.add_capability(reg::MSIX, 0x11);
        self.put16(base + 2, msix.vectors - 1);
        self.allow16(base + 2, MSIX_ENABLE | MSIX_MASK_ALL);
        self.put32(base + 4, msix.table.1 | u32::from(msix.table.0));
        self.put32(base + 8, msix.pending.1 | u32::from(msix.pending.0));
        self.has_msix = true;
        Ok(())
    }

    /// Adds a capability that is constant, behind those that are there.
    fn add_constant(&mut self, id: u8, body: &[u8]) -> Result<(), BuildError> {
        let start = usize::from(self.free_capability);
        let end = (start + 2 + body.len()).next_multiple_of(4);
        if end > self.config.len() {
            return Err(BuildError::Capabilities);
        }
        self.add_capability(start as u8, id);
        put(&mut self.config, start + 2, body);
        self.free_capability = end as u16;
        Ok(())
    }

    /// Puts a capability at the head of the list.
    fn add_capability(&mut self, offset: u8, id: u8) {
        let next = self.config[reg::CAPABILITIES];
        self.put16(offset.into(), u16::from(next) << 8 | u16::from(id));
        self.put8(reg::CAPABILITIES, offset);
        let status = self.get16(reg::STATUS);
        self.put16(reg::STATUS, status | STATUS_CAPABILITIES);
    }

    fn get16(&self, offset: usize) -> u16 {
        self.get32(offset) as u16
    }

    fn get32(&self, offset: usize) -> u32 {
        let bytes = self.config.iter().skip(offset).take(4);
        bytes.rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
    }

    fn put8(&mut self, offset: usize, value: u8) {
        put(&mut self.config, offset, &[value]);
    }

    fn put16(&mut self, offset: usize, value: u16) {
        put(&mut self.config, offset, &value.to_le_bytes());
    }

    fn put32(&mut self, offset: usize, value: u32) {
        put(&mut self.config, offset, &value.to_le_bytes());
    }

    fn allow8(&mut self, offset: usize, mask: u8) {
        put(&mut self.writable, offset, &[mask]);
    }

    fn allow16(&mut self, offset: usize, mask: u16) {
        put(&mut self.writable, offset, &mask.to_le_bytes());
    }

    fn allow32(&mut self, offset: usize, mask: u32) {
        put(&mut self.writable, offset, &mask.to_le_bytes());
    }
}

/// Offset of the register that says where a BAR is.
fn bar_register(index: u8) -> usize {
    if index == ROM_BAR { reg::ROM.into() } else { usize::from(reg::BARS) + usize::from(index) * 4 }
}

fn put(space: &mut [u8; 256], offset: usize, bytes: &[u8]) {
    space.iter_mut().skip(offset).zip(bytes).for_each(|(cell, byte)| *cell = *byte);
}
