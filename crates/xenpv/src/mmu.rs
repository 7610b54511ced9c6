//! Hypercalls on page tables.

use crate::abi::{Error, MAX_BATCH, PREEMPTED};
use crate::memory::leaf;
use crate::{Guest, Host};
use sluice_hypercall::paravirtual::{SEMI_CLEAR, SEMI_MAX_BATCH, SEMI_SET};
use sluice_pagetypes::{Kind, Mfn, Old, Refused};

/// Frames whose devices' access changes together.
const SEMI_PIECE: usize = 64;

/// Flags of HYPERVISOR_update_va_mapping: UVMF_TLB_FLUSH, UVMF_INVLPG. The others say on which processors: UVMF_LOCAL, 0, is this one.
const UVMF_FLUSH: u64 = 3;

/// DOMID_SELF; a batch may name it, and nobody else.
pub(crate) const SELF: u64 = 0x7ff0;

pub(crate) mod update {
    pub const NORMAL: u64 = 0;
    pub const MACHPHYS: u64 = 1;
    pub const PRESERVE_AD: u64 = 2;
    pub const NO_TRANSLATE: u64 = 3;
}

mod ext {
    pub const PIN_L1: u32 = 0;
    pub const PIN_L4: u32 = 3;
    pub const UNPIN: u32 = 4;
    pub const NEW_BASEPTR: u32 = 5;
    pub const TLB_FLUSH_LOCAL: u32 = 6;
    pub const INVLPG_LOCAL: u32 = 7;
    pub const TLB_FLUSH_MULTI: u32 = 8;
    pub const INVLPG_MULTI: u32 = 9;
    pub const TLB_FLUSH_ALL: u32 = 10;
    pub const INVLPG_ALL: u32 = 11;
    pub const FLUSH_CACHE: u32 = 12;
    pub const SET_LDT: u32 = 13;
    pub const NEW_USER_BASEPTR: u32 = 15;
    pub const FLUSH_CACHE_GLOBAL: u32 = 18;
}

impl Guest {
    /// Remembers what was refused.
    pub(crate) fn note<T>(&mut self, result: Result<T, Refused>) -> Result<T, Error> {
        result.map_err(|refused| {
            if refused == Refused::Later {
                return Error::Restart;
            }
            self.counters.refused += 1;
            self.last_refused = Some(refused);
            refused.into()
        })
    }

    /// HYPERVISOR_mmu_update: `count` pairs of an address and a value. Those before one that is refused are done.
    pub(crate) fn mmu_update(
        &mut self,
        host: &mut impl Host,
        requests: u64,
        count: u64,
        done_at: u64,
        whose: u64,
    ) -> Result<u64, Error> {
        self.batch(host, (requests, 16), count, done_at, whose, |guest, host, request| {
            let [at, value] = guest.words::<2>(host, request)?;
            guest.update_one(host, at, value)
        })
    }

    /// A batch of requests of so many bytes each. `done_at` gets how many were done.
    fn batch<H: Host>(
        &mut self,
        host: &mut H,
        (requests, size): (u64, u64),
        count: u64,
        done_at: u64,
        whose: u64,
        mut make: impl FnMut(&mut Self, &mut H, u64) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let (preempted, count) = (count & PREEMPTED, count & !PREEMPTED);
        if whose != SELF || count > MAX_BATCH {
            return Err(if count > MAX_BATCH { Error::TooBig } else { Error::NotPermitted });
        }
        let before = if preempted != 0 && done_at != 0 { self.halves::<1>(host, done_at)?[0] } else { 0 };
        let mut done = 0;
        let mut result = Ok(0);
        while done < count {
            // What the last one ended may be what the next one needs.
            result = match self.types.settle(host) {
                true => make(self, host, requests.wrapping_add(done * size)),
                false => Err(Error::Restart),
            };
            if result.is_err() {
                break;
            }
            done += 1;
        }
        if done_at != 0 {
            self.copy_out(host, done_at, &before.wrapping_add(done as u32).to_le_bytes())?;
        }
        match result {
            Err(Error::Restart) => {
                self.restart(requests.wrapping_add(done * size), (count - done) | PREEMPTED)
            }
            result => result,
        }
    }

    /// Writes an entry of a page table, or memory. Returns what it was.
    pub(crate) fn write_entry(
        &mut self,
        host: &mut impl Host,
        table: Mfn,
        index: usize,
        value: u64,
        before: Old,
    ) -> Result<u64, Error> {
        self.lose_entry(table, index);
        let updated = self.types.update(host, table, index, value, before);
        self.note(updated)
    }

    fn update_one(&mut self, host: &mut impl Host, at: u64, value: u64) -> Result<u64, Error> {
        self.counters.updates += 1;
        let (frame, index) = (Mfn(at >> 12), (at >> 3 & 511) as usize);
        match at & 3 {
            kind @ (update::NORMAL | update::NO_TRANSLATE | update::PRESERVE_AD) if at & 4 == 0 => {
                let before = if kind == update::PRESERVE_AD { Old::Noted } else { Old::Lost };
                self.write_entry(host, frame, index, value, before)?;
            }
            update::MACHPHYS => {
                if !self.types.owns(frame) {
                    return self.note(Err(Refused::NotOwn(frame)));
                }
                self.layout.set_m2p(host, frame, value);
            }
            _ => return Err(Error::Invalid),
        }
        Ok(0)
    }

