//! Serving a hooked access: from the context while off-line or shared, from the card while sole.

use sluice_nic::ne2000::registers::{Command, Interrupt, Receive, SendStatus, TCR_LOOPBACK, port};

use super::hardware::{self, Aside, DCR, HALT, get, put};
use super::regime::undivided_receive;
use super::{Device, Regime, started};
use crate::access::{Cause, ClientId, RawDevice, RegisterAccess, Served};
use sluice_model::models::ne2000::MODEL;
use sluice_model::{Check, Effects, Register, RegisterId};

/// One element of an access.
#[derive(Clone, Copy)]
enum Element {
    Read,
    Write(u32),
}

impl Device {
    /// The access would send a frame from a client that is off-line only because it does not
    /// receive yet.
    pub(crate) fn engages(&self, client: ClientId, access: &RegisterAccess<'_>) -> bool {
        let RegisterAccess::Write { offset: port::CMD, width: 1, value } = *access else { return false };
        let command = Command::from_bits_retain(value as u8);
        command.contains(Command::TRANSMIT)
            && !command.contains(Command::STOP)
            && self.context(client).is_some_and(|context| {
                !context.card.regs.stopped() && context.card.regs.tcr & TCR_LOOPBACK == 0
            })
    }

    /// Puts a client that only sends on-line.
    pub(crate) fn engage(&mut self, client: ClientId) {
        if let Some(context) = self.context_mut(client) {
            context.engaged = true;
        }
    }

    /// The register that the last access served named.
    pub(crate) const fn named(&self) -> RegisterId {
        self.named
    }

    /// An access of a client that is off-line: no hardware.
    pub(crate) fn emulate(&mut self, client: ClientId, access: RegisterAccess<'_>) -> Served {
        let ((offset, width), elements) = (access.place(), access.elements());
        // An access that is not aligned may reach the data port from below.
        let reaches = offset <= port::DATA && offset.saturating_add(width.into()) > port::DATA;
        let writes = access.is_write() && reaches;
        let page = self.context(client).map_or(0, |context| context.card.regs.page());
        self.named = self.register(offset, page);
        let unlocks = |it: &Register| it.write.contains(Effects::UNLOCKS);
        if access.is_write() && MODEL.register(self.named).is_some_and(unlocks) {
            return Err((0, Cause::RegisterAccess));
        }
        let served = self.data(client, writes, elements, |card| match access {
            RegisterAccess::Read { offset, width } => card.read(offset, width),
            RegisterAccess::Write { offset, width, value } => {
                card.write(offset, width, value);
                0
            }
            RegisterAccess::ReadString { offset, width, into } => {
                card.read_string(offset, width, into);
                0
            }
            RegisterAccess::WriteString { offset, width, from } => {
                card.write_string(offset, width, from);
                0
            }
        });
        if let Some(context) = self.context_mut(client) {
            if context.card.regs.stopped() {
                context.engaged = false;
                context.backlog.clear();
            }
            // Off-line nothing reaches the wire, whatever the software card believes.
            let _ = context.card.take_transmitted(&mut []);
        }
        Ok(served.unwrap_or(0))
    }

    /// Whether a check of the model approves. Asked before the hardware sees the access.
    fn approves(&self, client: ClientId, check: Check) -> bool {
        match (self.regime, check) {
            (Regime::Unused, _) => false,
            // Undivided: there is nobody's memory on the card but its own.
            (Regime::Sole(holder), _) => holder == client,
            (Regime::Shared(_), Check::SendRange) => {
                self.context(client).is_some_and(|context| context.vetted)
            }
            // Every datum passes the hooked data port and comes from the context; the ring is the
            // monitor's.
            (Regime::Shared(_), Check::WindowOwn | Check::ReceiveRange) => true,
        }
    }

    /// The client's card reports an error of its own, on which drivers act: an aborted transmission if one was refused,
    /// else a collision out of its window, which is counted and ends no transmission.
    pub(crate) fn fail(&mut self, client: ClientId, cause: Cause) {
        let how = match cause {
            Cause::Send => SendStatus::ABORTED,
            Cause::RegisterAccess => SendStatus::LATE_COLLISION,
        };
        let sole = self.regime == Regime::Sole(client);
        let Some(context) = self.context_mut(client) else { return };
        if sole {
            // The hardware's registers cannot be made to say so.
            context.failing = Some(how);
            self.stir();
        } else {
            context.fail(how);
        }
    }

