//! Hypercalls, and attempts that may end in a fault.
//!
//! Source: Xen's public headers, xen.h and elfnote.h.

use core::arch::{asm, global_asm};

/// Numbers of hypercalls.
pub mod call {
    pub const SET_TRAP_TABLE: u64 = 0;
    pub const MMU_UPDATE: u64 = 1;
    pub const SET_GDT: u64 = 2;
    pub const UPDATE_DESCRIPTOR: u64 = 10;
    pub const MEMORY_OP: u64 = 12;
    pub const MULTICALL: u64 = 13;
    pub const UPDATE_VA_MAPPING: u64 = 14;
    pub const XEN_VERSION: u64 = 17;
    pub const CONSOLE_IO: u64 = 18;
    pub const VCPU_OP: u64 = 24;
    pub const SET_SEGMENT_BASE: u64 = 25;
    pub const MMUEXT_OP: u64 = 26;
    pub const SCHED_OP: u64 = 29;
    pub const CALLBACK_OP: u64 = 30;
    pub const EVENT_CHANNEL_OP: u64 = 32;
    pub use sluice_hypercall::paravirtual::SEMI_WRITABLE;
}

/// DOMID_SELF.
pub const SELF: u64 = 0x7ff0;

global_asm!(
    // XEN_ELFNOTE_ENTRY, VIRT_BASE, INIT_P2M, MOD_START_PFN.
    ".pushsection .note.xen, \"a\", @note",
    ".balign 4",
    ".long 4, 8, 1",
    ".asciz \"Xen\"",
    ".quad bare_entry",
    ".long 4, 8, 3",
    ".asciz \"Xen\"",
    ".quad 0xffffffff80000000",
    ".long 4, 8, 15",
    ".asciz \"Xen\"",
    ".quad 0x8000000000",
    ".long 4, 8, 16",
    ".asciz \"Xen\"",
    ".quad 1",
    ".popsection",
    ".global bare_entry",
    "bare_entry:",
    "cld",
    "lea rsp, [rip + bare_stack_end]",
    "xor ebp, ebp",
    "mov rdi, rsi",
    "call bare_main",
    "ud2",
    // An exception ends the attempt that made it.
    "bare_fault:",
    "xor ecx, ecx",
    "xchg rcx, [rip + bare_recover_at]",
    "test rcx, rcx",
    "jz 3f",
    "mov rsp, [rip + bare_recover_sp]",
    "jmp rcx",
    // One that no attempt made is its own fault: SCHEDOP_shutdown, as a crash.
    "3:",
    "lea rsi, [rip + bare_crash]",
    "mov edi, 2",
    "mov eax, 29",
    "syscall",
    "ud2",
    ".pushsection .data",
    ".balign 8",
    ".global bare_recover_sp",
    "bare_recover_sp: .quad 0",
    ".global bare_recover_at",
    "bare_recover_at: .quad 0",
    "bare_crash: .quad 3",
    ".popsection",
    ".pushsection .bss",
    ".balign 4096",
    ".skip 65536",
    ".global bare_stack_end",
    "bare_stack_end:",
    ".popsection",
);

unsafe extern "C" {
    fn bare_fault();
}

/// Makes a hypercall.
pub fn hypercall(number: u64, [first, second, third, fourth]: [u64; 4]) -> i64 {
    let answer;
    unsafe {
        asm!("syscall", inout("rax") number => answer, inout("rdi") first => _, inout("rsi") second => _,
            in("rdx") third, in("r10") fourth, in("r8") 0u64, out("rcx") _, out("r11") _);
    }
    answer
}

/// Has exceptions end the attempts that make them. The kernel goes on with events masked.
pub fn take_faults() {
    let entry = |vector: u64| [vector | 4 << 8, bare_fault as *const () as u64];
    let table: [[u64; 2]; 8] =
        [entry(0), entry(6), entry(10), entry(11), entry(12), entry(13), entry(14), [0, 0]];
    let answer = hypercall(call::SET_TRAP_TABLE, [table.as_ptr() as u64, 0, 0, 0]);
    assert!(answer == 0, "no table of traps: {answer}");
}

/// Executes instructions of which the last sets `done`; false if one of them makes an exception.
macro_rules! survives {
    ($($code:literal),+ $(; $($operands:tt)*)?) => {{
        let done: u64;
        unsafe {
            core::arch::asm!(
                "push rbx", "push rbp",
                "lea rcx, [rip + 77f]",
                "mov [rip + bare_recover_at], rcx",
                "mov [rip + bare_recover_sp], rsp",
                "xor r15d, r15d",
                $($code,)+
                "mov r15d, 1",
                "77:",
                "mov qword ptr [rip + bare_recover_at], 0",
                "pop rbp", "pop rbx",
                out("r15") done, out("rcx") _, out("r11") _, $($($operands)*)?
            );
        }
        done == 1
    }};
}
pub(crate) use survives;

/// Writes a word; whether that was possible.
pub fn writes(address: u64, value: u64) -> bool {
    survives!("mov [rdi], rsi"; in("rdi") address, in("rsi") value)
}

/// Reads a word, if that is possible.
pub fn reads(address: u64) -> Option<u64> {
    let mut value = 0u64;
    survives!("mov rsi, [rdi]"; in("rdi") address, inout("rsi") value).then_some(value)
}

/// SCHEDOP_yield.
pub fn rest() {
    hypercall(call::SCHED_OP, [0; 4]);
}

/// SCHEDOP_shutdown.
pub fn shut_down(reason: u32) -> ! {
    for _ in 0..100 {
        // The console is read meanwhile.
        rest();
    }
    loop {
        hypercall(call::SCHED_OP, [2, &raw const reason as u64, 0, 0]);
    }
}
