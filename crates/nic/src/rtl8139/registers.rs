//! Registers of the RTL8139C+: where they are, names of their bits, and a register file.
//!
//! Sources: RTL8139C(L) data sheet 1.4, section 5 (registers 00h-7Fh) and section 6 (EEPROM contents, CONFIG);
//! RTL8139C+(L) data sheet 1.6, section 5 (registers 80h-FFh).

bitflags::bitflags! {
    /// CR, command register (section 5.7).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Command: u8 {
        /// RST: software reset; reads 1 until done.
        const RESET = 0x10;
        /// RE: receiver on.
        const RECEIVE = 0x08;
        /// TE: transmitter on.
        const TRANSMIT = 0x04;
        /// BUFE: nothing unread in the receive ring (read only).
        const EMPTY = 0x01;
    }

    /// ISR and IMR, interrupt status and mask (sections 5.8, 5.9). Status bits are cleared by writing 1.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Interrupt: u16 {
        /// ROK: a frame was received.
        const RECEIVED = 0x0001;
        /// RER: a damaged frame.
        const RECEIVE_ERROR = 0x0002;
        /// TOK: sent.
        const SENT = 0x0004;
        /// TER: a transmission failed.
        const SEND_ERROR = 0x0008;
        /// RXOVW; in C+ mode RDU: no room, no descriptor.
        const OVERFLOW = 0x0010;
        /// PUN/LINKCHG: CAPR written on an empty ring, or the link changed.
        const UNDERRUN_OR_LINK = 0x0020;
        /// FOVW: the card's own FIFO is full.
        const FIFO_OVERFLOW = 0x0040;
        /// LenChg: the cable's length changed.
        const LENGTH = 0x2000;
        /// TimeOut: TCTR reached TimerInt.
        const TIMER = 0x4000;
        /// SERR: error on the PCI bus.
        const BUS_ERROR = 0x8000;
    }

    /// TSD, transmit status of a descriptor in C mode (section 5.5). The low 13 bits are the frame's length.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TransmitStatus: u32 {
        /// OWN: the card has fetched the frame; the driver may write again.
        const OWN = 0x2000;
        /// TUN: memory did not deliver in time.
        const UNDERRUN = 0x4000;
        /// TOK: sent.
        const SENT = 0x8000;
        /// TABT: given up.
        const ABORTED = 0x4000_0000;
    }

    /// RCR, receive configuration (section 5.11).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Receive: u32 {
        /// AAP: accept every address.
        const ALL = 0x01;
        /// APM: accept the station address.
        const STATION = 0x02;
        /// AM: accept multicast that passes the hash filter.
        const MULTICAST = 0x04;
        /// AB: accept broadcast.
        const BROADCAST = 0x08;
        /// AR: accept runts. None reach this card: short frames are padded.
        const RUNTS = 0x10;
        /// AER: accept damaged frames. None reach this card.
        const ERRORS = 0x20;
        /// WRAP: let a frame run over the end of a ring of less than 64 KiB.
        const WRAP = 0x80;
        /// RBLEN: 8, 16, 32 or 64 KiB of ring.
        const RING = 0x1800;
    }

    /// CPCR, C+ command register.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CplusCommand: u16 {
        /// Transmit by descriptor rings.
        const TRANSMIT = 0x0001;
        /// Receive by descriptor rings.
        const RECEIVE = 0x0002;
        /// RxChkSum: verify checksums. Without effect here.
        const CHECKSUM = 0x0020;
        /// RxVLAN: take VLAN tags out of frames.
        const VLAN = 0x0040;
    }
}

/// TCR bits 18-17, both set: frames go to the receiver instead of the wire.
pub const TCR_LOOPBACK: u32 = 0x0006_0000;
/// TCR bits that say which chip it is: an RTL8139C+.
pub const TCR_VERSION: u32 = 0x7480_0000;
/// TPPoll: look at the normal priority ring.
pub const POLL_NORMAL: u8 = 0x40;
/// DTCCR: dump the tally counters; 0 again when done.
pub const DUMP: u32 = 0x8;
/// BMSR bit 2: link up.
const BMSR_LINK: u16 = 0x0004;
/// Bytes of the tally counters in memory.
pub const TALLY_LEN: usize = 64;

