//! Builds and downloads say what they do and how far they are, with a cargo and a rustc that the test plays.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Has the target for bare metal.
const RUSTC: &str = "#!/bin/sh\necho \"$MACHINE/sysroot\"\n";

/// Says what cargo says when it is asked for its live line without a terminal.
const CARGO: &str = r#"#!/bin/sh
[ "$CARGO_TERM_PROGRESS_WHEN" = always ] || exit 9
printf '   Compiling core v0.0.0\n    Building [==>       ] 3/9: core, sluice-abi\r' >&2
sleep "$SLEEP"
case $* in *clippy*) printf '\033[Kerror: this is wrong\n  --> hypervisor/src/main.rs:1:1\n' >&2; exit 101 ;; esac
mkdir -p "$SLUICE_HOME/target/hypervisor/x86_64-unknown-none/release"
echo image > "$SLUICE_HOME/target/hypervisor/x86_64-unknown-none/release/sluice-hypervisor"
printf '    Finished `release` profile\n' >&2
"#;

fn sluice(test: &str, sleep: &str, arguments: &[&str]) -> (Output, String) {
    let directory = std::env::temp_dir().join(format!("sluice-test-progress-{test}-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("sysroot/lib/rustlib/x86_64-unknown-none/lib")).unwrap();
    // A checkout of its own: nothing that this cargo makes gets into this one.
    std::fs::create_dir_all(directory.join("hypervisor")).unwrap();
    for file in ["Cargo.toml", "hypervisor/Cargo.toml"] {
        std::fs::write(directory.join(file), "").unwrap();
    }
    for (name, text) in [("rustc", RUSTC), ("cargo", CARGO)] {
        std::fs::write(directory.join(name), text).unwrap();
        std::fs::set_permissions(directory.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .args(arguments)
        .env("PATH", path)
        .env("MACHINE", &directory)
        .env("SLUICE_HOME", &directory)
        .env("SLEEP", sleep);
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn a_build_that_takes_time_says_how_far_it_is() {
    let (output, said) = sluice("slow", "1", &["build"]);
    assert!(output.status.success(), "{said}");
    let (first, rest) = said.split_once('\n').unwrap();
    assert_eq!(first, "sluice: building the hypervisor, 3 of 9: core, sluice-abi");
    assert!(rest.starts_with("sluice: building the hypervisor: done in 1."), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("target/hypervisor/sluice-hypervisor\n"));
}

#[test]
fn a_build_that_is_done_already_says_nothing() {
    let (output, said) = sluice("fast", "0", &["build"]);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn what_the_compiler_complains_of_is_shown_as_it_is() {
    let (output, said) = sluice("wrong", "0", &["build", "--lint"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: this is wrong\n  --> hypervisor/src/main.rs:1:1\n"), "{said}");
    assert!(said.contains("does not pass cargo clippy"), "{said}");
    assert!(!said.contains("Compiling"), "{said}");
}
