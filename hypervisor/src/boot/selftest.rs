//! Tests that run instead of the hypervisor's work, chosen by `selftest=` in the command line: deliberate faults, which
//! must end the run with a report, and interrupts, which must arrive, or must do no harm.

use crate::cpu::{self, apic, idt, timer, vector};
use crate::domain::vcpu::Context;
use crate::exit::{self, Flow};
use crate::firmware::acpi;
use crate::irq::ioapic::{self, Trigger};
use crate::mm::{self, FrameUse, Hpa, Ledger};
use crate::sync::{Rank, SpinLock};
use crate::x86::{self, port, tsc};
use crate::{iommu, power};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use sluice_abi::{DomainId, DomainSet};
use sluice_iospace::{Contents, IssueError, Rights, Space};
use sluice_memory::{LARGE_PAGE, PAGE_SIZE};

/// Runs the test of that name; returns if it is empty, and switches the machine off if the test passed.
pub fn run(name: &str) {
    match name {
        "" => return,
        "fault" => fault(),
        "write-text" => write_text(),
        "stack" => {
            recurse(0);
        }
        "panic" => panic!("selftest"),
        "lock-order" => lock_order(),
        "off" => {}
        "interrupts" => interrupts(),
        "spurious" => spurious(),
        "xsetbv" => xsetbv(),
        "edu" => edu(),
        "frames" => frames(),
        "frames-in-use" => frames_in_use(),
        "iommu" => crate::iommu::selftest::run(),
        "iommu-cost" => iommu::cost::measure(),
        _ => panic!("unknown selftest {name}"),
    }
    log::info!("selftest {name} passed");
    power::off()
}

fn fault() {
    // SAFETY: none: the address is unmapped, and the fault that follows is what is being tested.
    unsafe { core::ptr::with_exposed_provenance::<u64>(0x10).read_volatile() };
}

fn write_text() {
    // SAFETY: none, as above: the page is read-only.
    unsafe { (run as *const () as *mut u8).write_volatile(0) };
}

#[inline(never)]
#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    let room = core::hint::black_box([depth; 64]);
    recurse(depth + 1) + room[(depth % 64) as usize]
}

/// Two locks in the wrong order: nobody holds the second, but with the feature `lock-order` it is a panic all the same.
fn lock_order() {
    let (outer, inner) = (SpinLock::new(Rank::Device, ()), SpinLock::new(Rank::Ports, ()));
    drop((outer.lock(), inner.lock()));
    let _inner = inner.lock();
    let _outer = outer.lock();
}

/// A map that nobody looks at, of the memory of the domain with this index.
fn map_of(index: u16) -> Space<iommu::DeviceView<()>, Ledger> {
    let serves = DomainSet::default().with(DomainId(2));
    Space::new(Ledger::Domain { id: DomainId(index), serves, shares: DomainSet::new() })
}

/// No map shows what is not its domain's, whatever it is told, and frames that are shown can be given back once nobody
/// reaches them any more.
fn frames() {
    const LOCAL_APIC: Hpa = Hpa::new(0xfee0_0000);
    let allocate = |used_as| mm::allocate(used_as, LARGE_PAGE, LARGE_PAGE).expect("memory");
    let (own, other) = (allocate(FrameUse::Guest(1)), allocate(FrameUse::Guest(2)));
    let (stranger, sink) = (allocate(FrameUse::Guest(3)), allocate(FrameUse::Sink(1)));
    let (mirror, heap) = (allocate(FrameUse::Mirror(1)), allocate(FrameUse::Hypervisor));
    let image = Hpa::new(mm::read_only_image().start);
    let mut map = map_of(1);
    let mut issue = |hpa, rights| {
        let issued = map.issue(1 << 30, hpa, PAGE_SIZE, rights);
        if issued.is_ok() {
            map.revoke(1 << 30, PAGE_SIZE).expect("a whole piece");
            map.settle(&(), |_, _| ());
        }
        issued
    };
    let [as_memory, as_registers, as_lent, as_lent_by_a_stranger, as_sink] = [
        Rights::MEMORY,
        Rights::DEVICE,
        Rights::window(Contents::Lent(2)),
        Rights::window(Contents::Lent(3)),
        Rights::window(Contents::Sink),
    ];
    for (hpa, as_what) in [
        (own, Some(as_memory)),
        (mirror, Some(as_registers)),
        (LOCAL_APIC, Some(as_registers)),
        (other, Some(as_lent)),
        (sink, Some(as_sink)),
        (stranger, None),
        (heap, None),
        (image, None),
    ] {
        for rights in [as_memory, as_registers, as_lent, as_lent_by_a_stranger, as_sink] {
            let right = as_what == Some(rights);
            let expected = if right { Ok(()) } else { Err(IssueError::Foreign) };
            assert!(issue(hpa, rights) == expected, "{hpa} for {rights:?}");
        }
    }
    // A device's memory is none of RAM, and is shown by its owner only, or to whom that one grants pages.
    for (of, hpa, expected) in [
        (1, LOCAL_APIC, Ok(())),
        (2, LOCAL_APIC, Err(IssueError::Foreign)),
        (1, own, Err(IssueError::Foreign)),
        (1, mirror, Err(IssueError::Foreign)),
        (2, other, Err(IssueError::Foreign)),
    ] {
        let rights = Rights { contents: Contents::DeviceMemory(of), ..Rights::DEVICE };
        assert!(issue(hpa, rights) == expected, "{hpa} for {rights:?}");
    }
    // The last page of one owner and the first of another.
    let end = Hpa::new(own.as_u64() + LARGE_PAGE - PAGE_SIZE);
    assert!(map.issue(0, end, 2 * PAGE_SIZE, Rights::MEMORY) == Err(IssueError::Foreign), "past its end");
    map.issue(0, own, LARGE_PAGE, Rights::MEMORY).expect("its own");
    map.issue(LARGE_PAGE, own, LARGE_PAGE, Rights::MEMORY).expect("in two places");
    map.revoke(0, 2 * LARGE_PAGE).expect("whole pieces");
    map.settle(&(), |_, _| ());
    mm::release(FrameUse::Guest(1), own, LARGE_PAGE);
    mm::release(FrameUse::Guest(2), other, LARGE_PAGE);
    mm::release(FrameUse::Guest(3), stranger, LARGE_PAGE);
    mm::release(FrameUse::Sink(1), sink, LARGE_PAGE);
    mm::release(FrameUse::Mirror(1), mirror, LARGE_PAGE);
    mm::release(FrameUse::Hypervisor, heap, LARGE_PAGE);
    mm::check_free();
}

