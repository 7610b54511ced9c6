//! From power-on to the greeting of a fresh Debian's sshd: with Sluice, with `xl` under Xen, with QEMU alone, on the same emulated machine, from
//! the same disk. And what a user types for it, who has the programs and nothing else.
//!
//! This is in seconds, as a ratio of QEMU's in the same run: who waits for a guest waits for its timeouts and for the addresses that somebody
//! gives away, too, and instructions would not count that.

use super::driver::xen;
use super::parts::Parts;
use super::record::Record;
use super::{Clock, kernel, run_watched, scratch, scratch_file};
use crate::disks::{self, Disk, Recipe};
use crate::kernels::{self, Kernel};
use crate::manage::ssh::greets;
use crate::observer::{Observer, Steer};
use crate::workspace::{not_found, qemu};
use anyhow::{Context, Result, bail};
use sluice_abi::channel::Command as Order;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Its parts.
pub const PARTS: [&str; 3] = ["qemu", "sluice", "xen"];

/// A machine that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is looked.
const PAUSE: Duration = Duration::from_millis(250);
/// The disk, made anew for each machine.
const DISK: &str = "bench-first-ssh";
/// Memory in MiB: of each machine, of the guest.
const MACHINE: u32 = 2048;
const GUEST: u32 = 512;

/// What is typed, once the programs are there and the user has a key.
const STEPS: [(&str, &[&str]); 3] = [
    (
        "qemu",
        &[
            "mmdebstrap --include=linux-image-amd64,systemd-sysv,systemd-resolved,udev,openssh-server --customize-hook=... (network, key) bookworm root.tar",
            "fakeroot sh -c 'mkdir root; tar -C root -xf root.tar; mke2fs -t ext4 -d root disk 4G'",
            "cp root/boot/vmlinuz-* vmlinuz; cp root/boot/initrd.img-* initrd",
            "qemu-system-x86_64 -m 512 -kernel vmlinuz -initrd initrd -append root=/dev/vda -drive file=disk,if=virtio -nic user,hostfwd=tcp::2222-:22",
            "ssh -p 2222 root@127.0.0.1",
        ],
    ),
    ("sluice", &["cargo sluice run examples/servers.toml", "cargo sluice ssh web"]),
    (
        "xen",
        &[
            "a bridge with the card, in dom0's /etc/network/interfaces",
            "ifup xenbr0",
            "xen-create-image --hostname=web --dhcp --dist=bookworm ...",
            "xl create /etc/xen/web.cfg",
            "the address, from the DHCP server or by xl console",
            "ssh root@ADDRESS",
        ],
    ),
];

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    for (name, steps) in STEPS {
        record.row(format!("first_ssh.{name}.steps"), steps.len() as f64, "commands", steps.join("; "));
    }
    let parts = Parts::new(only);
    for part in PARTS.into_iter().filter(|part| parts.wants(part, None)) {
        super::say(&format!("a fresh Debian, by {part}"));
        record.solved(part);
        let seconds = match part {
            "sluice" => sluice(record),
            "xen" => xen(record),
            _ => alone(),
        };
        match seconds {
            Ok(seconds) => record.row(
                format!("first_ssh.{part}.seconds"),
                seconds,
                "s",
                "from power-on to sshd's greeting; the disk is there",
            ),
            Err(error) => record.problem(part, &format!("{error:#}")),
        }
        record.write()?;
    }
    for part in ["sluice", "xen"] {
        let value = |part: &str| record.value(&format!("first_ssh.{part}.seconds"));
        if let (Some(seconds), Some(alone)) = (value(part), value("qemu")) {
            record.row(
                format!("first_ssh.{part}.ratio_to_qemu"),
                seconds / alone,
                "ratio",
                "seconds, in the same run",
            );
        }
    }
    Ok(())
}

/// The fresh disk.
fn disk() -> Result<Disk> {
    disks::make(&Recipe { force: true, ..Recipe::usual(DISK.parse()?) })
}

