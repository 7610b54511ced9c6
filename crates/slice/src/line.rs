//! Lines of the front end's tables (`struct lead` in guest/linux/sluice-devfile/lead.h), as the compiler has them: what memory the
//! hand-written ones lead to, and what a [`Lead`] is as one of them.
//!
//! Descriptors, fences, conditions on other fields and what is refused are not read: they are no copies.

use crate::Error;
use crate::ir::{Module, Operand, Type, Variable};
use crate::lead::{From, Lead};
use crate::program::pointed;

/// Fields of a line that say what memory it leads to.
const FIELDS: [&str; 13] = [
    "number",
    "pointer",
    "pointer_bytes",
    "follows",
    "count",
    "count_bytes",
    "sums",
    "size",
    "ways",
    "counted_there",
    "kind",
    "kinds",
    "first_kind",
];
/// The one that points to another table.
const ELEMENTS: &str = "elements";
/// The variable in which the compiler says where the fields are.
const OFFSETS: &str = "sluice_fields";

/// No offset (`NOTHING` in lead.h), and the first number that means something else than an offset or a size (`SAID_ELSEWHERE`).
const NOTHING: u64 = 0xffff;
pub(crate) const SPECIAL: u64 = 0xfffd;
/// The driver reads it, and writes it (sluice.h).
const IN: u64 = 1;
const OUT: u64 = 2;
/// Tables lead to tables no deeper than this.
const MAX_DEPTH: u32 = 8;

/// How many elements there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// One.
    One,
    /// As many as the field at this offset, of so many bytes, says.
    Field(i64, u8),
    /// As many as the front end computes from more than a field of the structure.
    Computed,
}

/// A line that leads to memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// Of the ioctl.
    pub number: u32,
    /// Where the memory is.
    pub from: From,
    /// Bytes of the pointer that leads there; without one, none.
    pub pointer_bytes: u8,
    /// How many elements there are.
    pub count: Count,
    /// Bytes of an element; none: those of a frame of sound, or of a part of it.
    pub size: Option<i64>,
    /// The driver may read it.
    pub is_read: bool,
    /// The driver may write it.
    pub is_written: bool,
    /// A field of the structure, of which four bytes are one of these.
    pub kind: Option<(i64, Vec<i64>)>,
    /// What each element leads to.
    pub elements: Vec<Self>,
}

impl Line {
    /// The line of a command that leads as this does. What is written is read as well: the back end copies all of it back, and
    /// bytes that the driver leaves alone must be those of the program.
    pub fn of(number: u32, lead: &Lead) -> Self {
        Self {
            number,
            from: lead.from,
            pointer_bytes: if matches!(lead.from, From::Pointer(_)) { 8 } else { 0 },
            count: lead.count.map_or(Count::One, |(at, bytes)| Count::Field(at, bytes)),
            size: Some(lead.size),
            is_read: lead.is_read || lead.is_written,
            is_written: lead.is_written,
            kind: lead.kind.clone(),
            elements: lead.elements.iter().map(|element| Self::of(1, element)).collect(),
        }
    }
}

/// C that has the compiler keep a table and say where the fields of a line are, to stand behind the table.
pub fn probe(table: &str) -> String {
    let offsets: Vec<String> =
        FIELDS.iter().chain([&ELEMENTS]).map(|field| format!("offsetof(struct lead, {field})")).collect();
    format!(
        "const struct lead *const sluice_table = {table};\nconst unsigned int {OFFSETS}[] = {{\n\t{}\n}};\n",
        offsets.join(",\n\t")
    )
}

/// The lines of a table that lead to memory, of a file with what [`probe`] says.
///
/// # Errors
/// There is no such table, or it is none of these structures.
pub fn lines(module: &Module, table: &str) -> Result<Vec<Line>, Error> {
    let none = || Error::Table(OFFSETS.to_owned());
    let offsets: Option<Vec<u64>> =
        rows(module, OFFSETS).ok_or_else(none)?.iter().map(|(ty, value)| number(ty, value)).collect();
    let offsets = offsets.filter(|offsets| offsets.len() == FIELDS.len() + 1).ok_or_else(none)?;
    Reader { module, offsets }.table(table, 0)
}

/// The numbers of a constant array of a file.
///
/// # Errors
/// There is no such array.
pub fn numbers(module: &Module, name: &str) -> Result<Vec<u32>, Error> {
    let found: Option<Vec<u32>> = rows(module, name).and_then(|rows| {
        rows.iter().map(|(ty, value)| number(ty, value).and_then(|number| number.try_into().ok())).collect()
    });
    found.ok_or_else(|| Error::Table(name.to_owned()))
}

