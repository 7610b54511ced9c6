//! What the kernel's memory holds as far as a walk knows: objects, with what was stored into them and what was copied into them
//! from a program.

use crate::value::{Id, Node, Values};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// Why a value is not known that a loop changes in no regular way.
const CHANGES: &str = "it changes from round to round of a loop";

/// An address in parts: an object, what the address has of others, and a number.
#[derive(Clone, Debug)]
pub struct Place {
    /// Whose address it is.
    pub base: Id,
    /// Multiples of others that are added, by size.
    pub terms: Vec<(Id, i64)>,
    /// The number that is added.
    pub offset: i64,
}

impl Place {
    /// The parts of an address.
    pub fn of(values: &Values, address: Id) -> Option<Self> {
        let (mut terms, offset) = values.terms(address);
        let rank = |node: &Node| match node {
            Node::Memory(_) | Node::Global(..) => 0,
            Node::Kernel(_, 8) => 1,
            Node::Argument => 2,
            Node::Field(_, 8) => 3,
            Node::Unknown(..) => 4,
            _ => 9,
        };
        let of = |(index, (id, times)): (usize, &(Id, i64))| {
            (*times == 1).then(|| (rank(values.node(*id)), index))
        };
        let (rank, index) = terms.iter().enumerate().filter_map(of).min()?;
        if rank == 9 {
            return None;
        }
        let (base, _) = terms.remove(index);
        terms.sort_by_key(|(id, times)| (*times, *id));
        Some(Self { base, terms, offset })
    }

    fn shape(&self) -> Vec<i64> {
        self.terms.iter().map(|(_, times)| *times).collect()
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Cell {
    bytes: u64,
    value: Id,
    terms: Vec<(Id, i64)>,
}

/// Memory that was copied as a whole.
#[derive(Clone, Debug, PartialEq)]
struct Fill {
    offset: i64,
    terms: Vec<(Id, i64)>,
    /// How much; none: nobody knows.
    bytes: Option<i64>,
    from: Id,
    is_users: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    cells: BTreeMap<(Vec<i64>, i64), Cell>,
    /// The last is the newest.
    fills: Vec<Fill>,
    /// The rest is zero.
    zero: bool,
}

/// What is known at one point of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    objects: HashMap<Id, Rc<Object>>,
    /// What holds.
    pub conditions: BTreeSet<Id>,
}

impl State {
    /// Stores a value.
    pub fn store(&mut self, values: &mut Values, address: Id, bytes: u64, value: Id) {
        let all = values.addresses(address);
        for &one in &all {
            let Some(place) = Place::of(values, one) else { continue };
            let value = if all.len() > 1 {
                let old = self.load(values, one, bytes);
                values.any(&[old, value])
            } else {
                value
            };
            let object = Rc::make_mut(self.objects.entry(place.base).or_default());
            let shape = place.shape();
            if shape.is_empty() {
                let (begin, end) = (place.offset, place.offset.saturating_add_unsigned(bytes));
                let over = |at: i64, cell: &Cell| at < end && at.saturating_add_unsigned(cell.bytes) > begin;
                object.cells.retain(|(shape, at), cell| !shape.is_empty() || !over(*at, cell));
            }
            object.cells.insert((shape, place.offset), Cell { bytes, value, terms: place.terms });
        }
    }

    /// Copies memory as a whole, the program's or the kernel's.
    pub fn fill(&mut self, values: &mut Values, to: Id, from: Id, bytes: Option<Id>, is_users: bool) {
        let bytes = bytes.and_then(|bytes| values.as_number(bytes));
        for one in values.addresses(to) {
            let Some(place) = Place::of(values, one) else { continue };
            let object = Rc::make_mut(self.objects.entry(place.base).or_default());
            if place.terms.is_empty() {
                let end = bytes.map_or(i64::MAX, |bytes| place.offset.saturating_add(bytes));
                let inside = |at: i64| at >= place.offset && at < end;
                object.cells.retain(|(_, at), _| !inside(*at));
            }
            object.fills.retain(|fill| (fill.offset, &fill.terms) != (place.offset, &place.terms));
            object.fills.push(Fill { offset: place.offset, terms: place.terms, bytes, from, is_users });
        }
    }

