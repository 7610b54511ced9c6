//! Grant spaces between domains: who may, where the peer sees the pages, and what becomes of them when either side ends.
//!
//! Key types: [`Spaces`] (what one domain lets others reach, and the windows that it has accepted), [`View`] (a map that shows a space, as
//! [`sluice_grants`] uses it). A space is for a peer, which accepts it, for a virtual device, whose back end shows it to the domain
//! that serves the device, or for a physical device of the domain's own ([`super::fine`]). It is its granter's; its lock is held during a whole call, and the
//! peer's map is locked inside it. Calls
//! go through [`call`]; [`enter`] and [`leave`] are the life of a domain, [`Domain::lend_to_device`] and [`Domain::withdraw_from_device`] that of a device's space.
//!
//! Nobody waits for a peer: to have it forget pages, its processors are interrupted, and its IOMMU is told. docs/grants.md has the rules.

use super::region::{self, Placed, Reach};
use super::table::GrantTable;
use super::window::fill;
use super::{Domain, layout, memory};
use crate::mm::{self, FrameUse};
use crate::sync::{Rank, SpinLock, SpinLockGuard};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::ops::{DerefMut, Range};
use sluice_abi::{DomainId, DomainSet};
use sluice_grants::status::Word;
use sluice_grants::{Batch, Grant, Operation, Peer, Space};
use sluice_hypercall::call::Error;
use sluice_hypercall::grant::{
    Call, Entry, GRANT_DEVICE, GRANT_IS_ACCEPTED, GRANT_IS_ISSUED, GRANT_IS_WRITABLE, GRANT_MAX_BATCH,
    GRANT_MAX_SIZE, GRANT_STATUS_GRANTED, Page, Status,
};
use sluice_iospace::{Contents, IssueError, Piece, Rights};
use sluice_memory::{Access, Gpa, Hpa, LARGE_PAGE, PAGE_SIZE};

const _: () = {
    assert!(GRANT_MAX_BATCH == sluice_grants::MAX_BATCH && GRANT_MAX_SIZE <= sluice_grants::MAX_SIZE as u64);
    assert!(GRANT_STATUS_GRANTED == sluice_grants::status::GRANTED);
};

/// Most spaces of one granter.
const MAX_SPACES: usize = 8;
/// Most windows of one peer.
const MAX_WINDOWS: usize = 16;
/// Most references in all spaces of a granter, and in all windows of a peer.
const MAX_REFERENCES: u64 = 2 * GRANT_MAX_SIZE;

/// Every domain that may have spaces or windows: one that serves device files shows what is mapped of them.
static DOMAINS: SpinLock<Vec<Weak<Domain>>> = SpinLock::new(Rank::Domains, Vec::new());

/// What one domain lets others reach, and where it reaches what others let it.
#[derive(Default)]
pub struct Spaces {
    own: [Option<Own>; MAX_SPACES],
    /// Those of devices, virtual and the domain's own, and their slots.
    pub(super) devices: Vec<(u8, Shared)>,
    windows: ArrayVec<Window, MAX_WINDOWS>,
}

/// A space for a peer.
struct Own {
    shared: Shared,
    /// Place of the peer in the granter's list.
    peer: u8,
}

/// A space, and who sees it.
pub(super) struct Shared {
    pub(super) space: Space<mm::TableFrames>,
    pub(super) seen: Seen,
    /// Guest-physical address of the granter's table, if it lends by one: what is granted in the space is what its peer has mapped.
    pub(super) table: Option<u64>,
    /// It shows what is mapped of a device file, which may be memory of a device of the granter's.
    pub(super) maps: bool,
}

/// Who sees a space.
pub(super) enum Seen {
    /// Nobody yet, or nobody any more.
    Nowhere,
    /// A peer, or the domain that serves a virtual device.
    ByPeer(Accepted),
    /// A physical device of the domain's own.
    ByDevice(OwnDevice),
}

/// What a device of the domain's own reaches.
pub(super) struct OwnDevice {
    /// Shown to nobody else.
    pub(super) map: memory::Map,
    /// It only reads what is issued to it, and reaches one region at a time.
    pub(super) regions: Option<Reach>,
}

/// Where a peer sees a space.
pub(super) struct Accepted {
    peer: Weak<Domain>,
    at: u64,
    status: Option<Status>,
}

/// A part of a domain's window addresses that is taken.
struct Window {
    at: u64,
    len: u64,
    /// Whose space it shows, and the number of that.
    shows: (Weak<Domain>, u8),
    /// It is shown; else it comes or goes.
    ready: bool,
}

/// Bytes of the window of a space.
fn window_len(size: u32) -> u64 {
    (u64::from(size) * PAGE_SIZE).next_multiple_of(LARGE_PAGE)
}

impl Seen {
    pub(super) fn is_by_device(&self) -> bool {
        matches!(self, Self::ByDevice(_))
    }

