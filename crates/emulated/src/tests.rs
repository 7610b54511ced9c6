//! Guests and a physical card that they share, every card driven as the hypervisor drives its own.
//!
//! A guest's driver is `sluice_uplink`'s for that model: it takes frames in promiscuous mode, so that it sees whatever
//! its card lets through. The physical card is a software one too.

extern crate std;

use crate::nic::{FRAME, Nic, Offer, Outgoing, Register};
use crate::{
    Counters, DirectPolicy, Direction, Environment, Guests, Mirror, PAGES, PortId, SharedNic, Shown, describe,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use proptest::prelude::*;
use sluice_abi::config::NicModel;
use sluice_nic::Budget;
use sluice_nic::dma::{Dma, DmaError, VecMemory};
use sluice_uplink::rtl8139::Rtl8139 as UplinkRtl8139;
use sluice_uplink::{Card, DmaMemory, RawDevice, Sent, Transmit, Uplink, for_device};
use std::sync::Mutex;

mod bounds;
mod cplus;
mod limited;
mod polled;
mod rtl8139;
mod shared;
mod straight;
mod symbiosis;

const BUS: u32 = 0x10_0000;
const MODELS: [NicModel; 4] = [NicModel::Ne2000, NicModel::Rtl8139, NicModel::Rtl8139c, NicModel::E1000];
const ROUTER: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
const ALL: [u8; 6] = [0xff; 6];

fn mac(guest: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, 0x0a + guest as u8]
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize, mark: u32) -> Vec<u8> {
    let mut frame = [&to[..], &from[..], &[0x88, 0xb5], &mark.to_le_bytes()].concat();
    frame.resize(len.max(18), mark as u8);
    frame
}

fn mark(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[14..18].try_into().unwrap())
}

#[derive(Clone)]
struct Memory(Rc<RefCell<VecMemory>>, Rc<Cell<Moved>>);

/// What a card did to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    bytes: usize,
    transfers: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        Self(Rc::new(RefCell::new(VecMemory::new(BUS.into(), len))), Rc::default())
    }

    fn count(&self, bytes: usize) {
        let Moved { bytes: before, transfers } = self.1.get();
        self.1.set(Moved { bytes: before + bytes, transfers: transfers + 1 });
    }
}

impl Dma for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.count(buffer.len());
        self.0.borrow_mut().read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.count(bytes.len());
        self.0.borrow_mut().write(address, bytes)
    }
}

impl DmaMemory for Memory {
    fn bus(&self) -> u32 {
        BUS
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        let _ = self.0.borrow_mut().read(u64::from(BUS) + offset as u64, into);
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let _ = self.0.borrow_mut().write(u64::from(BUS) + offset as u64, bytes);
    }
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        let mut bytes = vec![0; len];
        DmaMemory::read(self, offset, &mut bytes);
        let done = act(&mut bytes);
        DmaMemory::write(self, offset, &bytes);
        done
    }
}

/// The physical card and the wire.
struct Physical {
    nic: Nic,
    memory: Memory,
    /// The memory that it reaches instead.
    lent: Rc<RefCell<Option<Memory>>>,
    wire: Vec<Vec<u8>>,
    arriving: VecDeque<Vec<u8>>,
    /// The card sends nothing.
    slow: bool,
    now: u64,
}

impl Physical {
    fn reached(&self) -> Memory {
        self.lent.borrow().clone().unwrap_or_else(|| self.memory.clone())
    }

    fn after(&mut self) {
        self.now += 100_000;
        self.nic.advance(self.now);
        let mut memory = self.reached();
        let mut buffer = Box::new([0; FRAME]);
        while !self.slow || matches!(self.nic, Nic::Ne2000(_)) {
            match self.nic.transmit(&mut memory, &mut buffer, &mut Budget::default()) {
                Outgoing::Idle => break,
                Outgoing::Busy => {}
                Outgoing::Frame(frame) => self.wire.push(frame.to_vec()),
            }
        }
        if let Some(frame) = self.arriving.front()
            && matches!(self.nic.offer(frame, None, &mut memory, &mut Budget::default()), Offer::Stored)
        {
            self.arriving.pop_front();
        }
    }
}

