//! From TOML text to [`Setup`]: shapes, types and single values. What concerns several values at once
//! is checked in [`super::check`].

use super::diagnostic::Source;
use super::peers;
use super::values::{self, NAME_HELP};
use super::walk::{Walk, kind, suggestion};
use super::{Device, Domain, Forward, Image, Iommu, Machine, Net, Setup, Share};
use super::{vif, virtio};
use crate::disks::Disk;
use crate::name::Name;
use crate::{kernels, rootfs};
use sluice_abi::config::{Action, Actions, AtEnd, Dma, Kind, Mode, NicModel, Sectors, Select};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Memory of the emulated machine when the file does not say.
const DEFAULT_MACHINE_MEMORY: u64 = 2 << 30;

/// QEMU devices whose PCI identifiers are known, so that `pci` can be left out.
pub(super) const QEMU_DEVICES: [(&str, u16, u16); 8] = [
    ("ne2k_pci", 0x10ec, 0x8029),
    ("rtl8139", 0x10ec, 0x8139),
    ("e1000", 0x8086, 0x100e),
    ("e1000e", 0x8086, 0x10d3),
    // As it is with `disable-legacy=on`.
    ("virtio-net-pci", 0x1af4, 0x1041),
    ("nvme", 0x1b36, 0x0010),
    ("piix3-ide", 0x8086, 0x7010),
    ("edu", 0x1234, 0x11e8),
];

/// Reads everything; complaints go to `source`, and what could not be read has a harmless value.
pub fn parse(source: &mut Source) -> Setup {
    let mut setup = Setup {
        machine: Machine {
            memory: Spanned::new(0..0, DEFAULT_MACHINE_MEMORY),
            cpus: Spanned::new(0..0, 1),
            iommu: None,
            interrupt_remapping: Spanned::new(0..0, true),
            at_end: None,
            focus: None,
            qemu_args: Vec::new(),
        },
        devices: Vec::new(),
        networks: Vec::new(),
        domains: Vec::new(),
        running: Vec::new(),
    };
    let document = match DeTable::parse(source.text) {
        Ok(document) => document,
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            let line =
                source.text.get(..span.end).unwrap_or_default().rsplit('\n').next().unwrap_or_default();
            // A table's name with something in it that no name has is the most common reason.
            let is_name = ["[domain.", "[device.", "[network."]
                .iter()
                .any(|start| line.trim_start().starts_with(start));
            let help = is_name.then(|| NAME_HELP.to_owned());
            source.complain(span, format!("not TOML: {}", error.message()), help);
            return setup;
        }
    };
    let mut top = Walk::new(document.get_ref(), 0..0, "the file");
    if let Some(walk) = top.table("machine", source) {
        machine(walk, &mut setup.machine, source);
    }
    for (name, walk) in top.named_tables("device", source) {
        values::name(&name, "device", source);
        setup.devices.extend(device(name, walk, source));
    }
    for (name, walk) in top.named_tables("network", source) {
        let name = values::name(&name, "network", source);
        setup.networks.extend(vif::network(name, walk, source));
    }
    for (name, walk) in top.named_tables("domain", source) {
        let name = values::name(&name, "domain", source);
        setup.domains.extend(domain(name, walk, source));
    }
    top.finish(source);
    setup
}

fn machine(mut walk: Walk, machine: &mut Machine, source: &mut Source) {
    if let Some(memory) = size(&mut walk, "memory", source) {
        machine.memory = memory;
    }
    if let Some(cpus) = walk.number("cpus", 1..=64, source) {
        machine.cpus = cpus;
    }
    machine.iommu = walk.string("iommu", source).and_then(|text| iommu(&text, source));
    if let Some(remapping) = walk.flag("interrupt_remapping", source) {
        machine.interrupt_remapping = remapping;
    }
    machine.at_end = walk.string("at_end", source).and_then(|text| at_end(&text, source));
    machine.focus = walk.string("focus", source);
    machine.qemu_args = walk.strings("qemu_args", source);
    walk.finish(source);
}

fn at_end(text: &Spanned<String>, source: &mut Source) -> Option<AtEnd> {
    let found = AtEnd::ALL.into_iter().find(|(word, _)| word == text.get_ref());
    if found.is_none() {
        let help = suggestion(text.get_ref(), &AtEnd::ALL.map(|(word, _)| word));
        source.complain(text.span(), format!("'{}' is nothing a machine can do", text.get_ref()), help);
    }
    found.map(|(_, at_end)| at_end)
}

