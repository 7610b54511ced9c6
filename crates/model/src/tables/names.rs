//! Which register a byte is in: the registers by their first byte, sorted by the compiler.

use crate::language::{MAX_REGISTERS, Register, RegisterId};

/// Registers in the order of their first bytes.
#[derive(Debug)]
pub(crate) struct Names {
    first: [u32; MAX_REGISTERS],
    id: [u8; MAX_REGISTERS],
    count: usize,
}

impl Names {
    pub(crate) const fn new(registers: &[Register]) -> Self {
        let mut names = Self { first: [0; MAX_REGISTERS], id: [0; MAX_REGISTERS], count: registers.len() };
        let mut index = 0;
        while index < registers.len() {
            let mut at = index;
            while at > 0 && names.first[at - 1] > registers[index].first {
                names.first[at] = names.first[at - 1];
                names.id[at] = names.id[at - 1];
                at -= 1;
            }
            names.first[at] = registers[index].first;
            names.id[at] = index as u8;
            index += 1;
        }
        names
    }

    /// The register of this page that holds the byte: the last one that begins before it, or, where another page has
    /// registers at the same place, one just before that.
    pub(crate) fn find(&self, registers: &[Register], offset: u32, page: u8) -> Option<RegisterId> {
        let known = self.first.get(..self.count)?;
        let after = known.partition_point(|first| *first <= offset);
        let candidates = self.id.get(..after)?.iter().rev();
        let holds = |id: &u8| registers.get(usize::from(*id)).is_some_and(|it| it.holds(offset, page));
        candidates.copied().find(holds).map(RegisterId)
    }
}
