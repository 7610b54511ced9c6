//! The card changes hands or regime: save, scrub, restore.

use sluice_nic::ne2000::registers::{Command, Interrupt, Receive, port};
use sluice_nic::ne2000::{MEMORY_LEN, MEMORY_START, PROM_LEN};

use super::hardware::{self, Aside, DCR, HALT, RUN, get, put, put_array, put_pair, without_transmit};
use super::{Context, Device, Regime, Unknown};
use crate::access::{ClientId, RawDevice};

/// Interrupts the monitor itself wants while the card is shared.
const OWN_MASK: Interrupt = Interrupt::RECEIVED.union(Interrupt::RECEIVE_ERROR).union(Interrupt::OVERFLOW);
/// Interrupts it takes for the holder.
const HOLDER_MASK: Interrupt = Interrupt::SENT.union(Interrupt::SEND_ERROR);
/// Reception while shared: everything.
const TAKE_ALL: Receive = Receive::BROADCAST.union(Receive::MULTICAST).union(Receive::PROMISCUOUS);

/// MAR0-3, on page 1, share their ports with the remote DMA registers, which are not hooked: a holder's are in the hardware.
const FILTER: u16 = 8;

const PAGE1: u8 = 0x40;
const PAGE2: u8 = 0x80;

/// What the holder has the card do, as its command register says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activity {
    /// A frame is being sent.
    pub(crate) sending: bool,
    /// A remote DMA is under way.
    pub(crate) moving: bool,
}

impl Activity {
    pub(crate) const fn is_idle(self) -> bool {
        !self.sending && !self.moving
    }
}

impl Device {
    /// Looks at the holder's command register.
    pub(crate) fn activity(&self, raw: &mut dyn RawDevice) -> Activity {
        let command = Command::from_bits_retain(get(raw, port::CMD));
        Activity {
            sending: command.contains(Command::TRANSMIT),
            moving: !command.intersects(Command::NO_DMA | Command::STOP),
        }
    }

    /// Takes the card from whoever has it and gives it to `to`, undivided if nobody else needs it.
    pub(crate) fn hand_over(&mut self, raw: &mut dyn RawDevice, to: ClientId) {
        match self.regime {
            Regime::Unused => self.begin_use(raw, to),
            Regime::Sole(from) if from == to => {}
            Regime::Sole(from) => {
                self.save_sole(raw, from);
                if self.context(from).is_some_and(Context::online) {
                    self.open_shared(raw);
                    self.mirror.fill(Some(from));
                    self.refill(from);
                    self.grant(raw, to);
                } else {
                    self.begin_use(raw, to);
                }
            }
            Regime::Shared(from) => {
                let mut aside = Aside::begin(raw);
                self.collect(raw, &mut aside);
                match from {
                    Some(from) => self.pass_on(raw, aside, from, to),
                    None => self.grant(raw, to),
                }
            }
        }
    }

    /// The card is halted and nobody's: gives it to its only user.
    fn begin_use(&mut self, raw: &mut dyn RawDevice, to: ClientId) {
        self.counters.regime_changes += 1;
        if self.context(to).is_some_and(Context::fits_hardware) {
            self.load_sole(raw, to);
        } else {
            self.open_shared(raw);
            self.grant(raw, to);
        }
    }

    /// The holder rests and is the only user left: gives it the card undivided. False if something
    /// arrived meanwhile; try again later.
    pub(crate) fn undivide(&mut self, raw: &mut dyn RawDevice, client: ClientId) -> bool {
        if self.regime != Regime::Shared(Some(client)) {
            return false;
        }
        let mut aside = Aside::begin(raw);
        self.collect(raw, &mut aside);
        if !self.context(client).is_some_and(Context::fits_hardware) {
            aside.end(raw);
            return false;
        }
        aside.take_engine(raw);
        put(raw, port::CMD, HALT);
        if get(raw, port::ISR) & Interrupt::RECEIVED.bits() != 0 {
            // A frame slipped in before the receiver stopped. It stays in the ring and raises the
            // line again.
            put(raw, port::CMD, RUN);
            aside.end(raw);
            return false;
        }
        self.release(raw, aside, client);
        self.counters.regime_changes += 1;
        self.load_sole(raw, client);
        true
    }

    /// Nobody needs the card: stopped, silent, memory and identity scrubbed.
    pub(crate) fn retire(&mut self, raw: &mut dyn RawDevice) {
        if let Regime::Sole(client) = self.regime {
            self.save_sole(raw, client);
        }
        self.scrub(raw);
    }

    /// The sole user is gone: as [`Self::retire`], without looking at what it left.
    pub(crate) fn scrub(&mut self, raw: &mut dyn RawDevice) {
        put(raw, port::CMD, HALT);
        hardware::silence(raw);
        put(raw, port::RCR, Receive::MONITOR.bits());
        put(raw, port::DCR, DCR);
        widen_ring(raw);
        self.scratch.fill(0);
        let half = self.scratch.len();
        for start in (0..MEMORY_LEN).step_by(half) {
            hardware::write_memory(raw, HALT, (MEMORY_START as usize + start) as u16, &self.scratch);
        }
        // Its own address comes back by a reset, which keeps some of what was written there.
        hardware::write_memory(raw, HALT, 0, &[0; PROM_LEN]);
        let _ = raw.read(port::RESET, 1);
        put(raw, port::CMD, HALT);
        put_pair(raw, port::TBCR0, 0);
        self.mirror.fill(None);
        self.set_regime(Regime::Unused);
        self.sole_line = false;
        self.counters.regime_changes += 1;
    }

