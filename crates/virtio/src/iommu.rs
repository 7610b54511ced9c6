//! An IOMMU that a guest's stock driver drives: requests to attach devices, and to map pages for them (Virtio 1.2, 5.13).
//!
//! Key types: [`Iommu`] (how far its driver has come), [`Behind`] (the devices behind it, which belong to somebody else). A device has one address
//! space, and an address space one device, as Linux does it. A request is carried out in steps of at most [`AT_ONCE`] pages, so that one
//! that maps all memory holds nobody up.
//!
//! Deviations: a device cannot share the address space of another one; a mapping can be taken away in parts, where the standard advises
//! against it (5.13.6.6.2); a page that may be written may be read, too; faults are not told of.

mod request;

use crate::device::{Device, Kind};
use crate::queue::Queue;
use crate::ring::{Buffer, Fault, Memory, Ring, buffers};
use arrayvec::ArrayVec;
use core::ops::{Range, RangeInclusive};
use request::{Denied, LONGEST, Request, ok};
use sluice_memory::PAGE_SIZE;

/// Most devices behind one: the slots of a bus.
pub const ENDPOINTS: usize = 32;
/// Most pages that [`Iommu::serve`] maps before it returns, and most requests that it answers. Once it has taken back so many, it begins no other
/// step.
pub const AT_ONCE: u64 = 512;
/// Longest chain of a driver that is taken, in descriptors; Linux makes them of two.
const LONGEST_CHAIN: usize = 16;

/// The queue of requests. That of events has the next number, and nothing is put into it.
pub const REQUESTS: u16 = 0;
/// Queues (5.13.2).
const QUEUES: u32 = 2;
/// Entries of each.
const QUEUE_SIZE: u32 = 256;

/// Features (5.13.3): addresses are bounded; pages are mapped and unmapped; the device tells of addresses that are not translated.
const INPUT_RANGE: u64 = 1 << 0;
const MAP_UNMAP: u64 = 1 << 2;
const PROBE: u64 = 1 << 4;

/// Number of a device behind it, the function's bus number, device and function: slot 3 is 24.
pub const fn endpoint(slot: u8) -> u32 {
    (slot as u32) << 3
}

/// The slot of an endpoint.
fn slot(endpoint: u32) -> Option<u8> {
    let slot = endpoint >> 3;
    (endpoint.is_multiple_of(8) && slot < ENDPOINTS as u32).then_some(slot as u8)
}

/// Why pages cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such device, or nothing can be mapped for it.
    NoDevice,
    /// Something is mapped there, or what is to be mapped is not the guest's memory.
    BadPage,
    /// There is no memory for tables.
    OutOfMemory,
}

/// The devices behind an IOMMU. They are known by their slots, pages by their numbers.
pub trait Behind {
    /// Whether there is such a device, for which pages can be mapped.
    fn is_there(&self, slot: u8) -> bool;

    /// From now on the device reaches what is mapped for it. False if there is none, any more.
    fn open(&mut self, slot: u8) -> bool;

    /// Has the device see guest-physical memory from `gpa` on at these pages, of which there are at most [`AT_ONCE`]. Returns how many it was
    /// done for, one at least. It need not see all of it before [`Self::settle`].
    ///
    /// # Errors
    /// What the first one failed by.
    fn map(&mut self, slot: u8, pages: Range<u64>, gpa: u64, writable: bool) -> Result<u64, Refused>;

    /// Takes back what is mapped at these pages, as far as one step may. Returns how many pages there is nothing at any more, counted from the
    /// first; one at least. They may be reached until [`Self::settle`].
    fn unmap(&mut self, slot: u8, pages: Range<u64>) -> u64;

    /// What was mapped is seen, and nobody reaches what was taken back any more, when this returns. Requests are answered only then.
    fn settle(&mut self);
}

/// All pages.
const ALL: (u64, u64) = (0, u64::MAX);