fn iommu(text: &Spanned<String>, source: &mut Source) -> Option<Spanned<Iommu>> {
    let found = Iommu::ALL.into_iter().find(|(word, _)| word == text.get_ref());
    if found.is_none() {
        let help = suggestion(text.get_ref(), &Iommu::ALL.map(|(word, _)| word));
        source.complain(text.span(), format!("'{}' is no IOMMU", text.get_ref()), help);
    }
    found.map(|(_, iommu)| Spanned::new(text.span(), iommu))
}

fn device(name: Spanned<String>, mut walk: Walk, source: &mut Source) -> Option<Device> {
    let pci = walk.string("pci", source);
    let nth = walk.number("nth", 0..=31, source);
    let qemu = walk.string("qemu", source);
    let net = walk.value("net").and_then(|value| net(value, source));
    let rate = walk.string("rate", source).and_then(|text| vif::rate(&text, source));
    let disks: Vec<Spanned<Disk>> =
        walk.list("disks", source).into_iter().filter_map(|value| disk(value, source)).collect();
    let known = qemu.as_ref().and_then(|text| {
        let driver = text.get_ref().split(',').next()?;
        QEMU_DEVICES.into_iter().find(|(known, ..)| *known == driver)
    });
    let select = match (&pci, known) {
        (Some(pci), _) => {
            let select = parse_pci(pci.get_ref(), nth.as_ref().map_or(0, |nth| *nth.get_ref()));
            if select.is_none() {
                source.complain(
                    pci.span(),
                    format!("'{}' is no PCI function", pci.get_ref()),
                    "write \"vendor:device\" such as \"10ec:8029\", or bus, device and function such as \"00:04.0\""
                        .to_owned(),
                );
            }
            select.map(|select| Spanned::new(pci.span(), select))
        }
        (None, Some((_, vendor, device))) => {
            let nth = nth.as_ref().map_or(0, |nth| *nth.get_ref());
            Some(Spanned::new(walk.span.clone(), Select::Id { vendor, device, nth }))
        }
        (None, None) => {
            walk.missing(source, "pci", "pci = \"10ec:8029\"");
            None
        }
    };
    walk.finish(source);
    Some(Device { name, select: select?, qemu, net, rate, disks })
}

fn net(value: &Spanned<DeValue>, source: &mut Source) -> Option<Net> {
    let net = match value.get_ref() {
        DeValue::String(mode) => Net { mode: mode.clone().into_owned(), options: String::new() },
        DeValue::Table(table) => {
            let mut walk = Walk::new(table, value.span(), "'net'");
            let mode = walk.string("mode", source);
            let options = walk.string("options", source).map(Spanned::into_inner).unwrap_or_default();
            if mode.is_none() {
                walk.missing(source, "mode", "mode = \"user\"");
            }
            walk.finish(source);
            Net { mode: mode?.into_inner(), options }
        }
        other => {
            let message = format!("'net' must be a string or a table, not {}", kind(other));
            source.complain(value.span(), message, "write net = \"user\"".to_owned());
            return None;
        }
    };
    const MODES: [&str; 6] = ["user", "none", "socket", "tap", "stream", "dgram"];
    if !MODES.contains(&net.mode.as_str()) {
        let message = format!("'{}' is no kind of network", net.mode);
        source.complain(value.span(), message, suggestion(&net.mode, &MODES));
        return None;
    }
    Some(net)
}

