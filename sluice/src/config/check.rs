//! What concerns several values at once: memory that must fit, devices that are shared, addresses that
//! must differ.

use super::diagnostic::Source;
use super::parse::QEMU_DEVICES;
use super::walk::suggestion;
use super::{
    Domain, Image, Iommu, Setup, Share, added_words, format_mac, human_size, peers, refusals, server_words,
    vif, virtio,
};
use crate::disks::Disk;
use sluice_abi::config::{self, Dma, Kind, MAX_DOMAINS, Mode, NicModel, Sectors, Select};
use std::ops::Range;
use toml::Spanned;

/// Memory that is not for guests: firmware, the hypervisor, and the bundle it was loaded with.
const RESERVED_MEMORY: u64 = 96 << 20;

/// The most memory of a paravirtual guest with devices, whose registers it finds at physical addresses.
const MOST_PARAVIRTUAL_MEMORY: u64 = 3 << 30;
/// The most processors of a paravirtual guest: so many it finds in the page that it shares with the hypervisor.
const MOST_PARAVIRTUAL_PROCESSORS: u8 = 32;
/// The longest command line of a paravirtual guest: its kernel takes 1,023 bytes, and `run` needs some.
const LONGEST_PARAVIRTUAL_CMDLINE: usize = 512;

/// The least a guest can be given: the virtual platform's tables and a kernel must fit.
const LEAST_GUEST_MEMORY: u64 = 16 << 20;

/// Guest memory is mapped in pages of this size.
const GUEST_PAGE: u64 = 2 << 20;

/// What QEMU's processors address: 40 bits.
const MACHINE_MEMORY_END: u64 = 1 << 40;

/// The longest command line of a Linux kernel for x86 in bytes (COMMAND_LINE_SIZE, less its NUL).
const LONGEST_CMDLINE: usize = 2047;

/// Checks the whole setup.
pub fn check(setup: &Setup, source: &mut Source) {
    machine(setup, source);
    if setup.domains.is_empty() {
        let help = "add a [domain.name] with a kernel and its memory".to_owned();
        source.complain(0..0, "no domain is configured", help);
    }
    if let Some(domain) = setup.domains.get(MAX_DOMAINS) {
        let message =
            format!("{} domains are more than the {MAX_DOMAINS} that there can be", setup.domains.len());
        let help = "leave some out: those that are paused count as well".to_owned();
        source.complain(domain.name.span(), message, help);
    }
    for domain in &setup.domains {
        own_values(domain, setup, source);
        paravirtual(domain, setup, source);
    }
    memory_fits(setup, source);
    devices(setup, source);
    station_addresses(setup, source);
    disks(setup, source);
    virtio::check(setup, source);
    vif::check(setup, source);
    peers::check(setup, source);
    qemu_devices(setup, source);
    rates(setup, source);
    forwarded(setup, source);
}

/// What a paravirtual domain cannot have yet.
fn paravirtual(domain: &Domain, setup: &Setup, source: &mut Source) {
    if *domain.kind.get_ref() != Kind::Paravirtual {
        return;
    }
    let name = domain.name.get_ref();
    let mut complain = |what: &str, help: &str| {
        let message = format!("'{name}' is paravirtual and {what}");
        source.complain(domain.kind.span(), message, help.to_owned());
    };
    let owns = |share: &Share| share.mode == Mode::Passthrough;
    if !domain.shares.iter().all(owns) || !domain.virtio.is_empty() || !domain.vifs.is_empty() {
        complain(
            "has devices that it does not own",
            "a paravirtual domain has a console and what is passed through to it: take the others away, or use mode = \"passthrough\"",
        );
    }
    if domain.shares.iter().any(|share| owns(share) && share.dma != Dma::Guest) {
        complain(
            "has a device that reaches other memory than all of its own",
            "leave dma out: the hypervisor takes page tables away from its devices, and nothing else",
        );
    }
    if !domain.shares.is_empty() && *domain.memory.get_ref() > MOST_PARAVIRTUAL_MEMORY {
        complain(
            "has a device where it has memory by its own page numbers",
            "registers of devices follow 3 GiB: give it at most so much memory",
        );
    }
    if *domain.vcpus.get_ref() > MOST_PARAVIRTUAL_PROCESSORS {
        complain("has more processors than its interface has room for", "give it 32 vcpus at most");
    }
    let served = setup.domains.iter().flat_map(|other| &other.virtio);
    if served.into_iter().any(|device| device.by.get_ref() == &**name) {
        complain("serves devices of others", "let another domain serve them: its own has no devices");
    }
    let fits = |kernel: &str| kernel.starts_with("debian-") || kernel == "bare-paravirtual";
    if matches!(domain.kernel.get_ref(), Image::Named(kernel) if !fits(kernel)) {
        complain(
            "has a kernel that is none for it",
            "name one of Debian's, or give an ELF file with Xen's notes by path",
        );
    }
    if domain.cmdline.get_ref().len() > LONGEST_PARAVIRTUAL_CMDLINE {
        complain(
            "has too long a command line",
            "its kernel takes 1,023 bytes, of which `run` needs some: use at most 512",
        );
    }
}

