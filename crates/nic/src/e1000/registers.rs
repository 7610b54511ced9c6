//! Registers of the 8254x: offsets, names of bits, which of them answer, and the register file.
//!
//! Key types: [`Registers`], the words by offset; [`Reading`] and [`Writing`], what an access to an offset does;
//! [`reg`], the offsets. Source: Intel PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's
//! Manual (317453), chapter 13. Which registers answer, and which bits of them can be written, is what QEMU's card
//! shows: less than the manual's.

use alloc::boxed::Box;
use alloc::vec;

/// Bytes of the register window, BAR 0.
pub const WINDOW: u32 = 0x2_0000;
/// Ports of the card, BAR 1.
pub const PORTS: u16 = 0x40;

/// Offsets in the register window.
#[allow(missing_docs, reason = "the manual's names; section 13.3 lists them")]
pub mod reg {
    pub const CTRL: u32 = 0x0000;
    pub const STATUS: u32 = 0x0008;
    pub const EECD: u32 = 0x0010;
    pub const EERD: u32 = 0x0014;
    pub const MDIC: u32 = 0x0020;
    pub const VET: u32 = 0x0038;
    pub const ICR: u32 = 0x00c0;
    pub const ITR: u32 = 0x00c4;
    pub const ICS: u32 = 0x00c8;
    pub const IMS: u32 = 0x00d0;
    pub const IMC: u32 = 0x00d8;
    pub const RCTL: u32 = 0x0100;
    pub const TCTL: u32 = 0x0400;
    pub const AIT: u32 = 0x0458;
    pub const LEDCTL: u32 = 0x0e00;
    pub const PBA: u32 = 0x1000;
    pub const RDFH: u32 = 0x2410;
    pub const RDFT: u32 = 0x2418;
    pub const RDFHS: u32 = 0x2420;
    pub const RDFTS: u32 = 0x2428;
    pub const RDFPC: u32 = 0x2430;
    pub const RDBAL: u32 = 0x2800;
    pub const RDBAH: u32 = 0x2804;
    pub const RDLEN: u32 = 0x2808;
    pub const RDH: u32 = 0x2810;
    pub const RDT: u32 = 0x2818;
    pub const RDTR: u32 = 0x2820;
    pub const RADV: u32 = 0x282c;
    pub const TDFH: u32 = 0x3410;
    pub const TDFT: u32 = 0x3418;
    pub const TDFHS: u32 = 0x3420;
    pub const TDFTS: u32 = 0x3428;
    pub const TDFPC: u32 = 0x3430;
    pub const TDBAL: u32 = 0x3800;
    pub const TDBAH: u32 = 0x3804;
    pub const TDLEN: u32 = 0x3808;
    pub const TDH: u32 = 0x3810;
    pub const TDT: u32 = 0x3818;
    pub const TXDCTL: u32 = 0x3828;
    pub const TADV: u32 = 0x382c;
    pub const CRCERRS: u32 = 0x4000;
    pub const MPC: u32 = 0x4010;
    pub const SCC: u32 = 0x4014;
    pub const LATECOL: u32 = 0x4020;
    pub const COLC: u32 = 0x4028;
    pub const DC: u32 = 0x4030;
    pub const CEXTERR: u32 = 0x403c;
    pub const RLEC: u32 = 0x4040;
    pub const XONRXC: u32 = 0x4048;
    pub const FCRUC: u32 = 0x4058;
    pub const PRC64: u32 = 0x405c;
    pub const GPRC: u32 = 0x4074;
    pub const BPRC: u32 = 0x4078;
    pub const MPRC: u32 = 0x407c;
    pub const GPTC: u32 = 0x4080;
    pub const GORCL: u32 = 0x4088;
    pub const GORCH: u32 = 0x408c;
    pub const GOTCL: u32 = 0x4090;
    pub const GOTCH: u32 = 0x4094;
    pub const RNBC: u32 = 0x40a0;
    pub const RUC: u32 = 0x40a4;
    pub const RFC: u32 = 0x40a8;
    pub const ROC: u32 = 0x40ac;
    pub const RJC: u32 = 0x40b0;
    pub const MGTPTC: u32 = 0x40bc;
    pub const TORL: u32 = 0x40c0;
    pub const TORH: u32 = 0x40c4;
    pub const TOTL: u32 = 0x40c8;
    pub const TOTH: u32 = 0x40cc;
    pub const TPR: u32 = 0x40d0;
    pub const TPT: u32 = 0x40d4;
    pub const PTC64: u32 = 0x40d8;
    pub const MPTC: u32 = 0x40f0;
    pub const BPTC: u32 = 0x40f4;
    pub const TSCTC: u32 = 0x40f8;
    pub const TSCTFC: u32 = 0x40fc;
    pub const MTA: u32 = 0x5200;
    pub const RAL: u32 = 0x5400;
    pub const RAH: u32 = 0x5404;
    pub const VFTA: u32 = 0x5600;
    pub const WUC: u32 = 0x5800;
    pub const WUFC: u32 = 0x5808;
    pub const WUS: u32 = 0x5810;
    pub const MANC: u32 = 0x5820;
    pub const IPAV: u32 = 0x5838;
    pub const IP4AT: u32 = 0x5840;
    pub const IP6AT: u32 = 0x5880;
    pub const WUPM: u32 = 0x5a00;
    pub const SWSM: u32 = 0x5b50;
    pub const FFLT: u32 = 0x5f00;
    pub const FFMT: u32 = 0x9000;
    pub const FFVT: u32 = 0x9800;
    pub const PBM: u32 = 0x1_0000;
}

