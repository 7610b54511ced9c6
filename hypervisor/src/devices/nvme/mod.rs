//! An NVMe disk that guests share, each a range of its blocks, by the native driver (`mode = "vpio"`, NVMe).
//!
//! Key types: [`SharedNvme`] (the physical disk), [`NvmeFunction`] (a guest's controller on its PCI bus).
//! `sluice_nvme` decides; this module brings it registers, memory, interrupts and time. docs/vpio-nvme.md argues why it is safe.

mod disk;

pub use disk::SharedNvme;

use super::error::AttachError;
use super::guest::Guest;
use super::hooked_bar::HookedBar;
use super::messages::Messages;
use super::own_time::OwnTime;
use super::told::Told;
use crate::domain::{Answer, Domain, PageHandler, Transfer, VirtualFunction};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_memory::Gpa;
use sluice_nvme::{REGISTERS, VECTORS};
use sluice_platform::pci::{BarAddresses, BuildError, Builder, ConfigEffect, Function, Identity};

/// The BAR of everything, and where the messages are in it.
const BAR: u8 = 0;
const BAR_SIZE: u64 = 0x4000;
const TABLE: u32 = REGISTERS;
const PENDING: u32 = 0x3000;

/// A guest's controller.
pub struct NvmeFunction {
    disk: Arc<SharedNvme>,
    /// The guest's place at the disk.
    client: usize,
    guest: Guest,
    bar: SpinLock<HookedBar>,
    messages: SpinLock<Messages>,
    /// The guest lets it master the bus.
    masters: AtomicBool,
    /// When it goes on with what is left to do.
    own_time: OwnTime,
    /// What it refused that the guest's processors were told of.
    told: Told,
}

impl NvmeFunction {
    /// The function of a guest.
    ///
    /// # Errors
    /// There is no room for it.
    fn new(
        disk: Arc<SharedNvme>,
        client: usize,
        guest: Guest,
        addresses: &mut BarAddresses,
        told: Told,
    ) -> Result<Self, AttachError> {
        let bar = HookedBar::new(BAR, BAR_SIZE, addresses).ok_or(AttachError::NoRoom)?;
        Ok(Self {
            disk,
            client,
            guest,
            bar: SpinLock::new(Rank::Function, bar),
            messages: SpinLock::new(Rank::Function, Messages::new(VECTORS)),
            masters: AtomicBool::new(false),
            own_time: OwnTime::default(),
            told,
        })
    }

    /// The guest has something left to do.
    fn go_on(&self) {
        if let Some((domain, _)) = self.guest.domain() {
            self.own_time.set(&domain, tsc::now());
        }
    }

    /// Tells the guest of completions: a bit for each message.
    fn signal(&self, domain: &Domain, signals: u8) {
        for vector in (0..VECTORS).filter(|vector| signals & 1 << vector != 0) {
            let message = self.messages.lock().raise(vector);
            if let Some(message) = message {
                domain.deliver(&message);
            }
        }
    }
}

impl VirtualFunction for NvmeFunction {
    fn slot(&self) -> u8 {
        self.guest.slot
    }

    fn pin(&self) -> u8 {
        self.guest.pin
    }

    fn describe(&self) -> Result<Function, BuildError> {
        let identity = Identity { class: pci::CLASS_NVME, ..self.disk.device().identity() };
        self.bar.lock().describe(Builder::new(identity)).msix(VECTORS, (BAR, TABLE), (BAR, PENDING)).build()
    }

    fn attached(&self, domain: &Arc<Domain>, index: usize) {
        self.guest.set_domain(domain, index);
        self.disk.enter(self.client, domain);
    }

    fn detach(&self) {
        super::leave(self.disk.device(), || self.disk.detach(self.client));
    }

    fn configured(&self, domain: &Domain, index: usize, _: ConfigEffect) {
        let slot = self.guest.slot;
        let platform = domain.platform.lock();
        let at = platform.pci.bar(slot, BAR).filter(|bar| bar.enabled).map(|bar| bar.address);
        let masters = platform.pci.command(slot) & pci::COMMAND_MASTER != 0;
        drop(platform);
        let mut bar = self.bar.lock();
        bar.leave(domain, at);
        bar.settle(domain, PageHandler::Device { function: index as u8, bar: BAR }, at);
        drop(bar);
        let mut messages = self.messages.lock();
        let capability = domain.platform.lock().pci.msix(slot);
        messages.configure(domain, capability);
        drop(messages);
        if masters != self.masters.swap(masters, Ordering::SeqCst) && masters {
            self.go_on();
        }
    }

    /// It has none.
    fn port(&self, _: &Domain, _: u16, _: u8, _: Transfer<'_>) -> Answer {
        Answer::Refused
    }

    fn memory(&self, domain: &Domain, _: u8, gpa: Gpa, transfer: Transfer<'_>) -> Answer {
        let offset = self.bar.lock().offset(gpa);
        let Some(offset) = offset else { return Answer::Refused };
        if let Some(entry) = offset.checked_sub(TABLE) {
            self.messages.lock().access(domain, entry, PENDING - TABLE, transfer);
            return Answer::Attend;
        }
        let width = transfer.len() as u8;
        let forbidden = self.disk.access(self.client, |front| match transfer {
            Transfer::Read(into) => {
                let value = front.read(offset, width).to_le_bytes();
                into.iter_mut().zip(value).for_each(|(to, from)| *to = from);
            }
            Transfer::Write(from) => {
                let mut word = [0; 8];
                word.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                front.write(offset, width, u64::from_le_bytes(word));
            }
        });
        self.told.take(|| forbidden).unwrap_or(Answer::Attend)
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
