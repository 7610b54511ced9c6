//! As many reads as a guest gets.

use crate::result;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Starts the processes when a line comes, and says when they are over. Each is this program with no others to start.
pub fn run(path: &Path, processes: u32, seconds: u64) -> Result<()> {
    if processes == 0 {
        return read(path, Duration::from_secs(seconds));
    }
    result("flood=ready");
    std::io::stdin().read_line(&mut String::new()).context("no line came")?;
    let seconds = seconds.to_string();
    let start = |_| {
        let mut one = Command::new("/proc/self/exe");
        one.arg("flood").arg(path).args(["--processes", "0", "--seconds", &seconds]);
        one.stdin(Stdio::null()).spawn().context("could not start a process")
    };
    let started = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
    for mut one in started {
        ensure!(one.wait()?.success(), "a process failed");
    }
    result("flood=over");
    Ok(())
}

fn read(path: &Path, time: Duration) -> Result<()> {
    let mut file = File::open(path).context("could not open the file")?;
    let (began, mut bytes) = (Instant::now(), [0; 4096]);
    while began.elapsed() < time {
        file.read_exact(&mut bytes).context("could not read")?;
    }
    Ok(())
}
