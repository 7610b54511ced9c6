//! What a unit lets a device do, tried with QEMU's `edu` device, whose DMA engine copies between memory and a buffer of its
//! own, and which raises interrupts when it is told to (QEMU, docs/specs/edu).

use super::{Cause, Unit, endpoint_of, units};
use crate::cpu::{self, apic, idt};
use crate::mm::{self, Direct, FrameUse, TableFrames};
use crate::pci::{self, Function};
use crate::x86::tsc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_iommu::{Fault, FaultKind, Interrupt, Invalidation, PageFormat, RequesterId, SpaceTag, Trigger};
use sluice_memory::{Access, Format, Hpa, Iova, PAGE_SIZE, PhysicalMemory, Tables};

const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x11e8;
const RAISE: u64 = 0x60;
const ACKNOWLEDGE: u64 = 0x64;
const DMA_FROM: u64 = 0x80;
const DMA_TO: u64 = 0x88;
const DMA_BYTES: u64 = 0x90;
const DMA_COMMAND: u64 = 0x98;
/// The device's own buffer, as its engine sees it.
const BUFFER: u64 = 0x4_0000;

const TAG: SpaceTag = SpaceTag(0x1234);
const VECTOR: u8 = 0x50;
const OTHER_VECTOR: u8 = 0x51;
const FAULT_VECTOR: u8 = 0x52;

static RAISED: AtomicU32 = AtomicU32::new(0);

struct Edu {
    function: Function,
    registers: *mut u8,
}

impl Edu {
    fn all() -> impl Iterator<Item = Self> {
        pci::functions().filter(|function| (function.vendor, function.device) == (VENDOR, DEVICE)).map(
            |function| {
                let bar = function.bar(0).expect("edu has registers");
                let registers = mm::map_mmio(Hpa::new(bar.address), bar.size);
                function.bdf.set_command(pci::COMMAND_MEMORY | pci::COMMAND_MASTER | pci::COMMAND_NO_INTX, 0);
                Self { function, registers }
            },
        )
    }

    fn requester(&self) -> RequesterId {
        let bdf = self.function.bdf;
        RequesterId::new(bdf.bus, bdf.device, bdf.function)
    }

    fn write(&self, register: u64, value: u64) {
        let at = self.registers.wrapping_add(register as usize);
        // SAFETY: the device's registers, mapped; where it may write is what this test is about.
        unsafe {
            match register {
                RAISE | ACKNOWLEDGE => at.cast::<u32>().write_volatile(value as u32),
                _ => at.cast::<u64>().write_volatile(value),
            }
        }
    }

    fn copy(&self, from: u64, to: u64, bytes: u64, command: u64) {
        self.write(DMA_FROM, from);
        self.write(DMA_TO, to);
        self.write(DMA_BYTES, bytes);
        self.write(DMA_COMMAND, command);
        let at = self.registers.wrapping_add(DMA_COMMAND as usize).cast::<u64>();
        // SAFETY: as above.
        while unsafe { at.read_volatile() } & 1 != 0 {
            cpu::with_interrupts_window();
        }
    }

    /// Has it read memory and write it elsewhere.
    fn carry(&self, from: u64, to: u64) {
        self.copy(from, BUFFER, 8, 1);
        self.copy(BUFFER, to, 8, 3);
    }

    /// Has it interrupt by that message.
    fn set_message(&self, (address, data): (u32, u32)) {
        let (bdf, msi) = (self.function.bdf, self.function.msi.expect("edu has messages"));
        bdf.write(msi.offset + 4, address);
        bdf.write(msi.offset + 8, 0);
        bdf.change16(msi.offset + if msi.wide { 12 } else { 8 }, false, data as u16, !0);
        bdf.change16(msi.offset, true, 1, 0);
    }

    fn clear_message(&self) {
        let msi = self.function.msi.expect("edu has messages");
        self.function.bdf.change16(msi.offset, true, 0, 1);
    }

    /// The vectors that arrive when it raises its interrupt.
    fn raise(&self) -> u32 {
        RAISED.store(0, Ordering::SeqCst);
        self.write(RAISE, 1);
        settle();
        self.write(ACKNOWLEDGE, !0);
        RAISED.load(Ordering::SeqCst)
    }
}

/// Gives interrupts the time to arrive.
fn settle() {
    for _ in 0..1000 {
        cpu::with_interrupts_window();
        tsc::delay_us(1);
    }
}

/// Runs it with every such device, on the unit that serves it.
///
/// # Panics
/// If a device reaches what it must not, or does not reach what it must.
pub fn run() {
    for vector in [VECTOR, OTHER_VECTOR, FAULT_VECTOR] {
        idt::set_handler(vector, |vector| {
            RAISED.fetch_or(1 << (vector - VECTOR), Ordering::SeqCst);
            apic::eoi();
        });
    }
    let mut found = None;
    for edu in Edu::all() {
        let mut serving =
            units().iter().map(|counted| counted.unit()).filter(|unit| unit.serves(edu.requester()));
        let unit = serving.next().expect("a unit that serves it");
        if memory(&edu) > 0 {
            faults(unit, &edu);
        }
        interrupts(unit, &edu);
        log::info!("{} behind {} at {} is confined", edu.requester(), unit.kind(), unit.base());
        if let (Some(first), Some(second)) = (found.replace(edu), &found) {
            strangers(unit, &first, second);
        }
    }
    assert!(found.is_some(), "no edu device");
}

