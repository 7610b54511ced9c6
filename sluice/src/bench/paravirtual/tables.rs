//! What the allocation and the freeing of one page table cost, level by level: every call of the kernel's functions that do it is counted from outside
//! (bench/instructions.rs), the hypervisor's part and whatever a live patch puts before them included.
//!
//! Source: PiBooster, 5.2.2: execution time of each level's allocation and deallocation, hits, misses, and how often these come.
//! Deviations: instructions in place of nanoseconds. Where the source has three levels, x86-64 has four; and the top one is two pages in a paravirtual
//! guest, the kernel's and its programs', whose functions call each other: what the inner one costs is not in the outer one's cost.

use super::super::record::{Aim, Record};
use crate::outcome::Finding;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// Levels as rows call them, and the functions of Linux 6.1 that allocate and free a table: arch/x86/mm/pgtable.c, arch/x86/xen/mmu_pv.c, mm/memory.c.
const LEVELS: [(&str, &str, &str); 5] = [
    ("pgd", "pgd_alloc", "pgd_free"),
    ("upgd", "xen_pgd_alloc", "xen_pgd_free"),
    ("pud", "__pud_alloc", "___pud_free_tlb"),
    ("pmd", "__pmd_alloc", "___pmd_free_tlb"),
    ("pte", "pte_alloc_one", "___pte_free_tlb"),
];
/// Levels whose tables are given back some time after they were freed, when nobody walks them any more; by this function.
const LATER: ([&str; 3], &str) = (["pud", "pmd", "pte"], "free_page_and_swap_cache");
/// Of the module with the cache: what its replacements of those functions ask for a page, and give one to.
const CACHE: [&str; 2] = ["cache_pop", "cache_push"];
/// Of the module, once a second for each level while its threshold adapts itself.
const STEP: &str = "cache_step";
/// What is looked for during calls, in this order: an interrupt or another task, whose calls are left out; and the kernel's own allocator.
const SEEN: [&str; 3] = ["irq_enter_rcu", "__schedule", "__alloc_pages"];

/// Called once, soon after a kernel's first instruction, by each under every hypervisor (init/main.c).
const START: &str = "setup_arch";

/// How much less the source measured with its cache, in percent: allocation and freeing of each level, of the lowest what we aim at.
const LESS: [(&str, f64, f64); 5] = [
    ("pgd", 34.0, 47.0),
    ("upgd", 34.0, 47.0),
    ("pud", 38.0, 22.0),
    ("pmd", 38.0, 22.0),
    ("pte", 60.0, 60.0),
];

/// The lowest level's allocation.
const LOWEST: &str = "pte_alloc_one";
/// How rows are called of a guest with the cache, and without.
pub const CACHED: &str = ".cache";
pub const PLAIN: &str = ".nocache";

/// Where functions of a guest are, by their names.
pub type Symbols = BTreeMap<String, u64>;

/// All that [`symbols`] wants to know of.
pub fn wanted() -> impl Iterator<Item = &'static str> {
    let levels = LEVELS.into_iter().flat_map(|(_, alloc, free)| [alloc, free]);
    levels.chain([LATER.1]).chain(CACHE).chain([STEP, START]).chain(SEEN)
}

/// Instructions of a boot: from the call of [`START`] to the first mark, which its first program makes.
pub fn boot(text: &str) -> Option<f64> {
    let mut calls = text.lines().filter_map(Call::parse);
    let start = calls.find(|call| call.function == START)?.start;
    let mark = text.lines().find_map(|line| line.strip_prefix("count mark "))?;
    let end: u64 = mark.split_whitespace().next()?.parse().ok()?;
    Some(end.checked_sub(start)? as f64)
}

/// What a guest said of its functions.
pub fn symbols(found: &[Finding]) -> Result<Symbols> {
    let pairs = || found.iter().flatten();
    let symbol = |name: &str| {
        let said = pairs().find(|pair| pair.0 == name).with_context(|| format!("no function {name}"))?;
        Ok((name.to_owned(), u64::from_str_radix(said.1.raw(), 16)?))
    };
    wanted().map(symbol).collect()
}

