//! What drawing and computing on a graphics card takes: frames and products of matrices by one program (guest/programs/sluice-gpu.c) without a hypervisor,
//! in the domain that has the card, and in guests that have its render node; products also by several guests at the same time.
//!
//! Counted are instructions of the machine's processors. QEMU draws what the card is told to: the card's own work is none of these instructions.
//!
//! The source is Paradice, section 6.1.3. Deviations: a ring of 6,050 triangles, many small draws for display lists, which OpenGL ES has not, and a
//! compute shader for OpenCL.

use crate::bench::driver::{StopDriver, check};
use crate::bench::marks::{Cost, Entries, Mark, cost, marks};
use crate::bench::peer::{Guest, Peer};
use crate::bench::plot::{self, Panel};
use crate::bench::record::Record;
use crate::bench::{Clock, kernel, quoted, run_watched};
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use crate::{kernels, rootfs};
use anyhow::{Context, Result, bail, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// What is done again and again, as the program calls it.
struct Work {
    name: &'static str,
    about: &'static str,
    /// How often, and then how often.
    few: u32,
    many: u32,
}

const fn frames(name: &'static str, about: &'static str) -> Work {
    Work { name, about, few: 10, many: 60 }
}

/// Frames. All but the first are of the same picture.
const FRAMES: [Work; 4] = [
    frames("triangles", "48 triangles in one call, out of a buffer of the card's"),
    frames("vbo", "a ring of 6,050 triangles in one call, out of a buffer of the card's"),
    frames("arrays", "a ring of 6,050 triangles in one call, out of the program's own memory"),
    frames("draws", "a ring of 6,050 triangles in 550 calls, out of a buffer of the card's"),
];

const fn order(name: &'static str, few: u32, many: u32) -> Work {
    Work {
        name,
        about: "factors are handed over, multiplied by a compute shader, read and compared",
        few,
        many,
    }
}

/// Products, by the order of the matrices.
const PRODUCTS: [Work; 4] =
    [order("64", 10, 60), order("128", 10, 60), order("256", 4, 16), order("512", 2, 6)];

/// Where it is done, in the order of the runs: without a hypervisor, in the domain that has the card, in a guest, and in one whose operations all go by
/// the queue.
const PLACES: [&str; 4] = ["native", "assigned", "devfile", "devfile_interrupt"];

/// Guests that multiply at the same time, at most: domains from 1 on.
const GUESTS: usize = 3;
/// The guest without a lane.
const WITHOUT: usize = GUESTS + 1;

/// The place that a domain is.
const fn place(domain: usize) -> &'static str {
    match domain {
        0 => PLACES[1],
        WITHOUT => PLACES[3],
        _ => PLACES[2],
    }
}

/// What the emulated machine draws with.
const DISPLAY: [&str; 2] = ["-display", "sdl,gl=on"];

/// Measures it.
pub fn measure(record: &mut Record) -> Result<()> {
    let mut answers = Answers::default();
    native(record, &mut answers)?;
    with_sluice(record, &mut answers)?;
    figures(record)
}

/// A line for the program in some domains at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Batch {
    domains: Vec<usize>,
    work: &'static str,
    times: u32,
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

/// All works.
fn all() -> impl Iterator<Item = &'static Work> + Clone {
    FRAMES.iter().chain(&PRODUCTS)
}

fn native(record: &mut Record, answers: &mut Answers) -> Result<()> {
    let batches = batches(all(), &[0]);
    let lines: Vec<String> = batches.iter().map(|batch| format!("{}:{}", batch.work, batch.times)).collect();
    let (log, mut arguments) = super::counted("devfile-gpu-native")?;
    arguments.extend(DISPLAY.map(str::to_owned));
    let kernel = kernels::get("debian-6.1")?;
    let (image, initrd) = (kernel::unpacked(&kernel)?, rootfs::get("stock-gpu", &kernel)?);
    let name = "devfile-gpu-native".to_owned();
    let peer = Peer { name, clock: Clock::Mixed, network: false, qemu_args: arguments };
    let guest = Guest {
        kernel: &image,
        initrd: Some(&initrd),
        cmdline: format!("console=ttyS0 quiet sluice.job=local:gpu_measured={}", lines.join("+")),
        memory: 0,
        arguments: "-device virtio-gpu-gl-pci".to_owned(),
    };
    for finding in peer.run_native(&guest, "done")? {
        answers.take(&finding)?;
    }
    let marks = marks(&super::read(&log)?, Entries::None);
    rows(record, &batches, &marks, answers, |_| PLACES[0])
}

