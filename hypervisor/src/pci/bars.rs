//! Puts memory BARs that are smaller than a page on pages of their own, and expansion ROMs where there is room.
//!
//! A guest that is given a BAR is given whole pages. Firmware packs small BARs into one page; before such a
//! function is passed through, its BAR moves to a page that nothing else decodes. The place is searched between
//! the BARs that firmware placed on the root bus, which the host bridge therefore forwards, then just below them.
//! Expansion ROMs are there as well, which firmware leaves without an address once it has run them.

use super::function::{self as pci, Function};
use crate::firmware::acpi;
use crate::handover::BootInfo;
use alloc::vec::Vec;
use core::ops::Range;
use sluice_memory::PAGE_SIZE;

const MIB: u64 = 1 << 20;
/// From here up are interrupt controllers and firmware.
const END: u64 = 0xfec0_0000;

/// Memory addresses that something decodes.
pub struct DecodedRanges {
    /// BARs of functions, by whole pages.
    bars: Vec<Range<u64>>,
    /// What is not for BARs of the root bus.
    other: Vec<Range<u64>>,
}

fn pages(start: u64, bytes: u64) -> Range<u64> {
    start & !(PAGE_SIZE - 1)..start.saturating_add(bytes).next_multiple_of(PAGE_SIZE)
}

impl DecodedRanges {
    /// Surveys the machine.
    pub fn new(info: &BootInfo) -> Self {
        let mut decoded = Self { bars: Vec::new(), other: Vec::new() };
        for function in pci::functions() {
            for bar in function.bars.iter().chain(&function.rom).filter(|bar| !bar.io && bar.address != 0) {
                decoded.bars.push(pages(bar.address, bar.size));
            }
            decoded.other.extend(function.forwarded());
        }
        for ecam in acpi::ecams() {
            decoded.other.push(ecam.base..ecam.base + (u64::from(ecam.last_bus) + 1) * MIB);
        }
        decoded.other.extend(info.memory.iter().map(|region| region.start..region.end));
        decoded
    }

    /// Moves the small BARs of a function where they must. Returns whether each has its pages for itself.
    pub fn separate(&mut self, function: &mut Function) -> bool {
        let bdf = function.bdf;
        for bar in function.bars.iter_mut().filter(|bar| !bar.io && bar.size < PAGE_SIZE) {
            let own = pages(bar.address, bar.size);
            let sharers = self.bars.iter().filter(|other| other.start < own.end && own.start < other.end);
            if bar.address != 0 && bar.address.is_multiple_of(PAGE_SIZE) && sharers.count() == 1 {
                continue;
            }
            let Some(page) = self.free(PAGE_SIZE).filter(|_| bdf.bus == 0) else { return false };
            if let Some(index) = self.bars.iter().position(|other| *other == own) {
                self.bars.remove(index);
            }
            self.bars.push(page..page + PAGE_SIZE);
            log::info!(
                "{bdf}: BAR {} moves from {:#x} to {page:#x}, a page of its own",
                bar.index,
                bar.address
            );
            bar.address = page;
        }
        self.place_rom(function);
        function.write_bars();
        true
    }

    /// Finds room for the expansion ROM of a function. Without any there is none, and none of less than a page, which would not be its own.
    fn place_rom(&mut self, function: &mut Function) {
        let Some(mut rom) = function.rom.take().filter(|rom| rom.size >= PAGE_SIZE) else { return };
        if rom.address == 0 {
            let Some(at) = self.free(rom.size).filter(|_| function.bdf.bus == 0) else { return };
            self.bars.push(pages(at, rom.size));
            rom.address = at;
        }
        function.rom = Some(rom);
    }

    /// A place for so many bytes, a power of two, at a multiple of them.
    fn free(&self, bytes: u64) -> Option<u64> {
        let low = self.bars.iter().filter(|bar| bar.end <= END);
        let first = low.clone().map(|bar| bar.start).min()?;
        let last = low.map(|bar| bar.end).max()?;
        let is_free = |at: &u64| {
            let end = at + bytes;
            !self.bars.iter().chain(&self.other).any(|range| range.start < end && *at < range.end)
        };
        let down = |range: Range<u64>| {
            (range.start.div_ceil(bytes)..range.end / bytes).rev().map(|place| place * bytes)
        };
        let below = first.saturating_sub(MIB.max(2 * bytes))..first;
        down(first..last).find(is_free).or_else(|| down(below).find(is_free))
    }
}

/// Plays a firmware that packs small BARs into as few pages as it can; those of QEMU's give each its page.
#[cfg(feature = "pack-bars")]
pub fn pack() {
    let mut page = None;
    let mut used = 0;
    for mut function in pci::functions() {
        for bar in function.bars.iter_mut().filter(|bar| !bar.io && bar.address != 0 && bar.size < PAGE_SIZE)
        {
            let start = *page.get_or_insert(bar.address);
            if used + bar.size <= PAGE_SIZE {
                bar.address = start + used;
                used += bar.size;
            }
        }
        if !function.bars.is_empty() {
            function.write_bars();
        }
    }
}
