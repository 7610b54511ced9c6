//! A screen of pixels in memory, as a boot loader leaves it (Multiboot2 Specification 2.0, 3.6.13, "Framebuffer info").

use crate::{Cell, Colour, Surface};
use embedded_graphics::geometry::{OriginDimensions, Point};
use embedded_graphics::image::GetPixel;
use embedded_graphics::mono_font::MonoFont;
use embedded_graphics::mono_font::ascii::{FONT_6X10, FONT_8X13, FONT_10X20};
use embedded_graphics::pixelcolor::BinaryColor;

/// Most bytes of a row of one character.
const MOST_BYTES: usize = 10 * 4;

/// Where a pixel has one of its colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Lowest bit.
    pub position: u8,
    /// Bits, 1-8.
    pub bits: u8,
}

/// How pixels lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Pixels in a row.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
    /// Bytes from a row to the next.
    pub pitch: u32,
    /// Bits of a pixel: 15, 16, 24 or 32.
    pub bits: u8,
    /// Red, green and blue.
    pub channels: [Channel; 3],
}

/// Why a screen cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// Its pixels have another size than 15, 16, 24 or 32 bits, or a colour that is not in them.
    Pixels,
    /// A row is longer than what lies between two of them.
    Pitch,
    /// It is smaller than a character, or larger than 16,384 pixels one way.
    Size,
}

impl Geometry {
    const LARGEST: u32 = 16_384;

    fn pixel_bytes(&self) -> u32 {
        u32::from(self.bits).div_ceil(8)
    }

    fn check(&self) -> Result<(), GeometryError> {
        let inside = |channel: &Channel| {
            (1..=8).contains(&channel.bits) && channel.position.saturating_add(channel.bits) <= self.bits
        };
        if !matches!(self.bits, 15 | 16 | 24 | 32) || !self.channels.iter().all(inside) {
            return Err(GeometryError::Pixels);
        }
        let smallest = FONT_6X10.character_size;
        if !(smallest.width..=Self::LARGEST).contains(&self.width)
            || !(smallest.height..=Self::LARGEST).contains(&self.height)
        {
            return Err(GeometryError::Size);
        }
        if self.pitch < self.width * self.pixel_bytes() || self.pitch > Self::LARGEST * 8 {
            return Err(GeometryError::Pitch);
        }
        Ok(())
    }

    /// Bytes of the whole screen.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pitch) * u64::from(self.height)
    }

    /// The value of a pixel of this colour, red, green and blue of 8 bits each.
    fn pixel(&self, colour: [u8; 3]) -> u32 {
        let parts = self.channels.iter().zip(colour);
        parts.map(|(channel, part)| u32::from(part >> (8 - channel.bits)) << channel.position).sum()
    }
}

/// Memory of a screen.
pub trait Pixels {
    /// Writes bytes at an offset, which are inside of [`Geometry::bytes`].
    fn write(&mut self, offset: u64, bytes: &[u8]);
}

/// A screen of pixels that shows characters.
pub struct Framebuffer<P> {
    pixels: P,
    geometry: Geometry,
    font: &'static MonoFont<'static>,
}

impl<P: Pixels> Framebuffer<P> {
    /// A screen; the font is the largest of three that leaves room for 100 columns and 30 rows, else the next.
    ///
    /// # Errors
    /// See [`GeometryError`].
    pub fn new(pixels: P, geometry: Geometry) -> Result<Self, GeometryError> {
        geometry.check()?;
        let font = font_for(geometry.width, geometry.height);
        Ok(Self { pixels, geometry, font })
    }
}

/// The font of a screen of so many pixels.
pub(crate) fn font_for(width: u32, height: u32) -> &'static MonoFont<'static> {
    let roomy = |font: &&MonoFont<'_>| {
        let size = font.character_size;
        width >= 100 * size.width && height >= 30 * size.height
    };
    [&FONT_10X20, &FONT_8X13].into_iter().find(roomy).unwrap_or(&FONT_6X10)
}

