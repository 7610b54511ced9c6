//! The status word of a reference: whether it is granted, and how many uses of it the peer has under way.
//!
//! The word lies in the peer's memory, so that both change it by locked compare-and-exchange only. Bit 63 ([`GRANTED`]) is the hypervisor's,
//! bits 31:0 count the peer's uses. A peer that begins a use counts itself in and looks at [`GRANTED`] in the same locked access; if it is
//! clear, the peer counts itself out again and leaves the page alone. [`close`] clears [`GRANTED`] only together with a count of zero. So
//! either the hypervisor sees the use and answers that the page is busy, or the peer sees that it is late; locked accesses to one word are in one order.
//! A peer that writes something else harms itself: a forced revoke does not look at the count.

/// The reference is granted, and the page can be reached.
pub const GRANTED: u64 = 1 << 63;
/// The uses that the peer has under way.
pub const USES: u64 = 0xffff_ffff;

/// How often a word is tried that changes all the time. A peer that keeps its own word moving is answered as if it used the page.
const TRIES: u32 = 16;

/// A status word.
pub trait Word {
    /// What it holds; `None` if it cannot be read any more.
    fn load(&self) -> Option<u64>;
    /// Replaces it in one locked access, if it is `old` still. Returns whether it was.
    fn replace(&self, old: u64, new: u64) -> bool;
}

/// Says that the reference is granted: once the page can be reached by everyone who may.
pub fn open(word: &impl Word) {
    change(word, |old| Some(old | GRANTED));
}

/// Says that the reference is granted no more, before the page is taken away. Returns false, and leaves the word as it is, if the peer uses the page
/// and `forced` is not set.
pub fn close(word: &impl Word, forced: bool) -> bool {
    change(word, |old| (forced || old & USES == 0).then_some(old & !GRANTED)) || forced
}

/// Replaces a word by what `new` makes of it. Returns false if that is nothing, or the word never stands still.
pub(crate) fn change(word: &impl Word, mut new: impl FnMut(u64) -> Option<u64>) -> bool {
    for _ in 0..TRIES {
        // A word that is not there any more says nothing.
        let Some(old) = word.load() else { return true };
        let Some(new) = new(old) else { return false };
        if new == old || word.replace(old, new) {
            return true;
        }
    }
    false
}
