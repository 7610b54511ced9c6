//! The device state model of the Realtek RTL8139C+, in C mode and C+ mode.
//!
//! Seven machines: the mode, which says what 10h-2Fh mean; the transmitter of C mode, with four
//! buffers in turn; the transmitter of C+ mode, with a ring of descriptors; the receiver, with a ring
//! of bytes or of descriptors; the dump of the tally counters, a transfer hidden in what was a transmit
//! status register; the EEPROM and configuration lock; the timer.
//!
//! All is in one page: whoever must see one write sees all. But nothing needs to be shadowed. All
//! registers can be read back, save one bit: that CPCR was written. A CPCR other than 0 tells; one that
//! was written as 0 does nothing but dump, for the client itself.
//!
//! Sources: RTL8139C(L) data sheet 1.4, section 5; RTL8139C+(L) data sheet 1.6, sections 5 and 6. Where
//! QEMU's card differs (`sluice_nic::rtl8139`) the model follows it: any write to TSD sends the
//! descriptor whose turn it is, any write to CPCR turns TSD into DTCCR until reset.

use super::build::{
    NONE, any, edge, long, on, reads, registers, reported, reserved, rest, starts, told, work, writes,
};
use crate::language::{
    Address, Descriptor, DeviceEvent, DmaTarget, Effects, Machine, Narrow, Register, RegisterId, Selector,
    Space, Start, Transfer, Vetting,
};
use crate::model::Model;
use crate::tables::Tables;

const ADDRESS: Effects = Effects::SHOWS_ADDRESS;
const LINGERS: Effects = Effects::LINGERS;
const BURNS: Effects = Effects::BURNS;

/// Register page, and state of the machine that selects it: C mode.
const C: u8 = 0;
/// C+ mode.
const CPLUS: u8 = 1;
const IN_C: u8 = 1 << C;
const IN_CPLUS: u8 = 1 << CPLUS;

/// Registers that the code names, in the order of the table below.
pub mod id {
    use crate::language::RegisterId;
    /// Transmit status, C mode.
    pub const TSD: RegisterId = RegisterId(0);
    /// Transmit addresses, C mode.
    pub const TSAD: RegisterId = RegisterId(1);
    /// Tally dump, low: address and command; C+ mode.
    pub const DTCCR: RegisterId = RegisterId(2);
    /// Tally dump, high.
    pub const DTCCR_HIGH: RegisterId = RegisterId(3);
    /// Transmit ring, low; C+ mode.
    pub const TNPDS: RegisterId = RegisterId(4);
    /// Transmit ring, high.
    pub const TNPDS_HIGH: RegisterId = RegisterId(5);
    /// Ring of high priority, low. QEMU's card has none.
    pub const THPDS: RegisterId = RegisterId(6);
    /// Ring of high priority, high.
    pub const THPDS_HIGH: RegisterId = RegisterId(7);
    /// Receive ring, C mode.
    pub const RBSTART: RegisterId = RegisterId(8);
    /// Command.
    pub const CR: RegisterId = RegisterId(9);
    /// Receive configuration.
    pub const RCR: RegisterId = RegisterId(10);
    /// Timer count.
    pub const TCTR: RegisterId = RegisterId(11);
    /// Timer interrupt.
    pub const TIMER_INT: RegisterId = RegisterId(12);
    /// EEPROM and configuration lock.
    pub const CR9346: RegisterId = RegisterId(13);
    /// Transmit poll, C+ mode.
    pub const TPPOLL: RegisterId = RegisterId(14);
    /// C+ command.
    pub const CPCR: RegisterId = RegisterId(15);
    /// Receive ring, low; C+ mode.
    pub const RDSAR: RegisterId = RegisterId(16);
    /// Receive ring, high.
    pub const RDSAR_HIGH: RegisterId = RegisterId(17);
    /// All transmit states in one word.
    pub const SUMMARY: RegisterId = RegisterId(18);
}

