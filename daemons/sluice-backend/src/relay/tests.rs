use super::*;
use crate::device::take_up;
use crate::function::QueueSetup;
use std::sync::Arc;

const AVAILABLE: u64 = 0x1000;
const GUESTS_USED: u64 = 0x2000;
const ENTRIES: u16 = 8;

/// A guest, its queue, and a program's view of it.
struct Bench {
    window: Window,
    relay: Relay,
    rings: Rings,
    used: u16,
}

fn setup() -> QueueSetup {
    QueueSetup { entries: ENTRIES.into(), enabled: 1, descriptors: 0, driver: AVAILABLE, device: GUESTS_USED }
}

fn relay(window: &Window) -> (Relay, Rings) {
    let rings = Rings::new(2, window).unwrap();
    (Relay::new(take_up(&setup(), MOST, false, window).unwrap(), &rings, 1).unwrap(), rings)
}

impl Bench {
    fn new() -> Self {
        let window = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1_0000)]).unwrap());
        let (relay, rings) = relay(&window);
        Self { window, relay, rings, used: 0 }
    }

    /// The guest makes chains available.
    fn ask(&self, heads: &[u16]) {
        for head in heads {
            let index: u16 = self.window.read_obj(GuestAddress(AVAILABLE + 2)).unwrap();
            let slot = GuestAddress(AVAILABLE + 4 + 2 * u64::from(index % ENTRIES));
            self.window.write_obj(*head, slot).unwrap();
            self.window.write_obj(index.wrapping_add(1), GuestAddress(AVAILABLE + 2)).unwrap();
        }
    }

    /// What the program was asked for, from this index on.
    fn passed(&self, from: u16) -> Vec<u16> {
        let ring = self.relay.for_program().avail_ring_addr;
        let index: u16 = self.rings.0.read_obj(GuestAddress(ring + 2)).unwrap();
        let entry = |index: u16| GuestAddress(ring + 4 + 2 * u64::from(index % ENTRIES));
        (from..index).map(|index| self.rings.0.read_obj(entry(index)).unwrap()).collect()
    }

    /// The program answers.
    fn use_up(&mut self, heads: &[u32]) {
        let ring = self.relay.for_program().used_ring_addr;
        for head in heads {
            let entry = GuestAddress(ring + 4 + 8 * u64::from(self.used % ENTRIES));
            self.rings.0.write_obj([*head, head.wrapping_add(100)], entry).unwrap();
            self.used = self.used.wrapping_add(1);
        }
        self.rings.0.write_obj(self.used, GuestAddress(ring + 2)).unwrap();
    }

    /// What the guest has been answered: heads and lengths.
    fn answered(&self) -> Vec<[u32; 2]> {
        let index: u16 = self.window.read_obj(GuestAddress(GUESTS_USED + 2)).unwrap();
        let entry = |index: u16| GuestAddress(GUESTS_USED + 4 + 8 * u64::from(index % ENTRIES));
        (0..index).map(|index| self.window.read_obj(entry(index)).unwrap()).collect()
    }
}

#[test]
fn answers_are_kept_back_until_all_before_them_are_there() {
    let mut bench = Bench::new();
    bench.ask(&[3, 0, 5]);
    assert!(bench.relay.pass_on(&bench.window).unwrap());
    assert_eq!(bench.passed(0), [3, 0, 5]);
    assert!(!bench.relay.pass_on(&bench.window).unwrap(), "there is nothing more");
    bench.use_up(&[5]);
    assert!(!bench.relay.take_back(&bench.window).unwrap());
    assert_eq!(bench.answered(), [[0; 2]; 0]);
    bench.use_up(&[3]);
    assert!(bench.relay.take_back(&bench.window).unwrap());
    assert_eq!(bench.answered(), [[3, 103]]);
    bench.use_up(&[0]);
    assert!(bench.relay.take_back(&bench.window).unwrap());
    assert_eq!(bench.answered(), [[3, 103], [0, 100], [5, 105]]);
}

#[test]
fn the_next_program_is_asked_for_all_that_was_not_answered() {
    let mut bench = Bench::new();
    bench.ask(&[3, 0, 5]);
    bench.relay.pass_on(&bench.window).unwrap();
    bench.use_up(&[5, 3]);
    bench.relay.take_back(&bench.window).unwrap();
    (bench.relay, bench.rings) = relay(&bench.window);
    bench.used = 0;
    bench.ask(&[3]);
    bench.relay.pass_on(&bench.window).unwrap();
    assert_eq!(bench.passed(0), [0, 5, 3]);
    bench.use_up(&[3, 5, 0]);
    bench.relay.take_back(&bench.window).unwrap();
    assert_eq!(bench.answered(), [[3, 103], [0, 100], [5, 105], [3, 103]]);
}

#[test]
fn rings_go_round() {
    let mut bench = Bench::new();
    for round in 0..3 * u32::from(ENTRIES) {
        bench.ask(&[1, 7]);
        bench.relay.pass_on(&bench.window).unwrap();
        bench.use_up(&[7, 1]);
        assert!(bench.relay.take_back(&bench.window).unwrap());
        let index: u16 = bench.window.read_obj(GuestAddress(GUESTS_USED + 2)).unwrap();
        assert_eq!(u32::from(index), 2 * (round + 1));
    }
}

#[test]
fn a_guest_that_asks_twice_at_once_or_for_nothing_breaks_its_queue() {
    for heads in [&[2, 2][..], &[ENTRIES], &[0xffff]] {
        let mut bench = Bench::new();
        bench.ask(heads);
        assert!(bench.relay.pass_on(&bench.window).is_err(), "{heads:?}");
    }
    let mut bench = Bench::new();
    bench.window.write_obj(ENTRIES + 1, GuestAddress(AVAILABLE + 2)).unwrap();
    assert!(bench.relay.pass_on(&bench.window).is_err(), "more than there are entries");
}

#[test]
fn a_program_that_answers_what_it_was_not_asked_answers_nothing() {
    for heads in [&[0][..], &[2, 2], &[u32::from(ENTRIES)], &[u32::MAX]] {
        let mut bench = Bench::new();
        bench.ask(&[1, 2]);
        bench.relay.pass_on(&bench.window).unwrap();
        bench.use_up(heads);
        assert!(bench.relay.take_back(&bench.window).is_err(), "{heads:?}");
        assert_eq!(bench.answered(), [[0; 2]; 0]);
    }
    let mut bench = Bench::new();
    let index = GuestAddress(bench.relay.for_program().used_ring_addr + 2);
    bench.rings.0.write_obj(7u16, index).unwrap();
    assert!(bench.relay.take_back(&bench.window).is_err(), "an index without entries");
}

#[test]
fn rings_are_behind_the_guests_memory() {
    let bench = Bench::new();
    let rings = bench.relay.for_program();
    assert_eq!((rings.desc_table_addr, rings.queue_size), (0, ENTRIES));
    assert_eq!((rings.avail_ring_addr, rings.used_ring_addr), (0x1_2000, 0x1_3000));
    assert!(bench.rings.0.check_range(GuestAddress(0x1_2000), 0x2000));
}
