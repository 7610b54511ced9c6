//! Feature bits that the transport has a say in (Virtio 1.2, 2.2 and 6).

/// The device follows the standard, as opposed to what was there before it.
pub const VERSION_1: u64 = 1 << 32;
/// The device reaches memory as the platform says, and not at its guest-physical address. The transport's, never a back end's: behind a
/// window, addresses are what the window says.
pub const ACCESS_PLATFORM: u64 = 1 << 33;

/// What a back end may offer: features of the device type (bits 0-23 and 50-63), indirect descriptors, event indices, and use in
/// order. The rest concerns the transport.
pub const OFFERABLE: u64 = 0xff_ffff | 0xfffc << 48 | 1 << 28 | 1 << 29 | 1 << 35;
