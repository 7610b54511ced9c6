//! Structure of the tables, walked as a guest does.

use super::*;
use proptest::prelude::*;

const ROUTES: [IrqRoute; 2] = [IrqRoute { slot: 3, pin: 0, gsi: 16 }, IrqRoute { slot: 31, pin: 3, gsi: 23 }];

fn description(routes: &[IrqRoute]) -> Description<'_> {
    Description {
        vcpus: 2,
        routes,
        sockets: &[3, 31],
        io_window: 0xC000..0x1_0000,
        mmio_window: 0xC000_0000..0xE000_0000,
        high_window: 0x40_0000_0000..0x80_0000_0000,
        ecam: 0xE000_0000,
        iommu: None,
    }
}

fn find(tables: &Tables, address: u64) -> &[u8] {
    &tables.blocks.iter().find(|(at, _)| at.as_u64() == address).expect("a table is there").1
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The tables that the XSDT names, by signature.
fn named<'a>(tables: &'a Tables, signature: &[u8; 4]) -> &'a [u8] {
    let xsdt = find(tables, u64_at(find(tables, tables.rsdp.as_u64()), 24));
    let mut entries = xsdt[36..].chunks(8).map(|entry| find(tables, u64_at(entry, 0)));
    entries.find(|table| table.starts_with(signature)).unwrap()
}

#[test]
fn acpi_5_2_5_root_pointer() {
    let tables = build(&description(&ROUTES), Gpa::new(0x1001));
    assert_eq!(tables.rsdp, Gpa::new(0x1040));
    let rsdp = find(&tables, tables.rsdp.as_u64());
    assert_eq!((&rsdp[..8], rsdp[15], rsdp.len()), (&b"RSD PTR "[..], 2, 36));
    assert_eq!((sum(&rsdp[..20]), sum(rsdp)), (0, 0));
}

#[test]
fn acpi_5_2_6_every_table_is_sealed_and_apart() {
    let tables = build(&description(&ROUTES), Gpa::new(0xE_0000));
    let mut end = 0;
    for (address, bytes) in &tables.blocks {
        assert!(address.as_u64() >= end && address.is_aligned(64));
        end = address.as_u64() + bytes.len() as u64;
        if *address != tables.rsdp {
            assert_eq!(u32_at(bytes, 4) as usize, bytes.len());
            assert_eq!(sum(bytes), 0);
        }
    }
    assert_eq!(tables.end(), Gpa::new(end));
}

#[test]
fn acpi_5_2_9_fixed_description() {
    let tables = build(&description(&ROUTES), Gpa::new(0xE_0000));
    let fadt = named(&tables, b"FACP");
    assert_eq!((fadt.len(), fadt[8]), (276, 6));
    assert_ne!(u32_at(fadt, 112) & 1 << 20, 0, "hardware-reduced");
    assert_ne!(u32_at(fadt, 112) & 1 << 10, 0, "reset register");
    assert_eq!(u64_at(fadt, 120), power::RESET_PORT.into());
    assert_eq!(fadt[128], power::RESET_VALUE);
    assert_eq!((fadt[108], fadt[109] & 1 << 5), (0x32, 0), "a real-time clock, with the century");
    assert_eq!(u64_at(fadt, 248), power::SLEEP_CONTROL_PORT.into());
    assert_eq!(u64_at(fadt, 260), power::SLEEP_STATUS_PORT.into());
    assert!(dsdt(&tables).starts_with(b"DSDT"));
}

#[test]
fn acpi_5_2_12_interrupt_controllers() {
    let tables = build(&Description { vcpus: 256, ..description(&ROUTES) }, Gpa::new(0xE_0000));
    let madt = named(&tables, b"APIC");
    assert_eq!((u32_at(madt, 36), u32_at(madt, 40)), (0xFEE0_0000, 0));
    let (mut local, mut x2apic, mut io, mut rest) = (0, 0, 0, &madt[44..]);
    while let [kind, length, ..] = *rest {
        match kind {
            0 => {
                assert_eq!((rest[2], rest[3], rest[4]), (local, local, 1));
                local += 1;
            }
            1 => {
                assert_eq!((u32_at(rest, 4), u32_at(rest, 8)), (0xFEC0_0000, 0));
                io += 1;
            }
            9 => {
                assert_eq!((u32_at(rest, 4), u32_at(rest, 8)), (255, 1));
                x2apic += 1;
            }
            other => panic!("entry of type {other}"),
        }
        rest = &rest[length.into()..];
    }
    assert_eq!((local, x2apic, io), (255, 1, 1));
}

#[test]
fn pci_firmware_4_1_2_ecam() {
    let tables = build(&description(&ROUTES), Gpa::new(0xE_0000));
    let mcfg = named(&tables, b"MCFG");
    assert_eq!((mcfg.len(), u64_at(mcfg, 44)), (60, 0xE000_0000));
    assert_eq!(mcfg[52..], [0; 8], "segment 0, buses 0 to 0");
}

