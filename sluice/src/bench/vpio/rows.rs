//! Rows from counts.
//!
//! *tx* is a guest that uploads, *rx* one that downloads; what is acknowledged the other way belongs to them. A packet is a
//! frame that the guest's driver counted, in whichever direction.

use super::cards::Card;
use crate::bench::record::{Aim, Record};
use crate::bench::tally::{Around, Counts, PHASES, Phase, Regions, Tally};
use crate::bench::transfer;
use crate::outcome::{Guest, Outcome};
use anyhow::{Context, Result};

/// The two ways: name in rows, phase, its name in the guests' reports, and the guest's count of bytes.
pub const WAYS: [(&str, Phase, &str, &str); 2] =
    [("tx", Phase::Up, "up", "upload_bytes"), ("rx", Phase::Down, "down", "download_bytes")];

/// Workloads of the paper's figure 9, and the phases of ours.
pub const WORKLOADS: [(&str, &[Phase], &str); 3] = [
    ("ssh", &[Phase::Interactive], "200 lines of 40 bytes, each answered before the next"),
    ("small", &[Phase::Small], "16 downloads of 16 KiB, a connection each"),
    ("large", &[Phase::Up, Phase::Down], "an upload and a download"),
];

/// Exits and instructions per packet, and instructions per MiB.
pub fn transfers(record: &mut Record, who: &str, guests: &[Guest], tally: &Tally) -> Result<()> {
    let regions = transfer::regions(guests)?;
    for (way, phase, mark, bytes) in WAYS {
        let counts = tally.phase(phase);
        let frames = transfer::frames(guests, mark)?;
        let all = counts.all_exits();
        let nic = counts.device_exits(&regions);
        let id = |what: &str| format!("{who}.{way}.{what}");
        let mut per_packet = |what: &str, value: u64, unit, note: String| {
            record.row(id(what), value as f64 / frames.all(), unit, format!("{note} / {frames}"));
        };
        let (exits, instructions) = ("exits/packet", "instructions/packet");
        per_packet(
            "nic_exits_per_packet",
            nic.count,
            exits,
            format!("{} exits by accesses to the card", nic.count),
        );
        per_packet("all_exits_per_packet", all.count, exits, format!("all {} exits", all.count));
        let direct =
            format!("{} accesses that the guest made itself, a rep as one", counts.direct_instructions);
        per_packet("direct_accesses_per_packet", counts.direct_instructions, "accesses/packet", direct);
        let note = format!("{} instructions from an exit to the next entry", all.instructions);
        per_packet("handling_per_packet", all.instructions, instructions, note);
        let note = format!("{} of them after accesses to the card", nic.instructions);
        per_packet("nic_handling_per_packet", nic.instructions, instructions, note);
        let note = format!("{} instructions of the guest", counts.own_instructions);
        per_packet("guest_per_packet", counts.own_instructions, instructions, note);
        if nic.count > 0 {
            let value = nic.instructions as f64 / nic.count as f64;
            let note = "from the exit of an access to the card to the next entry, on average";
            record.row(id("hooked_access"), value, "instructions", note);
        }
        let moved: u64 = guests.iter().filter_map(|guest| guest.sum(bytes)).sum();
        let mib = moved as f64 / f64::from(1 << 20);
        if mib > 0.0 {
            let note = format!("of the whole machine, for {moved} bytes");
            let value = counts.instructions() as f64 / mib;
            record.row(id("instructions_per_mib"), value, "instructions/MiB", note);
        }
    }
    Ok(())
}

/// Exits per packet of several guests at once, both ways together.
pub fn contended(record: &mut Record, who: &str, guests: &[Guest], tally: &Tally) -> Result<()> {
    let regions = transfer::regions(guests)?;
    let mut counts = Counts::default();
    let mut packets = 0.0;
    for (_, phase, mark, _) in WAYS {
        counts.add(&tally.phase(phase));
        packets += transfer::frames(guests, mark)?.all();
    }
    for (what, exits) in [("nic", counts.device_exits(&regions)), ("all", counts.all_exits())] {
        let note =
            format!("{} exits / {packets} frames of both, uploads and then downloads at once", exits.count);
        let id = format!("{who}.contended.{what}_exits_per_packet");
        record.row(id, exits.count as f64 / packets, "exits/packet", note);
        if what == "all" {
            let value = exits.instructions as f64 / packets;
            let note = format!("{} instructions from an exit to the next entry", exits.instructions);
            record.row(format!("{who}.contended.handling_per_packet"), value, "instructions/packet", note);
        }
    }
    Ok(())
}

/// Hooked accesses in elements and in instructions, and what they are shares of.
fn hooked(counts: &Counts, regions: &Regions) -> [(u64, u64); 2] {
    let instructions = counts.device_exits(regions).count;
    let elements = instructions + counts.further_elements;
    [(elements, elements + counts.direct_elements), (instructions, instructions + counts.direct_instructions)]
}

