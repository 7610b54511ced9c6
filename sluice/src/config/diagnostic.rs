//! Complaints about a configuration, each with its place, the offending line and how to mend it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no such file, or it cannot be read.
    #[error("error: {}: {error}\n  help: name a configuration file; examples/ has some to start from", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is not the kind of file that a configuration is.
    #[error("error: {} is no configuration: {why}\n  help: a configuration is a text in TOML; examples/ has some to start from", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// Everything found wrong in it.
    #[error("{0}")]
    Wrong(Diagnostics),
}

/// One complaint.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Line in the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// How to mend it.
    pub help: Option<String>,
    /// Length of the marked text in characters.
    width: usize,
}

/// All complaints about one file, in the order of its lines.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    path: PathBuf,
    lines: Vec<String>,
    /// The complaints.
    pub list: Vec<Diagnostic>,
}

/// A configuration text under examination.
pub struct Source<'t> {
    /// Where the text came from.
    pub path: &'t Path,
    /// The text.
    pub text: &'t str,
    list: Vec<Diagnostic>,
}

impl<'t> Source<'t> {
    /// A text without complaints so far.
    pub fn new(path: &'t Path, text: &'t str) -> Self {
        Self { path, text, list: Vec::new() }
    }

    /// Notes a complaint about the bytes `span` of the text.
    pub fn complain(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        help: impl Into<Option<String>>,
    ) {
        let start = span.start.min(self.text.len());
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let end = span.end.clamp(start, line_end.max(start));
        self.list.push(Diagnostic {
            line: self.text[..start].matches('\n').count() + 1,
            column: self.text[line_start..start].chars().count() + 1,
            message: message.into(),
            help: help.into(),
            width: self.text[start..end].chars().count().max(1),
        });
    }

    /// Nothing was wrong so far.
    pub fn is_clean(&self) -> bool {
        self.list.is_empty()
    }

    /// Where the byte at `offset` stands, from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        self.text[..offset.min(self.text.len())].matches('\n').count() + 1
    }

    /// Ends the examination.
    pub fn finish(mut self) -> Result<(), ConfigError> {
        if self.list.is_empty() {
            return Ok(());
        }
        self.list.sort_by_key(|complaint| (complaint.line, complaint.column));
        Err(ConfigError::Wrong(Diagnostics {
            path: self.path.to_owned(),
            lines: self.text.lines().map(str::to_owned).collect(),
            list: self.list,
        }))
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for complaint in &self.list {
            let Diagnostic { line, column, message, help, width } = complaint;
            writeln!(f, "{}:{line}:{column}: error: {message}", self.path.display())?;
            if let Some(text) = self.lines.get(line - 1) {
                writeln!(f, "  {line:>4} | {text}")?;
                writeln!(f, "       | {}{}", " ".repeat(column - 1), "^".repeat(*width))?;
            }
            if let Some(help) = help {
                writeln!(f, "  help: {help}")?;
            }
        }
        let (count, plural) = (self.list.len(), if self.list.len() == 1 { "" } else { "s" });
        write!(f, "{}: {count} error{plural}", self.path.display())
    }
}
