//! What IGT says of a virtio GPU: by its two nodes in the domain that has the card, twice, and then in a guest that has both nodes as device files. A subtest
//! whose verdict the domain itself does not repeat says nothing of the guest, and is counted apart.

use super::igt::{self, Test};
use super::start::StartGuest;
use crate::bench::driver::check;
use crate::bench::record::Record;
use crate::bench::{Clock, kernel, quoted, run_watched};
use crate::kernels::{self, Kernel};
use crate::outcome::{Finding, Guest};
use crate::rootfs::{self, Additions};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

const KERNEL: &str = "debian-6.12";

/// Memory of a domain, and of the machine, in MiB.
const MEMORY: u32 = 512;
const MACHINE: u32 = 2560;

/// How many seconds a program of IGT's may take: several times of what it takes in the domain that has the card.
const PATIENCE: u32 = 180;

/// Programs of IGT's that are for any card, and those for virtio's, all subtests.
const fn all(name: &'static str) -> Test {
    Test { name, patience: PATIENCE, subtests: "" }
}

/// Those that end soon enough, by IGT's patterns.
const fn some(name: &'static str, subtests: &'static str) -> Test {
    Test { name, patience: PATIENCE, subtests }
}

/// What is run, in this order. Not among them are those that need fences of software (sw_sync, syncobj_wait, syncobj_timeline, syncobj_eventfd), which Debian's
/// kernels do not have, nor those for two cards of which one is Intel's (prime_vgem): all of these are skipped.
const TESTS: [Test; 32] = [
    all("core_auth"),
    all("core_getclient"),
    all("core_getstats"),
    all("core_getversion"),
    all("core_setmaster"),
    all("core_setmaster_vs_auth"),
    all("drm_read"),
    all("drm_virtgpu"),
    // It writes all memory that there is, for half a minute.
    some("dumb_buffer", "*,!create-clear"),
    all("dmabuf_sync_file"),
    all("kms_addfb_basic"),
    all("kms_atomic"),
    all("kms_atomic_interruptible"),
    all("kms_atomic_transition"),
    // Of 60, many for half a minute each.
    some(
        "kms_flip",
        "nonblocking-read,basic-*,plain-flip-*,bo-too-big*,flip-vs-blocking-wf-vblank,flip-vs-fences",
    ),
    all("kms_flip_event_leak"),
    all("kms_getfb"),
    all("kms_lease"),
    all("kms_prop_blob"),
    all("kms_properties"),
    all("kms_rmfb"),
    all("kms_setmode"),
    all("kms_sequence"),
    // The machine would sleep.
    some("kms_vblank", "*,!*suspend*"),
    all("kms_invalid_mode"),
    all("kms_universal_plane"),
    all("kms_plane"),
    all("kms_plane_cursor"),
    // It moves a cursor as fast as it can, for ten seconds and more each.
    some("kms_cursor_legacy", "*,!torture-*,!forked-*,!*cursor*-vs-flip*,!*flip-vs-cursor*"),
    all("kms_prime"),
    all("syncobj_basic"),
    all("kms_sysfs_edid_timing"),
];

/// What IGT says of a subtest, and what rows call it.
const VERDICTS: [(&str, &str); 5] =
    [("SUCCESS", "success"), ("SKIP", "skip"), ("FAIL", "fail"), ("CRASH", "crash"), ("TIMEOUT", "timeout")];

/// Measures it, if there is a checkout of IGT.
pub fn measure(record: &mut Record) -> Result<()> {
    let Some(checkout) = igt::UPSTREAM.checkout()? else {
        let how = igt::UPSTREAM.how();
        crate::output::note(format_args!("  igt is left out, since Debian's has no tests: {how}"));
        return Ok(());
    };
    let kernel = kernels::get(KERNEL)?;
    let more = Additions { files: igt::files(&checkout, &TESTS)?, ..Additions::default() };
    let text = configuration(&kernel, &rootfs::get_with("igt", &kernel, &more)?)?;
    record.version("igt", &checkout.version());
    let (_, outcome) = run_watched("devfile-igt", &text, Clock::Host, Vec::new(), &mut StartGuest::new())?;
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    let [driver, guest] = &outcome.guests[..] else { anyhow::bail!("a domain is missing") };
    rows(record, &Compared::new(&run(driver, 1)?, &run(driver, 2)?, &run(guest, 1)?))
}

