//! Many scenarios, side by side.

use super::durations::{self, Duration, Durations};
use super::host::Watch;
use super::load::{self, Named};
use super::schedule::{Cost, Schedule};
use super::worker::{self, Report};
use super::{execute, format::Scenario};
use crate::config;
use crate::name::Name;
use crate::outcome::Status;
use crate::printable::{self, Printable};
use crate::{output, workspace};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration as Time, Instant};

/// How often a suite whose output is a file says what it waits for.
const SIGN_OF_LIFE: Time = Time::from_secs(60);

/// What to run, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Parts of names of scenarios or cases; all scenarios if there is none.
    pub names: Vec<String>,
    /// Also those that are not worth their time every time.
    pub all: bool,
    /// At most this many at a time.
    pub jobs: Option<usize>,
    /// Processors of the host that they may keep busy together.
    pub capacity: Option<f64>,
    /// Remember how long they took.
    pub record: bool,
}

/// Keeps the scenarios whose names contain one of `names`; all if none is given.
fn choose(found: &mut Vec<Named>, names: &[String]) -> Result<()> {
    if !names.is_empty() {
        let is_in = |named: &Named, part: &String| named.tests().any(|test| test.contains(part));
        if let Some(lost) = names.iter().find(|part| !found.iter().any(|named| is_in(named, part))) {
            bail!("no scenario's name contains '{lost}' (cargo sluice test --list)");
        }
        found.retain(|named| names.iter().any(|part| is_in(named, part)));
    }
    Ok(())
}

/// Runs the scenarios that are wanted.
pub fn run_all(options: &Options) -> Result<Status> {
    let mut found = load::all()?;
    let known: Vec<String> = found.iter().map(|named| named.name.clone()).collect();
    let names = &options.names;
    choose(&mut found, names)?;
    found.retain(|Named { name, scenario, .. }| {
        let skip = scenario.skip.as_ref().filter(|_| !names.contains(name));
        if let Some(why) = skip {
            say(&format!("skipped {name}: {why}\n"));
        }
        let left_out = scenario.extended && !options.all && names.is_empty();
        skip.is_none() && !left_out
    });
    if options.record && load() > 1.0 {
        // Who waits for the host's processors seems to keep fewer of them busy.
        bail!("the machine is busy: what would be recorded now says little about an idle one");
    }
    let started = Instant::now();
    let mut suite = Suite::new(found, options)?;
    suite.run();
    suite.sum_up(started);
    if options.record {
        durations::record(&suite.durations, |name| known.iter().any(|known| known == name))?;
    }
    Ok(if suite.failed == 0 { Status::Ok } else { Status::Trouble })
}

/// Processes that run or want to, averaged over the last minute (proc(5), loadavg).
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// Lists those whose names contain one of `names`; the sums are of those that would run.
pub fn list(names: &[String], all: bool, as_json: bool) -> Result<()> {
    let mut found = load::all()?;
    choose(&mut found, names)?;
    if as_json {
        let entry = |Named { name, scenario, .. }: &Named| {
            let cases = scenario.case.iter().map(|case| json!({ "name": case.name, "about": case.about }));
            json!({
                "name": name,
                "about": scenario.about,
                "extended": scenario.extended,
                "skip": scenario.skip,
                "expectations": scenario.expectations(),
                "cases": cases.collect::<Vec<_>>(),
            })
        };
        return output::print(printable::json(&found.iter().map(entry).collect::<Vec<_>>())?);
    }
    let (mut scenarios, mut tests, mut expectations) = (0, 0, 0);
    for Named { name, scenario, .. } in &found {
        let when = if scenario.extended { " (--all)" } else { "" };
        output::print(format!("{name:28} {}{when}\n", scenario.about))?;
        for case in &scenario.case {
            output::print(format!("  ::{:24} {}\n", case.name, case.about))?;
        }
        if all || !scenario.extended {
            scenarios += 1;
            tests += 1 + scenario.case.len();
            expectations += scenario.expectations();
        }
    }
    output::print(format!("{scenarios} scenarios, {tests} tests, {expectations} expectations\n"))
}

