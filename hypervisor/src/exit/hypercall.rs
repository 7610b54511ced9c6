//! VMMCALL: a table of calls by number. How they are made and answered: [`sluice_hypercall::call`].

use super::flow::{Flow, skip};
use super::guest;
use crate::domain::vcpu::Context;
use crate::domain::{Domain, grants, region, uses};
use sluice_devfile::Range;
use sluice_hypercall::call::{self, Error, Hypercall, Width};
use sluice_hypercall::devfile::{self, DEVFILE_CALLS, DEVFILE_MAX_RANGES};
use sluice_hypercall::grant::{self, GRANT_CALLS};
use sluice_hypercall::region::{self as region_calls, REGION_CALLS};
use sluice_hypercall::table::{self, TABLE_CALLS};
use sluice_memory::Gpa;

/// The answer of a call, and what follows it.
type Answer = Result<(u64, Flow), Error>;

struct Call {
    number: u64,
    carry_out: fn(&Domain, &Hypercall) -> Answer,
}

/// Every call there is.
const CALLS: &[Call] = &[
    Call { number: call::VAPIC_POLL_IRQ, carry_out: poll_interrupts },
    Call { number: call::NOTIFY, carry_out: notify },
];

/// Carries out what the guest asks for. Its kernel may ask, no program of its.
pub fn handle(domain: &Domain, ctx: &mut Context) -> Flow {
    let width = if guest::bitness(ctx) == 64 { Width::Bits64 } else { Width::Bits32 };
    let [_, rcx, rdx, rbx, _, _, rsi, ..] = ctx.regs;
    let asked = Hypercall::decode(ctx.vmcb.save.rax, [rbx, rcx, rdx, rsi], width);
    let outcome = match CALLS.iter().find(|known| known.number == asked.number) {
        _ if ctx.vmcb.save.cpl != 0 => Err(Error::NotPermitted),
        None => typed(domain, ctx, &asked),
        Some(known) => (known.carry_out)(domain, &asked),
    };
    ctx.vmcb.save.rax = call::answer(outcome.map(|(value, _)| value), width);
    skip(ctx, 3);
    outcome.map_or(Flow::Enter, |(_, flow)| flow)
}

/// A call of an interface with arguments of its own.
fn typed(domain: &Domain, ctx: &Context, asked: &Hypercall) -> Answer {
    let Hypercall { number, arguments } = *asked;
    let none = Error::NoSuchCall;
    let value = match call::interface(number) {
        GRANT_CALLS => grants::call(domain, &grant::Call::decode(number, arguments).ok_or(none)??),
        TABLE_CALLS => uses::call(domain, &table::Call::decode(number, arguments).ok_or(none)??),
        DEVFILE_CALLS => device_file(domain, ctx, devfile::Call::decode(number, arguments).ok_or(none)?),
        REGION_CALLS => region::call(domain, &region_calls::Call::decode(number, arguments).ok_or(none)??),
        _ => Err(none),
    };
    Ok((value?, Flow::Enter))
}

/// Interrupts are looked at before the next entry.
fn poll_interrupts(_: &Domain, _: &Hypercall) -> Answer {
    Ok((0, Flow::Attend))
}

/// Another domain's device has used buffers.
fn notify(domain: &Domain, asked: &Hypercall) -> Answer {
    let [slot, queue, ..] = asked.arguments;
    let function = u8::try_from(slot).ok().and_then(|slot| domain.plugged(slot));
    match function.is_some_and(|function| function.used(queue)) {
        true => Ok((0, Flow::Enter)),
        false => Err(Error::BadArgument),
    }
}

/// What an operation on a device file may reach, or a copy of that.
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
