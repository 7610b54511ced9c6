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
/// What is looked for during calls, in this order: an interrupt or another task, whose calls are left out; and the kernel's own allocator.
const SEEN: [&str; 3] = ["irq_enter_rcu", "__schedule", "__alloc_pages"];

/// How much less the source measured with its cache, in percent: allocation and freeing of each level, of the lowest what we aim at.
const LESS: [(&str, f64, f64); 5] = [
    ("pgd", 34.0, 47.0),
    ("upgd", 34.0, 47.0),
    ("pud", 38.0, 22.0),
    ("pmd", 38.0, 22.0),
    ("pte", 60.0, 60.0),
];

/// Where functions of a guest are, by their names.
pub type Symbols = BTreeMap<String, u64>;

/// All that [`symbols`] wants to know of.
pub fn wanted() -> impl Iterator<Item = &'static str> {
    let levels = LEVELS.into_iter().flat_map(|(_, alloc, free)| [alloc, free]);
    levels.chain([LATER.1]).chain(CACHE).chain(SEEN)
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
    wanted().filter(|name| with_cache || !CACHE.contains(name)).map(argument).collect()
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
    let (first, last) = (marks.next().map_or(0, |mark| mark.0), marks.next_back().map_or(0, |mark| mark.0));
    let mut calls: Vec<Call> = Vec::new();
    for mut call in text.lines().take(last).skip(first).filter_map(Call::parse) {
        // What it made itself: calls within these have been taken from them already, and are in their whole.
        let mut from = call.end;
        for inner in calls.iter().rev().take_while(|inner| inner.end > call.start) {
            if inner.end <= from && inner.start >= call.start {
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
    Ok(())
}
