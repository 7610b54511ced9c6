//! A tree of Rust sources and the imports between its files, read as text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A file, by its path from the root of its tree.
type File = String;

/// The sources of one crate.
pub struct Tree {
    /// By file: the paths it names, each as segments from the root of the crate.
    paths: BTreeMap<File, BTreeSet<Vec<String>>>,
    /// By module path: its file.
    modules: BTreeMap<Vec<String>, File>,
}

impl Tree {
    /// Reads all files below `root`, which is a crate's `src`.
    pub fn read(root: &Path) -> Self {
        let mut texts = BTreeMap::new();
        collect(root, Path::new(""), &mut texts);
        Self::from_texts(&texts)
    }

    /// The same of texts by file.
    fn from_texts(texts: &BTreeMap<File, String>) -> Self {
        let modules: BTreeMap<Vec<String>, File> =
            texts.keys().map(|file| (module_of(file), file.clone())).collect();
        let paths = texts
            .iter()
            .map(|(file, text)| (file.clone(), named_paths(&module_of(file), &plain(text), &modules)))
            .collect();
        Self { paths, modules }
    }

    /// Who imports whom, and by which path.
    pub fn edges(&self) -> impl Iterator<Item = (&str, &str, String)> {
        self.paths.iter().flat_map(move |(from, paths)| {
            paths.iter().filter_map(move |path| {
                let to = self.file_of(path)?;
                (to != from).then(|| (from.as_str(), to, path.join("::")))
            })
        })
    }

    /// The same by file alone, but for a front's imports of what it is made of.
    pub fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to, _) in self.edges().filter(|(from, to, _)| !is_part_of(to, from)) {
            imports.entry(from).or_default().insert(to);
        }
        imports
    }

    /// The file of the longest part of a path that is a module.
    fn file_of(&self, path: &[String]) -> Option<&str> {
        (0..=path.len()).rev().find_map(|len| self.modules.get(&path[..len])).map(String::as_str)
    }
}

fn collect(root: &Path, below: &Path, texts: &mut BTreeMap<File, String>) {
    for entry in std::fs::read_dir(root.join(below)).expect("a folder of sources").flatten() {
        let path = below.join(entry.file_name());
        let name = path.to_string_lossy().into_owned();
        if entry.path().is_dir() {
            if !name.ends_with("tests") {
                collect(root, &path, texts);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            texts.insert(name, std::fs::read_to_string(entry.path()).expect("a source"));
        }
    }
}

/// The module that a file is, as segments from the root of the crate.
fn module_of(file: &str) -> Vec<String> {
    let mut segments: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let is_root = segments.len() == 1 && ["lib", "main"].contains(&segments[0].as_str());
    if is_root || segments.last().is_some_and(|last| last == "mod") {
        segments.pop();
    }
    segments
}

/// Whether a file is below the module that another one is.
fn is_part_of(file: &str, front: &str) -> bool {
    module_of(file).starts_with(&module_of(front))
}

/// The text without comments, strings and the tests, which stand last in our files.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.split_once("\n#[cfg(test)]\nmod tests {").map_or(text, |(before, _)| before);
    while let Some(at) = rest.find(['/', '"', '\'']) {
        let (before, here) = rest.split_at(at);
        out += before;
        rest = if here.starts_with("//") {
            here.find('\n').map_or("", |end| &here[end..])
        } else if let Some(string) = here.strip_prefix('"') {
            end_of_string(string)
        } else {
            // A character, of which only these matter here; or a lifetime, or a division.
            let quoted =
                ["'\"'", "'\\''", "'\\\"'", "'/'"].into_iter().find(|quoted| here.starts_with(quoted));
            out.push(' ');
            &here[quoted.map_or(1, str::len)..]
        };
    }
    out + rest
}

fn end_of_string(text: &str) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

