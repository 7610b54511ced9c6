//! Work that takes time, and says so: builds, downloads, images.
//!
//! A [`Step`] that ends soon says nothing. On a terminal a longer one has a live line, elsewhere a line now and then; both end with a
//! line that says how long it took. [`watch`] runs a program whose output tells how far it is.

use crate::output;
use crate::printable::Printable;
use crate::workspace::not_found;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::io::{IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A step that ends sooner says nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a step says where it is, if not on a terminal.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Nobody wants to know.
static SILENT: AtomicBool = AtomicBool::new(false);

/// From now on nothing is said but what went wrong.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// How far a step is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// So many of so many, and what is being done.
    Of(u64, u64, String),
    /// A percentage.
    Percent(u8),
    /// It waits, or does something else first.
    Note(String),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(done, all, what) => write!(f, "{done} of {all}: {}", Printable(what)),
            Self::Percent(percent) => write!(f, "{percent} %"),
            Self::Note(text) => write!(f, "{}", Printable(text)),
        }
    }
}

/// A piece of work. It ends when it is dropped; [`Step::done`] says that it went well.
pub struct Step {
    told: Option<Sender<Told>>,
    teller: Option<JoinHandle<()>>,
}

enum Told {
    At(Position),
    Aside(String),
    Done,
}

impl Step {
    /// Begins; `what` goes on as in "building the hypervisor".
    pub fn begin(what: impl Into<String>) -> Self {
        let (told, tells) = channel();
        let mut teller = Teller::new(what.into());
        let teller = std::thread::spawn(move || {
            loop {
                match tells.recv_timeout(teller.wait()) {
                    Ok(Told::At(position)) => teller.position = Some(position),
                    Ok(Told::Aside(text)) => teller.aside(&text),
                    Ok(Told::Done) => return teller.end(true),
                    Err(RecvTimeoutError::Timeout) => teller.tell(),
                    Err(RecvTimeoutError::Disconnected) => return teller.end(false),
                }
                if teller.is_live() {
                    teller.tell();
                }
            }
        });
        Self { told: Some(told), teller: Some(teller) }
    }

    /// Says how far it is.
    pub fn at(&self, position: Position) {
        self.tell(Told::At(position));
    }

    /// Prints a line that stays: a warning, an error.
    pub fn aside(&self, text: String) {
        self.tell(Told::Aside(text));
    }

    /// It went well.
    pub fn done(self) {
        self.tell(Told::Done);
    }

    fn tell(&self, what: Told) {
        if let Some(told) = &self.told {
            let _ = told.send(what);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        drop(self.told.take());
        if let Some(teller) = self.teller.take() {
            let _ = teller.join();
        }
    }
}

struct Teller {
    what: String,
    position: Option<Position>,
    began: Instant,
    /// Something has been said.
    spoke: bool,
    said: Instant,
    bar: Option<ProgressBar>,
}

impl Teller {
    fn new(what: String) -> Self {
        let now = Instant::now();
        Self { what, position: None, began: now, spoke: false, said: now, bar: None }
    }

    /// How long until there is something to say.
    fn wait(&self) -> Duration {
        let pause = if self.spoke { SIGN_OF_LIFE } else { PATIENCE };
        pause.saturating_sub(self.said.elapsed())
    }

    fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    fn line(&self) -> String {
        let position = self.position.as_ref().map_or(String::new(), |position| format!(", {position}"));
        format!("{}{position}", self.what)
    }

    fn tell(&mut self) {
        self.said = Instant::now();
        let first = !std::mem::replace(&mut self.spoke, true);
        if SILENT.load(Ordering::Relaxed) {
            return;
        }
        if first && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed:>4}");
            let bar = ProgressBar::new_spinner().with_elapsed(self.began.elapsed());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(120));
            self.bar = Some(bar);
        }
        match &self.bar {
            Some(bar) => bar.set_message(self.line()),
            None if first => say(&self.line()),
            None => say(&format!("{}, {:.0} s", self.line(), self.began.elapsed().as_secs_f64())),
        }
    }

    fn aside(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| pass_on(text)),
            None => pass_on(text),
        }
    }

    fn end(&mut self, well: bool) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if well && self.spoke && !SILENT.load(Ordering::Relaxed) {
            say(&format!("{}: done in {:.1} s", self.what, self.began.elapsed().as_secs_f64()));
        }
    }
}

fn say(text: &str) {
    output::note(format_args!("sluice: {text}"));
}

/// A compiler's words, with its colours.
fn pass_on(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Which output of a program tells how far it is.
#[derive(Clone, Copy)]
pub enum Stream {
    /// The standard output; what is said on the other one is in the error.
    Out,
    /// The standard error; lines that `read` does not know are passed on to the user's.
    Error,
}

/// Runs a program to its end. `read` tells from a line of its output how far it is; some lines tell nothing and are
/// not for people either: `Some(None)`.
///
/// # Errors
/// It cannot be started, or it fails.
pub fn watch(
    command: &mut Command,
    stream: Stream,
    step: &Step,
    read: impl Fn(&str) -> Option<Option<Position>>,
) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (out, error) = match stream {
        Stream::Out => (Stdio::piped(), Stdio::piped()),
        Stream::Error => (Stdio::null(), Stdio::piped()),
    };
    let mut child =
        command.stdin(Stdio::null()).stdout(out).stderr(error).spawn().with_context(|| not_found(&name))?;
    let (out, error) = (child.stdout.take(), child.stderr.take());
    let mut said = String::new();
    match (stream, out, error) {
        (Stream::Out, Some(mut out), Some(mut error)) => {
            let complaints = std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = error.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            });
            lines(&mut out, |line| {
                if let Some(Some(position)) = read(line) {
                    step.at(position);
                }
            });
            said = complaints.join().unwrap_or_default();
        }
        (Stream::Error, _, Some(mut error)) => lines(&mut error, |line| match read(line) {
            Some(Some(position)) => step.at(position),
            Some(None) => {}
            None => step.aside(line.to_owned()),
        }),
        _ => {}
    }
    let status = child.wait().with_context(|| format!("lost {name}"))?;
    if !status.success() {
        let said = said.trim_end();
        bail!("{name} failed ({status}){}{said}", if said.is_empty() { "" } else { ":\n" });
    }
    Ok(())
}

