//! Exceptions and interrupts: counted, and survived where somebody expects them.
//!
//! [`attempt`] runs a function; an exception anywhere in it ends the function and becomes the result.
//! Handlers have a stack of their own, so that it may happen with the stack pointer anywhere.

use crate::console::println;
use crate::machine;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

global_asm!(
    // 256 stubs of 16 bytes. Vectors whose exception has no error code push a zero.
    ".balign 16",
    ".global trap_stubs",
    "trap_stubs:",
    ".set vector, 0",
    ".rept 256",
    ".balign 16",
    ".if vector != 8 && (vector < 10 || vector > 14) && vector != 17 && vector != 21 && vector != 29 && vector != 30",
    "push 0",
    ".endif",
    "push vector",
    "jmp trap_common",
    ".set vector, vector + 1",
    ".endr",
    "trap_common:",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "cld",
    "mov rdi, rsp",
    "mov rax, rsp",
    "and rsp, -16",
    "push rax",
    "push rax",
    "call trap_handle",
    "pop rsp",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "add rsp, 16",
    "iretq",
    // extern "C" fn(function: rdi, argument: rsi) -> 0, or what `trap_handle` put into RAX.
    ".global trap_attempt",
    "trap_attempt:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    // The attempt around this one, if there is one.
    "push qword ptr [trap_saved_rsp]",
    "mov [trap_saved_rsp], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "xor eax, eax",
    ".global trap_resume",
    "trap_resume:",
    "mov rsp, [trap_saved_rsp]",
    "pop qword ptr [trap_saved_rsp]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "cld",
    "ret",
    ".bss",
    ".balign 16",
    ".global trap_saved_rsp",
    "trap_saved_rsp: .skip 8",
    ".balign 16",
    ".skip 16384",
    ".global trap_stack_end",
    "trap_stack_end:",
    // Task state segment (APM vol 2, 12.2.5): only the first interrupt stack is used.
    ".balign 16",
    ".global trap_tss",
    "trap_tss: .skip 104",
    ".text",
);

unsafe extern "C" {
    static trap_stubs: u8;
    static trap_resume: u8;
    static trap_stack_end: u8;
    static mut trap_saved_rsp: u64;
    static mut trap_tss: [u32; 26];
    static mut bare_gdt: [u64; 5];
    fn trap_attempt(function: extern "C" fn(u64), argument: u64) -> u64;
}

/// What the stubs leave on the stack.
#[repr(C)]
struct Frame {
    saved: [u64; 9],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Gate of the interrupt descriptor table (APM vol 2, 4.8.4).
#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    low: u64,
    high: u64,
}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// What an exception that [`attempt`] survived found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Vector.
    pub vector: u64,
    /// Error code, 0 where it has none.
    pub error: u64,
    /// CR2.
    pub address: u64,
    /// RIP.
    pub rip: u64,
    /// RCX.
    pub rcx: u64,
    /// RSI.
    pub rsi: u64,
    /// RDI.
    pub rdi: u64,
}

static mut LAST: Fault = Fault { vector: 0, error: 0, address: 0, rip: 0, rcx: 0, rsi: 0, rdi: 0 };

/// The exception that [`attempt`] survived last.
pub fn last() -> Fault {
    unsafe { (&raw const LAST).read_volatile() }
}

static mut IDT: [Gate; 256] = [Gate { low: 0, high: 0 }; 256];

static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
static BY_HAND: AtomicBool = AtomicBool::new(false);

/// Fills and loads the interrupt descriptor table and the task register.
pub fn init() {
    let (tss, stack) = (&raw const trap_tss as u64, &raw const trap_stack_end as u64);
    unsafe {
        trap_tss[9] = stack as u32;
        trap_tss[25] = 104;
        bare_gdt[3] = 103 | (tss & 0xff_ffff) << 16 | 0x89 << 40 | (tss >> 24 & 0xff) << 56;
        bare_gdt[4] = tss >> 32;
        core::arch::asm!("ltr {:x}", in(reg) 24, options(nostack));
    }
    let stubs = &raw const trap_stubs as u64;
    for vector in 0..256 {
        let at = stubs + 16 * vector;
        let low = at & 0xffff | 8 << 16 | 1 << 32 | 0x8e << 40 | (at >> 16 & 0xffff) << 48;
        unsafe { IDT[vector as usize] = Gate { low, high: at >> 32 } };
    }
    load();
}

