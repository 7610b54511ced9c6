//! Receive isolation: the monitor's own ring in the hardware, and who gets which frame.
//!
//! While the card is shared it receives promiscuously into pages 0x80-0xbf. The monitor drains that
//! ring when the card interrupts, and puts each frame into the virtual rings it belongs in:
//! a unicast frame into the ring of the client with that address, a broadcast or multicast frame
//! into every ring whose own filter lets it pass, any other nowhere. A client's promiscuous bit
//! widens nothing. What a client sends to another, or to all, goes into the others' rings in the same way.

use sluice_nic::ne2000::Reception;
use sluice_nic::ne2000::registers::{Command, Interrupt, port};

use super::hardware::{Aside, get, put};
use super::{Context, Device, Regime};
use crate::access::{ClientId, RawDevice};

pub(super) const RING_START: u8 = 0x80;
pub(super) const RING_STOP: u8 = 0xc0;

impl Device {
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
                if status.contains(Interrupt::SENT) {
                    self.pass_across(holder);
                }
            }
            let news = Interrupt::RECEIVED | Interrupt::RECEIVE_ERROR | Interrupt::OVERFLOW;
            if status.intersects(news) {
                self.drain(raw, aside);
            }
            if status.contains(Interrupt::OVERFLOW) {
                // DP8390D 7.3: a receiver that overflowed must be stopped and restarted.
                self.ring.reopen(raw);
                self.counters.ring_overruns += 1;
            }
        }
    }

    /// Empties the ring into the clients' rings.
    fn drain(&mut self, raw: &mut dyn RawDevice, aside: &mut Aside) {
        aside.take_engine(raw);
        let (mut ring, mut scratch) = (self.ring, core::mem::take(&mut self.scratch));
        let sound = ring.drain(raw, &mut scratch, &mut |frame| {
            let claimed = self.deliver(frame, None);
            self.counters.unclaimed += u64::from(!claimed);
        });
        self.counters.ring_overruns += u64::from(!sound);
        (self.ring, self.scratch) = (ring, scratch);
    }

    /// Gives a frame to those it is for, but not to whom it is from. Returns whether it is for anybody.
    pub(super) fn deliver(&mut self, frame: &[u8], from: Option<ClientId>) -> bool {
        let Some(destination) = frame.first_chunk::<6>() else { return true };
        let group = destination[0] & 1 != 0;
        let mut claimed = group;
        for (slot, context) in (0u8..).zip(&mut self.contexts) {
            let Some(context) = context.as_deref_mut().filter(|context| context.online()) else {
                continue;
            };
            if from == Some(ClientId(slot)) {
                continue;
            }
            if group || context.card.mac() == *destination {
                claimed = true;
                self.stirred.lines |= 1 << slot;
                let page = context.card.regs.curr;
                context.offer(frame);
                touch_ring(&mut self.mirror, ClientId(slot), context, page);
            }
        }
        claimed
    }

    /// The client made room, or came on-line.
    pub(super) fn refill(&mut self, client: ClientId) {
        let Some(context) = self.contexts.get_mut(client.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        self.stirred.lines |= client.bit();
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
    /// it, who is off-line then and has lost the card.
    pub(crate) fn watch(&mut self, raw: &mut dyn RawDevice) {
        let Regime::Shared(holder) = self.regime else { return };
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
            return;
        }
        aside.end(raw);
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

impl Context {
    /// A frame from the wire. Behind others that wait, it waits too.
    fn offer(&mut self, frame: &[u8]) {
        if self.backlog.is_empty() {
            match self.card.receive_whole(frame) {
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
            match self.card.receive_whole(frame) {
                Reception::Stored => self.rx_packets += 1,
                Reception::Filtered => {}
                Reception::Full | Reception::Stopped => return,
            }
            self.backlog.pop();
        }
    }
}
