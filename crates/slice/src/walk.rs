//! Walks through the functions that an ioctl runs, with what is known of each value, and notes what is copied from and to the
//! program's memory. Branches are followed both ways unless the condition is known; loops until nothing more is learnt.
//!
//! Errors of the copies themselves are not followed: a driver gives up then.

use crate::ir::{Binary, Function, Op, Operand, Type};
use crate::memory::{Place as Address, State};
use crate::program::{KEEPERS, Place, Program, strip};
use crate::value::{Id, Node, Values};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Instructions that one command may take.
const MAX_STEPS: u64 = 200_000;
/// Calls within calls.
const MAX_DEPTH: usize = 24;
/// Rounds of a loop until it is known, or never is.
const MAX_SWEEPS: u32 = 8;
/// A function of no more instructions is walked though it copies nothing: it may compute what others use.
const SMALL: usize = 80;
/// The same, if it may fill in what others use.
const LARGER: usize = 400;

/// What is done with a program's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Copied from there.
    In,
    /// Copied to there.
    Out,
    /// A text is copied from there, up to so many bytes.
    Text,
    /// Held, or reached later, by this function of the kernel's.
    Kept(Rc<str>),
    /// Its address is given to this function, which is not in the files.
    Given(Rc<str>),
    /// The walk was not finished, and why.
    Lost(Rc<str>),
}

/// One of these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// What is done.
    pub kind: Kind,
    /// Where.
    pub address: Id,
    /// With how many bytes.
    pub bytes: Id,
    /// What of the program's data decides whether it is done.
    pub conditions: BTreeSet<Id>,
    /// The function that does it.
    pub function: Rc<str>,
}

struct Flow {
    order: Vec<usize>,
    before: Vec<Vec<usize>>,
    /// Edges to a block that is walked before.
    back: HashSet<(usize, usize)>,
}

/// One call of a function.
struct Frame<'a> {
    module: usize,
    function: &'a Rc<Function>,
    context: u32,
    locals: Vec<Option<Id>>,
    own: HashSet<Id>,
    /// Blocks that were walked.
    reached: BTreeSet<usize>,
}

#[derive(Default)]
struct Ended {
    state: Option<State>,
    value: Option<Id>,
}

/// A walk through a command.
pub struct Walk<'p> {
    program: &'p Program,
    /// All values that it met.
    pub values: Values,
    contexts: HashMap<(u32, usize, usize, Place), u32>,
    memories: HashMap<(u32, usize, usize), u32>,
    loops: HashMap<(u32, usize), u32>,
    flows: HashMap<Place, Rc<Flow>>,
    parts: HashMap<Id, Vec<(Rc<str>, usize)>>,
    stack: Vec<Place>,
    /// Blocks that were walked of each function.
    reached: BTreeMap<Place, BTreeSet<usize>>,
    steps: u64,
    /// How often loops go round, as conditions say.
    bounds: HashMap<Id, Vec<Id>>,
}

impl<'p> Walk<'p> {
    /// Nothing is known yet.
    pub fn new(program: &'p Program) -> Self {
        Self {
            program,
            values: Values::default(),
            contexts: HashMap::new(),
            memories: HashMap::new(),
            loops: HashMap::new(),
            flows: HashMap::new(),
            parts: HashMap::new(),
            stack: Vec::new(),
            reached: BTreeMap::new(),
            steps: 0,
            bounds: HashMap::new(),
        }
    }

    /// What the function of a file's operations does for an ioctl, and what it answers. It has the file, the command's number and
    /// the argument as parameters.
    pub fn command(&mut self, entry: &Place, number: u32) -> (Vec<Operation>, Option<Id>) {
        let file = self.memory(0, 0, 0);
        let number = self.values.number(i64::from(number.cast_signed()));
        let argument = self.values.id(Node::Argument);
        self.entry(entry, vec![file, number, argument], State::default())
    }

    /// What a function does whose second parameter is a copy of the argument (that of a `drm_ioctl_desc`).
    pub fn handler(&mut self, entry: &Place) -> (Vec<Operation>, Option<Id>) {
        let [device, data, file] = [1, 2, 3].map(|number| self.memory(0, number, 0));
        let argument = self.values.id(Node::Argument);
        let mut state = State::default();
        state.fill(&mut self.values, data, argument, None, true);
        let (mut found, value) = self.entry(entry, vec![device, data, file], state);
        self.note_unreached(&mut found);
        (found, value)
    }

