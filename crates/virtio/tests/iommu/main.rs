//! A driver of an IOMMU, as Linux's is, and devices behind it that check what is asked of them. What they do is in [`cases`], one after the other, and in [`sequences`], at
//! random beside a plain model.

mod cases;
mod sequences;

use sluice_virtio::iommu::{self, AT_ONCE, Behind, Iommu, REQUESTS, Refused, Served, endpoint};
use sluice_virtio::{Changes, Device, Fault, Issues, Kind, Memory, Status, features, pci};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

const PAGE: u64 = 4096;
/// A piece of memory that a chain names: address, length, flags.
type Piece = (u64, u32, u16);

/// The memory of the guest that its driver uses begins here.
const START: u64 = 0x10_0000;
/// What the queue has of it, after descriptors: available ring, used ring, and rooms for requests and their answers.
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const ROOMS: u64 = 0x3000;
/// Bytes of a room, and where the answer is in it.
const ROOM: u64 = 0x100;
const ANSWER: u64 = 0x80;
/// Entries of the queue. A request takes two descriptors.
const ENTRIES: u16 = 256;
/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// What nobody has written an answer to.
const UNWRITTEN: u8 = 0xaa;

/// Addresses of devices.
const ADDRESSES: RangeInclusive<u64> = 0x10_0000..=0x3fff_ffff;
/// The first page in them.
const FIRST: u64 = 0x100;
/// Pages that a device can have tables for.
const SIZE: u64 = 0x4_0000;
/// End of the guest's memory.
const MEMORY: u64 = 0x4000_0000;

/// States of answers.
const DONE: u8 = 0;
const UNSUPPORTED: u8 = 2;
const INVALID: u8 = 4;
const OUT_OF_RANGE: u8 = 5;
const NO_ENTRY: u8 = 6;
const NO_MEMORY: u8 = 8;

/// Bytes of an answer, and of that to a probe.
const SHORT: u32 = 4;
const LONG: u32 = 28;

/// What devices reach: memory, and whether it may be written, by slot and page.
type Reach = BTreeMap<(u8, u64), (u64, bool)>;

/// The devices behind an IOMMU.
struct Devices {
    there: BTreeSet<u8>,
    open: BTreeSet<u8>,
    reach: Reach,
    /// Pages that there are tables for.
    room: usize,
    /// Most pages of one step of mapping.
    mapped_at_once: u64,
    /// Most pages of one step that are taken back, and looked at.
    taken_at_once: usize,
    seen_at_once: u64,
    /// What was done since it was last looked at: pages mapped, and steps of taking back.
    mapped: u64,
    steps: u64,
    /// What was changed is seen by all.
    settled: Rc<Cell<bool>>,
}

impl Devices {
    /// In slots 1 to 3.
    fn new() -> Self {
        Self {
            there: BTreeSet::from([1, 2, 3]),
            open: BTreeSet::new(),
            reach: Reach::new(),
            room: usize::MAX,
            mapped_at_once: AT_ONCE,
            taken_at_once: 64,
            seen_at_once: 8192,
            mapped: 0,
            steps: 0,
            settled: Rc::new(Cell::new(true)),
        }
    }

    /// The device in a slot is gone, with what it reached.
    fn unplug(&mut self, slot: u8) {
        self.there.remove(&slot);
        self.open.remove(&slot);
        self.reach.retain(|(of, _), _| *of != slot);
    }

    fn map_one(&mut self, slot: u8, page: u64, gpa: u64, writable: bool) -> Result<(), Refused> {
        if !self.open.contains(&slot) {
            return Err(Refused::NoDevice);
        }
        if gpa >= MEMORY || self.reach.contains_key(&(slot, page)) {
            return Err(Refused::BadPage);
        }
        if self.reach.len() >= self.room {
            return Err(Refused::OutOfMemory);
        }
        self.reach.insert((slot, page), (gpa, writable));
        Ok(())
    }
}

impl Behind for Devices {
    fn is_there(&self, slot: u8) -> bool {
        self.there.contains(&slot)
    }

    fn open(&mut self, slot: u8) -> bool {
        let there = self.is_there(slot);
        if there {
            self.open.insert(slot);
        }
        there
    }

    fn map(&mut self, slot: u8, pages: Range<u64>, gpa: u64, writable: bool) -> Result<u64, Refused> {
        let count =
            pages.end.checked_sub(pages.start).expect("a range of pages does not end before it begins");
        assert!((1..=AT_ONCE).contains(&count), "{count} pages in one step");
        assert!(gpa.is_multiple_of(PAGE), "{gpa:#x} is the address of no page");
        assert!(ADDRESSES.contains(&(pages.start * PAGE)) && ADDRESSES.contains(&(pages.end * PAGE - 1)));
        self.settled.set(false);
        let mut done = 0;
        for page in pages.take(self.mapped_at_once as usize) {
            match self.map_one(slot, page, gpa + done * PAGE, writable) {
                Ok(()) => done += 1,
                Err(refused) if done == 0 => return Err(refused),
                Err(_) => break,
            }
        }
        self.mapped += done;
        Ok(done)
    }

