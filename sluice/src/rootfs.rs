//! Root file systems for test guests, by name: an initramfs of Debian's busybox, the scripts in
//! `guest/rootfs`, and the kernel's own modules. `guest/rootfs/rootfs.toml` says which there are.

use crate::cpio::Archive;
use crate::kernels::Kernel;
use crate::packages::{Apt, PackageName, unpacked};
use crate::progress::Step;
use crate::workspace::{cache, hex, root, run, scratch, write_whole};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The power button's driver, and what tells a script that it was pressed.
const POWER_BUTTON: [&str; 2] = ["button", "evdev"];

#[derive(Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    about: String,
    /// Recipes of which it has everything, too.
    #[serde(default)]
    like: Vec<String>,
    /// Modules of the kernel.
    #[serde(default)]
    modules: Vec<String>,
    /// Modules of ours, in `guest/linux`.
    #[serde(default)]
    own_modules: Vec<String>,
    /// Programs of ours, in `daemons`.
    #[serde(default)]
    programs: Vec<String>,
    /// Programs of Debian packages: paths in them, without the first slash.
    #[serde(default)]
    debian_programs: Vec<String>,
    /// The packages of those programs, and of all libraries that they need.
    #[serde(default)]
    debian_packages: Vec<String>,
    /// Files and directories of these packages, at their own places.
    #[serde(default)]
    debian_files: Vec<String>,
    /// Programs of ours in C, in `guest/programs`, and the libraries of the packages that each is linked with.
    #[serde(default)]
    c_programs: BTreeMap<String, Vec<String>>,
    /// Packages with headers for those, which are not in the root file system.
    #[serde(default)]
    header_packages: Vec<String>,
    /// The selftests of its kernel, built from Debian's package of the source.
    #[serde(default)]
    selftests: bool,
    /// Its packages are large, and few want them: not made unless a domain has it.
    #[serde(default)]
    extended: bool,
    /// Root file systems of guests that a control domain can make, with their kernel, in /guests.
    #[serde(default)]
    guests: Vec<String>,
}

fn recipes() -> BTreeMap<String, Recipe> {
    let text = std::fs::read_to_string(root().join("guest/rootfs/rootfs.toml")).unwrap_or_default();
    let written: BTreeMap<String, Recipe> =
        toml::from_str(&text).unwrap_or_else(|error| panic!("guest/rootfs/rootfs.toml: {error}"));
    written.iter().map(|(name, recipe)| (name.clone(), recipe.with(&written))).collect()
}

impl Recipe {
    /// The recipe with what those have which it is like.
    fn with(&self, written: &BTreeMap<String, Self>) -> Self {
        let mut whole = self.clone();
        for like in self.like.iter().rev() {
            let base = written.get(like).unwrap_or_else(|| panic!("guest/rootfs/rootfs.toml: no '{like}'"));
            let base = base.with(written);
            whole.modules.splice(0..0, base.modules.iter().cloned());
            whole.own_modules.splice(0..0, base.own_modules.iter().cloned());
            whole.programs.splice(0..0, base.programs.iter().cloned());
            whole.debian_programs.splice(0..0, base.debian_programs.iter().cloned());
            whole.debian_packages.splice(0..0, base.debian_packages.iter().cloned());
            whole.debian_files.splice(0..0, base.debian_files.iter().cloned());
            whole.header_packages.splice(0..0, base.header_packages.iter().cloned());
            whole.c_programs.extend(base.c_programs.clone());
        }
        whole
    }
}

/// All names that [`get`] knows.
pub fn names() -> Vec<String> {
    recipes().into_keys().collect()
}

/// Names and what they are for, but for the extended ones.
pub fn list() -> Vec<(String, String)> {
    let usual = recipes().into_iter().filter(|(_, recipe)| !recipe.extended);
    usual.map(|(name, recipe)| (name, recipe.about)).collect()
}

/// What a root file system is to have that its recipe does not say.
#[derive(Default)]
pub struct Additions {
    /// Modules beside the kernel's, or in the place of those of the same name.
    pub modules: BTreeMap<String, PathBuf>,
    /// Files, by their places, without the first slash.
    pub files: BTreeMap<String, PathBuf>,
}

/// The root file system of this name for a kernel, built if it is not in the cache as it should be.
pub fn get(name: &str, kernel: &Kernel) -> Result<PathBuf> {
    get_with(name, kernel, &Additions::default())
}

/// The same, with more in it.
pub fn get_with(name: &str, kernel: &Kernel, more: &Additions) -> Result<PathBuf> {
    let recipe = recipes().remove(name).with_context(|| format!("no root file system '{name}'"))?;
    let bytes = build(&recipe, kernel, more).with_context(|| format!("could not build '{name}'"))?;
    let digest = hex(&Sha256::digest(&bytes));
    let path = cache().join("rootfs").join(format!("{name}-{}-{}.cpio", kernel.release, &digest[..12]));
    if !path.exists() {
        write_whole(&path, &bytes)?;
    }
    Ok(path)
}

