//! HYPERVISOR_vcpu_op: processors begin, end and begin again, by each other's wish.
//!
//! Source: Xen's public headers (vcpu.h; arch-x86/xen.h, `struct vcpu_guest_context`; arch-x86/xen-x86_64.h, `struct cpu_user_regs`).

use crate::abi::{Error, PAGE, vcpu_info};
use crate::bounce::{is_canonical, sane};
use crate::calls::Answer;
use crate::processor::{Callback, Life, Trap};
use crate::{After, Guest, Host, Registers};
use alloc::boxed::Box;
use sluice_pagetypes::Mfn;

mod op {
    pub const INITIALISE: u64 = 0;
    pub const UP: u64 = 1;
    pub const DOWN: u64 = 2;
    pub const IS_UP: u64 = 3;
    pub const GET_RUNSTATE: u64 = 4;
    pub const REGISTER_RUNSTATE: u64 = 5;
    pub const STOP_PERIODIC_TIMER: u64 = 7;
    pub const SET_SINGLESHOT_TIMER: u64 = 8;
    pub const STOP_SINGLESHOT_TIMER: u64 = 9;
    pub const REGISTER_INFO: u64 = 10;
    /// VCPU_SSHOTTMR_future.
    pub const FUTURE: u64 = 1;
}

/// Offsets in `struct vcpu_guest_context`.
mod context {
    pub const FLAGS: u64 = 512;
    pub const REGISTERS: u64 = 520;
    pub const TRAPS: u64 = 720;
    pub const LDT_ENTRIES: u64 = 4824;
    pub const GDT_FRAMES: u64 = 4832;
    pub const GDT_ENTRIES: u64 = 4960;
    pub const KERNEL_SP: u64 = 4976;
    pub const CR3: u64 = 4984 + 3 * 8;
    /// Of the events', of a failed return, of SYSCALL.
    pub const CALLBACKS: u64 = 5112;
    pub const BASES: u64 = 5144;
    /// VGCF_in_kernel.
    pub const IN_KERNEL: u64 = 1 << 2;
    /// VGCF_syscall_disables_events.
    pub const SYSCALL_MASKS: u64 = 1 << 4;
}

/// A processor as a guest wants it to begin.
struct Context {
    registers: Registers,
    traps: [Trap; 256],
    gdt_frames: [u64; 14],
    gdt_entries: u64,
    kernel_sp: u64,
    root: Mfn,
    event: u64,
    syscall: Callback,
}

impl Guest {
    pub(crate) fn vcpu_op(&mut self, host: &mut impl Host, cmd: u64, which: u64, arg: u64) -> Answer {
        let id = u32::try_from(which).ok().filter(|id| *id < self.layout.processors).ok_or(Error::NoEntry)?;
        let is_own = id == self.cpu.id;
        match cmd {
            op::INITIALISE => self.initialise(host, id, arg)?,
            op::UP => {
                let processor = self.processor(id).ok_or(Error::NoEntry)?;
                match processor.life {
                    Life::Unknown => return Err(Error::Invalid),
                    Life::Up => {}
                    Life::Down => {
                        processor.life = Life::Up;
                        host.start(id);
                    }
                }
            }
            op::DOWN if is_own => {
                self.cpu.life = Life::Down;
                return Ok((0, After::Down));
            }
            op::IS_UP => {
                let is_up = self.processor(id).is_some_and(|processor| processor.life == Life::Up);
                return Ok((is_up.into(), After::Enter));
            }
            op::GET_RUNSTATE | op::REGISTER_RUNSTATE => {
                let at = if cmd == op::GET_RUNSTATE { arg } else { self.words::<1>(host, arg)?[0] };
                // It has run all the time: nobody says otherwise yet.
                let mut state = [0; 48];
                state[16..24].copy_from_slice(&host.now().to_le_bytes());
                self.copy_out(host, at, &state)?;
            }
            op::STOP_PERIODIC_TIMER => {}
            op::SET_SINGLESHOT_TIMER if is_own => {
                let [deadline, flags] = self.words(host, arg)?;
                if flags & op::FUTURE != 0 && deadline <= host.now() {
                    return Err(Error::Past);
                }
                self.cpu.deadline = Some(deadline);
            }
            op::STOP_SINGLESHOT_TIMER if is_own => self.cpu.deadline = None,
            op::DOWN | op::SET_SINGLESHOT_TIMER | op::STOP_SINGLESHOT_TIMER => return Err(Error::Invalid),
            op::REGISTER_INFO => {
                let [frame, offset] = self.words(host, arg)?;
                self.register_info(host, id, Mfn(frame), offset as u32 as usize)?;
            }
            _ => return Err(Error::NoCall),
        }
        Ok((0, After::Enter))
    }

