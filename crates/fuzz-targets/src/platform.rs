//! The virtual platform: any access, at any width and in any order, from hostile registers and times.

use crate::Input;
use sluice_platform::cpuid::{CpuInfo, filter};
use sluice_platform::hotplug::{self, Hotplug};
use sluice_platform::ioapic::{IoApic, WriteEffect};
use sluice_platform::lapic::{Effect, LocalApic, Rates};
use sluice_platform::message::Message;
use sluice_platform::msix::MsixTable;
use sluice_platform::pci::{BarKind, Builder, Identity, PciBus, ROM_BAR};
use sluice_platform::rtc::{self, Rtc};
use sluice_platform::uart::Uart;

/// The local APIC. Asserts that a pending vector has a higher priority than the processor, that taking it puts it in
/// service, that vectors below 16 are never raised, and that the timer, once polled, next fires in the future: a guest
/// that programs it cannot keep the processor in a loop of expiries.
pub fn lapic(data: &[u8]) {
    let mut input = Input::new(data);
    let mut apic =
        LocalApic::new(u32::from(input.u8()), Rates::new(input.choose(&[1_000_000, 2_500_000, 1])));
    if input.flag() {
        let _ = apic.msr_write(0x1b, 0xfee0_0c00, 0);
    }
    if input.flag() {
        let _ = apic.msr_write(0x80f, 0x1ff, 0);
        let _ = apic.mmio_write(0xf0, 0x1ff, 0);
    }
    let mut now = if input.u8() > 200 { input.u64() } else { 1_000_000 };
    while !input.is_empty() {
        let register = match input.u8() {
            0..=180 => u32::from(input.u8() % 0x40),
            _ => input.u32(),
        };
        let value = match input.u8() {
            0..=120 => u64::from(input.u8()),
            121..=200 => u64::from(input.u32()),
            201..=230 => now.wrapping_add(u64::from(input.u16())),
            _ => input.u64(),
        };
        let mut effect = Effect::None;
        match input.u8() % 12 {
            0 | 1 => {
                effect = apic.msr_write(register.wrapping_add(0x800), value, now).unwrap_or(Effect::None)
            }
            2 => effect = apic.msr_write(input.choose(&[0x1b, 0x6e0]), value, now).unwrap_or(Effect::None),
            3 => drop(apic.msr_read(0x800 + register.min(0xffff), now)),
            4 | 5 => {
                let len = input.choose(&[4, 4, 4, 4, 1, 2, 3, 8]);
                let at = register.wrapping_mul(16);
                effect = apic.mmio_store(at, &value.to_le_bytes()[..len], now);
                assert!(len == 4 || effect == Effect::None, "a write of {len} bytes has an effect");
            }
            6 => {
                let mut buffer = [0; 32];
                let len = input.choose(&[4, 1, 2, 8, 16, 32]);
                apic.mmio_load(register.wrapping_mul(input.choose(&[1, 16])), &mut buffer[..len], now);
            }
            7 => apic.request(value as u8, value & 0x100 != 0),
            8 if input.flag() => apic.observe_cr8(value as u8 & 15),
            8 => apic.set_cr8(value as u8),
            9 => drop(apic.eoi()),
            10 => now = now.wrapping_add(value),
            _ => apic.reset(),
        }
        if let Effect::Ipi(ipi) = effect {
            let _ = apic.matches(ipi.dest, ipi.logical);
        }
        apic.poll_timer(now);
        if let Some(deadline) = apic.timer_deadline() {
            assert!(deadline > now, "the timer fires at {deadline:#x} for ever, it is {now:#x}");
        }
        if let Some(vector) = apic.highest_pending() {
            assert!(vector >= 16 && vector >> 4 > apic.ppr() >> 4 && apic.any_requested());
            if input.flag() {
                apic.acknowledge(vector);
                assert!(apic.has_in_service() && apic.is_busy(vector));
                assert!(apic.highest_pending().is_none_or(|next| next >> 4 > vector >> 4));
            }
        }
    }
}

