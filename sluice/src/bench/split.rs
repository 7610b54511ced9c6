//! Who executes instructions: each guest, the hypervisor, and the system beside it, part by part of a load. Read from the same log as
//! [`tally`](super::tally)'s, but every instruction of the machine counts, whoever set the marks.
//!
//! An instruction between an entry and the next exit is the guest's, which is known by the address of its VMCB. Of the others those within
//! the range of addresses that the plugin was given are the hypervisor's; the rest, if there is a range, is the system beside it: the kernel
//! of a KVM host with all its programs, Xen's dom0. Without a range all are the hypervisor's. A processor that runs no guest can be counted apart.
//!
//! Several guests may mark the same part: it goes on from the first one's begin to the last one's end.

use super::tally::{IOIO, Lines, MARKS, without_injection};
use std::collections::BTreeMap;

/// What was counted of a guest in a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Instructions that it executed.
    pub instructions: u64,
    /// Its exits, the mark that ends the part included.
    pub exits: u64,
}

/// A part of the load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Guests by their VMCBs.
    pub guests: BTreeMap<u64, Own>,
    /// Exits by code.
    pub codes: BTreeMap<(u64, u32), u64>,
    /// Instructions of the hypervisor.
    pub hypervisor: u64,
    /// Instructions of the system beside it.
    pub beside: u64,
    /// Instructions of each processor that is counted apart.
    pub apart: Vec<u64>,
    /// Instructions while so many guests were between their marks, all but those of processors that are counted apart.
    pub marking: BTreeMap<u32, u64>,
}

impl Part {
    /// Instructions of the whole machine.
    pub fn total(&self) -> u64 {
        self.guests.values().map(|own| own.instructions).sum::<u64>()
            + self.hypervisor
            + self.beside
            + self.apart.iter().sum::<u64>()
    }
}

/// How far counters were.
#[derive(Clone, Debug, Default)]
struct Clock {
    instructions: u64,
    /// [`Third`]: a number, or one for each processor.
    third: Vec<u64>,
}

/// What the plugin counts besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Third {
    /// Nothing.
    #[default]
    Nothing,
    /// Instructions within a range: the hypervisor's.
    Within,
    /// Instructions of some processors, which are not among the others.
    Apart,
}

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Split {
    third: Third,
    /// Parts by the numbers of their marks; what lies between them is under `None`.
    parts: BTreeMap<Option<u16>, Part>,
    part: Option<u16>,
    /// Guests that have begun it and have not ended it.
    marking: u32,
    /// Who runs, or ran last.
    guest: u64,
    /// A guest has been entered and has not exited yet.
    running: bool,
    /// An exit that was a mark, whose instructions are not counted yet.
    mark: Option<u16>,
    clock: Clock,
}

impl Split {
    /// Nothing counted yet.
    pub fn new(third: Third) -> Self {
        Self { third, ..Self::default() }
    }

    /// What happened between the two marks of a part.
    pub fn part(&self, number: u16) -> Option<&Part> {
        self.parts.get(&Some(number))
    }

    /// Exits of each guest in the whole run.
    pub fn exits(&self) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for (guest, own) in self.parts.values().flat_map(|part| &part.guests) {
            *sums.entry(*guest).or_default() += own.exits;
        }
        sums
    }

    fn now(&mut self) -> &mut Part {
        self.parts.entry(self.part).or_default()
    }

    fn exit(&mut self, rest: &str) {
        if !self.running {
            return;
        }
        let mut fields = rest.split(", ").map(|field| u64::from_str_radix(field, 16).unwrap_or(0));
        let code = fields.next().unwrap_or(0) as u32;
        let port = (fields.next().unwrap_or(0) >> 16) as u16;
        let guest = self.guest;
        let part = self.now();
        part.guests.entry(guest).or_default().exits += 1;
        *part.codes.entry((guest, code)).or_default() += 1;
        self.mark = (code == IOIO && MARKS.contains(&port)).then(|| port - MARKS.start());
    }

    fn at_mark(&mut self, mark: u16) {
        let part = Some(mark / 2);
        self.marking = match (self.part == part, mark.is_multiple_of(2)) {
            (true, true) => self.marking + 1,
            (false, true) => 1,
            (true, false) => self.marking.saturating_sub(1),
            (false, false) => 0,
        };
        self.part = part.filter(|_| self.marking > 0);
    }

    /// `run N VMRUNS [THIRD...]` before an entry, `exit ...` after an exit.
    fn count(&mut self, rest: &str) {
        let mut words = rest.split(' ');
        let what = words.next().unwrap_or_default();
        let mut numbers = words.map_while(|word| word.parse::<u64>().ok());
        let Some(instructions) = numbers.next() else { return };
        let clock = Clock { instructions, third: numbers.skip(1).collect() };
        let passed = instructions.saturating_sub(self.clock.instructions);
        let before = self.clock.third.iter().chain(core::iter::repeat(&0));
        let besides: Vec<u64> =
            clock.third.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect();
        let (guest, third, marking) = (self.guest, self.third, self.marking);
        if matches!(what, "run" | "exit") {
            *self.now().marking.entry(marking).or_default() += passed;
        }
        if third == Third::Apart && matches!(what, "run" | "exit") {
            let apart = &mut self.now().apart;
            apart.resize(besides.len().max(apart.len()), 0);
            apart.iter_mut().zip(&besides).for_each(|(sum, more)| *sum += more);
        }
        match what {
            "exit" => {
                self.now().guests.entry(guest).or_default().instructions += passed;
                self.running = false;
                if let Some(mark) = self.mark.take() {
                    self.at_mark(mark);
                }
            }
            "run" => {
                let part = self.now();
                let within = besides.first().copied().unwrap_or(0);
                let hypervisor = if third == Third::Within { within } else { passed };
                part.hypervisor += hypervisor;
                part.beside += passed.saturating_sub(hypervisor);
            }
            _ => return,
        }
        self.clock = clock;
    }
}

