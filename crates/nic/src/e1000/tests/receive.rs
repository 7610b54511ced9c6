//! Receiving.

use super::*;
use crate::dma::DmaError;

#[test]
fn frame_lands_in_its_buffer() {
    let mut machine = Machine::started();
    let bytes = frame(MAC, 100);
    assert_eq!(machine.receive(&bytes), Reception::Stored);
    // DD, EOP, checksums not looked at. The CRC counts, but is not there.
    assert_eq!(machine.received(0), (104, 7, 0));
    assert_eq!(machine.memory.at(IN, 101), Some(&[&bytes[..], &[0]].concat()[..]));
    assert_eq!(machine.get(reg::RDH), 1);
    assert!(machine.card.interrupt());
    assert_eq!(machine.get(reg::ICR), 0x80);
    machine.set(reg::RCTL, 1 << 26 | 0x8002);
    assert_eq!(machine.receive(&bytes), Reception::Full);
    machine.card.advance(3_000_000_000);
    assert_eq!(machine.receive(&bytes[..20]), Reception::Stored);
    assert_eq!(machine.received(1), (60, 7, 0));
    assert_eq!((machine.get(reg::PRC64), machine.get(reg::PRC64 + 4)), (0, 1));
    assert_eq!((machine.get(reg::GPRC), machine.get(reg::TORL)), (2, 168));
}

#[test]
fn done_is_written_last() {
    let mut machine = Machine::started();
    let mut memory = Watcher { memory: machine.memory.clone(), reports: Vec::new() };
    assert_eq!(machine.card.receive(&mut memory, &frame(MAC, 60), &mut Budget::default()), Reception::Stored);
    // The frame, then length and status together.
    assert_eq!(memory.reports, [(0, 0), (64, 7)]);
}

/// Notes the first descriptor's length and status after each write.
struct Watcher {
    memory: VecMemory,
    reports: Vec<(u8, u8)>,
}

impl Dma for Watcher {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.memory.read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.memory.write(address, bytes)?;
        let report = self.memory.at(RX_RING + 8, 5).unwrap();
        self.reports.push((report[0], report[4]));
        Ok(())
    }
}

#[test]
fn long_frame_takes_several() {
    let mut machine = Machine::started();
    // Buffers of 512 bytes.
    machine.set(reg::RCTL, 2 << 16 | 2);
    machine.card.advance(4_000_000_000);
    let bytes = frame(MAC, 1100);
    assert_eq!(machine.receive(&bytes), Reception::Stored);
    assert_eq!(machine.received(0), (512, 1, 0));
    assert_eq!(machine.received(1), (512, 1, 0));
    assert_eq!(machine.received(2), (80, 7, 0));
    assert_eq!(machine.memory.at(IN + 0x800, 512), bytes.get(512..1024));
    assert_eq!(machine.memory.at(IN + 0x1000, 76), bytes.get(1024..));
}

#[test]
fn filters() {
    let mut machine = Machine::started();
    let other = [2, 0, 0, 0, 0, 1];
    let group = [1, 0, 0x5e, 0x12, 0x34, 0x56];
    let passes = |machine: &mut Machine, rctl: u32, to: [u8; 6]| {
        machine.card.regs.set(reg::RCTL, rctl | 2);
        machine.card.accepts(&frame(to, 60))
    };
    for (rctl, to, expected) in [
        (0, MAC, true),
        (0, other, false),
        (8, other, true),
        (0, group, false),
        (8, group, false),
        (16, group, true),
        (0, [0xff; 6], false),
        (0x8000, [0xff; 6], true),
        (16, [0xff; 6], true),
    ] {
        assert_eq!(passes(&mut machine, rctl, to), expected, "{rctl:x} {to:x?}");
    }
    // RCTL.MO selects bits 47-36, 46-35, 45-34 or 43-32 of the address.
    for (offset, hash) in [(0, 0x563), (1, 0xac6), (2, 0x58d), (3, 0x634)] {
        machine.set(reg::MTA + 4 * (hash >> 5), 1 << (hash & 31));
        assert!(passes(&mut machine, offset << 12, group), "{offset}");
        machine.set(reg::MTA + 4 * (hash >> 5), 0);
        assert!(!passes(&mut machine, offset << 12, group));
    }
    // A second address, once it is valid.
    machine.set(reg::RAL + 8, u32::from_le_bytes([2, 0, 0, 0]));
    machine.set(reg::RAH + 8, 0x0100);
    assert!(!passes(&mut machine, 0, other));
    machine.set(reg::RAH + 8, 0x8000_0100);
    assert!(passes(&mut machine, 0, other));
}

