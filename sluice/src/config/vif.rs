//! Networks that the hypervisor serves on processors of their own, `[network.name]`, and guests' interfaces on them: `mode = "vif"`.

use super::diagnostic::Source;
use super::walk::{Walk, suggestion};
use super::{Domain, Setup, values};
use crate::name::Name;
use sluice_abi::config::{
    self as abi, DEFAULT_MTU, Dma, Face, Kind, Layout, MAX_ADDRESSES, MAX_ENGINES, MODERATION, MODERATIONS,
    MTU, NETWORK_MTU, NicModel, SHARES, SIGNAL_BITS, Select, VLANS,
};
use std::net::IpAddr;
use toml::Spanned;
use toml::de::DeValue;

/// The word of the mode.
pub const MODE: &str = "vif";

/// The share of a network's time, where the file does not say.
const DEFAULT_SHARE: u8 = 1;

/// Virtio's vendor, and its network cards: such as answer the old way, too, and modern ones.
const VIRTIO: u16 = 0x1af4;
const VIRTIO_NET: [u16; 2] = [0x1000, 0x1041];
/// Intel's 82540EM and 82574L.
const INTEL: u16 = 0x8086;
const E1000: u16 = 0x100e;
const E1000E: u16 = 0x10d3;
/// One that the hypervisor can drive, as QEMU is told.
pub const VIRTIO_CARD: &str = "virtio-net-pci,disable-legacy=on,iommu_platform=on";

/// A network.
#[derive(Clone, Debug)]
pub struct Network {
    /// Unique name.
    pub name: Spanned<Name>,
    /// The processors that serve it.
    pub cores: Vec<Spanned<u8>>,
    /// How they share the work.
    pub layout: Layout,
    /// Name of the card by which it reaches others, if one.
    pub nic: Option<Spanned<String>>,
    /// Most bytes of a frame after its header.
    pub mtu: u16,
    /// Bits of the identifiers by which drivers are signalled, if interfaces share them.
    pub signal_bits: Option<u8>,
    /// Name of the domain by which signals to drivers go, if not straight to them.
    pub controller: Option<Spanned<String>>,
}

/// A guest's interface.
#[derive(Clone, Debug)]
pub struct Vif {
    /// Unique among the guest's virtual devices.
    pub name: Spanned<Name>,
    /// Name of its network.
    pub network: Spanned<String>,
    /// Its station address.
    pub mac: Spanned<[u8; 6]>,
    /// How much it may send when others want to.
    pub share: u8,
    /// Most bits per second that it sends.
    pub limit: Option<u64>,
    /// The VLAN that it is in.
    pub vlan: Option<u16>,
    /// Most bytes of a frame after its header.
    pub mtu: Spanned<u16>,
    /// The addresses that it speaks for; any if there are none.
    pub addresses: Vec<[u8; 16]>,
    /// Microseconds for which its driver does not hear of a few frames that it has sent.
    pub moderation: u16,
    /// What the guest finds.
    pub face: Face,
}

/// Reads a network.
pub fn network(name: Option<Spanned<Name>>, mut walk: Walk, source: &mut Source) -> Option<Network> {
    let cores = walk.numbers("cores", 0..=63, source);
    if cores.is_empty() {
        let message = format!("{} names no processor that serves it", walk.what);
        source.complain(walk.span.clone(), message, "write one: cores = [1]".to_owned());
    }
    if cores.len() > MAX_ENGINES {
        let message =
            format!("{} names {} processors, and has {MAX_ENGINES} at most", walk.what, cores.len());
        source.complain(walk.span.clone(), message, "name fewer: cores = [1, 2]".to_owned());
    }
    let layout = walk.string("layout", source).map_or(Layout::default(), |text| match text.get_ref().as_str() {
        "split" => Layout::Split,
        "spread" => Layout::Spread,
        other => {
            let help = "write \"split\" (one engine receives, the others send) or \"spread\" (each serves some interfaces)";
            source.complain(text.span(), format!("'{other}' is no layout of engines"), help.to_owned());
            Layout::default()
        }
    });
    let nic = walk.string("nic", source);
    let mtu = walk.number("mtu", NETWORK_MTU, source).map_or(DEFAULT_MTU, Spanned::into_inner);
    let signal_bits = walk.number("signal_bits", SIGNAL_BITS, source).map(Spanned::into_inner);
    let controller = walk.string("controller", source);
    walk.finish(source);
    Some(Network { name: name?, cores, layout, nic, mtu, signal_bits, controller })
}

