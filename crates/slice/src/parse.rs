//! Reads clang's textual intermediate code into a [`Module`].

use crate::Error;
use crate::ir::{Binary, Function, Instruction, Module, Op, Operand, Order, Type, Variable};
use crate::lex::{Token, tokens};
use std::collections::HashMap;
use std::rc::Rc;

/// Types and constants nest no deeper than this.
const MAX_DEPTH: u32 = 200;

/// What stands between a type or value and what is said about it.
const ATTRIBUTES: [&str; 36] = [
    "noundef",
    "nonnull",
    "signext",
    "zeroext",
    "inreg",
    "noalias",
    "nocapture",
    "readonly",
    "readnone",
    "returned",
    "immarg",
    "inbounds",
    "volatile",
    "nuw",
    "nsw",
    "exact",
    "fastcc",
    "ccc",
    "coldcc",
    "local_unnamed_addr",
    "unnamed_addr",
    "internal",
    "private",
    "external",
    "dso_local",
    "hidden",
    "weak",
    "linkonce_odr",
    "available_externally",
    "common",
    "weak_odr",
    "linkonce",
    "thread_local",
    "protected",
    "extern_weak",
    "appending",
];

/// Reads a whole file.
pub fn module(text: &str) -> Result<Module, Error> {
    let tokens = tokens(text)?;
    let mut reader =
        Reader { tokens: &tokens, at: 0, depth: 0, names: HashMap::new(), module: Module::default() };
    while reader.at < tokens.len() {
        let begin = reader.at;
        reader.top().ok_or_else(|| Error::Statement(around(&tokens, begin, reader.at)))?;
    }
    Ok(reader.module)
}

/// What an error shows of the text.
fn around(tokens: &[Token], begin: usize, at: usize) -> String {
    let from = begin.max(at.saturating_sub(8));
    let shown: Vec<String> =
        tokens.iter().skip(from).take(at - from + 4).map(|token| format!("{token:?}")).collect();
    shown.join(" ").chars().take(400).collect()
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: u32,
    names: HashMap<Rc<str>, Rc<str>>,
    module: Module,
}

/// Numbers for the names of one function.
#[derive(Default)]
struct Numbers<'a> {
    locals: HashMap<&'a str, usize>,
    labels: HashMap<&'a str, usize>,
}

impl<'a> Numbers<'a> {
    fn local(&mut self, name: &'a str) -> usize {
        let next = self.locals.len();
        *self.locals.entry(name).or_insert(next)
    }

