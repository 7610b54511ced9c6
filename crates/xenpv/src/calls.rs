//! Hypercalls by their numbers, and those that are neither about memory nor about events.

use crate::abi::{Error, GDT, M2P, M2P_END, MAX_BATCH, MAX_LINES, PAGE, call};
use crate::guest::gpr;
use crate::reservation::Progress;
use crate::{After, BIOS, End, Guest, Host, Registers};

/// What a call answers, and what follows it.
pub(crate) type Answer = Result<(u64, After), Error>;

/// Bytes of the instruction.
const SYSCALL: u64 = 2;

/// The version that is said to be Xen's: 4.17.
const VERSION: u64 = 4 << 16 | 17;
/// XENFEAT_pae_pgdir_above_4gb, XENFEAT_mmu_pt_update_preserve_ad, XENFEAT_gnttab_map_avail_bits: Linux does not start without the last two.
const FEATURES: u32 = 1 << 4 | 1 << 5 | 1 << 7;

mod version {
    pub const VERSION: u64 = 0;
    pub const EXTRAVERSION: u64 = 1;
    pub const CAPABILITIES: u64 = 3;
    pub const PLATFORM_PARAMETERS: u64 = 5;
    pub const GET_FEATURES: u64 = 6;
    pub const PAGESIZE: u64 = 7;
    pub const GUEST_HANDLE: u64 = 8;
}

mod memory {
    pub const DECREASE_RESERVATION: u64 = 1;
    pub const MAXIMUM_RAM_PAGE: u64 = 2;
    pub const CURRENT_RESERVATION: u64 = 3;
    pub const MAXIMUM_RESERVATION: u64 = 4;
    pub const POPULATE_PHYSMAP: u64 = 6;
    pub const MEMORY_MAP: u64 = 9;
    pub const MACHINE_MEMORY_MAP: u64 = 10;
    pub const EXCHANGE: u64 = 11;
    pub const MACHPHYS_MAPPING: u64 = 12;
    /// Bits of the number that are the operation's; those above them say how many extents are done (MEMOP_EXTENT_SHIFT).
    pub const OPERATION_BITS: u32 = 6;
}

mod sched {
    pub const YIELD: u64 = 0;
    pub const BLOCK: u64 = 1;
    pub const SHUTDOWN: u64 = 2;
    pub const POLL: u64 = 3;
    pub const POWER_OFF: u32 = 0;
    pub const REBOOT: u32 = 1;
}

impl Guest {
    /// A hypercall: its number is in RAX, its arguments in RDI, RSI, RDX, R10 and R8.
    pub(crate) fn hypercall(&mut self, host: &mut impl Host, registers: &mut Registers) -> After {
        let number = registers.gpr[gpr::RAX];
        let [_, _, rdx, _, _, _, rsi, rdi, r8, _, r10, ..] = registers.gpr;
        if number == call::IRET {
            self.counters.call(number);
            let result = self.iret(host, registers);
            return result.unwrap_or(After::End(End::Lost));
        }
        self.types.allow(MAX_LINES);
        let result = match self.types.settle(host) {
            true => self.call(host, registers, number, [rdi, rsi, rdx, r10, r8]),
            false => self.restart(rdi, rsi),
        };
        let (answer, after) = match result {
            Err(Error::Restart) => {
                registers.rip = registers.rip.wrapping_sub(SYSCALL);
                (registers.gpr[gpr::RDI], registers.gpr[gpr::RSI]) = self.rest;
                return After::Yield;
            }
            Ok(answer) => answer,
            Err(error) => (error.code(), After::Enter),
        };
        registers.gpr[gpr::RAX] = answer;
        after
    }

    /// Others have a turn, and then the call goes on with these as its first arguments.
    pub(crate) fn restart<T>(&mut self, first: u64, second: u64) -> Result<T, Error> {
        self.rest = (first, second);
        Err(Error::Restart)
    }

