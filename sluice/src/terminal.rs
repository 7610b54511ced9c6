//! What of a guest's console reaches the operator's terminal.
//!
//! A shell in a guest edits its line with a few control sequences; they pass. All others could change the terminal's title,
//! clipboard or keys, or make it answer as if the operator had typed: they do not.
//! Source: ECMA-48, 5th edition, 5.4 (control sequences), 8.3; xterm, ctlseqs.

use crate::printable::is_plain;

/// The longest control sequence that is looked at, in bytes.
const LONGEST_SEQUENCE: usize = 32;

/// Final bytes of control sequences that pass: moves of the cursor (A-H, d, f), erasing (J, K, X), inserting and deleting
/// (@, L, M, P), colours (m).
const PASSING: &[u8] = b"@ABCDEFGHJKLMPXdfm";

/// Final bytes of those that are left out unseen, as shells send them with each prompt: requests for an answer (c, n) and
/// modes (h, l).
const LEFT_OUT: &[u8] = b"chln";

/// Ends all attributes that a guest may have left behind.
pub const RESET: &[u8] = b"\x1b[m";

/// Takes what a guest writes and gives what may be written to a terminal.
#[derive(Default)]
pub struct Filter {
    /// The beginning of a character or a control sequence.
    pending: Vec<u8>,
}

/// What stands at the beginning of the bytes.
enum Piece {
    /// More must come before it can be told.
    Incomplete,
    /// This many bytes pass.
    Passes(usize),
    /// This many are left out.
    LeftOut(usize),
    /// A character that is shown escaped, of this many bytes.
    Character(char, usize),
    /// A byte that is not UTF-8.
    Stray(u8),
}

impl Filter {
    /// Filters the next bytes of a console.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        let mut output = Vec::with_capacity(self.pending.len());
        let mut rest = &self.pending[..];
        while !rest.is_empty() {
            let taken = match piece(rest) {
                Piece::Incomplete => break,
                Piece::Passes(length) => {
                    output.extend_from_slice(&rest[..length]);
                    length
                }
                Piece::LeftOut(length) => length,
                Piece::Character(character, length) => {
                    output.extend_from_slice(crate::printable::Printable(character).to_string().as_bytes());
                    length
                }
                Piece::Stray(byte) => {
                    output.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
                    1
                }
            };
            rest = &rest[taken..];
        }
        self.pending = rest.to_vec();
        output
    }
}

fn piece(bytes: &[u8]) -> Piece {
    match bytes {
        [0x1b] => Piece::Incomplete,
        [0x1b, b'[', sequence @ ..] => control_sequence(sequence),
        // Line editing: bell, backspace, tab, line feed, carriage return.
        [0x07..=0x0a | 0x0d, ..] => Piece::Passes(1),
        _ => character(bytes),
    }
}

/// A control sequence from what follows `ESC [`: parameters, intermediate bytes, a final byte.
fn control_sequence(sequence: &[u8]) -> Piece {
    let Some(end) = sequence.iter().position(|byte| !(0x20..=0x3f).contains(byte)) else {
        let wait = sequence.len() < LONGEST_SEQUENCE;
        return if wait { Piece::Incomplete } else { Piece::Character('\x1b', 1) };
    };
    let numbers = sequence[..end].iter().all(|byte| byte.is_ascii_digit() || *byte == b';');
    match sequence[end] {
        _ if end >= LONGEST_SEQUENCE => Piece::Character('\x1b', 1),
        last if numbers && PASSING.contains(&last) => Piece::Passes(end + 3),
        last if LEFT_OUT.contains(&last) => Piece::LeftOut(end + 3),
        _ => Piece::Character('\x1b', 1),
    }
}

fn character(bytes: &[u8]) -> Piece {
    let first = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(first) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(&first[..error.valid_up_to()]).unwrap_or_default()
        }
        // The last character may go on in the next bytes.
        Err(error) if error.error_len().is_none() => return Piece::Incomplete,
        Err(_) => "",
    };
    match valid.chars().next() {
        Some(character) if is_plain(character) => Piece::Passes(character.len_utf8()),
        Some(character) => Piece::Character(character, character.len_utf8()),
        None => Piece::Stray(bytes[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filtered(text: &str) -> String {
        String::from_utf8(Filter::default().push(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_shell_can_edit_its_line() {
        for text in [
            "~ # ls\r\n\x1b[1;34mbin\x1b[m  \x1b[J",
            "a\x08 \x08\x07\t",
            "\x1b[3D\x1b[K\x1b[1@x\x1b[2P",
            "Zürich 日本",
        ] {
            assert_eq!(filtered(text), text);
        }
        assert_eq!(filtered("# \x1b[6n\x1b[?2004h\x1b[?25l$"), "# $");
    }

    #[test]
    fn nothing_else_steers_the_terminal() {
        for (text, shown) in [
            ("\x1b]0;title\x07", "\\x1b]0;title\x07"),
            ("\x1b]52;c;cm0=\x1b\\", "\\x1b]52;c;cm0=\\x1b\\"),
            ("\x1bP1$r\x1b\\", "\\x1bP1$r\\x1b\\"),
            ("\x1bc", "\\x1bc"),
            ("\x1b(0\x0e", "\\x1b(0\\x0e"),
            ("\x1b[21t", "\\x1b[21t"),
            ("\x1b[>1m", "\\x1b[>1m"),
            ("\x1b[1 q", "\\x1b[1 q"),
            ("\x1b[\x1b[2J", "\\x1b[\x1b[2J"),
            ("\u{9b}2J\u{202e}", "\\x9b2J\\u{202e}"),
        ] {
            assert_eq!(filtered(text), shown, "{text:?}");
        }
        assert_eq!(Filter::default().push(b"\x9b2J\xff"), b"\\x9b2J\\xff");
        let long = format!("\x1b[{}m", "1;".repeat(40));
        assert_eq!(filtered(&long), long.replace('\x1b', "\\x1b"));
    }

    /// Bytes of which many are the beginnings of something.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            Just(0x1b),
            Just(b'['),
            Just(b'm'),
            Just(b';'),
            Just(0xc2),
            Just(0x9b),
            Just(b']'),
            b'0'..=b'9'
        ];
        proptest::collection::vec(byte, 0..120)
    }

    proptest! {
        #[test]
        fn only_listed_sequences_come_through(bytes in hostile()) {
            let text = String::from_utf8(Filter::default().push(&bytes)).unwrap();
            for (index, part) in text.split('\x1b').enumerate() {
                if index > 0 {
                    let part = part.strip_prefix('[').expect("a control sequence");
                    let end = part.find(|c: char| !c.is_ascii_digit() && c != ';').expect("a final byte");
                    prop_assert!(PASSING.contains(&part.as_bytes()[end]), "{:?}", part);
                }
                prop_assert!(part.chars().all(|c| is_plain(c) || matches!(c, '\x07' | '\x08' | '\n' | '\r')));
            }
        }

        #[test]
        fn it_does_not_matter_how_bytes_arrive(bytes in hostile(), cuts in proptest::collection::vec(1..8_usize, 1..8)) {
            let (mut filter, mut output, mut rest) = (Filter::default(), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                output.extend(filter.push(now));
                prop_assert!(filter.pending.len() <= LONGEST_SEQUENCE + 2);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(output, Filter::default().push(&bytes));
        }
    }
}
