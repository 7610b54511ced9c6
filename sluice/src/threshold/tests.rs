//! The rule is the module's, compiled for this machine; and what it promises.

use super::adapt::{Adapt, FLOOR, LONGEST, SHORTEST};
use super::replay::{Cache, Rule, replay};
use super::trace::{Event, LEVELS};
use proptest::prelude::*;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Recorded on 2026-11-27 in a paravirtual guest with Linux 6.1 (job `pagetrace:load=tabs,seconds=240` of its `init`), whose cache began empty and was without bound: it
/// counted 386 misses, one of which came after the record.
fn tabs() -> Vec<(Event, u32)> {
    super::trace::read(include_bytes!("recorded/tabs.trace")).unwrap()
}

/// Recorded the same way with `load=build`: the guest counted 123 misses.
fn build() -> Vec<(Event, u32)> {
    super::trace::read(include_bytes!("recorded/build.trace")).unwrap()
}

/// What happens to one level.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A page is taken, or missed.
    Taken,
    /// A page comes.
    Freed,
    /// Others give pages back.
    Removed(u32),
    /// A step ends.
    Step,
}

/// Does to the module's rule what each line says, and prints what it gives back and its window after each step.
const PROGRAM: &str = r#"
#include <stdio.h>
#include "adapt.h"

int main(void)
{
	struct adapt adapt;
	unsigned int number;
	char what;

	while (scanf(" %c%u", &what, &number) == 2) {
		switch (what) {
		case 'b':
			adapt_begin(&adapt, number);
			break;
		case 't':
			adapt_taken(&adapt, number);
			break;
		case 'm':
			adapt_missed(&adapt);
			break;
		case 'r':
			adapt_removed(&adapt, number);
			break;
		case 's':
			number = adapt_step(&adapt, number);
			printf("%u %u\n", number, adapt.window);
			break;
		}
	}
	return 0;
}
"#;

/// Lines for the program, and what it has to print.
#[derive(Default)]
struct Script {
    lines: String,
    said: String,
}

impl Script {
    /// One level from the beginning, with so many spare pages.
    fn level(&mut self, mut spare: u32, happens: impl IntoIterator<Item = Happens>) {
        let mut rule = Adapt::new(spare);
        let _ = writeln!(self.lines, "b{spare}");
        for event in happens {
            match event {
                Happens::Taken if spare == 0 => {
                    rule.missed();
                    self.lines += "m0\n";
                }
                Happens::Taken => {
                    spare -= 1;
                    rule.taken(spare);
                    let _ = writeln!(self.lines, "t{spare}");
                }
                Happens::Freed => spare += 1,
                Happens::Removed(count) => {
                    let count = count.min(spare);
                    spare -= count;
                    rule.removed(count);
                    let _ = writeln!(self.lines, "r{count}");
                }
                Happens::Step => {
                    let _ = writeln!(self.lines, "s{spare}");
                    let count = rule.step(spare);
                    spare -= count;
                    let _ = writeln!(self.said, "{count} {}", rule.window());
                }
            }
        }
    }
}

/// The events of one level of a trace.
fn of_level(events: &[(Event, u32)], level: usize) -> Vec<Happens> {
    let mut happens = Vec::new();
    for (event, count) in events {
        let one = match event {
            Event::Allocated(at) if *at == level => Happens::Taken,
            Event::Freed(at) if *at == level => Happens::Freed,
            Event::Second => Happens::Step,
            _ => continue,
        };
        happens.extend((0..*count).map(|_| one));
    }
    happens
}

/// What the module's rule says to this.
fn modules(lines: &str) -> String {
    let folder = tempfile();
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program, script) = (folder.join("adapt.c"), folder.join("adapt"), folder.join("script"));
    std::fs::write(&source, PROGRAM).unwrap();
    std::fs::write(&script, lines).unwrap();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/linux/sluice-pibooster");
    let built = Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-I"])
        .arg(module)
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run =
        Command::new(&program).stdin(std::fs::File::open(&script).unwrap()).stderr(Stdio::piped()).output();
    let run = run.unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