    /// Sets memory to zero.
    pub fn clear(&mut self, values: &Values, to: Id, bytes: Option<i64>) {
        for one in values.addresses(to) {
            let Some(place) = Place::of(values, one) else { continue };
            let object = Rc::make_mut(self.objects.entry(place.base).or_default());
            let end = bytes.map_or(i64::MAX, |bytes| place.offset.saturating_add(bytes));
            let inside = |at: i64| at >= place.offset && at < end;
            object.cells.retain(|(_, at), _| !inside(*at));
            object.fills.retain(|fill| !inside(fill.offset));
            object.zero = true;
        }
    }

    /// What is in memory.
    pub fn load(&mut self, values: &mut Values, address: Id, bytes: u64) -> Id {
        let all = values.addresses(address);
        let found: Vec<Id> = all.into_iter().map(|one| self.load_one(values, one, bytes)).collect();
        values.any(&found)
    }

    fn load_one(&self, values: &mut Values, address: Id, bytes: u64) -> Id {
        let width = u8::try_from(bytes).unwrap_or(0);
        let Some(place) = Place::of(values, address) else {
            return values.id(Node::Kernel(address, width));
        };
        if matches!(values.node(place.base), Node::Argument | Node::Field(..)) {
            return values.unknown("the kernel reads the program's memory at once");
        }
        let known = self.objects.get(&place.base).cloned().unwrap_or_default();
        if let Some(value) = of_cells(values, &known, &place, bytes) {
            return value;
        }
        for fill in known.fills.iter().rev() {
            let same = fill.terms.len() == place.terms.len()
                && fill.terms.iter().zip(&place.terms).all(|((_, a), (_, b))| a == b);
            if !fill.terms.is_empty() && !same {
                continue;
            }
            let begin = place.offset - fill.offset;
            if begin < 0 || fill.bytes.is_some_and(|end| begin.saturating_add_unsigned(bytes) > end) {
                continue;
            }
            let mut from = fill.from;
            let with: Vec<(Id, Id)> =
                fill.terms.iter().zip(&place.terms).map(|((old, _), (new, _))| (*old, *new)).collect();
            from = values.replaced(from, &with);
            let rest = if fill.terms.is_empty() { place.terms.clone() } else { Vec::new() };
            let delta = values.sum(rest, begin);
            let at = values.add(from, delta);
            return if fill.is_users {
                let all = values.addresses(at);
                let all: Vec<Id> = all.into_iter().map(|at| values.id(Node::Field(at, width))).collect();
                values.any(&all)
            } else if at == address {
                values.id(Node::Kernel(address, width))
            } else {
                let all = values.addresses(at);
                let all: Vec<Id> = all.into_iter().map(|at| self.load_one(values, at, bytes)).collect();
                values.any(&all)
            };
        }
        if known.zero {
            return values.number(0);
        }
        values.id(Node::Kernel(address, width))
    }

    /// Forgets objects.
    pub fn forget(&mut self, is_gone: impl Fn(Id) -> bool) {
        self.objects.retain(|id, _| !is_gone(*id));
    }

    /// What is known if one of two is the case. In a loop's head, what the loop adds to in each round becomes a multiple of the round.
    pub fn join(&mut self, values: &mut Values, other: &Self, round: Option<Id>) {
        for (&base, theirs) in &other.objects {
            match self.objects.get(&base).cloned() {
                Some(ours) if Rc::ptr_eq(&ours, theirs) || ours == *theirs => {}
                Some(ours) => {
                    let joined = self.joined(values, base, &ours, theirs, other, round);
                    if joined != *ours {
                        self.objects.insert(base, Rc::new(joined));
                    }
                }
                None => {
                    self.objects.insert(base, theirs.clone());
                }
            }
        }
        self.conditions = both(values, &self.conditions, &other.conditions);
    }

