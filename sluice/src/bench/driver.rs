//! Virtual disks and network cards that another domain serves, beside those of KVM and Xen: the same guest kernel, the same load, the same
//! emulated machine with one processor, an e1000 and an NVMe disk. Who executes instructions is told apart by [`split`](super::split).
//!
//! [`vif`] compares a driver domain with an engine, [`sharing`] has an engine's guests share a wire that is full ([`busy`]), [`many`] puts more of them on a network, [`talking`] has all of these talk at once, [`latency`] sees how long that takes them, [`pingpong`] how processors pass a word, [`granted`] ways to lend memory to whom serves. [`sluice`] runs ours, [`peers`] others' guests ([`plan`]): [`kvm`] a Debian host with vhost-net and virtio-blk, [`xen`] a Debian dom0 with netback and blkback. [`rows`] makes rows of the counts, [`restarts`] ends the
//! daemon and the driver domain under load, again and again.

mod busy;
mod granted;
mod kvm;
mod latency;
mod many;
mod peers;
mod pingpong;
mod plan;
mod restarts;
mod rows;
mod sharing;
mod sluice;
mod stages;
mod talking;
mod vif;
pub mod xen;

pub use restarts::{TIMES, Victim};
pub use sluice::{StopDriver, check};

use super::attack::Attack;
use super::parts::Parts;
use super::record::Record;
use super::split::Split;
use super::{kernel, note, plugin};
use crate::kernels::{self, Kernel};
use crate::outcome::Guest;
use crate::rootfs;
use anyhow::Result;
use plan::Peer;
use sluice_abi::report::Report;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Its parts.
pub const PARTS: [&str; 5] = ["sluice", "kvm", "xen", "restarts", "attacks"];

/// Of a guest against the transport and its server, of a server that was taken over against its guest, and of a control domain.
const ATTACKS: [Attack; 3] = [
    Attack {
        id: "virtio",
        scenario: "hostile-virtio-pages",
        tried: &["virtio.tried", "grants_tried"],
        succeeded: &["grants_succeeded"],
    },
    Attack { id: "server", scenario: "hostile-server-amd", tried: &["attacks"], succeeded: &["succeeded"] },
    Attack { id: "control", scenario: "hostile-control", tried: &["attacks"], succeeded: &["succeeded"] },
];

/// What the guests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// One downloads and uploads over TCP.
    Net,
    /// One writes and reads a disk.
    Disk,
    /// One sends to the other over TCP.
    Inter,
}

const LOADS: [Load; 3] = [Load::Net, Load::Disk, Load::Inter];

/// How guests lend memory to whom serves their devices.
#[derive(Clone, Copy, Debug)]
struct Lends {
    /// Its name in rows.
    name: &'static str,
    /// The guests' kernel: one of [`OLDER`] and [`NEWER`].
    kernel: &'static str,
    /// As the configuration has it.
    grants: &'static str,
    /// Of the module that issues pages, on the command line of the guests.
    options: &'static str,
    /// Of who serves them, in the job of the driver domain.
    serving: &'static str,
    about: &'static str,
    /// What it is measured with.
    loads: &'static [Load],
    /// What it costs is what it takes beyond this one.
    beyond: &'static str,
}

/// With network cards.
const CARDS: [Load; 2] = [Load::Net, Load::Inter];

/// As in all but the comparison of grants.
const ALL: Lends = Lends {
    name: "all",
    kernel: OLDER,
    grants: "all",
    options: "",
    serving: "",
    about: "all memory is lent",
    loads: &LOADS,
    beyond: "all",
};

/// The same, where the daemon moves packets: it does so of guests that lend by a table, of which vhost-net knows nothing.
const DAEMON_ALL: Lends = Lends {
    name: "daemon_all",
    serving: ",packets=daemon",
    about: "all memory is lent; the daemon moves packets",
    loads: &CARDS,
    beyond: "daemon_all",
    ..ALL
};

/// The same with Linux 6.12, which has a driver of the IOMMU.
const NEWER_ALL: Lends = Lends {
    name: "newer_all",
    kernel: NEWER,
    about: "all memory is lent, by Linux 6.12",
    beyond: "newer_all",
    ..ALL
};

/// All that others are compared with.
const BASES: [Lends; 3] = [ALL, DAEMON_ALL, NEWER_ALL];

