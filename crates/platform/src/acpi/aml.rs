//! Enough of AML to write a DSDT.
//!
//! Source: ACPI 6.4, chapter 20 (encoding) and 6.4 (resource descriptors).

use alloc::vec::Vec;
use core::ops::Range;

/// A name: four characters, padded by underscores.
pub type Name = [u8; 4];

/// Local variable 0 (20.2.6.2).
const LOCAL: u8 = 0x60;

/// AML under construction.
#[derive(Default)]
pub struct Aml(Vec<u8>);

impl Aml {
    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// `Scope (name) { body }`.
    pub fn scope(&mut self, name: Name, body: impl FnOnce(&mut Self)) {
        self.package_of(&[0x10], |aml| {
            aml.0.extend(name);
            body(aml);
        });
    }

    /// `Device (name) { body }`.
    pub fn device(&mut self, name: Name, body: impl FnOnce(&mut Self)) {
        self.package_of(&[0x5B, 0x82], |aml| {
            aml.0.extend(name);
            body(aml);
        });
    }

    /// `Method (name, arguments, Serialized) { body }`.
    pub fn method(&mut self, name: Name, arguments: u8, body: impl FnOnce(&mut Self)) {
        const SERIALIZED: u8 = 1 << 3;
        self.package_of(&[0x14], |aml| {
            aml.0.extend(name);
            aml.0.push(arguments & 7 | SERIALIZED);
            body(aml);
        });
    }

    /// `Name (name, value)`.
    pub fn name(&mut self, name: Name, value: impl FnOnce(&mut Self)) {
        self.0.push(0x08);
        self.0.extend(name);
        value(self);
    }

    /// An absolute name: `\A.B.C`.
    pub fn path(&mut self, names: &[Name]) {
        self.0.push(b'\\');
        match names.len() {
            0 | 1 => {}
            2 => self.0.push(0x2E),
            count => self.0.extend([0x2F, count as u8]),
        }
        self.0.extend(names.as_flattened());
    }

    /// `Notify (object, value)`, of an object by its absolute name.
    pub fn notify(&mut self, object: &[Name], value: u64) {
        self.0.push(0x86);
        self.path(object);
        self.integer(value);
    }

    /// `OperationRegion (name, SystemIO, first, ...)`, and a field of 32 bits with each of these names in it, from `first` up.
    pub fn ports(&mut self, name: Name, first: u16, fields: &[Name]) {
        const SYSTEM_IO: u8 = 1;
        /// Accesses of 32 bits; a method has the field to itself.
        const DWORD_LOCK: u8 = 3 | 1 << 4;
        self.0.extend([0x5B, 0x80]);
        self.0.extend(name);
        self.0.push(SYSTEM_IO);
        self.integer(first.into());
        self.integer(fields.len() as u64 * 4);
        self.package_of(&[0x5B, 0x81], |aml| {
            aml.0.extend(name);
            aml.0.push(DWORD_LOCK);
            for field in fields {
                aml.0.extend(field);
                aml.0.push(u32::BITS as u8);
            }
        });
    }

    /// `Store (value, field)`.
    pub fn store(&mut self, value: u64, field: Name) {
        self.0.push(0x70);
        self.integer(value);
        self.0.extend(field);
    }

    /// `Store (field, LocalN)`, where N is 0-7.
    pub fn load(&mut self, field: Name, local: u8) {
        self.0.push(0x70);
        self.0.extend(field);
        self.0.push(LOCAL | local & 7);
    }

    /// `If (And (LocalN, bits)) { body }`.
    pub fn if_any(&mut self, local: u8, bits: u64, body: impl FnOnce(&mut Self)) {
        self.package_of(&[0xA0], |aml| {
            aml.0.extend([0x7B, LOCAL | local & 7]);
            aml.integer(bits);
            // The result goes nowhere else.
            aml.0.push(0);
            body(aml);
        });
    }

    /// `If (LEqual (Arg0, value)) { body }`.
    pub fn if_argument(&mut self, value: u64, body: impl FnOnce(&mut Self)) {
        self.package_of(&[0xA0], |aml| {
            aml.0.extend([0x93, 0x68]);
            aml.integer(value);
            body(aml);
        });
    }

    /// `Package () { ... }` of `count` elements, which `body` writes.
    pub fn package(&mut self, count: u8, body: impl FnOnce(&mut Self)) {
        self.package_of(&[0x12], |aml| {
            aml.0.push(count);
            body(aml);
        });
    }