/// The processors of a scenario's machine; one if nothing will start.
fn processors(named: &Named) -> u8 {
    let setup = execute::configuration(&named.path, &named.scenario)
        .ok()
        .and_then(|(file, text)| config::load_text(&file, &text).ok());
    setup.map_or(1, |setup| *setup.machine.cpus.get_ref())
}

struct Suite {
    found: Vec<Arc<Named>>,
    /// ELF files by the features they are built with.
    hypervisors: BTreeMap<Vec<Name>, PathBuf>,
    schedule: Schedule,
    progress: Progress,
    durations: Durations,
    host: Watch,
    passed: usize,
    failed: usize,
    again: usize,
    checks: usize,
    cpu: f64,
}

/// What a thread that waits for a worker tells.
enum News {
    /// It failed, by a fault that is QEMU's, and is run again.
    Again(usize, Report),
    /// It is done.
    Done(usize, Cost, Report),
}

impl Suite {
    fn new(found: Vec<Named>, options: &Options) -> Result<Self> {
        // Built once, before the clock of the first scenario starts.
        let mut hypervisors = BTreeMap::new();
        for Named { scenario: Scenario { features, .. }, .. } in &found {
            if !hypervisors.contains_key(features) {
                hypervisors.insert(features.clone(), crate::image::hypervisor(features)?);
            }
        }
        let recorded = durations::load()?;
        let cost = |named: &Named| {
            Cost::new(recorded.get(&named.name).copied(), processors(named), named.scenario.timeout)
        };
        let costs: Vec<Cost> = found.iter().map(cost).collect();
        let host = std::thread::available_parallelism().map_or(1, usize::from);
        let capacity = options.capacity.unwrap_or(host as f64);
        // More than these wait for memory, not for processors.
        let jobs = options.jobs.unwrap_or(2 * host);
        Ok(Self {
            progress: Progress::new(found.len()),
            schedule: Schedule::new(costs, jobs, capacity),
            found: found.into_iter().map(Arc::new).collect(),
            hypervisors,
            durations: Durations::new(),
            host: Watch::begin(),
            passed: 0,
            failed: 0,
            again: 0,
            checks: 0,
            cpu: 0.0,
        })
    }

