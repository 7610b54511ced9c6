//! The last lines of a text that comes in pieces, from somebody who may be hostile.

/// The last `LINES` lines, each cut off at `WIDTH` characters. Only printable ASCII is kept: escape sequences (ECMA-48, 5.4) are left
/// out, other characters become `?`. It needs no allocator.
#[derive(Clone, Debug)]
pub struct Tail<const LINES: usize, const WIDTH: usize> {
    lines: [Line<WIDTH>; LINES],
    /// Index of the line that is being written.
    current: usize,
    /// Lines ended so far.
    ended: u64,
    writer: Writer,
}

#[derive(Clone, Copy, Debug)]
struct Line<const WIDTH: usize> {
    bytes: [u8; WIDTH],
    len: usize,
}

impl<const WIDTH: usize> Line<WIDTH> {
    const EMPTY: Self = Self { bytes: [0; WIDTH], len: 0 };

    fn text(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }
}

/// What came last, as far as the next byte depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Text,
    /// The line begins anew with the next character: progress bars end in a carriage return.
    Return,
    /// After ESC.
    Escape,
    /// In a control sequence, which a byte from `@` to `~` ends.
    Sequence,
}

impl<const LINES: usize, const WIDTH: usize> Tail<LINES, WIDTH> {
    /// No text yet.
    pub const fn new() -> Self {
        Self { lines: [Line::EMPTY; LINES], current: 0, ended: 0, writer: Writer::Text }
    }

    /// Takes more of the text. Returns true if a line ended.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let before = self.ended;
        bytes.iter().for_each(|byte| self.push_byte(*byte));
        self.ended != before
    }

    fn push_byte(&mut self, byte: u8) {
        const ESC: u8 = 0x1b;
        let writer = core::mem::replace(&mut self.writer, Writer::Text);
        self.writer = match (writer, byte) {
            (Writer::Escape, b'[') => Writer::Sequence,
            (Writer::Sequence, b' '..=b'?') => Writer::Sequence,
            (Writer::Escape | Writer::Sequence, b' '..=b'~') => Writer::Text,
            (_, ESC) => Writer::Escape,
            (_, b'\r') => Writer::Return,
            (_, b'\n') => {
                self.end_line();
                Writer::Text
            }
            (writer, _) => {
                if let Some(line) = self.lines.get_mut(self.current) {
                    if writer == Writer::Return {
                        *line = Line::EMPTY;
                    }
                    match byte {
                        b'\t' => line.push(b' '),
                        // Backspace and bell are common and mean nothing here.
                        0x07 | 0x08 => {}
                        b' '..=b'~' => line.push(byte),
                        _ => line.push(b'?'),
                    }
                }
                Writer::Text
            }
        };
    }

    fn end_line(&mut self) {
        self.ended += 1;
        self.current = (self.current + 1).checked_rem(LINES).unwrap_or(0);
        if let Some(line) = self.lines.get_mut(self.current) {
            *line = Line::EMPTY;
        }
    }
}

impl<const LINES: usize, const WIDTH: usize> Default for Tail<LINES, WIDTH> {
    fn default() -> Self {
        Self::new()
    }
}

/// Lines of a text, of which only the last are kept.
pub trait Lines {
    /// The line `back` lines before the one that is being written (0); `None` if it is not kept, or never was.
    fn line(&self, back: usize) -> Option<&str>;
}

impl<const LINES: usize, const WIDTH: usize> Lines for Tail<LINES, WIDTH> {
    fn line(&self, back: usize) -> Option<&str> {
        let there = back < LINES && back as u64 <= self.ended;
        let index = (self.current + LINES).checked_sub(back)?.checked_rem(LINES)?;
        self.lines.get(index).filter(|_| there).map(Line::text)
    }
}

/// The part of a line that goes into a row, and the rest: a line is broken at a space, a word only if it is longer than a row.
fn split(line: &str, columns: usize) -> (&str, &str) {
    let Some((head, rest)) = line.split_at_checked(columns.max(1)).filter(|(_, rest)| !rest.is_empty())
    else {
        return (line, "");
    };
    if let Some(rest) = rest.strip_prefix(' ') {
        return (head, rest);
    }
    match head.rsplit_once(' ') {
        Some((words, _)) if !words.trim().is_empty() => {
            (words, line.get(words.len() + 1..).unwrap_or_default())
        }
        _ => (head, rest),
    }
}

/// The rows that a line takes: at least one.
fn pieces(line: &str, columns: usize) -> impl Iterator<Item = &str> {
    let mut left = Some(line);
    core::iter::from_fn(move || {
        let (piece, rest) = split(left?, columns);
        left = Some(rest).filter(|rest| !rest.is_empty());
        Some(piece)
    })
}

