//! Counts from outside: reads QEMU's log of every `VMRUN` and `#VMEXIT` of the emulated processor, of every
//! access to a device, and of instructions, and attributes them to guests and to what they do.
//!
//! - `-d in_asm` makes QEMU 7.2 log `vmrun!` and `vmexit(...)` (target/i386/tcg/sysemu/svm_helper.c);
//!   `-dfilter` with an address where no code is leaves only those.
//! - `-trace memory_region_ops_*` logs every access that reaches a device.
//! - bench/instructions.rs adds the count of instructions at each `VMRUN` and after each `#VMEXIT`.
//!
//! Between a `vmrun!` and the next `vmexit` the guest runs: an access there was made by the guest itself,
//! unhooked. An access elsewhere was made by the hypervisor. The exit of a hooked port access says the port
//! (AMD APM volume 2, 15.10.2), a nested page fault the address (15.25.6). A guest is known by the address of its VMCB.
//! A machine without a hypervisor is one guest that never exits.
//!
//! A guest separates what it does by writes to the ports [`MARKS`], and says how far it is by writes to the
//! ports [`STEPS`] (guest/rootfs/init); both always exit.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

/// Ports of the marks: the beginning and the end of each phase, in the order of [`PHASES`].
pub const MARKS: RangeInclusive<u16> = 0x5a0..=0x5a7;
/// Ports of steps: the first one, the second...
const STEPS: RangeInclusive<u16> = 0x5b0..=0x5ff;
/// `VMEXIT_IOIO`.
pub const IOIO: u32 = 0x7b;
/// `VMEXIT_NPF`.
const NESTED_PAGE_FAULT: u32 = 0x400;
/// The last line: no more will come.
const END: &str = "tally: end";
/// The only guest of a machine without a hypervisor.
const BARE: u64 = 0;

/// What a guest is doing, by its marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Everything else.
    #[default]
    Outside,
    /// A download.
    Down,
    /// An upload.
    Up,
    /// Many small downloads.
    Small,
    /// Lines that are answered one by one.
    Interactive,
}

/// The phases that guests mark, and what they call them.
pub const PHASES: [(Phase, &str); 4] =
    [(Phase::Down, "down"), (Phase::Up, "up"), (Phase::Small, "small"), (Phase::Interactive, "interactive")];

/// Where a device's registers are, ports and memory, as the guest sees them.
pub type Regions = [RangeInclusive<u64>];

/// Exits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// How many.
    pub count: u64,
    /// Instructions that the hypervisor executed after them, before it entered a guest again.
    pub instructions: u64,
}

impl Exits {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.instructions += other.instructions;
    }
}

/// What an exit was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// An access to a port.
    Port(u16),
    /// An access to memory that is not mapped, or not for it.
    Memory(u64),
    /// Anything else.
    Other,
}

/// What was counted of a guest in a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Exits; a whole `rep` is one if the hypervisor takes it at once.
    exits: BTreeMap<Cause, Exits>,
    /// Instructions that the guest executed.
    pub own_instructions: u64,
    /// Elements that the hypervisor moved for the guest's string instructions, beyond the first of each.
    pub further_elements: u64,
    /// Accesses to the device that the guest made itself, as the device sees them.
    pub direct_elements: u64,
    /// The same in instructions: accesses to the data port in a row, with one width and direction, are one.
    pub direct_instructions: u64,
    /// Accesses to the device that the hypervisor made after an exit of this guest.
    pub forwarded_elements: u64,
}

impl Cause {
    fn is_in(self, regions: &Regions) -> bool {
        let address = match self {
            Self::Port(port) => u64::from(port),
            Self::Memory(address) => address,
            Self::Other => return false,
        };
        // Ports are never where memory is.
        regions.iter().any(|region| region.contains(&address))
    }
}

impl Counts {
    /// All exits.
    pub fn all_exits(&self) -> Exits {
        self.sum(|_| true)
    }

    /// Exits by accesses to a device.
    pub fn device_exits(&self, regions: &Regions) -> Exits {
        self.sum(|cause| cause.is_in(regions))
    }

