//! Where things are: the source tree or what a package installed, the cache of Debian's files, what is made and what is kept of a run.

use crate::name::Name;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The root of the source tree: `$SLUICE_HOME`, or where this program was built. A program that a package installed has the parts of the
/// tree that it needs in `share/sluice`, beside its `bin`.
pub fn root() -> PathBuf {
    if let Some(home) = std::env::var_os("SLUICE_HOME") {
        return PathBuf::from(home);
    }
    if let Some(prefix) = prefix() {
        return prefix.join("share/sluice");
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace");
    built.to_owned()
}

/// Where a package installed this program: `/usr`.
fn prefix() -> Option<PathBuf> {
    static PREFIX: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let program = std::env::current_exe().ok()?;
        let prefix = program.parent()?.parent()?;
        prefix.join("share/sluice/guest/rootfs").is_dir().then(|| prefix.to_owned())
    };
    PREFIX.get_or_init(find).clone()
}

/// The hypervisor that came with the package, if this program did and uses what is there.
pub fn installed_hypervisor() -> Option<PathBuf> {
    let prefix = prefix().filter(|prefix| root() == prefix.join("share/sluice"))?;
    Some(prefix.join("lib/sluice/hypervisor"))
}

/// A program for Linux guests that came with the package, if this program did, uses what is there, and has it.
pub fn installed_program(name: &str) -> Option<PathBuf> {
    let program = installed_hypervisor()?.with_file_name("programs").join(name);
    program.is_file().then_some(program)
}

/// A folder of this user's: what `$variable` names, or this one in the home directory.
fn own(variable: &str, otherwise: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        named.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(otherwise));
    base.join("sluice")
}

/// Whether the source tree is there: the hypervisor and the test guests are built from it.
///
/// # Errors
/// It is not.
pub fn check_sources() -> Result<()> {
    let root = root();
    if root.join("hypervisor/Cargo.toml").is_file() {
        return Ok(());
    }
    if installed_hypervisor().is_some() {
        bail!(
            "this needs Sluice's sources, and the package has none\n  \
             help: let SLUICE_HOME name a checkout"
        );
    }
    bail!(
        "Sluice's sources are not in {}, from which it builds the hypervisor\n  \
         help: let SLUICE_HOME name a checkout, or install this program again from one: cargo install --path sluice",
        root.display()
    )
}

/// Where downloads and what is made of them are kept: `$SLUICE_CACHE`, or `cache/` in the source tree; where that is not the user's, in
/// `~/.cache`.
pub fn cache() -> PathBuf {
    if let Some(cache) = std::env::var_os("SLUICE_CACHE") {
        return PathBuf::from(cache);
    }
    if installed_hypervisor().is_some() { own("XDG_CACHE_HOME", ".cache") } else { root().join("cache") }
}

/// Where disks of guests are kept: `$SLUICE_IMAGES`, or `images/` in the source tree; where that is not the user's, in `~/.local/share`.
/// Unlike the cache it holds what cannot be made again.
pub fn images() -> PathBuf {
    if let Some(images) = std::env::var_os("SLUICE_IMAGES") {
        return PathBuf::from(images);
    }
    if installed_hypervisor().is_some() {
        own("XDG_DATA_HOME", ".local/share").join("images")
    } else {
        root().join("images")
    }
}

/// QEMU: `$SLUICE_QEMU` names another one than the system's.
pub fn qemu() -> OsString {
    std::env::var_os("SLUICE_QEMU").unwrap_or_else(|| "qemu-system-x86_64".into())
}

/// Whether a program can be found: by its path, or in `$PATH`.
pub fn is_installed(program: &OsStr) -> bool {
    if Path::new(program).components().count() > 1 {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Where files are made that are not kept: images, bundles.
pub fn scratch() -> Result<PathBuf> {
    let directory = if installed_hypervisor().is_some() {
        cache().join("scratch")
    } else {
        root().join("target/scratch")
    };
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("could not create {}", directory.display()))?;
    Ok(directory)
}

/// Where runs keep their consoles unless the user says otherwise: each instance in a folder of its own.
pub fn runs() -> PathBuf {
    if installed_hypervisor().is_some() {
        own("XDG_STATE_HOME", ".local/state").join("run")
    } else {
        root().join("run")
    }
}

/// Where the consoles of an instance are.
pub fn consoles(instance: &Name) -> PathBuf {
    runs().join(instance)
}

/// Removes a directory of consoles: what a run writes there, and the directory if nothing else is in it.
pub fn remove_logs(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("log" | "json" | "out")) && entry.file_type()?.is_file() {
            std::fs::remove_file(path)?;
        }
    }
    std::fs::remove_dir(directory).with_context(|| format!("could not remove {}", directory.display()))
}

/// The logs in a directory of consoles, by their names; none if it cannot be read.
pub fn logs(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut logs: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|is| is == "log"))
        .collect();
    logs.sort();
    logs
}

/// Runs a program to its end; its output is in the error if it fails.
pub fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| not_found(&name))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed ({}):\n{}", output.status, said.trim_end());
    }
    Ok(output)
}

/// What to say when a program could not be started.
pub fn not_found(program: &str) -> String {
    let help = if installed_hypervisor().is_some() {
        "apt-get install --fix-broken sluice installs what Sluice needs"
    } else {
        "setup/packages.sh installs what Sluice needs"
    };
    format!("could not start '{program}'; {help}")
}

/// Writes a file so that nobody ever sees half of it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let parent = path.parent().context("a file has a directory")?;
    std::fs::create_dir_all(parent).with_context(|| format!("could not create {}", parent.display()))?;
    // Threads write at once too.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = beside(path, &format!(".tmp{}-{number}", std::process::id()));
    std::fs::write(&temporary, bytes).with_context(|| format!("could not write {}", temporary.display()))?;
    std::fs::rename(&temporary, path).with_context(|| format!("could not write {}", path.display()))
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a file can be written here, as far as can be told without making it.
///
/// # Errors
/// It cannot.
pub fn check_target(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        bail!("cannot write {}: it is a folder", path.display());
    }
    if !directory.is_dir() {
        bail!("cannot write {}: there is no folder {}", path.display(), directory.display());
    }
    Ok(())
}

/// The path with a suffix to its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The path from the working directory, where that is shorter.
pub fn shortened(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).to_owned()
}
