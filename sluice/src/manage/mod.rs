//! The commands on running instances: ps, start, stop, ..., console, top, report.

mod stop;

pub use stop::{shutdown, stop};

use crate::cli::Target;
use crate::control::{Client, choose, running};
use crate::name::Name;
use crate::outcome::state_word;
use crate::output;
use crate::printable;
use crate::table::{Table, duration, grouped};
use crate::terminal::{self, Filter};
use anyhow::Result;
use sluice_abi::channel::{Command, Event, Request, encode};
use sluice_abi::report::{DomainReport, Report};
use std::io::{IsTerminal, Read, Write};
use std::time::{Duration, Instant};

/// Goes to the upper left corner and clears the screen.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Leaves the console: Ctrl-].
const LEAVE: u8 = 0x1d;

/// Lists instances and domains.
pub fn ps() -> Result<()> {
    let instances = running()?;
    if instances.is_empty() {
        return output::print("no instance runs; start one with: cargo sluice run FILE\n");
    }
    // Whose they are matters only where there are several checkouts.
    let checkouts = instances.iter().any(|instance| !instance.is_here());
    let headings = ["instance", "domain", "state", "ran for", "exits", "restarts", "checkout"];
    let shown = headings.len() - usize::from(!checkouts);
    let mut table = Table::new(&headings[..shown]);
    for instance in instances {
        let name = instance.name.to_string();
        let checkout =
            if instance.is_here() { "this".to_owned() } else { instance.checkout.display().to_string() };
        // One that ends now, or speaks another version, does not hide the others.
        let Ok(report) = Client::connect(&instance).and_then(|mut client| client.report()) else {
            let none = || "-".to_owned();
            let mut row = vec![name, none(), "no answer".to_owned(), none(), none(), none(), checkout];
            row.truncate(shown);
            table.row(row);
            continue;
        };
        for domain in &report.domains {
            let mut row = vec![
                name.clone(),
                domain.name.clone(),
                state_word(domain.state).to_owned(),
                duration(domain.run_ns),
                grouped(total_exits(domain)),
                domain.restarts.to_string(),
                checkout.clone(),
            ];
            row.truncate(shown);
            table.row(row);
        }
    }
    output::print(table.render())
}

/// Sends one command to one domain.
pub fn command(target: &Target, command: impl FnOnce(u16) -> Command) -> Result<()> {
    let mut client = Client::connect(&choose(target.instance.as_ref())?)?;
    let domain = client.domain(&target.domain)?;
    client.command(command(domain))
}

/// Prints the counters.
pub fn report(instance: Option<&Name>) -> Result<()> {
    let report = Client::connect(&choose(instance)?)?.report()?;
    output::print(printable::json(&report)?)
}

/// Prints what stands between devices and memory.
pub fn devices(instance: Option<&Name>) -> Result<()> {
    let report = Client::connect(&choose(instance)?)?.report()?;
    output::print(crate::iommu::details(&report))
}

/// Connects the terminal to a console. Unless it is `raw`, only what [`Filter`] passes reaches the terminal.
pub fn console(target: &Target, raw: bool) -> Result<()> {
    let mut client = Client::connect(&choose(target.instance.as_ref())?)?;
    let domain = client.domain(&target.domain)?;
    let mut sender = client.sender()?;
    output::note(format_args!("connected to {}; Ctrl-] leaves", target.domain));
    let _raw = RawTerminal::enter();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        let mut stdin = std::io::stdin().lock();
        while let Ok(got @ 1..) = stdin.read(&mut buffer) {
            let typed = &buffer[..got];
            let leave = typed.iter().position(|byte| *byte == LEAVE);
            let typed = &typed[..leave.unwrap_or(got)];
            let request = Request { seq: u32::MAX, command: Command::ConsoleInput(domain, typed.to_vec()) };
            let sent = encode(&request).is_ok_and(|bytes| sender.write_all(&bytes).is_ok());
            if leave.is_some() || !sent {
                let _ = sender.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    });
    let mut stdout = std::io::stdout().lock();
    let mut filter = Filter::default();
    let reset = !raw && stdout.is_terminal();
    let forever = Duration::from_secs(24 * 3600);
    while let Ok(event) = client.next_event(Instant::now() + forever) {
        match event {
            Event::Console { domain: from, bytes } if from == domain => {
                stdout.write_all(&if raw { bytes } else { filter.push(&bytes) })?;
                stdout.flush()?;
            }
            Event::State { domain: from, state, .. } if from == domain && state.is_ended() => {
                write!(stdout, "\r\n[{} {}]\r\n", target.domain, state_word(state))?;
                break;
            }
            _ => {}
        }
    }
    if reset {
        stdout.write_all(terminal::RESET)?;
        stdout.flush()?;
    }
    Ok(())
}

/// The terminal passes every key as it is, until dropped.
struct RawTerminal {
    before: Option<String>,
}

impl RawTerminal {
    fn enter() -> Self {
        let stty = |arguments: &[&str]| {
            let output = std::process::Command::new("stty")
                .args(arguments)
                .stdin(std::process::Stdio::inherit())
                .output()
                .ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let before = std::io::stdin().is_terminal().then(|| stty(&["-g"])).flatten();
        if before.is_some() {
            stty(&["raw", "-echo"]);
        }
        Self { before }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ =
                std::process::Command::new("stty").arg(before).stdin(std::process::Stdio::inherit()).status();
        }
    }
}

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

fn total_exits(domain: &DomainReport) -> u64 {
    domain.exits.iter().map(|count| count.value).sum()
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
