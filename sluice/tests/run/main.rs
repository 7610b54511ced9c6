//! The host command against a machine that the test plays itself: QEMU is a script that waits for an exit
//! status, and the test speaks on the management channel as the hypervisor would.
//!
//! - [`machine`] is that machine; here is what comes of its runs, in `steering` how they are steered.
//! - `looking` is how they are looked at, `bad_input` has files and command lines with which nothing can be done, as data in `bad-input.toml`.

mod bad_input;
mod looking;
mod machine;
mod steering;

use machine::{Machine, prepare, sluice};
use sluice_abi::channel::{Command as Order, Event};
use sluice_abi::report::{DomainState, Report};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

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
fn the_machine_is_told_that_its_last_report_has_arrived() {
    let mut machine = Machine::start("told", &["--quiet"]);
    machine.channel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.hear().command, Order::Acknowledge);
    // The answer took so long that the machine says it all again.
    machine.finish();
    assert_eq!(machine.hear().command, Order::Acknowledge);
    let (said, status, _) = machine.end(0);
    assert_eq!(status, Some(0), "{said}");
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
    let log = "up\n\npanic on cpu0: oh\nguest \x1b]0;title\x07 \x1b[2J\nbacktrace: 1 2\n";
    std::fs::write(machine.directory.join("logs/sluice.log"), log).unwrap();
    let (said, status, _) = machine.end(0x2a << 1 | 1);
    assert_eq!(status, Some(5), "{said}");
    assert!(said.contains("the hypervisor panicked") && said.contains("| panic on cpu0: oh"), "{said}");
    assert!(said.contains("| guest \\x1b]0;title\\x07 \\x1b[2J"), "{said}");
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

/// Sets the title, the clipboard, clears the screen (with ESC and with C1), turns the text around.
const HOSTILE: &str = "\x1b]0;t\x07\x1b]52;c;eAo\x1b\\\x1b[2J\u{9b}2J\u{202e}\x7f";
/// The same for people.
const SHOWN: &str = "\\x1b]0;t\\x07\\x1b]52;c;eAo\\x1b\\\\x1b[2J\\x9b2J\\u{202e}\\x7f";

/// Nothing in it steers a terminal.
fn is_harmless(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !c.is_control()) && !text.contains('\u{202e}')
}

fn a_hostile_guest_speaks(name: &str, arguments: &[&str]) -> String {
    let mut machine = Machine::start(name, arguments);
    machine.console(0, &format!("SLUICE-RESULT init={HOSTILE} kernel={HOSTILE} {HOSTILE}=1 done=ok\n"));
    machine.console(0, &format!("SLUICE-RESULT {HOSTILE}={HOSTILE}\n"));
    machine.console(1, &format!("hello {HOSTILE}\r\n"));
    machine.state(0, DomainState::Crashed, &format!("because {HOSTILE}\nok: forged"));
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let out = machine.directory.join("out.json");
    let directory = machine.directory.clone();
    let (said, status, json) = machine.stop(0);
    let text = std::fs::read_to_string(out).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    assert_eq!(status, Some(4), "{said:?}");
    assert!(is_harmless(&said), "{said:?}");
    assert!(said.contains(&format!("because {SHOWN}\\x0aok: forged")), "{said}");
    assert!(said.contains(&format!("{SHOWN} s")), "in the table: {said}");
    assert!(is_harmless(&text), "{text:?}");
    assert_eq!(
        json["domains"]["alice"]["reason"],
        format!("because {HOSTILE}\nok: forged"),
        "JSON is faithful"
    );
    assert_eq!(json["domains"]["alice"]["results"][1][HOSTILE], HOSTILE);
    said
}

#[test]
fn words_of_guests_do_not_steer_the_terminal() {
    let said = a_hostile_guest_speaks("escapes", &[]);
    assert!(said.contains(&format!("init after {SHOWN} s, Linux {SHOWN}")), "{said}");
    assert!(said.contains(&format!("{SHOWN}={SHOWN}")), "{said}");
}

#[test]
fn consoles_do_not_steer_the_terminal() {
    let said = a_hostile_guest_speaks("verbose", &["--verbose"]);
    assert!(said.contains(&format!("bob: hello {SHOWN}\n")), "{said}");
}

