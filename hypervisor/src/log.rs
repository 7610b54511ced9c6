//! The log: lines on COM1, through the `log` crate. The last of them are kept for the screen.
//!
//! A line reads `[  12.345678] cpu0 info  target: message`, the time being seconds since the boot processor's
//! counter was calibrated (zero before).

use crate::cpu;
use crate::sync::{Rank, SpinLock};
use crate::uart::{COM1, Uart};
use crate::x86::tsc;
use core::fmt::{self, Write};
use log::{Level, LevelFilter, Log, Metadata, Record};
use sluice_screen::Tail;

/// Lines that are kept, and characters of each.
pub type Kept = Tail<96, 400>;

/// Where lines go.
struct Sink {
    port: Uart,
    kept: Kept,
}

static SINK: SpinLock<Sink> = SpinLock::new(Rank::Log, Sink { port: Uart::new(COM1), kept: Kept::new() });

struct Lines;

static LINES: Lines = Lines;

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.kept.push(text.as_bytes());
        self.port.write_str(text)
    }
}

/// Sets up the port and the `log` crate; the first thing that boot does.
pub fn init() {
    SINK.lock().port.init();
    // Fails only if called twice, and then the logger is already this one.
    let _ = log::set_logger(&LINES);
    log::set_max_level(LevelFilter::Info);
}

/// Sets the most detailed level shown, by its name in the boot command line (`log=debug`).
pub fn set_level(name: &str) {
    if let Ok(level) = name.parse() {
        log::set_max_level(level);
    }
}

/// Writes a line that has no level, whatever the filter; used by panics. Gives up waiting for the lock when
/// its holder may have been stopped, and then writes regardless.
pub fn emergency(arguments: fmt::Arguments<'_>) {
    // Formatting to a port cannot fail.
    let _ = match SINK.lock_for(PATIENCE) {
        Some(mut sink) => sink.write_fmt(arguments),
        None => {
            let mut port = Uart::new(COM1);
            port.init();
            port.write_fmt(arguments)
        }
    };
}

/// Tries for the lock whose holder may have been stopped.
const PATIENCE: u32 = 10_000_000;

/// Reads the lines that are kept. With `emergency` it gives up when the holder of the lock may have been stopped.
pub fn with_kept<R>(emergency: bool, read: impl FnOnce(&Kept) -> R) -> Option<R> {
    let sink = if emergency { SINK.lock_for(PATIENCE)? } else { SINK.lock() };
    Some(read(&sink.kept))
}

/// Writes a line of a guest's console, which holds printable characters only: on a machine with one serial port that is where
/// consoles go. It is not kept: the screen shows consoles apart.
pub fn console_line(domain: &str, line: &str) {
    // Formatting to a port cannot fail.
    let _ = writeln!(SINK.lock().port, "{domain}| {line}");
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let micros = tsc::uptime_ns() / 1000;
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warn ",
            Level::Info => "info ",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        let target = record.target();
        let target = target
            .strip_prefix("sluice_hypervisor")
            .map_or(target, |t| t.strip_prefix("::").unwrap_or("main"));
        let index = cpu::try_this().map_or(0, |cpu| cpu.index);
        let mut sink = SINK.lock();
        let _ = writeln!(
            sink,
            "[{:4}.{:06}] cpu{index} {level} {target}: {}",
            micros / 1_000_000,
            micros % 1_000_000,
            record.args(),
        );
    }

    fn flush(&self) {}
}
