//! Stacks with guards: each lies at the top of an area of its own, the rest of which stays unmapped.

use super::frames;
use super::layout::{self, PAGE};
use super::tables;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_memory::FrameUse;

const AREA: u64 = 128 * 1024;
const AREAS_PER_CPU: u64 = 4;

/// A mapped stack.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// First address above the stack, 16-byte aligned: the initial stack pointer.
    pub top: u64,
}

/// End of the areas handed out, for the checks.
static END: AtomicU64 = AtomicU64::new(layout::STACKS);

/// Allocates and maps stack `number` (0-3) of processor `cpu`. `None` when memory runs out.
pub fn new_stack(cpu: u32, number: u32, bytes: usize) -> Option<Stack> {
    let bytes = bytes as u64;
    debug_assert!(bytes.is_multiple_of(PAGE) && bytes < AREA);
    let area = layout::STACKS + (u64::from(cpu) * AREAS_PER_CPU + u64::from(number)) * AREA;
    let top = area + AREA;
    let memory = frames::allocate(FrameUse::Hypervisor, bytes, PAGE)?;
    tables::map_data(top - bytes, memory.as_u64(), bytes)?;
    END.fetch_max(top, Ordering::Relaxed);
    Some(Stack { top })
}

/// Whether `address` lies on a stack: one of these, or the boot stack in the image.
pub fn is_stack(address: u64) -> bool {
    layout::data().contains(&address)
        || (layout::STACKS..END.load(Ordering::Relaxed)).contains(&address) && tables::is_mapped(address)
}

/// Whether `address` lies in the unmapped part of a stack's area.
pub fn is_stack_guard(address: u64) -> bool {
    (layout::STACKS..END.load(Ordering::Relaxed)).contains(&address) && !tables::is_mapped(address)
}

/// Panics if the lower half of any stack area is mapped.
pub fn check_guards() {
    let mut area = layout::STACKS;
    while area < END.load(Ordering::Relaxed) {
        for page in (area..area + AREA / 2).step_by(PAGE as usize) {
            assert!(!tables::is_mapped(page), "stack guard {page:#x} is mapped");
        }
        area += AREA;
    }
}
