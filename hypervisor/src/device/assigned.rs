//! A physical function that one guest owns (`mode = "passthrough"`).
//!
//! Key type: [`Assigned`]. The guest programs a virtual configuration space; what follows from it is carried out
//! here: BARs appear in the guest's trap table and nested page tables, bus mastering follows the guest's command
//! register, and the messages that it programs (MSI, MSI-X) stay here, while the function is told vectors of the
//! hypervisor's.
//!
//! Source: PCI Local Bus 3.0, 6.2.2 (command), 6.2.5 (BARs), 6.8 (MSI and MSI-X).

use super::Device;
use crate::cpu;
use crate::domain::{Access, Answer, Domain, PageHandler, Piece, PortHandler, layout};
use crate::iommu::DmaEndpoint;
use crate::irq::message::Vector;
use crate::pci::reset::Registers;
use crate::pci::{self, Function};
use crate::sync::{Rank, SpinLock};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use sluice_memory::{Gpa, Hpa, PAGE_SIZE};
use sluice_platform::Message;
use sluice_platform::msix::{ENTRY_SIZE, MsixTable};
use sluice_platform::pci::{BarKind, Builder, ConfigEffect, Msi, MsixCapability, PciBus};
use sluice_platform::storm::Flood;
use sluice_traps::Direction;

const MSI_ENABLE: u16 = 1;
/// Several vectors, which are not offered to guests.
const MSI_MULTIPLE: u16 = 7 << 4;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_MASK_ALL: u16 = 1 << 14;

/// Most vectors of one function; messages beyond them stay masked. A guest must not take all there are.
const MOST_VECTORS: usize = 48;

/// Where the guest's firmware, which there is none of, would have put BARs: addresses are handed out upward.
pub struct Windows {
    next: u64,
}

impl Windows {
    /// The whole window of a guest.
    pub fn new() -> Self {
        Self { next: layout::PCI_MEMORY }
    }

    /// Addresses for a BAR of so many bytes, a power of two; `None` if there is no room.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let start = self.next.checked_next_multiple_of(bytes)?;
        let end = start.checked_add(bytes)?;
        if end > layout::PCI_MEMORY + layout::PCI_MEMORY_SIZE {
            return None;
        }
        self.next = end;
        Some(start)
    }
}

/// A memory BAR as the guest sees it.
#[derive(Clone, Copy, Debug)]
struct Window {
    index: u8,
    kind: BarKind,
    /// Whole pages: the guest gets at least one, which nothing else physical is in.
    size: u64,
    hpa: u64,
    /// Guest-physical address to begin with.
    initial: u64,
    /// Whether the MSI-X table is in it, and then which pages of it are trapped (offsets).
    trapped: (u64, u64),
}

#[derive(Default)]
struct State {
    /// Guest-physical address at which a memory BAR is mapped now, by BAR.
    mapped: [Option<u64>; 6],
    /// Whether a port BAR answers, by BAR.
    decoded: [bool; 6],
    msi: Option<Msi>,
    msi_pending: bool,
    msix: Option<MsixCapability>,
    table: Option<MsixTable>,
    /// By message; MSI uses the first.
    vectors: Vec<Option<Vector>>,
    flood: Flood,
    /// Messages are held back: stopped at the function until [`Assigned::let_through`].
    held: bool,
}

/// What is kept for a function that a guest owns.
pub struct Assigned {
    device: usize,
    /// Where its interrupts are checked.
    gate: Option<DmaEndpoint>,
    windows: ArrayVec<Window, 6>,
    state: SpinLock<State>,
}

