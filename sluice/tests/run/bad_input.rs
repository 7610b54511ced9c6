//! Files and command lines with which nothing can be done: each has a message, the documented exit status, and costs nothing that
//! was there before. The cases are in `bad-input.toml`.

use crate::machine::{kernel, prepare, sluice};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What the user did.
    about: String,
    /// What was typed, one word after the other.
    typed: String,
    /// The configuration `it.toml`.
    file: Option<String>,
    /// Variables of the environment.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// The exit status.
    status: i32,
    /// What is said, in pieces.
    says: Vec<String>,
}

/// What is in the directory, and must be there afterwards.
fn furnish(directory: &Path) {
    prepare(directory, "good.toml");
    std::fs::write(directory.join("old.json"), "precious").unwrap();
    std::fs::write(directory.join("text"), "hello\n").unwrap();
    std::fs::write(directory.join("empty"), "").unwrap();
    std::fs::write(directory.join("truncated"), &kernel()[..0x50]).unwrap();
    let mut other = kernel();
    // For AArch64.
    other[18] = 183;
    std::fs::write(directory.join("aarch64"), other).unwrap();
    std::fs::write(directory.join("binary.toml"), b"\x7fELF\xff\xfe").unwrap();
    let large = std::fs::File::create(directory.join("large.cpio")).unwrap();
    std::io::Write::write_all(&mut &large, b"070701").unwrap();
    large.set_len(80 << 20).unwrap();
    std::fs::create_dir(directory.join("folder")).unwrap();
    std::fs::create_dir_all(directory.join("images/kept")).unwrap();
    std::fs::write(directory.join("images/kept/disk.raw"), "precious").unwrap();
    // A machine that gets as far as to be started ends at once.
    std::fs::write(directory.join("status"), "0").unwrap();
}

/// Every file with its length and when it was written.
fn inventory(directory: &Path) -> BTreeSet<(String, u64, std::time::SystemTime)> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let look = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().unwrap();
        let time = if metadata.is_dir() { std::time::UNIX_EPOCH } else { metadata.modified().unwrap() };
        (entry.file_name().to_string_lossy().into_owned(), metadata.len(), time)
    };
    // Where sockets and consoles go is no file of the user's.
    entries.map(look).filter(|(name, ..)| name != "sluice" && name != "logs").collect()
}

fn words(typed: &str) -> impl Iterator<Item = String> + '_ {
    typed.split(' ').map(|word| word.replace('~', " "))
}

/// What is wrong with how a case ends.
fn examine(case: &Case, directory: &Path) -> Vec<String> {
    if let Some(text) = &case.file {
        std::fs::write(directory.join("it.toml"), text).unwrap();
    }
    let before = inventory(directory);
    let mut command = sluice(directory);
    command
        .args(words(&case.typed))
        .env("SLUICE_CACHE", directory.join("sluice/cache"))
        .env("SLUICE_IMAGES", directory.join("images"))
        .envs(&case.environment)
        .stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let mut wrong = Vec::new();
    if output.status.code() != Some(case.status) {
        wrong.push(format!("it ended with {}, not {}", output.status, case.status));
    }
    wrong.extend(
        case.says.iter().filter(|text| !said.contains(*text)).map(|text| format!("it does not say: {text}")),
    );
    if said.contains("panicked") || said.contains("os error 0") {
        wrong.push("it fell over".to_owned());
    }
    if inventory(directory) != before {
        wrong.push("files have changed".to_owned());
    }
    if !wrong.is_empty() {
        wrong.push(format!("it said:\n{said}"));
    }
    wrong
}

#[test]
fn what_cannot_work_is_refused_with_a_word_and_nothing_is_lost() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/bad-input.toml"));
    let cases: Cases = toml::from_str(&text.unwrap()).unwrap();
    assert!(cases.case.len() >= 60, "{} cases", cases.case.len());
    let directory = std::env::temp_dir().join(format!("sluice-test-bad-input-{}", std::process::id()));
    let mut failures = String::new();
    furnish(&directory);
    for case in &cases.case {
        for line in examine(case, &directory) {
            failures += &format!("{} ({}): {line}\n", case.about, case.typed);
        }
        let _ = std::fs::remove_file(directory.join("it.toml"));
    }
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(failures.is_empty(), "\n{failures}");
}
