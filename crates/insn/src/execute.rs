//! One instruction with a memory operand.
//!
//! Each memory operand is one access of its own size, reads before writes, as a device would see
//! them on the bus. Whether an operand can be written is known before anything is read that changes by being read.
//! Source: APM vol 3 and 4.
//!
//! Deviations: LOCK is accepted and ignored (devices do not arbitrate). Of the vector instructions only moves of whole
//! XMM registers and of their halves and lowest words are executed, in the legacy encoding; VEX and EVEX encodings, MMX
//! and x87 are unsupported, as are far pointers, and stack operations other than PUSH and POP.

use crate::operand::{Fault, Segment};
use crate::operation::{CF, DF, Operation, TF, ZF, apply, mask, sign_extend, step as step_by_one};
use crate::walk::Kind;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Elements of a repeated string instruction executed in one go.
const BATCH: u64 = 512;

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
    type Fault: From<Fault>;
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
    /// The instruction at RIP, of so many bytes, is done: goes to the next one.
    fn retire(&mut self, length: u64);
    /// An XMM register, 0-15.
    fn xmm(&self, index: usize) -> u128;
    /// Sets an XMM register; what is above its 128 bits stays.
    fn set_xmm(&mut self, index: usize, value: u128);
    /// 16, 32 or 64.
    fn bitness(&self) -> u32;
    /// Bits of the stack pointer that count: 16, 32 or 64 (SS.B outside of 64-bit mode).
    fn stack_bits(&self) -> u32;
    /// The linear address of an operand of `len` bytes.
    ///
    /// # Errors
    /// The segment does not have it, or does not allow it.
    fn linear(&self, segment: Segment, offset: u64, len: usize, kind: Kind) -> Result<u64, Self::Fault>;
    /// Whether `len` bytes of linear memory can be reached for that purpose. Nothing is read or written.
    ///
    /// # Errors
    /// They cannot.
    fn probe(&mut self, linear: u64, len: usize, kind: Kind) -> Result<(), Self::Fault>;
    /// One read of linear memory, of at most 16 bytes.
    ///
    /// # Errors
    /// Nothing was read.
    fn read(&mut self, linear: u64, buffer: &mut [u8]) -> Result<(), Self::Fault>;
    /// One write of linear memory, of at most 16 bytes.
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
        machine.retire(instruction.len() as u64);
    }
    Ok(())
}

