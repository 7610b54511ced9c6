//! Port accesses that the I/O permission map selected.
//!
//! Source: APM vol 2, 15.10.2 (EXITINFO1 of an IOIO intercept). A string instruction is taken whole:
//! one exit moves as many elements as fit the buffer, not one. The processor has not looked at its memory operand,
//! so that is checked here like any other. The elements before the one that faults are done then, and the registers
//! say so.

use super::flow::{Flow, exception, raise, raise_page_fault, retire, wait_for_device};
use super::guest::{self, GuestTables};
use super::mmio;
use crate::domain::counters::Refusal;
use crate::domain::vcpu::{Context, Vcpu};
use crate::domain::{Answer, Domain, PortHandler, Transfer};
use sluice_insn::walk::Kind;
use sluice_insn::{Fault, Pieces, StringIo};
use sluice_traps::Direction;
use sluice_traps::ports::Disposition;

/// Most runs of elements that lie side by side, handled in one go. A backward string has one element in each; no driver uses one.
const RUNS: usize = 16;
const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_DF: u64 = 1 << 10;

struct PortExit {
    port: u16,
    width: u8,
    input: bool,
    string: bool,
    repeats: bool,
    next_rip: u64,
}

/// Handles IN, OUT, INS and OUTS. Part of the run loop, as [`Domain::port`] is.
#[inline(always)]
pub fn handle(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    let info = ctx.vmcb.control.exit_info1;
    let exit = PortExit {
        port: (info >> 16) as u16,
        width: (info >> 4 & 7) as u8,
        input: info & 1 != 0,
        string: info & 4 != 0,
        repeats: info & 8 != 0,
        next_rip: ctx.vmcb.control.exit_info2,
    };
    let direction = if exit.input { Direction::READ } else { Direction::WRITE };
    let handler = match domain.ports.lock().lookup_access(exit.port, exit.width, direction) {
        Disposition::Handler(handler) => handler,
        // The table changed since the exit: run the instruction again.
        Disposition::Direct => return Flow::Enter,
        Disposition::Refused => PortHandler::None,
    };
    vcpu.exits.count(handler.exit() as usize);
    if exit.string {
        let mut buffer = core::mem::take(&mut ctx.string);
        let flow = string(domain, vcpu, ctx, &exit, handler, &mut buffer);
        ctx.string = buffer;
        return flow;
    }
    let mut bytes = [0xff; 4];
    let len = usize::from(exit.width).min(4);
    let answer = if exit.input {
        domain.port(handler, exit.port, exit.width, Transfer::Read(&mut bytes[..len]))
    } else {
        bytes = (ctx.vmcb.save.rax as u32).to_le_bytes();
        domain.port(handler, exit.port, exit.width, Transfer::Write(&bytes[..len]))
    };
    match answer {
        Answer::Wait => {
            return wait_for_device(vcpu);
        }
        Answer::Again => return Flow::Attend,
        Answer::Refused => vcpu.refusals.count(handler.refusal() as usize),
        Answer::Failed { deferred } => vcpu.fail(exit.port.into(), !exit.input, deferred),
        Answer::Done | Answer::Attend => {}
    }
    if exit.input {
        let value = u64::from(u32::from_le_bytes(bytes));
        let rax = ctx.vmcb.save.rax;
        ctx.vmcb.save.rax = match exit.width {
            1 => rax & !0xff | value & 0xff,
            2 => rax & !0xffff | value & 0xffff,
            _ => value,
        };
    }
    retire(ctx, exit.next_rip);
    if answer == Answer::Attend { Flow::Attend } else { Flow::Enter }
}

