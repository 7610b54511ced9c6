//! One run: starts the machine, follows the management channel, serves the control socket, judges the end.
//!
//! [`run`] is used by `run`, by the scenarios and by the benchmarks; they differ in their [`Observer`].

use crate::bundle;
use crate::claim::{Claim, Member};
use crate::config::{Domain, Setup, server_words};
use crate::console::{BoundedFile, LineBuffer};
use crate::control::{Instance, Peer, read_messages};
use crate::ending::{Ending, Serves};
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
use sluice_abi::channel::{Command, Event, Request, encode};
use sluice_abi::config::AtEnd;
use sluice_abi::report::{DomainState, Report};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How often the machine is looked at when nothing arrives.
const TICK: Duration = Duration::from_millis(100);
/// How long a hypervisor that is out of time gets for its last report.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A command that the machine does not take for this long is lost, because the machine may itself be waiting for us to
/// read.
const MACHINE_STALL: Duration = Duration::from_secs(1);
/// How much of a console a client gets that connects late.
const CONSOLE_TAIL: usize = 4096;
/// What QEMU says about its own limits and network, which concerns nobody.
const QEMU_NOISE: [&str; 2] = ["TCG doesn't support requested feature", "Slirp: Failed to send packet"];

/// Lines of QEMU's complaints that are kept.
const MOST_COMPLAINTS: usize = 50;

/// Messages that wait to be looked at; whoever sends more waits too, the machine as well.
const MOST_INPUTS: usize = 256;

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

enum Input {
    Event(Event),
    Closed,
    Joined(u64, UnixStream),
    Left(u64),
    Asked(u64, Request),
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
        let stream = stream.try_clone()?;
        std::thread::spawn(move || {
            read_messages(stream, |event| sender.send(Input::Event(event)).is_ok());
            let _ = sender.send(Input::Closed);
        });
    }
    let mut session = Session::new(guests, log, options.timeout, to_hypervisor);
    if options.screen {
        session.monitor = Some(Monitor::connect(&instance.monitor())?);
    }
    session.serves = info.serves();
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
        consoles: logs.directory().to_owned(),
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

