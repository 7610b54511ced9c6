//! Vectors of the hypervisor for message-signalled interrupts of devices.
//!
//! Key type: [`Vector`]. A device that is passed through never gets a message of the guest's: its physical MSI or MSI-X registers hold
//! one of these vectors, whose interrupt becomes the guest's message. One that the hypervisor drives itself may have vectors that do nothing but wake
//! a processor.
//!
//! Source: Intel SDM vol. 3, 12.11 (message address and data).

use crate::cpu::{apic, idt};
use crate::iommu::DmaEndpoint;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_iommu::{Interrupt, Trigger};

const FIRST_VECTOR: u8 = 0x60;
/// Vectors 0x60-0xdf.
const VECTORS: usize = 128;

/// Who a vector belongs to: device index + 1 in the upper half, message index in the lower; 0: nobody; or [`WAKES`].
static OWNERS: [AtomicU32; VECTORS] = [const { AtomicU32::new(0) }; VECTORS];
/// Owner of a vector whose interrupt is for the processor that it reaches, and for nobody else.
const WAKES: u32 = u32::MAX;
/// How often each vector was raised for its owner.
static RAISED: [AtomicU64; VECTORS] = [const { AtomicU64::new(0) }; VECTORS];
static PENDING: [AtomicU64; VECTORS / 64] = [const { AtomicU64::new(0) }; VECTORS / 64];

/// A vector that a device may raise; free again when dropped.
pub struct Vector {
    index: usize,
    /// Where the device's interrupts are checked.
    gate: Option<DmaEndpoint>,
    /// The processor for which it is allowed there, and the message that then reaches it.
    allowed: Option<(u32, (u32, u32))>,
}

impl Vector {
    /// A vector for message `message` of a device; `None` if all are in use.
    pub fn allocate(device: usize, message: u16, gate: Option<DmaEndpoint>) -> Option<Self> {
        Self::allocate_for((device as u32 + 1) << 16 | u32::from(message), gate)
    }

    /// A vector that ends a halt of the processor which its message reaches, and does nothing else; `None` if all are in use.
    pub fn allocate_to_wake(gate: Option<DmaEndpoint>) -> Option<Self> {
        Self::allocate_for(WAKES, gate)
    }

    fn allocate_for(owner: u32, gate: Option<DmaEndpoint>) -> Option<Self> {
        let free =
            |slot: &AtomicU32| slot.compare_exchange(0, owner, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let index = OWNERS.iter().position(free)?;
        RAISED[index].store(0, Ordering::Relaxed);
        idt::set_handler(FIRST_VECTOR + index as u8, interrupt);
        Some(Self { index, gate, allowed: None })
    }

    /// How often it was raised.
    pub fn raised(&self) -> u64 {
        RAISED[self.index].load(Ordering::Relaxed)
    }

    /// Message address and data that reach the processor with that local APIC, and no other.
    pub fn message(&mut self, apic_id: u32) -> (u32, u32) {
        let vector = FIRST_VECTOR + self.index as u8;
        let Some(gate) = self.gate else { return (0xfee0_0000 | (apic_id & 0xff) << 12, u32::from(vector)) };
        if let Some((_, message)) = self.allowed.filter(|(to, _)| *to == apic_id) {
            return message;
        }
        let message = gate.allow_interrupt(Interrupt { apic_id, vector, trigger: Trigger::Edge });
        self.allowed = Some((apic_id, message));
        message
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.filter(|_| self.allowed.is_some()) {
            gate.forbid_interrupt(FIRST_VECTOR + self.index as u8);
        }
        PENDING[self.index / 64].fetch_and(!(1 << (self.index % 64)), Ordering::SeqCst);
        OWNERS[self.index].store(0, Ordering::SeqCst);
    }
}

fn interrupt(vector: u8) {
    let index = usize::from(vector.wrapping_sub(FIRST_VECTOR));
    if let Some(raised) = RAISED.get(index) {
        raised.fetch_add(1, Ordering::Relaxed);
        if OWNERS[index].load(Ordering::SeqCst) != WAKES {
            PENDING[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
            super::set_pending();
        }
    }
    apic::eoi();
}

/// Calls `act` with device and message index of every vector that was raised since the last call.
pub fn take(mut act: impl FnMut(usize, u16)) {
    for (index, word) in PENDING.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut bits = word.swap(0, Ordering::SeqCst);
        while bits != 0 {
            let vector = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let owner = OWNERS[vector].load(Ordering::SeqCst);
            if let Some(device) = (owner >> 16).checked_sub(1) {
                act(device as usize, owner as u16);
            }
        }
    }
}
