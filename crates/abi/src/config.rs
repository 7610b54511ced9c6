//! The validated configuration: what the host command writes into the bundle.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Version of the encoding; the hypervisor refuses any other.
pub const VERSION: u32 = 5;

/// Everything that one run of the hypervisor is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Must equal [`VERSION`].
    pub version: u32,
    /// The guests, in the order of the file.
    pub domains: Vec<Domain>,
    /// The physical devices that guests share.
    pub devices: Vec<Device>,
    /// What the machine does when all guests have ended.
    pub at_end: AtEnd,
}

/// What the machine does when all guests have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtEnd {
    /// It switches itself off.
    #[default]
    Off,
    /// It shows on its screen what became of them, until somebody switches it off. Without a screen it switches itself off.
    Stay,
}

impl AtEnd {
    /// All of them, by their words in the configuration file.
    pub const ALL: [(&'static str, Self); 2] = [("off", Self::Off), ("stay", Self::Stay)];
}

/// One guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Unique, 1-31 characters of `[a-z0-9-]`.
    pub name: String,
    /// Bundle member that holds the kernel.
    pub kernel: String,
    /// Bundle member that holds the initial ramdisk.
    pub initrd: Option<String>,
    /// Kernel command line.
    pub cmdline: String,
    /// Bytes of memory, a multiple of 2 MiB.
    pub memory: u64,
    /// Number of virtual processors, 1-64.
    pub vcpus: u8,
    /// Physical processor of each virtual one; shorter lists repeat, empty means any.
    pub cpus: Vec<u8>,
    /// Created, but not started before a command says so.
    pub paused: bool,
    /// Devices this guest has.
    pub devices: Vec<Share>,
}

/// A guest's part in a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Index into [`Config::devices`].
    pub device: u16,
    /// How the device is shared.
    pub mode: Mode,
    /// Station address that this guest's driver finds in the device, for NICs.
    pub mac: Option<[u8; 6]>,
    /// The card that this guest sees, if not the physical one's like; for [`Mode::Emulated`].
    pub model: Option<NicModel>,
    /// For how many times as long as weight 1 this guest keeps a device that others want, too; 1-100. For [`Mode::Vpio`].
    pub weight: u8,
    /// After so many milliseconds this guest gets the device even if its holder never rests; 0: as usual. For
    /// [`Mode::Vpio`].
    pub max_wait_ms: u8,
    /// What the guest sees when an access is refused, where that is not left to the model. For [`Mode::Vpio`].
    pub refusals: Refusals,
    /// The user accepts that this function can reach all memory by DMA.
    pub dma_unprotected: bool,
    /// The user accepts that this function can forge interrupts, for want of interrupt remapping.
    pub interrupts_unprotected: bool,
    /// The user accepts that this guest can change what outlives it in the card (EEPROM, PHY, wake-up) while it has it; for
    /// [`Mode::Vpio`].
    pub registers_unprotected: bool,
}

/// What a guest sees of a refused access, beside its having no effect (seed 000, 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reaction {
    /// Nothing.
    Discard,
    /// The device reports an error of its own, with its interrupt.
    Interrupt,
    /// The processor that made the access takes a machine check that tells of a deferred error: its guest notes it and goes on.
    DeferredError,
    /// It takes one that tells of an uncorrected error: a kernel that made the access stops.
    MachineCheck,
}

impl Reaction {
    /// All of them, by their words in the configuration file.
    pub const ALL: [(&'static str, Self); 4] = [
        ("discard", Self::Discard),
        ("interrupt", Self::Interrupt),
        ("deferred-error", Self::DeferredError),
        ("machine-check", Self::MachineCheck),
    ];

    /// The word in the file.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, reaction)| *reaction == self).map_or("", |(word, _)| word)
    }
}

/// Reactions by register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// To accesses of all registers that are not named below.
    pub others: Option<Reaction>,
    /// Register, by its name in the model, and the reaction to its accesses.
    pub registers: Vec<(String, Reaction)>,
}

impl Refusals {
    /// The reaction to accesses of a register; `None`: the model's own.
    pub fn reaction(&self, register: &str) -> Option<Reaction> {
        let named = self.registers.iter().find(|(name, _)| name == register);
        named.map(|(_, reaction)| *reaction).or(self.others)
    }

    /// Whether a refused access can be a machine check.
    pub fn machine_check(&self) -> bool {
        let mut all = self.registers.iter().map(|(_, reaction)| *reaction).chain(self.others);
        all.any(|reaction| matches!(reaction, Reaction::DeferredError | Reaction::MachineCheck))
    }
}

/// How a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// One guest owns the device, with its native driver.
    Passthrough,
    /// Guests use the device in turn, each with its native driver (seed 000).
    Vpio,
    /// The hypervisor drives the device; each guest sees a software card.
    Emulated,
}

/// A network card that the hypervisor can show to a guest, and mostly drive itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NicModel {
    /// RTL8029, an NE2000 on PCI: ne2k-pci.
    Ne2000,
    /// RTL8139C+: 8139cp.
    Rtl8139,
    /// The same with the revision of an RTL8139C: 8139too.
    Rtl8139c,
    /// Intel 82540EM: e1000.
    E1000,
}

impl NicModel {
    /// All of them, by their words in the configuration file.
    pub const ALL: [(&'static str, Self); 4] = [
        ("ne2000", Self::Ne2000),
        ("rtl8139", Self::Rtl8139),
        ("rtl8139c", Self::Rtl8139c),
        ("e1000", Self::E1000),
    ];

    /// The word in the file.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, model)| *model == self).map_or("", |(word, _)| word)
    }

