//! The model language: a device state model is constant data.
//!
//! A [`Model`] says which registers a device has and what an access to each could do
//! ([`Effects`]); and, as one or more small state machines that run side by side, in which states
//! the device is, which accesses and device events change them, which edges start a transfer, where
//! that transfer's address and length come from, what must be checked first, and which states are
//! *rest*: the device can change hands when every machine rests.
//!
//! From this, and from what must be known now, `hooks` computes what must exit, `track` follows a
//! device, and `check` proves on the host that nothing was forgotten. How a model is written is told
//! step by step in `docs/add-a-device-model.md`.
//!
//! Registers lie in ports or in memory ([`Space`]); bus masters name the memory they reach by a
//! [`Place`]. Configuration space is not in the model: BARs, MSI, power management and bus mastering
//! belong to the virtual PCI function, and no guest reaches the real ones.
//!
//! Source: L. Xia et al., sections 3.4, 4.1 and 5.2, where a model is one machine with one hook
//! list per state. Deviations: machines side by side, because a card sends while its next frame is
//! being loaded; effects apart from states, so that the hook set can depend on the question; edges
//! that look at reads, since reading can change a device, too.

mod names;
mod place;

pub use place::{Address, Descriptor, Memory, Place};

use crate::hooks::HookTable;
use crate::track::StepTable;

bitflags::bitflags! {
    /// What an access to a register can do that somebody may have to know or prevent. That it starts
    /// a transfer, or holds an address or length of one, is said by the edges ([`Start`]).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Effects: u16 {
        /// Write: the value lasts and cannot be read back.
        const LASTING = 1 << 0;
        /// Write: the value cannot be read back, but matters only until the command that uses it.
        const TRANSIENT = 1 << 1;
        /// Read: shows device memory, whoever's it is.
        const REVEALS_MEMORY = 1 << 2;
        /// Read: tells of receptions or interrupts that may be another's.
        const REVEALS_RECEIVE = 1 << 3;
        /// Write: changes device memory.
        const WRITES_MEMORY = 1 << 4;
        /// Write: decides where received data goes, whether it is received or who is told.
        const MOVES_RECEIVE = 1 << 5;
        /// Write: decides what a transmission sends.
        const MOVES_SEND = 1 << 6;
        /// Access: resets the device or its identity, and this cannot be told afterwards.
        const RESETS = 1 << 7;
        /// Write: opens configuration that outlives the client (EEPROM, power, identity) and cannot
        /// be put right afterwards.
        const UNLOCKS = 1 << 8;
        /// Write: is able to stop reception, or to start a transmission.
        const COMMANDS = 1 << 9;
        /// Read: takes away what it shows.
        const CONSUMES = 1 << 10;
        /// Read: the value changes by itself, with nothing that the device reports.
        const CHANGES = 1 << 11;
        /// Read: shows an address that was translated for the device: the host's.
        const SHOWS_ADDRESS = 1 << 12;
        /// Write: changes what outlives the client but can be read and put right: PHY, wake-up, power.
        const LINGERS = 1 << 13;
        /// Write: can change what survives power-off: EEPROM or flash memory.
        const BURNS = 1 << 14;
    }
}

/// Index into [`Model::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterId(pub u8);

/// A register, or several alike at consecutive places.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Name in the data sheet; `READ/WRITE` where one place has two.
    pub name: &'static str,
    /// First byte offset.
    pub first: u32,
    /// Last byte offset.
    pub last: u32,
    /// Bytes of one register: 1, 2 or 4.
    pub width: u8,
    /// Register pages it is visible on, bit per page.
    pub pages: u8,
    /// What reading can do.
    pub read: Effects,
    /// What writing can do.
    pub write: Effects,
}

impl Register {
    /// The ports it occupies, bit per offset.
    pub const fn ports(&self) -> u32 {
        self.units(Space::Ports)
    }

    /// The units of hooking it occupies, bit per unit: ports, or pages of memory.
    pub const fn units(&self, space: Space) -> u32 {
        let mut mask = 0;
        let mut unit = space.unit(self.first);
        while unit <= space.unit(self.last) && unit < 32 {
            mask |= 1 << unit;
            unit += 1;
        }
        mask
    }

    /// It is visible on this register page and holds this byte.
    pub const fn holds(&self, offset: u32, page: u8) -> bool {
        self.first <= offset && offset <= self.last && self.pages & (1 << (page & 7)) != 0
    }
}

