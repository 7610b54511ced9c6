//! A domain: one guest, what it owns, and what it may touch.
//!
//! Key types: [`Domain`], [`vcpu::Vcpu`], [`VirtualFunction`]. Nothing that stands above is known here: `exit` handles what a
//! guest does, `devices` serves its functions, `manage` builds and ends domains. The order of locks is [`Rank`].

pub mod attention;
mod bios;
pub mod counters;
mod fine;
mod function;
pub mod grants;
mod isolation;
pub mod layout;
mod memory;
pub mod paravirtual;
pub mod region;
pub mod rest;
mod sink;
mod socket;
mod table;
pub mod uses;
pub mod vcpu;
mod window;

pub use function::VirtualFunction;
pub use memory::{Memory, MemoryError, Piece};
pub use window::{Loan, end as window_end};

use crate::firmware::rtc as clock;
use crate::mm;
use crate::sync::{Once, Rank, SpinLock};
use crate::x86::tsc;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use counters::{Exit, ParavirtualCounters, Refusal};
use paravirtual::Interface;
use sluice_abi::config::Action;
use sluice_abi::report::DomainState;
use sluice_abi::{DomainId, config};
use sluice_memory::{Extent, Gpa, GuestMemory, Hpa, OutOfRange, PAGE_SIZE, PhysicalMemory, WordPlace};
use sluice_platform::acpi;
use sluice_platform::console::{Console, FIFO};
use sluice_platform::hotplug::{self, Hotplug};
use sluice_platform::ioapic::IoApic;
use sluice_platform::ioapic::WriteEffect;
use sluice_platform::lapic::{DeliveryMode, Ipi, Shorthand};
use sluice_platform::message::Message;
use sluice_platform::pci::{self, ConfigEffect, PciBus};
use sluice_platform::power::{self, PowerEvent};
use sluice_platform::pvpanic::{self, Panic};
use sluice_platform::rtc::{self, Rtc};
use sluice_platform::uart::Uart;
use sluice_traps::Direction;
use sluice_traps::pages::PageTable;
use sluice_traps::ports::{Disposition, MAP_BYTES, PortTable};
use socket::Socket;
use vcpu::{RunState, Vcpu, event};

/// Bytes of a line of console output for whose end is not waited.
const FLUSH: usize = 128;
/// Bytes of an I/O permission map (APM vol 2, 15.10.1).
const PERMISSION_MAP: u64 = 3 * PAGE_SIZE;

/// Bytes typed on a console that wait until the guest takes them; more are dropped.
const TYPED: usize = 4096;

/// Domains built so far.
static BUILT: AtomicU64 = AtomicU64::new(0);
/// For how long an interrupt that comes without end is held back.
const HELD_NS: u64 = 1_000_000;

/// For how long a console's line may stay unsent that does not end: a prompt.
const LINE_NS: u64 = 20_000_000;
/// How long the clock pages of a domain that was paused say so, in nanoseconds.
const STOOD_STILL_NS: u64 = 1_000_000_000;

/// Output of a console that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Output {
    /// A line that was begun.
    Begun,
    /// A line that has ended, or enough for a message.
    Now,
}

/// Data on its way to or from a guest.
#[derive(Debug)]
pub enum Transfer<'a> {
    /// The guest reads; the buffer is to be filled.
    Read(&'a mut [u8]),
    /// The guest writes these bytes.
    Write(&'a [u8]),
}

impl Transfer<'_> {
    /// Bytes to move.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.len(),
            Self::Write(buffer) => buffer.len(),
        }
    }

    /// Whether the guest writes.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write(_))
    }

    /// The transfer of a part of the bytes; empty where `range` is outside.
    pub fn part(&mut self, range: core::ops::Range<usize>) -> Transfer<'_> {
        match self {
            Self::Read(buffer) => Transfer::Read(buffer.get_mut(range).unwrap_or_default()),
            Self::Write(buffer) => Transfer::Write(buffer.get(range).unwrap_or_default()),
        }
    }
}

/// What came of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// Done; interrupts may have changed.
    Attend,
    /// Not allowed; reads gave a harmless value.
    Refused,
    /// Not allowed, and a machine check says so.
    Failed {
        /// The guest may go on.
        deferred: bool,
    },
    /// The device is not here now: the access must be made again later.
    Wait,
    /// The device has more to do for this access than one may take: it must be made again, after whatever else is due.
    Again,
}

/// Who handles a hooked port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortHandler {
    /// Nobody: the guest has no right to it.
    None,
    /// The serial console.
    Uart,
    /// PCI configuration mechanism 1.
    PciConfig,
    /// Power-off and reset.
    Power,
    /// Panics of its kernel.
    Panic,
    /// The real-time clock.
    Rtc,
    /// What comes to its bus, and is to leave it.
    Hotplug,
    /// A function, by its index in [`Domain::functions`].
    Device(u8),
    /// What is in the socket of a slot.
    Socket(u8),
}

impl PortHandler {
    /// Under which reason its exits are counted.
    pub fn exit(self) -> Exit {
        match self {
            Self::Uart => Exit::IoUart,
            Self::PciConfig => Exit::IoPci,
            Self::Device(_) | Self::Socket(_) => Exit::IoDevice,
            Self::Power | Self::Panic | Self::Rtc | Self::Hotplug | Self::None => Exit::IoOther,
        }
    }

    /// Under which kind its refusals are counted.
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Device(_) | Self::Socket(_) => Refusal::Device,
            _ => Refusal::Port,
        }
    }
}