/// Whether an entry of a guest's `devices` is for [`parse`].
pub fn is_one(value: &Spanned<DeValue>) -> bool {
    let DeValue::Table(table) = value.get_ref() else { return false };
    matches!(table.get("mode").map(Spanned::get_ref), Some(DeValue::String(mode)) if mode == MODE)
}

/// Reads an entry. It is called `vif` and a number if it does not say: so many stand before it.
pub fn parse(value: &Spanned<DeValue>, earlier: usize, source: &mut Source) -> Option<Vif> {
    let DeValue::Table(table) = value.get_ref() else { return None };
    let mut walk = Walk::new(table, value.span(), "this entry of 'devices'");
    let _ = walk.value("mode");
    let network = walk.string("network", source);
    if network.is_none() && walk.value("network").is_none() {
        walk.missing(source, "network", "network = \"lan\", the name of a [network.lan]");
    }
    let mac = values::mac(&mut walk, source);
    if mac.is_none() && walk.value("mac").is_none() {
        walk.missing(source, "mac", "mac = \"52:54:00:00:00:0a\": a network card needs an address");
    }
    let share = walk.number("share", SHARES, source).map_or(DEFAULT_SHARE, Spanned::into_inner);
    let vlan = walk.number("vlan", VLANS, source).map(Spanned::into_inner);
    let mtu = walk.number("mtu", MTU, source);
    let moderation = walk.number("moderation", MODERATIONS, source);
    let face = walk.string("face", source).map_or(Face::default(), |text| {
        Face::of(text.get_ref()).unwrap_or_else(|| {
            let message = format!("'{}' is no face of an interface", text.get_ref());
            let help = "write \"virtio\" (a virtio network card), \"native\" (for the module sluice-vif) or \"e1000\" (an Intel 82540EM)"
                .to_owned();
            source.complain(text.span(), message, help);
            Face::default()
        })
    });
    if face == Face::E1000 {
        for (key, span) in
            [("mtu", mtu.as_ref().map(Spanned::span)), ("moderation", moderation.as_ref().map(Spanned::span))]
        {
            if let Some(span) = span {
                let message = format!("an 82540EM cannot tell its driver of '{key}'");
                let help =
                    "leave it out, and set it in the guest (ip link, ethtool -C); or write face = \"virtio\"";
                source.complain(span, message, help.to_owned());
            }
        }
    }
    let mtu = mtu.unwrap_or(Spanned::new(value.span(), DEFAULT_MTU));
    let moderation = moderation.map_or(MODERATION, Spanned::into_inner);
    let limit = walk.string("limit", source).and_then(|text| rate(&text, source));
    let limit = limit.map(Spanned::into_inner);
    let addresses = walk.list("addresses", source);
    let addresses = addresses.into_iter().filter_map(|value| address(value, source)).collect::<Vec<_>>();
    if addresses.len() > MAX_ADDRESSES {
        let message =
            format!("an interface has at most {MAX_ADDRESSES} addresses, and this has {}", addresses.len());
        source.complain(value.span(), message, "name fewer, or leave 'addresses' out".to_owned());
    }
    let name = walk.string("name", source);
    walk.finish(source);
    let name = match name {
        Some(name) => values::name(&name, "virtual device", source)?,
        None => Spanned::new(value.span(), format!("{MODE}{earlier}").parse().ok()?),
    };
    Some(Vif { name, network: network?, mac: mac?, share, limit, vlan, mtu, addresses, moderation, face })
}

