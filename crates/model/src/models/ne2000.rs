//! The device state model of the NE2000 on PCI (Realtek RTL8029).
//!
//! Three machines: the remote DMA engine, through which a driver moves data between itself and card
//! memory; the transmitter; the receiver. Together their states are Figure 5 of the paper, with one
//! state more in the first two: *Unseen*, where following begins in the middle of whatever the
//! driver was doing.
//!
//! Sources: National DP8390D data sheet, sections 7 and 10; RTL8029AS data sheet, section 5;
//! Xia et al., Figure 5. What QEMU's card does not do as its data sheet says is in `docs/vpio.md`.

use crate::language::{
    Check, DeviceEvent, Edge, Effects, Event, Machine, Register, RegisterId, Selector, Space, Start, State,
    Transfer,
};
use crate::model::Model;
use crate::tables::Tables;

const fn register(name: &'static str, port: u32, pages: u8, read: Effects, write: Effects) -> Register {
    range(name, port, port, pages, read, write)
}

const fn range(
    name: &'static str,
    first: u32,
    last: u32,
    pages: u8,
    read: Effects,
    write: Effects,
) -> Register {
    Register { name, first, last, width: 1, pages, read, write }
}

const P0: u8 = 1;
const P1: u8 = 2;
const P2: u8 = 4;
const P3: u8 = 8;
const NONE: Effects = Effects::empty();
const TOLD: Effects = Effects::REVEALS_RECEIVE;
const RING: Effects = Effects::MOVES_RECEIVE;
const SEND: Effects = Effects::MOVES_SEND.union(Effects::TRANSIENT);
const KEPT: Effects = Effects::LASTING.union(Effects::MOVES_RECEIVE);
/// The chip's counters on page 2 can be written for diagnosis and move running transfers.
const PROBE: Effects = Effects::MOVES_RECEIVE.union(Effects::MOVES_SEND);

/// Registers that the code names, in the order of the table below.
pub mod id {
    use crate::language::RegisterId;
    /// Command.
    pub const CMD: RegisterId = RegisterId(0);
    /// Data port.
    pub const DATA: RegisterId = RegisterId(1);
    /// Reset port.
    pub const RESET: RegisterId = RegisterId(2);
    /// Ring start.
    pub const PSTART: RegisterId = RegisterId(3);
    /// Ring end.
    pub const PSTOP: RegisterId = RegisterId(4);
    /// Boundary.
    pub const BNRY: RegisterId = RegisterId(5);
    /// Transmit page.
    pub const TPSR: RegisterId = RegisterId(6);
    /// Transmit count, low.
    pub const TBCR0: RegisterId = RegisterId(7);
    /// Transmit count, high.
    pub const TBCR1: RegisterId = RegisterId(8);
    /// Interrupt status.
    pub const ISR: RegisterId = RegisterId(9);
    /// Remote address.
    pub const RSAR: RegisterId = RegisterId(10);
    /// Remote count.
    pub const RBCR: RegisterId = RegisterId(11);
    /// Receive configuration.
    pub const RCR: RegisterId = RegisterId(12);
    /// Transmit configuration.
    pub const TCR: RegisterId = RegisterId(13);
    /// Data configuration.
    pub const DCR: RegisterId = RegisterId(14);
    /// Interrupt mask.
    pub const IMR: RegisterId = RegisterId(15);
    /// Current page.
    pub const CURR: RegisterId = RegisterId(16);
}

