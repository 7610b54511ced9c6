//! Frames that go from a guest straight to the wire, and from the wire straight to a guest.
//!
//! The way through the switch's queues takes a copy at each end. It is needed where somebody else is concerned: a neighbour that
//! the frame is for, or that waits for the wire. Else a packet is copied once, from the guest's memory to where the physical card
//! finds it; and where guest and hypervisor have cards that cut packets and put in checksums, that is left to the physical one.
//! What was checked is what is sent: the packet is looked at where the guest cannot alter it.

use crate::environment::Guests;
use crate::nic::Nic;
use crate::owner::CardOwner;
use crate::virtual_nic::{Bus, Changes, VirtualNics};
use sluice_nic::dma::Dma;
use sluice_nic::{Budget, Packets};
use sluice_switch::{PortId, Switch, Target};
use sluice_uplink::{Card, Sent, Uplink};

/// The way out: the switch, the driver of the physical card, and the card.
pub(crate) struct Wire<'a, 'c> {
    pub(crate) switch: &'a mut Switch,
    pub(crate) uplink: &'a mut dyn Uplink,
    pub(crate) card: &'a mut Card<'c>,
}

impl Wire<'_, '_> {
    /// Sends the next packet of a guest's card, if it can go straight: the frames that it becomes, and their bytes. `None`, and nothing has
    /// happened, if it cannot.
    pub(crate) fn send_packet(
        &mut self,
        port: PortId,
        nic: &mut Nic,
        bus: &mut dyn Dma,
        budget: &mut Budget,
    ) -> Option<(usize, usize)> {
        match nic {
            Nic::Ne2000(_) => None,
            Nic::Rtl8139(card) => self.send_whole(port, &mut **card, bus, budget),
            Nic::E1000(card) => self.send_whole(port, &mut **card, bus, budget),
        }
    }

    fn send_whole<C: Packets>(
        &mut self,
        port: PortId,
        nic: &mut C,
        bus: &mut dyn Dma,
        budget: &mut Budget,
    ) -> Option<(usize, usize)> {
        let Self { switch, uplink, card } = self;
        if !nic.has_packets() || !switch.is_wire_free() {
            return None;
        }
        let Some(whole) = &nic.whole(bus, budget) else { return None };
        let size = C::size(whole);
        let at = uplink.place(card, size.len, size.offload).at()?;
        let mut head = None;
        let gathered = card.memory.with(at, size.len, &mut |into| {
            nic.gather(bus, whole, into, budget, &mut |first| {
                head = Some(*first);
                switch.goes_straight(port, first)
            })
        });
        let head = head.filter(|_| gathered)?;
        uplink.enqueue_placed(card, at, size.len, size.offload);
        switch.count_straight(port, size.frames as u64);
        nic.complete(bus, whole, &head, budget);
        Some((size.frames, size.bytes()))
    }

    /// Sends a frame of a guest's card, if it can go straight. False, and nothing has happened, if it cannot.
    pub(crate) fn send_frame(&mut self, port: PortId, frame: &[u8]) -> bool {
        let Self { switch, uplink, card } = self;
        let goes =
            switch.is_wire_free() && frame.first_chunk().is_some_and(|head| switch.goes_straight(port, head));
        let sent = goes && uplink.enqueue(card, frame) == Sent::Done;
        if sent {
            switch.count_straight(port, 1);
        }
        sent
    }
}

/// The way in, for the frames that the physical card has at one time.
pub(crate) struct Inward<'a, G: Guests> {
    pub(crate) switch: &'a mut Switch,
    pub(crate) vnics: &'a mut VirtualNics,
    pub(crate) owner: CardOwner,
    /// Ports whose card has no room, by bit.
    pub(crate) stuck: &'a mut u16,
    pub(crate) now: u64,
    pub(crate) guests: &'a mut G,
    /// The guest that the last frame went to, how its card reaches memory, and what that may still do.
    pub(crate) open: Option<(PortId, Bus<G::Memory>, Budget)>,
}

impl<G: Guests> Inward<'_, G> {
    /// Gives a frame to whom it is for: to that guest's card if nothing is in the way, else to the switch, which keeps it.
    pub(crate) fn take(&mut self, frame: &[u8], fcs: Option<u32>, changes: &mut Changes) {
        let Some(target) = self.switch.sort(frame) else { return };
        match target {
            Target::One(port) if self.goes_straight(port) && self.offer(port, frame, fcs, changes) => {}
            _ => self.switch.keep(target, frame, fcs),
        }
    }

    /// A frame for this guest overtakes none, and its card may take it now.
    fn goes_straight(&self, port: PortId) -> bool {
        let has_time =
            self.vnics.get(port.index()).and_then(Option::as_deref).is_some_and(|vnic| !vnic.behind);
        let has_room = self.switch.is_inbox_empty(port) && *self.stuck & port.bit() == 0;
        has_time && has_room && self.owner.guest() != Some(port)
    }

    /// Offers a frame to a guest's card. False if it has no room now.
    fn offer(&mut self, port: PortId, frame: &[u8], fcs: Option<u32>, changes: &mut Changes) -> bool {
        if self.open.as_ref().is_some_and(|(open, ..)| *open != port) {
            self.close(changes);
        }
        let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) else {
            return false;
        };
        let (_, bus, budget) = self.open.get_or_insert_with(|| {
            vnic.look();
            (port, vnic.bus(self.guests, port), Budget::default())
        });
        let has_room = vnic.offer(frame, fcs, bus, budget);
        if !has_room {
            *self.stuck |= port.bit();
        }
        has_room
    }

    /// That was all for the guest that the last frame went to: it is told.
    pub(crate) fn close(&mut self, changes: &mut Changes) {
        let Some((port, ..)) = self.open.take() else { return };
        if let Some(vnic) = self.vnics.get_mut(port.index()).and_then(Option::as_deref_mut) {
            vnic.publish(port, self.owner, (*self.stuck, self.now), changes);
        }
    }
}
