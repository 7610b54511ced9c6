//! What IDENTIFY DEVICE says to a guest.
//!
//! Source: ATA-6, section 8.15, table 27.

use crate::Slice;

/// The data of IDENTIFY DEVICE.
pub type Words = [u16; 256];

/// What passes as the physical disk has it: word, and which of its bits.
const KEPT: [(usize, u16); 14] = [
    // LBA and DMA supported; no standby timers, IORDY as it is.
    (49, 0x0f00),
    // Words 64-70 and 88 are valid; 54-58 are not.
    (53, 0x0006),
    // Multiword DMA, PIO modes and their cycle times.
    (63, 0xffff),
    (64, 0x00ff),
    (65, 0xffff),
    (66, 0xffff),
    (67, 0xffff),
    (68, 0xffff),
    // Versions.
    (80, 0xffff),
    (81, 0xffff),
    // Write cache.
    (82, 0x0020),
    (85, 0x0020),
    // Ultra DMA, and what the reset found out about the cable.
    (88, 0xffff),
    (93, 0xffff),
];

/// Flush, flush with 48-bit addresses, 48-bit addresses: bits of words 83 and 86.
const ADDRESSES: u16 = 1 << 12 | 1 << 13 | 1 << 10;

/// A guest's identification: its slice's capacity, its own serial number, and no feature that is not allowed.
pub fn filter(physical: &Words, slice: &Slice, serial: &[u8; 20]) -> Words {
    let mut words = [0; 256];
    for (word, bits) in KEPT {
        words[word] = physical[word] & bits;
    }
    let sectors = slice.sectors();
    words[1] = (sectors / (16 * 63)).min(16_383) as u16;
    words[3] = 16;
    words[6] = 63;
    // Strings have the first character in the high byte.
    for (word, pair) in words[10..20].iter_mut().zip(serial.chunks_exact(2)) {
        *word = u16::from_be_bytes([pair[0], pair[1]]);
    }
    words[23..47].copy_from_slice(&physical[23..47]);
    // No READ MULTIPLE: how many sectors it moves is a state of the physical disk.
    words[47] = 0x8000;
    let short = sectors.min(0x0fff_ffff) as u32;
    (words[60], words[61]) = (short as u16, (short >> 16) as u16);
    words[83] = 0x4000 | physical[83] & ADDRESSES;
    words[84] = 0x4000;
    words[86] = physical[86] & ADDRESSES;
    words[87] = 0x4000;
    if physical[83] & 1 << 10 != 0 {
        for (index, word) in words[100..104].iter_mut().enumerate() {
            *word = (sectors >> (16 * index)) as u16;
        }
    }
    words
}

/// The capacity that a driver takes from an identification, in sectors.
pub fn capacity(words: &Words) -> u64 {
    let number = |range: core::ops::Range<usize>| {
        words[range].iter().rev().fold(0, |number, &word| number << 16 | u64::from(word))
    };
    if words[83] & 1 << 10 != 0 { number(100..104) } else { number(60..62) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERIAL: &[u8; 20] = b"SLICE-0             ";

    #[test]
    fn a_guest_sees_its_slice_as_the_whole_disk() {
        let slice = Slice::new(2048, 0x1_2345_6789, 1 << 40).expect("fits");
        let words = filter(&[0xffff; 256], &slice, SERIAL);
        assert_eq!(capacity(&words), 0x1_2345_6789);
        assert_eq!((words[60], words[61]), (0xffff, 0x0fff));
        assert_eq!(words[10], u16::from_be_bytes(*b"SL"));
        let mut old = [0xffff; 256];
        old[83] = 0x4000;
        let slice = Slice::new(2048, 1000, 1 << 40).expect("fits");
        assert_eq!(capacity(&filter(&old, &slice, SERIAL)), 1000);
    }

    #[test]
    fn nothing_is_offered_that_would_be_aborted() {
        let slice = Slice::new(0, 1000, 1000).expect("fits");
        let words = filter(&[0xffff; 256], &slice, SERIAL);
        // SMART, security, removable, host protected area, microcode, overlay, power-up, AAM.
        assert_eq!(words[82] & !0x0020, 0);
        assert_eq!(words[83], 0x7400);
        assert_eq!(
            (words[84], words[59], words[75], words[76], words[106], words[128]),
            (0x4000, 0, 0, 0, 0, 0)
        );
        assert_eq!(words[47], 0x8000);
    }
}
