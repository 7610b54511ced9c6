//! Moves to and from registers in memory that a processor has made before.
//!
//! An instruction that touches what is not RAM is fetched and decoded, and its operands are looked up in the guest's page
//! tables. Drivers execute few such instructions, mostly plain moves, again and again: [`Moves`](sluice_insn::plain::Moves)
//! keeps what these are, and compares at each exit what makes them so. The operand's address is the processor's own. What does
//! not compare, or is not kept, goes the long way.
//!
//! Source: APM vol 2, 15.25.6 (EXITINFO1 and EXITINFO2 of a nested page fault).

use super::flow::{Flow, retire, wait_for_device};
use super::guest::{Code, bitness, gpr, paging, set_gpr};
use crate::domain::vcpu::{Context, Vcpu};
use crate::domain::{Answer, Domain, PageHandler, Transfer};
use sluice_insn::plain::Met;
use sluice_memory::Gpa;

/// EXITINFO1: the access was a write.
const WRITE: u64 = 1 << 1;
/// It was an instruction fetch.
const FETCH: u64 = 1 << 4;
/// The guest's own access met the fault, not the walk of its page tables.
const FINAL: u64 = 1 << 32;

/// Segments and alignment say nothing.
fn is_plain_mode(ctx: &Context) -> bool {
    ctx.vmcb.save.cpl == 0 && bitness(ctx) == 64
}

/// Makes the move that has just exited at `gpa`, which `handler` has, if it is one that is kept.
#[inline]
pub fn repeat(
    domain: &Domain,
    vcpu: &Vcpu,
    ctx: &mut Context,
    gpa: Gpa,
    handler: PageHandler,
) -> Option<Flow> {
    let (save, control) = (&ctx.vmcb.save, &ctx.vmcb.control);
    let why = control.exit_info1;
    if why & (FINAL | FETCH) != FINAL || !is_plain_mode(ctx) || handler == PageHandler::LocalApic {
        return None;
    }
    let met = Met { rip: save.rip, cr3: save.cr3, gpa, is_write: why & WRITE != 0 };
    let saved = control.instruction.get(..usize::from(control.fetched & 15)).unwrap_or_default();
    let gprs = |register| gpr(ctx, register);
    let plain = ctx.moves.find(&met, gprs, saved, |at| domain.read_word(at))?;
    let register = usize::from(plain.register);
    let old = gpr(ctx, register);
    let mut bytes = (old as u32).to_le_bytes();
    let part = bytes.get_mut(..plain.width.into())?;
    let transfer = if plain.is_store { Transfer::Write(part) } else { Transfer::Read(part) };
    let answer = domain.serve_page(Some(handler), vcpu, gpa, transfer);
    if answer != Answer::Done {
        match answer {
            Answer::Wait => return Some(wait_for_device(vcpu)),
            Answer::Again => return Some(Flow::Attend),
            Answer::Failed { deferred } => vcpu.fail(gpa.as_u64(), plain.is_store, deferred),
            Answer::Done | Answer::Attend | Answer::Refused => {}
        }
    }
    if !plain.is_store {
        set_gpr(ctx, register, plain.loaded(old, u32::from_le_bytes(bytes)));
    }
    let next = met.rip.wrapping_add(plain.length.into());
    retire(ctx, next);
    Some(if answer == Answer::Done { Flow::Enter } else { Flow::Attend })
}

/// Keeps the instruction that was at `rip`, and has been executed, if it can be repeated.
pub fn keep(domain: &Domain, ctx: &mut Context, rip: u64, code: &Code) {
    if is_plain_mode(ctx) {
        let state = paging(ctx);
        ctx.moves.keep(&state, rip, code, |gpa| domain.word_place(gpa), |at| domain.read_word(at));
    }
}
