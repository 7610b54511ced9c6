//! The NE2000 uplink with the software NE2000 as its hardware.

use proptest::prelude::*;
use sluice_nic::ne2000::registers::{Command, Interrupt, port};
use sluice_nic::ne2000::{MEMORY_END, MEMORY_START, Reception};
use sluice_uplink::{Card, MAX_FRAME, NoMemory, RawDevice, Sent, Transmit, Uplink, ne2000::Ne2000};
use std::collections::VecDeque;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

struct Hardware {
    nic: sluice_nic::Ne2000,
    wire: Vec<Vec<u8>>,
    arriving: VecDeque<Vec<u8>>,
    /// Transmissions stay unfinished.
    slow: bool,
}

impl Hardware {
    fn new() -> Self {
        Self { nic: sluice_nic::Ne2000::new(MAC), wire: vec![], arriving: VecDeque::new(), slow: false }
    }

    fn after(&mut self) {
        let mut frame = [0; 0x1_0000];
        if let Some(len) = self.nic.take_transmitted(&mut frame) {
            self.wire.push(frame[..len].to_vec());
        }
        // Something arrives at any time, even while the ring is being read.
        // The ring is not filled to the brim: the card would overwrite it (sluice_nic::ne2000).
        if let Some(frame) = self.arriving.front()
            && self.nic.fits(frame.len())
            && self.nic.receive(frame) == Reception::Stored
        {
            self.arriving.pop_front();
        }
    }
}

impl RawDevice for Hardware {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let value = self.nic.read(offset, width);
        self.after();
        if self.slow && offset == port::CMD { value | u32::from(Command::TRANSMIT.bits()) } else { value }
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.nic.write(offset, width, value);
        self.after();
    }
    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        self.nic.read_string(offset, width, into);
        self.after();
    }
    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        self.nic.write_string(offset, width, from);
        self.after();
    }
}

