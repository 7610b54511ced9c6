//! Nested page faults: a guest touched memory that is not RAM.
//!
//! The instruction is executed here, with its memory operands going to RAM or to the device that a
//! page hook names. Where nothing is, reads give ones and writes vanish, as on a PC.

use super::crash;
use super::exit::{Flow, exception, raise, raise_page_fault};
use super::vmcb::event;
use crate::domain::counters::Refusal;
use crate::domain::vcpu::{Context, RunState, Vcpu};
use crate::domain::{Access, Answer, Domain, EndReason, layout};
use arrayvec::ArrayVec;
use sluice_emulator::{Error, Machine, PageFault, PagingState, Segment, step, translate, walk};
use sluice_memory::{Gpa, PAGE_SIZE};

/// Longest x86 instruction in bytes.
const LONGEST: usize = 15;

/// The bytes from an instruction on, at most as many as one can have.
pub type Code = ArrayVec<u8, LONGEST>;

/// Why an emulated access did not come about.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The guest's own page tables say no.
    Page(PageFault),
    /// The device is held by another domain: try again later.
    Wait,
}

/// Paging registers of the guest.
pub fn paging(ctx: &Context) -> PagingState {
    let save = &ctx.vmcb.save;
    PagingState { cr0: save.cr0, cr3: save.cr3, cr4: save.cr4, efer: save.efer }
}

/// Copies the bytes of the instruction at RIP; fewer than 15 where a page ends the mapping.
///
/// # Errors
/// The page fault of the first byte.
pub fn fetch(domain: &Domain, ctx: &Context) -> Result<Code, PageFault> {
    let save = &ctx.vmcb.save;
    let start = save.cs.base.wrapping_add(save.rip);
    let access = walk::Access { kind: walk::Kind::Execute, user: save.cpl == 3 };
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
fn code(bytes: [u8; LONGEST], have: usize) -> Code {
    let mut code = Code::from(bytes);
    code.truncate(have);
    code
}

/// Moves data between `buffer` and the guest's linear memory, page by page.
///
/// # Errors
/// Stops at the first page that cannot be reached; earlier pages are done.
pub fn linear(domain: &Domain, vcpu: &Vcpu, ctx: &Context, at: u64, access: Access<'_>) -> Result<(), Fault> {
    let kind = if access.is_write() { walk::Kind::Write } else { walk::Kind::Read };
    let mode = walk::Access { kind, user: ctx.vmcb.save.cpl == 3 };
    let mut access = access;
    let mut done = 0;
    while done < access.len() {
        let from = at.wrapping_add(done as u64);
        let gpa = translate(&paging(ctx), from, mode, &|gpa| domain.read_u64(gpa)).map_err(Fault::Page)?;
        let in_page = (PAGE_SIZE - gpa.page_offset()) as usize;
        let part = done..access.len().min(done + in_page);
        done = part.end;
        let part = access.part(part);
        match physical(domain, vcpu, gpa, part) {
            Answer::Wait => return Err(Fault::Wait),
            Answer::Failed { deferred } => vcpu.fail(gpa.as_u64(), kind == walk::Kind::Write, deferred),
            Answer::Done | Answer::Attend | Answer::Refused => {}
        }
    }
    Ok(())
}

fn physical(domain: &Domain, vcpu: &Vcpu, gpa: Gpa, access: Access<'_>) -> Answer {
    match access {
        Access::Read(buffer) => {
            if domain.read(gpa, buffer).is_ok() {
                return Answer::Done;
            }
            domain.mmio(vcpu, gpa, Access::Read(buffer))
        }
        Access::Write(buffer) => {
            if domain.write(gpa, buffer).is_ok() {
                return Answer::Done;
            }
            domain.mmio(vcpu, gpa, Access::Write(buffer))
        }
    }
}

struct Emulation<'a> {
    /// Offset in the local APIC's page that this instruction faulted on. Compilers and kernels reach
    /// that page by one operand of four bytes, so the operand of that size is it.
    local_apic: Option<u32>,
    domain: &'a Domain,
    vcpu: &'a Vcpu,
    ctx: &'a mut Context,
}

