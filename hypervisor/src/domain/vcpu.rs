//! A virtual processor.
//!
//! What other processors may touch is in [`Vcpu`] (atomics only); what only the physical processor
//! that runs it touches is in [`Context`], behind a lock that is held for a whole slice.

use super::Domain;
use super::counters::{ExitCounters, Refusal, RefusalCounters};
use super::paravirtual::Paravirtual;
use super::rest::Rest;
use crate::cpu::fpu::FpuState;
use crate::svm::VmcbPage;
use crate::sync::{Rank, SpinLock};
use crate::{cpu, x86};
use alloc::boxed::Box;
use alloc::vec;
use bitflags::bitflags;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use sluice_insn::plain::Moves;
use sluice_memory::{Asid, WordPlace};
use sluice_platform::clock;
use sluice_platform::lapic::{LocalApic, Rates};
use sluice_platform::machine_check::{FailedAccess, MachineCheck};
use sluice_platform::nmi::Nmi;
use sluice_platform::share::Share;
use sluice_platform::stopwatch::Stopwatch;

/// Whether a virtual processor can be given a physical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Waits for INIT-SIPI.
    Off,
    /// Has something to do.
    Ready,
    /// Has nothing to do until something happens.
    Blocked(BlockReason),
}

/// What a virtual processor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// An interrupt: it executed HLT.
    Halt,
    /// A device that another domain holds.
    Device,
}

impl RunState {
    const HALTED: Self = Self::Blocked(BlockReason::Halt);
    const WAITS_FOR_DEVICE: Self = Self::Blocked(BlockReason::Device);

    /// For [`Vcpu::state`].
    const fn code(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Ready => 1,
            Self::HALTED => 2,
            Self::WAITS_FOR_DEVICE => 3,
        }
    }

    const fn of(code: u8) -> Self {
        match code {
            0 => Self::Off,
            1 => Self::Ready,
            2 => Self::HALTED,
            _ => Self::WAITS_FOR_DEVICE,
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match *self {
            Self::Off => "off",
            Self::Ready => "ready",
            Self::HALTED => "blocked by HLT",
            Self::WAITS_FOR_DEVICE => "blocked by a device",
        })
    }
}

/// Reasons to look closer before the next entry, bits of [`Vcpu::events`].
pub mod event {
    /// Interrupts were posted.
    pub const INTERRUPT: u32 = 1 << 0;
    /// INIT was received.
    pub const INIT: u32 = 1 << 1;
    /// SIPI was received; its vector is in `sipi_vector`.
    pub const SIPI: u32 = 1 << 2;
    /// The slice is over, or the domain must stop.
    pub const YIELD: u32 = 1 << 3;
    /// The device that the processor waits for, or was about to, is here.
    pub const DEVICE: u32 = 1 << 4;
    /// NMI.
    pub const NMI: u32 = 1 << 5;
    /// Translations were revoked: forget them before the next entry.
    pub const FLUSH: u32 = 1 << 6;
    /// An access was refused, of which a machine check tells.
    pub const MACHINE_CHECK: u32 = 1 << 7;
    /// The guest moved the time-stamp counter of another of its processors: the clock page has to say so.
    pub const CLOCK: u32 = 1 << 8;
    /// The domain was paused and goes on: the clock page says so, or the guest's watchdog would take it for a hang.
    pub const RESUMED: u32 = 1 << 9;
}

bitflags! {
    /// What an exit is awaited for.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Watch: u8 {
        /// An interrupt that is offered was taken, or was not.
        const OFFER = 1 << 2;
        /// The interrupt window opens.
        const WINDOW = 1 << 0;
        /// One instruction was executed.
        const STEP = 1 << 1;
    }
}