/// Makes what the decoder needs and keeps: some millions of instructions, which the first guest to touch a device would wait for.
pub fn prepare() {
    const NOP: u8 = 0x90;
    let _ = length(&[NOP], 64);
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
        // Segment, control and x87 registers: known before anything is read in vain.
        let known = |register: Register| register.is_gpr() || register.is_xmm();
        let mut registers = (0..self.instruction.op_count()).filter(|operand| self.is_register(*operand));
        if !registers.all(|operand| known(self.instruction.op_register(operand))) {
            return Err(Error::Unsupported);
        }
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
            I::Cmpsb | I::Cmpsw | I::Cmpsq => self.compare_strings(true),
            // CMPSD, too.
            I::Cmpsd if self.instruction.is_string_instruction() => self.compare_strings(true),
            I::Scasb | I::Scasw | I::Scasd | I::Scasq => self.compare_strings(false),
            I::Movups | I::Movupd | I::Movdqu | I::Lddqu => self.move_vector(false),
            I::Movaps | I::Movapd | I::Movdqa => self.move_vector(true),
            I::Movntps | I::Movntpd | I::Movntdq | I::Movntdqa => self.move_vector(true),
            I::Movss | I::Movsd | I::Movd | I::Movq => self.move_scalar(),
            I::Movlps | I::Movlpd => self.move_half(0),
            I::Movhps | I::Movhpd => self.move_half(64),
            _ => Err(Error::Unsupported),
        }
    }

    // --- operands ---------------------------------------------------------------------------

    fn is_register(&self, operand: u32) -> bool {
        self.instruction.op_kind(operand) == OpKind::Register
    }

    /// Bytes of an operand.
    fn size(&self, operand: u32) -> Result<usize, Error<M::Fault>> {
        let size = match self.instruction.op_kind(operand) {
            OpKind::Register => self.instruction.op_register(operand).size(),
            OpKind::Memory => self.instruction.memory_size().size(),
            _ => return Err(Error::Unsupported),
        };
        if matches!(size, 1 | 2 | 4 | 8) { Ok(size) } else { Err(Error::Unsupported) }
    }

    /// Segment of the memory operand.
    fn segment(&self) -> Segment {
        let instruction = self.instruction;
        if self.machine.bitness() != 64 {
            return segment_of(instruction.memory_segment());
        }
        // In 64-bit mode the prefixes of the other segments say nothing (APM vol 3, 1.2.4).
        match instruction.segment_prefix() {
            Register::FS => Segment::Fs,
            Register::GS => Segment::Gs,
            _ => match instruction.memory_base() {
                Register::RSP | Register::ESP | Register::RBP | Register::EBP => Segment::Ss,
                _ => Segment::Ds,
            },
        }
    }

    /// Offset of a memory operand in its segment.
    fn offset(&self, operand: u32) -> Result<u64, Error<M::Fault>> {
        let value = |register: Register, _, _| match register {
            Register::None => Some(0),
            register if register.is_segment_register() => Some(0),
            register => self.register(register),
        };
        self.instruction.try_virtual_address(operand, 0, value).ok_or(Error::Unsupported)
    }

    /// Linear address of a memory operand of `size` bytes.
    fn address(&self, operand: u32, size: usize, kind: Kind) -> Result<u64, Error<M::Fault>> {
        self.linear(self.segment(), self.offset(operand)?, size, kind)
    }

    fn linear(&self, segment: Segment, offset: u64, size: usize, kind: Kind) -> Result<u64, Error<M::Fault>> {
        self.machine.linear(segment, offset, size, kind).map_err(Error::Fault)
    }

    fn probe(&mut self, linear: u64, size: usize, kind: Kind) -> Result<(), Error<M::Fault>> {
        self.machine.probe(linear, size, kind).map_err(Error::Fault)
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
                let linear = self.address(operand, size, Kind::Read)?;
                self.load(linear, size)
            }
            _ => self
                .instruction
                .try_immediate(operand)
                .map(|value| value & mask(size))
                .map_err(|_| Error::Unsupported),
        }
    }

    /// An operand that will be written: memory is read only where it can be written, too.
    fn get_to_change(&mut self, operand: u32, size: usize) -> Result<u64, Error<M::Fault>> {
        if self.instruction.op_kind(operand) == OpKind::Memory {
            let linear = self.address(operand, size, Kind::Write)?;
            self.probe(linear, size, Kind::Write)?;
        }
        self.get(operand, size)
    }

    fn put(&mut self, operand: u32, size: usize, value: u64) -> Result<(), Error<M::Fault>> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.set_register(self.instruction.op_register(operand), value),
            OpKind::Memory => {
                let linear = self.address(operand, size, Kind::Write)?;
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
        let left = if keep { self.get_to_change(0, size) } else { self.get(0, size) }?;
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
        let value = self.get_to_change(0, size)?;
        let (result, flags) = operation(size, value, self.machine.rflags());
        self.put(0, size, result)?;
        self.machine.set_rflags(flags);
        Ok(true)
    }

    fn exchange(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let left = self.get_to_change(0, size)?;
        let right = self.get_to_change(1, size)?;
        // Memory first: if it fails, the register must be as it was.
        let memory = if self.instruction.op_kind(0) == OpKind::Memory { 0 } else { 1 };
        let (first, second) = if memory == 0 { (right, left) } else { (left, right) };
        self.put(memory, size, first)?;
        self.put(1 - memory, size, second)?;
        Ok(true)
    }

    fn exchange_add(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let left = self.get_to_change(0, size)?;
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
        let old = self.get_to_change(0, size)?;
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
        let kind = if self.instruction.mnemonic() == Mnemonic::Bt { Kind::Read } else { Kind::Write };
        let mut linear = 0;
        let word = if memory {
            let mut offset = self.offset(0)?;
            if self.instruction.op_kind(1) == OpKind::Register {
                let words = (sign_extend(index, size) as i64).div_euclid(bits as i64);
                offset = offset.wrapping_add_signed(words.wrapping_mul(size as i64)) & self.address_mask();
            }
            linear = self.linear(self.segment(), offset, size, kind)?;
            self.probe(linear, size, kind)?;
            self.load(linear, size)?
        } else {
            self.get(0, size)?
        };
        let bit = 1 << (index % bits);
        let changed = change(word, bit);
        if kind == Kind::Write {
            if memory { self.store(linear, size, changed)? } else { self.put(0, size, changed)? }
        }
        let flags = self.machine.rflags() & !CF | if word & bit != 0 { CF } else { 0 };
        self.machine.set_rflags(flags);
        Ok(true)
    }

    /// Bits of an offset that count, by the size of the registers that make it up.
    fn address_mask(&self) -> u64 {
        let instruction = self.instruction;
        match (instruction.memory_base(), instruction.memory_index()) {
            (Register::None, Register::None) => mask(instruction.memory_displ_size().max(2) as usize),
            (Register::None, index) => mask(index.size()),
            (base, _) => mask(base.size()),
        }
    }

    /// Where the stack pointer is after it moved by `delta`.
    fn moved_stack(&self, delta: i64) -> u64 {
        let old = self.machine.gpr(4);
        let new = old.wrapping_add_signed(delta);
        match self.machine.stack_bits() {
            64 => new,
            32 => new & 0xffff_ffff,
            _ => old & !0xffff | new & 0xffff,
        }
    }

    /// Linear address of `size` bytes of the stack.
    fn stack(&self, pointer: u64, size: usize, kind: Kind) -> Result<u64, Error<M::Fault>> {
        self.linear(Segment::Ss, pointer & mask(self.machine.stack_bits() as usize / 8), size, kind)
    }

    fn push(&mut self) -> Done<M> {
        let size = self.instruction.stack_pointer_increment().unsigned_abs() as usize;
        if !matches!(size, 2 | 4 | 8) {
            return Err(Error::Unsupported);
        }
        let pointer = self.moved_stack(-(size as i64));
        if self.instruction.op_kind(0) == OpKind::Memory {
            let from = self.address(0, size, Kind::Read)?;
            self.probe(from, size, Kind::Read)?;
        }
        let linear = self.stack(pointer, size, Kind::Write)?;
        self.probe(linear, size, Kind::Write)?;
        let value = self.get(0, size)?;
        self.store(linear, size, value)?;
        self.machine.set_gpr(4, pointer);
        Ok(true)
    }

    fn pop(&mut self) -> Done<M> {
        let size = self.size(0)?;
        let linear = self.stack(self.machine.gpr(4), size, Kind::Read)?;
        let before = self.machine.gpr(4);
        // An address based on RSP is computed after it moved (APM vol 3, POP).
        self.machine.set_gpr(4, self.moved_stack(size as i64));
        self.pop_from(linear, size).inspect_err(|_| self.machine.set_gpr(4, before))
    }

    fn pop_from(&mut self, linear: u64, size: usize) -> Done<M> {
        if self.instruction.op_kind(0) == OpKind::Memory {
            self.probe(linear, size, Kind::Read)?;
            let to = self.address(0, size, Kind::Write)?;
            self.probe(to, size, Kind::Write)?;
        }
        let value = self.load(linear, size)?;
        self.put(0, size, value)?;
        Ok(true)
    }

    // --- vector registers -------------------------------------------------------------------

    /// The number of an operand that is an XMM register.
    fn xmm(&self, operand: u32) -> Option<usize> {
        let register = self.instruction.op_register(operand);
        (self.is_register(operand) && register.is_xmm())
            .then(|| register.number())
            .filter(|number| *number < 16)
    }

    /// Moves the whole of an XMM register from or to memory.
    fn move_vector(&mut self, aligned: bool) -> Done<M> {
        let store = self.instruction.op_kind(0) == OpKind::Memory;
        let (operand, kind) = if store { (0, Kind::Write) } else { (1, Kind::Read) };
        let index = self.xmm(1 - operand).ok_or(Error::Unsupported)?;
        if self.instruction.op_kind(operand) != OpKind::Memory {
            return Err(Error::Unsupported);
        }
        let linear = self.address(operand, 16, kind)?;
        if aligned && !linear.is_multiple_of(16) {
            return Err(Error::Fault(Fault::GeneralProtection.into()));
        }
        if store {
            let bytes = self.machine.xmm(index).to_le_bytes();
            self.machine.write(linear, &bytes).map_err(Error::Fault)?;
        } else {
            let mut bytes = [0; 16];
            self.machine.read(linear, &mut bytes).map_err(Error::Fault)?;
            self.machine.set_xmm(index, u128::from_le_bytes(bytes));
        }
        Ok(true)
    }

    /// Moves the lowest 4 or 8 bytes of an XMM register to memory, or memory there and zeros above.
    fn move_scalar(&mut self) -> Done<M> {
        let store = self.instruction.op_kind(0) == OpKind::Memory;
        let operand = if store { 0 } else { 1 };
        let index = self.xmm(1 - operand).ok_or(Error::Unsupported)?;
        let size = self.memory_size(operand)?;
        if store {
            let value = self.machine.xmm(index) as u64;
            self.put(0, size, value)?;
        } else {
            let value = self.get(1, size)?;
            self.machine.set_xmm(index, value.into());
        }
        Ok(true)
    }

    /// Moves one half of an XMM register, which begins at bit `shift`, to or from memory.
    fn move_half(&mut self, shift: u32) -> Done<M> {
        let store = self.instruction.op_kind(0) == OpKind::Memory;
        let operand = if store { 0 } else { 1 };
        let index = self.xmm(1 - operand).ok_or(Error::Unsupported)?;
        let size = self.memory_size(operand)?;
        let old = self.machine.xmm(index);
        if store {
            self.put(0, size, (old >> shift) as u64)?;
        } else {
            let value = self.get(1, size)?;
            let kept = old & !(u128::from(u64::MAX) << shift);
            self.machine.set_xmm(index, kept | u128::from(value) << shift);
        }
        Ok(true)
    }

    /// Bytes of an operand that must be memory.
    fn memory_size(&self, operand: u32) -> Result<usize, Error<M::Fault>> {
        match self.instruction.op_kind(operand) {
            OpKind::Memory => self.size(operand),
            _ => Err(Error::Unsupported),
        }
    }

    // --- strings ----------------------------------------------------------------------------

    /// What all string instructions have.
    fn string_form(&self) -> Result<StringForm, Error<M::Fault>> {
        let size = self.instruction.memory_size().size();
        if !matches!(size, 1 | 2 | 4 | 8) {
            return Err(Error::Unsupported);
        }
        let kinds = [self.instruction.op0_kind(), self.instruction.op1_kind()];
        let has = |kind| kinds.contains(&kind);
        let address_size = if has(OpKind::MemoryESDI) || has(OpKind::MemorySegSI) {
            2
        } else if has(OpKind::MemoryESEDI) || has(OpKind::MemorySegESI) {
            4
        } else {
            8
        };
        let flags = self.machine.rflags();
        Ok(StringForm {
            size,
            address_size,
            delta: if flags & DF != 0 { (size as u64).wrapping_neg() } else { size as u64 },
            repeats: self.instruction.has_rep_prefix() || self.instruction.has_repne_prefix(),
            // A single step is one element.
            batch: if flags & TF != 0 { 1 } else { BATCH },
            accumulator: match size {
                1 => Register::AL,
                2 => Register::AX,
                4 => Register::EAX,
                _ => Register::RAX,
            },
        })
    }

    /// Linear address of the source, which a prefix may move to another segment, and whether it can be read.
    fn source(&mut self, form: &StringForm) -> Result<u64, Error<M::Fault>> {
        let offset = self.machine.gpr(6) & mask(form.address_size);
        let linear = self.linear(self.segment(), offset, form.size, Kind::Read)?;
        self.probe(linear, form.size, Kind::Read)?;
        Ok(linear)
    }

    /// Linear address of the destination, or of the second operand of a comparison, and whether it can be used so.
    fn destination(&mut self, form: &StringForm, kind: Kind) -> Result<u64, Error<M::Fault>> {
        let offset = self.machine.gpr(7) & mask(form.address_size);
        let linear = self.linear(Segment::Es, offset, form.size, kind)?;
        self.probe(linear, form.size, kind)?;
        Ok(linear)
    }

    /// STOS, LODS and MOVS.
    fn string(&mut self, source: bool, destination: bool) -> Done<M> {
        let form = self.string_form()?;
        self.repeat(&form, |step| {
            // Both are known to be there before anything is read: what a register gives may come but once.
            let from = if source { Some(step.source(&form)?) } else { None };
            let to = if destination { Some(step.destination(&form, Kind::Write)?) } else { None };
            let value = match from {
                Some(from) => step.load(from, form.size)?,
                None => step.machine.gpr(0),
            };
            match to {
                Some(to) => step.store(to, form.size, value)?,
                None => step.set_register(form.accumulator, value)?,
            }
            step.advance(&form, from.is_some(), to.is_some());
            Ok(true)
        })
    }

    /// CMPS, and SCAS, whose first operand is the accumulator.
    fn compare_strings(&mut self, source: bool) -> Done<M> {
        let form = self.string_form()?;
        let while_equal = !self.instruction.has_repne_prefix();
        let before = self.machine.rflags();
        self.repeat(&form, |step| {
            // Processors look at the operand in ES first.
            let to = step.destination(&form, Kind::Read)?;
            let from = if source { Some(step.source(&form)?) } else { None };
            let right = step.load(to, form.size)?;
            let left = match from {
                Some(from) => step.load(from, form.size)?,
                None => step.machine.gpr(0) & mask(form.size),
            };
            let (_, flags) = apply(Operation::Sub, form.size, left, right, before);
            // Each element changes them: a fault finds those of the last one, as on AMD's processors. Intel's put back what was
            // there before the first (SDM vol. 2, REP).
            step.machine.set_rflags(flags);
            step.advance(&form, source, true);
            Ok((flags & ZF != 0) == while_equal)
        })
    }

    /// Executes an element once, or as often as RCX and the element say; at most a batch.
    fn repeat(&mut self, form: &StringForm, mut element: impl FnMut(&mut Self) -> Done<M>) -> Done<M> {
        if !form.repeats {
            return element(self).map(|_| true);
        }
        for _ in 0..form.batch {
            if self.machine.gpr(1) & mask(form.address_size) == 0 {
                return Ok(true);
            }
            let goes_on = element(self)?;
            self.add(1, form.address_size, u64::MAX);
            if !goes_on {
                return Ok(true);
            }
        }
        Ok(self.machine.gpr(1) & mask(form.address_size) == 0)
    }

    /// Moves the index registers past an element.
    fn advance(&mut self, form: &StringForm, source: bool, destination: bool) {
        if source {
            self.add(6, form.address_size, form.delta);
        }
        if destination {
            self.add(7, form.address_size, form.delta);
        }
    }

    /// Adds to the addressed part of a register.
    fn add(&mut self, index: usize, address_size: usize, delta: u64) {
        let old = self.machine.gpr(index);
        let new = old.wrapping_add(delta);
        let merged = match address_size {
            2 => old & !0xffff | new & 0xffff,
            size => new & mask(size),
        };
        self.machine.set_gpr(index, merged);
    }
}

