//! An IOMMU that a hostile guest's driver drives, and devices behind it that come and go.

use crate::Input;
use crate::virtio::{Ram, START};
use sluice_virtio::iommu::{self, AT_ONCE, Behind, ENDPOINTS, Iommu, REQUESTS, Refused, endpoint};
use sluice_virtio::{Device, Fault, Issues, Memory, Status};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

const PAGE: u64 = 4096;
/// Addresses of devices.
const ADDRESSES: RangeInclusive<u64> = 0x10_0000..=0xff_ffff;
/// End of what can be mapped, which is less than what the tables have room for.
const MEMORY: u64 = 0x80_0000;
/// Pages of tables.
const SIZE: u64 = 0x1000;
/// Entries of the queue, and where its rings and the rooms of requests are after the descriptors.
const ENTRIES: u64 = 16;
const DRIVER: u64 = 0x200;
const DEVICE: u64 = 0x400;
const ROOMS: u64 = 0x800;

/// What a device reaches: memory, and whether it may be written, by page.
type Reach = BTreeMap<u64, (u64, bool)>;

/// The devices behind it. They check what is asked of them.
struct Devices {
    /// Those that are there: whether each is open, and what it reaches.
    slots: BTreeMap<u8, (bool, Reach)>,
    /// Most pages of one step, and pages of tables that are left.
    at_once: u64,
    room: usize,
    /// Pages mapped and steps of taking back since it was last looked at.
    work: u64,
    /// What was changed is seen by all.
    settled: bool,
}

impl Devices {
    fn reached(&self) -> usize {
        self.slots.values().map(|(_, pages)| pages.len()).sum()
    }
}

impl Behind for Devices {
    fn is_there(&self, slot: u8) -> bool {
        assert!(usize::from(slot) < ENDPOINTS);
        self.slots.contains_key(&slot)
    }

    fn open(&mut self, slot: u8) -> bool {
        assert!(usize::from(slot) < ENDPOINTS);
        self.slots.get_mut(&slot).map(|(open, _)| *open = true).is_some()
    }

    fn map(&mut self, slot: u8, pages: Range<u64>, gpa: u64, writable: bool) -> Result<u64, Refused> {
        let count =
            pages.end.checked_sub(pages.start).expect("a range of pages does not end before it begins");
        assert!((1..=AT_ONCE).contains(&count), "{count} pages in one step");
        assert!(gpa.is_multiple_of(PAGE), "the memory is no page");
        assert!(gpa.checked_add(count * PAGE).is_some(), "the memory has no end");
        self.settled = false;
        let (first, last) = (pages.start * PAGE, pages.end * PAGE - 1);
        assert!(ADDRESSES.contains(&first) && ADDRESSES.contains(&last), "no device has such an address");
        let room = self.room.saturating_sub(self.reached());
        let Some((true, reach)) = self.slots.get_mut(&slot) else { return Err(Refused::NoDevice) };
        let mut done = 0;
        for (page, gpa) in pages.zip((gpa..).step_by(PAGE as usize)).take(self.at_once as usize) {
            let refused = if gpa >= MEMORY || reach.contains_key(&page) {
                Refused::BadPage
            } else if done >= room as u64 {
                Refused::OutOfMemory
            } else {
                reach.insert(page, (gpa, writable));
                done += 1;
                continue;
            };
            if done == 0 {
                return Err(refused);
            }
            break;
        }
        self.work += done;
        Ok(done)
    }

    fn unmap(&mut self, slot: u8, pages: Range<u64>) -> u64 {
        assert!(pages.start < pages.end, "there is nothing to take back");
        assert!(usize::from(slot) < ENDPOINTS);
        self.work += 1;
        self.settled = false;
        let (all, last) = (pages.end - pages.start, pages.end.min(SIZE));
        let Some((_, reach)) = self.slots.get_mut(&slot).filter(|_| pages.start < last) else { return all };
        let end = last.min(pages.start + self.at_once);
        reach.retain(|page, _| !(pages.start..end).contains(page));
        if end < last { end - pages.start } else { all }
    }

    fn settle(&mut self) {
        self.settled = true;
    }
}

/// Memory that counts how often it is looked at.
struct Counted<'a>(&'a Ram, Cell<u64>);

impl Memory for Counted<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        self.1.set(self.1.get() + 1);
        self.0.read(address, buffer)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.1.set(self.1.get() + 1);
        self.0.write(address, bytes)
    }
}

/// The registers, as a driver sets them up.
fn set_up(device: &mut Device) {
    for (at, width, value) in [(0x08, 4, 0), (0x0c, 4, 0x15), (0x08, 4, 1), (0x0c, 4, 1), (0x14, 1, 11)] {
        let _ = device.write(at, width, value);
    }
    for queue in 0..2 {
        let at = START as u32 + queue * 0x2000;
        for (register, width, value) in [
            (0x16, 2, queue),
            (0x18, 2, ENTRIES as u32),
            (0x20, 4, at),
            (0x28, 4, at + DRIVER as u32),
            (0x30, 4, at + DEVICE as u32),
            (0x1c, 2, 1),
        ] {
            let _ = device.write(register, width, value);
        }
    }
    let _ = device.write(0x14, 1, 15);
}

