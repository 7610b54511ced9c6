//! The devices that cannot be discovered: the PCI host bridge, COM1, the real-time clock, the
//! power button, and the port of panics; and the slots of the bus that devices come to while the guest runs.
//!
//! Source: ACPI 6.4, 5.6.9 (generic event device), 6.2.13 (_PRT), 6.3.3 (_EJ0), 7.4.2 (\_Sx), 6.1.5 (_HID).

use super::aml::{Aml, Name, Space};
use super::{Description, IrqRoute, POWER_BUTTON_GSI};
use crate::{hotplug, pci, power, pvpanic, rtc, uart};
use alloc::vec::Vec;

/// What a power button tells the system (5.6.6).
const BUTTON_PRESSED: u64 = 0x80;
/// Something may have come to a slot (5.6.6).
const DEVICE_CHECK: u64 = 1;
/// The system is to let go of what is in a slot (5.6.6).
const EJECT_REQUEST: u64 = 3;
/// The registers of [`hotplug`], in their order.
const CAME: Name = *b"CAME";
const ASKED: Name = *b"ASKD";
const EJECT: Name = *b"EJCT";

/// The table, less its header.
pub fn body(description: &Description<'_>) -> Vec<u8> {
    let mut aml = Aml::default();
    aml.name(*b"_S5_", |aml| {
        aml.package(4, |aml| {
            aml.integer(power::SLEEP_TYPE_OFF.into());
            [0; 3].into_iter().for_each(|zero| aml.integer(zero));
        });
    });
    aml.scope(*b"_SB_", |aml| {
        aml.ports(*b"PLUG", hotplug::CAME_PORT, &[CAME, ASKED, EJECT]);
        aml.device(*b"PCI0", |aml| host_bridge(aml, description));
        aml.device(*b"ECAM", |aml| reserved(aml, description.ecam));
        aml.device(*b"COM1", serial_port);
        aml.device(*b"RTC_", real_time_clock);
        aml.device(*b"PEVT", panic_port);
        aml.device(*b"PWRB", |aml| aml.name(*b"_HID", |aml| aml.pnp_id(0x0C0C)));
        aml.device(*b"EVTS", |aml| event_device(aml, description));
    });
    aml.into_bytes()
}

fn host_bridge(aml: &mut Aml, description: &Description<'_>) {
    aml.name(*b"_HID", |aml| aml.pnp_id(0x0A08));
    aml.name(*b"_CID", |aml| aml.pnp_id(0x0A03));
    for name in [*b"_SEG", *b"_BBN", *b"_UID"] {
        aml.name(name, |aml| aml.integer(0));
    }
    aml.name(*b"_CRS", |aml| {
        aml.resources(|resources| {
            resources.window(Space::Bus, 2, 0..1);
            resources.ports(pci::ADDRESS_PORT, 8);
            resources.window(Space::Io, 2, description.io_window.clone());
            resources.window(Space::Memory, 4, description.mmio_window.clone());
            resources.window(Space::Memory, 8, description.high_window.clone());
        });
    });
    let routes: Vec<&IrqRoute> = description.routes.iter().take(255).collect();
    aml.name(*b"_PRT", |aml| {
        aml.package(routes.len() as u8, |aml| routes.iter().for_each(|route| interrupt_route(aml, route)));
    });
    for slot in description.sockets {
        aml.device(name_of(*slot), |aml| socket(aml, *slot));
    }
}

/// What a slot is called.
fn name_of(slot: u8) -> Name {
    [b'S', b'0' + slot / 10 % 10, b'0' + slot % 10, b'_']
}

/// A slot that devices come to and leave.
fn socket(aml: &mut Aml, slot: u8) {
    aml.name(*b"_ADR", |aml| aml.integer(u64::from(slot) << 16));
    aml.name(*b"_SUN", |aml| aml.integer(slot.into()));
    aml.method(*b"_EJ0", 1, |aml| aml.store(bit(slot), EJECT));
}

fn bit(slot: u8) -> u64 {
    1 << (slot & 31)
}

/// Any function of the slot, its pin, and a global interrupt.
fn interrupt_route(aml: &mut Aml, route: &IrqRoute) {
    aml.package(4, |aml| {
        aml.integer(u64::from(route.slot) << 16 | 0xFFFF);
        aml.integer(route.pin.into());
        aml.integer(0);
        aml.integer(route.gsi.into());
    });
}

/// ECAM as a motherboard resource, without which Linux does not believe the MCFG.
fn reserved(aml: &mut Aml, ecam: u64) {
    aml.name(*b"_HID", |aml| aml.pnp_id(0x0C02));
    aml.name(*b"_CRS", |aml| aml.resources(|resources| resources.memory(ecam as u32, pci::ECAM_SIZE as u32)));
}

fn serial_port(aml: &mut Aml) {
    aml.name(*b"_HID", |aml| aml.pnp_id(0x0501));
    aml.name(*b"_UID", |aml| aml.integer(1));
    aml.name(*b"_CRS", |aml| {
        aml.resources(|resources| {
            resources.ports(uart::COM1_PORT, uart::PORTS as u8);
            resources.edge_interrupt(uart::COM1_GSI);
        });
    });
}

/// Without an interrupt: Linux takes none where there is no PIC.
fn real_time_clock(aml: &mut Aml) {
    aml.name(*b"_HID", |aml| aml.pnp_id(0x0B00));
    aml.name(*b"_CRS", |aml| aml.resources(|resources| resources.ports(rtc::INDEX_PORT, 2)));
}

/// What QEMU calls the device, and Linux's driver therefore looks for.
fn panic_port(aml: &mut Aml) {
    aml.name(*b"_HID", |aml| aml.string("QEMU0001"));
    aml.name(*b"_CRS", |aml| aml.resources(|resources| resources.ports(pvpanic::PORT, 1)));
}

/// Turns the interrupts of events into notifications of whom they concern.
fn event_device(aml: &mut Aml, description: &Description<'_>) {
    aml.name(*b"_HID", |aml| aml.string("ACPI0013"));
    aml.name(*b"_CRS", |aml| {
        aml.resources(|resources| {
            resources.edge_interrupt(POWER_BUTTON_GSI);
            resources.edge_interrupt(hotplug::GSI);
        });
    });
    aml.method(*b"_EVT", 1, |aml| {
        aml.if_argument(POWER_BUTTON_GSI.into(), |aml| aml.notify(&[*b"_SB_", *b"PWRB"], BUTTON_PRESSED));
        aml.if_argument(hotplug::GSI.into(), |aml| {
            aml.load(CAME, 0);
            aml.load(ASKED, 1);
            for slot in description.sockets {
                for (local, what) in [(0, DEVICE_CHECK), (1, EJECT_REQUEST)] {
                    let path = [*b"_SB_", *b"PCI0", name_of(*slot)];
                    aml.if_any(local, bit(*slot), |aml| aml.notify(&path, what));
                }
            }
        });
    });
}
