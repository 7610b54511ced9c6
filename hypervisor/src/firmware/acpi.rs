//! ACPI tables (ACPI specification 6.5, chapter 5): found, checked, and the few facts the hypervisor needs taken out.
//!
//! Only bytes within a table's checked length are read. There is no AML interpreter: the sleep type of S5 is found by
//! its byte pattern, and the routing of PCI interrupt pins comes from a table per chipset ([`pci_gsi`]).

use crate::mm::{self, Hpa};
use crate::sync::Once;
use crate::x86::port::{inl, inw, outl, outw};
use arrayvec::ArrayVec;

const HEADER: usize = 36;
const MAX_TABLES: usize = 64;
/// Largest table that is believed.
const MAX_BYTES: u32 = 16 << 20;

/// When an input raises its interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// On the rising edge (ISA).
    EdgeHigh,
    /// On the falling edge.
    EdgeLow,
    /// While high (PCI interrupts in QEMU).
    LevelHigh,
    /// While low (PCI interrupts on most real boards).
    LevelLow,
}

/// An I/O APIC of the MADT.
#[derive(Clone, Copy, Debug)]
pub struct IoApicEntry {
    /// Its identifier, by which IVRS and DMAR name it.
    pub id: u8,
    /// Physical address of its registers.
    pub address: u32,
    /// GSI of its first input.
    pub first_gsi: u32,
}

/// PCI configuration space as memory, from the MCFG.
#[derive(Clone, Copy, Debug)]
pub struct Ecam {
    /// Physical address of bus 0's configuration space (whatever the first bus is).
    pub base: u64,
    /// Segment group.
    pub segment: u16,
    /// First bus covered.
    pub first_bus: u8,
    /// Last bus covered.
    pub last_bus: u8,
}

#[derive(Default)]
struct Facts {
    rsdp: Option<u64>,
    tables: ArrayVec<&'static [u8], MAX_TABLES>,
    apic_ids: ArrayVec<u32, { crate::x86::MAX_CPUS }>,
    io_apics: ArrayVec<IoApicEntry, 8>,
    overrides: ArrayVec<(u8, u32, Trigger), 24>,
    ecams: ArrayVec<Ecam, 4>,
    pm_timer: Option<u16>,
    pm1_control: [Option<u16>; 2],
    sleep_types: [u16; 2],
}

static FACTS: Once<Facts> = Once::new();

fn facts() -> Option<&'static Facts> {
    FACTS.get()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// Physical memory as bytes, if all of it is mapped.
fn bytes_at(address: u64, length: usize) -> Option<&'static [u8]> {
    let last = address.checked_add(length as u64)?.checked_sub(1)?;
    let mut page = address & !(mm::PAGE - 1);
    while page <= last {
        if !mm::is_mapped(mm::virt(Hpa::new(page)) as u64) {
            return None;
        }
        page += mm::PAGE;
    }
    // SAFETY: every page is mapped, and firmware tables lie in memory that the firmware reported as not usable, which
    // nobody writes. Any byte is a valid u8.
    Some(unsafe { core::slice::from_raw_parts(mm::virt(Hpa::new(address)), length) })
}

/// A table at `address`, if its length and checksum hold.
fn table_at(address: u64) -> Option<&'static [u8]> {
    let length = u32_at(bytes_at(address, HEADER)?, 4)?;
    if length < HEADER as u32 || length > MAX_BYTES {
        return None;
    }
    let table = bytes_at(address, length as usize)?;
    sums_to_zero(table).then_some(table)
}

/// Reads the tables, from the root pointer if the boot loader told it. Once, on the boot processor; needs the final page tables.
pub fn init(rsdp: Option<Hpa>) {
    let mut facts = Facts { rsdp: rsdp.map(Hpa::as_u64).or_else(scan_for_rsdp), ..Facts::default() };
    if let Some(rsdp) = facts.rsdp {
        collect(rsdp, &mut facts);
    }
    if facts.tables.is_empty() {
        log::warn!("no ACPI tables found");
    }
    if let Some(madt) = lookup(&facts, b"APIC") {
        read_madt(madt, &mut facts);
    }
    if let Some(mcfg) = lookup(&facts, b"MCFG") {
        read_mcfg(mcfg, &mut facts);
    }
    if let Some(fadt) = lookup(&facts, b"FACP") {
        read_fadt(fadt, &mut facts);
    }
    FACTS.call_once(|| facts);
}

/// The BIOS keeps the RSDP on a 16-byte boundary of its area, or of the first KiB of the extended BIOS data area.
fn scan_for_rsdp() -> Option<u64> {
    let ebda = u64::from(u16_at(bytes_at(0x40e, 2)?, 0)?) << 4;
    [(ebda, 1024), (0xe_0000, 0x2_0000)].into_iter().filter(|(start, _)| *start != 0).find_map(
        |(start, bytes)| {
            (start..start + bytes).step_by(16).find(|at| {
                bytes_at(*at, 20).is_some_and(|rsdp| rsdp.starts_with(b"RSD PTR ") && sums_to_zero(rsdp))
            })
        },
    )
}

