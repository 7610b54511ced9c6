//! Builds the instruction counter (bench/instructions.rs) and reads what it says.

use super::scratch;
use crate::workspace::{root, run};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the hypervisor's image is linked (hypervisor/link.ld), up to where a Linux kernel begins in its guest: first address, and bytes.
pub const IMAGE: (u64, u64) = (0xffff_ffff_8020_0000, 0x00e0_0000);

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

/// What QEMU's `-plugin` takes to have it count at each exit, and in these functions of the hypervisor.
pub fn exits(library: &Path, functions: &[(String, u64, u64)]) -> String {
    with_functions(Path::new(&format!("{},exits=on", library.display())), functions)
}

/// The same for a peer, whose instructions are those within a range.
pub fn peer(library: &Path, (first, size): (u64, u64)) -> String {
    mended(&exits(library, &[("within".to_owned(), first, size)]))
}

/// The same arguments for a peer: interrupts that it injects are delivered once, which QEMU by itself does not see to.
pub fn mended(arguments: &str) -> String {
    format!("{arguments},mend=on")
}

/// What QEMU's `-plugin` takes to have it count in these functions.
pub fn with_functions(library: &Path, functions: &[(String, u64, u64)]) -> String {
    let mut text = library.display().to_string();
    for (name, first, size) in functions {
        text += &format!(",{name}={first:x}+{size:x}");
    }
    text
}

/// Where functions of an ELF file are: for each name and part of a symbol's path, address and size of all
/// that fit, closures aside.
pub fn functions(elf: &Path, wanted: &[(&str, &str)]) -> Result<Vec<(String, u64, u64)>> {
    let output = run(Command::new("nm").args(["-C", "-S", "--defined-only"]).arg(elf))?;
    Ok(symbols(&String::from_utf8_lossy(&output.stdout), wanted))
}

/// Lines `ADDRESS SIZE TYPE NAME`.
fn symbols(text: &str, wanted: &[(&str, &str)]) -> Vec<(String, u64, u64)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (Some(first), Some(size)) = (number(), number()) else { continue };
        let symbol = words.nth(1).unwrap_or_default();
        if symbol.contains("{closure") {
            continue;
        }
        for (name, _) in wanted.iter().filter(|(_, part)| symbol.contains(part)) {
            found.push(((*name).to_owned(), first, size));
        }
    }
    found
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
    fn functions_are_found_by_their_names() {
        let text = "ffffffff802a20d0 0000000000000350 t <sluice_model::track::Tracker>::step\n\
                    ffffffff802a2420 00000000000000a1 t <sluice_model::track::Tracker>::resting\n\
                    ffffffff802a2620 00000000000000a1 t <sluice_model::track::Tracker>::step::{closure#0}\n\
                    ffffffff802a2421 B no_size\n";
        let found = symbols(text, &[("model_update", "Tracker>::step")]);
        assert_eq!(found, [("model_update".to_owned(), 0xffff_ffff_802a_20d0, 0x350)]);
        let text = exits(Path::new("a.so"), &found);
        assert_eq!(text, "a.so,exits=on,model_update=ffffffff802a20d0+350");
        let text = peer(Path::new("a.so"), (0xffff_ffff_c000_0000, 0x3000));
        assert_eq!(text, "a.so,exits=on,within=ffffffffc0000000+3000,mend=on");
    }

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
