//! The selftests of Linux (`tools/testing/selftests`), built from Debian's package of a kernel's source with this system's compiler and libraries.
//!
//! `guest/selftests/list` says which of them a guest runs, and with what arguments (`sluice.job=selftests` in `guest/rootfs/init`).

use crate::made::kept;
use crate::modules::COMPILER;
use crate::packages::{self, PackageName};
use crate::progress::Step;
use crate::workspace::{cache, hex, is_installed, root, run};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suites, as Linux 6.1 has them. Since 6.4 `vm` is `mm`.
const SUITES: [&str; 2] = ["x86", "vm"];

/// What of the source they are built from.
const SOURCES: [&str; 5] = [
    "tools/testing/selftests",
    "arch/x86/include/asm",
    "include/vdso",
    "mm/gup_test.h",
    "lib/test_hmm_uapi.h",
];

/// What a guest needs to build the first suite.
const BUILT_IN_A_GUEST: [&str; 5] = [
    "tools/testing/selftests/x86",
    "tools/testing/selftests/lib.mk",
    "tools/testing/selftests/kselftest.h",
    "tools/testing/selftests/kselftest_harness.h",
    "arch/x86/include/asm/desc_defs.h",
];

/// Where headers are that Debian has for each architecture, and that 32-bit programs want, too. The package gcc-multilib, which has a link for them, cannot be
/// beside compilers for other machines.
const HEADERS: &str = "/usr/include/x86_64-linux-gnu";

/// What glibc loads when a thread is cancelled.
const CANCEL: &str = "libgcc_s.so.1";

/// Where they are in a root file system, and their list.
const PLACE: &str = "selftests";

/// What there is in a root file system: places, and the files that come there. Built if the cache does not have it.
pub fn files(release: &str) -> Result<BTreeMap<String, PathBuf>> {
    let list = root().join("guest/selftests/list");
    let tests = std::fs::read_to_string(&list).with_context(|| format!("no {}", list.display()))?;
    let package = source_package(release).with_context(|| format!("{release} is no kernel of Debian's"))?;
    let source = packages::unpacked(package.as_str())?;
    let mut digest = Sha256::new_with_prefix(std::fs::read(source.join("version"))?);
    for word in SOURCES.into_iter().chain(SUITES).chain([COMPILER]) {
        digest.update(word);
        digest.update([0]);
    }
    let made = cache().join("selftests").join(&hex(&digest.finalize())[..12]);
    let mut files = kept(&made, |folder| build(&package, &source, folder))?;
    if let Some(missing) = programs(&tests).find(|program| !files.contains_key(program)) {
        bail!("{package} has no {missing}", package = package.as_str());
    }
    files.insert(format!("{PLACE}/list"), list);
    Ok(files)
}

/// What the suite of the processor is built from, by its places below `source` in a root file system.
pub fn sources(release: &str) -> Result<BTreeMap<String, PathBuf>> {
    let package = source_package(release).with_context(|| format!("{release} is no kernel of Debian's"))?;
    let source = packages::unpacked(package.as_str())?;
    let version = std::fs::read(source.join("version"))?;
    let folder = cache().join("selftests").join(format!("source-{}", &hex(&Sha256::digest(version))[..12]));
    let files = kept(&folder, |own| {
        unpack(&package, &source, own)?;
        let tree = own.join(package.as_str());
        let mut files = BTreeMap::new();
        for from in BUILT_IN_A_GUEST.map(|path| tree.join(path)) {
            for file in if from.is_dir() { files_in(&from)? } else { vec![from] } {
                files.insert(file.strip_prefix(&tree)?.display().to_string(), file);
            }
        }
        Ok(files)
    })?;
    Ok(files.into_iter().map(|(place, file)| (format!("source/{place}"), file)).collect())
}

/// The files of a folder, without those below it.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        files.extend(path.is_file().then_some(path));
    }
    files.sort();
    Ok(files)
}

