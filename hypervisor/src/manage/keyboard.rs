//! A keyboard behind the 8042 of a PC, which may be a USB keyboard that firmware shows so.
//!
//! Source: IBM PS/2 Hardware Interface Technical Reference, "Keyboard and Auxiliary Device Controller".

use crate::cpu::{self, apic, idt};
use crate::domain::attention;
use crate::irq::ioapic;
use crate::x86::port::{inb, outb};
use pc_keyboard::layouts::Us104Key;
use pc_keyboard::{DecodedKey, HandleControl, KeyCode, PS2Keyboard, ScancodeSet1};
use sluice_screen::View;

const DATA: u16 = 0x60;
const STATUS: u16 = 0x64;
const COMMAND: u16 = 0x64;

const OUTPUT_FULL: u8 = 1 << 0;
const INPUT_FULL: u8 = 1 << 1;
/// What can be read comes from the mouse.
const FROM_MOUSE: u8 = 1 << 5;

const READ_CONFIGURATION: u8 = 0x20;
const WRITE_CONFIGURATION: u8 = 0x60;
const INTERRUPT: u8 = 1 << 0;
const DISABLED: u8 = 1 << 4;
/// Scan codes arrive as those of set 1.
const TRANSLATE: u8 = 1 << 6;

/// ISA interrupt.
const IRQ: u8 = 1;
const VECTOR: u8 = 0x31;
/// Reads of the status before a controller that does not answer is given up.
const PATIENCE: u32 = 100_000;
/// Most bytes that are read in one call.
const MOST_BYTES: usize = 32;

/// What the operator wants.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    /// To see this.
    View(View),
    /// The machine off, once all guests have ended.
    Off,
    /// To type these bytes.
    Type(&'static [u8]),
    /// To type this byte.
    TypeByte(u8),
}

/// The keyboard.
pub struct Keyboard {
    decoder: PS2Keyboard<Us104Key, ScancodeSet1>,
}

impl Keyboard {
    /// Switches the keyboard's interrupt on; `None` if no controller answers.
    pub fn init() -> Option<Self> {
        while_set(OUTPUT_FULL, || {
            inb(DATA);
        })?;
        command(READ_CONFIGURATION)?;
        let configuration = wait_for_answer()?;
        command(WRITE_CONFIGURATION)?;
        while_set(INPUT_FULL, || ())?;
        outb(DATA, configuration & !DISABLED | INTERRUPT | TRANSLATE);
        idt::set_handler(VECTOR, |_| {
            attention::ask();
            apic::eoi();
        });
        ioapic::route_isa(IRQ, VECTOR, cpu::this().apic_id);
        let decoder = PS2Keyboard::new(ScancodeSet1::new(), Us104Key, HandleControl::MapLettersToUnicode);
        Some(Self { decoder })
    }

    /// The next key, if one was pressed.
    pub fn read(&mut self) -> Option<Key> {
        for _ in 0..MOST_BYTES {
            let status = inb(STATUS);
            if status & OUTPUT_FULL == 0 {
                return None;
            }
            let byte = inb(DATA);
            if status & FROM_MOUSE != 0 {
                continue;
            }
            let event = self.decoder.add_byte(byte).ok().flatten();
            let key = event.and_then(|event| self.decoder.process_keyevent(event));
            if let Some(key) = key.and_then(meaning) {
                return Some(key);
            }
        }
        None
    }
}

fn meaning(key: DecodedKey) -> Option<Key> {
    let console = |index| Some(Key::View(View::Console(index)));
    match key {
        DecodedKey::RawKey(code) => match code {
            KeyCode::F1 => console(0),
            KeyCode::F2 => console(1),
            KeyCode::F3 => console(2),
            KeyCode::F4 => console(3),
            KeyCode::F5 => console(4),
            KeyCode::F6 => console(5),
            KeyCode::F7 => console(6),
            KeyCode::F8 => console(7),
            KeyCode::F9 => console(8),
            KeyCode::F10 => Some(Key::View(View::Log)),
            KeyCode::F12 => Some(Key::Off),
            KeyCode::ArrowUp => Some(Key::Type(b"\x1b[A")),
            KeyCode::ArrowDown => Some(Key::Type(b"\x1b[B")),
            KeyCode::ArrowRight => Some(Key::Type(b"\x1b[C")),
            KeyCode::ArrowLeft => Some(Key::Type(b"\x1b[D")),
            _ => None,
        },
        // A serial terminal sends a carriage return, and DEL for a key that erases.
        DecodedKey::Unicode('\n') => Some(Key::TypeByte(b'\r')),
        DecodedKey::Unicode('\u{8}') => Some(Key::TypeByte(0x7f)),
        DecodedKey::Unicode(character) => {
            u8::try_from(character).ok().filter(u8::is_ascii).map(Key::TypeByte)
        }
    }
}

/// Sends a command to the controller.
fn command(command: u8) -> Option<()> {
    while_set(INPUT_FULL, || ())?;
    outb(COMMAND, command);
    Some(())
}

/// Does something as long as a bit of the status is set; `None` if that has no end, or there is no controller.
fn while_set(bit: u8, act: impl Fn()) -> Option<()> {
    const ABSENT: u8 = 0xff;
    for _ in 0..PATIENCE {
        match inb(STATUS) {
            ABSENT => return None,
            status if status & bit == 0 => return Some(()),
            _ => act(),
        }
    }
    None
}

/// Waits for the answer to a command.
fn wait_for_answer() -> Option<u8> {
    (0..PATIENCE).find_map(|_| (inb(STATUS) & OUTPUT_FULL != 0).then(|| inb(DATA)))
}
