//! A physical disk: registers, an admin queue, and pairs of queues, as the specification has them and no more lenient.

use super::answers;
use crate::command::{admin, io};
use crate::engine::Hardware;
use crate::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS, ENABLE, ENTRIES, FATAL, READY};
use crate::{Command, PAGE, Shared, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

/// Where the disk finds the memory of the hypervisor.
pub const BUS: u64 = 0x12_3456_7000;

/// Memory that the hypervisor and the disk share.
#[derive(Clone)]
pub struct Region(Rc<RefCell<Vec<u8>>>);

impl Region {
    /// Full of what was there before.
    pub fn new(bytes: usize) -> Self {
        Self(Rc::new(RefCell::new(vec![0xcc; bytes])))
    }

    pub fn get(&self, at: u64, into: &mut [u8]) {
        let at = at.checked_sub(BUS).expect("inside") as usize;
        into.copy_from_slice(&self.0.borrow()[at..at + into.len()]);
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let at = at.checked_sub(BUS).expect("inside") as usize;
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Shared for Region {
    fn bus(&self) -> u64 {
        BUS
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(bytes) = self.0.borrow().get(offset..offset + into.len()) {
            into.copy_from_slice(bytes);
        }
    }

    fn read_word(&self, offset: usize) -> u32 {
        let mut word = [0xff; 4];
        self.read(offset, &mut word);
        u32::from_le_bytes(word)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(part) = self.0.borrow_mut().get_mut(offset..offset + bytes.len()) {
            part.copy_from_slice(bytes);
        }
    }
}

/// A queue of completions.
#[derive(Clone, Copy, Debug)]
struct Completions {
    at: u64,
    size: u16,
    tail: u16,
    head: u16,
    phase: bool,
    pub vector: u16,
}

/// A queue of commands.
#[derive(Clone, Copy, Debug)]
struct Submissions {
    at: u64,
    size: u16,
    head: u16,
    by: u16,
}

/// What is wrong with a disk.
#[derive(Clone, Debug)]
pub struct Kind {
    pub capabilities: u64,
    pub most: u8,
    pub shift: u8,
    pub metadata: bool,
    /// Queues of each kind, besides those of the admin.
    pub queues: u16,
    /// It never gets ready.
    pub sleeps: bool,
    /// It never gets off.
    pub stays: bool,
    /// It does not answer commands of the admin from this opcode on.
    pub ignores: Option<u8>,
    /// It fails this one.
    pub refuses: Option<u8>,
    /// It is not there any more.
    pub gone: bool,
    /// It answers what nobody has asked, before each answer.
    pub chats: bool,
}

impl Default for Kind {
    fn default() -> Self {
        // Queues of 1024 entries, 2 s, the command set of disks, pages of 4 KiB to 8 MiB.
        let capabilities = 1023 | 1 << 16 | 4 << 24 | 1 << 37 | 11 << 52;
        Self {
            capabilities,
            most: 5,
            shift: 9,
            metadata: false,
            queues: 16,
            sleeps: false,
            stays: false,
            ignores: None,
            refuses: None,
            gone: false,
            chats: false,
        }
    }
}

#[derive(Default)]
struct State {
    registers: BTreeMap<u32, u32>,
    ready: bool,
    fatal: bool,
    submissions: BTreeMap<u16, Submissions>,
    completions: BTreeMap<u16, Completions>,
    /// Commands that it has, by queue.
    held: Vec<(u16, Command)>,
}

pub struct Disk {
    pub kind: RefCell<Kind>,
    memory: Region,
    state: RefCell<State>,
    /// Microseconds that it was waited for.
    pub waited: Cell<u64>,
}

impl Disk {
    pub fn new(kind: Kind, memory: Region) -> Rc<Self> {
        Rc::new(Self { kind: RefCell::new(kind), memory, state: RefCell::default(), waited: Cell::new(0) })
    }

    /// Commands of a queue that it has, in the order in which it got them.
    pub fn held(&self, queue: u16) -> Vec<Command> {
        self.state.borrow().held.iter().filter(|(by, _)| *by == queue).map(|(_, command)| *command).collect()
    }

    /// Numbers of its queues: of commands, and of completions.
    pub fn queues(&self) -> (Vec<u16>, Vec<u16>) {
        let state = self.state.borrow();
        (state.submissions.keys().copied().collect(), state.completions.keys().copied().collect())
    }

    /// Which message tells of the completions of a queue.
    pub fn vector(&self, queue: u16) -> u16 {
        self.state.borrow().completions[&queue].vector
    }

    pub fn is_on(&self) -> bool {
        self.state.borrow().ready
    }

    /// It cannot go on.
    pub fn fail(&self) {
        self.state.borrow_mut().fatal = true;
    }

    /// Ends a command that it has.
    pub fn end(&self, queue: u16, id: u16, status: Status) {
        let mut state = self.state.borrow_mut();
        let place = state.held.iter().position(|(by, command)| (*by, command.id()) == (queue, id));
        state.held.remove(place.expect("it has the command"));
        self.complete(&mut state, queue, id, status, 0);
    }

    fn complete(&self, state: &mut State, queue: u16, id: u16, status: Status, result: u32) {
        let submissions = state.submissions[&queue];
        let completions = state.completions.get_mut(&submissions.by).expect("it is there for long enough");
        assert_ne!((completions.tail + 1) % completions.size, completions.head, "there is no room");
        let words = [
            result,
            0xeeee_eeee,
            u32::from(queue) << 16 | u32::from(submissions.head),
            u32::from(id) | u32::from(completions.phase) << 16 | u32::from(status.0) << 17,
        ];
        for (index, word) in words.into_iter().enumerate() {
            let at = completions.at + u64::from(completions.tail) * 16 + 4 * index as u64;
            self.memory.put(at, &word.to_le_bytes());
        }
        completions.tail = (completions.tail + 1) % completions.size;
        completions.phase ^= completions.tail == 0;
    }

    fn configure(&self, state: &mut State, value: u32) {
        let kind = self.kind.borrow();
        if value & ENABLE == 0 {
            if !kind.stays {
                *state = State { registers: std::mem::take(&mut state.registers), ..State::default() };
            }
            return;
        }
        assert_eq!(value, ENABLE | ENTRIES);
        assert!(!state.ready, "it was switched off before");
        let register = |at| state.registers.get(&at).copied().unwrap_or_default();
        let wide = |at| u64::from(register(at)) | u64::from(register(at + 4)) << 32;
        let size = |shift: u32| (register(AQA) >> shift & 0xfff) as u16 + 1;
        let (submissions, completions) = (wide(ASQ), wide(ACQ));
        assert_eq!((submissions % PAGE, completions % PAGE), (0, 0));
        let queue = Submissions { at: submissions, size: size(0), head: 0, by: 0 };
        let tell = Completions { at: completions, size: size(16), tail: 0, head: 0, phase: true, vector: 0 };
        state.submissions.insert(0, queue);
        state.completions.insert(0, tell);
        state.ready = !kind.sleeps;
    }

    fn ring(&self, state: &mut State, doorbell: u16, value: u16) {
        assert!(state.ready, "nobody rings at a disk that is off");
        let queue = doorbell / 2;
        if doorbell % 2 == 1 {
            let completions = state.completions.get_mut(&queue).expect("there is such a queue");
            assert!(value < completions.size);
            completions.head = value;
            return;
        }
        loop {
            let submissions = state.submissions.get_mut(&queue).expect("there is such a queue");
            assert!(value < submissions.size);
            if submissions.head == value {
                break;
            }
            let mut raw = [0; Command::SIZE];
            self.memory.get(submissions.at + u64::from(submissions.head) * Command::SIZE as u64, &mut raw);
            submissions.head = (submissions.head + 1) % submissions.size;
            let command = Command::decode(&raw);
            if queue > 0 {
                let known =
                    matches!(command.opcode(), io::FLUSH | io::READ | io::WRITE | io::ZEROES | io::DATASET);
                assert!(known, "{command:?}");
                let is_new = |(by, other): &(u16, Command)| (*by, other.id()) != (queue, command.id());
                assert!(state.held.iter().all(is_new), "two commands of the same number");
                state.held.push((queue, command));
                continue;
            }
            self.administer(state, &command);
        }
    }

    fn administer(&self, state: &mut State, command: &Command) {
        let kind = self.kind.borrow();
        if kind.ignores == Some(command.opcode()) {
            return;
        }
        if kind.chats {
            self.complete(state, 0, command.id() ^ 0x8000, Status::FIELD, 0xbad);
        }
        let refused = (Status::OPCODE, 0);
        let answer =
            if kind.refuses == Some(command.opcode()) { refused } else { self.act(state, command, &kind) };
        self.complete(state, 0, command.id(), answer.0, answer.1);
    }

    fn act(&self, state: &mut State, command: &Command, kind: &Kind) -> (Status, u32) {
        let (done, at) = ((Status::SUCCESS, 0), command.prp().0);
        let (number, size) = (command.0[10] as u16, (command.0[10] >> 16) as u16 + 1);
        let (mut controller, mut namespace) = answers(kind.most, 0, true, kind.shift);
        controller[4..24].copy_from_slice(b"ANOTHER-SERIAL-00002");
        namespace[128] = if kind.metadata { 8 } else { 0 };
        match command.opcode() {
            admin::IDENTIFY => {
                match (command.0[10], command.namespace()) {
                    (1, 0) => self.memory.put(at, &controller),
                    (0, 1) => self.memory.put(at, &namespace),
                    other => panic!("{other:?}"),
                }
                done
            }
            admin::LOG => {
                assert_eq!((command.0[10] & 0xff, command.0[11], command.namespace()), (2, 0, u32::MAX));
                assert_eq!((command.0[10] >> 16) + 1, 128);
                let mut log = [0xee; 512];
                log[..6].copy_from_slice(&[0, 0x2c, 0x01, 99, 10, 1]);
                self.memory.put(at, &log);
                done
            }
            admin::SET_FEATURES => {
                assert_eq!(command.0[10], 7);
                let given = u32::from(kind.queues - 1);
                (Status::SUCCESS, given | given << 16)
            }
            admin::CREATE_COMPLETIONS => {
                assert!(number > 0 && number <= kind.queues && !state.completions.contains_key(&number));
                assert!(u64::from(size - 1) <= kind.capabilities & 0xffff && at % PAGE == 0);
                assert_eq!(command.0[11] & 0xffff, 0b11, "in one piece, with interrupts");
                let mut page = [0; PAGE as usize];
                self.memory.get(at, &mut page);
                assert_eq!(page, [0; PAGE as usize], "no entry has a phase tag");
                let vector = (command.0[11] >> 16) as u16;
                state
                    .completions
                    .insert(number, Completions { at, size, tail: 0, head: 0, phase: true, vector });
                done
            }
            admin::CREATE_SUBMISSIONS => {
                let by = (command.0[11] >> 16) as u16;
                assert!(number > 0 && !state.submissions.contains_key(&number) && at % PAGE == 0);
                assert!(by > 0 && state.completions.contains_key(&by) && command.0[11] & 0xffff == 1);
                state.submissions.insert(number, Submissions { at, size, head: 0, by });
                done
            }
            admin::DELETE_SUBMISSIONS => {
                let lost: Vec<_> = state.held.extract_if(.., |(by, _)| *by == number).collect();
                for (_, command) in lost {
                    self.complete(state, number, command.id(), Status(0x08), 0);
                }
                assert!(state.submissions.remove(&number).is_some());
                done
            }
            admin::DELETE_COMPLETIONS => {
                assert!(state.submissions.values().all(|submissions| submissions.by != number));
                assert!(state.completions.remove(&number).is_some());
                done
            }
            other => panic!("nobody asks for {other:#x}"),
        }
    }
}

impl Hardware for Rc<Disk> {
    fn read(&self, offset: u32) -> u32 {
        let (state, kind) = (self.state.borrow(), self.kind.borrow());
        match offset {
            _ if kind.gone => u32::MAX,
            CAP => kind.capabilities as u32,
            0x04 => (kind.capabilities >> 32) as u32,
            CSTS => u32::from(state.ready) * READY + u32::from(state.fatal) * FATAL,
            other => panic!("nobody reads {other:#x}"),
        }
    }

    fn write(&self, offset: u32, value: u32) {
        if self.kind.borrow().gone {
            return;
        }
        let mut state = self.state.borrow_mut();
        match offset {
            CC => self.configure(&mut state, value),
            AQA | ASQ | ACQ | 0x2c | 0x34 => {
                assert!(!state.ready, "it is off");
                state.registers.insert(offset, value);
            }
            DOORBELLS.. => self.ring(&mut state, ((offset - DOORBELLS) / 4) as u16, value as u16),
            other => panic!("nobody writes {other:#x}"),
        }
    }

    fn delay_us(&self, us: u64) {
        self.waited.set(self.waited.get() + us);
    }
}
