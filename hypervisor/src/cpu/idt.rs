//! The interrupt descriptor table, shared by all processors, and where vectors go.
//!
//! Exceptions are faults of the hypervisor and stop the run, but for NMIs, which are counted. Vectors from
//! 32 go to the handler that [`set_handler`] put there. Handlers run with interrupts off, in an interrupt window that
//! hypervisor code opened.
//!
//! Without interrupt remapping a device that masters the bus can raise any vector, exceptions' too, or an NMI. What nobody
//! asked for is counted (`Cpu::spurious`) and ended. Whether a vector below 32 is an interrupt, the local APIC knows: then
//! it has it in service.

use super::{apic, gdt};
use crate::sync::Once;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

/// First vector that is not an exception.
pub const FIRST_EXTERNAL: u8 = 32;

const NMI: u8 = 2;
const DOUBLE_FAULT: u8 = 8;
const MACHINE_CHECK: u8 = 18;
/// Security exception, and its error code for an INIT that was redirected to it (APM vol. 2, 8.2.24).
const SECURITY: u8 = 30;
const SECURITY_INIT: u64 = 1;

/// Registers as the entry stubs leave them on the stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // Names of the architecture.
pub struct Frame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rbx: u64,
    pub rax: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

// One stub of 16 bytes per vector: it pushes the vector and joins the common path. Whether the processor pushed an error
// code does not follow from the vector, as an interrupt has none, whatever its vector. But the processor aligns RSP to 16
// before it pushes five words, or six with an error code (APM vol. 2, 8.9.3), so RSP tells. Without one, a zero is put in
// its place. Then all general registers are saved in the order of `Frame`, and 22 words keep RSP aligned.
global_asm!(
    ".balign 16",
    "idt_stubs:",
    ".set vector, 0",
    ".rept 256",
    "    .balign 16",
    "    .byte 0x68", // PUSH imm32; by name the assembler would take the symbol for a memory operand.
    "    .long vector",
    "    jmp idt_common",
    "    .set vector, vector + 1",
    ".endr",
    ".balign 16",
    "idt_common:",
    "    test spl, 8",
    "    jnz 2f",
    "    push [rsp]",
    "    mov qword ptr [rsp + 8], 0",
    "2:",
    "    cld",
    "    push rax",
    "    push rbx",
    "    push rcx",
    "    push rdx",
    "    push rsi",
    "    push rdi",
    "    push rbp",
    "    push r8",
    "    push r9",
    "    push r10",
    "    push r11",
    "    push r12",
    "    push r13",
    "    push r14",
    "    push r15",
    "    mov rdi, rsp",
    "    call {dispatch}",
    "    pop r15",
    "    pop r14",
    "    pop r13",
    "    pop r12",
    "    pop r11",
    "    pop r10",
    "    pop r9",
    "    pop r8",
    "    pop rbp",
    "    pop rdi",
    "    pop rsi",
    "    pop rdx",
    "    pop rcx",
    "    pop rbx",
    "    pop rax",
    "    add rsp, 16",
    "    iretq",
    dispatch = sym dispatch,
);

unsafe extern "C" {
    static idt_stubs: u8;
}

/// A gate (APM vol. 2, figure 4-24).
#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    low: u64,
    high: u64,
}

#[repr(C, align(4096))]
struct Table(core::cell::UnsafeCell<[Gate; 256]>);

// SAFETY: written once by `init` before any other processor runs, then only read (by the processor).
unsafe impl Sync for Table {}

static IDT: Table = Table(core::cell::UnsafeCell::new([Gate { low: 0, high: 0 }; 256]));

/// Who reports an exception of the hypervisor.
static FATAL: Once<fn(&Frame) -> !> = Once::new();

/// Fills the table; the boot processor calls it once, before [`install`]. `fatal` reports what the hypervisor must not raise.
pub fn init(fatal: fn(&Frame) -> !) {
    FATAL.call_once(|| fatal);
    for vector in 0..=255u8 {
        let stub = &raw const idt_stubs as u64 + u64::from(vector) * 16;
        let ist = match vector {
            NMI => gdt::IST_NMI,
            DOUBLE_FAULT => gdt::IST_DOUBLE_FAULT,
            MACHINE_CHECK => gdt::IST_MACHINE_CHECK,
            _ => 0,
        };
        // Present, interrupt gate (clears IF), ring 0.
        let low = stub & 0xffff
            | u64::from(gdt::CODE) << 16
            | u64::from(ist) << 32
            | 0x8e << 40
            | (stub >> 16 & 0xffff) << 48;
        // SAFETY: no other processor runs yet and this one takes no interrupt, so nobody reads the table.
        unsafe { (*IDT.0.get())[usize::from(vector)] = Gate { low, high: stub >> 32 } };
    }
}

/// Loads the table into this processor. Early in boot it serves without task state: then all faults but those that
/// need another stack are reported.
pub fn install() {
    #[repr(C, packed)]
    struct Pointer {
        limit: u16,
        base: u64,
    }
    let pointer = Pointer { limit: 256 * 16 - 1, base: IDT.0.get() as u64 };
    // SAFETY: the table is static, and every gate in it leads to a stub that returns as it should.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
}

static HANDLERS: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];

/// Sends an external vector (32-255) to `handler`, on every processor. The handler acknowledges the interrupt
/// itself (`apic::eoi`), when the source may raise the next.
pub fn set_handler(vector: u8, handler: fn(u8)) {
    if vector >= FIRST_EXTERNAL {
        HANDLERS[usize::from(vector)].store(handler as usize, Ordering::Release);
    }
}

/// Whether [`set_handler`] named a handler for this vector.
pub fn has_handler(vector: u8) -> bool {
    HANDLERS[usize::from(vector)].load(Ordering::Acquire) != 0
}

extern "C" fn dispatch(frame: &mut Frame) {
    let vector = frame.vector as u8;
    match vector {
        FIRST_EXTERNAL.. => external(vector),
        _ if apic::is_in_service(vector) => unexpected(vector),
        NMI => nmi(frame),
        SECURITY if frame.error == SECURITY_INIT => unexpected(vector),
        _ => match FATAL.get() {
            Some(fatal) => fatal(frame),
            None => super::halt(),
        },
    }
}

fn nmi(_frame: &mut Frame) {
    if super::is_halting() {
        super::halt();
    }
    if let Some(cpu) = super::try_this() {
        cpu.nmis.fetch_add(1, Ordering::Relaxed);
    }
}

fn external(vector: u8) {
    let handler = HANDLERS[usize::from(vector)].load(Ordering::Acquire);
    if handler != 0 {
        // SAFETY: non-zero words in the table were stored by `set_handler` from a `fn(u8)`.
        let handler: fn(u8) = unsafe { core::mem::transmute(handler) };
        super::this().interrupts.fetch_add(1, Ordering::Relaxed);
        handler(vector);
    } else {
        unexpected(vector);
    }
}

/// An interrupt that nobody asked for. The local APIC's own spurious one, and what a legacy controller delivers, is not in
/// service, and takes no end.
fn unexpected(vector: u8) {
    if apic::is_in_service(vector) {
        apic::eoi();
    }
    if let Some(cpu) = super::try_this() {
        cpu.interrupts.fetch_add(1, Ordering::Relaxed);
        cpu.spurious.fetch_add(1, Ordering::Relaxed);
    }
}
