//! The life of domains, and the management channel that reports and steers it.
//!
//! Key types: [`Entry`] (a configured domain, alive or not). The first processor serves the channel
//! between slices; others only raise [`attend`].

mod report;
mod verify;

use crate::boot::{self, bundle::Bundle};
use crate::cpu::{apic, idt, ioapic};
use crate::device;
use crate::domain::{Domain, EndReason, build};
use crate::sync::SpinLock;
use crate::uart::{COM2, Uart};
use crate::{cpu, power, sched};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_abi::channel::{self, Command, CommandError, Decoder, Event, Request};
use sluice_abi::config::{self, Config};
use sluice_abi::report::{DomainReport, DomainState};

/// Largest piece of console output in one message.
const CONSOLE_CHUNK: usize = 2048;

/// ISA interrupt of the second UART.
const CHANNEL_IRQ: u8 = 3;
/// Vector of the same.
const CHANNEL_VECTOR: u8 = 0x30;

/// A configured domain.
struct Entry {
    config: config::Domain,
    live: Option<Arc<Domain>>,
    /// Counters of its last life.
    last: Option<DomainReport>,
    restarts: u32,
    /// Start it again once its present life is over.
    again: bool,
    announced: DomainState,
}

/// Everything behind the channel.
struct Manager {
    /// The second UART; `None` on a machine without one: consoles then go to the log.
    uart: Option<Uart>,
    decoder: Decoder,
    bundle: Bundle<'static>,
    entries: Vec<Entry>,
    stopping: bool,
    watch: verify::Watch,
}

static MANAGER: SpinLock<Option<Manager>> = SpinLock::new(None);
static ATTENTION: AtomicBool = AtomicBool::new(true);

/// Asks the first processor to look at the channel, the consoles and ended domains.
pub fn attend() {
    ATTENTION.store(true, Ordering::SeqCst);
    if cpu::this().index != 0 {
        cpu::kick(0);
    }
}

/// Whether [`service`] has something to do.
pub fn wants_service() -> bool {
    ATTENTION.load(Ordering::SeqCst)
}

/// Builds all domains and starts those that are not configured to wait.
pub fn init(config: Config, bundle: Bundle<'static>) {
    let mut uart = Uart::new(COM2);
    let present = uart.init();
    if present {
        let (gsi, trigger) = ioapic::isa(CHANNEL_IRQ);
        idt::set_handler(CHANNEL_VECTOR, |_| {
            attend();
            apic::eoi();
        });
        ioapic::route(gsi, CHANNEL_VECTOR, cpu::this().apic_id, trigger);
        ioapic::unmask(gsi);
        uart.enable_receive_interrupt(true);
    }
    let mut entries = Vec::new();
    for domain in config.domains {
        entries.push(Entry {
            config: domain,
            live: None,
            last: None,
            restarts: 0,
            again: false,
            announced: DomainState::Created,
        });
    }
    let mut manager = Manager {
        uart: present.then_some(uart),
        decoder: Decoder::default(),
        bundle,
        entries,
        stopping: false,
        watch: verify::Watch::default(),
    };
    let names = manager.entries.iter().map(|entry| entry.config.name.clone()).collect();
    manager.send(&Event::Hello { version: channel::VERSION, domains: names });
    for index in 0..manager.entries.len() {
        if let Err(error) = manager.build(index) {
            let name = &manager.entries[index].config.name;
            log::error!("domain {name}: cannot be built: {error}");
            power::fail(power::code::CONFIGURATION);
        }
    }
    for entry in &manager.entries {
        if let (Some(domain), false) = (&entry.live, entry.config.paused) {
            domain.run();
        }
    }
    *MANAGER.lock() = Some(manager);
}

/// Serves the channel if there is something to do. The first processor calls it between exits.
pub fn service() {
    if ATTENTION.swap(false, Ordering::SeqCst)
        && let Some(manager) = MANAGER.lock().as_mut()
    {
        manager.service();
    }
}

impl Manager {
    fn send(&mut self, event: &Event) {
        let Some(uart) = &mut self.uart else { return };
        if let Ok(bytes) = channel::encode(event) {
            uart.write_all(&bytes);
        }
    }

    fn build(&mut self, index: usize) -> Result<(), build::BuildError> {
        let entry = &mut self.entries[index];
        let domain = build::build(index as u16, &entry.config, &self.bundle)?;
        domain.check_isolation();
        sched::admit(&domain);
        entry.live = Some(domain);
        Ok(())
    }

    fn service(&mut self) {
        self.send_consoles();
        while let Some(byte) = self.uart.as_mut().and_then(Uart::try_read) {
            if let Some(request) = self.decoder.push::<Request>(byte) {
                self.obey(request);
            }
        }
        for index in 0..self.entries.len() {
            self.announce(index);
        }
        self.reap();
        if self.entries.iter().all(|entry| entry.live.is_none()) {
            self.finish();
        }
    }

    /// Sends one piece of each console: a guest that never stops writing must not keep this
    /// processor here. What it writes faster than the channel takes is dropped, and counted.
    fn send_consoles(&mut self) {
        for index in 0..self.entries.len() {
            let Some(domain) = self.entries[index].live.clone() else { continue };
            let bytes = domain.take_console(CONSOLE_CHUNK);
            if bytes.len() == CONSOLE_CHUNK {
                ATTENTION.store(true, Ordering::SeqCst);
            }
            if !bytes.is_empty() {
                if self.uart.is_none() {
                    crate::log::raw(&bytes);
                }
                self.send(&Event::Console { domain: index as u16, bytes });
            }
        }
    }

