//! What a domain asks of who manages it, on the boot processor: to look at its console, or that it has ended.

use crate::cpu;
use core::sync::atomic::{AtomicBool, Ordering};

static MANAGER: AtomicBool = AtomicBool::new(true);
static OUTPUT: AtomicBool = AtomicBool::new(false);

/// Asks the boot processor to look at the channel, the consoles and ended domains.
pub fn ask() {
    MANAGER.store(true, Ordering::SeqCst);
    if cpu::this().index != cpu::BOOT {
        cpu::kick(cpu::BOOT);
    }
}

/// Whether somebody asked.
pub fn is_asked() -> bool {
    MANAGER.load(Ordering::SeqCst)
}

/// Whether somebody asked since the last call.
pub fn take() -> bool {
    MANAGER.swap(false, Ordering::SeqCst)
}

/// A console has output: sees to it that the boot processor sends it. Returns true if that is this processor, and does not know
/// yet.
pub fn ask_for_output() -> bool {
    let first = !OUTPUT.swap(true, Ordering::SeqCst);
    let own = cpu::this().index == cpu::BOOT;
    if first && !own {
        cpu::kick(cpu::BOOT);
    }
    first && own
}

/// Whether there is output to send.
pub fn has_output() -> bool {
    OUTPUT.load(Ordering::SeqCst)
}

/// Notes whether there is.
pub fn set_output(waits: bool) {
    OUTPUT.store(waits, Ordering::SeqCst);
}