    /// Notes functions of which a part that copies was never come to: a condition was taken for known that is not, or is known indeed.
    fn note_unreached(&mut self, found: &mut Vec<Operation>) {
        let program = self.program;
        let mut missed = Vec::new();
        for (place, reached) in &self.reached {
            let Some((module, function)) = program.function(place.0, &place.1) else { continue };
            let copies = |block: &usize| {
                let mut calls =
                    function.blocks[*block].iter().filter_map(|instruction| match &instruction.op {
                        Op::Call(callee, _) => Some(strip(callee)),
                        _ => None,
                    });
                calls.any(|callee| matches!(callee, Operand::Global(name) if program.is_access(module, name)))
            };
            if (0..function.blocks.len()).filter(|block| !reached.contains(block)).any(|block| copies(&block))
            {
                missed.push(place.1.clone());
            }
        }
        for function in missed {
            self.lost("a part that copies is never come to", &function, found);
        }
    }

    fn entry(&mut self, entry: &Place, arguments: Vec<Id>, state: State) -> (Vec<Operation>, Option<Id>) {
        let mut found = Vec::new();
        let ended = self.call(entry, arguments, state, 0, &mut found);
        let mut once = HashSet::new();
        found.retain(|operation| once.insert(operation.clone()));
        (found, ended.value)
    }

    fn memory(&mut self, context: u32, block: usize, at: usize) -> Id {
        let next = u32::try_from(self.memories.len()).unwrap_or(u32::MAX);
        let number = *self.memories.entry((context, block, at)).or_insert(next);
        self.values.id(Node::Memory(number))
    }

    fn round(&mut self, context: u32, head: usize) -> Id {
        let next = u32::try_from(self.loops.len()).unwrap_or(u32::MAX);
        let number = *self.loops.entry((context, head)).or_insert(next);
        self.values.id(Node::Index(number))
    }

    fn lost(&mut self, why: &str, function: &Rc<str>, found: &mut Vec<Operation>) {
        let none = self.values.number(0);
        let conditions = BTreeSet::new();
        found.push(Operation {
            kind: Kind::Lost(why.into()),
            address: none,
            bytes: none,
            conditions,
            function: function.clone(),
        });
    }

    /// Walks through a function.
    fn call(
        &mut self,
        place: &Place,
        arguments: Vec<Id>,
        state: State,
        context: u32,
        found: &mut Vec<Operation>,
    ) -> Ended {
        let program = self.program;
        let Some((module, function)) = program.function(place.0, &place.1) else { return Ended::default() };
        if self.stack.len() >= MAX_DEPTH || self.stack.contains(place) || self.steps > MAX_STEPS {
            if program.reaches(place) {
                let why = if self.steps > MAX_STEPS {
                    "it is too large"
                } else {
                    "functions call each other too deeply"
                };
                self.lost(why, &place.1, found);
            }
            let value = self.values.unknown_at("a function that was not walked", context);
            return Ended { state: Some(state), value: Some(value) };
        }
        self.stack.push(place.clone());
        let flow = self.flow(place, function);
        let mut locals = vec![None; function.locals];
        for (local, argument) in locals.iter_mut().zip(arguments.into_iter().take(function.parameters)) {
            *local = Some(argument);
        }
        let mut frame =
            Frame { module, function, context, locals, own: HashSet::new(), reached: BTreeSet::new() };
        let ended = self.blocks(&mut frame, &flow, state, found);
        if let Some(place) = self.stack.pop() {
            self.reached.entry(place).or_default().extend(frame.reached);
        }
        let Ended { state, value } = ended;
        let state = state.map(|mut state| {
            state.forget(|id| frame.own.contains(&id));
            state
        });
        Ended { state, value }
    }

    fn flow(&mut self, place: &Place, function: &Function) -> Rc<Flow> {
        if let Some(flow) = self.flows.get(place) {
            return flow.clone();
        }
        let next = |block: usize| -> Vec<usize> {
            match function.blocks.get(block).and_then(|block| block.last()).map(|last| &last.op) {
                Some(Op::Jump(to)) => vec![*to],
                Some(Op::Branch(_, yes, no)) => vec![*yes, *no],
                Some(Op::Switch(_, default, cases)) => {
                    cases.iter().map(|(_, to)| *to).chain([*default]).collect()
                }
                Some(Op::Either(all)) => all.clone(),
                _ => Vec::new(),
            }
        };
        let count = function.blocks.len();
        let (mut order, mut before, mut back) = (Vec::new(), vec![Vec::new(); count], HashSet::new());
        // 0: not seen, 1: on the way, 2: done.
        let mut seen = vec![0_u8; count];
        let mut stack = vec![(0, next(0), 0)];
        if let Some(first) = seen.get_mut(0) {
            *first = 1;
        }
        while let Some((block, nexts, at)) = stack.last_mut() {
            let block = *block;
            let Some(&to) = nexts.get(*at) else {
                seen[block] = 2;
                order.push(block);
                stack.pop();
                continue;
            };
            *at += 1;
            if to >= count {
                continue;
            }
            if !before[to].contains(&block) {
                before[to].push(block);
            }
            match seen[to] {
                0 => {
                    seen[to] = 1;
                    stack.push((to, next(to), 0));
                }
                1 => {
                    back.insert((block, to));
                }
                _ => {}
            }
        }
        order.reverse();
        let flow = Rc::new(Flow { order, before, back });
        self.flows.insert(place.clone(), flow.clone());
        flow
    }

