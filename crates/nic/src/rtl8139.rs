//! A software RTL8139C+ (PCI 10ec:8139, revision 0x20), visible behaviour as QEMU's `rtl8139`.
//!
//! Key types: [`Rtl8139`], [`registers::Registers`], [`Reception`]. Memory is reached through [`crate::dma::Dma`].
//! Sources: Realtek RTL8139C(L) data sheet 1.4 (C mode); RTL8139C+(L) data sheet 1.6 (C+ mode); behaviour where
//! these are silent, or QEMU disagrees, from observing QEMU 7.2's card.
//!
//! The card works when it is asked to: a write stores what the driver said, [`Rtl8139::transmit`] then moves one frame
//! or a [`Budget`](crate::Budget) of work at a time, so that neither a doorbell with 64 descriptors nor a large send binds
//! the owner for long. Call it after
//! each write while the card is [`Rtl8139::busy`], and it cannot be told from QEMU's, which does all within the write.
//! Reads change nothing. The clock is the owner's: see [`Rtl8139::advance`].
//!
//! Quirks kept on purpose, as QEMU has them and drivers live with them:
//! - A register answers at its own width only: IMR, ISR, CAPR, CBR, the PHY and C+ command as words, RCR, MPC, timer
//!   and ring addresses as long words; other widths read 0 and are not written. Accesses that are not aligned fall
//!   apart into aligned ones.
//! - Any write to CPCR, be it 0, turns TSD0-3 into the tally dump register until the next reset.
//! - Reset keeps MAR, RCR, TSAD, MPC, MULINT, MTPS, CONFIG4, 9346CR and an unfinished C+ frame; the ring in C mode
//!   becomes 8 KiB whatever RCR says, until RCR is written.
//! - CR reads RST after power-on until it is first written. Each write of CR with RE or TE starts that C+ ring anew.
//! - The C mode transmitter tries one descriptor at each write of TSD, always the next in turn.
//! - The C+ receive ring has no greatest length: without EOR the card walks on. The send ring wraps after 64.
//! - C+ ring addresses need no alignment. A C+ frame fits one receive descriptor or is missed.
//! - Frames that the filter rejects count as receive errors. C mode counts nothing.
//! - The EEPROM swallows commands that would change it. Thresholds, burst lengths, early interrupts, high priority
//!   queue, interrupt mitigation and receive checksum offload do nothing. HLTCLK stops reception and the timer only.
//!
//! Deviations from QEMU:
//! - A refused transfer reads as ones, is not written, counts ([`Rtl8139::refused`]) and raises SERR; a descriptor
//!   that could not be read is not the card's. QEMU reads zeros and says nothing.
//! - In C mode no byte is ever written beyond the ring, or beyond [`OVERRUN`] bytes after it where RCR.WRAP lets
//!   frames run over: a frame that would do so is an overflow. QEMU writes on, up to 64 KiB with a frame looped back.
//! - The last segment of a large send keeps PSH and FIN, which QEMU loses after the first. A looped back frame with
//!   an inserted tag keeps its last four bytes. Checksum offload leaves a TCP or UDP header alone that is cut short,
//!   and sends 0xffff for a UDP checksum of 0 (RFC 768).
//! - What waits for room in the ring after [`Reception::Full`] waits with the owner.

mod access;
mod crc;
mod eeprom;
mod offload;
mod receive;
pub mod registers;
#[cfg(test)]
mod tests;
mod transmit;
mod whole;

use alloc::boxed::Box;
use alloc::vec;
use eeprom::Eeprom;
use registers::{Interrupt, Registers};
use transmit::Work;

/// Shorter frames are padded to this.
const MIN_FRAME: usize = 60;

pub use receive::{OVERRUN, Reception};
pub use transmit::{ASSEMBLY_LEN, MAX_SENT};
pub use whole::{MOST_DESCRIPTORS, Whole};

/// PCI vendor, Realtek.
pub const VENDOR: u16 = 0x10ec;
/// PCI device.
pub const DEVICE: u16 = 0x8139;
/// PCI revision: from 0x20 on, drivers take the card for an RTL8139C+.
pub const REVISION: u8 = 0x20;
/// Bytes of the card's registers, in both the port BAR (0) and the memory BAR (1).
pub const PORTS: u16 = 0x100;
/// Nanoseconds of one count of the timer: a cycle of 33 MHz PCI.
pub const TICK_NS: u64 = 30;

