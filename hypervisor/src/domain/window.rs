//! Windows: where a domain sees memory of the guests that it serves.
//!
//! A window is PCI memory of a back-end function. What a guest lends is at its I/O address in it; everywhere else is the [`Sink`], so
//! that nothing that software or a device does there fails. The domain's processors and its devices see the same.

use super::sink::Sink;
use super::{Domain, layout};
use sluice_abi::DomainId;
use sluice_iospace::{Contents, IssueError, Rights};
use sluice_memory::{Extent, LARGE_PAGE};

/// What a guest lends to a domain that serves one of its devices.
#[derive(Clone, Copy)]
pub struct Loan<'a> {
    /// The guest.
    pub by: DomainId,
    /// Its memory, where `gpa` is the I/O address; in rising order, in whole large pages.
    pub extents: &'a [Extent],
}

/// Bytes of a window onto all memory of a domain that has so much: a power of two, as BARs are.
pub fn onto(memory: u64) -> u64 {
    end(memory).next_power_of_two()
}

/// Where the memory of a domain that has so much ends.
pub fn end(memory: u64) -> u64 {
    let end = match memory.checked_sub(layout::PCI_MEMORY) {
        Some(above) if above > 0 => layout::ABOVE_4G + above,
        _ => memory,
    };
    end.max(LARGE_PAGE).next_multiple_of(LARGE_PAGE)
}

/// Whether a window lies where the domain has its windows.
fn is_window(base: u64, size: u64) -> bool {
    let all = layout::WINDOWS..layout::WINDOWS + layout::WINDOWS_SIZE;
    base.is_multiple_of(LARGE_PAGE) && all.contains(&base) && size <= all.end - base
}

impl Domain {
    /// From now on the domain serves devices of a guest, and its windows may show what that lends. False for want of memory.
    pub fn serve(&self, guest: DomainId) -> bool {
        if self.need_sink().is_none() {
            return false;
        }
        self.space.lock().ledger_mut().serve(guest, true);
        true
    }

    /// What its windows show where nothing is lent; `None` for want of memory.
    pub(super) fn need_sink(&self) -> Option<&Sink> {
        if self.sink.get().is_none() {
            let sink = Sink::new(self.id)?;
            self.sink.call_once(|| sink);
        }
        self.sink.get()
    }

    /// The domain serves no device of a guest any more, and no window shows anything of it.
    pub fn stop_serving(&self, guest: DomainId) {
        self.space.lock().ledger_mut().serve(guest, false);
    }

    /// Takes `size` bytes of addresses at `base` for a window, which shows the sink. Two windows never share an address, wherever the domain
    /// puts their base address registers: what is granted by one would be taken away by the other. Returns whether they could be had.
    pub fn open_window(&self, base: u64, size: u64) -> bool {
        let Some(sink) = self.need_sink().filter(|_| is_window(base, size)) else { return false };
        let mut space = self.space.lock();
        if !space.is_free(base, size) {
            log::debug!("domain {}: the window at {base:#x} lies over another one", self.name());
            return false;
        }
        let shown = fill(&mut space, base..base + size, sink);
        if shown.is_err() {
            let _ = space.revoke(base, size);
        }
        space.settle(self, |_, _| ());
        shown.is_ok()
    }

    /// Shows in the open window of `size` bytes at `base` what a guest lends, and nothing else any more: when this returns, none of the
    /// domain's processors and devices reaches what was shown before. Its processors stand still meanwhile, and so never find
    /// nothing there. Returns whether it could be done.
    pub fn show_window(&self, base: u64, size: u64, loan: Option<Loan<'_>>) -> bool {
        let Some(sink) = self.need_sink().filter(|_| is_window(base, size)) else { return false };
        self.freeze();
        let mut space = self.space.lock();
        let shown = space.revoke(base, size).and_then(|()| {
            let mut at = base;
            let (by, extents) = loan.map_or((self.id, &[][..]), |loan| (loan.by, loan.extents));
            for extent in extents {
                let start = base.checked_add(extent.gpa.as_u64()).ok_or(IssueError::BadRange)?;
                let fits = start >= at && extent.len <= (base + size).saturating_sub(start);
                if !fits || !(start | extent.len).is_multiple_of(LARGE_PAGE) {
                    return Err(IssueError::BadRange);
                }
                fill(&mut space, at..start, sink)?;
                space.issue(start, extent.hpa, extent.len, Rights::window(Contents::Lent(by.0)))?;
                at = start + extent.len;
            }
            fill(&mut space, at..base + size, sink)
        });
        if shown.is_err() {
            // Better nothing than a part: whole pieces can always be taken back.
            let _ = space.revoke(base, size);
        }
        space.settle(self, |_, _| ());
        drop(space);
        self.thaw();
        if let Err(error) = shown {
            log::error!("domain {}: the window at {base:#x} cannot be shown: {error:?}", self.name());
        }
        shown.is_ok()
    }

    /// Shows nothing there any more: the window has moved, or was switched off.
    pub fn hide_window(&self, base: u64, size: u64) {
        let mut space = self.space.lock();
        let hidden = is_window(base, size) && space.revoke(base, size).is_ok();
        space.settle(self, |_, _| ());
        drop(space);
        assert!(hidden, "domain {}: the window at {base:#x} stays mapped", self.name());
    }

    /// Whether a domain with so much memory has it clear of its windows.
    pub fn has_room_for_windows(bytes: u64) -> bool {
        bytes < layout::WINDOWS - layout::ABOVE_4G
    }
}

/// Shows the sink in a range of whole large pages.
pub(super) fn fill(
    space: &mut super::memory::Map,
    range: core::ops::Range<u64>,
    sink: &Sink,
) -> Result<(), IssueError> {
    range
        .step_by(Sink::SIZE as usize)
        .try_for_each(|at| space.issue(at, sink.hpa(), Sink::SIZE, Rights::window(Contents::Sink)))
}
