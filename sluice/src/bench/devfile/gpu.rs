//! What drawing and computing on a graphics card takes: frames and products of matrices by one program (guest/programs/sluice-gpu.c) without a hypervisor,
//! in the domain that has the card, and in guests that have its render node; products also by several guests at the same time.
//!
//! The source is Paradice, section 6.1.3. Deviations: a ring of 6,050 triangles, many small draws for display lists, which OpenGL ES has not, and a
//! compute shader for OpenCL.

use super::steps::{Batch, CARD, PLACES, Setting, Steps, Work, frame_figures, frame_rows, turn_figures};
use crate::bench::marks::Cost;
use crate::bench::plot::{self, Panel};
use crate::bench::record::Record;
use crate::outcome::Finding;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

const fn frames(name: &'static str, about: &'static str) -> Work {
    Work { name, about, few: 10, many: 60 }
}

/// Frames. All but the first are of the same picture.
pub const FRAMES: [Work; 4] = [
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

/// The program, and guests that multiply at the same time, at most.
pub const SETTING: Setting = Setting {
    name: "devfile-gpu",
    job: "gpu_measured",
    rootfs: "stock-gpu",
    file: "/dev/dri/renderD128",
    memory: 768,
    guests: 3,
    serving: "",
};

/// Measures it.
pub fn measure(record: &mut Record) -> Result<()> {
    let mut answers = Answers::default();
    let costs = SETTING.native(all(), &mut |finding| answers.take(finding))?;
    rows(record, &costs, &answers, |_| PLACES[0])?;
    let costs = SETTING.in_domains(record, steps(), &mut |finding| answers.take(finding))?;
    rows(record, &costs, &answers, |domain| SETTING.place(domain))?;
    turn_figures(record, &FRAMES);
    figures(record)
}

/// All works.
fn all() -> impl Iterator<Item = &'static Work> + Clone {
    FRAMES.iter().chain(&PRODUCTS)
}

fn steps() -> Steps {
    let mut steps = Steps::default();
    steps.work(all(), &[0]);
    steps.end(0);
    for guest in 1..=SETTING.guests {
        steps.start(guest);
        let domains: Vec<usize> = (1..=guest).collect();
        // Frames are drawn by one guest.
        steps.work(all().skip(if guest == 1 { 0 } else { FRAMES.len() }), &domains);
    }
    (1..=SETTING.guests).for_each(|guest| steps.end(guest));
    let last = SETTING.without_lane();
    steps.start(last);
    steps.work(all(), &[last]);
    steps.end(last);
    steps
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

fn rows(
    record: &mut Record,
    costs: &[(Batch, Cost)],
    answers: &Answers,
    place: impl Fn(usize) -> &'static str,
) -> Result<()> {
    for (batch, cost) in costs {
        let work = all().find(|work| work.name == batch.work).context("nobody knows this work")?;
        let Work { name, about, .. } = work;
        let (guests, more) = (batch.domains.len(), cost.operations);
        let place = place(batch.domains[0]);
        if FRAMES.iter().any(|frames| frames.name == *name) {
            frame_rows(record, work, place, "drawn when its fence's descriptor says so", cost);
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
    let mut panels = frame_figures(record, &FRAMES);
    for Work { name, .. } in &PRODUCTS {
        let value = |what: &str| record.value(&format!("gpu.compute.{name}.{what}.instructions"));
        let several: Vec<String> = (2..=SETTING.guests).map(|guests| guests.to_string()).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

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
}
