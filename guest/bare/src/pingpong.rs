//! A word that two processors pass to each other by memory, there and back: who waits looks at it all the time, or sleeps until an interrupt of the other
//! processor's comes. One interrupt is sent for each word that a sleeper is to see, and it waits for that interrupt, whatever memory says before.
//!
//! Whoever counts from outside is told before some trips, between these and many, and after those, by an instruction that does nothing (bench/instructions.rs).

use crate::console::println;
use crate::dma::memory::Own;
use crate::entry::BootInfo;
use crate::machine::{self, rdtsc, wrmsr};
use crate::trap;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering};

/// Trips before the second mark, and after it.
const FEW: u64 = 100;
const MANY: u64 = 600;
/// How often all ways are measured.
const TURNS: u64 = 5;

/// Where the second processor starts, below 1 MiB, and the end of its stack.
const LOW_CODE: u64 = 0x6_0000;
const STACK: u64 = 0x8000;

const ICR: u32 = 0x830;
/// Vectors of the first processor's interrupts and of the second's.
const VECTORS: [u64; 2] = [0x50, 0x51];

global_asm!(
    ".global pingpong_second",
    "pingpong_second:",
    "mov eax, 16",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "mov rsp, [pingpong_stack]",
    "xor ebp, ebp",
    "call pingpong_answer",
    "ud2",
    ".global pingpong_signal_first",
    "pingpong_signal_first:",
    "lock inc qword ptr [pingpong_signals]",
    "jmp 2f",
    ".global pingpong_signal_second",
    "pingpong_signal_second:",
    "lock inc qword ptr [pingpong_signals + 64]",
    // The end of the interrupt.
    "2:",
    "push rax",
    "push rcx",
    "push rdx",
    "xor eax, eax",
    "xor edx, edx",
    "mov ecx, 0x80b",
    "wrmsr",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "iretq",
);

unsafe extern "C" {
    fn pingpong_second();
    fn pingpong_signal_first();
    fn pingpong_signal_second();
    static bare_pml4: u8;
    static bare_gdt: u8;
}

/// What is in a cache line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

impl Line {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

#[unsafe(no_mangle)]
static mut pingpong_stack: u64 = 0;
/// Interrupts that each processor has taken.
#[unsafe(no_mangle)]
static pingpong_signals: [Line; 2] = [Line::new(), Line::new()];
/// The word that each processor waits for.
static WORDS: [Line; 2] = [Line::new(), Line::new()];
/// Which way is next, and how many trips, as `trips * 4 + way`; the second processor has begun.
static NEXT: Line = Line::new();
static BEGUN: Line = Line::new();

/// How each processor waits: it sleeps until an interrupt comes, or looks.
struct Way {
    name: &'static str,
    sleeps: [bool; 2],
}

const WAYS: [Way; 3] = [
    Way { name: "poll_poll", sleeps: [false, false] },
    Way { name: "poll_interrupt", sleeps: [false, true] },
    Way { name: "interrupt_interrupt", sleeps: [true, true] },
];

/// One of the processors, 0 or 1, and how many interrupts it has waited for.
struct Side {
    own: usize,
    signals: u64,
}

impl Side {
    fn send(&self, way: &Way, word: u64) {
        let other = 1 - self.own;
        WORDS[other].0.store(word, Ordering::Release);
        if way.sleeps[other] {
            wrmsr(ICR, (other as u64) << 32 | VECTORS[other]);
        }
    }

