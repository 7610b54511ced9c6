//! Calls of grant spaces: a domain lets another one reach pages of its memory, by reference, and takes them back.
//!
//! A *peer* is named by its place in the caller's `peers` of the configuration, a space by its number with its granter. Reference `n` is page `n` of
//! the window. Calls that move several references say how many were done: fewer than asked for if one failed or there were more than
//! [`GRANT_MAX_BATCH`]; the call fails if none was.

use crate::call::Error;

/// Where the numbers of these calls begin ([`interface`](crate::call::interface)).
pub const GRANT_CALLS: u64 = 0x534c_0010;

/// Makes a space: peer, number of references. Answered with the number of the space.
pub const GRANT_CREATE: u64 = 0x534c_0010;
/// Ends a space in which nothing is granted: number.
pub const GRANT_DESTROY: u64 = 0x534c_0011;
/// Accepts a space: granter (a peer of the caller), number of the space, guest-physical address of the window, guest-physical address of the status words,
/// of eight bytes each, with [`GRANT_STATUS_ADDRESSES`], or [`GRANT_NO_STATUS`]. Whoever accepts clears the words before. Answered with the number of references.
pub const GRANT_ACCEPT: u64 = 0x534c_0012;
/// Gives a window up: its address. What is granted there is taken back at once.
pub const GRANT_LEAVE: u64 = 0x534c_0013;
/// Lets the peer reach pages, or write such as it may only read so far: space, first reference, guest-physical address of the first page and [`GRANT_READ_ONLY`], number of pages.
pub const GRANT_ISSUE: u64 = 0x534c_0014;
/// Takes pages back: space, first reference, number, 0 or [`GRANT_FORCED`].
pub const GRANT_REVOKE: u64 = 0x534c_0015;
/// Does a list of both: space, guest-physical address of the list, number of entries. An entry is two words of eight bytes: the reference with
/// [`GRANT_LIST_REVOKE`] and [`GRANT_FORCED`], then the page as for [`GRANT_ISSUE`].
pub const GRANT_BATCH: u64 = 0x534c_0016;
/// Asks for a reference: space, reference. Answered with `GRANT_IS_` bits.
pub const GRANT_QUERY: u64 = 0x534c_0017;
/// From now on a virtual device reaches what is granted in its space, [`GRANT_DEVICE`], and nothing else: its driver is refused before. Number of
/// the space. Answered with the number of references. There is one in a guest with `grants = "pages"`, and grants in it need no accepting: whoever
/// serves the device now sees them.
pub const GRANT_OPEN: u64 = 0x534c_0018;
/// Space of the virtual device in slot `n` of the caller's PCI bus: `GRANT_DEVICE + n`. It has at least as many references as the caller has pages, also
/// in holes; the device finds reference `n` at address `n << 12`.
pub const GRANT_DEVICE: u64 = 0x80;
/// Most references that one call moves.
pub const GRANT_MAX_BATCH: u64 = 512;
/// Most references of a space.
pub const GRANT_MAX_SIZE: u64 = 0x10_0000;
/// The peer keeps no status words: no revoke is ever answered with EBUSY.
pub const GRANT_NO_STATUS: u64 = 0xffff_ffff_ffff_ffff;
/// Each status word is followed by the machine address of its page, eight bytes, 0 where nothing is granted: for a device without an IOMMU. It is
/// to be read during a use only. Such uses hold up also a revoke by force. Refused with EPERM where no device of the caller reaches all memory anyway.
pub const GRANT_STATUS_ADDRESSES: u64 = 1 << 0;
/// The peer may not write the pages.
pub const GRANT_READ_ONLY: u64 = 1 << 0;
/// Whatever the status word says, unless [`GRANT_STATUS_ADDRESSES`].
pub const GRANT_FORCED: u64 = 1 << 32;
/// An entry of a list takes its reference back.
pub const GRANT_LIST_REVOKE: u64 = 1 << 33;
/// The peer has accepted the space, and lives.
pub const GRANT_IS_ACCEPTED: u64 = 1 << 0;
/// The reference is granted.
pub const GRANT_IS_ISSUED: u64 = 1 << 1;
/// The peer may write the page.
pub const GRANT_IS_WRITABLE: u64 = 1 << 2;
/// In a status word: the reference is granted. The other bits below 32 count the uses that the peer has under way.
pub const GRANT_STATUS_GRANTED: u64 = 1 << 63;

pub(crate) const PAGE: u64 = 0x1000;

/// A page that is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its guest-physical address.
    pub gpa: u64,
    /// The peer may write it.
    pub writable: bool,
}

impl Page {
    /// What is said of a page; `None` if it is not a page and the known bits.
    pub const fn decode(word: u64) -> Option<Self> {
        if word & (PAGE - 1) & !GRANT_READ_ONLY != 0 {
            return None;
        }
        Some(Self { gpa: word & !(PAGE - 1), writable: word & GRANT_READ_ONLY == 0 })
    }
}

