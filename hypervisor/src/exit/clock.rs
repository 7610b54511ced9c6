//! The clock page of a guest's processor, which relates its time-stamp counter to nanoseconds.
//!
//! It is written when the guest names it, and again whenever a counter of the guest moves other than by time: what it said
//! before would be wrong by as much.

use crate::domain::Domain;
use crate::domain::vcpu::{Context, Vcpu, event};
use crate::x86::tsc;
use core::sync::atomic::{Ordering, fence};
use sluice_memory::{Gpa, OutOfRange};
use sluice_platform::clock::{FLAGS, Scale, TimeInfo, says_stopped};

const ENABLED: u64 = 1;

/// Writes the page of `ctx`'s processor, if its guest named one. It says that the guest stood still if it did just now, and as long
/// as the guest has not seen that.
///
/// # Errors
/// The page is not RAM of this guest.
pub fn publish(domain: &Domain, ctx: &mut Context, stopped: bool) -> Result<(), OutOfRange> {
    if ctx.clock_msr & ENABLED == 0 {
        return Ok(());
    }
    let page = ctx.clock_msr & !ENABLED;
    let mut flags = [0];
    domain.read(Gpa::new(page.wrapping_add(FLAGS)), &mut flags)?;
    // What a page holds before its first time is the guest's own.
    let unseen = ctx.clock_version != 0 && says_stopped(flags[0]);
    let now = tsc::now();
    let info = TimeInfo {
        version: ctx.clock_version.wrapping_add(2),
        tsc_timestamp: ctx.guest_tsc_at(now),
        system_time: tsc::uptime_ns_at(now),
        scale: Scale::from_khz(u32::try_from(tsc::khz()).unwrap_or(u32::MAX)),
        stable: !domain.tsc_moved.load(Ordering::SeqCst),
        stopped: stopped || unseen,
    };
    ctx.clock_version = info.version;
    info.publish(|offset, bytes| {
        let done = domain.write(Gpa::new(page.wrapping_add(offset)), bytes);
        fence(Ordering::SeqCst);
        done
    })
}

/// The guest wrote the counter of this processor: its page is right again, and where there are others, all pages say that the
/// counters do not agree any more.
pub fn moved(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) {
    if domain.vcpus.len() > 1 {
        domain.tsc_moved.store(true, Ordering::SeqCst);
        for other in domain.vcpus.iter().filter(|other| other.id != vcpu.id) {
            other.signal(event::CLOCK);
        }
    }
    // The page was RAM when the guest named it.
    let _ = publish(domain, ctx, false);
}
