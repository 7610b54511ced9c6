//! How an engine's guests share a wire that is full, and how exact their limits are.
//!
//! All send as much as they can. What is compared are shares of one run: of the bytes that the wire was busy with, and of the time of the run.

use super::Bench;
use super::busy::{Counts, Mac, Sent, Wire};
use crate::bench::fairness::jain;
use crate::bench::record::{Aim, Record};
use crate::bench::{Clock, quoted, run_watched, scratch};
use crate::config::vif::VIRTIO_CARD;
use crate::observer::{Observer, Steer};
use crate::outcome::Outcome;
use anyhow::{Context, Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::config::Face;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Bytes of a guest's memory.
const MEMORY: usize = 96 << 20;
/// What is sent while it is measured, as seconds of a full wire; and before that by each guest, as an eighth of its equal part of such seconds: all have begun,
/// and sockets are full.
const WHILE: u64 = 20;
const BEFORE: u64 = 5;

/// Guests, and the wire.
struct Case {
    name: &'static str,
    bits_per_second: u64,
    guests: Vec<Sender>,
    /// Guests that attack by their interfaces, with these faces, again and again.
    attackers: &'static [Face],
}

/// A guest: of the wire its share, a limit in Mbit/s, and bytes of its frames' payload.
#[derive(Clone, Copy)]
struct Sender {
    share: u8,
    limit: Option<u64>,
    payload: usize,
}

const EQUAL: Sender = Sender { share: 1, limit: None, payload: 1400 };

fn cases() -> [Case; 5] {
    let equal = |name, count: usize| Case {
        name,
        bits_per_second: 20_000_000,
        guests: (0..count)
            // Frames of several lengths: the wire is shared, not frames.
            .map(|nth| Sender { payload: [1400, 300][nth % 2], ..EQUAL })
            .collect(),
        attackers: &[],
    };
    // The greatest share has the small frames, and a wire so slow that its guest can make enough of them.
    let shares = [(1, 1400), (2, 300), (4, 1400), (8, 300)];
    let limits = [1, 2, 4, 8];
    [
        equal("equal8", 8),
        equal("equal32", 32),
        Case {
            name: "shares",
            bits_per_second: 5_000_000,
            guests: shares.map(|(share, payload)| Sender { share, payload, ..EQUAL }).to_vec(),
            attackers: &[],
        },
        Case {
            name: "limits",
            bits_per_second: 100_000_000,
            guests: limits.map(|limit| Sender { limit: Some(limit), ..EQUAL }).to_vec(),
            attackers: &[],
        },
        Case { name: "attacked", bits_per_second: 5_000_000, guests: vec![EQUAL; 2], attackers: &Face::ALL },
    ]
}

/// Names of what [`measure`] can do.
pub const PART: &str = "wire";

/// Measures what is wanted.
pub fn measure(bench: &Bench, record: &mut Record) {
    bench.pieces(record, PART, cases(), |case| case.name.to_owned(), |record, case| one(bench, record, case));
}

fn mac(nth: usize) -> Mac {
    [0x52, 0x54, 0, 0, 0x0a, nth as u8]
}

/// What the guests sent while it was measured, in their order, and in which time.
struct Measured {
    sent: Vec<Sent>,
    time: Duration,
    /// What each attacker tried, as its interface counted it from its start on.
    attempts: Vec<u64>,
    /// Bytes that attackers had the wire busy with.
    by_attackers: u64,
}

/// What an attacker tried that an engine noticed: rules that it broke, and frames that it may not send.
fn attempts(outcome: &Outcome, domain: &str) -> Result<u64> {
    let mut links = outcome.report.iter().flat_map(|report| &report.links);
    let link = links.find(|link| link.name.starts_with(&format!("{domain}.")));
    let counts = &link.with_context(|| format!("{domain} had no interface"))?.vif;
    let noticed = counts.iter().filter(|count| ["forged", "refused", "faults"].contains(&&*count.name));
    let noticed = noticed.map(|count| count.value).sum();
    ensure!(noticed > 10, "{domain} attacked {noticed} times only");
    Ok(noticed)
}

fn one(bench: &Bench, record: &mut Record, case: &Case) -> Result<()> {
    let wire = Wire::start(&scratch()?, case.bits_per_second)?;
    let text = configuration(bench, case, &wire);
    let mut watch = Watch { case, wire: &wire, began: None, ended: None };
    let (_, outcome) =
        run_watched(&format!("vif-wire-{}", case.name), &text, Clock::Host, Vec::new(), &mut watch)?;
    let problems = outcome.problems.join("\n");
    let (Some((first, before)), Some((last, after))) = (watch.began, watch.ended) else {
        anyhow::bail!("not all guests sent: {problems}");
    };
    record.kernels(&outcome.kernels);
    let of = |counts: &Counts, nth: usize| counts.get(&mac(nth)).copied().unwrap_or_default();
    let mut sent: Vec<Sent> = (0..case.guests.len() + case.attackers.len())
        .map(|nth| {
            let (before, after) = (of(&before, nth), of(&after, nth));
            Sent { bytes: after.bytes - before.bytes, on_wire: after.on_wire - before.on_wire }
        })
        .collect();
    let by_attackers = sent.split_off(case.guests.len()).iter().map(|sent| sent.on_wire).sum();
    let attempts =
        case.attackers.iter().map(|face| attempts(&outcome, face.word())).collect::<Result<_>>()?;
    rows(record, case, &Measured { sent, time: last - first, attempts, by_attackers })
}

fn configuration(bench: &Bench, case: &Case, wire: &Wire) -> String {
    let [kernel, initrd] = [&bench.unpacked, &bench.initrd].map(|path| quoted(path));
    let memory = 512 + case.guests.len() * ((MEMORY >> 20) + 8) + case.attackers.len() * 40;
    // Whose processor attackers use is not what is measured.
    let cpus = if case.attackers.is_empty() { 2 } else { 3 };
    let net = format!("server=off,addr.type=unix,addr.path={}", wire.path.display());
    let mut text = format!(
        "[machine]\nmemory = \"{memory}MiB\"\niommu = \"amd\"\ncpus = {cpus}\n\
         [device.nic0]\nqemu = \"{VIRTIO_CARD}\"\n\
         net = {{ mode = \"stream\", options = {net:?} }}\n[network.lan]\ncores = [1]\nnic = \"nic0\"\n",
    );
    for (nth, Sender { share, limit, payload }) in case.guests.iter().enumerate() {
        let limit = limit.map_or(String::new(), |limit| format!(", limit = \"{limit}Mbit\""));
        let [.., a, b] = mac(nth);
        let _ = write!(
            text,
            "[domain.guest{nth}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{}MiB\"\ncpus = [0]\n\
             cmdline = \"console=ttyS0 quiet sluice.job=load:flood,at=10.9.0.{},bytes={payload}\"\n\
             devices = [{{ mode = \"vif\", network = \"lan\", mac = \"52:54:00:00:{a:02x}:{b:02x}\", share = {share}{limit} }}]\n",
            MEMORY >> 20,
            nth + 2,
        );
    }
    for (nth, face) in case.attackers.iter().enumerate() {
        let job = match face {
            Face::Virtio => "vif",
            Face::Native => "native",
            Face::E1000 => "face",
        };
        let [.., a, b] = mac(case.guests.len() + nth);
        let face = face.word();
        let _ = write!(
            text,
            "[domain.{face}]\nkernel = \"bare\"\nmemory = \"32MiB\"\ncpus = [2]\non_poweroff = \"restart\"\n\
             cmdline = \"job=hostile:{job} machine={memory}\"\n\
             devices = [{{ mode = \"vif\", network = \"lan\", mac = \"52:54:00:00:{a:02x}:{b:02x}\", face = \"{face}\" }}]\n",
        );
    }
    text
}

/// Takes the counts when all guests have sent for a while, and later again; then it ends them.
struct Watch<'a> {
    case: &'a Case,
    wire: &'a Wire,
    began: Option<(Instant, Counts)>,
    ended: Option<(Instant, Counts)>,
}

