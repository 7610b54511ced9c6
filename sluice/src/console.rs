//! What a guest writes on its console, as lines and as a file, within bounds: a guest that floods costs neither memory nor
//! disk without end.

use crate::printable::GuestText;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The longest line that is kept, in bytes.
pub const LONGEST_LINE: usize = 4096;

/// The largest file of a console, in bytes, less the line that says so.
pub const LARGEST_FILE: u64 = 16 << 20;

/// Cuts bytes into lines. Of a line that is too long the beginning is kept, with how much is missing.
#[derive(Default)]
pub struct LineBuffer {
    line: Vec<u8>,
    missing: u64,
}

impl LineBuffer {
    /// Takes the next bytes; returns the lines that they end, without carriage returns.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<GuestText> {
        let mut lines = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => lines.push(self.take()),
                b'\r' => {}
                _ if self.line.len() < LONGEST_LINE => self.line.push(*byte),
                _ => self.missing += 1,
            }
        }
        lines
    }

    /// The last line, if it has no end.
    pub fn finish(&mut self) -> Option<GuestText> {
        (!self.line.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> GuestText {
        let (mut line, missing) = (std::mem::take(&mut self.line), std::mem::take(&mut self.missing));
        if missing > 0 {
            line.extend_from_slice(format!(" [... {missing} bytes more]").as_bytes());
        }
        GuestText::from_bytes(&line)
    }
}

/// A file that takes what comes up to a limit, then says so and takes nothing more.
pub struct BoundedFile {
    file: File,
    limit: u64,
    left: u64,
    full: bool,
}

impl BoundedFile {
    /// Creates the file, or empties it.
    pub fn create(path: &Path, limit: u64) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, limit, left: limit, full: false })
    }

    /// Appends what there is room for. After an error it takes nothing more, and is silent.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.append(bytes);
        if written.is_err() {
            (self.left, self.full) = (0, true);
        }
        written
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.file.write_all(&bytes[..room])?;
        self.left -= room as u64;
        if room < bytes.len() && !self.full {
            self.full = true;
            writeln!(self.file, "\n[sluice: what follows the first {} bytes is not kept]", self.limit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_without_end_is_cut() {
        let mut buffer = LineBuffer::default();
        for _ in 0..1000 {
            assert!(buffer.push(&[b'x'; 1000]).is_empty());
            assert!(buffer.line.len() <= LONGEST_LINE);
        }
        let lines = buffer.push(b"\nnext\r\nrest");
        assert_eq!(lines[0].raw(), format!("{} [... 995904 bytes more]", "x".repeat(LONGEST_LINE)));
        assert_eq!(lines[1].raw(), "next", "the next one is whole again");
        assert_eq!(buffer.finish().unwrap().raw(), "rest");
        assert_eq!(buffer.finish(), None);
    }

    #[test]
    fn a_file_ends_with_a_line_that_says_so() {
        let path = std::env::temp_dir().join(format!("sluice-console-{}", std::process::id()));
        let mut file = BoundedFile::create(&path, 10).unwrap();
        for part in ["1234567", "890", "", "no more", "and no more"] {
            file.write(part.as_bytes()).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "1234567890\n[sluice: what follows the first 10 bytes is not kept]\n");
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_bytes_arrive(text in "[a-c\r\n]{0,200}", size in 1..20_usize) {
            let mut buffer = LineBuffer::default();
            let mut lines: Vec<GuestText> =
                text.as_bytes().chunks(size).flat_map(|chunk| buffer.push(chunk)).collect();
            lines.extend(buffer.finish());
            let expected = text.replace('\r', "");
            let expected: Vec<&str> = expected.split_terminator('\n').collect();
            prop_assert_eq!(lines.iter().map(GuestText::raw).collect::<Vec<_>>(), expected);
        }
    }
}
