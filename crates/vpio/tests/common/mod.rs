//! A machine in miniature: a software NE2000 as the hardware, the monitor, and drivers that behave
//! as lib8390 does, each of which can be stopped before any single access.
//!
//! Accesses whose hook bit is clear go straight to the hardware, as they would on a processor.
//! Frames arrive between any two accesses to the hardware, the monitor's own included.
#![allow(dead_code)]

pub mod driver;
pub mod schedule;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use sluice_model::HookSet;
use sluice_nic::Ne2000;
use sluice_nic::ne2000::Reception;
use sluice_vpio::{ClientId, Monitor, Outcome, RawDevice, Refusal, RegisterAccess, Timing};

/// The card, the wire behind it, and a random clock of arrivals.
pub struct Hardware {
    pub nic: Ne2000,
    /// Frames not yet received; the back end tries again when the card was full or stopped.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames sent, with the client that was running.
    pub sent: Vec<(usize, Vec<u8>)>,
    pub running: usize,
    random: u64,
    /// A pending frame arrives at about one access in this many.
    pub pace: u64,
    pub stopped_drops: u64,
    /// The back end spares the card the frame that would make it overwrite its ring.
    pub careful: bool,
}

impl Hardware {
    fn after(&mut self) {
        let mut frame = [0; 0x1_0000];
        if let Some(len) = self.nic.take_transmitted(&mut frame) {
            self.sent.push((self.running, frame[..len].to_vec()));
        }
        if self.arriving.is_empty() {
            return;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.random.is_multiple_of(self.pace) {
            self.arrive();
        }
    }

    pub fn arrive(&mut self) {
        if let Some(frame) = self.arriving.front() {
            if self.careful && !self.nic.fits(frame.len()) && !self.nic.regs.stopped() {
                return;
            }
            match self.nic.receive(frame) {
                Reception::Stored | Reception::Filtered => drop(self.arriving.pop_front()),
                Reception::Full => {}
                Reception::Stopped => self.stopped_drops += 1,
            }
        }
    }
}

impl RawDevice for Hardware {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let value = self.nic.read(offset, width);
        self.after();
        value
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

/// Accesses of one client, as elements and as instructions.
#[derive(Default, Clone, Copy, Debug)]
pub struct Tally {
    pub direct: (u64, u64),
    pub hooked: (u64, u64),
    pub exits: u64,
}

impl std::ops::Sub for Tally {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        let pair = |a: (u64, u64), b: (u64, u64)| (a.0 - b.0, a.1 - b.1);
        Self {
            direct: pair(self.direct, other.direct),
            hooked: pair(self.hooked, other.hooked),
            exits: self.exits - other.exits,
        }
    }
}

impl Tally {
    pub fn hooked_elements_percent(&self) -> f64 {
        100.0 * self.hooked.0 as f64 / (self.hooked.0 + self.direct.0) as f64
    }
    pub fn hooked_instructions_percent(&self) -> f64 {
        100.0 * self.hooked.1 as f64 / (self.hooked.1 + self.direct.1) as f64
    }
}

pub struct World {
    pub hw: Hardware,
    pub monitor: Monitor,
    pub clients: Vec<ClientId>,
    pub hooks: Vec<HookSet>,
    pub lines: Vec<bool>,
    pub tallies: Vec<Tally>,
    /// Frames for each client that wait for its window.
    pub source: Vec<VecDeque<Vec<u8>>>,
    pub offered: Vec<usize>,
    pub now: u64,
    /// Nanoseconds per access.
    pub tick: u64,
    /// Frames a driver takes per interrupt. Linux takes 9 and then acknowledges, which on this
    /// card stalls natively until one more frame arrives; tests that end want all.
    pub receive_limit: usize,
    masked: bool,
    next_poll: u64,
    pub physical_interrupts: u64,
    /// The client's line was seen by its interrupt controller and not ended yet.
    pub woken: u64,
}

pub const TIMING: Timing = Timing {
    grace: 50_000,
    sole_grace: 300_000,
    min_hold: 20_000,
    max_wait: 400_000,
    undivide_after: 1_000_000,
    watch: 200_000,
    quiet: 1_000,
};

pub fn mac(index: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0x77, index as u8]
}

/// Payload byte of frames from or to a client.
pub fn mark(index: usize) -> u8 {
    0xa0 + index as u8
}