/// A port of this machine that nobody has.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Waits for sshd's greeting from when the machine starts.
struct Wait {
    port: u16,
    started: Option<Instant>,
    looked: Instant,
    seconds: Option<f64>,
}

impl Wait {
    fn new(port: u16) -> Self {
        Self { port, started: None, looked: Instant::now(), seconds: None }
    }

    /// It has been looked at, if it was time; true once the greeting has come.
    fn look(&mut self) -> bool {
        if self.seconds.is_none() && self.looked.elapsed() >= PAUSE {
            self.seconds = greets(self.port)
                .then(|| self.started.map_or(0.0, |started| started.elapsed().as_secs_f64()));
            self.looked = Instant::now();
        }
        self.seconds.is_some()
    }
}

impl Observer for Wait {
    fn starting(&mut self) {
        self.started = Some(Instant::now());
    }

    fn tick(&mut self, steer: &mut Steer) {
        if self.seconds.is_none() && self.look() {
            steer.send(Order::Shutdown);
        }
    }
}

fn sluice(record: &mut Record) -> Result<f64> {
    let disk = disk()?;
    let port = free_port()?;
    let text = format!(
        "[machine]\nmemory = \"{MACHINE}MiB\"\n\
         [device.nic0]\nqemu = \"e1000\"\nnet = \"user\"\n\
         [device.nvme0]\nqemu = \"nvme\"\ndisks = [\"{disk}\"]\n\
         [domain.driver]\nkernel = \"debian-6.1\"\ninitrd = \"driver-domain\"\nmemory = \"256MiB\"\n\
         cmdline = \"console=ttyS0 quiet sluice.job=serve:bridge=br0,uplink=eth0,network=10.0.2.129/25,pool=10.0.2.192-10.0.2.254\"\n\
         devices = [{{ use = \"nic0\", mode = \"passthrough\" }}, {{ use = \"nvme0\", mode = \"passthrough\" }}]\n\
         [domain.web]\nkernel = {{ disk = \"{disk}\" }}\ncmdline = \"console=ttyS0 quiet root=/dev/vda\"\nmemory = \"{GUEST}MiB\"\n\
         forward = [\"{port}:22\"]\ngrants = \"all\"\n\
         devices = [{{ mode = \"virtio\", type = \"blk\", by = \"driver\", source = \"/dev/nvme0n1\" }},\n\
         {{ mode = \"virtio\", type = \"net\", by = \"driver\", source = \"br0\", mac = \"52:54:00:00:00:0a\", address = \"10.0.2.130\" }}]\n"
    );
    let mut wait = Wait::new(port);
    let (_, outcome) = run_watched("first-ssh", &text, Clock::Host, Vec::new(), &mut wait)?;
    record.kernels(&outcome.kernels);
    // Its guests are ended by force, which is no failure here.
    wait.seconds.with_context(|| format!("the guest's sshd never answered: {}", outcome.problems.join("; ")))
}

/// QEMU is the whole machine: the guest's kernel by `-kernel`, virtio devices.
fn alone() -> Result<f64> {
    let disk = disk()?;
    let (kernel, initrd) = boot_files(&disk)?;
    let port = free_port()?;
    let drive = format!("if=none,id=disk0,format=raw,file={}", disk.image().display());
    machine(
        "qemu",
        port,
        "EPYC",
        GUEST,
        &kernel.image,
        &initrd.display().to_string(),
        "console=ttyS0 quiet root=/dev/vda",
        &[
            "-drive",
            &drive,
            "-device",
            "virtio-blk-pci,drive=disk0",
            "-device",
            "virtio-net-pci,netdev=net0,romfile=",
        ],
    )
}