/// A string instruction: bytes of an element and of an address, and how it repeats.
struct StringForm {
    size: usize,
    address_size: usize,
    delta: u64,
    repeats: bool,
    batch: u64,
    accumulator: Register,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// 4 KiB of memory at 0x1000, and a log of accesses.
    struct Toy {
        gpr: [u64; 16],
        xmm: [u128; 16],
        rflags: u64,
        rip: u64,
        bitness: u32,
        read_only: bool,
        memory: Vec<u8>,
        log: Vec<(bool, u64, usize)>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Refusal {
        Missing(u64),
        Fault(Fault),
    }

    impl From<Fault> for Refusal {
        fn from(fault: Fault) -> Self {
            Self::Fault(fault)
        }
    }

    impl Toy {
        fn new() -> Self {
            let mut gpr = [0; 16];
            gpr[3] = 0x1100;
            Self {
                gpr,
                xmm: [0; 16],
                rflags: 2,
                rip: 0x400,
                bitness: 64,
                read_only: false,
                memory: vec![0; 4096],
                log: Vec::new(),
            }
        }

        fn run(&mut self, code: &[u8]) -> Result<(), Error<Refusal>> {
            step(self, code)
        }

        fn place(&self, at: u64, len: usize) -> Result<core::ops::Range<usize>, Refusal> {
            let start = at.wrapping_sub(0x1000) as usize;
            match start.checked_add(len) {
                Some(end) if end <= self.memory.len() => Ok(start..end),
                _ => Err(Refusal::Missing(at)),
            }
        }

