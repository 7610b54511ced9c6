//! The Internet checksum (RFC 1071), for cards that put it in.

/// Sum of 16-bit words, not folded; a last odd byte counts as a high one. The sum of a frame is far from overflow.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    // A long word is, modulo 0xffff, the sum of its halves.
    let mut quads = bytes.chunks_exact(8);
    let mut sum = 0;
    for quad in quads.by_ref().filter_map(|quad| quad.first_chunk()) {
        let quad = u64::from_be_bytes(*quad);
        sum += (quad >> 32) + (quad & 0xffff_ffff);
    }
    for pair in quads.remainder().chunks(2) {
        let [high, low] = [0, 1].map(|at| u64::from(pair.get(at).copied().unwrap_or(0)));
        sum += high << 8 | low;
    }
    sum
}

/// One's complement addition of the parts of a sum.
pub(crate) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
