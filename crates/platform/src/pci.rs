//! PCI configuration space of bus 0, by mechanism 1 and by ECAM.
//!
//! [`PciBus`] holds up to 32 devices of one function, a host bridge in slot 0; before one may stand another function, which only says who it is. A [`Function`] shows the guest
//! what its [`function::Builder`] was told and nothing else: the identity, BARs that size themselves as the
//! specification says, MSI and MSI-X. What the guest programs (addresses of BARs, command, messages) is kept
//! here and reported by a [`ConfigEffect`]; no physical register is ever touched.
//!
//! Source: PCI Local Bus 3.0, chapter 6 and 3.2.2.3.2 (mechanism 1); PCI Express 4.0, 7.2.2 (ECAM).
//!
//! Deviations: no function has extended configuration space (offsets from 256 read as ones).

mod addresses;
pub mod function;
#[cfg(test)]
mod tests;

pub use addresses::BarAddresses;
use alloc::boxed::Box;
pub use function::{
    Bar, BarKind, BarWindow, BuildError, Builder, Function, Identity, Msi, MsixCapability, ROM_BAR,
};

/// Mechanism 1: address register (32 bits).
pub const ADDRESS_PORT: u16 = 0xCF8;
/// Mechanism 1: data register, four ports.
pub const DATA_PORT: u16 = 0xCFC;
/// Bytes of ECAM that bus 0 takes.
pub const ECAM_SIZE: u64 = 1 << 20;
/// Slots of a bus.
pub const SLOTS: usize = 32;

const ADDRESS_ENABLE: u32 = 1 << 31;
const ADDRESS_WRITABLE: u32 = 0x80FF_FFFC;

/// What a write to configuration space asks of the hypervisor, by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ConfigEffect {
    /// Nothing.
    None,
    /// A BAR was written: ask [`PciBus::bar`].
    BarsChanged(u8),
    /// The command register was written, and is now this.
    CommandChanged(u8, u16),
    /// The MSI capability was written: ask [`PciBus::msi`].
    MsiChanged(u8),
    /// MSI-X was enabled, disabled, or masked as a whole: ask [`PciBus::msix`].
    MsixChanged(u8),
}

/// PCI bus 0.
#[derive(Clone, Debug)]
pub struct PciBus {
    address: u32,
    slots: [Option<Box<Function>>; SLOTS],
}

impl Default for PciBus {
    fn default() -> Self {
        Self::new()
    }
}

impl PciBus {
    /// A bus with nothing but a host bridge.
    pub fn new() -> Self {
        let mut slots = [const { None }; SLOTS];
        if let Some(slot) = slots.first_mut() {
            *slot = Some(Box::new(Function::host_bridge()));
        }
        Self { address: 0, slots }
    }

    /// Puts a function into a slot that is free.
    pub fn insert(&mut self, slot: u8, function: Function) -> Result<(), BuildError> {
        match self.slots.get_mut(usize::from(slot)) {
            Some(place @ None) => {
                *place = Some(Box::new(function));
                Ok(())
            }
            _ => Err(BuildError::Slot(slot)),
        }
    }

