//! What a guest asks for, as it stands in a buffer of the queue.

use crate::{PAGE_SIZE, Range};
use alloc::vec::Vec;
use core::num::NonZeroU32;
use sluice_hypercall::devfile::{
    DEVFILE_ADOPT, DEVFILE_AWAIT, DEVFILE_CANCEL, DEVFILE_DESCRIPTOR_SIZE, DEVFILE_FORGET, DEVFILE_HELLO,
    DEVFILE_IOCTL, DEVFILE_IOCTL_DESCRIPTOR, DEVFILE_IOCTL_FILE, DEVFILE_IOCTL_NARROW, DEVFILE_IOCTL_RANGE,
    DEVFILE_IOCTL_RESULT, DEVFILE_MAP, DEVFILE_MAPS_READ, DEVFILE_MAPS_SIZE, DEVFILE_MAPS_WRITE,
    DEVFILE_MAX_BYTES, DEVFILE_MAX_DESCRIPTORS, DEVFILE_MAX_FILES, DEVFILE_MAX_NUMBER,
    DEVFILE_MAX_OPERATIONS, DEVFILE_MAX_RANGES, DEVFILE_MOVE_NARROW, DEVFILE_NOTHING, DEVFILE_OPEN,
    DEVFILE_POLL, DEVFILE_READ, DEVFILE_RELEASE, DEVFILE_REQUEST_DESCRIPTORS, DEVFILE_REQUEST_RANGES,
    DEVFILE_REQUEST_SIZE, DEVFILE_SEEK, DEVFILE_UNMAP, DEVFILE_WRITE,
};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`DEVFILE_HELLO`].
    Hello {
        /// The guest's number for this life of the device.
        device: u32,
    },
    /// [`DEVFILE_OPEN`].
    Open,
    /// [`DEVFILE_RELEASE`].
    Release,
    /// [`DEVFILE_READ`].
    Read {
        /// Where the bytes go.
        address: u64,
        /// How many.
        bytes: u32,
        /// Where in the file.
        from: Position,
        /// A program of 32 bits does.
        narrow: bool,
    },
    /// [`DEVFILE_WRITE`].
    Write {
        /// Where the bytes are.
        address: u64,
        /// How many.
        bytes: u32,
        /// Where in the file.
        from: Position,
        /// A program of 32 bits does.
        narrow: bool,
    },
    /// [`DEVFILE_IOCTL`].
    Ioctl {
        /// Its number.
        number: u32,
        /// Its argument.
        argument: u64,
        /// A program of 32 bits makes it.
        narrow: bool,
        /// It answers with a descriptor.
        answer: Option<Descriptor>,
    },
    /// [`DEVFILE_POLL`].
    Poll {
        /// As poll(2).
        events: u16,
    },
    /// [`DEVFILE_AWAIT`].
    Await {
        /// As poll(2).
        events: u16,
    },
    /// [`DEVFILE_CANCEL`].
    Cancel,
    /// [`DEVFILE_FORGET`].
    Forget,
    /// [`DEVFILE_NOTHING`].
    Nothing,
    /// [`DEVFILE_MAP`].
    Map(Map),
    /// [`DEVFILE_UNMAP`].
    Unmap {
        /// First page.
        first: u32,
    },
    /// [`DEVFILE_ADOPT`].
    Adopt {
        /// Number of the request in the lane.
        number: u32,
    },
    /// [`DEVFILE_SEEK`].
    Seek {
        /// As lseek(2).
        offset: i64,
        /// As lseek(2).
        whence: u32,
    },
}

/// Where in a file something is read or written: one more than the offset, or 0 for where the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u64);

impl Position {
    /// Where the file is.
    pub const HERE: Self = Self(0);

    /// The offset, if it is one; then the file stays where it is.
    pub const fn offset(self) -> Option<i64> {
        match self.0.checked_sub(1) {
            Some(offset) => Some(offset as i64),
            None => None,
        }
    }

    /// Where, and whether a program of 32 bits says so, whose addresses are then of its; `None`: that cannot be.
    fn decode(bits: u64, address: u64) -> Option<(Self, bool)> {
        let narrow = bits & DEVFILE_MOVE_NARROW != 0;
        (!narrow || address >> 32 == 0).then_some((Self(bits & !DEVFILE_MOVE_NARROW), narrow))
    }
}

