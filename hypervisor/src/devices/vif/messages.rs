//! Messages by which a card wakes the processors of engines.

use crate::cpu;
use crate::devices::device::Device;
use crate::iommu::DmaEndpoint;
use crate::irq::message::Vector;
use crate::pci::messages;
use alloc::vec::Vec;

/// A message of a card's for each of some processors. It is for as long as the machine runs.
pub(super) struct Messages(Vec<(Vector, u32)>);

impl Messages {
    /// Vectors for a card: message *n* wakes the processor of this index. `None`: the card cannot have so many, or they do not reach the
    /// processors; then it has its line.
    pub fn allocate(device: &Device, processors: &[u32]) -> Option<Self> {
        if messages::usable(&device.function) < processors.len() {
            return None;
        }
        let gate = device.dma_endpoint().filter(DmaEndpoint::remaps_interrupts);
        let vector = |processor: &u32| {
            // Where nothing is remapped, a message has eight bits for its destination, one of which means all.
            let apic_id = cpu::get(*processor)?.apic_id;
            let reaches = gate.is_some() || apic_id < 0xff;
            Some((Vector::allocate_to_wake(gate).filter(|_| reaches)?, apic_id))
        };
        processors.iter().map(vector).collect::<Option<_>>().map(Self)
    }

    /// Has the card send them, and raise no line. It decodes its addresses, and sends none before it is told to.
    pub fn program(mut self, device: &Device) -> Self {
        messages::enable(&device.function);
        for (message, (vector, apic_id)) in (0..).zip(&mut self.0) {
            messages::write_entry(&device.function, message, Some(vector.message(*apic_id)));
        }
        self
    }

    /// How often they were sent.
    pub fn raised(&self) -> u64 {
        self.0.iter().map(|(vector, _)| vector.raised()).sum()
    }
}
