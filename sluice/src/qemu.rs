//! The emulated machine: QEMU's command line for a setup, and what its end means.

use crate::config::{Device, Iommu, Setup};
use crate::disks::Disk;
use crate::workspace::{self, not_found};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use sluice_abi::config::Select;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The processor of a kernel that runs on the machine without a hypervisor, for a comparison with a paravirtual guest: QEMU 7.2 takes instructions of programs
/// for those of a kernel if SMAP is on, so that paravirtual guests run without.
pub const NATIVE_CPU: &str = "EPYC,-smap,-monitor";

/// How guest instructions are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// KVM if it offers nested SVM, else TCG.
    #[default]
    Auto,
    /// QEMU's own emulation.
    Tcg,
    /// The host's KVM with nested SVM.
    Kvm,
}

/// How the hypervisor is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boot {
    /// By QEMU itself (`-kernel`, PVH).
    #[default]
    Pvh,
    /// By GRUB under a BIOS, from an image.
    Bios,
    /// By GRUB under UEFI, from an image.
    Uefi,
}

/// Where Debian's OVMF has UEFI firmware.
const UEFI_FIRMWARE: &str = "/usr/share/ovmf/OVMF.fd";

/// Slots of the root bus whose numbers do not contain each other's bits. QEMU's AMD-Vi mixes the bits of an address from 48
/// up with the requester's number when it looks for a cached translation: a device could use those of another whose
/// number has all bits of its own. 20 is the I/O APIC's there.
const APART: [u8; 9] = [3, 5, 6, 9, 10, 12, 17, 18, 24];

/// What is loaded.
pub enum Loaded<'a> {
    /// The hypervisor and its bundle.
    Files(&'a Path, &'a Path),
    /// An image with both, under a BIOS or UEFI.
    Image(&'a Path, Boot),
}

/// What the machine is made of besides the setup.
pub struct Machine<'a> {
    /// What is loaded.
    pub loaded: Loaded<'a>,
    /// Where the hypervisor's log goes.
    pub log: &'a Path,
    /// The socket on which somebody listens for the management channel.
    pub channel: &'a Path,
    /// How instructions are run.
    pub accel: Accel,
    /// Physical processors.
    pub cpus: u8,
    /// Count instructions instead of time (`-icount shift=0,sleep=off`).
    pub icount: bool,
    /// Further arguments, after all others.
    pub extra: &'a [String],
}

/// Whether an emulated graphics card is to draw by OpenGL.
fn draws(arguments: &[String]) -> bool {
    let values = arguments.iter().skip(1);
    arguments.iter().zip(values).any(|(option, value)| option == "-display" && value.contains("gl=on"))
}

/// The environment of a QEMU that draws where there is no screen: SDL into memory, Mesa by the processor.
pub fn draws_with(arguments: &[String]) -> Result<&'static [(&'static str, &'static str)]> {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !draws(arguments) {
        return Ok(&[]);
    }
    let mut asked = Command::new(workspace::qemu());
    let known = workspace::run(asked.args(["-display", "help"]))?;
    if !String::from_utf8_lossy(&known.stdout).lines().any(|line| line == "sdl") {
        bail!(
            "QEMU cannot draw: `make setup-all`, or apt-get install qemu-system-gui libegl1 libgl1-mesa-dri"
        );
    }
    Ok(if has_screen { &[] } else { &[("SDL_VIDEODRIVER", "offscreen"), ("LIBGL_ALWAYS_SOFTWARE", "1")] })
}

/// Starts QEMU; it ends when the calling thread does, however that happens.
pub fn start(arguments: &[String]) -> Result<Child> {
    let environment = draws_with(arguments)?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(workspace::qemu())
        .args(arguments)
        .envs(environment.iter().copied())
        // A terminal's Ctrl-C is for us; the guests are stopped first.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| not_found("setpriv"))
}

