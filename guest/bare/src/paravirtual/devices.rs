//! What is tried by devices of its own: QEMU's educational ones (docs/specs/edu.txt in its sources), which copy between memory and a buffer
//! of theirs. Each copy takes a tenth of a second, so that there are several of them, which copy at the same time.
//!
//! They read and write what the kernel itself may not write: its page tables, its descriptors, semi-writable frames, what the hypervisor keeps,
//! others' memory, and frames at the moment at which they become page tables. What is plain memory they must reach, before and after, so
//! that a device that does not work is no success of the hypervisor's.

use crate::Score;
use crate::attacks::{PIN_L1, UNPIN, spare};
use crate::console::println;
use crate::interface::{call, hypercall, rest, writes};
use crate::memory::{BASE, Machine, PRESENT, UNCACHED, WRITE, give_back, map, operate, take_again};
use core::arch::asm;

/// Vendor and device.
const IDENTITY: u32 = 0x11e8_1234;
/// Memory decoding and bus mastering; no interrupt line.
const COMMAND: u32 = 1 << 1 | 1 << 2 | 1 << 10;
const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const START: u64 = 0x98;
/// The device's own buffer, as its engine sees it. In it are what is to be written, and what was read before that and after.
const BUFFER: u64 = 0x4_0000;
const BEFORE: u64 = BUFFER + 8;
const AFTER: u64 = BUFFER + 16;
/// What is there as long as nothing has been read.
const CANARY: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// Most devices that are used.
const MOST: usize = 16;
/// The message window: every write there is an interrupt.
const MESSAGES: u64 = 0xfee0_0000;
const MIB: u64 = 1 << 20;

/// A word of configuration space, by CF8h and CFCh: selected, and read or written.
fn configuration(slot: u32, register: u32, write: Option<u32>) -> u32 {
    let select = 1 << 31 | slot << 11 | register;
    let mut value = write.unwrap_or(0);
    unsafe {
        asm!("out dx, eax", in("dx") 0xcf8u16, in("eax") select);
        match write {
            Some(value) => asm!("out dx, eax", in("dx") 0xcfcu16, in("eax") value),
            None => asm!("in eax, dx", in("dx") 0xcfcu16, out("eax") value),
        }
    }
    value
}

/// A device, by its first page of registers: where they are mapped, and where they are.
#[derive(Clone, Copy, Default)]
struct Edu {
    registers: u64,
    at: u64,
}

impl Edu {
    fn write(self, register: u64, value: u64) {
        unsafe { ((self.registers + register) as *mut u64).write_volatile(value) }
    }

    fn copy(self, from: u64, to: u64, bytes: u64, command: u64) {
        self.write(SOURCE, from);
        self.write(DESTINATION, to);
        self.write(COUNT, bytes);
        self.write(START, command);
    }

    /// Begins to read memory.
    fn read_memory(self, from: u64, to: u64, bytes: u64) {
        self.copy(from, to, bytes, 1);
    }

    /// Begins to write memory.
    fn write_memory(self, from: u64, to: u64, bytes: u64) {
        self.copy(from, to, bytes, 3);
    }

    fn is_busy(self) -> bool {
        unsafe { ((self.registers + START) as *const u64).read_volatile() & 1 != 0 }
    }
}

/// What is read and written by a device, at addresses of the machine's.
#[derive(Clone, Copy, Default)]
struct Target {
    name: &'static str,
    read: u64,
    /// What is there, if that is known; else whatever is not zeros or ones is news.
    holds: Option<u64>,
    write: u64,
    value: u64,
    /// Where the kernel sees what was written, and what is there now.
    seen: Option<(u64, u64)>,
}

/// What came of it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Came {
    read: bool,
    written: bool,
}

struct Attack<'a> {
    machine: &'a Machine,
    score: &'a mut Score,
    edus: [Edu; MOST],
    count: usize,
    /// A page of its own for what goes through the devices, 64 bytes for each.
    page: u64,
    targets: [Target; MOST],
    waiting: usize,
    controls: u64,
    failed: u64,
}

fn word(address: u64) -> u64 {
    unsafe { (address as *const u64).read_volatile() }
}

fn put(address: u64, value: u64) {
    unsafe { (address as *mut u64).write_volatile(value) }
}

