//! The ACPI tables of a guest: RSDP, XSDT, FADT, MADT, MCFG and a DSDT, and a VIOT if it has an IOMMU.
//!
//! The platform is hardware-reduced: no PM timer, no SCI, no fixed events; sleep control and reset are two
//! ports ([`crate::power`]), and events are global interrupts that a generic event device turns into notifications: the press of the
//! power button ([`POWER_BUTTON_GSI`]), and devices that come or are to leave ([`crate::hotplug`]).
//!
//! [`build`] lays the tables out from an address on; the loader copies the blocks and hands the RSDP's address to
//! the kernel.
//!
//! Source: ACPI 6.4, chapters 5 (tables), 19 and 20 (AML); PCI Firmware 3.2, 4.1.2 (MCFG).

mod aml;
mod dsdt;

use crate::{ioapic, lapic};
use crate::{power, rtc};
use alloc::vec::Vec;
use core::ops::Range;
use sluice_memory::Gpa;

/// Global interrupt of the power button: pulse it to ask the guest to power off.
pub const POWER_BUTTON_GSI: u8 = 9;
/// The I/O APIC's id.
pub const IOAPIC_ID: u8 = 0;

/// Which global interrupt a slot's interrupt pin raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqRoute {
    /// Slot on bus 0, 0-31.
    pub slot: u8,
    /// Interrupt pin, one less than in configuration space: 0 for INTA to 3 for INTD.
    pub pin: u8,
    /// Global interrupt: the I/O APIC's pin.
    pub gsi: u8,
}

/// What the tables describe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description<'a> {
    /// Processors; their APIC ids are 0 to `vcpus - 1`.
    pub vcpus: u32,
    /// Interrupt routes of bus 0.
    pub routes: &'a [IrqRoute],
    /// Slots of bus 0 (1-31) that devices come to and leave while the guest runs ([`crate::hotplug`]).
    pub sockets: &'a [u8],
    /// Ports that BARs may have, below 64 Ki. May be empty.
    pub io_window: Range<u64>,
    /// Guest-physical memory that BARs may have, below 4 GiB. May be empty.
    pub mmio_window: Range<u64>,
    /// The same above 4 GiB. May be empty.
    pub high_window: Range<u64>,
    /// Guest-physical address of ECAM ([`crate::pci::ECAM_SIZE`] bytes), below 4 GiB.
    pub ecam: u64,
    /// An IOMMU that the guest drives.
    pub iommu: Option<Iommu<'a>>,
}

/// A virtio-iommu function of bus 0, and what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iommu<'a> {
    /// Its slot.
    pub slot: u8,
    /// Slots of functions whose memory accesses it translates. Their numbers for it are their bus numbers, devices and functions.
    pub endpoints: &'a [u8],
}

/// The tables, ready to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Guest-physical address of the RSDP.
    pub rsdp: Gpa,
    /// Guest-physical addresses and contents, in ascending order.
    pub blocks: Vec<(Gpa, Vec<u8>)>,
}

impl Tables {
    /// The first address after the tables.
    pub fn end(&self) -> Gpa {
        let last = self.blocks.last();
        last.and_then(|(address, bytes)| address.checked_add(bytes.len() as u64)).unwrap_or(self.rsdp)
    }
}

/// Builds the tables from the guest-physical address `base` on, which is rounded up to 64.
pub fn build(description: &Description<'_>, base: Gpa) -> Tables {
    let mut layout = Layout { next: base.as_u64().next_multiple_of(64), blocks: Vec::new() };
    let rsdp = layout.next;
    layout.next += 64;
    let dsdt = layout.place(table(b"DSDT", 2, &dsdt::body(description)));
    let mut roots = alloc::vec![
        layout.place(table(b"FACP", 6, &fadt(dsdt))),
        layout.place(table(b"APIC", 5, &madt(description.vcpus))),
        layout.place(table(b"MCFG", 1, &mcfg(description.ecam))),
    ];
    if let Some(iommu) = &description.iommu {
        roots.push(layout.place(table(b"VIOT", 0, &viot(iommu))));
    }
    let entries: Vec<u8> = roots.into_iter().flat_map(u64::to_le_bytes).collect();
    let xsdt = layout.place(table(b"XSDT", 1, &entries));
    layout.blocks.insert(0, (Gpa::new(rsdp), self::rsdp(xsdt)));
    Tables { rsdp: Gpa::new(rsdp), blocks: layout.blocks }
}

const OEM: &[u8; 6] = b"SLUICE";
const OEM_TABLE: &[u8; 8] = b"PLATFORM";

struct Layout {
    next: u64,
    blocks: Vec<(Gpa, Vec<u8>)>,
}

impl Layout {
    fn place(&mut self, bytes: Vec<u8>) -> u64 {
        let address = self.next;
        self.next = (address + bytes.len() as u64).next_multiple_of(64);
        self.blocks.push((Gpa::new(address), bytes));
        address
    }
}

/// A table: the common header (5.2.6), its checksum, and the body.
fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    const HEADER: usize = 36;
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(signature);
    bytes.extend(((HEADER + body.len()) as u32).to_le_bytes());
    bytes.extend([revision, 0]);
    bytes.extend(OEM);
    bytes.extend(OEM_TABLE);
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(b"SLUC");
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(body);
    seal(&mut bytes, 9, HEADER + body.len());
    bytes
}

