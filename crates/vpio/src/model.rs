//! The model language: a device state model is constant data.
//!
//! A [`Model`] says which registers a device has and what an access to each could do
//! ([`Effects`]); and, as one or more small state machines that run side by side, in which states
//! the device is, which accesses and device events change them, which edges start a transfer, where
//! that transfer's address and length come from, what must be checked first, and which states are
//! *rest*: the device can change hands when every machine rests.
//!
//! From this, and from what must be known now, `hooks` computes what must exit, `track` follows a
//! device, and `check` proves on the host that nothing was forgotten.
//!
//! Source: L. Xia et al., sections 3.4, 4.1 and 5.2, where a model is one machine with one hook
//! list per state. Deviations: machines side by side, because a card sends while its next frame is
//! being loaded; effects apart from states, so that the hook set can depend on the question.

bitflags::bitflags! {
    /// What an access to a register can do that somebody may have to know or prevent.
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
        /// Access: resets the device or its identity.
        const RESETS = 1 << 7;
        /// Write: opens configuration that outlives the client (EEPROM, power, identity).
        const UNLOCKS = 1 << 8;
        /// Write: is able to stop reception, or to start a transmission.
        const COMMANDS = 1 << 9;
    }
}

/// Index into [`Model::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterId(pub u8);

/// A register, or several alike at consecutive ports.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Name in the data sheet; `READ/WRITE` where one port has two.
    pub name: &'static str,
    /// First port offset.
    pub first: u8,
    /// Last port offset.
    pub last: u8,
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
        let mut mask = 0;
        let mut port = self.first;
        while port <= self.last && port < 32 {
            mask |= 1 << port;
            port += 1;
        }
        mask
    }
}

/// What moves a machine along an edge.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The client writes a value with `value & mask == bits` to the register.
    Write {
        /// Which register.
        register: RegisterId,
        /// Bits that count.
        mask: u8,
        /// What they must be.
        bits: u8,
    },
    /// The device reports; a bit of the model's own choosing.
    Device(DeviceEvent),
}

/// What a device can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A transmission ended, well or badly.
    Sent,
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
}

/// Which check an edge needs. The device's code carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The range sent lies in the client's own memory.
    SendRange,
    /// Received frames go to memory that only the monitor reads.
    ReceiveRange,
    /// Every datum that passes the window is the client's own.
    WindowOwn,
}

/// A transfer that an edge starts, with the check that must approve it.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// What moves.
    pub transfer: Transfer,
    /// Who must approve.
    pub check: Option<Check>,
    /// Registers that hold its address.
    pub address: &'static [RegisterId],
    /// Registers that hold its length or end.
    pub length: &'static [RegisterId],
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

/// One machine. State 0 is where it starts; state `unseen` is where following begins when the past
/// is unknown. The first edge that fits is taken.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Name for people.
    pub name: &'static str,
    /// At most 8 states.
    pub states: &'static [State],
    /// State when following begins.
    pub unseen: u8,
    /// In order of precedence.
    pub edges: &'static [Edge],
}

/// Machines a model has at most.
pub const MAX_MACHINES: usize = 4;

/// A device state model.
#[derive(Debug)]
pub struct Model {
    /// Name, such as `ne2000`.
    pub name: &'static str,
    /// PCI vendor and device ids it is for.
    pub ids: &'static [(u16, u16)],
    /// Ports the device has, at most 32.
    pub ports: u16,
    /// The register whose value selects what other ports name; read back at each exit.
    pub selector: RegisterId,
    /// At most 64 registers.
    pub registers: &'static [Register],
    /// At most [`MAX_MACHINES`].
    pub machines: &'static [Machine],
}

impl Model {
    /// A register by its index.
    pub fn register(&self, id: RegisterId) -> Option<&Register> {
        self.registers.get(usize::from(id.0))
    }

    /// The register that an access names.
    pub fn find(&self, port: u16, page: u8) -> Option<RegisterId> {
        let fits = |register: &Register| {
            u16::from(register.first) <= port
                && port <= u16::from(register.last)
                && register.pages & (1 << (page & 7)) != 0
        };
        self.registers.iter().position(fits).map(|index| RegisterId(index as u8))
    }

    /// The checks whose verdict depends on this register: writing it must be vetted.
    pub fn vetted_by(&self, id: RegisterId) -> impl Iterator<Item = Check> {
        let edges = self.machines.iter().flat_map(|machine| machine.edges);
        edges.filter_map(|edge| edge.start).filter_map(move |start| {
            let input = start.address.contains(&id) || start.length.contains(&id);
            start.check.filter(|_| input)
        })
    }
}

impl Edge {
    /// It leaves this state and changes it.
    pub const fn leaves(&self, state: u8) -> bool {
        self.from & (1 << (state & 7)) != 0
    }
}
