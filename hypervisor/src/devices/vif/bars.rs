//! The BARs of a function of ours: memory of the hypervisor's that the guest reaches in parts without an exit, and a port.

use crate::devices::error::AttachError;
use crate::devices::guest::Guest;
use crate::devices::ports::HookedPorts;
use crate::domain::{Domain, PageHandler, Piece};
use arrayvec::ArrayVec;
use core::ops::Range;
use sluice_hypercall::backend::VENDOR;
use sluice_memory::{Gpa, Hpa};
use sluice_platform::pci::{BarAddresses, BarKind, BuildError, Builder, Function, Identity};
use sluice_traps::Direction;

/// A stretch of the memory BAR, and what of it the guest can do without an exit.
pub type Part = (Range<u32>, Direction);

/// Most parts.
const PARTS: usize = 4;

/// What function they are of, which ones they are, how large the port is, and of which parts the memory is, without gaps.
pub struct Layout {
    /// The function's device, class and version.
    pub device: u16,
    pub class: u32,
    pub version: u8,
    /// The memory.
    pub memory: u8,
    /// The port, and how many of them it is.
    pub doorbell: u8,
    pub ports: u16,
    pub parts: &'static [Part],
    /// Its messages, and where in the memory their table and pending bits are.
    pub vectors: u16,
    pub table: u32,
    pub pending: u32,
}

impl Layout {
    /// Bytes of the memory.
    fn size(&self) -> u64 {
        self.parts.last().map_or(0, |(range, _)| range.end.into())
    }
}

/// Where the BARs of a function answer.
pub struct Bars {
    layout: &'static Layout,
    /// Guest-physical address of the memory to begin with, and now.
    initial: u64,
    at: Option<u64>,
    doorbell: HookedPorts,
}

impl Bars {
    /// Those of a function that is not on a bus yet.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn new(
        layout: &'static Layout,
        guest: &Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Self, AttachError> {
        let initial = addresses.take(layout.size());
        let doorbell = HookedPorts::new(layout.ports, guest.slot, addresses);
        let (initial, doorbell) = initial.zip(doorbell).ok_or(AttachError::NoRoom)?;
        Ok(Self { layout, initial, at: None, doorbell })
    }

    /// How the function looks on the PCI bus.
    ///
    /// # Errors
    /// It is none.
    pub fn describe(&self) -> Result<Function, BuildError> {
        let Layout { device, class, version, memory, doorbell, ports, vectors, table, pending, .. } =
            *self.layout;
        let identity = Identity {
            vendor: VENDOR,
            device,
            class,
            revision: version,
            subsystem_vendor: VENDOR,
            subsystem: device,
        };
        Builder::new(identity)
            .bar(memory, BarKind::Mem32 { prefetchable: true }, self.layout.size(), self.initial)
            .bar(doorbell, BarKind::Io, ports.into(), self.doorbell.initial())
            .msix(vectors, (memory, table), (memory, pending))
            .build()
    }

    /// Offset of an address in the memory.
    pub fn offset(&self, gpa: Gpa) -> Option<u32> {
        u32::try_from(gpa.as_u64().checked_sub(self.at?)?).ok()
    }

    /// Has them answer where the guest has put them. The memory is at `hpa`; if the function is `gone`, all of it exits.
    pub fn settle(&mut self, domain: &Domain, slot: u8, hpa: Hpa, gone: bool) {
        let platform = domain.platform.lock();
        let enabled =
            |index: u8| platform.pci.bar(slot, index).filter(|bar| bar.enabled).map(|bar| bar.address);
        let [at, doorbell] = [self.layout.memory, self.layout.doorbell].map(enabled);
        drop(platform);
        // First away with what moves, so that two BARs can change places.
        self.doorbell.leave(domain, doorbell);
        if let Some(old) = self.at.take_if(|old| Some(*old) != at) {
            domain.unmap_device(&self.pieces(old, gone));
        }
        self.doorbell.settle(domain, slot, doorbell);
        if let (None, Some(at)) = (self.at, at) {
            let shown = domain.map_device(self.handler(slot), hpa, &self.pieces(at, gone));
            self.at = shown.then_some(at);
        }
    }

    /// The function is gone: when this returns, the guest does not reach the memory any more.
    pub fn hide(&self, domain: &Domain, slot: u8, hpa: Hpa) {
        for piece in self.at.into_iter().flat_map(|at| self.pieces(at, true)) {
            domain.redirect_device(self.handler(slot), hpa, &piece);
        }
    }

    fn handler(&self, slot: u8) -> PageHandler {
        PageHandler::Socket { slot, bar: self.layout.memory }
    }

    fn pieces(&self, at: u64, gone: bool) -> ArrayVec<Piece, PARTS> {
        let piece = |(range, direct): &Part| Piece {
            gpa: Gpa::new(at + u64::from(range.start)),
            range: range.start.into()..range.end.into(),
            direct: if gone { Direction::empty() } else { *direct },
        };
        self.layout.parts.iter().map(piece).collect()
    }
}
