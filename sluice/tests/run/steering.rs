//! How running instances are steered: commands, Ctrl-C, orderly ends.

use crate::machine::{Machine, ask, ended, sluice};
use sluice_abi::DomainId;
use sluice_abi::channel::{Command as Order, CommandError, Event};
use sluice_abi::config::{Virtio, VirtioKind};
use sluice_abi::report::{DomainReport, DomainState, LinkReport, Report};
use std::io::Read;
use std::process::Stdio;

fn agree(machine: &mut Machine, order: Order) {
    let request = machine.hear();
    assert_eq!(request.command, order);
    machine.say(&Event::Reply { seq: request.seq, result: Ok(()) });
}

/// Answers who asks for the counters: these virtual devices are there, "guest.device" by whom.
fn report(machine: &mut Machine, links: &[(&str, &str)]) {
    let request = machine.hear();
    assert_eq!(request.command, Order::Report);
    let domain = |name: &str| DomainReport { name: name.into(), ..DomainReport::default() };
    let link = |(name, server): &(&str, &str)| LinkReport {
        name: (*name).into(),
        guest: name.split('.').next().unwrap_or_default().into(),
        server: (*server).into(),
        ..LinkReport::default()
    };
    let (domains, links) = (["alice", "bob"].map(domain).into(), links.iter().map(link).collect());
    machine.say(&Event::Report { seq: request.seq, report: Report { domains, links, ..Report::default() } });
}

fn running(name: &str, arguments: &[&str]) -> Machine {
    let mut machine = Machine::start(name, arguments);
    machine.state(0, DomainState::Running, "");
    machine.state(1, DomainState::Running, "");
    machine.settle();
    machine
}