/// Ways to lend single pages: the older ones, and of the newer one from the dearest to the cheapest, and where that does not help, since a program has more buffers than pages stay issued.
const BY_PAGE: [Lends; 9] = [
    Lends {
        name: "old",
        grants: "pages",
        options: "sluice_dma.table=1 ",
        about: "pages are lent by a table, and mapped and unmapped by the driver domain for each request",
        loads: &[Load::Disk],
        ..ALL
    },
    Lends {
        name: "old",
        grants: "pages",
        options: "sluice_dma.table=1 ",
        serving: ",table=map",
        about: "pages are lent by a table, and mapped and unmapped by the driver domain for each packet; the daemon moves packets",
        ..DAEMON_ALL
    },
    Lends {
        name: "copy",
        grants: "pages",
        options: "sluice_dma.table=1 ",
        serving: ",table=copy",
        about: "pages are lent by a table, and packets copied; the daemon moves packets",
        ..DAEMON_ALL
    },
    Lends {
        name: "each",
        grants: "pages",
        options: "sluice_dma.reuse=0 ",
        about: "pages are issued when they are mapped and revoked when they are unmapped",
        ..ALL
    },
    Lends {
        name: "held",
        grants: "pages",
        options: "sluice_dma.pooled=0 ",
        about: "pages stay issued, and are revoked when others need their place",
        ..ALL
    },
    Lends {
        name: "new",
        grants: "pages",
        about: "the same, and network buffers come from pools of issued pages",
        ..ALL
    },
    Lends { name: "daemon_new", grants: "pages", about: "as new; the daemon moves packets", ..DAEMON_ALL },
    Lends {
        name: "beyond",
        grants: "pages",
        options: "sluice_dma.pages=2048 ",
        about: "as new, with half as many pages that stay issued as the program has in its buffers",
        loads: &[Load::Disk],
        ..ALL
    },
    Lends {
        name: "iommu",
        grants: "iommu",
        about: "pages are mapped and unmapped for each use in an IOMMU that Linux 6.12 drives; no module",
        ..NEWER_ALL
    },
];

/// The kernel of all that is measured, and the one that has a driver of virtio-iommu.
const OLDER: &str = "debian-6.1";
const NEWER: &str = "debian-6.12";

/// Memory of each guest in bytes.
const MEMORY: u64 = 192 << 20;

/// A disk of zeros that forgets at the end what was written.
pub const DRIVE: &str =
    "if=none,id=disk0,file=null-co://,file.size=67108864,file.read-zeroes=on,format=raw,snapshot=on";

/// What a peer's machine has.
const DEVICES: [&str; 8] = [
    "-netdev",
    "user,id=net0",
    "-device",
    "e1000,netdev=net0,romfile=",
    "-drive",
    DRIVE,
    "-device",
    "nvme,serial=sluice,drive=disk0",
];

impl Load {
    const fn name(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Disk => "disk",
            Self::Inter => "inter",
        }
    }

    /// The jobs of its guests. The first sets marks.
    const fn jobs(self) -> &'static [&'static str] {
        match self {
            Self::Net => &["load:net,mib=16"],
            Self::Disk => &["load:disk,mib=16,requests=2048"],
            Self::Inter => &["load:talk,at=10.9.0.2,to=10.9.0.1,mib=8", "load:listen,at=10.9.0.1,mib=8"],
        }
    }

    /// What is reported when all has been measured and compared. The one who takes data ends before the one who sends them.
    const fn last(self) -> &'static str {
        match self {
            Self::Net | Self::Disk => "done",
            Self::Inter => "sent",
        }
    }

    /// What its guests count.
    const fn operations(self) -> &'static str {
        if self.has_disk() {
            "requests of the program"
        } else {
            "segments of 1,448 bytes and acknowledgements"
        }
    }

    const fn has_disk(self) -> bool {
        matches!(self, Self::Disk)
    }

    /// The command line of a guest.
    fn cmdline(self, guest: usize, server: &str) -> String {
        let marks = if guest == 0 { "sluice.marks=1 " } else { "" };
        format!("console=ttyS0 quiet {server}{marks}sluice.job={}", self.jobs()[guest])
    }
}

/// What all runs have in common.
struct Bench {
    /// With loads as their pieces.
    parts: Parts,
    plugin: PathBuf,
    kernel: Kernel,
    /// The same kernel as it is after it has unpacked itself.
    unpacked: PathBuf,
    /// The guests' root file system.
    initrd: PathBuf,
    /// That of guests whose interfaces are 82540EMs.
    cards: PathBuf,
    /// The driver domain's.
    serving: PathBuf,
}

