//! What the interface keeps of a domain.

use crate::counters::Counters;
use crate::events::Channels;
use crate::processor::{Life, Processor};
use crate::{Built, Hardware, Host};
use alloc::boxed::Box;
use alloc::vec::Vec;
use sluice_pagetypes::{Contradiction, Mfn, Refused, Types};

/// Registers of the processor that the interface reads and changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// General registers by hardware number.
    pub gpr: [u64; 16],
    /// RIP.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// CS.
    pub cs: u16,
    /// SS.
    pub ss: u16,
    /// Base of FS.
    pub fs_base: u64,
    /// Base of GS.
    pub gs_base: u64,
    /// Selector of GS and its descriptor, if the kernel has loaded it since it was given to the processor. The base is apart.
    pub gs: Option<(u16, u64)>,
    /// Base of GS in the mode that does not run, which the processor has for SWAPGS.
    pub other_gs: u64,
}

impl Registers {
    /// SWAPGS.
    pub(crate) fn swap_gs(&mut self) {
        core::mem::swap(&mut self.gs_base, &mut self.other_gs);
    }
}

/// Hardware numbers of general registers.
pub mod gpr {
    /// RAX.
    pub const RAX: usize = 0;
    /// RCX.
    pub const RCX: usize = 1;
    /// RDX.
    pub const RDX: usize = 2;
    /// RBX.
    pub const RBX: usize = 3;
    /// RSP.
    pub const RSP: usize = 4;
    /// RSI.
    pub const RSI: usize = 6;
    /// RDI.
    pub const RDI: usize = 7;
    /// R11.
    pub const R11: usize = 11;
}

/// Why a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It powered off.
    PowerOff,
    /// It wants to be started again.
    Reboot,
    /// Its kernel says that it crashed.
    Crash,
    /// Its kernel cannot be told of an exception, or does not know where to go on.
    Lost,
}

/// What follows an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The guest goes on.
    Enter,
    /// It waits for an event.
    Block,
    /// It lets others run.
    Yield,
    /// It runs no more until another processor wants it to.
    Down,
    /// It ends.
    End(End),
}

/// A paravirtual domain. What is asked of it is asked by one of its processors at a time ([`Guest::run`]).
pub struct Guest {
    /// What its frames are used as.
    pub types: Types,
    /// What was asked.
    pub counters: Counters,
    /// The last operation on page types that was refused, for the log.
    pub last_refused: Option<Refused>,
    pub(crate) layout: Built,
    /// The processor that asks.
    pub(crate) cpu: Box<Processor>,
    /// Its other processors, in any order.
    pub(crate) others: Vec<Box<Processor>>,
    pub(crate) channels: Channels,
    /// Its devices.
    pub(crate) hardware: Hardware,
    /// What was typed for the initial domain, and it has not read.
    pub(crate) typed: Vec<u8>,
    /// The mask of the interrupt controller that its kernel looks for.
    pub(crate) pic_mask: u8,
    /// The first two arguments for the rest of a call, where it answers [`crate::abi::Error::Restart`].
    pub(crate) rest: (u64, u64),
}

impl Guest {
    /// The guest whose memory was built so, with its devices. Its page tables are validated here, as any that it makes later.
    ///
    /// # Errors
    /// The page tables that were built are not right, or registers are in its memory: a defect of the hypervisor.
    pub fn new(
        host: &mut impl Host,
        built: Built,
        mut types: Types,
        hardware: Hardware,
    ) -> Result<Self, Refused> {
        for frames in hardware.frames() {
            types.add_registers(frames)?;
        }
        // What the hypervisor writes for as long as the guest lives.
        types.hold_writable(host, built.shared_info)?;
        // An initial domain has no ring, and uses the page as any.
        if !hardware.is_initial() {
            types.hold_writable(host, built.console)?;
        }
        types.pin(host, built.root, sluice_pagetypes::Kind::L4)?;
        types.hold_root(host, built.root)?;
        let mut cpu = Box::new(Processor::new(0, &built));
        (cpu.root, cpu.life) = (built.root, Life::Up);
        let others = (1..built.processors).map(|id| Box::new(Processor::new(id, &built))).collect();
        let mut guest = Self {
            types,
            counters: Counters::default(),
            last_refused: None,
            cpu,
            others,
            channels: Channels::new(),
            hardware,
            typed: Vec::with_capacity(crate::console::INPUT),
            pic_mask: u8::MAX,
            rest: (0, 0),
            layout: built,
        };
        guest.processors().for_each(|processor| processor.set_upcall_mask(host, true));
        guest.leave_host(host);
        Ok(guest)
    }

