//! Changing the device table and the interrupt tables while a unit reads them (48882, 2.2.2.2, "Making Device Table
//! Entry Changes").
//!
//! Key type: [`DeviceTable`]. A unit may read and keep an entry at any moment between two writes. What it could keep must
//! never lead a requester, or a space's number, to memory that is not meant for it; that is why the order of writes and
//! of commands is here, where a test can look at every moment, and not in the driver. The driver sees to it that one
//! change is made at a time, and provides memory and a queue for commands.

use super::command::Command;
use super::device::{ENTRY_BYTES, Interrupts, Memory};
use super::interrupt;
use crate::{Interrupt, RequesterId, SpaceTag};
use sluice_memory::{Hpa, PhysicalMemory};

/// Has the unit do commands, and returns once they are done.
pub type Run<'a> = &'a mut dyn FnMut(&[Command]);

/// Why an interrupt is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowError {
    /// No entry can express it: see [`interrupt::entry`].
    Unreachable,
    /// There is no memory for the requester's table.
    OutOfMemory,
    /// Interrupts are not looked up at all.
    Unchecked,
}

/// The table of all requesters.
#[derive(Debug)]
pub struct DeviceTable {
    at: Hpa,
}

impl DeviceTable {
    /// Makes the table in cleared memory of [`super::device::TABLE_BYTES`]: everyone is blocked, and `interrupts` happens to
    /// everyone's interrupts.
    pub fn new(memory: &impl PhysicalMemory, at: Hpa, interrupts: Interrupts) -> Self {
        let table = Self { at };
        for id in 0..=u16::MAX {
            memory.write_u64(table.word(RequesterId(id), 2), interrupts.encode());
            memory.write_u64(table.word(RequesterId(id), 0), Memory::Blocked.encode()[0]);
        }
        table
    }

    fn word(&self, requester: RequesterId, index: u64) -> Hpa {
        Hpa::new(self.at.as_u64() + u64::from(requester.0) * ENTRY_BYTES + index * 8)
    }

    /// Lets a requester reach a space, or nothing.
    ///
    /// What is cached of a space that it leaves, which is returned, is forgotten. By the manual it would not be used for
    /// this requester any more; QEMU, which keeps translations by requester, would go on using it.
    pub fn place(
        &self,
        memory: &impl PhysicalMemory,
        run: Run<'_>,
        requester: RequesterId,
        to: Memory,
    ) -> Option<SpaceTag> {
        let (first, second) = (self.word(requester, 0), self.word(requester, 1));
        let now = [memory.read_u64(first), memory.read_u64(second)];
        let forget = Command::ForgetDevice(requester);
        // The words hold the root and the number of a space, and cannot be written at once. From one space to another it
        // goes through nothing, or the unit could file one's translations under the other's number.
        let left = SpaceTag(now[1] as u16);
        let leaves = now[0] != Memory::Blocked.encode()[0] && now != to.encode();
        if leaves {
            memory.write_u64(first, Memory::Blocked.encode()[0]);
            run(&[forget, Command::ForgetSpace(left)]);
        }
        if now != to.encode() && to != Memory::Blocked {
            memory.write_u64(second, to.encode()[1]);
            memory.write_u64(first, to.encode()[0]);
            run(&[forget]);
        }
        leaves.then_some(left)
    }

    /// What happens to a requester's interrupts.
    pub fn interrupts(&self, memory: &impl PhysicalMemory, requester: RequesterId) -> Option<Interrupts> {
        Interrupts::decode(memory.read_u64(self.word(requester, 2)))
    }

    /// Lets an interrupt of a requester through. `new_table` gives cleared memory of [`interrupt::TABLE_BYTES`], on a
    /// multiple of 128, where the requester has no table yet.
    ///
    /// # Errors
    /// See [`AllowError`]; nothing was changed then.
    pub fn allow(
        &self,
        memory: &impl PhysicalMemory,
        run: Run<'_>,
        requester: RequesterId,
        interrupt: Interrupt,
        new_table: impl FnOnce() -> Option<Hpa>,
    ) -> Result<(), AllowError> {
        let entry = interrupt::entry(interrupt).ok_or(AllowError::Unreachable)?;
        match self.interrupts(memory, requester) {
            Some(Interrupts::Table(table)) => {
                write_entry(memory, table, interrupt.vector, entry);
                run(&[Command::ForgetInterrupts(requester)]);
            }
            Some(Interrupts::Blocked) => {
                let table = new_table().ok_or(AllowError::OutOfMemory)?;
                write_entry(memory, table, interrupt.vector, entry);
                memory.write_u64(self.word(requester, 2), Interrupts::Table(table).encode());
                run(&[Command::ForgetDevice(requester), Command::ForgetInterrupts(requester)]);
            }
            Some(Interrupts::Unchecked) | None => return Err(AllowError::Unchecked),
        }
        Ok(())
    }