    fn unmap(&mut self, slot: u8, pages: Range<u64>) -> u64 {
        assert!(pages.start < pages.end, "there is nothing to take back");
        self.settled.set(false);
        self.steps += 1;
        let (all, last) = (pages.end - pages.start, pages.end.min(SIZE));
        if pages.start >= last || !self.is_there(slot) {
            return all;
        }
        let mut end = last.min(pages.start + self.seen_at_once);
        let mapped = self.reach.range((slot, pages.start)..(slot, end)).map(|((_, page), _)| *page);
        let taken: Vec<u64> = mapped.take(self.taken_at_once).collect();
        if let Some(page) = taken.last().filter(|_| taken.len() == self.taken_at_once) {
            end = page + 1;
        }
        for page in taken {
            self.reach.remove(&(slot, page));
        }
        if end < last { end - pages.start } else { all }
    }

    fn settle(&mut self) {
        self.settled.set(true);
    }
}

/// The guest's memory, and whether what devices reach is settled.
struct Ram(RefCell<Vec<u8>>, Rc<Cell<bool>>);

impl Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let at = address.checked_sub(START).ok_or(Fault)? as usize;
        buffer.copy_from_slice(self.0.borrow().get(at..at + buffer.len()).ok_or(Fault)?);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        assert!(address != START + DEVICE + 2 || self.1.get(), "an answer is shown too early");
        let at = address.checked_sub(START).ok_or(Fault)? as usize;
        self.0.borrow_mut().get_mut(at..at + bytes.len()).ok_or(Fault)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// A guest, its driver, the IOMMU, and what is behind it.
struct Guest {
    ram: Ram,
    device: Device,
    iommu: Iommu,
    behind: Devices,
    /// Heads of descriptors that no request has. The last one is taken first, so that they are soon out of order.
    free: Vec<u16>,
    /// Heads of the requests that are not answered, and the room for the answer.
    sent: VecDeque<(u16, u32)>,
    available: u16,
    used: u16,
}

/// Where the request with this head is.
fn room(head: u16) -> u64 {
    START + ROOMS + u64::from(head / 2) * ROOM
}

impl Guest {
    fn new() -> Self {
        let mut device = iommu::device(&ADDRESSES);
        device.attach_guest(Issues::Nothing, [].into_iter());
        let behind = Devices::new();
        let ram = Ram(RefCell::new(Vec::new()), behind.settled.clone());
        let (iommu, behind) = (Iommu::new(ADDRESSES), Devices::new());
        let (free, sent) = (Vec::new(), VecDeque::new());
        let mut guest = Self { ram, device, iommu, behind, free, sent, available: 0, used: 0 };
        guest.start();
        guest
    }

    /// One that has address space 7 for the device in slot 3.
    fn attached() -> Self {
        let mut guest = Self::new();
        assert_eq!(guest.ask(&attach(7, endpoint(3))), DONE);
        guest
    }

    /// The driver sets the device up.
    fn start(&mut self) {
        *self.ram.0.borrow_mut() = vec![0; (ROOMS + u64::from(ENTRIES) * ROOM) as usize];
        self.free = (0..ENTRIES).step_by(2).collect();
        self.sent.clear();
        (self.available, self.used) = (0, 0);
        for status in [1, 3] {
            self.device.write(0x14, 1, status);
        }
        for (half, accepted) in [(0, 0b10101), (1, (features::VERSION_1 >> 32) as u32)] {
            self.device.write(0x08, 4, half);
            self.device.write(0x0c, 4, accepted);
        }
        self.device.write(0x14, 1, 11);
        assert_eq!(self.device.read(0x14, 1).0, 11, "features are taken though the guest lends nothing");
        for (register, value) in [(0x20, START), (0x28, START + DRIVER), (0x30, START + DEVICE)] {
            self.device.write(register, 4, value as u32);
        }
        self.device.write(0x1c, 2, 1);
        assert_eq!(self.device.write(0x14, 1, 15), Changes::BACKEND);
    }

    /// It resets the device. What it had asked for is forgotten.
    fn reset(&mut self) {
        self.device.write(0x14, 1, 0);
        assert!(!self.device.is_live());
        self.iommu.reset();
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.ram.write(at, bytes).expect("the driver writes to memory of its own");
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.ram.read(at, &mut bytes).expect("the driver reads memory of its own");
        bytes
    }

    /// Nothing is written to the answer of the request with this head.
    fn clear(&self, head: u16) {
        self.put(room(head) + ANSWER, &[UNWRITTEN; (ROOM - ANSWER) as usize]);
    }

    /// Makes a chain available, of descriptors from `head` on: address, length, flags.
    fn offer(&mut self, head: u16, buffers: &[Piece]) {
        for ((at, (address, len, flags)), last) in
            (head..).zip(buffers).zip((0..buffers.len()).rev().map(|left| left == 0))
        {
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&address.to_le_bytes());
            descriptor[8..12].copy_from_slice(&len.to_le_bytes());
            let flags = flags | if last { 0 } else { NEXT };
            descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
            descriptor[14..].copy_from_slice(&(at + 1).to_le_bytes());
            self.put(START + u64::from(at) * 16, &descriptor);
        }
        let entry = START + DRIVER + 4 + u64::from(self.available % ENTRIES) * 2;
        self.put(entry, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.put(START + DRIVER + 2, &self.available.to_le_bytes());
    }