    /// Puts a context into the halted hardware as a whole.
    fn load_sole(&mut self, raw: &mut dyn RawDevice, client: ClientId) {
        self.mirror.fill(None);
        self.sole_line = false;
        self.set_regime(Regime::Sole(client));
        let Some(context) = self.context_mut(client) else { return };
        context.unknown = Unknown::all();
        context.vetted = false;
        let card = &context.card;
        let regs = &card.regs;
        put(raw, port::CMD, HALT);
        put(raw, port::IMR, 0);
        put(raw, port::DCR, DCR);
        widen_ring(raw);
        hardware::write_memory(raw, HALT, MEMORY_START as u16, card.ram());
        hardware::write_memory(raw, HALT, 0, card.prom());
        for (offset, value) in [
            (port::PSTART, regs.pstart),
            (port::PSTOP, regs.pstop),
            (port::BNRY, regs.bnry),
            (port::TPSR, regs.tpsr),
            (port::RCR, undivided_receive(regs.rcr)),
            (port::TCR, regs.tcr),
            (port::DCR, regs.dcr),
        ] {
            put(raw, offset, value);
        }
        put_pair(raw, port::TBCR0, regs.tbcr);
        put(raw, port::CMD, HALT | PAGE1);
        put_array(raw, 1, &regs.par);
        put(raw, port::ISR, regs.curr); // CURR on page 1.
        put_array(raw, 8, &regs.mar);
        put(raw, port::CMD, HALT);
        put(raw, port::ISR, 0xff);
        put_pair(raw, port::RSAR0, regs.rsar as u16);
        if regs.isr & Interrupt::DMA_DONE.bits() != 0 {
            // The only way to raise it: a remote DMA of no bytes.
            put_pair(raw, port::RBCR0, 0);
            put(raw, port::CMD, (Command::START | Command::REMOTE_READ).bits());
        }
        put_pair(raw, port::RBCR0, regs.rbcr);
        put(raw, port::IMR, regs.imr);
        put(raw, port::CMD, without_transmit(regs.cmd));
    }

    /// Stops the card of a sole holder and takes it into its context as a whole.
    fn save_sole(&mut self, raw: &mut dyn RawDevice, client: ClientId) {
        self.sole_line = false;
        let Some(context) = self.context_mut(client) else { return };
        let card = &mut context.card;
        let regs = &mut card.regs;
        regs.cmd = without_transmit(get(raw, port::CMD));
        put(raw, port::CMD, HALT);
        // RST is set by stopping, not by the client.
        regs.isr = get(raw, port::ISR) & !Interrupt::RESET.bits();
        regs.tsr = get(raw, port::TPSR);
        regs.rsr = get(raw, port::RCR);
        regs.bnry = get(raw, port::BNRY);
        regs.rsar = u32::from(hardware::remote_address(raw));
        regs.rbcr = 0;
        put(raw, port::CMD, HALT | PAGE1);
        get_array(raw, 1, &mut regs.par);
        regs.curr = get(raw, port::ISR); // CURR on page 1.
        get_array(raw, 8, &mut regs.mar);
        put(raw, port::CMD, HALT | PAGE2);
        regs.pstart = get(raw, port::PSTART);
        regs.pstop = get(raw, port::PSTOP);
        put(raw, port::CMD, HALT);
        put(raw, port::IMR, 0);
        put(raw, port::DCR, DCR);
        widen_ring(raw);
        hardware::read_memory(raw, HALT, 0, card.prom_mut());
        hardware::read_memory(raw, HALT, MEMORY_START as u16, card.ram_mut());
        context.vetted = false;
        if let Some(how) = context.failing.take() {
            context.fail(how);
        }
    }

    /// Makes the halted card the monitor's: promiscuous, with its own ring.
    fn open_shared(&mut self, raw: &mut dyn RawDevice) {
        self.counters.regime_changes += 1;
        self.mirror.fill(None);
        put(raw, port::CMD, HALT);
        put(raw, port::IMR, 0);
        put(raw, port::ISR, 0xff);
        for (offset, value) in [(port::DCR, DCR), (port::RCR, TAKE_ALL.bits()), (port::TCR, 0)] {
            put(raw, offset, value);
        }
        put_pair(raw, port::TBCR0, 0);
        self.ring.open(raw);
        put(raw, port::CMD, HALT | PAGE1);
        put_array(raw, 8, &[0xff; 8]);
        put(raw, port::CMD, RUN);
        put(raw, port::IMR, OWN_MASK.bits());
        self.set_regime(Regime::Shared(None));
    }

