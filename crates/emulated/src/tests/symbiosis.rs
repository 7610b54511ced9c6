//! A module in the guest shares a page with its card: nothing is lost, whatever comes between two of its steps, and a guest that writes
//! anything there harms nobody else.
//!
//! The driver is the one of all these tests; what `guest/linux/sluice-symbiotic` does around Linux' is done here in the same steps.

use super::*;
use sluice_hypercall::symbiotic::*;

const TDT: u32 = 0x3818;
const IMS: u16 = 0xd0;
const CTRL: u16 = 0;

impl Machine {
    fn end_of_interrupt(&mut self, guest: usize) {
        self.lines[guest] = self.shared.end_of_interrupt(self.ports[guest].0);
    }
}

/// What the module is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    /// Not scheduled.
    Idle,
    Scheduled,
    /// It has read this, and looks at the rings next.
    Begun(u32),
    /// It has looked at the rings, and says next for what it waits.
    Done(u32),
    /// It has said so, and looks next whether there was more.
    Armed(u32),
}

/// A guest with a driver and the module.
struct Guest {
    machine: Machine,
    driver: Box<dyn Uplink>,
    poll: Poll,
    /// It was scheduled while it was under way.
    missed: bool,
    got: Vec<u32>,
}

impl Guest {
    fn new() -> Self {
        let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Never);
        let driver = machine.driver(0);
        Self { machine, driver, poll: Poll::Idle, missed: false, got: vec![] }
    }

    /// A symbiosis that has gone on for a while.
    fn symbiotic() -> Self {
        let mut guest = Self::new();
        guest.begin();
        guest.settle();
        guest
    }

    fn exit(&mut self, offset: u32, value: u32) {
        self.machine.drive(0, |card| card.registers.write(offset as u16, 4, value));
    }

    fn begin(&mut self) {
        self.exit(SYMBIOTIC_CONTROL, SYMBIOTIC_BEGIN);
    }

    fn look(&mut self, offset: u32) -> u32 {
        self.machine.drive(0, |card| card.registers.read(offset as u16, 4))
    }

    fn say(&mut self, offset: u32, value: u32) {
        self.exit(offset, value);
    }

    fn exits(&self) -> u64 {
        self.machine.counters(0).instructions
    }

    fn is_on(&mut self) -> bool {
        self.look(SYMBIOTIC_DOORBELL) != SYMBIOTIC_DOORBELL_OFF
    }

    /// The interrupt, if the line is up: the driver's handler, the module's, and the end of it. False if it is not.
    fn interrupt(&mut self) -> bool {
        if !self.machine.line(0) {
            return false;
        }
        if self.is_on() {
            let raised = self.look(SYMBIOTIC_RAISED);
            if raised != self.look(SYMBIOTIC_TAKEN) {
                self.say(SYMBIOTIC_TAKEN, raised);
                self.schedule();
            }
        }
        if self.look(0xc0) != 0 {
            self.schedule();
        }
        self.machine.end_of_interrupt(0);
        true
    }

    fn schedule(&mut self) {
        self.poll = match self.poll {
            Poll::Idle | Poll::Armed(_) => Poll::Scheduled,
            Poll::Scheduled => Poll::Scheduled,
            // It is followed by another.
            under_way => {
                self.missed = true;
                under_way
            }
        };
    }

    /// One step of the poll.
    fn step(&mut self) {
        let (raised, is_held) = (self.look(SYMBIOTIC_RAISED), self.look(SYMBIOTIC_HELD) == 1);
        self.poll = match self.poll {
            Poll::Idle => Poll::Idle,
            Poll::Scheduled => {
                if !self.is_on() {
                    self.begin();
                }
                Poll::Begun(self.look(SYMBIOTIC_RAISED))
            }
            Poll::Begun(seen) => {
                let mut got = vec![];
                let driver = &mut self.driver;
                self.machine.drive(0, |card| driver.poll(card, &mut |frame| got.push(mark(frame))));
                self.got.extend(got);
                Poll::Done(seen)
            }
            Poll::Done(_) if core::mem::take(&mut self.missed) => Poll::Scheduled,
            Poll::Done(seen) => {
                self.say(SYMBIOTIC_EVENT, seen);
                Poll::Armed(seen)
            }
            Poll::Armed(seen) if seen == raised || is_held => Poll::Idle,
            Poll::Armed(_) => Poll::Scheduled,
        };
    }

    /// Writes the tail, and no more.
    fn send(&mut self, number: u32) {
        let sent = self.machine.send(0, &mut *self.driver, &frame(ROUTER, mac(0), 60, number));
        assert_eq!(sent, Sent::Done);
    }

    fn ring(&mut self) {
        if self.look(SYMBIOTIC_DOORBELL) == SYMBIOTIC_DOORBELL_WANTED {
            self.exit(SYMBIOTIC_RING, 1);
        }
    }

    fn arrive(&mut self, number: u32) {
        self.machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, number));
    }

    /// The physical card's interrupt.
    fn physical(&mut self) {
        (0..3).for_each(|_| self.machine.physical.after());
        if self.machine.physical.nic.interrupt() {
            self.machine.with(|shared, env| shared.interrupt(env));
        }
    }

    /// The guest does what its interrupts tell it, until there are none.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.machine.settle();
            let interrupted = self.interrupt();
            if !interrupted && self.poll == Poll::Idle {
                return;
            }
            for _ in 0..50 {
                self.step();
            }
        }
        panic!("interrupts without end, {:?}", self.poll);
    }
}

