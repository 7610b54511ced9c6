//! Device files: operations on a file of the driver domain's, and the calls by which their memory is reached.
//!
//! A mirrored device file is a virtio device with one queue. A buffer of it is a request, to be read, and an answer, to be written; the process that
//! made the operation stays in the guest, and so does its memory. What of it the operation may reach, the guest *declares* to the hypervisor
//! ([`DEVFILE_DECLARE`]); whoever serves the device has declared memory copied ([`DEVFILE_COPY`]), and nothing else.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 3.1, 4.1, 5.2.

/// Virtio device type: the last that has a PCI device identifier. Nobody has registered it.
pub const DEVFILE_KIND: u32 = 63;

/// Where the numbers of these calls begin ([`interface`](crate::call::interface)).
pub const DEVFILE_CALLS: u64 = 0x534c_0020;

/// Declares what an operation may reach of the calling process: slot of the device on the caller's bus, tag of the operation, guest-physical address of
/// the ranges, their number. The process is the one whose page tables the calling processor uses. What the tag had declared before is withdrawn.
pub const DEVFILE_DECLARE: u64 = 0x534c_0020;
/// Withdraws what an operation may reach: slot, tag. When it returns nobody reaches it any more.
pub const DEVFILE_WITHDRAW: u64 = 0x534c_0021;
/// Copies declared memory, by the domain that serves the device: its slot of the back-end function and, from bit 32 on, the tag; the address in the
/// process; guest-physical address in the caller; bytes (up to [`DEVFILE_MAX_COPY`]) and, from bit 32 on, one `DEVFILE_` way. Fails with EPERM if that is not declared, and with EFAULT if
/// the process has no such page now: then it can be tried again.
pub const DEVFILE_COPY: u64 = 0x534c_0022;

/// A range may be read by the driver domain.
pub const DEVFILE_IN: u32 = 1;
/// A range may be written by the driver domain.
pub const DEVFILE_OUT: u32 = 2;
/// Most operations of a device that are under way at once. Tags are below it.
pub const DEVFILE_MAX_OPERATIONS: u32 = 100;
/// Most ranges of an operation.
pub const DEVFILE_MAX_RANGES: u32 = 16;
/// Most bytes of all ranges of an operation together.
pub const DEVFILE_MAX_BYTES: u32 = 0x8_0000;
/// Most bytes that one call copies.
pub const DEVFILE_MAX_COPY: u32 = 0x4000;
/// Bytes of a range: address (8), bytes (4), ways (4).
pub const DEVFILE_RANGE_SIZE: u32 = 0x10;

/// Most descriptors that an operation takes: those of a buffer in eight planes, and that of its request.
pub const DEVFILE_MAX_DESCRIPTORS: u32 = 9;
/// Bytes of a descriptor that an operation takes: where it stands, four bytes of the process that the operation may read (8), number of the file (2), the program's number for
/// it (2), number of the device (4), as its [`DEVFILE_HELLO`] said it.
pub const DEVFILE_DESCRIPTOR_SIZE: u32 = 0x10;
/// A driver finds such a descriptor under a number that is this much more than the program's, which is below [`DEVFILE_MAX_NUMBER`]. The guest undoes that in what the driver answers.
pub const DEVFILE_LENT: u32 = 1024;
/// End of the numbers of descriptors that operations take.
pub const DEVFILE_MAX_NUMBER: u32 = 4096;

/// Bytes of a request: operation (4), tag (4), address space (8), file (4), flags (4), three arguments (8 each), number of ranges (2), number of descriptors (2), page of the lane in the
/// window (4), then room for [`DEVFILE_MAX_RANGES`] ranges and [`DEVFILE_MAX_DESCRIPTORS`] descriptors.
pub const DEVFILE_REQUEST_SIZE: u32 = 0x38 + 0x100 + 0x90;
/// Offset of the descriptors in a request.
pub const DEVFILE_REQUEST_DESCRIPTORS: u32 = 0x138;
/// Offset of the ranges in a request.
pub const DEVFILE_REQUEST_RANGES: u32 = 0x38;
/// Bytes of an answer: result (8), negative if it is an error's number; zero (8).
pub const DEVFILE_ANSWER_SIZE: u32 = 0x10;

