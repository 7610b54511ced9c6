//! A virtual device: where a guest's driver and a back end meet.

use crate::features;
use crate::queue::{NO_VECTOR, Queue};
use bitflags::bitflags;
use sluice_hypercall::backend::{CONFIG_SIZE, MAX_QUEUES, MAX_RANGES, NAME_SIZE, SOURCE_SIZE};
use sluice_hypercall::devfile::DEVFILE_KIND;

bitflags! {
    /// Device status (Virtio 1.2, 2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u8 {
        /// The guest has noticed the device.
        const ACKNOWLEDGE = 1;
        /// It has a driver for it.
        const DRIVER = 2;
        /// The driver is set up; the queues are in use.
        const DRIVER_OK = 4;
        /// The driver has accepted features, and the device them.
        const FEATURES_OK = 8;
        /// The device cannot go on.
        const NEEDS_RESET = 64;
        /// The driver has given up.
        const FAILED = 128;
    }
}

bitflags! {
    /// Whom the caller must tell of what.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Changes: u8 {
        /// The back end: status or state are others now.
        const BACKEND = 1;
        /// The guest, by the message of the configuration: it is another now, or the device needs a reset.
        const CONFIGURATION = 2;
        /// The guest, by the level of the line: [`Device::line`].
        const LINE = 4;
        /// The driver was refused its features, since the guest issues no memory.
        const REFUSED = 8;
        /// The guest's driver need not wait any more: [`Device::is_offered`].
        const OFFERED = 16;
        /// Who chooses the guest in the foreground: the next one is wanted there.
        const FOCUS = 32;
    }
}

/// What a device is (Virtio 1.2, 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A network card (5.1).
    Net,
    /// A disk (5.2).
    Block,
    /// A device file of another domain: [`sluice_hypercall::devfile`].
    DeviceFile,
    /// A file system (5.11).
    Files,
    /// A source of random numbers (5.4).
    Entropy,
    /// A stream to the hypervisor: a console device (5.3), see [`crate::Port`].
    Port,
    /// An IOMMU (5.13), see [`crate::iommu`].
    Iommu,
}

impl Kind {
    /// Its number.
    pub const fn id(self) -> u16 {
        match self {
            Self::Net => 1,
            Self::Block => 2,
            Self::Port => 3,
            Self::Entropy => 4,
            Self::Iommu => 23,
            Self::Files => 26,
            Self::DeviceFile => DEVFILE_KIND as u16,
        }
    }
}

/// What of its memory a guest issues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issues {
    /// Nothing: its driver will be refused.
    Nothing,
    /// All of it, always.
    All,
    /// Single pages, once it has said so: [`Device::issue_pages`]. Its driver has to know that addresses are the platform's.
    Pages,
}

/// How the guest learns of used buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Not at all: it asked for no message, or does not use the queue.
    None,
    /// By this message of its MSI-X table.
    Message(u16),
    /// By the level of the line.
    Line,
}

/// What a back end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) features: u64,
    pub(crate) queues: u32,
    /// Most entries of a queue.
    pub(crate) queue_size: u32,
    pub(crate) config_len: u32,
    pub(crate) config: [u8; CONFIG_SIZE as usize],
}

/// A virtual device.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) kind: Kind,
    /// For the back end: whose device it is, and what is behind it.
    pub(crate) name: [u8; NAME_SIZE as usize],
    pub(crate) source: [u8; SOURCE_SIZE as usize],
    /// What a back end that has just come finds in its registers.
    initial: Offer,
    /// What the back end has written to its registers.
    pub(crate) staged: Offer,
    /// What the guest sees.
    pub(crate) offer: Option<Offer>,
    /// What came of the back end's last command.
    pub(crate) result: u32,
    /// There is a guest.
    pub(crate) has_guest: bool,
    /// Another guest is in the foreground.
    pub(crate) in_background: bool,
    /// There is a back end.
    has_backend: bool,
    /// The hypervisor serves it, which needs nobody's leave to reach the guest's memory.
    served_here: bool,
    /// The guest issues memory.
    pub(crate) issues: bool,
    /// It issues single pages.
    pub(crate) by_page: bool,
    /// Offsets and bytes.
    pub(crate) ranges: [(u64, u64); MAX_RANGES as usize],
    pub(crate) range_count: u32,
    pub(crate) status: Status,
    /// The guest wants a reset, and the back end has not let go of the queues.
    pub(crate) resetting: bool,
    pub(crate) device_select: u32,
    pub(crate) driver_select: u32,
    /// Features that the driver accepts.
    pub(crate) accepted: u64,
    pub(crate) queue_select: u16,
    pub(crate) queues: [Queue; MAX_QUEUES as usize],
    pub(crate) config_vector: u16,
    pub(crate) generation: u8,
    pub(crate) isr: u8,
}