    /// Makes a request available, with room for an answer.
    fn send(&mut self, request: &[u8], answer: u32) {
        let head = self.free.pop().expect("there are descriptors for all requests of a test");
        self.put(room(head), request);
        self.clear(head);
        let buffers = [(room(head), request.len() as u32, 0), (room(head) + ANSWER, answer, WRITE)];
        self.offer(head, &buffers);
        self.sent.push_back((head, answer));
    }

    /// Tells the device of requests once, and checks that it does no more than it may.
    fn serve(&mut self) -> Result<Served, Fault> {
        let Some(queue) = self.device.live_queue(REQUESTS).copied() else { return Ok(Served::default()) };
        (self.behind.mapped, self.behind.steps) = (0, 0);
        let served = self.iommu.serve(&queue, &self.ram, &mut self.behind);
        let Devices { mapped, steps, .. } = self.behind;
        assert!(self.behind.settled.get(), "somebody has not been told of what was changed");
        assert!(mapped <= AT_ONCE, "{mapped} pages are mapped in one call");
        // What is left from before a reset has a bound of its own.
        assert!(mapped + steps <= 2 * AT_ONCE, "{mapped} pages and {steps} steps in one call");
        served
    }

    /// Until there is nothing more to do. Returns how many calls that took.
    fn settle(&mut self) -> u32 {
        for calls in 1..10_000 {
            if !self.serve().expect("the driver breaks no rule").more {
                return calls;
            }
        }
        panic!("a request has no end");
    }

    /// The next answer, in the order of the requests.
    fn answer(&mut self) -> Option<Vec<u8>> {
        if u16::from_le_bytes(self.get(START + DEVICE + 2)) == self.used {
            return None;
        }
        let entry = START + DEVICE + 4 + u64::from(self.used % ENTRIES) * 8;
        let [head, len] = [entry, entry + 4].map(|at| u32::from_le_bytes(self.get(at)));
        self.used = self.used.wrapping_add(1);
        let (sent, room_of_it) = self.sent.pop_front().expect("an answer answers a request");
        assert_eq!(head, sent.into(), "requests are answered in order");
        assert!(len <= room_of_it);
        let bytes: [u8; (ROOM - ANSWER) as usize] = self.get(room(sent) + ANSWER);
        let (written, rest) = bytes.split_at(len as usize);
        assert!(rest.iter().all(|byte| *byte == UNWRITTEN), "more is written than the used length says");
        self.free.push(sent);
        Some(written.to_vec())
    }

    /// The state in the next answer, which is nothing else.
    fn state(&mut self) -> Option<u8> {
        let answer = self.answer()?;
        let [state, 0, 0, 0] = answer[..] else { panic!("{answer:?} is no answer") };
        Some(state)
    }

    /// Makes a request and waits for its answer.
    fn ask(&mut self, request: &[u8]) -> u8 {
        self.send(request, SHORT);
        self.settle();
        self.state().expect("what is served is answered")
    }

    /// Pages that a device reaches.
    fn pages(&self, slot: u8) -> Vec<u64> {
        self.behind.reach.range((slot, 0)..=(slot, u64::MAX)).map(|((_, page), _)| *page).collect()
    }
}

/// A request of a type and words.
fn request(kind: u8, words: &[u32]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    [kind, 0, 0, 0].into_iter().chain(words).collect()
}

fn attach(domain: u32, endpoint: u32) -> Vec<u8> {
    request(1, &[domain, endpoint, 0, 0])
}

fn detach(domain: u32, endpoint: u32) -> Vec<u8> {
    request(2, &[domain, endpoint, 0, 0])
}

/// By first and last address, with all flags.
fn map_exactly(domain: u32, [first, last, gpa]: [u64; 3], flags: u32) -> Vec<u8> {
    let [f, l, g] = [first, last, gpa].map(|long| [long as u32, (long >> 32) as u32]);
    request(3, &[domain, f[0], f[1], l[0], l[1], g[0], g[1], flags])
}

/// Pages that may be written.
fn map(domain: u32, pages: Range<u64>, gpa: u64) -> Vec<u8> {
    map_exactly(domain, [pages.start * PAGE, pages.end * PAGE - 1, gpa], 3)
}

fn unmap(domain: u32, pages: Range<u64>) -> Vec<u8> {
    let [f, l] = [pages.start * PAGE, pages.end * PAGE - 1].map(|long| [long as u32, (long >> 32) as u32]);
    request(4, &[domain, f[0], f[1], l[0], l[1], 0])
}

fn probe(endpoint: u32) -> Vec<u8> {
    let mut words = [0; 17];
    words[0] = endpoint;
    request(5, &words)
}
