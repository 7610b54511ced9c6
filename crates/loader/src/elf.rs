//! ELF kernels: with a PVH entry note, or with a multiboot header.
//!
//! Source: System V ABI (ELF-64 and ELF-32 headers), Xen docs/misc/pvh.pandoc and
//! public/arch-x86/hvm/start_info.h (PVH), GNU Multiboot Specification 0.6.96.

use crate::{
    Entry, GuestWrite, KernelKind, LoadError, Mode, Parameters, field, place_initrd, u16_at, u32_at, u64_at,
    write_gdt,
};
use sluice_memory::Gpa;

const MACHINE_386: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NOTE_PHYS32_ENTRY: u32 = 18;
const PVH_MAGIC: u32 = 0x336e_c578;
const MULTIBOOT_HEADER: u32 = 0x1bad_b002;
const MULTIBOOT_LOADER: u32 = 0x2bad_b002;

/// Where the start information goes.
const INFO: u64 = 0x6000;
const MODULES: u64 = 0x6100;
const MEMORY_MAP: u64 = 0x6200;
const CMDLINE: u64 = 0x2_0000;
const CMDLINE_MAX: usize = 4096;

/// Whether a file begins like an ELF file.
pub fn is_elf(file: &[u8]) -> bool {
    file.starts_with(b"\x7fELF")
}

struct Segment {
    kind: u32,
    offset: usize,
    physical: u64,
    file_size: usize,
    memory_size: u64,
}

struct Elf<'a> {
    file: &'a [u8],
    wide: bool,
    table: usize,
    entry_size: usize,
    count: u16,
    entry: u64,
}

impl<'a> Elf<'a> {
    fn parse(file: &'a [u8]) -> Result<Self, LoadError> {
        let [class] = field(file, 4)?;
        let wide = class == 2;
        if !matches!(u16_at(file, 18)?, MACHINE_386 | MACHINE_X86_64) {
            return Err(LoadError::WrongMachine);
        }
        let (entry, table, entry_size, count) = if wide {
            (u64_at(file, 24)?, u64_at(file, 32)?, u16_at(file, 54)?, u16_at(file, 56)?)
        } else {
            let table = u64::from(u32_at(file, 28)?);
            (u64::from(u32_at(file, 24)?), table, u16_at(file, 42)?, u16_at(file, 44)?)
        };
        let table = usize::try_from(table).map_err(|_| LoadError::Truncated)?;
        Ok(Self { file, wide, table, entry_size: usize::from(entry_size), count, entry })
    }

    fn segments(&self) -> impl Iterator<Item = Result<Segment, LoadError>> + '_ {
        (0..usize::from(self.count)).map(|index| {
            let at = index
                .checked_mul(self.entry_size)
                .and_then(|offset| self.table.checked_add(offset))
                .ok_or(LoadError::Truncated)?;
            let word = |offset: usize| u64_at(self.file, at.saturating_add(offset));
            let half = |offset: usize| u32_at(self.file, at.saturating_add(offset)).map(u64::from);
            let (offset, physical, file_size, memory_size) = if self.wide {
                (word(8)?, word(24)?, word(32)?, word(40)?)
            } else {
                (half(4)?, half(12)?, half(16)?, half(20)?)
            };
            let size = |value: u64| usize::try_from(value).map_err(|_| LoadError::Truncated);
            Ok(Segment {
                kind: u32_at(self.file, at)?,
                offset: size(offset)?,
                physical,
                file_size: size(file_size)?,
                memory_size,
            })
        })
    }

    fn contents(&self, segment: &Segment) -> Result<&'a [u8], LoadError> {
        let end = segment.offset.checked_add(segment.file_size).ok_or(LoadError::Truncated)?;
        self.file.get(segment.offset..end).ok_or(LoadError::Truncated)
    }

    /// The 32-bit entry point that a Xen note names.
    fn pvh_entry(&self) -> Result<Option<u32>, LoadError> {
        for segment in self.segments() {
            let segment = segment?;
            if segment.kind != PT_NOTE {
                continue;
            }
            let notes = self.contents(&segment)?;
            let mut at = 0;
            while let (Ok(name_size), Ok(desc_size)) = (u32_at(notes, at), u32_at(notes, at + 4)) {
                let padded =
                    |size: u32| (size as usize).checked_next_multiple_of(4).ok_or(LoadError::Truncated);
                let name = at + 12;
                let desc = name.checked_add(padded(name_size)?).ok_or(LoadError::Truncated)?;
                if u32_at(notes, at + 8)? == NOTE_PHYS32_ENTRY && notes.get(name..name + 4) == Some(b"Xen\0")
                {
                    return u32_at(notes, desc).map(Some);
                }
                at = desc.checked_add(padded(desc_size)?).ok_or(LoadError::Truncated)?;
            }
        }
        Ok(None)
    }

    /// Whether a multiboot header is in the first 8 KiB (specification 3.1.1).
    fn is_multiboot(&self) -> bool {
        let head = self.file.get(..self.file.len().min(8192)).unwrap_or(self.file);
        head.chunks_exact(4).enumerate().any(|(index, word)| {
            word == MULTIBOOT_HEADER.to_le_bytes()
                && match (u32_at(head, index * 4 + 4), u32_at(head, index * 4 + 8)) {
                    (Ok(flags), Ok(sum)) => MULTIBOOT_HEADER.wrapping_add(flags).wrapping_add(sum) == 0,
                    _ => false,
                }
        })
    }
}