/// Where a peer has its status words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Guest-physical address of the first, a whole page's.
    pub at: u64,
    /// [`GRANT_STATUS_ADDRESSES`].
    pub has_addresses: bool,
}

impl Status {
    /// What is said of them; `None` if it is not a page and the known bits.
    pub const fn decode(word: u64) -> Option<Self> {
        if word & (PAGE - 1) & !GRANT_STATUS_ADDRESSES != 0 {
            return None;
        }
        Some(Self { at: word & !(PAGE - 1), has_addresses: word & GRANT_STATUS_ADDRESSES != 0 })
    }

    /// Bytes from one to the next.
    pub const fn stride(self) -> u64 {
        if self.has_addresses { 16 } else { 8 }
    }
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// As [`GRANT_ISSUE`].
    Issue(u32, Page),
    /// As [`GRANT_REVOKE`].
    Revoke(u32, bool),
}

impl Entry {
    /// Bytes of one.
    pub const SIZE: u64 = 16;

    /// The entry of these words; `None` if a bit is set that means nothing.
    pub fn decode([what, page]: [u64; 2]) -> Option<Self> {
        let reference = what as u32;
        match what >> 32 << 32 {
            0 => Some(Self::Issue(reference, Page::decode(page)?)),
            GRANT_LIST_REVOKE => Some(Self::Revoke(reference, false)),
            flags if flags == GRANT_LIST_REVOKE | GRANT_FORCED => Some(Self::Revoke(reference, true)),
            _ => None,
        }
    }
}

/// What a domain asks for. Numbers are as it said them, in the width that they can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`GRANT_CREATE`].
    Create {
        /// Place in the caller's list.
        peer: u8,
        /// References.
        size: u32,
    },
    /// [`GRANT_DESTROY`].
    Destroy(u8),
    /// [`GRANT_ACCEPT`].
    Accept {
        /// Place in the caller's list.
        granter: u8,
        /// Number of the space.
        space: u8,
        /// Address of the window.
        at: u64,
        /// The status words, if the caller keeps any.
        status: Option<Status>,
    },
    /// [`GRANT_LEAVE`].
    Leave(u64),
    /// [`GRANT_ISSUE`].
    Issue {
        /// Number of the space.
        space: u8,
        /// First reference.
        reference: u32,
        /// First page.
        page: Page,
        /// Pages, 1 to [`GRANT_MAX_BATCH`].
        count: u64,
    },
    /// [`GRANT_REVOKE`].
    Revoke {
        /// Number of the space.
        space: u8,
        /// First reference.
        reference: u32,
        /// References, 1 to [`GRANT_MAX_BATCH`].
        count: u64,
        /// Whatever the status words say.
        forced: bool,
    },
    /// [`GRANT_BATCH`].
    Batch {
        /// Number of the space.
        space: u8,
        /// Address of the list, a multiple of eight.
        list: u64,
        /// Entries, 1 to [`GRANT_MAX_BATCH`].
        count: u64,
    },
    /// [`GRANT_QUERY`].
    Query {
        /// Number of the space.
        space: u8,
        /// Which.
        reference: u32,
    },
    /// [`GRANT_OPEN`].
    Open(u8),
}

impl Call {
    /// The call of this number with these arguments; `None` if it is another one's number.
    ///
    /// # Errors
    /// [`Error::BadArgument`]: a number is wider than it can be, an address is not aligned, or a bit is set that means nothing.
    pub fn decode(number: u64, arguments: [u64; 4]) -> Option<Result<Self, Error>> {
        let decoded = match number {
            GRANT_CREATE => Self::create(arguments),
            GRANT_DESTROY => small(arguments[0]).map(Self::Destroy),
            GRANT_ACCEPT => Self::accept(arguments),
            GRANT_LEAVE => Some(Self::Leave(arguments[0])),
            GRANT_ISSUE => Self::issue(arguments),
            GRANT_REVOKE => Self::revoke(arguments),
            GRANT_BATCH => Self::batch(arguments),
            GRANT_QUERY => Self::query(arguments),
            GRANT_OPEN => small(arguments[0]).map(Self::Open),
            _ => return None,
        };
        Some(decoded.ok_or(Error::BadArgument))
    }

    fn create([peer, size, ..]: [u64; 4]) -> Option<Self> {
        let size =
            u32::try_from(size).ok().filter(|size| (1..=GRANT_MAX_SIZE).contains(&u64::from(*size)))?;
        Some(Self::Create { peer: small(peer)?, size })
    }

    fn accept([granter, space, at, status]: [u64; 4]) -> Option<Self> {
        at.is_multiple_of(PAGE).then_some(())?;
        let status = if status == GRANT_NO_STATUS { None } else { Some(Status::decode(status)?) };
        Some(Self::Accept { granter: small(granter)?, space: small(space)?, at, status })
    }

