//! The receiving side of a VIF.

use crate::card::Card;
use crate::chain::Memory;
use crate::feature;
use crate::frame::Frame;
use crate::offload::Header;
use crate::vif::{Active, Counters};
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use sluice_nic::e1000::Reception;
use sluice_virtio::{Buffer, Fault, Ring, buffers};

/// Most pieces of memory that a frame is spread over: a driver that offers smaller ones would have others wait.
const MAX_PIECES: usize = 64;

/// Where a VIF receives frames: any engine may bring some.
pub(crate) struct Port<M> {
    memory: M,
    /// Its driver is at work.
    active: Option<Active>,
    ring: Ring,
    /// Its driver has a card in place of queues.
    card: Option<Arc<dyn Card<M>>>,
    /// What was received, and rules that were broken at either queue.
    pub counters: Counters,
}

impl<M: Memory> Port<M> {
    /// One whose driver is not at work yet.
    pub fn new(memory: M, card: Option<Arc<dyn Card<M>>>) -> Self {
        Self { memory, active: None, ring: Ring::default(), card, counters: Counters::default() }
    }

    /// The driver has set its queues up, or they are gone.
    pub fn activate(&mut self, active: Option<Active>) -> Result<(), Fault> {
        self.active = active;
        self.ring = Ring::new(active.is_some_and(Active::has_events));
        // Buffers are looked for when there is a frame.
        active.map_or(Ok(()), |active| self.ring.listen(&active.receive, &self.memory, false))
    }

    /// The driver broke the rules. Returns whether it is known only now.
    pub fn break_down(&mut self) -> bool {
        let is_news = self.active.take().is_some();
        self.counters.faults += u64::from(is_news);
        is_news
    }

    /// Puts a frame into its memory. Returns whether there were buffers for it, and how many pieces of memory were looked at; the driver sees
    /// the frame once that is published.
    pub fn take(&mut self, frame: &Frame<'_, M>) -> Result<(bool, u32), Fault> {
        if let Some(card) = &self.card {
            // Whole and finished, as the directory has it.
            let is_whole = frame.rest.is_none();
            let received = is_whole.then(|| card.receive(&self.memory, frame.start));
            let has_something_to_tell = match received {
                Some(Reception::Stored) => {
                    self.count(frame.len());
                    true
                }
                Some(Reception::Full | Reception::Lost) => {
                    self.counters.missed += 1;
                    true
                }
                Some(Reception::Filtered | Reception::Stopped) | None => false,
            };
            return Ok((has_something_to_tell, 1));
        }
        let Some(active) = self.active else { return Ok((false, 0)) };
        let queue = &active.receive;
        let waiting = self.ring.waiting(queue, &self.memory)?;
        let most = if active.features & feature::MERGEABLE != 0 { MAX_PIECES } else { 1 };
        // What is given back for the frame: nothing, before it is known to fit.
        let mut used = ArrayVec::<(u16, u32), MAX_PIECES>::new();
        let mut header_at = None;
        let (mut done, mut pieces) = (0, 0);
        'buffers: for after in 0..waiting.min(most as u16) {
            let head = self.ring.head(queue, &self.memory, after)?;
            let mut written = 0;
            for buffer in buffers(queue, &self.memory, head) {
                let Buffer { mut address, mut len, writable } = buffer?;
                if !writable {
                    return Err(Fault);
                }
                if pieces == MAX_PIECES as u32 {
                    break 'buffers;
                }
                pieces += 1;
                if header_at.is_none() {
                    len = len.checked_sub(Header::BYTES as u32).ok_or(Fault)?;
                    header_at = Some(address);
                    address = address.checked_add(Header::BYTES as u64).ok_or(Fault)?;
                    written = Header::BYTES as u32;
                }
                let part = len.min(frame.len() - done);
                frame.copy(done, &self.memory, address, part)?;
                (done, written) = (done + part, written + part);
                if done == frame.len() {
                    break;
                }
            }
            // A buffer without room would be taken for ever.
            if written == 0 {
                return Err(Fault);
            }
            let _ = used.try_push((head, written));
            if done == frame.len() {
                break;
            }
        }
        let Some(header_at) = header_at.filter(|_| done == frame.len()) else {
            self.counters.missed += 1;
            return Ok((false, pieces));
        };
        let header = Header { num_buffers: used.len() as u16, ..frame.header };
        sluice_virtio::Memory::write(&self.memory, header_at, &header.bytes())?;
        for &(head, written) in &used {
            self.ring.give(queue, &self.memory, head, written)?;
        }
        self.count(frame.len());
        Ok((true, pieces))
    }

    fn count(&mut self, bytes: u32) {
        self.counters.received += 1;
        self.counters.received_bytes += u64::from(bytes);
    }

    /// Shows the driver what was received. Returns whether it wants to hear of it, and when its card is to be [settled](Card::settle) again.
    pub fn publish(&mut self, now: u64) -> Result<(bool, Option<u64>), Fault> {
        if let Some(card) = &self.card {
            return Ok((false, card.settle(now)));
        }
        let wanted =
            self.active.map_or(Ok(false), |active| self.ring.publish(&active.receive, &self.memory))?;
        Ok((wanted, None))
    }
}