fn forwarded(setup: &Setup, source: &mut Source) {
    let mut seen: Vec<(u16, &str)> = Vec::new();
    for domain in &setup.domains {
        let name = domain.name.get_ref();
        for forward in &domain.forward {
            let host = forward.get_ref().host;
            if let Some((_, other)) = seen.iter().find(|(port, _)| *port == host) {
                let message = format!("port {host} leads to '{other}' already");
                source.complain(forward.span(), message, "use another port of this machine".to_owned());
            }
            seen.push((host, name));
            if setup.route_to(domain).is_none() {
                let message = format!("no port can be forwarded to '{name}'");
                let help = "it needs a device for itself with net = \"user\", or a virtual card with an address = \"10.0.2.130\" by a \
                            domain that has one: where several guests share a card, which of them has which address is not known before";
                source.complain(forward.span(), message, help.to_owned());
            }
        }
    }
}

fn machine(setup: &Setup, source: &mut Source) {
    let memory = &setup.machine.memory;
    if *memory.get_ref() >= MACHINE_MEMORY_END || !memory.get_ref().is_multiple_of(1 << 20) {
        let message = format!("{} cannot be the memory of the machine", human_size(*memory.get_ref()));
        let help = format!("use whole MiB, less than {}", human_size(MACHINE_MEMORY_END));
        source.complain(memory.span(), message, help);
    }
}

fn command_line(domain: &Domain, setup: &Setup, source: &mut Source) {
    let (text, span) = (domain.cmdline.get_ref(), domain.cmdline.span());
    if let Some(control) = text.chars().find(|character| character.is_control()) {
        let message = format!("a command line cannot have the control character {control:?}");
        source.complain(span, message, "words are separated by single spaces".to_owned());
        return;
    }
    let added = server_words(u16::MAX).len() + 1 + added_words(setup, domain).len();
    let longest = LONGEST_CMDLINE.saturating_sub(added);
    if text.len() > longest {
        let message = format!("a command line of {} bytes is too long", text.len());
        source.complain(
            span,
            message,
            format!("Linux takes at most {LONGEST_CMDLINE}, and `run` needs some: use at most {longest}"),
        );
    }
}

fn own_values(domain: &Domain, setup: &Setup, source: &mut Source) {
    if &**domain.name.get_ref() == "sluice" {
        let help = "choose another name: sluice.log is the hypervisor's, and each guest's console goes to <name>.log";
        source.complain(domain.name.span(), "a domain cannot be called 'sluice'", help.to_owned());
    }
    command_line(domain, setup, source);
    if let (Some(initrd), Image::File(_) | Image::Disk(_)) = (&domain.initrd, domain.kernel.get_ref())
        && let Image::Named(name) = initrd.get_ref()
    {
        let message = format!("'{name}' needs modules of a kernel by name");
        let help = "name a kernel that Sluice fetches, such as \"debian-6.1\", or give an initrd by path";
        source.complain(initrd.span(), message, help.to_owned());
    }
    let memory = *domain.memory.get_ref();
    if memory < LEAST_GUEST_MEMORY || !memory.is_multiple_of(GUEST_PAGE) {
        let message = format!("{} cannot be the memory of a guest", human_size(memory));
        let help = format!("use a multiple of 2 MiB, at least {}", human_size(LEAST_GUEST_MEMORY));
        source.complain(domain.memory.span(), message, help);
    }
    if domain.cpus.len() > usize::from(*domain.vcpus.get_ref()) {
        let first = &domain.cpus[usize::from(*domain.vcpus.get_ref())];
        let message =
            format!("'cpus' names {} processors for {} vcpus", domain.cpus.len(), domain.vcpus.get_ref());
        source.complain(first.span(), message, "give one physical processor per vcpu, or fewer".to_owned());
    }
    let machine_cpus = *setup.machine.cpus.get_ref();
    for cpu in domain.cpus.iter().filter(|cpu| *cpu.get_ref() >= machine_cpus) {
        let message =
            format!("there is no physical processor {}: the machine has {machine_cpus}", cpu.get_ref());
        let help = "processors count from 0; raise 'cpus' in [machine], or pin elsewhere".to_owned();
        source.complain(cpu.span(), message, help);
    }
}