/// Tally counters (RTL8139C+ data sheet, DTCCR).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames sent in C+ mode.
    pub sent: u64,
    /// Frames received in C+ mode.
    pub received: u64,
    /// Frames rejected by the filter, or missed.
    pub receive_errors: u32,
    /// Frames missed for want of a descriptor.
    pub missed: u16,
    /// Frames to the station address.
    pub station: u64,
    /// Broadcasts.
    pub broadcasts: u64,
    /// Multicasts.
    pub multicasts: u32,
}

impl Tally {
    /// As they lie in memory. Transmission never fails here, so the other counters are 0.
    pub fn bytes(&self) -> [u8; TALLY_LEN] {
        let mut all = [0; TALLY_LEN];
        let mut put = |at: usize, bytes: &[u8]| {
            all.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        put(0, &self.sent.to_le_bytes());
        put(8, &self.received.to_le_bytes());
        put(24, &self.receive_errors.to_le_bytes());
        put(28, &self.missed.to_le_bytes());
        put(40, &self.station.to_le_bytes());
        put(48, &self.broadcasts.to_le_bytes());
        put(56, &self.multicasts.to_le_bytes());
        all
    }
}

/// All registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// IDR: station address as the driver wrote it; the filter compares with it.
    pub idr: [u8; 6],
    /// MAR: multicast filter.
    pub mar: [u8; 8],
    /// TSD; once CPCR was written, the first two are DTCCR.
    pub tsd: [u32; 4],
    /// TSAD: where frames lie. In C+ mode the first two are TNPDS and the others THPDS.
    pub tsad: [u32; 4],
    /// RBSTART: the receive ring of C mode.
    pub rbstart: u32,
    /// CR, without BUFE.
    pub cr: u8,
    /// Where the driver reads next in the ring: CAPR + 16.
    pub read_at: u32,
    /// CBR: where the card writes next in the ring.
    pub write_at: u32,
    /// RBLEN as it was when RCR was last written: the ring has 8 KiB << this.
    pub ring_shift: u8,
    /// Interrupt mask.
    pub imr: u16,
    /// Interrupt status.
    pub isr: u16,
    /// Transmit configuration.
    pub tcr: u32,
    /// Receive configuration.
    pub rcr: u32,
    /// MPC: frames missed.
    pub mpc: u32,
    /// 9346CR, without the data line from the EEPROM.
    pub cr9346: u8,
    /// CONFIG0.
    pub config0: u8,
    /// CONFIG1.
    pub config1: u8,
    /// CONFIG3.
    pub config3: u8,
    /// CONFIG4.
    pub config4: u8,
    /// CONFIG5.
    pub config5: u8,
    /// The clock was not stopped by HLTCLK.
    pub running: bool,
    /// MULINT.
    pub mulint: u16,
    /// BMCR: basic mode control of the PHY.
    pub bmcr: u16,
    /// BMSR: basic mode status; bit 2 is the link.
    pub bmsr: u16,
    /// ANAR: what is advertised.
    pub anar: u16,
    /// ANLPAR: what the partner advertises.
    pub anlpar: u16,
    /// ANER.
    pub aner: u16,
    /// CSCR.
    pub cscr: u16,
    /// CPCR.
    pub cpcr: u16,
    /// CPCR was written since reset: TSD is DTCCR.
    pub cplus: bool,
    /// MTPS.
    pub mtps: u8,
    /// RDSAR: the C+ receive ring.
    pub rdsar: u64,
    /// TSD that is sent next in C mode.
    pub next_tsd: u8,
    /// Descriptor of the C+ transmit ring that comes next.
    pub next_send: u32,
    /// Descriptor of the C+ receive ring that comes next.
    pub next_receive: u32,
    /// TimerInt: at which count the timer interrupts; 0 never.
    pub timer_int: u32,
    /// When TCTR was 0, on the owner's clock.
    pub timer_base: u64,
    /// When the timer interrupts next, on the owner's clock.
    pub timer_due: Option<u64>,
    /// Tally counters.
    pub tally: Tally,
}

