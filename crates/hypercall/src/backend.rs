//! The back-end function: what a driver domain sees of a virtual device that it serves.
//!
//! Each virtio device of a guest has one. It is a PCI function on the driver domain's bus with three things: registers
//! (hooked, for what happens seldom), the window (the guest's memory as far as the guest lets the device have it, where I/O
//! address 0 is the window's first byte; reached without exits, by software and by the driver domain's devices alike), and
//! messages (vector 0: the state changed; vector 1 + n: the guest made buffers of queue n available). Towards the guest, a
//! back end tells of used buffers by [`crate::call::NOTIFY`].
//!
//! Where the guest has issued nothing, or is gone, the window shows memory that means nothing and belongs to the driver domain
//! (the sink): an access there harms nobody and never fails.
//!
//! Registers are little-endian. They are read and written by aligned accesses of four bytes; [`NAME`], [`SOURCE`] and [`CONFIG`]
//! also by bytes and words. What is not defined reads as zero and ignores writes.

/// PCI vendor identifier. Nobody has registered it.
pub const VENDOR: u16 = 0x534c;
/// PCI device identifier.
pub const DEVICE: u16 = 0x0001;
/// PCI class code: system peripheral, other.
pub const CLASS: u32 = 0x08_8000;

/// BAR of the registers and the MSI-X table.
pub const REGISTERS_BAR: u8 = 0;
/// Bytes of it.
pub const REGISTERS_SIZE: u64 = 0x2000;
/// Offset of the MSI-X table in it.
pub const MSIX_TABLE: u32 = 0x1000;
/// Offset of the MSI-X pending bits in it.
pub const MSIX_PENDING: u32 = 0x1800;
/// BAR of the window, prefetchable memory above 4 GiB.
pub const WINDOW_BAR: u8 = 2;

/// Most queues of one device.
pub const MAX_QUEUES: u32 = 17;
/// Most entries of one queue.
pub const MAX_QUEUE_SIZE: u32 = 1024;
/// Message that tells of a change of [`STATUS`] or [`STATE`].
pub const CHANGED_VECTOR: u16 = 0;
/// Message that tells of available buffers in queue 0; those of other queues follow.
pub const KICK_VECTOR: u16 = 1;
/// Messages.
pub const VECTORS: u16 = KICK_VECTOR + MAX_QUEUES as u16;

