//! Packets that are taken whole, beside the same ones taken piece by piece.

use super::*;
use crate::Offload;
use crate::packets::{HEAD, Packets};
use alloc::vec;
use proptest::prelude::*;

const OWN: u32 = 1 << 31;
const END: u32 = 1 << 30;
const FIRST: u32 = 1 << 29;
const LAST: u32 = 1 << 28;
const LARGE: u32 = 1 << 27;
const IP: u32 = 1 << 18;
const UDP: u32 = 1 << 17;
const TCP: u32 = 1 << 16;
const PUSH: u8 = 0x18;

/// A packet as a driver gives it to the card.
#[derive(Clone, Debug)]
struct Packet {
    protocol: u8,
    /// Words of options of IPv4, and of TCP.
    options: (u8, u8),
    flags: u8,
    data: usize,
    /// Bytes behind the datagram.
    behind: usize,
    /// What the card is to do.
    bits: u32,
    vlan: u32,
    /// Where its descriptors end, in 256ths of it.
    cuts: Vec<u8>,
    /// Which byte is another, and what it is.
    wrong: Option<(usize, u8)>,
}

fn packet() -> impl Strategy<Value = Packet> {
    let bits = prop_oneof![
        Just(0),
        Just(TCP | IP),
        Just(TCP | IP),
        Just(UDP | IP),
        Just(IP),
        Just(TCP),
        prop::sample::select(vec![0u32, 1, 255, 256, 536, 1000, 1448, 1460, 1500, 2047])
            .prop_map(|size| LARGE | size << 16),
        prop::sample::select(vec![536u32, 1000, 1400]).prop_map(|size| LARGE | size << 16),
    ];
    let protocol = prop::sample::select(vec![6, 6, 6, 6, 17]);
    let options = (prop_oneof![Just(0u8), 0u8..11], 0u8..11);
    let flags = prop_oneof![Just(0x10u8), Just(PUSH), any::<u8>()];
    let data = prop_oneof![0usize..40, 0usize..1500, 1000usize..9000];
    let behind = prop_oneof![4 => Just(0usize), 1 => 0usize..20];
    let vlan = prop_oneof![9 => Just(0), 1 => Just(1 << 17 | 0x3412)];
    let cuts = prop::collection::vec(any::<u8>(), 0..5);
    let wrong = proptest::option::weighted(0.2, (12usize..60, any::<u8>()));
    (protocol, options, flags, data, behind, bits, vlan, cuts, wrong).prop_map(
        |(protocol, options, flags, data, behind, bits, vlan, cuts, wrong)| Packet {
            protocol,
            options,
            flags,
            data,
            behind,
            bits,
            vlan,
            cuts,
            wrong,
        },
    )
}

