//! One instruction with a memory operand.
//!
//! Each memory operand is one access of its own size, reads before writes, as a device would see
//! them on the bus. Source: APM vol 3.
//!
//! Deviations: LOCK is accepted and ignored (devices do not arbitrate); SSE moves are not executed.

use crate::operation::{CF, DF, Operation, ZF, apply, mask, sign_extend, step as step_by_one};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Elements of a repeated string instruction executed in one go.
const BATCH: u64 = 512;

/// A segment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// ES.
    Es,
    /// CS.
    Cs,
    /// SS.
    Ss,
    /// DS.
    Ds,
    /// FS.
    Fs,
    /// GS.
    Gs,
}

/// Why an instruction was not executed. Nothing changed, unless a repeated one had progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<F> {
    /// Not one of the instructions known here, or not an instruction.
    Unsupported,
    /// A memory access failed.
    Fault(F),
}

/// The processor and memory that an instruction works on.
pub trait Machine {
    /// Why a memory access fails.
    type Fault;
    /// General register by hardware number (0 RAX, 1 RCX, ... 15 R15).
    fn gpr(&self, index: usize) -> u64;
    /// Sets a general register.
    fn set_gpr(&mut self, index: usize, value: u64);
    /// RFLAGS.
    fn rflags(&self) -> u64;
    /// Sets RFLAGS.
    fn set_rflags(&mut self, value: u64);
    /// RIP.
    fn rip(&self) -> u64;
    /// Sets RIP.
    fn set_rip(&mut self, value: u64);
    /// Base address of a segment; 0 where the mode ignores it.
    fn segment_base(&self, segment: Segment) -> u64;
    /// 16, 32 or 64.
    fn bitness(&self) -> u32;
    /// One read of linear memory.
    ///
    /// # Errors
    /// Nothing was read.
    fn read(&mut self, linear: u64, buffer: &mut [u8]) -> Result<(), Self::Fault>;
    /// One write of linear memory.
    ///
    /// # Errors
    /// Nothing was written.
    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Self::Fault>;
}

/// The segment of an iced register; DS for anything else.
pub(crate) fn segment_of(register: Register) -> Segment {
    match register {
        Register::ES => Segment::Es,
        Register::CS => Segment::Cs,
        Register::SS => Segment::Ss,
        Register::FS => Segment::Fs,
        Register::GS => Segment::Gs,
        _ => Segment::Ds,
    }
}

/// Hardware number of the register that holds `register`, and whether it is one of AH, CH, DH and BH.
///
/// `Register::number` is no hardware number for bytes: it counts AH-BH before SPL, so that SIL would be R10.
fn gpr_of(register: Register) -> Option<(usize, bool)> {
    let high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    register.is_gpr().then(|| (register.full_register().number(), high))
}

/// Executes the instruction at the start of `bytes`, which RIP points at.
///
/// # Errors
/// See [`Error`]; RIP stays where it is.
pub fn step<M: Machine>(machine: &mut M, bytes: &[u8]) -> Result<(), Error<M::Fault>> {
    let mut decoder = Decoder::try_with_ip(machine.bitness(), bytes, machine.rip(), DecoderOptions::NONE)
        .map_err(|_| Error::Unsupported)?;
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return Err(Error::Unsupported);
    }
    let finished = Step { machine, instruction: &instruction }.run()?;
    if finished {
        machine.set_rip(instruction.next_ip());
    }
    Ok(())
}

/// Bytes of the instruction at the start of `bytes`, all prefixes included; `None` if it is none.
pub fn length(bytes: &[u8], bitness: u32) -> Option<u64> {
    let mut decoder = Decoder::try_new(bitness, bytes, DecoderOptions::NONE).ok()?;
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction.len() as u64)
}

/// Of MOV to CR8, also as LOCK MOV to CR0: the source register's hardware number and the instruction's
/// bytes. `None` for anything else.
pub fn cr8_write(bytes: &[u8], bitness: u32) -> Option<(usize, u64)> {
    let instruction = Decoder::try_new(bitness, bytes, DecoderOptions::AMD).ok()?.decode();
    let to_cr8 = match instruction.op0_register() {
        Register::CR8 => true,
        Register::CR0 => instruction.has_lock_prefix(),
        _ => false,
    };
    let (source, _) = gpr_of(instruction.op1_register())?;
    (to_cr8 && instruction.mnemonic() == Mnemonic::Mov).then_some((source, instruction.len() as u64))
}

