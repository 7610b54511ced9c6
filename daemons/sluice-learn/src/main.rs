//! Runs a program, sees which of its memory the kernel reaches in its ioctls, and proposes tables for the front end of device files.
//!
//! For commands of which the driver's source does not say it (`cargo sluice analyze`). It runs where the driver is, as root, and the program's data
//! decide what is seen: what it proposes is looked through by somebody, and tried. Guests and the daemon of device files have no part in it.
//!
//! Deviation: the source of the mechanism (Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary") has tables from the
//! driver's code alone.

mod program;
mod reach;

use anyhow::{Result, ensure};
use clap::Parser;
use sluice_slice::{Table, learn};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// See the crate's documentation.
#[derive(Parser)]
#[command(name = "sluice-learn", about, max_term_width = 100)]
struct Arguments {
    /// Writes the tables to a file; else they come after what the program says
    #[arg(long)]
    out: Option<PathBuf>,
    /// The program, with its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-learn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let (given, status) = program::watch(&arguments.program)?;
    let mut tables: BTreeMap<&str, Table> = BTreeMap::new();
    for ((class, number), samples) in &given {
        tables.entry(class).or_default().add(&format!("{class} {number:#010x}"), *number, &learn(samples));
    }
    let text: String =
        tables.iter().map(|(class, table)| table.definition(&format!("learned_{class}"))).collect();
    match &arguments.out {
        Some(file) => std::fs::write(file, text)?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    ensure!(status == 0, "the program ended with status {status}: what came before it is in the tables");
    Ok(())
}