/// Who gives frames back that a map still shows stops the machine.
fn frames_in_use() {
    let own = mm::allocate(FrameUse::Guest(1), LARGE_PAGE, LARGE_PAGE).expect("memory");
    map_of(1).issue(0, own, LARGE_PAGE, Rights::MEMORY).expect("its own");
    mm::release(FrameUse::Guest(1), own, LARGE_PAGE);
}

static TIMERS: AtomicU32 = AtomicU32::new(0);
static KICKS: AtomicU32 = AtomicU32::new(0);

/// The timer fires, not early by more than rounding and not after it is disarmed; every processor takes a kick.
fn interrupts() {
    idt::set_handler(vector::TIMER, |_| {
        TIMERS.fetch_add(1, Ordering::Relaxed);
        apic::eoi();
    });
    idt::set_handler(vector::KICK, |_| {
        KICKS.fetch_add(1, Ordering::Relaxed);
        apic::eoi();
    });
    for _ in 0..10 {
        let fired = TIMERS.load(Ordering::Relaxed);
        let deadline = tsc::now() + tsc::ticks_from_ns(5_000_000);
        timer::set_deadline(deadline);
        while TIMERS.load(Ordering::Relaxed) == fired {
            cpu::idle();
        }
        let now = tsc::now();
        assert!(
            now + tsc::ticks_from_ns(100_000) > deadline,
            "early by {} ns",
            tsc::ns_from_ticks(deadline - now)
        );
        log::info!("timer late by {} us", tsc::ns_from_ticks(now.saturating_sub(deadline)) / 1000);
    }
    loop {
        let fired = TIMERS.load(Ordering::Relaxed);
        let deadline = tsc::now() + tsc::ticks_from_ns(2_000_000);
        timer::set_deadline(deadline);
        timer::disarm();
        // A host that let this processor wait may have had it disarmed too late: that says nothing of the timer.
        let in_time = tsc::now() < deadline;
        tsc::delay_us(5000);
        cpu::with_interrupts_window();
        if in_time {
            assert!(TIMERS.load(Ordering::Relaxed) == fired, "a disarmed timer fired");
            break;
        }
    }
    for other in cpu::all() {
        let before = KICKS.load(Ordering::Relaxed);
        apic::send_ipi(other.apic_id, vector::KICK);
        while KICKS.load(Ordering::Relaxed) == before {
            cpu::with_interrupts_window();
        }
        log::info!("processor {} was kicked", other.index);
    }
}

/// Interrupts that nobody asked for, of every vector, exceptions' too, and NMIs, are survived and counted by each
/// processor, and block none that come after.
fn spurious() {
    for cpu in cpu::all() {
        let count = || (cpu.spurious.load(Ordering::Relaxed), cpu.nmis.load(Ordering::Relaxed));
        for vector in (16..=255u8).filter(|vector| !idt::has_handler(*vector)) {
            let (before, _) = count();
            apic::send_ipi(cpu.apic_id, vector);
            wait_for(|| count().0 == before + 1, vector.into());
        }
        let (before, nmis) = count();
        apic::send_nmi(cpu.apic_id);
        wait_for(|| count().1 == nmis + 1, 2);
        assert!(count().0 == before, "an NMI is no interrupt");
        log::info!("processor {}: {} spurious interrupts, {} NMIs", cpu.index, count().0, count().1);
    }
    // The vectors that are used still arrive: none of the others is left in service.
    interrupts();
}

