//! Registers, EEPROM, PHY and interrupts.

use super::*;

#[test]
fn eeprom_by_word_and_by_bit() {
    let mut card = E1000::new(MAC);
    let mut sum = 0u16;
    for index in 0..64u32 {
        card.write(reg::EERD, 4, index << 8 | 1);
        let answer = card.read(reg::EERD, 4);
        assert_eq!(answer & 0x10, 0x10);
        let word = (answer >> 16) as u16;
        assert_eq!(word, card.eeprom().words()[index as usize]);
        assert_eq!(word, shifted(&mut card, index));
        sum = sum.wrapping_add(word);
    }
    assert_eq!(sum, 0xbaba);
    assert_eq!(card.eeprom().words()[..3], [0x5452, 0x1200, 0x5634]);
    // Beyond its end there is nothing, but the access is done.
    card.write(reg::EERD, 4, 64 << 8 | 1);
    assert_eq!(card.read(reg::EERD, 4), 64 << 8 | 0x10);
}

/// A word read as a driver does with EECD: nine bits in, sixteen out.
fn shifted(card: &mut E1000, index: u32) -> u16 {
    const SELECT: u32 = 2;
    let mut clock = |data: u32| {
        card.write(reg::EECD, 4, SELECT | data << 2);
        card.write(reg::EECD, 4, SELECT | data << 2 | 1);
        let bit = card.read(reg::EECD, 4) >> 3 & 1;
        card.write(reg::EECD, 4, SELECT | data << 2);
        bit as u16
    };
    for bit in (0..9).rev() {
        clock((0b110 << 6 | index) >> bit & 1);
    }
    let word = (0..16).fold(0, |word, _| word << 1 | clock(0));
    card.write(reg::EECD, 4, 0);
    word
}

#[test]
fn phy_answers_at_address_one() {
    let mut card = E1000::new(MAC);
    let read = |register: u32, address: u32| 1 << 27 | address << 21 | register << 16;
    card.write(reg::MDIC, 4, read(2, 1));
    assert_eq!(card.read(reg::MDIC, 4), 1 << 28 | read(2, 1) | 0x141);
    // Nobody at address 2: an error, and nothing else changes.
    card.write(reg::MDIC, 4, read(3, 2));
    assert_eq!(card.read(reg::MDIC, 4), 3 << 28 & !(1 << 29) | 1 << 30 | read(2, 1) | 0x141);
    // Identifiers cannot be written.
    card.write(reg::MDIC, 4, 1 << 26 | 1 << 21 | 2 << 16 | 7);
    assert_ne!(card.read(reg::MDIC, 4) & 1 << 30, 0);
    assert_eq!(card.phy[mii::PHYID1], 0x141);
}

#[test]
fn negotiation_takes_half_a_second() {
    let mut machine = Machine::started();
    machine.card.advance(3_000_000_400);
    machine.set(reg::MDIC, 1 << 26 | 1 << 21 | 0x1340);
    assert_eq!(machine.get(reg::STATUS) & 2, 0);
    assert_eq!(machine.card.phy[mii::BMSR] & 0x24, 0);
    assert_eq!(machine.receive(&frame(MAC, 60)), Reception::Stopped);
    assert_eq!(machine.card.deadline(), Some(3_500_000_000));
    machine.card.advance(3_499_999_999);
    assert!(!machine.card.interrupt());
    machine.card.advance(3_500_000_000);
    assert!(machine.card.interrupt());
    assert_eq!(machine.get(reg::ICR), 4);
    assert_eq!(machine.card.phy[mii::BMSR] & 0x24, 0x24);
    assert_eq!(machine.get(reg::STATUS) & 2, 2);
}

#[test]
fn cable_makes_the_link() {
    let mut machine = Machine::started();
    machine.card.set_cable(false);
    assert_eq!(machine.get(reg::ICR), 4);
    assert_eq!(machine.get(reg::STATUS) & 2, 0);
    machine.push(OUT, EOP | RS | 100, 0);
    assert!(machine.ring().is_empty());
    // Sent, as far as the card knows.
    assert_eq!(machine.get(reg::GPTC), 1);
    // It had not negotiated, so it does now.
    machine.card.set_cable(true);
    assert_eq!(machine.get(reg::STATUS) & 2, 0);
    machine.card.advance(3_000_000_000);
    assert_eq!(machine.get(reg::STATUS) & 2, 2);
    machine.card.set_cable(false);
    machine.card.power_on();
    assert_eq!(machine.get(reg::STATUS) & 2, 0);
}