/// Tries all. Returns whether the devices reached what they must.
pub fn run(machine: &Machine, score: &mut Score) -> bool {
    let page = spare(machine) + 8;
    let (edus, targets) = ([Edu::default(); MOST], [Target::default(); MOST]);
    let mut attack =
        Attack { machine, score, edus, count: 0, page, targets, waiting: 0, controls: 0, failed: 0 };
    attack.find();
    println!("SLUICE-RESULT devices={}", attack.count);
    if attack.count == 0 {
        return false;
    }
    let before = attack.score.tried;
    attack.plain("own", page + 1);
    attack.tables();
    attack.descriptors();
    attack.semi_writable();
    attack.given_back();
    attack.hidden();
    attack.elsewhere();
    attack.messages();
    attack.becomes_table();
    attack.races();
    attack.plain("own_at_the_end", page + 1);
    attack.unmap();
    println!("SLUICE-RESULT dma.tried={} dma.controls={}", attack.score.tried - before, attack.controls);
    println!("SLUICE-RESULT dma.control={}", if attack.failed == 0 { "ok" } else { "failed" });
    attack.failed == 0
}

impl Attack<'_> {
    /// Finds the devices on the bus and maps their registers, each in the place of a page that nobody needs.
    fn find(&mut self) {
        for slot in (0..32).filter(|slot| configuration(*slot, 0, None) == IDENTITY) {
            configuration(slot, 4, Some(COMMAND));
            let at = u64::from(configuration(slot, 0x10, None) & !0xf);
            let registers = self.machine.address(self.place(self.count));
            let mapped = map(registers, at | PRESENT | WRITE | UNCACHED, true);
            if mapped == 0 && self.count < MOST {
                self.edus[self.count] = Edu { registers, at };
                self.count += 1;
            } else {
                println!("registers at {at:#x}: {mapped}");
            }
        }
    }

    /// The page in whose place a device's registers are.
    fn place(&self, number: usize) -> u64 {
        self.page + 16 + number as u64
    }

    fn unmap(&self) {
        for number in 0..self.count {
            let page = self.place(number);
            map(self.machine.address(page), self.machine.frame(page) << 12 | PRESENT | WRITE, true);
        }
    }

    fn bus(&self, page: u64) -> u64 {
        self.machine.frame(page) << 12
    }

    /// Begins a copy of each device that has a target, and waits for all.
    fn each(&self, begin: impl Fn(Edu, &Target, u64)) {
        for number in 0..self.waiting {
            begin(self.edus[number], &self.targets[number], self.bus(self.page) + 64 * number as u64);
        }
        while self.edus[..self.waiting].iter().any(|edu| edu.is_busy()) {
            rest();
        }
    }

    /// Reads and writes all targets that wait, and says of each what came of it.
    fn strike(&mut self) -> [Came; MOST] {
        let own = |number: usize| self.machine.address(self.page) + 64 * number as u64;
        for (number, target) in self.targets[..self.waiting].iter().enumerate() {
            let words = [target.value, CANARY, CANARY, 0, 0, 0];
            for (at, word) in (own(number)..).step_by(8).zip(words) {
                put(at, word);
            }
        }
        self.each(|edu, _, own| edu.read_memory(own, BUFFER, 24));
        let is_seen = self.targets[..self.waiting].iter().any(|target| target.seen.is_some());
        if is_seen {
            self.each(|edu, target, _| edu.read_memory(target.read, BEFORE, 8));
        }
        self.each(|edu, target, _| edu.write_memory(BUFFER, target.write, 8));
        // Where the kernel itself does not see it, the device looks.
        if !is_seen {
            self.each(|edu, target, _| edu.read_memory(target.write, AFTER, 8));
        }
        self.each(|edu, _, own| edu.write_memory(BUFFER, own + 24, 24));
        let mut came = [Came::default(); MOST];
        for (number, target) in self.targets[..self.waiting].iter().enumerate() {
            let [passed, before, after] = [24, 32, 40].map(|at| word(own(number) + at));
            if passed != target.value {
                println!("{}: device {number} does not copy", target.name);
                self.failed += 1;
            }
            let is_news = |word: u64| ![0, u64::MAX, CANARY, target.value].contains(&word);
            let read = target.holds.map_or(is_news(before) || is_news(after), |holds| before == holds);
            let seen = target.seen.is_some_and(|(at, now)| word(at) != now);
            came[number] = Came { read, written: seen || after == target.value };
        }
        self.waiting = 0;
        came
    }

    /// Has a target attacked, with others.
    fn attack(&mut self, target: Target) {
        self.targets[self.waiting] = target;
        self.waiting += 1;
        if self.waiting == self.count {
            self.end();
        }
    }

    /// Attacks what waits.
    fn end(&mut self) {
        let (targets, waiting) = (self.targets, self.waiting);
        let came = self.strike();
        for (target, came) in targets[..waiting].iter().zip(came) {
            self.score.attempt(target.name, came.read);
            self.score.attempt(target.name, came.written);
            if came != Came::default() {
                println!("by device: {} at {:#x}", target.name, target.write);
            }
        }
    }

    /// Devices reach memory of its own, both ways: `devices` of them, each 16 bytes after the one before.
    fn reaches(&mut self, target: Target, devices: usize) {
        self.end();
        let Some((at, now)) = target.seen else { return };
        for number in 0..devices {
            let step = 16 * number as u64;
            put(at + step, now);
            let (read, write, seen) = (target.read + step, target.write + step, Some((at + step, now)));
            self.targets[number] = Target { read, write, seen, ..target };
        }
        self.waiting = devices;
        let came = self.strike();
        for (number, came) in came[..devices].iter().enumerate() {
            self.controls += 1;
            if *came != (Came { read: true, written: true }) || word(at + 16 * number as u64) != target.value
            {
                println!("SLUICE-RESULT unreached={} device={number}", target.name);
                self.failed += 1;
            }
        }
    }

    /// A page that is plain memory.
    fn plain(&mut self, name: &'static str, page: u64) {
        let (address, bus) = (self.machine.address(page), self.bus(page));
        let (holds, value) = (0x1111_2222_3333_4444, 0x5555_6666_7777_8888);
        (0x400..0x800).step_by(8).for_each(|at| put(address + at, holds));
        let seen = Some((address + 0x800, 0));
        let target = Target { name, read: bus + 0x400, holds: Some(holds), write: bus + 0x800, value, seen };
        self.reaches(target, self.count);
        (0x400..0xc00).step_by(8).for_each(|at| put(address + at, 0));
    }

    /// A frame that the kernel can read, and that holds something at `read`, and nothing at `write`.
    fn readable(&self, name: &'static str, page: u64, read: u64, write: u64) -> Target {
        let (address, bus) = (self.machine.address(page), self.bus(page));
        let (holds, seen) = (Some(word(address + read)), Some((address + write, word(address + write))));
        Target { name, read: bus + read, holds, write: bus + write, value: self.evil(), seen }
    }

    /// An entry by which the root of its page tables could be written.
    fn evil(&self) -> u64 {
        self.machine.root() << 12 | PRESENT | WRITE
    }

    /// All its page tables: the root, which is pinned, and those below, each where an entry is and where none is.
    fn tables(&mut self) {
        for page in self.machine.tables..self.machine.tables + self.machine.table_count {
            let at = |empty: bool| {
                let is_wanted = |index: &u64| (word(self.machine.address(page) + index * 8) == 0) == empty;
                (0..512).find(is_wanted).unwrap_or(511) * 8
            };
            self.attack(self.readable("device_table", page, at(false), at(true)));
        }
        self.end();
    }

    /// A page of segment descriptors.
    fn descriptors(&mut self) {
        let page = self.page + 2;
        let (address, frame) = (self.machine.address(page), self.machine.frame(page));
        // Data of privilege level 3.
        writes(address + 64, 0x00cf_f300_0000_ffff);
        map(address, frame << 12 | PRESENT, true);
        let list = [frame];
        let set = hypercall(call::SET_GDT, [list.as_ptr() as u64, 512, 0, 0]) == 0;
        self.expect("descriptors", set);
        self.attack(self.readable("device_descriptors", page, 64, 72));
        self.end();
        hypercall(call::SET_GDT, [0, 0, 0, 0]);
        map(address, frame << 12 | PRESENT | WRITE, true);
        self.plain("were_descriptors", page);
    }

    /// Something that the other attempts need.
    fn expect(&mut self, what: &str, holds: bool) {
        if !holds {
            println!("SLUICE-RESULT missing={what}");
            self.failed += 1;
        }
    }

    /// Semi-writable frames: plain, as a page table, and plain again.
    fn semi_writable(&mut self) {
        let page = self.page + 3;
        let (address, frame) = (self.machine.address(page), self.machine.frame(page));
        let say = |what: u64| hypercall(call::SEMI_WRITABLE, [[frame].as_ptr() as u64, 1, what, 0]) == 0;
        // The units know it.
        self.plain("not_yet_semi", page);
        self.expect("semi", say(1));
        writes(address, 0x1234_5678_9abc_def0);
        self.attack(self.readable("device_semi", page, 0, 8));
        self.end();
        writes(address, 0);
        map(address, frame << 12 | PRESENT, true);
        self.expect("semi_pin", operate(PIN_L1, frame, 0) == 0);
        self.attack(Target { holds: None, ..self.readable("device_semi_table", page, 0, 8) });
        self.end();
        operate(UNPIN, frame, 0);
        map(address, frame << 12 | PRESENT | WRITE, true);
        writes(address, 0x1234_5678_9abc_def0);
        self.attack(self.readable("device_semi_again", page, 0, 8));
        self.end();
        self.expect("semi_end", say(0));
        self.plain("were_semi", page);
    }

    /// A frame that it gives back, of which it has a mapping still by which it sees what its devices do there; and has again.
    fn given_back(&mut self) {
        let page = self.page + 5;
        let (address, frame) = (self.machine.address(page), self.machine.frame(page));
        self.plain("not_yet_given_back", page);
        writes(address, 0x1234_5678_9abc_def0);
        self.expect("give_back", give_back(&[frame]) == 1);
        self.attack(self.readable("device_given_back", page, 0, 8));
        self.end();
        self.expect("take_again", take_again(page) == Some(frame));
        self.expect("zeros", word(address) == 0);
        self.plain("were_given_back", page);
    }

    /// What the hypervisor keeps in the domain's memory. Before it is `struct shared_info`, which is memory: the kernel may write it, and the hypervisor
    /// believes nothing in it. So is `struct start_info`.
    fn hidden(&mut self) {
        let first = self.machine.frame(0);
        for frame in (1..17).map(|after| first + self.machine.pages + after) {
            self.foreign("device_hidden", frame << 12);
        }
        self.end();
        let (info, magic) = ((self.machine.start_info - BASE) / 4096, u64::from_le_bytes(*b"xen-3.0-"));
        let bus = self.bus(info);
        // Behind what is said.
        let seen = Some((self.machine.address(info) + 3800, 0));
        let target =
            Target { name: "start_info", read: bus, holds: Some(magic), write: bus + 3800, value: 7, seen };
        self.reaches(target, 1);
        let window = self.machine.address(self.page + 4);
        let shared = (first + self.machine.pages) << 12;
        let kept = self.bus(self.page + 4) | PRESENT | WRITE;
        let mapped = map(window, shared | PRESENT | WRITE, true) == 0;
        self.expect("shared_info", mapped);
        if mapped {
            put(window + 4080, 0x7171);
            let target = Target {
                name: "shared_info",
                read: shared + 4080,
                holds: Some(0x7171),
                write: shared + 4088,
                value: 7,
                seen: Some((window + 4088, 0)),
            };
            self.reaches(target, 1);
            put(window + 4080, 0);
            put(window + 4088, 0);
            map(window, kept, true);
        }
    }

    /// A place that is not its own.
    fn foreign(&mut self, name: &'static str, at: u64) {
        let value = self.evil();
        self.attack(Target { name, read: at, holds: None, write: at, value, seen: None });
    }

    /// The hypervisor's memory, other domains', and registers.
    fn elsewhere(&mut self) {
        let first = self.machine.frame(0) << 12;
        let end = first + self.machine.number("memory").unwrap_or(32) * MIB;
        let total = self.machine.number("machine").unwrap_or(512) * MIB;
        let is_own = |at: u64| (first..end).contains(&at);
        for at in [
            0,
            0x1000,
            0x7000,
            0x9_f000,
            0xf_0000,
            MIB,
            2 * MIB,
            3 * MIB,
            4 * MIB + 0x3000,
            first - 0x1000,
            end,
        ] {
            self.foreign("device_low", at);
        }
        for at in (8 * MIB..total).step_by(32 * MIB as usize).filter(|at| !is_own(*at)) {
            self.foreign("device_spread", at + 0x3000);
        }
        // Interrupt controller, timer, units of IOMMUs, configuration, firmware; its own and another device's registers.
        for at in [0xfec0_0000, 0xfed0_0000, 0xfed8_0000, 0xfed9_0000, 0xe000_0000, 0xb000_0000, 0xffff_f000]
        {
            self.foreign("device_registers", at);
        }
        for edu in [self.edus[0], self.edus[self.count - 1]] {
            self.foreign("device_own_registers", edu.at + SOURCE);
        }
        let beyond = end + 2 * MIB;
        for at in [
            1 << 32,
            1 << 33 | beyond,
            1 << 40 | beyond,
            1 << 51 | beyond,
            (1 << 52) - 4096,
            1 << 63 | beyond,
        ] {
            self.foreign("device_beyond", at);
        }
        self.end();
    }

    /// Forged interrupts: fixed ones, NMI, INIT and start-up, to the first processors, in both formats. With `remappable=1` in one only:
    /// QEMU's VT-d lets the other through, even where it is switched off. None has somebody here to arrive at: the hypervisor goes on.
    fn messages(&mut self) {
        let only = self.machine.number("remappable") == Some(1);
        for (number, value) in [0x41, 0x20, 0xff, 0x400, 0x500, 0x608].into_iter().enumerate() {
            let processor = (number as u64 & 1) << 12;
            for format in [0, 0x10].into_iter().filter(|format| !only || format & 0x10 != 0) {
                let at = MESSAGES + processor + format;
                self.attack(Target {
                    name: "device_message",
                    value,
                    ..Target { read: at, write: at, ..Target::default() }
                });
            }
        }
        self.end();
    }

    /// A frame that the devices have just used becomes a page table, while they copy to it; and is one no more.
    fn becomes_table(&mut self) {
        let page = self.page + 5;
        let (address, frame) = (self.machine.address(page), self.machine.frame(page));
        for round in 0..2 {
            if round == 0 {
                self.plain("not_yet_a_table", page);
            }
            // What waits in the devices is the entry.
            self.load();
            for number in 0..self.count {
                self.edus[number].write_memory(BUFFER, (frame << 12) + 8 * (number as u64 + 1), 8);
            }
            map(address, frame << 12 | PRESENT, round & 1 == 0);
            let pinned = operate(PIN_L1, frame, 0) == 0;
            self.expect("late_pin", pinned);
            while self.edus[..self.count].iter().any(|edu| edu.is_busy()) {
                rest();
            }
            let evil = self.evil();
            let written = (0..512).any(|index| word(address + 8 * index) == evil);
            self.score.attempt("device_late", written);
            // Of a table that holds nothing nothing can be read: with one entry.
            let (entry, at) = (self.bus(self.page + 6) | PRESENT, frame << 12 | 511 << 3);
            self.expect("late_entry", crate::memory::update(at, entry) == 0);
            self.attack(self.readable("device_new_table", page, 511 << 3, 8));
            self.end();
            operate(UNPIN, frame, 0);
            map(address, frame << 12 | PRESENT | WRITE, true);
            put(address + (511 << 3), 0);
            self.plain("was_a_table", page);
        }
    }

    /// Has each device keep the entry in its buffer.
    fn load(&mut self) {
        let own = self.machine.address(self.page);
        for number in 0..self.count {
            put(own + 64 * number as u64, self.evil());
        }
        self.waiting = self.count;
        self.each(|edu, _, own| edu.read_memory(own, BUFFER, 8));
        self.waiting = 0;
    }

    /// A frame is pinned and unpinned without an end while all devices write to it: what has been validated stays as it was.
    fn races(&mut self) {
        let page = self.page + 7;
        let (address, frame) = (self.machine.address(page), self.machine.frame(page));
        let evil = self.evil();
        self.load();
        let (mut copies, mut landed, mut pins, mut refused) = (0u64, 0u64, 0u64, 0u64);
        let wanted = self.machine.number("copies").unwrap_or(104);
        let place = |number: usize| address + 8 * number as u64;
        while copies < wanted {
            let written = (0..self.count).filter(|number| word(place(*number)) == evil).count();
            landed += written as u64;
            (0..self.count).for_each(|number| put(place(number), 0));
            map(address, frame << 12 | PRESENT, pins & 1 == 0);
            if operate(PIN_L1, frame, 0) == 0 {
                pins += 1;
                // Now and then it stays one for a while.
                let looks = if pins % 16 == 0 { 64 } else { 1 };
                let changed = (0..looks).any(|_| {
                    copies += self.again(frame);
                    (0..self.count).any(|number| word(place(number)) != 0)
                });
                self.score.attempt("device_race", changed);
                operate(UNPIN, frame, 0);
            } else {
                // It came before, and was seen.
                refused += 1;
            }
            map(address, frame << 12 | PRESENT | WRITE, true);
            let looks = if pins % 16 == 8 { 64 } else { 1 };
            (0..looks).for_each(|_| copies += self.again(frame));
        }
        println!(
            "SLUICE-RESULT race.copies={copies} race.landed={landed} race.pins={pins} race.refused={refused}"
        );
        // Some came while it was memory.
        self.expect("landed", landed > 0);
        while self.edus[..self.count].iter().any(|edu| edu.is_busy()) {
            rest();
        }
        (0..self.count).for_each(|number| put(place(number), 0));
        self.plain("was_raced_for", page);
    }

    /// Devices that are done copy again; how many that are.
    fn again(&self, frame: u64) -> u64 {
        let mut begun = 0;
        for (number, edu) in self.edus[..self.count].iter().enumerate() {
            if !edu.is_busy() {
                edu.write_memory(BUFFER, (frame << 12) + 8 * number as u64, 8);
                begun += 1;
            }
        }
        begun
    }
}
