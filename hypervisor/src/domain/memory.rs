//! A domain's memory: one map of it, shown to its processors and to its devices.
//!
//! Key types: [`Memory`] (under construction), [`View`]. The map is a [`Space`] by guest-physical address: RAM is lent to
//! the devices that the domain owns, device registers are not. Nested page tables and the IOMMU's tables follow from it,
//! and so does what either must forget. A frame gets into the map only as [`mm::Ledger`] says: RAM if it is the domain's own.
//! [`GuestMemory`] is the way to RAM for everything else: it is read from the map once, since RAM stays where it is for as long
//! as the domain lives.

use super::{Domain, EndReason, PageHandler, layout};
use crate::iommu::{Counted, DeviceView, Devices, DmaEndpoint};
use crate::mm;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;
use sluice_abi::DomainId;
use sluice_abi::report::SpaceReport;
use sluice_iommu::SpaceTag;
use sluice_iospace::{Audience, Contents, IssueError, Rights, Space, Stale, TableView};
use sluice_loader::{GuestWrite, RamRange};
use sluice_memory::{
    Access, FrameUse, Gpa, GuestMemory, HUGE_PAGE, Hpa, LARGE_PAGE, LongMode, MapError, OutOfRange, PAGE_SIZE,
};
use sluice_traps::Direction;

/// A part of a BAR that is treated alike.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where the guest sees it.
    pub gpa: Gpa,
    /// Offsets in the BAR.
    pub range: Range<u64>,
    /// Accesses that do not exit.
    pub direct: Direction,
}

impl Piece {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Why a domain has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// There is not enough, or not in one piece.
    OutOfMemory,
    /// The IOMMUs before its devices want different tables, or know no more spaces.
    Iommu,
    /// The map does not take it: the hypervisor is at fault.
    Map(IssueError),
}

impl From<IssueError> for MemoryError {
    fn from(error: IssueError) -> Self {
        match error {
            IssueError::OutOfMemory => Self::OutOfMemory,
            error => Self::Map(error),
        }
    }
}

/// The one map of a domain's memory.
pub type Map = Space<View, mm::Ledger>;

/// The domain's processors.
pub struct Processors;

impl Audience for Processors {
    type Owner = Domain;

    fn access(&self, rights: Rights) -> Access {
        rights.owner
    }

    fn caches_absent(&self) -> bool {
        false
    }

    fn forget(&mut self, domain: &Domain, _: &Stale) {
        domain.flush_translations();
    }
}

/// Someone who sees a domain's memory.
pub enum View {
    /// Nested page tables.
    Processors(TableView<LongMode, mm::TableFrames, Processors>),
    /// Tables of an IOMMU.
    Devices(DeviceView<Domain>),
}

macro_rules! delegate {
    ($self:ident, $view:ident => $call:expr) => {
        match $self {
            Self::Processors($view) => $call,
            Self::Devices($view) => $call,
        }
    };
}

impl View {
    fn root(&self) -> Hpa {
        delegate!(self, view => view.root())
    }

    /// Shows every mapped page: its address, where it is, its bytes and rights.
    pub fn visit(&self, show: &mut impl FnMut(u64, Hpa, u64, Access)) {
        delegate!(self, view => view.visit(show));
    }
}

impl sluice_iospace::View for View {
    type Owner = Domain;

    fn show(&mut self, piece: &sluice_iospace::Piece) -> Result<bool, MapError> {
        delegate!(self, view => view.show(piece))
    }

    fn is_for(&self, rights: Rights) -> bool {
        delegate!(self, view => view.is_for(rights))
    }

    fn hide(&mut self, range: core::ops::Range<u64>) -> Result<bool, MapError> {
        delegate!(self, view => view.hide(range))
    }

    fn forget(&mut self, domain: &Domain, stale: &Stale) {
        delegate!(self, view => view.forget(domain, stale));
    }
}

/// Guest memory under construction: gives everything back unless it becomes a domain.
pub struct Memory {
    id: DomainId,
    space: Map,
    /// What the map says of RAM.
    guest: GuestMemory,
    /// Guest-physical addresses are the physical ones.
    identity: bool,
}

