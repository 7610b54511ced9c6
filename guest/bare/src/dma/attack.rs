//! What is tried with each device.

use super::memory::{self, Own};
use super::{Engine, LEN, targets};
use crate::console::println;
use crate::entry::BootInfo;
use crate::random::Random;
use crate::{machine, trap, witness};

/// What own memory holds before something is read into it, and what passes through the device last before
/// something is read: neither is news.
const FILL: u32 = 0x5a5a_5a5a;
const RINSE: u32 = 0xa5a5_a5a5;

/// A vector that the hypervisor gives to nobody.
const UNUSED_VECTOR: u32 = 0x5e;

/// Successes that are printed.
const PRINTED: u64 = 16;

/// Attacks by name, and whether they can do without writes.
const ATTACKS: [(&str, bool); 6] = [
    ("pages", true),
    ("edges", true),
    ("aliases", true),
    ("structures", false),
    ("messages", false),
    ("hunt", false),
];

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    /// Nothing, zeros, ones.
    Nothing,
    /// What was written there last.
    Stamp,
    /// Something that nobody here wrote.
    Foreign(u32),
}

struct Attack<'a> {
    engine: &'a mut dyn Engine,
    own: Own,
    random: Random,
    /// Own memory of [`LEN`] bytes each.
    source: u64,
    sink: u64,
    rinse: u64,
    writes: bool,
    /// The message window is written to with care only.
    tame: bool,
    tried: u64,
    succeeded: u64,
    /// Addresses that turned out to be its own.
    aliased: u64,
}

/// Runs all attacks and prints what came of them.
pub fn run(device: &str, part: &str, engine: &mut dyn Engine, mut own: Own, boot: &BootInfo) {
    let megabytes: u64 = boot.argument("machine").and_then(|text| text.parse().ok()).unwrap_or(512);
    let memory = megabytes << 20;
    let (source, sink, rinse, page) = (own.take(LEN), own.take(LEN), own.take(LEN), own.take(LEN));
    memory::fill(rinse, RINSE);
    let writes = part != "read";
    let random = Random::new(boot.argument("seed").and_then(|text| text.parse().ok()).unwrap_or(1));
    let stride = boot.argument("stride").and_then(|text| text.parse().ok()).unwrap_or(1);
    let tame = boot.argument("format") == Some("remappable");
    let mut attack =
        Attack { engine, own, random, source, sink, rinse, writes, tame, tried: 0, succeeded: 0, aliased: 0 };
    // Some cards take a second to get ready.
    let mut ready = false;
    for _ in 0..3_000 {
        ready = attack.reaches(page);
        if ready {
            break;
        }
        machine::pause(1_000_000);
    }
    println!("SLUICE-RESULT dma.{device}.control={}", if ready { "ok" } else { "failed" });
    if !ready {
        println!("SLUICE-RESULT done=failed");
        return;
    }
    for (name, reads_only) in ATTACKS {
        let chosen = part == name || name != "hunt" && (part == "all" || part == "read" && reads_only);
        if !chosen {
            continue;
        }
        let before = attack.tried;
        match name {
            "pages" => attack.pages(memory, stride),
            "edges" => attack.edges(),
            "aliases" => attack.aliases(),
            "structures" => attack.structures(memory),
            "messages" => attack.messages(),
            _ => attack.hunt(memory),
        }
        println!("SLUICE-RESULT dma.{device}.{name}={}", attack.tried - before);
    }
    attack.report(device, page);
}

