//! `ps`, `info`, `devices`, `report`: what there is, as tables and as JSON.

use super::total_exits;
use crate::cli::{Target, Which};
use crate::config::human_size;
use crate::control::{Client, Running, choose, running};
use crate::info::{DomainInfo, Info};
use crate::name::Name;
use crate::outcome::{links_json, networks_json};
use crate::table::{Table, duration, grouped};
use crate::{iommu, output, printable};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_abi::report::{DomainReport, LinkReport, Report};

/// An instance, what it says of itself, and its counters if it answers.
type Seen = (Running, Info, Option<Report>);

fn look() -> Result<Vec<Seen>> {
    let see = |instance: Running| {
        // One that ends now, or speaks another version, does not hide the others.
        let report = Client::connect(&instance).and_then(|mut client| client.report()).ok();
        let info = instance.info();
        (instance, info, report)
    };
    Ok(running()?.into_iter().map(see).collect())
}

/// Lists instances and domains.
pub fn ps(as_json: bool) -> Result<()> {
    let seen = look()?;
    if as_json {
        let list: Vec<Value> = seen.iter().map(instance_json).collect();
        return output::print(printable::json(&list)?);
    }
    if seen.is_empty() {
        return output::print("no instance runs; start one with: cargo sluice run FILE\n");
    }
    // Whose they are matters only where there are several checkouts.
    let checkouts = seen.iter().any(|(instance, ..)| !instance.is_here());
    let headings = [
        "instance", "domain", "state", "memory", "vcpus", "address", "mac", "ran for", "exits", "restarts",
        "checkout",
    ];
    let shown = headings.len() - usize::from(!checkouts);
    let mut table = Table::new(&headings[..shown]);
    for (instance, info, report) in seen {
        let name = instance.name.to_string();
        let checkout =
            if instance.is_here() { "this".to_owned() } else { instance.checkout.display().to_string() };
        let mut add = |mut row: Vec<String>| {
            row.push(checkout.clone());
            row.truncate(shown);
            table.row(row);
        };
        let Some(report) = report else {
            let mut row = vec![name, "-".to_owned(), "no answer".to_owned()];
            row.resize(headings.len() - 1, "-".to_owned());
            add(row);
            continue;
        };
        for domain in &report.domains {
            let known = info.domain(&domain.name);
            let or_unknown = |text: String, known: bool| if known { text } else { "-".to_owned() };
            add(vec![
                name.clone(),
                domain.name.clone(),
                domain.state.word().to_owned(),
                or_unknown(human_size(known.memory), known.memory > 0),
                or_unknown(known.vcpus.to_string(), known.vcpus > 0),
                known.address.clone().unwrap_or_else(|| "-".to_owned()),
                known.macs(),
                duration(domain.run_ns),
                grouped(total_exits(domain)),
                domain.restarts.to_string(),
            ]);
        }
    }
    output::print(table.render())
}

fn instance_json((instance, info, report): &Seen) -> Value {
    let domains = report.iter().flat_map(|report| &report.domains);
    let domains: Vec<Value> = domains.map(|domain| domain_json(&info.domain(&domain.name), domain)).collect();
    json!({
        "instance": &*instance.name,
        "answers": report.is_some(),
        "checkout": instance.checkout,
        "here": instance.is_here(),
        "pid": info.pid,
        "consoles": info.consoles,
        "domains": domains,
    })
}

fn domain_json(known: &DomainInfo, domain: &DomainReport) -> Value {
    json!({
        "name": domain.name,
        "state": domain.state.word(),
        "reason": domain.end_reason,
        "kernel": known.kernel,
        "memory_bytes": known.memory,
        "vcpus": known.vcpus,
        "address": known.address,
        "devices": known.devices,
        "run_ns": domain.run_ns,
        "exits_total": total_exits(domain),
        "interrupts": domain.interrupts,
        "restarts": domain.restarts,
    })
}