/// The differentiated description, which the fixed one names.
fn dsdt(tables: &Tables) -> &[u8] {
    find(tables, u64_at(named(tables, b"FACP"), 140))
}

/// The body of what is called `name`, of opcode `kind`: what follows its length and name.
fn body<'a>(aml: &'a [u8], kind: &[u8], name: &[u8; 4]) -> &'a [u8] {
    let heads = aml.windows(kind.len()).enumerate().filter(|(_, window)| *window == kind);
    let mut bodies = heads.filter_map(|(at, _)| {
        let inside = &aml[at + kind.len()..];
        let more = usize::from(inside[0] >> 6);
        let low = usize::from(inside[0] & if more == 0 { 0x3F } else { 0xF });
        let length = inside[1..=more].iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
        inside.get(..length << 4 | low)?.get(1 + more..)?.strip_prefix(name)
    });
    bodies.next_back().expect("it is there")
}

#[test]
fn acpi_6_3_3_every_socket_can_be_ejected_and_is_notified() {
    let tables = build(&description(&ROUTES), Gpa::new(0xE_0000));
    let dsdt = dsdt(&tables);
    let notices = body(dsdt, &[0x14], b"_EVT");
    for (name, slot) in [(b"S03_", 3u32), (b"S31_", 31)] {
        let device = body(dsdt, &[0x5B, 0x82], name);
        assert!(device.windows(4).any(|address| address == (slot << 16).to_le_bytes()), "its address");
        let eject = body(device, &[0x14], b"_EJ0");
        let mut store = vec![0x70];
        store.extend(if slot == 3 { vec![0x0A, 8] } else { vec![0x0C, 0, 0, 0, 0x80] });
        store.extend(b"EJCT");
        assert_eq!(eject[1..], store);
        for event in [1, 3] {
            let mut notify = b"\x86\\\x2F\x03_SB_PCI0".to_vec();
            notify.extend(name);
            notify.extend(if event == 1 { &[1][..] } else { &[0x0A, 3] });
            assert!(notices.windows(notify.len()).any(|window| window == notify), "{slot}: {event}");
        }
    }
    let none = build(&Description { sockets: &[], ..description(&ROUTES) }, Gpa::new(0xE_0000));
    assert!(!self::dsdt(&none).windows(4).any(|window| window == b"_EJ0"));
}

#[test]
fn viot_names_the_iommu_and_what_is_behind_it() {
    let iommu = Some(Iommu { slot: 5, endpoints: &[3, 31] });
    let tables = build(&Description { iommu, ..description(&ROUTES) }, Gpa::new(0xE_0000));
    let viot = named(&tables, b"VIOT");
    let u16_at = |at: usize| u16::from_le_bytes([viot[at], viot[at + 1]]);
    assert_eq!((u16_at(36), u16_at(38)), (3, 48), "nodes, and where the first is");
    assert_eq!(
        (viot[48], u16_at(50), u16_at(52), u16_at(54)),
        (3, 16, 0, 5 << 3),
        "a virtio-iommu on the bus"
    );
    for (node, slot) in [(64, 3u16), (88, 31)] {
        assert_eq!((viot[node], u16_at(node + 2)), (1, 24), "a range of functions");
        assert_eq!(u32_at(viot, node + 4), u32::from(slot) << 3, "the first one's number");
        assert_eq!(u32_at(viot, node + 8), 0, "segment 0");
        assert_eq!((u16_at(node + 12), u16_at(node + 14)), (slot << 3, slot << 3), "one function");
        assert_eq!(u16_at(node + 16), 48, "behind the first node");
    }
    assert_eq!(viot.len(), 112);
    let without = build(&description(&ROUTES), Gpa::new(0xE_0000));
    assert!(!without.blocks.iter().any(|(_, bytes)| bytes.starts_with(b"VIOT")));
}

proptest! {
    #[test]
    fn any_description_builds(
        vcpus in 0u32..300,
        routes in proptest::collection::vec((0u8..32, 0u8..8, 0u8..24), 0..300),
        sockets in proptest::collection::vec(any::<u8>(), 0..40),
        io_window: Range<u64>,
        mmio_window: Range<u64>,
        high_window: Range<u64>,
        ecam: u64,
        iommu: Option<u8>,
    ) {
        let routes: Vec<_> =
            routes.into_iter().map(|(slot, pin, gsi)| IrqRoute { slot, pin, gsi }).collect();
        let sockets = &sockets;
        let iommu = iommu.map(|slot| Iommu { slot, endpoints: sockets });
        let description =
            Description { vcpus, routes: &routes, sockets, io_window, mmio_window, high_window, ecam, iommu };
        for (_, bytes) in &build(&description, Gpa::new(0xE_0000)).blocks {
            prop_assert_eq!(sum(bytes), 0);
        }
    }
}
