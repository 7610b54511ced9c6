//! The same guest with Linux alone on the machine, and under KVM with QEMU's card.

use super::cards::{CARDS, Card};
use super::{Bench, note, rows};
use crate::bench::peer::{Guest, Peer};
use crate::bench::record::Record;
use crate::bench::tally::{Reader, Tally};
use crate::bench::{Clock, plugin, scratch, transfer};
use crate::server::Server;
use anyhow::Result;

/// Memory of the guest.
const MEMORY: u64 = 192 << 20;

/// Measures every card that they can have.
pub fn measure(bench: &Bench, record: &mut Record) {
    for card in CARDS.iter().filter(|card| card.is_plain() && bench.wants("peers", card)) {
        for native in [true, false] {
            let what = format!("{} {}", card.id, if native { "native" } else { "under KVM" });
            bench.parts.say(&what);
            let result = one(bench, record, card, native);
            note(record, &what, result);
        }
    }
}

fn one(bench: &Bench, record: &mut Record, card: &Card, native: bool) -> Result<()> {
    let who = if native { "native" } else { "kvm" };
    let server = Server::start(0)?;
    // Every word of an NE2000's data is an exit of its own there.
    let bulk = if native || card.masters { card.bulk() } else { "256K" };
    let tally = if native { Tally::bare(card.region) } else { Tally::new(card.region) };
    let reader = Reader::start(&scratch()?, tally)?;
    let plugin = if native { bench.plugin.clone() } else { plugin::mended(&bench.plugin) };
    let peer = Peer {
        name: format!("vpio-{}-{who}", card.id),
        clock: Clock::Mixed,
        network: !native,
        qemu_args: reader.arguments(native, Some(&plugin)),
    };
    // Two networks inside each other need two ranges of addresses.
    let range = if native { "" } else { ",net=10.0.3.0/24" };
    let guest = Guest {
        kernel: &bench.unpacked,
        initrd: Some(&bench.initrd),
        cmdline: format!(
            "console=ttyS0 quiet sluice.server=10.0.2.2:{} sluice.marks=1 \
             sluice.job={}",
            server.address.port(),
            card.bulk_job(bulk)
        ),
        memory: MEMORY,
        arguments: format!(
            "-machine q35 -netdev user,id=net0{range} -device {},netdev=net0,romfile=",
            card.qemu
        ),
    };
    let found = if native { peer.run_native(&guest, "done") } else { peer.run(&guest, "done", record) };
    let tally = reader.finish();
    let (guests, tally) = ([transfer::guest(found?)], tally?);
    rows::transfers(record, &format!("{who}.{}", card.id), &guests, &tally)
}
