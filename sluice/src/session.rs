//! One run: starts the machine, follows the management channel, serves the control socket, judges the end.
//!
//! [`run`] is used by `run`, by the scenarios and by the benchmarks; they differ in their [`Observer`].

use crate::broker::{Broker, Input, Known, MOST_INPUTS, keep_tail, read_events, serve_clients};
use crate::bundle;
use crate::claim::{Claim, Member};
use crate::config::{Setup, server_words};
use crate::console::{BoundedFile, LineBuffer};
use crate::control::Instance;
use crate::ending::{self, Ending};
use crate::image;
use crate::info::Info;
use crate::interrupt;
use crate::logs::Logs;
use crate::name::Name;
use crate::observer::{Observer, Steer, Watch};
use crate::outcome::{Guest, Outcome, Status, has_stopped, parse_finding};
use crate::printable::{GuestText, Printable};
use crate::qemu::{self, Accel, Boot, Loaded};
use crate::qmp::Monitor;
use crate::server::Server;
use crate::workspace::{self, shortened};
use anyhow::{Context, Result, bail};
use sluice_abi::DomainId;
use sluice_abi::channel::{Command, Event};
use sluice_abi::config::AtEnd;
use sluice_abi::report::{DomainState, Report};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How often the machine is looked at when nothing arrives.
const TICK: Duration = Duration::from_millis(100);
/// How long a hypervisor gets for its last report, and for the one that says who serves whom.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A command that the machine does not take for this long is lost, because the machine may itself be waiting for us to
/// read.
const MACHINE_STALL: Duration = Duration::from_secs(1);
/// What QEMU says about its own limits and network, which concerns nobody.
const QEMU_NOISE: [&str; 2] = ["TCG doesn't support requested feature", "Slirp: Failed to send packet"];

/// Lines of QEMU's complaints that are kept.
const MOST_COMPLAINTS: usize = 50;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the instance; it gets a number if one like it runs already.
    pub name: Name,
    /// Where consoles are written, if not in `run/<instance>`.
    pub consoles: Option<PathBuf>,
    /// When to give up.
    pub timeout: Option<Duration>,
    /// How the hypervisor is loaded.
    pub boot: Boot,
    /// How instructions are run.
    pub accel: Accel,
    /// Count instructions instead of time.
    pub icount: bool,
    /// Further arguments for QEMU.
    pub qemu_args: Vec<String>,
    /// Features of the hypervisor to build with.
    pub features: Vec<Name>,
    /// The machine has a screen and a keyboard, which an observer uses ([`Steer::act`]).
    pub screen: bool,
}

impl Options {
    /// As a run of this name is where nothing is said.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            consoles: None,
            timeout: None,
            boot: Boot::default(),
            accel: Accel::default(),
            icount: false,
            qemu_args: Vec::new(),
            features: Vec::new(),
            screen: false,
        }
    }
}

