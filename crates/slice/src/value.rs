//! What is known of values: sums of things with names, of which a program's data are some. Equal values have equal numbers.

use crate::ir::{Binary, Order};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// More alternatives are too many.
const MAX_ALTERNATIVES: usize = 6;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u32);

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A number.
    Number(i64),
    /// Multiples of others, and a number.
    Sum(Box<[(Id, i64)]>, i64),
    /// The argument of the ioctl.
    Argument,
    /// So many bytes of the program's memory, at an address.
    Field(Id, u8),
    /// 0, 1, 2, ...: the rounds of a loop.
    Index(u32),
    /// Of two that are no numbers.
    Product(Id, Id),
    /// Where an object of the kernel's lies that the driver made.
    Memory(u32),
    /// A function or variable, and the file that alone knows it.
    Global(Rc<str>, Option<usize>),
    /// So many bytes that the kernel's memory had at an address before.
    Kernel(Id, u8),
    /// Is it so?
    Compare(Order, Id, Id),
    /// Is it one of these?
    In(Id, Box<[i64]>),
    /// Other arithmetic.
    Binary(Binary, Id, Id),
    /// One of these.
    Any(Box<[Id]>),
    /// Several at once.
    Tuple(Box<[Id]>),
    /// Nobody knows, and why.
    Unknown(Rc<str>, u32),
}

/// All values of a walk.
#[derive(Default)]
pub struct Values {
    nodes: Vec<Node>,
    ids: HashMap<Node, Id>,
    unknown: u32,
}

/// A number of so many bits, as it is with a sign.
pub const fn signed(number: i64, bits: u32) -> i64 {
    if bits == 0 || bits >= 64 { number } else { number << (64 - bits) >> (64 - bits) }
}

/// A number of so many bits, as it is without a sign.
pub const fn unsigned(number: i64, bits: u32) -> u64 {
    if bits == 0 || bits >= 64 { number.cast_unsigned() } else { number.cast_unsigned() & ((1 << bits) - 1) }
}

impl Values {
    /// The value of a node.
    pub fn id(&mut self, node: Node) -> Id {
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let id = Id(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node.clone());
        self.ids.insert(node, id);
        id
    }

    /// What a value is.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A number.
    pub fn number(&mut self, number: i64) -> Id {
        self.id(Node::Number(number))
    }

