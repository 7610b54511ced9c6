//! Packets that are taken whole, beside the same ones taken piece by piece.

use super::*;
use crate::e1000::context_for;
use crate::packets::{HEAD, Packets};
use proptest::prelude::*;

const IDE: u32 = 1 << 31;
const TCP: u32 = 1 << 24;
const IPV4: u32 = 1 << 25;

/// A packet as a driver gives it to the card.
#[derive(Clone, Debug)]
struct Packet {
    /// Payload of each segment, if it is to be cut.
    cut: Option<u16>,
    ipv4: bool,
    tcp: bool,
    options: u32,
    legacy: bool,
    /// Bytes of its descriptors.
    pieces: Vec<u16>,
    flags: u32,
    /// Which byte of which of its descriptors is another, and what it is.
    wrong: Option<(usize, usize, u8)>,
}

fn packet() -> impl Strategy<Value = Packet> {
    let cut = proptest::option::of(prop::sample::select(vec![255, 256, 536, 1000, 1460, 1464, 1465]));
    let flags = prop::sample::select(vec![RS, RS | IDE, RS, 0, RS | VLE, 1 << 28]);
    let wrong = proptest::option::weighted(0.2, (0usize..6, 0usize..16, any::<u8>()));
    let pieces = prop::collection::vec(prop_oneof![1u16..100, 1u16..5000], 1..4);
    let booleans = (any::<bool>(), any::<bool>(), proptest::bool::weighted(0.2));
    (cut, booleans, 0u32..4, pieces, flags, wrong).prop_map(
        |(cut, (ipv4, tcp, legacy), options, pieces, flags, wrong)| Packet {
            cut,
            ipv4,
            tcp,
            options,
            legacy,
            pieces,
            flags,
            wrong,
        },
    )
}

impl Machine {
    /// Puts a packet, whose bytes begin at `at`, into the ring.
    fn give(&mut self, packet: &Packet, at: u64) {
        let Packet { cut, ipv4, tcp, options, legacy, ref pieces, flags, wrong } = *packet;
        let len: u32 = pieces.iter().map(|piece| u32::from(*piece)).sum();
        let first = self.tail;
        let header = if tcp { 54 } else { 42 };
        let kinds = if ipv4 { IPV4 } else { 0 } | if tcp { TCP } else { 0 };
        let tse = if cut.is_some() && !legacy { TSE } else { 0 };
        if !legacy {
            self.context(tse | kinds, len.saturating_sub(header), header as u8, cut.unwrap_or(0));
        }
        let mut at = at;
        for (index, piece) in pieces.iter().enumerate() {
            let end = if index + 1 == pieces.len() { EOP } else { 0 };
            let kind = if legacy { 0 } else { DATA | tse };
            self.push(at, kind | end | flags | u32::from(*piece), options << 8);
            at += u64::from(*piece);
        }
        if let Some((descriptor, byte, value)) = wrong {
            let entry = (first as usize + descriptor % pieces.len()) % 16;
            self.memory.write(TX_RING + 16 * entry as u64 + byte as u64, &[value]).unwrap();
        }
    }

    /// Sends all, whole packets by `physical`, and says how many of them there were.
    fn run_whole(&mut self, physical: &mut Machine) -> (Vec<Vec<u8>>, usize) {
        self.run_leaving(physical, None)
    }

    /// The same. Each whole packet leaves bytes of this value in the card, if one is given.
    fn run_leaving(&mut self, physical: &mut Machine, left: Option<u8>) -> (Vec<Vec<u8>>, usize) {
        let (mut frames, mut count) = (vec![], 0);
        let mut buffer = vec![0; MAX_OUTGOING];
        let budget = &mut Budget::default();
        loop {
            *budget = Budget::default();
            if let Some(whole) = self.card.whole(&mut self.memory, budget) {
                let mut bytes = vec![0; whole.len()];
                let mut head = None;
                let gathered = self.card.gather(&mut self.memory, &whole, &mut bytes, budget, &mut |first| {
                    head = Some(*first);
                    true
                });
                if let Some(head) = head.filter(|_| gathered) {
                    let sent = physical.finish(&bytes, whole.offload());
                    assert_eq!(sent.len(), whole.frames());
                    assert_eq!(bytes[..HEAD], head);
                    frames.extend(sent);
                    self.card.complete(&mut self.memory, &whole, &head, budget);
                    count += 1;
                    if let Some(left) = left {
                        self.card.tx.packet.buffer.fill(left);
                        self.card.tx.packet.header.fill(left);
                    }
                    continue;
                }
            }
            match self.card.transmit(&mut self.memory, &mut buffer, budget) {
                Transmission::Frame(len) => frames.push(buffer[..len].to_vec()),
                Transmission::Busy => {}
                Transmission::Idle => return (frames, count),
            }
        }
    }

