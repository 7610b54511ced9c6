//! How guests share the work of a graphics card: one that draws long frames, eight at once, beside one that draws short ones, as the driver takes them and in
//! turns; two that draw long frames in turns by weights; and what a frame costs that the daemon hands over.
//!
//! What is compared are frames of two guests in the same time of the same run: the card's time is the host's, by whose processors it draws.

use super::steps::{CARD, CardMachine, Setting, Steps, frame_rows, turn_figures};
use super::{Clock, StopDriver, check, gpu, run_watched};
use crate::bench::note;
use crate::bench::record::Record;
use crate::observer::{Observer, Steer};
use crate::outcome::{Finding, Guest};
use crate::printable::GuestText;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;

/// Seconds that both draw.
const SECONDS: u32 = 20;
/// A ring of triangles so many times over is a long frame; and so many are under way at once.
const LONG: (u32, u32) = (100, 8);
/// 48 triangles are a short one.
const SHORT: (u32, u32) = (0, 2);

/// Two guests that draw at the same time.
struct Case {
    name: &'static str,
    /// Of the driver domain's job.
    serving: &'static str,
    /// What each draws.
    loads: [(u32, u32); 2],
    about: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        name: "as_it_comes",
        serving: "",
        loads: [LONG, SHORT],
        about: "the driver takes what comes; the first guest draws long frames, eight at once, the second short ones",
    },
    Case {
        name: "in_turns",
        serving: ",turns=yes",
        loads: [LONG, SHORT],
        about: "in turns; the first guest draws long frames, eight at once, the second short ones",
    },
    Case {
        name: "by_weight",
        serving: ",turns=yes,weights=guest2:300",
        loads: [(60, 4), (60, 4)],
        about: "in turns; both draw long frames, four at once; the second guest has three times the weight",
    },
];

/// One guest, whose commands the daemon hands over.
const SETTING: Setting =
    Setting { name: "devfile-gpu-turns", guests: 1, serving: ",turns=yes", ..gpu::SETTING };

/// Measures it.
pub fn measure(record: &mut Record) -> Result<()> {
    for case in &CASES {
        let result = one(record, case);
        note(record, case.name, result);
    }
    let values = |case: &str| {
        let of = |guest: usize| record.value(&format!("gpu.turns.{case}.{guest}.frames"));
        of(1).zip(of(2))
    };
    let [before, turns, weighed] = CASES.map(|case| values(case.name));
    if let Some(((beside, before), (long, short))) = before.zip(turns) {
        let note = "frames in turns to frames as the driver takes them, in the same time";
        record.row("gpu.turns.short.ratio", short / before, "ratio", note);
        record.row("gpu.turns.long.ratio", long / beside, "ratio", note);
    }
    if let Some((one, three)) = weighed {
        let note = "frames of the guest with three times the weight to the other's, of the same length and in the same time";
        record.row("gpu.turns.by_weight.ratio", three / one, "ratio", note);
    }
    handed_over(record)
}

fn one(record: &mut Record, case: &Case) -> Result<()> {
    let mut watch = Watch { stop: StopDriver::new(2), ready: 0 };
    let name = format!("devfile-turns-{}", case.name);
    let (_, outcome) = run_watched(&name, &configuration(case)?, Clock::Host, Vec::new(), &mut watch)?;
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    for (number, guest) in outcome.guests.iter().skip(1).enumerate() {
        let renderer = said(guest, "gpu_renderer").context("a guest drew nothing")?;
        ensure!(renderer.starts_with("virgl"), "it is not the card that draws, but {renderer}");
        let frames = said(guest, "gpu_streamed").context("a guest did not say how many frames it drew")?;
        let frames: f64 = frames.parse().with_context(|| format!("not a number: {frames}"))?;
        let note = format!("in {SECONDS} s; {}; {CARD}", case.about);
        record.row(format!("gpu.turns.{}.{}.frames", case.name, number + 1), frames, "frames", note);
    }
    Ok(())
}

fn said<'a>(guest: &'a Guest, key: &str) -> Option<&'a str> {
    guest.findings.iter().flatten().find(|pair| pair.0 == key).map(|pair| pair.1.raw())
}

/// What a frame costs whose commands the daemon hands over.
fn handed_over(record: &mut Record) -> Result<()> {
    let mut steps = Steps::default();
    steps.end(0);
    steps.start(1);
    steps.work(gpu::FRAMES.iter(), &[1]);
    steps.end(1);
    let last = SETTING.without_lane();
    steps.start(last);
    steps.end(last);
    for (batch, cost) in SETTING.in_domains(record, steps, &mut |_| Ok(()))? {
        let work =
            gpu::FRAMES.iter().find(|work| work.name == batch.work).context("nobody knows this work")?;
        frame_rows(record, work, "turns", "commands by the daemon, in turns with nobody", &cost);
    }
    turn_figures(record, &gpu::FRAMES);
    Ok(())
}

fn configuration(case: &Case) -> Result<String> {
    let setting = Setting { serving: case.serving, ..SETTING };
    let mut machine = CardMachine::new(&setting, case.loads.len(), "gpu=1:8")?;
    for (number, (times, depth)) in case.loads.iter().enumerate() {
        machine.guest(number + 1, "", "", &format!("gpu_stream={SECONDS}:{times}:{depth}"));
    }
    Ok(machine.text)
}

/// Has both begin when both are ready.
struct Watch {
    stop: StopDriver,
    ready: usize,
}

impl Observer for Watch {
    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.stop.state(domain, state, reason, steer);
    }

    fn finding(&mut self, _: usize, finding: &Finding) {
        self.ready += usize::from(finding.iter().any(|pair| pair.0 == "gpu_stream"));
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.ready == 2 {
            self.ready = 0;
            [1, 2].into_iter().for_each(|guest| {
                steer.send(Command::ConsoleInput(DomainId(guest), b"now\n".to_vec()));
            });
        }
    }
}
