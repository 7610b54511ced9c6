//! Hypercalls: which there are, what they answer, and that no program may make them.
//!
//! Source: Linux, Documentation/virt/kvm/x86/hypercalls.rst and include/uapi/linux/kvm_para.h.

use super::Verdict;
use crate::entry::{USER_CODE, USER_DATA};
use crate::trap;
use core::arch::asm;

/// KVM_HC_VAPIC_POLL_IRQ.
const POLL: u64 = 1;
/// -KVM_ENOSYS.
const NO_SUCH_CALL: u64 = -1000i64 as u64;
/// -KVM_EPERM.
const NOT_PERMITTED: u64 = -1i64 as u64;

/// Runs the check.
pub fn run() {
    let mut verdict = Verdict::new("hypercalls");
    for number in (0..64).chain([POLL | 1 << 32, u64::MAX]) {
        let expected = if number == POLL { 0 } else { NO_SUCH_CALL };
        let (answer, others) = call(number);
        verdict.expect("answer of hypercall", number, answer, expected);
        verdict.expect("RBX, RCX, RDX, RSI after hypercall", number, others, 2 ^ 3 << 8 ^ 4 << 16 ^ 5 << 24);
        verdict.expect(
            "answer at privilege level 3 of hypercall",
            number,
            call_of_a_program(number),
            NOT_PERMITTED,
        );
    }
    verdict.report();
}

/// VMMCALL with 2, 3, 4 and 5 as arguments. Returns RAX, and what the registers of the arguments hold then, a byte for each.
fn call(number: u64) -> (u64, u64) {
    let (answer, rbx, rcx, rdx, rsi): (u64, u64, u64, u64, u64);
    unsafe {
        asm!("push rbx", "mov ebx, 2", "vmmcall", "mov r8, rbx", "pop rbx", inout("rax") number => answer, out("r8") rbx,
            inout("rcx") 3u64 => rcx, inout("rdx") 4u64 => rdx, inout("rsi") 5u64 => rsi);
    }
    (answer, rbx ^ rcx << 8 ^ rdx << 16 ^ rsi << 24)
}

/// The same at privilege level 3, from where #UD leads back; RAX is in RCX then.
fn call_of_a_program(number: u64) -> u64 {
    let vector = trap::attempt(|| unsafe {
        asm!("push {data}", "push 0", "push 2", "push {code}", "lea rcx, [rip + 2f]", "push rcx", "iretq",
            "2: vmmcall", "mov rcx, rax", "ud2",
            data = const USER_DATA, code = const USER_CODE, in("rax") number, out("rcx") _);
    });
    if vector == Some(6) { trap::last().rcx } else { 0 }
}
