//! Counts from outside: reads QEMU's log of every `VMRUN` and `#VMEXIT` of the emulated processor, and of every
//! access to a device, and attributes them.
//!
//! - `-d in_asm` makes QEMU 7.2 log `vmrun!` and `vmexit(...)` (target/i386/tcg/sysemu/svm_helper.c);
//!   `-dfilter` with an address where no code is leaves only those.
//! - `-trace memory_region_ops_*` logs every access that reaches a device.
//!
//! Between a `vmrun!` and the next `vmexit` the guest runs: an access there was made by the guest itself,
//! unhooked. An access elsewhere was made by the hypervisor. The exit of a hooked port access says the port
//! (AMD APM volume 2, 15.10.2). A guest is known by the address of its VMCB.
//!
//! A guest separates its transfers by writes to the ports [`MARKS`] (guest/rootfs/init), which always exit.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

/// Ports of the marks: a download begins, ends; an upload begins, ends.
const MARKS: RangeInclusive<u16> = 0x5a0..=0x5a3;
/// `VMEXIT_IOIO`.
const IOIO: u32 = 0x7b;
/// The last line: no more will come.
const END: &str = "tally: end";

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
}

/// What was counted of a guest in a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Exits.
    pub exits: u64,
    /// Exits by port accesses, by port; a whole `rep` is one if the hypervisor takes it at once.
    pub ports: BTreeMap<u16, u64>,
    /// Elements that the hypervisor moved for the guest's string instructions, beyond the first of each.
    pub further_elements: u64,
    /// Accesses to the device that the guest made itself, as the device sees them.
    pub direct_elements: u64,
    /// The same in instructions: accesses to the data port in a row, with one width and direction, are one.
    pub direct_instructions: u64,
    /// Accesses to the device that the hypervisor made after an exit of this guest.
    pub forwarded_elements: u64,
}

impl Counts {
    /// Exits by accesses to these ports.
    pub fn port_exits(&self, ports: &RangeInclusive<u16>) -> u64 {
        self.ports.range(ports.clone()).map(|(_, count)| count).sum()
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        self.exits += other.exits;
        for (port, count) in &other.ports {
            *self.ports.entry(*port).or_default() += count;
        }
        self.further_elements += other.further_elements;
        self.direct_elements += other.direct_elements;
        self.direct_instructions += other.direct_instructions;
        self.forwarded_elements += other.forwarded_elements;
    }
}

/// The counts of a whole run.
#[derive(Debug, Default)]
pub struct Tally {
    /// The end of a line about the device.
    device: String,
    guests: BTreeMap<(u64, Phase), Counts>,
    phases: BTreeMap<u64, Phase>,
    /// Who runs now, by VMCB; none while the hypervisor does.
    running: Option<u64>,
    /// Who ran last.
    last: u64,
    /// The last exit was by a string instruction, after this many elements.
    string: Option<u64>,
    /// The last access was to the data port by the guest: its width and direction.
    burst: Option<(u64, u8, bool)>,
}

/// Offset of the NE2000's data port, and of the end of its range.
const DATA: RangeInclusive<u64> = 0x10..=0x17;