/// The I/O APIC. Asserts that nothing leaves a masked pin or a pin in service, that vectors are legal, and that an end
/// of interrupt sends again only what is level-triggered, asserted and unmasked.
pub fn ioapic(data: &[u8]) {
    let mut input = Input::new(data);
    let mut apic = IoApic::new(input.u8());
    while !input.is_empty() {
        let (what, at, value) = (input.u8(), input.u8(), input.u32());
        match what % 6 {
            0 => {
                let _ = apic.mmio_write(0, u32::from(at % 0x48));
                if let WriteEffect::Deliver(message) = apic.mmio_write(0x10, value) {
                    assert!(message.vector >= 16);
                }
            }
            1 => {
                // An entry that is likely to work.
                let _ = apic.mmio_write(0, 0x10 + u32::from(at % 24) * 2);
                let _ = apic.mmio_write(0x10, value & 0x8000 | 0x20 | value & 0xdf);
            }
            2 => {
                let pin = at % 32;
                let (masked, waits, level) =
                    (apic.is_masked(pin), apic.is_in_service(pin), apic.is_level(pin));
                if let Some(message) = apic.set_line(pin, value & 1 != 0) {
                    assert!(!masked && message.vector >= 16 && message.level == level);
                    assert!(!level || !waits, "a pin in service delivers again");
                    assert!(!level || apic.is_in_service(pin));
                }
            }
            3 => {
                let eois = apic.eoi(at);
                assert!(eois.redeliver.len() <= eois.pins.count_ones() as usize);
                assert!(eois.redeliver.iter().all(|message| message.level && message.vector == at));
            }
            4 => apic.mmio_load(value, &mut [0; 16][..usize::from(at % 17)]),
            _ => {
                let bytes = value.to_le_bytes();
                let effect = apic.mmio_store(value & 0xff, &bytes[..usize::from(at % 5)]);
                if let WriteEffect::Eoi(vector) = effect {
                    let _ = apic.eoi(vector);
                }
            }
        }
    }
}

/// The serial port. Asserts that what was typed is read in order, less what was lost to full or cleared queues.
pub fn uart(data: &[u8]) {
    let mut input = Input::new(data);
    let mut uart = Uart::new();
    let mut typed = 0u8;
    while !input.is_empty() {
        match input.u8() {
            what @ 0..=99 => drop(uart.write(what, input.u8())),
            what @ 100..=199 => drop(uart.read(what)),
            _ => {
                typed = typed.wrapping_add(1);
                let _ = uart.push_input(typed);
            }
        }
        let _ = uart.interrupt();
    }
    // A driver that starts afresh gets a port that works.
    for (offset, value) in [(1, 0), (4, 0), (3, 3), (2, 7)] {
        let _ = uart.write(offset, value);
    }
    let room = uart.push_input(b'!');
    assert!(room && uart.read(5) & 1 != 0, "cleared queues do not take a byte");
    assert_eq!(uart.read(0), b'!');
}

/// The real-time clock. Asserts that a guest that sets it, whatever it did before, reads what it has set, and an hour later one hour
/// more.
pub fn rtc(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rtc = Rtc::default();
    let mut now = input.u64() >> 1;
    while !input.is_empty() {
        let port = rtc::INDEX_PORT + u16::from(input.u8() % 3);
        if input.flag() {
            rtc.write(port, input.u8(), now)
        } else {
            let _ = rtc.read(port, now);
        }
        now = now.saturating_add(u64::from(input.u8()) << 22).min(u64::MAX >> 1);
    }
    let put = |rtc: &mut Rtc, register, value| {
        rtc.write(rtc::INDEX_PORT, register, now);
        rtc.write(rtc::DATA_PORT, value, now);
    };
    // Register B: binary numbers of 24 hours, first held, then let go.
    let set = [(0x0b, 0x86), (0x32, 20), (9, 26), (8, 11), (7, 22), (4, 14), (2, 6), (0, 55), (0x0b, 6)];
    set.into_iter().for_each(|(register, value)| put(&mut rtc, register, value));
    let mut get = |register, at| {
        rtc.write(rtc::INDEX_PORT, register, at);
        rtc.read(rtc::DATA_PORT, at)
    };
    let later = now + 3_600_000_000_000;
    assert_eq!([9, 8, 7, 4, 2, 0].map(|register| get(register, now)), [26, 11, 22, 14, 6, 55]);
    assert_eq!([9, 8, 7, 4, 2, 0].map(|register| get(register, later)), [26, 11, 22, 15, 6, 55]);
}

