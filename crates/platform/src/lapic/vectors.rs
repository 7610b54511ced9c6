//! A set of interrupt vectors, laid out as the IRR, ISR and TMR show it: eight 32-bit words.
//!
//! Source: Intel SDM vol. 3, 11.8.4.

/// A set of the 256 vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors([u32; 8]);

impl Vectors {
    /// Adds `vector`.
    pub fn insert(&mut self, vector: u8) {
        if let Some(word) = self.0.get_mut(usize::from(vector >> 5)) {
            *word |= 1 << (vector & 31);
        }
    }

    /// Removes `vector`.
    pub fn remove(&mut self, vector: u8) {
        if let Some(word) = self.0.get_mut(usize::from(vector >> 5)) {
            *word &= !(1 << (vector & 31));
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
        let (index, word) = self.0.iter().enumerate().rev().find(|(_, word)| **word != 0)?;
        Some((index as u32 * 32 + 31 - word.leading_zeros()) as u8)
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 8]
    }

    /// Register `index` (0-7): vectors `32 * index` and up. Zero beyond.
    pub fn word(&self, index: u32) -> u32 {
        self.0.get(index as usize).copied().unwrap_or(0)
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