impl RawDevice for Physical {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let register = Register { io: !matches!(self.nic, Nic::E1000(_)), offset: offset.into() };
        let value = self.nic.read(register, width);
        self.after();
        value
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        let register = Register { io: !matches!(self.nic, Nic::E1000(_)), offset: offset.into() };
        let mut memory = self.reached();
        self.nic.write(register, width, value, &mut memory);
        self.after();
    }
    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        self.nic.read_string(Register { io: true, offset: offset.into() }, width, into);
        self.after();
    }
    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        self.nic.write_string(Register { io: true, offset: offset.into() }, width, from, &mut self.memory);
        self.after();
    }
}

struct Memories(Vec<Memory>, Rc<RefCell<Option<Memory>>>);

impl Guests for Memories {
    type Memory = Memory;
    fn memory(&mut self, port: PortId) -> Option<Memory> {
        self.0.get(port.index()).cloned()
    }

    fn confine_dma(&mut self, to: Option<PortId>) -> bool {
        *self.1.borrow_mut() = to.and_then(|port| self.0.get(port.index()).cloned());
        true
    }
}

/// What a guest finds in its card's memory.
#[derive(Clone)]
struct Words(Arc<Mutex<Vec<u32>>>);

impl Mirror for Words {
    fn show(&mut self, offset: u32, value: u32) {
        self.0.lock().unwrap()[offset as usize / 4] = value;
    }
    fn look(&self, offset: u32) -> u32 {
        self.0.lock().unwrap()[offset as usize / 4]
    }
}

struct Machine {
    shared: SharedNic,
    physical: Physical,
    guests: Memories,
    ports: Vec<(PortId, NicModel)>,
    lines: Vec<bool>,
    /// When cards go on with what they have left to do.
    resumes: Vec<Option<u64>>,
    /// How long a call takes.
    takes: u64,
    /// Where cards are shared by vpio: mirrors, and what of them guests reach.
    mirrors: Vec<(Words, Shown)>,
    now: u64,
}

/// A guest's card, to its driver.
struct GuestCard<'a> {
    machine: &'a mut Machine,
    guest: usize,
}