fn with_sluice(record: &mut Record, answers: &mut Answers) -> Result<()> {
    let mut steps = VecDeque::new();
    let mut counted: Vec<Batch> = Vec::new();
    let mut add = |steps: &mut VecDeque<Step>, batches: Vec<Batch>| {
        counted.extend(batches.iter().cloned());
        steps.extend(batches.into_iter().map(Step::Do));
    };
    add(&mut steps, batches(all(), &[0]));
    steps.push_back(Step::End(0));
    for guest in 1..=GUESTS {
        steps.push_back(Step::Start(guest));
        let domains: Vec<usize> = (1..=guest).collect();
        // Frames are drawn by one guest.
        let works = all().skip(if guest == 1 { 0 } else { FRAMES.len() });
        add(&mut steps, batches(works, &domains));
    }
    steps.extend((1..=GUESTS).map(Step::End));
    steps.push_back(Step::Start(WITHOUT));
    add(&mut steps, batches(all(), &[WITHOUT]));
    steps.push_back(Step::End(WITHOUT));
    let (log, arguments) = super::counted("devfile-gpu")?;
    let mut script = Script::new(steps);
    let (_, outcome) = run_watched("devfile-gpu", &configuration()?, Clock::Mixed, arguments, &mut script)?;
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    for finding in outcome.guests.iter().flat_map(|guest| &guest.findings) {
        answers.take(finding)?;
    }
    let marks = marks(&super::read(&log)?, Entries::Vmruns);
    rows(record, &counted, &marks, answers, place)
}

fn configuration() -> Result<String> {
    let kernel = kernels::get("debian-6.1")?;
    let initrd = quoted(&rootfs::get("stock-gpu", &kernel)?);
    let image = quoted(&kernel::unpacked(&kernel)?);
    let display = DISPLAY.map(|word| format!("{word:?}")).join(", ");
    let mut text = format!(
        "[machine]\nmemory = \"7GiB\"\ncpus = 2\nqemu_args = [{display}]\n\
         [device.gpu]\npci = \"1af4:1050\"\nqemu = \"virtio-gpu-gl-pci,iommu_platform=on\"\n\
         [domain.driver]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"768MiB\"\ncpus = [0]\n\
         cmdline = \"console=ttyS0 quiet sluice.job=serve:gpu_measured=lines\"\n\
         devices = [{{ use = \"gpu\", mode = \"passthrough\" }}]\n"
    );
    for guest in 1..=WITHOUT {
        let options = if guest == WITHOUT { "sluice_devfile.poll_us=0 " } else { "" };
        let _ = write!(
            text,
            "[domain.guest{guest}]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"768MiB\"\ncpus = [1]\ngrants = \"pages\"\npaused = true\n\
             cmdline = \"console=ttyS0 quiet {options}sluice.job=files:random=0,gpu_measured=lines\"\n\
             devices = [{{ mode = \"devfile\", by = \"driver\", source = \"/dev/dri/renderD128\", identity = \"gpu\" }}]\n"
        );
    }
    Ok(text)
}

/// What the program said of its work: it must be the same everywhere.
#[derive(Default)]
struct Answers {
    /// Digests of the last frame, by picture and number of frames.
    digests: BTreeMap<(bool, String), String>,
    /// Wrong numbers in products of an order.
    wrong: BTreeMap<String, u64>,
}

impl Answers {
    fn take(&mut self, finding: &Finding) -> Result<()> {
        let value = |key: &str| finding.iter().find(|pair| pair.0 == key).map(|pair| pair.1.raw().to_owned());
        if let Some(renderer) = value("gpu_renderer") {
            ensure!(renderer.starts_with("virgl"), "it is not the card that draws, but {renderer}");
        }
        let Some((work, times)) = value("at").zip(value("times")) else { return Ok(()) };
        if let Some(wrong) = value("wrong") {
            let wrong: u64 = wrong.parse().with_context(|| format!("not a number: {wrong}"))?;
            *self.wrong.entry(work).or_default() += wrong;
        } else if let Some(digest) = value("digest") {
            let picture = (work == FRAMES[0].name, times);
            let known = self.digests.entry(picture).or_insert_with(|| digest.clone());
            ensure!(*known == digest, "frames of {work} are not the same everywhere: {known}, {digest}");
        }
        Ok(())
    }

