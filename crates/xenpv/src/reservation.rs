//! Which frames a domain has: those that it gives back, gets again, or exchanges.
//!
//! A domain's memory is one run of frames for as long as it lives. What it gives back (XENMEM_decrease_reservation) is nobody's until
//! it gets it again (XENMEM_populate_physmap), as [`sluice_pagetypes::Types::give_back`] says. Linux's balloon driver asks for both.
//!
//! Source: Xen's public headers (memory.h); drivers/xen/balloon.c of Linux, which stops the kernel if not all is taken that it gives back.
//!
//! Deviations: extents are single frames, as that driver has them; a frame of which the guest has mappings still is given back at once,
//! where Xen waits until the last of them has gone.

use crate::abi::{Error, INVALID_PFN, MAX_BATCH};
use crate::mmu::SELF;
use crate::{Guest, Host};
use alloc::vec::Vec;
use sluice_pagetypes::{Kind, Mfn, Refused};

/// Frames that one exit takes or gives; then others have a turn. A list of Linux's has as many.
pub(crate) const MAX_EXTENTS: u64 = 512;
/// Frames whose devices' access changes together.
const PIECE: usize = 64;

/// How far a list of extents was gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// So many are done, and that is all.
    Ended(u64),
    /// So many are done, and the rest comes when others have had a turn.
    Waits(u64),
}

impl Guest {
    /// XENMEM_decrease_reservation: the guest gives back the frames of a list, of which so many are gone already. Those before one that is refused go.
    pub(crate) fn decrease_reservation(
        &mut self,
        host: &mut impl Host,
        arg: u64,
        before: u64,
    ) -> Result<Progress, Error> {
        let given = self.reservation(host, arg)?;
        self.in_pieces(host, &given, before, |guest, host, _, frames| Ok(guest.give_back(host, frames)))
    }

    /// XENMEM_populate_physmap: the guest gets frames again for the page numbers in a list, in whose place it is told of them. So many are done already.
    pub(crate) fn populate_physmap(
        &mut self,
        host: &mut impl Host,
        arg: u64,
        before: u64,
    ) -> Result<Progress, Error> {
        let wanted = self.reservation(host, arg)?;
        let limit = wanted.limit.map(Mfn);
        self.in_pieces(host, &wanted, before, |guest, host, at, pages| {
            guest.take_again(host, at, pages, limit)
        })
    }

    /// Goes through the words of a list from one on, as far as one exit may. `make` gets the address of a piece of it, and the words; it says how many it
    /// has done. Where that is not all of them, or the list cannot be read, it ends.
    fn in_pieces<H: Host>(
        &mut self,
        host: &mut H,
        list: &Reservation,
        before: u64,
        mut make: impl FnMut(&mut Self, &mut H, u64, &[u64]) -> Result<usize, Error>,
    ) -> Result<Progress, Error> {
        if list.order != 0 || before > list.extents {
            return Err(Error::Invalid);
        }
        let extents = list.frames()?;
        let end = extents.min(before + MAX_EXTENTS);
        let mut done = before;
        let ended = loop {
            let at = list.list.wrapping_add(done * 8);
            let mut words = [0; PIECE];
            let mut len = 0;
            for (word, place) in words.iter_mut().zip(done..end) {
                let Ok([found]) = self.words(host, list.list.wrapping_add(place * 8)) else { break };
                *word = found;
                len += 1;
            }
            let made = make(self, host, at, words.get(..len).unwrap_or_default()).unwrap_or(0);
            done += made as u64;
            if made < PIECE {
                break done < end;
            }
        };
        self.counters.given_back = self.types.given_back();
        Ok(if ended || done == extents { Progress::Ended(done) } else { Progress::Waits(done) })
    }

    /// Takes frames from the guest, up to one that is refused. Returns how many.
    fn give_back(&mut self, host: &mut impl Host, words: &[u64]) -> usize {
        let mut frames = [Mfn::default(); PIECE];
        frames.iter_mut().zip(words).for_each(|(frame, word)| *frame = Mfn(*word));
        let frames = frames.get_mut(..words.len()).unwrap_or_default();
        let kept = frames.iter().position(|frame| self.is_held(*frame));
        let (frames, kept) = frames.split_at_mut(kept.unwrap_or(frames.len()));
        let (done, given) = self.types.give_back(host, frames);
        let kept = kept.first().map_or(Ok(()), |frame| Err(Refused::InUse(*frame, Kind::Writable)));
        for frame in frames.iter().take(done) {
            self.layout.set_m2p(host, *frame, INVALID_PFN);
        }
        // The answer is how many went.
        self.note(given.and(kept)).ok();
        done
    }

    /// Whether the hypervisor writes to a frame for the guest, or its processor uses it.
    fn is_held(&self, frame: Mfn) -> bool {
        let is_used = self.types.counts(frame).is_some_and(|counts| counts.uses > 0);
        is_used && self.holds().any(|held| held == frame)
    }

