//! Interrupts of physical devices: I/O APICs, lines that functions share, and messages.

pub mod ioapic;
pub mod line;
pub mod message;

use core::sync::atomic::{AtomicBool, Ordering};

static PENDING: AtomicBool = AtomicBool::new(false);

/// Notes that a device raised an interrupt, which those who serve devices have not looked at yet.
pub fn set_pending() {
    PENDING.store(true, Ordering::SeqCst);
}

/// Whether a device raised an interrupt since the last call.
#[inline]
pub fn take_pending() -> bool {
    PENDING.swap(false, Ordering::SeqCst)
}
