//! Text for people: what could steer a terminal is shown escaped.
//!
//! A guest chooses the bytes on its console, and some of them come out among the operator's own: results, reasons, lines of
//! the hypervisor's log. Such words are [`GuestText`], which prints itself escaped. Whatever else is printed goes
//! through [`Lines`] at the end, so that nothing that is read from a file or another program gets past.

use std::fmt::{self, Display, Write};

/// A character that a terminal shows and nothing more: no control character (C0 but for the tab, DEL, C1), none that turns
/// the direction of the text, separates lines or is not seen.
pub fn is_plain(character: char) -> bool {
    match character {
        '\t' => true,
        // Unicode's general categories Cc, Cf, Zl and Zp (UnicodeData.txt, 15.0), and the tags, assigned or not.
        '\u{ad}'
        | '\u{600}'..='\u{605}'
        | '\u{61c}'
        | '\u{6dd}'
        | '\u{70f}'
        | '\u{890}'..='\u{891}'
        | '\u{8e2}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{110bd}'
        | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e007f}' => false,
        other => !other.is_control(),
    }
}

/// Writes what passes as it is and the rest as `\x1b` or `\u{202e}`.
struct Escaper<'f, 'g> {
    to: &'f mut fmt::Formatter<'g>,
    passes: fn(char) -> bool,
}

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, found)) = rest.char_indices().find(|(_, character)| !(self.passes)(*character)) {
            self.to.write_str(&rest[..at])?;
            match u32::from(found) {
                code @ 0..=0xff => write!(self.to, "\\x{code:02x}")?,
                code => write!(self.to, "\\u{{{code:x}}}")?,
            }
            rest = &rest[at + found.len_utf8()..];
        }
        self.to.write_str(rest)
    }
}

/// Prints a value in one line, and nothing but plain characters.
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper { to: f, passes: is_plain }, "{}", self.0)
    }
}

/// Prints a value of several lines; what is not plain is escaped but for the ends of lines.
pub struct Lines<T>(pub T);

impl<T: Display> Display for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passes = |character| character == '\n' || is_plain(character);
        write!(Escaper { to: f, passes }, "{}", self.0)
    }
}

/// Words of a guest. They are printed escaped, in one line; [`GuestText::raw`] is for those who compare, parse or store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestText(String);

impl GuestText {
    /// Text from its bytes; what is not UTF-8 becomes U+FFFD.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(bytes).into_owned())
    }

    /// As the guest wrote it: never for a terminal.
    pub fn raw(&self) -> &str {
        &self.0
    }
}

impl From<&str> for GuestText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl PartialEq<str> for GuestText {
    fn eq(&self, text: &str) -> bool {
        self.0 == text
    }
}

impl PartialEq<&str> for GuestText {
    fn eq(&self, text: &&str) -> bool {
        self.0 == *text
    }
}

impl Display for GuestText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

/// A JSON document as text. It says exactly what the value does; characters that are not plain are written as JSON's own
/// escapes, also those that JSON lets pass, because people look at such files on terminals.
pub fn json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?) + "\n")
}

/// The same in one line, of which several can follow each other.
pub fn json_line(value: &impl serde::Serialize) -> serde_json::Result<String> {
    Ok(escaped(&serde_json::to_string(value)?) + "\n")
}

fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || is_plain(character) {
            text.push(character);
        } else {
            // Outside of strings JSON has nothing that is not plain.
            for unit in character.encode_utf16(&mut [0; 2]) {
                text += &format!("\\u{unit:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_steers_a_terminal_is_shown() {
        let text = GuestText::from("\x1b]0;pwned\x07 \x1b[2J\u{9b}31m \u{202e}ab\u{2066} \x7f\r\n\tend");
        assert_eq!(
            text.to_string(),
            "\\x1b]0;pwned\\x07 \\x1b[2J\\x9b31m \\u{202e}ab\\u{2066} \\x7f\\x0d\\x0a\tend"
        );
        assert_eq!(Lines("a\nb\x1b").to_string(), "a\nb\\x1b");
        assert_eq!(Printable("Zürich 日本 C:\\x").to_string(), "Zürich 日本 C:\\x");
    }

    #[test]
    fn json_says_the_same() {
        let value = serde_json::json!({ "k\u{9b}": "\x1b[2J \u{202e}\u{e0041}\u{7f} \"日\n" });
        let text = json(&value).unwrap();
        assert!(text.chars().all(|character| character == '\n' || is_plain(character)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        let line = json_line(&value).unwrap();
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }

    proptest! {
        #[test]
        fn nothing_but_plain_text_is_printed(text in any::<String>()) {
            let shown = GuestText::from(text.as_str()).to_string();
            prop_assert!(shown.chars().all(is_plain));
            prop_assert_eq!(GuestText::from(shown.as_str()).to_string(), shown.clone(), "it stays as it is");
            if text.chars().all(is_plain) {
                prop_assert_eq!(shown, text);
            }
        }

        #[test]
        fn bytes_of_any_kind_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let shown = Printable(GuestText::from_bytes(&bytes).raw()).to_string();
            prop_assert!(shown.bytes().all(|byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f)));
            let c1 = '\u{80}'..='\u{9f}';
            prop_assert!(!shown.contains(|character: char| c1.contains(&character)));
        }

        #[test]
        fn lines_stay_lines(text in any::<String>()) {
            let shown = Lines(&text).to_string();
            prop_assert_eq!(shown.matches('\n').count(), text.matches('\n').count());
            prop_assert!(shown.chars().all(|character| character == '\n' || is_plain(character)));
        }

        #[test]
        fn json_is_faithful(text in any::<String>()) {
            let value = serde_json::Value::String(text);
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&json(&value).unwrap()).unwrap(), value);
        }
    }
}
