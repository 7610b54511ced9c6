//! The validated configuration: what the host command writes into the bundle.

use crate::DomainId;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Version of the encoding; the hypervisor refuses any other.
pub const VERSION: u32 = 24;

/// The most domains that a configuration may have. Memory is what limits them in practice: this keeps what the hypervisor
/// allocates for messages and consoles in bounds.
pub const MAX_DOMAINS: usize = 64;

/// Everything that one run of the hypervisor is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Must equal [`VERSION`].
    pub version: u32,
    /// The guests, in the order of the file.
    pub domains: Vec<Domain>,
    /// Names of domains that run already and serve devices of these, where the configuration is one of domains to be made.
    pub neighbours: Vec<String>,
    /// The physical devices that guests share.
    pub devices: Vec<Device>,
    /// Networks of virtual interfaces.
    pub networks: Vec<Network>,
    /// What the machine does when all guests have ended.
    pub at_end: AtEnd,
    /// The domain that is in the foreground from the start; `None`: all are, until one is chosen.
    pub focus: Option<DomainId>,
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
    /// What follows its end.
    pub actions: Actions,
    /// Devices this guest has.
    pub devices: Vec<Share>,
    /// Virtual devices that other domains serve for it.
    pub virtio: Vec<Virtio>,
    /// Its virtual interfaces, which engines serve.
    pub vifs: Vec<Vif>,
    /// What of its memory those domains, and their devices, reach.
    pub grants: Grants,
    /// Names of the domains with which it may share single pages; they must name it, too. Calls name them by their place here.
    pub peers: Vec<String>,
    /// It reaches the management channel: it reports and steers all domains, as the host does.
    pub control: bool,
    /// How its kernel runs.
    pub kind: Kind,
}

/// How a guest's kernel runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// As on a machine of its own, which the processor virtualizes.
    #[default]
    Full,
    /// At privilege level 3, with page tables that the hardware uses and the hypervisor validates: by Xen's paravirtual interface.
    Paravirtual,
}

impl Kind {
    /// All of them, by their words in the configuration file.
    pub const ALL: [(&'static str, Self); 2] = [("full", Self::Full), ("paravirtual", Self::Paravirtual)];
}

/// What of a guest's memory the domains that serve its virtual devices reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grants {
    /// Nothing: its virtio devices do not work.
    #[default]
    None,
    /// Single pages, which the guest issues to each device by a module, and takes back.
    Pages,
    /// Single pages, which the guest's kernel maps in an IOMMU that it drives.
    Iommu,
    /// All of it, always.
    All,
}

impl Grants {
    /// All of them, by their words in the configuration file.
    pub const ALL: [(&'static str, Self); 4] =
        [("none", Self::None), ("pages", Self::Pages), ("iommu", Self::Iommu), ("all", Self::All)];

    /// Whether single pages are reached.
    pub const fn by_page(self) -> bool {
        matches!(self, Self::Pages | Self::Iommu)
    }
}

/// A virtual device, which a guest drives with its stock virtio driver, and another domain serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Virtio {
    /// Name, unique in the guest; 1-31 characters of `[a-z0-9-]`.
    pub name: String,
    /// What it is.
    pub kind: VirtioKind,
    /// Who serves it: an index into [`Config::domains`], and after those into [`Config::neighbours`].
    pub by: u16,
    /// What is behind it, as the domain that serves it understands it; at most [`MAX_SOURCE`] bytes.
    pub source: String,
    /// Of a device file: the physical device behind it, an index into [`Config::devices`], whose PCI identity the guest sees.
    pub identity: Option<u16>,
    /// Bytes of the region that this guest has with the device behind it ([`Dma::Regions`]), a multiple of [`REGION_UNIT`] up to [`MAX_REGION`]; 0: none.
    pub region: u64,
}

/// Regions are multiples of so many bytes.
pub const REGION_UNIT: u64 = 2 << 20;
/// Most bytes of a region.
pub const MAX_REGION: u64 = 64 << 20;

impl Virtio {
    /// Whether its values are what they may be.
    pub fn is_sound(&self) -> bool {
        let queues = match self.kind {
            VirtioKind::Net { pairs, .. } => (1..=MAX_QUEUE_PAIRS).contains(&pairs),
            VirtioKind::Block | VirtioKind::DeviceFile | VirtioKind::Files | VirtioKind::Entropy => true,
        };
        let is_file = self.kind == VirtioKind::DeviceFile;
        is_name(&self.name)
            && self.source.len() <= MAX_SOURCE
            && queues
            && (is_file || self.identity.is_none())
            && (self.identity.is_some() || self.region == 0)
            && self.region.is_multiple_of(REGION_UNIT)
            && self.region <= MAX_REGION
    }
}

/// How several engines of a network share its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// The first takes what comes from the wire, the others send.
    #[default]
    Split,
    /// All send, each for some VIFs; the first takes what comes from the wire, too.
    Spread,
}

/// Most engines of a network.
pub const MAX_ENGINES: usize = 4;

/// A network of virtual interfaces (VIFs), which engines serve on processors that run no guest (Raj and Schwan, "High Performance and
/// Scalable I/O Virtualization via Self-Virtualized Devices").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Unique, 1-31 characters of `[a-z0-9-]`.
    pub name: String,
    /// The engines' processors, at least one and [`MAX_ENGINES`] at most; these count those that are not for service only.
    pub cores: Vec<u8>,
    /// How the engines share the work.
    pub layout: Layout,
    /// The physical card behind it, an index into [`Config::devices`]; without one, the network is between guests only.
    pub nic: Option<u16>,
    /// Most bytes of a frame after its header, [`NETWORK_MTU`]: more than 1,500 if its card can.
    pub mtu: u16,
    /// Bits of the identifiers by which drivers are signalled in each direction, [`SIGNAL_BITS`], so that interfaces share them; `None`: each has its own.
    pub signal_bits: Option<u8>,
    /// The domain by which signals to drivers go, an index into [`Config::domains`]; `None`: the hypervisor passes them on itself.
    pub controller: Option<u16>,
}