impl Machine {
    fn new(physical: NicModel, models: &[NicModel]) -> Self {
        let description = describe(physical);
        let mut uplink = for_device(description.vendor, description.device, &|_| 0).unwrap();
        let memory = Memory::new(uplink.memory().max(0x1000));
        let nic = Nic::new(physical, [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let lent = Rc::default();
        let arriving = VecDeque::new();
        let mut physical =
            Physical { nic, memory, lent: Rc::clone(&lent), wire: vec![], arriving, slow: false, now: 0 };
        (0..100_000).for_each(|_| physical.after());
        let mut own = physical.memory.clone();
        assert!(uplink.start(&mut Card { registers: &mut physical, memory: &mut own }));
        (0..100_000).for_each(|_| physical.after());
        let mut shared = SharedNic::new(uplink);
        let ports = models.iter().enumerate().map(|(guest, model)| {
            let port = shared.attach(*model, mac(guest)).unwrap();
            shared.configure(port, true, false);
            (port, *model)
        });
        let ports: Vec<_> = ports.collect();
        let guests = Memories(models.iter().map(|_| Memory::new(0x8_0000)).collect(), lent);
        let (lines, resumes) = (vec![false; ports.len()], vec![None; ports.len()]);
        Self { shared, physical, guests, lines, resumes, takes: 0, ports, mirrors: vec![], now: 0 }
    }

    /// Calls the shared card as the hypervisor does, lines and time included.
    fn with<R>(&mut self, act: impl FnOnce(&mut SharedNic, &mut Environment<'_, Memories>) -> R) -> R {
        self.now += 1000;
        let mut own = self.physical.memory.clone();
        let card = Card { registers: &mut self.physical, memory: &mut own };
        let ended = self.now + self.takes;
        let mut env = Environment { card, guests: &mut self.guests, now: self.now, clock: &|| ended };
        let result = act(&mut self.shared, &mut env);
        loop {
            let changed = self.shared.take_changes();
            for (line, (port, _)) in self.lines.iter_mut().zip(&self.ports) {
                if changed.lines & port.bit() != 0 {
                    *line = self.shared.line(*port);
                }
                assert_eq!(*line, self.shared.line(*port), "a line changed and nobody was told");
            }
            for (resumes, (port, _)) in self.resumes.iter_mut().zip(&self.ports) {
                if changed.resumes & port.bit() != 0 {
                    *resumes = self.shared.resumes_at(*port);
                }
                assert_eq!(*resumes, self.shared.resumes_at(*port), "a card goes on and nobody was told");
            }
            for ((_, shown), (port, _)) in self.mirrors.iter_mut().zip(&self.ports) {
                if changed.shown & port.bit() != 0 {
                    *shown = self.shared.shown(*port);
                }
                assert_eq!(*shown, self.shared.shown(*port), "a page changed and nobody was told");
            }
            if changed.is_empty() {
                return result;
            }
            self.shared.carried_out(&mut env, changed.shown);
        }
    }

    /// Everything that has to happen by itself.
    fn settle(&mut self) {
        (0..400).for_each(|_| self.step());
    }

    /// What happens by itself in a millisecond.
    fn step(&mut self) {
        self.physical.after();
        if self.physical.nic.interrupt() && self.shared.holder().is_none() {
            self.with(|shared, env| shared.interrupt(env));
        }
        self.now += 1_000_000;
        if self.shared.deadline().is_some_and(|at| at <= self.now) {
            self.with(|shared, env| shared.poll(env));
        }
        (0..self.ports.len()).for_each(|guest| self.resume_if_due(guest));
    }

    /// The guest has time for its card.
    fn resume_if_due(&mut self, guest: usize) {
        if self.resumes[guest].is_some_and(|at| at <= self.now) {
            let (port, _) = self.ports[guest];
            self.with(|shared, env| shared.resume(env, port));
        }
    }

    fn driver(&mut self, guest: usize) -> Box<dyn Uplink> {
        let model = self.ports[guest].1;
        let description = describe(model);
        // Who sends by one ring only drives no card that a guest could have in its hands.
        let driver: Box<dyn Uplink> = match model {
            NicModel::Rtl8139 | NicModel::Rtl8139c => Box::new(UplinkRtl8139::new_in_c_mode()),
            _ => for_device(description.vendor, description.device, &|_| 0).unwrap(),
        };
        self.online(guest, driver)
    }

    fn online(&mut self, guest: usize, mut driver: Box<dyn Uplink>) -> Box<dyn Uplink> {
        // The link of a new card takes its time.
        self.settle();
        assert!(self.drive(guest, |card| driver.start(card)));
        (0..3).for_each(|_| self.settle());
        driver
    }

    fn drive<R>(&mut self, guest: usize, act: impl FnOnce(&mut Card<'_>) -> R) -> R {
        let mut memory = self.guests.0[guest].clone();
        act(&mut Card { registers: &mut GuestCard { machine: self, guest }, memory: &mut memory })
    }

    fn send(&mut self, guest: usize, driver: &mut dyn Uplink, frame: &[u8]) -> Sent {
        self.drive(guest, |card| driver.send(card, frame))
    }

    /// What a guest's driver takes while its card interrupts.
    fn take(&mut self, guest: usize, driver: &mut dyn Uplink) -> Vec<Vec<u8>> {
        let mut got = vec![];
        for _ in 0..1000 {
            if !self.line(guest) {
                break;
            }
            self.drive(guest, |card| driver.poll(card, &mut |frame| got.push(frame.to_vec())));
        }
        got
    }

    fn line(&self, guest: usize) -> bool {
        let holds = self.shared.holder() == Some(self.ports[guest].0);
        if holds { self.physical.nic.interrupt() } else { self.lines[guest] }
    }

    fn counters(&self, guest: usize) -> Counters {
        self.shared.counters(self.ports[guest].0).unwrap()
    }
}

impl GuestCard<'_> {
    fn register(&self, offset: u16) -> Register {
        let ports = self.machine.mirrors.is_empty() && self.machine.ports[self.guest].1 != NicModel::E1000;
        Register { io: ports, offset: offset.into() }
    }

    /// What it reaches without an exit there.
    fn reaches(&self, offset: u16, direction: Direction) -> Option<(Words, bool)> {
        let (words, shown) = self.machine.mirrors.get(self.guest)?;
        let page = shown.direct.get(usize::from(offset) / 4096)?;
        page.contains(direction).then(|| (words.clone(), shown.hardware))
    }
}

impl RawDevice for GuestCard<'_> {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let (port, _) = self.machine.ports[self.guest];
        let register = self.register(offset);
        match self.reaches(offset, Direction::READ) {
            Some((_, true)) => self.machine.physical.read(offset, width),
            Some((words, false)) => {
                let value = words.look(u32::from(offset) & !3) >> (8 * (offset & 3));
                let value = value & (u32::MAX >> (32 - 8 * width));
                // As if it had exited; and an exit would have done nothing to the card.
                let mut card = self.machine.shared.vnic(port).unwrap().nic.clone();
                let posted = matches!(self.reaches(offset, Direction::WRITE), Some((_, false)));
                if !posted {
                    assert_eq!(value, card.read(register, width), "{register:?}");
                    let after = self.machine.shared.vnic(port).unwrap().nic.interrupt();
                    assert_eq!(card.interrupt(), after, "{register:?}");
                }
                value
            }
            None => {
                let mut word = [0; 4];
                let into = &mut word[..usize::from(width)];
                self.machine.with(|shared, env| shared.read(env, port, register, width, into));
                u32::from_le_bytes(word)
            }
        }
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        let (port, _) = self.machine.ports[self.guest];
        let register = self.register(offset);
        match self.reaches(offset, Direction::WRITE) {
            Some((_, true)) => self.machine.physical.write(offset, width, value),
            Some((mut words, false)) => words.show(offset.into(), value),
            None => {
                let from = &value.to_le_bytes()[..usize::from(width)];
                self.machine.with(|shared, env| shared.write(env, port, register, width, from));
            }
        }
    }
    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        let (port, register) = (self.machine.ports[self.guest].0, self.register(offset));
        self.machine.with(|shared, env| shared.read(env, port, register, width, into));
    }
    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        let (port, register) = (self.machine.ports[self.guest].0, self.register(offset));
        self.machine.with(|shared, env| shared.write(env, port, register, width, from));
    }
}

