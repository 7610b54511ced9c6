//! Frames go where a plain model of a switch says.

use super::driver::frame;
use super::{EVERYBODY, Lab, STRANGER, mac};
use crate::FEATURES;
use proptest::prelude::*;
use std::vec::Vec;

const VIFS: u8 = 5;

#[derive(Clone, Debug)]
enum Event {
    /// A VIF sends to another, to all, or to a stranger; as itself or as another.
    Send { by: u8, to: u8, claims: u8, len: usize },
    /// A frame comes from the wire, with or without a tag.
    Comes { to: u8, vlan: Option<u8>, len: usize },
    /// A VIF moves to another VLAN.
    Moves { vif: u8, vlan: Option<u8> },
}

fn address(nth: u8) -> crate::Mac {
    match nth {
        0..VIFS => mac(nth),
        VIFS => EVERYBODY,
        _ => STRANGER,
    }
}

fn vlan() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![Just(None), Just(Some(1)), Just(Some(2))]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..VIFS, 0..VIFS + 2, 0..VIFS * 3, 14usize..1514).prop_map(|(by, to, claims, len)| {
            Event::Send { by, to, claims: if claims < VIFS { claims } else { by }, len }
        }),
        3 => (0..VIFS + 2, vlan(), 14usize..1500).prop_map(|(to, vlan, len)| Event::Comes { to, vlan, len }),
        1 => (0..VIFS, vlan()).prop_map(|(vif, vlan)| Event::Moves { vif, vlan }),
    ]
}

fn tagged(frame: &[u8], vlan: Option<u8>) -> Vec<u8> {
    vlan.map_or(frame.to_vec(), |vlan| [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat())
}

proptest! {
    #[test]
    fn frames_go_where_the_model_says(events in prop::collection::vec(event(), 1..60), features in prop_oneof![Just(0), Just(FEATURES)], layout in prop::sample::select(&super::LAYOUTS[..])) {
        let mut lab = Lab { card: Some(super::Card::new(usize::MAX)), ..Lab::with(layout, VIFS, features) };
        let mut vlans = [None; VIFS as usize];
        let mut wanted = vec![Vec::new(); usize::from(VIFS)];
        let mut wire = Vec::new();
        for event in events {
            let receivers = |vlans: &[Option<u8>], to: u8, vlan: Option<u8>| -> Vec<usize> {
                let hears = |nth: &usize| vlans[*nth] == vlan && (*nth == usize::from(to) || to == VIFS);
                (0..usize::from(VIFS)).filter(hears).collect()
            };
            match event {
                Event::Send { by, to, claims, len } => {
                    let sent = frame(address(to), mac(claims), len);
                    lab.drivers[usize::from(by)].send(&sent);
                    let vlan = vlans[usize::from(by)];
                    if claims == by {
                        let here: Vec<usize> = receivers(&vlans, to, vlan);
                        // One that sends to itself gets it by no switch, and it is not for the wire.
                        if to == VIFS || here.is_empty() {
                            wire.push(tagged(&sent, vlan));
                        }
                        let others = here.into_iter().filter(|nth| *nth != usize::from(by));
                        others.for_each(|nth| wanted[nth].push(sent.clone()));
                    }
                }
                Event::Comes { to, vlan, len } => {
                    let comes = frame(address(to), STRANGER, len);
                    lab.card.as_mut().unwrap().coming.push_back(tagged(&comes, vlan));
                    receivers(&vlans, to, vlan).into_iter().for_each(|nth| wanted[nth].push(comes.clone()));
                }
                Event::Moves { vif, vlan } => {
                    vlans[usize::from(vif)] = vlan;
                    lab.drivers[usize::from(vif)].set(&mut lab.network, |attributes| attributes.vlan = vlan.map(u16::from));
                }
            }
            lab.settle();
            for (nth, received) in lab.received().into_iter().enumerate() {
                prop_assert_eq!(received, std::mem::take(&mut wanted[nth]), "VIF {}", nth);
            }
            prop_assert_eq!(std::mem::take(&mut lab.card.as_mut().unwrap().sent), std::mem::take(&mut wire));
        }
    }
}