#[test]
fn causes_mask_and_clear() {
    let mut card = E1000::new(MAC);
    card.write(reg::ICS, 4, 0x85);
    assert!(!card.interrupt());
    card.write(reg::IMS, 4, 4);
    assert!(card.interrupt());
    assert_eq!(card.read(reg::ICS, 4), 0x85);
    card.write(reg::ICR, 4, 4);
    assert!(!card.interrupt());
    card.write(reg::IMC, 4, 4);
    card.write(reg::ICS, 4, 4);
    assert_eq!(card.read(reg::IMS, 4), 0);
    assert!(!card.interrupt());
    assert_eq!(card.read(reg::ICR, 4), 0x85);
    assert_eq!(card.read(reg::ICR, 4), 0);
}

#[test]
fn interrupts_keep_a_distance() {
    let mut card = E1000::new(MAC);
    card.write(reg::IMS, 4, 0x83);
    // RADV counts only if RDTR is not 0: 128 us, the least.
    for (radv, rdtr, itr, distance) in [
        (1000, 0, 0, 128_000),
        (1000, 1, 0, 1_024_000),
        (1000, 1, 700, 179_200),
        // ITR is for all causes: a lesser delay of one does not count.
        (100, 1, 976, 249_856),
        (0, 1, 700, 179_200),
        (0, 0, 499, 128_000),
    ] {
        let start = card.deadline().unwrap_or(0) + 1;
        card.advance(start);
        card.write(reg::RADV, 4, radv);
        card.write(reg::RDTR, 4, rdtr);
        card.write(reg::ITR, 4, itr);
        card.write(reg::ICS, 4, 0x80);
        // The first is not delayed, and the line falls at once.
        assert!(card.interrupt());
        card.read(reg::ICR, 4);
        assert!(!card.interrupt());
        card.write(reg::ICS, 4, 0x80);
        assert!(!card.interrupt());
        assert_eq!(card.deadline(), Some(start + distance));
        card.advance(start + distance - 1);
        assert!(!card.interrupt());
        card.advance(start + distance);
        assert!(card.interrupt());
        card.read(reg::ICR, 4);
    }
}

#[test]
fn narrow_writes_are_wide_ones() {
    let mut card = E1000::new(MAC);
    card.write(reg::TDBAL, 4, 0x1234_5678);
    assert_eq!(card.read(reg::TDBAL + 1, 1), 0x78);
    assert_eq!(card.read(reg::TDBAL + 2, 2), 0x5678);
    card.write(reg::TDBAL + 3, 1, 0xab);
    assert_eq!(card.read(reg::TDBAL, 4), 0xab);
    // Not aligned: two halves, each its own register.
    card.write(reg::TDBAL + 2, 4, 0x1111_2222);
    assert_eq!(card.regs.get(reg::TDBAL), 0x2222);
    assert_eq!(card.regs.get(reg::TDBAH), 0x1111);
    assert_eq!(card.read(reg::TDBAL + WINDOW, 4), 0x2222);
}

#[test]
fn statistics_clear_on_reading_and_stay_at_their_end() {
    let mut machine = Machine::started();
    machine.card.regs.set(reg::GPTC, u32::MAX);
    machine.card.regs.set(reg::TOTL, 0xffff_fff0);
    machine.push(OUT, EOP | 60, 0);
    machine.ring();
    assert_eq!(machine.get(reg::GPTC), u32::MAX);
    assert_eq!(machine.get(reg::GPTC), 0);
    assert_eq!(machine.get(reg::TOTL), 0x30);
    assert_eq!(machine.get(reg::TOTH), 1);
    assert_eq!(machine.get(reg::TOTL), 0);
    assert_eq!(machine.get(reg::PTC64), 1);
}

#[test]
fn power_on_forgets_all_but_the_cable() {
    let mut machine = Machine::started();
    machine.push(OUT, DATA | TSE | 100, 0);
    machine.ring();
    machine.receive(&frame(MAC, 100));
    machine.card.power_on();
    let mut new = E1000::new(MAC);
    new.advance(2_000_000_000);
    assert!(machine.card == new);
}