    fn blocks(
        &mut self,
        frame: &mut Frame<'_>,
        flow: &Flow,
        entry: State,
        found: &mut Vec<Operation>,
    ) -> Ended {
        let mut edges: HashMap<(usize, usize), State> = HashMap::new();
        let mut heads: HashMap<usize, (State, State)> = HashMap::new();
        let mut done: HashMap<usize, State> = HashMap::new();
        let mut copies: BTreeMap<usize, Vec<Operation>> = BTreeMap::new();
        let mut ends: BTreeMap<usize, (Option<Id>, State)> = BTreeMap::new();
        let first = flow.order.first().copied().unwrap_or(0);
        for sweep in 0..=MAX_SWEEPS {
            let mut changed = false;
            for &block in &flow.order {
                let mut state = (block == first).then(|| entry.clone());
                let mut is_head = false;
                for &from in &flow.before[block] {
                    if flow.back.contains(&(from, block)) {
                        is_head = true;
                        continue;
                    }
                    let Some(edge) = edges.get(&(from, block)) else { continue };
                    match &mut state {
                        Some(state) => state.join(&mut self.values, edge, None),
                        None => state = Some(edge.clone()),
                    }
                }
                let Some(mut state) = state else { continue };
                if is_head {
                    let round = self.round(frame.context, block);
                    state = match heads.remove(&block) {
                        Some((forward, mut head)) if forward == state => {
                            for &from in &flow.before[block] {
                                if flow.back.contains(&(from, block))
                                    && let Some(edge) = edges.get(&(from, block))
                                {
                                    head.join(&mut self.values, edge, Some(round));
                                }
                            }
                            heads.insert(block, (forward, head.clone()));
                            head
                        }
                        _ => {
                            for &from in &flow.before[block] {
                                if flow.back.contains(&(from, block)) {
                                    edges.remove(&(from, block));
                                }
                            }
                            heads.insert(block, (state.clone(), state.clone()));
                            state
                        }
                    };
                }
                if done.get(&block) == Some(&state) {
                    continue;
                }
                changed = true;
                done.insert(block, state.clone());
                edges.retain(|(from, _), _| *from != block);
                frame.reached.insert(block);
                let mut own = Vec::new();
                if let Some(end) = self.block(frame, block, state, &mut edges, &mut own) {
                    ends.insert(block, end);
                }
                copies.insert(block, own);
                if self.steps > MAX_STEPS {
                    break;
                }
            }
            if !changed || self.steps > MAX_STEPS {
                break;
            }
            if sweep == MAX_SWEEPS {
                self.lost("a loop that is never known", &frame.function.name.clone(), found);
            }
        }
        found.extend(copies.into_values().flatten());
        if self.steps > MAX_STEPS {
            self.lost("it is too large", &frame.function.name.clone(), found);
        }
        let mut ended = Ended::default();
        let mut all = Vec::new();
        for (_, (value, state)) in ends {
            all.extend(value);
            match &mut ended.state {
                Some(joined) => joined.join(&mut self.values, &state, None),
                None => ended.state = Some(state),
            }
        }
        if !all.is_empty() {
            ended.value = Some(self.values.any(&all));
        }
        ended
    }

