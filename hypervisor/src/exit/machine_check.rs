//! Machine checks, by which a guest learns that a device refused an access that it made.
//!
//! Source: APM vol. 2, 8.2.19 (#MC) and 9.3. The exception comes after the instruction that made the access, which has
//! had no effect. Real machine checks are not a guest's: see `panic`.

use super::flow::exception;
use crate::domain::Domain;
use crate::domain::vcpu::{self, Context, Vcpu};
use crate::svm::vmcb::event;
use core::sync::atomic::Ordering;

const CR4_MCE: u64 = 1 << 6;

/// Has the guest take the machine check that waits. Where that would shut it down, the access was merely discarded.
#[cold]
pub fn take(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) {
    if ctx.inject != 0 {
        // An exception goes first.
        vcpu.events.fetch_or(vcpu::event::MACHINE_CHECK, Ordering::SeqCst);
        return;
    }
    let access = vcpu.failed_access();
    let enabled = ctx.vmcb.save.cr4 & CR4_MCE != 0;
    if ctx.machine_check.report(access, enabled) {
        ctx.inject = event::exception(exception::MC, None);
    } else if !ctx.machine_check_lost {
        ctx.machine_check_lost = true;
        log::warn!(
            "domain {}: processor {} takes no machine checks now: an access to {:#x} was discarded",
            domain.name(),
            vcpu.id,
            access.place,
        );
    }
}
