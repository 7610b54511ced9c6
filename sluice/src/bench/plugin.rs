//! Builds the instruction counter (bench/instructions.rs) and reads what it says.

use super::scratch;
use crate::workspace::{root, run};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// When something happened: instructions executed by the machine so far, and `VMRUN`s among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Instructions.
    pub instructions: u64,
    /// `VMRUN`s.
    pub entries: u64,
}

/// The moments of a boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// The first virtual processor is entered.
    pub entry: Moment,
    /// The guest's kernel starts.
    pub kernel: Moment,
    /// It has unpacked itself.
    pub unpacked: Moment,
    /// Its `init` starts.
    pub init: Moment,
}

/// Compiles the plugin; it is small enough to do so every time.
pub fn build() -> Result<PathBuf> {
    let library = scratch()?.join("instructions.so");
    run(Command::new("rustc")
        .args(["--edition", "2024", "-O", "-C", "panic=abort", "-o"])
        .arg(&library)
        .arg(root().join("bench/instructions.rs")))?;
    Ok(library)
}

/// QEMU's arguments that load it and send what it says to a file.
pub fn arguments(library: &Path, log: &Path) -> Vec<String> {
    ["-plugin", &library.display().to_string(), "-d", "plugin", "-D", &log.display().to_string()]
        .map(str::to_owned)
        .to_vec()
}

/// Reads the plugin's lines.
pub fn moments(log: &Path) -> Result<Moments> {
    let text =
        std::fs::read_to_string(log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    parse(&text).with_context(|| format!("{} is not complete:\n{text}", log.display()))
}

/// Reads how many instructions the machine had executed when it ended.
pub fn end(log: &Path) -> Result<u64> {
    let text =
        std::fs::read_to_string(log).with_context(|| format!("QEMU did not write {}", log.display()))?;
    let end = find(&text, "end").with_context(|| format!("{} is not complete:\n{text}", log.display()))?;
    Ok(end.instructions)
}

fn find(text: &str, name: &str) -> Option<Moment> {
    text.lines().find_map(|line| {
        let mut words = line.strip_prefix("count ")?.strip_prefix(name)?.split_whitespace();
        let instructions = words.next()?.parse().ok()?;
        Some(Moment { instructions, entries: words.next()?.parse().ok()? })
    })
}

fn parse(text: &str) -> Option<Moments> {
    let find = |name: &str| find(text, name);
    Some(Moments {
        entry: find("vmrun")?,
        kernel: find("kernel")?,
        unpacked: find("unpacked")?,
        init: find("init")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_moments_are_needed() {
        let text =
            "noise\ncount vmrun 1000 1\ncount kernel 1010 1\ncount unpacked 3000 20\ncount init 5000 70\n";
        let moments = parse(text).unwrap();
        assert_eq!(moments.kernel, Moment { instructions: 1010, entries: 1 });
        assert_eq!(moments.init, Moment { instructions: 5000, entries: 70 });
        assert_eq!(parse("count vmrun 1000 1\n"), None);
    }
}
