//! Putting a kernel into guest memory.
//!
//! [`load`] recognizes a Linux bzImage ([`linux`]) or an ELF file with a PVH note or a multiboot
//! header ([`elf`]), puts it and its ramdisk where its boot protocol wants them, and says how the
//! first processor must start. Nothing in the file is trusted: every offset and size is checked.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod elf;
pub mod linux;

use core::fmt;
use sluice_memory::{Gpa, OutOfRange};

/// Guest memory while it is filled.
pub trait GuestWrite {
    /// Copies bytes in.
    ///
    /// # Errors
    /// A part of the range is not memory of the guest.
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange>;
}

/// A piece of RAM, as the guest is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRange {
    /// First byte.
    pub start: Gpa,
    /// Bytes.
    pub len: u64,
}

impl RamRange {
    fn end(&self) -> u64 {
        self.start.as_u64().saturating_add(self.len)
    }
}

/// What a kernel is told.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// Initial ramdisk.
    pub initrd: Option<&'a [u8]>,
    /// Command line.
    pub cmdline: &'a str,
    /// RAM, in rising order.
    pub ram: &'a [RamRange],
    /// ACPI root pointer.
    pub rsdp: Option<Gpa>,
}

/// State in which the first processor enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit, paging on, flat segments.
    Long,
    /// 32-bit protected mode, paging off, flat segments.
    Protected32,
}

/// How the first processor must start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Processor mode.
    pub mode: Mode,
    /// First instruction.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// RAX.
    pub rax: u64,
    /// RBX.
    pub rbx: u64,
    /// RSI.
    pub rsi: u64,
    /// Page tables, in long mode.
    pub cr3: Gpa,
    /// Descriptor table: code at 0x10, data at 0x18.
    pub gdt_base: Gpa,
    /// Its limit.
    pub gdt_limit: u16,
}

/// What kind of kernel a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// Linux bzImage with a 64-bit entry.
    Linux,
    /// ELF with a PVH entry note.
    Pvh,
    /// ELF with a multiboot header.
    Multiboot,
}

/// Why a kernel cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// Neither a bzImage nor an ELF file.
    UnknownFormat,
    /// The file ends before what its headers promise.
    Truncated,
    /// A Linux boot protocol older than 2.12, which has no 64-bit entry.
    OldProtocol,
    /// A Linux kernel without a 64-bit entry (XLF_KERNEL_64).
    NoEntry64,
    /// An ELF file for another machine.
    WrongMachine,
    /// An ELF file with neither a PVH note nor a multiboot header.
    NoEntryPoint,
    /// The kernel does not fit the guest's memory.
    KernelTooLarge,
    /// The ramdisk does not fit beside the kernel.
    InitrdTooLarge,
    /// The command line is longer than the kernel takes.
    CmdlineTooLong,
    /// A part of it would be outside the guest's memory.
    OutOfRange,
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::UnknownFormat => "it is neither a Linux bzImage nor an ELF file",
            Self::Truncated => "the file ends too early",
            Self::OldProtocol => "its Linux boot protocol is older than 2.12",
            Self::NoEntry64 => "it is not a 64-bit Linux kernel",
            Self::WrongMachine => "it is an ELF file for another machine than x86",
            Self::NoEntryPoint => "it has neither a PVH note nor a multiboot header",
            Self::KernelTooLarge => "it does not fit the domain's memory",
            Self::InitrdTooLarge => "the initrd does not fit the domain's memory beside it",
            Self::CmdlineTooLong => "its command line is too long",
            Self::OutOfRange => "a part of it would be outside the domain's memory",
        })
    }
}

impl From<OutOfRange> for LoadError {
    fn from(_: OutOfRange) -> Self {
        Self::OutOfRange
    }
}

/// Says what a file is without loading it.
///
/// # Errors
/// It is nothing that [`load`] could start.
pub fn check(kernel: &[u8]) -> Result<KernelKind, LoadError> {
    if elf::is_elf(kernel) {
        elf::kind(kernel)
    } else {
        linux::Header::parse(kernel).map(|_| KernelKind::Linux)
    }
}

/// Loads a kernel of any known kind.
///
/// # Errors
/// See [`LoadError`]; guest memory may have been written to.
pub fn load(
    kernel: &[u8],
    parameters: &Parameters<'_>,
    memory: &mut impl GuestWrite,
) -> Result<Entry, LoadError> {
    if elf::is_elf(kernel) {
        elf::load(kernel, parameters, memory)
    } else {
        linux::load(kernel, parameters, memory)
    }
}

/// Where the initial ramdisk goes: as high as possible below `limit`, above `floor`, in one piece of RAM.
fn place_initrd(initrd: &[u8], ram: &[RamRange], floor: u64, limit: u64) -> Result<Gpa, LoadError> {
    let len = initrd.len() as u64;
    ram.iter()
        .rev()
        .filter_map(|range| {
            let start = range.end().min(limit).checked_sub(len)? & !0xfff;
            (start >= range.start.as_u64() && start >= floor).then_some(Gpa::new(start))
        })
        .next()
        .ok_or(LoadError::InitrdTooLarge)
}

/// A GDT with flat code at 0x10 and data at 0x18, in the given processor mode.
fn write_gdt(memory: &mut impl GuestWrite, mode: Mode) -> Result<(Gpa, u16), OutOfRange> {
    const AT: Gpa = Gpa::new(0x500);
    let code: u64 = match mode {
        Mode::Long => 0x00af_9b00_0000_ffff,
        Mode::Protected32 => 0x00cf_9b00_0000_ffff,
    };
    let table = [0, 0, code, 0x00cf_9300_0000_ffff];
    for (index, entry) in table.iter().enumerate() {
        memory.write(Gpa::new(AT.as_u64() + index as u64 * 8), &entry.to_le_bytes())?;
    }
    Ok((AT, 31))
}

/// Little-endian fields of a file; out of range is `Truncated`.
fn field<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N], LoadError> {
    let end = at.checked_add(N).ok_or(LoadError::Truncated)?;
    file.get(at..end).and_then(|bytes| bytes.try_into().ok()).ok_or(LoadError::Truncated)
}

fn u16_at(file: &[u8], at: usize) -> Result<u16, LoadError> {
    field(file, at).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: usize) -> Result<u32, LoadError> {
    field(file, at).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], at: usize) -> Result<u64, LoadError> {
    field(file, at).map(u64::from_le_bytes)
}
