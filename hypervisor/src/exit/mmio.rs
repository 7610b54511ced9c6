//! Nested page faults: a guest touched memory that is not RAM.
//!
//! The instruction is executed here. Each of its memory operands goes where its own address leads: the guest's page
//! tables say to which guest-physical address, and that is RAM, the processor's local APIC, or what a page hook names.
//! Where nothing is, reads give ones and writes vanish, as on a PC.
//!
//! An operand is one access, but for these: at a page boundary it is two, the lower first; registers see at most eight
//! bytes at a time, so that a vector register is two accesses, the lower first.

use super::flow::{Flow, exception, raise, raise_page_fault, retire, wait_for_device};
use super::guest::{GuestTables, addressing, bitness, code, fetch, gpr, segment, set_gpr};
use super::{crash, inject, moves, msr};
use crate::cpu::fpu;
use crate::domain::counters::{Exit, Refusal};
use crate::domain::vcpu::{Context, Vcpu};
use crate::domain::{Answer, Domain, EndReason, PageHandler, Transfer, layout};
use crate::svm::vmcb::event;
use sluice_insn::walk::Kind;
use sluice_insn::{Error, Machine, Pieces, Segment, step};
use sluice_memory::{Gpa, PAGE_SIZE};

/// Most bytes of one access to registers.
const WIDEST: usize = 8;

/// Why an emulated access did not come about.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The guest's own segments or page tables say no.
    Guest(sluice_insn::Fault),
    /// The device is held by another domain: try again later.
    Wait,
    /// The device has more to do: try again at once.
    Again,
}

impl From<sluice_insn::Fault> for Fault {
    fn from(fault: sluice_insn::Fault) -> Self {
        Self::Guest(fault)
    }
}

/// Leaves an instruction that met a fault as it is: raises the exception, or has it run again later.
pub fn abandon(vcpu: &Vcpu, ctx: &mut Context, fault: Fault) -> Flow {
    use sluice_insn::Fault as Guest;
    match fault {
        Fault::Guest(Guest::GeneralProtection) => raise(ctx, exception::GP, Some(0)),
        Fault::Guest(Guest::Stack) => raise(ctx, exception::SS, Some(0)),
        Fault::Guest(Guest::Page(fault)) => raise_page_fault(ctx, fault.address, fault.error_code),
        Fault::Guest(Guest::Alignment) => raise(ctx, exception::AC, Some(0)),
        Fault::Guest(Guest::Changed) | Fault::Again => Flow::Attend,
        Fault::Wait => wait_for_device(vcpu),
    }
}

/// Moves the bytes of an operand that was resolved, to or from RAM as a whole, and registers in units of so many bytes.
///
/// # Errors
/// [`Fault::Wait`], [`Fault::Again`]: what comes before is done.
pub fn transfer(
    domain: &Domain,
    vcpu: &Vcpu,
    ctx: &mut Context,
    pieces: &Pieces,
    unit: usize,
    mut access: Transfer<'_>,
) -> Result<(), Fault> {
    let len = access.len();
    let boundary = pieces.len.min(len);
    move_piece(domain, vcpu, ctx, pieces.first, unit, access.part(0..boundary))?;
    match pieces.second {
        Some(second) => move_piece(domain, vcpu, ctx, second, unit, access.part(boundary..len)),
        None => Ok(()),
    }
}

/// The same for bytes that lie in one page.
fn move_piece(
    domain: &Domain,
    vcpu: &Vcpu,
    ctx: &mut Context,
    gpa: Gpa,
    unit: usize,
    mut access: Transfer<'_>,
) -> Result<(), Fault> {
    let done = match &mut access {
        Transfer::Read(buffer) => domain.read(gpa, buffer),
        Transfer::Write(bytes) => domain.write(gpa, bytes),
    };
    if done.is_ok() {
        return Ok(());
    }
    let is_local_apic = gpa.align_down(PAGE_SIZE).as_u64() == layout::LOCAL_APIC && ctx.lapic.is_xapic();
    let (len, is_write) = (access.len(), access.is_write());
    for start in (0..len).step_by(unit.max(1)) {
        let part = access.part(start..len.min(start + unit));
        let at = Gpa::new(gpa.as_u64().wrapping_add(start as u64));
        if is_local_apic {
            local_apic(domain, vcpu, ctx, at.page_offset() as u32, part);
            continue;
        }
        match domain.mmio(vcpu, at, part) {
            Answer::Wait => return Err(Fault::Wait),
            Answer::Again => return Err(Fault::Again),
            Answer::Failed { deferred } => vcpu.fail(at.as_u64(), is_write, deferred),
            Answer::Done | Answer::Attend | Answer::Refused => {}
        }
    }
    Ok(())
}

