//! `logs`: what domains have written on their consoles, from the files that a run keeps.

use crate::cli::Target;
use crate::console::LineBuffer;
use crate::control::{Running, choose};
use crate::output;
use crate::workspace::{consoles, runs};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How often it is looked for more.
const TICK: Duration = Duration::from_millis(200);

/// The file of a console: of the instance that runs, or of the last run that had such a domain.
fn find(target: &Target) -> Result<(PathBuf, Option<Running>)> {
    let file = format!("{}.log", target.domain);
    let chosen = choose(target.instance.as_ref());
    if let Ok(instance) = chosen {
        let path = instance.info().consoles.join(&file);
        if path.is_file() {
            return Ok((path, Some(instance)));
        }
        bail!("'{}' has no domain '{}'", instance.name, target.domain);
    }
    let written = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let last: Option<PathBuf> = match &target.instance {
        Some(name) => Some(consoles(name).join(&file)),
        None => {
            let folders = std::fs::read_dir(runs()).into_iter().flatten().flatten();
            let files = folders.map(|folder| folder.path().join(&file)).filter(|path| path.is_file());
            files.max_by_key(|path| written(path).unwrap_or(SystemTime::UNIX_EPOCH))
        }
    };
    let path = last.filter(|path| path.is_file());
    path.map(|path| (path, None)).with_context(|| format!("no run has left a console of '{}'", target.domain))
}

/// Prints a console, its last lines only, and what is added as long as the instance runs.
pub fn logs(target: &Target, follow: bool, last: Option<usize>) -> Result<()> {
    let (path, instance) = find(target)?;
    if instance.is_none() {
        output::note(format_args!("sluice: of the last run, {}", path.display()));
    }
    let mut file = File::open(&path).with_context(|| format!("could not read {}", path.display()))?;
    let mut buffer = LineBuffer::default();
    let mut lines = read(&mut file, &mut buffer)?;
    let from = last.map_or(0, |last| lines.len().saturating_sub(last));
    lines.drain(..from);
    print(&lines)?;
    while follow && let Some(instance) = &instance {
        // First whether it runs, then what it wrote: nothing is missed.
        let runs = instance.is_running();
        print(&read(&mut file, &mut buffer)?)?;
        if !runs {
            break;
        }
        std::thread::sleep(TICK);
    }
    print(&buffer.finish().map(|line| line.to_string()).into_iter().collect::<Vec<_>>())
}

fn read(file: &mut File, buffer: &mut LineBuffer) -> Result<Vec<String>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).context("could not read the console")?;
    Ok(buffer.push(&bytes).iter().map(ToString::to_string).collect())
}

fn print(lines: &[String]) -> Result<()> {
    if lines.is_empty() { Ok(()) } else { output::print(lines.join("\n") + "\n") }
}
