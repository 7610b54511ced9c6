//! The device state model of the Intel 82540EM (e1000).
//!
//! Five machines: transmitter, receiver, EEPROM, PHY access, interrupt cause. Rings of descriptors in
//! memory say what is sent and where frames go, so the check of both is [`Vetting::Descriptors`].
//!
//! All registers can be read back and hence nothing is asked by SHADOW: a client that has the card for
//! itself, behind an IOMMU, works it without an exit. CTRL.RST is no edge: QEMU's card ignores it, and a
//! real one only stops, which the machines may fail to notice without harm. TDH = TDT is not seen in any one
//! register; who follows compares them and reports [`DeviceEvent::Drained`], which tests do.
//!
//! Source: Intel PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual (317453),
//! chapter 13 (registers; table 13-3 has the offsets that the 82542 had, at which a real card answers, too),
//! chapter 3 (rings). What QEMU's card does otherwise is in `sluice_nic::e1000`.

use super::build::{
    NONE, any, edge, long, reads, registers, reported, reserved, rest, starts, told, work, writes,
};
use crate::language::{
    Address, Descriptor, DeviceEvent, DmaTarget, Edge, Effects, Machine, Narrow, Register, RegisterId,
    Selector, Space, Start, Transfer, Vetting,
};
use crate::model::Model;
use crate::tables::Tables;

const ADDRESS: Effects = Effects::SHOWS_ADDRESS;
const LINGERS: Effects = Effects::LINGERS;
const BURNS: Effects = Effects::BURNS;
const CONSUMES: Effects = Effects::CONSUMES;

/// Registers that the code names, in the order of the table below.
pub mod id {
    use crate::language::RegisterId;
    /// Device control.
    pub const CTRL: RegisterId = RegisterId(0);
    /// EEPROM control.
    pub const EECD: RegisterId = RegisterId(1);
    /// EEPROM read.
    pub const EERD: RegisterId = RegisterId(2);
    /// PHY access.
    pub const MDIC: RegisterId = RegisterId(3);
    /// Interrupt cause, read to clear.
    pub const ICR: RegisterId = RegisterId(4);
    /// Interrupt cause set.
    pub const ICS: RegisterId = RegisterId(5);
    /// Receive control.
    pub const RCTL: RegisterId = RegisterId(6);
    /// Transmit control.
    pub const TCTL: RegisterId = RegisterId(7);
    /// Receive ring, low.
    pub const RDBAL: RegisterId = RegisterId(8);
    /// Receive ring, high.
    pub const RDBAH: RegisterId = RegisterId(9);
    /// Receive ring, length.
    pub const RDLEN: RegisterId = RegisterId(10);
    /// Receive head.
    pub const RDH: RegisterId = RegisterId(11);
    /// Receive tail.
    pub const RDT: RegisterId = RegisterId(12);
    /// Transmit ring, low.
    pub const TDBAL: RegisterId = RegisterId(13);
    /// Transmit ring, high.
    pub const TDBAH: RegisterId = RegisterId(14);
    /// Transmit ring, length.
    pub const TDLEN: RegisterId = RegisterId(15);
    /// Transmit head.
    pub const TDH: RegisterId = RegisterId(16);
    /// Transmit tail.
    pub const TDT: RegisterId = RegisterId(17);
    /// The receive ring where the 82542 had it.
    pub const OLD_RECEIVE: RegisterId = RegisterId(18);
    /// The transmit ring where the 82542 had it.
    pub const OLD_TRANSMIT: RegisterId = RegisterId(19);
    /// Statistics.
    pub const STATISTICS: RegisterId = RegisterId(20);
}