/// QEMU's arguments.
pub fn arguments(setup: &Setup, machine: &Machine) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    let kvm = match machine.accel {
        Accel::Kvm => true,
        Accel::Tcg => false,
        Accel::Auto => !machine.icount && has_nested_svm(),
    };
    let iommu = iommu(setup);
    // The host's KVM cannot remap interrupts of an I/O APIC that it emulates itself.
    let split = if kvm && iommu.is_some() { ",kernel-irqchip=split" } else { "" };
    add("-machine", format!("q35{split}"));
    if kvm {
        add("-accel", "kvm".into());
        add("-cpu", "host".into());
    } else {
        let thread = if machine.icount { "single" } else { "multi" };
        add("-accel", format!("tcg,thread={thread}"));
        add("-cpu", "EPYC,+svm,+npt".into());
    }
    if machine.icount {
        add("-icount", "shift=0,sleep=off".into());
        add("-rtc", "base=2024-01-01,clock=vm".into());
    }
    add("-m", format!("{}M", setup.machine.memory.get_ref() >> 20));
    // The hypervisor keeps the first of several processors of TCG's to itself (docs/debug.md).
    let own = u8::from(!kvm && machine.cpus > 1);
    add("-smp", machine.cpus.saturating_add(own).to_string());
    match machine.loaded {
        Loaded::Files(elf, bundle) => {
            add("-kernel", text(elf)?);
            add("-initrd", text(bundle)?);
        }
        Loaded::Image(image, boot) => boot_from(image, boot, &mut add)?,
    }
    add("-serial", format!("file:{}", text(machine.log)?));
    add("-chardev", format!("socket,id=channel,path={}", text(machine.channel)?));
    add("-serial", "chardev:channel".into());
    add("-device", "isa-debug-exit,iobase=0xf4,iosize=0x04".into());
    // First of the PCI devices: what is plugged in before it is not behind it.
    if let Some(iommu) = iommu {
        add("-device", iommu);
    }
    let amd = setup.iommu() == Iommu::Amd;
    let mut slots = if amd { APART.iter() } else { [].iter() };
    for (index, device) in setup.devices.iter().enumerate() {
        let Some(qemu) = &device.qemu else { continue };
        let mut properties = format!("{},id={}", qemu.get_ref(), device_id(index));
        if let Select::Address { bus: 0, device, function } = device.select.get_ref() {
            properties += &format!(",addr={device:02x}.{function}");
        } else if let Some(slot) = slots.next() {
            properties += &format!(",addr={slot:02x}");
        }
        if let Some(net) = device.net.as_ref().filter(|net| net.mode != "none") {
            let mut options =
                if net.options.is_empty() { String::new() } else { format!(",{}", net.options) };
            options += &forwards(setup, device);
            add("-netdev", format!("{},id=net{index}{options}", net.mode));
            properties += &format!(",netdev=net{index}");
        }
        if !device.disks.is_empty() && properties.starts_with("nvme,") && !properties.contains("serial=") {
            properties += &format!(",serial={}", device.name.get_ref());
        }
        add("-device", properties);
        for (number, disk) in (0..).zip(&device.disks) {
            attach(index, number, qemu.get_ref(), disk.get_ref(), &mut add)?;
        }
    }
    for flag in ["-nodefaults", "-no-reboot", "-no-user-config"] {
        arguments.push(flag.to_owned());
    }
    arguments.extend(["-display".to_owned(), "none".to_owned()]);
    arguments.extend(setup.machine.qemu_args.iter().cloned());
    arguments.extend(machine.extra.iter().cloned());
    Ok(arguments)
}

/// A disk of a controller: its namespace 1, 2... of an NVMe controller, what is at its port 0, 1... of an AHCI controller.
fn attach(
    controller: usize,
    number: u32,
    driver: &str,
    disk: &Disk,
    add: &mut impl FnMut(&str, String),
) -> Result<()> {
    let drive = format!("disk{controller}-{number}");
    let file = disk.image();
    let format = disk.format();
    add("-drive", format!("if=none,id={drive},file={},format={format},discard=unmap", text(&file)?));
    let device = match driver.split(',').next() {
        Some("nvme") => format!("nvme-ns,bus=dev{controller},nsid={},drive={drive}", number + 1),
        // Two disks on each channel.
        Some(driver) if driver.ends_with("-ide") => {
            format!("ide-hd,bus=dev{controller}.{},unit={},drive={drive}", number / 2, number % 2)
        }
        _ => format!("ide-hd,bus=dev{controller}.{number},drive={drive}"),
    };
    add("-device", device);
    Ok(())
}

/// QEMU's name of a device of the configuration.
pub fn device_id(index: usize) -> String {
    format!("dev{index}")
}

