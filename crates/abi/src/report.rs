//! What the hypervisor counted: free-running counters, read without stopping anyone.
//!
//! Counts are exact. "Access" means one port or memory access as the device sees it: a `rep outsw`
//! of 700 words is 700 *elements* and one *instruction*. Hooked accesses are counted as both, so
//! that shares can be stated in either convention.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The state of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Time since the hypervisor started, in nanoseconds of its TSC clock.
    pub uptime_ns: u64,
    /// Physical processors online.
    pub cpus: u16,
    /// Frequency of the time-stamp counter in kHz.
    pub tsc_khz: u64,
    /// Bytes of memory not given to anyone.
    pub free_memory: u64,
    /// The guests, in configuration order.
    pub domains: Vec<DomainReport>,
    /// The shared devices, in configuration order.
    pub devices: Vec<DeviceReport>,
    /// The virtual devices that domains serve for others, in configuration order.
    pub links: Vec<LinkReport>,
    /// The networks that engines serve, in configuration order.
    pub networks: Vec<NetworkReport>,
    /// What stands between devices and memory.
    pub iommu: IommuReport,
}

/// The IOMMUs of the machine, and what they did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IommuReport {
    /// The units; empty on a machine without.
    pub units: Vec<UnitReport>,
    /// Functions that can have one owner only, together.
    pub groups: Vec<GroupReport>,
    /// Requests that were refused, by requester, kind and direction.
    pub faults: Vec<FaultReport>,
    /// Refused requests beyond those.
    pub other_faults: u64,
}

/// One IOMMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitReport {
    /// "AMD-Vi" or "VT-d".
    pub kind: String,
    /// Physical address of its registers.
    pub base: u64,
    /// Interrupt requests are checked, too.
    pub remaps_interrupts: bool,
    /// What it was told to forget, as `kind.cause`: kinds are page, pages (a power of two of them), space,
    /// everything, device and interrupt; causes are attach, detach, revoke and whole (a space that begins or ends).
    pub flushes: Vec<Count>,
}

/// Functions that the IOMMU cannot keep apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Bus, device and function numbers.
    pub functions: Vec<String>,
    /// Names of those that the configuration declares.
    pub devices: Vec<String>,
    /// The domain that owns the group.
    pub domain: Option<String>,
}

/// Refused requests of one requester, alike in kind and direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Bus, device and function number of the requester.
    pub requester: String,
    /// Its name, if the configuration declares it.
    pub device: Option<String>,
    /// The domain that owned it.
    pub domain: Option<String>,
    /// Address of the last one, or the index of an interrupt.
    pub address: u64,
    /// They were writes. Interrupts are.
    pub write: bool,
    /// page, blocked, interrupt, table or other.
    pub kind: String,
    /// The unit's own number for the last one: event code, or fault reason.
    pub code: u16,
    /// How many.
    pub count: u64,
}

/// What a domain lends to its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// The number by which IOMMUs know it.
    pub tag: u16,
    /// Bytes that its devices reach.
    pub bytes: u64,
    /// Pages of 4 KiB, 2 MiB and 1 GiB in its tables.
    pub pages: [u64; 3],
}

/// The life of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DomainState {
    /// Built, not started.
    #[default]
    Created,
    /// At least one virtual processor may run.
    Running,
    /// Stopped by a command; can be resumed.
    Paused,
    /// The guest powered itself off.
    PoweredOff,
    /// Ended by a command.
    Destroyed,
    /// Ended because of something it did; see [`DomainReport::end_reason`].
    Crashed,
    /// Ended, and started again after a pause.
    Restarting,
}

impl DomainState {
    /// Its life is over: nothing of it can run, unless it begins another one.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::PoweredOff | Self::Destroyed | Self::Crashed | Self::Restarting)
    }

    /// The word for it, wherever one is shown.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::PoweredOff => "powered-off",
            Self::Destroyed => "destroyed",
            Self::Crashed => "crashed",
            Self::Restarting => "restarting",
        }
    }
}

/// A counter with its name, such as `("cpuid", 1042)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// What was counted.
    pub name: String,
    /// How often.
    pub value: u64,
}

