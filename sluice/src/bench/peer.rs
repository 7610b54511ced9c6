//! The peer: Debian's Linux as a KVM host with Debian's QEMU, on the same emulated machine as Sluice.
//!
//! An initramfs holds busybox, the kernel's own kvm-amd, the QEMU of this machine with the libraries and
//! firmware it needs, and the guest. Its `init` loads the module and starts the guest; what the guest says on
//! its console appears on the emulated machine's. The other peer is the guest itself on that machine, without any
//! hypervisor.

use super::record::Record;
use super::{Clock, scratch};
use crate::cpio::Archive;
use crate::kernels::{self, Kernel};
use crate::outcome::{Finding, parse_finding};
use crate::{qemu, rootfs, workspace};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A run that takes longer is given up: a multiple of what the longest, two of KVM's guests that talk, takes on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Memory of the emulated machine in MiB: the initramfs, unpacked, is most of it.
const MEMORY: u32 = 1536;
/// Modules of the host, and what its network needs.
const MODULES: [&str; 3] = ["kvm-amd", "virtio-pci", "virtio-net"];
/// Files that QEMU reads when it starts a PC, and where Debian has them.
const FIRMWARE: [&str; 6] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/seabios/bios-microvm.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/multiboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
];

/// The host of a guest.
pub struct Peer {
    /// Name of the run, for its files.
    pub name: String,
    /// What it takes for time.
    pub clock: Clock,
    /// Give the host a network, so that its guests reach 10.0.2.2.
    pub network: bool,
    /// Further arguments for the QEMU that emulates the machine.
    pub qemu_args: Vec<String>,
}

/// The guest.
pub struct Guest<'a> {
    /// Its kernel.
    pub kernel: &'a Path,
    /// Its initial ramdisk.
    pub initrd: Option<&'a Path>,
    /// Its command line.
    pub cmdline: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// Further arguments for the QEMU that runs it.
    pub arguments: String,
}

/// An emulated machine that starts a peer.
pub struct Machine<'a> {
    /// Name of the run, for its files.
    pub name: &'a str,
    /// What it takes for time.
    pub clock: Clock,
    /// Its processor.
    pub cpu: &'a str,
    /// Its memory in MiB.
    pub memory: u32,
    /// What it starts.
    pub kernel: &'a Path,
    /// With this initial ramdisk, or these modules.
    pub initrd: String,
    /// With this command line.
    pub cmdline: &'a str,
    /// Arguments for its devices.
    pub devices: Vec<&'a str>,
    /// Further arguments.
    pub qemu_args: &'a [String],
}

/// The processor that Sluice and a KVM host run on.
pub const CPU: &str = "EPYC,+svm,+npt";

impl Machine<'_> {
    /// Runs it until one of its consoles reports something under the key `last`, and returns what was found.
    pub fn run(&self, last: &str) -> Result<Vec<Finding>> {
        self.follow(self.start()?, last)
    }

    fn start(&self) -> Result<Child> {
        let thread = if self.clock.icount() { "single" } else { "multi" };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(workspace::qemu());
        command.args(["-machine", "q35", "-accel", &format!("tcg,thread={thread}")]);
        command.args(["-cpu", self.cpu, "-smp", "1", "-m", &self.memory.to_string()]);
        if self.clock.icount() {
            command.args(["-icount", "shift=0,sleep=off", "-rtc", "base=2024-01-01,clock=vm"]);
            command.args(self.clock.arguments());
        }
        command.args(&self.devices);
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(&self.initrd);
        command.args(["-append", self.cmdline]);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ]);
        command.args(self.qemu_args);
        command.envs(qemu::draws_with(self.qemu_args)?.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().with_context(|| workspace::not_found("setpriv"))
    }

    /// Reads the console until the guest has reported all, keeps it in a file, and ends the machine.
    fn follow(&self, mut machine: Child, last: &str) -> Result<Vec<Finding>> {
        let output = machine.stdout.take().context("it has a console")?;
        let log = scratch()?.join(format!("{}.log", self.name));
        let mut file = std::fs::File::create(&log)?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let _ = file.write_all(&line).and_then(|()| file.write_all(b"\n"));
                if sender.send(String::from_utf8_lossy(&line).replace('\r', "")).is_err() {
                    return;
                }
            }
        });
        let started = Instant::now();
        let mut findings = Vec::new();
        let mut done = false;
        while !done {
            let left = PATIENCE.saturating_sub(started.elapsed());
            let Ok(line) = lines.recv_timeout(left) else { break };
            if let Some(finding) = parse_finding(&line) {
                done = finding.iter().any(|(key, _)| key == last);
                findings.push(finding);
            }
        }
        let failed = findings.iter().flatten().any(|pair| pair.0 == "done" && pair.1 != "ok");
        // Its counts are complete: what comes after is of no interest.
        let _ = machine.kill();
        machine.wait()?;
        if !done || failed {
            bail!("the guest of {} did not finish; see {}", self.name, workspace::shortened(&log).display());
        }
        Ok(findings)
    }
}

