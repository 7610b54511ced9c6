//! A guest's page tables: from linear to guest-physical addresses.
//!
//! Source: APM vol 2, 5.2-5.4 (table formats), 8.4.2 (page-fault error code).
//!
//! Deviations: reserved bits, SMEP, SMAP and protection keys are not checked, since the processor
//! has checked them for the access that brought us here; accessed and dirty bits are not set.

use sluice_memory::Gpa;

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The registers that say how a guest pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagingState {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
}

/// What is done with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// Code is fetched from it.
    Execute,
}

/// An access to translate for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is done.
    pub kind: Kind,
    /// At privilege level 3.
    pub user: bool,
}

/// A page fault to raise in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Goes to CR2.
    pub address: u64,
    /// APM vol 2, 8.4.2.
    pub error_code: u32,
}

/// How the tables of a paging mode are laid out.
struct Format {
    levels: u32,
    /// Bits of the linear address that one table resolves.
    bits: u32,
    /// Bytes of an entry.
    entry: u64,
    /// Highest level whose entries may be pages.
    large_level: u32,
}

impl PagingState {
    fn format(&self) -> Format {
        if self.efer & EFER_LMA != 0 {
            let levels = if self.cr4 & CR4_LA57 != 0 { 5 } else { 4 };
            Format { levels, bits: 9, entry: 8, large_level: 3 }
        } else if self.cr4 & CR4_PAE != 0 {
            Format { levels: 3, bits: 9, entry: 8, large_level: 2 }
        } else {
            Format { levels: 2, bits: 10, entry: 4, large_level: if self.cr4 & CR4_PSE != 0 { 2 } else { 0 } }
        }
    }
}