impl Memory {
    /// Cleared memory as the configuration wants it, seen by processors, and by devices where an IOMMU stands before one
    /// that masters the bus.
    pub fn new(
        id: DomainId,
        bytes: u64,
        endpoints: &[DmaEndpoint],
        identity: bool,
        paravirtual: bool,
    ) -> Result<Self, MemoryError> {
        let processors = TableView::new(LongMode, mm::TableFrames::COHERENT, Processors)
            .ok_or(MemoryError::OutOfMemory)?;
        let mut memory =
            Self { id, space: Space::new(mm::Ledger::of(id)), guest: GuestMemory::new(), identity };
        memory.see(View::Processors(processors))?;
        if let Some(endpoint) = endpoints.first() {
            // Tag 0 is nobody's.
            let tag = id.0.checked_add(1).map(SpaceTag).ok_or(MemoryError::Iommu)?;
            memory.see(View::Devices(devices_view(tag, endpoint, endpoints)?))?;
        }
        if paravirtual {
            memory.machine(bytes)?;
        } else if identity {
            memory.identity(bytes)?;
        } else {
            let below = bytes.min(layout::PCI_MEMORY);
            memory.extent(0, below)?;
            if bytes > below {
                memory.extent(layout::ABOVE_4G, bytes - below)?;
            }
        }
        memory.guest = memory.space.memory().map_err(|_| MemoryError::OutOfMemory)?;
        Ok(memory)
    }

    fn see(&mut self, view: View) -> Result<(), MemoryError> {
        Ok(self.space.add_view(view)?)
    }

    /// Whether it is for a domain that has a device before which no IOMMU stands.
    pub fn is_identity(&self) -> bool {
        self.identity
    }

    /// What becomes part of the domain.
    pub fn take(&mut self) -> (GuestMemory, Map) {
        let space = core::mem::replace(&mut self.space, Space::new(mm::Ledger::of(self.id)));
        (core::mem::take(&mut self.guest), space)
    }

    /// Memory whose guest-physical addresses are the physical ones, for a guest whose devices reach memory past
    /// the nested page tables. Only boot structures, below 1 MiB, are elsewhere.
    fn identity(&mut self, bytes: u64) -> Result<(), MemoryError> {
        let main = bytes.checked_sub(LARGE_PAGE).filter(|main| *main > 0).ok_or(MemoryError::OutOfMemory)?;
        // The guest's own devices begin at PCI_MEMORY: RAM must not be there.
        let used_as = FrameUse::Guest(self.id.0);
        let start = mm::allocate_below(used_as, main, LARGE_PAGE, layout::PCI_MEMORY);
        let start = start.ok_or(MemoryError::OutOfMemory)?;
        self.add(start.as_u64(), start, main)?;
        let low = mm::allocate(used_as, layout::HIGH_RAM, PAGE_SIZE).ok_or(MemoryError::OutOfMemory)?;
        self.add(0, low, layout::HIGH_RAM)
    }

    /// Memory of a guest that knows machine addresses, in one piece. Devices reach what [`Domain::lend_frames`] shows them.
    fn machine(&mut self, bytes: u64) -> Result<(), MemoryError> {
        let used_as = FrameUse::Guest(self.id.0);
        let start = mm::allocate_below(used_as, bytes, LARGE_PAGE, layout::WINDOWS);
        let start = start.ok_or(MemoryError::OutOfMemory)?;
        clear(start, bytes);
        Ok(self.space.issue(start.as_u64(), start, bytes, Rights::UNLENT)?)
    }

    /// Adds one extent of cleared memory.
    fn extent(&mut self, gpa: u64, bytes: u64) -> Result<(), MemoryError> {
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { LARGE_PAGE };
        let allocate = |align| mm::allocate(FrameUse::Guest(self.id.0), bytes, align);
        let start = allocate(align).or_else(|| allocate(LARGE_PAGE)).ok_or(MemoryError::OutOfMemory)?;
        self.add(gpa, start, bytes)
    }

