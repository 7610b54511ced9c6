//! Calls of grants by a table, the older way: a granter lends pages by writing entries, and its peer has them mapped or copied for each use.
//!
//! A list is read once for each entry. Calls say how many entries were carried out: fewer than asked for if one failed or there were more than
//! [`GRANT_MAX_BATCH`](crate::grant::GRANT_MAX_BATCH); the call fails if none was.

use crate::call::Error;
use crate::grant::{GRANT_DEVICE, PAGE, several, small};

/// Where the numbers of these calls begin ([`interface`](crate::call::interface)).
pub const TABLE_CALLS: u64 = 0x534c_0040;

/// Lends pages of a space by a table, the older way: number of the space, guest-physical address of the table, which is a page's and has eight bytes for each reference.
/// Nothing can be issued in the space any more; its peer has pages mapped and copied, as the entries permit. -EBUSY: something is granted.
pub const TABLE_LEND: u64 = 0x534c_0040;
/// Maps pages that a peer lends by a table: window, guest-physical address of a list of references, number. A window is its address, or [`GRANT_DEVICE`] and the
/// slot of a back-end function on the caller's bus. An entry is eight bytes: the reference, and [`TABLE_MAP_READ`]. -EPERM: the page may only be read.
pub const TABLE_MAP: u64 = 0x534c_0041;
/// Unmaps them: window, guest-physical address of a list of references, number. An entry is eight bytes.
pub const TABLE_UNMAP: u64 = 0x534c_0042;
/// Copies between memory of the caller's and pages that a peer lends by a table: window, guest-physical address of a list, number of entries. An entry is two words of eight bytes:
/// the reference with [`TABLE_COPY_OFFSET`], [`TABLE_COPY_BYTES`] and [`TABLE_COPY_OUT`], then the guest-physical address in the caller.
pub const TABLE_COPY: u64 = 0x534c_0043;

/// In a table: the peer may use the page. Bits 63:12 are its guest-physical address.
pub const TABLE_PERMIT: u64 = 1 << 0;
/// In a table: it may only read it.
pub const TABLE_READ_ONLY: u64 = 1 << 1;
/// In a table, the hypervisor's: it uses it. The granter ends a grant by exchanging an entry without this bit for 0, in one locked access.
pub const TABLE_USED: u64 = 1 << 2;
/// A page that is mapped is only read.
pub const TABLE_MAP_READ: u64 = 1 << 32;
/// Of a copy: what the first byte's place in the page is multiplied by.
pub const TABLE_COPY_OFFSET: u64 = 1 << 32;
/// Of a copy: what the number of bytes, 1 to 4096, is multiplied by.
pub const TABLE_COPY_BYTES: u64 = 1 << 48;
/// Of a copy: out of the caller's memory, into the page.
pub const TABLE_COPY_OUT: u64 = 1 << 63;

/// Where a domain sees a space of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The one that it accepted at this address.
    At(u64),
    /// That of the back-end function in this slot of its bus.
    Function(u8),
}

impl Window {
    fn decode(word: u64) -> Option<Self> {
        if word.is_multiple_of(PAGE) {
            return (word != 0).then_some(Self::At(word));
        }
        small(word)?.checked_sub(GRANT_DEVICE as u8).map(Self::Function)
    }
}

/// A page that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Which.
    pub reference: u32,
    /// It is written, too.
    pub writes: bool,
}

impl Mapped {
    /// Bytes of an entry of a list.
    pub const SIZE: u64 = 8;

    /// The entry of this word; `None` if a bit is set that means nothing.
    pub const fn decode(word: u64) -> Option<Self> {
        match word >> 32 << 32 {
            0 => Some(Self { reference: word as u32, writes: true }),
            TABLE_MAP_READ => Some(Self { reference: word as u32, writes: false }),
            _ => None,
        }
    }
}

/// A part of a page that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which page.
    pub reference: u32,
    /// Its first byte there.
    pub offset: u64,
    /// Bytes, which do not leave the page.
    pub bytes: u64,
    /// Into the page; else out of it.
    pub out: bool,
    /// Guest-physical address in the caller.
    pub local: u64,
}

impl Part {
    /// Bytes of an entry of a list.
    pub const SIZE: u64 = 16;