/// Translates one linear address. `read` reads an aligned word of guest-physical memory.
///
/// # Errors
/// The page fault that the access would raise.
pub fn translate(
    state: &PagingState,
    linear: u64,
    access: Access,
    read: &impl Fn(Gpa) -> Option<u64>,
) -> Result<Gpa, PageFault> {
    let linear = if state.efer & EFER_LMA != 0 { linear } else { linear & 0xffff_ffff };
    if state.cr0 & CR0_PG == 0 {
        return Ok(Gpa::new(linear));
    }
    let format = state.format();
    let fault = |present: bool| {
        let mut error_code = u32::from(present);
        error_code |= u32::from(access.kind == Kind::Write) << 1;
        error_code |= u32::from(access.user) << 2;
        error_code |= u32::from(access.kind == Kind::Execute && state.efer & EFER_NXE != 0) << 4;
        PageFault { address: linear, error_code }
    };
    let pae_root = format.levels == 3;
    let mut table = state.cr3 & if pae_root { 0xffff_ffe0 } else { ADDRESS };
    let (mut writable, mut user, mut execute) = (true, true, true);
    for level in (1..=format.levels).rev() {
        let shift = 12 + format.bits * (level - 1);
        let index = linear >> shift & ((1 << format.bits) - 1);
        let at = table.wrapping_add(index * format.entry);
        let word = read(Gpa::new(at & !7)).ok_or(fault(false))?;
        let entry = match (format.entry, at & 4) {
            (8, _) => word,
            (_, 0) => word & 0xffff_ffff,
            _ => word >> 32,
        };
        if entry & PRESENT == 0 {
            return Err(fault(false));
        }
        // The four roots of PAE paging have no rights (APM vol 2, 5.2.3).
        if !(pae_root && level == 3) {
            writable &= entry & WRITABLE != 0;
            user &= entry & USER != 0;
            execute &= state.efer & EFER_NXE == 0 || format.entry == 4 || entry & NO_EXECUTE == 0;
        }
        let large = level > 1 && level <= format.large_level && entry & LARGE != 0;
        if level > 1 && !large {
            table = entry & ADDRESS;
            continue;
        }
        let may_write = writable || (!access.user && state.cr0 & CR0_WP == 0);
        let allowed = match access.kind {
            Kind::Read => true,
            Kind::Write => may_write,
            Kind::Execute => execute,
        };
        if !allowed || (access.user && !user) {
            return Err(fault(true));
        }
        let offset = linear & ((1 << shift) - 1);
        let mut base = entry & ADDRESS & !((1 << shift) - 1);
        if large && format.entry == 4 {
            // PSE-36: bits 13-20 are address bits 32-39 (APM vol 2, 5.2.2).
            base |= (entry >> 13 & 0xff) << 32;
        }
        return Ok(Gpa::new(base | offset));
    }
    Err(fault(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    const READ: Access = Access { kind: Kind::Read, user: false };
    const LONG: PagingState =
        PagingState { cr0: CR0_PG | CR0_WP, cr3: 0x1000, cr4: CR4_PAE, efer: EFER_LMA | EFER_NXE };

    fn tables(entries: &[(u64, u64)]) -> impl Fn(Gpa) -> Option<u64> {
        let map: BTreeMap<u64, u64> = entries.iter().copied().collect();
        move |gpa| (gpa.as_u64() < 0x10_0000).then(|| map.get(&gpa.as_u64()).copied().unwrap_or(0))
    }

    #[test]
    fn apm_5_3_long_mode() {
        let read = tables(&[
            (0x1000, 0x2007),
            (0x2000, 0x3007),
            (0x2008, 0x4000_0087),
            (0x3000, 0x4007),
            (0x3008, 0xa0_0081),
            (0x4018, 0x5_5001 | NO_EXECUTE),
        ]);
        let go = |linear, access| translate(&LONG, linear, access, &read).map(Gpa::as_u64);
        assert_eq!(go(0x3123, READ), Ok(0x5_5123));
        assert_eq!(go(0x20_1234, READ), Ok(0xa0_1234));
        assert_eq!(go(0x4000_5678, READ), Ok(0x4000_5678));
        let fault = |linear, kind, user| go(linear, Access { kind, user }).unwrap_err().error_code;
        assert_eq!(fault(0x3123, Kind::Write, false), 0b00011);
        assert_eq!(fault(0x3123, Kind::Execute, false), 0b10001);
        assert_eq!(fault(0x3123, Kind::Read, true), 0b00101);
        assert_eq!(fault(0x4000, Kind::Read, false), 0);
        let lax = PagingState { cr0: CR0_PG, ..LONG };
        assert!(translate(&lax, 0x3123, Access { kind: Kind::Write, user: false }, &read).is_ok());
    }

    #[test]
    fn apm_5_2_legacy_modes() {
        let two_level = PagingState { cr0: CR0_PG, cr3: 0x1000, cr4: CR4_PSE, efer: 0 };
        let read = tables(&[(0x1000, 0x0040_0083_0000_2003), (0x2008, 0x7003)]);
        assert_eq!(translate(&two_level, 0x2044, READ, &read), Ok(Gpa::new(0x7044)));
        assert_eq!(translate(&two_level, 0x40_0044, READ, &read), Ok(Gpa::new(0x40_0044)));
        let pae = PagingState { cr0: CR0_PG, cr3: 0x1020, cr4: CR4_PAE, efer: 0 };
        let read = tables(&[(0x1020, 0x2001), (0x2000, 0x3003), (0x3000, 0x9003)]);
        assert_eq!(
            translate(&pae, 0x123, Access { kind: Kind::Write, user: false }, &read),
            Ok(Gpa::new(0x9123))
        );
        assert_eq!(translate(&PagingState::default(), 0x1_0000_0123, READ, &read), Ok(Gpa::new(0x123)));
    }

    #[test]
    fn tables_outside_of_memory_fault() {
        let wild = PagingState { cr3: 0xffff_ffff_f000, ..LONG };
        assert!(translate(&wild, 0, READ, &tables(&[])).is_err());
    }
}
