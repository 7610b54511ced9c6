//! The card seems a client's own: the same well-formed operations on a bare card and through the
//! monitor, with another client taking the card in between, read the same values and send the same
//! frames.

mod common;

use common::driver::Driver;
use common::schedule::drive;
use common::{OUTSIDE, TIMING, World, frame, mac};
use proptest::prelude::*;
use sluice_nic::Ne2000;
use sluice_vpio::{RawDevice, RegisterAccess};

#[derive(Clone, Debug)]
enum Operation {
    Write {
        at: u16,
        bytes: Vec<u8>,
        width: u8,
    },
    Read {
        at: u16,
        len: usize,
        width: u8,
    },
    Send {
        page: u8,
        len: u16,
    },
    Receive {
        len: usize,
        group: bool,
    },
    Look {
        page: u8,
    },
    Filter {
        at: u16,
        value: u8,
    },
    Consume,
    /// The other client uses the card.
    Other,
    /// Time passes.
    Pass,
}

fn operation() -> impl Strategy<Value = Operation> {
    let width = prop_oneof![Just(2u8), Just(4)];
    prop_oneof![
        3 => (0x4000u16..0x4b00, proptest::collection::vec(any::<u8>(), 1..75), width.clone()).prop_map(
            |(at, words, width)| Operation::Write {
                at: at & !3,
                bytes: words.iter().flat_map(|byte| [*byte; 4]).collect(),
                width
            }
        ),
        3 => (0x4000u16..0x7e00, 1usize..100, width)
            .prop_map(|(at, len, width)| Operation::Read { at: at & !3, len: len * 4, width }),
        3 => (0x40u8..0x4a, 60u16..600).prop_map(|(page, len)| Operation::Send { page, len }),
        3 => (60usize..1500, any::<bool>()).prop_map(|(len, group)| Operation::Receive { len, group }),
        2 => (0u8..3).prop_map(|page| Operation::Look { page }),
        1 => (1u16..16, any::<u8>()).prop_map(|(at, value)| Operation::Filter { at, value }),
        2 => Just(Operation::Consume),
        3 => Just(Operation::Other),
        1 => Just(Operation::Pass),
    ]
}

/// Anything with the ports of a card.
trait Ports {
    fn access(&mut self, access: RegisterAccess<'_>) -> u32;
    fn inb(&mut self, offset: u16) -> u8 {
        self.access(RegisterAccess::Read { offset, width: 1 }) as u8
    }
    fn outb(&mut self, offset: u16, value: u8) {
        self.access(RegisterAccess::Write { offset, width: 1, value: value.into() });
    }
    fn remote(&mut self, at: u16, len: usize, command: u8) {
        let len = len as u16;
        for (to, value) in [
            (0, 0x22),
            (0x0a, len as u8),
            (0x0b, (len >> 8) as u8),
            (8, at as u8),
            (9, (at >> 8) as u8),
            (0, command),
        ] {
            self.outb(to, value);
        }
    }
    fn finish(&mut self) -> u8 {
        let status = self.inb(7);
        self.outb(7, 0x40);
        self.outb(0, 0x22);
        status
    }

    /// What the client sees of an operation.
    fn perform(&mut self, operation: &Operation) -> Vec<u8> {
        match operation {
            Operation::Write { at, bytes, width } => {
                self.remote(*at, bytes.len(), 0x12);
                self.access(RegisterAccess::WriteString { offset: 0x10, width: *width, from: bytes });
                vec![self.finish()]
            }
            Operation::Read { at, len, width } => {
                let mut seen = vec![0; *len];
                self.remote(*at, *len, 0x0a);
                self.access(RegisterAccess::ReadString { offset: 0x10, width: *width, into: &mut seen });
                seen.extend([self.inb(8), self.inb(9), self.finish()]);
                seen
            }
            Operation::Send { page, len } => {
                self.outb(5, *len as u8);
                self.outb(6, (*len >> 8) as u8);
                self.outb(4, *page);
                self.outb(0, 0x26);
                let seen = vec![self.inb(7), self.inb(4), self.inb(0)];
                self.outb(7, 2);
                seen
            }
            Operation::Look { page } => {
                self.outb(0, 0x22 | page << 6);
                let seen = (0..16).map(|at| self.inb(at)).collect();
                self.outb(0, 0x22);
                seen
            }
            Operation::Filter { at, value } if *at != 7 => {
                self.outb(0, 0x62);
                self.outb(*at, *value);
                let seen = vec![self.inb(*at)];
                self.outb(0, 0x22);
                seen
            }
            Operation::Consume => {
                self.outb(0, 0x62);
                let current = self.inb(7);
                self.outb(0, 0x22);
                self.outb(3, if current == 0x4c { 0x7f } else { current - 1 });
                self.outb(7, 1);
                vec![current, self.inb(3), self.inb(7)]
            }
            _ => Vec::new(),
        }
    }

    fn set_up(&mut self) {
        for (at, value) in [
            (0, 0x21),
            (0x0e, 0x49),
            (0x0a, 0),
            (0x0b, 0),
            (0x0c, 0x20),
            (0x0d, 2),
            (4, 0x40),
            (5, 60),
            (6, 0),
            (1, 0x4c),
            (3, 0x7f),
            (2, 0x80),
            (7, 0xff),
            (0x0f, 0x3f),
            (8, 0),
            (9, 0x40),
            (0, 0x61),
            (7, 0x4c),
            (0, 0x22),
            (0x0d, 0),
            (0x0c, 0x0c),
        ] {
            self.outb(at, value);
        }
    }
}

impl Ports for Ne2000 {
    fn access(&mut self, access: RegisterAccess<'_>) -> u32 {
        match access {
            RegisterAccess::Read { offset, width } => return self.read(offset, width),
            RegisterAccess::Write { offset, width, value } => self.write(offset, width, value),
            RegisterAccess::ReadString { offset, width, into } => self.read_string(offset, width, into),
            RegisterAccess::WriteString { offset, width, from } => self.write_string(offset, width, from),
        }
        0
    }
}

struct Guest<'a>(&'a std::cell::RefCell<World>);

