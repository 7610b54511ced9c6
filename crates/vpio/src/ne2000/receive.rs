//! Receive isolation: the monitor's own ring in the hardware, and who gets which frame.
//!
//! While the card is shared it receives promiscuously into pages 0x80-0xbf. The monitor drains that
//! ring when the card interrupts, and puts each frame into the virtual rings it belongs in:
//! a unicast frame into the ring of the client with that address, a broadcast or multicast frame
//! into every ring whose own filter lets it pass, any other nowhere. A client's promiscuous bit
//! widens nothing.
//!
//! QEMU's card takes CURR == BNRY for an empty ring and, when the last free pages are filled
//! exactly, goes on to overwrite unread frames. A frame written then would begin at page BNRY, so a
//! zero word (no header is zero) is kept there; if it changes, the ring is not believed and cleared.

use sluice_nic::Ne2000;
use sluice_nic::ne2000::registers::{Command, Interrupt, port};
use sluice_nic::ne2000::{MAX_FRAME, Reception};

use super::hardware::{self, Aside, RUN, get, put};
use super::{Context, Device, Regime};
use crate::access::{ClientId, RawDevice};

pub(super) const RING_START: u8 = 0x80;
pub(super) const RING_STOP: u8 = 0xc0;
const RING_PAGES: u8 = RING_STOP - RING_START;
pub(super) const RING_BYTES: usize = RING_PAGES as usize * 256;
/// BNRY follows when it is this far behind.
const LAG: u8 = RING_PAGES / 4;
/// Longest frame believed: with a VLAN tag.
const LONGEST: usize = MAX_FRAME + 4;

/// Where the monitor is in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// First page not yet read.
    read: u8,
    /// BNRY in the hardware; this page starts with the zero word.
    boundary: u8,
}

impl Default for Ring {
    fn default() -> Self {
        Self { read: RING_START, boundary: RING_STOP - 1 }
    }
}

/// Pages from one ring page forward to another.
const fn distance(from: u8, to: u8) -> u8 {
    if to >= from { to - from } else { RING_PAGES - (from - to) }
}

const fn in_ring(page: u8) -> bool {
    page >= RING_START && page < RING_STOP
}

/// The next frame in drained ring bytes: its data and the bytes it occupies, or `None` if the
/// header is not one the card could have written.
fn parse(bytes: &[u8], page: u8) -> Option<(&[u8], usize)> {
    let &[status, next, low, high, ref data @ ..] = bytes else { return None };
    let length = usize::from(u16::from_le_bytes([low, high]));
    let pages = (length + 4).div_ceil(256);
    let expected = usize::from(page - RING_START) + pages;
    let wrapped = RING_START + (expected % usize::from(RING_PAGES)) as u8;
    let sound = status & 0x1f == 1 && next == wrapped && (4 + 14..=4 + LONGEST).contains(&length);
    let frame = data.get(..length.checked_sub(4)?).filter(|_| sound)?;
    Some((frame, pages * 256))
}

/// The zero word at a page is still there.
fn sentinel(raw: &mut dyn RawDevice, page: u8) -> bool {
    let mut word = [0; 4];
    hardware::read_memory(raw, RUN, u16::from(page) << 8, &mut word);
    word == [0; 4]
}

impl Device {
    /// Prepares the ring in the hardware. The card is stopped, on page 0, in word mode.
    pub(super) fn open_ring(&mut self, raw: &mut dyn RawDevice) {
        self.ring = Ring::default();
        put(raw, port::PSTART, RING_START);
        put(raw, port::PSTOP, RING_STOP);
        put(raw, port::BNRY, self.ring.boundary);
        hardware::write_memory(raw, hardware::HALT, u16::from(self.ring.boundary) << 8, &[0; 4]);
        put(raw, port::CMD, hardware::HALT | 0x40);
        put(raw, port::ISR, self.ring.read); // CURR on page 1.
        put(raw, port::CMD, hardware::HALT);
    }