fn address(value: &Spanned<DeValue>, source: &mut Source) -> Option<[u8; 16]> {
    let text = if let DeValue::String(text) = value.get_ref() { text } else { "" };
    let address = parse_address(text);
    if address.is_none() {
        let message = format!("'{text}' is no IP address");
        let help = "write addresses = [\"10.0.0.2\", \"fd00::2\"], without a length behind".to_owned();
        source.complain(value.span(), message, help);
    }
    address
}

/// An IPv6 address, or an IPv4 address in such a one.
pub fn parse_address(text: &str) -> Option<[u8; 16]> {
    let address: IpAddr = text.parse().ok()?;
    Some(match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    })
}

/// A rate in a configuration, in bits per second; complains if it is none.
pub fn rate(text: &Spanned<String>, source: &mut Source) -> Option<Spanned<u64>> {
    let rate = parse_rate(text.get_ref());
    if rate.is_none() {
        let message = format!("'{}' is no rate", text.get_ref());
        let help = "write a number and a unit: \"100Mbit\", \"1Gbit\" or \"500kbit\" (per second)".to_owned();
        source.complain(text.span(), message, help);
    }
    rate.map(|rate| Spanned::new(text.span(), rate))
}

/// `100Mbit`, `2 Gbit`, `500kbit`: decimal units of bits per second.
pub fn parse_rate(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "kbit" => 1_000,
        "Mbit" => 1_000_000,
        "Gbit" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit).filter(|rate| *rate > 0)
}

/// Checks what concerns several values at once.
pub fn check(setup: &Setup, source: &mut Source) {
    for (index, network) in setup.networks.iter().enumerate() {
        cores(setup, network, source);
        nic(setup, &setup.networks[..index], network, source);
        controller(setup, network, source);
    }
    for domain in &setup.domains {
        for (index, vif) in domain.vifs.iter().enumerate() {
            on_a_network(setup, vif, source);
            let (name, owner) = (vif.name.get_ref(), domain.name.get_ref());
            let others = domain.vifs.iter().take(index).map(|other| other.name.get_ref());
            if others.chain(domain.virtio.iter().map(|other| other.name.get_ref())).any(|other| other == name)
            {
                let message = format!("'{owner}' has two virtual devices called '{name}'");
                source.complain(vif.name.span(), message, "give each its own: name = \"...\"".to_owned());
            }
            is_protected(domain, "have virtual devices", source);
        }
        for cpu in &domain.cpus {
            if let Some(network) = setup
                .networks
                .iter()
                .find(|network| network.cores.iter().any(|core| core.get_ref() == cpu.get_ref()))
            {
                let message = format!(
                    "processor {} serves the network '{}', and runs no guests",
                    cpu.get_ref(),
                    network.name.get_ref()
                );
                source.complain(cpu.span(), message, "pin to another, or leave 'cpus' out".to_owned());
            }
        }
    }
}

/// What is virtual of other domains is not where a device without an IOMMU looks.
fn is_protected(domain: &Domain, what: &str, source: &mut Source) {
    let Some(share) = domain.shares.iter().find(|share| share.dma == Dma::Unprotected) else { return };
    let (name, device) = (domain.name.get_ref(), share.device.get_ref());
    let message = format!("'{name}' has '{device}' without an IOMMU, and so cannot {what}");
    let help = "leave out dma = \"unprotected\": the machine that `run` emulates has an IOMMU then";
    source.complain(share.device.span(), message, help.to_owned());
}

/// The domain that passes signals on is there from the start, and has a bus for the function by which it does. It may have an interface on the network
/// itself: of that, too, it is told first.
fn controller(setup: &Setup, network: &Network, source: &mut Source) {
    let Some(controller) = &network.controller else { return };
    let wanted = controller.get_ref().as_str();
    let Some(domain) = setup.domains.iter().find(|domain| &**domain.name.get_ref() == wanted) else {
        let names: Vec<&str> = setup.domains.iter().map(|domain| &**domain.name.get_ref()).collect();
        let message = format!("no domain of this file is called '{wanted}'");
        let help = format!(
            "{}; one that is created later cannot pass signals on: leave 'controller' out to have the hypervisor do so",
            suggestion(wanted, &names)
        );
        return source.complain(controller.span(), message, help);
    };
    if *domain.kind.get_ref() == Kind::Paravirtual {
        let message =
            format!("'{wanted}' is paravirtual, and cannot pass signals on: it has no bus for that");
        let help = "name another domain, or leave 'controller' out".to_owned();
        source.complain(controller.span(), message, help);
    }
    is_protected(domain, "pass signals on", source);
}

