//! Plain moves between a register and memory, taken apart once and known again.
//!
//! Drivers reach registers in memory by few instructions: MOV of one, two or four bytes between a general register and
//! memory, at the same places again and again. [`PlainMove::decode`] knows these, and nothing else, without a decoder's tables.
//! [`Trace`] says whether the guest's page tables still lead from a linear address to where they led before, by comparing the
//! entries that said so. [`Moves`] keeps both for the moves that a processor made last.
//!
//! Source: APM vol 3, 1.2 (encoding), 1.4 (ModRM and SIB), 1.7 (RIP-relative).

use crate::walk::{Access, Kind, LEVELS, PageFault, PagingState, translate};
use alloc::boxed::Box;
use alloc::vec;
use arrayvec::ArrayVec;
use core::cell::RefCell;
use sluice_memory::{Gpa, PAGE_SIZE};

/// Moves that are kept. Each program's page tables have those of their own.
const KEPT: usize = 256;

/// Most bytes of a plain move.
pub const LONGEST: usize = 8;

/// MOV between a general register and memory, in 64-bit mode, with no prefix but those of size and register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainMove {
    /// Bytes of the instruction.
    pub length: u8,
    /// Bytes moved: 1, 2 or 4.
    pub width: u8,
    /// Hardware number of the general register, whose lowest bytes are meant.
    pub register: u8,
    /// From the register to memory.
    pub is_store: bool,
    operand: Operand,
}

/// MOV of a general register to eight bytes of memory, or XCHG with them, in 64-bit mode: what Linux writes page tables by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainWord {
    /// Bytes of the instruction.
    pub length: u8,
    /// Hardware number of the general register.
    pub register: u8,
    /// The register gets what was in memory.
    pub is_exchange: bool,
    operand: Operand,
}

/// An operand in memory, in DS or SS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    base: Option<u8>,
    index: Option<u8>,
    scale: u8,
    relative: bool,
    displacement: i32,
}

impl Operand {
    /// What follows ModRM. `None`: it is a register, or the bytes end.
    fn decode(modrm: u8, rex: u8, bytes: &mut impl Iterator<Item = u8>) -> Option<Self> {
        let (mode, low) = (modrm >> 6, modrm & 7);
        if mode == 3 {
            return None;
        }
        let (mut base, mut index, mut scale) = (Some(low | (rex & 1) << 3), None, 0);
        let mut relative = false;
        let mut long = mode == 2;
        if low == 4 {
            let sib = bytes.next()?;
            base = Some(sib & 7 | (rex & 1) << 3);
            index = Some(sib >> 3 & 7 | (rex & 2) << 2).filter(|index| *index != 4);
            scale = sib >> 6;
            if mode == 0 && sib & 7 == 5 {
                (base, long) = (None, true);
            }
        } else if mode == 0 && low == 5 {
            (base, relative, long) = (None, true, true);
        }
        let displacement = match (mode, long) {
            (_, true) => i32::from_le_bytes([bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?]),
            (1, false) => i32::from(bytes.next()? as i8),
            _ => 0,
        };
        Some(Self { base, index, scale, relative, displacement })
    }

    /// Linear address, given that of the next instruction: DS and SS begin at zero in 64-bit mode.
    fn linear(&self, next: u64, gpr: impl Fn(usize) -> u64) -> u64 {
        let value = |register: Option<u8>| register.map_or(0, |register| gpr(register.into()));
        let from = if self.relative { next } else { value(self.base) };
        from.wrapping_add(value(self.index) << self.scale).wrapping_add_signed(self.displacement.into())
    }
}

impl PlainWord {
    /// The instruction at the start of `code`, if it is one of these.
    pub fn decode(code: &[u8]) -> Option<Self> {
        let mut bytes = code.iter().copied();
        let (rex, opcode, modrm) = (bytes.next()?, bytes.next()?, bytes.next()?);
        if rex & 0xf8 != 0x48 || !matches!(opcode, 0x87 | 0x89) {
            return None;
        }
        let operand = Operand::decode(modrm, rex, &mut bytes)?;
        let length = (code.len() - bytes.len()) as u8;
        let register = modrm >> 3 & 7 | (rex & 4) << 1;
        Some(Self { length, register, is_exchange: opcode == 0x87, operand })
    }

