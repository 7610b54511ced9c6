//! Linux bzImage, by the 64-bit boot protocol.
//!
//! Source: Linux Documentation/arch/x86/boot.rst (fields and entry), zero-page.rst (boot_params).

use crate::{
    Entry, GuestWrite, LoadError, Mode, Parameters, field, place_initrd, u16_at, u32_at, u64_at, write_gdt,
};
use alloc::vec;
use sluice_memory::{Gpa, HUGE_PAGE, LARGE_PAGE};

/// Where the zero page (boot_params) goes.
const ZERO_PAGE: u64 = 0x7000;
/// Where the identity page tables go: one root, one directory pointer table, four directories.
const PAGE_TABLES: u64 = 0x9000;
/// Stack for the kernel's first instructions.
const STACK: u64 = 0x9000;
/// Where the command line goes.
const CMDLINE: u64 = 0x2_0000;
/// Lowest address the protected-mode part may be put at.
const LOWEST: u64 = 0x10_0000;

/// Offsets in the file and in the zero page.
mod offset {
    pub const EXT_RAMDISK_IMAGE: u64 = 0xc0;
    pub const EXT_RAMDISK_SIZE: u64 = 0xc4;
    pub const RSDP: u64 = 0x70;
    pub const E820_ENTRIES: u64 = 0x1e8;
    pub const SETUP_SECTS: usize = 0x1f1;
    pub const HEADER: u64 = 0x1f1;
    pub const JUMP: usize = 0x200;
    pub const MAGIC: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const TYPE_OF_LOADER: u64 = 0x210;
    pub const RAMDISK_IMAGE: u64 = 0x218;
    pub const RAMDISK_SIZE: u64 = 0x21c;
    pub const CMD_LINE_PTR: u64 = 0x228;
    pub const INITRD_ADDR_MAX: usize = 0x22c;
    pub const KERNEL_ALIGNMENT: usize = 0x230;
    pub const RELOCATABLE: usize = 0x234;
    pub const XLOADFLAGS: usize = 0x236;
    pub const CMDLINE_SIZE: usize = 0x238;
    pub const PREF_ADDRESS: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    pub const E820_TABLE: u64 = 0x2d0;
}

const XLF_KERNEL_64: u16 = 1 << 0;
const XLF_CAN_BE_LOADED_ABOVE_4G: u16 = 1 << 1;
const E820_RAM: u32 = 1;
/// Where the 64-bit entry is in the protected-mode part.
const ENTRY_64: u64 = 0x200;

/// What a bzImage says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the real-mode part; the protected-mode part follows.
    setup: usize,
    /// End of the header fields in the file.
    header_end: usize,
    initrd_max: u64,
    alignment: u64,
    relocatable: bool,
    cmdline_size: usize,
    preferred: u64,
    init_size: u64,
}

impl Header {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// It is no bzImage with a 64-bit entry.
    pub fn parse(file: &[u8]) -> Result<Self, LoadError> {
        if field::<4>(file, offset::MAGIC).map_err(|_| LoadError::UnknownFormat)? != *b"HdrS" {
            return Err(LoadError::UnknownFormat);
        }
        if u16_at(file, offset::VERSION)? < 0x20c {
            return Err(LoadError::OldProtocol);
        }
        let flags = u16_at(file, offset::XLOADFLAGS)?;
        if flags & XLF_KERNEL_64 == 0 {
            return Err(LoadError::NoEntry64);
        }
        let [sectors] = field(file, offset::SETUP_SECTS)?;
        // Zero means four, for historical reasons (boot.rst, "setup_sects").
        let sectors = if sectors == 0 { 4 } else { usize::from(sectors) };
        let [_, jump] = field(file, offset::JUMP)?;
        let [relocatable] = field(file, offset::RELOCATABLE)?;
        let limit = u64::from(u32_at(file, offset::INITRD_ADDR_MAX)?) + 1;
        let header = Self {
            setup: (sectors + 1) * 512,
            header_end: offset::MAGIC + usize::from(jump),
            initrd_max: if flags & XLF_CAN_BE_LOADED_ABOVE_4G != 0 { u64::MAX } else { limit },
            alignment: u64::from(u32_at(file, offset::KERNEL_ALIGNMENT)?).max(0x1000),
            relocatable: relocatable != 0,
            cmdline_size: u32_at(file, offset::CMDLINE_SIZE)? as usize,
            preferred: u64_at(file, offset::PREF_ADDRESS)?,
            init_size: u64::from(u32_at(file, offset::INIT_SIZE)?),
        };
        if file.len() <= header.setup || !header.alignment.is_power_of_two() {
            return Err(LoadError::Truncated);
        }
        Ok(header)
    }

