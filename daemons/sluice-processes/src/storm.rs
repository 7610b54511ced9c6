//! What data costs while processes come and go beside it. There is one processor, which the processes take time of, so that data per second would tell of
//! the scheduler. Instead each round does three things and marks where they end: the data alone, so many processes alone, and both at once; what both cost
//! beyond the processes alone is the data's.
//!
//! Source: PiBooster, 5.3.3, where netperf sends and lmbench reads a disk while a browser makes processes.

use crate::check;
use crate::work::Work;
use anyhow::{Context, Result, bail, ensure};
use sluice_processes::mark;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Rounds, and the marks of each: before it, and after each of its three parts.
pub const ROUNDS: usize = 3;
pub const MARKS: usize = 4;
/// Bytes that are taken at once.
const CHUNK: usize = 128 << 10;

/// Where data comes from.
pub enum Source {
    /// A server that sends as many bytes as it is asked for by eight bytes, the lowest first.
    Net(TcpStream),
    /// The beginning of a disk, past the system's memory of it.
    Disk(File),
}

/// A place in memory as a disk's driver wants it.
#[repr(align(4096))]
struct Chunk([u8; CHUNK]);

impl Source {
    /// `net` and the server's address, or `disk` and its path.
    pub fn open(kind: &str, place: &str) -> Result<Self> {
        match kind {
            "net" => Ok(Self::Net(
                TcpStream::connect(place).with_context(|| format!("could not connect to {place}"))?,
            )),
            "disk" => {
                let mut options = File::options();
                let file = options.read(true).custom_flags(libc::O_DIRECT).open(place);
                Ok(Self::Disk(file.with_context(|| format!("could not open {place}"))?))
            }
            _ => bail!("there is no data of the kind {kind}"),
        }
    }

    /// Takes so many bytes.
    fn take(&mut self, bytes: usize) -> Result<()> {
        let mut chunk = Box::new(Chunk([0; CHUNK]));
        match self {
            Self::Net(stream) => {
                stream.write_all(&u64::try_from(bytes)?.to_le_bytes())?;
                let mut left = bytes;
                while left > 0 {
                    let most = left.min(CHUNK);
                    let count = stream.read(&mut chunk.0[..most])?;
                    ensure!(count > 0, "the server ended the connection");
                    left -= count;
                }
            }
            Self::Disk(file) => {
                for offset in (0..bytes).step_by(CHUNK) {
                    // SAFETY: the system writes within the chunk, which nobody else uses meanwhile.
                    let count = unsafe {
                        libc::pread(
                            file.as_raw_fd(),
                            chunk.0.as_mut_ptr().cast(),
                            CHUNK,
                            i64::try_from(offset)?,
                        )
                    };
                    ensure!(check("pread", count as i64)? == i64::try_from(CHUNK)?, "the disk is too small");
                }
            }
        }
        Ok(())
    }
}

/// Does all rounds.
pub fn run(source: &mut Source, bytes: usize, forks: usize) -> Result<()> {
    // The first of each fill caches.
    source.take(bytes)?;
    storm(forks, || Ok(()))?;
    for _ in 0..ROUNDS {
        mark();
        source.take(bytes)?;
        mark();
        storm(forks, || Ok(()))?;
        mark();
        storm(forks, || source.take(bytes))?;
        mark();
    }
    Ok(())
}

/// A process makes so many that end at once, while this one does what it is asked to; it returns when both are done.
fn storm(forks: usize, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    // SAFETY: this process has one thread, so that the child may do what its parent may; it makes processes and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = Work::ForkExit.run(forks).is_err();
        // SAFETY: nothing comes after it.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    check("fork", i64::from(child))?;
    let done = meanwhile();
    let mut status = 0;
    // SAFETY: `status` is written and nothing else.
    check("waitpid", i64::from(unsafe { libc::waitpid(child, &mut status, 0) }))?;
    ensure!(status == 0, "the process that makes processes ended with status {status:#x}");
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn as_many_bytes_are_taken_as_were_asked_for() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut length = [0; 8];
            stream.read_exact(&mut length).unwrap();
            stream.write_all(&vec![0; u64::from_le_bytes(length) as usize]).unwrap();
            u64::from_le_bytes(length)
        });
        let mut source = Source::open("net", &place).unwrap();
        source.take(CHUNK + 1).unwrap();
        assert_eq!(server.join().unwrap(), CHUNK as u64 + 1);
        assert!(source.take(1).is_err(), "it does not wait for a server that is gone");
        assert!(Source::open("tape", "/dev/null").is_err());
    }

    #[test]
    fn both_are_done_when_a_storm_is_over() {
        let mut done = false;
        storm(3, || {
            done = true;
            Ok(())
        })
        .unwrap();
        assert!(done);
        assert!(storm(0, || bail!("no data")).is_err());
    }
}