    fn sum(&self, wanted: impl Fn(Cause) -> bool) -> Exits {
        let mut sum = Exits::default();
        self.exits.iter().filter(|(cause, _)| wanted(**cause)).for_each(|(_, exits)| sum.add(*exits));
        sum
    }

    /// Instructions of the whole machine.
    pub fn instructions(&self) -> u64 {
        self.own_instructions + self.all_exits().instructions
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        for (cause, exits) in &other.exits {
            self.exits.entry(*cause).or_default().add(*exits);
        }
        self.own_instructions += other.own_instructions;
        self.further_elements += other.further_elements;
        self.direct_elements += other.direct_elements;
        self.direct_instructions += other.direct_instructions;
        self.forwarded_elements += other.forwarded_elements;
    }
}

/// An exit, up to the next entry, during which a function was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// Instructions of the longest call.
    pub call: u64,
    /// Instructions of the exit.
    pub exit: u64,
    /// Another virtual processor is entered then.
    pub switches: bool,
}

/// The counts of a whole run.
#[derive(Debug, Default)]
pub struct Tally {
    /// The end of a line about the device.
    device: String,
    guests: BTreeMap<(u64, Phase), Counts>,
    phases: BTreeMap<u64, Phase>,
    /// Counts of instructions at the beginning and the end of each guest's phases.
    spans: BTreeMap<(u64, Phase), (u64, u64)>,
    steps: BTreeMap<u64, Vec<u64>>,
    functions: BTreeMap<String, Vec<u64>>,
    /// Calls since the last exit, those of an exit that ends, and exits that had some.
    called: BTreeMap<String, u64>,
    ending: Vec<(String, Around)>,
    around: BTreeMap<String, Vec<Around>>,
    /// There is no hypervisor.
    bare: bool,
    /// Who runs now, by VMCB; none while the hypervisor does.
    running: Option<u64>,
    /// Who ran last, and why it ran no more.
    last: (u64, Option<Cause>),
    /// The last exit was by a string instruction, after this many elements.
    string: Option<u64>,
    /// The last access was to the data port by the guest: its width and direction.
    burst: Option<(u64, u8, bool)>,
    /// Instructions that the machine had executed when it last said so.
    clock: u64,
}

/// Offset of the NE2000's data port, and of the end of its range.
const DATA: RangeInclusive<u64> = 0x10..=0x17;

impl Tally {
    /// Nothing counted yet; `device` is how its memory regions' names begin in QEMU, such as `ne2000`.
    pub fn new(device: &str) -> Self {
        Self { device: format!(" name '{device}"), ..Self::default() }
    }

    /// The same for a machine without a hypervisor.
    pub fn bare(device: &str) -> Self {
        Self { bare: true, running: Some(BARE), ..Self::new(device) }
    }

    /// The sum over all guests of what happened in a phase.
    pub fn phase(&self, phase: Phase) -> Counts {
        let mut sum = Counts::default();
        for counts in self.guests.iter().filter(|(key, _)| key.1 == phase).map(|(_, counts)| counts) {
            sum.add(counts);
        }
        sum
    }

    /// The sum over all guests and phases.
    pub fn total(&self) -> Counts {
        let mut sum = Counts::default();
        self.guests.values().for_each(|counts| sum.add(counts));
        sum
    }

    /// The part of the time in which some guest was in a phase that all were who ever were.
    pub fn overlap(&self, phase: Phase) -> f64 {
        let spans = || self.spans.iter().filter(|(key, _)| key.1 == phase).map(|(_, span)| *span);
        let (begins, ends) = (|| spans().map(|span| span.0), || spans().map(|span| span.1));
        let (Some(first), Some(last)) = (begins().min(), ends().max()) else { return 0.0 };
        let all = ends().min().unwrap_or(0).saturating_sub(begins().max().unwrap_or(0));
        all as f64 / last.saturating_sub(first).max(1) as f64
    }

    /// Exits of each guest in all phases, in the order of their VMCBs, and when it was how far: the machine's count of
    /// instructions at each of its steps.
    pub fn progress(&self) -> Vec<(u64, &[u64])> {
        let exits = |guest: u64| {
            let own = self.guests.iter().filter(|(key, _)| key.0 == guest);
            own.map(|(_, counts)| counts.all_exits().count).sum()
        };
        self.steps.iter().map(|(guest, steps)| (exits(*guest), steps.as_slice())).collect()
    }

