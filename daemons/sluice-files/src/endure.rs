//! A program that outlives who serves its device file, and one that has something to lose while it waits for it.

use crate::result;
use crate::sound::Sound;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use sluice_backend::sys::{self, PAGE};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a node may be away.
const PATIENCE: Duration = Duration::from_secs(90);
/// Reads after the last failure.
const ENOUGH: u32 = 50;
/// What is around a buffer.
const CANARY: u8 = 0xc5;
const AROUND: usize = 0x8000;

/// What a program does with its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// Reads it.
    Reads,
    /// Waits for events in poll, and reads nothing.
    Waits,
    /// Plays sound to it.
    Plays,
}

/// A file in use.
enum Used {
    Read(File),
    Awaited(File),
    Played(Sound),
}

impl Used {
    fn open(path: &Path, how: How) -> Result<Self> {
        Ok(match how {
            How::Reads => Self::Read(open(path)?),
            How::Waits => Self::Awaited(open(path)?),
            How::Plays => {
                // The node is there as soon as it can be opened at all.
                drop(open(path)?);
                Self::Played(Sound::open(path)?)
            }
        })
    }

    /// Uses it once more. An error's name: nobody serves it any more.
    fn once(&mut self) -> Result<Option<String>> {
        let done = match self {
            Self::Read(file) => file.read_exact(&mut [0; 512]),
            Self::Played(sound) => sound.play_on(),
            Self::Awaited(file) => {
                let ready = sys::poll(file, libc::POLLIN as u16, true);
                ensure!(ready & i64::from(libc::POLLERR) != 0, "poll answered {ready:#x}");
                return Ok(Some("POLLERR".to_owned()));
            }
        };
        done.err().map(|error| name(&error)).transpose()
    }
}

/// Uses a file until that has failed so often, opens it anew each time, and then goes on for a while.
pub fn endure(path: &Path, failures: u32, how: How) -> Result<()> {
    let mut errors = BTreeSet::new();
    for failed in 0.. {
        let mut used = Used::open(path, how)?;
        result(&format!("using={failed}"));
        if failed == failures {
            // Who waits for what does not come waits for ever.
            let more = if how == How::Waits { 0 } else { ENOUGH };
            for _ in 0..more {
                errors.extend(again(&mut used)?);
            }
            break;
        }
        let error = loop {
            if let Some(error) = again(&mut used)? {
                break error;
            }
        };
        errors.insert(error);
        result(&format!("failed={}", failed + 1));
    }
    let errors: Vec<String> = errors.into_iter().collect();
    result(&format!("endured={failures} errors={}", errors.join("+")));
    Ok(())
}

/// Uses a file once more, in no hurry.
fn again(used: &mut Used) -> Result<Option<String>> {
    let error = used.once()?;
    std::thread::sleep(Duration::from_millis(5));
    Ok(error)
}

/// Opens a file, as soon as it is there.
pub fn open(path: &Path) -> Result<File> {
    let began = Instant::now();
    loop {
        match File::open(path) {
            Ok(file) => return Ok(file),
            Err(error) if began.elapsed() > PATIENCE => {
                return Err(error).context("the node does not come back");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// The two errors that an operation may end with when nobody serves it any more.
fn name(error: &std::io::Error) -> Result<String> {
    match error.raw_os_error() {
        Some(libc::EIO) => Ok("EIO".to_owned()),
        Some(libc::ENODEV) => Ok("ENODEV".to_owned()),
        _ => bail!("an operation failed in a way that it may not: {error}"),
    }
}

/// Waits in a read with memory around its buffer, and looks for changes there when a line comes. `protected`: the buffer may not be written once the
/// operation is under way, and so may not change either.
pub fn canary(path: &Path, protected: bool) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    // The buffer is a page of its own, with memory before and after it.
    let memory: &'static mut [u8] = vec![CANARY; 2 * AROUND + 2 * PAGE].leak();
    let first = AROUND + memory[AROUND..].as_ptr().align_offset(PAGE);
    let (before, rest) = memory.split_at_mut(first);
    let (buffer, after) = rest.split_at_mut(PAGE);
    let address = buffer.as_ptr() as u64;
    let (buffer, beyond) = buffer.split_at_mut(if protected { PAGE } else { 96 });
    std::thread::spawn(move || {
        let _ = file.read(buffer);
    });
    // It is in its system call soon.
    std::thread::sleep(Duration::from_secs(1));
    if protected {
        protect(address)?;
    }
    result("canary=set");
    std::io::stdin().read_line(&mut String::new()).context("no line came")?;
    let around = before.iter().chain(&*beyond).chain(&*after);
    let mut changed = around.filter(|byte| **byte != CANARY).count();
    if protected {
        changed += still(address)?;
    }
    result(&format!("canary_changed={changed}"));
    Ok(())
}

/// Makes the page read-only.
fn protect(address: u64) -> Result<()> {
    // SAFETY: The page is the buffer's, whose only user is a system call, which gets EFAULT.
    let answer = unsafe { libc::mprotect(address as *mut libc::c_void, PAGE, libc::PROT_READ) };
    ensure!(answer == 0, "the buffer cannot be made read-only");
    Ok(())
}

/// How many bytes of the page have changed, as the kernel sees them: the system call that has the buffer is still under way.
fn still(address: u64) -> Result<usize> {
    let mut bytes = [0; PAGE];
    std::os::unix::fs::FileExt::read_exact_at(&File::open("/proc/self/mem")?, &mut bytes, address)?;
    Ok(bytes.iter().filter(|byte| **byte != CANARY).count())
}
