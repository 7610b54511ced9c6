//! A card whose owner looks at what its guest wrote, and that guest.

use super::*;
use crate::PolledNic;
use sluice_nic::Offload;
use sluice_nic::e1000::registers::reg;
use sluice_nic::e1000::{Reception, Transmission};
use sluice_nic::offload::{Checksum, Segments};

/// A guest: rings are memory for it, other registers exit.
struct Guest {
    nic: PolledNic,
    words: Words,
    memory: Memory,
    driver: Box<dyn Uplink>,
    now: u64,
    exits: usize,
}

struct Registers<'a>(&'a mut Guest);

impl RawDevice for Registers<'_> {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let Guest { nic, words, now, exits, .. } = &mut *self.0;
        if is_direct(offset) {
            return words.look(offset.into());
        }
        (*exits, *now) = (*exits + 1, *now + 1000);
        let mut bytes = [0; 4];
        nic.read(Register { io: false, offset: offset.into() }, &mut bytes[..width.into()], *now);
        u32::from_le_bytes(bytes)
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        let Guest { nic, words, now, exits, .. } = &mut *self.0;
        if is_direct(offset) {
            return words.show(offset.into(), value);
        }
        (*exits, *now) = (*exits + 1, *now + 1000);
        let bytes = value.to_le_bytes();
        nic.write(Register { io: false, offset: offset.into() }, &bytes[..width.into()], *now);
    }
    fn read_string(&mut self, _: u16, _: u8, _: &mut [u8]) {}
    fn write_string(&mut self, _: u16, _: u8, _: &[u8]) {}
}

fn is_direct(offset: u16) -> bool {
    PolledNic::direct(true)[usize::from(offset) / 0x1000].contains(Direction::WRITE)
}

impl Guest {
    fn new() -> Self {
        let words = Words(Arc::new(Mutex::new(vec![0; PAGES * 1024])));
        let nic = PolledNic::new(mac(0), Box::new(words.clone()));
        let driver = for_device(0x8086, 0x100e, &|_| 0).unwrap();
        let memory = Memory::new(driver.memory());
        let mut guest = Self { nic, words, memory, driver, now: 0, exits: 0 };
        assert!(guest.drive(|driver, card| driver.start(card)));
        // The link, and then the receiver, of a new card take their time.
        guest.now += 10_000_000_000;
        guest.nic.settle(guest.now);
        guest.exits = 0;
        guest
    }

    fn drive<R>(&mut self, act: impl FnOnce(&mut dyn Uplink, &mut Card<'_>) -> R) -> R {
        let mut driver = core::mem::replace(&mut self.driver, for_device(0x8086, 0x100e, &|_| 0).unwrap());
        let mut memory = self.memory.clone();
        let result = act(&mut *driver, &mut Card { registers: &mut Registers(self), memory: &mut memory });
        self.driver = driver;
        result
    }

    /// All that the card sends, as frames.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut all = vec![];
        let mut into = [0; 1518];
        loop {
            match self.nic.send(&mut self.memory, &mut into, &mut Budget::default()) {
                Transmission::Frame(len) => all.push(into[..len].to_vec()),
                Transmission::Busy => {}
                Transmission::Idle => return all,
            }
        }
    }

    fn offer(&mut self, frame: &[u8]) -> Reception {
        self.nic.offer(&mut self.memory, frame, self.now)
    }

    /// What the driver finds without asking the card.
    fn taken(&mut self) -> Vec<Vec<u8>> {
        let mut all = vec![];
        self.drive(|driver, card| driver.take(card, 1000, &mut |frame| all.push(frame.to_vec())));
        all
    }
}

#[test]
fn a_stock_driver_sends_and_receives_without_an_exit() {
    let mut guest = Guest::new();
    for round in 0..400 {
        let out = frame(ROUTER, mac(0), 60 + round, round as u32);
        assert_eq!(guest.drive(|driver, card| driver.send(card, &out)), Sent::Done);
        assert_eq!(guest.sent(), [out]);
        let into = frame(mac(0), ROUTER, 1514 - round, round as u32);
        assert_eq!(guest.offer(&into), Reception::Stored);
        guest.nic.settle(guest.now);
        assert_eq!(guest.taken(), [into]);
    }
    assert_eq!(guest.exits, 0);
    assert_eq!(guest.sent(), Vec::<Vec<u8>>::new(), "nothing was rung for");
    assert_eq!(guest.words.look(reg::TDH), guest.words.look(reg::TDT), "it sees how far the card has come");
}

