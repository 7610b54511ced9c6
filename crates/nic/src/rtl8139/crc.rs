//! The frame check sequence, which the card stores behind each received frame.
//!
//! Source: IEEE 802.3, section 3.2.9. Four bytes a step, by four tables.

const TABLES: [[u32; 256]; 4] = tables();

const fn tables() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][index] = crc;
        index += 1;
    }
    let mut table = 1;
    while table < 4 {
        let mut index = 0;
        while index < 256 {
            let before = tables[table - 1][index];
            tables[table][index] = before >> 8 ^ tables[0][before as usize & 0xff];
            index += 1;
        }
        table += 1;
    }
    tables
}

/// The check sequence of a frame; it is sent with the lowest byte first.
pub(super) fn frame_check(frame: &[u8]) -> u32 {
    let [first, second, third, fourth] = &TABLES;
    let at = |table: &[u32; 256], byte: u32| table[(byte & 0xff) as usize];
    let mut words = frame.chunks_exact(4);
    let mut crc = u32::MAX;
    for word in words.by_ref() {
        let [a, b, c, d] = word else { break };
        let mixed = crc ^ u32::from_le_bytes([*a, *b, *c, *d]);
        crc = at(fourth, mixed) ^ at(third, mixed >> 8) ^ at(second, mixed >> 16) ^ at(first, mixed >> 24);
    }
    for byte in words.remainder() {
        crc = crc >> 8 ^ at(first, crc ^ u32::from(*byte));
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_value() {
        assert_eq!(frame_check(b"123456789"), 0xcbf4_3926);
        assert_eq!(frame_check(b""), 0);
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut crc = u32::MAX;
            for byte in &bytes {
                for bit in 0..8 {
                    let feedback = (crc ^ u32::from(*byte) >> bit) & 1;
                    crc = (crc >> 1) ^ (feedback * 0xedb8_8320);
                }
            }
            prop_assert_eq!(frame_check(&bytes), !crc);
        }
    }
}
