//! The uplinks that master the bus, each with the software card of its kind as its hardware.

use proptest::prelude::*;
use sluice_nic::dma::{Dma, VecMemory};
use sluice_nic::offload::{Checksum, Segments};
use sluice_nic::{Budget, E1000, Offload, Rtl8139, e1000, rtl8139};
use sluice_uplink::{Card, DmaMemory, MAX_FRAME, Place, RawDevice, Sent, Uplink, for_device};
use sluice_virtio::{Buffer, Device, Fault, Issues, Kind, Ring, buffers, pci};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// Where the card finds its memory.
const BUS: u32 = 0x10_0000;

/// A software card.
trait Model {
    fn new() -> Self;
    const ID: (u16, u16);
    /// A word of its PCI configuration.
    fn config(_: u8) -> u32 {
        0
    }
    fn read(&mut self, offset: u16, width: u8) -> u32;
    fn write(&mut self, offset: u16, width: u8, value: u32, memory: &mut VecMemory);
    /// The next frame going out.
    fn transmit(&mut self, memory: &mut VecMemory) -> Option<Vec<u8>>;
    /// The card took the frame.
    fn receive(&mut self, frame: &[u8], memory: &mut VecMemory) -> bool;
    fn interrupt(&self) -> bool;
    fn advance(&mut self, now: u64);
    fn refused(&self) -> u64;
}

impl Model for Rtl8139 {
    fn new() -> Self {
        Rtl8139::new(MAC)
    }
    const ID: (u16, u16) = (0x10ec, 0x8139);
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        Rtl8139::read(self, offset, width)
    }
    fn write(&mut self, offset: u16, width: u8, value: u32, memory: &mut VecMemory) {
        Rtl8139::write(self, offset, width, value, memory);
    }
    fn transmit(&mut self, memory: &mut VecMemory) -> Option<Vec<u8>> {
        while self.busy() {
            if let Some(frame) = Rtl8139::transmit(self, memory, &mut Budget::default()) {
                return Some(frame.to_vec());
            }
        }
        None
    }
    fn receive(&mut self, frame: &[u8], memory: &mut VecMemory) -> bool {
        self.has_room() && Rtl8139::receive(self, frame, memory) == rtl8139::Reception::Stored
    }
    fn interrupt(&self) -> bool {
        Rtl8139::interrupt(self)
    }
    fn advance(&mut self, now: u64) {
        Rtl8139::advance(self, now);
    }
    fn refused(&self) -> u64 {
        Rtl8139::refused(self)
    }
}

/// The same card in an older revision, which has no C+ mode.
struct Rtl8139C(Rtl8139);

impl Model for Rtl8139C {
    fn new() -> Self {
        Self(Model::new())
    }
    const ID: (u16, u16) = Rtl8139::ID;
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let value = self.0.read(offset, width);
        // TCR, bits 26 and 23.
        if offset == 0x40 { value & !0x0480_0000 } else { value }
    }
    fn write(&mut self, offset: u16, width: u8, value: u32, memory: &mut VecMemory) {
        assert!(!(0xd8..0xf0).contains(&offset), "it has no register {offset:#x}");
        Model::write(&mut self.0, offset, width, value, memory);
    }
    fn transmit(&mut self, memory: &mut VecMemory) -> Option<Vec<u8>> {
        Model::transmit(&mut self.0, memory)
    }
    fn receive(&mut self, frame: &[u8], memory: &mut VecMemory) -> bool {
        Model::receive(&mut self.0, frame, memory)
    }
    fn interrupt(&self) -> bool {
        self.0.interrupt()
    }
    fn advance(&mut self, now: u64) {
        self.0.advance(now);
    }
    fn refused(&self) -> u64 {
        self.0.refused()
    }
}