        fn word(&self, at: u64) -> u64 {
            u64::from_le_bytes(self.memory[at as usize - 0x1000..][..8].try_into().unwrap())
        }
    }

    impl Machine for Toy {
        type Fault = Refusal;
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
        fn retire(&mut self, length: u64) {
            self.rip += length;
        }
        fn xmm(&self, index: usize) -> u128 {
            self.xmm[index]
        }
        fn set_xmm(&mut self, index: usize, value: u128) {
            self.xmm[index] = value;
        }
        fn bitness(&self) -> u32 {
            self.bitness
        }
        fn stack_bits(&self) -> u32 {
            self.bitness
        }
        fn linear(&self, segment: Segment, offset: u64, _: usize, _: Kind) -> Result<u64, Refusal> {
            let base = match segment {
                Segment::Gs => 0x200,
                Segment::Ss => 0x10,
                _ => 0,
            };
            Ok(offset.wrapping_add(base))
        }
        fn probe(&mut self, at: u64, len: usize, kind: Kind) -> Result<(), Refusal> {
            match self.place(at, len) {
                Ok(_) if kind == Kind::Write && self.read_only => Err(Refusal::Missing(at)),
                other => other.map(|_| ()),
            }
        }
        fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<(), Refusal> {
            self.log.push((false, at, buffer.len()));
            let place = self.place(at, buffer.len())?;
            buffer.copy_from_slice(&self.memory[place]);
            Ok(())
        }
        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refusal> {
            self.probe(at, bytes.len(), Kind::Write)?;
            self.log.push((true, at, bytes.len()));
            let place = self.place(at, bytes.len())?;
            self.memory[place].copy_from_slice(bytes);
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
        assert_eq!(toy.run(&[0x01, 0x03]), Err(Error::Fault(Refusal::Missing(0x10))));
        toy.gpr[4] = 0x1200;
        assert_eq!(toy.run(&[0x8f, 0x03]), Err(Error::Fault(Refusal::Missing(0x10)))); // pop [rbx]
        assert_eq!((toy.rip, toy.rflags, toy.gpr[4]), (0x400, 2, 0x1200));
    }