impl Assigned {
    /// Finds guest addresses for the BARs of a function; `None` where there is no room for them.
    pub fn new(device: &Device, windows: &mut Windows) -> Option<Self> {
        let function = &device.function;
        let mut assigned = Self {
            device: device.index,
            gate: device.dma_endpoint().filter(DmaEndpoint::remaps_interrupts),
            windows: ArrayVec::new(),
            state: SpinLock::new(Rank::Share, State::default()),
        };
        for bar in function.bars.iter().filter(|bar| !bar.io) {
            let size = bar.size.max(PAGE_SIZE);
            let prefetchable = bar.prefetch;
            let kind =
                if bar.wide { BarKind::Mem64 { prefetchable } } else { BarKind::Mem32 { prefetchable } };
            let trapped = match &function.msix {
                Some(msix) if msix.table.0 == bar.index => {
                    let end = u64::from(msix.table.1) + u64::from(msix.vectors) * u64::from(ENTRY_SIZE);
                    (u64::from(msix.table.1) & !(PAGE_SIZE - 1), end.next_multiple_of(PAGE_SIZE).min(size))
                }
                _ => (0, 0),
            };
            let initial = windows.take(size)?;
            assigned.windows.push(Window {
                index: bar.index,
                kind,
                size,
                hpa: bar.address,
                initial,
                trapped,
            });
        }
        let messages = function.msix.map_or(1, |msix| msix.vectors);
        let mut state = assigned.state.lock();
        state.table = function.msix.map(|msix| MsixTable::new(msix.vectors));
        state.vectors.resize_with(usize::from(messages), || None);
        drop(state);
        Some(assigned)
    }

    /// Completes the guest's view of the function: BARs and messages.
    pub fn describe(&self, mut builder: Builder, function: &Function) -> Builder {
        for bar in function.bars.iter().filter(|bar| bar.io) {
            builder = builder.bar(bar.index, BarKind::Io, bar.size, bar.address);
        }
        for window in &self.windows {
            builder = builder.bar(window.index, window.kind, window.size, window.initial);
        }
        if function.msi.is_some() {
            builder = builder.msi(1);
        }
        match &function.msix {
            Some(msix) => builder.msix(msix.vectors, msix.table, msix.pending),
            None => builder,
        }
    }

    /// Makes the function ready for its owner: it decodes its addresses, and is silent.
    pub fn prepare(&self, function: &Function) {
        function.write_bars();
        let bdf = function.bdf;
        bdf.set_command(pci::COMMAND_IO | pci::COMMAND_MEMORY, pci::COMMAND_MASTER | pci::COMMAND_NO_INTX);
        silence(function);
        for message in 0..function.msix.map_or(0, |msix| msix.vectors) {
            write_entry(function, message, None);
        }
    }

    /// Takes the function's messages back; its bus mastering is off.
    pub fn withdraw(&self, function: &Function) {
        silence(function);
        self.state.lock().vectors.iter_mut().for_each(|vector| *vector = None);
    }

    /// The guest wrote to the function's configuration space (or did not yet): does what follows from it.
    pub fn configured(
        &self,
        domain: &Domain,
        share: u8,
        slot: u8,
        function: &Function,
        effect: ConfigEffect,
    ) {
        let mut state = self.state.lock();
        let platform = domain.platform.lock();
        let bus: &PciBus = &platform.pci;
        let command = bus.command(slot);
        let bars: [Option<sluice_platform::pci::Bar>; 6] =
            core::array::from_fn(|index| bus.bar(slot, index as u8));
        let (msi, msix) = (bus.msi(slot), bus.msix(slot));
        drop(platform);

        let follow = pci::COMMAND_MASTER | pci::COMMAND_NO_INTX;
        let allowed = if function.masters_bus() { follow } else { pci::COMMAND_NO_INTX };
        if matches!(effect, ConfigEffect::CommandChanged(..)) && command & pci::COMMAND_MASTER == 0 {
            function.bdf.set_command(0, pci::COMMAND_MASTER);
        }
        self.place_bars(domain, share, function, &mut state, &bars);
        if let ConfigEffect::MsiChanged(_) = effect {
            self.set_msi(domain, function, &mut state, msi);
        }
        if let ConfigEffect::MsixChanged(_) = effect {
            self.set_msix(domain, function, &mut state, msix);
        }
        if let ConfigEffect::CommandChanged(..) = effect {
            // A function whose messages are stopped must not raise its line for them.
            let command = if state.held { command | pci::COMMAND_NO_INTX } else { command };
            function.bdf.set_command(command & allowed, !command & follow);
        }
    }