/// Follows the XSDT, or the RSDT where there is none, to all tables and, through the FADT, to the DSDT.
fn collect(rsdp: u64, facts: &mut Facts) -> Option<()> {
    let pointer = bytes_at(rsdp, 20)?;
    if !pointer.starts_with(b"RSD PTR ") || !sums_to_zero(pointer) {
        log::warn!("ACPI root pointer at {rsdp:#x} is damaged");
        return None;
    }
    let xsdt = (pointer[15] >= 2)
        .then(|| bytes_at(rsdp, 36).filter(|p| sums_to_zero(p)).and_then(|p| u64_at(p, 24)))
        .flatten()
        .filter(|address| *address != 0)
        .and_then(table_at);
    let (root, width) = match xsdt {
        Some(table) => (table, 8),
        None => (table_at(u32_at(pointer, 16)?.into())?, 4),
    };
    for entry in root[HEADER..].chunks_exact(width) {
        let address = if width == 8 { u64_at(entry, 0)? } else { u32_at(entry, 0)?.into() };
        match table_at(address) {
            Some(table) => {
                let _ = facts.tables.try_push(table);
            }
            None => log::warn!("ACPI table at {address:#x} is damaged: ignored"),
        }
    }
    let fadt = lookup(facts, b"FACP")?;
    let dsdt = u64_at(fadt, 140).filter(|a| *a != 0).or(u32_at(fadt, 40).map(u64::from))?;
    facts.tables.try_push(table_at(dsdt)?).ok()
}

fn lookup(facts: &Facts, signature: &[u8; 4]) -> Option<&'static [u8]> {
    facts.tables.iter().copied().find(|table| table.starts_with(signature))
}

/// Walks the entries of the MADT (ACPI 5.2.12).
fn read_madt(madt: &[u8], facts: &mut Facts) {
    let mut rest = madt.get(44..).unwrap_or_default();
    while let [kind, length, ..] = *rest {
        let Some(entry) = (length >= 2).then(|| rest.get(..usize::from(length))).flatten() else { break };
        rest = &rest[entry.len()..];
        let _ = read_madt_entry(kind, entry, facts);
    }
}

fn read_madt_entry(kind: u8, entry: &[u8], facts: &mut Facts) -> Option<()> {
    // Enabled; "online capable" processors are not there yet.
    const ENABLED: u32 = 1;
    match kind {
        0 if u32_at(entry, 4)? & ENABLED != 0 => facts.apic_ids.try_push((*entry.get(3)?).into()).ok(),
        9 if u32_at(entry, 8)? & ENABLED != 0 => {
            let id = u32_at(entry, 4)?;
            if facts.apic_ids.contains(&id) { None } else { facts.apic_ids.try_push(id).ok() }
        }
        1 => {
            let entry =
                IoApicEntry { id: *entry.get(2)?, address: u32_at(entry, 4)?, first_gsi: u32_at(entry, 8)? };
            facts.io_apics.try_push(entry).ok()
        }
        2 => {
            let flags = u16_at(entry, 8)?;
            // 0 conforms to the bus: ISA is edge, high.
            let trigger = match (flags & 3 == 3, flags >> 2 & 3 == 3) {
                (false, false) => Trigger::EdgeHigh,
                (true, false) => Trigger::EdgeLow,
                (false, true) => Trigger::LevelHigh,
                (true, true) => Trigger::LevelLow,
            };
            facts.overrides.try_push((*entry.get(3)?, u32_at(entry, 4)?, trigger)).ok()
        }
        _ => Some(()),
    }
}

fn read_mcfg(mcfg: &[u8], facts: &mut Facts) {
    for entry in mcfg.get(44..).unwrap_or_default().chunks_exact(16) {
        if let (Some(base), Some(segment)) = (u64_at(entry, 0), u16_at(entry, 8)) {
            let ecam = Ecam { base, segment, first_bus: entry[10], last_bus: entry[11] };
            let _ = facts.ecams.try_push(ecam);
        }
    }
}

/// Register blocks of the FADT (ACPI 5.2.9): the extended address where it is a port, else the legacy one.
fn read_fadt(fadt: &[u8], facts: &mut Facts) {
    let block = |legacy: usize, extended: usize| -> Option<u16> {
        const SYSTEM_IO: u8 = 1;
        let extended = (fadt.get(extended) == Some(&SYSTEM_IO)).then(|| u64_at(fadt, extended + 4)).flatten();
        let port = extended.filter(|port| *port != 0).or(u32_at(fadt, legacy).map(u64::from))?;
        u16::try_from(port).ok().filter(|port| *port != 0)
    };
    facts.pm1_control = [block(64, 172), block(68, 184)];
    facts.pm_timer = block(76, 208);
    if let Some(types) = lookup(facts, b"DSDT").and_then(find_s5) {
        facts.sleep_types = types;
    }
}

