//! The files of a driver, together: who calls whom, through structures of functions, too, and who reaches a program's memory.

use crate::ir::{Function, Module, Op, Operand, Type, Variable};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// A function, and the file that it is in.
pub type Place = (usize, Rc<str>);

/// Functions that stand for a program's memory in place of the kernel's own, which are assembler statements ([`crate::Walk`]).
pub const ACCESSES: [&str; 8] = [
    "sluice_from_user",
    "sluice_to_user",
    "memdup_user",
    "vmemdup_user",
    "memdup_user_nul",
    "strndup_user",
    "strncpy_from_user",
    "clear_user",
];

/// A row of a dispatch table of the kernel's (`struct drm_ioctl_desc`): the command, who handles it and its name.
pub type Row = (u32, Place, String);

/// Functions that hold a program's memory, or reach it later.
pub const KEEPERS: [&str; 12] = [
    "get_user_pages",
    "get_user_pages_fast",
    "get_user_pages_unlocked",
    "pin_user_pages",
    "pin_user_pages_fast",
    "pin_user_pages_unlocked",
    "hmm_range_fault",
    "mmu_interval_notifier_insert",
    "import_iovec",
    "vm_mmap",
    "find_vma",
    "get_vaddr_frames",
];

/// The files of a driver.
pub struct Program {
    /// Each file.
    pub modules: Vec<Module>,
    functions: HashMap<Rc<str>, usize>,
    variables: HashMap<Rc<str>, usize>,
    /// Functions in structures, by the structure and the number of the part.
    tables: HashMap<(Rc<str>, usize), BTreeSet<Place>>,
    reaching: HashSet<Place>,
}

impl Program {
    /// Puts files together.
    pub fn new(modules: Vec<Module>) -> Self {
        let mut program = Self {
            functions: HashMap::new(),
            variables: HashMap::new(),
            tables: HashMap::new(),
            reaching: HashSet::new(),
            modules,
        };
        for (number, module) in program.modules.iter().enumerate() {
            for (name, function) in &module.functions {
                if !function.is_static {
                    program.functions.insert(name.clone(), number);
                }
            }
            for (name, variable) in &module.variables {
                if !variable.is_static && variable.value.is_some() {
                    program.variables.insert(name.clone(), number);
                }
            }
        }
        program.tables = program.tables();
        program.reaching = program.reaching();
        program
    }

    /// The function that a file means by a name.
    pub fn function(&self, module: usize, name: &str) -> Option<(usize, &Rc<Function>)> {
        if let Some(function) = self.modules.get(module)?.functions.get(name) {
            return Some((module, function));
        }
        let module = *self.functions.get(name)?;
        Some((module, self.modules.get(module)?.functions.get(name)?))
    }

    /// The function of this name that all files know, or the only one that one file knows.
    pub fn find(&self, name: &str) -> Option<Place> {
        if let Some(&module) = self.functions.get(name) {
            return Some((module, name.into()));
        }
        let mut holds =
            self.modules.iter().enumerate().filter(|(_, module)| module.functions.contains_key(name));
        let (module, _) = holds.next()?;
        holds.next().is_none().then(|| (module, name.into()))
    }

    /// The variable that a file means by a name, and where it is.
    pub fn variable(&self, module: usize, name: &str) -> Option<(usize, &Variable)> {
        let own = self.modules.get(module)?.variables.get(name).filter(|variable| variable.value.is_some());
        if let Some(variable) = own {
            return Some((module, variable));
        }
        let module = *self.variables.get(name)?;
        Some((module, self.modules.get(module)?.variables.get(name)?))
    }

    /// The rows of a constant table of `drm_ioctl_desc`: number, flags, function, name.
    pub fn rows(&self, table: &str) -> Vec<Row> {
        let mut rows = Vec::new();
        for (number, module) in self.modules.iter().enumerate() {
            let Some(Variable { value: Some(Operand::Parts(parts)), .. }) = module.variables.get(table)
            else {
                continue;
            };
            for (_, row) in parts {
                let Operand::Parts(row) = row else { continue };
                let row: Vec<&Operand> = row.iter().map(|(_, part)| part).collect();
                let [Operand::Number(command), _, Operand::Global(function), name, ..] = row.as_slice()
                else {
                    continue;
                };
                let home = self.function(number, function).map_or(number, |(home, _)| home);
                rows.push((
                    *command as u32,
                    (home, function.clone()),
                    self.text(number, name).unwrap_or_default(),
                ));
            }
        }
        rows
    }

