//! What commands copy, from having seen some of them: for those of which the driver's source does not say it.
//!
//! What was seen says where, and not why. So a pointer is a field that has the address of what was copied, and a count is a field by which
//! what was copied is never more, and sometimes as much. What comes out is a proposal, which somebody looks through: each guess is among the
//! [reasons](Slice::reasons), and what no field explains as well.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 4.1, for what is to be known of a command. The source
//! has it from the driver's code alone.

use crate::lead::{From, Lead, Slice};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

/// How deep pointers are followed, as in the walk of a driver's source.
const DEEPEST: usize = 8;

/// Memory that a driver reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copy {
    /// Where, in the program's memory.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// The driver wrote it; else it read.
    pub is_written: bool,
}

/// A command that was given, and what the driver did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Of the ioctl.
    pub number: u32,
    /// Where its argument is.
    pub argument: u64,
    /// The structure there, before the driver had it: as many bytes as the number says.
    pub structure: Vec<u8>,
    /// What the driver reached, in any order.
    pub copies: Vec<Copy>,
    /// What is at places that the driver read, when it was done.
    pub memory: Vec<(u64, Vec<u8>)>,
    /// Functions by which the driver took hold of the program's memory, to use it on.
    pub holds: BTreeSet<String>,
}

impl Sample {
    /// What is at an address, as far as it is known.
    fn at(&self, address: u64, bytes: u64) -> Option<&[u8]> {
        self.memory.iter().find_map(|(from, there)| {
            let after = usize::try_from(address.checked_sub(*from)?).ok()?;
            there.get(after..)?.get(..usize::try_from(bytes).ok()?)
        })
    }

    /// Bytes of its argument, by its number (ioctl(2)).
    pub fn size(&self) -> u64 {
        u64::from(self.number >> 16 & 0x3fff)
    }

    /// Where its argument is.
    fn own(&self) -> Range<u64> {
        self.argument..self.argument.saturating_add(self.size())
    }
}

/// What could be addresses in data, and where.
fn words(bytes: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    let word = |at| Some((at, u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    (0..bytes.len()).step_by(4).filter_map(word)
}

/// A structure that was met: of which sample, and what was there.
struct Structure<'s> {
    sample: usize,
    bytes: &'s [u8],
}

impl Structure<'_> {
    /// A field.
    fn field(&self, at: usize, width: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(self.bytes.get(at..)?.get(..width)?);
        Some(u64::from_le_bytes(bytes))
    }
}

/// What was reached from one address on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reached {
    bytes: u64,
    /// How much at once.
    pieces: BTreeSet<u64>,
    is_read: bool,
    is_written: bool,
}

/// What of a sample is not explained yet.
struct Left {
    /// In the order of addresses.
    copies: Vec<Copy>,
    /// Addresses of some that are somewhere in the program's data, explained or not: what is reached at one does not belong to what is before it.
    named: BTreeSet<u64>,
}

impl Left {
    /// All but the argument itself.
    fn of(sample: &Sample) -> Self {
        let own = sample.own();
        let mut copies: Vec<Copy> = sample
            .copies
            .iter()
            .copied()
            .filter(|copy| copy.bytes != 0 && !own.contains(&copy.address))
            .collect();
        copies.sort_unstable();
        let data = sample.memory.iter().map(|(_, bytes)| &bytes[..]).chain([&sample.structure[..]]);
        let begins = |address: &u64| copies.binary_search_by_key(address, |copy| copy.address).is_ok();
        let named = data.flat_map(words).map(|(_, address)| address).filter(begins).collect();
        Self { copies, named }
    }

    /// Whether something was reached at an address.
    fn begins(&self, address: u64) -> bool {
        self.copies.binary_search_by_key(&address, |copy| copy.address).is_ok()
    }

    /// Takes what was reached from an address on without a gap.
    fn take(&mut self, address: u64) -> Option<Reached> {
        let stop = self
            .named
            .range((Bound::Excluded(address), Bound::Unbounded))
            .next()
            .copied()
            .unwrap_or(u64::MAX);
        let copies = &mut self.copies;
        let first = copies.partition_point(|copy| copy.address < address);
        let (mut end, mut last) = (address, first);
        let mut reached = Reached::default();
        while let Some(copy) = copies.get(last).filter(|copy| copy.address <= end && copy.address < stop) {
            end = end.max(copy.address.saturating_add(copy.bytes)).min(stop);
            reached.pieces.insert(copy.bytes);
            reached.is_read |= !copy.is_written;
            reached.is_written |= copy.is_written;
            last += 1;
        }
        copies.drain(first..last);
        reached.bytes = end - address;
        (reached.bytes != 0).then_some(reached)
    }
}

