//! The queues and the messages of an 82574L: a model of both around the software card of an 82540EM, which sends what is in either.
//!
//! The model takes a packet from each queue in turn, remembers the last context only, whichever queue it came from, and acknowledges and masks what
//! it tells as the data sheet says (317694, 7.2.6, 7.4).

use proptest::prelude::*;
use sluice_nic::dma::VecMemory;
use sluice_nic::offload::{Checksum, Segments};
use sluice_nic::{Budget, E1000, Offload, e1000};
use sluice_uplink::{Card, DmaMemory, MAX_FRAME, Queue, RawDevice, Sent, Transmit, Uplink, for_device};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Where the card finds its memory.
const BUS: u32 = 0x10_0000;
/// Registers of the rings to send from, and bytes from one ring's to the next.
const RINGS: u16 = 0x3800;
const NEXT: u16 = 0x100;
/// Offsets in these: address, length, head, tail, and TARC.
const OF_RING: [u16; 5] = [0x00, 0x04, 0x08, 0x10, 0x18];
const TARC: u16 = 0x40;

/// The card.
struct Model {
    card: E1000,
    memory: Rc<RefCell<VecMemory>>,
    /// Of each ring: address in two words, length, head, tail; then TARC.
    rings: [[u32; 6]; 2],
    /// Whose packet is next.
    turn: usize,
    /// So many packets go out at most.
    lets: usize,
    wire: Vec<Vec<u8>>,
    arriving: VecDeque<Vec<u8>>,
    now: u64,
    /// Registers of interrupts, where it tells by messages.
    by_messages: bool,
    icr: u32,
    ims: u32,
    eiac: u32,
    iam: u32,
    ivar: u32,
    control: u32,
    told: Vec<u8>,
}

impl Model {
    fn new(memory: Rc<RefCell<VecMemory>>, by_messages: bool) -> Self {
        let mut model = Self {
            card: E1000::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]),
            memory,
            rings: [[0; 6]; 2],
            turn: 0,
            lets: usize::MAX,
            wire: vec![],
            arriving: VecDeque::new(),
            now: 0,
            by_messages,
            icr: 0,
            ims: 0,
            eiac: 0,
            iam: 0,
            ivar: 0,
            control: 0,
            told: vec![],
        };
        // Links take their time.
        (0..10).for_each(|_| model.work());
        model
    }

    /// Everything that the card does by itself.
    fn work(&mut self) {
        self.now += 1_000_000;
        self.card.advance(self.now);
        while self.lets > 0 && (self.send_from(self.turn) || self.send_from(1 - self.turn)) {
            self.lets -= usize::from(self.lets != usize::MAX);
        }
        if let Some(frame) = self.arriving.front() {
            let memory = &mut *self.memory.borrow_mut();
            if self.card.receive(memory, frame, &mut Budget::default()) == e1000::Reception::Stored {
                self.arriving.pop_front();
                self.icr |= 1 << 20;
            }
        }
        self.tell();
    }

    /// The next packet of a ring. False: there is none.
    fn send_from(&mut self, index: usize) -> bool {
        let [low, high, length, head, tail, _] = self.rings[index];
        let count = length / 16;
        let mut end = head;
        // Its last descriptor is the first that ends one and is no context.
        loop {
            if end == tail || count == 0 {
                return false;
            }
            let mut command = [0; 2];
            let at = u64::from(low) + u64::from(end) * 16 + 10;
            command.copy_from_slice(self.memory.borrow().at(at, 2).unwrap_or(&[0, 1]));
            end = (end + 1) % count;
            let is_context = command[1] & 1 << 5 != 0 && command[0] >> 4 == 0;
            if command[1] & 1 != 0 && !is_context {
                break;
            }
        }
        for (at, value) in OF_RING.into_iter().zip([low, high, length, head, end]) {
            self.card.write((RINGS + at).into(), 4, value);
        }
        let mut frame = vec![0; e1000::MAX_OUTGOING];
        let memory = &mut *self.memory.borrow_mut();
        loop {
            match self.card.transmit(memory, &mut frame, &mut Budget::default()) {
                e1000::Transmission::Idle => break,
                e1000::Transmission::Busy => {}
                e1000::Transmission::Frame(len) => self.wire.push(frame[..len].to_vec()),
            }
        }
        self.rings[index][3] = end;
        self.turn = 1 - index;
        self.icr |= 1 << (22 + index);
        true
    }

    /// Messages for what is pending and wanted.
    fn tell(&mut self) {
        for nth in 0..4 {
            let cause = 1 << (20 + nth);
            let entry = self.ivar >> (4 * nth);
            if self.by_messages && self.icr & self.ims & cause != 0 && entry & 1 << 3 != 0 {
                self.told.push((entry & 7) as u8);
                self.icr &= !(self.eiac & cause);
                if self.control & 1 << 24 != 0 {
                    self.ims &= !(self.iam & cause);
                }
            }
        }
    }

    /// A register of a ring to send from: which ring's, and which of it.
    fn ring_register(&mut self, offset: u16) -> Option<&mut u32> {
        let index = usize::from(offset.checked_sub(RINGS)? / NEXT);
        let at = (offset - RINGS) % NEXT;
        let nth = OF_RING.iter().chain([&TARC]).position(|known| *known == at)?;
        self.rings.get_mut(index)?.get_mut(nth)
    }

    fn own_register(&mut self, offset: u16) -> Option<&mut u32> {
        match offset {
            0x0018 => Some(&mut self.control),
            0x00dc => Some(&mut self.eiac),
            0x00e0 => Some(&mut self.iam),
            0x00e4 => Some(&mut self.ivar),
            _ => self.ring_register(offset),
        }
    }
}

