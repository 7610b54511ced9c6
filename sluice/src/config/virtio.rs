//! Virtual devices that one guest serves for another: `mode = "virtio"`, and device files of its: `mode = "devfile"`.

use super::diagnostic::Source;
use super::vif::Network;
use super::walk::{Walk, suggestion};
use super::{Domain, Setup, format_mac, network, values};
use crate::name::Name;
use sluice_abi::DomainId;
use sluice_abi::config::{
    self as abi, Dma, Grants, MAX_NODE, MAX_REGION, MAX_SOURCE, Mode, REGION_UNIT, VirtioKind,
};
use std::net::Ipv4Addr;
use toml::Spanned;
use toml::de::DeValue;

/// The word of the mode.
pub const MODE: &str = "virtio";

/// The word of the mode of device files.
pub const FILE_MODE: &str = "devfile";

/// What the source of a disk begins with that another program serves; the rest is the path of its socket (`daemons/sluice-backend`).
const VHOST_USER: &str = "vhost-user:";

/// A virtual device of a guest.
#[derive(Clone, Debug)]
pub struct Virtio {
    /// Unique in the guest.
    pub name: Spanned<Name>,
    /// What it is.
    pub kind: VirtioKind,
    /// Name of the domain that serves it.
    pub by: Spanned<String>,
    /// What is behind it, in the words of that domain.
    pub source: Spanned<String>,
    /// Its station address, if it has one.
    pub mac: Option<Spanned<[u8; 6]>>,
    /// The address that the guest gets by DHCP of the domain that serves it.
    pub address: Option<Spanned<Ipv4Addr>>,
    /// Name of the physical device behind a device file, whose PCI identity the guest sees.
    pub identity: Option<Spanned<String>>,
    /// Bytes of the region that the guest has with that device.
    pub region: Option<Spanned<u64>>,
}

/// Whether an entry of a guest's `devices` is for [`parse`].
pub fn is_one(value: &Spanned<DeValue>) -> bool {
    let DeValue::Table(table) = value.get_ref() else { return false };
    matches!(table.get("mode").map(Spanned::get_ref), Some(DeValue::String(mode)) if mode == MODE || mode == FILE_MODE)
}

/// Reads an entry. It is called `kind` and a number if it does not say: `earlier` entries stand before it.
pub fn parse(value: &Spanned<DeValue>, earlier: &[Virtio], source: &mut Source) -> Option<Virtio> {
    let DeValue::Table(table) = value.get_ref() else { return None };
    let mut walk = Walk::new(table, value.span(), "this entry of 'devices'");
    if let Some(DeValue::String(mode)) = walk.value("mode").map(Spanned::get_ref)
        && mode == FILE_MODE
    {
        return parse_file(walk, value, earlier, source);
    }
    let word = walk.string("type", source);
    if word.is_none() && walk.value("type").is_none() {
        walk.missing(source, "type", "type = \"blk\", type = \"net\", type = \"fs\" or type = \"rng\"");
    }
    let mac = values::mac(&mut walk, source);
    let queues = walk.number("queues", 1..=abi::MAX_QUEUE_PAIRS, source);
    let kind = word.and_then(|word| match word.get_ref().as_str() {
        "blk" => Some(VirtioKind::Block),
        "net" => Some(VirtioKind::Net {
            mac: mac.as_ref().map_or([0; 6], |mac| *mac.get_ref()),
            pairs: queues.as_ref().map_or(1, |queues| *queues.get_ref()),
        }),
        "fs" => Some(VirtioKind::Files),
        "rng" => Some(VirtioKind::Entropy),
        other => {
            source.complain(
                word.span(),
                format!("'{other}' is no type of a virtual device"),
                suggestion(other, &["blk", "net", "fs", "rng"]),
            );
            None
        }
    });
    let other = kind.filter(|kind| !matches!(kind, VirtioKind::Net { .. }));
    match (&kind, &mac) {
        (Some(VirtioKind::Net { .. }), None) if walk.value("mac").is_none() => {
            walk.missing(source, "mac", "mac = \"52:54:00:00:00:0a\": a network card needs an address");
        }
        _ => {}
    }
    if let (Some(kind), Some(mac)) = (other, &mac) {
        let message = format!("a {} has no station address", what(kind));
        source.complain(mac.span(), message, "leave mac out".to_owned());
    }
    if let (Some(kind), Some(queues)) = (other, &queues) {
        let help = "leave queues out: a vhost-user back end says how many it has".to_owned();
        source.complain(queues.span(), format!("the queues of a {} are not chosen here", what(kind)), help);
    }
    let address = walk.string("address", source).and_then(|text| parse_address(&text, source));
    if let (Some(kind), Some(address)) = (other, &address) {
        let message = format!("a {} has no address on a network", what(kind));
        source.complain(address.span(), message, "leave address out".to_owned());
    }
    let by = walk.string("by", source);
    if by.is_none() && walk.value("by").is_none() {
        walk.missing(source, "by", "by = \"driver\", the name of the domain that serves it");
    }
    let behind = walk.string("source", source);
    if behind.is_none() && walk.value("source").is_none() {
        walk.missing(
            source,
            "source",
            "source = \"/dev/sda\": a disk, a file or a bridge of the domain that serves it",
        );
    }
    let name = walk.string("name", source);
    walk.finish(source);
    let name = match name {
        Some(name) => values::name(&name, "virtual device", source)?,
        None => {
            let alike =
                earlier.iter().filter(|other| kind.is_some_and(|kind| kind.word() == other.kind.word()));
            let name = format!("{}{}", kind?.word(), alike.count());
            Spanned::new(value.span(), name.parse().ok()?)
        }
    };
    Some(Virtio { name, kind: kind?, by: by?, source: behind?, mac, address, identity: None, region: None })
}