impl Model for E1000 {
    fn new() -> Self {
        E1000::new(MAC)
    }
    const ID: (u16, u16) = (0x8086, 0x100e);
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        E1000::read(self, offset.into(), width)
    }
    fn write(&mut self, offset: u16, width: u8, value: u32, _: &mut VecMemory) {
        E1000::write(self, offset.into(), width, value);
    }
    fn transmit(&mut self, memory: &mut VecMemory) -> Option<Vec<u8>> {
        let mut frame = vec![0; e1000::MAX_OUTGOING];
        loop {
            match E1000::transmit(self, memory, &mut frame, &mut Budget::default()) {
                e1000::Transmission::Idle => return None,
                e1000::Transmission::Busy => {}
                e1000::Transmission::Frame(len) => return Some(frame[..len].to_vec()),
            }
        }
    }
    fn receive(&mut self, frame: &[u8], memory: &mut VecMemory) -> bool {
        E1000::receive(self, memory, frame, &mut Budget::default()) == e1000::Reception::Stored
    }
    fn interrupt(&self) -> bool {
        E1000::interrupt(self)
    }
    fn advance(&mut self, now: u64) {
        E1000::advance(self, now);
    }
    fn refused(&self) -> u64 {
        E1000::refused(self)
    }
}

/// A virtio network card: the transport that guests have, with a card's work done here.
struct Virtio {
    device: Device,
    /// The queues, once the driver has set them up.
    rings: Option<[Ring; 2]>,
    faults: u64,
}

/// The card's way to memory.
struct Bus<'a>(RefCell<&'a mut VecMemory>);

impl sluice_virtio::Memory for Bus<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        Dma::read(*self.0.borrow_mut(), address, buffer).map_err(|_| Fault)
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        Dma::write(*self.0.borrow_mut(), address, bytes).map_err(|_| Fault)
    }
}

impl Virtio {
    /// Bytes of a header, and where the doorbells are.
    const HEADER: usize = 12;
    const NOTIFY: u16 = 0x3000;

    /// Works on the next chain of a queue. `None`: there is none; what is returned was written.
    fn work(
        &mut self,
        number: u16,
        memory: &mut VecMemory,
        act: impl FnOnce(&Bus<'_>, &[Buffer]) -> Result<u32, Fault>,
    ) -> Option<()> {
        let queue = *self.device.live_queue(number)?;
        let ring = &mut self.rings.as_mut()?[usize::from(number)];
        let bus = Bus(RefCell::new(memory));
        let put = || {
            let Some(head) = ring.next(&queue, &bus)? else { return Ok(None) };
            let chain = buffers(&queue, &bus, head).collect::<Result<Vec<_>, _>>()?;
            let written = act(&bus, &chain)?;
            ring.put(&queue, &bus, head, written).map(Some)
        };
        match put() {
            Ok(None) => None,
            Ok(Some(wanted)) => {
                if wanted {
                    self.device.used(number, false);
                }
                Some(())
            }
            Err(Fault) => {
                self.faults += 1;
                self.device.break_down();
                None
            }
        }
    }
}

impl Model for Virtio {
    fn new() -> Self {
        let mut device = Device::served_here(Kind::Net, 0, 2, 256, &[0; 12]);
        device.attach_guest(Issues::All, std::iter::empty());
        Self { device, rings: None, faults: 0 }
    }
    const ID: (u16, u16) = (0x1af4, 0x1041);
    fn config(at: u8) -> u32 {
        // Three capabilities: common configuration, ISR, doorbells with no bytes between them.
        match at {
            0x04 => 1 << 20,
            0x34 => 0x40,
            0x40 => 0x0110_5009,
            0x50 => 0x0310_6009,
            0x60 => 0x0214_0009,
            0x58 => pci::ISR,
            0x68 => Self::NOTIFY.into(),
            _ => 0,
        }
    }
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        self.device.read(offset.into(), width).0
    }
    fn write(&mut self, offset: u16, width: u8, value: u32, _: &mut VecMemory) {
        if offset < Self::NOTIFY {
            self.device.write(offset.into(), width, value);
            if !self.device.is_live() {
                self.rings = None;
            } else if self.rings.is_none() {
                self.rings = Some([Ring::new(false); 2]);
            }
        }
    }
    fn transmit(&mut self, memory: &mut VecMemory) -> Option<Vec<u8>> {
        let mut sent = Vec::new();
        self.work(1, memory, |bus, chain| {
            for Buffer { address, len, writable } in chain {
                // Where a card spoils memory, its driver's descriptors are others, too.
                if *writable {
                    return Err(Fault);
                }
                let mut bytes = vec![0; *len as usize];
                sluice_virtio::Memory::read(bus, *address, &mut bytes)?;
                sent.extend(bytes);
            }
            // Nothing is left to do.
            if sent.get(..Self::HEADER) == Some(&[0; Self::HEADER][..]) { Ok(0) } else { Err(Fault) }
        })?;
        Some(sent.split_off(Self::HEADER))
    }
    fn receive(&mut self, frame: &[u8], memory: &mut VecMemory) -> bool {
        let all = [&[0; Self::HEADER], frame].concat();
        self.work(0, memory, |bus, chain| {
            let [Buffer { address, len, writable: true }] = chain else { return Err(Fault) };
            if (*len as usize) < all.len() {
                return Err(Fault);
            }
            sluice_virtio::Memory::write(bus, *address, &all)?;
            Ok(all.len() as u32)
        })
        .is_some()
    }
    fn interrupt(&self) -> bool {
        self.device.line()
    }
    fn advance(&mut self, _: u64) {}
    fn refused(&self) -> u64 {
        self.faults
    }
}

