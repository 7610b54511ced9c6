//! What a processor checks of a memory operand before it touches memory, from segment and offset to physical pieces.
//!
//! [`Addressing::linear`] checks the segment (limit, rights) or that the address is canonical, [`Addressing::resolve`]
//! the page tables. An operand may lie on two pages: both must be reachable before anything is done to either.
//!
//! Source: APM vol 2, 4.8 and 4.12 (segment rights and limits), 5.3.1 (canonical addresses), 8.2 (#SS, #GP, #PF, #AC).
//!
//! Deviations: EFER.LMSLE, which CPUID hides from guests, is not honoured; an operand that passes 4 GiB in a segment
//! that ends there does not wrap around, but is a fault.

use crate::walk::{Access, Kind, PageFault, PagingState, Tables, WalkError, touch, translate};
use sluice_memory::{Gpa, PAGE_SIZE};

const CR0_PE: u64 = 1;
const CR0_AM: u64 = 1 << 18;
const RFLAGS_VM: u64 = 1 << 17;
const RFLAGS_AC: u64 = 1 << 18;

/// A segment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// ES.
    Es,
    /// CS.
    Cs,
    /// SS.
    Ss,
    /// DS.
    Ds,
    /// FS.
    Fs,
    /// GS.
    Gs,
}

/// The hidden part of a segment register, as in a VMCB (APM vol 2, table B-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRegister {
    /// Base address.
    pub base: u64,
    /// Limit in bytes, granularity applied.
    pub limit: u32,
    /// Descriptor bits 40-47 and 52-55, packed into 12 bits.
    pub attributes: u16,
}

impl SegmentRegister {
    fn has(&self, bit: u32) -> bool {
        self.attributes & 1 << bit != 0
    }

    fn is_present(&self) -> bool {
        self.has(7)
    }

    fn is_code(&self) -> bool {
        self.has(3)
    }

    /// Of data: writable. Of code: readable.
    fn has_right(&self) -> bool {
        self.has(1)
    }

    fn expands_down(&self) -> bool {
        !self.is_code() && self.has(2)
    }

    /// Bit D/B: 32 bits.
    pub fn is_big(&self) -> bool {
        self.has(10)
    }
}

/// Why an operand cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// #GP(0).
    GeneralProtection,
    /// #SS(0).
    Stack,
    /// #PF.
    Page(PageFault),
    /// #AC(0).
    Alignment,
    /// See [`WalkError::Changed`].
    Changed,
}

impl From<WalkError> for Fault {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Page(fault) => Self::Page(fault),
            WalkError::Changed => Self::Changed,
        }
    }
}

/// An operand in physical memory: one piece, or two where it crosses into another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Where the operand begins.
    pub first: Gpa,
    /// Bytes there.
    pub len: usize,
    /// Where the rest is, if there is one.
    pub second: Option<Gpa>,
}

impl Pieces {
    /// Where byte `index` of the operand is.
    pub fn at(&self, index: usize) -> Gpa {
        match self.second {
            Some(second) if index >= self.len => {
                Gpa::new(second.as_u64().wrapping_add((index - self.len) as u64))
            }
            _ => Gpa::new(self.first.as_u64().wrapping_add(index as u64)),
        }
    }
}

/// What decides whether a processor reaches an operand, beside the operand's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Control registers.
    pub paging: PagingState,
    /// RFLAGS.
    pub rflags: u64,
    /// Current privilege level.
    pub cpl: u8,
    /// 16, 32 or 64, as the code segment says.
    pub bitness: u32,
}

impl Addressing {
    /// The linear address of `len` bytes at `offset` in a segment, `len` at least 1.
    ///
    /// # Errors
    /// #SS for the stack segment, #GP for the others: the operand is not all within it, or it cannot be used so. #AC.
    pub fn linear(
        &self,
        segment: Segment,
        register: &SegmentRegister,
        offset: u64,
        len: usize,
        kind: Kind,
    ) -> Result<u64, Fault> {
        let fault = if segment == Segment::Ss { Fault::Stack } else { Fault::GeneralProtection };
        let more = (len as u64).saturating_sub(1);
        if self.bitness == 64 {
            let based = matches!(segment, Segment::Fs | Segment::Gs);
            let linear = offset.wrapping_add(if based { register.base } else { 0 });
            let within = |at| if self.is_canonical(at) { Ok(()) } else { Err(fault) };
            within(linear)?;
            let linear = self.aligned(linear, len)?;
            within(linear.wrapping_add(more))?;
            return Ok(linear);
        }
        let last = offset.checked_add(more).ok_or(fault)?;
        let within = if register.expands_down() {
            let top = if register.is_big() { u64::from(u32::MAX) } else { 0xffff };
            offset > u64::from(register.limit) && last <= top
        } else {
            last <= u64::from(register.limit)
        };
        // Real mode and virtual-8086 mode know limits, but no rights.
        let has_rights = self.paging.cr0 & CR0_PE != 0 && self.rflags & RFLAGS_VM == 0;
        let allowed = register.is_present()
            && match kind {
                Kind::Write => !register.is_code() && register.has_right(),
                Kind::Read => !register.is_code() || register.has_right(),
                Kind::Execute => register.is_code(),
            };
        if !within {
            Err(fault)
        } else if has_rights && !allowed {
            Err(Fault::GeneralProtection)
        } else {
            self.aligned(register.base.wrapping_add(offset) & 0xffff_ffff, len)
        }
    }