#[test]
fn without_a_module_there_is_a_register_and_nothing_else() {
    let mut guest = Guest::new();
    assert_eq!(guest.look(SYMBIOTIC_CONTROL), SYMBIOTIC_MAGIC);
    assert_eq!(guest.look(SYMBIOTIC_DOORBELL), SYMBIOTIC_DOORBELL_OFF);
    let shown = guest.machine.mirrors[0].1;
    assert!(!shown.symbiotic && shown.direct[6].is_empty() && !shown.direct[3].contains(Direction::WRITE));
    for policy in [DirectPolicy::Guarded, DirectPolicy::Open] {
        let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], policy);
        let read =
            |machine: &mut Machine| machine.drive(0, |card| card.registers.read(SYMBIOTIC_CONTROL as u16, 4));
        assert_eq!(read(&mut machine), 0, "a card that a guest may have in its hands");
        machine.drive(0, |card| card.registers.write(SYMBIOTIC_CONTROL as u16, 4, SYMBIOTIC_BEGIN));
        assert!(!machine.mirrors[0].1.symbiotic);
    }
    let mut emulated = Machine::new(NicModel::E1000, &[NicModel::E1000]);
    assert_eq!(emulated.drive(0, |card| card.registers.read(SYMBIOTIC_CONTROL as u16, 4)), 0);
}

#[test]
fn frames_come_and_go_with_one_exit() {
    let mut guest = Guest::symbiotic();
    for number in 0..20 {
        let before = guest.exits();
        guest.arrive(number);
        guest.settle();
        assert_eq!(guest.got.pop(), Some(number));
        assert_eq!(guest.exits(), before, "what is received needs none");
        (0..4).for_each(|more| guest.send(number + more));
        assert!(guest.machine.physical.wire.is_empty(), "nobody has looked");
        guest.ring();
        assert_eq!(guest.exits(), before + 1);
        guest.settle();
        let expected: Vec<u32> = (number..number + 4).collect();
        assert_eq!(marks(&core::mem::take(&mut guest.machine.physical.wire)), expected);
    }
    assert_eq!(guest.machine.counters(0).refused, 0);
}

#[test]
fn an_interrupt_comes_once_and_again_when_it_is_asked_for() {
    let mut guest = Guest::symbiotic();
    guest.arrive(1);
    guest.machine.settle();
    assert!(guest.interrupt());
    assert!(!guest.machine.line(0), "it was dealt with");
    guest.arrive(2);
    guest.machine.settle();
    assert!(!guest.machine.line(0), "the module polls");
    guest.settle();
    assert_eq!(guest.got, [1, 2]);
    guest.arrive(3);
    guest.machine.settle();
    assert!(guest.machine.line(0));
    // Who does not say that it was dealt with is interrupted again, as by any line.
    guest.machine.end_of_interrupt(0);
    assert!(guest.machine.line(0));
    // The driver's mask holds.
    guest.exit(0xd8, u32::MAX);
    assert!(!guest.machine.line(0));
    guest.exit(IMS.into(), 0x80);
    assert!(guest.machine.line(0));
}

