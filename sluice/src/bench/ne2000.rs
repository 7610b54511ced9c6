//! Exits and hooked accesses per packet of the NE2000: owned by one guest, shared by virtual passthrough (with
//! nobody, and with another guest at the same time), and emulated by QEMU under KVM.
//!
//! The guest is the same in all: Debian 6.1, its own ne2k-pci, a transfer over TCP checked by SHA-256. All counts
//! are taken from outside ([`tally`]) between the guest's marks; packets are those the guest's driver counted.

use super::peer::{Guest, Peer};
use super::record::Record;
use super::tally::{Counts, Phase, Reader, Tally};
use super::{scratch, sluice};
use crate::kernels;
use crate::outcome::{Finding, Outcome};
use crate::rootfs;
use crate::server::Server;
use anyhow::{Context, Result};
use std::ops::RangeInclusive;

/// Name of the card's registers in QEMU's trace.
const REGION: &str = "ne2000";

pub(super) const PHASES: [(Phase, &str); 2] = [(Phase::Down, "down"), (Phase::Up, "up")];

/// Measures all.
pub fn measure(record: &mut Record) -> Result<()> {
    let (outcome, tally) = observe("passthrough")?;
    record.kernels(&outcome.kernels);
    exits(record, "ne2000.passthrough", &tally, &findings(&outcome), &PHASES)?;

    let (outcome, tally) = observe("vpio")?;
    let found = findings(&outcome);
    exits(record, "ne2000.vpio", &tally, &found, &PHASES)?;
    shares(record, "ne2000.vpio", &tally, &found, &PHASES)?;
    agreement(record, "ne2000.vpio", &outcome, &tally, &found)?;

    for phase in PHASES {
        let (outcome, tally) = observe(&format!("vpio-contended-{}", phase.1))?;
        let found = findings(&outcome);
        exits(record, "ne2000.vpio.contended", &tally, &found, &[phase])?;
        contended_shares(record, phase.1, &outcome, &tally, &found)?;
        let handoffs = outcome.report.iter().flat_map(|report| &report.devices).map(|device| device.handoffs);
        let note = "how often the card changed hands in the run";
        record.row(
            format!("ne2000.vpio.contended.{}.handoffs", phase.1),
            handoffs.sum::<u64>() as f64,
            "handoffs",
            note,
        );
        agreement(record, &format!("ne2000.vpio.contended.{}", phase.1), &outcome, &tally, &found)?;
    }

    let (found, tally) = kvm(record)?;
    exits(record, "kvm.ne2000", &tally, &found, &PHASES)?;
    for (_, direction) in PHASES {
        for (peer, name) in [("kvm.ne2000", "kvm"), ("ne2000.passthrough", "passthrough")] {
            let value = |who: &str| record.value(&format!("{who}.{direction}.exits_per_packet"));
            if let (Some(ours), Some(theirs)) = (value("ne2000.vpio"), value(peer)) {
                let id = format!("ne2000.vpio.{direction}.exits_ratio_to_{name}");
                record.row(
                    id,
                    ours / theirs,
                    "ratio",
                    format!("exits per packet, vpio by one guest / {peer}"),
                );
            }
        }
    }
    Ok(())
}

/// Runs `bench/NAME.toml` and counts from outside.
fn observe(name: &str) -> Result<(Outcome, Tally)> {
    let reader = Reader::start(&scratch()?, REGION)?;
    let ran = sluice(name, false, reader.arguments(true));
    let tally = reader.finish();
    Ok((ran?.1, tally?))
}

/// The same guest under KVM.
fn kvm(record: &mut Record) -> Result<(Vec<Vec<Finding>>, Tally)> {
    let kernel = kernels::get("debian-6.1")?;
    let server = Server::start(0)?;
    let reader = Reader::start(&scratch()?, REGION)?;
    let peer =
        Peer { name: "ne2000-kvm".into(), icount: false, network: true, qemu_args: reader.arguments(false) };
    let guest = Guest {
        kernel: &kernel.image,
        initrd: Some(&rootfs::get("ne2000-test", &kernel)?),
        cmdline: format!(
            "console=ttyS0 quiet sluice.server=10.0.2.2:{} sluice.marks=1 sluice.job=transfer:down=1M,up=512K",
            server.address.port()
        ),
        memory: 192 << 20,
        arguments: "-machine q35 -netdev user,id=net0,net=10.0.3.0/24 \
                    -device ne2k_pci,netdev=net0,romfile="
            .into(),
    };
    let found = peer.run(&guest, "done", record);
    let tally = reader.finish();
    Ok((vec![found?], tally?))
}