    #[test]
    fn nothing_is_read_where_the_result_cannot_be_written() {
        // What is read may be a register that gives its contents once.
        for code in [
            &[0x01, 0x03][..],         // add [rbx], eax
            &[0xff, 0x03],             // inc dword [rbx]
            &[0x87, 0x03],             // xchg [rbx], eax
            &[0x0f, 0xc1, 0x03],       // xadd [rbx], eax
            &[0x0f, 0xb1, 0x03],       // cmpxchg [rbx], eax
            &[0x0f, 0xba, 0x2b, 0x03], // bts dword [rbx], 3
            &[0xa5],                   // movsd
            &[0xff, 0x33],             // push qword [rbx]
            &[0x8f, 0x03],             // pop qword [rbx]
        ] {
            let mut toy = Toy::new();
            (toy.gpr[4], toy.gpr[6], toy.gpr[7]) = (0x1800, 0x1200, 0x1300);
            toy.read_only = true;
            assert!(matches!(toy.run(code), Err(Error::Fault(Refusal::Missing(_)))), "{code:02x?}");
            assert_eq!((toy.log.len(), toy.gpr[4], toy.rip), (0, 0x1800, 0x400), "{code:02x?}");
        }
    }

    #[test]
    fn comparisons_of_strings_end_where_they_must() {
        let mut toy = Toy::new();
        toy.memory[0x100..0x104].copy_from_slice(b"abcd");
        toy.memory[0x200..0x204].copy_from_slice(b"abxd");
        (toy.gpr[1], toy.gpr[6], toy.gpr[7]) = (4, 0x1100, 0x1200);
        toy.run(&[0xf3, 0xa6]).unwrap(); // repe cmpsb
        assert_eq!((toy.gpr[1], toy.gpr[6], toy.gpr[7]), (1, 0x1103, 0x1203));
        assert_eq!(toy.rflags & (CF | ZF), CF, "c is below x");
        (toy.gpr[0], toy.gpr[1], toy.gpr[7]) = (u64::from(b'd'), 0x10, 0x1200);
        toy.run(&[0xf2, 0xae]).unwrap(); // repne scasb
        assert_eq!((toy.gpr[1], toy.gpr[7], toy.rflags & ZF), (0xc, 0x1204, ZF));
        // Not repeated, and backward; the flags are those of the first less the second.
        toy.rflags |= DF;
        (toy.gpr[6], toy.gpr[7]) = (0x1202, 0x1102);
        toy.run(&[0x66, 0xa7]).unwrap(); // cmpsw
        assert_eq!((toy.gpr[6], toy.gpr[7], toy.rflags & (CF | ZF)), (0x1200, 0x1100, 0));
        toy.rflags &= !DF;
        // A count of zero compares nothing and leaves the flags.
        (toy.gpr[1], toy.rflags) = (0, 2);
        toy.run(&[0xf3, 0xa6]).unwrap();
        assert_eq!((toy.rflags, toy.gpr[6]), (2, 0x1200));
    }

