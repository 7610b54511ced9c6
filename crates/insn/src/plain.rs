//! Plain moves between a register and memory, taken apart once and known again.
//!
//! Drivers reach registers in memory by few instructions: MOV of one, two or four bytes between a general register and
//! memory, at the same places again and again. [`PlainMove::decode`] knows these, and nothing else, without a decoder's tables.
//! [`Trace`] says whether an instruction is still where it was, and what it was, by comparing the entries of the guest's page
//! tables that led to it, and its code. [`Moves`] keeps both for the moves that a processor made last.
//!
//! Source: APM vol 3, 1.2 (encoding), 1.4 (ModRM and SIB), 1.7 (RIP-relative).

use crate::walk::{Access, Kind, LEVELS, PagingState, translate};
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

/// Words that the code of a plain move can lie in.
const CODE_WORDS: usize = 2;

/// A word of memory, and what it held, in the bits that count.
#[derive(Clone, Copy, Debug)]
struct Seen<P> {
    at: P,
    mask: u64,
    value: u64,
}

/// How page tables led to an instruction, and its code, by the words in which both were seen. `P` says where a word is.
///
/// Nothing but the words' places is taken for granted: whether they hold what they held is looked up each time, so that a guest
/// which changes its page tables or its code finds its instructions executed as they are then.
#[derive(Clone, Debug)]
pub struct Trace<P>(ArrayVec<Seen<P>, { LEVELS + CODE_WORDS }>);

impl<P: Copy> Trace<P> {
    /// Walks the tables to the instruction at `rip`, which `code` begins with. `None`: it is not there, is too long, or not in one page.
    pub fn walk(
        state: &PagingState,
        rip: u64,
        code: &[u8],
        locate: impl Fn(Gpa) -> Option<P>,
        read: impl Fn(P) -> u64,
    ) -> Option<Self> {
        if rip % PAGE_SIZE + code.len() as u64 > PAGE_SIZE || code.len() > LONGEST {
            return None;
        }
        let entries = RefCell::new(ArrayVec::new());
        let keep = |at| {
            let at = locate(at)?;
            let value = read(at);
            // There are as many as there can be levels.
            let _ = entries.borrow_mut().try_push(Seen { at, mask: u64::MAX, value });
            Some(value)
        };
        let access = Access { kind: Kind::Execute, user: false, ac: false };
        let place = translate(state, rip, access, &keep).ok()?;
        let mut seen = entries.into_inner();
        let first = place.align_down(8);
        // The code's bytes within two words, the first in the lowest byte.
        let shift = 8 * (place.as_u64() - first.as_u64()) as u32;
        let within = |bytes: u64| u128::from(bytes) << shift;
        let (mask, value) = (within(mask_of(code.len())), within(code_word(code)));
        for word in 0..CODE_WORDS {
            let part = |both: u128| (both >> (64 * word)) as u64;
            if part(mask) != 0 {
                let at = locate(Gpa::new(first.as_u64().wrapping_add(8 * word as u64)))?;
                seen.try_push(Seen { at, mask: part(mask), value: part(value) }).ok()?;
            }
        }
        Some(Self(seen))
    }

    /// Whether all words hold what they held.
    #[inline]
    pub fn holds(&self, read: impl Fn(P) -> u64) -> bool {
        self.0.iter().all(|seen| (read(seen.at) ^ seen.value) & seen.mask == 0)
    }
}

/// A move that was decoded.
#[derive(Clone, Debug)]
struct Kept<P> {
    rip: u64,
    cr3: u64,
    plain: PlainMove,
    /// Its bytes, the first in the lowest.
    code: u64,
    /// How the guest's page tables lead to them.
    trace: Trace<P>,
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
pub struct Moves<P>(Box<[Option<Kept<P>>]>);

impl<P: Copy> Default for Moves<P> {
    fn default() -> Self {
        Self(vec![None; KEPT].into_boxed_slice())
    }
}

fn slot(rip: u64, cr3: u64) -> usize {
    // The highest bits of a product depend on all bits: 2^64 divided by the golden ratio.
    let mixed = (rip ^ cr3.rotate_right(12)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - KEPT.ilog2())) as usize
}