/// Bits of the ISR status (4.1.4.5).
pub(crate) const ISR_QUEUE: u8 = 1;
pub(crate) const ISR_CONFIG: u8 = 2;

/// The beginning of `text`, and zeros: at least one.
fn fixed<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.iter_mut().take(N - 1).zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

impl Device {
    /// A device that nobody serves and no guest has. `config` is what is known of its configuration.
    pub fn new(kind: Kind, name: &str, source: &str, config: &[u8]) -> Self {
        let mut bytes = [0; CONFIG_SIZE as usize];
        bytes.iter_mut().zip(config).for_each(|(to, from)| *to = *from);
        let initial = Offer { features: 0, queues: 0, queue_size: 0, config_len: 0, config: bytes };
        Self {
            kind,
            name: fixed(name),
            source: fixed(source),
            initial,
            staged: initial,
            offer: None,
            result: 0,
            has_guest: false,
            in_background: false,
            has_backend: false,
            served_here: false,
            issues: false,
            by_page: false,
            ranges: [(0, 0); MAX_RANGES as usize],
            range_count: 0,
            status: Status::empty(),
            resetting: false,
            device_select: 0,
            driver_select: 0,
            accepted: 0,
            queue_select: 0,
            queues: [Queue::new(0); MAX_QUEUES as usize],
            config_vector: NO_VECTOR,
            generation: 0,
            isr: 0,
        }
    }

