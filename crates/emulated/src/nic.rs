//! A guest's card: one of several models behind one interface.

use alloc::boxed::Box;
use sluice_abi::config::NicModel;
use sluice_nic::dma::Dma;
use sluice_nic::ne2000::registers::Interrupt;
use sluice_nic::{Budget, E1000, Ne2000, Rtl8139, e1000, ne2000, rtl8139};

/// One BAR of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// 0-5.
    pub index: u8,
    /// Ports, not memory.
    pub io: bool,
    /// Bytes, a power of two.
    pub size: u32,
}

/// How a card looks on the PCI bus: as QEMU's do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Class: Ethernet controller.
    pub class: u32,
    /// BARs.
    pub bars: &'static [Bar],
}

const CLASS: u32 = 0x02_0000;
/// Revision of an RTL8139C, below those that are driven as an RTL8139C+.
const REVISION_C: u8 = 0x10;

/// QEMU's card decodes more ports than it has.
const PORTS_100: &[Bar] = &[Bar { index: 0, io: true, size: ne2000::PORTS as u32 * 8 }];
const PORTS_AND_MEMORY_100: &[Bar] = &[
    Bar { index: 0, io: true, size: rtl8139::PORTS as u32 },
    Bar { index: 1, io: false, size: rtl8139::PORTS as u32 },
];

const MEMORY_20000_AND_PORTS: &[Bar] = &[
    Bar { index: 0, io: false, size: e1000::registers::WINDOW },
    Bar { index: 1, io: true, size: e1000::registers::PORTS as u32 },
];

/// How the cards of a model look.
pub const fn describe(model: NicModel) -> Description {
    let rtl8139 = Description {
        vendor: rtl8139::VENDOR,
        device: rtl8139::DEVICE,
        revision: rtl8139::REVISION,
        class: CLASS,
        bars: PORTS_AND_MEMORY_100,
    };
    match model {
        NicModel::Ne2000 => {
            Description { vendor: 0x10ec, device: 0x8029, revision: 0, class: CLASS, bars: PORTS_100 }
        }
        NicModel::Rtl8139 => rtl8139,
        NicModel::Rtl8139c => Description { revision: REVISION_C, ..rtl8139 },
        NicModel::E1000 => Description {
            vendor: e1000::PCI_ID.0,
            device: e1000::PCI_ID.1,
            revision: e1000::PCI_REVISION,
            class: CLASS,
            bars: MEMORY_20000_AND_PORTS,
        },
    }
}

/// What became of a frame offered to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// While the guest owns the card.
    Stored,
    /// It does not want it.
    Unwanted,
    /// It wants it and has lost it for want of room.
    Missed,
    /// It has no room now: offer it again when the guest has written to a register.
    Later,
}

/// What a card does next about sending.
pub(crate) enum Outgoing<'a> {
    /// A frame.
    Frame(&'a [u8]),
    /// None yet: the budget is spent.
    Busy,
    /// It has nothing to send.
    Idle,
}

/// A guest's card.
#[derive(Clone, Debug)]
pub enum Nic {
    /// NE2000.
    Ne2000(Box<Ne2000>),
    /// RTL8139, in either revision.
    Rtl8139(Box<Rtl8139>),
    /// 82540EM.
    E1000(Box<E1000>),
}

/// Room for a frame going out. Longer ones are lost: they are none of Ethernet's.
pub(crate) const FRAME: usize = 2048;

/// The register that an access means: an offset in the memory BAR, or in ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// The access is to ports.
    pub io: bool,
    /// Bytes from the beginning of the BAR.
    pub offset: u32,
}

impl Register {
    fn port(self) -> u16 {
        u16::try_from(self.offset).unwrap_or(u16::MAX)
    }
}

