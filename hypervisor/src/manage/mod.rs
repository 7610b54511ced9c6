//! The life of domains, and the management channel that reports and steers it.
//!
//! Key types: [`Entry`] (a domain, alive or not), [`Channel`] (who listens and commands: the host, and control domains). The first
//! processor serves the channel between slices; others only raise [`attention::ask`], and [`attention::ask_for_output`] for consoles.
//!
//! What is sent waits in a queue and leaves it as the serial port takes it, without anybody waiting for the port: for
//! [`SENDING_NS`] in every [`OUTPUT_NS`] while a guest wants the processor, and all the time while none does. So a flood of console
//! output slows down the guest that makes it, and its neighbours by no more than that.

mod attach;
mod build;
mod channel;
mod create;
mod keyboard;
mod operator;
mod report;
mod seats;
mod verify;

use crate::cpu::{apic, idt};
use crate::devices;
use crate::devices::virtio;
use crate::domain::{Domain, EndReason, attention};
use crate::handover::BootInfo;
use crate::irq::ioapic;
use crate::mm::Buffer;
use crate::sync::{Rank, SpinLock};
use crate::uart::{COM2, Uart};
use crate::x86::tsc;
use crate::{cpu, power, sched};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use channel::{Channel, Peer};
use core::sync::atomic::{AtomicU64, Ordering};
use keyboard::Key;
use operator::Operator;
use seats::{Seat, Seats};
use sluice_abi::DomainId;
use sluice_abi::bundle::Bundle;
use sluice_abi::channel::{Command, CommandError, Event, Request, VERSION};
use sluice_abi::config::{self, Action, AtEnd, Config};
use sluice_abi::report::{DomainReport, DomainState, Report};
use sluice_platform::restart::Restarts;
use sluice_platform::rtc::Rtc;
use sluice_screen::{Lines, Progress};

/// Largest piece of console output in one message.
const CONSOLE_CHUNK: usize = 2048;
/// How often output is sent while guests want the processor. In that time a line of 115,200 baud takes less than the 16 bytes that
/// a port has room for.
const OUTPUT_NS: u64 = 1_000_000;
/// For how long, then.
const SENDING_NS: u64 = 200_000;
/// How often the last message is sent, and how long its answer is waited for each time.
const FAREWELLS: u32 = 5;
const FAREWELL_NS: u64 = 1_000_000_000;
/// A host that takes nothing for so long at the end is not waited for.
const STALL_NS: u64 = 5_000_000_000;

/// How often a request of a control domain is obeyed: who asks without end slows down nobody.
const REQUEST_NS: u64 = 1_000_000;

/// ISA interrupt of the second UART.
const CHANNEL_IRQ: u8 = 3;
/// Vector of the same.
const CHANNEL_VECTOR: u8 = 0x30;

/// Where a domain's kernel and ramdisk are.
#[derive(Clone)]
enum Source {
    /// In the bundle that the boot loader brought.
    Loaded,
    /// In one that came by the channel.
    Made(Arc<Buffer>),
}

/// A domain of the configuration, or one that was made by a command.
struct Entry {
    config: config::Domain,
    /// `None`: a command destroyed it, and it was not in the configuration.
    source: Option<Source>,
    /// What is in which slot of its bus.
    seats: Seats,
    live: Option<Arc<Domain>>,
    /// How its last life ended, and the counters of all that are over.
    last: Option<DomainReport>,
    restarts: u32,
    /// Start it again once its present life is over.
    again: bool,
    /// A command asked it to power off: it is not started again when it does.
    stays_off: bool,
    /// A command ended it, or is done with it: it is not kept.
    let_go: bool,
    /// Its real-time clock between two lives.
    rtc: Rtc,
    /// How soon it may follow itself.
    pace: Restarts,
    /// TSC at which its present life began.
    born: u64,
    /// TSC at which it is started again.
    due: Option<u64>,
    announced: DomainState,
    /// The end of its console, where somebody at the machine may look for it.
    console: Option<Box<operator::Kept>>,
}

