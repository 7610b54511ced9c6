//! Work on a graphics card that domains do one after the other, and some at the same time: each work a few times, and then many times, as lines on their
//! consoles say. It is done without a hypervisor, too.
//!
//! Counted are instructions of the machine's processors. QEMU draws what the card is told to: the card's own work is none of these instructions.

use crate::bench::driver::{StopDriver, check};
use crate::bench::marks::{Cost, Entries, Mark, cost, marks};
use crate::bench::peer::{Guest, Peer};
use crate::bench::plot::Panel;
use crate::bench::record::Record;
use crate::bench::{Clock, kernel, quoted, run_watched};
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use crate::{kernels, rootfs};
use anyhow::{Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::collections::VecDeque;
use std::fmt::Write;

/// What is done again and again, as the program calls it.
pub struct Work {
    pub name: &'static str,
    pub about: &'static str,
    /// How often, and then how often.
    pub few: u32,
    pub many: u32,
}

/// Where it is done, in the order of the runs: without a hypervisor, in the domain that has the card, in a guest, and in one whose operations all go by
/// the queue.
pub const PLACES: [&str; 4] = ["native", "assigned", "devfile", "devfile_interrupt"];

/// To be said of each row.
pub const CARD: &str = "what the card itself does takes no instructions here";

/// What the emulated machine draws with.
const DISPLAY: [&str; 2] = ["-display", "sdl,gl=on"];
/// MiB of the machine that no domain has at first: what is loaded, and the hypervisor.
const LOADED_MIB: usize = 3072;

/// A line for the program in some domains at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Who they are.
    pub domains: Vec<usize>,
    /// What is done.
    pub work: &'static str,
    /// How often each does it; 0: it is only prepared.
    pub times: u32,
}

/// Has works prepared by the last of these domains, and done by all.
fn batches<'w>(works: impl Iterator<Item = &'w Work> + Clone, domains: &[usize]) -> Vec<Batch> {
    let last = domains[domains.len().saturating_sub(1)..].to_vec();
    let prepared = works.clone().map(|work| Batch { domains: last.clone(), work: work.name, times: 0 });
    let done = works.flat_map(|work| {
        [work.few, work.many].map(|times| Batch { domains: domains.to_vec(), work: work.name, times })
    });
    prepared.chain(done).collect()
}

/// The program, and the domains that have it.
pub struct Setting {
    /// In the names of runs.
    pub name: &'static str,
    /// The job that does what lines say, and its key when it is ready.
    pub job: &'static str,
    /// The root file system of all domains.
    pub rootfs: &'static str,
    /// The device file of the card that guests have.
    pub file: &'static str,
    /// Memory of a domain in MiB.
    pub memory: usize,
    /// Guests, which are domains from 1 on. After them comes one more, whose operations all go by the queue.
    pub guests: usize,
    /// More of the job of the domain with the card.
    pub serving: &'static str,
}

/// Takes what programs say.
pub type Listener<'l> = &'l mut dyn FnMut(&Finding) -> Result<()>;

impl Setting {
    /// The guest whose operations all go by the queue.
    pub fn without_lane(&self) -> usize {
        self.guests + 1
    }

    /// The place that a domain is.
    pub fn place(&self, domain: usize) -> &'static str {
        match domain {
            0 => PLACES[1],
            _ if domain == self.without_lane() => PLACES[3],
            _ => PLACES[2],
        }
    }

    /// Does works without a hypervisor: what each of them costs.
    pub fn native<'w>(
        &self,
        works: impl Iterator<Item = &'w Work> + Clone,
        listener: Listener,
    ) -> Result<Vec<(Batch, Cost)>> {
        let batches = batches(works, &[0]);
        let lines: Vec<String> =
            batches.iter().map(|batch| format!("{}:{}", batch.work, batch.times)).collect();
        let name = format!("{}-native", self.name);
        let (log, mut arguments) = super::counted(&name)?;
        arguments.extend(DISPLAY.map(str::to_owned));
        let kernel = kernels::get("debian-6.1")?;
        let (image, initrd) = (kernel::unpacked(&kernel)?, rootfs::get(self.rootfs, &kernel)?);
        let peer = Peer { name, clock: Clock::Mixed, network: false, qemu_args: arguments };
        let guest = Guest {
            kernel: &image,
            initrd: Some(&initrd),
            cmdline: format!("console=ttyS0 quiet sluice.job=local:{}={}", self.job, lines.join("+")),
            memory: 0,
            arguments: "-device virtio-gpu-gl-pci".to_owned(),
        };
        peer.run_native(&guest, "done")?.iter().try_for_each(listener)?;
        costs(batches, &marks(&super::read(&log)?, Entries::None))
    }

    /// Goes through steps under Sluice: what each of the works costs.
    pub fn in_domains(
        &self,
        record: &mut Record,
        steps: Steps,
        listener: Listener,
    ) -> Result<Vec<(Batch, Cost)>> {
        let (log, arguments) = super::counted(self.name)?;
        let batches = steps.batches();
        let mut script = Script::new(steps, self.job, self.without_lane());
        let (_, outcome) =
            run_watched(self.name, &self.configuration()?, Clock::Mixed, arguments, &mut script)?;
        check(&outcome)?;
        record.kernels(&outcome.kernels);
        outcome.guests.iter().flat_map(|guest| &guest.findings).try_for_each(listener)?;
        costs(batches, &marks(&super::read(&log)?, Entries::Vmruns))
    }

    fn configuration(&self) -> Result<String> {
        let mut machine = CardMachine::new(self, self.without_lane(), &format!("{}=lines", self.job))?;
        for guest in 1..=self.without_lane() {
            let options = if guest == self.without_lane() { "sluice_devfile.poll_us=0 " } else { "" };
            machine.guest(guest, "paused = true\n", options, &format!("{}=lines", self.job));
        }
        Ok(machine.text)
    }
}