    /// An integer, in its shortest form.
    pub fn integer(&mut self, value: u64) {
        let bytes = value.to_le_bytes();
        let (prefix, length) = match value {
            0 | 1 => return self.0.push(value as u8),
            2..=0xFF => (0x0A, 1),
            0x100..=0xFFFF => (0x0B, 2),
            0x1_0000..=0xFFFF_FFFF => (0x0C, 4),
            _ => (0x0E, 8),
        };
        self.0.push(prefix);
        self.0.extend(bytes.into_iter().take(length));
    }

    /// A string.
    pub fn string(&mut self, value: &str) {
        self.0.push(0x0D);
        self.0.extend(value.bytes());
        self.0.push(0);
    }

    /// `EisaId ("PNPxxxx")`, given the four hexadecimal digits as a number.
    pub fn pnp_id(&mut self, product: u16) {
        // Three letters of five bits each, most significant first.
        let letters = b"PNP".iter().fold(0u16, |all, letter| all << 5 | u16::from(letter & 0x1F));
        let [l0, l1] = letters.to_be_bytes();
        let [p0, p1] = product.to_be_bytes();
        self.0.push(0x0C);
        self.0.extend([l0, l1, p0, p1]);
    }

    /// `ResourceTemplate () { ... }`.
    pub fn resources(&mut self, body: impl FnOnce(&mut Resources)) {
        let mut resources = Resources(Vec::new());
        body(&mut resources);
        // End tag; a checksum of zero counts as right.
        resources.0.extend([0x79, 0]);
        self.package_of(&[0x11], |aml| {
            aml.integer(resources.0.len() as u64);
            aml.0.extend(resources.0);
        });
    }

    /// An opcode, the length of what follows (itself included, 20.2.4), and that.
    fn package_of(&mut self, opcode: &[u8], body: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        body(&mut inner);
        let length = inner.0.len();
        self.0.extend(opcode);
        let more = match length {
            0..=0x3E => 0,
            0x3F..=0xFFD => 1,
            0xFFE..=0xF_FFFC => 2,
            _ => 3,
        };
        let total = length + 1 + more;
        if more == 0 {
            self.0.push(total as u8);
        } else {
            self.0.push((more as u8) << 6 | total as u8 & 0xF);
            self.0.extend((total >> 4).to_le_bytes().into_iter().take(more));
        }
        self.0.extend(inner.0);
    }
}

/// What an address space descriptor is about (6.4.3.5).
#[derive(Clone, Copy)]
pub enum Space {
    /// Memory, read-write and not cacheable.
    Memory,
    /// Ports, all 16 bits decoded.
    Io,
    /// Bus numbers.
    Bus,
}

/// Resource descriptors under construction.
pub struct Resources(Vec<u8>);

impl Resources {
    /// Ports that a device decodes (6.4.2.5).
    pub fn ports(&mut self, first: u16, count: u8) {
        self.0.extend([0x47, 1]);
        self.0.extend(first.to_le_bytes());
        self.0.extend(first.to_le_bytes());
        self.0.extend([1, count]);
    }

    /// Memory that a device decodes (6.4.3.4).
    pub fn memory(&mut self, base: u32, size: u32) {
        self.0.extend([0x86, 9, 0, 1]);
        self.0.extend(base.to_le_bytes());
        self.0.extend(size.to_le_bytes());
    }

    /// An edge-triggered, active-high interrupt of a device's own (6.4.3.6).
    pub fn edge_interrupt(&mut self, gsi: u8) {
        self.0.extend([0x89, 6, 0, 0b0011, 1]);
        self.0.extend(u32::from(gsi).to_le_bytes());
    }

    /// A window that a bridge passes on, in fields of 2, 4 or 8 bytes (6.4.3.5.1-3). None if it is empty.
    pub fn window(&mut self, space: Space, width: usize, window: Range<u64>) {
        // Both ends are fixed.
        const PRODUCER: u8 = 1 << 2 | 1 << 3;
        let tag = match width {
            2 => 0x88,
            4 => 0x87,
            _ => 0x8a,
        };
        let (kind, flags) = match space {
            Space::Memory => (0, 0b01),
            Space::Io => (1, 0b11),
            Space::Bus => (2, 0),
        };
        if window.is_empty() {
            return;
        }
        self.0.push(tag);
        self.0.extend(((3 + 5 * width) as u16).to_le_bytes());
        self.0.extend([kind, PRODUCER, flags]);
        // Granularity, minimum, maximum, translation, length.
        for field in [0, window.start, window.end - 1, 0, window.end - window.start] {
            self.0.extend(field.to_le_bytes().into_iter().take(width));
        }
    }
}
