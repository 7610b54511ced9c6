//! The peers of an engine: KVM with vhost-net and Xen with netback serve the same guests, with the same load, and ours are measured beside them
//! in the same run.
//!
//! A peer's machine has one processor, ours has one more for the engine: counts are sums over all processors.

use super::plan::{PEERS, Peer, Plan};
use super::{Bench, Load, Measured, SERVED, kvm, many, rows, vif, xen};
use crate::bench::note;
use crate::bench::plot::{self, Panel};
use crate::bench::record::{Aim, Record};
use crate::server::Server;
use anyhow::Result;

/// Names of what [`measure`] can do.
pub const PART: &str = "peers";

/// What one guest does with the wire, and two with each other.
const LOADS: [Load; 2] = [Load::Net, Load::Inter];

/// Guests of which two talk: each takes its time to boot.
const COUNTS: [usize; 3] = [2, 8, 32];

fn run(bench: &Bench, peer: Peer, plan: &Plan, record: &mut Record) -> Result<Measured> {
    match peer {
        Peer::Kvm => kvm::run(bench, plan, record),
        Peer::Xen => xen::run(bench, plan, record),
    }
}

/// Measures a load under a peer.
pub fn load(bench: &Bench, peer: Peer, load: Load, record: &mut Record) -> Result<()> {
    let server = Server::start(0)?;
    let words = format!("sluice.server=10.0.2.2:{} ", server.address.port());
    let measured = run(bench, peer, &Plan::of(load, peer.name(), &words), record)?;
    rows::shares(record, peer.prefix(), load, &measured)
}

/// Measures what is wanted: ours only if no other part has.
pub fn measure(bench: &Bench, record: &mut Record) -> Result<()> {
    let wants = |who: &str, piece: &str| {
        bench.parts.wants(PART, Some(who)) || bench.parts.wants(PART, Some(&format!("{who}.{piece}")))
    };
    for of in LOADS {
        let piece = of.name();
        if wants("engine", piece) && !bench.parts.wants(SERVED[0], Some(piece)) {
            one(bench, record, "engine", piece, &|record| vif::load(bench, of, &vif::ENGINE, record));
        }
        for peer in PEERS.into_iter().filter(|peer| wants(peer.name(), piece)) {
            one(bench, record, peer.name(), piece, &|record| load(bench, peer, of, record));
        }
    }
    for guests in COUNTS {
        let piece = guests.to_string();
        if wants("engine", &piece) && !bench.parts.wants(many::PART, Some(&piece)) {
            one(bench, record, "engine", &piece, &|record| many::engine(bench, record, guests));
        }
        for peer in PEERS.into_iter().filter(|peer| wants(peer.name(), &piece)) {
            one(bench, record, peer.name(), &piece, &|record| talking(bench, peer, guests, record));
        }
    }
    many::figures(record);
    figures(record)
}

/// Measures one piece.
fn one(bench: &Bench, record: &mut Record, who: &str, piece: &str, run: &dyn Fn(&mut Record) -> Result<()>) {
    let what = format!("{PART}, {who}, {piece}");
    bench.parts.say(&what);
    let result = run(record);
    note(record, &what, result);
}

/// Measures guests of which two talk.
fn talking(bench: &Bench, peer: Peer, guests: usize, record: &mut Record) -> Result<()> {
    let measured = run(bench, peer, &many::plan(peer, guests), record)?;
    let prefix = format!("{}.{guests}", peer.prefix());
    many::shares(record, &many::Served::new(prefix, "driver", guests), &measured)
}

/// Systems with the same loads: as they are called in pictures, and how their rows begin.
const SYSTEMS: [(&str, &str); 4] = [
    ("vif", vif::ENGINE.prefix()),
    ("driver-domain", vif::DOMAIN.prefix()),
    ("kvm", Peer::Kvm.prefix()),
    ("xen", Peer::Xen.prefix()),
];

/// What ours takes of what a peer takes, and the picture.
fn figures(record: &mut Record) -> Result<()> {
    alone(record);
    for peer in PEERS {
        for name in ["rx", "tx", "inter"] {
            ratio(record, peer, name, &format!("{name}.total.instructions_per_kb"), true);
        }
        ratio(record, peer, "1.tcp", "1.tcp.instructions", true);
        for guests in COUNTS {
            for what in ["rtt", "tcp"] {
                let name = format!("{guests}.{what}");
                ratio(record, peer, &name, &format!("{name}.instructions"), what == "tcp");
            }
        }
    }
    let mut shown = vec![("one guest and the wire, instructions per KB".to_owned(), "1.tcp".to_owned())];
    for (what, title) in
        [("rtt", "a message there and back, instructions"), ("tcp", "guest to guest, instructions per KB")]
    {
        let of = |guests| (format!("{title}; of {guests} guests two talk"), format!("{guests}.{what}"));
        shown.extend(COUNTS.map(of));
    }
    let panel = |(title, name): (String, String)| {
        let bar = |(label, prefix): (&str, &str)| {
            Some((label.to_owned(), record.value(&format!("{prefix}.{name}.instructions"))?))
        };
        let bars: Vec<(String, f64)> = SYSTEMS.into_iter().filter_map(bar).collect();
        (!bars.is_empty()).then_some(Panel { title, bars })
    };
    let panels: Vec<Panel> = shown.into_iter().filter_map(panel).collect();
    let title = "Network cards by an engine, a driver domain, KVM and Xen: what the whole machine executes";
    plot::write("vif-peers", title, &panels)
}

/// One guest's `tcp`: as much received from the wire as sent to it.
fn alone(record: &mut Record) {
    for (_, prefix) in SYSTEMS {
        let of = |name: &str| record.value(&format!("{prefix}.{name}.total.instructions_per_kb"));
        if let (Some(rx), Some(tx)) = (of("rx"), of("tx")) {
            let note = "one guest and the wire, as many KB received as sent; the mean of both";
            record.row(format!("{prefix}.1.tcp.instructions"), (rx + tx) / 2.0, "instructions/KB", note);
        }
    }
}

/// A row of ours to a peer's. What is asked for is more data for an instruction than KVM moves.
fn ratio(record: &mut Record, peer: Peer, name: &str, row: &str, is_data: bool) {
    let of = |prefix: &str| record.value(&format!("{prefix}.{row}"));
    if let (Some(ours), Some(theirs)) = (of(vif::ENGINE.prefix()), of(peer.prefix())) {
        let aim = (is_data && peer == Peer::Kvm).then_some(Aim::Under(1.0));
        let note = "instructions of the whole machine, the engine's machine to the peer's";
        let id = format!("vif.{name}.ratio_to_{}", peer.name());
        record.aimed(id, ours / theirs, "ratio", aim, note);
    }
}
