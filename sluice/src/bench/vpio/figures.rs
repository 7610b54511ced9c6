//! What rows come to when they are compared: ratios with their aims, tables on the screen, pictures.

use super::cards::{CARDS, Card};
use super::rows::{WAYS, WORKLOADS};
use crate::bench::plot::{self, Panel, short};
use crate::bench::record::{Aim, Record};
use crate::table::Table;
use anyhow::Result;

/// Ways to have a card, as columns, and how their rows begin: `CARD.mode` or `peer.CARD`.
const COLUMNS: [&str; 8] =
    ["native", "passthrough", "vpio", "vpio-symbiotic", "vpio-amd", "vpio-open", "emulated", "kvm"];
/// Those by virtual passthrough.
const VPIO: [&str; 4] = ["vpio", "vpio-symbiotic", "vpio-amd", "vpio-open"];

fn prefix(card: &Card, column: &str) -> String {
    match column {
        "native" | "kvm" => format!("{column}.{}", card.id),
        _ => format!("{}.{column}", card.id),
    }
}

/// Adds the rows that compare others.
pub fn ratios(record: &mut Record) {
    for card in &CARDS {
        exits(record, card);
        mirrored(record, card);
        throughput(record, card);
        aggregate(record, card);
    }
}

/// A row that is one divided by another, if both are known.
fn ratio(record: &mut Record, id: String, above: &str, below: &str, aim: Option<Aim>) {
    if let (Some(value), Some(base)) = (record.value(above), record.value(below))
        && base > 0.0
    {
        record.aimed(id, value / base, "ratio", aim, format!("{above} / {below}"));
    }
}

/// A vetted card should cost its only user little more than one of its own, and without an IOMMU a part of an emulated one.
fn exits(record: &mut Record, card: &Card) {
    for (way, ..) in WAYS {
        for mode in VPIO {
            let who = format!("{}.{mode}.{way}", card.id);
            // Without an IOMMU what masters the bus must be vetted at each of its doorbells.
            let is_shared = matches!(mode, "vpio" | "vpio-symbiotic");
            let aim = (!card.masters || !is_shared).then_some(Aim::AtMost(1.2));
            ratio(
                record,
                format!("{who}.all_exits_ratio_to_passthrough"),
                &format!("{who}.all_exits_per_packet"),
                &format!("{}.passthrough.{way}.all_exits_per_packet", card.id),
                aim,
            );
            ratio(
                record,
                format!("{who}.nic_exits_ratio_to_emulated"),
                &format!("{who}.nic_exits_per_packet"),
                &format!("{}.emulated.{way}.nic_exits_per_packet", card.id),
                // There only writes need to exit.
                (card.masters && is_shared).then_some(Aim::AtMost(0.45)),
            );
        }
    }
    let limit = if card.masters { 0.5 } else { 0.3 };
    ratio(
        record,
        format!("{}.vpio.contended.nic_exits_ratio_to_emulated", card.id),
        &format!("{}.vpio.contended.nic_exits_per_packet", card.id),
        &format!("{}.emulated.contended.nic_exits_per_packet", card.id),
        Some(Aim::AtMost(limit)),
    );
}

/// Where guests read their registers in a mirror, the share of accesses that exit is taken from the same work with an
/// emulated card, where all exit.
fn mirrored(record: &mut Record, card: &Card) {
    for mode in VPIO {
        let direct = record.value(&format!("{}.{mode}.tx.direct_accesses_per_packet", card.id));
        if direct.is_none_or(|direct| direct > 0.0) {
            continue;
        }
        for (workload, _, about) in WORKLOADS {
            let exits =
                |who: &str| record.value(&format!("{}.{who}.{workload}.nic_exits_per_packet", card.id));
            let (Some(hooked), Some(all)) = (exits(mode), exits("emulated")) else { continue };
            for convention in ["elements", "instructions"] {
                let id = format!("{}.{mode}.{workload}.hooked_share_{convention}", card.id);
                if all > 0.0 {
                    let note = format!(
                        "{hooked} exits per packet of {all} accesses, which all exit of an emulated card; the others read a \
                         mirror; each is an instruction and an element; {about}; the paper: 15.6 to 34.8 %"
                    );
                    record.row(id, 100.0 * hooked / all, "%", note);
                }
            }
        }
    }
}

/// Data per instruction of the machine, both ways together.
fn throughput(record: &mut Record, card: &Card) {
    let cost = |record: &Record, column: &str| {
        let of = |way: &str| record.value(&format!("{}.{way}.instructions_per_mib", prefix(card, column)));
        Some(of("tx")? + of("rx")?)
    };
    let Some(base) = cost(record, "passthrough") else { return };
    for column in COLUMNS.into_iter().filter(|column| *column != "passthrough") {
        if let Some(cost) = cost(record, column) {
            let aim = column.starts_with("vpio").then_some(Aim::AtLeast(0.9));
            let note = "data per instruction of the whole machine, an upload and a download, compared with passthrough";
            record.aimed(
                format!("throughput.{}.{column}.ratio_to_passthrough", card.id),
                base / cost,
                "ratio",
                aim,
                note,
            );
        }
    }
}