/// What kind of kernel an ELF file is.
///
/// # Errors
/// It is none that can be started.
pub fn kind(file: &[u8]) -> Result<KernelKind, LoadError> {
    let elf = Elf::parse(file)?;
    if elf.pvh_entry()?.is_some() {
        Ok(KernelKind::Pvh)
    } else if elf.is_multiboot() {
        Ok(KernelKind::Multiboot)
    } else {
        Err(LoadError::NoEntryPoint)
    }
}

/// Loads an ELF kernel.
///
/// # Errors
/// See [`LoadError`].
pub fn load(
    file: &[u8],
    parameters: &Parameters<'_>,
    memory: &mut impl GuestWrite,
) -> Result<Entry, LoadError> {
    let elf = Elf::parse(file)?;
    let kind = kind(file)?;
    let mut top = 0;
    for segment in elf.segments() {
        let segment = segment?;
        if segment.kind != PT_LOAD {
            continue;
        }
        memory.write(Gpa::new(segment.physical), elf.contents(&segment)?)?;
        let end = segment.physical.checked_add(segment.memory_size).ok_or(LoadError::KernelTooLarge)?;
        top = top.max(end);
    }
    if !parameters.ram.iter().any(|range| top > range.start.as_u64() && top <= range.end()) {
        return Err(LoadError::KernelTooLarge);
    }
    if parameters.cmdline.len() >= CMDLINE_MAX {
        return Err(LoadError::CmdlineTooLong);
    }
    memory.write(Gpa::new(CMDLINE), parameters.cmdline.as_bytes())?;
    memory.write(Gpa::new(CMDLINE + parameters.cmdline.len() as u64), &[0])?;
    let module = match parameters.initrd {
        Some(initrd) => {
            let gpa = place_initrd(initrd, parameters.ram, top, u64::from(u32::MAX))?;
            memory.write(gpa, initrd)?;
            Some((gpa.as_u64(), initrd.len() as u64))
        }
        None => None,
    };
    let (rip, rax) = match kind {
        KernelKind::Pvh => {
            write_start_info(parameters, module, memory)?;
            (elf.pvh_entry()?.map_or(0, u64::from), 0)
        }
        _ => {
            write_multiboot_info(parameters, module, memory)?;
            (elf.entry, u64::from(MULTIBOOT_LOADER))
        }
    };
    let (gdt_base, gdt_limit) = write_gdt(memory, Mode::Protected32)?;
    Ok(Entry {
        mode: Mode::Protected32,
        rip,
        rsp: 0,
        rax,
        rbx: INFO,
        rsi: 0,
        cr3: Gpa::new(0),
        gdt_base,
        gdt_limit,
    })
}

/// `hvm_start_info` version 1, its module list and memory map.
fn write_start_info(
    parameters: &Parameters<'_>,
    module: Option<(u64, u64)>,
    memory: &mut impl GuestWrite,
) -> Result<(), LoadError> {
    let mut info = [0u8; 56];
    let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &PVH_MAGIC.to_le_bytes());
    put(4, &1u32.to_le_bytes());
    put(12, &u32::from(module.is_some()).to_le_bytes());
    put(16, &MODULES.to_le_bytes());
    put(24, &CMDLINE.to_le_bytes());
    put(32, &parameters.rsdp.map_or(0, Gpa::as_u64).to_le_bytes());
    put(40, &MEMORY_MAP.to_le_bytes());
    put(48, &(parameters.ram.len().min(64) as u32).to_le_bytes());
    memory.write(Gpa::new(INFO), &info)?;
    if let Some((start, len)) = module {
        let mut entry = [0u8; 32];
        entry[..8].copy_from_slice(&start.to_le_bytes());
        entry[8..16].copy_from_slice(&len.to_le_bytes());
        memory.write(Gpa::new(MODULES), &entry)?;
    }
    for (index, range) in parameters.ram.iter().take(64).enumerate() {
        let mut entry = [0u8; 24];
        entry[..8].copy_from_slice(&range.start.as_u64().to_le_bytes());
        entry[8..16].copy_from_slice(&range.len.to_le_bytes());
        entry[16..20].copy_from_slice(&1u32.to_le_bytes());
        memory.write(Gpa::new(MEMORY_MAP + index as u64 * 24), &entry)?;
    }
    Ok(())
}