    /// An access of the holder.
    pub(crate) fn serve(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        access: RegisterAccess<'_>,
    ) -> Served {
        let (offset, width) = access.place();
        self.named = self.register(offset, 0);
        if offset == port::DATA && matches!(width, 1 | 2 | 4) {
            return self.serve_data(raw, client, access);
        }
        if width != 1 || offset >= MODEL.ports {
            // The card does not answer wide accesses to registers, nor will one straddle ports here; and
            // what lies behind its ports is another device.
            let ones = ones(width);
            if let RegisterAccess::ReadString { into, .. } = access {
                into.fill(0xff);
            }
            return Err((ones, Cause::RegisterAccess));
        }
        let mut refused = None;
        let mut value = 0;
        let mut one = |device: &mut Self, raw: &mut dyn RawDevice, element| {
            value = device.register_access(raw, client, offset, element).unwrap_or_else(|(value, cause)| {
                refused = Some(cause);
                value
            });
            value
        };
        match access {
            RegisterAccess::Read { .. } => drop(one(self, raw, Element::Read)),
            RegisterAccess::Write { value, .. } => drop(one(self, raw, Element::Write(value))),
            RegisterAccess::ReadString { into, .. } => {
                into.iter_mut().for_each(|byte| *byte = one(self, raw, Element::Read) as u8);
            }
            RegisterAccess::WriteString { from, .. } => {
                for &byte in from {
                    one(self, raw, Element::Write(u32::from(byte)));
                }
            }
        }
        refused.map_or(Ok(value), |cause| Err((value, cause)))
    }

    /// One byte access to a register.
    fn register_access(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        offset: u16,
        element: Element,
    ) -> Served {
        let written = |done: Result<(), Cause>| done.map(|()| 0).map_err(|cause| (0xff, cause));
        match self.regime {
            Regime::Sole(holder) if holder == client => match element {
                Element::Read => Ok(u32::from(self.sole_read(raw, client, offset))),
                Element::Write(value) => written(self.sole_write(raw, client, offset, value as u8)),
            },
            _ if self.is_shared_holder(client) => {
                let command = get(raw, port::CMD);
                self.named = self.register(offset, command >> 6);
                if command & Command::STOP.bits() != 0 {
                    self.caught_stopping(raw, client, command);
                    return self.context_access(client, offset, element);
                }
                if let Some(context) = self.context_mut(client) {
                    context.card.regs.cmd = command;
                }
                match element {
                    Element::Read => Ok(u32::from(self.shared_read(raw, client, offset, command))),
                    Element::Write(value) => {
                        written(self.shared_write(raw, client, offset, command, value as u8))
                    }
                }
            }
            // It lost the card within a string.
            _ => self.context_access(client, offset, element),
        }
    }

    fn context_access(&mut self, client: ClientId, offset: u16, element: Element) -> Served {
        self.emulate(
            client,
            match element {
                Element::Read => RegisterAccess::Read { offset, width: 1 },
                Element::Write(value) => RegisterAccess::Write { offset, width: 1, value },
            },
        )
    }

    /// The holder wrote STP past the monitor: the card goes on without it.
    fn caught_stopping(&mut self, raw: &mut dyn RawDevice, client: ClientId, command: u8) {
        let aside = Aside::with(raw, command);
        self.counters.stops_caught += 1;
        self.release(raw, aside, client);
        if let Some(context) = self.context_mut(client) {
            context.stops = context.stops.saturating_add(1);
            context.engaged = false;
            context.backlog.clear();
        }
    }

    fn shared_read(&mut self, raw: &mut dyn RawDevice, client: ClientId, offset: u16, command: u8) -> u8 {
        match (command >> 6, offset) {
            (_, port::CMD) => return command,
            // Remote DMA registers and MAR0-3 are the hardware's while held.
            (_, 8..=11) => return get(raw, offset),
            (0, port::ISR | port::TPSR) => {
                let mut aside = Aside::with(raw, command);
                self.collect(raw, &mut aside);
                aside.end(raw);
            }
            (_, port::RESET) => {
                // As the data sheet says, a reset stops the card: off-line.
                self.stop(raw, client, command, HALT);
                if let Some(context) = self.context_mut(client) {
                    context.card.reset();
                }
                return 0;
            }
            _ => {}
        }
        self.context_mut(client).map_or(0xff, |context| context.card.read(offset, 1) as u8)
    }