/// Everything behind the channel.
struct Manager {
    /// Its ends. On a machine without a second serial port there is no host, and consoles go to the log, too.
    channels: Vec<Channel>,
    /// `None` on a machine without a screen.
    operator: Option<Operator>,
    at_end: AtEnd,
    bundle: Bundle<'static>,
    /// A bundle that is on its way.
    upload: Option<Buffer>,
    entries: Vec<Entry>,
    /// The ends of consoles are kept.
    keeps_consoles: bool,
    stopping: bool,
    watch: verify::Watch,
    /// What the boot loader told, for what nobody may change.
    info: &'static BootInfo,
}

static MANAGER: SpinLock<Option<Manager>> = SpinLock::new(Rank::Manager, None);

/// TSC at which output is sent next, if guests want the processor.
static OUTPUT_AT: AtomicU64 = AtomicU64::new(0);

/// TSC at which a domain is started again; `u64::MAX`: none waits for that.
static START_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// TSC at which the next request of a control domain is looked for; `u64::MAX`: when one comes.
static REQUEST_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether [`service`] has something to do.
pub fn wants_service() -> bool {
    attention::is_asked()
}

/// TSC at which a processor must call [`service`] at the latest: for the sake of output, of the screen, or of a domain that is
/// to be started again.
pub fn next_service(processor: u32) -> u64 {
    if processor != cpu::BOOT {
        return u64::MAX;
    }
    output_at().min(operator::next()).min(start_at()).min(request_at())
}

fn request_at() -> u64 {
    REQUEST_AT.load(Ordering::Relaxed)
}

fn start_at() -> u64 {
    START_AT.load(Ordering::Relaxed)
}

/// TSC at which output is to be sent; `u64::MAX`: none waits.
fn output_at() -> u64 {
    let output = if attention::has_output() { OUTPUT_AT.load(Ordering::Relaxed) } else { u64::MAX };
    output.min(attention::output_later())
}

/// Sends for a while, as no guest wants the first processor. Returns false if nothing could be sent.
pub fn send_when_idle() -> bool {
    attention::has_output() && MANAGER.lock().as_mut().is_some_and(Manager::send_output)
}

/// Builds all domains and starts those that are not configured to wait.
pub fn init(config: Config, bundle: Bundle<'static>, info: &'static BootInfo) {
    let mut uart = Uart::new(COM2);
    let present = uart.init();
    if present {
        idt::set_handler(CHANNEL_VECTOR, |_| {
            attention::ask();
            apic::eoi();
        });
        ioapic::route_isa(CHANNEL_IRQ, CHANNEL_VECTOR, cpu::this().apic_id);
        uart.enable_receive_interrupt(true);
    }
    let operator = Operator::sit_down();
    let keeps_consoles = operator.is_some() || !present;
    let entry = |domain: &config::Domain| Entry::new(domain.clone(), Some(Source::Loaded), keeps_consoles);
    let mut entries: Vec<Entry> = config.domains.iter().map(entry).collect();
    for (id, domain) in (0..).map_while(DomainId::at).zip(&config.domains) {
        if domain.control {
            virtio::add_channel(id, domain);
        }
        domain.vifs.iter().for_each(|vif| devices::add_vif(id, domain, vif));
        for device in &domain.virtio {
            let server = entries.get_mut(usize::from(device.by));
            virtio::add(id, domain, device, server.as_ref().map_or("", |server| &server.config.name));
            if let Some(server) = server {
                let _ = server.seats.take(Seat::BackEnd(id, device.name.clone()));
            }
        }
    }
    for (index, network) in (0..).zip(&config.networks) {
        if let Some(entry) = network.controller.and_then(|nth| entries.get_mut(usize::from(nth))) {
            let _ = entry.seats.take(Seat::Controller(index));
        }
    }
    if let Some(Err(error)) = config.focus.map(virtio::set_foreground) {
        log::warn!("nobody is in the foreground: {error}");
    }
    let streams = (0..).map_while(DomainId::at).zip(&entries).filter(|(_, entry)| entry.config.control);
    let streams = streams.map(|(id, _)| Channel::of_domain(id));
    let channels = present.then(|| Channel::of_uart(uart)).into_iter().chain(streams).collect();
    let mut manager = Manager {
        channels,
        operator,
        at_end: config.at_end,
        bundle,
        upload: None,
        entries,
        keeps_consoles,
        stopping: false,
        watch: verify::Watch::default(),
        info,
    };
    let hello = manager.hello();
    manager.send(&hello);
    for id in manager.ids() {
        if let Err(error) = manager.build(id) {
            manager.give_up(id, error);
        }
    }
    if manager.entries.iter().all(|entry| entry.live.is_none()) {
        log::error!("no guest can start");
        power::fail(power::code::CONFIGURATION);
    }
    for id in manager.ids() {
        if !manager.entries[id.index()].config.paused {
            manager.run(id);
        }
    }
    *MANAGER.lock() = Some(manager);
}

