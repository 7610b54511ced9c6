//! A copy of the checkout in which sources may be changed: what git knows or would know, below `target/mutate`. It keeps
//! its own build, so that only what a mutation changes is built again.

use crate::workspace::hex;
use crate::workspace::{root, run, write_whole};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The copy.
pub struct Copy {
    tree: PathBuf,
    /// One process at a time may change the copy. An abstract name is free again when its owner ends, however that happens.
    _owner: UnixListener,
}

impl Copy {
    /// Brings the copy up to date. Files that are the same are left alone, for cargo goes by their times.
    pub fn make() -> Result<Self> {
        let home = root().join("target/mutate");
        let tree = home.join("tree");
        let name = format!("sluice-mutate-{}", hex(&Sha256::digest(home.as_os_str().as_encoded_bytes())));
        let owner = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name[..60])?)
            .context("another cargo sluice mutate works in this checkout")?;
        let listing = run(Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root()))?;
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
        // A file that was removed and not yet committed is still listed.
        let is_file = |name: &&str| root().join(name).symlink_metadata().is_ok_and(|data| data.is_file());
        let names: BTreeSet<&str> =
            listing.split('\0').filter(|name| !name.is_empty()).filter(is_file).collect();
        for name in &names {
            let bytes = std::fs::read(root().join(name)).with_context(|| format!("could not read {name}"))?;
            let to = tree.join(name);
            if std::fs::read(&to).ok().as_ref() != Some(&bytes) {
                write_whole(&to, &bytes)?;
            }
        }
        // What an earlier copy put there and is no more: only that is removed.
        let manifest = home.join("files");
        let before = std::fs::read_to_string(&manifest).unwrap_or_default();
        for gone in before.lines().filter(|name| !names.contains(name)) {
            let _ = std::fs::remove_file(tree.join(gone));
        }
        let now: Vec<&str> = names.into_iter().collect();
        write_whole(&manifest, now.join("\n").as_bytes())?;
        Ok(Self { tree, _owner: owner })
    }

    /// Its root.
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// A source file.
    pub fn read(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.tree.join(file)).with_context(|| format!("no {file}"))
    }

    /// Changes a source file.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        std::fs::write(self.tree.join(file), text).with_context(|| format!("could not write {file}"))
    }
}