    /// The entry of these words; `None` if a bit is set that means nothing, or the part is no part of a page.
    pub fn decode([what, local]: [u64; 2]) -> Option<Self> {
        let offset = (what / TABLE_COPY_OFFSET) & 0xffff;
        let bytes = (what & !TABLE_COPY_OUT) / TABLE_COPY_BYTES;
        let is_part = bytes != 0 && offset.checked_add(bytes).is_some_and(|end| end <= PAGE);
        is_part.then_some(Self {
            reference: what as u32,
            offset,
            bytes,
            out: what & TABLE_COPY_OUT != 0,
            local,
        })
    }
}

/// A list of what a peer wants of pages that are lent by a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Where the caller sees them.
    pub window: Window,
    /// Guest-physical address of the list, a multiple of eight.
    pub at: u64,
    /// Entries, 1 to [`GRANT_MAX_BATCH`].
    pub count: u64,
}

impl List {
    fn decode([window, at, count, _]: [u64; 4]) -> Option<Self> {
        at.is_multiple_of(8).then_some(())?;
        Some(Self { window: Window::decode(window)?, at, count: several(count)? })
    }
}

/// What a domain asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`TABLE_LEND`].
    Lend {
        /// Number of the space.
        space: u8,
        /// Address of the table.
        at: u64,
    },
    /// [`TABLE_MAP`].
    Map(List),
    /// [`TABLE_UNMAP`].
    Unmap(List),
    /// [`TABLE_COPY`].
    Copy(List),
}

impl Call {
    /// The call of this number with these arguments; `None` if it is another one's number.
    ///
    /// # Errors
    /// [`Error::BadArgument`]: a number is wider than it can be, or an address is not aligned.
    pub fn decode(number: u64, arguments: [u64; 4]) -> Option<Result<Self, Error>> {
        let decoded = match number {
            TABLE_LEND => Self::lend(arguments),
            TABLE_MAP => List::decode(arguments).map(Self::Map),
            TABLE_UNMAP => List::decode(arguments).map(Self::Unmap),
            TABLE_COPY => List::decode(arguments).map(Self::Copy),
            _ => return None,
        };
        Some(decoded.ok_or(Error::BadArgument))
    }

    fn lend([space, at, ..]: [u64; 4]) -> Option<Self> {
        at.is_multiple_of(PAGE).then_some(())?;
        Some(Self::Lend { space: small(space)?, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_or_unknown_is_refused() {
        let asks = |number, arguments| Call::decode(number, arguments).unwrap();
        for (number, arguments) in [
            (TABLE_LEND, [0, 8, 0, 0]),
            (TABLE_MAP, [0, 0, 1, 0]),
            (TABLE_MAP, [GRANT_DEVICE - 1, 0, 1, 0]),
            (TABLE_MAP, [0x101, 0, 1, 0]),
            (TABLE_UNMAP, [PAGE, 4, 1, 0]),
            (TABLE_COPY, [PAGE, 0, 0, 0]),
        ] {
            assert_eq!(asks(number, arguments), Err(Error::BadArgument), "{number:#x} {arguments:x?}");
        }
        let window = Window::Function(3);
        let map = Call::Map(List { window, at: 0x18, count: 2 });
        assert_eq!(asks(TABLE_MAP, [GRANT_DEVICE + 3, 0x18, 2, 0]), Ok(map));
        assert_eq!(Call::decode(TABLE_COPY + 1, [0; 4]), None);
    }

    #[test]
    fn parts_stay_in_their_page() {
        let part = |offset: u64, bytes: u64| {
            Part::decode([7 | (offset * TABLE_COPY_OFFSET) | (bytes * TABLE_COPY_BYTES), 0x123])
        };
        let whole = Part { reference: 7, offset: 0, bytes: PAGE, out: false, local: 0x123 };
        assert_eq!(part(0, PAGE), Some(whole));
        assert_eq!(part(0, PAGE | 1 << 15), Some(Part { out: true, ..whole }));
        assert_eq!(part(PAGE - 1, 1), Some(Part { offset: PAGE - 1, bytes: 1, ..whole }));
        for (offset, bytes) in [(0, 0), (1, PAGE), (PAGE, 1), (0xffff, 1), (0, PAGE + 1), (0, 0x7fff)] {
            assert_eq!(part(offset, bytes), None, "{offset} {bytes}");
        }
        assert_eq!(Mapped::decode(9 | TABLE_MAP_READ), Some(Mapped { reference: 9, writes: false }));
        assert_eq!(Mapped::decode(9), Some(Mapped { reference: 9, writes: true }));
        assert_eq!(Mapped::decode(9 | 1 << 33), None);
    }
}
