//! The ACPI table of VT-d units: firmware's, and read before anything is protected.

use crate::Input;
use sluice_iommu::RequesterId;
use sluice_iommu::vtd::dmar::Dmar;
use sluice_memory::PAGE_SIZE;

fn scope(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let steps = input.u8() % 4;
    bytes.extend([input.u8() % 7, 6 + 2 * steps, 0, 0, input.u8(), input.u8() % 4]);
    for _ in 0..steps {
        bytes.extend([input.u8() % 33, input.u8() % 9]);
    }
}

fn structure(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let kind = input.u8() % 8;
    let mut body = vec![input.u8(), 0, input.u8() % 2, 0];
    body.extend((input.u64() & !0xfff).to_le_bytes());
    if kind == 1 {
        body.extend(input.u64().to_le_bytes());
    }
    for _ in 0..input.u8() % 4 {
        scope(&mut body, input);
    }
    bytes.extend([kind, 0]);
    bytes.extend((body.len() as u16 + 4).to_le_bytes());
    bytes.extend(body);
}

/// DMAR. Asserts that registers and memory of functions begin and end with pages, that a function has the first unit that
/// claims it and no other segment's, and that nothing is read that is not in the table.
pub fn dmar(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = vec![0u8; 48];
    bytes[37] = input.u8();
    for _ in 0..input.u8() % 6 {
        structure(&mut bytes, &mut input);
    }
    // Bridges whose buses may lead back to themselves.
    let (first, last) = (input.u8() % 4, input.u8());
    input.damage(&mut bytes);
    let dmar = Dmar::parse(&bytes, |at| (at.devfn() & 0x18 == 0).then_some(first..=last));
    let structures = dmar.units.len() + dmar.reserved.len();
    assert!(structures * 16 <= bytes.len(), "more structures than bytes");
    let scopes: usize = dmar.units.iter().map(|unit| unit.scopes.len() + unit.io_apics.len()).sum();
    assert!(scopes * 8 <= bytes.len(), "more scopes than bytes");
    for unit in &dmar.units {
        assert!(unit.base.as_u64() != 0 && unit.base.is_aligned(PAGE_SIZE));
    }
    for requester in (0..=u16::MAX).step_by(37).map(RequesterId) {
        for segment in 0..2 {
            if let Some(index) = dmar.unit_of(segment, requester) {
                let unit = &dmar.units[index];
                assert_eq!(unit.segment, segment);
                assert!(unit.takes_rest || unit.scopes.iter().any(|scope| scope.covers(requester)));
            }
            for range in dmar.unity(segment, requester) {
                assert!(range.start < range.end && (range.start | range.end) % PAGE_SIZE == 0);
            }
        }
    }
}