/// Interrupts are no closer to each other than the card's delay, and the last one comes.
#[test]
fn a_line_that_was_up_is_held_down() {
    let mut guest = Guest::symbiotic();
    let mut rises = 0;
    let start = guest.machine.now;
    for number in 0..100 {
        guest.arrive(number);
        guest.physical();
        if guest.machine.shared.deadline().is_some_and(|at| at <= guest.machine.now) {
            guest.machine.with(|shared, env| shared.poll(env));
        }
        rises += u64::from(guest.interrupt());
        (0..8).for_each(|_| guest.step());
    }
    let most = (guest.machine.now - start) / 250_000 + 1;
    assert!((1..=most).contains(&rises), "{rises} of {most}");
    guest.settle();
    assert_eq!(guest.got, (0..100).collect::<Vec<u32>>());
}

/// The end of sending waits for something that is received, and is told by itself if nothing is.
#[test]
fn the_end_of_sending_is_told_at_last() {
    let mut guest = Guest::symbiotic();
    let raised = guest.look(SYMBIOTIC_RAISED);
    guest.send(1);
    guest.ring();
    assert_eq!((guest.look(SYMBIOTIC_RAISED), guest.machine.line(0)), (raised, false));
    guest.machine.settle();
    assert_eq!((guest.look(SYMBIOTIC_RAISED), guest.machine.line(0)), (raised + 1, true));
    guest.settle();
    guest.send(2);
    guest.ring();
    guest.arrive(3);
    while guest.look(SYMBIOTIC_RAISED) == raised + 1 {
        guest.physical();
    }
    assert!(guest.machine.line(0), "with what was received");
    guest.settle();
    assert_eq!(guest.look(SYMBIOTIC_RAISED), raised + 2, "and not again");
}

/// Looped back by the PHY, through rings that are laid out anew each time, or every third time.
#[test]
fn what_is_looped_back_is_received() {
    for every in [1, 3] {
        loop_back(every);
    }
}

fn loop_back(every: u32) {
    let mut guest = Guest::symbiotic();
    for turn in 0..6u32 {
        guest.machine.drive(0, |card| card.registers.write(0x20, 4, 1 << 26 | 1 << 21 | 0x5140));
        let (tx, rx, from, to) = (0x2_0000, 0x2_1000, 0x3_0000, 0x4_0000);
        if turn % every == 0 {
            for (ring, at) in [(0x3800, tx), (0x2800, rx)] {
                for (offset, value) in [(ring, BUS + at), (ring + 8, 128), (ring + 0x10, 0), (ring + 0x18, 0)]
                {
                    guest.say(offset, value);
                }
            }
        }
        let index = turn % every;
        driver_memory(&guest.machine, from, &frame(mac(0), mac(0), 60, turn + 5));
        driver_memory(&guest.machine, rx + 16 * index, &u128::from(BUS + to).to_le_bytes());
        driver_memory(
            &guest.machine,
            tx + 16 * index,
            &(u128::from(BUS + from) | 60 << 64 | 0x0b << 88).to_le_bytes(),
        );
        guest.say(0x2818, index + 1);
        guest.say(TDT, index + 1);
        guest.exit(SYMBIOTIC_RING, 1);
        let mut got = [0; 18];
        DmaMemory::read(&guest.machine.guests.0[0], to as usize, &mut got);
        assert_eq!(mark(&got), turn + 5);
    }
}