    /// Takes what the hardware has to report: reception for everyone, transmission for the holder.
    /// Page 0 is selected.
    pub(super) fn collect(&mut self, raw: &mut dyn RawDevice, aside: &mut Aside) {
        // Bounded: a flood cannot keep the monitor here; what is left raises the line again.
        for _ in 0..4 {
            let status = Interrupt::from_bits_retain(get(raw, port::ISR)) - Interrupt::RESET;
            if status.is_empty() {
                return;
            }
            put(raw, port::ISR, status.bits());
            let ends = Interrupt::SENT | Interrupt::SEND_ERROR;
            if let Regime::Shared(Some(holder)) = self.regime {
                let sent = status.intersects(ends).then(|| get(raw, port::TPSR));
                if let Some(context) = self.context_mut(holder) {
                    let own = status & (ends | Interrupt::DMA_DONE);
                    context.card.regs.isr |= own.bits();
                    if let Some(tsr) = sent {
                        context.card.regs.tsr = tsr;
                        context.tx_packets += 1;
                    }
                }
            }
            let news = Interrupt::RECEIVED | Interrupt::RECEIVE_ERROR | Interrupt::OVERFLOW;
            if status.intersects(news) {
                self.drain(raw, aside);
            }
            if status.contains(Interrupt::OVERFLOW) {
                // DP8390D 7.3: a receiver that overflowed must be stopped and restarted.
                put(raw, port::CMD, hardware::HALT);
                self.open_ring(raw);
                put(raw, port::CMD, RUN);
                self.counters.ring_overruns += 1;
            }
        }
    }

    /// Empties the ring into the clients' rings.
    fn drain(&mut self, raw: &mut dyn RawDevice, aside: &mut Aside) {
        aside.take_engine(raw);
        put(raw, port::CMD, RUN | 0x40);
        let current = get(raw, port::ISR); // CURR on page 1.
        put(raw, port::CMD, RUN);
        if !in_ring(current) {
            return self.resync(raw);
        }
        let pages = distance(self.ring.read, current);
        if pages == 0 {
            return;
        }
        let mut buffer = core::mem::take(&mut self.scratch);
        let length = usize::from(pages) * 256;
        if let Some(bytes) = buffer.get_mut(..length) {
            // The engine wraps from PSTOP to PSTART by itself.
            hardware::read_memory(raw, RUN, u16::from(self.ring.read) << 8, bytes);
            let bytes = &*bytes;
            // Believe all or nothing: the chain of headers must lead to CURR exactly.
            let chain = || {
                let mut at = 0;
                let start = self.ring.read - RING_START;
                core::iter::from_fn(move || {
                    let page = RING_START + (start + (at / 256) as u8) % RING_PAGES;
                    let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
                    let parsed = parse(rest, page);
                    at = parsed.map_or(bytes.len(), |(_, used)| at + used);
                    Some(parsed.filter(|_| at <= bytes.len()).map(|(frame, _)| frame))
                })
            };
            // The zero word is looked at after the data was read: what was read is then whole.
            let whole = sentinel(raw, self.ring.boundary);
            if whole && chain().all(|frame| frame.is_some()) {
                let frames = chain();
                self.ring.read = current;
                for frame in frames.flatten() {
                    self.deliver(frame);
                }
            } else {
                self.scratch = buffer;
                return self.resync(raw);
            }
        }
        self.scratch = buffer;
        if distance(self.ring.boundary, self.ring.read) > LAG {
            self.advance_boundary(raw);
        }
    }

    /// Gives drained pages back to the hardware.
    fn advance_boundary(&mut self, raw: &mut dyn RawDevice) {
        let Ring { read, boundary: old } = self.ring;
        let new = if read == RING_START { RING_STOP - 1 } else { read - 1 };
        hardware::write_memory(raw, RUN, u16::from(new) << 8, &[0; 4]);
        // Up to here nothing passed the old boundary. What passes it before the next line goes to
        // pages already drained, and if it gets as far as the new boundary, it shows there.
        if !sentinel(raw, old) {
            return self.resync(raw);
        }
        put(raw, port::BNRY, new);
        self.ring.boundary = new;
    }

    /// The ring makes no sense: drops its contents.
    fn resync(&mut self, raw: &mut dyn RawDevice) {
        self.counters.ring_overruns += 1;
        put(raw, port::CMD, hardware::HALT);
        self.open_ring(raw);
        put(raw, port::CMD, RUN);
    }

