//! Port accesses that the I/O permission map selected.
//!
//! Source: APM vol 2, 15.10.2 (EXITINFO1 of an IOIO intercept). A string instruction is taken whole:
//! one exit moves as many elements as fit the buffer, not one.

use super::exit::{Flow, exception, raise, raise_page_fault};
use super::mmio::{self, Fault};
use crate::domain::counters::Refusal;
use crate::domain::vcpu::{Context, RunState, Vcpu};
use crate::domain::{Access, Answer, Domain, PortHandler};
use sluice_emulator::StringIo;
use sluice_traps::Direction;
use sluice_traps::ports::Disposition;

/// Bytes of a string instruction handled in one go.
const CHUNK: usize = 4096;

struct PortExit {
    port: u16,
    width: u8,
    input: bool,
    string: bool,
    next_rip: u64,
}

/// Handles IN, OUT, INS and OUTS.
pub fn handle(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context) -> Flow {
    let info = ctx.vmcb.control.exit_info1;
    let exit = PortExit {
        port: (info >> 16) as u16,
        width: (info >> 4 & 7) as u8,
        input: info & 1 != 0,
        string: info & 4 != 0,
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
        return string(domain, vcpu, ctx, &exit, handler);
    }
    let mut bytes = [0xff; 4];
    let len = usize::from(exit.width).min(4);
    let answer = if exit.input {
        domain.port(handler, exit.port, exit.width, Access::Read(&mut bytes[..len]))
    } else {
        bytes = (ctx.vmcb.save.rax as u32).to_le_bytes();
        domain.port(handler, exit.port, exit.width, Access::Write(&bytes[..len]))
    };
    match answer {
        Answer::Wait => {
            vcpu.set_state(RunState::WaitsForDevice);
            return Flow::Leave;
        }
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
    ctx.vmcb.save.rip = exit.next_rip;
    ctx.vmcb.control.interrupt_shadow = 0;
    if answer == Answer::Attend { Flow::Attend } else { Flow::Enter }
}

#[cold]
fn string(domain: &Domain, vcpu: &Vcpu, ctx: &mut Context, exit: &PortExit, handler: PortHandler) -> Flow {
    let code = match mmio::fetch(domain, ctx) {
        Ok(code) => code,
        Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
    };
    let Ok(io) = StringIo::decode(&code, mmio::bitness(ctx)) else {
        vcpu.refusals.count(Refusal::Instruction as usize);
        return raise(ctx, exception::UD, None);
    };
    let mut buffer = [0u8; CHUNK];
    let width = usize::from(exit.width);
    // A backward string goes element by element: no driver uses one.
    let batch = if ctx.vmcb.save.rflags & 1 << 10 != 0 { 1 } else { CHUNK / width };
    loop {
        let count = io.remaining(mmio::gpr(ctx, 1));
        if count == 0 {
            break;
        }
        let now = count.min(batch as u64) as usize;
        let index = mmio::gpr(ctx, if exit.input { 7 } else { 6 });
        let at = mmio::segment_base(ctx, io.segment()).wrapping_add(index & io.address_mask());
        let part = &mut buffer[..now * width];
        let answer = if exit.input {
            // The destination must be reachable before the device is read: its data come but once.
            match probe(domain, ctx, at, part.len()) {
                Err(fault) => return raise_page_fault(ctx, fault.address, fault.error_code),
                Ok(()) => domain.port(handler, exit.port, exit.width, Access::Read(part)),
            }
        } else {
            match mmio::linear(domain, vcpu, ctx, at, Access::Read(part)) {
                Err(Fault::Page(fault)) => return raise_page_fault(ctx, fault.address, fault.error_code),
                Err(Fault::Wait) => Answer::Wait,
                Ok(()) => domain.port(handler, exit.port, exit.width, Access::Write(part)),
            }
        };
        match answer {
            Answer::Wait => {
                vcpu.set_state(RunState::WaitsForDevice);
                return Flow::Leave;
            }
            Answer::Refused => vcpu.refusals.count(handler.refusal() as usize),
            Answer::Failed { deferred } => vcpu.fail(exit.port.into(), !exit.input, deferred),
            Answer::Done | Answer::Attend => {}
        }
        if exit.input
            && let Err(Fault::Page(fault)) = mmio::linear(domain, vcpu, ctx, at, Access::Write(part))
        {
            return raise_page_fault(ctx, fault.address, fault.error_code);
        }
        advance(ctx, &io, exit, now as u64);
        if !io.repeats() {
            break;
        }
        if io.remaining(mmio::gpr(ctx, 1)) != 0 {
            // More than a buffer's worth: the instruction exits again for the rest, so that no guest
            // can keep the processor by a huge count.
            return Flow::Attend;
        }
    }
    ctx.vmcb.save.rip = exit.next_rip;
    ctx.vmcb.control.interrupt_shadow = 0;
    Flow::Attend
}

/// Whether the guest may write `len` bytes at a linear address.
fn probe(domain: &Domain, ctx: &Context, at: u64, len: usize) -> Result<(), sluice_emulator::PageFault> {
    use sluice_emulator::{translate, walk};
    let mode = walk::Access { kind: walk::Kind::Write, user: ctx.vmcb.save.cpl == 3 };
    let last = at.wrapping_add(len.saturating_sub(1) as u64);
    let mut page = at;
    loop {
        translate(&mmio::paging(ctx), page, mode, &|gpa| domain.read_u64(gpa))?;
        let next = (page | 0xfff).wrapping_add(1);
        if next > last || next == 0 {
            return Ok(());
        }
        page = next;
    }
}

/// Moves the index and count registers past `elements`.
fn advance(ctx: &mut Context, io: &StringIo, exit: &PortExit, elements: u64) {
    let backward = ctx.vmcb.save.rflags & 1 << 10 != 0;
    let register = if exit.input { 7 } else { 6 };
    let bytes = elements * u64::from(exit.width);
    let old = mmio::gpr(ctx, register);
    let moved = if backward { old.wrapping_sub(bytes) } else { old.wrapping_add(bytes) };
    mmio::set_gpr(ctx, register, io.merge(old, moved));
    if io.repeats() {
        let count = mmio::gpr(ctx, 1);
        mmio::set_gpr(ctx, 1, io.merge(count, count.wrapping_sub(elements)));
    }
}