    /// Instructions of each call of a function of the hypervisor.
    pub fn function(&self, name: &str) -> &[u64] {
        self.functions.get(name).map_or(&[], Vec::as_slice)
    }

    /// The exits during which the function was called.
    pub fn around(&self, name: &str) -> &[Around] {
        self.around.get(name).map_or(&[], Vec::as_slice)
    }

    fn counts(&mut self, guest: u64) -> &mut Counts {
        let phase = self.phases.get(&guest).copied().unwrap_or_default();
        self.guests.entry((guest, phase)).or_default()
    }

    /// Takes one line of the log.
    pub fn line(&mut self, line: &str) {
        let line = without_injection(line);
        if let Some(rest) = line.strip_prefix("vmrun! ") {
            if let Some(elements) = self.string.take() {
                self.counts(self.last.0).further_elements += elements.saturating_sub(1);
            }
            self.running = u64::from_str_radix(rest, 16).ok();
            let switches = self.running != Some(self.last.0);
            for (name, around) in self.ending.drain(..) {
                self.around.entry(name).or_default().push(Around { switches, ..around });
            }
        } else if let Some(rest) = line.strip_prefix("vmexit(") {
            self.exit(rest);
        } else if let Some(rest) = line.strip_prefix("count ") {
            self.count(rest);
        } else if line.contains(self.device.as_str()) {
            self.access(line);
        } else if self.bare && line.ends_with(" name 'io'") {
            // Nobody has the ports of marks.
            let port = parse_access(line).and_then(|(address, ..)| u16::try_from(address).ok());
            self.mark(BARE, port.unwrap_or(0));
        }
    }

    fn exit(&mut self, rest: &str) {
        let Some(guest) = self.running.take() else { return };
        let mut fields = rest.split(", ").map(|field| u64::from_str_radix(field, 16).unwrap_or(0));
        let code = fields.next().unwrap_or(0) as u32;
        let information = fields.next().unwrap_or(0);
        let cause = match code {
            IOIO => Cause::Port((information >> 16) as u16),
            NESTED_PAGE_FAULT => Cause::Memory(fields.next().unwrap_or(0)),
            _ => Cause::Other,
        };
        self.counts(guest).exits.entry(cause).or_default().count += 1;
        self.last = (guest, Some(cause));
        if let Cause::Port(port) = cause
            && !self.mark(guest, port)
        {
            // Bit 2: a string instruction.
            self.string = (information & 4 != 0).then_some(0);
        }
    }

    /// True if the port is one of marks or steps.
    fn mark(&mut self, guest: u64, port: u16) -> bool {
        if MARKS.contains(&port) {
            let mark = usize::from(port - MARKS.start());
            let phase = PHASES.get(mark / 2).filter(|_| mark.is_multiple_of(2));
            let phase = phase.map_or(Phase::Outside, |(phase, _)| *phase);
            let before = self.phases.insert(guest, phase).unwrap_or_default();
            if let Some(span) = self.spans.get_mut(&(guest, before)) {
                span.1 = self.clock;
            }
            if phase != Phase::Outside {
                self.spans.insert((guest, phase), (self.clock, self.clock));
            }
            return true;
        }
        let step = STEPS.contains(&port);
        if step {
            self.steps.entry(guest).or_default().push(self.clock);
        }
        step
    }