    fn place_bars(
        &self,
        domain: &Domain,
        share: u8,
        function: &Function,
        state: &mut State,
        bars: &[Option<sluice_platform::pci::Bar>; 6],
    ) {
        let answers = |index: u8| bars.get(usize::from(index)).copied().flatten().filter(|bar| bar.enabled);
        for bar in function.bars.iter().filter(|bar| bar.io) {
            let enabled = answers(bar.index).is_some();
            if core::mem::replace(&mut state.decoded[usize::from(bar.index)], enabled) != enabled {
                let handler = if enabled { PortHandler::Device(share) } else { PortHandler::None };
                domain.set_ports(bar.address as u16, bar.size as u16, handler, |_| enabled);
            }
        }
        // First away with what moves, so that two BARs can change places.
        for window in &self.windows {
            let wanted = answers(window.index).map(|bar| bar.address);
            let mapped = &mut state.mapped[usize::from(window.index)];
            if *mapped != wanted
                && let Some(gpa) = mapped.take()
            {
                domain.unmap_device(&pieces(gpa, window));
            }
        }
        for window in &self.windows {
            let Some(bar) = answers(window.index) else { continue };
            let mapped = &mut state.mapped[usize::from(window.index)];
            if mapped.is_none() {
                let handler = PageHandler::Device { share, bar: window.index };
                if domain.map_device(handler, Hpa::new(window.hpa), &pieces(bar.address, window)) {
                    *mapped = Some(bar.address);
                }
            }
        }
    }

    fn set_msi(&self, domain: &Domain, function: &Function, state: &mut State, msi: Option<Msi>) {
        let (Some(physical), Some(new)) = (function.msi, msi) else { return };
        let bdf = function.bdf;
        state.msi = msi;
        if !new.enabled {
            bdf.change16(physical.offset, true, 0, MSI_ENABLE | MSI_MULTIPLE);
            state.msi_pending = false;
            if state.msix.is_none_or(|msix| !msix.enabled) {
                state.vectors.iter_mut().for_each(|vector| *vector = None);
            }
            return;
        }
        let Some(message) = Message::from_msi(new.address, new.data.into()) else { return };
        let Some((address, data)) = self.vector(domain, state, 0, &message) else { return };
        let at = physical.offset;
        bdf.write(at + 4, address);
        if physical.wide {
            bdf.write(at + 8, 0);
        }
        bdf.change16(if physical.wide { at + 12 } else { at + 8 }, false, data as u16, !data as u16);
        bdf.change16(at, true, if state.held { 0 } else { MSI_ENABLE }, MSI_MULTIPLE);
        if new.masked & 1 == 0 && core::mem::take(&mut state.msi_pending) {
            domain.deliver(&message);
        }
    }

    fn set_msix(
        &self,
        domain: &Domain,
        function: &Function,
        state: &mut State,
        msix: Option<MsixCapability>,
    ) {
        let (Some(physical), Some(new)) = (function.msix, msix) else { return };
        let old = state.msix.replace(new);
        let bit = |on: bool, bit: u16| if on { bit } else { 0 };
        let control = bit(new.enabled, MSIX_ENABLE) | bit(new.masked || state.held, MSIX_MASK_ALL);
        if new.enabled != old.is_some_and(|old| old.enabled) {
            if new.enabled {
                // Masked as a whole until the table is right.
                function.bdf.change16(physical.offset, true, MSIX_ENABLE | MSIX_MASK_ALL, 0);
            }
            for message in 0..physical.vectors {
                self.program(domain, function, state, message);
            }
            if !new.enabled {
                state.vectors.iter_mut().for_each(|vector| *vector = None);
            }
        }
        function.bdf.change16(physical.offset, true, control, !control & (MSIX_ENABLE | MSIX_MASK_ALL));
        for message in 0..physical.vectors {
            deliver_pending(domain, state, message);
        }
    }