    /// Walks through a block; what a return gives back, if it ends with one.
    fn block(
        &mut self,
        frame: &mut Frame<'_>,
        block: usize,
        mut state: State,
        edges: &mut HashMap<(usize, usize), State>,
        found: &mut Vec<Operation>,
    ) -> Option<(Option<Id>, State)> {
        let function = frame.function.clone();
        for (at, instruction) in function.blocks.get(block)?.iter().enumerate() {
            self.steps += 1;
            let value = match &instruction.op {
                Op::Alloca => {
                    let id = self.memory(frame.context, block, at);
                    frame.own.insert(id);
                    Some(id)
                }
                Op::Store(ty, value, to) => {
                    let (value, to) = (self.operand(frame, value), self.operand(frame, to));
                    let bytes = self.program.modules[frame.module].size(ty);
                    state.store(&mut self.values, to, bytes, value);
                    None
                }
                Op::Load(ty, from) => {
                    let from = self.operand(frame, from);
                    let bytes = self.program.modules[frame.module].size(ty);
                    Some(self.load(&mut state, from, bytes))
                }
                Op::Call(callee, arguments) => {
                    let arguments: Vec<(bool, Id)> = arguments
                        .iter()
                        .map(|(ty, argument)| (*ty == Type::Pointer, self.operand(frame, argument)))
                        .collect();
                    let site = (frame.context, block, at);
                    match self.invoke(frame, callee, &arguments, &mut state, site, found) {
                        Some(value) => value,
                        // It does not return.
                        None => return None,
                    }
                }
                Op::Phi(from) => {
                    let known: Vec<Id> = from
                        .iter()
                        .filter(|(_, from)| edges.contains_key(&(*from, block)))
                        .map(|(value, _)| self.operand(frame, value))
                        .collect();
                    // `a && b` is b where a holds: what holds on the way is known.
                    match (from.as_slice(), known.as_slice()) {
                        (_, []) => None,
                        (_, all) => Some(self.merged(all)),
                    }
                }
                Op::Jump(to) => {
                    edges.insert((block, *to), state);
                    return None;
                }
                Op::Either(all) => {
                    for to in all {
                        edges.insert((block, *to), state.clone());
                    }
                    return None;
                }
                Op::Branch(condition, yes, no) => {
                    let condition = self.operand(frame, condition);
                    self.branch(condition, block, *yes, *no, &state, edges);
                    return None;
                }
                Op::Switch(value, default, cases) => {
                    let value = self.operand(frame, value);
                    self.switch(value, block, *default, cases, &state, edges);
                    return None;
                }
                Op::Return(value) => {
                    let value = value.as_ref().map(|value| self.operand(frame, value));
                    return Some((value, state));
                }
                Op::Unreachable => return None,
                op => Some(self.compute(Some(frame), frame.module, op)),
            };
            if let (Some(result), Some(value)) = (instruction.result, value)
                && let Some(local) = frame.locals.get_mut(result)
            {
                *local = Some(value);
            }
        }
        None
    }

    /// What comes of several ways: a condition, if the others are no.
    fn merged(&mut self, all: &[Id]) -> Id {
        let none = self.values.number(0);
        let conditions: Vec<Id> = all.iter().copied().filter(|&id| id != none).collect();
        match (conditions.as_slice(), all.len()) {
            ([one], 2) if matches!(self.values.node(*one), Node::Compare(..) | Node::In(..)) => *one,
            _ => self.values.any(all),
        }
    }

    fn branch(
        &mut self,
        condition: Id,
        block: usize,
        yes: usize,
        no: usize,
        state: &State,
        edges: &mut HashMap<(usize, usize), State>,
    ) {
        let contrary = self.values.not(condition);
        for (to, condition) in [(yes, condition), (no, contrary)] {
            if self.values.as_number(condition).is_some_and(|number| number & 1 == 0) {
                continue;
            }
            let mut state = state.clone();
            if !self.assume(&mut state, condition) {
                continue;
            }
            match edges.get_mut(&(block, to)) {
                Some(edge) => edge.join(&mut self.values, &state, None),
                None => {
                    edges.insert((block, to), state);
                }
            }
        }
    }

    /// The conditions that say how often a loop goes round.
    pub fn bounds(&self, round: Id) -> &[Id] {
        self.bounds.get(&round).map_or(&[], Vec::as_slice)
    }

    fn bound(&mut self, condition: Id) {
        let Node::Compare(_, left, right) = *self.values.node(condition) else { return };
        for (id, _) in [left, right].iter().flat_map(|&side| self.values.terms(side).0).collect::<Vec<_>>() {
            if matches!(self.values.node(id), Node::Index(_)) {
                let known = self.bounds.entry(id).or_default();
                if !known.contains(&condition) {
                    known.push(condition);
                }
            }
        }
    }