/// Every path in a text that begins in this crate.
fn named_paths(
    module: &[String],
    text: &str,
    modules: &BTreeMap<Vec<String>, File>,
) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut tokens = Tokens { rest: text };
    let mut within = false;
    while let Some(token) = tokens.next() {
        let child = || [module, &[token.to_owned()]].concat();
        let is_child = || tokens.rest.starts_with("::") && modules.contains_key(&child());
        let starts = !within && (["crate", "super", "self"].contains(&token) || is_child());
        within = token == "::" || token == "mod";
        if starts && tokens.rest.starts_with("::") {
            let base = match token {
                "crate" => Vec::new(),
                "super" => module[..module.len().saturating_sub(1)].to_vec(),
                "self" => module.to_vec(),
                _ => child(),
            };
            tokens.next();
            tokens.tree(base, &mut found);
        }
    }
    found
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// The next name, `::`, or other character.
    fn next(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let name = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let first = text.chars().next()?;
        let len = if name > 0 {
            name
        } else if text.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, rest) = text.split_at(len);
        self.rest = rest;
        Some(token)
    }

    fn skip_over(&mut self, token: &str) -> bool {
        let skipped = self.rest.trim_start().strip_prefix(token);
        self.rest = skipped.unwrap_or(self.rest);
        skipped.is_some()
    }

    /// Reads what follows `base::`: a name and perhaps more, or several in braces.
    fn tree(&mut self, base: Vec<String>, found: &mut BTreeSet<Vec<String>>) {
        match self.next() {
            Some("{") => {
                while !self.skip_over("}") && !self.rest.trim_start().is_empty() {
                    self.tree(base.clone(), found);
                    if self.skip_over("as ") {
                        self.next();
                    }
                    self.skip_over(",");
                }
            }
            Some("self") => drop(found.insert(base)),
            Some("super") => {
                let above = base[..base.len().saturating_sub(1)].to_vec();
                self.skip_over("::");
                self.tree(above, found);
            }
            Some(name) => {
                let mut path = base;
                if name != "*" {
                    path.push(name.to_owned());
                }
                if self.rest.starts_with("::") {
                    self.next();
                    self.tree(path, found);
                } else {
                    found.insert(path);
                }
            }
            None => {}
        }
    }
}

/// The sets of files that reach each other.
pub fn circles<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<BTreeSet<&'a str>> {
    let reach = |from: &'a str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            open.extend(imports.get(file).into_iter().flatten().filter(|next| seen.insert(**next)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|file| (*file, reach(file))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (file, all) in &reached {
        if all.contains(file) && !found.iter().any(|circle| circle.contains(file)) {
            let circle =
                all.iter().filter(|other| reached.get(*other).is_some_and(|back| back.contains(file)));
            found.push(circle.copied().collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::from_texts(&files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect())
    }

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        tree(files).edges().map(|(from, to, path)| format!("{from}>{to} {path}")).collect()
    }

    #[test]
    fn use_trees_are_followed_to_files() {
        let found = edges(&[
            ("main.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::{self as other, c::{D, E}};\nuse core::fmt;"),
            ("b/mod.rs", "pub mod c;"),
            ("b/c.rs", "use super::super::a::X;"),
        ]);
        assert_eq!(
            found,
            ["a.rs>b/mod.rs b", "a.rs>b/c.rs b::c::D", "a.rs>b/c.rs b::c::E", "b/c.rs>a.rs a::X"]
        );
    }

    #[test]
    fn paths_in_code_count_and_words_in_comments_do_not() {
        let found = edges(&[
            ("main.rs", "mod a;\nmod b;\n// crate::b::X\nfn f() { a::go(\"crate::b::X\", 'x'); }"),
            ("a.rs", "fn go<'a>() { crate::b::stop() }"),
            (
                "b.rs",
                "/// See [`crate::a`].\nfn stop() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::go;\n}",
            ),
        ]);
        assert_eq!(found, ["a.rs>b.rs b::stop", "main.rs>a.rs a::go"]);
    }

    #[test]
    fn circles_are_found_through_others() {
        let circle = [
            ("main.rs", ""),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles(&tree(&circle).imports()), [BTreeSet::from(["a.rs", "b.rs", "c.rs"])]);
        let front = [("main.rs", "mod a;"), ("a/mod.rs", "mod b; use b::B;"), ("a/b.rs", "use super::A;")];
        assert!(circles(&tree(&front).imports()).is_empty());
    }
}
