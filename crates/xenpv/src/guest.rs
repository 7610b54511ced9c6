//! What the interface keeps of a domain and of its processor.

use crate::counters::Counters;
use crate::events::Channels;
use crate::memory::Found;
use crate::{Built, Hardware, Host};
use alloc::vec::Vec;
use core::cell::Cell;
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
    /// It ends.
    End(End),
}

/// Where a kernel wants to be called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Callback {
    /// Address; 0: nowhere.
    pub address: u64,
    /// No events are delivered from there on.
    pub mask_events: bool,
}

/// Numbers of callbacks that a guest registers (callback.h).
pub(crate) const CALLBACKS: usize = 8;

/// An entry of the guest's trap table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trap {
    /// Address; 0: nowhere.
    pub address: u64,
    /// Bits 1:0 who may come here by an instruction, bit 2 no events are delivered from there on.
    pub flags: u8,
}

/// A paravirtual domain of one processor.
pub struct Guest {
    /// What its frames are used as.
    pub types: Types,
    /// What was asked.
    pub counters: Counters,
    /// The last operation on page types that was refused, for the log.
    pub last_refused: Option<Refused>,
    pub(crate) layout: Built,
    /// The kernel's page tables.
    pub(crate) root: Mfn,
    /// The programs' page tables.
    pub(crate) user_root: Option<Mfn>,
    /// The kernel runs, and not one of its programs.
    pub(crate) kernel: bool,
    /// CR0.TS: the next floating-point instruction is an exception.
    pub(crate) task_switched: bool,
    pub(crate) kernel_sp: u64,
    pub(crate) traps: [Trap; 256],
    pub(crate) callbacks: [Callback; CALLBACKS],
    pub(crate) gdt: [Option<Mfn>; crate::abi::RESERVED_GDT_PAGE],
    /// How often its descriptors may have changed, and 1.
    pub(crate) descriptor_changes: u64,
    /// Selectors of programs' code and stack, as the gate takes them. Zeros: it takes none.
    pub(crate) program_segments: (u16, u16),
    /// Who runs, as the gate was told.
    pub(crate) gate_mode: bool,
    /// What the gate was told is not so any more.
    pub(crate) gate_is_stale: bool,
    /// Where the kernel's address was found last, until its page tables may have changed.
    pub(crate) found: Cell<Option<Found>>,
    /// Where `struct vcpu_info` is: frame, offset.
    pub(crate) info: (Mfn, usize),
    /// It was moved, which holds the frame.
    pub(crate) info_moved: bool,
    pub(crate) channels: Channels,
    /// When the timer's event is due.
    pub(crate) deadline: Option<u64>,
    pub(crate) debug: [u64; 8],
    pub(crate) iopl: u8,
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
        // The hypervisor writes both for as long as the guest lives.
        types.hold_writable(host, built.shared_info)?;
        types.hold_writable(host, built.console)?;
        types.pin(host, built.root, sluice_pagetypes::Kind::L4)?;
        types.hold_root(host, built.root)?;
        let mut guest = Self {
            types,
            counters: Counters::default(),
            last_refused: None,
            root: built.root,
            user_root: None,
            kernel: true,
            task_switched: false,
            kernel_sp: 0,
            traps: [Trap::default(); 256],
            callbacks: [Callback::default(); CALLBACKS],
            gdt: [None; crate::abi::RESERVED_GDT_PAGE],
            descriptor_changes: 1,
            program_segments: (0, 0),
            gate_mode: false,
            gate_is_stale: true,
            found: Cell::new(None),
            info: (built.shared_info, 0),
            info_moved: false,
            channels: Channels::new(),
            deadline: None,
            debug: [0; 8],
            iopl: 0,
            hardware,
            typed: Vec::with_capacity(crate::console::INPUT),
            pic_mask: u8::MAX,
            rest: (0, 0),
            layout: built,
        };
        guest.set_upcall_mask(host, true);
        guest.leave_host(host);
        Ok(guest)
    }

    /// Writes the relation of its time-stamp counter to time, 32 bytes as `struct vcpu_time_info` has them.
    pub fn set_time(&mut self, host: &mut impl Host, time: &[u8; 32]) {
        host.write(self.info.0, self.info.1 + crate::abi::vcpu_info::TIME, time);
    }

    /// Root of the page tables that the processor walks now.
    pub fn active_root(&self) -> Mfn {
        match self.user_root {
            Some(user) if !self.kernel => user,
            _ => self.root,
        }
    }

    /// Whether a floating-point instruction is to be an exception.
    pub fn is_task_switched(&self) -> bool {
        self.task_switched
    }

    /// Counts page tables and what they refer to from nothing ([`Types::verify`]). Returns how many tables there were.
    ///
    /// # Errors
    /// Says what must not be.
    pub fn verify(&self, host: &impl Host) -> Result<usize, Contradiction> {
        let own = [self.layout.shared_info, self.layout.console, self.root].into_iter();
        let moved = self.info_moved.then_some(self.info.0);
        let holds = own.chain(self.user_root).chain(moved).chain(self.gdt.iter().copied().flatten());
        self.types.verify(host, holds)
    }

    /// A number that is another one, and never 0, when descriptors may have changed.
    pub fn descriptor_changes(&self) -> u64 {
        self.descriptor_changes
    }

    /// Whether the kernel runs.
    pub fn in_kernel(&self) -> bool {
        self.kernel
    }

    /// When the guest wants to be woken, in nanoseconds since it was built.
    pub fn deadline(&self) -> Option<u64> {
        self.deadline
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
        if selector & 4 != 0 {
            return None;
        }
        let frame = match index / 512 {
            crate::abi::RESERVED_GDT_PAGE => Some(self.layout.reserved_gdt),
            page => self.gdt.get(page).copied().flatten(),
        };
        let descriptor = crate::memory::entry(host, frame?, index % 512).bits();
        // Present, of privilege level 3.
        (descriptor >> 45 & 7 == 7).then_some(descriptor)
    }

    pub(crate) fn upcall_mask(&self, host: &impl Host) -> bool {
        crate::memory::byte(host, self.info.0, self.info.1 + crate::abi::vcpu_info::MASK) != 0
    }

    pub(crate) fn set_upcall_mask(&mut self, host: &mut impl Host, mask: bool) {
        host.write(self.info.0, self.info.1 + crate::abi::vcpu_info::MASK, &[u8::from(mask)]);
    }

    /// Changes between the kernel and its programs.
    pub(crate) fn toggle(&mut self, registers: &mut Registers) {
        self.kernel = !self.kernel;
        registers.swap_gs();
    }
}
