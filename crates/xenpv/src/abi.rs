//! Numbers and layouts of the interface.

use sluice_pagetypes::Refused;

/// Numbers of hypercalls (xen.h).
pub mod call {
    /// HYPERVISOR_set_trap_table.
    pub const SET_TRAP_TABLE: u64 = 0;
    /// HYPERVISOR_mmu_update.
    pub const MMU_UPDATE: u64 = 1;
    /// HYPERVISOR_set_gdt.
    pub const SET_GDT: u64 = 2;
    /// HYPERVISOR_stack_switch.
    pub const STACK_SWITCH: u64 = 3;
    /// HYPERVISOR_fpu_taskswitch.
    pub const FPU_TASKSWITCH: u64 = 5;
    /// HYPERVISOR_platform_op.
    pub const PLATFORM_OP: u64 = 7;
    /// HYPERVISOR_set_debugreg.
    pub const SET_DEBUGREG: u64 = 8;
    /// HYPERVISOR_get_debugreg.
    pub const GET_DEBUGREG: u64 = 9;
    /// HYPERVISOR_update_descriptor.
    pub const UPDATE_DESCRIPTOR: u64 = 10;
    /// HYPERVISOR_memory_op.
    pub const MEMORY_OP: u64 = 12;
    /// HYPERVISOR_multicall.
    pub const MULTICALL: u64 = 13;
    /// HYPERVISOR_update_va_mapping.
    pub const UPDATE_VA_MAPPING: u64 = 14;
    /// HYPERVISOR_set_timer_op.
    pub const SET_TIMER_OP: u64 = 15;
    /// HYPERVISOR_xen_version.
    pub const XEN_VERSION: u64 = 17;
    /// HYPERVISOR_console_io.
    pub const CONSOLE_IO: u64 = 18;
    /// HYPERVISOR_vm_assist.
    pub const VM_ASSIST: u64 = 21;
    /// HYPERVISOR_iret.
    pub const IRET: u64 = 23;
    /// HYPERVISOR_vcpu_op.
    pub const VCPU_OP: u64 = 24;
    /// HYPERVISOR_set_segment_base.
    pub const SET_SEGMENT_BASE: u64 = 25;
    /// HYPERVISOR_mmuext_op.
    pub const MMUEXT_OP: u64 = 26;
    /// HYPERVISOR_sched_op.
    pub const SCHED_OP: u64 = 29;
    /// HYPERVISOR_callback_op.
    pub const CALLBACK_OP: u64 = 30;
    /// HYPERVISOR_event_channel_op.
    pub const EVENT_CHANNEL_OP: u64 = 32;
    /// HYPERVISOR_physdev_op.
    pub const PHYSDEV_OP: u64 = 33;
    /// Not Xen's: [`sluice_hypercall::paravirtual`].
    pub use sluice_hypercall::paravirtual::SEMI_WRITABLE;
    /// There are no numbers from here on.
    pub const END: u64 = 65;
}

/// Errors, by the numbers that Xen and Linux share (errno.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum Error {
    /// EPERM.
    NotPermitted = 1,
    /// ENOENT.
    NoEntry = 2,
    /// E2BIG.
    TooBig = 7,
    /// EAGAIN.
    Again = 11,
    /// ENOMEM.
    NoMemory = 12,
    /// EBUSY.
    Busy = 16,
    /// EEXIST.
    Exists = 17,
    /// EINVAL.
    Invalid = 22,
    /// EFAULT.
    Fault = 14,
    /// ENOSPC.
    NoSpace = 28,
    /// ENOSYS.
    NoCall = 38,
    /// ETIME.
    Past = 62,
    /// ERESTART: the call is made again for the rest. The guest never sees it.
    Restart = 85,
}

impl Error {
    /// The error as a hypercall returns it.
    pub const fn code(self) -> u64 {
        (self as i64).wrapping_neg() as u64
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Changed(_) | Refused::TooMany(_) => Self::Busy,
            Refused::Later => Self::Restart,
            Refused::NotOwn(_)
            | Refused::InUse(..)
            | Refused::Bad(..)
            | Refused::Reserved(_)
            | Refused::Pinned(_)
            | Refused::GivenBack(_)
            | Refused::NoTable => Self::Invalid,
        }
    }
}

/// Requests that one hypercall may hold.
pub const MAX_BATCH: u64 = 4096;

/// Lines of page tables that one exit looks at, of eight entries each; then others have a turn. Trees of a process take less.
pub const MAX_LINES: u32 = 4096;

