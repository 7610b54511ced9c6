//! The RTL8139 changes owners: its registers, and what registers do not show.
//!
//! What a card keeps hidden are places: in C mode which of its four descriptors it sends next, and where in the ring it
//! writes next, which can be read only; in C+ mode where it is in both rings. They go in by frames that the card sends
//! to itself, as many as it takes to get there, and those of the ring as long as it takes. What comes back is probed: a
//! frame to itself shows where the card looks for it and where it puts it. All of this happens in the driver's memory,
//! in loopback, with a MAC address that nobody else has; a frame from the wire that comes in between is noticed.
//!
//! The order of writes is everything: RCR empties the ring of C mode, and CR takes both rings of C+ mode to their
//! beginnings. So in C mode the receiver goes on last, in C+ mode it is on all the time with a filter that nothing
//! passes.
//!
//! Causes cannot be set, but left: that something was sent, or received, is so after those frames. With any other
//! pending a guest waits for the card. What does not go along: MPC begins at 0, TCTR somewhere, tally counters with what
//! loading took. Of C+ mode only the common kind goes, with both rings in use.
//!
//! Sources: RTL8139C(L) data sheet 1.4, sections 5, 7 and 8; RTL8139C+(L) data sheet 1.6, section 6. Where they are
//! silent, see `sluice_nic::rtl8139`.

use super::{DirectPolicy, Loadable, lasts};
use crate::nic::Register;
use sluice_model::models::rtl8139::id;
use sluice_model::{Model, named};
use sluice_nic::Rtl8139;
use sluice_nic::dma::Dma;
use sluice_nic::rtl8139::registers::{
    Command, CplusCommand, DUMP, Interrupt, POLL_NORMAL, Receive, Registers, TCR_LOOPBACK, TransmitStatus,
    reg,
};
use sluice_nic::rtl8139::{PORTS, TICK_NS};
use sluice_uplink::Card;

/// What is used of the driver's memory: both rings of C+ mode, a frame to send and room for it to come back.
const RECEIVE_RING: usize = 0;
const SEND_RING: usize = 0x4000;
const FRAME: usize = 0x5000;
const BUFFER: usize = 0x7000;
const USED: usize = 0x8000;
/// Bytes of the buffer: bits of a descriptor's size.
const ROOM: u32 = 0x7ff;

/// Descriptors of the send ring; and of the longest receive ring that goes along.
const SENDS: u32 = 64;
const RECEIVES: u32 = 1024;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// First word of a descriptor: the card's, last of its ring, a whole frame.
const OWN: u32 = 1 << 31;
const END_OF_RING: u32 = 1 << 30;
const WHOLE: u32 = 1 << 29 | 1 << 28;

/// Bytes of the shortest frame, and around each frame in the ring of C mode.
const SHORTEST: u32 = 60;
const AROUND: u32 = 8;
/// Bytes by which a frame moves the ring on, at least, and no more than common ones.
const LEAST: u32 = SHORTEST + AROUND;
const MOST: u32 = 1520;

/// CAPR is this far behind.
const LAG: u32 = 0x10;
/// 9346CR: modes.
const MODE: u8 = 0xc0;
const LOAD: u32 = 0x40;
const PROGRAM: u32 = 0x80;
const UNLOCK: u32 = 0xc0;
/// RCR: who is received, all bits.
const ACCEPT: u32 = 0x3f;
/// SUMMARY: OWN of all four.
const ALL_OWN: u32 = 0x0f;
const BOTH: u8 = Command::RECEIVE.union(Command::TRANSMIT).bits();
const RINGS: u16 = CplusCommand::RECEIVE.union(CplusCommand::TRANSMIT).bits();
/// Descriptors of C mode.
const TURNS: u16 = 4;

/// Reads of what should change; of what may.
const PATIENCE: usize = 10_000;
const GLANCES: usize = 16;

/// A MAC address that is nobody's.
const NOBODY: [u8; 8] = [0x02, b's', b'l', b'u', b'i', b'c', 0, 0];
/// What outlives a guest and can be read back: offset, bytes.
const LINGERING: &[(u16, u8)] = &[
    (reg::CONFIG0, 1),
    (reg::CONFIG1, 1),
    (reg::CONFIG3, 1),
    (reg::CONFIG4, 1),
    (reg::CONFIG5, 1),
    (reg::BMCR, 2),
    (reg::ANAR, 2),
];

fn get(card: &mut Card<'_>, offset: u16, width: u8) -> u32 {
    card.registers.read(offset, width)
}

