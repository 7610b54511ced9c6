//! The paravirtual clock: what a guest reads instead of any timer hardware to know the time.
//!
//! The guest names a page by MSR 0x4B56_4D01 (one per processor) and 0x4B56_4D00 (wall clock). The page
//! relates its TSC to nanoseconds since boot by a 32-bit multiplier and a shift ([`Scale`]), so that reading
//! the time never exits.
//!
//! Another processor of the guest may read it while it is written: [`TimeInfo::publish`] has the order that is safe.
//!
//! Source: the interface documented with Linux (Documentation/virt/kvm/x86/msr.rst, cpuid.rst).

/// MSR that names the wall clock structure (guest-physical address, 4-byte aligned).
pub const MSR_WALL_CLOCK: u32 = 0x4B56_4D00;
/// MSR that names the processor's clock structure; bit 0 enables it.
pub const MSR_SYSTEM_TIME: u32 = 0x4B56_4D01;
/// MSR that names the processor's end-of-interrupt word (4 bytes); bit 0 enables it.
pub const MSR_PV_EOI: u32 = 0x4B56_4D04;

/// Bytes of a processor's clock structure.
pub const TIME_INFO_SIZE: usize = 32;
/// Bytes of the wall clock structure.
pub const WALL_CLOCK_SIZE: usize = 12;

const FLAG_TSC_STABLE: u8 = 1;
/// The guest stood still without noticing. It clears the flag when it has seen it.
const FLAG_STOPPED: u8 = 1 << 1;
/// Where the flags are in the structure.
pub const FLAGS: u64 = 29;
/// Of a structure that is written once: even, and not what memory held before.
const STABLE_VERSION: u32 = 2;
const NANOS_PER_SEC: u64 = 1_000_000_000;

/// TSC ticks to nanoseconds: `((ticks << shift) * mul) >> 32`, a negative shift going right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// 0.32 fixed-point multiplier, its top bit set.
    pub mul: u32,
    /// Shift of the ticks before the multiplication.
    pub shift: i8,
}

impl Scale {
    /// The scale of a TSC of `tsc_khz` kHz (a rate of zero counts as 1 kHz), exact to one part in 2^31.
    pub fn from_khz(tsc_khz: u32) -> Self {
        // The ratio 10^6 / tsc_khz as a 32.64 fixed-point number; mul is its 32 leading bits.
        let ratio = (1_000_000u128 << 64) / u128::from(tsc_khz.max(1));
        let top = 128 - ratio.leading_zeros() as i32;
        // Round to nearest; a carry out of the 32 bits moves the shift.
        let mut mul = (ratio >> (top - 33)).wrapping_add(1) >> 1;
        let mut shift = top - 64;
        if mul > u128::from(u32::MAX) {
            mul >>= 1;
            shift += 1;
        }
        Self { mul: mul as u32, shift: shift as i8 }
    }

    /// Nanoseconds in `ticks`, saturating: the same sum as the guest's, in more bits.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let ticks = u128::from(ticks);
        let shifted = if self.shift < 0 {
            ticks >> self.shift.unsigned_abs().min(127)
        } else {
            // At most 64 + 20 bits for 1 kHz, so the product stays below 2^116.
            ticks << self.shift.min(31)
        };
        u64::try_from((shifted * u128::from(self.mul)) >> 32).unwrap_or(u64::MAX)
    }
}