/// The plugin's arguments that have these calls told; those of the cache's own functions if it is there.
pub fn arguments(symbols: &Symbols, with_cache: bool) -> String {
    let argument = |name: &str| {
        let address = symbols.get(name).copied().unwrap_or(0);
        let kind = if SEEN.contains(&name) { "seen" } else { "call" };
        format!(",{kind}.{name}={address:x}")
    };
    wanted().filter(|name| with_cache || !CACHE.contains(name) && *name != STEP).map(argument).collect()
}

/// A call of one of these functions, without those that it made of others of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    function: String,
    start: u64,
    end: u64,
    instructions: u64,
    /// Instructions of the hypervisor.
    hypervisor: u64,
    seen: [u64; SEEN.len()],
    /// Instructions until it asked the cache, if it did, and what the cache's function cost.
    cache: Option<(u64, u64)>,
}

impl Call {
    /// Nobody else ran meanwhile.
    fn undisturbed(&self) -> bool {
        self.seen[..2] == [0; 2]
    }

    /// The page is the kernel's allocator's.
    fn allocated(&self) -> bool {
        self.seen[2] > 0
    }

    /// `count call NAME START INSTRUCTIONS WITHIN SEEN...`
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("count call ")?.split_whitespace();
        let function = words.next()?.to_owned();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (start, instructions, hypervisor) = (number()?, number()?, number()?);
        let mut seen = [0; SEEN.len()];
        for times in &mut seen {
            *times = number()?;
        }
        let end = start + instructions;
        Some(Self { function, start, end, instructions, hypervisor, seen, cache: None })
    }

    fn take(&mut self, inner: &Self) {
        if CACHE.contains(&&*inner.function) {
            // Its cost is a part of this call's.
            self.cache = Some((inner.start - self.start, inner.instructions));
            return;
        }
        self.instructions = self.instructions.saturating_sub(inner.end - inner.start);
        self.hypervisor = self.hypervisor.saturating_sub(inner.hypervisor);
        for (times, theirs) in self.seen.iter_mut().zip(inner.seen) {
            *times = times.saturating_sub(theirs);
        }
    }
}

/// The calls between the first mark and the last. One that is within another comes before it.
fn calls(text: &str) -> Vec<Call> {
    let mut marks = text.lines().enumerate().filter(|(_, line)| line.starts_with("count mark "));
    let first = marks.next().map_or(0, |mark| mark.0);
    let last = marks.last().map_or(0, |mark| mark.0);
    let mut calls: Vec<Call> = Vec::new();
    for mut call in text.lines().take(last).skip(first).filter_map(Call::parse) {
        // What it made itself: calls within these have been taken from them already, and are in their whole.
        let (start, mut from) = (call.start, call.end);
        for inner in calls.iter().rev().take_while(|inner| inner.end > start) {
            if inner.end <= from && inner.start >= start {
                call.take(inner);
                from = inner.start;
            }
        }
        calls.push(call);
    }
    calls
}

/// Means over calls.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    instructions: f64,
    hypervisor: f64,
    calls: usize,
}

fn mean<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Option<Mean> {
    let (mut instructions, mut hypervisor, mut count) = (0, 0, 0);
    for call in calls {
        instructions += call.instructions;
        hypervisor += call.hypervisor;
        count += 1;
    }
    let each = |sum: u64| sum as f64 / count as f64;
    let mean = Mean { instructions: each(instructions), hypervisor: each(hypervisor), calls: count };
    (count > 0).then_some(mean)
}

/// Rows `PREFIX.<alloc|free>.LEVEL[.HOW].instructions`, and of a cache what hits and misses cost.
pub fn rows(record: &mut Record, prefix: &str, how: &str, text: &str) -> Result<()> {
    let calls = calls(text);
    ensure!(!calls.is_empty(), "the plugin told of no call");
    let of = |function: &'static str| calls.iter().filter(move |call| call.function == function);
    let undisturbed = |function| of(function).filter(|call| call.undisturbed());
    let later = mean(undisturbed(LATER.1)).context("no page of a table was given back")?;
    for (level, alloc, free) in LEVELS {
        for (what, function) in [("alloc", alloc), ("free", free)] {
            let mean = mean(undisturbed(function)).with_context(|| format!("nobody called {function}"))?;
            let (mut sum, mut how_later) = (mean.instructions, String::new());
            if what == "free" && LATER.0.contains(&level) {
                sum += later.instructions;
                how_later = format!(", and {:.0} later, by {}", later.instructions, LATER.1);
            }
            let disturbed = of(function).count() - mean.calls;
            let note = format!(
                "mean of {} calls of {function}, {:.0} of it the hypervisor's{how_later}; {disturbed} calls more were interrupted",
                mean.calls, mean.hypervisor
            );
            record.row(format!("{prefix}.{what}.{level}{how}.instructions"), sum, "instructions", note);
        }
    }
    if how == CACHED {
        cache_rows(record, prefix, &calls)?;
    }
    Ok(())
}