/// Calls for each line; a line ends with a line feed, or with a carriage return where it is written over by the next.
fn lines(input: &mut impl Read, mut take: impl FnMut(&str)) {
    let (mut buffer, mut line) = ([0; 4096], Vec::new());
    let mut end = |line: &mut Vec<u8>, wanted: bool| {
        if wanted {
            take(&String::from_utf8_lossy(line));
        }
        line.clear();
    };
    while let Ok(got @ 1..) = input.read(&mut buffer) {
        for byte in &buffer[..got] {
            match byte {
                b'\n' => end(&mut line, true),
                b'\r' => {
                    let wanted = !line.is_empty();
                    end(&mut line, wanted);
                }
                _ => line.push(*byte),
            }
        }
    }
    let wanted = !line.is_empty();
    end(&mut line, wanted);
}

/// What a line of cargo's standard error says, with `CARGO_TERM_PROGRESS_WHEN=always`.
pub fn cargo(line: &str) -> Option<Option<Position>> {
    let plain = without_escapes(line);
    let text = plain.trim_start();
    if text.is_empty() && plain.len() != line.len() {
        // The escape sequence that erases the live line.
        return Some(None);
    }
    let (word, rest) = text.split_once(' ')?;
    if word == "Building" {
        let counted = rest.split_once("] ").map_or(rest, |(_, counted)| counted);
        let (count, names) = counted.split_once(':').unwrap_or((counted, ""));
        let (done, all) = count.split_once('/')?;
        let names = names.trim().to_owned();
        return Some(Some(Position::Of(done.trim().parse().ok()?, all.trim().parse().ok()?, names)));
    }
    // cargo sets its words to the right of twelve columns; a compiler's message begins at the left.
    if text.len() == plain.len() {
        return None;
    }
    match word {
        "Compiling" | "Checking" | "Finished" | "Fresh" | "Dirty" | "Locking" | "Adding" => Some(None),
        "Updating" | "Downloading" | "Downloaded" | "Blocking" => {
            Some(Some(Position::Note(text.to_lowercase())))
        }
        _ => None,
    }
}

/// The text without control sequences (ECMA-48, 5.4).
fn without_escapes(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.split_once(|end: char| end.is_ascii_alphabetic()).map_or("", |(_, rest)| rest);
    }
    text
}

/// What a line says that apt writes to `APT::Status-Fd`: `dlstatus:1:20.5:Retrieving file 1 of 2`.
pub fn apt(line: &str) -> Option<Option<Position>> {
    let mut fields = line.split(':');
    if !matches!(fields.next(), Some("dlstatus" | "pmstatus")) {
        return Some(None);
    }
    let percent = fields.nth(1)?.parse::<f32>().ok()?;
    Some(Some(Position::Percent(percent.clamp(0.0, 100.0) as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_tells_how_far_it_is() {
        let of = |done, all, what: &str| Some(Some(Position::Of(done, all, what.to_owned())));
        let building = "    Building [=====>        ] 34/67: sluice-vpio, sluice-nic(build.rs)...";
        assert_eq!(cargo(building), of(34, 67, "sluice-vpio, sluice-nic(build.rs)..."));
        let coloured = "\x1b[1m\x1b[96m    Building\x1b[0m [>  ] 0/3: core\x1b[K";
        assert_eq!(cargo(coloured), of(0, 3, "core"));
        assert_eq!(cargo("    Building 1/2"), of(1, 2, ""), "a narrow terminal");
        assert_eq!(cargo("   Compiling core v0.0.0 (/usr/src)"), Some(None));
        assert_eq!(cargo("\x1b[K"), Some(None));
        let blocked = "    Blocking waiting for file lock on build directory";
        assert!(matches!(cargo(blocked), Some(Some(Position::Note(text))) if text.contains("file lock")));
    }

    #[test]
    fn what_a_compiler_says_is_for_people() {
        for line in [
            "error[E0425]: cannot find value `x` in this scope",
            " --> hypervisor/src/main.rs:1:1",
            "",
            "warning: unused",
            "Compiling is what it says",
            "    | Building",
        ] {
            assert_eq!(cargo(line), None, "{line:?}");
        }
    }

    #[test]
    fn apt_tells_how_far_it_is() {
        assert_eq!(
            apt("dlstatus:2:45.6719:Retrieving file 2 of 9 (3s remaining)"),
            Some(Some(Position::Percent(45)))
        );
        assert_eq!(apt("Get:1 http://example.org bookworm InRelease"), Some(None));
    }

    #[test]
    fn lines_end_as_terminals_end_them() {
        let mut seen = Vec::new();
        lines(&mut &b"one\rtwo\r\n\nthree"[..], |line| seen.push(line.to_owned()));
        assert_eq!(seen, ["one", "two", "", "", "three"]);
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let step = Step::begin("trying");
        let mut command = Command::new("sh");
        command.args(["-c", "echo dlstatus:1:50:x; echo no such package >&2; exit 100"]);
        let error = watch(&mut command, Stream::Out, &step, apt).unwrap_err().to_string();
        assert!(error.contains("exit status: 100") && error.ends_with(":\nno such package"), "{error}");
    }
}
