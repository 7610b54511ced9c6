//! Requests to a file, several under way at once, by io_uring. The only unsafe code of the program.

use anyhow::{Context, Result, ensure};
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Which way data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// Memory that suits a disk without a page cache: aligned to a page.
pub struct Buffer {
    pages: Vec<Page>,
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl Buffer {
    /// Zeros, in whole pages.
    pub fn new(bytes: usize) -> Self {
        Self { pages: vec![Page([0; 4096]); bytes.div_ceil(4096)] }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let size = self.pages.len() * 4096;
        // SAFETY: A page is its bytes: it has no padding, since its alignment is its size, and they lie one after the other.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), size) }
    }
}

/// Moves parts of `size` bytes between the file, where the part with number `n` of `places` is, and the memory, where the parts follow each
/// other in the order of `places`; at most `depth` at once. As many as have ended are followed by as many others in one system call.
pub fn transfer(
    file: &File,
    way: Way,
    memory: &mut Buffer,
    size: usize,
    places: &[usize],
    depth: usize,
) -> Result<()> {
    let bytes = memory.bytes();
    ensure!(
        places.len() * size <= bytes.len(),
        "the memory is too small for {} parts of {size} bytes",
        places.len()
    );
    let length = u32::try_from(size).context("the parts are too large")?;
    let depth = depth.clamp(1, places.len().max(1));
    let mut ring =
        IoUring::new(u32::try_from(depth)?.next_power_of_two()).context("the kernel has no io_uring")?;
    let target = types::Fd(file.as_raw_fd());
    let mut wrong = None;
    let (mut sent, mut done) = (0, 0);
    while done < sent || sent < places.len() && wrong.is_none() {
        while sent < places.len() && sent - done < depth && wrong.is_none() {
            let (part, at) = (bytes[sent * size..].as_mut_ptr(), (places[sent] * size) as u64);
            let entry = match way {
                Way::Read => opcode::Read::new(target, part, length).offset(at).build(),
                Way::Write => opcode::Write::new(target, part, length).offset(at).build(),
            };
            // SAFETY: The part lies in `memory`, which is borrowed until all requests that were sent have ended: the loop ends no
            // earlier, and what fails in it ends the program. No two parts overlap.
            unsafe { ring.submission().push(&entry.user_data(sent as u64)) }.context("the queue is full")?;
            sent += 1;
        }
        if let Err(error) = ring.submit_and_wait(1) {
            eprintln!("sluice-load: io_uring fails while requests are under way: {error}");
            std::process::abort();
        }
        for answer in ring.completion() {
            done += 1;
            if usize::try_from(answer.result()).ok() != Some(size) {
                wrong = Some((answer.user_data(), answer.result()));
            }
        }
    }
    match wrong {
        None => Ok(()),
        Some((number, result)) => {
            anyhow::bail!("request {number} of {size} bytes was answered with {result}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_to_places_is_read_from_them() {
        let path = std::env::temp_dir().join(format!("sluice-load-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut out = Buffer::new(8 * 4096);
        for (number, page) in out.bytes().chunks_mut(4096).enumerate() {
            page.fill(number as u8 + 1);
        }
        let places = [5, 0, 7, 2, 1, 6, 3, 4];
        if let Err(error) = transfer(&file, Way::Write, &mut out, 4096, &places, 3) {
            // Some containers refuse the system calls.
            assert!(format!("{error:#}").contains("io_uring"), "{error:#}");
            return;
        }
        let mut back = Buffer::new(8 * 4096);
        let order: Vec<usize> = (0..8).collect();
        transfer(&file, Way::Read, &mut back, 4096, &order, 8).unwrap();
        let first: Vec<u8> = back.bytes().chunks(4096).map(|page| page[0]).collect();
        assert_eq!(first, [2, 5, 4, 7, 8, 1, 6, 3]);
        let beyond = transfer(&file, Way::Read, &mut back, 4096, &[9], 1).unwrap_err().to_string();
        assert_eq!(beyond, "request 0 of 4096 bytes was answered with 0");
    }
}