impl<P: Copy> Moves<P> {
    /// The move that the processor has just executed, if it is one that is kept: its code is what it was, and its operand lies
    /// in one page. `saved`: what the processor saved of the code; where that is too little, the trace says whether it is.
    ///
    /// The operand is where the processor met it, since a plain move has no other. If another processor has changed the code since,
    /// the guest has made a move between this operand and another of its registers, as an instruction of its own would.
    #[inline]
    pub fn find(
        &self,
        met: &Met,
        gpr: impl Fn(usize) -> u64,
        saved: &[u8],
        read: impl Fn(P) -> u64,
    ) -> Option<PlainMove> {
        let kept = self.0.get(slot(met.rip, met.cr3))?.as_ref()?;
        let plain = kept.plain;
        if (kept.rip, kept.cr3, plain.is_store) != (met.rip, met.cr3, met.is_write) {
            return None;
        }
        let offset = met.gpa.page_offset();
        // What is met at the beginning of a page may be the second half of what begins in the page before.
        let begins_earlier = || plain.linear(met.rip, gpr) % PAGE_SIZE != 0;
        if offset + u64::from(plain.width) > PAGE_SIZE || offset == 0 && begins_earlier() {
            return None;
        }
        let is_same = match saved.get(..plain.length.into()) {
            Some(saved) => code_word(saved) == kept.code,
            None => kept.trace.holds(read),
        };
        is_same.then_some(plain)
    }

    /// Keeps the instruction at `rip` that `code` begins with, if it is a plain move. A processor in 64-bit kernel mode has
    /// executed it. `locate` says where an aligned word of the guest's memory is, which stays true, and `read` reads it.
    pub fn keep(
        &mut self,
        state: &PagingState,
        rip: u64,
        code: &[u8],
        locate: impl Fn(Gpa) -> Option<P>,
        read: impl Fn(P) -> u64,
    ) {
        let Some(plain) = PlainMove::decode(code) else { return };
        let Some(code) = code.get(..plain.length.into()) else { return };
        let Some(trace) = Trace::walk(state, rip, code, locate, read) else { return };
        let cr3 = state.cr3;
        if let Some(kept) = self.0.get_mut(slot(rip, cr3)) {
            *kept = Some(Kept { rip, cr3, plain, code: code_word(code), trace });
        }
    }
}