impl Bench {
    fn new(only: &[String]) -> Result<Self> {
        let kernel = kernels::get(OLDER)?;
        Ok(Self {
            parts: Parts::new(only),
            plugin: plugin::build()?,
            unpacked: kernel::unpacked(&kernel)?,
            initrd: rootfs::get("virtio-load", &kernel)?,
            cards: rootfs::get("card-load", &kernel)?,
            serving: rootfs::get("driver-domain", &kernel)?,
            kernel,
        })
    }

    /// What guests with this kernel start with.
    fn image(&self, kernel: &str) -> Result<Image> {
        if kernel == OLDER {
            return Ok(Image { kernel: self.unpacked.clone(), initrd: self.initrd.clone() });
        }
        let kernel = kernels::get(kernel)?;
        Ok(Image { kernel: kernel::unpacked(&kernel)?, initrd: rootfs::get("iommu-load", &kernel)? })
    }

    /// Runs the loads that are wanted of a system.
    fn system(
        &self,
        record: &mut Record,
        name: &str,
        loads: &[Load],
        run: &dyn Fn(Load, &mut Record) -> Result<()>,
    ) {
        self.pieces(
            record,
            name,
            loads.iter().copied(),
            |load| load.name().to_owned(),
            |record, load| run(*load, record),
        );
    }

    /// Does the pieces of a part that are wanted.
    fn pieces<T>(
        &self,
        record: &mut Record,
        part: &str,
        all: impl IntoIterator<Item = T>,
        name: impl Fn(&T) -> String,
        run: impl Fn(&mut Record, &T) -> Result<()>,
    ) {
        for piece in all {
            let name = name(&piece);
            if self.parts.wants(part, Some(&name)) {
                let what = format!("{part}, {name}");
                self.parts.say(&what);
                let result = run(record, &piece);
                note(record, &what, result);
            }
        }
    }

    /// Runs scenarios with attackers, if that part is wanted.
    fn attacks(&self, record: &mut Record, part: &str, attacks: &[Attack]) {
        for attack in attacks.iter().filter(|_| self.parts.wants(part, None)) {
            self.parts.say(attack.scenario);
            let result = attack.measure(record);
            note(record, attack.scenario, result);
        }
    }
}

/// A guest's kernel as it is after it has unpacked itself, and its root file system.
struct Image {
    kernel: PathBuf,
    initrd: PathBuf,
}

/// What came of a load.
struct Measured {
    /// What its guests reported.
    guests: Vec<Guest>,
    split: Split,
    /// Those of the machine's guests that serve the others, by their VMCBs.
    servers: BTreeSet<u64>,
    /// What the hypervisor counted, if it is ours.
    report: Option<Report>,
}

/// Measures what is wanted.
pub fn measure(record: &mut Record, only: &[String]) -> Result<()> {
    let bench = Bench::new(only)?;
    bench.system(record, "sluice", &LOADS, &|load, record| {
        let measured = sluice::run(&bench, load, ALL, 1, record)?;
        rows::shares(record, "driver_domain", load, &measured)
    });
    bench.system(record, "kvm", &LOADS, &|load, record| peers::load(&bench, Peer::Kvm, load, record));
    bench.system(record, "xen", &LOADS, &|load, record| peers::load(&bench, Peer::Xen, load, record));
    restarts::measure(&bench, record);
    bench.attacks(record, PARTS[4], &ATTACKS);
    rows::figures(record)
}

/// On those who serve guests that lend single pages, and by such guests.
const ON_PAGES: [Attack; 5] = [
    Attack {
        id: "isolation.driver.pages",
        scenario: "hostile-secrets-pages",
        tried: &["looked_at"],
        succeeded: &["secrets", "altered"],
    },
    Attack {
        id: "isolation.driver.iommu",
        scenario: "hostile-secrets-iommu",
        tried: &["looked_at"],
        succeeded: &["secrets", "altered"],
    },
    Attack {
        id: "isolation.guest.pages",
        scenario: "hostile-virtio-pages",
        tried: &["virtio.tried", "grants_tried"],
        succeeded: &["grants_succeeded"],
    },
    Attack {
        id: "isolation.guest.iommu",
        scenario: "hostile-iommu",
        tried: &[
            "memory_tried",
            "ranges_tried",
            "endpoints_tried",
            "twice_tried",
            "widened_tried",
            "parts_tried",
            "bytes_tried",
            "chains_tried",
            "rings_tried",
            "jumps_tried",
            "resets_tried",
            "raced_tried",
            "late_tried",
            "stale_tried",
            "flight_tried",
            "read_only_tried",
            "calls_tried",
        ],
        succeeded: &[
            "memory_succeeded",
            "ranges_succeeded",
            "endpoints_succeeded",
            "twice_succeeded",
            "widened_succeeded",
            "parts_succeeded",
            "bytes_succeeded",
            "chains_succeeded",
            "rings_succeeded",
            "jumps_succeeded",
            "resets_succeeded",
            "raced_succeeded",
            "late_succeeded",
            "stale_succeeded",
            "flight_succeeded",
            "read_only_succeeded",
            "calls_succeeded",
        ],
    },
    Attack { id: "isolation.peers", scenario: "grants", tried: &["tried"], succeeded: &["succeeded"] },
];

