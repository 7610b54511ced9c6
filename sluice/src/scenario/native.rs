//! A domain of a scenario once more without Sluice: its kernel, ramdisk and command line on QEMU's machine. What it finds there is what the domain has to
//! find, but for what the scenario names.

use super::format::{Native, Scenario};
use super::judge::{Kind, Verdict};
use crate::config::{Image, Setup};
use crate::kernels;
use crate::outcome::{Finding, Guest, parse_finding};
use crate::printable::GuestText;
use crate::qemu;
use crate::rootfs;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is looked whether the machine has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// The results that are compared, by their keys.
pub type Results = BTreeMap<String, GuestText>;

/// Runs the domain to its end and returns what it reported. Its console is `native.log` in the folder.
pub fn run(scenario: &Scenario, native: &Native, setup: &Setup, folder: &Path) -> Result<Results> {
    let domain = setup.domains.iter().find(|domain| **domain.name.get_ref() == *native.domain);
    let domain = domain.with_context(|| format!("no domain is called '{}'", native.domain))?;
    let (Image::Named(kernel), Some(Image::Named(initrd))) =
        (domain.kernel.get_ref(), domain.initrd.as_ref().map(|initrd| initrd.get_ref()))
    else {
        bail!("'{}' has its kernel or its ramdisk not by name", native.domain);
    };
    let kernel = kernels::get(&kernels::for_kind(kernel, *domain.kind.get_ref()))?;
    let initrd = rootfs::get(initrd, &kernel)?;
    std::fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
    let log = folder.join("native.log");
    let arguments = arguments(
        *domain.memory.get_ref(),
        scenario.icount,
        [qemu::text(&kernel.image)?, qemu::text(&initrd)?, qemu::text(&log)?],
        &domain.cmdline.get_ref().replace("console=hvc0", "console=ttyS0"),
    );
    let started = Instant::now();
    let mut machine = qemu::start(&arguments)?;
    while machine.try_wait()?.is_none() {
        if started.elapsed().as_secs_f64() > scenario.timeout {
            machine.kill()?;
            machine.wait()?;
            bail!("'{}' without Sluice did not end in {} s", native.domain, scenario.timeout);
        }
        std::thread::sleep(PAUSE);
    }
    let console = std::fs::read(&log).with_context(|| format!("no {}", log.display()))?;
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    let findings: Vec<Finding> = console.lines().filter_map(parse_finding).collect();
    if !findings.iter().flatten().any(|pair| pair.0 == "done" && pair.1 == "ok") {
        bail!("'{}' without Sluice did not finish; see {}", native.domain, log.display());
    }
    Ok(results(&findings, &native.results))
}

/// QEMU's arguments.
fn arguments(memory: u64, icount: bool, files: [String; 3], cmdline: &str) -> Vec<String> {
    let [kernel, initrd, log] = files;
    let thread = if icount { "single" } else { "multi" };
    let mut arguments: Vec<String> = ["-machine", "q35", "-accel"].map(str::to_owned).to_vec();
    arguments.push(format!("tcg,thread={thread}"));
    arguments.extend(["-cpu", qemu::NATIVE_CPU, "-smp", "1", "-m"].map(str::to_owned));
    arguments.push(format!("{}M", memory >> 20));
    if icount {
        arguments.extend(["-icount", "shift=0,sleep=off"].map(str::to_owned));
    }
    let serial = format!("file:{log}");
    for (option, value) in [
        ("-kernel", &*kernel),
        ("-initrd", &initrd),
        ("-append", cmdline),
        ("-serial", &serial),
        ("-display", "none"),
    ] {
        arguments.extend([option, value].map(str::to_owned));
    }
    arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    arguments
}

/// The last value of each key that begins so.
fn results(findings: &[Finding], prefix: &str) -> Results {
    let pairs = findings.iter().flatten().filter(|(key, _)| key.raw().starts_with(prefix));
    pairs.map(|(key, value)| (key.raw().to_owned(), value.clone())).collect()
}

/// Compares what both found. A difference that is named has to be there: a list of what was once so is none.
pub fn compare(verdict: &mut Verdict, native: &Native, there: &Results, guest: Option<&Guest>) {
    let here = guest.map(|guest| results(&guest.findings, &native.results)).unwrap_or_default();
    let name = Some(&*native.domain);
    verdict.check(name, Kind::Missing, !there.is_empty(), || {
        format!("{} reported no {}* without Sluice", native.domain, native.results)
    });
    let keys: BTreeSet<&String> = here.keys().chain(there.keys()).chain(native.differ.keys()).collect();
    for key in keys {
        let (own, their) = (here.get(key), there.get(key));
        let same = own.map(GuestText::raw) == their.map(GuestText::raw);
        let kind = if own.is_some() { Kind::Wrong } else { Kind::Missing };
        let known = native.differ.get(key);
        verdict.check(name, kind, same == known.is_none(), || {
            let said = |value: Option<&GuestText>| value.map_or("nothing".to_owned(), ToString::to_string);
            let (own, their) = (said(own), said(their));
            match known {
                None => format!("{} reported {key}={own}, and without Sluice {their}", native.domain),
                Some(why) => {
                    format!("{key} is {own} with and without Sluice, and not another one because {why}")
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        text.lines().filter_map(|line| parse_finding(&format!("SLUICE-RESULT {line}"))).collect()
    }

    fn compared(here: &str, differ: &str) -> Vec<String> {
        let native: Native =
            toml::from_str(&format!("domain = 'alice'\nresults = 'verdict.'\n[differ]\n{differ}")).unwrap();
        let there = results(&findings("verdict.a=pass\nverdict.b=fail\ndone=ok"), &native.results);
        let guest = Guest { name: "alice".into(), findings: findings(here), ..Guest::default() };
        let mut verdict = Verdict::default();
        compare(&mut verdict, &native, &there, Some(&guest));
        verdict.problems.into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn what_both_find_is_compared() {
        assert_eq!(compared("verdict.a=pass\nverdict.b=fail\nother=1", ""), [""; 0]);
        assert!(
            matches!(&compared("verdict.a=fail\nverdict.b=fail", "")[..], [one] if one.contains("verdict.a=fail"))
        );
        assert!(matches!(&compared("verdict.a=pass", "")[..], [one] if one.contains("verdict.b=nothing")));
        assert_eq!(compared("verdict.a=pass\nverdict.b=fail\nverdict.c=pass", "").len(), 1);
    }

    #[test]
    fn a_difference_that_is_named_has_to_be_there() {
        let differ = "'verdict.a' = 'it is left out'";
        assert_eq!(compared("verdict.a=fail\nverdict.b=fail", differ), [""; 0]);
        assert_eq!(compared("verdict.a=pass\nverdict.b=fail", differ).len(), 1);
        assert_eq!(compared("verdict.a=fail\nverdict.b=pass", differ).len(), 1);
    }

    #[test]
    fn nothing_found_is_no_agreement() {
        let native: Native = toml::from_str("domain = 'alice'\nresults = 'verdict.'").unwrap();
        let mut verdict = Verdict::default();
        compare(&mut verdict, &native, &Results::new(), Some(&Guest::default()));
        assert_eq!(verdict.problems.len(), 1);
    }
}
