//! The server that test guests talk to: deterministic downloads, and uploads answered with their hash.
//!
//! - `GET /blob/SIZE/SEED`: that many pseudo-random bytes, the same for the same size and seed.
//! - `GET /blob/SIZE/SEED.sha256`: their SHA-256 in hexadecimal.
//! - `PUT` or `POST /upload/NAME`: answers with the SHA-256 of what arrived.
//!
//! HTTP/1.0 and 1.1 without keep-alive, one thread per connection, on 127.0.0.1 only; guests on QEMU's
//! user-mode network reach it as 10.0.2.2. What a guest sends is never stored.

use crate::workspace::hex;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Largest body sent or taken.
const LARGEST: u64 = 4 << 30;
/// A guest that stops talking for this long is given up.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest line of a request.
const LONGEST_LINE: u64 = 4096;

/// A server in the background; it ends with the process.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts to listen; port 0 lets the system choose.
    pub fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("could not listen on 127.0.0.1:{port}"))?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        Ok(Self { address })
    }
}

fn serve(stream: TcpStream) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    let request = line(&mut reader)?;
    let mut length = None;
    loop {
        let header = line(&mut reader)?;
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<u64>().ok();
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match (method, parts.as_slice()) {
        ("GET", ["blob", size, seed]) => {
            let Some(size) = size.parse().ok().filter(|size| *size <= LARGEST) else {
                return answer(&mut writer, "400 Bad Request", b"no such size\n");
            };
            match seed.strip_suffix(".sha256") {
                Some(seed) => {
                    answer(&mut writer, "200 OK", format!("{}\n", blob_hash(size, seed)).as_bytes())
                }
                None => send_blob(&mut writer, size, seed),
            }
        }
        ("PUT" | "POST", ["upload", ..]) => {
            let mut hash = Sha256::new();
            let mut left = length.filter(|length| *length <= LARGEST)?;
            let mut buffer = [0; 16 * 1024];
            while left > 0 {
                let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                let got = reader.read(&mut buffer[..want]).ok().filter(|got| *got > 0)?;
                hash.update(&buffer[..got]);
                left -= got as u64;
            }
            answer(&mut writer, "200 OK", format!("{}\n", hex(&hash.finalize())).as_bytes())
        }
        _ => answer(&mut writer, "404 Not Found", b"try /blob/SIZE/SEED or PUT /upload/NAME\n"),
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut text = String::new();
    reader.take(LONGEST_LINE).read_line(&mut text).ok().filter(|read| *read > 0)?;
    Some(text.trim_end().to_owned())
}

fn head(writer: &mut TcpStream, status: &str, length: u64) -> Option<()> {
    let text = format!("HTTP/1.0 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    writer.write_all(text.as_bytes()).ok()
}

fn answer(writer: &mut TcpStream, status: &str, body: &[u8]) -> Option<()> {
    head(writer, status, body.len() as u64)?;
    writer.write_all(body).ok()
}

fn send_blob(writer: &mut TcpStream, size: u64, seed: &str) -> Option<()> {
    head(writer, "200 OK", size)?;
    let mut sent = Some(());
    blob(size, seed, |chunk| {
        if sent.is_some() {
            sent = writer.write_all(chunk).ok();
        }
    });
    sent
}

fn blob_hash(size: u64, seed: &str) -> String {
    let mut hash = Sha256::new();
    blob(size, seed, |chunk| hash.update(chunk));
    hex(&hash.finalize())
}

/// The bytes of a blob, chunk by chunk: splitmix64 from a state that hashes the seed.
fn blob(size: u64, seed: &str, mut take: impl FnMut(&[u8])) {
    let digest = Sha256::digest(seed.as_bytes());
    let mut state = digest.iter().take(8).fold(0_u64, |state, byte| state << 8 | u64::from(*byte));
    let mut chunk = [0; 8 * 1024];
    let mut left = size;
    while left > 0 {
        for word in chunk.chunks_exact_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
        }
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        take(&chunk[..now]);
        left -= now as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        answer.split_off(body)
    }

    #[test]
    fn downloads_repeat_and_agree_with_their_hash() {
        let server = Server::start(0).unwrap();
        let blob = ask(server.address, b"GET /blob/10001/alice HTTP/1.0\r\n\r\n");
        assert_eq!(blob.len(), 10001);
        assert_eq!(blob, ask(server.address, b"GET /blob/10001/alice HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_ne!(blob, ask(server.address, b"GET /blob/10001/bob HTTP/1.0\r\n\r\n"));
        let hash = ask(server.address, b"GET /blob/10001/alice.sha256 HTTP/1.0\r\n\r\n");
        assert_eq!(hash, format!("{}\n", hex(&Sha256::digest(&blob))).as_bytes());
    }

    #[test]
    fn uploads_are_answered_with_their_hash() {
        let server = Server::start(0).unwrap();
        let hash = ask(server.address, b"PUT /upload/x HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(hash, b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n");
    }

    #[test]
    fn nonsense_is_refused() {
        let server = Server::start(0).unwrap();
        assert!(ask(server.address, b"GET / HTTP/1.0\r\n\r\n").starts_with(b"try "));
        assert!(ask(server.address, b"GET /blob/99999999999999/x HTTP/1.0\r\n\r\n").starts_with(b"no such"));
    }
}
