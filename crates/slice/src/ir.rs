//! LLVM's intermediate code as clang prints it: types with their layout, constants, and functions as blocks of instructions.
//! Source: LLVM Language Reference Manual. Only what clang 14 makes of C without optimization is known; what is not known is an
//! instruction [`Op::Other`], whose result nobody knows.

use std::collections::HashMap;
use std::rc::Rc;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `void`, `label`, `metadata`, functions.
    None,
    /// An integer of so many bits.
    Int(u32),
    /// A floating-point number of so many bytes.
    Float(u64),
    /// A pointer, to whatever.
    Pointer,
    /// A structure with a name.
    Named(Rc<str>),
    /// A structure without one; packed?
    Struct(Vec<Self>, bool),
    /// An array or vector.
    Array(u64, Box<Self>),
}

/// What an instruction works on.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The result of an instruction, or a parameter: its number in the function.
    Local(usize),
    /// A number; also null.
    Number(i64),
    /// A function or variable.
    Global(Rc<str>),
    /// A constant expression: an instruction without a place.
    Constant(Box<Op>),
    /// Parts of a constant structure or array.
    Parts(Vec<(Type, Self)>),
    /// Bytes of a constant array.
    Bytes(Vec<u8>),
    /// Zero, of any type.
    Zero,
    /// Anything.
    Undefined,
}

/// Arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Shl,
    Lshr,
    Ashr,
    And,
    Or,
    Xor,
    Udiv,
    Sdiv,
    Urem,
    Srem,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Order {
    Eq,
    Ne,
    Ugt,
    Uge,
    Ult,
    Ule,
    Sgt,
    Sge,
    Slt,
    Sle,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Op {
    Alloca,
    Load(Type, Operand),
    Store(Type, Operand, Operand),
    /// Type, pointer, indices.
    Element(Type, Operand, Vec<Operand>),
    /// Of so many bits, to so many bits, with a sign?
    Cast {
        from: u32,
        to: u32,
        sign: bool,
        value: Operand,
    },
    Binary(Binary, u32, Operand, Operand),
    Compare(Order, u32, Operand, Operand),
    Select(Operand, Operand, Operand),
    Phi(Vec<(Operand, usize)>),
    Call(Operand, Vec<(Type, Operand)>),
    Extract(Operand, Vec<u64>),
    Branch(Operand, usize, usize),
    Jump(usize),
    Switch(Operand, usize, Vec<(i64, usize)>),
    /// An assembler statement that may go on elsewhere.
    Either(Vec<usize>),
    Return(Option<Operand>),
    Unreachable,
    Other,
}

/// An instruction with the number of its result.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Where its result goes.
    pub result: Option<usize>,
    /// What it does.
    pub op: Op,
}

/// A function with a body. Blocks are numbered; the first is where it begins.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: Rc<str>,
    /// Only its own file can call it.
    pub is_static: bool,
    /// How many parameters it has: they are its first locals.
    pub parameters: usize,
    /// How many locals it has.
    pub locals: usize,
    /// Its blocks.
    pub blocks: Vec<Vec<Instruction>>,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its type.
    pub ty: Type,
    /// What it begins as; none: it is another file's.
    pub value: Option<Operand>,
    /// It stays as it begins.
    pub is_constant: bool,
    /// Only its own file can name it.
    pub is_static: bool,
}

/// A file.
#[derive(Debug, Default)]
pub struct Module {
    /// Structures by name; those without a definition are empty.
    pub types: HashMap<Rc<str>, Type>,
    /// Variables by name.
    pub variables: HashMap<Rc<str>, Variable>,
    /// Functions with bodies, by name.
    pub functions: HashMap<Rc<str>, Rc<Function>>,
}

impl Module {
    /// Size and alignment in bytes (the System V ABI for x86-64, 3.1.2).
    pub fn layout(&self, ty: &Type) -> (u64, u64) {
        match ty {
            Type::None => (0, 1),
            Type::Int(bits) => {
                let bytes = u64::from(bits.div_ceil(8)).next_power_of_two();
                (bytes, bytes.min(8))
            }
            Type::Float(bytes) => (*bytes, *bytes),
            Type::Pointer => (8, 8),
            Type::Named(name) => self.types.get(name).map_or((0, 1), |ty| self.layout(ty)),
            Type::Struct(parts, packed) => {
                let (mut size, mut most) = (0_u64, 1);
                for part in parts {
                    let (bytes, align) = self.layout(part);
                    let align = if *packed { 1 } else { align };
                    size = size.next_multiple_of(align).saturating_add(bytes);
                    most = most.max(align);
                }
                (size.next_multiple_of(most), most)
            }
            Type::Array(count, part) => {
                let (bytes, align) = self.layout(part);
                (bytes.saturating_mul(*count), align)
            }
        }
    }

    /// The bytes of a type.
    pub fn size(&self, ty: &Type) -> u64 {
        self.layout(ty).0
    }

    /// The parts of a structure.
    pub fn parts<'a>(&'a self, ty: &'a Type) -> Option<(&'a [Type], bool)> {
        match ty {
            Type::Struct(parts, packed) => Some((parts, *packed)),
            Type::Named(name) => self.types.get(name).and_then(|ty| self.parts(ty)),
            _ => None,
        }
    }

    /// Where part `index` of a structure is, and its type.
    pub fn part<'a>(&'a self, ty: &'a Type, index: usize) -> Option<(u64, &'a Type)> {
        let (parts, packed) = self.parts(ty)?;
        let mut offset = 0_u64;
        for (number, part) in parts.iter().enumerate() {
            let (bytes, align) = self.layout(part);
            offset = offset.next_multiple_of(if packed { 1 } else { align });
            if number == index {
                return Some((offset, part));
            }
            offset = offset.saturating_add(bytes);
        }
        None
    }
}