    #[test]
    fn a_string_stops_where_memory_ends_and_keeps_what_it_did() {
        let mut toy = Toy::new();
        (toy.gpr[1], toy.gpr[6], toy.gpr[7]) = (8, 0x1100, 0x1ff4);
        // rep movsd
        assert_eq!(toy.run(&[0xf3, 0xa5]), Err(Error::Fault(Refusal::Missing(0x2000))));
        assert_eq!((toy.gpr[1], toy.gpr[6], toy.gpr[7], toy.rip), (5, 0x110c, 0x2000, 0x400));
        toy.rflags |= ZF;
        (toy.gpr[1], toy.gpr[7]) = (4, 0x1fff);
        // repne scasb, of which the first is no match
        toy.memory[0xfff] = 0xcc;
        assert_eq!(toy.run(&[0xf2, 0xae]), Err(Error::Fault(Refusal::Missing(0x2000))));
        assert_eq!((toy.gpr[1], toy.gpr[7], toy.rflags & ZF), (3, 0x2000, 0));
        // A single step is one element.
        toy.rflags |= TF;
        (toy.gpr[1], toy.gpr[7]) = (3, 0x1000);
        toy.run(&[0xf3, 0xab]).unwrap(); // rep stosd
        assert_eq!((toy.gpr[1], toy.rip), (2, 0x400));
    }