/// Whether a program of 32 bits makes the ioctl, whose argument can then be one of its, and where a descriptor is that it answers with.
fn manners(bits: u64, argument: u64) -> Option<(bool, Place)> {
    let manners = bits & ((1 << DEVFILE_IOCTL_DESCRIPTOR) - 1);
    let narrow = manners & DEVFILE_IOCTL_NARROW != 0;
    let place = match manners & !DEVFILE_IOCTL_NARROW {
        0 => Place::Argument,
        DEVFILE_IOCTL_RESULT => Place::Result,
        DEVFILE_IOCTL_RANGE => Place::Range,
        _ => return None,
    };
    (!narrow || argument >> 32 == 0).then_some((narrow, place))
}

/// Where a descriptor is, if an ioctl answers with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In its structure.
    Argument,
    Result,
    /// Where a range begins.
    Range,
}

/// Where an ioctl answers with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// In the structure that it reaches, at this offset.
    Field(u16),
    /// It is the result.
    Result,
    /// In the word that the range with this number begins with, which may be written.
    Range(u16),
}

/// What becomes of a descriptor that an ioctl answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it is.
    pub place: Answer,
    /// Number of its file, chosen by the guest.
    pub file: u16,
}

impl Descriptor {
    /// Bytes of one.
    const SIZE: u32 = 4;

    /// The descriptor that an ioctl with this number says it answers with. An inner `None`: with none; an outer one: that cannot be.
    fn decode(number: u32, bits: u64, place_is: Place) -> Option<Option<Self>> {
        let (place, file) = ((bits >> DEVFILE_IOCTL_DESCRIPTOR) as u16, (bits >> DEVFILE_IOCTL_FILE) as u32);
        let place = match (place.checked_sub(1), place_is) {
            (None, Place::Argument) => return (file == 0).then_some(None),
            (None, Place::Result) => Answer::Result,
            (Some(range), Place::Range) => Answer::Range(range),
            (Some(field), Place::Argument) => {
                // The ioctl's number says how large its structure is.
                let fits = u32::from(field) + Self::SIZE <= number >> 16 & 0x3fff;
                Answer::Field(fits.then_some(field)?)
            }
            (Some(_), Place::Result) | (None, Place::Range) => return None,
        };
        (file < DEVFILE_MAX_FILES).then_some(Some(Self { place, file: file as u16 }))
    }

    /// Whether it can be where it is said, by the ranges of the operation: in one page, and where the answer is copied from.
    fn is_reached(&self, ranges: &[Range]) -> bool {
        match self.place {
            Answer::Field(_) | Answer::Result => true,
            Answer::Range(number) => ranges.get(usize::from(number)).is_some_and(|range| {
                range.output && range.bytes >= Self::SIZE && range.address.is_multiple_of(Self::SIZE.into())
            }),
        }
    }
}

/// A descriptor that an ioctl takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Where it stands in the process.
    pub address: u64,
    /// Number of its file.
    pub file: u16,
    /// The program's number for it.
    pub number: u16,
    /// The guest's number for the device that the file is of.
    pub device: u32,
}

impl Taken {
    const SIZE: usize = DEVFILE_DESCRIPTOR_SIZE as usize;

    /// A descriptor in two words; `None`: it cannot be, or none of these ranges lets it be read.
    fn decode(address: u64, rest: u64, ranges: &[Range]) -> Option<Self> {
        let (file, number, device) = (rest as u16, (rest >> 16) as u16, (rest >> 32) as u32);
        let is_read = ranges.iter().any(|range| range.input && range.holds(address, Descriptor::SIZE));
        let known = u32::from(file) < DEVFILE_MAX_FILES && u32::from(number) < DEVFILE_MAX_NUMBER;
        (is_read && known).then_some(Self { address, file, number, device })
    }

    /// As many of them as are said, by the words of a request; `None` if one cannot be.
    #[cold]
    fn decode_list(count: u32, ranges: &[Range], word: impl Fn(usize) -> u64) -> Option<Vec<Self>> {
        let places = (FIRST_TAKEN..).step_by(Self::SIZE / 8).take(count as usize);
        places.map(|place| Self::decode(word(place), word(place + 1), ranges)).collect()
    }
}

/// A part of a file that is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// Where in the file, in whole pages.
    pub offset: u64,
    /// First page in the memory of maps.
    pub first: u32,
    /// Pages, at least one; all are there.
    pub pages: u32,
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
}