    /// Linear address of the memory operand.
    pub fn linear(&self, rip: u64, gpr: impl Fn(usize) -> u64) -> u64 {
        self.operand.linear(rip.wrapping_add(self.length.into()), gpr)
    }
}

impl PlainMove {
    /// The instruction at the start of `code`, if it is one of these.
    pub fn decode(code: &[u8]) -> Option<Self> {
        let mut bytes = code.iter().copied();
        let mut next = bytes.next()?;
        let mut width = 4;
        if next == 0x66 {
            (width, next) = (2, bytes.next()?);
        }
        let mut rex = 0;
        if next & 0xf0 == 0x40 {
            (rex, next) = (next, bytes.next()?);
        }
        let (is_store, is_byte) = match next {
            0x88 => (true, true),
            0x89 => (true, false),
            0x8a => (false, true),
            0x8b => (false, false),
            _ => return None,
        };
        if is_byte {
            width = 1;
        }
        let modrm = bytes.next()?;
        let register = modrm >> 3 & 7 | (rex & 4) << 1;
        // Registers of eight bytes are left to others, and so are AH, CH, DH and BH.
        if rex & 8 != 0 || is_byte && rex == 0 && register >= 4 {
            return None;
        }
        let operand = Operand::decode(modrm, rex, &mut bytes)?;
        let length = code.len() - bytes.len();
        (length <= LONGEST).then_some(Self { length: length as u8, width, register, is_store, operand })
    }

    /// Linear address of the memory operand.
    pub fn linear(&self, rip: u64, gpr: impl Fn(usize) -> u64) -> u64 {
        self.operand.linear(rip.wrapping_add(self.length.into()), gpr)
    }

    /// What the register holds after a load of `value` in place of `old`.
    pub fn loaded(&self, old: u64, value: u32) -> u64 {
        match self.width {
            1 => old & !0xff | u64::from(value & 0xff),
            2 => old & !0xffff | u64::from(value & 0xffff),
            // A 32-bit result clears the upper half of the register (APM vol 1, 3.1.2).
            _ => value.into(),
        }
    }
}

/// How page tables led from a linear address to a physical one.
#[derive(Clone, Debug)]
pub struct Trace {
    entries: ArrayVec<(Gpa, u64), LEVELS>,
    to: Gpa,
}

impl Trace {
    /// Walks, and keeps what was seen.
    ///
    /// # Errors
    /// The page fault that the access meets.
    pub fn walk(
        state: &PagingState,
        linear: u64,
        access: Access,
        read: impl Fn(Gpa) -> Option<u64>,
    ) -> Result<Self, PageFault> {
        let entries = RefCell::new(ArrayVec::new());
        let keep = |at| {
            let word = read(at)?;
            // There are as many as there can be levels.
            let _ = entries.borrow_mut().try_push((at, word));
            Some(word)
        };
        let to = translate(state, linear, access, &keep)?;
        Ok(Self { entries: entries.into_inner(), to })
    }

    /// Where it led, if each entry is still what it was.
    #[inline]
    pub fn follow(&self, read: impl Fn(Gpa) -> Option<u64>) -> Option<Gpa> {
        self.entries.iter().all(|(at, word)| read(*at) == Some(*word)).then_some(self.to)
    }
}

/// A move that was decoded.
#[derive(Clone, Debug)]
struct Kept {
    rip: u64,
    cr3: u64,
    plain: PlainMove,
    /// Its first bytes, the first in the lowest.
    code: u64,
    /// How the guest's page tables lead to it.
    trace: Trace,
}

/// An access of a processor in 64-bit kernel mode, where segments and alignment say nothing.
#[derive(Clone, Copy, Debug)]
pub struct Met {
    /// Where the instruction is.
    pub rip: u64,
    /// The page tables.
    pub cr3: u64,
    /// What it met there. The processor has walked the page tables for this access, with its rights.
    pub gpa: Gpa,
    /// It was a write.
    pub is_write: bool,
}

/// The moves that a processor made last.
#[derive(Debug)]
pub struct Moves(Box<[Option<Kept>]>);

impl Default for Moves {
    fn default() -> Self {
        Self(vec![None; KEPT].into_boxed_slice())
    }
}

fn slot(rip: u64, cr3: u64) -> usize {
    // The highest bits of a product depend on all bits: 2^64 divided by the golden ratio.
    let mixed = (rip ^ cr3.rotate_right(12)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - KEPT.ilog2())) as usize
}