/// What [`Network::signal_bits`] can be.
pub const SIGNAL_BITS: core::ops::RangeInclusive<u8> = 1..=64;

impl Network {
    /// Whether it has engines, each on a processor of its own.
    fn is_sound(&self) -> bool {
        let twice = |(index, core): (usize, &u8)| self.cores.iter().take(index).any(|other| other == core);
        let bits = self.signal_bits.is_none_or(|bits| SIGNAL_BITS.contains(&bits));
        bits && NETWORK_MTU.contains(&self.mtu)
            && (1..=MAX_ENGINES).contains(&self.cores.len())
            && !self.cores.iter().enumerate().any(twice)
    }
}

/// What a guest finds in place of a virtual interface, and drives with its stock driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Face {
    /// A virtio network card.
    #[default]
    Virtio,
    /// The interface as it is: rings without addresses, and a pool of pages, for the module `sluice-vif`.
    Native,
    /// An Intel 82540EM, whose doorbells the engine polls.
    E1000,
}

impl Face {
    /// All.
    pub const ALL: [Self; 3] = [Self::Virtio, Self::Native, Self::E1000];

    /// The word for it in configurations and reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::Native => "native",
            Self::E1000 => "e1000",
        }
    }

    /// The face that a word is for.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|face| face.word() == word)
    }
}

/// A virtual interface of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vif {
    /// Name, unique among the guest's virtual devices; 1-31 characters of `[a-z0-9-]`.
    pub name: String,
    /// An index into [`Config::networks`].
    pub network: u16,
    /// Its station address.
    pub mac: [u8; 6],
    /// How many times as much as one of share 1 it may send when several want to, 1-100.
    pub share: u8,
    /// Most bits per second that it sends.
    pub limit: Option<u64>,
    /// The VLAN that it is in, 1-4094.
    pub vlan: Option<u16>,
    /// Most bytes of a frame after its header: [`MTU`], and not more than its network's.
    pub mtu: u16,
    /// IPv6 addresses, and IPv4 addresses in such (RFC 4291, 2.5.5.2): the only ones that it speaks for, if there are any; [`MAX_ADDRESSES`] at most.
    pub addresses: Vec<[u8; 16]>,
    /// Microseconds for which its driver does not hear of a few frames that it has sent: [`MODERATIONS`]. An 82540EM's driver tells its card.
    pub moderation: u16,
    /// What the guest finds.
    pub face: Face,
}