/// Who handles hooked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageHandler {
    /// I/O APIC registers.
    IoApic,
    /// Local APIC registers.
    LocalApic,
    /// PCI configuration.
    Ecam,
    /// Memory of a function.
    Device {
        /// Index in [`Domain::functions`].
        function: u8,
        /// BAR, 0-5; the expansion ROM is 6.
        bar: u8,
    },
    /// Memory of what is in a socket.
    Socket {
        /// Its slot.
        slot: u8,
        /// BAR, 0-5.
        bar: u8,
    },
}

impl PageHandler {
    /// Under which reason exits to it are counted.
    pub fn exit(self) -> Exit {
        match self {
            Self::IoApic => Exit::MmioIoApic,
            Self::LocalApic => Exit::ApicOther,
            Self::Ecam => Exit::MmioEcam,
            Self::Device { .. } | Self::Socket { .. } => Exit::MmioDevice,
        }
    }
}

/// Why a domain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It asked to be powered off.
    PowerOff,
    /// It asked for a reset.
    Reset,
    /// A command ended it.
    Command,
    /// Its kernel said that it panics.
    Panic,
    /// Triple fault.
    TripleFault,
    /// The processor refused the state that it had put itself into.
    InvalidState,
    /// An exit that is not intercepted.
    UnexpectedExit(u32),
}

impl EndReason {
    /// The state a domain is in after this.
    pub fn state(self) -> DomainState {
        match self {
            Self::PowerOff => DomainState::PoweredOff,
            Self::Reset | Self::Command => DomainState::Destroyed,
            Self::Panic | Self::TripleFault | Self::InvalidState | Self::UnexpectedExit(_) => {
                DomainState::Crashed
            }
        }
    }

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::PowerOff => "powered off",
            Self::Reset => "asked for a reset",
            Self::Command => "ended by a command",
            Self::Panic => "its kernel panicked",
            Self::TripleFault => "triple fault",
            Self::InvalidState => "invalid processor state",
            Self::UnexpectedExit(_) => "unexpected exit",
        }
    }
}

/// The devices of the virtual platform that all processors of a domain share.
pub struct Platform {
    io_apic: IoApic,
    uart: Uart,
    /// What was typed and the serial port has no room for.
    typed: VecDeque<u8>,
    rtc: Rtc,
    hotplug: Hotplug,
    /// The virtual PCI bus.
    pub pci: PciBus,
}

impl Platform {
    /// Gives the serial port as much of what was typed as it takes.
    fn hand_over_typed(&mut self) {
        while let Some(byte) = self.typed.front()
            && self.uart.push_input(*byte)
        {
            self.typed.pop_front();
        }
    }
}

/// One guest.
pub struct Domain {
    /// Which of the configuration it is.
    pub id: DomainId,
    /// What it was built from.
    pub config: config::Domain,
    /// Its processors.
    pub vcpus: Vec<Arc<Vcpu>>,
    /// The functions that stay on its PCI bus.
    pub functions: Vec<Arc<dyn VirtualFunction>>,
    /// Those that come and go, by slot.
    sockets: [Socket; pci::SLOTS],
    /// Its hooked ports.
    pub ports: SpinLock<PortTable<PortHandler>>,
    /// Its hooked memory.
    pages: SpinLock<PageTable<PageHandler>>,
    /// Shared virtual devices.
    pub platform: SpinLock<Platform>,
    memory: GuestMemory,
    /// It has a device that reaches all memory: no IOMMU stands before it.
    reaches_everything: bool,
    /// The one map of its memory, and who sees it.
    space: SpinLock<memory::Map>,
    /// What it lets others reach.
    grants: SpinLock<grants::Spaces>,
    /// What its windows show where nothing is lent, once it has any.
    sink: Once<sink::Sink>,
    /// Of a paravirtual one with devices: what it finds in place of a BIOS.
    bios: Once<bios::Blank>,
    permission_map: Hpa,
    state: AtomicU8,
    end: SpinLock<Option<EndReason>>,
    frozen: AtomicU32,
    console: SpinLock<Console>,
    /// Number of its nested tables as they are: another after each time that something was taken away from them. No two
    /// domains, and no two lives of one, ever have the same.
    pub(crate) tables: AtomicU64,
    /// The guest wrote a time-stamp counter of one of several processors: they no longer agree.
    pub(crate) tsc_moved: AtomicBool,
    /// TSC until which its clock pages say that it stood still.
    stood_still_until: AtomicU64,
    /// TSC at which interrupts that are held back are delivered: they came without end, or were to come later.
    held_until: AtomicU64,
    /// Its kernel panicked, and a crash kernel of its own took over, which was logged.
    dumps: AtomicBool,
    /// Of a paravirtual one: lines of its devices that went up, a bit each.
    lines: AtomicU32,
    /// Of a paravirtual one: what it is asked by any of its processors.
    interface: Once<Interface>,
    /// What it was asked, as of the last time that this was published.
    pub asked: ParavirtualCounters,
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.dissolve();
        mm::release(mm::FrameUse::Hypervisor, self.permission_map, PERMISSION_MAP);
    }
}

