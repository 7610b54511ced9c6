//! Files that are made once, and kept in the cache with a list of them.

use crate::modules::own_folder;
use crate::workspace::{scratch, write_whole};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The list: a place, below the folder, a line.
const MANIFEST: &str = "manifest";

/// The files of a folder, by their places in it. If it has no list yet, `make` makes them in a folder of its own, and says which goes where.
///
/// # Errors
/// They could not be made, written or read.
pub fn kept(
    folder: &Path,
    make: impl FnOnce(&Path) -> Result<BTreeMap<String, PathBuf>>,
) -> Result<BTreeMap<String, PathBuf>> {
    let manifest = folder.join(MANIFEST);
    if !manifest.exists() {
        let own = own_folder(&scratch()?)?;
        let made = make(&own)?;
        for (place, file) in &made {
            write_whole(&folder.join(place), &std::fs::read(file)?)?;
        }
        // The list is last: where it is, all are.
        let places: Vec<&str> = made.keys().map(String::as_str).collect();
        write_whole(&manifest, places.join("\n").as_bytes())?;
        std::fs::remove_dir_all(&own)?;
    }
    let places = std::fs::read_to_string(&manifest)?;
    Ok(places.lines().map(|place| (place.to_owned(), folder.join(place))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn files_are_made_once_and_those_of_an_attempt_that_failed_again() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = |content: &'static str| {
            kept(folder.path(), |own| {
                let file = own.join("made");
                std::fs::write(&file, content)?;
                if content == "bad" {
                    bail!("no");
                }
                Ok(BTreeMap::from([("a/b".to_owned(), file.clone()), ("c".to_owned(), file)]))
            })
        };
        assert!(attempt("bad").is_err());
        for content in ["first", "second"] {
            let files = attempt(content).unwrap();
            assert_eq!(files.keys().collect::<Vec<_>>(), ["a/b", "c"]);
            assert!(files.values().all(|file| std::fs::read_to_string(file).unwrap() == "first"));
        }
    }
}
