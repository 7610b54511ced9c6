//! Calls of regions: memory that a device holds for one guest, which the processors of the domain with the device do not see.
//!
//! A guest has a region with a device by one of its device files. The domain that serves the file sees where the region is, in the window of the
//! file's back-end function, and finds there what a window shows where nothing is lent. Its device reaches the region that is in use, and
//! may only read what else is issued to it. Pages of the region can be granted to its guest as maps of the file, by the address that the domain sees
//! them at, and to nobody else.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 4.2 and 5.3.

use crate::call::Error;

/// Where the numbers of these calls begin ([`interface`](crate::call::interface)).
pub const REGION_CALLS: u64 = 0x534c_0030;

/// Asks for the region of a back-end function: its slot. Answered with the guest-physical address of the region in the caller, and in the bits
/// below [`REGION_UNIT`] with its length in units. ENOENT: there is none, or the window is not open.
pub const REGION_FIND: u64 = 0x534c_0030;
/// Has a device reach the region of a back-end function, in place of any other: slot of the device, slot of the function or [`REGION_NONE`].
/// Answered with the address at which the device finds the region. When the call returns it reaches no other. ENOENT: the device has
/// no regions, or this function none with it.
pub const REGION_USE: u64 = 0x534c_0031;
/// Clears pages of a region: slot of the back-end function, first page, number of pages. Answered with their number, or that of the first
/// [`REGION_MAX_CLEAR`].
pub const REGION_CLEAR: u64 = 0x534c_0032;

/// No region.
pub const REGION_NONE: u64 = 0xff;
/// Bytes of a unit, of which regions are made.
pub const REGION_UNIT: u64 = 0x20_0000;
/// Most pages that one call clears.
pub const REGION_MAX_CLEAR: u64 = 512;

/// What a domain asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`REGION_FIND`].
    Find(u8),
    /// [`REGION_USE`].
    Use {
        /// Slot of the device.
        device: u8,
        /// Slot of the back-end function.
        function: Option<u8>,
    },
    /// [`REGION_CLEAR`].
    Clear {
        /// Slot of the back-end function.
        function: u8,
        /// First page.
        first: u64,
        /// Pages, 1 to [`REGION_MAX_CLEAR`].
        count: u64,
    },
}

impl Call {
    /// The call of this number with these arguments; `None` if it is another one's number.
    ///
    /// # Errors
    /// [`Error::BadArgument`]: a number is wider than it can be.
    pub fn decode(number: u64, [first, second, third, _]: [u64; 4]) -> Option<Result<Self, Error>> {
        let slot = |value: u64| u8::try_from(value).ok();
        let decoded = match number {
            REGION_FIND => slot(first).map(Self::Find),
            REGION_USE => slot(first).zip(slot(second)).map(|(device, function)| {
                let function = Some(function).filter(|_| second != REGION_NONE);
                Self::Use { device, function }
            }),
            REGION_CLEAR => {
                let count = (third != 0).then_some(third.min(REGION_MAX_CLEAR));
                slot(first).zip(count).map(|(function, count)| Self::Clear { function, first: second, count })
            }
            _ => return None,
        };
        Some(decoded.ok_or(Error::BadArgument))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_slot_is_refused() {
        let bad = Some(Err(Error::BadArgument));
        for (number, arguments) in [
            (REGION_FIND, [256, 0, 0, 0]),
            (REGION_USE, [256, 1, 0, 0]),
            (REGION_USE, [1, 256, 0, 0]),
            (REGION_CLEAR, [256, 0, 1, 0]),
            (REGION_CLEAR, [1, 0, 0, 0]),
        ] {
            assert_eq!(Call::decode(number, arguments), bad, "{number:#x} {arguments:x?}");
        }
        let none = Call::Use { device: 3, function: None };
        assert_eq!(Call::decode(REGION_USE, [3, REGION_NONE, 0, 0]), Some(Ok(none)));
        let some = Call::Use { device: 3, function: Some(4) };
        assert_eq!(Call::decode(REGION_USE, [3, 4, 0, 0]), Some(Ok(some)));
        let clear = Call::Clear { function: 4, first: 9, count: REGION_MAX_CLEAR };
        assert_eq!(Call::decode(REGION_CLEAR, [4, 9, u64::MAX, 0]), Some(Ok(clear)));
        assert_eq!(Call::decode(REGION_CLEAR + 1, [0; 4]), None);
    }
}