bitflags::bitflags! {
    /// CTRL, section 13.4.1.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Control: u32 {
        /// RST: reset the card. QEMU's forgets the bit and does nothing else.
        const RESET = 1 << 26;
        /// VME: insert and strip VLAN tags.
        const VLAN = 1 << 30;
        /// PHY_RST.
        const PHY_RESET = 1 << 31;
    }

    /// STATUS, section 13.4.2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Status: u32 {
        /// LU: the link is up.
        const LINK_UP = 1 << 1;
    }

    /// RCTL, section 13.4.22.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Receive: u32 {
        /// EN: receiver on.
        const ENABLE = 1 << 1;
        /// SBP: keep damaged frames; here, oversized ones.
        const STORE_BAD = 1 << 2;
        /// UPE: every unicast address.
        const UNICAST = 1 << 3;
        /// MPE: every multicast address.
        const MULTICAST = 1 << 4;
        /// LPE: frames over 1522 bytes.
        const LONG = 1 << 5;
        /// BAM: broadcast.
        const BROADCAST = 1 << 15;
        /// BSIZE: buffer size, two bits.
        const SIZE = 3 << 16;
        /// VFE: VLAN filter.
        const VLAN_FILTER = 1 << 18;
        /// BSEX: BSIZE counts 16 times as much.
        const SIZE_EXTENSION = 1 << 25;
        /// SECRC: leave the CRC out.
        const STRIP_CRC = 1 << 26;
    }

    /// TCTL, section 13.4.33.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Transmit: u32 {
        /// EN: transmitter on.
        const ENABLE = 1 << 1;
    }

    /// ICR, ICS, IMS and IMC, section 13.4.17.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Cause: u32 {
        /// TXDW: a descriptor was written back.
        const SENT = 1 << 0;
        /// TXQE: the transmit ring is empty.
        const EMPTY = 1 << 1;
        /// LSC: the link changed.
        const LINK = 1 << 2;
        /// RXDMT0: few receive descriptors left.
        const THRESHOLD = 1 << 4;
        /// RXO: a frame found no descriptor.
        const OVERRUN = 1 << 6;
        /// RXT0: a frame was received.
        const RECEIVED = 1 << 7;
        /// MDAC: an MDIC access is done.
        const MDIO = 1 << 9;
    }
}

/// What reading a register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nothing answers: 0.
    Nothing,
    /// The word.
    Word,
    /// The word, which becomes 0.
    Clears,
    /// The upper word of a pair; both become 0.
    ClearsPair,
    /// ICR: the causes, which are forgotten.
    Causes,
    /// EECD: the EEPROM's pins.
    EepromPins,
    /// EERD: a word of the EEPROM.
    EepromWord,
}

