//! What the holder may send while the card is shared: the mirror of its transmit pages.
//!
//! TXP is a bit of the unhooked command register, so the check of a transmission runs when its
//! inputs, TPSR and TBCR, are written: these are hooked. A range inside pages 0x40-0x7f is made
//! equal to the client's own memory in the hardware, then the registers are let through. Any other
//! range leaves the command register hooked, so that TXP itself is seen and refused.
//!
//! A frame for another client leaves it hooked, too, and is carried across when TXP is seen: at the other end of the wire there may be
//! somebody who answers in the other's stead (QEMU's user network looks at no station address).

use core::ops::Range;
use sluice_nic::ne2000::registers::{DCR_WORD, Interrupt, SendStatus, port};
use sluice_nic::ne2000::{MAX_FRAME, MEMORY_START, Ne2000};

use super::hardware::{self, Aside, RUN};
use super::{Context, Device, Regime, Unknown};
use crate::access::{ClientId, RawDevice};

/// First card address after the mirror, where the monitor's receive ring begins.
pub(super) const MIRROR_END: u32 = 0x8000;
/// Longest transmission let through: six pages, what an Ethernet frame can need.
pub(super) const MAX_SEND: u16 = 0x600;
/// Shortest: an Ethernet header. A frame of no bytes makes QEMU's back ends stop sending for good,
/// for whoever has the card next too.
const MIN_SEND: u16 = 14;
/// Bytes per unit of bookkeeping.
const GRANULE: u32 = 64;
const GRANULES: usize = ((MIRROR_END - MEMORY_START) / GRANULE) as usize;

const WORDS: usize = GRANULES / u64::BITS as usize;

/// Which granules of the hardware equal a client's memory: that of the last one that sent.
#[derive(Debug)]
pub(super) struct Mirror {
    owner: Option<ClientId>,
    /// A bit for each granule that equals the owner's.
    equal: [u64; WORDS],
}

impl Mirror {
    pub(super) const fn new() -> Self {
        Self { owner: None, equal: [0; WORDS] }
    }

    /// All of it equals this client's memory, or nobody's.
    pub(super) const fn fill(&mut self, owner: Option<ClientId>) {
        self.owner = owner;
        self.equal = [u64::MAX; WORDS];
    }

    /// The client's memory is no more, or changed as a whole.
    pub(super) fn disown(&mut self, client: ClientId) {
        if self.owner == Some(client) {
            self.owner = None;
        }
    }

    /// The client's memory changed between two card addresses; all of it if they are in no order.
    pub(super) fn touch(&mut self, client: ClientId, start: u32, end: u32) {
        if self.owner != Some(client) {
            return;
        }
        if end < start {
            return self.disown(client);
        }
        let from = start.clamp(MEMORY_START, MIRROR_END) - MEMORY_START;
        let to = end.clamp(MEMORY_START, MIRROR_END) - MEMORY_START;
        for (word, bits) in words(from / GRANULE..to.div_ceil(GRANULE)) {
            if let Some(equal) = self.equal.get_mut(word) {
                *equal &= !bits;
            }
        }
    }

    /// The granules from the first to the last of a range that do not equal the client's memory, those between them included;
    /// marks the range as equal.
    fn claim(&mut self, client: ClientId, range: Range<u32>) -> Option<Range<u32>> {
        if self.owner != Some(client) {
            (self.owner, self.equal) = (Some(client), [0; WORDS]);
        }
        let mut stale: Option<Range<u32>> = None;
        for (word, bits) in words(range) {
            let Some(equal) = self.equal.get_mut(word) else { break };
            let missing = bits & !*equal;
            *equal |= bits;
            if missing != 0 {
                let base = word as u32 * u64::BITS;
                let first = stale.map_or(base + missing.trailing_zeros(), |stale| stale.start);
                stale = Some(first..base + u64::BITS - missing.leading_zeros());
            }
        }
        stale
    }
}

/// The bits of a range, word by word.
fn words(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = range;
    let first = start / u64::BITS;
    (first..end.div_ceil(u64::BITS)).map(move |word| {
        let base = word * u64::BITS;
        let low = start.saturating_sub(base);
        let above = (base + u64::BITS).saturating_sub(end);
        (word as usize, u64::MAX << low & u64::MAX >> above)
    })
}

