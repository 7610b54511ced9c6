//! Buffers of one camera that another one fills, by descriptors that are given to its driver.

use crate::camera::{Camera, HEIGHT, Stream, WIDTH};
use crate::result;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Has one camera's frames put into buffers of another's.
pub fn run(path: &Path, of: &Path, frames: u32) -> Result<()> {
    let (camera, other) = (Camera::open(path, WIDTH, HEIGHT)?, Camera::open(of, WIDTH, HEIGHT)?);
    let buffers = Stream::buffers_of(other.file())?;
    let null: OwnedFd = File::open("/dev/null").context("could not open /dev/null")?.into();
    let refused = Stream::import(camera.file(), vec![null]).err();
    let refused = refused.and_then(|error| error.downcast::<std::io::Error>().ok()?.raw_os_error());
    ensure!(refused == Some(libc::EINVAL), "a file without memory is refused otherwise: {refused:?}");
    let numbers: Vec<i32> = buffers.iter().map(AsRawFd::as_raw_fd).collect();
    let stream = Stream::import(camera.file(), buffers)?;
    let (mut digest, mut frame) = (DefaultHasher::new(), vec![0; camera.bytes()]);
    for _ in 0..frames {
        let number = stream.next_shared(&mut frame)?;
        ensure!(numbers.contains(&number), "the driver answers with descriptor {number}");
        frame.hash(&mut digest);
    }
    stream.stop()?;
    result(&format!("shared_digest={:016x}", digest.finish()));
    Ok(())
}
