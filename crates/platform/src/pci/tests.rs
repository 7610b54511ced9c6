//! Configuration space against the specification, section by section.

use super::function::command;
use super::*;
use proptest::prelude::*;

const NE2000: Identity = Identity {
    vendor: 0x10EC,
    device: 0x8029,
    class: 0x02_0000,
    revision: 0,
    subsystem_vendor: 0x1AF4,
    subsystem: 0x1100,
};

fn bus() -> PciBus {
    let mut bus = PciBus::new();
    let nic = Builder::new(NE2000).interrupt(1, 11).bar(0, BarKind::Io, 256, 0xC000).fixed_ports();
    bus.insert(3, nic.build().unwrap()).unwrap();
    let memory = Builder::new(Identity { vendor: 0x8086, device: 0x10D3, ..NE2000 })
        .bar(0, BarKind::Mem32 { prefetchable: false }, 0x2_0000, 0xFE00_0000)
        .bar(2, BarKind::Mem64 { prefetchable: true }, 0x4000, 0x8_0000_0000)
        .msi(4)
        .msix(5, (2, 0), (2, 0x2000));
    bus.insert(4, memory.build().unwrap()).unwrap();
    bus
}

/// A doubleword access by mechanism 1.
fn select(bus: &mut PciBus, slot: u32, offset: u32) {
    assert_eq!(bus.port_write(ADDRESS_PORT, 4, 1 << 31 | slot << 11 | offset), ConfigEffect::None);
}

fn read(bus: &mut PciBus, slot: u32, offset: u32) -> u32 {
    select(bus, slot, offset);
    bus.port_read(DATA_PORT, 4)
}

fn write(bus: &mut PciBus, slot: u32, offset: u32, value: u32) -> ConfigEffect {
    select(bus, slot, offset);
    bus.port_write(DATA_PORT, 4, value)
}

#[test]
fn pci_3_2_2_3_2_mechanism_1() {
    let mut bus = bus();
    assert_eq!(read(&mut bus, 0, 0), 0x0008_1B36, "host bridge");
    assert_eq!(read(&mut bus, 0, 8) >> 16, 0x0600);
    assert_eq!(read(&mut bus, 3, 0), 0x8029_10EC);
    assert_eq!(bus.port_read(DATA_PORT + 2, 2), 0x8029);
    assert_eq!(bus.port_read(DATA_PORT + 1, 1), 0x10);
    assert_eq!(bus.port_read(ADDRESS_PORT, 4), 0x8000_1800);
    assert_eq!(bus.port_read(DATA_PORT + 1, 2), 0xFFFF, "unaligned");
    assert_eq!(read(&mut bus, 5, 0), u32::MAX, "empty slot");
    let _ = bus.port_write(ADDRESS_PORT, 4, 1 << 31 | 1 << 16);
    assert_eq!(bus.port_read(DATA_PORT, 4), u32::MAX, "bus 1");
    let _ = bus.port_write(ADDRESS_PORT, 4, 1 << 31 | 1 << 8);
    assert_eq!(bus.port_read(DATA_PORT, 4), u32::MAX, "function 1");
    let _ = bus.port_write(ADDRESS_PORT, 4, 3 << 11);
    assert_eq!(bus.port_read(DATA_PORT, 4), u32::MAX, "not enabled");
}

#[test]
fn pcie_7_2_2_ecam() {
    let mut bus = bus();
    assert_eq!(bus.ecam_read(3 << 15, 4), 0x8029_10EC);
    assert_eq!(bus.ecam_read(3 << 15 | 2, 2), 0x8029);
    assert_eq!(bus.ecam_read(3 << 15 | 0x100, 4), u32::MAX, "extended space");
    assert_eq!(bus.ecam_read(3 << 15 | 1 << 12, 4), u32::MAX, "function 1");
    assert_eq!(bus.ecam_read(1 << 20, 4), u32::MAX, "bus 1");
    assert_eq!(bus.ecam_write(3 << 15 | 4, 2, 0x1), ConfigEffect::CommandChanged(3, 1));
}

#[test]
fn pci_6_2_2_command() {
    let mut bus = bus();
    assert_eq!(write(&mut bus, 3, 4, 0xFFFF_FFFF), ConfigEffect::CommandChanged(3, 0x055F));
    assert_eq!(read(&mut bus, 3, 4), 0x055F, "status is not for software");
    assert_eq!(bus.ecam_write(3 << 15 | 6, 2, 0xFFFF), ConfigEffect::None);
    bus.function_mut(3).unwrap().set_interrupt_status(true);
    assert_eq!(read(&mut bus, 3, 4) >> 16, 1 << 3);
}

