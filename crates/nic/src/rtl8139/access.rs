//! Register accesses: what answers at which width, and which bits can be written.
//!
//! Sources: RTL8139C(L) data sheet 1.4, section 5; masks and widths from observing QEMU's card.

use super::Rtl8139;
use super::registers::{Command, DUMP, Interrupt, POLL_NORMAL, Registers, TALLY_LEN, reg};
use crate::dma::{BusMaster, Dma};

/// 9346CR, modes in bits 7-6.
const MODE: u8 = 0xc0;
/// The EEPROM is loaded again, which resets the card.
const MODE_LOAD: u8 = 0x40;
/// Lines of the EEPROM are driven by bits 3-1.
const MODE_PROGRAM: u8 = 0x80;
/// CONFIG registers can be written.
const MODE_CONFIG: u8 = 0xc0;
/// The aligned word that has CR at its end.
const CR_WORD: u16 = reg::CR & !3;
/// RE and TE: what can be written of CR.
const CR_WRITABLE: u8 = 0x0c;

impl Rtl8139 {
    /// A read of `width` bytes, at most 4, from either BAR; what lies behind the registers reads as ones. An access
    /// that is not aligned is several that are.
    pub fn read(&self, offset: u16, width: u8) -> u32 {
        let mut value = 0;
        for (at, width, shift) in pieces(offset, width) {
            value |= match width {
                _ if at >= super::PORTS => u32::MAX >> (32 - 8 * width),
                1 => u32::from(self.byte(at)),
                2 => u32::from(self.word(at)),
                _ => self.long(at),
            } << shift;
        }
        value
    }

    /// The four bytes at an aligned offset as they are, whatever the widths at which the card answers: for showing a
    /// guest its registers in memory.
    pub fn image(&self, offset: u16) -> u32 {
        let regs = &self.regs;
        match offset {
            _ if offset >= super::PORTS => u32::MAX,
            // Those that are asked for after each access.
            reg::CAPR => regs.read_at.wrapping_sub(0x10) & 0xffff | regs.write_at << 16,
            reg::IMR => u32::from(regs.imr) | u32::from(regs.isr) << 16,
            // Before it are those of early reception, which read 0.
            CR_WORD => u32::from(self.byte(reg::CR)) << 24,
            reg::TSD..=reg::RBSTART | reg::TCR..=reg::MPC => self.long(offset),
            reg::TIMER_INT | reg::RDSAR | reg::RDSAR_HIGH => self.long(offset),
            _ => u32::from(self.word(offset)) | u32::from(self.word(offset.saturating_add(2))) << 16,
        }
    }

    /// A write of `width` bytes, at most 4, to either BAR; the lowest first if it is not aligned. What the write makes
    /// the card send is to be taken by [`Self::transmit`].
    pub fn write(&mut self, offset: u16, width: u8, value: u32, memory: &mut dyn Dma) {
        for (at, width, shift) in pieces(offset, width) {
            let value = value >> shift;
            match width {
                _ if at >= super::PORTS => {}
                1 => self.set_byte(at, value as u8),
                2 => self.set_word(at, value as u16),
                _ => self.set_long(at, value, memory),
            }
        }
    }

    fn byte(&self, offset: u16) -> u8 {
        let regs = &self.regs;
        match offset {
            reg::IDR..reg::MAR => pick(&regs.idr, offset),
            reg::MAR..reg::TSD => pick(&regs.mar, offset - reg::MAR),
            reg::TSD..reg::TSAD => (register(&regs.tsd, offset - reg::TSD) >> (8 * (offset & 3))) as u8,
            reg::CR => {
                let empty = if regs.unread() == 0 { Command::EMPTY.bits() } else { 0 };
                regs.cr | empty
            }
            // The last byte of TCR says which chip it is.
            0x43 => (regs.tcr >> 24) as u8,
            reg::CR9346 if regs.cr9346 & MODE == MODE_PROGRAM => {
                regs.cr9346 & !1 | u8::from(self.eeprom.output())
            }
            reg::CR9346 => regs.cr9346,
            reg::CONFIG0 => regs.config0,
            reg::CONFIG1 => regs.config1,
            // 100 Mb/s or not, flow control and the rest fixed; bit 2 tells that the link is down.
            reg::MSR => 0xd0 | if regs.link() { 0 } else { 0x04 },
            reg::CONFIG3 => regs.config3,
            reg::CONFIG4 => regs.config4,
            reg::HLTCLK => u8::from(regs.running),
            reg::RERID => super::REVISION,
            reg::CONFIG5 => regs.config5,
            reg::MTPS => regs.mtps,
            _ => 0,
        }
    }