    /// The alignment check (APM vol 2, 8.2.18). Processors make it before they look at page tables.
    fn aligned(&self, linear: u64, len: usize) -> Result<u64, Fault> {
        let checks = self.cpl == 3 && self.rflags & RFLAGS_AC != 0 && self.paging.cr0 & CR0_AM != 0;
        let wrong = matches!(len, 2 | 4 | 8) && linear & (len as u64 - 1) != 0;
        if checks && wrong { Err(Fault::Alignment) } else { Ok(linear) }
    }

    /// The physical memory of the `len` bytes at a linear address, at most a page, for an access that is about to be
    /// made: accessed and dirty bits are set.
    ///
    /// # Errors
    /// See [`Fault`]. Neither page is to be touched then.
    pub fn resolve(
        &self,
        linear: u64,
        len: usize,
        kind: Kind,
        tables: &impl Tables,
    ) -> Result<Pieces, Fault> {
        let access = Access { kind, user: self.cpl == 3, ac: self.rflags & RFLAGS_AC != 0 };
        let in_page = (PAGE_SIZE - (linear & (PAGE_SIZE - 1))) as usize;
        let next = (len > in_page).then(|| linear.wrapping_add(in_page as u64));
        if let Some(next) = next {
            // The bits of the one page are not set for an access that the other one forbids.
            for linear in [linear, next] {
                translate(&self.paging, linear, access, &|at| tables.read(at)).map_err(Fault::Page)?;
            }
        }
        let first = touch(&self.paging, linear, access, tables)?;
        let second = next.map(|next| touch(&self.paging, next, access, tables)).transpose()?;
        Ok(Pieces { first, len: len.min(in_page), second })
    }