    /// What a card makes of a packet when it is told what is left to be done.
    fn finish(&mut self, bytes: &[u8], offload: &crate::Offload) -> Vec<Vec<u8>> {
        let tse = if offload.segments.is_some() { TSE } else { 0 };
        let sum = |wanted: bool, option: u32| if wanted { option } else { 0 };
        let options = sum(offload.ip.is_some(), 1) | sum(offload.transport.is_some(), 2);
        self.memory.write(OUT, bytes).unwrap();
        let words = u128::from_le_bytes(context_for(offload, bytes.len()));
        self.push(words as u64, (words >> 64) as u32 | tse, (words >> 96) as u32);
        let pieces = bytes.len().div_ceil(0x2000);
        for (index, piece) in bytes.chunks(0x2000).enumerate() {
            let end = if index + 1 == pieces { EOP } else { 0 };
            self.push(OUT + 0x2000 * index as u64, DATA | tse | end | piece.len() as u32, options << 8);
        }
        self.ring()
    }
}

/// What can be seen of a card, and what another card is loaded with.
fn seen(machine: &Machine) -> impl PartialEq + core::fmt::Debug {
    let card = &machine.card;
    let packet = &card.tx.packet;
    let contexts = (packet.plain, packet.segmentation);
    let places = (packet.size, packet.options, packet.segments);
    (card.regs.clone(), card.line, card.refused, contexts, places, machine.memory.clone())
}

/// A ring with these packets, after a few that make it begin elsewhere, and what is to be sent.
fn given(packets: &[Packet], before: u32, vlan: bool) -> Machine {
    let mut machine = Machine::started();
    let mut noise = 1u32;
    for at in (0..0xe000).step_by(4) {
        noise = noise.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        machine.memory.write(OUT + at, &noise.to_le_bytes()).unwrap();
    }
    for _ in 0..before {
        machine.push(OUT, EOP | RS | 60, 0);
        machine.ring();
    }
    if vlan {
        machine.set(reg::CTRL, 1 << 30);
    }
    for (index, packet) in packets.iter().enumerate() {
        machine.give(packet, OUT + 0x40 * index as u64);
    }
    machine.set(reg::TDT, machine.tail);
    machine
}

/// Whether a packet shows what one before has left in the card that was taken whole: in headers that it has not, or by half of a checksum
/// that lies beyond it. That is where the two ways may differ.
fn shows_leftovers(machine: &Machine) -> bool {
    let run = |left: u8| machine.clone().run_leaving(&mut Machine::started(), Some(left));
    run(0) != run(0xff)
}

