//! Data from one guest to another over TCP. The end is when the other has said that it has all.

use crate::mark::{Part, measured};
use crate::pattern;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

/// What is written at once.
const CHUNK: usize = 64 << 10;
/// What the listener says of whole data, and of others.
const RIGHT: u8 = b'y';
const WRONG: u8 = b'n';
/// Seed of the data.
const SEED: u64 = 4;
/// How often, and how long apart, a talker tries to find who listens.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(200);

/// Takes data from one who connects, and answers twice: when all have come, and with the verdict.
pub fn listen(at: SocketAddrV4, bytes: usize) -> Result<()> {
    answer(&TcpListener::bind(at).with_context(|| format!("could not listen at {at}"))?, bytes)
}

fn answer(listener: &TcpListener, bytes: usize) -> Result<()> {
    let (mut stream, _) = listener.accept().context("nobody connected")?;
    let mut taken = vec![0; bytes];
    stream.read_exact(&mut taken).context("the other one sent less than was agreed")?;
    stream.write_all(b".")?;
    let right = pattern::wrong(&taken, 0, SEED).is_none();
    stream.write_all(&[if right { RIGHT } else { WRONG }])?;
    println!("SLUICE-RESULT taken_bytes={bytes} taken={}", if right { "ok" } else { "bad" });
    ensure!(right, "what came is not what was sent");
    Ok(())
}

/// Sends data to who listens.
pub fn talk(to: SocketAddr, bytes: usize) -> Result<()> {
    let mut data = vec![0; bytes];
    pattern::fill(&mut data, 0, SEED);
    let mut stream = connect(to)?;
    let mut said = [0];
    measured(Part::Talk, bytes, bytes.div_ceil(CHUNK), || {
        for chunk in data.chunks(CHUNK) {
            stream.write_all(chunk)?;
        }
        stream.read_exact(&mut said).context("the other one ended before it had all")
    })?;
    stream.read_exact(&mut said)?;
    if said != [RIGHT] {
        bail!("what came there is not what was sent");
    }
    println!("SLUICE-RESULT sent=ok");
    Ok(())
}

/// Connects as soon as somebody listens.
pub fn connect(to: SocketAddr) -> Result<TcpStream> {
    for _ in 1..ATTEMPTS {
        if let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
            return Ok(stream);
        }
        std::thread::sleep(PAUSE);
    }
    TcpStream::connect(to).with_context(|| format!("nobody listens at {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_checked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let listening = std::thread::spawn(move || answer(&listener, 1 << 20).and_then(|()| answer(&listener, 8192)));
        talk(at, 1 << 20).unwrap();
        TcpStream::connect(at).unwrap().write_all(&[0; 8192]).unwrap();
        let error = listening.join().unwrap().unwrap_err().to_string();
        assert!(error == "what came is not what was sent" || error.contains("reset") || error.contains("pipe"), "{error}");
    }
}
