//! What a unit's lock guards: its registers, rings, and who is where; taking it over from firmware and starting it.

use super::MEMORY;
use super::events::EventLog;
use super::queue::Queue;
use super::registers::Registers;
use alloc::vec::Vec;
use sluice_iommu::amdvi::command::Command;
use sluice_iommu::amdvi::ivrs::UnitFlags;
use sluice_iommu::amdvi::register::{self, Control, Status};
use sluice_iommu::amdvi::{device, interrupt};
use sluice_iommu::{Fault, RequesterId, SpaceTag};
use sluice_memory::{Hpa, PAGE_SIZE};

/// The changing part of a running unit.
pub struct State {
    registers: Registers,
    queue: Queue,
    events: EventLog,
    control: Control,
    /// Memory for the next interrupt tables, up to the end of its page.
    spare: Option<Hpa>,
    /// No space has had a higher tag.
    pub highest: SpaceTag,
    /// Who is in which space.
    attached: Vec<(RequesterId, SpaceTag)>,
}

impl State {
    /// Stops what firmware left running, has the unit use these tables and rings, and forget all it knew.
    pub fn take_over(
        registers: Registers,
        queue: Queue,
        events: EventLog,
        device_table: Hpa,
        flags: UnitFlags,
        forgets_all: bool,
    ) -> Self {
        let (control, spare, highest, attached) = (Control::empty(), None, SpaceTag(0), Vec::new());
        let mut state = Self { registers, queue, events, control, spare, highest, attached };
        state.stop();
        let base = register::device_table(device_table, device::TABLE_BYTES);
        state.registers.write(register::DEVICE_TABLE, base);
        state.go(flags);
        state.forget_firmware(forgets_all);
        state
    }

    /// Stops what firmware may have left running: first what writes to memory, then the unit itself.
    fn stop(&mut self) {
        let mut control = Control::from_bits_retain(self.registers.read(register::CONTROL));
        if control.contains(Control::ENABLE) {
            log::warn!("AMD-Vi: firmware left the unit enabled");
        }
        for part in [
            Control::COMMANDS,
            Control::EVENT_INTERRUPT | Control::EVENTS,
            Control::GUEST_LOG_INTERRUPT | Control::GUEST_LOG,
            Control::PAGE_REQUEST_INTERRUPT | Control::PAGE_REQUEST_LOG | Control::PAGE_REQUESTS,
            Control::ENABLE,
        ] {
            if control.intersects(part) {
                control.remove(part);
                self.registers.write(register::CONTROL, control.bits());
            }
        }
        self.registers.wait_stopped(Status::COMMANDS_RUN | Status::EVENTS_RUN);
        // It may guard the firmware's system management, and restricts devices only.
        self.control = control & Control::SMI_FILTER;
    }

    /// Starts it, with nothing but what was set up here.
    fn go(&mut self, flags: UnitFlags) {
        self.registers.write(register::EXCLUSION_BASE, 0);
        self.registers.write(register::EXCLUSION_LIMIT, 0);
        self.queue.set_up(&self.registers);
        self.events.set_up(&self.registers);
        for (flag, bit) in [
            (UnitFlags::TUNNEL, Control::TUNNEL),
            (UnitFlags::PASS_PW, Control::PASS_PW),
            (UnitFlags::RESPONSE_PASS_PW, Control::RESPONSE_PASS_PW),
            (UnitFlags::ISOCHRONOUS, Control::ISOCHRONOUS),
        ] {
            self.control.set(bit, flags.contains(flag));
        }
        self.control |= Control::COHERENT | Control::TIMEOUT_1S;
        self.registers.write(register::CONTROL, self.control.bits());
        // In one write: a unit may want to be enabled before it reads commands, and must not log before it has a log.
        self.control |= Control::ENABLE | Control::COMMANDS | Control::EVENTS;
        self.registers.write(register::CONTROL, self.control.bits());
    }

    /// Has the unit forget what it may know from before.
    fn forget_firmware(&mut self, forgets_all: bool) {
        if forgets_all {
            return self.run(&[Command::ForgetAll]);
        }
        for id in 0..=u16::MAX {
            let requester = RequesterId(id);
            self.run(&[
                Command::ForgetDevice(requester),
                Command::ForgetInterrupts(requester),
                Command::ForgetSpace(SpaceTag(id)),
            ]);
        }
    }

    /// Has commands done, and waits for it.
    pub fn run(&mut self, commands: &[Command]) {
        self.queue.run(&self.registers, commands);
    }

    /// Notes who is in which space. `emulated`: warns of whom the unit would mix up.
    pub fn note(&mut self, requester: RequesterId, space: Option<SpaceTag>, emulated: bool) {
        self.attached.retain(|(other, _)| *other != requester);
        if let Some(tag) = space {
            self.highest = self.highest.max(tag);
            if emulated {
                self.warn_of_neighbours(requester, tag);
            }
            self.attached.push((requester, tag));
        }
    }

    /// Raises the unit's interrupt for each event from now on.
    pub fn interrupt_for_events(&mut self) {
        self.control |= Control::EVENT_INTERRUPT;
        self.registers.write(register::CONTROL, self.control.bits());
    }

    /// On a unit that software emulates, which is what NpCache means: see the head of this file.
    fn warn_of_neighbours(&self, requester: RequesterId, tag: SpaceTag) {
        for (other, space) in &self.attached {
            let common = requester.0 & other.0;
            if *space != tag && (common == requester.0 || common == other.0) {
                log::warn!(
                    "AMD-Vi: under QEMU, {requester} and {other} are not safe from each other: use other slots"
                );
            }
        }
    }

    /// Memory for an interrupt table.
    pub fn interrupt_table(&mut self) -> Option<Hpa> {
        let table = match self.spare.take() {
            Some(table) => table,
            None => MEMORY.allocate(PAGE_SIZE)?,
        };
        let next = table.checked_add(interrupt::TABLE_BYTES)?;
        self.spare = (!next.is_aligned(PAGE_SIZE)).then_some(next);
        Some(table)
    }

    /// Events that are logged from now on raise the interrupt again.
    pub fn acknowledge_events(&mut self) {
        self.events.acknowledge(&self.registers);
    }

    /// The oldest fault in the log, or the news that there were more than it holds.
    pub fn next_fault(&mut self) -> Option<Fault> {
        self.events.next(&self.registers).or_else(|| self.events.restart(&self.registers, self.control))
    }
}