struct Hardware<M> {
    model: M,
    memory: Rc<RefCell<VecMemory>>,
    wire: Vec<Vec<u8>>,
    arriving: VecDeque<Vec<u8>>,
    /// So many frames go out at most.
    lets: usize,
    now: u64,
    /// Writes of the driver's: registers.
    written: Vec<u16>,
}

impl<M: Model> Hardware<M> {
    fn after(&mut self) {
        self.now += 1_000_000;
        self.model.advance(self.now);
        let mut memory = self.memory.borrow_mut();
        while self.lets > 0
            && let Some(frame) = self.model.transmit(&mut memory)
        {
            self.lets -= usize::from(self.lets != usize::MAX);
            self.wire.push(frame);
        }
        if let Some(frame) = self.arriving.front()
            && self.model.receive(frame, &mut memory)
        {
            self.arriving.pop_front();
        }
    }
}

impl<M: Model> RawDevice for Hardware<M> {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let value = self.model.read(offset, width);
        self.after();
        value
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.written.push(offset);
        self.model.write(offset, width, value, &mut self.memory.borrow_mut());
        self.after();
    }
}

struct Memory(Rc<RefCell<VecMemory>>);

/// The same, behind an IOMMU.
struct Translated(Memory);

impl DmaMemory for Translated {
    fn bus(&self) -> u32 {
        self.0.bus()
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        self.0.with(offset, len, act)
    }
    fn is_translated(&self) -> bool {
        true
    }
}

impl DmaMemory for Memory {
    fn bus(&self) -> u32 {
        BUS
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(bytes) = self.0.borrow().at(u64::from(BUS) + offset as u64, into.len()) {
            into.copy_from_slice(bytes);
        }
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(to) = self.0.borrow_mut().at_mut(u64::from(BUS) + offset as u64, bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        self.0.borrow_mut().at_mut(u64::from(BUS) + offset as u64, len).is_some_and(act)
    }
}

struct Bench<M> {
    hardware: Hardware<M>,
    memory: Memory,
    driver: Box<dyn Uplink>,
}

impl<M: Model> Bench<M> {
    fn new() -> Self {
        Self::stretched(MAX_FRAME)
    }

    /// With a card for frames of so many bytes.
    fn stretched(longest: usize) -> Self {
        let mut driver = for_device(M::ID.0, M::ID.1, &M::config).unwrap();
        assert!(driver.stretch(longest));
        let memory = Rc::new(RefCell::new(VecMemory::new(BUS.into(), driver.memory())));
        let hardware = Hardware {
            model: M::new(),
            memory: memory.clone(),
            wire: vec![],
            arriving: VecDeque::new(),
            lets: usize::MAX,
            now: 0,
            written: vec![],
        };
        let mut bench = Self { hardware, memory: Memory(memory), driver };
        // Links take their time.
        (0..10).for_each(|_| bench.hardware.after());
        assert!(bench.start());
        bench
    }