/// Runs a setup to its end.
pub fn run(setup: &Setup, options: &Options, observer: &mut dyn Observer) -> Result<Outcome> {
    let started = Instant::now();
    let qemu = workspace::qemu();
    if !workspace::is_installed(&qemu) {
        bail!(workspace::not_found(&qemu.to_string_lossy()));
    }
    // What may fail fails before anything is built.
    let instance = Instance::claim(&options.name)?;
    observer.named(instance.name());
    let logs = match &options.consoles {
        Some(directory) => Logs::named(directory)?,
        None => Logs::of_instance(instance.name())?,
    };
    let guests = guests(setup, &logs)?;
    let log = logs.log();
    std::fs::write(&log, "").with_context(|| format!("could not write {}", log.display()))?;
    let info = Info::new(setup, logs.directory());
    instance.publish(&info);
    let elf = image::hypervisor(&options.features)?;
    let server = Server::start(0)?;
    let bundle = bundle::build(setup, &server_words(server.address.port()), AtEnd::Off)?;
    let files = Claim::take(&workspace::scratch()?, instance.name())?;
    let (bundle_path, image_path) = (files.path(Member::Bundle), files.path(Member::Image));
    let loaded = if options.boot == Boot::Pvh {
        std::fs::write(&bundle_path, &bundle.bytes).context("could not write the bundle")?;
        Loaded::Files(&elf, &bundle_path)
    } else {
        image::iso(&elf, &bundle.bytes, "", &image_path)?;
        Loaded::Image(&image_path, options.boot)
    };
    let (sender, inputs) = sync_channel(MOST_INPUTS);
    observer.starting();
    serve_clients(&instance, sender.clone())?;
    let hypervisor_side = instance.listen_for_hypervisor()?;
    let machine = qemu::Machine {
        loaded,
        log: &log,
        channel: &instance.channel(),
        accel: options.accel,
        cpus: *setup.machine.cpus.get_ref(),
        icount: options.icount,
        extra: &options.qemu_args,
    };
    let mut arguments = qemu::arguments(setup, &machine)?;
    if options.screen {
        let path = instance.monitor();
        arguments.extend(["-vga", "std", "-qmp"].map(str::to_owned));
        arguments.push(format!("unix:{},server=on,wait=off", qemu::text(&path)?));
    }
    // What was built before has taken time of its own.
    let powered_on = Instant::now();
    let mut child = qemu::start(&arguments)?;
    let complaints = collect_complaints(&mut child);
    let to_hypervisor = accept(&hypervisor_side, &mut child)?;
    if let Some(stream) = &to_hypervisor {
        stream.set_write_timeout(Some(MACHINE_STALL))?;
        read_events(stream.try_clone()?, sender);
    }
    let mut session = Session::new(guests, logs, options.timeout, to_hypervisor);
    if options.screen {
        session.monitor = Some(Monitor::connect(&instance.monitor())?);
    }
    let mut watch = Watch::new(observer, &instance, info);
    let ended = session.follow(&inputs, &mut child, powered_on, &mut watch)?;
    let complaints = complaints.join().unwrap_or_default();
    let (status, problems) = session.judge(ended, &complaints);
    let mut record = BTreeMap::new();
    record.insert("cpus", setup.machine.cpus.get_ref().to_string());
    record.insert("memory", setup.machine.memory.get_ref().to_string());
    record.insert("icount", options.icount.to_string());
    record.insert("qemu_arguments", arguments.join(" "));
    Ok(Outcome {
        status,
        problems,
        consoles: session.logs.directory().to_owned(),
        guests: session.guests.into_iter().map(|guest| guest.guest).collect(),
        report: session.report,
        wall: started.elapsed(),
        kernels: bundle.kernels,
        machine: record,
    })
}

/// Waits until QEMU connects; none if it ended instead.
fn accept(listener: &std::os::unix::net::UnixListener, child: &mut Child) -> Result<Option<UnixStream>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("no management channel"),
        }
        if child.try_wait()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Keeps the first lines that QEMU says on its standard error.
fn collect_complaints(child: &mut Child) -> std::thread::JoinHandle<Vec<GuestText>> {
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        let mut kept: Vec<GuestText> = Vec::new();
        let mut keep = |line: GuestText| {
            let is_noise = QEMU_NOISE.iter().any(|noise| line.raw().contains(noise));
            if !is_noise && kept.len() < MOST_COMPLAINTS {
                kept.push(line);
            }
        };
        if let Some(mut stderr) = stderr {
            let (mut buffer, mut lines) = ([0; 4096], LineBuffer::default());
            // It reads on to the end even when there is too much, because QEMU would wait otherwise.
            while let Ok(got @ 1..) = stderr.read(&mut buffer) {
                lines.push(&buffer[..got]).into_iter().for_each(&mut keep);
            }
            lines.finish().into_iter().for_each(&mut keep);
        }
        kept
    })
}

/// A guest while it runs.
struct Live {
    guest: Guest,
    file: BoundedFile,
    lines: LineBuffer,
    tail: Vec<u8>,
}