    fn is_anywhere(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    pub(super) fn accepted(&self) -> Option<&Accepted> {
        match self {
            Self::ByPeer(accepted) => Some(accepted),
            Self::Nowhere | Self::ByDevice(_) => None,
        }
    }
}

impl Shared {
    /// A space that nobody sees.
    pub(super) const fn new(space: Space<mm::TableFrames>) -> Self {
        Self { space, seen: Seen::Nowhere, table: None, maps: false }
    }
}

/// The status word of a reference, in the memory of the peer.
fn word(peer: &Domain, status: Status, reference: u32) -> StatusWord<'_> {
    let at = status.at + u64::from(reference) * status.stride();
    StatusWord { peer, at: Gpa::new(at), has_address: status.has_addresses }
}

impl Accepted {
    pub(super) fn is_by(&self, domain: &Domain) -> bool {
        core::ptr::eq(self.peer.as_ptr(), domain)
    }
}

/// All domains that live.
fn domains() -> Vec<Arc<Domain>> {
    DOMAINS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// The domain may share pages from now on.
pub fn enter(domain: &Arc<Domain>) {
    if domain.is_paravirtual() {
        return;
    }
    let mut domains = DOMAINS.lock();
    domains.retain(|known| known.strong_count() != 0);
    domains.push(Arc::downgrade(domain));
}

/// The domain has ended: when this returns, nobody reaches its pages by a grant, and it has none of others.
pub fn leave(domain: &Domain) {
    DOMAINS.lock().retain(|known| !core::ptr::eq(known.as_ptr(), domain));
    let mut spaces = domain.grants.lock();
    spaces.take_back(domain, |_| true);
    spaces.own.iter_mut().for_each(|own| *own = None);
    // The tables of a device of its own stay, with nothing in them, until the device is blocked.
    spaces.devices.retain_mut(|(_, shared)| shared.hide_from_own_device(domain));
    drop(spaces);
    for granter in domains() {
        granter.grants.lock().take_back(&granter, |accepted| accepted.is_by(domain));
    }
}

/// Those of a set that do not issue single pages to their devices: what else a window shows of them is all lent.
pub fn without_granters(domains: DomainSet) -> DomainSet {
    let granters = self::domains().into_iter().filter(|domain| domain.config.grants.by_page());
    granters.fold(domains, |domains, granter| domains.without(granter.id))
}

/// Carries out a call of a guest.
///
/// # Errors
/// Says what is wrong.
pub fn call(caller: &Domain, call: &Call) -> Result<u64, Error> {
    match *call {
        Call::Create { peer, size } => create(caller, peer, size),
        Call::Destroy(space) => destroy(caller, space),
        Call::Accept { granter, space, at, status } => accept(caller, granter, space, at, status),
        Call::Leave(at) => give_up(caller, at),
        Call::Issue { space, reference, page, count } => {
            let region = region_of(caller, space);
            let operation = |devices: &[Piece], index: u64| {
                let page = Page { gpa: page.gpa.checked_add(index * PAGE_SIZE)?, ..page };
                let grant = grant(caller, region.as_ref(), devices, page);
                Some(Operation::Issue(u32::try_from(u64::from(reference) + index).ok()?, grant))
            };
            carry_out(caller, space, &operation, count)
        }
        Call::Revoke { space, reference, count, forced } => {
            let operation = |_: &[Piece], index: u64| {
                let reference = u32::try_from(u64::from(reference) + index).ok()?;
                Some(Operation::Revoke { reference, forced })
            };
            carry_out(caller, space, &operation, count)
        }
        Call::Batch { space, list, count } => {
            let region = region_of(caller, space);
            let operation = |devices: &[Piece], index: u64| {
                let at = list.checked_add(index * Entry::SIZE)?;
                let words = [caller.read_u64(Gpa::new(at))?, caller.read_u64(Gpa::new(at.checked_add(8)?))?];
                Some(match Entry::decode(words)? {
                    Entry::Issue(reference, page) => {
                        Operation::Issue(reference, grant(caller, region.as_ref(), devices, page))
                    }
                    Entry::Revoke(reference, forced) => Operation::Revoke { reference, forced },
                })
            };
            carry_out(caller, space, &operation, count)
        }
        Call::Query { space, reference } => query(caller, space, reference),
        Call::Open(space) => open(caller, space),
    }
}

/// The domain at a place in another's list, if it lives and names that one, too.
fn peer_of(domain: &Domain, place: u8) -> Result<Arc<Domain>, Error> {
    let name = domain.config.peers.get(usize::from(place)).ok_or(Error::BadArgument)?;
    let found = domains().into_iter().find(|other| other.config.name == *name);
    found.filter(|other| other.config.peers.contains(&domain.config.name)).ok_or(Error::NoPeer)
}

/// A page that a guest wants to lend: only memory of its own, or of the region of the guest that it lends to, or of these of its devices. The ledger of the
/// peer's map says so once more.
fn grant(caller: &Domain, region: Option<&Placed>, devices: &[Piece], page: Page) -> Option<Grant> {
    let own = caller.memory.translate(Gpa::new(page.gpa), PAGE_SIZE).ok().and_then(|mut parts| parts.next());
    let held = || region?.frame(page.gpa);
    let in_device = || devices.iter().find_map(|piece| frame_in(piece, page));
    let frame = own.map(|(frame, _)| frame).or_else(held).or_else(in_device)?;
    Some(Grant { frame, writable: page.writable })
}

/// Whether a page is one of a piece's.
fn has(piece: &Piece, frame: Hpa) -> bool {
    frame.as_u64().checked_sub(piece.hpa.as_u64()).is_some_and(|offset| offset < piece.len)
}

/// The frame of a page that is in a piece, if the granter may do with it what the peer is to.
fn frame_in(piece: &Piece, page: Page) -> Option<Hpa> {
    let offset = page.gpa.checked_sub(piece.at).filter(|offset| *offset < piece.len)?;
    let may = !page.writable || piece.rights.owner.contains(Access::WRITE);
    may.then(|| Hpa::new(piece.hpa.as_u64() + offset))
}

/// The region of the guest that sees this space as maps of a device file.
fn region_of(caller: &Domain, space: u8) -> Option<Placed> {
    region::of(caller, device_of(space)?)
}

fn create(caller: &Domain, peer: u8, size: u32) -> Result<u64, Error> {
    if usize::from(peer) >= caller.config.peers.len() {
        return Err(Error::BadArgument);
    }
    let mut spaces = caller.grants.lock();
    let taken: u64 = spaces.own.iter().flatten().map(|own| u64::from(own.shared.space.size())).sum();
    let free = spaces.own.iter_mut().enumerate().find(|(_, place)| place.is_none());
    let (number, place) =
        free.filter(|_| taken + u64::from(size) <= MAX_REFERENCES).ok_or(Error::NoMemory)?;
    let space = Space::new(mm::TableFrames::COHERENT, size).ok_or(Error::NoMemory)?;
    *place = Some(Own { shared: Shared::new(space), peer });
    Ok(number as u64)
}

fn destroy(caller: &Domain, space: u8) -> Result<u64, Error> {
    let mut spaces = caller.grants.lock();
    let place = spaces.own.get_mut(usize::from(space)).ok_or(Error::BadArgument)?;
    if place.as_ref().ok_or(Error::Absent)?.shared.space.live() != 0 {
        return Err(Error::Busy);
    }
    *place = None;
    Ok(0)
}

fn accept(caller: &Domain, granter: u8, space: u8, at: u64, status: Option<Status>) -> Result<u64, Error> {
    // Where the memory of others is in the machine is for those to know who reach all of it.
    if status.is_some_and(|status| status.has_addresses) && !caller.reaches_everything {
        return Err(Error::NotPermitted);
    }
    let granter = peer_of(caller, granter)?;
    let this = domains().into_iter().find(|known| core::ptr::eq(&raw const **known, caller));
    let this = Arc::downgrade(&this.ok_or(Error::NoPeer)?);
    if !Domain::has_room_for_windows(caller.config.memory) {
        return Err(Error::NoMemory);
    }
    let find = |own: &Own| {
        let named = granter.config.peers.get(usize::from(own.peer));
        named.is_some_and(|name| *name == caller.config.name)
    };
    let size = {
        let spaces = granter.grants.lock();
        let own = spaces.own.get(usize::from(space)).and_then(Option::as_ref).filter(|own| find(own));
        own.ok_or(Error::Absent)?.shared.space.size()
    };
    let len = window_len(size);
    if let Some(status) = status {
        let bytes = u64::from(size) * status.stride();
        caller.memory.translate(Gpa::new(status.at), bytes).map_err(|_| Error::BadArgument)?;
    }
    caller.take_window(Window { at, len, shows: (Arc::downgrade(&granter), space), ready: false })?;
    let result = caller.show_sink(at, len).and_then(|()| {
        let mut spaces = granter.grants.lock();
        let own = spaces.own.get_mut(usize::from(space)).and_then(Option::as_mut);
        let own = own.filter(|own| find(own) && own.shared.space.size() == size);
        let shared = &mut own.ok_or(Error::Absent)?.shared;
        if shared.seen.is_anywhere() {
            return Err(Error::Exists);
        }
        caller.space.lock().ledger_mut().share(granter.id, true);
        shared.seen = Seen::ByPeer(Accepted { peer: this, at, status });
        Ok(size.into())
    });
    caller.window_is(at, len, result.is_ok());
    result
}

/// Gives a window up that the caller has accepted.
fn give_up(caller: &Domain, at: u64) -> Result<u64, Error> {
    let mut spaces = caller.grants.lock();
    let window = spaces.windows.iter_mut().find(|window| window.at == at && window.ready);
    let window = window.ok_or(Error::Absent)?;
    window.ready = false;
    let len = window.len;
    drop(spaces);
    for granter in domains() {
        let is_it = |accepted: &Accepted| accepted.is_by(caller) && accepted.at == at;
        granter.grants.lock().take_back(&granter, is_it);
    }
    caller.window_is(at, len, false);
    Ok(0)
}

fn query(caller: &Domain, space: u8, reference: u32) -> Result<u64, Error> {
    let mut spaces = caller.grants.lock();
    let shared = spaces.get(space)?;
    let found = shared.space.lookup(reference).map_err(as_error)?;
    let mut answer = 0;
    if shared.seen.is_anywhere() {
        answer |= GRANT_IS_ACCEPTED;
    }
    if let Some(grant) = found {
        answer |= GRANT_IS_ISSUED;
        if grant.writable {
            answer |= GRANT_IS_WRITABLE;
        }
    }
    Ok(answer)
}

/// A virtual device reaches what its space grants from now on. One of the domain's own has never reached anything else.
fn open(caller: &Domain, space: u8) -> Result<u64, Error> {
    let slot = device_of(space).ok_or(Error::BadArgument)?;
    let mut spaces = caller.grants.lock();
    let shared = spaces.get(space)?;
    let size = shared.space.size();
    if let Seen::ByDevice(_) = shared.seen {
        return Ok(size.into());
    }
    drop(spaces);
    let function = caller.plugged(slot).filter(|function| function.reaches_grants());
    function.map(|_| size.into()).ok_or(Error::Absent)
}

/// Carries out operations, which are told what memory of devices the space may show.
fn carry_out(
    caller: &Domain,
    space: u8,
    operation: &impl Fn(&[Piece], u64) -> Option<Operation>,
    count: u64,
) -> Result<u64, Error> {
    let mut spaces = caller.grants.lock();
    let shared = spaces.get(space)?;
    // Found under the lock under which it is taken back: what has left the caller's map is not granted any more after that.
    let devices = if shared.maps { caller.device_memory() } else { Vec::new() };
    let batch = |index: u64| operation(&devices, index);
    shared.carry_out(caller, device_of(space).is_some(), &batch, count, Settle::Now)
}

/// The slot of the device whose space has this number.
fn device_of(space: u8) -> Option<u8> {
    space.checked_sub(GRANT_DEVICE as u8)
}

pub(super) fn as_error(error: sluice_grants::Error) -> Error {
    use sluice_grants::Error as Grants;
    match error {
        Grants::NoReference | Grants::NoPage => Error::BadArgument,
        Grants::Taken => Error::Exists,
        Grants::Absent => Error::Absent,
        Grants::Busy => Error::Busy,
        Grants::OutOfMemory => Error::NoMemory,
        Grants::ReadOnly => Error::NotPermitted,
    }
}

/// When everyone is made to forget what was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settle {
    /// Before the call returns.
    Now,
    /// By a later call.
    Later,
}

