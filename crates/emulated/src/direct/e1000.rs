//! The 82540EM changes owners: its registers, and what registers do not show.
//!
//! What a card keeps hidden is the two contexts that its last context descriptors set, which a driver may rely on: they
//! go in by descriptors of the monitor's own, and come out of the guest's ring, where the latest of each kind still lies
//! unless the driver has gone around since. Emulated cards also keep parts of packets, see `sluice_nic`; a reset does
//! not clear them, packets of zeros do.
//!
//! Source: Intel 8254x Software Developer's Manual (317453), 3.3 (descriptors), 13.4 (registers), 14.3-14.5
//! (initialization).

use super::{DirectPolicy, Loadable, lasts};
use crate::nic::Register;
use sluice_model::Model;
use sluice_nic::E1000;
use sluice_nic::dma::Dma;
use sluice_nic::e1000::mii;
use sluice_nic::e1000::registers::{Reading, Receive, reading, reg};
use sluice_uplink::Card;

/// Registers that are loaded and saved as they are, but for those with an order of their own.
const PLAIN: &[u32] = &[
    reg::VET,
    reg::ITR,
    reg::LEDCTL,
    reg::RDBAL,
    reg::RDBAH,
    reg::RDLEN,
    reg::RDH,
    reg::RDTR,
    reg::RADV,
    reg::TDBAL,
    reg::TDBAH,
    reg::TDLEN,
    reg::TDH,
    reg::TXDCTL,
    reg::TADV,
];
/// Tables: address, words.
const TABLES: &[(u32, u32)] = &[(reg::MTA, 128), (reg::RAL, 32), (reg::VFTA, 128)];
/// Statistics, most of which begin anew when they are read.
const STATISTICS: (u32, u32) = (reg::CRCERRS, 64);

/// TCTL: on.
const ENABLE: u32 = 1 << 1;
/// MDIC: read or write BMCR of the PHY at address 1.
const READ_BMCR: u32 = 1 << 27 | 1 << 21;
const WRITE_BMCR: u32 = 1 << 26 | 1 << 21;
/// MDIC: read, write.
const READ: u32 = 1 << 27;
const WRITE: u32 = 1 << 26;
/// BMCR as after reset, and with frames sent coming back.
const BMCR: u32 = 0x1140;
const LOOPBACK: u32 = 0x4000;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
/// Reads of a register that should change.
const PATIENCE: usize = 10_000;

/// Where zeros lie in the driver's memory, behind the ring, and how many.
const ZEROS: usize = 0x1000;
const MOST: usize = 0xffff;

/// Words 2 and 3 of descriptors: command and length; status, header and segment length.
mod word {
    pub const EOP: u64 = 1 << 24;
    pub const DATA: u64 = 1 << 20 | 1 << 29;
    pub const CONTEXT: u64 = 1 << 29;
    pub const TSE: u64 = 1 << 26;
}

fn get(card: &mut Card<'_>, offset: u32) -> u32 {
    card.registers.read(offset as u16, 4)
}

fn put(card: &mut Card<'_>, offset: u32, value: u32) {
    card.registers.write(offset as u16, 4, value);
}

/// The offsets that are loaded and saved.
fn kept() -> impl Iterator<Item = u32> {
    let tables = TABLES.iter().flat_map(|(first, words)| (0..*words).map(move |word| first + 4 * word));
    PLAIN.iter().copied().chain(tables)
}

impl Loadable for E1000 {
    fn can_leave(&self, _memory: &mut dyn Dma) -> bool {
        !self.transmitting() && self.regs.get(reg::TDH) == self.regs.get(reg::TDT) && !self.loops_back()
    }

    /// Nothing of what others sent stays in it, and the contexts are the guest's.
    fn load(&mut self, card: &mut Card<'_>) -> bool {
        self.scrub(card);
        send(card, &self.contexts());
        true
    }

    fn start(&mut self, card: &mut Card<'_>, _handling: DirectPolicy) {
        put(card, reg::IMC, u32::MAX);
        forget_statistics(card);
        for offset in kept() {
            put(card, offset, self.regs.get(offset));
        }
        // Nothing waits to be sent: see `can_leave`.
        put(card, reg::TDT, self.regs.get(reg::TDT));
        put(card, reg::RDT, self.regs.get(reg::RDT));
        put(card, reg::CTRL, self.regs.get(reg::CTRL));
        let _ = get(card, reg::ICR);
        put(card, reg::TCTL, self.regs.get(reg::TCTL));
        put(card, reg::RCTL, self.regs.get(reg::RCTL));
        put(card, reg::IMS, self.regs.get(reg::IMS));
        let causes = self.read(reg::ICR, 4);
        put(card, reg::ICS, causes);
    }

    fn read(&self, card: &mut Card<'_>, register: Register, width: u8) -> Option<u32> {
        let offset = u16::try_from(register.offset).ok().filter(|_| !register.io)?;
        Some(card.registers.read(offset, width))
    }

