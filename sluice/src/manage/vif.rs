//! `vif`: guests' interfaces on the networks that engines serve.

use super::devices;
use crate::cli::{VifCommand, VifOptions, Which};
use crate::control::{Client, choose};
use crate::name::Name;
use crate::outcome::{links_json, networks_json};
use crate::table::{Table, grouped};
use crate::{output, printable};
use anyhow::{Context, Result, bail};
use serde_json::json;
use sluice_abi::channel::Command;
use sluice_abi::config::{DEFAULT_MTU, Face, MODERATION, Vif};
use sluice_abi::report::{Count, LinkReport, NetworkReport, Report};

/// Does what was asked for.
pub fn vif(what: &VifCommand) -> Result<()> {
    match what {
        VifCommand::Ls(which) => ls(which),
        VifCommand::Add { domain, device, network, mac, mtu, face, options } => {
            if *face == Face::E1000 && (*mtu != DEFAULT_MTU || options.moderation.is_some()) {
                bail!(
                    "an 82540EM cannot tell its driver of --mtu and --moderation\n  help: leave them out, and set them in the guest (ip link, ethtool -C)"
                );
            }
            let vif = Vif {
                name: device.to_string(),
                network: 0,
                mac: mac.0,
                share: options.share.unwrap_or(1),
                limit: options.limit.and_then(|limit| limit.0),
                vlan: options.vlan.and_then(|vlan| vlan.0),
                mtu: *mtu,
                addresses: options.addresses.clone().map(|addresses| addresses.0).unwrap_or_default(),
                moderation: options.moderation.unwrap_or(MODERATION),
                face: *face,
            };
            let mut client = Client::connect(&choose(options.instance.as_ref())?)?;
            let domain_id = client.domain(domain)?;
            client.command(Command::AttachVif { domain: domain_id, network: network.to_string(), vif })?;
            output::print(format!("{domain}: has {device}, on network {network}\n"))
        }
        VifCommand::Set { domain, device, options } => set(domain, device, options),
        VifCommand::Rm(arguments) => devices::detach(arguments),
    }
}

fn number(counts: &[Count], name: &str) -> u64 {
    counts.iter().find(|count| count.name == name).map_or(0, |count| count.value)
}

/// Interfaces, among all virtual devices.
fn interfaces(report: &Report) -> impl Iterator<Item = &LinkReport> {
    report.links.iter().filter(|link| !link.vif.is_empty())
}

fn set(domain: &Name, device: &Name, options: &VifOptions) -> Result<()> {
    let mut client = Client::connect(&choose(options.instance.as_ref())?)?;
    let domain_id = client.domain(domain)?;
    let report = client.report()?;
    let (name, now) = (format!("{domain}.{device}"), |link: &LinkReport| link.vif.clone());
    let now = interfaces(&report).find(|link| link.name == name).map(now);
    let now = now.with_context(|| {
        let known: Vec<&str> = interfaces(&report).map(|link| link.name.as_str()).collect();
        format!("{domain} has no interface {device}\n  help: there are: {}", known.join(", "))
    })?;
    let kept = |name| Some(number(&now, name)).filter(|value| *value != 0);
    let kept_vlan = kept("vlan").and_then(|vlan| u16::try_from(vlan).ok());
    client.command(Command::SetVif {
        domain: domain_id,
        device: device.to_string(),
        share: options.share.unwrap_or(u8::try_from(number(&now, "share")).unwrap_or(1)),
        limit: options.limit.map_or(kept("limit"), |limit| limit.0),
        vlan: options.vlan.map_or(kept_vlan, |vlan| vlan.0),
        addresses: options.addresses.clone().map(|addresses| addresses.0),
        moderation: options
            .moderation
            .unwrap_or(u16::try_from(number(&now, "moderation")).unwrap_or(MODERATION)),
    })?;
    output::print(format!("{domain}: {device} is set\n"))
}

fn ls(which: &Which) -> Result<()> {
    let report = Client::connect(&choose(which.instance.as_ref())?)?.report()?;
    if which.json {
        let links: Vec<LinkReport> = interfaces(&report).cloned().collect();
        let document = json!({ "networks": networks_json(&report.networks), "links": links_json(&links) });
        return output::print(printable::json(&document)?);
    }
    output::print(network_table(&report.networks) + "\n" + &interface_table(&report))
}

fn network_table(networks: &[NetworkReport]) -> String {
    let mut table = Table::new(&["network", "card sent", "received", "rounds", "sleeps"]);
    for network in networks {
        let count = |name| grouped(number(&network.counts, name));
        let counts = ["tx_packets", "rx_packets", "rounds", "sleeps"].map(count);
        table.row([network.name.clone()].into_iter().chain(counts).collect());
    }
    table.render()
}

/// A rate, in the largest unit that it is whole in.
fn rate(bits: u64) -> String {
    match bits {
        0 => "-".to_owned(),
        bits if bits.is_multiple_of(1_000_000_000) => format!("{}Gbit", bits / 1_000_000_000),
        bits if bits.is_multiple_of(1_000_000) => format!("{}Mbit", bits / 1_000_000),
        bits if bits.is_multiple_of(1000) => format!("{}kbit", bits / 1000),
        bits => format!("{bits}bit"),
    }
}

fn interface_table(report: &Report) -> String {
    let heads = [
        "interface",
        "on",
        "share",
        "limit",
        "vlan",
        "sent",
        "received",
        "dropped",
        "forged",
        "spoofed",
        "refused",
    ];
    let mut table = Table::new(&heads);
    for link in interfaces(report) {
        let count = |name| grouped(number(&link.vif, name));
        let vlan = match number(&link.vif, "vlan") {
            0 => "-".to_owned(),
            vlan => vlan.to_string(),
        };
        let set = [count("share"), rate(number(&link.vif, "limit")), vlan];
        let counts = ["tx_packets", "rx_packets", "rx_dropped", "forged", "spoofed", "refused"].map(count);
        let names = [link.name.clone(), link.server.trim_start_matches("network ").to_owned()];
        table.row(names.into_iter().chain(set).chain(counts).collect());
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shown_as_they_are_said() {
        let shown = [0, 20_000_000, 1_500_000, 2_000_000_000, 64_001].map(rate);
        assert_eq!(shown, ["-", "20Mbit", "1500kbit", "2Gbit", "64001bit"]);
    }
}
