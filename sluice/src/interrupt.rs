//! Ctrl-C, and the other signals that ask a program to end: counted, for those who end in order.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

static COUNT: AtomicU32 = AtomicU32::new(0);
static UNATTENDED: AtomicBool = AtomicBool::new(false);

/// From now on these signals end nothing by themselves.
///
/// # Errors
/// The system does not let us.
pub fn count_from_now_on() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("could not listen for Ctrl-C")?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            UNATTENDED.fetch_or(signal != SIGINT, Ordering::Relaxed);
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// How many have come.
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// How long guests get to power off after a signal that is no Ctrl-C. Supervisors wait longer for a service: systemd 90 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether what was asked to end, so long ago, is to be ended now: when a second signal has come, or when nobody is there to send one,
/// since the first came from a program, or because the terminal is gone.
pub fn is_enough(waited: Option<Duration>) -> bool {
    enough(count(), UNATTENDED.load(Ordering::Relaxed), waited)
}

fn enough(count: u32, unattended: bool, waited: Option<Duration>) -> bool {
    count > 1 || count == 1 && unattended && waited.is_some_and(|waited| waited >= PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_ask_twice_waits_for_a_minute() {
        let [short, long] = [PATIENCE / 2, PATIENCE].map(Some);
        assert!(enough(2, false, None));
        assert!(!enough(1, false, long), "whoever pressed Ctrl-C can press it again");
        assert!(!enough(1, true, short) && enough(1, true, long));
        assert!(!enough(1, true, None) && !enough(0, true, long));
    }
}
