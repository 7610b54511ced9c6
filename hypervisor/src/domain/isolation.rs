//! A check of the live nested page tables: a domain reaches its own memory and nothing else.
//!
//! It runs on every domain before the domain may run. The tables are built from the same extents, so
//! that it can only fail by a defect of Sluice; then the machine stops rather than go on without
//! isolation.

use super::Domain;
use super::memory::View;
use crate::mm;
use sluice_memory::{Gpa, Hpa};

impl Domain {
    /// Checks every page that the domain's nested tables and the IOMMU's tables for its devices map.
    ///
    /// # Panics
    /// A page is not the domain's own memory, or the hypervisor's image.
    pub fn check_isolation(&self) {
        let image = mm::image_range();
        for view in self.space.lock().views() {
            let (mut pages, mut bytes) = (0u64, 0u64);
            view.visit(&mut |gpa, hpa: Hpa, len, _| {
                let gpa = Gpa::new(gpa);
                let own = self
                    .memory
                    .translate(gpa, len)
                    .is_ok_and(|mut pieces| pieces.next() == Some((hpa, len)) && pieces.next().is_none());
                assert!(own, "domain {}: {gpa} leads to {hpa}, which is not its own", self.name());
                let end = hpa.as_u64() + len;
                let apart = end <= image.start || hpa.as_u64() >= image.end;
                assert!(apart, "domain {}: {gpa} leads into the hypervisor", self.name());
                pages += 1;
                bytes += len;
            });
            assert!(bytes <= self.config.memory, "domain {}: more is mapped than it was given", self.name());
            let whose = match view {
                View::Processors(_) => "nested pages",
                View::Devices(_) => "pages for its devices",
            };
            log::info!("domain {}: {pages} {whose}, {} MiB, all its own", self.name(), bytes >> 20);
        }
    }
}