fn domain(name: Option<Spanned<Name>>, mut walk: Walk, source: &mut Source) -> Option<Domain> {
    let kernel = match walk.value("kernel").map(|value| (value, value.get_ref())) {
        None => {
            walk.missing(source, "kernel", "kernel = \"debian-6.1\", or a path to a kernel of yours");
            None
        }
        Some((value, DeValue::Table(table))) => {
            let mut own = Walk::new(table, value.span(), "'kernel'");
            let disk = own.value("disk").and_then(|disk| self::disk(disk, source));
            if disk.is_none() && own.value("disk").is_none() {
                own.missing(source, "disk", "disk = \"web\": the disk with the guest's own /boot");
            }
            own.finish(source);
            disk.map(|disk| Spanned::new(value.span(), Image::Disk(disk.into_inner())))
        }
        Some(_) => {
            let text = walk.string("kernel", source);
            text.and_then(|text| image(text, "kernel", &kernels::names(), source))
        }
    };
    let initrd = walk.string("initrd", source);
    let initrd = initrd.and_then(|text| image(text, "initrd", &rootfs::names(), source));
    let cmdline = walk.string("cmdline", source).unwrap_or_else(|| Spanned::new(0..0, String::new()));
    let memory = size(&mut walk, "memory", source);
    if memory.is_none() && walk.value("memory").is_none() {
        walk.missing(source, "memory", "memory = \"256MiB\"");
    }
    let vcpus = walk.number("vcpus", 1..=64, source).unwrap_or_else(|| Spanned::new(0..0, 1));
    let cpus = walk.numbers("cpus", 0..=63, source);
    let paused = walk.flag("paused", source).is_some_and(|paused| *paused.get_ref());
    let control = walk.flag("control", source).is_some_and(|control| *control.get_ref());
    let actions = actions(&mut walk, source);
    let forward =
        walk.list("forward", source).into_iter().filter_map(|value| forward(value, source)).collect();
    let (mut shares, mut virtual_devices, mut vifs) = (Vec::new(), Vec::new(), Vec::new());
    for value in walk.list("devices", source) {
        if virtio::is_one(value) {
            virtual_devices.extend(virtio::parse(value, &virtual_devices, source));
        } else if vif::is_one(value) {
            vifs.extend(vif::parse(value, vifs.len(), source));
        } else {
            shares.extend(share(value, source));
        }
    }
    let grants = virtio::grants(&mut walk, source);
    let peers = peers::parse(&mut walk, source);
    let kind = domain_kind(&mut walk, source);
    walk.finish(source);
    Some(Domain {
        name: name?,
        kernel: kernel?,
        initrd,
        cmdline,
        memory: memory?,
        vcpus,
        cpus,
        paused,
        actions,
        forward,
        shares,
        virtio: virtual_devices,
        vifs,
        grants,
        peers,
        control,
        kind,
    })
}

/// A disk by name, or a file that is there. One by name need not be: `run` makes it.
fn disk(value: &Spanned<DeValue>, source: &mut Source) -> Option<Spanned<Disk>> {
    let DeValue::String(text) = value.get_ref() else {
        let message = format!("a disk must be a string, not {}", kind(value.get_ref()));
        let help = "write its name, or the path of an image, such as \"web\" or \"./web.raw\"".to_owned();
        source.complain(value.span(), message, help);
        return None;
    };
    let disk = Disk::parse(text, source.path.parent().unwrap_or(std::path::Path::new("")));
    if let Disk::File(path) = &disk
        && !path.is_file()
    {
        let help =
            format!("give the path of an image (relative to this configuration), or a name: {NAME_HELP}");
        source.complain(value.span(), format!("there is no file {}", path.display()), help);
        return None;
    }
    Some(Spanned::new(value.span(), disk))
}

/// How a guest's kernel runs.
fn domain_kind(walk: &mut Walk, source: &mut Source) -> Spanned<Kind> {
    let Some(text) = walk.string("kind", source) else { return Spanned::new(0..0, Kind::Full) };
    let found = Kind::ALL.into_iter().find(|(word, _)| word == text.get_ref());
    if found.is_none() {
        let help = suggestion(text.get_ref(), &Kind::ALL.map(|(word, _)| word));
        source.complain(text.span(), format!("'{}' is no kind of domain", text.get_ref()), help);
    }
    Spanned::new(text.span(), found.map_or(Kind::Full, |(_, kind)| kind))
}

/// What follows a guest's end, where the file says.
fn actions(walk: &mut Walk, source: &mut Source) -> Actions {
    let mut action = |key, default| {
        let Some(text) = walk.string(key, source) else { return default };
        let found = Action::ALL.into_iter().find(|(word, _)| word == text.get_ref());
        if found.is_none() {
            let help = suggestion(text.get_ref(), &Action::ALL.map(|(word, _)| word));
            source.complain(
                text.span(),
                format!("'{}' is nothing that can follow a guest's end", text.get_ref()),
                help,
            );
        }
        found.map_or(default, |(_, action)| action)
    };
    let default = Actions::default();
    Actions {
        crash: action("on_crash", default.crash),
        reboot: action("on_reboot", default.reboot),
        poweroff: action("on_poweroff", default.poweroff),
    }
}