const REGISTERS: &[Register] = &[
    register("CMD", 0x00, P0 | P1 | P2 | P3, NONE, Effects::COMMANDS),
    range("DATA", 0x10, 0x17, P0 | P1 | P2 | P3, Effects::REVEALS_MEMORY, Effects::WRITES_MEMORY),
    range("RESET", 0x18, 0x1f, P0 | P1 | P2 | P3, Effects::RESETS, Effects::RESETS),
    register("CLDA0/PSTART", 0x01, P0, TOLD, RING),
    register("CLDA1/PSTOP", 0x02, P0, TOLD, RING),
    register("BNRY", 0x03, P0, TOLD, RING),
    register("TSR/TPSR", 0x04, P0, NONE, SEND),
    register("NCR/TBCR0", 0x05, P0, NONE, SEND),
    register("FIFO/TBCR1", 0x06, P0, Effects::REVEALS_MEMORY, SEND),
    register("ISR", 0x07, P0, TOLD, RING),
    range("CRDA/RSAR", 0x08, 0x09, P0, NONE, NONE),
    range("ID/RBCR", 0x0a, 0x0b, P0, NONE, Effects::TRANSIENT),
    register("RSR/RCR", 0x0c, P0, TOLD, KEPT),
    register("CNTR0/TCR", 0x0d, P0, TOLD, KEPT),
    register("CNTR1/DCR", 0x0e, P0, TOLD, KEPT),
    register("CNTR2/IMR", 0x0f, P0, TOLD, KEPT),
    register("CURR", 0x07, P1, TOLD, RING),
    // While isolating, the receiver is promiscuous: the filters move nothing.
    range("PAR", 0x01, 0x06, P1, NONE, NONE),
    range("MAR", 0x08, 0x0f, P1, NONE, NONE),
    range("page 2", 0x01, 0x07, P2, TOLD, PROBE),
    range("page 2", 0x08, 0x0f, P2, NONE, NONE),
    // EEM = 11 opens CONFIG0-3 and the EEPROM; without it the rest of page 3 is read-only.
    register("9346CR", 0x01, P3, NONE, Effects::UNLOCKS),
    range("page 3", 0x02, 0x0f, P3, NONE, NONE),
];

// Command bits (DP8390D 10.3).
const STOP: u32 = 0x01;
const TRANSMIT: u32 = 0x04;
const READ: u32 = 0x08;
const WRITE: u32 = 0x10;
const NO_DMA: u32 = 0x20;
/// ISR bit RDC.
const DMA_DONE: u32 = 0x40;

const fn command(mask: u32, bits: u32) -> Event {
    Event::Write { register: id::CMD, mask, bits }
}

const fn any(register: RegisterId) -> Event {
    Event::Write { register, mask: 0, bits: 0 }
}

const fn edge(from: u8, on: Event, to: u8) -> Edge {
    Edge { from, on, to, start: None }
}

const WINDOW: Option<Start> =
    Some(Start::of_device(Transfer::Window(id::DATA), Check::WindowOwn, &[id::RSAR], &[id::RBCR]));

/// The remote DMA engine.
const REMOTE: Machine = {
    const IDLE: u8 = 0;
    const UNSEEN: u8 = 1;
    const SETUP: u8 = 2;
    const DMA_RD: u8 = 3;
    const DMA_WR: u8 = 4;
    const ALL: u8 = 0x1f;
    Machine {
        name: "remote DMA",
        states: &[
            State { name: "Idle", rest: true },
            State { name: "Unseen", rest: false },
            State { name: "Setup", rest: false },
            State { name: "DmaRd", rest: false },
            State { name: "DmaWr", rest: false },
        ],
        unseen: UNSEEN,
        told: &[],
        edges: &[
            edge(ALL, command(STOP, STOP), IDLE),
            edge(ALL, command(NO_DMA, NO_DMA), IDLE),
            Edge { from: ALL, on: command(READ | WRITE, READ), to: DMA_RD, start: WINDOW },
            Edge { from: ALL, on: command(WRITE, WRITE), to: DMA_WR, start: WINDOW },
            // A driver acknowledges completion only after the last datum.
            edge(
                1 << DMA_RD | 1 << DMA_WR,
                Event::Write { register: id::ISR, mask: DMA_DONE, bits: DMA_DONE },
                IDLE,
            ),
            edge(1 << IDLE | 1 << UNSEEN, any(id::RSAR), SETUP),
            edge(1 << IDLE | 1 << UNSEEN, any(id::RBCR), SETUP),
        ],
    }
};

