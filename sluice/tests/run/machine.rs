//! A machine that the test plays: a QEMU that is a script, and the hypervisor's side of the management channel.

use sluice_abi::DomainId;
use sluice_abi::channel::{Decoder, Event, Request, VERSION, encode};
use sluice_abi::report::{Count, DomainReport, DomainState, Report};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A run of `sluice run` and the machine behind it.
pub struct Machine {
    pub directory: PathBuf,
    pub name: String,
    pub run: Child,
    pub channel: UnixStream,
    decoder: Decoder,
}

/// The command with a runtime directory and a machine of the test's own.
pub fn sluice(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .env("TMPDIR", directory)
        .env("XDG_RUNTIME_DIR", directory)
        .env("SLUICE_HYPERVISOR", "/dev/null")
        .env("SLUICE_QEMU", directory.join("qemu"))
        .current_dir(directory);
    command
}

/// Knows four devices, as QEMU 7.2 lists them, and runs until the file `status` is there.
const QEMU: &str = r#"#!/bin/sh
case "$*" in
"-device help")
    echo 'name "e1000", bus PCI, alias "e1000-82540em", desc "Intel Gigabit Ethernet"'
    echo 'name "ne2k_pci", bus PCI'
    echo 'name "isa-serial", bus ISA'
    echo 'name "nvme", bus PCI, desc "Non-Volatile Memory Express"'
    exit 0 ;;
"-device e1000,help")
    echo 'e1000 options:'
    echo '  addr=<int32>           - Slot and optional function number (default: -1)'
    echo '  mac=<str>              - Ethernet 6-byte MAC Address'
    exit 0 ;;
esac
while [ ! -e status ]; do sleep 0.02; done
case $(cat status) in
[0-9]*) exit $(cat status) ;;
*) eval "$(cat status)" ;;
esac
"#;

/// The smallest kernel that can be loaded: an ELF file for the 386 with a multiboot header and one segment at 1 MiB
/// (multiboot specification, 3.1).
pub fn kernel() -> Vec<u8> {
    let mut file = vec![0; 0x80];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x7f, b'E', b'L', b'F', 1, 1, 1]);
    // An executable for the 386 that begins at 1 MiB, with one program header of 32 bytes at 0x34.
    put(16, &[2, 0, 3, 0, 1, 0, 0, 0, 0, 0, 0x10, 0, 0x34]);
    put(42, &[32, 0, 1, 0]);
    let segment: [u32; 8] = [1, 0x60, 0x10_0000, 0x10_0000, 0x20, 0x20, 5, 4];
    segment.iter().zip(0..).for_each(|(word, index)| put(0x34 + index * 4, &word.to_le_bytes()));
    let magic: u32 = 0x1bad_b002;
    put(0x60, &magic.to_le_bytes());
    put(0x68, &magic.wrapping_neg().to_le_bytes());
    file
}

/// A directory with all that a run needs.
pub fn prepare(directory: &Path, file: &str) {
    std::fs::create_dir_all(directory).unwrap();
    let qemu = directory.join("qemu");
    std::fs::write(&qemu, QEMU).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(directory.join("vmlinuz"), kernel()).unwrap();
    let config = "[domain.alice]\nkernel = \"vmlinuz\"\nmemory = \"64MiB\"\n\
                  [domain.bob]\nkernel = \"vmlinuz\"\nmemory = \"64MiB\"\n";
    std::fs::write(directory.join(file), config).unwrap();
}