    /// Adds that a condition holds; whether it can.
    fn assume(&mut self, state: &mut State, condition: Id) -> bool {
        self.bound(condition);
        let number = |id: &Id, values: &Values| values.as_number(*id);
        match self.values.node(condition).clone() {
            Node::In(value, of) => {
                let known = state.conditions.iter().copied().find_map(|id| match self.values.node(id) {
                    Node::In(same, before) if *same == value => Some((id, before.clone())),
                    _ => None,
                });
                let mut left: Vec<i64> = of.to_vec();
                if let Some((id, before)) = known {
                    left.retain(|one| before.contains(one));
                    state.conditions.remove(&id);
                }
                for &id in &state.conditions {
                    if let Node::Compare(crate::ir::Order::Ne, same, other) = self.values.node(id)
                        && *same == value
                        && let Some(other) = number(other, &self.values)
                    {
                        left.retain(|&one| one != other);
                    }
                }
                if left.is_empty() {
                    return false;
                }
                let id = self.values.id(Node::In(value, left.into()));
                state.conditions.insert(id);
            }
            Node::Compare(order, value, other) => {
                let other_number = number(&other, &self.values);
                if let (crate::ir::Order::Ne, Some(other)) = (order, other_number) {
                    let known = state.conditions.iter().copied().find_map(|id| match self.values.node(id) {
                        Node::In(same, before) if *same == value => Some((id, before.clone())),
                        _ => None,
                    });
                    if let Some((id, before)) = known {
                        let left: Vec<i64> = before.iter().copied().filter(|&one| one != other).collect();
                        if left.is_empty() {
                            return false;
                        }
                        state.conditions.remove(&id);
                        let id = self.values.id(Node::In(value, left.into()));
                        state.conditions.insert(id);
                        return true;
                    }
                }
                if self.matters(condition) {
                    state.conditions.insert(condition);
                }
            }
            _ => {}
        }
        true
    }

    /// Is a condition about a program's data, or a loop?
    fn matters(&self, id: Id) -> bool {
        matches!(self.values.node(id), Node::Field(..) | Node::Index(_))
            || self.values.inner(id).into_iter().any(|one| self.matters(one))
    }

    fn switch(
        &mut self,
        value: Id,
        block: usize,
        default: usize,
        cases: &[(i64, usize)],
        state: &State,
        edges: &mut HashMap<(usize, usize), State>,
    ) {
        if let Some(number) = self.values.as_number(value) {
            let to = cases.iter().find(|(case, _)| *case == number).map_or(default, |(_, to)| *to);
            edges.insert((block, to), state.clone());
            return;
        }
        let mut targets: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for (case, to) in cases {
            targets.entry(*to).or_default().push(*case);
        }
        let only = state.conditions.iter().find_map(|&id| match self.values.node(id) {
            Node::In(same, of) if *same == value => Some(of.to_vec()),
            _ => None,
        });
        // One that is known to be among the cases is no other.
        if only.is_none_or(|only| only.iter().any(|one| !cases.iter().any(|(case, _)| case == one))) {
            edges.insert((block, default), state.clone());
        }
        for (to, mut of) in targets {
            of.sort_unstable();
            let condition = self.values.id(Node::In(value, of.into()));
            let mut state = state.clone();
            if to != default && self.assume(&mut state, condition) {
                edges.insert((block, to), state);
            }
        }
    }

    fn load(&mut self, state: &mut State, from: Id, bytes: u64) -> Id {
        let all = self.values.addresses(from);
        let mut found = Vec::new();
        for one in all {
            found.push(match self.constant_at(one, bytes) {
                Some(value) => value,
                None => state.load(&mut self.values, one, bytes),
            });
        }
        self.values.any(&found)
    }

    /// What a constant of the files holds.
    fn constant_at(&mut self, address: Id, bytes: u64) -> Option<Id> {
        let place = Address::of(&self.values, address)?;
        let Node::Global(name, Some(module)) = self.values.node(place.base).clone() else { return None };
        let (module, variable) = self.program.variable(module, &name)?;
        if !variable.is_constant {
            return None;
        }
        if !place.terms.is_empty() {
            return None;
        }
        let value = variable.value.as_ref()?;
        self.part(module, &variable.ty, value, u64::try_from(place.offset).ok()?, bytes)
    }