fn memory_fits(setup: &Setup, source: &mut Source) {
    let machine = *setup.machine.memory.get_ref();
    let mut left = machine.saturating_sub(RESERVED_MEMORY);
    for domain in &setup.domains {
        let want = *domain.memory.get_ref();
        match left.checked_sub(want) {
            Some(rest) => left = rest,
            None => {
                let name = domain.name.get_ref();
                let message = format!(
                    "the {} of '{name}' do not fit: of the machine's {} only {} are left for it",
                    human_size(want),
                    human_size(machine),
                    human_size(left),
                );
                let help = format!(
                    "give guests less, or the machine more: [machine] memory, or --memory (the hypervisor keeps {})",
                    human_size(RESERVED_MEMORY)
                );
                source.complain(domain.memory.span(), message, help);
                left = 0;
            }
        }
    }
}

fn devices(setup: &Setup, source: &mut Source) {
    let names: Vec<&String> = setup.devices.iter().map(|device| device.name.get_ref()).collect();
    // First use of each device: whose, in which mode.
    let mut used: Vec<(&str, Mode, &str, usize)> = Vec::new();
    for domain in &setup.domains {
        let owner: &str = domain.name.get_ref();
        for share in &domain.shares {
            let device = share.device.get_ref().as_str();
            if !names.iter().any(|name| *name == device) {
                let help = if names.is_empty() {
                    format!("declare it: [device.{device}] with pci = \"vendor:device\"")
                } else {
                    suggestion(device, &names)
                };
                source.complain(share.device.span(), format!("no device is called '{device}'"), help);
                continue;
            }
            sectors(share, setup, source);
            if share.mode != Mode::Passthrough
                && share.mac.is_none()
                && share.sectors.is_none()
                && !is_disk(share, setup)
            {
                let help = format!("add: mac = \"52:54:00:00:00:{:02x}\"", 0x0a + used.len());
                let message =
                    format!("a NIC shared by {} needs an address for each guest", share.mode.word());
                source.complain(share.device.span(), message, help);
            }
            if share.sectors.is_none() {
                emulated(share, setup, source);
            }
            unprotected(domain, share, setup, source);
            turns(share, source);
            refusals::check(share, setup, source);
            let line = source.line_of(share.device.span().start);
            let first = used.iter().find(|(name, ..)| *name == device).copied();
            used.push((device, share.mode, owner, line));
            let Some((_, mode, other, line)) = first else { continue };
            if other == owner {
                let message = format!("'{owner}' uses the device '{device}' twice");
                source.complain(share.device.span(), message, "name it once".to_owned());
            } else if mode != share.mode {
                let message = format!(
                    "'{device}' is shared in two incompatible ways: {} here, {} by '{other}' in line {line}",
                    share.mode.word(),
                    mode.word()
                );
                source.complain(share.device.span(), message, "use one mode for all its users".to_owned());
            } else if share.mode == Mode::Passthrough {
                let message = format!("'{device}' is passed through to '{other}' already (line {line})");
                let help = "only one guest can own it; share it with mode = \"vpio\" or \"emulated\", or add a second device";
                source.complain(share.device.span(), message, help.to_owned());
            }
        }
    }
}

/// QEMU's devices on which `run` puts disks.
pub fn is_disk_controller(driver: &str) -> bool {
    driver == "nvme" || driver.ends_with("ahci") || driver.ends_with("-ide")
}

/// Whether a device is known to be a controller whose disk guests can share; false where only the hypervisor sees what it is.
fn is_disk(share: &Share, setup: &Setup) -> bool {
    setup.identity(share).is_some_and(|(vendor, device)| config::is_disk(vendor, device))
}

