//! The software e1000: accesses, frames, time and memory that is or is not there.

use crate::Input;
use sluice_nic::dma::{Dma, DmaError, Recorded, VecMemory};
use sluice_nic::e1000::registers::{WINDOW, reg};
use sluice_nic::e1000::{MAX_OUTGOING, Reception, Transmission};
use sluice_nic::{Budget, E1000};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
/// Transfers and bytes that one call may take, a frame sent to itself included.
const TRANSFERS: usize = 4000;
const BYTES: usize = 1 << 20;

/// Memory that refuses some accesses.
struct Patchy {
    memory: VecMemory,
    /// Refuses accesses whose count from here on has this bit.
    refuses: u32,
    count: u32,
}

impl Patchy {
    fn refused(&mut self) -> Result<(), DmaError> {
        self.count = self.count.wrapping_add(1);
        if self.count & self.refuses == 0 { Ok(()) } else { Err(DmaError) }
    }
}

impl Dma for Patchy {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.refused()?;
        self.memory.read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.refused()?;
        self.memory.write(address, bytes)
    }
}

/// Registers that start something.
const BELLS: [u32; 16] = [
    reg::TDT,
    reg::TDT,
    reg::TDH,
    reg::TDLEN,
    reg::TDBAL,
    reg::TCTL,
    reg::RDT,
    reg::RDH,
    reg::RDLEN,
    reg::RDBAL,
    reg::RCTL,
    reg::CTRL,
    reg::MDIC,
    reg::EECD,
    reg::ICS,
    reg::IMS,
];

/// The card. Asserts that a call does a bounded amount of work, that a frame fits the buffer, that what is due lies ahead,
/// that each refusal is counted, and that after a reset the card sends and receives.
pub fn e1000(data: &[u8]) {
    let mut input = Input::new(data);
    let mut card = E1000::new(MAC);
    let contents = VecMemory::new(0, 0x1_0000);
    let mut memory = Recorded::new(Patchy { memory: contents, refuses: 0, count: 0 });
    let mut buffer = vec![0; MAX_OUTGOING];
    let (mut now, mut refused) = (0u64, 0);
    if input.flag() {
        start(&mut card);
        now = 2_000_000_000;
        card.advance(now);
    }
    while !input.is_empty() {
        let (what, width) = (input.u8(), input.choose(&[4, 4, 4, 1, 2, 0, 3, 8]));
        let offset = if what & 0x80 == 0 { input.choose(&BELLS) } else { input.u32() % (WINDOW + 16) };
        memory.log.clear();
        match what % 16 {
            0..=4 => {
                let value = if what & 0x40 == 0 { u32::from(input.u16()) } else { input.u32() };
                card.write(offset, width, value);
            }
            5 => drop(card.read(offset, width)),
            6..=8 => {
                // A descriptor, somewhere in the first page.
                let at = u64::from(input.u8()) * 16;
                let bytes = input.bytes(16);
                let _ = memory.memory.memory.write(at, bytes);
            }
            9 => {
                now += u64::from(input.u32());
                card.advance(now);
                assert!(card.deadline().is_none_or(|deadline| deadline > now));
            }
            10 => card.set_cable(what & 0x40 != 0),
            11 => memory.memory.refuses = u32::from(input.u8()),
            12 | 13 => {
                let mut frame = vec![0x5a; usize::from(input.u16())];
                frame.iter_mut().zip(MAC).for_each(|(to, from)| *to = from);
                let _ = card.receive(&mut memory, &frame, &mut Budget::default());
            }
            _ => {
                if let Transmission::Frame(len) =
                    card.transmit(&mut memory, &mut buffer, &mut Budget::default())
                {
                    assert!(len > 0 && len <= buffer.len());
                }
            }
        }
        let bytes: usize = memory.log.iter().map(|transfer| transfer.len).sum();
        assert!(
            memory.log.len() <= TRANSFERS && bytes <= BYTES,
            "{} transfers, {bytes} bytes",
            memory.log.len()
        );
        refused += memory.log.iter().filter(|transfer| transfer.refused).count() as u64;
        assert_eq!(card.refused(), refused);
        let _ = (card.interrupt(), card.can_receive(), card.transmitting());
    }
    card.set_cable(true);
    card.power_on();
    memory.memory.refuses = 0;
    start(&mut card);
    card.advance(now + 2_000_000_000);
    let mut frame = vec![0x5a; 64];
    frame[..6].copy_from_slice(&MAC);
    memory.write(0x1000, &0x4000u64.to_le_bytes()).unwrap();
    assert_eq!(card.receive(&mut memory, &frame, &mut Budget::default()), Reception::Stored);
    assert_eq!(memory.memory.memory.at(0x4000, 64), Some(&frame[..]));
    memory.write(0, &0x4000u64.to_le_bytes()).unwrap();
    memory.write(8, &(1u64 << 24 | 64).to_le_bytes()).unwrap();
    card.write(reg::TDT, 4, 1);
    assert_eq!(card.transmit(&mut memory, &mut buffer, &mut Budget::default()), Transmission::Frame(64));
    assert_eq!(buffer[..64], frame[..]);
}

/// Register writes with which a driver starts the card: rings in the first two pages.
fn start(card: &mut E1000) {
    for (offset, value) in [
        (reg::TDBAL, 0),
        (reg::TDLEN, 256),
        (reg::TCTL, 2),
        (reg::RDBAL, 0x1000),
        (reg::RDLEN, 256),
        (reg::RDT, 15),
        (reg::RCTL, 0x8002),
        (reg::IMS, 0x9f),
    ] {
        card.write(offset, 4, value);
    }
}