/// What a device reaches, by the calls that domains use. Returns how many faults the unit reported.
fn memory(edu: &Edu) -> u32 {
    let endpoint = endpoint_of(edu.function.bdf).expect("a unit that serves it");
    let (counted, unit) = (endpoint.counted(), endpoint.counted().unit());
    let who = unit.alias(edu.requester());
    let mut frames = TableFrames { write_back: unit.reads_memory_only() };
    let mut tables = Tables::with_format(unit.format(), &mut frames).expect("memory");
    // A read-only and a writable page at 2 MiB, and a page that is nowhere.
    let pages = [(); 3].map(|()| frames.allocate(PAGE_SIZE).expect("memory"));
    let [source, target, secret] = pages;
    let (readable, writable) = (Iova::new(2 << 20), Iova::new((2 << 20) + PAGE_SIZE));
    let set = |page: Hpa, value: u64| Direct.write_u64(page, value);
    let forget = |at: Iova| {
        counted.invalidate(&[Invalidation::Pages { space: TAG, at, order: 0 }], Cause::Revoke);
    };
    let show =
        |at: Iova, page: Hpa, access: Access, tables: &mut Tables<PageFormat>, frames: &mut TableFrames| {
            tables.map(frames, at, page, PAGE_SIZE, access).expect("memory");
            forget(at);
        };
    // What the target holds after the device has carried a word from one address to another.
    let carried = |from: u64, to: u64| {
        set(source, 0x1111);
        set(target, 0x2222);
        set(secret, 0x3333);
        edu.carry(from, to);
        [source, target, secret].map(|page| Direct.read_u64(page))
    };
    let untouched = [0x1111, 0x2222, 0x3333];
    let done = [0x1111, 0x1111, 0x3333];
    let (from, to) = (readable.as_u64(), writable.as_u64());

    assert_eq!(carried(source.as_u64(), target.as_u64()), untouched, "blocked at first");
    show(readable, source, Access::READ, &mut tables, &mut frames);
    show(writable, target, Access::READ | Access::WRITE, &mut tables, &mut frames);
    endpoint.attach(TAG, tables.root());
    assert_eq!(carried(from, to), done, "attached");
    assert_eq!(carried(from, from), untouched, "read-only");
    assert_eq!(carried(from, secret.as_u64()), untouched, "a physical address");
    assert_eq!(carried(secret.as_u64(), to)[2], 0x3333, "a physical address");
    assert_ne!(carried(secret.as_u64(), to)[1], 0x3333, "what is at a physical address");
    // With six levels these bits would be an address of their own; with fewer they must be 0.
    for high in [1 << 39, 1 << 48, 1 << 57, 1 << 63] {
        if high >> (12 + 9 * unit.format().levels().min(5)) == 0 || high >= 1 << 48 {
            assert_eq!(carried(from, high | to), untouched, "above the tables: {high:#x}");
        }
    }

    // A device that has just used a page loses it.
    assert_eq!(carried(from, to), done);
    tables.map(&mut frames, writable, target, PAGE_SIZE, Access::READ).expect("memory");
    forget(writable);
    assert_eq!(carried(from, to), untouched, "made read-only");
    show(writable, target, Access::READ | Access::WRITE, &mut tables, &mut frames);
    assert_eq!(carried(from, to), done, "and back");
    tables.unmap(&mut frames, writable, PAGE_SIZE).expect("memory");
    forget(writable);
    assert_eq!(carried(from, to), untouched, "unmapped");
    show(writable, secret, Access::READ | Access::WRITE, &mut tables, &mut frames);
    assert_eq!(carried(from, to), [0x1111, 0x2222, 0x1111], "put elsewhere");
    endpoint.block();
    assert_eq!(carried(from, to), untouched, "detached");
    unit.invalidate(&[Invalidation::Space(TAG)]);
    unit.invalidate(&[Invalidation::Everything]);
    let mut faults = 0;
    unit.take_faults(&mut |fault| {
        assert_eq!(fault.requester, who, "{fault:x?}");
        faults += 1;
    });
    log::info!("{who}: faults reported: {faults}");
    tables.release(&mut frames);
    pages.into_iter().for_each(|page| mm::release(FrameUse::Table, page, PAGE_SIZE));
    faults
}

fn taken(unit: &dyn Unit) -> Vec<Fault> {
    let mut faults = Vec::new();
    unit.take_faults(&mut |fault| faults.push(fault));
    faults
}

