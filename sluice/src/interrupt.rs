//! Ctrl-C, and the other signals that ask a program to end: counted, for those who end in order.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// From now on these signals end nothing by themselves.
///
/// # Errors
/// The system does not let us.
pub fn count_from_now_on() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("could not listen for Ctrl-C")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// How many have come.
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}