impl Settle {
    fn carry_out(
        self,
        space: &mut Space<mm::TableFrames>,
        peer: &mut impl Peer,
        batch: &impl Batch,
        count: u64,
    ) -> Result<u64, sluice_grants::Error> {
        match self {
            Self::Now => space.carry_out(peer, batch, count),
            Self::Later => space.carry_out_unsettled(peer, batch, count),
        }
    }
}

impl Spaces {
    /// The space of a number.
    pub(super) fn get(&mut self, number: u8) -> Result<&mut Shared, Error> {
        if let Some(slot) = device_of(number) {
            return self.device(slot).ok_or(Error::Absent);
        }
        let own = self.own.get_mut(usize::from(number)).ok_or(Error::BadArgument)?;
        own.as_mut().map(|own| &mut own.shared).ok_or(Error::Absent)
    }

    /// That of the device in a slot.
    pub(super) fn device(&mut self, slot: u8) -> Option<&mut Shared> {
        self.devices.iter_mut().find(|(of, _)| *of == slot).map(|(_, shared)| shared)
    }

    /// All of them.
    fn all(&self) -> impl Iterator<Item = &Shared> {
        let devices = self.devices.iter().map(|(_, shared)| shared);
        self.own.iter().flatten().map(|own| &own.shared).chain(devices)
    }

