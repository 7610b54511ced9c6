//! Operations as the front end of device files follows them: which pointers of a structure lead to how much memory, and what that
//! leads to in turn (`struct lead` in guest/linux/sluice-devfile/lead.h).

use crate::ir::Order;
use crate::memory::Place;
use crate::value::{Id, Node, Values};
use crate::walk::{Kind, Operation, Walk};
use std::collections::{BTreeMap, BTreeSet};

/// Where memory is that a structure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum From {
    /// At the address in the eight bytes at this offset.
    Pointer(i64),
    /// In the structure itself, from this offset on.
    Follows(i64),
}

/// Memory that a structure leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead {
    /// Where it is.
    pub from: From,
    /// The field that says how many elements there are: its offset and bytes.
    pub count: Option<(i64, u8)>,
    /// Bytes of an element.
    pub size: i64,
    /// The driver reads it.
    pub is_read: bool,
    /// The driver writes it.
    pub is_written: bool,
    /// A field of the structure, of four bytes or the lower four of eight, that is one of these.
    pub kind: Option<(i64, Vec<i64>)>,
    /// What each element leads to.
    pub elements: Vec<Self>,
}

impl Lead {
    /// One structure, that the driver reads.
    pub const fn read(from: From, size: i64) -> Self {
        Self { from, count: None, size, is_read: true, is_written: false, kind: None, elements: Vec::new() }
    }
}

/// What is known of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Copies in both ways between the kernel and the argument's structure itself: its bytes.
    pub read: i64,
    /// The same, written.
    pub written: i64,
    /// What the structure leads to.
    pub leads: Vec<Lead>,
    /// What could not be said, and why.
    pub reasons: BTreeSet<String>,
    /// It copies from or to addresses, or in numbers, that its argument holds.
    pub nested: bool,
}

/// How much of a region is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Amount {
    Bytes(i64),
    /// So many bytes times a field of what leads there.
    Times(i64, i64, u8),
}

type Key = (Vec<i64>, Option<(i64, Vec<i64>)>);

/// The operations of a walk as leads.
pub fn slice(walk: &mut Walk<'_>, operations: &[Operation]) -> Slice {
    let mut slice = Slice::default();
    let mut regions = Regions::new();
    for operation in operations {
        if let Err(reason) = add(walk, operation, &mut slice, &mut regions) {
            slice.reasons.insert(format!("{}: {reason}", operation.function));
        }
    }
    slice.leads = leads(&regions, &[], 0);
    slice.leads.sort();
    slice
}

/// Size of an element, and the field with their number.
type Array = Option<(i64, i64, u8)>;
/// Pointers, terms, and the rest of an address.
type Located = (Vec<i64>, Vec<(Id, i64)>, i64);
type Regions = BTreeMap<Key, BTreeMap<(i64, Array), (i64, bool, bool)>>;

fn add(
    walk: &mut Walk<'_>,
    operation: &Operation,
    slice: &mut Slice,
    regions: &mut Regions,
) -> Result<(), String> {
    match &operation.kind {
        Kind::Kept(name) => {
            slice.nested = true;
            return Err(format!("{name} holds the program's memory"));
        }
        Kind::Given(name) => return Err(format!("an address of the program's is given to {name}")),
        Kind::Lost(why) => return Err(why.to_string()),
        Kind::In | Kind::Out | Kind::Text => {}
    }
    // A way that the driver cannot go, with nothing as the address.
    if walk.values.as_number(operation.address).is_some() {
        return Ok(());
    }
    if is_unset(&walk.values, operation.address) {
        return Ok(());
    }
    let (path, terms, offset) = locate(&walk.values, operation.address).inspect_err(|_| {
        slice.nested = true;
    })?;
    slice.nested |= !path.is_empty() || walk.values.as_number(operation.bytes).is_none();
    let (is_read, is_written) = match operation.kind {
        Kind::Out => (false, true),
        _ => (true, false),
    };
    let amount = amount(walk, operation, &path)?;
    let kind = kind(&walk.values, operation);
    // The element of an array that a loop goes through.
    let mut array = None;
    match terms.as_slice() {
        [] => {}
        [(round, stride)] if *stride > 0 => {
            let count = rounds(walk, operation, *round, &path)
                .ok_or("how often a loop goes round does not stand in the program's data")?;
            array = Some((stride * count.0, count.1, count.2));
        }
        _ => return Err("the place depends on more than one loop".into()),
    }
    match (amount, array, path.is_empty()) {
        (Amount::Bytes(bytes), None, true) => {
            let end = offset + bytes;
            let most = if is_read { &mut slice.read } else { &mut slice.written };
            *most = (*most).max(end);
        }
        (Amount::Bytes(bytes), array, false) => {
            let entry = regions.entry((path, kind)).or_default().entry((0, array)).or_default();
            *entry = (entry.0.max(offset + bytes), entry.1 | is_read, entry.2 | is_written);
        }
        (Amount::Times(size, field, width), None, root) => {
            if offset != 0 && !root {
                return Err("an array begins inside of what a pointer leads to".into());
            }
            let entry = regions.entry((path, kind)).or_default();
            let entry = entry.entry((offset, Some((size, field, width)))).or_default();
            *entry = (0, entry.1 | is_read, entry.2 | is_written);
        }
        _ => return Err("elements of an array have no fixed size".into()),
    }
    Ok(())
}