impl Map {
    /// Pages of the memory of maps.
    const ROOM: u64 = DEVFILE_MAPS_SIZE / PAGE_SIZE;

    fn decode([offset, bytes, third]: [u64; 3]) -> Option<Self> {
        let (first, rights) = (third as u32, (third >> 32) as u32);
        let pages = bytes / PAGE_SIZE;
        let whole = (offset | bytes).is_multiple_of(PAGE_SIZE) && pages > 0;
        let fits = u64::from(first).checked_add(pages).is_some_and(|end| end <= Self::ROOM);
        let offset_fits = i64::try_from(offset.checked_add(bytes)?).is_ok();
        let known = rights & !(DEVFILE_MAPS_READ | DEVFILE_MAPS_WRITE) == 0;
        (whole && fits && offset_fits && known).then_some(Self {
            offset,
            first,
            pages: pages as u32,
            read: rights & DEVFILE_MAPS_READ != 0,
            write: rights & DEVFILE_MAPS_WRITE != 0,
        })
    }
}

/// A request that could be one: its numbers are in range, and its ranges sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub operation: Operation,
    /// Which of the operations that are under way it is, or concerns.
    pub tag: u32,
    /// The address space of the process, by the guest's number.
    pub space: u64,
    /// The open file, by the guest's number.
    pub file: u32,
    /// As open(2).
    pub flags: u32,
    /// Page of the window with the lane of the address space, if it has one.
    pub lane: Option<NonZeroU32>,
    /// What of the process it may reach.
    pub ranges: Vec<Range>,
    /// Descriptors that it takes.
    pub taken: Vec<Taken>,
}

impl Request {
    /// Bytes of one.
    pub const SIZE: usize = DEVFILE_REQUEST_SIZE as usize;

    /// Number of the file that it makes, if it answers with a descriptor.
    pub fn returns(&self) -> Option<u32> {
        match self.operation {
            Operation::Ioctl { answer, .. } => answer.map(|descriptor| descriptor.file.into()),
            _ => None,
        }
    }

    /// The request in a buffer; `None` if something in it cannot be.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        Self::read(|place| words.get(place).map_or(0, |word| u64::from_le_bytes(*word)))
    }

    /// The request in words of eight bytes, each of which is looked at once.
    pub(crate) fn read(word: impl Fn(usize) -> u64) -> Option<Self> {
        let halves = |place: usize| {
            let both = word(place);
            (both as u32, (both >> 32) as u32)
        };
        let ((number, tag), space) = (halves(0), word(1));
        let ((file, flags), [first, second, third]) = (halves(2), [word(3), word(4), word(5)]);
        let (counts, lane) = halves(HEADER_WORDS - 1);
        let (count, taken_count) = (counts & 0xffff, counts >> 16);
        let length = || u32::try_from(second).ok().filter(|length| *length <= DEVFILE_MAX_BYTES);
        let events = || u16::try_from(first).ok();
        let operation = match number {
            DEVFILE_HELLO => Operation::Hello { device: u32::try_from(first).ok()? },
            DEVFILE_OPEN => Operation::Open,
            DEVFILE_RELEASE => Operation::Release,
            DEVFILE_READ => {
                let (from, narrow) = Position::decode(third, first)?;
                Operation::Read { address: first, bytes: length()?, from, narrow }
            }
            DEVFILE_WRITE => {
                let (from, narrow) = Position::decode(third, first)?;
                Operation::Write { address: first, bytes: length()?, from, narrow }
            }
            DEVFILE_IOCTL => {
                let number = u32::try_from(first).ok()?;
                let (narrow, answer) = match third {
                    0 => (false, None),
                    bits => {
                        let (narrow, place) = manners(bits, second)?;
                        (narrow, Descriptor::decode(number, bits, place)?)
                    }
                };
                Operation::Ioctl { number, argument: second, narrow, answer }
            }
            DEVFILE_POLL => Operation::Poll { events: events()? },
            DEVFILE_AWAIT => Operation::Await { events: events()? },
            DEVFILE_CANCEL => Operation::Cancel,
            DEVFILE_FORGET => Operation::Forget,
            DEVFILE_NOTHING => Operation::Nothing,
            DEVFILE_MAP => Operation::Map(Map::decode([first, second, third])?),
            DEVFILE_UNMAP => Operation::Unmap { first: u32::try_from(first).ok()? },
            DEVFILE_ADOPT => Operation::Adopt { number: u32::try_from(first).ok()? },
            DEVFILE_SEEK => Operation::Seek { offset: first as i64, whence: u32::try_from(second).ok()? },
            _ => return None,
        };
        if tag >= DEVFILE_MAX_OPERATIONS || file >= DEVFILE_MAX_FILES || count > DEVFILE_MAX_RANGES {
            return None;
        }
        let mut ranges = Vec::new();
        if count > 0 {
            let mut list = [[0; Range::SIZE]; DEVFILE_MAX_RANGES as usize];
            let list = list.get_mut(..count as usize)?;
            let (places, _) = list.as_flattened_mut().as_chunks_mut::<8>();
            for (place, bytes) in (HEADER_WORDS..).zip(places) {
                *bytes = word(place).to_le_bytes();
            }
            ranges = Range::decode_list(list.as_flattened())?.to_vec();
        }
        if let Operation::Ioctl { answer: Some(answer), .. } = &operation {
            answer.is_reached(&ranges).then_some(())?;
        }
        let mut taken = Vec::new();
        if taken_count > 0 {
            let is_ioctl = matches!(operation, Operation::Ioctl { .. });
            (is_ioctl && taken_count <= DEVFILE_MAX_DESCRIPTORS).then_some(())?;
            taken = Taken::decode_list(taken_count, &ranges, word)?;
        }
        Some(Self { operation, tag, space, file, flags, lane: NonZeroU32::new(lane), ranges, taken })
    }
}

