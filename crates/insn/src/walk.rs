//! A guest's page tables: from linear to guest-physical addresses.
//!
//! [`translate`] only looks. [`touch`] is what the processor does for an access: it also sets the accessed and dirty
//! bits, once the whole walk has succeeded.
//!
//! Source: APM vol 2, 5.2-5.4 (table formats, accessed and dirty bits), 5.6 (protection), 8.4.2 (page-fault error
//! code), 15.25.10 (the roots of legacy PAE paging under nested paging).
//!
//! Deviations: protection keys and shadow stacks, which CPUID hides from guests, are not checked; pages of 1 GiB are
//! taken as supported.

use arrayvec::ArrayVec;
use sluice_memory::Gpa;

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Walks that [`touch`] makes before it gives up.
const ATTEMPTS: usize = 8;
/// Most levels of a walk.
pub(crate) const LEVELS: usize = 5;

/// The registers that say how a guest pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagingState {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
    /// Bits of a physical address, 32 to 52 (CPUID 8000_0008 EAX, bits 7:0): those above are reserved in entries.
    pub physical_bits: u32,
}

impl Default for PagingState {
    /// Paging off.
    fn default() -> Self {
        Self { cr0: 0, cr3: 0, cr4: 0, efer: 0, physical_bits: 52 }
    }
}

/// What is done with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is read.
    Read,
    /// It is written, perhaps after it was read.
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
    /// RFLAGS.AC, which lets the kernel touch users' data in spite of SMAP.
    pub ac: bool,
}

/// A page fault to raise in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Goes to CR2.
    pub address: u64,
    /// APM vol 2, 8.4.2.
    pub error_code: u32,
}

/// The guest-physical memory that page tables lie in.
pub trait Tables {
    /// Reads an aligned word; `None` where no memory is.
    fn read(&self, at: Gpa) -> Option<u64>;
    /// Replaces an aligned word in one locked access. Returns false if it was not `old` any more.
    fn replace(&self, at: Gpa, old: u64, new: u64) -> bool;
}

/// Why an access was not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    /// The guest's own tables say no.
    Page(PageFault),
    /// Another processor of the guest changed the tables again and again meanwhile: the instruction must be run again.
    Changed,
}

impl From<PageFault> for WalkError {
    fn from(fault: PageFault) -> Self {
        Self::Page(fault)
    }
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
    /// Bits of a linear address: the higher ones repeat the last (APM vol 2, 5.3.1).
    pub fn linear_bits(&self) -> u32 {
        match (self.efer & EFER_LMA != 0, self.cr4 & CR4_LA57 != 0) {
            (true, true) => 57,
            (true, false) => 48,
            (false, _) => 32,
        }
    }

    /// Whether there are page tables.
    pub fn is_enabled(&self) -> bool {
        self.cr0 & CR0_PG != 0
    }

    fn format(&self) -> Format {
        if self.efer & EFER_LMA != 0 {
            let levels = if self.cr4 & CR4_LA57 != 0 { 5 } else { 4 };
            Format { levels, ..Format::LONG }
        } else if self.cr4 & CR4_PAE != 0 {
            Format { levels: 3, bits: 9, entry: 8, large_level: 2 }
        } else {
            Format { levels: 2, bits: 10, entry: 4, large_level: if self.cr4 & CR4_PSE != 0 { 2 } else { 0 } }
        }
    }

    /// The bits that must be zero in present entries of every level (the figures of APM vol 2, 5.2.3, 5.2.4, 5.3.3).
    fn reserved(&self, format: &Format) -> u64 {
        if format.entry == 4 {
            return 0;
        }
        let above = ADDRESS & !((1 << self.physical_bits.clamp(32, 52)) - 1);
        let no_execute = if self.efer & EFER_NXE == 0 { NO_EXECUTE } else { 0 };
        // Bits 62:52 are software's in long mode only.
        above | no_execute | if format.levels == 3 { 0x7ff << 52 } else { 0 }
    }
}

impl Format {
    /// Long mode with four levels.
    const LONG: Self = Self { levels: 4, bits: 9, entry: 8, large_level: 3 };

    /// The bits that must also be zero in an entry of `level`, which is a page or the address of a table.
    fn reserved(&self, level: u32, page: bool) -> u64 {
        match (self.levels, level) {
            (_, 1) => 0,
            // PSE-36 keeps address bits 39:32 in bits 20:13, so that only bit 21 is left over.
            (2, _) => u64::from(page) << 21,
            (3, 3) => NO_EXECUTE | 0x1e6,
            (_, 4 | 5) => 1 << 8 | LARGE,
            // Address bits below the size of a large page; bit 12 is the page attribute table's.
            _ if page => (1 << (12 + self.bits * (level - 1))) - (1 << 13),
            _ => 0,
        }
    }
}

