//! Arithmetic and flags of the operations that compilers use on memory.
//!
//! Source: APM vol 1, 3.1.4 (flags), vol 3 (each instruction).

/// Carry.
pub const CF: u64 = 1 << 0;
/// Parity of the low byte.
pub const PF: u64 = 1 << 2;
/// Carry out of bit 3.
pub const AF: u64 = 1 << 4;
/// Zero.
pub const ZF: u64 = 1 << 6;
/// Sign.
pub const SF: u64 = 1 << 7;
/// Trap after every instruction.
pub const TF: u64 = 1 << 8;
/// Direction of string instructions.
pub const DF: u64 = 1 << 10;
/// Overflow.
pub const OF: u64 = 1 << 11;

const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;

/// An operation on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Addition.
    Add,
    /// Addition with carry.
    Adc,
    /// Subtraction, also comparison.
    Sub,
    /// Subtraction with borrow.
    Sbb,
    /// Bitwise and, also test.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// All bits of a value of `size` bytes.
pub fn mask(size: usize) -> u64 {
    u64::MAX >> (64 - 8 * size.clamp(1, 8))
}

/// The sign bit of a value of `size` bytes.
fn sign(size: usize) -> u64 {
    1 << (8 * size.clamp(1, 8) - 1)
}

/// A value of `size` bytes, sign-extended to 64 bits.
pub fn sign_extend(value: u64, size: usize) -> u64 {
    let shift = 64 - 8 * size.clamp(1, 8);
    ((value << shift) as i64 >> shift) as u64
}

fn result_flags(result: u64, size: usize) -> u64 {
    let mut flags = 0;
    if result == 0 {
        flags |= ZF;
    }
    if result & sign(size) != 0 {
        flags |= SF;
    }
    if (result as u8).count_ones().is_multiple_of(2) {
        flags |= PF;
    }
    flags
}

/// Applies an operation to values of `size` bytes. Returns the result and the new flags.
pub fn apply(operation: Operation, size: usize, left: u64, right: u64, flags: u64) -> (u64, u64) {
    let (left, right) = (left & mask(size), right & mask(size));
    let carry_in = match operation {
        Operation::Adc | Operation::Sbb => flags & CF,
        _ => 0,
    };
    let (result, carry, overflow) = match operation {
        Operation::Add | Operation::Adc => {
            let wide = u128::from(left) + u128::from(right) + u128::from(carry_in);
            let result = wide as u64 & mask(size);
            (result, wide > u128::from(mask(size)), (left ^ result) & (right ^ result) & sign(size) != 0)
        }
        Operation::Sub | Operation::Sbb => {
            let result = left.wrapping_sub(right).wrapping_sub(carry_in) & mask(size);
            let borrow = u128::from(left) < u128::from(right) + u128::from(carry_in);
            (result, borrow, (left ^ right) & (left ^ result) & sign(size) != 0)
        }
        Operation::And => (left & right, false, false),
        Operation::Or => (left | right, false, false),
        Operation::Xor => (left ^ right, false, false),
    };
    let mut new = result_flags(result, size);
    if carry {
        new |= CF;
    }
    if overflow {
        new |= OF;
    }
    let logical = matches!(operation, Operation::And | Operation::Or | Operation::Xor);
    if !logical && (left ^ right ^ result) & 0x10 != 0 {
        new |= AF;
    }
    (result, flags & !ARITHMETIC | new)
}

/// INC and DEC: an addition or subtraction of one that leaves the carry alone.
pub fn step(size: usize, value: u64, up: bool, flags: u64) -> (u64, u64) {
    let operation = if up { Operation::Add } else { Operation::Sub };
    let (result, new) = apply(operation, size, value, 1, flags);
    (result, new & !CF | flags & CF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(operation: Operation, size: usize, left: u64, right: u64, before: u64) -> (u64, u64) {
        let (result, after) = apply(operation, size, left, right, before);
        (result, after & ARITHMETIC)
    }

    #[test]
    fn apm_vol3_flags() {
        use Operation::{Adc, Add, And, Or, Sbb, Sub, Xor};
        assert_eq!(flags(Add, 1, 0x7f, 1, 0), (0x80, OF | SF | AF));
        assert_eq!(flags(Add, 1, 0xff, 1, 0), (0, CF | ZF | AF | PF));
        assert_eq!(flags(Add, 8, u64::MAX, 1, 0), (0, CF | ZF | AF | PF));
        assert_eq!(flags(Adc, 4, 0xffff_ffff, 0, CF), (0, CF | ZF | AF | PF));
        assert_eq!(flags(Sub, 2, 0, 1, 0), (0xffff, CF | SF | AF | PF));
        assert_eq!(flags(Sub, 4, 0x8000_0000, 1, 0), (0x7fff_ffff, OF | AF | PF));
        assert_eq!(flags(Sbb, 1, 0, 0xff, CF), (0, CF | ZF | AF | PF));
        assert_eq!(flags(And, 4, 0xf0, 0x0f, CF | OF), (0, ZF | PF));
        assert_eq!(flags(Or, 1, 0x80, 1, 0), (0x81, SF | PF));
        assert_eq!(flags(Xor, 8, 5, 5, CF), (0, ZF | PF));
        assert_eq!(step(1, 0xff, true, CF), (0, CF | ZF | AF | PF));
        assert_eq!(step(1, 0, false, 0), (0xff, SF | AF | PF));
    }

    #[test]
    fn sign_extension() {
        assert_eq!(sign_extend(0x80, 1), 0xffff_ffff_ffff_ff80);
        assert_eq!(sign_extend(0x7fff, 2), 0x7fff);
        assert_eq!(sign_extend(0x8000_0000, 4), 0xffff_ffff_8000_0000);
    }
}
