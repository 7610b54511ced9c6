//! The hypercall that a kernel makes most often, by a short way: HYPERVISOR_mmu_update of one entry of a table of the lowest level.
//!
//! Linux sets the entries of pages that programs touch so, one call each. Nothing of the processor but RAX changes by it, and nothing that has to be looked at
//! is left: who takes it needs no other registers. It does what [`Guest::syscall`] does with the same call, or nothing.

use crate::abi::call;
use crate::mmu::{SELF, update};
use crate::{Guest, Host};
use sluice_pagetypes::{Mfn, Old};

/// The number of the call that is answered quickly.
pub const QUICK: u64 = call::MMU_UPDATE;

impl Guest {
    /// The answer to [`QUICK`], which is done then. `None`: a program made it, or more comes of it; nothing was done. `arguments` are those of SYSCALL: RDI,
    /// RSI, RDX, R10.
    #[inline(always)]
    pub fn answer_quickly(&mut self, host: &mut impl Host, arguments: [u64; 4]) -> Option<u64> {
        let [requests, count, done_at, whose] = arguments;
        let is_one = (count, done_at, whose) == (1, 0, SELF);
        // A kernel that is to hear of an event has its registers changed.
        if !is_one || !self.cpu.kernel || self.cpu.is_pending(host) {
            return None;
        }
        let [at, value] = self.words::<2>(host, requests).ok()?;
        if at & 7 != update::NORMAL {
            return None;
        }
        let (table, index) = (Mfn(at >> 12), (at >> 3 & 511) as usize);
        let updated = self.types.update_mapping(host, table, index, value, Old::Lost)?;
        self.lose_mapping(table, index);
        self.counters.call(QUICK);
        self.counters.updates += 1;
        let Err(error) = self.note(updated) else { return Some(0) };
        self.counters.errors += 1;
        Some(error.code())
    }
}
