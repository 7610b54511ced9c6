//! What counters call registers. A register that means several things by page or direction has one name.

use sluice_abi::config::NicModel;
use sluice_hypercall::symbiotic::{SYMBIOTIC_CONTROL, SYMBIOTIC_RING};
use sluice_nic::rtl8139::registers::reg;

/// Registers that are counted apart, most per model.
pub(crate) const MOST: usize = 32;

/// First offset and name, in rising order; an offset belongs to the last that is not above it.
type Names = &'static [(u32, &'static str)];

const NE2000: Names = &[
    (0x00, "CMD"),
    (0x01, "PSTART"),
    (0x02, "PSTOP"),
    (0x03, "BNRY"),
    (0x04, "TSR/TPSR"),
    (0x05, "TBCR0"),
    (0x06, "TBCR1"),
    (0x07, "ISR/CURR"),
    (0x08, "RSAR0"),
    (0x09, "RSAR1"),
    (0x0a, "RBCR0"),
    (0x0b, "RBCR1"),
    (0x0c, "RSR/RCR"),
    (0x0d, "TCR"),
    (0x0e, "DCR"),
    (0x0f, "IMR"),
    (0x10, "DATA"),
    (0x18, "RESET"),
];

const RTL8139: Names = &[
    (reg::IDR as u32, "IDR"),
    (reg::MAR as u32, "MAR"),
    (reg::TSD as u32, "TSD"),
    (reg::TSAD as u32, "TSAD"),
    (reg::RBSTART as u32, "RBSTART"),
    (reg::CR as u32, "CR"),
    (reg::CAPR as u32, "CAPR"),
    (reg::CBR as u32, "CBR"),
    (reg::IMR as u32, "IMR"),
    (reg::ISR as u32, "ISR"),
    (reg::TCR as u32, "TCR"),
    (reg::RCR as u32, "RCR"),
    (reg::TCTR as u32, "TCTR"),
    (reg::MPC as u32, "MPC"),
    (reg::CR9346 as u32, "9346CR"),
    (reg::CONFIG0 as u32, "CONFIG"),
    (reg::TIMER_INT as u32, "TimerInt"),
    (reg::MSR as u32, "MSR"),
    (reg::BMCR as u32, "PHY"),
    (reg::TPPOLL as u32, "TPPoll"),
    (reg::TPPOLL as u32 + 1, "C+"),
];

const E1000: Names = &[
    (0x0000, "CTRL"),
    (0x0008, "STATUS"),
    (0x0010, "EEPROM"),
    (0x0018, "CTRL_EXT"),
    (0x0020, "MDIC"),
    (0x0028, "flow control"),
    (0x00c0, "ICR"),
    (0x00c4, "ITR"),
    (0x00c8, "ICS"),
    (0x00d0, "IMS"),
    (0x00d8, "IMC"),
    (0x0100, "RCTL"),
    (0x0104, "0104+"),
    (0x0400, "TCTL"),
    (0x0404, "0404+"),
    (0x2800, "RDBA, RDLEN"),
    (0x2810, "RDH"),
    (0x2818, "RDT"),
    (0x281c, "receive delays"),
    (0x3800, "TDBA, TDLEN"),
    (0x3810, "TDH"),
    (0x3818, "TDT"),
    (0x381c, "transmit delays"),
    (0x4000, "statistics"),
    (0x5000, "filters"),
    (SYMBIOTIC_CONTROL, "symbiosis"),
    (SYMBIOTIC_RING, "doorbell"),
];

const fn names(model: NicModel) -> Names {
    match model {
        NicModel::Ne2000 => NE2000,
        NicModel::Rtl8139 | NicModel::Rtl8139c => RTL8139,
        NicModel::E1000 => E1000,
    }
}

/// Index of the register at an offset.
pub(crate) fn index(model: NicModel, offset: u32) -> usize {
    match (model, E1000_WORDS.get((offset / 4) as usize)) {
        // After every exit for one, and a search takes ten times as much.
        (NicModel::E1000, Some(index)) => usize::from(*index),
        _ => search(names(model), offset),
    }
}

/// The same of all words of the 82540EM's that drivers and modules use often; no register of its list begins within a word.
static E1000_WORDS: [u8; 0x7010 / 4] = {
    let mut words = [0; 0x7010 / 4];
    let (mut word, mut index) = (0, 0);
    while word < words.len() {
        while index + 1 < E1000.len() && E1000[index + 1].0 <= 4 * word as u32 {
            index += 1;
        }
        words[word] = index as u8;
        word += 1;
    }
    words
};

fn search(names: Names, offset: u32) -> usize {
    names.partition_point(|(first, _)| *first <= offset).saturating_sub(1)
}

/// Name of a register.
pub(crate) fn name(model: NicModel, index: usize) -> &'static str {
    names(model).get(index).map_or("?", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_order_and_fit() {
        for (_, model) in NicModel::ALL {
            assert!(names(model).is_sorted_by_key(|(first, _)| *first) && names(model).len() <= MOST);
        }
        for offset in 0..0x7100 {
            assert_eq!(index(NicModel::E1000, offset), search(E1000, offset), "{offset:#x}");
        }
        assert_eq!(name(NicModel::Ne2000, index(NicModel::Ne2000, 0x10)), "DATA");
        assert_eq!(name(NicModel::Rtl8139, index(NicModel::Rtl8139, 0x3e)), "ISR");
        assert_eq!(name(NicModel::Rtl8139c, index(NicModel::Rtl8139c, 0x1c)), "TSD");
    }
}