/// Unpacks what is built into a folder.
fn unpack(package: &PackageName, source: &Path, folder: &Path) -> Result<()> {
    let name = package.as_str();
    let archive = source.join(format!("usr/src/{name}.tar.xz"));
    let members = SOURCES.map(|path| format!("{name}/{path}"));
    run(Command::new("tar").arg("-C").arg(folder).arg("-xJf").arg(&archive).args(members))?;
    Ok(())
}

/// The package with the source of a kernel's series.
fn source_package(release: &str) -> Option<PackageName> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(['.', '-']).next()?;
    PackageName::parse(&format!("linux-source-{major}.{minor}"))
}

/// The places of the programs that a list starts: each in the folder of its suite.
fn programs(list: &str) -> impl Iterator<Item = String> {
    list.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let suite = words.next()?.split('/').next().filter(|suite| SUITES.contains(suite))?;
        let program = words.find_map(|word| word.strip_prefix("./"))?;
        Some(format!("{PLACE}/{suite}/{program}"))
    })
}

/// Builds them in a folder: they and their libraries, by their places in a root file system.
fn build(package: &PackageName, source: &Path, folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    if !is_installed(COMPILER.as_ref()) || !is_installed("make".as_ref()) {
        bail!("{COMPILER} or make is missing; setup/packages.sh installs what Sluice needs");
    }
    let step = Step::begin("building the kernel's selftests");
    let name = package.as_str();
    unpack(package, source, folder)?;
    let mut made = BTreeMap::new();
    for suite in SUITES {
        let output = folder.join(suite);
        std::fs::create_dir(&output)?;
        let mut make = Command::new("make");
        make.arg("-C").arg(folder.join(name).join("tools/testing/selftests").join(suite));
        make.args([&format!("OUTPUT={}", output.display()), &format!("CC={COMPILER}"), "CROSS_COMPILE="]);
        for variable in ["MAKEFLAGS", "MFLAGS", "ARCH", "CFLAGS", "LDFLAGS", "KHDR_INCLUDES"] {
            make.env_remove(variable);
        }
        make.env("C_INCLUDE_PATH", HEADERS).env("LC_ALL", "C");
        run(&mut make).with_context(|| {
            format!("could not build the selftests of {suite}; setup/packages.sh all installs what they take")
        })?;
        for entry in std::fs::read_dir(&output)? {
            let program = entry?.path();
            let file = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for library in libraries(&program)? {
                made.insert(library.to_string_lossy().trim_start_matches('/').to_owned(), library);
            }
            made.insert(format!("{PLACE}/{suite}/{file}"), program);
        }
    }
    let said = run(Command::new(COMPILER).arg(format!("-print-file-name={CANCEL}")))?;
    let cancel = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    made.insert(format!("lib/x86_64-linux-gnu/{CANCEL}"), cancel.canonicalize()?);
    step.done();
    Ok(made)
}

/// The libraries of a program and what loads them, where they are here. One that is static has none.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output =
        Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("could not start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("a library of {} is not installed: {}", program.display(), line.trim());
    }
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_a_package_with_its_source() {
        let name = |release| source_package(release).map(|package| package.as_str().to_owned());
        assert_eq!(name("6.1.0-56-amd64").as_deref(), Some("linux-source-6.1"));
        assert_eq!(name("6.12.117+deb12-amd64").as_deref(), Some("linux-source-6.12"));
        assert_eq!(name("bare"), None);
        assert_eq!(name("6./../x"), None);
    }

    #[test]
    fn the_list_names_tests_once_with_a_time_and_a_program_of_its_suite() {
        let list = std::fs::read_to_string(root().join("guest/selftests/list")).unwrap();
        let lines = || list.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '!']));
        let names: BTreeSet<&str> = lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names.len(), lines().count(), "a name is there twice");
        for line in lines() {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(words.len() > 2 && words[1].parse::<u32>().is_ok(), "{line}");
            let suite = words[0].split_once('/').map(|(suite, _)| suite);
            assert!(suite.is_some_and(|suite| SUITES.contains(&suite)), "{line}");
        }
        let places: Vec<String> = programs(&list).collect();
        assert!(places.contains(&"selftests/x86/sysret_rip_64".to_owned()));
        assert!(places.contains(&"selftests/vm/mremap_test".to_owned()));
    }
}
