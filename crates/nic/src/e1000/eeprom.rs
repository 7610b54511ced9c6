//! The EEPROM, read by shifting bits through EECD (Microwire) or a word at a time by EERD. It cannot be written.
//!
//! Source: manual 317453, chapter 5 (contents), section 13.4 (EECD, EERD). The contents follow
//! QEMU's card, which takes the station address and the device id in, and makes the checksum good.

/// Words.
pub const WORDS: usize = 64;
/// What all words must add up to (chapter 5, checksum word).
const SUM: u16 = 0xbaba;
/// Read command: start bit and opcode.
const READ: u32 = 0b110;

/// Clock.
const SK: u32 = 1 << 0;
/// Chip select.
const CS: u32 = 1 << 1;
/// Data towards the EEPROM.
const DI: u32 = 1 << 2;
/// Data from it.
const DO: u32 = 1 << 3;
/// Flash write enable, which is kept though there is no flash memory.
const FWE: u32 = 3 << 4;
/// Access request.
const REQ: u32 = 1 << 6;
/// Access grant, always given.
const GNT: u32 = 1 << 7;
/// The EEPROM is there.
const PRES: u32 = 1 << 8;

/// EERD: start, done, and where address and data lie.
const START: u32 = 1 << 0;
const DONE: u32 = 1 << 4;
const ADDRESS: u32 = 8;
const DATA: u32 = 16;

/// Contents and the state of the pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eeprom {
    words: [u16; WORDS],
    /// Bits of EECD that were written.
    pins: u32,
    /// What came in since chip select, newest bit lowest.
    input: u32,
    bits_in: u16,
    /// Next bit to go out, the highest of word 0 first.
    bit_out: u16,
    reading: bool,
}

impl Eeprom {
    /// The EEPROM of an 82540EM with this station address.
    pub fn new(mac: [u8; 6]) -> Self {
        let mut words = [0xffff; WORDS];
        words[..CONTENTS.len()].copy_from_slice(&CONTENTS);
        words[48..51].copy_from_slice(&BOOT_AGENT);
        for (word, pair) in words.iter_mut().zip(mac.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        words[WORDS - 1] = 0;
        let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        words[WORDS - 1] = SUM.wrapping_sub(sum);
        Self { words, pins: 0, input: 0, bits_in: 0, bit_out: 0, reading: false }
    }

    /// The words.
    pub const fn words(&self) -> &[u16; WORDS] {
        &self.words
    }

    /// EECD as read.
    pub(super) fn pins(&self) -> u32 {
        let word = self.words[usize::from(self.bit_out >> 4) % WORDS];
        let bit = word >> (15 - (self.bit_out & 15)) & 1;
        // Between commands the line is pulled up.
        let out = if self.reading && bit == 0 { 0 } else { DO };
        PRES | GNT | self.pins | out
    }

    /// EECD written.
    pub(super) fn set_pins(&mut self, value: u32) {
        let changed = value ^ self.pins;
        self.pins = value & (SK | CS | DI | FWE | REQ);
        if value & CS == 0 {
            return;
        }
        if changed & CS != 0 {
            (self.input, self.bits_in, self.bit_out, self.reading) = (0, 0, 0, false);
        }
        if changed & SK == 0 {
            return;
        }
        if value & SK == 0 {
            self.bit_out = self.bit_out.wrapping_add(1);
            return;
        }
        self.input = self.input << 1 | u32::from(value & DI != 0);
        self.bits_in = self.bits_in.wrapping_add(1);
        if self.bits_in == 9 && !self.reading {
            // Three bits of command, six of address. The falling edge moves on to the word's first bit.
            self.bit_out = ((self.input & 0x3f) as u16).wrapping_mul(16).wrapping_sub(1);
            self.reading = self.input >> 6 & 7 == READ;
        }
    }

    /// EERD as read, `written` being what was written to it.
    pub(super) fn word(&self, written: u32) -> u32 {
        if written & START == 0 {
            return written;
        }
        let rest = written & !START;
        let word = usize::try_from(rest >> ADDRESS).ok().and_then(|index| self.words.get(index));
        word.map_or(0, |word| u32::from(*word) << DATA) | DONE | rest
    }
}

/// Words 0-47 (tables 5-2 and 5-3): address, compatibility, identification, then configuration of PHY, LEDs and
/// management that the card loads at power-on.
#[rustfmt::skip]
const CONTENTS: [u16; 37] = [
    0x0000, 0x0000, 0x0000, 0x0000, 0xffff, 0x0000, 0x0000, 0x0000,
    0x3000, 0x1000, 0x6403, 0x100e, 0x8086, 0x100e, 0x8086, 0x3040,
    0x0008, 0x2000, 0x7e14, 0x0048, 0x1000, 0x00d8, 0x0000, 0x2700,
    0x6cc9, 0x3150, 0x0722, 0x040b, 0x0984, 0x0000, 0xc000, 0x0706,
    0x1008, 0x0000, 0x0f04, 0x7fff, 0x4d01,
];
/// Words 48-50: configuration of the boot agent.
const BOOT_AGENT: [u16; 3] = [0x0100, 0x4000, 0x121c];