    /// Where the protected-mode part goes: where it likes to be, or the lowest aligned place of any piece of RAM.
    fn place(&self, parameters: &Parameters<'_>, bytes: u64) -> Result<u64, LoadError> {
        let needs = self.init_size.max(bytes);
        let fits = |start: u64| {
            let end = start.checked_add(needs)?;
            let inside = |range: &crate::RamRange| range.start.as_u64() <= start && end <= range.end();
            parameters.ram.iter().any(inside).then_some(start)
        };
        if let Some(start) = fits(self.preferred) {
            return Ok(start);
        }
        let lowest = |range: &crate::RamRange| {
            range.start.as_u64().max(LOWEST).checked_next_multiple_of(self.alignment).and_then(fits)
        };
        let moved = parameters.ram.iter().filter(|_| self.relocatable).find_map(lowest);
        // The page tables that the kernel starts on reach no further.
        moved.filter(|start| start + needs <= 4 * HUGE_PAGE).ok_or(LoadError::KernelTooLarge)
    }
}

/// Loads a bzImage.
///
/// # Errors
/// See [`LoadError`].
pub fn load(
    file: &[u8],
    parameters: &Parameters<'_>,
    memory: &mut impl GuestWrite,
) -> Result<Entry, LoadError> {
    let header = Header::parse(file)?;
    let kernel = file.get(header.setup..).ok_or(LoadError::Truncated)?;
    let start = header.place(parameters, kernel.len() as u64)?;
    if parameters.cmdline.len() > header.cmdline_size {
        return Err(LoadError::CmdlineTooLong);
    }
    memory.write(Gpa::new(start), kernel)?;
    memory.write(Gpa::new(CMDLINE), parameters.cmdline.as_bytes())?;
    memory.write(Gpa::new(CMDLINE + parameters.cmdline.len() as u64), &[0])?;

    // The zero page: cleared, then the file's own header, then what the loader has to say.
    memory.write(Gpa::new(ZERO_PAGE), &vec![0; 0x1000])?;
    let at = |offset: u64| Gpa::new(ZERO_PAGE + offset);
    let copied = file.get(offset::HEADER as usize..header.header_end).ok_or(LoadError::Truncated)?;
    memory.write(at(offset::HEADER), copied)?;
    memory.write(at(offset::TYPE_OF_LOADER), &[0xff])?;
    memory.write(at(offset::CMD_LINE_PTR), &(CMDLINE as u32).to_le_bytes())?;
    if let Some(rsdp) = parameters.rsdp {
        memory.write(at(offset::RSDP), &rsdp.as_u64().to_le_bytes())?;
    }
    if let Some(initrd) = parameters.initrd {
        let floor = start + header.init_size.max(kernel.len() as u64);
        let gpa = place_initrd(initrd, parameters.ram, floor, header.initrd_max)?;
        memory.write(gpa, initrd)?;
        let (image, size) = (gpa.as_u64(), initrd.len() as u64);
        memory.write(at(offset::RAMDISK_IMAGE), &(image as u32).to_le_bytes())?;
        memory.write(at(offset::RAMDISK_SIZE), &(size as u32).to_le_bytes())?;
        memory.write(at(offset::EXT_RAMDISK_IMAGE), &((image >> 32) as u32).to_le_bytes())?;
        memory.write(at(offset::EXT_RAMDISK_SIZE), &((size >> 32) as u32).to_le_bytes())?;
    }
    write_e820(parameters, memory)?;
    write_page_tables(memory)?;
    let (gdt_base, gdt_limit) = write_gdt(memory, Mode::Long)?;
    Ok(Entry {
        mode: Mode::Long,
        rip: start + ENTRY_64,
        rsp: STACK,
        rax: 0,
        rbx: 0,
        rsi: ZERO_PAGE,
        cr3: Gpa::new(PAGE_TABLES),
        gdt_base,
        gdt_limit,
    })
}

fn write_e820(parameters: &Parameters<'_>, memory: &mut impl GuestWrite) -> Result<(), LoadError> {
    // The zero page has room for 128 entries.
    let entries = parameters.ram.iter().take(128);
    memory.write(Gpa::new(ZERO_PAGE + offset::E820_ENTRIES), &[entries.len() as u8])?;
    for (index, range) in entries.enumerate() {
        let mut entry = [0; 20];
        entry[..8].copy_from_slice(&range.start.as_u64().to_le_bytes());
        entry[8..16].copy_from_slice(&range.len.to_le_bytes());
        entry[16..].copy_from_slice(&E820_RAM.to_le_bytes());
        memory.write(Gpa::new(ZERO_PAGE + offset::E820_TABLE + index as u64 * 20), &entry)?;
    }
    Ok(())
}

