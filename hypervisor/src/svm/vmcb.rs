//! The virtual machine control block: what the processor needs to run one virtual processor.
//!
//! Source: AMD64 Architecture Programmer's Manual, volume 2 (APM), appendix B "Layout of VMCB" and
//! chapter 15. Fields that Sluice does not use are reserved space here.

use bitflags::bitflags;
use core::mem::{offset_of, size_of};

bitflags! {
    /// Intercepts of the third vector, VMCB offset 0x0C (APM vol 2, table B-1).
    #[derive(Clone, Copy)]
    pub struct Intercept3: u32 {
        /// Physical maskable interrupt.
        const INTR = 1 << 0;
        /// Physical non-maskable interrupt.
        const NMI = 1 << 1;
        /// INIT signal.
        const INIT = 1 << 3;
        /// Virtual interrupt about to be taken: the guest's interrupt window opened.
        const VINTR = 1 << 4;
        /// RDPMC.
        const RDPMC = 1 << 15;
        /// CPUID.
        const CPUID = 1 << 18;
        /// IRET, before it is executed.
        const IRET = 1 << 20;
        /// INVD.
        const INVD = 1 << 22;
        /// HLT.
        const HLT = 1 << 24;
        /// INVLPGA.
        const INVLPGA = 1 << 26;
        /// Port accesses that the I/O permission map selects.
        const IOIO_PROT = 1 << 27;
        /// MSR accesses that the MSR permission map selects.
        const MSR_PROT = 1 << 28;
        /// Shutdown (triple fault).
        const SHUTDOWN = 1 << 31;
    }

    /// Intercepts of the fourth vector, VMCB offset 0x10 (APM vol 2, table B-1).
    #[derive(Clone, Copy)]
    pub struct Intercept4: u32 {
        /// VMRUN (must be set, 15.5.1).
        const VMRUN = 1 << 0;
        /// VMMCALL.
        const VMMCALL = 1 << 1;
        /// VMLOAD.
        const VMLOAD = 1 << 2;
        /// VMSAVE.
        const VMSAVE = 1 << 3;
        /// STGI.
        const STGI = 1 << 4;
        /// CLGI.
        const CLGI = 1 << 5;
        /// SKINIT.
        const SKINIT = 1 << 6;
        /// WBINVD.
        const WBINVD = 1 << 9;
        /// MONITOR.
        const MONITOR = 1 << 10;
        /// MWAIT.
        const MWAIT = 1 << 11;
        /// XSETBV.
        const XSETBV = 1 << 13;
        /// RDPRU, where the processor has it: it reads counters that are not virtualized.
        const RDPRU = 1 << 14;
    }

    /// Virtual interrupt control, VMCB offset 0x60 (APM vol 2, 15.21.4).
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct VirtualInterrupt: u64 {
        /// V_TPR: the guest's CR8.
        const TASK_PRIORITY = 0xf;
        /// A virtual interrupt is pending.
        const IRQ = 1 << 8;
        /// It ignores the virtual task priority.
        const IGNORE_TPR = 1 << 20;
        /// The guest's RFLAGS.IF masks virtual interrupts only; the host's masks physical ones.
        const INTR_MASKING = 1 << 24;
        /// Vector of the virtual interrupt.
        const VECTOR = 0xff << 32;
        /// All other bits.
        const _ = !0;
    }
}

