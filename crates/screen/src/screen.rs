//! A canvas on its way to the machine's screen.

use crate::tail::wrap;
use crate::{Canvas, Cell, Lines, Style};
use alloc::boxed::Box;

/// A screen that shows characters.
pub trait Surface {
    /// Characters in a row.
    fn columns(&self) -> usize;

    /// Rows of characters.
    fn rows(&self) -> usize;

    /// Shows a character. Nothing happens outside of the screen.
    fn show(&mut self, row: usize, column: usize, cell: Cell);
}

impl<S: Surface + ?Sized> Surface for Box<S> {
    fn columns(&self) -> usize {
        (**self).columns()
    }

    fn rows(&self) -> usize {
        (**self).rows()
    }

    fn show(&mut self, row: usize, column: usize, cell: Cell) {
        (**self).show(row, column, cell);
    }
}

/// A surface and what is on it.
#[derive(Debug)]
pub struct Screen<S> {
    surface: S,
    shown: Canvas,
    /// What is on the surface is not known.
    foreign: bool,
}

impl<S: Surface> Screen<S> {
    /// A screen with something else's picture on it.
    pub fn new(surface: S) -> Self {
        let shown = Canvas::new(surface.columns(), surface.rows());
        Self { surface, shown, foreign: true }
    }

    /// A blank page of the screen's size.
    pub fn page(&self) -> Canvas {
        Canvas::new(self.shown.columns(), self.shown.rows())
    }

    /// Shows a page; writes what differs from the one before. Returns how many characters it wrote.
    pub fn show(&mut self, page: Canvas) -> usize {
        let mut written = 0;
        for row in 0..page.rows() {
            for (column, cell) in page.row(row).iter().enumerate() {
                if self.foreign || self.shown.row(row).get(column) != Some(cell) {
                    self.surface.show(row, column, *cell);
                    written += 1;
                }
            }
        }
        self.shown = page;
        self.foreign = false;
        written
    }

    /// Shows a title and the end of a text, for when nothing else can be trusted any more: it needs no allocator.
    pub fn show_last_words(&mut self, title: &str, style: Style, text: &dyn Lines) {
        let (columns, rows) = (self.surface.columns(), self.surface.rows());
        self.foreign = true;
        self.line(0, title, style);
        let mut next = 1;
        wrap(text, columns, rows.saturating_sub(1), |row, line| {
            self.line(row + 1, line, Style::PLAIN);
            next = row + 2;
        });
        (next..rows).for_each(|row| self.line(row, "", Style::PLAIN));
    }

    /// Writes a row: text and blanks.
    fn line(&mut self, row: usize, text: &str, style: Style) {
        let blanks = core::iter::repeat(b' ');
        for (column, character) in text.bytes().chain(blanks).take(self.surface.columns()).enumerate() {
            self.surface.show(row, column, Cell { character, style });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;
    use alloc::vec::Vec;

    struct Recorder(Vec<(usize, usize, u8)>);

    impl Surface for Recorder {
        fn columns(&self) -> usize {
            4
        }

        fn rows(&self) -> usize {
            2
        }

        fn show(&mut self, row: usize, column: usize, cell: Cell) {
            self.0.push((row, column, cell.character));
        }
    }

    #[test]
    fn last_words_fill_the_screen() {
        let mut screen = Screen::new(Recorder(Vec::new()));
        let mut text = crate::Tail::<4, 8>::new();
        text.push(b"first\nno\n");
        screen.show_last_words("Stop: why", Style::BAR, &text);
        let written: Vec<u8> = screen.surface.0.iter().map(|(_, _, character)| *character).collect();
        assert_eq!(written, b"Stopno  ");
        assert_eq!(screen.show(screen.page()), 8, "the next page is written whole");
    }

    #[test]
    fn only_what_changed_is_written_after_the_first_page() {
        let mut screen = Screen::new(Recorder(Vec::new()));
        assert_eq!(screen.show(screen.page()), 8, "whatever was there is overwritten");
        let mut page = screen.page();
        page.put(1, 2, "x", Style::PLAIN);
        assert_eq!(screen.show(page.clone()), 1);
        assert_eq!(screen.surface.0.last(), Some(&(1, 2, b'x')));
        assert_eq!(screen.show(page), 0);
    }
}
