//! How running instances are looked at: tables, JSON, consoles, metrics; and runs in the background.

use crate::machine::{Machine, ask, ended, read_until, sluice};
use sluice_abi::channel::{Command as Order, Event};
use sluice_abi::report::{Count, DeviceReport, DomainReport, DomainState, Report, ShareReport};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

fn report() -> Report {
    let domain = |name: &str, state| DomainReport {
        name: name.into(),
        state,
        exits: vec![Count { name: "cpuid".into(), value: 1234 }],
        ..DomainReport::default()
    };
    let share = ShareReport { domain: "alice".into(), mode: "vpio".into(), ..ShareReport::default() };
    Report {
        domains: vec![domain("alice", DomainState::Running), domain("bob", DomainState::Paused)],
        devices: vec![DeviceReport {
            name: "nic0".into(),
            model: "ne2000".into(),
            shares: vec![share],
            ..DeviceReport::default()
        }],
        ..Report::default()
    }
}

/// What a command prints that asks for a report.
fn asked(machine: &mut Machine, arguments: &[&str]) -> String {
    let child = ask(machine, arguments);
    let request = machine.hear();
    assert_eq!(request.command, Order::Report);
    machine.say(&Event::Report { seq: request.seq, report: report() });
    let (said, status) = ended(child);
    assert_eq!(status, Some(0), "{said}");
    said
}