/// Whether a packet is made of the ring: it is reported done piece by piece, or as a whole after it was read, and so may send what says so.
fn sends_its_ring(machine: &Machine) -> bool {
    let ring = TX_RING..TX_RING + 16 * 16;
    ring.clone().step_by(16).any(|at| {
        let mut bytes = [0; 16];
        machine.memory.clone().read(at, &mut bytes).unwrap();
        let words = u128::from_le_bytes(bytes);
        let (start, bytes) = (words as u64, (words >> 64) as u64 & 0xfffff);
        start < ring.end && start.saturating_add(bytes) > ring.start
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whole_packets_become_the_same_frames_and_leave_the_card_the_same(
        packets in prop::collection::vec(packet(), 1..4),
        before in 0u32..16,
        vlan in proptest::bool::weighted(0.1),
    ) {
        let mut machine = given(&packets, before, vlan);
        if shows_leftovers(&machine) || sends_its_ring(&machine) {
            return Ok(());
        }
        let mut other = machine.clone();
        let frames = machine.run();
        let (same, _) = other.run_whole(&mut Machine::started());
        prop_assert_eq!(frames, same);
        for register in (0..0x2_0000).step_by(4) {
            let values = [&machine, &other].map(|one| one.card.regs.get(register));
            prop_assert_eq!(values[0], values[1], "register {:x}", register);
        }
        prop_assert!(seen(&machine) == seen(&other));
    }
}

#[test]
fn a_checksum_that_is_half_beyond_its_packet_shows_what_was_there() {
    let half = Packet { cut: Some(255), ipv4: false, tcp: false, options: 2, pieces: vec![51], ..ordinary() };
    let whole = Packet { cut: None, ..ordinary() };
    let whole = Packet { pieces: vec![54, 900], ..whole };
    let machine = given(&[whole.clone(), half.clone()], 0, false);
    assert!(shows_leftovers(&machine) && !shows_leftovers(&given(&[half.clone(), whole], 0, false)));
    assert_eq!(
        given(&[half], 0, false).run_whole(&mut Machine::started()).1,
        0,
        "no other card is asked for it"
    );
}

#[test]
fn a_packet_that_sends_its_ring_shows_what_is_not_reported_yet() {
    // Byte 1 of the address of its second piece is cleared, which leads to the ring.
    let odd =
        Packet { legacy: true, cut: None, pieces: vec![31, 78, 1], wrong: Some((1, 1, 0)), ..ordinary() };
    let machine = given(&[odd], 2, false);
    assert!(sends_its_ring(&machine) && !sends_its_ring(&given(&[ordinary()], 2, false)));
    let (mut apart, mut whole) = (machine.clone(), machine);
    assert!(apart.run() != whole.run_whole(&mut Machine::started()).0);
    assert!(seen(&apart) == seen(&whole), "the card and its ring are the same all the same");
}

fn ordinary() -> Packet {
    Packet {
        cut: Some(1000),
        ipv4: true,
        tcp: true,
        options: 3,
        legacy: false,
        pieces: vec![54, 3000],
        flags: RS,
        wrong: None,
    }
}

#[test]
fn what_drivers_send_is_taken_whole() {
    let packets = [ordinary(), Packet { cut: None, pieces: vec![1514], ..ordinary() }, ordinary()];
    for before in 0..16 {
        let (frames, count) = given(&packets, before, false).run_whole(&mut Machine::started());
        assert_eq!((frames.len(), count), (7, 3));
    }
    let legacy = Packet { legacy: true, pieces: vec![100, 900], ..ordinary() };
    assert_eq!(given(&[legacy], 0, false).run_whole(&mut Machine::started()).1, 1);
}

#[test]
fn what_no_card_is_to_be_asked_is_not() {
    let refused = |packet: Packet, vlan: bool| {
        let mut machine = given(&[packet], 0, vlan);
        assert!(machine.card.whole(&mut machine.memory, &mut Budget::default()).is_none());
    };
    refused(Packet { cut: Some(255), ..ordinary() }, false);
    refused(Packet { flags: RS | VLE, ..ordinary() }, true);
    refused(Packet { pieces: vec![54], ..ordinary() }, false);
    refused(Packet { cut: None, pieces: vec![1519], ..ordinary() }, false);
    // The packet's end is not there yet, or its payload is not what the context says.
    refused(Packet { wrong: Some((2, 11, 0x20)), pieces: vec![54, 900, 900], ..ordinary() }, false);
    refused(Packet { wrong: Some((0, 8, 0)), ..ordinary() }, false);
}

#[test]
fn who_looks_at_the_first_bytes_can_refuse_them() {
    let mut machine = given(&[ordinary()], 3, false);
    let before = machine.clone();
    let (budget, mut asked) = (&mut Budget::default(), 0);
    let whole = machine.card.whole(&mut machine.memory, budget).unwrap();
    let mut bytes = vec![0; whole.len()];
    let taken = machine.card.gather(&mut machine.memory, &whole, &mut bytes, budget, &mut |_| {
        asked += 1;
        false
    });
    assert_eq!((taken, asked), (false, 1));
    assert!(bytes[54..].iter().all(|byte| *byte == 0), "the rest was copied all the same");
    assert!(machine.card == before.card && machine.memory == before.memory);
}
