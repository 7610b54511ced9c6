//! Locks for code that runs with interrupts off.
//!
//! [`SpinLock`] hands itself out in the order of arrival (a ticket lock), so that no processor starves.
//! Nothing here disables interrupts: hypervisor code runs with IF=0, and an interrupt handler that runs in a
//! window ([`crate::cpu::with_interrupts_window`]) must not find a lock of the interrupted code held: open no
//! window with a lock held.
//!
//! Every lock has a [`Rank`]. With the feature `lock-order` a processor that takes one out of order panics, whether or not
//! another processor would have been in its way.

mod order;

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use order::{Held, Tag};

use lock_api::{Mutex, MutexGuard};
pub use order::Rank;
pub use spin::Once;

/// The lock word: who is served and which ticket is next.
pub struct RawTicket {
    next: AtomicU32,
    serving: AtomicU32,
}

impl RawTicket {
    const fn unlocked() -> Self {
        Self { next: AtomicU32::new(0), serving: AtomicU32::new(0) }
    }

    #[inline]
    fn acquire(&self) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != ticket {
            core::hint::spin_loop();
        }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        let ticket = self.serving.load(Ordering::Acquire);
        self.next
            .compare_exchange(ticket, ticket.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn release(&self) {
        // Only the holder writes `serving`, so a plain increment loses nothing.
        self.serving.store(self.serving.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

// SAFETY: `acquire` returns only to the holder of the ticket being served, and the next ticket is served only
// after `release`, which the holder calls: at most one holder exists at a time, with acquire/release ordering.
unsafe impl lock_api::RawMutex for RawTicket {
    #[allow(clippy::declare_interior_mutable_const)] // The constant is a seed for new locks only.
    const INIT: Self = Self::unlocked();
    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.acquire();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_acquire()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.release();
    }
}

/// A value behind a fair spin lock.
pub struct SpinLock<T: ?Sized> {
    tag: Tag,
    mutex: Mutex<RawTicket, T>,
}

impl<T> SpinLock<T> {
    /// An unlocked lock around `value`, which may be taken while locks before `rank` are held.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { tag: Tag::new(rank), mutex: Mutex::from_raw(RawTicket::unlocked(), value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits for the lock. Not reentrant: a second `lock` by the holder never returns.
    #[inline]
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        self.tag.check();
        SpinLockGuard { value: self.mutex.lock(), _held: self.tag.hold() }
    }

    /// Takes the lock if it is free this moment. Nobody is waited for, so that any other may be held.
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        let value = self.mutex.try_lock()?;
        Some(SpinLockGuard { value, _held: self.tag.hold() })
    }

    /// Takes the lock, or gives up after `spins` tries: for the panic path, where the holder may be stopped.
    pub fn lock_for(&self, spins: u32) -> Option<SpinLockGuard<'_, T>> {
        (0..spins).find_map(|_| {
            let guard = self.try_lock();
            if guard.is_none() {
                core::hint::spin_loop();
            }
            guard
        })
    }
}

/// Access to the value; released when dropped.
pub struct SpinLockGuard<'a, T: ?Sized> {
    value: MutexGuard<'a, RawTicket, T>,
    _held: Held,
}

impl<T: ?Sized> Deref for SpinLockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for SpinLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