impl Domain {
    /// A domain without processors, of what it was configured as, its functions that stay and their bus, its clock, and its memory. `None` if
    /// there is no memory for its permission map.
    pub fn new(
        id: DomainId,
        config: &config::Domain,
        functions: Vec<Arc<dyn VirtualFunction>>,
        bus: PciBus,
        rtc: Rtc,
        mut memory: Memory,
    ) -> Option<Self> {
        let permission_map = mm::allocate_zeroed(PERMISSION_MAP)?;
        let (ram, space) = memory.take();
        let domain = Self {
            id,
            config: config.clone(),
            vcpus: Vec::new(),
            functions,
            sockets: core::array::from_fn(|_| Socket::new()),
            ports: SpinLock::new(Rank::Ports, port_table()),
            pages: SpinLock::new(Rank::Pages, page_table()),
            platform: SpinLock::new(
                Rank::Platform,
                Platform {
                    io_apic: IoApic::new(0),
                    uart: Uart::new(),
                    typed: VecDeque::new(),
                    rtc,
                    hotplug: Hotplug::default(),
                    pci: bus,
                },
            ),
            memory: ram,
            reaches_everything: memory.is_identity(),
            space: SpinLock::new(Rank::Space, space),
            grants: SpinLock::new(Rank::Grants, grants::Spaces::default()),
            sink: Once::new(),
            bios: Once::new(),
            permission_map,
            state: AtomicU8::new(0),
            end: SpinLock::new(Rank::End, None),
            frozen: AtomicU32::new(0),
            console: SpinLock::new(Rank::Console, Console::default()),
            tables: AtomicU64::new(BUILT.fetch_add(1, Ordering::Relaxed) << 32),
            tsc_moved: AtomicBool::new(false),
            stood_still_until: AtomicU64::new(0),
            held_until: AtomicU64::new(u64::MAX),
            dumps: AtomicBool::new(false),
            lines: AtomicU32::new(0),
            interface: Once::new(),
            asked: ParavirtualCounters::new(),
        };
        domain.derive_permission_map();
        Some(domain)
    }

    /// Takes its devices back.
    pub fn detach(&self) {
        let detach = || self.functions.iter().for_each(|function| function.detach());
        // What others grant is theirs again once it has left: a device that no IOMMU keeps from it must stand still by then.
        if self.reaches_everything {
            detach();
            grants::leave(self);
        } else {
            grants::leave(self);
            detach();
        }
        self.unplug_all();
    }

    /// All its processors have halted.
    pub fn halted(&self) {
        self.functions.iter().for_each(|function| function.halted(self));
    }

    /// TSC at which one of its functions goes on with what it has left to do; `u64::MAX`: none has. Call [`Self::resume`] then,
    /// on a processor on which the domain runs and in its turn.
    #[inline]
    pub fn resumes_at(&self) -> u64 {
        self.functions.iter().map(|function| function.resumes_at()).min().unwrap_or(u64::MAX)
    }

    /// Has its functions do what they have left to do at `now`, as far as one call may. It is the domain's doing: whoever calls
    /// this charges it with the time.
    #[inline]
    pub fn resume(&self, now: u64) {
        self.functions.iter().for_each(|function| function.resume(now));
    }

    /// Name from the configuration.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Physical address of the I/O permission map.
    pub fn permission_map(&self) -> Hpa {
        self.permission_map
    }

    /// Where the domain is in its life.
    pub fn state(&self) -> DomainState {
        match self.state.load(Ordering::SeqCst) {
            0 => DomainState::Created,
            1 => DomainState::Running,
            2 => DomainState::Paused,
            _ => match self.end_reason() {
                // A guest whose reboot is its end has come to the end that was meant for it.
                Some(EndReason::Reset) if self.config.actions.reboot != Action::Restart => {
                    DomainState::PoweredOff
                }
                reason => reason.map_or(DomainState::Destroyed, EndReason::state),
            },
        }
    }

    /// Why it ended, if it did.
    pub fn end_reason(&self) -> Option<EndReason> {
        *self.end.lock()
    }

    /// Whether its processors may be given time.
    pub fn may_run(&self) -> bool {
        self.state.load(Ordering::SeqCst) == 1
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.state.load(Ordering::SeqCst) == 3
    }

    /// Starts or resumes it.
    pub fn run(&self) {
        let _ = self.state.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == 2 {
            // Before any of them runs.
            self.stood_still_until
                .store(tsc::now().saturating_add(tsc::ticks_from_ns(STOOD_STILL_NS)), Ordering::SeqCst);
            for vcpu in &self.vcpus {
                vcpu.signal(event::RESUMED);
            }
        }
        let _ = self.state.compare_exchange(2, 1, Ordering::SeqCst, Ordering::SeqCst);
        for vcpu in &self.vcpus {
            vcpu.nudge();
        }
    }

    /// Whether its clock pages are to say that it stood still. One of its processors asks its page once, and may find only then, by what another
    /// has done meanwhile, how much time has passed.
    #[inline]
    pub fn stood_still(&self, now: u64) -> bool {
        now < self.stood_still_until.load(Ordering::Relaxed)
    }