/// The card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtl8139 {
    /// All registers; open so that a card can be saved and loaded. Any values are safe.
    pub regs: Registers,
    mac: [u8; 6],
    eeprom: Eeprom,
    /// The owner's clock, nanoseconds.
    now: u64,
    /// Transfers refused so far.
    refused: u64,
    /// They raise nothing.
    is_quiet: bool,
    work: Work,
    /// The C+ frame being put together from its descriptors.
    assembly: Box<[u8]>,
    /// The frame going out.
    outgoing: Box<[u8]>,
}

impl Rtl8139 {
    /// A card just powered on, with this station address in its EEPROM. Allocates 128 KiB.
    pub fn new(mac: [u8; 6]) -> Self {
        let mut card = Self {
            regs: Registers::default(),
            mac,
            eeprom: Eeprom::new(mac),
            now: 0,
            refused: 0,
            is_quiet: false,
            work: Work::default(),
            assembly: vec![0; ASSEMBLY_LEN].into_boxed_slice(),
            outgoing: vec![0; MAX_SENT].into_boxed_slice(),
        };
        card.power_on();
        card
    }

    /// Back to the state after power-on, with the link up. Allocates nothing.
    pub fn power_on(&mut self) {
        self.regs = Registers::default();
        self.regs.set_link(true);
        self.eeprom = Eeprom::new(self.mac);
        self.refused = 0;
        self.work = Work::default();
        self.assembly.fill(0);
        self.outgoing.fill(0);
        self.reset();
    }

    /// What the reset line of the bus does; nearly what CR.RST does.
    pub fn reset(&mut self) {
        self.regs.reset(self.mac);
        self.work.abort();
        self.arm_timer();
    }

    /// The station address it was built with.
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Transfers that the owner of memory has refused since power-on.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Says nothing of refused transfers from now on, where a card on a bus raises SERR.
    pub const fn keep_quiet(&mut self) {
        self.is_quiet = true;
    }

    /// Level of the interrupt line.
    pub const fn interrupt(&self) -> bool {
        self.regs.isr & self.regs.imr != 0
    }

    /// Plugs the cable in, or out. A card without link sends into the void and receives nothing.
    pub const fn set_link(&mut self, up: bool) {
        self.regs.set_link(up);
        self.regs.isr |= Interrupt::UNDERRUN_OR_LINK.bits();
    }

    /// The cable is in.
    pub const fn link(&self) -> bool {
        self.regs.link()
    }

    /// Sets the card's clock, nanoseconds from any fixed origin, and raises the timer interrupt if it is due.
    /// Call it before accesses, at least where the driver uses TCTR, and when [`Self::deadline`] has come.
    pub const fn advance(&mut self, now: u64) {
        self.now = now;
        let Some(due) = self.regs.timer_due else { return };
        if due <= now {
            self.regs.timer_due = None;
            if self.regs.running {
                self.regs.isr |= Interrupt::TIMER.bits();
                self.arm_timer();
            }
        }
    }

    /// When the timer interrupts next, on the clock of [`Self::advance`].
    pub const fn deadline(&self) -> Option<u64> {
        self.regs.timer_due
    }

    /// TCTR: counts since it was last written.
    const fn timer(&self) -> u32 {
        (self.now.saturating_sub(self.regs.timer_base) / TICK_NS) as u32
    }

    /// Computes when TCTR meets TimerInt next.
    const fn arm_timer(&mut self) {
        const PERIOD: u64 = TICK_NS << 32;
        let regs = &mut self.regs;
        let elapsed = self.now.saturating_sub(regs.timer_base);
        regs.timer_base = regs.timer_base.saturating_add(elapsed - elapsed % PERIOD);
        regs.timer_due = if regs.timer_int == 0 {
            None
        } else {
            let due = regs.timer_base.saturating_add(regs.timer_int as u64 * TICK_NS);
            Some(if due <= self.now { due.saturating_add(PERIOD) } else { due })
        };
    }
}