impl Machine {
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        Self::start_into(name, arguments, Stdio::piped(), Stdio::piped())
    }

    /// As `start`; what the command says goes there.
    pub fn start_into(name: &str, arguments: &[&str], out: Stdio, error: Stdio) -> Self {
        let mut machine = Self::power_on(name, arguments, out, error);
        machine.say(&Event::Hello { version: VERSION, domains: vec!["alice".into(), "bob".into()] });
        machine
    }

    /// A machine whose hypervisor says nothing yet.
    pub fn power_on(name: &str, arguments: &[&str], out: Stdio, error: Stdio) -> Self {
        let json: &[&str] = if arguments.contains(&"--json") { &[] } else { &["--json", "out.json"] };
        let directory = std::env::temp_dir().join(format!("sluice-test-{name}-{}", std::process::id()));
        prepare(&directory, &format!("{name}.toml"));
        let run = sluice(&directory)
            .args(["run", &format!("{name}.toml"), "--consoles", "logs"])
            .args(json)
            .args(arguments)
            .stdout(out)
            .stderr(error)
            // As a shell starts it: a terminal's Ctrl-C goes to all of a group.
            .process_group(0)
            .spawn()
            .unwrap();
        let socket = directory.join("sluice").join(name).join("channel");
        let deadline = Instant::now() + Duration::from_secs(20);
        let channel = loop {
            match UnixStream::connect(&socket) {
                Ok(channel) => break channel,
                Err(error) if Instant::now() > deadline => panic!("{}: {error}", socket.display()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        // A test that waits in vain fails.
        channel.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { directory, name: name.to_owned(), run, channel, decoder: Decoder::default() }
    }

    /// Ctrl-C on the terminal of the run.
    pub fn interrupt(&self) {
        let group = format!("-{}", self.run.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    }

    /// Waits until the run has ended, whose output is short.
    pub fn wait(&mut self) {
        self.run.wait().unwrap();
    }

    pub fn say(&mut self, event: &Event) {
        self.channel.write_all(&encode(event).unwrap()).unwrap();
    }

    pub fn state(&mut self, domain: u16, state: DomainState, reason: &str) {
        self.say(&Event::State { domain: DomainId(domain), state, reason: reason.into() });
    }

    pub fn console(&mut self, domain: u16, text: &str) {
        self.say(&Event::Console { domain: DomainId(domain), bytes: text.as_bytes().to_vec() });
    }

    pub fn hear(&mut self) -> Request {
        let mut byte = [0];
        loop {
            self.channel.read_exact(&mut byte).unwrap();
            if let Some(request) = self.decoder.push(byte[0]) {
                return request;
            }
        }
    }

    /// Waits until the run has heard what was said.
    pub fn settle(&mut self) {
        let report = ask(self, &["report"]);
        let request = self.hear();
        self.say(&Event::Report { seq: request.seq, report: Report::default() });
        assert_eq!(ended(report).1, Some(0));
    }

    pub fn finish(&mut self) {
        let domains = ["alice", "bob"].map(|name| DomainReport {
            name: name.into(),
            exits: vec![Count { name: "cpuid".into(), value: 42 }],
            ..DomainReport::default()
        });
        self.say(&Event::Report { seq: 0, report: Report { domains: domains.into(), ..Report::default() } });
        self.say(&Event::Finished);
    }

    /// QEMU ends; what `run` said, its exit status, and its JSON document.
    pub fn end(self, status: i32) -> (String, Option<i32>, serde_json::Value) {
        self.end_by(&status.to_string())
    }

    /// As `end`; QEMU ends by these commands of a shell.
    pub fn end_by(self, how: &str) -> (String, Option<i32>, serde_json::Value) {
        let directory = self.directory.clone();
        let ended = self.stop_by(how);
        let lock = directory.join("sluice").join(".lock");
        assert!(lock.exists(), "the sockets were here");
        let left: Vec<_> = std::fs::read_dir(directory.join("sluice")).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "an instance leaves nothing behind but the common lock: {left:?}");
        std::fs::remove_dir_all(&directory).unwrap();
        ended
    }

    /// As `end`, and its files stay.
    pub fn stop(self, status: i32) -> (String, Option<i32>, serde_json::Value) {
        self.stop_by(&status.to_string())
    }

    /// QEMU ends; all that `run` left.
    pub fn output(self, how: impl AsRef<[u8]>) -> Output {
        drop(self.channel);
        std::fs::write(self.directory.join("status.new"), how).unwrap();
        std::fs::rename(self.directory.join("status.new"), self.directory.join("status")).unwrap();
        self.run.wait_with_output().unwrap()
    }

    fn stop_by(self, how: &str) -> (String, Option<i32>, serde_json::Value) {
        let document = self.directory.join("out.json");
        let Output { status, stdout, stderr } = self.output(how);
        let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        let json = std::fs::read_to_string(document).unwrap_or_default();
        (said, status.code(), serde_json::from_str(&json).unwrap_or_default())
    }
}

/// A command to this machine's instance.
pub fn ask(machine: &Machine, arguments: &[&str]) -> Child {
    let mut command = sluice(&machine.directory);
    command.args(arguments);
    if !matches!(arguments[0], "ps" | "metrics") {
        command.args(["--instance", &machine.name]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What it printed, and its exit status.
pub fn ended(child: Child) -> (String, Option<i32>) {
    let output = child.wait_with_output().unwrap();
    (String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(), output.status.code())
}

/// Reads what it prints until this comes: it has connected by then.
pub fn read_until(output: &mut impl Read, text: &str) -> String {
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&said).contains(text) {
        assert_eq!(output.read(&mut byte).unwrap(), 1, "no {text:?} in {:?}", String::from_utf8_lossy(&said));
        said.extend(byte);
    }
    String::from_utf8_lossy(&said).into_owned()
}
