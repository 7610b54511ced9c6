//! Registers, widths, EEPROM, timer, link.

use super::*;
use crate::dma::NoMemory;
use crate::rtl8139::{DEVICE, VENDOR};

#[test]
fn starts_as_the_data_sheet_says() {
    let card = Rtl8139::new(MAC);
    assert_eq!(card.read(reg::IDR, 4), 0x1200_5452);
    assert_eq!(card.read(reg::IDR + 4, 4), 0x5634);
    // In reset until CR is written; the ring is empty.
    assert_eq!(card.read(reg::CR, 1), 0x11);
    assert_eq!(card.read(reg::TCR, 4), 0x7480_0000);
    assert_eq!(card.read(0x43, 1), 0x74);
    assert_eq!(card.read(reg::RERID, 1), 0x20);
    assert_eq!(card.read(reg::TSD, 4), 0x2000);
    assert_eq!(card.read(reg::SUMMARY, 2), 0x000f);
    assert_eq!(card.read(reg::CAPR, 2), 0xfff0);
    assert_eq!(card.read(reg::BMSR, 2), 0x782d);
    assert!(!card.interrupt() && !card.busy());
}

#[test]
fn registers_answer_at_their_own_width() {
    let mut bench = Bench::c_mode(0);
    assert_eq!(bench.read(reg::IMR, 2), 0xe07f);
    assert_eq!(bench.read(reg::IMR, 1), 0);
    assert_eq!(bench.read(reg::IMR, 4), 0);
    assert_eq!(bench.read(reg::RCR, 4), 0x0e);
    assert_eq!(bench.read(reg::RCR, 2), 0);
    let before = bench.card.clone();
    bench.write(reg::IMR, 1, 0);
    bench.write(reg::IMR, 4, 0);
    bench.write(reg::RCR, 2, 0xff);
    bench.write(reg::TSD, 2, 60);
    bench.write(reg::CPCR, 1, 0xff);
    bench.write(reg::RDSAR, 2, 0xff);
    assert_eq!(bench.card, before);
    // TSD reads at any width, TSAD as words and long words.
    bench.write(reg::TSAD, 4, 0x1234_5678);
    assert_eq!(bench.read(reg::TSD + 1, 1), 0x20);
    assert_eq!(bench.read(reg::TSAD + 2, 2), 0x1234);
    assert_eq!(bench.read(reg::TSAD + 1, 1), 0);
}

#[test]
fn unaligned_accesses_fall_apart() {
    let mut bench = Bench::new();
    // A byte, a word, a byte.
    bench.write(reg::MAR + 1, 4, 0x4433_2211);
    assert_eq!(bench.read(reg::MAR, 4), 0x3322_1100);
    assert_eq!(bench.read(reg::MAR + 3, 4), 0x4433);
    assert_eq!(bench.read(reg::MAR + 1, 3), 0x33_2211);
    // Across the end: what is not there is ones.
    assert_eq!(bench.read(0xfe, 4), 0xffff_0000);
    assert_eq!(bench.read(0x100, 2), 0xffff);
    assert_eq!(bench.read(0xffff, 2), 0xffff);
    assert_eq!(bench.read(0, 0), 0);
    // CAPR by a byte and a half is not CAPR.
    bench.write(reg::CAPR - 1, 2, 0);
    assert_eq!(bench.read(reg::CAPR, 2), 0xfff0);
}

#[test]
fn configuration_is_locked() {
    let mut bench = Bench::new();
    bench.write(reg::CONFIG1, 1, 0xff);
    assert_eq!(bench.read(reg::CONFIG1, 1), 0x0c);
    bench.write(reg::CONFIG5, 1, 0xff);
    assert_eq!(bench.read(reg::CONFIG5, 1), 0x7f);
    bench.write(reg::CR9346, 1, 0xc0);
    for (offset, value) in
        [(reg::CONFIG0, 0x07), (reg::CONFIG1, 0xff), (reg::CONFIG3, 0x71), (reg::CONFIG4, 0xf5)]
    {
        bench.write(offset, 1, 0xff);
        assert_eq!(bench.read(offset, 1), value, "{offset:#x}");
    }
    bench.write(reg::CR9346, 1, 0);
    bench.write(reg::CONFIG4, 1, 0);
    assert_eq!(bench.read(reg::CONFIG4, 1), 0xf5);
    // TCR asks for TE.
    bench.write(reg::TCR, 4, 0x0300_0700);
    assert_eq!(bench.read(reg::TCR, 4), 0x7480_0000);
    bench.write(reg::CR, 1, 0x04);
    bench.write(reg::TCR, 4, 0xffff_ffff);
    assert_eq!(bench.read(reg::TCR, 4), 0x778f_07f0);
}

/// Reads a word as drivers do, bit by bit.
fn eeprom(bench: &mut Bench, address: u32) -> u16 {
    bench.write(reg::CR9346, 1, 0x80);
    let word = command(bench, address);
    bench.write(reg::CR9346, 1, 0x80);
    word
}

