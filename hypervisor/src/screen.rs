//! The machine's screen, as the boot loader leaves it: the text mode of a VGA, or pixels.
//!
//! Whoever manages domains shows pages on it ([`show`]); a failure shows the end of the log ([`show_log`]), and what is on the
//! screen then stays there. `sluice_screen` says how pages look; here is the memory that they go to.

use crate::handover::{BootInfo, Display};
use crate::log;
use crate::mm::{self, Hpa};
use crate::sync::{Rank, SpinLock};
use alloc::boxed::Box;
use sluice_screen::{Canvas, Cell, Framebuffer, Pixels, Screen, Style, Surface, text_mode};

/// Tries for the lock whose holder may have been stopped.
const PATIENCE: u32 = 1_000_000;
/// Most characters of a text mode, one way.
const MOST: u32 = 512;

type Machine = Screen<Box<dyn Surface + Send>>;

static SCREEN: SpinLock<Option<Machine>> = SpinLock::new(Rank::Screen, None);

/// Memory of a screen.
struct Memory {
    start: *mut u8,
    bytes: u64,
}

// SAFETY: the pointer leads to memory of the screen, mapped on every processor for the rest of the run.
unsafe impl Send for Memory {}

impl Memory {
    fn map(address: Hpa, bytes: u64) -> Self {
        Self { start: mm::map_mmio(address, bytes), bytes }
    }
}

impl Pixels for Memory {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return;
        }
        for (place, byte) in (offset as usize..).zip(bytes) {
            // SAFETY: the place is inside of the mapped memory, as was just checked; nothing else is kept in it.
            unsafe { self.start.add(place).write_volatile(*byte) };
        }
    }
}

/// The text mode of a VGA.
struct TextMode {
    memory: Memory,
    columns: u32,
    rows: u32,
    pitch: u32,
}

impl Surface for TextMode {
    fn columns(&self) -> usize {
        self.columns as usize
    }

    fn rows(&self) -> usize {
        self.rows as usize
    }

    fn show(&mut self, row: usize, column: usize, cell: Cell) {
        if row < self.rows() && column < self.columns() {
            let at = row * self.pitch as usize + column * text_mode::CELL_BYTES;
            self.memory.write(at as u64, &text_mode::word(cell).to_le_bytes());
        }
    }
}

/// Takes over the screen that the boot loader describes, if it does. After memory and the heap are there.
pub fn init(info: &BootInfo) {
    let surface: Option<Box<dyn Surface + Send>> = match info.display {
        Some(Display::Text { address, columns, rows, pitch })
            if (1..=MOST).contains(&columns)
                && (1..=MOST).contains(&rows)
                && (columns * text_mode::CELL_BYTES as u32..=MOST * 4).contains(&pitch) =>
        {
            let memory = Memory::map(address, u64::from(rows) * u64::from(pitch));
            Some(Box::new(TextMode { memory, columns, rows, pitch }))
        }
        Some(Display::Text { columns, rows, pitch, .. }) => {
            ::log::warn!("screen: {columns} by {rows} characters in rows of {pitch} bytes cannot be");
            None
        }
        Some(Display::Pixels { address, geometry }) => {
            match Framebuffer::new(Memory::map(address, geometry.bytes()), geometry) {
                Ok(framebuffer) => Some(Box::new(framebuffer)),
                Err(error) => {
                    ::log::warn!("screen: {geometry:?} cannot be used: {error:?}");
                    None
                }
            }
        }
        None => None,
    };
    let Some(surface) = surface else { return };
    ::log::info!("screen: {} columns, {} rows", surface.columns(), surface.rows());
    *SCREEN.lock() = Some(Screen::new(surface));
}

/// Whether there is a screen.
pub fn is_present() -> bool {
    SCREEN.lock().is_some()
}

/// Shows a page, which `draw` fills.
pub fn show(draw: impl FnOnce(&mut Canvas)) {
    if let Some(screen) = SCREEN.lock().as_mut() {
        let mut page = screen.page();
        draw(&mut page);
        screen.show(page);
    }
}

/// Shows a title and the end of the log below it. For failures: it neither allocates nor waits for ever.
pub fn show_log(title: &str, style: Style) {
    if let Some(mut screen) = SCREEN.lock_for(PATIENCE)
        && let Some(screen) = screen.as_mut()
    {
        log::with_kept(true, |kept| screen.show_last_words(title, style, kept));
    }
}