impl RawDevice for Model {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let known = self.own_register(offset).map(|value| *value);
        let value = match offset {
            0x00c0 if self.by_messages => {
                assert_eq!(self.ims, 0, "reading ICR takes away what others wait for");
                core::mem::take(&mut self.icr)
            }
            _ => known.unwrap_or_else(|| self.card.read(offset.into(), width)),
        };
        self.work();
        value
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        if let Some(known) = self.own_register(offset) {
            *known = value;
        } else {
            match offset {
                0x00c0 if self.by_messages => self.icr &= !value,
                0x00d0 if self.by_messages => self.ims |= value,
                0x00d8 if self.by_messages => self.ims &= !value,
                _ => self.card.write(offset.into(), width, value),
            }
        }
        self.work();
    }
}

/// A piece of the memory: whoever has it stays inside.
struct Piece {
    memory: Rc<RefCell<VecMemory>>,
    bus: u32,
    bytes: usize,
}

impl Piece {
    fn at(&self, offset: usize, len: usize) -> u64 {
        assert!(offset + len <= self.bytes, "{len} bytes at {offset:#x} are another's");
        u64::from(self.bus) + offset as u64
    }
}

impl DmaMemory for Piece {
    fn bus(&self) -> u32 {
        self.bus
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(self.memory.borrow().at(self.at(offset, into.len()), into.len()).unwrap());
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let at = self.at(offset, bytes.len());
        self.memory.borrow_mut().at_mut(at, bytes.len()).unwrap().copy_from_slice(bytes);
    }
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        let at = self.at(offset, len);
        act(self.memory.borrow_mut().at_mut(at, len).unwrap())
    }
}

/// A card, its driver, and the queues that it gave away.
struct Bench {
    model: Model,
    driver: Box<dyn Uplink>,
    queues: Vec<Box<dyn Queue>>,
    /// The driver's memory, and each queue's.
    pieces: Vec<Piece>,
}

const I82574: u16 = 0x10d3;
const I82540: u16 = 0x100e;