/// What is left to do of a request, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    /// Whose pages these are; nothing is left to be done for one that is gone.
    slot: u8,
    /// Pages that are to be taken back: first and end.
    back: (u64, u64),
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It is answered.
    Answer(Result<(), Denied>),
    /// The device is opened, and has this address space.
    Open { domain: u32 },
    /// It has none any more.
    Close,
    /// Pages are mapped: first, next and end.
    Map { first: u64, next: u64, end: u64, gpa: u64, writable: bool },
}

/// What came of looking at the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// There is more to do: look again.
    pub more: bool,
    /// The driver wants to hear of requests that are answered.
    pub signals: bool,
}

/// The device of an IOMMU whose devices have addresses in a range of whole pages. They reach nothing before they are attached.
pub fn device(addresses: &RangeInclusive<u64>) -> Device {
    let mut config = [0; 40];
    let mut put = |at: usize, value: u64| {
        config.iter_mut().skip(at).zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    };
    // Sizes of pages, addresses, numbers of address spaces (of which all are taken), bytes of properties (5.13.4).
    put(0, PAGE_SIZE);
    put(8, *addresses.start());
    put(16, *addresses.end());
    put(24, u64::from(u32::MAX) << 32);
    put(32, request::PROPERTIES as u64);
    Device::served_here(Kind::Iommu, INPUT_RANGE | MAP_UNMAP | PROBE, QUEUES, QUEUE_SIZE, &config)
}

/// How far the driver of an IOMMU has come.
#[derive(Debug)]
pub struct Iommu {
    ring: Ring,
    /// Addresses that devices can have.
    addresses: RangeInclusive<u64>,
    /// The address space of each device, by slot.
    attached: [Option<u32>; ENDPOINTS],
    /// The next request is one that this is left of.
    work: Option<Work>,
    /// Slots of devices that were attached when the driver let go of all: the next page of each that is looked at.
    leaving: [Option<u64>; ENDPOINTS],
    /// There is one of these.
    leaves: bool,
}

impl Iommu {
    /// One whose devices have addresses in a range of whole pages.
    pub fn new(addresses: RangeInclusive<u64>) -> Self {
        let (attached, leaving) = ([None; ENDPOINTS], [None; ENDPOINTS]);
        Self { ring: Ring::default(), addresses, attached, work: None, leaving, leaves: false }
    }

    /// The driver has reset the device: nothing is attached any more. [`Self::leave`] takes back what was mapped.
    pub fn reset(&mut self) {
        for (leaving, attached) in self.leaving.iter_mut().zip(&mut self.attached) {
            if attached.take().is_some() {
                *leaving = Some(0);
                self.leaves = true;
            }
        }
        (self.ring, self.work) = (Ring::default(), None);
    }

