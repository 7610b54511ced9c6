//! Accesses of the shared holder that a look at the card and at its context answers.
//!
//! Nearly every access of a driver that shares is one of these; what they leave out is in `serve`, which does the same in every
//! other case.

use sluice_nic::ne2000::registers::{Command, Interrupt, port};

use super::Device;
use super::hardware::{Aside, get, put};
use super::regime::shared_mask;
use crate::access::{ClientId, RawDevice};

/// Ports of the registers that drivers use most.
const PORTS: u32 =
    1 << port::BNRY | 1 << port::TPSR | 1 << port::TBCR0 | 1 << port::TBCR1 | 1 << port::ISR | 1 << port::IMR;

impl Device {
    /// An access of one byte to a register, if there is no more to it than that: the card reports nothing that comes first, the
    /// client holds it and has not stopped it, and no frame waits for room in its ring. Else `None`, and nothing was done.
    pub(crate) fn quick(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        offset: u16,
        written: Option<u8>,
    ) -> Option<u8> {
        if !self.is_shared_holder(client) || PORTS.checked_shr(offset.into()).unwrap_or(0) & 1 == 0 {
            return None;
        }
        let command = get(raw, port::CMD);
        let context = self.contexts.get_mut(client.index())?.as_deref_mut()?;
        if command & Command::STOP.bits() != 0 || !context.backlog.is_empty() {
            return None;
        }
        let page = command >> 6;
        self.named = self.lookup.get(usize::from(page))?.get(usize::from(offset)).copied()?;
        let regs = &mut context.card.regs;
        let is_quiet = |raw: &mut dyn RawDevice| get(raw, port::ISR) & !Interrupt::RESET.bits() == 0;
        let value = match (page, offset, written) {
            (0, port::BNRY, None) => regs.bnry,
            (0, port::BNRY, Some(value)) => {
                regs.bnry = value;
                0
            }
            (0, port::TPSR, None) if is_quiet(raw) => regs.tsr,
            (0, port::TPSR | port::TBCR0 | port::TBCR1, Some(value)) if context.vetted && is_quiet(raw) => {
                regs.cmd = command;
                context.card.write(offset, 1, u32::from(value));
                let mut aside = Aside::with(raw, command);
                self.vet_one(raw, &mut aside, client, offset, value);
                aside.end(raw);
                return Some(0);
            }
            (0, port::ISR, None) if is_quiet(raw) => regs.isr,
            (0, port::ISR, Some(value)) => {
                regs.isr &= !(value & !Interrupt::RESET.bits());
                self.stirred.lines |= client.bit();
                0
            }
            (0, port::IMR, Some(value)) if is_quiet(raw) => {
                regs.imr = value;
                put(raw, port::IMR, shared_mask(value));
                self.stirred.lines |= client.bit();
                0
            }
            (1, port::ISR, None) => regs.curr,
            _ => return None,
        };
        regs.cmd = command;
        Some(value)
    }
}
