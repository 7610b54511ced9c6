//! The receiving side of a VIF.

use crate::active::Active;
use crate::card::Card;
use crate::chain::Memory;
use crate::frame::Frame;
use crate::lane::Lane;
use crate::vif::Counters;
use alloc::sync::Arc;
use sluice_nic::e1000::Reception;
use sluice_virtio::Fault;

/// Where a VIF receives frames: any engine may bring some.
pub(crate) struct Port<M> {
    memory: M,
    /// Where its driver offers buffers, if it is at work.
    lane: Option<Lane>,
    /// Its driver has a card in place of queues.
    card: Option<Arc<dyn Card<M>>>,
    /// What was received, and rules that were broken at either queue.
    pub counters: Counters,
}

impl<M: Memory> Port<M> {
    /// One whose driver is not at work yet.
    pub fn new(memory: M, card: Option<Arc<dyn Card<M>>>) -> Self {
        Self { memory, lane: None, card, counters: Counters::default() }
    }

    /// The driver has set its queues up, or they are gone.
    pub fn activate(&mut self, active: Option<Active>) -> Result<(), Fault> {
        self.lane = active.map(Lane::receive);
        // Buffers are looked for when there is a frame.
        self.lane.map_or(Ok(()), |lane| lane.listen(&self.memory, false))
    }

    /// The driver broke the rules. Returns whether it is known only now.
    pub fn break_down(&mut self) -> bool {
        let is_news = self.lane.take().is_some();
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
        let Some(lane) = &mut self.lane else { return Ok((false, 0)) };
        let (placed, pieces) = lane.put(&self.memory, frame)?;
        if placed {
            self.count(frame.len());
        } else {
            self.counters.missed += 1;
        }
        Ok((placed, pieces))
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
        let wanted = self.lane.as_mut().map_or(Ok(false), |lane| lane.publish(&self.memory))?;
        Ok((wanted, None))
    }
}
