//! Commands that download at the same time, with an apt that the test plays: it fails, as apt does, when two of it run at once
//! on the same lists.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// apt-get, apt-cache and dpkg-deb of an archive where each package holds all: a kernel and busybox.
const APT: &str = r#"#!/bin/sh
mkdir "$SLUICE_CACHE/busy" || { echo "E: Could not get lock" >&2; exit 100; }
sleep 0.1
case "$*" in
*indextargets*) echo "https://archive.invalid/debian bookworm main" ;;
*pkgnames*) echo linux-image-6.1.0-9-amd64 ;;
*download*) touch kernel.deb ;;
-x*)
    mkdir -p "$3/boot" "$3/bin" "$3/lib/modules/6.1.0-9-amd64"
    touch "$3/lib/modules/6.1.0-9-amd64/modules.builtin"
    touch "$3/boot/vmlinuz-6.1.0-9-amd64"
    ln -s /bin/true "$3/bin/busybox" ;;
-f*) echo 6.1.9-1 ;;
esac
rmdir "$SLUICE_CACHE/busy"
"#;

fn fetch(directory: &Path) -> Child {
    let path = std::env::var("PATH").unwrap();
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["fetch", "debian-6.1"])
        .env("SLUICE_CACHE", directory.join("cache"))
        .env("PATH", format!("{}:{path}", directory.display()))
        .current_dir(directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn commands_that_download_at_once_wait_for_each_other() {
    let directory = std::env::temp_dir().join(format!("sluice-test-apt-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("cache")).unwrap();
    let apt = directory.join("apt-get");
    std::fs::write(&apt, APT).unwrap();
    std::fs::set_permissions(&apt, std::fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["apt-cache", "dpkg-deb"] {
        symlink(&apt, directory.join(name)).unwrap();
    }
    let both = [fetch(&directory), fetch(&directory)].map(|run| run.wait_with_output().unwrap());
    std::fs::remove_dir_all(&directory).unwrap();
    for run in both {
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(!said.contains("Could not get lock"), "{said}");
        // The last thing that was downloaded is there; the kernel has no modules, so that this is where it ends.
        assert!(said.contains("could not build 'busybox': 6.1.0-9-amd64 has no module "), "{said}");
    }
}