/// A request that may make sense.
fn request(input: &mut Input) -> Vec<u8> {
    let kind = input.u8() % 8;
    let (domain, slot) = (u32::from(input.u8() % 4), input.choose(&[1, 2, 3, 31]));
    let first = u64::from(input.choose(&[0xff_u16, 0x100, 0x101, 0x180, 0xfff])) * PAGE;
    let last = first + (u64::from(input.choose(&[1_u16, 2, 3, 511, 513, 2000])) * PAGE) - 1;
    let gpa = u64::from(input.u8()) * input.choose(&[PAGE, 16 * PAGE]);
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(if kind == 5 { endpoint(slot) } else { domain }.to_le_bytes());
    match kind {
        1 | 2 => bytes.extend([endpoint(slot).to_le_bytes(), [0; 4], [0; 4]].concat()),
        3 => {
            bytes.extend([first, last, gpa].map(u64::to_le_bytes).concat());
            bytes.extend([input.u8() % 4, 0, 0, 0]);
        }
        4 => bytes.extend([first, last].map(u64::to_le_bytes).concat()),
        _ => bytes.resize(72, 0),
    }
    if input.u8().is_multiple_of(8) {
        input.damage(&mut bytes);
    }
    bytes
}

/// Requests of a driver that may write anything into its queue, while devices come and go and steps get longer and shorter. Asserts that devices
/// are asked only for what they are promised to be asked for, that a call does and looks at no more than it may and always ends, that
/// a driver which broke the rules is not listened to before it resets the device, and that no device reaches anything after a reset.
pub fn requests(data: &[u8]) {
    let mut input = Input::new(data);
    let ram = Ram::new(16 * 1024);
    let mut device = iommu::device(&ADDRESSES);
    let _ = device.attach_guest(Issues::Nothing, [].into_iter());
    let mut iommu = Iommu::new(ADDRESSES);
    let slots = [1, 2, 3].map(|slot| (slot, (false, Reach::new()))).into();
    let mut behind = Devices { slots, at_once: AT_ONCE, room: usize::MAX, work: 0, settled: true };
    set_up(&mut device);
    let mut available = 0_u16;
    while !input.is_empty() {
        match input.u8() % 16 {
            0 => {
                let (at, value) = (u32::from(input.u8() % 0x38), input.u32());
                let (at, value) = input.choose(&[(at, value), (at, value), (0x14, 0)]);
                let _ = device.write(at, input.choose(&[1, 2, 4]), value);
                if !device.is_live() {
                    reset(&mut iommu, &mut behind, &mut input);
                    set_up(&mut device);
                    let _ = ram.write(START + DRIVER, &[0; 4]);
                    available = 0;
                }
            }
            // A descriptor, an entry of the available ring, its index, anything.
            1 | 2 => {
                let at = START + input.choose(&[0, 16, 0x200, 0x202, 0x204, 0x206, ROOMS]);
                let bytes: Vec<u8> = (0..input.u8() % 17).map(|_| input.u8()).collect();
                let _ = ram.write(at + u64::from(input.u8() % 16), &bytes);
            }
            3..=8 => {
                let bytes = request(&mut input);
                offer(&ram, available, &bytes);
                available = available.wrapping_add(1);
            }
            9..=13 => {
                let Some(queue) = device.live_queue(REQUESTS).copied() else {
                    assert!(!device.is_live() || device.status().contains(Status::NEEDS_RESET));
                    continue;
                };
                let memory = Counted(&ram, Cell::new(0));
                behind.work = 0;
                let served = iommu.serve(&queue, &memory, &mut behind);
                // What is left from before a reset has a bound of its own.
                assert!(behind.work <= 2 * AT_ONCE, "too much is done in one call");
                assert!(behind.settled, "somebody has not been told of what was changed");
                // A request has so many descriptors at most, which are looked at once and each name a buffer.
                assert!(memory.1.get() <= AT_ONCE * (2 * ENTRIES + 8), "too much is looked at in one call");
                if let Err(Fault) = served {
                    let _ = device.break_down();
                    assert!(
                        device.live_queue(REQUESTS).is_none(),
                        "a driver that broke the rules is listened to"
                    );
                }
            }
            14 => {
                let slot = input.choose(&[1, 2, 3, 31]);
                if behind.slots.remove(&slot).is_none() {
                    behind.slots.insert(slot, (false, Reach::new()));
                }
            }
            _ => {
                behind.at_once = input.choose(&[1, 7, 64, AT_ONCE, AT_ONCE]);
                behind.room = input.choose(&[usize::MAX, usize::MAX, 0, 600, 1000]);
            }
        }
    }
    reset(&mut iommu, &mut behind, &mut input);
}

/// Makes a request available, in the room of a pair of descriptors, as a driver does.
fn offer(ram: &Ram, available: u16, bytes: &[u8]) {
    let head = available * 2 % ENTRIES as u16;
    let room = START + ROOMS + u64::from(head) * 0x80;
    let _ = ram.write(room, bytes);
    let answer = if bytes.first() == Some(&5) { 28 } else { 4 };
    for (at, address, len, flags) in
        [(head, room, bytes.len() as u32, 1_u16), (head + 1, room + 0x80, answer, 2)]
    {
        let numbers = [flags, head + 1].map(u16::to_le_bytes).concat();
        let descriptor = [&address.to_le_bytes()[..], &len.to_le_bytes(), &numbers].concat();
        let _ = ram.write(START + u64::from(at) * 16, &descriptor);
    }
    let entry = START + DRIVER + 4 + u64::from(available) % ENTRIES * 2;
    let _ = ram.write(entry, &head.to_le_bytes());
    let _ = ram.write(START + DRIVER + 2, &available.wrapping_add(1).to_le_bytes());
}

/// The driver resets the device, twice if the input says so, and everything is taken back.
fn reset(iommu: &mut Iommu, behind: &mut Devices, input: &mut Input) {
    iommu.reset();
    for calls in 0.. {
        behind.work = 0;
        let more = iommu.leave(behind);
        assert!(behind.work <= AT_ONCE && calls < 1000, "taking back has no bound");
        if !more {
            break;
        }
        if input.flag() {
            iommu.reset();
        }
    }
    assert!(behind.settled && behind.reached() == 0, "something is reached after a reset");
}
