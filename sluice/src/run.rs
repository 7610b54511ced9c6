//! `run`: a session with progress for people, the summary and the JSON document.

use crate::cli::RunArguments;
use crate::config::{self, Override, Setup, human_size};
use crate::console::LineBuffer;
use crate::control::{Client, choose};
use crate::detached;
use crate::document::Document;
use crate::interrupt;
use crate::name::Name;
use crate::observer::{Observer, Steer};
use crate::outcome::{Finding, Outcome, Status, parse_finding};
use crate::output::{self, ClosedPipe};
use crate::printable::{self, GuestText, Printable};
use crate::session::{self, Options};
use crate::{progress, summary, workspace};
use anyhow::{Context, Result};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use sluice_abi::channel::Event;
use sluice_abi::report::DomainState;
use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Runs, prints and returns the judgement.
pub fn run(arguments: &RunArguments) -> Result<Status> {
    if arguments.detach && !detached::is_detached() {
        return detached::start(arguments);
    }
    if arguments.quiet {
        progress::silence();
    }
    let machine = Override { memory: arguments.memory, cpus: arguments.cpus };
    let setup = config::load_for(&arguments.file, machine)?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => Name::of_file(&arguments.file).context("the file gives the instance no name: use --name")?,
    };
    let mut document = arguments.json.as_deref().map(Document::open).transpose()?;
    let options = Options {
        consoles: arguments.consoles.clone(),
        name: name.clone(),
        timeout: arguments.timeout,
        boot: arguments.boot,
        accel: arguments.accel,
        icount: arguments.icount,
        qemu_args: arguments.qemu_args.clone(),
        features: arguments.features.clone(),
        screen: false,
    };
    let names = setup.domains.iter().map(|domain| domain.name.get_ref().clone()).collect();
    let mut progress = Progress::new(names, name);
    (progress.verbose, progress.quiet) = (arguments.verbose, arguments.quiet);
    let outcome = session::run(&setup, &options, &mut progress)?;
    progress.finish();
    // The one is shown whatever becomes of the other.
    let mut results = Vec::new();
    if !arguments.quiet || outcome.status != Status::Ok {
        let text = summary::summary(&outcome) + &next_steps(arguments, &outcome, &setup);
        if document.as_ref().is_some_and(Document::is_output) {
            output::note(text.trim_end());
        } else {
            results.push(output::print(text));
        }
    }
    if let Some(document) = &mut document {
        let text = printable::json(&outcome.json(&setup))?;
        results.push(document.write(&text));
    }
    let mut status = outcome.status;
    for error in results.into_iter().filter_map(Result::err).filter(|error| !error.is::<ClosedPipe>()) {
        output::note(format_args!("sluice: {error:#}"));
        if status == Status::Ok {
            status = Status::Trouble;
        }
    }
    Ok(status)
}

/// Watches an instance that runs elsewhere, to its end.
pub fn attach(instance: Option<&Name>) -> Result<()> {
    let instance = choose(instance)?;
    let mut client = Client::connect(&instance)?;
    let consoles = instance.info().consoles;
    let names: Vec<Name> = client.domains.iter().filter_map(|(name, _)| name.parse().ok()).collect();
    let mut lines: Vec<LineBuffer> = names.iter().map(|_| LineBuffer::default()).collect();
    let mut progress = Progress::new(names, instance.name.clone());
    progress.show();
    let mut steer = Steer::default();
    while let Ok(event) = client.poll_event(Instant::now() + Duration::from_secs(3600)) {
        match event {
            Some(Event::State { domain, state, reason }) => {
                progress.state(domain.index(), state, &GuestText::from(reason.as_str()), &mut steer);
            }
            Some(Event::Console { domain, bytes }) => {
                let Some(buffer) = lines.get_mut(domain.index()) else { continue };
                let findings = buffer.push(&bytes);
                for finding in findings.iter().filter_map(|line| parse_finding(line.raw())) {
                    progress.finding(domain.index(), &finding);
                }
            }
            _ => {}
        }
    }
    progress.finish();
    output::print(format_args!("{} has ended; its consoles: {}\n", instance.name, consoles.display()))
}

fn next_steps(arguments: &RunArguments, outcome: &Outcome, setup: &Setup) -> String {
    let file = arguments.file.display();
    let logs = workspace::shortened(&outcome.consoles);
    let mut text = format!("\nconsoles and the hypervisor's log: {}\n", logs.display());
    if outcome.status != Status::Ok {
        return text + "see docs/debug.md for how to find out more\n";
    }
    let guest = setup.domains.first().map_or("alice", |domain| &**domain.name.get_ref());
    let steps = [
        (format!("cargo sluice run {file} --json out.json"), "what happened, for programs"),
        ("cargo sluice top".to_owned(), "in a second terminal, while it runs"),
        (format!("cargo sluice destroy {guest}"), "there too: the other guests go on"),
        (format!("cargo sluice image {file} -o sluice.iso"), "the same for a real PC"),
        ("ls examples/".to_owned(), "more configurations; docs/configuration.md has all keys"),
    ];
    let width = steps.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    text += "try next:\n";
    for (command, about) in steps {
        text += &format!("  {command:width$}  {about}\n");
    }
    text
}

