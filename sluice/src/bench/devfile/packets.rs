//! What a frame takes that a program (daemons/sluice-files) sends by netmap, in batches of several sizes: without a hypervisor, in the domain that has the
//! card, and in a guest that has netmap's device file, by the queue alone and with the lane.
//!
//! The card's own work is none of these instructions: QEMU's takes all frames at once, while the driver tells it of them. So there is no rate.
//!
//! The source is Paradice, section 6.1.2, whose pkt-gen sends as many frames of 64 bytes by each poll.

use super::netmap;
use super::start::StartGuest;
use crate::bench::driver::check;
use crate::bench::marks::{Entries, Mark, cost, marks};
use crate::bench::peer::{self, Peer};
use crate::bench::plot::{self, Panel};
use crate::bench::record::Record;
use crate::bench::{Clock, kernel, quoted, run_watched, scratch};
use crate::kernels::{self, Kernel};
use crate::outcome::Finding;
use crate::rootfs::{self, Additions};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Frames that are sent by one poll, as the program's line in guest/rootfs/init has them.
const BATCHES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Where and how it is done: without a hypervisor, and then in this order.
const NATIVE: &str = "native";
const PLACES: [(&str, usize); 3] = [("assigned", 0), ("interrupt", 1), ("poll", 1)];

/// How near a batch is to be, in instructions.
const NEAR: f64 = 1.1;

/// Memory of netmap's that has room for a ring of 512 slots to send from, as one poll is to send 256 frames, and little else: all of it is mapped.
const OPTIONS: &str =
    "e1000.TxDescriptors=512 netmap.if_num=10 netmap.ring_num=16 netmap.ring_size=12288 netmap.buf_num=2048";

/// An EtherType of the program's frames, in the two bytes behind the addresses, and their length.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const FRAME: u32 = 60;

/// Measures it, if there is a checkout of netmap.
pub fn measure(record: &mut Record) -> Result<()> {
    let Some(checkout) = netmap::UPSTREAM.checkout()? else {
        let how = netmap::UPSTREAM.how();
        crate::output::note(format_args!("  netmap is left out, since Debian has none: {how}"));
        return Ok(());
    };
    let kernel = kernels::get("debian-6.1")?;
    let more = Additions { modules: netmap::modules(&checkout, &kernel)?, ..Additions::default() };
    let server = rootfs::get_with("file-server", &kernel, &more)?;
    record.version("netmap", &checkout.version());
    native(record, &kernel, &server)?;
    with_sluice(record, &kernel, &server)?;
    figures(record)
}

/// Arguments for QEMU by which marks are counted and frames kept, and the files that they come to be in.
fn watched(name: &str) -> Result<(PathBuf, PathBuf, Vec<String>)> {
    let (log, mut arguments) = super::counted(name)?;
    let frames = scratch()?.join(format!("{name}.pcap"));
    let dump = format!("filter-dump,id=frames,netdev=net0,maxlen=64,file={}", frames.display());
    arguments.extend(["-object".to_owned(), dump]);
    Ok((log, frames, arguments))
}

fn native(record: &mut Record, kernel: &Kernel, initrd: &Path) -> Result<()> {
    let (log, frames, arguments) = watched("devfile-netmap-native")?;
    let image = kernel::unpacked(kernel)?;
    let name = "devfile-netmap-native".to_owned();
    let peer = Peer { name, clock: Clock::Instructions, network: false, qemu_args: arguments };
    let guest = peer::Guest {
        kernel: &image,
        initrd: Some(initrd),
        cmdline: format!("console=ttyS0 quiet {OPTIONS} sluice.job=local:netmap=eth0"),
        memory: 0,
        arguments: "-netdev user,id=net0 -device e1000,netdev=net0,romfile=".to_owned(),
    };
    let findings = peer.run_native(&guest, "done")?;
    let marks = marks(&super::read(&log)?, Entries::None);
    rows(record, NATIVE, &marks, &findings)?;
    check_frames(&frames, &[findings])
}