    fn part(&mut self, module: usize, ty: &Type, value: &Operand, offset: u64, bytes: u64) -> Option<Id> {
        let program = self.program;
        let layouts = &program.modules[module];
        match value {
            Operand::Zero => Some(self.values.number(0)),
            Operand::Bytes(text) if bytes == 1 => {
                Some(self.values.number(i64::from(*text.get(usize::try_from(offset).ok()?)?)))
            }
            Operand::Parts(parts) => {
                let mut at = 0_u64;
                let packed = layouts.parts(ty).is_some_and(|(_, packed)| packed);
                for (ty, part) in parts {
                    let (size, align) = layouts.layout(ty);
                    at = at.next_multiple_of(if packed { 1 } else { align });
                    if offset >= at && offset + bytes <= at + size {
                        return self.part(module, ty, part, offset - at, bytes);
                    }
                    at += size;
                }
                None
            }
            Operand::Undefined | Operand::Bytes(_) => None,
            _ if offset == 0 && layouts.size(ty) == bytes => Some(self.constant(module, value)),
            _ => None,
        }
    }

    fn operand(&mut self, frame: &Frame<'_>, operand: &Operand) -> Id {
        match operand {
            Operand::Local(local) => match frame.locals.get(*local).copied().flatten() {
                Some(value) => value,
                None => self.values.unknown_at("a value that nothing gives", frame.context),
            },
            Operand::Constant(op) => self.compute(Some(frame), frame.module, op),
            _ => self.constant(frame.module, operand),
        }
    }

    fn constant(&mut self, module: usize, operand: &Operand) -> Id {
        match operand {
            Operand::Number(number) => self.values.number(*number),
            Operand::Zero => self.values.number(0),
            Operand::Global(name) => {
                let function = self.program.function(module, name).map(|(module, _)| module);
                let home = function.or_else(|| self.program.variable(module, name).map(|(module, _)| module));
                self.values.id(Node::Global(name.clone(), home))
            }
            Operand::Constant(op) => self.compute(None, module, op),
            _ => self.values.unknown_at("a value that may be anything", 2),
        }
    }

    /// What an instruction gives that neither reaches memory nor goes elsewhere.
    fn compute(&mut self, frame: Option<&Frame<'_>>, module: usize, op: &Op) -> Id {
        let value = |walk: &mut Self, operand: &Operand| match frame {
            Some(frame) => walk.operand(frame, operand),
            None => walk.constant(module, operand),
        };
        match op {
            Op::Element(ty, pointer, indices) => {
                let pointer = value(self, pointer);
                let indices: Vec<Id> = indices.iter().map(|index| value(self, index)).collect();
                self.element(module, ty, pointer, &indices)
            }
            Op::Cast { from, to, sign, value: operand } => {
                let operand = value(self, operand);
                self.values.cast(*from, *to, *sign, operand)
            }
            Op::Binary(binary, bits, left, right) => {
                let (left, right) = (value(self, left), value(self, right));
                self.values.binary(*binary, *bits, left, right)
            }
            Op::Compare(order, bits, left, right) => {
                let (left, right) = (value(self, left), value(self, right));
                self.values.compare(*order, *bits, left, right)
            }
            Op::Select(which, yes, no) => {
                let which = value(self, which);
                let (yes, no) = (value(self, yes), value(self, no));
                match self.values.as_number(which) {
                    Some(number) => {
                        if number & 1 == 1 {
                            yes
                        } else {
                            no
                        }
                    }
                    None => self.values.any(&[yes, no]),
                }
            }
            Op::Extract(operand, path) => {
                let operand = value(self, operand);
                match (self.values.node(operand), path.as_slice()) {
                    (Node::Tuple(all), [index]) if (*index as usize) < all.len() => all[*index as usize],
                    _ => self.values.unknown_at("a part of something", 3),
                }
            }
            _ => self.values.unknown_at("an instruction that is not known", 4),
        }
    }

    fn element(&mut self, module: usize, ty: &Type, pointer: Id, indices: &[Id]) -> Id {
        let program = self.program;
        let layouts = &program.modules[module];
        let Some((first, rest)) = indices.split_first() else { return pointer };
        let size = |ty: &Type| i64::try_from(layouts.size(ty)).unwrap_or(i64::MAX);
        let step = self.values.times(*first, size(ty));
        let mut address = self.values.add(pointer, step);
        let mut ty = ty;
        for &index in rest {
            match ty {
                Type::Array(_, part) => {
                    let step = self.values.times(index, size(part));
                    address = self.values.add(address, step);
                    ty = part;
                }
                _ => {
                    let number = self.values.as_number(index).and_then(|number| usize::try_from(number).ok());
                    let Some((number, (offset, part))) =
                        number.and_then(|number| Some((number, layouts.part(ty, number)?)))
                    else {
                        return self.values.unknown_at("a part that is not known", 5);
                    };
                    let offset = self.values.number(i64::try_from(offset).unwrap_or(i64::MAX));
                    address = self.values.add(address, offset);
                    if let Type::Named(name) = ty {
                        let known = self.parts.entry(address).or_default();
                        if !known.iter().any(|(known, at)| known == name && *at == number) {
                            known.push((name.clone(), number));
                        }
                    }
                    ty = part;
                }
            }
        }
        address
    }

