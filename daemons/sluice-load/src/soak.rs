//! A load that goes on until a line is typed, and that checks all the time: nothing that was acknowledged may be lost or altered, whatever
//! happens to those who serve the disk and the line. What took long is a stall.

use crate::disk::Disk;
use crate::pattern::{self, BLOCK, Random};
use crate::ring::{Buffer, Way};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Blocks of the disk that are used.
const BLOCKS: usize = 1024;
/// Blocks that are written in a round, and as many are read.
const ROUND: usize = 64;
/// Requests that are under way at once.
const DEPTH: usize = 16;
/// Bytes that are sent at once.
const CHUNK: usize = 16 * BLOCK;
/// What takes no longer is no stall.
const SHORT: Duration = Duration::from_millis(250);

/// Becomes true when a line is typed on the console, or can be no more.
fn told() -> Arc<AtomicBool> {
    let told = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&told);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        flag.store(true, Ordering::Release);
    });
    told
}

/// Tells whoever ends who serves.
fn under_way(what: &str) {
    println!("SLUICE-RESULT soaking={what}");
}

/// How long steps took.
#[derive(Debug, Default)]
struct Stalls {
    steps: u64,
    count: u64,
    sum: Duration,
    longest: Duration,
}

impl Stalls {
    fn step(&mut self, took: Duration) {
        self.steps += 1;
        self.longest = self.longest.max(took);
        if took > SHORT {
            self.count += 1;
            self.sum += took;
        }
    }

    fn report(&self, what: &str, wrong: u64) {
        println!(
            "SLUICE-RESULT soak={what} steps={} wrong={wrong} stalls={} stalled_ms={} longest_ms={}",
            self.steps,
            self.count,
            self.sum.as_millis(),
            self.longest.as_millis()
        );
    }
}

/// Writes and reads a disk at random places, several requests at once.
pub fn disk(disk: &Disk) -> Result<()> {
    let told = told();
    let wrong = soak(disk, |_| told.load(Ordering::Acquire))?;
    ensure!(wrong == 0, "{wrong} blocks of the disk do not hold what was written to them");
    Ok(())
}

/// The number of blocks that were not as they must be.
fn soak(disk: &Disk, mut is_over: impl FnMut(u64) -> bool) -> Result<u64> {
    let mut versions = vec![0; BLOCKS];
    let mut memory = Buffer::new(BLOCKS * BLOCK);
    let all: Vec<usize> = (0..BLOCKS).collect();
    pattern::fill(memory.bytes(), 0, 0);
    disk.transfer(Way::Write, &mut memory, BLOCK, &all, DEPTH)?;
    under_way("disk");
    let (mut stalls, mut wrong, mut round) = (Stalls::default(), 0, 0);
    let mut random = Random::new(5);
    while !is_over(round) {
        round += 1;
        let begun = Instant::now();
        let places = pattern::places(ROUND, BLOCKS, random.next());
        for (block, place) in memory.bytes().chunks_exact_mut(BLOCK).zip(&places) {
            pattern::fill(block, *place, round);
        }
        disk.transfer(Way::Write, &mut memory, BLOCK, &places, DEPTH)?;
        places.iter().for_each(|place| versions[*place] = round);
        wrong += compare(disk, &mut memory, &pattern::places(ROUND, BLOCKS, random.next()), &versions)?;
        stalls.step(begun.elapsed());
    }
    wrong += compare(disk, &mut memory, &all, &versions)?;
    stalls.report("disk", wrong);
    Ok(wrong)
}

/// Reads blocks; how many do not hold their last version.
fn compare(disk: &Disk, memory: &mut Buffer, places: &[usize], versions: &[u64]) -> Result<u64> {
    memory.bytes().fill(0);
    disk.transfer(Way::Read, memory, BLOCK, places, DEPTH)?;
    let mut blocks = memory.bytes().chunks_exact(BLOCK).zip(places);
    let is_wrong =
        |(block, place): &(&[u8], &usize)| pattern::wrong(block, **place, versions[**place]).is_some();
    Ok(blocks.by_ref().filter(is_wrong).count() as u64)
}

/// Sends numbered blocks to who listens.
pub fn talk(to: SocketAddr) -> Result<()> {
    let told = told();
    let mut stream = crate::line::connect(to)?;
    under_way("talk");
    let mut chunk = vec![0; CHUNK];
    let mut number = 0;
    while !told.load(Ordering::Acquire) {
        pattern::fill(&mut chunk, number, 0);
        stream.write_all(&chunk).context("the line broke")?;
        number += CHUNK / BLOCK;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut taken = [0; 8];
    stream.read_exact(&mut taken).context("the other one did not say how much it took")?;
    ensure!(
        u64::from_le_bytes(taken) == number as u64,
        "of {number} blocks the other one took {}",
        u64::from_le_bytes(taken)
    );
    println!("SLUICE-RESULT sent_blocks={number}");
    Ok(())
}

/// Takes numbered blocks from who connects, until its end.
pub fn listen(at: SocketAddrV4) -> Result<()> {
    answer(&TcpListener::bind(at).with_context(|| format!("could not listen at {at}"))?)
}

fn answer(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept().context("nobody connected")?;
    under_way("line");
    let (mut stalls, mut wrong, mut number) = (Stalls::default(), 0, 0);
    let mut block = [0; BLOCK];
    loop {
        let begun = Instant::now();
        match stream.read_exact(&mut block) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error).context("the line broke"),
        }
        stalls.step(begun.elapsed());
        wrong += u64::from(pattern::wrong(&block, number, 0).is_some());
        number += 1;
    }
    stream.write_all(&(number as u64).to_le_bytes())?;
    stalls.report("line", wrong);
    ensure!(wrong == 0, "{wrong} blocks that came are not what was sent");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::TcpStream;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_block_that_is_lost_is_noticed() {
        let path = std::env::temp_dir().join(format!("sluice-load-soak-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = file.try_clone().unwrap();
        let disk = Disk::of(file);
        // Some containers refuse the system calls.
        let Ok(wrong) = soak(&disk, |round| round == 3) else { return };
        assert_eq!(wrong, 0);
        // All blocks of an older version, but for those that are written after that.
        let spoil = |round| {
            if round == 2 {
                other.write_all_at(&vec![1; BLOCKS * BLOCK], 0).unwrap();
            }
            round == 3
        };
        assert!(soak(&disk, spoil).unwrap() > (BLOCKS / 2) as u64);
    }

    #[test]
    fn a_block_that_is_sent_twice_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let listening = std::thread::spawn(move || answer(&listener).and_then(|()| answer(&listener)));
        for twice in [false, true] {
            let mut blocks = vec![0; 2 * BLOCK];
            pattern::fill(&mut blocks, 0, 0);
            if twice {
                blocks.copy_within(..BLOCK, BLOCK);
            }
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(&blocks).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_exact(&mut [0; 8]).unwrap();
        }
        assert_eq!(
            listening.join().unwrap().unwrap_err().to_string(),
            "1 blocks that came are not what was sent"
        );
    }

    #[test]
    fn only_what_takes_long_is_a_stall() {
        let mut stalls = Stalls::default();
        [5, 300, 1, 700].into_iter().for_each(|ms| stalls.step(Duration::from_millis(ms)));
        assert_eq!(
            (stalls.steps, stalls.count, stalls.sum.as_millis(), stalls.longest.as_millis()),
            (4, 2, 1000, 700)
        );
    }
}