    /// Takes its processors away until [`Domain::run`].
    pub fn pause(&self) {
        if self.state.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.interrupt_all();
        }
    }

    /// Ends it. The first reason stays.
    pub fn end(&self, reason: EndReason) {
        let mut end = self.end.lock();
        if end.is_none() {
            *end = Some(reason);
            self.state.store(3, Ordering::SeqCst);
            drop(end);
            self.interrupt_all();
            attention::ask();
        }
    }

    fn interrupt_all(&self) {
        for vcpu in &self.vcpus {
            vcpu.signal(event::YIELD);
        }
    }

    /// Whether none of its processors is inside a slice.
    pub fn is_idle(&self) -> bool {
        self.vcpus.iter().all(|vcpu| vcpu.context.try_lock().is_some())
    }

    // --- memory -----------------------------------------------------------------------------

    /// Where its memory is.
    pub fn extents(&self) -> &[Extent] {
        self.memory.extents()
    }

    /// Reads guest memory.
    ///
    /// # Errors
    /// The range is not wholly RAM of this guest; nothing was read.
    #[inline]
    pub fn read(&self, gpa: Gpa, buffer: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.read(&mm::Direct, gpa, buffer)
    }

    /// Writes guest memory.
    ///
    /// # Errors
    /// The range is not wholly RAM of this guest; nothing was written.
    #[inline]
    pub fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(&mm::Direct, gpa, bytes)
    }

    /// Where a range of guest memory is, for a device; `None` if it is not RAM of this guest in one piece.
    pub fn in_one_piece(&self, gpa: Gpa, len: u64) -> Option<Hpa> {
        self.memory.in_one_piece(gpa, len)
    }

    /// Reads two bytes at once, which the guest may write meanwhile.
    ///
    /// # Errors
    /// They are not RAM of this guest, or not aligned.
    #[inline]
    pub fn read_u16(&self, gpa: Gpa) -> Result<u16, OutOfRange> {
        self.memory.read_u16(&mm::Direct, gpa)
    }

    /// Writes two bytes at once, which the guest may read meanwhile.
    ///
    /// # Errors
    /// They are not RAM of this guest, or not aligned.
    #[inline]
    pub fn write_u16(&self, gpa: Gpa, value: u16) -> Result<(), OutOfRange> {
        self.memory.write_u16(&mm::Direct, gpa, value)
    }

    /// Reads four bytes at once, which the guest may write meanwhile.
    ///
    /// # Errors
    /// They are not RAM of this guest, or not aligned.
    pub fn read_u32(&self, gpa: Gpa) -> Result<u32, OutOfRange> {
        self.word(gpa).map(|hpa| mm::Direct.read_u32(hpa))
    }

    /// Writes four bytes at once, which the guest may read meanwhile.
    ///
    /// # Errors
    /// They are not RAM of this guest, or not aligned.
    pub fn write_u32(&self, gpa: Gpa, value: u32) -> Result<(), OutOfRange> {
        self.word(gpa).map(|hpa| mm::Direct.write_u32(hpa, value))
    }

    /// Where four bytes are, at a multiple of four.
    fn word(&self, gpa: Gpa) -> Result<Hpa, OutOfRange> {
        self.memory.in_one_piece(gpa, 4).filter(|_| gpa.is_aligned(4)).ok_or(OutOfRange)
    }

    /// Copies from this guest's memory to that of another.
    ///
    /// # Errors
    /// A range is not wholly RAM of its guest; nothing was copied.
    #[inline]
    pub fn copy(&self, from: Gpa, (other, to): (&Self, Gpa), len: u64) -> Result<(), OutOfRange> {
        self.memory.copy(&mm::Direct, from, (&other.memory, to), len)
    }

    /// Whether a range is wholly RAM of this guest.
    #[inline]
    pub fn holds(&self, gpa: Gpa, len: u64) -> bool {
        self.memory.translate(gpa, len).is_ok()
    }

    /// Where an aligned word is, for [`Domain::read_word`]. It stays there as long as the domain lives.
    pub fn word_place(&self, gpa: Gpa) -> Option<WordPlace> {
        self.memory.word(gpa).ok()
    }

    /// Reads a word of this guest's memory whose place is known.
    #[inline]
    pub fn read_word(&self, at: WordPlace) -> u64 {
        at.read(&mm::Direct)
    }

    /// Reads an aligned word, for walks of the guest's page tables.
    pub fn read_u64(&self, gpa: Gpa) -> Option<u64> {
        self.memory.read_u64(&mm::Direct, gpa).ok()
    }

    /// Writes an aligned word in one access, if it is RAM of this guest.
    pub fn write_u64(&self, gpa: Gpa, value: u64) {
        if let Some(hpa) = self.memory.in_one_piece(gpa, 8).filter(|hpa| hpa.is_aligned(8)) {
            mm::Direct.write_u64(hpa, value);
        }
    }

    /// Replaces an aligned word in one locked access, if it is `old` still. Returns whether it was.
    pub fn replace_u64(&self, gpa: Gpa, old: u64, new: u64) -> bool {
        let place = self.memory.translate(gpa, 8).ok().and_then(|mut pieces| pieces.next());
        match place {
            Some((hpa, 8)) if hpa.is_aligned(8) => mm::Direct.replace_u64(hpa, old, new),
            _ => false,
        }
    }

    // --- freezing ---------------------------------------------------------------------------

    /// Sees to it that no processor of the domain executes guest code until [`Domain::thaw`], so
    /// that a device it may touch directly stands still.
    pub fn freeze(&self) {
        self.frozen.fetch_add(1, Ordering::SeqCst);
        for vcpu in &self.vcpus {
            if vcpu.in_guest.load(Ordering::SeqCst) {
                vcpu.nudge();
            }
        }
        for vcpu in &self.vcpus {
            while vcpu.in_guest.load(Ordering::SeqCst) {
                core::hint::spin_loop();
            }
        }
    }

    /// Whether any processor of the domain executes guest code now.
    #[cfg(feature = "check-stillness")]
    pub fn is_in_guest(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.in_guest.load(Ordering::SeqCst))
    }

    /// Ends a freeze.
    pub fn thaw(&self) {
        self.frozen.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether somebody froze the domain.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst) != 0
    }

    /// Waits until nobody does. Freezes are short: a few device accesses.
    pub fn wait_thawed(&self) {
        while self.is_frozen() {
            core::hint::spin_loop();
        }
    }

    // --- interrupts -------------------------------------------------------------------------

    /// Sets the level of an I/O APIC pin.
    pub fn set_line(&self, pin: u8, level: bool) {
        if self.is_paravirtual() {
            return self.raise_line(pin, level);
        }
        let message = self.platform.lock().io_apic.set_line(pin, level);
        if let Some(message) = message {
            self.deliver(&message);
        }
    }

    /// An I/O APIC pin goes up; its level, and what else is held back, is delivered at `until` (TSC ticks), or when the guest
    /// halts.
    pub fn raise_line_later(&self, pin: u8, until: u64) {
        self.platform.lock().io_apic.hold(pin);
        self.held_until.fetch_min(until, Ordering::SeqCst);
        self.set_line(pin, true);
    }

    /// Whether it is a paravirtual one.
    pub fn is_paravirtual(&self) -> bool {
        self.config.kind == config::Kind::Paravirtual
    }

    /// Of a paravirtual domain: what it is asked by any of its processors.
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.get()
    }

    /// Gives a paravirtual domain its interface.
    pub fn set_interface(&self, interface: Interface) {
        self.interface.call_once(|| interface);
    }

    /// Has these of its processors forget the translations that its own page tables led to, a bit each, before they execute another instruction.
    pub fn flush_processors(&self, which: u64) {
        self.freeze();
        self.order_flush(which);
        self.thaw();
    }

    /// Has these of its processors, a bit each, forget translations before they go on from a freeze.
    fn order_flush(&self, which: u64) {
        for vcpu in self.vcpus.iter().filter(|vcpu| which >> vcpu.id & 1 != 0) {
            vcpu.events.fetch_or(event::FLUSH, Ordering::SeqCst);
        }
    }

    /// Has a paravirtual domain's processor begin.
    pub fn start_processor(&self, id: u32) {
        if let Some(vcpu) = self.vcpus.get(id as usize) {
            self.wake_off(vcpu, event::SIPI);
        }
    }

    /// A line of a paravirtual domain's devices went up: its processor tells the guest of it.
    fn raise_line(&self, line: u8, level: bool) {
        if level {
            self.lines.fetch_or(1u32.checked_shl(line.into()).unwrap_or(0), Ordering::SeqCst);
            for vcpu in &self.vcpus {
                vcpu.signal(event::INTERRUPT);
            }
        }
    }

    /// Lines of a paravirtual domain's devices that went up since the last call, a bit each.
    pub fn take_lines(&self) -> u32 {
        self.lines.swap(0, Ordering::SeqCst)
    }

    /// A paravirtual guest has dealt with an interrupt of a line: who is on it may raise it again.
    pub fn end_of_line(&self, line: u32) {
        for function in self.functions.iter().filter(|function| u32::from(function.pin()) == line) {
            function.end_of_interrupt(self);
        }
    }

    /// Delivers a message of the I/O APIC or an MSI. Returns false if it is news to nobody: whom it is for have not taken the one
    /// before, or it is for no processor.
    pub fn deliver(&self, message: &Message) -> bool {
        let mut news = false;
        for vcpu in &self.vcpus {
            if vcpu.route.lock().matches(message.dest, message.logical) {
                news |= vcpu.post(message.vector, message.level);
                if message.lowest_priority {
                    break;
                }
            }
        }
        news
    }

    /// Delivers an inter-processor interrupt of `from`.
    pub fn send_ipi(&self, from: &Vcpu, ipi: &Ipi) {
        for vcpu in &self.vcpus {
            let hit = match ipi.shorthand {
                Shorthand::None => vcpu.route.lock().matches(ipi.dest, ipi.logical),
                Shorthand::SelfOnly => vcpu.id == from.id,
                Shorthand::All => true,
                Shorthand::Others => vcpu.id != from.id,
            };
            if !hit {
                continue;
            }
            match ipi.mode {
                DeliveryMode::Fixed => {
                    vcpu.post(ipi.vector, false);
                }
                DeliveryMode::LowestPriority => {
                    vcpu.post(ipi.vector, false);
                    break;
                }
                DeliveryMode::Nmi => {
                    vcpu.signal(event::NMI);
                }
                DeliveryMode::Init if ipi.assert => self.wake_off(vcpu, event::INIT),
                DeliveryMode::StartUp => {
                    vcpu.sipi_vector.store(ipi.vector, Ordering::SeqCst);
                    self.wake_off(vcpu, event::SIPI);
                }
                _ => {}
            }
        }
    }

    fn wake_off(&self, vcpu: &Vcpu, what: u32) {
        if vcpu.signal(what) && vcpu.state() == RunState::Off {
            vcpu.nudge();
        }
    }

    /// A processor ended the handling of a level-triggered interrupt. Returns whether it is to look at all that may have changed before it goes on.
    pub fn end_of_interrupt(&self, vector: u8) -> bool {
        // A line that is passed through shows what the device says now before the I/O APIC looks at
        // it again, or every interrupt would come twice.
        let mut platform = self.platform.lock();
        let serving = platform.io_apic.serving(vector);
        if serving == 0 {
            return false;
        }
        let mut attends = false;
        if !self.functions.is_empty() {
            drop(platform);
            for function in &self.functions {
                if serving.checked_shr(function.pin().into()).is_some_and(|pins| pins & 1 != 0) {
                    attends |= function.end_of_interrupt(self);
                }
            }
            platform = self.platform.lock();
        }
        let eois = platform.io_apic.eoi(vector);
        drop(platform);
        for message in &eois.redeliver {
            self.deliver(message);
        }
        if eois.held {
            let until = tsc::now().saturating_add(tsc::ticks_from_ns(HELD_NS));
            self.held_until.fetch_min(until, Ordering::SeqCst);
        }
        attends || eois.held
    }

    /// The earlier of a deadline and of when interrupts that are held back are due.
    #[inline]
    pub fn until_release(&self, deadline: Option<u64>) -> Option<u64> {
        match self.held_until.load(Ordering::Relaxed) {
            u64::MAX => deadline,
            held => Some(deadline.map_or(held, |deadline| deadline.min(held))),
        }
    }

    /// Delivers interrupts that were held back, if they were for long enough at `now`.
    #[inline]
    pub fn release_held(&self, now: u64) {
        if self.held_until.load(Ordering::Relaxed) <= now {
            self.held_until.store(u64::MAX, Ordering::SeqCst);
            let held = self.platform.lock().io_apic.release();
            for message in &held {
                self.deliver(message);
            }
        }
    }

    /// Brings the whole permission map in line with the trap table.
    fn derive_permission_map(&self) {
        mm::Direct.fill(self.permission_map, MAP_BYTES as u64, 0xff);
        self.derive_ports(&self.ports.lock(), 0..=u16::MAX);
    }

    fn derive_ports(&self, table: &PortTable<PortHandler>, ports: RangeInclusive<u16>) {
        for word in ports.start() / 32..=ports.end() / 32 {
            let at = Hpa::new(self.permission_map.as_u64() + 4 * u64::from(word));
            mm::Direct.write_u32(at, table.map_word(word));
        }
    }

    /// Sends the ports of a device to a handler, but has those of `open` not exit: 32 at most, by offset. The handler answers
    /// for these, too, if they exited before.
    pub fn hook_ports(&self, base: u16, count: u16, handler: PortHandler, open: u32) {
        self.change_ports(base, count, |table, ports| table.hook_but(ports, handler, open));
    }

    /// Lets accesses to the ports of a device go to the hardware.
    pub fn open_ports(&self, base: u16, count: u16) {
        self.change_ports(base, count, PortTable::direct);
    }

    /// Has accesses to ports that nobody answers for go to a handler. False if somebody does; nothing has changed then.
    pub fn claim_ports(&self, base: u16, count: u16, handler: PortHandler) -> bool {
        let Some(last) = base.checked_add(count.saturating_sub(1)) else { return false };
        let mut table = self.ports.lock();
        let is_free = |port| {
            let answer = [Direction::READ, Direction::WRITE].map(|direction| table.lookup(port, direction));
            answer.iter().all(|answer| {
                matches!(answer, Disposition::Refused | Disposition::Handler(PortHandler::None))
            })
        };
        let free = (base..=last).all(is_free);
        if free {
            // They exited before, and go on to: the permission map stays as it is.
            table.hook(base..=last, Direction::all(), handler);
        }
        free
    }

    /// Nobody answers for ports any more that were claimed.
    pub fn release_ports(&self, base: u16, count: u16) {
        self.change_ports(base, count, PortTable::remove);
    }

    /// Makes a change of the trap table, and brings the permission map in line with it.
    fn change_ports(
        &self,
        base: u16,
        count: u16,
        change: impl FnOnce(&mut PortTable<PortHandler>, RangeInclusive<u16>) -> RangeInclusive<u16>,
    ) {
        let Some(last) = base.checked_add(count.saturating_sub(1)) else { return };
        let mut table = self.ports.lock();
        let altered = change(&mut table, base..=last);
        self.derive_ports(&table, altered);
    }

    // --- virtual devices --------------------------------------------------------------------

    /// An access to a hooked port. Part of the run loop: a call would cost a tenth of the exit.
    #[inline(always)]
    pub fn port(&self, handler: PortHandler, port: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        match handler {
            PortHandler::Device(index) => match self.functions.get(usize::from(index)) {
                Some(function) => function.port(self, port, width, transfer),
                None => refuse(transfer),
            },
            PortHandler::Socket(slot) => match self.plugged(slot) {
                Some(function) => function.port(self, port, width, transfer),
                None => refuse(transfer),
            },
            PortHandler::Hotplug => self.hotplug_port(port, width, transfer),
            PortHandler::Uart => self.uart(port, transfer),
            PortHandler::PciConfig => self.pci_port(port, width, transfer),
            PortHandler::Power => {
                if let Transfer::Write(bytes) = &transfer {
                    let mut answer = Answer::Done;
                    for byte in *bytes {
                        match power::write(port, *byte) {
                            Some(PowerEvent::PowerOff) => self.end(EndReason::PowerOff),
                            Some(PowerEvent::Reset) => self.end(EndReason::Reset),
                            None => continue,
                        }
                        answer = Answer::Attend;
                    }
                    return answer;
                }
                fill(transfer, 0);
                Answer::Done
            }
            PortHandler::Panic => self.panic_port(transfer),
            PortHandler::Rtc => self.rtc_port(port, width, transfer),
            PortHandler::None => refuse(transfer),
        }
    }

    #[cold]
    fn rtc_port(&self, port: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        let now = clock::time_ns();
        // The bytes of a wide access are for one port after the other.
        let ports = (0..u16::from(width.max(1))).cycle().map(|byte| port.wrapping_add(byte));
        let mut platform = self.platform.lock();
        match transfer {
            Transfer::Read(buffer) => {
                buffer.iter_mut().zip(ports).for_each(|(byte, port)| *byte = platform.rtc.read(port, now));
            }
            Transfer::Write(bytes) => {
                bytes.iter().zip(ports).for_each(|(byte, port)| platform.rtc.write(port, *byte, now));
            }
        }
        Answer::Done
    }

    /// Its real-time clock, for its next life.
    pub fn rtc(&self) -> Rtc {
        self.platform.lock().rtc.clone()
    }

    #[cold]
    fn panic_port(&self, transfer: Transfer<'_>) -> Answer {
        let Transfer::Write(bytes) = &transfer else {
            fill(transfer, pvpanic::read());
            return Answer::Done;
        };
        match bytes.first().and_then(|byte| pvpanic::write(*byte)) {
            Some(Panic::Stopped) => {
                self.end(EndReason::Panic);
                Answer::Attend
            }
            Some(Panic::Dumps) => {
                // Once in its life, as a guest may write without end.
                if !self.dumps.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "domain {}: its kernel panicked, and its crash kernel takes over",
                        self.name()
                    );
                }
                Answer::Done
            }
            None => Answer::Done,
        }
    }

    fn uart(&self, port: u16, transfer: Transfer<'_>) -> Answer {
        let offset = (port.wrapping_sub(layout::UART_PORT) & 7) as u8;
        let mut platform = self.platform.lock();
        let mut waiting = None;
        match transfer {
            Transfer::Read(buffer) => {
                buffer.iter_mut().for_each(|byte| *byte = platform.uart.read(offset));
                platform.hand_over_typed();
            }
            Transfer::Write(bytes) => {
                for byte in bytes {
                    if let Some(byte) = platform.uart.write(offset, *byte) {
                        waiting = waiting.max(self.console_output(&mut platform, byte));
                    }
                }
            }
        }
        let answer = self.update_uart_line(platform);
        if self.announce(waiting) { Answer::Attend } else { answer }
    }

    /// Output of a console that has no serial port. Returns how much of it there is room for.
    pub fn console_write(&self, bytes: &[u8]) -> usize {
        let mut platform = self.platform.lock();
        let (mut waiting, mut taken) = (None, 0);
        // What fits a serial port's FIFO is taken whole or not at all.
        for part in bytes.chunks(FIFO) {
            if self.console.lock().is_full() {
                break;
            }
            for byte in part {
                waiting = waiting.max(self.console_output(&mut platform, *byte));
            }
            taken += part.len();
        }
        drop(platform);
        self.announce(waiting);
        taken
    }

    /// Takes what was typed, for a console that has no serial port. Returns how much there was.
    pub fn take_typed(&self, buffer: &mut [u8]) -> usize {
        let mut platform = self.platform.lock();
        let mut taken = 0;
        for room in buffer {
            let Some(byte) = platform.typed.pop_front() else { break };
            *room = byte;
            taken += 1;
        }
        taken
    }

    /// Has the channel take output that waits. Returns true if the calling processor is to do it.
    fn announce(&self, waiting: Option<Output>) -> bool {
        // A processor that serves the channel itself does so before its guest goes on.
        match waiting {
            Some(Output::Now) => attention::ask_for_output(),
            Some(Output::Begun) => {
                attention::ask_for_output_at(tsc::now().saturating_add(tsc::ticks_from_ns(LINE_NS)))
            }
            None => false,
        }
    }

    fn update_uart_line(&self, mut platform: crate::sync::SpinLockGuard<'_, Platform>) -> Answer {
        let level = platform.uart.interrupt();
        let message = platform.io_apic.set_line(layout::UART_GSI, level);
        drop(platform);
        match message {
            Some(message) => {
                self.deliver(&message);
                Answer::Attend
            }
            None => Answer::Done,
        }
    }

    /// Presses the ACPI power button.
    pub fn press_power_button(&self) {
        self.pulse(acpi::POWER_BUTTON_GSI);
    }

    /// Raises an edge-triggered pin once: up and down again is one interrupt.
    fn pulse(&self, pin: u8) {
        self.set_line(pin, true);
        self.set_line(pin, false);
    }

    /// Bytes typed on the console.
    pub fn console_input(&self, bytes: &[u8]) {
        let mut platform = self.platform.lock();
        let room = TYPED.saturating_sub(platform.typed.len());
        platform.typed.extend(bytes.iter().take(room));
        if self.is_paravirtual() {
            drop(platform);
            for vcpu in &self.vcpus {
                vcpu.signal(event::INTERRUPT);
            }
            return;
        }
        platform.hand_over_typed();
        self.update_uart_line(platform);
    }

    /// Queues a byte of console output. Returns whether the channel is to be asked to take what waits.
    fn console_output(&self, platform: &mut Platform, byte: u8) -> Option<Output> {
        let mut console = self.console.lock();
        let begins = console.is_empty();
        console.push(byte);
        // Until somebody has taken a part: who looks before he writes loses nothing.
        platform.uart.set_busy(console.is_full());
        if byte == b'\n' || console.len() >= FLUSH {
            return Some(Output::Now);
        }
        begins.then_some(Output::Begun)
    }

    /// Bytes of console output that nobody took in time.
    pub fn console_dropped(&self) -> u64 {
        self.console.lock().dropped()
    }

    /// Takes up to `limit` bytes of console output.
    pub fn take_console(&self, limit: usize) -> Vec<u8> {
        let (bytes, was_full) = {
            let mut console = self.console.lock();
            let was_full = console.is_full();
            (console.take(limit), was_full)
        };
        if was_full {
            let mut platform = self.platform.lock();
            let full = self.console.lock().is_full();
            platform.uart.set_busy(full);
            self.update_uart_line(platform);
        }
        bytes
    }

    fn pci_port(&self, port: u16, width: u8, transfer: Transfer<'_>) -> Answer {
        let mut platform = self.platform.lock();
        let effect = match transfer {
            Transfer::Read(buffer) => {
                let value = platform.pci.port_read(port, width).to_le_bytes();
                for (to, from) in buffer.iter_mut().zip(value.iter().cycle()) {
                    *to = *from;
                }
                ConfigEffect::None
            }
            Transfer::Write(bytes) => platform.pci.port_write(port, width, value_of(bytes)),
        };
        drop(platform);
        if effect == ConfigEffect::None {
            return Answer::Done;
        }
        self.apply_config(effect);
        // What follows for a device may be due at a time of its own.
        Answer::Attend
    }

    fn apply_config(&self, effect: ConfigEffect) {
        let slot = match effect {
            ConfigEffect::None => return,
            ConfigEffect::BarsChanged(slot)
            | ConfigEffect::CommandChanged(slot, _)
            | ConfigEffect::MsiChanged(slot)
            | ConfigEffect::MsixChanged(slot) => slot,
        };
        let of_slot = |(_, function): &(usize, &Arc<dyn VirtualFunction>)| function.slot() == slot;
        for (index, function) in self.functions.iter().enumerate().filter(of_slot) {
            function.configured(self, index, effect);
        }
        if let Some(function) = self.plugged(slot) {
            function.configured(self, slot.into(), effect);
        }
    }

    /// Who handles accesses to what is at `gpa`, where that is not RAM.
    pub fn page_handler(&self, gpa: Gpa) -> Option<PageHandler> {
        self.pages.lock().lookup(gpa)
    }

    /// An access to memory that is not RAM.
    pub fn mmio(&self, vcpu: &Vcpu, gpa: Gpa, transfer: Transfer<'_>) -> Answer {
        self.serve_page(self.page_handler(gpa), vcpu, gpa, transfer)
    }

    /// The same where it is known who has `gpa`. It is a part of its callers, and what serves is not: who is asked most often, the I/O APIC, pays
    /// for nobody else's registers.
    #[inline(always)]
    pub fn serve_page(
        &self,
        handler: Option<PageHandler>,
        vcpu: &Vcpu,
        gpa: Gpa,
        transfer: Transfer<'_>,
    ) -> Answer {
        match handler {
            Some(PageHandler::IoApic) => self.io_apic(gpa, transfer),
            Some(PageHandler::Ecam) => self.ecam(gpa, transfer),
            Some(PageHandler::Device { function, bar }) => match self.functions.get(usize::from(function)) {
                Some(function) => function.memory(self, bar, gpa, transfer),
                None => refuse(transfer),
            },
            Some(PageHandler::Socket { slot, bar }) => match self.plugged(slot) {
                Some(function) => function.memory(self, bar, gpa, transfer),
                None => refuse(transfer),
            },
            // The local APIC needs the processor's own context: `svm::mmio` handles it.
            Some(PageHandler::LocalApic) | None => {
                vcpu.refusals.count(Refusal::Memory as usize);
                refuse(transfer)
            }
        }
    }

    fn io_apic(&self, gpa: Gpa, transfer: Transfer<'_>) -> Answer {
        let offset = (gpa.as_u64() - layout::IO_APIC) as u32;
        match transfer {
            Transfer::Read(buffer) => self.platform.lock().io_apic.mmio_load(offset, buffer),
            Transfer::Write(bytes) => return self.write_io_apic(offset, bytes),
        }
        Answer::Done
    }

    #[inline(never)]
    fn write_io_apic(&self, offset: u32, bytes: &[u8]) -> Answer {
        let effect = self.platform.lock().io_apic.mmio_store(offset, bytes);
        match effect {
            WriteEffect::None => {}
            WriteEffect::Deliver(message) => {
                self.deliver(&message);
            }
            WriteEffect::Eoi(vector) if self.end_of_interrupt(vector) => return Answer::Attend,
            WriteEffect::Eoi(_) => {}
        }
        Answer::Done
    }

    /// Configuration space knows accesses of up to four bytes: a wider one is several, the lowest first.
    #[inline(never)]
    fn ecam(&self, gpa: Gpa, mut transfer: Transfer<'_>) -> Answer {
        let (offset, len) = ((gpa.as_u64() - layout::ECAM) as u32, transfer.len());
        for start in (0..len).step_by(4) {
            self.ecam_word(offset.wrapping_add(start as u32), transfer.part(start..len.min(start + 4)));
        }
        Answer::Done
    }

    fn ecam_word(&self, offset: u32, transfer: Transfer<'_>) {
        let width = transfer.len() as u8;
        let mut platform = self.platform.lock();
        let effect = match transfer {
            Transfer::Read(buffer) => {
                let value = platform.pci.ecam_read(offset, width).to_le_bytes();
                for (to, from) in buffer.iter_mut().zip(value) {
                    *to = from;
                }
                ConfigEffect::None
            }
            Transfer::Write(bytes) => platform.pci.ecam_write(offset, width, value_of(bytes)),
        };
        drop(platform);
        self.apply_config(effect);
    }
}