fn forward(value: &Spanned<DeValue>, source: &mut Source) -> Option<Spanned<Forward>> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let ports = match value.get_ref() {
        DeValue::String(text) => {
            text.split_once(':').and_then(|(host, guest)| Some((port(host)?, port(guest)?)))
        }
        _ => None,
    };
    if ports.is_none() {
        let help = "write \"2222:22\": port 2222 of this machine leads to port 22 of the guest".to_owned();
        source.complain(value.span(), "this forwards no port", help);
    }
    ports.map(|(host, guest)| Spanned::new(value.span(), Forward { host, guest }))
}

fn share(value: &Spanned<DeValue>, source: &mut Source) -> Option<Share> {
    let example = "write { use = \"nic0\", mode = \"vpio\", mac = \"52:54:00:00:00:0a\" }".to_owned();
    let DeValue::Table(table) = value.get_ref() else {
        let message = format!("an entry of 'devices' must be a table, not {}", kind(value.get_ref()));
        source.complain(value.span(), message, example);
        return None;
    };
    let mut walk = Walk::new(table, value.span(), "this entry of 'devices'");
    let device = walk.string("use", source);
    if device.is_none() && walk.value("use").is_none() {
        walk.missing(source, "use", "use = \"nic0\", the name of a [device.nic0]");
    }
    let mode_text = walk.string("mode", source);
    if mode_text.is_none() && walk.value("mode").is_none() {
        walk.missing(source, "mode", "mode = \"vpio\", \"emulated\", \"passthrough\", \"virtio\" or \"vif\"");
    }
    let mode = mode_text.and_then(|text| mode(&text, source));
    let mac = values::mac(&mut walk, source);
    let sectors = walk.string("sectors", source).and_then(|text| sectors(&text, source));
    let model = walk.string("model", source).and_then(|text| model(&text, source));
    let weight = walk.number("weight", 1..=100, source);
    let max_wait_ms = walk.number("max_wait_ms", 1..=250, source);
    let refusals = super::refusals::parse(&mut walk, source);
    let dma = dma(&mut walk, source);
    let interrupts_unprotected = unprotected(&mut walk, "interrupts", "can forge interrupts", source);
    let lasting = "can have its EEPROM, PHY and wake-up programmed by this guest";
    let registers_unprotected = unprotected(&mut walk, "registers", lasting, source);
    walk.finish(source);
    Some(Share {
        device: device?,
        mode: mode?,
        mac,
        sectors,
        model,
        weight,
        max_wait_ms,
        refusals,
        dma,
        interrupts_unprotected,
        registers_unprotected,
    })
}

/// What a device reaches, if not all memory of its guest.
fn dma(walk: &mut Walk, source: &mut Source) -> Dma {
    let Some(text) = walk.string("dma", source) else { return Dma::Guest };
    match text.get_ref().as_str() {
        "fine" => Dma::Fine,
        "regions" => Dma::Regions,
        "unprotected" => Dma::Unprotected,
        other => {
            let message = format!("'{other}' is no setting of 'dma'");
            let help = "leave it out, write dma = \"fine\" for a device that reaches only what its guest's module issues to it, dma = \"regions\" for one \
                        that is served by device files and holds what is each guest's apart, or dma = \"unprotected\" to accept that this device reaches all memory";
            source.complain(text.span(), message, help.to_owned());
            Dma::Guest
        }
    }
}

/// A protection that the user can do without, knowingly.
fn unprotected(walk: &mut Walk, key: &'static str, what: &str, source: &mut Source) -> bool {
    let Some(text) = walk.string(key, source) else { return false };
    if text.get_ref() != "unprotected" {
        let message = format!("'{}' is no setting of '{key}'", text.get_ref());
        let help =
            format!("leave it out, or write {key} = \"unprotected\" to accept that this device {what}");
        source.complain(text.span(), message, help);
    }
    true
}