fn command(bench: &mut Bench, address: u32) -> u16 {
    for bit in (0..9).rev() {
        let data = ((0x180 | address) >> bit & 1) << 1;
        bench.write(reg::CR9346, 1, 0x88 | data);
        bench.write(reg::CR9346, 1, 0x8c | data);
    }
    let mut word = 0;
    for _ in 0..16 {
        bench.write(reg::CR9346, 1, 0x88);
        bench.write(reg::CR9346, 1, 0x8c);
        word = word << 1 | (bench.read(reg::CR9346, 1) & 1) as u16;
    }
    word
}

#[test]
fn eeprom_tells_who_the_card_is() {
    let mut bench = Bench::new();
    let words: Vec<u16> = (0..11).map(|address| eeprom(&mut bench, address)).collect();
    assert_eq!(words, [0x8129, VENDOR, DEVICE, 0, 0, 0, 0, 0x5452, 0x1200, 0x5634, 0]);
    // The next command needs no new selection.
    bench.write(reg::CR9346, 1, 0x88);
    assert_eq!([command(&mut bench, 7), command(&mut bench, 8)], [0x5452, 0x1200]);
    // Loading it again resets the card, station address included.
    bench.write(reg::IDR, 4, 0);
    bench.write(reg::CR, 1, 0x0c);
    bench.write(reg::CR9346, 1, 0x40);
    assert_eq!(bench.read(reg::IDR, 4), 0x1200_5452);
    assert_eq!(bench.read(reg::CR, 1), 0x11);
    assert_eq!(bench.read(reg::CR9346, 1), 0);
}

#[test]
fn timer_counts_and_interrupts() {
    let mut bench = Bench::new();
    bench.card.advance(3_000);
    bench.write(reg::TCTR, 4, 1);
    assert_eq!(bench.card.deadline(), None);
    bench.write(reg::TIMER_INT, 4, 1_000);
    bench.write(reg::IMR, 2, 0x4000);
    assert_eq!(bench.card.deadline(), Some(33_000));
    bench.card.advance(32_999);
    assert_eq!(bench.read(reg::TCTR, 4), 999);
    assert!(!bench.card.interrupt());
    bench.card.advance(33_000);
    assert_eq!(bench.read(reg::ISR, 2), 0x4000);
    assert!(bench.card.interrupt());
    // Next when the counter comes round again.
    assert_eq!(bench.card.deadline(), Some(33_000 + (30 << 32)));
    bench.write(reg::ISR, 2, 0x4000);
    assert!(!bench.card.interrupt());
    bench.card.advance(32_000 + (30 << 32));
    assert_eq!(bench.read(reg::TCTR, 4), (29_000 / 30) as u32);
    // A stopped clock misses it.
    bench.write(reg::HLTCLK, 1, b'H'.into());
    bench.card.advance(40_000 + (30 << 32));
    assert_eq!((bench.read(reg::ISR, 2), bench.card.deadline()), (0, None));
    // 0 is never.
    bench.write(reg::TIMER_INT, 4, 0);
    bench.write(reg::TCTR, 4, 0);
    assert_eq!(bench.card.deadline(), None);
}

#[test]
fn link_shows_and_counts() {
    let mut bench = Bench::c_mode(0);
    bench.card.set_link(false);
    assert_eq!(bench.read(reg::ISR, 2), 0x20);
    assert_eq!(bench.read(reg::BMSR, 2) & 4, 0);
    assert_eq!(bench.read(reg::MSR, 1), 0xd4);
    assert!(bench.send(0, &frame([1; 6], 60)).is_empty());
    assert_eq!(bench.read(reg::TSD, 4), 60 | 0xa000);
    assert_eq!(bench.receive(&frame(MAC, 60)), Reception::Stopped);
    // Neither reset brings it up.
    bench.write(reg::BMCR, 2, 0x8000);
    bench.write(reg::CR, 1, 0x10);
    assert!(!bench.card.link());
    bench.card.set_link(true);
    assert_eq!(bench.read(reg::MSR, 1), 0xd0);
}

#[test]
fn reset_keeps_what_qemus_keeps() {
    let mut bench = Bench::c_mode(0x1880);
    bench.write(reg::MAR, 4, 0x1234_5678);
    bench.write(reg::TSAD, 4, SEND);
    bench.write(reg::CPCR, 2, 0x63);
    bench.write(reg::RDSAR, 4, RECEIVE_RING);
    bench.write(reg::CR, 1, 0x1c);
    assert_eq!(bench.read(reg::CR, 1), 0x0d, "the enables of the same write count");
    assert_eq!(bench.read(reg::RCR, 4), 0x188e);
    assert_eq!(bench.card.regs.ring_len(), 8192);
    assert_eq!(bench.read(reg::MAR, 4), 0x1234_5678);
    assert_eq!(bench.read(reg::TSAD, 4), SEND);
    for offset in [reg::RBSTART, reg::RDSAR, reg::CPCR, reg::IMR] {
        assert_eq!(bench.read(offset, 4), 0, "{offset:#x}");
    }
    let mut other = bench.card.clone();
    other.power_on();
    assert_eq!(other, Rtl8139::new(MAC));
    other.write(reg::TSD, 4, 60, &mut NoMemory);
    while other.busy() {
        assert_eq!(other.transmit(&mut NoMemory, &mut Budget::default()), None, "TE is off");
    }
}
