//! `cargo sluice analyze`: what the ioctls of a driver copy, found in the driver's source from Debian's package by clang and
//! [`sluice_slice`]. Packages are unpacked in the cache; nothing is installed.

use crate::kernels::{self, Kernel};
use crate::packages::{Apt, PackageName};
use crate::workspace::{cache, run};
use anyhow::{Context, Result, bail};
use sluice_slice::{Program, Slice, Walk, module, slice};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What clang consists of, in Debian 12.
const CLANG: [&str; 6] =
    ["clang-14", "libclang-cpp14", "libclang-common-14-dev", "libllvm14", "libz3-4", "libedit2"];

/// Where those of graphics cards are in the source.
const GRAPHICS: &str = "drivers/gpu/drm";

/// Drivers whose table of ioctls is read: name, folder in the source, table.
const DRIVERS: [(&str, &str, &str); 5] = [
    ("drm", GRAPHICS, "drm_ioctls"),
    ("virtio-gpu", "drivers/gpu/drm/virtio", "virtio_gpu_ioctls"),
    ("radeon", "drivers/gpu/drm/radeon", "radeon_ioctls_kms"),
    ("nouveau", "drivers/gpu/drm/nouveau", "nouveau_ioctls"),
    ("i915", "drivers/gpu/drm/i915", "i915_ioctls"),
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
    DRIVERS.iter().map(|(name, ..)| *name)
}

/// Analyzes a driver of a kernel's source.
///
/// # Errors
/// Nobody knows it, or its source cannot be had or read.
pub fn driver(name: &str, kernel: &Kernel) -> Result<Vec<Found>> {
    let (_, folder, table) = DRIVERS.iter().find(|(known, ..)| *known == name).with_context(|| {
        let known: Vec<&str> = drivers().collect();
        format!("'{name}' is no driver that is known; there are: {}", known.join(", "))
    })?;
    let program = Program::new(modules(&clang()?, kernel, &source(kernel, GRAPHICS)?.join(folder))?);
    let rows = program.rows(table);
    if rows.is_empty() {
        bail!("{name} has no table {table} in Linux {}", kernel.release);
    }
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

/// Analyzes drivers and prints what was found, or, with another kernel, what is different there.
pub fn command(names: &[String], kernel: &str, diff: Option<&str>, details: bool) -> Result<()> {
    let kernel = kernels::get(kernel)?;
    let other = diff.map(kernels::get).transpose()?;
    for name in names {
        let found = driver(name, &kernel)?;
        if let Some(other) = &other {
            for line in changes(&found, &driver(name, other)?) {
                crate::output::print(format_args!("{line}\n"))?;
            }
            continue;
        }
        for Found { name, number, slice } in found.iter().filter(|_| details) {
            crate::output::print(format_args!("{name} {number:#010x} {slice:?}\n"))?;
        }
        let Sums { commands, nested, sliced, unsliced } = Sums::of(&found);
        crate::output::print(format_args!(
            "{name} {}: {commands} commands, {nested} nested, {sliced} of them sliced; of {unsliced} something is not known\n",
            kernel.release
        ))?;
    }
    Ok(())
}

fn package(name: &str) -> Result<PathBuf> {
    let place = cache().join("analyze").join(name);
    if !place.join("version").exists() {
        let name = PackageName::parse(name).with_context(|| format!("{name} is no package's name"))?;
        Apt::open()?.unpack(&name, &place)?;
    }
    Ok(place)
}

/// The command that runs clang.
fn clang() -> Result<(PathBuf, String)> {
    let mut libraries = Vec::new();
    for name in CLANG {
        let place = package(name)?.join("usr/lib");
        libraries.push(place.join("x86_64-linux-gnu").display().to_string());
        libraries.push(place.join("llvm-14/lib").display().to_string());
    }
    Ok((package("clang-14")?.join("usr/lib/llvm-14/bin/clang"), libraries.join(":")))
}

/// Where a kernel's source is, of which this folder is there.
pub fn source(kernel: &Kernel, folder: &str) -> Result<PathBuf> {
    let series: Vec<&str> = kernel.release.split(['.', '-', '+']).take(2).collect();
    let name = format!("linux-source-{}", series.join("."));
    let place = package(&name)?;
    let root = place.join(&name);
    if !root.join(folder).is_dir() {
        let archive = place.join(format!("usr/src/{name}.tar.xz"));
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&place).arg("-xJf").arg(archive).arg("--exclude=*/drm/amd");
        run(tar.args(["--wildcards", &format!("*/{folder}")]))?;
    }
    Ok(root)
}

/// The intermediate code of the files of a folder that reach a program's memory, or have ioctls. A file that Debian's kernel is
/// built without does not compile, and is left out.
fn modules(
    (clang, libraries): &(PathBuf, String),
    kernel: &Kernel,
    folder: &Path,
) -> Result<Vec<sluice_slice::ir::Module>> {
    let own = crate::modules::headers(&kernel.release)?;
    let makefile = std::fs::read_to_string(own.join("Makefile"))?;
    let common = makefile.trim().strip_prefix("include ").context("the headers have a common part")?;
    let common = own.join(common.trim_end_matches("/Makefile"));
    let shim = crate::workspace::root().join("sluice/src/analyze/user.h");
    let mut found = Vec::new();
    let list = std::fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut files: Vec<PathBuf> = list.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    if folder.ends_with("i915") {
        let inner = std::fs::read_dir(folder.join("gem"))?;
        files.extend(inner.filter_map(|entry| entry.ok().map(|entry| entry.path())));
    }
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "c")) {
        let text = std::fs::read_to_string(file)?;
        if !["_user", "_ioctl", "__user"].iter().any(|word| text.contains(word)) {
            continue;
        }
        let mut command = Command::new(clang);
        command.env("LD_LIBRARY_PATH", libraries).arg("-nostdinc");
        for (root, inner) in [
            (&common, "arch/x86/include"),
            (&own, "arch/x86/include/generated"),
            (&common, "include"),
            (&own, "include"),
            (&common, "arch/x86/include/uapi"),
            (&own, "arch/x86/include/generated/uapi"),
            (&common, "include/uapi"),
            (&own, "include/generated/uapi"),
        ] {
            command.arg("-I").arg(root.join(inner));
        }
        for inner in ["compiler-version.h", "kconfig.h", "compiler_types.h"] {
            command.arg("-include").arg(common.join("include/linux").join(inner));
        }
        command.arg("-I").arg(folder).arg("-I").arg(folder.join("include"));
        command.arg("-I").arg(folder.join("include/nvkm"));
        command.args(["-D__KERNEL__", "-DCC_USING_FENTRY", "-DMODULE", "-DKBUILD_MODNAME=\"x\""]);
        command.args(["-DKBUILD_BASENAME=\"x\"", "-std=gnu11", "-fshort-wchar", "-funsigned-char", "-w"]);
        command.args(["-fno-strict-aliasing", "-mno-sse", "-mcmodel=kernel", "-O0", "-Xclang"]);
        command.args(["-disable-O0-optnone", "-fno-discard-value-names", "-S", "-emit-llvm", "-o", "-"]);
        command.arg("-include").arg(&shim).arg(file);
        match run(&mut command) {
            Ok(output) => found.push(module(&String::from_utf8_lossy(&output.stdout))?),
            Err(_) => crate::output::note(format_args!("sluice: left out: {}", file.display())),
        }
    }
    Ok(found)
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
