//! Memory that nobody else must write to.
//!
//! [`run`] gives all of it contents of its own and compares checksums; [`watch`] got memory of a guest that
//! died and looks whether it stays as clean as it came.

use crate::console::println;
use crate::entry::{self, BootInfo};
use crate::isolation::wait_for_key;

fn read(at: u64) -> u64 {
    unsafe { (at as *const u64).read_volatile() }
}

/// Begins each page, so that an attacker can find it.
pub const PREY: u32 = 0x5052_4559;

/// A word that is at one address only, but for the first of each page.
fn contents(at: u64) -> u64 {
    if at.is_multiple_of(4096) {
        return PREY.into();
    }
    (at ^ 0x6a09_e667_f3bc_c908).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// All its memory but for what the kernel itself changes: checksum and bytes.
fn checksum(boot: &BootInfo) -> (u64, u64) {
    let (data, end) = entry::data();
    let (mut sum, mut bytes) = (0u64, 0);
    for (from, to) in [(0, data), (end, boot.top())] {
        for at in (from..to & !7).step_by(8) {
            sum = (sum.rotate_left(5) ^ read(at)).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        bytes += to - from;
    }
    (sum, bytes)
}

/// Fills its memory, waits for a key, and says whether all of it is as it was.
pub fn run(boot: &BootInfo) {
    let (start, end) = boot.spare();
    for at in (start..end).step_by(8) {
        unsafe { (at as *mut u64).write_volatile(contents(at)) };
    }
    let (before, bytes) = checksum(boot);
    println!("SLUICE-RESULT witness=ready bytes={bytes} before={before:016x}");
    wait_for_key();
    let (after, _) = checksum(boot);
    let wrong = |at: &u64| read(*at) != contents(*at);
    let changed = (start..end).step_by(8).filter(wrong).count();
    let first = (start..end).step_by(8).find(wrong).unwrap_or(0);
    let verdict = if after == before && changed == 0 { "ok" } else { "bad" };
    println!("SLUICE-RESULT after={after:016x} changed={changed} first={first:#x}");
    println!("SLUICE-RESULT unchanged={verdict} done=ok");
}

/// Looks at all its spare memory again and again, `passes=` times: every word is zero, and stays so.
pub fn watch(boot: &BootInfo) {
    let passes: u64 = boot.argument("passes").and_then(|text| text.parse().ok()).unwrap_or(50);
    let (start, end) = boot.spare();
    println!("SLUICE-RESULT watch=now bytes={}", end - start);
    let mut dirty = 0;
    for pass in 0..passes {
        dirty = (start..end).step_by(8).filter(|at| read(*at) != 0).count();
        if dirty != 0 {
            let first = (start..end).step_by(8).find(|at| read(*at) != 0).unwrap_or(0);
            println!("SLUICE-RESULT pass={pass} first={first:#x} holds={:#x}", read(first));
            break;
        }
    }
    println!("SLUICE-RESULT watched={passes} dirty={dirty} done=ok");
}
