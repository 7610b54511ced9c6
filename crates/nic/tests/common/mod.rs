//! QEMU's cards, reached by its qtest protocol, for comparison with the software cards. Each test adds to [`Peer`] what
//! its card needs.
//!
//! Needs `qemu-system-x86_64`; tests are skipped with a message where there is none.
#![allow(dead_code, reason = "not every card needs all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// A machine with nothing but a card in slot 4, frames going over UDP.
pub struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    monitor: UnixStream,
    pub wire: UdpSocket,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// A machine with this model of card, called "card", more arguments, and what is written to PCI registers at first.
    pub fn start(model: &str, arguments: &[&str], config: &[(u32, u32)]) -> Option<Self> {
        let peer = Self::try_start(model, arguments, config);
        if peer.is_none() {
            eprintln!("skipped: no qemu-system-x86_64");
        }
        peer
    }

    fn try_start(model: &str, arguments: &[&str], config: &[(u32, u32)]) -> Option<Self> {
        let wire = UdpSocket::bind("127.0.0.1:0").ok()?;
        let ours = wire.local_addr().ok()?.port();
        let theirs = UdpSocket::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        // The processor must run, or QEMU holds frames back; it has nothing to do. Debian's build has no "qtest"
        // accelerator.
        let mut rom = vec![0xf4; 0x1_0000];
        rom[0xfff0..0xfff4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]); // cli; hlt; jmp
        // Two tests of one process may run at once.
        let name = format!("sluice-{model}-{}-{ours}", std::process::id());
        let path = std::env::temp_dir().join(format!("{name}.rom"));
        let socket = std::env::temp_dir().join(format!("{name}.socket"));
        std::fs::write(&path, rom).ok()?;
        let mut child = Command::new("qemu-system-x86_64")
            .args(["-M", "pc,pit=off,hpet=off", "-m", "16", "-nodefaults", "-display", "none"])
            .args(["-accel", "tcg", "-qtest", "stdio", "-qtest-log", "none"])
            .arg("-bios")
            .arg(&path)
            .arg("-monitor")
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .arg("-netdev")
            .arg(format!("socket,id=n,udp=127.0.0.1:{ours},localaddr=127.0.0.1:{theirs}"))
            .arg("-device")
            .arg(format!("{model},id=card,netdev=n,addr=4,romfile=,mac=52:54:00:12:34:56"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        wire.connect(("127.0.0.1", theirs)).ok()?;
        wire.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let to = child.stdin.take()?;
        let from = BufReader::new(child.stdout.take()?);
        let start = Instant::now();
        let monitor = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("QEMU's monitor: {error}"),
            }
        };
        let mut peer = Self { child, to, from, monitor, wire };
        peer.prompt();
        for (register, value) in config {
            peer.config(*register);
            peer.command(&format!("outl 0xcfc {value:#x}"));
        }
        let _ = (std::fs::remove_file(&path), std::fs::remove_file(&socket));
        Some(peer)
    }

    /// Reads what the monitor says until it waits for a command.
    fn prompt(&mut self) {
        let mut said = Vec::new();
        let mut byte = [0];
        while !said.ends_with(b"(qemu) ") {
            self.monitor.read_exact(&mut byte).unwrap();
            said.push(byte[0]);
        }
    }

    /// Plugs the card's cable in, or pulls it out.
    pub fn set_cable(&mut self, plugged: bool) {
        writeln!(self.monitor, "set_link card {}", if plugged { "on" } else { "off" }).unwrap();
        self.prompt();
    }

    /// A command of the qtest protocol and its answer.
    pub fn command(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").unwrap();
        loop {
            let mut answer = String::new();
            assert_ne!(self.from.read_line(&mut answer).unwrap(), 0, "QEMU ended");
            assert!(!answer.starts_with("ERR") && !answer.starts_with("FAIL"), "{line}: {answer}");
            if answer.starts_with("OK") {
                return answer.trim().to_owned();
            }
        }
    }

    pub fn number(&mut self, line: &str) -> u32 {
        let answer = self.command(line);
        u64::from_str_radix(answer.trim_start_matches("OK 0x"), 16).unwrap() as u32
    }

    fn config(&mut self, register: u32) {
        self.command(&format!("outl 0xcf8 {:#x}", 0x8000_2000u32 | register));
    }

    pub fn port_in(&mut self, port: u16, width: u8) -> u32 {
        self.number(&format!("in{} {port:#x}", letter(width)))
    }

    pub fn port_out(&mut self, port: u16, width: u8, value: u32) {
        self.command(&format!("out{} {port:#x} {:#x}", letter(width), low(value, width)));
    }

    pub fn load(&mut self, address: u64, width: u8) -> u32 {
        self.number(&format!("read{} {address:#x}", letter(width)))
    }

    pub fn store(&mut self, address: u64, width: u8, value: u32) {
        self.command(&format!("write{} {address:#x} {:#x}", letter(width), low(value, width)));
    }

    /// The level of the card's interrupt line: bit 3 of the PCI status.
    pub fn interrupt(&mut self) -> bool {
        self.config(4);
        self.number("inl 0xcfc") & 1 << 19 != 0
    }

    pub fn memory(&mut self, address: u64, len: usize) -> Vec<u8> {
        let answer = self.command(&format!("read {address:#x} {len:#x}"));
        let digits = answer.trim_start_matches("OK 0x").as_bytes();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    pub fn set_memory(&mut self, address: u64, bytes: &[u8]) {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.command(&format!("write {address:#x} {:#x} 0x{digits}", bytes.len()));
    }
}

fn letter(width: u8) -> char {
    [' ', 'b', 'w', ' ', 'l'][usize::from(width)]
}

fn low(value: u32, width: u8) -> u32 {
    value & (u32::MAX >> (32 - 8 * u32::from(width)))
}

pub struct Random(u64);

impl Random {
    /// The same for the same number, unless SEED says otherwise: `SEED=7 cargo test -p sluice-nic`.
    pub fn new(number: u64) -> Self {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok()).unwrap_or(1);
        Self((seed + number).wrapping_mul(0x1234_5678_9abc_def1) | 1)
    }

    pub fn roll(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32 % bound
    }

    pub fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.roll(values.len() as u32) as usize]
    }

    pub fn chance(&mut self, one_in: u32) -> bool {
        self.roll(one_in) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.roll(256) as u8).collect()
    }
}
