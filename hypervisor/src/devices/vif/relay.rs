//! Signals of a network that go by way of a controller domain, and are the hypervisor's to pass on when there is none at work.
//!
//! Key type: [`Relay`]. Engines say whose drivers are to be signalled, the controller is told, and its word has the signals passed on. What it owes is
//! kept where it does not reach ([`Owed`]): of its word only that is believed. When it ends, what it owes is passed on at once, and engines signal by
//! themselves again.

use crate::sync::{Rank, SpinLock};
use alloc::sync::{Arc, Weak};
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_vif::{Doorbell, MAX_VIFS, Owed, VifId, VifSet};

/// Who drives a VIF. It may be called with the lock of an engine held.
pub trait Member: Send + Sync {
    /// Its driver is to be signalled: buffers of this queue were used.
    fn used(&self, queue: u16);
    /// Its driver broke the rules: nothing more is done for it before it resets its device.
    fn broke(&self);
}

/// Who passes signals on. It is called with the lock of an engine held.
pub trait Controller: Send + Sync {
    /// Drivers are to be signalled, of which it has not been told.
    fn tell(&self, queue: u16, vifs: VifSet);
}

/// The signals of a network.
pub struct Relay {
    state: SpinLock<State>,
    /// Signals that the controller has passed on, and words of it for which nothing was passed on.
    passed: AtomicU64,
    refused: AtomicU64,
    /// What it was told of.
    told: AtomicU64,
}

struct State {
    owed: Owed,
    /// The controller, while it is at work.
    controller: Option<Weak<dyn Controller>>,
    members: [Option<Weak<dyn Member>>; MAX_VIFS],
}

impl State {
    fn members(&self, vifs: VifSet) -> ArrayVec<Arc<dyn Member>, MAX_VIFS> {
        vifs.iter().filter_map(|vif| self.members.get(vif.index())?.as_ref()?.upgrade()).collect()
    }
}

impl Relay {
    /// One without a controller yet.
    pub fn new() -> Self {
        let state = State { owed: Owed::default(), controller: None, members: [const { None }; MAX_VIFS] };
        Self {
            state: SpinLock::new(Rank::Relay, state),
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    /// Who is signalled for a VIF from now on. Of one that it was before nothing is owed any more.
    pub fn set_member(&self, vif: VifId, member: Option<Weak<dyn Member>>) {
        let mut state = self.state.lock();
        state.owed.forget(vif);
        state.members[vif.index()] = member;
    }

    /// Drivers are to be signalled. False: no controller is at work, and whoever asks signals them.
    pub fn owe(&self, queue: u16, vifs: VifSet) -> bool {
        if vifs.is_empty() {
            return true;
        }
        let mut state = self.state.lock();
        let Some(controller) = state.controller.as_ref().and_then(Weak::upgrade) else { return false };
        let news = state.owed.owe(queue, vifs);
        drop(state);
        // If it ends before it is told, what it owes has been passed on.
        if !news.is_empty() {
            self.told.fetch_add(u64::from(news.len()), Ordering::Relaxed);
            controller.tell(queue, news);
        }
        true
    }

    /// The controller has said whose signals are to be passed on.
    pub fn pass(&self, word: u32) {
        let Some(Doorbell { queue, vifs }) = Doorbell::parse(word) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut state = self.state.lock();
        let passed = state.owed.pass(queue, vifs);
        let members = state.members(passed);
        drop(state);
        self.refused.fetch_add(u64::from(vifs.len() - passed.len()), Ordering::Relaxed);
        self.passed.fetch_add(members.len() as u64, Ordering::Relaxed);
        members.iter().for_each(|member| member.used(queue));
    }

    /// A controller may have begun to work, or have ended. `who` says who is at work now, and is asked under the lock: so the last answer holds, whichever
    /// processors ask. Without a controller, what was owed is passed on.
    pub fn refresh(&self, who: impl FnOnce() -> Option<Weak<dyn Controller>>) {
        let mut state = self.state.lock();
        state.controller = who();
        if state.controller.is_some() {
            return;
        }
        let owed = state.owed.settle().map(|(queue, vifs)| (queue, state.members(vifs)));
        drop(state);
        for (queue, members) in &owed {
            members.iter().for_each(|member| member.used(*queue));
        }
    }

    /// What happened, for a report.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("controller_told", count(&self.told)),
            ("controller_passed", count(&self.passed)),
            ("controller_refused", count(&self.refused)),
        ]
    }
}