/// What [`Vif::mtu`] can be: from what IPv4 asks for up to what is usual of jumbo frames.
pub const MTU: core::ops::RangeInclusive<u16> = 576..=9000;
/// What [`Network::mtu`] can be.
pub const NETWORK_MTU: core::ops::RangeInclusive<u16> = DEFAULT_MTU..=9000;
/// What they are if nobody says.
pub const DEFAULT_MTU: u16 = 1500;

/// Most addresses of [`Vif::addresses`].
pub const MAX_ADDRESSES: usize = 8;

/// What [`Vif::moderation`] can be, and is if nobody says.
pub const MODERATIONS: core::ops::RangeInclusive<u16> = 0..=1000;
/// See [`MODERATIONS`].
pub const MODERATION: u16 = 250;

/// What [`Vif::share`] can be.
pub const SHARES: core::ops::RangeInclusive<u8> = 1..=100;

/// What [`Vif::vlan`] can be.
pub const VLANS: core::ops::RangeInclusive<u16> = 1..=4094;

impl Vif {
    /// Whether its values are what they may be.
    pub fn is_sound(&self) -> bool {
        is_name(&self.name)
            && self.mac[0] & 1 == 0
            && SHARES.contains(&self.share)
            && MTU.contains(&self.mtu)
            && MODERATIONS.contains(&self.moderation)
            && self.addresses.len() <= MAX_ADDRESSES
            && self.vlan.is_none_or(|vlan| VLANS.contains(&vlan))
            && self.limit != Some(0)
    }
}

/// The most names in [`Domain::peers`].
pub const MAX_PEERS: usize = 16;

/// Longest [`Virtio::source`] in bytes.
pub const MAX_SOURCE: usize = 127;

/// Most pairs of queues of a network card.
pub const MAX_QUEUE_PAIRS: u8 = 8;

/// Longest path below `/dev` of a device file in bytes (`DEVFILE_NODE_SIZE` of the hypercalls, with its end).
pub const MAX_NODE: usize = 63;

/// What a virtual device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VirtioKind {
    /// A network card.
    Net {
        /// Its station address.
        mac: [u8; 6],
        /// Pairs of a receive and a transmit queue, 1-[`MAX_QUEUE_PAIRS`]. A driver uses as many as its guest has processors.
        pairs: u8,
    },
    /// A disk.
    Block,
    /// A device file of the domain that serves it, which the guest's front end mirrors.
    DeviceFile,
    /// A file system, whose tag is the name of the device.
    Files,
    /// A source of random numbers.
    Entropy,
}

impl VirtioKind {
    /// The word in the configuration file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Net { .. } => "net",
            Self::Block => "blk",
            Self::DeviceFile => "file",
            Self::Files => "fs",
            Self::Entropy => "rng",
        }
    }
}

/// What follows a guest's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Everything that it had is taken back.
    Destroy,
    /// It is built afresh and started again.
    Restart,
    /// It stays as it is, with its memory and devices, until a command destroys it or starts it again.
    Keep,
}

impl Action {
    /// All of them, by their words in the configuration file.
    pub const ALL: [(&'static str, Self); 3] =
        [("destroy", Self::Destroy), ("restart", Self::Restart), ("keep", Self::Keep)];
}

/// What follows the ends that a guest can come to without a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actions {
    /// Its kernel panicked, or it did what no processor goes on after.
    pub crash: Action,
    /// It asked for a reset.
    pub reboot: Action,
    /// It powered itself off.
    pub poweroff: Action,
}

impl Default for Actions {
    fn default() -> Self {
        Self { crash: Action::Destroy, reboot: Action::Restart, poweroff: Action::Destroy }
    }
}

/// A guest's part in a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Index into [`Config::devices`].
    pub device: u16,
    /// How the guest has the device.
    pub attachment: Attachment,
}

/// How a guest has a device, with the options that there are for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attachment {
    /// It owns the device, and drives it with its native driver.
    Passthrough(Passthrough),
    /// It has the device in turn with others, each with its native driver (Xia et al., "Investigating Virtual Passthrough I/O on Commodity Devices").
    Vpio(Vpio),
    /// It has a range of a disk's sectors as its whole disk, with the native driver of the disk's controller.
    Sectors(Sectors),
    /// It has a software card; the hypervisor drives the device.
    Emulated(Emulated),
}