/// Reads as [`MAGIC_VALUE`].
pub const MAGIC: u32 = 0x000;
/// "SLBE".
pub const MAGIC_VALUE: u32 = 0x4542_4c53;
/// Reads as [`VERSION_VALUE`].
pub const VERSION: u32 = 0x004;
/// Of these registers.
pub const VERSION_VALUE: u32 = 1;
/// Virtio device type (1: network, 2: block, 63: device file). Read only.
pub const KIND: u32 = 0x008;
/// The guest's device status (Virtio 1.2, 2.1). Read only.
pub const STATUS: u32 = 0x00c;
/// `STATE_` bits. Read only.
pub const STATE: u32 = 0x010;
/// The device is offered to the guest.
pub const STATE_OFFERED: u32 = 1 << 0;
/// The guest resets the device: stop all queues, forget them, then write [`CONTROL_RESET_DONE`].
pub const STATE_RESETTING: u32 = 1 << 1;
/// There is a guest now.
pub const STATE_PEER: u32 = 1 << 2;
/// Another guest is in the foreground: what the person at a device does is not meant for this one.
pub const STATE_BACKGROUND: u32 = 1 << 3;
/// One of the `CONTROL_` commands. Reads as what came of the last: 0, or a `REFUSED_` value.
pub const CONTROL: u32 = 0x014;
/// Offers the device to the guest with the features, queues and configuration that are in the registers. A guest that has come to terms with a
/// back end before keeps them: its features must be among those offered.
pub const CONTROL_OFFER: u32 = 1;
/// No queue of the guest's former use is touched any more.
pub const CONTROL_RESET_DONE: u32 = 2;
/// [`CONFIG`] has changed: the guest is told.
pub const CONTROL_CONFIG_CHANGED: u32 = 3;
/// The device cannot go on: the guest is told that it needs a reset.
pub const CONTROL_NEEDS_RESET: u32 = 4;
/// Of a device file whose guest is in the foreground: the person at the device wants the next guest there that the same domain serves.
pub const CONTROL_PASS_FOCUS: u32 = 5;
/// There is no such command, or it makes no sense now.
pub const REFUSED_COMMAND: u32 = 1;
/// Number of queues, their size, or the length of the configuration is out of range.
pub const REFUSED_RANGE: u32 = 2;
/// The guest uses features that are not offered any more.
pub const REFUSED_FEATURES: u32 = 3;
/// Features of the device, bits 31:0, then 63:32. `VIRTIO_F_VERSION_1` is implied; what belongs to the transport is masked.
/// Written before the offer.
pub const DEVICE_FEATURES: u32 = 0x018;
/// Features that the guest has accepted, bits 31:0, then 63:32. Read only; valid from FEATURES_OK on.
pub const DRIVER_FEATURES: u32 = 0x020;
/// Number of queues, up to [`MAX_QUEUES`]. Written before the offer.
pub const QUEUES: u32 = 0x028;
/// Most entries of a queue, a power of two up to [`MAX_QUEUE_SIZE`]. Written before the offer.
pub const QUEUE_SIZE: u32 = 0x02c;
/// Bytes of [`CONFIG`] that the device has. Written before the offer.
pub const CONFIG_LEN: u32 = 0x030;
/// Ranges of the window in which the guest issued memory. Read only.
pub const RANGES: u32 = 0x034;
/// Slot of this function on its bus, as [`crate::call::NOTIFY`] wants it. Read only.
pub const SLOT: u32 = 0x038;
/// Name of the device, "guest.device", ended by zeros. Read only.
pub const NAME: u32 = 0x040;
/// Bytes of it.
pub const NAME_SIZE: u32 = 0x40;
/// What the configuration says is behind the device: for a disk a file or block device of the driver domain, for a network a
/// bridge. Ended by zeros. Read only.
pub const SOURCE: u32 = 0x080;
/// Bytes of it.
pub const SOURCE_SIZE: u32 = 0x80;
/// Configuration of the device as the guest sees it (Virtio 1.2, 5.1.4, 5.2.4). To begin with, what the hypervisor
/// knows of it: the hardware address of a network device.
pub const CONFIG: u32 = 0x100;
/// Bytes of it.
pub const CONFIG_SIZE: u32 = 0x100;
/// Ranges in which the guest issued memory: offset in the window, then bytes, eight bytes each.
pub const RANGE: u32 = 0x200;
/// Bytes of a range.
pub const RANGE_STRIDE: u32 = 0x10;
/// Most ranges.
pub const MAX_RANGES: u32 = 16;
/// Queues as the guest set them up. Read only; valid from DRIVER_OK on.
pub const QUEUE: u32 = 0x400;
/// Bytes of a queue.
pub const QUEUE_STRIDE: u32 = 0x20;
/// Offset in a queue: entries.
pub const QUEUE_ENTRIES: u32 = 0x00;
/// Offset in a queue: 1 if the guest uses it.
pub const QUEUE_ENABLED: u32 = 0x04;
/// Offset in a queue: I/O address of its descriptors, eight bytes.
pub const QUEUE_DESC: u32 = 0x08;
/// Offset in a queue: I/O address of the driver area (available ring), eight bytes.
pub const QUEUE_DRIVER: u32 = 0x10;
/// Offset in a queue: I/O address of the device area (used ring), eight bytes.
pub const QUEUE_DEVICE: u32 = 0x18;

const _: () = {
    assert!(NAME + NAME_SIZE <= SOURCE && SOURCE + SOURCE_SIZE <= CONFIG && CONFIG + CONFIG_SIZE <= RANGE);
    assert!(RANGE + MAX_RANGES * RANGE_STRIDE <= QUEUE);
    assert!(QUEUE + MAX_QUEUES * QUEUE_STRIDE <= MSIX_TABLE);
    assert!(MSIX_TABLE + VECTORS as u32 * 16 <= MSIX_PENDING);
};