fn bus() -> PciBus {
    let identity = Identity {
        vendor: 0x10ec,
        device: 0x8029,
        class: 0x02_0000,
        revision: 0,
        subsystem_vendor: 0x1af4,
        subsystem: 0x1100,
    };
    let mut bus = PciBus::new();
    let ports = Builder::new(identity).interrupt(1, 19).bar(0, BarKind::Io, 32, 0xc100).fixed_ports();
    bus.insert(3, ports.build().expect("a valid function")).expect("a free slot");
    let memory = Builder::new(identity)
        .bar(0, BarKind::Mem32 { prefetchable: false }, 0x2_0000, 0xc000_0000)
        .bar(1, BarKind::Io, 64, 0x1000)
        .bar(2, BarKind::Mem64 { prefetchable: true }, 0x4000, 0xc010_0000)
        .bar(ROM_BAR, BarKind::Rom, 0x1_0000, 0xc020_0000)
        .msi(8)
        .msix(17, (2, 0), (2, 0x2000));
    bus.insert(4, memory.build().expect("a valid function")).expect("a free slot");
    bus
}

/// The registers of hot-plug, while devices come and are asked for. Asserts that a guest gives back only what it is asked for, once each, and
/// that what it is told is true.
pub fn hotplug(data: &[u8]) {
    let mut input = Input::new(data);
    let mut hotplug = Hotplug::default();
    let (mut came, mut asked, mut leaving, mut ejected) = (0u32, 0u32, 0u32, 0u32);
    while !input.is_empty() {
        let (what, slot) = (input.u8(), input.u8() & 31);
        let bit = 1 << slot;
        match what % 6 {
            0 => {
                hotplug.come(slot);
                came |= bit;
            }
            1 => {
                hotplug.ask(slot);
                (asked, leaving) = (asked | bit, leaving | bit);
            }
            2 => {
                hotplug.forget(slot);
                for word in [&mut came, &mut asked, &mut leaving, &mut ejected] {
                    *word &= !bit;
                }
            }
            3 => {
                let (port, value) = (hotplug::CAME_PORT + u16::from(what >> 4), input.u32());
                let gone = hotplug.write(port, value);
                assert_eq!(gone, if port == hotplug::EJECT_PORT { value & leaving } else { 0 });
                (leaving, ejected) = (leaving & !gone, ejected | gone);
            }
            4 => match hotplug.take_ejected() {
                Some(slot) => {
                    assert_ne!(ejected & 1 << slot, 0);
                    ejected &= !(1 << slot);
                }
                None => assert_eq!(ejected, 0),
            },
            _ => {
                let port = hotplug::CAME_PORT + u16::from(what >> 4);
                let told = match port {
                    hotplug::CAME_PORT => core::mem::take(&mut came),
                    hotplug::ASKED_PORT => core::mem::take(&mut asked),
                    _ => 0,
                };
                assert_eq!(hotplug.read(port), told);
            }
        }
    }
}

/// PCI configuration by both mechanisms. Asserts that identities and sizes never change, that base addresses are
/// multiples of their sizes and within their space, and that a fixed one answers only where it physically is.
pub fn pci(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bus = bus();
    while !input.is_empty() {
        let (what, width) = (input.u8(), input.choose(&[1, 2, 4, 4, 0, 3, 8]));
        let offset = match input.u8() {
            0..=200 => u32::from(input.choose(&[3u8, 4, 4, 0, 5])) << 15 | u32::from(input.u8()),
            _ => input.u32(),
        };
        let value = input.choose(&[u32::MAX, 0, 7, 0xc101, 0x8000_0000]) ^ u32::from(input.u8());
        match what % 5 {
            0 | 1 => drop(bus.ecam_write(offset, width, value)),
            2 => drop(bus.ecam_read(offset, width)),
            3 => {
                // The address in mechanism 1's format, then the data port or near it.
                let address = 0x8000_0000 | (offset >> 15 & 0x1f) << 11 | offset & 0xfc;
                let _ = bus.port_write(0xcf8, 4, address);
                let port = 0xcfc + u16::from(what >> 6);
                let _ = if what & 8 != 0 {
                    bus.port_write(port, width, value)
                } else {
                    return_read(&bus, port, width)
                };
            }
            _ => drop(bus.port_write(0xcf0 + u16::from(what >> 4), width, value)),
        }
        check(&bus);
    }
    bus.reset();
    check(&bus);
}

fn return_read(bus: &PciBus, port: u16, width: u8) -> sluice_platform::pci::ConfigEffect {
    let _ = bus.port_read(port, width);
    sluice_platform::pci::ConfigEffect::None
}

