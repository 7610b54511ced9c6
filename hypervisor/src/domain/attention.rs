//! What a domain asks of who manages it, on the boot processor: to look at its console, or that it has ended.

use crate::cpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static MANAGER: AtomicBool = AtomicBool::new(true);
static OUTPUT: AtomicBool = AtomicBool::new(false);
static LATER: AtomicU64 = AtomicU64::new(NEVER);

const NEVER: u64 = u64::MAX;

/// Kicks the boot processor, unless this is it. Returns whether it is.
fn kick_boot() -> bool {
    let own = cpu::this().index == cpu::BOOT;
    if !own {
        cpu::kick(cpu::BOOT);
    }
    own
}

/// Asks the boot processor to look at the channel, the consoles and ended domains.
pub fn ask() {
    MANAGER.store(true, Ordering::SeqCst);
    kick_boot();
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
    !OUTPUT.swap(true, Ordering::SeqCst) && kick_boot()
}

/// A console has begun a line, which is to be sent at this TSC even if it does not end. Returns true if this is the boot
/// processor, and does not know yet.
pub fn ask_for_output_at(tsc: u64) -> bool {
    LATER.compare_exchange(NEVER, tsc, Ordering::SeqCst, Ordering::SeqCst).is_ok() && kick_boot()
}

/// TSC at which lines that were begun are to be sent; `u64::MAX`: there is none.
pub fn output_later() -> u64 {
    LATER.load(Ordering::SeqCst)
}

/// Whether there is output to send.
pub fn has_output() -> bool {
    OUTPUT.load(Ordering::SeqCst)
}

/// Notes whether there is, and that it is known.
pub fn set_output(waits: bool) {
    LATER.store(NEVER, Ordering::SeqCst);
    OUTPUT.store(waits, Ordering::SeqCst);
}