/// What a device that a guest owns reaches by DMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dma {
    /// All memory of its guest, by an IOMMU.
    #[default]
    Guest,
    /// The pages that its guest issues to it, by an IOMMU (Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and
    /// Efficient I/O Virtualization", 3.4).
    Fine,
    /// What its guest issues to it, which it may only read, and the region of one of the guests that it serves by device files, which the domain's
    /// processors do not see (Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 4.2).
    Regions,
    /// All memory of the machine: the user accepts that.
    Unprotected,
}

impl Dma {
    /// Whether the device has tables of its own, in which there is only what its guest issues.
    pub const fn is_issued(self) -> bool {
        matches!(self, Self::Fine | Self::Regions)
    }
}

/// Options of a guest that owns a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passthrough {
    /// What the function reaches by DMA.
    pub dma: Dma,
    /// This function can forge interrupts, for want of interrupt remapping.
    pub interrupts_unprotected: bool,
}

/// Options of a guest that shares a device by virtual passthrough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vpio {
    /// Station address that this guest's driver finds in the device.
    pub mac: [u8; 6],
    /// The card that this guest sees, where models are as good as the same card; `None`: the physical one's like.
    pub model: Option<NicModel>,
    /// For how many times as long as weight 1 this guest keeps a device that others want, too; 1-100.
    pub weight: u8,
    /// After so many milliseconds this guest gets the device even if its holder never rests; `None`: as usual.
    pub max_wait_ms: Option<u8>,
    /// What the guest sees when an access is refused, where that is not left to the model.
    pub refusals: Refusals,
    /// The user accepts that this guest can change what outlives it in the card (EEPROM, PHY, wake-up) while it has it.
    pub registers_unprotected: bool,
}

/// The part of a disk that is one guest's whole disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sectors {
    /// Its first sector, of 512 bytes.
    pub first: u64,
    /// How many sectors it has.
    pub count: u64,
    /// What the guest sees of what the disk refuses; `None`: what the disk says of it.
    pub on_refusal: Option<Reaction>,
}

/// Options of a guest that has a software card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulated {
    /// Station address of the card.
    pub mac: [u8; 6],
    /// The card that this guest sees; `None`: the physical one's like.
    pub model: Option<NicModel>,
}

impl Attachment {
    /// What it is called.
    pub fn mode(&self) -> Mode {
        match self {
            Self::Passthrough(_) => Mode::Passthrough,
            Self::Vpio(_) | Self::Sectors(_) => Mode::Vpio,
            Self::Emulated(_) => Mode::Emulated,
        }
    }

    /// Whether a refused access can be a machine check.
    pub fn machine_check(&self) -> bool {
        match self {
            Self::Vpio(options) => options.refusals.machine_check(),
            Self::Sectors(sectors) => sectors.on_refusal.is_some_and(Reaction::is_machine_check),
            Self::Passthrough(_) | Self::Emulated(_) => false,
        }
    }
}

/// What a guest sees of a refused access, beside its having no effect (Xia et al., "Investigating Virtual Passthrough I/O on Commodity Devices", 3.5).
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

    /// It is a machine check of either kind.
    pub fn is_machine_check(self) -> bool {
        matches!(self, Self::DeferredError | Self::MachineCheck)
    }

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
        all.any(Reaction::is_machine_check)
    }
}

/// What an [`Attachment`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// [`Attachment::Passthrough`].
    Passthrough,
    /// [`Attachment::Vpio`].
    Vpio,
    /// [`Attachment::Emulated`].
    Emulated,
}

impl Mode {
    /// The word in the configuration file and in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Vpio => "vpio",
            Self::Emulated => "emulated",
        }
    }
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
    /// Most bits per second that the guests of a NIC which the hypervisor drives send to the wire, all together; `None`: what the NIC takes.
    pub rate: Option<u64>,
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

/// IDE controllers whose disk guests can share: Intel's PIIX3 and PIIX4, which Linux's `ata_piix` drives.
const IDE: &[(u16, u16)] = &[(0x8086, 0x7010), (0x8086, 0x7111)];

/// Whether a function with these identifiers is an IDE controller whose disk guests can share.
pub fn is_ide(vendor: u16, device: u16) -> bool {
    IDE.contains(&(vendor, device))
}

/// QEMU's NVMe disk. Others are known by their class, which is not in a configuration.
const NVME: (u16, u16) = (0x1b36, 0x0010);