/// Why the guest was left: VMCB.EXITCODE (APM vol 2, appendix C).
pub mod exit_code {
    /// MOV to CR8.
    pub const CR8_WRITE: u32 = 0x18;
    /// Debug exception: 0x40 and the vector.
    pub const DB: u32 = 0x41;
    /// Alignment check.
    pub const AC: u32 = 0x51;
    /// Physical interrupt.
    pub const INTR: u32 = 0x60;
    /// Physical non-maskable interrupt.
    pub const NMI: u32 = 0x61;
    /// INIT.
    pub const INIT: u32 = 0x63;
    /// Interrupt window.
    pub const VINTR: u32 = 0x64;
    /// RDPMC.
    pub const RDPMC: u32 = 0x6f;
    /// CPUID.
    pub const CPUID: u32 = 0x72;
    /// IRET.
    pub const IRET: u32 = 0x74;
    /// INVD.
    pub const INVD: u32 = 0x76;
    /// HLT.
    pub const HLT: u32 = 0x78;
    /// INVLPGA.
    pub const INVLPGA: u32 = 0x7a;
    /// IN, OUT, INS, OUTS.
    pub const IOIO: u32 = 0x7b;
    /// RDMSR, WRMSR.
    pub const MSR: u32 = 0x7c;
    /// Shutdown.
    pub const SHUTDOWN: u32 = 0x7f;
    /// VMRUN, the first of the SVM instructions.
    pub const VMRUN: u32 = 0x80;
    /// VMMCALL.
    pub const VMMCALL: u32 = 0x81;
    /// SKINIT, the last of the SVM instructions.
    pub const SKINIT: u32 = 0x86;
    /// WBINVD.
    pub const WBINVD: u32 = 0x89;
    /// MONITOR.
    pub const MONITOR: u32 = 0x8a;
    /// MWAIT.
    pub const MWAIT: u32 = 0x8b;
    /// MWAIT, conditional.
    pub const MWAIT_CONDITIONAL: u32 = 0x8c;
    /// XSETBV.
    pub const XSETBV: u32 = 0x8d;
    /// RDPRU.
    pub const RDPRU: u32 = 0x8e;
    /// Nested page fault.
    pub const NPF: u32 = 0x400;
    /// The state in the VMCB was not valid. 64 bits of ones by the manual; QEMU 7.2 writes 32.
    pub const INVALID: u32 = 0xffff_ffff;
}

/// A segment register (APM vol 2, table B-2).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Descriptor bits 40-47 and 52-55, packed into 12 bits.
    pub attributes: u16,
    /// Limit in bytes, granularity applied.
    pub limit: u32,
    /// Base address.
    pub base: u64,
}

/// The control area (APM vol 2, table B-1).
#[repr(C)]
pub struct Control {
    /// Intercepts of control register reads (low half) and writes (high half).
    pub intercept_cr: u32,
    /// Intercepts of debug register accesses.
    pub intercept_dr: u32,
    /// Intercepts of exceptions, by vector.
    pub intercept_exceptions: u32,
    /// See [`Intercept3`].
    pub intercept3: u32,
    /// See [`Intercept4`].
    pub intercept4: u32,
    _reserved0: [u8; 0x40 - 0x14],
    /// Physical address of the 12 KiB I/O permission map.
    pub iopm_base: u64,
    /// Physical address of the 8 KiB MSR permission map.
    pub msrpm_base: u64,
    /// Added to the time-stamp counter that the guest reads.
    pub tsc_offset: u64,
    /// Address space identifier; 0 is the host's.
    pub asid: u32,
    /// 0 nothing, 1 flush everything, 3 flush this guest's entries.
    pub tlb_control: u32,
    /// See [`VirtualInterrupt`].
    pub virtual_interrupt: u64,
    /// Bit 0: the guest is in an interrupt shadow (after STI or MOV SS).
    pub interrupt_shadow: u64,
    /// See [`exit_code`].
    pub exit_code: u64,
    /// First word about the exit.
    pub exit_info1: u64,
    /// Second word about the exit.
    pub exit_info2: u64,
    /// The event whose delivery the exit interrupted, in the format of `event_injection`.
    pub exit_interrupt_info: u64,
    /// Bit 0: nested paging.
    pub nested_paging: u64,
    _reserved1: [u8; 0xa8 - 0x98],
    /// Event to deliver at the next entry (APM vol 2, 15.20).
    pub event_injection: u64,
    /// Root of the nested page tables.
    pub nested_cr3: u64,
    _reserved2: u64,
    /// Which state the processor may keep from the last run; 0: reload everything.
    pub clean: u64,
    /// Address of the next instruction, where the processor saves it.
    pub next_rip: u64,
    /// How many bytes of the instruction that caused a nested page fault the processor saved (decode
    /// assists, APM vol 2, 15.8.4); 0 where it does not.
    pub fetched: u8,
    /// Those bytes.
    pub instruction: [u8; 15],
    _reserved3: [u8; 0x400 - 0xe0],
}