fn aggregate(record: &mut Record, card: &Card) {
    for count in [2, 4, 8] {
        let id = |count: u8, what: &str| format!("fairness.{}.{count}.{what}", card.id);
        let (above, below) = (id(count, "throughput"), id(1, "throughput"));
        ratio(record, id(count, "aggregate"), &above, &below, Some(Aim::AtLeast(0.8)));
    }
}

/// What tables and pictures show: a title, a file, and the end of the rows' names.
const FIGURES: [(&str, &str, &str); 4] = [
    ("Exits by accesses to the card, per packet (figures 7, 8)", "vpio-nic-exits", "nic_exits_per_packet"),
    ("All exits, per packet", "vpio-all-exits", "all_exits_per_packet"),
    ("Instructions of exit handling, per packet (figure 10)", "vpio-handling", "handling_per_packet"),
    ("Instructions of the whole machine, per MiB (figure 12)", "vpio-instructions", "instructions_per_mib"),
];

/// For people: a line per card and way, a column for each way to have it.
pub fn tables(record: &Record) -> Result<()> {
    for (title, _, what) in FIGURES {
        let mut table = Table::new(&[&["", ""][..1], &COLUMNS].concat());
        for card in &CARDS {
            for (way, ..) in WAYS {
                let cell = |column: &&str| {
                    let value = record.value(&format!("{}.{way}.{what}", prefix(card, column)));
                    value.map_or_else(|| "-".to_owned(), short)
                };
                let cells: Vec<String> = COLUMNS.iter().map(cell).collect();
                if cells.iter().any(|cell| cell != "-") {
                    table.row([vec![format!("{} {way}", card.id)], cells].concat());
                }
            }
        }
        crate::output::print(format!("{title}\n{}\n", table.render()))?;
    }
    Ok(())
}

/// The same as pictures, and those that compare other things.
pub fn plots(record: &Record) -> Result<()> {
    for (title, name, what) in FIGURES {
        let mut panels = Vec::new();
        for card in &CARDS {
            for (way, ..) in WAYS {
                let bar = |column: &&str| {
                    let value = record.value(&format!("{}.{way}.{what}", prefix(card, column)))?;
                    Some(((*column).to_owned(), value))
                };
                panel(&mut panels, format!("{} {way}", card.id), COLUMNS.iter().filter_map(bar));
            }
        }
        plot::write(name, title, &panels)?;
    }
    let (mut shares, mut throughput, mut fairness, mut breakdown) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for card in &CARDS {
        let row = |label: String, id: String| Some((label, record.value(&id)?));
        for convention in ["elements", "instructions"] {
            let bars = VPIO.into_iter().flat_map(|mode| {
                ["ssh", "small", "large"].into_iter().filter_map(move |load| {
                    row(
                        format!("{mode} {load}"),
                        format!("{}.{mode}.{load}.hooked_share_{convention}", card.id),
                    )
                })
            });
            panel(&mut shares, format!("{}, {convention}, %", card.id), bars);
        }
        let bars = COLUMNS.into_iter().filter_map(|column| {
            row(column.to_owned(), format!("throughput.{}.{column}.ratio_to_passthrough", card.id))
        });
        panel(&mut throughput, card.id.to_owned(), bars);
        let bars = [2, 4, 8].into_iter().flat_map(|count| {
            ["jain", "aggregate"].into_iter().filter_map(move |what| {
                row(format!("{what}, {count} guests"), format!("fairness.{}.{count}.{what}", card.id))
            })
        });
        panel(&mut fairness, card.id.to_owned(), bars);
        for (way, ..) in WAYS {
            let bars = COLUMNS.into_iter().flat_map(|column| {
                [("guest", "guest"), ("card", "nic_handling"), ("all exits", "handling")]
                    .into_iter()
                    .filter_map(move |(label, what)| {
                        row(
                            format!("{column} {label}"),
                            format!("{}.{way}.{what}_per_packet", prefix(card, column)),
                        )
                    })
            });
            panel(&mut breakdown, format!("{} {way}", card.id), bars);
        }
    }
    plot::write("vpio-hooked-share", "Share of accesses to the card that exit (figure 9)", &shares)?;
    plot::write("vpio-throughput", "Data per instruction, to passthrough (figure 12)", &throughput)?;
    plot::write("vpio-fairness", "Guests that share a card by vpio", &fairness)?;
    plot::write("vpio-breakdown", "Instructions per packet: guest, and hypervisor (figure 11)", &breakdown)
}

fn panel(panels: &mut Vec<Panel>, title: String, bars: impl Iterator<Item = (String, f64)>) {
    let bars: Vec<(String, f64)> = bars.collect();
    if !bars.is_empty() {
        panels.push(Panel { title, bars });
    }
}
