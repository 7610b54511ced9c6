//! The text mode of a VGA: a word for each character (IBM VGA Technical Reference, "Alphanumeric modes").

use crate::Cell;

/// Physical address of the characters in colour modes.
pub const ADDRESS: u64 = 0xb_8000;
/// Bytes that a character takes.
pub const CELL_BYTES: usize = 2;

/// The word that shows a character: its code, then its colours.
pub const fn word(cell: Cell) -> u16 {
    // The fourth bit of the paper makes a character blink.
    let paper = cell.style.paper as u16 & 7;
    cell.character as u16 | (cell.style.ink as u16) << 8 | paper << 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;

    #[test]
    fn a_word_holds_character_ink_and_paper() {
        assert_eq!(word(Cell::BLANK), 0x0720);
        assert_eq!(word(Cell { character: b'A', style: Style::BAR }), 0x1f41);
    }
}