fn with<R>(hardware: &mut Hardware, act: impl FnOnce(&mut Card<'_>) -> R) -> R {
    act(&mut Card { registers: hardware, memory: &mut NoMemory })
}

fn started() -> (Hardware, Ne2000) {
    let (mut hardware, mut driver) = (Hardware::new(), Ne2000::new());
    assert!(with(&mut hardware, |card| driver.start(card)));
    (hardware, driver)
}

fn frame(len: usize, mark: u8) -> Vec<u8> {
    (0..len).map(|at| if at < 6 { 0xff } else { mark.wrapping_add(at as u8) }).collect()
}

fn poll(hardware: &mut Hardware, driver: &mut Ne2000) -> Vec<Vec<u8>> {
    let mut got = vec![];
    with(hardware, |card| driver.poll(card, &mut |frame| got.push(frame.to_vec())));
    got
}

#[test]
fn frames_go_out_padded_and_whole() {
    let (mut hardware, mut driver) = started();
    for len in [13, 14, 59, 60, 61, 1514, MAX_FRAME, MAX_FRAME + 1] {
        let expected = if (14..=MAX_FRAME).contains(&len) { Sent::Done } else { Sent::Refused };
        assert_eq!(with(&mut hardware, |card| driver.send(card, &frame(len, 1))), expected);
    }
    let lengths: Vec<usize> = hardware.wire.iter().map(Vec::len).collect();
    assert_eq!(lengths, [60, 60, 60, 61, 1514, MAX_FRAME]);
    assert_eq!(hardware.wire[4], frame(1514, 1));
    assert_eq!(hardware.wire[0][14..], [0; 46], "nothing old in the padding");
    assert!(!hardware.nic.interrupt(), "nobody waits for the transmitter");
}

#[test]
fn a_busy_transmitter_interrupts_when_somebody_waits() {
    let (mut hardware, mut driver) = started();
    hardware.slow = true;
    assert_eq!(with(&mut hardware, |card| driver.send(card, &frame(60, 1))), Sent::Full);
    hardware.slow = false;
    hardware.nic.regs.isr |= Interrupt::SENT.bits();
    assert!(hardware.nic.interrupt());
    assert!(poll(&mut hardware, &mut driver).is_empty() && !hardware.nic.interrupt());
    assert_eq!(with(&mut hardware, |card| driver.send(card, &frame(60, 1))), Sent::Done);
    assert!(!hardware.nic.interrupt());
}

#[test]
fn a_card_that_is_not_there_is_noticed() {
    struct Nothing;
    impl RawDevice for Nothing {
        fn read(&mut self, _: u16, _: u8) -> u32 {
            u32::MAX
        }
        fn write(&mut self, _: u16, _: u8, _: u32) {}
    }
    let mut card = Card { registers: &mut Nothing, memory: &mut NoMemory };
    let mut driver = Ne2000::new();
    assert!(!driver.start(&mut card));
    // Nor does it make the driver do endless work.
    driver.poll(&mut card, &mut |_| panic!("a frame out of nothing"));
    driver.stop(&mut card);
}

#[test]
fn the_next_owner_finds_nothing() {
    let (mut hardware, mut driver) = started();
    hardware.arriving.extend([frame(1000, 3), frame(700, 9)]);
    with(&mut hardware, |card| driver.send(card, &frame(1200, 5)));
    poll(&mut hardware, &mut driver);
    with(&mut hardware, |card| driver.stop(card));
    assert!(hardware.nic.ram().iter().all(|byte| *byte == 0));
    assert_eq!(hardware.nic.prom(), sluice_nic::Ne2000::new(MAC).prom());
    hardware.arriving.push_back(frame(60, 1));
    hardware.after();
    assert_eq!(hardware.arriving.len(), 1, "it is off the wire");
    assert!(!hardware.nic.interrupt());
}

#[test]
fn an_overflow_costs_its_frames_only() {
    let (mut hardware, mut driver) = started();
    hardware.arriving.push_back(frame(600, 1));
    hardware.after();
    hardware.nic.regs.isr |= Interrupt::OVERFLOW.bits();
    assert_eq!(poll(&mut hardware, &mut driver), [frame(600, 1)]);
    assert_eq!(driver.counters().overruns, 1);
    hardware.arriving.push_back(frame(601, 2));
    hardware.after();
    assert_eq!(poll(&mut hardware, &mut driver), [frame(601, 2)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever the sizes and the moments of arrival: every frame once, in order.
    #[test]
    fn frames_come_in_in_order(rounds in proptest::collection::vec(
        (proptest::collection::vec(60usize..=1514, 0..12), 0usize..3), 1..30))
    {
        let (mut hardware, mut driver) = started();
        let (mut expected, mut got, mut mark) = (vec![], vec![], 0u8);
        for (sizes, sends) in rounds {
            for size in sizes {
                mark = mark.wrapping_add(1);
                expected.push(frame(size, mark));
                hardware.arriving.push_back(frame(size, mark));
            }
            for _ in 0..sends {
                with(&mut hardware, |card| driver.send(card, &frame(99, 0)));
            }
            got.extend(poll(&mut hardware, &mut driver));
        }
        for _ in 0..200 {
            hardware.after();
            got.extend(poll(&mut hardware, &mut driver));
        }
        prop_assert_eq!(driver.counters().restarts, 0);
        prop_assert!(got == expected);
    }

    /// A card whose memory, CURR and status are anything: no panic, no frame longer than Ethernet's, and after a
    /// restart it works.
    #[test]
    fn a_card_is_not_believed(
        seed in any::<u64>(), curr in any::<u8>(), isr in any::<u8>(), sane in any::<bool>(),
    ) {
        let (mut hardware, mut driver) = started();
        let mut random = seed | 1;
        for byte in hardware.nic.ram_mut() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = if sane { [0x01, 0x50, 0x40, 0x00][random as usize % 4] } else { random as u8 };
        }
        hardware.nic.regs.curr = curr;
        hardware.nic.regs.isr = isr;
        for frame in poll(&mut hardware, &mut driver) {
            prop_assert!((14..=MAX_FRAME).contains(&frame.len()));
        }
        prop_assert!(hardware.nic.ram().len() == (MEMORY_END - MEMORY_START) as usize);
        with(&mut hardware, |card| driver.start(card));
        hardware.arriving.push_back(frame(777, 7));
        hardware.after();
        prop_assert_eq!(poll(&mut hardware, &mut driver), [frame(777, 7)]);
    }
}