/// What writing a register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Nothing.
    Nothing,
    /// These bits are kept.
    Word(u32),
    /// More than keeping it.
    Effect,
}

/// What reading the register at a multiple of four does.
pub const fn reading(offset: u32) -> Reading {
    use Reading::{Causes, Clears, ClearsPair, EepromPins, EepromWord, Nothing, Word};
    match offset {
        reg::ICR => Causes,
        reg::EECD => EepromPins,
        reg::EERD => EepromWord,
        reg::TOTH | reg::TORH | reg::GOTCH | reg::GORCH => ClearsPair,
        // PRC64-PRC1522, GPRC, BPRC, MPRC, GPTC; PTC64-PTC1522, MPTC, BPTC, TSCTC.
        reg::PRC64..=reg::GPTC | reg::PTC64..=reg::TSCTC => Clears,
        reg::TPT | reg::TPR | reg::RUC | reg::ROC => Clears,
        reg::CTRL | reg::STATUS | reg::MDIC | reg::VET | reg::ITR | reg::ICS | reg::IMS => Word,
        reg::RCTL | reg::TCTL | reg::AIT | reg::LEDCTL | reg::PBA => Word,
        reg::RDFH | reg::RDFT | reg::RDFHS | reg::RDFTS | reg::RDFPC => Word,
        reg::TDFH | reg::TDFT | reg::TDFHS | reg::TDFTS | reg::TDFPC => Word,
        reg::RDBAL | reg::RDBAH | reg::RDLEN | reg::RDH | reg::RDT | reg::RDTR | reg::RADV => Word,
        reg::TDBAL | reg::TDBAH | reg::TDLEN | reg::TDH | reg::TDT | reg::TXDCTL | reg::TADV => Word,
        // Errors and collisions, then flow control; holes between.
        reg::CRCERRS..=reg::LATECOL | reg::COLC | reg::DC..=reg::CEXTERR => Word,
        reg::RLEC | reg::XONRXC..=reg::FCRUC => Word,
        reg::GORCL | reg::GOTCL | reg::TORL | reg::TOTL | reg::RNBC | reg::RFC | reg::TSCTFC => Word,
        reg::RJC..=reg::MGTPTC => Word,
        _ => match table(offset) {
            Some(_) => Word,
            None if matches!(offset, reg::WUC | reg::WUFC | reg::WUS | reg::MANC | reg::IPAV | reg::SWSM) => {
                Word
            }
            None => Nothing,
        },
    }
}

/// What writing the register at a multiple of four does.
pub const fn writing(offset: u32) -> Writing {
    use Writing::{Effect, Nothing, Word};
    match offset {
        reg::CTRL | reg::EECD | reg::MDIC | reg::ICR | reg::ICS | reg::IMS | reg::IMC => Effect,
        reg::RCTL | reg::TCTL | reg::TDT => Effect,
        reg::TDLEN | reg::RDLEN => Word(0xf_ff80),
        reg::TDH | reg::RDH | reg::RDT | reg::RDTR | reg::RADV | reg::TADV | reg::ITR | reg::AIT => {
            Word(0xffff)
        }
        reg::TDFH | reg::TDFT => Word(0x7ff),
        reg::TDFHS | reg::TDFTS | reg::TDFPC => Word(0x1fff),
        reg::RDFH | reg::RDFT | reg::RDFHS | reg::RDFTS | reg::RDFPC => Word(0x1fff),
        reg::PBA | reg::EERD | reg::SWSM | reg::WUFC | reg::WUC | reg::WUS | reg::IPAV => Word(u32::MAX),
        reg::TDBAL | reg::TDBAH | reg::RDBAL | reg::RDBAH => Word(u32::MAX),
        reg::TXDCTL | reg::LEDCTL | reg::VET | reg::FCRUC => Word(u32::MAX),
        _ => match table(offset) {
            Some(bits) => Word(bits),
            None => Nothing,
        },
    }
}