    /// Lets a vector of a requester through no more.
    pub fn forbid(&self, memory: &impl PhysicalMemory, run: Run<'_>, requester: RequesterId, vector: u8) {
        if let Some(Interrupts::Table(table)) = self.interrupts(memory, requester) {
            write_entry(memory, table, vector, 0);
            run(&[Command::ForgetInterrupts(requester)]);
        }
    }
}

/// Writes an entry at once, with its neighbour as it is: memory takes no smaller write that is sure to be whole.
fn write_entry(memory: &impl PhysicalMemory, table: Hpa, vector: u8, entry: u32) {
    let (word, shift) = interrupt::place(table, vector);
    let others = memory.read_u64(word) & !(u64::from(u32::MAX) << shift);
    memory.write_u64(word, others | u64::from(entry) << shift);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trigger;
    use crate::amdvi::model::{Model, testing::Words};
    use crate::amdvi::page::HostFormat;
    use alloc::vec::Vec;
    use core::cell::RefCell;
    use proptest::prelude::*;
    use sluice_memory::{Access, Iova, PAGE_SIZE, Tables};

    const TABLE: Hpa = Hpa::new(0x100_0000);
    const REQUESTERS: [RequesterId; 2] = [RequesterId(0x18), RequesterId(0x20)];
    const IOVA: Iova = Iova::new(0x5000);

    /// Memory in which a unit looks around after every write.
    struct Watched {
        words: Words,
        unit: RefCell<Model>,
        spaces: Vec<(SpaceTag, Hpa)>,
    }

    impl Watched {
        /// Three spaces, each with one page, at the same address.
        fn new() -> (Self, DeviceTable) {
            let mut words = Words::default();
            let mut spaces = Vec::new();
            for tag in 1..=3 {
                let mut tables = Tables::with_format(HostFormat { levels: 4 }, &mut words).unwrap();
                let page = Hpa::new(0x10_0000_0000 + tag * PAGE_SIZE);
                tables.map(&mut words, IOVA, page, PAGE_SIZE, Access::READ | Access::WRITE).unwrap();
                spaces.push((SpaceTag(tag as u16), tables.root()));
            }
            // Only those who are asked for; a test of its own looks at all.
            let table = DeviceTable { at: TABLE };
            for requester in REQUESTERS {
                words.write_u64(table.word(requester, 0), Memory::Blocked.encode()[0]);
                words.write_u64(table.word(requester, 2), Interrupts::Blocked.encode());
            }
            (Self { words, unit: RefCell::new(Model::new(TABLE)), spaces }, table)
        }

        fn memory(&self, space: usize) -> Memory {
            match self.spaces.get(space) {
                Some((tag, root)) => Memory::Space { tag: *tag, root: *root, levels: 4 },
                None => Memory::Blocked,
            }
        }

        fn look(&self) {
            let mut unit = self.unit.borrow_mut();
            for requester in REQUESTERS {
                unit.fill(requester, IOVA, &self.words);
                (14..22).for_each(|index| unit.fill_interrupt(requester, index, &self.words));
            }
            for (tag, at, _, to, _) in unit.cached() {
                let page = 0x10_0000_0000 + u64::from(tag.0) * PAGE_SIZE;
                assert_eq!((at, to.as_u64()), (IOVA, page), "a page filed under another space's number");
            }
        }

        fn run(&self, commands: &[Command]) {
            commands.iter().for_each(|command| self.unit.borrow_mut().apply(&command.bytes()));
            self.look();
        }
    }

    impl PhysicalMemory for Watched {
        fn read(&self, _: Hpa, _: &mut [u8]) {
            unreachable!("read by the word");
        }
        fn write(&self, _: Hpa, _: &[u8]) {
            unreachable!("a write that may be torn");
        }
        fn fill(&self, _: Hpa, _: u64, _: u8) {
            unreachable!("a write that may be torn");
        }
        fn read_u64(&self, at: Hpa) -> u64 {
            self.words.read_u64(at)
        }
        fn write_u64(&self, at: Hpa, value: u64) {
            self.words.write_u64(at, value);
            self.look();
        }
    }

    proptest! {
        /// At no moment does the unit keep a page under a wrong number, and after a call it reaches what it should.
        #[test]
        fn requesters_reach_their_spaces_at_every_moment(steps in prop::collection::vec((0usize..2, 0usize..4), 1..12)) {
            let (memory, table) = Watched::new();
            let mut placed = [3; 2];
            for (who, space) in steps {
                placed[who] = space;
                table.place(&memory, &mut |commands| memory.run(commands), REQUESTERS[who], memory.memory(space));
                for (tag, ..) in memory.unit.borrow().cached() {
                    prop_assert!(placed.contains(&(usize::from(tag.0) - 1)), "kept of a space that nobody is in");
                }
                for (who, requester) in REQUESTERS.into_iter().enumerate() {
                    let reached = memory.unit.borrow().reaches(requester);
                    let expected: Vec<_> = memory.spaces.get(placed[who]).into_iter().copied().collect();
                    prop_assert_eq!(reached, expected);
                }
            }
        }

        #[test]
        fn only_allowed_interrupts_get_through(
            steps in prop::collection::vec((0usize..2, 16u8..20, any::<bool>(), 0u32..256), 1..20)
        ) {
            let (memory, table) = Watched::new();
            let mut allowed: [Vec<(u8, u32)>; 2] = Default::default();
            let mut next = 0x200_0000;
            for (who, vector, allow, apic_id) in steps {
                let run = &mut |commands: &[Command]| memory.run(commands);
                allowed[who].retain(|(other, _)| allow && apic_id == 255 || *other != vector);
                if allow {
                    let interrupt = Interrupt { apic_id, vector, trigger: Trigger::Edge };
                    let new_table = || { next += interrupt::TABLE_BYTES; Some(Hpa::new(next)) };
                    let result = table.allow(&memory, run, REQUESTERS[who], interrupt, new_table);
                    prop_assert_eq!(result.is_ok(), apic_id < 255);
                    if result.is_ok() {
                        allowed[who].push((vector, apic_id));
                    }
                } else {
                    table.forbid(&memory, run, REQUESTERS[who], vector);
                }
                for (who, requester) in REQUESTERS.into_iter().enumerate() {
                    let mut found: Vec<_> = memory.unit.borrow().interrupts(requester).map(|(_, vector, id)| (vector, id)).collect();
                    found.sort_unstable();
                    allowed[who].sort_unstable();
                    prop_assert_eq!(&found, &allowed[who]);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "filed under another space's number")]
    fn the_watch_sees_a_direct_move() {
        let (memory, table) = Watched::new();
        table.place(&memory, &mut |commands| memory.run(commands), REQUESTERS[0], memory.memory(0));
        let [first, second] = memory.memory(1).encode();
        memory.write_u64(table.word(REQUESTERS[0], 1), second);
        memory.write_u64(table.word(REQUESTERS[0], 0), first);
    }

    #[test]
    fn the_watch_sees_a_missing_command() {
        let (memory, table) = Watched::new();
        table.place(&memory, &mut |commands| memory.run(commands), REQUESTERS[0], memory.memory(0));
        table.place(&memory, &mut |_| (), REQUESTERS[0], Memory::Blocked);
        assert_eq!(memory.unit.borrow().reaches(REQUESTERS[0]), memory.spaces[..1]);
    }

    #[test]
    fn at_first_everyone_is_blocked() {
        let words = Words::default();
        DeviceTable::new(&words, TABLE, Interrupts::Blocked);
        let mut unit = Model::new(TABLE);
        for id in [0, 1, 0x18, 0x7fff, u16::MAX].map(RequesterId) {
            unit.fill(id, IOVA, &words);
            unit.fill_interrupt(id, 0x40, &words);
            assert_eq!((unit.reaches(id).len(), unit.interrupts(id).count()), (0, 0));
        }
        for word in 0..1u64 << 18 {
            let expected = [3, 0, 1, 0][word as usize % 4];
            assert_eq!(words.read_u64(Hpa::new(TABLE.as_u64() + word * 8)), expected, "word {word}");
        }
    }

    #[test]
    fn refusals() {
        let words = Words::default();
        let table = DeviceTable { at: TABLE };
        words.write_u64(table.word(REQUESTERS[0], 2), Interrupts::Blocked.encode());
        let interrupt = Interrupt { apic_id: 0, vector: 0x40, trigger: Trigger::Edge };
        let run: Run<'_> = &mut |_| panic!("nothing was changed");
        let none = || None;
        assert_eq!(table.allow(&words, run, REQUESTERS[0], interrupt, none), Err(AllowError::OutOfMemory));
        table.forbid(&words, run, REQUESTERS[0], 0x40);
        words.write_u64(table.word(REQUESTERS[0], 2), Interrupts::Unchecked.encode());
        assert_eq!(table.allow(&words, run, REQUESTERS[0], interrupt, none), Err(AllowError::Unchecked));
    }
}
