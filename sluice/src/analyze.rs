//! `cargo sluice analyze`: what the ioctls of a driver copy, found in the driver's source from Debian's package by clang ([`clang`]) and
//! [`sluice_slice`], and how that compares with the front end's table ([`check`]). Packages are unpacked in the cache; nothing is
//! installed.

mod check;
mod clang;
mod learned;

pub use check::{Check, Counts};
pub use clang::source;
pub use learned::Learned;

use crate::kernels::{self, Kernel};
use anyhow::{Context, Result, ensure};
use clang::Compiler;
use sluice_slice::{Comparison, Line, Program, Slice, Table, Verdict, Walk, slice};
use std::path::Path;

/// Where those of graphics cards are in the source.
const GRAPHICS: &str = "drivers/gpu/drm";

/// How a driver's commands are known.
#[derive(Clone, Copy)]
enum Commands {
    /// By its table, of this name.
    Table(&'static str),
    /// By a header for programs, the beginning of their names, and the function that is called for all.
    Header { header: &'static str, prefix: &'static str, entry: &'static str },
}

/// What can be analyzed.
struct Driver {
    name: &'static str,
    /// In the source.
    folder: &'static str,
    commands: Commands,
    /// The front end's table.
    table: &'static str,
}

const fn graphics(name: &'static str, folder: &'static str, table: &'static str) -> Driver {
    Driver { name, folder, commands: Commands::Table(table), table: "graphics_leads" }
}

const DRIVERS: [Driver; 7] = [
    graphics("drm", GRAPHICS, "drm_ioctls"),
    graphics("virtio-gpu", "drivers/gpu/drm/virtio", "virtio_gpu_ioctls"),
    graphics("radeon", "drivers/gpu/drm/radeon", "radeon_ioctls_kms"),
    graphics("nouveau", "drivers/gpu/drm/nouveau", "nouveau_ioctls"),
    graphics("i915", "drivers/gpu/drm/i915", "i915_ioctls"),
    Driver {
        name: "evdev",
        folder: "drivers/input",
        commands: Commands::Header { header: "linux/input.h", prefix: "EVIOC", entry: "evdev_ioctl" },
        table: "input_leads",
    },
    Driver {
        name: "alsa-pcm",
        folder: "sound/core",
        commands: Commands::Header {
            header: "sound/asound.h",
            prefix: "SNDRV_PCM_IOCTL_",
            entry: "snd_pcm_ioctl",
        },
        table: "sound_leads",
    },
];

/// The handlers of commands that there are no more.
const GONE: [&str; 2] = ["drm_invalid_op", "drm_noop"];

/// A command of a driver, and what it copies.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// As the driver has it.
    pub name: String,
    /// Of the ioctl.
    pub number: u32,
    /// What was found.
    pub slice: Slice,
}

/// How many commands of a driver are what.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// All.
    pub commands: usize,
    /// Copy what their argument leads to.
    pub nested: usize,
    /// Nested, and all that they copy is known.
    pub sliced: usize,
    /// Something of them is not known.
    pub unsliced: usize,
}

impl Sums {
    /// Of these.
    pub fn of(found: &[Found]) -> Self {
        let count = |is: fn(&Slice) -> bool| found.iter().filter(|command| is(&command.slice)).count();
        Self {
            commands: found.len(),
            nested: count(|slice| slice.nested),
            sliced: count(|slice| slice.nested && slice.reasons.is_empty()),
            unsliced: count(|slice| !slice.reasons.is_empty()),
        }
    }
}

/// The drivers that are known.
pub fn drivers() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|driver| driver.name)
}

