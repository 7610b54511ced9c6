//! The host command against a machine that the test plays itself: QEMU is a script that waits for an exit
//! status, and the test speaks on the management channel as the hypervisor would.

use sluice_abi::channel::{Command as Order, Decoder, Event, Request, VERSION, encode};
use sluice_abi::report::{Count, DomainReport, DomainState, Report};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A run of `sluice run` and the machine behind it.
struct Machine {
    directory: PathBuf,
    name: String,
    run: Child,
    channel: UnixStream,
    decoder: Decoder,
}

fn sluice(directory: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .env("TMPDIR", directory)
        .env("SLUICE_HYPERVISOR", "/dev/null")
        .env("SLUICE_QEMU", directory.join("qemu"))
        .current_dir(directory);
    command
}

impl Machine {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(format!("sluice-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let qemu = directory.join("qemu");
        std::fs::write(&qemu, "#!/bin/sh\nwhile [ ! -e status ]; do sleep 0.02; done\nexit $(cat status)\n")
            .unwrap();
        std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(directory.join("vmlinuz"), "a kernel").unwrap();
        let config = "[domain.alice]\nkernel = \"vmlinuz\"\nmemory = \"64MiB\"\n\
                      [domain.bob]\nkernel = \"vmlinuz\"\nmemory = \"64MiB\"\n";
        std::fs::write(directory.join(format!("{name}.toml")), config).unwrap();
        let run = sluice(&directory)
            .args(["run", &format!("{name}.toml"), "--json", "out.json", "--consoles", "logs"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let user = std::env::var("USER").unwrap_or_else(|_| "user".to_owned());
        let socket = directory.join(format!("sluice-{user}")).join(name).join("channel");
        let deadline = Instant::now() + Duration::from_secs(20);
        let channel = loop {
            match UnixStream::connect(&socket) {
                Ok(channel) => break channel,
                Err(error) if Instant::now() > deadline => panic!("{}: {error}", socket.display()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut machine =
            Self { directory, name: name.to_owned(), run, channel, decoder: Decoder::default() };
        machine.say(&Event::Hello { version: VERSION, domains: vec!["alice".into(), "bob".into()] });
        machine
    }

    fn say(&mut self, event: &Event) {
        self.channel.write_all(&encode(event).unwrap()).unwrap();
    }

    fn state(&mut self, domain: u16, state: DomainState, reason: &str) {
        self.say(&Event::State { domain, state, reason: reason.into() });
    }

    fn console(&mut self, domain: u16, text: &str) {
        self.say(&Event::Console { domain, bytes: text.as_bytes().to_vec() });
    }

    fn hear(&mut self) -> Request {
        let mut byte = [0];
        loop {
            self.channel.read_exact(&mut byte).unwrap();
            if let Some(request) = self.decoder.push(byte[0]) {
                return request;
            }
        }
    }

    fn finish(&mut self) {
        let domains = ["alice", "bob"].map(|name| DomainReport {
            name: name.into(),
            exits: vec![Count { name: "cpuid".into(), value: 42 }],
            ..DomainReport::default()
        });
        self.say(&Event::Report { seq: 0, report: Report { domains: domains.into(), ..Report::default() } });
        self.say(&Event::Finished);
    }

    /// QEMU ends; what `run` said, its exit status, and its JSON document.
    fn end(self, status: i32) -> (String, Option<i32>, serde_json::Value) {
        drop(self.channel);
        std::fs::write(self.directory.join("status.new"), status.to_string()).unwrap();
        std::fs::rename(self.directory.join("status.new"), self.directory.join("status")).unwrap();
        let Output { status, stdout, stderr } = self.run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        let json = std::fs::read_to_string(self.directory.join("out.json")).unwrap_or_default();
        let _ = std::fs::remove_dir_all(&self.directory);
        (said, status.code(), serde_json::from_str(&json).unwrap_or_default())
    }
}

#[test]
fn a_good_run_is_reported_in_full() {
    let mut machine = Machine::start("good", &[]);
    machine.console(0, "SLUICE-RESULT download_bytes=4194304 download_");
    machine.console(0, "sha256=ok download_seconds=1.5\r\nSLUICE-RESULT done=ok\r\n");
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let log = machine.directory.join("logs/alice.log");
    let (said, status, json) = machine.end(0);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("4 MiB, sha256 ok"), "{said}");
    assert_eq!(json["outcome"]["word"], "ok");
    assert_eq!(json["domains"]["alice"]["downloaded_bytes"], 4_194_304);
    assert_eq!(json["domains"]["bob"]["exits"]["cpuid"], 42);
    assert!(!log.exists(), "removed with the rest");
}

#[test]
fn a_crashed_guest_is_a_guest_failure() {
    let mut machine = Machine::start("crashed", &["--quiet"]);
    machine.state(0, DomainState::Crashed, "triple fault");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (said, status, json) = machine.end(0);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("alice crashed: triple fault"), "{said}");
    assert_eq!(json["domains"]["alice"]["reason"], "triple fault");
}

#[test]
fn a_guest_that_reports_a_failure_is_one() {
    let mut machine = Machine::start("unhappy", &[]);
    machine.console(1, "SLUICE-RESULT done=failed\n");
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (said, status, _) = machine.end(0);
    assert_eq!(status, Some(4), "{said}");
}

#[test]
fn a_panic_is_a_hypervisor_failure_with_its_log() {
    let machine = Machine::start("panicked", &[]);
    std::fs::write(machine.directory.join("logs/sluice.log"), "up\n\npanic on cpu0: oh\nbacktrace: 1 2\n")
        .unwrap();
    let (said, status, _) = machine.end(0x2a << 1 | 1);
    assert_eq!(status, Some(5), "{said}");
    assert!(said.contains("the hypervisor panicked") && said.contains("| panic on cpu0: oh"), "{said}");
}

#[test]
fn an_early_end_is_a_hypervisor_failure() {
    let (said, status, _) = Machine::start("early", &[]).end(0);
    assert_eq!(status, Some(5), "{said}");
}

#[test]
fn a_machine_that_hangs_runs_out_of_time() {
    let mut machine = Machine::start("hung", &["--timeout", "0.2"]);
    machine.state(0, DomainState::Running, "");
    let request = machine.hear();
    assert_eq!(request.command, Order::Report);
    machine.say(&Event::Report { seq: request.seq, report: Report { cpus: 3, ..Report::default() } });
    // Killed, not ended: the script never sees its status.
    let mut rest = Vec::new();
    let _ = machine.channel.read_to_end(&mut rest);
    let (said, status, json) = machine.end(0);
    assert_eq!(status, Some(6), "{said}");
    assert_eq!(json["hypervisor"]["cpus"], 3);
}

#[test]
fn commands_reach_a_running_instance() {
    let mut machine = Machine::start("steered", &[]);
    machine.state(0, DomainState::Running, "");
    let ask = |machine: &Machine, arguments: &[&str]| {
        let mut command = sluice(&machine.directory);
        command.args(arguments).args(["--instance", &machine.name]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let pause = ask(&machine, &["pause", "bob"]);
    let request = machine.hear();
    assert_eq!(request.command, Order::Pause(1));
    machine.say(&Event::Reply { seq: request.seq, result: Ok(()) });
    assert!(pause.wait_with_output().unwrap().status.success());

    let start = ask(&machine, &["start", "alice"]);
    let request = machine.hear();
    let refused = Err(sluice_abi::channel::CommandError::WrongState);
    machine.say(&Event::Reply { seq: request.seq, result: refused });
    let output = start.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("state does not allow it"));

    let lost = ask(&machine, &["pause", "carol"]).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&lost.stderr).contains("no domain 'carol'; there are: alice, bob"));

    let report = ask(&machine, &["report"]);
    let request = machine.hear();
    machine.say(&Event::Report { seq: request.seq, report: Report { tsc_khz: 77, ..Report::default() } });
    assert!(String::from_utf8_lossy(&report.wait_with_output().unwrap().stdout).contains("\"tsc_khz\": 77"));

    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn a_wrong_configuration_has_a_status_of_its_own() {
    let directory = std::env::temp_dir().join(format!("sluice-test-wrong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("wrong.toml"), "[domain.a]\nkernle = 1\n").unwrap();
    let output = sluice(&directory).args(["check", "wrong.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(said.contains("wrong.toml:2:1: error: unknown key 'kernle'"), "{said}");
    assert!(said.contains("did you mean 'kernel'?"), "{said}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let directory = std::env::temp_dir().join(format!("sluice-test-pipe-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = sluice(&directory).arg("ps").stdout(writer).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    std::fs::remove_dir_all(directory).unwrap();
}