#[test]
fn changes_of_the_link_are_the_drivers_own() {
    let mut guest = Guest::symbiotic();
    guest.exit(IMS.into(), 0x84);
    guest.exit(0xc8, 4);
    assert!(guest.machine.line(0), "no module is asked");
    assert_eq!(guest.look(0xc0) & 4, 4);
    assert!(!guest.machine.line(0));
    // Ring causes that the driver raises by itself are the module's.
    let before = guest.look(SYMBIOTIC_RAISED);
    guest.exit(0xc8, 0x10);
    assert_eq!(guest.look(SYMBIOTIC_RAISED), before + 1);
    assert_eq!(guest.look(0xc0), 0);
}

#[test]
fn a_card_that_is_reset_or_off_the_bus_is_as_without_a_module() {
    for end in 0..3 {
        let mut guest = Guest::symbiotic();
        guest.send(1);
        let port = guest.machine.ports[0].0;
        match end {
            0 => guest.exit(SYMBIOTIC_CONTROL, SYMBIOTIC_END),
            1 => guest.exit(CTRL.into(), 1 << 26),
            _ => guest.machine.with(|shared, env| {
                shared.configure(port, false, false);
                shared.configure(port, true, false);
                shared.poll(env);
            }),
        }
        assert!(!guest.machine.mirrors[0].1.symbiotic && !guest.is_on(), "{end}");
        guest.settle();
        assert_eq!(marks(&guest.machine.physical.wire), [1], "{end}: what was written before counts");
        guest.poll = Poll::Idle;
        assert!(!guest.machine.line(0));
        guest.machine.physical.arriving.push_back(frame(mac(0), ROUTER, 60, 2));
        guest.machine.settle();
        assert_eq!(marks(&guest.machine.take(0, &mut *guest.driver)), [2], "{end}: by ICR");
    }
}

/// While work is left over the module is told not to ring, and the rest is sent in the guest's own time.
#[test]
fn nobody_is_asked_to_ring_who_is_looked_at_anyway() {
    let mut guest = Guest::symbiotic();
    guest.full_ring(199);
    assert!(guest.machine.resumes[0].is_some());
    assert_eq!(guest.look(SYMBIOTIC_DOORBELL), SYMBIOTIC_DOORBELL_IDLE);
    let before = (guest.exits(), guest.machine.physical.wire.len());
    guest.say(TDT, 200);
    guest.ring();
    assert_eq!((guest.exits(), guest.machine.physical.wire.len()), before);
    guest.exit(SYMBIOTIC_RING, 1);
    assert_eq!(guest.machine.physical.wire.len(), before.1, "who rings all the same changes nothing");
    guest.machine.settle();
    assert_eq!(guest.machine.physical.wire.len(), 200);
    assert_eq!(guest.look(SYMBIOTIC_DOORBELL), SYMBIOTIC_DOORBELL_WANTED);
}

/// A call that sends, and then has frames for the guest, does not take the head that has moved meanwhile for what the guest wrote.
#[test]
fn a_head_moves_by_itself() {
    let mut guest = Guest::symbiotic();
    let mut bob = guest.machine.driver(1);
    // A ring of descriptors without buffers: what is received is stored in the guest's own time.
    for (offset, value) in [(0x2800, BUS + 0x4_0000), (0x2808, 0x4000), (0x2810, 0), (0x2818, 1000)] {
        guest.say(offset, value);
    }
    for number in 0..8 {
        assert_eq!(guest.machine.send(1, &mut *bob, &frame(mac(0), mac(1), 60, number)), Sent::Done);
    }
    assert!(guest.machine.resumes[0].is_some());
    guest.full_ring(1);
    guest.machine.settle();
    assert_eq!(guest.machine.physical.wire.len(), 1);
    guest.say(TDT, 2);
    guest.ring();
    assert_eq!(guest.machine.physical.wire.len(), 2, "nothing is sent again");
}

/// Writes a word at the moment when another is shown.
struct Racing {
    words: Words,
    /// Offset and value of the one, then of the other.
    when: (u32, u32),
    then: (u32, u32),
}

impl Mirror for Racing {
    fn show(&mut self, offset: u32, value: u32) {
        if (offset, value) == self.when {
            self.words.show(self.then.0, self.then.1);
        }
        self.words.show(offset, value);
    }
    fn look(&self, offset: u32) -> u32 {
        self.words.look(offset)
    }
}

