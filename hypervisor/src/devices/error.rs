//! Why a device cannot be given to a domain.

use core::fmt;
use sluice_iommu::Uncontained;

/// Why a device cannot be given to a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The machine has none like it.
    NoSuchDevice,
    /// Another domain owns it, or uses it in another mode.
    Busy,
    /// No device state model knows it; virtual passthrough needs one.
    NoModel,
    /// It can master the bus and no IOMMU stands before it.
    UnprotectedDma,
    /// It can master the bus, and the IOMMU before it does not remap interrupts.
    UnprotectedInterrupts,
    /// The IOMMU cannot tell it from a device that another domain owns.
    GroupBusy,
    /// Firmware wants it to reach memory of its own.
    FirmwareMemory,
    /// It has no port range, which is all that can be shared.
    NoPorts,
    /// The model takes no more clients.
    TooMany,
    /// A memory BAR shares a page with something else, and no free page was found for it.
    SharedPage,
    /// The disk does not have these sectors.
    NoSectors,
    /// Its first namespace is of no kind that can be shared.
    NoNamespace,
    /// Another domain has some of these sectors.
    Overlap,
    /// Firmware gave one of its BARs no address.
    NoAddress,
    /// Its memory does not fit the guest's PCI window.
    NoRoom,
    /// It had an owner before, and there is no way to reset it.
    NoReset,
    /// The hypervisor has no driver for it; emulated mode needs one.
    NoDriver,
    /// It does not do what its driver says.
    NoAnswer,
    /// It carries no frames as long as its network's.
    ShortFrames,
    /// Not enough memory for its driver.
    OutOfMemory,
}

impl From<Uncontained> for AttachError {
    fn from(error: Uncontained) -> Self {
        match error {
            Uncontained::Dma => Self::UnprotectedDma,
            Uncontained::Interrupts => Self::UnprotectedInterrupts,
            Uncontained::FirmwareMemory => Self::FirmwareMemory,
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoSuchDevice => "this machine has no such PCI function; the log lists what there is",
            Self::Busy => "another domain owns it, or uses it in another mode",
            Self::NoModel => "no device state model knows it; share it with mode = \"passthrough\"",
            Self::UnprotectedDma => {
                "it can master the bus and no IOMMU contains it: its owner could reach all memory. To accept that, \
                 add dma = \"unprotected\" to its entry in the domain's devices"
            }
            Self::UnprotectedInterrupts => {
                "it can master the bus and the IOMMU does not remap interrupts: its owner could forge any interrupt. To \
                 accept that, add interrupts = \"unprotected\" to its entry in the domain's devices"
            }
            Self::GroupBusy => {
                "the IOMMU cannot tell it from a device that another domain owns (their group is in the report): \
                 give both to one domain"
            }
            Self::FirmwareMemory => "firmware wants it to reach memory of the firmware's, which no guest may",
            Self::NoPorts => "it has no port range, which mode = \"vpio\" needs",
            Self::TooMany => "its model takes no more guests",
            Self::SharedPage => "its registers share a page with another device's and cannot be moved",
            Self::NoSectors => "the disk ends before these sectors do; the log says how many it has",
            Self::NoNamespace => {
                "its first namespace has metadata, or blocks that are no power of two from 512 to 4096 bytes: format it anew, or use mode = \"passthrough\""
            }
            Self::Overlap => "another domain has some of these sectors; give each its own",
            Self::NoAddress => "firmware gave one of its BARs no address",
            Self::NoRoom => "its memory does not fit the guest's PCI window",
            Self::NoReset => "it had an owner before and there is no way to reset it",
            Self::NoDriver => {
                "the hypervisor has no driver for it, which mode = \"emulated\" and a network need; share it with mode = \"passthrough\""
            }
            Self::ShortFrames => {
                "it carries no frames that long: give the network mtu = 1500, or a card that does (an 82540EM or 82574L)"
            }
            Self::NoAnswer => "it does not do what its driver tells it",
            Self::OutOfMemory => "there is not enough memory for its driver",
        })
    }
}
