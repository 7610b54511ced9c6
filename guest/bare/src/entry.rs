//! From the PVH entry point to 64-bit code, and what the start information says.
//!
//! Source: Xen public/arch-x86/hvm/start_info.h (32-bit protected mode, paging off, EBX points at
//! `hvm_start_info`).

use core::arch::global_asm;

/// First address that the page tables do not map.
pub const MAPPED: u64 = 512 << 30;

/// Selectors of code and data of programs.
pub const USER_CODE: u64 = 0x2b;
/// See [`USER_CODE`].
pub const USER_DATA: u64 = 0x33;

global_asm!(
    ".section .note.xen, \"a\", @note",
    ".balign 4",
    ".long 4, 4, 18",
    ".asciz \"Xen\"",
    ".long bare_entry",
    ".text",
    ".code32",
    ".global bare_entry",
    "bare_entry:",
    "cld",
    // 512 GiB, mapped to themselves by pages of 1 GiB.
    "mov dword ptr [bare_pml4], offset bare_pdpt + 7",
    "mov edi, offset bare_pdpt",
    "mov eax, 0x87",
    "xor edx, edx",
    "mov ecx, 512",
    "2:",
    "mov [edi], eax",
    "mov [edi + 4], edx",
    "add eax, 0x40000000",
    "adc edx, 0",
    "add edi, 8",
    "dec ecx",
    "jnz 2b",
    // PAE, OSFXSR, OSXMMEXCPT; long mode and NX; paging.
    "mov eax, 0x620",
    "mov cr4, eax",
    "mov eax, offset bare_pml4",
    "mov cr3, eax",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "or eax, 0x900",
    "wrmsr",
    "mov eax, cr0",
    "or eax, 0x80010002",
    "mov cr0, eax",
    "lgdt [bare_gdt_pointer]",
    "ljmp 8, offset bare_long",
    ".code64",
    "bare_long:",
    "mov eax, 16",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "xor eax, eax",
    "mov fs, eax",
    "mov gs, eax",
    "mov rsp, offset bare_stack_end",
    "xor ebp, ebp",
    "mov edi, ebx",
    "call bare_main",
    "ud2",
    ".data",
    ".balign 8",
    // Code, data, room for the task state segment, which `trap` fills in, code and data at privilege level 3.
    ".global bare_gdt",
    "bare_gdt: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0, 0, 0x00affb000000ffff, 0x00cff3000000ffff",
    ".global bare_gdt_pointer",
    "bare_gdt_pointer: .word 55",
    ".quad bare_gdt",
    ".bss",
    ".balign 4096",
    ".global bare_pml4",
    "bare_pml4: .skip 4096",
    "bare_pdpt: .skip 4096",
    ".skip 65536",
    "bare_stack_end:",
    ".text",
);

unsafe extern "C" {
    static image_start: u8;
    static data_start: u8;
    static image_end: u8;
}

/// Where this kernel is: first byte, and first byte after it.
pub fn image() -> (u64, u64) {
    (&raw const image_start as u64, &raw const image_end as u64)
}

/// The part of the kernel that changes while it runs.
pub fn data() -> (u64, u64) {
    (&raw const data_start as u64, &raw const image_end as u64)
}

/// Ranges of RAM that are taken note of.
const RANGES: usize = 8;

/// What the hypervisor told at the start, copied out of low memory.
pub struct BootInfo {
    cmdline: [u8; 512],
    ranges: [(u64, u64); RANGES],
    count: usize,
}

impl BootInfo {
    /// Reads `hvm_start_info`.
    pub fn read(at: u64) -> Self {
        let word = |offset: u64| unsafe { ((at + offset) as *const u64).read_volatile() };
        let mut info = Self { cmdline: [0; 512], ranges: [(0, 0); RANGES], count: 0 };
        let text = word(24) as *const u8;
        for (index, byte) in info.cmdline.iter_mut().enumerate() {
            *byte = unsafe { text.add(index).read_volatile() };
            if *byte == 0 {
                break;
            }
        }
        let (map, entries) = (word(40) as *const u64, word(48) as u32 as usize);
        for index in 0..entries.min(RANGES) {
            let entry = unsafe { map.add(3 * index) };
            let (start, len) = unsafe { (entry.read_volatile(), entry.add(1).read_volatile()) };
            info.ranges[index] = (start, start + len);
            info.count += 1;
        }
        info
    }

    /// The value of `name=` on the command line.
    pub fn argument(&self, name: &str) -> Option<&str> {
        let end = self.cmdline.iter().position(|byte| *byte == 0).unwrap_or(self.cmdline.len());
        let text = core::str::from_utf8(&self.cmdline[..end]).ok()?;
        text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// RAM as start and end, in rising order.
    pub fn ram(&self) -> &[(u64, u64)] {
        &self.ranges[..self.count]
    }

    /// The RAM above 1 MiB that this kernel does not use, by whole pages.
    pub fn spare(&self) -> (u64, u64) {
        let upper = self.ram().iter().find(|range| range.0 >= 1 << 20).copied().unwrap_or_default();
        (upper.0.max(image().1).next_multiple_of(4096), upper.1)
    }

    /// First address after the RAM below 4 GiB.
    pub fn top(&self) -> u64 {
        self.ram().iter().map(|range| range.1).filter(|end| *end <= 1 << 32).max().unwrap_or(0)
    }
}
