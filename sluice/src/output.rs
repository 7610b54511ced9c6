//! What is printed. Neither a closed pipe nor a full disk ends the program: guests run on, and the exit status counts, too.

use crate::printable::Lines;
use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{self, Write};

/// Writes lines to the standard output, and nothing that steers a terminal.
///
/// # Errors
/// Nobody reads it any more ([`ClosedPipe`]), or there is no room.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = write!(out, "{}", Lines(text)).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
        other => other.context("could not write to the standard output"),
    }
}

/// Whoever read the standard output has seen enough.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the standard output")]
pub struct ClosedPipe;

/// Writes a line to the standard error, and nothing that steers a terminal. If that fails, there is nobody to tell.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", Lines(text));
}
