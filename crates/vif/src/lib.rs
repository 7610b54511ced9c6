//! Virtual interfaces (VIFs) of a network card, and the engine that serves them.
//!
//! Key types: [`Engine`] (what it does in a round), [`Network`] (all engines of one, while VIFs are made, changed and ended), [`Attributes`] of one
//! VIF, [`Wire`] (the physical card, if there is one). A VIF has a queue of frames to send, a queue of buffers to receive into, and a signal for each, which its
//! driver can switch off apart (Raj and Schwan, "High Performance and Scalable I/O Virtualization via Self-Virtualized Devices", 2.2). Here these are the two
//! queues of a virtio network card, so that a guest's stock driver is the driver of a VIF.
//!
//! A VIF may show another face. The *native* one is the source's own: rings without addresses, in memory of which the driver changes nothing but its
//! own part, and buffers in pages that it has handed over before ([`native`]). The other is a [`Card`] that is driven by registers, in place of the
//! queues. The engine looks what was written there.
//!
//! Nothing waits in the engine: a frame stays in its sender's queue until there is room on the wire, and goes from there straight into
//! the buffers of whom it is for. A VIF that has no buffers loses its own frames. Nothing is allocated but when a VIF is made.
//!
//! As in `sluice_switch`, stations are known and not learned: a frame with another source address than its sender's is dropped and counted.
//! Frames reach the VIFs of their sender's VLAN, and the wire with its tag.
//!
//! Everything that a queue holds is its guest's word. What makes no sense breaks that VIF, until its driver resets it, and nobody else.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
#[macro_use]
extern crate std;

mod active;
mod card;
mod chain;
mod directory;
mod egress;
mod engine;
mod filter;
mod frame;
mod identifiers;
mod ingress;
mod lane;
pub mod native;
mod network;
pub mod offload;
mod outgoing;
mod port;
mod relay;
mod rung;
mod scratch;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod turn;
mod vif;
mod wire;

pub use active::{Active, Queues};
pub use card::{Card, Packet};
pub use chain::Memory;
pub use engine::{Duty, Engine, Next, Outcome};
pub use filter::{Address, Filter, MAX_ADDRESSES};
pub use identifiers::Identifiers;
pub use network::{Layout, Network, engines};
pub use relay::{Doorbell, Owed};
pub use rung::Rung;
pub use sluice_switch::Mac;
pub use vif::{Attributes, Counters};
pub use wire::{Given, Wire};

/// Most engines of a network.
pub const MAX_ENGINES: usize = 4;

/// Most VIFs of a network.
pub const MAX_VIFS: usize = 64;

/// A VIF of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VifId(u8);

impl VifId {
    /// Its number, below [`MAX_VIFS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    const fn bit(self) -> u64 {
        1 << (self.0 & 63)
    }
}

/// VIFs of one network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VifSet(u64);

impl VifSet {
    /// They, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = VifId> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let next = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (next < 64).then_some(VifId(next as u8))
        })
    }

    /// Whether it is one of them.
    pub const fn contains(self, vif: VifId) -> bool {
        self.0 & vif.bit() != 0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The word with their bits: bit n is of VIF n.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// How many they are.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    fn insert(&mut self, vif: VifId) {
        self.0 |= vif.bit();
    }

    fn remove(&mut self, vif: VifId) {
        self.0 &= !vif.bit();
    }
}

/// Features that a VIF's virtio network card offers (Virtio 1.2, 5.1.3 and 6): address, MTU, buffers that one frame may take several of,
/// link status, and event indices; checksums and segmentation of TCP that are left to who receives, or to the engine.
pub const FEATURES: u64 = feature::MTU
    | feature::MAC
    | feature::MERGEABLE
    | feature::STATUS
    | feature::EVENT_INDICES
    | feature::CSUM
    | feature::GUEST_CSUM
    | feature::GUEST_TSO4
    | feature::GUEST_TSO6
    | feature::HOST_TSO4
    | feature::HOST_TSO6;

/// What every driver of the native face does.
pub(crate) const NATIVE_FEATURES: u64 =
    FEATURES & !(feature::EVENT_INDICES | feature::MTU | feature::MAC | feature::STATUS);

/// Feature bits (Virtio 1.2, 5.1.3 and 6).
mod feature {
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const MAC: u64 = 1 << 5;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const MERGEABLE: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const EVENT_INDICES: u64 = 1 << 29;
}

/// Queue of buffers to receive into.
pub const RECEIVE: u16 = 0;
/// Queue of frames to send.
pub const SEND: u16 = 1;
/// Queues of a VIF.
pub const QUEUES: u32 = 2;
/// Most entries of each.
pub const QUEUE_SIZE: u32 = 256;
