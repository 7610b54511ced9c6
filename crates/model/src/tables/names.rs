//! Which register a byte is in: the registers by their first byte, sorted by the compiler.

use crate::language::{MAX_REGISTERS, Register, RegisterId};

/// Words of four bytes of which it is known which register begins last before them: those of all registers that are used often.
const WORDS: usize = 0x6000 / 4;

/// Registers in the order of their first bytes.
#[derive(Debug)]
pub(crate) struct Names {
    first: [u32; MAX_REGISTERS],
    id: [u8; MAX_REGISTERS],
    count: usize,
    /// How many begin no later than each word does.
    upto: [u8; WORDS],
}

impl Names {
    pub(crate) const fn new(registers: &[Register]) -> Self {
        let mut names = Self {
            first: [0; MAX_REGISTERS],
            id: [0; MAX_REGISTERS],
            count: registers.len(),
            upto: [0; WORDS],
        };
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
        let (mut word, mut upto) = (0, 0);
        while word < WORDS {
            while upto < names.count && names.first[upto] as usize <= 4 * word {
                upto += 1;
            }
            names.upto[word] = upto as u8;
            word += 1;
        }
        names
    }

    /// The register of this page that holds the byte: the last one that begins before it, or, where another page has
    /// registers at the same place, one just before that.
    pub(crate) fn find(&self, registers: &[Register], offset: u32, page: u8) -> Option<RegisterId> {
        let known = self.first.get(..self.count)?;
        let after = match self.upto.get((offset / 4) as usize) {
            // Where the byte is no word's first, registers may begin within the word.
            Some(upto) => {
                let upto = usize::from(*upto);
                let within = known.get(upto..)?.iter().take_while(|first| **first <= offset);
                upto + if offset.is_multiple_of(4) { 0 } else { within.count() }
            }
            None => known.partition_point(|first| *first <= offset),
        };
        let candidates = self.id.get(..after)?.iter().rev();
        let holds = |id: &u8| registers.get(usize::from(*id)).is_some_and(|it| it.holds(offset, page));
        candidates.copied().find(holds).map(RegisterId)
    }
}

#[cfg(test)]
mod tests {
    use crate::language::RegisterId;
    use crate::models;

    #[test]
    fn every_byte_is_found_in_the_register_that_holds_it() {
        for model in models::ALL {
            for (offset, page) in (0..0x6100).flat_map(|offset| (0..4).map(move |page| (offset, page))) {
                let holder = model.registers.iter().position(|register| register.holds(offset, page));
                let holder = holder.map(|index| RegisterId(index as u8));
                assert_eq!(model.find(offset, page), holder, "{} {offset:#x} on {page}", model.name);
            }
        }
    }
}