    #[test]
    fn a_string_counts_in_the_width_of_its_addresses() {
        let mut toy = Toy::new();
        let set = |toy: &mut Toy| {
            toy.gpr[1] = 0xabcd_0000_0002;
            (toy.gpr[6], toy.gpr[7]) = (0x1_0000_1100, 0x1_0000_1200);
        };
        set(&mut toy);
        toy.run(&[0xf3, 0x67, 0xa4]).unwrap(); // rep movsb [edi], [esi]
        assert_eq!((toy.gpr[1], toy.gpr[6], toy.gpr[7]), (0, 0x1102, 0x1202));
        set(&mut toy);
        toy.bitness = 16;
        toy.run(&[0xf3, 0xa4]).unwrap(); // rep movsb [di], [si]
        assert_eq!((toy.gpr[1], toy.gpr[6], toy.gpr[7]), (0xabcd_0000_0000, 0x1_0000_1102, 0x1_0000_1202));
    }

    #[test]
    fn vector_registers_move_as_a_whole_or_in_part() {
        let mut toy = Toy::new();
        let value = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128;
        toy.xmm[9] = value;
        toy.run(&[0x44, 0x0f, 0x11, 0x0b]).unwrap(); // movups [rbx], xmm9
        toy.run(&[0x66, 0x0f, 0x6f, 0x13]).unwrap(); // movdqa xmm2, [rbx]
        assert_eq!((toy.xmm[2], &toy.log[..]), (value, &[(true, 0x1100, 16), (false, 0x1100, 16)][..]));
        toy.run(&[0xf3, 0x0f, 0x7e, 0x1b]).unwrap(); // movq xmm3, [rbx]
        assert_eq!(toy.xmm[3], value & u128::from(u64::MAX));
        toy.run(&[0x66, 0x0f, 0x6e, 0x1b]).unwrap(); // movd xmm3, [rbx]
        assert_eq!(toy.xmm[3], value & 0xffff_ffff);
        toy.run(&[0x66, 0x44, 0x0f, 0x17, 0x0b]).unwrap(); // movhpd [rbx], xmm9
        assert_eq!(toy.word(0x1100), (value >> 64) as u64);
        toy.run(&[0x0f, 0x12, 0x13]).unwrap(); // movlps xmm2, [rbx]
        assert_eq!(toy.xmm[2], value >> 64 << 64 | value >> 64);
        toy.run(&[0xf2, 0x44, 0x0f, 0x11, 0x4b, 0x08]).unwrap(); // movsd [rbx+8], xmm9
        assert_eq!(toy.word(0x1108), value as u64);
        toy.gpr[3] += 8;
        let fault = Err(Error::Fault(Refusal::Fault(Fault::GeneralProtection)));
        for code in [&[0x0f, 0x28, 0x03][..], &[0x0f, 0x29, 0x03], &[0x66, 0x0f, 0xe7, 0x03]] {
            assert_eq!(toy.run(code), fault, "{code:02x?} wants a multiple of 16");
        }
        toy.run(&[0x0f, 0x10, 0x03]).unwrap(); // movups xmm0, [rbx]
        // movq mm0, [rbx]; movq xmm0, xmm1
        assert_eq!(toy.run(&[0x0f, 0x6f, 0x03]), Err(Error::Unsupported));
        assert_eq!(toy.run(&[0xf3, 0x0f, 0x7e, 0xc1]), Err(Error::Unsupported));
    }