fn serve_clients(instance: &Instance, sender: SyncSender<Input>) -> Result<()> {
    let listener = instance.listen_for_commands()?;
    std::thread::spawn(move || {
        for (id, stream) in (1..).zip(listener.incoming().flatten()) {
            let (Ok(reader), sender) = (stream.try_clone(), sender.clone()) else { continue };
            if sender.send(Input::Joined(id, stream)).is_err() {
                return;
            }
            std::thread::spawn(move || {
                read_messages(reader, |request| sender.send(Input::Asked(id, request)).is_ok());
                let _ = sender.send(Input::Left(id));
            });
        }
    });
    Ok(())
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

/// The guests before they live, each with a file for its console.
fn guests(setup: &Setup, logs: &Logs) -> Result<Vec<Live>> {
    let live = |domain: &Domain| {
        let name = domain.name.get_ref();
        let guest = Guest { name: name.to_string(), ..Guest::default() };
        Ok(Live { guest, file: logs.console(name)?, lines: LineBuffer::default(), tail: Vec::new() })
    };
    setup.domains.iter().map(live).collect()
}

struct Session {
    guests: Vec<Live>,
    monitor: Option<Monitor>,
    channel: Option<UnixStream>,
    log: PathBuf,
    /// Which consoles are not whole, and why.
    lost: Vec<String>,
    timeout: Option<Duration>,
    clients: HashMap<u64, Peer>,
    /// Requests on their way: our number to the client and its number.
    asked: HashMap<u32, (u64, u32)>,
    next: u32,
    report: Option<Report>,
    said_hello: bool,
    finished: bool,
    /// Who serves whom.
    serves: Vec<Serves>,
    /// The user wants it to end.
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
    fn new(guests: Vec<Live>, log: PathBuf, timeout: Option<Duration>, channel: Option<UnixStream>) -> Self {
        Self {
            guests,
            monitor: None,
            channel,
            log,
            lost: Vec::new(),
            timeout,
            clients: HashMap::new(),
            asked: HashMap::new(),
            next: 1,
            report: None,
            said_hello: false,
            finished: false,
            serves: Vec::new(),
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
        let mut closed = self.channel.is_none();
        let mut asked_last = None;
        loop {
            let mut steer = Steer::default();
            match inputs.recv_timeout(TICK) {
                Ok(Input::Event(event)) => self.on_event(event, observer, &mut steer)?,
                Ok(Input::Closed) => closed = true,
                Ok(Input::Joined(id, stream)) => self.welcome(id, stream),
                Ok(Input::Left(id)) => drop(self.clients.remove(&id)),
                Ok(Input::Asked(id, request)) => self.pass_on(id, request),
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
            // Where nothing runs yet, nobody has to be asked.
            if interrupts > 1 || interrupts == 1 && !self.said_hello {
                let _ = child.kill();
                child.wait()?;
                return Ok(Ended::Interrupted);
            }
            if interrupts == 1 && !self.finished {
                self.end_in_order(observer, &mut steer);
            }
            let (commands, acts) = steer.take();
            for command in commands {
                self.command(command);
            }
            if let Some(monitor) = &mut self.monitor {
                acts.iter().try_for_each(|act| monitor.act(act))?;
            }
            if self.timeout.is_some_and(|timeout| started.elapsed() > timeout) {
                let asked = *asked_last.get_or_insert_with(|| {
                    self.command(Command::Report);
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
        let ending = self.ending.get_or_insert_with(|| {
            observer.warning("the guests are asked to power off; Ctrl-C again ends them at once");
            Ending::begin(self.serves.clone())
        });
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
        let running = running.filter(|(id, live)| !live.guest.state.is_ended() && ending.has_asked(*id));
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
                self.said_hello = true;
                observer.hello(domains);
                // A client that came before was greeted by us, and would wait for the greeting's rest.
                return Ok(());
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
            Event::Reply { seq, result } => {
                let (seq, result) = (*seq, *result);
                self.answer(seq, |seq| Event::Reply { seq, result });
                return Ok(());
            }
            Event::Report { seq, report } => {
                self.report = Some(report.clone());
                let seq = *seq;
                if seq != 0 {
                    self.answer(seq, |seq| Event::Report { seq, report: report.clone() });
                    return Ok(());
                }
            }
            Event::Finished => {
                self.finished = true;
                // What QEMU has not passed on when the machine goes off is lost.
                self.command(Command::Acknowledge);
            }
        }
        self.clients.retain(|_, client| client.send(&event));
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
        live.tail.extend_from_slice(bytes);
        let surplus = live.tail.len().saturating_sub(CONSOLE_TAIL);
        live.tail.drain(..surplus);
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

    fn command(&mut self, command: Command) {
        let seq = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        if let (Some(stream), Ok(bytes)) = (&mut self.channel, encode(&Request { seq, command })) {
            // A machine that is gone, or hangs, is noticed elsewhere.
            let _ = stream.write_all(&bytes);
        }
    }

    fn welcome(&mut self, id: u64, stream: UnixStream) {
        let mut client = Peer::new(stream);
        let domains = self.guests.iter().map(|live| live.guest.name.clone()).collect();
        let mut fine = client.send(&Event::Hello { version: sluice_abi::channel::VERSION, domains });
        for (domain, live) in (0..).map(DomainId).zip(&self.guests) {
            let (state, reason) = (live.guest.state, live.guest.reason.raw().to_owned());
            // In this order: who waits for the end of a console gets what it said before.
            fine &= client.send(&Event::Console { domain, bytes: live.tail.clone() });
            fine &= client.send(&Event::State { domain, state, reason });
        }
        if fine {
            self.clients.insert(id, client);
        }
    }

    fn pass_on(&mut self, id: u64, request: Request) {
        self.asked.insert(self.next, (id, request.seq));
        self.command(request.command);
    }

    fn answer(&mut self, seq: u32, event: impl FnOnce(u32) -> Event) {
        let Some((id, theirs)) = self.asked.remove(&seq) else { return };
        if let Some(client) = self.clients.get_mut(&id)
            && !client.send(&event(theirs))
        {
            self.clients.remove(&id);
        }
    }

    fn judge(&self, ended: Ended, complaints: &[GuestText]) -> (Status, Vec<String>) {
        let failures: Vec<String> = self.guests.iter().filter_map(|live| live.guest.failure()).collect();
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
        let log = shortened(&self.log);
        let log = log.display();
        let tail = log_tail(&self.log);
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
