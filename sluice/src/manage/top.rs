//! `top`: domains and devices, again and again.

use super::total_exits;
use crate::control::{Client, choose};
use crate::name::Name;
use crate::outcome::state_word;
use crate::output;
use crate::table::{Table, duration, grouped};
use anyhow::Result;
use sluice_abi::report::{DeviceReport, DomainReport, Report};
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
            "\n  {} ({}): {}, {} handoffs/s, {} interrupts/s\n",
            device.name,
            device.model,
            users(device),
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
                if has_turns(device) { format!("{held:.0} %") } else { "-".to_owned() },
            ]);
        }
        text += &table.render();
    }
    text
}

/// Its guests have it in turn, for times that are counted.
fn has_turns(device: &DeviceReport) -> bool {
    device.shares.iter().any(|share| share.held_ns > 0)
}

/// Who uses a device now: the guest that holds it, or all that share it at the same time.
fn users(device: &DeviceReport) -> String {
    let names: Vec<&str> = device.shares.iter().map(|share| share.domain.as_str()).collect();
    match &device.holder {
        Some(holder) => format!("held by {holder}"),
        None if names.is_empty() => "used by nobody".to_owned(),
        None if has_turns(device) => "held by nobody".to_owned(),
        None => format!("shared by {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_abi::report::ShareReport;

    fn device(holder: Option<&str>, held: &[(&str, u64)]) -> DeviceReport {
        let share = |(domain, held_ns): &(&str, u64)| ShareReport {
            domain: (*domain).to_owned(),
            held_ns: *held_ns,
            ..ShareReport::default()
        };
        DeviceReport {
            name: "nic0".to_owned(),
            model: "e1000".to_owned(),
            holder: holder.map(str::to_owned),
            shares: held.iter().map(share).collect(),
            ..DeviceReport::default()
        }
    }

    #[test]
    fn who_uses_a_device_is_said_with_and_without_turns() {
        assert_eq!(users(&device(None, &[("alice", 0), ("bob", 0)])), "shared by alice, bob");
        assert_eq!(users(&device(None, &[("alice", 5), ("bob", 0)])), "held by nobody");
        assert_eq!(users(&device(Some("bob"), &[("alice", 0), ("bob", 0)])), "held by bob");
        assert_eq!(users(&device(None, &[])), "used by nobody");
    }

    #[test]
    fn shares_of_time_are_those_of_what_has_passed() {
        let report = |uptime_ns, run_ns, held_ns| Report {
            uptime_ns,
            domains: vec![DomainReport { name: "alice".to_owned(), run_ns, ..DomainReport::default() }],
            devices: vec![device(Some("alice"), &[("alice", held_ns)])],
            ..Report::default()
        };
        let text = screen(
            "test",
            &report(1_000_000_000, 1, 1),
            &report(3_000_000_000, 2_000_000_001, 1_000_000_001),
        );
        assert!(text.contains(" 100 % ") && text.contains(" 50 %"), "{text}");
    }
}
