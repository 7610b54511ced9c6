//! The physical local APIC (AMD APM vol. 2, chapter 16), as xAPIC or, where an identifier needs it, x2APIC.

use super::vector;
use crate::mm::{self, Hpa};
use crate::x86::cpuid;
use crate::x86::msr::{self, rdmsr, wrmsr};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Registers, by xAPIC offset (APM vol. 2, table 16-2).
mod register {
    pub const ID: u32 = 0x20;
    pub const TASK_PRIORITY: u32 = 0x80;
    pub const EOI: u32 = 0xb0;
    pub const SPURIOUS: u32 = 0xf0;
    pub const IN_SERVICE: u32 = 0x100;
    pub const ERROR: u32 = 0x280;
    pub const COMMAND_LOW: u32 = 0x300;
    pub const COMMAND_HIGH: u32 = 0x310;
    pub const LVT_TIMER: u32 = 0x320;
    pub const LVT_THERMAL: u32 = 0x330;
    pub const LVT_PERFORMANCE: u32 = 0x340;
    pub const LVT_LINT0: u32 = 0x350;
    pub const LVT_LINT1: u32 = 0x360;
    pub const LVT_ERROR: u32 = 0x370;
    pub const TIMER_INITIAL: u32 = 0x380;
    pub const TIMER_CURRENT: u32 = 0x390;
    pub const TIMER_DIVIDE: u32 = 0x3e0;
}

const DEFAULT_BASE: u64 = 0xfee0_0000;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ENABLE: u64 = 1 << 11;
const LVT_MASKED: u32 = 1 << 16;
const LVT_NMI: u32 = 4 << 8;
const TIMER_DEADLINE_MODE: u32 = 2 << 17;
const DELIVERY_PENDING: u32 = 1 << 12;
const LEVEL_ASSERT: u32 = 1 << 14;
const MODE_NMI: u32 = 4 << 8;
const MODE_INIT: u32 = 5 << 8;
const MODE_STARTUP: u32 = 6 << 8;
const ALL_BUT_SELF: u32 = 3 << 18;

static X2APIC: AtomicBool = AtomicBool::new(false);
static REGISTERS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Whether this machine's local APICs are driven in x2APIC mode.
pub fn is_x2apic() -> bool {
    X2APIC.load(Ordering::Relaxed)
}

/// Decides on the mode; on the boot processor, once, before [`init`]. `wide` says that an identifier above 254 exists.
pub fn probe(wide: bool) {
    let has_x2apic = cpuid(1, 0).ecx & 1 << 21 != 0;
    let enabled = rdmsr(msr::APIC_BASE) & BASE_X2APIC != 0;
    X2APIC.store(has_x2apic && (wide || enabled), Ordering::Relaxed);
    REGISTERS.store(mm::map_mmio(Hpa::new(DEFAULT_BASE), mm::PAGE), Ordering::Release);
}

/// Enables this processor's local APIC: all local sources masked, every priority accepted, NMI on LINT1.
pub fn init() {
    let mut base = rdmsr(msr::APIC_BASE) & 0xfff | DEFAULT_BASE | BASE_ENABLE;
    if is_x2apic() {
        base |= BASE_X2APIC;
    }
    // SAFETY: keeps or sets the architectural base, at which the registers are mapped uncached.
    unsafe { wrmsr(msr::APIC_BASE, base) };
    for lvt in [register::LVT_TIMER, register::LVT_THERMAL, register::LVT_PERFORMANCE, register::LVT_ERROR] {
        write(lvt, LVT_MASKED | u32::from(vector::SPURIOUS));
    }
    write(register::LVT_LINT0, LVT_MASKED | u32::from(vector::SPURIOUS));
    write(register::LVT_LINT1, LVT_NMI);
    write(register::TASK_PRIORITY, 0);
    write(register::SPURIOUS, 1 << 8 | u32::from(vector::SPURIOUS));
    // Firmware may leave interrupts in service: give each its end.
    for _ in 0..256 {
        if (0..8).all(|i| read(register::IN_SERVICE + i * 0x10) == 0) {
            break;
        }
        eoi();
    }
    write(register::ERROR, 0);
}