/// Whether a device is known to be something else.
fn is_no_disk(share: &Share, setup: &Setup) -> bool {
    let known = setup
        .identity(share)
        .filter(|id| QEMU_DEVICES.iter().any(|(_, vendor, device)| (*vendor, *device) == *id));
    known.is_some_and(|(vendor, device)| !config::is_disk(vendor, device))
}

/// A rate is kept by the hypervisor's driver of a NIC, where guests have cards of their own behind it.
fn rates(setup: &Setup, source: &mut Source) {
    for device in &setup.devices {
        let Some(rate) = &device.rate else { continue };
        let name = device.name.get_ref();
        let is_driven = |share: &Share| {
            let is_card = share.mode == Mode::Vpio && share.sectors.is_none();
            share.mode == Mode::Emulated || is_card && setup.masters_bus(share) != Some(false)
        };
        let mut shares = setup.domains.iter().flat_map(|domain| &domain.shares);
        let other = shares.find(|share| share.device.get_ref() == name && !is_driven(share));
        let is_networks = setup
            .networks
            .iter()
            .any(|network| network.nic.as_ref().is_some_and(|nic| nic.get_ref() == name));
        if other.is_some() || is_networks {
            let message = format!("nobody holds what '{name}' sends to a rate");
            let help = "'rate' goes with a NIC that guests share by mode = \"emulated\", or an RTL8139 or 82540EM by mode = \"vpio\"; an \
                        interface on a network has 'limit'";
            source.complain(rate.span(), message, help.to_owned());
        }
    }
}

/// A shared disk has parts, which are disjoint.
fn sectors(share: &Share, setup: &Setup, source: &mut Source) {
    let name = share.device.get_ref();
    let Some(sectors) = &share.sectors else {
        if share.mode != Mode::Passthrough && is_disk(share, setup) {
            let message =
                format!("'{name}' is a disk's controller: each guest that shares the disk has a part of it");
            let help = "add sectors = \"FIRST..END\" and use mode = \"vpio\", or give it to one guest: mode = \"passthrough\"";
            source.complain(share.device.span(), message, help.to_owned());
        }
        return;
    };
    let others: [(&str, Option<Range<usize>>); 4] = [
        ("mac", share.mac.as_ref().map(Spanned::span)),
        ("model", share.model.as_ref().map(Spanned::span)),
        ("weight", share.weight.as_ref().map(Spanned::span)),
        ("max_wait_ms", share.max_wait_ms.as_ref().map(Spanned::span)),
    ];
    if share.mode != Mode::Vpio || is_no_disk(share, setup) {
        let message = format!("'{name}' has no sectors to share");
        let help =
            "'sectors' goes with mode = \"vpio\" and a disk's controller: qemu = \"nvme\" or qemu = \"piix3-ide\"".to_owned();
        source.complain(sectors.span(), message, help);
    }
    for (key, span) in others {
        if let Some(span) = span {
            source.complain(span, format!("'{key}' means nothing for a disk"), format!("leave {key} out"));
        }
    }
    let Sectors { first, count, .. } = *sectors.get_ref();
    for other in setup.domains.iter().flat_map(|domain| &domain.shares) {
        let Some(beside) = other.sectors.as_ref().filter(|_| other.device.get_ref() == name) else {
            continue;
        };
        let Sectors { first: at, count: len, .. } = *beside.get_ref();
        // Each pair is told of once, at the later one.
        if beside.span().start < sectors.span().start && first < at + len && at < first + count {
            let line = source.line_of(beside.span().start);
            let message = format!("these sectors of '{name}' are another guest's too (line {line})");
            let help =
                "two guests that write to one range destroy what is on it: give each its own".to_owned();
            source.complain(sectors.span(), message, help);
        }
    }
}

