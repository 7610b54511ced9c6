//! Names: of domains, devices, instances and scenarios. One rule for all, because names become parts of paths.

use sluice_abi::config::{MAX_NAME, is_name};
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;

/// 1 to 31 of a-z, 0-9 and '-', not '-' first.
///
/// Such a name is exactly one component of a path: it is never empty, `.` or `..`, has no `/` and no NUL, and a program
/// that gets it as an argument does not take it for an option. What becomes part of a path is parsed into this type where
/// it enters the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

/// The text is no name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no name; use 1 to 31 of a-z, 0-9 and '-', not '-' first")]
pub struct NameError(String);

impl Name {
    /// The name that a file gives: of its own name without the extension, letters are made small, and what no name can have
    /// becomes '-'. `My_Guests.toml` gives `my-guests`.
    ///
    /// # Errors
    /// Nothing is left.
    pub fn of_file(path: &Path) -> Result<Self, NameError> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut name = String::new();
        for character in stem.chars().map(|character| character.to_ascii_lowercase()) {
            if character.is_ascii_lowercase() || character.is_ascii_digit() {
                name.push(character);
            } else if !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
        }
        // All of it is ASCII.
        name.truncate(MAX_NAME);
        name.trim_end_matches('-').parse().map_err(|_| NameError(stem.into_owned()))
    }

    /// This name for the first, and for others this name with a number, shortened where it would be too long.
    pub fn numbered(&self, number: u32) -> Self {
        if number <= 1 {
            return self.clone();
        }
        let suffix = format!("-{number}");
        let kept = self.0.len().min(MAX_NAME - suffix.len());
        Self(format!("{}{suffix}", &self.0[..kept]))
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        if is_name(&text) { Ok(Self(text)) } else { Err(NameError(text)) }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<Path> for Name {
    fn as_ref(&self) -> &Path {
        self.0.as_ref()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, PathBuf};

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        let long = "a".repeat(MAX_NAME + 1);
        for text in [
            "",
            ".",
            "..",
            "../../etc",
            "/etc",
            "a/b",
            "a\0b",
            "a\x1b[2J",
            "a b",
            "-rf",
            "A",
            "ä",
            "a.b",
            &long,
        ] {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
        }
        for text in ["a", "0", "two-guests", "a-", &long[1..]] {
            assert_eq!(&*text.parse::<Name>().unwrap(), text);
        }
    }

    #[test]
    fn files_give_names_as_people_expect() {
        let name = |file: &str| Name::of_file(Path::new(file)).map(|name| name.to_string()).ok();
        assert_eq!(name("examples/two-guests.toml").as_deref(), Some("two-guests"));
        assert_eq!(name("../My_Guests (2).toml").as_deref(), Some("my-guests-2"));
        assert_eq!(name("v1.2.toml").as_deref(), Some("v1-2"));
        assert_eq!(name("..."), None);
        assert_eq!(name("日本.toml"), None);
        assert_eq!(name(".."), None);
    }

    #[test]
    fn numbers_fit_the_longest_name() {
        let long: Name = "b".repeat(MAX_NAME).parse().unwrap();
        assert_eq!(long.numbered(1), long);
        assert_eq!(long.numbered(12).len(), MAX_NAME);
        assert!(long.numbered(12).ends_with("b-12"));
    }

    proptest! {
        #[test]
        fn a_name_is_one_component_of_a_path(text in ".{0,40}", number in 0..1_000_000_u32) {
            let names = [text.parse::<Name>(), Name::of_file(Path::new(&text))];
            for name in names.into_iter().flatten().flat_map(|name| [name.numbered(number), name]) {
                let path = PathBuf::from("base").join(&name);
                prop_assert_eq!(path.parent(), Some(Path::new("base")));
                prop_assert_eq!(path.components().count(), 2);
                prop_assert!(matches!(path.components().next_back(), Some(Component::Normal(last)) if last == &*name));
                prop_assert!(name.parse::<Name>().is_ok());
            }
        }
    }
}