/// What messages call it.
const fn what(kind: VirtioKind) -> &'static str {
    match kind {
        VirtioKind::Net { .. } => "network card",
        VirtioKind::Block => "disk",
        VirtioKind::DeviceFile => "device file",
        VirtioKind::Files => "file system",
        VirtioKind::Entropy => "source of random numbers",
    }
}

/// Reads an entry with `mode = "devfile"`.
fn parse_file(
    mut walk: Walk,
    value: &Spanned<DeValue>,
    earlier: &[Virtio],
    source: &mut Source,
) -> Option<Virtio> {
    let by = walk.string("by", source);
    if by.is_none() && walk.value("by").is_none() {
        walk.missing(source, "by", "by = \"driver\", the name of the domain that has the device");
    }
    let behind = walk.string("source", source);
    if behind.is_none() && walk.value("source").is_none() {
        walk.missing(source, "source", "source = \"/dev/hwrng\": a device file of that domain");
    }
    let identity = walk.string("identity", source);
    let region = region(&mut walk, source);
    let name = walk.string("name", source);
    walk.finish(source);
    let kind = VirtioKind::DeviceFile;
    let name = match name {
        Some(name) => values::name(&name, "device file", source)?,
        None => {
            let alike = earlier.iter().filter(|other| other.kind == kind);
            Spanned::new(value.span(), format!("{}{}", kind.word(), alike.count()).parse().ok()?)
        }
    };
    Some(Virtio { name, kind, by: by?, source: behind?, mac: None, address: None, identity, region })
}

/// The size of a region, if there is to be one.
fn region(walk: &mut Walk, source: &mut Source) -> Option<Spanned<u64>> {
    let text = walk.string("region", source)?;
    let fits = |bytes: &u64| (1..=MAX_REGION).contains(bytes) && bytes.is_multiple_of(REGION_UNIT);
    let bytes = values::parse_size(text.get_ref()).filter(fits);
    if bytes.is_none() {
        let help = "write a multiple of 2 MiB, up to 64 MiB: region = \"2MiB\"".to_owned();
        source.complain(text.span(), format!("'{}' is no size of a region", text.get_ref()), help);
    }
    bytes.map(|bytes| Spanned::new(text.span(), bytes))
}

/// An address of one host.
fn parse_address(text: &Spanned<String>, source: &mut Source) -> Option<Spanned<Ipv4Addr>> {
    let is_host = |address: &Ipv4Addr| {
        !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_broadcast()
            && !address.is_loopback()
    };
    let address = text.get_ref().parse().ok().filter(is_host);
    if address.is_none() {
        let message = format!("'{}' is no address of a guest", text.get_ref());
        source.complain(text.span(), message, "write four numbers: \"10.0.2.130\"".to_owned());
    }
    address.map(|address| Spanned::new(text.span(), address))
}

