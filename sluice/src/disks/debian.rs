//! Makes a disk with a Debian on it: systemd, sshd, keys. mmdebstrap installs the packages once for each recipe and suite, without
//! privileges; each disk begins as a copy of that. Or it begins as a copy of an image of somebody else's.

use super::personal::personalize;
use super::store::Disk;
use crate::name::Name;
use crate::progress::{self, Position, Step, Stream};
use crate::workspace::{cache, hex, images, is_installed, root, run, scratch, write_whole};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a disk, if nobody says.
const USUAL_SIZE: u64 = 4 << 30;

/// Bytes of a fresh system's file system: it fits, and can grow.
const LEAST_SIZE: u64 = 2 << 30;

/// How an image in QEMU's own format begins.
const QCOW2: &[u8] = b"QFI\xfb";

/// How a file system is made of an archive. The kernel mounts its own `/dev`.
const PACK: &str = "mkdir -p root/dev && tar -C root -xf tar && rm tar && \
                    PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -L root -m 1 -d root image \"$1\"";

/// What is installed, and how: `guest/debian/recipe.toml`.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct Packages {
    packages: Vec<String>,
    commands: Vec<String>,
}

/// What a disk is made of.
pub struct Recipe {
    /// What it is called, and the system on it.
    pub name: Name,
    /// Debian's release.
    pub suite: String,
    /// Bytes, if the user says.
    pub size: Option<u64>,
    /// An image to begin with, instead of a fresh Debian.
    pub from: Option<PathBuf>,
    /// Replace a disk of this name, and all data on it.
    pub force: bool,
}

impl Recipe {
    /// What a run makes of a disk that a configuration names, if there is none.
    pub fn usual(name: Name) -> Self {
        Self { name, suite: "bookworm".to_owned(), size: None, from: None, force: false }
    }
}

/// Makes the disk.
pub fn make(recipe: &Recipe) -> Result<Disk> {
    let name = &recipe.name;
    let disk = Disk::Named(name.clone());
    let image = disk.image();
    let shown = image.display();
    if image.exists() && !recipe.force {
        bail!(
            "there is a disk '{name}' already, {shown}\nhelp: choose another name; --force replaces it and loses all data on it"
        );
    }
    needs(&["mke2fs", "debugfs", "ssh-keygen"])?;
    let base = match &recipe.from {
        Some(file) => file.clone(),
        None => base(&recipe.suite)?,
    };
    let folder = image.parent().context("it has a folder")?;
    // Others could read keys in an image.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("could not create {}", folder.display()))?;
    let step = Step::begin(format!("making the disk {name}"));
    let own = tempfile::Builder::new().prefix(".making-").tempdir_in(images())?;
    let fresh = own.path().join("disk");
    copy(&base, &fresh)?;
    grow(&fresh, recipe.size, recipe.from.is_none())?;
    let host_key = personalize(&fresh, name, own.path())
        .with_context(|| format!("could not make '{name}' of {}", base.display()))?;
    write_whole(&disk.known_hosts().context("it has a name")?, host_key.as_bytes())?;
    std::fs::rename(&fresh, &image).with_context(|| format!("could not write {shown}"))?;
    step.done();
    Ok(disk)
}

/// A copy, converted where it is in QEMU's format. What is empty takes no room.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut magic = [0; 4];
    let read = File::open(from).and_then(|mut file| file.read_exact(&mut magic));
    read.with_context(|| format!("could not read {}", from.display()))?;
    let mut command = if magic == QCOW2 {
        if !is_installed("qemu-img".as_ref()) {
            bail!(
                "{} is in the format qcow2, and there is no qemu-img: install Debian's qemu-utils",
                from.display()
            );
        }
        let mut command = Command::new("qemu-img");
        command.args(["convert", "-O", "raw", "-S", "4k"]);
        command
    } else {
        let mut command = Command::new("cp");
        command.args(["--sparse=always", "--reflink=auto"]);
        command
    };
    run(command.arg("--").arg(from).arg(to)).with_context(|| format!("could not copy {}", from.display()))?;
    Ok(())
}