/// Loads the interrupt descriptor table (again).
pub fn load() {
    load_from(&raw const IDT as u64, 4095);
}

/// Loads any interrupt descriptor table.
pub fn load_from(base: u64, limit: u16) {
    let pointer = Pointer { limit, base };
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack)) };
}

/// DR6: the exception was a single step (APM vol 2, 13.1.1.3).
const SINGLE_STEP: u64 = 1 << 14;

/// Where single steps stopped.
#[derive(Clone, Copy)]
pub struct Trace {
    stops: [u64; 64],
    count: usize,
    other: u64,
}

impl Trace {
    /// The address of stop `number`; zero if there were not so many.
    pub fn at(&self, number: usize) -> u64 {
        self.stops.get(number).copied().unwrap_or(0)
    }

    /// Debug exceptions in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those that were not single steps.
    pub fn other(&self) -> u64 {
        self.other
    }
}

const NO_TRACE: Trace = Trace { stops: [0; 64], count: 0, other: 0 };
static mut TRACE: Trace = NO_TRACE;
static TRACING: AtomicBool = AtomicBool::new(false);
static mut ON_NMI: Option<fn(u64)> = None;

/// Runs `function`, taking note of where its single steps stop.
pub fn trace(function: impl FnOnce()) -> Trace {
    unsafe { TRACE = NO_TRACE };
    TRACING.store(true, Ordering::Relaxed);
    function();
    TRACING.store(false, Ordering::Relaxed);
    unsafe { TRACE }
}

/// Has each NMI call `handler` with the address at which it was taken.
pub fn on_nmi(handler: Option<fn(u64)>) {
    unsafe { ON_NMI = handler };
}

/// Interrupts so far.
pub fn interrupts() -> u64 {
    INTERRUPTS.load(Ordering::Relaxed)
}

/// Whether who waits for an interrupt writes the end-of-interrupt register, not the handler.
pub fn end_by_hand(by_hand: bool) {
    BY_HAND.store(by_hand, Ordering::Relaxed);
}

/// Runs `function`; an exception ends it. Returns the exception's vector. An attempt may be part of another.
///
/// Whatever the function held is not dropped then, so it should hold nothing.
pub fn attempt<F: FnMut()>(mut function: F) -> Option<u8> {
    extern "C" fn call<F: FnMut()>(argument: u64) {
        unsafe { (*(argument as *mut F))() }
    }
    let result = unsafe { trap_attempt(call::<F>, &raw mut function as u64) };
    result.checked_sub(1).map(|vector| vector as u8)
}

#[unsafe(no_mangle)]
extern "C" fn trap_handle(frame: &mut Frame) {
    match frame.vector {
        1 if TRACING.load(Ordering::Relaxed) => {
            let mut trace = unsafe { TRACE };
            if let Some(stop) = trace.stops.get_mut(trace.count) {
                *stop = frame.rip;
            }
            trace.count += 1;
            trace.other += u64::from(machine::dr6() & SINGLE_STEP == 0);
            unsafe { TRACE = trace };
            machine::set_dr6(0xffff_0ff0);
        }
        2 => {
            INTERRUPTS.fetch_add(1, Ordering::Relaxed);
            if let Some(handler) = unsafe { ON_NMI } {
                handler(frame.rip);
            }
        }
        0..32 if unsafe { trap_saved_rsp } != 0 => {
            let fault = Fault {
                vector: frame.vector,
                error: frame.error,
                address: machine::cr2(),
                rip: frame.rip,
                rcx: frame.saved[7],
                rsi: frame.saved[5],
                rdi: frame.saved[4],
            };
            unsafe { (&raw mut LAST).write_volatile(fault) };
            frame.rip = &raw const trap_resume as u64;
            frame.cs = 8;
            frame.ss = 16;
            frame.rsp = unsafe { trap_saved_rsp };
            frame.rflags = 2;
            frame.saved[8] = frame.vector + 1;
        }
        0..32 => {
            let at = (frame.rip, frame.error);
            println!("bare: exception {} at {:#x}, error code {:#x}", frame.vector, at.0, at.1);
            machine::cli();
            loop {
                machine::halt();
            }
        }
        _ => {
            INTERRUPTS.fetch_add(1, Ordering::Relaxed);
            if machine::in_x2apic_mode() && !BY_HAND.load(Ordering::Relaxed) {
                machine::wrmsr(0x80b, 0);
            }
        }
    }
}
