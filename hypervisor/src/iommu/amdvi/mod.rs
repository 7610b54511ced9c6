//! AMD-Vi units: found by IVRS, taken over from firmware, and driven behind [`Unit`].
//!
//! Key type: [`AmdVi`]. Neighbours: [`sluice_iommu::amdvi`] has what units read and write, and the order in which it may
//! change; `function` is a unit's PCI function, `registers` its registers, `queue` its commands, `events` its log, and
//! `state` all that of it which changes.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882, revision 3.07.
//!
//! Every unit has a device table of its own, with an entry for each of the 65536 requesters. All are blocked before the
//! unit is enabled. Exclusion ranges of firmware are not used; they are reported as ranges to be mapped one to one.
//!
//! Interrupts are remapped where IVRS tells as whom the I/O APICs raise theirs. Without that, they cannot be; and QEMU leaves
//! it out with `intremap=off`, where it would drop every interrupt that is to be looked up.
//!
//! QEMU 7.2 deviates from the manual. What follows from that here:
//!
//! - The bits of an address above the topmost level are ignored; and bits from 48 up are mixed with the requester's number
//!   where cached translations are looked up. With tables of four levels, what one requester reaches would be cached for
//!   another. Tables therefore have as many levels as the unit offers, six, and what is above 2^48 is never mapped, hence
//!   never cached. A request there may still hit what is cached for a requester whose number has all bits of this one's:
//!   a device reaches its neighbour's memory, past every table. Nothing here can prevent that; it is warned of. Slots
//!   whose numbers have equally many ones are safe from each other.
//! - It goes on using what is cached for a requester that was blocked: hence the command in [`DeviceTable::place`].
//! - It reads no commands before it is enabled, and says nothing in the log, ever: no fault is reported.
//! - Its head register reads one entry past the end of the ring before it wraps: nothing here reads it.
//! - It claims to remember that nothing is mapped (NpCache), and does not. The claim is believed.
//! - Writes by a device's DMA to the range of interrupts count as the I/O APIC's: a device can raise what the I/O APIC may.
//! - See [`sluice_iommu::amdvi::interrupt`] for the messages that it takes.

mod events;
mod function;
mod queue;
mod registers;
mod state;

use super::unit::{Unit, Units};
use crate::firmware::acpi;
use crate::mm::TableFrames;
use crate::sync::{Rank, SpinLock};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use events::EventLog;
use function::UnitFunction;
use queue::Queue;
use registers::Registers;
use sluice_iommu::amdvi::command::Command;
use sluice_iommu::amdvi::device::{self, Interrupts, Memory};
use sluice_iommu::amdvi::interrupt;
use sluice_iommu::amdvi::ivrs::{Ivrs, SpecialKind, UnitEntry};
use sluice_iommu::amdvi::page::HostFormat;
use sluice_iommu::amdvi::register::{self, Features};
use sluice_iommu::amdvi::table::DeviceTable;
use sluice_iommu::{Fault, Interrupt, Invalidation, PageFormat, RequesterId, SpaceTag, Trigger};
use sluice_memory::{Hpa, PAGE_SIZE};
use state::State;

/// Everything a unit reads looks into the processors' caches: its control register, the device table entries and the
/// lack of a bit in them say so.
const MEMORY: TableFrames = TableFrames::COHERENT;

/// Tags that a device table entry can hold.
const TAGS: u32 = 1 << 16;

/// Finds and starts all units that IVRS lists.
pub fn start() -> Units {
    let Some(table) = acpi::find(b"IVRS") else { return Units::new() };
    let ivrs = Arc::new(Ivrs::parse(table));
    if ivrs.damaged {
        log::warn!("IVRS is damaged: what makes no sense in it is ignored");
    }
    let io_apics = |unit: &UnitEntry| unit.specials.iter().any(|special| special.kind == SpecialKind::IoApic);
    let remaps = ivrs.units.iter().any(io_apics);
    (0..ivrs.units.len())
        .filter_map(|index| Some(Box::new(AmdVi::start(&ivrs, index, remaps)?) as Box<dyn Unit>))
        .collect()
}

/// A running unit.
struct AmdVi {
    ivrs: Arc<Ivrs>,
    /// Which of the units in `ivrs`.
    index: usize,
    function: UnitFunction,
    levels: u8,
    remaps: bool,
    caches_absent: bool,
    /// It can forget everything at once.
    forgets_all: bool,
    table: DeviceTable,
    state: SpinLock<State>,
}