    fn shared_write(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        offset: u16,
        command: u8,
        value: u8,
    ) -> Result<(), Cause> {
        let page = command >> 6;
        match (page, offset) {
            (_, port::CMD) => {
                return self.shared_command(raw, client, command, value);
            }
            (_, 8..=11) => {
                put(raw, offset, value);
                return Ok(());
            }
            // EEPROM and configuration stay shut.
            (3, 1) => return Err(Cause::RegisterAccess),
            _ => {}
        }
        if self.decides_send(self.register(offset, page)) {
            // What was sent by the registers as they are has to be taken while they still name it.
            let mut aside = Aside::with(raw, command);
            self.collect(raw, &mut aside);
            aside.end(raw);
        }
        let Some(context) = self.context_mut(client) else { return Err(Cause::RegisterAccess) };
        context.card.write(offset, 1, u32::from(value));
        let gone = !context.online();
        if gone {
            // Monitor mode or loopback: it needs the card no more.
            let aside = Aside::with(raw, command);
            self.release(raw, aside, client);
            return Ok(());
        }
        if self.decides_send(self.register(offset, page)) {
            self.learn(client, offset);
            let mut aside = Aside::with(raw, command);
            self.vet_one(raw, &mut aside, client, offset, value);
            aside.end(raw);
        }
        match (page, offset) {
            (0, port::PSTART | port::PSTOP | port::BNRY | port::RCR) | (1, port::ISR) => {
                self.refill(client);
            }
            (0, port::ISR) => self.remind(client),
            (0, port::IMR) => {
                let mut aside = Aside::with(raw, command);
                self.collect(raw, &mut aside);
                self.set_mask(raw, client);
                aside.end(raw);
            }
            _ => {}
        }
        let listens = (page, offset) == (0, port::RCR) && value & Receive::PROMISCUOUS.bits() != 0;
        // It widens nothing: who gets which frame is the monitor's to say.
        if listens { Err(Cause::RegisterAccess) } else { Ok(()) }
    }

    /// A hooked command of the shared holder. If a transfer in it is refused, the rest is obeyed.
    fn shared_command(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        old: u8,
        value: u8,
    ) -> Result<(), Cause> {
        if value & Command::STOP.bits() != 0 {
            self.stop(raw, client, old, value);
            return Ok(());
        }
        if !self.starts[usize::from(value)] {
            put(raw, port::CMD, value);
            return Ok(());
        }
        for check in started(value).filter_map(|start| start.check) {
            if !self.approves(client, check) {
                if check == Check::SendRange && self.cross(client) {
                    put(raw, port::CMD, hardware::without_transmit(value));
                    return Ok(());
                }
                // What was for another client may not be any more.
                let mut aside = Aside::with(raw, old);
                self.vet(raw, &mut aside, client);
                aside.end(raw);
                if !self.approves(client, check) {
                    put(raw, port::CMD, hardware::without_transmit(value));
                    return Err(Cause::Send);
                }
            }
        }
        put(raw, port::CMD, value);
        Ok(())
    }

    /// The shared holder stops its card: it gives the hardware back.
    fn stop(&mut self, raw: &mut dyn RawDevice, client: ClientId, old: u8, value: u8) {
        let mut aside = Aside::with(raw, old);
        self.collect(raw, &mut aside);
        self.release(raw, aside, client);
        if let Some(context) = self.context_mut(client) {
            context.card.write(port::CMD, 1, u32::from(value));
            context.engaged = false;
            context.backlog.clear();
        }
    }

