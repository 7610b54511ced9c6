//! The serial EEPROM on the card, a 93C46: 64 words, read bit by bit through 9346CR.
//!
//! Sources: RTL8139C(L) data sheet 1.4, sections 5.17 (9346CR) and 6 (contents); Microchip 93C46 data sheet.
//! Deviation: commands that would change the contents are swallowed, so the station address is for good.

/// Words.
const WORDS: usize = 64;
/// 9346CR: chip select.
const SELECT: u8 = 0x08;
/// 9346CR: clock.
const CLOCK: u8 = 0x04;
/// 9346CR: data to the EEPROM.
const DATA_IN: u8 = 0x02;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// After a command that does nothing, until it is selected anew.
    #[default]
    Idle,
    /// Waits for the start bit.
    Start,
    /// Takes eight bits of command and address.
    Command,
    /// Gives sixteen bits.
    Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Eeprom {
    words: [u16; WORDS],
    phase: Phase,
    /// Bits moved in this phase.
    bits: u8,
    command: u8,
    data: u16,
    selected: bool,
    clock: bool,
    out: bool,
}

impl Eeprom {
    pub(super) const fn new(mac: [u8; 6]) -> Self {
        let mut words = [0; WORDS];
        words[0] = 0x8129;
        words[1] = super::VENDOR;
        words[2] = super::DEVICE;
        words[7] = u16::from_le_bytes([mac[0], mac[1]]);
        words[8] = u16::from_le_bytes([mac[2], mac[3]]);
        words[9] = u16::from_le_bytes([mac[4], mac[5]]);
        Self {
            words,
            phase: Phase::Idle,
            bits: 0,
            command: 0,
            data: 0,
            selected: false,
            clock: false,
            out: false,
        }
    }

    /// Level of the data line to the card.
    pub(super) const fn output(&self) -> bool {
        self.selected && self.out
    }

    /// Sets the lines as 9346CR says; the rising clock moves a bit.
    pub(super) fn set_lines(&mut self, lines: u8) {
        let (selected, clock) = (lines & SELECT != 0, lines & CLOCK != 0);
        let (newly, rises) = (selected && !self.selected, clock && !self.clock);
        (self.selected, self.clock) = (selected, clock);
        if newly {
            self.enter(Phase::Start);
            self.data = 0;
        }
        if selected && rises {
            self.shift(lines & DATA_IN != 0);
        }
    }

    const fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.bits = 0;
        self.command = 0;
    }

    fn shift(&mut self, bit: bool) {
        match self.phase {
            Phase::Idle => {}
            Phase::Start if bit => self.enter(Phase::Command),
            Phase::Start => {}
            Phase::Command => {
                self.command = self.command << 1 | u8::from(bit);
                self.bits += 1;
                if self.bits == 8 {
                    self.decode(self.command);
                }
            }
            Phase::Data => {
                self.out = self.data & 0x8000 != 0;
                self.data <<= 1;
                self.bits += 1;
                if self.bits == 16 {
                    // Some drivers send the next command without deselecting it in between.
                    self.enter(Phase::Start);
                }
            }
        }
    }

    fn decode(&mut self, command: u8) {
        // The two highest bits are the operation: 10 reads.
        if command >> 6 == 2 {
            self.data = self.words.get(usize::from(command & 0x3f)).copied().unwrap_or(0);
            // A 0 goes before the data.
            self.out = false;
            self.enter(Phase::Data);
        } else {
            self.enter(Phase::Idle);
        }
    }
}