impl Nic {
    /// A card of a model just powered on.
    pub fn new(model: NicModel, mac: [u8; 6]) -> Self {
        match model {
            NicModel::Ne2000 => Self::Ne2000(Box::new(Ne2000::new(mac))),
            NicModel::Rtl8139 | NicModel::Rtl8139c => Self::Rtl8139(Box::new(Rtl8139::new(mac))),
            NicModel::E1000 => Self::E1000(Box::new(E1000::new(mac))),
        }
    }

    /// Level of its interrupt line.
    pub fn interrupt(&self) -> bool {
        match self {
            Self::Ne2000(card) => card.interrupt(),
            Self::Rtl8139(card) => card.interrupt(),
            Self::E1000(card) => card.interrupt(),
        }
    }

    /// Tells it the time, nanoseconds from any fixed origin.
    pub fn advance(&mut self, now: u64) {
        match self {
            Self::Ne2000(_) => {}
            Self::Rtl8139(card) => card.advance(now),
            Self::E1000(card) => card.advance(now),
        }
    }

    /// A write to this register decides which causes interrupt, or takes causes away, and does nothing else: there is nothing to
    /// send, to receive or to hand over after it.
    pub(crate) fn decides_interrupts_only(&self, register: Register, width: u8) -> bool {
        match self {
            Self::Ne2000(_) => false,
            Self::Rtl8139(_) => {
                width == 2
                    && [rtl8139::registers::reg::IMR, rtl8139::registers::reg::ISR]
                        .map(u32::from)
                        .contains(&register.offset)
            }
            Self::E1000(_) => {
                let mask = [e1000::registers::reg::IMS, e1000::registers::reg::IMC];
                !register.io && width == 4 && mask.contains(&register.offset)
            }
        }
    }

    /// What a register holds whose reading does nothing, now or ever.
    pub(crate) fn peek(&self, register: Register, width: u8) -> Option<u32> {
        match self {
            Self::E1000(card) if !register.io && width == 4 && register.offset.is_multiple_of(4) => {
                card.peek(register.offset)
            }
            _ => None,
        }
    }

    /// When it wants to be told again.
    pub fn deadline(&self) -> Option<u64> {
        match self {
            Self::Ne2000(_) => None,
            Self::Rtl8139(card) => card.deadline(),
            Self::E1000(card) => card.deadline(),
        }
    }

    /// Says nothing of refused transfers from now on. Only an RTL8139 does otherwise.
    pub fn keep_quiet(&mut self) {
        if let Self::Rtl8139(card) = self {
            card.keep_quiet();
        }
    }

    /// Transfers that the owner of memory has refused.
    pub fn refused(&self) -> u64 {
        match self {
            Self::Ne2000(_) => 0,
            Self::Rtl8139(card) => card.refused(),
            Self::E1000(card) => card.refused(),
        }
    }

    /// One read of 1, 2 or 4 bytes.
    pub fn read(&mut self, register: Register, width: u8) -> u32 {
        match self {
            Self::Ne2000(card) => card.read(register.port(), width),
            Self::Rtl8139(card) => card.read(register.port(), width),
            Self::E1000(card) if register.io => card.read_port(register.port(), width),
            Self::E1000(card) => card.read(register.offset, width),
        }
    }

    /// One write of 1, 2 or 4 bytes.
    pub fn write(&mut self, register: Register, width: u8, value: u32, memory: &mut dyn Dma) {
        match self {
            Self::Ne2000(card) => card.write(register.port(), width, value),
            Self::Rtl8139(card) => card.write(register.port(), width, value, memory),
            Self::E1000(card) if register.io => card.write_port(register.port(), width, value),
            Self::E1000(card) => card.write(register.offset, width, value),
        }
    }

    /// `into` full of elements of one register.
    pub fn read_string(&mut self, register: Register, width: u8, into: &mut [u8]) {
        if let Self::Ne2000(card) = self {
            return card.read_string(register.port(), width, into);
        }
        for element in into.chunks_mut(usize::from(width).max(1)) {
            let value = self.read(register, width).to_le_bytes();
            element.iter_mut().zip(value).for_each(|(to, from)| *to = from);
        }
    }