    /// One call, which may be of a batch.
    fn call(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        number: u64,
        arguments: [u64; 5],
    ) -> Answer {
        self.counters.call(number);
        let [first, second, third, fourth, _] = arguments;
        let result = match number {
            call::SET_TRAP_TABLE => self.set_trap_table(host, first),
            call::MMU_UPDATE => self.mmu_update(host, first, second, third, fourth),
            call::SET_GDT => self.set_gdt(host, first, second),
            call::STACK_SWITCH => {
                (self.cpu.kernel_sp, self.cpu.gate_is_stale) = (second, true);
                Ok(0)
            }
            call::FPU_TASKSWITCH => {
                self.cpu.task_switched = first != 0;
                Ok(0)
            }
            call::PLATFORM_OP => self.platform_op(host, first),
            call::SET_DEBUGREG => self.set_debug(first, second),
            call::GET_DEBUGREG => {
                Ok(self.cpu.debug.get(first as usize).copied().unwrap_or(Error::Invalid.code()))
            }
            call::UPDATE_DESCRIPTOR => self.update_descriptor(host, first, second),
            call::MEMORY_OP => self.memory_op(host, first, second),
            call::MULTICALL => return self.multicall(host, registers, first, second),
            call::UPDATE_VA_MAPPING => self.update_va_mapping(host, first, second, third),
            call::SET_TIMER_OP => {
                self.cpu.deadline = (first != 0).then_some(first);
                Ok(0)
            }
            call::XEN_VERSION => self.xen_version(host, first, second),
            call::CONSOLE_IO => self.console_io(host, first, second, third),
            call::VM_ASSIST => vm_assist(first, second),
            call::VCPU_OP => match self.vcpu_op(host, first, second, third) {
                Err(Error::Restart) => self.restart(first, second),
                Err(error) => Err(error),
                done => return done,
            },
            call::SET_SEGMENT_BASE => self.set_segment_base(host, registers, first, second),
            call::MMUEXT_OP => self.mmuext_op(host, first, second, third, fourth),
            call::SCHED_OP => return self.sched_op(host, first, second),
            call::CALLBACK_OP => self.callback_op(host, first, second),
            call::EVENT_CHANNEL_OP => self.event_channel_op(host, first, second),
            call::PHYSDEV_OP => self.physdev_op(host, first, second),
            call::SEMI_WRITABLE => self.semi_writable(host, first, second, third),
            _ => Err(Error::NoCall),
        };
        if result.is_err_and(|error| error != Error::Restart) {
            self.counters.errors += 1;
        }
        result.map(|answer| (answer, After::Enter))
    }

    /// HYPERVISOR_multicall: entries of a number, a place for the answer, and six arguments.
    fn multicall(
        &mut self,
        host: &mut impl Host,
        registers: &mut Registers,
        list: u64,
        count: u64,
    ) -> Answer {
        if count > MAX_BATCH {
            return Err(Error::TooBig);
        }
        for index in 0..count {
            let entry = list.wrapping_add(index * 64);
            if !self.types.settle(host) {
                return self.restart(entry, count - index);
            }
            let [number, _, first, second, third, fourth, fifth, _] = self.words::<8>(host, entry)?;
            let (answer, after) = match number {
                // A batch in a batch would be a recursion, and who waits or returns does not come back for the rest.
                call::MULTICALL | call::IRET | call::SCHED_OP | call::VCPU_OP => {
                    (Error::NoCall.code(), After::Enter)
                }
                _ => match self.call(host, registers, number, [first, second, third, fourth, fifth]) {
                    Err(Error::Restart) => {
                        let rest = [self.rest.0, self.rest.1].map(u64::to_le_bytes);
                        self.copy_out(host, entry.wrapping_add(16), rest.as_flattened())?;
                        return self.restart(entry, count - index);
                    }
                    Ok(answer) => answer,
                    Err(error) => (error.code(), After::Enter),
                },
            };
            self.copy_out(host, entry.wrapping_add(8), &answer.to_le_bytes())?;
            if after != After::Enter {
                return Ok((0, after));
            }
        }
        Ok((0, After::Enter))
    }

    fn set_debug(&mut self, register: u64, value: u64) -> Result<u64, Error> {
        // Breakpoints are not armed: what is written is only kept.
        let kept = self.cpu.debug.get_mut(register as usize).ok_or(Error::Invalid)?;
        *kept = value;
        Ok(0)
    }