impl Bench {
    /// With so many queues, where 0 is the driver's own.
    fn new(device: u16, queues: usize, by_messages: bool) -> Self {
        let mut driver = for_device(0x8086, device, &|_| 0).unwrap();
        let whole = driver.memory();
        let queues = if queues == 0 { vec![] } else { driver.give_queues(queues, by_messages) };
        assert!(queues.is_empty() || driver.memory() < whole, "it needs no memory to send");
        let sizes = [driver.memory()].into_iter().chain(queues.iter().map(|queue| queue.memory()));
        let sizes: Vec<usize> = sizes.collect();
        assert!(sizes.iter().all(|bytes| bytes % 4096 == 0));
        let memory = Rc::new(RefCell::new(VecMemory::new(BUS.into(), sizes.iter().sum())));
        let mut bus = BUS;
        let pieces = sizes.into_iter().map(|bytes| {
            let piece = Piece { memory: memory.clone(), bus, bytes };
            bus += bytes as u32;
            piece
        });
        let pieces = pieces.collect();
        let model = Model::new(memory, by_messages && driver.has_messages());
        let mut bench = Self { model, driver, queues, pieces };
        assert!(bench.start());
        bench
    }

    fn start(&mut self) -> bool {
        let mut card = Card { registers: &mut self.model, memory: &mut self.pieces[0] };
        let started = self.driver.start(&mut card);
        for (queue, piece) in self.queues.iter_mut().zip(&mut self.pieces[1..]) {
            queue.start(&mut Card { registers: &mut self.model, memory: piece });
        }
        (0..10_000).for_each(|_| self.model.work());
        started
    }

    /// Does something with a queue, or with the driver's own if it has given none away.
    fn with<R>(&mut self, queue: usize, act: impl FnOnce(&mut dyn Transmit, &mut Card<'_>) -> R) -> R {
        let Self { model, driver, queues, pieces } = self;
        if queues.is_empty() {
            return act(&mut **driver, &mut Card { registers: model, memory: &mut pieces[0] });
        }
        act(&mut *queues[queue], &mut Card { registers: model, memory: &mut pieces[1 + queue] })
    }

    fn send(&mut self, queue: usize, frame: &[u8]) -> Sent {
        self.with(queue, |to, card| to.send(card, frame))
    }

    /// A packet that the card finishes. False: there was no room.
    fn send_packet(&mut self, queue: usize, (bytes, offload): &(Vec<u8>, Offload)) -> bool {
        self.with(queue, |to, card| {
            let Some(at) = to.place(card, bytes.len(), offload).at() else { return false };
            card.memory.write(at, bytes);
            to.enqueue_placed(card, at, bytes.len(), offload);
            to.flush(card);
            true
        })
    }

    fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut got = vec![];
        let mut card = Card { registers: &mut self.model, memory: &mut self.pieces[0] };
        self.driver.poll(&mut card, &mut |frame| got.push(frame.to_vec()));
        got
    }

    fn come(&mut self, frame: Vec<u8>) {
        self.model.arriving.push_back(frame);
        self.model.work();
    }
}

/// A frame in which it says by which queue it goes.
fn frame(len: usize, queue: usize, mark: u8) -> Vec<u8> {
    let byte = |at: usize| match at {
        0..6 => 0xff,
        6 => queue as u8,
        _ => mark.wrapping_add(at as u8),
    };
    (0..len).map(byte).collect()
}

/// A packet whose sum is elsewhere in each queue, so that a context of the other one's spoils it; cut if it is longer than a frame.
fn packet(len: usize, queue: usize, mark: u8) -> (Vec<u8>, Offload) {
    let transport = Some(Checksum { start: 34, offset: if queue == 0 { 50 } else { 40 }, end: 0 });
    let segments = Segments {
        header: 54,
        payload: 1400 - 100 * queue as u16,
        ip: 14,
        transport: 34,
        ipv4: true,
        tcp: true,
    };
    let segments = (len > MAX_FRAME).then_some(segments);
    (frame(len, queue, mark), Offload { transport, segments, ..Offload::default() })
}

