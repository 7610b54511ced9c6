//! Whatever domains are built and torn down, no nested table leads to another's memory or to a frame
//! that the hypervisor uses itself.

use proptest::prelude::*;
use sluice_memory::{
    Access, FrameAllocator, Gpa, GuestMemory, Hpa, LARGE_PAGE, NestedTables, PAGE_SIZE, PhysicalMemory,
    TableFrames,
};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Physical memory of which only page tables are ever touched.
#[derive(Default)]
struct Machine {
    frames: FrameAllocator,
    words: RefCell<BTreeMap<u64, u64>>,
}

impl PhysicalMemory for Machine {
    fn read(&self, _: Hpa, _: &mut [u8]) {
        unreachable!("tables are read by the word");
    }
    fn write(&self, _: Hpa, _: &[u8]) {
        unreachable!("tables are written by the word");
    }
    fn fill(&self, at: Hpa, len: u64, _: u8) {
        self.words.borrow_mut().retain(|word, _| !(at.as_u64()..at.as_u64() + len).contains(word));
    }
    fn read_u64(&self, at: Hpa) -> u64 {
        self.words.borrow().get(&at.as_u64()).copied().unwrap_or(0)
    }
    fn write_u64(&self, at: Hpa, value: u64) {
        self.words.borrow_mut().insert(at.as_u64(), value);
    }
}

impl TableFrames for Machine {
    fn allocate_table(&mut self) -> Option<Hpa> {
        let frame = self.frames.allocate(PAGE_SIZE, PAGE_SIZE)?;
        self.fill(frame, PAGE_SIZE, 0);
        Some(frame)
    }
    fn free_table(&mut self, frame: Hpa) {
        self.frames.free(frame, PAGE_SIZE).unwrap();
    }
}

struct Domain {
    memory: GuestMemory,
    tables: NestedTables,
}

impl Domain {
    fn build(machine: &mut Machine, large_pages: u64) -> Option<Self> {
        let mut tables = NestedTables::new(machine)?;
        let len = large_pages * LARGE_PAGE;
        let Some(hpa) = machine.frames.allocate(len, LARGE_PAGE) else {
            tables.release(machine);
            return None;
        };
        let mut memory = GuestMemory::new();
        memory.add(Gpa::new(0), hpa, len).unwrap();
        tables.map(machine, Gpa::new(0), hpa, len, Access::READ | Access::WRITE | Access::EXECUTE).unwrap();
        Some(Self { memory, tables })
    }

    fn release(self, machine: &mut Machine) {
        for extent in self.memory.extents() {
            machine.frames.free(extent.hpa, extent.len).unwrap();
        }
        self.tables.release(machine);
    }

    /// Host memory that the tables lead to, each page checked to be the domain's own.
    fn reached(&self, machine: &Machine) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        self.tables.visit(machine, &mut |gpa, hpa, len, _| {
            assert_eq!(self.memory.translate(Gpa::new(gpa), len).unwrap().next(), Some((hpa, len)));
            ranges.push((hpa.as_u64(), hpa.as_u64() + len));
        });
        ranges
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn domains_reach_disjoint_memory(
        steps in prop::collection::vec((0u64..5, any::<prop::sample::Index>()), 1..24)
    ) {
        let mut machine = Machine::default();
        machine.frames.add(Hpa::new(LARGE_PAGE), 24 * LARGE_PAGE).unwrap();
        let total = machine.frames.free_bytes();
        let mut domains: Vec<Domain> = Vec::new();
        for (large_pages, pick) in steps {
            if large_pages > 0 {
                domains.extend(Domain::build(&mut machine, large_pages));
            } else if !domains.is_empty() {
                domains.swap_remove(pick.index(domains.len())).release(&mut machine);
            }
            let mut all: Vec<(u64, u64)> = domains.iter().flat_map(|domain| domain.reached(&machine)).collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two domains share memory");
            // What a domain reaches is taken: whatever else is allocated is none of it.
            let mut taken = Vec::new();
            while let Some(frame) = machine.frames.allocate(LARGE_PAGE, LARGE_PAGE) {
                let at = frame.as_u64();
                prop_assert!(all.iter().all(|(start, end)| at + LARGE_PAGE <= *start || at >= *end));
                taken.push(frame);
            }
            taken.into_iter().for_each(|frame| machine.frames.free(frame, LARGE_PAGE).unwrap());
        }
        domains.into_iter().for_each(|domain| domain.release(&mut machine));
        prop_assert_eq!(machine.frames.free_bytes(), total);
    }
}