/// The transmitter.
const TRANSMITTER: Machine = {
    const IDLE: u8 = 0;
    const UNSEEN: u8 = 1;
    const SETUP: u8 = 2;
    const SENDING: u8 = 3;
    const ALL: u8 = 0x0f;
    Machine {
        name: "transmitter",
        states: &[
            State { name: "Idle", rest: true },
            State { name: "Unseen", rest: false },
            State { name: "Setup", rest: false },
            State { name: "Transmit", rest: false },
        ],
        unseen: UNSEEN,
        told: &[],
        edges: &[
            edge(ALL, command(STOP, STOP), IDLE),
            Edge {
                from: ALL,
                on: command(TRANSMIT, TRANSMIT),
                to: SENDING,
                start: Some(Start::of_device(
                    Transfer::Send,
                    Check::SendRange,
                    &[id::TPSR],
                    &[id::TBCR0, id::TBCR1],
                )),
            },
            edge(1 << UNSEEN | 1 << SETUP, command(TRANSMIT, 0), IDLE),
            edge(1 << IDLE | 1 << UNSEEN, any(id::TPSR), SETUP),
            edge(1 << IDLE | 1 << UNSEEN, any(id::TBCR0), SETUP),
            edge(1 << IDLE | 1 << UNSEEN, any(id::TBCR1), SETUP),
            edge(1 << SENDING, Event::Device(DeviceEvent::Sent), IDLE),
        ],
    }
};

/// The receiver. It needs no rest: while clients share, received frames are the monitor's, and
/// when a single client hands over, the receiver is stopped first.
const RECEIVER: Machine = {
    const STOPPED: u8 = 0;
    const RUNNING: u8 = 1;
    Machine {
        name: "receiver",
        states: &[State { name: "Stopped", rest: true }, State { name: "Running", rest: true }],
        unseen: RUNNING,
        told: &[],
        edges: &[
            edge(1 << RUNNING, command(STOP, STOP), STOPPED),
            Edge {
                from: 1 << STOPPED,
                on: command(STOP, 0),
                to: RUNNING,
                start: Some(Start::of_device(
                    Transfer::Receive,
                    Check::ReceiveRange,
                    &[id::PSTART, id::BNRY, id::CURR, id::RCR],
                    &[id::PSTOP],
                )),
            },
        ],
    }
};

/// The model.
pub const MODEL: Model = Model {
    name: "ne2000",
    ids: &[(0x10ec, 0x8029)],
    space: Space::Ports,
    ports: PORTS,
    selector: SELECTOR,
    registers: REGISTERS,
    machines: MACHINES,
    tables: &Tables::new(Space::Ports, PORTS, SELECTOR, REGISTERS, MACHINES),
};

const PORTS: u16 = 0x20;
const SELECTOR: Selector = Selector::Register(id::CMD);
const MACHINES: &[Machine] = &[REMOTE, TRANSMITTER, RECEIVER];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_the_registers_they_say() {
        for (register, name) in [
            (id::CMD, "CMD"),
            (id::DATA, "DATA"),
            (id::RESET, "RESET"),
            (id::PSTART, "CLDA0/PSTART"),
            (id::PSTOP, "CLDA1/PSTOP"),
            (id::BNRY, "BNRY"),
            (id::TPSR, "TSR/TPSR"),
            (id::TBCR0, "NCR/TBCR0"),
            (id::TBCR1, "FIFO/TBCR1"),
            (id::ISR, "ISR"),
            (id::RSAR, "CRDA/RSAR"),
            (id::RBCR, "ID/RBCR"),
            (id::RCR, "RSR/RCR"),
            (id::TCR, "CNTR0/TCR"),
            (id::DCR, "CNTR1/DCR"),
            (id::IMR, "CNTR2/IMR"),
            (id::CURR, "CURR"),
        ] {
            assert_eq!(MODEL.register(register).map(|register| register.name), Some(name));
        }
    }

    #[test]
    fn every_port_of_every_page_is_exactly_one_register() {
        for page in 0..4 {
            for port in 0..32 {
                let owners = MODEL
                    .registers
                    .iter()
                    .filter(|register| register.pages & 1 << page != 0)
                    .filter(|register| register.units(MODEL.space) & 1 << port != 0);
                assert_eq!(owners.count(), 1, "page {page} port {port:#x}");
            }
        }
    }
}