    /// The number that a value is.
    pub fn as_number(&self, id: Id) -> Option<i64> {
        match self.node(id) {
            Node::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A value that nobody knows, unlike any other.
    pub fn unknown(&mut self, why: &str) -> Id {
        self.unknown += 1;
        let number = self.unknown;
        self.id(Node::Unknown(why.into(), number))
    }

    /// One that is unknown for the same reason at the same place.
    pub fn unknown_at(&mut self, why: &str, place: u32) -> Id {
        self.id(Node::Unknown(why.into(), place | 1 << 31))
    }

    /// The terms of a value, and its number.
    pub fn terms(&self, id: Id) -> (Vec<(Id, i64)>, i64) {
        match self.node(id) {
            Node::Number(number) => (Vec::new(), *number),
            Node::Sum(terms, number) => (terms.to_vec(), *number),
            _ => (vec![(id, 1)], 0),
        }
    }

    /// The sum of terms and a number.
    pub fn sum(&mut self, terms: impl IntoIterator<Item = (Id, i64)>, number: i64) -> Id {
        let mut all: BTreeMap<Id, i64> = BTreeMap::new();
        for (id, times) in terms {
            let entry = all.entry(id).or_default();
            *entry = entry.wrapping_add(times);
        }
        let terms: Vec<(Id, i64)> = all.into_iter().filter(|(_, times)| *times != 0).collect();
        match terms.as_slice() {
            [] => self.number(number),
            [(id, 1)] if number == 0 => *id,
            _ => self.id(Node::Sum(terms.into(), number)),
        }
    }

    /// The alternatives that a value is one of.
    pub fn alternatives(&self, id: Id) -> Vec<Id> {
        match self.node(id) {
            Node::Any(all) => all.to_vec(),
            _ => vec![id],
        }
    }

    /// The alternatives of a value that may be an address: nothing and errors lead nowhere.
    pub fn addresses(&self, id: Id) -> Vec<Id> {
        let mut all = self.alternatives(id);
        if all.len() > 1 {
            all.retain(|&one| self.as_number(one).is_none());
        }
        all
    }

    /// One of several.
    pub fn any(&mut self, all: &[Id]) -> Id {
        let mut one: Vec<Id> = all.iter().flat_map(|&id| self.alternatives(id)).collect();
        one.sort_unstable();
        one.dedup();
        match one.as_slice() {
            [id] => *id,
            _ if one.len() > MAX_ALTERNATIVES => self.unknown_at("one of too many values", 0),
            _ => self.id(Node::Any(one.into())),
        }
    }

    /// Does something to each combination of alternatives, if there are not too many.
    fn each(&mut self, left: Id, right: Id, of: impl Fn(&mut Self, Id, Id) -> Id) -> Option<Id> {
        let (lefts, rights) = (self.alternatives(left), self.alternatives(right));
        if lefts.len() * rights.len() == 1 || lefts.len() * rights.len() > 2 * MAX_ALTERNATIVES {
            return None;
        }
        let pairs: Vec<(Id, Id)> = lefts.iter().flat_map(|&l| rights.iter().map(move |&r| (l, r))).collect();
        let all: Vec<Id> = pairs.into_iter().map(|(left, right)| of(self, left, right)).collect();
        Some(self.any(&all))
    }

    /// The sum of two.
    pub fn add(&mut self, left: Id, right: Id) -> Id {
        if let Some(any) = self.each(left, right, Self::add) {
            return any;
        }
        let ((mut terms, a), (others, b)) = (self.terms(left), self.terms(right));
        terms.extend(others);
        self.sum(terms, a.wrapping_add(b))
    }

    /// So many times a value.
    pub fn times(&mut self, id: Id, times: i64) -> Id {
        let one = self.number(times);
        if let Some(any) = self.each(id, one, |values, id, _| values.times(id, times)) {
            return any;
        }
        let (terms, number) = self.terms(id);
        let terms: Vec<(Id, i64)> = terms.into_iter().map(|(id, by)| (id, by.wrapping_mul(times))).collect();
        self.sum(terms, number.wrapping_mul(times))
    }

    /// A value less another.
    pub fn less(&mut self, left: Id, right: Id) -> Id {
        let right = self.times(right, -1);
        self.add(left, right)
    }

    fn product(&mut self, left: Id, right: Id) -> Id {
        match (self.as_number(left), self.as_number(right)) {
            (Some(times), _) => self.times(right, times),
            (_, Some(times)) => self.times(left, times),
            _ => {
                if let Some(any) = self.each(left, right, Self::product) {
                    return any;
                }
                // A multiple of one thing is taken out.
                let (mut factor, mut parts) = (1_i64, [left, right]);
                for part in &mut parts {
                    if let Node::Sum(terms, 0) = self.node(*part)
                        && let [(id, times)] = terms.as_ref()
                    {
                        factor = factor.wrapping_mul(*times);
                        *part = *id;
                    }
                }
                parts.sort_unstable();
                let product = self.id(Node::Product(parts[0], parts[1]));
                self.times(product, factor)
            }
        }
    }

    /// The most bits that a value has.
    fn width(&self, id: Id) -> u32 {
        match self.node(id) {
            Node::Field(_, bytes) | Node::Kernel(_, bytes) => u32::from(*bytes) * 8,
            _ => 64,
        }
    }

    /// A value divided by a number, if it is a multiple.
    pub fn divided(&mut self, id: Id, by: i64) -> Option<Id> {
        let (terms, number) = self.terms(id);
        let exact = by != 0 && number % by == 0 && terms.iter().all(|(_, times)| times % by == 0);
        exact.then(|| self.sum(terms.into_iter().map(|(id, times)| (id, times / by)), number / by))
    }

    /// Arithmetic. Values that are no numbers are taken not to overflow.
    pub fn binary(&mut self, op: Binary, bits: u32, left: Id, right: Id) -> Id {
        if let (Some(a), Some(b)) = (self.as_number(left), self.as_number(right)) {
            let number = number(op, bits, a, b);
            return match number {
                Some(number) => self.number(signed(number, bits)),
                None => self.unknown("a division by nothing"),
            };
        }
        let by = self.as_number(right);
        match (op, by) {
            (Binary::Add, _) => return self.add(left, right),
            (Binary::Sub, _) => return self.less(left, right),
            (Binary::Mul, _) => return self.product(left, right),
            (Binary::Shl, Some(by @ 0..=62)) => return self.times(left, 1 << by),
            (Binary::Lshr | Binary::Ashr, Some(by @ 0..=62)) => {
                if let Some(exact) = self.divided(left, 1 << by) {
                    return exact;
                }
            }
            (Binary::Udiv | Binary::Sdiv, Some(by)) => {
                if let Some(exact) = self.divided(left, by) {
                    return exact;
                }
            }
            (Binary::Or | Binary::Xor, Some(0)) => return left,
            (Binary::And, Some(0)) => return right,
            (Binary::And, Some(mask)) => {
                let width = self.width(left).min(bits);
                if width < 64 && unsigned(mask, width) == unsigned(-1, width) || mask == -1 {
                    return left;
                }
            }
            _ => {}
        }
        if let Some(any) = self.each(left, right, |values, left, right| values.binary(op, bits, left, right))
        {
            return any;
        }
        self.id(Node::Binary(op, left, right))
    }

    /// Of so many bits, now of so many.
    pub fn cast(&mut self, from: u32, to: u32, sign: bool, id: Id) -> Id {
        if let Node::Any(all) = self.node(id) {
            let all: Vec<Id> = all.to_vec();
            let all: Vec<Id> = all.into_iter().map(|one| self.cast(from, to, sign, one)).collect();
            return self.any(&all);
        }
        match self.as_number(id) {
            Some(number) if to < from => self.number(signed(number, to)),
            Some(number) if sign || to == from => self.number(signed(number, from)),
            Some(number) => self.number(unsigned(number, from).cast_signed()),
            None => id,
        }
    }

    /// Is it an address of the kernel's own, which is neither nothing nor an error?
    fn is_object(&self, id: Id) -> bool {
        let (terms, _) = self.terms(id);
        let object = |node: &Node| matches!(node, Node::Memory(_) | Node::Global(..));
        terms.iter().any(|(id, times)| *times == 1 && object(self.node(*id)))
    }

    /// A comparison, as 0 or 1 where it is known.
    pub fn compare(&mut self, order: Order, bits: u32, left: Id, right: Id) -> Id {
        if let (Some(a), Some(b)) = (self.as_number(left), self.as_number(right)) {
            return self.number(i64::from(holds(order, bits, a, b)));
        }
        if left == right {
            return self.number(i64::from(holds(order, 64, 0, 0)));
        }
        if let Some(number) = self.as_number(right) {
            if self.is_object(left) && (number == 0 || (-4096..0).contains(&number)) {
                match order {
                    Order::Eq | Order::Ult | Order::Ule if number == 0 => return self.number(0),
                    Order::Ne | Order::Ugt | Order::Uge if number == 0 => return self.number(1),
                    Order::Ugt | Order::Uge | Order::Eq => return self.number(0),
                    Order::Ult | Order::Ule | Order::Ne => return self.number(1),
                    _ => {}
                }
            }
            let truth = matches!(self.node(left), Node::Compare(..) | Node::In(..));
            match order {
                Order::Ne if truth && number == 0 => return left,
                Order::Eq if truth && number == 0 => return self.not(left),
                Order::Eq if !matches!(self.node(left), Node::Any(_)) => {
                    return self.id(Node::In(left, [number].into()));
                }
                _ => {}
            }
        }
        let each = self.each(left, right, |values, left, right| values.compare(order, bits, left, right));
        if let Some(any) = each
            && self.as_number(any).is_some()
        {
            return any;
        }
        self.id(Node::Compare(order, left, right))
    }

    /// The contrary.
    pub fn not(&mut self, id: Id) -> Id {
        let order = |order| match order {
            Order::Eq => Order::Ne,
            Order::Ne => Order::Eq,
            Order::Ugt => Order::Ule,
            Order::Uge => Order::Ult,
            Order::Ult => Order::Uge,
            Order::Ule => Order::Ugt,
            Order::Sgt => Order::Sle,
            Order::Sge => Order::Slt,
            Order::Slt => Order::Sge,
            Order::Sle => Order::Sgt,
        };
        match self.node(id).clone() {
            Node::Number(number) => self.number(i64::from(number & 1 == 0)),
            Node::In(value, of) if of.len() == 1 => {
                let number = self.number(of[0]);
                self.id(Node::Compare(Order::Ne, value, number))
            }
            Node::Compare(is, left, right) => {
                let (is, number) = (order(is), self.as_number(right));
                match (is, number) {
                    (Order::Eq, Some(number)) => self.id(Node::In(left, [number].into())),
                    _ => self.id(Node::Compare(is, left, right)),
                }
            }
            _ => self.unknown_at("a condition", id.0),
        }
    }

    /// Does a value depend on this one?
    pub fn has(&self, id: Id, part: Id) -> bool {
        id == part || self.inner(id).into_iter().any(|one| self.has(one, part))
    }

    /// The values that a value is made of.
    pub fn inner(&self, id: Id) -> Vec<Id> {
        match self.node(id) {
            Node::Sum(terms, _) => terms.iter().map(|(id, _)| *id).collect(),
            Node::Field(one, _) | Node::Kernel(one, _) | Node::In(one, _) => vec![*one],
            Node::Product(a, b) | Node::Compare(_, a, b) | Node::Binary(_, a, b) => vec![*a, *b],
            Node::Any(all) | Node::Tuple(all) => all.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Does it depend on what the program says?
    pub fn is_users(&self, id: Id) -> bool {
        matches!(self.node(id), Node::Argument | Node::Field(..))
            || self.inner(id).into_iter().any(|one| self.is_users(one))
    }

    /// The value with some of its parts replaced.
    pub fn replaced(&mut self, id: Id, with: &[(Id, Id)]) -> Id {
        if let Some((_, new)) = with.iter().find(|(old, _)| *old == id) {
            return *new;
        }
        match self.node(id).clone() {
            Node::Sum(terms, number) => {
                let mut sum = self.number(number);
                for (term, times) in terms {
                    let term = self.replaced(term, with);
                    let term = self.times(term, times);
                    sum = self.add(sum, term);
                }
                sum
            }
            Node::Field(address, bytes) => {
                let address = self.replaced(address, with);
                self.id(Node::Field(address, bytes))
            }
            Node::Kernel(address, bytes) => {
                let address = self.replaced(address, with);
                self.id(Node::Kernel(address, bytes))
            }
            Node::Product(a, b) => {
                let (a, b) = (self.replaced(a, with), self.replaced(b, with));
                self.product(a, b)
            }
            Node::Binary(op, a, b) => {
                let (a, b) = (self.replaced(a, with), self.replaced(b, with));
                self.binary(op, 64, a, b)
            }
            Node::Any(all) => {
                let all: Vec<Id> = all.iter().map(|&one| self.replaced(one, with)).collect();
                self.any(&all)
            }
            _ => id,
        }
    }
}

fn number(op: Binary, bits: u32, a: i64, b: i64) -> Option<i64> {
    let (ua, ub) = (unsigned(a, bits), unsigned(b, bits));
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    let shift = u32::try_from(ub).unwrap_or(64);
    Some(match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a.checked_shl(shift)?,
        Binary::Lshr => ua.checked_shr(shift)?.cast_signed(),
        Binary::Ashr => sa.checked_shr(shift)?,
        Binary::Udiv => ua.checked_div(ub)?.cast_signed(),
        Binary::Urem => ua.checked_rem(ub)?.cast_signed(),
        Binary::Sdiv => sa.checked_div(sb)?,
        Binary::Srem => sa.checked_rem(sb)?,
    })
}

fn holds(order: Order, bits: u32, a: i64, b: i64) -> bool {
    let (ua, ub) = (unsigned(a, bits), unsigned(b, bits));
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    match order {
        Order::Eq => ua == ub,
        Order::Ne => ua != ub,
        Order::Ugt => ua > ub,
        Order::Uge => ua >= ub,
        Order::Ult => ua < ub,
        Order::Ule => ua <= ub,
        Order::Sgt => sa > sb,
        Order::Sge => sa >= sb,
        Order::Slt => sa < sb,
        Order::Sle => sa <= sb,
    }
}
