//! Tables as firmware writes them, damaged ones, and none at all.

use super::*;
use alloc::vec;
use proptest::prelude::*;

/// A scope: kind, identifier, bus, path.
fn scope(kind: u8, id: u8, bus: u8, path: &[[u8; 2]]) -> Vec<u8> {
    let length = 6 + 2 * path.len() as u8;
    let mut bytes = vec![kind, length, 0, 0, id, bus];
    bytes.extend(path.as_flattened());
    bytes
}

fn structure(kind: u16, body: &[u8], scopes: &[Vec<u8>]) -> Vec<u8> {
    let body: Vec<u8> = body.iter().copied().chain(scopes.iter().flatten().copied()).collect();
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((body.len() as u16 + 4).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn unit(flags: u8, segment: u8, base: u64, scopes: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![flags, 0, segment, 0];
    body.extend(base.to_le_bytes());
    structure(0, &body, scopes)
}

fn reserved(start: u64, last: u64, scopes: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(start.to_le_bytes());
    body.extend(last.to_le_bytes());
    structure(1, &body, scopes)
}

fn table(flags: u8, structures: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"DMAR".to_vec();
    bytes.resize(36, 0);
    bytes.push(38);
    bytes.push(flags);
    bytes.resize(48, 0);
    bytes.extend(structures.iter().flatten());
    bytes
}

/// A port at 00:1c.0 with buses 1-3, a bridge at 01:00.0 with bus 2.
fn bridges(at: RequesterId) -> Option<RangeInclusive<u8>> {
    match at {
        _ if at == RequesterId::new(0, 0x1c, 0) => Some(1..=3),
        _ if at == RequesterId::new(1, 0, 0) => Some(2..=2),
        _ => None,
    }
}

const GRAPHICS: u64 = 0xfed9_0000;
const REST: u64 = 0xfed9_1000;

/// As on a client machine: a unit for graphics, one for the rest; a controller with memory of its own.
fn machine() -> Vec<Vec<u8>> {
    vec![
        unit(0, 0, GRAPHICS, &[scope(1, 0, 0, &[[2, 0]])]),
        unit(1, 0, REST, &[scope(3, 2, 0xf0, &[[0x1f, 0]]), scope(4, 0, 0, &[[0x1f, 1]])]),
        reserved(0x7c00_0000, 0x7fff_ffff, &[scope(1, 0, 0, &[[2, 0]])]),
        // ATSR, RHSA, ANDD, SATC, SIDP, and something not invented yet.
        structure(2, &[1, 0, 0, 0], &[scope(2, 0, 0, &[[0x1c, 0]])]),
        structure(3, &[0; 16], &[]),
        structure(4, &[0, 0, 0, 1, b'\\', 0], &[]),
        structure(5, &[0; 4], &[]),
        structure(6, &[0; 4], &[]),
        structure(0x77, &[], &[]),
    ]
}

#[test]
fn a_client_machine() {
    let dmar = Dmar::parse(&table(1, &machine()), bridges);
    assert!(dmar.remaps_interrupts);
    assert_eq!((dmar.units.len(), dmar.reserved.len(), dmar.skipped), (2, 1, 0));
    let graphics = RequesterId::new(0, 2, 0);
    assert_eq!(dmar.unit_of(0, graphics), Some(0));
    assert_eq!(dmar.unit_of(0, RequesterId::new(0, 2, 1)), Some(1));
    assert_eq!(dmar.unit_of(0, RequesterId::new(7, 0, 0)), Some(1));
    assert_eq!(dmar.unit_of(1, graphics), None);
    assert_eq!(dmar.units[1].io_apics, [(2, RequesterId::new(0xf0, 0x1f, 0))]);
    assert_eq!(dmar.units[1].hpets, [(0, RequesterId::new(0, 0x1f, 1))]);
    assert!(dmar.unity(0, graphics).eq(core::iter::once(0x7c00_0000..0x8000_0000)));
    assert_eq!(dmar.unity(0, RequesterId::new(0, 3, 0)).count(), 0);
}

#[test]
fn qemu() {
    // As QEMU 7.2 writes it with a root port and a device behind it: no unit takes the rest.
    let scopes = [
        scope(3, 0, 0xff, &[[0, 0]]),
        scope(1, 0, 0, &[[0, 0]]),
        scope(2, 0, 0, &[[0x1c, 0]]),
        scope(1, 0, 0, &[[0x1f, 2]]),
    ];
    let dmar = Dmar::parse(&table(1, &[unit(0, 0, 0xfed9_0000, &scopes)]), bridges);
    assert_eq!(dmar.units[0].io_apics, [(0, RequesterId::new(0xff, 0, 0))]);
    for (bus, device, function, here) in [
        (0, 0x1f, 2, true),
        (0, 0x1c, 0, true),
        (1, 0, 0, true),
        (3, 9, 1, true),
        (0, 5, 0, false),
        (4, 0, 0, false),
    ] {
        let unit = dmar.unit_of(0, RequesterId::new(bus, device, function));
        assert_eq!(unit, here.then_some(0), "{bus}:{device}.{function}");
    }
    // An I/O APIC's requester is not a function that could be attached.
    assert_eq!(dmar.unit_of(0, RequesterId::new(0xff, 0, 0)), None);
}

#[test]
fn paths_through_bridges() {
    let scopes = [
        scope(1, 0, 0, &[[0x1c, 0], [0, 0], [5, 3]]),
        // No bridge there; a device number that cannot be; half a step; no path at all.
        scope(1, 0, 0, &[[3, 0], [1, 0]]),
        scope(1, 0, 0, &[[32, 0]]),
        vec![1, 7, 0, 0, 0, 0, 4],
        vec![1, 6, 0, 0, 0, 0],
        // A bridge that is none, and a kind that is unknown.
        scope(2, 0, 0, &[[4, 0]]),
        scope(9, 0, 0, &[[4, 0]]),
    ];
    let dmar = Dmar::parse(&table(2, &[unit(0, 0, GRAPHICS, &scopes)]), bridges);
    assert_eq!(dmar.units[0].scopes, [Scope::Function(RequesterId::new(2, 5, 3))]);
    assert_eq!(dmar.skipped, 6);
    assert!(!dmar.remaps_interrupts);
}

#[test]
fn nonsense_is_left_out() {
    let structures = [
        unit(1, 0, 0, &[]),
        unit(1, 0, 0x1234, &[]),
        reserved(0x2000, 0xfff, &[]),
        reserved(0, u64::MAX, &[]),
        // Rounded outward to whole pages.
        reserved(0x1800, 0x27ff, &[]),
        // The length goes past the end: nothing after it can be believed.
        vec![0, 0, 200, 0],
    ];
    let dmar = Dmar::parse(&table(0, &structures), bridges);
    assert!(dmar.units.is_empty());
    assert_eq!(dmar.reserved.len(), 1);
    assert_eq!(dmar.reserved[0].range, 0x1000..0x3000);
    assert_eq!(dmar.skipped, 5);
    assert_eq!(Dmar::parse(b"DMAR", bridges), Dmar::default());
    // A structure without length must not be read for ever.
    assert_eq!(Dmar::parse(&table(0, &[vec![0; 40]]), bridges).skipped, 1);
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        Dmar::parse(&bytes, |at| Some(at.bus()..=255));
    }

    /// Cut off or changed anywhere, what comes out is still ranges of whole pages and units with registers.
    #[test]
    fn damage(at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
        let mut bytes = table(1, &machine());
        let at = at.index(bytes.len());
        bytes[at] = value;
        bytes.truncate(cut.index(bytes.len()) + 1);
        let dmar = Dmar::parse(&bytes, bridges);
        for memory in &dmar.reserved {
            prop_assert!(memory.range.start < memory.range.end);
            prop_assert_eq!((memory.range.start | memory.range.end) % PAGE_SIZE, 0);
        }
        for unit in &dmar.units {
            prop_assert!(unit.base.as_u64() != 0 && unit.base.is_aligned(PAGE_SIZE));
        }
    }
}
