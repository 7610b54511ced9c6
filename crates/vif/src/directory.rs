//! Who has which address: each engine has its own copy, which is changed while none is at work.

use crate::vif::Attributes;
use crate::{MAX_VIFS, Mac, VifId};
use sluice_switch::is_same;

/// Places of the table by address: at most half are taken, so that few are looked at.
const PLACES: usize = 2 * MAX_VIFS;
/// Nobody's.
const FREE: u8 = u8::MAX;

/// What is known of a VIF everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub mac: Mac,
    pub vlan: Option<u16>,
    /// Bytes of the longest frame that it takes.
    pub longest: u32,
    /// What its driver accepted, if it is at work.
    pub features: u64,
    /// It has a card in place of queues: frames come to it whole and finished.
    pub is_card: bool,
}

impl Entry {
    /// What everywhere is to be known of a VIF with these attributes.
    pub fn new(attributes: &Attributes, features: u64, is_card: bool) -> Self {
        let Attributes { mac, vlan, .. } = *attributes;
        Self { mac, vlan, longest: attributes.longest(), features, is_card }
    }
}

/// All VIFs of a network. A frame's target is found in as much time with one VIF as with [`MAX_VIFS`].
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    entries: [Option<Entry>; MAX_VIFS],
    places: [u8; PLACES],
}

impl Directory {
    pub fn new() -> Self {
        Self { entries: [None; MAX_VIFS], places: [FREE; PLACES] }
    }

    /// What is known of a VIF.
    pub fn get(&self, id: VifId) -> Option<&Entry> {
        self.entries.get(id.index())?.as_ref()
    }

    /// The first number that no VIF has.
    pub fn vacancy(&self) -> Option<VifId> {
        self.entries.iter().position(Option::is_none).map(|index| VifId(index as u8))
    }

    /// Sets what is known of a VIF. `None`: it is gone.
    pub fn set(&mut self, id: VifId, entry: Option<Entry>) {
        let Some(place) = self.entries.get_mut(id.index()) else { return };
        *place = entry;
        self.places = [FREE; PLACES];
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if let Some(free) = places(entry.mac).find(|place| self.places[*place] == FREE) {
                self.places[free] = index as u8;
            }
        }
    }

    /// The VIF with this address.
    pub fn find(&self, mac: Mac) -> Option<VifId> {
        for place in places(mac) {
            let id = self.places[place];
            let entry = self.entries.get(usize::from(id))?.as_ref()?;
            if is_same(entry.mac, mac) {
                return Some(VifId(id));
            }
        }
        None
    }

    /// The VIF of a VLAN with this address.
    pub fn find_in(&self, mac: Mac, vlan: Option<u16>) -> Option<VifId> {
        self.find(mac).filter(|id| self.is_in(*id, vlan))
    }

    /// Whether a VIF is in a VLAN.
    pub fn is_in(&self, id: VifId, vlan: Option<u16>) -> bool {
        self.get(id).is_some_and(|entry| entry.vlan == vlan)
    }

    /// Whether a VIF has a card in place of queues.
    pub fn is_card(&self, id: VifId) -> bool {
        self.get(id).is_some_and(|entry| entry.is_card)
    }

    /// Whether a frame of so many bytes is too long for a VIF.
    pub fn is_too_long(&self, id: VifId, bytes: u32) -> bool {
        self.get(id).is_some_and(|entry| bytes > entry.longest)
    }

    /// What the driver of a VIF accepted.
    pub fn features(&self, id: VifId) -> u64 {
        self.get(id).map_or(0, |entry| entry.features)
    }
}

/// Where an address may be, in the order in which it is looked for. Who configures the machine chooses addresses, and guests do not.
fn places(mac: Mac) -> impl Iterator<Item = usize> {
    let [a, b, c, d, e, f] = mac;
    let bits = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    // The high bits of a product depend on all of both factors; the constant is 2^64 divided by the golden ratio.
    let first = (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..PLACES).map(move |after| first.wrapping_add(after) % PLACES)
}
