//! The configuration file: what a user writes, checked completely before anything starts.
//!
//! [`load`] reads the TOML ([`parse`]), checks what can be checked without a machine ([`check`]) and
//! looks at the files and devices that it names ([`files`]), and returns a [`Setup`]. Every complaint carries the line it is about and how to mend it; all of them
//! are reported at once ([`diagnostic`]).

pub mod check;
pub mod diagnostic;
mod files;
mod network;
mod parse;
mod peers;
pub mod refusals;
mod values;
pub mod vif;
pub mod virtio;
mod walk;

pub use diagnostic::ConfigError;
pub use values::parse_mac;
pub use values::parse_size;

use crate::disks::{self, Disk};
use crate::name::Name;
use diagnostic::Source;
use sluice_abi::config::{
    Actions, AtEnd, Attachment, Dma, Emulated, Grants, Kind, Mode, NicModel, Passthrough, Sectors, Select,
    Vpio, masters_bus,
};
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A configuration file is not larger than this.
const LARGEST_FILE: u64 = 1 << 20;

/// A whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine that `run` emulates.
    pub machine: Machine,
    /// Physical devices, in the order of the file.
    pub devices: Vec<Device>,
    /// Networks that the hypervisor serves, in the order of the file.
    pub networks: Vec<vif::Network>,
    /// Guests, in the order of the file.
    pub domains: Vec<Domain>,
    /// Names of domains that run already and may serve devices of these.
    pub running: Vec<String>,
}

/// The machine that `run` emulates; a real machine has what it has.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: Spanned<u64>,
    /// Physical processors.
    pub cpus: Spanned<u8>,
    /// Its IOMMU, if the file says: see [`Setup::iommu`].
    pub iommu: Option<Spanned<Iommu>>,
    /// Whether the IOMMU remaps interrupts too.
    pub interrupt_remapping: Spanned<bool>,
    /// What it does when all guests have ended, if the file says.
    pub at_end: Option<AtEnd>,
    /// The domain that is in the foreground from the start, if the file says.
    pub focus: Option<Spanned<String>>,
    /// Further arguments for QEMU, as they are.
    pub qemu_args: Vec<String>,
}

/// What stands between the emulated machine's devices and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iommu {
    /// Nothing.
    None,
    /// AMD-Vi.
    Amd,
    /// Intel VT-d. It goes with AMD's processors in QEMU only.
    Intel,
}

impl Iommu {
    /// All of them, by their words in the file.
    pub const ALL: [(&'static str, Self); 3] =
        [("none", Self::None), ("amd", Self::Amd), ("intel", Self::Intel)];

    /// The word in the file.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, iommu)| *iommu == self).map_or("", |(word, _)| word)
    }
}

impl Setup {
    /// The place of a physical device in the file, by which the hypervisor knows it.
    pub fn place_of(&self, device: &str) -> Option<u16> {
        let place = self.devices.iter().position(|known| **known.name.get_ref() == *device)?;
        u16::try_from(place).ok()
    }

    /// The IOMMU of the machine that `run` emulates. Where the file does not say: AMD's, as the processors
    /// are, if there is a device for it to contain, else none, so that a plain run has no device too many.
    pub fn iommu(&self) -> Iommu {
        let contains = |share: &Share| match share.mode {
            Mode::Passthrough => share.dma != Dma::Unprotected && self.masters_bus(share) != Some(false),
            Mode::Vpio => self.masters_bus(share) == Some(true),
            Mode::Emulated => false,
        };
        let needed = || self.domains.iter().flat_map(|domain| &domain.shares).any(contains);
        match &self.machine.iommu {
            Some(iommu) => *iommu.get_ref(),
            None if needed() => Iommu::Amd,
            None => Iommu::None,
        }
    }

    /// How ports are forwarded to a guest: by a card on the user network that is its own, or its server's if it has a known address
    /// there. QEMU does not know which of several guests behind a card has which address.
    pub fn route_to(&self, domain: &Domain) -> Option<Route<'_>> {
        if let Some(device) = self.own_card(domain) {
            return Some(Route { device, address: None });
        }
        domain.virtio.iter().find_map(|device| {
            let address = *device.address.as_ref()?.get_ref();
            let server = self.domains.iter().find(|other| &**other.name.get_ref() == device.by.get_ref())?;
            Some(Route { device: self.own_card(server)?, address: Some(address) })
        })
    }

