//! Registers of the DP8390 core: names of their bits, and a register file.
//!
//! Source: National DP8390D/NS32490D data sheet, section 10; Realtek RTL8029AS data sheet,
//! section 5 (page 3, ports 0x10-0x1f).

bitflags::bitflags! {
    /// Command register, port 0 of every page.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Command: u8 {
        /// STP: receiver and transmitter off.
        const STOP = 0x01;
        /// STA: on. The RTL8029 looks at STP only.
        const START = 0x02;
        /// TXP: transmit; reads 1 until done.
        const TRANSMIT = 0x04;
        /// RD0: remote read.
        const REMOTE_READ = 0x08;
        /// RD1: remote write.
        const REMOTE_WRITE = 0x10;
        /// RD2: abort or no remote DMA.
        const NO_DMA = 0x20;
        /// PS1-0: register page.
        const PAGE = 0xc0;
    }

    /// Interrupt status register; bits 0-6 are cleared by writing 1, and masked by the same bits
    /// of the interrupt mask register.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Interrupt: u8 {
        /// PRX: a frame was received.
        const RECEIVED = 0x01;
        /// PTX: a frame was sent.
        const SENT = 0x02;
        /// RXE: a damaged frame.
        const RECEIVE_ERROR = 0x04;
        /// TXE: a transmission failed.
        const SEND_ERROR = 0x08;
        /// OVW: the receive ring is full.
        const OVERFLOW = 0x10;
        /// CNT: a tally counter is half full.
        const COUNTER = 0x20;
        /// RDC: remote DMA complete.
        const DMA_DONE = 0x40;
        /// RST: in reset. No interrupt.
        const RESET = 0x80;
    }

    /// Receive configuration register (write only).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Receive: u8 {
        /// SEP: keep damaged frames.
        const SAVE_ERRORS = 0x01;
        /// AR: accept runts.
        const RUNTS = 0x02;
        /// AB: accept broadcast.
        const BROADCAST = 0x04;
        /// AM: accept multicast that passes the filter.
        const MULTICAST = 0x08;
        /// PRO: accept every unicast address.
        const PROMISCUOUS = 0x10;
        /// MON: check frames but store none.
        const MONITOR = 0x20;
    }

    /// Transmit status register.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendStatus: u8 {
        /// PTX: sent without error.
        const SENT = 0x01;
        /// ABT: given up.
        const ABORTED = 0x08;
        /// FU: the card's memory did not deliver in time.
        const UNDERRUN = 0x20;
        /// OWC: a collision out of its window.
        const LATE_COLLISION = 0x80;
    }
}

/// DCR bit 0, WTS: the data port moves words, not bytes.
pub const DCR_WORD: u8 = 0x01;
/// TCR bits 2-1, LB: any value but 0 keeps the transmitter off the wire.
pub const TCR_LOOPBACK: u8 = 0x06;
/// First status bit of a stored frame and of RSR: received intact.
pub const RSR_INTACT: u8 = 0x01;
/// Status bit: broadcast or multicast.
pub const RSR_GROUP: u8 = 0x20;

/// All registers. Widths are the hardware's, except that the remote address carries past 16 bits
/// as QEMU's does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// CMD.
    pub cmd: u8,
    /// Receive ring: first page.
    pub pstart: u8,
    /// Receive ring: page after the last.
    pub pstop: u8,
    /// Page the driver has not yet read up to.
    pub bnry: u8,
    /// Page the next frame goes to.
    pub curr: u8,
    /// Transmit status.
    pub tsr: u8,
    /// Transmit start page (write only).
    pub tpsr: u8,
    /// Transmit byte count (write only).
    pub tbcr: u16,
    /// Remote DMA address.
    pub rsar: u32,
    /// Remote DMA bytes left (write only).
    pub rbcr: u16,
    /// Receive status.
    pub rsr: u8,
    /// Interrupt status.
    pub isr: u8,
    /// Interrupt mask (write only).
    pub imr: u8,
    /// Receive configuration (write only).
    pub rcr: u8,
    /// Transmit configuration (write only).
    pub tcr: u8,
    /// Data configuration (write only).
    pub dcr: u8,
    /// Station address as the driver wrote it. The RTL8029 of QEMU filters by the PROM instead.
    pub par: [u8; 6],
    /// Multicast filter.
    pub mar: [u8; 8],
}

impl Registers {
    /// Register page selected by CMD.
    pub const fn page(&self) -> u8 {
        self.cmd >> 6
    }

    /// STP is set.
    pub const fn stopped(&self) -> bool {
        self.cmd & Command::STOP.bits() != 0
    }
}

/// Port offsets.
pub mod port {
    /// Command, every page.
    pub const CMD: u16 = 0x00;
    /// PSTART (page 0 write, page 2 read); PAR0 on page 1.
    pub const PSTART: u16 = 0x01;
    /// PSTOP (page 0 write, page 2 read).
    pub const PSTOP: u16 = 0x02;
    /// BNRY (page 0).
    pub const BNRY: u16 = 0x03;
    /// TSR (page 0 read), TPSR (page 0 write).
    pub const TPSR: u16 = 0x04;
    /// TBCR0 (page 0 write).
    pub const TBCR0: u16 = 0x05;
    /// TBCR1 (page 0 write).
    pub const TBCR1: u16 = 0x06;
    /// ISR (page 0), CURR (page 1).
    pub const ISR: u16 = 0x07;
    /// RSAR0 / CRDA0 (page 0), MAR0 (page 1).
    pub const RSAR0: u16 = 0x08;
    /// RSAR1 / CRDA1 (page 0).
    pub const RSAR1: u16 = 0x09;
    /// RBCR0 (page 0 write).
    pub const RBCR0: u16 = 0x0a;
    /// RBCR1 (page 0 write).
    pub const RBCR1: u16 = 0x0b;
    /// RSR (page 0 read), RCR (page 0 write).
    pub const RCR: u16 = 0x0c;
    /// TCR (page 0 write).
    pub const TCR: u16 = 0x0d;
    /// DCR (page 0 write).
    pub const DCR: u16 = 0x0e;
    /// IMR (page 0 write).
    pub const IMR: u16 = 0x0f;
    /// Remote DMA data.
    pub const DATA: u16 = 0x10;
    /// Reading resets.
    pub const RESET: u16 = 0x1f;
}
