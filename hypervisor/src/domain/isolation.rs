//! A check of the live tables: a domain reaches its own memory and nothing else.
//!
//! It runs on every domain before the domain may run, and whenever memory is verified. Three must agree: the tables that
//! processors and devices walk, the way to guest memory, and the table of frames, which says whose each frame is. They can
//! only differ by a defect of Sluice; then the machine stops rather than go on without isolation.

use super::memory::View;
use super::{Domain, grants, layout};
use crate::mm::{self, FrameUse};
use sluice_abi::DomainSet;
use sluice_memory::{Access, Gpa, Hpa};

impl Domain {
    /// Checks every page that the domain's nested tables and the IOMMU's tables for its devices map.
    ///
    /// # Panics
    /// A page is neither the domain's own memory nor, for its processors, registers of a device or what stands in for
    /// them.
    pub fn check_isolation(&self) {
        let by_page = self.check_grants();
        self.check_own_devices();
        let serves = self.space.lock().ledger().serves();
        let lend_all = grants::without_granters(serves);
        let space = self.space.lock();
        // Nobody takes pages away without having them forgotten before the map is anybody else's.
        assert!(space.is_settled(), "domain {}: pages that were taken away are not forgotten", self.name());
        for view in space.views() {
            let (mut pages, mut bytes) = (0u64, 0u64);
            view.visit(&mut |gpa, hpa, len, access| {
                if access.contains(Access::UNCACHED) {
                    self.check_registers(view, gpa, hpa, len);
                    return;
                }
                if gpa >= layout::GRANTS || by_page.iter().any(|window| window.contains(&gpa)) {
                    // See `check_grants`.
                    return;
                }
                if gpa >= layout::WINDOWS {
                    self.check_window(lend_all, gpa, hpa, len);
                    return;
                }
                self.check_memory(Gpa::new(gpa), hpa, len);
                pages += 1;
                bytes += len;
            });
            let has: u64 = self.memory.extents().iter().map(|extent| extent.len).sum();
            // Devices of a paravirtual domain reach what it uses as memory, which its processor knows.
            let partly = self.is_paravirtual() && matches!(view, View::Devices(_)) && bytes < has;
            assert!(
                bytes == has || partly,
                "domain {}: {bytes:#x} of {has:#x} bytes are mapped",
                self.name()
            );
            let whose = match view {
                View::Processors(_) => "nested pages",
                View::Devices(_) => "pages for its devices",
            };
            log::info!("domain {}: {pages} {whose}, {} MiB, all its own", self.name(), bytes >> 20);
        }
    }

    fn check_memory(&self, gpa: Gpa, hpa: Hpa, len: u64) {
        let same = self
            .memory
            .translate(gpa, len)
            .is_ok_and(|mut pieces| pieces.next() == Some((hpa, len)) && pieces.next().is_none());
        assert!(
            same,
            "domain {}: {gpa} leads to {hpa}, which is elsewhere in its memory, or not in it",
            self.name()
        );
        let own = mm::check(hpa, len, FrameUse::Guest(self.id.0));
        assert!(own.is_ok(), "domain {}: {gpa} leads to {hpa}, which is not its own: {own:x?}", self.name());
    }

    fn check_window(&self, lend_all: DomainSet, gpa: u64, hpa: Hpa, len: u64) {
        let lent = lend_all.iter().any(|guest| mm::check(hpa, len, FrameUse::Guest(guest.0)).is_ok());
        let own = lent || mm::check(hpa, len, FrameUse::Sink(self.id.0)).is_ok();
        assert!(own, "domain {}: its window at {gpa:#x} leads to {hpa}, which nobody lends it", self.name());
    }

    fn check_registers(&self, view: &View, gpa: u64, hpa: Hpa, len: u64) {
        let for_processors = matches!(view, View::Processors(_));
        assert!(for_processors, "domain {}: its devices reach registers at {gpa:#x}", self.name());
        let own = !mm::is_memory(hpa, len) || mm::check(hpa, len, FrameUse::Mirror(self.id.0)).is_ok();
        assert!(own, "domain {}: {gpa:#x} leads to memory at {hpa}, which is no register", self.name());
    }
}