    /// A guest's card on the user network, if nobody shares it.
    fn own_card(&self, domain: &Domain) -> Option<&Device> {
        let is_shared = |name: &str| {
            let users = self.domains.iter().flat_map(|domain| &domain.shares);
            users.filter(|share| share.device.get_ref() == name).count() > 1
        };
        domain.shares.iter().find_map(|share| {
            let device =
                self.devices.iter().find(|device| device.name.get_ref() == share.device.get_ref())?;
            let on_user_network = device.net.as_ref().is_some_and(|net| net.mode == "user");
            (on_user_network && !is_shared(device.name.get_ref())).then_some(device)
        })
    }

    /// The card that a guest sees by default in emulated mode. `None`: the device is named by its place; `Some(None)`:
    /// the hypervisor has no driver for it.
    fn like(&self, share: &Share) -> Option<Option<NicModel>> {
        self.identity(share).map(|(vendor, device)| NicModel::of(vendor, device))
    }

    /// Vendor and device of a shared device; `None`: it is named by its place.
    fn identity(&self, share: &Share) -> Option<(u16, u16)> {
        let device = self.devices.iter().find(|device| device.name.get_ref() == share.device.get_ref())?;
        match *device.select.get_ref() {
            Select::Id { vendor, device, .. } => Some((vendor, device)),
            Select::Address { .. } => None,
        }
    }

    /// Whether a shared device reaches memory by itself; `None`: it is named by its place, so that only the
    /// hypervisor sees what it is.
    fn masters_bus(&self, share: &Share) -> Option<bool> {
        self.identity(share).map(|(vendor, device)| masters_bus(vendor, device))
    }
}

impl Domain {
    /// The address that its server gives it, if the file says one.
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.virtio.iter().find_map(|device| device.address.as_ref().map(|address| *address.get_ref()))
    }
}

/// A physical device that guests share.
#[derive(Clone, Debug)]
pub struct Device {
    /// Unique name.
    pub name: Spanned<String>,
    /// Which PCI function it is.
    pub select: Spanned<Select>,
    /// The QEMU device that stands for it, with options after a comma; none: the machine has it anyway.
    pub qemu: Option<Spanned<String>>,
    /// How a NIC is connected.
    pub net: Option<Net>,
    /// Most bits per second that guests send to the wire by it.
    pub rate: Option<Spanned<u64>>,
    /// What is on it, if it is a disk controller: its first disk, its second...
    pub disks: Vec<Spanned<Disk>>,
}

/// What leads from this host to a guest.
pub struct Route<'s> {
    /// The NIC, on QEMU's user network.
    pub device: &'s Device,
    /// The guest's address; without one, the first that QEMU gives away.
    pub address: Option<Ipv4Addr>,
}

/// How an emulated NIC is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// QEMU's network back end: `user`, `hubport`, `socket`...
    pub mode: String,
    /// Its options, as QEMU reads them (`hostfwd=...`).
    pub options: String,
}

/// A guest.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Unique name.
    pub name: Spanned<Name>,
    /// Kernel.
    pub kernel: Spanned<Image>,
    /// Initial ramdisk; of a kernel from a disk, the one that belongs to it there, if the file names none.
    pub initrd: Option<Spanned<Image>>,
    /// Kernel command line.
    pub cmdline: Spanned<String>,
    /// Bytes of memory, a multiple of 2 MiB.
    pub memory: Spanned<u64>,
    /// Virtual processors.
    pub vcpus: Spanned<u8>,
    /// Physical processor of each.
    pub cpus: Vec<Spanned<u8>>,
    /// Not started by itself.
    pub paused: bool,
    /// What follows its end.
    pub actions: Actions,
    /// Ports of this host that lead to it, on QEMU's user network.
    pub forward: Vec<Spanned<Forward>>,
    /// Its devices.
    pub shares: Vec<Share>,
    /// Its virtual devices, which other domains serve.
    pub virtio: Vec<virtio::Virtio>,
    /// Its interfaces on the hypervisor's networks.
    pub vifs: Vec<vif::Vif>,
    /// What it lends to those, if the file says.
    pub grants: Option<Spanned<Grants>>,
    /// With whom it may share single pages.
    pub peers: Vec<Spanned<String>>,
    /// It steers the machine.
    pub control: bool,
    /// How its kernel runs.
    pub kind: Spanned<Kind>,
}

