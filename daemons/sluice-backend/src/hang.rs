//! Drivers that hang: a system call of a guest's that does not end although it was interrupted, and its process killed.
//!
//! Nothing but a new life of this domain's kernel helps then. What the driver had for the guest is lost, and often the device is, for all.

use std::process::Child;
use std::time::{Duration, Instant};

/// How often it is looked whether a process that was killed is gone.
const LOOK: Duration = Duration::from_millis(1);

/// How long who kills it waits for that: a process that no driver holds is gone by then.
const SOON: Duration = Duration::from_secs(1);

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnHang {
    /// It is said, and the other devices are served on.
    Say,
    /// This domain's kernel panics: the domain's `on_crash` says what follows.
    Panic,
}

/// Watches what does not end.
#[derive(Clone, Copy, Debug)]
pub struct HangWatch {
    /// How long an interrupted system call may take until its process is killed, and that until it is gone.
    pub patience: Duration,
    /// What follows if it is not.
    pub action: OnHang,
}

impl HangWatch {
    /// Kills a process, and sees to it that it goes. Returns whether it is gone: otherwise it may do things yet, and somebody watches it.
    ///
    /// # Parameters
    /// - `what`: the device that it uses, for a complaint.
    pub fn bury(self, mut child: Child, what: String) -> bool {
        let _ = child.kill();
        if goes(&mut child, SOON.min(self.patience)) {
            return true;
        }
        let watcher = std::thread::Builder::new().spawn(move || {
            if !goes(&mut child, self.patience) {
                eprintln!(
                    "sluice-backend: {what}: its driver hangs: a process that uses it was killed, and is not gone after {:?}",
                    self.patience
                );
                self.act();
                let _ = child.wait();
            }
        });
        if let Err(error) = watcher {
            eprintln!("sluice-backend: nobody looks for the end of a process: {error}");
        }
        false
    }

    fn act(&self) {
        if self.action == OnHang::Panic
            && let Err(error) = std::fs::write("/proc/sysrq-trigger", "c")
        {
            eprintln!("sluice-backend: could not have the kernel panic: {error}");
        }
    }
}

/// Whether a process is gone before patience is over.
fn goes(child: &mut Child, patience: Duration) -> bool {
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn who_does_not_go_is_noticed() {
        let mut lives = Command::new("sleep").arg("100").spawn().unwrap();
        assert!(!goes(&mut lives, Duration::from_millis(300)));
        let watch = HangWatch { patience: Duration::from_secs(60), action: OnHang::Say };
        assert!(watch.bury(lives, "a test".to_owned()), "nothing holds it");
    }
}