impl Live {
    fn new(name: &Name, logs: &Logs) -> Result<Self> {
        let guest = Guest { name: name.to_string(), ..Guest::default() };
        Ok(Self { guest, file: logs.console(name)?, lines: LineBuffer::default(), tail: Vec::new() })
    }

    fn known(&self) -> Known {
        Known {
            name: self.guest.name.clone(),
            state: self.guest.state,
            reason: self.guest.reason.raw().to_owned(),
            tail: self.tail.clone(),
        }
    }
}

/// The guests before they live, each with a file for its console.
fn guests(setup: &Setup, logs: &Logs) -> Result<Vec<Live>> {
    setup.domains.iter().map(|domain| Live::new(domain.name.get_ref(), logs)).collect()
}

struct Session {
    guests: Vec<Live>,
    /// So many of them are the configuration's.
    configured: usize,
    monitor: Option<Monitor>,
    /// QEMU never connected.
    closed: bool,
    broker: Broker,
    logs: Logs,
    /// Which consoles are not whole, and why.
    lost: Vec<String>,
    timeout: Option<Duration>,
    report: Option<Report>,
    said_hello: bool,
    finished: bool,
    /// When the user wanted it to end, and the hypervisor was asked who serves whom by now.
    wish: Option<Instant>,
    /// That is known, and guests are asked.
    ending: Option<Ending>,
    /// The machine was told to go off.
    switched_off: bool,
}

enum Ended {
    Exit(ExitStatus),
    TimeOut,
    /// By the user, at once.
    Interrupted,
}

impl Session {
    fn new(guests: Vec<Live>, logs: Logs, timeout: Option<Duration>, channel: Option<UnixStream>) -> Self {
        Self {
            configured: guests.len(),
            guests,
            monitor: None,
            closed: channel.is_none(),
            broker: Broker::new(channel.map(|stream| Box::new(stream) as Box<dyn Write>)),
            logs,
            lost: Vec::new(),
            timeout,
            report: None,
            said_hello: false,
            finished: false,
            wish: None,
            ending: None,
            switched_off: false,
        }
    }