/// What the run loop needs of a virtual processor, private to the processor that runs it.
pub struct Context {
    /// Control block.
    pub vmcb: VmcbPage,
    /// Its address space identifier on its home; given up where its translations are to be forgotten.
    pub asid: Asid,
    /// How often it was reset.
    #[cfg(feature = "check-flushes")]
    pub resets: u32,
    /// General registers except RAX and RSP.
    pub regs: crate::svm::Registers,
    /// Local APIC.
    pub lapic: LocalApic,
    /// FPU, SSE, AVX state while another virtual processor's is in the registers.
    pub fpu: FpuState,
    /// TSC_AUX (RDTSCP), not part of the VMCB.
    pub tsc_aux: u64,
    /// DR0 to DR3, likewise; the VMCB has only DR6 and DR7.
    pub breakpoints: [u64; 4],
    /// Page attribute table as the guest wrote it.
    pub pat: u64,
    /// MTRRdefType as the guest wrote it.
    pub mtrr_default: u64,
    /// Exception or NMI to inject at the next entry before anything else; 0: none.
    pub inject: u64,
    /// Interrupt that the local APIC has in service and the control block offers to the processor, which takes it
    /// with the next entry unless something else comes first. There is one while [`Watch::OFFER`] is set.
    pub offered: u8,
    /// What was injected or offered last, in the format of `event_injection`, for the report of a crash.
    pub last_event: u64,
    /// Non-maskable interrupts.
    pub nmi: Nmi,
    /// What the next entries are to come back for.
    pub watch: Watch,
    /// Before the single step that [`Watch::STEP`] asked for: RFLAGS.TF and DR6 of the guest.
    pub before_step: (bool, u64),
    /// Where an exit last found an interrupt shadow, which the next entry may have dropped.
    pub shadow_at: u64,
    /// Guest-physical address of the kvmclock page | enabled bit, as written.
    pub clock_msr: u64,
    /// Version of what is in that page.
    pub clock_version: u32,
    /// Guest-physical address of the paravirtual EOI word | enabled bit, as written.
    pub pv_eoi_msr: u64,
    /// The guest was told that it may skip the EOI of the interrupt in service.
    pub pv_eoi_armed: bool,
    /// Machine check registers.
    pub machine_check: MachineCheck,
    /// The guest was not ready for a machine check, which was logged.
    pub machine_check_lost: bool,
    /// What its driver does again and again.
    pub moves: Moves<WordPlace>,
    /// Room for what a string instruction moves between memory and a port.
    pub string: Box<[u8]>,
    /// The domain is paravirtual.
    pub paravirtual: Option<Box<Paravirtual>>,
}

impl Context {
    /// That of processor `id` before its control block is filled in; with a bank of machine checks if it is `told` of refused
    /// accesses. `None`: there is no memory.
    pub fn new(id: u32, told: bool) -> Option<Self> {
        Some(Self {
            vmcb: VmcbPage::new()?,
            asid: Asid::default(),
            #[cfg(feature = "check-flushes")]
            resets: 0,
            regs: [0; 16],
            lapic: LocalApic::new(id, Rates::new(x86::tsc::khz() as u32)),
            fpu: FpuState::new()?,
            tsc_aux: 0,
            breakpoints: [0; 4],
            pat: 0x0007_0406_0007_0406,
            mtrr_default: 0xc06,
            inject: 0,
            offered: 0,
            last_event: 0,
            nmi: Nmi::default(),
            watch: Watch::empty(),
            before_step: (false, 0),
            shadow_at: 0,
            clock_msr: 0,
            clock_version: 0,
            pv_eoi_msr: 0,
            pv_eoi_armed: false,
            machine_check: MachineCheck::new(told),
            machine_check_lost: false,
            moves: Moves::default(),
            string: vec![0; STRING_BYTES].into_boxed_slice(),
            paravirtual: None,
        })
    }

    /// The time-stamp counter as the guest reads it.
    pub fn guest_tsc(&self) -> u64 {
        self.guest_tsc_at(x86::tsc::now())
    }

    /// The same when the processor's own reads `now`.
    pub fn guest_tsc_at(&self, now: u64) -> u64 {
        now.wrapping_add(self.vmcb.control.tsc_offset)
    }

    /// Host TSC at which the local APIC's timer fires next, as seen at `now`.
    pub fn timer_deadline(&self, now: u64) -> Option<u64> {
        if let Some(state) = &self.paravirtual {
            let nanoseconds = state.deadline?.saturating_sub(x86::tsc::uptime_ns_at(now));
            return Some(now.saturating_add(x86::tsc::ticks_from_ns(nanoseconds)));
        }
        let offset = self.vmcb.control.tsc_offset;
        self.lapic.timer_deadline().map(|at| clock::host_deadline(at, offset, now))
    }
}

/// Bytes of a string instruction that are moved to or from a port in one go.
const STRING_BYTES: usize = 4096;
/// Guest-physical addresses are shorter than this.
const FAILED_PLACE: u64 = u64::MAX >> 2;

