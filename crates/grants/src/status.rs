//! The status word of a reference: whether it is granted, and how many uses of it the peer has under way.
//!
//! The word lies in the peer's memory, so that both change it by locked compare-and-exchange only. Bit 63 ([`GRANTED`]) is the hypervisor's,
//! bits 31:0 count the peer's uses. A peer that begins a use counts itself in and looks at [`GRANTED`] in the same locked access; if it is
//! clear, the peer counts itself out again and leaves the page alone. [`close`] clears [`GRANTED`] only together with a count of zero. So
//! either the hypervisor sees the use and answers that the page is busy, or the peer sees that it is late; locked accesses to one word are in one order.
//! A peer that writes something else harms itself: a forced revoke does not look at the count.
//!
//! # The address beside it
//!
//! Where no IOMMU stands before a device of the peer's, the word is half an entry of what the source calls a software I/O translation table: the other
//! half is the machine address of the page, by which the peer programs the device ([`Word::tell`]). The hypervisor alone writes it: [`open`] before it sets
//! [`GRANTED`], [`close`] clears it after it has cleared [`GRANTED`]. The peer reads it between the beginning and the end of a use, and ends the use
//! when the device is done.
//!
//! A use never sees the address of another page, nor 0. Let it begin, and find [`GRANTED`]: in the one order of locked accesses, its addition comes after
//! that of an [`open`] and before the next [`close`] that succeeds. The address that this [`open`] wrote was there before its locked access. No [`close`]
//! succeeds from then on before the count is zero again, which the peer sees to after its last look; only then is the address cleared, and another written.
//!
//! This holds for as long as nobody closes an entry by force. Nothing but the use that is counted stops such a device: by an IOMMU a page can be taken away in the
//! middle of a transfer, here the transfer would go on in what is somebody else's by then. So a granter cannot force an entry with an address
//! ([`Error::Busy`](crate::Error::Busy)). The end of a granter does, since it waits for nobody: a peer sees its uses without [`GRANTED`] then.

use sluice_memory::Hpa;

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

    /// Whether the machine address of the page is beside it.
    fn has_address(&self) -> bool {
        false
    }

    /// Writes the address that is beside it, 0 for that of no page.
    fn tell(&self, _: Option<Hpa>) {}
}

/// Says that the reference is granted: once the page can be reached by everyone who may.
pub fn open(word: &impl Word, page: Hpa) {
    word.tell(Some(page));
    change(word, |old| Some(old | GRANTED));
}

/// Says that the reference is granted no more, before the page is taken away. Returns false, and leaves the word as it is, if the peer uses the page
/// and `forced` is not set.
pub fn close(word: &impl Word, forced: bool) -> bool {
    let closed = change(word, |old| (forced || old & USES == 0).then_some(old & !GRANTED)) || forced;
    if closed {
        word.tell(None);
    }
    closed
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