fn tempfile() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("sluice-adapt-{}", std::process::id()))
}

/// The same numbers each time (a linear congruential generator, Numerical Recipes' constants).
struct Numbers(u32);

impl Numbers {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % most
    }
}

#[test]
fn the_modules_rule_is_this_one() {
    let mut script = Script::default();
    let mut numbers = Numbers(37);
    for run in 0..40 {
        // Loads of different kinds: how often tables come and go in a step, and how many at once.
        let (quiet, most) = ([1, 2, 3, 5, 8, 20, 100][run % 7], 1 + numbers.below(60));
        let mut happens = Vec::new();
        for _ in 0..400 {
            if numbers.below(quiet) == 0 {
                let count = numbers.below(most);
                happens.extend((0..count).map(|_| Happens::Taken));
                happens.extend((0..count).map(|_| Happens::Freed));
            }
            if numbers.below(50) == 0 {
                happens.push(Happens::Removed(numbers.below(most)));
            }
            happens.push(Happens::Step);
        }
        script.level(numbers.below(100), happens);
    }
    let tabs = tabs();
    for level in 0..LEVELS {
        script.level(0, of_level(&tabs, level));
    }
    let seconds = replay(&tabs, Rule::None).seconds as usize;
    // Bursts that are too far apart to be awaited.
    script.level(0, of_level(&bursts(50, 150, 8), 4));
    let said = modules(&script.lines);
    assert!(
        said.lines().count() == 40 * 400 + LEVELS * seconds + 8 * 150
            && said.lines().any(|line| line.ends_with(" 64"))
    );
    assert!(said.lines().any(|line| line.ends_with(" 2")));
    assert!(said == script.said, "the two differ");
}

/// Traces whose tables are allocated before they are freed.
fn traces() -> impl Strategy<Value = Vec<(Event, u32)>> {
    let step =
        (0..LEVELS, 0_u32..40, 0_u32..40, prop_oneof![3 => Just(0_u32), 3 => Just(1), 1 => 2_u32..100]);
    prop::collection::vec(step, 1..80).prop_map(|steps| {
        let mut live = [0_u32; LEVELS];
        let mut events = Vec::new();
        for (level, allocated, freed, seconds) in steps {
            live[level] += allocated;
            let freed = freed.min(live[level]);
            live[level] -= freed;
            events.push((Event::Allocated(level), allocated));
            events.push((Event::Freed(level), freed));
            events.push((Event::Second, seconds));
        }
        events
    })
}

proptest! {
    /// Tables and spare pages of a level are never more than tables once were.
    #[test]
    fn no_more_is_held_than_was_in_use_at_once(events in traces()) {
        let mut cache = Cache::new(Rule::Adaptive);
        let (mut live, mut peak) = ([0_u32; LEVELS], [0_u32; LEVELS]);
        for (event, count) in events {
            for _ in 0..count {
                match event {
                    Event::Allocated(level) => live[level] += 1,
                    Event::Freed(level) => live[level] -= 1,
                    Event::Second => {}
                }
                cache.event(event);
                for level in 0..LEVELS {
                    peak[level] = peak[level].max(live[level]);
                    prop_assert!(cache.spare()[level] + live[level] <= peak[level]);
                }
            }
        }
    }

    /// A step leaves the floor, if there was that much; and what it leaves beyond, a window needed.
    #[test]
    fn the_floor_stays_and_the_window_has_its_bounds(events in traces()) {
        let mut cache = Cache::new(Rule::Adaptive);
        for (event, count) in events {
            for _ in 0..count {
                let before = *cache.spare();
                cache.event(event);
                let windows = (0..LEVELS).map(|level| cache.window(level));
                prop_assert!(windows.into_iter().all(|window| (SHORTEST..=LONGEST).contains(&window)));
                let kept = before.iter().zip(cache.spare()).all(|(before, now)| *now >= FLOOR.min(*before));
                prop_assert!(event != Event::Second || kept);
            }
        }
        // What nobody needs for as long as the longest window is given back. The first second may have begun before.
        for _ in 0..=LONGEST {
            cache.event(Event::Second);
        }
        prop_assert!(cache.spare().iter().all(|spare| *spare <= FLOOR));
    }

    /// Each page that was given back is missed once at most.
    #[test]
    fn misses_are_no_more_than_without_bound_and_the_pages_given_back(events in traces()) {
        let (adaptive, unbounded) = (replay(&events, Rule::Adaptive), replay(&events, Rule::Unbounded));
        prop_assert!(adaptive.misses <= unbounded.misses + adaptive.given_back);
        prop_assert!(adaptive.misses >= unbounded.misses);
        prop_assert!(adaptive.page_seconds <= unbounded.page_seconds);
    }
}