    /// Whether the bits that are not translated repeat the last one that is.
    fn is_canonical(&self, linear: u64) -> bool {
        let unused = 64 - self.paging.linear_bits();
        ((linear << unused) as i64 >> unused) as u64 == linear
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    const PROTECTED: PagingState = PagingState { cr0: CR0_PE, cr3: 0, cr4: 0, efer: 0, physical_bits: 40 };
    const KERNEL: Addressing = Addressing { paging: PROTECTED, rflags: 2, cpl: 0, bitness: 32 };
    const LONG: Addressing = Addressing {
        paging: PagingState { cr0: 1 << 31 | CR0_PE, cr4: 1 << 5, efer: 1 << 10, ..PROTECTED },
        bitness: 64,
        ..KERNEL
    };
    /// Present, accessed data of 32 bits that can be written.
    const DATA: SegmentRegister = SegmentRegister { base: 0x1000, limit: 0xfff, attributes: 0x493 };

    fn go(
        addressing: Addressing,
        register: SegmentRegister,
        offset: u64,
        len: usize,
        kind: Kind,
    ) -> Result<u64, Fault> {
        addressing.linear(Segment::Ds, &register, offset, len, kind)
    }

    #[test]
    fn apm_4_12_limits() {
        let refused = Err(Fault::GeneralProtection);
        assert_eq!(go(KERNEL, DATA, 0xffc, 4, Kind::Write), Ok(0x1ffc));
        assert_eq!(go(KERNEL, DATA, 0xffd, 4, Kind::Read), refused);
        assert_eq!(go(KERNEL, DATA, 0xffff_ffff, 2, Kind::Read), refused);
        let down = SegmentRegister { attributes: DATA.attributes | 4, ..DATA };
        assert_eq!(go(KERNEL, down, 0xfff, 1, Kind::Read), refused);
        assert_eq!(go(KERNEL, down, 0x1000, 4, Kind::Read), Ok(0x2000));
        assert_eq!(go(KERNEL, down, 0xffff_fffd, 4, Kind::Read), refused);
        let small = SegmentRegister { attributes: down.attributes & !0x400, ..down };
        assert_eq!(go(KERNEL, small, 0xfffc, 4, Kind::Read), Ok(0x1_0ffc));
        assert_eq!(go(KERNEL, small, 0xfffd, 4, Kind::Read), refused);
        assert_eq!(KERNEL.linear(Segment::Ss, &DATA, 0x1000, 1, Kind::Read), Err(Fault::Stack));
        let high = SegmentRegister { base: 0xffff_f000, limit: u32::MAX, ..DATA };
        assert_eq!(go(KERNEL, high, 0x2000, 4, Kind::Read), Ok(0x1000), "linear addresses have 32 bits");
    }

    #[test]
    fn apm_4_8_rights() {
        let with = |attributes| SegmentRegister { attributes, ..DATA };
        let allowed = |attributes, kind| go(KERNEL, with(attributes), 0, 1, kind).is_ok();
        assert!(allowed(0x491, Kind::Read) && !allowed(0x491, Kind::Write), "read-only data");
        assert!(allowed(0x49b, Kind::Read) && !allowed(0x49b, Kind::Write), "code that can be read");
        assert!(!allowed(0x499, Kind::Read), "code that can only be executed");
        assert!(!allowed(0, Kind::Read), "the null selector");
        let real = Addressing { paging: PagingState::default(), bitness: 16, ..KERNEL };
        assert!(go(real, with(0x9b), 0, 2, Kind::Write).is_ok(), "real mode has no rights");
        let virtual_8086 = Addressing { rflags: RFLAGS_VM | 2, bitness: 16, cpl: 3, ..KERNEL };
        assert!(go(virtual_8086, with(0x9b), 0, 2, Kind::Write).is_ok());
    }

    #[test]
    fn apm_5_3_1_canonical_addresses() {
        let refused = Err(Fault::GeneralProtection);
        let hole = 1 << 47;
        assert_eq!(go(LONG, SegmentRegister::default(), hole - 8, 8, Kind::Write), Ok(hole - 8));
        assert_eq!(go(LONG, DATA, hole - 7, 8, Kind::Write), refused);
        assert_eq!(go(LONG, DATA, hole, 1, Kind::Read), refused);
        assert_eq!(go(LONG, DATA, !hole, 1, Kind::Read), refused);
        assert_eq!(go(LONG, DATA, !hole + 1, 1, Kind::Read), Ok(!hole + 1));
        assert_eq!(LONG.linear(Segment::Ss, &DATA, hole, 1, Kind::Read), Err(Fault::Stack));
        assert_eq!(LONG.linear(Segment::Fs, &DATA, 8, 1, Kind::Read), Ok(0x1008));
        let five = Addressing { paging: PagingState { cr4: 1 << 12, ..LONG.paging }, ..LONG };
        assert_eq!(go(five, DATA, hole, 1, Kind::Read), Ok(hole));
        assert_eq!(go(five, DATA, 1 << 56, 1, Kind::Read), refused);
    }

    /// One page table with its pages at 0x10000 and up, of which those from `end` on are missing.
    struct Pages {
        end: u64,
        set: Cell<u64>,
    }

    impl Tables for Pages {
        fn read(&self, at: Gpa) -> Option<u64> {
            Some(match at.as_u64() {
                at @ 0x3000..0x4000 if (at - 0x3000) / 8 < self.end => 0x1_0007 + (at - 0x3000) / 8 * 0x2000,
                0x3000..0x4000 => 0,
                at => (at & !0xfff) + 0x1027,
            })
        }

        fn replace(&self, at: Gpa, _: u64, _: u64) -> bool {
            self.set.set(self.set.get() | 1 << ((at.as_u64() & 0xfff) / 8));
            true
        }
    }

    #[test]
    fn an_operand_on_two_pages_is_reached_whole_or_not_at_all() {
        let pages = Pages { end: 2, set: Cell::new(0) };
        let place = |linear, len| LONG.resolve(linear, len, Kind::Write, &pages);
        let (first, len, second) = (Gpa::new(0x1_0ffd), 3, Some(Gpa::new(0x1_2000)));
        assert_eq!(place(0xffd, 16), Ok(Pieces { first, len, second }));
        assert_eq!(pages.set.take(), 0b11);
        let fault = PageFault { address: 0x2000, error_code: 2 };
        assert_eq!(place(0x1ffd, 4), Err(Fault::Page(fault)));
        assert_eq!(pages.set.take(), 0, "the first page is not dirty");
        assert_eq!(place(0x1ffc, 4), Ok(Pieces { first: Gpa::new(0x1_2ffc), len: 4, second: None }));
    }

    #[test]
    fn apm_8_2_18_alignment() {
        let paging = PagingState { cr0: LONG.paging.cr0 | CR0_AM, ..LONG.paging };
        let user = Addressing { paging, rflags: RFLAGS_AC | 2, cpl: 3, ..LONG };
        let refused = Err(Fault::Alignment);
        assert_eq!(go(user, DATA, 0x102, 4, Kind::Read), refused);
        assert_eq!(user.linear(Segment::Fs, &DATA, 0x104, 8, Kind::Write), refused);
        assert!(go(user, DATA, 0x102, 2, Kind::Read).is_ok() && go(user, DATA, 0x101, 1, Kind::Read).is_ok());
        assert!(go(Addressing { cpl: 0, ..user }, DATA, 0x102, 4, Kind::Read).is_ok());
        assert!(go(Addressing { rflags: 2, ..user }, DATA, 0x102, 4, Kind::Read).is_ok());
        assert!(go(Addressing { paging: LONG.paging, ..user }, DATA, 0x102, 4, Kind::Read).is_ok());
        assert_eq!(go(user, DATA, (1 << 47) + 1, 4, Kind::Read), Err(Fault::GeneralProtection));
    }
}