const REGISTERS: &[Register] = &[
    on(IN_C, registers("TSD", 0x10, 0x1f, 4, NONE, NONE)),
    on(IN_C, registers("TSAD", 0x20, 0x2f, 4, ADDRESS, NONE)),
    on(IN_CPLUS, long("DTCCR", 0x10, ADDRESS, NONE)),
    on(IN_CPLUS, long("DTCCR high", 0x14, ADDRESS, NONE)),
    on(IN_CPLUS, long("TNPDS", 0x20, ADDRESS, NONE)),
    on(IN_CPLUS, long("TNPDS high", 0x24, ADDRESS, NONE)),
    on(IN_CPLUS, long("THPDS", 0x28, ADDRESS, NONE)),
    on(IN_CPLUS, long("THPDS high", 0x2c, ADDRESS, NONE)),
    long("RBSTART", 0x30, ADDRESS, NONE),
    byte("CR", 0x37, NONE),
    long("RCR", 0x44, NONE, NONE),
    // It counts cycles of the bus.
    long("TCTR", 0x48, Effects::CHANGES, NONE),
    long("TimerInt", 0x54, NONE, NONE),
    byte("9346CR", 0x50, BURNS),
    byte("TPPoll", 0xd9, NONE),
    word("CPCR", 0xe0, NONE),
    long("RDSAR", 0xe4, ADDRESS, NONE),
    long("RDSAR high", 0xe8, ADDRESS, NONE),
    word("TSAD summary", 0x60, NONE),
    // The rest has no name in the code.
    on(IN_CPLUS, registers("TSD2-3", 0x18, 0x1f, 4, NONE, NONE)),
    registers("IDR", 0x00, 0x05, 1, NONE, NONE),
    registers("MAR", 0x08, 0x0f, 1, NONE, NONE),
    word("ERBCR", 0x34, NONE),
    byte("ERSR", 0x36, NONE),
    word("CAPR", 0x38, NONE),
    word("CBR", 0x3a, NONE),
    word("IMR", 0x3c, NONE),
    word("ISR", 0x3e, NONE),
    long("TCR", 0x40, NONE, NONE),
    long("MPC", 0x4c, NONE, NONE),
    byte("CONFIG0", 0x51, LINGERS),
    byte("CONFIG1", 0x52, LINGERS),
    byte("MSR", 0x58, NONE),
    byte("CONFIG3", 0x59, LINGERS),
    byte("CONFIG4", 0x5a, LINGERS),
    byte("HLTCLK", 0x5b, LINGERS),
    word("MULINT", 0x5c, NONE),
    byte("RERID", 0x5e, NONE),
    word("BMCR", 0x62, LINGERS),
    word("BMSR", 0x64, NONE),
    word("ANAR", 0x66, LINGERS),
    registers("ANLPAR-REC", 0x68, 0x73, 2, NONE, NONE),
    word("CSCR", 0x74, LINGERS),
    registers("PHY parameters", 0x78, 0x80, 1, NONE, LINGERS),
    // Power-down frames that wake it.
    registers("wake-up", 0x84, 0xd3, 1, NONE, LINGERS),
    long("FLASH", 0xd4, NONE, BURNS),
    byte("CONFIG5", 0xd8, LINGERS),
    word("mitigation", 0xe2, NONE),
    byte("MTPS", 0xec, NONE),
    reserved(0x06, 0x07),
    reserved(0x53, 0x53),
    reserved(0x5f, 0x5f),
    reserved(0x76, 0x77),
    reserved(0x81, 0x83),
    reserved(0xda, 0xdf),
    reserved(0xed, 0xff),
];

const fn byte(name: &'static str, at: u32, write: Effects) -> Register {
    registers(name, at, at, 1, NONE, write)
}

const fn word(name: &'static str, at: u32, write: Effects) -> Register {
    registers(name, at, at + 1, 2, NONE, write)
}

