//! Working the physical card: pages, remote DMA, leaving no trace of it.

use sluice_nic::ne2000::registers::{Command, Interrupt, port};

use crate::access::RawDevice;

pub(super) use sluice_uplink::ne2000::card::{
    DCR, HALT, RUN, get, put, put_array, put_pair, read_memory, write_memory,
};

/// Reads the remote address. Page 0 must be selected.
pub(super) fn remote_address(raw: &mut dyn RawDevice) -> u16 {
    u16::from_le_bytes([get(raw, port::RSAR0), get(raw, port::RSAR1)])
}

/// A command that starts no transmission; one under way is not disturbed by writing TXP as 0
/// (DP8390D 10.3).
pub(super) const fn without_transmit(command: u8) -> u8 {
    command & !Command::TRANSMIT.bits()
}

/// No interrupt from the card until its mask is set again.
pub(super) fn silence(raw: &mut dyn RawDevice) {
    let command = without_transmit(get(raw, port::CMD));
    put(raw, port::CMD, command & !Command::PAGE.bits());
    put(raw, port::IMR, 0);
    put(raw, port::ISR, 0xff);
    put(raw, port::CMD, command);
}

/// The holder's command register set aside while the monitor works on page 0.
pub(super) struct Aside {
    pub(super) command: u8,
    remote: Option<u16>,
    moved: bool,
}

impl Aside {
    /// Selects page 0.
    pub(super) fn begin(raw: &mut dyn RawDevice) -> Self {
        let command = get(raw, port::CMD);
        Self::with(raw, command)
    }

    /// A client is about to get the card; its registers are these and page 0 is selected.
    pub(super) const fn for_new_holder(command: u8, remote: u16) -> Self {
        Self { command, remote: Some(remote), moved: true }
    }

    /// As [`Self::begin`], CMD having been read already.
    pub(super) fn with(raw: &mut dyn RawDevice, command: u8) -> Self {
        let moved = command & Command::PAGE.bits() != 0;
        if moved {
            put(raw, port::CMD, RUN);
        }
        Self { command, remote: None, moved }
    }

    /// The monitor is about to use the remote DMA engine or other pages.
    pub(super) fn take_engine(&mut self, raw: &mut dyn RawDevice) {
        if self.remote.is_none() {
            self.remote = Some(remote_address(raw));
            self.moved = true;
        }
    }

    /// The client's remote address.
    pub(super) fn remote(&self, raw: &mut dyn RawDevice) -> u16 {
        self.remote.unwrap_or_else(|| remote_address(raw))
    }

    /// The client's remote address has become this.
    pub(super) fn set_remote(&mut self, raw: &mut dyn RawDevice, address: u16) {
        match &mut self.remote {
            Some(remote) => *remote = address,
            None => put_pair(raw, port::RSAR0, address),
        }
    }

    /// Puts everything back. The remote byte count stays lost: nothing depends on it while shared.
    pub(super) fn end(self, raw: &mut dyn RawDevice) {
        if let Some(address) = self.remote {
            put_pair(raw, port::RSAR0, address);
        }
        if self.moved {
            restore_command(raw, self.command);
        }
    }
}

/// Sets the command register to what the client believes it is. A remote DMA command with a zero
/// count raises completion; that is not the client's, so it is acknowledged.
pub(super) fn restore_command(raw: &mut dyn RawDevice, command: u8) {
    let command = without_transmit(command);
    let dma = Command::REMOTE_READ.union(Command::REMOTE_WRITE).bits();
    if command & dma != 0 {
        put(raw, port::CMD, command & !Command::PAGE.bits());
        put(raw, port::ISR, Interrupt::DMA_DONE.bits());
    }
    if command & dma == 0 || command & Command::PAGE.bits() != 0 {
        put(raw, port::CMD, command);
    }
}

/// A device, with a count of the elements that pass to and from it.
pub(crate) struct CountingDevice<'a, R: ?Sized> {
    raw: &'a mut R,
    pub(crate) elements: u64,
}

impl<'a, R: RawDevice + ?Sized> CountingDevice<'a, R> {
    pub(crate) const fn new(raw: &'a mut R) -> Self {
        Self { raw, elements: 0 }
    }

    const fn add(&mut self, bytes: usize, width: u8) {
        self.elements += (bytes / if width == 0 { 1 } else { width as usize }) as u64;
    }
}

impl<R: RawDevice + ?Sized> RawDevice for CountingDevice<'_, R> {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        self.elements += 1;
        self.raw.read(offset, width)
    }

    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.elements += 1;
        self.raw.write(offset, width, value);
    }

    fn read_byte(&mut self, offset: u16) -> u8 {
        self.elements += 1;
        self.raw.read_byte(offset)
    }

    fn write_byte(&mut self, offset: u16, value: u8) {
        self.elements += 1;
        self.raw.write_byte(offset, value);
    }

    fn read_string(&mut self, offset: u16, width: u8, into: &mut [u8]) {
        self.add(into.len(), width);
        self.raw.read_string(offset, width, into);
    }

    fn write_string(&mut self, offset: u16, width: u8, from: &[u8]) {
        self.add(from.len(), width);
        self.raw.write_string(offset, width, from);
    }
}
