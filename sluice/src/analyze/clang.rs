//! The intermediate code of a driver's files, and of the front end's tables: made by Debian's clang, unpacked in the cache, with Debian's
//! headers.

use crate::kernels::Kernel;
use crate::modules::own_folder;
use crate::packages::unpacked;
use crate::workspace::{root, run, scratch};
use anyhow::{Context, Result, ensure};
use sluice_slice::ir::Module;
use sluice_slice::{Line, lines, module, numbers, probe};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What clang consists of, in Debian 12.
const CLANG: [&str; 6] =
    ["clang-14", "libclang-cpp14", "libclang-common-14-dev", "libllvm14", "libz3-4", "libedit2"];

/// The folder of the front end's sources, below the one that all modules of guests share.
const FRONT_END: &str = "sluice-devfile";

/// What numbers of commands are called that are compiled.
const NUMBERS: &str = "sluice_numbers";

/// Structures that the kernel has under names of its own.
const KERNELS_OWN: &str = "#include <sound/pcm.h>\n#define snd_pcm_status snd_pcm_status64\n";

/// Compiles for a kernel.
pub struct Compiler {
    program: PathBuf,
    /// Where its libraries are.
    libraries: String,
    /// The kernel's headers, and those of all its flavours.
    own: PathBuf,
    common: PathBuf,
}

impl Compiler {
    /// Has the compiler and the headers.
    pub fn new(kernel: &Kernel) -> Result<Self> {
        let mut libraries = Vec::new();
        for name in CLANG {
            let place = unpacked(name)?.join("usr/lib");
            libraries.push(place.join("x86_64-linux-gnu").display().to_string());
            libraries.push(place.join("llvm-14/lib").display().to_string());
        }
        let own = crate::modules::headers(&kernel.release)?;
        let makefile = std::fs::read_to_string(own.join("Makefile"))?;
        let common = makefile.trim().strip_prefix("include ").context("the headers have a common part")?;
        Ok(Self {
            program: unpacked("clang-14")?.join("usr/lib/llvm-14/bin/clang"),
            libraries: libraries.join(":"),
            common: own.join(common.trim_end_matches("/Makefile")),
            own,
        })
    }

