//! Time-sharing of physical processors.
//!
//! Every virtual processor has a home, the physical one that runs it. Of those that have something to do a home runs the one that
//! has had the least of it, for a slice at most; one that wakes meanwhile takes its place, within the bounds of
//! [`share`](sluice_platform::share).

use crate::cpu::{self, Role};
use crate::domain::Domain;
use crate::domain::vcpu::{BlockReason, RunState, Vcpu, event};
use crate::sync::{Rank, SpinLock, SpinLockGuard};
use crate::x86::MAX_CPUS;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sluice_platform::share::{Claim, Order, Share};

/// A virtual processor, kept alive by its domain.
#[derive(Clone)]
pub struct Slot {
    /// Whose it is.
    pub domain: Arc<Domain>,
    /// The virtual processor.
    pub vcpu: Arc<Vcpu>,
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.vcpu, &other.vcpu)
    }
}

impl Slot {
    /// What it wants of its home at `now`.
    #[inline]
    fn wants(&self, now: u64) -> Want {
        let rests = self.vcpu.rest.until();
        if rests > now {
            return Want::later(rests);
        }
        if !self.domain.may_run() {
            return Want::later(u64::MAX);
        }
        let timer = match self.vcpu.state() {
            RunState::Ready => return Want::RUN,
            RunState::Blocked(BlockReason::Halt) => self.vcpu.wake_at.load(Ordering::SeqCst),
            RunState::Off if self.vcpu.events.load(Ordering::SeqCst) & event::SIPI != 0 => return Want::RUN,
            RunState::Off | RunState::Blocked(BlockReason::Device) => u64::MAX,
        };
        let cards = self.domain.resumes_at();
        if timer <= now {
            Want::RUN
        } else if cards <= now {
            Want { turn: Some(Turn::Cards), then: timer }
        } else {
            Want::later(timer.min(cards))
        }
    }
}

/// What a virtual processor wants of its home.
#[derive(Clone, Copy, Debug)]
struct Want {
    /// What it wants now.
    turn: Option<Turn>,
    /// TSC from which it wants something else, whatever it does until then; `u64::MAX`: never, unless something is [announced](cpu::announce).
    then: u64,
}

impl Want {
    const RUN: Self = Self { turn: Some(Turn::Run), then: u64::MAX };

    fn later(then: u64) -> Self {
        Self { turn: None, then }
    }
}

/// What a virtual processor does in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It runs.
    Run,
    /// It has nothing to run; cards of its domain have something left to do.
    Cards,
}

static HOMES: [SpinLock<Vec<Slot>>; MAX_CPUS] = [const { SpinLock::new(Rank::Home, Vec::new()) }; MAX_CPUS];

/// Makes the virtual processors of a domain known to their homes. They want nothing before [`Domain::run`].
pub fn admit(domain: &Arc<Domain>) {
    for vcpu in &domain.vcpus {
        if let Some(home) = HOMES.get(vcpu.home as usize) {
            home.lock().push(Slot { domain: domain.clone(), vcpu: vcpu.clone() });
        }
    }
}

/// Forgets a domain that has ended. Its processors may still be inside their last slice.
pub fn dismiss(domain: &Arc<Domain>) {
    for home in &HOMES {
        home.lock().retain(|slot| !Arc::ptr_eq(&slot.domain, domain));
    }
}

/// The home of virtual processor `id` of a domain that asks for `wanted`, which counts the processors as [`cpu::counted`] does.
/// Where that says nothing, or names one that runs no guests: the home with the fewest virtual processors for the first, the next ones for the others.
pub fn home(wanted: Option<u8>, id: u32) -> u32 {
    let guests: Vec<u32> = cpu::in_role(Role::Guests).map(|cpu| cpu.index).collect();
    let load = |at: &usize| HOMES[guests[*at] as usize].lock().len();
    let least = || (0..guests.len()).min_by_key(load).unwrap_or(0);
    let wanted =
        wanted.and_then(|nth| cpu::counted().nth(nth.into())).filter(|cpu| cpu.role() == Role::Guests);
    if let Some(cpu) = wanted {
        return cpu.index;
    }
    let nth = (least() + id as usize) % guests.len().max(1);
    guests.get(nth).copied().unwrap_or(cpu::BOOT)
}

/// The virtual processors of a physical one, locked.
pub struct Home(SpinLockGuard<'static, Vec<Slot>>);

/// The home that a physical processor is.
pub fn home_of(processor: u32) -> Home {
    Home(HOMES[processor as usize].lock())
}

impl Home {
    /// The next virtual processor that wants time, what for, and its share as it begins.
    pub fn pick(&self, order: &mut Order, now: u64) -> Option<(Slot, Turn, Share)> {
        let wanting =
            self.0.iter().filter_map(|slot| Some(((slot, slot.wants(now).turn?), slot.vcpu.share())));
        let ((slot, turn), share) = order.next(wanting)?;
        Some((slot.clone(), turn, share))
    }

    /// What the others than `own`, which runs, want of it at `now`, and when somebody wants more.
    pub fn look(&self, own: Option<&Slot>, order: &Order, now: u64) -> Outlook {
        let mut outlook = Outlook { is_lone: self.0.len() <= 1, ..Outlook::NOTHING };
        for slot in self.0.iter() {
            let mut want = slot.wants(now);
            if own == Some(slot) {
                // Its cards go on while it runs. What they want by now is done before it is entered.
                want = Want::later(Some(slot.domain.resumes_at()).filter(|at| *at > now).unwrap_or(u64::MAX));
            }
            if want.turn == Some(Turn::Run) {
                outlook.claim = outlook.claim.min(order.claim(slot.vcpu.share()));
                outlook.is_wanted = true;
            }
            outlook.wakes = outlook.wakes.min(want.then);
        }
        outlook
    }

    /// Whether one wants time at `now` that is not `own`.
    pub fn is_wanted_by_another(&self, own: Option<&Slot>, now: u64) -> bool {
        self.0.iter().filter(|slot| own != Some(slot)).any(|slot| slot.wants(now).turn.is_some())
    }
}

/// What a home has seen of its virtual processors. It holds until something is [announced](cpu::announce), somebody wakes, or another is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    /// Of those who have woken, the first.
    pub claim: Claim,
    /// When a halted virtual processor, or a function of one's domain, wants attention. One that wanted it already waits for the end of the slice.
    pub wakes: u64,
    /// There are no others.
    pub is_lone: bool,
    /// Another wants to run.
    pub is_wanted: bool,
}

impl Outlook {
    /// Nobody wants anything.
    const NOTHING: Self = Self { claim: Claim::NONE, wakes: u64::MAX, is_lone: false, is_wanted: false };

    /// It has not looked: another may want to run.
    pub const OLD: Self = Self { wakes: 0, is_wanted: true, ..Self::NOTHING };
}