/// What the cache's own functions cost, and what the live patch costs before them.
fn cache_rows(record: &mut Record, prefix: &str, calls: &[Call]) -> Result<()> {
    let asked = |which: fn(&Call) -> bool| {
        let undisturbed = calls.iter().filter(move |call| call.undisturbed() && which(call));
        undisturbed.filter_map(|call| call.cache).collect::<Vec<_>>()
    };
    let frees = |call: &Call| LEVELS.iter().any(|(.., free)| call.function == *free);
    let mean = |numbers: &[u64], what: &str| {
        ensure!(!numbers.is_empty(), "no {what} was seen");
        Ok(numbers.iter().sum::<u64>() as f64 / numbers.len() as f64)
    };
    type Which = fn(&Call) -> bool;
    let rows: [(&str, Which, Option<Aim>, &str); 2] = [
        ("hit", |call| allocates(call) && !call.allocated(), None, "gave a page"),
        (
            "miss",
            |call| allocates(call) && call.allocated(),
            Some(Aim::Under(20.0)),
            "gave none: what a miss adds to the kernel's own way",
        ),
    ];
    for (name, which, aim, about) in rows {
        let costs: Vec<u64> = asked(which).into_iter().map(|(_, cost)| cost).collect();
        let note = format!("mean of {} calls of {} that {about}", costs.len(), CACHE[0]);
        record.aimed(
            format!("{prefix}.cache.{name}.instructions"),
            mean(&costs, name)?,
            "instructions",
            aim,
            note,
        );
    }
    let pushes: Vec<u64> = calls
        .iter()
        .filter(|call| call.undisturbed() && frees(call))
        .filter_map(|call| Some(call.cache?.1))
        .collect();
    let note = format!(
        "mean of {} calls of {}, those of the hypervisor for fresh pages included",
        pushes.len(),
        CACHE[1]
    );
    record.row(format!("{prefix}.cache.push.instructions"), mean(&pushes, "push")?, "instructions", note);
    let before: Vec<u64> =
        asked(|call| call.function == LOWEST).into_iter().map(|(before, _)| before).collect();
    let note = format!(
        "from the call of {LOWEST} to that of {}: the live patch, mean of {}",
        CACHE[0],
        before.len()
    );
    record.row(
        format!("{prefix}.cache.patch.instructions"),
        mean(&before, "replaced function")?,
        "instructions",
        note,
    );
    Ok(())
}