/// Nanoseconds to TSC ticks, rounded up and saturating.
pub fn ticks(nanoseconds: u64, tsc_khz: u32) -> u64 {
    let ticks = (u128::from(nanoseconds) * u128::from(tsc_khz)).div_ceil(1_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// A processor's clock structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeInfo {
    /// Even when the rest may be read; changes with every update.
    pub version: u32,
    /// Guest TSC at `system_time`.
    pub tsc_timestamp: u64,
    /// Nanoseconds since boot at `tsc_timestamp`.
    pub system_time: u64,
    /// From TSC ticks to nanoseconds.
    pub scale: Scale,
    /// All processors' TSCs agree: the guest may compare readings across them.
    pub stable: bool,
    /// The guest stood still, and has not seen it yet: what took too long by its clock need not alarm it.
    pub stopped: bool,
}

/// Whether flags that a guest finds in its structure say that it stood still.
pub fn says_stopped(flags: u8) -> bool {
    flags & FLAG_STOPPED != 0
}

impl TimeInfo {
    /// The structure as the guest reads it.
    pub fn to_bytes(&self) -> [u8; TIME_INFO_SIZE] {
        let mut bytes = [0; TIME_INFO_SIZE];
        bytes[0..4].copy_from_slice(&self.version.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tsc_timestamp.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.system_time.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.scale.mul.to_le_bytes());
        bytes[28] = self.scale.shift as u8;
        let stable = if self.stable { FLAG_TSC_STABLE } else { 0 };
        bytes[FLAGS as usize] = stable | if self.stopped { FLAG_STOPPED } else { 0 };
        bytes
    }

    /// Gives `write` the pieces of the structure, each with its offset, in the order in which a reader that tries again while
    /// the version is odd or changes sees either all of it or that it must try again.
    ///
    /// # Errors
    /// The first one of `write`; the rest is not written.
    pub fn publish<E>(&self, mut write: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let bytes = self.to_bytes();
        let (version, rest) = bytes.split_at(4);
        write(0, &self.version.wrapping_sub(1).to_le_bytes())?;
        write(4, rest)?;
        write(0, version)
    }

    /// Nanoseconds since boot at guest TSC `now`, as the guest computes it.
    pub fn at(&self, now: u64) -> u64 {
        self.system_time.saturating_add(self.scale.nanoseconds(now.saturating_sub(self.tsc_timestamp)))
    }
}

/// The wall clock structure: the time of day at which `system_time` was zero, in nanoseconds since 1970.
pub fn wall_clock(boot_time: u64) -> [u8; WALL_CLOCK_SIZE] {
    let mut bytes = [0; WALL_CLOCK_SIZE];
    bytes[0..4].copy_from_slice(&STABLE_VERSION.to_le_bytes());
    bytes[4..8].copy_from_slice(&((boot_time / NANOS_PER_SEC) as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&((boot_time % NANOS_PER_SEC) as u32).to_le_bytes());
    bytes
}

/// Host TSC at which a guest's reaches `at`, where the guest's is the host's plus `offset`, wrapping, and the host's is
/// `now`. That is `now` when it has, and saturates where the host's never gets that far in 64 bits. The same for every
/// `now` before, so that a timer need not be set again because time went by.
pub fn host_deadline(at: u64, offset: u64, now: u64) -> u64 {
    let left = at.saturating_sub(now.wrapping_add(offset));
    now.saturating_add(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_rates_are_exact() {
        assert_eq!(Scale::from_khz(1_000_000), Scale { mul: 0x8000_0000, shift: 1 });
        assert_eq!(Scale::from_khz(2_000_000), Scale { mul: 0x8000_0000, shift: 0 });
        assert_eq!(Scale::from_khz(4_000_000), Scale { mul: 0x8000_0000, shift: -1 });
        assert_eq!(Scale::from_khz(2_000_000).nanoseconds(u64::MAX), u64::MAX >> 1);
        assert_eq!(Scale::from_khz(1).nanoseconds(3), 3_000_000);
    }

    #[test]
    fn deadlines_of_a_guest_that_moved_its_counter() {
        // Back by 10,000: what is far ahead for the guest is not in the host's past.
        let back = 0u64.wrapping_sub(10_000);
        assert_eq!(host_deadline(500, back, 10_400), 10_500);
        assert_eq!(host_deadline(u64::MAX, back, 10_400), u64::MAX);
        assert_eq!(host_deadline(u64::MAX - 20_000, back, 10_400), u64::MAX - 10_000);
        // Ahead, and past.
        assert_eq!(host_deadline(10_700, 10_000, 400), 700);
        assert_eq!(host_deadline(10_300, 10_000, 400), 400);
    }

    #[test]
    fn layouts() {
        let info = TimeInfo {
            version: 2,
            tsc_timestamp: 0x1122_3344_5566_7788,
            system_time: 7,
            scale: Scale { mul: 0x8000_0001, shift: -1 },
            stable: true,
            stopped: false,
        };
        let bytes = info.to_bytes();
        assert_eq!(bytes[..4], 2u32.to_le_bytes());
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(bytes[16], 7);
        assert_eq!(bytes[24..30], [1, 0, 0, 0x80, 0xFF, 1]);
        let stopped = TimeInfo { stable: false, stopped: true, ..info }.to_bytes();
        assert_eq!((stopped[29], says_stopped(stopped[29]), says_stopped(bytes[29])), (2, true, false));
        assert_eq!(wall_clock(5_000_000_007), [2, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0]);
    }

    #[test]
    fn a_reader_sees_all_of_an_update_or_none() {
        let scale = Scale::from_khz(2_000_000);
        let (stable, stopped) = (true, false);
        let old = TimeInfo { version: 2, tsc_timestamp: 10_000, system_time: 5_000, scale, stable, stopped };
        let new = TimeInfo { version: 4, tsc_timestamp: 0, system_time: 5_000, stable: false, ..old };
        let mut page = old.to_bytes();
        let mut odd = 0;
        new.publish(|offset, bytes| {
            for (index, byte) in bytes.iter().enumerate() {
                page[offset as usize + index] = *byte;
                let version = u32::from_le_bytes([page[0], page[1], page[2], page[3]]);
                odd += version & 1;
                assert!(version & 1 != 0 || page == old.to_bytes() || page == new.to_bytes());
            }
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!((page, odd), (new.to_bytes(), 4 + 28));
        assert_eq!(new.publish(|offset, _| if offset == 4 { Err(7) } else { Ok(()) }), Err(7));
    }

    proptest! {
        #[test]
        fn a_deadline_is_exact_and_stays(at: u64, offset: u64, now: u64, passed: u64) {
            let guest = now.wrapping_add(offset);
            let deadline = host_deadline(at, offset, now);
            let left = u128::from(at).saturating_sub(guest.into());
            prop_assert_eq!(u128::from(deadline), (u128::from(now) + left).min(u64::MAX.into()));
            let later = now.saturating_add(passed);
            // Neither counter wraps within this machine's life.
            if later <= deadline && guest.checked_add(passed).is_some() && now.checked_add(passed).is_some() {
                prop_assert_eq!(host_deadline(at, offset, later), deadline);
            }
        }

        #[test]
        fn scale_is_within_one_part_in_2_31(khz: u32, delta in 0u64..1 << 60) {
            let khz = khz.max(1);
            let scale = Scale::from_khz(khz);
            prop_assert!(scale.mul >= 0x8000_0000);
            let exact = u128::from(delta) * 1_000_000 / u128::from(khz);
            prop_assume!(exact < 1 << 63);
            let got = u128::from(scale.nanoseconds(delta));
            // Dropping bits below the shift loses at most 2^-shift ticks' worth of time: under one
            // nanosecond for any rate above 1 GHz, none below.
            prop_assert!(got.abs_diff(exact) <= (exact >> 31) + 2, "{got} for {exact}");
        }

        #[test]
        fn ticks_never_come_early(khz in 1u32.., ns in 0u64..1 << 40) {
            let ticks = u128::from(ticks(ns, khz));
            prop_assert!(ticks * 1_000_000 >= u128::from(ns) * u128::from(khz));
        }
    }
}