/// Arguments that boot an image.
pub fn boot_from(image: &Path, boot: Boot, add: &mut impl FnMut(&str, String)) -> Result<()> {
    if boot == Boot::Uefi {
        // As a disk: the firmware's drivers for optical drives give up after a few seconds, which
        // an emulated machine on a busy host may well take for a sector.
        add("-drive", format!("if=virtio,format=raw,readonly=on,file={}", text(image)?));
        add("-bios", UEFI_FIRMWARE.into());
    } else {
        add("-cdrom", text(image)?);
    }
    Ok(())
}

/// Ports that are forwarded by a device. Without an address QEMU leads them to the first one that it gives away, 10.0.2.15; nobody
/// else on this network is there to get it.
fn forwards(setup: &Setup, device: &Device) -> String {
    let mut words = String::new();
    for domain in &setup.domains {
        let Some(route) = setup.route_to(domain).filter(|route| route.device.name == device.name) else {
            continue;
        };
        let address = route.address.map_or(String::new(), |address| address.to_string());
        for forward in domain.forward.iter().map(toml::Spanned::get_ref) {
            words += &format!(",hostfwd=tcp:127.0.0.1:{}-{address}:{}", forward.host, forward.guest);
        }
    }
    words
}

/// The IOMMU as a QEMU device.
fn iommu(setup: &Setup) -> Option<String> {
    let remapping = if *setup.machine.interrupt_remapping.get_ref() { "on" } else { "off" };
    // VT-d as servers have it: four levels of tables, no caching of what is not present (that is for
    // hypervisors which shadow the tables). Extended interrupt mode stays off: QEMU has it with KVM only.
    match setup.iommu() {
        Iommu::None => None,
        Iommu::Amd => Some(format!("amd-iommu,intremap={remapping}")),
        Iommu::Intel => Some(format!("intel-iommu,intremap={remapping},aw-bits=48,caching-mode=off")),
    }
}

/// A path in an argument.
pub fn text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) if !text.contains(',') => Ok(text.to_owned()),
        _ => bail!("QEMU cannot take the path {}", path.display()),
    }
}