/// Is it what an object holds into which nothing was stored? Then the driver does not come here in this way.
fn is_unset(values: &Values, address: Id) -> bool {
    let Some(place) = Place::of(values, address) else { return false };
    let Node::Kernel(at, _) = *values.node(place.base) else { return false };
    // The first objects are those that the driver is called with.
    Place::of(values, at)
        .is_some_and(|place| matches!(values.node(place.base), Node::Memory(number) if *number > 3))
}

/// The pointers that lead to an address, each as its offset in what the one before leads to, and the rest of the address.
fn locate(values: &Values, address: Id) -> Result<Located, String> {
    let unknown = |id: Id| match values.node(id) {
        Node::Unknown(why, _) => format!("the address: {why}"),
        Node::Kernel(..) => "the address comes from the kernel's own memory".to_owned(),
        _ => "the address is no pointer of the program's data".to_owned(),
    };
    let place = Place::of(values, address).ok_or_else(|| unknown(address))?;
    for (term, _) in &place.terms {
        if !matches!(values.node(*term), Node::Index(_)) {
            return Err(match values.node(*term) {
                Node::Unknown(why, _) => format!("the address: {why}"),
                _ => "the address is computed from the program's data".into(),
            });
        }
    }
    match *values.node(place.base) {
        Node::Argument => Ok((Vec::new(), place.terms, place.offset)),
        Node::Field(at, 8) => {
            let (mut path, _, offset) = locate(values, at)?;
            path.push(offset);
            Ok((path, place.terms, place.offset))
        }
        _ => Err(unknown(place.base)),
    }
}

/// A value that is a number of times a field of the structure that the last pointer of `path` is in.
fn field(values: &Values, value: Id, path: &[i64]) -> Option<(i64, i64, u8)> {
    let (terms, 0) = values.terms(value) else { return None };
    let [(id, times)] = terms.as_slice() else { return None };
    let Node::Field(at, width) = *values.node(*id) else { return None };
    let (of, _, offset) = locate(values, at).ok()?;
    let home = path.split_last().map_or(path, |(_, home)| home);
    (of == home && *times > 0 && width >= 4).then_some((*times, offset, width))
}

/// How much is copied. Of several lengths the program's own is the one that it has memory for.
fn amount(walk: &Walk<'_>, operation: &Operation, path: &[i64]) -> Result<Amount, String> {
    let values = &walk.values;
    let all = values.alternatives(operation.bytes);
    if let Some((times, offset, width)) = all.iter().find_map(|&one| field(values, one, path)) {
        return Ok(Amount::Times(times, offset, width));
    }
    let numbers: Option<Vec<i64>> = all.iter().map(|&one| values.as_number(one)).collect();
    match numbers.and_then(|numbers| numbers.into_iter().max()) {
        Some(bytes) => Ok(Amount::Bytes(bytes)),
        None => Err(all
            .iter()
            .find_map(|&one| match values.node(one) {
                Node::Unknown(why, _) => Some(format!("the length: {why}")),
                Node::Kernel(..) => Some("the length comes from the kernel's own memory".into()),
                _ => None,
            })
            .unwrap_or_else(|| "the length is computed from more than one field".into())),
    }
}

/// How often a loop goes round.
fn rounds(walk: &Walk<'_>, operation: &Operation, round: Id, path: &[i64]) -> Option<(i64, i64, u8)> {
    let values = &walk.values;
    let from = operation.conditions.iter().copied().chain(walk.bounds(round).iter().copied());
    for condition in from {
        let Node::Compare(order, left, right) = *values.node(condition) else { continue };
        let limit = match order {
            Order::Ult | Order::Slt | Order::Ne if left == round => right,
            Order::Ugt | Order::Sgt if right == round => left,
            _ => continue,
        };
        if let Some(count) = values.alternatives(limit).into_iter().find_map(|one| field(values, one, path)) {
            return Some(count);
        }
    }
    None
}