    /// Takes everything back that peers see by these windows. What is granted to a device stays granted: another domain may come to serve it.
    fn take_back(&mut self, granter: &Domain, is_it: impl Fn(&Accepted) -> bool) {
        let is_it = |shared: &Shared| shared.seen.accepted().is_some_and(&is_it);
        let mut peers = Vec::new();
        for Own { shared, .. } in self.own.iter_mut().flatten().filter(|own| is_it(&own.shared)) {
            peers.extend(shared.hide(granter));
            shared.forget();
        }
        for (_, shared) in self.devices.iter_mut().filter(|(_, shared)| is_it(shared)) {
            peers.extend(shared.hide(granter));
        }
        peers.iter().for_each(|peer| self.unshare(granter.id, peer));
    }

    /// A peer sees a space less.
    fn unshare(&self, by: DomainId, peer: &Domain) {
        let mut accepted = self.all().filter_map(|shared| shared.seen.accepted());
        if !accepted.any(|accepted| accepted.is_by(peer)) {
            peer.space.lock().ledger_mut().share(by, false);
        }
    }
}

impl Shared {
    /// Carries out operations of the granter's, in the space of a device or of a peer.
    fn carry_out(
        &mut self,
        granter: &Domain,
        is_device: bool,
        batch: &impl Batch,
        count: u64,
        settle: Settle,
    ) -> Result<u64, Error> {
        let Self { space, seen, table, .. } = self;
        if table.is_some() {
            return Err(Error::NotPermitted);
        }
        let peer = seen.accepted().and_then(|accepted| accepted.peer.upgrade());
        let done = match (seen, &peer) {
            (Seen::ByPeer(accepted), Some(peer)) => {
                settle.carry_out(space, &mut View::of_peer(peer, granter.id, accepted), batch, count)
            }
            (Seen::ByDevice(own), _) => {
                settle.carry_out(space, &mut View::of_device(granter, own), batch, count)
            }
            // Whoever comes to serve the device finds what is granted then.
            _ if is_device => settle.carry_out(space, &mut Nobody, batch, count),
            _ => return Err(Error::NoPeer),
        };
        done.map_err(as_error)
    }