/// One guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainReport {
    /// Name from the configuration.
    pub name: String,
    /// Where it is in its life.
    pub state: DomainState,
    /// Why it ended, where it did not power off by itself.
    pub end_reason: String,
    /// How often it was started again (its own reboots and commands).
    pub restarts: u32,
    /// Nanoseconds its virtual processors ran.
    pub run_ns: u64,
    /// VM exits by reason; only reasons that occurred.
    pub exits: Vec<Count>,
    /// Requests refused: illegal ports, MSRs, memory, device accesses.
    pub refused: Vec<Count>,
    /// Interrupts injected.
    pub interrupts: u64,
    /// What it lends to its devices, if an IOMMU stands before one.
    pub space: Option<SpaceReport>,
    /// What a paravirtual one asked for, as of its processor's last slice: hypercalls by name (`call.NAME`), operations on page tables (`tables.NAME`), `errors`,
    /// `updates` of entries, `refused` operations, `emulated` instructions, `exceptions` and `upcalls` that went to its kernel.
    pub paravirtual: Vec<Count>,
}

impl DomainReport {
    /// Adds what was counted in the domain's earlier lives.
    pub fn add_earlier(&mut self, earlier: &Self) {
        self.run_ns = self.run_ns.saturating_add(earlier.run_ns);
        self.interrupts = self.interrupts.saturating_add(earlier.interrupts);
        add_counts(&mut self.exits, &earlier.exits);
        add_counts(&mut self.refused, &earlier.refused);
        add_counts(&mut self.paravirtual, &earlier.paravirtual);
    }
}

impl ShareReport {
    /// Adds it to those of earlier uses: a domain has one share of a device in each mode, however often it was started again.
    pub fn add_to(self, shares: &mut Vec<Self>) {
        let same = |known: &&mut Self| known.domain == self.domain && known.mode == self.mode;
        let Some(known) = shares.iter_mut().find(same) else { return shares.push(self) };
        let sums = [
            (&mut known.hooked_elements, self.hooked_elements),
            (&mut known.hooked_instructions, self.hooked_instructions),
            (&mut known.forwarded_elements, self.forwarded_elements),
            (&mut known.tx_packets, self.tx_packets),
            (&mut known.tx_dropped, self.tx_dropped),
            (&mut known.rx_packets, self.rx_packets),
            (&mut known.rx_dropped, self.rx_dropped),
            (&mut known.forged, self.forged),
            (&mut known.commands, self.commands),
            (&mut known.sectors_read, self.sectors_read),
            (&mut known.sectors_written, self.sectors_written),
            (&mut known.refused, self.refused),
            (&mut known.waits, self.waits),
            (&mut known.wait_ns, self.wait_ns),
            (&mut known.held_ns, self.held_ns),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        add_counts(&mut known.hooked_by_register, &self.hooked_by_register);
    }
}

/// Adds counts by their names.
fn add_counts(to: &mut Vec<Count>, earlier: &[Count]) {
    for count in earlier {
        match to.iter_mut().find(|known| known.name == count.name) {
            Some(known) => known.value = known.value.saturating_add(count.value),
            None => to.push(count.clone()),
        }
    }
}

/// One physical device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Name from the configuration.
    pub name: String,
    /// Its device state model, or "passthrough".
    pub model: String,
    /// Domain that holds it now.
    pub holder: Option<String>,
    /// How often it changed hands.
    pub handoffs: u64,
    /// How often a hand-over had to be forced by a reset.
    pub forced: u64,
    /// Interrupts the physical device raised.
    pub interrupts: u64,
    /// What each sharing domain did with it.
    pub shares: Vec<ShareReport>,
}

/// A virtual device that one domain serves for another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// "guest.device".
    pub name: String,
    /// "net", "blk" or "file".
    pub kind: String,
    /// Whose device it is.
    pub guest: String,
    /// Who serves it.
    pub server: String,
    /// A back end has offered it to the guest.
    pub offered: bool,
    /// The guest's device status (Virtio 1.2, 2.1).
    pub status: u8,
    /// Another guest is in the foreground: what the person at the device does is not meant for this one.
    pub background: bool,
    /// Bytes of the window that the server has onto the guest.
    pub window: u64,
    /// Bytes of the guest's memory in it.
    pub lent: u64,
    /// Times that the guest told of available buffers: a VM exit of its each.
    pub kicks: u64,
    /// Times that the server told of used ones: a hypercall of its each.
    pub used: u64,
    /// Of a device file: bytes that were copied between the server and processes of the guest.
    pub copied: u64,
    /// Of a device file: copies that were refused, since the guest had not declared them.
    pub refused: u64,
    /// Share, limit (bits per second) and VLAN of it, where 0 is none, and what was counted at it, if an engine serves it.
    pub vif: Vec<Count>,
}

