//! Projects that are in no package of Debian's: the user has a checkout of each, and the environment names its folder.

use crate::workspace::{hex, run};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A project, at a commit.
pub struct Upstream {
    pub name: &'static str,
    pub url: &'static str,
    pub commit: &'static str,
    /// Names the folder of the checkout.
    pub variable: &'static str,
    /// Files and folders by which that is known.
    pub marks: &'static [&'static str],
    /// Files and folders with what is built.
    pub sources: &'static [&'static str],
}

impl Upstream {
    /// How to have it.
    pub fn how(&self) -> String {
        let Self { name, url, commit, variable, .. } = self;
        format!(
            "git clone {url} {name} && git -C {name} checkout {commit}, and {variable}={name} in the environment"
        )
    }

    /// The checkout that the environment names; `None`: it names none.
    pub fn checkout(&'static self) -> Result<Option<Checkout>> {
        std::env::var_os(self.variable).map(|path| Checkout::at(self, Path::new(&path))).transpose()
    }
}

/// A folder with its source.
pub struct Checkout {
    upstream: &'static Upstream,
    path: PathBuf,
    /// Whether git says that it is this commit; a folder may also come without its history.
    is_known: bool,
}

impl Checkout {
    fn at(upstream: &'static Upstream, path: &Path) -> Result<Self> {
        let Upstream { name, commit, variable, marks, .. } = upstream;
        let shown = path.display();
        let path =
            path.canonicalize().with_context(|| format!("{variable}={shown}: there is no such folder"))?;
        if !marks.iter().all(|mark| path.join(mark).exists()) {
            bail!("{variable}={shown} is no checkout of {name}: {}", upstream.how());
        }
        let is_known = path.join(".git").exists();
        if is_known {
            let output = run(Command::new("git").arg("-C").arg(&path).args(["rev-parse", "HEAD"]))?;
            let head = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if head != *commit {
                bail!("{variable}={shown} is at {head}: {}", upstream.how());
            }
        }
        Ok(Self { upstream, path, is_known })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is, for a record.
    pub fn version(&self) -> String {
        let by_git = if self.is_known { "" } else { ", as the user says: a folder without history" };
        format!("{}{by_git}", self.upstream.commit)
    }

    /// Of all that is built.
    pub fn digest(&self) -> Result<String> {
        let mut digest = Sha256::new();
        let mut pending: BTreeSet<PathBuf> =
            self.upstream.sources.iter().map(|source| self.path.join(source)).collect();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    static UPSTREAM: Upstream = Upstream {
        name: "thing",
        url: "https://example.org/thing",
        commit: "89607e1406c1fa5ac2106bd2ff33417f090c0d60",
        variable: "SLUICE_THING",
        marks: &["build/configure", "source"],
        sources: &["build", "source"],
    };

    /// A folder with these files.
    fn folder(name: &str, files: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-checkout-{name}-{}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
        folder
    }

    const FILES: [&str; 2] = ["build/configure", "source/deep/thing.h"];

    #[test]
    fn a_folder_is_one_of_the_project_or_none() {
        let error = |path: &Path| Checkout::at(&UPSTREAM, path).err().unwrap().to_string();
        assert!(error(Path::new("/nowhere/thing")).contains("no such folder"));
        let other = folder("other", &["source/deep/thing.h"]);
        assert!(error(&other).contains("is no checkout of thing") && error(&other).contains(UPSTREAM.commit));
        let thing = folder("thing", &FILES);
        assert!(Checkout::at(&UPSTREAM, &thing).unwrap().version().contains("as the user says"));
        [other, thing].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    }

    #[test]
    fn a_checkout_of_another_commit_is_refused() {
        let thing = folder("commit", &FILES);
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
            run(Command::new("git").arg("-C").arg(&thing).args(identity).args(arguments)).unwrap();
        };
        git(&["init", "-q"]);
        git(&["commit", "-q", "--allow-empty", "-m", "another"]);
        let error = Checkout::at(&UPSTREAM, &thing).err().unwrap().to_string();
        assert!(error.contains("is at ") && error.contains(UPSTREAM.commit), "{error}");
        std::fs::remove_dir_all(thing).unwrap();
    }

    #[test]
    fn what_is_built_depends_on_every_file() {
        let thing = folder("digest", &FILES);
        let digest = || Checkout::at(&UPSTREAM, &thing).unwrap().digest().unwrap();
        let before = digest();
        assert_eq!(before, digest());
        std::fs::write(thing.join(FILES[1]), "another").unwrap();
        assert_ne!(before, digest());
        std::fs::remove_dir_all(thing).unwrap();
    }
}