    fn serve_data(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        access: RegisterAccess<'_>,
    ) -> Served {
        if self.regime == Regime::Sole(client) {
            return Ok(forward(raw, access));
        }
        let command = get(raw, port::CMD);
        if command & Command::STOP.bits() != 0 {
            self.caught_stopping(raw, client, command);
            return self.emulate(client, access);
        }
        let mut aside = Aside::with(raw, command);
        let remote = aside.remote(raw);
        let (elements, width) = (access.elements(), access.place().1);
        if let Some(context) = self.context_mut(client) {
            context.card.regs.cmd = command;
            // QEMU's address register is wider than what can be read of it.
            if context.card.regs.rsar as u16 != remote {
                context.card.regs.rsar = u32::from(remote);
            }
            Self::expect(&mut context.card, width, elements);
        }
        let outcome = self.emulate(client, access);
        let after = self.context(client).map_or(remote, |context| context.card.regs.rsar as u16);
        if after != remote {
            aside.set_remote(raw, after);
        }
        aside.end(raw);
        outcome
    }

    fn sole_read(&mut self, raw: &mut dyn RawDevice, client: ClientId, offset: u16) -> u8 {
        if offset == port::RESET {
            self.sole_reset(raw, client);
            return 0;
        }
        let mut page = 0;
        if offset <= port::IMR {
            page = get(raw, port::CMD) >> 6;
            self.named = self.register(offset, page);
        }
        match (page, offset, self.context(client).and_then(|context| context.failing)) {
            (0, port::TPSR, Some(how)) => get(raw, port::TPSR) | how.bits(),
            (0, port::ISR, Some(_)) => get(raw, port::ISR) | Interrupt::SEND_ERROR.bits(),
            _ => get(raw, offset),
        }
    }

    fn sole_write(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        offset: u16,
        value: u8,
    ) -> Result<(), Cause> {
        let page = get(raw, port::CMD) >> 6;
        self.named = self.register(offset, page);
        self.stirred.hooks = true;
        let Some(context) = self.context_mut(client) else { return Err(Cause::RegisterAccess) };
        let mut through = value;
        match (page, offset) {
            (_, port::CMD) => {}
            (3, 1) => return Err(Cause::RegisterAccess),
            (0, port::ISR) if value & Interrupt::SEND_ERROR.bits() != 0 => context.failing = None,
            (0, port::TPSR..=port::TBCR1 | port::RCR..=port::IMR) => {
                // Unreadable: shadowed.
                let command = core::mem::replace(&mut context.card.regs.cmd, HALT);
                context.card.write(offset, 1, u32::from(value));
                context.card.regs.cmd = command;
                if offset == port::RCR {
                    through = undivided_receive(value);
                }
            }
            // The end of a reset pulse means nothing to this card.
            (_, 0x18..=0x1f) => return Ok(()),
            _ => {}
        }
        self.learn(client, if page == 0 { offset } else { port::CMD });
        put(raw, offset, through);
        if through == value { Ok(()) } else { Err(Cause::RegisterAccess) }
    }

    /// Reset by a sole holder: the card's own address comes back with it and must go again. The
    /// card is left stopped, as the data sheet says of a reset, because starting clears RST.
    fn sole_reset(&mut self, raw: &mut dyn RawDevice, client: ClientId) {
        self.stir();
        let mut aside = Aside::begin(raw);
        let remote = aside.remote(raw);
        let _ = raw.read(port::RESET, 1);
        let Some(context) = self.context_mut(client) else { return };
        context.card.reset();
        context.failing = None;
        put(raw, port::CMD, HALT);
        put(raw, port::DCR, DCR);
        hardware::write_memory(raw, HALT, 0, context.card.prom());
        hardware::put_pair(raw, port::RSAR0, remote);
        put(raw, port::DCR, context.card.regs.dcr);
        aside.set_remote(raw, remote);
    }
}

/// The data port of an undivided card.
fn forward(raw: &mut dyn RawDevice, access: RegisterAccess<'_>) -> u32 {
    match access {
        RegisterAccess::Read { offset, width } => return raw.read(offset, width),
        RegisterAccess::Write { offset, width, value } => raw.write(offset, width, value),
        RegisterAccess::ReadString { offset, width, into } => raw.read_string(offset, width, into),
        RegisterAccess::WriteString { offset, width, from } => raw.write_string(offset, width, from),
    }
    0
}

const fn ones(width: u8) -> u32 {
    match width {
        1 => 0xff,
        2 => 0xffff,
        _ => u32::MAX,
    }
}
