//! Guests whose devices a driver domain serves.

use super::{Bench, DRIVE, Image, Lends, Load, MEMORY, Measured};
use crate::bench::record::Record;
use crate::bench::split::{Split, Third};
use crate::bench::tally::Reader;
use crate::bench::{Clock, plugin, quoted, run_watched, scratch};
use crate::observer::{Observer, Steer};
use crate::outcome::{Outcome, Status};
use crate::printable::GuestText;
use anyhow::{Context, Result, bail};
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainState;
use std::fmt::Write;

/// Runs a load on so many processors: the guests have the first one, the driver domain the last.
pub fn run(bench: &Bench, load: Load, lends: Lends, cpus: u32, record: &mut Record) -> Result<Measured> {
    let reader = Reader::start(&scratch()?, Split::new(Third::Nothing))?;
    let guests: Vec<(&str, String)> = match load {
        Load::Net => vec![("net", load.cmdline(0, lends.options))],
        Load::Disk => vec![("blk", load.cmdline(0, lends.options))],
        Load::Inter => vec![("net", load.cmdline(0, lends.options)), ("net", load.cmdline(1, lends.options))],
    };
    let image = bench.image(lends.kernel)?;
    let text = configuration(bench, &image, &guests, lends, cpus, "");
    let arguments = reader.arguments(false, Some(&plugin::exits(&bench.plugin, &[])));
    let ran = run_watched(
        &format!("driver-{}-{cpus}-{}", lends.name, load.name()),
        &text,
        Clock::Mixed,
        arguments,
        &mut StopDriver::new(guests.len()),
    );
    let split = reader.finish();
    let ((_, outcome), split) = (ran?, split?);
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    let server = server(&outcome, &split, "driver")?;
    Ok(Measured { guests: outcome.guests, split, servers: [server].into(), report: outcome.report })
}

/// A machine with a driver domain, and guests: their kernel, types of their devices and command lines, what they lend, on how many processors, and more of
/// the driver domain's job.
pub fn configuration(
    bench: &Bench,
    image: &Image,
    guests: &[(&str, String)],
    lends: Lends,
    cpus: u32,
    more: &str,
) -> String {
    let [own, kernel, initrd, serving] =
        [&bench.unpacked, &image.kernel, &image.initrd, &bench.serving].map(|path| quoted(path));
    let mut text = format!(
        "[machine]\nmemory = \"1GiB\"\niommu = \"amd\"\ncpus = {cpus}\nqemu_args = [\"-drive\", \"{DRIVE}\"]\n\
         [device.nic0]\npci = \"8086:100e\"\nqemu = \"e1000\"\nnet = \"user\"\n\
         [device.nvme]\npci = \"1b36:0010\"\nqemu = \"nvme,serial=sluice,drive=disk0\"\n\
         [domain.driver]\nkernel = {own}\ninitrd = {serving}\nmemory = \"256MiB\"\ncpus = [{}]\n\
         cmdline = \"console=ttyS0 quiet sluice.job=serve:bridge=br0,uplink=eth0{}{more}\"\n\
         devices = [{{ use = \"nic0\", mode = \"passthrough\" }}, {{ use = \"nvme\", mode = \"passthrough\" }}]\n",
        cpus - 1,
        lends.serving
    );
    for (number, (kind, cmdline)) in guests.iter().enumerate() {
        let source = if *kind == "blk" {
            "source = \"/dev/nvme0n1\"".to_owned()
        } else {
            format!("source = \"br0\", mac = \"52:54:00:00:00:{:02x}\"", 0x0a + number)
        };
        let _ = write!(
            text,
            "[domain.guest{number}]\nkernel = {kernel}\ninitrd = {initrd}\nmemory = \"{}MiB\"\ncpus = [0]\ncmdline = \"{cmdline}\"\n\
             grants = \"{}\"\ndevices = [{{ mode = \"virtio\", type = \"{kind}\", by = \"driver\", {source} }}]\n",
            MEMORY >> 20,
            lends.grants
        );
    }
    text
}

/// What went wrong, if anything did.
pub fn check(outcome: &Outcome) -> Result<()> {
    if outcome.status != Status::Ok {
        bail!("{}", outcome.problems.join("\n"));
    }
    Ok(())
}

/// Outside nobody knows a guest's name: the driver domain is the one that had as many exits as the hypervisor's report says.
pub fn server(outcome: &Outcome, split: &Split, name: &str) -> Result<u64> {
    let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
    let driver = report
        .domains
        .iter()
        .find(|domain| domain.name == name)
        .with_context(|| format!("the report has no domain '{name}'"))?;
    let exits: u64 = driver.exits.iter().map(|count| count.value).sum();
    let seen = split.exits();
    let nearest = seen.into_iter().min_by_key(|(_, seen)| seen.abs_diff(exits));
    Ok(nearest.context("nobody was entered")?.0)
}

/// Stops the driver domain, the first one, when all others have ended.
pub struct StopDriver {
    left: usize,
}

impl StopDriver {
    /// For so many guests.
    pub fn new(guests: usize) -> Self {
        Self { left: guests }
    }
}

impl Observer for StopDriver {
    fn state(&mut self, domain: usize, state: DomainState, _reason: &GuestText, steer: &mut Steer) {
        let ended = matches!(state, DomainState::PoweredOff | DomainState::Destroyed | DomainState::Crashed);
        if domain == 0 || !ended {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            steer.send(Command::Stop(DomainId(0)));
        }
    }
}