/// Debian's kernel as dom0 with a small root file system, which begins sooner than a Debian would.
fn xen(record: &mut Record) -> Result<f64> {
    let disk = disk()?;
    let (guest, initrd) = boot_files(&disk)?;
    let port = free_port()?;
    let dom0 = kernels::get("debian-6.1")?;
    // Xen takes no bzImage for dom0 that is compressed by xz within.
    let (unpacked, guest) = (kernel::unpacked(&dom0)?, kernel::unpacked(&guest)?);
    let packages = xen::Packages::unpack()?;
    record.version("xen", &format!("package {}", packages.version()?));
    let configuration = format!(
        "name = 'web'\ntype = 'pvh'\nkernel = '/guest/kernel'\nramdisk = '/guest/initrd'\nmemory = {GUEST}\nvcpus = 1\n\
         cmdline = 'console=hvc0 quiet root=/dev/xvda'\ntsc_mode = 'native'\non_crash = 'destroy'\n\
         disk = ['phy:/dev/nvme0n1,xvda,w']\nvif = ['mac=52:54:00:00:00:0a,bridge=br0']\n"
    );
    let web = xen::Configured {
        name: "web".to_owned(),
        text: configuration,
        before: String::new(),
        is_shown: true,
    };
    let archive = xen::dom0(
        &packages,
        &dom0,
        (&std::fs::read(&guest)?, &std::fs::read(&initrd)?),
        &[web],
        xen::UPLINK,
    )?;
    let initramfs = scratch_file("first-ssh-xen.cpio", &archive)?;
    let hypervisor = scratch_file("xen", &packages.hypervisor()?)?;
    let drive = format!("if=none,id=disk0,format=raw,file={}", disk.image().display());
    let modules = format!("{} console=hvc0 quiet panic=-1,{}", unpacked.display(), initramfs.display());
    let result = machine(
        "xen",
        port,
        xen::CPU,
        MACHINE,
        &hypervisor,
        &modules,
        xen::CMDLINE,
        &[
            "-drive",
            &drive,
            "-device",
            "nvme,serial=sluice,drive=disk0",
            "-device",
            "e1000,netdev=net0,romfile=",
        ],
    );
    std::fs::remove_file(&initramfs)?;
    result
}

/// The kernel and the ramdisk of the disk, as files.
fn boot_files(disk: &Disk) -> Result<(Kernel, PathBuf)> {
    let found = disks::read_boot(&disk.image())?;
    let ramdisk = found.ramdisk.context("the fresh disk has no ramdisk")?;
    let image = scratch_file("first-ssh-vmlinuz", &found.kernel)?;
    let kernel = Kernel { release: found.release, version: String::new(), image, modules: PathBuf::new() };
    Ok((kernel, scratch_file("first-ssh-initrd", &ramdisk)?))
}

/// Starts a machine, waits for the greeting, and ends it.
#[expect(clippy::too_many_arguments, reason = "each is an argument of QEMU's")]
fn machine(
    name: &str,
    port: u16,
    cpu: &str,
    memory: u32,
    kernel: &Path,
    initrd: &str,
    cmdline: &str,
    devices: &[&str],
) -> Result<f64> {
    let log = scratch()?.join(format!("first-ssh-{name}.log"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(qemu());
    command.args([
        "-machine",
        "q35",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        cpu,
        "-smp",
        "1",
        "-m",
        &memory.to_string(),
    ]);
    command.arg("-netdev").arg(format!("user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:22")).args(devices);
    command.arg("-kernel").arg(kernel).args(["-initrd", initrd, "-append", cmdline]);
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial"])
        .arg(format!("file:{}", log.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut wait = Wait::new(port);
    wait.starting();
    let mut child = command.spawn().with_context(|| not_found("setpriv"))?;
    let started = Instant::now();
    while !wait.look() && started.elapsed() < PATIENCE && child.try_wait()?.is_none() {
        std::thread::sleep(PAUSE / 5);
    }
    let _ = child.kill();
    child.wait()?;
    match wait.seconds {
        Some(seconds) => Ok(seconds),
        None => bail!(
            "no sshd answered within {:.0} s; see {}",
            started.elapsed().as_secs_f64(),
            crate::workspace::shortened(&log).display()
        ),
    }
}