const REGISTERS: &[Register] = &[
    long("CTRL", 0x0000, NONE, LINGERS),
    long("EECD", 0x0010, NONE, BURNS),
    long("EERD", 0x0014, NONE, NONE),
    long("MDIC", 0x0020, NONE, LINGERS),
    long("ICR", 0x00c0, CONSUMES, NONE),
    long("ICS", 0x00c8, NONE, NONE),
    long("RCTL", 0x0100, NONE, NONE),
    long("TCTL", 0x0400, NONE, NONE),
    long("RDBAL", 0x2800, ADDRESS, NONE),
    long("RDBAH", 0x2804, ADDRESS, NONE),
    long("RDLEN", 0x2808, NONE, NONE),
    long("RDH", 0x2810, NONE, NONE),
    long("RDT", 0x2818, NONE, NONE),
    long("TDBAL", 0x3800, ADDRESS, NONE),
    long("TDBAH", 0x3804, ADDRESS, NONE),
    long("TDLEN", 0x3808, NONE, NONE),
    long("TDH", 0x3810, NONE, NONE),
    long("TDT", 0x3818, NONE, NONE),
    registers("RDTR-RDT of the 82542", 0x0108, 0x012f, 4, ADDRESS, NONE),
    registers("TDBAL-TIDV of the 82542", 0x0420, 0x0443, 4, ADDRESS, NONE),
    registers("statistics", 0x4000, 0x40ff, 4, CONSUMES, NONE),
    // The rest has no name in the code.
    registers("STATUS", 0x0008, 0x000f, 4, NONE, NONE),
    long("CTRL_EXT", 0x0018, NONE, LINGERS),
    long("FLA", 0x001c, NONE, BURNS),
    registers("flow control", 0x0028, 0x0033, 4, NONE, NONE),
    long("VET", 0x0038, NONE, NONE),
    long("ITR", 0x00c4, NONE, NONE),
    long("IMS", 0x00d0, NONE, NONE),
    long("IMC", 0x00d8, NONE, NONE),
    registers("FCTTV-TXCW-RXCW", 0x0170, 0x0183, 4, NONE, NONE),
    long("TIPG", 0x0410, NONE, NONE),
    long("AIT", 0x0458, NONE, NONE),
    long("LEDCTL", 0x0e00, NONE, LINGERS),
    long("PBA", 0x1000, NONE, NONE),
    registers("FCRTL-FCRTH", 0x2160, 0x216f, 4, NONE, NONE),
    registers("RDFH-RDFPC", 0x2410, 0x2433, 4, NONE, NONE),
    registers("RDTR-RADV", 0x2820, 0x282f, 4, NONE, NONE),
    registers("TDFH-TDFPC", 0x3410, 0x3433, 4, NONE, NONE),
    registers("TIDV-TADV", 0x3820, 0x382f, 4, NONE, NONE),
    registers("RXCSUM", 0x5000, 0x5003, 4, NONE, NONE),
    registers("MTA", 0x5200, 0x53ff, 4, NONE, NONE),
    registers("RAL-RAH", 0x5400, 0x547f, 4, NONE, NONE),
    registers("VFTA", 0x5600, 0x57ff, 4, NONE, NONE),
    // Wake-up, management and their filters: what the card does while nobody drives it.
    registers("WUC-WUPM", 0x5800, 0x5a7f, 4, NONE, LINGERS),
    registers("SWSM", 0x5b50, 0x5b53, 4, NONE, LINGERS),
    registers("FFLT", 0x5f00, 0x5f1f, 4, NONE, LINGERS),
    registers("FFMT-FFVT", 0x9000, 0x9bff, 4, NONE, LINGERS),
    // Packet buffer memory: on a real card, frames that went by.
    registers("PBM", 0x1_0000, 0x1_ffff, 4, Effects::REVEALS_MEMORY, Effects::WRITES_MEMORY),
    reserved(0x0004, 0x0007),
    reserved(0x0024, 0x0027),
    reserved(0x0034, 0x0037),
    reserved(0x003c, 0x00bf),
    reserved(0x00cc, 0x00cf),
    reserved(0x00d4, 0x00d7),
    reserved(0x00dc, 0x00ff),
    reserved(0x0104, 0x0107),
    reserved(0x0130, 0x016f),
    reserved(0x0184, 0x03ff),
    reserved(0x0404, 0x040f),
    reserved(0x0414, 0x041f),
    reserved(0x0444, 0x0457),
    reserved(0x045c, 0x0dff),
    reserved(0x0e04, 0x0fff),
    reserved(0x1004, 0x215f),
    reserved(0x2170, 0x240f),
    reserved(0x2434, 0x27ff),
    reserved(0x280c, 0x280f),
    reserved(0x2814, 0x2817),
    reserved(0x281c, 0x281f),
    reserved(0x2830, 0x340f),
    reserved(0x3434, 0x37ff),
    reserved(0x380c, 0x380f),
    reserved(0x3814, 0x3817),
    reserved(0x381c, 0x381f),
    reserved(0x3830, 0x3fff),
    reserved(0x4100, 0x4fff),
    reserved(0x5004, 0x51ff),
    reserved(0x5480, 0x55ff),
    reserved(0x5a80, 0x5b4f),
    reserved(0x5b54, 0x5eff),
    reserved(0x5f20, 0x8fff),
    reserved(0x9c00, 0xffff),
];