/// Sets the byte at `place` so that the first `length` sum to zero.
fn seal(bytes: &mut [u8], place: usize, length: usize) {
    let sum = bytes.iter().take(length).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(checksum) = bytes.get_mut(place) {
        *checksum = checksum.wrapping_sub(sum);
    }
}

/// Root pointer (5.2.5.3), without an RSDT.
fn rsdp(xsdt: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(36);
    bytes.extend(b"RSD PTR \0");
    bytes.extend(OEM);
    bytes.push(2);
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(36u32.to_le_bytes());
    bytes.extend(xsdt.to_le_bytes());
    bytes.extend([0; 4]);
    seal(&mut bytes, 8, 20);
    seal(&mut bytes, 32, 36);
    bytes
}

/// Fixed description table (5.2.9), less its header.
fn fadt(dsdt: u64) -> Vec<u8> {
    // No VGA; the bits for legacy devices and the 8042 stay off, those against the real-time clock, MSI and ASPM too.
    const BOOT_ARCHITECTURE: u16 = 1 << 2;
    // WBINVD works; no fixed power or sleep button; reset register; headless; hardware-reduced.
    const FLAGS: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 10 | 1 << 12 | 1 << 20;
    const SERVER: u8 = 4;

    let mut body = alloc::vec![0; 276 - 36];
    // Offsets are those of the specification, from the start of the table.
    let mut put = |offset: usize, bytes: &[u8]| {
        body.iter_mut().skip(offset - 36).zip(bytes).for_each(|(cell, byte)| *cell = *byte);
    };
    put(45, &[SERVER]);
    put(108, &[rtc::CENTURY]);
    put(109, &BOOT_ARCHITECTURE.to_le_bytes());
    put(112, &FLAGS.to_le_bytes());
    put(116, &port_register(power::RESET_PORT));
    put(128, &[power::RESET_VALUE]);
    // Minor version.
    put(131, &[4]);
    put(140, &dsdt.to_le_bytes());
    put(244, &port_register(power::SLEEP_CONTROL_PORT));
    put(256, &port_register(power::SLEEP_STATUS_PORT));
    put(268, b"SLUICE\0\0");
    body
}

/// A generic address (5.2.3.2): an 8-bit port.
fn port_register(port: u16) -> [u8; 12] {
    const SYSTEM_IO: u8 = 1;
    const BYTE: u8 = 1;
    let [low, high] = port.to_le_bytes();
    [SYSTEM_IO, 8, 0, BYTE, low, high, 0, 0, 0, 0, 0, 0]
}

/// Interrupt controllers (5.2.12), less the header. The flags stay zero: there is no PIC.
fn madt(vcpus: u32) -> Vec<u8> {
    const ENABLED: u32 = 1;
    let mut body = Vec::new();
    body.extend((lapic::BASE as u32).to_le_bytes());
    body.extend(0u32.to_le_bytes());
    for id in 0..vcpus {
        match u8::try_from(id) {
            // 5.2.12.2: local APIC. Id 255 is the broadcast.
            Ok(id) if id != 0xFF => {
                body.extend([0, 8, id, id]);
                body.extend(ENABLED.to_le_bytes());
            }
            // 5.2.12.12: local x2APIC.
            _ => {
                body.extend([9, 16, 0, 0]);
                body.extend(id.to_le_bytes());
                body.extend(ENABLED.to_le_bytes());
                body.extend(id.to_le_bytes());
            }
        }
    }
    // 5.2.12.3: I/O APIC, its interrupts numbered from 0.
    body.extend([1, 12, IOAPIC_ID, 0]);
    body.extend((ioapic::BASE as u32).to_le_bytes());
    body.extend(0u32.to_le_bytes());
    body
}

/// ECAM of segment 0, bus 0, less the header.
fn mcfg(ecam: u64) -> Vec<u8> {
    let mut body = alloc::vec![0; 8];
    body.extend(ecam.to_le_bytes());
    body.extend([0; 8]);
    body
}

/// Virtual I/O translation (Virtual I/O Translation Table, version 0 of 2021), less the header: the IOMMU, and a range for each
/// function behind it.
fn viot(iommu: &Iommu<'_>) -> Vec<u8> {
    const NODES: u16 = 48;
    const RANGE: u8 = 1;
    const VIRTIO_IOMMU: u8 = 3;
    let function = |slot: u8| u16::from(slot) << 3;
    let mut body = Vec::new();
    body.extend((1 + iommu.endpoints.len() as u16).to_le_bytes());
    body.extend(NODES.to_le_bytes());
    body.extend([0; 8]);
    body.extend([VIRTIO_IOMMU, 0, 16, 0]);
    // Segment 0.
    body.extend([0; 2]);
    body.extend(function(iommu.slot).to_le_bytes());
    body.extend([0; 8]);
    for slot in iommu.endpoints {
        body.extend([RANGE, 0, 24, 0]);
        body.extend(u32::from(function(*slot)).to_le_bytes());
        body.extend([0; 4]);
        body.extend(function(*slot).to_le_bytes());
        body.extend(function(*slot).to_le_bytes());
        body.extend(NODES.to_le_bytes());
        body.extend([0; 6]);
    }
    body
}

#[cfg(test)]
mod tests;