fn findings(outcome: &Outcome) -> Vec<Vec<Finding>> {
    outcome.guests.iter().map(|guest| guest.findings.clone()).collect()
}

fn value<'a>(finding: &'a Finding, key: &str) -> Option<&'a str> {
    finding.iter().find(|pair| pair.0 == key).map(|pair| pair.1.as_str())
}

/// Frames that all guests sent and received between their marks, by their own count.
fn packets(guests: &[Vec<Finding>], direction: &str) -> Result<f64> {
    let at = |findings: &[Finding], moment: &str| {
        let moment = format!("{direction}-{moment}");
        let finding = findings.iter().find(|finding| value(finding, "at") == Some(&moment))?;
        let count = |key| value(finding, key)?.parse::<u64>().ok();
        Some(count("tx_packets")? + count("rx_packets")?)
    };
    let count = |findings: &Vec<Finding>| at(findings, "end")?.checked_sub(at(findings, "begin")?);
    let each: Option<Vec<u64>> = guests.iter().map(count).collect();
    let sum: u64 = each.context("a guest did not report its packets")?.iter().sum();
    Ok(sum.max(1) as f64)
}

/// The card's ports as the guests see them.
fn region(guests: &[Vec<Finding>]) -> Result<RangeInclusive<u16>> {
    let text = guests.iter().flatten().find_map(|finding| value(finding, "region"));
    let parse = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    text.and_then(|text| text.split_once('-'))
        .and_then(|(first, last)| Some(parse(first)?..=parse(last)?))
        .context("a guest did not report the card's ports")
}

/// All exits per packet, whatever the NIC.
pub(super) fn all_exits(
    record: &mut Record,
    who: &str,
    tally: &Tally,
    guests: &[Vec<Finding>],
    phases: &[(Phase, &str)],
) -> Result<()> {
    for (phase, direction) in phases {
        let counts = tally.phase(*phase);
        let packets = packets(guests, direction)?;
        let note =
            format!("all {} exits during the transfer / {packets} frames sent and received", counts.exits);
        record.row(
            format!("{who}.{direction}.exits_per_packet"),
            counts.exits as f64 / packets,
            "exits/packet",
            note,
        );
    }
    Ok(())
}

fn exits(
    record: &mut Record,
    who: &str,
    tally: &Tally,
    guests: &[Vec<Finding>],
    phases: &[(Phase, &str)],
) -> Result<()> {
    all_exits(record, who, tally, guests, phases)?;
    let ports = region(guests)?;
    for (phase, direction) in phases {
        let packets = packets(guests, direction)?;
        let nic = tally.phase(*phase).port_exits(&ports);
        let note = format!("{nic} of them by accesses to the card");
        record.row(
            format!("{who}.{direction}.nic_exits_per_packet"),
            nic as f64 / packets,
            "exits/packet",
            note,
        );
    }
    Ok(())
}

/// Hooked accesses in elements and in instructions, and what they are shares of.
fn hooked(counts: &Counts, ports: &RangeInclusive<u16>) -> [(u64, u64); 2] {
    let instructions = counts.port_exits(ports);
    let elements = instructions + counts.further_elements;
    [(elements, elements + counts.direct_elements), (instructions, instructions + counts.direct_instructions)]
}