/// Identifier of this processor's local APIC.
pub fn id() -> u32 {
    let id = read(register::ID);
    if is_x2apic() { id } else { id >> 24 }
}

/// Ends the interrupt in service with the highest priority.
#[inline]
pub fn eoi() {
    write(register::EOI, 0);
}

/// Whether this processor was given `vector` by its local APIC and has not ended it. No before [`probe`].
pub fn is_in_service(vector: u8) -> bool {
    let ready = is_x2apic() || !REGISTERS.load(Ordering::Acquire).is_null();
    ready && read(register::IN_SERVICE + u32::from(vector >> 5) * 0x10) & 1 << (vector & 31) != 0
}

/// Sends an interrupt to one processor.
pub fn send_ipi(apic_id: u32, vector: u8) {
    command(apic_id, LEVEL_ASSERT | u32::from(vector));
}

/// Sends an NMI to one processor.
pub fn send_nmi(apic_id: u32) {
    command(apic_id, LEVEL_ASSERT | MODE_NMI);
}

/// Sends an NMI to every processor but this.
pub fn send_nmi_to_others() {
    command(0, ALL_BUT_SELF | LEVEL_ASSERT | MODE_NMI);
}

/// Resets another processor into waiting for its start-up message.
pub fn send_init(apic_id: u32) {
    command(apic_id, LEVEL_ASSERT | MODE_INIT);
}

/// Starts a processor that waits, in real mode at physical `page * 4096`.
pub fn send_startup(apic_id: u32, page: u8) {
    command(apic_id, LEVEL_ASSERT | MODE_STARTUP | u32::from(page));
}

fn command(apic_id: u32, low: u32) {
    if is_x2apic() {
        // SAFETY: sends an interrupt; what the receiver does with it is not a matter of memory safety here. The
        // fence keeps earlier stores visible before the message (x2APIC writes are not serializing).
        unsafe {
            core::arch::asm!("mfence", options(nostack, preserves_flags));
            wrmsr(msr::X2APIC + register::COMMAND_LOW / 16, u64::from(apic_id) << 32 | u64::from(low));
        }
    } else {
        wait_delivered();
        write(register::COMMAND_HIGH, apic_id << 24);
        write(register::COMMAND_LOW, low);
        wait_delivered();
    }
}

fn wait_delivered() {
    for _ in 0..1_000_000 {
        if read(register::COMMAND_LOW) & DELIVERY_PENDING == 0 {
            return;
        }
        core::hint::spin_loop();
    }
}

/// Programs the timer's vector: deadline mode or one-shot.
pub(super) fn set_timer_mode(vector: u8, deadline: bool) {
    write(register::TIMER_DIVIDE, 0b1011);
    write(register::LVT_TIMER, u32::from(vector) | if deadline { TIMER_DEADLINE_MODE } else { 0 });
    // A write of the deadline must not pass the memory write that selects its mode.
    // SAFETY: a fence.
    unsafe { core::arch::asm!("mfence", options(nostack, preserves_flags)) };
}

/// Starts the one-shot timer; zero stops it.
#[inline]
pub(super) fn set_timer_count(count: u32) {
    write(register::TIMER_INITIAL, count);
}

/// What is left of the one-shot timer.
pub(super) fn timer_count() -> u32 {
    read(register::TIMER_CURRENT)
}

#[inline]
fn read(offset: u32) -> u32 {
    if is_x2apic() {
        rdmsr(msr::X2APIC + offset / 16) as u32
    } else {
        let address = REGISTERS.load(Ordering::Relaxed);
        // SAFETY: the page of registers is mapped (`probe`), and all offsets are within it and aligned.
        unsafe { address.add(offset as usize).cast::<u32>().read_volatile() }
    }
}

#[inline]
fn write(offset: u32, value: u32) {
    if is_x2apic() {
        // SAFETY: the local APIC only affects which interrupts arrive, and every vector has a gate.
        unsafe { wrmsr(msr::X2APIC + offset / 16, value.into()) };
    } else {
        let address = REGISTERS.load(Ordering::Relaxed);
        // SAFETY: as for `read`; effects as above.
        unsafe { address.add(offset as usize).cast::<u32>().write_volatile(value) };
    }
}