/// Each fault is reported once, as what it was, and interrupts.
fn faults(unit: &dyn Unit, edu: &Edu) {
    let who = unit.alias(edu.requester());
    let mut frames = TableFrames { write_back: unit.reads_memory_only() };
    let mut tables = Tables::with_format(unit.format(), &mut frames).expect("memory");
    let page = frames.allocate(PAGE_SIZE).expect("memory");
    let at = 0x5000;
    tables.map(&mut frames, Iova::new(at), page, PAGE_SIZE, Access::READ).expect("memory");
    unit.invalidate(&[Invalidation::Space(TAG)]);
    unit.set_fault_interrupt(Interrupt { apic_id: apic::id(), vector: FAULT_VECTOR, trigger: Trigger::Edge });
    settle();
    let after = |from: u64, to: u64, command: u64| {
        RAISED.store(0, Ordering::SeqCst);
        edu.copy(from, to, 8, command);
        settle();
        let interrupted = RAISED.load(Ordering::SeqCst) != 0;
        let mut faults = taken(unit).into_iter();
        let fault = faults.next();
        assert!(faults.next().is_none() && interrupted == fault.is_some(), "{fault:x?}");
        fault.map(|fault| (fault.requester, fault.address, fault.write, fault.kind))
    };
    let read = |at: u64| after(at + 8, BUFFER, 1);
    let write = |at: u64| after(BUFFER, at + 8, 3);
    assert_eq!(read(at), Some((who, at, false, FaultKind::Blocked)));
    unit.attach(who, Some((TAG, tables.root())));
    // Written to first: QEMU reports no write to what it has cached as read-only.
    assert_eq!(write(at), Some((who, at, true, FaultKind::Page)));
    assert_eq!(read(at), None);
    assert_eq!(read(at + PAGE_SIZE), Some((who, at + PAGE_SIZE, false, FaultKind::Page)));
    assert_eq!(write(1 << 51), Some((who, 1 << 51, true, FaultKind::Page)));
    unit.attach(who, None);
    assert_eq!(write(at), Some((who, at, true, FaultKind::Blocked)));
    unit.invalidate(&[Invalidation::Space(TAG)]);
    tables.release(&mut frames);
    mm::release(FrameUse::Table, page, PAGE_SIZE);
}

/// Two devices behind one unit: neither has the other's interrupts, and faults of both at once are of both, or some are
/// said to be lost.
fn strangers(unit: &dyn Unit, first: &Edu, second: &Edu) {
    for edu in [first, second] {
        edu.copy(0x7000, BUFFER, 8, 1);
    }
    let faults = taken(unit);
    let of = |edu: &Edu| faults.iter().filter(|fault| fault.requester == unit.alias(edu.requester())).count();
    if !faults.is_empty() {
        assert_eq!((of(first), faults.len()), (1, 2), "{faults:x?}");
        assert!(of(second) == 1 || faults[1].kind == FaultKind::Other, "{faults:x?}");
    }
    if unit.remaps_interrupts() {
        let interrupt = Interrupt { apic_id: apic::id(), vector: VECTOR, trigger: Trigger::Edge };
        unit.allow_interrupt(unit.alias(first.requester()), interrupt);
        for (edu, raised) in [(first, 1), (second, 0)] {
            edu.set_message(unit.message(interrupt));
            assert_eq!(edu.raise(), raised, "{}", edu.requester());
            edu.clear_message();
        }
        unit.forbid_interrupt(unit.alias(second.requester()), VECTOR);
        first.set_message(unit.message(interrupt));
        assert_eq!(first.raise(), 1, "not another's to forbid");
        first.clear_message();
        unit.forbid_interrupt(unit.alias(first.requester()), VECTOR);
    }
    log::info!("{} and {} keep apart", first.requester(), second.requester());
}

fn interrupts(unit: &dyn Unit, edu: &Edu) {
    let who = unit.alias(edu.requester());
    let set = |message| edu.set_message(message);
    let apic_id = apic::id();
    let interrupt = |vector| Interrupt { apic_id, vector, trigger: Trigger::Edge };
    let direct = |vector: u8| (0xfee0_0000 | apic_id << 12, u32::from(vector));
    if !unit.remaps_interrupts() {
        set(direct(VECTOR));
        assert_eq!(edu.raise(), 1, "interrupts are not checked");
        edu.clear_message();
        return;
    }
    set(unit.message(interrupt(VECTOR)));
    assert_eq!(edu.raise(), 0, "nothing is allowed");
    set(direct(VECTOR));
    if edu.raise() != 0 {
        // QEMU's VT-d has no gate for them.
        log::warn!("{who}: messages in the old format pass unchecked");
    }
    unit.allow_interrupt(who, interrupt(VECTOR));
    set(unit.message(interrupt(VECTOR)));
    assert_eq!(edu.raise(), 1, "allowed");
    set(unit.message(interrupt(OTHER_VECTOR)));
    assert_eq!(edu.raise(), 0, "another vector");
    unit.allow_interrupt(who, interrupt(OTHER_VECTOR));
    assert_eq!(edu.raise(), 2, "allowed, too");
    unit.forbid_interrupt(who, OTHER_VECTOR);
    assert_eq!(edu.raise(), 0, "and forbidden");
    set(unit.message(interrupt(VECTOR)));
    assert_eq!(edu.raise(), 1, "the first still is");
    unit.forbid_interrupt(who, VECTOR);
    assert_eq!(edu.raise(), 0, "not any more");
    edu.clear_message();
}