#[cold]
fn string(
    domain: &Domain,
    vcpu: &Vcpu,
    ctx: &mut Context,
    exit: &PortExit,
    handler: PortHandler,
    buffer: &mut [u8],
) -> Flow {
    let length = exit.next_rip.wrapping_sub(ctx.vmcb.save.rip);
    let bitness = guest::bitness(ctx);
    let known = StringIo::without_prefixes(bitness, !exit.input, exit.width, exit.repeats, length);
    let io = match known {
        Some(io) => io,
        None => match guest::fetch(domain, ctx).map(|code| StringIo::decode(&code, bitness)) {
            Ok(Ok(io)) => io,
            Ok(Err(_)) => {
                vcpu.refusals.count(Refusal::Instruction as usize);
                return raise(ctx, exception::UD, None);
            }
            Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
        },
    };
    let mut room = buffer.len();
    let width = usize::from(exit.width.max(1));
    let mut flow = Flow::Enter;
    for _ in 0..RUNS {
        let count = io.remaining(guest::gpr(ctx, 1)).min((room / width) as u64);
        if count == 0 {
            break;
        }
        // The destination is known to be there before the device is read: its data come but once.
        let run = match next_run(domain, ctx, &io, exit, count) {
            Ok(run) => run,
            Err(fault) => return mmio::abandon(vcpu, ctx, fault.into()),
        };
        let Some(part) = buffer.get_mut(..run.len) else { break };
        let answer = if exit.input {
            // What a device leaves as it was is not what an earlier one left here.
            part.fill(0);
            domain.port(handler, exit.port, exit.width, Transfer::Read(part))
        } else {
            match mmio::transfer(domain, vcpu, ctx, &run.place, width, Transfer::Read(part)) {
                Ok(()) => domain.port(handler, exit.port, exit.width, Transfer::Write(part)),
                Err(fault) => return mmio::abandon(vcpu, ctx, fault),
            }
        };
        match answer {
            Answer::Wait => {
                return wait_for_device(vcpu);
            }
            Answer::Again => return Flow::Attend,
            Answer::Refused => vcpu.refusals.count(handler.refusal() as usize),
            Answer::Failed { deferred } => vcpu.fail(exit.port.into(), !exit.input, deferred),
            Answer::Done => {}
            Answer::Attend => flow = Flow::Attend,
        }
        if exit.input
            && let Err(fault) = mmio::transfer(domain, vcpu, ctx, &run.place, width, Transfer::Write(part))
        {
            return mmio::abandon(vcpu, ctx, fault);
        }
        advance(ctx, &io, exit, (run.len / width) as u64);
        room -= run.len;
        if !io.repeats() || ctx.vmcb.save.rflags & RFLAGS_TF != 0 {
            break;
        }
    }
    if io.repeats() && io.remaining(guest::gpr(ctx, 1)) != 0 {
        // The instruction exits again for the rest, so that no guest can keep the processor by a huge count.
        let again = ctx.vmcb.save.rip;
        retire(ctx, again);
        return Flow::Attend;
    }
    retire(ctx, exit.next_rip);
    flow
}

/// Elements that lie side by side, and where.
struct Run {
    place: Pieces,
    /// Bytes of all of them.
    len: usize,
}

/// The next elements, at most `count`, which is at least one: as many as can be reached at once.
fn next_run(
    domain: &Domain,
    ctx: &Context,
    io: &StringIo,
    exit: &PortExit,
    count: u64,
) -> Result<Run, Fault> {
    let (register, kind) = if exit.input { (7, Kind::Write) } else { (6, Kind::Read) };
    let (width, name) = (usize::from(exit.width.max(1)), io.segment());
    let (addressing, segment) = (guest::addressing(ctx), guest::segment(ctx, name));
    let offset = guest::gpr(ctx, register) & io.address_mask();
    let linear = addressing.linear(name, &segment, offset, width, kind)?;
    let place = addressing.resolve(linear, width, kind, &GuestTables(domain))?;
    let one_by_one = ctx.vmcb.save.rflags & (RFLAGS_DF | RFLAGS_TF) != 0;
    let elements = if one_by_one { 1 } else { io.together(offset, linear, width, count) };
    let len = elements as usize * width;
    let all_in_segment = addressing.linear(name, &segment, offset, len, kind).is_ok();
    // More than one element lie in the first one's page.
    Ok(match place.second {
        None if all_in_segment => Run { place: Pieces { len, ..place }, len },
        _ => Run { place, len: width },
    })
}

/// Moves the index and count registers past `elements`.
fn advance(ctx: &mut Context, io: &StringIo, exit: &PortExit, elements: u64) {
    let backward = ctx.vmcb.save.rflags & RFLAGS_DF != 0;
    let register = if exit.input { 7 } else { 6 };
    let bytes = elements * u64::from(exit.width);
    let old = guest::gpr(ctx, register);
    let moved = if backward { old.wrapping_sub(bytes) } else { old.wrapping_add(bytes) };
    guest::set_gpr(ctx, register, io.merge(old, moved));
    if io.repeats() {
        let count = guest::gpr(ctx, 1);
        guest::set_gpr(ctx, 1, io.merge(count, count.wrapping_sub(elements)));
    }
}