/// Whether a function with these identifiers is known to be of a disk that guests can share.
pub fn is_disk(vendor: u16, device: u16) -> bool {
    is_ide(vendor, device) || (vendor, device) == NVME
}

/// Longest name in bytes.
pub const MAX_NAME: usize = 31;

/// Whether a text is a name: 1 to [`MAX_NAME`] of a-z, 0-9 and '-', not '-' first.
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('-')
}

/// What is wrong with a configuration, and with which of its domains (an index).
///
/// The host command says so in better words, and with the line; this is what the hypervisor relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its name is none, or another's.
    Name(usize),
    /// Memory is no multiple of 2 MiB, or none, or more than 52 bits can address.
    Memory(usize),
    /// Virtual processors: not 1-64.
    Processors(usize),
    /// It names a device that is not declared.
    Device(usize),
    /// It names a device twice.
    DeviceTwice(usize),
    /// One of its virtual devices is served by itself, or by a domain that there is not, or is called as another or what is no name, or
    /// says too much of its source.
    Virtio(usize),
    /// The network at this place is called as another or what is no name, or has no engines that can be, or its card is no device, or one that a guest has.
    Network(usize),
    /// One of its virtual interfaces is on no network, or is called as another virtual device or what is no name, or has a value that it cannot
    /// have.
    Vif(usize),
    /// It has, or serves, more devices than a PCI bus takes ([`MAX_FUNCTIONS`]).
    Functions(usize),
    /// More than [`MAX_DOMAINS`].
    TooManyDomains,
    /// This domain has more than [`MAX_PEERS`].
    Peers(usize),
}

/// Whether two networks have one card.
fn same_nic(one: &Network, other: &Network) -> bool {
    one.nic.is_some() && one.nic == other.nic
}

/// The most functions on a guest's PCI bus: its devices, and those that it serves.
pub const MAX_FUNCTIONS: usize = 28;

