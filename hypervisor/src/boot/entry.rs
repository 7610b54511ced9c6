//! Entry code: from 32-bit protected mode without paging to long mode in the upper half.
//!
//! PVH (Xen: docs/misc/pvh.pandoc; EBX = start information) and multiboot2 (EAX = magic, EBX = information) both enter
//! in flat 32-bit mode with unknown stack and no GDT to rely on. The boot page tables map the first 4 GiB with 2 MiB
//! pages at 0, at the direct map, and the first GiB at the image's addresses; they are replaced by
//! `mm::init` and never used again.

use core::arch::{asm, global_asm};

// `- BASE` turns a linked address into the physical one that this code runs at before paging.
global_asm!(
    ".set BASE, 0xffffffff80000000",
    // The ELF note that makes QEMU and Xen enter by PVH: name "Xen", type 18 (PHYS32_ENTRY).
    ".section .note.xen, \"a\", @note",
    ".balign 4",
    ".long 4, 4, 18",
    ".asciz \"Xen\"",
    ".long boot_entry_pvh - BASE",
    // Multiboot2 header: architecture i386, tags: entry address (3), a screen of 1024 by 768 pixels if there is one (5, optional),
    // modules page-aligned (6), end (0).
    ".section .boot.header, \"ax\", @progbits",
    ".balign 8",
    "multiboot2_header:",
    ".long 0xe85250d6, 0, multiboot2_header_end - multiboot2_header",
    ".long -(0xe85250d6 + 0 + (multiboot2_header_end - multiboot2_header))",
    ".balign 8",
    ".short 3, 0",
    ".long 12, boot_entry_multiboot2 - BASE",
    ".balign 8",
    ".short 5, 1",
    ".long 20, 1024, 768, 32",
    ".balign 8",
    ".short 6, 0",
    ".long 8",
    ".balign 8",
    ".short 0, 0",
    ".long 8",
    "multiboot2_header_end:",
    ".section .boot.text, \"ax\", @progbits",
    ".code32",
    ".global boot_entry_pvh",
    "boot_entry_pvh:",
    "    mov (%ebx), %eax", // the magic number of the start information
    ".global boot_entry_multiboot2",
    "boot_entry_multiboot2:",
    "    cli",
    "    cld",
    "    mov %eax, %edi", // first and second argument of `rust_entry`
    "    mov %ebx, %esi",
    "    mov $(boot_stack_top - BASE), %esp",
    // Processors without long mode or no-execute would fault below; stop instead of resetting.
    "    mov $0x80000000, %eax",
    "    cpuid",
    "    cmp $0x80000001, %eax",
    "    jb 9f",
    "    mov $0x80000001, %eax",
    "    cpuid",
    "    and $0x20100000, %edx",
    "    cmp $0x20100000, %edx",
    "    jne 9f",
    // Page directories: 2048 entries of 2 MiB, present, writable, large.
    "    mov $(boot_directories - BASE), %edx",
    "    mov $0x83, %eax",
    "    mov $2048, %ecx",
    "2:",
    "    mov %eax, (%edx)",
    "    movl $0, 4(%edx)",
    "    add $0x200000, %eax",
    "    add $8, %edx",
    "    loop 2b",
    // Directory pointers: four directories from 0; the first also at the image's addresses (entry 510).
    "    mov $(boot_low - BASE), %edx",
    "    movl $(boot_directories - BASE + 0x0003), (%edx)",
    "    movl $(boot_directories - BASE + 0x1003), 8(%edx)",
    "    movl $(boot_directories - BASE + 0x2003), 16(%edx)",
    "    movl $(boot_directories - BASE + 0x3003), 24(%edx)",
    "    mov $(boot_high - BASE), %edx",
    "    movl $(boot_directories - BASE + 3), 510 * 8(%edx)",
    // Root: identity (0), direct map (256), image (511).
    "    mov $(boot_root - BASE), %edx",
    "    movl $(boot_low - BASE + 3), (%edx)",
    "    movl $(boot_low - BASE + 3), 256 * 8(%edx)",
    "    movl $(boot_high - BASE + 3), 511 * 8(%edx)",
    "    mov %edx, %cr3",
    "    mov %cr4, %eax",
    "    or $0x20, %eax", // PAE
    "    mov %eax, %cr4",
    "    mov $0xc0000080, %ecx",
    "    rdmsr",
    "    or $0x900, %eax", // EFER: LME, NXE
    "    wrmsr",
    "    mov %cr0, %eax",
    "    or $0x80010001, %eax", // PG, WP, PE
    "    and $0x9fffffff, %eax", // caches on
    "    mov %eax, %cr0",
    "    lgdt boot_gdt_pointer - BASE",
    "    ljmp $0x08, $(boot_long - BASE)",
    "9:",
    "    hlt",
    "    jmp 9b",
    ".code64",
    "boot_long:",
    "    movabs $boot_upper, %rax",
    "    jmp *%rax",
    "boot_upper:",
    "    mov $0x10, %eax",
    "    mov %eax, %ds",
    "    mov %eax, %es",
    "    mov %eax, %ss",
    "    xor %eax, %eax",
    "    mov %eax, %fs",
    "    mov %eax, %gs",
    "    lgdt boot_gdt_pointer_upper",
    "    mov $boot_stack_top, %rsp",
    "    xor %ebp, %ebp",
    "    push %rbp", // keeps the stack as after a call
    "    mov %edi, %edi",
    "    mov %esi, %esi",
    "    jmp {rust_entry}",
    ".section .rodata.boot, \"a\", @progbits",
    ".balign 8",
    "boot_gdt:",
    "    .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff",
    "boot_gdt_pointer:",
    "    .short 23",
    "    .long boot_gdt - BASE",
    "boot_gdt_pointer_upper:",
    "    .short 23",
    "    .quad boot_gdt",
    ".section .bss.boot, \"aw\", @nobits",
    ".balign 4096",
    "boot_root: .skip 4096",
    "boot_low: .skip 4096",
    "boot_high: .skip 4096",
    "boot_directories: .skip 4 * 4096",
    "boot_stack: .skip 64 * 1024",
    "boot_stack_top:",
    ".text",
    rust_entry = sym super::rust_entry,
    options(att_syntax),
);

/// Leaves the current stack for good and calls `next` on another.
///
/// # Safety
/// `top` is the 16-byte aligned top of a mapped stack that nobody uses.
pub unsafe fn call_on_stack(top: u64, next: extern "C" fn() -> !) -> ! {
    // SAFETY: the caller vouches for the stack; nothing of the old one is used again. A zero return address and frame
    // pointer end backtraces.
    unsafe {
        asm!("mov rsp, {top}", "xor ebp, ebp", "push rbp", "jmp {next}", top = in(reg) top, next = in(reg) next,
            options(noreturn))
    }
}