/// The host's KVM offers AMD SVM to its guests, and works.
fn has_nested_svm() -> bool {
    let nested = std::fs::read_to_string("/sys/module/kvm_amd/parameters/nested").unwrap_or_default();
    if !matches!(nested.trim(), "1" | "Y") {
        return false;
    }
    // The parameter alone proves nothing in a container: let QEMU open it once.
    let trial = Command::new("timeout")
        .arg("5")
        .arg(workspace::qemu())
        .args(["-accel", "kvm", "-cpu", "host,+svm,enforce", "-machine", "q35"])
        .args(["-nodefaults", "-display", "none", "-S", "-monitor", "stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut trial) = trial else { return false };
    if let Some(stdin) = &mut trial.stdin {
        let _ = std::io::Write::write_all(stdin, b"quit\n");
    }
    trial.wait().is_ok_and(|status| status.success())
}

/// QEMU's exit status after a panic or a fault of the hypervisor: `isa-debug-exit` turns a value into `value << 1 | 1`.
pub const PANICKED: i32 = 0x2a << 1 | 1;
/// QEMU's exit status after a bundle that the hypervisor could not use.
pub const REFUSED: i32 = 0x2b << 1 | 1;
/// QEMU's exit status after the hypervisor found that the machine cannot run guests.
pub const UNFIT: i32 = 0x2c << 1 | 1;
/// What QEMU says when a signal ends it in order, which leaves the exit status 0.
pub const TOLD_TO_END: &str = "terminating on signal";

#[cfg(test)]
mod tests {
    use super::*;

    fn option(machine_text: &str, cpus: u8, option: &str) -> Vec<String> {
        let text = format!(
            "[machine]\n{machine_text}\n[device.nic0]\nqemu = \"e1000\"\n[domain.a]\nkernel = \"debian-6.1\"\n\
             memory = \"64MiB\"\ndevices = [{{ use = \"nic0\", mode = \"passthrough\", \
             interrupts = \"unprotected\" }}]\n"
        );
        let setup = crate::config::load_text(Path::new("test.toml"), &text).unwrap();
        let loaded = Loaded::Files(Path::new("elf"), Path::new("bundle"));
        let (log, channel) = (Path::new("log"), Path::new("channel"));
        let machine = Machine { loaded, log, channel, accel: Accel::Tcg, cpus, icount: false, extra: &[] };
        let arguments = arguments(&setup, &machine).unwrap();
        let pairs = arguments.windows(2).filter(|pair| pair[0] == option);
        pairs.map(|pair| pair[1].clone()).filter(|value| !value.starts_with("isa")).collect()
    }

    #[test]
    fn the_iommu_comes_before_what_it_contains() {
        assert_eq!(option("", 1, "-device"), ["amd-iommu,intremap=on", "e1000,id=dev0,addr=03"]);
        let intel = option("iommu = \"intel\"\ninterrupt_remapping = false", 1, "-device");
        assert_eq!(intel, ["intel-iommu,intremap=off,aw-bits=48,caching-mode=off", "e1000,id=dev0"]);
    }

    #[test]
    fn ports_are_forwarded_by_the_guests_own_card() {
        let text = "[device.nic0]\nqemu = \"e1000\"\nnet = { mode = \"user\", options = \"restrict=on\" }\n[domain.a]\n\
             kernel = \"debian-6.1\"\nmemory = \"64MiB\"\nforward = [\"2222:22\", \"8080:80\"]\n\
             devices = [{ use = \"nic0\", mode = \"passthrough\" }]\n";
        let setup = crate::config::load_text(Path::new("test.toml"), text).unwrap();
        let ports = forwards(&setup, &setup.devices[0]);
        assert_eq!(ports, ",hostfwd=tcp:127.0.0.1:2222-:22,hostfwd=tcp:127.0.0.1:8080-:80");
    }

    #[test]
    fn disks_follow_their_controller() {
        let with_disks = |driver: &str| {
            let text = format!(
                "[device.d]\npci = \"1:1\"\nqemu = \"{driver}\"\ndisks = [\"web\", \"files\"]\n[domain.a]\n\
                 kernel = \"debian-6.1\"\nmemory = \"64MiB\"\n"
            );
            let text = text.replace("1:1", "8086:2922");
            let setup = crate::config::load_text(Path::new("test.toml"), &text).unwrap();
            let loaded = Loaded::Files(Path::new("elf"), Path::new("bundle"));
            let (log, channel) = (Path::new("log"), Path::new("channel"));
            let machine =
                Machine { loaded, log, channel, accel: Accel::Tcg, cpus: 1, icount: false, extra: &[] };
            arguments(&setup, &machine).unwrap()
        };
        let nvme = with_disks("nvme");
        let at = nvme.iter().position(|word| word == "nvme,id=dev0,serial=d").unwrap();
        assert_eq!(nvme[at + 3], "-device");
        assert_eq!(nvme[at + 4], "nvme-ns,bus=dev0,nsid=1,drive=disk0-0");
        assert!(nvme[at + 2].ends_with("images/web/disk.raw,format=raw,discard=unmap"), "{}", nvme[at + 2]);
        assert!(nvme.contains(&"nvme-ns,bus=dev0,nsid=2,drive=disk0-1".to_owned()));
        assert!(with_disks("ich9-ahci").contains(&"ide-hd,bus=dev0.1,drive=disk0-1".to_owned()));
    }

    #[test]
    fn ports_lead_to_an_address_that_is_known() {
        let text = "[device.nic0]\nqemu = \"e1000\"\nnet = \"user\"\n[domain.d]\nkernel = \"debian-6.1\"\n\
             memory = \"64MiB\"\ndevices = [{ use = \"nic0\", mode = \"passthrough\" }]\n[domain.a]\n\
             kernel = \"debian-6.1\"\nmemory = \"64MiB\"\nforward = [\"2222:22\"]\ngrants = \"all\"\n\
             devices = [{ mode = \"virtio\", type = \"net\", by = \"d\", source = \"br0\", \
             mac = \"52:54:00:00:00:0a\", address = \"10.0.2.130\" }]\n";
        let setup = crate::config::load_text(Path::new("test.toml"), text).unwrap();
        assert_eq!(forwards(&setup, &setup.devices[0]), ",hostfwd=tcp:127.0.0.1:2222-10.0.2.130:22");
    }

    #[test]
    fn one_processor_of_several_is_the_hypervisors_own() {
        assert_eq!(option("", 1, "-smp"), ["1"]);
        assert_eq!(option("", 2, "-smp"), ["3"]);
    }

    #[test]
    fn slots_do_not_contain_each_other() {
        for (index, slot) in APART.iter().enumerate() {
            let others = APART[..index].iter().chain(&[20]);
            assert!(others.into_iter().all(|other| slot & other != *slot && slot & other != *other));
        }
    }
}