// CR.
const RESET: u32 = 0x10;
const RECEIVE: u32 = 0x08;
const TRANSMIT: u32 = 0x04;
// CPCR.
const SEND_RINGS: u32 = 0x01;
const RECEIVE_RINGS: u32 = 0x02;
// 9346CR: the mode. Loading the EEPROM resets the card.
const LOCK_MODE: u32 = 0xc0;
const LOAD: u32 = 0x40;
const PROGRAM: u32 = 0x80;
const UNLOCK: u32 = 0xc0;
// TPPoll.
const POLL_HIGH: u32 = 0x80;
const POLL_NORMAL: u32 = 0x40;
// DTCCR: dump now.
const DUMP: u32 = 0x08;

/// Both descriptor rings (C+ data sheet, sections 6.1 and 6.2): status with the length, then the address.
const DESCRIPTOR: Descriptor = Descriptor { bytes: 16, address: 8, length: Some(0), mask: 0xffff };
/// Bytes by which a frame may run over the ring of C mode (data sheet, section 5.11: RCR.WRAP), with
/// what QEMU's card adds behind a ring of 64 KiB.
const OVERRUN: u32 = 2048;

const fn ring(low: RegisterId, high: RegisterId, most: u32) -> DmaTarget {
    DmaTarget::Ring {
        base: Address { low, mask: u32::MAX, high: Some(high) },
        length: None,
        head: None,
        most,
        descriptor: &DESCRIPTOR,
    }
}

/// C or C+ mode: the register page.
const MODE: Machine = Machine {
    name: "mode",
    states: &[rest("C"), rest("C+")],
    unseen: C,
    told: &[told(id::CPCR, 0xffff, 0, C), told(id::CPCR, 0, 0, CPLUS)],
    edges: &[
        edge(IN_C, any(id::CPCR), CPLUS),
        edge(IN_CPLUS, writes(id::CR, RESET, RESET), C),
        edge(IN_CPLUS, writes(id::CR9346, LOCK_MODE, LOAD), C),
    ],
};

/// The transmitter of C mode.
const TRANSMITTER: Machine = {
    const OFF: u8 = 0;
    const IDLE: u8 = 1;
    const SENDING: u8 = 2;
    const FETCH: Start = Start::of_master(
        Transfer::Fetch,
        Vetting::Range,
        &[id::TSAD],
        &[id::TSD],
        DmaTarget::Slots { address: id::TSAD, length: id::TSD, mask: 0x1fff, count: 4 },
    );
    Machine {
        name: "transmitter, C",
        states: &[rest("Off"), rest("Idle"), work("Sending")],
        unseen: SENDING,
        // OWN of all four: the card has fetched them.
        told: &[told(id::CR, TRANSMIT, 0, OFF), told(id::SUMMARY, 0x0f, 0x0f, IDLE)],
        edges: &[
            edge(0x7, writes(id::CR, TRANSMIT, 0), OFF),
            edge(0x7, writes(id::CR, RESET | TRANSMIT, RESET | TRANSMIT), IDLE),
            edge(1 << OFF, writes(id::CR, TRANSMIT, TRANSMIT), IDLE),
            edge(0x7, writes(id::CR9346, LOCK_MODE, LOAD), OFF),
            starts(1 << IDLE | 1 << SENDING, any(id::TSD), SENDING, FETCH),
            edge(1 << SENDING, reported(DeviceEvent::Drained), IDLE),
        ],
    }
};

