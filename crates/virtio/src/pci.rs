//! How a virtio device looks on a PCI bus (Virtio 1.2, 4.1.2, 4.1.4).
//!
//! BAR 0 is memory with the registers, BAR 1 memory with the MSI-X table, BAR 2 one port by which the driver tells of available buffers: a
//! port costs a tenth of what memory costs to intercept. A device file has memory that its server shows in BAR 4.

use crate::Kind;
use sluice_hypercall::backend::MAX_QUEUES;
use sluice_hypercall::devfile::{DEVFILE_MAPS_REGION, DEVFILE_MAPS_SIZE};
use sluice_platform::pci::{BarKind, BuildError, Builder, Function, Identity};

/// BAR of the registers.
pub const REGISTERS_BAR: u8 = 0;
/// BAR of the MSI-X table.
pub const MSIX_BAR: u8 = 1;
/// BAR of the port that is written to notify the device.
pub const NOTIFY_BAR: u8 = 2;
/// BAR of the memory in which whoever serves a device file shows what is mapped of it.
pub const MAPS_BAR: u8 = 4;
/// Offset of the common configuration in the registers.
pub const COMMON: u32 = 0x0000;
/// Offset of the ISR status.
pub const ISR: u32 = 0x1000;
/// Offset of the device's configuration.
pub const CONFIG: u32 = 0x2000;
/// End of the registers.
pub const END: u32 = 0x3000;
/// Bytes of the registers' BAR.
pub const REGISTERS_SIZE: u64 = 0x4000;
/// Offset of the MSI-X table in its BAR.
pub const MSIX_TABLE: u32 = 0;
/// Offset of the pending bits in the same.
pub const MSIX_PENDING: u32 = 0x800;
/// Bytes of the MSI-X table's BAR.
pub const MSIX_SIZE: u64 = 0x1000;
/// Ports of the BAR by which the device is notified.
pub const NOTIFY_SIZE: u64 = 4;
/// Messages: of the configuration, and of each queue.
pub const VECTORS: u16 = MAX_QUEUES as u16 + 1;

/// A vendor-specific capability (PCI Local Bus 3.0, 6.7, appendix H).
const VENDOR_SPECIFIC: u8 = 0x09;
/// Bytes of the common configuration.
const COMMON_SIZE: u32 = 0x38;

/// What a capability tells of (4.1.4).
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;
const CFG_ISR: u8 = 3;
const CFG_DEVICE: u8 = 4;
const CFG_SHARED_MEMORY: u8 = 8;

/// Where BARs are to begin with.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Of the registers.
    pub registers: u64,
    /// Of the MSI-X table.
    pub msix: u64,
    /// Of the port.
    pub notify: u64,
    /// Of what is mapped of a device file; others have none.
    pub maps: u64,
}

/// The function as a guest sees it, with an interrupt line for drivers that use no messages. `behind` is who the device says it is whose
/// file the function mirrors: a function before it shows that (Amiri Sani et al., "I/O Paravirtualization at the Device File Boundary", 5.1).
///
/// # Errors
/// An address is not one that a BAR can have.
pub fn function(
    kind: Kind,
    line: u8,
    at: &Addresses,
    behind: Option<Identity>,
) -> Result<Function, BuildError> {
    let class = match kind {
        Kind::Net => 0x02_0000,
        Kind::Block => 0x01_0000,
        Kind::Files => 0x01_8000,
        Kind::Entropy => 0x00_ff00,
        Kind::Port => 0x07_8000,
        Kind::DeviceFile => 0x08_8000,
        Kind::Iommu => 0x08_0600,
    };
    let identity = Identity {
        vendor: 0x1af4,
        device: 0x1040 + kind.id(),
        class,
        revision: 1,
        subsystem_vendor: 0x1af4,
        subsystem: 0x1100,
    };
    let mut builder = Builder::new(identity)
        .interrupt(1, line)
        .bar(REGISTERS_BAR, BarKind::Mem32 { prefetchable: false }, REGISTERS_SIZE, at.registers)
        .bar(MSIX_BAR, BarKind::Mem32 { prefetchable: false }, MSIX_SIZE, at.msix)
        .bar(NOTIFY_BAR, BarKind::Io, NOTIFY_SIZE, at.notify)
        .msix(VECTORS, (MSIX_BAR, MSIX_TABLE), (MSIX_BAR, MSIX_PENDING))
        .capability(VENDOR_SPECIFIC, &structure(CFG_COMMON, REGISTERS_BAR, COMMON, COMMON_SIZE))
        .capability(VENDOR_SPECIFIC, &structure(CFG_ISR, REGISTERS_BAR, ISR, 1))
        .capability(VENDOR_SPECIFIC, &structure(CFG_DEVICE, REGISTERS_BAR, CONFIG, END - CONFIG))
        .capability(VENDOR_SPECIFIC, &notify());
    if let Some(behind) = behind {
        builder = builder.behind(behind);
    }
    if kind != Kind::DeviceFile {
        return builder.build();
    }
    builder
        .bar(MAPS_BAR, BarKind::Mem64 { prefetchable: true }, DEVFILE_MAPS_SIZE, at.maps)
        .capability(VENDOR_SPECIFIC, &shared_memory())
        .build()
}

/// The body of a capability (4.1.4): its length, what it tells of, and where that is.
fn structure(tells_of: u8, bar: u8, offset: u32, length: u32) -> [u8; 14] {
    let mut body = [0; 14];
    body[0] = 16;
    body[1] = tells_of;
    body[2] = bar;
    body[6..10].copy_from_slice(&offset.to_le_bytes());
    body[10..14].copy_from_slice(&length.to_le_bytes());
    body
}

/// The same of the port, with the multiplier 0: all queues have one address (4.1.4.4).
fn notify() -> [u8; 18] {
    let mut body = [0; 18];
    body[..14].copy_from_slice(&structure(CFG_NOTIFY, NOTIFY_BAR, 0, NOTIFY_SIZE as u32));
    body[0] = 20;
    body
}

/// That of shared memory, with the upper halves of offset and length (4.1.4.7).
fn shared_memory() -> [u8; 22] {
    let mut body = [0; 22];
    body[..14].copy_from_slice(&structure(CFG_SHARED_MEMORY, MAPS_BAR, 0, DEVFILE_MAPS_SIZE as u32));
    body[0] = 24;
    body[3] = DEVFILE_MAPS_REGION as u8;
    body[18..].copy_from_slice(&((DEVFILE_MAPS_SIZE >> 32) as u32).to_le_bytes());
    body
}