/// Parts of the comparison of grants.
pub const LENT: [&str; 11] =
    ["all", "daemon_all", "newer_all", "old", "copy", "each", "held", "new", "daemon_new", "beyond", "iommu"];

/// What is tried against guests that lend single pages, and by them.
pub const ATTACKED: &str = "attacks";

/// Measures what it costs that guests lend their memory page by page.
pub fn measure_grants(record: &mut Record, only: &[String]) -> Result<()> {
    let bench = Bench::new(only)?;
    for lends in BASES.into_iter().chain(BY_PAGE) {
        bench.system(record, lends.name, lends.loads, &|load, record| {
            let measured = sluice::run(&bench, load, lends, 1, record)?;
            granted::shares(record, lends, load, &measured)
        });
    }
    bench.attacks(record, ATTACKED, &ON_PAGES);
    granted::figures(record)
}

/// Parts of the comparison of engines with driver domains.
pub const SERVED: [&str; 18] = [
    "vif",
    "domain",
    "attacks",
    "engines",
    sharing::PART,
    "82574",
    "face",
    many::PART,
    peers::PART,
    "native",
    "queues",
    talking::PART,
    latency::PART,
    pingpong::PART,
    "apart",
    "vpio",
    "emulated",
    stages::PART,
];

/// Of a guest on an engine that serves its neighbour, too, with each face.
const ON_ENGINE: [Attack; 3] = [
    Attack {
        id: "vif.virtio",
        scenario: "hostile-vif",
        tried: &["vif.tried"],
        succeeded: &["grants_succeeded"],
    },
    Attack {
        id: "vif.e1000",
        scenario: "hostile-face",
        tried: &["face.tried"],
        succeeded: &["face.succeeded"],
    },
    Attack {
        id: "vif.native",
        scenario: "hostile-native",
        tried: &["native.tried"],
        succeeded: &["native.succeeded"],
    },
];

/// Measures network cards that an engine serves, and beside them those of a driver domain.
pub fn measure_vif(record: &mut Record, only: &[String]) -> Result<()> {
    let bench = Bench::new(only)?;
    let loads = [Load::Net, Load::Inter];
    for (part, system, loads) in [
        (SERVED[0], &vif::ENGINE, &loads[..]),
        (SERVED[5], &vif::CHECKING, &[Load::Net]),
        (SERVED[6], &vif::CARD, &loads),
        (SERVED[9], &vif::NATIVE, &loads),
        (SERVED[1], &vif::DOMAIN, &loads),
        (SERVED[14], &vif::APART, &loads),
        (SERVED[15], &vif::VPIO, &loads),
        (SERVED[16], &vif::EMULATED, &loads),
    ] {
        bench.system(record, part, loads, &|load, record| vif::load(&bench, load, system, record));
    }
    for (part, all) in [(SERVED[3], &vif::ENGINES[..]), (SERVED[10], &vif::QUEUES)] {
        bench.system(record, part, &loads, &|load, record| {
            all.iter().try_for_each(|engines| {
                let measured = vif::run_engines(&bench, load, engines, record)?;
                vif::engine_rows(record, engines, load, &measured)
            })
        });
    }
    bench.attacks(record, SERVED[2], &ON_ENGINE);
    sharing::measure(&bench, record);
    many::measure(&bench, record);
    talking::measure(&bench, record);
    latency::measure(&bench, record);
    pingpong::measure(&bench, record);
    stages::measure(&bench, record);
    peers::measure(&bench, record)?;
    vif::figures(record)
}