    /// All of `from` to one register.
    pub fn write_string(&mut self, register: Register, width: u8, from: &[u8], memory: &mut dyn Dma) {
        if let Self::Ne2000(card) = self {
            return card.write_string(register.port(), width, from);
        }
        for element in from.chunks(usize::from(width).max(1)) {
            let mut value = [0; 4];
            value.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
            self.write(register, width, u32::from_le_bytes(value), memory);
        }
    }

    /// Sends on, as far as `budget` lasts. A frame may lie in `buffer` then.
    pub(crate) fn transmit<'a>(
        &'a mut self,
        memory: &mut dyn Dma,
        buffer: &'a mut [u8; FRAME],
        budget: &mut Budget,
    ) -> Outgoing<'a> {
        match self {
            Self::Ne2000(card) => match card.take_transmitted(buffer) {
                Some(len) => {
                    budget.step();
                    budget.bytes(len);
                    Outgoing::Frame(buffer.get(..len).unwrap_or(&[]))
                }
                None => Outgoing::Idle,
            },
            Self::Rtl8139(card) if !card.busy() => Outgoing::Idle,
            Self::Rtl8139(card) => card.transmit(memory, budget).map_or(Outgoing::Busy, Outgoing::Frame),
            Self::E1000(card) => match card.transmit(memory, buffer, budget) {
                e1000::Transmission::Idle => Outgoing::Idle,
                e1000::Transmission::Busy => Outgoing::Busy,
                e1000::Transmission::Frame(len) => Outgoing::Frame(buffer.get(..len).unwrap_or(&[])),
            },
        }
    }

    /// It waits for [`Self::transmit`] to be called.
    pub(crate) fn is_sending(&self) -> bool {
        match self {
            // Its frame is taken within the call that sends it.
            Self::Ne2000(_) => false,
            Self::Rtl8139(card) => card.busy(),
            Self::E1000(card) => card.transmitting(),
        }
    }

    /// Offers a frame from the switch, which is stored whole or not at all, whatever is left of `budget`; `fcs`: its check
    /// sequence, if that is known.
    pub(crate) fn offer(
        &mut self,
        frame: &[u8],
        fcs: Option<u32>,
        memory: &mut dyn Dma,
        budget: &mut Budget,
    ) -> Offer {
        if !matches!(self, Self::E1000(_)) {
            // The 82540EM says itself how many descriptors a frame took.
            budget.step();
            budget.bytes(frame.len());
        }
        match self {
            Self::Ne2000(card) => match card.receive_whole(frame) {
                ne2000::Reception::Stored => Offer::Stored,
                ne2000::Reception::Filtered | ne2000::Reception::Stopped => Offer::Unwanted,
                ne2000::Reception::Full => {
                    // It interrupts all the same: Linux takes some frames, acknowledges, and trusts that the next one makes it
                    // look again.
                    card.regs.isr |= Interrupt::RECEIVED.bits();
                    Offer::Later
                }
            },
            Self::Rtl8139(card) if !card.has_room() => Offer::Later,
            Self::Rtl8139(card) => match card.receive_with_fcs(frame, fcs, memory) {
                rtl8139::Reception::Stored => Offer::Stored,
                rtl8139::Reception::Filtered | rtl8139::Reception::Stopped => Offer::Unwanted,
                rtl8139::Reception::Full => Offer::Later,
                rtl8139::Reception::Missed => Offer::Missed,
            },
            Self::E1000(card) => match card.receive(memory, frame, budget) {
                e1000::Reception::Stored => Offer::Stored,
                e1000::Reception::Filtered | e1000::Reception::Stopped => Offer::Unwanted,
                e1000::Reception::Full => Offer::Later,
                e1000::Reception::Lost => Offer::Missed,
            },
        }
    }
}
