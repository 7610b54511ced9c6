//! A device file whose driver is this program (the kernel's CUSE), and which hangs when it is asked to: by a read of so many bytes.
//!
//! Source: the kernel's include/uapi/linux/fuse.h and fs/fuse/cuse.c.

use crate::{endure, result};
use anyhow::{Context, Result};
use sluice_backend::sys;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

/// Bytes of a read that is never answered.
const NEVER: u32 = 13;

/// Bytes of `struct fuse_in_header` and of `struct fuse_out_header`.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Most bytes of a read or a write.
const MOST: u32 = 4096;

const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INTERRUPT: u32 = 36;
const CUSE_INIT: u32 = 4096;

/// Is the driver of `/dev/hung`.
pub fn run() -> Result<()> {
    let mut kernel =
        OpenOptions::new().read(true).write(true).open("/dev/cuse").context("could not open cuse")?;
    let mut buffer = vec![0; 0x1_0000];
    loop {
        let length = kernel.read(&mut buffer).context("the kernel asks for nothing more")?;
        let request = &buffer[..length];
        let word = |at: usize| {
            request
                .get(at..at + 4)
                .map_or(0, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let unique = u64::from(word(8)) | u64::from(word(12)) << 32;
        match word(4) {
            CUSE_INIT => {
                let mut body = Vec::new();
                // Version 7.31; no flags; sizes; any number; spare words.
                for word in [7, 31, 0, 0, MOST, MOST, 0, 0].into_iter().chain([0; 10]) {
                    body.extend_from_slice(&u32::to_le_bytes(word));
                }
                body.extend_from_slice(b"DEVNAME=hung\0");
                answer(&mut kernel, unique, 0, &body)?;
                result("hung=ready");
            }
            OPEN => answer(&mut kernel, unique, 0, &[0; 16])?,
            READ => match word(IN_HEADER + 16) {
                NEVER => result("hung=asked"),
                size => answer(&mut kernel, unique, 0, &vec![0; size.min(MOST) as usize])?,
            },
            RELEASE => answer(&mut kernel, unique, 0, &[])?,
            INTERRUPT => {}
            _ => answer(&mut kernel, unique, -libc::ENOSYS, &[])?,
        }
    }
}

/// Has the driver hang, and holds on to the file until that is no file any more; uses it again when a line says that who has the driver has started
/// again.
pub fn hang(path: &Path) -> Result<()> {
    sys::heed_interruptions().context("could not heed interruptions")?;
    let mut file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let thread = sys::thread();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        sys::interrupt(thread);
    });
    let error = file.read(&mut [0; NEVER as usize]).err().context("the driver does not hang")?;
    result(&format!("hang={}", error.raw_os_error().unwrap_or(0)));
    let mut reads = 0;
    while let Ok(1) = file.read(&mut [0]) {
        reads += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    result(&format!("hang_over=yes reads={reads}"));
    std::io::stdin().read_line(&mut String::new()).context("no line came")?;
    let mut file = endure::open(path)?;
    file.read_exact(&mut [0; 2 * NEVER as usize]).context("the driver hangs yet")?;
    result("hang_again=no");
    Ok(())
}

fn answer(kernel: &mut File, unique: u64, error: i32, body: &[u8]) -> Result<()> {
    let mut bytes = Vec::with_capacity(OUT_HEADER + body.len());
    bytes.extend_from_slice(&((OUT_HEADER + body.len()) as u32).to_le_bytes());
    bytes.extend_from_slice(&error.to_le_bytes());
    bytes.extend_from_slice(&unique.to_le_bytes());
    bytes.extend_from_slice(body);
    // Who asked may have gone.
    match kernel.write_all(&bytes) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error).context("could not answer"),
        _ => Ok(()),
    }
}
