//! `run --detach`: the same command again, in a session of its own, which goes on when the terminal is gone.

use crate::cli::RunArguments;
use crate::config::{self, Override};
use crate::control::running;
use crate::outcome::Status;
use crate::output;
use crate::workspace::runs;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Tells the second process that it is the second.
const MARK: &str = "SLUICE_DETACHED";

/// What a detached run prints, in the folder of its consoles.
const OUTPUT: &str = "run.out";

/// How often it is looked whether the machine has started.
const TICK: Duration = Duration::from_millis(100);

/// This is the process in the background.
pub fn is_detached() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the run, waits until its machine has started, and says how to get at it. If it ends before, its words and its exit
/// status are those of this command.
pub fn start(arguments: &RunArguments) -> Result<Status> {
    // What is wrong with it is said here.
    config::load_for(&arguments.file, Override { memory: arguments.memory, cpus: arguments.cpus })?;
    std::fs::create_dir_all(runs()).with_context(|| format!("could not create {}", runs().display()))?;
    let written = runs().join(format!(".detached-{}.out", std::process::id()));
    let said = File::create(&written).with_context(|| format!("could not write {}", written.display()))?;
    let mut heard = File::open(&written).context("could not read what it says")?;
    let mut child = Command::new("setsid")
        .arg(std::env::current_exe().context("could not find this program")?)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(said.try_clone().context("could not use the file twice")?)
        .stderr(said)
        .spawn()
        .with_context(|| crate::workspace::not_found("setsid"))?;
    let mut pass_on = || {
        let mut bytes = Vec::new();
        let _ = heard.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        if !text.is_empty() {
            output::note(text.trim_end());
        }
    };
    loop {
        let ended = child.try_wait().context("lost the run")?;
        pass_on();
        if let Some(ended) = ended {
            let _ = std::fs::remove_file(&written);
            return Ok(ended.code().and_then(Status::of_code).unwrap_or(Status::Trouble));
        }
        let mine = running()?.into_iter().map(|instance| (instance.info(), instance));
        if let Some((info, instance)) = mine.into_iter().find(|(info, _)| info.pid == child.id()) {
            // What it goes on to say is found with its consoles; where that is another file system, it stays where it is.
            let _ = std::fs::rename(&written, info.consoles.join(OUTPUT));
            output::print(format_args!(
                "{} runs in the background (process {}); consoles: {}\n\
                 next: cargo sluice attach, ps, logs NAME -f, stop --all\n",
                instance.name,
                info.pid,
                info.consoles.display()
            ))?;
            return Ok(Status::Ok);
        }
        std::thread::sleep(TICK);
    }
}
