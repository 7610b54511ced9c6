//! Messages (MSI, MSI-X) of a function that a guest owns.
//!
//! What the guest programs stays here; the function is told vectors of the hypervisor's, whose interrupts become the guest's
//! messages.
//!
//! Source: PCI Local Bus 3.0, 6.8.

use super::super::device::Device;
use crate::cpu;
use crate::domain::{Domain, Transfer};
use crate::iommu::DmaEndpoint;
use crate::irq::message::Vector;
use crate::pci::messages::{MSI_ENABLE, MSI_MULTIPLE, MSIX_ENABLE, MSIX_MASK_ALL, write_entry};
use crate::pci::{self, Function};
use alloc::vec::Vec;
use core::ops::Range;
use sluice_platform::Message;
use sluice_platform::msix::{ENTRY_SIZE, MsixTable};
use sluice_platform::pci::{Msi, MsixCapability};
use sluice_platform::storm::Flood;

/// Most vectors of one function; messages beyond them stay masked. A guest must not take all there are.
const MOST_VECTORS: usize = 48;

/// Messages of a function, as the guest programmed them.
pub struct Messages {
    /// The device's index.
    device: usize,
    /// Where its interrupts are checked.
    gate: Option<DmaEndpoint>,
    msi: Option<Msi>,
    msi_pending: bool,
    msix: Option<MsixCapability>,
    table: Option<MsixTable>,
    /// By message; MSI uses the first.
    vectors: Vec<Option<Vector>>,
    flood: Flood,
    /// Messages are held back: stopped at the function until [`Self::let_through`].
    held: bool,
}

impl Messages {
    /// Messages of a device, none of which is programmed.
    pub fn new(device: &Device) -> Self {
        let msix = device.function.msix;
        let mut vectors = Vec::new();
        vectors.resize_with(usize::from(msix.map_or(1, |msix| msix.vectors)), || None);
        Self {
            device: device.index,
            gate: device.dma_endpoint().filter(DmaEndpoint::remaps_interrupts),
            msi: None,
            msi_pending: false,
            msix: None,
            table: msix.map(|msix| MsixTable::new(msix.vectors)),
            vectors,
            flood: Flood::default(),
            held: false,
        }
    }

    /// Whether they are held back.
    pub fn are_held(&self) -> bool {
        self.held
    }

    /// Gives all vectors back; the function raises no messages any more.
    pub fn withdraw(&mut self) {
        self.vectors.iter_mut().for_each(|vector| *vector = None);
    }

    /// The guest changed its MSI capability.
    pub fn set_msi(&mut self, domain: &Domain, function: &Function, msi: Option<Msi>) {
        let (Some(physical), Some(new)) = (function.msi, msi) else { return };
        let bdf = function.bdf;
        self.msi = msi;
        if !new.enabled {
            bdf.change16(physical.offset, true, 0, MSI_ENABLE | MSI_MULTIPLE);
            self.msi_pending = false;
            if self.msix.is_none_or(|msix| !msix.enabled) {
                self.withdraw();
            }
            return;
        }
        let Some(message) = Message::from_msi(new.address, new.data.into()) else { return };
        let Some((address, data)) = self.vector(domain, 0, &message) else { return };
        let at = physical.offset;
        bdf.write(at + 4, address);
        if physical.wide {
            bdf.write(at + 8, 0);
        }
        bdf.change16(if physical.wide { at + 12 } else { at + 8 }, false, data as u16, !data as u16);
        bdf.change16(at, true, if self.held { 0 } else { MSI_ENABLE }, MSI_MULTIPLE);
        if new.masked & 1 == 0 && core::mem::take(&mut self.msi_pending) {
            domain.deliver(&message);
        }
    }

    /// The guest changed its MSI-X capability.
    pub fn set_msix(&mut self, domain: &Domain, function: &Function, msix: Option<MsixCapability>) {
        let (Some(physical), Some(new)) = (function.msix, msix) else { return };
        let old = self.msix.replace(new);
        let bit = |on: bool, bit: u16| if on { bit } else { 0 };
        let control = bit(new.enabled, MSIX_ENABLE) | bit(new.masked || self.held, MSIX_MASK_ALL);
        if new.enabled != old.is_some_and(|old| old.enabled) {
            if new.enabled {
                // Masked as a whole until the table is right.
                function.bdf.change16(physical.offset, true, MSIX_ENABLE | MSIX_MASK_ALL, 0);
            }
            for message in 0..physical.vectors {
                self.program(domain, function, message);
            }
            if !new.enabled {
                self.withdraw();
            }
        }
        function.bdf.change16(physical.offset, true, control, !control & (MSIX_ENABLE | MSIX_MASK_ALL));
        for message in 0..physical.vectors {
            self.deliver_pending(domain, message);
        }
    }

    /// Brings one entry of the physical MSI-X table in line with the guest's.
    fn program(&mut self, domain: &Domain, function: &Function, message: u16) {
        let enabled = self.msix.is_some_and(|msix| msix.enabled);
        let entry = self.table.as_ref().and_then(|table| table.entry(message));
        let wanted = entry.filter(|entry| enabled && !entry.masked).and_then(|entry| entry.message());
        let physical = wanted.and_then(|wanted| self.vector(domain, message, &wanted));
        write_entry(function, message, physical);
    }

