//! Kernel modules of ours (`guest/linux`, `bench`), built for Debian's kernels with Debian's headers, which are unpacked in the cache and
//! not installed.

use crate::packages::{Apt, PackageName};
use crate::progress::Step;
use crate::workspace::{cache, hex, is_installed, root, run, scratch, write_whole};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler that Debian's kernels are built with, which the headers ask for by this name.
pub const COMPILER: &str = "gcc-12";

/// Where modules of ours are: those of guests with what all of them share, and those that measure peers.
const FOLDERS: [&str; 2] = ["guest/linux", "bench"];

/// The file of a module of ours for the kernel of this release, built if the cache does not have it as it should be.
pub fn get(name: &str, release: &str) -> Result<PathBuf> {
    let sources = sources(name)?;
    let mut digest = Sha256::new();
    for (file, bytes) in &sources {
        digest.update(file.as_bytes());
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    let digest = hex(&digest.finalize());
    let module = cache().join("modules").join(format!("{name}-{release}-{}.ko", &digest[..12]));
    if !module.exists() {
        let bytes = build(name, &sources, release)
            .with_context(|| format!("could not build the module {name} for Linux {release}"))?;
        write_whole(&module, &bytes)?;
    }
    Ok(module)
}

/// The files that a module is built from, by name.
fn sources(name: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let folders = FOLDERS.map(|folder| root().join(folder));
    let own = folders.iter().map(|folder| folder.join(name)).find(|own| own.is_dir());
    let own = own.with_context(|| format!("there is no module {name}"))?;
    let [common, _] = folders;
    let mut files = Vec::new();
    for directory in [own, common] {
        let shown = directory.display();
        for entry in std::fs::read_dir(&directory).with_context(|| format!("there is no {shown}"))? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if file == "Makefile" || file.ends_with(".c") || file.ends_with(".h") {
                files.push((file, std::fs::read(&path).with_context(|| format!("no {}", path.display()))?));
            }
        }
    }
    files.sort();
    Ok(files)
}

fn build(name: &str, sources: &[(String, Vec<u8>)], release: &str) -> Result<Vec<u8>> {
    for program in [COMPILER, "make"] {
        if !is_installed(program.as_ref()) {
            bail!("{program} is missing; setup/packages.sh installs what Sluice needs");
        }
    }
    let headers = headers(release)?;
    let step = Step::begin(format!("building the module {name} for Linux {release}"));
    let directory = own_folder(&scratch()?)?;
    for (file, bytes) in sources {
        std::fs::write(directory.join(file), bytes).context("could not write to the scratch folder")?;
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", directory.display()));
    // Type information of the kernel would need its debugger's tools, and nobody asks a module of ours for it.
    make.args(["CONFIG_DEBUG_INFO_BTF_MODULES=", &format!("CC={COMPILER}"), "CROSS_COMPILE=", "modules"]);
    for variable in ["MAKEFLAGS", "MFLAGS", "ARCH", "LDFLAGS", "KBUILD_OUTPUT"] {
        make.env_remove(variable);
    }
    run(make.env("LC_ALL", "C"))?;
    let module = directory.join(format!("{name}.ko"));
    let bytes = std::fs::read(&module).with_context(|| format!("make left no {}", module.display()))?;
    std::fs::remove_dir_all(&directory)?;
    step.done();
    Ok(bytes)
}

/// A folder that this call made: several build at once, and a former process of this number may have left one.
pub fn own_folder(base: &Path) -> Result<PathBuf> {
    for number in 0.. {
        let directory = base.join(format!("module-{}-{number}", std::process::id()));
        match std::fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("could not create {}", directory.display()));
            }
        }
    }
    unreachable!("there are more numbers than folders")
}