    fn start(&mut self) -> bool {
        let started =
            self.driver.start(&mut Card { registers: &mut self.hardware, memory: &mut self.memory });
        (0..10_000).for_each(|_| self.hardware.after());
        started
    }

    fn send(&mut self, frame: &[u8]) -> Sent {
        self.driver.send(&mut Card { registers: &mut self.hardware, memory: &mut self.memory }, frame)
    }

    fn poll(&mut self) -> (Vec<Vec<u8>>, bool) {
        let mut got = vec![];
        let mut card = Card { registers: &mut self.hardware, memory: &mut self.memory };
        let more = self.driver.poll(&mut card, &mut |frame| got.push(frame.to_vec()));
        (got, more)
    }

    fn stop(&mut self) {
        self.driver.stop(&mut Card { registers: &mut self.hardware, memory: &mut self.memory });
    }
}

fn frame(len: usize, mark: u8) -> Vec<u8> {
    (0..len).map(|at| if at < 6 { 0xff } else { mark.wrapping_add(at as u8) }).collect()
}

/// The RTL8139 puts the check sequence behind each frame, also where its ring begins anew.
#[test]
fn an_rtl8139_s_check_sequences_come_with_its_frames() {
    let mut bench = Bench::<Rtl8139>::new();
    let crc = |frame: &[u8]| {
        let bits = frame.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(*byte) >> bit & 1));
        !bits.fold(u32::MAX, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 != 0 { 0xedb8_8320 } else { 0 })
    };
    for mark in 0..100 {
        let frame = frame(1000 + usize::from(mark), mark);
        bench.hardware.arriving.push_back(frame.clone());
        bench.hardware.after();
        let mut got = vec![];
        let mut card = Card { registers: &mut bench.hardware, memory: &mut bench.memory };
        bench.driver.poll_with_fcs(&mut card, &mut |frame, fcs| got.push((frame.to_vec(), fcs)));
        assert_eq!(got, [(frame.clone(), Some(crc(&frame)))]);
    }
}

/// TPPoll, CAPR and ISR.
const TPPOLL: u16 = 0xd9;
const CAPR: u16 = 0x38;
const ISR: u16 = 0x3e;

#[test]
fn an_rtl8139_is_told_once_of_many_frames_and_gives_their_room_back_at_once() {
    let mut bench = Bench::<Rtl8139>::new();
    bench.hardware.written.clear();
    let mut card = Card { registers: &mut bench.hardware, memory: &mut bench.memory };
    for mark in 0..40 {
        assert_eq!(bench.driver.enqueue(&mut card, &frame(1000, mark)), Sent::Done);
    }
    bench.driver.flush(&mut card);
    bench.driver.flush(&mut card);
    assert_eq!(bench.hardware.written, [TPPOLL]);
    assert_eq!(bench.hardware.wire, (0..40).map(|mark| frame(1000, mark)).collect::<Vec<_>>());
    // As much as the ring holds.
    bench.hardware.written.clear();
    bench.hardware.arriving.extend((0..20).map(|mark| frame(1400, mark)));
    (0..20).for_each(|_| bench.hardware.after());
    assert_eq!(bench.poll(), ((0..20).map(|mark| frame(1400, mark)).collect(), false));
    assert_eq!(bench.hardware.written, [ISR, CAPR]);
}

/// The ring to send from has room for more when the card is told of what waits.
#[test]
fn an_rtl8139_takes_more_than_its_ring_has() {
    let mut bench = Bench::<Rtl8139>::new();
    bench.hardware.written.clear();
    let mut card = Card { registers: &mut bench.hardware, memory: &mut bench.memory };
    for mark in 0..150 {
        assert_eq!(bench.driver.enqueue(&mut card, &frame(60, mark)), Sent::Done);
    }
    bench.driver.flush(&mut card);
    assert_eq!(bench.hardware.written, [TPPOLL; 3]);
    assert_eq!(bench.hardware.wire, (0..150).map(|mark| frame(60, mark)).collect::<Vec<_>>());
}