/// Analyzes a driver of a kernel's source.
///
/// # Errors
/// Nobody knows it, or its source cannot be had or read.
pub fn driver(name: &str, kernel: &Kernel) -> Result<Vec<Found>> {
    let Driver { folder, commands, .. } = known(name)?;
    let compiler = Compiler::new(kernel)?;
    // That of graphics cards has what they share.
    let unpacked = if folder.starts_with(GRAPHICS) { GRAPHICS } else { folder };
    let program = Program::new(compiler.driver(&source(kernel, unpacked)?.join(folder))?);
    match *commands {
        Commands::Table(table) => {
            let rows = program.rows(table);
            ensure!(!rows.is_empty(), "{name} has no table {table} in Linux {}", kernel.release);
            let live = rows.into_iter().filter(|(_, handler, _)| !GONE.contains(&handler.1.as_ref()));
            let found = live.map(|(number, handler, name)| {
                let mut walk = Walk::new(&program);
                let slice = if program.function(handler.0, &handler.1).is_some() {
                    let (operations, _) = walk.handler(&handler);
                    slice(&mut walk, &operations)
                } else {
                    let reason = format!("{} is not among the files", handler.1);
                    Slice { reasons: [reason].into(), ..Slice::default() }
                };
                Found { name, number, slice }
            });
            Ok(found.collect())
        }
        Commands::Header { header, prefix, entry } => {
            let function = program.find(entry).with_context(|| format!("{name} has no function {entry}"))?;
            let found = compiler.commands(header, prefix)?.into_iter().map(|(name, number)| {
                let mut walk = Walk::new(&program);
                let (operations, _) = walk.command(&function, number);
                Found { name, number, slice: slice(&mut walk, &operations) }
            });
            Ok(found.collect())
        }
    }
}

fn known(name: &str) -> Result<&'static Driver> {
    DRIVERS.iter().find(|known| known.name == name).with_context(|| {
        let known: Vec<&str> = drivers().collect();
        format!("'{name}' is no driver that is known; there are: {}", known.join(", "))
    })
}

/// What two kernels' drivers differ in, a line each.
pub fn changes(old: &[Found], new: &[Found]) -> Vec<String> {
    let named = |all: &'_ [Found], name: &str| all.iter().position(|command| command.name == name);
    let mut lines = Vec::new();
    for command in new {
        match named(old, &command.name).map(|at| &old[at]) {
            None => lines.push(format!("+ {} {:#010x} {:?}", command.name, command.number, command.slice)),
            Some(before) if before != command => {
                lines.push(format!("- {} {:#010x} {:?}", before.name, before.number, before.slice));
                lines.push(format!("+ {} {:#010x} {:?}", command.name, command.number, command.slice));
            }
            Some(_) => {}
        }
    }
    let gone = old.iter().filter(|command| named(new, &command.name).is_none());
    lines.extend(gone.map(|command| format!("- {} {:#010x}", command.name, command.number)));
    lines
}

/// What of a driver is printed, beside how many commands it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing.
    Sums,
    /// Each command.
    Details,
    /// A table for the front end, in C.
    C,
    /// What differs from the front end's table.
    Check,
}

/// The lines of the front end's table that lead to memory.
///
/// # Errors
/// It cannot be compiled or read.
pub fn table(name: &str, kernel: &Kernel) -> Result<Vec<Line>> {
    Compiler::new(kernel)?.lines(known(name)?.table, "").context("could not read the front end's table")
}

/// What was found of a driver as C, which is compiled and read again: it leads where it should.
///
/// # Errors
/// It is no C, or says something else.
fn c(name: &str, kernel: &Kernel, found: &[Found]) -> Result<String> {
    let mut table = Table::default();
    for Found { name, number, slice } in found {
        table.add(name, *number, slice);
    }
    let array = format!("{}_leads", name.replace('-', "_"));
    let text = table.definition(&array);
    let lines = Compiler::new(kernel)?.lines(&array, &text).context("what was printed is no C")?;
    for Found { name, number, slice } in found {
        let slice = Slice { leads: slice.leads.clone(), ..Slice::default() };
        let verdict = Comparison::of(*number, &slice, &lines).verdict;
        ensure!(
            matches!(verdict, Verdict::Same | Verdict::Nowhere),
            "{name} is not what was found: {verdict:?}"
        );
    }
    Ok(text)
}