impl AmdVi {
    /// Takes a unit over. `None` if it cannot be used; why is logged.
    fn start(ivrs: &Arc<Ivrs>, index: usize, remaps: bool) -> Option<Self> {
        let entry = ivrs.units.get(index)?;
        let base = entry.base;
        if entry.segment != 0 {
            log::error!("AMD-Vi at {base}: PCI segment {} is not supported", entry.segment);
            return None;
        }
        let function = UnitFunction::enable(entry)?;
        let registers = Registers::map(base);
        let features = match function.has_features() {
            true => Features::from_bits_retain(registers.read(register::FEATURES)),
            false => Features::empty(),
        };
        let Some(levels) = features.levels() else {
            log::error!("AMD-Vi at {base}: it has no host page tables");
            return None;
        };
        log::debug!("AMD-Vi at {base}: {} features {features:?}", function.id());

        let allocate = |bytes| MEMORY.allocate(bytes).expect("memory for an IOMMU's tables");
        let interrupts = if remaps { Interrupts::Blocked } else { Interrupts::Unchecked };
        let at = allocate(device::TABLE_BYTES);
        let table = DeviceTable::new(&MEMORY, at, interrupts);
        let queue = Queue::new(allocate(Queue::BYTES), allocate(PAGE_SIZE));
        let events = EventLog::new(allocate(EventLog::BYTES), function.id());

        let forgets_all = features.contains(Features::INVALIDATE_ALL);
        let state = State::take_over(registers, queue, events, at, entry.flags, forgets_all);
        Some(Self {
            ivrs: ivrs.clone(),
            index,
            levels,
            remaps,
            caches_absent: function.caches_absent(),
            function,
            forgets_all,
            table,
            state: SpinLock::new(Rank::Unit, state),
        })
    }

    /// What IVRS says of it.
    fn entry(&self) -> &UnitEntry {
        &self.ivrs.units[self.index]
    }
}

impl Unit for AmdVi {
    fn kind(&self) -> &'static str {
        "AMD-Vi"
    }

    fn base(&self) -> Hpa {
        self.entry().base
    }

    fn serves(&self, requester: RequesterId) -> bool {
        // The unit's own requests are never translated, whatever IVRS says.
        requester != self.entry().function && self.entry().serves(requester)
    }

    fn alias(&self, function: RequesterId) -> RequesterId {
        self.entry().alias(function)
    }

    fn format(&self) -> PageFormat {
        PageFormat::AmdVi(HostFormat { levels: self.levels })
    }

    fn tags(&self) -> u32 {
        TAGS
    }

    fn reads_memory_only(&self) -> bool {
        MEMORY.write_back
    }

    fn caches_absent(&self) -> bool {
        self.caches_absent
    }

    fn remaps_interrupts(&self) -> bool {
        self.remaps
    }

    fn attach(&self, requester: RequesterId, space: Option<(SpaceTag, Hpa)>) -> Option<SpaceTag> {
        let mut state = self.state.lock();
        // NpCache is what emulated units have.
        state.note(requester, space.map(|(tag, _)| tag), self.caches_absent);
        let to = match space {
            Some((tag, root)) => Memory::Space { tag, root, levels: self.levels },
            None => Memory::Blocked,
        };
        self.table.place(&MEMORY, &mut |commands| state.run(commands), requester, to)
    }

    fn invalidate(&self, what: &[Invalidation]) {
        let mut state = self.state.lock();
        if !self.forgets_all && what.contains(&Invalidation::Everything) {
            return (1..=state.highest.0).for_each(|tag| state.run(&[Command::ForgetSpace(SpaceTag(tag))]));
        }
        // In batches on the stack, each with one wait.
        let mut batch = [Command::ForgetAll; 32];
        for what in what.chunks(batch.len()) {
            let batch = &mut batch[..what.len()];
            batch.iter_mut().zip(what).for_each(|(command, what)| *command = Command::from(*what));
            state.run(batch);
        }
    }

    fn allow_interrupt(&self, requester: RequesterId, interrupt: Interrupt) {
        let state = &mut *self.state.lock();
        // Found before it is known whether it is needed, so that one closure at a time has the state.
        let table = match self.table.interrupts(&MEMORY, requester) {
            Some(Interrupts::Blocked) => state.interrupt_table(),
            _ => None,
        };
        let run = &mut |commands: &[Command]| state.run(commands);
        if let Err(error) = self.table.allow(&MEMORY, run, requester, interrupt, || table) {
            // It stays refused, which harms only the device.
            log::error!("AMD-Vi: {interrupt:?} of {requester} cannot be allowed: {error:?}");
        }
    }

    fn forbid_interrupt(&self, requester: RequesterId, vector: u8) {
        let mut state = self.state.lock();
        self.table.forbid(&MEMORY, &mut |commands| state.run(commands), requester, vector);
    }

    fn message(&self, interrupt: Interrupt) -> (u32, u32) {
        interrupt::message(interrupt)
    }

    fn redirection(&self, interrupt: Interrupt) -> u64 {
        interrupt::redirection(interrupt)
    }

    fn io_apic(&self, id: u8) -> Option<RequesterId> {
        self.entry().io_apic(id)
    }

    fn unity(&self, requester: RequesterId) -> Vec<Range<u64>> {
        self.ivrs.unity(self.entry(), requester).collect()
    }

    fn set_fault_interrupt(&self, interrupt: Interrupt) {
        debug_assert!(interrupt.trigger == Trigger::Edge);
        if self.function.set_message(interrupt) {
            self.state.lock().interrupt_for_events();
        }
    }

    fn take_faults(&self, take: &mut dyn FnMut(Fault)) {
        self.state.lock().acknowledge_events();
        for _ in 0..EventLog::ENTRIES {
            // The lock is not held while the fault is dealt with.
            let Some(fault) = self.state.lock().next_fault() else { break };
            take(fault);
        }
    }
}