fn check(bus: &PciBus) {
    for slot in [3u8, 4] {
        assert_eq!(bus.ecam_read(u32::from(slot) << 15, 4), 0x8029_10ec);
        let function = bus.function(slot).expect("it is there");
        for index in 0..=ROM_BAR {
            let (Some(bar), Some(window)) = (function.bar(index), function.window(index)) else { continue };
            assert_eq!((bar.kind, bar.size), (window.kind, window.size));
            assert!(bar.address % bar.size == 0);
            let end = bar.address.checked_add(bar.size);
            let limit = match bar.kind {
                BarKind::Io => 1 << 32,
                BarKind::Mem32 { .. } | BarKind::Rom => 1 << 32,
                BarKind::Mem64 { .. } => u64::MAX,
            };
            assert!(!bar.enabled || end.is_some_and(|end| end <= limit), "{bar:x?}");
            if slot == 3 && bar.enabled {
                assert_eq!(bar.address, window.initial, "a fixed address moved");
            }
        }
        if let Some(msi) = function.msi() {
            assert!(matches!(msi.vectors, 1..=32));
            let _ = Message::from_msi(msi.address, msi.data.into());
        }
        assert_eq!(
            function.msix().map(|msix| (msix.vectors, msix.table)),
            (slot == 4).then_some((17, (2, 0)))
        );
    }
}

/// An MSI-X table. Asserts that a masked vector only becomes pending and that vectors that do not exist never fire.
pub fn msix(data: &[u8]) {
    let mut input = Input::new(data);
    let count = u16::from(input.u8() % 70) + 1;
    let mut table = MsixTable::new(count);
    while !input.is_empty() {
        let (what, width) = (input.u8(), input.choose(&[4, 8, 1, 2, 0, 16]));
        let offset = if what & 0x80 != 0 { u32::from(input.u16()) } else { input.u32() };
        match what % 4 {
            0 | 1 => {
                let value = if what & 0x40 != 0 { 0xfee0_0000 | u64::from(input.u16()) } else { input.u64() };
                if let Some(vector) = table.write(offset, width, value) {
                    assert!(vector < count);
                }
            }
            2 => drop((table.read(offset, width), table.read_pending(offset, width))),
            _ => {
                let vector = (offset % 80) as u16;
                let masked = what & 0x40 != 0;
                let message = table.raise(vector, masked);
                assert!(message.is_none() || (vector < count && !masked));
                if message.is_none() && masked && vector < count {
                    assert!(table.is_pending(vector));
                }
            }
        }
    }
}

/// CPUID. Asserts that no host, however strange, shows a guest what it must not use: SVM, VMX, MONITOR, performance
/// counters, leaves beyond the highest; and that the hypervisor bit is always there.
pub fn cpuid(data: &[u8]) {
    let mut input = Input::new(data);
    while !input.is_empty() {
        let vcpus = u32::from(input.u8() % 64) + 1;
        let vcpu_id = u32::from(input.u8()) % vcpus;
        let guest = CpuInfo {
            vcpu_id,
            apic_id: vcpu_id,
            vcpus,
            tsc_khz: input.u32(),
            cr4: input.u64(),
            apic_base: input.u64(),
        };
        let base = input.choose(&[0, 0, 0x4000_0000, 0x8000_0000, 0xc000_0000]);
        let leaf = base + u32::from(input.u8() % 0x30);
        let host = [input.u32(), input.u32(), input.u32(), input.u32()];
        let [eax, ebx, ecx, edx] = filter(leaf, u32::from(input.u8()), host, &guest);
        match leaf {
            0 => assert!((0x0b..=0x0d).contains(&eax)),
            1 => {
                assert_eq!(ecx & (1 << 3 | 1 << 5), 0, "MONITOR or VMX");
                assert_ne!(ecx & 1 << 31, 0, "no hypervisor");
                assert_eq!(ebx >> 24, guest.apic_id);
            }
            0x0a | 0x8000_000a | 0x8000_001f | 0x8000_0020 => {
                assert_eq!([eax, ebx, ecx, edx], [0; 4], "leaf {leaf:#x}")
            }
            0x8000_0001 => assert_eq!(ecx & 1 << 2, 0, "SVM"),
            0x8000_0000 => assert!(eax <= 0x8000_0021),
            0xc000_0000.. => assert_eq!([eax, ebx, ecx, edx], [0; 4]),
            _ => {}
        }
    }
}
