//! Random drivers: nothing panics, work ends, and the card touches only what registers and descriptors name.

use super::*;
use crate::dma::{Dma, DmaError};
use crate::rtl8139::OVERRUN;
use crate::rtl8139::registers::Registers;
use proptest::prelude::*;

/// Memory that judges each access by the registers as they were, and by the descriptors that the card has read.
struct Judge {
    memory: VecMemory,
    regs: Registers,
    /// A write of this register is going on: what it may dump.
    dump: Option<u64>,
    /// Buffers named by descriptors: address, bytes, to be written.
    named: Vec<(u64, u64, bool)>,
}

impl Judge {
    /// A descriptor of the send ring starts here.
    fn sends_from(&self, address: u64) -> bool {
        (0..64).any(|index| self.regs.tnpds().wrapping_add(16 * index) == address)
    }

    /// A descriptor of the receive ring starts here, one that the card may have come to in this step.
    fn receives_to(&self, address: u64) -> bool {
        let first = u64::from(self.regs.next_receive);
        let slots = (0..100).flat_map(|index| [index, first + index]);
        slots.into_iter().any(|index| self.regs.rdsar.wrapping_add(16 * index) == address)
    }

    fn names(&self, address: u64, len: usize, write: bool) -> bool {
        self.named.iter().any(|(start, size, to)| {
            let offset = address.wrapping_sub(*start);
            *to == write && offset <= *size && len as u64 <= size - offset
        })
    }
}

impl Dma for Judge {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let sent = self.regs.tsad.iter().any(|start| u64::from(*start) == address) && buffer.len() < 0x2000;
        let slot = buffer.len() == 16 && (self.sends_from(address) || self.receives_to(address));
        assert!(
            sent || slot || self.names(address, buffer.len(), false),
            "reads {} bytes at {address:#x}: {:x?}",
            buffer.len(),
            self.regs
        );
        self.memory.read(address, buffer)?;
        // One address may be a slot of both rings.
        if let (true, Some(bytes)) = (slot, buffer.first_chunk::<16>()) {
            let all = u128::from_le_bytes(*bytes);
            let (status, at) = (all as u64, (all >> 64) as u64);
            self.named.push((at, status & 0xffff, false));
            self.named.push((at, status & 0x1fff, true));
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let in_ring = (address as u32).wrapping_sub(self.regs.rbstart);
        let over = if self.regs.overruns() { OVERRUN } else { 0 };
        let ring = u64::from(in_ring) + bytes.len() as u64 <= u64::from(self.regs.ring_len() + over)
            && u32::try_from(address).is_ok();
        let status =
            bytes.len() == 4 && self.sends_from(address) || bytes.len() == 8 && self.receives_to(address);
        let dump = self.dump == Some(address) && bytes.len() == 64;
        assert!(
            ring || status || dump || self.names(address, bytes.len(), true),
            "writes {} bytes at {address:#x}: {:x?}",
            bytes.len(),
            self.regs
        );
        self.memory.write(address, bytes)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u16,
        width: u8,
        value: u32,
    },
    /// A register that matters, with a value that means something.
    Set(usize, u32),
    Read(u16, u8),
    Transmit,
    Receive(u16, u8),
    Advance(u64),
    Memory(u16, u32),
    /// Four words at a descriptor's place.
    Descriptor(u8, u32, u32, u32),
    Link(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let address = prop_oneof![9 => (0u32..0x400).prop_map(|at| at * 16), 1 => any::<u32>()];
    let buffer = prop_oneof![9 => 0u32..0x4000, 1 => any::<u32>()];
    let bits = prop_oneof![any::<u32>(), (0u32..3000).prop_map(|size| size | 0xb000_0000)];
    prop_oneof![
        3 => (0u16..0x104, 0u8..6, any::<u32>())
            .prop_map(|(offset, width, value)| Step::Write { offset, width, value }),
        4 => (0usize..SETTINGS.len(), address).prop_map(|(which, value)| Step::Set(which, value)),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(offset, width)| Step::Read(offset, width)),
        3 => Just(Step::Transmit),
        3 => (0u16..3000, 0u8..4).prop_map(|(len, to)| Step::Receive(len, to)),
        1 => any::<u64>().prop_map(Step::Advance),
        1 => (any::<u16>(), any::<u32>()).prop_map(|(at, value)| Step::Memory(at, value)),
        3 => (any::<u8>(), bits, any::<u32>(), buffer)
            .prop_map(|(at, status, vlan, buffer)| Step::Descriptor(at, status, vlan, buffer)),
        1 => any::<bool>().prop_map(Step::Link),
    ]
}