#[test]
fn vlan_tags_are_filtered_and_stripped() {
    let mut machine = Machine::started();
    let mut bytes = frame(MAC, 64);
    bytes[12..16].copy_from_slice(&[0x81, 0, 0xa0, 0x42]);
    assert_eq!(machine.receive(&bytes), Reception::Stored);
    assert_eq!(machine.received(0), (68, 7, 0));
    machine.set(reg::RCTL, 1 << 18 | 2);
    machine.set(reg::CTRL, 1 << 30);
    machine.card.advance(4_000_000_000);
    assert_eq!(machine.receive(&bytes), Reception::Filtered);
    machine.set(reg::VFTA + 4 * 2, 1 << 2);
    assert_eq!(machine.receive(&bytes), Reception::Stored);
    assert_eq!(machine.received(1), (64, 0xf, 0xa042));
    assert_eq!(machine.memory.at(IN + 0x800, 60), Some(&[&bytes[..12], &bytes[16..]].concat()[..]));
}

#[test]
fn full_ring_and_too_full_a_ring() {
    let mut machine = Machine::started();
    machine.set(reg::RCTL, 2 | 1 << 5 | 1 << 8);
    machine.card.advance(4_000_000_000);
    machine.get(reg::ICR);
    // RDMTS 1: a quarter of 16 descriptors.
    for left in (5..15).rev() {
        assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Stored);
        assert_eq!(machine.get(reg::ICR), 0x80, "{left}");
    }
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Stored);
    assert_eq!(machine.get(reg::ICR), 0x90);
    // 4 are left; 8 KiB with CRC need 5.
    assert_eq!(machine.receive(&frame(MAC, 8192)), Reception::Lost);
    assert_eq!(machine.get(reg::ICR), 0x40);
    assert_eq!((machine.get(reg::RNBC), machine.get(reg::MPC)), (1, 1));
    assert_eq!(machine.receive(&frame(MAC, 8188)), Reception::Stored);
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Full);
    assert_eq!(machine.get(reg::RNBC), 1);
    machine.set(reg::RDT, 14);
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Stored);
    machine.set(reg::RCTL, 0);
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Stopped);
}

#[test]
fn oversized_frames_need_leave() {
    let mut machine = Machine::started();
    assert_eq!(machine.receive(&frame(MAC, 1522)), Reception::Stored);
    assert_eq!(machine.receive(&frame(MAC, 1523)), Reception::Filtered);
    assert_eq!(machine.get(reg::ROC), 1);
    machine.card.regs.set(reg::RCTL, 2 | 1 << 5);
    assert_eq!(machine.receive(&frame(MAC, 1523)), Reception::Stored);
    assert_eq!(machine.receive(&frame(MAC, 16385)), Reception::Filtered);
}

#[test]
fn descriptors_without_a_buffer_are_used_up() {
    let mut machine = Machine::started();
    machine.memory.write(RX_RING, &[0; 8]).unwrap();
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Stored);
    assert_eq!(machine.get(reg::RDH), 2);
    assert_eq!(machine.received(0).1, 1);
    // A ring of nothing else ends.
    for entry in 0..16 {
        machine.memory.write(RX_RING + 16 * entry, &[0; 8]).unwrap();
    }
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Lost);
    assert_eq!(machine.get(reg::RDH), 2);
    // So does a bigger one, sooner.
    machine.set(reg::RDLEN, 0xf_ff80);
    machine.memory.at_mut(RX_RING, 0x1_0000).unwrap().fill(0);
    machine.set(reg::RDT, 0x7fff);
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Lost);
    assert_eq!(machine.get(reg::RDH), 2 + SKIPPED);
}
