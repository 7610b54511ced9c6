//! A disk that guests share, each a range of its sectors, by the native driver of its controller (`mode = "vpio"`, IDE).
//!
//! Key types: [`SharedDisk`] (the physical disk and whose turn it is), [`IdeFunction`] (a guest's controller on its PCI bus).
//! `sluice_ide` decides; this module brings it ports, memory, interrupts and time. docs/vpio-ide.md argues why it is safe.

mod disk;
mod ports;

pub use disk::SharedDisk;

use super::guest::Guest;
use super::own_time::OwnTime;
use super::ports::free_ports;
use super::told::Told;
use crate::domain::{Answer, Domain, PortHandler, Transfer, VirtualFunction};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_ide::Block;
use sluice_memory::Gpa;
use sluice_platform::pci::{BarKind, BuildError, Builder, ConfigEffect, Function, Identity};

/// The blocks of registers: BAR, ports, and where they begin among the function's ports.
const BLOCKS: [(Block, u8, u16, u16); 3] =
    [(Block::Command, 0, 8, 0x00), (Block::Control, 1, 4, 0x10), (Block::BusMaster, 4, 16, 0x20)];
/// An IDE controller that masters the bus, with both channels at its base address registers: guests have no interrupt
/// controller of the kind that the old places need.
const CLASS: u32 = 0x01_0185;
/// IDETIM: the first channel decodes its ports, the second does not (82371SB data sheet, 2.3.9).
const TIMING: (u8, [u8; 4]) = (0x40, [0x00, 0x80, 0x00, 0x00]);

/// A guest's controller.
pub struct IdeFunction {
    disk: Arc<SharedDisk>,
    /// The guest's place at the disk.
    client: usize,
    guest: Guest,
    /// First of its ports.
    base: u16,
    /// The guest lets it master the bus.
    masters: AtomicBool,
    /// When it goes on with what has arrived for it.
    own_time: OwnTime,
    /// What it refused that the guest's processors were told of.
    told: Told,
    /// Which blocks the guest has switched on. The lock is held until the domain's port table says the same.
    decoded: SpinLock<[bool; BLOCKS.len()]>,
}

impl IdeFunction {
    /// The function of a guest; `None` if it has no ports for it.
    fn new(disk: Arc<SharedDisk>, client: usize, guest: Guest, told: Told) -> Option<Self> {
        let base = free_ports(guest.slot)? as u16;
        let decoded = SpinLock::new(Rank::Function, [false; BLOCKS.len()]);
        Some(Self {
            disk,
            client,
            guest,
            base,
            masters: AtomicBool::new(false),
            own_time: OwnTime::default(),
            told,
            decoded,
        })
    }

    /// Whether the guest lets it master the bus.
    fn masters(&self) -> bool {
        self.masters.load(Ordering::SeqCst)
    }

    /// The guest has something left to do. The caller holds the lock of the disk.
    fn go_on(&self) {
        if let Some((domain, _)) = self.guest.domain() {
            self.own_time.set(&domain, tsc::now());
        }
    }

    fn register(&self, port: u16) -> Option<(Block, u8)> {
        BLOCKS.iter().find_map(|(block, _, count, at)| {
            let offset = port.wrapping_sub(self.base + at);
            (offset < *count).then_some((*block, offset as u8))
        })
    }
}

impl VirtualFunction for IdeFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        let identity = Identity { class: CLASS, ..self.disk.device().identity() };
        let (at, timing) = TIMING;
        let mut builder =
            Builder::new(identity).interrupt(1, self.guest.pin).fixed_ports().constant(at, &timing);
        for (_, bar, count, offset) in BLOCKS {
            builder = builder.bar(bar, BarKind::Io, count.into(), (self.base + offset).into());
        }
        builder.build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        self.disk.enter(self.client, domain);
        self.disk.device().unmask();
    }

    fn detach(&self) {
        super::leave(self.disk.device(), || self.disk.detach(self.client));
    }

    fn configured(&self, domain: &Domain, index: usize, _: ConfigEffect) {
        let mut decoded = self.decoded.lock();
        for ((_, bar, count, offset), decoded) in BLOCKS.iter().zip(decoded.iter_mut()) {
            let bar = domain.platform.lock().pci.bar(self.guest.slot, *bar);
            let wanted = bar.is_some_and(|bar| bar.enabled);
            if *decoded != wanted {
                *decoded = wanted;
                let handler = if wanted { PortHandler::Device(index as u8) } else { PortHandler::None };
                domain.hook_ports(self.base + offset, *count, handler, 0);
            }
        }
        drop(decoded);
        let masters = domain.platform.lock().pci.command(self.guest.slot) & pci::COMMAND_MASTER != 0;
        if self.masters.swap(masters, Ordering::SeqCst) && !masters {
            self.disk.leave_bus(self.client);
        }
    }

    fn port(&self, _: &Domain, port: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        let Some((block, offset)) = self.register(port) else { return Answer::Refused };
        let is_data = (block, offset) == (Block::Command, 0);
        let polled_at = self.disk.device().poll_at();
        let refused = self.disk.access(self.client, |front| match transfer {
            Transfer::Read(into) if is_data => front.read_data(into),
            Transfer::Write(from) if is_data => front.write_data(from),
            Transfer::Read(into) => {
                for element in into.chunks_mut(width.into()) {
                    let value = front.read(block, offset, width).to_le_bytes();
                    element.iter_mut().zip(value).for_each(|(to, from)| *to = from);
                }
            }
            Transfer::Write(from) => {
                for element in from.chunks(width.into()) {
                    let mut word = [0; 4];
                    word.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
                    front.write(block, offset, width, u32::from_le_bytes(word));
                }
            }
        });
        let answer = || self.own_time.answer(self.disk.device(), polled_at);
        self.told.take(|| refused).unwrap_or_else(answer)
    }

    /// It has none.
    fn memory(&self, _: &Domain, _: u8, _: Gpa, _: Transfer<'_>) -> Answer {
        Answer::Refused
    }

    fn resumes_at(&self) -> u64 {
        self.own_time.at()
    }

    fn resume(&self, now: u64) {
        if self.own_time.claim(now) {
            self.disk.resume(self.client);
        }
    }
}