/// Makes an image larger; the file system in it as well, where there are no partitions.
fn grow(image: &Path, wanted: Option<u64>, is_ours: bool) -> Result<()> {
    let length = std::fs::metadata(image)?.len();
    let usual = if is_ours { USUAL_SIZE } else { length };
    let size = wanted.unwrap_or(usual);
    if size < length {
        bail!("the image has {} MiB already: give it a larger --size", length.div_ceil(1 << 20));
    }
    let file = File::options().write(true).open(image).context("could not open the copy")?;
    file.set_len(size.next_multiple_of(1 << 20)).context("could not make the copy larger")?;
    if is_ours {
        run(Command::new("resize2fs").arg("-f").arg(image))
            .context("could not make the file system larger")?;
    }
    Ok(())
}

fn needs(programs: &[&str]) -> Result<()> {
    // Those for file systems are where only root looks.
    let is_there = |program: &str| {
        is_installed(program.as_ref())
            || ["/usr/sbin", "/sbin"].iter().any(|at| Path::new(at).join(program).is_file())
    };
    match programs.iter().find(|program| !is_there(program)) {
        Some(program) => bail!("{program} is missing; setup/packages.sh installs what Sluice needs"),
        None => Ok(()),
    }
}

/// The image that fresh disks begin with, made if the cache has none of this recipe.
fn base(suite: &str) -> Result<PathBuf> {
    let home = root().join("guest/debian");
    let text = std::fs::read_to_string(home.join("recipe.toml"))
        .context("could not read guest/debian/recipe.toml")?;
    let packages: Packages = toml::from_str(&text).context("guest/debian/recipe.toml is wrong")?;
    let mut digest = Sha256::new();
    digest.update(serde_json::to_vec(&packages)?);
    digest.update(suite);
    digest.update(PACK);
    let mut files = Vec::new();
    list(&home.join("files"), &mut files)?;
    for file in &files {
        digest.update(file.strip_prefix(&home)?.as_os_str().as_encoded_bytes());
        digest.update(std::fs::read(file)?);
    }
    let digest = hex(&digest.finalize());
    let image = cache().join("disks").join(format!("debian-{suite}-{}.ext4", &digest[..12]));
    if !image.exists() {
        needs(&["mmdebstrap", "fakeroot"])?;
        let folder = image.parent().context("it has a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
        let own = tempfile::Builder::new().prefix(".making-").tempdir_in(folder)?;
        install(&packages, suite, &home.join("files"), &own.path().join("tar"))?;
        pack(own.path())?;
        std::fs::rename(own.path().join("image"), &image).context("could not write to the cache")?;
    }
    Ok(image)
}

/// All files below a folder, in an order that stays.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("there is no {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() { list(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

/// Installs the packages; what comes of it is a tar archive, which holds whose each file is.
fn install(packages: &Packages, suite: &str, files: &Path, tar: &Path) -> Result<()> {
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", "--skip=output/dev", "--format=tar"]);
    command.arg(format!("--include={}", packages.packages.join(",")));
    for left_out in ["doc", "man", "locale"] {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{left_out}/*"));
    }
    // Reached through a descriptor of its own: who installs may be another user than who may look into this folder.
    command.arg(format!("--setup-hook=sync-in '{}' /", files.display()));
    for line in &packages.commands {
        command.arg(format!("--customize-hook=chroot \"$1\" sh -c '{line}'"));
    }
    command.arg(suite).arg(tar).current_dir(scratch()?);
    let step = Step::begin(format!("installing Debian's {suite} for guests, once"));
    progress::watch(&mut command, Stream::Error, &step, mmdebstrap).with_context(|| {
        format!("could not install Debian's {suite}; mmdebstrap needs Debian's package uidmap and a line for you in /etc/subuid")
    })?;
    step.done();
    Ok(())
}

/// What a line of mmdebstrap's says.
fn mmdebstrap(line: &str) -> Option<Option<Position>> {
    match line.split_once(": ") {
        Some(("I", what)) => Some(Some(Position::Note(what.to_owned()))),
        Some(("E" | "W", _)) => None,
        _ => Some(None),
    }
}

/// Makes a file system, `image`, of the archive `tar`. fakeroot lets files belong to whom the archive says.
fn pack(own: &Path) -> Result<()> {
    let step = Step::begin("packing the fresh system");
    run(Command::new("fakeroot")
        .args(["--", "sh", "-c", PACK, "sh", &format!("{}M", LEAST_SIZE >> 20)])
        .current_dir(own))?;
    step.done();
    Ok(())
}
