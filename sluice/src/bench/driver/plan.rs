//! Peers and their guests: what [`kvm`](super::kvm) and [`xen`](super::xen) start, whatever it is for.

use super::{Load, MEMORY};

/// Another hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Linux with QEMU.
    Kvm,
    /// With Linux as dom0.
    Xen,
}

/// All there are.
pub const PEERS: [Peer; 2] = [Peer::Kvm, Peer::Xen];

impl Peer {
    /// Its name as a part, or a piece of one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Xen => "xen",
        }
    }

    /// How its rows begin.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Kvm => "peer.kvm",
            Self::Xen => "peer.xen",
        }
    }
}

/// Lines of a shell that put the machine's card on the bridge.
pub const UPLINK: &str = "brctl addif br0 eth0\nip link set eth0 up\n";

/// Guests, the bridge that they are on, and when all has been measured.
pub struct Plan {
    /// Name of the run, for its files.
    pub name: String,
    /// The last one is started first, so that the first finds all others.
    pub guests: Vec<Planned>,
    /// Memory of each in bytes.
    pub memory: u64,
    /// The machine's card is on their bridge.
    pub has_wire: bool,
    /// A key that is reported when all has been measured and compared.
    pub last: &'static str,
}

/// One of the guests.
pub struct Planned {
    /// Its kernel's command line; the console is a serial port.
    pub cmdline: String,
    /// What it has.
    pub device: Device,
    /// It reports this, which others wait for, and nothing else that is of interest.
    pub waits: Option<&'static str>,
}

/// A guest's only device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The machine's disk.
    Disk,
    /// A network card of this address.
    Net(String),
}

impl Plan {
    /// The guests of a load. `words` begin their command lines.
    pub fn of(load: Load, peer: &str, words: &str) -> Self {
        let guest = |number: usize| Planned {
            cmdline: load.cmdline(number, words),
            device: if load.has_disk() {
                Device::Disk
            } else {
                Device::Net(format!("52:54:00:00:00:{:02x}", 0x0a + number))
            },
            waits: None,
        };
        Self {
            name: format!("driver-{peer}-{}", load.name()),
            guests: (0..load.jobs().len()).map(guest).collect(),
            memory: MEMORY,
            has_wire: true,
            last: load.last(),
        }
    }

    /// MiB of each guest.
    pub const fn mib(&self) -> u32 {
        (self.memory >> 20) as u32
    }

    /// Memory of the machine in MiB: `host`, and what the guests take, each with so much beside its own, but no less than loads of one or two guests have.
    pub fn machine(&self, host: u32, beside: u32) -> u32 {
        (host + self.guests.len() as u32 * (self.mib() + beside)).max(1536)
    }

    /// The lines of a shell that put the machine's card on the bridge.
    pub const fn uplink(&self) -> &'static str {
        if self.has_wire { UPLINK } else { "" }
    }

    /// The lines of a shell that wait until all guests are where they should be before the first one is started. `log` is where the console of one is kept.
    pub fn settled(&self, log: impl Fn(usize) -> String) -> String {
        let waiting = |(number, guest): (usize, &Planned)| guest.waits.map(|said| (log(number), said));
        let lines = self.guests.iter().enumerate().filter_map(waiting);
        lines.map(|(log, said)| format!("until grep -q {said} {log}; do sleep 1; done\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_waited_for_by_nobody() {
        let mut plan = Plan::of(Load::Inter, "kvm", "");
        assert_eq!(
            (plan.machine(1024, 64), plan.settled(|number| format!("/{number}"))),
            (1536, String::new())
        );
        plan.guests[1].waits = Some("waiting=yes");
        let lines = plan.settled(|number| format!("/{number}"));
        assert_eq!(lines, "until grep -q waiting=yes /1; do sleep 1; done\n");
    }
}
