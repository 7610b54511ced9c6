//! No file imports one that imports it, directly or through others; and in the hypervisor's sources imports point down the
//! list of layers, never up.
//!
//! What counts is the text: `use` trees, and paths that begin with `crate`, `super`, `self` or a child module. A path is
//! followed as far as modules go; what is left names an item of the last one. That a module uses the modules it is made of
//! does not count: it is their front. Test modules are left out, since a test may well drive a file from above.

mod source;

use source::{Tree, circles};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The modules of `hypervisor/src`, from the ground up: each may import those before it (docs/architecture.md).
const LAYERS: [&str; 23] = [
    "x86", "sync", "uart", "handover", "mm", "firmware", "cpu", "log", "screen", "power", "panic", "pci",
    "iommu", "irq", "svm", "domain", "exit", "devices", "sched", "manage", "run", "boot", "main",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").to_owned()
}

/// Every `src` folder of the workspace.
fn sources() -> Vec<PathBuf> {
    let root = root();
    let mut found: Vec<PathBuf> = Vec::new();
    for place in ["crates", "daemons"] {
        let members = std::fs::read_dir(root.join(place)).expect(place).flatten();
        found.extend(members.map(|entry| entry.path().join("src")));
    }
    found.extend(["hypervisor", "sluice", "guest/bare"].map(|place| root.join(place).join("src")));
    found.retain(|place| place.is_dir());
    found.sort();
    found
}

#[test]
fn no_file_imports_what_imports_it() {
    let mut told = String::new();
    for place in sources() {
        let tree = Tree::read(&place);
        for circle in circles(&tree.imports()) {
            told += &format!("\n{}: {} files\n", place.display(), circle.len());
            let within = |file: &str| circle.contains(file);
            for (from, to, path) in tree.edges().filter(|(from, to, _)| within(from) && within(to)) {
                told += &format!("  {from} -> {to}: {path}\n");
            }
        }
    }
    assert!(told.is_empty(), "files that import each other in a circle:{told}");
}

#[test]
fn imports_of_the_hypervisor_point_down() {
    let tree = Tree::read(&root().join("hypervisor/src"));
    let layer = |file: &str| {
        let name = file.split('/').next().unwrap_or(file).trim_end_matches(".rs");
        let known = LAYERS.iter().position(|layer| *layer == name);
        known.unwrap_or_else(|| panic!("{file} is in no layer: add it to LAYERS and to docs/architecture.md"))
    };
    let upward: BTreeSet<String> = tree
        .edges()
        .filter(|(from, to, _)| layer(from) < layer(to))
        .map(|(from, to, path)| format!("{from} imports {to} ({path})"))
        .collect();
    let list = upward.into_iter().collect::<Vec<_>>().join("\n");
    assert!(list.is_empty(), "imports that point up:\n{list}");
}
