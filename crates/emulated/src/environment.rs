//! What is outside of a [`SharedNic`](crate::SharedNic): guests and their memory, the physical card, the time.

use sluice_nic::dma::Dma;
use sluice_switch::PortId;
use sluice_uplink::Card;

/// Nanoseconds from the end of a call before what it left over is gone on with, or as long as the call took if that is
/// longer: the shared card is free for others at least half of the time.
const PAUSE: u64 = 250_000;

/// How cards reach their guests' memory.
pub trait Guests {
    /// The memory of one guest, by the addresses that it gives its card. It has validated every access.
    type Memory: Dma;

    /// That of the guest at a port; `None`: it is gone.
    fn memory(&mut self, port: PortId) -> Option<Self::Memory>;

    /// The physical card reaches this guest's memory from now on, at the guest's addresses, or the driver's. False if
    /// it cannot be contained there; it reaches the driver's then.
    fn confine_dma(&mut self, to: Option<PortId>) -> bool;
}

/// Everything outside, for the time of one call.
pub struct Environment<'a, G> {
    /// The physical card.
    pub card: Card<'a>,
    /// The guests.
    pub guests: &'a mut G,
    /// Nanoseconds from any fixed origin, at the beginning of the call.
    pub now: u64,
    /// What they are at any time.
    pub clock: &'a dyn Fn() -> u64,
}

impl<G> Environment<'_, G> {
    /// When to go on with what this call, which ends now, leaves over.
    pub(crate) fn after_pause(&self) -> u64 {
        let ended = (self.clock)();
        ended.saturating_add(PAUSE.max(ended.saturating_sub(self.now)))
    }
}