impl Device {
    /// The holder changed TPSR or TBCR, or someone took the card: checks the range they name,
    /// brings it into the hardware and lets the registers through, or leaves commands hooked.
    pub(super) fn vet(&mut self, raw: &mut dyn RawDevice, aside: &mut Aside, client: ClientId) {
        if let Some(Context { card, vetted: true, .. }) = self.show_range(raw, aside, client) {
            hardware::put(raw, port::TPSR, card.regs.tpsr);
            hardware::put_pair(raw, port::TBCR0, card.regs.tbcr);
        }
    }

    /// The same when the holder changed one of these registers: the others are in the hardware if they were let through before.
    pub(super) fn vet_one(
        &mut self,
        raw: &mut dyn RawDevice,
        aside: &mut Aside,
        client: ClientId,
        offset: u16,
        value: u8,
    ) {
        if !self.context(client).is_some_and(|context| context.vetted) {
            self.vet(raw, aside, client);
        } else if let Some(Context { vetted: true, .. }) = self.show_range(raw, aside, client) {
            hardware::put(raw, offset, value);
        }
    }

    /// Checks the range that TPSR and TBCR name and brings it into the hardware, or takes away what the hardware would send.
    fn show_range(
        &mut self,
        raw: &mut dyn RawDevice,
        aside: &mut Aside,
        client: ClientId,
    ) -> Option<&Context> {
        let crosses = self.named_frame(client).is_some_and(|frame| self.is_for_another(client, frame));
        let Self { contexts, mirror, stirred, .. } = self;
        let context = contexts.get_mut(client.index())?.as_deref_mut()?;
        let range = sendable(&context.card).filter(|_| context.unknown.is_empty() && !crosses);
        context.crosses = crosses;
        if range.is_some() != context.vetted {
            context.vetted = range.is_some();
            stirred.hooks = true;
        }
        let Some((start, end)) = range else {
            // Nothing may be left in the registers that a later mistake could send.
            hardware::put_pair(raw, port::TBCR0, 0);
            return Some(context);
        };
        let range = (start - MEMORY_START) / GRANULE..(end - MEMORY_START).div_ceil(GRANULE);
        if let Some(stale) = mirror.claim(client, range) {
            let bytes = (stale.start * GRANULE) as usize..(stale.end * GRANULE) as usize;
            aside.take_engine(raw);
            hardware::write_memory(
                raw,
                RUN,
                (MEMORY_START + stale.start * GRANULE) as u16,
                context.card.ram().get(bytes)?,
            );
        }
        Some(context)
    }

    /// The frame in the client's memory that its registers name, if it may send it.
    fn named_frame(&self, client: ClientId) -> Option<&[u8]> {
        let context = self.context(client).filter(|context| context.unknown.is_empty())?;
        // No station takes a longer one from the wire.
        let (start, end) = sendable(&context.card).filter(|(start, end)| end - start <= MAX_FRAME as u32)?;
        context.card.ram().get((start - MEMORY_START) as usize..(end - MEMORY_START) as usize)
    }

    /// The frame is for one of the other clients that are on-line.
    fn is_for_another(&self, from: ClientId, frame: &[u8]) -> bool {
        let others = (0u8..).zip(&self.contexts).filter(|(slot, _)| ClientId(*slot) != from);
        let mut online =
            others.filter_map(|(_, context)| context.as_deref()).filter(|context| context.online());
        frame
            .first_chunk::<6>()
            .is_some_and(|to| to[0] & 1 == 0 && online.any(|context| context.card.mac() == *to))
    }

    /// What the holder has sent goes to those of the others that it is for: the card does not hear itself, and nobody at the other
    /// end of the wire sends it back.
    pub(super) fn pass_across(&mut self, from: ClientId) {
        let mut scratch = core::mem::take(&mut self.scratch);
        let frame = self.named_frame(from).and_then(|frame| {
            let copy = scratch.get_mut(..frame.len())?;
            copy.copy_from_slice(frame);
            Some(&*copy)
        });
        if let Some(frame) = frame {
            self.deliver(frame, Some(from));
        }
        self.scratch = scratch;
    }

    /// The holder commands a transmission that was not let through. Carries it out if it crosses; returns whether it did.
    pub(super) fn cross(&mut self, client: ClientId) -> bool {
        let crosses = self.context(client).is_some_and(|context| context.crosses)
            && self.named_frame(client).is_some_and(|frame| self.is_for_another(client, frame));
        if crosses {
            self.pass_across(client);
            if let Some(context) = self.context_mut(client) {
                context.card.regs.tsr = SendStatus::SENT.bits();
                context.card.regs.isr |= Interrupt::SENT.bits();
                context.tx_packets += 1;
            }
        }
        crosses
    }

