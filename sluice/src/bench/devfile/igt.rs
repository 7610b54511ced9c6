//! IGT, the tests of Linux' graphics drivers. Debian's package has none of the tests, so that they are built from a checkout that the user has, with this
//! system's libraries, and come into root file systems with these.

use super::checkout::{Checkout, Upstream};
use crate::made::kept;
use crate::progress::Step;
use crate::workspace::{cache, hex, run, write_whole};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is built, of 2025-10-03. Since the commit after it tests do not take a virtio GPU for "any" card, whoever names it.
pub static UPSTREAM: Upstream = Upstream {
    name: "igt",
    url: "https://gitlab.freedesktop.org/drm/igt-gpu-tools",
    commit: "f158c59a92fdf0f22f2317cc91abcb9dbca0b405",
    variable: "SLUICE_IGT",
    marks: &["meson.build", "lib/igt_core.c", "tests"],
    sources: &["include", "lib", "meson.build", "meson_options.txt", "scripts", "tests"],
};

/// Where it is in a root file system, as the script there has it.
const PLACE: &str = "igt";
/// What programs are started by.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// Options of the build: tests that need nothing but the card, as far as these can be told.
const OPTIONS: [&str; 10] = [
    "-Dtests=enabled",
    "-Dman=disabled",
    "-Ddocs=disabled",
    "-Drunner=disabled",
    "-Dxe_driver=disabled",
    "-Dchamelium=disabled",
    "-Doverlay=disabled",
    "-Dtestplan=disabled",
    "-Dlibdrm_drivers=",
    "--buildtype=release",
];

/// A program of IGT's.
pub struct Test {
    pub name: &'static str,
    /// How many seconds it may take.
    pub patience: u32,
    /// Which of its subtests, if not all, by IGT's patterns.
    pub subtests: &'static str,
}

/// What there is in a root file system: places, and the files that come there. Built if the cache does not have it.
pub fn files(checkout: &Checkout, tests: &[Test]) -> Result<BTreeMap<String, PathBuf>> {
    let mut digest = Sha256::new_with_prefix(checkout.digest()?);
    OPTIONS.into_iter().chain(tests.iter().map(|test| test.name)).for_each(|word| {
        digest.update(word);
        digest.update([0]);
    });
    let made = cache().join("igt").join(&hex(&digest.finalize())[..12]);
    let mut files = kept(&made, |folder| {
        let mut built = build(checkout.path(), tests, folder)?;
        for (number, file) in built.values_mut().enumerate() {
            let stripped = folder.join(format!("stripped-{number}"));
            run(Command::new("strip").arg("-o").arg(&stripped).arg(&*file))?;
            *file = stripped;
        }
        Ok(built)
    })?;
    let list = made.join("list");
    write_whole(&list, lines(tests).as_bytes())?;
    files.insert(format!("{PLACE}/list"), list);
    Ok(files)
}

/// The tests, a line each, as the script reads them.
fn lines(tests: &[Test]) -> String {
    let line = |test: &Test| format!("{} {} {}\n", test.name, test.patience, test.subtests);
    tests.iter().map(line).collect()
}

/// Builds tests in a folder: they and their libraries, by their places in a root file system. The checkout stays as it is.
fn build(checkout: &Path, tests: &[Test], folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let step = Step::begin("building IGT");
    make(Command::new("meson").arg("setup").args(OPTIONS).arg(folder.join("build")).arg(checkout))?;
    let build = folder.join("build");
    let targets = tests.iter().map(|test| format!("tests/{}", test.name));
    make(Command::new("ninja").arg("-C").arg(&build).args(targets))?;
    let mut made = BTreeMap::new();
    for test in tests {
        let program = build.join("tests").join(test.name);
        let listed = run(Command::new("ldd").arg(&program))?;
        for (name, file) in libraries(&String::from_utf8_lossy(&listed.stdout))? {
            let place =
                if LOADER.ends_with(&name) { LOADER.to_owned() } else { format!("{PLACE}/lib/{name}") };
            made.insert(place, file);
        }
        made.insert(format!("{PLACE}/tests/{}", test.name), program);
    }
    step.done();
    Ok(made)
}

/// A step of the build. Its programs say on their output what went wrong.
fn make(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let help =
        || format!("with {} set, setup/packages.sh installs what IGT is built with", UPSTREAM.variable);
    let output = command
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("could not start '{name}'; {}", help()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout);
        let last: Vec<&str> = said.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        bail!("could not build IGT ({}):\n{}", help(), last.join("\n"));
    }
    Ok(())
}

/// Libraries by their names, as `ldd` lists them, and what loads them. What the kernel brings has no file.
fn libraries(listed: &str) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for line in listed.lines().map(str::trim) {
        let (name, rest) = line.split_once(" => ").unwrap_or((line, line));
        let file = rest.split(" (").next().unwrap_or_default();
        if file == "not found" {
            bail!("{name} is not installed");
        }
        if file.starts_with('/') {
            let name = Path::new(name.split(" (").next().unwrap_or_default())
                .file_name()
                .context("a library has a name")?;
            found.push((name.to_string_lossy().into_owned(), PathBuf::from(file)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_have_files() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibdrm.so.2 => /lib/x86_64-linux-gnu/libdrm.so.2 (0x00007f01)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let found = libraries(listed).unwrap();
        let expected = [
            ("libdrm.so.2", "/lib/x86_64-linux-gnu/libdrm.so.2"),
            ("ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
        ];
        assert_eq!(found, expected.map(|(name, file)| (name.to_owned(), PathBuf::from(file))));
        let error = libraries("\tlibdw.so.1 => not found\n").unwrap_err().to_string();
        assert!(error.contains("libdw.so.1"), "{error}");
    }

    #[test]
    fn a_line_has_a_test_its_patience_and_its_subtests() {
        let test = |name, subtests| Test { name, patience: 30, subtests };
        assert_eq!(
            lines(&[test("core_auth", ""), test("kms_flip", "basic-*")]),
            "core_auth 30 \nkms_flip 30 basic-*\n"
        );
    }
}
