//! The PVH boot protocol (Xen: public/arch-x86/hvm/start_info.h).

use crate::handover::BootInfo;
use crate::mm::{self, Hpa};

/// What the entry code passes for this protocol: the magic number at the start of `hvm_start_info`.
pub const ENTRY_MAGIC: u32 = 0x336e_c578;

/// `struct hvm_start_info`, version 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    cmdline: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<StartInfo>() == 56);

#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    address: u64,
    bytes: u64,
    cmdline: u64,
    reserved: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    address: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// Copies a structure out of the loader's memory.
fn copy<T: Copy>(address: u64) -> T {
    // SAFETY: the loader's structures lie below 4 GiB, which the boot page tables map whole, and T is one of the plain
    // structures above, of which any bytes are a value.
    unsafe { mm::virt(Hpa::new(address & 0xffff_ffff)).cast::<T>().read_unaligned() }
}

/// Reads what the loader left at `address`.
pub fn read(address: u32) -> BootInfo {
    let start: StartInfo = copy(address.into());
    assert!(
        start.magic == ENTRY_MAGIC,
        "PVH start information has the wrong magic number {:#x}",
        start.magic
    );
    assert!(start.version >= 1, "PVH start information of version 0 has no memory map");
    let mut info = BootInfo::new("PVH");
    for index in 0..u64::from(start.memory_map_entries) {
        let entry: MemoryMapEntry = copy(start.memory_map + index * size_of::<MemoryMapEntry>() as u64);
        info.add_region(entry.address, entry.bytes, entry.kind);
    }
    if start.module_count > 0 {
        let module: Module = copy(start.modules);
        info.bundle = Some((Hpa::new(module.address), module.bytes));
    }
    if start.cmdline != 0 {
        info.set_cmdline((start.cmdline..).map(copy::<u8>).take_while(|byte| *byte != 0));
    }
    if start.rsdp != 0 {
        info.rsdp = Some(Hpa::new(start.rsdp));
    }
    info
}