fn marks(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| mark(frame)).collect()
}

#[test]
fn every_model_works_behind_every_card() {
    for physical in MODELS {
        let mut machine = Machine::new(physical, &MODELS);
        let mut drivers: Vec<_> = (0..MODELS.len()).map(|guest| machine.driver(guest)).collect();
        for guest in 0..MODELS.len() {
            let sent = frame(ROUTER, mac(guest), 100 + 300 * guest, 7);
            assert_eq!(machine.send(guest, &mut *drivers[guest], &sent), Sent::Done);
            machine.settle();
            assert_eq!(machine.physical.wire.pop().as_ref(), Some(&sent), "{physical:?}");
            let got = frame(mac(guest), ROUTER, 1514 - guest, 8);
            machine.physical.arriving.push_back(got.clone());
            machine.settle();
            for (other, driver) in drivers.iter_mut().enumerate() {
                let expected = if other == guest { vec![got.clone()] } else { vec![] };
                assert_eq!(machine.take(other, &mut **driver), expected, "{physical:?} {guest} {other}");
            }
        }
        assert!(machine.physical.wire.is_empty());
        let counters = machine.counters(3);
        assert_eq!((counters.tx_packets, counters.rx_packets, counters.refused), (1, 1, 0));
        assert!(counters.instructions > 10 && counters.elements >= counters.instructions);
    }
}

#[test]
fn guests_reach_each_other_and_a_group_reaches_all() {
    let mut machine = Machine::new(NicModel::E1000, &MODELS);
    let mut drivers: Vec<_> = (0..MODELS.len()).map(|guest| machine.driver(guest)).collect();
    machine.send(0, &mut *drivers[0], &frame(mac(1), mac(0), 500, 1));
    machine.send(2, &mut *drivers[2], &frame(ALL, mac(2), 60, 2));
    machine.send(3, &mut *drivers[3], &frame(mac(0), mac(3), 1514, 3));
    machine.physical.arriving.push_back(frame([0x33, 0x33, 0, 0, 0, 1], ROUTER, 90, 4));
    machine.settle();
    let got: Vec<_> = drivers
        .iter_mut()
        .enumerate()
        .map(|(guest, driver)| marks(&machine.take(guest, &mut **driver)))
        .collect();
    assert_eq!(got, [vec![2, 3, 4], vec![1, 2, 4], vec![4], vec![2, 4]]);
    assert_eq!(marks(&machine.physical.wire), [2], "what is between guests stays between them");
}