/// What a guest whose threshold adapts itself pays for that in the cache's functions, beside one that has the same cache and none. Medians: how many pages
/// are ready differs, and with that how often one is made so.
pub fn adapt_rows(record: &mut Record, without: &str, with: &str) -> Result<()> {
    // Seconds may pass after the last mark, when no process comes or goes any more.
    let steps = |text: &str| {
        text.lines().filter_map(Call::parse).filter(|call| call.function == STEP).collect::<Vec<_>>()
    };
    ensure!(steps(without).is_empty(), "the threshold adapts itself unasked");
    let step =
        mean(steps(with).iter().filter(|call| call.undisturbed())).context("no second passed for a level")?;
    let (without, with) = (calls(without), calls(with));
    let undisturbed = |call: &&Call| call.undisturbed();
    type Costs = fn(&Call) -> Option<u64>;
    let kinds: [(&str, Costs, String); 3] = [
        (
            "",
            |call| call.cache.filter(|_| call.function == LOWEST && !call.allocated()).map(|(_, cost)| cost),
            format!("a table of the lowest level that {} gives", CACHE[0]),
        ),
        (
            ".miss",
            |call| call.cache.filter(|_| allocates(call) && call.allocated()).map(|(_, cost)| cost),
            format!("a table that {} does not give", CACHE[0]),
        ),
        (
            ".free",
            |call| (call.function == CACHE[1] && call.hypervisor == 0).then_some(call.instructions),
            format!("a table that {} takes without a call of the hypervisor", CACHE[1]),
        ),
    ];
    for (kind, cost, about) in kinds {
        let median = |calls: &[Call]| {
            let mut costs: Vec<u64> = calls.iter().filter(undisturbed).filter_map(cost).collect();
            costs.sort_unstable();
            let middle = *costs.get(costs.len() / 2).with_context(|| format!("there was not {about}"))?;
            anyhow::Ok((middle as f64, costs.len()))
        };
        let ((off, offs), (on, ons)) = (median(&without)?, median(&with)?);
        let note = format!("for {about}: {on} with, {off} without, medians of {ons} and {offs} calls");
        record.row(format!("pv.cache.adapt{kind}.instructions"), on - off, "instructions", note);
    }
    let note =
        format!("once a second for each level, mean of {}; pages that are given back included", step.calls);
    record.row("pv.cache.adapt.step.instructions", step.instructions, "instructions", note);
    Ok(())
}

fn allocates(call: &Call) -> bool {
    LEVELS.iter().any(|(_, alloc, _)| call.function == *alloc)
}