fn put(card: &mut Card<'_>, offset: u16, width: u8, value: u32) {
    card.registers.write(offset, width, value);
}

fn command(card: &mut Card<'_>, command: u8) {
    put(card, reg::CR, 1, command.into());
}

/// Address of a place in the driver's memory.
fn at(card: &Card<'_>, place: usize) -> u32 {
    card.memory.bus().wrapping_add(place as u32)
}

/// A register of descriptor 0-3.
const fn of(first: u16, turn: u16) -> u16 {
    first + 4 * (turn % TURNS)
}

impl Loadable for Rtl8139 {
    fn can_leave(&self, memory: &mut dyn Dma) -> bool {
        let regs = &self.regs;
        let quiet = !self.busy() && !self.assembling() && regs.isr & !causes(regs).bits() == 0;
        let plain = regs.running && regs.timer_int == 0 && !regs.loopback() && regs.cr9346 & MODE == 0;
        quiet && plain && if regs.cplus { rings_can_leave(regs, memory) } else { ring_can_leave(regs) }
    }

    fn load(&mut self, card: &mut Card<'_>) -> bool {
        prepare(card);
        if self.regs.cplus { load_rings(&self.regs, card) } else { load_ring(&self.regs, card) }
    }

    fn start(&mut self, card: &mut Card<'_>, policy: DirectPolicy) {
        let regs = &self.regs;
        let rows = regs.mar.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row));
        (0..).zip(rows).for_each(|(row, value)| put(card, reg::MAR + 4 * row, 4, value));
        set_station(card, regs.idr);
        for (turn, (address, status)) in (0..).zip(regs.tsad.into_iter().zip(regs.tsd)) {
            put(card, of(reg::TSAD, turn), 4, address);
            if regs.cplus {
                put(card, of(reg::TSD, turn), 4, if turn == 0 { status & !DUMP } else { status });
            }
        }
        put(card, reg::RBSTART, 4, regs.rbstart);
        put(card, reg::RDSAR, 4, regs.rdsar as u32);
        put(card, reg::RDSAR_HIGH, 4, (regs.rdsar >> 32) as u32);
        put(card, reg::CAPR, 2, regs.read_at.wrapping_sub(LAG) & 0xffff);
        put(card, reg::MULINT, 2, regs.mulint.into());
        put(card, reg::MTPS, 1, regs.mtps.into());
        put(card, reg::MPC, 4, 0);
        put(card, reg::TCR, 4, regs.tcr);
        if policy == DirectPolicy::Open {
            put(card, reg::CR9346, 1, UNLOCK);
            for (offset, width) in LINGERING {
                put(card, *offset, *width, regs_of(self, *offset, *width));
            }
        }
        put(card, reg::CR9346, 1, 0);
        put(card, reg::ISR, 2, (!regs.isr).into());
        put(card, reg::IMR, 2, regs.imr.into());
        if regs.cplus {
            put(card, reg::RCR, 4, regs.rcr);
        } else {
            command(card, regs.cr);
        }
        self.regs.isr = 0;
    }

    /// Ports and memory are the same registers.
    fn read(&self, card: &mut Card<'_>, register: Register, width: u8) -> Option<u32> {
        within(register, width).map(|offset| get(card, offset, width))
    }

    fn write(
        &mut self,
        card: &mut Card<'_>,
        (model, page): (&'static Model, u8),
        register: Register,
        width: u8,
        value: u32,
    ) -> bool {
        // There is nothing behind the registers.
        let Some(offset) = within(register, width) else { return true };
        let cplus = page != 0;
        let goes = |(register, value): (_, u32)| match register {
            // Off, or so that places in its rings could not be found any more.
            id::CR => {
                let command = value as u8 & (BOTH | Command::RESET.bits());
                if cplus { command == BOTH } else { command & BOTH != 0 && command & !BOTH == 0 }
            }
            id::CPCR => cplus && value as u16 & RINGS == RINGS,
            _ => !lasts(model, register),
        };
        let all = named(model, page, register.offset, width, value).all(goes);
        if all {
            put(card, offset, width, value);
        }
        if all && !cplus && offset == reg::IMR {
            remind(card);
        }
        all
    }

    fn is_idle(&self, card: &mut Card<'_>, memory: &mut dyn Dma) -> bool {
        if get(card, reg::CPCR, 2) as u16 & CplusCommand::TRANSMIT.bits() == 0 {
            return get(card, reg::SUMMARY, 2) & ALL_OWN == ALL_OWN;
        }
        let ring = u64::from(get(card, reg::TSAD, 4)) | u64::from(get(card, reg::TSAD + 4, 4)) << 32;
        statuses(memory, ring).take(SENDS as usize).all(|status| status & OWN == 0)
    }

    fn stop(&mut self, card: &mut Card<'_>, memory: &mut dyn Dma, policy: DirectPolicy) {
        let regs = &mut self.regs;
        regs.cr = get(card, reg::CR, 1) as u8 & BOTH;
        regs.cpcr = get(card, reg::CPCR, 2) as u16;
        regs.rcr = get(card, reg::RCR, 4);
        // Nothing is received from here on.
        if !regs.receives_by_descriptor() {
            command(card, regs.cr & !Command::RECEIVE.bits());
        }
        let read_at = get(card, reg::CAPR, 2);
        regs.write_at = get(card, reg::CBR, 2);
        if regs.receives_by_descriptor() {
            put(card, reg::RCR, 4, regs.rcr & !ACCEPT);
        }
        // A place behind the end of any ring becomes the last one of this.
        put(card, reg::CAPR, 2, 0xffff - LAG);
        let len = (get(card, reg::CAPR, 2) & 0xffff) + LAG + 1;
        regs.ring_shift = (len >> 13).checked_ilog2().unwrap_or(0) as u8 & 3;
        regs.read_at = read_at.wrapping_add(LAG) & (regs.ring_len() - 1);

        for (turn, (status, address)) in (0..).zip(regs.tsd.iter_mut().zip(&mut regs.tsad)) {
            *status = get(card, of(reg::TSD, turn), 4);
            *address = get(card, of(reg::TSAD, turn), 4);
        }
        (0..).zip(&mut regs.idr).for_each(|(byte, to)| *to = get(card, reg::IDR + byte, 1) as u8);
        (0..).zip(&mut regs.mar).for_each(|(byte, to)| *to = get(card, reg::MAR + byte, 1) as u8);
        regs.rbstart = get(card, reg::RBSTART, 4);
        regs.rdsar = u64::from(get(card, reg::RDSAR, 4)) | u64::from(get(card, reg::RDSAR_HIGH, 4)) << 32;
        regs.tcr = get(card, reg::TCR, 4);
        regs.mpc = regs.mpc.wrapping_add(get(card, reg::MPC, 4));
        regs.mulint = get(card, reg::MULINT, 2) as u16;
        regs.mtps = get(card, reg::MTPS, 1) as u8;
        regs.imr = get(card, reg::IMR, 2) as u16;
        put(card, reg::IMR, 2, 0);
        regs.isr = get(card, reg::ISR, 2) as u16;
        let (count, timer_int) = (get(card, reg::TCTR, 4), get(card, reg::TIMER_INT, 4));
        if policy == DirectPolicy::Open {
            regs.cr9346 = get(card, reg::CR9346, 1) as u8 & !1;
            regs.running = get(card, reg::HLTCLK, 1) != 0;
            let lock = core::mem::replace(&mut self.regs.cr9346, MODE);
            for (offset, width) in LINGERING {
                let value = get(card, *offset, *width);
                Rtl8139::write(self, *offset, *width, value, memory);
            }
            self.regs.cr9346 = lock;
        }
        // The count goes on from there, and the timer is set by it.
        Rtl8139::write(self, reg::TCTR, 4, 0, memory);
        self.regs.timer_base = self.regs.timer_base.saturating_sub(u64::from(count) * TICK_NS);
        self.regs.timer_int = timer_int;
        Rtl8139::write(self, reg::ISR, 2, 0, memory);
    }

    fn recover(&mut self, card: &mut Card<'_>) {
        let regs = &mut self.regs;
        (regs.next_tsd, regs.next_send, regs.next_receive) = (0, 0, 0);
        prepare(card);
        if regs.cpcr != 0 {
            regs.cplus = true;
            if regs.cpcr & RINGS == RINGS && regs.cr == BOTH {
                (regs.next_send, regs.next_receive) = places(card);
            }
        } else {
            let turn = turn(card);
            regs.cplus = turn.is_none();
            regs.next_tsd = turn.unwrap_or(0) as u8;
        }
    }

    /// A frame that its guest has not completed survives a reset; one that is complete ends it.
    fn scrub(&self, card: &mut Card<'_>) {
        prepare(card);
        put(card, reg::RCR, 4, 0);
        put(card, reg::CPCR, 2, RINGS.into());
        command(card, Command::TRANSMIT.bits());
        put(card, reg::TCR, 4, TCR_LOOPBACK);
        use_rings(card);
        give(card, 0, PATIENCE);
        // Resets keep this, as they keep all below.
        put(card, reg::CR9346, 1, UNLOCK);
        put(card, reg::CONFIG4, 1, 0);
        // The EEPROM is deselected, then loaded, which resets the card.
        put(card, reg::CR9346, 1, PROGRAM);
        put(card, reg::CR9346, 1, LOAD);
        let _ = (0..PATIENCE).any(|_| get(card, reg::CR9346, 1) as u8 & MODE == 0);
        for turn in 0..TURNS {
            put(card, of(reg::TSAD, turn), 4, 0);
        }
        for (offset, width) in
            [(reg::MAR, 4), (reg::MAR + 4, 4), (reg::MULINT, 2), (reg::MTPS, 1), (reg::MPC, 4)]
        {
            put(card, offset, width, 0);
        }
    }
}