/// Each disk is in one place, and the kernel of a guest is from one of them.
fn disks(setup: &Setup, source: &mut Source) {
    let mut seen: Vec<(&Disk, &str)> = Vec::new();
    for device in &setup.devices {
        let name = device.name.get_ref();
        for disk in &device.disks {
            if let Some((_, other)) = seen.iter().find(|(other, _)| *other == disk.get_ref()) {
                let message = format!("the disk {} is on '{other}' already", disk.get_ref());
                let help = "two guests that write to one disk destroy what is on it: make another with cargo sluice rootfs";
                source.complain(disk.span(), message, help.to_owned());
            }
            seen.push((disk.get_ref(), name));
        }
        let driver = device.qemu.as_ref().and_then(|qemu| qemu.get_ref().split(',').next());
        if let (Some(disk), false) = (device.disks.first(), driver.is_some_and(is_disk_controller)) {
            let message = format!("'{name}' is no controller of disks that `run` emulates");
            source.complain(
                disk.span(),
                message,
                "use qemu = \"nvme\", qemu = \"ich9-ahci\" or qemu = \"piix3-ide\"".to_owned(),
            );
        }
    }
    for domain in &setup.domains {
        let Image::Disk(disk) = domain.kernel.get_ref() else { continue };
        let span = domain.kernel.span();
        if !seen.iter().any(|(other, _)| *other == disk) {
            let message =
                format!("no device has the disk {disk}, from which '{}' would boot", domain.name.get_ref());
            let names: Vec<String> = seen.iter().map(|(disk, _)| disk.to_string()).collect();
            let help = match names.as_slice() {
                [] => format!("add to the device of the domain that serves it: disks = [\"{disk}\"]"),
                names => suggestion(&disk.to_string(), names),
            };
            source.complain(span, message, help);
        } else if disk.format() != "raw" {
            let message = format!("the kernel cannot be read from {disk}");
            let help =
                "only raw images are read: cargo sluice rootfs NAME --from it, or give a kernel by path"
                    .to_owned();
            source.complain(span, message, help);
        }
    }
}

/// The guest sees the physical card, be it under an older revision.
fn is_same_card(model: NicModel, physical: Option<Option<NicModel>>) -> bool {
    let family = |model| if model == NicModel::Rtl8139c { NicModel::Rtl8139 } else { model };
    // What the hypervisor finds is for it to say.
    physical.is_none_or(|physical| physical.map(family) == Some(family(model)))
}

/// The hypervisor drives the device, so it must know how; and only then is there a choice of what the guest sees.
fn emulated(share: &Share, setup: &Setup, source: &mut Source) {
    let name = share.device.get_ref();
    match &share.model {
        Some(model) if share.mode == Mode::Vpio && is_same_card(*model.get_ref(), setup.like(share)) => {}
        Some(model) if share.mode != Mode::Emulated => {
            let message = format!("'model' says what an emulated card is like, and '{name}' is not emulated");
            let help = "leave it out, or use mode = \"emulated\"; an RTL8139 in mode = \"vpio\" can be a \"rtl8139c\"";
            let help = help.to_owned();
            source.complain(model.span(), message, help);
        }
        _ if share.mode == Mode::Vpio && setup.like(share) == Some(None) => {
            let message = format!("no device state model knows '{name}', and mode = \"vpio\" needs one");
            let help = "there are models of the RTL8029 (NE2000), the RTL8139 and the 82540EM (e1000); docs/add-a-device-model.md \
                        says how to add one; or give the device to one guest: mode = \"passthrough\""
                .to_owned();
            source.complain(share.device.span(), message, help);
        }
        _ if share.mode == Mode::Emulated && setup.like(share) == Some(None) => {
            let message =
                format!("the hypervisor has no driver for '{name}', which mode = \"emulated\" needs");
            let help = "it drives the RTL8029 (NE2000), the RTL8139 and the 82540EM (e1000); give other devices to one guest: \
                        mode = \"passthrough\""
                .to_owned();
            source.complain(share.device.span(), message, help);
        }
        _ => {}
    }
}

/// Weights and longest waits mean something only where a device changes hands.
fn turns(share: &Share, source: &mut Source) {
    if share.mode == Mode::Vpio {
        return;
    }
    for (key, value) in [("weight", &share.weight), ("max_wait_ms", &share.max_wait_ms)] {
        if let Some(value) = value {
            let message = format!("'{}' does not change hands in this mode", share.device.get_ref());
            source.complain(value.span(), message, format!("leave {key} out, or use mode = \"vpio\""));
        }
    }
}

