//! A unit as a PCI function: its capability block (48882, 3.2) and its message.

use crate::pci::{self, Bdf, Function};
use sluice_abi::config::Select;
use sluice_iommu::amdvi::ivrs::UnitEntry;
use sluice_iommu::amdvi::register::Capability;
use sluice_iommu::{Interrupt, RequesterId};

/// The function.
pub struct UnitFunction {
    id: RequesterId,
    function: Function,
    capability: Capability,
}

impl UnitFunction {
    /// Looks at the function that IVRS names and has it answer at its registers. `None` if it is no IOMMU, or answers
    /// elsewhere; why is logged.
    pub fn enable(entry: &UnitEntry) -> Option<Self> {
        let (id, base) = (entry.function, entry.base.as_u64());
        let (bus, device, number) = (id.bus(), id.devfn() >> 3, id.devfn() & 7);
        let offset =
            u8::try_from(entry.capability).ok().filter(|at| (0x40..=0xec).contains(at) && at % 4 == 0);
        let function = pci::find(&Select::Address { bus, device, function: number });
        let (Some(function), Some(offset)) = (function, offset) else {
            log::error!("AMD-Vi: no function {id} with a capability at {:#x}", entry.capability);
            return None;
        };
        let bdf = function.bdf;
        let capability = Capability::from_bits_retain(bdf.read(offset));
        if !capability.is_iommu() {
            log::error!("AMD-Vi: {id} is no IOMMU: capability {:#x}", capability.bits());
            return None;
        }
        let (low, high) = (offset + Capability::BASE_LOW, offset + Capability::BASE_HIGH);
        if bdf.read(low) & Capability::BASE_ENABLED == 0 {
            bdf.write(high, (base >> 32) as u32);
            bdf.write(low, base as u32 | Capability::BASE_ENABLED);
        }
        let (low, high) = (bdf.read(low), bdf.read(high));
        let is = u64::from(high) << 32 | u64::from(low & !0x3fff);
        // QEMU has a constant there that says neither enabled nor where; it does answer.
        if low & Capability::BASE_ENABLED != 0 && is != base {
            log::error!("AMD-Vi: {id} has its registers at {is:#x}, not at {base:#x}");
            return None;
        }
        Some(Self { id, function, capability })
    }

    /// Where it is.
    pub fn id(&self) -> RequesterId {
        self.id
    }

    /// It has an extended feature register.
    pub fn has_features(&self) -> bool {
        self.capability.contains(Capability::FEATURES)
    }

    /// It may remember that nothing is mapped.
    pub fn caches_absent(&self) -> bool {
        self.capability.contains(Capability::CACHES_ABSENT)
    }

    /// Has it raise an interrupt by a message; returns whether it can. The unit does not look up its own messages.
    pub fn set_message(&self, interrupt: Interrupt) -> bool {
        const CONTROL_ENABLE: u16 = 1 << 0;
        const CONTROL_SEVERAL: u16 = 7 << 4;
        let bdf: Bdf = self.function.bdf;
        let (Some(msi), Ok(destination)) = (self.function.msi, u8::try_from(interrupt.apic_id)) else {
            log::warn!("AMD-Vi: {} cannot tell of faults by itself", self.id);
            return false;
        };
        let data = if msi.wide { 12 } else { 8 };
        bdf.write(msi.offset + 4, 0xfee0_0000 | u32::from(destination) << 12);
        if msi.wide {
            bdf.write(msi.offset + 8, 0);
        }
        bdf.change16(msi.offset + data, false, interrupt.vector.into(), !0);
        bdf.change16(msi.offset, true, CONTROL_ENABLE, CONTROL_SEVERAL);
        bdf.set_command(pci::COMMAND_MASTER, 0);
        true
    }
}