    #[test]
    fn the_stack_is_in_its_own_segment_and_of_its_own_width() {
        let mut toy = Toy::new();
        toy.gpr[4] = 0x1808;
        toy.run(&[0x6a, 0xff]).unwrap(); // push -1
        toy.run(&[0xff, 0x34, 0x24]).unwrap(); // push [rsp]
        let expected = [(true, 0x1810, 8), (false, 0x1810, 8), (true, 0x1808, 8)];
        assert_eq!((&toy.log[..], toy.gpr[4]), (&expected[..], 0x17f8));
        assert_eq!(toy.word(0x1808), u64::MAX);
        toy.run(&[0x66, 0x68, 0x34, 0x12]).unwrap(); // push 0x1234 (16 bits)
        assert_eq!((toy.gpr[4], toy.word(0x1806) as u16), (0x17f6, 0x1234));
        // In 64-bit mode a prefix of SS or DS changes nothing.
        toy.log.clear();
        toy.run(&[0x36, 0x8b, 0x03]).unwrap(); // mov eax, ss:[rbx]
        toy.run(&[0x3e, 0x8b, 0x04, 0x24]).unwrap(); // mov eax, ds:[rsp]
        assert_eq!(toy.log, [(false, 0x1100, 4), (false, 0x1806, 4)]);
        (toy.bitness, toy.gpr[4]) = (16, 0xabcd_1800);
        toy.run(&[0x6a, 0x01]).unwrap();
        assert_eq!((toy.gpr[4], toy.log[2]), (0xabcd_17fe, (true, 0x180e, 2)));
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
        for code in
            [&[0x0f, 0x0b][..], &[0x0f, 0x58, 0x03], &[0xc5, 0xf8, 0x10, 0x03], &[0x89], &[0xff, 0xff], &[]]
        {
            assert_eq!(Toy::new().run(code), Err(Error::Unsupported));
        }
    }
}