/// A range of sectors, without its end.
fn sectors(text: &Spanned<String>, source: &mut Source) -> Option<Spanned<Sectors>> {
    let word = text.get_ref();
    let range = word.split_once("..").and_then(|(first, end)| {
        let (first, end): (u64, u64) = (first.trim().parse().ok()?, end.trim().parse().ok()?);
        let count = end.checked_sub(first).filter(|count| *count > 0)?;
        Some(Sectors { first, count, on_refusal: None })
    });
    if range.is_none() {
        let help =
            "write the first sector and the one behind the last: sectors = \"0..2097152\" is the first GiB";
        source.complain(text.span(), format!("'{word}' is no range of sectors"), help.to_owned());
    }
    range.map(|range| Spanned::new(text.span(), range))
}

fn model(text: &Spanned<String>, source: &mut Source) -> Option<Spanned<NicModel>> {
    let word = text.get_ref();
    let found = NicModel::ALL.iter().find(|(name, _)| name == word);
    if found.is_none() {
        let words: Vec<&str> = NicModel::ALL.iter().map(|(name, _)| *name).collect();
        source.complain(text.span(), format!("'{word}' is no model of a card"), suggestion(word, &words));
    }
    found.map(|(_, model)| Spanned::new(text.span(), *model))
}

fn mode(text: &Spanned<String>, source: &mut Source) -> Option<Mode> {
    match text.get_ref().as_str() {
        "passthrough" => Some(Mode::Passthrough),
        "vpio" => Some(Mode::Vpio),
        "emulated" => Some(Mode::Emulated),
        other => {
            let message = format!("'{other}' is no mode");
            source.complain(
                text.span(),
                message,
                suggestion(
                    other,
                    &["vpio", "emulated", "passthrough", virtio::MODE, virtio::FILE_MODE, vif::MODE],
                ),
            );
            None
        }
    }
}

/// A known name, or a path relative to the configuration file; paths contain a slash or a dot.
fn image(text: Spanned<String>, what: &str, names: &[String], source: &mut Source) -> Option<Spanned<Image>> {
    let word = text.get_ref();
    if names.contains(word) {
        return Some(Spanned::new(text.span(), Image::Named(word.clone())));
    }
    let path = source.path.parent().unwrap_or(std::path::Path::new("")).join(word);
    if path.is_file() {
        return Some(Spanned::new(text.span(), Image::File(path)));
    }
    let message = if path.is_dir() {
        format!("{} is a folder, not a file", path.display())
    } else if word.contains('/') {
        format!("there is no {what} file {}", path.display())
    } else {
        format!("'{word}' is neither the name of a {what} that Sluice builds nor a file")
    };
    let known: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    let help =
        format!("give the path of a file (relative to this configuration), or one of {}", known.join(", "));
    source.complain(text.span(), message, help);
    None
}

fn size(walk: &mut Walk, key: &'static str, source: &mut Source) -> Option<Spanned<u64>> {
    let text = walk.string(key, source)?;
    let bytes = values::parse_size(text.get_ref());
    if bytes.is_none() {
        let message = format!("'{}' is no size", text.get_ref());
        source.complain(text.span(), message, "write a number and a unit: \"256MiB\" or \"2GiB\"".to_owned());
    }
    bytes.map(|bytes| Spanned::new(text.span(), bytes))
}

/// `10ec:8029` or `00:04.0` (optionally `0000:00:04.0`).
fn parse_pci(text: &str, nth: u8) -> Option<Select> {
    let hex = |text: &str, digits: Range<usize>| {
        (digits.contains(&text.len())).then(|| u16::from_str_radix(text, 16).ok()).flatten()
    };
    if let Some((place, function)) = text.rsplit_once('.') {
        let place = place.strip_prefix("0000:").unwrap_or(place);
        let (bus, device) = place.split_once(':')?;
        let bus = u8::try_from(hex(bus, 1..3)?).ok()?;
        let device = u8::try_from(hex(device, 1..3)?).ok().filter(|device| *device < 32)?;
        let function = u8::try_from(hex(function, 1..2)?).ok().filter(|function| *function < 8)?;
        return Some(Select::Address { bus, device, function });
    }
    let (vendor, device) = text.split_once(':')?;
    Some(Select::Id { vendor: hex(vendor, 4..5)?, device: hex(device, 4..5)?, nth })
}
