//! NVM Express: blocks go from anywhere to the disk and from the disk to anywhere.
//!
//! Source: NVM Express Base Specification 1.4, 4.3 (PRP lists), 5.15 (identify), 6.9 and 6.15 (read, write).

use super::memory::{Own, fill, put};
use super::{Engine, LEN};
use crate::nvme::{Command, Controller, DEPTH, READ, WRITE, admin};

/// The controller.
pub struct Nvme {
    controller: Controller,
    /// Own memory: a page.
    page: u64,
    busy: bool,
    at: u64,
}

impl Nvme {
    /// The first one there is.
    pub fn open(own: &mut Own) -> Option<Self> {
        let controller = Controller::open(own)?;
        Some(Self { controller, page: own.take(4096), busy: false, at: 0 })
    }

    /// Moves block `block` to or from `at`, which may run over the end of a page. True if it did.
    fn block(&mut self, operation: u32, block: u32, at: u64) -> bool {
        let next = (at | 0xfff).wrapping_add(1);
        let status = self.controller.command(Command::blocks(operation, block.into(), 1, [at, next]));
        if status.is_none() {
            self.controller.restart();
        }
        status == Some(0)
    }
}

impl Engine for Nvme {
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
        &["identify", "page-list", "submission-queue", "completion-queue", "admin-queues"]
    }

    fn misplace(&mut self, which: usize, at: u64) {
        let at = at & !0xfff;
        match which {
            0 => {
                let operation = admin::IDENTIFY;
                let words = [1, 0, 0, 0, 0, 0];
                self.controller.admin_command(Command { operation, pages: [at, 0], words, namespace: 0 });
            }
            1 => {
                // Sixteen pages: the first is named in the command, the others in the list.
                let blocks = (16 * 4096 / LEN) as u32;
                for operation in [READ, WRITE] {
                    self.controller.command(Command::blocks(operation, 8, blocks, [self.page, at]));
                }
                self.controller.restart();
            }
            2 | 3 => {
                let (completion, submission) = if which == 2 { (self.page, at) } else { (at, self.page) };
                (self.page..self.page + 4096).step_by(4).for_each(|at| put(at, 0));
                self.controller.create(2, completion, submission);
                let mut queue = self.controller.io;
                queue.number = 2;
                self.controller.doorbell(&queue, false, 8);
                self.controller.linger();
                self.controller.restart();
            }
            _ => {
                self.controller.enable(false);
                self.controller.place_admin(at, at + 4096);
                self.controller.enable(true);
                let queue = self.controller.admin;
                self.controller.doorbell(&queue, false, 8);
                self.controller.linger();
                self.controller.restart();
            }
        }
    }

    fn keep_busy(&mut self, area: (u64, u64)) {
        if !self.busy {
            fill(self.page, u32::MAX);
            for block in 0..16 {
                self.block(WRITE, block, self.page);
            }
        }
        let mut queue = self.controller.io;
        let long = |at: u64| Command::blocks(READ, 0, 16, [at, at + 4096]);
        let next = |at: u64| if (area.0..area.1 - 0x4000).contains(&at) { at } else { area.0 };
        if !self.busy {
            self.busy = true;
            for _ in 0..DEPTH - 2 {
                self.at = next(self.at + 0x2000);
                self.controller.submit(&mut queue, long(self.at));
            }
        }
        while self.controller.completed(&mut queue).is_some() {
            self.at = next(self.at + 0x2000);
            self.controller.submit(&mut queue, long(self.at));
        }
        self.controller.io = queue;
    }
}