    fn add(&mut self, gpa: u64, start: Hpa, bytes: u64) -> Result<(), MemoryError> {
        clear(start, bytes);
        Ok(self.space.issue(gpa, start, bytes, Rights::MEMORY)?)
    }

    /// Where the memory begins, and its bytes, if it is one piece.
    pub fn piece(&self) -> Option<(Hpa, u64)> {
        match self.guest.extents() {
            [extent] => Some((extent.hpa, extent.len)),
            _ => None,
        }
    }

    /// RAM as the guest is told of it: all but the hole below 1 MiB, in rising order.
    pub fn ram(&self) -> Vec<RamRange> {
        let mut ranges = Vec::new();
        for extent in self.guest.extents() {
            let (start, end) = (extent.gpa.as_u64(), extent.gpa.as_u64() + extent.len);
            let below = start..end.min(layout::LOW_RAM_END);
            let above = start.max(layout::HIGH_RAM)..end;
            for range in [below, above].into_iter().filter(|range| range.start < range.end) {
                ranges.push(RamRange { start: Gpa::new(range.start), len: range.end - range.start });
            }
        }
        ranges.sort_unstable_by_key(|range| range.start.as_u64());
        ranges
    }
}

/// Empty tables that all units before a domain's devices can use.
pub(super) fn devices_view(
    tag: SpaceTag,
    endpoint: &DmaEndpoint,
    endpoints: &[DmaEndpoint],
) -> Result<DeviceView<Domain>, MemoryError> {
    let format = endpoint.counted().unit().format();
    let mut units: Vec<&'static Counted> = Vec::new();
    for counted in endpoints.iter().map(DmaEndpoint::counted) {
        if counted.unit().format() != format || u32::from(tag.0) >= counted.unit().tags() {
            return Err(MemoryError::Iommu);
        }
        if !units.iter().any(|known| core::ptr::eq(*known, counted)) {
            units.push(counted);
        }
    }
    Devices::view(tag, units).ok_or(MemoryError::OutOfMemory)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nobody has run in it, and no device was given it: nothing can be cached.
        self.space.abandon(|hpa, len| scrub(self.id, hpa, len));
    }
}

impl GuestWrite for Memory {
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.guest.write(&mm::Direct, gpa, bytes)
    }
}

/// Whether a piece lies where the guest has its PCI memory, and so no RAM.
fn is_in_window(piece: &Piece) -> bool {
    let window = layout::PCI_MEMORY..layout::PCI_MEMORY + layout::PCI_MEMORY_SIZE;
    let start = piece.gpa.as_u64();
    window.contains(&start) && piece.len() <= window.end - start
}

/// Shows the guest a piece of device memory no more.
fn revoke(space: &mut Map, piece: &Piece) -> bool {
    is_in_window(piece) && space.revoke(piece.gpa.as_u64(), piece.len()).is_ok()
}

/// Shows the guest a piece of a BAR, as far as it is direct.
fn issue(space: &mut Map, hpa: Hpa, piece: &Piece, contents: Contents) -> bool {
    if piece.direct.is_empty() {
        return true;
    }
    let mut rights = Rights { contents, owner: Access::UNCACHED, ..Rights::DEVICE };
    for (direction, right) in [(Direction::READ, Access::READ), (Direction::WRITE, Access::WRITE)] {
        rights.owner.set(right, piece.direct.contains(direction));
    }
    let from = Hpa::new(hpa.as_u64() + piece.range.start);
    space.issue(piece.gpa.as_u64(), from, piece.len(), rights).is_ok()
}

/// Leaves nothing of what memory held: when a domain gets it, since it may come from before the hypervisor's time, and when the
/// domain gives it back.
fn clear(start: Hpa, bytes: u64) {
    mm::zero(start, bytes);
}

/// Takes the memory of the domain back so that nothing of it reaches the next owner.
fn scrub(id: DomainId, hpa: Hpa, len: u64) {
    clear(hpa, len);
    mm::release(FrameUse::Guest(id.0), hpa, len);
}

