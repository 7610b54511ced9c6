//! Who may log in to a guest: this checkout's own key, and the user's.

use crate::workspace::{images, run};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The private key of this checkout. `_` is in no name of a disk.
const OWN: &str = "id_ed25519";

/// The private key of this checkout, if it has been made.
pub fn own() -> Option<PathBuf> {
    Some(images().join(OWN)).filter(|key| key.is_file())
}

/// Everybody's public keys, a line each, for `authorized_keys`. The checkout's own is made if there is none: with it `ssh` needs no
/// agent and no passphrase.
pub fn authorized() -> Result<String> {
    let key = images().join(OWN);
    if !key.is_file() {
        make(&key, "sluice")?;
    }
    let mut text = public(&key)?;
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".ssh");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(home).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "pub")) {
        text += std::fs::read_to_string(file)
            .with_context(|| format!("could not read {}", file.display()))?
            .trim_end();
        text += "\n";
    }
    Ok(text)
}

/// Makes a pair of keys.
pub fn make(path: &Path, comment: &str) -> Result<()> {
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]).arg(path))
        .context("could not make a key for ssh")?;
    Ok(())
}

/// The public key that belongs to a private one, as a line.
pub fn public(key: &Path) -> Result<String> {
    let path = key.with_extension("pub");
    std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
}