fn with_sluice(record: &mut Record, kernel: &Kernel, server: &Path) -> Result<()> {
    let (log, frames, arguments) = watched("devfile-netmap")?;
    let text = configuration(kernel, server)?;
    let mut starts = StartGuest::new();
    let (_, outcome) = run_watched("devfile-netmap", &text, Clock::Instructions, arguments, &mut starts)?;
    check(&outcome)?;
    record.kernels(&outcome.kernels);
    let marks = marks(&super::read(&log)?, Entries::Vmruns);
    ensure!(marks.len() == 3 * BATCHES.len() * PLACES.len(), "{} marks were set", marks.len());
    for ((place, domain), marks) in PLACES.into_iter().zip(marks.chunks_exact(3 * BATCHES.len())) {
        let guest = outcome.guests.get(domain).context("a domain is missing")?;
        rows(record, place, marks, &guest.findings)?;
    }
    let findings: Vec<_> = outcome.guests.into_iter().map(|guest| guest.findings).collect();
    check_frames(&frames, &findings)
}

/// A domain with the card and netmap, and a guest that has netmap's file, and does not start yet.
fn configuration(kernel: &Kernel, server: &Path) -> Result<String> {
    let image = quoted(&kernel::unpacked(kernel)?);
    let (server, initrd) = (quoted(server), quoted(&rootfs::get("device-files", kernel)?));
    Ok(format!(
        "[machine]\nmemory = \"1536MiB\"\ncpus = 2\n\
         [device.nic]\npci = \"8086:100e\"\nqemu = \"e1000\"\nnet = \"user\"\n\
         [domain.driver]\nkernel = {image}\ninitrd = {server}\nmemory = \"256MiB\"\ncpus = [0]\n\
         cmdline = \"console=ttyS0 quiet {OPTIONS} sluice.job=serve:netmap=eth0\"\n\
         devices = [{{ use = \"nic\", mode = \"passthrough\" }}]\n\
         [domain.guest]\nkernel = {image}\ninitrd = {initrd}\nmemory = \"256MiB\"\ncpus = [1]\ngrants = \"pages\"\npaused = true\n\
         cmdline = \"console=ttyS0 quiet sluice.job=files:random=0,netmap=eth0\"\n\
         devices = [{{ mode = \"devfile\", by = \"driver\", source = \"/dev/netmap\" }}]\n"
    ))
}

fn rows(record: &mut Record, place: &str, marks: &[Mark], findings: &[Finding]) -> Result<()> {
    ensure!(marks.len() == 3 * BATCHES.len(), "{} marks were set in {place}", marks.len());
    for (batch, set) in BATCHES.into_iter().zip(marks.as_chunks::<3>().0) {
        let counts = super::said(findings, &format!("packets_{batch}"));
        let (few, many) = counts.with_context(|| format!("{place} did not report batches of {batch}"))?;
        let cost = cost(*set, few, many);
        let note = format!(
            "of the whole machine without loops that wait, per frame of 64 bytes, at most {batch} by each poll; what the card does takes none here; {} more",
            cost.operations
        );
        record.row(format!("packets.{batch}.{place}.instructions"), cost.instructions, "instructions", note);
        if place != NATIVE {
            let note = "entries into guests per frame: VMRUN";
            record.row(format!("packets.{batch}.{place}.exits"), cost.exits, "exits", note);
        }
    }
    Ok(())
}

/// As many frames left the card as programs say that they sent.
fn check_frames(file: &Path, findings: &[Vec<Finding>]) -> Result<()> {
    let sent: f64 =
        findings.iter().flatten().filter_map(|finding| super::number(finding, "packets_sent")).sum();
    let bytes = std::fs::read(file).with_context(|| format!("QEMU did not write {}", file.display()))?;
    let left = frames(&bytes).context("what QEMU kept of frames cannot be read")?;
    ensure!(sent > 0.0 && left as f64 == sent, "{left} frames left the card, and {sent} were sent");
    std::fs::remove_file(file)?;
    Ok(())
}