/// Where the registers lie, and so what can be hooked apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Ports, at most 32: each can be hooked by itself.
    Ports,
    /// Memory: pages of 4 KiB, at most 32.
    Memory {
        /// Bytes that the device answers; they are the first of its BAR.
        bytes: u32,
        /// What an access does that is narrower than the register it falls into.
        narrow: Narrow,
    },
}

/// What a device in memory does with an aligned access narrower than the register it falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// Nothing. A wider access is one to each byte, if those are registers.
    Ignored,
    /// It is taken for one of the whole register, with zeros above.
    Whole,
}

impl Space {
    /// Number of the unit of hooking that a byte is in.
    pub const fn unit(self, offset: u32) -> u32 {
        match self {
            Self::Ports => offset,
            Self::Memory { .. } => offset >> 12,
        }
    }

    /// Units that exist in a device of this space with so many ports, bit per unit.
    pub const fn all_units(self, ports: u16) -> u32 {
        let units = match self {
            Self::Ports => ports as u32,
            Self::Memory { bytes, .. } => bytes.div_ceil(4096),
        };
        if units >= 32 { u32::MAX } else { (1 << units) - 1 }
    }
}

/// How to know which register page is visible, where places have several meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Every register is on every page.
    None,
    /// The value of this register tells; it is read back at each exit.
    Register(RegisterId),
    /// The state of this machine is the page; what moves it must be seen when registers of single
    /// pages are hooked.
    Machine(u8),
}

/// What moves a machine along an edge.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The client writes a value with `value & mask == bits` to the register.
    Write {
        /// Which register.
        register: RegisterId,
        /// Bits that count.
        mask: u32,
        /// What they must be.
        bits: u32,
    },
    /// The client reads a value with `value & mask == bits` from the register.
    Read {
        /// Which register.
        register: RegisterId,
        /// Bits that count.
        mask: u32,
        /// What they must be.
        bits: u32,
    },
    /// The device reports.
    Device(DeviceEvent),
}

/// What a device can report, by an interrupt or when it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A transmission ended, well or badly.
    Sent,
    /// Nothing that was handed over for sending is left.
    Drained,
    /// A dump of the device's own state into memory is complete.
    Dumped,
    /// There is an interrupt cause that was not there.
    Caused,
}

impl DeviceEvent {
    /// All there are, in order.
    pub const ALL: [Self; 4] = [Self::Sent, Self::Drained, Self::Dumped, Self::Caused];
}

/// How data of a started transfer moves.
#[derive(Clone, Copy, Debug)]
pub enum Transfer {
    /// From device memory to the outside, at once.
    Send,
    /// From outside into device memory, at any time from now on.
    Receive,
    /// Between device memory and the client, through this register only.
    Window(RegisterId),
    /// By the device from memory to the outside, from now on until it reports.
    Fetch,
    /// By the device from outside into memory, at any time from now on.
    Fill,
    /// By the device from its own state into memory, once.
    Dump,
}

impl Transfer {
    /// The device itself reaches memory.
    pub const fn masters(self) -> bool {
        matches!(self, Self::Fetch | Self::Fill | Self::Dump)
    }
}

/// Which check a transfer of device memory needs. The device's code carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The range sent lies in the client's own part of device memory.
    SendRange,
    /// Received frames go to device memory that only the monitor reads.
    ReceiveRange,
    /// Every datum that passes the window is the client's own.
    WindowOwn,
}

/// Which check a transfer of a bus master needs where no IOMMU contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vetting {
    /// The range of memory that registers name is the client's, and translated before the device has it.
    Range,
    /// The ring that registers name is the monitor's, and each descriptor in it was vetted and
    /// translated when it was copied there: the client cannot reach what the device reads.
    Descriptors,
}

/// A transfer that an edge starts, with the check that must approve it: one of the two kinds.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// What moves.
    pub transfer: Transfer,
    /// The check of device memory.
    pub check: Option<Check>,
    /// The check of a bus master.
    pub vetting: Option<Vetting>,
    /// Registers that hold its address.
    pub address: &'static [RegisterId],
    /// Registers that hold its length or end.
    pub length: &'static [RegisterId],
    /// How address and length come from them.
    pub place: Place,
}

impl Start {
    /// A transfer between device memory and the outside or the client.
    pub const fn of_device(
        transfer: Transfer,
        check: Check,
        address: &'static [RegisterId],
        length: &'static [RegisterId],
    ) -> Self {
        Self { transfer, check: Some(check), vetting: None, address, length, place: Place::Device }
    }

