//! AHCI: blocks go from anywhere to the disk and from the disk to anywhere.
//!
//! Source: Serial ATA AHCI 1.3.1, 3 (registers), 4.2 (command list and tables), 10.1.2 (starting a port); ATA8-ACS,
//! 7.28 and 7.63 (READ DMA EXT, WRITE DMA EXT).

use super::memory::{Own, fill, get, put, put64};
use super::{Engine, LEN};
use crate::machine::wait_for;
use crate::pci;

const GLOBAL: u64 = 0x04;
const IMPLEMENTED: u64 = 0x0c;
const PORTS: u64 = 0x100;
const PORT_SIZE: u64 = 0x80;

const LIST: u64 = 0x00;
const RECEIVED: u64 = 0x08;
const INTERRUPTS: u64 = 0x10;
const COMMAND: u64 = 0x18;
const TASK_FILE: u64 = 0x20;
const LINK: u64 = 0x28;
const ERRORS: u64 = 0x30;
const ISSUE: u64 = 0x38;

const ENABLE: u32 = 1 << 31;
const START: u32 = 1;
const SPIN_UP: u32 = 1 << 1;
const POWER: u32 = 1 << 2;
const RECEIVE: u32 = 1 << 4;
/// The engines run.
const RUNNING: u32 = 1 << 14 | 1 << 15;
const PRESENT: u32 = 3;
const FAILED: u32 = 1;
const BUSY: u32 = 0x88;

const READ: u32 = 0x25;
const WRITE: u32 = 0x35;
const IDENTIFY: u32 = 0xec;
/// In a command header: five words of FIS, direction, one region.
const HEADER: u32 = 5 | 1 << 16;
const TO_DEVICE: u32 = 1 << 6;

const SLOTS: u32 = 32;
/// Ticks for a command: seconds, since a port that is stopped in the middle of one makes QEMU end.
const PATIENCE: u64 = 5_000_000_000;
/// For one that the disk cannot have understood.
const SHORT: u64 = 50_000_000;

/// A port with a disk.
pub struct Ahci {
    port: u64,
    /// Own memory: command list, received FIS, command tables of 256 bytes, a page.
    list: u64,
    received: u64,
    tables: u64,
    page: u64,
    at: u64,
}

impl Ahci {
    /// The first disk of the first controller there is.
    pub fn open(own: &mut Own) -> Option<Self> {
        let function = pci::find(|function| function.class() == 0x01_0601)?;
        function.enable();
        let registers = function.memory(5);
        put(registers + GLOBAL, ENABLE);
        let implemented = get(registers + IMPLEMENTED);
        let ports = (0..32).filter(|port| implemented >> port & 1 != 0);
        let port = ports.map(|port| registers + PORTS + port * PORT_SIZE);
        let port = port.into_iter().find(|port| get(port + LINK) & 0xf == PRESENT)?;
        let (list, received) = (own.take(1024), own.take(256));
        let disk = Self { port, list, received, tables: own.take(0x2000), page: own.take(4096), at: 0 };
        disk.restart();
        Some(disk)
    }

    fn wait(&self, register: u64, mask: u32) -> bool {
        wait_for(PATIENCE, || get(self.port + register) & mask == 0)
    }

    fn stop(&self) {
        put(self.port + COMMAND, SPIN_UP | POWER | RECEIVE);
        self.wait(COMMAND, RUNNING & !(1 << 14));
        put(self.port + COMMAND, SPIN_UP | POWER);
        self.wait(COMMAND, RUNNING);
    }

    fn go(&self) {
        put(self.port + ERRORS, u32::MAX);
        put(self.port + INTERRUPTS, u32::MAX);
        put(self.port + COMMAND, SPIN_UP | POWER | RECEIVE);
        self.wait(TASK_FILE, BUSY);
        put(self.port + COMMAND, SPIN_UP | POWER | RECEIVE | START);
    }

    /// Begins anew, with lists and tables in own memory.
    fn restart(&self) {
        self.stop();
        put64(self.port + LIST, self.list);
        put64(self.port + RECEIVED, self.received);
        self.go();
    }

    /// Prepares the command of a slot: `sectors` from `block` on, to or from `at`.
    fn prepare(&self, slot: u32, operation: u32, block: u32, sectors: u32, at: u64) {
        let (header, table) = (self.list + u64::from(slot) * 32, self.tables + u64::from(slot) * 256);
        put(header, HEADER | if operation == WRITE { TO_DEVICE } else { 0 });
        put(header + 4, 0);
        put64(header + 8, table);
        // A FIS from host to device, a command; LBA mode.
        put(table, 0x27 | 0x80 << 8 | operation << 16);
        put(table + 4, block & 0xff_ffff | 0x40 << 24);
        put(table + 8, block >> 24);
        put(table + 12, sectors);
        put(table + 16, 0);
        put64(table + 0x80, at);
        put(table + 0x88, 0);
        put(table + 0x8c, sectors.max(1) * LEN as u32 - 1);
    }

    /// Issues slot 0 and waits. True if the disk was content.
    fn issue(&self, patience: u64) -> bool {
        put(self.port + ISSUE, 1);
        let done = wait_for(patience, || {
            get(self.port + ISSUE) & 1 == 0 || get(self.port + TASK_FILE) & (FAILED | BUSY) == FAILED
        });
        let good = done && get(self.port + TASK_FILE) & FAILED == 0;
        if !good {
            self.restart();
        }
        good
    }

    fn block(&self, operation: u32, block: u32, at: u64) -> bool {
        self.prepare(0, operation, block, 1, at);
        self.issue(PATIENCE)
    }
}

impl Engine for Ahci {
    fn read(&mut self, from: u64, into: u64) {
        if self.block(WRITE, 0, from) {
            self.block(READ, 0, into);
        }
    }

    fn write(&mut self, to: u64, from: u64) {
        if self.block(WRITE, 1, from) {
            self.block(READ, 1, to);
        }
    }

    fn structures(&self) -> &'static [&'static str] {
        &["identify", "command-table", "command-list", "received-fis", "long-region"]
    }

    fn misplace(&mut self, which: usize, at: u64) {
        match which {
            0 => {
                self.prepare(0, IDENTIFY, 0, 1, at);
                self.issue(PATIENCE);
            }
            1 => {
                self.prepare(0, READ, 0, 1, self.page);
                put64(self.list + 8, at & !0x7f);
                self.issue(SHORT);
            }
            2 | 3 => {
                self.stop();
                let (register, align) = if which == 2 { (LIST, 0x3ff) } else { (RECEIVED, 0xff) };
                put64(self.port + register, at & !align);
                self.go();
                self.prepare(0, READ, 0, 1, self.page);
                self.issue(if which == 2 { SHORT } else { PATIENCE });
            }
            _ => {
                self.prepare(0, READ, 8, 256, at);
                self.issue(PATIENCE);
            }
        }
        self.restart();
    }

    fn keep_busy(&mut self, area: (u64, u64)) {
        if self.at == 0 {
            fill(self.page, u32::MAX);
            for block in 0..16 {
                self.block(WRITE, block, self.page);
            }
        }
        for slot in 0..SLOTS {
            if get(self.port + ISSUE) >> slot & 1 != 0 {
                continue;
            }
            self.at += 0x2000;
            if !(area.0..area.1 - 0x4000).contains(&self.at) {
                self.at = area.0;
            }
            self.prepare(slot, READ, 0, 16, self.at);
            put(self.port + ISSUE, 1 << slot);
        }
    }
}