/// The folder of a kernel's headers in which modules are built. Debian has it in three packages.
pub fn headers(release: &str) -> Result<PathBuf> {
    let packages =
        HeaderPackages::of(release).with_context(|| format!("{release} is no kernel of Debian's"))?;
    let place = |package: &PackageName| cache().join("headers").join(package.as_str());
    let [own, common, tools] = packages.all().map(place);
    let build = own.join("usr/src").join(packages.own.as_str());
    if !packages.all().iter().all(|package| place(package).join("version").exists()) {
        let apt = Apt::open()?;
        for package in packages.all() {
            apt.unpack(package, &place(package)).with_context(|| {
                format!("Debian may have a newer kernel than {release} by now: cargo sluice fetch")
            })?;
        }
    }
    // They refer to each other by where they would be if they were installed.
    let makefile = format!("include {0}/usr/src/{1}/Makefile\n", up(&common, 4), packages.common.as_str());
    write_whole(&build.join("Makefile"), makefile.as_bytes())?;
    for package in [&own, &common] {
        let library = package.join("usr/lib");
        std::fs::create_dir_all(&library).context("could not write to the cache")?;
        let link = library.join(packages.tools.as_str());
        let target = format!("{}/usr/lib/{}", up(&tools, 3), packages.tools.as_str());
        if let Err(error) = std::os::unix::fs::symlink(&target, &link)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(error).with_context(|| format!("could not create {}", link.display()));
        }
    }
    Ok(build)
}

/// The folder of a package, from so many levels below a neighbour of it.
fn up(package: &Path, levels: usize) -> String {
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    format!("{}{name}", "../".repeat(levels))
}

/// The packages with a kernel's headers.
#[derive(Debug, PartialEq, Eq)]
struct HeaderPackages {
    /// Of this kernel.
    own: PackageName,
    /// Of all flavours, or of those for real time.
    common: PackageName,
    /// Programs that the build runs.
    tools: PackageName,
}

impl HeaderPackages {
    fn of(release: &str) -> Option<Self> {
        let flavour = release.strip_suffix("-amd64")?;
        let (version, common) = match flavour.rsplit_once('-') {
            Some((version, "cloud")) => (version, "common"),
            Some((version, "rt")) => (version, "common-rt"),
            _ => (flavour, "common"),
        };
        // Since 6.12 the programs are of the very same version; before, of the series.
        let tools = match version.split_once("+deb") {
            Some(_) => version.to_owned(),
            None => version.splitn(3, '.').take(2).collect::<Vec<_>>().join("."),
        };
        Some(Self {
            own: PackageName::parse(&format!("linux-headers-{release}"))?,
            common: PackageName::parse(&format!("linux-headers-{version}-{common}"))?,
            tools: PackageName::parse(&format!("linux-kbuild-{tools}"))?,
        })
    }

    fn all(&self) -> [&PackageName; 3] {
        [&self.own, &self.common, &self.tools]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_headers_are_in_three_packages() {
        let names = |release| {
            let packages = HeaderPackages::of(release).unwrap();
            packages.all().map(|package| package.as_str().to_owned())
        };
        assert_eq!(
            names("6.1.0-56-amd64"),
            ["linux-headers-6.1.0-56-amd64", "linux-headers-6.1.0-56-common", "linux-kbuild-6.1"]
        );
        assert_eq!(
            names("6.12.117+deb12-amd64"),
            [
                "linux-headers-6.12.117+deb12-amd64",
                "linux-headers-6.12.117+deb12-common",
                "linux-kbuild-6.12.117+deb12"
            ]
        );
        assert_eq!(
            names("6.1.0-56-cloud-amd64"),
            ["linux-headers-6.1.0-56-cloud-amd64", "linux-headers-6.1.0-56-common", "linux-kbuild-6.1"]
        );
        assert_eq!(
            names("6.1.0-56-rt-amd64"),
            ["linux-headers-6.1.0-56-rt-amd64", "linux-headers-6.1.0-56-common-rt", "linux-kbuild-6.1"]
        );
        assert_eq!(HeaderPackages::of("6.1.0-56-arm64"), None);
        assert_eq!(HeaderPackages::of("../6.1-amd64"), None);
    }

    #[test]
    fn a_module_is_built_from_its_own_files_and_the_common_headers() {
        let sources = sources("sluice-backend").unwrap();
        let files: Vec<&str> = sources.iter().map(|(file, _)| file.as_str()).collect();
        assert_eq!(
            files,
            [
                "Makefile",
                "backend.c",
                "devfile_face.h",
                "region.c",
                "region.h",
                "sluice.h",
                "sluice_backend.h",
                "sluice_region.h"
            ]
        );
    }
}
