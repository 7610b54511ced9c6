//! What the interface keeps of one virtual processor.

use crate::abi::{self, LDT_PAGES, PAGE, RESERVED_GDT_PAGE, vcpu_info};
use crate::memory::Found;
use crate::{Built, Host, Registers};
use alloc::boxed::Box;
use core::cell::Cell;
use sluice_pagetypes::Mfn;

/// Processors that a domain can have: `struct shared_info` has room for so many.
pub const MAX_PROCESSORS: u32 = 32;

/// Numbers of callbacks that a guest registers (callback.h).
pub(crate) const CALLBACKS: usize = 8;

/// Where a kernel wants to be called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Callback {
    /// Address; 0: nowhere.
    pub address: u64,
    /// No events are delivered from there on.
    pub mask_events: bool,
}

/// An entry of the guest's trap table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trap {
    /// Address; 0: nowhere.
    pub address: u64,
    /// Bits 1:0 who may come here by an instruction, bit 2 no events are delivered from there on.
    pub flags: u8,
}

/// Where a processor has what the hypervisor keeps for it: its descriptor table, the gate after that, and its local descriptor table. The pages of its neighbours are there as well, which
/// costs nobody anything: none of them can be written at privilege level 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    shift: u64,
}

impl Area {
    /// Bytes from one processor's to the next one's: 16 pages of descriptors, the gate's code, its words, `struct vcpu_info`, room, and 16 pages of
    /// local descriptors.
    pub(crate) const STRIDE: u64 = 2 * Self::LOCAL;
    const LOCAL: u64 = 32 * PAGE;

    /// That of a processor.
    pub fn of(processor: u32) -> Self {
        Self { shift: u64::from(processor) * Self::STRIDE }
    }

    /// Its descriptor table.
    pub fn gdt(self) -> u64 {
        abi::GDT + self.shift
    }

    /// Its local descriptor table.
    pub fn ldt(self) -> u64 {
        abi::GDT + self.shift + Self::LOCAL
    }

    /// First byte of the gate, where SYSCALL of 32-bit code goes.
    pub fn gate(self) -> u64 {
        abi::GATE + self.shift
    }

    /// Where SYSCALL goes.
    pub fn gate_wide(self) -> u64 {
        abi::GATE_WIDE + self.shift
    }

    /// The gate's words.
    pub fn gate_words(self) -> u64 {
        abi::GATE_WORDS + self.shift
    }

    /// Where the gate finds the page with `struct vcpu_info`.
    pub(crate) fn info(self) -> u64 {
        abi::GATE_INFO + self.shift
    }
}

/// What becomes of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Nothing is known of it but where its `struct vcpu_info` is.
    Unknown,
    /// It has page tables and registers, and does not run.
    Down,
    /// It runs, or waits for an event.
    Up,
}

/// What a processor waits for by SCHEDOP_poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// This port.
    One(u32),
    /// One of several.
    Any,
}

/// A processor of a guest's.
pub(crate) struct Processor {
    pub id: u32,
    pub life: Life,
    /// Registers with which it starts, until it does.
    pub start: Option<Box<Registers>>,
    /// The kernel's page tables.
    pub root: Mfn,
    /// The programs' page tables.
    pub user_root: Option<Mfn>,
    /// The kernel runs, and not one of its programs.
    pub kernel: bool,
    /// CR0.TS: the next floating-point instruction is an exception.
    pub task_switched: bool,
    pub kernel_sp: u64,
    pub traps: [Trap; 256],
    pub callbacks: [Callback; CALLBACKS],
    pub gdt: [Option<Mfn>; RESERVED_GDT_PAGE],
    pub ldt: [Option<Mfn>; LDT_PAGES],
    /// Descriptors of the local table.
    pub ldt_entries: u32,
    /// The processor was not told of that many yet.
    pub ldt_is_stale: bool,
    /// How often its descriptors may have changed, and 1.
    pub descriptor_changes: u64,
    /// Selectors of programs' code and stack, as the gate takes them. Zeros: it takes none.
    pub program_segments: (u16, u16),
    /// The gate's words.
    pub gate_words: Mfn,
    /// Who runs, as the gate was told.
    pub gate_mode: bool,
    /// What the gate was told is not so any more.
    pub gate_is_stale: bool,
    /// Where the kernel's address was found last, until its page tables may have changed.
    pub found: Cell<Option<Found>>,
    /// Where `struct vcpu_info` is: frame, offset.
    pub info: (Mfn, usize),
    /// It was moved, which holds the frame.
    pub info_moved: bool,
    /// When the timer's event is due.
    pub deadline: Option<u64>,
    /// What it waits for beside events that it is told of, and until when: 0 is for ever.
    pub poll: Option<(Poll, u64)>,
    pub debug: [u64; 8],
    pub iopl: u8,
}

