//! Segment descriptors, the task state segment and the stacks of one processor (AMD APM vol. 2, 4.8 and 12.2).
//!
//! #DF, NMI and #MC run on stacks of their own (IST), so that an overflowing stack, which meets its guard page,
//! is reported instead of resetting the machine.

use crate::mm::{self, Stack};
use core::arch::asm;

/// Selector of the 64-bit code segment.
pub const CODE: u16 = 0x08;
/// Selector of the data segment.
pub const DATA: u16 = 0x10;
/// Selector of the task state segment.
pub const TSS: u16 = 0x18;

/// IST number of the double-fault stack.
pub const IST_DOUBLE_FAULT: u8 = 1;
/// IST number of the NMI stack.
pub const IST_NMI: u8 = 2;
/// IST number of the machine-check stack.
pub const IST_MACHINE_CHECK: u8 = 3;

const STACK_BYTES: usize = 64 * 1024;
const IST_BYTES: usize = 16 * 1024;

/// 64-bit task state segment (APM vol. 2, figure 12-8).
#[repr(C, packed(4))]
struct TaskState {
    reserved0: u32,
    stacks: [u64; 3],
    reserved1: u64,
    interrupt_stacks: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    io_map: u16,
}

const _: () = assert!(size_of::<TaskState>() == 104);

/// Descriptor tables and stacks of one processor. Must not move after [`Tables::link`].
pub struct Tables {
    gdt: [u64; 5],
    tss: TaskState,
    main: Stack,
}

impl Tables {
    /// Allocates the stacks of processor `index`; `None` when memory runs out.
    pub fn new(index: u32) -> Option<Self> {
        let main = mm::new_stack(index, 0, STACK_BYTES)?;
        let mut interrupt_stacks = [0; 7];
        for ist in [IST_DOUBLE_FAULT, IST_NMI, IST_MACHINE_CHECK] {
            interrupt_stacks[usize::from(ist) - 1] = mm::new_stack(index, ist.into(), IST_BYTES)?.top;
        }
        let tss = TaskState {
            reserved0: 0,
            stacks: [main.top; 3],
            reserved1: 0,
            interrupt_stacks,
            reserved2: 0,
            reserved3: 0,
            // No I/O permission map: all of ring 3's port accesses would fault, and there is no ring 3.
            io_map: size_of::<TaskState>() as u16,
        };
        Some(Self { gdt: [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0], tss, main })
    }

    /// Writes the descriptor of the task state segment, once the structure has its final address.
    pub fn link(&mut self) {
        let base = &raw const self.tss as u64;
        let limit = size_of::<TaskState>() as u64 - 1;
        self.gdt[3] = limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        self.gdt[4] = base >> 32;
    }

    /// Top of the stack this processor runs on.
    pub fn stack_top(&self) -> u64 {
        self.main.top
    }
}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Loads this processor's own descriptor tables, segment registers and GS base.
///
/// # Safety
/// Call once on the processor `cpu` describes, before [`super::this`] is used on it.
pub unsafe fn install(cpu: &'static super::Cpu) {
    let pointer = Pointer { limit: size_of::<[u64; 5]>() as u16 - 1, base: cpu.tables.gdt.as_ptr() as u64 };
    // SAFETY: the table lives as long as the machine and holds a flat 64-bit code and a data segment; the far
    // return reloads CS with that code segment and goes on at the next instruction; the TSS descriptor was written
    // by `link`, and is marked busy by LTR in memory that is writable. GS base is the processor's `Cpu`.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ds, {data:e}",
            "mov es, {data:e}",
            "mov ss, {data:e}",
            "mov fs, {zero:e}",
            "mov gs, {zero:e}",
            "ltr {tss:x}",
            pointer = in(reg) &pointer,
            code = const CODE as u64,
            scratch = out(reg) _,
            data = in(reg) u32::from(DATA),
            zero = in(reg) 0u32,
            tss = in(reg) TSS,
        );
        super::wrmsr(super::msr::GS_BASE, core::ptr::from_ref(cpu) as u64);
        super::wrmsr(super::msr::KERNEL_GS_BASE, 0);
    }
}