/// RCTL and TCTL: on.
const ENABLE: u32 = 1 << 1;
/// EECD: chip select.
const SELECT: u32 = 1 << 1;
/// EERD: start; done.
const START: u32 = 1 << 0;
const DONE: u32 = 1 << 4;
/// MDIC: ready; the two operations.
const READY: u32 = 1 << 28;
const READ_PHY: u32 = 1 << 27;
const WRITE_PHY: u32 = 1 << 26;

/// Both rings have descriptors of 16 bytes, the buffer's address first (sections 3.2.3, 3.3.3).
const TRANSMIT_DESCRIPTOR: Descriptor = Descriptor { bytes: 16, address: 0, length: Some(8), mask: 0xf_ffff };
/// RCTL says how long receive buffers are.
const RECEIVE_DESCRIPTOR: Descriptor = Descriptor { bytes: 16, address: 0, length: None, mask: 0 };
/// Bits of TDLEN and RDLEN.
const LENGTH: u32 = 0xf_ff80;

const fn ring([low, high, length, head]: [RegisterId; 4], descriptor: &'static Descriptor) -> DmaTarget {
    DmaTarget::Ring {
        base: Address { low, mask: !0xf, high: Some(high) },
        length: Some((length, LENGTH)),
        head: Some(head),
        most: LENGTH / 16,
        descriptor,
    }
}

/// The transmitter. TCTL with EN rings the doorbell as TDT does.
const TRANSMITTER: Machine = {
    const OFF: u8 = 0;
    const IDLE: u8 = 1;
    const SENDING: u8 = 2;
    const FETCH: Start = Start::of_master(
        Transfer::Fetch,
        Vetting::Descriptors,
        &[id::TDBAL, id::TDBAH, id::TDH, id::OLD_TRANSMIT],
        &[id::TDLEN, id::TDT, id::OLD_TRANSMIT],
        ring([id::TDBAL, id::TDBAH, id::TDLEN, id::TDH], &TRANSMIT_DESCRIPTOR),
    );
    Machine {
        name: "transmitter",
        states: &[rest("Off"), rest("Idle"), work("Sending")],
        unseen: SENDING,
        told: &[told(id::TCTL, ENABLE, 0, OFF)],
        edges: &[
            edge(0x7, writes(id::TCTL, ENABLE, 0), OFF),
            starts(0x7, writes(id::TCTL, ENABLE, ENABLE), SENDING, FETCH),
            starts(1 << IDLE | 1 << SENDING, any(id::TDT), SENDING, FETCH),
            starts(1 << IDLE | 1 << SENDING, any(id::OLD_TRANSMIT), SENDING, FETCH),
            edge(1 << SENDING, reported(DeviceEvent::Drained), IDLE),
        ],
    }
};

