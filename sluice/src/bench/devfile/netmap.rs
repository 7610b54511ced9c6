//! netmap, which no Debian package has: modules out of a checkout that the user has, built for a kernel of Debian's with Debian's headers. Its patch of
//! the e1000 driver is applied to Debian's source of that, so that netmap works on the card's own rings.

use super::checkout::{Checkout, Upstream};
use crate::analyze;
use crate::kernels::Kernel;
use crate::modules::{COMPILER, headers, own_folder};
use crate::progress::Step;
use crate::workspace::{cache, run, scratch, write_whole};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is built, of 2026-02-10.
pub static UPSTREAM: Upstream = Upstream {
    name: "netmap",
    url: "https://github.com/luigirizzo/netmap",
    commit: "89607e1406c1fa5ac2106bd2ff33417f090c0d60",
    variable: "SLUICE_NETMAP",
    marks: &["LINUX/configure", "sys"],
    sources: &["LINUX", "sys"],
};

/// The driver with a patch, and where it is in the kernel's source.
const DRIVER: &str = "e1000";
const DRIVERS: &str = "drivers/net/ethernet/intel";
/// What is built, and where the build leaves it.
const MODULES: [(&str, &str); 2] = [("netmap", "netmap.ko"), (DRIVER, "e1000/e1000.ko")];

/// netmap and the driver that it has patched, built if the cache does not have them.
pub fn modules(checkout: &Checkout, kernel: &Kernel) -> Result<BTreeMap<String, PathBuf>> {
    let digest = checkout.digest()?;
    let files = MODULES.map(|(name, made)| {
        let file = format!("netmap-{name}-{}-{}.ko", kernel.release, &digest[..12]);
        (name, made, cache().join("modules").join(file))
    });
    if !files.iter().all(|(.., file)| file.exists()) {
        let folder = own_folder(&scratch()?)?;
        build(checkout.path(), kernel, &folder).context("could not build netmap")?;
        for (_, made, file) in &files {
            let made = folder.join(made);
            run(Command::new("strip").arg("--strip-debug").arg(&made))?;
            write_whole(file, &std::fs::read(&made)?)?;
        }
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(files.into_iter().map(|(name, _, file)| (name.to_owned(), file)).collect())
}

/// Leaves modules in a folder of the build. The checkout stays as it is.
fn build(checkout: &Path, kernel: &Kernel, folder: &Path) -> Result<()> {
    let (headers, source) =
        (headers(&kernel.release)?, analyze::source(kernel, &format!("{DRIVERS}/{DRIVER}"))?);
    let step = Step::begin(format!("building netmap for Linux {}", kernel.release));
    let mut configure = Command::new("sh");
    configure.arg(checkout.join("LINUX/configure"));
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
