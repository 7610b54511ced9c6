//! A terminal, by include/uapi/asm-generic/ioctls.h: whose other end an ioctl opens.

use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{Call, Opening};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_WRITE, ioctl_expr};

// SAFETY: The driver reads an `int`.
const LOCK: Call<i32> = unsafe { Call::new(ioctl_expr(_IOC_WRITE, b'T' as u32, 0x31, 4) as libc::c_ulong) };
// SAFETY: The argument is flags of open(2), and the answer a new descriptor.
const OTHER_END: Opening =
    unsafe { Opening::new(ioctl_expr(_IOC_NONE, b'T' as u32, 0x41, 0) as libc::c_ulong) };

const TEXT: &str = "to the other end";

/// Writes a line at one end, which another program reads at the other.
pub fn run(path: &Path) -> Result<()> {
    let mut file =
        OpenOptions::new().read(true).write(true).open(path).context("could not open the terminal")?;
    LOCK.set(&file, &0).context("TIOCSPTLCK failed")?;
    let flags = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as libc::c_ulong;
    let other = OTHER_END.open(&file, flags).context("TIOCGPTPEER failed")?;
    writeln!(file, "{TEXT}").context("could not write")?;
    let mut reader = Command::new("head");
    reader.args(["-n", "1"]).stdin(other).stderr(Stdio::inherit());
    let read = reader.output().context("no other program")?.stdout;
    let read = String::from_utf8_lossy(&read);
    ensure!(read.trim_end() == TEXT, "the other program read {read:?}");
    result(&format!("terminal={}", TEXT.replace(' ', "_")));
    Ok(())
}
