//! What a model costs at an exit, in instructions: [`Tracker::step`] and [`hook_set`] stay below 60 - but for the
//! RTL8139's CR, which starts, stops and resets five machines at once, and is not written while packets flow.
//!
//! Counted by valgrind, of an optimized build only: `cargo test --release -p sluice-model --test models cost --
//! --nocapture`. The test runs itself below valgrind, once per thing to count, and counts what the functions
//! marked for it do.

use sluice_model::models::{e1000, ne2000, rtl8139};
use sluice_model::{DeviceEvent, Model, Questions, RegisterId, Seen, Tracker, hook_set, named};
use std::hint::black_box;
use std::process::Command;

/// Most instructions that a call may take, the call included.
const MOST: u64 = 60;
/// And a write to CR.
const MOST_OF_CR: u64 = 90;
const CALLS: u64 = 1000;
/// Says which thing to count to the process below valgrind.
const CHOICE: &str = "SLUICE_COUNT";

/// A thing to count.
type Case = (&'static str, &'static Model, Seen);

const CASES: [Case; 10] = [
    ("ne2000 CMD", &ne2000::MODEL, Seen::Write(ne2000::id::CMD, 0x22)),
    ("ne2000 TPSR", &ne2000::MODEL, Seen::Write(ne2000::id::TPSR, 0x40)),
    ("rtl8139 TSD", &rtl8139::MODEL, Seen::WriteWord(rtl8139::id::TSD, 60)),
    ("rtl8139 TPPoll", &rtl8139::MODEL, Seen::WriteWord(rtl8139::id::TPPOLL, 0x40)),
    ("rtl8139 CR", &rtl8139::MODEL, Seen::WriteWord(rtl8139::id::CR, 0x1c)),
    ("rtl8139 ISR", &rtl8139::MODEL, Seen::WriteWord(RegisterId(27), 5)),
    ("e1000 TDT", &e1000::MODEL, Seen::WriteWord(e1000::id::TDT, 5)),
    ("e1000 RDT", &e1000::MODEL, Seen::WriteWord(e1000::id::RDT, 5)),
    ("e1000 ICR", &e1000::MODEL, Seen::Read(e1000::id::ICR, 0x80)),
    ("e1000 sent", &e1000::MODEL, Seen::Device(DeviceEvent::Drained)),
];

const ASKED: [(&str, Questions); 3] = [
    ("SHADOW", Questions::SHADOW),
    ("FOLLOW", Questions::SHADOW.union(Questions::FOLLOW)),
    ("MIRROR", Questions::MIRROR),
];

#[inline(never)]
fn counted_step(tracker: &mut Tracker, model: &Model, seen: Seen) -> bool {
    tracker.step(model, seen)
}

#[inline(never)]
fn counted_hooks(tracker: &Tracker, model: &Model, questions: Questions) -> u32 {
    hook_set(model, tracker.states(), questions).ports()
}

#[inline(never)]
fn counted_names(model: &Model, offset: u32) -> usize {
    named(model, 0, offset, 4, 0).count()
}

/// Instructions per call of whatever `choice` says.
fn count(choice: &str) -> Option<u64> {
    let out = std::env::temp_dir().join(format!("sluice-count-{}", std::process::id()));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted_*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().ok()?)
        .args(["--exact", "cost::below_valgrind", "--nocapture", "--test-threads=1"])
        .env(CHOICE, choice)
        .output()
        .ok()?;
    let _ = std::fs::remove_file(out);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    let total: u64 = text.lines().find_map(|line| line.split("Collected : ").nth(1))?.trim().parse().ok()?;
    Some(total / CALLS)
}

/// Does what the environment chooses; nothing in an ordinary run.
#[test]
fn below_valgrind() {
    let Ok(choice) = std::env::var(CHOICE) else { return };
    for (name, model, seen) in CASES {
        if choice == name {
            for _ in 0..CALLS {
                let mut tracker = Tracker::unseen(model);
                black_box(counted_step(black_box(&mut tracker), black_box(model), black_box(seen)));
            }
        }
        for (asked, questions) in ASKED {
            if choice == format!("{} {asked}", model.name) && seen_first(name) {
                for _ in 0..CALLS {
                    let tracker = Tracker::unseen(model);
                    black_box(counted_hooks(black_box(&tracker), black_box(model), black_box(questions)));
                }
            }
        }
    }
    if choice == "e1000 name" {
        for _ in 0..CALLS {
            black_box(counted_names(black_box(&e1000::MODEL), black_box(0x3818)));
        }
    }
}

/// Each model's hook sets are counted with its first case.
fn seen_first(name: &str) -> bool {
    ["ne2000 CMD", "rtl8139 TSD", "e1000 TDT"].contains(&name)
}

#[test]
fn model_updates_and_hook_sets_are_cheap() {
    if cfg!(debug_assertions) || Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: needs an optimized build and valgrind");
        return;
    }
    let hooks =
        ["ne2000", "rtl8139", "e1000"].iter().flat_map(|model| ASKED.map(|(it, _)| format!("{model} {it}")));
    let mut dear = false;
    let all = CASES.iter().map(|(name, ..)| name.to_string()).chain(hooks);
    for name in all {
        let cost = count(&name).expect("a count");
        println!("{name:16} {cost:3} instructions");
        dear |= cost == 0 || cost > if name == "rtl8139 CR" { MOST_OF_CR } else { MOST };
    }
    assert!(!dear, "more than {MOST}");
    println!("e1000, which register: {} instructions", count("e1000 name").expect("a count"));
}