/// A domain with the card, which runs all tests twice before it serves, and a guest that has both nodes. They have no identity: IGT wants a driver
/// at the function that a card is of, which is then the transport's, as in the domain.
fn configuration(kernel: &Kernel, initrd: &Path) -> Result<String> {
    let (image, initrd) = (quoted(&kernel::unpacked(kernel)?), quoted(initrd));
    let node =
        |name: &str| format!("{{ mode = \"devfile\", by = \"driver\", source = \"/dev/dri/{name}\" }}");
    let nodes = ["card0", "renderD128"].map(node).join(", ");
    Ok(format!(
        "[machine]\nmemory = \"{MACHINE}MiB\"\ncpus = 2\n\
         [device.gpu]\npci = \"1af4:1050\"\nqemu = \"virtio-gpu-pci,iommu_platform=on\"\n\
         [domain.driver]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"{MEMORY}MiB\"\ncpus = [0]\n\
         cmdline = \"console=ttyS0 quiet sluice.job=serve:igt=2\"\n\
         devices = [{{ use = \"gpu\", mode = \"passthrough\" }}]\n\
         [domain.guest]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"{MEMORY}MiB\"\ncpus = [1]\ngrants = \"pages\"\npaused = true\n\
         cmdline = \"console=ttyS0 quiet sluice.job=files:random=0,igt=1\"\n\
         devices = [{nodes}]\n"
    ))
}

/// The verdicts of one run, by `TEST@SUBTEST`.
type Verdicts = BTreeMap<String, String>;

/// What a domain said of a round. All tests ended, and said something.
fn run(domain: &Guest, round: u32) -> Result<Verdicts> {
    let round = round.to_string();
    let found = verdicts(&domain.findings, &round);
    ensure!(domain.findings_dropped == 0, "{} said more than is kept", domain.name);
    for Test { name, .. } in &TESTS {
        let prefix = format!("{name}@");
        let said =
            found.range(prefix.clone()..).next().is_some_and(|(subtest, _)| subtest.starts_with(&prefix));
        ensure!(said, "{} said nothing of {name} in round {round}", domain.name);
    }
    let known = |verdict: &String| VERDICTS.iter().any(|known| known.0 == verdict);
    let unknown = found.iter().find(|(_, verdict)| !known(verdict));
    ensure!(unknown.is_none(), "nobody knows this verdict: {unknown:?}");
    ensure!(found.values().any(|verdict| verdict == "SUCCESS"), "{} passed no subtest", domain.name);
    Ok(found)
}

/// The verdicts among findings, of this round.
fn verdicts(findings: &[Finding], round: &str) -> Verdicts {
    let mut found = Verdicts::new();
    for finding in findings {
        let [test, number, verdicts @ ..] = &finding[..] else { continue };
        if test.0 == "igt" && number.0 == "round" && number.1 == round {
            let named = |subtest: &str| format!("{}@{subtest}", test.1.raw());
            found.extend(
                verdicts.iter().map(|(subtest, verdict)| (named(subtest.raw()), verdict.raw().to_owned())),
            );
        }
    }
    found
}

/// A subtest, and its verdicts in the domain and in the guest.
type Pair = (String, String, String);

/// What the guest's verdicts are beside those of the domain.
#[derive(Default)]
struct Compared {
    /// How often each verdict was in a place.
    counts: [BTreeMap<String, u32>; 2],
    /// Those that were run in both places, and of these the ones that the domain does not skip.
    both: u32,
    carried_out: u32,
    same: u32,
    different: Vec<Pair>,
    /// Those that the domain does not repeat: its two verdicts.
    unsteady: Vec<Pair>,
    /// Those that were run in one of both places only, as what a subtest makes up of itself is.
    alone: Vec<Pair>,
}

impl Compared {
    fn new(driver: &Verdicts, again: &Verdicts, guest: &Verdicts) -> Self {
        let mut compared = Self::default();
        for (counts, verdicts) in compared.counts.iter_mut().zip([driver, guest]) {
            verdicts.values().for_each(|verdict| *counts.entry(verdict.clone()).or_default() += 1);
        }
        for (subtest, theirs) in driver {
            let pair = |other: Option<&String>| {
                (subtest.clone(), theirs.clone(), other.map_or("-", String::as_str).to_owned())
            };
            let ours = guest.get(subtest);
            compared.both += u32::from(ours.is_some());
            compared.carried_out += u32::from(theirs != "SKIP" && ours.is_some());
            match (again.get(subtest), ours) {
                (second, _) if second != Some(theirs) => compared.unsteady.push(pair(second)),
                (_, None) => compared.alone.push(pair(None)),
                (_, Some(ours)) if ours == theirs => compared.same += 1,
                (_, Some(_)) => compared.different.push(pair(ours)),
            }
        }
        let only = guest.iter().filter(|(subtest, _)| !driver.contains_key(*subtest));
        compared.alone.extend(only.map(|(subtest, ours)| (subtest.clone(), "-".to_owned(), ours.clone())));
        compared
    }
}

/// Subtests with their two verdicts.
fn listed(pairs: &[Pair]) -> String {
    let shown: Vec<String> =
        pairs.iter().map(|(subtest, first, second)| format!("{subtest}: {first} / {second}")).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join("; ") }
}