/// What a field must be of the structure that leads there: the argument's, or the same element of an array.
fn kind(values: &Values, operation: &Operation) -> Option<(i64, Vec<i64>)> {
    let Node::Field(pointer, 8) = *values.node(Place::of(values, operation.address)?.base) else {
        return None;
    };
    let (home, element, _) = locate(values, pointer).ok()?;
    let element = if home.is_empty() { Vec::new() } else { element };
    operation.conditions.iter().find_map(|&condition| {
        let Node::In(value, of) = values.node(condition) else { return None };
        // Of eight bytes, the lower four say it.
        let Node::Field(at, 4 | 8) = *values.node(*value) else { return None };
        let (path, terms, offset) = locate(values, at).ok()?;
        let few = of.iter().all(|one| (0..32).contains(one));
        (path == home && terms == element && few).then(|| (offset, of.to_vec()))
    })
}

fn leads(regions: &Regions, path: &[i64], depth: usize) -> Vec<Lead> {
    let mut found: Vec<Lead> = Vec::new();
    let mut below: BTreeSet<i64> = regions
        .keys()
        .filter(|(of, _)| of.len() > path.len() && of.starts_with(path))
        .filter_map(|(of, _)| of.get(path.len()).copied())
        .collect();
    if depth > 8 {
        below.clear();
    }
    if path.is_empty() {
        for ((_, kind), parts) in regions.iter().filter(|((of, _), _)| of.is_empty()) {
            for ((offset, array), (_, is_read, is_written)) in parts {
                if let Some((size, field, width)) = *array {
                    found.push(Lead {
                        from: From::Follows(*offset),
                        count: Some((field, width)),
                        size,
                        is_read: *is_read,
                        is_written: *is_written,
                        kind: kind.clone(),
                        elements: Vec::new(),
                    });
                }
            }
        }
    }
    for pointer in below {
        let inner = [path, &[pointer]].concat();
        let elements = leads(regions, &inner, depth + 1);
        for ((_, kind), parts) in regions.iter().filter(|((of, _), _)| *of == inner) {
            // What one array holds is said once, for the reads and writes of it and of its elements.
            let mut once: BTreeMap<Array, (i64, bool, bool)> = BTreeMap::new();
            for ((_, array), (end, is_read, is_written)) in parts {
                let known = once.entry(*array).or_default();
                *known = (known.0.max(*end), known.1 | is_read, known.2 | is_written);
            }
            let arrays: Vec<_> = once.keys().copied().flatten().collect();
            for (array, (end, is_read, is_written)) in once {
                if array.is_none() && arrays.iter().any(|(size, ..)| end <= *size) {
                    continue;
                }
                let (size, count) = match array {
                    Some((size, field, width)) => (size, Some((field, width))),
                    None => (end, None),
                };
                found.push(Lead {
                    from: From::Pointer(pointer),
                    count,
                    size,
                    is_read,
                    is_written,
                    kind: kind.clone(),
                    elements: elements.clone(),
                });
            }
        }
    }
    // One that has a condition is said by one that has none.
    let all = found.clone();
    found.retain(|lead| {
        lead.kind.is_none()
            || !all.iter().any(|other| {
                other.kind.is_none()
                    && other.from == lead.from
                    && other.size == lead.size
                    && other.count == lead.count
            })
    });
    // Ways in which only the condition differs are one.
    let mut merged: Vec<Lead> = Vec::new();
    for lead in found {
        let same = merged.iter_mut().find(|known| {
            known.from == lead.from
                && known.size == lead.size
                && known.count == lead.count
                && known.kind.is_some()
                && lead.kind.is_some()
                && known.kind.as_ref().map(|(at, _)| at) == lead.kind.as_ref().map(|(at, _)| at)
        });
        match same {
            Some(known) => {
                known.is_read |= lead.is_read;
                known.is_written |= lead.is_written;
                if let (Some((_, known)), Some((_, more))) = (&mut known.kind, &lead.kind) {
                    known.extend(more);
                    known.sort_unstable();
                    known.dedup();
                }
            }
            None => merged.push(lead),
        }
    }
    merged
}
