//! AMD SVM: enabling it, entering a guest, and the permission maps.
//!
//! All code that knows the vendor is in this folder. Source: APM vol 2, chapter 15.

pub mod vmcb;

use crate::cpu::qemu_tcg;
use crate::mm::{self, FrameUse};
use crate::x86::msr::EFER;
/// A guest's EFER must have it too (APM vol 2, 15.5.1).
pub use crate::x86::msr::EFER_SVME;
use crate::x86::{self, rdmsr, wrmsr};
use core::arch::global_asm;
use core::fmt;
use core::ptr::NonNull;
use sluice_memory::{Asids, Hpa, PAGE_SIZE};
use vmcb::Vmcb;

const VM_CR: u32 = 0xc001_0114;
const VM_CR_SVMDIS: u64 = 1 << 4;
/// INIT raises #SX instead of resetting the processor (APM vol 2, 15.30.1).
const VM_CR_R_INIT: u64 = 1 << 1;
const VM_HSAVE_PA: u32 = 0xc001_0117;

/// Why this processor cannot run guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// CPUID 8000_0001 ECX bit 2 is clear.
    NoSvm,
    /// Firmware locked it off (VM_CR.SVMDIS).
    Disabled,
    /// No nested paging (CPUID 8000_000A EDX bit 0).
    NoNestedPaging,
    /// No address space identifier for a guest (CPUID 8000_000A EBX).
    NoAsids,
    /// No memory for the host's own save areas.
    NoMemory,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoSvm => {
                "it has no AMD SVM. Sluice needs an AMD processor with SVM (AMD-V); if this is one, switch SVM on in the \
                 firmware's setup. In a virtual machine, let its processor show SVM"
            }
            Self::Disabled => "its firmware has locked SVM off: switch SVM (AMD-V) on in the firmware's setup",
            Self::NoNestedPaging => "it has SVM, but no nested paging, which Sluice needs: AMD processors have it since 2007",
            Self::NoAsids => "it tells no guests apart: it offers no address space identifiers",
            Self::NoMemory => "there is no memory left for its save areas",
        })
    }
}

/// What a processor needs to go in and out of guests.
pub struct HostArea {
    /// Its address space identifiers.
    pub asids: Asids,
    /// Where `vmload` finds the hypervisor's own FS, GS, TR and system-call state.
    host_vmcb: Hpa,
    /// An entry that offers a virtual interrupt may lose track of a physical one ([`qemu_tcg`]).
    pub loses_interrupts: bool,
}

/// Looks whether this processor can run guests. Returns its address space identifiers.
fn identify() -> Result<Asids, Unsupported> {
    if x86::cpuid(0x8000_0001, 0).ecx & 1 << 2 == 0 {
        return Err(Unsupported::NoSvm);
    }
    let svm = x86::cpuid(0x8000_000a, 0);
    if svm.edx & 1 == 0 {
        return Err(Unsupported::NoNestedPaging);
    }
    Asids::new(svm.ebx).ok_or(Unsupported::NoAsids)
}

/// Whether the calling processor can run guests; and the identifiers that it has for them.
///
/// # Errors
/// Says what is missing.
pub fn check() -> Result<Asids, Unsupported> {
    let asids = identify()?;
    if rdmsr(VM_CR) & VM_CR_SVMDIS != 0 { Err(Unsupported::Disabled) } else { Ok(asids) }
}

/// Switches SVM on for the calling processor, after its GDT, TSS and GS base are final.
///
/// # Errors
/// Says what is missing.
pub fn enable() -> Result<HostArea, Unsupported> {
    let asids = check()?;
    // SAFETY: the MSRs exist, as `check` found SVM; setting SVME changes nothing by itself.
    unsafe {
        wrmsr(EFER, rdmsr(EFER) | EFER_SVME);
        // All processors run: no INIT is expected any more, and a device's must not take one away.
        wrmsr(VM_CR, rdmsr(VM_CR) | VM_CR_R_INIT);
    }
    let page = || mm::allocate(FrameUse::Hypervisor, PAGE_SIZE, PAGE_SIZE).ok_or(Unsupported::NoMemory);
    let (save, host_vmcb) = (page()?, page()?);
    // SAFETY: both pages were just allocated for this processor and are never freed.
    unsafe {
        wrmsr(VM_HSAVE_PA, save.as_u64());
        core::arch::asm!("vmsave rax", in("rax") host_vmcb.as_u64(), options(nostack, preserves_flags));
    }
    Ok(HostArea { asids, host_vmcb, loses_interrupts: qemu_tcg::is_tcg() })
}

