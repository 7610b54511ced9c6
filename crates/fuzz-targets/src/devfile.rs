//! Device files: what a hostile guest asks for and declares, and what a hostile server asks to have copied.

use crate::Input;
use sluice_devfile::{Answer, Declarations, Lane, Operation, Range, Ranges, Request};
use sluice_hypercall::devfile::{
    Call, DEVFILE_COPY, DEVFILE_DECLARE, DEVFILE_MAX_BYTES, DEVFILE_MAX_DESCRIPTORS, DEVFILE_MAX_FILES,
    DEVFILE_MAX_NUMBER,
};
use sluice_hypercall::region;

/// Requests as they stand in a queue, or in a lane, where they are the same. Whatever is taken for one has a program's ranges only, in bounds, and takes descriptors from these.
pub fn request(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = [0; Request::SIZE];
    let given = input.rest();
    bytes.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
    let (lane, decoded) = (Lane::default(), Request::decode(&bytes));
    lane.open();
    assert!(lane.post(1, &bytes));
    assert_eq!(lane.request(), decoded);
    let Some(request) = decoded else { return };
    check(&request.ranges);
    assert!(request.taken.len() <= DEVFILE_MAX_DESCRIPTORS as usize);
    for taken in &request.taken {
        let holds = |range: &&Range| {
            let end = range.address + u64::from(range.bytes);
            range.input && range.address <= taken.address && taken.address + 4 <= end
        };
        assert!(request.ranges.iter().any(|range| holds(&range)));
        assert!(u32::from(taken.number) < DEVFILE_MAX_NUMBER && u32::from(taken.file) < DEVFILE_MAX_FILES);
    }
    if let Operation::Ioctl { answer: Some(answer), .. } = request.operation
        && let Answer::Range(number) = answer.place
    {
        let range = &request.ranges[usize::from(number)];
        assert!(range.output && range.bytes >= 4 && range.address.is_multiple_of(4));
    }
}

fn check(ranges: &[Range]) {
    let mut all = 0;
    for range in ranges {
        assert!(range.bytes > 0 && (range.input || range.output));
        assert!(range.address + u64::from(range.bytes) <= sluice_devfile::USER_END);
        all += u64::from(range.bytes);
    }
    assert!(all <= DEVFILE_MAX_BYTES.into());
}

/// A call of a region names slots, and clears a bounded number of pages.
fn region(arguments: [u64; 4]) {
    for number in region::REGION_FIND - 1..=region::REGION_CLEAR + 1 {
        match region::Call::decode(number, arguments) {
            None => assert!(!(region::REGION_FIND..=region::REGION_CLEAR).contains(&number)),
            Some(Ok(region::Call::Clear { count, .. })) => {
                assert!((1..=region::REGION_MAX_CLEAR).contains(&count))
            }
            Some(Ok(region::Call::Use { function, .. })) => {
                assert_eq!(function.map_or(region::REGION_NONE, u64::from), arguments[1])
            }
            Some(Ok(region::Call::Find(function))) => assert_eq!(u64::from(function), arguments[0]),
            Some(Err(_)) => assert!(arguments[0] > 255 || arguments[1] > 255 || arguments[2] == 0),
        }
    }
}

/// Calls in any order, and those of regions. What may be copied lies in one range that was declared last for its tag, in its way.
pub fn calls(data: &[u8]) {
    let mut input = Input::new(data);
    let mut declarations = Declarations::new();
    let mut declared: Vec<Option<Ranges>> = vec![None; 256];
    while !input.is_empty() {
        let number = DEVFILE_DECLARE + u64::from(input.u8() % 4);
        let (slot, tag) = (u64::from(input.u8() & 31), u64::from(input.u8() & 127));
        let first = if number == DEVFILE_COPY { slot | tag << 32 } else { slot };
        let second = if number == DEVFILE_COPY { u64::from(input.u16()) } else { tag };
        let fourth = if number == DEVFILE_COPY {
            u64::from(input.u16() & 0x7fff) | u64::from(input.u8() & 3) << 32
        } else {
            u64::from(input.u8() & 31)
        };
        region([input.u64(), input.u64(), input.u64(), 0]);
        match Call::decode(number, [first, second, 0x1000, fourth]).flatten() {
            None => {}
            Some(Call::Declare { tag, count, .. }) => {
                let mut list = Vec::new();
                for _ in 0..count {
                    list.extend(u64::from(input.u16()).to_le_bytes());
                    list.extend((u32::from(input.u16())).to_le_bytes());
                    list.extend((u32::from(input.u8() & 3)).to_le_bytes());
                }
                let Some(ranges) = Range::decode_list(&list) else { continue };
                check(&ranges);
                assert!(declarations.declare(tag, (), ranges.clone()));
                declared[tag as usize] = Some(ranges);
            }
            Some(Call::Withdraw { tag, .. }) => {
                assert_eq!(declarations.withdraw(tag), declared[tag as usize].take().is_some());
            }
            Some(Call::Copy { copy, .. }) => {
                let (start, end) = (copy.address, copy.address + u64::from(copy.bytes));
                let may = declared[copy.tag as usize].iter().flatten().any(|range| {
                    let way = if copy.out { range.output } else { range.input };
                    way && range.address <= start && end <= range.address + u64::from(range.bytes)
                });
                assert_eq!(declarations.check(&copy).is_ok(), may);
            }
        }
    }
}
