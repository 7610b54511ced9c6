//! Operations that follow each other closely, and what may come between them.

use crate::{noop, result};
use anyhow::{Context, Result, bail, ensure};
use sluice_backend::sys;
use std::fs::{File, read_dir, read_to_string};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Operations between two reads.
const ROW: u32 = 500;
/// Rows until enough must have gone by the lane.
const MOST: u32 = 40;
/// How many are enough: of all, and of reads that waited there.
const ENOUGH: (u64, u64) = (200, 2);
/// How long a read waits.
const WAIT: Duration = Duration::from_millis(100);

/// Makes them.
pub fn run(path: &Path) -> Result<()> {
    sys::heed_interruptions().context("could not heed interruptions")?;
    let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let mut rows = 0;
    loop {
        for _ in 0..ROW {
            noop::nothing(&file)?;
        }
        ensure!(interrupted(&file)? == libc::EINTR, "a read that was interrupted ended otherwise");
        for _ in 0..3 {
            noop::nothing(&file)?;
        }
        sys::set_waiting(&file, false)?;
        ensure!(error_of_read(&file)? == libc::EAGAIN, "a read that is not to wait ended otherwise");
        sys::set_waiting(&file, true)?;
        rows += 1;
        let (posted, adopted) = (counted("posted")?, counted("adopted")?);
        if posted >= ENOUGH.0 && adopted >= ENOUGH.1 {
            break;
        }
        ensure!(
            rows < MOST,
            "of {} operations {posted} were posted, {adopted} of them waited",
            rows * (ROW + 5)
        );
    }
    result("lane=used");
    Ok(())
}

/// Operations that come so slowly that nobody looks for the next one any more, and those that then come in a row.
const SLOW: u32 = 150;
const QUICK: u32 = 200;
/// Who has looked in vain looks one time in so many, and is to find the next operation then.
const SELDOM: u32 = 64;
/// From one of the slow ones to the next: longer than anybody looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes them.
pub fn again(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    for _ in 0..SLOW {
        noop::nothing(&file)?;
        std::thread::sleep(PAUSE);
    }
    let before = counted("posted")?;
    for _ in 0..QUICK {
        noop::nothing(&file)?;
    }
    let posted = counted("posted")? - before;
    result(&format!("lane_again_posted={posted}"));
    ensure!(posted >= u64::from(QUICK - SELDOM), "of {QUICK} operations in a row {posted} were posted");
    result("lane=used_again");
    Ok(())
}

/// The error of a read in which a signal comes.
fn interrupted(file: &File) -> Result<i32> {
    let thread = sys::thread();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(WAIT);
            sys::interrupt(thread);
        });
        error_of_read(file)
    })
}

fn error_of_read(mut file: &File) -> Result<i32> {
    match file.read(&mut [0; 64]) {
        Ok(bytes) => bail!("{bytes} bytes came from a device that is silent"),
        Err(error) => error.raw_os_error().context("a read failed without a reason"),
    }
}

/// A count of the front end's, of all its devices.
fn counted(what: &str) -> Result<u64> {
    let mut sum = 0;
    for device in read_dir("/sys/bus/virtio/drivers/sluice_devfile").context("there is no front end")? {
        if let Ok(text) = read_to_string(device?.path().join(what)) {
            sum += text.trim().parse::<u64>().context("a count is no number")?;
        }
    }
    Ok(sum)
}
