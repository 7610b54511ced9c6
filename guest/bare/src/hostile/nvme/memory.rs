//! Memory that is not the guest's, and lists that change while they are read.

use super::super::Score;
use super::{BLOCKS, Guest, HELD, LONG, PAGE, fill, holds};
use crate::console::println;
use crate::dma::memory::{get, put, put64};
use crate::dma::targets;
use crate::machine::{self, wrmsr};
use crate::nvme::{self, Command, READ, WRITE, admin};

/// Where the second processor changes a list: below 1 MiB, for its processor mode.
const LOW_LIST: u64 = 0x7_0000;
/// Where it begins.
const LOW_CODE: u64 = 0x6_0000;
/// Not this guest's, and memory of the machine's.
const ELSEWHERE: u64 = 0x1000_0000;

impl Guest<'_> {
    /// Memory that is not its own, for data and for lists.
    pub fn memory(&mut self) {
        let mut score = Score::new("memory");
        let (list, area, page, end) = (self.list, self.area, self.page, self.own.end());
        let long = LONG as u32 * BLOCKS;
        let registers = self.disk.registers;
        let places = targets::some(&self.own, self.machine).chain([registers, registers + 0x2000]);
        for at in places {
            for operation in [READ, WRITE] {
                let command = |count, pages| Command::blocks(operation, 0, count, pages);
                score.add(self.gets(command(1, [at, 0])));
                score.add(self.gets(command(8, [at, 0])));
                score.add(self.gets(command(8, [at + 0x800, page])));
                score.add(self.gets(command(16, [page, at])));
                score.add(self.gets(command(long, [page, at])));
                for index in [0, self.random.below(LONG - 1), LONG - 2] {
                    self.make_list(LONG);
                    put64(list + 8 * index, at);
                    score.add(self.gets(command(long, [page, list])));
                }
                // The second list.
                put64(list + 0xff0, area);
                put64(list + 0xff8, at);
                score.add(self.gets(command(long, [page, list + 0xff0])));
                // The end of its memory.
                score.add(self.gets(command(16, [end - PAGE + 0x800, end])));
            }
            let identify = |pages| Command {
                operation: admin::IDENTIFY,
                pages,
                words: [1, 0, 0, 0, 0, 0],
                ..Command::default()
            };
            score.add(self.administer(identify([at, 0])));
            score.add(self.administer(identify([page + 0x800, at])));
            let words = [2 | 127 << 16, 0, 0, 0, 0, 0];
            let (operation, namespace) = (admin::LOG, u32::MAX);
            score.add(self.administer(Command { operation, namespace, pages: [at, 0], words }));
            let ranges = self.dataset(&[(0, 8); 200], 4);
            score.add(self.tell(Command { pages: [at, 0], ..ranges }));
            score.add(self.tell(Command { pages: [page + 0x800, at], ..ranges }));
        }
    }

    /// Addresses that begin where none can, and lists that go on in themselves.
    pub fn misaligned(&mut self) {
        let mut score = Score::new("misaligned");
        let (list, area, page) = (self.list, self.area, self.page);
        let long = LONG as u32 * BLOCKS;
        for operation in [READ, WRITE] {
            let command = |count, pages| Command::blocks(operation, 0, count, pages);
            for offset in [1, 2, 3, 0x801] {
                score.add(self.gets(command(8, [area + offset, area + PAGE])));
            }
            for offset in [1, 4, 0x800, 0xfff] {
                score.add(self.gets(command(16, [page, area + offset])));
                self.make_list(LONG);
                put64(list + 8 * 3, area + offset);
                score.add(self.gets(command(long, [page, list])));
            }
            for offset in [1, 4, 0xffc] {
                score.add(self.gets(command(long, [page, list + offset])));
            }
            // A list of one entry, which leads to itself.
            put64(list + 0xff8, list + 0xff8);
            score.add(self.gets(command(long, [page, list + 0xff8])));
        }
    }

    /// List and command are changed when the doorbell was rung: what moves is what was there, or nothing.
    pub fn rewritten(&mut self) {
        let mut score = Score::new("rewritten");
        for round in 0..200 {
            let operation = if round % 2 == 0 { READ } else { WRITE };
            score.add(self.long(operation, self.list, |guest, slot| {
                let entry = 1 + guest.random.below(LONG - 2);
                put64(guest.list + 8 * entry, if round & 2 == 0 { ELSEWHERE } else { guest.own.end() });
                put64(slot + 24, ELSEWHERE);
                put64(slot + 32, ELSEWHERE);
                put64(slot + 40, guest.blocks);
            }));
        }
    }

    /// Reads or writes some pages by a list, during which `change` is done; the entry of the command is at the address that it is told. True: the
    /// disk says that all has moved, and it was not to or from own memory.
    fn long(&mut self, operation: u32, list: u64, change: impl FnOnce(&mut Self, u64)) -> bool {
        let (count, stamp) = (LONG as u32 * BLOCKS, self.random.next() as u32);
        self.make_list(LONG);
        // The stamp is on the disk before it is read, and nowhere but in memory before it is written.
        fill(self.page, 1, stamp);
        fill(self.area, LONG, stamp);
        if operation == READ {
            self.tell(Command::blocks(WRITE, 64, count, [self.page, self.list]));
            fill(self.area, LONG, HELD);
        }
        let mut queue = self.disk.io;
        let slot = queue.submission + u64::from(queue.tail) * 64;
        if list == LOW_LIST {
            await_changes();
        }
        self.disk.submit(&mut queue, Command::blocks(operation, 64, count, [self.page, list]));
        change(self, slot);
        let status = self.disk.complete(&mut queue, nvme::PATIENCE);
        self.disk.io = queue;
        let command = Command::blocks(operation, 64, count, [self.page, list]);
        if !self.judge(status, &command) {
            return false;
        }
        if operation == WRITE {
            fill(self.area, LONG, HELD);
            self.make_list(LONG);
            self.tell(Command::blocks(READ, 64, count, [self.page, self.list]));
        }
        !(holds(self.page, 1, stamp) && holds(self.area, LONG - 1, stamp))
    }

    /// The second processor changes an entry of the list all the time: to memory that is not the guest's, and back.
    pub fn raced(&mut self) {
        let mut score = Score::new("raced");
        let (mut done, mut refused) = (0, 0);
        start_changing(self.area as u32, ELSEWHERE as u32);
        for round in 0..400 {
            (1..LONG).for_each(|index| put64(LOW_LIST + 8 * index, self.area + index * PAGE));
            let operation = if round % 2 == 0 { READ } else { WRITE };
            let before = self.disk.io.head;
            let succeeded = self.long(operation, LOW_LIST, |_, _| ());
            // The status of the command itself is the one before that of the look at what it wrote.
            let at = self.disk.io.completion + 16 * u64::from(before + u32::from(operation == READ)) % 1024;
            if get(at + 12) >> 17 == 0 {
                done += 1
            } else {
                refused += 1
            }
            score.add(succeeded);
        }
        let changes = stop_changing();
        drop(score);
        let both = if done > 0 && refused > 0 { "ok" } else { "bad" };
        println!(
            "SLUICE-RESULT raced_done={done} raced_refused={refused} raced_both={both} raced_changes={changes}"
        );
    }
}