/// A network that engines serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkReport {
    /// Its name.
    pub name: String,
    /// Indices of the engines' processors.
    pub cores: Vec<u16>,
    /// What the engines did, and what came of frames that are no VIF's.
    pub counts: Vec<Count>,
}

/// One guest's use of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReport {
    /// The domain.
    pub domain: String,
    /// The mode it shares in.
    pub mode: String,
    /// Hooked accesses, in device elements.
    pub hooked_elements: u64,
    /// Hooked accesses, in instructions (one exit each).
    pub hooked_instructions: u64,
    /// Hooked accesses by register, in instructions.
    pub hooked_by_register: Vec<Count>,
    /// Accesses the hypervisor made to the device for this guest, in elements.
    pub forwarded_elements: u64,
    /// Frames this guest sent through the hypervisor's eyes (transmit commands seen).
    pub tx_packets: u64,
    /// Frames of this guest dropped because the wire did not take them in time.
    pub tx_dropped: u64,
    /// Frames delivered to this guest by the hypervisor.
    pub rx_packets: u64,
    /// Frames for this guest dropped because its queue was full.
    pub rx_dropped: u64,
    /// Frames of this guest dropped because they had another's source address.
    pub forged: u64,
    /// Commands that this guest wrote to its disk.
    pub commands: u64,
    /// Sectors that it read.
    pub sectors_read: u64,
    /// Sectors that it wrote.
    pub sectors_written: u64,
    /// Accesses refused by a check of the model; commands for a disk; frames and transfers to memory that are not the guest's to make.
    pub refused: u64,
    /// Times the guest had to wait for the device.
    pub waits: u64,
    /// Nanoseconds it waited in all.
    pub wait_ns: u64,
    /// Nanoseconds it held the device.
    pub held_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn count(name: &str, value: u64) -> Count {
        Count { name: name.into(), value }
    }

    #[test]
    fn a_domain_has_one_share_of_a_device_in_all_its_lives() {
        let share = |domain: &str, tx_packets: u64| ShareReport {
            domain: domain.into(),
            mode: "vpio".into(),
            tx_packets,
            wait_ns: 5,
            hooked_by_register: vec![count("CR", tx_packets)],
            ..ShareReport::default()
        };
        let mut shares = Vec::new();
        for life in [share("alice", 2), share("bob", 1), share("alice", 40)] {
            life.add_to(&mut shares);
        }
        assert_eq!(shares, [ShareReport { wait_ns: 10, ..share("alice", 42) }, share("bob", 1)]);
    }

    #[test]
    fn counters_go_on_in_the_next_life() {
        let earlier = DomainReport {
            state: DomainState::Crashed,
            run_ns: 100,
            interrupts: 7,
            exits: vec![count("cpuid", 5), count("hlt", 1)],
            refused: vec![count("msr", u64::MAX)],
            paravirtual: vec![count("call.iret", 4)],
            ..DomainReport::default()
        };
        let mut now = DomainReport {
            state: DomainState::Running,
            run_ns: 20,
            interrupts: 1,
            exits: vec![count("io.device", 2), count("cpuid", 3)],
            refused: vec![count("msr", 1)],
            ..DomainReport::default()
        };
        now.add_earlier(&earlier);
        assert_eq!((now.state, now.run_ns, now.interrupts), (DomainState::Running, 120, 8));
        assert_eq!(now.exits, [count("io.device", 2), count("cpuid", 8), count("hlt", 1)]);
        assert_eq!(now.refused, [count("msr", u64::MAX)], "no counter begins anew");
        assert_eq!(now.paravirtual, [count("call.iret", 4)]);
    }
}