/// Reads what a guest lends to those who serve its devices, if it says.
pub fn grants(walk: &mut Walk, source: &mut Source) -> Option<Spanned<Grants>> {
    let text = walk.string("grants", source)?;
    let found = Grants::ALL.into_iter().find(|(word, _)| word == text.get_ref());
    if found.is_none() {
        let help = suggestion(text.get_ref(), &Grants::ALL.map(|(word, _)| word));
        source.complain(text.span(), format!("'{}' is nothing that a guest can lend", text.get_ref()), help);
    }
    found.map(|(_, grants)| Spanned::new(text.span(), grants))
}

/// Checks what concerns several values at once.
pub fn check(setup: &Setup, source: &mut Source) {
    for domain in &setup.domains {
        for (index, device) in domain.virtio.iter().enumerate() {
            server(setup, domain, device, source);
            behind(device, source);
            identity(setup, device, source);
            region_of(setup, device, source);
            let name = device.name.get_ref();
            if domain.virtio.iter().take(index).any(|other| other.name.get_ref() == name) {
                let message = format!("'{}' has two virtual devices called '{name}'", domain.name.get_ref());
                source.complain(device.name.span(), message, "give each its own: name = \"...\"".to_owned());
            }
        }
        if let (Some(device), None) = (domain.virtio.first(), &domain.grants) {
            let (name, server) = (domain.name.get_ref(), device.by.get_ref());
            let message =
                format!("'{name}' lends '{server}' no memory, without which a virtual device does not work");
            let help = format!(
                "add to [domain.{name}]: grants = \"all\". Then '{server}', and the devices that it owns, reach all memory of '{name}'"
            );
            source.complain(device.by.span(), message, help);
        }
        functions(setup, domain, source);
        network::check(setup, domain, source);
    }
    addresses(setup, source);
    focus(setup, source);
}

/// Who is in the foreground from the start, if the file says.
pub fn foreground(setup: &Setup) -> Option<DomainId> {
    let wanted = setup.machine.focus.as_ref()?;
    DomainId::at(setup.domains.iter().position(|domain| **domain.name.get_ref() == **wanted.get_ref())?)
}

/// Who is in the foreground is one of those whom the person at the machine can mean.
fn focus(setup: &Setup, source: &mut Source) {
    let has_file = |domain: &&Domain| domain.virtio.iter().any(|one| one.kind == VirtioKind::DeviceFile);
    let names = setup.domains.iter().filter(has_file).map(|domain| &**domain.name.get_ref());
    let names: Vec<&str> = names.collect();
    let Some(wanted) = setup.machine.focus.as_ref() else { return };
    if !names.contains(&&**wanted.get_ref()) {
        let message = format!("no domain with a device file is called '{}'", wanted.get_ref());
        source.complain(wanted.span(), message, suggestion(wanted.get_ref(), &names));
    }
}

fn addresses(setup: &Setup, source: &mut Source) {
    let mut seen: Vec<(Ipv4Addr, &str)> = Vec::new();
    for domain in &setup.domains {
        for address in domain.virtio.iter().filter_map(|device| device.address.as_ref()) {
            if let Some((_, other)) = seen.iter().find(|(other, _)| other == address.get_ref()) {
                let message = format!("{} is the address of '{other}' already", address.get_ref());
                source.complain(address.span(), message, "change the last number".to_owned());
            }
            seen.push((*address.get_ref(), domain.name.get_ref()));
        }
    }
}

/// Which addresses a domain gives to the guests that it serves, as words of its command line: station address, address, name.
pub fn leases(setup: &Setup, server: &Domain) -> String {
    let mut words = String::new();
    for domain in &setup.domains {
        for device in domain.virtio.iter().filter(|device| device.by.get_ref() == &**server.name.get_ref()) {
            if let (Some(mac), Some(address)) = (&device.mac, &device.address) {
                let (mac, address) = (format_mac(*mac.get_ref()), address.get_ref());
                words += &format!(" sluice.lease={mac},{address},{}", domain.name.get_ref());
            }
        }
    }
    words
}

