//! What it costs to issue and revoke pages of a space that devices see, in ticks of the time-stamp counter: instructions,
//! under QEMU's `-icount shift=0`. A self-test (`selftest=iommu-cost`), for `cargo sluice bench iommu`.

use super::{DeviceView, Devices, units};
use crate::mm::{self, FrameUse};
use crate::x86;
use alloc::vec;
use sluice_iommu::SpaceTag;
use sluice_iospace::{Rights, Space};
use sluice_memory::{Hpa, LARGE_PAGE, PAGE_SIZE};

const BATCH: u64 = 64;
/// Repetitions; what is said is their average.
const ROUNDS: u64 = 32;

/// Measures every unit and writes one line for each kind of change.
pub fn measure() {
    assert!(!units().is_empty(), "no IOMMU");
    let memory = mm::allocate(FrameUse::Buffer, LARGE_PAGE, LARGE_PAGE).expect("memory to issue");
    for counted in units() {
        let unit = counted.unit();
        let view = Devices::view(SpaceTag(1), vec![counted]).expect("memory for tables");
        let mut space = Space::new(mm::Ledger::Driver);
        space.add_view(view).expect("an empty view");
        // Tables that stay, so that none is made and given back in between.
        space
            .issue(3 * LARGE_PAGE - PAGE_SIZE, memory, PAGE_SIZE, Rights::MEMORY)
            .expect("memory for tables");
        space.settle(&(), |_, _| ());
        // Pages of a batch do not touch, as those that a guest grants.
        let page = |index: u64| (2 * LARGE_PAGE + 2 * index * PAGE_SIZE, PAGE_SIZE);
        for (name, pieces) in [("1", 1), ("64", BATCH)] {
            change(unit.kind(), name, &mut space, memory, (0..pieces).map(page));
        }
        change(unit.kind(), "2m", &mut space, memory, core::iter::once((4 * LARGE_PAGE, LARGE_PAGE)));
        space.revoke(0, 8 * LARGE_PAGE).expect("whole pieces");
        space.settle(&(), |_, _| ());
    }
    mm::release(FrameUse::Buffer, memory, LARGE_PAGE);
}

/// Issues pieces (address and bytes), settles, revokes them, settles.
fn change(
    kind: &str,
    name: &str,
    space: &mut Space<DeviceView<()>, mm::Ledger>,
    memory: Hpa,
    pieces: impl Iterator<Item = (u64, u64)> + Clone,
) {
    let (mut map, mut unmap) = (0, 0);
    for _ in 0..ROUNDS {
        let start = x86::rdtsc();
        for (at, bytes) in pieces.clone() {
            space.issue(at, memory, bytes, Rights::MEMORY).expect("memory for tables");
        }
        space.settle(&(), |_, _| ());
        let issued = x86::rdtsc();
        for (at, bytes) in pieces.clone() {
            space.revoke(at, bytes).expect("whole pieces");
        }
        space.settle(&(), |_, _| ());
        map += issued - start;
        unmap += x86::rdtsc() - issued;
    }
    log::info!("cost of {kind} map {name}: {}", map / ROUNDS);
    log::info!("cost of {kind} unmap {name}: {}", unmap / ROUNDS);
}
