//! The log: lines on COM1, through the `log` crate.
//!
//! A line reads `[  12.345678] cpu0 info  target: message`, the time being seconds since the boot processor's
//! counter was calibrated (zero before).

use crate::cpu;
use crate::sync::{Rank, SpinLock};
use crate::uart::{COM1, Uart};
use crate::x86::tsc;
use core::fmt::{self, Write};
use log::{Level, LevelFilter, Log, Metadata, Record};

static PORT: SpinLock<Uart> = SpinLock::new(Rank::Log, Uart::new(COM1));

struct Serial;

static SERIAL: Serial = Serial;

/// Sets up the port and the `log` crate; the first thing that boot does.
pub fn init() {
    PORT.lock().init();
    // Fails only if called twice, and then the logger is already this one.
    let _ = log::set_logger(&SERIAL);
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
    let _ = match PORT.lock_for(10_000_000) {
        Some(mut port) => port.write_fmt(arguments),
        None => {
            let mut port = Uart::new(COM1);
            port.init();
            port.write_fmt(arguments)
        }
    };
}

/// Writes bytes to the log's port as they are, as one piece.
pub fn raw(bytes: &[u8]) {
    PORT.lock().write_all(bytes);
}

impl Log for Serial {
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
        let mut port = PORT.lock();
        let _ = writeln!(
            port,
            "[{:4}.{:06}] cpu{index} {level} {target}: {}",
            micros / 1_000_000,
            micros % 1_000_000,
            record.args(),
        );
    }

    fn flush(&self) {}
}