    fn issue([space, reference, page, count]: [u64; 4]) -> Option<Self> {
        let (reference, page) = (u32::try_from(reference).ok()?, Page::decode(page)?);
        Some(Self::Issue { space: small(space)?, reference, page, count: several(count)? })
    }

    fn revoke([space, reference, count, flags]: [u64; 4]) -> Option<Self> {
        (flags & !GRANT_FORCED == 0).then_some(())?;
        let reference = u32::try_from(reference).ok()?;
        Some(Self::Revoke { space: small(space)?, reference, count: several(count)?, forced: flags != 0 })
    }

    fn batch([space, list, count, _]: [u64; 4]) -> Option<Self> {
        list.is_multiple_of(8).then_some(())?;
        Some(Self::Batch { space: small(space)?, list, count: several(count)? })
    }

    fn query([space, reference, ..]: [u64; 4]) -> Option<Self> {
        Some(Self::Query { space: small(space)?, reference: u32::try_from(reference).ok()? })
    }
}

pub(crate) fn small(value: u64) -> Option<u8> {
    u8::try_from(value).ok()
}

/// So many references at once; of more than can be done, the first.
pub(crate) fn several(count: u64) -> Option<u64> {
    (count != 0).then_some(count.min(GRANT_MAX_BATCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_or_unknown_is_refused() {
        let asks = |number, arguments| Call::decode(number, arguments).unwrap();
        let bad = Err(Error::BadArgument);
        for (number, arguments) in [
            (GRANT_CREATE, [256, 1, 0, 0]),
            (GRANT_CREATE, [0, 0, 0, 0]),
            (GRANT_CREATE, [0, GRANT_MAX_SIZE + 1, 0, 0]),
            (GRANT_CREATE, [0, 1 << 32 | 1, 0, 0]),
            (GRANT_DESTROY, [1 << 8, 0, 0, 0]),
            (GRANT_ACCEPT, [0, 0, 0x10, 0]),
            (GRANT_ACCEPT, [0, 0, 0, 8]),
            (GRANT_ACCEPT, [0, 0, 0, 2 | GRANT_STATUS_ADDRESSES]),
            (GRANT_ISSUE, [0, 1 << 32, 0, 1]),
            (GRANT_ISSUE, [0, 0, 2, 1]),
            (GRANT_ISSUE, [0, 0, 0, 0]),
            (GRANT_REVOKE, [0, 0, 0, 0]),
            (GRANT_REVOKE, [0, 0, 1, 1]),
            (GRANT_BATCH, [0, 4, 1, 0]),
            (GRANT_QUERY, [0, 1 << 32, 0, 0]),
            (GRANT_OPEN, [1 << 8, 0, 0, 0]),
        ] {
            assert_eq!(asks(number, arguments), bad, "{number:#x} {arguments:x?}");
        }
        let page = Page { gpa: 0x3000, writable: false };
        let issue = Call::Issue { space: 1, reference: 2, page, count: GRANT_MAX_BATCH };
        assert_eq!(asks(GRANT_ISSUE, [1, 2, 0x3001, u64::MAX]), Ok(issue));
        let revoke = Call::Revoke { space: 1, reference: 2, count: 3, forced: true };
        assert_eq!(asks(GRANT_REVOKE, [1, 2, 3, GRANT_FORCED]), Ok(revoke));
        let accept = |status| Ok(Call::Accept { granter: 0, space: 1, at: 0x1000, status });
        let words = |has_addresses| Some(Status { at: 0x2000, has_addresses });
        for (argument, status) in
            [(GRANT_NO_STATUS, None), (0x2000, words(false)), (0x2000 | GRANT_STATUS_ADDRESSES, words(true))]
        {
            assert_eq!(asks(GRANT_ACCEPT, [0, 1, 0x1000, argument]), accept(status));
        }
        assert_eq!(Call::decode(GRANT_OPEN + 1, [0; 4]), None);
    }

    #[test]
    fn entries_of_a_list_have_known_bits_only() {
        let page = Page { gpa: 0x5000, writable: true };
        assert_eq!(Entry::decode([7, 0x5000]), Some(Entry::Issue(7, page)));
        assert_eq!(Entry::decode([7, 0x5002]), None);
        assert_eq!(Entry::decode([7 | GRANT_LIST_REVOKE, 0]), Some(Entry::Revoke(7, false)));
        assert_eq!(Entry::decode([7 | GRANT_LIST_REVOKE | GRANT_FORCED, 0]), Some(Entry::Revoke(7, true)));
        assert_eq!(Entry::decode([7 | GRANT_FORCED, 0x5000]), None);
        assert_eq!(Entry::decode([7 | 1 << 34, 0x5000]), None);
    }
}