    /// Carries out what is in the queue of requests ([`REQUESTS`]), as far as one call may.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn serve(
        &mut self,
        queue: &Queue,
        memory: &dyn Memory,
        behind: &mut impl Behind,
    ) -> Result<Served, Fault> {
        if self.leave(behind) {
            return Ok(Served { more: true, signals: false });
        }
        let carried = self.carry_out(queue, memory, behind);
        behind.settle();
        let more = carried?;
        Ok(Served { more, signals: self.ring.publish(queue, memory)? })
    }

    /// Carries requests out, and gives their chains back. Returns whether there is more to do.
    fn carry_out(
        &mut self,
        queue: &Queue,
        memory: &dyn Memory,
        behind: &mut impl Behind,
    ) -> Result<bool, Fault> {
        let mut left = AT_ONCE;
        while let Some(head) = self.ring.next(queue, memory)? {
            if left == 0 {
                return Ok(true);
            }
            left -= 1;
            let Some(written) = self.take(queue, memory, head, &mut left, behind)? else { return Ok(true) };
            self.ring.give(queue, memory, head, written)?;
        }
        Ok(false)
    }

    /// Takes back what was mapped before a reset, as far as one call may. Returns whether there is more.
    pub fn leave(&mut self, behind: &mut impl Behind) -> bool {
        if !self.leaves {
            return false;
        }
        let mut left = AT_ONCE;
        for (slot, next) in (0..).zip(&mut self.leaving) {
            while let Some(page) = next
                && left > 0
            {
                let done = behind.unmap(slot, *page..u64::MAX);
                left = left.saturating_sub(done);
                *next = page.checked_add(done).filter(|page| *page != u64::MAX);
            }
        }
        behind.settle();
        self.leaves = self.leaving.iter().any(Option::is_some);
        self.leaves
    }

    /// Does a request, or what is left of it. Returns the bytes of its answer, if there is one already.
    fn take(
        &mut self,
        queue: &Queue,
        memory: &dyn Memory,
        head: u16,
        left: &mut u64,
        behind: &mut impl Behind,
    ) -> Result<Option<u32>, Fault> {
        let chain = Chain::read(queue, memory, head)?;
        let work = match self.work.take() {
            Some(work) => work,
            None => {
                let mut bytes = [0; LONGEST];
                match Request::decode(chain.request(memory, &mut bytes)?) {
                    Ok(Request::Probe { endpoint }) => {
                        let there = slot(endpoint).is_some_and(|slot| behind.is_there(slot));
                        let answer = if there { Ok(()) } else { Err(Denied::NoEntry) };
                        return chain.answer(memory, &request::properties(answer)).map(Some);
                    }
                    Ok(request) => self.begin(&request),
                    Err(denied) => Work::answer(Err(denied)),
                }
            }
        };
        match self.go_on(work, left, behind) {
            Some(answer) => chain.answer(memory, &ok(answer)).map(Some),
            None => Ok(None),
        }
    }

    /// What a request comes to.
    fn begin(&self, request: &Request) -> Work {
        match self.plan(request) {
            Ok(work) => work,
            Err(denied) => Work::answer(Err(denied)),
        }
    }

    fn plan(&self, request: &Request) -> Result<Work, Denied> {
        match *request {
            Request::Attach { domain, endpoint } => {
                let slot = slot(endpoint).ok_or(Denied::NoEntry)?;
                match self.device_of(domain) {
                    Some(other) if other != slot => Err(Denied::Unsupported),
                    // It may be another device than the one that was there.
                    Some(_) => Ok(Work { slot, back: (0, 0), then: Then::Open { domain } }),
                    None => Ok(Work { slot, back: ALL, then: Then::Open { domain } }),
                }
            }
            Request::Detach { domain, endpoint } => {
                let slot = slot(endpoint).ok_or(Denied::NoEntry)?;
                if self.device_of(domain) != Some(slot) {
                    return Err(Denied::Invalid);
                }
                Ok(Work { slot, back: ALL, then: Then::Close })
            }
            Request::Map { domain, first, last, gpa, writable } => {
                let slot = self.device_of(domain).ok_or(Denied::NoEntry)?;
                if !self.addresses.contains(&first) || !self.addresses.contains(&last) {
                    return Err(Denied::OutOfRange);
                }
                let (first, end) = pages(first, last)?;
                let len = (end - first).checked_mul(PAGE_SIZE);
                if !gpa.is_multiple_of(PAGE_SIZE) || len.and_then(|len| gpa.checked_add(len)).is_none() {
                    return Err(Denied::OutOfRange);
                }
                let then = Then::Map { first, next: first, end, gpa, writable };
                Ok(Work { slot, back: (0, 0), then })
            }
            Request::Unmap { domain, first, last } => {
                let slot = self.device_of(domain).ok_or(Denied::NoEntry)?;
                Ok(Work { slot, back: pages(first, last)?, then: Then::Answer(Ok(())) })
            }
            // It has been answered.
            Request::Probe { .. } => Err(Denied::Unsupported),
        }
    }

    /// The device that has an address space.
    fn device_of(&self, domain: u32) -> Option<u8> {
        self.attached.iter().position(|attached| *attached == Some(domain)).map(|slot| slot as u8)
    }

    /// Goes on as far as one call may. Returns the answer; `None`: there is something left, which is kept.
    fn go_on(
        &mut self,
        mut work: Work,
        left: &mut u64,
        behind: &mut impl Behind,
    ) -> Option<Result<(), Denied>> {
        loop {
            let (from, to) = work.back;
            if from < to {
                if *left == 0 {
                    self.work = Some(work);
                    return None;
                }
                // To look at pages that nothing is at takes time, too: they count like the others.
                let done = behind.unmap(work.slot, from..to);
                *left = left.saturating_sub(done);
                work.back.0 = from.saturating_add(done);
                continue;
            }
            work.then = match work.then {
                Then::Answer(answer) => return Some(answer),
                Then::Open { domain } => {
                    let opened = behind.open(work.slot);
                    // What it was attached to stays, so that what may be mapped there is taken back with a reset.
                    if opened {
                        self.attach(work.slot, Some(domain));
                    }
                    Then::Answer(if opened { Ok(()) } else { Err(Denied::NoEntry) })
                }
                Then::Close => {
                    self.attach(work.slot, None);
                    Then::Answer(Ok(()))
                }
                Then::Map { next, end, .. } if next == end => Then::Answer(Ok(())),
                Then::Map { .. } if *left == 0 => {
                    self.work = Some(work);
                    return None;
                }
                Then::Map { first, next, end, gpa, writable } => {
                    match behind.map(work.slot, next..end.min(next + *left), gpa, writable) {
                        Ok(done) => {
                            *left = left.saturating_sub(done);
                            let gpa = gpa.saturating_add(done * PAGE_SIZE);
                            Then::Map { first, next: next + done, end, gpa, writable }
                        }
                        // All of it is mapped, or nothing.
                        Err(refused) => {
                            work.back = (first, next);
                            Then::Answer(Err(refused.into()))
                        }
                    }
                }
            };
        }
    }

    fn attach(&mut self, slot: u8, domain: Option<u32>) {
        if let Some(attached) = self.attached.get_mut(usize::from(slot)) {
            *attached = domain;
        }
    }
}