/// Register, width, bits of the random value, bits always set.
const SETTINGS: [(u16, u8, u32, u32); 12] = [
    (reg::CR, 1, 0, 0x0c),
    (reg::CPCR, 2, 0x60, 0x03),
    (reg::RCR, 4, 0x1880, 0x0f),
    (reg::TCR, 4, 0x6_0000, 0x0300_0000),
    (reg::RBSTART, 4, u32::MAX, 0),
    (reg::TSAD, 4, u32::MAX, 0),
    (reg::TSAD + 4, 4, 0, 0),
    (reg::RDSAR, 4, u32::MAX, 0),
    (reg::RDSAR_HIGH, 4, 0, 0),
    (reg::TSD, 4, u32::MAX, 0),
    (reg::TPPOLL, 1, 0, 0x40),
    (reg::CAPR, 2, 0xffff, 0),
];

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut card = Rtl8139::new(MAC);
    let memory = VecMemory::new(0, 0x8000);
    let mut judge = Judge { memory, regs: card.regs, dump: None, named: Vec::new() };
    let mut clock = 0u64;
    for step in steps {
        judge.regs = card.regs;
        judge.named.clear();
        judge.dump = None;
        let mut write = |card: &mut Rtl8139, offset, width, value: u32| {
            let high = u64::from(card.regs.tsd[1]) << 32;
            judge.dump = card.regs.cplus.then_some(u64::from(value & !63) | high);
            // In C mode TSD sends, in transmit; nothing else in memory is touched by a write.
            let rings = core::mem::take(&mut judge.regs);
            card.write(offset, width, value, &mut judge);
            judge.regs = rings;
        };
        match step {
            Step::Write { offset, width, value } => write(&mut card, offset, width, value),
            Step::Set(which, value) => {
                let (offset, width, mask, bits) = SETTINGS[which];
                write(&mut card, offset, width, value & mask | bits);
            }
            Step::Read(offset, width) => drop(card.read(offset, width)),
            Step::Transmit => {
                let len = card.transmit(&mut judge, &mut Budget::default()).map(<[u8]>::len);
                prop_assert!(len.is_none_or(|len| len > 0 && len <= crate::rtl8139::MAX_SENT));
            }
            Step::Receive(len, to) => {
                let to = [MAC, [0xff; 6], [1; 6], [2; 6]][usize::from(to)];
                let _ = card.receive(&frame(to, len.into()), &mut judge);
            }
            Step::Advance(by) => {
                clock = clock.wrapping_add(by);
                card.advance(clock);
            }
            Step::Memory(at, value) => {
                let _ = judge.memory.write(at.into(), &value.to_le_bytes());
            }
            Step::Descriptor(at, status, vlan, buffer) => {
                for (index, word) in (0..).zip([status, vlan, buffer, 0]) {
                    let _ = judge.memory.write(16 * u64::from(at) + 4 * index, &word.to_le_bytes());
                }
            }
            Step::Link(up) => card.set_link(up),
        }
        let _ = (card.interrupt(), card.deadline(), card.has_room());
    }
    // Work ends: 64 descriptors, each of at most 64 KiB of one byte segments.
    let mut calls = 0;
    while card.busy() {
        judge.regs = card.regs;
        let _ = card.transmit(&mut judge, &mut Budget::default());
        calls += 1;
        prop_assert!(calls < 65 * 0x1_0000);
    }
    Ok(())
}

proptest! {
    #[test]
    fn memory_is_touched_only_where_named(steps in proptest::collection::vec(step(), 1..200)) {
        run(steps)?;
    }

    #[test]
    fn any_saved_registers_are_safe(
        words in proptest::collection::vec(any::<u32>(), 16), bits in any::<u64>(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut card = Rtl8139::new(MAC);
        let regs = &mut card.regs;
        (regs.read_at, regs.write_at, regs.next_send, regs.next_receive) =
            (words[0], words[1], words[2], words[3]);
        (regs.ring_shift, regs.next_tsd, regs.cr, regs.cpcr) =
            (bits as u8, (bits >> 8) as u8, (bits >> 16) as u8, (bits >> 24) as u16);
        (regs.rcr, regs.tcr, regs.rdsar) = (words[4], words[5], u64::from(words[6]) << 16);
        (regs.timer_base, regs.timer_due, regs.timer_int) = (bits, Some(bits.rotate_left(32)), words[7]);
        regs.running = true;
        regs.tally.received = u64::MAX;
        regs.mpc = u32::MAX;
        let mut memory = VecMemory::new(0, 0x8000);
        for step in steps {
            match step {
                Step::Set(which, value) => {
                    let (offset, width, mask, bits) = SETTINGS[which];
                    card.write(offset, width, value & mask | bits, &mut memory);
                }
                Step::Receive(len, _) => drop(card.receive(&frame(MAC, len.into()), &mut memory)),
                Step::Advance(to) => card.advance(to),
                _ => drop(card.transmit(&mut memory, &mut Budget::default()).map(<[u8]>::len)),
            }
            let _ = (card.read(reg::CR, 1), card.read(reg::TCTR, 4));
        }
    }
}
