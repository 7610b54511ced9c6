//! The bundle: one newc cpio archive with the binary configuration and every kernel and initrd it names,
//! each stored once.

use crate::config::{Domain, Image, Setup, added_words, vif, virtio};
use crate::cpio::Archive;
use crate::disks::{self, BootFiles, Disk};
use crate::kernels::{self, Kernel};
use crate::rootfs;
use anyhow::{Context, Result, bail};
use sluice_abi::config::{self as abi, AtEnd};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A bundle, and what went into it.
pub struct Bundle {
    /// The archive.
    pub bytes: Vec<u8>,
    /// The configuration in it.
    pub config: abi::Config,
    /// What the named kernels turned out to be: name, release, package version.
    pub kernels: Vec<(String, String, String)>,
}

/// Collects everything a setup names. `extra_cmdline` is put in front of every guest's own command line; `at_end` is what the
/// machine does at the end if the setup does not say.
pub fn build(setup: &Setup, extra_cmdline: &str, at_end: AtEnd) -> Result<Bundle> {
    // Scenarios run side by side; one of them fills the cache.
    static CACHE: Mutex<()> = Mutex::new(());
    let _one_at_a_time = CACHE.lock();
    make_missing_disks(setup)?;
    let mut store = Store::default();
    let mut own_releases = Vec::new();
    let mut kernels_used: BTreeMap<String, Kernel> = BTreeMap::new();
    let mut domains = Vec::new();
    for domain in &setup.domains {
        let name = domain.name.get_ref();
        let mut own_kernel = None;
        let mut own_ramdisk = None;
        let kernel = match domain.kernel.get_ref() {
            Image::File(path) => store.member("kernel", path)?,
            Image::Named(name) => {
                let kernel = kernels::get(&kernels::for_kind(name, *domain.kind.get_ref()))?;
                kernels_used.insert(name.clone(), kernel.clone());
                store.member("kernel", &own_kernel.insert(kernel).image)?
            }
            Image::Disk(disk) => {
                let files = boot_files(domain, disk)?;
                own_ramdisk = files.ramdisk.map(|bytes| store.own(format!("initrd/of-{name}"), bytes));
                own_releases.push((format!("of disk {disk}"), files.release, String::new()));
                store.own(format!("kernel/of-{name}"), files.kernel)
            }
        };
        let initrd = match domain.initrd.as_ref().map(|initrd| initrd.get_ref()) {
            // One from a disk is named with its kernel only.
            None | Some(Image::Disk(_)) => own_ramdisk,
            Some(Image::File(path)) => Some(store.member("initrd", path)?),
            Some(Image::Named(rootfs)) => {
                let Some(kernel) = &own_kernel else {
                    bail!("'{name}' uses the root file system '{rootfs}', which needs a kernel by name");
                };
                Some(store.member("initrd", &rootfs::get(rootfs, kernel)?)?)
            }
        };
        domains.push(abi::Domain {
            name: name.to_string(),
            kernel,
            initrd,
            cmdline: command_line(setup, domain, extra_cmdline),
            memory: *domain.memory.get_ref(),
            vcpus: *domain.vcpus.get_ref(),
            cpus: domain.cpus.iter().map(|cpu| *cpu.get_ref()).collect(),
            paused: domain.paused,
            actions: domain.actions,
            devices: domain.shares.iter().map(|share| self::share(setup, share)).collect::<Result<_>>()?,
            virtio: virtio::compile(setup, domain),
            vifs: vif::compile(setup, domain),
            kind: *domain.kind.get_ref(),
            grants: domain.grants.as_ref().map_or(abi::Grants::None, |grants| *grants.get_ref()),
            peers: domain.peers.iter().map(|peer| peer.get_ref().clone()).collect(),
            control: domain.control,
        });
    }
    let devices = setup
        .devices
        .iter()
        .map(|device| abi::Device {
            name: device.name.get_ref().clone(),
            select: *device.select.get_ref(),
            rate: device.rate.as_ref().map(|rate| *rate.get_ref()),
        })
        .collect();
    let config = abi::Config {
        version: abi::VERSION,
        domains,
        neighbours: virtio::neighbours(setup).into_iter().map(str::to_owned).collect(),
        devices,
        networks: vif::compile_networks(setup),
        at_end: setup.machine.at_end.unwrap_or(at_end),
        focus: virtio::foreground(setup),
    };

    let mut archive = Archive::new();
    archive.file(sluice_abi::bundle::CONFIG, 0o644, &postcard::to_allocvec(&config).context("encoding")?);
    for (path, member) in &store.members {
        let content = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        archive.file(member, 0o644, &content);
    }
    for (member, content) in &store.own {
        archive.file(member, 0o644, content);
    }
    let mut kernels: Vec<_> =
        kernels_used.into_iter().map(|(name, kernel)| (name, kernel.release, kernel.version)).collect();
    kernels.extend(own_releases);
    Ok(Bundle { bytes: archive.finish(), config, kernels })
}

/// Makes the disks that the setup names and that are not there.
fn make_missing_disks(setup: &Setup) -> Result<()> {
    for disk in setup.devices.iter().flat_map(|device| &device.disks) {
        if let Disk::Named(name) = disk.get_ref()
            && !disk.get_ref().image().exists()
        {
            disks::make(&disks::Recipe::usual(name.clone()))?;
        }
    }
    Ok(())
}

/// What a guest has in its own `/boot`, with the module that it may need.
fn boot_files(domain: &Domain, disk: &Disk) -> Result<BootFiles> {
    let name = domain.name.get_ref();
    let mut files = disks::read_boot(&disk.image())?;
    sluice_loader::check(&files.kernel)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("'{name}' cannot boot its own Linux {}", files.release))?;
    if domain.is_given_module() {
        let ramdisk = disks::with_module(&files).with_context(|| {
            format!("'{name}' cannot have grants = \"pages\" with its own Linux {}", files.release)
        })?;
        files.ramdisk = Some(ramdisk);
    }
    Ok(files)
}

fn command_line(setup: &Setup, domain: &Domain, extra: &str) -> String {
    let words = format!("{extra} {}{}", domain.cmdline.get_ref(), added_words(setup, domain));
    words.trim().to_owned()
}

fn share(setup: &Setup, share: &crate::config::Share) -> Result<abi::Share> {
    Ok(abi::Share {
        device: setup.place_of(share.device.get_ref()).context("checked before")?,
        attachment: share.attachment(setup).context("checked before")?,
    })
}

/// Files and the names of their members.
#[derive(Default)]
struct Store {
    members: BTreeMap<PathBuf, String>,
    /// What is in no file, by the names of members.
    own: BTreeMap<String, Vec<u8>>,
}

impl Store {
    fn own(&mut self, member: String, content: Vec<u8>) -> String {
        self.own.insert(member.clone(), content);
        member
    }

    fn member(&mut self, kind: &str, path: &Path) -> Result<String> {
        let path = path.canonicalize().with_context(|| format!("could not find {}", path.display()))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = self.members.len();
        Ok(self.members.entry(path).or_insert_with(|| format!("{kind}/{number}-{file}")).clone())
    }
}