    /// The peer loses its view: when this returns, it reaches nothing of the space, and nothing is pinned for it. The window shows
    /// the sink. Returns the peer, if there was one.
    fn hide(&mut self, granter: &Domain) -> Option<Arc<Domain>> {
        let accepted = self.seen.accepted()?;
        // One that has ended took everything back itself.
        let (peer, at, status) = (accepted.peer.upgrade(), accepted.at, accepted.status);
        self.seen = Seen::Nowhere;
        let peer = peer?;
        // It programs no device by an address of what is somebody else's soon.
        if let Some(status) = status.filter(|status| status.has_addresses) {
            self.space.close_all(|reference| word(&peer, status, reference));
        }
        let len = window_len(self.space.size());
        let shown = peer.show_sink(at, len).is_ok();
        let map = peer.space.lock();
        self.space.visit(|_, grant| map.unpin_covered(grant.frame));
        drop(map);
        // What it had mapped is mapped for nobody who comes after it.
        if let Some(table) = GrantTable::of(granter, self.table) {
            self.space.let_go(&table);
        }
        if !shown {
            log::warn!("domain {}: its window at {at:#x} is gone, for want of memory", peer.name());
        }
        log::debug!("domain {}: what domain {} granted is taken back", peer.name(), granter.id);
        Some(peer)
    }

    /// Nothing is granted any more.
    fn forget(&mut self) {
        self.space.clear(|_, _| ());
    }
}

impl Domain {
    /// The virtual device in a slot gets a space, which shows pages of the domain in a window of `bytes`. Without memory for it, nothing can be
    /// granted to the device.
    pub fn lend_to_device(&self, slot: u8, bytes: u64) {
        self.lend(slot, bytes, false);
    }

    /// The same for a back-end function, whose guest is shown what is mapped of a device file.
    pub fn lend_maps(&self, slot: u8, bytes: u64) {
        // Without an IOMMU its devices are given back before its grants end: a guest would reach memory of the next owner's card.
        self.lend(slot, bytes, !self.reaches_everything);
    }

    fn lend(&self, slot: u8, bytes: u64, maps: bool) {
        let size = u32::try_from(bytes / PAGE_SIZE).ok();
        let Some(space) = size.and_then(|size| Space::new(mm::TableFrames::COHERENT, size)) else {
            log::error!("domain {}: nothing can be granted to the device in slot {slot}", self.name());
            return;
        };
        self.grants.lock().devices.push((slot, Shared { maps, ..Shared::new(space) }));
    }

    /// This memory of a device of the domain's is not in its map any more: when this returns, nobody else reaches it either.
    pub fn take_back_device_memory(&self, frames: Range<u64>) {
        let mut spaces = self.grants.lock();
        let shows_maps = |shared: &Shared| shared.maps && shared.space.live() != 0;
        for (slot, shared) in spaces.devices.iter_mut().filter(|(_, shared)| shows_maps(shared)) {
            let mut references = 0..shared.space.size();
            while !references.is_empty() {
                let mut found = ArrayVec::<u32, { GRANT_MAX_BATCH as usize }>::new();
                let is_it = |reference: &u32| match shared.space.lookup(*reference) {
                    Ok(Some(grant)) => frames.contains(&grant.frame.as_u64()),
                    _ => false,
                };
                found.extend(references.by_ref().filter(is_it).take(GRANT_MAX_BATCH as usize));
                let revoke = |index: u64| {
                    Some(Operation::Revoke { reference: *found.get(index as usize)?, forced: true })
                };
                if let Err(error) = shared.carry_out(self, true, &revoke, found.len() as u64, Settle::Now) {
                    log::error!("domain {}: slot {slot} keeps memory of a device: {error:?}", self.name());
                }
            }
        }
    }

    /// A virtual device is gone, or is somebody else's: when this returns, nobody reaches anything by its space.
    pub fn withdraw_from_device(&self, slot: u8) {
        self.hide_from_peer(slot);
        self.grants.lock().devices.retain(|(of, _)| *of != slot);
    }