/// The state save area (APM vol 2, table B-2).
#[repr(C)]
pub struct Save {
    /// ES.
    pub es: Segment,
    /// CS.
    pub cs: Segment,
    /// SS.
    pub ss: Segment,
    /// DS.
    pub ds: Segment,
    /// FS.
    pub fs: Segment,
    /// GS.
    pub gs: Segment,
    /// GDTR.
    pub gdtr: Segment,
    /// LDTR.
    pub ldtr: Segment,
    /// IDTR.
    pub idtr: Segment,
    /// TR.
    pub tr: Segment,
    _reserved0: [u8; 0x4cb - 0x4a0],
    /// Current privilege level.
    pub cpl: u8,
    _reserved1: u32,
    /// EFER; SVME must be set.
    pub efer: u64,
    _reserved2: [u8; 0x548 - 0x4d8],
    /// CR4.
    pub cr4: u64,
    /// CR3.
    pub cr3: u64,
    /// CR0.
    pub cr0: u64,
    /// DR7.
    pub dr7: u64,
    /// DR6.
    pub dr6: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// RIP.
    pub rip: u64,
    _reserved3: [u8; 0x5d8 - 0x580],
    /// RSP.
    pub rsp: u64,
    _reserved4: [u8; 0x5f8 - 0x5e0],
    /// RAX.
    pub rax: u64,
    /// STAR.
    pub star: u64,
    /// LSTAR.
    pub lstar: u64,
    /// CSTAR.
    pub cstar: u64,
    /// SFMASK.
    pub sfmask: u64,
    /// KernelGSBase.
    pub kernel_gs_base: u64,
    /// SYSENTER_CS.
    pub sysenter_cs: u64,
    /// SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// CR2.
    pub cr2: u64,
    _reserved5: [u8; 0x668 - 0x648],
    /// Guest PAT.
    pub g_pat: u64,
    _reserved6: [u8; 0x1000 - 0x670],
}

/// The whole block: one page.
#[repr(C, align(4096))]
pub struct Vmcb {
    /// What is intercepted, injected, and why the guest was left.
    pub control: Control,
    /// The guest's registers that the processor swaps.
    pub save: Save,
}

const _: () = {
    assert!(size_of::<Control>() == 0x400);
    assert!(size_of::<Vmcb>() == 0x1000);
    assert!(offset_of!(Control, iopm_base) == 0x40);
    assert!(offset_of!(Control, asid) == 0x58);
    assert!(offset_of!(Control, exit_code) == 0x70);
    assert!(offset_of!(Control, event_injection) == 0xa8);
    assert!(offset_of!(Control, next_rip) == 0xc8);
    assert!(offset_of!(Vmcb, save.tr) == 0x490);
    assert!(offset_of!(Vmcb, save.cpl) == 0x4cb);
    assert!(offset_of!(Vmcb, save.efer) == 0x4d0);
    assert!(offset_of!(Vmcb, save.cr4) == 0x548);
    assert!(offset_of!(Vmcb, save.rsp) == 0x5d8);
    assert!(offset_of!(Vmcb, save.rax) == 0x5f8);
    assert!(offset_of!(Vmcb, save.cr2) == 0x640);
    assert!(offset_of!(Vmcb, save.g_pat) == 0x668);
};

/// [`Control::intercept_cr`]: MOV to CR8.
pub const INTERCEPT_CR8_WRITE: u32 = 1 << 24;

/// An event for `event_injection` (APM vol 2, 15.20).
pub mod event {
    /// The word holds an event.
    pub const VALID: u64 = 1 << 31;
    const ERROR_CODE_VALID: u64 = 1 << 11;
    const TYPE: u64 = 7 << 8;
    const INTERRUPT: u64 = 0;
    const EXCEPTION: u64 = 3 << 8;

    /// An external interrupt.
    pub const fn interrupt(vector: u8) -> u64 {
        VALID | INTERRUPT | vector as u64
    }

    /// An exception, with its error code where it has one.
    pub const fn exception(vector: u8, error_code: Option<u32>) -> u64 {
        let word = VALID | EXCEPTION | vector as u64;
        match error_code {
            Some(code) => word | ERROR_CODE_VALID | (code as u64) << 32,
            None => word,
        }
    }

    /// Whether `info`, an event whose delivery an exit interrupted, is the virtual interrupt `offered`.
    ///
    /// QEMU 7.2 reports a virtual interrupt as an exception with the interrupt's vector.
    pub const fn is_interrupt(info: u64, offered: u8) -> bool {
        info & VALID != 0 && matches!(info & TYPE, INTERRUPT | EXCEPTION) && info as u8 == offered
    }

    /// Whether `info` may be injected: an exception, NMI or software interrupt, but no other interrupt, and no
    /// exception with a vector that is not one's.
    pub const fn can_be_injected(info: u64) -> bool {
        info & VALID != 0
            && match info & TYPE {
                INTERRUPT => false,
                EXCEPTION => (info as u8) < 31,
                _ => true,
            }
    }
}