/// The transmitter of C+ mode: needs CR.TE and CPCR.
const RING_TRANSMITTER: Machine = {
    const OFF: u8 = 0;
    const ENABLED: u8 = 1;
    const CHOSEN: u8 = 2;
    const IDLE: u8 = 3;
    const SENDING: u8 = 4;
    const ON: u8 = 1 << IDLE | 1 << SENDING;
    const ALL: u8 = 0x1f;
    const fn fetch(low: RegisterId, high: RegisterId) -> Start {
        Start::of_master(
            Transfer::Fetch,
            Vetting::Descriptors,
            // The card may look at both rings.
            &[id::TNPDS, id::TNPDS_HIGH, id::THPDS, id::THPDS_HIGH],
            &[],
            ring(low, high, 64),
        )
    }
    Machine {
        name: "transmitter, C+",
        states: &[rest("Off"), rest("TE only"), rest("CPCR only"), rest("Idle"), work("Sending")],
        unseen: SENDING,
        told: &[told(id::CPCR, SEND_RINGS, 0, OFF), told(id::CR, TRANSMIT, 0, CHOSEN)],
        edges: &[
            // A reset clears CPCR; TE is what is written with it.
            edge(ALL, writes(id::CR, RESET | TRANSMIT, RESET | TRANSMIT), ENABLED),
            edge(ALL, writes(id::CR, RESET, RESET), OFF),
            edge(ALL, writes(id::CR9346, LOCK_MODE, LOAD), OFF),
            edge(1 << ENABLED, writes(id::CR, TRANSMIT, 0), OFF),
            edge(ON, writes(id::CR, TRANSMIT, 0), CHOSEN),
            edge(1 << OFF, writes(id::CR, TRANSMIT, TRANSMIT), ENABLED),
            edge(1 << CHOSEN, writes(id::CR, TRANSMIT, TRANSMIT), IDLE),
            edge(1 << CHOSEN, writes(id::CPCR, SEND_RINGS, 0), OFF),
            edge(ON, writes(id::CPCR, SEND_RINGS, 0), ENABLED),
            edge(1 << OFF, writes(id::CPCR, SEND_RINGS, SEND_RINGS), CHOSEN),
            edge(1 << ENABLED, writes(id::CPCR, SEND_RINGS, SEND_RINGS), IDLE),
            starts(
                ON,
                writes(id::TPPOLL, POLL_NORMAL, POLL_NORMAL),
                SENDING,
                fetch(id::TNPDS, id::TNPDS_HIGH),
            ),
            starts(ON, writes(id::TPPOLL, POLL_HIGH, POLL_HIGH), SENDING, fetch(id::THPDS, id::THPDS_HIGH)),
            edge(1 << SENDING, reported(DeviceEvent::Drained), IDLE),
        ],
    }
};

/// The receiver: into a ring of bytes, or by descriptors if CPCR says so. It needs no rest: before the
/// card changes hands it is stopped.
const RECEIVER: Machine = {
    const OFF: u8 = 0;
    const CHOSEN: u8 = 1;
    const RING: u8 = 2;
    const RINGS: u8 = 3;
    const ALL: u8 = 0xf;
    const FILL: Start = Start::of_master(
        Transfer::Fill,
        Vetting::Range,
        &[id::RBSTART],
        &[id::RCR],
        DmaTarget::Bytes {
            address: Address { low: id::RBSTART, mask: u32::MAX, high: None },
            length: id::RCR,
            mask: 0x1800,
            unit: 8192,
            slack: OVERRUN,
        },
    );
    const FILL_RINGS: Start = Start::of_master(
        Transfer::Fill,
        Vetting::Descriptors,
        &[id::RDSAR, id::RDSAR_HIGH],
        &[],
        // Only a descriptor that says so ends it.
        ring(id::RDSAR, id::RDSAR_HIGH, u32::MAX),
    );
    Machine {
        name: "receiver",
        states: &[rest("Off"), rest("CPCR only"), rest("Running, C"), rest("Running, C+")],
        unseen: RINGS,
        told: &[
            told(id::CR, RECEIVE, 0, OFF),
            told(id::CPCR, RECEIVE_RINGS, 0, RING),
            told(id::CPCR, RECEIVE_RINGS, RECEIVE_RINGS, RINGS),
        ],
        edges: &[
            starts(ALL, writes(id::CR, RESET | RECEIVE, RESET | RECEIVE), RING, FILL),
            edge(ALL, writes(id::CR, RESET, RESET), OFF),
            edge(ALL, writes(id::CR9346, LOCK_MODE, LOAD), OFF),
            edge(1 << RING, writes(id::CR, RECEIVE, 0), OFF),
            edge(1 << RINGS, writes(id::CR, RECEIVE, 0), CHOSEN),
            starts(1 << OFF, writes(id::CR, RECEIVE, RECEIVE), RING, FILL),
            starts(1 << CHOSEN, writes(id::CR, RECEIVE, RECEIVE), RINGS, FILL_RINGS),
            edge(1 << CHOSEN, writes(id::CPCR, RECEIVE_RINGS, 0), OFF),
            edge(1 << OFF, writes(id::CPCR, RECEIVE_RINGS, RECEIVE_RINGS), CHOSEN),
            starts(1 << RINGS, writes(id::CPCR, RECEIVE_RINGS, 0), RING, FILL),
            starts(1 << RING, writes(id::CPCR, RECEIVE_RINGS, RECEIVE_RINGS), RINGS, FILL_RINGS),
        ],
    }
};