    /// A hooked register write told what was unknown before.
    pub(super) fn learn(&mut self, client: ClientId, offset: u16) {
        if let Some(context) = self.context_mut(client) {
            context.unknown.remove(match offset {
                port::TPSR => Unknown::TPSR,
                port::TBCR0 => Unknown::TBCR0,
                port::TBCR1 => Unknown::TBCR1,
                _ => Unknown::empty(),
            });
        }
    }

    /// An access to the data port of a client's context; keeps the mirror's books.
    pub(super) fn data<R>(
        &mut self,
        client: ClientId,
        writes: bool,
        elements: u64,
        act: impl FnOnce(&mut Ne2000) -> R,
    ) -> Option<R> {
        let context = self.contexts.get_mut(client.index())?.as_deref_mut()?;
        self.stirred.lines |= client.bit();
        let before = context.card.regs.rsar;
        let result = act(&mut context.card);
        let after = context.card.regs.rsar;
        if writes {
            // Each element moves at most four bytes; a greater step means the ring wrapped.
            let plain = u64::from(after.saturating_sub(before)) <= elements.saturating_mul(4);
            let end = if plain { after.saturating_add(4) } else { 0 };
            self.mirror.touch(client, before & !1, if after < before { 0 } else { end });
        }
        Some(result)
    }

    /// What a holder's data access needs to know of the count: it is complete when this
    /// instruction is. The true count was written past the monitor and cannot be read.
    pub(super) fn expect(card: &mut Ne2000, width: u8, elements: u64) {
        let step = match width {
            4 => 4,
            _ if card.regs.dcr & DCR_WORD != 0 => 2,
            _ => 1,
        };
        card.regs.rbcr = u16::try_from(elements.saturating_mul(step)).unwrap_or(u16::MAX);
    }

    pub(super) const fn is_shared_holder(&self, client: ClientId) -> bool {
        matches!(self.regime, Regime::Shared(Some(holder)) if holder.0 == client.0)
    }
}

/// The range that TPSR and TBCR name, if a client may send it: start and end, card addresses.
fn sendable(card: &Ne2000) -> Option<(u32, u32)> {
    let range = card.transmit_range()?;
    let end = range.start + u32::from(range.len);
    (range.start >= MEMORY_START && end <= MIRROR_END && (MIN_SEND..=MAX_SEND).contains(&range.len))
        .then_some((range.start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn the_mirror_copies_what_differs_and_nothing_of_anothers() {
        let [one, other] = [ClientId(0), ClientId(1)];
        let mut mirror = Mirror::new();
        assert_eq!(mirror.claim(one, 10..34), Some(10..34));
        assert_eq!(mirror.claim(one, 10..34), None);
        assert_eq!(mirror.claim(one, 8..140), Some(8..140), "the range is one copy");
        // Bytes of granules 20 and 130: what is between is copied, too.
        for granule in [20, 130] {
            let at = MEMORY_START + granule * GRANULE;
            mirror.touch(one, at + 3, at + 5);
            mirror.touch(other, MEMORY_START, MIRROR_END);
        }
        assert_eq!(mirror.claim(one, 0..4), Some(0..4));
        assert_eq!(mirror.claim(one, 10..20), None);
        assert_eq!(mirror.claim(one, 10..256), Some(20..256));
        assert_eq!(mirror.claim(other, 10..34), Some(10..34));
        assert_eq!(mirror.claim(one, 10..34), Some(10..34), "it was another's meanwhile");
        mirror.touch(one, MIRROR_END, MEMORY_START);
        assert_eq!(mirror.claim(one, 10..34), Some(10..34), "no order: all of it");
        mirror.fill(Some(other));
        assert_eq!(mirror.claim(other, 0..256), None);
        mirror.disown(other);
        assert_eq!(mirror.claim(other, 64..128), Some(64..128));
    }

    #[test]
    fn words_have_the_bits_of_their_range() {
        for (range, expected) in [
            (0..0, vec![]),
            (64..64, vec![]),
            (0..64, vec![(0, u64::MAX)]),
            (63..65, vec![(0, 1 << 63), (1, 1)]),
            (70..72, vec![(1, 0xc0)]),
            (127..256, vec![(1, 1 << 63), (2, u64::MAX), (3, u64::MAX)]),
        ] {
            assert_eq!(words(range).collect::<alloc::vec::Vec<_>>(), expected);
        }
    }
}