fn build(recipe: &Recipe, kernel: &Kernel, more: &Additions) -> Result<Vec<u8>> {
    let scripts = root().join("guest/rootfs");
    let modules = [&recipe.modules[..], &POWER_BUTTON.map(str::to_owned)].concat();
    let mut own: BTreeMap<_, _> =
        more.modules.iter().map(|(name, file)| (canonical(name), file.clone())).collect();
    for name in &recipe.own_modules {
        own.insert(canonical(name), crate::modules::get(name, &kernel.release)?);
    }
    let mut archive = unfinished(&read(&scripts.join("init"))?, &modules, own, kernel)?;
    archive.file("etc/udhcpc.script", 0o755, &read(&scripts.join("udhcpc.script"))?);
    for name in &recipe.programs {
        archive.file(&format!("bin/{name}"), 0o755, &read(&crate::image::guest_program(name)?)?);
    }
    add_debian(&mut archive, recipe)?;
    for (name, libraries) in &recipe.c_programs {
        let place = if name.ends_with(PRELOADED) { "lib" } else { "bin" };
        archive.file(&format!("{place}/{name}"), 0o755, &c_program(name, libraries, recipe)?);
    }
    let selftests = recipe.selftests.then(|| crate::selftests::files(&kernel.release)).transpose()?;
    for (place, file) in selftests.iter().flatten().chain(&more.files) {
        add_parents(&mut archive, Path::new(place));
        archive.file(place, 0o755, &read(file)?);
    }
    if !recipe.guests.is_empty() {
        archive.directory("guests");
        archive.file("guests/vmlinuz", 0o644, &read(&kernel.image)?);
        for guest in ["guest.toml", "guest-with-disk.toml", "guest-with-sectors.toml"] {
            archive.file(&format!("guests/{guest}"), 0o644, &read(&scripts.join(guest))?);
        }
    }
    for name in &recipe.guests {
        archive.file(&format!("guests/{name}.cpio"), 0o644, &read(&get(name, kernel)?)?);
    }
    Ok(archive.finish())
}

/// An unfinished root file system: busybox, this `/init`, and modules of the kernel.
pub fn base(init: &[u8], modules: &[String], kernel: &Kernel) -> Result<Archive> {
    unfinished(init, modules, BTreeMap::new(), kernel)
}

/// As [`base`], with a module of ours beside the kernel's.
pub fn base_with_own(init: &[u8], modules: &[String], module: &str, kernel: &Kernel) -> Result<Archive> {
    let file = crate::modules::get(module, &kernel.release)?;
    unfinished(init, modules, BTreeMap::from([(canonical(module), file)]), kernel)
}

/// As [`base`], with modules that are not the kernel's.
fn unfinished(
    init: &[u8],
    modules: &[String],
    own: BTreeMap<String, PathBuf>,
    kernel: &Kernel,
) -> Result<Archive> {
    let busybox = busybox()?;
    let mut archive = Archive::new();
    for directory in ["bin", "dev", "etc", "lib", "lib/modules", "proc", "run", "sys", "tmp"] {
        archive.directory(directory);
    }
    // The kernel opens it for init before devtmpfs is mounted.
    archive.character("dev/console", 0o600, (5, 1));
    archive.file("bin/busybox", 0o755, &read(&busybox)?);
    let applets = run(Command::new(&busybox).arg("--list"))?;
    for applet in String::from_utf8_lossy(&applets.stdout).lines().filter(|applet| *applet != "busybox") {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    archive.file("init", 0o755, init);
    add_modules(&mut archive, modules, own, kernel)?;
    Ok(archive)
}

/// Adds the modules and what `modprobe` needs to find them by a device's identifiers.
fn add_modules(
    archive: &mut Archive,
    modules: &[String],
    own: BTreeMap<String, PathBuf>,
    kernel: &Kernel,
) -> Result<()> {
    let mut wanted: Vec<String> = modules.iter().chain(own.keys()).cloned().collect();
    let mut all = module_files(&kernel.modules)?;
    all.extend(own);
    let built_in = built_in(&kernel.modules)?;
    let directory = format!("lib/modules/{}", kernel.release);
    archive.directory(&directory);
    let mut dependencies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut aliases = String::new();
    let mut taken = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        if built_in.contains(&canonical(&name)) || !taken.insert(canonical(&name)) {
            continue;
        }
        let path =
            all.get(&canonical(&name)).with_context(|| format!("{} has no module {name}", kernel.release))?;
        let content = module_content(path)?;
        let information = information(&content);
        let needs: Vec<&str> =
            information.iter().filter_map(|(key, value)| (*key == "depends").then_some(*value)).collect();
        let needs: Vec<&str> =
            needs.iter().flat_map(|list| list.split(',')).filter(|name| !name.is_empty()).collect();
        dependencies.insert(canonical(&name), needs.iter().map(|name| canonical(name)).collect());
        for (_, alias) in information.iter().filter(|(key, _)| *key == "alias") {
            aliases += &format!("alias {alias} {}\n", canonical(&name));
        }
        wanted.extend(needs.into_iter().map(str::to_owned));
        archive.file(&format!("{directory}/{}.ko", canonical(&name)), 0o644, &content);
    }
    let lines: String = dependencies.keys().map(|name| dependency_line(name, &dependencies)).collect();
    archive.file(&format!("{directory}/modules.dep"), 0o644, lines.as_bytes());
    archive.file(&format!("{directory}/modules.alias"), 0o644, aliases.as_bytes());
    for empty in ["modules.symbols", "modules.builtin"] {
        archive.file(&format!("{directory}/{empty}"), 0o644, &[]);
    }
    Ok(())
}