impl Watch<'_> {
    /// Bytes that stations have put on the wire, if all have.
    fn total(&self, counts: &Counts) -> Option<u64> {
        let all = (0..self.case.guests.len()).all(|nth| counts.contains_key(&mac(nth)));
        all.then(|| counts.values().map(|sent| sent.on_wire).sum())
    }

    /// Bytes that so many seconds are: of the wire, or of the limits, if those are less.
    fn bytes_of(&self, seconds: u64) -> u64 {
        let limits: Option<u64> = self.case.guests.iter().map(|sender| sender.limit).sum();
        let rate = limits.map_or(u64::MAX, |limits| limits * 1_000_000).min(self.case.bits_per_second);
        seconds * rate / 8
    }
}

impl Observer for Watch<'_> {
    fn tick(&mut self, steer: &mut Steer) {
        let counts = self.wire.counts();
        let Some(total) = self.total(&counts).filter(|_| self.ended.is_none()) else { return };
        let Some((_, before)) = &self.began else {
            // Nobody has had a long start: what was sent before is none of what is measured.
            let guests = (0..self.case.guests.len()).filter_map(|nth| counts.get(&mac(nth)));
            let least = guests.map(|sent| sent.on_wire).min().unwrap_or(0);
            if least >= self.bytes_of(BEFORE) / (8 * self.case.guests.len() as u64) {
                self.began = Some((Instant::now(), counts));
            }
            return;
        };
        let earlier: u64 = before.values().map(|sent| sent.on_wire).sum();
        if total - earlier >= self.bytes_of(WHILE) {
            self.ended = Some((Instant::now(), counts));
            for nth in 0..self.case.guests.len() + self.case.attackers.len() {
                steer.send(Command::Destroy(DomainId(nth as u16)));
            }
        }
    }
}

