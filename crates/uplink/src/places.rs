//! Where the bytes of packets lie that wait to be sent: a ring of bytes beside a card's ring of descriptors.
//!
//! Key type: [`Places`]. Packets lie in one piece, in the order in which they are sent, so that a place is free again when the descriptors before it
//! are done. What a descriptor looks like, and when it is done, is its driver's affair (`e1000`, `rtl8139`).

/// Places begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// The descriptors between the oldest one that the card may not be done with and the next free one, and so many bytes.
#[derive(Debug)]
pub(crate) struct Places<const DESCRIPTORS: usize, const BYTES: usize> {
    oldest: usize,
    tail: usize,
    /// Where the bytes of each descriptor's packet begin.
    places: [u32; DESCRIPTORS],
    /// Where those of the next one may.
    free: usize,
}

impl<const DESCRIPTORS: usize, const BYTES: usize> Places<DESCRIPTORS, BYTES> {
    /// Nothing waits.
    pub const fn new() -> Self {
        Self { oldest: 0, tail: 0, places: [0; DESCRIPTORS], free: 0 }
    }

    /// The first descriptor that the card does not have.
    pub const fn tail(&self) -> usize {
        self.tail
    }

    /// Where so many bytes can be put, which take so many descriptors at most. `None`: there is no room now. `is_done` says of a
    /// descriptor whether the card is done with it.
    pub fn place(
        &mut self,
        descriptors: usize,
        bytes: usize,
        is_done: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        self.find(descriptors, bytes).or_else(|| {
            while self.oldest != self.tail && is_done(self.oldest) {
                self.oldest = (self.oldest + 1) % DESCRIPTORS;
            }
            self.find(descriptors, bytes)
        })
    }

    fn find(&self, descriptors: usize, bytes: usize) -> Option<usize> {
        let used = (self.tail + DESCRIPTORS - self.oldest) % DESCRIPTORS;
        if used + descriptors >= DESCRIPTORS {
            return None;
        }
        if used == 0 {
            return (bytes <= BYTES).then_some(0);
        }
        let first = self.places.get(self.oldest).map_or(0, |place| *place as usize);
        // A full ring of bytes must not look like an empty one.
        if self.free > first {
            let fits = BYTES - self.free >= bytes;
            return if fits { Some(self.free) } else { (bytes < first).then_some(0) };
        }
        (bytes < first - self.free).then_some(self.free)
    }

    /// The card gets the next descriptor, for a packet whose bytes begin at `place`: which one that is.
    pub fn push(&mut self, place: usize) -> usize {
        let index = self.tail;
        if let Some(known) = self.places.get_mut(index) {
            *known = place as u32;
        }
        self.tail = (index + 1) % DESCRIPTORS;
        index
    }

    /// The packet at `place`, of so many bytes, has all its descriptors.
    pub const fn end(&mut self, place: usize, bytes: usize) {
        self.free = (place + bytes).next_multiple_of(ALIGNMENT);
    }
}