/// What it has the card do is what the card finds in headers, for nothing else can it be told.
#[test]
fn an_rtl8139_finishes_what_stands_in_headers_and_a_card_without_c_plus_nothing() {
    let mut bench = Bench::<Rtl8139>::new();
    let mut older = Bench::<Rtl8139C>::new();
    for (len, finished) in [(59, false), (60, true), (1514, true), (5000, true), (60_000, true)] {
        let (bytes, offload) = packet(len, 1);
        let elsewhere = Offload { is_in_headers: false, ..offload };
        let mut card = Card { registers: &mut bench.hardware, memory: &mut bench.memory };
        assert_eq!(bench.driver.place(&mut card, bytes.len(), &offload).at().is_some(), finished, "{len}");
        assert_eq!(bench.driver.place(&mut card, bytes.len(), &elsewhere), Place::Never);
        let nothing = bench.driver.place(&mut card, bytes.len(), &Offload::default());
        assert_eq!(nothing.at().is_some(), (60..=MAX_FRAME).contains(&len));
        let mut card = Card { registers: &mut older.hardware, memory: &mut older.memory };
        assert_eq!(older.driver.place(&mut card, bytes.len(), &offload), Place::Never);
    }
}

/// A receiver that begins anew takes the card to the beginning of its ring to send from, and the driver with it.
fn who_receives_anew_sends_on<M: Model>() {
    let mut bench = Bench::<M>::new();
    for mark in 0..70 {
        assert_eq!(bench.send(&frame(100, mark)), Sent::Done);
        if mark % 7 == 3 {
            bench.hardware.arriving.push_back(frame(300, mark));
            bench.hardware.after();
            bench.hardware.memory.borrow_mut().bytes[..0x8000].fill(0xee);
            assert_eq!(bench.poll(), (vec![], false));
            bench.hardware.arriving.push_back(frame(400, mark));
            bench.hardware.after();
            assert_eq!(bench.poll().0, [frame(400, mark)]);
        }
    }
    assert_eq!(bench.driver.counters().restarts, 10);
    assert_eq!(bench.hardware.wire, (0..70).map(|mark| frame(100, mark)).collect::<Vec<_>>());
    assert_eq!(bench.hardware.model.refused(), 0);
}

#[test]
fn an_rtl8139_that_receives_anew_sends_on() {
    who_receives_anew_sends_on::<Rtl8139>();
    who_receives_anew_sends_on::<Rtl8139C>();
}

/// Our virtio device asks for no such addresses; cards of other kinds know of none, and have no choice.
#[test]
fn a_virtio_card_that_goes_past_the_iommu_is_not_started() {
    let mut bench = Bench::<Virtio>::new();
    let mut memory = Translated(Memory(bench.hardware.memory.clone()));
    let mut card = Card { registers: &mut bench.hardware, memory: &mut memory };
    assert!(!bench.driver.start(&mut card));
    let mut bench = Bench::<E1000>::new();
    let mut memory = Translated(Memory(bench.hardware.memory.clone()));
    assert!(bench.driver.start(&mut Card { registers: &mut bench.hardware, memory: &mut memory }));
}

/// A frame's checksums are right if the card has looked at all of them, and says so; wrong ones lose no frame.
#[test]
fn an_e1000_s_word_for_checksums_is_passed_on() {
    for (status, errors, verdict) in [
        (0x63, 0, Some(true)),
        (0x67, 0, Some(false)),
        (0x43, 0, Some(false)),
        (0x23, 0, Some(false)),
        (0x03, 0, Some(false)),
        (0x63, 0x20, Some(false)),
        (0x63, 0x40, Some(false)),
        // Damaged otherwise, and not the end of a frame.
        (0x63, 0x01, None),
        (0x61, 0, None),
    ] {
        let mut bench = Bench::<E1000>::new();
        bench.hardware.arriving.push_back(frame(100, 1));
        bench.hardware.after();
        bench.hardware.memory.borrow_mut().bytes[12..14].copy_from_slice(&[status, errors]);
        let mut got = vec![];
        let mut card = Card { registers: &mut bench.hardware, memory: &mut bench.memory };
        bench.driver.take_checked(&mut card, 8, &mut |_, checked| got.push(checked));
        assert_eq!(got, Vec::from_iter(verdict), "{status:#x} {errors:#x}");
    }
}

