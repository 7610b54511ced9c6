//! Words of LLVM's textual intermediate code (LLVM Language Reference Manual, "Identifiers" and "Lexical").

use crate::Error;

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// `%name`: of a function, or a type.
    Local(String),
    /// `@name`.
    Global(String),
    /// `name:` at the start of a line.
    Label(String),
    /// A keyword, a type's name, or anything else that begins with a letter.
    Word(String),
    /// A whole number.
    Number(i128),
    /// `"text"` or `c"text"`.
    Text(Vec<u8>),
    /// Punctuation.
    Mark(char),
    /// `!3`, `#4`, `...` and what else nobody asks for.
    Rest,
    /// The end of a line.
    End,
}

const fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'$' | b'.' | b'_')
}

/// The words of a whole file.
pub fn tokens(text: &str) -> Result<Vec<Token>, Error> {
    let mut found = Vec::with_capacity(text.len() / 6);
    for (number, line) in text.lines().enumerate() {
        // Metadata and attributes say nothing that matters here.
        if !line.starts_with('!') && !line.starts_with("attributes") {
            self::line(line.as_bytes(), &mut found)
                .ok_or_else(|| Error::Word { line: number + 1, text: line.chars().take(60).collect() })?;
        }
        found.push(Token::End);
    }
    Ok(found)
}

fn line(bytes: &[u8], found: &mut Vec<Token>) -> Option<()> {
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b' ' | b'\t' => at += 1,
            b';' => return Some(()),
            b'%' | b'@' => {
                let name = if bytes.get(at + 1) == Some(&b'"') {
                    let (text, next) = quoted(bytes, at + 1)?;
                    at = next;
                    String::from_utf8_lossy(&text).into_owned()
                } else {
                    word(bytes, at + 1, &mut at)
                };
                found.push(if byte == b'%' { Token::Local(name) } else { Token::Global(name) });
            }
            b'"' => {
                let (text, next) = quoted(bytes, at)?;
                at = next;
                if bytes.get(at) == Some(&b':') {
                    at += 1;
                    found.push(Token::Label(String::from_utf8_lossy(&text).into_owned()));
                } else {
                    found.push(Token::Text(text));
                }
            }
            b'c' if bytes.get(at + 1) == Some(&b'"') => {
                let (text, next) = quoted(bytes, at + 1)?;
                at = next;
                found.push(Token::Text(text));
            }
            b'!' | b'#' => {
                at += 1;
                while bytes.get(at).is_some_and(|&byte| is_name(byte)) {
                    at += 1;
                }
                found.push(Token::Rest);
            }
            b'.' if bytes.get(at..at + 3) == Some(b"...") => {
                at += 3;
                found.push(Token::Rest);
            }
            b'-' | b'0'..=b'9' => {
                let begin = at;
                let name = word(bytes, at, &mut at);
                if bytes.get(at) == Some(&b':') {
                    at += 1;
                    found.push(Token::Label(name));
                } else {
                    found.push(number(&name));
                }
                debug_assert!(at > begin);
            }
            _ if is_name(byte) => {
                let name = word(bytes, at, &mut at);
                if bytes.get(at) == Some(&b':') && at == name.len() {
                    at += 1;
                    found.push(Token::Label(name));
                } else {
                    found.push(Token::Word(name));
                }
            }
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b'=' | b'*' | b':' | b'|'
            | b'^' => {
                at += 1;
                found.push(Token::Mark(char::from(byte)));
            }
            _ => return None,
        }
    }
    Some(())
}

fn word(bytes: &[u8], from: usize, at: &mut usize) -> String {
    let mut end = from;
    while bytes.get(end).is_some_and(|&byte| is_name(byte) || byte == b'+') {
        end += 1;
    }
    *at = end;
    String::from_utf8_lossy(bytes.get(from..end).unwrap_or_default()).into_owned()
}

/// Floating-point numbers are words of no meaning here.
fn number(text: &str) -> Token {
    text.parse().map_or(Token::Rest, Token::Number)
}

/// The bytes between the quotation marks at `from`, with `\xx` replaced, and where the rest begins.
fn quoted(bytes: &[u8], from: usize) -> Option<(Vec<u8>, usize)> {
    let mut text = Vec::new();
    let mut at = from + 1;
    loop {
        match *bytes.get(at)? {
            b'"' => return Some((text, at + 1)),
            b'\\' => {
                let digits = bytes.get(at + 1..at + 3);
                let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
                match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
                    Some(code) => {
                        text.push(code);
                        at += 3;
                    }
                    None => {
                        text.push(b'\\');
                        at += 2;
                    }
                }
            }
            byte => {
                text.push(byte);
                at += 1;
            }
        }
    }
}