/// What a pointer led to: in which structure it is, where that was, and what was reached.
struct Met<'s> {
    by: &'s Structure<'s>,
    address: u64,
    reached: Reached,
}

/// How much there is at a pointer.
struct Amount {
    count: Option<(i64, u8)>,
    size: u64,
    /// What of it is a guess.
    guess: Option<String>,
}

/// What the samples of one command have in common.
pub fn learn(samples: &[Sample]) -> Slice {
    let mut slice = Slice::default();
    for sample in samples {
        let own = sample.own();
        for copy in sample.copies.iter().filter(|copy| own.contains(&copy.address)) {
            let most = if copy.is_written { &mut slice.written } else { &mut slice.read };
            let end = copy.address.saturating_add(copy.bytes).min(own.end);
            *most = (*most).max((end - own.start) as i64);
        }
        slice.reasons.extend(sample.holds.iter().map(|by| format!("{by} holds the program's memory")));
    }
    let mut left: Vec<Left> = samples.iter().map(Left::of).collect();
    let structures: Vec<_> =
        samples.iter().enumerate().map(|(sample, of)| Structure { sample, bytes: &of.structure }).collect();
    slice.leads = follows(samples, &mut left, &mut slice.reasons);
    slice.leads.extend(leads(samples, &mut left, &structures, &[], &mut slice.reasons));
    for copy in left.iter().flat_map(|left| &left.copies) {
        let does = if copy.is_written { "writes" } else { "reads" };
        slice.reasons.insert(format!("it {does} {} bytes at an address that no field holds", copy.bytes));
    }
    slice.nested = !slice.leads.is_empty() || !slice.reasons.is_empty();
    slice
}

/// What is reached right behind the argument: all of it, if the number says no size.
fn follows(samples: &[Sample], left: &mut [Left], reasons: &mut BTreeSet<String>) -> Vec<Lead> {
    let mut found: Option<(u64, Reached)> = None;
    for (sample, left) in samples.iter().zip(left) {
        let end = sample.own().end;
        // What a pointer leads to is not behind it, wherever it lies.
        let Some(more) = (if left.named.contains(&end) { None } else { left.take(end) }) else { continue };
        let (_, known) = found.get_or_insert((sample.size(), Reached::default()));
        if known.bytes != 0 && known.bytes != more.bytes {
            reasons.insert("behind the argument are bytes of which no field says how many".to_owned());
        }
        known.bytes = known.bytes.max(more.bytes);
        known.is_read |= more.is_read;
        known.is_written |= more.is_written;
    }
    let lead = found.map(|(at, reached)| Lead {
        from: From::Follows(at as i64),
        count: None,
        size: reached.bytes as i64,
        is_read: reached.is_read,
        is_written: reached.is_written,
        kind: None,
        elements: Vec::new(),
    });
    lead.into_iter().collect()
}