    fn joined(
        &self,
        values: &mut Values,
        base: Id,
        ours: &Object,
        theirs: &Object,
        other: &Self,
        round: Option<Id>,
    ) -> Object {
        let mut joined = ours.clone();
        joined.zero |= theirs.zero;
        for fill in &theirs.fills {
            if !joined.fills.contains(fill) {
                joined.fills.push(fill.clone());
            }
        }
        let keys: BTreeSet<(Vec<i64>, i64)> = ours.cells.keys().chain(theirs.cells.keys()).cloned().collect();
        for key in keys {
            let (mine, its) = (ours.cells.get(&key), theirs.cells.get(&key));
            let Some(cell) = mine.or(its).cloned() else { continue };
            let mut address = values.sum(cell.terms.iter().copied(), key.1);
            address = values.add(address, base);
            // Whoever has nothing stored there has what was there before.
            let mut old = |state: &Self, cell: Option<&Cell>| match cell {
                Some(cell) => Some(cell.value),
                None => {
                    let value = state.load_one(values, address, cell.map_or(0, |cell| cell.bytes));
                    (!matches!(values.node(value), Node::Kernel(..))).then_some(value)
                }
            };
            let (a, b) = (old(self, mine), old(other, its));
            let value = match (a, b) {
                (Some(a), Some(b)) if a == b => a,
                (Some(a), Some(b)) => match round {
                    Some(round) => widen(values, a, b, round),
                    None => values.any(&[a, b]),
                },
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => cell.value,
            };
            joined.cells.insert(key, Cell { value, ..cell });
        }
        joined
    }
}

fn of_cells(values: &mut Values, object: &Object, place: &Place, bytes: u64) -> Option<Id> {
    let shape = place.shape();
    if let Some(cell) = object.cells.get(&(shape.clone(), place.offset))
        && cell.bytes >= bytes
    {
        let pairs = cell.terms.iter().zip(&place.terms);
        let with: Vec<(Id, Id)> = pairs
            .filter(|((old, _), (new, _))| old != new)
            .map(|((old, _), (new, _))| (*old, *new))
            .collect();
        return Some(if with.is_empty() { cell.value } else { values.replaced(cell.value, &with) });
    }
    // One element of what a loop has stored.
    for ((strides, offset), cell) in &object.cells {
        let ([stride], [(round, _)]) = (strides.as_slice(), cell.terms.as_slice()) else { continue };
        if shape.is_empty() && cell.bytes >= bytes && *stride != 0 && (place.offset - offset) % stride == 0 {
            let index = values.number((place.offset - offset) / stride);
            return Some(values.replaced(cell.value, &[(*round, index)]));
        }
    }
    None
}

/// What a loop's head knows of a value that was `old` there, and is `new` after a round.
fn widen(values: &mut Values, old: Id, new: Id, round: Id) -> Id {
    if matches!(values.node(old), Node::Unknown(..)) {
        return old;
    }
    // What grows in some rounds only has grown at most so much.
    let mut steps: Vec<i64> = Vec::new();
    for one in values.alternatives(new) {
        let difference = values.less(one, old);
        match values.as_number(difference) {
            Some(step) => steps.push(step),
            None => {
                steps.clear();
                break;
            }
        }
    }
    steps.retain(|&step| step != 0 || old == new);
    steps.dedup();
    match steps.as_slice() {
        [0] => return old,
        &[step] => {
            let (terms, _) = values.terms(old);
            return match terms.iter().find(|(id, _)| *id == round) {
                Some((_, times)) if *times == step => old,
                None if !values.has(old, round) => {
                    let grown = values.times(round, step);
                    values.add(old, grown)
                }
                _ => values.unknown_at(CHANGES, 1),
            };
        }
        _ => {}
    }
    let any = values.any(&[old, new]);
    let many = values.alternatives(any).len() > 4;
    if any != old && (many || values.has(new, old)) { values.unknown_at(CHANGES, 1) } else { any }
}

/// What holds in both cases.
fn both(values: &mut Values, ours: &BTreeSet<Id>, theirs: &BTreeSet<Id>) -> BTreeSet<Id> {
    let mut joined: BTreeSet<Id> = ours.intersection(theirs).copied().collect();
    for &id in ours.difference(theirs) {
        let Node::In(value, of) = values.node(id).clone() else { continue };
        let other = theirs.iter().find_map(|&id| match values.node(id) {
            Node::In(same, of) if *same == value => Some(of.to_vec()),
            _ => None,
        });
        if let Some(other) = other {
            let all: BTreeSet<i64> = of.iter().copied().chain(other).collect();
            if all.len() <= 64 {
                let all: Vec<i64> = all.into_iter().collect();
                joined.insert(values.id(Node::In(value, all.into())));
            }
        }
    }
    joined
}
