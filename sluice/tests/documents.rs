//! Lists in the documents have what there is, and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands in backquotes at the beginning of the lines of all tables that have this head.
fn first_column(page: &str, head: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut lines = page.lines();
    while lines.any(|line| line.starts_with(head)) {
        let rows = lines.by_ref().take_while(|line| line.starts_with('|'));
        names.extend(rows.filter_map(|row| Some(row.strip_prefix("| `")?.split_once('`')?.0.to_owned())));
    }
    names
}

#[test]
fn the_table_of_root_file_systems_has_each() {
    let recipes: toml::Table = text("guest/rootfs/rootfs.toml").parse().unwrap();
    let there: BTreeSet<String> = recipes.keys().cloned().collect();
    assert_eq!(first_column(&text("docs/configuration.md"), "| initrd |"), there);
}

#[test]
fn the_page_on_fuzzing_names_each_target() {
    let files = std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let there: BTreeSet<String> = files.map(|entry| stem(entry.unwrap().path())).collect();
    assert!(there.len() > 20);
    assert_eq!(first_column(&text("docs/fuzzing.md"), "| target | executions"), there);
    let manifest: toml::Table = text("fuzz/Cargo.toml").parse().unwrap();
    let bins = manifest["bin"].as_array().unwrap().iter();
    let built: BTreeSet<String> = bins.map(|bin| bin["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(built, there, "fuzz/Cargo.toml builds each");
    let list = text("crates/fuzz-targets/src/lib.rs");
    for target in there {
        assert!(list.contains(&format!("(\"{target}\", ")), "{target} is in TARGETS");
    }
}