/// The dump of the tally counters: 64 bytes to an address that is in the same register as the command.
const TALLY: Machine = {
    const QUIET: u8 = 0;
    const DUMPING: u8 = 1;
    Machine {
        name: "tally dump",
        states: &[rest("Quiet"), work("Dumping")],
        unseen: QUIET,
        told: &[],
        edges: &[
            starts(
                0x3,
                writes(id::DTCCR, DUMP, DUMP),
                DUMPING,
                Start::of_master(
                    Transfer::Dump,
                    Vetting::Range,
                    &[id::DTCCR, id::DTCCR_HIGH],
                    &[],
                    DmaTarget::Fixed {
                        address: Address { low: id::DTCCR, mask: !0x3f, high: Some(id::DTCCR_HIGH) },
                        bytes: 64,
                    },
                ),
            ),
            // DTCCR's command is 0 again; a reset makes it so, too.
            edge(1 << DUMPING, reported(DeviceEvent::Dumped), QUIET),
        ],
    }
};

/// The serial EEPROM and the lock of the configuration registers.
const EEPROM: Machine = {
    const LOCKED: u8 = 0;
    const PROGRAMMING: u8 = 1;
    const UNLOCKED: u8 = 2;
    Machine {
        name: "EEPROM",
        states: &[rest("Locked"), work("Programming"), work("Unlocked")],
        unseen: PROGRAMMING,
        told: &[
            told(id::CR9346, LOCK_MODE, PROGRAM, PROGRAMMING),
            told(id::CR9346, LOCK_MODE, UNLOCK, UNLOCKED),
            told(id::CR9346, 0, 0, LOCKED),
        ],
        edges: &[
            edge(0x7, writes(id::CR9346, LOCK_MODE, PROGRAM), PROGRAMMING),
            edge(0x7, writes(id::CR9346, LOCK_MODE, UNLOCK), UNLOCKED),
            edge(0x7, writes(id::CR9346, 0, 0), LOCKED),
        ],
    }
};

/// Whether the client uses the timer: then only the card knows its count.
const TIMER: Machine = {
    const QUIET: u8 = 0;
    const USED: u8 = 1;
    Machine {
        name: "timer",
        states: &[rest("Quiet"), rest("Used")],
        unseen: USED,
        told: &[],
        edges: &[
            edge(1 << QUIET, any(id::TCTR), USED),
            edge(1 << QUIET, any(id::TIMER_INT), USED),
            edge(1 << USED, writes(id::CR, RESET, RESET), QUIET),
            edge(1 << USED, reads(id::TCTR, 0, 0), USED),
        ],
    }
};

const SPACE: Space = Space::Memory { bytes: 0x100, narrow: Narrow::Ignored };
const SELECTOR: Selector = Selector::Machine(0);
const MACHINES: &[Machine] = &[MODE, TRANSMITTER, RING_TRANSMITTER, RECEIVER, TALLY, EEPROM, TIMER];

/// The model.
pub const MODEL: Model = Model {
    name: "rtl8139",
    ids: &[(0x10ec, 0x8139)],
    space: SPACE,
    ports: 0,
    selector: SELECTOR,
    registers: REGISTERS,
    machines: MACHINES,
    tables: &Tables::new(SPACE, 0, SELECTOR, REGISTERS, MACHINES),
};