impl Work {
    fn answer(answer: Result<(), Denied>) -> Self {
        Self { slot: 0, back: (0, 0), then: Then::Answer(answer) }
    }
}

impl From<Refused> for Denied {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoDevice => Self::NoEntry,
            Refused::BadPage => Self::Invalid,
            Refused::OutOfMemory => Self::NoMemory,
        }
    }
}

/// Numbers of the pages from the first address to the last: first and end.
fn pages(first: u64, last: u64) -> Result<(u64, u64), Denied> {
    let whole = first.is_multiple_of(PAGE_SIZE) && last.wrapping_add(1).is_multiple_of(PAGE_SIZE);
    if !whole || last < first {
        return Err(Denied::OutOfRange);
    }
    Ok((first / PAGE_SIZE, last / PAGE_SIZE + 1))
}

/// A chain, whose descriptors are read once.
struct Chain(ArrayVec<Buffer, LONGEST_CHAIN>);

impl Chain {
    fn read(queue: &Queue, memory: &dyn Memory, head: u16) -> Result<Self, Fault> {
        let mut chain = ArrayVec::new();
        for buffer in buffers(queue, memory, head) {
            chain.try_push(buffer?).map_err(|_| Fault)?;
        }
        Ok(Self(chain))
    }

    /// What it has for the device, as far as `bytes` goes.
    fn request<'a>(&self, memory: &dyn Memory, bytes: &'a mut [u8]) -> Result<&'a [u8], Fault> {
        let mut done = 0;
        for buffer in self.0.iter().take_while(|buffer| !buffer.writable) {
            let part = bytes.get_mut(done..).unwrap_or_default();
            let len = part.len().min(buffer.len as usize);
            let part = part.get_mut(..len).unwrap_or_default();
            memory.read(buffer.address, part)?;
            done += len;
        }
        Ok(bytes.get(..done).unwrap_or_default())
    }

    /// Writes the answer to where it has room for it, and returns its length.
    fn answer(&self, memory: &dyn Memory, answer: &[u8]) -> Result<u32, Fault> {
        let mut rest = answer;
        for buffer in self.0.iter().filter(|buffer| buffer.writable) {
            let (part, after) = rest.split_at(rest.len().min(buffer.len as usize));
            memory.write(buffer.address, part)?;
            rest = after;
        }
        // Without its answer the driver would take a request for done that was not.
        if rest.is_empty() { Ok(answer.len() as u32) } else { Err(Fault) }
    }
}
