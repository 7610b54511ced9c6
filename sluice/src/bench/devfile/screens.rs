//! What Debian's own programs take to show frames on a graphics card's screen, and to draw them in its memory: kmscube and glmark2, without a hypervisor, in
//! the domain that has the card, and in a guest that has its primary node. That pictures are the same everywhere is what scenario `device-files-cube` says.
//!
//! The source is Paradice, section 6.1.3, whose games have no counterpart here: QEMU's card draws nothing of its own, and none is in Debian that needs no
//! X server.

use super::steps::{Batch, PLACES, Setting, Steps, Work, frame_figures, frame_rows};
use crate::bench::marks::Cost;
use crate::bench::plot;
use crate::bench::record::Record;
use crate::outcome::Finding;
use anyhow::{Context, Result, ensure};

const fn frames(name: &'static str, about: &'static str) -> Work {
    Work { name, about, few: 10, many: 70 }
}

const OWN: &str = "glmark2's building out of its own memory, off screen";
const CARDS: &str = "glmark2's building out of a buffer of the card's, off screen";

/// Frames, by what the job in guest/rootfs/init calls them.
const FRAMES: [Work; 8] = [
    frames("cube", "Debian's kmscube, whose pages flip"),
    frames("cube_atomic", "Debian's kmscube, which commits states with fences"),
    frames("build_160x120_true", CARDS),
    frames("build_160x120_false", OWN),
    frames("build_320x240_true", CARDS),
    frames("build_320x240_false", OWN),
    frames("build_640x480_true", CARDS),
    frames("build_640x480_false", OWN),
];

const SETTING: Setting = Setting {
    name: "devfile-screens",
    job: "shown_counted",
    rootfs: "stock-screens",
    file: "/dev/dri/card0",
    memory: 1024,
    guests: 1,
    serving: "",
};

/// Measures it.
pub fn measure(record: &mut Record) -> Result<()> {
    let costs = SETTING.native(FRAMES.iter(), &mut check)?;
    rows(record, &costs, |_| PLACES[0])?;
    let mut steps = Steps::default();
    steps.work(FRAMES.iter(), &[0]);
    steps.end(0);
    for guest in 1..=SETTING.without_lane() {
        steps.start(guest);
        steps.work(FRAMES.iter(), &[guest]);
        steps.end(guest);
    }
    let costs = SETTING.in_domains(record, steps, &mut check)?;
    rows(record, &costs, |domain| SETTING.place(domain))?;
    plot::write(
        "devfile-screens",
        "Debian's kmscube and glmark2 on a graphics card: what the processors execute",
        &frame_figures(record, &FRAMES),
    )
}

/// The card draws, and does what the program asks for: glmark2 on a screen prints rates though each of its modes fails.
fn check(finding: &Finding) -> Result<()> {
    let value = |key: &str| finding.iter().find(|pair| pair.0 == key).map(|pair| pair.1.raw());
    let Some(work) = value("at") else { return Ok(()) };
    let renderer = value("renderer").unwrap_or_default();
    ensure!(renderer.starts_with("virgl"), "it is not the card that draws {work}, but {renderer:?}");
    let failed = value("look_failed").with_context(|| format!("{work} ended no frame"))?;
    ensure!(failed == "0", "{failed} calls of {work} failed");
    Ok(())
}

fn rows(record: &mut Record, costs: &[(Batch, Cost)], place: impl Fn(usize) -> &'static str) -> Result<()> {
    for (batch, cost) in costs {
        let work = FRAMES.iter().find(|work| work.name == batch.work).context("nobody knows this work")?;
        frame_rows(record, work, place(batch.domains[0]), "from its end to the end of the next", cost);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn a_frame_counts_when_the_card_drew_it_and_no_call_failed() {
        let said = |text: &str| check(&parse_finding(&format!("SLUICE-RESULT {text}")).unwrap());
        assert!(said("shown_counted=ready").is_ok());
        assert!(said("at=cube times=10 status=0 renderer=virgl_x look_frames=16 look_failed=0").is_ok());
        assert!(said("at=cube times=10 status=0 renderer=virgl_x look_frames=16 look_failed=2").is_err());
        assert!(said("at=cube times=10 status=0 renderer=llvmpipe look_frames=16 look_failed=0").is_err());
        assert!(said("at=cube times=10 status=0 renderer=virgl_x").is_err(), "it showed nothing");
    }
}
