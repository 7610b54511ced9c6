//! A file that a run writes at its end, and whose place is looked at before it begins.

use crate::output;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where a document goes.
pub enum Document {
    /// The standard output: the user wrote `-`.
    Output,
    /// A file; what is in it stays until the document is written.
    File {
        /// Its path.
        path: PathBuf,
        /// Open for writing.
        file: File,
        /// It was not there, and has nothing in it yet.
        fresh: bool,
    },
}

impl Document {
    /// Opens the place.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Output);
        }
        let fresh = !path.exists();
        let file = File::options().create(true).write(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self::File { path: path.to_owned(), file, fresh })
    }

    /// Whether it goes where the user reads.
    pub const fn is_output(&self) -> bool {
        matches!(self, Self::Output)
    }

    /// Writes the whole document.
    ///
    /// # Errors
    /// There is no room for it, or nobody who reads it.
    pub fn write(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Output => output::print(text),
            Self::File { path, file, fresh } => {
                *fresh = false;
                // A pipe or a terminal has no length.
                let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
                let emptied = if is_file { file.set_len(0) } else { Ok(()) };
                let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
                written.with_context(|| format!("could not write {}", path.display()))
            }
        }
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        if let Self::File { path, fresh: true, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}
