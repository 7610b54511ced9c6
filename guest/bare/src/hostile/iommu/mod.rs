//! An IOMMU that the guest drives (`grants = "iommu"`), driven by who wants more than its own memory to be reached by its devices, and to have
//! them reach what it has taken back: requests of any bytes, chains and rings that lead nowhere, memory that is not its own, ranges that are none,
//! endpoints that are not there, resets in the middle of requests. Whether a page is issued to the disk behind the IOMMU it asks the hypervisor (`GRANT_QUERY`);
//! whether the disk reaches it, the disk. In between, what a driver does must work.
//!
//! Source: Virtio 1.2, 5.13.

mod driver;
mod maps;
mod places;
mod reach;
mod resets;
mod wild;

use super::pages::{PAGE, fill, holds};
use super::virtio::{self, BUFFERS, Device, Kind, PATIENCE, USED};
use crate::console::println;
use crate::dma::memory::{Own, get, put};
use crate::entry::BootInfo;
use crate::machine::call;
use crate::machine::{sleep, wait_for};
use crate::pci;
use crate::random::Random;
use driver::{DONE, Driver, Outcome, Request, WRITE};
use sluice_hypercall::grant as hc;

/// The first address that devices can have: where the RAM above the hole begins.
const FIRST: u64 = 1 << 20;
/// The address space of the disk.
const DOMAIN: u32 = 1;
/// Pages of each of two parts of memory, and of the addresses that they are mapped at.
const PAGES: u64 = 16;
/// Bytes for the disk's queue, and what is asked of it.
const QUEUE: u64 = 0x1_0000;
/// What memory holds before the disk writes to it, which writes zeros.
const HELD: u32 = 0x5a5a_5a5a;
/// The vendor and device of a source of random numbers, the other device behind the IOMMU.
const ENTROPY: u32 = 0x1044_1af4;

/// Number of the device in a slot (5.13.2).
const fn endpoint(slot: u32) -> u32 {
    slot << 3
}

/// Runs the attacks.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let mut own = Own::new(boot);
    let Some((iommu, mut disk)) = Driver::find(&mut own).zip(Device::take(Kind::Disk, &mut own)) else {
        println!("no IOMMU, or no disk behind it");
        return;
    };
    let Some(other) = pci::find(|function| function.read(0) == ENTROPY) else {
        println!("no other device behind the IOMMU");
        return;
    };
    disk.space = Some(hc::GRANT_DEVICE + u64::from(disk.function.slot()));
    let [area, second] = [(); 2].map(|()| own.take(PAGES * PAGE));
    let megabytes: u64 = boot.argument("memory").and_then(|text| text.parse().ok()).unwrap_or(768);
    let (disk_endpoint, other_endpoint) = (endpoint(disk.function.slot()), endpoint(other.slot()));
    // Far from what is mapped at its own address.
    let io = own.end() - 1024 * PAGE;
    let machine = megabytes << 20;
    let mut guest = Guest {
        iommu,
        disk,
        own,
        area,
        second,
        io,
        machine,
        endpoints: [disk_endpoint, other_endpoint],
        spaces: [None; 2],
        counts: Counts::default(),
        random,
    };
    guest.refused_before();
    guest.works();
    guest.memory();
    guest.ranges();
    guest.endpoints();
    guest.twice();
    guest.widened();
    guest.parts();
    guest.works();
    guest.bytes();
    guest.chains();
    guest.rings();
    guest.jumps();
    guest.works();
    guest.resets();
    guest.raced();
    guest.late();
    guest.works();
    guest.stale();
    guest.flight();
    guest.read_only();
    guest.calls();
    guest.flood();
    guest.works();
    guest.anything();
    guest.works();
    // It ends with all of its memory mapped.
    guest.start();
    guest.must("MAP of everything", guest.everything());
    let Counts { controls, failed, unanswered, broken } = guest.counts;
    println!("SLUICE-RESULT controls={controls} failed={failed} unanswered={unanswered} broken={broken}");
}

/// What was not an attack, and what the device did not do.
#[derive(Default)]
struct Counts {
    /// Requests and transfers that must work, and that did not.
    controls: u32,
    failed: u32,
    /// Chains that were neither given back nor complained of.
    unanswered: u32,
    /// Times that the device asked for a reset.
    broken: u32,
}

struct Guest<'a> {
    iommu: Driver,
    disk: Device,
    own: Own,
    /// Own memory: [`PAGES`] each.
    area: u64,
    second: u64,
    /// Addresses for the disk at which nothing is mapped but on purpose.
    io: u64,
    /// Bytes of the machine's memory.
    machine: u64,
    /// Those of the disk and of the other device.
    endpoints: [u32; 2],
    /// Their address spaces, as far as requests are judged by them.
    spaces: [Option<u32>; 2],
    counts: Counts,
    random: &'a mut Random,
}

