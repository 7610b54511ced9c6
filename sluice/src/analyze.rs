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

/// Drivers whose table of ioctls is read: name, folder in the source, table.
const DRIVERS: [(&str, &str, &str); 5] = [
    ("drm", "drivers/gpu/drm", "drm_ioctls"),
    ("virtio-gpu", "drivers/gpu/drm/virtio", "virtio_gpu_ioctls"),
    ("radeon", "drivers/gpu/drm/radeon", "radeon_ioctls_kms"),
    ("nouveau", "drivers/gpu/drm/nouveau", "nouveau_ioctls"),
    ("i915", "drivers/gpu/drm/i915", "i915_ioctls"),
];

/// The handlers of commands that there are no more.
const GONE: [&str; 2] = ["drm_invalid_op", "drm_noop"];

/// Analyzes drivers and prints what was found.
pub fn command(names: &[String], kernel: &str, details: bool) -> Result<()> {
    let kernel = kernels::get(kernel)?;
    let clang = clang()?;
    let source = source(&kernel)?;
    for name in names {
        let (_, folder, table) = DRIVERS.iter().find(|(known, ..)| known == name).with_context(|| {
            let known: Vec<&str> = DRIVERS.iter().map(|(name, ..)| *name).collect();
            format!("'{name}' is no driver that is known; there are: {}", known.join(", "))
        })?;
        let program = Program::new(modules(&clang, &kernel, &source.join(folder))?);
        let rows = program.rows(table);
        if rows.is_empty() {
            bail!("{name} has no table {table} in Linux {}", kernel.release);
        }
        let (mut live, mut nested, mut unsliced) = (0, 0, 0);
        for (number, handler, command) in rows {
            if GONE.contains(&handler.1.as_ref()) {
                continue;
            }
            live += 1;
            let mut walk = Walk::new(&program);
            let found = if program.function(handler.0, &handler.1).is_some() {
                let (operations, _) = walk.handler(&handler);
                slice(&mut walk, &operations)
            } else {
                let reason = format!("{} is not among the files", handler.1);
                Slice { reasons: [reason].into(), ..Slice::default() }
            };
            nested += usize::from(found.nested);
            unsliced += usize::from(!found.reasons.is_empty());
            if details {
                crate::output::print(format_args!("{command} {number:#010x} {found:?}\n"))?;
            }
        }
        crate::output::print(format_args!(
            "{name} {}: {live} commands, {nested} nested, {unsliced} not sliced\n",
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

/// The folder with a kernel's source: of its drivers, those that are analyzed.
fn source(kernel: &Kernel) -> Result<PathBuf> {
    let series: Vec<&str> = kernel.release.split(['.', '-', '+']).take(2).collect();
    let name = format!("linux-source-{}", series.join("."));
    let place = package(&name)?;
    let root = place.join(&name);
    if !root.join("drivers/gpu/drm").is_dir() {
        let archive = place.join(format!("usr/src/{name}.tar.xz"));
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&place).arg("-xJf").arg(archive).arg("--exclude=*/drm/amd");
        run(tar.args(["--wildcards", "*/drivers/gpu/drm"]))?;
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