    /// Gives a frame to those it is for.
    fn deliver(&mut self, frame: &[u8]) {
        let Some(destination) = frame.first_chunk::<6>() else { return };
        let group = destination[0] & 1 != 0;
        let mut claimed = group;
        for (slot, context) in (0u8..).zip(&mut self.contexts) {
            let Some(context) = context.as_deref_mut().filter(|context| context.online()) else {
                continue;
            };
            if group || context.card.mac() == *destination {
                claimed = true;
                let page = context.card.regs.curr;
                context.offer(frame);
                touch_ring(&mut self.mirror, ClientId(slot), context, page);
            }
        }
        self.counters.unclaimed += u64::from(!claimed);
    }

    /// The client made room, or came on-line.
    pub(super) fn refill(&mut self, client: ClientId) {
        let Some(context) = self.contexts.get_mut(client.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let page = context.card.regs.curr;
        context.refill();
        touch_ring(&mut self.mirror, client, context, page);
    }

    /// The client acknowledged interrupts. Linux does so with frames left in the ring, trusting
    /// that another will come; while some wait outside a full ring, none could.
    pub(super) fn remind(&mut self, client: ClientId) {
        self.refill(client);
        if let Some(context) = self.context_mut(client).filter(|context| !context.backlog.is_empty()) {
            context.card.regs.isr |= Interrupt::RECEIVED.bits();
        }
    }

    /// Looks after the shared card: takes what it reports, and restarts it if the holder stopped
    /// it. Returns a holder that went off-line so; it has lost the card.
    pub(crate) fn watch(&mut self, raw: &mut dyn RawDevice) -> Option<ClientId> {
        let Regime::Shared(holder) = self.regime else { return None };
        let mut aside = Aside::begin(raw);
        self.collect(raw, &mut aside);
        let stopped = aside.command & Command::STOP.bits() != 0;
        if let Some(holder) = holder.filter(|_| stopped) {
            self.counters.stops_caught += 1;
            self.release(raw, aside, holder);
            if let Some(context) = self.context_mut(holder) {
                context.stops = context.stops.saturating_add(1);
                context.engaged = false;
            }
            return Some(holder);
        }
        aside.end(raw);
        None
    }
}

/// Reception wrote the client's memory from page `from` to where CURR is now.
fn touch_ring(mirror: &mut super::Mirror, client: ClientId, context: &Context, from: u8) {
    let to = context.card.regs.curr;
    if to != from {
        // A wrap shows as a descent and is taken as "everything".
        mirror.touch(client, u32::from(from) << 8, u32::from(to) << 8);
    }
}

/// Stores a frame in a client's ring as the chip would; QEMU's card overwrites a ring that was
/// filled exactly, which no client needs to suffer from its context too.
fn store(card: &mut Ne2000, frame: &[u8]) -> Reception {
    if !card.regs.stopped() && card.accepts(frame) && !card.fits(frame.len()) {
        return Reception::Full;
    }
    card.receive(frame)
}

impl Context {
    /// A frame from the wire. Behind others that wait, it waits too.
    fn offer(&mut self, frame: &[u8]) {
        if self.backlog.is_empty() {
            match store(&mut self.card, frame) {
                Reception::Stored => self.rx_packets += 1,
                Reception::Filtered | Reception::Stopped => {}
                Reception::Full => self.keep(frame),
            }
        } else {
            self.keep(frame);
        }
    }

    /// A frame that must wait for room. It interrupts all the same: Linux takes some frames, acknowledges, and trusts
    /// that the next one makes it look again.
    fn keep(&mut self, frame: &[u8]) {
        if !self.card.accepts(frame) {
            return;
        }
        self.card.regs.isr |= Interrupt::RECEIVED.bits();
        if !self.backlog.push(frame) {
            self.rx_dropped += 1;
        }
    }

    fn refill(&mut self) {
        while let Some(frame) = self.backlog.peek() {
            match store(&mut self.card, frame) {
                Reception::Stored => self.rx_packets += 1,
                Reception::Filtered => {}
                Reception::Full | Reception::Stopped => return,
            }
            self.backlog.pop();
        }
    }
}
