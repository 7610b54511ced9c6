//! The load of the benchmark `paravirtual`: the `init` of a system that has nothing else, the same program under every hypervisor. It makes
//! processes, page faults and system calls, each some times and then more times, so that whatever is not the operation drops out of the difference.
//!
//! With `series [SWITCH]` it makes processes in bursts instead, and marks intervals of these ([`series`]); with `storm KIND PLACE MIB PROCESSES` it takes data meanwhile ([`storm`]).
//! With `build PROGRAM...` it runs a program between two marks.
//!
//! Whoever counts instructions from outside (bench/instructions.rs) is told by an instruction that does nothing else ([`sluice_processes::mark`]) and that no
//! hypervisor sees: before the few, between them and the many, and after these.

mod series;
mod storm;
mod work;

use anyhow::{Result, bail, ensure};
use sluice_processes::mark;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use work::{MARKS, Work};

/// What a process does that is started in order to end.
const NOTHING: &str = "nothing";

fn all() -> Result<()> {
    for work in Work::ALL {
        // The first ones fill caches.
        work.run(2)?;
        mark();
        work.run(work.few())?;
        mark();
        work.run(work.many())?;
        mark();
        println!("SLUICE-RESULT at={} few={} many={} marks={MARKS}", work.name(), work.few(), work.many());
    }
    Ok(())
}

/// Runs a command to its end, between two marks.
fn build(mut command: impl Iterator<Item = String>) -> Result<()> {
    let Some(program) = command.next() else { bail!("build PROGRAM...") };
    mark();
    let status = Command::new(program).args(command).status()?;
    mark();
    ensure!(status.success(), "it ended with {status}");
    Ok(())
}

/// What the arguments ask for.
fn wanted() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("series") => {
            let switch = arguments.next().map(PathBuf::from);
            let processes = series::run(switch.as_deref())?;
            println!("SLUICE-RESULT processes={processes} intervals={}", series::INTERVALS);
            Ok(())
        }
        Some("storm") => {
            let (Some(kind), Some(place), Some(mib), Some(forks)) =
                (arguments.next(), arguments.next(), arguments.next(), arguments.next())
            else {
                bail!("storm <net|disk> PLACE MIB PROCESSES");
            };
            let (mib, forks) = (mib.parse::<usize>()?, forks.parse()?);
            storm::run(&mut storm::Source::open(&kind, &place)?, mib << 20, forks)?;
            let (rounds, marks) = (storm::ROUNDS, storm::MARKS);
            println!("SLUICE-RESULT storm={kind} mib={mib} processes={forks} rounds={rounds} marks={marks}");
            Ok(())
        }
        Some("build") => build(arguments),
        // The kernel hands words of its command line to an init.
        _ => all(),
    }
}

fn main() -> ExitCode {
    if std::env::args().next().is_some_and(|name| name.ends_with(NOTHING)) {
        return ExitCode::SUCCESS;
    }
    let result = wanted();
    if let Err(error) = &result {
        println!("sluice-processes: {error:#}");
    }
    println!("SLUICE-RESULT done={}", if result.is_ok() { "ok" } else { "failed" });
    if std::process::id() == 1 {
        work::power_off();
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks what a call of the system returned.
fn check(what: &str, returned: i64) -> Result<i64> {
    if returned < 0 {
        bail!("{what} failed: {}", std::io::Error::last_os_error());
    }
    Ok(returned)
}