/// Which share of the accesses to the card exits. What a guest reads in a mirror of the registers is seen by
/// nobody outside: there only the exits become rows, which [`figures`](super::figures) compares with those of an emulated
/// card, where every access exits.
pub fn workloads(record: &mut Record, who: &str, guests: &[Guest], tally: &Tally) -> Result<()> {
    let regions = transfer::regions(guests)?;
    for (workload, phases, about) in WORKLOADS {
        let mut counts = Counts::default();
        let mut packets = 0.0;
        for (phase, mark) in PHASES.iter().filter(|(phase, _)| phases.contains(phase)) {
            counts.add(&tally.phase(*phase));
            packets += transfer::frames(guests, mark)?.all();
        }
        let exits = counts.device_exits(&regions).count;
        let note = format!("{exits} exits by accesses to the card / {packets} frames; {about}");
        let id = format!("{who}.{workload}.nic_exits_per_packet");
        record.row(id, exits as f64 / packets, "exits/packet", note);
        if counts.direct_elements == 0 {
            continue;
        }
        let conventions = [("elements", "as the card sees them"), ("instructions", "a whole rep is one")];
        for ((hooked, all), (convention, meaning)) in hooked(&counts, &regions).into_iter().zip(conventions) {
            let share = 100.0 * hooked as f64 / all.max(1) as f64;
            let note = format!("{hooked} of {all} accesses, {meaning}; {about}; the paper: 15.6 to 34.8 %");
            let id = format!("{who}.{workload}.hooked_share_{convention}");
            record.row(id, share, "%", note);
        }
    }
    Ok(())
}

/// How our own counters of a whole run compare with what was seen from outside.
pub fn agreement(record: &mut Record, who: &str, outcome: &Outcome, tally: &Tally) -> Result<()> {
    let report = outcome.report.as_ref().context("the hypervisor sent no report")?;
    let shares = report.devices.iter().flat_map(|device| &device.shares);
    let (hooked, waits) =
        shares.fold((0, 0), |sum, share| (sum.0 + share.hooked_instructions, sum.1 + share.waits));
    let total = tally.total();
    let outside = total.device_exits(&transfer::regions(&outcome.guests)?).count;
    // An access that has to wait for the card exits, and exits again when its guest has it.
    let note = format!(
        "hooked accesses of the whole run: {hooked} by our counters, and {waits} that waited and were repeated; \
         from outside {outside}"
    );
    record.row(format!("{who}.counter_agreement"), ratio(hooked + waits, outside), "ratio", note);
    let ours: u64 = report.domains.iter().flat_map(|domain| &domain.exits).map(|count| count.value).sum();
    let seen = total.all_exits().count;
    let note = format!("exits of the whole run: our counters {ours}, from outside {seen}");
    record.row(format!("{who}.exit_counter_agreement"), ratio(ours, seen), "ratio", note);
    Ok(())
}

/// A call that takes fewer instructions found that nothing was to be handed over.
const LEAST_HANDOFF: u64 = 500;

/// What a change of hands and a step of the model cost, as far as the run had any.
pub fn functions(record: &mut Record, card: &Card, outcome: &Outcome, tally: &Tally, during: &str) {
    let handoffs: u64 =
        outcome.report.iter().flat_map(|report| &report.devices).map(|one| one.handoffs).sum();
    for (name, about, least, aim) in [
        ("model_update", "steps of the model", 1, Some(Aim::Under(60.0))),
        (
            "handoff",
            "changes of hands: what the holder had is saved, what the next has is loaded",
            LEAST_HANDOFF,
            None,
        ),
    ] {
        if name == "handoff" && handoffs == 0 {
            continue;
        }
        let calls = tally.function(name).iter().copied().filter(|call| *call >= least).collect();
        median(record, format!("{}.{name}", card.id), calls, (about, during), aim);
        if name == "handoff" {
            let id = format!("{}.handoff_with_hooks", card.id);
            let exits = |fits: &dyn Fn(&Around) -> bool| {
                let around = tally.around(name).iter().filter(|around| around.call >= least && fits(around));
                around.map(|around| around.exit).collect()
            };
            let about = "exits during which the card changed hands, from the exit to the next entry: what set it off, the change itself, hooks, lines, who \
                         is woken, and what the next one's context does then";
            let aim = (!card.masters).then_some(Aim::Under(5000.0));
            median(record, id.clone(), exits(&|_| true), (about, during), aim);
            let about = "of these, after which the processor goes on with the same guest";
            median(record, format!("{id}.stays"), exits(&|around| !around.switches), (about, during), None);
            let about = "of these, by which the processor changes guests, too";
            median(record, format!("{id}.switches"), exits(&|around| around.switches), (about, during), None);
        }
    }
}

/// A row with the median of several counts, if there are any.
fn median(
    record: &mut Record,
    id: String,
    mut counts: Vec<u64>,
    (about, during): (&str, &str),
    aim: Option<Aim>,
) {
    counts.sort_unstable();
    let (Some(fewest), Some(most)) = (counts.first(), counts.last()) else { return };
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let note = format!("median of {} {about}; mean {mean:.0}, {fewest} to {most}; {during}", counts.len());
    record.aimed(id, counts[counts.len() / 2] as f64, "instructions", aim, note);
}

fn ratio(a: u64, b: u64) -> f64 {
    if a == b { 1.0 } else { a as f64 / b.max(1) as f64 }
}
