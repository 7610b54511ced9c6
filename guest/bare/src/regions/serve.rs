//! The domain with the device, which was taken over: it tries to read what guests hold, to change it, and to carry it from one to the other.

use super::edu::Edu;
use super::{DAMAGE, LEN, PAGE, PATIENCE, command, page, secret};
use crate::console::println;
use crate::dma::fine;
use crate::dma::memory::{Own, get, put};
use crate::entry::BootInfo;
use crate::grants::Attempts;
use crate::machine::call;
use crate::machine::{sleep, wait_for};
use crate::pci::{self, Function};
use sluice_hypercall::{backend as back, grant as hc, region as rc};

/// A device file of a guest, as who serves it sees it.
struct File {
    function: Function,
    registers: u64,
    /// Where this processor has the region, and its pages.
    at: u64,
    pages: u64,
    /// Where the device has it, when it may.
    device_at: u64,
    secret: u32,
}

impl File {
    fn slot(&self) -> u64 {
        self.function.slot().into()
    }

    fn space(&self) -> u64 {
        hc::GRANT_DEVICE + self.slot()
    }

    fn page(&self, page: u64) -> u64 {
        self.at + page * PAGE
    }

    fn device_page(&self, page: u64) -> u64 {
        self.device_at + page * PAGE
    }
}

/// The back-end functions, in the order of their guests.
fn files() -> [Option<File>; 2] {
    let mut last = None;
    [1, 2].map(|guest| {
        let identifiers = u32::from(back::DEVICE) << 16 | u32::from(back::VENDOR);
        let function = pci::find(|function| function.read(0) == identifiers && last < Some(function.slot()))?;
        last = Some(function.slot());
        function.enable();
        let found = call(rc::REGION_FIND, [function.slot().into(), 0, 0, 0]);
        let found = u64::try_from(found).ok()?;
        let units = found % rc::REGION_UNIT;
        let (at, pages) = (found - units, units * rc::REGION_UNIT / PAGE);
        let registers = function.memory(back::REGISTERS_BAR.into());
        Some(File { function, registers, at, pages, device_at: 0, secret: secret(guest) })
    })
}

struct Attack {
    edu: Edu,
    /// A page that the device may read, and one that it may write as far as this domain says.
    source: u64,
    into: u64,
    attempts: Attempts,
    failed: u32,
}

impl Attack {
    /// Something that must be.
    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            self.failed += 1;
            println!("regions: {what}");
        }
    }

    /// Has the device reach the region of a file, or none.
    fn choose(&mut self, file: Option<&File>) -> u64 {
        let which = file.map_or(rc::REGION_NONE, File::slot);
        let at = call(rc::REGION_USE, [self.edu.slot, which, 0, 0]);
        self.expect(at >= 0 && (at > 0) == file.is_some(), "a region cannot be used");
        at as u64
    }

    fn fill(&self, at: u64, value: u32) {
        (at..at + LEN).step_by(4).for_each(|at| put(at, value));
    }

    /// Has the device write this value.
    fn store(&self, to: u64, value: u32) {
        self.fill(self.source, value);
        self.edu.copy(self.source, to);
    }

    /// Whether the device brings a page to where this processor can read it.
    fn brings_out(&self, from: u64, secret: u32) -> bool {
        self.fill(self.into, 0);
        self.edu.copy(from, self.into);
        (0..LEN).step_by(4).any(|offset| get(self.into + offset) == secret)
    }

    /// What this processor tries.
    fn by_processor(&mut self, files: &[File; 2]) {
        for (file, other) in [(&files[0], &files[1]), (&files[1], &files[0])] {
            for number in 0..page::END {
                let at = file.page(number);
                let seen = (0..LEN).step_by(4).any(|offset| get(at + offset) == file.secret);
                self.attempts.count("reading what a guest holds", seen);
                self.fill(at, DAMAGE);
                let own = call(hc::GRANT_ISSUE, [hc::GRANT_DEVICE + self.edu.slot, 0, at, 1]);
                self.attempts.count("issuing a page of a region to a device", own >= 0);
                let foreign = call(hc::GRANT_ISSUE, [other.space(), 64 + number, at, 1]);
                self.attempts.count("showing a page of a region to another guest", foreign >= 0);
            }
            let list = call(hc::GRANT_BATCH, [other.space(), file.page(1), 1, 0]);
            self.attempts.count("a list in a region", list >= 0);
            let slot = self.edu.slot;
            for [device, function] in
                [[file.slot(), file.slot()], [slot, slot], [slot, 31], [31, file.slot()]]
            {
                let used = call(rc::REGION_USE, [device, function, 0, 0]);
                self.attempts.count("the use of a region by what has none", used >= 0);
            }
            for [first, count] in [[file.pages, 1], [u64::MAX, 1], [u64::MAX - 1, u64::MAX]] {
                let cleared = call(rc::REGION_CLEAR, [file.slot(), first, count, 0]);
                self.attempts.count("clearing what is no part of a region", cleared >= 0);
            }
        }
    }

    /// What it tells the device, which reaches the region of the first file.
    fn by_device(&mut self, used: Option<&File>, others: &[&File]) {
        self.choose(used);
        for other in others {
            for number in [page::SECRETS, page::SECRETS_END - 1] {
                let theirs = other.device_page(number);
                let out = self.brings_out(theirs, other.secret);
                self.attempts.count("bringing out what is not in the device's region", out);
                // Whether it has changed, or has come to the other guest, those will see.
                self.attempts.tried += 1;
                self.store(theirs, DAMAGE);
                if let Some(used) = used {
                    self.attempts.tried += 1;
                    self.edu.copy(theirs, used.device_page(page::FOREIGN));
                }
            }
        }
        if let Some(used) = used {
            for number in page::SECRETS..page::SECRETS_END {
                let out = self.brings_out(used.device_page(number), used.secret);
                self.attempts.count("bringing out what is in the device's region", out);
            }
        }
        // Where this processor sees it.
        for file in used.into_iter().chain(others.iter().copied()) {
            let out = self.brings_out(file.page(page::SECRETS), file.secret);
            self.attempts.count("finding a region by the processor's address", out);
        }
    }
}