    /// A transfer that the device makes by itself to or from memory.
    pub const fn of_master(
        transfer: Transfer,
        vetting: Vetting,
        address: &'static [RegisterId],
        length: &'static [RegisterId],
        place: Place,
    ) -> Self {
        Self { transfer, check: None, vetting: Some(vetting), address, length, place }
    }
}

/// A transition of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// States it leaves, bit per state.
    pub from: u8,
    /// What moves along it.
    pub on: Event,
    /// State it leads to.
    pub to: u8,
    /// The transfer it starts, if any.
    pub start: Option<Start>,
}

/// A state of a machine.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Name for people.
    pub name: &'static str,
    /// The device may change hands here.
    pub rest: bool,
}

/// What a register tells of a machine's state when following begins.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Reading it changes nothing.
    pub register: RegisterId,
    /// Bits that count.
    pub mask: u32,
    /// What they must be.
    pub bits: u32,
    /// Then the machine is in this state.
    pub state: u8,
}

/// One machine. State 0 is where it starts after power-on; state `unseen` is where following begins
/// when the past is unknown and no register tells. The first edge that fits is taken.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Name for people.
    pub name: &'static str,
    /// At most [`MAX_STATES`].
    pub states: &'static [State],
    /// State when following begins.
    pub unseen: u8,
    /// What registers tell of the state, in order of precedence.
    pub told: &'static [Told],
    /// In order of precedence.
    pub edges: &'static [Edge],
}

impl Machine {
    /// It has states in which the device must not change hands.
    pub const fn works(&self) -> bool {
        let mut state = 0;
        while state < self.states.len() {
            if !self.states[state].rest {
                return true;
            }
            state += 1;
        }
        false
    }
}

/// Machines a model has at most.
pub const MAX_MACHINES: usize = 8;
/// States a machine has at most.
pub const MAX_STATES: usize = 8;
/// Registers a model has at most.
pub const MAX_REGISTERS: usize = 128;

/// A device state model.
#[derive(Debug)]
pub struct Model {
    /// Name, such as `ne2000`.
    pub name: &'static str,
    /// PCI vendor and device ids it is for.
    pub ids: &'static [(u16, u16)],
    /// Where the registers are.
    pub space: Space,
    /// Ports the device has, at most 32; 0 if it is in memory.
    pub ports: u16,
    /// What tells the register page.
    pub selector: Selector,
    /// At most [`MAX_REGISTERS`]. On each page every byte is in exactly one.
    pub registers: &'static [Register],
    /// At most [`MAX_MACHINES`].
    pub machines: &'static [Machine],
    /// What is computed from these ahead of time.
    pub tables: &'static Tables,
}

/// Tables that make a model cheap to ask: [`Tables::new`] of the same parts as the model.
#[derive(Debug)]
pub struct Tables {
    pub(crate) names: names::Names,
    pub(crate) hooks: HookTable,
    pub(crate) steps: StepTable,
}

impl Tables {
    /// Computed by the compiler. Fails to compile if a model is larger than it may be.
    pub const fn new(
        space: Space,
        ports: u16,
        selector: Selector,
        registers: &[Register],
        machines: &[Machine],
    ) -> Self {
        assert!(registers.len() <= MAX_REGISTERS && machines.len() <= MAX_MACHINES);
        Self {
            names: names::Names::new(registers),
            hooks: HookTable::new(space, ports, selector, registers, machines),
            steps: StepTable::new(machines),
        }
    }
}

impl Model {
    /// A register by its index.
    pub fn register(&self, id: RegisterId) -> Option<&Register> {
        self.registers.get(usize::from(id.0))
    }

    /// The register that the byte at an offset is in, on a register page.
    pub fn find(&self, offset: impl Into<u32>, page: u8) -> Option<RegisterId> {
        self.tables.names.find(self.registers, offset.into(), page)
    }

    /// The checks whose verdict depends on this register: writing it must be vetted.
    pub fn vetted_by(&self, id: RegisterId) -> impl Iterator<Item = Check> {
        let edges = self.machines.iter().flat_map(|machine| machine.edges);
        edges.filter_map(|edge| edge.start).filter_map(move |start| {
            let input = start.address.contains(&id) || start.length.contains(&id);
            start.check.filter(|_| input)
        })
    }

    /// Every transfer that an edge starts.
    pub fn starts(&self) -> impl Iterator<Item = &'static Start> {
        self.machines.iter().flat_map(|machine| machine.edges).filter_map(|edge| edge.start.as_ref())
    }
}

impl Edge {
    /// It leaves this state and changes it.
    pub const fn leaves(&self, state: u8) -> bool {
        self.from & (1 << (state & 7)) != 0
    }
}