    /// HYPERVISOR_update_va_mapping: the entry of an address in the kernel's page tables.
    pub(crate) fn update_va_mapping(
        &mut self,
        host: &mut impl Host,
        address: u64,
        value: u64,
        flags: u64,
    ) -> Result<u64, Error> {
        self.counters.updates += 1;
        let leaf = leaf(host, self.cpu.root, address).ok_or(Error::Invalid)?;
        match self.write_entry(host, leaf.table, leaf.index, value, Old::Lost) {
            Err(Error::Restart) => return self.restart(address, value),
            done => drop(done?),
        }
        match (flags & UVMF_FLUSH, flags & !UVMF_FLUSH) {
            (0, _) => {}
            (_, 0) => host.invalidate(),
            // Whichever others it names.
            _ => host.invalidate_on(u64::MAX),
        }
        Ok(0)
    }

    /// HYPERVISOR_mmuext_op: `count` operations of 24 bytes.
    pub(crate) fn mmuext_op(
        &mut self,
        host: &mut impl Host,
        operations: u64,
        count: u64,
        done_at: u64,
        whose: u64,
    ) -> Result<u64, Error> {
        self.batch(host, (operations, 24), count, done_at, whose, |guest, host, operation| {
            let [cmd, first, second] = guest.words::<3>(host, operation)?;
            guest.extended(host, cmd as u32, first, second)
        })
    }

    /// Makes frames semi-writable, or ends that ([`sluice_hypercall::paravirtual`]). Devices are dealt with once for each piece of the list.
    pub(crate) fn semi_writable(
        &mut self,
        host: &mut impl Host,
        list: u64,
        count: u64,
        what: u64,
    ) -> Result<u64, Error> {
        if count > SEMI_MAX_BATCH {
            return Err(Error::TooBig);
        }
        if !matches!(what, SEMI_CLEAR | SEMI_SET) {
            return Err(Error::Invalid);
        }
        let mut piece = [Mfn::default(); SEMI_PIECE];
        let mut done = 0;
        while done < count {
            let mut len = 0;
            for (at, frame) in (done..count).zip(&mut piece) {
                *frame = Mfn(self.words::<1>(host, list.wrapping_add(at * 8))?[0]);
                len += 1;
            }
            let frames = piece.get_mut(..len).unwrap_or_default();
            let set = self.types.set_semi(host, frames, what == SEMI_SET);
            self.note(set)?;
            self.counters.semi += if what == SEMI_SET { len as u64 } else { 0 };
            done += len as u64;
        }
        Ok(0)
    }

    pub(crate) fn hold_root(&mut self, host: &mut impl Host, frame: Mfn) -> Result<(), Error> {
        let held = self.types.hold_root(host, frame);
        self.note(held)
    }

    fn extended(&mut self, host: &mut impl Host, cmd: u32, first: u64, second: u64) -> Result<u64, Error> {
        let frame = Mfn(first);
        self.counters.operation(cmd);
        match cmd {
            ext::PIN_L1..=ext::PIN_L4 => {
                let kinds = [Kind::L1, Kind::L2, Kind::L3, Kind::L4];
                let kind = kinds.get(cmd as usize).copied().ok_or(Error::Invalid)?;
                let pinned = self.types.pin(host, frame, kind);
                self.note(pinned)?;
            }
            ext::UNPIN => {
                let unpinned = self.types.unpin(host, frame);
                self.note(unpinned)?;
            }
            ext::NEW_BASEPTR => {
                self.hold_root(host, frame)?;
                let old = core::mem::replace(&mut self.cpu.root, frame);
                self.lose();
                self.cpu.gate_is_stale = true;
                host.invalidate();
                self.types.release(host, old);
            }
            ext::NEW_USER_BASEPTR => {
                let new = (first != 0).then_some(frame);
                if let Some(frame) = new {
                    self.hold_root(host, frame)?;
                }
                self.cpu.gate_is_stale = true;
                if let Some(old) = core::mem::replace(&mut self.cpu.user_root, new) {
                    self.types.release(host, old);
                }
            }
            ext::TLB_FLUSH_LOCAL | ext::INVLPG_LOCAL => host.invalidate(),
            ext::TLB_FLUSH_MULTI | ext::INVLPG_MULTI => {
                let [processors] = self.words(host, second)?;
                host.invalidate_on(processors);
            }
            ext::TLB_FLUSH_ALL | ext::INVLPG_ALL => host.invalidate_on(u64::MAX),
            ext::FLUSH_CACHE | ext::FLUSH_CACHE_GLOBAL => {}
            // Half of the second word is a count.
            ext::SET_LDT => self.set_ldt(host, first, second as u32)?,
            _ => return Err(Error::NoCall),
        }
        Ok(0)
    }
}