impl Tally {
    /// Nothing counted yet; `device` is the memory region's name in QEMU, such as `ne2000`.
    pub fn new(device: &str) -> Self {
        Self { device: format!("'{device}'"), ..Self::default() }
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

    fn counts(&mut self, guest: u64) -> &mut Counts {
        let phase = self.phases.get(&guest).copied().unwrap_or_default();
        self.guests.entry((guest, phase)).or_default()
    }

    /// Takes one line of the log.
    pub fn line(&mut self, line: &str) {
        // QEMU says what it injects, and does not end the line if that is an exception.
        let line = match line.strip_prefix("Injecting(").and_then(|rest| rest.split_once(": ")) {
            Some((_, rest)) => rest.trim_start_matches(|letter: char| letter.is_ascii_uppercase()),
            None => line,
        };
        if let Some(rest) = line.strip_prefix("vmrun! ") {
            if let Some(elements) = self.string.take() {
                self.counts(self.last).further_elements += elements.saturating_sub(1);
            }
            self.running = u64::from_str_radix(rest, 16).ok();
        } else if let Some(rest) = line.strip_prefix("vmexit(") {
            self.exit(rest);
        } else if line.ends_with(self.device.as_str()) {
            self.access(line);
        }
    }

    fn exit(&mut self, rest: &str) {
        let Some(guest) = self.running.take() else { return };
        self.last = guest;
        let mut fields = rest.split(", ").map(|field| u64::from_str_radix(field, 16).unwrap_or(0));
        let code = fields.next().unwrap_or(0) as u32;
        let information = fields.next().unwrap_or(0);
        self.counts(guest).exits += 1;
        if code != IOIO {
            return;
        }
        let port = (information >> 16) as u16;
        if MARKS.contains(&port) {
            let phase = [Phase::Down, Phase::Outside, Phase::Up, Phase::Outside];
            self.phases.insert(guest, phase[usize::from(port - MARKS.start())]);
            return;
        }
        *self.counts(guest).ports.entry(port).or_default() += 1;
        // Bit 2: a string instruction.
        self.string = (information & 4 != 0).then_some(0);
    }

    fn access(&mut self, line: &str) {
        let Some((address, size, write)) = parse_access(line) else { return };
        let data = DATA.contains(&(address & 0x1f));
        let Some(guest) = self.running else {
            self.burst = None;
            if let (Some(elements), true) = (&mut self.string, data) {
                *elements += 1;
            }
            self.counts(self.last).forwarded_elements += 1;
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

/// `memory_region_ops_read cpu 0 mr 0x... addr 0xc000 value 0x0 size 1 name 'ne2000'`: address, size, write.
fn parse_access(line: &str) -> Option<(u64, u8, bool)> {
    let mut words = line.split(' ');
    let write = match words.next()?.rsplit(':').next()? {
        "memory_region_ops_read" => false,
        "memory_region_ops_write" => true,
        _ => return None,
    };
    let mut after = |name: &str| {
        words.by_ref().find(|word| *word == name)?;
        words.next()
    };
    let address = u64::from_str_radix(after("addr")?.strip_prefix("0x")?, 16).ok()?;
    Some((address, after("size")?.parse().ok()?, write))
}

/// Reads QEMU's log while it is written: through a pipe, because it is long.
pub struct Reader {
    pipe: PathBuf,
    thread: JoinHandle<Tally>,
}

impl Reader {
    /// Makes the pipe and starts to read.
    pub fn start(directory: &Path, device: &str) -> Result<Self> {
        let pipe = directory.join("qemu.pipe");
        let _ = std::fs::remove_file(&pipe);
        crate::workspace::run(Command::new("mkfifo").arg(&pipe))?;
        // Open for both, so that QEMU may open and close it as it likes.
        let end = std::fs::File::options().read(true).write(true).open(&pipe)?;
        let mut tally = Tally::new(device);
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

    /// QEMU's arguments that make it write what is read here.
    pub fn arguments(&self, accesses: bool) -> Vec<String> {
        let mut arguments = vec!["-d", "in_asm", "-dfilter", "0x0+1"];
        if accesses {
            arguments.extend(["-trace", "memory_region_ops_read", "-trace", "memory_region_ops_write"]);
        }
        let mut arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        arguments.extend(["-D".to_owned(), self.pipe.display().to_string()]);
        arguments
    }

    /// The counts, when QEMU has ended.
    pub fn finish(self) -> Result<Tally> {
        let mut pipe = std::fs::File::options().write(true).open(&self.pipe)?;
        // On a line of its own, even if QEMU was stopped in the middle of one.
        pipe.write_all(format!("\n{END}\n").as_bytes())?;
        let tally = self.thread.join().ok().context("the reader of QEMU's log failed")?;
        let _ = std::fs::remove_file(&self.pipe);
        if tally.guests.is_empty() {
            bail!("QEMU logged no exits; this was written for QEMU 7.2 (Debian 12)");
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lines: &[&str]) -> Tally {
        let mut tally = Tally::new("ne2000");
        lines.iter().for_each(|line| tally.line(line));
        tally
    }

    fn access(what: &str, port: u16, size: u8) -> String {
        format!("memory_region_ops_{what} cpu 0 mr 0x55 addr {port:#x} value 0x0 size {size} name 'ne2000'")
    }

    #[test]
    fn accesses_are_the_guests_between_entry_and_exit() {
        let status = access("read", 0xc007, 1);
        let data = access("write", 0xc010, 4);
        let counts = tally(&[
            "vmrun! 0000000000001000",
            &status,
            &data,
            &data,
            &status,
            &data,
            "vmexit(0000007b, 00000000c0070011, 0000000000000000, 0000000000000000)!",
            &status,
            "vmrun! 0000000000001000",
        ])
        .total();
        assert_eq!(counts.direct_elements, 5);
        assert_eq!(counts.direct_instructions, 4, "two elements were one instruction");
        assert_eq!(counts.forwarded_elements, 1);
        assert_eq!((counts.exits, counts.port_exits(&(0xc000..=0xc01f))), (1, 1));
        assert_eq!(counts.port_exits(&(0xd000..=0xd01f)), 0);
    }

    #[test]
    fn an_exit_after_an_injected_exception_is_counted() {
        let exit = "vmexit(00000072, 0000000000000000, 0000000000000000, 0000000000000000)!";
        let garbled = format!("Injecting(0x800): EXEPT{exit}");
        let lines = ["vmrun! 1000", "Injecting(0x2f): INTR 0x2f 0x0", exit, "vmrun! 1000", &garbled];
        assert_eq!(tally(&lines).total().exits, 2);
    }

    #[test]
    fn a_hooked_string_counts_the_elements_moved_for_it() {
        let data = access("read", 0xc010, 2);
        let counts = tally(&[
            "vmrun! 0000000000001000",
            "vmexit(0000007b, 00000000c010002d, 0000000000000000, 0000000000000000)!",
            &data,
            &data,
            &data,
            "vmrun! 0000000000001000",
        ])
        .total();
        assert_eq!((counts.port_exits(&(0xc010..=0xc010)), counts.further_elements), (1, 2));
    }

    #[test]
    fn marks_separate_the_phases_of_each_guest() {
        let mark = |port: u16| format!("vmexit(0000007b, {:016x}, 0, 0)!", u64::from(port) << 16 | 0x10);
        let other = "vmexit(00000072, 0000000000000000, 0000000000000000, 0000000000000000)!";
        let (begin, end) = (mark(0x5a2), mark(0x5a3));
        let tally =
            tally(&["vmrun! 1000", &begin, "vmrun! 2000", other, "vmrun! 1000", other, "vmrun! 1000", &end]);
        assert_eq!(tally.phase(Phase::Up).exits, 2, "one, and the mark that ends it");
        assert_eq!(tally.phase(Phase::Down).exits, 0);
        assert_eq!(tally.total().exits, 4);
    }
}