/// A virtual processor, as everyone sees it.
pub struct Vcpu {
    /// Index in the domain, and its APIC identifier.
    pub id: u32,
    /// Physical processor that runs it.
    pub home: u32,
    /// Private part; locked by the home processor while it runs.
    pub context: SpinLock<Context>,
    /// Exits by reason.
    pub exits: ExitCounters,
    /// Refusals by kind.
    pub refusals: RefusalCounters,
    /// Interrupts injected.
    pub interrupts: AtomicU64,
    /// TSC ticks spent in slices: a [`Stopwatch`], which its home alone writes.
    ran: AtomicU64,
    /// What it has had of its home: a [`Share`], which its home alone uses.
    share: AtomicU64,
    /// See [`event`].
    pub events: AtomicU32,
    /// Local APIC routing snapshot for senders.
    pub route: SpinLock<sluice_platform::lapic::Routing>,
    /// TSC at which a halted processor must be looked at again; `u64::MAX`: never.
    pub wake_at: AtomicU64,
    /// Until when its home need not look at it.
    pub rest: Rest,
    pub(crate) in_guest: AtomicBool,
    pub(crate) sipi_vector: AtomicU8,
    state: AtomicU8,
    /// See [`Self::fail`]: place, in bit 63 that it was a write, in bit 62 that it is deferred.
    failed: AtomicU64,
    posted: [AtomicU64; 4],
    posted_level: [AtomicU64; 4],
}

impl Vcpu {
    /// A processor that waits for SIPI.
    pub fn new(id: u32, home: u32, context: Context) -> Self {
        let route = context.lapic.routing();
        Self {
            id,
            home,
            context: SpinLock::new(Rank::Context, context),
            exits: ExitCounters::new(),
            refusals: RefusalCounters::new(),
            interrupts: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            share: AtomicU64::new(Share::default().bits()),
            events: AtomicU32::new(0),
            route: SpinLock::new(Rank::Route, route),
            wake_at: AtomicU64::new(u64::MAX),
            rest: Rest::default(),
            in_guest: AtomicBool::new(false),
            sipi_vector: AtomicU8::new(0),
            state: AtomicU8::new(RunState::Off.code()),
            failed: AtomicU64::new(0),
            posted: [const { AtomicU64::new(0) }; 4],
            posted_level: [const { AtomicU64::new(0) }; 4],
        }
    }

    /// TSC ticks spent in slices until `now`, the present one included.
    pub fn ran(&self, now: u64) -> u64 {
        self.stopwatch().ticks(now)
    }

    /// A slice begins. Only the home may call this, and the next two.
    pub fn begin_slice(&self, now: u64) {
        self.set_stopwatch(self.stopwatch().start(now));
    }

    /// A slice ends.
    pub fn end_slice(&self, now: u64) {
        self.set_stopwatch(self.stopwatch().stop(now));
    }

    /// Something else was done for it, which took `ticks`.
    pub fn charge(&self, ticks: u64) {
        self.set_stopwatch(self.stopwatch().add(ticks));
    }

    fn stopwatch(&self) -> Stopwatch {
        Stopwatch::from_bits(self.ran.load(Ordering::Relaxed))
    }

    fn set_stopwatch(&self, stopwatch: Stopwatch) {
        self.ran.store(stopwatch.bits(), Ordering::Relaxed);
    }

    /// What it has had of its home, at the end of its last turn.
    pub fn share(&self) -> Share {
        Share::from_bits(self.share.load(Ordering::Relaxed))
    }

    /// Its turn is over. Only its home may call this.
    pub fn set_share(&self, share: Share) {
        self.share.store(share.bits(), Ordering::Relaxed);
    }

    /// Current run state.
    pub fn state(&self) -> RunState {
        RunState::of(self.state.load(Ordering::SeqCst))
    }

    /// Sets the run state; the home processor alone decides to sleep.
    pub fn set_state(&self, state: RunState) {
        self.state.store(state.code(), Ordering::SeqCst);
        if state != RunState::Blocked(BlockReason::Halt) {
            self.rest.end();
        }
    }