impl Packet {
    /// Its bytes, the checksums of which are anything.
    fn bytes(&self) -> Vec<u8> {
        let (ip, tcp) = (20 + 4 * usize::from(self.options.0), 20 + 4 * usize::from(self.options.1));
        let mut bytes = frame([7; 6], 12);
        bytes.extend([8, 0, 0x40 | (ip / 4) as u8, 0]);
        bytes.extend(((ip + tcp + self.data) as u16).to_be_bytes());
        bytes.extend([0xff, 0xfe, 0x40, 0, 64, self.protocol, 9, 9, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.resize(14 + ip, 1);
        bytes.extend([1, 2, 3, 4, 0xff, 0xff, 0xff, 0, 5, 6, 7, 8, (tcp / 4) as u8 * 16, self.flags]);
        bytes.extend([1, 0, 9, 9, 0, 0]);
        bytes.resize(14 + ip + tcp, 1);
        bytes.extend((0..self.data + self.behind).map(|index| ((index * 7) >> 2) as u8));
        if let Some((at, value)) = self.wrong
            && let Some(byte) = bytes.get_mut(at)
        {
            *byte = value;
        }
        bytes
    }
}

/// What an 8139cp sends of a stream: headers apart, and pages.
fn ordinary() -> Packet {
    Packet {
        protocol: 6,
        options: (0, 3),
        flags: PUSH,
        data: 4000,
        behind: 0,
        bits: LARGE | 1448 << 16,
        vlan: 0,
        cuts: vec![5, 100, 200],
        wrong: None,
    }
}

impl Bench {
    /// Has packets in the ring, of so many descriptors, from one on.
    fn given(packets: &[Packet], ring: u32, mut at: u32) -> Self {
        let mut bench = Self::cplus(0);
        bench.card.regs.next_send = at;
        let mut buffer = BUFFERS;
        for packet in packets {
            let bytes = packet.bytes();
            bench.put(buffer, &bytes);
            let mut ends: Vec<usize> =
                packet.cuts.iter().map(|cut| bytes.len() * usize::from(*cut) / 256).collect();
            ends.sort_unstable();
            ends.push(bytes.len());
            let mut done = 0;
            for (index, end) in ends.iter().enumerate() {
                let first = if index == 0 { FIRST } else { 0 };
                let last = if index + 1 == ends.len() { LAST } else { 0 };
                let wrap = if at + 1 == ring { END } else { 0 };
                let status = OWN | first | last | wrap | packet.bits | (end - done) as u32;
                bench.descriptor(SEND_RING + 16 * at, status, packet.vlan, buffer + done as u32);
                done = *end;
                at = (at + 1) % ring;
            }
            buffer += bytes.len() as u32;
        }
        bench.write(reg::TPPOLL, 1, 0x40);
        bench
    }

    /// What the card makes of a packet that it is to finish as `offload` says.
    fn finish(&mut self, bytes: &[u8], offload: &Offload) -> Vec<Vec<u8>> {
        assert!(*offload == Offload::default() || offload.is_in_headers);
        let sum = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        let bits = match offload.segments {
            Some(segments) => LARGE | u32::from(segments.payload) << 16,
            None => sum(offload.ip.is_some(), IP) | sum(offload.transport.is_some(), TCP),
        };
        self.put(BUFFERS, bytes);
        let at = SEND_RING + 16 * self.card.regs.next_send;
        self.descriptor(at, OWN | END | FIRST | LAST | bits | bytes.len() as u32, 0, BUFFERS);
        self.write(reg::TPPOLL, 1, 0x40);
        self.sent()
    }

    /// Sends all, whole packets by `physical`, and says how many of them there were.
    fn send_whole(&mut self, physical: &mut Self) -> (Vec<Vec<u8>>, usize) {
        let (mut frames, mut count) = (vec![], 0);
        while self.card.busy() {
            let budget = &mut Budget::default();
            if let Some(whole) = self.card.whole(&mut self.memory, budget) {
                let mut bytes = vec![0; whole.len()];
                let mut seen = None;
                let accept = &mut |first: &[u8; HEAD]| {
                    seen = Some(*first);
                    true
                };
                if self.card.gather(&mut self.memory, &whole, &mut bytes, budget, accept) {
                    assert_eq!(bytes.first_chunk(), seen.as_ref());
                    let sent = physical.finish(&bytes, whole.offload());
                    assert_eq!(sent.len(), whole.frames());
                    frames.extend(sent);
                    self.card.complete(&mut self.memory, &whole, &[0; HEAD], budget);
                    count += 1;
                    continue;
                }
            }
            frames.extend(self.card.transmit(&mut self.memory, budget).map(<[u8]>::to_vec));
        }
        (frames, count)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whole_packets_become_the_same_frames_and_leave_the_card_the_same(
        packets in prop::collection::vec(packet(), 1..4),
        ring in prop::sample::select(vec![27u32, 64]),
        at in 0u32..64,
    ) {
        let mut one = Bench::given(&packets, ring, at % ring);
        let mut other = Bench { card: one.card.clone(), memory: one.memory.clone() };
        let frames = one.sent();
        let (same, _) = other.send_whole(&mut Bench::cplus(0));
        prop_assert_eq!(frames, same);
        prop_assert_eq!(one.card.regs, other.card.regs);
        prop_assert_eq!((one.card.work, one.card.refused), (other.card.work, other.card.refused));
        prop_assert!(one.memory == other.memory);
    }
}

#[test]
fn what_drivers_send_is_taken_whole() {
    let small = Packet { bits: TCP | IP, data: 0, cuts: vec![], ..ordinary() };
    let plain = Packet { bits: 0, data: 900, ..ordinary() };
    let many = Packet { cuts: (0..18).map(|cut| 10 * cut + 5).collect(), ..ordinary() };
    for at in 0..64 {
        let packets = [ordinary(), small.clone(), plain.clone(), many.clone()];
        let (frames, count) = Bench::given(&packets, 64, at).send_whole(&mut Bench::cplus(0));
        assert_eq!((frames.len(), count), (3 + 1 + 1 + 3, 4));
    }
}

#[test]
fn what_no_card_is_to_be_asked_is_not() {
    let refused = |packet: Packet| {
        let mut bench = Bench::given(core::slice::from_ref(&packet), 64, 0);
        let before = (bench.card.clone(), bench.memory.clone());
        assert!(bench.card.whole(&mut bench.memory, &mut Budget::default()).is_none(), "{packet:?}");
        assert!((bench.card, bench.memory) == before);
    };
    let sums = Packet { bits: TCP | IP, data: 900, cuts: vec![200], ..ordinary() };
    refused(Packet { flags: PUSH | 1, ..ordinary() });
    refused(Packet { vlan: 1 << 17, ..ordinary() });
    refused(Packet { bits: LARGE | 255 << 16, ..ordinary() });
    refused(Packet { bits: LARGE | 1500 << 16, ..ordinary() });
    refused(Packet { data: 0, cuts: vec![], ..ordinary() });
    refused(Packet { behind: 1, ..sums.clone() });
    refused(Packet { protocol: 17, bits: UDP | IP, ..sums.clone() });
    refused(Packet { data: 1500, ..sums.clone() });
    // Headers in two pieces, and a packet in too many.
    refused(Packet { cuts: vec![1], ..ordinary() });
    refused(Packet { cuts: (0..20).map(|cut| 10 * cut + 5).collect(), ..ordinary() });
    // Not IPv4, headers too short or too long.
    for (at, value) in [(12, 0x86), (14, 0x65), (14, 0x44), (16, 1), (46, 0x40), (46, 0xf0)] {
        refused(Packet { wrong: Some((at, value)), options: (0, 0), data: 20, ..sums.clone() });
    }
    // An end is no matter where nothing is cut.
    let mut bench = Bench::given(&[Packet { flags: PUSH | 1, ..sums }], 64, 0);
    assert!(bench.card.whole(&mut bench.memory, &mut Budget::default()).is_some());
}

#[test]
fn a_card_that_does_not_send_to_the_wire_has_no_packets() {
    let states: [fn(&mut Bench); 5] = [
        |bench| bench.write(reg::TCR, 4, 0x6_0000),
        |bench| bench.write(reg::CPCR, 2, 2),
        |bench| bench.write(reg::CR, 1, 0x08),
        |bench| bench.card.set_link(false),
        |bench| bench.card.regs.next_send = 64,
    ];
    for state in states {
        let mut bench = Bench::given(&[ordinary()], 64, 0);
        state(&mut bench);
        assert!(bench.card.whole(&mut bench.memory, &mut Budget::default()).is_none());
    }
}

/// Its headers are read once: what is sent is what was looked at, whatever the guest's memory says later.
#[test]
fn headers_go_out_as_they_were_read() {
    let mut bench = Bench::given(&[ordinary()], 64, 0);
    let budget = &mut Budget::default();
    let whole = bench.card.whole(&mut bench.memory, budget).unwrap();
    bench.put(BUFFERS, &[0xee; 66]);
    let mut bytes = vec![0; whole.len()];
    assert!(bench.card.gather(&mut bench.memory, &whole, &mut bytes, budget, &mut |_| true));
    let expected = ordinary().bytes();
    assert_eq!(bytes[..24], expected[..24]);
    assert_eq!(bytes[26..50], expected[26..50], "but for checksums");
    assert_eq!(bytes[52..], expected[52..]);
}

#[test]
fn who_looks_at_the_first_bytes_can_refuse_them() {
    for bits in [0, ordinary().bits] {
        let packet = Packet { bits, data: if bits == 0 { 900 } else { 4000 }, ..ordinary() };
        let mut bench = Bench::given(&[packet], 64, 3);
        let before = (bench.card.clone(), bench.memory.clone());
        let (budget, mut asked) = (&mut Budget::default(), 0);
        let whole = bench.card.whole(&mut bench.memory, budget).unwrap();
        let mut bytes = vec![0; whole.len()];
        let taken = bench.card.gather(&mut bench.memory, &whole, &mut bytes, budget, &mut |_| {
            asked += 1;
            false
        });
        assert_eq!((taken, asked), (false, 1));
        assert!(bytes[134..].iter().all(|byte| *byte == 0), "the rest was copied all the same");
        assert!((bench.card, bench.memory) == before);
    }
}