/// Shows what is known of one domain.
pub fn info(target: &Target, as_json: bool) -> Result<()> {
    let instance = choose(target.instance.as_ref())?;
    let mut client = Client::connect(&instance)?;
    client.domain(&target.domain)?;
    let report = client.report()?;
    let domain = report.domains.iter().find(|domain| domain.name == *target.domain);
    let domain = domain.context("the hypervisor does not know it")?;
    let info = instance.info();
    let known = info.domain(&domain.name);
    if as_json {
        return output::print(printable::json(&domain_json(&known, domain))?);
    }
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        if !value.is_empty() {
            text += &format!("  {key:<12}  {value}\n");
        }
    };
    line("domain", domain.name.clone());
    line("instance", format!("{} (process {})", instance.name, info.pid));
    let because =
        if domain.end_reason.is_empty() { String::new() } else { format!(": {}", domain.end_reason) };
    line("state", format!("{}{because}", domain.state.word()));
    line("kernel", known.kernel.clone());
    line("memory", human_size(known.memory));
    line("vcpus", known.vcpus.to_string());
    line("address", known.address.clone().unwrap_or_default());
    for share in &known.devices {
        let mac = share.mac.as_ref().map_or(String::new(), |mac| format!(", {mac}"));
        line("device", format!("{} ({}{mac})", share.device, share.mode));
    }
    line("ran for", duration(domain.run_ns));
    line("exits", grouped(total_exits(domain)));
    line("interrupts", grouped(domain.interrupts));
    line("restarts", domain.restarts.to_string());
    let refused: Vec<String> =
        domain.refused.iter().map(|count| format!("{} {}", grouped(count.value), count.name)).collect();
    line("refused", refused.join(", "));
    line("console", info.consoles.join(format!("{}.log", domain.name)).display().to_string());
    output::print(text)
}

/// Prints the counters.
pub fn report(instance: Option<&Name>) -> Result<()> {
    let report = Client::connect(&choose(instance)?)?.report()?;
    output::print(printable::json(&report)?)
}

/// Prints the devices, and what stands between them and memory.
pub fn devices(which: &Which) -> Result<()> {
    let report = Client::connect(&choose(which.instance.as_ref())?)?.report()?;
    if which.json {
        let document = json!({ "devices": report.devices, "links": links_json(&report.links), "networks": networks_json(&report.networks), "iommu": iommu::json(&report.iommu) });
        return output::print(printable::json(&document)?);
    }
    output::print(device_table(&report) + "\n" + &link_table(&report.links) + &iommu::details(&report))
}

/// The virtual devices that domains serve for others.
fn link_table(links: &[LinkReport]) -> String {
    if links.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(&["virtual device", "type", "served by", "state", "reachable", "kicks", "used"]);
    for link in links {
        let state = match (link.offered, link.status & 4 != 0) {
            (false, _) => "waits for its server",
            (true, false) => "offered",
            (true, true) => "in use",
        };
        table.row(vec![
            link.name.clone(),
            link.kind.clone(),
            link.server.clone(),
            state.to_owned(),
            human_size(link.lent),
            grouped(link.kicks),
            grouped(link.used),
        ]);
    }
    table.render() + "\n"
}

fn device_table(report: &Report) -> String {
    let mut table = Table::new(&["device", "model", "mode", "domains", "held by", "handoffs", "interrupts"]);
    for device in &report.devices {
        let domains: Vec<&str> = device.shares.iter().map(|share| share.domain.as_str()).collect();
        let mode = device.shares.first().map_or("-", |share| share.mode.as_str());
        table.row(vec![
            device.name.clone(),
            device.model.clone(),
            mode.to_owned(),
            if domains.is_empty() { "-".to_owned() } else { domains.join(" ") },
            device.holder.clone().unwrap_or_else(|| "-".to_owned()),
            grouped(device.handoffs),
            grouped(device.interrupts),
        ]);
    }
    if report.devices.is_empty() { "  no devices\n".to_owned() } else { table.render() }
}
