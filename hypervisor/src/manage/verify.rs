//! Whether memory that nobody may change has changed: for tests that let hostile devices loose.
//!
//! The first [`Watch::verify`] notes what is there and fills memory that is free with a pattern; each later one compares.
//! Watched are the image's text and constants, the bundle, the hypervisor's own page tables, every domain's map as its
//! tables show it, and free memory. Each time, every map is compared with the table of frames, too: it shows its domain's
//! memory and no other. A change means that isolation is broken, and nothing can go on: it panics.

use crate::domain::{Domain, layout};
use crate::handover::BootInfo;
use crate::mm::{self, Direct, FrameUse, Hpa};
use alloc::vec::Vec;
use sluice_abi::DomainId;
use sluice_memory::{Access, LARGE_PAGE, PhysicalMemory};

/// Free memory is watched in pieces of this size; the rest stays free.
const PIECE: u64 = LARGE_PAGE;
/// At least so much stays free, for whatever is built meanwhile.
const SPARE: u64 = 64 << 20;

/// What was seen first.
#[derive(Default)]
pub struct Watch {
    fixed: Option<[u64; 3]>,
    /// Tables of domains.
    maps: Vec<(DomainId, u64)>,
    /// Pieces of memory that were free, filled with their own addresses.
    pieces: Vec<Hpa>,
}

/// FNV-1a, by words.
struct Sum(u64);

impl Sum {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }

    fn memory(start: u64, bytes: u64) -> u64 {
        let mut sum = Self::new();
        (0..bytes / 8).for_each(|word| sum.add(Direct.read_u64(Hpa::new(start + word * 8))));
        sum.0
    }
}

/// What a word of a piece holds.
fn pattern(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn words(piece: Hpa) -> impl Iterator<Item = Hpa> {
    (0..PIECE / 8).map(move |word| Hpa::new(piece.as_u64() + word * 8))
}

impl Watch {
    /// Compares with what was seen first, or notes it.
    ///
    /// # Panics
    /// Something has changed.
    pub fn verify<'a>(&mut self, info: &BootInfo, domains: impl Iterator<Item = &'a Domain>) {
        mm::check_free();
        let image = mm::read_only_image();
        let bundle = info.bundle.map_or((0, 0), |(start, bytes)| (start.as_u64() & !7, bytes));
        let mut tables = Sum::new();
        mm::walk_live(|leaf| {
            [leaf.address, leaf.physical, leaf.bytes, leaf.writable.into(), leaf.executable.into()]
                .into_iter()
                .for_each(|word| tables.add(word));
        });
        let fixed =
            [Sum::memory(image.start, image.end - image.start), Sum::memory(bundle.0, bundle.1), tables.0];
        let maps = domains.map(|domain| {
            domain.check_isolation();
            (domain.id, sum_of(domain))
        });
        match self.fixed {
            None => {
                self.fixed = Some(fixed);
                self.maps = maps.collect();
                self.take_free_memory();
            }
            Some(first) => {
                assert!(fixed == first, "image, bundle or page tables changed: {fixed:x?}, were {first:x?}");
                for (id, sum) in maps {
                    let known = self.maps.iter().find(|(known, _)| *known == id);
                    assert!(known.is_none_or(|(_, first)| *first == sum), "the map of domain {id} changed");
                }
                for piece in &self.pieces {
                    let changed = words(*piece).find(|at| Direct.read_u64(*at) != pattern(at.as_u64()));
                    assert!(changed.is_none(), "free memory changed at {changed:?}");
                }
            }
        }
        let bytes = image.end - image.start + bundle.1 + self.pieces.len() as u64 * PIECE;
        log::info!("verified: {} MiB of memory that nobody may change", bytes >> 20);
    }

    fn take_free_memory(&mut self) {
        while mm::free_bytes() > SPARE + PIECE {
            let Some(piece) = mm::allocate(FrameUse::Hypervisor, PIECE, PIECE) else { break };
            words(piece).for_each(|at| Direct.write_u64(at, pattern(at.as_u64())));
            self.pieces.push(piece);
        }
    }
}

/// Sum of what a domain's tables map, without registers of devices, which its guest may move, and without its windows, in which
/// guests come and go.
fn sum_of(domain: &Domain) -> u64 {
    let mut sum = Sum::new();
    domain.visit_views(&mut |at, hpa, bytes, access| {
        if access.contains(Access::UNCACHED) || at >= layout::WINDOWS {
            return;
        }
        [at, hpa.as_u64(), bytes, access.bits().into()].into_iter().for_each(|word| sum.add(word));
    });
    sum.0
}