#[test]
fn the_line_rises_for_what_came_and_falls_when_the_cause_is_read() {
    let mut guest = Guest::new();
    assert!(!guest.nic.line());
    guest.offer(&frame(mac(0), ROUTER, 60, 1));
    guest.nic.settle(guest.now);
    assert!(guest.nic.line());
    guest.drive(|driver, card| driver.poll(card, &mut |_| {}));
    assert!(!guest.nic.line() && guest.exits > 0);
    // The next has to wait for a while, and then comes by itself.
    guest.offer(&frame(mac(0), ROUTER, 60, 2));
    guest.nic.settle(guest.now);
    let deadline = guest.nic.deadline().expect("it waits");
    assert!(!guest.nic.line());
    guest.nic.settle(deadline);
    assert!(guest.nic.line());
}

#[test]
fn a_full_ring_loses_frames_until_the_driver_has_given_some_back() {
    let mut guest = Guest::new();
    let stored = (0..200).filter(|mark| guest.offer(&frame(mac(0), ROUTER, 60, *mark)) == Reception::Stored);
    let stored = stored.count();
    assert!((60..200).contains(&stored), "{stored}");
    assert_eq!(guest.offer(&frame(mac(0), ROUTER, 60, 0)), Reception::Full);
    assert_eq!(guest.taken().len(), stored);
    assert_eq!(guest.offer(&frame(mac(0), ROUTER, 60, 0)), Reception::Stored);
}

/// Linux sets heads to zero and trusts that they are: the card must neither forget that, nor take for it what it has not shown yet.
#[test]
fn heads_are_the_drivers_while_the_card_stands_still() {
    let mut guest = Guest::new();
    guest.drive(|driver, card| (0..5).for_each(|_| _ = driver.send(card, &frame(ROUTER, mac(0), 60, 0))));
    assert_eq!(guest.sent().len(), 5);
    let head = guest.words.look(reg::TDH);
    // A read that exits comes between what was sent and what is shown of it.
    guest.drive(|_, card| card.registers.read(reg::STATUS as u16, 4));
    assert_eq!(guest.words.look(reg::TDH), head + 5);
    assert_eq!(guest.sent(), Vec::<Vec<u8>>::new());
    guest.drive(|_, card| {
        card.registers.write(reg::TCTL as u16, 4, 0);
        card.registers.write(reg::TDH as u16, 4, 0);
        card.registers.write(reg::TDT as u16, 4, 0);
    });
    guest.nic.settle(guest.now);
    assert_eq!(guest.words.look(reg::TDH), 0);
    guest.drive(|_, card| card.registers.write(reg::TCTL as u16, 4, 2));
    assert_eq!((guest.sent().len(), guest.words.look(reg::TDH)), (0, 0));
}

/// A mirror whose guest writes to a doorbell again just after the card has looked.
struct Busy(Words, Arc<Mutex<Option<(u32, u32)>>>);

impl Mirror for Busy {
    fn show(&mut self, offset: u32, value: u32) {
        self.0.show(offset, value);
    }
    fn look(&self, offset: u32) -> u32 {
        let found = self.0.look(offset);
        let mut again = self.1.lock().unwrap();
        if let Some((_, value)) = again.take_if(|(at, value)| *at == offset && *value != found) {
            self.0.clone().show(offset, value);
        }
        found
    }
}

#[test]
fn a_doorbell_that_is_rung_while_the_card_looks_is_not_lost() {
    let words = Words(Arc::new(Mutex::new(vec![0; PAGES * 1024])));
    let again = Arc::new(Mutex::new(None));
    let mut nic = PolledNic::new(mac(0), Box::new(Busy(words.clone(), again.clone())));
    for doorbell in [reg::TDT, reg::RDT] {
        let mut guest_writes = words.clone();
        guest_writes.show(doorbell, 3);
        *again.lock().unwrap() = Some((doorbell, 4));
        nic.read(Register { io: false, offset: reg::STATUS }, &mut [0; 4], 0);
        assert_eq!(words.look(doorbell), 4, "{doorbell:#x}");
        nic.read(Register { io: false, offset: reg::STATUS }, &mut [0; 4], 0);
        let mut got = [0; 4];
        nic.read(Register { io: false, offset: doorbell }, &mut got, 0);
        assert_eq!(got[0], 4);
    }
}

