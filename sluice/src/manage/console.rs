//! `console`: the terminal is a domain's.

use crate::cli::Target;
use crate::control::{Client, choose};
use crate::output;
use crate::terminal::{self, Filter};
use anyhow::Result;
use sluice_abi::channel::{Command, Event, Request, encode};
use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Leaves the console: Ctrl-].
const LEAVE: u8 = 0x1d;

/// Connects the terminal to a console. Unless it is `raw`, only what [`Filter`] passes reaches the terminal.
pub fn console(target: &Target, raw: bool) -> Result<()> {
    let mut client = Client::connect(&choose(target.instance.as_ref())?)?;
    let domain = client.domain(&target.domain)?;
    let mut sender = client.sender()?;
    output::note(format_args!("connected to {}; Ctrl-] leaves", target.domain));
    let _raw = RawTerminal::enter();
    // The user leaves, the other end does not.
    let left = Arc::new(AtomicBool::new(false));
    let leaves = Arc::clone(&left);
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        let mut stdin = std::io::stdin().lock();
        while let Ok(got @ 1..) = stdin.read(&mut buffer) {
            let typed = &buffer[..got];
            let leave = typed.iter().position(|byte| *byte == LEAVE);
            let typed = &typed[..leave.unwrap_or(got)];
            let request = Request { seq: u32::MAX, command: Command::ConsoleInput(domain, typed.to_vec()) };
            let sent = encode(&request).is_ok_and(|bytes| sender.write_all(&bytes).is_ok());
            if leave.is_some() {
                leaves.store(true, Ordering::Relaxed);
            }
            if leave.is_some() || !sent {
                let _ = sender.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    });
    let mut stdout = std::io::stdout().lock();
    let mut reason = None;
    let mut filter = Filter::default();
    let reset = !raw && stdout.is_terminal();
    let forever = Duration::from_secs(24 * 3600);
    loop {
        match client.next_event(Instant::now() + forever) {
            Ok(Event::Console { domain: from, bytes }) if from == domain => {
                stdout.write_all(&if raw { bytes } else { filter.push(&bytes) })?;
                stdout.flush()?;
            }
            Ok(Event::State { domain: from, state, .. }) if from == domain && state.is_ended() => {
                reason = Some(format!("{} {}", target.domain, state.word()));
                break;
            }
            Ok(_) => {}
            Err(_) if left.load(Ordering::Relaxed) => break,
            Err(_) => {
                reason = Some(format!("the instance of {} has ended", target.domain));
                break;
            }
        }
    }
    if reset {
        stdout.write_all(terminal::RESET)?;
    }
    if let Some(reason) = reason {
        write!(stdout, "\r\n[{reason}]\r\n")?;
    }
    Ok(stdout.flush()?)
}

/// The terminal passes every key as it is, until dropped.
struct RawTerminal {
    before: Option<String>,
}

impl RawTerminal {
    fn enter() -> Self {
        let stty = |arguments: &[&str]| {
            let output = std::process::Command::new("stty")
                .args(arguments)
                .stdin(std::process::Stdio::inherit())
                .output()
                .ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let before = std::io::stdin().is_terminal().then(|| stty(&["-g"])).flatten();
        if before.is_some() {
            stty(&["raw", "-echo"]);
        }
        Self { before }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ =
                std::process::Command::new("stty").arg(before).stdin(std::process::Stdio::inherit()).status();
        }
    }
}
