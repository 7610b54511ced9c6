//! VMMCALL: calls by number. How they are made and answered: [`sluice_hypercall::call`].

use super::flow::{Flow, skip};
use super::guest;
use crate::domain::vcpu::Context;
use crate::domain::{Domain, grants, region, uses};
use sluice_devfile::Range;
use sluice_hypercall::call::{self, Error, Width};
use sluice_hypercall::devfile::{self, DEVFILE_CALLS, DEVFILE_MAX_RANGES};
use sluice_hypercall::grant::{self, GRANT_CALLS};
use sluice_hypercall::region::{self as region_calls, REGION_CALLS};
use sluice_hypercall::table::{self, TABLE_CALLS};
use sluice_memory::Gpa;

/// Carries out what the guest asks for. Its kernel may ask, no program of its.
pub fn handle(domain: &Domain, ctx: &mut Context) -> Flow {
    let width = if guest::bitness(ctx) == 64 { Width::Bits64 } else { Width::Bits32 };
    let fail = |error| call::answer(Err(error), width);
    let (answer, flow) = match width.of(ctx.vmcb.save.rax) {
        _ if ctx.vmcb.save.cpl != 0 => (fail(Error::NotPermitted), Flow::Enter),
        // Interrupts are looked at before the next entry.
        call::VAPIC_POLL_IRQ => (0, Flow::Attend),
        number if call::is_own(number) => (carry_out(domain, ctx, number, width), Flow::Enter),
        _ => (fail(Error::NoSuchCall), Flow::Enter),
    };
    ctx.vmcb.save.rax = answer;
    skip(ctx, 3);
    flow
}

/// A call of Sluice's own. It needs many registers, which no other call saves for it.
#[inline(never)]
fn carry_out(domain: &Domain, ctx: &Context, number: u64, width: Width) -> u64 {
    let [_, rcx, rdx, rbx, _, _, rsi, ..] = ctx.regs;
    let arguments = || [rbx, rcx, rdx, rsi].map(|register| width.of(register));
    call::answer(answer(domain, ctx, number, arguments), width)
}

fn answer(
    domain: &Domain,
    ctx: &Context,
    number: u64,
    arguments: impl Fn() -> [u64; 4],
) -> Result<u64, Error> {
    let none = Error::NoSuchCall;
    match call::interface(number) {
        _ if number == call::NOTIFY => notify(domain, arguments()),
        GRANT_CALLS => grants::call(domain, &grant::Call::decode(number, arguments()).ok_or(none)??),
        TABLE_CALLS => uses::call(domain, &table::Call::decode(number, arguments()).ok_or(none)??),
        DEVFILE_CALLS => device_file(domain, ctx, devfile::Call::decode(number, arguments()).ok_or(none)?),
        REGION_CALLS => region::call(domain, &region_calls::Call::decode(number, arguments()).ok_or(none)??),
        _ => Err(none),
    }
}

/// Another domain's device has used buffers.
fn notify(domain: &Domain, [slot, queue, ..]: [u64; 4]) -> Result<u64, Error> {
    let function = u8::try_from(slot).ok().and_then(|slot| domain.plugged(slot));
    match function.is_some_and(|function| function.used(queue)) {
        true => Ok(0),
        false => Err(Error::BadArgument),
    }
}

/// What an operation on a device file may reach, or a copy of that. Its list of ranges is large: no other call pays for room for it.
#[inline(never)]
fn device_file(domain: &Domain, ctx: &Context, asked: Option<devfile::Call>) -> Result<u64, Error> {
    let asked = asked.ok_or(Error::BadArgument)?;
    let function = |slot| domain.plugged(slot).ok_or(Error::BadArgument);
    match asked {
        devfile::Call::Declare { slot, tag, list, count } => {
            let mut bytes = [0; DEVFILE_MAX_RANGES as usize * Range::SIZE];
            let bytes = bytes.get_mut(..count as usize * Range::SIZE).ok_or(Error::BadArgument)?;
            domain.read(Gpa::new(list), bytes).map_err(|_| Error::BadArgument)?;
            let ranges = Range::decode_list(bytes).ok_or(Error::BadArgument)?;
            let paging = guest::paging(ctx);
            // Without page tables nothing says what is a process'.
            if !paging.is_enabled() {
                return Err(Error::BadArgument);
            }
            function(slot)?.declare(tag, Some((paging, ranges)))?;
        }
        devfile::Call::Withdraw { slot, tag } => function(slot)?.declare(tag, None)?,
        devfile::Call::Copy { slot, copy } => function(slot)?.copy(domain, &copy)?,
    }
    Ok(0)
}