/// C mode: has the card say again that there are frames in its ring, if there are more than found room. Linux's
/// `8139too` stops reading after 64 and does not go on unless there is a cause, all of which it has acknowledged; QEMU's
/// card has no cause before it tries again, when CAPR is written: both wait for ever.
fn remind(card: &mut Card<'_>) {
    let cause = Interrupt::RECEIVED | Interrupt::OVERFLOW | Interrupt::FIFO_OVERFLOW;
    let empty = get(card, reg::CR, 1) as u8 & Command::EMPTY.bits() != 0;
    if !empty && get(card, reg::ISR, 2) as u16 & cause.bits() == 0 {
        let place = get(card, reg::CAPR, 2);
        put(card, reg::CAPR, 2, place);
    }
}

/// An access that is all within the registers.
fn within(register: Register, width: u8) -> Option<u16> {
    let end = register.offset.checked_add(width.into())?;
    (end <= PORTS.into()).then_some(register.offset as u16)
}

/// A register of the software card, at its width.
fn regs_of(software: &Rtl8139, offset: u16, width: u8) -> u32 {
    Rtl8139::read(software, offset, width)
}

/// Causes that a card just loaded has.
fn causes(regs: &Registers) -> Interrupt {
    let received = if regs.cplus { regs.next_receive } else { regs.write_at };
    if received == 0 { Interrupt::SENT } else { Interrupt::SENT | Interrupt::RECEIVED }
}