#[test]
fn pci_6_2_5_1_bars_size_themselves() {
    let mut bus = bus();
    assert_eq!(read(&mut bus, 3, 0x10), 0xC001);
    assert_eq!(write(&mut bus, 3, 0x10, u32::MAX), ConfigEffect::BarsChanged(3));
    assert_eq!(read(&mut bus, 3, 0x10), 0xFFFF_FF01);
    let _ = write(&mut bus, 4, 0x10, u32::MAX);
    assert_eq!(read(&mut bus, 4, 0x10), 0xFFFE_0000);
    let _ = write(&mut bus, 4, 0x18, u32::MAX);
    let _ = write(&mut bus, 4, 0x1C, u32::MAX);
    assert_eq!(read(&mut bus, 4, 0x18), 0xFFFF_C00C);
    assert_eq!(read(&mut bus, 4, 0x1C), u32::MAX);
    for absent in [0x14, 0x20, 0x24, 0x30] {
        let _ = write(&mut bus, 4, absent, u32::MAX);
        assert_eq!(read(&mut bus, 4, absent), 0);
    }
}

#[test]
fn a_bar_answers_where_it_may() {
    let mut bus = bus();
    let port = Bar { kind: BarKind::Io, address: 0xC000, size: 256, enabled: false };
    assert_eq!(bus.bar(3, 0), Some(port));
    let _ = write(&mut bus, 3, 4, command::IO.into());
    assert_eq!(bus.bar(3, 0), Some(Bar { enabled: true, ..port }));
    let _ = write(&mut bus, 3, 0x10, 0xD000);
    assert_eq!(bus.bar(3, 0), Some(Bar { address: 0xD000, ..port }), "fixed");
    let _ = write(&mut bus, 3, 0x10, 0xC000);
    assert!(bus.bar(3, 0).unwrap().enabled);

    let _ = write(&mut bus, 4, 4, command::MEMORY.into());
    let _ = write(&mut bus, 4, 0x10, 0xE123_4567);
    let moved = bus.bar(4, 0).unwrap();
    assert_eq!((moved.address, moved.enabled), (0xE122_0000, true));
    let _ = write(&mut bus, 4, 0x10, 0);
    assert!(!bus.bar(4, 0).unwrap().enabled, "address 0");
    assert_eq!(bus.bar(4, 2).unwrap().address, 0x8_0000_0000);
    let _ = write(&mut bus, 4, 0x1C, u32::MAX);
    assert!(!bus.bar(4, 2).unwrap().enabled, "beyond physical memory");
    assert_eq!(bus.bar(4, 3), None, "upper half");
    assert_eq!(bus.bar(4, 6), None);
}

#[test]
fn pci_6_2_5_2_an_expansion_rom_answers_when_it_is_switched_on() {
    let card = Builder::new(SOUND).bar(ROM_BAR, BarKind::Rom, 0x1_0000, 0xFD00_0000).build().unwrap();
    let mut bus = bus();
    bus.insert(7, card).unwrap();
    let rom = Bar { kind: BarKind::Rom, address: 0xFD00_0000, size: 0x1_0000, enabled: false };
    assert_eq!((read(&mut bus, 7, 0x30), bus.bar(7, ROM_BAR)), (0xFD00_0000, Some(rom)));
    let _ = write(&mut bus, 7, 4, command::MEMORY.into());
    assert_eq!(bus.bar(7, ROM_BAR), Some(rom), "switched off");
    assert_eq!(write(&mut bus, 7, 0x30, u32::MAX), ConfigEffect::BarsChanged(7));
    assert_eq!(read(&mut bus, 7, 0x30), 0xFFFF_0001);
    let _ = write(&mut bus, 7, 0x30, 0xFE12_3001);
    assert_eq!(bus.bar(7, ROM_BAR), Some(Bar { address: 0xFE12_0000, enabled: true, ..rom }));
    let _ = write(&mut bus, 7, 4, 0);
    assert!(!bus.bar(7, ROM_BAR).unwrap().enabled, "no memory answers");
    assert_eq!(bus.bar(7, 5), None);
    bus.reset();
    assert_eq!(read(&mut bus, 7, 0x30), 0xFD00_0000);

    let build = |builder: Builder| builder.build().unwrap_err();
    let new = || Builder::new(SOUND);
    assert_eq!(build(new().bar(5, BarKind::Rom, 1 << 11, 0)), BuildError::BarIndex(5));
    let memory = BarKind::Mem32 { prefetchable: false };
    assert_eq!(build(new().bar(ROM_BAR, memory, 1 << 11, 0)), BuildError::BarIndex(ROM_BAR));
    assert_eq!(build(new().bar(ROM_BAR, BarKind::Rom, 1 << 10, 0)), BuildError::BarSize(ROM_BAR));
    assert_eq!(build(new().bar(ROM_BAR, BarKind::Rom, 1 << 25, 0)), BuildError::BarSize(ROM_BAR));
    let table = new().bar(ROM_BAR, BarKind::Rom, 1 << 11, 0).msix(1, (ROM_BAR, 0), (ROM_BAR, 0x100));
    assert_eq!(build(table), BuildError::MsixTable);
}