impl Moves {
    /// The move that the processor has just executed, if it is one that is kept: its code is what it was, and its operand lies
    /// where the processor met it, in one page. `saved`: what the processor saved of the code; where that is too little, the
    /// code is read by the trace.
    #[inline]
    pub fn find(
        &self,
        met: &Met,
        gpr: impl Fn(usize) -> u64,
        saved: &[u8],
        read: impl Fn(Gpa) -> Option<u64>,
    ) -> Option<PlainMove> {
        let kept = self.0.get(slot(met.rip, met.cr3))?.as_ref()?;
        let plain = kept.plain;
        if (kept.rip, kept.cr3, plain.is_store) != (met.rip, met.cr3, met.is_write) {
            return None;
        }
        let offset = plain.linear(met.rip, gpr) % PAGE_SIZE;
        if offset != met.gpa.page_offset() || offset + u64::from(plain.width) > PAGE_SIZE {
            return None;
        }
        let now = match saved.get(..plain.length.into()) {
            Some(saved) => code_word(saved),
            None => fetch(kept.trace.follow(&read)?, plain.length, read)?,
        };
        let unused = 64 - 8 * u32::from(plain.length.clamp(1, LONGEST as u8));
        ((now ^ kept.code) << unused == 0).then_some(plain)
    }

    /// Keeps the instruction at `rip` that `code` begins with, if it is a plain move. A processor in 64-bit kernel mode has
    /// executed it.
    pub fn keep(&mut self, state: &PagingState, rip: u64, code: &[u8], read: impl Fn(Gpa) -> Option<u64>) {
        let Some(plain) = PlainMove::decode(code) else { return };
        if rip % PAGE_SIZE + u64::from(plain.length) > PAGE_SIZE {
            return;
        }
        let access = Access { kind: Kind::Execute, user: false, ac: false };
        let Ok(trace) = Trace::walk(state, rip, access, read) else { return };
        let cr3 = state.cr3;
        if let Some(kept) = self.0.get_mut(slot(rip, cr3)) {
            *kept = Some(Kept { rip, cr3, plain, code: code_word(code), trace });
        }
    }
}