/// The parts of a constant array, of which all may be zero.
fn rows<'a>(module: &'a Module, name: &str) -> Option<&'a [(Type, Operand)]> {
    match module.variables.get(name)? {
        Variable { value: Some(Operand::Parts(parts)), .. } => Some(parts),
        Variable { ty: Type::Array(..), value: Some(Operand::Zero), .. } => Some(&[]),
        _ => None,
    }
}

/// A constant without its sign.
fn number(ty: &Type, value: &Operand) -> Option<u64> {
    let Type::Int(bits @ 1..=64) = ty else { return None };
    match value {
        Operand::Number(number) => Some(number.cast_unsigned() & u64::MAX >> (64 - bits)),
        Operand::Zero => Some(0),
        _ => None,
    }
}

struct Reader<'a> {
    module: &'a Module,
    /// Of [`FIELDS`] and [`ELEMENTS`] in a line.
    offsets: Vec<u64>,
}

impl Reader<'_> {
    fn table(&self, name: &str, depth: u32) -> Result<Vec<Line>, Error> {
        let wrong = || Error::Table(name.to_owned());
        let mut found = Vec::new();
        for (ty, row) in rows(self.module, name).filter(|_| depth < MAX_DEPTH).ok_or_else(wrong)? {
            // All of it is zero: the end.
            if *row == Operand::Zero {
                break;
            }
            let fields = self.fields(ty, row).ok_or_else(wrong)?;
            let [number, pointer, pointer_bytes, follows, count, count_bytes, sums, size, ways, there, ..] =
                fields;
            if number == 0 {
                break;
            }
            if pointer == NOTHING && follows == NOTHING {
                continue;
            }
            let elements = match self.elements(ty, row).ok_or_else(wrong)? {
                Some(table) => self.table(&table, depth + 1)?,
                None => Vec::new(),
            };
            let (from, pointer_bytes) = match pointer {
                NOTHING => (From::Follows(follows as i64), 0),
                _ => (From::Pointer(pointer as i64), pointer_bytes as u8),
            };
            found.push(Line {
                number: number as u32,
                from,
                pointer_bytes,
                count: match count {
                    NOTHING => Count::One,
                    // A field of the argument is that of the structure there.
                    SPECIAL.. => Count::Computed,
                    _ if sums != 0 || there != 0 && depth > 0 => Count::Computed,
                    _ => Count::Field(count as i64, count_bytes as u8),
                },
                size: (size < SPECIAL).then_some(size as i64),
                is_read: ways & IN != 0,
                is_written: ways & OUT != 0,
                kind: kind(&fields),
                elements,
            });
        }
        Ok(found)
    }

    /// What [`FIELDS`] are in a line.
    fn fields(&self, ty: &Type, row: &Operand) -> Option<[u64; FIELDS.len()]> {
        let mut found = [0; FIELDS.len()];
        for (at, offset) in found.iter_mut().zip(&self.offsets) {
            let (ty, value) = self.part(ty, row, *offset)?;
            *at = number(ty, value)?;
        }
        Some(found)
    }

    /// The name of the table that a line's elements lead by, if there is one.
    fn elements(&self, ty: &Type, row: &Operand) -> Option<Option<String>> {
        match self.part(ty, row, *self.offsets.last()?)?.1 {
            Operand::Zero => Some(None),
            pointer => Some(Some(pointed(pointer)?.to_string())),
        }
    }

    fn part<'a>(&self, ty: &Type, row: &'a Operand, offset: u64) -> Option<(&'a Type, &'a Operand)> {
        let Operand::Parts(parts) = row else { return None };
        let mut parts = parts.iter().enumerate();
        let (_, (ty, value)) =
            parts.find(|(index, _)| self.module.part(ty, *index).is_some_and(|(at, _)| at == offset))?;
        Some((ty, value))
    }
}

/// The numbers that a line's kind must be among.
fn kind(fields: &[u64; FIELDS.len()]) -> Option<(i64, Vec<i64>)> {
    let [.., kind, kinds, first] = *fields;
    let all = (0..32).filter(|bit| kinds >> bit & 1 != 0).map(|bit| (first + bit) as i64);
    (kind != NOTHING).then(|| (kind as i64, all.collect()))
}