/// The receiver. It needs no rest: before the card changes hands it is stopped.
const RECEIVER: Machine = {
    const OFF: u8 = 0;
    const RUNNING: u8 = 1;
    const FILL: Start = Start::of_master(
        Transfer::Fill,
        Vetting::Descriptors,
        &[id::RDBAL, id::RDBAH, id::RDH, id::OLD_RECEIVE],
        // RCTL says how long the buffers are.
        &[id::RDLEN, id::RDT, id::RCTL, id::OLD_RECEIVE],
        ring([id::RDBAL, id::RDBAH, id::RDLEN, id::RDH], &RECEIVE_DESCRIPTOR),
    );
    const fn fills(from: u8, on: crate::language::Event) -> Edge {
        starts(from, on, RUNNING, FILL)
    }
    Machine {
        name: "receiver",
        states: &[rest("Off"), rest("Running")],
        unseen: RUNNING,
        told: &[told(id::RCTL, ENABLE, 0, OFF), told(id::RCTL, ENABLE, ENABLE, RUNNING)],
        edges: &[
            edge(0x3, writes(id::RCTL, ENABLE, 0), OFF),
            fills(0x3, writes(id::RCTL, ENABLE, ENABLE)),
            fills(1 << RUNNING, any(id::RDT)),
            fills(1 << RUNNING, any(id::OLD_RECEIVE)),
        ],
    }
};

/// The serial EEPROM, by its pins or a word at a time.
const EEPROM: Machine = {
    const IDLE: u8 = 0;
    const SELECTED: u8 = 1;
    const READING: u8 = 2;
    Machine {
        name: "EEPROM",
        states: &[rest("Idle"), work("Selected"), work("Reading")],
        unseen: IDLE,
        told: &[told(id::EECD, SELECT, SELECT, SELECTED), told(id::EERD, START | DONE, START, READING)],
        edges: &[
            edge(0x7, writes(id::EECD, SELECT, SELECT), SELECTED),
            edge(1 << SELECTED, writes(id::EECD, SELECT, 0), IDLE),
            edge(1 << IDLE, writes(id::EERD, START, START), READING),
            edge(1 << READING, reads(id::EERD, DONE, DONE), IDLE),
        ],
    }
};

/// Access to the registers of the PHY.
const PHY: Machine = {
    const IDLE: u8 = 0;
    const BUSY: u8 = 1;
    Machine {
        name: "PHY access",
        states: &[rest("Idle"), work("Busy")],
        unseen: IDLE,
        told: &[
            told(id::MDIC, READY | READ_PHY, READ_PHY, BUSY),
            told(id::MDIC, READY | WRITE_PHY, WRITE_PHY, BUSY),
        ],
        edges: &[edge(1 << IDLE, any(id::MDIC), BUSY), edge(1 << BUSY, reads(id::MDIC, READY, READY), IDLE)],
    }
};

/// Whether reading ICR would take something away.
const INTERRUPT: Machine = {
    const QUIET: u8 = 0;
    const PENDING: u8 = 1;
    Machine {
        name: "interrupt",
        states: &[rest("Quiet"), rest("Pending")],
        unseen: PENDING,
        told: &[],
        edges: &[
            edge(1 << QUIET, reported(DeviceEvent::Caused), PENDING),
            edge(1 << QUIET, any(id::ICS), PENDING),
            edge(1 << PENDING, reads(id::ICR, 0, 0), QUIET),
        ],
    }
};

const SPACE: Space = Space::Memory { bytes: 0x2_0000, narrow: Narrow::Whole };
const MACHINES: &[Machine] = &[TRANSMITTER, RECEIVER, INTERRUPT, PHY, EEPROM];

/// The model.
pub const MODEL: Model = Model {
    name: "e1000",
    ids: &[(0x8086, 0x100e)],
    space: SPACE,
    ports: 0,
    selector: Selector::None,
    registers: REGISTERS,
    machines: MACHINES,
    tables: &Tables::new(SPACE, 0, Selector::None, REGISTERS, MACHINES),
};