/// How much less the cache's tables cost than without it and than Xen's, in percent; the former with what the source found, the latter with what we aim at.
pub fn comparisons(record: &mut Record) {
    let systems = [
        ("pv", "peer.xen.default", "", "without an IOMMU"),
        ("pv.card", "peer.xen.strict", ".card", "behind an IOMMU"),
    ];
    for (level, alloc, free) in LESS {
        for (what, aim) in [("alloc", alloc), ("free", free)] {
            for (ours, xen, name, where_to) in systems {
                let value = |id: String| record.value(&id);
                let cached = value(format!("{ours}.{what}.{level}{CACHED}.instructions"));
                let plain = value(format!("{ours}.{what}.{level}{PLAIN}.instructions"));
                let xen = value(format!("{xen}.{what}.{level}.instructions"));
                let less = |of: f64, than: f64| 100.0 * (1.0 - of / than);
                if let Some((cached, plain)) = cached.zip(plain) {
                    let note = format!(
                        "less than without the cache, {where_to}; of the source's three levels the nearest: {aim}"
                    );
                    let id = format!("pv{name}.{what}.{level}.less_by_cache");
                    record.row(id, less(cached, plain), "percent", note);
                }
                if let Some((cached, xen)) = cached.zip(xen) {
                    let id = format!("pv{name}.{what}.{level}.less_than_xen");
                    let note = format!("with the cache, less than Xen's dom0, {where_to}");
                    record.aimed(id, less(cached, xen), "percent", Some(Aim::AtLeast(aim)), note);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes: one whose tables the kernel's allocator gives, one whose tables the cache gives.
    const LOG: &str = "count call pte_alloc_one 10 5 0 0 0 1\n\
        count mark 100 1 1 1\n\
        count call cache_pop 130 18 0 0 0 0\n\
        count call cache_pop 230 16 0 0 0 0\n\
        count call xen_pgd_alloc 210 100 0 0 0 1\n\
        count call pgd_alloc 110 1000 40 0 0 2\n\
        count call pte_alloc_one 1200 600 0 0 0 1\n\
        count call pte_alloc_one 1900 9000 70 1 0 1\n\
        count mark 20000 1 1 1\n\
        count call pte_alloc_one 21000 5 0 0 0 1\n";

    #[test]
    fn what_a_call_costs_is_without_those_that_are_told_by_themselves() {
        let calls = calls(LOG);
        assert_eq!(calls.len(), 6, "what comes before the first mark and after the last is not among them");
        let top = calls.iter().find(|call| call.function == "pgd_alloc").unwrap();
        assert_eq!((top.instructions, top.hypervisor, top.seen), (900, 40, [0, 0, 1]));
        assert_eq!(top.cache, Some((20, 18)), "the cache's part stays in the sum");
        let programs = calls.iter().find(|call| call.function == "xen_pgd_alloc").unwrap();
        assert_eq!((programs.instructions, programs.cache), (100, Some((20, 16))));
    }

    #[test]
    fn a_call_that_was_interrupted_is_left_out() {
        let calls = calls(LOG);
        let lowest = calls.iter().filter(|call| call.function == LOWEST && call.undisturbed());
        let expected = Mean { instructions: 600.0, hypervisor: 0.0, calls: 1 };
        assert_eq!(mean(lowest), Some(expected));
        assert_eq!(mean([]), None);
    }

    #[test]
    fn rows_need_every_level() {
        let mut record = Record::new("paravirtual-tables");
        assert!(rows(&mut record, "pv", PLAIN, LOG).is_err(), "nobody freed a table");
        assert!(rows(&mut record, "pv", PLAIN, "").is_err());
    }

    #[test]
    fn the_plugin_is_told_where_functions_are() {
        let lines: Vec<Finding> = wanted()
            .enumerate()
            .filter_map(|(number, name)| {
                crate::outcome::parse_finding(&format!("SLUICE-RESULT {name}=ff{number:02x}"))
            })
            .collect();
        let symbols = symbols(&lines).unwrap();
        let text = arguments(&symbols, true);
        assert!(
            text.starts_with(",call.pgd_alloc=ff00,") && text.contains(",call.cache_pop=ff0b,"),
            "{text}"
        );
        assert!(
            text.ends_with(
                ",call.setup_arch=ff0e,seen.irq_enter_rcu=ff0f,seen.__schedule=ff10,seen.__alloc_pages=ff11"
            ),
            "{text}"
        );
        assert!(!arguments(&symbols, false).contains("cache_"));
        assert!(super::symbols(&lines[1..]).is_err());
    }

    #[test]
    fn the_adapting_threshold_costs_what_the_caches_functions_take_longer() {
        let log = |pop: u64, miss: u64, step: &str| {
            format!(
                "count mark 100 1 1 1\n\
                count call cache_pop 210 {pop} 0 0 0 0\n\
                count call pte_alloc_one 200 90 0 0 0 0\n\
                count call cache_pop 310 {miss} 0 0 0 0\n\
                count call pte_alloc_one 300 90 0 0 0 1\n\
                count call cache_push 400 30 0 0 0 0\n\
                count call cache_push 500 3000 2000 0 0 0\n{step}count mark 20000 1 1 1\n"
            )
        };
        let step = "count call cache_step 9000 700 0 0 0 0\n";
        let mut record = Record::new("paravirtual-adapt");
        adapt_rows(&mut record, &log(40, 50, ""), &log(47, 52, step)).unwrap();
        let value = |what: &str| record.value(&format!("pv.cache.adapt{what}.instructions"));
        assert_eq!([value(""), value(".miss"), value(".free")], [Some(7.0), Some(2.0), Some(0.0)]);
        assert_eq!(value(".step"), Some(700.0));
        assert!(
            adapt_rows(&mut record, &log(40, 50, step), &log(47, 52, step)).is_err(),
            "it adapts unasked"
        );
        assert!(adapt_rows(&mut record, &log(40, 50, ""), &log(47, 52, "")).is_err(), "it does not adapt");
        assert!(adapt_rows(&mut record, "", "").is_err());
    }

    #[test]
    fn savings_are_compared_with_the_aims() {
        let mut record = Record::new("paravirtual-tables");
        for (id, value) in [
            ("pv.alloc.pte.cache", 300.0),
            ("pv.alloc.pte.nocache", 900.0),
            ("peer.xen.default.alloc.pte", 1000.0),
        ] {
            record.row(format!("{id}.instructions"), value, "instructions", "");
        }
        comparisons(&mut record);
        assert_eq!(record.value("pv.alloc.pte.less_than_xen"), Some(70.0));
        assert_eq!(record.value("pv.alloc.pte.less_by_cache"), Some(66.6667));
        assert_eq!(record.value("pv.free.pte.less_than_xen"), None);
    }
}