#[test]
fn a_console_is_raw_only_on_request() {
    let mut machine = Machine::start("consoles", &[]);
    machine.state(0, DomainState::Running, "");
    machine.state(1, DomainState::Running, "");
    let connect = |machine: &Machine, more: &[&str]| {
        let mut command = sluice(&machine.directory);
        // Nothing else of this checkout answers in this directory.
        command.args(["console", "alice"]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (filtered, raw) = (connect(&machine, &[]), connect(&machine, &["--raw"]));
    // Late or not, they get it: it is in the tail too. What matters is that both are there at the end.
    let edited = "# l\x08\x1b[1;32ms\x1b[m\x1b[6n\r\n";
    machine.console(0, &format!("{edited}{HOSTILE}"));
    machine.state(0, DomainState::PoweredOff, "");
    let filtered = String::from_utf8(filtered.wait_with_output().unwrap().stdout).unwrap();
    let raw = String::from_utf8(raw.wait_with_output().unwrap().stdout).unwrap();
    assert!(raw.starts_with(&format!("{edited}{HOSTILE}")), "{raw:?}");
    let shown = "# l\x08\x1b[1;32ms\x1b[m\r\n\\x1b]0;t\x07\\x1b]52;c;eAo\\x1b\\\x1b[2J\\x9b2J\\u{202e}\\x7f";
    assert!(filtered.starts_with(shown), "{filtered:?}");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    machine.end(0);
}

#[test]
fn a_guest_that_floods_fills_nothing() {
    let mut machine = Machine::start("flood", &["--quiet"]);
    let line = "SLUICE-RESULT k=v\n".repeat(500);
    for _ in 0..4 {
        machine.console(0, &line);
    }
    let block = "y".repeat(60_000);
    for _ in 0..(17 << 20) / block.len() + 1 {
        machine.console(1, &block);
    }
    machine.console(1, "\nSLUICE-RESULT done=ok\n");
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let directory = machine.directory.clone();
    let (said, status, json) = machine.stop(0);
    let console = std::fs::read(directory.join("logs/bob.log")).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("alice reported more than 1000 results"), "{said}");
    assert_eq!(json["domains"]["alice"]["results"].as_array().unwrap().len(), 1000);
    assert_eq!(json["domains"]["alice"]["results_dropped"], 1000);
    assert_eq!(json["domains"]["bob"]["failure"], serde_json::Value::Null, "it is heard after the flood");
    assert!(console.len() < (16 << 20) + 100, "{} bytes", console.len());
    let end = String::from_utf8_lossy(&console[console.len() - 70..]).into_owned();
    assert!(end.ends_with("\n[sluice: what follows the first 16777216 bytes is not kept]\n"), "{end:?}");
}

/// A directory for a test, with a configuration, directories that must not be touched, and where sockets go.
struct Place {
    directory: PathBuf,
    runtime: PathBuf,
}

impl Place {
    fn new(test: &str, file: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("sluice-test-{test}-{}", std::process::id()));
        let runtime = directory.join("run/user");
        prepare(&directory, file);
        for precious in [directory.join("victim"), directory.join("run/victim"), runtime.join("victim")] {
            std::fs::create_dir_all(&precious).unwrap();
            std::fs::write(precious.join("file"), "precious").unwrap();
        }
        Self { directory, runtime }
    }

    fn sluice(&self, arguments: &[&str]) -> Output {
        let mut command = sluice(&self.directory);
        command.env("XDG_RUNTIME_DIR", &self.runtime).env("TMPDIR", &self.directory);
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn is_untouched(&self) -> bool {
        let places =
            [self.directory.join("victim"), self.directory.join("run/victim"), self.runtime.join("victim")];
        places.iter().all(|place| std::fs::read(place.join("file")).is_ok_and(|text| text == b"precious"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    let place = Place::new("names", "file.toml");
    // The machine ends at once, should a name be taken.
    std::fs::write(place.directory.join("status"), "0").unwrap();
    let long = "a".repeat(32);
    for name in
        ["../victim", "../../victim", "../../../victim", "", ".", "..", "a/b", "a\x1b[2J", "A", "-a", &long]
    {
        let run = place.sluice(&["run", "file.toml", "--consoles", "logs", &format!("--name={name}")]);
        assert_eq!(run.status.code(), Some(2), "{name:?}: {run:?}");
        let ask = place.sluice(&["pause", "alice", &format!("--instance={name}")]);
        assert_eq!(ask.status.code(), Some(2), "{name:?}: {ask:?}");
        let feature = place.sluice(&["build", &format!("--features={name}")]);
        assert!(name.is_empty() || feature.status.code() == Some(2), "{name:?}: {feature:?}");
        assert!(place.is_untouched(), "{name:?}");
    }
    assert!(!place.runtime.join("sluice").exists(), "nothing was claimed");
}

#[test]
fn a_file_names_its_instance_or_says_that_it_cannot() {
    let place = Place::new("stems", "..toml");
    std::fs::write(place.directory.join("status"), "0").unwrap();
    std::fs::copy(place.directory.join("..toml"), place.directory.join("日本.toml")).unwrap();
    for file in ["日本.toml", "..toml"] {
        let run = place.sluice(&["run", file, "--consoles", "logs"]);
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        assert!(said.contains("use --name"), "{said}");
    }
    // With a name it runs; that machine goes off at once.
    let run = place.sluice(&["run", "日本.toml", "--consoles", "logs", "--name", "japan"]);
    assert_eq!(run.status.code(), Some(5), "{run:?}");
    assert!(place.is_untouched());
}

#[test]
fn sockets_are_only_where_nobody_else_can_look() {
    let place = Place::new("private", "file.toml");
    std::fs::write(place.directory.join("status"), "0").unwrap();
    let run = |runtime: &Path| {
        let mut command = sluice(&place.directory);
        command.args(["run", "file.toml", "--consoles", "logs"]).env("XDG_RUNTIME_DIR", runtime);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // No such directory: it goes to the temporary files, under the user's number.
    let (status, said) = run(&place.directory.join("nowhere"));
    assert_eq!(status, Some(5), "{said}");
    let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let own = place.directory.join(format!("sluice-{user}"));
    assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    mode(&own, 0o777);
    let (status, said) = run(&place.directory.join("nowhere"));
    assert_eq!(status, Some(1));
    assert!(said.contains("is open to others (mode 777)"), "{said}");

    std::os::unix::fs::symlink(place.directory.join("victim"), place.runtime.join("sluice")).unwrap();
    mode(&place.directory.join("victim"), 0o700);
    let (status, said) = run(&place.runtime);
    assert_eq!(status, Some(1));
    assert!(said.contains("is a symbolic link"), "{said}");
    std::fs::remove_file(place.runtime.join("sluice")).unwrap();

    let deep = place.directory.join("d".repeat(100));
    std::fs::create_dir(&deep).unwrap();
    let (status, said) = run(&deep);
    assert_eq!(status, Some(1));
    assert!(said.contains("the path of a socket can have 107"), "{said}");
    assert!(place.is_untouched());
}

#[test]
fn what_is_not_ours_stays_in_a_directory_of_an_instance() {
    let place = Place::new("leftovers", "file.toml");
    std::fs::write(place.directory.join("status"), "0").unwrap();
    // A run that was killed leaves this.
    let directory = place.runtime.join("sluice/file");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(place.runtime.join("sluice"), std::fs::Permissions::from_mode(0o700)).unwrap();
    for file in ["lock", "control", "channel", "checkout"] {
        std::fs::write(directory.join(file), "").unwrap();
    }
    let run = place.sluice(&["run", "file.toml", "--consoles", "logs"]);
    assert_eq!(run.status.code(), Some(5), "{run:?}");
    assert!(!directory.exists(), "taken over, and removed at the end");

    std::fs::create_dir_all(directory.join("photos")).unwrap();
    std::fs::write(directory.join("photos/one"), "").unwrap();
    let run = place.sluice(&["run", "file.toml", "--consoles", "logs"]);
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    assert!(said.contains("file/photos is not Sluice's"), "{said}");
    assert!(directory.join("photos/one").exists() && place.is_untouched());
}

#[test]
fn a_full_disk_ends_a_log_and_no_guest() {
    let directory = std::env::temp_dir().join(format!("sluice-test-full-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("logs")).unwrap();
    // All that is written to it finds no room (full(4)).
    std::os::unix::fs::symlink("/dev/full", directory.join("logs/alice.log")).unwrap();
    let mut machine = Machine::start("full", &["--quiet"]);
    machine.console(0, "lost\n");
    machine.console(0, "lost too\nSLUICE-RESULT done=ok\n");
    machine.console(1, "kept\n");
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (said, status, json) = machine.stop(0);
    let kept = std::fs::read_to_string(directory.join("logs/bob.log")).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    assert_eq!(status, Some(0), "{said}");
    let word = "what alice writes is not kept any more: No space left on device";
    assert_eq!(said.matches(word).count(), 1, "{said}");
    assert!(json["outcome"]["problems"][0].as_str().unwrap().starts_with(word));
    assert_eq!(json["domains"]["alice"]["results"][0]["done"], "ok", "it is still heard");
    assert_eq!(kept, "kept\n");
}

/// A run whose standard output and error are these; its exit status, and its document.
fn run_into(test: &str, out: Stdio, error: Stdio) -> (Option<i32>, serde_json::Value) {
    let mut machine = Machine::start_into(test, &[], out, error);
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (_, status, json) = machine.end(0);
    (status, json)
}

fn full() -> Stdio {
    std::fs::File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn a_summary_that_finds_no_room_is_trouble_and_the_document_is_written() {
    let (status, json) = run_into("no-room", full(), Stdio::piped());
    assert_eq!((status, &json["outcome"]["word"]), (Some(1), &"ok".into()));
}

#[test]
fn a_summary_that_nobody_reads_is_none() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (status, json) = run_into("unread", writer.into(), Stdio::piped());
    assert_eq!((status, &json["outcome"]["word"]), (Some(0), &"ok".into()));
}

#[test]
fn progress_that_finds_no_room_ends_nothing() {
    let (status, json) = run_into("speechless", Stdio::piped(), full());
    assert_eq!((status, &json["outcome"]["word"]), (Some(0), &"ok".into()));
}

#[test]
fn a_document_can_go_to_the_standard_output() {
    let mut machine = Machine::start("streamed", &["--json", "-"]);
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let directory = machine.directory.clone();
    let Output { status, stdout, stderr } = machine.output("0");
    std::fs::remove_dir_all(directory).unwrap();
    assert!(status.success());
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&stdout).unwrap()["outcome"]["word"], "ok");
    assert!(String::from_utf8_lossy(&stderr).contains("ok: every guest did its job"));
}

#[test]
fn a_machine_that_others_end_is_no_failure_of_the_hypervisor() {
    let (said, status, _) = Machine::start("killed", &[]).end_by("kill -9 $$");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("QEMU did not run to its end: signal: 9"), "{said}");
    let terminated = "echo qemu-system-x86_64: terminating on signal 15 from pid 1 >&2; exit 0";
    let (said, status, _) = Machine::start("terminated", &[]).end_by(terminated);
    assert_eq!(status, Some(1), "{said}");
    let (said, status, _) = Machine::start("missing", &[]).end_by("exit 127");
    assert_eq!(status, Some(1), "{said}");
    let (said, status, _) = Machine::start("no-memory", &[])
        .end_by("echo 'qemu: cannot set up guest memory: Cannot allocate memory' >&2; exit 1");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("Cannot allocate memory"), "{said}");
}

#[test]
fn two_runs_do_not_write_into_one_folder() {
    let mut machine = Machine::start("first", &["--quiet"]);
    let second = sluice(&machine.directory)
        .args(["run", "first.toml", "--consoles", "logs"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(
        said.contains("another run writes its consoles to logs") && said.contains("--consoles"),
        "{said}"
    );
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn an_installed_command_needs_no_checkout() {
    let directory = std::env::temp_dir().join(format!("sluice-test-installed-{}", std::process::id()));
    machine::prepare(&directory, "file.toml");
    let usr = directory.join("usr");
    for place in ["bin", "share/sluice/guest/rootfs", "lib/sluice"] {
        std::fs::create_dir_all(usr.join(place)).unwrap();
    }
    std::fs::copy(env!("CARGO_BIN_EXE_sluice"), usr.join("bin/sluice")).unwrap();
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/rootfs/rootfs.toml");
    std::fs::copy(recipes, usr.join("share/sluice/guest/rootfs/rootfs.toml")).unwrap();
    std::fs::write(usr.join("lib/sluice/hypervisor"), "an ELF file").unwrap();
    // The machine goes off at once.
    std::fs::write(directory.join("status"), "0").unwrap();
    let installed = |arguments: &[&str]| {
        let mut command = Command::new(usr.join("bin/sluice"));
        command.args(arguments).current_dir(&directory).env("SLUICE_QEMU", directory.join("qemu"));
        for own in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"] {
            command.env(own, &directory);
        }
        for other in ["SLUICE_HOME", "SLUICE_HYPERVISOR", "SLUICE_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"]
        {
            command.env_remove(other);
        }
        command.stdin(Stdio::null()).output().unwrap()
    };
    let run = installed(&["run", "file.toml", "--json", "out.json"]);
    let json = std::fs::read_to_string(directory.join("out.json")).unwrap_or_else(|_| panic!("{run:?}"));
    let is_kept = directory.join(".local/state/sluice/run/file").is_dir();
    let build = installed(&["build"]);
    let mine = std::fs::read_dir(usr.join("share/sluice")).unwrap().count();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(
        json.contains("usr/lib/sluice/hypervisor -initrd") && json.contains(".cache/sluice/scratch"),
        "{json}"
    );
    assert!(is_kept && mine == 1, "nothing is written where the package is");
    assert_eq!(build.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&build.stderr).contains("the package has none"), "{build:?}");
}
