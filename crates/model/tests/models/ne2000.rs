//! The NE2000's model as a tracker beside the software card: a card of ports with memory of its own.

use super::MAC;
use proptest::prelude::*;
use sluice_model::models::ne2000::MODEL;
use sluice_model::{Check, DeviceEvent, Seen, Tracker, Transfer};
use sluice_nic::Ne2000;
use sluice_nic::ne2000::Reception;

/// The states of transmitter and receiver, the model's second and third machine.
fn names(tracker: &Tracker) -> [&'static str; 2] {
    [1, 2].map(|machine| MODEL.machines[machine].states[usize::from(tracker.states()[machine])].name)
}

proptest! {
    /// After any writes: the receiver runs or not as CMD says, and stores frames only while it runs; a frame goes out
    /// exactly when the model says that a transmission starts, if its range is in memory.
    #[test]
    fn any_use_of_an_ne2000_is_followed(deeds in prop::collection::vec((0..8u8, 0..16u16, any::<u8>()), 1..200)) {
        let mut card = Ne2000::new(MAC);
        let mut tracker = Tracker::new();
        let mut buffer = vec![0; 0x1_0000];
        for (kind, offset, value) in deeds {
            if kind == 0 {
                let stored = card.receive(&super::frame(60 + usize::from(value))) == Reception::Stored;
                prop_assert!(!stored || names(&tracker)[1] == "Running");
                continue;
            }
            // CMD, and the registers of a transmission, are written more often.
            let (offset, value) = match kind {
                1 | 2 => (0, value & !0xc0 | value & 0x40),
                3 => (4 + offset % 3, value & 0x7f),
                _ => (offset, value),
            };
            let id = MODEL.find(offset, card.regs.page()).expect("every port is a register");
            let seen = Seen::Write(id, value);
            let starts: Vec<_> = tracker.starts(&MODEL, seen).collect();
            let sends = starts.iter().any(|start| matches!(start.transfer, Transfer::Send));
            prop_assert!(starts.iter().all(|start| start.check.is_some()));
            prop_assert!(!sends || starts.iter().any(|start| start.check == Some(Check::SendRange)));
            tracker.step(&MODEL, seen);
            card.write(offset, 1, value.into());
            let range = card.transmit_range();
            let went = card.take_transmitted(&mut buffer);
            prop_assert_eq!(went, range.filter(|_| sends).map(|range| usize::from(range.len)));
            tracker.step(&MODEL, Seen::Device(DeviceEvent::Sent));
            let receiver = if card.regs.stopped() { "Stopped" } else { "Running" };
            prop_assert_eq!(names(&tracker)[1], receiver);
            prop_assert!(names(&tracker)[0] != "Transmit");
        }
    }
}