/// The bytes of an instruction, the first in the lowest byte.
fn code_word(code: &[u8]) -> u64 {
    code.iter().take(LONGEST).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The bits of a word that so many bytes, its lowest, take.
fn mask_of(bytes: usize) -> u64 {
    u64::MAX.checked_shr(64 - 8 * bytes.min(LONGEST) as u32).unwrap_or(0)
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

    const LONG: PagingState =
        PagingState { cr0: 1 << 31, cr3: 0x1000, cr4: 1 << 5, efer: 1 << 10, physical_bits: 40 };
    /// `mov %eax,0x8(%rdx)` and `mov 0x8(%rdx),%eax`, of three bytes each.
    const STORE: [u8; 4] = [0x89, 0x42, 0x08, 0x90];
    const LOAD: [u8; 4] = [0x8b, 0x42, 0x08, 0x90];

    /// A guest's memory by its aligned words.
    #[derive(Clone)]
    struct Memory(BTreeMap<u64, u64>);

    impl Memory {
        /// Tables that lead from linear 0x3000 to the page at 0x55000.
        fn new() -> Self {
            Self(BTreeMap::from([(0x1000, 0x2027), (0x2000, 0x3027), (0x3000, 0x4027), (0x4018, 0x5_5027)]))
        }

        /// The same, with code there.
        fn with(mut self, at: u64, code: &[u8]) -> Self {
            for (at, byte) in (at..).zip(code) {
                let word = self.0.entry(at & !7).or_insert(0xeeee_eeee_eeee_eeee);
                let shift = 8 * (at & 7);
                *word = *word & !(0xff << shift) | u64::from(*byte) << shift;
            }
            self
        }

        fn locate(&self, at: Gpa) -> Option<Gpa> {
            self.0.contains_key(&at.as_u64()).then_some(at)
        }

        fn read(&self, at: Gpa) -> u64 {
            self.0[&at.as_u64()]
        }

        fn trace(&self, rip: u64, code: &[u8]) -> Option<Trace<Gpa>> {
            Trace::walk(&LONG, rip, code, |at| self.locate(at), |at| self.read(at))
        }

        fn keep(&self, moves: &mut Moves<Gpa>, rip: u64, code: &[u8]) {
            moves.keep(&LONG, rip, code, |at| self.locate(at), |at| self.read(at));
        }

        fn find(&self, moves: &Moves<Gpa>, met: &Met) -> Option<PlainMove> {
            moves.find(met, |_| 0xff4, &[], |at| self.read(at))
        }
    }

    #[test]
    fn a_trace_holds_as_long_as_every_entry_does() {
        let memory = Memory::new().with(0x5_5126, &STORE);
        let trace = memory.trace(0x3126, &STORE[..3]).unwrap();
        assert!(trace.holds(|at| memory.read(at)));
        for at in [0x1000, 0x2000, 0x3000, 0x4018] {
            let mut other = memory.clone();
            other.0.insert(at, 0x9027);
            assert!(!trace.holds(|at| other.read(at)), "{at:#x} leads elsewhere now");
            other.0.remove(&at);
            assert!(other.trace(0x3126, &STORE[..3]).is_none());
        }
        assert!(Memory::new().trace(0x3126, &STORE[..3]).is_none(), "there is no code");
        assert!(memory.trace(0x3ffe, &STORE[..3]).is_none(), "it ends in another page");
    }

    proptest! {
        /// Code is compared byte by byte, wherever in its words it lies, and nothing else is.
        #[test]
        fn a_trace_holds_as_long_as_the_code_does(
            offset in 0u64..0xff0,
            code in prop::collection::vec(any::<u8>(), 1..=LONGEST),
            changed in 0u64..0x1000,
            bits in 1u8..,
        ) {
            let page: alloc::vec::Vec<u8> = (0..0x1000).map(|at| at as u8).collect();
            let memory = Memory::new().with(0x5_5000, &page).with(0x5_5000 + offset, &code);
            let trace = memory.trace(0x3000 + offset, &code).unwrap();
            prop_assert!(trace.holds(|at| memory.read(at)));
            let near = (offset + changed % 24).saturating_sub(8);
            let mut other = memory;
            *other.0.get_mut(&((0x5_5000 + near) & !7)).unwrap() ^= u64::from(bits) << (8 * (near & 7));
            let within = (offset..offset + code.len() as u64).contains(&near);
            prop_assert_eq!(trace.holds(|at| other.read(at)), !within);
        }
    }

    /// A guest maps another page where the code was, and what was kept of it is not made any more, though the page that it came
    /// from holds it still.
    #[test]
    fn a_page_that_lies_elsewhere_now_is_not_taken_for_the_code() {
        let met = Met { rip: 0x3fe6, cr3: 0x1000, gpa: Gpa::new(0xfec0_0010), is_write: true };
        let old = Memory::new().with(0x5_5fe6, &STORE);
        let mut moves = Moves::default();
        old.keep(&mut moves, met.rip, &STORE);
        assert!(old.find(&moves, &met).is_some());
        for code in [STORE, LOAD] {
            let mut new = old.clone().with(0x6_6fe6, &code);
            new.0.insert(0x4018, 0x6_6027);
            assert_eq!(new.find(&moves, &met), None);
        }
        // The page is the same, and what it holds is not.
        assert_eq!(old.with(0x5_5fe6, &LOAD).find(&moves, &met), None);
    }

    /// What is kept is found where nothing has changed, and nowhere else.
    #[test]
    fn a_kept_move_is_found_as_long_as_all_is_as_it_was() {
        const MET: Met = Met { rip: 0x3fe6, cr3: 0x1000, gpa: Gpa::new(0xfec0_0010), is_write: true };
        let memory = Memory::new().with(0x5_5fe6, &STORE);
        let mut moves = Moves::default();
        assert_eq!(memory.find(&moves, &MET), None);
        memory.keep(&mut moves, MET.rip, &STORE);
        let plain = memory.find(&moves, &MET).expect("it is kept");
        assert_eq!((plain.length, plain.is_store), (3, true));
        for other in [
            Met { is_write: false, ..MET },
            Met { rip: MET.rip + 1, ..MET },
            // It shares the slot.
            Met { cr3: MET.cr3 + (KEPT << 12) as u64, ..MET },
        ] {
            assert_eq!(memory.find(&moves, &other), None, "{other:?}");
        }
        // The operand reaches into the next page: what the processor met may be either half.
        let at = |offset: u64| Met { gpa: Gpa::new(0xfec0_0000 + offset), ..MET };
        let find = |offset, rdx: u64| moves.find(&at(offset), |_| rdx, &[], |at| memory.read(at)).is_some();
        assert!(find(0xffc, 0xff4) && !find(0xffe, 0xff6));
        assert!(find(0, 0xff8) && !find(0, 0xff6));
        // Other code, in each of its bytes; what comes behind is not its.
        let saved = |code: &[u8]| moves.find(&MET, |_| 0, code, |_| panic!("the processor saved it"));
        for byte in 0..3 {
            let mut other = STORE;
            other[byte] ^= 1;
            assert_eq!(memory.clone().with(0x5_5fe6, &other).find(&moves, &MET), None);
            assert_eq!(saved(&other[..3]), None, "the processor saved other code");
        }
        assert!(memory.clone().with(0x5_5fe9, &[0xcc]).find(&moves, &MET).is_some());
        assert!(saved(&STORE[..3]).is_some() && saved(&[0x89, 0x42, 0x08, 0xcc]).is_some());
        let too_little = moves.find(&MET, |_| 0, &STORE[..2], |at| memory.read(at));
        assert!(too_little.is_some(), "the rest is read");
        // Code on two pages is not kept.
        let mut moves = Moves::default();
        memory.clone().with(0x5_5ff8, &[0; 8]).keep(&mut moves, 0x3ffe, &STORE);
        assert_eq!(memory.find(&moves, &Met { rip: 0x3ffe, ..MET }), None);
    }
}
