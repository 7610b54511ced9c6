//! Fault records (D51397, 7.2 and 11.4.7.11): why a request was refused, and whose it was.

use crate::{Fault, FaultKind, RequesterId};

/// Bytes of a record.
pub const RECORD_BYTES: u64 = 16;

/// In the high half: something is recorded. Writing 1 clears it.
pub const RECORDED: u64 = 1 << 63;
const READ: u64 = 1 << 62;
/// With [`READ`] an atomic operation, without it a page request.
const SECOND_TYPE: u64 = 1 << 28;
const REASON_SHIFT: u32 = 32;

/// [`Fault::code`] of "faults were lost, because all records were taken": not a reason of the manual's, which have 8 bits.
pub const LOST: u16 = 0x100;
/// [`Fault::code`] of "the queue of invalidations stopped".
pub const QUEUE: u16 = 0x101;

/// What a record says, if anything is recorded in it.
pub fn decode([low, high]: [u64; 2]) -> Option<Fault> {
    if high & RECORDED == 0 {
        return None;
    }
    let reason = (high >> REASON_SHIFT) as u8;
    let address = match reason {
        // The index of the interrupt.
        0x20..=0x2f => low >> 48,
        _ => low & !0xfff,
    };
    Some(Fault {
        requester: RequesterId(high as u16),
        address,
        write: high & READ == 0 || high & SECOND_TYPE != 0,
        kind: kind(reason),
        code: reason.into(),
    })
}

/// Groups the reasons of legacy mode (7.1.3) and of interrupt remapping (5.1.4.1).
pub const fn kind(reason: u8) -> FaultKind {
    match reason {
        // The root entry or the context entry is not present.
        0x1 | 0x2 => FaultKind::Blocked,
        // Beyond the address width; no right to write; none to read; a kind of request that the context entry does not
        // allow; a translation into the interrupt window.
        0x4..=0x6 | 0xd | 0xe => FaultKind::Page,
        // Entries that cannot be read, are not valid, or have reserved bits set.
        0x3 | 0x7..=0xc | 0x23 | 0x24 => FaultKind::Table,
        // Reserved bits in the request; no such index; entry not present; compatibility format; wrong requester.
        0x20..=0x22 | 0x25 | 0x26 => FaultKind::Interrupt,
        _ => FaultKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_recorded_is_no_fault() {
        assert_eq!(decode([u64::MAX, u64::MAX >> 1]), None);
    }

    #[test]
    fn a_record_of_a_unit() {
        // The high half as QEMU 7.2 traces it (`vtd_frr_new`) for a read by 00:03.0 of a page that is not mapped.
        let fault = decode([0x1234_5000, 0xc000_0006_0000_0018]).unwrap();
        assert_eq!(fault.requester, RequesterId::new(0, 3, 0));
        assert_eq!((fault.address, fault.write, fault.code), (0x1234_5000, false, 6));
        assert_eq!(fault.kind, FaultKind::Page);
    }

    proptest! {
        #[test]
        fn fields(requester: u16, page in 0u64..1 << 52, reason: u8, read: bool, second: bool, pasid in 0u64..1 << 20) {
            let high = 1 << 63
                | u64::from(read) << 62
                | pasid << 40
                | u64::from(reason) << 32
                | u64::from(second) << 28
                | u64::from(requester);
            let fault = decode([page << 12, high]).unwrap();
            prop_assert_eq!(fault.requester.0, requester);
            prop_assert_eq!(fault.code, reason.into());
            prop_assert_eq!(fault.kind, kind(reason));
            let interrupt = (0x20..0x30).contains(&reason);
            prop_assert_eq!(fault.address, if interrupt { page >> 36 } else { page << 12 });
            // 00 write, 10 read, 11 atomic operation.
            prop_assert_eq!(fault.write, !read || second);
        }
    }

    /// Every reason of the manual for what is used here has a kind; the rest is other.
    #[test]
    fn all_reasons() {
        let count = |wanted| (0..=255u8).filter(|reason| kind(*reason) == wanted).count();
        assert_eq!(count(FaultKind::Blocked), 2);
        assert_eq!(count(FaultKind::Page), 5);
        assert_eq!(count(FaultKind::Table), 9);
        assert_eq!(count(FaultKind::Interrupt), 5);
    }
}