/// A line of modules.dep: a module and all that it needs, each before what it needs itself (depmod(8)).
fn dependency_line(name: &str, needs: &BTreeMap<String, Vec<String>>) -> String {
    fn visit(name: &str, needs: &BTreeMap<String, Vec<String>>, done: &mut Vec<String>) {
        for need in needs.get(name).into_iter().flatten() {
            if !done.contains(need) {
                visit(need, needs, done);
                done.push(need.clone());
            }
        }
    }
    let mut all = Vec::new();
    visit(name, needs, &mut all);
    let files: Vec<String> = all.iter().rev().map(|name| format!("{name}.ko")).collect();
    format!("{name}.ko: {}\n", files.join(" "))
}

/// Modules that are part of the kernel's image: some are in one release and not in another.
fn built_in(directory: &Path) -> Result<BTreeSet<String>> {
    let list = read(&directory.join("modules.builtin"))?;
    let names = String::from_utf8_lossy(&list).into_owned();
    let name = |line: &str| Some(canonical(Path::new(line).file_stem()?.to_str()?));
    Ok(names.lines().filter_map(name).collect())
}

/// '-' and '_' are the same in the name of a module.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Every module below a directory, by canonical name.
fn module_files(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).with_context(|| format!("no {}", directory.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                pending.push(path);
            } else if let Some((stem, "ko" | "ko.xz" | "ko.zst")) = name.split_once('.') {
                found.insert(canonical(stem), path);
            }
        }
    }
    Ok(found)
}

fn module_content(path: &Path) -> Result<Vec<u8>> {
    let unpack = |program: &str| Ok(run(Command::new(program).arg("-dc").arg(path))?.stdout);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => unpack("xz"),
        Some("zst") => unpack("zstd"),
        _ => read(path),
    }
}

/// The `key=value` texts of a module (its `.modinfo` section), as far as `depends` and `alias` go.
fn information(module: &[u8]) -> Vec<(&str, &str)> {
    module
        .split(|byte| *byte == 0)
        .filter_map(|text| std::str::from_utf8(text).ok()?.split_once('='))
        .filter(|(key, _)| matches!(*key, "depends" | "alias"))
        .collect()
}

/// Where Debian has libraries; the dynamic linker looks here without being told.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";

/// Adds programs of Debian packages, and all libraries of these packages.
fn add_debian(archive: &mut Archive, recipe: &Recipe) -> Result<()> {
    let (packages, programs) = (&recipe.debian_packages, &recipe.debian_programs);
    if packages.is_empty() {
        return Ok(());
    }
    for directory in [LIBRARIES, "lib64"] {
        archive.directory(directory);
    }
    archive.link("lib64/ld-linux-x86-64.so.2", &format!("/{LIBRARIES}/ld-linux-x86-64.so.2"));
    let mut missing: Vec<&String> = programs.iter().chain(&recipe.debian_files).collect();
    for name in packages {
        let directory = unpacked(name)?;
        for (path, program) in programs.iter().map(|program| (directory.join(program), program)) {
            if path.is_file() {
                missing.retain(|other| *other != program);
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                archive.file(&format!("bin/{name}"), 0o755, &read(&path)?);
            }
        }
        for wanted in &recipe.debian_files {
            if directory.join(wanted).exists() {
                missing.retain(|other| *other != wanted);
                add_parents(archive, Path::new(wanted));
                add_tree(archive, &directory, Path::new(wanted))?;
            }
        }
        for place in [LIBRARIES.to_owned(), format!("usr/{LIBRARIES}")] {
            add_libraries(archive, &directory.join(place))?;
        }
    }
    if let Some(program) = missing.first() {
        bail!("no package of the recipe has {program}");
    }
    Ok(())
}

/// The compiler of programs in C, which cargo links by, too.
const COMPILER: &str = "gcc";