    /// Shows what is granted to a device, now and from now on, to the domain on its other side, in a window that shows the sink.
    pub fn show_to_peer(&self, slot: u8, peer: &Arc<Domain>, at: u64) {
        let mut spaces = self.grants.lock();
        let Some(shared) = spaces.device(slot) else { return };
        if shared.seen.is_anywhere() {
            return;
        }
        let accepted = Accepted { peer: Arc::downgrade(peer), at, status: None };
        let mut view = View::of_peer(peer, self.id, &accepted);
        view.map.ledger_mut().share(self.id, true);
        let shown = shared.space.show(&mut view);
        drop(view);
        if let Err(error) = shown {
            log::error!("domain {}: the window at {at:#x} shows nothing: {error:?}", peer.name());
            spaces.unshare(self.id, peer);
            return;
        }
        shared.seen = Seen::ByPeer(accepted);
    }

    /// The domain on the other side of a device does not see any more what is granted to it: when this returns, the window shows the sink.
    pub fn hide_from_peer(&self, slot: u8) {
        let mut spaces = self.grants.lock();
        if let Some(peer) = spaces.device(slot).and_then(|shared| shared.hide(self)) {
            spaces.unshare(self.id, &peer);
        }
    }

    /// Whether pages can be granted to the device in a slot.
    pub fn has_space_for_device(&self, slot: u8) -> bool {
        self.grants.lock().device(slot).is_some()
    }

    /// Issues pages of the domain's from a guest-physical address on to a device, by these references. Returns how many were issued. The device may
    /// find the sink there until [`Self::settle_device`].
    ///
    /// # Errors
    /// What the first one failed by.
    pub fn issue_to_device(
        &self,
        slot: u8,
        references: Range<u64>,
        gpa: u64,
        writable: bool,
    ) -> Result<u64, Error> {
        let issue = |index: u64| {
            let page = Page { gpa: gpa.checked_add(index * PAGE_SIZE)?, writable };
            let reference = u32::try_from(references.start + index).ok()?;
            Some(Operation::Issue(reference, grant(self, None, &[], page)))
        };
        let mut spaces = self.grants.lock();
        let shared = spaces.device(slot).ok_or(Error::Absent)?;
        // Unlike a call of the guest's this widens nothing: where something is mapped, nothing can be (Virtio 1.2, 5.13.6.5.2).
        let is_free = |reference: &u64| matches!(shared.space.lookup(*reference as u32), Ok(None));
        let free = references.clone().take_while(is_free).count() as u64;
        if free == 0 {
            return Err(Error::Exists);
        }
        shared.carry_out(self, true, &issue, free, Settle::Later)
    }

    /// Nobody reaches what was taken back from a device any more when this returns, and the device what was issued to it.
    pub fn settle_device(&self, slot: u8) {
        if let Some(shared) = self.grants.lock().device(slot) {
            // A batch of nothing, after which everyone forgets.
            let settled = shared.carry_out(self, true, &|_: u64| None, 0, Settle::Now);
            debug_assert!(settled.is_ok() || shared.table.is_some());
        }
    }

    /// Takes back what is granted to a device by these references, the first of them that one call may look at. Returns how many that were: all
    /// that are asked for, if the space has no more. They may be reached until [`Self::settle_device`].
    pub fn revoke_from_device(&self, slot: u8, references: Range<u64>) -> u64 {
        /// A look takes a fortieth of what it takes to revoke a page.
        const LOOKS: u64 = 16 * GRANT_MAX_BATCH;
        let Range { start, end } = references;
        let mut spaces = self.grants.lock();
        let Some(shared) = spaces.device(slot) else { return end - start };
        let last = end.min(shared.space.size().into());
        let mut found = ArrayVec::<u32, { GRANT_MAX_BATCH as usize }>::new();
        let mut next = start;
        while next < last && next - start < LOOKS && !found.is_full() {
            if let Ok(Some(_)) = shared.space.lookup(next as u32) {
                found.push(next as u32);
            }
            next += 1;
        }
        let revoke =
            |index: u64| Some(Operation::Revoke { reference: *found.get(index as usize)?, forced: true });
        if let Err(error) = shared.carry_out(self, true, &revoke, found.len() as u64, Settle::Later) {
            log::debug!("domain {}: its device in slot {slot} keeps pages: {error:?}", self.name());
        }
        if next < last { next - start } else { end - start }
    }

    /// Bytes that are granted to a device.
    pub fn granted_to_device(&self, slot: u8) -> u64 {
        let mut spaces = self.grants.lock();
        spaces.device(slot).map_or(0, |shared| u64::from(shared.space.live()) * PAGE_SIZE)
    }

    /// Whose space the window at an address shows, and the number of that.
    pub(super) fn shown_at(&self, at: u64) -> Option<(Arc<Domain>, u8)> {
        let spaces = self.grants.lock();
        let window = spaces.windows.iter().find(|window| window.at == at && window.ready)?;
        let (granter, space) = &window.shows;
        Some((granter.upgrade()?, *space))
    }