    fn xen_version(&mut self, host: &mut impl Host, cmd: u64, arg: u64) -> Result<u64, Error> {
        match cmd {
            version::VERSION => return Ok(VERSION),
            version::PAGESIZE => return Ok(PAGE),
            version::EXTRAVERSION => {
                let mut text = [0; 16];
                text[..7].copy_from_slice(b"-sluice");
                self.copy_out(host, arg, &text)?;
            }
            version::CAPABILITIES => {
                let mut text = [0; 1024];
                text[..14].copy_from_slice(b"xen-3.0-x86_64");
                self.copy_out(host, arg, &text)?;
            }
            version::PLATFORM_PARAMETERS => self.copy_out(host, arg, &M2P.to_le_bytes())?,
            version::GET_FEATURES => {
                let [which] = self.halves(host, arg)?;
                let features = if which == 0 { FEATURES } else { 0 };
                self.copy_out(host, arg.wrapping_add(4), &features.to_le_bytes())?;
            }
            version::GUEST_HANDLE => self.copy_out(host, arg, &[0; 16])?,
            _ => return Err(Error::NoCall),
        }
        Ok(0)
    }

    fn memory_op(&mut self, host: &mut impl Host, cmd: u64, arg: u64) -> Result<u64, Error> {
        let (operation, before) = (cmd % (1 << memory::OPERATION_BITS), cmd >> memory::OPERATION_BITS);
        let done = match operation {
            memory::DECREASE_RESERVATION => self.decrease_reservation(host, arg, before)?,
            memory::POPULATE_PHYSMAP => self.populate_physmap(host, arg, before)?,
            _ => return self.whole_memory_op(host, operation, arg),
        };
        match done {
            Progress::Ended(extents) => Ok(extents),
            Progress::Waits(extents) => self.restart(operation | extents << memory::OPERATION_BITS, arg),
        }
    }

    /// One of those that are done at once.
    fn whole_memory_op(&mut self, host: &mut impl Host, operation: u64, arg: u64) -> Result<u64, Error> {
        match operation {
            memory::MAXIMUM_RAM_PAGE => Ok(self.layout.last_frame().0),
            memory::CURRENT_RESERVATION => Ok(self.layout.pages - self.types.given_back()),
            memory::MAXIMUM_RESERVATION => Ok(self.layout.pages),
            memory::MACHPHYS_MAPPING => {
                let answer = [M2P, M2P_END, self.layout.last_frame().0].map(u64::to_le_bytes);
                self.copy_out(host, arg, answer.as_flattened())?;
                Ok(0)
            }
            // The machine's map is the domain's: where its devices are it knows from these. It ends as many pages after the domain's memory as
            // its kernel may want for a BIOS: that gives the pages which it has there these numbers instead, and needs no other ones.
            memory::MEMORY_MAP | memory::MACHINE_MEMORY_MAP => {
                let [room, _] = self.halves(host, arg)?;
                let [_, buffer] = self.words::<2>(host, arg)?;
                if room == 0 {
                    return Err(Error::Invalid);
                }
                let mut entry = [0; 20];
                let spare = if operation == memory::MACHINE_MEMORY_MAP { BIOS.end - BIOS.start } else { 0 };
                entry[8..16].copy_from_slice(&((self.layout.pages + spare) * PAGE).to_le_bytes());
                entry[16] = 1;
                self.copy_out(host, buffer, &entry)?;
                self.copy_out(host, arg, &1u32.to_le_bytes())?;
                Ok(0)
            }
            memory::EXCHANGE => self.exchange(host, arg),
            _ => Err(Error::NoCall),
        }
    }

    fn sched_op(&mut self, host: &mut impl Host, cmd: u64, arg: u64) -> Answer {
        match cmd {
            sched::YIELD => Ok((0, After::Yield)),
            sched::POLL => {
                let waits = self.poll(host, arg)?;
                Ok((0, if waits { After::Block } else { After::Enter }))
            }
            sched::BLOCK => {
                self.cpu.set_upcall_mask(host, false);
                let after = if self.is_pending(host) { After::Enter } else { After::Block };
                Ok((0, after))
            }
            sched::SHUTDOWN => {
                let [reason] = self.halves(host, arg)?;
                let end = match reason {
                    sched::POWER_OFF => End::PowerOff,
                    sched::REBOOT => End::Reboot,
                    _ => End::Crash,
                };
                Ok((0, After::End(end)))
            }
            _ => Err(Error::NoCall),
        }
    }
}

/// HYPERVISOR_vm_assist: page tables that look writable, and the flag of updates, are always there.
fn vm_assist(cmd: u64, kind: u64) -> Result<u64, Error> {
    match (cmd, kind) {
        (0 | 1, 2 | 3 | 5) => Ok(0),
        _ => Err(Error::Invalid),
    }
}

const _: () = assert!(GDT >= M2P_END);