    /// The model that looks to a guest like a physical function with these identifiers. The hypervisor has drivers
    /// for these functions.
    pub fn of(vendor: u16, device: u16) -> Option<Self> {
        match (vendor, device) {
            (0x10ec, 0x8029) => Some(Self::Ne2000),
            (0x10ec, 0x8139) => Some(Self::Rtl8139),
            (0x8086, 0x100e) => Some(Self::E1000),
            _ => None,
        }
    }
}

/// A physical device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Unique, 1-31 characters of `[a-z0-9-]`.
    pub name: String,
    /// Which PCI function it is.
    pub select: Select,
}

/// How a physical PCI function is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Select {
    /// The `nth` function (from 0, in bus order) with these identifiers.
    Id {
        /// PCI vendor identifier.
        vendor: u16,
        /// PCI device identifier.
        device: u16,
        /// Which of several equal ones.
        nth: u8,
    },
    /// The function at this bus, device and function number.
    Address {
        /// Bus, 0-255.
        bus: u8,
        /// Device, 0-31.
        device: u8,
        /// Function, 0-7.
        function: u8,
    },
}

/// Functions known to have no bus-master logic, by vendor and device: RTL8029 and the other NE2000 clones
/// that Linux's ne2k-pci drives.
const PORTS_ONLY: &[(u16, u16)] = &[
    (0x10ec, 0x8029),
    (0x1050, 0x0940),
    (0x11f6, 0x1401),
    (0x8e2e, 0x3000),
    (0x4a14, 0x5000),
    (0x1106, 0x0926),
    (0x10bd, 0x0e34),
    (0x1050, 0x5a5a),
];

/// Whether a function with these identifiers can reach memory by itself. Only those known not to are
/// believed: the bus-master bit of the command register does not tell.
pub fn masters_bus(vendor: u16, device: u16) -> bool {
    !PORTS_ONLY.contains(&(vendor, device))
}

/// What is wrong with a configuration, and with which of its domains (an index).
///
/// The host command says so in better words, and with the line; this is what the hypervisor relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory is no multiple of 2 MiB, or none, or more than 52 bits can address.
    Memory(usize),
    /// Virtual processors: not 1-64.
    Processors(usize),
    /// It names a device that is not declared.
    Device(usize),
    /// It names a device twice.
    DeviceTwice(usize),
    /// More domains than the hypervisor can tell apart.
    TooManyDomains,
}

impl Config {
    /// Checks what the types leave open. `most` is how many domains there can be.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self, most: usize) -> Result<(), Fault> {
        const GRAIN: u64 = 2 << 20;
        if self.domains.len() > most {
            return Err(Fault::TooManyDomains);
        }
        for (index, domain) in self.domains.iter().enumerate() {
            if !domain.memory.is_multiple_of(GRAIN) || !(GRAIN..1 << 52).contains(&domain.memory) {
                return Err(Fault::Memory(index));
            }
            if !(1..=64).contains(&domain.vcpus) {
                return Err(Fault::Processors(index));
            }
            for (at, share) in domain.devices.iter().enumerate() {
                if usize::from(share.device) >= self.devices.len() {
                    return Err(Fault::Device(index));
                }
                if domain.devices.iter().take(at).any(|other| other.device == share.device) {
                    return Err(Fault::DeviceTwice(index));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn config() -> Config {
        let share = Share {
            device: 0,
            mode: Mode::Vpio,
            mac: Some([2; 6]),
            model: None,
            dma_unprotected: false,
            weight: 1,
            max_wait_ms: 0,
            refusals: Refusals::default(),
            interrupts_unprotected: false,
            registers_unprotected: false,
        };
        let select = Select::Address { bus: 0, device: 3, function: 0 };
        let domain = Domain {
            name: "a".into(),
            kernel: "kernel".into(),
            initrd: None,
            cmdline: String::new(),
            memory: 128 << 20,
            vcpus: 1,
            cpus: Vec::new(),
            paused: false,
            devices: vec![share],
        };
        Config {
            version: VERSION,
            domains: vec![domain],
            devices: vec![Device { name: "nic0".into(), select }],
            at_end: AtEnd::Off,
        }
    }

    #[test]
    fn what_the_types_leave_open_is_checked() {
        assert_eq!(config().check(1), Ok(()));
        assert_eq!(config().check(0), Err(Fault::TooManyDomains));
        let with = |change: fn(&mut Config)| {
            let mut changed = config();
            change(&mut changed);
            changed.check(15)
        };
        assert_eq!(with(|config| config.domains[0].memory = 0), Err(Fault::Memory(0)));
        assert_eq!(with(|config| config.domains[0].memory += 4096), Err(Fault::Memory(0)));
        assert_eq!(with(|config| config.domains[0].memory = 1 << 60), Err(Fault::Memory(0)));
        assert_eq!(with(|config| config.domains[0].vcpus = 0), Err(Fault::Processors(0)));
        assert_eq!(with(|config| config.domains[0].vcpus = 65), Err(Fault::Processors(0)));
        assert_eq!(with(|config| config.devices.clear()), Err(Fault::Device(0)));
        let twice = |config: &mut Config| {
            let share = config.domains[0].devices[0].clone();
            config.domains[0].devices.push(share);
        };
        assert_eq!(with(twice), Err(Fault::DeviceTwice(0)));
    }
}
