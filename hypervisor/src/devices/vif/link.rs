//! Interfaces that their guests find as something else than a virtio card.

use super::Network;
use super::interface::{Face, Interface};
use crate::domain::Domain;
use crate::sync::{Rank, SpinLock};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::DomainId;
use sluice_abi::config;
use sluice_abi::report::LinkReport;

/// An interface of the configuration, alive or not.
pub struct Link {
    guest: DomainId,
    /// Its name in the guest's list.
    device: String,
    /// "guest.device".
    name: String,
    /// Name of the guest.
    domain: String,
    face: config::Face,
    mac: [u8; 6],
    mtu: u16,
    interface: Interface,
    /// Doorbells that exited, and interrupts.
    kicks: AtomicU64,
    signals: AtomicU64,
}

/// All that there are now.
static LINKS: SpinLock<Vec<Arc<Link>>> = SpinLock::new(Rank::Links, Vec::new());

/// A guest's interface of this name; `None` if it has none such.
pub fn find(guest: DomainId, device: &str) -> Option<Arc<Link>> {
    LINKS.lock().iter().find(|link| link.guest == guest && link.device == device).cloned()
}

/// Notes an interface of a guest.
pub fn add(guest: DomainId, domain: &config::Domain, vif: &config::Vif, network: Arc<Network>) {
    let link = Link {
        guest,
        device: vif.name.clone(),
        name: format!("{}.{}", domain.name, vif.name),
        domain: domain.name.clone(),
        face: vif.face,
        mac: vif.mac,
        mtu: vif.mtu,
        interface: Interface::new(network, vif),
        kicks: AtomicU64::new(0),
        signals: AtomicU64::new(0),
    };
    LINKS.lock().push(Arc::new(link));
}

/// Forgets an interface, which its guest no longer has.
pub fn remove(guest: DomainId, device: &str) {
    LINKS.lock().retain(|link| link.guest != guest || link.device != device);
}

/// Sets what an interface may send, and its VLAN. False: the guest has none such of that name.
pub fn set(guest: DomainId, vif: &config::Vif) -> bool {
    let link = find(guest, &vif.name);
    link.inspect(|link| link.interface.set(vif)).is_some()
}

/// All of them, for a report.
pub fn reports() -> Vec<LinkReport> {
    // Not under the lock: engines are waited for.
    let all: Vec<Arc<Link>> = LINKS.lock().clone();
    all.iter().map(|link| link.report()).collect()
}

impl Link {
    /// What its guest finds.
    pub fn face(&self) -> config::Face {
        self.face
    }

    /// "guest.device".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its station address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Most bytes of a frame after its header.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The guest is there, and finds this.
    pub fn comes(&self, domain: &Arc<Domain>, face: Face) {
        self.interface.comes(&self.name, domain, face);
    }

    /// A doorbell exited.
    pub fn count_kick(&self) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
    }

    /// The driver was interrupted.
    pub fn count_signal(&self) {
        self.signals.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self) -> LinkReport {
        LinkReport {
            vif: self.interface.counts(&mut self.interface.lock()),
            name: self.name.clone(),
            kind: self.face.word().into(),
            guest: self.domain.clone(),
            server: format!("network {}", self.interface.network()),
            offered: true,
            status: 0,
            background: false,
            window: 0,
            lent: 0,
            kicks: self.kicks.load(Ordering::Relaxed),
            used: self.signals.load(Ordering::Relaxed),
            copied: 0,
            refused: 0,
        }
    }
}
