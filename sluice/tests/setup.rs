//! `setup/packages.sh` and `setup/space.sh` on machines that the test makes up: dpkg, apt and rustc are scripts, and nothing else is on the path.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the script needs of any Debian.
const TOOLS: [&str; 9] = ["sh", "sed", "sort", "head", "cut", "dirname", "cat", "date", "env"];

/// Says that all is installed but what is in `absent`; the compiler's packages have the version in `compiler`.
const DPKG_QUERY: &str = r#"#!/bin/sh
for package; do :; done
for absent in $(cat "$MACHINE/absent"); do [ "$absent" = "$package" ] && exit 1; done
case $package in
*rust* | cargo-web) echo "installed $(cat "$MACHINE/compiler")" ;;
*) echo "installed 1.0" ;;
esac
"#;

/// Notes what it was asked, and tells how far it is as apt does.
const APT_GET: &str = r#"#!/bin/sh
echo "$*" >> "$MACHINE/asked"
case $* in
*Status-Fd=3*)
    echo "dlstatus:1:20.5:Retrieving file 1 of 2" >&3
    echo "Selecting previously unselected package"
    echo "pmstatus:gcc:70.1:Installing gcc" >&3
    exit "$(cat "$MACHINE/status")" ;;
esac
"#;

const APT_CACHE: &str = "#!/bin/sh\necho \"$2:\"\necho \"  Candidate: $(cat \"$MACHINE/offered\")\"\n";

struct Machine(PathBuf);

impl Machine {
    /// A machine of root's with everything on it but the packages that `absent` names.
    fn new(test: &str, absent: &str, compiler: &str, offered: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("sluice-setup-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let machine = Self(directory);
        for tool in TOOLS {
            let found = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool));
            symlink(found.iter().find(|path| path.exists()).unwrap(), machine.0.join(tool)).unwrap();
        }
        machine.program("dpkg-query", DPKG_QUERY);
        machine.program("apt-get", APT_GET);
        machine.program("apt-cache", APT_CACHE);
        machine.program("id", "#!/bin/sh\necho 0\n");
        for (file, text) in
            [("absent", absent), ("compiler", compiler), ("offered", offered), ("status", "0"), ("asked", "")]
        {
            std::fs::write(machine.0.join(file), text).unwrap();
        }
        machine
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The exit status, what was said, and what apt-get was asked.
    fn setup(&self) -> (i32, String, String) {
        self.run("packages.sh")
    }

    /// The exit status, and what was said, where so many MiB are free.
    fn space(&self, free: u32) -> (i32, String) {
        self.program("df", &format!("#!/bin/sh\necho Filesystem\necho /dev/vda 100000 90000 {free} 90% /\n"));
        self.program("du", "#!/bin/sh\nprintf '0\\ttarget\\n'\n");
        let (status, said, _) = self.run("space.sh");
        (status, said)
    }

    fn run(&self, script: &str) -> (i32, String, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../setup").join(script);
        let output = Command::new(self.0.join("sh"))
            .arg(script)
            .env_clear()
            .env("PATH", &self.0)
            .env("MACHINE", &self.0)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let asked = std::fs::read_to_string(self.0.join("asked")).unwrap();
        (output.status.code().unwrap(), String::from_utf8(said).unwrap(), asked)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_full_disk_is_noticed_before_anything_is_built() {
    let machine = Machine::new("space", "", "1.96.0", "1.96.0");
    assert_eq!(machine.space(100_000), (0, String::new()));
    let (status, said) = machine.space(287);
    assert!(status == 1 && said.contains("has 287 MiB free") && said.contains("help: make room"), "{said}");
    let (status, said) = machine.space(5000);
    assert!(status == 0 && said.contains("has 5000 MiB free") && said.contains("going on"), "{said}");
}

#[test]
fn where_all_is_there_nothing_is_done() {
    let (status, said, asked) = Machine::new("all", "", "1.96.0+dfsg1-1~deb12u2", "").setup();
    assert_eq!((status, said.as_str(), asked.as_str()), (0, "", ""));
}

#[test]
fn crates_are_downloaded_from_somebody_who_can_prove_it() {
    let (status, said, asked) = Machine::new("certificates", "ca-certificates", "1.96.0", "").setup();
    assert_eq!(status, 0, "{said}");
    assert!(asked.ends_with("--no-install-recommends ca-certificates\n"), "{asked}");
}

#[test]
fn an_old_compiler_is_upgraded() {
    let machine = Machine::new("old", "gcc", "1.85.0+dfsg3-1~deb12u3", "1.96.0+dfsg1-1~deb12u2");
    let (status, said, asked) = machine.setup();
    assert_eq!(status, 0, "{said}");
    assert!(
        asked.ends_with(" gcc rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web\n"),
        "{asked}"
    );
    assert!(said.contains("setup: upgrading rustc-web"), "{said}");
    for step in ["setup: downloading, 20 %", "setup: installing, 70 %", "setup: done in "] {
        assert!(said.contains(step), "{said}");
    }
    assert!(!said.contains("Selecting"), "{said}");
}

#[test]
fn where_apt_offers_only_an_old_compiler_it_says_where_a_newer_one_is() {
    for (absent, offered) in [("", "1.85.0+dfsg3-1~deb12u3"), ("rustc-web", "(none)")] {
        let machine = Machine::new("offer", absent, "1.85.0+dfsg3-1~deb12u3", offered);
        let (status, said, asked) = machine.setup();
        assert_eq!(status, 1, "{said}");
        assert!(said.contains("security") && said.contains("rustup target add"), "{said}");
        assert!(!asked.contains("install"), "nothing is half done: {asked}");
    }
}

#[test]
fn a_compiler_of_the_users_own_is_the_users_to_upgrade() {
    let machine = Machine::new("own", "gcc", "1.96.0", "1.96.0");
    machine.program(
        "rustc",
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'rustc 1.85.1 (4eb161250 2025-03-15)'\n",
    );
    let (status, said, asked) = machine.setup();
    assert_eq!((status, asked.as_str()), (1, ""), "{said}");
    assert!(said.contains("is Rust 1.85.1") && said.contains("rustup update"), "{said}");
}

#[test]
fn what_apt_could_not_do_is_not_done() {
    let machine = Machine::new("failed", "gcc", "1.96.0", "1.96.0");
    std::fs::write(machine.0.join("status"), "100").unwrap();
    let (status, said, _) = machine.setup();
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("apt-get failed with status 100") && !said.contains("done in"), "{said}");
}