    /// Address and data for the function, such that the interrupt comes where the guest's is wanted.
    fn vector(&mut self, domain: &Domain, index: u16, message: &Message) -> Option<(u32, u32)> {
        let used = self.vectors.iter().flatten().count();
        let vector = self.vectors.get_mut(usize::from(index))?;
        if vector.is_none() && used < MOST_VECTORS {
            *vector = Vector::allocate(self.device, index, self.gate);
        }
        let target =
            domain.vcpus.iter().find(|vcpu| vcpu.route.lock().matches(message.dest, message.logical));
        let home = target.and_then(|vcpu| cpu::get(vcpu.home)).filter(|cpu| cpu.apic_id < 0xff);
        let apic_id = home.map_or_else(|| cpu::get(0).map_or(0, |cpu| cpu.apic_id), |cpu| cpu.apic_id);
        vector.as_mut().map(|vector| vector.message(apic_id))
    }

    /// The function raised the vector of `message`. Returns true if its messages are held back from now on, because they come
    /// without end: call [`Self::let_through`] after a while.
    pub fn raised(&mut self, domain: &Domain, function: &Function, message: u16) -> bool {
        let news = self.deliver(domain, message);
        if !self.flood.came(news) || self.held {
            return false;
        }
        self.held = true;
        function.bdf.set_command(pci::COMMAND_NO_INTX, 0);
        match (function.msix, self.msix.filter(|msix| msix.enabled), function.msi) {
            (Some(physical), Some(_), _) => function.bdf.change16(physical.offset, true, MSIX_MASK_ALL, 0),
            (_, _, Some(physical)) => function.bdf.change16(physical.offset, true, 0, MSI_ENABLE),
            _ => {}
        }
        true
    }

    /// Lets messages through again. Whether the function may raise its line is for the guest's command register to say again.
    pub fn let_through(&mut self, domain: &Domain, function: &Function) {
        self.held = false;
        let msix = self.msix.filter(|msix| msix.enabled);
        match (function.msix, msix, function.msi, self.msi.filter(|msi| msi.enabled)) {
            // What came meanwhile is pending in the function.
            (Some(physical), Some(msix), ..) if !msix.masked => {
                function.bdf.change16(physical.offset, true, 0, MSIX_MASK_ALL);
            }
            // What came meanwhile is lost: it is told of in any case.
            (_, None, Some(physical), Some(_)) if self.vectors.first().is_some_and(Option::is_some) => {
                function.bdf.change16(physical.offset, true, MSI_ENABLE, 0);
                self.deliver(domain, 0);
            }
            _ => {}
        }
    }

    /// The guest reads or writes the MSI-X table at `offset`.
    pub fn table(&mut self, domain: &Domain, function: &Function, offset: u32, transfer: Transfer<'_>) {
        let Some(table) = &mut self.table else { return };
        let width = transfer.len().min(16) as u8;
        match transfer {
            Transfer::Read(buffer) => {
                let bytes = table.read(offset, width).to_le_bytes();
                buffer
                    .iter_mut()
                    .zip(bytes.iter().chain(core::iter::repeat(&0)))
                    .for_each(|(to, from)| *to = *from);
            }
            Transfer::Write(bytes) => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                if let Some(message) = table.write(offset, width, u64::from_le_bytes(word)) {
                    self.program(domain, function, message);
                    self.deliver_pending(domain, message);
                }
            }
        }
    }

    /// Delivers a message that the function raised, or notes that it is pending. Returns whether it was news to somebody.
    fn deliver(&mut self, domain: &Domain, message: u16) -> bool {
        let Self { msi, msi_pending, msix, table, .. } = self;
        let delivered = match (msix.filter(|msix| msix.enabled), msi.filter(|msi| msi.enabled)) {
            (Some(msix), _) => table.as_mut().and_then(|table| table.raise(message, msix.masked)),
            (None, Some(msi)) if msi.masked & 1 != 0 => {
                *msi_pending = true;
                None
            }
            (None, Some(msi)) => Message::from_msi(msi.address, msi.data.into()),
            (None, None) => None,
        };
        delivered.is_some_and(|message| domain.deliver(&message))
    }

    /// Delivers a message that came while it was masked, if it is not any more.
    fn deliver_pending(&mut self, domain: &Domain, message: u16) {
        let masked = self.msix.is_none_or(|msix| msix.masked || !msix.enabled);
        let Some(table) = self.table.as_mut().filter(|table| table.is_pending(message)) else { return };
        if let Some(message) = table.raise(message, masked) {
            domain.deliver(&message);
        }
    }
}

/// Where the MSI-X table is in BAR `bar`.
pub fn table_in(function: &Function, bar: u8) -> Option<Range<u64>> {
    let msix = function.msix.filter(|msix| msix.table.0 == bar)?;
    let start = u64::from(msix.table.1);
    Some(start..start + u64::from(msix.vectors) * u64::from(ENTRY_SIZE))
}
