//! Directories that belong to one process: it makes every file in them and removes every file again, and nothing else.
//!
//! A [`Claim`] is a directory with a [`Name`] in a base directory. Its files are those of [`Member`]; no other name is ever
//! made or removed, and nothing is removed recursively. Who has it holds a lock (flock(2)) on its file `lock`, which the
//! kernel gives back however the process ends: a directory whose lock is free was left behind, and is taken over. All that
//! happens under the lock of the base directory, so that of two who claim at once each gets a directory of its own.

use crate::name::Name;
use anyhow::{Context, Result, bail};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The lock of a base directory: no [`Name`] begins like that.
const BASE_LOCK: &str = ".lock";

/// How many directories of one name, but for a number, there can be.
const MOST: u32 = 1000;

/// The files that a claimed directory can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// Locked as long as the directory is claimed.
    Lock,
    /// Which checkout the instance runs from.
    Checkout,
    /// What it says of itself.
    Info,
    /// That, while it is written.
    NewInfo,
    /// The socket for commands.
    Control,
    /// The socket for the hypervisor.
    Channel,
    /// The socket of QEMU's monitor.
    Monitor,
    /// A picture of the screen.
    Screen,
    /// What came out of the first serial port.
    Serial,
    /// The bundle.
    Bundle,
    /// What GRUB is told.
    GrubConfig,
    /// A GRUB image.
    Image,
    /// A kernel that is still compressed.
    Packed,
}

impl Member {
    const ALL: [Self; 13] = [
        Self::Lock,
        Self::Checkout,
        Self::Info,
        Self::NewInfo,
        Self::Control,
        Self::Channel,
        Self::Monitor,
        Self::Screen,
        Self::Serial,
        Self::Bundle,
        Self::GrubConfig,
        Self::Image,
        Self::Packed,
    ];

    /// Its name in the directory.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Checkout => "checkout",
            Self::Info => "info.json",
            Self::NewInfo => "info.json.new",
            Self::Control => "control",
            Self::Channel => "channel",
            Self::Monitor => "monitor",
            Self::Screen => "screen.ppm",
            Self::Serial => "serial.log",
            Self::Bundle => "bundle.cpio",
            Self::GrubConfig => "grub.cfg",
            Self::Image => "sluice.iso",
            Self::Packed => "kernel.packed",
        }
    }
}

/// Holds the lock of a directory; no other process does until it is dropped.
pub struct Exclusive {
    _lock: File,
}

impl Exclusive {
    /// Waits for the lock of a directory, which must exist.
    ///
    /// # Errors
    /// The lock cannot be created or taken.
    pub fn enter(directory: &Path) -> Result<Self> {
        let path = directory.join(BASE_LOCK);
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.and_then(|lock| lock.lock().map(|()| lock));
        Ok(Self { _lock: lock.with_context(|| format!("could not lock {}", path.display()))? })
    }
}

/// A directory of this process.
pub struct Claim {
    base: PathBuf,
    directory: PathBuf,
    name: Name,
    _lock: File,
}

impl Claim {
    /// Claims a directory in `base`, which must exist; the name gets a number if somebody has a directory of that name.
    ///
    /// # Errors
    /// The directory cannot be created, or there is one that holds what Sluice did not put there.
    pub fn take(base: &Path, wish: &Name) -> Result<Self> {
        let _alone = Exclusive::enter(base)?;
        for number in 1..=MOST {
            let name = wish.numbered(number);
            let directory = base.join(&name);
            if let Some(lock) = try_take(&directory)? {
                return Ok(Self { base: base.to_owned(), directory, name, _lock: lock });
            }
        }
        bail!("{MOST} are called like '{wish}'");
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The path of one of its files.
    pub fn path(&self, member: Member) -> PathBuf {
        self.directory.join(member.file())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What cannot be removed now is removed by who takes the directory over.
        if let Ok(_alone) = Exclusive::enter(&self.base)
            && clear(&self.directory).is_ok()
        {
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}

/// The lock of a directory, if it is new or was left behind. The caller has the lock of the base directory.
fn try_take(directory: &Path) -> Result<Option<File>> {
    let shown = directory.display();
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if !is_left_behind(directory)? {
                return Ok(None);
            }
            clear(directory)?;
        }
        Err(error) => return Err(error).with_context(|| format!("could not create {shown}")),
    }
    let lock = File::create_new(directory.join(Member::Lock.file()))?;
    lock.try_lock().with_context(|| format!("could not lock {shown}"))?;
    Ok(Some(lock))
}

fn is_left_behind(directory: &Path) -> Result<bool> {
    let shown = directory.display();
    if !std::fs::symlink_metadata(directory)?.is_dir() {
        bail!("{shown} is no directory, and Sluice did not put it there: move it away");
    }
    let lock = match File::open(directory.join(Member::Lock.file())) {
        Ok(lock) => lock,
        // Its process ended between the two steps of `try_take` or of `clear`.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error).with_context(|| format!("could not look into {shown}")),
    };
    match lock.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("could not lock {shown}")),
    }
}