impl Lines for Split {
    fn line(&mut self, line: &str) {
        let line = without_injection(line);
        if let Some(rest) = line.strip_prefix("vmrun! ") {
            self.guest = u64::from_str_radix(rest, 16).unwrap_or(0);
            self.running = true;
        } else if let Some(rest) = line.strip_prefix("vmexit(") {
            self.exit(rest);
        } else if let Some(rest) = line.strip_prefix("count ") {
            self.count(rest);
        }
    }

    fn is_empty(&self) -> bool {
        self.parts.len() < 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPT: &str = "vmexit(00000060, 0, 0, 0)!";

    fn split(third: Third, lines: &[&str]) -> Split {
        let mut split = Split::new(third);
        lines.iter().for_each(|line| split.line(line));
        split
    }

    fn port(number: u16) -> String {
        format!("vmexit(0000007b, {:016x}, 0, 0)!", u64::from(number) << 16 | 0x10)
    }

    #[test]
    fn every_instruction_between_the_marks_is_somebodys() {
        let (begin, end) = (port(0x5a2), port(0x5a3));
        let lines = [
            "count run 1000 1 0",
            "vmrun! a000",
            &begin,
            "count exit 1500 1 0",
            // The hypervisor 30, the system beside it 70.
            "count run 1600 2 30",
            "vmrun! b000",
            INTERRUPT,
            "count exit 2600 2 35",
            "count run 2610 3 45",
            "vmrun! a000",
            &end,
            "count exit 2910 3 45",
            "count run 9000 4 50",
            "vmrun! a000",
            INTERRUPT,
            "count exit 9999 4 50",
        ];
        let ranged = split(Third::Within, &lines);
        let part = ranged.part(1).unwrap();
        assert_eq!((part.hypervisor, part.beside, part.total()), (40, 70, 1410));
        assert_eq!(part.guests[&0xa000], Own { instructions: 300, exits: 1 });
        assert_eq!(part.guests[&0xb000], Own { instructions: 1000, exits: 1 });
        assert_eq!(part.codes[&(0xb000, 0x60)], 1);
        assert_eq!(ranged.exits(), BTreeMap::from([(0xa000, 3), (0xb000, 1)]));
        assert!(ranged.part(0).is_none() && !ranged.is_empty());
        let whole = split(Third::Nothing, &lines);
        assert_eq!((whole.part(1).unwrap().hypervisor, whole.part(1).unwrap().beside), (110, 0));
        let apart = split(Third::Apart, &lines);
        let part = apart.part(1).unwrap();
        assert_eq!((part.hypervisor, part.beside, &*part.apart, part.total()), (110, 0, &[45][..], 1455));
        let lines = lines.map(|line| format!("{line} 7").replace("0 7", "0 9"));
        let two = split(Third::Apart, &lines.each_ref().map(String::as_str));
        assert_eq!(two.part(1).unwrap().apart, [45, 0]);
    }

    #[test]
    fn a_part_goes_on_until_all_who_began_it_have_ended_it() {
        let (begin, end) = (port(0x5a2), port(0x5a3));
        let lines = [
            "vmrun! a000",
            &begin,
            "count exit 100 1",
            "count run 110 2",
            "vmrun! b000",
            &begin,
            "count exit 200 2",
            "count run 210 3",
            "vmrun! a000",
            &end,
            "count exit 400 3",
            "count run 410 4",
            "vmrun! b000",
            &end,
            "count exit 500 4",
            "count run 900 5",
        ];
        let part = split(Third::Nothing, &lines).part(1).cloned().unwrap();
        assert_eq!((part.total(), part.marking), (400, BTreeMap::from([(1, 200), (2, 200)])));
    }

    #[test]
    fn what_a_guest_did_before_its_mark_is_not_counted() {
        let begin = port(0x5a0);
        let lines =
            ["count run 0 1", "vmrun! a000", &begin, "count exit 5000 1", "count run 5010 2", "vmrun! a000"];
        let part = split(Third::Nothing, &lines).part(0).cloned().unwrap();
        assert_eq!((part.total(), part.hypervisor), (10, 10));
    }
}