/// The first bytes of an instruction, the first in the lowest byte.
fn code_word(code: &[u8]) -> u64 {
    code.iter().take(LONGEST).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The same of one at `place` that ends in its page.
fn fetch(place: Gpa, length: u8, read: impl Fn(Gpa) -> Option<u64>) -> Option<u64> {
    let (first, skipped) = (place.align_down(8), place.as_u64() % 8);
    let low = read(first)? >> (8 * skipped);
    if skipped + u64::from(length) <= 8 {
        return Some(low);
    }
    let high = read(Gpa::new(first.as_u64().wrapping_add(8)))?;
    Some(low | high << (64 - 8 * skipped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
    use proptest::prelude::*;

    const RIP: u64 = 0xffff_ffff_8100_0ffd;

    fn value(register: usize) -> u64 {
        (register as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// What is taken for a plain move is one to a decoder of all instructions, with the same operands.
    fn agrees(code: &[u8]) -> bool {
        let Some(plain) = PlainMove::decode(code) else { return false };
        let instruction = Decoder::with_ip(64, code, RIP, DecoderOptions::NONE).decode();
        assert_eq!((instruction.mnemonic(), instruction.len()), (Mnemonic::Mov, usize::from(plain.length)));
        let (memory, register) = if plain.is_store { (0, 1) } else { (1, 0) };
        assert_eq!(
            [memory, register].map(|operand| instruction.op_kind(operand)),
            [OpKind::Memory, OpKind::Register]
        );
        assert_eq!(instruction.memory_size().size(), usize::from(plain.width));
        let named = instruction.op_register(register);
        assert_eq!(named.size(), usize::from(plain.width));
        assert_eq!(named.full_register().number(), usize::from(plain.register));
        assert_eq!(plain.linear(RIP, value), address(&instruction, memory), "{instruction:?}");
        true
    }

    /// Where a decoder has an operand in memory.
    fn address(instruction: &Instruction, memory: u32) -> u64 {
        let whole = |register: iced_x86::Register, _, _| match register.is_segment_register() {
            true => Some(0),
            false => Some(value(register.full_register().number())),
        };
        instruction.try_virtual_address(memory, 0, whole).unwrap()
    }

    /// The same for a word.
    fn agrees_on_word(code: &[u8]) -> bool {
        let Some(plain) = PlainWord::decode(code) else { return false };
        let instruction = Decoder::with_ip(64, code, RIP, DecoderOptions::NONE).decode();
        let mnemonic = if plain.is_exchange { Mnemonic::Xchg } else { Mnemonic::Mov };
        assert_eq!((instruction.mnemonic(), instruction.len()), (mnemonic, usize::from(plain.length)));
        assert_eq!((instruction.op0_kind(), instruction.memory_size().size()), (OpKind::Memory, 8));
        assert_eq!(instruction.op1_register().size(), 8);
        assert_eq!(instruction.op1_register().number(), usize::from(plain.register));
        assert_eq!(plain.linear(RIP, value), address(&instruction, 0), "{instruction:?}");
        true
    }

    #[test]
    fn words_of_page_tables_are_written_by_known_instructions() {
        for code in [&[0x48, 0x87, 0x03][..], &[0x49, 0x87, 0x44, 0x24, 8], &[0x4c, 0x89, 0x2d, 1, 2, 3, 4]] {
            assert!(agrees_on_word(code), "{code:02x?}");
        }
        let others: [&[u8]; 5] = [
            &[0x48, 0x8b, 0x02],
            &[0x89, 0x02, 0],
            &[0x48, 0x87, 0xc3],
            &[0xf0, 0x48, 0x87, 3],
            &[0x48, 0x87],
        ];
        assert!(others.iter().all(|code| PlainWord::decode(code).is_none()));
    }

    #[test]
    fn moves_of_drivers_are_known() {
        for code in [
            &[0x8b, 0x02][..],
            &[0x89, 0x10],
            &[0x44, 0x89, 0xb7, 0x18, 0x38, 0, 0],
            &[0x8b, 0x04, 0x25, 0, 0xb3, 0x5f, 0xff],
            &[0x66, 0x41, 0x89, 0x45, 0x3c],
            &[0x88, 0x47, 0xd9],
            &[0x40, 0x8a, 0x37],
            &[0x8b, 0x84, 0xd1, 0xf8, 0xff, 0xff, 0xff],
            &[0x8b, 0x05, 1, 2, 3, 4],
        ] {
            assert!(agrees(code), "{code:02x?}");
        }
        let others: [&[u8]; 9] = [
            &[0x48, 0x8b, 0x02],
            &[0x88, 0x27],
            &[0x8b, 0xc2],
            &[0x64, 0x8b, 0x02],
            &[0x67, 0x8b, 0x02],
            &[0xf0, 0x89, 0x02],
            &[0xc7, 0x02, 0, 0, 0, 0],
            &[0x8b],
            &[0x66, 0x44, 0x89, 0x84, 0xd1, 0xf8, 0xff, 0xff, 0xff],
        ];
        assert!(others.iter().all(|code| PlainMove::decode(code).is_none()));
    }

    proptest! {
        #[test]
        fn any_code_is_read_as_a_decoder_does(
            prefixes in prop::collection::vec(prop::sample::select(&[0x66, 0x40, 0x41, 0x42, 0x44, 0x47, 0x48, 0x67, 0xf3][..]), 0..3),
            opcode in prop::sample::select(&[0x87, 0x88, 0x89, 0x8a, 0x8b][..]),
            rest in prop::array::uniform6(any::<u8>()),
        ) {
            let code: alloc::vec::Vec<u8> = prefixes.into_iter().chain([opcode]).chain(rest).collect();
            agrees(&code);
            agrees_on_word(&code);
        }
    }

    #[test]
    fn a_loaded_value_leaves_the_rest_of_a_small_register() {
        let load = |code: &[u8]| PlainMove::decode(code).unwrap().loaded(u64::MAX, 0x1234_5678);
        assert_eq!(load(&[0x8a, 0x02]), 0xffff_ffff_ffff_ff78);
        assert_eq!(load(&[0x66, 0x8b, 0x02]), 0xffff_ffff_ffff_5678);
        assert_eq!(load(&[0x8b, 0x02]), 0x1234_5678);
    }

    #[test]
    fn a_trace_holds_as_long_as_every_entry_does() {
        const LONG: PagingState =
            PagingState { cr0: 1 << 31, cr3: 0x1000, cr4: 1 << 5, efer: 1 << 10, physical_bits: 40 };
        let mut words =
            BTreeMap::from([(0x1000, 0x2027), (0x2000, 0x3027), (0x3000, 0x4027), (0x4018, 0x5_5027)]);
        let access = Access { kind: Kind::Execute, user: false, ac: false };
        let read = |words: &BTreeMap<u64, u64>, at: Gpa| words.get(&at.as_u64()).copied();
        let trace = Trace::walk(&LONG, 0x3123, access, |at| read(&words, at)).unwrap();
        assert_eq!(trace.follow(|at| read(&words, at)), Some(Gpa::new(0x5_5123)));
        for at in [0x1000, 0x2000, 0x3000, 0x4018] {
            let old = words.insert(at, 0x9027).unwrap();
            assert_eq!(trace.follow(|at| read(&words, at)), None, "{at:#x} leads elsewhere now");
            words.insert(at, old);
        }
        words.remove(&0x2000);
        assert_eq!(trace.follow(|at| read(&words, at)), None);
        assert!(Trace::walk(&LONG, 0x3123, access, |at| read(&words, at)).is_err());
    }

    /// What is kept is found where nothing has changed, and nowhere else.
    #[test]
    fn a_kept_move_is_found_as_long_as_all_is_as_it_was() {
        // mov %eax,0x8(%rdx)
        const CODE: [u8; 4] = [0x89, 0x42, 0x08, 0x90];
        const MET: Met = Met { rip: 0x3fe6, cr3: 0x1000, gpa: Gpa::new(0xfec0_0010), is_write: true };
        let state = PagingState { cr3: MET.cr3, ..PagingState::default() };
        let gpr = |register| if register == 2 { 0xffff_c000_0000_0008 } else { 0 };
        // Without paging, code is where RIP says: three bytes at the end of a word.
        let memory = |code: [u8; 4]| {
            move |at: Gpa| {
                let bytes = (0..8).map(|byte| at.as_u64() + byte);
                let byte =
                    |at: u64| at.checked_sub(MET.rip).and_then(|index| code.get(index as usize)).copied();
                Some(bytes.rev().fold(0, |word, at| word << 8 | u64::from(byte(at).unwrap_or(0xee))))
            }
        };
        let mut moves = Moves::default();
        assert_eq!(moves.find(&MET, gpr, &[], memory(CODE)), None);
        moves.keep(&state, MET.rip, &CODE, |_| None);
        let plain = moves.find(&MET, gpr, &[], memory(CODE)).expect("it is kept");
        assert_eq!((plain.length, plain.is_store), (3, true));
        for other in [
            Met { is_write: false, ..MET },
            Met { gpa: Gpa::new(0xfec0_0014), ..MET },
            Met { gpa: Gpa::new(0xfec0_1000), ..MET },
            Met { rip: MET.rip + 1, ..MET },
            // It shares the slot.
            Met { cr3: MET.cr3 + (KEPT << 12) as u64, ..MET },
        ] {
            assert_eq!(moves.find(&other, gpr, &[], memory(CODE)), None, "{other:?}");
        }
        // The operand reaches into the next page: what the processor met may be its second half.
        let end = Met { gpa: Gpa::new(0xfec0_0ffe), ..MET };
        assert_eq!(moves.find(&end, |_| 0xff6, &[], memory(CODE)), None);
        let whole = Met { gpa: Gpa::new(0xfec0_0ffc), ..MET };
        assert!(moves.find(&whole, |_| 0xff4, &[], memory(CODE)).is_some());
        // Other code, in each of its bytes, or none; what comes behind is not its.
        for byte in 0..3 {
            let mut other = CODE;
            other[byte] ^= 1;
            assert_eq!(moves.find(&MET, gpr, &[], memory(other)), None);
            assert_eq!(
                moves.find(&MET, gpr, &other[..3], memory(CODE)),
                None,
                "the processor saved other code"
            );
        }
        assert!(moves.find(&MET, gpr, &[], memory([0x89, 0x42, 0x08, 0xcc])).is_some());
        assert!(moves.find(&MET, gpr, &CODE, |_| None).is_some(), "the processor saved it");
        assert_eq!(moves.find(&MET, gpr, &CODE[..2], |_| None), None);
        // Code on two pages is not kept.
        let mut moves = Moves::default();
        moves.keep(&state, 0x3ffe, &CODE, |_| None);
        assert_eq!(moves.find(&Met { rip: 0x3ffe, ..MET }, gpr, &CODE, |_| None), None);
    }
}