/// Shows the end of a text on so many rows and columns: long lines go on in the next row. The line that is being written is shown
/// once there is something in it. It needs no allocator.
pub(crate) fn wrap(text: &dyn Lines, columns: usize, rows: usize, mut show: impl FnMut(usize, &str)) {
    let needed = |line: &str| pieces(line, columns).count();
    let newest = usize::from(text.line(0).is_none_or(str::is_empty));
    let mut used = 0;
    let mut oldest = newest;
    while let Some(line) = text.line(oldest)
        && used < rows
    {
        used += needed(line);
        oldest += 1;
    }
    // Rows of the oldest line that do not fit.
    let mut skip = used.saturating_sub(rows);
    let mut row = 0;
    for line in (newest..oldest).rev().filter_map(|back| text.line(back)) {
        let surplus = core::mem::take(&mut skip);
        for piece in pieces(line, columns).skip(surplus) {
            show(row, piece);
            row += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn lines(text: &[u8]) -> Vec<String> {
        let mut tail = Tail::<4, 8>::new();
        tail.push(text);
        let mut lines: Vec<String> = (0..).map_while(|back| tail.line(back)).map(String::from).collect();
        lines.reverse();
        lines
    }

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(lines(b""), [""]);
        assert_eq!(lines(b"a\nb"), ["a", "b"]);
        assert_eq!(lines(b"a\nb\nc\nd\ne\nf"), ["c", "d", "e", "f"]);
        assert_eq!(lines(b"123456789\r\nx\n"), ["12345678", "x", ""]);
    }

    #[test]
    fn a_carriage_return_writes_the_line_anew() {
        assert_eq!(lines(b"10 %\r20 %\r\nnext"), ["20 %", "next"]);
    }

    #[test]
    fn escape_sequences_and_other_characters_do_nothing() {
        assert_eq!(lines(b"\x1b[1;31mred\x1b[0m\x1b]0;t\x07!"), ["red0;t!"]);
        assert_eq!(lines(b"\x1b[2J\x9b\x00ok\x7f"), ["??ok?"]);
        assert_eq!(lines(b"\x1b\na\x1b[3\nb"), ["", "a", "b"]);
    }

    fn wrapped(text: &[u8], columns: usize, rows: usize) -> Vec<String> {
        let mut tail = Tail::<8, 8>::new();
        tail.push(text);
        let mut shown = Vec::new();
        wrap(&tail, columns, rows, |row, line| {
            assert_eq!(row, shown.len());
            shown.push(String::from(line));
        });
        shown
    }

    #[test]
    fn long_lines_go_on_in_the_next_row() {
        assert_eq!(wrapped(b"abcdefgh\nxy\n\nz", 3, 9), ["abc", "def", "gh", "xy", "", "z"]);
        assert_eq!(wrapped(b"abcdefgh\nxy\n\nz\n", 3, 5), ["def", "gh", "xy", "", "z"]);
        assert_eq!(wrapped(b"abcdefgh\nxy", 8, 1), ["xy"]);
        assert_eq!(wrapped(b"", 8, 4), [""; 0]);
        assert_eq!(wrapped(b"ab\ncd", 0, 2), ["c", "d"]);
        assert_eq!(wrapped(b"ab", 3, 0), [""; 0]);
    }

    #[test]
    fn rows_end_between_words() {
        let rows = |line, columns| pieces(line, columns).collect::<Vec<_>>();
        assert_eq!(rows("domain alice: powered-off", 13), ["domain alice:", "powered-off"]);
        assert_eq!(rows("domain alice: powered-off", 15), ["domain alice:", "powered-off"]);
        assert_eq!(rows("domain alice: powered-off", 8), ["domain", "alice:", "powered-", "off"]);
        assert_eq!(rows("    indented", 6), ["    in", "dented"]);
        assert_eq!(rows("six of", 6), ["six of"]);
    }

    proptest! {
        #[test]
        fn nothing_of_a_line_is_lost_but_spaces(line in "[a-c ]{0,40}", columns in 0_usize..12) {
            let rows: Vec<&str> = pieces(&line, columns).collect();
            prop_assert!(!rows.is_empty() && rows.iter().all(|row| row.len() <= columns.max(1)));
            let letters = |text: &str| text.replace(' ', "");
            prop_assert_eq!(letters(&rows.concat()), letters(&line));
        }

        #[test]
        fn whatever_comes_only_short_printable_lines_are_kept(text: Vec<u8>) {
            for line in lines(&text) {
                prop_assert!(line.len() <= 8 && line.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
        }

        #[test]
        fn pieces_do_not_matter(text: Vec<u8>, at: usize) {
            let (mut whole, mut pieces) = (Tail::<4, 8>::new(), Tail::<4, 8>::new());
            whole.push(&text);
            let (first, second) = text.split_at(at % (text.len() + 1));
            pieces.push(first);
            pieces.push(second);
            for back in 0..5 {
                prop_assert_eq!(whole.line(back), pieces.line(back));
            }
        }
    }
}
