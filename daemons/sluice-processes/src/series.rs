//! A load that goes on: processes come and go in bursts of different size, whose page tables are few or many. It is the same each time, so that what it costs
//! can be told interval by interval, and beside a cache of page tables that is there from the beginning, or comes in the middle, or never does.
//!
//! Source: PiBooster, 5.1 and 5.2.1, where a browser opens and closes its tabs for 30 minutes.
//! Deviations: bursts of processes in place of a browser's, intervals of so many processes in place of minutes.

use crate::check;
use crate::work::Work;
use anyhow::{Context, Result};
use sluice_processes::mark;
use std::path::Path;

/// Intervals, and the one before which a cache is switched on.
pub const INTERVALS: usize = 24;
pub const SWITCH: usize = 8;
/// Bursts in an interval.
const BURSTS: usize = 6;
/// Most processes of a burst, and most lowest page tables that one fills beside its own.
const PROCESSES: u32 = 8;
const TABLES: u32 = 16;
/// What one lowest page table maps, in bytes.
const REACH: usize = 2 << 20;

/// The same numbers each time (a linear congruential generator, Numerical Recipes' constants).
struct Numbers(u32);

impl Numbers {
    /// One of 1 to `most`.
    fn next(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (self.0 >> 16) % most
    }
}

/// Does all intervals, a mark after each. The switch, if there is one, is written to before its interval. Returns how many processes there were.
pub fn run(switch: Option<&Path>) -> Result<usize> {
    let mut numbers = Numbers(15);
    let mut processes = 0;
    mark();
    for interval in 0..INTERVALS {
        if let Some(switch) = switch.filter(|_| interval == SWITCH) {
            std::fs::write(switch, "1")
                .with_context(|| format!("could not write to {}", switch.display()))?;
        }
        for _ in 0..BURSTS {
            let (count, tables) = (numbers.next(PROCESSES), numbers.next(TABLES));
            burst(count, tables)?;
            Work::Execve.run(1)?;
            processes += count as usize + 1;
        }
        mark();
    }
    Ok(processes)
}

/// Processes that are there together, each with so many more page tables, and end together.
fn burst(count: u32, tables: u32) -> Result<()> {
    let mut ends = [0; 2];
    // SAFETY: the two numbers are written and nothing else.
    check("pipe", i64::from(unsafe { libc::pipe(ends.as_mut_ptr()) }))?;
    let mut children = Vec::new();
    for _ in 0..count {
        // SAFETY: this process has one thread. The child maps memory of its own, writes within it, waits for the pipe's end, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::close(ends[1]);
                let failed = fill(tables as usize);
                let mut byte = 0_u8;
                libc::read(ends[0], std::ptr::from_mut(&mut byte).cast(), 1);
                libc::_exit(i32::from(failed));
            }
        }
        check("fork", i64::from(child))?;
        children.push(child);
    }
    // SAFETY: both ends are this process's, and closed once: the children read the end of what comes.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    for child in children {
        let mut status = 0;
        // SAFETY: `status` is written and nothing else.
        check("waitpid", i64::from(unsafe { libc::waitpid(child, &mut status, 0) }))?;
        anyhow::ensure!(status == 0, "a process ended with status {status:#x}");
    }
    Ok(())
}

/// Has a page in the reach of so many lowest page tables. True: there is no memory.
///
/// # Safety
///
/// Nobody uses what is mapped here: it lasts as long as the process.
unsafe fn fill(tables: usize) -> bool {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, written within its bounds.
    unsafe {
        let size = tables * REACH;
        let memory = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            return true;
        }
        for table in 0..tables {
            memory.cast::<u8>().add(table * REACH).write_volatile(1);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_the_same_each_time() {
        let sizes = || {
            let mut numbers = Numbers(15);
            (0..100).map(|_| numbers.next(PROCESSES)).collect::<Vec<_>>()
        };
        assert_eq!(sizes(), sizes());
        assert!((1..=PROCESSES).all(|size| sizes().contains(&size)));
    }

    #[test]
    fn processes_of_a_burst_end_when_all_are_there() {
        burst(3, 2).unwrap();
    }
}