impl Domain {
    /// Whether the module for single pages is put into its own initial ramdisk: it lends single pages, and boots from its disk.
    pub fn is_given_module(&self) -> bool {
        let lends_pages = self.grants.as_ref().is_some_and(|grants| *grants.get_ref() == Grants::Pages);
        let is_own = matches!(self.initrd.as_ref().map(Spanned::get_ref), None | Some(Image::Disk(_)));
        lends_pages && is_own && matches!(self.kernel.get_ref(), Image::Disk(_))
    }
}

/// A TCP port of 127.0.0.1 that leads to one of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Port of this host.
    pub host: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// A guest's part in a device.
#[derive(Clone, Debug)]
pub struct Share {
    /// Name of the device.
    pub device: Spanned<String>,
    /// How it is shared.
    pub mode: Mode,
    /// Station address.
    pub mac: Option<Spanned<[u8; 6]>>,
    /// The part of a disk that the guest has.
    pub sectors: Option<Spanned<Sectors>>,
    /// The card that the guest sees in emulated mode, if not one like the physical.
    pub model: Option<Spanned<NicModel>>,
    /// Its weight among sharers.
    pub weight: Option<Spanned<u8>>,
    /// Its longest wait in milliseconds.
    pub max_wait_ms: Option<Spanned<u8>>,
    /// What it sees of refused accesses.
    pub refusals: refusals::Refusals,
    /// What it reaches by DMA.
    pub dma: Dma,
    /// The user accepts interrupts that the device forges.
    pub interrupts_unprotected: bool,
    /// The user accepts what a guest programs into the device for good.
    pub registers_unprotected: bool,
}

impl Share {
    /// What the hypervisor is told of how the guest has the device; `None` if it lacks something that its mode needs, which
    /// [`check`] says.
    pub fn attachment(&self, setup: &Setup) -> Option<Attachment> {
        let mac = self.mac.as_ref().map(|mac| *mac.get_ref());
        let model = self.model.as_ref().map(|model| *model.get_ref());
        if let Some(sectors) = &self.sectors {
            let on_refusal = self.refusals.others.as_ref().map(|reaction| *reaction.get_ref());
            return Some(Attachment::Sectors(Sectors { on_refusal, ..*sectors.get_ref() }));
        }
        Some(match self.mode {
            Mode::Passthrough => Attachment::Passthrough(Passthrough {
                dma: self.dma,
                interrupts_unprotected: self.interrupts_unprotected,
            }),
            Mode::Vpio => Attachment::Vpio(Vpio {
                mac: mac?,
                model,
                weight: self.weight.as_ref().map_or(1, |weight| *weight.get_ref()),
                max_wait_ms: self.max_wait_ms.as_ref().map(|wait| *wait.get_ref()),
                refusals: refusals::resolve(self, setup),
                registers_unprotected: self.registers_unprotected,
            }),
            Mode::Emulated => Attachment::Emulated(Emulated { mac: mac?, model }),
        })
    }
}

/// A kernel or an initial ramdisk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Image {
    /// One that the project builds from Debian packages.
    Named(String),
    /// A file of the user's.
    File(PathBuf),
    /// What the guest itself has in `/boot`, on this disk.
    Disk(Disk),
}

/// What the command line says about the emulated machine, instead of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Override {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Physical processors.
    pub cpus: Option<u8>,
}

/// Reads and checks a configuration file, and the files that it names.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load(path: &Path) -> Result<Setup, ConfigError> {
    load_changed(path, |_| ())
}

