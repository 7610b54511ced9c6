//! XCR0: which components of extended state a guest may switch on.
//!
//! Source: SDM vol. 1, 13.3 (the groups in which components come); SDM vol. 2 and APM vol. 4, XSETBV (what raises #GP).

use crate::GeneralProtection;

const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
const BNDREGS: u64 = 1 << 3;
const BNDCSR: u64 = 1 << 4;
const OPMASK: u64 = 1 << 5;
const ZMM_HI256: u64 = 1 << 6;
const HI16_ZMM: u64 = 1 << 7;
const PKRU: u64 = 1 << 9;
const AVX512: u64 = OPMASK | ZMM_HI256 | HI16_ZMM;
/// What this file knows the rules of. Bit 8 is of IA32_XSS, not of XCR0.
const KNOWN: u64 = X87 | SSE | AVX | BNDREGS | BNDCSR | AVX512 | PKRU;

/// A component, and the others that must be on with it.
const NEEDS: [(u64, u64); 6] = [
    (AVX, SSE),
    (BNDREGS, BNDCSR),
    (BNDCSR, BNDREGS),
    (OPMASK, AVX | AVX512),
    (ZMM_HI256, AVX | AVX512),
    (HI16_ZMM, AVX | AVX512),
];

/// Checks XSETBV of extended control register `index` at privilege level `cpl`, on a processor that shows its guest these
/// `components` in CPUID leaf 0xD ([`crate::cpuid::state_components`]). A value that passes is one that the processor takes.
///
/// # Errors
/// The instruction raises #GP(0).
pub fn check(cpl: u8, index: u32, value: u64, components: u64) -> Result<(), GeneralProtection> {
    let complete = NEEDS.iter().all(|(component, needs)| value & component == 0 || value & needs == *needs);
    let accepted =
        cpl == 0 && index == 0 && value & X87 != 0 && value & !(components & KNOWN) == 0 && complete;
    if accepted { Ok(()) } else { Err(GeneralProtection) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manual's list, field by field as it is printed.
    fn manual(value: u64, components: u64) -> bool {
        let bit_0_is_clear = value & 1 == 0;
        let avx_without_sse = value >> 1 & 0b11 == 0b10;
        let half_of_mpx = matches!(value >> 3 & 0b11, 0b01 | 0b10);
        let avx512 = value >> 5 & 0b111;
        let part_of_avx512 = !matches!(avx512, 0b000 | 0b111);
        let avx512_without_avx = avx512 == 0b111 && value >> 1 & 0b11 != 0b11;
        let not_in_xcr0 = value >> 8 & 1 == 1;
        let lacking = (0..64).any(|bit| value >> bit & 1 == 1 && components >> bit & 1 == 0);
        !(bit_0_is_clear
            || avx_without_sse
            || half_of_mpx
            || part_of_avx512
            || avx512_without_avx
            || not_in_xcr0
            || lacking)
    }

    #[test]
    fn every_value_on_processors_of_every_kind() {
        // x87 and SSE; AVX; AVX with MPX; with PKRU; AVX-512; Skylake-X; all that there is; parts that no processor has.
        for components in [0x3, 0x7, 0x1f, 0x207, 0xe7, 0x2ff, 0x3ff, 0x27, 0xb] {
            for value in 0..1024 {
                assert_eq!(
                    check(0, 0, value, components).is_ok(),
                    manual(value, components),
                    "{value:#x} of {components:#x}"
                );
            }
        }
    }

    #[test]
    fn values_that_stopped_the_machine() {
        assert!(check(0, 0, 0x27, 0x2ff).is_err(), "a third of AVX-512");
        assert!(check(0, 0, 0x0b, 0x2ff).is_err(), "half of MPX");
        assert!(check(0, 0, 0xe7, 0x2ff).is_ok());
    }

    #[test]
    fn components_nobody_knows_are_refused_even_if_shown() {
        for bit in (10..64).chain([8]) {
            assert!(check(0, 0, 3 | 1 << bit, u64::MAX).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn only_the_kernel_and_only_register_0() {
        for (cpl, index, accepted) in
            [(0, 0, true), (1, 0, false), (3, 0, false), (0, 1, false), (0, 0x8000_0000, false)]
        {
            assert_eq!(check(cpl, index, 7, 7).is_ok(), accepted, "level {cpl}, register {index}");
        }
    }
}