struct Step<'a, M> {
    machine: &'a mut M,
    instruction: &'a Instruction,
}

type Done<M> = Result<bool, Error<<M as Machine>::Fault>>;

impl<M: Machine> Step<'_, M> {
    /// Executes. Returns false if a repeated instruction has more to do.
    fn run(&mut self) -> Done<M> {
        use Mnemonic as I;
        match self.instruction.mnemonic() {
            I::Mov | I::Movnti => self.copy(|value, _| value),
            I::Movzx => self.copy(|value, _| value),
            I::Movsx | I::Movsxd => self.copy(sign_extend),
            I::Movbe => self.copy(|value, size| value.swap_bytes() >> (64 - 8 * size)),
            I::Add => self.binary(Operation::Add, true),
            I::Adc => self.binary(Operation::Adc, true),
            I::Sub => self.binary(Operation::Sub, true),
            I::Sbb => self.binary(Operation::Sbb, true),
            I::And => self.binary(Operation::And, true),
            I::Or => self.binary(Operation::Or, true),
            I::Xor => self.binary(Operation::Xor, true),
            I::Cmp => self.binary(Operation::Sub, false),
            I::Test => self.binary(Operation::And, false),
            I::Inc => self.unary(|size, value, flags| step_by_one(size, value, true, flags)),
            I::Dec => self.unary(|size, value, flags| step_by_one(size, value, false, flags)),
            I::Not => self.unary(|size, value, flags| (!value & mask(size), flags)),
            I::Neg => self.unary(|size, value, flags| apply(Operation::Sub, size, 0, value, flags)),
            I::Xchg => self.exchange(),
            I::Xadd => self.exchange_add(),
            I::Cmpxchg => self.compare_exchange(),
            I::Bt => self.bit(|word, _| word),
            I::Bts => self.bit(|word, bit| word | bit),
            I::Btr => self.bit(|word, bit| word & !bit),
            I::Btc => self.bit(|word, bit| word ^ bit),
            I::Push => self.push(),
            I::Pop => self.pop(),
            I::Stosb | I::Stosw | I::Stosd | I::Stosq => self.string(false, true),
            I::Lodsb | I::Lodsw | I::Lodsd | I::Lodsq => self.string(true, false),
            I::Movsb | I::Movsw | I::Movsq => self.string(true, true),
            // MOVSD is also an SSE instruction; that one has no string operands.
            I::Movsd if self.instruction.is_string_instruction() => self.string(true, true),
            _ => Err(Error::Unsupported),
        }
    }

    // --- operands ---------------------------------------------------------------------------

    /// Bytes of an operand.
    fn size(&self, operand: u32) -> Result<usize, Error<M::Fault>> {
        let size = match self.instruction.op_kind(operand) {
            OpKind::Register => self.instruction.op_register(operand).size(),
            OpKind::Memory => self.instruction.memory_size().size(),
            _ => return Err(Error::Unsupported),
        };
        if matches!(size, 1 | 2 | 4 | 8) { Ok(size) } else { Err(Error::Unsupported) }
    }

    /// Linear address of a memory operand.
    fn address(&self, operand: u32) -> Result<u64, Error<M::Fault>> {
        let value = |register: Register, _, _| {
            if register.is_segment_register() {
                Some(self.machine.segment_base(segment_of(register)))
            } else if register == Register::None {
                Some(0)
            } else {
                self.register(register)
            }
        };
        self.instruction.try_virtual_address(operand, 0, value).ok_or(Error::Unsupported)
    }

    fn register(&self, register: Register) -> Option<u64> {
        let (index, high) = gpr_of(register)?;
        let value = self.machine.gpr(index);
        Some(if high { value >> 8 & 0xff } else { value & mask(register.size()) })
    }

    fn set_register(&mut self, register: Register, value: u64) -> Result<(), Error<M::Fault>> {
        let (index, high) = gpr_of(register).ok_or(Error::Unsupported)?;
        let old = self.machine.gpr(index);
        let new = match register.size() {
            _ if high => old & !0xff00 | (value & 0xff) << 8,
            // A 32-bit result clears the upper half of the register (APM vol 1, 3.1.2).
            4 => value & 0xffff_ffff,
            size => old & !mask(size) | value & mask(size),
        };
        self.machine.set_gpr(index, new);
        Ok(())
    }

    fn load(&mut self, linear: u64, size: usize) -> Result<u64, Error<M::Fault>> {
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..size).ok_or(Error::Unsupported)?;
        self.machine.read(linear, part).map_err(Error::Fault)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, linear: u64, size: usize, value: u64) -> Result<(), Error<M::Fault>> {
        let bytes = value.to_le_bytes();
        let part = bytes.get(..size).ok_or(Error::Unsupported)?;
        self.machine.write(linear, part).map_err(Error::Fault)
    }

    fn get(&mut self, operand: u32, size: usize) -> Result<u64, Error<M::Fault>> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => {
                self.register(self.instruction.op_register(operand)).ok_or(Error::Unsupported)
            }
            OpKind::Memory => {
                let linear = self.address(operand)?;
                self.load(linear, size)
            }
            _ => self
                .instruction
                .try_immediate(operand)
                .map(|value| value & mask(size))
                .map_err(|_| Error::Unsupported),
        }
    }

    fn put(&mut self, operand: u32, size: usize, value: u64) -> Result<(), Error<M::Fault>> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.set_register(self.instruction.op_register(operand), value),
            OpKind::Memory => {
                let linear = self.address(operand)?;
                self.store(linear, size, value)
            }
            _ => Err(Error::Unsupported),
        }
    }

    // --- instructions -----------------------------------------------------------------------

    /// Moves, with the conversion of a value of the source's size.
    fn copy(&mut self, convert: impl Fn(u64, usize) -> u64) -> Done<M> {
        let to = self.size(0)?;
        let from = self.size(1).unwrap_or(to);
        let value = self.get(1, from)?;
        self.put(0, to, convert(value, from))?;
        Ok(true)
    }

    fn binary(&mut self, operation: Operation, keep: bool) -> Done<M> {
        let size = self.size(0)?;
        let left = self.get(0, size)?;
        let right = self.get(1, size)?;
        let (result, flags) = apply(operation, size, left, right, self.machine.rflags());
        if keep {
            self.put(0, size, result)?;
        }
        self.machine.set_rflags(flags);
        Ok(true)
    }

    fn unary(&mut self, operation: impl Fn(usize, u64, u64) -> (u64, u64)) -> Done<M> {
        let size = self.size(0)?;
        let value = self.get(0, size)?;
        let (result, flags) = operation(size, value, self.machine.rflags());
        self.put(0, size, result)?;
        self.machine.set_rflags(flags);
        Ok(true)
    }

    fn exchange(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let left = self.get(0, size)?;
        let right = self.get(1, size)?;
        // Memory first: if it fails, the register must be as it was.
        let memory = if self.instruction.op_kind(0) == OpKind::Memory { 0 } else { 1 };
        let (first, second) = if memory == 0 { (right, left) } else { (left, right) };
        self.put(memory, size, first)?;
        self.put(1 - memory, size, second)?;
        Ok(true)
    }

    fn exchange_add(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let left = self.get(0, size)?;
        let right = self.get(1, size)?;
        let (sum, flags) = apply(Operation::Add, size, left, right, self.machine.rflags());
        self.put(0, size, sum)?;
        if self.instruction.op_kind(0) == OpKind::Memory
            || self.instruction.op0_register() != self.instruction.op1_register()
        {
            self.put(1, size, left)?;
        }
        self.machine.set_rflags(flags);
        Ok(true)
    }

    fn compare_exchange(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let old = self.get(0, size)?;
        let expected = self.machine.gpr(0) & mask(size);
        let (_, flags) = apply(Operation::Sub, size, expected, old, self.machine.rflags());
        if flags & ZF != 0 {
            let new = self.get(1, size)?;
            self.put(0, size, new)?;
        } else {
            // The processor writes the destination in any case (APM vol 3, CMPXCHG).
            self.put(0, size, old)?;
            let register = match size {
                1 => Register::AL,
                2 => Register::AX,
                4 => Register::EAX,
                _ => Register::RAX,
            };
            self.set_register(register, old)?;
        }
        self.machine.set_rflags(flags);
        Ok(true)
    }

    /// BT and its kin; with a register index the bit may be outside of the operand's own word.
    fn bit(&mut self, change: impl Fn(u64, u64) -> u64) -> Done<M> {
        let size = self.size(0)?;
        let bits = 8 * size as u64;
        let index = self.get(1, size)?;
        let memory = self.instruction.op_kind(0) == OpKind::Memory;
        let mut linear = 0;
        let word = if memory {
            linear = self.address(0)?;
            if self.instruction.op_kind(1) == OpKind::Register {
                let words = (sign_extend(index, size) as i64).div_euclid(bits as i64);
                linear = linear.wrapping_add_signed(words.wrapping_mul(size as i64));
            }
            self.load(linear, size)?
        } else {
            self.get(0, size)?
        };
        let bit = 1 << (index % bits);
        let changed = change(word, bit);
        if self.instruction.mnemonic() != Mnemonic::Bt {
            if memory { self.store(linear, size, changed)? } else { self.put(0, size, changed)? }
        }
        let flags = self.machine.rflags() & !CF | if word & bit != 0 { CF } else { 0 };
        self.machine.set_rflags(flags);
        Ok(true)
    }

    /// Moves the stack pointer by `delta`, in the width of the mode. Returns the old and the new value.
    fn stack(&self, delta: i64) -> (u64, u64) {
        let old = self.machine.gpr(4);
        let new = old.wrapping_add_signed(delta);
        match self.machine.bitness() {
            64 => (old, new),
            32 => (old & 0xffff_ffff, new & 0xffff_ffff),
            _ => (old & 0xffff, old & !0xffff | new & 0xffff),
        }
    }

    fn push(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let value = self.get(0, size)?;
        let (_, sp) = self.stack(-(size as i64));
        let address = if self.machine.bitness() == 16 { sp & 0xffff } else { sp };
        let linear = self.machine.segment_base(Segment::Ss).wrapping_add(address);
        self.store(linear, size, value)?;
        self.machine.set_gpr(4, sp);
        Ok(true)
    }

    fn pop(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let (old, new) = self.stack(size as i64);
        let linear = self.machine.segment_base(Segment::Ss).wrapping_add(old);
        let value = self.load(linear, size)?;
        let before = self.machine.gpr(4);
        // An address based on RSP is computed after it moved (APM vol 3, POP).
        self.machine.set_gpr(4, new);
        self.put(0, size, value).inspect_err(|_| self.machine.set_gpr(4, before))?;
        Ok(true)
    }

    /// STOS, LODS and MOVS.
    fn string(&mut self, source: bool, destination: bool) -> Done<M> {
        let size = self.instruction.memory_size().size();
        if !matches!(size, 1 | 2 | 4 | 8) {
            return Err(Error::Unsupported);
        }
        let address_size = match (self.instruction.op0_kind(), self.instruction.op1_kind()) {
            (OpKind::MemoryESDI, _) | (_, OpKind::MemorySegSI) => 2,
            (OpKind::MemoryESEDI, _) | (_, OpKind::MemorySegESI) => 4,
            _ => 8,
        };
        let repeats = self.instruction.has_rep_prefix() || self.instruction.has_repne_prefix();
        let from = self.machine.segment_base(segment_of(self.instruction.memory_segment()));
        let to = self.machine.segment_base(Segment::Es);
        let width = mask(address_size);
        let delta = if self.machine.rflags() & DF != 0 { (size as u64).wrapping_neg() } else { size as u64 };
        for _ in 0..BATCH {
            let count = self.machine.gpr(1) & width;
            if repeats && count == 0 {
                return Ok(true);
            }
            let value = if source {
                let linear = from.wrapping_add(self.machine.gpr(6) & width);
                self.load(linear, size)?
            } else {
                self.machine.gpr(0) & mask(size)
            };
            if destination {
                let linear = to.wrapping_add(self.machine.gpr(7) & width);
                self.store(linear, size, value)?;
                self.advance(7, address_size, delta);
            } else {
                let register = [Register::AL, Register::AX, Register::EAX, Register::RAX];
                let register =
                    register.get(size.trailing_zeros() as usize).copied().unwrap_or(Register::None);
                self.set_register(register, value)?;
            }
            if source {
                self.advance(6, address_size, delta);
            }
            if !repeats {
                return Ok(true);
            }
            self.advance(1, address_size, u64::MAX);
        }
        Ok(self.machine.gpr(1) & width == 0)
    }

    /// Adds to the addressed part of a register.
    fn advance(&mut self, index: usize, address_size: usize, delta: u64) {
        let old = self.machine.gpr(index);
        let new = old.wrapping_add(delta);
        let merged = match address_size {
            2 => old & !0xffff | new & 0xffff,
            size => new & mask(size),
        };
        self.machine.set_gpr(index, merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// 4 KiB of memory at 0x1000, and a log of accesses.
    struct Toy {
        gpr: [u64; 16],
        rflags: u64,
        rip: u64,
        memory: Vec<u8>,
        log: Vec<(bool, u64, usize)>,
    }

    impl Toy {
        fn new() -> Self {
            let mut gpr = [0; 16];
            gpr[3] = 0x1100;
            Self { gpr, rflags: 2, rip: 0x400, memory: vec![0; 4096], log: Vec::new() }
        }

        fn run(&mut self, code: &[u8]) -> Result<(), Error<()>> {
            step(self, code)
        }

        fn word(&self, at: u64) -> u64 {
            u64::from_le_bytes(self.memory[at as usize - 0x1000..][..8].try_into().unwrap())
        }
    }

    impl Machine for Toy {
        type Fault = ();
        fn gpr(&self, index: usize) -> u64 {
            self.gpr[index]
        }
        fn set_gpr(&mut self, index: usize, value: u64) {
            self.gpr[index] = value;
        }
        fn rflags(&self) -> u64 {
            self.rflags
        }
        fn set_rflags(&mut self, value: u64) {
            self.rflags = value;
        }
        fn rip(&self) -> u64 {
            self.rip
        }
        fn set_rip(&mut self, value: u64) {
            self.rip = value;
        }
        fn segment_base(&self, segment: Segment) -> u64 {
            if segment == Segment::Gs { 0x200 } else { 0 }
        }
        fn bitness(&self) -> u32 {
            64
        }
        fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), ()> {
            self.log.push((false, at, buffer.len()));
            let start = at.checked_sub(0x1000).ok_or(())? as usize;
            buffer.copy_from_slice(self.memory.get(start..start + buffer.len()).ok_or(())?);
            Ok(())
        }
        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), ()> {
            self.log.push((true, at, bytes.len()));
            let start = at.checked_sub(0x1000).ok_or(())? as usize;
            self.memory.get_mut(start..start + bytes.len()).ok_or(())?.copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn moves_of_every_width() {
        let mut toy = Toy::new();
        toy.gpr[0] = 0x1122_3344_5566_7788;
        toy.run(&[0x89, 0x03]).unwrap(); // mov [rbx], eax
        assert_eq!((toy.word(0x1100), toy.rip), (0x5566_7788, 0x402));
        toy.run(&[0x88, 0x63, 0x08]).unwrap(); // mov [rbx+8], ah
        assert_eq!(toy.word(0x1108), 0x77);
        toy.run(&[0x0f, 0xb6, 0x03]).unwrap(); // movzx eax, byte [rbx]
        assert_eq!(toy.gpr[0], 0x88);
        toy.run(&[0x48, 0x0f, 0xbe, 0x03]).unwrap(); // movsx rax, byte [rbx]
        assert_eq!(toy.gpr[0], 0xffff_ffff_ffff_ff88);
        toy.run(&[0x66, 0xc7, 0x03, 0x34, 0x12]).unwrap(); // mov word [rbx], 0x1234
        assert_eq!(toy.word(0x1100), 0x5566_1234);
        toy.run(&[0x65, 0x8b, 0x0c, 0x25, 0x00, 0x0f, 0x00, 0x00]).unwrap(); // mov ecx, gs:[0xf00]
        assert_eq!(toy.gpr[1], 0x5566_1234);
        toy.run(&[0x8a, 0x2b]).unwrap(); // mov ch, [rbx]
        assert_eq!(toy.gpr[1], 0x5566_3434);
        toy.run(&[0x48, 0xc7, 0x03, 0xfe, 0xff, 0xff, 0xff]).unwrap(); // mov qword [rbx], -2
        assert_eq!(toy.word(0x1100), u64::MAX - 1);
    }

    #[test]
    fn every_byte_register_is_the_right_one() {
        for number in 0..16u8 {
            let mut toy = Toy::new();
            toy.gpr = core::array::from_fn(|index| 0x10 + index as u64);
            let pointer = if number == 3 { 6 } else { 3 };
            toy.gpr[pointer] = 0x1100;
            let expected = toy.gpr[usize::from(number)] as u8;
            let rex = 0x40 | (number >> 3) << 2;
            toy.run(&[rex, 0x88, (number & 7) << 3 | pointer as u8]).unwrap(); // mov [pointer], register
            assert_eq!(toy.memory[0x100], expected, "register {number}");
            toy.memory[0x100] = 0xee;
            toy.run(&[rex, 0x8a, (number & 7) << 3 | pointer as u8]).unwrap(); // mov register, [pointer]
            assert_eq!(toy.gpr[usize::from(number)] as u8, 0xee, "register {number}");
        }
        // Without a REX prefix, numbers 4-7 are the second bytes of registers 0-3.
        for number in 4..8u8 {
            let mut toy = Toy::new();
            toy.gpr[usize::from(number - 4)] = 0x5a00;
            let pointer = if number == 7 { 6 } else { 3 };
            toy.gpr[pointer] = 0x1100;
            toy.run(&[0x88, number << 3 | pointer as u8]).unwrap();
            assert_eq!(toy.memory[0x100], 0x5a, "register {number}");
        }
    }

    #[test]
    fn a_read_modify_write_is_one_read_and_one_write_of_its_size() {
        let mut toy = Toy::new();
        toy.memory[0x100] = 0xf0;
        toy.run(&[0x80, 0x0b, 0x0f]).unwrap(); // or byte [rbx], 0xf
        assert_eq!(toy.log, [(false, 0x1100, 1), (true, 0x1100, 1)]);
        assert_eq!(toy.memory[0x100], 0xff);
        toy.log.clear();
        toy.run(&[0x83, 0x3b, 0x00]).unwrap(); // cmp dword [rbx], 0
        toy.run(&[0xf7, 0x03, 1, 0, 0, 0]).unwrap(); // test dword [rbx], 1
        assert_eq!(toy.log, [(false, 0x1100, 4), (false, 0x1100, 4)]);
        assert_eq!(toy.rflags & ZF, 0);
    }

    #[test]
    fn exchanges() {
        let mut toy = Toy::new();
        toy.gpr[0] = 5;
        toy.gpr[1] = 9;
        toy.run(&[0x87, 0x0b]).unwrap(); // xchg [rbx], ecx
        assert_eq!((toy.gpr[1], toy.word(0x1100)), (0, 9));
        toy.run(&[0xf0, 0x0f, 0xc1, 0x03]).unwrap(); // lock xadd [rbx], eax
        assert_eq!((toy.gpr[0], toy.word(0x1100)), (9, 14));
        toy.gpr[0] = 14;
        toy.gpr[1] = 77;
        toy.run(&[0xf0, 0x0f, 0xb1, 0x0b]).unwrap(); // lock cmpxchg [rbx], ecx
        assert_eq!((toy.word(0x1100), toy.rflags & ZF), (77, ZF));
        toy.run(&[0xf0, 0x0f, 0xb1, 0x0b]).unwrap();
        assert_eq!((toy.gpr[0], toy.rflags & ZF), (77, 0));
    }

    #[test]
    fn bits_beyond_the_first_word() {
        let mut toy = Toy::new();
        toy.gpr[0] = 35;
        toy.run(&[0x0f, 0xab, 0x03]).unwrap(); // bts [rbx], eax
        assert_eq!(toy.log, [(false, 0x1104, 4), (true, 0x1104, 4)]);
        assert_eq!(toy.word(0x1100), 8 << 32);
        toy.gpr[0] = u64::from(-1i32 as u32);
        toy.run(&[0x0f, 0xa3, 0x03]).unwrap(); // bt [rbx], eax
        assert_eq!(toy.log[2], (false, 0x10fc, 4));
        toy.run(&[0x0f, 0xba, 0x63, 0x04, 0x03]).unwrap(); // bt dword [rbx+4], 3
        assert_eq!(toy.rflags & CF, CF);
    }

    #[test]
    fn strings_in_both_directions_and_in_batches() {
        let mut toy = Toy::new();
        toy.gpr[0] = 0xab;
        toy.gpr[1] = 600;
        toy.gpr[7] = 0x1000;
        toy.run(&[0xf3, 0xaa]).unwrap(); // rep stosb
        assert_eq!((toy.gpr[1], toy.rip), (88, 0x400), "not finished: RIP stays");
        toy.run(&[0xf3, 0xaa]).unwrap();
        assert_eq!((toy.gpr[1], toy.gpr[7], toy.rip), (0, 0x1258, 0x402));
        assert!(toy.memory[..600].iter().all(|b| *b == 0xab));
        toy.rflags |= DF;
        (toy.gpr[1], toy.gpr[6], toy.gpr[7]) = (2, 0x1008, 0x1f08);
        toy.run(&[0xf3, 0xa5]).unwrap(); // rep movsd
        assert_eq!((toy.gpr[6], toy.gpr[7]), (0x1000, 0x1f00));
        assert_eq!(toy.word(0x1f04), 0xabab_abab_abab_abab);
        toy.run(&[0xac]).unwrap(); // lodsb
        assert_eq!(toy.gpr[6], 0xfff);
    }

    #[test]
    fn a_fault_changes_nothing() {
        let mut toy = Toy::new();
        toy.gpr[3] = 0x10;
        assert_eq!(toy.run(&[0x01, 0x03]), Err(Error::Fault(())));
        toy.gpr[4] = 0x1200;
        assert_eq!(toy.run(&[0x8f, 0x03]), Err(Error::Fault(()))); // pop [rbx]
        assert_eq!((toy.rip, toy.rflags, toy.gpr[4]), (0x400, 2, 0x1200));
    }

    #[test]
    fn writes_of_cr8_are_known_in_both_forms() {
        assert_eq!(cr8_write(&[0x44, 0x0f, 0x22, 0xc1], 64), Some((1, 4))); // mov cr8, rcx
        assert_eq!(cr8_write(&[0x45, 0x0f, 0x22, 0xc1], 64), Some((9, 4))); // mov cr8, r9
        assert_eq!(cr8_write(&[0xf0, 0x0f, 0x22, 0xc3], 64), Some((3, 4))); // lock mov cr0, rbx
        assert_eq!(cr8_write(&[0x0f, 0x22, 0xc3], 64), None); // mov cr0, rbx
        assert_eq!(cr8_write(&[0x89, 0xc3], 64), None);
    }

    #[test]
    fn lengths_include_prefixes() {
        assert_eq!(length(&[0x0f, 0x09, 0xf3], 64), Some(2)); // wbinvd
        assert_eq!(length(&[0xf3, 0x0f, 0x09, 0x90], 64), Some(3)); // wbnoinvd
        assert_eq!(length(&[0x66, 0x66, 0x0f, 0x08], 64), Some(4)); // invd
        assert_eq!(length(&[0x0f], 64), None);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for code in [&[0x0f, 0x0b][..], &[0xf2, 0x0f, 0x10, 0x03], &[0x89], &[0xff, 0xff], &[]] {
            assert_eq!(Toy::new().run(code), Err(Error::Unsupported));
        }
    }
}