    /// What the plugin says: `run N ...`, `exit N ...`, `out N ...` or `fn NAME N`.
    fn count(&mut self, rest: &str) {
        let mut words = rest.split(' ');
        let what = words.next().unwrap_or_default();
        if what == "fn" {
            if let (Some(name), Some(count)) = (words.next(), words.next().and_then(|word| word.parse().ok()))
            {
                self.functions.entry(name.to_owned()).or_default().push(count);
                let longest = self.called.entry(name.to_owned()).or_default();
                *longest = count.max(*longest);
            }
            return;
        }
        if !matches!(what, "run" | "exit" | "out") {
            // Who runs goes on: a program's mark, for one, ends nothing.
            return;
        }
        let Some(now) = words.next().and_then(|word| word.parse::<u64>().ok()) else { return };
        let passed = now.saturating_sub(self.clock);
        self.clock = now;
        let (guest, cause) = self.last;
        let called = std::mem::take(&mut self.called);
        match (what, cause) {
            ("run", Some(cause)) => {
                let around = |(name, call)| (name, Around { call, exit: passed, switches: false });
                self.ending.extend(called.into_iter().map(around));
                self.counts(guest).exits.entry(cause).or_default().instructions += passed;
            }
            ("exit", _) => self.counts(guest).own_instructions += passed,
            ("out", _) if self.bare => self.counts(BARE).own_instructions += passed,
            _ => {}
        }
    }

    fn access(&mut self, line: &str) {
        let Some((address, size, write)) = parse_access(line) else { return };
        let data = self.device.ends_with("ne2000") && DATA.contains(&(address & 0x1f));
        let Some(guest) = self.running else {
            self.burst = None;
            if let (Some(elements), true) = (&mut self.string, data) {
                *elements += 1;
            }
            self.counts(self.last.0).forwarded_elements += 1;
            return;
        };
        let burst = data.then_some((guest, size, write));
        let goes_on = burst.is_some() && burst == self.burst;
        self.burst = burst;
        let counts = self.counts(guest);
        counts.direct_elements += 1;
        counts.direct_instructions += u64::from(!goes_on);
    }
}

/// QEMU says what it injects, and does not end the line if that is an exception.
pub fn without_injection(line: &str) -> &str {
    match line.strip_prefix("Injecting(").and_then(|rest| rest.split_once(": ")) {
        Some((_, rest)) => rest.trim_start_matches(|letter: char| letter.is_ascii_uppercase()),
        None => line,
    }
}

/// `memory_region_ops_read cpu 0 mr 0x... addr 0xc000 value 0x0 size 1 name 'ne2000'`: address, size, write.
/// There are millions of them: found by whole words, which is fast where nothing is optimized, too.
fn parse_access(line: &str) -> Option<(u64, u8, bool)> {
    let write = if line.contains("memory_region_ops_write ") {
        true
    } else if line.contains("memory_region_ops_read ") {
        false
    } else {
        return None;
    };
    let (_, rest) = line.split_once(" addr 0x")?;
    let (address, rest) = rest.split_once(" value ")?;
    let (_, rest) = rest.split_once(" size ")?;
    let (size, _) = rest.split_once(" name ")?;
    Some((u64::from_str_radix(address, 16).ok()?, size.parse().ok()?, write))
}

/// Who takes the lines of QEMU's log.
pub trait Lines: Send + 'static {
    /// Takes one.
    fn line(&mut self, line: &str);

    /// None was of use.
    fn is_empty(&self) -> bool;
}

impl Lines for Tally {
    fn line(&mut self, line: &str) {
        Self::line(self, line);
    }

    fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }
}

/// Reads QEMU's log while it is written: through a pipe, because it is long.
pub struct Reader<T> {
    pipe: PathBuf,
    thread: JoinHandle<T>,
}