    /// Takes addresses for a window.
    fn take_window(&self, window: Window) -> Result<(), Error> {
        let Window { at, len, .. } = window;
        let all = layout::GRANTS..layout::GRANTS + layout::GRANTS_SIZE;
        if !at.is_multiple_of(LARGE_PAGE) || !all.contains(&at) || len > all.end - at {
            return Err(Error::BadArgument);
        }
        let mut spaces = self.grants.lock();
        if spaces.windows.iter().any(|other| at < other.at + other.len && other.at < at + len) {
            return Err(Error::Exists);
        }
        let taken: u64 = spaces.windows.iter().map(|window| window.len).sum();
        if taken + len > MAX_REFERENCES * PAGE_SIZE {
            return Err(Error::NoMemory);
        }
        spaces.windows.try_push(window).map_err(|_| Error::NoMemory)
    }

    /// A window that came is there now, or has gone: its addresses are free again.
    fn window_is(&self, at: u64, len: u64, there: bool) {
        if !there {
            let mut map = self.space.lock();
            let hidden = map.revoke(at, len);
            map.settle(self, |_, _| ());
            drop(map);
            assert!(hidden.is_ok(), "domain {}: the window at {at:#x} stays mapped", self.name());
        }
        let mut spaces = self.grants.lock();
        match spaces.windows.iter_mut().find(|window| window.at == at) {
            Some(window) if there => window.ready = true,
            _ => spaces.windows.retain(|window| window.at != at),
        }
    }

    /// Shows nothing but the sink in a window. The domain's processors stand still meanwhile, and so never find nothing there.
    fn show_sink(&self, at: u64, len: u64) -> Result<(), Error> {
        let sink = self.need_sink().ok_or(Error::NoMemory)?;
        self.freeze();
        let mut map = self.space.lock();
        let shown = map.revoke(at, len).and_then(|()| fill(&mut map, at..at + len, sink));
        if shown.is_err() {
            // Whole pieces can always be taken back.
            let _ = map.revoke(at, len);
        }
        map.settle(self, |_, _| ());
        drop(map);
        self.thaw();
        shown.map_err(|_| Error::NoMemory)
    }

    /// Checks that its windows show what is granted, and nothing else. Returns where pages are granted to it.
    ///
    /// # Panics
    /// A page of a window is neither the sink's nor granted so.
    pub(super) fn check_grants(&self) -> Vec<Range<u64>> {
        let mut checked: Vec<Range<u64>> = Vec::new();
        for granter in domains() {
            let spaces = granter.grants.lock();
            for shared in spaces.all() {
                let Some(accepted) = shared.seen.accepted().filter(|accepted| accepted.is_by(self)) else {
                    continue;
                };
                let window = accepted.at..accepted.at + window_len(shared.space.size());
                checked.push(window.clone());
                let devices = if shared.maps { granter.device_memory() } else { Vec::new() };
                self.check_granted(&granter, shared, &devices, &self.space.lock(), window);
            }
        }
        let map = self.space.lock();
        for view in map.views() {
            view.visit(&mut |at, hpa, bytes, _| {
                let is_known = checked.iter().any(|window| window.contains(&at));
                if at >= layout::GRANTS && !is_known {
                    let sink = mm::check(hpa, bytes, FrameUse::Sink(self.id.0));
                    assert!(
                        sink.is_ok(),
                        "domain {}: {at:#x} leads to {hpa}, which nobody grants",
                        self.name()
                    );
                }
            });
        }
        checked
    }

    /// Checks that a map of the domain's shows in a range what another grants in a space, and the sink everywhere else.
    ///
    /// # Panics
    /// It shows something else.
    pub(super) fn check_granted(
        &self,
        granter: &Domain,
        shared: &Shared,
        devices: &[Piece],
        map: &memory::Map,
        range: Range<u64>,
    ) {
        let start = range.start;
        let mut in_devices = 0;
        shared.space.visit(|_, grant| in_devices += u32::from(!mm::is_memory(grant.frame, PAGE_SIZE)));
        for view in map.views() {
            // No device reaches another's memory.
            let mut live = if matches!(view, memory::View::Devices(_)) { in_devices } else { 0 };
            view.visit(&mut |at, hpa, bytes, access| {
                if !range.contains(&at) || mm::check(hpa, bytes, FrameUse::Sink(self.id.0)).is_ok() {
                    return;
                }
                let reference = ((at - start) / PAGE_SIZE) as u32;
                let granted = shared.space.lookup(reference).ok().flatten();
                let as_granted = granted.is_some_and(|grant| {
                    grant.frame == hpa && (grant.writable || !access.contains(Access::WRITE))
                });
                let own = mm::check(hpa, bytes, FrameUse::Guest(granter.id.0)).is_ok()
                    || mm::check(hpa, bytes, FrameUse::Region(self.id.0)).is_ok()
                    || !mm::is_memory(hpa, bytes) && devices.iter().any(|piece| has(piece, hpa));
                assert!(
                    as_granted && own && bytes == PAGE_SIZE && !access.contains(Access::EXECUTE),
                    "domain {}: {at:#x} leads to {hpa}, as reference {reference} of domain {} does not say",
                    self.name(),
                    granter.name()
                );
                live += 1;
            });
            assert!(live == shared.space.live(), "domain {}: {live} pages are shown", self.name());
        }
    }
}

