//! What a disk says of itself, and what a guest is told.
//!
//! A guest's answers are built from nothing: what is not named here, it is not told.
//!
//! Source: NVMe, 5.15.2 (figures 245 and 247), 5.14.1.2 (SMART).

use crate::{EVENTS, MOST_PAGES_LOG2, PAGE};
use sluice_disk::Slice;

/// Bytes of each answer.
pub const BYTES: usize = 4096;
/// Bytes of the log of health.
pub const HEALTH: usize = 512;
/// The revision that guests are told: that of which everything required is there.
pub const VERSION: u32 = 0x0001_0200;

/// Places in what a controller says.
const SERIAL: usize = 4;
const MODEL: usize = 24;
const FIRMWARE: usize = 64;
const MOST: usize = 77;
const COMMANDS: usize = 520;
const CACHE: usize = 525;
/// Places in what a namespace says.
const FORMAT: usize = 26;
const UNWRITTEN: usize = 33;
const FORMATS: usize = 128;

/// Optional commands (ONCS).
const HAS_DATASET: u16 = 1 << 2;
const HAS_ZEROES: u16 = 1 << 3;
/// Doorbells in memory (OACS).
const HAS_DOORBELLS: u16 = 1 << 8;

/// What a physical disk says of itself, as far as guests or the hypervisor have use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    vendor: [u8; 4],
    model: [u8; 40],
    firmware: [u8; 8],
    most: u8,
    commands: u16,
    cache: u8,
    /// What is read of blocks that nobody wrote.
    unwritten: u8,
    blocks: u64,
    shift: u8,
    /// Warnings, temperature and spare of when the disk was taken.
    health: [u8; 6],
}

impl Facts {
    /// Of the answers of a controller and of its first namespace. `None` if it is a namespace that cannot be shared: of no blocks, with metadata, or with
    /// blocks of less than 512 bytes or more than a page.
    pub fn new(controller: &[u8; BYTES], namespace: &[u8; BYTES]) -> Option<Self> {
        let format = u32::from_le_bytes(
            *namespace.get(FORMATS + 4 * usize::from(namespace[FORMAT] & 0xf)..)?.first_chunk()?,
        );
        let (metadata, shift) = (format as u16, (format >> 16) as u8);
        let blocks = u64::from_le_bytes(*namespace.first_chunk()?);
        let is_plain = metadata == 0 && (9..=12).contains(&shift) && blocks > 0;
        is_plain.then_some(Self {
            vendor: *controller.first_chunk()?,
            model: *controller.get(MODEL..)?.first_chunk()?,
            firmware: *controller.get(FIRMWARE..)?.first_chunk()?,
            most: match controller[MOST] {
                0 => MOST_PAGES_LOG2,
                most => most.min(MOST_PAGES_LOG2),
            },
            commands: u16::from_le_bytes(*controller.get(COMMANDS..)?.first_chunk()?),
            cache: controller[CACHE] & 1,
            unwritten: namespace[UNWRITTEN] & 7,
            blocks,
            shift,
            health: [0; 6],
        })
    }

    /// With what it says of its health.
    #[must_use]
    pub fn with_health(self, log: &[u8; HEALTH]) -> Self {
        let [warnings, low, high, spare, least, used, ..] = *log;
        Self { health: [warnings, low, high, spare, least, used], ..self }
    }

    /// How many blocks the disk has.
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// What one guest is offered: a range of a disk.
#[derive(Clone, Debug)]
pub struct Offer {
    facts: Facts,
    slice: Slice,
    serial: [u8; 20],
}

impl Offer {
    /// The blocks of `slice`, under a serial number of their own.
    pub const fn new(facts: Facts, slice: Slice, serial: [u8; 20]) -> Self {
        Self { facts, slice, serial }
    }

    /// The blocks.
    pub const fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The physical namespace.
    pub const fn namespace(&self) -> u32 {
        1
    }

    /// Bytes of a block, as a power of two: 9 to 12.
    pub const fn block_shift(&self) -> u8 {
        self.facts.shift
    }

    /// Most bytes that a command moves.
    pub const fn most_bytes(&self) -> u64 {
        PAGE << self.facts.most
    }

    /// Whether there is Write Zeroes.
    pub const fn has_zeroes(&self) -> bool {
        self.facts.commands & HAS_ZEROES != 0
    }

    /// Whether there is Dataset Management.
    pub const fn has_dataset(&self) -> bool {
        self.facts.commands & HAS_DATASET != 0
    }

    /// Whether blocks stay in a cache until they are flushed.
    pub const fn has_cache(&self) -> bool {
        self.facts.cache != 0
    }

    /// What the guest's controller says of itself.
    pub fn controller(&self, page: &mut [u8]) {
        let put = |page: &mut [u8], at: usize, bytes: &[u8]| {
            if let Some(part) = page.get_mut(at..at + bytes.len()) {
                part.copy_from_slice(bytes);
            }
        };
        page.fill(0);
        put(page, 0, &self.facts.vendor);
        put(page, SERIAL, &self.serial);
        put(page, MODEL, &self.facts.model);
        put(page, FIRMWARE, &self.facts.firmware);
        put(page, MOST, &[self.facts.most]);
        put(page, 80, &VERSION.to_le_bytes());
        put(page, 256, &HAS_DOORBELLS.to_le_bytes());
        // Up to four aborts, and requests for four events; one slot of firmware, which cannot be written.
        put(page, 258, &[3, EVENTS - 1, 0b11]);
        // Entries of 64 and 16 bytes.
        put(page, 512, &[0x66, 0x44]);
        put(page, 516, &1_u32.to_le_bytes());
        put(page, COMMANDS, &(self.facts.commands & (HAS_DATASET | HAS_ZEROES)).to_le_bytes());
        put(page, CACHE, &[self.facts.cache]);
    }

    /// What its namespace says of itself.
    pub fn describe_namespace(&self, page: &mut [u8]) {
        page.fill(0);
        // Size, capacity and use.
        for part in page.as_chunks_mut().0.iter_mut().take(3) {
            *part = self.slice.sectors().to_le_bytes();
        }
        if let Some(byte) = page.get_mut(UNWRITTEN) {
            *byte = self.facts.unwritten;
        }
        if let Some(byte) = page.get_mut(FORMATS + 2) {
            *byte = self.facts.shift;
        }
    }

    /// What is told of the disk's health: of when it was taken. What others do with it is not told.
    pub fn health(&self, page: &mut [u8]) {
        page.fill(0);
        page.iter_mut().zip(self.facts.health).for_each(|(to, from)| *to = from);
    }

    /// Which firmware there is: in the first slot, and no other.
    pub fn firmware(&self, page: &mut [u8]) {
        page.fill(0);
        for (at, bytes) in [(0, &[1][..]), (8, &self.facts.firmware)] {
            page.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        }
    }
}