    fn word(&self, offset: u16) -> u16 {
        let regs = &self.regs;
        match offset {
            reg::TSAD..reg::RBSTART => {
                (register(&regs.tsad, offset - reg::TSAD) >> (8 * (offset & 2))) as u16
            }
            reg::CAPR => regs.read_at.wrapping_sub(0x10) as u16,
            reg::CBR => regs.write_at as u16,
            reg::IMR => regs.imr,
            reg::ISR => regs.isr,
            reg::MULINT => regs.mulint,
            reg::SUMMARY => regs.transmit_summary(),
            reg::BMCR => regs.bmcr,
            reg::BMSR => regs.bmsr,
            reg::ANAR => regs.anar,
            reg::ANLPAR => regs.anlpar,
            reg::ANER => regs.aner,
            reg::CSCR => regs.cscr,
            reg::CPCR => regs.cpcr,
            reg::MITIGATE => 0,
            _ => u16::from_le_bytes([self.byte(offset), self.byte(offset.wrapping_add(1))]),
        }
    }

    fn long(&self, offset: u16) -> u32 {
        let regs = &self.regs;
        match offset {
            reg::TSD..reg::TSAD => register(&regs.tsd, offset - reg::TSD),
            reg::TSAD..reg::RBSTART => register(&regs.tsad, offset - reg::TSAD),
            reg::RBSTART => regs.rbstart,
            reg::TCR => regs.tcr,
            reg::RCR => regs.rcr,
            reg::TCTR => self.timer(),
            reg::MPC => regs.mpc,
            reg::TIMER_INT => regs.timer_int,
            reg::RDSAR => regs.rdsar as u32,
            reg::RDSAR_HIGH => (regs.rdsar >> 32) as u32,
            _ => u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.byte(offset.wrapping_add(byte)))),
        }
    }

    fn set_byte(&mut self, offset: u16, value: u8) {
        let unlocked = self.regs.cr9346 & MODE == MODE_CONFIG;
        let regs = &mut self.regs;
        match offset {
            reg::IDR..reg::MAR => put(&mut regs.idr, offset, value),
            reg::MAR..reg::TSD => put(&mut regs.mar, offset - reg::MAR, value),
            reg::CR => self.command(value),
            reg::TCR => self.set_tcr(self.regs.tcr & !0xff | u32::from(value)),
            reg::CR9346 => self.eeprom_command(value),
            reg::CONFIG0 if unlocked => regs.config0 = keep(0xf8, regs.config0, value),
            reg::CONFIG1 if unlocked => regs.config1 = keep(0x0c, regs.config1, value),
            reg::CONFIG3 if unlocked => regs.config3 = keep(0x8f, regs.config3, value),
            reg::CONFIG4 if unlocked => regs.config4 = keep(0x0a, regs.config4, value),
            reg::HLTCLK if value == b'R' => regs.running = true,
            reg::HLTCLK if value == b'H' => regs.running = false,
            // Not locked, unlike the others.
            reg::CONFIG5 => regs.config5 = keep(0x80, regs.config5, value),
            reg::TPPOLL if value & POLL_NORMAL != 0 => self.work.poll(),
            reg::MTPS => regs.mtps = value,
            _ => {}
        }
    }

    fn set_word(&mut self, offset: u16, value: u16) {
        let regs = &mut self.regs;
        match offset {
            reg::CAPR => regs.read_at = (u32::from(value) + 0x10) & (regs.ring_len() - 1),
            reg::IMR => regs.imr = value & !0x1e00 | regs.imr & 0x1e00,
            reg::ISR => {
                regs.isr &= !value;
                self.arm_timer();
            }
            reg::MULINT => regs.mulint = value & !0xf000 | regs.mulint & 0xf000,
            reg::BMCR => {
                if value & 0x8000 != 0 {
                    regs.reset_phy();
                }
                // Only "negotiate anew" is kept; speed and duplex are not for the driver.
                regs.bmcr = value & 0x0200 | regs.bmcr & !0x0200;
            }
            reg::BMSR => regs.bmsr = value & 0x00c0 | regs.bmsr & !0x00c0,
            reg::ANAR => regs.anar = value,
            reg::ANLPAR | reg::MITIGATE => {}
            reg::ANER => regs.aner = value,
            reg::CPCR => {
                regs.cplus = true;
                regs.cpcr = value & !0xff84 | regs.cpcr & 0xff84;
            }
            _ => {
                let [low, high] = value.to_le_bytes();
                self.set_byte(offset, low);
                self.set_byte(offset.wrapping_add(1), high);
            }
        }
    }

    fn set_long(&mut self, offset: u16, value: u32, memory: &mut dyn Dma) {
        let regs = &mut self.regs;
        match offset {
            reg::TSD..reg::TSAD if regs.cplus => self.dump_command(offset, value, memory),
            reg::TSD..reg::TSAD => {
                if let Some(tsd) = regs.tsd.get_mut(usize::from(offset - reg::TSD) / 4) {
                    // Length, OWN and early threshold; what the card reports goes.
                    *tsd = value & 0x003f_3fff;
                }
                self.work.kick();
            }
            reg::TSAD..reg::RBSTART => {
                if let Some(tsad) = regs.tsad.get_mut(usize::from(offset - reg::TSAD) / 4) {
                    *tsad = value;
                }
            }
            reg::RBSTART => regs.rbstart = value,
            reg::TCR => self.set_tcr(value),
            reg::RCR => {
                regs.rcr = value & !0xf0fc_0040 | regs.rcr & 0xf0fc_0040;
                regs.empty_ring((regs.rcr >> 11 & 3) as u8);
            }
            reg::TCTR => {
                regs.timer_base = self.now;
                self.arm_timer();
            }
            reg::MPC => regs.mpc = 0,
            reg::TIMER_INT if regs.timer_int != value => {
                regs.timer_int = value;
                self.arm_timer();
            }
            reg::TIMER_INT => {}
            reg::RDSAR => regs.rdsar = regs.rdsar & !0xffff_ffff | u64::from(value),
            reg::RDSAR_HIGH => regs.rdsar = regs.rdsar & 0xffff_ffff | u64::from(value) << 32,
            _ => {
                for (byte, value) in (0u16..).zip(value.to_le_bytes()) {
                    self.set_byte(offset.wrapping_add(byte), value);
                }
            }
        }
    }

    fn command(&mut self, value: u8) {
        let command = Command::from_bits_retain(value);
        if command.contains(Command::RESET) {
            self.reset();
        }
        if command.contains(Command::RECEIVE) {
            self.regs.next_receive = 0;
        }
        if command.contains(Command::TRANSMIT) {
            self.regs.next_send = 0;
        }
        // A reset is over before the driver can look.
        self.regs.cr = value & CR_WRITABLE;
    }

    /// TCR can be written while the transmitter is on.
    const fn set_tcr(&mut self, value: u32) {
        const WRITABLE: u32 = 0x030f_07f0;
        if self.regs.transmitting() {
            self.regs.tcr = value & WRITABLE | self.regs.tcr & !WRITABLE;
        }
    }

    fn eeprom_command(&mut self, value: u8) {
        self.regs.cr9346 = keep(0x31, self.regs.cr9346, value);
        match value & MODE {
            MODE_PROGRAM => self.eeprom.set_lines(value),
            MODE_LOAD => {
                self.reset();
                self.regs.cr9346 = 0;
            }
            _ => {}
        }
    }

    /// A write to TSD in C+ mode: bit 3 of the first dumps the tally counters at once.
    fn dump_command(&mut self, offset: u16, value: u32, memory: &mut dyn Dma) {
        if let Some(tsd) = self.regs.tsd.get_mut(usize::from(offset - reg::TSD) / 4) {
            *tsd = value;
        }
        if offset == reg::TSD && value & DUMP != 0 {
            let address = self.regs.dump_address();
            let done = BusMaster::new(memory, &mut self.refused).write(address, &self.regs.tally.bytes());
            self.check(done);
            self.regs.tsd[0] &= !DUMP;
        }
    }

    /// Raises SERR if a transfer was not done, unless it is to be quiet.
    pub(super) const fn check(&mut self, done: bool) {
        if !done && !self.is_quiet {
            self.regs.isr |= Interrupt::BUS_ERROR.bits();
        }
    }
}