#[test]
fn a_forged_source_gains_nothing() {
    let mut machine = Machine::new(NicModel::Ne2000, &[NicModel::Rtl8139, NicModel::Ne2000]);
    let (mut mallory, mut bob) = (machine.driver(0), machine.driver(1));
    for source in [mac(1), ROUTER, ALL, [2, 2, 2, 2, 2, 2]] {
        assert_eq!(machine.send(0, &mut *mallory, &frame(ALL, source, 60, 1)), Sent::Done);
    }
    machine.physical.arriving.push_back(frame(mac(1), ROUTER, 60, 2));
    machine.settle();
    assert!(machine.physical.wire.is_empty());
    assert_eq!(machine.take(0, &mut *mallory), Vec::<Vec<u8>>::new());
    assert_eq!(marks(&machine.take(1, &mut *bob)), [2]);
    let counters = machine.counters(0);
    assert_eq!((counters.forged, counters.tx_packets), (4, 0));
}

#[test]
fn a_card_off_the_bus_reaches_no_memory() {
    for model in [NicModel::Rtl8139, NicModel::E1000] {
        let mut machine = Machine::new(NicModel::Ne2000, &[model]);
        let mut driver = machine.driver(0);
        let port = machine.ports[0].0;
        machine.shared.configure(port, false, false);
        let before = machine.guests.0[0].0.borrow().clone();
        machine.physical.arriving.push_back(frame(ALL, ROUTER, 60, 1));
        machine.settle();
        assert!(*machine.guests.0[0].0.borrow() == before);
        machine.send(0, &mut *driver, &frame(ROUTER, mac(0), 60, 1));
        machine.settle();
        assert!(machine.physical.wire.is_empty());
        assert!(machine.counters(0).refused > 0);
    }
}

#[test]
fn a_line_that_is_switched_off_is_down() {
    let mut machine = Machine::new(NicModel::Ne2000, &[NicModel::Ne2000]);
    let _driver = machine.driver(0);
    let port = machine.ports[0].0;
    machine.physical.arriving.push_back(frame(ALL, ROUTER, 60, 1));
    machine.settle();
    assert!(machine.lines[0]);
    for silent in [true, false] {
        machine.with(|shared, _| shared.configure(port, true, silent));
        assert_eq!(machine.lines[0], !silent);
    }
    machine.shared.detach(port);
    machine.ports.clear();
    machine.physical.arriving.push_back(frame(ALL, ROUTER, 60, 1));
    machine.settle();
    assert_eq!(machine.shared.deadline(), None);
}

#[test]
fn a_slow_wire_holds_back_those_who_can_wait() {
    let mut machine = Machine::new(NicModel::E1000, &[NicModel::Rtl8139, NicModel::E1000]);
    let mut drivers = [machine.driver(0), machine.driver(1)];
    machine.physical.slow = true;
    let mut sent = 0;
    for round in 0..400 {
        for guest in [0, 1] {
            let mark = round << 1 | guest as u32;
            let frame = frame(ROUTER, mac(guest), 100, mark);
            sent += usize::from(machine.send(guest, &mut *drivers[guest], &frame) == Sent::Done);
        }
    }
    assert!(sent < 400, "the cards' own rings are full: {sent}");
    machine.physical.slow = false;
    machine.settle();
    assert_eq!(machine.physical.wire.len(), sent, "nothing is lost");
    for guest in [0, 1] {
        let own = marks(&machine.physical.wire).into_iter().filter(|mark| mark & 1 == guest);
        assert!(own.is_sorted());
        assert_eq!(machine.counters(guest as usize).tx_dropped, 0);
    }
}

