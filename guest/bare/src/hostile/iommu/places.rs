//! Guest-physical addresses that are not memory of the guest's.

use super::{FIRST, Guest, PAGE};
use crate::dma::memory::Own;
use crate::dma::targets;
use crate::pci::Function;

/// Registers and windows: message window, I/O APIC, configuration, grants' windows, and the neighbourhood of 4 GiB and of what tables translate.
const REGISTERS: [u64; 12] = [
    0xfee0_0000,
    0xfec0_0000,
    0xe000_0000,
    0xe00f_f000,
    0xc000_0000,
    0xfed0_0000,
    0xffff_f000,
    1 << 32,
    1 << 38,
    448 << 30,
    (1 << 52) - PAGE,
    u64::MAX - (PAGE - 1),
];

/// One of every `stride` pages where a guest has no memory, and registers, those of these functions of its own among them.
pub fn foreign(own: &Own, machine: u64, functions: [Function; 2], stride: u64, mut strike: impl FnMut(u64)) {
    targets::pages(own, machine, stride, |at| {
        if !own.contains(at) && at >= FIRST {
            strike(at & !(PAGE - 1));
        }
    });
    let bars = functions.into_iter().flat_map(|function| [0, 1].map(|bar| function.memory(bar)));
    REGISTERS.into_iter().chain(bars).for_each(strike);
}

impl Guest<'_> {
    /// Some place where the guest has no memory.
    pub fn elsewhere(&mut self) -> u64 {
        match self.random.below(4) {
            0 => REGISTERS[self.random.below(REGISTERS.len() as u64) as usize],
            1 => self.own.end() + self.random.below(1 << 16) * PAGE,
            2 => self.machine + self.random.below(1 << 24) * PAGE,
            _ => {
                let any = self.random.wild() & !(PAGE - 1);
                if any < self.own.end() { any | 1 << 40 } else { any }
            }
        }
    }

    /// Whether a mapping is one that the guest may have.
    pub fn may_map(&self, first: u64, last: u64, gpa: u64, flags: u32) -> bool {
        let end = self.own.end();
        let aligned = first.is_multiple_of(PAGE) && last.wrapping_add(1).is_multiple_of(PAGE);
        let inside = FIRST <= first && first < last && last < end;
        let own = gpa.is_multiple_of(PAGE)
            && last.checked_sub(first).and_then(|len| gpa.checked_add(len)).is_some_and(|last| last < end);
        aligned && inside && own && (1..4).contains(&flags)
    }
}
