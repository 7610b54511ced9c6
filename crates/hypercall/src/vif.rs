//! The native face of a virtual interface: what the module `sluice-vif` drives.
//!
//! It is a PCI function with one memory BAR and one port. The BAR begins with memory: pages that the engine writes and the driver reads,
//! and pages of the driver's own. So the driver changes nothing of the structure but what is its own, and no address is in it: a buffer is the
//! number of a page in a *pool* of the guest's pages, which the driver hands over once, before it starts. Frames are in those pages, and an engine
//! reads and writes no others for the guest.
//!
//! Indices count descriptors that were handed over since the start, modulo 65,536; descriptor n is in entry n mod [`VIF_ENTRIES`]. Who writes an index has
//! written before it what it tells of. All is little-endian; indices, flags and page numbers are of two bytes.
//!
//! Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via Self-Virtualized Devices", 2.2 (a VIF's queues, and its
//! signals for each) and 3 (isolation of the queues).

/// PCI device identifier of a virtual interface.
pub const VIF_DEVICE: u16 = 0x0002;
/// PCI class code: Ethernet controller.
pub const VIF_CLASS: u32 = 0x02_0000;

/// BAR of the structure, the registers and the MSI-X table.
pub const VIF_BAR: u8 = 0;
/// Bytes of it.
pub const VIF_BAR_SIZE: u64 = 0x8000;
/// BAR of the port: whatever is written there, the engine looks.
pub const VIF_DOORBELL_BAR: u8 = 1;
/// Ports of it.
pub const VIF_DOORBELL_SIZE: u16 = 4;
/// Offset of the MSI-X table.
pub const VIF_MSIX_TABLE: u32 = 0x6000;
/// Offset of the MSI-X pending bits.
pub const VIF_MSIX_PENDING: u32 = 0x6800;
/// Message that tells of received frames.
pub const VIF_RECEIVED_VECTOR: u16 = 0;
/// Message that tells of descriptors that were sent.
pub const VIF_SENT_VECTOR: u16 = 1;
/// Messages.
pub const VIF_VECTORS: u16 = 2;

/// Entries of each ring.
pub const VIF_ENTRIES: u16 = 256;
/// Most pages of a pool.
pub const VIF_POOL: u32 = 1024;
/// Bytes of a descriptor: number of a page, bytes in it from its beginning on (1-4096), `VIF_DESCRIPTOR_` flags; then what is left to be
/// done to a frame, the first ten bytes of a `struct virtio_net_hdr` (Virtio 1.2, 5.1.6), in the first descriptor of it.
pub const VIF_DESCRIPTOR: u32 = 16;
/// Flag of a descriptor: the frame goes on in the next one.
pub const VIF_DESCRIPTOR_MORE: u16 = 1 << 0;
/// Most descriptors of a frame that is sent.
pub const VIF_MAX_DESCRIPTORS: u16 = 32;

/// The engine's page, which the driver can read: reads as [`VIF_MAGIC_VALUE`] (four bytes).
pub const VIF_MAGIC: u32 = 0x0000;
/// "SLVF".
pub const VIF_MAGIC_VALUE: u32 = 0x4656_4c53;
/// Reads as [`VIF_VERSION_VALUE`] (four bytes).
pub const VIF_VERSION: u32 = 0x0004;
/// Of this interface.
pub const VIF_VERSION_VALUE: u32 = 1;
/// Station address, six bytes.
pub const VIF_MAC: u32 = 0x0008;
/// Most bytes of a frame after its header.
pub const VIF_MTU: u32 = 0x000e;
/// Index: descriptors whose pages the engine has read, and needs no more.
pub const VIF_SENT: u32 = 0x0040;
/// Index: offered pages that the engine has filled. What is in them is in the ring at [`VIF_RECEIVED_RING`].
pub const VIF_RECEIVED: u32 = 0x0080;
/// Not zero: the engine does not look by itself. The driver rings the doorbell after it wrote [`VIF_TO_SEND`]; it looks here after that.
pub const VIF_DOORBELL_WANTED: u32 = 0x00c0;
/// Not zero: the driver broke the rules, and nothing more is done for it before it starts anew.
pub const VIF_BROKEN: u32 = 0x0100;

/// The driver's page: index, descriptors that are to be sent.
pub const VIF_TO_SEND: u32 = 0x1000;
/// Index: pages that are offered to be filled.
pub const VIF_OFFERED: u32 = 0x1040;
/// Not zero: the driver wants to hear of what was sent. It looks at [`VIF_SENT`] after it wrote this.
pub const VIF_WANTS_SENT: u32 = 0x1080;
/// Not zero: the driver wants to hear of what was received. It looks at [`VIF_RECEIVED`] after it wrote this.
pub const VIF_WANTS_RECEIVED: u32 = 0x10c0;
/// Descriptors to send, of the driver's.
pub const VIF_SEND_RING: u32 = 0x2000;
/// Numbers of offered pages, of the driver's: [`VIF_OFFERED_ENTRY`] bytes each.
pub const VIF_OFFERED_RING: u32 = 0x3000;
/// Bytes of an offered page's number.
pub const VIF_OFFERED_ENTRY: u32 = 2;
/// Descriptors of filled pages, of the engine's.
pub const VIF_RECEIVED_RING: u32 = 0x4000;
/// Bytes of the structure: what follows are registers, of four bytes.
pub const VIF_STRUCTURE: u32 = 0x5000;

/// A `VIF_COMMAND_`; reads as 0 if the last one was done, and as 1 if it was refused.
pub const VIF_COMMAND: u32 = 0x5000;
/// Begins, with all indices 0. The function must be allowed to master the bus; that this is taken away ends it.
pub const VIF_COMMAND_START: u32 = 1;
/// Ends: when the write is done, no page of the pool is read or written any more.
pub const VIF_COMMAND_STOP: u32 = 2;
/// Before a start: hands over as many pages as [`VIF_POOL_COUNT`] says, at most [`VIF_POOL`]. Page n of the pool is the one whose guest-physical address is
/// word n (of eight bytes) of the list at [`VIF_POOL_LIST`]. Those that were handed over before are the guest's alone again.
pub const VIF_COMMAND_POOL: u32 = 3;
/// Guest-physical address of a list of pages: the low half.
pub const VIF_POOL_LIST: u32 = 0x5008;
/// And the high half.
pub const VIF_POOL_LIST_HIGH: u32 = 0x500c;
/// Pages of that list.
pub const VIF_POOL_COUNT: u32 = 0x5010;