/// Serves the channel if there is something to do. The first processor calls it between exits.
pub fn service() {
    let asked = attention::take();
    // Most of the time nothing waits, and the clock need not be read.
    let is_due = |at: u64| at != u64::MAX && at <= tsc::now();
    if !asked && !is_due(next_service(cpu::BOOT)) {
        return;
    }
    let (due, look, start) = (is_due(output_at()), is_due(operator::next()), is_due(start_at()));
    let asked = asked || is_due(request_at());
    if let Some(manager) = MANAGER.lock().as_mut() {
        if due {
            manager.send_output();
        }
        if start {
            manager.start_due();
        }
        if asked {
            manager.service();
        }
        if asked || look {
            manager.serve_operator(Progress::Running);
        }
    }
}

impl Manager {
    /// Sends to all who listen.
    fn send(&mut self, event: &Event) {
        self.queue(event);
        attention::set_output(true);
    }

    fn queue(&mut self, event: &Event) {
        self.channels.iter_mut().for_each(|channel| channel.queue(event));
    }

    /// Sends to one.
    fn send_to(&mut self, peer: Peer, event: &Event) {
        self.channels
            .iter_mut()
            .filter(|channel| channel.peer() == peer)
            .for_each(|channel| channel.queue(event));
        attention::set_output(true);
    }

    fn hello(&self) -> Event {
        let domains = self.entries.iter().map(|entry| entry.config.name.clone()).collect();
        Event::Hello { version: VERSION, domains }
    }

    /// Tells who has just come what there is.
    fn greet(&mut self, peer: Peer) {
        let hello = self.hello();
        self.send_to(peer, &hello);
        for state in self.states() {
            self.send_to(peer, &state);
        }
    }

    /// The state of each domain.
    fn states(&self) -> Vec<Event> {
        let state = |(domain, entry): (DomainId, &Entry)| {
            let (_, reason) = entry.state();
            Event::State { domain, state: entry.announced, reason }
        };
        (0..).map_while(DomainId::at).zip(&self.entries).map(state).collect()
    }

