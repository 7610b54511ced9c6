//! Faults: taken from the units, attributed to the domain that owns the device, counted.

use super::{Owner, endpoint, units};
use crate::cpu::apic;
use crate::sync::{Rank, SpinLock};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_iommu::Fault;

/// Different faults that are kept apart; what comes on top is counted only.
const KINDS: usize = 64;

/// Faults of one requester, alike in kind and direction.
#[derive(Clone, Copy, Debug)]
pub struct Attributed {
    /// The last of them.
    pub last: Fault,
    /// Who owned the device then.
    pub owner: Option<Owner>,
    /// How many there were.
    pub count: u64,
}

#[derive(Default)]
struct Log {
    kinds: Vec<Attributed>,
    others: u64,
}

static LOG: SpinLock<Log> = SpinLock::new(Rank::Faults, Log { kinds: Vec::new(), others: 0 });
static PENDING: AtomicBool = AtomicBool::new(false);

/// A unit has recorded a fault.
pub(super) fn interrupt(_: u8) {
    PENDING.store(true, Ordering::SeqCst);
    apic::eoi();
}

/// Takes recorded faults, if there may be any.
#[inline]
pub fn service() {
    if PENDING.swap(false, Ordering::SeqCst) {
        take();
    }
}

/// Takes all recorded faults.
pub(super) fn take() {
    for counted in units() {
        counted.unit().take_faults(&mut |fault| note(fault));
    }
}

fn note(fault: Fault) {
    let owner = endpoint::owner_of(fault.requester);
    let mut log = LOG.lock();
    let same = |known: &&mut Attributed| {
        known.owner == owner
            && known.last.requester == fault.requester
            && (known.last.kind, known.last.write) == (fault.kind, fault.write)
    };
    if let Some(known) = log.kinds.iter_mut().find(same) {
        known.last = fault;
        known.count += 1;
    } else if log.kinds.len() < KINDS {
        log.kinds.push(Attributed { last: fault, owner, count: 1 });
        drop(log);
        // Once for each kind: a guest cannot flood the log.
        let whose: &dyn fmt::Display = owner.as_ref().map_or(&"nobody", |owner| owner);
        log::warn!(
            "IOMMU: {} of {whose} may not {} {:#x} ({:?}, {:#x})",
            fault.requester,
            if fault.write { "write" } else { "read" },
            fault.address,
            fault.kind,
            fault.code
        );
    } else {
        log.others += 1;
    }
}

/// All faults so far, and how many were not kept apart.
pub(super) fn all() -> (Vec<Attributed>, u64) {
    let log = LOG.lock();
    (log.kinds.clone(), log.others)
}