/// Bits that an entry of a table keeps; `None` if the offset is in no table.
const fn table(offset: u32) -> Option<u32> {
    Some(match offset {
        0x5f00..0x5f1c => 0x7ff,                       // FFLT
        0x9000..0x93fc => 0xf,                         // FFMT
        0x5200..0x5400 | 0x5600..0x5800 => u32::MAX,   // MTA, VFTA
        0x5400..0x5480 | 0x5a00..0x5a80 => u32::MAX,   // RAL and RAH, WUPM
        0x5840..0x585c | 0x5880..0x5890 => u32::MAX,   // IP4AT, IP6AT
        0x9800..0x9bfc | 0x1_0000..WINDOW => u32::MAX, // FFVT, PBM
        _ => return None,
    })
}

/// The register file, 128 KiB: words by offset, without any effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    words: Box<[u32; WORDS]>,
}

const WORDS: usize = WINDOW as usize / 4;

impl Registers {
    /// All zero. Allocates.
    pub(super) fn new() -> Self {
        let words = vec![0; WORDS].into_boxed_slice().try_into();
        Self { words: words.unwrap_or_else(|_| unreachable!("it has as many")) }
    }

    /// All zero again.
    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The register that the byte at `offset` belongs to.
    pub fn get(&self, offset: u32) -> u32 {
        self.words.get(index(offset)).copied().unwrap_or(0)
    }

    /// Changes it, and nothing else.
    pub fn set(&mut self, offset: u32, value: u32) {
        if let Some(word) = self.words.get_mut(index(offset)) {
            *word = value;
        }
    }

    /// RCTL.
    pub fn receive(&self) -> Receive {
        Receive::from_bits_retain(self.get(reg::RCTL))
    }

    /// TCTL.EN.
    pub fn transmitter_on(&self) -> bool {
        Transmit::from_bits_retain(self.get(reg::TCTL)).contains(Transmit::ENABLE)
    }

    /// CTRL.VME.
    pub fn vlan(&self) -> bool {
        Control::from_bits_retain(self.get(reg::CTRL)).contains(Control::VLAN)
    }

    /// STATUS.LU.
    pub fn link_up(&self) -> bool {
        Status::from_bits_retain(self.get(reg::STATUS)).contains(Status::LINK_UP)
    }

    /// Bus address of the receive ring. Bits 0-3 do not count.
    pub fn receive_ring(&self) -> u64 {
        u64::from(self.get(reg::RDBAH)) << 32 | u64::from(self.get(reg::RDBAL) & !0xf)
    }

    /// Bus address of the transmit ring. Bits 0-3 do not count.
    pub fn transmit_ring(&self) -> u64 {
        u64::from(self.get(reg::TDBAH)) << 32 | u64::from(self.get(reg::TDBAL) & !0xf)
    }

    /// Bytes of each receive buffer: 256 to 16384. An extended size of 0 is 2048, as a plain one.
    pub fn buffer_size(&self) -> u32 {
        let size = self.receive() & (Receive::SIZE | Receive::SIZE_EXTENSION);
        match size.bits() >> 16 {
            0x201 => 16384,
            0x202 => 8192,
            0x203 => 4096,
            1 => 1024,
            2 => 512,
            3 => 256,
            _ => 2048,
        }
    }

    /// Moves the register by one, unless at its end.
    pub(super) fn count(&mut self, offset: u32, more: u32) {
        self.set(offset, self.get(offset).saturating_add(more));
    }

    /// Adds to a pair of registers, lower word at `offset`, unless at its end.
    pub(super) fn count_octets(&mut self, offset: u32, octets: u64) {
        let sum = u64::from(self.get(offset)) | u64::from(self.get(offset + 4)) << 32;
        let sum = sum.saturating_add(octets);
        self.set(offset, sum as u32);
        self.set(offset + 4, (sum >> 32) as u32);
    }

    /// Counts frames in one of the six registers that sort by length; below 64 bytes in none.
    pub(super) fn count_length(&mut self, first: u32, len: u32, frames: u32) {
        let class = match len {
            0..64 => return,
            64 => 0,
            65..128 => 1,
            128..256 => 2,
            256..512 => 3,
            512..1024 => 4,
            _ => 5,
        };
        self.count(first + 4 * class, frames);
    }
}

/// Index of a word; the window repeats beyond its end.
const fn index(offset: u32) -> usize {
    ((offset % WINDOW) / 4) as usize
}