/// Compares a file of tables that were learned with the front end's, and prints what came of it.
///
/// # Errors
/// It cannot be read, or the front end's table lacks something.
pub fn learned(file: &Path, kernel: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    let mut lacking = 0;
    for learned in Learned::read(&text, &kernels::get(kernel)?)? {
        crate::output::print(learned.report())?;
        let [same, wider, missing] =
            [Verdict::Same, Verdict::Wider, Verdict::Missing].map(|verdict| learned.count(verdict));
        crate::output::print(format_args!(
            "{}: {same} same, {wider} wider, {missing} missing\n",
            learned.class
        ))?;
        lacking += missing;
    }
    ensure!(lacking == 0, "the front end's table lacks something of {lacking} commands that was learned");
    Ok(())
}

/// Analyzes drivers and prints what was found, or, with another kernel, what is different there.
///
/// # Errors
/// A driver cannot be analyzed, or the front end's table lacks something.
pub fn command(names: &[String], kernel: &str, diff: Option<&str>, form: Form) -> Result<()> {
    let kernel = kernels::get(kernel)?;
    let other = diff.map(kernels::get).transpose()?;
    let mut lacking = 0;
    for name in names {
        let found = driver(name, &kernel)?;
        if let Some(other) = &other {
            for line in changes(&found, &driver(name, other)?) {
                crate::output::print(format_args!("{line}\n"))?;
            }
            continue;
        }
        match form {
            Form::C => {
                crate::output::print(c(name, &kernel, &found)?)?;
                continue;
            }
            Form::Check => {
                let table = table(name, &kernel)?;
                let check = Check::new(&found, &table);
                let Counts { same, wider, missing, excepted, not_known, alone } = check.counts();
                crate::output::print(check.report())?;
                crate::output::print(format_args!(
                    "{name} {}: {same} same, {wider} wider, {missing} missing ({excepted} known why), {not_known} not known; {alone} only in the table\n",
                    kernel.release
                ))?;
                lacking += missing - excepted;
                continue;
            }
            Form::Details => {
                for Found { name, number, slice } in &found {
                    crate::output::print(format_args!("{name} {number:#010x} {slice:?}\n"))?;
                }
            }
            Form::Sums => {}
        }
        let Sums { commands, nested, sliced, unsliced } = Sums::of(&found);
        crate::output::print(format_args!(
            "{name} {}: {commands} commands, {nested} nested, {sliced} of them sliced; of {unsliced} something is not known\n",
            kernel.release
        ))?;
    }
    ensure!(lacking == 0, "the front end's table lacks something of {lacking} commands");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str, number: u32, reasons: &[&str], nested: bool) -> Found {
        let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        Found { name: name.to_owned(), number, slice: Slice { reasons, nested, ..Slice::default() } }
    }

    #[test]
    fn what_two_kernels_differ_in_is_named() {
        let old =
            [command("KEPT", 1, &[], false), command("OTHER", 2, &[], false), command("GONE", 3, &[], false)];
        let new =
            [command("KEPT", 1, &[], false), command("OTHER", 2, &[], true), command("NEW", 4, &[], false)];
        let lines = changes(&old, &new);
        let begins: Vec<&str> = lines.iter().map(|line| &line[..8]).collect();
        assert_eq!(begins, ["- OTHER ", "+ OTHER ", "+ NEW 0x", "- GONE 0"]);
        assert!(changes(&new, &new).is_empty());
    }

    #[test]
    fn a_nested_command_is_sliced_if_nothing_of_it_is_unknown() {
        let found =
            [command("A", 1, &[], true), command("B", 2, &["why"], true), command("C", 3, &["why"], false)];
        assert_eq!(Sums::of(&found), Sums { commands: 3, nested: 2, sliced: 1, unsliced: 2 });
    }
}