/// The processors are there, each once, and another is left for guests.
fn cores(setup: &Setup, network: &Network, source: &mut Source) {
    let cpus = *setup.machine.cpus.get_ref();
    for (index, spanned) in network.cores.iter().enumerate() {
        let core = *spanned.get_ref();
        if core == 0 {
            let message =
                "processor 0 cannot serve a network: it runs guests, and the hypervisor's own work is done there"
                    .to_owned();
            source.complain(spanned.span(), message, "name another: cores = [1]".to_owned());
        } else if core >= cpus {
            let message = format!("there is no physical processor {core}: the machine has {cpus}");
            let help =
                format!("processors count from 0; write in [machine]: cpus = {}", core.saturating_add(1));
            source.complain(spanned.span(), message, help);
        } else if network.cores[..index].iter().any(|other| *other.get_ref() == core) {
            let message =
                format!("processor {core} is named twice, and is one engine of '{}'", network.name.get_ref());
            source.complain(spanned.span(), message, "name each once: cores = [1, 2]".to_owned());
        }
    }
}

/// The card is there, nobody else has it, and an engine can drive it.
fn nic(setup: &Setup, earlier: &[Network], network: &Network, source: &mut Source) {
    let Some(nic) = &network.nic else { return };
    let wanted = nic.get_ref().as_str();
    let Some(device) = setup.devices.iter().find(|device| device.name.get_ref() == wanted) else {
        let names: Vec<&String> = setup.devices.iter().map(|device| device.name.get_ref()).collect();
        let help = if names.is_empty() {
            format!("declare it: [device.{wanted}] with qemu = \"e1000\"")
        } else {
            suggestion(wanted, &names)
        };
        return source.complain(nic.span(), format!("no device is called '{wanted}'"), help);
    };
    let has = |domain: &&Domain| domain.shares.iter().any(|share| share.device.get_ref() == wanted);
    if let Some(domain) = setup.domains.iter().find(has) {
        let message = format!("'{wanted}' is the card of '{}' already", domain.name.get_ref());
        source.complain(nic.span(), message, "a network needs a card of its own".to_owned());
    }
    let is_its = |other: &&Network| other.nic.as_ref().is_some_and(|nic| nic.get_ref() == wanted);
    if let Some(other) = earlier.iter().find(is_its) {
        let message = format!("'{wanted}' is the card of the network '{}' already", other.name.get_ref());
        source.complain(nic.span(), message, "a network needs a card of its own".to_owned());
    }
    let drives = match *device.select.get_ref() {
        Select::Id { vendor: VIRTIO, device, .. } => VIRTIO_NET.contains(&device),
        Select::Id { vendor: INTEL, device: E1000E, .. } => true,
        Select::Id { vendor, device, .. } => NicModel::of(vendor, device).is_some(),
        // What the hypervisor finds is for it to say.
        Select::Address { .. } => true,
    };
    if !drives {
        let message = format!("'{wanted}' is no card that an engine drives");
        let help = format!(
            "use an 82540EM, 82574L, RTL8139, RTL8029 or virtio-net: qemu = \"e1000\", \"e1000e\", \"rtl8139\", \"ne2k_pci\" or \"{VIRTIO_CARD}\"; or leave nic out"
        );
        source.complain(nic.span(), message, help);
    }
    let is_long = match *device.select.get_ref() {
        Select::Id { vendor: INTEL, device: E1000 | E1000E, .. } | Select::Address { .. } => true,
        Select::Id { .. } => false,
    };
    if drives && !is_long && network.mtu > DEFAULT_MTU {
        let message = format!("'{wanted}' carries no frames of {} bytes", network.mtu);
        let help = format!(
            "leave mtu out of [network.{}], or give it an 82540EM or 82574L: qemu = \"e1000\" or \"e1000e\"",
            network.name.get_ref()
        );
        source.complain(nic.span(), message, help);
    }
    let Some(qemu) = &device.qemu else { return };
    let options: Vec<&str> = qemu.get_ref().split(',').map(str::trim).collect();
    let is_virtio = options.first().is_some_and(|name| name.starts_with("virtio-net"));
    if is_virtio && !VIRTIO_CARD.split(',').skip(1).all(|wanted| options.contains(&wanted)) {
        let message = format!("'{wanted}' would be a card of the old kind, which knows of no IOMMU");
        source.complain(qemu.span(), message, format!("write qemu = \"{VIRTIO_CARD}\""));
    }
}