#[test]
fn a_driver_sends_nothing_by_queues_that_it_gave_away() {
    for (device, has) in [(I82540, 1), (I82574, 2)] {
        let mut bench = Bench::new(device, 3, false);
        assert_eq!((bench.driver.queues(), bench.queues.len()), (has, has));
        let mut card = Card { registers: &mut bench.model, memory: &mut bench.pieces[0] };
        assert_eq!(bench.driver.send(&mut card, &frame(60, 0, 1)), Sent::Refused);
        for queue in 0..has {
            assert_eq!(bench.send(queue, &frame(60, queue, 1)), Sent::Done);
            assert_eq!(bench.model.wire.pop(), Some(frame(60, queue, 1)));
            assert_eq!(bench.queues[queue].sent(), 1);
        }
        assert_eq!(bench.driver.counters().sent, 0, "the queues count theirs");
    }
    for (vendor, device) in [(0x10ec, 0x8029), (0x10ec, 0x8139)] {
        let mut driver = for_device(vendor, device, &|_| 0).unwrap();
        assert!(driver.queues() == 0 && !driver.has_messages() && driver.give_queues(1, true).is_empty());
    }
    assert!(!for_device(0x8086, I82540, &|_| 0).unwrap().has_messages());
}

#[test]
fn a_full_queue_holds_up_no_other() {
    for by_messages in [false, true] {
        let mut bench = Bench::new(I82574, 2, by_messages);
        bench.model.lets = 0;
        let taken = (0..200).take_while(|mark| bench.send(1, &frame(100, 1, *mark)) == Sent::Done).count();
        assert!((4..200).contains(&taken), "{taken}");
        for mark in 0..4 {
            assert_eq!(bench.send(0, &frame(100, 0, mark)), Sent::Done);
        }
        assert!(bench.model.told.is_empty() && !bench.model.card.interrupt());
        bench.model.lets = usize::MAX;
        bench.model.work();
        assert_eq!(bench.model.wire.len(), taken + 4);
        if by_messages {
            assert_eq!(bench.model.told, [2], "one message, of the queue that was full");
        } else {
            assert!(bench.model.card.interrupt());
        }
        assert_eq!(bench.send(1, &frame(100, 1, 200)), Sent::Done);
        bench.model.work();
        assert_eq!(bench.model.told.len(), usize::from(by_messages), "and no more when nobody waits");
    }
}

#[test]
fn what_is_received_is_told_once_after_each_look() {
    let mut bench = Bench::new(I82574, 2, true);
    bench.come(frame(100, 0, 1));
    assert!(bench.model.told.is_empty(), "who has not looked is not told");
    assert_eq!(bench.poll(), [frame(100, 0, 1)]);
    bench.model.work();
    assert!(bench.model.told.is_empty(), "what it found is not told");
    for mark in 2..5 {
        bench.come(frame(100, 0, mark));
        assert_eq!(bench.model.told, [0]);
    }
    assert_eq!(bench.poll(), [frame(100, 0, 2), frame(100, 0, 3), frame(100, 0, 4)]);
    bench.come(frame(100, 0, 5));
    assert_eq!(bench.model.told, [0, 0]);
    assert!(!bench.model.card.interrupt(), "the line is not used");
}

#[test]
fn a_look_takes_no_message_from_who_waits_for_room() {
    let mut bench = Bench::new(I82574, 2, true);
    bench.model.lets = 0;
    while bench.send(0, &frame(100, 0, 1)) == Sent::Done {}
    bench.poll();
    bench.model.lets = 1;
    bench.model.work();
    assert_eq!(bench.model.told, [1]);
}