/// A ring full of small frames, of which one call takes a part, and the next ones no more for some time.
#[test]
fn a_full_ring_is_sent_in_portions() {
    let mut machine = Machine::new(NicModel::Ne2000, &[NicModel::E1000]);
    let mut driver = machine.driver(0);
    // 200 descriptors that all name one frame: a ring of the guest's own making.
    let (ring, at) = (0x2_0000, 0x3_0000);
    let descriptor = u128::from(BUS + at) | 60 << 64 | 0x0b << 88;
    for index in 0..200 {
        driver_memory(&machine, ring + 16 * index, &descriptor.to_le_bytes());
    }
    driver_memory(&machine, at, &frame(ROUTER, mac(0), 60, 1));
    machine.drive(0, |card| {
        for (offset, value) in [(0x3800, BUS + ring), (0x3808, 256 * 16), (0x3810, 0), (0x3818, 200)] {
            card.registers.write(offset, 4, value);
        }
    });
    let first = machine.physical.wire.len();
    assert!((1..=Budget::STEPS / 2).contains(&first), "{first}");
    let at = machine.resumes[0].expect("the rest is to follow");
    assert!(at > machine.now + 100_000, "and not at once");
    machine.with(|shared, env| shared.poll(env));
    machine.drive(0, |card| card.registers.write(0x3818, 4, 200));
    assert_eq!(machine.physical.wire.len(), first, "neither by polling nor by another doorbell");
    machine.settle();
    assert_eq!(machine.physical.wire.len(), 200);
    assert_eq!(machine.send(0, &mut *driver, &[0; 13]), Sent::Refused);
}

fn driver_memory(machine: &Machine, offset: u32, bytes: &[u8]) {
    DmaMemory::write(&mut machine.guests.0[0].clone(), offset as usize, bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the cards, the sizes and the order: every frame reaches those it is for, whole, once, in order.
    #[test]
    fn nothing_is_lost_or_changed(
        physical in 0usize..4,
        models in proptest::collection::vec(0usize..4, 1..4),
        steps in proptest::collection::vec((0usize..6, 0usize..6, 60usize..=1514), 1..120),
    ) {
        let models: Vec<NicModel> = models.iter().map(|index| MODELS[*index]).collect();
        let mut machine = Machine::new(MODELS[physical], &models);
        let mut drivers: Vec<_> = (0..models.len()).map(|guest| machine.driver(guest)).collect();
        let mut expected: Vec<Vec<Vec<u8>>> = vec![vec![]; models.len()];
        let mut got = expected.clone();
        let mut wire = vec![];
        for (mark, (from, to, len)) in (0..).zip(steps) {
            let to_mac = if to < models.len() { mac(to) } else if to == 4 { ALL } else { ROUTER };
            let outside = from >= models.len();
            let frame = frame(to_mac, if outside { ROUTER } else { mac(from) }, len, mark);
            for (guest, expected) in expected.iter_mut().enumerate() {
                if (to == guest || to == 4) && from != guest {
                    expected.push(frame.clone());
                }
            }
            if outside {
                machine.physical.arriving.push_back(frame);
            } else {
                prop_assert_eq!(machine.send(from, &mut *drivers[from], &frame), Sent::Done);
                if to >= models.len() {
                    wire.push(frame);
                }
            }
            if mark % 7 == 0 || outside {
                for _ in 0..40 {
                    machine.physical.after();
                }
                while machine.physical.nic.interrupt() {
                    machine.with(|shared, env| shared.interrupt(env));
                }
            }
            if mark % 11 == 0 {
                for guest in 0..models.len() {
                    got[guest].extend(machine.take(guest, &mut *drivers[guest]));
                }
            }
        }
        for _ in 0..4 {
            machine.settle();
            for guest in 0..models.len() {
                got[guest].extend(machine.take(guest, &mut *drivers[guest]));
            }
        }
        prop_assert!(machine.physical.wire == wire);
        for guest in 0..models.len() {
            prop_assert_eq!(marks(&got[guest]), marks(&expected[guest]), "guest {} {:?}", guest, machine.counters(guest));
            prop_assert!(got[guest] == expected[guest]);
        }
    }
}