/// C mode: nothing waits to be sent, and the place in the ring can be reached.
fn ring_can_leave(regs: &Registers) -> bool {
    let sent = regs.tsd.iter().all(|status| status & TransmitStatus::OWN.bits() != 0);
    let shown = regs.ring_shift == (regs.rcr >> 11 & 3) as u8;
    let reachable = regs.write_at & 3 == 0 && regs.write_at < regs.ring_len() && regs.write_at >= LEAST;
    let accepts = regs.rcr & (Receive::ALL | Receive::STATION).bits() != 0;
    sent && shown && (regs.write_at == 0 || reachable && accepts)
}

/// C+ mode: both rings are on and not too long.
fn rings_can_leave(regs: &Registers, memory: &mut dyn Dma) -> bool {
    let on = regs.cr & BOTH == BOTH && regs.cpcr & RINGS == RINGS && regs.rdsar != 0;
    let near = regs.next_send < SENDS && regs.next_receive < RECEIVES;
    on && near && statuses(memory, regs.rdsar).any(|status| status & END_OF_RING != 0)
}

/// First words of a guest's descriptors up to the end of its ring, as far as they are hers.
fn statuses(memory: &mut dyn Dma, ring: u64) -> impl Iterator<Item = u32> {
    let mut ended = false;
    (0..u64::from(RECEIVES)).map_while(move |index| {
        let mut status = [0; 4];
        memory.read(ring.wrapping_add(index * DESCRIPTOR as u64), &mut status).ok().filter(|()| !ended)?;
        let status = u32::from_le_bytes(status);
        ended = status & END_OF_RING != 0;
        Some(status)
    })
}

fn set_station(card: &mut Card<'_>, address: [u8; 6]) {
    let [a, b, c, d, e, f] = address;
    put(card, reg::IDR, 4, u32::from_le_bytes([a, b, c, d]));
    put(card, reg::IDR + 4, 4, u32::from_le_bytes([e, f, 0, 0]));
}

