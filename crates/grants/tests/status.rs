//! The status word between the hypervisor, which revokes and issues, and a peer that uses the page as it should, under every interleaving and
//! with the memory ordering of the language: whoever is in a use finds the page.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use sluice_grants::status::{GRANTED, Word, close, open};

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
            open(&page.status);
        }
        user.join().unwrap();
        assert_eq!(page.status.0.load(Ordering::SeqCst), GRANTED);
    });
}
