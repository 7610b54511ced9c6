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

/// All `.rs` files of the workspace's own.
fn sources(directory: &Path, found: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() && entry.file_name() != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *found += &std::fs::read_to_string(path).unwrap();
        }
    }
}

/// Names of scenarios: of files, and of the rows of those that are a matrix.
fn scenarios() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in std::fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some("toml") = path.extension().and_then(|extension| extension.to_str()) else { continue };
        // The patterns of a matrix are replaced before it is TOML.
        let text = std::fs::read_to_string(&path).unwrap();
        let rows = text.split("[[matrix]]\n").skip(1);
        let row = |row: &str| Some(row.strip_prefix("name = \"")?.split_once('"')?.0.to_owned());
        let rows: Vec<String> = rows.filter_map(row).map(|row| format!("{stem}-{row}")).collect();
        names.extend(if rows.is_empty() { vec![stem] } else { rows });
    }
    names
}

#[test]
fn tests_that_a_page_relies_on_exist() {
    let (page, mutations) = (text("docs/found-and-mended.md"), text("tests/mutations.toml"));
    let scenarios = scenarios();
    let mut code = String::new();
    ["crates", "sluice", "daemons"].iter().for_each(|ring| sources(&root().join(ring), &mut code));
    let mut lines = page.lines();
    let mut cells = Vec::new();
    while lines.any(|line| line.ends_with("| noticed by |")) {
        let rows = lines.by_ref().skip(1).take_while(|line| line.starts_with('|'));
        cells.extend(rows.filter_map(|row| Some(row.strip_suffix(" |")?.rsplit_once("| ")?.1)));
    }
    let mut checked = 0;
    for cell in cells {
        let before = checked;
        for name in cell.split('`').skip(1).step_by(2) {
            let there = match name {
                _ if name.contains('/') => root().join(name).is_file(),
                _ if name.contains('_') => code.contains(&format!("fn {name}(")),
                _ => scenarios.contains(name),
            };
            assert!(there, "{name}: no such test");
            checked += 1;
        }
        for name in cell.split('*').skip(1).step_by(2) {
            assert!(mutations.contains(&format!("\nname = \"{name}\"\n")), "{name}: no such mutation");
            checked += 1;
        }
        assert_ne!(checked, before, "{cell}: names no test");
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn the_package_names_a_maintainer_as_debian_wants_it() {
    let manifest: toml::Table = text("sluice/Cargo.toml").parse().unwrap();
    let maintainer = manifest["package"]["metadata"]["deb"]["maintainer"].as_str().unwrap();
    let (name, address) = maintainer.strip_suffix('>').unwrap().split_once(" <").unwrap();
    // Lintian calls a host without a dot bogus.
    assert!(!name.is_empty() && address.split_once('@').unwrap().1.contains('.'), "{maintainer}");
}