/// Who serves it: another domain, whose own devices see memory where it does.
fn server(setup: &Setup, domain: &Domain, device: &Virtio, source: &mut Source) {
    let wanted = device.by.get_ref().as_str();
    let Some(server) = server_of(setup, device) else {
        if setup.running.iter().any(|running| running == wanted) {
            if let Some(address) = &device.address {
                let message =
                    format!("'{wanted}' runs already, and gives away the addresses that it was told of");
                source.complain(
                    address.span(),
                    message,
                    "leave address out: it has others to give".to_owned(),
                );
            }
            return;
        }
        let here = setup.domains.iter().map(|domain| &**domain.name.get_ref());
        let names: Vec<&str> = here.chain(setup.running.iter().map(String::as_str)).collect();
        let message = format!("no domain is called '{wanted}'");
        return source.complain(device.by.span(), message, suggestion(wanted, &names));
    };
    if server.name.get_ref() == domain.name.get_ref() {
        let help = "name the domain that has the hardware".to_owned();
        return source.complain(device.by.span(), "a guest cannot serve its own virtual device", help);
    }
    for at_fault in [domain, server] {
        if let Some(share) = at_fault.shares.iter().find(|share| share.dma == Dma::Unprotected) {
            let message = format!(
                "'{}' has '{}' without an IOMMU, and so cannot {} virtual devices",
                at_fault.name.get_ref(),
                share.device.get_ref(),
                if at_fault.name == server.name { "serve" } else { "have" }
            );
            let help = "leave out dma = \"unprotected\": the machine that `run` emulates has an IOMMU then"
                .to_owned();
            source.complain(share.device.span(), message, help);
        }
    }
    let is_file = device.kind == VirtioKind::DeviceFile;
    let is_blind = |dma: Dma| dma.is_issued() && !(is_file && dma == Dma::Regions);
    if let Some(share) = server.shares.iter().find(|share| is_blind(share.dma)) {
        let message = format!(
            "'{}' serves virtual devices, and its '{}' would not reach the memory that is lent to it",
            server.name.get_ref(),
            share.device.get_ref()
        );
        source.complain(share.device.span(), message, "leave out 'dma'".to_owned());
    }
}

fn behind(device: &Virtio, source: &mut Source) {
    let text = device.source.get_ref();
    let what = match device.kind {
        VirtioKind::Block => "a disk or a file",
        VirtioKind::Net { .. } => "a bridge",
        VirtioKind::DeviceFile => "a device file",
        VirtioKind::Files => "the socket of a vhost-user back end",
        VirtioKind::Entropy => "a device file with random numbers, such as /dev/hwrng,",
    };
    if text.is_empty() || text.len() > MAX_SOURCE || text.chars().any(char::is_control) {
        let message = format!("this cannot be what is behind '{}'", device.name.get_ref());
        let help = format!("name {what} of '{}', in 1 to {MAX_SOURCE} bytes", device.by.get_ref());
        source.complain(device.source.span(), message, help);
    }
    if device.kind == VirtioKind::DeviceFile {
        let path = text.strip_prefix("/dev/").unwrap_or_default();
        let parts_are_names = path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !parts_are_names || path.len() > MAX_NODE {
            let message = format!("'{text}' is no device file");
            let help = format!(
                "name one of '{}', with at most {MAX_NODE} bytes after /dev/: source = \"/dev/hwrng\"",
                device.by.get_ref()
            );
            source.complain(device.source.span(), message, help);
        }
        return;
    }
    let Some(socket) = text.strip_prefix(VHOST_USER) else {
        if device.kind == VirtioKind::Files {
            let message = "a file system is served by a vhost-user back end, such as virtiofsd";
            let help = "name its socket: source = \"vhost-user:/run/files.sock\"".to_owned();
            source.complain(device.source.span(), message, help);
        }
        return;
    };
    if !matches!(device.kind, VirtioKind::Block | VirtioKind::Files) {
        let message = "only disks and file systems can be served by a vhost-user back end";
        let help = format!("name {} of '{}'", what, device.by.get_ref());
        source.complain(device.source.span(), message, help);
    } else if !socket.starts_with('/') || socket.ends_with('/') {
        let message = format!("'{socket}' is no path of a vhost-user back end's socket");
        let help = "name the whole path: source = \"vhost-user:/run/disk.sock\"".to_owned();
        source.complain(device.source.span(), message, help);
    }
}

/// The domain that serves a device, if it is one of the setup.
fn server_of<'s>(setup: &'s Setup, device: &Virtio) -> Option<&'s Domain> {
    setup.domains.iter().find(|domain| **domain.name.get_ref() == **device.by.get_ref())
}

