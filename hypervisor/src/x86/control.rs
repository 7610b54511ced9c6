//! Control registers and the small instructions around them.

use core::arch::asm;

/// CR0: write protection in ring 0.
pub const CR0_WP: u64 = 1 << 16;
/// CR0: cache disable.
pub const CR0_CD: u64 = 1 << 30;
/// CR0: task switched: the next FPU instruction raises #NM.
pub const CR0_TS: u64 = 1 << 3;
/// CR0: FPU emulation.
pub const CR0_EM: u64 = 1 << 2;
/// CR0: monitor coprocessor.
pub const CR0_MP: u64 = 1 << 1;
/// CR0: native FPU error reporting.
pub const CR0_NE: u64 = 1 << 5;
/// CR4: global pages.
pub const CR4_PGE: u64 = 1 << 7;
/// CR4: machine checks raise #MC.
pub const CR4_MCE: u64 = 1 << 6;
/// CR4: FXSAVE and SSE are in use.
pub const CR4_OSFXSR: u64 = 1 << 9;
/// CR4: SSE exceptions are taken as #XM.
pub const CR4_OSXMMEXCPT: u64 = 1 << 10;
/// CR4: XSAVE and XCR0 are in use.
pub const CR4_OSXSAVE: u64 = 1 << 18;
/// CR4: no execution of user pages in ring 0.
pub const CR4_SMEP: u64 = 1 << 20;

macro_rules! register {
    ($read:ident, $write:ident, $name:literal) => {
        #[doc = concat!("Reads ", $name, ".")]
        #[inline]
        pub fn $read() -> u64 {
            let value;
            // SAFETY: reading a control register has no effect.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }

        #[doc = concat!("Writes ", $name, ".")]
        ///
        /// # Safety
        /// The value must be legal, and keep the hypervisor mapped and its memory model as compiled for.
        #[inline]
        #[allow(dead_code, reason = "CR2 is only read")]
        pub unsafe fn $write(value: u64) {
            // SAFETY: the caller answers for the value.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
        }
    };
}

register!(read_cr0, write_cr0, "cr0");
register!(read_cr2, write_cr2, "cr2");
register!(read_cr3, write_cr3, "cr3");
register!(read_cr4, write_cr4, "cr4");

/// Reads an extended control register; CR4.OSXSAVE must be set, else it faults.
#[inline]
pub fn xgetbv(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: has no effect but its result.
    unsafe {
        asm!("xgetbv", in("ecx") register, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes an extended control register.
///
/// # Safety
/// The value must be one the processor accepts. The hypervisor is compiled without FPU and vector code, so any
/// accepted value leaves it as it was.
#[inline]
pub unsafe fn xsetbv(register: u32, value: u64) {
    // SAFETY: the caller answers for the value.
    unsafe {
        asm!("xsetbv", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nomem, nostack, preserves_flags))
    };
}

/// Forgets all translations of this processor, global ones too.
pub fn flush_translations() {
    let cr4 = read_cr4();
    // SAFETY: toggling PGE flushes the TLB and leaves CR4 as it was found.
    unsafe {
        write_cr4(cr4 ^ CR4_PGE);
        write_cr4(cr4);
    }
}

/// Reads the breakpoint addresses, DR0 to DR3.
pub fn read_breakpoints() -> [u64; 4] {
    let (a, b, c, d): (u64, u64, u64, u64);
    // SAFETY: has no effect but its result; the hypervisor never sets DR7.GD, and an exit clears the guest's.
    unsafe {
        asm!("mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3", out(reg) a, out(reg) b, out(reg) c,
            out(reg) d, options(nomem, nostack, preserves_flags));
    }
    [a, b, c, d]
}

/// Sets the breakpoint addresses. They mean nothing until a guest's DR7 enables them.
pub fn write_breakpoints([a, b, c, d]: [u64; 4]) {
    // SAFETY: DR7 disables all breakpoints while the hypervisor runs (APM vol 2, 15.6).
    unsafe {
        asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", in(reg) a, in(reg) b, in(reg) c, in(reg) d,
            options(nomem, nostack, preserves_flags));
    }
}

/// Reads the time-stamp counter, unordered against earlier instructions.
#[inline]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: has no effect but its result.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// What CPUID returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidResult {
    /// Register EAX.
    pub eax: u32,
    /// Register EBX.
    pub ebx: u32,
    /// Register ECX.
    pub ecx: u32,
    /// Register EDX.
    pub edx: u32,
}

/// Executes CPUID for `leaf` and `subleaf`, whatever the highest leaf is.
#[inline]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    let r = core::arch::x86_64::__cpuid_count(leaf, subleaf);
    CpuidResult { eax: r.eax, ebx: r.ebx, ecx: r.ecx, edx: r.edx }
}

/// Executes CPUID, or returns zeros where the processor has no such leaf.
pub fn cpuid_checked(leaf: u32, subleaf: u32) -> CpuidResult {
    if cpuid(leaf & 0xffff_0000, 0).eax >= leaf { cpuid(leaf, subleaf) } else { CpuidResult::default() }
}