#[test]
fn registers_that_exit_while_nobody_looks_are_the_same() {
    let mut guest = Guest::new();
    let next = guest.words.look(reg::TDT) + 1;
    guest.drive(|driver, card| driver.enqueue(card, &frame(ROUTER, mac(0), 60, 7)));
    guest.nic.write(Register { io: false, offset: reg::TDT }, &next.to_le_bytes(), guest.now);
    assert!(guest.nic.is_sending() && guest.words.look(reg::TDT) == next);
    assert_eq!(guest.sent().iter().map(|frame| mark(frame)).collect::<Vec<_>>(), [7]);
    assert!(!PolledNic::direct(false)[3].contains(Direction::WRITE));
    assert_eq!(PolledNic::direct(true)[0], Direction::empty(), "interrupts are the card's");
}

const CUT: Offload = Offload {
    ip: Some(Checksum { start: 14, offset: 24, end: 33 }),
    transport: Some(Checksum { start: 34, offset: 50, end: 0 }),
    segments: Some(Segments { header: 54, payload: 1000, ip: 14, transport: 34, ipv4: true, tcp: true }),
    is_in_headers: false,
};

#[test]
fn a_packet_is_handed_on_whole_or_not_at_all() {
    let mut guest = Guest::new();
    let mut packet = frame(ROUTER, mac(0), 54, 0);
    packet.extend([9; 2500]);
    let take = |guest: &mut Guest, accepts: bool| {
        let whole = guest.nic.next_packet(&mut guest.memory, 1054).unwrap();
        assert_eq!((whole.len(), whole.offload(), whole.frames()), (packet.len(), &CUT, 3));
        let (mut into, mut seen) = (vec![0; packet.len()], None);
        let taken = guest.nic.take_packet(&mut guest.memory, &mut into, &mut |start| {
            seen = Some(*start);
            accepts
        });
        assert_eq!(seen.unwrap()[..], packet[..14]);
        (taken, into == packet)
    };
    guest.drive(|driver, card| {
        let at = driver.place(card, packet.len(), &CUT).at().unwrap();
        card.memory.write(at, &packet);
        driver.enqueue_placed(card, at, packet.len(), &CUT);
        driver.flush(card);
    });
    assert!(guest.nic.is_sending());
    assert_eq!(guest.nic.peek(&mut guest.memory).unwrap()[..], packet[..14]);
    assert!(guest.nic.next_packet(&mut guest.memory, 1053).is_none(), "its frames have 1,054 bytes");
    assert!(!take(&mut guest, false).0);
    let head = guest.words.look(reg::TDH);
    let (taken, is_same) = take(&mut guest, true);
    assert!(taken && is_same);
    guest.nic.settle(guest.now);
    assert_ne!(guest.words.look(reg::TDH), head);
    let again = &mut vec![0; packet.len()];
    assert!(!guest.nic.take_packet(&mut guest.memory, again, &mut |_| true), "once");
    assert_eq!((guest.sent().len(), guest.nic.peek(&mut guest.memory)), (0, None));
}

/// Its driver's other processor may do so between the two calls.
#[test]
fn a_packet_whose_ring_is_moved_or_switched_off_is_none_any_more() {
    for (register, value) in [(reg::TDBAL, BUS), (reg::TDH, 7), (reg::TCTL, 0)] {
        let mut guest = Guest::new();
        guest.drive(|driver, card| driver.send(card, &frame(ROUTER, mac(0), 60, 7)));
        assert!(guest.nic.next_packet(&mut guest.memory, 1514).is_some());
        guest.nic.write(Register { io: false, offset: register }, &value.to_le_bytes(), guest.now);
        let into = &mut [0; 60];
        assert!(!guest.nic.take_packet(&mut guest.memory, into, &mut |_| true), "{register:#x}");
    }
}
