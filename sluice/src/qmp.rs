//! QEMU's monitor (QEMU Machine Protocol): pictures of the screen and keys, for scenarios.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long QEMU may take to listen, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a scenario does at the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Presses and releases a key, by QEMU's name for it.
    Key(String),
    /// Writes a picture of a screen to a file, in PPM.
    Screen {
        /// The file.
        file: PathBuf,
        /// QEMU's name of the card whose it is; the machine's own by default.
        card: Option<String>,
    },
}

/// A connection to the monitor.
pub struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to a QEMU that was just started.
    pub fn connect(path: &Path) -> Result<Self> {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => return Err(error).context("QEMU opens no monitor"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        monitor.read()?;
        monitor.command("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Does something at the machine.
    pub fn act(&mut self, act: &Act) -> Result<()> {
        match act {
            Act::Key(key) => self.command("send-key", json!({ "keys": [{ "type": "qcode", "data": key }] })),
            Act::Screen { file, card: None } => self.command("screendump", json!({ "filename": file })),
            Act::Screen { file, card: Some(card) } => {
                self.command("screendump", json!({ "filename": file, "device": card, "head": 0 }))
            }
        }
    }

    fn command(&mut self, name: &str, arguments: Value) -> Result<()> {
        let line = json!({ "execute": name, "arguments": arguments }).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).context("QEMU's monitor takes nothing")?;
        loop {
            let answer = self.read()?;
            if let Some(error) = answer.pointer("/error/desc") {
                bail!("QEMU's monitor refuses '{name}': {error}");
            }
            // Events come in between.
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).context("QEMU's monitor says nothing")? == 0 {
            bail!("QEMU has closed its monitor");
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// A picture of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Red, green and blue of each pixel, row by row.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Reads what QEMU writes: PPM, `P6`, 255 values a colour.
    pub fn parse(file: &[u8]) -> Result<Self> {
        let mut words = file.splitn(4, |byte| byte.is_ascii_whitespace());
        let mut word = || words.next().and_then(|word| std::str::from_utf8(word).ok()).map(str::to_owned);
        let magic = word();
        let mut number = || word().and_then(|word| word.parse::<u32>().ok());
        let (width, height) = (number(), number());
        let pixels = words.next().unwrap_or_default().strip_prefix(b"255\n");
        let (Some("P6"), Some(width), Some(height), Some(pixels)) = (magic.as_deref(), width, height, pixels)
        else {
            bail!("not a picture of a screen");
        };
        Ok(Self { width, height, pixels: pixels.to_vec() })
    }

    /// The text on it.
    pub fn text(&self) -> String {
        let pixel = |x: u32, y: u32| {
            let at = (y as usize * self.width as usize + x as usize) * 3;
            self.pixels.get(at..at + 3).map_or(0, |rgb| u32::from_be_bytes([0, rgb[0], rgb[1], rgb[2]]))
        };
        sluice_screen::decode::text(self.width, self.height, pixel).join("\n")
    }

    /// What tells it from others: its size, and FNV-1a of its pixels.
    pub fn digest(&self) -> String {
        let digest = self.pixels.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{} x {}, digest {digest:016x}", self.width, self.height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_read() {
        let blank = [&b"P6\n640 480\n255\n"[..], &[0; 640 * 480 * 3]].concat();
        assert_eq!(Picture::parse(&blank).unwrap().text().trim(), "");
        let small = Picture::parse(b"P6\n1 1\n255\nabc").unwrap();
        assert_eq!(small.digest(), "1 x 1, digest e71fa2190541574b");
        assert!(Picture::parse(b"P5\n1 1\n255\n\0").is_err());
        assert!(Picture::parse(b"").is_err());
    }
}
