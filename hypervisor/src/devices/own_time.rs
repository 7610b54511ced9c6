//! Work that a function of a guest's has left to do, and does in its guest's time.

use super::device::Device;
use crate::cpu;
use crate::domain::{Answer, Domain};
use core::sync::atomic::{AtomicU64, Ordering};

/// When a function goes on. See [`VirtualFunction::resume`](crate::domain::VirtualFunction::resume).
pub struct OwnTime(AtomicU64);

impl Default for OwnTime {
    /// Nothing is left to do.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl OwnTime {
    /// TSC at which the function goes on; `u64::MAX`: it has nothing left to do.
    pub fn at(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// The function goes on at this TSC, in the domain's time: a processor of the domain's must learn of that.
    pub fn set(&self, domain: &Domain, tsc: u64) {
        self.0.store(tsc, Ordering::SeqCst);
        for vcpu in &domain.vcpus {
            vcpu.rest.end();
            cpu::announce(vcpu.home);
        }
        let here = cpu::this().index;
        // A home of the domain's that is in here looks before it sleeps, and at the end of the slice at the latest.
        let elsewhere = domain.vcpus.first().filter(|_| domain.vcpus.iter().all(|vcpu| vcpu.home != here));
        if let Some(vcpu) = elsewhere.filter(|_| tsc != u64::MAX) {
            cpu::kick(vcpu.home);
        }
    }

    /// The answer to an access that was carried out, before which the device was to be looked at `polled_at`. The guest's processor learns that the function has
    /// something left to do, or that the device is to be looked at sooner, before it goes on: a guest may wait for that by nothing but its accesses.
    pub fn answer(&self, device: &Device, polled_at: u64) -> Answer {
        if self.at() != u64::MAX || device.poll_at() < polled_at { Answer::Attend } else { Answer::Done }
    }

    /// Whether it is time at `now`, and nobody else goes on already.
    pub fn claim(&self, now: u64) -> bool {
        let at = self.at();
        at <= now && self.0.compare_exchange(at, u64::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}
