//! Machine checks for what a guest's device refuses, or is refused.

use crate::domain::Answer;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_abi::config::Reaction;

/// What a guest's device refused, or was refused, that the guest's processors were told of by machine checks. It may come of no
/// access (a card transfers when it receives, too, and a disk reads its list when it is its turn): the next one is told of that.
pub struct Told {
    /// They are told, by a deferred error or by one that is none.
    deferred: Option<bool>,
    refused: AtomicU64,
}

impl Told {
    /// Nothing was refused so far.
    pub fn new(reaction: Option<Reaction>) -> Self {
        let deferred = match reaction {
            Some(Reaction::DeferredError) => Some(true),
            Some(Reaction::MachineCheck) => Some(false),
            Some(Reaction::Discard | Reaction::Interrupt) | None => None,
        };
        Self { deferred, refused: AtomicU64::new(0) }
    }

    /// What an access is answered after which so much was refused in all, if somebody has to be told of more.
    pub fn take(&self, refused: impl FnOnce() -> u64) -> Option<Answer> {
        let deferred = self.deferred?;
        let refused = refused();
        (self.refused.swap(refused, Ordering::Relaxed) < refused).then_some(Answer::Failed { deferred })
    }
}
