//! The BAR of a window: where a domain sees what the other side of a virtual device lends.

use super::Lent;
use crate::domain::Domain;
use alloc::sync::Arc;
use sluice_platform::pci::{BarAddresses, BarKind, Builder};

/// A window, and what is in it.
pub struct WindowBar {
    size: u64,
    /// Guest-physical address to begin with.
    initial: u64,
    at: Option<u64>,
    lent: Option<Lent>,
}

impl WindowBar {
    /// A window of `size` bytes, above 4 GiB; `None` if there is no room for it.
    pub fn new(size: u64, high: &mut BarAddresses) -> Option<Self> {
        Some(Self { size, initial: high.take(size)?, at: None, lent: None })
    }

    /// Guest-physical address to begin with.
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// Guest-physical address where it is open.
    pub fn at(&self) -> Option<u64> {
        self.at
    }

    /// Whose single pages it shows, and the slot of that one's device.
    pub fn pages(&self) -> Option<(Arc<Domain>, u8)> {
        self.lent.as_ref().and_then(Lent::pages)
    }

    /// Adds it to a function.
    pub fn describe(&self, builder: Builder, index: u8) -> Builder {
        builder.bar(index, BarKind::Mem64 { prefetchable: true }, self.size, self.initial)
    }

    /// From now on it shows this, and nothing of what it showed before can be reached by it when this returns. A domain that is no more has no windows.
    pub fn lend(&mut self, domain: Option<&Arc<Domain>>, lent: Option<Lent>) {
        self.hide();
        self.lent = lent;
        self.at = self.at.zip(domain).filter(|(at, domain)| self.show(domain, *at)).map(|(at, _)| at);
    }

    /// Has it answer where it is wanted, and nowhere else.
    pub fn settle(&mut self, domain: Option<&Arc<Domain>>, wanted: Option<u64>) {
        if self.at == wanted {
            return;
        }
        self.hide();
        if let Some((at, domain)) = self.at.take().zip(domain) {
            domain.hide_window(at, self.size);
        }
        let open =
            |(at, domain): &(u64, &Arc<Domain>)| domain.open_window(*at, self.size) && self.show(domain, *at);
        self.at = wanted.zip(domain).filter(open).map(|(at, _)| at);
    }

    /// Shows what is lent now in the open window. Returns whether it could be done: the window is closed otherwise.
    fn show(&self, domain: &Arc<Domain>, at: u64) -> bool {
        let loan = self.lent.as_ref().and_then(Lent::loan);
        let shown = domain.show_window(at, self.size, loan);
        if let Some((lender, slot)) = self.pages().filter(|_| shown) {
            lender.show_to_peer(slot, domain, at);
        }
        shown
    }

    /// Shows single pages no more: the window is about to change.
    fn hide(&self) {
        if let Some((lender, slot)) = self.pages() {
            lender.hide_from_peer(slot);
        }
    }
}