    /// Brings one entry of the physical MSI-X table in line with the guest's.
    fn program(&self, domain: &Domain, function: &Function, state: &mut State, message: u16) {
        let enabled = state.msix.is_some_and(|msix| msix.enabled);
        let entry = state.table.as_ref().and_then(|table| table.entry(message));
        let wanted = entry.filter(|entry| enabled && !entry.masked).and_then(|entry| entry.message());
        let physical = wanted.and_then(|wanted| self.vector(domain, state, message, &wanted));
        write_entry(function, message, physical);
    }

    /// Address and data for the function, such that the interrupt comes where the guest's is wanted.
    fn vector(
        &self,
        domain: &Domain,
        state: &mut State,
        index: u16,
        message: &Message,
    ) -> Option<(u32, u32)> {
        let used = state.vectors.iter().flatten().count();
        let vector = state.vectors.get_mut(usize::from(index))?;
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
    pub fn raised(&self, domain: &Domain, function: &Function, message: u16) -> bool {
        let mut state = self.state.lock();
        let news = deliver(domain, &mut state, message);
        if !state.flood.came(news) || state.held {
            return false;
        }
        state.held = true;
        function.bdf.set_command(pci::COMMAND_NO_INTX, 0);
        match (function.msix, state.msix.filter(|msix| msix.enabled), function.msi) {
            (Some(physical), Some(_), _) => function.bdf.change16(physical.offset, true, MSIX_MASK_ALL, 0),
            (_, _, Some(physical)) => function.bdf.change16(physical.offset, true, 0, MSI_ENABLE),
            _ => {}
        }
        true
    }

    /// Lets messages through again that were held back.
    pub fn let_through(&self, domain: &Domain, slot: u8, function: &Function) {
        let mut state = self.state.lock();
        if !core::mem::take(&mut state.held) {
            return;
        }
        let platform = domain.platform.lock();
        let command = platform.pci.command(slot);
        drop(platform);
        let msix = state.msix.filter(|msix| msix.enabled);
        match (function.msix, msix, function.msi, state.msi.filter(|msi| msi.enabled)) {
            // What came meanwhile is pending in the function.
            (Some(physical), Some(msix), ..) if !msix.masked => {
                function.bdf.change16(physical.offset, true, 0, MSIX_MASK_ALL);
            }
            // What came meanwhile is lost: it is told of in any case.
            (_, None, Some(physical), Some(_)) if state.vectors.first().is_some_and(Option::is_some) => {
                function.bdf.change16(physical.offset, true, MSI_ENABLE, 0);
                deliver(domain, &mut state, 0);
            }
            _ => {}
        }
        if command & pci::COMMAND_NO_INTX == 0 {
            function.bdf.set_command(0, pci::COMMAND_NO_INTX);
        }
    }

    /// An access to memory of the function that exited: the MSI-X table, what shares its pages, or an operand of
    /// an instruction that exited for another reason.
    pub fn memory(
        &self,
        domain: &Domain,
        function: &Function,
        bar: u8,
        gpa: Gpa,
        access: Access<'_>,
    ) -> Answer {
        let mut state = self.state.lock();
        let base = state.mapped.get(usize::from(bar)).copied().flatten();
        let Some(offset) = base.and_then(|base| gpa.as_u64().checked_sub(base)) else {
            return Answer::Refused;
        };
        let table = function.msix.filter(|msix| msix.table.0 == bar).map(|msix| {
            let start = u64::from(msix.table.1);
            start..start + u64::from(msix.vectors) * u64::from(ENTRY_SIZE)
        });
        match table {
            Some(table) if table.contains(&offset) => {
                self.table(domain, function, &mut state, (offset - table.start) as u32, access);
            }
            _ => {
                drop(state);
                forward(function, bar, offset, access);
            }
        }
        Answer::Attend
    }

    fn table(
        &self,
        domain: &Domain,
        function: &Function,
        state: &mut State,
        offset: u32,
        access: Access<'_>,
    ) {
        let Some(table) = &mut state.table else { return };
        let width = access.len().min(16) as u8;
        match access {
            Access::Read(buffer) => {
                let bytes = table.read(offset, width).to_le_bytes();
                buffer
                    .iter_mut()
                    .zip(bytes.iter().chain(core::iter::repeat(&0)))
                    .for_each(|(to, from)| *to = *from);
            }
            Access::Write(bytes) => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                if let Some(message) = table.write(offset, width, u64::from_le_bytes(word)) {
                    self.program(domain, function, state, message);
                    deliver_pending(domain, state, message);
                }
            }
        }
    }
}