#[test]
fn commands_reach_a_running_instance() {
    let mut machine = Machine::start("steered", &[]);
    machine.state(0, DomainState::Running, "");
    let pause = ask(&machine, &["pause", "bob"]);
    let request = machine.hear();
    assert_eq!(request.command, Order::Pause(DomainId(1)));
    machine.say(&Event::Reply { seq: request.seq, result: Ok(()) });
    assert!(pause.wait_with_output().unwrap().status.success());

    let start = ask(&machine, &["start", "alice"]);
    let request = machine.hear();
    let refused = Err(CommandError::WrongState);
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
fn instances_of_another_checkout_are_asked_only_by_name() {
    let mut machine = Machine::start("other", &[]);
    machine.state(0, DomainState::Running, "");
    let checkout = machine.directory.join("sluice/other/checkout");
    let ask = |machine: &Machine, arguments: &[&str]| {
        let mut command = sluice(&machine.directory);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let answer = |machine: &mut Machine| {
        let request = machine.hear();
        assert_eq!(request.command, Order::Pause(DomainId(0)));
        machine.say(&Event::Reply { seq: request.seq, result: Ok(()) });
    };
    let pause = ask(&machine, &["pause", "alice"]);
    answer(&mut machine);
    assert!(pause.wait_with_output().unwrap().status.success(), "it is this checkout's");

    std::fs::write(checkout, "/elsewhere\x1b[2J").unwrap();
    let lost = ask(&machine, &["pause", "alice"]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&lost.stderr);
    assert!(said.contains("no instance of this checkout runs; of others: other"), "{said}");
    let named = ask(&machine, &["pause", "alice", "--instance", "other"]);
    answer(&mut machine);
    assert!(named.wait_with_output().unwrap().status.success());
    let ps = ask(&machine, &["ps"]);
    let request = machine.hear();
    let report = Report {
        domains: vec![DomainReport { name: "alice".into(), ..DomainReport::default() }],
        ..Report::default()
    };
    machine.say(&Event::Report { seq: request.seq, report });
    let listed = String::from_utf8(ps.wait_with_output().unwrap().stdout).unwrap();
    assert!(listed.contains("checkout") && listed.contains("/elsewhere\\x1b[2J"), "{listed}");

    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    machine.end(0);
}

#[test]
fn ctrl_c_stops_the_guests_in_order() {
    let mut machine = running("orderly", &[]);
    machine.interrupt();
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    machine.state(0, DomainState::PoweredOff, "");
    agree(&mut machine, Order::Stop(DomainId(1)));
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (said, status, json) = machine.end(0);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("asked to power off; Ctrl-C again ends them at once"), "{said}");
    assert!(said.contains("ok: every guest"), "the summary is there: {said}");
    assert_eq!(json["domains"]["bob"]["state"], "powered-off");
}

#[test]
fn ctrl_c_asks_who_serves_a_device_by_now() {
    let mut machine = running("orderly-server", &[]);
    machine.interrupt();
    // The configuration has no such device: it came while they ran.
    report(&mut machine, &[("bob.data", "alice")]);
    agree(&mut machine, Order::Stop(DomainId(1)));
    machine.state(1, DomainState::PoweredOff, "");
    agree(&mut machine, Order::Stop(DomainId(0)));
    machine.state(0, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn ctrl_c_ends_guests_of_a_hypervisor_that_does_not_answer() {
    let mut machine = running("speechless", &[]);
    machine.interrupt();
    assert_eq!(machine.hear().command, Order::Report);
    agree(&mut machine, Order::Stop(DomainId(0)));
    agree(&mut machine, Order::Stop(DomainId(1)));
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn a_guest_that_was_never_started_goes_with_the_machine() {
    let mut machine = Machine::start("waiting", &[]);
    machine.state(0, DomainState::Paused, "");
    machine.settle();
    machine.interrupt();
    report(&mut machine, &[]);
    agree(&mut machine, Order::Resume(DomainId(0)));
    agree(&mut machine, Order::Stop(DomainId(0)));
    machine.state(0, DomainState::PoweredOff, "");
    agree(&mut machine, Order::Shutdown);
    machine.state(1, DomainState::Destroyed, "ended by a command");
    machine.finish();
    let (said, status, _) = machine.end(0);
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn a_second_ctrl_c_kills() {
    let mut machine = running("deaf", &[]);
    machine.interrupt();
    assert_eq!(machine.hear().command, Order::Report);
    machine.interrupt();
    // The machine is killed; it never sees how it should end.
    let mut rest = Vec::new();
    let _ = machine.channel.read_to_end(&mut rest);
    let (said, status, json) = machine.end(0);
    assert_eq!(status, Some(4), "{said}");
    assert!(
        said.contains("the guests were ended by force") && said.contains("alice was still running"),
        "{said}"
    );
    assert_eq!(json["outcome"]["word"], "guest-failure");
}

#[test]
fn ctrl_c_before_there_are_guests_ends_at_once() {
    let mut machine = Machine::power_on("early-interrupt", &[], Stdio::piped(), Stdio::piped());
    machine.interrupt();
    // The machine goes on until it is killed.
    machine.wait();
    let (said, status, _) = machine.end(0);
    assert_eq!(status, Some(4), "{said}");
}

#[test]
fn stop_waits_until_the_guest_is_off() {
    let mut machine = running("stopped", &[]);
    let mut stop = ask(&machine, &["stop", "alice"]);
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(stop.try_wait().unwrap().is_none(), "it waits");
    machine.state(0, DomainState::PoweredOff, "");
    // On a busy host it may have said by now that it waits.
    let (said, status) = ended(stop);
    let (waits, rest): (Vec<&str>, Vec<&str>) =
        said.lines().partition(|line| line.starts_with("sluice: waiting until the guests are off"));
    assert_eq!((rest, status), (vec!["alice: powered-off"], Some(0)), "{waits:?}");
    let again = ask(&machine, &["stop", "alice"]);
    report(&mut machine, &[]);
    assert_eq!(ended(again), ("alice: powered-off\n".to_owned(), Some(0)), "it is off already");
    let only_asked = ask(&machine, &["stop", "bob", "--wait", "0"]);
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(1)));
    assert_eq!(ended(only_asked), (String::new(), Some(0)));
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn a_guest_that_does_not_stop_is_named_or_destroyed() {
    let mut machine = running("stubborn", &[]);
    let patient = ask(&machine, &["stop", "--all", "--wait", "0.5"]);
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    agree(&mut machine, Order::Stop(DomainId(1)));
    machine.state(1, DomainState::PoweredOff, "");
    let (said, status) = ended(patient);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("still running after") && said.contains(": alice\n") && said.contains("--force"),
        "{said}"
    );
    let forced = ask(&machine, &["stop", "alice", "--wait", "0.3", "--force"]);
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    let request = machine.hear();
    assert_eq!(request.command, Order::Destroy(DomainId(0)));
    machine.state(0, DomainState::Destroyed, "ended by a command");
    machine.say(&Event::Reply { seq: request.seq, result: Ok(()) });
    let (said, status) = ended(forced);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("alice: did not power off, and was destroyed"), "{said}");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(4));
}

#[test]
fn a_guest_that_waits_to_be_started_again_is_not() {
    let mut machine = running("again-and-again", &[]);
    machine.state(0, DomainState::Crashed, "its kernel panicked");
    machine.state(0, DomainState::Restarting, "its kernel panicked");
    machine.settle();
    let stop = ask(&machine, &["stop", "alice"]);
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    machine.state(0, DomainState::Crashed, "its kernel panicked");
    assert_eq!(ended(stop), ("alice: crashed; it is not started again\n".to_owned(), Some(0)));
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (said, status, _) = machine.end(0);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("alice: restarting: its kernel panicked\n"), "{said}");
}