fn local_apic(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, offset: u32, access: Transfer<'_>) {
    inject::sync_local_apic(domain, ctx);
    let now = ctx.guest_tsc();
    match access {
        Transfer::Read(buffer) => ctx.lapic.mmio_load(offset, buffer, now),
        Transfer::Write(bytes) => {
            let effect = ctx.lapic.mmio_store(offset, bytes, now);
            *vcpu.route.lock() = ctx.lapic.routing();
            msr::reflect_tpr(ctx);
            msr::apply(domain, vcpu, effect);
        }
    }
}

struct Emulation<'a> {
    domain: &'a Domain,
    vcpu: &'a Vcpu,
    ctx: &'a mut Context,
}

impl Emulation<'_> {
    fn resolve(&self, at: u64, len: usize, kind: Kind) -> Result<Pieces, Fault> {
        Ok(addressing(self.ctx).resolve(at, len, kind, &GuestTables(self.domain))?)
    }
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

    fn retire(&mut self, length: u64) {
        let next = self.ctx.vmcb.save.rip.wrapping_add(length);
        retire(self.ctx, next);
    }

    fn xmm(&self, index: usize) -> u128 {
        fpu::xmm(index)
    }

    fn set_xmm(&mut self, index: usize, value: u128) {
        fpu::set_xmm(index, value);
    }

    fn bitness(&self) -> u32 {
        bitness(self.ctx)
    }

    fn stack_bits(&self) -> u32 {
        match (bitness(self.ctx), segment(self.ctx, Segment::Ss).is_big()) {
            (64, _) => 64,
            (_, true) => 32,
            (_, false) => 16,
        }
    }

    fn linear(&self, name: Segment, offset: u64, len: usize, kind: Kind) -> Result<u64, Fault> {
        Ok(addressing(self.ctx).linear(name, &segment(self.ctx, name), offset, len, kind)?)
    }

    fn probe(&mut self, at: u64, len: usize, kind: Kind) -> Result<(), Fault> {
        self.resolve(at, len, kind).map(|_| ())
    }

    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let pieces = self.resolve(at, buffer.len(), Kind::Read)?;
        transfer(self.domain, self.vcpu, self.ctx, &pieces, WIDEST, Transfer::Read(buffer))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let pieces = self.resolve(at, bytes.len(), Kind::Write)?;
        transfer(self.domain, self.vcpu, self.ctx, &pieces, WIDEST, Transfer::Write(bytes))
    }
}

/// Handles a nested page fault. Not a part of the run loop, whose other exits would pay for the registers it needs.
#[inline(never)]
pub fn handle(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    let gpa = Gpa::new(ctx.vmcb.control.exit_info2);
    let handler = domain.page_handler(gpa);
    vcpu.exits.count(handler.map_or(Exit::MmioOther, PageHandler::exit) as usize);
    if ctx.vmcb.control.exit_interrupt_info & event::VALID != 0 {
        // Its descriptor tables or its stack are where no RAM is. A processor that reads ones there
        // ends in a triple fault; the instruction at RIP has nothing to do with it.
        return crash::end(domain, vcpu, ctx, EndReason::TripleFault);
    }
    if let Some(flow) = handler.and_then(|handler| moves::repeat(domain, vcpu, ctx, gpa, handler)) {
        return flow;
    }
    emulate(domain, vcpu, ctx, handler.is_some())
}

/// Executes the instruction that met the fault, on a page that has a handler or none. Not a part of [`handle`]: moves that are kept would pay for
/// the stack it needs.
#[inline(never)]
fn emulate(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, handled: bool) -> Flow {
    let code = match usize::from(ctx.vmcb.control.fetched & 15) {
        0 => match fetch(domain, ctx) {
            Ok(code) => code,
            Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
        },
        saved => code(ctx.vmcb.control.instruction, saved),
    };
    let rip = ctx.vmcb.save.rip;
    match step(&mut Emulation { domain, vcpu, ctx }, &code) {
        Ok(()) => {
            if ctx.vmcb.save.rip == rip {
                // It repeats: one that is stepped through traps after each element.
                retire(ctx, rip);
            } else if handled {
                moves::keep(domain, ctx, rip, &code);
            }
            Flow::Attend
        }
        Err(Error::Fault(fault)) => abandon(vcpu, ctx, fault),
        Err(Error::Unsupported) => {
            vcpu.refusals.count(Refusal::Instruction as usize);
            raise(ctx, exception::UD, None)
        }
    }
}