/// Offers a device file, so that its guest can say something by the device's status.
fn offer(file: &File) -> bool {
    let set = |register: u32, value: u32| put(file.registers + u64::from(register), value);
    set(back::DEVICE_FEATURES, 0);
    set(back::DEVICE_FEATURES + 4, 0);
    set(back::QUEUES, 1);
    set(back::QUEUE_SIZE, 64);
    set(back::CONFIG_LEN, 0);
    set(back::CONTROL, back::CONTROL_OFFER);
    get(file.registers + u64::from(back::CONTROL)) == 0
}

/// Runs it.
pub fn run(boot: &BootInfo) {
    let mut own = Own::new(boot);
    let space = fine::open(&own);
    let (source, into) = (own.take(PAGE), own.take(PAGE));
    let ([Some(first), Some(second)], Some(edu), Some(_)) = (files(), Edu::find(), space) else {
        println!("SLUICE-RESULT devices=missing done=failed");
        return;
    };
    let mut attack = Attack { edu, source, into, attempts: Attempts::default(), failed: 0 };
    let mut files = [first, second];
    for file in &mut files {
        let shown = call(hc::GRANT_ISSUE, [file.space(), 0, file.at, page::END]);
        attack.expect(shown == page::END as i64, "pages of a region are not shown to its guest");
        attack.expect(offer(file), "a device cannot be offered");
        file.device_at = attack.choose(Some(file));
        attack.store(file.device_page(page::COMMAND), command::BEGIN);
    }
    let begun = files.iter().all(|file| {
        wait_for(PATIENCE, || {
            sleep(1_000_000);
            get(file.registers + u64::from(back::STATUS)) == 1
        })
    });
    attack.expect(begun, "a guest has not begun");
    println!("SLUICE-RESULT begun=yes");
    attack.by_processor(&files);
    let [first, second] = &files;
    attack.by_device(Some(first), &[second]);
    attack.by_device(Some(second), &[first]);
    attack.by_device(None, &[first, second]);
    // A device's own memory is the device's: nobody switches it.
    attack.choose(Some(first));
    attack.edu.load(first.device_page(page::SECRETS));
    attack.choose(Some(second));
    attack.edu.store(second.device_page(page::CARRIED));
    for file in &files {
        attack.choose(Some(file));
        attack.edu.copy(file.device_page(page::SECRETS), file.device_page(page::OWN));
        attack.store(file.device_page(page::COMMAND), command::LOOK);
    }
    let Attack { attempts: Attempts { tried, succeeded }, failed, .. } = attack;
    println!("SLUICE-RESULT regions.tried={tried} regions.succeeded={succeeded}");
    println!("SLUICE-RESULT done={}", if failed == 0 { "ok" } else { "failed" });
    // Guests look before they lose what they hold.
    sleep(20_000_000_000);
}