/// How many of the frames in a file are the program's, by the format of libpcap (pcap-savefile(5)).
fn frames(file: &[u8]) -> Option<usize> {
    let mut rest = file.get(24..)?;
    let mut found = 0;
    while !rest.is_empty() {
        let (header, behind) = rest.split_at_checked(16)?;
        let [kept, whole] =
            [8, 12].map(|at| header[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes)));
        let (frame, next) = behind.split_at_checked(kept? as usize)?;
        found += usize::from(whole? == FRAME && frame.get(12..14) == Some(&ETHERTYPE));
        rest = next;
    }
    Some(found)
}

/// Ratios, the smallest batch that is near enough, and the picture.
fn figures(record: &mut Record) -> Result<()> {
    let places: Vec<&str> = [NATIVE].into_iter().chain(PLACES.map(|(place, _)| place)).collect();
    let mut near: [Vec<bool>; 2] = [Vec::new(), Vec::new()];
    let mut panels = Vec::new();
    for batch in BATCHES {
        let value = |place: &str| record.value(&format!("packets.{batch}.{place}.instructions"));
        let values: Vec<(&str, f64)> =
            places.iter().filter_map(|place| Some((*place, value(place)?))).collect();
        let of = |place: &str| values.iter().find(|value| value.0 == place).map(|value| value.1);
        for (number, way) in ["interrupt", "poll"].into_iter().enumerate() {
            for to in [NATIVE, "assigned"] {
                let Some((theirs, ours)) = of(to).zip(of(way)) else { continue };
                let note = "instructions of the whole machine without loops that wait, per frame of 64 bytes";
                record.row(format!("packets.{batch}.{way}.ratio_to_{to}"), ours / theirs, "ratio", note);
                if to == NATIVE {
                    near[number].push(ours <= theirs * NEAR);
                }
            }
        }
        let bars = values.iter().map(|(place, value)| ((*place).to_owned(), *value)).collect();
        panels.push(Panel {
            title: format!("at most {batch} frames by each poll, instructions per frame"),
            bars,
        });
    }
    for (way, near) in ["interrupt", "poll"].into_iter().zip(near) {
        let smallest = smallest(&near).map_or(0, |number| BATCHES[number]);
        let note = "frames by each poll from which on a frame takes at most 1.1 times the instructions that it takes without a hypervisor; 0: none that was measured";
        record.row(
            format!("packets.smallest_batch_within_10_percent.{way}"),
            f64::from(smallest),
            "frames",
            note,
        );
    }
    plot::write("devfile-netmap", "Frames that are sent by netmap, in batches", &panels)
}

/// The first from which on all are near.
fn smallest(near: &[bool]) -> Option<usize> {
    let behind = near.iter().rposition(|near| !near).map_or(0, |last| last + 1);
    (behind < near.len()).then_some(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_batch_is_one_from_which_on_all_are_near() {
        assert_eq!(smallest(&[false, true, false, true, true]), Some(3));
        assert_eq!((smallest(&[true, true]), smallest(&[true, false]), smallest(&[])), (Some(0), None, None));
    }

    #[test]
    fn the_programs_frames_are_those_of_its_length_and_type() {
        let record = |whole: u32, kind: [u8; 2]| {
            let mut bytes = [0_u32, 0, 14, whole].map(u32::to_le_bytes).concat();
            bytes.extend([0; 12]);
            bytes.extend(kind);
            bytes
        };
        let mut file = vec![0; 24];
        file.extend(
            [record(60, ETHERTYPE), record(60, [8, 6]), record(61, ETHERTYPE), record(60, ETHERTYPE)]
                .concat(),
        );
        assert_eq!(frames(&file), Some(2));
        assert_eq!(frames(&file[..file.len() - 1]), None, "a frame was cut");
        assert_eq!(frames(&[0; 23]), None);
    }
}