fn frames_go_out_padded_and_whole<M: Model>() {
    let mut bench = Bench::<M>::new();
    for len in [13, 14, 59, 60, 61, 1514, MAX_FRAME, MAX_FRAME + 1] {
        let expected = if (14..=MAX_FRAME).contains(&len) { Sent::Done } else { Sent::Refused };
        assert_eq!(bench.send(&frame(len, 1)), expected);
    }
    let lengths: Vec<usize> = bench.hardware.wire.iter().map(Vec::len).collect();
    assert_eq!(lengths, [60, 60, 60, 61, 1514, MAX_FRAME]);
    assert_eq!(bench.hardware.wire[4], frame(1514, 1));
    // Once more where the long ones were.
    for mark in 0..100 {
        assert_eq!(bench.send(&frame(20, mark)), Sent::Done);
    }
    assert!(bench.hardware.wire[6..].iter().all(|sent| sent[20..] == [0; 40]), "nothing old in the padding");
    assert!(!bench.hardware.model.interrupt(), "nobody waits for the transmitter");
    assert_eq!(bench.hardware.model.refused(), 0);
}

#[test]
fn long_frames_go_out_and_come_in_where_a_card_carries_them() {
    for id in [(0x10ec, 0x8029), Rtl8139::ID, Virtio::ID] {
        let mut driver = for_device(id.0, id.1, &Virtio::config).unwrap();
        assert!(driver.stretch(MAX_FRAME) && !driver.stretch(MAX_FRAME + 1), "{id:x?}");
    }
    assert!(!for_device(E1000::ID.0, E1000::ID.1, &E1000::config).unwrap().stretch(9019));
    let mut bench = Bench::<E1000>::stretched(9018);
    // More often than there are descriptors.
    for mark in 0..150 {
        assert_eq!(bench.send(&frame(9019, mark)), Sent::Refused);
        assert_eq!(bench.send(&frame(9018, mark)), Sent::Done);
        assert_eq!(bench.hardware.wire.pop(), Some(frame(9018, mark)));
        bench.hardware.arriving.extend([frame(9018, mark), frame(60, mark), frame(9019, mark)]);
        bench.hardware.after();
        assert_eq!(bench.poll().0, [frame(9018, mark), frame(60, mark)]);
    }
    // Another owner has it as it was.
    let mut bench = Bench::<E1000>::new();
    bench.hardware.arriving.push_back(frame(9018, 1));
    bench.hardware.after();
    assert_eq!(bench.poll().0, Vec::<Vec<u8>>::new());
}

fn a_busy_card_interrupts_when_somebody_waits<M: Model>() {
    let mut bench = Bench::<M>::new();
    bench.hardware.lets = 0;
    let taken = (0..200u8).take_while(|mark| bench.send(&frame(100, *mark)) == Sent::Done).count();
    assert!((4..200).contains(&taken), "{taken}");
    assert!(!bench.hardware.model.interrupt());
    bench.hardware.lets = usize::MAX;
    bench.hardware.after();
    assert_eq!(bench.hardware.wire.len(), taken);
    assert!(bench.hardware.model.interrupt());
    assert_eq!(bench.poll(), (vec![], false));
    assert!(!bench.hardware.model.interrupt());
    assert_eq!(bench.send(&frame(100, 200)), Sent::Done);
    assert!(!bench.hardware.model.interrupt(), "and no more when nobody does");
    let sent: Vec<u8> = bench.hardware.wire.iter().map(|frame| frame[6].wrapping_sub(6)).collect();
    assert_eq!(sent, (0..taken as u8).chain([200]).collect::<Vec<_>>());
}