/// The configuration of a machine with a card, and guests that share it.
pub struct CardMachine<'s> {
    /// As far as it is written.
    pub text: String,
    setting: &'s Setting,
    image: String,
    initrd: String,
}

impl<'s> CardMachine<'s> {
    /// A domain with the card and a job, and room for so many guests.
    pub fn new(setting: &'s Setting, guests: usize, job: &str) -> Result<Self> {
        let kernel = kernels::get("debian-6.1")?;
        let initrd = quoted(&rootfs::get(setting.rootfs, &kernel)?);
        let image = quoted(&kernel::unpacked(&kernel)?);
        let display = DISPLAY.map(|word| format!("{word:?}")).join(", ");
        let Setting { memory, serving, .. } = setting;
        let machine = (guests + 1) * memory + LOADED_MIB;
        let text = format!(
            "[machine]\nmemory = \"{machine}MiB\"\ncpus = 2\nqemu_args = [{display}]\n\
             [device.gpu]\npci = \"1af4:1050\"\nqemu = \"virtio-gpu-gl-pci,iommu_platform=on\"\n\
             [domain.driver]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"{memory}MiB\"\ncpus = [0]\n\
             cmdline = \"console=ttyS0 quiet sluice.job=serve:{job}{serving}\"\n\
             devices = [{{ use = \"gpu\", mode = \"passthrough\" }}]\n"
        );
        Ok(Self { text, setting, image, initrd })
    }

    /// A guest with the card's device file, which does a job: more of its entry, and of its kernel's command line.
    pub fn guest(&mut self, number: usize, more: &str, options: &str, job: &str) {
        let Self { setting: Setting { file, memory, .. }, image, initrd, .. } = self;
        let _ = write!(
            self.text,
            "[domain.guest{number}]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"{memory}MiB\"\ncpus = [1]\ngrants = \"pages\"\n{more}\
             cmdline = \"console=ttyS0 quiet {options}sluice.job=files:random=0,{job}\"\n\
             devices = [{{ mode = \"devfile\", by = \"driver\", source = \"{file}\", identity = \"gpu\" }}]\n"
        );
    }
}

/// From the first mark of some domains, which each set one before and one after, to their last one.
fn span(marks: &[Mark]) -> Mark {
    let (Some(first), Some(last)) = (marks.first(), marks.last()) else { return Mark::default() };
    Mark {
        instructions: last.instructions - first.instructions,
        entries: last.entries - first.entries,
        hypervisor: last.hypervisor - first.hypervisor,
    }
}

/// What one of a domain's works costs: `few` and `many` are how often each of so many domains did it.
fn cost_of([few, many]: [(Mark, u32); 2], domains: usize) -> Cost {
    let both = Mark {
        instructions: few.0.instructions + many.0.instructions,
        entries: few.0.entries + many.0.entries,
        hypervisor: few.0.hypervisor + many.0.hypervisor,
    };
    let times = |times: u32| f64::from(times) * domains as f64;
    cost([Mark::default(), few.0, both], times(few.1), times(many.1))
}

/// What the marks say of each work that was done a few times, and then many times.
fn costs(batches: Vec<Batch>, marks: &[Mark]) -> Result<Vec<(Batch, Cost)>> {
    let marked: Vec<Batch> = batches.into_iter().filter(|batch| batch.times > 0).collect();
    let expected: usize = marked.iter().map(|batch| 2 * batch.domains.len()).sum();
    ensure!(marks.len() == expected, "{} marks were set, and not {expected}", marks.len());
    let mut rest = marks;
    let mut spans = Vec::new();
    for batch in marked {
        let (its, others) = rest.split_at(2 * batch.domains.len());
        spans.push((batch, span(its)));
        rest = others;
    }
    let pair = |[few, many]: &[(Batch, Mark); 2]| {
        let both = [few, many].map(|(batch, span)| (*span, batch.times));
        (few.0.clone(), cost_of(both, few.0.domains.len()))
    };
    Ok(spans.as_chunks::<2>().0.iter().map(pair).collect())
}

