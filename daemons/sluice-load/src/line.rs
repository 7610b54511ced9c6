//! Data over TCP: from one guest to another, whose end is when the other has said that it has all, and from and to the server of `sluice`
//! (HTTP/1.0), which says what they hash to.

use crate::mark::{Part, measured};
use crate::pattern;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

/// What is written at once.
const CHUNK: usize = 64 << 10;
/// Payload of a TCP segment on a wire of 1,500 bytes, with time stamps.
const SEGMENT: usize = 1448;
/// What the listener says of whole data, and of others.
const RIGHT: u8 = b'y';
const WRONG: u8 = b'n';
/// Bytes of a message that comes back, and how many are sent: before it is measured, and then.
const MESSAGE: usize = 64;
pub const WARM: usize = 50;
const TRIPS: usize = 500;
/// Seed of the data.
const SEED: u64 = 4;
/// How often, and how long apart, a talker tries to find who listens.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(200);

/// Takes data from one who connects, and answers twice: when all have come, and with the verdict. Then it sends messages back, until there are no more.
pub fn listen(at: SocketAddrV4, bytes: usize) -> Result<()> {
    answer(&TcpListener::bind(at).with_context(|| format!("could not listen at {at}"))?, bytes)
}

pub fn answer(listener: &TcpListener, bytes: usize) -> Result<()> {
    let (mut stream, _) = listener.accept().context("nobody connected")?;
    let mut taken = vec![0; bytes];
    stream.read_exact(&mut taken).context("the other one sent less than was agreed")?;
    stream.write_all(b".")?;
    let right = pattern::wrong(&taken, 0, SEED).is_none();
    stream.write_all(&[if right { RIGHT } else { WRONG }])?;
    println!("SLUICE-RESULT taken_bytes={bytes} taken={}", if right { "ok" } else { "bad" });
    ensure!(right, "what came is not what was sent");
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

/// Sends data to who listens.
pub fn talk(to: SocketAddr, bytes: usize) -> Result<()> {
    let mut data = vec![0; bytes];
    pattern::fill(&mut data, 0, SEED);
    let mut stream = connect(to)?;
    let mut said = [0];
    measured(
        Part::Talk,
        bytes,
        || bytes.div_ceil(SEGMENT),
        || {
            for chunk in data.chunks(CHUNK) {
                stream.write_all(chunk)?;
            }
            stream.read_exact(&mut said).context("the other one ended before it had all")
        },
    )?;
    stream.read_exact(&mut said)?;
    if said != [RIGHT] {
        bail!("what came there is not what was sent");
    }
    trips(&mut stream)?;
    println!("SLUICE-RESULT sent=ok");
    Ok(())
}

/// Sends a small message, which comes back.
pub fn trip(stream: &mut TcpStream, number: usize) -> Result<()> {
    let sent = [number as u8; MESSAGE];
    let mut come = [0; MESSAGE];
    stream.write_all(&sent)?;
    stream.read_exact(&mut come).context("a message did not come back")?;
    ensure!(come == sent, "another message came back");
    Ok(())
}

/// Sends small messages, each when the one before it has come back.
fn trips(stream: &mut TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut trip = |number| trip(stream, number);
    // The first ones are slow, as after every pause.
    (0..WARM).try_for_each(&mut trip)?;
    measured(Part::Trips, 2 * TRIPS * MESSAGE, || TRIPS, || (0..TRIPS).try_for_each(&mut trip))
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

/// Where HTTP's header ends.
const HEADER_END: &[u8] = b"\r\n\r\n";

/// Downloads so many bytes, and leaves them in a file for others to hash.
pub fn get(from: SocketAddr, name: &str, bytes: usize, to: &Path) -> Result<()> {
    let mut stream = connect(from)?;
    let mut taken = vec![0; bytes + CHUNK];
    // So that no page of it is first used while that is measured.
    taken.fill(1);
    let mut length = 0;
    let before = packets("tx_packets");
    let operations = || bytes.div_ceil(SEGMENT) + packets("tx_packets") - before;
    measured(Part::Get, bytes, operations, || {
        write!(stream, "GET {name} HTTP/1.0\r\n\r\n")?;
        loop {
            match stream.read(&mut taken[length..])? {
                0 => return Ok(()),
                more => length += more,
            }
        }
    })?;
    let body = body(&taken[..length]).context("the server sent no header")?;
    ensure!(body.len() == bytes, "of {bytes} bytes {} came", body.len());
    std::fs::write(to, body).with_context(|| format!("could not write {}", to.display()))
}

/// Uploads a file, and says what the server found that it hashes to.
pub fn put(to: SocketAddr, name: &str, from: &Path) -> Result<()> {
    let data = std::fs::read(from).with_context(|| format!("could not read {}", from.display()))?;
    let mut stream = connect(to)?;
    let mut answer = Vec::new();
    let before = packets("rx_packets");
    let operations = || data.len().div_ceil(SEGMENT) + packets("rx_packets") - before;
    measured(Part::Put, data.len(), operations, || {
        write!(stream, "PUT {name} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", data.len())?;
        for chunk in data.chunks(CHUNK) {
            stream.write_all(chunk)?;
        }
        stream.read_to_end(&mut answer).context("the server did not answer")
    })?;
    let hash = body(&answer).context("the server sent no header")?;
    println!("SLUICE-RESULT answer={}", String::from_utf8_lossy(hash).trim());
    Ok(())
}

/// Packets that the drivers of network cards counted: those of acknowledgements, which no offload merges.
fn packets(counter: &str) -> usize {
    let cards = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let others = cards.filter(|card| card.file_name() != "lo");
    let count = |card: std::fs::DirEntry| {
        let text = std::fs::read_to_string(card.path().join("statistics").join(counter)).ok()?;
        text.trim().parse::<usize>().ok()
    };
    others.filter_map(count).sum()
}

fn body(message: &[u8]) -> Option<&[u8]> {
    let end = message.windows(HEADER_END.len()).position(|window| window == HEADER_END)?;
    message.get(end + HEADER_END.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_follows_the_header() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\na: b\r\n\r\nx\r\n\r\ny"), Some(b"x\r\n\r\ny".as_slice()));
        assert_eq!(body(b"HTTP/1.0 200 OK\r\n"), None);
    }

    #[test]
    fn what_is_sent_is_checked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let listening =
            std::thread::spawn(move || answer(&listener, 1 << 20).and_then(|()| answer(&listener, 8192)));
        talk(at, 1 << 20).unwrap();
        TcpStream::connect(at).unwrap().write_all(&[0; 8192]).unwrap();
        let error = listening.join().unwrap().unwrap_err().to_string();
        assert!(
            error == "what came is not what was sent" || error.contains("reset") || error.contains("pipe"),
            "{error}"
        );
    }
}