/// How far the worst of these is from what it is to be, which adds up to what they do.
fn error(values: &[f64], wanted: &[f64]) -> f64 {
    let (all, parts): (f64, f64) = (values.iter().sum(), wanted.iter().sum());
    let each = values.iter().zip(wanted).map(|(value, part)| (value / all / (part / parts) - 1.0).abs());
    each.fold(0.0, f64::max)
}

fn rows(record: &mut Record, case: &Case, measured: &Measured) -> Result<()> {
    let Measured { sent, time, attempts, by_attackers } = measured;
    let on_wire: Vec<f64> = sent.iter().map(|sent| sent.on_wire as f64).collect();
    ensure!(on_wire.iter().all(|bytes| *bytes > 0.0), "a guest sent nothing while it was measured");
    let list = |values: &[f64]| {
        let texts: Vec<String> = values.iter().map(|value| format!("{:.0}", value / 1024.0)).collect();
        texts.join(", ")
    };
    let count = case.guests.len();
    if case.guests.iter().any(|sender| sender.limit.is_some()) {
        let rates = sent.iter().zip(&case.guests).map(|(sent, sender)| {
            let limit = sender.limit.context("every guest has a limit")?;
            Ok(sent.bytes as f64 * 8.0 / time.as_secs_f64() / (limit as f64 * 1e6))
        });
        let rates: Vec<f64> = rates.collect::<Result<_>>()?;
        let texts: Vec<String> = rates.iter().map(|rate| format!("{rate:.4}")).collect();
        let worst = rates.iter().map(|rate| (rate - 1.0).abs()).fold(0.0, f64::max);
        let note = format!(
            "parts of their limits of 1, 2, 4 and 8 Mbit/s that guests sent: {}; host's time",
            texts.join(", ")
        );
        record.aimed("vif.limit.error", worst, "of the limit, at worst", Some(Aim::AtMost(0.05)), note);
        return Ok(());
    }
    let note = format!(
        "KiB of a wire of {} Mbit/s in {:.1} s by {count} guests, with preamble, check sequence and gap: {}",
        case.bits_per_second / 1_000_000,
        time.as_secs_f64(),
        list(&on_wire)
    );
    if !case.attackers.is_empty() {
        let part = case.bits_per_second as f64 / 8.0 / count as f64;
        let least = on_wire.iter().copied().fold(f64::INFINITY, f64::min) / time.as_secs_f64();
        let tried = attempts.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let about = format!(
            "what the lesser of two guests sends, to half of the wire, which it would have beside idle neighbours; {note}; three neighbours attack by a \
             virtio card, the native face and an 82540EM, and send {} KiB of frames that they may send; {tried} rules broken, and frames forged or refused",
            by_attackers / 1024
        );
        record.aimed("vif.attacked.throughput_ratio", least / part, "ratio", Some(Aim::AtLeast(0.9)), about);
    } else if case.guests.iter().all(|sender| sender.share == 1) {
        let id = format!("vif.fairness.{count}.jain");
        record.aimed(id, jain(&on_wire), "Jain's index", Some(Aim::AtLeast(0.98)), note);
    } else {
        let shares: Vec<f64> = case.guests.iter().map(|sender| sender.share.into()).collect();
        let about = format!("shares of 1, 2, 4 and 8, frames of 1,442 and 342 bytes; {note}");
        record.aimed(
            "vif.shares.error",
            error(&on_wire, &shares),
            "of the share, at worst",
            Some(Aim::AtMost(0.05)),
            about,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::error;

    #[test]
    fn an_error_is_that_of_the_worst() {
        assert!(error(&[100.0, 200.0], &[1.0, 2.0]) < 1e-9);
        assert!((error(&[110.0, 190.0], &[1.0, 2.0]) - 0.1).abs() < 1e-9);
    }
}