/// Operation: the driver is there, and names this life of the device by a number (32 bits) that none of the guest's had before. Answered with the length of what the device is said to be, which
/// is written into the page of the lane.
pub const DEVFILE_HELLO: u32 = 1;
/// Opens the file under a number that the guest chose. Flags: as open(2).
pub const DEVFILE_OPEN: u32 = 2;
/// Closes a file. Once it is answered its number is free. It waits for nothing that a driver does.
pub const DEVFILE_RELEASE: u32 = 3;
/// Reads: address, bytes, and from where: 0 is where the file is, otherwise one more than the offset, with or without [`DEVFILE_MOVE_NARROW`]. Flags: as open(2).
pub const DEVFILE_READ: u32 = 4;
/// Writes: as [`DEVFILE_READ`].
pub const DEVFILE_WRITE: u32 = 5;
/// A program of 32 bits reads or writes.
pub const DEVFILE_MOVE_NARROW: u64 = 1 << 63;
/// Ioctl: number, argument, and `DEVFILE_IOCTL_` bits. Flags: as open(2). One that takes descriptors is not posted in a lane.
pub const DEVFILE_IOCTL: u32 = 6;
/// A program of 32 bits makes it.
pub const DEVFILE_IOCTL_NARROW: u64 = 1;
/// Its result is a descriptor, whose file becomes one of the device's, as below.
pub const DEVFILE_IOCTL_RESULT: u64 = 2;
/// The descriptor that it answers with is where a range begins, in a word of its own: [`DEVFILE_IOCTL_DESCRIPTOR`] is one more than the range's number.
pub const DEVFILE_IOCTL_RANGE: u64 = 4;
/// From this bit on, 16 bits: one more than the offset of the descriptor that it answers with in its structure; 0: it answers with none. The descriptor's file becomes one of
/// the device's, under a number that the guest chose. Such an ioctl is not posted in a lane.
pub const DEVFILE_IOCTL_DESCRIPTOR: u32 = 16;
/// From this bit on: number of that file.
pub const DEVFILE_IOCTL_FILE: u32 = 32;
/// What the file is ready for now: events, as poll(2).
pub const DEVFILE_POLL: u32 = 7;
/// Waits until the file is ready for one of these events, as poll(2).
pub const DEVFILE_AWAIT: u32 = 8;
/// Interrupts the operation with this tag, as a signal does. It has no tag of its own.
pub const DEVFILE_CANCEL: u32 = 9;
/// The address space is no more. It has no tag.
pub const DEVFILE_FORGET: u32 = 10;
/// Answered with 0 by whoever serves the queue: what an operation costs at the least.
pub const DEVFILE_NOTHING: u32 = 11;

/// Maps a part of the file into the device's memory of maps: offset in the file, bytes (whole pages), and the first page there that it takes with, from bit 32 on, `DEVFILE_MAPS_` bits. The guest says which
/// pages are free, and maps them for its process. Flags: as open(2).
pub const DEVFILE_MAP: u32 = 12;
/// Takes away what [`DEVFILE_MAP`] mapped: first page. Once it is answered the pages are free.
pub const DEVFILE_UNMAP: u32 = 13;

/// Has the request of this number, which was posted in the lane, answered by the queue.
pub const DEVFILE_ADOPT: u32 = 14;

/// Moves where the file is read and written next, as lseek(2): offset, whence.
pub const DEVFILE_SEEK: u32 = 15;

/// State of a lane: nobody looks at it.
///
/// A *lane* is a page that the guest issues for an address space, in which one request at a time is left for a shadow that looks for it. It is *posted* by a change of the state from
/// open, and answered when the state is not posted any more. Who waits too long for that has it adopted ([`DEVFILE_ADOPT`]).
pub const DEVFILE_LANE_CLOSED: u32 = 0;
/// State of a lane: the shadow looks for a request.
pub const DEVFILE_LANE_OPEN: u32 = 1;
/// State of a lane: there is a request.
pub const DEVFILE_LANE_POSTED: u32 = 2;
/// Offset of the state (4) in a lane, and of the number of the request that is posted (4).
pub const DEVFILE_LANE_STATE: u32 = 0;
/// Offset of the result (8) in a lane, and of the number of the request that it answers (4).
pub const DEVFILE_LANE_RESULT: u32 = 0x40;
/// Offset of the request in a lane.
pub const DEVFILE_LANE_REQUEST: u32 = 0x80;
/// What is answered in a lane where the shadow has not been given the file: it is to be asked for by the queue.
pub const DEVFILE_UNKNOWN_FILE: u32 = 4096;

/// Bytes of the device's memory of maps: shared memory region [`DEVFILE_MAPS_REGION`] (Virtio 1.2, 2.10). Its page `n` is reference `n` of the grant space of
/// the back-end function ([`crate::grant::GRANT_DEVICE`]), in which whoever serves the device issues pages of its own memory.
pub const DEVFILE_MAPS_SIZE: u64 = 0x1000_0000;
/// Identifier of the region.
pub const DEVFILE_MAPS_REGION: u32 = 0;
/// A map may be read.
pub const DEVFILE_MAPS_READ: u32 = 1;
/// A map may be written.
pub const DEVFILE_MAPS_WRITE: u32 = 2;
/// Most maps of a device at once.
pub const DEVFILE_MAX_MAPS: u32 = 256;

