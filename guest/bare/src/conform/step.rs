//! Single steps: the trap flag traps once after each instruction, those too that the hypervisor carries out.
//!
//! Source: APM vol. 2, 13.1.4.

use super::Verdict;
use crate::{machine, trap};
use core::arch::global_asm;

/// Where the stepping code may be trapped, in this order.
const STOPS: usize = 26;

global_asm!(
    // extern "C" fn(port memory: rdi, I/O APIC: rsi)
    ".global step_code",
    "step_code:",
    "push rbx",
    "mov r8, rsi",
    "mov rsi, rdi",
    "pushfq",
    "or qword ptr [rsp], 0x100",
    "popfq",
    "nop",
    "20: xor eax, eax",
    "21: cpuid",
    "22: mov ecx, 0x277",
    "23: rdmsr",
    "24: wrmsr",
    "25: mov edx, 0x80",
    "26: out dx, al",
    "27: in eax, dx",
    "28: mov ecx, 3",
    // One trap after each element.
    "29: rep outsb",
    "30: vmmcall",
    "31: mov eax, [r8]",
    "32: mov [r8], eax",
    "33: wbinvd",
    // A trap ends it.
    "34: hlt",
    "35: mov rax, cr8",
    "37: pushfq",
    "38: and qword ptr [rsp], ~0x100",
    "39: popfq",
    "40: pop rbx",
    "ret",
    ".data",
    ".balign 8",
    ".global step_stops",
    "step_stops:",
    ".quad 20b, 21b, 22b, 23b, 24b, 25b, 26b, 27b, 28b, 29b, 29b, 29b, 30b, 31b, 32b, 33b, 34b, 35b, 37b, 38b",
    ".quad 39b, 40b, 0, 0, 0, 0",
    ".text",
);

unsafe extern "C" {
    fn step_code(memory: u64, io_apic: u64);
    static step_stops: [u64; STOPS];
}

/// Runs the check.
pub fn run() {
    let mut verdict = Verdict::new("step");
    machine::cli();
    let bytes = [0u8; 8];
    let steps = trap::trace(|| unsafe { step_code(bytes.as_ptr() as u64, 0xfec0_0000) });
    let expected = unsafe { &step_stops };
    for (number, stop) in expected.iter().enumerate() {
        verdict.expect("stop number", number as u64, steps.at(number), *stop);
    }
    verdict.expect("traps that were no single steps, of", steps.count() as u64, steps.other(), 0);
    verdict.report();
}