impl Guest {
    /// From now on the guest writes a word at the moment when another is shown, each an offset and a value.
    fn race(&mut self, when: (u32, u32), then: (u32, u32)) {
        let port = self.machine.ports[0].0;
        let words = self.machine.mirrors[0].0.clone();
        self.machine.shared.vnic_mut(port).unwrap().mirror = Some(Box::new(Racing { words, when, then }));
    }

    /// A ring with 240 descriptors, all of one frame, of which so many are rung for.
    fn full_ring(&mut self, tail: u32) {
        let (ring, at) = (0x2_0000, 0x3_0000);
        let descriptor = u128::from(BUS + at) | 60 << 64 | 0x0b << 88;
        (0..240).for_each(|index| driver_memory(&self.machine, ring + 16 * index, &descriptor.to_le_bytes()));
        driver_memory(&self.machine, at, &frame(ROUTER, mac(0), 60, 1));
        for (offset, value) in [(0x3800, BUS + ring), (0x3808, 256 * 16), (0x3810, 0), (TDT, tail)] {
            self.say(offset, value);
        }
        self.ring();
    }
}

/// A tail that was written while a call was ending is seen by that call, or rung for.
#[test]
fn a_wish_for_a_doorbell_is_said_before_the_last_look() {
    let mut guest = Guest::symbiotic();
    guest.full_ring(200);
    assert!(guest.machine.resumes[0].is_some());
    guest.race((SYMBIOTIC_DOORBELL, SYMBIOTIC_DOORBELL_WANTED), (TDT, 240));
    guest.machine.settle();
    assert_eq!(guest.machine.physical.wire.len(), 240, "nobody rings for what came before the wish");
}

/// A module that says what it waits for just before something is raised is interrupted.
#[test]
fn what_is_raised_is_said_before_it_is_looked_who_waits() {
    let mut guest = Guest::symbiotic();
    let raised = guest.look(SYMBIOTIC_RAISED);
    // It was told of something, polls, and has not said yet for what it waits.
    guest.arrive(1);
    guest.machine.settle();
    assert!(guest.interrupt());
    guest.step();
    guest.step();
    assert_eq!(guest.poll, Poll::Done(raised + 1));
    guest.race((SYMBIOTIC_RAISED, raised + 2), (SYMBIOTIC_EVENT, raised + 1));
    guest.arrive(2);
    guest.machine.settle();
    assert!(guest.machine.line(0));
}

