//! Finds the scenarios: one for each file, or one for each row of a file's `[[matrix]]`.
//!
//! A row is a table of values. Wherever the rest of the file says `@KEY@`, the value stands instead: as it is if nothing
//! else is in the string, as text within other text. Files that would differ in a few words are one file so.

use super::format::Scenario;
use crate::name::Name;
use crate::workspace::root;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A scenario, its name and where it stands.
pub struct Named {
    /// The file's name, and that of the row of its matrix.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What it says.
    pub scenario: Scenario,
}

impl Named {
    /// The names of the tests that it is: its own and those of its cases.
    pub fn tests(&self) -> impl Iterator<Item = String> {
        let cases = self.scenario.case.iter().map(|case| format!("{}::{}", self.name, case.name));
        std::iter::once(self.name.clone()).chain(cases)
    }
}

/// All scenarios, by name.
pub fn all() -> Result<Vec<Named>> {
    let directory = root().join("tests");
    let entries = std::fs::read_dir(&directory).with_context(|| format!("no {}", directory.display()))?;
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_scenario = path.extension().is_some_and(|extension| extension == "toml");
        // The other files are data of this command.
        if is_scenario && !["durations", "mutations"].contains(&&*Name::of_file(&path)?) {
            let text = std::fs::read_to_string(&path)?;
            found.extend(read(&path, &text).with_context(|| format!("{}", path.display()))?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let names: BTreeSet<&str> = found.iter().map(|named| named.name.as_str()).collect();
    if names.len() < found.len() {
        bail!("two scenarios have one name");
    }
    Ok(found)
}

/// The scenario with this name.
pub fn one(name: &str) -> Result<Named> {
    all()?.into_iter().find(|known| known.name == name).with_context(|| format!("no scenario '{name}'"))
}

fn read(path: &Path, text: &str) -> Result<Vec<Named>> {
    let mut table: Table = text.parse()?;
    let Some(matrix) = table.remove("matrix") else {
        // From the text, so that an error says where it is.
        return Ok(vec![Named {
            name: Name::of_file(path)?.to_string(),
            path: path.to_owned(),
            scenario: toml::from_str(text)?,
        }]);
    };
    let rows = matrix.as_array().context("'matrix' is a list of tables")?;
    rows.iter()
        .map(|row| {
            let row = row.as_table().context("'matrix' is a list of tables")?;
            let name =
                row.get("name").and_then(Value::as_str).context("a row of the matrix has no 'name'")?;
            let table = filled_in(&table, row).with_context(|| format!("row '{name}' of the matrix"))?;
            let name = format!("{}-{name}", Name::of_file(path)?);
            Ok(Named { name, path: path.to_owned(), scenario: table.try_into()? })
        })
        .collect()
}

/// The table with a row's values in it. `extended` is a key of the scenario itself.
fn filled_in(table: &Table, row: &Table) -> Result<Table> {
    let mut used = BTreeSet::from(["name".to_owned(), "extended".to_owned()]);
    let mut filled = match fill(&Value::Table(table.clone()), row, &mut used)? {
        Value::Table(filled) => filled,
        other => bail!("{other} is no table"),
    };
    if let Some(extended) = row.get("extended") {
        filled.insert("extended".to_owned(), extended.clone());
    }
    match row.keys().find(|key| !used.contains(*key)) {
        Some(unused) => bail!("nothing says '@{unused}@'"),
        None => Ok(filled),
    }
}

fn fill(value: &Value, row: &Table, used: &mut BTreeSet<String>) -> Result<Value> {
    Ok(match value {
        Value::String(text) => fill_text(text, row, used)?,
        Value::Array(list) => {
            Value::Array(list.iter().map(|item| fill(item, row, used)).collect::<Result<_>>()?)
        }
        Value::Table(table) => {
            let mut filled = Table::new();
            for (key, value) in table {
                let key = match fill_text(key, row, used)? {
                    Value::String(key) => key,
                    other => bail!("{other} is no key"),
                };
                filled.insert(key, fill(value, row, used)?);
            }
            Value::Table(filled)
        }
        other => other.clone(),
    })
}

fn fill_text(text: &str, row: &Table, used: &mut BTreeSet<String>) -> Result<Value> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('@') {
        let is_key =
            |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let Some((key, after)) = after.split_once('@').filter(|(key, _)| is_key(key)) else {
            // An address such as 0000@00 stays what it is.
            filled += before;
            filled.push('@');
            rest = after;
            continue;
        };
        let value = row.get(key).with_context(|| format!("no '{key}' for '@{key}@'"))?;
        used.insert(key.to_owned());
        if before.is_empty() && after.is_empty() && filled.is_empty() {
            return Ok(value.clone());
        }
        filled += before;
        match value {
            Value::String(text) => filled += text,
            Value::Integer(number) => filled += &number.to_string(),
            other => bail!("{other} does not fit into text"),
        }
        rest = after;
    }
    Ok(Value::String(filled + rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::scenario::execute::configuration;
    use crate::scenario::format::Expectations;
    use regex_lite::Regex;

    fn names(text: &str) -> Result<Vec<String>> {
        let found = read(Path::new("tests/cards.toml"), text)?;
        Ok(found.into_iter().map(|named| format!("{}: {}", named.name, named.scenario.about)).collect())
    }

    #[test]
    fn a_row_of_the_matrix_is_a_scenario() {
        let text = "about = 'A @card@ on @n@'\nconfig = 'x'\ntimeout = '@time@'\nexpect = { domain = { a = { \
                    results = { 'dma.@card@' = '[0-9]{5}' } } } }\n\
                    [[matrix]]\nname = 'a'\ncard = 'e1000'\nn = 1\ntime = 5.0\n\
                    [[matrix]]\nname = 'b'\ncard = 'rtl8139'\nn = 2\ntime = 6.0\nextended = true\n";
        assert_eq!(names(text).unwrap(), ["cards-a: A e1000 on 1", "cards-b: A rtl8139 on 2"]);
        let found = read(Path::new("tests/cards.toml"), text).unwrap();
        assert_eq!(found[1].scenario.timeout, 6.0);
        assert!(!found[0].scenario.extended && found[1].scenario.extended);
        assert!(found[1].scenario.expect.these.domain["a"].results.contains_key("dma.rtl8139"));
    }

    #[test]
    fn a_key_that_is_not_there_or_is_not_used_is_an_error() {
        let about = |about: &str, row: &str| {
            names(&format!("about = '{about}'\nconfig = 'x'\nexpect = {{}}\n[[matrix]]\nname = 'a'\n{row}\n"))
        };
        assert!(about("@card@", "card = 'e1000'").is_ok());
        assert!(about("@card@", "").is_err());
        assert!(about("a card", "card = 'e1000'").is_err());
        assert_eq!(about("a@b", "").unwrap(), ["cards-a: a@b"]);
    }

    #[test]
    fn all_scenarios_are_readable() {
        for Named { name, path, scenario } in all().unwrap() {
            let (file, text) = configuration(&path, &scenario).unwrap();
            let loaded = config::load_text(&file, &text);
            assert_eq!(loaded.is_err(), scenario.expect.refused.is_some(), "{name}: {loaded:?}");
            let cases = scenario.case.iter().map(|case| &case.expect);
            for expect in cases.chain([&scenario.expect.these]) {
                patterns(expect).for_each(|pattern| drop(Regex::new(pattern).unwrap()));
                let known = loaded.as_ref().map(|setup| setup.domains.as_slice()).unwrap_or_default();
                for domain in expect.domain.keys() {
                    assert!(known.iter().any(|known| **known.name.get_ref() == **domain), "{name}: {domain}");
                }
            }
        }
    }

    fn patterns(expect: &Expectations) -> impl Iterator<Item = &String> {
        let domains = expect.domain.values().flat_map(|wanted| {
            wanted
                .console
                .iter()
                .chain(&wanted.not_console)
                .chain(&wanted.kernel_faults)
                .chain(wanted.results.values())
        });
        expect.log.iter().chain(&expect.not_log).chain(domains)
    }

    #[test]
    fn cases_have_names_of_their_own() {
        for named in all().unwrap() {
            let tests: Vec<String> = named.tests().collect();
            assert_eq!(tests.iter().collect::<BTreeSet<_>>().len(), tests.len(), "{}", named.name);
            assert!(named.scenario.case.iter().all(|case| case.expect.count() > 0), "{}", named.name);
        }
    }
}
