//! The folder of a run's consoles and of the hypervisor's log. One run has it at a time.

use crate::claim::Exclusive;
use crate::console::{BoundedFile, LARGEST_FILE};
use crate::name::Name;
use crate::workspace::{beside, remove_logs, runs};
use anyhow::{Context, Result, bail};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The hypervisor's log among the consoles; no domain can be called like it.
const LOG: &str = "sluice.log";

/// How many folders of one name, but for a number, there can be.
const MOST: u32 = 1000;

/// A folder whose log this process has locked.
pub struct Logs {
    directory: PathBuf,
    _lock: File,
}

impl Logs {
    /// Takes the folder that the user names, and empties its log.
    ///
    /// # Errors
    /// It cannot be created or written to, or another run has it.
    pub fn named(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("could not create {}", directory.display()))?;
        match lock(directory)? {
            Some(lock) => Ok(Self { directory: directory.to_owned(), _lock: lock }),
            None => bail!(
                "another run writes its consoles to {}\n  help: choose another folder: --consoles",
                directory.display()
            ),
        }
    }

    /// Takes the folder of an instance, `run/<instance>`. What the last run left there moves to `run/<instance>.previous`; a
    /// folder that another run has (by an instance that this user does not see) is left alone, and this one gets a number.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub fn of_instance(instance: &Name) -> Result<Self> {
        Self::below(&runs(), instance)
    }

    fn below(base: &Path, instance: &Name) -> Result<Self> {
        std::fs::create_dir_all(base).with_context(|| format!("could not create {}", base.display()))?;
        let _alone = Exclusive::enter(base)?;
        for number in 1..=MOST {
            let directory = base.join(instance.numbered(number));
            if directory.is_dir() {
                // The lock goes with the file, which moves.
                let Some(_free) = lock(&directory)? else { continue };
                let previous = beside(&directory, ".previous");
                let _ = remove_logs(&previous);
                // What is not ours in there keeps the old ones from being removed; then the new ones take their place.
                let _ = std::fs::rename(&directory, &previous);
            }
            return Self::named(&directory);
        }
        bail!("{MOST} runs are called like '{instance}'");
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The hypervisor's log.
    pub fn log(&self) -> PathBuf {
        self.directory.join(LOG)
    }

    /// Creates the file of a domain's console, or empties it.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn console(&self, domain: &Name) -> Result<BoundedFile> {
        let path = self.directory.join(format!("{domain}.log"));
        BoundedFile::create(&path, LARGEST_FILE)
            .with_context(|| format!("could not write {}", path.display()))
    }
}

/// Locks the log of a folder; none if another process has.
fn lock(directory: &Path) -> Result<Option<File>> {
    let path = directory.join(LOG);
    let cannot = || format!("could not write {}", path.display());
    let log = File::options().create(true).append(true).open(&path).with_context(cannot)?;
    match log.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
    }
    Ok(Some(log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_does_not_write_over_the_last_one_nor_into_another() {
        let base = std::env::temp_dir().join(format!("sluice-logs-{}", std::process::id()));
        let name: Name = "guests".parse().unwrap();
        let run = |word: &str| {
            let logs = Logs::below(&base, &name).unwrap();
            logs.console(&"alice".parse().unwrap()).unwrap().write(word.as_bytes()).unwrap();
            logs
        };
        let read = |folder: &str| std::fs::read_to_string(base.join(folder).join("alice.log")).ok();
        let first = run("first");
        let beside = run("beside");
        assert_eq!(read("guests").as_deref(), Some("first"));
        assert_eq!(read("guests-2").as_deref(), Some("beside"), "the first still runs");
        drop((first, beside));
        drop(run("second"));
        assert_eq!(read("guests").as_deref(), Some("second"));
        assert_eq!(read("guests.previous").as_deref(), Some("first"));
        drop(run("third"));
        assert_eq!(read("guests.previous").as_deref(), Some("second"));
        let locked = Logs::named(&base.join("guests")).unwrap();
        let error = Logs::named(&base.join("guests")).err().unwrap().to_string();
        assert!(error.contains("another run writes its consoles"), "{error}");
        drop(locked);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