impl World {
    pub fn new(count: usize, seed: u64, timing: Timing) -> Rc<RefCell<Self>> {
        let mut monitor = Monitor::for_device(0x10ec, 0x8029, timing).unwrap();
        let clients: Vec<_> = (0..count).map(|index| monitor.attach(mac(index)).unwrap()).collect();
        let mut world = Self {
            hw: Hardware {
                nic: Ne2000::new([0x00, 0x0e, 0x2e, 1, 2, 3]),
                arriving: VecDeque::new(),
                sent: Vec::new(),
                running: usize::MAX,
                random: seed | 1,
                pace: 20,
                stopped_drops: 0,
                careful: true,
            },
            monitor,
            hooks: vec![HookSet::NONE; count],
            lines: vec![false; count],
            tallies: vec![Tally::default(); count],
            source: vec![VecDeque::new(); count],
            offered: vec![0; count],
            clients,
            now: 1_000_000,
            tick: 1_000,
            receive_limit: 1000,
            masked: false,
            next_poll: 0,
            physical_interrupts: 0,
            woken: 0,
        };
        world.apply_changes();
        Rc::new(RefCell::new(world))
    }

    /// What a hypervisor does before guests run again.
    pub fn apply_changes(&mut self) {
        for _ in 0..8 {
            if self.hw.nic.interrupt() && !self.masked {
                self.masked = true;
                self.physical_interrupts += 1;
                self.monitor.interrupt(&mut self.hw, self.now);
            }
            if self.now >= self.next_poll || self.woken > 0 {
                self.woken = 0;
                self.next_poll = self.monitor.poll(&mut self.hw, self.now).unwrap_or(u64::MAX);
                assert!(self.next_poll > self.now);
            }
            let changes = self.monitor.changes();
            for (index, client) in self.clients.iter().enumerate() {
                if changes.hooks & client.bit() != 0 {
                    self.hooks[index] = self.monitor.hooks(*client);
                }
                if changes.lines & client.bit() != 0 {
                    self.lines[index] = self.monitor.line(*client);
                }
                assert_eq!(self.hooks[index], self.monitor.hooks(*client), "unreported hooks");
                assert_eq!(self.lines[index], self.monitor.line(*client), "unreported line");
            }
            self.masked &= !self.monitor.physical_unmask();
            // As the hypervisor does: a line alone moves no handoff along.
            if changes.hooks | changes.wake != 0 || changes.poll {
                self.woken += 1;
            } else if !self.hw.nic.interrupt() || self.masked {
                break;
            }
        }
    }

    pub fn end_of_interrupt(&mut self, index: usize) {
        self.monitor.end_of_interrupt(self.clients[index]);
        self.apply_changes();
    }

    /// Time passes.
    pub fn pass(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        self.hw.running = usize::MAX;
        self.hw.arrive();
        self.apply_changes();
    }

    /// One access of a guest; `None` if it has to wait.
    pub fn io(&mut self, index: usize, access: RegisterAccess<'_>) -> Option<u32> {
        let client = self.clients[index];
        self.now += self.tick;
        if !self.monitor.may_run(client) {
            self.apply_changes();
            return None;
        }
        self.hw.running = index;
        let (offset, width) = access.place();
        let elements = access.elements();
        let hooked = self.hooks[index].catches(offset, width);
        let result = if hooked {
            self.tallies[index].exits += 1;
            let outcome = self.monitor.access(&mut self.hw, client, self.now, access);
            self.woken += u64::from(self.monitor.is_due(self.now));
            match outcome {
                Outcome::Wait => None,
                Outcome::Done(value) | Outcome::Refused(Refusal { value, .. }) => Some(value),
            }
        } else {
            self.tallies[index].direct.0 += elements;
            self.tallies[index].direct.1 += 1;
            Some(match access {
                RegisterAccess::Read { offset, width } => self.hw.read(offset, width),
                RegisterAccess::Write { offset, width, value } => {
                    self.hw.write(offset, width, value);
                    0
                }
                RegisterAccess::ReadString { offset, width, into } => {
                    self.hw.read_string(offset, width, into);
                    0
                }
                RegisterAccess::WriteString { offset, width, from } => {
                    self.hw.write_string(offset, width, from);
                    0
                }
            })
        };
        if result.is_some() && hooked {
            self.tallies[index].hooked.0 += elements;
            self.tallies[index].hooked.1 += 1;
        }
        self.apply_changes();
        result
    }
}

/// A frame between the outside and a client: destination, source, number, then the mark.
pub fn frame(to: [u8; 6], from: [u8; 6], number: u32, mark: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![mark; len.max(18)];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_le_bytes());
    bytes
}

pub fn number(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[14..18].try_into().unwrap())
}

pub const OUTSIDE: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];

/// Puts a client on-line with accesses that never wait.
pub fn start(world: &RefCell<World>, index: usize) {
    for (offset, value) in [
        (0, 0x21),
        (0x0e, 0x49),
        (1, 0x4c),
        (2, 0x80),
        (3, 0x7f),
        (4, 0x40),
        (5, 60),
        (6, 0),
        (0, 0x61),
        (7, 0x4c),
        (0, 0x22),
        (0x0d, 0),
        (0x0f, 0x3f),
        (0x0c, 0x0c),
    ] {
        let write = RegisterAccess::Write { offset, width: 1, value };
        assert!(world.borrow_mut().io(index, write).is_some(), "configuring waits for nobody");
    }
}