/// General registers of a guest, by hardware number; RAX (0) and RSP (4) live in the VMCB.
pub type Registers = [u64; 16];

global_asm!(
    // extern "C" fn(regs: rdi, vmcb: rsi, host_vmcb: rdx)
    ".pushsection .text.svm_enter, \"ax\"",
    ".global svm_enter",
    "svm_enter:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "push rdx",
    "mov rax, rsi",
    "mov rcx, [rdi + 1*8]",
    "mov rdx, [rdi + 2*8]",
    "mov rbx, [rdi + 3*8]",
    "mov rbp, [rdi + 5*8]",
    "mov rsi, [rdi + 6*8]",
    "mov r8,  [rdi + 8*8]",
    "mov r9,  [rdi + 9*8]",
    "mov r10, [rdi + 10*8]",
    "mov r11, [rdi + 11*8]",
    "mov r12, [rdi + 12*8]",
    "mov r13, [rdi + 13*8]",
    "mov r14, [rdi + 14*8]",
    "mov r15, [rdi + 15*8]",
    "mov rdi, [rdi + 7*8]",
    // With GIF clear and IF set a physical interrupt ends the guest's run and is taken after STGI.
    "clgi",
    "sti",
    "vmload rax",
    "vmrun rax",
    "vmsave rax",
    "pop rax",
    "vmload rax",
    "pop rax",
    "mov [rax + 1*8], rcx",
    "mov [rax + 2*8], rdx",
    "mov [rax + 3*8], rbx",
    "mov [rax + 5*8], rbp",
    "mov [rax + 6*8], rsi",
    "mov [rax + 7*8], rdi",
    "mov [rax + 8*8], r8",
    "mov [rax + 9*8], r9",
    "mov [rax + 10*8], r10",
    "mov [rax + 11*8], r11",
    "mov [rax + 12*8], r12",
    "mov [rax + 13*8], r13",
    "mov [rax + 14*8], r14",
    "mov [rax + 15*8], r15",
    "cli",
    "stgi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn svm_enter(regs: *mut Registers, vmcb: u64, host_vmcb: u64);
}

/// Runs the guest until its next exit.
///
/// # Safety
/// `vmcb_at` is the physical address of a VMCB whose nested tables and permission maps are alive and
/// give the guest nothing but what is its own; SVM is enabled on this processor with `host`.
#[inline]
pub unsafe fn enter(host: &HostArea, regs: &mut Registers, vmcb_at: Hpa) {
    // SAFETY: the caller vouches for the VMCB; the assembly keeps all callee-saved registers.
    unsafe { svm_enter(regs, vmcb_at.as_u64(), host.host_vmcb.as_u64()) }
}

/// A VMCB in a page of its own.
pub struct VmcbPage {
    at: Hpa,
    /// The same page in the direct map.
    block: NonNull<Vmcb>,
}

// SAFETY: the page is this object's alone, and every processor has the direct map.
unsafe impl Send for VmcbPage {}

impl VmcbPage {
    /// Allocates a cleared VMCB.
    pub fn new() -> Option<Self> {
        let at = mm::allocate_zeroed(PAGE_SIZE)?;
        Some(Self { at, block: NonNull::new(mm::virt(at).cast())? })
    }

    /// Physical address, for [`enter`].
    pub fn address(&self) -> Hpa {
        self.at
    }
}

impl Drop for VmcbPage {
    fn drop(&mut self) {
        mm::release(FrameUse::Hypervisor, self.at, PAGE_SIZE);
    }
}

impl core::ops::Deref for VmcbPage {
    type Target = Vmcb;
    fn deref(&self) -> &Vmcb {
        // SAFETY: the page is this object's alone, aligned, and any bit pattern is a valid Vmcb. The
        // processor writes it only inside `enter`, while no reference exists.
        unsafe { self.block.as_ref() }
    }
}

impl core::ops::DerefMut for VmcbPage {
    fn deref_mut(&mut self) -> &mut Vmcb {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { self.block.as_mut() }
    }
}
