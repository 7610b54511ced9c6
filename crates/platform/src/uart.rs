//! The serial port: a 16550A whose transmitter is instant, unless the hypervisor says that it is busy.
//!
//! Bytes that the guest sends come back from [`Uart::write`]; bytes for it go in by [`Uart::push_input`]. The
//! interrupt line is a function of the registers, [`Uart::interrupt`], to be looked at after every call.
//!
//! Source: National Semiconductor PC16550D datasheet (1995), section 8.
//!
//! Deviations: there is no baud rate, parity or framing; a received byte below the trigger level counts as
//! timed out at once; the receive FIFO holds 64 bytes.

use arrayvec::ArrayVec;

/// First port of COM1.
pub const COM1_PORT: u16 = 0x3F8;
/// Ports of a UART.
pub const PORTS: u16 = 8;
/// Global interrupt of COM1, edge-triggered.
pub const COM1_GSI: u8 = 4;

/// Bytes that can wait for the guest to read them.
const FIFO: usize = 64;

bitflags::bitflags! {
    /// Interrupt enable register (8.6.7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Ier: u8 {
        const RECEIVED = 1 << 0;
        const TRANSMIT_EMPTY = 1 << 1;
        const LINE_STATUS = 1 << 2;
        const MODEM_STATUS = 1 << 3;
    }

    /// Line status register (8.6.5).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Lsr: u8 {
        const DATA_READY = 1 << 0;
        const OVERRUN = 1 << 1;
        const TRANSMIT_EMPTY = 1 << 5;
        const TRANSMITTER_IDLE = 1 << 6;
    }

    /// Modem control register (8.6.8).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Mcr: u8 {
        const DTR = 1 << 0;
        const RTS = 1 << 1;
        const OUT1 = 1 << 2;
        /// On a PC, connects the interrupt.
        const OUT2 = 1 << 3;
        const LOOPBACK = 1 << 4;
    }

    /// Modem status register (8.6.9).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Msr: u8 {
        const CTS_CHANGED = 1 << 0;
        const DSR_CHANGED = 1 << 1;
        const RING_ENDED = 1 << 2;
        const DCD_CHANGED = 1 << 3;
        const CTS = 1 << 4;
        const DSR = 1 << 5;
        const RING = 1 << 6;
        const DCD = 1 << 7;
    }
}

/// Divisor latch access, bit 7 of the line control register.
const LCR_DIVISOR: u8 = 1 << 7;
/// FIFO control register (8.6.4).
const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RECEIVE: u8 = 1 << 1;

/// Interrupt identification (table III), lowest bits of the register.
mod iir {
    pub const NONE: u8 = 0x1;
    pub const LINE_STATUS: u8 = 0x6;
    pub const RECEIVED: u8 = 0x4;
    pub const TIMEOUT: u8 = 0xC;
    pub const TRANSMIT_EMPTY: u8 = 0x2;
    pub const MODEM_STATUS: u8 = 0x0;
    pub const FIFO_ENABLED: u8 = 0xC0;
}

/// A serial port.
#[derive(Clone, Debug)]
pub struct Uart {
    input: ArrayVec<u8, FIFO>,
    ier: Ier,
    fcr: u8,
    lcr: u8,
    mcr: Mcr,
    /// The modem lines' changes since they were last read; the lines follow from `mcr`.
    changes: Msr,
    overrun: bool,
    /// The transmitter became empty and nobody has been told.
    sent: bool,
    /// See [`Uart::set_busy`].
    busy: bool,
    scratch: u8,
    divisor: u16,
}

impl Default for Uart {
    fn default() -> Self {
        Self::new()
    }
}

impl Uart {
    /// A port after reset (table I), with a terminal connected: CTS, DSR and DCD are on.
    pub fn new() -> Self {
        Self {
            input: ArrayVec::new(),
            ier: Ier::empty(),
            fcr: 0,
            lcr: 0,
            mcr: Mcr::empty(),
            changes: Msr::empty(),
            overrun: false,
            sent: true,
            busy: false,
            scratch: 0,
            divisor: 12,
        }
    }

    /// The guest reads register `offset` (0-7).
    pub fn read(&mut self, offset: u8) -> u8 {
        let [low, high] = self.divisor.to_le_bytes();
        let divisor = self.lcr & LCR_DIVISOR != 0;
        match offset & 7 {
            0 if divisor => low,
            1 if divisor => high,
            0 => self.input.pop_at(0).unwrap_or(0),
            1 => self.ier.bits(),
            2 => {
                let id = self.identify();
                // Reading it acknowledges this one source, if it is what is shown.
                if id == iir::TRANSMIT_EMPTY {
                    self.sent = false;
                }
                id | if self.fifo_enabled() { iir::FIFO_ENABLED } else { 0 }
            }
            3 => self.lcr,
            4 => self.mcr.bits(),
            5 => {
                let mut status = Lsr::empty();
                status.set(Lsr::TRANSMIT_EMPTY | Lsr::TRANSMITTER_IDLE, !self.busy);
                status.set(Lsr::DATA_READY, !self.input.is_empty());
                status.set(Lsr::OVERRUN, core::mem::take(&mut self.overrun));
                status.bits()
            }
            6 => {
                let changes = core::mem::replace(&mut self.changes, Msr::empty());
                (self.modem_lines() | changes).bits()
            }
            _ => self.scratch,
        }
    }