/// An entry whose accessed or dirty bit is to be set.
#[derive(Clone, Copy)]
struct Mark {
    at: Gpa,
    old: u64,
    new: u64,
}

/// Translates one linear address and changes nothing. `read` reads an aligned word of guest-physical memory.
///
/// # Errors
/// The page fault that the access would raise.
pub fn translate(
    state: &PagingState,
    linear: u64,
    access: Access,
    read: &impl Fn(Gpa) -> Option<u64>,
) -> Result<Gpa, PageFault> {
    walk(state, linear, access, read, |_| ())
}

/// Translates one linear address for an access that is about to be made: sets accessed and dirty bits.
///
/// # Errors
/// See [`WalkError`]; a page fault has set no bit.
pub fn touch(
    state: &PagingState,
    linear: u64,
    access: Access,
    tables: &impl Tables,
) -> Result<Gpa, WalkError> {
    for _ in 0..ATTEMPTS {
        // A walk marks at most one entry of each level.
        let mut marks = ArrayVec::<Mark, LEVELS>::new();
        let gpa = walk(state, linear, access, &|at| tables.read(at), |mark| marks.push(mark))?;
        // An entry that changed since it was read may be another page's by now. (One word may also be two entries of
        // the walk, where tables map themselves: the next walk sets the bits that are left.)
        if marks.iter().all(|mark| tables.replace(mark.at, mark.old, mark.new)) {
            return Ok(gpa);
        }
    }
    Err(WalkError::Changed)
}

/// Walks the tables, and shows `mark` each entry whose accessed or dirty bit the access would set.
fn walk(
    state: &PagingState,
    linear: u64,
    access: Access,
    read: &impl Fn(Gpa) -> Option<u64>,
    mark: impl FnMut(Mark),
) -> Result<Gpa, PageFault> {
    let linear = if state.efer & EFER_LMA != 0 { linear } else { linear & 0xffff_ffff };
    if state.cr0 & CR0_PG == 0 {
        return Ok(Gpa::new(linear));
    }
    // A 64-bit kernel's walks are by far the most: with their format known at compile time they take less work.
    match state.format() {
        Format { levels: 4, .. } => walk_tables(state, Format::LONG, linear, access, read, mark),
        format => walk_tables(state, format, linear, access, read, mark),
    }
}

