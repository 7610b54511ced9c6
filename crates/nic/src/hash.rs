//! The multicast filter's hash: the upper six bits of the Ethernet CRC-32 of the address.
//!
//! Source: National DP8390D data sheet, section 7 (Multicast Address Registers).

/// Which of the 64 filter bits a multicast destination selects, `0..64`.
pub fn multicast_index(address: &[u8; 6]) -> u8 {
    const POLYNOMIAL: u32 = 0x04c1_1db7;
    let mut crc = u32::MAX;
    for &byte in address {
        for bit in 0..8 {
            let feedback = (crc >> 31) ^ u32::from(byte >> bit & 1);
            crc <<= 1;
            if feedback != 0 {
                crc ^= POLYNOMIAL;
            }
        }
    }
    (crc >> 26) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_addresses_hash_as_linux_computes_them() {
        // ether_crc() >> 26 of all-ones and of two well-known groups.
        assert_eq!(multicast_index(&[0xff; 6]), reference(&[0xff; 6]));
        assert_eq!(multicast_index(&[0x33, 0x33, 0, 0, 0, 1]), reference(&[0x33, 0x33, 0, 0, 0, 1]));
        assert_eq!(multicast_index(&[1, 0, 0x5e, 0, 0, 1]), reference(&[1, 0, 0x5e, 0, 0, 1]));
    }

    /// The same CRC computed the other way round: reflected, then bit-reversed.
    fn reference(address: &[u8]) -> u8 {
        let mut crc = u32::MAX;
        for &byte in address {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        (crc.reverse_bits() >> 26) as u8
    }
}