    /// The guest writes register `offset` (0-7); the byte sent, if that sends one.
    pub fn write(&mut self, offset: u8, value: u8) -> Option<u8> {
        let [low, high] = self.divisor.to_le_bytes();
        let divisor = self.lcr & LCR_DIVISOR != 0;
        match offset & 7 {
            0 if divisor => self.divisor = u16::from_le_bytes([value, high]),
            1 if divisor => self.divisor = u16::from_le_bytes([low, value]),
            0 => return self.transmit(value),
            1 => {
                let ier = Ier::from_bits_truncate(value);
                // Enabling the transmitter's interrupt while it is empty raises it (8.6.7).
                self.sent |= (ier & !self.ier).contains(Ier::TRANSMIT_EMPTY);
                self.ier = ier;
            }
            2 => {
                // Changing the mode empties the FIFOs (8.6.4, bit 0).
                if value & FCR_CLEAR_RECEIVE != 0 || (value ^ self.fcr) & FCR_ENABLE != 0 {
                    self.input.clear();
                }
                self.fcr = if value & FCR_ENABLE != 0 { value } else { 0 };
            }
            3 => self.lcr = value,
            4 => {
                let before = self.modem_lines();
                self.mcr = Mcr::from_bits_truncate(value);
                self.note_changes(before);
            }
            // Line and modem status are not for software to write.
            5 | 6 => {}
            _ => self.scratch = value,
        }
        None
    }

    /// A byte for the guest; false if it has no room for it (offer it again later).
    pub fn push_input(&mut self, byte: u8) -> bool {
        !self.mcr.contains(Mcr::LOOPBACK) && self.has_room() && self.input.try_push(byte).is_ok()
    }

    /// Nobody takes what the guest sends, or somebody does again. While the transmitter is busy it does not read empty and does not
    /// interrupt; a byte that is sent all the same comes back from [`Uart::write`] as ever.
    pub fn set_busy(&mut self, busy: bool) {
        self.sent |= self.busy && !busy;
        self.busy = busy;
    }

    /// The state of the interrupt line.
    pub fn interrupt(&self) -> bool {
        let connected = self.mcr.contains(Mcr::OUT2) && !self.mcr.contains(Mcr::LOOPBACK);
        connected && self.identify() != iir::NONE
    }

    fn transmit(&mut self, byte: u8) -> Option<u8> {
        self.sent = true;
        if !self.mcr.contains(Mcr::LOOPBACK) {
            return Some(byte);
        }
        if !self.has_room() || self.input.try_push(byte).is_err() {
            self.overrun = true;
        }
        None
    }

    fn fifo_enabled(&self) -> bool {
        self.fcr & FCR_ENABLE != 0
    }

    fn has_room(&self) -> bool {
        if self.fifo_enabled() { !self.input.is_full() } else { self.input.is_empty() }
    }

    /// The enabled source of highest priority (table III).
    fn identify(&self) -> u8 {
        let trigger = match self.fcr >> 6 {
            0 => 1,
            1 => 4,
            2 => 8,
            _ => 14,
        };
        if self.ier.contains(Ier::LINE_STATUS) && self.overrun {
            iir::LINE_STATUS
        } else if self.ier.contains(Ier::RECEIVED) && !self.input.is_empty() {
            let reached = !self.fifo_enabled() || self.input.len() >= trigger;
            if reached { iir::RECEIVED } else { iir::TIMEOUT }
        } else if self.ier.contains(Ier::TRANSMIT_EMPTY) && self.sent && !self.busy {
            iir::TRANSMIT_EMPTY
        } else if self.ier.contains(Ier::MODEM_STATUS) && !self.changes.is_empty() {
            iir::MODEM_STATUS
        } else {
            iir::NONE
        }
    }

    /// The modem lines: those of the terminal, or in loopback our own outputs (8.6.8, bit 4).
    fn modem_lines(&self) -> Msr {
        if !self.mcr.contains(Mcr::LOOPBACK) {
            return Msr::CTS | Msr::DSR | Msr::DCD;
        }
        let wires =
            [(Mcr::RTS, Msr::CTS), (Mcr::DTR, Msr::DSR), (Mcr::OUT1, Msr::RING), (Mcr::OUT2, Msr::DCD)];
        wires
            .into_iter()
            .filter(|(output, _)| self.mcr.contains(*output))
            .fold(Msr::empty(), |lines, (_, input)| lines | input)
    }

    fn note_changes(&mut self, before: Msr) {
        let after = self.modem_lines();
        // Each of the low three change bits is four below its line; a ring counts when it ends.
        let lines = Msr::CTS | Msr::DSR | Msr::DCD;
        self.changes |= Msr::from_bits_truncate(((before ^ after) & lines).bits() >> 4);
        if before.contains(Msr::RING) && !after.contains(Msr::RING) {
            self.changes |= Msr::RING_ENDED;
        }
    }
}

#[cfg(test)]
mod tests;