/// Has the second processor put both addresses into the first entry of the low list, in turn, until [`stop_changing`].
fn start_changing(own: u32, other: u32) {
    let [a, b, c, d] = own.to_le_bytes();
    let [e, f, g, h] = other.to_le_bytes();
    let [low, high] = ((LOW_LIST >> 4) as u16).to_le_bytes();
    // As many instructions, and turns of an emulator, follow the one move as the other.
    #[rustfmt::skip]
    let code = [
        0xfa,                                           // cli
        0xb8, low, high, 0x8e, 0xd8,                    // mov ax, list; mov ds, ax
        0x66, 0xc7, 0x06, 0, 0, a, b, c, d,             // mov dword [0], own
        0x66, 0xff, 0x06, 0x04, 0x10,                   // inc dword [0x1004]
        0x80, 0x3e, 0, 0x10, 0,                         // cmp byte [0x1000], 0
        0x75, 0x15,                                     // jne hlt
        0x66, 0xc7, 0x06, 0, 0, e, f, g, h,             // mov dword [0], other
        0x66, 0xff, 0x06, 0x08, 0x10,                   // inc dword [0x1008]
        0x80, 0x3e, 0, 0x10, 0,                         // cmp byte [0x1000], 0
        0x74, 0xd6,                                     // je the first move
        0xf4, 0xeb, 0xfd,                               // hlt; jmp hlt
    ];
    put64(LOW_LIST, own.into());
    (0..16).step_by(4).for_each(|offset| put(LOW_LIST + PAGE + offset, 0));
    for (at, byte) in (LOW_CODE..).zip(code) {
        unsafe { (at as *mut u8).write_volatile(byte) };
    }
    machine::x2apic();
    wrmsr(0x830, 1 << 32 | 0x4500);
    wrmsr(0x830, 1 << 32 | 0x4600 | LOW_CODE >> 12);
}

/// Waits until the second processor runs at the same time as this one.
fn await_changes() {
    machine::wait_for(10_000_000, || {
        let mut was = get(LOW_LIST);
        let mut changes = 0;
        for _ in 0..64 {
            let now = get(LOW_LIST);
            changes += u32::from(now != was);
            was = now;
        }
        changes > 3
    });
}

/// Returns how often there was another one.
fn stop_changing() -> u32 {
    put(LOW_LIST + PAGE, 1);
    machine::pause(10_000_000);
    get(LOW_LIST + PAGE + 8)
}