fn off(mut machine: Machine) {
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

fn parse(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn what_runs_is_listed_with_what_is_known_of_it() {
    let mut machine = Machine::start("listed", &[]);
    machine.console(0, "SLUICE-RESULT net=up address=10.0.2.15/24 driver=x mac=y\n");
    machine.state(0, DomainState::Running, "");
    machine.settle();
    let table = asked(&mut machine, &["ps"]);
    let alice = table.lines().find(|line| line.contains("alice")).unwrap();
    let cells: Vec<&str> = alice.split_whitespace().collect();
    assert_eq!(cells[..7], ["listed", "alice", "running", "64", "MiB", "1", "10.0.2.15/24"], "{table}");
    let list = parse(&asked(&mut machine, &["ps", "--json"]));
    assert_eq!(list[0]["domains"][0]["address"], "10.0.2.15/24");
    assert_eq!(list[0]["domains"][1]["memory_bytes"], 64 << 20);
    assert_eq!(list[0]["pid"], machine.run.id());

    let text = asked(&mut machine, &["info", "alice"]);
    for piece in
        ["state         running", "memory        64 MiB", "address       10.0.2.15/24", "logs/alice.log"]
    {
        assert!(text.contains(piece), "{piece}: {text}");
    }
    assert_eq!(parse(&asked(&mut machine, &["info", "bob", "--json"]))["state"], "paused");

    let devices = asked(&mut machine, &["devices"]);
    assert!(
        devices.contains("nic0") && devices.contains("ne2000") && devices.contains("no IOMMU"),
        "{devices}"
    );
    assert_eq!(parse(&asked(&mut machine, &["devices", "--json"]))["devices"][0]["name"], "nic0");

    let metrics = asked(&mut machine, &["metrics"]);
    let line = "sluice_domain_exits_total{instance=\"listed\",domain=\"bob\",reason=\"cpuid\"} 1234\n";
    assert!(metrics.contains(line), "{metrics}");
    off(machine);
}

/// Answers this many requests for a report.
fn answer(machine: &mut Machine, times: usize) {
    for _ in 0..times {
        let request = machine.hear();
        assert_eq!(request.command, Order::Report);
        machine.say(&Event::Report { seq: request.seq, report: report() });
    }
}

#[test]
fn top_without_a_terminal_writes_text_or_json() {
    let mut machine = Machine::start("looked", &[]);
    machine.state(0, DomainState::Running, "");
    machine.settle();
    let child = ask(&machine, &["top", "--interval", "0.01", "--count", "2"]);
    answer(&mut machine, 3);
    let (said, status) = ended(child);
    assert_eq!((said.matches("nic0 (ne2000): shared by alice").count(), status), (2, Some(0)), "{said}");
    assert!(!said.contains('\x1b'), "{said}");
    let child = ask(&machine, &["top", "--interval", "0.01", "--count", "2", "--json"]);
    answer(&mut machine, 3);
    let (said, _) = ended(child);
    let looks: Vec<serde_json::Value> = said.lines().map(parse).collect();
    assert_eq!((looks.len(), &looks[1]["domains"][1]["state"]), (2, &"paused".into()));
    off(machine);
}

/// `top` on a terminal of its own, which script(1) makes.
#[test]
fn top_on_a_terminal_is_left_by_a_key_and_leaves_it_as_it_was() {
    let mut machine = Machine::start("watched", &[]);
    machine.state(0, DomainState::Running, "");
    machine.settle();
    let program = env!("CARGO_BIN_EXE_sluice");
    let typed =
        format!("stty rows 24 cols 100; stty -g; {program} top --interval 0.05; echo status $?; stty -g");
    let mut script = std::process::Command::new("script");
    let environment = sluice(&machine.directory);
    script.envs(environment.get_envs().filter_map(|(key, value)| Some((key, value?))));
    script.args(["-qfc", &typed, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(&machine.directory);
    let mut script = script.spawn().unwrap();
    let mut keys = script.stdin.take().unwrap();
    let mut out = script.stdout.take().unwrap();
    answer(&mut machine, 2);
    let first = read_until(&mut out, "space hold");
    assert!(first.contains("\x1b[?1049h") && first.contains("alice"), "the alternate screen: {first:?}");
    std::io::Write::write_all(&mut keys, b"q").unwrap();
    // It may have asked once more meanwhile.
    let rest = read_until(&mut out, "status 0");
    assert!(rest.contains("\x1b[?1049l"), "{rest:?}");
    let mut last = String::new();
    std::io::Read::read_to_string(&mut out, &mut last).unwrap();
    assert!(script.wait().unwrap().success());
    let modes = |text: &str| {
        text.lines()
            .map(str::trim)
            .find(|line| line.contains(':') && !line.contains('\x1b'))
            .map(str::to_owned)
    };
    assert_eq!(modes(&last), modes(&first), "{first:?} {last:?}");
    assert!(modes(&last).is_some());
    off(machine);
}

#[test]
fn consoles_are_read_and_followed() {
    let mut machine = Machine::start("read", &[]);
    machine.console(0, "one\r\ntwo \x1b[2J\r\n");
    machine.state(0, DomainState::Running, "");
    machine.settle();
    let all = ended(ask(&machine, &["logs", "alice"]));
    assert_eq!(all, ("one\ntwo \\x1b[2J\n".to_owned(), Some(0)), "and harmless");
    assert_eq!(ended(ask(&machine, &["logs", "alice", "-n", "1"])).0, "two \\x1b[2J\n");
    let (said, status) = ended(ask(&machine, &["logs", "carol"]));
    assert_eq!(status, Some(1));
    assert!(said.contains("'read' has no domain 'carol'"), "{said}");
    let mut follower = ask(&machine, &["logs", "alice", "-f", "-n", "1"]);
    read_until(follower.stdout.as_mut().unwrap(), "two \\x1b[2J\n");
    machine.console(0, "three\nrest");
    machine.settle();
    off(machine);
    assert_eq!(ended(follower), ("three\nrest\n".to_owned(), Some(0)));
}

#[test]
fn whoever_attaches_sees_what_happens_to_the_end() {
    let mut machine = Machine::start("attached", &["--quiet"]);
    machine.state(0, DomainState::Running, "");
    machine.settle();
    let mut attached = ask(&machine, &["attach"]);
    let first = read_until(attached.stderr.as_mut().unwrap(), "alice: running\n");
    machine.console(1, "SLUICE-RESULT marker=here\n");
    off(machine);
    let (rest, status) = ended(attached);
    let said = first + &rest;
    assert_eq!(status, Some(0), "{said}");
    for piece in ["alice: running\n", "bob: marker=here\n", "bob: powered-off\n", "attached has ended"] {
        assert!(said.contains(piece), "{piece}: {said}");
    }
}

#[test]
fn a_console_says_when_the_other_end_is_gone() {
    let mut machine = Machine::start("gone", &[]);
    machine.state(0, DomainState::Running, "");
    machine.console(0, "hello\n");
    machine.settle();
    // Its input stays open: it is not the user who leaves.
    let mut command = sluice(&machine.directory);
    command.args(["console", "alice"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut console = command.spawn().unwrap();
    let keep_open = console.stdin.take();
    read_until(console.stdout.as_mut().unwrap(), "hello");
    machine.end_by("exit 1");
    let output = console.wait_with_output().unwrap();
    drop(keep_open);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("[the instance of alice has ended]"), "{said}");
}

#[test]
fn a_run_in_the_background_goes_on() {
    let mut machine = Machine::start("background", &["--detach"]);
    let directory = machine.directory.clone();
    machine.state(0, DomainState::Running, "");
    let deadline = Instant::now() + Duration::from_secs(20);
    while machine.run.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The command has ended, the instance has not.
    machine.settle();
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let Output { status, stdout, .. } = machine.output("0");
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success() && said.contains("background runs in the background (process "), "{said}");
    let text = || std::fs::read_to_string(directory.join("logs/run.out")).unwrap_or_default();
    while !text().contains("ok: every guest") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(text().contains("ok: every guest"), "{}", text());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn lists_are_also_json() {
    let directory = std::env::temp_dir().join(format!("sluice-test-lists-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (command, name, field) in
        [("test", "two-guests", "cases"), ("bench", "boot", "parts"), ("mutate", "guest-memory-hole", "ring")]
    {
        let output = sluice(&directory).args([command, "--list", "--json"]).output().unwrap();
        let list = parse(&String::from_utf8_lossy(&output.stdout));
        let entries = list.as_array().unwrap();
        let entry =
            entries.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{command}: {list}"));
        assert!(entry["about"].is_string() && !entry[field].is_null(), "{entry}");
        let alone = sluice(&directory).args([command, "--json"]).output().unwrap();
        assert_eq!(alone.status.code(), Some(2), "{command} runs something, and says it as it goes");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn completions_and_manual_pages_are_written() {
    let directory = std::env::temp_dir().join(format!("sluice-test-man-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let script = sluice(&directory).args(["completions", "bash"]).output().unwrap();
    assert!(String::from_utf8_lossy(&script.stdout).contains("_sluice()"));
    let written = sluice(&directory).args(["man", "man1"]).output().unwrap();
    let page = std::fs::read_to_string(directory.join("man1/sluice-run.1"));
    let main = std::fs::read_to_string(directory.join("man1/sluice.1"));
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(written.status.success(), "{written:?}");
    assert!(page.unwrap().contains("\\-\\-detach") && main.unwrap().contains("sluice\\-run(1)"));
}

#[test]
fn ssh_says_what_is_missing() {
    let mut machine = Machine::start("ssh", &[]);
    machine.settle();
    let ssh = |machine: &Machine, domain: &str| {
        let output = sluice(&machine.directory).args(["ssh", domain]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = ssh(&machine, "alice");
    assert!(said.contains("no port of this machine leads to the sshd of 'alice'"), "{said}");
    assert!(said.contains("add to [domain.alice]: forward = [\"2222:22\"]"), "{said}");
    let said = ssh(&machine, "carol");
    assert!(said.contains("no domain 'carol'"), "{said}");
    off(machine);
}