impl Domain {
    /// Root of the nested page tables.
    pub fn nested_root(&self) -> Hpa {
        let space = self.space.lock();
        let processors = space.views().find(|view| matches!(view, View::Processors(_)));
        processors.map_or(Hpa::new(0), View::root)
    }

    /// The space of its devices: its tag, and where the IOMMU's tables begin.
    pub fn device_space(&self) -> Option<(SpaceTag, Hpa)> {
        self.space.lock().views().find_map(|view| match view {
            View::Devices(tables) => Some((tables.audience().tag(), tables.root())),
            View::Processors(_) => None,
        })
    }

    /// Shows every page of its views: address, memory, bytes, rights.
    pub fn visit_views(&self, show: &mut impl FnMut(u64, Hpa, u64, Access)) {
        self.space.lock().views().for_each(|view| view.visit(show));
    }

    /// What its devices reach, for a report.
    pub fn space_report(&self) -> Option<SpaceReport> {
        let (SpaceTag(tag), _) = self.device_space()?;
        let mut report = SpaceReport { tag, ..SpaceReport::default() };
        let space = self.space.lock();
        for view in space.views().filter(|view| matches!(view, View::Devices(_))) {
            view.visit(&mut |_, _, bytes, _| {
                let size = [PAGE_SIZE, LARGE_PAGE, HUGE_PAGE].iter().position(|size| *size == bytes);
                size.into_iter().for_each(|size| report.pages[size] += 1);
                report.bytes += bytes;
            });
        }
        Some(report)
    }

    /// Has its processors forget all translations before they execute another instruction.
    fn flush_translations(&self) {
        self.freeze();
        self.tables.fetch_add(1, Ordering::SeqCst);
        self.order_flush(u64::MAX);
        self.thaw();
    }

    /// Lets the guest reach device memory from `hpa` on at these pieces, which lie one after the other in its
    /// PCI window; what is not direct goes to `handler`. Returns whether it could be done: not where something is
    /// already, and not outside the window.
    pub fn map_device(&self, handler: PageHandler, hpa: Hpa, pieces: &[Piece]) -> bool {
        self.map_bar(handler, hpa, pieces, Contents::Registers)
    }

    /// The same of a BAR which is memory of the device: pages of it can be shown to a guest, as maps of a device file
    /// ([`Self::take_back_device_memory`]).
    pub fn map_device_memory(&self, handler: PageHandler, hpa: Hpa, pieces: &[Piece]) -> bool {
        self.map_bar(handler, hpa, pieces, Contents::DeviceMemory(self.id.0))
    }

    fn map_bar(&self, handler: PageHandler, hpa: Hpa, pieces: &[Piece], contents: Contents) -> bool {
        if !pieces.iter().all(is_in_window) {
            return false;
        }
        let mut pages = self.pages.lock();
        for (done, piece) in pieces.iter().enumerate() {
            if !pages.hook(piece.gpa, piece.len(), !piece.direct, handler) {
                pieces[..done].iter().for_each(|piece| pages.remove(piece.gpa));
                return false;
            }
        }
        drop(pages);
        let mut space = self.space.lock();
        let mapped = pieces.iter().all(|piece| issue(&mut space, hpa, piece, contents));
        space.settle(self, |_, _| ());
        drop(space);
        if !mapped {
            self.unmap_device(pieces);
        }
        mapped
    }

    /// Changes where a piece of device memory is, and which accesses to it are direct, at one stroke for the guest: when
    /// this returns, none of its processors does what it may not any more. False if there was no memory for tables; all
    /// accesses exit then.
    pub fn redirect_device(&self, handler: PageHandler, hpa: Hpa, piece: &Piece) -> bool {
        let mut pages = self.pages.lock();
        pages.remove(piece.gpa);
        let hooked = pages.hook(piece.gpa, piece.len(), !piece.direct, handler);
        drop(pages);
        let mut space = self.space.lock();
        let moved = revoke(&mut space, piece) && issue(&mut space, hpa, piece, Contents::Registers);
        space.settle(self, |_, _| ());
        hooked && moved
    }