/// Rows of frames that a place draws, or shows.
pub fn frame_rows(record: &mut Record, work: &Work, place: &str, about: &str, cost: &Cost) {
    let id = |what: &str| format!("gpu.{}.{place}.{what}", work.name);
    let note = format!(
        "{}; {about}; instructions of the whole machine without loops that wait; {CARD}; {} more",
        work.about, cost.operations
    );
    record.row(id("frames_per_ginstruction"), 1e9 / cost.instructions, "frames", note);
    record.row(id("exits"), cost.exits, "exits", "entries into guests per frame: VMRUN");
}

/// Ratios of frames, and their part of a picture.
pub fn frame_figures(record: &mut Record, works: &[Work]) -> Vec<Panel> {
    let mut panels = Vec::new();
    for Work { name, about, .. } in works {
        let value = |place: &str| record.value(&format!("gpu.{name}.{place}.frames_per_ginstruction"));
        let bars: Vec<(String, f64)> =
            PLACES.iter().filter_map(|place| Some(((*place).to_owned(), value(place)?))).collect();
        for (number, (of, rate)) in bars.iter().enumerate() {
            for (to, its) in bars.iter().take(number).filter(|bar| PLACES[..2].contains(&bar.0.as_str())) {
                let note = format!("frames per instruction of the whole machine; {about}; {CARD}");
                record.row(format!("gpu.{name}.{of}.ratio_to_{to}"), rate / its, "ratio", note);
            }
        }
        panels.push(Panel { title: format!("{name}, frames per 10^9 instructions"), bars });
    }
    panels
}

/// What handing over costs beside a guest whose shadow does it, if that is known.
pub fn turn_figures(record: &mut Record, works: &[Work]) {
    for work in works {
        let of = |place: &str| record.value(&format!("gpu.{}.{place}.frames_per_ginstruction", work.name));
        if let Some((turns, shadow)) = of("turns").zip(of("devfile")) {
            let note =
                "frames per instruction of the whole machine, commands by the daemon to those by a shadow";
            record.row(format!("gpu.{}.turns.ratio_to_devfile", work.name), turns / shadow, "ratio", note);
        }
    }
}

/// What is done next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A domain starts, and says that its program is ready.
    Start(usize),
    /// The program is given a line.
    Do(Batch),
    /// The program of a domain is to end. Domain 0 then serves the others.
    End(usize),
}

/// All that is done, in this order. Domain 0 is started already.
#[derive(Default)]
pub struct Steps(VecDeque<Step>);

impl Steps {
    /// A domain starts.
    pub fn start(&mut self, domain: usize) {
        self.0.push_back(Step::Start(domain));
    }

    /// Some domains do works, each of which the last one has prepared.
    pub fn work<'w>(&mut self, works: impl Iterator<Item = &'w Work> + Clone, domains: &[usize]) {
        self.0.extend(batches(works, domains).into_iter().map(Step::Do));
    }

    /// The program of a domain ends. Domain 0 then serves the others.
    pub fn end(&mut self, domain: usize) {
        self.0.push_back(Step::End(domain));
    }

    fn batches(&self) -> Vec<Batch> {
        let batch = |step: &Step| if let Step::Do(batch) = step { Some(batch.clone()) } else { None };
        self.0.iter().filter_map(batch).collect()
    }
}

/// Goes through the steps, each when what came of the one before is said.
struct Script {
    stop: StopDriver,
    steps: VecDeque<Step>,
    /// The key of a program that is ready.
    ready: &'static str,
    /// Who is to say something, and its key.
    awaited: Vec<(usize, &'static str)>,
    /// Domains that may end.
    ending: Vec<usize>,
    /// Another one ended.
    failed: bool,
}

impl Script {
    fn new(steps: Steps, ready: &'static str, guests: usize) -> Self {
        Self {
            stop: StopDriver::new(guests),
            steps: steps.0,
            ready,
            awaited: vec![(0, ready)],
            ending: Vec::new(),
            failed: false,
        }
    }

