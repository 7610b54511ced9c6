//! Interrupts of physical devices: I/O APICs, lines that functions share, and messages.

pub mod ioapic;
pub mod line;
pub mod message;

use core::sync::atomic::{AtomicBool, Ordering};

static PENDING: AtomicBool = AtomicBool::new(false);

/// Asks who serves devices to look: one of them raised something.
pub fn attend() {
    PENDING.store(true, Ordering::SeqCst);
}

/// Whether somebody asked since the last call.
#[inline]
pub fn take_pending() -> bool {
    PENDING.swap(false, Ordering::SeqCst)
}