/// In the count of a batch: a part of it is done, and so many are noted already (MMU_UPDATE_PREEMPTED).
pub const PREEMPTED: u64 = 1 << 31;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Where a guest reads the table from machine frames to its own page numbers.
pub const M2P: u64 = 0xffff_8000_0000_0000;
/// End of the room for it.
pub const M2P_END: u64 = 0xffff_8040_0000_0000;
/// An entry of that table for a frame that is not the guest's.
pub const INVALID_PFN: u64 = u64::MAX;
/// Where the processor finds the descriptor table, 16 pages. It is the guest's but for the page of reserved descriptors.
pub const GDT: u64 = 0xffff_8080_0000_0000;
/// Where the hypervisor's code of privilege level 0 is ([`sluice_gate`]), after them. SYSCALL of 32-bit code goes to its first byte.
pub const GATE: u64 = GDT + 16 * PAGE;
/// Where SYSCALL goes.
pub const GATE_WIDE: u64 = GATE + sluice_gate::WIDE as u64;
/// Where that code has its words.
pub const GATE_WORDS: u64 = GATE + sluice_gate::WORDS as u64;
/// Where that code finds the page with the guest's `struct vcpu_info`.
pub const GATE_INFO: u64 = GATE_WORDS + PAGE;
/// The page of the descriptor table that holds reserved descriptors.
pub const RESERVED_GDT_PAGE: usize = 14;
/// Descriptors that a guest may have.
pub const GDT_ENTRIES: u64 = 14 * 512;
/// Pages that a local descriptor table may have.
pub const LDT_PAGES: usize = 16;
/// Limit of the descriptor table.
pub const GDT_LIMIT: u32 = 15 * 4096 - 1;

/// Selector of flat 64-bit code at privilege level 3.
pub const CS64: u16 = 0xe033;
/// Selector of flat 32-bit code.
pub const CS32: u16 = 0xe023;
/// Selector of flat data.
pub const SS: u16 = 0xe02b;
/// Descriptor of [`CS64`].
pub const CODE_DESCRIPTOR: u64 = 0x00af_fb00_0000_ffff;
/// Descriptor of [`SS`].
pub const STACK_DESCRIPTOR: u64 = 0x00cf_f300_0000_ffff;
/// The reserved descriptors: place in their page, value.
pub const RESERVED_DESCRIPTORS: [(usize, u64); 4] = [
    ((sluice_gate::GATE_CODE as usize >> 3) % 512, sluice_gate::GATE_DESCRIPTOR),
    ((CS32 as usize >> 3) % 512, 0x00cf_fb00_0000_ffff),
    ((SS as usize >> 3) % 512, STACK_DESCRIPTOR),
    ((CS64 as usize >> 3) % 512, CODE_DESCRIPTOR),
];

/// Of `struct shared_info`.
pub mod shared_info {
    /// `evtchn_pending`: 64 words.
    pub const PENDING: usize = 32 * 64;
    /// `evtchn_mask`: 64 words.
    pub const MASK: usize = PENDING + 512;
    /// `wc`: version, seconds, nanoseconds; then `wc_sec_hi`.
    pub const WALL_CLOCK: usize = MASK + 512;
}

/// Of `struct vcpu_info`.
pub mod vcpu_info {
    /// `evtchn_upcall_pending`.
    pub const PENDING: usize = 0;
    /// `evtchn_upcall_mask`.
    pub const MASK: usize = 1;
    /// `evtchn_pending_sel`.
    pub const SELECTOR: usize = 8;
    /// `arch.cr2`.
    pub const CR2: usize = 16;
    /// `time`.
    pub const TIME: usize = 32;
    /// Bytes.
    pub const SIZE: usize = 64;
}

/// VGCF_in_syscall: a return by HYPERVISOR_iret to where a SYSCALL came from.
pub const IN_SYSCALL: u64 = 1 << 8;

/// Bits of RFLAGS.
pub mod rflags {
    /// Single step.
    pub const TF: u64 = 1 << 8;
    /// String instructions go backwards.
    pub const DF: u64 = 1 << 10;
    /// Interrupts are taken.
    pub const IF: u64 = 1 << 9;
    /// I/O privilege level.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// Resume.
    pub const RF: u64 = 1 << 16;
    /// Virtual 8086 mode.
    pub const VM: u64 = 1 << 17;
    /// Alignment check.
    pub const AC: u64 = 1 << 18;
    /// Always set.
    pub const ONE: u64 = 1 << 1;
    /// Every bit that means something at privilege level 3.
    pub const KNOWN: u64 = 0x0024_7fd7;
}

const _: () = {
    assert!(shared_info::WALL_CLOCK == 3072);
    assert!(RESERVED_DESCRIPTORS[3].0 == 6);
};
