//! The bundle: a cpio archive in the "newc" format, whose members are found by name.
//!
//! The reader trusts nothing in the archive: a header that is damaged or reaches beyond the bytes ends it.
//!
//! Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

/// Member that holds the encoded [`crate::config::Config`].
pub const CONFIG: &str = "config";

const MAGIC: &[u8] = b"070701";
const HEADER: usize = 110;
const SIZE_FIELD: usize = 54;
const NAME_FIELD: usize = 94;
const TRAILER: &[u8] = b"TRAILER!!!";

/// An archive.
#[derive(Clone, Copy, Debug)]
pub struct Bundle<'a> {
    bytes: &'a [u8],
}

impl<'a> Bundle<'a> {
    /// An archive over `bytes`; nothing is checked yet.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Contents of the member of that name, the first if there are several.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.members().find(|member| member.name == name.as_bytes()).map(|member| member.data)
    }

    /// Members in order, up to the trailer or the first damage.
    pub fn members(&self) -> Members<'a> {
        Members { bytes: self.bytes, at: 0 }
    }
}

/// A file in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Path as it was archived, without the final zero.
    pub name: &'a [u8],
    /// Contents.
    pub data: &'a [u8],
}

/// Iterator over members.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A header field: eight hexadecimal digits.
fn field(header: &[u8], at: usize) -> Option<usize> {
    header.get(at..at + 8)?.iter().try_fold(0usize, |value, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(value << 4 | digit as usize)
    })
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let rest = self.bytes.get(self.at..)?;
        let header = rest.get(..HEADER).filter(|header| header.starts_with(MAGIC))?;
        let name_bytes = field(header, NAME_FIELD)?;
        let size = field(header, SIZE_FIELD)?;
        // Name and contents are each padded to a multiple of four, counted from the header.
        let name_end = HEADER.checked_add(name_bytes)?;
        let data_start = name_end.checked_next_multiple_of(4)?;
        let data_end = data_start.checked_add(size)?;
        let name = rest.get(HEADER..name_end)?.strip_suffix(b"\0")?;
        let data = rest.get(data_start..data_end)?;
        if name == TRAILER {
            return None;
        }
        self.at = self.at.checked_add(data_end.checked_next_multiple_of(4)?)?;
        Some(Member { name, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    fn member(name: &str, data: &[u8]) -> Vec<u8> {
        let fields: alloc::string::String = (0..13u64)
            .map(|n| format!("{:08x}", [0, data.len() as u64, 1 + name.len() as u64][field_of(n)]))
            .collect();
        let mut bytes = Vec::from(format!("070701{fields}{name}\0"));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Which of nothing, size of contents and size of name is the n-th field.
    fn field_of(n: u64) -> usize {
        match n {
            6 => 1,
            11 => 2,
            _ => 0,
        }
    }

    #[test]
    fn members_are_found_up_to_the_trailer() {
        let mut bytes = member(CONFIG, b"abcde");
        bytes.extend(member("kernel", b""));
        bytes.extend(member("TRAILER!!!", b""));
        bytes.extend(member("hidden", b"x"));
        let bundle = Bundle::new(&bytes);
        assert_eq!(bundle.get(CONFIG), Some(&b"abcde"[..]));
        assert_eq!(bundle.get("kernel"), Some(&b""[..]));
        assert_eq!((bundle.get("hidden"), bundle.members().count()), (None, 2));
    }

    #[test]
    fn damage_ends_the_archive() {
        let mut bytes = member(CONFIG, b"abcde");
        bytes.extend(member("kernel", b"12345678"));
        for len in 0..bytes.len() {
            assert!(Bundle::new(&bytes[..len]).get("kernel").is_none(), "cut off at {len}");
        }
        bytes[54..62].copy_from_slice(b"ffffffff");
        assert_eq!(Bundle::new(&bytes).members().count(), 0);
        bytes[54] = b'x';
        assert_eq!(Bundle::new(&bytes).members().count(), 0);
    }

    #[test]
    fn a_member_without_the_magic_is_none() {
        let fine = member(CONFIG, b"abcde");
        for at in 0..MAGIC.len() {
            let mut bytes = fine.clone();
            bytes[at] ^= 1;
            assert_eq!(Bundle::new(&bytes).members().count(), 0, "byte {at}");
        }
    }
}