    /// The intermediate code of the files of a folder that reach a program's memory, or have ioctls. A file that Debian's kernel is
    /// built without does not compile, and is left out.
    pub fn driver(&self, folder: &Path) -> Result<Vec<Module>> {
        let list = std::fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
        let mut files: Vec<PathBuf> = list.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        if folder.ends_with("i915") {
            let inner = std::fs::read_dir(folder.join("gem"))?;
            files.extend(inner.filter_map(|entry| entry.ok().map(|entry| entry.path())));
        }
        files.sort();
        let shim = root().join("sluice/src/analyze/user.h");
        let mut found = Vec::new();
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "c")) {
            let text = std::fs::read_to_string(file)?;
            if !["_user", "_ioctl", "__user"].iter().any(|word| text.contains(word)) {
                continue;
            }
            let mut command = self.command();
            for inner in ["", "include", "include/nvkm"] {
                command.arg("-I").arg(folder.join(inner));
            }
            match run(command.arg("-include").arg(&shim).arg(file)) {
                Ok(output) => found.push(module(&String::from_utf8_lossy(&output.stdout))?),
                Err(_) => crate::output::note(format_args!("sluice: left out: {}", file.display())),
            }
        }
        Ok(found)
    }

    /// The commands that a header for programs defines whose names begin so: names and numbers. Those with parameters are left out.
    ///
    /// # Errors
    /// There is no such header, or none.
    pub fn commands(&self, header: &str, prefix: &str) -> Result<Vec<(String, u32)>> {
        let file = self.common.join("include/uapi").join(header);
        let text = std::fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        let names: Vec<String> = text.lines().filter_map(|line| command_name(line, prefix)).collect();
        let text = format!(
            "{KERNELS_OWN}#include <{header}>\nconst unsigned int {NUMBERS}[] = {{ {} }};\n",
            names.join(", ")
        );
        let code = self.text(&text, &[])?;
        let found = numbers(&code, NUMBERS)?;
        ensure!(
            found.len() == names.len() && !names.is_empty(),
            "no commands {prefix} in {}",
            file.display()
        );
        Ok(names.into_iter().zip(found).collect())
    }

    /// The intermediate code of a text, with these folders of headers.
    fn text(&self, text: &str, headers: &[&Path]) -> Result<Module> {
        let folder = own_folder(&scratch()?)?;
        let file = folder.join("table.c");
        std::fs::write(&file, text).context("could not write to the scratch folder")?;
        let mut command = self.command();
        for header in headers {
            command.arg("-I").arg(header);
        }
        let output = run(command.arg(&file));
        std::fs::remove_dir_all(&folder)?;
        Ok(module(&String::from_utf8_lossy(&output?.stdout))?)
    }

    /// The lines of a table of the front end's, or of one that is defined here, in the macros of tables.h.
    ///
    /// # Errors
    /// It is no C, or no such table.
    pub fn lines(&self, table: &str, definition: &str) -> Result<Vec<Line>> {
        let text = format!(
            "#include <linux/string.h>\n#include <linux/uaccess.h>\n#include \"devfile.h\"\n#include \"lead.h\"\n\
             #include \"tables.h\"\n#define IN SLUICE_DEVFILE_IN\n#define BOTH (SLUICE_DEVFILE_IN | SLUICE_DEVFILE_OUT)\n\
             {definition}{}",
            probe(table)
        );
        let modules = root().join("guest/linux");
        let code = self.text(&text, &[&modules.join(FRONT_END), &modules])?;
        Ok(lines(&code, table)?)
    }

    /// It prints the intermediate code of the file that is named behind.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries).arg("-nostdinc");
        for (root, inner) in [
            (&self.common, "arch/x86/include"),
            (&self.own, "arch/x86/include/generated"),
            (&self.common, "include"),
            (&self.own, "include"),
            (&self.common, "arch/x86/include/uapi"),
            (&self.own, "arch/x86/include/generated/uapi"),
            (&self.common, "include/uapi"),
            (&self.own, "include/generated/uapi"),
        ] {
            command.arg("-I").arg(root.join(inner));
        }
        for inner in ["compiler-version.h", "kconfig.h", "compiler_types.h"] {
            command.arg("-include").arg(self.common.join("include/linux").join(inner));
        }
        command.args(["-D__KERNEL__", "-DCC_USING_FENTRY", "-DMODULE", "-DKBUILD_MODNAME=\"x\""]);
        command.args(["-DKBUILD_BASENAME=\"x\"", "-std=gnu11", "-fshort-wchar", "-funsigned-char", "-w"]);
        command.args(["-fno-strict-aliasing", "-mno-sse", "-mcmodel=kernel", "-O0", "-Xclang"]);
        command.args(["-disable-O0-optnone", "-fno-discard-value-names", "-S", "-emit-llvm", "-o", "-"]);
        command
    }
}

/// The command that a line of a header defines, if its name begins so.
fn command_name(line: &str, prefix: &str) -> Option<String> {
    let (name, value) = line.strip_prefix("#define")?.trim_start().split_once([' ', '\t'])?;
    let is_one = name.starts_with(prefix) && !name.contains('(') && value.trim_start().starts_with("_IO");
    is_one.then(|| name.to_owned())
}

/// Where a kernel's source is, of which this folder is there.
pub fn source(kernel: &Kernel, folder: &str) -> Result<PathBuf> {
    let series: Vec<&str> = kernel.release.split(['.', '-', '+']).take(2).collect();
    let name = format!("linux-source-{}", series.join("."));
    let place = unpacked(&name)?;
    let root = place.join(&name);
    if !root.join(folder).is_dir() {
        let archive = place.join(format!("usr/src/{name}.tar.xz"));
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&place).arg("-xJf").arg(archive).arg("--exclude=*/drm/amd");
        run(tar.args(["--wildcards", &format!("*/{folder}")]))?;
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_header_are_those_without_parameters() {
        let name = |line| command_name(line, "EVIOC");
        assert_eq!(
            name("#define EVIOCGVERSION\t\t_IOR('E', 0x01, int)\t/* get driver version */"),
            Some("EVIOCGVERSION".into())
        );
        assert_eq!(name("#define EVIOCGNAME(len)\t\t_IOC(_IOC_READ, 'E', 0x06, len)"), None);
        assert_eq!(name("#define EVIOC_FLAG\t1"), None);
        assert_eq!(name("#define VIDIOC_QUERYCAP\t_IOR('V', 0, int)"), None);
        assert_eq!(name("#undef EVIOCGVERSION"), None);
    }
}