    /// The host's end, if there is one.
    fn host(&mut self) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.peer() == Peer::Host)
    }

    fn has_host(&self) -> bool {
        self.channels.iter().any(|channel| channel.peer() == Peer::Host)
    }

    /// Sends what waits, as long as it is taken at once, for [`SENDING_NS`]. Returns whether anything was.
    fn send_output(&mut self) -> bool {
        attention::set_output(false);
        let until = tsc::now().saturating_add(tsc::ticks_from_ns(SENDING_NS));
        let mut sent = false;
        while !self.all_have_room() || self.queue_consoles() {
            sent |= self.write(until);
            if !self.all_have_room() || tsc::now() >= until {
                attention::set_output(true);
                break;
            }
        }
        // What is not for the host is sent as far as it goes: nobody waits for a domain.
        sent |= self.write(until);
        OUTPUT_AT.store(tsc::now().saturating_add(tsc::ticks_from_ns(OUTPUT_NS)), Ordering::Relaxed);
        sent
    }

    fn all_have_room(&self) -> bool {
        self.channels.iter().all(Channel::has_room)
    }

    /// Sends until nothing is left, nobody has room, or it is time. Returns whether anything was sent.
    fn write(&mut self, until: u64) -> bool {
        self.channels.iter_mut().fold(false, |sent, channel| channel.send(until) | sent)
    }

    /// Sends all that waits for the host, unless it takes nothing for [`STALL_NS`].
    fn flush(&mut self) {
        let mut progress = tsc::now();
        let Some(host) = self.host() else { return };
        while !host.has_room() && tsc::now().wrapping_sub(progress) < tsc::ticks_from_ns(STALL_NS) {
            if host.send(u64::MAX) {
                progress = tsc::now();
            }
        }
        host.drain();
    }

    /// All domains, alive or not.
    fn ids(&self) -> impl Iterator<Item = DomainId> + use<> {
        (0..self.entries.len()).map_while(DomainId::at)
    }

    fn build(&mut self, id: DomainId) -> Result<(), build::BuildError> {
        let entry = &mut self.entries[id.index()];
        let bundle = match entry.source.as_ref().ok_or(build::BuildError::Missing)? {
            Source::Loaded => self.bundle,
            Source::Made(buffer) => Bundle::new(buffer.bytes()),
        };
        let domain = build::build(id, &entry.config, &entry.seats, &bundle, entry.rtc.clone())?;
        domain.check_isolation();
        sched::admit(&domain);
        entry.live = Some(domain);
        (entry.stays_off, entry.let_go, entry.due) = (false, false, None);
        Ok(())
    }

    /// A domain cannot be built: says so, and goes on without it.
    fn give_up(&mut self, id: DomainId, error: build::BuildError) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        let (name, reason) = (entry.config.name.clone(), format!("cannot be built: {error}"));
        log::error!("domain {name}: {reason}");
        let state = DomainState::Crashed;
        entry.announced = state;
        let counted = entry.last.take().unwrap_or_default();
        let (restarts, end_reason) = (entry.restarts, reason.clone());
        entry.last = Some(DomainReport { name, state, end_reason, restarts, ..counted });
        self.send(&Event::State { domain: id, state, reason });
    }

    fn service(&mut self) {
        self.hear();
        if let Some(next) = virtio::wanted_foreground() {
            let _ = virtio::set_foreground(next);
        }
        // A domain may have made room for what waits for it.
        if self.channels.iter().any(Channel::has_output) {
            attention::set_output(true);
        }
        for id in self.ids() {
            self.announce(id);
        }
        self.take_ejected();
        self.reap();
        self.note_next_start();
        if self.entries.iter().all(|entry| entry.live.is_none() && entry.due.is_none()) {
            self.finish();
        }
    }

    /// Does what is asked for: all that the host wants, and one thing that each control domain wants in [`REQUEST_NS`].
    fn hear(&mut self) {
        let now = tsc::now();
        let is_early = request_at() != u64::MAX && request_at() > now;
        let mut again = u64::MAX;
        for index in 0..self.channels.len() {
            let Some(channel) = self.channels.get_mut(index) else { return };
            let peer = channel.peer();
            if channel.has_opened() {
                self.greet(peer);
            }
            if peer != Peer::Host && is_early {
                continue;
            }
            while let Some(request) = self.channels.get_mut(index).and_then(Channel::receive) {
                self.obey(peer, request);
                if peer != Peer::Host {
                    again = now.saturating_add(tsc::ticks_from_ns(REQUEST_NS));
                    break;
                }
            }
        }
        if !is_early {
            REQUEST_AT.store(again, Ordering::Relaxed);
        }
    }

    /// Queues one piece of each console; false if there is none.
    fn queue_consoles(&mut self) -> bool {
        let mut any = false;
        for id in self.ids() {
            let Some(domain) = self.entries[id.index()].live.clone() else { continue };
            any |= self.queue_console(&domain);
        }
        any
    }

    /// Queues a piece of a domain's console; false if there is none.
    fn queue_console(&mut self, domain: &Domain) -> bool {
        let bytes = domain.take_console(CONSOLE_CHUNK);
        if bytes.is_empty() {
            return false;
        }
        self.keep_console(domain.id, &bytes);
        self.queue(&Event::Console { domain: domain.id, bytes });
        true
    }

    /// Keeps the end of a console for the screen. Without a second serial port its lines go to the log.
    fn keep_console(&mut self, id: DomainId, bytes: &[u8]) {
        let has_host = self.has_host();
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        let Some(console) = entry.console.as_mut() else { return };
        for byte in bytes {
            if console.push(core::slice::from_ref(byte)) && !has_host {
                crate::log::console_line(&entry.config.name, console.line(1).unwrap_or_default());
            }
        }
    }

    /// Does what the keys say, and draws the page if it is time.
    fn serve_operator(&mut self, progress: Progress) {
        let Some(mut operator) = self.operator.take() else { return };
        while let Some((key, console)) = operator.key() {
            let domain = console.and_then(|index| self.entries.get(index)?.live.as_ref());
            match (key, domain) {
                (Key::Type(bytes), Some(domain)) => domain.console_input(bytes),
                (Key::TypeByte(byte), Some(domain)) => domain.console_input(&[byte]),
                (Key::Off, _) if progress == Progress::Ended => power::off(),
                _ => {}
            }
        }
        if operator::next() <= tsc::now() {
            let report = self.report();
            operator.show(report, progress, |index| self.entries.get(index)?.console.as_deref());
        }
        self.operator = Some(operator);
    }

    /// Queues what an ended domain wrote and the channel has not taken yet; it is bounded.
    fn queue_last_words(&mut self, domain: &Domain) {
        while self.queue_console(domain) {}
        attention::set_output(true);
        let dropped = domain.console_dropped();
        if dropped != 0 {
            log::warn!("domain {}: {dropped} bytes of its console were dropped", domain.name());
        }
    }

    /// Reports a domain's state if it is another than last time.
    fn announce(&mut self, id: DomainId) {
        let entry = &mut self.entries[id.index()];
        let (state, reason) = entry.state();
        if state != entry.announced {
            entry.announced = state;
            let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            log::info!("domain {}: {}{because}", entry.config.name, state.word());
            self.send(&Event::State { domain: id, state, reason });
        }
    }

    /// Takes back what ended domains had.
    fn reap(&mut self) {
        for id in self.ids() {
            let Some(domain) = self.entries[id.index()].live.clone() else { continue };
            if !domain.has_ended() {
                continue;
            }
            sched::dismiss(&domain);
            let action = self.action(id, &domain);
            if action == Action::Keep {
                // Others wait for signals that it would pass on.
                self.entries[id.index()].seats.controllers().for_each(|slot| domain.deaden(slot));
                self.announce(id);
                continue;
            }
            if !domain.is_idle() {
                // A processor is still on its way out: look again.
                attention::ask();
                continue;
            }
            domain.detach();
            self.queue_last_words(&domain);
            // It may have ended on another processor since the last look.
            self.announce(id);
            let entry = &mut self.entries[id.index()];
            let by_command = core::mem::take(&mut entry.again);
            entry.last = Some(entry.report(tsc::now()));
            entry.rtc = domain.rtc();
            entry.live = None;
            drop(domain);
            self.settle_slots(id);
            if action == Action::Restart {
                self.follow(id, by_command);
            }
        }
    }

    /// What follows the end of a domain.
    fn action(&self, id: DomainId, domain: &Domain) -> Action {
        let Some(entry) = self.entries.get(id.index()) else { return Action::Destroy };
        let actions = &entry.config.actions;
        match domain.end_reason() {
            _ if self.stopping => Action::Destroy,
            _ if entry.again => Action::Restart,
            None | Some(EndReason::Command) => Action::Destroy,
            Some(EndReason::PowerOff) if entry.stays_off => Action::Destroy,
            _ if entry.let_go => Action::Destroy,
            Some(EndReason::PowerOff) => actions.poweroff,
            Some(EndReason::Reset) => actions.reboot,
            Some(_) => actions.crash,
        }
    }

    /// Starts a domain again that has ended: at once if a command asks for it, else as fast as its lives may follow each other.
    fn follow(&mut self, id: DomainId, by_command: bool) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        let now = tsc::now();
        let lived = tsc::ns_from_ticks(now.wrapping_sub(entry.born));
        let pause = if by_command { 0 } else { entry.pace.pause(lived) };
        if pause == 0 {
            return self.begin_again(id);
        }
        let (lives, seconds) = (entry.pace.in_a_row(), pause / 1_000_000_000);
        log::warn!(
            "domain {}: its last {lives} lives were short: it is started again in {seconds} s",
            entry.config.name
        );
        entry.due = Some(now.saturating_add(tsc::ticks_from_ns(pause)));
        self.announce(id);
    }

    fn begin_again(&mut self, id: DomainId) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        entry.restarts += 1;
        entry.due = None;
        match self.build(id) {
            Ok(()) => {
                self.run(id);
                self.announce(id);
            }
            Err(error) => self.give_up(id, error),
        }
    }

    /// Starts the domains whose time has come.
    fn start_due(&mut self) {
        let now = tsc::now();
        for id in self.ids() {
            if self.entries[id.index()].due.is_some_and(|due| due <= now) {
                self.begin_again(id);
            }
        }
        // What they say of themselves is sent, and the next time is noted.
        attention::ask();
        self.note_next_start();
    }

    fn note_next_start(&self) {
        let next = self.entries.iter().filter_map(|entry| entry.due).min();
        START_AT.store(next.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn run(&mut self, id: DomainId) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        if let Some(domain) = &entry.live {
            entry.born = tsc::now();
            domain.run();
        }
    }

    /// What the counters say. All times are those of one moment, so that nobody runs for longer than has passed.
    fn report(&self) -> Report {
        let now = tsc::now();
        report::all(now, self.entries.iter().map(|entry| entry.report(now)))
    }

    /// Sends the last report, and switches the machine off once the host has it: what QEMU, or whatever is at the other end of the
    /// line, has not passed on by then is lost. A machine without a host waits for a few seconds.
    fn finish(&mut self) {
        for _ in 0..FAREWELLS {
            let report = self.report();
            self.send(&Event::Report { seq: 0, report });
            self.send(&Event::Finished);
            self.flush();
            if !self.has_host() || self.is_acknowledged() {
                break;
            }
        }
        log::info!("all domains have ended");
        while self.at_end == AtEnd::Stay && self.operator.is_some() {
            self.serve_operator(Progress::Ended);
        }
        power::off();
    }

    /// Waits for the host's last word.
    fn is_acknowledged(&mut self) -> bool {
        let until = tsc::now().saturating_add(tsc::ticks_from_ns(FAREWELL_NS));
        while tsc::now() < until {
            let request = self.host().and_then(Channel::receive);
            if request.is_some_and(|request| request.command == Command::Acknowledge) {
                log::info!("the host has the last report");
                return true;
            }
            core::hint::spin_loop();
        }
        log::warn!("the host does not say that it has the last report");
        false
    }

    fn obey(&mut self, peer: Peer, request: Request) {
        let result = match request.command {
            Command::Report => {
                let report = self.report();
                return self.send_to(peer, &Event::Report { seq: request.seq, report });
            }
            // Nothing has finished.
            Command::Acknowledge => return,
            command if !self.may(peer, &command) => Err(CommandError::NotAllowed),
            command => self.act(command),
        };
        self.send_to(peer, &Event::Reply { seq: request.seq, result });
    }

    /// What a peer may ask for: the host all; a domain neither what takes the machine's free memory, nor to stand still itself, since nobody
    /// might be there to let it go on, nor to give away memory that is not its own.
    fn may(&self, peer: Peer, command: &Command) -> bool {
        match (peer, command) {
            (Peer::Host, _) => true,
            (Peer::Domain(_), Command::Verify) => false,
            (Peer::Domain(own), Command::Pause(id)) => own != *id,
            (Peer::Domain(_), Command::Attach(id, virtio)) => self.may_attach(peer, *id, virtio),
            (Peer::Domain(_), Command::AttachVif { domain, .. } | Command::SetVif { domain, .. }) => {
                self.is_made(*domain)
            }
            (Peer::Domain(_), _) => true,
        }
    }

    fn act(&mut self, command: Command) -> Result<(), CommandError> {
        match command {
            Command::Start(id) => self.start(id),
            Command::Pause(id) => self.with(id, |domain| domain.pause()),
            Command::Resume(id) => self.with(id, |domain| domain.run()),
            Command::Stop(id) => self.stop(id),
            Command::Destroy(id) => self.destroy(id),
            Command::Restart(id) => self.restart(id),
            Command::Focus(id) => virtio::set_foreground(id).map_err(|_| CommandError::NoDeviceFile),
            Command::Upload { offset, total, bytes } => self.upload(offset, total, &bytes),
            Command::Create => self.create(),
            Command::Attach(id, virtio) => self.attach(id, virtio),
            Command::AttachVif { domain, network, vif } => self.attach_vif(domain, &network, vif),
            Command::SetVif { domain, device, share, limit, vlan, addresses, moderation } => {
                self.set_vif(domain, &device, |vif| {
                    let addresses = addresses.unwrap_or(vif.addresses);
                    config::Vif { share, limit, vlan, addresses, moderation, ..vif }
                })
            }
            Command::Detach { domain, device, force } => self.detach(domain, &device, force),
            Command::ConsoleInput(id, bytes) => self.with(id, |domain| domain.console_input(&bytes)),
            Command::Verify => {
                let live = self.entries.iter().filter_map(|entry| entry.live.as_ref());
                self.watch.verify(self.info, live.map(|domain| &**domain));
                Ok(())
            }
            Command::Shutdown => {
                self.stopping = true;
                attention::ask();
                for entry in &mut self.entries {
                    entry.due = None;
                    if let Some(domain) = &entry.live {
                        domain.end(EndReason::Command);
                    }
                }
                Ok(())
            }
            Command::Report | Command::Acknowledge => Ok(()),
        }
    }

    fn with(&self, id: DomainId, act: impl FnOnce(&Domain)) -> Result<(), CommandError> {
        let entry = self.entries.get(id.index()).ok_or(CommandError::NoSuchDomain)?;
        let domain = entry.live.as_ref().filter(|domain| !domain.has_ended());
        act(domain.ok_or(CommandError::WrongState)?);
        Ok(())
    }

    /// Presses a domain's power button; one that waits to be started again is not.
    fn stop(&mut self, id: DomainId) -> Result<(), CommandError> {
        let entry = self.entries.get_mut(id.index()).ok_or(CommandError::NoSuchDomain)?;
        if entry.due.take().is_some() {
            return Ok(());
        }
        entry.stays_off = true;
        self.with(id, Domain::press_power_button)
    }

    /// Ends a domain, or lets go of one that ended and was kept, or was to be started again. What was made by a command is gone then.
    fn destroy(&mut self, id: DomainId) -> Result<(), CommandError> {
        let entry = self.entries.get_mut(id.index()).ok_or(CommandError::NoSuchDomain)?;
        let was_made = entry.source.take_if(|source| matches!(source, Source::Made(_))).is_some();
        if entry.due.take().is_some() {
            return Ok(());
        }
        let Some(domain) = &entry.live else {
            if !was_made {
                return Err(CommandError::WrongState);
            }
            let last = entry.last.get_or_insert_default();
            last.name.clone_from(&entry.config.name);
            (last.state, last.end_reason) = (DomainState::Destroyed, EndReason::Command.text().into());
            self.settle_slots(id);
            self.announce(id);
            return Ok(());
        };
        entry.let_go = true;
        domain.end(EndReason::Command);
        attention::ask();
        Ok(())
    }

    fn start(&mut self, id: DomainId) -> Result<(), CommandError> {
        let entry = self.entries.get(id.index()).ok_or(CommandError::NoSuchDomain)?;
        match &entry.live {
            Some(domain) if domain.state() == DomainState::Created => self.run(id),
            Some(_) => return Err(CommandError::WrongState),
            None => {
                let (lived, name) = (entry.last.is_some(), entry.config.name.clone());
                self.build(id).map_err(|error| {
                    log::error!("domain {name}: cannot be built: {error}");
                    error.as_command_error()
                })?;
                self.entries[id.index()].restarts += u32::from(lived);
                self.run(id);
            }
        }
        Ok(())
    }

    fn restart(&mut self, id: DomainId) -> Result<(), CommandError> {
        let entry = self.entries.get_mut(id.index()).ok_or(CommandError::NoSuchDomain)?;
        match &entry.live {
            Some(domain) => {
                entry.again = true;
                domain.end(EndReason::Command);
                // One that was kept has ended before.
                attention::ask();
                Ok(())
            }
            None => self.start(id),
        }
    }
}

