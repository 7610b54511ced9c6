//! How long operations take that do nothing: an ioctl that no driver knows.

use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::Order;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

// SAFETY: No driver knows it.
const NOTHING: Order = unsafe { Order::new(0xff << 8 | 0xff) };

/// Makes an ioctl that does nothing.
pub fn nothing(file: &File) -> Result<()> {
    ensure!(NOTHING.give(file).is_err(), "a driver knows an ioctl that nobody knows");
    Ok(())
}

/// Makes so many ioctls.
pub fn run(path: &Path, count: u32) -> Result<()> {
    let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let begin = Instant::now();
    for _ in 0..count {
        nothing(&file)?;
    }
    let each = begin.elapsed().as_nanos() / u128::from(count.max(1));
    result(&format!("noop_count={count}"));
    result(&format!("noop_ns={each}"));
    Ok(())
}
