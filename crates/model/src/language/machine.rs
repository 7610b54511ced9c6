//! What a device does: state machines, the events that move them, and the transfers that edges start.
//!
//! Key types: [`Machine`], [`Edge`], [`Start`].

use super::dma::DmaTarget;
use super::register::RegisterId;

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

/// Something that happened, for comparing with an [`Event`].
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// The client wrote this byte.
    Write(RegisterId, u8),
    /// The client wrote a register of any width.
    WriteWord(RegisterId, u32),
    /// The client read this value.
    Read(RegisterId, u32),
    /// The device reported.
    Device(DeviceEvent),
}

impl Event {
    /// What was seen is this event.
    pub const fn is(self, seen: Seen) -> bool {
        match (self, seen) {
            (Self::Write { register, mask, bits }, Seen::Write(at, value)) => {
                register.0 == at.0 && value as u32 & mask == bits
            }
            (Self::Write { register, mask, bits }, Seen::WriteWord(at, value))
            | (Self::Read { register, mask, bits }, Seen::Read(at, value)) => {
                register.0 == at.0 && value & mask == bits
            }
            (Self::Device(expected), Seen::Device(happened)) => expected as u8 == happened as u8,
            _ => false,
        }
    }
}

/// What a device can report, by an interrupt or when it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A transmission ended, well or badly.
    Sent,
    /// Nothing that was handed over for sending is left. Proof-only: no run follows a bus master to rest.
    Drained,
    /// A dump of the device's own state into memory is complete. Proof-only as well.
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

/// Which check a transfer of a bus master needs where no IOMMU contains it. Proof-only: in a run a guest has such a card in
/// its own hands behind an IOMMU, or reads a mirror of it and the monitor makes the transfers.
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
    pub target: DmaTarget,
}

impl Start {
    /// A transfer between device memory and the outside or the client.
    pub const fn of_device(
        transfer: Transfer,
        check: Check,
        address: &'static [RegisterId],
        length: &'static [RegisterId],
    ) -> Self {
        Self { transfer, check: Some(check), vetting: None, address, length, target: DmaTarget::Device }
    }

    /// A transfer that the device makes by itself to or from memory.
    pub const fn of_master(
        transfer: Transfer,
        vetting: Vetting,
        address: &'static [RegisterId],
        length: &'static [RegisterId],
        target: DmaTarget,
    ) -> Self {
        Self { transfer, check: None, vetting: Some(vetting), address, length, target }
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

impl Edge {
    /// It can be taken in this state.
    pub const fn leaves(&self, state: u8) -> bool {
        self.from & (1 << (state & 7)) != 0
    }
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
