//! FPU, SSE and AVX state of guests.
//!
//! The hypervisor is built without floating point, so a guest's state just stays in the registers
//! while its exits are handled; it is saved only when another virtual processor takes over.
//! Source: APM vol 2, 11.5 (XSAVE); vol 4, XSAVE and XRSTOR.

use crate::mm;
use crate::x86::{cpuid, xgetbv, xsetbv};
use sluice_memory::Hpa;
use sluice_platform::cpuid::state_components;
use sluice_platform::{GeneralProtection, xcr0};

/// Saved extended state of one virtual processor, and its XCR0.
pub struct FpuState {
    area: Hpa,
    bytes: u64,
    xcr0: u64,
}

/// Components that this processor has, from CPUID leaf 0xD.
fn supported() -> u64 {
    let leaf = cpuid(0xd, 0);
    u64::from(leaf.edx) << 32 | u64::from(leaf.eax)
}

impl FpuState {
    /// The state after reset: all components initial, XCR0 = x87 only.
    pub fn new() -> Option<Self> {
        // EBX is the size for what XCR0 enables now, ECX for everything the processor has.
        let bytes = u64::from(cpuid(0xd, 0).ecx).max(576).next_multiple_of(4096);
        let area = mm::allocate_zeroed(bytes)?;
        let mut state = Self { area, bytes, xcr0: 1 };
        state.reset();
        Some(state)
    }

    /// Back to the state after reset.
    pub fn reset(&mut self) {
        mm::zero(self.area, self.bytes);
        // XSTATE_BV = 0 makes XRSTOR initialize every component, but MXCSR is loaded from the area.
        let mxcsr = 0x1f80u32;
        // SAFETY: MXCSR is at byte 24 of the legacy region of our own area.
        unsafe { mm::virt(self.area).add(24).cast::<u32>().write_volatile(mxcsr) };
        self.xcr0 = 1;
    }

    /// Takes the registers of this processor into the area.
    pub fn save(&mut self) {
        self.xcr0 = xgetbv(0);
        let all = supported();
        // SAFETY: `all` is what the processor supports; the area is page-aligned and large enough for
        // it (`new`); the hypervisor itself uses none of these registers.
        unsafe {
            xsetbv(0, all);
            core::arch::asm!("xsave64 [{}]", in(reg) mm::virt(self.area),
                in("eax") all as u32, in("edx") (all >> 32) as u32, options(nostack));
        }
    }

    /// Puts the area into the registers of this processor. Every component is overwritten, so that
    /// nothing of the last owner remains.
    pub fn restore(&self) {
        let all = supported();
        // SAFETY: as in `save`; the area was zeroed by `reset` or written by XSAVE, so it is valid.
        // XCR0 was read from the hardware or passed `set_xcr`'s check.
        unsafe {
            xsetbv(0, all);
            forget_pointers();
            core::arch::asm!("xrstor64 [{}]", in(reg) mm::virt(self.area),
                in("eax") all as u32, in("edx") (all >> 32) as u32, options(nostack));
            xsetbv(0, self.xcr0);
        }
    }
}

/// Puts addresses of the hypervisor into the x87 pointers to the last instruction and its operand. XRSTOR leaves them alone while
/// the state to load has no exception pending, unless CPUID 8000_0008 EBX bit 2 says otherwise (APM vol 2, 11.5.10): the next
/// guest would read those of the last.
///
/// # Safety
/// The x87 registers are nobody's: they are overwritten afterwards.
unsafe fn forget_pointers() {
    static ZERO: u32 = 0;
    // SAFETY: no exception is pending after FNCLEX, the register stack is empty after EMMS, and an integer loads without one.
    unsafe {
        core::arch::asm!("fnclex", "emms", "fild dword ptr [{}]", in(reg) &raw const ZERO, options(nostack, readonly));
    }
}

impl Drop for FpuState {
    fn drop(&mut self) {
        mm::release(mm::FrameUse::Hypervisor, self.area, self.bytes);
    }
}

/// An instruction for the XMM register of a number, 0-15, and memory at `at`.
macro_rules! with_xmm {
    ($index:expr, $before:literal, $after:literal, $at:expr; $($number:literal)+) => {
        match $index {
            // SAFETY: `at` is 16 bytes of the caller's own; CR4.OSFXSR is set and CR0.TS clear since `init_control`, and
            // no compiled code of the hypervisor uses these registers.
            $($number => unsafe {
                core::arch::asm!(concat!($before, $number, $after), at = in(reg) $at,
                    options(nostack, preserves_flags));
            },)+
            _ => {}
        }
    };
}

/// XMM register 0-15 of the guest whose state is in the registers.
pub fn xmm(index: usize) -> u128 {
    let mut value = 0u128;
    with_xmm!(index, "movups [{at}], xmm", "", &raw mut value; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    value
}

/// Sets XMM register 0-15 of that guest; the upper half of the YMM register stays.
pub fn set_xmm(index: usize, value: u128) {
    with_xmm!(index, "movups xmm", ", [{at}]", &raw const value; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// XSETBV of the guest whose state is in the registers, at privilege level `cpl`: sets extended control register `index`.
///
/// # Errors
/// The guest gets #GP.
pub fn set_xcr(cpl: u8, index: u32, value: u64) -> Result<(), GeneralProtection> {
    xcr0::check(cpl, index, value, state_components(supported()))?;
    // SAFETY: the check lets only values through that this processor takes.
    unsafe { xsetbv(0, value) };
    Ok(())
}