    /// What an ended domain wrote and the channel has not taken yet; it is bounded.
    fn send_last_words(&mut self, index: usize, domain: &Domain) {
        loop {
            let bytes = domain.take_console(CONSOLE_CHUNK);
            if bytes.is_empty() {
                return;
            }
            self.send(&Event::Console { domain: index as u16, bytes });
        }
    }

    /// Reports a domain's state if it is another than last time.
    fn announce(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        let Some(domain) = &entry.live else { return };
        let state = domain.state();
        if state != entry.announced {
            entry.announced = state;
            let reason = domain.end_reason().map_or("", EndReason::text);
            log::info!("domain {}: {state:?} {reason}", domain.name());
            self.send(&Event::State { domain: index as u16, state, reason: String::from(reason) });
        }
    }

    /// Takes back what ended domains had.
    fn reap(&mut self) {
        for index in 0..self.entries.len() {
            let Some(domain) = self.entries[index].live.clone() else { continue };
            if !domain.has_ended() {
                continue;
            }
            sched::dismiss(&domain);
            if !domain.is_idle() {
                // A processor is still on its way out: look again.
                ATTENTION.store(true, Ordering::SeqCst);
                continue;
            }
            device::release(&domain);
            self.send_last_words(index, &domain);
            // It may have ended on another processor since the last look.
            self.announce(index);
            let entry = &mut self.entries[index];
            let again = entry.again || (domain.end_reason() == Some(EndReason::Reset) && !self.stopping);
            entry.again = false;
            entry.last = Some(report::domain(&domain, entry.restarts));
            entry.live = None;
            drop(domain);
            if again {
                let entry = &mut self.entries[index];
                entry.restarts += 1;
                match self.build(index) {
                    Ok(()) => self.run(index),
                    Err(error) => log::error!("domain {index}: cannot be built again: {error}"),
                }
            }
        }
    }

    fn run(&mut self, index: usize) {
        if let Some(domain) = self.entries.get(index).and_then(|entry| entry.live.as_ref()) {
            domain.run();
        }
    }

    fn finish(&mut self) {
        let report = report::all(self.entries.iter().map(Entry::report));
        self.send(&Event::Report { seq: 0, report });
        self.send(&Event::Finished);
        log::info!("all domains have ended");
        power::off();
    }

    fn obey(&mut self, request: Request) {
        let result = match request.command {
            Command::Report => {
                let report = report::all(self.entries.iter().map(Entry::report));
                return self.send(&Event::Report { seq: request.seq, report });
            }
            Command::Start(index) => self.start(index),
            Command::Pause(index) => self.with(index, |domain| domain.pause()),
            Command::Resume(index) => self.with(index, |domain| domain.run()),
            Command::Stop(index) => self.with(index, |domain| domain.press_power_button()),
            Command::Destroy(index) => self.with(index, |domain| domain.end(EndReason::Command)),
            Command::Restart(index) => self.restart(index),
            Command::ConsoleInput(index, bytes) => self.with(index, |domain| domain.console_input(&bytes)),
            Command::Verify => {
                let live = self.entries.iter().filter_map(|entry| entry.live.as_ref());
                self.watch.verify(boot::info(), live.map(|domain| (domain.index, verify::sum_of(domain))));
                Ok(())
            }
            Command::Shutdown => {
                self.stopping = true;
                for entry in &self.entries {
                    if let Some(domain) = &entry.live {
                        domain.end(EndReason::Command);
                    }
                }
                Ok(())
            }
        };
        self.send(&Event::Reply { seq: request.seq, result });
    }

    fn with(&self, index: u16, act: impl FnOnce(&Domain)) -> Result<(), CommandError> {
        let entry = self.entries.get(usize::from(index)).ok_or(CommandError::NoSuchDomain)?;
        let domain = entry.live.as_ref().filter(|domain| !domain.has_ended());
        act(domain.ok_or(CommandError::WrongState)?);
        Ok(())
    }

    fn start(&mut self, index: u16) -> Result<(), CommandError> {
        let index = usize::from(index);
        let entry = self.entries.get(index).ok_or(CommandError::NoSuchDomain)?;
        match &entry.live {
            Some(domain) if domain.state() == DomainState::Created => domain.run(),
            Some(_) => return Err(CommandError::WrongState),
            None => {
                self.build(index).map_err(build::BuildError::as_command_error)?;
                self.entries[index].restarts += 1;
                self.run(index);
            }
        }
        Ok(())
    }

    fn restart(&mut self, index: u16) -> Result<(), CommandError> {
        let entry = self.entries.get_mut(usize::from(index)).ok_or(CommandError::NoSuchDomain)?;
        match &entry.live {
            Some(domain) => {
                entry.again = true;
                domain.end(EndReason::Command);
                Ok(())
            }
            None => self.start(index),
        }
    }
}

impl Entry {
    fn report(&self) -> DomainReport {
        match (&self.live, &self.last) {
            (Some(domain), _) => report::domain(domain, self.restarts),
            (None, Some(last)) => last.clone(),
            (None, None) => DomainReport { name: self.config.name.clone(), ..DomainReport::default() },
        }
    }
}