    /// Sleeps until this TSC, unless an event comes or a function of its domain's has something to do before. Returns false if an event came meanwhile: it
    /// goes on at once. Only the processor that runs this one may call it.
    pub fn halt(&self, domain: &Domain, deadline: u64) -> bool {
        self.wake_at.store(deadline, Ordering::SeqCst);
        let resumes = domain.resumes_at();
        self.rest.begin(deadline.min(resumes));
        self.set_state(RunState::Blocked(BlockReason::Halt));
        // Set meanwhile, it ended a rest that had not begun.
        if domain.resumes_at() < resumes {
            self.rest.end();
        }
        // An event that was raised before the state changed found nobody to wake.
        let came = self.events.load(Ordering::SeqCst) != 0;
        if came {
            self.set_state(RunState::Ready);
        }
        !came
    }

    /// Makes the processor ready if it is blocked for this reason.
    pub fn unblock(&self, reason: BlockReason) {
        let (blocked, ready) = (RunState::Blocked(reason).code(), RunState::Ready.code());
        if self.state.compare_exchange(blocked, ready, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.rest.end();
            self.nudge();
        }
    }

    /// Sleeps until the device that refused an access to it is here. Returns false if it came meanwhile: the access is then made
    /// again at once. Only the processor that runs this one may call it.
    pub fn wait_for_device(&self) -> bool {
        self.set_state(RunState::Blocked(BlockReason::Device));
        // A device that came before the state changed found nobody to wake.
        let came = self.events.load(Ordering::SeqCst) & event::DEVICE != 0;
        if came {
            self.set_state(RunState::Ready);
        }
        !came
    }

    /// Ends [`Self::wait_for_device`], also one that is about to begin.
    pub fn device_is_here(&self) {
        self.events.fetch_or(event::DEVICE, Ordering::SeqCst);
        self.unblock(BlockReason::Device);
    }

    /// Posts an interrupt from any processor. Returns false if it is posted already, and the guest has not taken it yet.
    pub fn post(&self, vector: u8, level: bool) -> bool {
        let (word, bit) = (usize::from(vector >> 6), 1u64 << (vector & 63));
        if level {
            self.posted_level[word].fetch_or(bit, Ordering::SeqCst);
        }
        let before = self.posted[word].fetch_or(bit, Ordering::SeqCst);
        self.signal(event::INTERRUPT);
        before & bit == 0
    }

    /// Raises an event and sees to it that the processor notices. Returns false if it is raised already: then somebody has seen to
    /// it, and the processor's home is not interrupted once more.
    pub fn signal(&self, event: u32) -> bool {
        if self.events.fetch_or(event, Ordering::SeqCst) & event != 0 {
            return false;
        }
        self.unblock(BlockReason::Halt);
        if self.in_guest.load(Ordering::SeqCst) {
            self.nudge();
        }
        true
    }

    /// An access that this processor made, to a port or a guest-physical address, was refused so that it gets a machine
    /// check. Only the processor that runs it may call it.
    pub fn fail(&self, place: u64, write: bool, deferred: bool) {
        self.refusals.count(Refusal::MachineCheck as usize);
        let how = u64::from(write) << 63 | u64::from(deferred) << 62;
        self.failed.store(place & FAILED_PLACE | how, Ordering::Relaxed);
        self.events.fetch_or(event::MACHINE_CHECK, Ordering::SeqCst);
    }

    /// The access that was refused last.
    pub fn failed_access(&self) -> FailedAccess {
        let failed = self.failed.load(Ordering::Relaxed);
        FailedAccess {
            place: failed & FAILED_PLACE,
            write: failed >> 63 != 0,
            deferred: failed >> 62 & 1 != 0,
        }
    }

    /// Has the home processor look at its virtual processors again.
    pub fn nudge(&self) {
        cpu::announce(self.home);
        if self.home != cpu::this().index {
            cpu::kick(self.home);
        }
    }

    /// Whether there is nothing to look at but that translations are to be forgotten, which is the caller's to see to then.
    pub fn take_lone_flush(&self) -> bool {
        self.events.compare_exchange(event::FLUSH, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Moves posted interrupts into the local APIC.
    pub fn collect(&self, lapic: &mut LocalApic) {
        for word in 0..4 {
            let mut bits = self.posted[word].swap(0, Ordering::SeqCst);
            let level = self.posted_level[word].fetch_and(!bits, Ordering::SeqCst);
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                lapic.request((word as u32 * 64 + bit) as u8, level >> bit & 1 != 0);
            }
        }
    }
}