#[test]
fn a_stopped_card_sends_by_neither_queue() {
    let mut bench = Bench::new(I82574, 2, true);
    bench.model.lets = 0;
    for queue in 0..2 {
        assert_eq!(bench.send(queue, &frame(100, queue, 1)), Sent::Done);
    }
    bench.poll();
    let mut card = Card { registers: &mut bench.model, memory: &mut bench.pieces[0] };
    bench.driver.stop(&mut card);
    bench.model.lets = usize::MAX;
    bench.come(frame(100, 0, 2));
    assert!(bench.model.wire.is_empty() && bench.model.told.is_empty());
    // And can be put on the wire again.
    assert!(bench.start());
    for queue in 0..2 {
        assert_eq!(bench.send(queue, &frame(90, queue, 3)), Sent::Done);
    }
    assert_eq!(bench.model.wire, [frame(90, 0, 3), frame(90, 1, 3)]);
    assert_eq!(bench.poll(), [frame(100, 0, 2)]);
}

/// A step: a length, by which queue it goes, whether the card is to finish it, and how many packets the card lets out.
type Step = (u16, bool, bool, u8);

/// Packets of all lengths, by either queue as there is room: what goes out by each is what a card with one queue sends, in the same order.
fn each_queue_sends_what_it_was_given(steps: &[Step]) {
    let mut bench = Bench::new(I82574, 2, true);
    let mut reference = Bench::new(I82540, 0, false);
    let mut expected = [vec![], vec![]];
    for (mark, (len, queue, finished, lets)) in (0..).zip(steps) {
        bench.model.lets = usize::from(*lets) / 4;
        bench.model.work();
        let queue = usize::from(*queue);
        let packet = packet(usize::from(*len), queue, mark);
        let frame = &packet.0[..packet.0.len().min(MAX_FRAME)];
        let sent = match finished {
            true => bench.send_packet(queue, &packet),
            false => bench.send(queue, frame) == Sent::Done,
        };
        if sent {
            let as_expected = match finished {
                true => reference.send_packet(0, &packet),
                false => reference.send(0, frame) == Sent::Done,
            };
            assert!(as_expected);
            expected[queue].append(&mut reference.model.wire);
        }
    }
    bench.model.lets = usize::MAX;
    bench.model.work();
    let by = |queue: u8| bench.model.wire.iter().filter(|frame| frame[6] == queue).cloned().collect();
    let sent: [Vec<Vec<u8>>; 2] = [by(0), by(1)];
    assert!(sent == expected, "not what was sent, or not in that order");
    let counted = bench.queues.iter().map(|queue| queue.sent() as usize);
    assert!(counted.eq(expected.iter().map(Vec::len)));
    assert_eq!(bench.model.card.refused(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn two_queues_do_not_meet(
        steps in prop::collection::vec(
            (prop_oneof![60u16..1600, 60u16..30_000], any::<bool>(), any::<bool>(), prop_oneof![Just(0u8), any::<u8>()]),
            1..100,
        ),
    ) {
        each_queue_sends_what_it_was_given(&steps);
    }

    /// The queue's memory is anything at any time: what it does stays inside, and it works again when it is started again.
    #[test]
    fn no_queue_is_believed(seed in any::<u64>(), rounds in 1..8u8) {
        let mut bench = Bench::new(I82574, 2, true);
        bench.model.lets = 0;
        let mut random = seed | 1;
        for _ in 0..rounds {
            let piece = &bench.pieces[2];
            let at = u64::from(piece.bus);
            for byte in bench.model.memory.borrow_mut().at_mut(at, piece.bytes).unwrap() {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                *byte = random as u8;
            }
            let _ = bench.send(1, &frame(100, 1, 4));
            let _ = bench.send_packet(1, &packet(3000, 1, 5));
            assert_eq!(bench.send(0, &frame(100, 0, 6)), Sent::Done);
        }
        assert!(bench.start());
        bench.model.lets = usize::MAX;
        assert_eq!(bench.send(1, &frame(333, 1, 3)), Sent::Done);
        assert_eq!(bench.model.wire, [frame(333, 1, 3)]);
    }
}
