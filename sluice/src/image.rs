//! Builds the hypervisor: an ELF image for QEMU's `-kernel` (PVH), and a GRUB image for real machines.
//!
//! `core` for the bare-metal target comes from the rustup target where that is installed, else it is
//! built from the sources in Debian's `rust-web-src` with Debian's `cargo-web`.

use crate::claim::{Claim, Exclusive, Member};
use crate::name::Name;
use crate::progress::{self, Step, Stream};
use crate::workspace::{
    check_sources, installed_hypervisor, installed_program, root, run, scratch, write_whole,
};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The bare-metal target.
const TARGET: &str = "x86_64-unknown-none";

/// Packages built for it.
const HYPERVISOR: &str = "sluice-hypervisor";
const BARE_GUEST: &str = "sluice-bare";

/// Code generation: the image is linked at a fixed address in the top 2 GiB, and its backtraces follow
/// frame pointers. The linker script comes from the crate's own build script.
const RUSTFLAGS: [&str; 6] =
    ["-C", "relocation-model=static", "-C", "code-model=kernel", "-C", "force-frame-pointers=yes"];

/// What programs for Linux guests are built for, and how: without shared libraries, and without what only debuggers read.
const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";
const GUEST_RUSTFLAGS: [&str; 4] = ["-C", "target-feature=+crt-static", "-C", "strip=symbols"];

/// The package of the command line.
const COMMAND: &str = env!("CARGO_PKG_NAME");

/// Builds the hypervisor and returns its ELF file. `$SLUICE_HYPERVISOR` names one that is built already; a package brings its own.
pub fn hypervisor(features: &[Name]) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SLUICE_HYPERVISOR") {
        return Ok(PathBuf::from(path));
    }
    if features.is_empty()
        && let Some(path) = installed_hypervisor()
    {
        return Ok(path);
    }
    check_sources()?;
    // One directory for all sets of features: what they have in common, `core` among it, is built once. Each build overwrites
    // the result of the last, so it is copied before another can begin.
    let directory = root().join("target/hypervisor");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("could not create {}", directory.display()))?;
    let _alone = Exclusive::enter(&directory)?;
    cargo("build", HYPERVISOR, &directory, features, &[])?;
    let built = directory.join(TARGET).join("release").join(HYPERVISOR);
    let bytes = std::fs::read(&built).with_context(|| format!("could not read {}", built.display()))?;
    let names = std::iter::once(HYPERVISOR).chain(features.iter().map(|feature| &**feature));
    let elf = directory.join(names.collect::<Vec<_>>().join("+"));
    // A machine that starts now may be reading it.
    if std::fs::read(&elf).ok().as_ref() != Some(&bytes) {
        write_whole(&elf, &bytes)?;
    }
    Ok(elf)
}

/// Builds the guest kernel of the tests and returns its ELF file, `sluice-` and its name.
pub fn bare_guest(name: &str) -> Result<PathBuf> {
    check_sources()?;
    let directory = root().join("target/hypervisor");
    cargo("build", BARE_GUEST, &directory, &[], &[])?;
    Ok(directory.join(TARGET).join("release").join(format!("sluice-{name}")))
}

/// Lints what is built for bare metal with the compiler that builds it.
pub fn lint() -> Result<()> {
    let directory = root().join("target/hypervisor");
    cargo("clippy", HYPERVISOR, &directory, &[], &["--", "-D", "warnings"])?;
    cargo("clippy", BARE_GUEST, &directory, &[], &["--", "-D", "warnings"])
}

fn cargo(action: &str, package: &str, directory: &Path, features: &[Name], more: &[&str]) -> Result<()> {
    let mut cargo = toolchain(action)?;
    cargo
        .args(["--release", "--package", package, "--target", TARGET])
        .arg("--target-dir")
        .arg(directory)
        .current_dir(root());
    if !features.is_empty() {
        cargo.arg("--features").arg(joined(features, ","));
    }
    let doing = if action == "build" { "building" } else { "linting" };
    let what = if package == HYPERVISOR { "the hypervisor" } else { "the test kernel" };
    let with = if features.is_empty() { String::new() } else { format!(" with {}", joined(features, ", ")) };
    follow(cargo.args(more), &format!("{doing} {what}{with}"))
        .with_context(|| format!("{package} does not pass cargo {action}"))
}

