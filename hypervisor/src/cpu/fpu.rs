//! FPU, SSE and AVX state of guests.
//!
//! The hypervisor is built without floating point, so a guest's state just stays in the registers
//! while its exits are handled; it is saved only when another virtual processor takes over.
//! Source: APM vol 2, 11.5 (XSAVE); vol 4, XSAVE and XRSTOR.

use super::control::{cpuid, xgetbv, xsetbv};
use crate::mm;
use sluice_memory::Hpa;

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
        // XCR0 was read from the hardware or passed `set_xcr0`'s check.
        unsafe {
            xsetbv(0, all);
            core::arch::asm!("xrstor64 [{}]", in(reg) mm::virt(self.area),
                in("eax") all as u32, in("edx") (all >> 32) as u32, options(nostack));
            xsetbv(0, self.xcr0);
        }
    }
}

impl Drop for FpuState {
    fn drop(&mut self) {
        mm::release(self.area, self.bytes);
    }
}

/// Sets XCR0 for the guest whose state is in the registers. Returns false for a value that XSETBV
/// would refuse (APM vol 2, 11.5.2): x87 off, AVX without SSE, or what the processor lacks.
pub fn set_xcr0(value: u64) -> bool {
    const SSE: u64 = 2;
    const AVX: u64 = 4;
    if value & 1 == 0 || value & !supported() != 0 || (value & AVX != 0 && value & SSE == 0) {
        return false;
    }
    // SAFETY: checked above against the rules of XSETBV.
    unsafe { xsetbv(0, value) };
    true
}
