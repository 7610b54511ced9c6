//! Page tables that no operating system would build.

use crate::console::println;
use crate::machine;
use core::arch::asm;

/// Page of the address space whose tables are built here: above what the start maps.
const ALIAS: u64 = 1 << 39;

#[repr(C, align(4096))]
struct Table([u64; 512]);

static mut DATA: Table = Table([0; 512]);
static mut TABLE: Table = Table([0; 512]);
static mut DIRECTORY: Table = Table([0; 512]);
static mut POINTERS: Table = Table([0; 512]);

unsafe extern "C" {
    static mut bare_pml4: [u64; 512];
}

/// 512 GiB of addresses that are all the same page: a string instruction runs on and on.
pub fn endless_string() {
    let levels = [
        &raw const DATA as u64,
        &raw const TABLE as u64,
        &raw const DIRECTORY as u64,
        &raw const POINTERS as u64,
    ];
    unsafe {
        TABLE.0 = [levels[0] | 7; 512];
        DIRECTORY.0 = [levels[1] | 7; 512];
        POINTERS.0 = [levels[2] | 7; 512];
        bare_pml4[1] = levels[3] | 7;
    }
    machine::flush();
    println!("SLUICE-RESULT rep=now");
    machine::cli();
    unsafe {
        asm!("rep outsb", inout("rcx") 1u64 << 37 => _, inout("rsi") ALIAS => _, in("dx") 0x80u16);
        asm!("rep insb", inout("rcx") 1u64 << 37 => _, inout("rdi") ALIAS => _, in("dx") 0x80u16);
        asm!("rep movsb", inout("rcx") 1u64 << 37 => _, inout("rsi") 0xfec0_0000u64 => _, inout("rdi") ALIAS => _);
    }
}

/// Page tables in the registers of the I/O APIC, then where nothing is.
pub fn tables_nowhere() {
    println!("SLUICE-RESULT tables=now");
    unsafe { bare_pml4[1] = 0xfec0_0000 | 7 };
    machine::flush();
    crate::trap::attempt(|| unsafe {
        (ALIAS as *const u64).read_volatile();
    });
    println!("SLUICE-RESULT tables=ioapic");
    for root in [0xf_ffff_ffff_f000, 0x1_0000_0000, 0xfee0_0000] {
        machine::set_cr3(root);
    }
}