impl Machine for Emulation<'_> {
    type Fault = Fault;

    fn gpr(&self, index: usize) -> u64 {
        gpr(self.ctx, index)
    }

    fn set_gpr(&mut self, index: usize, value: u64) {
        set_gpr(self.ctx, index, value);
    }

    fn rflags(&self) -> u64 {
        self.ctx.vmcb.save.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.ctx.vmcb.save.rflags = value;
    }

    fn rip(&self) -> u64 {
        self.ctx.vmcb.save.rip
    }

    fn set_rip(&mut self, value: u64) {
        self.ctx.vmcb.save.rip = value;
        self.ctx.vmcb.control.interrupt_shadow = 0;
    }

    fn segment_base(&self, segment: Segment) -> u64 {
        segment_base(self.ctx, segment)
    }

    fn bitness(&self) -> u32 {
        bitness(self.ctx)
    }

    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        if let (Some(offset), 4) = (self.local_apic, buffer.len()) {
            super::inject::sync_pv_eoi(self.domain, self.ctx);
            let now = self.ctx.guest_tsc();
            buffer.copy_from_slice(&self.ctx.lapic.mmio_read(offset, now).to_le_bytes());
            return Ok(());
        }
        linear(self.domain, self.vcpu, self.ctx, at, Access::Read(buffer))
    }

    fn write(&mut self, at: u64, buffer: &[u8]) -> Result<(), Fault> {
        if let (Some(offset), Ok(bytes)) = (self.local_apic, <[u8; 4]>::try_from(buffer)) {
            super::inject::sync_pv_eoi(self.domain, self.ctx);
            let now = self.ctx.guest_tsc();
            let effect = self.ctx.lapic.mmio_write(offset, u32::from_le_bytes(bytes), now);
            *self.vcpu.route.lock() = self.ctx.lapic.routing();
            super::msr::reflect_tpr(self.ctx);
            super::msr::apply(self.domain, self.vcpu, effect);
            return Ok(());
        }
        linear(self.domain, self.vcpu, self.ctx, at, Access::Write(buffer))
    }
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

/// Base of a segment; zero for the flat ones of 64-bit mode.
pub fn segment_base(ctx: &Context, segment: Segment) -> u64 {
    let save = &ctx.vmcb.save;
    let flat = bitness(ctx) == 64;
    match segment {
        Segment::Fs => save.fs.base,
        Segment::Gs => save.gs.base,
        _ if flat => 0,
        Segment::Es => save.es.base,
        Segment::Cs => save.cs.base,
        Segment::Ss => save.ss.base,
        Segment::Ds => save.ds.base,
    }
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

/// Handles a nested page fault.
pub fn handle(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    let gpa = Gpa::new(ctx.vmcb.control.exit_info2);
    vcpu.exits.count(domain.classify(gpa) as usize);
    if ctx.vmcb.control.exit_interrupt_info & event::VALID != 0 {
        // Its descriptor tables or its stack are where no RAM is. A processor that reads ones there
        // ends in a triple fault; the instruction at RIP has nothing to do with it.
        return crash::end(domain, vcpu, ctx, EndReason::TripleFault);
    }
    let code = match usize::from(ctx.vmcb.control.fetched & 15) {
        0 => match fetch(domain, ctx) {
            Ok(code) => code,
            Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
        },
        saved => code(ctx.vmcb.control.instruction, saved),
    };
    let local_apic = (gpa.align_down(PAGE_SIZE).as_u64() == layout::LOCAL_APIC && ctx.lapic.is_xapic())
        .then(|| gpa.page_offset() as u32);
    let mut emulation = Emulation { local_apic, domain, vcpu, ctx };
    let done = step(&mut emulation, &code);
    match done {
        Ok(()) => Flow::Attend,
        Err(Error::Fault(Fault::Page(fault))) => raise_page_fault(ctx, fault.address, fault.error_code),
        Err(Error::Fault(Fault::Wait)) => {
            vcpu.set_state(RunState::WaitsForDevice);
            Flow::Leave
        }
        Err(_) => {
            vcpu.refusals.count(Refusal::Instruction as usize);
            raise(ctx, exception::UD, None)
        }
    }
}