#[inline(always)]
fn walk_tables(
    state: &PagingState,
    format: Format,
    linear: u64,
    access: Access,
    read: &impl Fn(Gpa) -> Option<u64>,
    mut mark: impl FnMut(Mark),
) -> Result<Gpa, PageFault> {
    let fault = |cause: u32| {
        let tells_fetches = state.efer & EFER_NXE != 0 || state.cr4 & CR4_SMEP != 0;
        let mut error_code = cause;
        error_code |= u32::from(access.kind == Kind::Write) << 1;
        error_code |= u32::from(access.user) << 2;
        error_code |= u32::from(access.kind == Kind::Execute && tells_fetches) << 4;
        PageFault { address: linear, error_code }
    };
    const MISSING: u32 = 0;
    const PROTECTED: u32 = 1;
    const RESERVED: u32 = 1 | 1 << 3;
    let reserved = state.reserved(&format);
    let pae_root = format.levels == 3;
    let mut table = state.cr3 & if pae_root { 0xffff_ffe0 } else { ADDRESS };
    // The rights that all entries so far give: a bit is set where they do.
    let mut rights = WRITABLE | USER | NO_EXECUTE;
    for level in (1..=format.levels).rev() {
        let shift = 12 + format.bits * (level - 1);
        let index = linear >> shift & ((1 << format.bits) - 1);
        let at = table.wrapping_add(index * format.entry);
        let word_at = Gpa::new(at & !7);
        let word = read(word_at).ok_or(fault(MISSING))?;
        let (entry, half) = match (format.entry, at & 4) {
            (8, _) => (word, 0),
            (_, 0) => (word & 0xffff_ffff, 0),
            _ => (word >> 32, 32),
        };
        if entry & PRESENT == 0 {
            return Err(fault(MISSING));
        }
        let large = level > 1 && level <= format.large_level && entry & LARGE != 0;
        let page = level == 1 || large;
        if entry & (reserved | format.reserved(level, page)) != 0 {
            return Err(fault(RESERVED));
        }
        // The four roots of PAE paging have neither rights nor an accessed bit (APM vol 2, 5.2.3).
        if !(pae_root && level == 3) {
            // An entry of four bytes has no bit 63, and lets everybody execute.
            rights &= entry ^ NO_EXECUTE;
            let mut set = ACCESSED;
            if page && access.kind == Kind::Write {
                set |= DIRTY;
            }
            if entry & set != set {
                mark(Mark { at: word_at, old: word, new: word | set << half });
            }
        }
        if !page {
            table = entry & ADDRESS;
            continue;
        }
        let has = |right: u64| rights & right != 0;
        let (writable, user, execute) = (has(WRITABLE), has(USER), has(NO_EXECUTE));
        let allowed = match (access.user, access.kind) {
            (true, Kind::Read) => user,
            (true, Kind::Write) => user && writable,
            (true, Kind::Execute) => user && execute,
            (false, Kind::Execute) => execute && !(user && state.cr4 & CR4_SMEP != 0),
            (false, kind) => {
                let guarded = user && state.cr4 & CR4_SMAP != 0 && !access.ac;
                !guarded && (kind == Kind::Read || writable || state.cr0 & CR0_WP == 0)
            }
        };
        if !allowed {
            return Err(fault(PROTECTED));
        }
        let offset = linear & ((1 << shift) - 1);
        let mut base = entry & ADDRESS & !((1 << shift) - 1);
        if large && format.entry == 4 {
            // PSE-36: bits 13-20 are address bits 32-39 (APM vol 2, 5.2.2).
            base |= (entry >> 13 & 0xff) << 32;
        }
        return Ok(Gpa::new(base | offset));
    }
    Err(fault(MISSING))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::cell::RefCell;

    const READ: Access = Access { kind: Kind::Read, user: false, ac: false };
    const LONG: PagingState = PagingState {
        cr0: CR0_PG | CR0_WP,
        cr3: 0x1000,
        cr4: CR4_PAE,
        efer: EFER_LMA | EFER_NXE,
        physical_bits: 40,
    };

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
        let fault = |linear, kind, user| go(linear, Access { kind, user, ac: false }).unwrap_err().error_code;
        assert_eq!(fault(0x3123, Kind::Write, false), 0b00011);
        assert_eq!(fault(0x3123, Kind::Execute, false), 0b10001);
        assert_eq!(fault(0x3123, Kind::Read, true), 0b00101);
        assert_eq!(fault(0x4000, Kind::Read, false), 0);
        let lax = PagingState { cr0: CR0_PG, ..LONG };
        assert!(translate(&lax, 0x3123, Access { kind: Kind::Write, ..READ }, &read).is_ok());
    }

    #[test]
    fn apm_5_2_legacy_modes() {
        let two_level = PagingState { cr0: CR0_PG, cr3: 0x1000, cr4: CR4_PSE, efer: 0, physical_bits: 40 };
        let read = tables(&[(0x1000, 0x0040_0083_0000_2003), (0x2008, 0x7003)]);
        assert_eq!(translate(&two_level, 0x2044, READ, &read), Ok(Gpa::new(0x7044)));
        assert_eq!(translate(&two_level, 0x40_0044, READ, &read), Ok(Gpa::new(0x40_0044)));
        let pae = PagingState { cr0: CR0_PG, cr3: 0x1020, cr4: CR4_PAE, efer: 0, physical_bits: 40 };
        let read = tables(&[(0x1020, 0x2001), (0x2000, 0x3003), (0x3000, 0x9003)]);
        assert_eq!(translate(&pae, 0x123, Access { kind: Kind::Write, ..READ }, &read), Ok(Gpa::new(0x9123)));
        assert_eq!(translate(&PagingState::default(), 0x1_0000_0123, READ, &read), Ok(Gpa::new(0x123)));
    }

    /// Words from address 0x1000 on, which may change when they are read.
    struct Words {
        map: RefCell<BTreeMap<u64, u64>>,
        meddle: bool,
    }

    impl Words {
        fn new(entries: &[(u64, u64)]) -> Self {
            Self { map: RefCell::new(entries.iter().copied().collect()), meddle: false }
        }

        fn word(&self, at: u64) -> u64 {
            self.map.borrow().get(&at).copied().unwrap_or(0)
        }
    }

    impl Tables for Words {
        fn read(&self, at: Gpa) -> Option<u64> {
            let word = self.word(at.as_u64());
            if self.meddle {
                self.map.borrow_mut().insert(at.as_u64(), word ^ 1 << 11);
            }
            Some(word)
        }

        fn replace(&self, at: Gpa, old: u64, new: u64) -> bool {
            let same = self.word(at.as_u64()) == old;
            if same {
                self.map.borrow_mut().insert(at.as_u64(), new);
            }
            same
        }
    }

    #[test]
    fn apm_5_4_accessed_and_dirty_bits() {
        let (a, d) = (ACCESSED, DIRTY);
        let path = [(0x1000, 0x2007), (0x2000, 0x3007), (0x3000, 0x4007), (0x4000, 0x5007)];
        let tables = Words::new(&path);
        let write = Access { kind: Kind::Write, ..READ };
        let entries = |tables: &Words| path.map(|(at, _)| tables.word(at) & 0xfff);
        assert_eq!(touch(&LONG, 0x123, READ, &tables), Ok(Gpa::new(0x5123)));
        assert_eq!(entries(&tables), [7 | a; 4]);
        assert_eq!(touch(&LONG, 0x123, write, &tables), Ok(Gpa::new(0x5123)));
        assert_eq!(entries(&tables), [7 | a, 7 | a, 7 | a, 7 | a | d]);
        // A fault sets nothing, a look neither.
        let tables = Words::new(&[(0x1000, 0x2007), (0x2000, 0x3007), (0x3000, 0x4007), (0x4000, 0x5005)]);
        let fault = PageFault { address: 0x123, error_code: 3 };
        assert_eq!(touch(&LONG, 0x123, write, &tables), Err(WalkError::Page(fault)));
        translate(&LONG, 0x123, READ, &|at| tables.read(at)).unwrap();
        assert_eq!(entries(&tables), [7, 7, 7, 5]);
        // A large page is a page; the roots of PAE paging have no such bits; entries of four bytes share a word.
        let tables = Words::new(&[(0x1000, 0x2007), (0x2000, 0x4000_0087)]);
        touch(&LONG, 0x123, write, &tables).unwrap();
        assert_eq!(tables.word(0x2000) & 0xfff, 0x87 | a | d);
        let pae = PagingState { cr3: 0x1020, efer: 0, ..LONG };
        let tables = Words::new(&[(0x1020, 0x2001), (0x2000, 0x3003), (0x3000, 0x9003)]);
        touch(&pae, 0x123, write, &tables).unwrap();
        assert_eq!((tables.word(0x1020), tables.word(0x2000), tables.word(0x3000)), (0x2001, 0x3023, 0x9063));
        let two_level = PagingState { cr4: 0, efer: 0, ..LONG };
        let tables = Words::new(&[(0x1000, 0x2003_0000_0000), (0x2008, 0x7003_0000_8003)]);
        touch(&two_level, 0x40_3044, write, &tables).unwrap();
        assert_eq!((tables.word(0x1000), tables.word(0x2008)), (0x2023_0000_0000, 0x7063_0000_8003));
    }

    #[test]
    fn tables_that_map_themselves_or_change_all_the_time() {
        // The last entry of the root is the root: every level of this walk is that one entry.
        let tables = Words::new(&[(0x1ff8, 0x1003)]);
        let write = Access { kind: Kind::Write, ..READ };
        assert_eq!(touch(&LONG, 0xffff_ffff_ffff_fff0, write, &tables), Ok(Gpa::new(0x1ff0)));
        assert_eq!(tables.word(0x1ff8), 0x1003 | ACCESSED | DIRTY);
        let mut tables = Words::new(&[(0x1ff8, 0x1003)]);
        tables.meddle = true;
        assert_eq!(touch(&LONG, 0xffff_ffff_ffff_fff0, write, &tables), Err(WalkError::Changed));
    }

    #[test]
    fn apm_5_6_supervisor_mode_execution_and_access_prevention() {
        let read = tables(&[
            (0x1000, 0x2007),
            (0x2000, 0x3007),
            (0x3000, 0x4007),
            (0x4000, 0x5007),
            (0x4008, 0x5003),
        ]);
        let go = |cr4, kind, user, ac, linear| {
            let state = PagingState { cr4: CR4_PAE | cr4, ..LONG };
            translate(&state, linear, Access { kind, user, ac }, &read)
                .map(|_| 0)
                .unwrap_or_else(|f| f.error_code)
        };
        assert_eq!(go(CR4_SMAP, Kind::Read, false, false, 0), 1);
        assert_eq!(go(CR4_SMAP, Kind::Write, false, false, 0), 3);
        assert_eq!(go(CR4_SMAP, Kind::Write, false, true, 0), 0);
        assert_eq!(go(CR4_SMAP, Kind::Write, true, false, 0), 0);
        assert_eq!(go(CR4_SMAP, Kind::Write, false, false, 0x1000), 0);
        assert_eq!(go(CR4_SMAP, Kind::Execute, false, false, 0), 0);
        assert_eq!(go(CR4_SMEP, Kind::Execute, false, true, 0), 0x11);
        assert_eq!(go(CR4_SMEP, Kind::Execute, false, false, 0x1000), 0);
        assert_eq!(go(CR4_SMEP, Kind::Read, false, false, 0), 0);
        assert_eq!(go(CR4_SMEP, Kind::Execute, true, false, 0x1000), 0x15);
    }

    #[test]
    fn tables_outside_of_memory_fault() {
        let wild = PagingState { cr3: 0xffff_ffff_f000, ..LONG };
        assert!(translate(&wild, 0, READ, &tables(&[])).is_err());
    }
}