    /// A call; none: it does not return.
    fn invoke(
        &mut self,
        frame: &mut Frame<'_>,
        callee: &Operand,
        arguments: &[(bool, Id)],
        state: &mut State,
        site: (u32, usize, usize),
        found: &mut Vec<Operation>,
    ) -> Option<Option<Id>> {
        let callee = strip(callee);
        if let Operand::Global(name) = callee {
            return self.direct(frame, name, frame.module, arguments, state, site, found).map(Some);
        }
        if *callee == Operand::Undefined {
            return Some(Some(self.values.unknown_at("what an assembler statement gives", site.0)));
        }
        let callee = self.operand(frame, callee);
        let mut places: Vec<Place> = Vec::new();
        let mut outside: Vec<Rc<str>> = Vec::new();
        for one in self.values.addresses(callee) {
            match self.values.node(one).clone() {
                Node::Global(name, Some(module)) => places.push((module, name)),
                Node::Global(name, None) => outside.push(name),
                Node::Kernel(address, _) => {
                    for part in self.parts.get(&address).cloned().unwrap_or_default() {
                        places.extend(self.program.held(&part));
                    }
                }
                _ => {}
            }
        }
        places.retain(|place| self.program.reaches(place));
        places.sort();
        places.dedup();
        let before = state.clone();
        let mut values = Vec::new();
        let mut ended: Option<State> =
            outside.is_empty().then(|| before.clone()).filter(|_| places.len() != 1);
        for place in places {
            let mut own = before.clone();
            if let Some(value) = self.direct(frame, &place.1, place.0, arguments, &mut own, site, found) {
                values.push(value);
                match &mut ended {
                    Some(state) => state.join(&mut self.values, &own, None),
                    None => ended = Some(own),
                }
            }
        }
        for name in outside {
            self.given(frame, &name, arguments, state, found);
        }
        if let Some(ended) = ended {
            *state = ended;
        }
        if values.is_empty() {
            values.push(self.values.unknown_at("what a function gives that is not known", site.0));
        }
        Some(Some(self.values.any(&values)))
    }

    fn given(
        &mut self,
        frame: &Frame<'_>,
        name: &Rc<str>,
        arguments: &[(bool, Id)],
        state: &State,
        found: &mut Vec<Operation>,
    ) {
        for &(is_pointer, argument) in arguments {
            if is_pointer && self.is_users(argument) {
                self.note(frame, Kind::Given(name.clone()), argument, None, state, found);
            }
        }
    }

    fn is_users(&self, address: Id) -> bool {
        self.values.addresses(address).into_iter().any(|one| {
            Address::of(&self.values, one)
                .is_some_and(|place| matches!(self.values.node(place.base), Node::Argument | Node::Field(..)))
        })
    }

    fn note(
        &mut self,
        frame: &Frame<'_>,
        kind: Kind,
        address: Id,
        bytes: Option<Id>,
        state: &State,
        found: &mut Vec<Operation>,
    ) {
        let bytes = bytes.unwrap_or_else(|| self.values.number(0));
        for address in self.values.addresses(address) {
            found.push(Operation {
                kind: kind.clone(),
                address,
                bytes,
                conditions: state.conditions.clone(),
                function: frame.function.name.clone(),
            });
        }
    }