/// Why a domain ends that is built afresh at once, in the hypervisor's words (`EndReason::Reset`).
const REBOOT: &str = "asked for a reset";

/// One live line per guest on a terminal; one line per event elsewhere.
struct Progress {
    /// What the instance should be called.
    wish: Name,
    names: Vec<Name>,
    /// How many of them the hypervisor has named.
    greeted: usize,
    /// On a terminal, once the machine starts.
    bars: Option<Vec<ProgressBar>>,
    started: Instant,
    verbose: bool,
    quiet: bool,
}

impl Progress {
    fn new(names: Vec<Name>, wish: Name) -> Self {
        Self { wish, names, greeted: 0, bars: None, started: Instant::now(), verbose: false, quiet: false }
    }

    /// Live lines, where they can be.
    fn show(&mut self) {
        if std::io::stderr().is_terminal() && !self.verbose && !self.quiet {
            self.bars = Some(self.bars());
        }
    }

    fn bars(&self) -> Vec<ProgressBar> {
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template("{spinner} {prefix:>12}  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = |name: &Name| {
            let bar = all.add(ProgressBar::new_spinner()).with_style(style.clone());
            bar.set_prefix(name.to_string());
            bar.set_message("waiting for the hypervisor");
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        };
        self.names.iter().map(bar).collect()
    }

    fn say(&self, domain: usize, text: impl Display) {
        let text = Printable(text);
        let Some(name) = self.names.get(domain) else { return };
        match &self.bars {
            // One that was made since has no line of its own.
            Some(bars) => match (bars.get(domain), bars.first()) {
                (Some(bar), _) => bar.set_message(text.to_string()),
                (None, Some(bar)) => bar.suspend(|| output::note(format_args!("{name}: {text}"))),
                (None, None) => {}
            },
            None if self.quiet => {}
            None => {
                output::note(format_args!("[{:6.1}] {name}: {text}", self.started.elapsed().as_secs_f64()));
            }
        }
    }

    fn finish(&self) {
        for bar in self.bars.iter().flatten() {
            bar.finish();
        }
    }
}

impl Observer for Progress {
    fn named(&mut self, instance: &Name) {
        if *instance != self.wish && !self.quiet {
            let wish = &self.wish;
            output::note(format_args!("sluice: '{wish}' runs already; this instance is '{instance}'"));
        }
    }

    fn starting(&mut self) {
        // What came before took time of its own.
        self.started = Instant::now();
        if let Err(error) = interrupt::count_from_now_on() {
            output::note(format_args!("sluice: {error:#}"));
        }
        self.show();
    }

    fn hello(&mut self, domains: &[String]) {
        for (domain, name) in domains.iter().enumerate().skip(self.greeted) {
            if let (true, Ok(name)) = (domain >= self.names.len(), name.parse()) {
                self.names.push(name);
            }
            self.say(domain, "built");
        }
        self.greeted = domains.len();
    }

    fn warning(&mut self, text: &str) {
        let warn = || output::note(format_args!("sluice: {text}"));
        match self.bars.iter().flatten().next() {
            Some(bar) => bar.suspend(warn),
            None => warn(),
        }
    }

    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, _steer: &mut Steer) {
        if state == DomainState::Destroyed && *reason == REBOOT {
            return self.say(domain, "rebooting");
        }
        let because = if reason.raw().is_empty() { String::new() } else { format!(": {reason}") };
        self.say(domain, format!("{}{because}", state.word()));
    }

    fn line(&mut self, domain: usize, line: &GuestText, _steer: &mut Steer) {
        if self.verbose {
            self.say(domain, line);
        }
    }

    fn finding(&mut self, domain: usize, finding: &Finding) {
        if !self.verbose {
            self.say(domain, phrase(finding));
        }
    }
}

/// A finding as a sentence; the unknown ones as they are.
fn phrase(finding: &Finding) -> String {
    let unknown = GuestText::from("?");
    let value =
        |key: &str| finding.iter().find(|(known, _)| known == key).map_or(&unknown, |(_, value)| value);
    let size = |key: &str| value(key).raw().parse().map_or_else(|_| value(key).to_string(), human_size);
    match finding.first().map(|(key, _)| key.raw()) {
        Some("init") => {
            format!(
                "init after {} s, Linux {}, {} processor(s)",
                value("init"),
                value("kernel"),
                value("cpus")
            )
        }
        Some("net") if *value("net") == "up" => {
            format!("{} on {} ({})", value("address"), value("driver"), value("mac"))
        }
        Some("download_bytes") => {
            let (hash, seconds) = (value("download_sha256"), value("download_seconds"));
            format!("downloaded {}, sha256 {hash}, {seconds} s", size("download_bytes"))
        }
        Some("upload_bytes") => {
            let (hash, seconds) = (value("upload_sha256"), value("upload_seconds"));
            format!("uploaded {}, sha256 {hash}, {seconds} s", size("upload_bytes"))
        }
        _ => finding.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "),
    }
}
