//! Where things are in a guest's physical address space.

use sluice_memory::Gpa;

/// End of conventional memory; from here to 1 MiB is not RAM.
pub const LOW_RAM_END: u64 = 0xa_0000;
/// The ACPI tables.
pub const ACPI: Gpa = Gpa::new(0xe_0000);
/// Where a processor starts that leaves protected mode for the firmware, as a kernel does that
/// reboots by the BIOS (F000:FFF0).
pub const RESET_VECTOR: Gpa = Gpa::new(0xf_fff0);
/// All the firmware there is: a reset. `mov dx, 0x602; mov al, 1; out dx, al; hlt; jmp -3`
pub const FIRMWARE: [u8; 9] = [0xba, 0x02, 0x06, 0xb0, 0x01, 0xee, 0xf4, 0xeb, 0xfd];
/// Start of the RAM above the hole.
pub const HIGH_RAM: u64 = 0x10_0000;
/// RAM below 4 GiB ends here at the latest; PCI memory follows.
pub const PCI_MEMORY: u64 = 0xc000_0000;
/// Bytes of PCI memory below 4 GiB.
pub const PCI_MEMORY_SIZE: u64 = 0x2000_0000;
/// PCI configuration of bus 0 (ECAM), 1 MiB.
pub const ECAM: u64 = 0xe000_0000;
/// Bytes of [`ECAM`].
pub const ECAM_SIZE: u64 = 0x10_0000;
/// I/O APIC registers.
pub const IO_APIC: u64 = 0xfec0_0000;
/// Local APIC registers, at their power-on address.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
/// RAM that does not fit below [`PCI_MEMORY`] goes on here.
pub const ABOVE_4G: u64 = 0x1_0000_0000;
/// PCI memory above 4 GiB, of a domain that serves others: their windows. With what follows it ends where an IOMMU of 39 bits does.
pub const WINDOWS: u64 = 1 << 38;
/// Bytes of [`WINDOWS`].
pub const WINDOWS_SIZE: u64 = 3 << 36;
/// Where a domain has the windows of grant spaces that it accepts: after [`WINDOWS`], where no BAR can be.
pub const GRANTS: u64 = WINDOWS + WINDOWS_SIZE;
/// Bytes of [`GRANTS`].
pub const GRANTS_SIZE: u64 = 1 << 36;
/// First port of the serial console.
pub const UART_PORT: u16 = 0x3f8;
/// I/O APIC pin of the serial console.
pub const UART_GSI: u8 = 4;

/// Interrupt line of the device in a slot of bus 0, where the guest has no I/O APIC: those that a PC has for PCI.
pub const fn slot_line(slot: u8) -> u8 {
    [5, 9, 10, 11][slot as usize % 4]
}

/// I/O APIC pin of INTA of the device in a slot of bus 0.
pub const fn slot_gsi(slot: u8) -> u8 {
    16 + slot % 8
}
