//! The status word between the hypervisor, which revokes and issues, and a peer that uses the page as it should, under every interleaving and
//! with the memory ordering of the language: whoever is in a use finds the page, and the address beside the word is that of the page.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use sluice_grants::status::{GRANTED, Word, close, open};
use sluice_memory::{Hpa, PAGE_SIZE};

/// A page, and another one.
const PAGE: Hpa = Hpa::new(PAGE_SIZE);
const OTHER: Hpa = Hpa::new(2 * PAGE_SIZE);

struct Status(AtomicU64);

impl Word for Status {
    fn load(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed))
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        // A locked access orders everything on x86.
        self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

struct Page {
    status: Status,
    shown: AtomicBool,
}

/// A use of the page, as a peer begins and ends it. Returns whether the page was granted.
fn use_once(page: &Page) -> bool {
    let granted = page.status.0.fetch_add(1, Ordering::SeqCst) & GRANTED != 0;
    if granted {
        assert!(page.shown.load(Ordering::Relaxed), "a use finds the page taken away");
    }
    page.status.0.fetch_sub(1, Ordering::SeqCst);
    granted
}

fn page() -> Arc<Page> {
    Arc::new(Page { status: Status(AtomicU64::new(GRANTED)), shown: AtomicBool::new(true) })
}

#[test]
fn a_use_finds_the_page_or_finds_that_it_is_late() {
    loom::model(|| {
        let page = page();
        let peer = page.clone();
        let user = thread::spawn(move || {
            use_once(&peer);
            use_once(&peer);
        });
        if close(&page.status, false) {
            page.shown.store(false, Ordering::Relaxed);
        }
        user.join().unwrap();
        let word = page.status.0.load(Ordering::SeqCst);
        assert_eq!(word, if page.shown.load(Ordering::SeqCst) { GRANTED } else { 0 });
    });
}

#[test]
fn a_page_that_is_issued_again_is_shown_before_it_can_be_used() {
    loom::model(|| {
        let page = page();
        let peer = page.clone();
        let user = thread::spawn(move || use_once(&peer));
        if close(&page.status, false) {
            page.shown.store(false, Ordering::Relaxed);
            page.shown.store(true, Ordering::Relaxed);
            open(&page.status, PAGE);
        }
        user.join().unwrap();
        assert_eq!(page.status.0.load(Ordering::SeqCst), GRANTED);
    });
}

/// A word and an address, and the page that is granted: 0 for none, which is the granter's to use for something else.
struct Entry {
    status: Status,
    address: AtomicU64,
    granted: AtomicU64,
}

impl Word for Entry {
    fn load(&self) -> Option<u64> {
        self.status.load()
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        self.status.replace(old, new)
    }
    fn has_address(&self) -> bool {
        true
    }
    fn tell(&self, page: Option<Hpa>) {
        // A plain store, as the hypervisor makes it.
        self.address.store(page.map_or(0, Hpa::as_u64), Ordering::Relaxed);
    }
}

/// An entry of [`PAGE`].
fn entry() -> Arc<Entry> {
    let page = || AtomicU64::new(PAGE.as_u64());
    Arc::new(Entry { status: Status(AtomicU64::new(GRANTED)), address: page(), granted: page() })
}

/// A use by a device: it works on the page of the address from when that is read until the use ends.
fn use_by_address(entry: &Entry) {
    if entry.status.0.fetch_add(1, Ordering::SeqCst) & GRANTED != 0 {
        let address = entry.address.load(Ordering::Relaxed);
        assert_ne!(address, 0, "a use finds no address");
        let begun = entry.granted.load(Ordering::Relaxed);
        assert_eq!(begun, address, "a use finds the address of a page that is not granted");
        assert_eq!(
            entry.granted.load(Ordering::Relaxed),
            address,
            "a page is taken away in the middle of a use"
        );
    }
    entry.status.0.fetch_sub(1, Ordering::SeqCst);
}

/// The page is taken back, as a revoke does it; whether it was.
fn take_back(entry: &Entry) -> bool {
    let closed = close(entry, false);
    if closed {
        entry.granted.store(0, Ordering::Relaxed);
    }
    closed
}

/// A page is issued.
fn issue(entry: &Entry, page: Hpa) {
    entry.granted.store(page.as_u64(), Ordering::Relaxed);
    open(entry, page);
}

#[test]
fn a_use_finds_the_address_of_the_page_that_is_granted() {
    loom::model(|| {
        let entry = entry();
        let peer = entry.clone();
        let user = thread::spawn(move || {
            use_by_address(&peer);
            use_by_address(&peer);
        });
        // Another page by the same reference.
        if take_back(&entry) {
            issue(&entry, OTHER);
        }
        user.join().unwrap();
        let address = entry.address.load(Ordering::SeqCst);
        assert_eq!(address, entry.granted.load(Ordering::SeqCst));
        assert_eq!(entry.status.0.load(Ordering::SeqCst), GRANTED);
    });
}

#[test]
fn an_address_that_comes_and_goes_is_found_while_it_is_there() {
    loom::model(|| {
        let entry = entry();
        let peer = entry.clone();
        let user = thread::spawn(move || use_by_address(&peer));
        if take_back(&entry) {
            issue(&entry, OTHER);
            // It may be busy, also with a use that is late.
            take_back(&entry);
        }
        user.join().unwrap();
        let granted = entry.granted.load(Ordering::SeqCst);
        assert_eq!(entry.address.load(Ordering::SeqCst), granted);
        assert_eq!(entry.status.0.load(Ordering::SeqCst), if granted == 0 { 0 } else { GRANTED });
    });
}

#[test]
fn two_users_of_one_entry_find_one_page() {
    // All interleavings of three threads take minutes.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let entry = entry();
        let users = [entry.clone(), entry.clone()].map(|peer| thread::spawn(move || use_by_address(&peer)));
        if take_back(&entry) {
            issue(&entry, OTHER);
        }
        users.into_iter().for_each(|user| user.join().unwrap());
        assert_eq!(entry.address.load(Ordering::SeqCst), entry.granted.load(Ordering::SeqCst));
    });
}