    /// Gives the shared card, which nobody holds, to a client. Page 0 is selected.
    fn grant(&mut self, raw: &mut dyn RawDevice, to: ClientId) {
        let Some(filter) = self.filter(to) else { return };
        put(raw, port::CMD, RUN | PAGE1);
        put_array(raw, FILTER, &filter);
        put(raw, port::CMD, RUN);
        self.lend(raw, to);
    }

    /// Takes the shared card from its holder. Page 0 is selected; stays so.
    pub(super) fn release(&mut self, raw: &mut dyn RawDevice, aside: Aside, from: ClientId) {
        let remote = aside.remote(raw);
        put(raw, port::CMD, RUN | PAGE1);
        let filter = read_filter(raw);
        put(raw, port::CMD, RUN);
        put_pair(raw, port::TBCR0, 0);
        put(raw, port::IMR, OWN_MASK.bits());
        self.set_regime(Regime::Shared(None));
        self.keep(from, aside.command, remote, filter);
    }

    /// Takes the shared card from its holder for another client, who finds in it what [`Self::release`] and [`Self::grant`]
    /// would leave, in fewer accesses. Page 0 is selected.
    fn pass_on(&mut self, raw: &mut dyn RawDevice, aside: Aside, from: ClientId, to: ClientId) {
        let Some(wanted) = self.filter(to) else { return };
        let remote = aside.remote(raw);
        put(raw, port::CMD, RUN | PAGE1);
        let filter = read_filter(raw);
        for (offset, (had, wanted)) in (FILTER..).zip(filter.into_iter().zip(wanted)) {
            if had != wanted {
                put(raw, offset, wanted);
            }
        }
        put(raw, port::CMD, RUN);
        self.keep(from, aside.command, remote, filter);
        self.lend(raw, to);
    }

    /// What of a client's registers is in the hardware while it holds the shared card goes into its context.
    fn keep(&mut self, from: ClientId, command: u8, remote: u16, filter: [u8; 4]) {
        let Some(context) = self.context_mut(from) else { return };
        let regs = &mut context.card.regs;
        regs.cmd = without_transmit(command);
        regs.rsar = u32::from(remote);
        regs.rbcr = 0;
        regs.mar.iter_mut().zip(filter).for_each(|(to, from)| *to = from);
        context.vetted = false;
    }

    /// What a client that holds the shared card has in [`FILTER`].
    fn filter(&self, client: ClientId) -> Option<[u8; 4]> {
        self.context(client)?.card.regs.mar.first_chunk().copied()
    }

    /// The shared card, which has a client's filter, becomes the client's: what it may send, its interrupts, its place. Page 0
    /// is selected.
    fn lend(&mut self, raw: &mut dyn RawDevice, to: ClientId) {
        self.set_regime(Regime::Shared(Some(to)));
        let Some(context) = self.context(to) else { return };
        let (command, remote) = (without_transmit(context.card.regs.cmd), context.card.regs.rsar as u16);
        put_pair(raw, port::RBCR0, 0);
        let mut aside = Aside::for_new_holder(command, remote);
        self.vet(raw, &mut aside, to);
        self.set_mask(raw, to);
        aside.end(raw);
    }

    /// Takes the shared card from its holder without a successor.
    pub(crate) fn let_go(&mut self, raw: &mut dyn RawDevice) {
        if let Regime::Shared(Some(holder)) = self.regime {
            let mut aside = Aside::begin(raw);
            self.collect(raw, &mut aside);
            self.release(raw, aside, holder);
        }
    }

    /// Lets the hardware interrupt for what the monitor and the holder want. Page 0 is selected.
    pub(super) fn set_mask(&self, raw: &mut dyn RawDevice, holder: ClientId) {
        let wanted = self.context(holder).map_or(0, |context| context.card.regs.imr);
        put(raw, port::IMR, shared_mask(wanted));
    }
}

/// What the hardware's IMR is while somebody holds the card whose own is `wanted`.
pub(super) fn shared_mask(wanted: u8) -> u8 {
    (OWN_MASK | (Interrupt::from_bits_retain(wanted) & HOLDER_MASK)).bits()
}

impl Context {
    /// All of this context can be put into hardware: no frames outside its ring, no interrupts
    /// that only an event could raise.
    fn fits_hardware(&self) -> bool {
        self.backlog.is_empty() && !self.has_news()
    }
}

/// What a sole holder's RCR becomes: it may not listen to others' addresses.
pub(super) const fn undivided_receive(rcr: u8) -> u8 {
    rcr & !Receive::PROMISCUOUS.bits()
}

/// Makes the ring all of card memory, since the remote DMA engine wraps at its end.
fn widen_ring(raw: &mut dyn RawDevice) {
    put(raw, port::PSTART, 0x40);
    put(raw, port::PSTOP, 0xc0);
}

fn read_filter(raw: &mut dyn RawDevice) -> [u8; 4] {
    let mut filter = [0; 4];
    get_array(raw, FILTER, &mut filter);
    filter
}

fn get_array(raw: &mut dyn RawDevice, first: u16, values: &mut [u8]) {
    for (offset, value) in (first..).zip(values) {
        *value = get(raw, offset);
    }
}
