//! What the daemon does for a guest is charged to that guest: it has a control group, named after it, below the daemon's own. The thread that serves
//! a device enters it, and so does what this thread starts: other threads, shadows, the kernel's vhost worker. Guests that want more than there is
//! share the processors by their weights, however many devices, processes and requests each has; `cpu.stat` there says what each took.
//!
//! Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, "Threads" and "CPU". What a driver does in interrupts is nobody's.

use anyhow::{Context, Result, bail};
use sluice_abi::config::is_name;
use sluice_backend::sys;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A guest's weight, as it is given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    guest: String,
    weight: u32,
}

impl Weight {
    /// What a guest has that is not named.
    const DEFAULT: u32 = 100;
}

impl std::str::FromStr for Weight {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (guest, weight) = text.split_once('=').context("it is GUEST=WEIGHT, as in bob=300")?;
        if !is_name(guest) {
            bail!("'{guest}' is no name of a guest: a-z, 0-9 and '-'");
        }
        let weight = weight.parse().ok().filter(|weight| (1..=10_000).contains(weight));
        Ok(Self { guest: guest.to_owned(), weight: weight.context("a weight is a number from 1 to 10000")? })
    }
}

/// Whose a device is, `GUEST.DEVICE`.
fn guest(device: &str) -> Option<&str> {
    device.split_once('.').map(|(guest, _)| guest).filter(|guest| is_name(guest))
}

/// The weight of a device's guest.
pub fn weight(weights: &[Weight], device: &str) -> u32 {
    let named = weights.iter().find(|weight| guest(device) == Some(&weight.guest));
    named.map_or(Weight::DEFAULT, |named| named.weight)
}

/// The groups of guests.
pub struct Charges {
    /// The daemon's own group.
    base: PathBuf,
    weights: HashMap<String, u32>,
    /// Devices of one guest enter its group one after the other: a group is not one of threads from its beginning.
    entering: Mutex<()>,
}

impl Charges {
    /// Prepares groups below the one that the daemon is in.
    pub fn open(weights: &[Weight]) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("no list of what is mounted")?;
        let groups = fs::read_to_string("/proc/self/cgroup").context("no control groups")?;
        let base = base(&mounts, &groups).context("no control groups of version 2 are mounted")?;
        write(&base.join("cgroup.subtree_control"), "+cpu")?;
        let weights = weights.iter().map(|weight| (weight.guest.clone(), weight.weight)).collect();
        Ok(Self { base, weights, entering: Mutex::default() })
    }

    /// From now on this thread, and what it starts, is charged to the guest of a device, `GUEST.DEVICE`.
    pub fn enter(&self, device: &str) -> Result<()> {
        let guest = guest(device);
        let guest = guest.with_context(|| format!("'{device}' does not say whose device it is"))?;
        let group = self.base.join(guest);
        let _alone = self.entering.lock();
        match fs::create_dir(&group) {
            // Once it is one of threads it stays so.
            Ok(()) => write(&group.join("cgroup.type"), "threaded")?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("could not make {}", group.display())),
        }
        let weight = self.weights.get(guest).copied().unwrap_or(Weight::DEFAULT);
        write(&group.join("cpu.weight"), &weight.to_string())?;
        write(&group.join("cgroup.threads"), &sys::thread().to_string())
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("could not write '{text}' to {}", file.display()))
}

/// The folder of the group that a process is in.
///
/// # Parameters
/// - `mounts`: /proc/self/mounts.
/// - `groups`: /proc/self/cgroup.
fn base(mounts: &str, groups: &str) -> Option<PathBuf> {
    let words = |line: &'_ str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let root = mounts.lines().map(words).find(|words| words.get(2).is_some_and(|kind| kind == "cgroup2"))?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(root.get(1)?).join(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_group_is_found() {
        let mounts = "proc /proc proc rw 0 0\nnone /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(base(mounts, "0::/\n"), Some("/sys/fs/cgroup/".into()));
        let service = "1:name=x:/y\n0::/system.slice/sluice-backend.service\n";
        assert_eq!(base(mounts, service), Some("/sys/fs/cgroup/system.slice/sluice-backend.service".into()));
        assert_eq!(base("proc /proc proc rw 0 0\n", "0::/\n"), None);
    }

    #[test]
    fn a_weight_names_a_guest_and_a_number_in_range() {
        let weight = |text: &str| text.parse::<Weight>().map_err(|error| error.to_string());
        assert_eq!(weight("bob=300"), Ok(Weight { guest: "bob".into(), weight: 300 }));
        for wrong in ["bob", "bob=0", "bob=10001", "bob=x", "=5", "../up=5", "b.d=5"] {
            assert!(weight(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_of_nobody_is_charged_to_nobody() {
        let base = std::env::temp_dir().join("sluice-no-such-folder");
        let charges = Charges { base, weights: HashMap::new(), entering: Mutex::default() };
        for device in ["disk", "..disk", "/tmp.disk", ""] {
            assert!(
                charges.enter(device).unwrap_err().to_string().contains("does not say whose"),
                "{device}"
            );
        }
    }
}