    /// Gives the guest frames again for pages, and tells it at an address which. Returns for how many there were some.
    fn take_again(
        &mut self,
        host: &mut impl Host,
        at: u64,
        pages: &[u64],
        limit: Option<Mfn>,
    ) -> Result<usize, Error> {
        let mut words = [0; PIECE];
        // It must be possible to tell it of them: what it does not know of it could not give back.
        let list = words.get_mut(..pages.len()).unwrap_or_default();
        list.copy_from_slice(pages);
        self.write_words(host, at, list)?;
        let mut frames = [Mfn::default(); PIECE];
        let taken = self.types.take_again(host, frames.get_mut(..pages.len()).unwrap_or_default(), limit);
        for ((word, frame), page) in list.iter_mut().zip(frames).zip(pages).take(taken) {
            self.layout.set_m2p(host, frame, *page);
            *word = frame.0;
        }
        self.write_words(host, at, list)?;
        Ok(taken)
    }

    fn write_words(&self, host: &mut impl Host, at: u64, words: &[u64]) -> Result<(), Error> {
        (0..).zip(words).try_for_each(|(place, word)| {
            self.copy_out(host, at.wrapping_add(place * 8), &word.to_le_bytes())
        })
    }

    /// XENMEM_exchange: frames for others of which so many are consecutive, below so many bits of addresses. A domain's memory is one run, so that what it
    /// gives is what it gets, or it gets nothing.
    pub(crate) fn exchange(&mut self, host: &mut impl Host, arg: u64) -> Result<u64, Error> {
        const DONE: u64 = 64;
        let mut given = self.reservation(host, arg)?;
        let mut wanted = self.reservation(host, arg.wrapping_add(32))?;
        let [done] = self.words(host, arg.wrapping_add(DONE))?;
        if done != 0 || given.frames()? != wanted.frames()? {
            return Err(Error::Invalid);
        }
        // First whether all of it can be, then what it comes to.
        let (mut frames, mut next) = (Vec::new(), Mfn(0));
        frames.try_reserve_exact(given.frames()? as usize).map_err(|_| Error::NoMemory)?;
        for at in 0..given.frames()? {
            let offset = at & ((1 << given.order) - 1);
            if offset == 0 {
                next = Mfn(self.words::<1>(host, given.list)?[0]);
                given.list = given.list.wrapping_add(8);
            }
            let frame = Mfn(next.0.checked_add(offset).ok_or(Error::Invalid)?);
            if !self.types.owns(frame) {
                return self.note(Err(Refused::NotOwn(frame)));
            }
            let within = at & ((1 << wanted.order) - 1);
            let follows = within == 0 || frames.last().is_some_and(|last: &Mfn| last.0 + 1 == frame.0);
            if !follows || wanted.limit.is_some_and(|limit| frame.0 >= limit) {
                return Err(Error::NoMemory);
            }
            frames.push(frame);
        }
        for extent in frames.chunks(1 << wanted.order) {
            let [page] = self.words(host, wanted.list)?;
            let Some(first) = extent.first() else { break };
            self.copy_out(host, wanted.list, &first.0.to_le_bytes())?;
            for (page, frame) in (0..).map(|at| page.wrapping_add(at)).zip(extent) {
                self.layout.set_m2p(host, *frame, page);
            }
            wanted.list = wanted.list.wrapping_add(8);
        }
        self.copy_out(host, arg.wrapping_add(DONE), &given.extents.to_le_bytes())?;
        Ok(0)
    }

    /// Reads a `struct xen_memory_reservation`.
    fn reservation(&self, host: &impl Host, at: u64) -> Result<Reservation, Error> {
        let [list, extents, order, domain] = self.words::<4>(host, at)?;
        let (order, bits) = (order as u32, (order >> 32) as u32);
        if domain & 0xffff != SELF {
            return Err(Error::NotPermitted);
        }
        let limit = (12..64).contains(&bits).then(|| 1 << (bits - 12));
        Ok(Reservation { list, extents, order, limit: limit.or((1..12).contains(&bits).then_some(0)) })
    }
}

/// `struct xen_memory_reservation`: extents of frames.
struct Reservation {
    /// Address of the list of extents.
    list: u64,
    extents: u64,
    order: u32,
    /// The frame before which they are to end.
    limit: Option<u64>,
}

impl Reservation {
    /// How many frames there are.
    fn frames(&self) -> Result<u64, Error> {
        let size = 1u64.checked_shl(self.order).ok_or(Error::Invalid)?;
        let frames = self.extents.checked_mul(size).ok_or(Error::Invalid)?;
        if frames > MAX_BATCH { Err(Error::TooBig) } else { Ok(frames) }
    }
}