    /// The text that an operand points to.
    fn text(&self, module: usize, operand: &Operand) -> Option<String> {
        let name = pointed(operand)?;
        let Some(Operand::Bytes(bytes)) = &self.variable(module, name)?.1.value else { return None };
        Some(String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next()?).into_owned())
    }

    /// Functions that a part of a structure may hold.
    pub fn held(&self, part: &(Rc<str>, usize)) -> Vec<Place> {
        self.tables.get(part).map(|held| held.iter().cloned().collect()).unwrap_or_default()
    }

    /// Does a function reach a program's memory, itself or by those it calls?
    pub fn reaches(&self, place: &Place) -> bool {
        self.reaching.contains(place)
    }

    /// Does a call of this name, in this file, reach a program's memory?
    pub fn is_access(&self, module: usize, name: &Rc<str>) -> bool {
        is_access(name)
            || self.function(module, name).is_some_and(|(home, _)| self.reaches(&(home, name.clone())))
    }

    fn tables(&self) -> HashMap<(Rc<str>, usize), BTreeSet<Place>> {
        let mut tables: HashMap<(Rc<str>, usize), BTreeSet<Place>> = HashMap::new();
        for (number, module) in self.modules.iter().enumerate() {
            for variable in module.variables.values() {
                if let Some(value) = &variable.value {
                    self.held_by(number, &variable.ty, value, &mut tables);
                }
            }
            for function in module.functions.values() {
                let parts = parts_of(function);
                for instruction in function.blocks.iter().flatten() {
                    if let Op::Store(_, Operand::Global(name), Operand::Local(to)) = &instruction.op
                        && let (Some((module, _)), Some(part)) = (self.function(number, name), parts.get(to))
                    {
                        tables.entry(part.clone()).or_default().insert((module, name.clone()));
                    }
                }
            }
        }
        tables
    }

    fn held_by(
        &self,
        module: usize,
        ty: &Type,
        value: &Operand,
        tables: &mut HashMap<(Rc<str>, usize), BTreeSet<Place>>,
    ) {
        let Operand::Parts(parts) = value else { return };
        for (index, (inner, part)) in parts.iter().enumerate() {
            if let (Type::Named(name), Operand::Global(function)) = (ty, part)
                && let Some((at, _)) = self.function(module, function)
            {
                tables.entry((name.clone(), index)).or_default().insert((at, function.clone()));
            }
            self.held_by(module, inner, part, tables);
        }
    }

    fn reaching(&self) -> HashSet<Place> {
        let mut callers: HashMap<Place, Vec<Place>> = HashMap::new();
        let mut found = Vec::new();
        for (number, module) in self.modules.iter().enumerate() {
            for (name, function) in &module.functions {
                let caller = (number, name.clone());
                let parts = parts_of(function);
                let loads = loads_of(function);
                let mut accesses = false;
                for instruction in function.blocks.iter().flatten() {
                    let Op::Call(callee, arguments) = &instruction.op else { continue };
                    // A function that is given to another may be called there.
                    let given = arguments.iter().map(|(_, argument)| argument);
                    for operand in given.chain([callee]) {
                        match strip(operand) {
                            Operand::Global(name) if is_access(name) => accesses = true,
                            Operand::Global(name) => {
                                if let Some((at, _)) = self.function(number, name) {
                                    callers.entry((at, name.clone())).or_default().push(caller.clone());
                                }
                            }
                            Operand::Local(local) => {
                                let part = loads.get(local).and_then(|from| parts.get(from));
                                for held in part.into_iter().flat_map(|part| self.held(part)) {
                                    callers.entry(held).or_default().push(caller.clone());
                                }
                            }
                            _ => {}
                        }
                    }
                }
                if accesses {
                    found.push(caller);
                }
            }
        }
        let mut reaching = HashSet::new();
        while let Some(place) = found.pop() {
            if let Some(callers) = callers.get(&place) {
                found.extend(callers.iter().filter(|caller| !reaching.contains(*caller)).cloned());
            }
            reaching.insert(place);
        }
        reaching
    }
}

/// Does a function of this name stand for a program's memory?
pub fn is_access(name: &str) -> bool {
    ACCESSES.contains(&name) || KEEPERS.contains(&name)
}

/// The operand without casts of constants.
pub fn strip(operand: &Operand) -> &Operand {
    match operand {
        Operand::Constant(op) => match op.as_ref() {
            Op::Cast { value, .. } => strip(value),
            _ => operand,
        },
        _ => operand,
    }
}

/// The variable that a constant points to, or to the beginning of.
pub fn pointed(operand: &Operand) -> Option<&Rc<str>> {
    match strip(operand) {
        Operand::Global(name) => Some(name),
        Operand::Constant(op) => match op.as_ref() {
            Op::Element(_, of, indices) => {
                let is_first = |index: &Operand| matches!(index, Operand::Number(0) | Operand::Zero);
                indices.iter().all(is_first).then(|| pointed(of))?
            }
            _ => None,
        },
        _ => None,
    }
}

/// Which part of which structure a local points to.
pub fn parts_of(function: &Function) -> HashMap<usize, (Rc<str>, usize)> {
    let mut parts = HashMap::new();
    for instruction in function.blocks.iter().flatten() {
        if let (Some(result), Op::Element(Type::Named(name), _, indices)) =
            (instruction.result, &instruction.op)
            && let [_, Operand::Number(index)] = indices.as_slice()
            && let Ok(index) = usize::try_from(*index)
        {
            parts.insert(result, (name.clone(), index));
        }
    }
    parts
}

/// Which local the value of a local was loaded from.
pub fn loads_of(function: &Function) -> HashMap<usize, usize> {
    let mut loads = HashMap::new();
    for instruction in function.blocks.iter().flatten() {
        if let (Some(result), Op::Load(_, Operand::Local(from))) = (instruction.result, &instruction.op) {
            loads.insert(result, *from);
        }
    }
    loads
}
