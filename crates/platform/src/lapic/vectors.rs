//! A set of interrupt vectors, laid out as the IRR, ISR and TMR show it: eight 32-bit words.
//!
//! Source: Intel SDM vol. 3, 11.8.4.

/// A set of the 256 vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors {
    words: [u32; 8],
    /// Bit n: word n has a vector. Every entry into a guest asks for it.
    used: u8,
}

impl Vectors {
    /// Adds `vector`.
    pub fn insert(&mut self, vector: u8) {
        let index = vector >> 5;
        if let Some(word) = self.words.get_mut(usize::from(index)) {
            *word |= 1 << (vector & 31);
            self.used |= 1 << index;
        }
    }

    /// Removes `vector`.
    pub fn remove(&mut self, vector: u8) {
        let index = vector >> 5;
        if let Some(word) = self.words.get_mut(usize::from(index)) {
            *word &= !(1 << (vector & 31));
            if *word == 0 {
                self.used &= !(1 << index);
            }
        }
    }

    /// Adds or removes `vector`.
    pub fn set(&mut self, vector: u8, present: bool) {
        if present { self.insert(vector) } else { self.remove(vector) }
    }

    /// Is `vector` in the set?
    pub fn contains(&self, vector: u8) -> bool {
        self.word(u32::from(vector >> 5)) & 1 << (vector & 31) != 0
    }

    /// The highest vector, which is the one of highest priority.
    pub fn highest(&self) -> Option<u8> {
        let index = self.used.checked_ilog2()?;
        let word = self.word(index);
        Some((index * 32 + 31 - word.leading_zeros()) as u8)
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Register `index` (0-7): vectors `32 * index` and up. Zero beyond.
    pub fn word(&self, index: u32) -> u32 {
        self.words.get(index as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(changes: Vec<(u8, bool)>) {
            let (mut set, mut model) = (Vectors::default(), BTreeSet::new());
            for (vector, present) in changes {
                set.set(vector, present);
                if present { model.insert(vector); } else { model.remove(&vector); }
                prop_assert_eq!(set.highest(), model.last().copied());
                prop_assert_eq!(set.is_empty(), model.is_empty());
            }
            for vector in 0..=255 {
                prop_assert_eq!(set.contains(vector), model.contains(&vector));
            }
        }
    }
}