/// A map that shows a space, during one call.
pub(super) struct View<'a, M> {
    /// Whose processors and devices use it.
    owner: &'a Domain,
    map: M,
    /// What the pages are for that one.
    contents: Contents,
    /// Address of the first reference.
    at: u64,
    /// Where the owner has status words.
    status: Option<Status>,
    /// Whatever the granter says, pages are only read.
    reads_only: bool,
}

impl<'a> View<'a, SpinLockGuard<'a, memory::Map>> {
    /// A peer's window.
    pub(super) fn of_peer(peer: &'a Domain, by: DomainId, accepted: &Accepted) -> Self {
        let Accepted { at, status, .. } = *accepted;
        let (map, contents) = (peer.space.lock(), Contents::Lent(by.0));
        Self { owner: peer, map, contents, at, status, reads_only: false }
    }
}

impl<'a> View<'a, &'a mut memory::Map> {
    /// What a device of the granter's own reaches.
    pub(super) fn of_device(granter: &'a Domain, own: &'a mut OwnDevice) -> Self {
        let (map, contents) = (&mut own.map, Contents::Own);
        Self { owner: granter, map, contents, at: 0, status: None, reads_only: own.regions.is_some() }
    }
}

impl<M> View<'_, M> {
    fn at(&self, reference: u32) -> u64 {
        self.at + u64::from(reference) * PAGE_SIZE
    }
}

/// A status word in the memory of the peer.
pub(super) struct StatusWord<'a> {
    peer: &'a Domain,
    at: Gpa,
    /// The machine address of the page follows.
    has_address: bool,
}

impl Word for StatusWord<'_> {
    fn load(&self) -> Option<u64> {
        self.peer.read_u64(self.at)
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        self.peer.replace_u64(self.at, old, new)
    }

    fn has_address(&self) -> bool {
        self.has_address
    }

    fn tell(&self, page: Option<Hpa>) {
        if self.has_address {
            self.peer.write_u64(Gpa::new(self.at.as_u64() + 8), page.map_or(0, Hpa::as_u64));
        }
    }
}

impl<'a, M: DerefMut<Target = memory::Map>> Peer for View<'a, M> {
    type Word = StatusWord<'a>;

    fn show(&mut self, reference: u32, grant: Grant) -> Result<(), sluice_grants::Error> {
        let held = mm::check(grant.frame, PAGE_SIZE, FrameUse::Region(self.owner.id.0)).is_ok();
        let contents = match self.contents {
            _ if held => Contents::Region(self.owner.id.0),
            Contents::Lent(by) if !mm::is_memory(grant.frame, PAGE_SIZE) => Contents::DeviceMemory(by),
            contents => contents,
        };
        let mut rights = Rights::window(contents);
        if !grant.writable || self.reads_only {
            (rights.owner, rights.party) = (Access::READ, Access::READ);
        }
        if let Contents::DeviceMemory(_) = contents {
            (rights.owner, rights.party) = (rights.owner | Access::UNCACHED, Access::empty());
        }
        let at = self.at(reference);
        self.map.cover(at, grant.frame, rights).map_err(|error| match error {
            IssueError::OutOfMemory | IssueError::Absent => sluice_grants::Error::OutOfMemory,
            IssueError::BadRange | IssueError::Taken | IssueError::Foreign => sluice_grants::Error::NoPage,
        })
    }

    fn widen(&mut self, reference: u32, grant: Grant) -> Result<(), sluice_grants::Error> {
        self.show(reference, grant)?;
        // It is pinned twice now.
        self.map.unpin_covered(grant.frame);
        Ok(())
    }

    fn hide(&mut self, reference: u32, grant: Grant) {
        let at = self.at(reference);
        let hidden = self.map.uncover(at, grant.frame);
        assert!(
            hidden.is_ok(),
            "domain {}: reference {reference} of {:?} stays shown: {hidden:?}",
            self.owner.name(),
            self.contents
        );
    }

    fn forget(&mut self) {
        self.map.settle(self.owner, |_: Hpa, _| ());
    }

    fn word(&self, reference: u32) -> Option<StatusWord<'a>> {
        Some(word(self.owner, self.status?, reference))
    }
}

/// Nobody serves the device: what is granted to it is noted.
struct Nobody;

/// There are no status words.
enum NoWord {}

impl Word for NoWord {
    fn load(&self) -> Option<u64> {
        match *self {}
    }

    fn replace(&self, _: u64, _: u64) -> bool {
        match *self {}
    }
}

impl Peer for Nobody {
    type Word = NoWord;

    fn show(&mut self, _: u32, _: Grant) -> Result<(), sluice_grants::Error> {
        Ok(())
    }

    fn widen(&mut self, _: u32, _: Grant) -> Result<(), sluice_grants::Error> {
        Ok(())
    }

    fn hide(&mut self, _: u32, _: Grant) {}

    fn forget(&mut self) {}

    fn word(&self, _: u32) -> Option<NoWord> {
        None
    }
}