impl Config {
    /// How many virtual devices the domain at a place serves.
    fn served_by(&self, server: usize) -> usize {
        let devices = self.domains.iter().flat_map(|domain| &domain.virtio);
        devices.filter(|device| usize::from(device.by) == server).count()
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), Fault> {
        const GRAIN: u64 = 2 << 20;
        if self.domains.len() > MAX_DOMAINS {
            return Err(Fault::TooManyDomains);
        }
        for (index, network) in self.networks.iter().enumerate() {
            let mut before = self.networks.iter().take(index);
            let is_taken = before.any(|other| other.name == network.name || same_nic(other, network));
            let shares = self.domains.iter().flat_map(|domain| &domain.devices);
            let is_shared =
                network.nic.is_some_and(|nic| shares.into_iter().any(|share| share.device == nic));
            let exists = network.nic.is_none_or(|nic| usize::from(nic) < self.devices.len());
            let controls = |domain: &Domain| domain.kind == Kind::Full;
            let is_controlled =
                network.controller.is_none_or(|nth| self.domains.get(usize::from(nth)).is_some_and(controls));
            let is_possible = exists && is_controlled;
            if !is_name(&network.name) || is_taken || is_shared || !is_possible || !network.is_sound() {
                return Err(Fault::Network(index));
            }
        }
        for (index, domain) in self.domains.iter().enumerate() {
            let mut before = self.domains.iter().take(index);
            if !is_name(&domain.name) || before.any(|other| other.name == domain.name) {
                return Err(Fault::Name(index));
            }
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
            if domain.peers.len() > MAX_PEERS {
                return Err(Fault::Peers(index));
            }
            let servers = self.domains.len() + self.neighbours.len();
            for (at, device) in domain.virtio.iter().enumerate() {
                let server = usize::from(device.by);
                let is_taken = domain.virtio.iter().take(at).any(|other| other.name == device.name);
                let is_known = device.identity.is_none_or(|behind| usize::from(behind) < self.devices.len());
                if server >= servers || server == index || is_taken || !is_known || !device.is_sound() {
                    return Err(Fault::Virtio(index));
                }
            }
            for (at, vif) in domain.vifs.iter().enumerate() {
                let before = domain.vifs.iter().take(at).map(|other| &other.name);
                let is_taken = before
                    .chain(domain.virtio.iter().map(|device| &device.name))
                    .any(|name| *name == vif.name);
                let network = self.networks.get(usize::from(vif.network));
                let fits = network.is_some_and(|network| vif.mtu <= network.mtu);
                if !fits || is_taken || !vif.is_sound() {
                    return Err(Fault::Vif(index));
                }
            }
            let controls =
                self.networks.iter().filter(|network| network.controller == u16::try_from(index).ok());
            let serves = self.served_by(index) + controls.count();
            let own = domain.devices.len() + domain.virtio.len() + domain.vifs.len();
            let more = usize::from(domain.control) + usize::from(domain.grants == Grants::Iommu);
            if own + more + serves > MAX_FUNCTIONS {
                return Err(Fault::Functions(index));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    fn config() -> Config {
        let share = Share { device: 0, attachment: Attachment::Passthrough(Passthrough::default()) };
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
            actions: Actions::default(),
            devices: vec![share],
            virtio: Vec::new(),
            vifs: Vec::new(),
            grants: Grants::None,
            peers: Vec::new(),
            control: false,
            kind: Kind::Full,
        };
        Config {
            version: VERSION,
            domains: vec![domain],
            neighbours: Vec::new(),
            devices: vec![Device { name: "nic0".into(), select, rate: None }],
            networks: Vec::new(),
            at_end: AtEnd::Off,
            focus: None,
        }
    }

    #[test]
    fn what_the_types_leave_open_is_checked() {
        assert_eq!(config().check(), Ok(()));
        let with = |change: fn(&mut Config)| {
            let mut changed = config();
            change(&mut changed);
            changed.check()
        };
        assert_eq!(with(|config| config.domains[0].name = "../a".into()), Err(Fault::Name(0)));
        assert_eq!(with(|config| config.domains.push(config.domains[0].clone())), Err(Fault::Name(1)));
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
        assert_eq!(
            with(|config| config.domains[0].peers = vec!["b".into(); MAX_PEERS + 1]),
            Err(Fault::Peers(0))
        );
        let virtio = Virtio {
            name: "disk".into(),
            kind: VirtioKind::Block,
            by: 1,
            source: String::new(),
            identity: None,
            region: 0,
        };
        let served = |by: u16, count: usize, source: &str| {
            let mut config = config();
            config.domains.push(Domain { name: "b".into(), ..config.domains[0].clone() });
            let device =
                |at| Virtio { name: format!("disk{at}"), by, source: source.into(), ..virtio.clone() };
            config.domains[0].virtio = (0..count).map(device).collect();
            assert_eq!(config.served_by(1), if by == 1 { count } else { 0 });
            config.check()
        };
        assert_eq!(served(1, 27, &"a".repeat(MAX_SOURCE)), Ok(()));
        assert_eq!(served(0, 1, ""), Err(Fault::Virtio(0)), "by itself");
        assert_eq!(served(2, 1, ""), Err(Fault::Virtio(0)), "by nobody");
        let behind = |kind, device| {
            let mut config = config();
            config.domains.push(Domain { name: "b".into(), ..config.domains[0].clone() });
            config.domains[0].virtio = vec![Virtio { kind, identity: Some(device), ..virtio.clone() }];
            config.check()
        };
        assert_eq!(behind(VirtioKind::DeviceFile, 0), Ok(()));
        assert_eq!(behind(VirtioKind::DeviceFile, 1), Err(Fault::Virtio(0)), "no such device");
        assert_eq!(behind(VirtioKind::Block, 0), Err(Fault::Virtio(0)), "no file");
        assert_eq!(served(1, 1, &"a".repeat(MAX_SOURCE + 1)), Err(Fault::Virtio(0)));
        assert_eq!(served(1, 28, ""), Err(Fault::Functions(0)));
        let called = |name: &str, by: u16| {
            let mut config = Config { neighbours: vec!["driver".into()], ..config() };
            let device = |name: &str| Virtio { name: name.into(), by, ..virtio.clone() };
            config.domains[0].virtio = vec![device("disk"), device(name)];
            config.check()
        };
        assert_eq!(called("other", 1), Ok(()), "by a neighbour");
        assert_eq!(called("other", 2), Err(Fault::Virtio(0)), "by nobody");
        assert_eq!(called("disk", 1), Err(Fault::Virtio(0)), "twice");
        assert_eq!(called("../disk", 1), Err(Fault::Virtio(0)), "no name");
        let network = Network {
            name: "lan".into(),
            cores: vec![1],
            layout: Layout::Split,
            nic: None,
            mtu: 8999,
            signal_bits: None,
            controller: None,
        };
        let vif = Vif {
            name: "net0".into(),
            network: 0,
            mac: [2, 0, 0, 0, 0, 1],
            share: 1,
            limit: None,
            vlan: None,
            mtu: 1500,
            addresses: vec![[1; 16]; MAX_ADDRESSES],
            moderation: 100,
            face: Face::E1000,
        };
        let on = |networks: Vec<Network>, vif: Vif| {
            let mut config = Config { networks, ..config() };
            config.domains[0].vifs = vec![vif];
            config.check()
        };
        assert_eq!(on(vec![network.clone()], vif.clone()), Ok(()));
        assert_eq!(on(Vec::new(), vif.clone()), Err(Fault::Vif(0)), "on no network");
        assert_eq!(on(vec![network.clone(), network.clone()], vif.clone()), Err(Fault::Network(1)));
        let card = |nic: u16| vec![Network { nic: Some(nic), ..network.clone() }];
        assert_eq!(on(card(0), vif.clone()), Err(Fault::Network(0)), "a guest has the card");
        assert_eq!(on(card(1), vif.clone()), Err(Fault::Network(0)), "no such card");
        let mtu = |mtu: u16| vec![Network { mtu, ..network.clone() }];
        assert_eq!(on(mtu(1500), vif.clone()), Ok(()));
        assert_eq!(
            on(mtu(1500), Vif { mtu: 1501, ..vif.clone() }),
            Err(Fault::Vif(0)),
            "more than its network has"
        );
        for wrong in [1499, 9001] {
            assert_eq!(on(mtu(wrong), vif.clone()), Err(Fault::Network(0)), "{wrong}");
        }
        let cores = |cores: &[u8]| vec![Network { cores: cores.to_vec(), ..network.clone() }];
        assert_eq!(on(cores(&[1, 4, 2, 3]), vif.clone()), Ok(()));
        for wrong in [&[][..], &[1, 2, 1], &[1, 2, 3, 4, 5]] {
            assert_eq!(on(cores(wrong), vif.clone()), Err(Fault::Network(0)), "{wrong:?}");
        }
        let controller = |nth: u16| vec![Network { controller: Some(nth), ..network.clone() }];
        assert_eq!(on(controller(0), vif.clone()), Ok(()), "one that has an interface there itself");
        assert_eq!(on(controller(1), vif.clone()), Err(Fault::Network(0)), "no such domain");
        let mut controlled = Config { networks: controller(0), ..config() };
        controlled.domains[0].kind = Kind::Paravirtual;
        assert_eq!(controlled.check(), Err(Fault::Network(0)), "no bus for the function");
        let mut full = Config { networks: controller(0), ..config() };
        let called = |nth: usize| Vif { name: format!("vif{nth}"), ..vif.clone() };
        full.domains[0].vifs = (0..MAX_FUNCTIONS - 2).map(called).collect();
        assert_eq!(full.check(), Ok(()), "a device, the interfaces, and the function");
        full.domains[0].vifs.push(called(MAX_FUNCTIONS));
        assert_eq!(full.check(), Err(Fault::Functions(0)));
        for vif in [
            Vif { mac: [1, 0, 0, 0, 0, 1], ..vif.clone() },
            Vif { share: 0, ..vif.clone() },
            Vif { vlan: Some(4095), ..vif.clone() },
            Vif { limit: Some(0), ..vif.clone() },
            Vif { mtu: 575, ..vif.clone() },
            Vif { mtu: 9000, ..vif.clone() },
            Vif { addresses: vec![[1; 16]; MAX_ADDRESSES + 1], ..vif.clone() },
            Vif { moderation: 1001, ..vif.clone() },
            Vif { name: "Net".into(), ..vif.clone() },
        ] {
            assert_eq!(on(vec![network.clone()], vif), Err(Fault::Vif(0)));
        }
        let domain = |number: usize| Domain { name: format!("d{number}"), ..config().domains[0].clone() };
        let of = |count: usize| Config { domains: (0..count).map(domain).collect(), ..config() };
        assert_eq!(of(MAX_DOMAINS).check(), Ok(()));
        assert_eq!(of(MAX_DOMAINS + 1).check(), Err(Fault::TooManyDomains));
    }
}