/// Removes the files of a directory that nobody else has. Either all that it holds are [`Member`]s, or nothing is removed.
fn clear(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("could not read {shown}"))? {
        let entry = entry?;
        let known = Member::ALL.iter().any(|member| entry.file_name() == member.file());
        if !known || entry.file_type()?.is_dir() {
            bail!("{} is not Sluice's: move it away, or choose another --name", entry.path().display());
        }
        found.push(entry.path());
    }
    for path in found {
        std::fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))?;
    }
    Ok(())
}

/// Where the running instances of this user have their sockets: `$XDG_RUNTIME_DIR/sluice`, or a directory with the user's
/// number among the temporary files where there is no such directory of this user's. Nobody else can look into it.
///
/// Source: XDG Base Directory Specification 0.8.
///
/// # Errors
/// It cannot be created, or it is not this user's alone.
pub fn runtime_directory() -> Result<PathBuf> {
    let user = effective_user()?;
    let is_own = |path: &PathBuf| {
        path.is_absolute() && std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == user)
    };
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own) {
        Some(base) => base.join("sluice"),
        None => std::env::temp_dir().join(format!("sluice-{user}")),
    };
    make_private(&directory, user)?;
    Ok(directory)
}

/// The user that this process acts for: proc(5), "Overview", says that its directory belongs to that one.
fn effective_user() -> Result<u32> {
    Ok(std::fs::metadata("/proc/self").context("could not find out whose process this is")?.uid())
}

