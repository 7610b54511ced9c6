//! A paravirtual guest that asks for anything.

use crate::Input;
use sluice_xenpv::model::gate::{self, Left};
use sluice_xenpv::model::{self, Machinery};
use sluice_xenpv::{After, Asked, Guest, Image, Registers};

/// Hypercalls, exceptions and privileged instructions in any order, with arguments that often mean something. Asserts after each
/// that no page table, no descriptor table and no frame of the hypervisor's can be written by the guest or by its devices ([`model::check`]).
pub fn calls(data: &[u8]) {
    let mut input = Input::new(data);
    // With a device, or with two processors, which ask in any order.
    let has_device = input.flag();
    let (mut guest, mut machine, mut all) = if has_device {
        let (guest, machine, registers) = model::owner();
        (guest, machine, [registers; 2])
    } else {
        model::pair()
    };
    // A page that the kernel can write, for arguments.
    let page = 700;
    let arguments = model::BASE + page * 4096;
    while !input.is_empty() {
        let asks = usize::from(!has_device && input.flag());
        guest.run(asks as u32);
        let registers = &mut all[asks];
        for index in 0..input.u8() as usize % 16 {
            let word = argument(&mut input, arguments);
            if guest
                .types
                .counts(frame(page))
                .is_some_and(|counts| counts.kind == sluice_pagetypes::Kind::Writable)
            {
                machine.set_word(frame(page), index, word);
            }
        }
        for index in [2, 6, 7, 8, 10] {
            registers.gpr[index] = argument(&mut input, arguments);
        }
        let after = match input.u8() % 8 {
            0 => {
                // To the hardware all is done at privilege level 3.
                let fault = (u64::from(input.u8() | 4), arguments + u64::from(input.u16()));
                let left = gate::page_fault(&guest, &mut machine, registers, fault, input.u8().into());
                leave(&mut guest, &mut machine, registers, left)
            }
            1 => guest.general_protection(&mut machine, registers, input.u8().into()),
            2 => guest.invalid_opcode(&mut machine, registers),
            chosen => {
                registers.gpr[0] = u64::from(input.u8() % 64);
                if chosen == 3 {
                    reserve(&mut input, &guest, &mut machine, registers, page);
                }
                registers.rflags = input.u64();
                let left = gate::syscall(&guest, &mut machine, registers, input.u8().into());
                leave(&mut guest, &mut machine, registers, left)
            }
        };
        model::check(&guest, &machine);
        if let After::End(_) = after {
            return;
        }
        machine.now += u64::from(input.u8());
        guest.tick(&mut machine);
        guest.raise_line(&mut machine, model::LINE_OF_DEVICE);
        guest.serve_console(&mut machine);
        if let After::End(_) = guest.deliver(&mut machine, registers) {
            return;
        }
    }
}

/// A call by which frames are given back or had again, with a list of some that may be.
fn reserve(
    input: &mut Input<'_>,
    guest: &Guest,
    machine: &mut Machinery,
    registers: &mut Registers,
    page: u64,
) {
    const MEMORY_OP: u64 = 12;
    const LIST: u64 = 8;
    let arguments = model::BASE + page * 4096;
    let operation = if input.flag() { 1 } else { 6 };
    (registers.gpr[0], registers.gpr[7], registers.gpr[6]) = (MEMORY_OP, operation, arguments);
    let count = u64::from(input.u8() % 8);
    let words = [arguments + LIST * 8, count, 0, 0x7ff0];
    let frames = (0..count).map(|_| argument(input, arguments));
    let all: Vec<u64> = words.into_iter().chain([0; 4]).chain(frames).collect();
    let is_memory = |counts: sluice_pagetypes::Counts| counts.kind == sluice_pagetypes::Kind::Writable;
    if guest.types.counts(frame(page)).is_some_and(is_memory) {
        all.into_iter().enumerate().for_each(|(index, word)| machine.set_word(frame(page), index, word));
    }
}

/// What comes of an exit from the gate, or of none.
fn leave(guest: &mut Guest, machine: &mut Machinery, registers: &mut Registers, left: Left) -> After {
    guest.enter_host(machine);
    if left == Left::Passed {
        return After::Enter;
    }
    let after = match guest.leave_gate(machine, registers) {
        Asked::Nothing => After::Enter,
        Asked::Call => model::call(guest, machine, registers).0,
        Asked::Fault { error, address } => guest.page_fault(machine, registers, error, address),
    };
    guest.leave_host(machine);
    after
}

/// A kernel file.
pub fn image(data: &[u8]) {
    let mut file = model::kernel();
    let mut input = Input::new(data);
    // A right one with some bytes changed; or anything.
    if input.flag() {
        while !input.is_empty() {
            let at = usize::from(input.u16()) % file.len();
            file[at] = input.u8();
        }
    } else {
        file = input.rest().to_vec();
    }
    if let Ok(image) = Image::parse(&file) {
        let _ = model::build(&image);
    }
}

fn frame(page: u64) -> sluice_pagetypes::Mfn {
    sluice_pagetypes::Mfn(model::FIRST + page)
}

fn argument(input: &mut Input<'_>, arguments: u64) -> u64 {
    let small = u64::from(input.u16());
    match input.u8() % 8 {
        0 => small % 32,
        1 => arguments + small % 4096 / 8 * 8,
        2 => model::FIRST + small % model::FRAMES,
        3 => (model::FIRST + small % model::FRAMES) << 12 | u64::from(input.u8()) << 4 & 0xff8,
        4 => (model::FIRST + small % model::FRAMES) << 12 | u64::from(input.u8()),
        5 => model::BASE + small % model::FRAMES * 4096,
        6 if small % 2 == 0 => 0x7ff0,
        6 => (model::REGISTERS.start + small % 40) << 12 | u64::from(input.u8()),
        _ => input.u64(),
    }
}