    /// What comes next is asked by this processor. Returns false if there is none.
    #[inline]
    pub fn run(&mut self, processor: u32) -> bool {
        if self.cpu.id == processor {
            return true;
        }
        let other = self.others.iter_mut().find(|other| other.id == processor);
        other.map(|other| core::mem::swap(other, &mut self.cpu)).is_some()
    }

    /// Its processors, the one that asks first.
    pub(crate) fn processors(&self) -> impl Iterator<Item = &Processor> {
        core::iter::once(&*self.cpu).chain(self.others.iter().map(|other| &**other))
    }

    pub(crate) fn processors_mut(&mut self) -> impl Iterator<Item = &mut Processor> {
        core::iter::once(&mut *self.cpu).chain(self.others.iter_mut().map(|other| &mut **other))
    }

    /// One of its processors.
    pub(crate) fn processor(&mut self, id: u32) -> Option<&mut Processor> {
        self.processors_mut().find(|processor| processor.id == id)
    }

    /// Writes the relation of time-stamp counters to time for every processor, 32 bytes as `struct vcpu_time_info` has them.
    pub fn set_time(&mut self, host: &mut impl Host, time: &[u8; 32]) {
        for processor in self.processors() {
            let (frame, offset) = processor.info;
            host.write(frame, offset + crate::abi::vcpu_info::TIME, time);
        }
    }

    /// Root of the page tables that the processor walks now.
    pub fn active_root(&self) -> Mfn {
        match self.cpu.user_root {
            Some(user) if !self.cpu.kernel => user,
            _ => self.cpu.root,
        }
    }

    /// Whether a floating-point instruction is to be an exception.
    pub fn is_task_switched(&self) -> bool {
        self.cpu.task_switched
    }

    /// Counts page tables and what they refer to from nothing ([`Types::verify`]). Returns how many tables there were.
    ///
    /// # Errors
    /// Says what must not be.
    pub fn verify(&self, host: &impl Host) -> Result<usize, Contradiction> {
        self.types.verify(host, self.holds())
    }

    /// Frames that the hypervisor writes for the guest, or its processors use, each as often as they do.
    pub(crate) fn holds(&self) -> impl Iterator<Item = Mfn> + '_ {
        let ring = (!self.hardware.is_initial()).then_some(self.layout.console);
        let own = [self.layout.shared_info].into_iter().chain(ring);
        own.chain(self.processors().flat_map(Processor::holds))
    }

    /// A number that is another one, and never 0, when descriptors may have changed.
    pub fn descriptor_changes(&self) -> u64 {
        self.cpu.descriptor_changes
    }

    /// Whether the kernel runs.
    pub fn in_kernel(&self) -> bool {
        self.cpu.kernel
    }

    /// When the processor wants to be woken, in nanoseconds since the guest was built.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        let timer = self.cpu.deadline;
        match self.cpu.poll {
            None | Some((_, 0)) => timer,
            Some((_, until)) => Some(timer.map_or(until, |timer| timer.min(until))),
        }
    }

    /// Registers with which a processor starts that another one has brought up since this was asked last.
    pub fn take_start(&mut self) -> Option<Box<Registers>> {
        self.cpu.start.take()
    }

    /// Registers with which its kernel starts.
    pub fn start(&self) -> Registers {
        let mut registers = Registers {
            rip: self.layout.entry,
            rflags: crate::abi::rflags::ONE | crate::abi::rflags::IF,
            cs: crate::abi::CS64,
            ss: crate::abi::SS,
            ..Registers::default()
        };
        registers.gpr[gpr::RSI] = self.layout.start_info;
        registers.gpr[gpr::RSP] = self.layout.stack;
        registers
    }

    /// The descriptor of a selector, and whether there is one that code at privilege level 3 may have.
    pub fn descriptor(&self, host: &impl Host, selector: u16) -> Option<u64> {
        let index = usize::from(selector >> 3);
        let frame = match index / 512 {
            // A local one.
            page if selector & 4 != 0 => {
                let known = index < self.cpu.ldt_entries as usize;
                self.cpu.ldt.get(page).copied().flatten().filter(|_| known)
            }
            crate::abi::RESERVED_GDT_PAGE => Some(self.layout.reserved_gdt),
            page => self.cpu.gdt.get(page).copied().flatten(),
        };
        let descriptor = crate::memory::entry(host, frame?, index % 512).bits();
        // Present, of privilege level 3.
        (descriptor >> 45 & 7 == 7).then_some(descriptor)
    }

    /// Changes between the kernel and its programs.
    pub(crate) fn toggle(&mut self, registers: &mut Registers) {
        self.cpu.kernel = !self.cpu.kernel;
        registers.swap_gs();
    }
}
