//! Debian's kernels by name: `debian-6.1` is the newest 6.1 kernel of Debian 12, `debian-6.12` that of
//! its backports. A downloaded kernel stays in the cache and is used until `cargo sluice fetch` looks
//! for a newer one. `debian-6.1-vmlinux` is the same kernel without its self-extractor ([`vmlinux`]). `bare` is the test
//! kernel in guest/bare, built here.

mod vmlinux;

use crate::packages::{Apt, PackageName, natural_order};
use crate::workspace::{cache, write_whole};
use anyhow::{Context, Result};
use sluice_abi::config::Kind;
use std::path::PathBuf;

/// Series of kernels that can be named.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// What the name of a kernel without its self-extractor ends with.
const UNPACKED: &str = "-vmlinux";

/// Flavours that are not the plain kernel for PCs.
const OTHER_FLAVOURS: [&str; 4] = ["-rt-", "-cloud-", "-unsigned", "-dbg"];

/// A kernel in the cache.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As `uname -r` says: `6.1.0-56-amd64`.
    pub release: String,
    /// Version of the Debian package.
    pub version: String,
    /// The bzImage, or the ELF file that was in it.
    pub image: PathBuf,
    /// Its modules: the directory with `kernel/` in it.
    pub modules: PathBuf,
}

/// The test kernel, linked at 16 MiB, and below 1 MiB for guests whose RAM is where it physically is.
const BARE: [&str; 3] = ["bare", "bare-low", "bare-paravirtual"];

/// The names of Debian's kernels.
pub fn debian() -> Vec<String> {
    SERIES.iter().map(|series| format!("debian-{series}")).collect()
}

/// All names that [`get`] knows.
pub fn names() -> Vec<String> {
    let unpacked = SERIES.iter().map(|series| format!("debian-{series}{UNPACKED}"));
    debian().into_iter().chain(unpacked).chain(BARE.map(str::to_owned)).collect()
}

/// The name of the kernel for a domain of that kind: a paravirtual one cannot unpack itself.
pub fn for_kind(name: &str, kind: Kind) -> String {
    let packed = kind == Kind::Paravirtual && debian().iter().any(|known| known == name);
    if packed { format!("{name}{UNPACKED}") } else { name.to_owned() }
}

/// The kernel of this name, downloaded if there is none in the cache.
pub fn get(name: &str) -> Result<Kernel> {
    if BARE.contains(&name) {
        return Ok(Kernel {
            release: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            image: crate::image::bare_guest(name)?,
            modules: PathBuf::new(),
        });
    }
    let packed = name.strip_suffix(UNPACKED).unwrap_or(name);
    let kernel = match cached(series(packed)?) {
        Some(kernel) => kernel,
        None => fetch(packed)?,
    };
    if packed == name { Ok(kernel) } else { unpacked(kernel) }
}

/// The kernel with the ELF file that its bzImage holds as its image: made once, and kept beside it.
fn unpacked(kernel: Kernel) -> Result<Kernel> {
    let image = kernel.image.with_file_name(format!("vmlinux-{}", kernel.release));
    if !image.is_file() {
        let packed = &kernel.image;
        let shown = packed.display();
        let file = std::fs::read(packed).with_context(|| format!("could not read {shown}"))?;
        write_whole(&image, &vmlinux::unpack(&file).with_context(|| format!("could not unpack {shown}"))?)?;
    }
    Ok(Kernel { image, ..kernel })
}

/// Downloads the newest kernel of this name, if it is not in the cache.
pub fn fetch(name: &str) -> Result<Kernel> {
    let series = series(name)?;
    let apt = Apt::open()?;
    let package = apt
        .names(&format!("linux-image-{series}."))?
        .into_iter()
        .filter(|package| is_plain_flavour(package.as_str()))
        .max_by(|a, b| natural_order(a.as_str(), b.as_str()))
        .with_context(|| format!("Debian has no {series} kernel any more; give a kernel by path"))?;
    let release = package.as_str().trim_start_matches("linux-image-");
    let release = release_name(release).with_context(|| format!("{release} is the name of no kernel"))?;
    let shown = package.as_str();
    let directory = cache().join("kernels").join(&release);
    if !directory.join("version").exists() {
        apt.unpack(&package, &directory)?;
    }
    write_whole(&cache().join("kernels").join(format!("newest-{series}")), release.as_bytes())?;
    let kernel = cached(series).with_context(|| format!("{shown} holds no kernel"))?;
    crate::output::note(format_args!("sluice: {name} is {} ({})", kernel.release, kernel.version));
    Ok(kernel)
}

fn is_plain_flavour(package: &str) -> bool {
    package.ends_with("-amd64") && !OTHER_FLAVOURS.iter().any(|other| package.contains(other))
}

/// The release, if it can be part of a path: it stands in the name of a package.
fn release_name(text: &str) -> Option<String> {
    PackageName::parse(text).map(|name| name.as_str().to_owned())
}

fn series(name: &str) -> Result<&str> {
    name.strip_prefix("debian-").filter(|series| SERIES.contains(series)).context("no such kernel")
}

fn cached(series: &str) -> Option<Kernel> {
    let kernels = cache().join("kernels");
    let release = std::fs::read_to_string(kernels.join(format!("newest-{series}"))).ok()?;
    let release = release_name(&release)?;
    let directory = kernels.join(&release);
    let kernel = Kernel {
        version: std::fs::read_to_string(directory.join("version")).ok()?,
        image: directory.join(format!("boot/vmlinuz-{release}")),
        modules: ["lib/modules", "usr/lib/modules"]
            .iter()
            .map(|place| directory.join(place).join(&release))
            .find(|path| path.is_dir())?,
        release,
    };
    kernel.image.is_file().then_some(kernel)
}