    /// A device that the hypervisor serves itself: it is offered from the beginning.
    pub fn served_here(kind: Kind, features: u64, queues: u32, queue_size: u32, config: &[u8]) -> Self {
        let mut device = Self::new(kind, "", "", config);
        let offer = Offer { features, queues, queue_size, config_len: config.len() as u32, ..device.initial };
        (device.offer, device.served_here) = (Some(offer), true);
        device.queues = [Queue::new(queue_size as u16); MAX_QUEUES as usize];
        device
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether a back end has offered it. Before, the guest's driver must wait: there is nothing to tell it.
    pub fn is_offered(&self) -> bool {
        self.offer.is_some()
    }

    /// The guest's status of it.
    pub fn status(&self) -> Status {
        self.status
    }

    /// A guest has come. `ranges` of the window, offsets and bytes, are where what it issues can be.
    pub fn attach_guest(&mut self, issues: Issues, ranges: impl Iterator<Item = (u64, u64)>) -> Changes {
        self.range_count = 0;
        for (to, from) in self.ranges.iter_mut().zip(ranges) {
            *to = from;
            self.range_count += 1;
        }
        self.issues = self.served_here || issues == Issues::All;
        self.by_page = !self.served_here && issues == Issues::Pages;
        self.has_guest = true;
        Changes::BACKEND
    }

    /// Its guest is in the background, or in the foreground.
    pub fn set_background(&mut self, background: bool) -> Changes {
        let before = core::mem::replace(&mut self.in_background, background);
        if before == background { Changes::empty() } else { Changes::BACKEND }
    }

    /// Whether another guest is in the foreground.
    pub const fn is_in_background(&self) -> bool {
        self.in_background
    }

    /// The guest issues pages to the device from now on. Returns false if that is not its way.
    pub fn issue_pages(&mut self) -> bool {
        self.issues |= self.by_page;
        self.by_page
    }

    /// The guest has gone, with all that it issued.
    pub fn detach_guest(&mut self) -> Changes {
        (self.range_count, self.issues, self.by_page, self.has_guest) = (0, false, false, false);
        self.reset() | Changes::BACKEND
    }

    /// Somebody is there to serve it.
    pub fn attach_backend(&mut self) {
        (self.staged, self.result, self.has_backend) = (self.initial, 0, true);
    }

    /// Nobody is there any more. What was offered stands, so that the next one can go on.
    pub fn detach_backend(&mut self) -> Changes {
        self.has_backend = false;
        if self.resetting { self.forget() } else { Changes::empty() }
    }

    /// The guest wants a reset (Virtio 1.2, 2.4): at once, unless a back end may be at work in the queues.
    pub(crate) fn reset(&mut self) -> Changes {
        if self.has_backend && (self.resetting || self.status.contains(Status::DRIVER_OK)) {
            self.resetting = true;
            return Changes::BACKEND;
        }
        self.forget()
    }

    /// All that the driver said is gone.
    pub(crate) fn forget(&mut self) -> Changes {
        let size = self.offer.map_or(0, |offer| offer.queue_size as u16);
        self.status = Status::empty();
        self.resetting = false;
        (self.device_select, self.driver_select, self.queue_select) = (0, 0, 0);
        self.accepted = 0;
        self.queues = [Queue::new(size); MAX_QUEUES as usize];
        self.config_vector = NO_VECTOR;
        self.isr = 0;
        Changes::BACKEND | Changes::LINE
    }

    /// Features that the driver may accept.
    pub(crate) fn offered_features(&self) -> u64 {
        self.offer.map_or(0, |offer| offer.features & features::OFFERABLE | self.required_features())
    }

    /// What the driver has to accept.
    pub(crate) fn required_features(&self) -> u64 {
        features::VERSION_1 | if self.by_page { features::ACCESS_PLATFORM } else { 0 }
    }

    /// How many queues there are.
    pub(crate) fn queue_count(&self) -> u16 {
        self.offer.map_or(0, |offer| offer.queues as u16)
    }

    /// Whether the driver is at work with its queues.
    pub fn is_live(&self) -> bool {
        self.status.contains(Status::DRIVER_OK) && !self.resetting
    }

    /// The driver broke the rules: the device does nothing more before a reset.
    pub fn break_down(&mut self) -> Changes {
        self.status |= Status::NEEDS_RESET;
        Changes::CONFIGURATION
    }

    /// The back end has used buffers of a queue. `messages`: the guest uses its MSI-X table.
    pub fn used(&mut self, queue: u16, messages: bool) -> Signal {
        let live = self.is_live();
        let queue = self.queues.get(usize::from(queue)).filter(|queue| live && queue.enabled);
        match queue {
            None => Signal::None,
            Some(_) if !messages => {
                self.isr |= ISR_QUEUE;
                Signal::Line
            }
            Some(queue) if queue.vector == NO_VECTOR => Signal::None,
            Some(queue) => Signal::Message(queue.vector),
        }
    }

    /// How the guest learns of [`Changes::CONFIGURATION`].
    pub fn configuration_signal(&mut self, messages: bool) -> Signal {
        match (messages, self.config_vector) {
            (false, _) => {
                self.isr |= ISR_CONFIG;
                Signal::Line
            }
            (true, NO_VECTOR) => Signal::None,
            (true, vector) => Signal::Message(vector),
        }
    }

    /// Level of the guest's line, for a guest without messages.
    pub fn line(&self) -> bool {
        self.isr != 0
    }

    /// Whether the back end is to be told that the guest made buffers of a queue available.
    pub fn is_kick(&self, queue: u16) -> bool {
        let queue = self.queues.get(usize::from(queue));
        queue.is_some_and(|queue| queue.enabled) && self.is_live()
    }

    /// A queue that the driver uses, if the device is in use and the driver has broken no rule.
    pub fn live_queue(&self, number: u16) -> Option<&Queue> {
        let works = self.is_live() && !self.status.contains(Status::NEEDS_RESET);
        self.queues.get(usize::from(number)).filter(|queue| works && queue.enabled && queue.size != 0)
    }

    /// Features that the driver accepted, once it is at work.
    pub fn accepted(&self) -> u64 {
        if self.is_live() { self.accepted } else { 0 }
    }
}