impl Processor {
    /// One that does not run yet.
    pub fn new(id: u32, built: &Built) -> Self {
        Self {
            id,
            life: Life::Unknown,
            start: None,
            root: Mfn::default(),
            user_root: None,
            kernel: true,
            task_switched: false,
            kernel_sp: 0,
            traps: [Trap::default(); 256],
            callbacks: [Callback::default(); CALLBACKS],
            gdt: [None; RESERVED_GDT_PAGE],
            ldt: [None; LDT_PAGES],
            ldt_entries: 0,
            ldt_is_stale: false,
            descriptor_changes: 1,
            program_segments: (0, 0),
            gate_words: built.gate_words(id),
            gate_mode: false,
            gate_is_stale: true,
            found: Cell::new(None),
            info: (built.shared_info, id as usize * vcpu_info::SIZE),
            info_moved: false,
            deadline: None,
            poll: None,
            debug: [0; 8],
            iopl: 0,
        }
    }

    /// Where it has what the hypervisor keeps for it.
    pub fn area(&self) -> Area {
        Area::of(self.id)
    }

    /// Frames that are in use because of it.
    pub fn holds(&self) -> impl Iterator<Item = Mfn> + '_ {
        let root = (self.life != Life::Unknown).then_some(self.root);
        let moved = self.info_moved.then_some(self.info.0);
        let descriptors = self.gdt.iter().chain(&self.ldt).copied().flatten();
        root.into_iter().chain(self.user_root).chain(moved).chain(descriptors)
    }

    /// An entry of a table is another one from now on; whether the table is one of the lowest level is asked where something is remembered.
    #[inline(always)]
    pub fn lose_entry(&self, table: Mfn, index: usize, is_lowest: impl Fn() -> bool) {
        let Some(Found { leaf, .. }) = self.found.get() else { return };
        if !is_lowest() || (leaf.table, leaf.index) == (table, index) {
            self.found.set(None);
        }
    }

    #[inline]
    pub fn upcall_mask(&self, host: &impl Host) -> bool {
        crate::memory::byte(host, self.info.0, self.info.1 + vcpu_info::MASK) != 0
    }

    pub fn set_upcall_mask(&self, host: &mut impl Host, mask: bool) {
        host.write(self.info.0, self.info.1 + vcpu_info::MASK, &[u8::from(mask)]);
    }

    /// Whether an event waits, whether or not the kernel wants to be told.
    #[inline(always)]
    pub fn is_pending(&self, host: &impl Host) -> bool {
        crate::memory::byte(host, self.info.0, self.info.1 + vcpu_info::PENDING) != 0
    }

    /// Says by which selectors programs run that the gate may return to.
    pub fn allow_program(&mut self, code: u16, stack: u16) {
        (self.program_segments, self.gate_is_stale) = ((code, stack), true);
    }

    /// Descriptors are others from now on.
    pub fn change_descriptors(&mut self) {
        self.descriptor_changes += 1;
        self.allow_program(0, 0);
    }
}
