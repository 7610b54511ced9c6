//! Random accesses, and where the card goes with its hands.

use super::*;
use crate::dma::DmaError;
use proptest::prelude::*;

/// Where the rings lie, out of reach of the addresses in descriptors.
const RINGS: [u64; 2] = [1 << 32, 2 << 32];

/// Memory that asserts that the card stays within what registers and descriptors name.
struct Watched {
    /// The rings, then what buffers may lie in.
    parts: [VecMemory; 3],
    /// What the last transmit descriptor lets be read, the last receive descriptor written.
    readable: (u64, u64),
    writable: (u64, u64),
    /// The last descriptor of each ring.
    last: [u64; 2],
    bytes: usize,
    transfers: usize,
}

impl Watched {
    fn part(&mut self, address: u64) -> &mut VecMemory {
        let [first, second, rest] = &mut self.parts;
        match address >> 32 {
            1 => first,
            2 => second,
            _ => rest,
        }
    }

    /// Which ring's descriptor this is; a ring is as long as its index is wide.
    fn ring_of(&self, address: u64, len: usize) -> Option<usize> {
        let entry = |ring: &u64| {
            let offset = address.wrapping_sub(*ring);
            len == 16 && offset.is_multiple_of(16) && offset / 16 <= 0xffff
        };
        RINGS.iter().position(entry)
    }

    fn within((start, len): (u64, u64), address: u64, bytes: usize) -> bool {
        let offset = address.wrapping_sub(start);
        offset < len && offset + bytes as u64 <= len
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.transfers += 1;
    }
}

impl Dma for Watched {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.count(buffer.len());
        let ring = self.ring_of(address, buffer.len());
        let allowed = ring.is_some() || Self::within(self.readable, address, buffer.len());
        assert!(allowed, "read of {:#x} at {address:#x}", buffer.len());
        let result = self.part(address).read(address, buffer);
        if result.is_err() {
            buffer.fill(0);
        }
        let word =
            |at: usize| buffer.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()));
        match ring {
            // DEXT without data is context: it names nothing.
            Some(0) if word(8) >> 20 & 0x201 != 0x200 => self.readable = (word(0), word(8) & 0xffff),
            Some(0) => self.readable = (0, 0),
            Some(_) => self.writable = (word(0), 16384),
            None => {}
        }
        if let Some(ring) = ring {
            self.last[ring] = address;
        }
        result
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.count(bytes.len());
        let reports = [(self.last[0].wrapping_add(12), 4), (self.last[1].wrapping_add(8), 8)];
        let allowed =
            reports.contains(&(address, bytes.len())) || Self::within(self.writable, address, bytes.len());
        assert!(allowed, "write of {:#x} at {address:#x}", bytes.len());
        self.part(address).write(address, bytes)
    }
}

/// An access with numbers that matter.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        2 => proptest::sample::select(vec![
            reg::TDT, reg::TDH, reg::TDLEN, reg::TCTL, reg::RDT, reg::RDH, reg::RDLEN, reg::RCTL, reg::CTRL,
            reg::ICS, reg::IMS, reg::ICR, reg::MDIC, reg::EECD, reg::EERD, reg::ITR, reg::VET,
        ]),
        1 => 0..0x2_0010u32,
    ]
}

proptest! {
    #[test]
    fn stays_within_its_rings_and_buffers(
        steps in proptest::collection::vec((offset(), 0u8..3, any::<u32>(), 0u8..10), 1..200),
        contents in proptest::collection::vec(any::<u32>(), 2048),
    ) {
        let mut card = E1000::new(MAC);
        let mut memory = Watched {
            parts: [
                VecMemory::new(RINGS[0], 0x2000), VecMemory::new(RINGS[1], 0x2000), VecMemory::new(MEMORY, 0x2_0000),
            ],
            readable: (0, 0), writable: (0, 0), last: [u64::MAX; 2], bytes: 0, transfers: 0,
        };
        for (word, index) in contents.iter().zip(0u64..) {
            // Descriptors point into memory, mostly; few buffers are long.
            let low = if word & 7 == 0 { *word } else { (word & 0x1_ffff) + MEMORY as u32 };
            let rest = u64::from(*word) << 8 | u64::from(word & 0xff);
            let value = if index & 1 == 0 { u64::from(low) } else if word & 0x700 == 0 { rest } else { rest & !0xf000 };
            let at = RINGS[usize::from(index >= 1024)] + index % 1024 * 8;
            memory.part(at).write(at, &value.to_le_bytes()).unwrap();
        }
        let mut buffer = vec![0; MAX_OUTGOING];
        let mut now = 0u64;
        for (offset, width, value, kind) in steps {
            for (register, ring) in [(reg::TDBAL, RINGS[0]), (reg::RDBAL, RINGS[1])] {
                card.regs.set(register, ring as u32);
                card.regs.set(register + 4, (ring >> 32) as u32);
            }
            let small = if kind & 1 == 0 { value } else { value & 0xff };
            (memory.bytes, memory.transfers) = (0, 0);
            match kind {
                0 => drop(card.read(offset, 1 << width)),
                1..=5 => card.write(offset, 1 << width, small),
                6 => {
                    now += u64::from(value);
                    card.advance(now);
                    prop_assert!(card.deadline().is_none_or(|deadline| deadline > now));
                }
                7 => drop(card.receive(&mut memory, &frame(MAC, value as usize % 17000), &mut Budget::default())),
                _ => drop(card.transmit(&mut memory, &mut buffer, &mut Budget::default())),
            }
            // What any one call may do, the longest loop-back included.
            prop_assert!(memory.transfers < 4000, "{} transfers", memory.transfers);
            prop_assert!(memory.bytes < 1 << 20, "{} bytes", memory.bytes);
        }
    }
}