impl Registers {
    /// Where the tally counters would be dumped: 64 bytes, aligned.
    pub const fn dump_address(&self) -> u64 {
        (self.tsd[0] & !(TALLY_LEN as u32 - 1)) as u64 | (self.tsd[1] as u64) << 32
    }
}

/// `old` where the mask is 1, else `new`.
const fn keep(mask: u8, old: u8, new: u8) -> u8 {
    old & mask | new & !mask
}

fn pick(bytes: &[u8], offset: u16) -> u8 {
    bytes.get(usize::from(offset)).copied().unwrap_or(0)
}

fn put(bytes: &mut [u8], offset: u16, value: u8) {
    if let Some(byte) = bytes.get_mut(usize::from(offset)) {
        *byte = value;
    }
}

fn register(registers: &[u32; 4], offset: u16) -> u32 {
    registers.get(usize::from(offset) / 4).copied().unwrap_or(0)
}

/// The aligned accesses that one access falls apart into: offset, bytes (1, 2 or 4), and the bits of the value before.
fn pieces(offset: u16, width: u8) -> impl Iterator<Item = (u16, u8, u32)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = offset.saturating_add(u16::from(done));
        let left = width.min(4) - done;
        let piece = match at & 3 {
            _ if left == 0 => return None,
            0 if left == 4 => 4,
            0 | 2 if left >= 2 => 2,
            _ => 1,
        };
        let shift = 8 * u32::from(done);
        done += piece;
        Some((at, piece, shift))
    })
}