impl<T: Lines> Reader<T> {
    /// Makes the pipe and starts to read into `tally`.
    pub fn start(directory: &Path, mut tally: T) -> Result<Self> {
        let pipe = directory.join("qemu.pipe");
        let _ = std::fs::remove_file(&pipe);
        crate::workspace::run(Command::new("mkfifo").arg(&pipe))?;
        // Open for both, so that QEMU may open and close it as it likes.
        let end = std::fs::File::options().read(true).write(true).open(&pipe)?;
        let thread = std::thread::spawn(move || {
            let mut reader = BufReader::with_capacity(1 << 20, end);
            let mut line = Vec::new();
            loop {
                line.clear();
                if reader.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
                    return tally;
                }
                let text = std::str::from_utf8(&line).unwrap_or_default().trim_end();
                if text == END {
                    return tally;
                }
                tally.line(text);
            }
        });
        Ok(Self { pipe, thread })
    }

    /// QEMU's arguments that make it write what is read here: exits; accesses; what a plugin says, given its own
    /// arguments.
    pub fn arguments(&self, accesses: bool, plugin: Option<&str>) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: &str| arguments.extend([option.to_owned(), value.to_owned()]);
        add("-d", if plugin.is_some() { "in_asm,plugin" } else { "in_asm" });
        add("-dfilter", "0x0+1");
        if let Some(plugin) = plugin {
            add("-plugin", plugin);
        }
        if accesses {
            add("-trace", "memory_region_ops_read");
            add("-trace", "memory_region_ops_write");
        }
        add("-D", &self.pipe.display().to_string());
        arguments
    }

    /// The counts, when QEMU has ended.
    pub fn finish(self) -> Result<T> {
        let mut pipe = std::fs::File::options().write(true).open(&self.pipe)?;
        // On a line of its own, even if QEMU was stopped in the middle of one.
        pipe.write_all(format!("\n{END}\n").as_bytes())?;
        let tally = self.thread.join().ok().context("the reader of QEMU's log failed")?;
        let _ = std::fs::remove_file(&self.pipe);
        if tally.is_empty() {
            bail!("QEMU logged nothing of use; this was written for QEMU 7.2 (Debian 12)");
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "vmrun! 0000000000001000";
    const INTERRUPT: &str = "vmexit(00000072, 0000000000000000, 0000000000000000, 0000000000000000)!";

    fn tally_of(mut tally: Tally, lines: &[&str]) -> Tally {
        lines.iter().for_each(|line| tally.line(line));
        tally
    }

    fn tally(lines: &[&str]) -> Tally {
        tally_of(Tally::new("ne2000"), lines)
    }

    fn access(what: &str, port: u16, size: u8) -> String {
        format!("memory_region_ops_{what} cpu 0 mr 0x55 addr {port:#x} value 0x0 size {size} name 'ne2000'")
    }

    fn port_exit(port: u16) -> String {
        format!("vmexit(0000007b, {:016x}, 0, 0)!", u64::from(port) << 16 | 0x10)
    }

    #[test]
    fn accesses_are_the_guests_between_entry_and_exit() {
        let status = access("read", 0xc007, 1);
        let data = access("write", 0xc010, 4);
        let hooked = port_exit(0xc007);
        let counts = tally(&[ENTRY, &status, &data, &data, &status, &data, &hooked, &status, ENTRY]).total();
        assert_eq!(counts.direct_elements, 5);
        assert_eq!(counts.direct_instructions, 4, "two elements were one instruction");
        assert_eq!(counts.forwarded_elements, 1);
        assert_eq!(counts.all_exits().count, 1);
        assert_eq!(counts.device_exits(&[0xc000..=0xc01f]).count, 1);
        assert_eq!(counts.device_exits(&[0xd000..=0xd01f]).count, 0);
    }

    #[test]
    fn a_fault_at_the_registers_is_an_exit_of_the_device() {
        let fault = "vmexit(00000400, 0000000100000006, 00000000c0000018, 00000000)!";
        let counts = tally(&[ENTRY, fault, ENTRY]).total();
        assert_eq!(counts.device_exits(&[0xd000..=0xd01f, 0xc000_0000..=0xc001_ffff]).count, 1);
    }

    #[test]
    fn instructions_belong_to_the_guest_or_to_its_last_exit() {
        let hooked = port_exit(0xc007);
        let tally = tally(&[
            "count run 1000 1",
            ENTRY,
            &hooked,
            "count exit 1500 1",
            "count fn model_update 42",
            "count run 1700 2",
            ENTRY,
            INTERRUPT,
            "count exit 1800 2",
            "count fn model_update 20",
            "count run 1830 3",
            "vmrun! 0000000000002000",
        ]);
        let counts = tally.total();
        assert_eq!(counts.own_instructions, 600);
        assert_eq!(counts.all_exits(), Exits { count: 2, instructions: 230 });
        assert_eq!(counts.device_exits(&[0xc000..=0xc01f]), Exits { count: 1, instructions: 200 });
        assert_eq!(counts.instructions(), 830);
        assert_eq!(tally.function("model_update"), [42, 20]);
        let expected = [(42, 200, false), (20, 30, true)];
        let expected = expected.map(|(call, exit, switches)| Around { call, exit, switches });
        assert_eq!(tally.around("model_update"), expected);
    }

    #[test]
    fn marks_of_programs_take_nothing_from_who_runs() {
        let lines = ["count run 1000 1", ENTRY, "count mark 1400 1", INTERRUPT, "count exit 1500 1"];
        assert_eq!(tally(&lines).total().own_instructions, 500);
        let lines = ["count out 100 0", "count mark 300 0", "count out 400 0"];
        assert_eq!(tally_of(Tally::bare("nvme"), &lines).total().own_instructions, 400);
    }

    #[test]
    fn an_exit_after_an_injected_exception_is_counted() {
        let garbled = format!("Injecting(0x800): EXEPT{INTERRUPT}");
        let lines = [ENTRY, "Injecting(0x2f): INTR 0x2f 0x0", INTERRUPT, ENTRY, &garbled];
        assert_eq!(tally(&lines).total().all_exits().count, 2);
    }

    #[test]
    fn a_hooked_string_counts_the_elements_moved_for_it() {
        let data = access("read", 0xc010, 2);
        let hooked = "vmexit(0000007b, 00000000c010002d, 0000000000000000, 0000000000000000)!";
        let counts = tally(&[ENTRY, hooked, &data, &data, &data, ENTRY]).total();
        assert_eq!((counts.device_exits(&[0xc010..=0xc010]).count, counts.further_elements), (1, 2));
    }

    #[test]
    fn marks_separate_the_phases_of_each_guest() {
        let (begin, end) = (port_exit(0x5a2), port_exit(0x5a3));
        let other = "vmrun! 2000";
        let tally = tally(&[ENTRY, &begin, other, INTERRUPT, ENTRY, INTERRUPT, ENTRY, &end]);
        assert_eq!(tally.phase(Phase::Up).all_exits().count, 2, "one, and the mark that ends it");
        assert_eq!(tally.phase(Phase::Down).all_exits().count, 0);
        assert_eq!(tally.total().all_exits().count, 4);
    }

    #[test]
    fn steps_are_taken_by_the_clock() {
        let (first, second) = (port_exit(0x5b0), port_exit(0x5b1));
        let lines = [ENTRY, &first, "count exit 100 1", ENTRY, INTERRUPT, "count exit 300 2", ENTRY, &second];
        let tally = tally(&lines);
        assert_eq!(tally.progress(), [(3, [0, 300].as_slice())]);
    }

    #[test]
    fn phases_of_two_guests_overlap_in_part() {
        let (begin, end) = (port_exit(0x5a0), port_exit(0x5a1));
        let lines = [
            "vmrun! a000",
            &begin,
            "count exit 100 1",
            "vmrun! b000",
            &begin,
            "count exit 200 2",
            "vmrun! a000",
            &end,
            "count exit 400 3",
            "vmrun! b000",
            &end,
            "count exit 500 4",
        ];
        let both = tally(&lines);
        // One from 0 to 200, the other from 100 to 400.
        assert_eq!((both.overlap(Phase::Down), both.overlap(Phase::Up)), (0.25, 0.0));
        assert_eq!(tally(&[ENTRY, &begin, "count exit 100 1", ENTRY, &end]).overlap(Phase::Down), 1.0);
    }

    #[test]
    fn without_a_hypervisor_every_access_is_direct() {
        let mark = |port: u16| {
            format!("7@1.2:memory_region_ops_write cpu 0 mr 0x1 addr {port:#x} value 0x2e size 1 name 'io'")
        };
        let register = access("read", 0xc007, 1);
        let (begin, end) = (mark(0x5a0), mark(0x5a1));
        let lines = [&register, "count out 10 0", &begin, &register, "count out 50 0", &end];
        let counts = tally_of(Tally::bare("ne2000"), &lines).phase(Phase::Down);
        assert_eq!((counts.direct_elements, counts.own_instructions), (1, 40));
    }
}
