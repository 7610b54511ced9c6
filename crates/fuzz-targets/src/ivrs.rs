//! The ACPI table that lists AMD's IOMMUs. It comes from firmware, not from a guest; but a mistake there must not stop the
//! boot, or leave a device where it can reach more than it should.

use crate::Input;
use sluice_iommu::RequesterId;
use sluice_iommu::amdvi::ivrs::Ivrs;

/// Asserts that what is read makes sense, and that cutting bytes off the end of a table adds nothing to it.
pub fn ivrs(data: &[u8]) {
    let mut input = Input::new(data);
    let (cut, requester) = (usize::from(input.u8()), RequesterId(input.u16()));
    // Half of the inputs get a block of a known kind that takes all of the rest, or most would be passed over at once.
    let kind = input.choose(&[None, None, None, None, Some(0x10), Some(0x11), Some(0x40), Some(0x20)]);
    let mut table = vec![0; 48];
    if let Some(kind) = kind {
        let length = u16::try_from(data.len() + 4).unwrap_or(u16::MAX);
        table.extend([kind, 0]);
        table.extend(length.to_le_bytes());
    }
    table.extend(data);
    let whole = Ivrs::parse(&table);
    for unit in &whole.units {
        assert!(unit.served.iter().all(|served| served.first <= served.last));
        assert!((unit.served.len() + unit.specials.len()) * 4 <= table.len());
        if unit.alias(requester) != requester {
            assert!(unit.serves(requester) && unit.serves(unit.alias(requester)));
        }
        for range in whole.unity(unit, requester) {
            assert!(range.start < range.end && range.start % 4096 == 0 && range.end % 4096 == 0);
        }
    }
    let shorter = Ivrs::parse(&table[..table.len() - cut.min(table.len())]);
    assert!(shorter.units.len() <= whole.units.len());
    assert!(whole.reserved.starts_with(&shorter.reserved));
}