    /// The guest wants the `struct vcpu_info` of a processor elsewhere, once.
    fn register_info(
        &mut self,
        host: &mut impl Host,
        id: u32,
        frame: Mfn,
        offset: usize,
    ) -> Result<(), Error> {
        let processor = self.processor(id).ok_or(Error::NoEntry)?;
        let old = processor.info;
        if offset > PAGE as usize - vcpu_info::SIZE || !offset.is_multiple_of(8) || processor.info_moved {
            return Err(Error::Invalid);
        }
        let held = self.types.hold_writable(host, frame);
        self.note(held)?;
        let mut bytes = [0; vcpu_info::SIZE];
        host.read(old.0, old.1, &mut bytes);
        host.write(frame, offset, &bytes);
        let processor = self.processor(id).ok_or(Error::NoEntry)?;
        (processor.info, processor.info_moved, processor.gate_is_stale) = ((frame, offset), true, true);
        let area = processor.area();
        self.layout.show_info(host, area, frame);
        // The page is at a place that its processor may have translated.
        host.invalidate_on(1 << id);
        Ok(())
    }

    /// Gives a processor that nobody has begun page tables, descriptors and registers.
    fn initialise(&mut self, host: &mut impl Host, id: u32, arg: u64) -> Result<(), Error> {
        if self.processor(id).is_none_or(|processor| processor.life != Life::Unknown) {
            return Err(Error::Exists);
        }
        let context = self.context(host, arg)?;
        let own = self.cpu.id;
        self.run(id);
        let done = self.begin(host, context);
        self.run(own);
        done
    }

    /// Reads a `struct vcpu_guest_context`.
    fn context(&self, host: &impl Host, at: u64) -> Result<Context, Error> {
        let word = |offset: u64| self.words::<1>(host, at.wrapping_add(offset)).map(|[word]| word);
        let flags = word(context::FLAGS)?;
        let [
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            _,
            rip,
            cs,
            rflags,
            rsp,
            ss,
        ] = self.words::<21>(host, at.wrapping_add(context::REGISTERS))?;
        let [fs_base, kernel_gs, user_gs] = self.words::<3>(host, at.wrapping_add(context::BASES))?;
        let [event, _, syscall] = self.words::<3>(host, at.wrapping_add(context::CALLBACKS))?;
        let addresses = [rip, fs_base, kernel_gs, user_gs, event, syscall];
        // Neither programs nor local descriptors: what begins is a kernel.
        let is_kernel = flags & context::IN_KERNEL != 0 && word(context::LDT_ENTRIES)? == 0;
        if !is_kernel || !addresses.into_iter().all(is_canonical) {
            return Err(Error::Invalid);
        }
        let mut traps = [Trap::default(); 256];
        for (index, trap) in (0..).zip(&mut traps) {
            let [what, address] = self.words::<2>(host, at.wrapping_add(context::TRAPS + index * 16))?;
            if !is_canonical(address) {
                return Err(Error::Invalid);
            }
            *trap = Trap { address, flags: (what >> 8) as u8 };
        }
        let gpr = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
        let registers = Registers {
            gpr,
            rip,
            rflags: sane(rflags),
            cs: cs as u16 | 3,
            ss: ss as u16 | 3,
            fs_base,
            gs_base: kernel_gs,
            other_gs: user_gs,
            gs: None,
        };
        Ok(Context {
            registers,
            traps,
            gdt_frames: self.words(host, at.wrapping_add(context::GDT_FRAMES))?,
            gdt_entries: word(context::GDT_ENTRIES)?,
            kernel_sp: word(context::KERNEL_SP)?,
            root: Mfn(word(context::CR3)? / PAGE),
            event,
            syscall: Callback { address: syscall, mask_events: flags & context::SYSCALL_MASKS != 0 },
        })
    }

    /// The same for the processor that asks, which has nothing yet.
    fn begin(&mut self, host: &mut impl Host, context: Context) -> Result<(), Error> {
        self.hold_root(host, context.root)?;
        let frame = |_: &Self, _: &_, page: u64| {
            context.gdt_frames.get(page as usize).map(|frame| Mfn(*frame)).ok_or(Error::Invalid)
        };
        if let Err(error) = self.load_gdt(host, context.gdt_entries, frame) {
            self.types.release(host, context.root);
            return Err(error);
        }
        let cpu = &mut *self.cpu;
        (cpu.root, cpu.life, cpu.kernel) = (context.root, Life::Down, true);
        (cpu.traps, cpu.kernel_sp) = (context.traps, context.kernel_sp);
        let [events, .., syscall, _, _, _, _, _] = &mut cpu.callbacks;
        (events.address, *syscall) = (context.event, context.syscall);
        cpu.start = Some(Box::new(context.registers));
        cpu.gate_is_stale = true;
        self.leave_host(host);
        Ok(())
    }
}