/// Builds a program of ours for Linux guests and returns its file. It brings its libraries along: a root file system of ours has none.
pub fn guest_program(package: &str) -> Result<PathBuf> {
    if let Some(program) = installed_program(package) {
        return Ok(program);
    }
    check_sources()?;
    let directory = root().join("target/guest-programs");
    let profile = if package == COMMAND { "guest-command" } else { "release" };
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--profile", profile, "--package", package, "--target", GUEST_TARGET])
        .arg("--target-dir")
        .arg(&directory)
        .current_dir(root())
        .env("CARGO_ENCODED_RUSTFLAGS", GUEST_RUSTFLAGS.join("\x1f"));
    for name in ["RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    follow(&mut cargo, &format!("building {package}"))
        .with_context(|| format!("{package} does not pass cargo build"))?;
    Ok(directory.join(GUEST_TARGET).join(profile).join(package))
}

/// Runs cargo and shows how far it is.
fn follow(cargo: &mut Command, what: &str) -> Result<()> {
    // Its live line counts what is built; here it is made to write one without a terminal too.
    let colour = if std::io::stderr().is_terminal() { "always" } else { "never" };
    for (key, value) in
        [("PROGRESS_WHEN", "always"), ("PROGRESS_WIDTH", "100"), ("COLOR", colour), ("QUIET", "false")]
    {
        cargo.env(format!("CARGO_TERM_{key}"), value);
    }
    let step = Step::begin(what);
    progress::watch(cargo, Stream::Error, &step, progress::cargo)?;
    step.done();
    Ok(())
}

fn joined(features: &[Name], between: &str) -> String {
    features.iter().map(|feature| &**feature).collect::<Vec<_>>().join(between)
}

/// A cargo that can do `action` for [`TARGET`].
fn toolchain(action: &str) -> Result<Command> {
    let mut flags: Vec<String> = RUSTFLAGS.iter().map(|flag| (*flag).to_owned()).collect();
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let has_target = sysroot.is_some_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib").join(TARGET).join("lib").is_dir()
    });
    let mut cargo;
    if has_target {
        cargo = Command::new("cargo");
        cargo.arg(action);
    } else {
        let debian = Path::new("/usr/bin/cargo");
        if !debian.exists() || !Path::new("/usr/bin/rustc").exists() {
            bail!(
                "no toolchain for {TARGET}\n\
                 help: run setup/packages.sh (Debian's cargo-web, rust-web-src and lld), \
                 or: rustup target add {TARGET}"
            );
        }
        cargo = Command::new(debian);
        // Debian's compiler is the stable one; building core needs its unstable switch.
        cargo.arg(action).args(["-Z", "build-std=core,alloc"]);
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTC", "/usr/bin/rustc");
        // cargo finds its subcommands on the path, where rustup's may come first.
        let path = std::env::var("PATH").unwrap_or_default();
        cargo.env("PATH", format!("/usr/bin:{path}"));
        flags.extend(["-C".to_owned(), "linker=ld.lld".to_owned()]);
    }
    // What a surrounding cargo set is meant for another compiler.
    for name in ["RUSTUP_TOOLCHAIN", "RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTDOC"] {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    Ok(cargo)
}

/// Writes a GRUB image that boots the hypervisor with a command line and a bundle, under BIOS and UEFI.
pub fn iso(elf: &Path, bundle: &[u8], options: &str, output: &Path) -> Result<()> {
    let files = Claim::take(&scratch()?, &"image".parse()?)?;
    let (bundle_path, config) = (files.path(Member::Bundle), files.path(Member::GrubConfig));
    std::fs::write(&bundle_path, bundle).context("could not write the bundle")?;
    std::fs::write(&config, GRUB_CONFIG.replace("@OPTIONS@", options))
        .context("could not write GRUB's configuration")?;
    let mut mkrescue = Command::new("grub-mkrescue");
    mkrescue.arg("--compress=xz").arg("-o").arg(output);
    for (place, file) in
        [("boot/sluice", elf), ("boot/bundle", &bundle_path), ("boot/grub/grub.cfg", &config)]
    {
        mkrescue.arg(graft(place, file));
    }
    let step = Step::begin("packing the image");
    run(&mut mkrescue)
        .context("could not make the image (packages grub-pc-bin, grub-efi-amd64-bin, xorriso, mtools)")?;
    step.done();
    Ok(())
}

/// A file and its place in the image, as mkisofs takes them: `\` and `=` in a path are written with a `\` before them
/// (xorrisofs(1), "-graft-points").
fn graft(place: &str, file: &Path) -> OsString {
    let mut argument = OsString::from(format!("/{place}=")).into_vec();
    for byte in file.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b'=') {
            argument.push(b'\\');
        }
        argument.push(*byte);
    }
    OsString::from_vec(argument)
}

/// The log also goes to the first serial port, so GRUB leaves that one alone. Slow drives fail to
/// read now and then under UEFI: it tries again. Under UEFI there are only pixels, for which GRUB loads drivers;
/// under a BIOS the screen stays in its text mode.
const GRUB_CONFIG: &str = "\
set timeout=0
if [ \"$grub_platform\" = efi ]; then insmod all_video; fi
menuentry Sluice {
    until multiboot2 /boot/sluice @OPTIONS@; do sleep 1; done
    until module2 /boot/bundle bundle; do sleep 1; done
    boot
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_files_are_told_apart() {
        assert_eq!(graft("boot/a", Path::new("/x=y/z\\w")), "/boot/a=/x\\=y/z\\\\w");
    }

    /// Needs GRUB's tools, as the scenarios that boot an image do.
    #[test]
    fn images_made_at_once_do_not_mix() {
        let directory = std::env::temp_dir().join(format!("sluice-images-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let elf = directory.join("a=b");
        std::fs::write(&elf, "an ELF file").unwrap();
        let markers = ["bundle of the first", "bundle of the second"];
        let made: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
            let make = |marker: &'static str| {
                let (elf, output) = (&elf, directory.join(marker));
                scope.spawn(move || {
                    iso(elf, marker.as_bytes(), "", &output)?;
                    Ok(std::fs::read(output)?)
                })
            };
            markers.map(make).into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        std::fs::remove_dir_all(&directory).unwrap();
        for (marker, image) in markers.into_iter().zip(made) {
            let image = image.unwrap();
            let has = |text: &str| image.windows(text.len()).any(|window| window == text.as_bytes());
            assert!(has("an ELF file") && has("multiboot2 /boot/sluice"));
            for other in markers {
                assert_eq!(has(other), other == marker, "{other}");
            }
        }
    }
}
