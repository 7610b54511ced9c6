//! The 82540EM changes hands: its registers, and what registers do not show.
//!
//! [`load`] and [`start`] bring a guest's software card into the physical one, [`stop`] brings it back, [`scrub`] leaves
//! nothing of it there. What a card keeps hidden is the two contexts that its last context descriptors set, which a
//! driver may rely on: they go in by descriptors of the monitor's own, and come out of the guest's ring, where the
//! latest of each kind still lies unless the driver has gone around since. Emulated cards also keep parts of packets, see
//! `sluice_nic`; a reset does not clear them, packets of zeros do.
//!
//! Source: Intel 8254x Software Developer's Manual (317453), 3.3 (descriptors), 13.4 (registers), 14.3-14.5
//! (initialization).

use sluice_nic::E1000;
use sluice_nic::dma::Dma;
use sluice_nic::e1000::mii;
use sluice_nic::e1000::registers::{Reading, reading, reg};
use sluice_uplink::{Card, RawDevice};

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

/// Prepares the physical card, which its driver has stopped and whose memory is the driver's: nothing of what others sent
/// stays in it, and the contexts are the guest's.
pub(super) fn load(software: &E1000, card: &mut Card<'_>) {
    scrub(card);
    send(card, &software.contexts());
}

/// Loads the rest and starts it. From here on it masters the bus for the guest.
pub(super) fn start(software: &mut E1000, card: &mut Card<'_>) {
    put(card, reg::IMC, u32::MAX);
    forget_statistics(card);
    for offset in kept() {
        put(card, offset, software.regs.get(offset));
    }
    // Nothing waits to be sent: see `Nic::can_leave`.
    put(card, reg::TDT, software.regs.get(reg::TDT));
    put(card, reg::RDT, software.regs.get(reg::RDT));
    put(card, reg::CTRL, software.regs.get(reg::CTRL));
    let _ = get(card, reg::ICR);
    put(card, reg::TCTL, software.regs.get(reg::TCTL));
    put(card, reg::RCTL, software.regs.get(reg::RCTL));
    put(card, reg::IMS, software.regs.get(reg::IMS));
    let causes = software.read(reg::ICR, 4);
    put(card, reg::ICS, causes);
}

/// Nothing is under way that the driver has begun.
pub(super) fn is_calm(raw: &mut dyn RawDevice) -> bool {
    raw.read(reg::TCTL as u16, 4) & ENABLE == 0
        || raw.read(reg::TDH as u16, 4) == raw.read(reg::TDT as u16, 4)
}

/// Stops the physical card and brings it back into the guest's software card.
pub(super) fn stop(software: &mut E1000, card: &mut Card<'_>, memory: &mut dyn Dma) {
    for (control, now) in [(reg::RCTL, 0), (reg::TCTL, 0)] {
        software.regs.set(control, get(card, control));
        put(card, control, now);
    }
    for offset in kept().chain([reg::TDT, reg::RDT, reg::CTRL, reg::IMS]) {
        software.regs.set(offset, get(card, offset));
    }
    put(card, reg::MDIC, READ_BMCR);
    software.phy[mii::BMCR] = get(card, reg::MDIC) as u16;
    let causes = get(card, reg::ICR);
    put(card, reg::IMC, u32::MAX);
    let (first, words) = STATISTICS;
    for offset in (0..words).map(|word| first + 4 * word).filter(|offset| counts(*offset)) {
        let sum = software.regs.get(offset).saturating_add(get(card, offset));
        software.regs.set(offset, sum);
    }
    recall(software, memory);
    software.write(reg::ICS, 4, causes);
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

/// Leaves nothing of a guest in the physical card, whose memory is the driver's again: the rest of a packet ends and the
/// header that segments repeat becomes zeros, then the buffer. All of it comes back to a receiver that is off.
pub(super) fn scrub(card: &mut Card<'_>) {
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