    /// Waits for a word; whether it is there then.
    fn wait(&mut self, way: &Way, word: u64) -> bool {
        let here = &WORDS[self.own].0;
        if way.sleeps[self.own] {
            self.signals += 1;
            while pingpong_signals[self.own].0.load(Ordering::Acquire) < self.signals {
                machine::wait();
                machine::cli();
            }
        } else {
            while here.load(Ordering::Acquire) != word {
                core::hint::spin_loop();
            }
        }
        here.load(Ordering::Acquire) == word
    }
}

/// Tells whoever counts: a `NOP` that no compiler makes.
fn mark() {
    unsafe { asm!(".byte 0x0f, 0x1f, 0x80", ".ascii \"MARK\"", options(nostack)) };
}

/// Interrupts have no stack of their own, since both processors take some.
fn load_gates(table: u64) {
    for (vector, handler) in VECTORS.into_iter().zip([pingpong_signal_first, pingpong_signal_second]) {
        let at = handler as *const () as u64;
        let gate = (table + vector * 16) as *mut u64;
        unsafe {
            gate.write_volatile(at & 0xffff | 8 << 16 | 0x8e << 40 | (at >> 16 & 0xffff) << 48);
            gate.add(1).write_volatile(at >> 32);
        }
    }
    trap::load_from(table, 4095);
}

static TABLE: Line = Line::new();

/// The second processor's life.
#[unsafe(no_mangle)]
extern "C" fn pingpong_answer() -> ! {
    machine::x2apic();
    load_gates(TABLE.0.load(Ordering::Acquire));
    BEGUN.0.store(1, Ordering::Release);
    let mut side = Side { own: 1, signals: 0 };
    let mut last = 0;
    loop {
        let next = NEXT.0.load(Ordering::Acquire);
        if next == last {
            core::hint::spin_loop();
            continue;
        }
        last = next;
        let way = &WAYS[next as usize % 4];
        for trip in 1..=next >> 2 & 0xffff {
            side.wait(way, trip);
            side.send(way, trip);
        }
    }
}

/// Starts the second processor, from real mode.
fn start(own: &mut Own) {
    let stack = own.take(STACK) + STACK;
    unsafe { pingpong_stack = stack };
    TABLE.0.store(own.take(4096), Ordering::Release);
    let [table, descriptors, entry] =
        [&raw const bare_pml4 as u64, &raw const bare_gdt as u64, pingpong_second as *const () as u64]
            .map(|address| (address as u32).to_le_bytes());
    let code: [&[u8]; 15] = [
        &[0xfa],                               // cli
        &[0x8c, 0xc8, 0x8e, 0xd8],             // mov ax, cs; mov ds, ax
        &[0x66, 0x0f, 0x01, 0x16, 0x00, 0x01], // lgdt [0x100]
        &[0x66, 0xb8, 0x20, 0x06, 0x00, 0x00], // mov eax, PAE, OSFXSR, OSXMMEXCPT
        &[0x0f, 0x22, 0xe0],                   // mov cr4, eax
        &[0x66, 0xb8],                         // mov eax, ...
        &table,
        &[0x0f, 0x22, 0xd8],                               // mov cr3, eax
        &[0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32], // mov ecx, EFER; rdmsr
        &[0x66, 0x0d, 0x00, 0x09, 0x00, 0x00, 0x0f, 0x30], // or eax, long mode and NX; wrmsr
        &[0x66, 0xb8, 0x33, 0x00, 0x01, 0x80],             // mov eax, paging, WP, NE, ET, MP, protected mode
        &[0x0f, 0x22, 0xc0],                               // mov cr0, eax
        &[0x66, 0xea],                                     // ljmp 8:...
        &entry,
        &[0x08, 0x00],
    ];
    let put = |first: u64, bytes: &mut dyn Iterator<Item = u8>| {
        (first..).zip(bytes).for_each(|(at, byte)| unsafe { (at as *mut u8).write_volatile(byte) });
    };
    put(LOW_CODE, &mut code.into_iter().flatten().copied());
    put(LOW_CODE + 0x100, &mut 55u16.to_le_bytes().into_iter().chain(descriptors));
    wrmsr(ICR, 1 << 32 | 0x4500);
    wrmsr(ICR, 1 << 32 | 0x4600 | LOW_CODE >> 12);
}

/// Ticks of each of so many trips, into `ticks`; how many words were not there when an interrupt came.
fn trips(side: &mut Side, turn: u64, number: usize, ticks: &mut [u64]) -> u64 {
    let way = &WAYS[number];
    // The other one begins when this differs from the last.
    NEXT.0.store(turn << 32 | (ticks.len() as u64) << 2 | number as u64, Ordering::Release);
    let mut wrong = 0;
    for (trip, ticks) in (1..).zip(ticks) {
        let before = rdtsc();
        side.send(way, trip);
        wrong += u64::from(!side.wait(way, trip));
        *ticks = rdtsc() - before;
    }
    WORDS[1].0.store(0, Ordering::Release);
    WORDS[0].0.store(0, Ordering::Release);
    wrong
}

/// Measures and prints.
pub fn run(boot: &BootInfo) {
    let mut own = Own::new(boot);
    machine::x2apic();
    start(&mut own);
    if !machine::wait_for(60_000_000_000, || BEGUN.0.load(Ordering::Acquire) == 1) {
        return println!("pingpong: there is no second processor");
    }
    load_gates(TABLE.0.load(Ordering::Acquire));
    let ticks = own.take(MANY * 8);
    let ticks = unsafe { core::slice::from_raw_parts_mut(ticks as *mut u64, MANY as usize) };
    let mut side = Side { own: 0, signals: 0 };
    let mut turn = 0;
    for _ in 0..TURNS {
        for (number, way) in WAYS.iter().enumerate() {
            let mut wrong = 0;
            mark();
            for count in [FEW, MANY] {
                turn += 1;
                wrong += trips(&mut side, turn, number, &mut ticks[..count as usize]);
                mark();
            }
            ticks.sort_unstable();
            let [median, most] = [500, 900].map(|per_mille| ticks[(MANY * per_mille / 1000) as usize]);
            println!(
                "SLUICE-RESULT way={} few={FEW} many={MANY} median={median} p90={most} wrong={wrong}",
                way.name
            );
        }
    }
    trap::load();
    println!("SLUICE-RESULT done=ok");
}
