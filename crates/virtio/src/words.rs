//! Numbers of eight bytes in registers of four, and numbers in fields of bytes.

/// Half of a number: 0 is the lower one, 1 the upper one; there are no others.
pub(crate) const fn half(value: u64, select: u32) -> u32 {
    match select {
        0 => value as u32,
        1 => (value >> 32) as u32,
        _ => 0,
    }
}

/// Which half of a register of eight bytes is at this offset.
pub(crate) const fn which(offset: u32) -> u32 {
    (offset / 4) & 1
}

/// Replaces half `select` of a number, 0 or 1.
pub(crate) fn set_half(value: &mut u64, select: u32, half: u32) {
    let shift = select * 32;
    *value = *value & !(0xffff_ffff << shift) | u64::from(half) << shift;
}

/// The number of `width` bytes at `offset` in a field, as far as the field goes.
pub(crate) fn number(field: &[u8], offset: u32, width: u8) -> u32 {
    let bytes = field.iter().skip(offset as usize).take(usize::from(width.min(4)));
    bytes.enumerate().fold(0, |value, (at, byte)| value | u32::from(*byte) << (at * 8))
}
