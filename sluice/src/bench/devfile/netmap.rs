//! netmap, which no Debian package has: modules out of a checkout that the user has, built for a kernel of Debian's with Debian's headers. Its patch of
//! the e1000 driver is applied to Debian's source of that, so that netmap works on the card's own rings.

use crate::analyze;
use crate::kernels::Kernel;
use crate::modules::{COMPILER, headers, own_folder};
use crate::progress::Step;
use crate::workspace::{cache, hex, run, scratch, write_whole};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is built, of 2026-02-10.
pub const COMMIT: &str = "89607e1406c1fa5ac2106bd2ff33417f090c0d60";
const UPSTREAM: &str = "https://github.com/luigirizzo/netmap";
/// Names the folder of the checkout.
const VARIABLE: &str = "SLUICE_NETMAP";
/// Folders with what the modules are built from.
const FOLDERS: [&str; 2] = ["LINUX", "sys"];
/// The driver with a patch, and where it is in the kernel's source.
const DRIVER: &str = "e1000";
const DRIVERS: &str = "drivers/net/ethernet/intel";
/// What is built, and where the build leaves it.
const MODULES: [(&str, &str); 2] = [("netmap", "netmap.ko"), (DRIVER, "e1000/e1000.ko")];

/// How to have it.
pub fn how() -> String {
    format!(
        "git clone {UPSTREAM} && git -C netmap checkout {COMMIT}, and {VARIABLE}=netmap in the environment"
    )
}

/// A folder with its source.
pub struct Checkout {
    path: PathBuf,
    /// Whether git says that it is this commit; a folder may also come without its history.
    pub is_known: bool,
}

impl Checkout {
    /// The one that the environment names; `None`: it names none.
    pub fn named() -> Result<Option<Self>> {
        std::env::var_os(VARIABLE).map(|path| Self::at(Path::new(&path))).transpose()
    }

    fn at(path: &Path) -> Result<Self> {
        let shown = path.display();
        let path =
            path.canonicalize().with_context(|| format!("{VARIABLE}={shown}: there is no such folder"))?;
        if !FOLDERS.iter().all(|folder| path.join(folder).is_dir()) || !path.join("LINUX/configure").is_file()
        {
            bail!("{VARIABLE}={shown} is no checkout of netmap: {}", how());
        }
        let is_known = path.join(".git").exists();
        if is_known {
            let output = run(Command::new("git").arg("-C").arg(&path).args(["rev-parse", "HEAD"]))?;
            let head = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if head != COMMIT {
                bail!("{VARIABLE}={shown} is at {head}: {}", how());
            }
        }
        Ok(Self { path, is_known })
    }

    /// netmap and the driver that it has patched, built if the cache does not have them.
    pub fn modules(&self, kernel: &Kernel) -> Result<BTreeMap<String, PathBuf>> {
        let digest = self.digest()?;
        let files = MODULES.map(|(name, made)| {
            let file = format!("netmap-{name}-{}-{}.ko", kernel.release, &digest[..12]);
            (name, made, cache().join("modules").join(file))
        });
        if !files.iter().all(|(.., file)| file.exists()) {
            let folder = own_folder(&scratch()?)?;
            self.build(kernel, &folder).context("could not build netmap")?;
            for (_, made, file) in &files {
                let made = folder.join(made);
                run(Command::new("strip").arg("--strip-debug").arg(&made))?;
                write_whole(file, &std::fs::read(&made)?)?;
            }
            std::fs::remove_dir_all(&folder)?;
        }
        Ok(files.into_iter().map(|(name, _, file)| (name.to_owned(), file)).collect())
    }

    /// Of all that the modules are built from.
    fn digest(&self) -> Result<String> {
        let mut digest = Sha256::new();
        let mut pending: BTreeSet<PathBuf> = FOLDERS.iter().map(|folder| self.path.join(folder)).collect();
        while let Some(path) = pending.pop_first() {
            if path.is_dir() {
                for entry in std::fs::read_dir(&path)? {
                    pending.insert(entry?.path());
                }
            } else {
                let bytes = std::fs::read(&path).with_context(|| format!("no {}", path.display()))?;
                let name = path.strip_prefix(&self.path)?.display().to_string();
                digest.update(name.as_bytes());
                digest.update((bytes.len() as u64).to_le_bytes());
                digest.update(bytes);
            }
        }
        Ok(hex(&digest.finalize()))
    }

    /// Leaves modules in a folder of the build. The checkout stays as it is.
    fn build(&self, kernel: &Kernel, folder: &Path) -> Result<()> {
        let (headers, source) =
            (headers(&kernel.release)?, analyze::source(kernel, &format!("{DRIVERS}/{DRIVER}"))?);
        let step = Step::begin(format!("building netmap for Linux {}", kernel.release));
        let mut configure = Command::new("sh");
        configure.arg(self.path.join("LINUX/configure"));
        configure.arg(format!("--kernel-dir={}", headers.display()));
        configure.arg(format!("--kernel-sources={}", source.display()));
        configure.arg(format!("--drivers={DRIVER}")).arg(format!("--cc={COMPILER}"));
        configure.args(["--fail-on-driver-errors", "--no-utils", "--no-apps"]);
        run(configure.current_dir(folder))?;
        for target in [format!("get-{DRIVER}"), "netmap.ko".to_owned()] {
            let mut make = Command::new("make");
            make.args([&target, &format!("CC={COMPILER}"), "CONFIG_DEBUG_INFO_BTF_MODULES="]);
            for variable in ["MAKEFLAGS", "MFLAGS", "ARCH", "LDFLAGS", "KBUILD_OUTPUT"] {
                make.env_remove(variable);
            }
            run(make.current_dir(folder).env("LC_ALL", "C"))?;
        }
        step.done();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files.
    fn folder(name: &str, files: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-netmap-{name}-{}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
        folder
    }

    const FILES: [&str; 2] = ["LINUX/configure", "sys/net/netmap.h"];

    #[test]
    fn a_folder_is_one_of_netmap_or_none() {
        let error = |path: &Path| Checkout::at(path).err().unwrap().to_string();
        assert!(error(Path::new("/nowhere/netmap")).contains("no such folder"));
        let other = folder("other", &["sys/net/netmap.h"]);
        assert!(error(&other).contains("is no checkout of netmap") && error(&other).contains(COMMIT));
        let netmap = folder("netmap", &FILES);
        assert!(!Checkout::at(&netmap).unwrap().is_known);
        [other, netmap].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    }

    #[test]
    fn a_checkout_of_another_commit_is_refused() {
        let netmap = folder("commit", &FILES);
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
            run(Command::new("git").arg("-C").arg(&netmap).args(identity).args(arguments)).unwrap();
        };
        git(&["init", "-q"]);
        git(&["commit", "-q", "--allow-empty", "-m", "another"]);
        let error = Checkout::at(&netmap).err().unwrap().to_string();
        assert!(error.contains("is at ") && error.contains(COMMIT), "{error}");
        std::fs::remove_dir_all(netmap).unwrap();
    }

    #[test]
    fn what_is_built_depends_on_every_file() {
        let netmap = folder("digest", &FILES);
        let digest = || Checkout { path: netmap.clone(), is_known: false }.digest().unwrap();
        let before = digest();
        assert_eq!(before, digest());
        std::fs::write(netmap.join(FILES[1]), "another").unwrap();
        assert_ne!(before, digest());
        std::fs::remove_dir_all(netmap).unwrap();
    }
}
