//! The hypervisor's code of privilege level 0, which system calls, returns and page faults go through: jumps into it, and ways through it with flags,
//! selectors and stacks that are not for who takes them.

use crate::Score;
use crate::interface::{call, hypercall, survives};
use crate::memory::{GDT, Machine, operate};
use core::arch::{asm, global_asm};

/// Its code, its words, and the page with the guest's `struct vcpu_info`.
const PAGES: core::ops::Range<u64> = GDT + 16 * 4096..GDT + 19 * 4096;
/// Its selector.
const CODE: u64 = 0xe008;
/// HYPERVISOR_stack_switch.
const STACK_SWITCH: u64 = 3;
const NEW_USER_ROOT: u64 = 15;
/// The direction flag.
const DIRECTION: u64 = 1 << 10;
/// How often a program is run.
const TRIPS: u64 = 2000;
/// I/O privilege level, virtual interrupts.
const FORBIDDEN: u64 = 3 << 12 | 1 << 19 | 1 << 20;

global_asm!(
    // A program's system call: the kernel goes on where it ran the program.
    "bare_system_call:",
    "mov rsp, [rip + bare_kernel_sp]",
    "jmp [rip + bare_kernel_at]",
    ".pushsection .data",
    ".balign 8",
    "bare_kernel_sp: .quad 0",
    "bare_kernel_at: .quad 0",
    ".popsection",
    ".pushsection .bss",
    ".balign 4096",
    ".skip 4096",
    "bare_entry_stack_end:",
    ".popsection",
);

unsafe extern "C" {
    fn bare_system_call();
    static bare_entry_stack_end: u8;
}

/// Tries all.
pub fn run(machine: &Machine, score: &mut Score) {
    for place in PAGES.step_by(7) {
        score.attempt("gate_called", survives!("call rdi"; in("rdi") place));
    }
    for (selector, place) in [CODE, CODE | 3]
        .into_iter()
        .flat_map(|selector| [PAGES.start, PAGES.start + 16].map(|place| (selector, place)))
    {
        score.attempt(
            "gate_far_return",
            survives!("push rdi", "push rsi", "retfq"; in("rdi") selector, in("rsi") place),
        );
        let returned = survives!("mov rax, rsp", "push 0", "push rax", "pushfq", "push rdi", "push rsi", "iretq"; in("rdi") selector, in("rsi") place, out("rax") _);
        score.attempt("gate_interrupt_return", returned);
        score.attempt(
            "gate_far_jump",
            survives!("push rdi", "push rsi", "jmp fword ptr [rsp]"; in("rdi") selector, in("rsi") place),
        );
    }
    score.attempt("gate_segment", survives!("mov ds, edi"; in("rdi") CODE));
    score.attempt("gate_interrupt", survives!("int 14"; out("rax") _));
    programs(machine, score);
}

/// Programs, which share the kernel's page tables here, are run with every flag and come back by a system call or a page fault.
fn programs(machine: &Machine, score: &mut Score) {
    let callback = [2u64 | 1 << 16, bare_system_call as *const () as u64];
    let stack = &raw const bare_entry_stack_end as u64;
    let ready = hypercall(call::CALLBACK_OP, [0, callback.as_ptr() as u64, 0, 0]) == 0
        && hypercall(STACK_SWITCH, [0xe02b, stack, 0, 0]) == 0
        && operate(NEW_USER_ROOT, machine.root(), 0) == 0;
    assert!(ready, "no programs");
    for trip in 0..TRIPS {
        // Not those that trap, and always the one for interrupts.
        let flags = trip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & !(1 << 8 | 1 << 18) | FORBIDDEN | 1 << 9;
        let (seen, code, of_kernel) = program(flags, trip % 2 == 1);
        score.attempt("program_privilege", code & 3 != 3 || seen & FORBIDDEN != 0);
        // A kernel's string instructions would go backwards, over what is not the program's.
        score.attempt("program_direction", of_kernel & DIRECTION != 0);
    }
    operate(NEW_USER_ROOT, 0, 0);
}

/// Runs a program that looks at its flags and its code segment, and then calls the kernel or touches what is not there. Returns these, and the flags with
/// which the kernel was entered.
fn program(flags: u64, faults: bool) -> (u64, u64, u64) {
    let (seen, code, of_kernel);
    unsafe {
        asm!(
            "push rbx", "push rbp",
            "lea rcx, [rip + 78f]",
            "mov [rip + bare_kernel_at], rcx",
            "mov [rip + bare_recover_at], rcx",
            "mov [rip + bare_kernel_sp], rsp",
            "mov [rip + bare_recover_sp], rsp",
            "mov rcx, rsp",
            "push 0xe02b", "push rcx", "push rdi", "push 0xe033",
            "lea rcx, [rip + 77f]",
            "push rcx",
            // How to return, RCX, R11, RAX.
            "push 0", "push 0", "push 0", "push 0",
            "mov eax, 23", "syscall",
            "77:",
            "pushfq", "pop r14",
            "mov r15d, cs",
            "test esi, esi",
            "jz 76f",
            "mov rax, [0x1000]",
            "76:",
            "syscall",
            "78:",
            "pushfq", "pop r13", "cld",
            "mov qword ptr [rip + bare_recover_at], 0",
            "pop rbp", "pop rbx",
            inout("rdi") flags => _, inout("rsi") u64::from(faults) => _, out("r14") seen, out("r15") code, out("r13") of_kernel,
            out("rax") _, out("rcx") _, out("r11") _,
        );
    }
    (seen, code, of_kernel)
}