impl Ports for Guest<'_> {
    fn access(&mut self, mut access: RegisterAccess<'_>) -> u32 {
        for _ in 0..1000 {
            let again = match &mut access {
                RegisterAccess::Read { offset, width } => {
                    RegisterAccess::Read { offset: *offset, width: *width }
                }
                RegisterAccess::Write { offset, width, value } => {
                    RegisterAccess::Write { offset: *offset, width: *width, value: *value }
                }
                RegisterAccess::ReadString { offset, width, into } => {
                    RegisterAccess::ReadString { offset: *offset, width: *width, into }
                }
                RegisterAccess::WriteString { offset, width, from } => {
                    RegisterAccess::WriteString { offset: *offset, width: *width, from }
                }
            };
            let done = self.0.borrow_mut().io(0, again);
            match done {
                Some(value) => return value,
                None => self.0.borrow_mut().pass(20_000),
            }
        }
        panic!("waited for ever: {:?}", self.0.borrow().monitor.holder());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_card_of_its_own(operations in proptest::collection::vec(operation(), 1..60), share in any::<bool>()) {
        let world = World::new(2, 3, TIMING);
        let mut other = vec![];
        let mut bare = Ne2000::new(mac(0));
        let mut guest = Guest(&world);
        bare.set_up();
        guest.set_up();
        if share {
            other.push(Driver::new(&world, 1));
        }
        for (step, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Receive { len, group } => {
                    let to = if *group { [0xff; 6] } else { mac(0) };
                    let frame = frame(to, OUTSIDE, step as u32, step as u8, *len);
                    if bare.fits(frame.len()) {
                        bare.receive(&frame);
                        world.borrow_mut().hw.arriving.push_back(frame);
                        world.borrow_mut().pass(1_000);
                    }
                }
                Operation::Other => {
                    for _ in 0..if other.is_empty() { 0 } else { 120 } {
                        other[0].step();
                    }
                }
                Operation::Pass => world.borrow_mut().pass(100_000),
                // QEMU reads MAR4-7 and RSR, among others, alike; the other client's frames and
                // the monitor's own work must not show in any of them.
                _ => prop_assert_eq!(bare.perform(operation), guest.perform(operation), "{} {:?}", step, operation),
            }
            let mut sent = [0; 0x8000];
            let bare_sent = bare.take_transmitted(&mut sent).map(|len| sent[..len].to_vec());
            let mut world = world.borrow_mut();
            let guest_sent = world.hw.sent.iter().position(|(who, _)| *who == 0).map(|at| world.hw.sent.remove(at).1);
            prop_assert_eq!(bare_sent, guest_sent);
        }
        if share {
            // The other was not harmed either.
            drive(&world, &mut other, 3, 200_000, |_, other| other[0].mail.borrow().started);
        }
    }
}

// The trait of the crate is implemented by the hardware in `common`.
const _: fn(&mut common::Hardware) -> &mut dyn RawDevice = |hardware| hardware;