#[test]
fn pci_6_7_capabilities_are_a_list() {
    let mut bus = bus();
    assert_eq!(read(&mut bus, 3, 0x34), 0);
    assert_eq!(read(&mut bus, 3, 4) >> 16 & 1 << 4, 0);
    assert_ne!(read(&mut bus, 4, 4) >> 16 & 1 << 4, 0);
    let (mut found, mut next) = (Vec::new(), read(&mut bus, 4, 0x34));
    while next != 0 {
        let head = read(&mut bus, 4, next);
        found.push(head & 0xFF);
        next = head >> 8 & 0xFF;
    }
    assert_eq!(found, [0x05, 0x11]);
}

#[test]
fn pci_6_8_1_msi() {
    let mut bus = bus();
    assert_eq!(bus.msi(3), None);
    assert_eq!(bus.msi(4).unwrap().vectors, 1);
    assert_eq!(write(&mut bus, 4, 0x54, 0xFEE0_1003), ConfigEffect::MsiChanged(4));
    let _ = write(&mut bus, 4, 0x58, 0);
    let _ = write(&mut bus, 4, 0x5C, 0x41);
    let _ = write(&mut bus, 4, 0x60, u32::MAX);
    // Enabled, with 32 vectors asked of a function that has 4.
    let _ = write(&mut bus, 4, 0x50, 0x0051_0000);
    let expected = Msi { enabled: true, address: 0xFEE0_1000, data: 0x41, vectors: 4, masked: 0xF };
    assert_eq!(bus.msi(4), Some(expected));
    bus.reset();
    assert!(!bus.msi(4).unwrap().enabled);
}

#[test]
fn pci_6_8_2_msix() {
    let mut bus = bus();
    let capability = bus.msix(4).unwrap();
    assert_eq!((capability.vectors, capability.table, capability.pending), (5, (2, 0), (2, 0x2000)));
    assert_eq!(bus.ecam_write(4 << 15 | 0x72, 2, 0xC000), ConfigEffect::MsixChanged(4));
    assert_eq!(bus.msix(4), Some(MsixCapability { enabled: true, masked: true, ..capability }));
    let _ = bus.ecam_write(4 << 15 | 0x74, 4, u32::MAX);
    assert_eq!(bus.msix(4).unwrap().table, (2, 0), "read-only");
}

#[test]
fn a_builder_refuses_what_cannot_be() {
    let mem64 = BarKind::Mem64 { prefetchable: false };
    let build = |builder: Builder| builder.build().map(|_| ()).unwrap_err();
    let new = || Builder::new(NE2000);
    assert_eq!(build(new().bar(5, mem64, 0x1000, 0)), BuildError::BarIndex(5));
    assert_eq!(build(new().bar(0, mem64, 1 << 32, 0).bar(1, BarKind::Io, 4, 0)), BuildError::BarIndex(1));
    assert_eq!(build(new().bar(1, BarKind::Io, 4, 0).bar(0, mem64, 1 << 32, 0)), BuildError::BarIndex(0));
    assert_eq!(build(new().bar(0, BarKind::Io, 512, 0)), BuildError::BarSize(0));
    assert_eq!(build(new().bar(0, BarKind::Io, 16, 0x1_0000)), BuildError::BarAddress(0));
    assert_eq!(build(new().bar(0, mem64, 0x1000, 0x800)), BuildError::BarAddress(0));
    assert_eq!(build(new().msi(3)), BuildError::Vectors);
    assert_eq!(build(new().msix(1, (0, 0), (0, 0))), BuildError::MsixTable);
    let small = new().bar(0, mem64, 0x1000, 0);
    assert_eq!(build(small.msix(256, (0, 0x10), (0, 0))), BuildError::MsixTable);
    assert_eq!(bus().insert(3, new().build().unwrap()), Err(BuildError::Slot(3)));
}

/// A sound card, as it says who it is.
const SOUND: Identity = Identity {
    vendor: 0x8086,
    device: 0x2668,
    class: 0x04_0300,
    revision: 1,
    subsystem_vendor: 0x1AF4,
    subsystem: 0x1100,
};