fn shares(
    record: &mut Record,
    who: &str,
    tally: &Tally,
    guests: &[Vec<Finding>],
    phases: &[(Phase, &str)],
) -> Result<()> {
    let ports = region(guests)?;
    for (phase, direction) in phases {
        let counts = tally.phase(*phase);
        for ((hooked, all), convention) in
            hooked(&counts, &ports).into_iter().zip(["elements", "instructions"])
        {
            let note = match convention {
                "elements" => "accesses as the device sees them; aim: under 3 %; paper: 28.6 to 34.8 %",
                _ => "a whole rep is one access",
            };
            let note = format!("{hooked} of {all}, counted from outside; {note}");
            let share = 100.0 * hooked as f64 / all.max(1) as f64;
            record.row(format!("{who}.{direction}.hooked_share_{convention}"), share, "%", note);
        }
    }
    Ok(())
}

/// What all guests' shares of the device come to.
#[derive(Default)]
struct Ours {
    instructions: u64,
    elements: u64,
    waits: u64,
}

fn ours(outcome: &Outcome) -> Result<Ours> {
    let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
    let mut sum = Ours::default();
    for share in report.devices.iter().flat_map(|device| &device.shares) {
        sum.instructions += share.hooked_instructions;
        sum.elements += share.hooked_elements;
        sum.waits += share.waits;
    }
    Ok(sum)
}

/// Shares of a whole run in which a hooked `rep` is answered from the hypervisor's own copy of the card's
/// memory: nobody outside sees how many elements it had, so that number is our counter's.
fn contended_shares(
    record: &mut Record,
    direction: &str,
    outcome: &Outcome,
    tally: &Tally,
    guests: &[Vec<Finding>],
) -> Result<()> {
    let total = tally.total();
    let [_, (hooked, all)] = hooked(&total, &region(guests)?);
    let elements = ours(outcome)?.elements;
    let all_elements = elements + total.direct_elements;
    for (convention, hooked, all, note) in [
        ("elements", elements, all_elements, "hooked ones by our counters, the others from outside"),
        ("instructions", hooked, all, "from outside; a whole rep is one access"),
    ] {
        let share = 100.0 * hooked as f64 / all.max(1) as f64;
        let note = format!("{hooked} of {all} in the whole run; {note}");
        record.row(format!("ne2000.vpio.contended.{direction}.hooked_share_{convention}"), share, "%", note);
    }
    Ok(())
}

/// How our own counters of a whole run compare with what was seen from outside.
fn agreement(
    record: &mut Record,
    who: &str,
    outcome: &Outcome,
    tally: &Tally,
    guests: &[Vec<Finding>],
) -> Result<()> {
    let ours = ours(outcome)?;
    let total = tally.total();
    let [_, (outside, _)] = hooked(&total, &region(guests)?);
    // An access that has to wait for the card exits, and exits again when its guest has it.
    let note = format!(
        "hooked accesses of the whole run: {} by our counters, and {} that waited and were repeated; \
         from outside {outside}",
        ours.instructions, ours.waits
    );
    record.row(
        format!("{who}.counter_agreement"),
        ratio(ours.instructions + ours.waits, outside),
        "ratio",
        note,
    );
    let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
    let ours: u64 = report.domains.iter().flat_map(|domain| &domain.exits).map(|count| count.value).sum();
    let note = format!("exits of the whole run: our counters {ours}, from outside {}", total.exits);
    record.row(format!("{who}.exit_counter_agreement"), ratio(ours, total.exits), "ratio", note);
    Ok(())
}

fn ratio(a: u64, b: u64) -> f64 {
    if a == b { 1.0 } else { a as f64 / b.max(1) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::parse_finding;

    #[test]
    fn packets_are_those_between_the_marks() {
        let lines = [
            "SLUICE-RESULT region=0x000000000000c000-0x000000000000c01f",
            "SLUICE-RESULT at=up-begin rx_packets=10 tx_packets=5",
            "SLUICE-RESULT at=up-end rx_packets=30 tx_packets=45",
        ];
        let guests = [lines.iter().filter_map(|line| parse_finding(line)).collect()];
        assert_eq!(packets(&guests, "up").unwrap(), 60.0);
        assert!(packets(&guests, "down").is_err());
        assert_eq!(region(&guests).unwrap(), 0xc000..=0xc01f);
    }
}
