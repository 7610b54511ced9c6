//! An entry of a page table, as a guest writes it and as the hardware is to see it.
//!
//! Source: AMD64 Architecture Programmer's Manual, volume 2, 5.3 (format); Xen's public headers, which give bit 52 its meaning.

use crate::{Kind, Mfn};
use bitflags::bitflags;

bitflags! {
    /// An entry of a page table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Entry: u64 {
        /// The entry means something.
        const PRESENT = 1 << 0;
        /// Software may write.
        const WRITE = 1 << 1;
        /// Software at privilege level 3 has access: all of a guest's, its kernel too.
        const USER = 1 << 2;
        /// Memory type, first bit.
        const WRITE_THROUGH = 1 << 3;
        /// Memory type, second bit.
        const UNCACHED = 1 << 4;
        /// The hardware has used it.
        const ACCESSED = 1 << 5;
        /// The hardware has written by it.
        const DIRTY = 1 << 6;
        /// In the lowest level the memory type's third bit, above that a large page.
        const LARGE = 1 << 7;
        /// Translations survive a change of the address space.
        const GLOBAL = 1 << 8;
        /// The guest wrote the entry without [`Entry::USER`]: it is its kernel's.
        const KERNEL = 1 << 52;
        /// All other bits.
        const _ = !0;
    }
}

/// Bits of an entry that are the number of a frame.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

impl Entry {
    /// What hardware changes by itself.
    pub const HARDWARE: Self = Self::ACCESSED.union(Self::DIRTY);

    /// The frame that it refers to.
    pub const fn frame(self) -> Mfn {
        Mfn((self.bits() & FRAME) >> 12)
    }

    /// An entry for `frame` with these flags.
    pub const fn new(frame: Mfn, flags: Self) -> Self {
        Self::from_bits_retain(frame.0 << 12 & FRAME | flags.bits())
    }

    /// The entry as the hardware is to see it in a table of that kind. A guest's kernel runs at privilege level 3, so that everything that it
    /// maps must be a user's to the hardware; what it meant is kept in [`Entry::KERNEL`]. What is its kernel's is not global: its programs
    /// run in other tables, which do not have it. `None`: no such entry may be there.
    pub fn adjusted(self, kind: Kind) -> Option<Self> {
        if !self.contains(Self::PRESENT) {
            return Some(self);
        }
        let forbidden = match kind {
            Kind::L1 => Self::empty(),
            _ => Self::WRITE_THROUGH | Self::UNCACHED | Self::LARGE | Self::GLOBAL,
        };
        if self.intersects(forbidden) {
            return None;
        }
        let mut entry = self;
        if kind == Kind::L1 && !entry.contains(Self::USER) {
            entry |= Self::KERNEL;
        }
        if entry.contains(Self::KERNEL) {
            entry -= Self::GLOBAL;
        }
        Some(entry | Self::USER)
    }

    /// Whether the hardware lets software write by it.
    pub const fn is_writable(self) -> bool {
        self.contains(Self::PRESENT.union(Self::WRITE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_kernels_is_the_users_to_the_hardware_and_never_global() {
        let plain = Entry::new(Mfn(5), Entry::PRESENT | Entry::WRITE | Entry::GLOBAL);
        let kernel = plain.adjusted(Kind::L1).unwrap();
        assert_eq!(kernel, Entry::new(Mfn(5), Entry::PRESENT | Entry::WRITE | Entry::USER | Entry::KERNEL));
        assert_eq!(
            kernel.adjusted(Kind::L1),
            Some(kernel),
            "an entry that was read is written back as it is"
        );
        assert_eq!((kernel | Entry::GLOBAL).adjusted(Kind::L1), Some(kernel));
        let user = plain | Entry::USER;
        assert_eq!(user.adjusted(Kind::L1), Some(user));
    }

    #[test]
    fn large_pages_and_memory_types_of_tables_are_refused() {
        for flag in [Entry::LARGE, Entry::WRITE_THROUGH, Entry::UNCACHED, Entry::GLOBAL] {
            let entry = Entry::new(Mfn(5), Entry::PRESENT | flag);
            for kind in [Kind::L2, Kind::L3, Kind::L4] {
                assert_eq!(entry.adjusted(kind), None, "{flag:?} in {kind:?}");
                let absent = entry - Entry::PRESENT;
                assert_eq!(absent.adjusted(kind), Some(absent), "what is not present means nothing");
            }
            assert!(entry.adjusted(Kind::L1).is_some());
        }
    }
}