fn rows(record: &mut Record, compared: &Compared) -> Result<()> {
    record.retain(|id| !id.starts_with("igt."));
    for (place, counts) in ["driver", "guest"].into_iter().zip(&compared.counts) {
        for (verdict, name) in VERDICTS {
            let count = counts.get(verdict).copied().unwrap_or_default();
            let note = format!("of IGT's subtests, those that it says {verdict} of");
            record.row(format!("igt.{place}.{name}"), f64::from(count), "subtests", note);
        }
    }
    let note = "run in the domain that has the card and in a guest that has its nodes";
    record.row("igt.verdicts.subtests", f64::from(compared.both), "subtests", note);
    let note = "of these, those that the domain does not skip for want of something that the card or its driver does not have";
    record.row("igt.verdicts.carried_out", f64::from(compared.carried_out), "subtests", note);
    let note = "whose verdict is the same in both places";
    record.row("igt.verdicts.same", f64::from(compared.same), "subtests", note);
    for (name, about, pairs) in [
        ("different", "domain / guest", &compared.different),
        ("unsteady", "that the domain itself gives two verdicts: its first / its second", &compared.unsteady),
        ("alone", "run in one of both places only: domain / guest", &compared.alone),
    ] {
        let note = format!("{about}: {}", listed(pairs));
        record.row(format!("igt.verdicts.{name}"), f64::from(count(pairs)?), "subtests", note);
    }
    Ok(())
}

fn count(pairs: &[Pair]) -> Result<u32> {
    u32::try_from(pairs.len()).context("there are too many subtests")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    fn said(lines: &[&str]) -> Vec<Finding> {
        lines.iter().map(|line| parse_finding(&format!("SLUICE-RESULT {line}")).unwrap()).collect()
    }

    #[test]
    fn verdicts_are_those_of_a_round() {
        let findings = said(&[
            "init=2.0 cpus=1",
            "igt=core_auth round=1 basic-auth=SUCCESS many-magics=SKIP",
            "igt=kms_flip round=1 basic@pipe-A=FAIL",
            "igt_ended=kms_flip round=1 status=98",
            "igt=core_auth round=2 basic-auth=FAIL",
        ]);
        let expected = [
            ("core_auth@basic-auth", "SUCCESS"),
            ("core_auth@many-magics", "SKIP"),
            ("kms_flip@basic@pipe-A", "FAIL"),
        ];
        assert_eq!(
            verdicts(&findings, "1"),
            expected.map(|(name, verdict)| (name.to_owned(), verdict.to_owned())).into()
        );
        assert_eq!(verdicts(&findings, "2").len(), 1);
        assert!(verdicts(&findings, "3").is_empty());
    }

    #[test]
    fn a_run_that_says_nothing_of_a_test_is_none() {
        let mut guest =
            Guest { findings: said(&["igt=core_auth round=1 basic-auth=SUCCESS"]), ..Guest::default() };
        assert!(run(&guest, 1).unwrap_err().to_string().contains("said nothing of core_getclient"));
        let lines: Vec<String> =
            TESTS.iter().map(|test| format!("igt={} round=1 whole=SKIP", test.name)).collect();
        guest.findings = said(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(run(&guest, 1).unwrap_err().to_string().contains("passed no subtest"));
        guest.findings.extend(said(&["igt=kms_rmfb round=1 rmfb-ioctl=SUCCESS"]));
        assert_eq!(run(&guest, 1).unwrap().len(), TESTS.len() + 1);
        guest.findings.extend(said(&["igt=kms_rmfb round=1 close-fd=PERHAPS"]));
        assert!(run(&guest, 1).unwrap_err().to_string().contains("PERHAPS"));
    }

    #[test]
    fn what_the_domain_does_not_repeat_is_no_difference() {
        let run = |verdicts: &[(&str, &str)]| {
            verdicts
                .iter()
                .map(|(name, verdict)| ((*name).to_owned(), (*verdict).to_owned()))
                .collect::<Verdicts>()
        };
        let driver = run(&[("a", "SUCCESS"), ("b", "SUCCESS"), ("c", "FAIL"), ("d", "SKIP")]);
        let again = run(&[("a", "SUCCESS"), ("b", "SUCCESS"), ("c", "SUCCESS"), ("d", "SKIP")]);
        let guest = run(&[("a", "SUCCESS"), ("b", "SKIP"), ("c", "SUCCESS"), ("e", "SUCCESS")]);
        let compared = Compared::new(&driver, &again, &guest);
        assert_eq!((compared.both, compared.carried_out, compared.same), (3, 3, 1));
        assert_eq!(listed(&compared.different), "b: SUCCESS / SKIP");
        assert_eq!(listed(&compared.unsteady), "c: FAIL / SUCCESS");
        assert_eq!(listed(&compared.alone), "d: SKIP / -; e: - / SUCCESS");
        assert_eq!(compared.counts[1].get("SUCCESS"), Some(&3));
    }
}