/// The device behind a device file is one that the domain owns which serves the file.
fn identity(setup: &Setup, device: &Virtio, source: &mut Source) {
    let Some(wanted) = &device.identity else { return };
    let name = wanted.get_ref();
    let server = server_of(setup, device);
    let owned = server.into_iter().flat_map(|server| &server.shares);
    let owned: Vec<&str> = owned
        .filter(|share| share.mode == Mode::Passthrough)
        .map(|share| share.device.get_ref().as_str())
        .collect();
    let known = setup.devices.iter().map(|device| &**device.name.get_ref());
    // Who runs already may own any device.
    let known = if server.is_some() { owned } else { known.collect() };
    if !known.contains(&name.as_str()) {
        let message = format!("'{}' has no device '{name}' passed through to it", device.by.get_ref());
        source.complain(wanted.span(), message, suggestion(name, &known));
    }
}

/// A region is held by a device that has regions.
fn region_of(setup: &Setup, device: &Virtio, source: &mut Source) {
    let Some(region) = &device.region else { return };
    let Some(behind) = &device.identity else {
        let help =
            "name it: identity = \"...\", a device that this domain owns with dma = \"regions\"".to_owned();
        return source.complain(region.span(), "a region is held by a device, and none is named", help);
    };
    let server = server_of(setup, device);
    let share = server
        .and_then(|server| server.shares.iter().find(|share| share.device.get_ref() == behind.get_ref()));
    if let Some(share) = share.filter(|share| share.dma != Dma::Regions) {
        let message = format!("'{}' has no regions", share.device.get_ref());
        let help = format!("write at '{}': dma = \"regions\"", device.by.get_ref());
        source.complain(region.span(), message, help);
    }
}

/// A PCI bus takes so many functions only.
fn functions(setup: &Setup, domain: &Domain, source: &mut Source) {
    let name = &**domain.name.get_ref();
    let all = setup.domains.iter().flat_map(|other| &other.virtio);
    let serves = all.filter(|device| device.by.get_ref() == name).count();
    let controls = |network: &&Network| network.controller.as_ref().is_some_and(|by| by.get_ref() == name);
    let serves = serves + setup.networks.iter().filter(controls).count();
    let drives_iommu = domain.grants.as_ref().is_some_and(|grants| *grants.get_ref() == Grants::Iommu);
    let own = domain.shares.len() + domain.virtio.len() + domain.vifs.len();
    let count = own + usize::from(domain.control) + usize::from(drives_iommu) + serves;
    if count > abi::MAX_FUNCTIONS {
        let message = format!(
            "'{name}' has and serves {count} devices, more than the {} that fit its bus",
            abi::MAX_FUNCTIONS
        );
        let help = "have some of them served by a second domain".to_owned();
        source.complain(domain.name.span(), message, help);
    }
}

/// Domains that run already and are to serve devices of the setup, once each.
pub fn neighbours(setup: &Setup) -> Vec<&str> {
    let is_here = |name: &str| setup.domains.iter().any(|domain| &**domain.name.get_ref() == name);
    let servers =
        setup.domains.iter().flat_map(|domain| &domain.virtio).map(|device| device.by.get_ref().as_str());
    let mut found = Vec::new();
    for server in servers.filter(|server| !is_here(server)) {
        if !found.contains(&server) {
            found.push(server);
        }
    }
    found
}

/// The devices of a guest, as the hypervisor is told of them.
pub fn compile(setup: &Setup, domain: &Domain) -> Vec<abi::Virtio> {
    let here = setup.domains.iter().map(|domain| &**domain.name.get_ref());
    let servers: Vec<&str> = here.chain(neighbours(setup)).collect();
    let compile = |device: &Virtio| {
        let server = servers.iter().position(|server| *server == device.by.get_ref());
        Some(abi::Virtio {
            name: device.name.get_ref().to_string(),
            kind: device.kind,
            by: u16::try_from(server?).ok()?,
            source: device.source.get_ref().clone(),
            identity: device.identity.as_ref().and_then(|name| setup.place_of(name.get_ref())),
            region: device.region.as_ref().map_or(0, |bytes| *bytes.get_ref()),
        })
    };
    domain.virtio.iter().filter_map(compile).collect()
}
