//! Typed access to a parsed TOML table: each key is taken once, what is left over is unknown.

use super::diagnostic::Source;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What a whole number can be read as.
pub trait Number: TryFrom<u64> + PartialOrd + Display {}

impl Number for u8 {}
impl Number for u16 {}

/// A table whose keys are taken one by one.
pub struct Walk<'a, 't> {
    table: &'a DeTable<'t>,
    /// Where the table stands.
    pub span: Range<usize>,
    /// What it is, for messages: "[domain.alice]".
    pub what: String,
    known: Vec<&'static str>,
}

impl<'a, 't> Walk<'a, 't> {
    /// Begins with a table.
    pub fn new(table: &'a DeTable<'t>, span: Range<usize>, what: impl Into<String>) -> Self {
        Self { table, span, what: what.into(), known: Vec::new() }
    }

    /// Any value.
    pub fn value(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'t>>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.get(key)
    }

    /// A string.
    pub fn string(&mut self, key: &'static str, source: &mut Source) -> Option<Spanned<String>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(Spanned::new(value.span(), text.clone().into_owned())),
            other => self.wrong_type(source, key, value.span(), "a string", other),
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str, source: &mut Source) -> Option<Spanned<bool>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(Spanned::new(value.span(), *flag)),
            other => self.wrong_type(source, key, value.span(), "true or false", other),
        }
    }

    /// A whole number in a range.
    pub fn number<T: Number>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
        source: &mut Source,
    ) -> Option<Spanned<T>> {
        let value = self.value(key)?;
        self.as_number(key, value, range, source)
    }

    /// A list of whole numbers.
    pub fn numbers(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u8>,
        source: &mut Source,
    ) -> Vec<Spanned<u8>> {
        self.list(key, source)
            .into_iter()
            .filter_map(|item| self.as_number(key, item, range.clone(), source))
            .collect()
    }

    /// A list of strings.
    pub fn strings(&mut self, key: &'static str, source: &mut Source) -> Vec<String> {
        let mut texts = Vec::new();
        for item in self.list(key, source) {
            match item.get_ref() {
                DeValue::String(text) => texts.push(text.clone().into_owned()),
                other => {
                    self.wrong_type::<()>(source, key, item.span(), "a list of strings", other);
                }
            }
        }
        texts
    }

    /// A list of anything.
    pub fn list(&mut self, key: &'static str, source: &mut Source) -> Vec<&'a Spanned<DeValue<'t>>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            other => self.wrong_type(source, key, value.span(), "a list: [...]", other).unwrap_or_default(),
        }
    }

    /// A table in this one; the sub-tables' names are the user's.
    pub fn named_tables(
        &mut self,
        key: &'static str,
        source: &mut Source,
    ) -> Vec<(Spanned<String>, Walk<'a, 't>)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Table(tables) = value.get_ref() else {
            let help = format!("write one table per {key}: [{key}.name]");
            source.complain(value.span(), format!("'{key}' must be a table of named tables"), help);
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, table) in tables {
            let what = format!("[{key}.{}]", name.get_ref());
            match table.get_ref() {
                DeValue::Table(inner) => {
                    let name = Spanned::new(name.span(), name.get_ref().clone().into_owned());
                    found.push((name, Walk::new(inner, table.span(), what)));
                }
                _ => source.complain(
                    name.span(),
                    format!("{what} must be a table"),
                    format!("write [{key}.name] on a line of its own, and its keys below"),
                ),
            }
        }
        found.sort_by_key(|(name, _)| name.span().start);
        found
    }

    /// A single table in this one.
    pub fn table(&mut self, key: &'static str, source: &mut Source) -> Option<Walk<'a, 't>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Walk::new(table, value.span(), format!("[{key}]"))),
            other => self.wrong_type(source, key, value.span(), "a table", other),
        }
    }

    /// Complains about a missing key.
    pub fn missing(&self, source: &mut Source, key: &str, example: &str) {
        source.complain(self.span.clone(), format!("{} lacks '{key}'", self.what), format!("add: {example}"));
    }

    /// Complains about every key that nobody took.
    pub fn finish(self, source: &mut Source) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !self.known.contains(&name) {
                let message = format!("unknown key '{name}' in {}", self.what);
                source.complain(key.span(), message, suggestion(name, &self.known));
            }
        }
    }

    fn as_number<T: Number>(
        &self,
        key: &str,
        value: &Spanned<DeValue>,
        range: RangeInclusive<T>,
        source: &mut Source,
    ) -> Option<Spanned<T>> {
        let DeValue::Integer(integer) = value.get_ref() else {
            return self.wrong_type(source, key, value.span(), "a whole number", value.get_ref());
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        match number.and_then(|number| T::try_from(number).ok()).filter(|number| range.contains(number)) {
            Some(number) => Some(Spanned::new(value.span(), number)),
            None => {
                let message = format!("'{key}' is {integer}, out of range");
                source.complain(value.span(), message, format!("use {} to {}", range.start(), range.end()));
                None
            }
        }
    }

    fn wrong_type<T>(
        &self,
        source: &mut Source,
        key: &str,
        span: Range<usize>,
        want: &str,
        got: &DeValue,
    ) -> Option<T> {
        source.complain(span, format!("'{key}' in {} must be {want}, not {}", self.what, kind(got)), None);
        None
    }
}

/// What a value is, in words.
pub fn kind(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// "did you mean ..." or the list of what is known.
pub fn suggestion<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    let nearest = known.iter().map(|key| (strsim::levenshtein(name, key.as_ref()), key.as_ref())).min();
    match nearest {
        Some((away, key)) if away <= 1 + name.len() / 4 => format!("did you mean '{key}'?"),
        Some(_) => {
            let all: Vec<String> = known.iter().map(|key| format!("'{}'", key.as_ref())).collect();
            format!("known here: {}", all.join(", "))
        }
        None => "remove it".to_owned(),
    }
}
