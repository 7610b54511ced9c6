//! What a running instance says of itself, beside its socket: what the management channel does not know, since the hypervisor does
//! not either.
//!
//! `run` writes the file and keeps it up to date; it is replaced as a whole, so that nobody reads half of it.

use crate::config::{self, Image, Setup, format_mac};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The process that runs it.
    pub pid: u32,
    /// The folder of its consoles.
    pub consoles: PathBuf,
    /// Its domains, in the order of the configuration.
    pub domains: Vec<DomainInfo>,
}

/// One of its domains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DomainInfo {
    /// Its name.
    pub name: String,
    /// Its kernel, by name or path.
    pub kernel: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Virtual processors.
    pub vcpus: u8,
    /// Its network address, as it said itself: words of a guest.
    pub address: Option<String>,
    /// The file with its sshd's host key, where Sluice made its disk.
    pub known_hosts: Option<PathBuf>,
    /// TCP ports of this machine's 127.0.0.1, each with the one of the guest's that it leads to.
    pub forward: Vec<(u16, u16)>,
    /// Its devices.
    pub devices: Vec<ShareInfo>,
}

/// Its part in a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareInfo {
    /// Name of the device.
    pub device: String,
    /// How it is shared.
    pub mode: String,
    /// Station address.
    pub mac: Option<String>,
    /// The domain that serves it, if one does.
    pub by: Option<String>,
}

impl Info {
    /// What is known before it runs.
    pub fn new(setup: &Setup, consoles: &Path) -> Self {
        let share = |share: &config::Share| ShareInfo {
            device: share.device.get_ref().clone(),
            mode: share.mode.word().to_owned(),
            mac: share.mac.as_ref().map(|mac| format_mac(*mac.get_ref())),
            by: None,
        };
        let virtual_device = |device: &config::virtio::Virtio| ShareInfo {
            device: device.name.get_ref().to_string(),
            mode: config::virtio::MODE.to_owned(),
            mac: device.mac.as_ref().map(|mac| format_mac(*mac.get_ref())),
            by: Some(device.by.get_ref().clone()),
        };
        let vif = |vif: &config::vif::Vif| ShareInfo {
            device: vif.name.get_ref().to_string(),
            mode: config::vif::MODE.to_owned(),
            mac: Some(format_mac(*vif.mac.get_ref())),
            by: Some(format!("network {}", vif.network.get_ref())),
        };
        let domain = |domain: &config::Domain| DomainInfo {
            name: domain.name.get_ref().to_string(),
            kernel: match domain.kernel.get_ref() {
                Image::Named(name) => name.clone(),
                Image::File(path) => path.display().to_string(),
                Image::Disk(disk) => format!("disk {disk}"),
            },
            memory: *domain.memory.get_ref(),
            vcpus: *domain.vcpus.get_ref(),
            address: domain.address().map(|address| address.to_string()),
            known_hosts: match domain.kernel.get_ref() {
                Image::Disk(disk) => disk.known_hosts(),
                _ => None,
            },
            forward: domain
                .forward
                .iter()
                .map(|ports| (ports.get_ref().host, ports.get_ref().guest))
                .collect(),
            devices: domain
                .shares
                .iter()
                .map(share)
                .chain(domain.virtio.iter().map(virtual_device))
                .chain(domain.vifs.iter().map(vif))
                .collect(),
        };
        Self {
            pid: std::process::id(),
            consoles: consoles.canonicalize().unwrap_or_else(|_| consoles.to_owned()),
            domains: setup.domains.iter().map(domain).collect(),
        }
    }

    /// What is known of a domain.
    pub fn domain(&self, name: &str) -> DomainInfo {
        self.domains.iter().find(|domain| domain.name == name).cloned().unwrap_or_default()
    }
}

impl DomainInfo {
    /// Its station addresses.
    pub fn macs(&self) -> String {
        let macs: Vec<&str> = self.devices.iter().filter_map(|share| share.mac.as_deref()).collect();
        if macs.is_empty() { "-".to_owned() } else { macs.join(" ") }
    }
}