impl Entry {
    fn new(config: config::Domain, source: Option<Source>, keeps_console: bool) -> Self {
        Self {
            seats: Seats::of(&config),
            config,
            source,
            live: None,
            last: None,
            restarts: 0,
            again: false,
            stays_off: false,
            let_go: false,
            rtc: Rtc::default(),
            pace: Restarts::default(),
            born: 0,
            due: None,
            announced: DomainState::Created,
            console: keeps_console.then(Box::default),
        }
    }

    /// It was made by a command and does not live: another of its name may take its place.
    fn is_over(&self) -> bool {
        self.live.is_none() && self.due.is_none() && !matches!(self.source, Some(Source::Loaded))
    }

    /// It was made by a command, which has destroyed it.
    fn is_gone(&self) -> bool {
        self.is_over() && self.source.is_none()
    }

    /// Where it is in its life, and why it ended.
    fn state(&self) -> (DomainState, String) {
        match (&self.live, &self.last) {
            (Some(domain), _) => {
                let state = domain.state();
                // A guest that powered itself off needs no reason.
                let reason = domain.end_reason().filter(|_| state != DomainState::PoweredOff);
                (state, reason.map_or("", EndReason::text).into())
            }
            (None, Some(last)) if self.due.is_some() => (DomainState::Restarting, last.end_reason.clone()),
            (None, Some(last)) => (last.state, last.end_reason.clone()),
            (None, None) => (DomainState::Created, String::new()),
        }
    }

    fn report(&self, now: u64) -> DomainReport {
        match (&self.live, &self.last) {
            (Some(domain), last) => {
                let mut report = report::domain(domain, self.restarts, now);
                last.iter().for_each(|earlier| report.add_earlier(earlier));
                report
            }
            (None, Some(last)) => DomainReport { state: self.state().0, ..last.clone() },
            (None, None) => DomainReport { name: self.config.name.clone(), ..DomainReport::default() },
        }
    }
}
