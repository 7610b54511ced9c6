//! Interrupt lines (INTx) that are passed through to a guest.

use super::device::Device;
use super::guest::Guest;
use crate::domain::Domain;
use core::sync::atomic::{AtomicBool, Ordering};

/// A guest's pin that is up because the physical line went up. The physical line stays masked until the guest has dealt with the
/// interrupt.
///
/// The lock of whoever serves the function is held at [`Self::raise`] and [`Self::lower`], so that the pin and this agree.
#[derive(Default)]
pub struct ForwardedLine {
    raised: AtomicBool,
}

impl ForwardedLine {
    /// Whether the guest's pin is up for the physical line.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// The physical line went up.
    pub fn raise(&self, domain: &Domain, guest: &Guest) {
        self.raised.store(true, Ordering::SeqCst);
        domain.set_line(guest.pin, true);
    }

    /// The guest has dealt with the interrupt, or the line is not passed through any more: the guest's pin shows `level`, and the
    /// physical line may interrupt again.
    pub fn lower(&self, device: &Device, domain: &Domain, guest: &Guest, level: bool) {
        if self.raised.swap(false, Ordering::SeqCst) {
            domain.set_line(guest.pin, level);
            device.unmask();
        }
    }
}
