//! Characters in rows and columns, before they are on any screen.

use alloc::vec;
use alloc::vec::Vec;

/// A colour, by its number in the text mode of a VGA (IBM VGA Technical Reference, "Attribute byte").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Colour {
    /// Black.
    Black = 0,
    /// Blue.
    Blue = 1,
    /// Dark red.
    DarkRed = 4,
    /// Light grey.
    Grey = 7,
    /// Light green.
    Green = 10,
    /// Light cyan.
    Cyan = 11,
    /// Light red.
    Red = 12,
    /// Yellow.
    Yellow = 14,
    /// White.
    White = 15,
}

/// Colours of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Of the strokes.
    pub ink: Colour,
    /// Behind them; one of the first eight.
    pub paper: Colour,
}

impl Style {
    /// Ordinary text.
    pub const PLAIN: Self = Self::on_black(Colour::Grey);
    /// Lines that divide the screen.
    pub const BAR: Self = Self { ink: Colour::White, paper: Colour::Blue };

    /// The title of a failure.
    pub const FAILURE: Self = Self { ink: Colour::White, paper: Colour::DarkRed };

    /// A colour on black.
    pub const fn on_black(ink: Colour) -> Self {
        Self { ink, paper: Colour::Black }
    }
}

/// One character of a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// A printable ASCII character.
    pub character: u8,
    /// Its colours.
    pub style: Style,
}

impl Cell {
    /// Nothing.
    pub const BLANK: Self = Self { character: b' ', style: Style::PLAIN };
}

/// A page of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canvas {
    columns: usize,
    cells: Vec<Cell>,
}

impl Canvas {
    /// A blank page.
    pub fn new(columns: usize, rows: usize) -> Self {
        Self { columns, cells: vec![Cell::BLANK; columns * rows] }
    }

    /// Characters in a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.cells.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Makes it blank.
    pub fn clear(&mut self) {
        self.cells.fill(Cell::BLANK);
    }

    /// A row; empty if there is none.
    pub fn row(&self, row: usize) -> &[Cell] {
        self.cells.chunks(self.columns.max(1)).nth(row).unwrap_or_default()
    }

    /// The text of a row, without the blanks at its end.
    pub fn text(&self, row: usize) -> alloc::string::String {
        let text: alloc::string::String =
            self.row(row).iter().map(|cell| char::from(cell.character)).collect();
        text.trim_end().into()
    }

    /// Puts text at a place, cut off at the end of the row; what is not printable ASCII becomes `?`. Returns the column after it.
    pub fn put(&mut self, row: usize, column: usize, text: &str, style: Style) -> usize {
        let start = row.saturating_mul(self.columns).saturating_add(column.min(self.columns));
        let room = self.columns.saturating_sub(column);
        let cells = self.cells.get_mut(start..).unwrap_or_default().iter_mut().take(room);
        let mut end = column;
        for (cell, character) in cells.zip(text.chars()) {
            let character = u8::try_from(character).ok().filter(|byte| matches!(byte, b' '..=b'~'));
            *cell = Cell { character: character.unwrap_or(b'?'), style };
            end += 1;
        }
        end
    }

    /// Fills a row with blanks of a style.
    pub fn fill(&mut self, row: usize, style: Style) {
        let columns = self.columns;
        let row = self.cells.chunks_mut(columns.max(1)).nth(row).unwrap_or_default();
        row.fill(Cell { style, ..Cell::BLANK });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_where_its_row_ends() {
        let mut canvas = Canvas::new(10, 2);
        assert_eq!(canvas.put(0, 6, "abcdefgh", Style::PLAIN), 10);
        assert_eq!(canvas.put(1, 0, "x\u{1b}[2Jü", Style::PLAIN), 6);
        assert_eq!(canvas.put(2, 0, "below", Style::PLAIN), 0);
        assert_eq!(canvas.put(0, 10, "beside", Style::PLAIN), 10);
        assert_eq!((canvas.text(0), canvas.text(1)), ("      abcd".into(), "x?[2J?".into()));
        assert_eq!((canvas.columns(), canvas.rows(), canvas.row(2)), (10, 2, &[][..]));
    }
}