/// What structures of one kind lead to, by pointers in them, which are at the end of this path.
fn leads(
    samples: &[Sample],
    left: &mut [Left],
    structures: &[Structure<'_>],
    path: &[usize],
    reasons: &mut BTreeSet<String>,
) -> Vec<Lead> {
    if path.len() > DEEPEST {
        reasons.insert("it leads deeper than is followed".to_owned());
        return Vec::new();
    }
    let mut fields: BTreeMap<usize, usize> = BTreeMap::new();
    for structure in structures {
        let begins = |(_, address): &(usize, u64)| left[structure.sample].begins(*address);
        words(structure.bytes).filter(begins).for_each(|(at, _)| *fields.entry(at).or_default() += 1);
    }
    // An address may stand in another field by chance: the one that leads somewhere most often comes first.
    let mut fields: Vec<(usize, usize)> = fields.into_iter().collect();
    fields.sort_by_key(|(at, times)| (Reverse(*times), *at));
    let mut found = Vec::new();
    for (at, _) in fields {
        let met = structures.iter().filter_map(|by| {
            let address = by.field(at, 8)?;
            let reached = left[by.sample].take(address)?;
            Some(Met { by, address, reached })
        });
        let met: Vec<Met<'_>> = met.collect();
        // Another field with the same address came first.
        if met.is_empty() {
            continue;
        }
        let path = [path, &[at]].concat();
        let Amount { count, size, guess } = amount(at, &met);
        let place = path.iter().map(ToString::to_string).collect::<Vec<_>>().join(", at what it leads to ");
        reasons.extend(guess.map(|guess| format!("the pointer at {place}: {guess}")));
        let mut elements = Vec::new();
        for Met { by, address, reached } in &met {
            let whole = samples[by.sample].at(*address, reached.bytes).unwrap_or_default();
            let each = if count.is_some() { size } else { reached.bytes };
            let of = whole.chunks_exact(usize::try_from(each).unwrap_or(usize::MAX));
            elements.extend(of.map(|bytes| Structure { sample: by.sample, bytes }));
        }
        found.push(Lead {
            from: From::Pointer(at as i64),
            count,
            size: size as i64,
            is_read: met.iter().any(|met| met.reached.is_read),
            is_written: met.iter().any(|met| met.reached.is_written),
            kind: None,
            elements: leads(samples, left, &elements, &path, reasons),
        });
    }
    found.sort();
    found
}

/// How much there is at a pointer of structures, by what was reached there.
fn amount(pointer: usize, met: &[Met<'_>]) -> Amount {
    let most = met.iter().map(|met| met.reached.bytes).max().unwrap_or(0);
    let least = met.iter().map(|met| met.reached.bytes).min().unwrap_or(0);
    let all: Vec<Count> = counts(pointer, met).collect();
    let best = all.iter().max_by_key(|count| count.worth);
    if most == least {
        let perhaps = best.map_or(String::new(), |count| {
            format!(", or {} for each that the field at {} counts", count.size, count.at)
        });
        let times = if met.len() == 1 { "once".to_owned() } else { format!("{} times", met.len()) };
        let guess = Some(format!("{most} bytes as seen {times}{perhaps}"));
        return Amount { count: None, size: most, guess };
    }
    let Some(best) = best.filter(|count| count.worth.0 >= 2) else {
        let guess = Some(format!("{least} to {most} bytes, and no field says how many"));
        return Amount { count: None, size: most, guess };
    };
    // Of the same number twice the narrower one was taken.
    let is_as_good = |other: &&Count| {
        other.at != best.at && (other.worth.0, other.worth.1) == (best.worth.0, best.worth.1)
    };
    let others: BTreeSet<usize> = all.iter().filter(is_as_good).map(|count| count.at).collect();
    let others: Vec<String> = others.iter().map(ToString::to_string).collect();
    let guess = (!others.is_empty())
        .then(|| format!("the field at {} counts, or that at {}", best.at, others.join(" or ")));
    Amount { count: Some((best.at as i64, best.width)), size: best.size, guess }
}

/// A field that may say how many elements there are, of which size.
struct Count {
    at: usize,
    width: u8,
    size: u64,
    /// Of how many numbers it has said what was reached, in how many cases, whether an element was reached at once, and how near the pointer it is.
    worth: (usize, usize, bool, isize, bool),
}

/// Fields by which there is never more than was reached, and sometimes as much.
fn counts<'m>(pointer: usize, met: &'m [Met<'_>]) -> impl Iterator<Item = Count> + 'm {
    let bytes = met.iter().map(|met| met.by.bytes.len()).max().unwrap_or(0);
    let places = (0..bytes).step_by(4).flat_map(|at| [(at, 4), (at, 8)]);
    let apart = move |(at, width): &(usize, usize)| at + width <= pointer || *at >= pointer + 8;
    places.filter(apart).filter(|(at, width)| at % width == 0).filter_map(move |(at, width)| {
        let said: Vec<(u64, u64)> = met
            .iter()
            .map(|met| Some((met.by.field(at, width)?, met.reached.bytes)))
            .collect::<Option<_>>()?;
        let sizes: BTreeSet<u64> = said
            .iter()
            .filter(|(count, bytes)| *count != 0 && bytes % count == 0)
            .map(|(count, bytes)| bytes / count)
            .collect();
        let fits = |size: &u64| said.iter().all(|(count, bytes)| *bytes <= count.saturating_mul(*size));
        // Of several sizes the least is what was reached most often.
        let size = sizes.into_iter().find(fits)?;
        let exact = said.iter().filter(|(count, bytes)| count.checked_mul(size) == Some(*bytes));
        let (numbers, cases): (BTreeSet<u64>, usize) =
            exact.fold((BTreeSet::new(), 0), |(mut numbers, cases), (count, _)| {
                numbers.insert(*count);
                (numbers, cases + 1)
            });
        let near = -(at.abs_diff(pointer) as isize);
        let is_piece = met.iter().any(|met| met.reached.pieces.contains(&size));
        let worth = (numbers.len(), cases, is_piece, near, width == 4);
        Some(Count { at, width: width as u8, size, worth })
    })
}