    fn take(&mut self, step: Step, steer: &mut Steer) {
        let mut say = |domain: usize, line: String| {
            DomainId::at(domain)
                .into_iter()
                .for_each(|id| steer.send(Command::ConsoleInput(id, line.clone().into_bytes())));
        };
        match step {
            Step::Start(domain) => {
                DomainId::at(domain).into_iter().for_each(|id| steer.send(Command::Start(id)));
                self.awaited.push((domain, self.ready));
            }
            Step::Do(Batch { domains, work, times }) => {
                for domain in domains {
                    say(domain, format!("{work} {times}\n"));
                    self.awaited.push((domain, "at"));
                }
            }
            Step::End(domain) => {
                say(domain, "end\n".to_owned());
                if domain == 0 {
                    self.awaited.push((0, "serving"));
                } else {
                    self.ending.push(domain);
                }
            }
        }
    }
}

impl Observer for Script {
    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.stop.state(domain, state, reason, steer);
        if state.is_ended() && !self.ending.contains(&domain) && !self.steps.is_empty() && !self.failed {
            self.failed = true;
            steer.send(Command::Shutdown);
        }
    }

    fn finding(&mut self, domain: usize, finding: &Finding) {
        self.awaited.retain(|(who, key)| *who != domain || !finding.iter().any(|pair| pair.0 == *key));
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.awaited.is_empty()
            && !self.failed
            && let Some(step) = self.steps.pop_front()
        {
            self.take(step, steer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    const fn work(name: &'static str, few: u32, many: u32) -> Work {
        Work { name, about: "", few, many }
    }

    fn batch(domains: &[usize], work: &'static str, times: u32) -> Batch {
        Batch { domains: domains.to_vec(), work, times }
    }

    fn mark(instructions: u64, entries: u64) -> Mark {
        Mark { instructions, entries, hypervisor: 0 }
    }

    #[test]
    fn the_last_domain_prepares_what_all_do() {
        let works = [work("8", 1, 3), work("16", 2, 4)];
        let expected = [
            batch(&[2], "8", 0),
            batch(&[2], "16", 0),
            batch(&[1, 2], "8", 1),
            batch(&[1, 2], "8", 3),
            batch(&[1, 2], "16", 2),
            batch(&[1, 2], "16", 4),
        ];
        assert_eq!(batches(works.iter(), &[1, 2]), expected);
    }

    #[test]
    fn a_product_costs_what_all_domains_cost_to_what_all_multiplied() {
        let batches = vec![batch(&[1, 2], "8", 0), batch(&[1, 2], "8", 1), batch(&[1, 2], "8", 3)];
        // Each of both costs 100 and 2 exits; what comes once costs 60 and 1.
        let marks = [
            mark(1000, 0),
            mark(1010, 0),
            mark(1250, 5),
            mark(1260, 5),
            mark(9000, 50),
            mark(9030, 50),
            mark(9600, 63),
            mark(9660, 63),
        ];
        let found = costs(batches.clone(), &marks).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].1.instructions, found[0].1.exits, found[0].1.operations), (100.0, 2.0, 4.0));
        assert!(costs(batches, &marks[1..]).is_err(), "a mark is missing");
    }

    #[test]
    fn a_step_waits_for_all_who_take_part_in_the_one_before() {
        let steps = [Step::Do(batch(&[1, 2], "8", 1)), Step::End(0), Step::End(1), Step::Start(3)];
        let mut script = Script::new(Steps(steps.into()), "ready", 3);
        let sent = |script: &mut Script| {
            let mut steer = Steer::default();
            script.tick(&mut steer);
            steer.take().0
        };
        let said = |text: &str| parse_finding(&format!("SLUICE-RESULT {text}")).unwrap();
        assert!(sent(&mut script).is_empty());
        script.finding(0, &said("ready=yes"));
        assert_eq!(sent(&mut script).len(), 2);
        script.finding(1, &said("at=8 times=1 wrong=0"));
        assert!(sent(&mut script).is_empty());
        script.finding(2, &said("at=8 times=1 wrong=0"));
        assert_eq!(sent(&mut script), [Command::ConsoleInput(DomainId(0), b"end\n".to_vec())]);
        assert!(sent(&mut script).is_empty());
        script.finding(0, &said("serving=ok"));
        assert_eq!(sent(&mut script), [Command::ConsoleInput(DomainId(1), b"end\n".to_vec())]);
        let mut steer = Steer::default();
        script.state(1, DomainState::PoweredOff, &GuestText::default(), &mut steer);
        assert!(steer.take().0.is_empty(), "it was to end");
        assert_eq!(sent(&mut script), [Command::Start(DomainId(3))]);
    }

    #[test]
    fn a_domain_that_ends_before_its_time_ends_all() {
        let mut script = Script::new(Steps([Step::Start(2)].into()), "ready", 3);
        let mut steer = Steer::default();
        script.state(1, DomainState::Crashed, &GuestText::default(), &mut steer);
        script.state(2, DomainState::Destroyed, &GuestText::default(), &mut steer);
        script.tick(&mut steer);
        assert_eq!(steer.take().0, [Command::Shutdown]);
    }
}
