//! Taking a unit over from firmware, and switching it on (D51397, 11.4.4 and 6.5.2, "Register Programming").
//!
//! Firmware may have left it off, or on to protect itself. If it translates already, it goes on to: the new root table,
//! which blocks everything, takes the old one's place, so that there is no moment in which devices are free. Only what
//! was in another mode has to be switched off first.

use super::Inner;
use super::registers::Registers;
use crate::cpu::apic;
use sluice_iommu::Invalidation;
use sluice_iommu::vtd::interrupt::{Destinations, TABLE_SIZE_FIELD};
use sluice_iommu::vtd::queue::Descriptor;
use sluice_iommu::vtd::registers::{
    Capabilities, EVENT_MASKED, EXTENDED_INTERRUPTS, FECTL, FSTS, FaultStatus, Global, IECTL, IQH, IQT, IRTA,
    PMEN, PROTECT, PROTECTED, ROOT_MODE, RTADDR,
};

/// How destinations are written: as the local APICs take them.
pub fn destinations(capabilities: Capabilities) -> Destinations {
    if apic::is_x2apic() && capabilities.extends_interrupts() {
        Destinations::Wide
    } else {
        Destinations::Narrow
    }
}

/// Blocks every device and, where interrupts are remapped, every interrupt.
pub fn take_over(inner: &mut Inner, capabilities: Capabilities, destinations: Option<Destinations>) {
    let registers = &inner.registers;
    let found = registers.status();
    if found.intersects(Global::TRANSLATE | Global::REMAP_INTERRUPTS | Global::QUEUE) {
        log::info!("VT-d: firmware left {found:?}");
    }
    registers.write32(FECTL, EVENT_MASKED);
    registers.write32(IECTL, EVENT_MASKED);
    forget_faults(registers, capabilities);
    if found.contains(Global::QUEUE) {
        registers.wait("firmware's queue", || registers.read64(IQH) == registers.read64(IQT));
        registers.command(Global::QUEUE, false);
    }
    if found.contains(Global::TRANSLATE) && registers.read64(RTADDR) & ROOT_MODE != 0 {
        registers.command(Global::TRANSLATE, false);
    }
    if capabilities.buffers_writes() {
        registers.command(Global::FLUSH_WRITES, true);
    }
    registers.write64(RTADDR, inner.tables.root().as_u64());
    registers.command(Global::SET_ROOT, true);
    inner.queue.enable(registers);
    // In this order, or translations could be filled in from contexts that are still remembered.
    inner.queue.run(registers, [Descriptor::AllContexts]);
    inner.queue.run(registers, [Descriptor::translations(Invalidation::Everything, capabilities.limits())]);
    if !registers.status().contains(Global::TRANSLATE) {
        registers.command(Global::TRANSLATE, true);
    }
    // They would keep attached devices away from memory; now the tables keep everyone away.
    if capabilities.protects_memory() {
        registers.write32(PMEN, registers.read32(PMEN) & !PROTECT);
        registers.wait("protected memory", || registers.read32(PMEN) & PROTECTED == 0);
    }
    if let Some(destinations) = destinations {
        remap_interrupts(inner, destinations);
    } else if found.contains(Global::REMAP_INTERRUPTS) {
        registers.command(Global::REMAP_INTERRUPTS, false);
    }
}

fn remap_interrupts(inner: &mut Inner, destinations: Destinations) {
    let registers = &inner.registers;
    let extended = if destinations == Destinations::Wide { EXTENDED_INTERRUPTS } else { 0 };
    registers.write64(IRTA, inner.tables.interrupts().as_u64() | extended | TABLE_SIZE_FIELD);
    registers.command(Global::SET_INTERRUPT_TABLE, true);
    inner.queue.run(registers, [Descriptor::AllInterrupts]);
    if registers.status().contains(Global::COMPATIBLE_INTERRUPTS) {
        registers.command(Global::COMPATIBLE_INTERRUPTS, false);
    }
    if !registers.status().contains(Global::REMAP_INTERRUPTS) {
        registers.command(Global::REMAP_INTERRUPTS, true);
    }
}

/// Empties the fault records: they are of firmware's time.
fn forget_faults(registers: &Registers, capabilities: Capabilities) {
    use sluice_iommu::vtd::fault::{RECORD_BYTES, RECORDED};
    for index in 0..capabilities.record_count() {
        registers.write64(capabilities.records() + index * RECORD_BYTES + 8, RECORDED);
    }
    registers.write32(FSTS, FaultStatus::all().bits());
}