#[test]
fn a_shutdown_that_every_guest_followed_is_success() {
    let mut machine = running("shut", &[]);
    let shutdown = ask(&machine, &["shutdown"]);
    report(&mut machine, &[]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    agree(&mut machine, Order::Stop(DomainId(1)));
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    agree(&mut machine, Order::Shutdown);
    let (said, status) = ended(shutdown);
    assert_eq!(status, Some(0), "{said}");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn a_guest_that_reboots_is_said_to_reboot() {
    let mut machine = running("rebooting", &[]);
    machine.state(0, DomainState::Destroyed, "asked for a reset");
    machine.state(0, DomainState::Running, "");
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    let (said, status, _) = machine.end(0);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("alice: rebooting\n") && !said.contains("alice: destroyed"), "{said}");
}

#[test]
fn who_serves_a_device_is_stopped_when_it_is_not_needed_any_more() {
    let mut machine = running("server", &[]);
    let stop = ask(&machine, &["stop", "--all"]);
    report(&mut machine, &[("alice.data", "bob")]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    machine.state(0, DomainState::PoweredOff, "");
    agree(&mut machine, Order::Stop(DomainId(1)));
    machine.state(1, DomainState::PoweredOff, "");
    assert_eq!(ended(stop).1, Some(0));
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn who_is_needed_is_not_asked_by_a_stop_that_does_not_wait() {
    let mut machine = running("hasty", &[]);
    let stop = ask(&machine, &["stop", "--all", "--wait", "0"]);
    report(&mut machine, &[("bob.data", "alice")]);
    agree(&mut machine, Order::Stop(DomainId(1)));
    let (said, status) = ended(stop);
    assert!(
        said.contains("not asked, since guests that they serve still run: alice\n") && status == Some(1),
        "{said}"
    );
    let alone = ask(&machine, &["stop", "alice", "--wait", "0"]);
    report(&mut machine, &[("bob.data", "alice")]);
    agree(&mut machine, Order::Stop(DomainId(0)));
    assert_eq!(ended(alone), (String::new(), Some(0)), "who is meant alone is");
    machine.state(1, DomainState::PoweredOff, "");
    machine.state(0, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}

#[test]
fn devices_come_and_go_while_a_guest_runs() {
    let mut machine = running("plugged", &[]);
    let disk = ["attach-device", "alice", "data", "--type", "blk", "--by", "bob", "--source", "/dev/sda"];
    let attach = ask(&machine, &disk);
    let device = |kind| Virtio {
        name: "data".into(),
        kind,
        by: 1,
        source: "/dev/sda".into(),
        identity: None,
        region: 0,
    };
    agree(&mut machine, Order::Attach(DomainId(0), device(VirtioKind::Block)));
    assert_eq!(ended(attach), ("alice: has data, served by bob\n".to_owned(), Some(0)));

    let card = ask(&machine, &[&disk[..4], &["net"], &disk[5..], &["--mac", "52:54:00:00:00:0b"]].concat());
    let mac = [0x52, 0x54, 0, 0, 0, 0xb];
    let request = machine.hear();
    assert_eq!(request.command, Order::Attach(DomainId(0), device(VirtioKind::Net { mac, pairs: 1 })));
    machine.say(&Event::Reply { seq: request.seq, result: Err(CommandError::NameTaken) });
    let (said, status) = ended(card);
    assert!(said.contains("has a virtual device of it: choose another") && status == Some(1), "{said}");
    for (more, why) in [
        (&["--mac", "52:54:00:00:00:0b"][..], "only a network card has a station address"),
        (&["--mac", "52:54"], "write six bytes"),
        (&["--source", ""], "write 1 to 127 bytes"),
        (&["--by", "alice"], "cannot serve its own"),
        (&["--by", "carol"], "no domain 'carol'"),
        (&["--type", "net"], "a network card needs an address: --mac"),
    ] {
        let mut words = disk.to_vec();
        match words.iter().position(|word| *word == more[0]) {
            Some(at) => words[at + 1] = more[1],
            None => words.extend(more),
        }
        let (said, status) = ended(ask(&machine, &words));
        assert!(said.contains(why) && status != Some(0), "{words:?}: {said}");
    }

    let detach = ask(&machine, &["detach-device", "alice", "data"]);
    let asked = |force| Order::Detach { domain: DomainId(0), device: "data".into(), force };
    agree(&mut machine, asked(false));
    report(&mut machine, &[("alice.data", "bob")]);
    report(&mut machine, &[]);
    assert_eq!(ended(detach), ("alice: has data no more\n".to_owned(), Some(0)));

    let kept = ask(&machine, &["detach-device", "alice", "data", "--wait", "0.01", "--force"]);
    agree(&mut machine, asked(true));
    // The time is over when the answer comes.
    std::thread::sleep(std::time::Duration::from_millis(50));
    report(&mut machine, &[("alice.data", "bob")]);
    let (said, status) = ended(kept);
    assert!(said.contains("alice still has data after 0 s") && status == Some(1), "{said}");
    machine.state(0, DomainState::PoweredOff, "");
    machine.state(1, DomainState::PoweredOff, "");
    machine.finish();
    assert_eq!(machine.end(0).1, Some(0));
}