    fn run(&mut self) {
        let (sender, news) = channel();
        let mut running = 0;
        loop {
            while let Some((index, cost)) = self.schedule.start() {
                self.launch(index, cost, sender.clone());
                running += 1;
            }
            if running == 0 {
                return;
            }
            match news.recv_timeout(Time::from_millis(500)) {
                Ok(News::Again(index, report)) => self.failed_by_qemu(index, &report),
                Ok(News::Done(index, cost, report)) => {
                    running -= 1;
                    self.schedule.finish(cost);
                    self.done(index, &report);
                }
                Err(RecvTimeoutError::Timeout) => self.progress.tick(),
                // Not while `sender` is here.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Starts a worker and a thread that waits for it: a worker ends with the thread that started it.
    fn launch(&mut self, index: usize, cost: Cost, sender: Sender<News>) {
        let named = Arc::clone(&self.found[index]);
        self.progress.started(&named.name);
        let hypervisor = self.hypervisors.get(&named.scenario.features).cloned().unwrap_or_default();
        std::thread::spawn(move || {
            let mut report = worker::start(&named, &hypervisor);
            if report.excuse.is_some() {
                execute::keep(&named.name);
                let _ = sender.send(News::Again(index, report));
                report = worker::start(&named, &hypervisor);
            }
            let _ = sender.send(News::Done(index, cost, report));
        });
    }

    fn failed_by_qemu(&mut self, index: usize, report: &Report) {
        self.again += 1;
        self.cpu += report.cpu;
        let name = &self.found[index].name;
        let (fault, line) = report.excuse.clone().unwrap_or_default();
        let mut text = format!("again   {name}: QEMU's own fault '{fault}' (docs/debug.md): {line}\n");
        problems(&mut text, report.tests.iter().flat_map(|test| &test.problems));
        text += &format!("        logs: run/test-{name}-first/\n");
        self.progress.say(&text);
    }

    fn done(&mut self, index: usize, report: &Report) {
        let name = &self.found[index].name;
        self.cpu += report.cpu;
        let mut text = String::new();
        let took = format!("{:.0} s, {:.0} s of processors", report.wall, report.cpu);
        for (number, test) in report.tests.iter().enumerate() {
            let word = if test.problems.is_empty() { "ok" } else { "FAILED" };
            let took = if number == 0 { format!(" ({took})") } else { String::new() };
            text += &format!("{word:7} {}{took}: {}\n", test.name, test.about);
            problems(&mut text, &test.problems);
            self.checks += test.checks;
            match test.problems.is_empty() {
                true => self.passed += 1,
                false => self.failed += 1,
            }
        }
        if report.passed() {
            self.durations.insert(name.clone(), Duration { wall: report.wall, cpu: report.cpu });
        } else {
            if let Some(start) = self.progress.running.get(name) {
                problems(&mut text, &self.host.since(*start));
            }
            text += &format!("        logs: run/test-{name}/\n");
            last_words(&mut text, name);
        }
        self.progress.finished(name);
        self.progress.say(&text);
    }

    fn sum_up(&self, started: Instant) {
        self.progress.end();
        let again = if self.again == 0 { String::new() } else { format!(", {} run again", self.again) };
        say(&format!(
            "{} passed, {} failed{again}: {} scenarios, {} checks, {:.0} s, {:.0} s of processors\n",
            self.passed,
            self.failed,
            self.found.len(),
            self.checks,
            started.elapsed().as_secs_f64(),
            self.cpu,
        ));
    }
}

/// Prints. That nobody reads it any more is no reason to end: the exit status counts, too.
fn say(text: &str) {
    let _ = output::print(text);
}

fn problems<'a>(text: &mut String, problems: impl IntoIterator<Item = &'a String>) {
    for line in problems.into_iter().flat_map(|problem| problem.lines()) {
        *text += &format!("        {line}\n");
    }
}

/// The ends of a run's logs: often all that is left of it when the suite ran elsewhere.
fn last_words(text: &mut String, name: &str) {
    const LINES: usize = 24;
    const CHARACTERS: usize = 160;
    let Ok(instance) = format!("test-{name}").parse::<Name>() else { return };
    for log in workspace::logs(&workspace::consoles(&instance)) {
        let Ok(bytes) = std::fs::read(&log) else { continue };
        let said = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = said.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        *text += &format!("        {}:\n", log.file_name().unwrap_or_default().to_string_lossy());
        for line in last {
            let line: String = line.chars().take(CHARACTERS).collect();
            *text += &format!("        | {}\n", Printable(line));
        }
    }
}

/// Says how far it is: a live line on a terminal, a line now and then elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
    running: HashMap<String, Instant>,
    done: usize,
    of: usize,
    started: Instant,
    last: Instant,
}

impl Progress {
    fn new(of: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} [{elapsed_precise}] {msg}");
            let bar = ProgressBar::new_spinner();
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Time::from_millis(500));
            bar
        });
        let now = Instant::now();
        Self { bar, running: HashMap::new(), done: 0, of, started: now, last: now }
    }

    fn started(&mut self, name: &str) {
        self.running.insert(name.to_owned(), Instant::now());
        self.show();
    }

    fn finished(&mut self, name: &str) {
        self.running.remove(name);
        self.done += 1;
        self.show();
    }

    fn line(&self) -> String {
        let mut running: Vec<(&String, u64)> =
            self.running.iter().map(|(name, since)| (name, since.elapsed().as_secs())).collect();
        running.sort_by_key(|(_, seconds)| std::cmp::Reverse(*seconds));
        let running: Vec<String> =
            running.iter().map(|(name, seconds)| format!("{name} {seconds} s")).collect();
        format!("{} of {} done; running: {}", self.done, self.of, running.join(", "))
    }

    fn show(&self) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.line());
        }
    }

    fn tick(&mut self) {
        self.show();
        if self.bar.is_none() && self.last.elapsed() > SIGN_OF_LIFE {
            self.last = Instant::now();
            say(&format!("        {:.0} s: {}\n", self.started.elapsed().as_secs_f64(), self.line()));
        }
    }

    /// Prints whole lines.
    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