impl Attack<'_> {
    /// Prints what came of it, once, whether the device still works, and the verdict.
    fn report(&mut self, device: &str, page: u64) {
        let (tried, succeeded) = (self.tried, self.succeeded);
        println!("SLUICE-RESULT dma.{device}.tried={tried} dma.{device}.succeeded={succeeded}");
        println!("SLUICE-RESULT dma.{device}.aliased={}", self.aliased);
        // The device was not just broken.
        let works = self.reaches(page);
        println!("SLUICE-RESULT dma.{device}.control={}", if works { "ok" } else { "failed" });
        println!("SLUICE-RESULT done={}", if works { "ok" } else { "failed" });
    }

    /// Counts one transfer.
    fn count(&mut self, at: u64, what: &str, succeeded: bool, brought: Brought) {
        self.tried += 1;
        self.succeeded += u64::from(succeeded);
        if succeeded && self.succeeded <= PRINTED {
            println!("dma: {what} at {at:#x}: {brought:x?}");
        }
    }

    /// A word that none of its bytes makes look like nothing.
    fn stamp(&mut self) -> u32 {
        self.random.next() as u32 & 0x3f3f_3f3f | 0x4040_4040
    }

    /// The device reads at `at`; bytes `offset..end` of it are looked at.
    fn look(&mut self, at: u64, (offset, end): (u64, u64), stamp: Option<u32>) -> Brought {
        memory::fill(self.sink, FILL);
        self.engine.read(at, self.sink);
        let words = || (offset..end).step_by(4).map(|offset| memory::get(self.sink + offset));
        if words().any(|word| Some(word) == stamp) {
            return Brought::Stamp;
        }
        let news = |byte: u8| ![0, 0xff, FILL as u8, RINSE as u8].contains(&byte);
        let found = words().find(|word| word.to_le_bytes().into_iter().any(news));
        found.map_or(Brought::Nothing, Brought::Foreign)
    }

    /// Reads and writes at an address that is not its own; of straddling ones, a part is not.
    fn strike(&mut self, at: u64, part: (u64, u64)) {
        let before = self.look(at, part, None);
        self.count(at, "read", before != Brought::Nothing, before);
        if !self.writes {
            return;
        }
        let stamp = self.stamp();
        memory::fill(self.source, stamp);
        self.engine.write(at, self.source);
        // Nothing of what was written is left in the device.
        self.engine.read(self.rinse, self.sink);
        let after = self.look(at, part, Some(stamp));
        self.count(at, "write", after != Brought::Nothing, after);
    }

    /// The device reaches this page of its guest's, both ways, and no other.
    fn reaches(&mut self, page: u64) -> bool {
        let (stamp, other) = (self.stamp(), self.stamp());
        memory::fill(page, stamp);
        memory::fill(self.sink, FILL);
        self.engine.read(page, self.sink);
        let all =
            |at: u64, stamp: u32| (8..LEN - 12).step_by(4).all(|offset| memory::get(at + offset) == stamp);
        let reads = all(self.sink, stamp);
        memory::fill(self.source, other);
        self.engine.write(page, self.source);
        reads && all(page, other)
    }

    fn pages(&mut self, memory: u64, stride: u64) {
        let own = self.own;
        let (start, end) = own.rest();
        let mut round = 0u64;
        targets::pages(&own, memory, stride, |at| {
            if !own.contains(at) {
                self.strike(at, (0, LEN));
            } else if (start..end).contains(&at) && self.writes {
                // A neighbour's frame may come in between.
                let mine = (0..3).any(|_| self.reaches(at));
                self.count(at, "own page", !mine, Brought::Nothing);
            }
            round += 1;
            if round.is_multiple_of(4096) {
                println!("SLUICE-RESULT target={at:#x} succeeded={}", self.succeeded);
            }
        });
    }

    /// Addresses that are its own but for one high bit. Who ignores the bit gives it what it has already: that is
    /// counted apart (`aliased`), anything else that comes or stays is a success.
    fn aliases(&mut self) {
        let page = self.own.rest().0;
        for at in (33..64).map(|bit| 1 << bit | page) {
            let (there, other) = (self.stamp(), self.stamp());
            memory::fill(page, there);
            // The translation of its own page is fresh.
            self.engine.read(page, self.sink);
            let before = self.look(at, (8, LEN - 12), Some(there));
            let mut aliased = before == Brought::Stamp;
            self.count(at, "read", !matches!(before, Brought::Nothing | Brought::Stamp), before);
            if self.writes {
                memory::fill(self.source, other);
                self.engine.write(at, self.source);
                let own = memory::get(page + LEN / 2) == other;
                aliased |= own;
                self.engine.read(self.rinse, self.sink);
                let after = self.look(at, (8, LEN - 12), Some(if own { other } else { there }));
                self.count(at, "write", !matches!(after, Brought::Nothing | Brought::Stamp), after);
            }
            self.aliased += u64::from(aliased);
        }
    }

    /// Looks for pages of a [`witness`] in all of the machine's memory, and writes to a few.
    fn hunt(&mut self, memory: u64) {
        let own = self.own;
        for at in (0..memory).step_by(4096).filter(|at| !own.contains(*at)) {
            let found = self.look(at, (0, LEN), Some(witness::PREY));
            self.tried += 1;
            if found == Brought::Stamp && memory::get(self.sink) == witness::PREY {
                let stamp = self.stamp();
                memory::fill(self.source, stamp);
                self.engine.write(at, self.source);
                self.count(at, "hunt", true, found);
                if self.succeeded == 4 {
                    return;
                }
            }
        }
    }

    /// Transfers that begin in one place and end in another.
    fn edges(&mut self) {
        let half = LEN / 2;
        self.strike(self.own.end() - half, (half, LEN));
        self.strike(self.own.end() - 16, (16, LEN));
        self.strike(0xfec0_0000 - half, (0, LEN));
        if !self.tame {
            self.strike(0xfee0_0000 - half, (0, half));
        }
        self.strike((1 << 32) - half, (0, half));
        self.strike((1 << 48) - half, (0, LEN));
        self.strike(u64::MAX - half + 1, (0, half));
    }

    /// Rings, lists and tables elsewhere.
    fn structures(&mut self, memory: u64) {
        let (own, tame) = (self.own, self.tame);
        let (start, end) = targets::MESSAGES;
        let wanted = |at: &u64| !tame || !(start..end).contains(at);
        for (which, name) in self.engine.structures().iter().enumerate() {
            for at in targets::some(&own, memory).filter(wanted) {
                self.engine.misplace(which, at);
                let found = self.look(at, (0, LEN), None);
                self.count(at, name, found != Brought::Nothing, found);
            }
            println!("SLUICE-RESULT misplaced={name}");
        }
    }

    /// Forged interrupts: every address of the message window, both formats, with any vector and delivery mode,
    /// NMI, INIT and start-up among them. One that arrives here is a success; others must see to theirs.
    ///
    /// With `format=remappable` messages in the other format have a vector that disturbs nobody, and no other attack
    /// goes there: QEMU's VT-d (7.2) lets that format through even where it is switched off.
    fn messages(&mut self) {
        machine::x2apic();
        // Sixteen bytes on: what cards append to a frame is in the remappable format, too.
        let window = (targets::MESSAGES.0 + 16..targets::MESSAGES.1 - LEN).step_by(LEN as usize);
        for at in window.filter(|at| at % 4096 + LEN < 4096) {
            for offset in (0..LEN).step_by(4) {
                let any = self.random.next() as u32 & 0xc7ff;
                let remappable = (at + offset) & 16 != 0;
                memory::put(self.source + offset, if self.tame && !remappable { UNUSED_VECTOR } else { any });
            }
            let before = trap::interrupts();
            machine::sti();
            self.engine.write(at, self.source);
            machine::cli();
            let arrived = trap::interrupts() - before;
            self.count(at, "message", arrived != 0, Brought::Nothing);
        }
    }
}