/// So many tables come and go every so many seconds.
fn bursts(tables: u32, period: u32, times: usize) -> Vec<(Event, u32)> {
    let burst = [(Event::Allocated(4), tables), (Event::Freed(4), tables), (Event::Second, period)];
    burst.repeat(times)
}

#[test]
fn a_burst_that_comes_again_is_awaited() {
    for period in [1, 2, 5, 10, 20, 30, 40, 60] {
        let outcome = replay(&bursts(100, period, 30), Rule::Adaptive);
        assert!(outcome.misses <= 500, "{period} s: {} misses", outcome.misses);
    }
}

#[test]
fn one_that_comes_hardly_ever_is_not() {
    let outcome = replay(&bursts(100, 600, 10), Rule::Adaptive);
    assert!(outcome.mean() < 8.0, "{}", outcome.mean());
    assert!(replay(&bursts(100, 600, 10), Rule::Unbounded).mean() > 99.0);
}

#[test]
fn fixed_thresholds_come_close_to_every_number() {
    let all = super::thresholds(1000);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1] && pair[1] * 4 <= pair[0] * 5 + 4));
    assert!(all[0] == 1 && all.last() >= Some(&1000) && all.len() < 40);
}

#[test]
fn a_replay_misses_no_more_than_the_guest_missed() {
    let unbounded = replay(&tabs(), Rule::Unbounded);
    assert_eq!((unbounded.allocated, unbounded.misses, unbounded.given_back), (8137, 385, 0));
    let unbounded = replay(&build(), Rule::Unbounded);
    assert_eq!((unbounded.allocated, unbounded.misses, unbounded.given_back), (13_553, 83, 0));
}

#[test]
fn a_load_that_goes_on_misses_little_more_than_with_the_threshold_it_was_trained_for() {
    for load in [tabs(), build()] {
        let all = super::Comparison::of(&load);
        let (_, trained) = all.trained().unwrap();
        assert_eq!(trained.misses, all.unbounded.misses);
        let beyond = all.adaptive.misses - trained.misses;
        assert!(beyond * 100 < all.none.allocated, "{:?} beside {trained:?}", all.adaptive);
        assert!(all.adaptive.page_seconds < trained.page_seconds);
    }
}

#[test]
fn a_load_that_pauses_misses_less_than_with_any_threshold_that_keeps_as_few_pages() {
    let pause = vec![(Event::Second, 3600)];
    let all = super::Comparison::of(&[tabs(), pause.clone(), tabs(), pause].concat());
    let few = |(_, outcome): &&(u32, _)| {
        let outcome: &super::Outcome = outcome;
        outcome.page_seconds <= all.adaptive.page_seconds
    };
    let fewest = all.fixed.iter().filter(few).map(|(_, outcome)| outcome.misses).min().unwrap();
    assert!(all.adaptive.misses * 2 < fewest, "{:?} beside {fewest}", all.adaptive);
    let (_, as_many) = all.as_many().unwrap();
    assert!(as_many.misses > all.adaptive.misses);
    assert!(all.adaptive.page_seconds * 9 < all.trained().unwrap().1.page_seconds);
    let text = all.table();
    assert!(text.contains(", trained") && text.contains(", as many as adaptive"), "{text}");
}