/// A module that finds that somebody is to look, and says just before he does what it waits for, is interrupted.
#[test]
fn that_nobody_is_to_look_is_said_before_the_last_look() {
    let mut guest = Guest::symbiotic();
    let raised = guest.look(SYMBIOTIC_RAISED);
    guest.arrive(1);
    while !guest.interrupt() {
        guest.physical();
    }
    guest.step();
    guest.step();
    // Too early for another one.
    guest.arrive(2);
    while guest.look(SYMBIOTIC_RAISED) == raised + 1 {
        guest.physical();
    }
    assert_eq!(guest.look(SYMBIOTIC_HELD), 1);
    guest.race((SYMBIOTIC_HELD, 0), (SYMBIOTIC_EVENT, raised + 1));
    guest.machine.settle();
    assert!(guest.machine.line(0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Whatever comes between two steps of the module: every frame gets where it is to, once, in order, without anybody polling who was
    /// not told.
    #[test]
    fn nothing_is_lost_between_two_steps(steps in proptest::collection::vec(0u8..24, 1..400)) {
        let mut guest = Guest::new();
        let (mut sent, mut arrived) = (vec![], vec![]);
        for (number, step) in (0..).zip(steps) {
            match step {
                0..=7 => guest.step(),
                8 | 9 => drop(guest.interrupt()),
                10 | 11 => {
                    guest.arrive(number);
                    arrived.push(number);
                }
                12..=14 => guest.physical(),
                15 | 16 => {
                    guest.send(number);
                    sent.push(number);
                    if step == 15 {
                        guest.ring();
                    }
                }
                17 => guest.ring(),
                18 => guest.machine.resume_if_due(0),
                19 => guest.machine.now += 1_000_000,
                20 | 21 => {
                    if guest.machine.shared.deadline().is_some_and(|at| at <= guest.machine.now) {
                        guest.machine.with(|shared, env| shared.poll(env));
                    }
                }
                // The module comes and goes. Its poll is over when it goes.
                22 => {
                    (0..8).for_each(|_| guest.step());
                    guest.exit(SYMBIOTIC_CONTROL, SYMBIOTIC_END);
                }
                _ => guest.begin(),
            }
        }
        guest.ring();
        guest.settle();
        prop_assert_eq!(&guest.got, &arrived);
        prop_assert_eq!(marks(&guest.machine.physical.wire), sent);
        prop_assert_eq!(guest.machine.counters(0).refused, 0);
    }

    /// A guest writes anything anywhere, and its neighbour's frames come and go, whole and in order. What a call does for it is bounded.
    #[test]
    fn a_guest_that_writes_anything_harms_nobody(
        steps in proptest::collection::vec((0u8..16, any::<u16>(), any::<u32>()), 1..300),
    ) {
        let mut machine = Machine::shared(NicModel::E1000, &[NicModel::E1000; 2], DirectPolicy::Never);
        machine.driver(0);
        let mut bob = machine.driver(1);
        let (mut sent, mut arrived, mut got) = (vec![], vec![], vec![]);
        let moved = Rc::clone(&machine.guests.0[0].1);
        for (number, (step, at, value)) in (0..).zip(steps) {
            moved.take();
            let small = value & 0xff;
            let (page, word) = (u32::from(at) % 3, u32::from(at >> 2) & 0x3fc);
            match step {
                // Memory or not, in the pages of rings and in the module's.
                0..=5 => {
                    let start = [0x2800, 0x3800, SYMBIOTIC_PAGE][page as usize];
                    let offset = start + word % 0x48;
                    let value = if at & 1 == 0 { value } else { small };
                    machine.drive(0, |card| card.registers.write(offset as u16, 4, value));
                }
                6 | 7 => machine.drive(0, |card| card.registers.write(SYMBIOTIC_RING as u16, 4, value)),
                8 => machine.drive(0, |card| {
                    card.registers.write(SYMBIOTIC_CONTROL as u16, 4, u32::from(at % 4 != 0));
                }),
                9 => machine.drive(0, |card| card.registers.write(at % 0x6000, 4, value)),
                10 => machine.end_of_interrupt(0),
                11 => {
                    driver_memory(&machine, value % 0x7_0000, &u128::from(BUS + value % 0x7_0000).to_le_bytes());
                }
                12 | 13 => {
                    let frame = frame(ROUTER, mac(1), 60, number);
                    prop_assert_eq!(machine.send(1, &mut *bob, &frame), Sent::Done);
                    sent.push(frame);
                }
                14 => {
                    machine.physical.arriving.push_back(frame(mac(1), ROUTER, 60, number));
                    arrived.push(number);
                }
                _ => {
                    machine.now += 1_000_000;
                    (0..3).for_each(|_| machine.physical.after());
                    machine.with(|shared, env| shared.interrupt(env));
                    machine.with(|shared, env| shared.poll(env));
                }
            }
            if step < 14 {
                let moved = moved.take();
                prop_assert!(moved.bytes <= bounds::MOST_BYTES && moved.transfers <= bounds::MOST_TRANSFERS, "{:?}", moved);
            }
            if number % 16 == 0 {
                got.extend(marks(&machine.take(1, &mut *bob)));
            }
        }
        for _ in 0..6 {
            machine.settle();
            got.extend(marks(&machine.take(1, &mut *bob)));
        }
        let from_bob = |frame: &&Vec<u8>| frame.get(6..12) == Some(&mac(1));
        let wire: Vec<&Vec<u8>> = machine.physical.wire.iter().filter(from_bob).collect();
        prop_assert!(wire == sent.iter().collect::<Vec<_>>());
        let own = got.iter().filter(|number| arrived.contains(number)).copied().collect::<Vec<u32>>();
        prop_assert_eq!(own, arrived);
    }
}