/// A frame to a station that is nobody but this card, and otherwise clean memory.
fn prepare(card: &mut Card<'_>) {
    let zeros = [0; 4096];
    (0..USED / zeros.len()).for_each(|page| card.memory.write(page * zeros.len(), &zeros));
    card.memory.write(FRAME, &NOBODY);
    let [a, b, c, d, e, f, ..] = NOBODY;
    put(card, reg::CR9346, 1, UNLOCK);
    set_station(card, [a, b, c, d, e, f]);
    put(card, reg::CR9346, 1, 0);
}

/// C mode: takes a card just reset to a guest's place in the ring, which moves so that each frame lands in the same
/// buffer, and to its turn; then every descriptor says what it said to her.
fn load_ring(regs: &Registers, card: &mut Card<'_>) -> bool {
    let (sending, both) = (Command::TRANSMIT.bits(), BOTH);
    command(card, sending);
    put(card, reg::RCR, 4, regs.rcr);
    put(card, reg::TCR, 4, TCR_LOOPBACK);
    send_from(card, FRAME);
    let (mut place, mut turn) = (0, 0);
    while place < regs.write_at {
        let step = match regs.write_at - place {
            left if left <= MOST => left,
            left if left - MOST < LEAST => left - LEAST,
            _ => MOST,
        };
        let start = at(card, BUFFER).wrapping_sub(place);
        put(card, reg::RBSTART, 4, start);
        command(card, both);
        let sent = send(card, turn, step - AROUND);
        command(card, sending);
        (place, turn) = (place + step, (turn + 1) % TURNS);
        if !sent || get(card, reg::CBR, 2) != place & (regs.ring_len() - 1) {
            return false;
        }
        put(card, reg::CAPR, 2, place.wrapping_sub(LAG) & 0xffff);
    }
    let said = regs.tsd.map(|status| status & !(TransmitStatus::OWN | TransmitStatus::SENT).bits());
    let last = TURNS + turn + (u16::from(regs.next_tsd).wrapping_sub(turn) % TURNS);
    (turn..last).all(|turn| {
        let status = said.get(usize::from(turn % TURNS)).copied().unwrap_or(SHORTEST);
        send(card, turn, status)
    })
}

/// C mode: whose turn it is: the descriptor that is sent when it is written, or one that waited for that. `None` if
/// none ever is: these are no descriptors.
fn turn(card: &mut Card<'_>) -> Option<u16> {
    command(card, Command::TRANSMIT.bits());
    put(card, reg::TCR, 4, TCR_LOOPBACK);
    send_from(card, FRAME);
    (0..TURNS).find_map(|written| {
        let waiting = get(card, reg::SUMMARY, 2) & ALL_OWN ^ ALL_OWN;
        let waiting = waiting | 1 << written;
        put(card, of(reg::TSD, written), 4, SHORTEST);
        let sent = (0..GLANCES).find_map(|_| {
            let sent = get(card, reg::SUMMARY, 2) & waiting;
            (sent != 0).then_some(sent)
        })?;
        Some(sent.trailing_zeros() as u16)
    })
}

/// All four descriptors of C mode have their frame there.
fn send_from(card: &mut Card<'_>, place: usize) {
    for turn in 0..TURNS {
        let address = at(card, place);
        put(card, of(reg::TSAD, turn), 4, address);
    }
}

/// C mode: writes a descriptor. True if it was sent.
fn send(card: &mut Card<'_>, turn: u16, status: u32) -> bool {
    put(card, of(reg::TSD, turn), 4, status);
    (0..PATIENCE).any(|_| get(card, of(reg::TSD, turn), 4) & TransmitStatus::OWN.bits() != 0)
}

/// C+ mode: takes a card just reset to a guest's places in her rings.
fn load_rings(regs: &Registers, card: &mut Card<'_>) -> bool {
    put(card, reg::RCR, 4, 0);
    put(card, reg::CPCR, 2, regs.cpcr.into());
    command(card, BOTH);
    put(card, reg::TCR, 4, TCR_LOOPBACK);
    use_rings(card);
    put(card, reg::RCR, 4, Receive::STATION.bits());
    for place in 0..regs.next_receive {
        // Only the one that is next is the card's: whoever's frame it gets, it moves on by one.
        offer(card, place);
        if !give(card, place % SENDS, PATIENCE) || is_owned(card, RECEIVE_RING, place) {
            return false;
        }
    }
    put(card, reg::RCR, 4, 0);
    // Once around, rather than none: that something was sent is a cause.
    let more = regs.next_send.wrapping_sub(regs.next_receive + 1) % SENDS + 1;
    (0..more).all(|step| give(card, regs.next_receive.wrapping_add(step) % SENDS, PATIENCE))
}