/// Creates a directory that only `user` can look into, or makes sure that it is one.
fn make_private(directory: &Path, user: u32) -> Result<()> {
    let shown = directory.display();
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("could not create {shown}"));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(directory).with_context(|| format!("could not look at {shown}"))?;
    let wrong = if found.is_symlink() {
        "is a symbolic link".to_owned()
    } else if !found.is_dir() {
        "is no directory".to_owned()
    } else if found.uid() != user {
        format!("belongs to the user with the number {}", found.uid())
    } else if found.mode() & 0o077 != 0 {
        format!("is open to others (mode {:o})", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    bail!(
        "{shown} {wrong}, and the sockets of running instances must be yours alone\n\
         help: remove it, or let XDG_RUNTIME_DIR or TMPDIR name a directory of yours"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;

    /// A directory for one test.
    struct Base(PathBuf);

    impl Base {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sluice-claim-{test}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// The paths below it, but for its own lock.
        fn content(&self) -> BTreeSet<String> {
            let mut found = BTreeSet::new();
            let mut pending = vec![self.0.clone()];
            while let Some(directory) = pending.pop() {
                for entry in std::fs::read_dir(directory).unwrap() {
                    let entry = entry.unwrap();
                    if entry.file_type().unwrap().is_dir() {
                        pending.push(entry.path());
                    }
                    found.insert(entry.path().strip_prefix(&self.0).unwrap().display().to_string());
                }
            }
            found.remove(BASE_LOCK);
            found
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn a_claim_removes_what_it_made() {
        let base = Base::new("removes");
        std::fs::write(base.0.join("precious"), "").unwrap();
        let claim = Claim::take(&base.0, &name("a")).unwrap();
        std::fs::write(claim.path(Member::Bundle), "").unwrap();
        assert_eq!(std::fs::metadata(base.0.join("a")).unwrap().mode() & 0o777, 0o700);
        drop(claim);
        assert_eq!(base.content(), BTreeSet::from(["precious".to_owned()]));
    }

    #[test]
    fn what_others_put_there_stays() {
        let base = Base::new("stays");
        let claim = Claim::take(&base.0, &name("a")).unwrap();
        std::fs::create_dir_all(base.0.join("a/mine/deep")).unwrap();
        std::fs::write(base.0.join("a/mine/deep/file"), "").unwrap();
        drop(claim);
        assert!(base.content().contains("a/mine/deep/file"));
        let error = Claim::take(&base.0, &name("a")).err().unwrap().to_string();
        assert!(error.contains("a/mine is not Sluice's"), "{error}");

        // A directory with the name of a file of ours is no file of ours.
        std::fs::create_dir_all(base.0.join("b/control")).unwrap();
        std::fs::write(base.0.join("b/channel"), "").unwrap();
        assert!(Claim::take(&base.0, &name("b")).is_err());
        assert!(base.content().contains("b/channel"), "all or nothing");

        // Nor is what a link leads to.
        std::fs::create_dir(base.0.join("elsewhere")).unwrap();
        std::fs::write(base.0.join("elsewhere/control"), "").unwrap();
        std::os::unix::fs::symlink(base.0.join("elsewhere"), base.0.join("c")).unwrap();
        assert!(Claim::take(&base.0, &name("c")).is_err());
        assert!(base.content().contains("elsewhere/control"));
    }

    #[test]
    fn what_a_dead_process_left_is_taken_over() {
        let base = Base::new("left");
        std::fs::create_dir(base.0.join("a")).unwrap();
        for member in Member::ALL {
            std::fs::write(base.0.join("a").join(member.file()), "old").unwrap();
        }
        let claim = Claim::take(&base.0, &name("a")).unwrap();
        assert_eq!(claim.name(), &name("a"));
        assert!(!claim.path(Member::Control).exists());
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        let base = Base::new("number");
        let first = Claim::take(&base.0, &name("a")).unwrap();
        let second = Claim::take(&base.0, &name("a")).unwrap();
        assert_eq!((first.name(), second.name()), (&name("a"), &name("a-2")));
        drop(first);
        assert_eq!(Claim::take(&base.0, &name("a")).unwrap().name(), &name("a"));
        assert!(second.path(Member::Lock).exists());
    }

    #[test]
    fn files_of_ours_have_names_that_no_directory_of_ours_has() {
        let base = Base::new("own-names");
        for member in Member::ALL {
            if let Ok(wish) = member.file().parse::<Name>() {
                let claims = [1, 2].map(|_| Claim::take(&base.0, &wish).unwrap());
                assert_eq!(claims[0].name(), &wish);
            }
        }
        assert!(BASE_LOCK.parse::<Name>().is_err());
        assert_eq!(base.content(), BTreeSet::new());
    }

    #[test]
    fn who_claims_at_once_gets_a_directory_of_its_own() {
        let base = Base::new("at-once");
        for _ in 0..20 {
            // One that was left behind, so that all want to clear it.
            std::fs::create_dir_all(base.0.join("a")).unwrap();
            std::fs::write(base.0.join("a/lock"), "").unwrap();
            std::fs::write(base.0.join("a/control"), "").unwrap();
            let barrier = Barrier::new(8);
            let claims: Vec<Claim> = std::thread::scope(|scope| {
                let claimers: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            let claim = Claim::take(&base.0, &name("a")).unwrap();
                            // It is alone in it.
                            File::create_new(claim.path(Member::Control)).unwrap();
                            claim
                        })
                    })
                    .collect();
                claimers.into_iter().map(|claimer| claimer.join().unwrap()).collect()
            });
            let names: BTreeSet<&Name> = claims.iter().map(Claim::name).collect();
            assert_eq!(names.len(), 8);
            assert!(claims.iter().all(|claim| claim.path(Member::Control).exists()));
            drop(claims);
            assert_eq!(base.content(), BTreeSet::new());
        }
    }

    #[test]
    fn only_a_directory_of_the_users_alone_will_do() {
        let base = Base::new("private");
        let user = effective_user().unwrap();
        let own = base.0.join("own");
        make_private(&own, user).unwrap();
        make_private(&own, user).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        let refused = |path: &Path, user: u32, why: &str| {
            let error = make_private(path, user).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(&own, user + 1, "belongs to the user");
        for mode in [0o755, 0o770, 0o701] {
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
            refused(&own, user, "is open to others");
        }
        std::os::unix::fs::symlink(&own, base.0.join("link")).unwrap();
        refused(&base.0.join("link"), user, "is a symbolic link");
        std::os::unix::fs::symlink(base.0.join("nowhere"), base.0.join("dangling")).unwrap();
        refused(&base.0.join("dangling"), user, "is a symbolic link");
        std::fs::write(base.0.join("file"), "").unwrap();
        refused(&base.0.join("file"), user, "is no directory");
    }
}
