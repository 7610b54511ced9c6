//! `top`: domains and devices, again and again.

use super::total_exits;
use crate::control::{Client, choose};
use crate::name::Name;
use crate::outcome::state_word;
use crate::output;
use crate::table::{Table, duration, grouped};
use anyhow::Result;
use sluice_abi::report::{DomainReport, Report};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Goes to the upper left corner and clears the screen.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Shows domains and devices again and again.
pub fn top(instance: Option<&Name>, interval: Duration, count: Option<u64>) -> Result<()> {
    let instance = choose(instance)?;
    let mut client = Client::connect(&instance)?;
    let pause = interval;
    let clear = std::io::stdout().is_terminal();
    let mut before = client.report()?;
    let mut looks = 0;
    while count.is_none_or(|count| looks < count) {
        std::thread::sleep(pause);
        let Ok(now) = client.report() else {
            return output::print(format!("{} has ended\n", instance.name));
        };
        if clear {
            std::io::stdout().write_all(CLEAR)?;
        }
        output::print(screen(&instance.name, &before, &now))?;
        before = now;
        looks += 1;
    }
    Ok(())
}

fn screen(instance: &str, before: &Report, now: &Report) -> String {
    let nanoseconds = now.uptime_ns.saturating_sub(before.uptime_ns).max(1);
    let rate = |now: u64, before: u64| {
        let change = now.saturating_sub(before) as f64;
        grouped((change * 1e9 / nanoseconds as f64) as u64)
    };
    let mut text = format!(
        "{instance}: up {}, {} processors, {} MiB free\n\n",
        duration(now.uptime_ns),
        now.cpus,
        now.free_memory >> 20
    );
    let mut table =
        Table::new(&["guest", "state", "cpu", "exits/s", "interrupts/s", "most exits", "refused"]);
    for (index, domain) in now.domains.iter().enumerate() {
        let empty = DomainReport::default();
        let earlier = before.domains.get(index).unwrap_or(&empty);
        let cpu = domain.run_ns.saturating_sub(earlier.run_ns) as f64 * 100.0 / nanoseconds as f64;
        let most = domain
            .exits
            .iter()
            .map(|count| {
                let old = earlier.exits.iter().find(|old| old.name == count.name).map_or(0, |old| old.value);
                (count.value.saturating_sub(old), count.name.as_str())
            })
            .max()
            .filter(|(change, _)| *change > 0);
        table.row(vec![
            domain.name.clone(),
            state_word(domain.state).to_owned(),
            format!("{cpu:.0} %"),
            rate(total_exits(domain), total_exits(earlier)),
            rate(domain.interrupts, earlier.interrupts),
            most.map_or("-".to_owned(), |(_, name)| name.to_owned()),
            grouped(domain.refused.iter().map(|count| count.value).sum()),
        ]);
    }
    text += &table.render();
    for (index, device) in now.devices.iter().enumerate() {
        let earlier = before.devices.get(index);
        text += &format!(
            "\n  {} ({}): held by {}, {} handoffs/s, {} interrupts/s\n",
            device.name,
            device.model,
            device.holder.as_deref().unwrap_or("nobody"),
            rate(device.handoffs, earlier.map_or(0, |earlier| earlier.handoffs)),
            rate(device.interrupts, earlier.map_or(0, |earlier| earlier.interrupts)),
        );
        let mut table = Table::new(&["shared by", "mode", "hooked/s", "tx/s", "rx/s", "waits/s", "held"]);
        for (index, share) in device.shares.iter().enumerate() {
            let old = earlier.and_then(|earlier| earlier.shares.get(index)).cloned().unwrap_or_default();
            let held = share.held_ns.saturating_sub(old.held_ns) as f64 * 100.0 / nanoseconds as f64;
            table.row(vec![
                share.domain.clone(),
                share.mode.clone(),
                rate(share.hooked_instructions, old.hooked_instructions),
                rate(share.tx_packets, old.tx_packets),
                rate(share.rx_packets, old.rx_packets),
                rate(share.waits, old.waits),
                format!("{held:.0} %"),
            ]);
        }
        text += &table.render();
    }
    text
}