#[test]
fn pci_3_2_2_3_a_function_before_another_says_who_it_is_and_can_do_nothing() {
    let mut bus = bus();
    let nic = Builder::new(NE2000).bar(0, BarKind::Io, 256, 0xC100).behind(SOUND);
    bus.insert(5, nic.build().unwrap()).unwrap();
    let facade = 5 << 15;
    let nic = facade | 1 << 12;
    assert_eq!(bus.ecam_read(3 << 15 | 0x0E, 1), 0, "one function");
    assert_eq!((bus.ecam_read(facade | 0x0E, 1), bus.ecam_read(nic | 0x0E, 1)), (0x80, 0x80));
    assert_eq!((bus.ecam_read(facade, 4), bus.ecam_read(nic, 4)), (0x2668_8086, 0x8029_10EC));
    assert_eq!(bus.ecam_read(facade | 8, 4), 0x0403_0001);
    assert_eq!(bus.ecam_read(facade | 0x2C, 4), 0x1100_1AF4);
    assert_eq!(bus.ecam_read(facade | 2 << 12, 4), u32::MAX, "no third");
    assert_eq!(bus.ecam_write(facade | 0x10, 4, u32::MAX), ConfigEffect::None);
    assert_eq!(bus.ecam_read(facade | 0x10, 4), 0, "no BAR");
    assert_eq!(bus.ecam_read(facade | 0x3D, 1), 0, "no interrupt");
    assert_eq!(bus.ecam_write(facade | 4, 2, 0x7), ConfigEffect::None, "it is the facade's command");
    assert_eq!((bus.command(5), bus.ecam_read(facade | 4, 2)), (0, 7));
    assert_eq!(bus.ecam_write(nic | 4, 2, 0x1), ConfigEffect::CommandChanged(5, 1));
    assert_eq!(bus.ecam_write(facade | 2 << 12 | 4, 2, 0x3), ConfigEffect::None, "nobody's command");
    assert_eq!((bus.command(5), bus.ecam_read(facade | 4, 2)), (1, 7));
    let _ = bus.port_write(ADDRESS_PORT, 4, 1 << 31 | 5 << 11 | 1 << 8);
    assert_eq!(bus.port_read(DATA_PORT, 4), 0x8029_10EC, "by mechanism 1");
    bus.reset();
    assert_eq!((bus.command(5), bus.ecam_read(facade | 4, 2)), (0, 0));
    assert_eq!((bus.ecam_read(facade | 0x0E, 1), bus.ecam_read(facade, 2)), (0x80, 0x8086));
}

#[test]
fn nobody_answers_in_a_slot_that_was_left() {
    let mut bus = bus();
    bus.remove(3);
    assert_eq!((bus.ecam_read(3 << 15, 4), bus.bar(3, 0)), (u32::MAX, None));
    assert_eq!(bus.ecam_write(3 << 15 | 4, 2, 7), ConfigEffect::None);
    bus.remove(0);
    assert_ne!(bus.ecam_read(0, 4), u32::MAX, "the host bridge stays");
    bus.remove(32);
    bus.insert(3, Builder::new(NE2000).build().unwrap()).unwrap();
    assert_ne!(bus.ecam_read(3 << 15, 4), u32::MAX);
}

proptest! {
    #[test]
    fn any_access_yields_a_value(
        accesses: Vec<(bool, bool, u32, u8, u32)>,
        near: Vec<(u8, u8, u32)>,
    ) {
        let mut bus = bus();
        for (ecam, write, place, width, value) in accesses {
            match (ecam, write) {
                (false, false) => { let _ = bus.port_read(place as u16, width); }
                (false, true) => { let _ = bus.port_write(place as u16, width, value); }
                (true, false) => { let _ = bus.ecam_read(place, width); }
                (true, true) => { let _ = bus.ecam_write(place, width, value); }
            }
        }
        for (offset, width, value) in near {
            let place = 4 << 15 | u32::from(offset);
            let _ = bus.ecam_write(place, 1 << (width & 3), value);
            let _ = bus.ecam_read(place, 1 << (width & 3));
            for index in 0..8 {
                if let Some(bar) = bus.bar(4, index) {
                    prop_assert!(!bar.enabled || bar.address.checked_add(bar.size).is_some());
                    prop_assert_eq!(bar.address & (bar.size - 1), 0);
                }
            }
            prop_assert!(bus.msi(4).unwrap().vectors <= 4);
            prop_assert_eq!(read(&mut bus, 4, 0), 0x10D3_8086);
        }
    }
}