    /// No number of this order's products is wrong.
    fn right(&self, order: &str) -> Result<()> {
        match self.wrong.get(order) {
            Some(0) => Ok(()),
            Some(wrong) => bail!("{wrong} numbers of products are wrong"),
            None => bail!("nobody multiplied"),
        }
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
fn costs<'b>(batches: &'b [Batch], marks: &[Mark]) -> Result<Vec<(&'b Batch, Cost)>> {
    let marked: Vec<&Batch> = batches.iter().filter(|batch| batch.times > 0).collect();
    let expected: usize = marked.iter().map(|batch| 2 * batch.domains.len()).sum();
    ensure!(marks.len() == expected, "{} marks were set, and not {expected}", marks.len());
    let mut rest = marks;
    let mut spans = Vec::new();
    for batch in marked {
        let (its, others) = rest.split_at(2 * batch.domains.len());
        spans.push((batch, span(its)));
        rest = others;
    }
    let pair = |[few, many]: &[(&'b Batch, Mark); 2]| {
        let both = [few, many].map(|(batch, span)| (*span, batch.times));
        (few.0, cost_of(both, few.0.domains.len()))
    };
    Ok(spans.as_chunks::<2>().0.iter().map(pair).collect())
}

const CARD: &str = "what the card itself does takes no instructions here";

fn rows(
    record: &mut Record,
    batches: &[Batch],
    marks: &[Mark],
    answers: &Answers,
    place: impl Fn(usize) -> &'static str,
) -> Result<()> {
    for (batch, cost) in costs(batches, marks)? {
        let work = all().find(|work| work.name == batch.work).context("nobody knows this work")?;
        let Work { name, about, .. } = work;
        let (guests, more) = (batch.domains.len(), cost.operations);
        let place = place(batch.domains[0]);
        if FRAMES.iter().any(|frames| frames.name == *name) {
            let id = |what: &str| format!("gpu.{name}.{place}.{what}");
            let note = format!(
                "{about}; drawn when its fence's descriptor says so; instructions of the whole machine without loops that wait; {CARD}; {more} more"
            );
            record.row(id("frames_per_ginstruction"), 1e9 / cost.instructions, "frames", note);
            record.row(id("exits"), cost.exits, "exits", "entries into guests per frame: VMRUN");
            continue;
        }
        let whole =
            format!("gpu.compute.{name}.{}", if guests > 1 { guests.to_string() } else { place.to_owned() });
        record.solved(&whole);
        if let Err(error) = answers.right(name) {
            record.problem(&whole, &error.to_string());
            continue;
        }
        let note = format!(
            "{about}; of the whole machine without loops that wait, per product, of {guests} at once; {CARD}; {more} more"
        );
        record.row(format!("{whole}.instructions"), cost.instructions, "instructions", note);
        record.row(format!("{whole}.exits"), cost.exits, "exits", "entries into guests per product: VMRUN");
    }
    Ok(())
}

/// Ratios, and the picture.
fn figures(record: &mut Record) -> Result<()> {
    let mut panels = Vec::new();
    for Work { name, about, .. } in &FRAMES {
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
    for Work { name, .. } in &PRODUCTS {
        let value = |what: &str| record.value(&format!("gpu.compute.{name}.{what}.instructions"));
        let several: Vec<String> = (2..=GUESTS).map(|guests| guests.to_string()).collect();
        let whats: Vec<&str> = PLACES.into_iter().chain(several.iter().map(String::as_str)).collect();
        let values: Vec<(&str, f64)> = whats.iter().filter_map(|what| Some((*what, value(what)?))).collect();
        let of = |what: &str| values.iter().find(|value| value.0 == what).map(|value| value.1);
        for (what, instructions) in &values {
            let ratio = |to: &str| Some(instructions / of(to)?);
            if let Some(ratio) = ratio("assigned").filter(|_| !PLACES[..2].contains(what)) {
                // In a row's name a guest that is alone is one guest.
                let row = if *what == PLACES[2] { "1" } else { what };
                let note = format!(
                    "instructions of the whole machine per product, by so many guests at once, to the domain with the card alone; {CARD}"
                );
                record.row(format!("gpu.compute.{name}.{row}.ratio"), ratio, "ratio", note);
            }
            if let Some(ratio) = ratio("native").filter(|_| PLACES[1..].contains(what)) {
                let note = format!("instructions of the whole machine per product; {CARD}");
                record.row(format!("gpu.compute.{name}.{what}.ratio_to_native"), ratio, "ratio", note);
            }
        }
        let label = |what: &str| {
            if what.parse::<u32>().is_ok() { format!("{what} guests at once") } else { what.to_owned() }
        };
        let bars = values.iter().map(|(what, value)| (label(what), *value)).collect();
        panels.push(Panel { title: format!("product of order {name}, instructions"), bars });
    }
    plot::write(
        "devfile-gpu",
        "Drawing and computing on a graphics card: what the processors execute",
        &panels,
    )
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

/// Goes through the steps, each when what came of the one before is said.
struct Script {
    stop: StopDriver,
    steps: VecDeque<Step>,
    /// Who is to say something, and its key.
    awaited: Vec<(usize, &'static str)>,
    /// Domains that may end.
    ending: Vec<usize>,
    /// Another one ended.
    failed: bool,
}

const READY: &str = "gpu_measured";

impl Script {
    /// Domain 0 is started already.
    fn new(steps: VecDeque<Step>) -> Self {
        Self {
            stop: StopDriver::new(WITHOUT),
            steps,
            awaited: vec![(0, READY)],
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
                self.awaited.push((domain, READY));
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

    fn batch(domains: &[usize], work: &'static str, times: u32) -> Batch {
        Batch { domains: domains.to_vec(), work, times }
    }

    fn mark(instructions: u64, entries: u64) -> Mark {
        Mark { instructions, entries, hypervisor: 0 }
    }

    #[test]
    fn the_last_domain_prepares_what_all_do() {
        let works = [order("8", 1, 3), order("16", 2, 4)];
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
        let batches = [batch(&[1, 2], "8", 0), batch(&[1, 2], "8", 1), batch(&[1, 2], "8", 3)];
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
        let found = costs(&batches, &marks).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].1.instructions, found[0].1.exits, found[0].1.operations), (100.0, 2.0, 4.0));
        assert!(costs(&batches, &marks[1..]).is_err(), "a mark is missing");
    }

    #[test]
    fn frames_are_the_same_everywhere() {
        let mut answers = Answers::default();
        let mut take = |text: &str| answers.take(&parse_finding(&format!("SLUICE-RESULT {text}")).unwrap());
        assert!(take("at=vbo times=5 digest=1").is_ok());
        assert!(take("at=vbo times=45 digest=2").is_ok());
        assert!(take("at=triangles times=5 digest=3").is_ok(), "another picture");
        assert!(take("at=arrays times=5 digest=1").is_ok());
        assert!(take("at=draws times=45 digest=1").is_err());
        assert!(take("gpu_renderer=virgl_(LLVMPIPE)").is_ok());
        assert!(take("gpu_renderer=llvmpipe").is_err());
    }

    #[test]
    fn products_are_right_or_no_rows() {
        let mut answers = Answers::default();
        let mut take = |text: &str| answers.take(&parse_finding(&format!("SLUICE-RESULT {text}")).unwrap());
        take("at=64 times=4 wrong=0").unwrap();
        take("at=128 times=4 wrong=0").unwrap();
        take("at=128 times=8 wrong=3").unwrap();
        assert!(answers.right("64").is_ok());
        assert!(answers.right("128").is_err() && answers.right("256").is_err());
    }

    #[test]
    fn a_step_waits_for_all_who_take_part_in_the_one_before() {
        let steps = [Step::Do(batch(&[1, 2], "8", 1)), Step::End(0), Step::End(1), Step::Start(3)];
        let mut script = Script::new(steps.into());
        let sent = |script: &mut Script| {
            let mut steer = Steer::default();
            script.tick(&mut steer);
            steer.take().0
        };
        let said = |text: &str| parse_finding(&format!("SLUICE-RESULT {text}")).unwrap();
        assert!(sent(&mut script).is_empty());
        script.finding(0, &said("gpu_measured=ready"));
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
        let mut script = Script::new([Step::Start(2)].into());
        let mut steer = Steer::default();
        script.state(1, DomainState::Crashed, &GuestText::default(), &mut steer);
        script.state(2, DomainState::Destroyed, &GuestText::default(), &mut steer);
        script.tick(&mut steer);
        assert_eq!(steer.take().0, [Command::Shutdown]);
    }
}
