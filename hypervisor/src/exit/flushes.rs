//! The feature `check-flushes`: every entry is compared with what it must order to be forgotten. QEMU forgets all translations
//! at each entry, so that no guest in it would ever notice a flush that is missing.

use crate::domain::Domain;
use crate::domain::vcpu::{Context, Vcpu};
use core::sync::atomic::Ordering;
use sluice_memory::flushes::{Flush, Holder, Translations};

/// Checks the entry that `ctx` is about to make. The domain is not frozen and [`Vcpu::in_guest`] is set, so that nothing is
/// taken away from its tables without a flush that a later entry orders.
///
/// # Panics
/// If it would use translations that are not its own any more.
pub fn check(processor: &mut Translations, domain: &Domain, vcpu: &Vcpu, ctx: &Context) {
    let control = &ctx.vmcb.control;
    let holder = Holder { tables: domain.tables.load(Ordering::SeqCst), vcpu: vcpu.id, resets: ctx.resets };
    let flush = match control.tlb_control {
        0 => Flush::None,
        1 => Flush::All,
        _ => Flush::Own,
    };
    if let Err(stale) = processor.enter(control.asid, holder, flush) {
        panic!("domain {}: entered as {holder:?} without a flush: {stale:?}", domain.name());
    }
}
