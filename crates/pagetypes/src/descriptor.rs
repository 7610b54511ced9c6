//! A segment descriptor, as a guest writes it and as the processor may load it.
//!
//! Source: AMD64 Architecture Programmer's Manual, volume 2, 4.7 and 4.8.

/// Eight bytes of a descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor(pub u64);

impl Descriptor {
    const ACCESSED: u64 = 1 << 40;
    const CODE: u64 = 1 << 43;
    /// Code or data, as opposed to a gate or to something of the system's.
    const SEGMENT: u64 = 1 << 44;
    const PRIVILEGE: u64 = 3 << 45;
    const PRESENT: u64 = 1 << 47;
    const LONG: u64 = 1 << 53;
    const DEFAULT_32: u64 = 1 << 54;

    /// The descriptor as the processor is to see it: at privilege level 3, and marked as accessed, so that the processor does not write it.
    /// `None`: it is a gate or of the system's, or code of no known mode.
    pub const fn adjusted(self) -> Option<Self> {
        if self.0 & Self::PRESENT == 0 {
            return Some(self);
        }
        if self.0 & Self::SEGMENT == 0 {
            return None;
        }
        let both = Self::LONG | Self::DEFAULT_32;
        if self.0 & Self::CODE != 0 && self.0 & both == both {
            return None;
        }
        Some(Self(self.0 | Self::PRIVILEGE | Self::ACCESSED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_of_privilege_level_3_and_accessed() {
        // As Linux has them: code of the kernel, data, code of 32-bit programs.
        for (written, seen) in [
            (0x00af_9a00_0000_ffff, 0x00af_fb00_0000_ffff),
            (0x00cf_9200_0000_ffff, 0x00cf_f300_0000_ffff),
            (0x00cf_fa00_0000_ffff, 0x00cf_fb00_0000_ffff),
        ] {
            assert_eq!(Descriptor(written).adjusted(), Some(Descriptor(seen)));
        }
        assert_eq!(Descriptor(0).adjusted(), Some(Descriptor(0)));
    }

    #[test]
    fn gates_and_what_is_the_systems_are_refused() {
        for kind in 0..16u64 {
            let descriptor = 1 << 47 | kind << 40;
            assert_eq!(Descriptor(descriptor).adjusted(), None, "type {kind:#x}");
            assert!(Descriptor(descriptor | 1 << 44).adjusted().is_some());
        }
        assert_eq!(Descriptor(0x00ef_9a00_0000_ffff).adjusted(), None, "code of two modes");
    }
}
