//! The cards, the modes, and the configurations they make.

use super::Bench;
use crate::bench::quoted;
use std::fmt::Write;

/// A card with its driver.
pub struct Card {
    /// Its name in rows.
    pub id: &'static str,
    /// The QEMU device.
    pub qemu: &'static str,
    pci: &'static str,
    /// How its registers are called in QEMU's trace.
    pub region: &'static str,
    /// What makes the guest take this driver, where the card leaves a choice.
    model: Option<&'static str>,
    /// It masters the bus.
    pub masters: bool,
}

/// All cards. The RTL8139 counts twice: as it is, which `8139cp` drives, and with the revision for which Linux
/// takes `8139too`. QEMU's has one revision only, so that the latter is there only where Sluice says what the guest finds.
pub const CARDS: [Card; 4] = [
    Card { id: "ne2000", qemu: "ne2k_pci", pci: "10ec:8029", region: "ne2000", model: None, masters: false },
    Card { id: "rtl8139", qemu: "rtl8139", pci: "10ec:8139", region: "rtl8139", model: None, masters: true },
    Card {
        id: "rtl8139too",
        qemu: "rtl8139",
        pci: "10ec:8139",
        region: "rtl8139",
        model: Some("rtl8139c"),
        masters: true,
    },
    Card { id: "e1000", qemu: "e1000", pci: "8086:100e", region: "e1000", model: None, masters: true },
];

/// A wire that two guests fill: either alone sends more.
pub const SLOW: &str = "20Mbit";

/// How a guest has the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its own; behind AMD-Vi if it masters the bus.
    Passthrough,
    /// Virtual passthrough without an IOMMU.
    Vpio,
    /// The same with the module that shares a page with the hypervisor.
    VpioSymbiotic,
    /// Virtual passthrough behind AMD-Vi.
    VpioAmd,
    /// The same with `registers = "unprotected"`.
    VpioOpen,
    /// A software card.
    Emulated,
}

impl Mode {
    /// Its name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Vpio => "vpio",
            Self::VpioSymbiotic => "vpio-symbiotic",
            Self::VpioAmd => "vpio-amd",
            Self::VpioOpen => "vpio-open",
            Self::Emulated => "emulated",
        }
    }

    /// By virtual passthrough.
    pub const fn is_vpio(self) -> bool {
        matches!(self, Self::Vpio | Self::VpioSymbiotic | Self::VpioAmd | Self::VpioOpen)
    }
}

impl Card {
    /// The modes it can be had in by one guest.
    pub fn modes(&self) -> &'static [Mode] {
        match (self.masters, self.model) {
            _ if self.id == "e1000" => &[
                Mode::Passthrough,
                Mode::Vpio,
                Mode::VpioSymbiotic,
                Mode::VpioAmd,
                Mode::VpioOpen,
                Mode::Emulated,
            ],
            (false, _) => &[Mode::Passthrough, Mode::Vpio, Mode::Emulated],
            (true, None) => &[Mode::Passthrough, Mode::Vpio, Mode::VpioAmd, Mode::VpioOpen, Mode::Emulated],
            // The card itself cannot be told to be of another revision.
            (true, Some(_)) => &[Mode::Vpio, Mode::VpioAmd, Mode::VpioOpen, Mode::Emulated],
        }
    }

    /// Linux and KVM can have it as it is.
    pub const fn is_plain(&self) -> bool {
        self.model.is_none()
    }

    /// How much is transferred each way by one guest: what is moved word by word takes longest.
    pub const fn bulk(&self) -> &'static str {
        if self.masters { "2M" } else { "1M" }
    }

    /// What one guest does: it downloads and uploads so much.
    pub fn bulk_job(&self, bulk: &str) -> String {
        format!("profile:down={bulk},up={bulk}{}", self.window())
    }

    /// The same, and then the paper's other two workloads.
    pub fn all_jobs(&self) -> String {
        format!("{},files=16,size=16K,lines=200", self.bulk_job(self.bulk()))
    }

    /// What several guests do at once.
    pub fn stream(&self, more: &str) -> String {
        format!("stream:up=2M,chunk=32K{more}{}", self.window())
    }

    /// The rings of the old cards hold less than what QEMU's network sends at once.
    const fn window(&self) -> &'static str {
        if self.masters && self.is_plain() { "" } else { ",window=12K" }
    }

    /// As [`Self::configuration`] by virtual passthrough, with a physical processor for each guest, and a wire that they fill: QEMU's
    /// network takes at once whatever a bus master sends.
    pub fn apart(&self, weights: &[u8], options: &str, bench: &Bench) -> String {
        let text = self.configuration(Mode::Vpio, weights, options, bench);
        let machine = format!("[machine]\ncpus = {}\n", weights.len());
        let text = text.replacen("[machine]\n", &machine, 1);
        let text = match self.masters {
            true => text.replacen("[device.nic0]\n", &format!("[device.nic0]\nrate = \"{SLOW}\"\n"), 1),
            false => text,
        };
        (0..weights.len()).fold(text, |text, index| {
            let name = format!("[domain.guest{index}]\n");
            text.replacen(&name, &format!("{name}cpus = [{index}]\n"), 1)
        })
    }

    /// A guest for each weight, all with the same job.
    pub fn configuration(&self, mode: Mode, weights: &[u8], options: &str, bench: &Bench) -> String {
        let iommu = match mode {
            Mode::Passthrough if self.masters => "amd",
            Mode::VpioAmd | Mode::VpioOpen => "amd",
            _ => "none",
        };
        let memory = 448 + 192 * weights.len();
        let mut text = format!(
            "[machine]\nmemory = \"{memory}MiB\"\niommu = \"{iommu}\"\n\
             [device.nic0]\npci = \"{}\"\nqemu = \"{}\"\nnet = \"user\"\n",
            self.pci, self.qemu
        );
        for (index, weight) in weights.iter().enumerate() {
            let mut entry = match mode {
                Mode::Passthrough => "mode = \"passthrough\"".to_owned(),
                Mode::Vpio | Mode::VpioSymbiotic | Mode::VpioAmd | Mode::VpioOpen => {
                    let open = if mode == Mode::VpioOpen { ", registers = \"unprotected\"" } else { "" };
                    format!("mode = \"vpio\", mac = \"52:54:00:00:00:{index:02x}\"{open}")
                }
                Mode::Emulated => format!("mode = \"emulated\", mac = \"52:54:00:00:00:{index:02x}\""),
            };
            if let Some(model) = self.model {
                let _ = write!(entry, ", model = \"{model}\"");
            }
            if *weight != 1 {
                let _ = write!(entry, ", weight = {weight}");
            }
            let _ = write!(
                text,
                "[domain.guest{index}]\nkernel = {}\ninitrd = {}\nmemory = \"192MiB\"\n\
                 cmdline = \"console=ttyS0 quiet {options}\"\n\
                 devices = [{{ use = \"nic0\", {entry} }}]\n",
                quoted(&bench.unpacked),
                quoted(if mode == Mode::VpioSymbiotic { &bench.symbiotic } else { &bench.initrd }),
            );
        }
        text
    }
}
