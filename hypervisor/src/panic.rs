//! Panics and exceptions of the hypervisor: say what happened, stop every processor, end with a failure.

use crate::cpu::{self, idt::Frame};
use crate::{log, mm, power, x86};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

/// Index of the processor that is ending the run, or [`NOBODY`].
static OWNER: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    enter();
    log::emergency(format_args!("\npanic on cpu{}: {info}\n", index()));
    backtrace(frame_pointer(), None);
    power::fail(power::code::PANIC)
}

/// Reports an exception and ends the run.
pub fn exception(frame: &Frame) -> ! {
    enter();
    let name = NAMES.get(frame.vector as usize).copied().unwrap_or("reserved");
    log::emergency(format_args!(
        "\npanic on cpu{}: exception {} ({name}), error {:#x}\n\
         rip {:016x}  cs {:04x}  rflags {:08x}  rsp {:016x}  ss {:04x}\n\
         rax {:016x}  rbx {:016x}  rcx {:016x}  rdx {:016x}\n\
         rsi {:016x}  rdi {:016x}  rbp {:016x}  r8  {:016x}\n\
         r9  {:016x}  r10 {:016x}  r11 {:016x}  r12 {:016x}\n\
         r13 {:016x}  r14 {:016x}  r15 {:016x}\n\
         cr0 {:016x}  cr2 {:016x}  cr3 {:016x}  cr4 {:016x}\n",
        index(),
        frame.vector,
        frame.error,
        frame.rip,
        frame.cs,
        frame.rflags,
        frame.rsp,
        frame.ss,
        frame.rax,
        frame.rbx,
        frame.rcx,
        frame.rdx,
        frame.rsi,
        frame.rdi,
        frame.rbp,
        frame.r8,
        frame.r9,
        frame.r10,
        frame.r11,
        frame.r12,
        frame.r13,
        frame.r14,
        frame.r15,
        x86::read_cr0(),
        x86::read_cr2(),
        x86::read_cr3(),
        x86::read_cr4(),
    ));
    if mm::is_stack_guard(x86::read_cr2()) {
        log::emergency(format_args!("the address in cr2 is a stack guard: the stack overflowed\n"));
    }
    backtrace(frame.rbp, Some(frame.rip));
    power::fail(power::code::PANIC)
}

/// Stops the other processors. A processor that panics while another does only halts, and a panic within a panic
/// ends at once.
fn enter() {
    match OWNER.compare_exchange(NOBODY, index(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => cpu::halt_others(),
        Err(owner) if owner == index() => power::fail(power::code::PANIC),
        Err(_) => cpu::halt(),
    }
}

fn index() -> u32 {
    cpu::try_this().map_or(0, |cpu| cpu.index)
}

fn frame_pointer() -> u64 {
    let rbp;
    // SAFETY: reading a register has no effect.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    rbp
}

/// Prints return addresses by following saved frame pointers, as far as they lie on a stack. Resolve them with
/// `llvm-symbolizer` or `addr2line -e sluice-hypervisor -f`.
fn backtrace(mut rbp: u64, rip: Option<u64>) {
    log::emergency(format_args!("backtrace:"));
    if let Some(rip) = rip {
        log::emergency(format_args!(" {rip:x}"));
    }
    for _ in 0..32 {
        if !rbp.is_multiple_of(8) || !mm::is_stack(rbp) || !mm::is_stack(rbp + 8) {
            break;
        }
        // SAFETY: both words lie on a mapped stack.
        let (next, address) = unsafe { (*(rbp as *const u64), *(rbp as *const u64).add(1)) };
        if !mm::is_text(address) {
            break;
        }
        log::emergency(format_args!(" {address:x}"));
        if next <= rbp {
            break;
        }
        rbp = next;
    }
    log::emergency(format_args!("\n"));
}

const NAMES: [&str; 32] = [
    "divide error",
    "debug",
    "nmi",
    "breakpoint",
    "overflow",
    "bound range",
    "invalid opcode",
    "device not available",
    "double fault",
    "reserved",
    "invalid tss",
    "segment not present",
    "stack",
    "general protection",
    "page fault",
    "reserved",
    "x87",
    "alignment check",
    "machine check",
    "simd",
    "reserved",
    "control protection",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "hypervisor injection",
    "vmm communication",
    "security",
    "reserved",
];