/// C+ mode: where the card is in its rings, to send and to receive.
fn places(card: &mut Card<'_>) -> (u32, u32) {
    put(card, reg::TCR, 4, TCR_LOOPBACK);
    use_rings(card);
    (0..RECEIVES).for_each(|place| offer(card, place));
    put(card, reg::RCR, 4, Receive::STATION.bits());
    let send = (0..SENDS).find(|place| {
        let taken = give(card, *place, GLANCES);
        put_word(card, SEND_RING, *place, 0);
        taken
    });
    put(card, reg::RCR, 4, 0);
    let receive = (0..RECEIVES).find(|place| !is_owned(card, RECEIVE_RING, *place));
    (send.unwrap_or(0), receive.unwrap_or(0))
}

/// C+ mode: rings in the driver's memory.
fn use_rings(card: &mut Card<'_>) {
    let (receive, send) = (at(card, RECEIVE_RING), at(card, SEND_RING));
    for (offset, value) in
        [(reg::RDSAR, receive), (reg::RDSAR_HIGH, 0), (reg::TSAD, send), (reg::TSAD + 4, 0)]
    {
        put(card, offset, 4, value);
    }
}

/// C+ mode: a descriptor becomes the card's.
fn describe(card: &mut Card<'_>, ring: usize, index: u32, status: u32, buffer: usize) {
    let address = u64::from(at(card, buffer));
    let descriptor = u128::from(status) | u128::from(address) << 64;
    card.memory.write(ring + index as usize * DESCRIPTOR, &descriptor.to_le_bytes());
}

/// C+ mode: room for a frame.
fn offer(card: &mut Card<'_>, index: u32) {
    describe(card, RECEIVE_RING, index, OWN | ROOM, BUFFER);
}

/// C+ mode: a frame to send. True if the card has taken it: it was where the card is.
fn give(card: &mut Card<'_>, index: u32, patience: usize) -> bool {
    let last = if index + 1 == SENDS { END_OF_RING } else { 0 };
    describe(card, SEND_RING, index, OWN | last | WHOLE | SHORTEST, FRAME);
    put(card, reg::TPPOLL, 1, POLL_NORMAL.into());
    (0..patience).any(|_| {
        let _ = get(card, reg::ISR, 2);
        !is_owned(card, SEND_RING, index)
    })
}

fn is_owned(card: &Card<'_>, ring: usize, index: u32) -> bool {
    let mut status = [0; 4];
    card.memory.read(ring + index as usize * DESCRIPTOR, &mut status);
    u32::from_le_bytes(status) & OWN != 0
}

fn put_word(card: &mut Card<'_>, ring: usize, index: u32, value: u32) {
    card.memory.write(ring + index as usize * DESCRIPTOR, &value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use sluice_model::models::rtl8139::MODEL;
    use sluice_uplink::{NoMemory, RawDevice};

    /// A card whose ring has frames in it, of which it says so or not.
    struct Silent {
        cause: u32,
        written: Vec<(u16, u32)>,
    }

    impl RawDevice for Silent {
        fn read(&mut self, offset: u16, _: u8) -> u32 {
            match offset {
                reg::CAPR => 0x1230,
                reg::ISR => self.cause,
                _ => 0,
            }
        }
        fn write(&mut self, offset: u16, _: u8, value: u32) {
            self.written.push((offset, value));
        }
    }

    #[test]
    fn a_driver_that_waits_for_a_cause_gets_one() {
        let mask = Register { io: false, offset: reg::IMR.into() };
        for (cause, page, reminded) in [(0, 0, true), (1, 0, false), (0x10, 0, false), (0, 1, false)] {
            let mut silent = Silent { cause, written: vec![] };
            let mut card = Card { registers: &mut silent, memory: &mut NoMemory };
            let mut software = Rtl8139::new([0; 6]);
            assert!(Loadable::write(&mut software, &mut card, (&MODEL, page), mask, 2, 0xc07f));
            let mut expected = vec![(reg::IMR, 0xc07f)];
            expected.extend(reminded.then_some((reg::CAPR, 0x1230)));
            assert_eq!(silent.written, expected, "{cause:#x}");
        }
    }
}