/// Most address spaces of a guest that have a file of the device open.
pub const DEVFILE_MAX_SPACES: u32 = 32;
/// Most files of a device that are open at once.
pub const DEVFILE_MAX_FILES: u32 = 256;

/// Bytes of the device's configuration: version (4), mode of the node (4), its path below /dev (64), its class (32).
pub const DEVFILE_CONFIG_SIZE: u32 = 0x68;
/// Version of the configuration and of the requests.
pub const DEVFILE_VERSION: u32 = 4;
/// Bytes of the path.
pub const DEVFILE_NODE_SIZE: u32 = 0x40;
/// Bytes of the class.
pub const DEVFILE_CLASS_SIZE: u32 = 0x20;

/// A call, as its caller said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`DEVFILE_DECLARE`].
    Declare {
        /// Slot of the device.
        slot: u8,
        /// Tag of the operation.
        tag: u32,
        /// Guest-physical address of the ranges.
        list: u64,
        /// Their number, up to [`DEVFILE_MAX_RANGES`].
        count: u32,
    },
    /// [`DEVFILE_WITHDRAW`].
    Withdraw {
        /// Slot of the device.
        slot: u8,
        /// Tag of the operation.
        tag: u32,
    },
    /// [`DEVFILE_COPY`].
    Copy {
        /// Slot of the back-end function.
        slot: u8,
        /// What is copied.
        copy: Copy,
    },
}

/// What [`DEVFILE_COPY`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Tag of the operation.
    pub tag: u32,
    /// Address in the process.
    pub address: u64,
    /// Guest-physical address in the caller.
    pub local: u64,
    /// Bytes, 1 to [`DEVFILE_MAX_COPY`].
    pub bytes: u32,
    /// To the process.
    pub out: bool,
}

impl Call {
    /// The call with this number and these arguments; `None`: it is not one of these. An inner `None`: its arguments cannot be right.
    pub fn decode(number: u64, arguments: [u64; 4]) -> Option<Option<Self>> {
        let [first, second, third, fourth] = arguments;
        Some(match number {
            DEVFILE_DECLARE => (|| {
                let (slot, tag) = (u8::try_from(first).ok()?, tag(second)?);
                let count = u32::try_from(fourth).ok().filter(|count| *count <= DEVFILE_MAX_RANGES)?;
                Some(Self::Declare { slot, tag, list: third, count })
            })(),
            DEVFILE_WITHDRAW => {
                (|| Some(Self::Withdraw { slot: u8::try_from(first).ok()?, tag: tag(second)? }))()
            }
            DEVFILE_COPY => (|| {
                let (slot, tag) = (u8::try_from(first & 0xffff_ffff).ok()?, tag(first >> 32)?);
                let bytes = fourth as u32;
                let out = match (fourth >> 32) as u32 {
                    DEVFILE_IN => false,
                    DEVFILE_OUT => true,
                    _ => return None,
                };
                (1..=DEVFILE_MAX_COPY).contains(&bytes).then_some(())?;
                Some(Self::Copy { slot, copy: Copy { tag, address: second, local: third, bytes, out } })
            })(),
            _ => return None,
        })
    }
}

fn tag(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|tag| *tag < DEVFILE_MAX_OPERATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_say_no_more_than_they_can() {
        let copy = |first, fourth| Call::decode(DEVFILE_COPY, [first, 0x7000, 0x1000, fourth]).unwrap();
        let way = u64::from(DEVFILE_OUT) << 32;
        let asked = Copy { tag: 99, address: 0x7000, local: 0x1000, bytes: 0x4000, out: true };
        assert_eq!(copy(99 << 32 | 5, way | 0x4000), Some(Call::Copy { slot: 5, copy: asked }));
        assert_eq!(copy(100 << 32 | 5, way | 0x4000), None, "no such tag");
        assert_eq!(copy(99 << 32 | 256, way | 0x4000), None, "no such slot");
        assert_eq!(copy(99 << 32 | 5, way | 0x4001), None, "too much");
        assert_eq!(copy(99 << 32 | 5, way), None, "nothing");
        assert_eq!(copy(5, 3 << 32 | 1), None, "both ways at once");
        let declare = |tag, count| Call::decode(DEVFILE_DECLARE, [4, tag, 0x2000, count]).unwrap();
        assert!(declare(99, 16).is_some());
        assert!(declare(99, 17).is_none());
        assert!(declare(100, 16).is_none());
        assert_eq!(
            Call::decode(DEVFILE_WITHDRAW, [4, 1, 9, 9]),
            Some(Some(Call::Withdraw { slot: 4, tag: 1 }))
        );
        assert_eq!(Call::decode(DEVFILE_COPY + 1, [0; 4]), None);
    }
}
