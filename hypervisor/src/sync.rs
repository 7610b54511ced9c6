//! Locks for code that runs with interrupts off.
//!
//! [`SpinLock`] hands itself out in the order of arrival (a ticket lock), so that no processor starves.
//! Nothing here disables interrupts: hypervisor code runs with IF=0, and an interrupt handler that runs in a
//! window ([`crate::cpu::with_interrupts_window`]) must not find a lock of the interrupted code held: open no
//! window with a lock held.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

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

    fn acquire(&self) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != ticket {
            core::hint::spin_loop();
        }
    }

    fn try_acquire(&self) -> bool {
        let ticket = self.serving.load(Ordering::Acquire);
        self.next
            .compare_exchange(ticket, ticket.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

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

    fn lock(&self) {
        self.acquire();
    }

    fn try_lock(&self) -> bool {
        self.try_acquire()
    }

    unsafe fn unlock(&self) {
        self.release();
    }
}

/// A value behind a fair spin lock.
pub struct SpinLock<T: ?Sized> {
    ticket: RawTicket,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives `&mut T` to one processor at a time, which is sending T between processors.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}
// SAFETY: moving the lock moves the value, which `T: Send` allows.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { ticket: RawTicket::unlocked(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits for the lock. Not reentrant: a second `lock` by the holder never returns.
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        self.ticket.acquire();
        SpinLockGuard { lock: self }
    }

    /// Takes the lock if it is free this moment.
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        // Not `then_some`: a guard made and dropped without the lock would release another holder's.
        self.ticket.try_acquire().then(|| SpinLockGuard { lock: self })
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
    lock: &'a SpinLock<T>,
}

impl<T: ?Sized> Deref for SpinLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard exists only while its lock is held, so nobody else has a reference to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference through the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinLockGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.ticket.release();
    }
}
