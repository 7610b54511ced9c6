//! How long a key takes from its driver to the program that waits for it: instructions of the whole machine from the moment at which the driver is
//! told of it to the one at which the program has read it. Nothing else happens meanwhile, so that they are executed one after the other, on
//! whichever processor.

use super::configuration;
use crate::bench::driver::{StopDriver, check};
use crate::bench::marks::{Entries, Mark, marks};
use crate::bench::peer::{Guest, Peer};
use crate::bench::record::Record;
use crate::bench::{Clock, kernel, run_watched};
use crate::observer::{Observer, Steer};
use crate::outcome::Finding;
use crate::printable::GuestText;
use crate::{kernels, rootfs};
use anyhow::{Result, ensure};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;

/// Keys in each place: presses and releases.
const KEYS: usize = 40;
/// The first of them fill caches.
const FIRST: usize = 4;

/// Where it is measured, in this order: in the domain to which the device belongs, and in a guest in both ways.
const PLACES: [&str; 3] = ["assigned", "interrupt", "poll"];

/// Measures it: without a hypervisor first.
pub fn measure(record: &mut Record) -> Result<()> {
    let (log, arguments) = super::counted("devfile-latency-native")?;
    let kernel = kernels::get("debian-6.1")?;
    let (image, initrd) = (kernel::unpacked(&kernel)?, rootfs::get("file-server", &kernel)?);
    let name = "devfile-latency-native".to_owned();
    let peer = Peer { name, clock: Clock::Instructions, network: false, qemu_args: arguments };
    let guest = Guest {
        kernel: &image,
        initrd: Some(&initrd),
        cmdline: format!("console=ttyS0 quiet sluice.job=local:keys={KEYS},latency={KEYS},press_after=5"),
        memory: 0,
        arguments: String::new(),
    };
    peer.run_native(&guest, "done")?;
    let native = marks(&super::read(&log)?, Entries::None);
    ensure!(native.len() == 2 * KEYS, "{} marks were set without a hypervisor", native.len());
    row(record, "native", &native);
    with_sluice(record)
}

fn with_sluice(record: &mut Record) -> Result<()> {
    let guest =
        (vec!["/dev/input/event1"], format!("console=ttyS0 quiet sluice.job=files:random=0,latency={KEYS}"));
    let text = configuration(&format!("keys={KEYS},latency={KEYS}"), &[guest])?;
    let (log, arguments) = super::counted("devfile-latency")?;
    let mut keys = Keys { stop: StopDriver::new(1), ready: false };
    let (_, outcome) = run_watched("devfile-latency", &text, Clock::Instructions, arguments, &mut keys)?;
    check(&outcome)?;
    let marks = marks(&super::read(&log)?, Entries::Vmruns);
    ensure!(marks.len() == 2 * KEYS * PLACES.len(), "{} marks were set", marks.len());
    for (place, marks) in PLACES.into_iter().zip(marks.chunks_exact(2 * KEYS)) {
        row(record, place, marks);
    }
    Ok(())
}

fn row(record: &mut Record, place: &str, marks: &[Mark]) {
    let (instructions, exits) = mean(marks);
    let note = "of the whole machine without loops that wait, from the driver's being told of a key to the program's having read it by poll and read";
    record.row(format!("devfile.input.{place}.latency_instructions"), instructions, "instructions", note);
    let note = "entries into guests meanwhile: VMRUN";
    record.row(format!("devfile.input.{place}.exits"), exits, "exits", note);
}

/// What one key takes: instructions, and entries into guests. A mark is set before each, and after.
fn mean(marks: &[Mark]) -> (f64, f64) {
    let keys: Vec<_> = marks.as_chunks::<2>().0.iter().skip(FIRST).collect();
    let per = |count: fn(&Mark) -> u64| {
        let all: u64 = keys.iter().map(|[told, read]| count(read) - count(told)).sum();
        all as f64 / keys.len() as f64
    };
    (per(|mark| mark.instructions), per(|mark| mark.entries))
}

/// Has the keys pressed whenever somebody waits for them.
struct Keys {
    stop: StopDriver,
    ready: bool,
}

impl Observer for Keys {
    fn state(&mut self, domain: usize, state: DomainState, reason: &GuestText, steer: &mut Steer) {
        self.stop.state(domain, state, reason, steer);
    }

    fn finding(&mut self, _domain: usize, finding: &Finding) {
        self.ready |= finding.iter().any(|(key, value)| key == "events" && value == "ready");
    }

    fn tick(&mut self, steer: &mut Steer) {
        if std::mem::take(&mut self.ready) {
            steer.send(Command::ConsoleInput(DomainId(0), b"\n".to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn a_key_takes_what_is_between_its_marks() {
        let mark = |instructions, entries| Mark { instructions, entries, hypervisor: 0 };
        let mut marks = [mark(0, 0), mark(9_000, 90)].repeat(FIRST);
        marks.extend([mark(10_000, 100), mark(10_300, 102), mark(50_000, 200), mark(50_500, 204)]);
        assert_eq!(mean(&marks), (400.0, 3.0));
    }

    #[test]
    fn keys_are_pressed_once_for_who_waits() {
        let mut keys = Keys { stop: StopDriver::new(1), ready: false };
        let pressed = |keys: &mut Keys| {
            let mut steer = Steer::default();
            keys.tick(&mut steer);
            steer.take().0.len()
        };
        keys.finding(1, &parse_finding("SLUICE-RESULT keys=ready").unwrap());
        assert_eq!(pressed(&mut keys), 0);
        keys.finding(1, &parse_finding("SLUICE-RESULT events=ready").unwrap());
        assert_eq!((pressed(&mut keys), pressed(&mut keys)), (1, 0));
    }
}
