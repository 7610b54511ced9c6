//! The switch against a model of it: lists of what everybody should get, and nothing about how.

use proptest::prelude::*;
use sluice_switch::{INBOX, MAX_FRAME, OUTBOX, PortId, Switch, Verdict};
use std::collections::VecDeque;

type Mac = [u8; 6];

#[derive(Default)]
struct Port {
    mac: Option<Mac>,
    inbox: VecDeque<Vec<u8>>,
    outbox: VecDeque<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Step {
    Attach(u8),
    Detach(usize),
    Send(usize, Frame),
    Receive(Frame),
    Take(usize),
    Transmit,
}

/// Addresses by number: 0-5 those of guests, 6 broadcast, 7 a multicast, 8 a reserved one, 9 and 10 strangers.
#[derive(Clone, Debug)]
struct Frame {
    to: u8,
    from: u8,
    len: usize,
    mark: u32,
}

fn mac(number: u8) -> Mac {
    match number {
        6 => [0xff; 6],
        7 => [0x33, 0x33, 0, 0, 0, 1],
        8 => [1, 0x80, 0xc2, 0, 0, 3],
        _ => [0x52, 0, 0, 0, 0, number],
    }
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = [&mac(frame.to)[..], &mac(frame.from)[..], &[8, 6], &frame.mark.to_le_bytes()].concat();
    bytes.resize(frame.len, 0);
    bytes
}

fn frame() -> impl Strategy<Value = Frame> {
    let len = prop_oneof![8 => 18usize..80, 1 => 0usize..18, 1 => MAX_FRAME - 1..MAX_FRAME + 2];
    (0u8..11, 0u8..11, len, any::<u32>()).prop_map(|(to, from, len, mark)| Frame { to, from, len, mark })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u8..8).prop_map(Step::Attach),
        1 => (0usize..6).prop_map(Step::Detach),
        // Mostly with the sender's own address: ports and addresses have the same numbers to begin with.
        8 => (0usize..6, frame()).prop_map(|(port, frame)| Step::Send(port, Frame { from: port as u8, ..frame })),
        3 => (0usize..6, frame()).prop_map(|(port, frame)| Step::Send(port, frame)),
        8 => frame().prop_map(Step::Receive),
        4 => (0usize..6).prop_map(Step::Take),
        4 => Just(Step::Transmit),
    ]
}

fn group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

/// What is left of a frame that may travel.
fn travels(bytes: &[u8], frame: &Frame) -> bool {
    (14..=MAX_FRAME).contains(&bytes.len()) && frame.to != 8
}

fn deliver(ports: &mut [Port], except: Option<usize>, to: Mac, bytes: &[u8]) {
    for (index, port) in ports.iter_mut().enumerate() {
        let wants = port.mac.is_some_and(|mac| mac == to || group(to)) && except != Some(index);
        if wants && port.inbox.len() < INBOX {
            port.inbox.push_back(bytes.to_vec());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn everybody_gets_what_the_model_says(steps in proptest::collection::vec(step(), 1..400)) {
        let mut switch = Switch::new();
        let mut ports: Vec<Port> = (0..6).map(|_| Port::default()).collect();
        for number in 0..4u8 {
            prop_assert_eq!(switch.attach(mac(number)).map(PortId::index), Ok(usize::from(number)));
            ports[usize::from(number)].mac = Some(mac(number));
        }
        for step in steps {
            match step {
                Step::Attach(number) => {
                    let free = ports.iter().position(|port| port.mac.is_none());
                    let taken = ports.iter().any(|port| port.mac == Some(mac(number)));
                    if let Some(free) = free {
                        let expected = (!taken && !group(mac(number))).then_some(free);
                        prop_assert_eq!(switch.attach(mac(number)).ok().map(PortId::index), expected);
                        if expected.is_some() {
                            ports[free] = Port { mac: Some(mac(number)), ..Port::default() };
                        }
                    }
                }
                Step::Detach(index) => {
                    switch.detach(PortId::from_index(index).unwrap());
                    ports[index] = Port::default();
                }
                Step::Send(index, frame) => {
                    let (bytes, own) = (bytes(&frame), ports[index].mac);
                    let verdict = switch.send(PortId::from_index(index).unwrap(), &bytes);
                    let Some(own) = own.filter(|_| travels(&bytes, &frame)) else {
                        prop_assert_eq!(verdict, Verdict::Refused);
                        continue;
                    };
                    if own != mac(frame.from) {
                        prop_assert_eq!(verdict, Verdict::Forged);
                        continue;
                    }
                    prop_assert_eq!(verdict, Verdict::Forwarded);
                    let to = mac(frame.to);
                    let inside = ports.iter().any(|port| port.mac == Some(to));
                    if !inside && ports[index].outbox.len() < OUTBOX {
                        ports[index].outbox.push_back(bytes.clone());
                    }
                    deliver(&mut ports, Some(index), to, &bytes);
                }
                Step::Receive(frame) => {
                    let (bytes, to) = (bytes(&frame), mac(frame.to));
                    let forged = ports.iter().any(|port| port.mac == Some(mac(frame.from)));
                    let wanted = group(to) || ports.iter().any(|port| port.mac == Some(to));
                    let passes = travels(&bytes, &frame) && !forged && wanted;
                    prop_assert_eq!(switch.receive(&bytes), passes);
                    if passes {
                        deliver(&mut ports, None, to, &bytes);
                    }
                }
                Step::Take(index) => {
                    let id = PortId::from_index(index).unwrap();
                    let expected = ports[index].inbox.pop_front();
                    prop_assert_eq!(switch.inbox(id), expected.as_deref());
                    switch.pop_inbox(id);
                }
                Step::Transmit => {
                    // Whose turn it is, `busy_ports_have_shares_of_the_wire` tells; here: somebody's, if anybody waits.
                    let first = switch.outbox().map(<[u8]>::to_vec);
                    let waiting = ports.iter().any(|port| !port.outbox.is_empty());
                    prop_assert_eq!(first.is_some(), waiting);
                    if let Some(first) = first {
                        let sender = ports.iter_mut().find(|port| port.mac.is_some_and(|mac| mac == first[6..12]));
                        prop_assert_eq!(sender.unwrap().outbox.pop_front(), Some(first));
                    }
                    switch.pop_outbox();
                }
            }
            for (index, port) in ports.iter().enumerate() {
                let id = PortId::from_index(index).unwrap();
                prop_assert_eq!(switch.waiting() & id.bit() != 0, !port.inbox.is_empty());
                prop_assert_eq!(switch.has_room(id), port.outbox.len() < OUTBOX);
            }
        }
    }
}