impl Registers {
    /// What every kind of reset does; the timer is to be armed anew after it.
    pub(super) const fn reset(&mut self, mac: [u8; 6]) {
        self.idr = mac;
        self.isr = 0;
        self.imr = 0;
        self.tsd = [TransmitStatus::OWN.bits(); 4];
        self.next_tsd = 0;
        self.next_send = 0;
        self.next_receive = 0;
        self.rdsar = 0;
        self.rbstart = 0;
        self.empty_ring(0);
        self.tcr = TCR_VERSION;
        self.running = true;
        self.cr = Command::RESET.bits();
        self.config0 = 0;
        // Ports and memory both mapped.
        self.config1 = 0x0c;
        // Capable of fast back-to-back cycles.
        self.config3 = 0x01;
        self.config5 = 0;
        self.cpcr = 0;
        self.cplus = false;
        // Autonegotiation on.
        self.bmcr = 0x1000;
        self.reset_phy();
        self.timer_int = 0;
        self.timer_base = 0;
        self.tally = Tally {
            sent: 0,
            received: 0,
            receive_errors: 0,
            missed: 0,
            station: 0,
            broadcasts: 0,
            multicasts: 0,
        };
    }

    /// What BMCR bit 15 does: all of 10 and 100 Mb/s on both sides, negotiated; the link stays as it is.
    pub(super) const fn reset_phy(&mut self) {
        self.bmsr = 0x7829 | self.bmsr & BMSR_LINK;
        self.anar = 0x05e1;
        self.anlpar = 0x05e1;
        self.aner = 0x0001;
        self.cscr = 0x0340;
    }

    /// Forgets what is in the receive ring and sets its length.
    pub(super) const fn empty_ring(&mut self, shift: u8) {
        self.ring_shift = shift;
        self.read_at = 0;
        self.write_at = 0;
    }

    /// Bytes of the receive ring of C mode, a power of two.
    pub const fn ring_len(&self) -> u32 {
        8192 << (self.ring_shift & 3)
    }

    /// Bytes of the ring that the driver has not read.
    pub const fn unread(&self) -> u32 {
        self.write_at.wrapping_sub(self.read_at) & (self.ring_len() - 1)
    }

    /// Bytes of the ring that the card may write; 0 if the ring is empty.
    pub const fn available(&self) -> u32 {
        self.read_at.wrapping_sub(self.write_at) & (self.ring_len() - 1)
    }

    /// A frame may run over the end of the ring.
    pub const fn overruns(&self) -> bool {
        self.rcr & Receive::WRAP.bits() != 0 && self.ring_len() < 0x1_0000
    }

    /// RE is set.
    pub const fn receiving(&self) -> bool {
        self.cr & Command::RECEIVE.bits() != 0
    }

    /// TE is set.
    pub const fn transmitting(&self) -> bool {
        self.cr & Command::TRANSMIT.bits() != 0
    }

    /// The receiver uses descriptors.
    pub const fn receives_by_descriptor(&self) -> bool {
        self.cpcr & CplusCommand::RECEIVE.bits() != 0
    }

    /// The transmitter uses descriptors.
    pub const fn sends_by_descriptor(&self) -> bool {
        self.cpcr & CplusCommand::TRANSMIT.bits() != 0
    }

    /// Frames go to the receiver instead of the wire.
    pub const fn loopback(&self) -> bool {
        self.tcr & TCR_LOOPBACK == TCR_LOOPBACK
    }

    /// TNPDS: the C+ transmit ring.
    pub const fn tnpds(&self) -> u64 {
        self.tsad[0] as u64 | (self.tsad[1] as u64) << 32
    }

    /// Link up.
    pub const fn link(&self) -> bool {
        self.bmsr & BMSR_LINK != 0
    }

