//! Event log entries (48882, 2.5, "Event Logging").

use crate::{Fault, FaultKind, RequesterId};

/// Bytes of an entry.
pub const BYTES: u64 = 16;

const INTERRUPT: u16 = 1 << 3;
const WRITE: u16 = 1 << 5;
const RESERVED_OR_LEVEL: u16 = 1 << 7;

/// Event codes.
mod code {
    pub const NONE: u16 = 0x0;
    pub const ILLEGAL_DEV_TABLE_ENTRY: u16 = 0x1;
    pub const IO_PAGE_FAULT: u16 = 0x2;
    pub const DEV_TAB_HARDWARE_ERROR: u16 = 0x3;
    pub const PAGE_TAB_HARDWARE_ERROR: u16 = 0x4;
    pub const INVALID_DEVICE_REQUEST: u16 = 0x8;
}

/// What an entry says. `None` where the unit has not written it yet: it may move the tail of the log before the entry
/// has arrived in memory, which is why read entries are cleared.
///
/// The `code` of the fault is the event code in bits 15:12, and the event's flags below: RZ 7, PE 6, RW 5, PR 4, I 3.
pub fn decode(entry: [u64; 2]) -> Option<Fault> {
    let flags = (entry[0] >> 48) as u16;
    let kind = match flags >> 12 {
        code::NONE => return None,
        code::IO_PAGE_FAULT if flags & INTERRUPT != 0 => FaultKind::Interrupt,
        code::IO_PAGE_FAULT if flags & RESERVED_OR_LEVEL != 0 => FaultKind::Table,
        // Only who is blocked is in domain 0.
        code::IO_PAGE_FAULT if entry[0] >> 32 & 0xffff == 0 => FaultKind::Blocked,
        code::IO_PAGE_FAULT => FaultKind::Page,
        // A kind of request that nobody may make: to a special range, to a port, translated by the device itself.
        code::INVALID_DEVICE_REQUEST if flags & INTERRUPT != 0 => FaultKind::Interrupt,
        code::INVALID_DEVICE_REQUEST => FaultKind::Page,
        code::ILLEGAL_DEV_TABLE_ENTRY | code::DEV_TAB_HARDWARE_ERROR | code::PAGE_TAB_HARDWARE_ERROR => {
            FaultKind::Table
        }
        _ => FaultKind::Other,
    };
    let write = kind == FaultKind::Interrupt || flags & WRITE != 0;
    Some(Fault { requester: RequesterId(entry[0] as u16), address: entry[1], write, kind, code: flags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page_fault(domain: u16, flags: u64) -> Fault {
        decode([0x2_000 << 48 | flags << 48 | u64::from(domain) << 32 | 0x0310, 0x1234_5678]).unwrap()
    }

    #[test]
    fn page_faults_tell_who_and_where() {
        const PR: u64 = 1 << 4;
        const RW: u64 = 1 << 5;
        let fault = page_fault(7, PR | RW);
        assert_eq!((fault.requester, fault.address), (RequesterId::new(3, 2, 0), 0x1234_5678));
        assert_eq!((fault.kind, fault.write, fault.code), (FaultKind::Page, true, 0x2030));
        assert_eq!((page_fault(7, 0).kind, page_fault(7, 0).write), (FaultKind::Page, false));
        assert_eq!(page_fault(0, RW).kind, FaultKind::Blocked);
        assert_eq!((page_fault(0, 1 << 3).kind, page_fault(0, 1 << 3).write), (FaultKind::Interrupt, true));
        assert_eq!(page_fault(7, 1 << 7).kind, FaultKind::Table);
    }

    #[test]
    fn every_code_has_a_kind() {
        let kind = |code: u64| decode([code << 60 | 7 << 32, 0]).map(|fault| fault.kind);
        assert_eq!(kind(0), None);
        let kinds: [_; 15] = core::array::from_fn(|code| kind(code as u64 + 1).unwrap());
        use FaultKind::{Other, Page, Table};
        let expected = [Table, Page, Table, Table, Other, Other, Other, Page];
        assert_eq!(kinds[..8], expected);
        assert!(kinds[8..].iter().all(|kind| *kind == Other));
    }

    proptest! {
        #[test]
        fn any_entry_can_be_read(first: u64, second: u64) {
            let fault = decode([first, second]);
            prop_assert_eq!(fault.is_none(), first >> 60 == 0);
            if let Some(fault) = fault {
                prop_assert_eq!(u64::from(fault.code), first >> 48);
                prop_assert_eq!((fault.requester.0, fault.address), (first as u16, second));
            }
        }
    }
}