impl Peer {
    /// Runs the guest until it reports something under the key `last`, and returns what it found.
    pub fn run(&self, guest: &Guest, last: &str, record: &mut Record) -> Result<Vec<Finding>> {
        let kernel = kernels::get("debian-6.1")?;
        record.version("kvm_host", &format!("{}, package {}", kernel.release, kernel.version));
        record.version("kvm_qemu", "the same as qemu");
        let initramfs = scratch()?.join(format!("{}.cpio", self.name));
        std::fs::write(&initramfs, self.initramfs(guest, &kernel)?)
            .with_context(|| format!("could not write {}", initramfs.display()))?;
        let mut devices = Vec::new();
        if self.network {
            devices.extend(["-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0,romfile="]);
        }
        let result =
            self.machine(&kernel.image, &initramfs, "console=ttyS0 quiet panic=-1", devices).run(last);
        std::fs::remove_file(&initramfs)?;
        result
    }

    /// Runs the guest on the emulated machine itself, until it reports something under the key `last`.
    pub fn run_native(&self, guest: &Guest, last: &str) -> Result<Vec<Finding>> {
        let devices = guest.arguments.split_whitespace().collect();
        let initrd = guest.initrd.context("it has an initrd")?;
        self.machine(guest.kernel, initrd, &guest.cmdline, devices).run(last)
    }

    fn machine<'a>(
        &'a self,
        kernel: &'a Path,
        initrd: &Path,
        cmdline: &'a str,
        devices: Vec<&'a str>,
    ) -> Machine<'a> {
        Machine {
            name: &self.name,
            clock: self.clock,
            cpu: CPU,
            memory: MEMORY,
            kernel,
            initrd: initrd.display().to_string(),
            cmdline,
            devices,
            qemu_args: &self.qemu_args,
        }
    }

    fn initramfs(&self, guest: &Guest, kernel: &Kernel) -> Result<Vec<u8>> {
        let modules = MODULES.map(str::to_owned);
        let mut archive = rootfs::base(self.script(guest).as_bytes(), &modules, kernel)?;
        archive.directory("guest");
        take_qemu(&mut archive)?;
        take(&mut archive, guest.kernel, "guest/kernel", 0o644)?;
        if let Some(initrd) = guest.initrd {
            take(&mut archive, initrd, "guest/initrd", 0o644)?;
        }
        Ok(archive.finish())
    }

    /// The host's `init`.
    fn script(&self, guest: &Guest) -> String {
        let network = if self.network {
            "modprobe virtio-net\n\
             ip addr add 10.0.2.15/24 dev eth0\n\
             ip link set eth0 up\n\
             ip route add default via 10.0.2.2\n"
        } else {
            ""
        };
        let initrd = if guest.initrd.is_some() { "-initrd /guest/initrd" } else { "" };
        format!(
            "#!/bin/sh\n\
             export PATH=/bin LD_LIBRARY_PATH=/qemu\n\
             mount -t proc proc /proc\n\
             mount -t sysfs sysfs /sys\n\
             mount -t devtmpfs devtmpfs /dev\n\
             modprobe kvm-amd\n\
             modprobe virtio-pci\n\
             ip link set lo up\n\
             {network}\
             echo \"host: Linux $(uname -r), nested paging $(cat /sys/module/kvm_amd/parameters/npt)\"\n\
             /qemu/qemu -L /qemu -accel kvm -cpu host -smp 1 -m {}M {} \\\n\
             -nodefaults -no-user-config -no-reboot -display none -serial stdio \\\n\
             -kernel /guest/kernel {initrd} -append '{}' </dev/null\n\
             echo \"host: QEMU ended with $?\"\n\
             poweroff -f\n\
             sleep 60\n",
            guest.memory >> 20,
            guest.arguments,
            guest.cmdline,
        )
    }
}

/// Adds a file as it is on this machine.
pub fn take(archive: &mut Archive, from: &Path, to: &str, mode: u32) -> Result<()> {
    let content = std::fs::read(from).with_context(|| format!("could not read {}", from.display()))?;
    archive.file(to, mode, &content);
    Ok(())
}

/// Adds this machine's QEMU as `qemu/qemu`, and what it needs to run and to start a PC.
pub fn take_qemu(archive: &mut Archive) -> Result<()> {
    let binary = find(&workspace::qemu().to_string_lossy())?;
    for directory in ["qemu", "lib64"] {
        archive.directory(directory);
    }
    take(archive, &binary, "qemu/qemu", 0o755)?;
    for library in libraries(&binary, &[])? {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The program interpreter has a fixed place.
        let directory = if name.starts_with("ld-linux") { "lib64" } else { "qemu" };
        take(archive, &library, &format!("{directory}/{name}"), 0o755)?;
    }
    for file in FIRMWARE.map(Path::new) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        take(archive, file, &format!("qemu/{name}"), 0o644)?;
    }
    Ok(())
}

/// The path of a program.
fn find(program: &str) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&paths).map(|directory| directory.join(program));
    let found = places.find(|path| path.is_file()).with_context(|| workspace::not_found(program))?;
    found.canonicalize().context("could not resolve its path")
}

/// The shared libraries of a program, and its interpreter; those in the folders of `search` before this machine's.
pub fn libraries(binary: &Path, search: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let search = std::env::join_paths(search).context("a folder of libraries has a colon in its name")?;
    let output = workspace::run(Command::new("ldd").arg(binary).env("LD_LIBRARY_PATH", search))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