/// Words before the ranges.
const HEADER_WORDS: usize = DEVFILE_REQUEST_RANGES as usize / 8;
/// Words before the descriptors.
const FIRST_TAKEN: usize = DEVFILE_REQUEST_DESCRIPTORS as usize / 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(operation: u32, tag: u32, file: u32, arguments: [u64; 3], count: u32) -> Option<Request> {
        let mut bytes = [0; Request::SIZE];
        bytes[..4].copy_from_slice(&operation.to_le_bytes());
        bytes[4..8].copy_from_slice(&tag.to_le_bytes());
        bytes[16..20].copy_from_slice(&file.to_le_bytes());
        for (at, argument) in [24, 32, 40].into_iter().zip(arguments) {
            bytes[at..at + 8].copy_from_slice(&argument.to_le_bytes());
        }
        bytes[48..52].copy_from_slice(&count.to_le_bytes());
        for at in (56..DEVFILE_REQUEST_DESCRIPTORS as usize).step_by(16) {
            bytes[at + 8] = 1;
            bytes[at + 12] = 1;
        }
        Request::decode(&bytes)
    }

    #[test]
    fn what_cannot_be_is_refused_whole() {
        let read = request(DEVFILE_READ, 99, 255, [0x7000, 64, 8], 16).unwrap();
        let from = Position(8);
        assert_eq!(read.operation, Operation::Read { address: 0x7000, bytes: 64, from, narrow: false });
        assert_eq!((read.tag, read.file, read.ranges.len()), (99, 255, 16));
        assert_eq!(request(DEVFILE_READ, 100, 255, [0x7000, 64, 8], 16), None, "no such tag");
        assert_eq!(request(DEVFILE_READ, 99, 256, [0x7000, 64, 8], 16), None, "no such file");
        assert_eq!(request(DEVFILE_READ, 99, 255, [0x7000, 64, 8], 17), None, "too many ranges");
        let bytes = u64::from(DEVFILE_MAX_BYTES);
        assert!(request(DEVFILE_READ, 99, 255, [0x7000, bytes, 8], 16).is_some());
        assert_eq!(request(DEVFILE_READ, 99, 255, [0x7000, bytes + 1, 8], 16), None, "too long");
        assert_eq!(request(DEVFILE_IOCTL, 0, 0, [1 << 32, 0, 0], 0), None, "no number of an ioctl");
        assert_eq!(request(0, 0, 0, [0; 3], 0), None);
        assert_eq!(request(DEVFILE_SEEK + 1, 0, 0, [0; 3], 0), None);
        assert_eq!(request(DEVFILE_IOCTL, 0, 0, [1, 1 << 32, 1], 0), None, "no argument of 32 bits");
        assert_eq!(request(DEVFILE_IOCTL, 0, 0, [1, 1, 8], 0), None, "no such manner");
        assert_eq!(request(DEVFILE_HELLO, 0, 0, [1 << 32, 0, 0], 0), None, "no number of a device");
    }

    #[test]
    fn a_place_in_a_file_is_none_or_one_that_can_be() {
        let read = |address, bits| match request(DEVFILE_READ, 1, 2, [address, 8, bits], 1)?.operation {
            Operation::Read { from, narrow, .. } => Some((from.offset(), narrow)),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(1 << 40, 0), Some((None, false)));
        assert_eq!(read(1 << 40, 1), Some((Some(0), false)));
        assert_eq!(read(1, u64::MAX >> 1), Some((Some(i64::MAX - 1), false)));
        assert_eq!(read(1, DEVFILE_MOVE_NARROW | 6), Some((Some(5), true)));
        assert_eq!(read(1 << 32, DEVFILE_MOVE_NARROW), None, "no address of 32 bits");
    }

    #[test]
    fn a_descriptor_that_is_taken_stands_where_the_operation_reads() {
        let ask = |operation: u32, count: u32, ways: u8, address: u64, rest: u64| {
            let mut bytes = [0; Request::SIZE];
            bytes[..4].copy_from_slice(&operation.to_le_bytes());
            bytes[24] = 1;
            bytes[48..52].copy_from_slice(&(count << 16 | 2).to_le_bytes());
            bytes[56..64].copy_from_slice(&0x1000u64.to_le_bytes());
            (bytes[64], bytes[68]) = (16, ways);
            // What is not in the request reads as zeros, where this one is.
            (bytes[80], bytes[84]) = (8, ways);
            for at in (DEVFILE_REQUEST_DESCRIPTORS as usize..Request::SIZE).step_by(Taken::SIZE) {
                bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
                bytes[at + 8..at + 16].copy_from_slice(&rest.to_le_bytes());
            }
            Request::decode(&bytes).map(|request| request.taken)
        };
        let last = Taken { address: 0x100c, file: 255, number: 4095, device: 7 };
        let rest = 7 << 32 | 4095 << 16 | 255;
        assert_eq!(ask(DEVFILE_IOCTL, 1, 3, 0x100c, rest), Some(alloc::vec![last]));
        assert_eq!(ask(DEVFILE_IOCTL, 9, 1, 0x100c, rest).map(|taken| taken.len()), Some(9));
        assert_eq!(ask(DEVFILE_IOCTL, 10, 1, 0x100c, rest), None, "too many");
        assert_eq!(ask(DEVFILE_READ, 1, 1, 0x100c, rest), None, "not of an ioctl");
        assert_eq!(ask(DEVFILE_IOCTL, 1, 2, 0x100c, rest), None, "not read there");
        assert_eq!(ask(DEVFILE_IOCTL, 1, 1, 0x100d, rest), None, "it ends beyond");
        assert_eq!(ask(DEVFILE_IOCTL, 1, 1, 0xffe, rest), None, "it begins before");
        assert_eq!(ask(DEVFILE_IOCTL, 1, 1, 0x1000, rest + 1), None, "no such file");
        assert_eq!(ask(DEVFILE_IOCTL, 1, 1, 0x1000, rest + (1 << 16)), None, "no such number");
    }

    #[test]
    fn a_descriptor_is_where_the_ioctl_reaches() {
        let ask =
            |size: u64, bits: u64| match request(DEVFILE_IOCTL, 1, 2, [size << 16 | 7, 0x1000, bits], 0)?
                .operation
            {
                Operation::Ioctl { answer, narrow, .. } => Some((answer, narrow)),
                other => panic!("{other:?}"),
            };
        assert_eq!(ask(8, 0), Some((None, false)));
        let last = Descriptor { place: Answer::Field(4), file: 255 };
        let result = Descriptor { place: Answer::Result, file: 3 };
        assert_eq!(ask(8, 255 << 32 | 5 << 16 | 1), Some((Some(last), true)));
        assert_eq!(ask(8, 255 << 32 | 6 << 16), None, "it ends beyond");
        assert_eq!(ask(8, 256 << 32 | 5 << 16), None, "no such file");
        assert_eq!(ask(8, 1 << 32), None, "a file, and no descriptor");
        assert_eq!(ask(0, 3 << 32 | 2), Some((Some(result), false)));
        assert_eq!(ask(8, 3 << 32 | 1 << 16 | 2), None, "two places");
        assert_eq!(ask(8, 256 << 32 | 2), None, "no such file");
    }

    #[test]
    fn a_descriptor_elsewhere_is_a_word_of_a_range_that_may_be_written() {
        let ask = |bits: u64, address: u64, size: u8, ways: u8| {
            let mut bytes = [0; Request::SIZE];
            bytes[0] = DEVFILE_IOCTL as u8;
            bytes[24] = 1;
            bytes[40..48].copy_from_slice(&bits.to_le_bytes());
            bytes[48] = 2;
            // Of two ranges the second.
            (bytes[64], bytes[68]) = (16, 3);
            bytes[72..80].copy_from_slice(&address.to_le_bytes());
            (bytes[80], bytes[84]) = (size, ways);
            Request::decode(&bytes).map(|request| request.operation)
        };
        let elsewhere = |range: u64| 255 << 32 | range << 16 | DEVFILE_IOCTL_RANGE;
        let answer = Some(Descriptor { place: Answer::Range(1), file: 255 });
        let expected = Operation::Ioctl { number: 1, argument: 0, narrow: false, answer };
        assert_eq!(ask(elsewhere(2), 0x1004, 4, 2), Some(expected));
        assert_eq!(ask(elsewhere(0), 0x1004, 4, 2), None, "no range");
        assert_eq!(ask(elsewhere(3), 0x1004, 4, 2), None, "no such range");
        assert_eq!(ask(elsewhere(2), 0x1004, 4, 1), None, "it cannot be written");
        assert_eq!(ask(elsewhere(2), 0x1004, 3, 2), None, "no word");
        assert_eq!(ask(elsewhere(2), 0x1ffe, 4, 2), None, "in two pages");
        assert_eq!(ask(elsewhere(2) | DEVFILE_IOCTL_RESULT, 0x1004, 4, 2), None, "two places");
        assert_eq!(ask(elsewhere(2) + (1 << 32), 0x1004, 4, 2), None, "no such file");
    }

    #[test]
    fn a_map_is_whole_pages_that_are_there() {
        let map = |offset, bytes, first: u64, rights: u64| {
            let asked = request(DEVFILE_MAP, 1, 2, [offset, bytes, first | rights << 32], 0)?;
            match asked.operation {
                Operation::Map(map) => Some(map),
                other => panic!("{other:?}"),
            }
        };
        let all = Map { offset: 0x3000, first: 0, pages: 0x1_0000, read: true, write: false };
        assert_eq!(map(0x3000, DEVFILE_MAPS_SIZE, 0, 1), Some(all));
        let last = Map { offset: 0, first: 0xffff, pages: 1, read: true, write: true };
        assert_eq!(map(0, 0x1000, 0xffff, 3), Some(last));
        assert_eq!(map(0, DEVFILE_MAPS_SIZE, 1, 1), None, "beyond the last page");
        assert_eq!(map(0, 0x2000, 0xffff, 1), None);
        assert_eq!(map(0, 0x1000, 0xffff_ffff, 1), None);
        assert_eq!(map(0, 0, 0, 1), None, "nothing");
        assert_eq!(map(0, 0x1800, 0, 1), None, "not a page");
        assert_eq!(map(0x800, 0x1000, 0, 1), None);
        assert_eq!(map(0, 0x1000, 0, 4), None, "no such right");
        assert_eq!(map(i64::MAX as u64 & !0xfff, 0x1000, 0, 1), None, "beyond what a file can be");
    }

    proptest! {
        #[test]
        fn whatever_decodes_is_in_bounds(bytes in proptest::collection::vec(any::<u8>(), Request::SIZE), small: bool) {
            let mut bytes: [u8; Request::SIZE] = bytes.try_into().unwrap();
            if small {
                for at in [1, 2, 3, 5, 6, 7, 17, 18, 19, 49, 51] {
                    bytes[at] = 0;
                }
                bytes[50] %= 11;
                bytes[0] %= 16;
            }
            if let Some(request) = Request::decode(&bytes) {
                prop_assert!(request.tag < 100 && request.file < 256 && request.ranges.len() <= 16);
                prop_assert!(request.taken.len() <= 9);
                if let Operation::Ioctl { answer: Some(answer), .. } = request.operation {
                    prop_assert!(answer.file < 256);
                }
            }
        }
    }
}
