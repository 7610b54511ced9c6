//! A guest's processor as instructions see it: registers, segments, mode, page tables, and the code at its instruction pointer.

use crate::domain::Domain;
use crate::domain::vcpu::Context;
use crate::sync::Once;
use crate::x86;
use arrayvec::ArrayVec;
use sluice_insn::walk::{self, Kind};
use sluice_insn::{Addressing, PageFault, PagingState, Segment, SegmentRegister, Tables, translate};
use sluice_memory::{Gpa, PAGE_SIZE};

/// The bytes from an instruction on, at most as many as one can have.
pub type Code = ArrayVec<u8, LONGEST>;

/// Longest x86 instruction in bytes.
pub const LONGEST: usize = 15;

/// Paging registers of the guest.
pub fn paging(ctx: &Context) -> PagingState {
    let save = &ctx.vmcb.save;
    PagingState {
        cr0: save.cr0,
        cr3: save.cr3,
        cr4: save.cr4,
        efer: save.efer,
        physical_bits: physical_bits(),
    }
}

/// Bits of a physical address: guests see the processor's own.
fn physical_bits() -> u32 {
    static BITS: Once<u32> = Once::new();
    *BITS.call_once(|| x86::cpuid(0x8000_0008, 0).eax & 0xff)
}

/// What decides whether the guest's processor reaches an operand.
pub fn addressing(ctx: &Context) -> Addressing {
    let save = &ctx.vmcb.save;
    Addressing { paging: paging(ctx), rflags: save.rflags, cpl: save.cpl, bitness: bitness(ctx) }
}

/// The guest-physical memory that page tables lie in.
pub struct GuestTables<'a>(pub &'a Domain);

impl Tables for GuestTables<'_> {
    fn read(&self, at: Gpa) -> Option<u64> {
        self.0.read_u64(at)
    }

    fn replace(&self, at: Gpa, old: u64, new: u64) -> bool {
        self.0.replace_u64(at, old, new)
    }
}

/// Copies the bytes of the instruction at RIP; fewer than 15 where a page ends the mapping.
///
/// # Errors
/// The page fault of the first byte.
pub fn fetch(domain: &Domain, ctx: &Context) -> Result<Code, PageFault> {
    let save = &ctx.vmcb.save;
    let start = save.cs.base.wrapping_add(save.rip);
    // The processor has fetched it before, and set the accessed bits.
    let access = walk::Access { kind: Kind::Execute, user: save.cpl == 3, ac: false };
    let mut bytes = [0; LONGEST];
    let mut have = 0;
    while have < LONGEST {
        let at = start.wrapping_add(have as u64);
        let gpa = match translate(&paging(ctx), at, access, &|gpa| domain.read_u64(gpa)) {
            Ok(gpa) => gpa,
            Err(_) if have > 0 => break,
            Err(fault) => return Err(fault),
        };
        let in_page = (PAGE_SIZE - gpa.page_offset()) as usize;
        let part = &mut bytes[have..LONGEST.min(have + in_page)];
        if domain.read(gpa, part).is_err() {
            break;
        }
        have += part.len();
    }
    Ok(code(bytes, have))
}

/// The first `have` of these bytes.
pub fn code(bytes: [u8; LONGEST], have: usize) -> Code {
    let mut code = Code::from(bytes);
    code.truncate(have);
    code
}

/// General register by hardware number.
pub fn gpr(ctx: &Context, index: usize) -> u64 {
    match index {
        0 => ctx.vmcb.save.rax,
        4 => ctx.vmcb.save.rsp,
        _ => ctx.regs.get(index).copied().unwrap_or(0),
    }
}

/// Sets a general register by hardware number.
pub fn set_gpr(ctx: &mut Context, index: usize, value: u64) {
    match index {
        0 => ctx.vmcb.save.rax = value,
        4 => ctx.vmcb.save.rsp = value,
        _ => {
            if let Some(register) = ctx.regs.get_mut(index) {
                *register = value;
            }
        }
    }
}

/// A segment register.
pub fn segment(ctx: &Context, segment: Segment) -> SegmentRegister {
    let save = &ctx.vmcb.save;
    let register = match segment {
        Segment::Es => save.es,
        Segment::Cs => save.cs,
        Segment::Ss => save.ss,
        Segment::Ds => save.ds,
        Segment::Fs => save.fs,
        Segment::Gs => save.gs,
    };
    SegmentRegister { base: register.base, limit: register.limit, attributes: register.attributes }
}

/// 16, 32 or 64, as CS says (attribute bit 9 is L, bit 10 D: APM vol 2, 4.7.2).
pub fn bitness(ctx: &Context) -> u32 {
    const EFER_LMA: u64 = 1 << 10;
    let save = &ctx.vmcb.save;
    if save.efer & EFER_LMA != 0 && save.cs.attributes & 1 << 9 != 0 {
        64
    } else if save.cs.attributes & 1 << 10 != 0 {
        32
    } else {
        16
    }
}
