//! The software RTL8139, in C mode and in C+ mode, over memory that refuses some of it.

use crate::Input;
use sluice_nic::dma::{Dma, DmaError, VecMemory};
use sluice_nic::offload::MOST_SEGMENTS;
use sluice_nic::rtl8139::registers::reg;
use sluice_nic::rtl8139::{MAX_SENT, Reception};
use sluice_nic::{Budget, HEAD, Packets, Rtl8139};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

/// Memory that counts what it is asked for, and lets every so many accesses fail.
struct Memory {
    inner: VecMemory,
    moved: usize,
    accesses: u32,
    failing: u32,
}

impl Memory {
    fn fails(&mut self, len: usize) -> Result<(), DmaError> {
        self.moved += len;
        self.accesses += 1;
        if self.failing != 0 && self.accesses.is_multiple_of(self.failing) { Err(DmaError) } else { Ok(()) }
    }
}

impl Dma for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.fails(buffer.len())?;
        self.inner.read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.fails(bytes.len())?;
        self.inner.write(address, bytes)
    }
}

/// What one call may move: 80 steps of a descriptor and 64 KiB of frame, out and maybe back in.
const MOST: usize = 80 * 2 * 0x1_1000;

/// Registers that make the card move memory, with their width.
const DOORS: [(u16, u8); 16] = [
    (reg::CR, 1),
    (reg::CPCR, 2),
    (reg::RCR, 4),
    (reg::TCR, 4),
    (reg::RBSTART, 4),
    (reg::TSAD, 4),
    (reg::TSAD + 4, 4),
    (reg::RDSAR, 4),
    (reg::RDSAR_HIGH, 4),
    (reg::TSD, 4),
    (reg::TSD + 4, 4),
    (reg::TPPOLL, 1),
    (reg::CAPR, 2),
    (reg::CR9346, 1),
    (reg::TIMER_INT, 4),
    (reg::ISR, 2),
];

/// A card without manners on both sides. Asserts that the work of each call is bounded, that frames sent fit, that
/// reads change nothing, and that whatever was done, a reset and the usual start make the card receive and send.
pub fn rtl8139(data: &[u8]) {
    let mut input = Input::new(data);
    let mut card = Rtl8139::new(MAC);
    let mut memory = Memory { inner: VecMemory::new(0, 0x4000), moved: 0, accesses: 0, failing: 0 };
    let mut now = 0u64;
    while !input.is_empty() {
        memory.moved = 0;
        match input.u8() % 12 {
            0 | 1 => {
                let (offset, width) = (u16::from(input.u8()), input.choose(&[1, 2, 4, 4, 3, 0, 8]));
                card.write(offset, width, input.u32(), &mut memory);
            }
            2 | 3 => {
                let (offset, width) = input.choose(&DOORS);
                let value = match input.u8() % 3 {
                    0 => u32::from(input.u16()) & 0x3ff0,
                    1 => input.choose(&[0x0c, 0x43, 0x40, 0x88, 0x6_0000, 0x188f, 0, 0xffff_ffff]),
                    _ => input.u32(),
                };
                card.write(offset, width, value, &mut memory);
            }
            4 => {
                let (offset, width) = (u16::from(input.u8()) + 4, input.choose(&[1, 2, 4, 3, 0, 8]));
                assert_eq!(card.read(offset, width), card.read(offset, width));
            }
            5 => {
                let budget = &mut Budget::default();
                let Some(whole) = card.whole(&mut memory, budget) else { continue };
                assert!(
                    whole.frames() <= MOST_SEGMENTS
                        && whole.offload().frames(whole.len()) == Some(whole.frames())
                );
                let (mut bytes, accept) = (vec![0; whole.len()], input.flag());
                let before = card.clone();
                if card.gather(&mut memory, &whole, &mut bytes, budget, &mut |_| accept) {
                    assert!(accept && card == before);
                    card.complete(&mut memory, &whole, &[0; HEAD], budget);
                }
            }
            6 => {
                if let Some(frame) = card.transmit(&mut memory, &mut Budget::default()) {
                    assert!(!frame.is_empty() && frame.len() <= MAX_SENT);
                }
            }
            7 => {
                let mut frame = vec![0x5a; usize::from(input.u16() % 2000)];
                frame.iter_mut().zip(input.bytes(6)).for_each(|(to, from)| *to = *from);
                let _ = (card.has_room(), card.receive(&frame, &mut memory));
            }
            8 => {
                // A descriptor, or the start of a frame.
                let at = u64::from(input.u16() & 0x3ff0);
                let mut words = [input.u32(), input.u32(), u32::from(input.u16()), 0];
                words[0] |= if input.flag() { 0x8000_0000 } else { 0 };
                for (index, word) in (0..).zip(words) {
                    let _ = memory.inner.write(at + 4 * index, &word.to_le_bytes());
                }
            }
            9 => {
                let at = u64::from(input.u16() & 0x3fff);
                let mut frame = [8, 0, 0x45, 0, 0, 100, 0, 0, 0, 0, 64, 6].to_vec();
                frame.extend(input.bytes(24));
                let _ = memory.inner.write(at, &frame);
            }
            10 => {
                now = now.wrapping_add(u64::from(input.u32()) << (input.u8() % 33));
                card.advance(now);
            }
            _ => match input.u8() % 3 {
                0 => card.set_link(input.flag()),
                1 => memory.failing = u32::from(input.u8() % 8),
                _ => card.reset(),
            },
        }
        assert!(memory.moved <= MOST, "{} bytes moved by one call", memory.moved);
        let _ = (card.interrupt(), card.deadline(), card.busy(), card.refused());
    }
    works_after_all(&mut card, &mut memory);
}

fn works_after_all(card: &mut Rtl8139, memory: &mut Memory) {
    memory.failing = 0;
    card.set_link(true);
    for (offset, width, value) in [
        (reg::CR, 1, 0x10),
        (reg::CR, 1, 0x0c),
        (reg::RCR, 4, 0x0f),
        (reg::TCR, 4, 0),
        (reg::TSAD, 4, 0x100),
        (reg::TSD, 4, 60),
    ] {
        card.write(offset, width, value, memory);
    }
    assert_eq!(card.transmit(memory, &mut Budget::default()).map(<[u8]>::len), Some(60));
    assert_eq!(card.receive(&[0x5a; 60], memory), Reception::Stored);
    assert_eq!(card.read(reg::CBR, 2), 68);
}