fn value_of(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn fill(transfer: Transfer<'_>, byte: u8) {
    if let Transfer::Read(buffer) = transfer {
        buffer.fill(byte);
    }
}

/// What a PC does where nothing is: reads give ones, writes vanish.
fn refuse(transfer: Transfer<'_>) -> Answer {
    fill(transfer, 0xff);
    Answer::Refused
}

fn port_table() -> PortTable<PortHandler> {
    let mut ports = PortTable::new();
    let both = Direction::READ | Direction::WRITE;
    ports.hook(layout::UART_PORT..=layout::UART_PORT + 7, both, PortHandler::Uart);
    ports.hook(
        sluice_platform::pci::ADDRESS_PORT..=sluice_platform::pci::DATA_PORT + 3,
        both,
        PortHandler::PciConfig,
    );
    ports.hook(power::SLEEP_CONTROL_PORT..=power::RESET_PORT, both, PortHandler::Power);
    ports.hook(hotplug::CAME_PORT..=hotplug::CAME_PORT + hotplug::PORTS - 1, both, PortHandler::Hotplug);
    ports.hook(pvpanic::PORT..=pvpanic::PORT, both, PortHandler::Panic);
    ports.hook(rtc::INDEX_PORT..=rtc::DATA_PORT, both, PortHandler::Rtc);
    ports
}

fn page_table() -> PageTable<PageHandler> {
    let mut pages = PageTable::new();
    let both = Direction::READ | Direction::WRITE;
    pages.hook(Gpa::new(layout::IO_APIC), PAGE_SIZE, both, PageHandler::IoApic);
    pages.hook(Gpa::new(layout::LOCAL_APIC), PAGE_SIZE, both, PageHandler::LocalApic);
    pages.hook(Gpa::new(layout::ECAM), layout::ECAM_SIZE, both, PageHandler::Ecam);
    pages
}