impl Guest<'_> {
    /// Notes whether what must work did.
    fn check(&mut self, what: &str, works: bool) {
        self.counts.controls += 1;
        if !works {
            self.counts.failed += 1;
            println!("iommu: {what} does not work");
        }
    }

    /// Has a request carried out that must be.
    fn must(&mut self, what: &str, request: Request) {
        let outcome = self.iommu.ask(&request);
        self.check(what, outcome == DONE);
        self.mend(outcome);
    }

    /// Whether a request that must not be carried out is.
    fn gets(&mut self, request: Request) -> bool {
        let outcome = self.iommu.ask(&request);
        if outcome == DONE {
            println!("iommu: carried out: {:02x?}", &request.bytes[..request.len]);
        }
        self.mend(outcome);
        outcome == DONE
    }

    /// Counts what came of a request, and starts the device anew if it asks for that.
    fn mend(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Status(_) => return,
            Outcome::Broken => self.counts.broken += 1,
            Outcome::Nothing => self.counts.unanswered += 1,
        }
        self.start();
    }

    /// The IOMMU as after a reset, with the disk in its address space.
    fn start(&mut self) {
        let started = self.iommu.start();
        self.check("the start", started);
        let attached = started && self.iommu.ask(&Request::attach(DOMAIN, self.endpoints[0])) == DONE;
        self.check("ATTACH", attached);
        self.spaces = [Some(DOMAIN), None];
    }

    /// Maps what the disk needs for a request, at its own address.
    fn map_queue(&mut self, domain: u32) {
        let at = self.disk.at;
        self.must("MAP of the disk's queue", Request::map_pages(domain, at, QUEUE / PAGE, at));
    }

    /// Has the area at the addresses for it, in an IOMMU that was started anew.
    fn map_area(&mut self) {
        self.start();
        self.map_queue(DOMAIN);
        self.must("MAP of the area", Request::map_pages(DOMAIN, self.io, PAGES, self.area));
    }

    /// Whether a page is issued to the disk.
    fn is_issued(&self, at: u64) -> bool {
        let answer = call(hc::GRANT_QUERY, [self.disk.space.unwrap_or(0), at / PAGE, 0, 0]);
        answer >= 0 && answer as u64 & hc::GRANT_IS_ISSUED != 0
    }

    /// How many of every `stride`th page in a range are.
    fn issued(&self, first: u64, end: u64, stride: u64) -> u64 {
        (first..end).step_by((stride * PAGE) as usize).filter(|at| self.is_issued(*at)).count() as u64
    }

    /// Whether any is, of a stride of all.
    fn is_any_issued(&mut self, stride: u64) -> bool {
        let first = FIRST + self.random.below(stride) * PAGE;
        self.issued(first, self.own.end(), stride) != 0
    }

    /// Asks the disk to write zeros to these pages at an address of its, and does not wait.
    fn begin_transfer(&self, io: u64, pages: u64) -> bool {
        if !self.disk.reset() || !self.disk.start(false) {
            return false;
        }
        let at = self.disk.at;
        let verdict = at + BUFFERS + 0x2000;
        // The header is zeros: a read from the first sector on.
        self.disk.descriptor(at, 0, at + BUFFERS, 16, 1, 1);
        self.disk.descriptor(at, 1, io, (pages * PAGE) as u32, 1 | WRITE, 2);
        self.disk.descriptor(at, 2, verdict, 1, WRITE, 0);
        put(verdict, 0xff);
        self.disk.offer(0, 1);
        true
    }

    /// Waits until the disk has done that. Returns what it says came of it.
    fn end_transfer(&self) -> Option<u32> {
        let done = wait_for(PATIENCE, || {
            sleep(1_000_000);
            get(self.disk.at + USED) >> 16 == 1
        });
        done.then(|| get(self.disk.at + BUFFERS + 0x2000) & 0xff)
    }

    /// Both. Whether the disk says that all was written.
    fn transfer(&self, io: u64, pages: u64) -> bool {
        self.begin_transfer(io, pages) && self.end_transfer() == Some(0)
    }

    /// Before the IOMMU is driven, its disk's driver is refused.
    fn refused_before(&mut self) {
        let refused = self.disk.reset() && !self.disk.start(false);
        println!("SLUICE-RESULT early={}", if refused { "refused" } else { "taken" });
    }

    /// The legal way: what the device says of itself, a mapping at another address, which the disk writes to, and its end.
    fn works(&mut self) {
        self.start();
        let [sizes, first, last] = [0, 8, 16].map(|offset| self.iommu.device.configuration(offset));
        let said = sizes == PAGE && first == FIRST && last == self.own.end() - 1;
        self.check("the configuration", said);
        self.must("PROBE", Request::probe(self.endpoints[0]));
        self.map_area();
        fill(self.area, PAGES, HELD);
        let written = self.transfer(self.io, PAGES) && holds(self.area, PAGES, 0);
        self.check("the disk", written);
        let (first, end) = (self.io, self.io + PAGES * PAGE);
        self.check("issuing", self.issued(first, end, 1) == PAGES);
        self.must("UNMAP", Request::unmap_pages(DOMAIN, first, PAGES));
        self.check("taking back", self.issued(first, end, 1) == 0);
        self.must("DETACH", Request::detach(DOMAIN, self.endpoints[0]));
        println!("SLUICE-RESULT works={}", if self.counts.failed == 0 { "ok" } else { "bad" });
    }

    /// Any access to any register, on its own and while another processor tells of requests.
    fn anything(&mut self) {
        let mut tally = super::Tally::default();
        for kicked in [false, true] {
            self.start();
            if kicked {
                resets::start_kicking(self.iommu.device.doorbell);
            }
            virtio::registers(&self.iommu.device, self.random, &mut tally);
            if kicked {
                resets::stop_kicking();
            }
            // Messages that were switched on go anywhere.
            if let Some(at) = self.iommu.device.function.capability(0x11) {
                self.iommu.device.function.write(at, 0);
            }
        }
        tally.report("registers");
    }
}