fn a_stopped_card_is_off_the_wire_and_the_bus<M: Model>() {
    let mut bench = Bench::<M>::new();
    bench.hardware.arriving.extend([frame(1000, 3), frame(700, 9)]);
    assert_eq!(bench.send(&frame(1200, 5)), Sent::Done);
    bench.stop();
    let before = bench.hardware.memory.borrow().clone();
    bench.hardware.arriving = [frame(500, 1)].into();
    (0..100).for_each(|_| bench.hardware.after());
    assert_eq!(bench.hardware.arriving.len(), 1);
    assert!(*bench.hardware.memory.borrow() == before && !bench.hardware.model.interrupt());
    // And can be put on it again.
    assert!(bench.start());
    assert!(bench.hardware.model.interrupt());
    assert_eq!(bench.poll().0, [frame(500, 1)]);
}

fn a_flood_is_taken_in_bounded_portions<M: Model>() {
    let mut bench = Bench::<M>::new();
    bench.hardware.arriving.extend((0..3000u32).map(|mark| frame(60 + mark as usize % 1400, mark as u8)));
    (0..2000).for_each(|_| bench.hardware.after());
    let (mut got, mut polls) = (vec![], 0);
    while got.len() < 3000 {
        polls += 1;
        assert!(polls < 3000, "stuck after {} frames", got.len());
        let (portion, more) = bench.poll();
        assert!(portion.len() <= 64);
        got.extend(portion);
        assert!(
            more || bench.hardware.model.interrupt() || bench.hardware.arriving.is_empty() || {
                bench.hardware.after();
                true
            }
        );
    }
    assert!((0..3000u32).all(|mark| got[mark as usize] == frame(60 + mark as usize % 1400, mark as u8)));
    assert_eq!(bench.driver.counters().restarts, 0);
    assert_eq!(bench.hardware.model.refused(), 0);
}

fn a_card_that_is_not_there_is_noticed<M: Model>() {
    struct Nothing;
    impl RawDevice for Nothing {
        fn read(&mut self, _: u16, _: u8) -> u32 {
            u32::MAX
        }
        fn write(&mut self, _: u16, _: u8, _: u32) {}
    }
    let mut bench = Bench::<M>::new();
    let mut card = Card { registers: &mut Nothing, memory: &mut bench.memory };
    assert!(!bench.driver.start(&mut card));
    bench.driver.poll(&mut card, &mut |_| panic!("a frame out of nothing"));
    bench.driver.stop(&mut card);
}

/// Memory and the registers that the driver reads back are anything.
fn a_card_is_not_believed<M: Model>(seed: u64, tame: bool, polls: u8) {
    let mut bench = Bench::<M>::new();
    let mut random = seed | 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    bench.hardware.arriving.extend([frame(300, 1), frame(400, 2)]);
    for _ in 0..polls % 8 {
        for byte in &mut bench.hardware.memory.borrow_mut().bytes {
            *byte = if tame { [0x01, 0x03, 0x40, 0x00, 0x05][next() as usize % 5] } else { next() as u8 };
        }
        bench.hardware.arriving.push_back(frame(100, 3));
        bench.hardware.after();
        for got in bench.poll().0 {
            assert!((14..=MAX_FRAME).contains(&got.len()));
        }
        let _ = bench.send(&frame(100, 4));
    }
    // The driver's own writes stayed inside; the card's may have been sent anywhere by what it was told. It works again
    // when it is started again.
    bench.hardware.arriving.clear();
    assert!(bench.start());
    bench.hardware.arriving.push_back(frame(777, 7));
    bench.hardware.after();
    assert_eq!(bench.poll().0, [frame(777, 7)]);
    bench.hardware.wire.clear();
    assert_eq!(bench.send(&frame(333, 3)), Sent::Done);
    assert_eq!(bench.hardware.wire, [frame(333, 3)]);
}

