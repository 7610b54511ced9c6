//! Files from Debian packages, without touching the system: apt works on package lists of its own in
//! the cache, so no privilege is needed and nothing is installed.
//!
//! The archive's address is taken from the system's own apt sources. Debian keeps only current
//! versions, so nothing here names one.

use crate::claim::Exclusive;
use crate::progress::{self, Step, Stream};
use crate::workspace::{cache, run};
use anyhow::{Context, Result, bail};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release whose kernels the project is tested with.
const RELEASE: &str = "bookworm";

/// The key ring that Debian's archive is signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The name of a package: a letter or digit, and one or more of a-z, 0-9, '+', '-' and '.' (Debian Policy Manual, 5.6.1).
/// It comes from package lists and becomes one component of paths and an argument of programs; such a name can be both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageName(String);

impl PackageName {
    /// The name, if the text is one.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let allowed = |byte: u8| plain(byte) || matches!(byte, b'+' | b'-' | b'.');
        let fits = text.len() >= 2 && text.bytes().all(allowed) && text.bytes().next().is_some_and(plain);
        fits.then(|| Self(text.to_owned()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The folder that a Debian package is unpacked in. Downloaded if the cache does not have it.
pub fn unpacked(name: &str) -> Result<PathBuf> {
    let package = PackageName::parse(name).with_context(|| format!("'{name}' is no package's name"))?;
    let directory = cache().join("packages").join(name);
    if !directory.join("version").exists() {
        Apt::open()?.unpack(&package, &directory)?;
    }
    Ok(directory)
}

/// Package lists of our own. Who has them is alone with them, as apt demands: others wait, and find what was downloaded.
pub struct Apt {
    state: PathBuf,
    _alone: Exclusive,
}

impl Apt {
    /// Opens the lists when nobody else has them; downloads them if there are none yet. Who opens them twice waits for ever.
    pub fn open() -> Result<Self> {
        let state = cache().join("apt");
        std::fs::create_dir_all(&state).context("could not create the cache")?;
        let step = Step::begin("waiting for another command that downloads");
        let alone = Exclusive::enter(&state)?;
        step.done();
        let apt = Self { _alone: alone, state };
        if !apt.state.join("updated").exists() {
            apt.update()?;
        }
        Ok(apt)
    }

    /// Downloads the lists afresh.
    pub fn update(&self) -> Result<()> {
        let step = Step::begin(format!("reading Debian's package lists ({RELEASE} and {RELEASE}-backports)"));
        for directory in ["lists/partial", "archives/partial"] {
            std::fs::create_dir_all(self.state.join(directory)).context("could not create the cache")?;
        }
        std::fs::write(self.state.join("status"), "").context("could not write to the cache")?;
        std::fs::write(self.state.join("sources.list"), sources()?)
            .context("could not write to the cache")?;
        let mut update = self.command("apt-get");
        progress::watch(update.args(["-o", "APT::Status-Fd=1", "update"]), Stream::Out, &step, progress::apt)
            .context("could not read Debian's package lists")?;
        step.done();
        std::fs::write(self.state.join("updated"), "").context("could not write to the cache")
    }

    /// Names of all packages that begin with `prefix`.
    pub fn names(&self, prefix: &str) -> Result<Vec<PackageName>> {
        let output = run(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(PackageName::parse).collect())
    }

    /// Downloads the newest version of a package and unpacks it into `into`, with the package's version in
    /// a file `version`. Lists that have grown old (the version is gone from the archive) are read again.
    /// What is at `into` already stays, and is an error.
    pub fn unpack(&self, package: &PackageName, into: &Path) -> Result<()> {
        let package = package.as_str();
        if into.join("version").exists() {
            return Ok(());
        }
        // Both are below the directory of our own lists: what is there was left by one of us.
        let archives = self.state.join("archives").join(package);
        let fresh = self.state.join("unpacked").join(package);
        for directory in [&archives, &fresh] {
            let _ = std::fs::remove_dir_all(directory);
            std::fs::create_dir_all(directory).context("could not create the cache")?;
        }
        let download = || {
            let step = Step::begin(format!("downloading Debian's {package}"));
            let mut download = self.command("apt-get");
            download.args(["-o", "APT::Status-Fd=1", "download", package]).current_dir(&archives);
            progress::watch(&mut download, Stream::Out, &step, progress::apt)?;
            step.done();
            anyhow::Ok(())
        };
        if download().is_err() {
            self.update()?;
            download().with_context(|| format!("could not download Debian's {package}"))?;
        }
        let file = std::fs::read_dir(&archives)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get brought no {package}"))?;
        let step = Step::begin(format!("unpacking Debian's {package}"));
        run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&fresh))?;
        step.done();
        let version = run(Command::new("dpkg-deb").arg("-f").arg(&file).arg("Version"))?;
        std::fs::write(fresh.join("version"), String::from_utf8_lossy(&version.stdout).trim())?;
        put(&fresh, into)?;
        std::fs::remove_dir_all(&archives)?;
        Ok(())
    }

    /// apt-get or apt-cache on our lists instead of the system's.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let state = self.state.display();
        for option in [
            format!("Dir::State={state}"),
            format!("Dir::State::lists={state}/lists"),
            format!("Dir::State::status={state}/status"),
            format!("Dir::Cache={state}"),
            format!("Dir::Cache::archives={state}/archives"),
            format!("Dir::Etc::sourcelist={state}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            "Dir::Etc::preferencesparts=-".to_owned(),
            "APT::Sandbox::User=".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }
}

/// Lets a directory appear under its name when it is whole. One that has something in it is not replaced (rename(2)).
fn put(fresh: &Path, into: &Path) -> Result<()> {
    let shown = into.display();
    std::fs::create_dir_all(into.parent().context("it has a directory")?)
        .context("could not create the cache")?;
    std::fs::rename(fresh, into).with_context(|| {
        format!("could not create {shown}; if there is something, it is not Sluice's: move it away")
    })
}

/// Our own sources.list: the system's entries for Debian, and the backports beside them.
fn sources() -> Result<String> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let output =
        run(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    let targets = String::from_utf8_lossy(&output.stdout).into_owned();
    let options = if Path::new(KEYRING).exists() {
        format!("[arch=amd64 signed-by={KEYRING}]")
    } else {
        "[arch=amd64]".into()
    };
    let mut lines: Vec<String> = Vec::new();
    for target in targets.lines() {
        let mut words = target.split(' ');
        let (Some(address), Some(suite), Some("main")) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if suite == RELEASE || suite.strip_prefix(RELEASE).is_some_and(|rest| rest.starts_with('-')) {
            lines.push(format!("deb {options} {address} {suite} main"));
        }
        if suite == RELEASE {
            lines.push(format!("deb {options} {address} {RELEASE}-backports main"));
        }
    }
    if lines.is_empty() {
        bail!(
            "this system's apt knows no Debian {RELEASE}, from which Sluice takes its guests' kernels\n\
             help: add Debian {RELEASE} to the apt sources, or give kernels and initrds by path"
        );
    }
    lines.sort();
    lines.dedup();
    Ok(lines.join("\n") + "\n")
}

/// Compares texts with numbers in them by the numbers' values: `6.1.0-9` is before `6.1.0-10`.
pub fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        match (digits(a), digits(b)) {
            (0, _) | (_, 0) => match (a.chars().next(), b.chars().next()) {
                (Some(x), Some(y)) if x == y => (a, b) = (&a[x.len_utf8()..], &b[y.len_utf8()..]),
                (x, y) => return x.cmp(&y),
            },
            (x, y) => {
                let value = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
                match value(&a[..x]).cmp(&value(&b[..y])) {
                    Ordering::Equal => (a, b) = (&a[x..], &b[y..]),
                    other => return other,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages_are_components_of_paths() {
        for name in ["linux-image-6.1.0-56-amd64", "busybox-static", "g++", "6.1.0-56-amd64"] {
            assert_eq!(PackageName::parse(name).unwrap().as_str(), name);
        }
        for name in ["", "a", "..", "../x", "a/b", "-o", ".x", "a\0", "A1", "x=1", "a\n"] {
            assert_eq!(PackageName::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn what_is_in_the_way_of_a_package_stays() {
        let base = std::env::temp_dir().join(format!("sluice-put-{}", std::process::id()));
        let (fresh, into) = (base.join("fresh"), base.join("cache/busybox"));
        std::fs::create_dir_all(&fresh).unwrap();
        std::fs::write(fresh.join("version"), "1").unwrap();
        std::fs::create_dir_all(&into).unwrap();
        std::fs::write(into.join("mine"), "").unwrap();
        let refused = put(&fresh, &into);
        let kept = into.join("mine").exists();
        std::fs::remove_file(into.join("mine")).unwrap();
        let done = put(&fresh, &into);
        let arrived = into.join("version").exists();
        std::fs::remove_dir_all(&base).unwrap();
        assert!(refused.is_err() && kept);
        assert!(done.is_ok() && arrived);
    }

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let mut names = ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.1.0-10-amd64", "6.1.0-9-amd64-x"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["6.1.0-9-amd64", "6.1.0-9-amd64-x", "6.1.0-10-amd64", "6.1.0-56-amd64"]);
    }
}
