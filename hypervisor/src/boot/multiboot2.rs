//! The multiboot2 boot protocol (Multiboot2 Specification 2.0, 3.6), as GRUB speaks it under BIOS and UEFI.

use crate::handover::{BootInfo, Display};
use crate::mm::{self, Hpa};
use crate::sync::Once;
use sluice_screen::{Channel, Geometry};

/// What a multiboot2 loader leaves in EAX.
pub const MAGIC: u32 = 0x36d7_6289;

mod tag {
    pub const END: u32 = 0;
    pub const CMDLINE: u32 = 1;
    pub const MODULE: u32 = 3;
    pub const MEMORY_MAP: u32 = 6;
    pub const FRAMEBUFFER: u32 = 8;
    pub const RSDP_V1: u32 = 14;
    pub const RSDP_V2: u32 = 15;
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Reads the tags at `address`.
pub fn read(address: u32) -> BootInfo {
    let base = u64::from(address);
    // SAFETY: the loader's structure lies below 4 GiB, which the boot page tables map whole; its first word is its
    // size in bytes.
    let bytes = unsafe {
        let start = mm::virt(Hpa::new(base));
        let size = start.cast::<u32>().read_unaligned();
        core::slice::from_raw_parts(start, size as usize)
    };
    let mut info = BootInfo::new("multiboot2");
    let mut at = 8;
    while at + 8 <= bytes.len() {
        let (kind, size) = (u32_at(bytes, at), u32_at(bytes, at + 4) as usize);
        let Some(tag) = bytes.get(at..at + size.max(8)) else { break };
        if kind == tag::END {
            break;
        }
        read_tag(kind, tag, &mut info);
        at += size.max(8).next_multiple_of(8);
    }
    info
}

/// The tag holds a copy of the ACPI root pointer, in memory that will be reused: keeps another in the image.
fn keep_rsdp(pointer: &[u8]) -> Option<Hpa> {
    static KEPT: Once<[u8; 36]> = Once::new();
    let mut copy = [0; 36];
    let length = pointer.len().min(copy.len());
    copy[..length].copy_from_slice(&pointer[..length]);
    mm::phys(KEPT.call_once(|| copy))
}

fn read_tag(kind: u32, tag: &[u8], info: &mut BootInfo) {
    match kind {
        tag::CMDLINE => info.set_cmdline(tag[8..].iter().copied().take_while(|byte| *byte != 0)),
        tag::MODULE if info.bundle.is_none() => {
            let (start, end) = (u64::from(u32_at(tag, 8)), u64::from(u32_at(tag, 12)));
            info.bundle = Some((Hpa::new(start), end.saturating_sub(start)));
        }
        tag::MEMORY_MAP => {
            let entry_size = u32_at(tag, 8).max(24) as usize;
            for entry in tag.get(16..).unwrap_or_default().chunks_exact(entry_size) {
                info.add_region(u64_at(entry, 0), u64_at(entry, 8), u32_at(entry, 16));
            }
        }
        tag::FRAMEBUFFER => info.display = display(tag),
        tag::RSDP_V2 => info.rsdp = keep_rsdp(&tag[8..]),
        tag::RSDP_V1 if info.rsdp.is_none() => info.rsdp = keep_rsdp(&tag[8..]),
        _ => {}
    }
}

/// The screen that the loader describes (3.6.13); `None` for kinds that are not used here, such as palettes.
fn display(tag: &[u8]) -> Option<Display> {
    const PIXELS: u8 = 1;
    const TEXT: u8 = 2;
    let byte = |at: usize| tag.get(at).copied().unwrap_or(0);
    let address = Hpa::new(u64_at(tag, 8));
    let (pitch, width, height) = (u32_at(tag, 16), u32_at(tag, 20), u32_at(tag, 24));
    match byte(29) {
        PIXELS => {
            let channels = [32, 34, 36].map(|at| Channel { position: byte(at), bits: byte(at + 1) });
            let geometry = Geometry { width, height, pitch, bits: byte(28), channels };
            Some(Display::Pixels { address, geometry })
        }
        TEXT => Some(Display::Text { address, columns: width, rows: height, pitch }),
        _ => None,
    }
}