/// Whether a pixel of a character is ink.
pub(crate) fn glyph(font: &MonoFont<'_>, character: u8, x: u32, y: u32) -> bool {
    let size = font.character_size;
    let index = font.glyph_mapping.index(char::from(character)) as u32;
    let across = (font.image.size().width / size.width).max(1);
    let point =
        Point::new((index % across * size.width + x) as i32, (index / across * size.height + y) as i32);
    font.image.pixel(point) == Some(BinaryColor::On)
}

impl<P: Pixels> Surface for Framebuffer<P> {
    fn columns(&self) -> usize {
        (self.geometry.width / self.font.character_size.width) as usize
    }

    fn rows(&self) -> usize {
        (self.geometry.height / self.font.character_size.height) as usize
    }

    fn show(&mut self, row: usize, column: usize, cell: Cell) {
        if row >= self.rows() || column >= self.columns() {
            return;
        }
        let size = self.font.character_size;
        let bytes = self.geometry.pixel_bytes();
        let [ink, paper] = [cell.style.ink, cell.style.paper].map(|colour| self.geometry.pixel(rgb(colour)));
        let at = column as u64 * u64::from(size.width) * u64::from(bytes)
            + row as u64 * u64::from(size.height) * u64::from(self.geometry.pitch);
        for y in 0..size.height {
            let mut line = [0; MOST_BYTES];
            for (x, pixel) in (0..size.width).zip(line.chunks_exact_mut(bytes as usize)) {
                let value = if glyph(self.font, cell.character, x, y) { ink } else { paper };
                pixel.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
            }
            let used = line.get(..(size.width * bytes) as usize).unwrap_or_default();
            self.pixels.write(at + u64::from(y) * u64::from(self.geometry.pitch), used);
        }
    }
}