    pub(super) const fn set_link(&mut self, up: bool) {
        self.bmsr = if up { self.bmsr | BMSR_LINK } else { self.bmsr & !BMSR_LINK };
    }

    /// TSAD register at 60h: four bits of each transmit status, gathered.
    pub(super) fn transmit_summary(&self) -> u16 {
        let mut summary = 0;
        for (descriptor, status) in (0u32..).zip(self.tsd) {
            let status = TransmitStatus::from_bits_retain(status);
            for (bit, flag) in [
                (0, TransmitStatus::OWN),
                (4, TransmitStatus::ABORTED),
                (8, TransmitStatus::UNDERRUN),
                (12, TransmitStatus::SENT),
            ] {
                summary |= u16::from(status.contains(flag)) << (bit + descriptor);
            }
        }
        summary
    }
}

/// Register offsets.
pub mod reg {
    /// IDR0-5.
    pub const IDR: u16 = 0x00;
    /// MAR0-7.
    pub const MAR: u16 = 0x08;
    /// TSD0-3 (long words); DTCCR in C+ mode.
    pub const TSD: u16 = 0x10;
    /// TSAD0-3 (long words); TNPDS and THPDS in C+ mode.
    pub const TSAD: u16 = 0x20;
    /// RBSTART (long word).
    pub const RBSTART: u16 = 0x30;
    /// CR (byte).
    pub const CR: u16 = 0x37;
    /// CAPR (word).
    pub const CAPR: u16 = 0x38;
    /// CBR (word).
    pub const CBR: u16 = 0x3a;
    /// IMR (word).
    pub const IMR: u16 = 0x3c;
    /// ISR (word).
    pub const ISR: u16 = 0x3e;
    /// TCR (long word; its first byte alone can be written, its last alone read).
    pub const TCR: u16 = 0x40;
    /// RCR (long word).
    pub const RCR: u16 = 0x44;
    /// TCTR (long word).
    pub const TCTR: u16 = 0x48;
    /// MPC (long word).
    pub const MPC: u16 = 0x4c;
    /// 9346CR (byte).
    pub const CR9346: u16 = 0x50;
    /// CONFIG0 (byte).
    pub const CONFIG0: u16 = 0x51;
    /// CONFIG1 (byte).
    pub const CONFIG1: u16 = 0x52;
    /// TimerInt (long word).
    pub const TIMER_INT: u16 = 0x54;
    /// MSR (byte).
    pub const MSR: u16 = 0x58;
    /// CONFIG3 (byte).
    pub const CONFIG3: u16 = 0x59;
    /// CONFIG4 (byte).
    pub const CONFIG4: u16 = 0x5a;
    /// HLTCLK (byte).
    pub const HLTCLK: u16 = 0x5b;
    /// MULINT (word).
    pub const MULINT: u16 = 0x5c;
    /// RERID (byte).
    pub const RERID: u16 = 0x5e;
    /// TSAD of the data sheet's name, the summary of all TSD (word).
    pub const SUMMARY: u16 = 0x60;
    /// BMCR (word).
    pub const BMCR: u16 = 0x62;
    /// BMSR (word).
    pub const BMSR: u16 = 0x64;
    /// ANAR (word).
    pub const ANAR: u16 = 0x66;
    /// ANLPAR (word).
    pub const ANLPAR: u16 = 0x68;
    /// ANER (word).
    pub const ANER: u16 = 0x6a;
    /// CSCR (word).
    pub const CSCR: u16 = 0x74;
    /// CONFIG5 (byte).
    pub const CONFIG5: u16 = 0xd8;
    /// TPPoll (byte).
    pub const TPPOLL: u16 = 0xd9;
    /// CPCR (word).
    pub const CPCR: u16 = 0xe0;
    /// Interrupt mitigation (word).
    pub const MITIGATE: u16 = 0xe2;
    /// RDSAR, low half (long word).
    pub const RDSAR: u16 = 0xe4;
    /// RDSAR, high half (long word).
    pub const RDSAR_HIGH: u16 = 0xe8;
    /// MTPS (byte).
    pub const MTPS: u16 = 0xec;
}
