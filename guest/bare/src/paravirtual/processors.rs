//! A second processor of the attacker's, which writes where it was able to write a moment ago.

use crate::Score;
use crate::attacks::{PIN_L1, UNPIN, spare};
use crate::interface::{call, hypercall, reads};
use crate::memory::{Machine, PRESENT, WRITE, map, operate};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// Operations of HYPERVISOR_vcpu_op.
const INITIALISE: u64 = 0;
const UP: u64 = 1;
pub const DOWN: u64 = 2;
const IS_UP: u64 = 3;

/// Words of `struct vcpu_guest_context`.
const CONTEXT: usize = 646;

global_asm!(
    // Writes a word at one address after the other, and counts how often it could and could not. RDI has what `Shared` says; without an address it goes.
    "bare_writer:",
    "lea rsp, [rip + bare_writer_stack_end]",
    "2:",
    "mov rax, [rdi]",
    "mov rcx, [rdi + 8]",
    "jrcxz 3f",
    "mov [rcx], rax",
    "inc qword ptr [rdi + 16]",
    "jmp 2b",
    "3:",
    "mov eax, {vcpu_op}",
    "mov edi, {down}",
    "mov esi, 1",
    "syscall",
    "jmp 3b",
    // Its own faults. The frame on the stack is not needed any more.
    "bare_writer_fault:",
    "inc qword ptr [rdi + 24]",
    "jmp bare_writer",
    ".pushsection .bss",
    ".balign 4096",
    ".skip 4096",
    "bare_writer_stack_end:",
    ".popsection",
    vcpu_op = const call::VCPU_OP,
    down = const DOWN,
);

unsafe extern "C" {
    fn bare_writer();
    fn bare_writer_fault();
    static bare_writer_stack_end: u8;
}

/// What the second processor is told, and tells.
#[repr(C)]
struct Shared {
    value: AtomicU64,
    address: AtomicU64,
    written: AtomicU64,
    faults: AtomicU64,
}

static SHARED: Shared = Shared {
    value: AtomicU64::new(0),
    address: AtomicU64::new(0),
    written: AtomicU64::new(0),
    faults: AtomicU64::new(0),
};

impl Shared {
    /// Waits until the second processor has tried again, often enough to have seen what it was told.
    fn wait(&self) {
        let tried = || self.written.load(Ordering::SeqCst) + self.faults.load(Ordering::SeqCst);
        let until = tried() + 3;
        while tried() < until {
            core::hint::spin_loop();
        }
    }
}

/// A context by which a processor would begin, and what its place among words is.
fn context(machine: &Machine) -> [u64; CONTEXT] {
    let mut words = [0; CONTEXT];
    words[512 / 8] = 1 << 2;
    words[520 / 8 + 14] = &raw const SHARED as u64;
    words[520 / 8 + 16] = bare_writer as *const () as u64;
    words[520 / 8 + 17] = 0xe033;
    words[520 / 8 + 18] = 0x202;
    words[520 / 8 + 19] = &raw const bare_writer_stack_end as u64;
    words[520 / 8 + 20] = 0xe02b;
    (words[720 / 8 + 14 * 2], words[720 / 8 + 14 * 2 + 1]) =
        (14 | 4 << 8, bare_writer_fault as *const () as u64);
    words[4976 / 8] = &raw const bare_writer_stack_end as u64;
    words[4984 / 8 + 3] = machine.root() << 12;
    words
}

fn vcpu_op(cmd: u64, which: u64, arg: u64) -> i64 {
    hypercall(call::VCPU_OP, [cmd, which, arg, 0])
}

/// Tries to begin processors as no kernel's may, and then, if there is a second one, has it write while pages become page tables.
pub fn run(machine: &Machine, score: &mut Score) {
    let first = machine.frame(0);
    let writable = machine.frame(spare(machine));
    let hidden = first + machine.pages + 2;
    let changes = [
        (512 / 8, 0),
        (4824 / 8, 1),
        (520 / 8 + 16, 1 << 47),
        (4832 / 8, hidden),
        (4832 / 8, first - 1),
        (4832 / 8, machine.root()),
        (4984 / 8 + 3, writable << 12),
        (4984 / 8 + 3, hidden << 12),
        (4984 / 8 + 3, (first - 1) << 12),
        (5112 / 8, 1 << 47),
    ];
    for which in [0, 1, 2, 31, 32, 1 << 32, u64::MAX] {
        for (index, value) in changes {
            let mut words = context(machine);
            words[index] = value;
            words[4960 / 8] = u64::from(index == 4832 / 8);
            score.attempt("processor", vcpu_op(INITIALISE, which, words.as_ptr() as u64) == 0);
        }
        score.attempt("processor_unknown", which != 0 && vcpu_op(UP, which, 0) == 0);
    }
    let words = context(machine);
    if vcpu_op(INITIALISE, 1, words.as_ptr() as u64) != 0 {
        return;
    }
    score.attempt("processor_twice", vcpu_op(INITIALISE, 1, words.as_ptr() as u64) == 0);
    stale(machine, score);
}

/// As a page becomes a table, the second processor knows how to write it, and was not told by anybody but the hypervisor.
fn stale(machine: &Machine, score: &mut Score) {
    let (page, other) = (spare(machine) + 1, spare(machine) + 4);
    let (address, harmless) = (machine.address(page), machine.address(other));
    let frame = machine.frame(page);
    let evil = machine.root() << 12 | PRESENT | WRITE;
    SHARED.address.store(harmless, Ordering::SeqCst);
    score.attempt("no_second_processor", vcpu_op(UP, 1, 0) != 0);
    SHARED.wait();
    for round in 0..256u64 {
        let word = address + 8 * (round & 511);
        SHARED.value.store(0, Ordering::SeqCst);
        SHARED.address.store(word, Ordering::SeqCst);
        SHARED.wait();
        // It has just written there. Now it must not any more, which only this processor is told.
        map(address, frame << 12 | PRESENT, false);
        score.attempt("not_pinned", operate(PIN_L1, frame, 0) != 0);
        SHARED.value.store(evil, Ordering::SeqCst);
        SHARED.wait();
        score.attempt("stale_elsewhere", reads(word) == Some(evil));
        SHARED.address.store(harmless, Ordering::SeqCst);
        SHARED.wait();
        operate(UNPIN, frame, 0);
        map(address, frame << 12 | PRESENT | WRITE, true);
        unsafe { (word as *mut u64).write_volatile(0) };
    }
    // What follows may take the page away, and a processor that does nothing but fault keeps the other one waiting.
    SHARED.address.store(0, Ordering::SeqCst);
    while vcpu_op(IS_UP, 1, 0) != 0 {
        core::hint::spin_loop();
    }
    // It wrote most of the time, and was refused when it was to be.
    let (written, faults) = (SHARED.written.load(Ordering::SeqCst), SHARED.faults.load(Ordering::SeqCst));
    score.attempt("no_writes", written < 256);
    score.attempt("no_faults", faults < 256);
}