/// What a guest's XSETBV may set is what the processor takes, for every value of the components that there are: one that it
/// refuses faults here and ends the test.
fn xsetbv() {
    let mut ctx = Context::new(0, false).expect("memory for a processor");
    let (start, mut taken) = (0x1000, 0);
    for (cpl, index) in [(0, 0), (0, 1), (3, 0)] {
        for value in 0..1024 {
            let before = x86::xgetbv(0);
            (ctx.vmcb.save.cpl, ctx.vmcb.save.rip, ctx.vmcb.save.rax) = (cpl, start, value);
            (ctx.regs[1], ctx.regs[2], ctx.inject) = (index, 0, 0);
            let flow = exit::set_extended_control(&mut ctx);
            if ctx.inject == 0 {
                assert!(
                    cpl == 0 && index == 0 && flow == Flow::Enter,
                    "{value:#x} is not for this guest to set"
                );
                assert!(
                    x86::xgetbv(0) == value && ctx.vmcb.save.rip == start + 3,
                    "{value:#x} has no effect"
                );
                taken += 1;
            } else {
                assert!(x86::xgetbv(0) == before && ctx.vmcb.save.rip == start, "{value:#x} has an effect");
            }
        }
    }
    let components = x86::cpuid(0xd, 0).eax;
    log::info!("components {components:#x}: XSETBV took {taken} values");
}

fn wait_for(arrived: impl Fn() -> bool, vector: u32) {
    for _ in 0..1_000_000 {
        if arrived() {
            return;
        }
        cpu::with_interrupts_window();
        core::hint::spin_loop();
    }
    panic!("vector {vector} is lost, or came twice");
}

const EDU: u32 = 0x11e8_1234;
const EDU_RAISE: usize = 0x60;
const EDU_ACKNOWLEDGE: usize = 0x64;
const FIRST_VECTOR: u8 = 0x50;

static EDU_REGISTERS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static GSIS: AtomicU32 = AtomicU32::new(0);

/// Each `edu` device of QEMU on the root bus raises its INTx pin, and exactly the GSI that `acpi::pci_gsi` foretells
/// arrives, once.
fn edu() {
    for gsi in 0..ioapic::inputs() {
        idt::set_handler(FIRST_VECTOR + gsi as u8, |vector| {
            GSIS.fetch_or(1 << (vector - FIRST_VECTOR), Ordering::Relaxed);
            let registers = EDU_REGISTERS.load(Ordering::Relaxed);
            // SAFETY: the device's registers, mapped below; acknowledging lowers its interrupt.
            unsafe { registers.add(EDU_ACKNOWLEDGE).cast::<u32>().write_volatile(1) };
            apic::eoi();
        });
        // The timer tick of the PIT (GSI 2) is not meant.
        if gsi > 2 {
            ioapic::route(gsi, FIRST_VECTOR + gsi as u8, apic::id(), Trigger::LevelHigh);
            ioapic::unmask(gsi);
        }
    }
    let mut found = 0;
    for device in (0..32u8).filter(|device| acpi::config_read(0, *device, 0, 0) == EDU) {
        found += 1;
        let bar = acpi::config_read(0, device, 0, 0x10) & !0xf;
        let pin = (acpi::config_read(0, device, 0, 0x3c) >> 8) as u8 - 1;
        // Memory space on; the address written by `config_read` is still selected for the data port.
        let command = acpi::config_read(0, device, 0, 4) as u16;
        port::outw(0xcfc, (command | 2) & !(1 << 10));
        let registers = mm::map_mmio(Hpa::new(bar.into()), 1 << 20);
        EDU_REGISTERS.store(registers, Ordering::Relaxed);
        GSIS.store(0, Ordering::Relaxed);
        // SAFETY: the device's registers, mapped above; raises its interrupt.
        unsafe { registers.add(EDU_RAISE).cast::<u32>().write_volatile(1) };
        for _ in 0..1000 {
            cpu::with_interrupts_window();
            tsc::delay_us(1);
        }
        let expected = acpi::pci_gsi(0, device, pin).expect("a known chipset");
        // The ICH9 raises the ISA interrupt of the pin's PIC route as well: masked in real use.
        let isa = if expected < 16 { 0 } else { 0xffff };
        let seen = GSIS.load(Ordering::Relaxed) & !isa;
        assert!(seen == 1 << expected, "device {device}: expected GSI {expected}, seen {seen:#x}");
        log::info!("device {device} pin {pin}: GSI {expected}");
    }
    assert!(found > 0, "no edu device");
}