    fn write(
        &mut self,
        card: &mut Card<'_>,
        (model, page): (&'static Model, u8),
        register: Register,
        width: u8,
        value: u32,
    ) -> bool {
        let goes = match register.offset {
            offset if register.io || width != 4 || offset & 3 != 0 => false,
            // Reading the PHY does nothing to it.
            reg::MDIC => value & (READ | WRITE) == READ,
            reg::RCTL => value & Receive::ENABLE.bits() != 0,
            offset => model.find(offset, page).is_some_and(|id| !lasts(model, id)),
        };
        if goes {
            put(card, register.offset, value);
        }
        if goes && register.offset == reg::RCTL {
            self.regs.set(reg::RCTL, value);
        }
        goes
    }

    fn is_idle(&self, card: &mut Card<'_>, _memory: &mut dyn Dma) -> bool {
        get(card, reg::TCTL) & ENABLE == 0 || get(card, reg::TDH) == get(card, reg::TDT)
    }

    fn stop(&mut self, card: &mut Card<'_>, memory: &mut dyn Dma, _handling: DirectPolicy) {
        for (control, now) in [(reg::RCTL, 0), (reg::TCTL, 0)] {
            self.regs.set(control, get(card, control));
            put(card, control, now);
        }
        for offset in kept().chain([reg::TDT, reg::RDT, reg::CTRL, reg::IMS]) {
            self.regs.set(offset, get(card, offset));
        }
        put(card, reg::MDIC, READ_BMCR);
        self.phy[mii::BMCR] = get(card, reg::MDIC) as u16;
        let causes = get(card, reg::ICR);
        put(card, reg::IMC, u32::MAX);
        let (first, words) = STATISTICS;
        for offset in (0..words).map(|word| first + 4 * word).filter(|offset| counts(*offset)) {
            let sum = self.regs.get(offset).saturating_add(get(card, offset));
            self.regs.set(offset, sum);
        }
        recall(self, memory);
        self.write(reg::ICS, 4, causes);
    }

    /// The contexts lie in the guest's memory: `stop` has them.
    fn recover(&mut self, _card: &mut Card<'_>) {}

    /// The rest of a packet ends and the header that segments repeat becomes zeros, then the buffer. All of it comes
    /// back to a receiver that is off.
    fn scrub(&self, card: &mut Card<'_>) {
        put(card, reg::RCTL, 0);
        put(card, reg::MDIC, WRITE_BMCR | BMCR | LOOPBACK);
        let zeros = [0; 4096];
        (0..=MOST / zeros.len()).for_each(|piece| card.memory.write(ZEROS + piece * zeros.len(), &zeros));
        let buffer = u64::from(card.memory.bus()) + ZEROS as u64;
        let context = 255 << 40 | 1 << 48;
        send(
            card,
            &[
                descriptor(0, word::EOP),
                descriptor(0, word::CONTEXT | word::TSE | context),
                descriptor(buffer, word::DATA | word::TSE | word::EOP | 256),
                descriptor(buffer, word::EOP | MOST as u64),
            ],
        );
        send(card, &[descriptor(0, word::CONTEXT), descriptor(0, word::CONTEXT | word::TSE)]);
        put(card, reg::MDIC, WRITE_BMCR | BMCR);
        for offset in kept() {
            put(card, offset, 0);
        }
        forget_statistics(card);
    }
}

/// Whether a statistics register is one.
fn counts(offset: u32) -> bool {
    !matches!(reading(offset), Reading::Nothing)
}

/// Finds the contexts in the guest's ring: the latest of each kind.
fn recall(software: &mut E1000, memory: &mut dyn Dma) {
    let count = software.regs.get(reg::TDLEN) / DESCRIPTOR as u32;
    let (ring, head) = (software.regs.transmit_ring(), software.regs.get(reg::TDH));
    let mut missing = word::TSE | word::DATA;
    for back in 1..=count.min(4096) {
        let index = (head % count + count - back) % count;
        let mut descriptor = [0; DESCRIPTOR as usize];
        if memory.read(ring.wrapping_add(DESCRIPTOR * u64::from(index)), &mut descriptor).is_err() {
            return;
        }
        let [.., c0, c1, c2, c3, _, _, _, _] = descriptor;
        let command = u64::from(u32::from_le_bytes([c0, c1, c2, c3]));
        if command & word::DATA != word::CONTEXT {
            continue;
        }
        let kind = if command & word::TSE != 0 { word::TSE } else { word::DATA };
        if missing & kind != 0 {
            missing &= !kind;
            software.set_context(&descriptor);
        }
        if missing == 0 {
            return;
        }
    }
}

fn forget_statistics(card: &mut Card<'_>) {
    let (first, words) = STATISTICS;
    for word in 0..words {
        let _ = get(card, first + 4 * word);
    }
}

fn descriptor(low: u64, high: u64) -> [u8; DESCRIPTOR as usize] {
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// Has the card carry out descriptors from a ring in the driver's memory.
fn send(card: &mut Card<'_>, descriptors: &[[u8; DESCRIPTOR as usize]]) {
    const RING: u32 = 8;
    for (index, descriptor) in descriptors.iter().enumerate() {
        card.memory.write(index * DESCRIPTOR as usize, descriptor);
    }
    let (bus, end) = (card.memory.bus(), descriptors.len() as u32 % RING);
    let ring = [(reg::TDBAL, bus), (reg::TDBAH, 0), (reg::TDLEN, RING * DESCRIPTOR as u32)];
    for (offset, value) in ring.into_iter().chain([(reg::TDH, 0), (reg::TDT, 0), (reg::TCTL, ENABLE)]) {
        put(card, offset, value);
    }
    put(card, reg::TDT, end);
    let _ = (0..PATIENCE).any(|_| get(card, reg::TDH) == end);
    put(card, reg::TCTL, 0);
}