/// How the name of a library ends that Debian's programs are started with.
const PRELOADED: &str = ".so";

/// A program of ours in C, or a library of that kind, made with Debian's headers and libraries as they are in the recipe's packages.
fn c_program(name: &str, libraries: &[String], recipe: &Recipe) -> Result<Vec<u8>> {
    let step = Step::begin(format!("building {name}"));
    let made = scratch()?.join(format!("{name}-{}", std::process::id()));
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&made);
    let source = name.strip_suffix(PRELOADED).unwrap_or(name);
    if source != name {
        compiler.args(["-shared", "-fPIC"]);
    }
    compiler.arg(root().join("guest/programs").join(format!("{source}.c")));
    for headers in &recipe.header_packages {
        compiler.arg("-I").arg(unpacked(headers)?.join("usr/include"));
    }
    // What these libraries need themselves is not looked for: the guest has it.
    compiler.arg("-Wl,--allow-shlib-undefined");
    for runtime in &recipe.debian_packages {
        compiler.arg("-L").arg(unpacked(runtime)?.join("usr").join(LIBRARIES));
    }
    compiler.args(libraries.iter().map(|library| format!("-l:{library}")));
    run(&mut compiler).with_context(|| format!("could not build {name}"))?;
    let bytes = read(&made)?;
    std::fs::remove_file(&made)?;
    step.done();
    Ok(bytes)
}

/// Adds the directories that a place is in.
fn add_parents(archive: &mut Archive, place: &Path) {
    let parents: Vec<&Path> = place.ancestors().skip(1).collect();
    parents
        .iter()
        .rev()
        .filter_map(|parent| parent.to_str())
        .filter(|parent| !parent.is_empty())
        .for_each(|parent| archive.directory(parent));
}

/// Adds what is at a place of a package, in the order of the names.
fn add_tree(archive: &mut Archive, package: &Path, place: &Path) -> Result<()> {
    let (path, member) = (package.join(place), place.to_str().context("a package has a strange name")?);
    if path.is_symlink() {
        let target = std::fs::read_link(&path)?;
        archive.link(member, target.to_str().context("a package has a strange name")?);
    } else if path.is_dir() {
        archive.directory(member);
        let entries: BTreeSet<_> =
            std::fs::read_dir(&path)?.flatten().map(|entry| entry.file_name()).collect();
        for name in entries {
            add_tree(archive, package, &place.join(name))?;
        }
    } else {
        // Programs that other programs start stay programs.
        let runs = path.metadata()?.permissions().mode() & 0o100 != 0;
        archive.file(member, if runs { 0o755 } else { 0o644 }, &read(&path)?);
    }
    Ok(())
}

/// Adds the libraries in a directory of a package, if it has that, in the order of their names.
fn add_libraries(archive: &mut Archive, directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).collect();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let member = format!("{LIBRARIES}/{name}");
        if !name.contains(".so") {
            continue;
        } else if path.is_symlink() {
            let target = std::fs::read_link(&path)?;
            // What is installed for compilers may point elsewhere, which no program asks for.
            if let Some(target) = target.to_str().filter(|target| !target.contains('/')) {
                archive.link(&member, target);
            }
        } else if path.is_file() {
            archive.file(&member, 0o755, &read(&path)?);
        }
    }
    Ok(())
}

/// Debian's static busybox, downloaded once.
pub fn busybox() -> Result<PathBuf> {
    let directory = cache().join("busybox");
    let binary = directory.join("bin/busybox");
    if !directory.join("version").exists() {
        let package = PackageName::parse("busybox-static").context("it is the name of a package")?;
        Apt::open()?.unpack(&package, &directory)?;
    }
    if !binary.exists() {
        bail!("Debian's busybox-static has no bin/busybox");
    }
    Ok(binary)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("could not read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_tells_what_it_needs() {
        let module = b"\x7fELF\0junk\0license=GPL\0depends=8390,mii\0alias=pci:v000010ECd00008029sv*\0\0";
        let expected = [("depends", "8390,mii"), ("alias", "pci:v000010ECd00008029sv*")];
        assert_eq!(information(module), expected);
    }

    #[test]
    fn dependencies_are_complete_and_in_order() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let needs = BTreeMap::from([
            ("nvme".to_owned(), of(&["nvme_core", "t10"])),
            ("nvme_core".to_owned(), of(&["t10"])),
            ("t10".to_owned(), of(&["crc"])),
        ]);
        assert_eq!(dependency_line("nvme", &needs), "nvme.ko: nvme_core.ko t10.ko crc.ko\n");
        assert_eq!(dependency_line("crc", &needs), "crc.ko: \n");
    }

    #[test]
    fn recipes_are_readable() {
        assert!(names().contains(&"ne2000-test".to_owned()));
    }
}