/// The pieces of a BAR at `gpa`: address, offset, bytes, whether accesses exit.
fn pieces(gpa: u64, window: &Window) -> ArrayVec<Piece, 3> {
    let (start, end) = window.trapped;
    let all = [
        (0..start, Direction::all()),
        (start..end, Direction::empty()),
        (end..window.size, Direction::all()),
    ];
    all.into_iter()
        .filter(|(range, _)| !range.is_empty())
        .map(|(range, direct)| Piece { gpa: Gpa::new(gpa.wrapping_add(range.start)), range, direct })
        .collect()
}

impl Piece {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Turns MSI and MSI-X off.
pub(super) fn silence(function: &Function) {
    if let Some(msi) = function.msi {
        function.bdf.change16(msi.offset, true, 0, MSI_ENABLE);
    }
    if let Some(msix) = function.msix {
        function.bdf.change16(msix.offset, true, 0, MSIX_ENABLE | MSIX_MASK_ALL);
    }
}

/// Writes an entry of the physical MSI-X table; `None` masks it.
fn write_entry(function: &Function, message: u16, content: Option<(u32, u32)>) {
    const CONTROL: u64 = 12;
    let Some(msix) = function.msix else { return };
    let Some(registers) = Registers::of(function, msix.table.0) else { return };
    let at = u64::from(msix.table.1) + u64::from(message) * u64::from(ENTRY_SIZE);
    registers.write(at + CONTROL, 1);
    if let Some((address, data)) = content {
        registers.write(at, address);
        registers.write(at + 4, 0);
        registers.write(at + 8, data);
        registers.write(at + CONTROL, 0);
    }
}

/// Delivers a message that the function raised, or notes that it is pending. Returns whether it was news to somebody.
fn deliver(domain: &Domain, state: &mut State, message: u16) -> bool {
    let State { msi, msi_pending, msix, table, .. } = state;
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
fn deliver_pending(domain: &Domain, state: &mut State, message: u16) {
    let masked = state.msix.is_none_or(|msix| msix.masked || !msix.enabled);
    let Some(table) = state.table.as_mut().filter(|table| table.is_pending(message)) else { return };
    if let Some(message) = table.raise(message, masked) {
        domain.deliver(&message);
    }
}

/// Makes an access to the function itself, in the widest pieces that are aligned.
fn forward(function: &Function, bar: u8, offset: u64, mut access: Access<'_>) {
    let registers = Registers::of(function, bar);
    let mut done = 0;
    while done < access.len() {
        let (at, left) = (offset + done as u64, access.len() - done);
        let width = [8u8, 4, 2, 1]
            .into_iter()
            .find(|width| usize::from(*width) <= left && at.is_multiple_of(u64::from(*width)))
            .unwrap_or(1);
        let part = access.part(done..done + usize::from(width));
        match (part, &registers) {
            (Access::Read(buffer), Some(registers)) => {
                let value = registers.read_wide(at, width).unwrap_or(u64::MAX).to_le_bytes();
                buffer.iter_mut().zip(value).for_each(|(to, from)| *to = from);
            }
            (Access::Write(bytes), Some(registers)) => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                let _ = registers.write_wide(at, width, u64::from_le_bytes(word));
            }
            (Access::Read(buffer), None) => buffer.fill(0xff),
            (Access::Write(_), None) => {}
        }
        done += usize::from(width);
    }
}