/// A function that reaches memory by itself is given away only behind an IOMMU, or knowingly. One that is
/// named by its place is checked by the hypervisor, which sees what it is.
fn unprotected(domain: &Domain, share: &Share, setup: &Setup, source: &mut Source) {
    let name = share.device.get_ref();
    if share.registers_unprotected && share.mode != Mode::Vpio {
        let message =
            format!("'{name}' is not shared by virtual passthrough: its registers are not held back");
        let help = "leave out registers = \"unprotected\", or use mode = \"vpio\"";
        source.complain(share.device.span(), message, help.to_owned());
    }
    if share.mode != Mode::Passthrough {
        for (key, set) in [("dma", share.dma != Dma::Guest), ("interrupts", share.interrupts_unprotected)] {
            if set {
                let message = format!("'{name}' is not passed through: its {key} is the hypervisor's matter");
                source.complain(share.device.span(), message, format!("leave {key} out"));
            }
        }
        return;
    }
    if share.dma.is_issued() && setup.masters_bus(share) == Some(false) {
        let message = format!("'{name}' reaches no memory by itself: there is nothing to issue to it");
        source.complain(share.device.span(), message, "leave out 'dma'".to_owned());
    }
    if share.dma == Dma::Unprotected || setup.masters_bus(share) != Some(true) {
        return;
    }
    let remapping = &setup.machine.interrupt_remapping;
    if setup.iommu() == Iommu::None {
        let message = format!(
            "'{name}' can reach all memory by itself (DMA), and nothing keeps it within its guest's: the machine \
             has no IOMMU"
        );
        let help = match domain.kind.get_ref() {
            Kind::Full => {
                "leave out iommu = \"none\" in [machine]; or, if this guest may do everything that the \
                 hypervisor may, add here: dma = \"unprotected\" (docs/passthrough.md)"
            }
            Kind::Paravirtual => "leave out iommu = \"none\" in [machine]",
        };
        source.complain(share.device.span(), message, help.to_owned());
    } else if !remapping.get_ref() && !share.interrupts_unprotected {
        let line = source.line_of(remapping.span().start);
        let message = format!("'{name}' can forge interrupts: line {line} switches interrupt remapping off");
        let help = "leave that line out; or, if this guest may raise any interrupt of the machine, add here: \
                    interrupts = \"unprotected\"";
        source.complain(share.device.span(), message, help.to_owned());
    }
}

fn station_addresses(setup: &Setup, source: &mut Source) {
    let mut seen: Vec<([u8; 6], &str, usize)> = Vec::new();
    for domain in &setup.domains {
        let shared = domain.shares.iter().filter_map(|share| share.mac.as_ref());
        let virtio = domain.virtio.iter().filter_map(|device| device.mac.as_ref());
        for mac in shared.chain(virtio).chain(domain.vifs.iter().map(|vif| &vif.mac)) {
            let (address, text) = (*mac.get_ref(), format_mac(*mac.get_ref()));
            if address[0] & 1 != 0 {
                let message = format!("{text} is a group (multicast) address");
                source.complain(mac.span(), message, "the first byte must be even, such as 52".to_owned());
            } else if address == [0; 6] {
                source.complain(mac.span(), "the address is all zeros", "use 52:54:00:...".to_owned());
            }
            if let Some((_, owner, line)) = seen.iter().find(|(other, ..)| *other == address) {
                let message = format!("{text} is the address of '{owner}' already (line {line})");
                let help = "every guest on a network needs its own; change the last byte".to_owned();
                source.complain(mac.span(), message, help);
            } else {
                seen.push((address, domain.name.get_ref(), source.line_of(mac.span().start)));
            }
        }
    }
}

fn qemu_devices(setup: &Setup, source: &mut Source) {
    for (index, device) in setup.devices.iter().enumerate() {
        let earlier = &setup.devices[..index];
        if let Some(other) = earlier.iter().find(|other| other.select.get_ref() == device.select.get_ref()) {
            let message = format!(
                "'{}' and '{}' are the same PCI function",
                other.name.get_ref(),
                device.name.get_ref()
            );
            let help = "declare it once and let domains share it, or tell equal cards apart with nth = 1";
            source.complain(device.select.span(), message, help.to_owned());
        }
        if let (Iommu::Amd, Some(_), Select::Address { bus: 0, device: slot @ (1 | 0x14), .. }) =
            (setup.iommu(), &device.qemu, device.select.get_ref())
        {
            let message = format!("slot {slot:02x} of the emulated machine belongs to its IOMMU");
            source.complain(device.select.span(), message, "use slot 02 to 13, or 15 to 1e".to_owned());
        }
        if device.net.is_some() && device.qemu.is_none() {
            let message = format!("'{}' has a network but no QEMU device", device.name.get_ref());
            source.complain(device.name.span(), message, "add: qemu = \"ne2k_pci\"".to_owned());
        }
    }
}