/// A packet of TCP over IPv4, which the card cuts if it is longer than a frame, and what is left to be done to it.
fn packet(len: usize, mark: u8) -> (Vec<u8>, Offload) {
    let mut bytes = frame(len, mark);
    bytes[12..18].copy_from_slice(&[8, 0, 0x45, 0, ((len - 14) >> 8) as u8, (len - 14) as u8]);
    (bytes[23], bytes[46], bytes[47]) = (6, 0x50, 0);
    let sum = |start, offset| Some(Checksum { start, offset, end: 0 });
    let segments = Segments { header: 54, payload: 1400, ip: 14, transport: 34, ipv4: true, tcp: true };
    let segments = (len > MAX_FRAME).then_some(segments);
    (bytes, Offload { ip: None, transport: sum(34, 50), segments, is_in_headers: true })
}

/// Packets of all lengths and frames between them, as the card has room: all go out whole and in order.
fn packets_go_out_whole<M: Model>(steps: &[(u16, u8)]) {
    let mut bench = Bench::<M>::new();
    let mut expected: Vec<u8> = vec![];
    let mut wanted = |bytes: &[u8]| expected.extend(bytes.get(54..).unwrap_or(&[]));
    for (mark, (len, lets)) in (0..).zip(steps) {
        bench.hardware.lets = usize::from(*lets) / 4;
        bench.hardware.after();
        let (bytes, offload) = packet(usize::from(*len).max(60), mark);
        let mut card = Card { registers: &mut bench.hardware, memory: &mut bench.memory };
        if len % 3 == 0 && bytes.len() <= MAX_FRAME {
            if bench.driver.enqueue(&mut card, &bytes) == Sent::Done {
                wanted(&bytes);
            }
        } else if let Some(at) = bench.driver.place(&mut card, bytes.len(), &offload).at() {
            card.memory.write(at, &bytes);
            bench.driver.enqueue_placed(&mut card, at, bytes.len(), &offload);
            wanted(&bytes);
        }
        bench.driver.flush(&mut Card { registers: &mut bench.hardware, memory: &mut bench.memory });
    }
    bench.hardware.lets = usize::MAX;
    bench.hardware.after();
    let payload = bench.hardware.wire.iter().flat_map(|frame| frame[54.min(frame.len())..].to_vec());
    assert!(payload.eq(expected), "not what was sent, or not in that order");
    assert_eq!(bench.driver.counters().sent, bench.hardware.wire.len() as u64);
    assert_eq!(bench.hardware.model.refused(), 0);
}

macro_rules! for_each_card {
    ($($test:ident)*) => {
        mod of_rtl8139 {
            $(#[test] fn $test() { super::$test::<sluice_nic::Rtl8139>(); })*
        }
        mod of_rtl8139c {
            $(#[test] fn $test() { super::$test::<super::Rtl8139C>(); })*
        }
        mod of_virtio {
            $(#[test] fn $test() { super::$test::<super::Virtio>(); })*
        }
        mod of_e1000 {
            $(#[test] fn $test() { super::$test::<sluice_nic::E1000>(); })*
        }
    };
}

for_each_card! {
    frames_go_out_padded_and_whole
    a_busy_card_interrupts_when_somebody_waits
    a_stopped_card_is_off_the_wire_and_the_bus
    a_flood_is_taken_in_bounded_portions
    a_card_that_is_not_there_is_noticed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_the_card_finishes_goes_out_whole(
        steps in prop::collection::vec((prop_oneof![60u16..1600, 60u16..65535], prop_oneof![Just(0u8), any::<u8>()]), 1..120),
    ) {
        packets_go_out_whole::<E1000>(&steps);
        packets_go_out_whole::<Rtl8139>(&steps);
    }

    #[test]
    fn no_card_is_believed(seed in any::<u64>(), tame in any::<bool>(), polls in any::<u8>()) {
        a_card_is_not_believed::<Rtl8139>(seed, tame, polls);
        a_card_is_not_believed::<Rtl8139C>(seed, tame, polls);
        a_card_is_not_believed::<E1000>(seed, tame, polls);
        a_card_is_not_believed::<Virtio>(seed, tame, polls);
    }
}
