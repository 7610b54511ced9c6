//! What an exit costs: averages over 1,000, from guest to guest, in ticks of the time-stamp counter.
//!
//! Under `-icount shift=0` a tick is an instruction, the guest's own included: the loop around each
//! exit has three or four.

use crate::console::println;
use crate::machine::{self, rdtsc};
use crate::trap;
use core::arch::asm;

const ROUNDS: u64 = 1000;

/// Ticks of one round of a loop around an instruction, which may change RBX (the compiler's own).
macro_rules! average {
    ($($code:expr),+ $(; $($operands:tt)*)?) => {{
        let mut ticks = u64::MAX;
        // The first time fills caches and moves lazy state; and an interrupt of the host's may fall into any of them.
        for rounds in [100, ROUNDS, ROUNDS, ROUNDS] {
            let before = rdtsc();
            unsafe {
                asm!("mov r12, rbx", "2:", $($code,)+ "dec r13", "jnz 2b", "mov rbx, r12",
                    inout("r13") rounds => _,
                    out("r12") _,
                    $($($operands)*)?)
            };
            ticks = ticks.min((rdtsc() - before) / rounds);
        }
        ticks
    }};
}

macro_rules! cpuid {
    ($leaf:literal) => {
        average!(concat!("mov eax, ", $leaf), "cpuid";
            out("eax") _, inout("ecx") 0 => _, out("edx") _)
    };
}

/// Prints a result, and waits until the hypervisor has passed it on, which else would be done within an exit that is measured.
macro_rules! tell {
    ($($what:tt)*) => {{
        println!("SLUICE-RESULT {}", format_args!($($what)*));
        machine::wait_for(5_000_000, || false);
    }};
}

/// Ticks of the end of an interrupt of the serial port's, whose line is low again then; those of the two reads of the counter are among them.
fn end_of_interrupt(level: bool) -> u64 {
    const VECTOR: u32 = 0x41;
    /// The serial port's pin of the I/O APIC, its interrupt enable register, and the bit for an empty transmitter.
    const PIN: u32 = 4;
    const ENABLE: u16 = 0x3f9;
    const EMPTY: u8 = 2;
    /// Its modem control register, with the bit that connects the line.
    const CONTROL: u16 = 0x3fc;
    const CONNECTED: u8 = 0xb;
    let trigger = if level { 1 << 15 } else { 0 };
    for (register, value) in [(0x11 + 2 * PIN, 0), (0x10 + 2 * PIN, VECTOR | trigger)] {
        unsafe {
            (0xfec0_0000 as *mut u32).write_volatile(register);
            (0xfec0_0010 as *mut u32).write_volatile(value);
        }
    }
    machine::outb(CONTROL, CONNECTED);
    trap::end_by_hand(true);
    let mut ticks = 0;
    for _ in 0..ROUNDS {
        let taken = trap::interrupts();
        machine::outb(ENABLE, EMPTY);
        machine::sti();
        while trap::interrupts() == taken {
            core::hint::spin_loop();
        }
        machine::cli();
        machine::outb(ENABLE, 0);
        let before = rdtsc();
        machine::wrmsr(0x80b, 0);
        ticks += rdtsc() - before;
    }
    trap::end_by_hand(false);
    ticks / ROUNDS
}

/// Ticks from the end of a time with interrupts off, during which one came and there was an exit that is for nothing of that, until the interrupt is
/// taken; up to a million.
fn after_masked() -> u64 {
    let taken = trap::interrupts();
    let due = rdtsc() + 20_000;
    machine::set_timer(due);
    while rdtsc() < due + 20_000 {
        core::hint::spin_loop();
    }
    cpuid!("0x40000000");
    let masked_until = rdtsc();
    machine::sti();
    machine::wait_for(1_000_000, || trap::interrupts() != taken);
    machine::cli();
    rdtsc() - masked_until
}

/// Measures and prints.
pub fn run() {
    machine::x2apic();
    let empty = average!("nop");
    tell!("null.loop={empty}");
    tell!("null.cpuid={} null.cpuid_features={}", cpuid!("0x40000000"), cpuid!("1"));
    let status = average!("out dx, al"; in("dx") 0x601u16, in("al") 0u8);
    let address = average!("out dx, eax"; in("dx") 0xcf8u16, in("eax") 0x8000_0000u32);
    let refused = average!("out dx, al"; in("dx") 0x80u16, in("al") 0u8);
    tell!("null.port_write={status} null.port_write_pci={address} null.port_write_refused={refused}");
    let mask = average!("out dx, al"; in("dx") 0x21u16, in("al") 0xffu8);
    tell!("null.port_write_kernel={mask}");
    let read = average!("in al, dx"; in("dx") 0x3fdu16, out("al") _);
    tell!("null.port_read_uart={read}");
    let call = average!("mov eax, 100", "vmmcall"; out("rax") _);
    tell!("null.vmmcall={call}");
    let read = average!("rdmsr"; in("ecx") 0x808u32, out("eax") _, out("edx") _);
    let write = average!("wrmsr"; in("ecx") 0x808u32, in("eax") 0u32, in("edx") 0u32);
    let deadline = average!("wrmsr"; in("ecx") 0x6e0u32, in("eax") u32::MAX, in("edx") u32::MAX >> 1);
    machine::wrmsr(0x6e0, 0);
    tell!("null.msr_read={read} null.msr_write={write} null.tsc_deadline={deadline}");
    machine::sti();
    let own = average!("wrmsr"; in("ecx") 0x83fu32, in("eax") 0x40u32, in("edx") 0u32);
    machine::cli();
    tell!("null.self_ipi={own}");
    let before = rdtsc();
    unsafe { asm!("mov eax, [{at}]", at = in(reg) 0xfec0_0010u64, out("eax") _) };
    let first = rdtsc() - before;
    let mmio = average!("mov eax, [{at}]"; at = in(reg) 0xfec0_0010u64, out("eax") _);
    // An instruction that is no plain move.
    let decoded = average!("mov dword ptr [{at}], 1"; at = in(reg) 0xfec0_0000u64);
    tell!("null.mmio_read={mmio} null.mmio_first={first} null.mmio_decoded={decoded}");
    let (edge, level) = (end_of_interrupt(false), end_of_interrupt(true));
    tell!("null.eoi_edge={edge} null.eoi_level={level}");
    tell!("null.after_masked={}", after_masked());
    tell!("done=ok");
}