fn on_a_network(setup: &Setup, vif: &Vif, source: &mut Source) {
    let wanted = vif.network.get_ref().as_str();
    let names: Vec<&str> = setup.networks.iter().map(|network| &**network.name.get_ref()).collect();
    let Some(network) = setup.networks.iter().find(|network| &**network.name.get_ref() == wanted) else {
        let help = if names.is_empty() {
            format!("declare it: [network.{wanted}] with cores = [1]")
        } else {
            suggestion(wanted, &names)
        };
        return source.complain(vif.network.span(), format!("no network is called '{wanted}'"), help);
    };
    let mtu = *vif.mtu.get_ref();
    if mtu > network.mtu {
        let message = format!("the network '{wanted}' carries no frames of {mtu} bytes");
        let help = format!(
            "write in [network.{wanted}]: mtu = {mtu}; or give the interface {} at most",
            network.mtu
        );
        source.complain(vif.mtu.span(), message, help);
    }
}

/// The networks, as the hypervisor is told of them.
pub fn compile_networks(setup: &Setup) -> Vec<abi::Network> {
    let compile = |network: &Network| abi::Network {
        name: network.name.get_ref().to_string(),
        cores: network.cores.iter().map(|core| *core.get_ref()).collect(),
        layout: network.layout,
        nic: network.nic.as_ref().and_then(|nic| setup.place_of(nic.get_ref())),
        mtu: network.mtu,
        signal_bits: network.signal_bits,
        controller: network.controller.as_ref().and_then(|name| {
            let is_it = |domain: &Domain| **domain.name.get_ref() == **name.get_ref();
            setup.domains.iter().position(is_it)?.try_into().ok()
        }),
    };
    setup.networks.iter().map(compile).collect()
}

/// The interfaces of a guest, as the hypervisor is told of them.
pub fn compile(setup: &Setup, domain: &Domain) -> Vec<abi::Vif> {
    let compile = |vif: &Vif| {
        let network =
            setup.networks.iter().position(|network| &**network.name.get_ref() == vif.network.get_ref());
        Some(abi::Vif {
            name: vif.name.get_ref().to_string(),
            network: u16::try_from(network?).ok()?,
            mac: *vif.mac.get_ref(),
            share: vif.share,
            limit: vif.limit,
            vlan: vif.vlan,
            mtu: *vif.mtu.get_ref(),
            addresses: vif.addresses.clone(),
            moderation: vif.moderation,
            face: vif.face,
        })
    };
    domain.vifs.iter().filter_map(compile).collect()
}

#[cfg(test)]
mod tests {
    use super::parse_rate;

    #[test]
    fn rates_are_read() {
        assert_eq!(parse_rate("100Mbit"), Some(100_000_000));
        assert_eq!(parse_rate("2 Gbit"), Some(2_000_000_000));
        assert_eq!(parse_rate("500kbit"), Some(500_000));
        for text in [
            "",
            "100",
            "Mbit",
            "0Mbit",
            "1.5Gbit",
            "-1Mbit",
            "100MB",
            "99999999999999999999Gbit",
            "18446744073709551Gbit",
        ] {
            assert_eq!(parse_rate(text), None, "{text}");
        }
    }
}