/// Finds `Name (\_S5, Package () { a, b, ... })` by its encoding (ACPI 20.2): NameOp, name, PackageOp, package length,
/// element count, then two small integers.
fn find_s5(dsdt: &[u8]) -> Option<[u16; 2]> {
    let at = dsdt.windows(5).position(|w| w == b"_S5_\x12")? + 5;
    // The package length takes one to four bytes, by its top two bits; the count follows.
    let mut at = at + 1 + usize::from(dsdt.get(at)? >> 6) + 1;
    let mut types = [0; 2];
    for value in &mut types {
        *value = match *dsdt.get(at)? {
            0x00 => 0,
            0x01 => 1,
            0x0a => {
                at += 1;
                (*dsdt.get(at)?).into()
            }
            _ => return None,
        };
        at += 1;
    }
    Some(types)
}

/// The first table with that signature; whole, header included, checksum verified.
pub fn find(signature: &[u8; 4]) -> Option<&'static [u8]> {
    lookup(facts()?, signature)
}

/// Local APIC identifiers of the processors that can be started, the boot processor's included.
pub fn apic_ids() -> &'static [u32] {
    facts().map_or(&[], |f| &f.apic_ids)
}

/// I/O APICs.
pub fn io_apics() -> &'static [IoApicEntry] {
    facts().map_or(&[], |f| &f.io_apics)
}

/// PCI configuration windows.
pub fn ecams() -> &'static [Ecam] {
    facts().map_or(&[], |f| &f.ecams)
}

/// GSI and trigger of an ISA interrupt, where they are not the usual ones.
pub fn isa_override(irq: u8) -> Option<(u32, Trigger)> {
    facts()?.overrides.iter().find(|(source, ..)| *source == irq).map(|(_, gsi, trigger)| (*gsi, *trigger))
}

/// Port of the power-management timer.
pub fn pm_timer_port() -> Option<u16> {
    facts()?.pm_timer
}

/// Asks for sleep state S5 (ACPI 4.8.3.2); returns if the machine does not obey.
pub fn enter_s5() {
    const SLEEP_ENABLE: u16 = 1 << 13;
    let Some(facts) = facts() else { return };
    for (port, kind) in facts.pm1_control.into_iter().zip(facts.sleep_types) {
        if let Some(port) = port {
            let keep = inw(port) & !(7 << 10 | SLEEP_ENABLE);
            outw(port, keep | (kind & 7) << 10 | SLEEP_ENABLE);
        }
    }
    crate::x86::tsc::delay_us(100_000);
}

/// Reads PCI configuration space by mechanism 1. Not while another processor does.
pub(crate) fn config_read(bus: u8, device: u8, function: u8, offset: u8) -> u32 {
    let address =
        u32::from(bus) << 16 | u32::from(device) << 11 | u32::from(function) << 8 | u32::from(offset & 0xfc);
    outl(0xcf8, 1 << 31 | address);
    inl(0xcfc)
}

const HOST_Q35: u32 = 0x29c0_8086;
const HOST_I440FX: u32 = 0x1237_8086;

/// GSI of interrupt pin `pin` (0 = INTA) of a device on the root bus, for the chipsets of QEMU:
///
/// - q35 (ICH9; host bridge 8086:29c0), with I/O APIC routing: devices 0-24 rotate over PIRQ E-H, GSI 20-23; devices
///   25-29 and 31 use PIRQ A-D, GSI 16-19, unrotated; device 30 uses E-H unrotated.
/// - i440fx (PIIX3; 8086:1237): PIRQ A-D rotate by device and are ISA interrupts, set by firmware in the PIIX's
///   registers 0x60-0x63.
///
/// `None` on other machines, behind bridges, and where the PIIX disables the pin. It uses ports 0xcf8 and 0xcfc
/// and must not run while another processor does.
pub fn pci_gsi(bus: u8, device: u8, pin: u8) -> Option<u32> {
    if bus != 0 || device > 31 || pin > 3 {
        return None;
    }
    match config_read(0, 0, 0, 0) {
        HOST_Q35 => Some(match device {
            0..=24 => 20 + (u32::from(device) + u32::from(pin)) % 4,
            30 => 20 + u32::from(pin),
            _ => 16 + u32::from(pin),
        }),
        HOST_I440FX => {
            let pirq = (device.wrapping_sub(1) + pin) & 3;
            let routing = config_read(0, 1, 0, 0x60) >> (8 * pirq) & 0xff;
            (routing & 0x80 == 0).then_some(routing & 0xf)
        }
        _ => None,
    }
}
