//! Grants by a table, the older way: what a peer asks for, each time that it uses a page of a granter's.
//!
//! A granter says where its table is ([`lend_by`]), and lends pages from then on by writing there. Its peer, or whoever serves its virtual device, has them
//! mapped in its window ([`map`], [`unmap`]) or copied ([`copy`]). [`sluice_grants::table`] has what an entry says, and what becomes of it. Locks, windows and
//! ends of domains are those of [`super::grants`].
//!
//! Nothing needs this but a comparison: a granter waits for its peer. Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for Safe and
//! Efficient I/O Virtualization", 2.1.

use super::Domain;
use super::grants::{Shared, View, as_error};
use super::memory::Map;
use super::table::GrantTable;
use crate::mm;
use crate::sync::SpinLockGuard;
use alloc::sync::Arc;
use sluice_grants::table::Use;
use sluice_grants::{Space, Steps};
use sluice_hypercall::call::Error;
use sluice_hypercall::grant::GRANT_DEVICE;
use sluice_hypercall::table::{Call, List, Mapped, Part, Window};
use sluice_memory::Gpa;

/// Carries out a call of a guest.
///
/// # Errors
/// Says what is wrong.
pub fn call(caller: &Domain, call: &Call) -> Result<u64, Error> {
    match call {
        Call::Lend { space, at } => lend_by(caller, *space, *at),
        Call::Map(list) => map(caller, list),
        Call::Unmap(list) => unmap(caller, list),
        Call::Copy(list) => copy(caller, list),
    }
}

/// From now on the caller lends pages of a space by the table at an address, and issues none.
///
/// # Errors
/// Something is granted in the space, the table is not memory of the caller's, or the space is that of a physical device, which asks for nothing.
fn lend_by(caller: &Domain, space: u8, at: u64) -> Result<u64, Error> {
    let mut spaces = caller.grants.lock();
    let shared = spaces.get(space)?;
    if shared.seen.is_by_device() {
        return Err(Error::BadArgument);
    }
    if shared.space.live() != 0 {
        return Err(Error::Busy);
    }
    let size = shared.space.size();
    caller.memory.translate(Gpa::new(at), u64::from(size) * 8).map_err(|_| Error::BadArgument)?;
    shared.table = Some(at);
    Ok(size.into())
}

/// Maps pages for the caller.
///
/// # Errors
/// It has no such window, or as the entry says of the first page.
fn map(caller: &Domain, list: &List) -> Result<u64, Error> {
    let uses = |index| {
        let Mapped { reference, writes } = Mapped::decode(word(caller, list, Mapped::SIZE, index, 0)?)?;
        Some(Use { reference, writes })
    };
    with(caller, list.window, |space, view, table| space.map(view, table, uses, list.count))
}

/// Unmaps them again.
///
/// # Errors
/// As [`map`].
fn unmap(caller: &Domain, list: &List) -> Result<u64, Error> {
    let references = |index| u32::try_from(word(caller, list, Mapped::SIZE, index, 0)?).ok();
    with(caller, list.window, |space, view, table| space.unmap(view, table, references, list.count))
}

/// Copies between the caller and pages that it need not have mapped, in order and until one part cannot be. Returns how many were copied.
///
/// # Errors
/// As [`map`], and a part leaves the caller's memory.
fn copy(caller: &Domain, list: &List) -> Result<u64, Error> {
    let (granter, number) = shown(caller, list.window)?;
    let mut spaces = granter.grants.lock();
    let shared = spaces.get(number)?;
    let (table, space) = (lent(&granter, shared, caller)?, &shared.space);
    let steps = Steps::take(list.count, |index| {
        let words = [0, 8].map(|at| word(caller, list, Part::SIZE, index, at));
        let part = words[0].zip(words[1]).and_then(|(what, local)| Part::decode([what, local]));
        let Part { reference, offset, bytes, out, local } = part.ok_or(sluice_grants::Error::NoPage)?;
        space.use_once(&table, Use { reference, writes: out }, |page| {
            let (there, local) = (Gpa::new(page + offset), Gpa::new(local));
            let copied = match out {
                true => caller.copy(local, (&granter, there), bytes),
                false => granter.copy(there, (caller, local), bytes),
            };
            copied.map_err(|_| sluice_grants::Error::NoPage)
        })
    });
    steps.answer().map_err(as_error)
}

/// A word of an entry of a list, whose entries have `size` bytes.
fn word(caller: &Domain, list: &List, size: u64, index: u64, offset: u64) -> Option<u64> {
    caller.read_u64(Gpa::new(list.at.checked_add(index * size + offset)?))
}

/// Whose space a window of the caller's shows, and the number of that.
fn shown(caller: &Domain, window: Window) -> Result<(Arc<Domain>, u8), Error> {
    let found = match window {
        Window::At(at) => caller.shown_at(at),
        Window::Function(slot) => caller
            .plugged(slot)
            .and_then(|function| function.shows_pages())
            .map(|(guest, slot)| (guest, GRANT_DEVICE as u8 + slot)),
    };
    found.ok_or(Error::NoPeer)
}

/// The table that a space is lent by, if the caller is the one who sees it.
fn lent<'a>(granter: &'a Domain, shared: &Shared, caller: &Domain) -> Result<GrantTable<'a>, Error> {
    let sees = shared.seen.accepted().is_some_and(|accepted| accepted.is_by(caller));
    GrantTable::of(granter, shared.table).filter(|_| sees).ok_or(Error::NoPeer)
}

/// Has a space that a window of the caller's shows do something, and its window with it.
fn with(
    caller: &Domain,
    window: Window,
    act: impl FnOnce(
        &mut Space<mm::TableFrames>,
        &mut View<'_, SpinLockGuard<'_, Map>>,
        &GrantTable<'_>,
    ) -> Result<u64, sluice_grants::Error>,
) -> Result<u64, Error> {
    let (granter, number) = shown(caller, window)?;
    let mut spaces = granter.grants.lock();
    let shared = spaces.get(number)?;
    let table = lent(&granter, shared, caller)?;
    let accepted = shared.seen.accepted().ok_or(Error::NoPeer)?;
    act(&mut shared.space, &mut View::of_peer(caller, granter.id, accepted), &table).map_err(as_error)
}
