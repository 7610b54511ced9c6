//! Single instructions.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

const SLEEP_CONTROL: u16 = 0x600;
/// Sleep type 5 and sleep enable (ACPI 6.4, 4.8.3.7).
const SOFT_OFF: u8 = 5 << 2 | 1 << 5;

macro_rules! port {
    ($input:ident, $output:ident, $type:ty, $register:tt) => {
        /// Reads a port.
        #[inline(always)]
        pub fn $input(port: u16) -> $type {
            let value: $type;
            unsafe { asm!(concat!("in ", $register, ", dx"), in("dx") port, out($register) value, options(nostack)) };
            value
        }

        /// Writes a port.
        #[inline(always)]
        pub fn $output(port: u16, value: $type) {
            unsafe { asm!(concat!("out dx, ", $register), in("dx") port, in($register) value, options(nostack)) };
        }
    };
}

port!(inb, outb, u8, "al");
port!(inw, outw, u16, "ax");
port!(inl, outl, u32, "eax");

/// The time-stamp counter: under `-icount shift=0` the number of instructions since the machine's start.
#[inline(always)]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Waits until `done`, at most so many ticks of the time-stamp counter; whether it is.
pub fn wait_for(ticks: u64, mut done: impl FnMut() -> bool) -> bool {
    let end = rdtsc() + ticks;
    while !done() {
        if rdtsc() >= end {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Lets time pass.
pub fn pause(ticks: u64) {
    wait_for(ticks, || false);
}

/// Has the local APIC's timer interrupt when the time-stamp counter has come to `at`.
pub fn set_timer(at: u64) {
    const DEADLINE: u32 = 0x6e0;
    const LVT_TIMER: u32 = 0x832;
    const TSC_DEADLINE_MODE: u64 = 2 << 17;
    wrmsr(LVT_TIMER, TSC_DEADLINE_MODE | 0x40);
    wrmsr(DEADLINE, at);
}

/// Lets time pass, and others have the processor: under `icount`, sleep costs nothing. Interrupts are off afterwards.
pub fn sleep(ticks: u64) {
    x2apic();
    let end = rdtsc() + ticks;
    while rdtsc() < end {
        set_timer(end);
        wait();
        cli();
    }
}

/// Reads a model-specific register.
#[inline(always)]
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
#[inline(always)]
pub fn wrmsr(msr: u32, value: u64) {
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack))
    };
}

macro_rules! control {
    ($read:ident, $write:ident, $register:tt) => {
        control!($write, $register);
        /// Reads a control or debug register.
        #[inline(always)]
        pub fn $read() -> u64 {
            let value: u64;
            unsafe { asm!(concat!("mov {}, ", $register), out(reg) value, options(nostack)) };
            value
        }
    };
    ($write:ident, $register:tt) => {
        /// Writes a control or debug register.
        #[inline(always)]
        pub fn $write(value: u64) {
            unsafe { asm!(concat!("mov ", $register, ", {}"), in(reg) value, options(nostack)) };
        }
    };
}

control!(cr0, set_cr0, "cr0");
control!(cr3, set_cr3, "cr3");
control!(cr4, set_cr4, "cr4");
control!(cr8, set_cr8, "cr8");
control!(dr0, set_dr0, "dr0");
control!(dr6, set_dr6, "dr6");
control!(set_dr7, "dr7");

/// The address of the last page fault.
pub fn cr2() -> u64 {
    let value: u64;
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nostack)) };
    value
}

/// Forgets all translations.
pub fn flush() {
    set_cr3(cr3());
}

/// The flags.
pub fn rflags() -> u64 {
    let value: u64;
    unsafe { asm!("pushfq", "pop {}", out(reg) value) };
    value
}

/// Does nothing, for one instruction.
pub fn nop() {
    unsafe { asm!("nop", options(nostack)) };
}

/// Switches interrupts on.
pub fn sti() {
    unsafe { asm!("sti", options(nostack)) };
}

/// Switches interrupts off.
pub fn cli() {
    unsafe { asm!("cli", options(nostack)) };
}

/// Switches interrupts on and sleeps until one comes; none can come in between.
pub fn wait() {
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Sleeps until an interrupt.
pub fn halt() {
    unsafe { asm!("hlt", options(nostack)) };
}

static X2APIC: AtomicBool = AtomicBool::new(false);

/// Whether [`x2apic`] was called: the only mode in which interrupts are used.
pub fn in_x2apic_mode() -> bool {
    X2APIC.load(Ordering::Relaxed)
}

/// Switches to x2APIC mode, enabled, with spurious vector 0xff.
pub fn x2apic() {
    X2APIC.store(true, Ordering::Relaxed);
    wrmsr(0x1b, 0xfee0_0d00);
    wrmsr(0x80f, 0x1ff);
}

/// A hypercall with four arguments.
pub fn call(number: u64, [first, second, third, fourth]: [u64; 4]) -> i64 {
    let answer: i64;
    unsafe {
        asm!("xchg rbx, {first}", "vmmcall", "xchg rbx, {first}", first = inout(reg) first => _,
            inout("rax") number as i64 => answer, in("rcx") second, in("rdx") third, in("rsi") fourth);
    }
    answer
}

/// Powers the guest off.
pub fn power_off() -> ! {
    loop {
        outb(SLEEP_CONTROL, SOFT_OFF);
        cli();
        halt();
    }
}