/// As [`load`], for domains that are made on a machine where these run already.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load_beside(path: &Path, running: Vec<String>) -> Result<Setup, ConfigError> {
    load_changed(path, |setup| setup.running = running)
}

/// As [`load`], for a machine that the command line changes.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load_for(path: &Path, machine: Override) -> Result<Setup, ConfigError> {
    load_changed(path, |setup| {
        if let Some(memory) = machine.memory {
            setup.machine.memory = Spanned::new(0..0, memory);
        }
        if let Some(cpus) = machine.cpus {
            setup.machine.cpus = Spanned::new(0..0, cpus);
        }
    })
}

fn load_changed(path: &Path, change: impl FnOnce(&mut Setup)) -> Result<Setup, ConfigError> {
    let text = read(path)?;
    let mut source = Source::new(path, &text);
    let mut setup = parse::parse(&mut source);
    change(&mut setup);
    if source.is_clean() {
        check::check(&setup, &mut source);
        files::check(&setup, &mut source);
    }
    source.finish().map(|()| setup)
}

/// The text of a configuration file. It may be a pipe, and need not end.
fn read(path: &Path) -> Result<String, ConfigError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
    let no_text = |why: String| ConfigError::NoText { path: path.to_owned(), why };
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(no_text(format!("it is larger than {}", human_size(LARGEST_FILE))));
    }
    let text = String::from_utf8(bytes);
    text.map_err(|error| no_text(format!("byte {} is not UTF-8", error.utf8_error().valid_up_to())))
}

/// As [`load`], for a text that stands for the file at `path` (relative paths in it start there). The files that it names are
/// not opened.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load_text(path: &Path, text: &str) -> Result<Setup, ConfigError> {
    let mut source = Source::new(path, text);
    let setup = parse::parse(&mut source);
    if source.is_clean() {
        check::check(&setup, &mut source);
    }
    source.finish().map(|()| setup)
}

/// What a configuration asks for, in a few lines.
pub fn describe(path: &Path, setup: &Setup) -> String {
    let machine = &setup.machine;
    let mut text = format!(
        "{}: ok\n  machine: {}, {} processor(s)",
        path.display(),
        human_size(*machine.memory.get_ref()),
        machine.cpus.get_ref()
    );
    let remapping = if *machine.interrupt_remapping.get_ref() { "" } else { " without interrupt remapping" };
    match setup.iommu() {
        Iommu::None => {}
        iommu => text += &format!(", {} IOMMU{remapping}", iommu.word()),
    }
    for domain in &setup.domains {
        let shares: Vec<String> =
            domain
                .shares
                .iter()
                .map(|share| format!(", {} ({})", share.device.get_ref(), share.mode.word()))
                .chain(domain.virtio.iter().map(|device| {
                    format!(", {} ({} by {})", device.name.get_ref(), virtio::MODE, device.by.get_ref())
                }))
                .chain(domain.vifs.iter().map(|vif| {
                    format!(", {} ({} on {})", vif.name.get_ref(), vif::MODE, vif.network.get_ref())
                }))
                .collect();
        text += &format!(
            "\n  {}: {}, {} vcpu(s){}",
            domain.name.get_ref(),
            human_size(*domain.memory.get_ref()),
            domain.vcpus.get_ref(),
            shares.concat()
        );
    }
    text
}

/// What stands behind a guest's own command line: the addresses that it gives to others, and how it comes to its module.
pub fn added_words(setup: &Setup, domain: &Domain) -> String {
    let mut words = virtio::leases(setup, domain);
    if domain.is_given_module() {
        words += &format!(" {}", disks::MODULE_WORD);
    }
    words
}

/// What `run` puts in front of every guest's command line: where the test guests' server listens.
pub fn server_words(port: u16) -> String {
    format!("sluice.server=10.0.2.2:{port}")
}

/// A size as people read it: "256 MiB".
pub fn human_size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
    }
    for (unit, size) in UNITS {
        if bytes >= size {
            return format!("{:.1} {unit}", bytes as f64 / size as f64);
        }
    }
    format!("{bytes} B")
}

/// A station address as people write it.
pub fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests;
