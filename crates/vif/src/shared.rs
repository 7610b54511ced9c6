//! What the engines of a network have in common: where frames are received.
//!
//! Key type: [`Shared`]. Engines meet nowhere else: what is known of a VIF's send queue is its own engine's. A lock is held for the time of one
//! frame, and nobody who holds one takes another.

use crate::chain::Memory;
use crate::port::Port;
use crate::{MAX_VIFS, VifId, VifSet};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::{Mutex, MutexGuard};

/// The receiving sides of all VIFs of a network.
pub(crate) struct Shared<M> {
    /// [`MAX_VIFS`] of them, too large for a stack.
    ports: Box<[Mutex<Option<Port<M>>>]>,
    /// VIFs whose drivers are at work, by bit. It is cleared by who holds the lock of the VIF's port.
    live: AtomicU64,
}

impl<M: Memory> Shared<M> {
    /// Of a network without VIFs.
    pub fn new() -> Self {
        Self { ports: (0..MAX_VIFS).map(|_| Mutex::new(None)).collect(), live: AtomicU64::new(0) }
    }

    /// The receiving side of a VIF, while no other engine does anything with it.
    pub fn port(&self, id: VifId) -> MutexGuard<'_, Option<Port<M>>> {
        self.ports[id.index() % MAX_VIFS].lock()
    }

    /// VIFs whose drivers are at work.
    pub fn live(&self) -> VifSet {
        VifSet(self.live.load(Ordering::Acquire))
    }

    /// The driver of a VIF broke the rules, at either queue: no engine does anything more for it before it resets its device. Returns whether it
    /// is known only now.
    pub fn break_down(&self, id: VifId, port: &mut Port<M>) -> bool {
        self.set_live(id, false);
        port.break_down()
    }

    /// The driver of a VIF is at work from now on, or is not.
    pub fn set_live(&self, id: VifId, live: bool) {
        if live {
            self.live.fetch_or(id.bit(), Ordering::AcqRel);
        } else {
            self.live.fetch_and(!id.bit(), Ordering::AcqRel);
        }
    }
}