/// Multiboot information: memory, command line, modules, memory map (specification 3.3).
fn write_multiboot_info(
    parameters: &Parameters<'_>,
    module: Option<(u64, u64)>,
    memory: &mut impl GuestWrite,
) -> Result<(), LoadError> {
    const FLAGS: u32 = 1 | 1 << 2 | 1 << 3 | 1 << 6;
    let upper =
        parameters.ram.iter().find(|range| range.start.as_u64() == 0x10_0000).map_or(0, |r| r.len / 1024);
    let count = parameters.ram.len().min(64) as u32;
    let words = [
        FLAGS,
        640,
        upper as u32,
        0,
        CMDLINE as u32,
        u32::from(module.is_some()),
        MODULES as u32,
        0,
        0,
        0,
        0,
        count * 24,
        MEMORY_MAP as u32,
    ];
    for (index, word) in words.iter().enumerate() {
        memory.write(Gpa::new(INFO + index as u64 * 4), &word.to_le_bytes())?;
    }
    if let Some((start, len)) = module {
        let mut entry = [0u8; 16];
        entry[..4].copy_from_slice(&(start as u32).to_le_bytes());
        entry[4..8].copy_from_slice(&((start + len) as u32).to_le_bytes());
        memory.write(Gpa::new(MODULES), &entry)?;
    }
    for (index, range) in parameters.ram.iter().take(64).enumerate() {
        let mut entry = [0u8; 24];
        entry[..4].copy_from_slice(&20u32.to_le_bytes());
        entry[4..12].copy_from_slice(&range.start.as_u64().to_le_bytes());
        entry[12..20].copy_from_slice(&range.len.to_le_bytes());
        entry[20..].copy_from_slice(&1u32.to_le_bytes());
        memory.write(Gpa::new(MEMORY_MAP + index as u64 * 24), &entry)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn elf(note: bool) -> Vec<u8> {
        let mut file = vec![0u8; 512];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[18] = 62;
        file[24..32].copy_from_slice(&0x10_0010u64.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54] = 56;
        file[56] = if note { 1 } else { 0 };
        file[64] = 4;
        file[64 + 8..64 + 16].copy_from_slice(&256u64.to_le_bytes());
        file[64 + 32..64 + 40].copy_from_slice(&20u64.to_le_bytes());
        file[256] = 4;
        file[260] = 4;
        file[264] = 18;
        file[268..272].copy_from_slice(b"Xen\0");
        file[272..276].copy_from_slice(&0x10_0000u32.to_le_bytes());
        file
    }

    #[test]
    fn kinds_are_told_apart() {
        assert_eq!(kind(&elf(true)), Ok(KernelKind::Pvh));
        assert_eq!(kind(&elf(false)), Err(LoadError::NoEntryPoint));
        let mut multiboot = elf(false);
        multiboot[128..132].copy_from_slice(&MULTIBOOT_HEADER.to_le_bytes());
        assert_eq!(kind(&multiboot), Err(LoadError::NoEntryPoint), "wrong checksum");
        multiboot[136..140].copy_from_slice(&0u32.wrapping_sub(MULTIBOOT_HEADER).to_le_bytes());
        assert_eq!(kind(&multiboot), Ok(KernelKind::Multiboot));
    }

    #[test]
    fn every_truncation_is_an_error_and_none_a_panic() {
        let file = elf(true);
        for len in 0..file.len() {
            let _ = crate::check(&file[..len]);
        }
        let mut wild = file;
        wild[32..40].fill(0xff);
        assert_eq!(kind(&wild), Err(LoadError::Truncated));
    }

    /// Memory that takes everything.
    struct Anything;

    impl GuestWrite for Anything {
        fn write(&mut self, _: Gpa, _: &[u8]) -> Result<(), sluice_memory::OutOfRange> {
            Ok(())
        }
    }

    #[test]
    fn a_segment_that_reaches_past_the_file_is_not_loaded() {
        let ram = [crate::RamRange { start: Gpa::new(0x10_0000), len: 0x100_0000 }];
        let parameters = Parameters { initrd: None, cmdline: "", ram: &ram, rsdp: None };
        let loaded = |file_size: u64| {
            let mut file = elf(true);
            file[56] = 2;
            file[120] = 1;
            file[128..136].copy_from_slice(&400u64.to_le_bytes());
            file[144..152].copy_from_slice(&0x10_0000u64.to_le_bytes());
            file[152..160].copy_from_slice(&file_size.to_le_bytes());
            file[160..168].copy_from_slice(&0x1000u64.to_le_bytes());
            load(&file, &parameters, &mut Anything).err()
        };
        assert_eq!(loaded(112), None);
        assert_eq!(loaded(113), Some(LoadError::Truncated));
        assert_eq!(loaded(u64::MAX), Some(LoadError::Truncated));
    }
}
