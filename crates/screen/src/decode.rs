//! Reads a picture of a screen back, for tests.

use crate::framebuffer::{font_for, glyph};
use alloc::string::String;
use alloc::vec::Vec;

/// The text of a picture of `width` by `height` pixels, of which `pixel` gives a value that is the same for the same colour: a line
/// for each row of characters, without blanks at its end. What is no character that a [`Framebuffer`](crate::Framebuffer) shows
/// becomes `\u{fffd}`.
pub fn text(width: u32, height: u32, pixel: impl Fn(u32, u32) -> u32) -> Vec<String> {
    let font = font_for(width, height);
    let size = font.character_size;
    let read = |left: u32, top: u32| {
        let paper = pixel(left, top);
        let fits = |character: &u8| {
            let mut points = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (x, y)));
            points.all(|(x, y)| (pixel(left + x, top + y) != paper) == glyph(font, *character, x, y))
        };
        (b' '..=b'~').find(fits).map_or('\u{fffd}', char::from)
    };
    let row = |row: u32| {
        let columns = 0..width / size.width;
        let line: String = columns.map(|column| read(column * size.width, row * size.height)).collect();
        line.trim_end().into()
    };
    (0..height / size.height).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framebuffer::tests::{geometry, screen};
    use crate::{Cell, Style, Surface};

    #[test]
    fn what_was_shown_is_read() {
        for (width, height) in [(320, 200), (800, 600), (1024, 768)] {
            let mut shown = screen(geometry(width, height));
            let line: String = (b' '..=b'~').map(char::from).collect();
            for (row, style) in [(0, Style::PLAIN), (1, Style::BAR), (2, Style::FAILURE)] {
                for (column, character) in line.bytes().take(shown.columns()).enumerate() {
                    shown.show(row, column, Cell { character, style });
                }
            }
            let pixels = shown.memory();
            let read = text(width, height, |x, y| {
                let at = (y * width + x) as usize * 4;
                u32::from_le_bytes(pixels[at..at + 4].try_into().unwrap())
            });
            for row in &read[..3] {
                assert_eq!(row, &line[..shown.columns().min(line.len())]);
            }
            assert_eq!(read[3], "");
        }
    }
}