    fn label(&mut self, name: &'a str) -> usize {
        let next = self.labels.len();
        *self.labels.entry(name).or_insert(next)
    }
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<&'a Token> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token)
    }

    fn mark(&mut self, mark: char) -> bool {
        let is = self.peek() == Some(&Token::Mark(mark));
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, mark: char) -> Option<()> {
        self.mark(mark).then_some(())
    }

    fn word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Word(is)) if is == word);
        self.at += usize::from(is);
        is
    }

    fn name(&mut self, name: &str) -> Rc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        let name: Rc<str> = name.into();
        self.names.insert(name.clone(), name.clone());
        name
    }

    fn skip_line(&mut self) {
        while !matches!(self.next(), None | Some(Token::End)) {}
    }

    /// Everything up to the mark that closes what was opened.
    fn skip_group(&mut self, open: char, close: char) -> Option<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                Token::Mark(mark) if *mark == open => depth += 1,
                Token::Mark(mark) if *mark == close => depth -= 1,
                _ => {}
            }
        }
        Some(())
    }

    fn attributes(&mut self) {
        loop {
            match self.peek() {
                Some(Token::Word(word)) if ATTRIBUTES.contains(&word.as_str()) => self.at += 1,
                Some(Token::Word(word))
                    if matches!(
                        word.as_str(),
                        "align"
                            | "dereferenceable"
                            | "dereferenceable_or_null"
                            | "byval"
                            | "sret"
                            | "addrspace"
                            | "elementtype"
                    ) =>
                {
                    self.at += 1;
                    if self.mark('(') {
                        let _ = self.skip_group('(', ')');
                    } else if matches!(self.peek(), Some(Token::Number(_))) {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    /// A statement outside of functions.
    fn top(&mut self) -> Option<()> {
        match self.next()? {
            Token::Local(name) => {
                self.expect('=')?;
                if !self.word("type") {
                    return None;
                }
                let ty = if self.word("opaque") { Type::Struct(Vec::new(), false) } else { self.ty()? };
                let name = self.name(name);
                self.module.types.insert(name, ty);
                self.skip_line();
            }
            Token::Global(name) => self.variable(name)?,
            Token::Word(word) if word == "define" => self.function()?,
            Token::End => {}
            _ => self.skip_line(),
        }
        Some(())
    }

    fn variable(&mut self, name: &'a str) -> Option<()> {
        self.expect('=')?;
        let (mut is_static, mut is_external) = (false, false);
        loop {
            match self.next()? {
                Token::Word(word) => match word.as_str() {
                    "internal" | "private" => is_static = true,
                    "external" | "extern_weak" => is_external = true,
                    "alias" | "ifunc" => {
                        self.skip_line();
                        return Some(());
                    }
                    "thread_local" | "addrspace" => {
                        if self.mark('(') {
                            self.skip_group('(', ')')?;
                        }
                    }
                    "global" | "constant" => {
                        let ty = self.ty()?;
                        let value = if is_external { None } else { Some(self.value(&ty, None)?) };
                        let name = self.name(name);
                        let variable = Variable { ty, value, is_constant: word == "constant", is_static };
                        self.module.variables.insert(name, variable);
                        self.skip_line();
                        return Some(());
                    }
                    _ => {}
                },
                _ => return None,
            }
        }
    }

    /// A type, with the stars and parameter lists behind it.
    fn ty(&mut self) -> Option<Type> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut ty = match self.next()? {
            Token::Word(word) => match word.as_str() {
                "float" => Type::Float(4),
                "double" => Type::Float(8),
                "half" => Type::Float(2),
                "x86_fp80" | "fp128" => Type::Float(16),
                "ptr" => Type::Pointer,
                "void" | "label" | "metadata" | "token" => Type::None,
                _ => {
                    Type::Int(word.strip_prefix('i')?.parse().ok().filter(|bits| (1..=1024).contains(bits))?)
                }
            },
            Token::Local(name) => Type::Named(self.name(name)),
            Token::Mark('[') => self.array(']')?,
            Token::Mark('<') if self.mark('{') => {
                let parts = self.parts()?;
                self.expect('>')?;
                Type::Struct(parts, true)
            }
            Token::Mark('<') => self.array('>')?,
            Token::Mark('{') => Type::Struct(self.parts()?, false),
            _ => return None,
        };
        loop {
            match self.peek() {
                Some(Token::Mark('*')) => {
                    self.at += 1;
                    ty = Type::Pointer;
                }
                Some(Token::Mark('(')) => {
                    self.at += 1;
                    self.skip_group('(', ')')?;
                    ty = Type::None;
                }
                Some(Token::Word(word)) if word == "addrspace" => self.attributes(),
                _ => break,
            }
        }
        self.depth -= 1;
        Some(ty)
    }

    fn array(&mut self, close: char) -> Option<Type> {
        let Token::Number(count) = self.next()? else { return None };
        let count = u64::try_from(*count).ok()?;
        if !self.word("x") {
            return None;
        }
        let part = self.ty()?;
        self.expect(close)?;
        Some(Type::Array(count, Box::new(part)))
    }

    fn parts(&mut self) -> Option<Vec<Type>> {
        let mut parts = Vec::new();
        while !self.mark('}') {
            parts.push(self.ty()?);
            self.mark(',');
        }
        Some(parts)
    }

    /// A type and a value of it.
    fn typed(&mut self, numbers: Option<&mut Numbers<'a>>) -> Option<(Type, Operand)> {
        let ty = self.ty()?;
        self.attributes();
        let value = self.value(&ty, numbers)?;
        Some((ty, value))
    }

    fn value(&mut self, ty: &Type, mut numbers: Option<&mut Numbers<'a>>) -> Option<Operand> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = match self.next()? {
            Token::Local(name) => Operand::Local(numbers?.local(name)),
            Token::Global(name) => Operand::Global(self.name(name)),
            // Numbers of more than 64 bits lose their upper bits.
            Token::Number(number) => Operand::Number(*number as i64),
            Token::Text(bytes) => Operand::Bytes(bytes.clone()),
            Token::Mark('{') => self.list('}', numbers)?,
            Token::Mark('[') => self.list(']', numbers)?,
            Token::Mark('<') if self.mark('{') => {
                let list = self.list('}', numbers)?;
                self.expect('>')?;
                list
            }
            Token::Mark('<') => self.list('>', numbers)?,
            Token::Rest => Operand::Undefined,
            Token::Word(word) => match word.as_str() {
                "null" | "zeroinitializer" | "none" => Operand::Zero,
                "true" => Operand::Number(1),
                "false" => Operand::Number(0),
                "undef" | "poison" => Operand::Undefined,
                "blockaddress" => {
                    self.expect('(')?;
                    self.skip_group('(', ')')?;
                    Operand::Undefined
                }
                "asm" => {
                    while matches!(self.peek(), Some(Token::Word(_))) {
                        self.at += 1;
                    }
                    let (Token::Text(_), Some(())) = (self.next()?, self.expect(',')) else { return None };
                    let Token::Text(_) = self.next()? else { return None };
                    Operand::Undefined
                }
                "dso_local_equivalent" | "no_cfi" => self.value(ty, numbers)?,
                "metadata" => return None,
                _ => Operand::Constant(Box::new(self.constant(word, numbers.take())?)),
            },
            _ => return None,
        };
        self.depth -= 1;
        Some(value)
    }

    fn list(&mut self, close: char, mut numbers: Option<&mut Numbers<'a>>) -> Option<Operand> {
        let mut parts = Vec::new();
        while !self.mark(close) {
            parts.push(self.typed(numbers.as_deref_mut())?);
            self.mark(',');
        }
        Some(Operand::Parts(parts))
    }

    /// A constant expression, after its first word.
    fn constant(&mut self, word: &str, mut numbers: Option<&mut Numbers<'a>>) -> Option<Op> {
        self.attributes();
        // A comparison says first which.
        let order = match self.peek() {
            Some(Token::Word(order)) if word == "icmp" => self::order(order),
            _ => None,
        };
        if order.is_some() {
            self.at += 1;
        }
        self.expect('(')?;
        if word == "getelementptr" {
            let ty = self.ty()?;
            self.expect(',')?;
            let (_, pointer) = self.typed(numbers.as_deref_mut())?;
            let mut indices = Vec::new();
            while self.mark(',') {
                self.word("inrange");
                indices.push(self.typed(numbers.as_deref_mut())?.1);
            }
            self.expect(')')?;
            return Some(Op::Element(ty, pointer, indices));
        }
        let (from, value) = self.typed(numbers.as_deref_mut())?;
        if self.word("to") {
            let to = self.ty()?;
            self.expect(')')?;
            return Some(cast(word, &from, &to, value));
        }
        self.expect(',')?;
        let (_, second) = self.typed(numbers.as_deref_mut())?;
        let op = match (order, binary(word)) {
            (Some(order), _) => Op::Compare(order, bits(&from), value, second),
            (None, Some(binary)) => Op::Binary(binary, bits(&from), value, second),
            _ if word == "select" => {
                self.expect(',')?;
                let (_, third) = self.typed(numbers)?;
                Op::Select(value, second, third)
            }
            _ => return None,
        };
        self.expect(')')?;
        Some(op)
    }

    fn function(&mut self) -> Option<()> {
        let mut is_static = false;
        let name = loop {
            match self.next()? {
                Token::Global(name) => break self.name(name),
                Token::Word(word) if word == "internal" => is_static = true,
                Token::End => return None,
                _ => {}
            }
        };
        let mut numbers = Numbers::default();
        self.expect('(')?;
        let mut parameters = 0;
        while !self.mark(')') {
            if self.peek() == Some(&Token::Rest) {
                self.at += 1;
                continue;
            }
            self.ty()?;
            self.attributes();
            let Token::Local(name) = self.next()? else { return None };
            numbers.local(name);
            parameters += 1;
            self.mark(',');
        }
        while self.peek() != Some(&Token::End) {
            self.next()?;
        }
        let mut blocks: Vec<Vec<Instruction>> = Vec::new();
        let mut current = 0;
        loop {
            match self.next()? {
                Token::End => {}
                Token::Mark('}') => break,
                Token::Label(label) => {
                    current = numbers.label(label);
                    self.skip_line();
                }
                token => {
                    self.at -= 1;
                    debug_assert!(token != &Token::End);
                    if blocks.is_empty() && numbers.labels.is_empty() {
                        current = numbers.label("entry");
                    }
                    if blocks.len() <= current {
                        blocks.resize(current + 1, Vec::new());
                    }
                    let instruction = self.instruction(&mut numbers)?;
                    blocks.get_mut(current)?.push(instruction);
                }
            }
        }
        blocks.resize(numbers.labels.len().max(1), Vec::new());
        let function =
            Function { name: name.clone(), is_static, parameters, locals: numbers.locals.len(), blocks };
        self.module.functions.insert(name, Rc::new(function));
        Some(())
    }

    fn label(&mut self, numbers: &mut Numbers<'a>) -> Option<usize> {
        if !self.word("label") {
            return None;
        }
        let Token::Local(name) = self.next()? else { return None };
        Some(numbers.label(name))
    }

    fn instruction(&mut self, numbers: &mut Numbers<'a>) -> Option<Instruction> {
        let mut result = None;
        if let Some(Token::Local(name)) = self.peek() {
            self.at += 1;
            self.expect('=')?;
            result = Some(numbers.local(name));
        }
        while ["tail", "musttail", "notail"].iter().any(|word| self.word(word)) {}
        let Token::Word(word) = self.next()? else { return None };
        let op = self.operation(word, numbers)?;
        self.skip_line();
        Some(Instruction { result, op })
    }

    fn operation(&mut self, word: &str, numbers: &mut Numbers<'a>) -> Option<Op> {
        self.attributes();
        Some(match word {
            "alloca" => Op::Alloca,
            "load" => {
                self.word("atomic");
                self.attributes();
                let ty = self.ty()?;
                self.expect(',')?;
                Op::Load(ty, self.typed(Some(numbers))?.1)
            }
            "store" => {
                self.word("atomic");
                self.attributes();
                let (ty, value) = self.typed(Some(numbers))?;
                self.expect(',')?;
                Op::Store(ty, value, self.typed(Some(numbers))?.1)
            }
            "getelementptr" => {
                let ty = self.ty()?;
                self.expect(',')?;
                let (_, pointer) = self.typed(Some(numbers))?;
                let mut indices = Vec::new();
                while self.mark(',') {
                    if self.peek() == Some(&Token::Rest) {
                        break;
                    }
                    indices.push(self.typed(Some(numbers))?.1);
                }
                Op::Element(ty, pointer, indices)
            }
            "bitcast" | "inttoptr" | "ptrtoint" | "trunc" | "zext" | "sext" | "addrspacecast" | "fptosi"
            | "fptoui" | "sitofp" | "uitofp" | "fpext" | "fptrunc" => {
                let (from, value) = self.typed(Some(numbers))?;
                if !self.word("to") {
                    return None;
                }
                let to = self.ty()?;
                cast(word, &from, &to, value)
            }
            "freeze" => {
                let (ty, value) = self.typed(Some(numbers))?;
                cast("bitcast", &ty, &ty, value)
            }
            "icmp" => {
                let Token::Word(order) = self.next()? else { return None };
                let order = self::order(order)?;
                let (ty, left) = self.typed(Some(numbers))?;
                self.expect(',')?;
                Op::Compare(order, bits(&ty), left, self.value(&ty, Some(numbers))?)
            }
            "select" => {
                let (_, which) = self.typed(Some(numbers))?;
                self.expect(',')?;
                let (_, yes) = self.typed(Some(numbers))?;
                self.expect(',')?;
                Op::Select(which, yes, self.typed(Some(numbers))?.1)
            }
            "phi" => {
                let ty = self.ty()?;
                let mut from = Vec::new();
                while self.mark('[') {
                    let value = self.value(&ty, Some(numbers))?;
                    self.expect(',')?;
                    let Token::Local(label) = self.next()? else { return None };
                    from.push((value, numbers.label(label)));
                    self.expect(']')?;
                    self.mark(',');
                }
                Op::Phi(from)
            }
            "call" | "callbr" | "invoke" => self.call(word, numbers)?,
            "extractvalue" => {
                let (_, value) = self.typed(Some(numbers))?;
                let mut path = Vec::new();
                while self.mark(',') {
                    let Some(Token::Number(index)) = self.peek() else { break };
                    self.at += 1;
                    path.push(u64::try_from(*index).ok()?);
                }
                Op::Extract(value, path)
            }
            "br" => {
                if matches!(self.peek(), Some(Token::Word(word)) if word == "label") {
                    Op::Jump(self.label(numbers)?)
                } else {
                    let (_, which) = self.typed(Some(numbers))?;
                    self.expect(',')?;
                    let yes = self.label(numbers)?;
                    self.expect(',')?;
                    Op::Branch(which, yes, self.label(numbers)?)
                }
            }
            "switch" => {
                let (_, value) = self.typed(Some(numbers))?;
                self.expect(',')?;
                let default = self.label(numbers)?;
                self.expect('[')?;
                let mut cases = Vec::new();
                loop {
                    match self.peek()? {
                        Token::End => self.at += 1,
                        Token::Mark(']') => break,
                        _ => {
                            let (_, Operand::Number(case)) = self.typed(None)? else { return None };
                            self.expect(',')?;
                            cases.push((case, self.label(numbers)?));
                        }
                    }
                }
                Op::Switch(value, default, cases)
            }
            "ret" => {
                let ty = self.ty()?;
                Op::Return(if ty == Type::None { None } else { Some(self.value(&ty, Some(numbers))?) })
            }
            "unreachable" => Op::Unreachable,
            "indirectbr" => {
                self.typed(Some(numbers))?;
                self.expect(',')?;
                self.expect('[')?;
                Op::Either(self.labels(numbers)?)
            }
            _ => match binary(word) {
                Some(binary) => {
                    let (ty, left) = self.typed(Some(numbers))?;
                    self.expect(',')?;
                    Op::Binary(binary, bits(&ty), left, self.value(&ty, Some(numbers))?)
                }
                None => Op::Other,
            },
        })
    }

    /// What stands in the brackets that are open.
    fn labels(&mut self, numbers: &mut Numbers<'a>) -> Option<Vec<usize>> {
        let mut labels = Vec::new();
        while !self.mark(']') {
            labels.push(self.label(numbers)?);
            self.mark(',');
        }
        Some(labels)
    }

    fn call(&mut self, word: &str, numbers: &mut Numbers<'a>) -> Option<Op> {
        self.ty()?;
        self.attributes();
        let callee = self.value(&Type::Pointer, Some(numbers))?;
        self.expect('(')?;
        let mut arguments = Vec::new();
        while !self.mark(')') {
            if self.word("metadata") {
                // The value of a call that only a debugger wants.
                self.skip_group('(', ')')?;
                return Some(Op::Other);
            }
            arguments.push(self.typed(Some(numbers))?);
            self.mark(',');
        }
        if word == "call" {
            return Some(Op::Call(callee, arguments));
        }
        while !self.word("to") {
            self.next()?;
        }
        let mut labels = vec![self.label(numbers)?];
        if self.mark('[') {
            labels.append(&mut self.labels(numbers)?);
        }
        Some(Op::Either(labels))
    }
}

fn bits(ty: &Type) -> u32 {
    match ty {
        Type::Int(bits) => *bits,
        _ => 64,
    }
}

fn cast(word: &str, from: &Type, to: &Type, value: Operand) -> Op {
    match (from, to) {
        (Type::Int(_) | Type::Pointer, Type::Int(_) | Type::Pointer) => {
            Op::Cast { from: bits(from), to: bits(to), sign: word == "sext", value }
        }
        _ => Op::Other,
    }
}

fn order(word: &str) -> Option<Order> {
    Some(match word {
        "eq" => Order::Eq,
        "ne" => Order::Ne,
        "ugt" => Order::Ugt,
        "uge" => Order::Uge,
        "ult" => Order::Ult,
        "ule" => Order::Ule,
        "sgt" => Order::Sgt,
        "sge" => Order::Sge,
        "slt" => Order::Slt,
        "sle" => Order::Sle,
        _ => return None,
    })
}

fn binary(word: &str) -> Option<Binary> {
    Some(match word {
        "add" => Binary::Add,
        "sub" => Binary::Sub,
        "mul" => Binary::Mul,
        "shl" => Binary::Shl,
        "lshr" => Binary::Lshr,
        "ashr" => Binary::Ashr,
        "and" => Binary::And,
        "or" => Binary::Or,
        "xor" => Binary::Xor,
        "udiv" => Binary::Udiv,
        "sdiv" => Binary::Sdiv,
        "urem" => Binary::Urem,
        "srem" => Binary::Srem,
        _ => return None,
    })
}