    /// Takes device memory away again.
    pub fn unmap_device(&self, pieces: &[Piece]) {
        let mut space = self.space.lock();
        for piece in pieces {
            self.pages.lock().remove(piece.gpa);
            if !revoke(&mut space, piece) {
                log::error!("domain {}: device memory at {} stays mapped", self.name(), piece.gpa);
                self.end(EndReason::Command);
            }
        }
        space.settle(self, |_, _| ());
    }

    /// Memory of devices that its processors reach, where the guest has put it.
    pub(super) fn device_memory(&self) -> Vec<sluice_iospace::Piece> {
        let window = layout::PCI_MEMORY..layout::PCI_MEMORY + layout::PCI_MEMORY_SIZE;
        let is_it =
            |piece: &sluice_iospace::Piece| piece.rights.contents == Contents::DeviceMemory(self.id.0);
        self.space.lock().pieces_in(window).filter(is_it).collect()
    }

    /// Lets the guest reach registers where they physically are, for as long as it lives. Returns whether it could be done.
    pub fn map_registers(&self, frames: &Range<u64>) -> bool {
        let (at, len) = (frames.start * PAGE_SIZE, (frames.end - frames.start) * PAGE_SIZE);
        let mut space = self.space.lock();
        let mapped = space.issue(at, Hpa::new(at), len, Rights::DEVICE).is_ok();
        space.settle(self, |_, _| ());
        mapped
    }

    /// Its devices reach these frames of a paravirtual domain.
    pub fn lend_frames(&self, frames: impl Iterator<Item = u64>) {
        let mut space = self.space.lock();
        for frame in frames {
            if let Err(error) = space.lend(frame * PAGE_SIZE, PAGE_SIZE, Rights::MEMORY.party) {
                log::error!("domain {}: its devices cannot reach frame {frame:#x}: {error:?}", self.name());
                self.end(EndReason::Command);
                break;
            }
        }
        space.settle(self, |_, _| ());
    }

    /// Its devices reach these frames no more when this returns.
    ///
    /// # Panics
    /// They do: each was lent by itself, so that taking it away needs no memory.
    pub fn withhold_frames(&self, frames: impl Iterator<Item = u64>) {
        let mut space = self.space.lock();
        for frame in frames {
            let withheld = space.withhold(frame * PAGE_SIZE, PAGE_SIZE);
            assert!(
                withheld.is_ok(),
                "domain {}: its devices keep frame {frame:#x}: {withheld:?}",
                self.name()
            );
        }
        space.settle(self, |_, _| ());
    }

    /// Shows every run of frames that its devices reach: first and count.
    pub fn visit_lent(&self, show: &mut impl FnMut(u64, u64)) {
        let space = self.space.lock();
        for view in space.views().filter(|view| matches!(view, View::Devices(_))) {
            view.visit(&mut |_, hpa, bytes, _| show(hpa.as_u64() / PAGE_SIZE, bytes / PAGE_SIZE));
        }
    }

    /// Has everyone who sees its memory forget what was taken away, or what another domain had under the same number.
    pub fn settle(&self) {
        self.space.lock().settle(self, |_, _| ());
    }

    /// Takes all memory away from processors and devices, and gives it back once nobody can reach it any more.
    pub(super) fn dissolve(&self) {
        let mut space = self.space.lock();
        let pieces: Vec<_> = space.pieces().collect();
        for piece in pieces {
            // Whole pieces need no memory for tables.
            let revoked = space.revoke(piece.at, piece.len);
            assert!(
                revoked.is_ok(),
                "domain {}: memory at {:#x} stays mapped: {revoked:?}",
                self.name(),
                piece.at
            );
        }
        space.settle(self, |hpa, len| {
            // Registers of devices were not the domain's to give back.
            if self.memory.extents().iter().any(|extent| extent.contains(hpa)) {
                scrub(self.id, hpa, len);
            }
        });
    }
}
