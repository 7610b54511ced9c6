//! Addresses of different spaces are different types.

use core::fmt;

/// Bytes of a small page.
pub const PAGE_SIZE: u64 = 1 << 12;
/// Bytes of a large page.
pub const LARGE_PAGE: u64 = 1 << 21;
/// Bytes of a huge page.
pub const HUGE_PAGE: u64 = 1 << 30;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The address of byte `value` of the space.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The number of the byte.
            pub const fn as_u64(self) -> u64 {
                self.0
            }

            /// The address `bytes` higher, or `None` past the end of the space.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// The next lower multiple of `align`, a power of two.
            pub const fn align_down(self, align: u64) -> Self {
                Self(self.0 & !(align - 1))
            }

            /// The next higher multiple of `align`, a power of two.
            pub const fn align_up(self, align: u64) -> Option<Self> {
                match self.0.checked_add(align - 1) {
                    Some(value) => Some(Self(value & !(align - 1))),
                    None => None,
                }
            }

            /// Whether it is a multiple of `align`, a power of two.
            pub const fn is_aligned(self, align: u64) -> bool {
                self.0 & (align - 1) == 0
            }

            /// Position in its small page, 0-4095.
            pub const fn page_offset(self) -> u64 {
                self.0 & (PAGE_SIZE - 1)
            }
        }

        impl From<$name> for u64 {
            fn from(address: $name) -> Self {
                address.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// Guest-physical: what a guest takes for physical memory.
    Gpa
}
address! {
    /// Host-physical: what the memory controller sees.
    Hpa
}
address! {
    /// Guest-virtual, or linear: what a guest's instructions use.
    Gva
}
address! {
    /// What a device puts on the bus, before an IOMMU translates it.
    Iova
}