    fn follow(
        &mut self,
        inputs: &Receiver<Input>,
        child: &mut Child,
        started: Instant,
        observer: &mut dyn Observer,
    ) -> Result<Ended> {
        let mut closed = self.closed;
        let mut asked_last = None;
        loop {
            let mut steer = Steer::default();
            match inputs.recv_timeout(TICK) {
                Ok(Input::Event(event)) => self.on_event(event, observer, &mut steer)?,
                Ok(Input::Closed) => closed = true,
                Ok(Input::Joined(id, stream)) => {
                    self.broker.welcome(id, stream, self.guests.iter().map(Live::known));
                }
                Ok(Input::Left(id)) => self.broker.forget(id),
                Ok(Input::Asked(id, request)) => self.broker.pass_on(id, request),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    if let Some(status) = child.try_wait()?
                        && closed
                    {
                        return Ok(Ended::Exit(status));
                    }
                }
            }
            observer.tick(&mut steer);
            let interrupts = interrupt::count();
            let waited = self.wish.map(|wish| wish.elapsed());
            // Where nothing runs yet, nobody has to be asked.
            if interrupts > 0 && !self.said_hello || interrupt::is_enough(waited) {
                let _ = child.kill();
                child.wait()?;
                return Ok(Ended::Interrupted);
            }
            if interrupts == 1 && !self.finished {
                self.end_in_order(observer, &mut steer);
            }
            let (commands, acts) = steer.take();
            for command in commands {
                self.broker.command(command);
            }
            if let Some(monitor) = &mut self.monitor {
                acts.iter().try_for_each(|act| monitor.act(act))?;
            }
            if self.timeout.is_some_and(|timeout| started.elapsed() > timeout) {
                let asked = *asked_last.get_or_insert_with(|| {
                    self.broker.command(Command::Report);
                    self.report = None;
                    Instant::now()
                });
                if self.report.is_some() || asked.elapsed() > LAST_WORDS || closed {
                    let _ = child.kill();
                    child.wait()?;
                    return Ok(Ended::TimeOut);
                }
            }
        }
    }

    /// Asks all guests to power off; what was never started goes with the machine.
    fn end_in_order(&mut self, observer: &mut dyn Observer, steer: &mut Steer) {
        let wish = *self.wish.get_or_insert_with(|| {
            observer.warning("the guests are asked to power off; Ctrl-C again ends them at once");
            steer.send(Command::Report);
            Instant::now()
        });
        if self.ending.is_none() && wish.elapsed() > LAST_WORDS {
            // It does not answer: better in any order than not at all.
            self.ending = Some(Ending::begin(Vec::new()));
        }
        let Some(ending) = &mut self.ending else { return };
        let states: Vec<(DomainId, DomainState)> =
            (0..).map(DomainId).zip(&self.guests).map(|(id, live)| (id, live.guest.state)).collect();
        if Ending::is_over(&states) {
            if !std::mem::replace(&mut self.switched_off, true) {
                steer.send(Command::Shutdown);
            }
            return;
        }
        ending.commands(&states).into_iter().for_each(|command| steer.send(command));
        let running = (0..).map(DomainId).zip(&self.guests);
        let running = running.filter(|(id, live)| !live.guest.state.is_ended() && ending.is_late(*id));
        let running: Vec<&str> = running.map(|(_, live)| live.guest.name.as_str()).collect();
        if let Some(complaint) = ending.complaint(&running) {
            observer.warning(&complaint);
        }
    }

    fn on_event(&mut self, event: Event, observer: &mut dyn Observer, steer: &mut Steer) -> Result<()> {
        match &event {
            Event::Hello { version, domains } => {
                if *version != sluice_abi::channel::VERSION {
                    bail!("the hypervisor speaks version {version} of the management channel");
                }
                observer.hello(domains);
                if !std::mem::replace(&mut self.said_hello, true) {
                    // A client that came before was greeted by us, and would wait for the greeting's rest.
                    return Ok(());
                }
                self.meet(domains)?;
            }
            Event::Console { domain, bytes } => self.console(domain.index(), bytes, observer, steer),
            Event::State { domain, state, reason } => {
                let index = domain.index();
                if let Some(live) = self.guests.get_mut(index) {
                    if live.guest.state.is_ended() && !state.is_ended() {
                        // A new life; what counts is how the last one ends.
                        live.guest.begin_life();
                    }
                    live.guest.state = *state;
                    live.guest.started |= *state == DomainState::Running;
                    // A guest that powered itself off needs no reason.
                    let reason = if *state == DomainState::PoweredOff { "" } else { reason };
                    live.guest.reason = GuestText::from(reason);
                    observer.state(index, *state, &live.guest.reason, steer);
                }
            }
            Event::Reply { .. } => {}
            Event::Report { report, .. } => {
                if self.wish.is_some() {
                    self.ending.get_or_insert_with(|| Ending::begin(ending::serves(report)));
                }
                self.report = Some(report.clone());
            }
            Event::Finished => {
                self.finished = true;
                // What QEMU has not passed on when the machine goes off is lost.
                self.broker.command(Command::Acknowledge);
            }
        }
        self.broker.spread(&event);
        Ok(())
    }

    /// Domains have been made: what they write is kept like the others' words.
    fn meet(&mut self, names: &[String]) -> Result<()> {
        for (index, name) in names.iter().enumerate() {
            if self.guests.get(index).is_none_or(|live| live.guest.name != *name) {
                let name: Name = name.parse().context("the hypervisor names a domain")?;
                let live = Live::new(&name, &self.logs)?;
                if index < self.guests.len() { self.guests[index] = live } else { self.guests.push(live) }
            }
        }
        Ok(())
    }

    fn console(&mut self, index: usize, bytes: &[u8], observer: &mut dyn Observer, steer: &mut Steer) {
        let Some(live) = self.guests.get_mut(index) else { return };
        // The guests are worth more than their logs.
        if let Err(error) = live.file.write(bytes) {
            let lost = format!("what {} writes is not kept any more: {error}", live.guest.name);
            observer.warning(&lost);
            self.lost.push(lost);
        }
        keep_tail(&mut live.tail, bytes);
        for line in live.lines.push(bytes) {
            if let Some(finding) = parse_finding(line.raw())
                && let Some(kept) = live.guest.keep(finding)
            {
                observer.finding(index, kept);
            }
            if has_stopped(line.raw()) && !std::mem::replace(&mut live.guest.has_stopped, true) {
                let name = &live.guest.name;
                observer.warning(&format!(
                    "{name}: its console says that its kernel panicked; without a driver that tells the hypervisor (Linux: the \
                     module pvpanic-mmio) it runs on until: cargo sluice destroy {name}"
                ));
            }
            observer.line(index, &line, steer);
        }
    }

    fn judge(&self, ended: Ended, complaints: &[GuestText]) -> (Status, Vec<String>) {
        // What is made by a command is the affair of whoever gave it.
        let configured = self.guests.iter().take(self.configured);
        let failures: Vec<String> = configured.filter_map(|live| live.guest.failure()).collect();
        let (status, mut problems) = self.judge_end(ended, complaints, failures);
        problems.extend(self.lost.iter().cloned());
        (status, problems)
    }

    /// The hypervisor has failed where it says so by its status, or where the machine went off by itself before it was done. What
    /// it refuses to run is no failure of its own. All else is QEMU's.
    fn judge_end(
        &self,
        ended: Ended,
        complaints: &[GuestText],
        failures: Vec<String>,
    ) -> (Status, Vec<String>) {
        let complaints = complaints.iter().map(GuestText::to_string);
        let status = match ended {
            Ended::TimeOut => {
                let mut problems = vec!["the time was over".to_owned()];
                problems.extend(failures);
                return (Status::TimeOut, problems);
            }
            Ended::Interrupted => {
                let mut problems = vec!["the guests were ended by force, as asked".to_owned()];
                problems.extend(failures);
                return (Status::Guest, problems);
            }
            Ended::Exit(status) => status,
        };
        let path = self.logs.log();
        let log = shortened(&path);
        let log = log.display();
        let tail = log_tail(&path);
        let (status, failure) = match status.code() {
            Some(0) if self.finished => {
                let verdict = if failures.is_empty() { Status::Ok } else { Status::Guest };
                return (verdict, failures);
            }
            Some(0) if !complaints.clone().any(|line| line.contains(qemu::TOLD_TO_END)) => {
                let failure = format!("the machine went off before the hypervisor was done (log: {log})");
                (Status::Hypervisor, failure)
            }
            Some(qemu::PANICKED) => (Status::Hypervisor, format!("the hypervisor panicked (log: {log})")),
            Some(qemu::REFUSED) => {
                (Status::Configuration, format!("the hypervisor cannot run this configuration (log: {log})"))
            }
            Some(qemu::UNFIT) => (Status::Trouble, format!("this machine cannot run guests (log: {log})")),
            _ => {
                let mut problems = vec![format!("QEMU did not run to its end: {status}")];
                if status.signal() == Some(signal_hook::consts::SIGSEGV) {
                    problems
                        .push("a fault of QEMU's own, whoever brought it about (docs/debug.md)".to_owned());
                }
                problems.extend(complaints);
                return (Status::Trouble, problems);
            }
        };
        let mut problems = vec![failure];
        problems.extend(tail);
        problems.extend(complaints);
        (status, problems)
    }
}

/// The last lines of the hypervisor's log, from the panic on if there is one.
fn log_tail(path: &Path) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from =
        lines.iter().position(|line| line.starts_with("panic")).unwrap_or(lines.len().saturating_sub(8));
    lines[from..].iter().take(30).map(|line| format!("  | {}", Printable(line))).collect()
}
