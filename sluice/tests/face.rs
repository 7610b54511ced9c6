//! What the front end of device files makes of a description that another domain gives (`guest/linux/devfile_face.h`), compiled for this machine: the
//! kernel's headers are replaced by the C library's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel's headers, as far as the functions need them.
const HEADERS: [(&str, &str); 4] = [
    ("ctype.h", "#include <ctype.h>\n"),
    ("string.h", "#include <string.h>\n"),
    ("device.h", "#include <stdbool.h>\n#include <sys/types.h>\nstruct device;\n"),
    ("fs.h", "struct inode;\nstruct file_operations;\n"),
];

/// Each line says whether a text is one, and what its attribute `name` is.
const PROGRAM: &str = r#"
#include <stdio.h>
#include "devfile_face.h"

static void show(const char *text, size_t size)
{
	int length = 0;
	const char *value = devfile_find(text, size, "name", &length);

	printf("%d %.*s\n", devfile_is_text(text, size), length, value ?: "");
}

#define SHOW(text) show(text, sizeof(text) - 1)

int main(void)
{
	SHOW("name=a camera\nid=7\n");
	SHOW("id=7\nname=last");
	SHOW("names=other\nname=\n");
	SHOW("xname=other\nid=name=8\n");
	SHOW("");
	SHOW("name=a\033[2J\n");
	SHOW("name=t\xc3\xa4st\n");
	SHOW("name=a\0b\n");
	show("name=beyond", 6);
	show("name=beyond", 4);
	return 0;
}
"#;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_description_is_printable_and_read_within_its_bounds() {
    let folder = Folder(std::env::temp_dir().join(format!("sluice-face-{}", std::process::id())));
    std::fs::create_dir_all(folder.0.join("linux")).unwrap();
    for (name, text) in HEADERS {
        std::fs::write(folder.0.join("linux").join(name), text).unwrap();
    }
    let (source, program) = (folder.0.join("face.c"), folder.0.join("face"));
    std::fs::write(&source, PROGRAM).unwrap();
    let common = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/linux");
    let built = Command::new("gcc")
        .args(["-Wall", "-Werror", "-D_GNU_SOURCE", "-I"])
        .arg(&folder.0)
        .arg("-I")
        .arg(common)
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = Command::new(&program).output().unwrap();
    let said: Vec<String> =
        said.stdout.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line).into()).collect();
    let found: Vec<&str> = said.iter().map(String::as_str).collect();
    assert_eq!(found[..5], ["1 a camera", "1 last", "1 ", "1 ", "0 "]);
    assert!(found[5..8].iter().all(|line| line.starts_with("0 ")), "{found:?}");
    assert_eq!(found[8..], ["1 b", "1 ", ""]);
}