    /// A call of a function by its name.
    #[allow(clippy::too_many_arguments, reason = "they are what a call is")]
    fn direct(
        &mut self,
        frame: &mut Frame<'_>,
        name: &Rc<str>,
        module: usize,
        arguments: &[(bool, Id)],
        state: &mut State,
        site: (u32, usize, usize),
        found: &mut Vec<Operation>,
    ) -> Option<Id> {
        let nothing = self.values.number(0);
        let argument = |index: usize| arguments.get(index).map_or(nothing, |(_, id)| *id);
        match name.as_ref() {
            "sluice_from_user" => {
                self.note(frame, Kind::In, argument(1), Some(argument(2)), state, found);
                state.fill(&mut self.values, argument(0), argument(1), Some(argument(2)), true);
                return Some(nothing);
            }
            "sluice_to_user" | "clear_user" => {
                let bytes = argument(if name.as_ref() == "clear_user" { 1 } else { 2 });
                self.note(frame, Kind::Out, argument(0), Some(bytes), state, found);
                return Some(nothing);
            }
            "memdup_user" | "vmemdup_user" | "memdup_user_nul" | "strndup_user" => {
                let kind = if name.as_ref() == "strndup_user" { Kind::Text } else { Kind::In };
                self.note(frame, kind, argument(0), Some(argument(1)), state, found);
                let memory = self.memory(site.0, site.1, site.2);
                state.fill(&mut self.values, memory, argument(0), Some(argument(1)), true);
                return Some(memory);
            }
            "strncpy_from_user" => {
                self.note(frame, Kind::Text, argument(1), Some(argument(2)), state, found);
                state.fill(&mut self.values, argument(0), argument(1), Some(argument(2)), true);
                return Some(self.values.unknown_at("the length of a text", site.0));
            }
            _ if KEEPERS.contains(&name.as_ref()) => {
                for &(_, argument) in arguments {
                    if self.values.is_users(argument) {
                        self.note(frame, Kind::Kept(name.clone()), argument, None, state, found);
                    }
                }
                return Some(self.values.unknown_at("what the kernel gives", site.0));
            }
            _ if name.starts_with("llvm.") => return Some(self.intrinsic(name, arguments, state)),
            _ if is_allocation(name) => {
                let memory = self.memory(site.0, site.1, site.2);
                state.forget(|id| id == memory);
                if name.contains("zalloc") || name.contains("calloc") {
                    state.clear(&self.values, memory, None);
                }
                return Some(memory);
            }
            _ => {}
        }
        let Some((home, function)) = self.program.function(module, name) else {
            self.given(frame, name, arguments, state, found);
            return Some(self.values.unknown_at(&format!("what {name} gives"), site.0));
        };
        let place: Place = (home, name.clone());
        let size: usize = function.blocks.iter().map(Vec::len).sum();
        let locals = |id: &Id| matches!(self.values.node(*id), Node::Memory(_));
        let fills = arguments.iter().any(|(_, argument)| locals(argument));
        if !self.program.reaches(&place) && size > if fills { LARGER } else { SMALL } {
            return Some(self.values.unknown_at(&format!("what {name} gives"), site.0));
        }
        let next = u32::try_from(self.contexts.len()).unwrap_or(u32::MAX) + 1;
        let context = *self.contexts.entry((site.0, site.1, site.2, place.clone())).or_insert(next);
        let given: Vec<Id> = arguments.iter().map(|(_, id)| *id).collect();
        let ended = self.call(&place, given, state.clone(), context, found);
        *state = ended.state?;
        Some(ended.value.unwrap_or(nothing))
    }

    fn intrinsic(&mut self, name: &str, arguments: &[(bool, Id)], state: &mut State) -> Id {
        let nothing = self.values.number(0);
        let argument = |index: usize| arguments.get(index).map_or(nothing, |(_, id)| *id);
        let (to, from, bytes) = (argument(0), argument(1), argument(2));
        if name.starts_with("llvm.memcpy") || name.starts_with("llvm.memmove") {
            state.fill(&mut self.values, to, from, Some(bytes), false);
        } else if name.starts_with("llvm.memset") {
            if self.values.as_number(from) == Some(0) {
                let bytes = self.values.as_number(bytes);
                state.clear(&self.values, to, bytes);
            }
        } else if name.starts_with("llvm.expect") {
            return to;
        } else if name.starts_with("llvm.is.constant") {
            return self.values.number(i64::from(self.values.as_number(to).is_some()));
        } else if name.starts_with("llvm.objectsize") {
            return self.values.number(-1);
        } else if name.contains(".with.overflow.") {
            let op = match name.as_bytes().get(6..9) {
                Some(b"add") => Binary::Add,
                Some(b"sub") => Binary::Sub,
                _ => Binary::Mul,
            };
            let bits = if name.ends_with("i32") { 32 } else { 64 };
            let value = self.values.binary(op, bits, to, from);
            return self.values.id(Node::Tuple([value, nothing].into()));
        }
        self.values.unknown_at("what the processor gives", 6)
    }
}

/// Does a function of this name give new memory?
fn is_allocation(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    [
        "kmalloc",
        "kzalloc",
        "kcalloc",
        "kvmalloc",
        "kvzalloc",
        "kvcalloc",
        "vmalloc",
        "vzalloc",
        "kmem_cache_alloc",
        "kmem_cache_zalloc",
    ]
    .iter()
    .any(|known| name.starts_with(known))
}
