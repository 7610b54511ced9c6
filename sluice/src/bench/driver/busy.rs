//! A wire that is really full: the other end of an emulated card, which takes so many bits a second and no more.
//!
//! QEMU gives it frames by a local socket, and waits when that is full; a virtio network card then tells its driver so. What each station sent is
//! counted, as it was and with what a wire adds. Who asks for a station by ARP (RFC 826) is answered, and nobody else.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of preamble, check sequence and gap.
const FRAMING: u64 = 24;
/// Longest frame that QEMU gives.
const LONGEST: usize = 128 << 10;

/// A station address.
pub type Mac = [u8; 6];

/// Bytes that a station sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Of frames.
    pub bytes: u64,
    /// With what the wire adds.
    pub on_wire: u64,
}

/// What each station sent until now.
pub type Counts = BTreeMap<Mac, Sent>;

/// The other end.
pub struct Wire {
    /// The socket.
    pub path: PathBuf,
    counts: Arc<Mutex<Counts>>,
}

impl Wire {
    /// Waits for QEMU at a socket in this folder.
    pub fn start(folder: &Path, bits_per_second: u64) -> Result<Self> {
        let path = folder.join("wire");
        // Of an earlier run.
        let _ = std::fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("could not listen at {}", path.display()))?;
        let counts = Arc::new(Mutex::new(Counts::new()));
        let shared = Arc::clone(&counts);
        std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                let _ = take(stream, bits_per_second, &shared);
            }
        });
        Ok(Self { path, counts })
    }

    /// What each station has sent.
    pub fn counts(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Takes frames, each behind its length in the order of the network, as fast as the wire is.
fn take(mut stream: UnixStream, bits_per_second: u64, counts: &Mutex<Counts>) -> std::io::Result<()> {
    let mut frame = vec![0; LONGEST];
    let began = Instant::now();
    let mut taken = Duration::ZERO;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        let frame = frame.get_mut(..length).ok_or(std::io::ErrorKind::InvalidData)?;
        stream.read_exact(frame)?;
        let Some(from) = frame.get(6..12).and_then(|from| Mac::try_from(from).ok()) else { continue };
        if let Some(answer) = answer(frame) {
            stream.write_all(&answer)?;
        }
        let on_wire = length as u64 + FRAMING;
        {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = counts.entry(from).or_default();
            sent.bytes += length as u64;
            sent.on_wire += on_wire;
        }
        // A wire that had nothing to do does not make up for it.
        taken = taken.max(began.elapsed().saturating_sub(Duration::from_millis(20)));
        taken += Duration::from_nanos(on_wire * 8_000_000_000 / bits_per_second.max(1));
        let early = taken.saturating_sub(began.elapsed());
        if early > Duration::from_millis(2) {
            std::thread::sleep(early);
        }
    }
}

/// Whoever is asked for has this address.
const GATEWAY: Mac = [0x52, 0x55, 0x0a, 0, 0x02, 0x02];

/// The answer to a frame, behind its length, if it asks for a station.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    const ASKS: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    const ANSWERS: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
    let (from, sender, wanted) = (frame.get(6..12)?, frame.get(22..32)?, frame.get(38..42)?);
    let answer = [&[0, 0, 0, 42], from, &GATEWAY, &ANSWERS, &GATEWAY, wanted, sender].concat();
    (frame.get(12..22)? == ASKS).then_some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_takes_so_much_a_second_and_counts_by_station() {
        let folder = std::env::temp_dir().join(format!("sluice-wire-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let wire = Wire::start(&folder, 8_000_000).unwrap();
        let mut stream = UnixStream::connect(&wire.path).unwrap();
        let began = Instant::now();
        for nth in 0..400u32 {
            let mut frame = vec![0; 976];
            frame[11] = (nth % 2) as u8;
            stream.write_all(&976u32.to_be_bytes()).unwrap();
            stream.write_all(&frame).unwrap();
        }
        // A station is asked for by another than the frame says, as it may.
        let ask = [
            &[0xff; 6][..],
            &[0, 0, 0, 0, 0, 1],
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &[2; 6],
            &[10, 0, 0, 2],
            &[0; 6],
            &[10, 0, 0, 1],
        ];
        stream.write_all(&[&42u32.to_be_bytes(), &*ask.concat()].concat()).unwrap();
        let mut answer = [0; 46];
        stream.read_exact(&mut answer).unwrap();
        let expected = [
            &[0, 0, 0, 42, 0, 0, 0, 0, 0, 1][..],
            &GATEWAY,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
            &GATEWAY,
            &[10, 0, 0, 1],
            &[2; 6],
            &[10, 0, 0, 2],
        ];
        assert_eq!(answer[..], expected.concat());
        drop(stream);
        while wire.counts().values().map(|sent| sent.on_wire).sum::<u64>() < 400_066 {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        // 400,000 bytes at a million a second, less what may be early.
        assert!(began.elapsed() > Duration::from_millis(300));
        let each = Sent { bytes: 200 * 976, on_wire: 200_000 };
        let who_asked = Sent { bytes: each.bytes + 42, on_wire: each.on_wire + 66 };
        assert_eq!(wire.counts(), Counts::from([([0; 6], each), ([0, 0, 0, 0, 0, 1], who_asked)]));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
