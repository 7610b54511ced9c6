//! The frequency of the time-stamp counter: from CPUID where a leaf gives it, else from a comparison with the ACPI
//! power-management timer (3.579545 MHz; ACPI specification, 4.8.3.3).

use crate::firmware::acpi;
use crate::x86::{cpuid, cpuid_checked, port, tsc};

const PM_TIMER_HZ: u64 = 3_579_545;
const CALIBRATION_MS: u64 = 50;

/// Finds the frequency. Once, on the boot processor; needs ACPI.
pub fn init() {
    tsc::start();
    let (khz, source) = if let Some(khz) = from_cpuid() {
        (khz, "CPUID")
    } else if let Some(port) = acpi::pm_timer_port() {
        (against_pm_timer(port), "the ACPI timer")
    } else {
        panic!("no clock to calibrate the time-stamp counter with: neither CPUID leaf nor ACPI timer");
    };
    tsc::set_frequency(khz);
    log::info!("TSC {}.{:03} MHz by {source}", khz / 1000, khz % 1000);
}

/// Leaf 0x15 gives ratio and crystal; leaf 0x4000_0010 of several hypervisors gives kHz.
fn from_cpuid() -> Option<u64> {
    let leaf = cpuid_checked(0x15, 0);
    if leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0 {
        return Some(u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax) / 1000);
    }
    let hypervisor = cpuid(1, 0).ecx & 1 << 31 != 0;
    if hypervisor && cpuid(0x4000_0000, 0).eax >= 0x4000_0010 {
        let khz = cpuid(0x4000_0010, 0).eax;
        return (khz != 0).then_some(khz.into());
    }
    None
}

fn against_pm_timer(timer: u16) -> u64 {
    let read = || port::inl(timer) & 0xff_ffff;
    let (tsc0, pm0) = tsc::beside(read);
    let target = (PM_TIMER_HZ * CALIBRATION_MS / 1000) as u32;
    // The counter may be 24 bits wide; 50 ms are far below its period of 4.7 s.
    while read().wrapping_sub(pm0) & 0xff_ffff < target {
        core::hint::spin_loop();
    }
    let (tsc1, pm1) = tsc::beside(read);
    let elapsed = u64::from(pm1.wrapping_sub(pm0) & 0xff_ffff);
    (u128::from(tsc1 - tsc0) * u128::from(PM_TIMER_HZ) / u128::from(elapsed) / 1000) as u64
}
