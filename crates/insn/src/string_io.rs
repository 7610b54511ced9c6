//! INS and OUTS: where their data are.
//!
//! The exit says port, direction and width; the rest (address size, segment, repetition) is in the
//! instruction. Source: APM vol 3, INS and OUTS.

use crate::execute::{Error, segment_of};
use crate::operand::Segment;
use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};
use sluice_memory::PAGE_SIZE;

/// An INS or OUTS instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringIo {
    repeats: bool,
    address_mask: u64,
    segment: Segment,
}

impl StringIo {
    /// Decodes the instruction at the start of `bytes`.
    ///
    /// # Errors
    /// It is no INS or OUTS, or cut off.
    pub fn decode(bytes: &[u8], bitness: u32) -> Result<Self, Error<()>> {
        let instruction =
            Decoder::try_new(bitness, bytes, DecoderOptions::NONE).map_err(|_| Error::Unsupported)?.decode();
        let output = match instruction.mnemonic() {
            Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => false,
            Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => true,
            _ => return Err(Error::Unsupported),
        };
        // The index register's size is the address size.
        let operand = if output { instruction.op1_kind() } else { instruction.op0_kind() };
        use iced_x86::OpKind::{
            MemoryESDI, MemoryESEDI, MemoryESRDI, MemorySegESI, MemorySegRSI, MemorySegSI,
        };
        let address_mask = match operand {
            MemoryESDI | MemorySegSI => 0xffff,
            MemoryESEDI | MemorySegESI => 0xffff_ffff,
            MemoryESRDI | MemorySegRSI => u64::MAX,
            _ => return Err(Error::Unsupported),
        };
        let segment =
            if output { segment_of(instruction.memory_segment()) } else { segment_of(Register::ES) };
        Ok(Self {
            repeats: instruction.has_rep_prefix() || instruction.has_repne_prefix(),
            address_mask,
            segment,
        })
    }

    /// An INS or OUTS of which the exit said width (in bytes) and repetition, and that is so short that it has no prefix besides
    /// those: its bytes need not be looked at. `None` if it is longer.
    pub fn without_prefixes(
        bitness: u32,
        output: bool,
        width: u8,
        repeats: bool,
        length: u64,
    ) -> Option<Self> {
        let (address_mask, native) = match bitness {
            64 => (u64::MAX, 4),
            32 => (0xffff_ffff, 4),
            _ => (0xffff, 2),
        };
        // One byte is the opcode, and of the wider operands the mode has one without a prefix.
        let shortest = 1 + u64::from(repeats) + u64::from(width != 1 && width != native);
        let segment = if output { Segment::Ds } else { Segment::Es };
        (length == shortest).then_some(Self { repeats, address_mask, segment })
    }

    /// Whether it has a REP prefix.
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Bits of the index and count registers that count.
    pub fn address_mask(&self) -> u64 {
        self.address_mask
    }

    /// Segment of the memory operand.
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// Elements still to move, given RCX.
    pub fn remaining(&self, rcx: u64) -> u64 {
        if self.repeats { rcx & self.address_mask } else { 1 }
    }

    /// How many of `count` elements of `width` bytes, upward from offset `index` at a linear address, lie side by side in
    /// one page; one at least, also if it crosses into the next page. `count` is at least 1.
    pub fn together(&self, index: u64, linear: u64, width: usize, count: u64) -> u64 {
        let width = width.max(1) as u64;
        let in_page = (PAGE_SIZE - (linear & (PAGE_SIZE - 1))) / width;
        // Past its last value the index begins again at zero.
        let in_index = (self.address_mask - (index & self.address_mask)) / width;
        count.min(in_page).min(in_index.saturating_add(1)).max(1)
    }

    /// The value of a 64-bit register after its addressed part became `new`: a 32-bit part clears
    /// the upper half, a 16-bit part leaves the rest.
    pub fn merge(&self, old: u64, new: u64) -> u64 {
        match self.address_mask {
            0xffff => old & !0xffff | new & 0xffff,
            mask => new & mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_size_segment_and_repetition() {
        let io = StringIo::decode(&[0xf3, 0x66, 0x6f], 64).unwrap();
        assert_eq!((io.repeats(), io.address_mask(), io.segment()), (true, u64::MAX, Segment::Ds));
        let io = StringIo::decode(&[0x67, 0x6d], 64).unwrap();
        assert_eq!((io.repeats(), io.address_mask(), io.segment()), (false, 0xffff_ffff, Segment::Es));
        let io = StringIo::decode(&[0x65, 0xf3, 0x6e], 16).unwrap();
        assert_eq!((io.repeats(), io.address_mask(), io.segment()), (true, 0xffff, Segment::Gs));
        assert_eq!(io.merge(0x1234_5678, 0x1_0001), 0x1234_0001);
        assert_eq!((io.together(0xfffc, 0x1_fffc, 2, 9), io.together(0xfffe, 0x1_1ffe, 4, 9)), (2, 1));
        assert_eq!((io.together(0, 0x1000, 4, 5000), io.together(0, 0x1ffd, 4, 5)), (1024, 1));
        assert!(StringIo::decode(&[0x90], 64).is_err());
        assert!(StringIo::decode(&[0xf3], 64).is_err());
    }

    #[test]
    fn what_is_known_by_its_length_is_what_its_bytes_say() {
        for bitness in [16, 32, 64] {
            let native = if bitness == 16 { 2 } else { 4 };
            for (opcode, output, wide) in
                [(0x6c, false, false), (0x6d, false, true), (0x6e, true, false), (0x6f, true, true)]
            {
                for prefixes in [
                    &[][..],
                    &[0x66],
                    &[0x67],
                    &[0x65],
                    &[0xf3],
                    &[0xf2],
                    &[0xf3, 0x66],
                    &[0xf3, 0x67],
                    &[0x66, 0x66],
                    &[0xf3, 0xf3],
                    &[0x65, 0x66],
                    &[0xf3, 0x66, 0x67],
                ] {
                    let bytes = [prefixes, &[opcode]].concat();
                    let decoded = StringIo::decode(&bytes, bitness).unwrap();
                    let width = match (wide, prefixes.contains(&0x66)) {
                        (false, _) => 1,
                        (true, false) => native,
                        (true, true) => 6 - native,
                    };
                    let known = StringIo::without_prefixes(
                        bitness,
                        output,
                        width,
                        decoded.repeats,
                        bytes.len() as u64,
                    );
                    assert!(known.is_none_or(|known| known == decoded), "{bytes:x?} of {bitness} bits");
                    let plain = prefixes.iter().all(|prefix| [0x66, 0xf2, 0xf3].contains(prefix));
                    let doubled = prefixes.len() == 2 && prefixes[0] == prefixes[1]
                        || !wide && width == 1 && prefixes.contains(&0x66);
                    assert_eq!(known.is_some(), plain && !doubled, "{bytes:x?} of {bitness} bits");
                }
            }
        }
    }
}
