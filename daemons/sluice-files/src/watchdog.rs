//! A watchdog, by the interface of include/uapi/linux/watchdog.h.

use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{self, Call, Plain, ShadowPage};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE, ioctl_expr};

/// `struct watchdog_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Support {
    options: u32,
    version: u32,
    identity: [u8; 32],
}

// SAFETY: All of it is numbers.
unsafe impl Plain for Support {}

const fn number(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    ioctl_expr(direction, b'W' as u32, number, size as u32) as libc::c_ulong
}

// SAFETY: The driver writes `struct watchdog_info`.
const SUPPORT: Call<Support> = unsafe { Call::new(number(_IOC_READ, 0, size_of::<Support>())) };
// SAFETY: The driver reads and writes an `int`.
const SET_TIMEOUT: Call<i32> = unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, 6, 4)) };
// SAFETY: The driver writes an `int`.
const TIMEOUT: Call<i32> = unsafe { Call::new(number(_IOC_READ, 7, 4)) };
// SAFETY: The driver touches no memory.
const KEEP_ALIVE: Call<i32> = unsafe { Call::new(number(_IOC_READ, 5, 4)) };

/// An address that programs of 32 bits have, too.
const LOW: u64 = 0x1000_0000;

/// Opens it, sets it, feeds it and closes it.
pub fn run(path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(path).context("could not open the watchdog")?;
    let support = SUPPORT.get(&file).context("WDIOC_GETSUPPORT failed")?;
    let end = support.identity.iter().position(|byte| *byte == 0).unwrap_or(32);
    let mut seconds = 37;
    SET_TIMEOUT.update(&file, &mut seconds).context("WDIOC_SETTIMEOUT failed")?;
    let now = TIMEOUT.get(&file).context("WDIOC_GETTIMEOUT failed")?;
    ensure!(seconds == 37 && now == 37, "the time-out is {now} s");
    KEEP_ALIVE.get(&file).context("WDIOC_KEEPALIVE failed")?;
    let low = ShadowPage::map(LOW).context("could not map a page at a low address")?;
    // SAFETY: The driver writes an `int`, for which there is room.
    let narrow = unsafe { sys::narrow_ioctl(&file, number(_IOC_READ, 7, 4) as u32, LOW as u32) };
    ensure!(narrow == 0, "WDIOC_GETTIMEOUT of a program of 32 bits answered {narrow}");
    let narrow = low.word(0).unwrap_or_default();
    let second = OpenOptions::new().write(true).open(path);
    let busy = second.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
    // Closed after this it does not bark.
    file.write_all(b"V").context("could not write")?;
    drop(file);
    let again = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"V"));
    let identity = String::from_utf8_lossy(&support.identity[..end]).replace(' ', "_");
    result(&format!("watchdog={identity}"));
    result(&format!("watchdog_timeout={now}"));
    result(&format!("watchdog_exclusive={busy}"));
    result(&format!("watchdog_narrow={narrow}"));
    result(&format!("watchdog_again={}", again.is_ok()));
    Ok(())
}