/// Red, green and blue of a colour, as a VGA shows it.
const fn rgb(colour: Colour) -> [u8; 3] {
    match colour {
        Colour::Black => [0, 0, 0],
        Colour::Blue => [0, 0, 0xaa],
        Colour::DarkRed => [0xaa, 0, 0],
        Colour::Grey => [0xaa, 0xaa, 0xaa],
        Colour::Green => [0x55, 0xff, 0x55],
        Colour::Cyan => [0x55, 0xff, 0xff],
        Colour::Red => [0xff, 0x55, 0x55],
        Colour::Yellow => [0xff, 0xff, 0x55],
        Colour::White => [0xff, 0xff, 0xff],
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Style;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    pub(crate) struct Memory(Vec<u8>);

    impl Pixels for Memory {
        fn write(&mut self, offset: u64, bytes: &[u8]) {
            let offset = offset as usize;
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    const RGB: [Channel; 3] = [
        Channel { position: 16, bits: 8 },
        Channel { position: 8, bits: 8 },
        Channel { position: 0, bits: 8 },
    ];

    pub(crate) fn geometry(width: u32, height: u32) -> Geometry {
        Geometry { width, height, pitch: width * 4, bits: 32, channels: RGB }
    }

    pub(crate) fn screen(geometry: Geometry) -> Framebuffer<Memory> {
        Framebuffer::new(Memory(vec![0; geometry.bytes() as usize]), geometry).unwrap()
    }

    impl Framebuffer<Memory> {
        pub(crate) fn memory(&self) -> &[u8] {
            &self.pixels.0
        }
    }

    /// The picture of a screen, `#` for everything that is not black.
    fn picture(screen: &Framebuffer<Memory>, width: usize, height: usize) -> Vec<alloc::string::String> {
        let Geometry { pitch, bits, .. } = screen.geometry;
        let bytes = usize::from(bits.div_ceil(8));
        let row = |y: usize| {
            let pixels = screen.pixels.0[y * pitch as usize..].chunks(bytes).take(width);
            pixels.map(|pixel| if pixel.iter().all(|byte| *byte == 0) { '.' } else { '#' }).collect()
        };
        (0..height).map(row).collect()
    }

    #[test]
    fn a_letter_is_drawn_where_it_belongs() {
        let mut screen = screen(geometry(320, 200));
        assert_eq!((screen.columns(), screen.rows()), (53, 20));
        screen.show(0, 0, Cell { character: b'T', style: Style::on_black(Colour::White) });
        let expected = [
            "......", ".#####", "...#..", "...#..", "...#..", "...#..", "...#..", "...#..", "......",
            "......",
        ];
        let drawn = picture(&screen, 6, 10);
        // The font leaves the first or the last column free.
        let shift = |line: &str| line.replace('.', "").len();
        assert_eq!(
            drawn.iter().map(|line| shift(line)).collect::<Vec<_>>(),
            expected.map(shift),
            "{drawn:#?}"
        );
        screen.show(20, 0, Cell { character: b'T', style: Style::BAR });
        screen.show(0, 53, Cell { character: b'T', style: Style::BAR });
        assert_eq!(picture(&screen, 6, 10), drawn, "outside there is nothing");
    }

    #[test]
    fn the_font_fits_the_screen() {
        for (size, expected) in [((640, 480), (106, 48)), ((800, 600), (100, 46)), ((1024, 768), (102, 38))] {
            let screen = screen(geometry(size.0, size.1));
            assert_eq!((screen.columns(), screen.rows()), expected, "{size:?}");
        }
    }

    #[test]
    fn colours_are_where_the_channels_are() {
        let narrow = [(11, 5), (5, 6), (0, 5)].map(|(position, bits)| Channel { position, bits });
        let geometry = Geometry { bits: 16, channels: narrow, ..geometry(100, 100) };
        assert_eq!(geometry.pixel([0xff, 0, 0]), 0xf800);
        assert_eq!(geometry.pixel([0x55, 0xff, 0x55]), 0x57ea);
        let mut screen = screen(geometry);
        screen.show(0, 0, Cell { character: b' ', style: Style { paper: Colour::Blue, ink: Colour::White } });
        assert_eq!(screen.pixels.0[..4], [0x15, 0, 0x15, 0]);
    }

    #[test]
    fn what_a_loader_says_is_checked() {
        let good = geometry(640, 480);
        let error = |geometry: Geometry| Framebuffer::new(Memory(vec![]), geometry).err();
        assert_eq!(error(good), None);
        assert_eq!(error(Geometry { bits: 8, ..good }), Some(GeometryError::Pixels));
        assert_eq!(error(Geometry { bits: 16, ..good }), Some(GeometryError::Pixels));
        let [red, green, _] = RGB;
        for (position, bits) in [(0, 0), (0, 9), (255, 8), (25, 8)] {
            let channels = [red, green, Channel { position, bits }];
            assert_eq!(
                error(Geometry { channels, ..good }),
                Some(GeometryError::Pixels),
                "{position} {bits}"
            );
        }
        assert_eq!(error(Geometry { pitch: 2559, ..good }), Some(GeometryError::Pitch));
        assert_eq!(error(Geometry { pitch: u32::MAX, ..good }), Some(GeometryError::Pitch));
        assert_eq!(error(Geometry { width: 0, ..good }), Some(GeometryError::Size));
        assert_eq!(error(Geometry { height: u32::MAX, ..good }), Some(GeometryError::Size));
    }

    proptest! {
        #[test]
        fn nothing_is_written_outside(
            width in 6u32..200, height in 10u32..100, more in 0u32..9, bits in prop::sample::select(vec![24u8, 32]),
            row in 0usize..12, column in 0usize..40, character: u8,
        ) {
            let pitch = width * u32::from(bits / 8) + more;
            let geometry = Geometry { width, height, pitch, bits, channels: RGB };
            // Panics if it is.
            screen(geometry).show(row, column, Cell { character, style: Style::PLAIN });
        }
    }
}
