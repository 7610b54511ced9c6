//! The function of a controller domain: by it go the signals of a network of virtual interfaces, in place of straight to the guests.
//!
//! It is a PCI function with one memory BAR and one port. The BAR begins with a page of memory in which the engine sets a bit for each VIF that is to be
//! signalled, a word of eight bytes for each direction; a message follows. The controller takes the words, by an exchange with 0, and has the signals
//! passed on: by writing to the port for whom. A signal that nobody waits for is not passed on, whatever is written.
//!
//! The function is at work while it may master the bus and its messages are enabled. Before and after that the hypervisor passes signals on itself,
//! those too that were not passed on yet. So there is nothing to start or to stop.
//!
//! Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via Self-Virtualized Devices", 2.2 and 4.1 (the hypervisor has the place of
//! the controller domain there; this is the alternative that is left open).

/// PCI device identifier of the function.
pub const SIGNALS_DEVICE: u16 = 0x0003;
/// PCI class code: system peripheral, other.
pub const SIGNALS_CLASS: u32 = 0x08_8000;
/// Of this interface: the PCI revision.
pub const SIGNALS_VERSION_VALUE: u32 = 1;

/// BAR of the words and the MSI-X table.
pub const SIGNALS_BAR: u8 = 0;
/// Bytes of it.
pub const SIGNALS_BAR_SIZE: u64 = 0x2000;
/// Bytes of it that are memory.
pub const SIGNALS_MEMORY: u32 = 0x1000;
/// Word of VIFs that received something: bit n is for VIF n.
pub const SIGNALS_RECEIVED: u32 = 0x0000;
/// Word of VIFs of which something was sent, likewise.
pub const SIGNALS_SENT: u32 = 0x0040;
/// Offset of the MSI-X table.
pub const SIGNALS_MSIX_TABLE: u32 = 0x1000;
/// Offset of the MSI-X pending bits.
pub const SIGNALS_MSIX_PENDING: u32 = 0x1800;
/// Messages: the one says that bits were set.
pub const SIGNALS_VECTORS: u16 = 1;

/// BAR of the port. Four bytes that are written there say whose signals are passed on.
pub const SIGNALS_DOORBELL_BAR: u8 = 1;
/// Ports of it.
pub const SIGNALS_DOORBELL_SIZE: u16 = 4;
/// VIFs that one write is for: bits 0-15, from the first of a group on.
pub const SIGNALS_GROUP: u32 = 16;
/// Where the number of the group begins: group n is of the VIFs from n times [`SIGNALS_GROUP`] on.
pub const SIGNALS_GROUP_SHIFT: u32 = 16;
/// Groups.
pub const SIGNALS_GROUPS: u32 = 4;
/// Bit of the doorbell: something was sent. Without it something was received.
pub const SIGNALS_DOORBELL_SENT: u32 = 1 << 31;