    /// Takes the function out of a slot, if there is one: nobody answers there any more.
    pub fn remove(&mut self, slot: u8) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)).filter(|_| slot != 0) {
            *place = None;
        }
    }

    /// The function in a slot.
    pub fn function(&self, slot: u8) -> Option<&Function> {
        self.slots.get(usize::from(slot))?.as_deref()
    }

    /// The function in a slot, to change.
    pub fn function_mut(&mut self, slot: u8) -> Option<&mut Function> {
        self.slots.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// Every function and its slot.
    pub fn functions(&self) -> impl Iterator<Item = (u8, &Function)> {
        self.slots.iter().enumerate().filter_map(|(slot, function)| Some((slot as u8, function.as_deref()?)))
    }

    /// The effect of a platform reset.
    pub fn reset(&mut self) {
        self.address = 0;
        self.slots.iter_mut().flatten().for_each(|function| function.reset());
    }

    /// Where BAR `index` (0-5, or [`ROM_BAR`]) of the function in a slot is now.
    pub fn bar(&self, slot: u8, index: u8) -> Option<Bar> {
        self.function(slot)?.bar(index)
    }

    /// The command register of the function in a slot; zero if there is none.
    pub fn command(&self, slot: u8) -> u16 {
        self.function(slot).map_or(0, Function::command)
    }

    /// What the guest programmed into the MSI capability of the function in a slot.
    pub fn msi(&self, slot: u8) -> Option<Msi> {
        self.function(slot)?.msi()
    }

    /// The MSI-X capability of the function in a slot.
    pub fn msix(&self, slot: u8) -> Option<MsixCapability> {
        self.function(slot)?.msix()
    }

    /// Does mechanism 1 answer for `port`?
    pub fn claims(port: u16) -> bool {
        (ADDRESS_PORT..DATA_PORT + 4).contains(&port)
    }

    /// A port read of `width` bytes (1, 2 or 4).
    pub fn port_read(&self, port: u16, width: u8) -> u32 {
        match port {
            ADDRESS_PORT if width == 4 => self.address,
            DATA_PORT.. => match self.data_target(port) {
                Some(target) => self.read(target, width),
                None => ones(width),
            },
            _ => ones(width),
        }
    }

    /// A port write of `width` bytes (1, 2 or 4).
    pub fn port_write(&mut self, port: u16, width: u8, value: u32) -> ConfigEffect {
        match port {
            ADDRESS_PORT if width == 4 => {
                self.address = value & ADDRESS_WRITABLE;
                ConfigEffect::None
            }
            DATA_PORT.. => match self.data_target(port) {
                Some(target) => self.write(target, width, value),
                None => ConfigEffect::None,
            },
            _ => ConfigEffect::None,
        }
    }

    /// A read of `width` bytes (1, 2 or 4) at `offset` in ECAM.
    pub fn ecam_read(&self, offset: u32, width: u8) -> u32 {
        match ecam_target(offset) {
            Some(target) => self.read(target, width),
            None => ones(width),
        }
    }

    /// A write of `width` bytes (1, 2 or 4) at `offset` in ECAM.
    pub fn ecam_write(&mut self, offset: u32, width: u8, value: u32) -> ConfigEffect {
        match ecam_target(offset) {
            Some(target) => self.write(target, width, value),
            None => ConfigEffect::None,
        }
    }

    /// What the data port stands for.
    fn data_target(&self, port: u16) -> Option<Target> {
        let byte = port.checked_sub(DATA_PORT).filter(|byte| *byte < 4)? as u8;
        let is_here = self.address & ADDRESS_ENABLE != 0 && self.address >> 16 & 0xFF == 0;
        is_here.then_some(Target {
            slot: (self.address >> 11 & 0x1F) as u8,
            function: (self.address >> 8 & 7) as u8,
            offset: self.address as u8 | byte,
        })
    }

    fn read(&self, target: Target, width: u8) -> u32 {
        match self.function(target.slot).and_then(|device| device.numbered(target.function)) {
            Some(function) if is_aligned(target.offset, width) => function.read(target.offset, width),
            _ => ones(width),
        }
    }

    fn write(&mut self, target: Target, width: u8, value: u32) -> ConfigEffect {
        let Target { slot, function, offset } = target;
        match self.function_mut(slot) {
            Some(device) if is_aligned(offset, width) => device.write(slot, function, (offset, width), value),
            _ => ConfigEffect::None,
        }
    }
}

/// A register of a function's configuration space.
#[derive(Clone, Copy)]
struct Target {
    slot: u8,
    function: u8,
    offset: u8,
}

/// What an ECAM offset stands for; `None`: another bus, or extended space.
fn ecam_target(offset: u32) -> Option<Target> {
    let (device, register) = (offset >> 12, offset & 0xFFF);
    let (slot, function) = (device >> 3, device & 7);
    (slot < SLOTS as u32 && register < 256).then_some(Target {
        slot: slot as u8,
        function: function as u8,
        offset: register as u8,
    })
}

/// Configuration space is read and written by naturally aligned bytes, words and doublewords.
fn is_aligned(offset: u8, width: u8) -> bool {
    matches!(width, 1 | 2 | 4) && offset & (width - 1) == 0
}

/// What an access that nobody answers reads.
fn ones(width: u8) -> u32 {
    match width {
        1 => 0xFF,
        2 => 0xFFFF,
        _ => u32::MAX,
    }
}