/// Identity page tables for the first 4 GiB, in 2 MiB pages.
fn write_page_tables(memory: &mut impl GuestWrite) -> Result<(), LoadError> {
    const TABLE: u64 = 0x1000;
    const LINK: u64 = 0b11;
    const LEAF: u64 = 0b1000_0011;
    let mut write = |at: u64, entry: u64| memory.write(Gpa::new(at), &entry.to_le_bytes());
    let pointers = PAGE_TABLES + TABLE;
    write(PAGE_TABLES, pointers | LINK)?;
    for gib in 0..4 {
        let directory = pointers + TABLE * (1 + gib);
        write(pointers + gib * 8, directory | LINK)?;
        for page in 0..512 {
            write(directory + page * 8, (gib * HUGE_PAGE + page * LARGE_PAGE) | LEAF)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamRange;
    use alloc::vec::Vec;
    use sluice_memory::OutOfRange;

    struct Ram(Vec<u8>);

    impl GuestWrite for Ram {
        fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), OutOfRange> {
            let start = gpa.as_u64() as usize;
            self.0.get_mut(start..start + bytes.len()).ok_or(OutOfRange)?.copy_from_slice(bytes);
            Ok(())
        }
    }

    /// The smallest file that the protocol allows: one setup sector and 512 bytes of kernel.
    fn image() -> Vec<u8> {
        let mut file = vec![0u8; 1536];
        file[0x1f1] = 1;
        file[0x201] = 0x66;
        file[0x202..0x206].copy_from_slice(b"HdrS");
        file[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        file[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        file[0x230..0x234].copy_from_slice(&0x20_0000u32.to_le_bytes());
        file[0x234] = 1;
        file[0x236] = 1;
        file[0x238..0x23c].copy_from_slice(&255u32.to_le_bytes());
        file[0x258..0x260].copy_from_slice(&0x100_0000u64.to_le_bytes());
        file[0x260..0x264].copy_from_slice(&0x10_0000u32.to_le_bytes());
        file[1024..].fill(0x90);
        file
    }

    fn ram(mib: u64) -> [RamRange; 2] {
        [
            RamRange { start: Gpa::new(0), len: 0xa_0000 },
            RamRange { start: Gpa::new(0x10_0000), len: (mib << 20) - 0x10_0000 },
        ]
    }

    fn try_load(
        file: &[u8],
        mib: u64,
        initrd: Option<&[u8]>,
        cmdline: &str,
    ) -> Result<(Entry, Ram), LoadError> {
        let mut memory = Ram(vec![0xaa; (mib << 20) as usize]);
        let parameters = Parameters { initrd, cmdline, ram: &ram(mib), rsdp: Some(Gpa::new(0xe_0000)) };
        load(file, &parameters, &mut memory).map(|entry| (entry, memory))
    }

    #[test]
    fn boot_rst_64_bit_entry() {
        let (entry, memory) = try_load(&image(), 32, Some(&[7; 5000]), "quiet").unwrap();
        assert_eq!((entry.rip, entry.rsi, entry.mode), (0x100_0200, 0x7000, Mode::Long));
        assert_eq!(memory.0[0x100_0000], 0x90);
        let initrd = u32::from_le_bytes(memory.0[0x7218..0x721c].try_into().unwrap()) as usize;
        assert_eq!((initrd % 4096, &memory.0[initrd..initrd + 5000]), (0, &[7; 5000][..]));
        assert!(initrd + 5000 <= 32 << 20);
        assert_eq!(&memory.0[0x2_0000..0x2_0006], b"quiet\0");
        assert_eq!(memory.0[0x71e8], 2);
    }

    #[test]
    fn a_small_guest_gets_the_kernel_lower_if_it_can_move() {
        let (entry, _) = try_load(&image(), 8, None, "").unwrap();
        assert_eq!(entry.rip, 0x20_0200);
        let mut fixed = image();
        fixed[0x234] = 0;
        assert_eq!(try_load(&fixed, 8, None, "").err(), Some(LoadError::KernelTooLarge));
    }

    #[test]
    fn a_kernel_that_can_move_goes_to_the_ram_that_there_is() {
        let mut memory = Ram(vec![0; 64 << 20]);
        let high = [
            RamRange { start: Gpa::new(0), len: 0xa_0000 },
            RamRange { start: Gpa::new(0x230_0000), len: 16 << 20 },
        ];
        let parameters = Parameters { initrd: None, cmdline: "", ram: &high, rsdp: None };
        assert_eq!(load(&image(), &parameters, &mut memory).unwrap().rip, 0x240_0200);
    }

    #[test]
    fn bad_files_are_named() {
        let with = |at: usize, value: u8| {
            let mut file = image();
            file[at] = value;
            try_load(&file, 32, None, "").err()
        };
        assert_eq!(with(0x202, b'X'), Some(LoadError::UnknownFormat));
        assert_eq!(with(0x206, 0x0b), Some(LoadError::OldProtocol));
        assert_eq!(with(0x236, 0), Some(LoadError::NoEntry64));
        assert_eq!(with(0x1f1, 200), Some(LoadError::Truncated));
        assert_eq!(try_load(&image()[..0x230], 32, None, "").err(), Some(LoadError::Truncated));
        assert_eq!(
            try_load(&image(), 32, Some(&vec![0; 40 << 20]), "").err(),
            Some(LoadError::InitrdTooLarge)
        );
        let long = "x".repeat(300);
        assert_eq!(try_load(&image(), 32, None, &long).err(), Some(LoadError::CmdlineTooLong));
    }
}
