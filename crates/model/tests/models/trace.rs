//! Traces of real drivers: accesses as QEMU recorded them.

/// An access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Towards the card.
    pub write: bool,
    /// Bytes.
    pub width: u8,
    /// Where.
    pub offset: u32,
    /// What was written, or read.
    pub value: u32,
}

/// All accesses of a trace, in order. The format is in its first lines.
pub fn parse(text: &str) -> Vec<Access> {
    text.lines().filter(|line| !line.starts_with('#')).flat_map(line).collect()
}

fn line(line: &str) -> impl Iterator<Item = Access> {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let (what, offset, value, times) = (next(), next(), next(), next());
    let hex = |word| u32::from_str_radix(word, 16).expect("hexadecimal");
    let width = what[1..].parse().expect("a width");
    let times = times.strip_prefix('*').map_or(1, |times| times.parse().expect("a number"));
    let access = Access { write: what.starts_with('w'), width, offset: hex(offset), value: hex(value) };
    std::iter::repeat_n(access, times)
}

/// A driver's trace.
pub const RTL8139_C: &str = include_str!("../traces/8139too.txt");
/// A driver's trace.
pub const RTL8139_CPLUS: &str = include_str!("../traces/8139cp.txt");
/// A driver's trace.
pub const E1000: &str = include_str!("../traces/e1000.txt");
