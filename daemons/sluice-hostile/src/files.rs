//! What a domain that serves a device file can do to the guest's processes that use it: have memory copied that they have not declared, or show
//! them what no device file is. The
//! requests tell it what is declared; it tries everything around that, in every process it can name.

use crate::queues::open;
use anyhow::{Result, ensure};
use sluice_backend::function::{Copy, Function};
use sluice_backend::sys::{PAGE, ShadowPage};
use sluice_devfile::{Range, Request};
use sluice_hypercall::devfile::{DEVFILE_IN, DEVFILE_MAPS_SIZE, DEVFILE_MAX_OPERATIONS, DEVFILE_OUT};
use std::path::Path;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// A page of ours for what is copied.
const LOCAL: u64 = 0x1234_0000_0000;
/// Where a kernel of Linux and programs are.
const ELSEWHERE: [u64; 8] = [
    0,
    0x1000,
    0x40_0000,
    0x5555_5555_4000,
    0x7fff_ffff_f000,
    0x8000_0000_0000,
    0xffff_8880_0000_0000,
    0xffff_ffff_8100_0000,
];

#[derive(Default)]
struct Count {
    tried: u64,
    succeeded: u64,
}

/// Tries everything that is not declared for operations on this device file.
pub fn attack(file: &Path, rounds: u32) -> Result<()> {
    let function = open(file)?;
    let _page = ShadowPage::map(LOCAL)?;
    let info = function.info()?;
    let window = function.window(info.window)?;
    let queue = info.queues[0];
    let mut requests = Vec::new();
    for number in 0..u64::from(queue.entries) {
        // Address and length of a descriptor (Virtio 1.2, 2.7.5).
        let descriptor = GuestAddress(queue.descriptors + number * 16);
        let (address, length): (u64, u32) =
            (window.read_obj(descriptor)?, window.read_obj(GuestAddress(descriptor.0 + 8))?);
        let mut bytes = [0; Request::SIZE];
        if length as usize == Request::SIZE && window.read_slice(&mut bytes, GuestAddress(address)).is_ok() {
            requests.extend(Request::decode(&bytes).filter(|request| !request.ranges.is_empty()));
        }
    }
    let ranges: Vec<(u32, Range)> = requests
        .iter()
        .flat_map(|request| request.ranges.iter().map(|range| (request.tag, *range)))
        .collect();
    let declared = ranges.iter().filter(|(tag, range)| {
        range.output && copy(&function, *tag, range.address, range.bytes.min(PAGE as u32), DEVFILE_OUT)
    });
    let declared = declared.count();
    ensure!(!ranges.is_empty(), "no operation is under way");

    let mut count = Count::default();
    let mut attempt = |tag: u32, address: u64, bytes: u32, way: u32| {
        let touches = |range: &Range| {
            let allowed = if way == DEVFILE_IN { range.input } else { range.output };
            allowed
                && range.address <= address
                && address + u64::from(bytes) <= range.address + u64::from(range.bytes)
        };
        if ranges.iter().any(|(own, range)| *own == tag && touches(range)) {
            return;
        }
        count.tried += 1;
        count.succeeded += u64::from(copy(&function, tag, address, bytes, way));
    };
    for way in [DEVFILE_IN, DEVFILE_OUT] {
        for tag in 0..DEVFILE_MAX_OPERATIONS + 2 {
            for (_, range) in &ranges {
                let end = range.address + u64::from(range.bytes);
                attempt(tag, range.address, range.bytes, way);
                attempt(tag, range.address.wrapping_sub(1), 1, way);
                attempt(tag, range.address.wrapping_sub(1), 2, way);
                attempt(tag, range.address, range.bytes + 1, way);
                attempt(tag, end - 1, 2, way);
                attempt(tag, end, 1, way);
                attempt(tag, range.address & !0xfff, 8, way);
                attempt(tag, range.address | 1 << 47, 8, way);
            }
            for address in ELSEWHERE {
                attempt(tag, address, 8, way);
            }
        }
        for _ in 0..rounds {
            let near = ranges[fastrand::usize(..ranges.len())].1.address;
            let address = match fastrand::u8(..3) {
                0 => near.wrapping_add(fastrand::u64(..0x8000)).wrapping_sub(0x4000),
                1 => fastrand::u64(..1 << 47),
                _ => fastrand::u64(..u64::MAX - 0x1000),
            };
            attempt(fastrand::u32(..DEVFILE_MAX_OPERATIONS), address, fastrand::u32(1..64), way);
        }
    }
    let maps = maps(&function, &window, rounds);
    println!(
        "SLUICE-RESULT files_declared={declared} files_tried={} files_succeeded={}",
        count.tried, count.succeeded
    );
    println!("SLUICE-RESULT maps_tried={} maps_succeeded={}", maps.tried, maps.succeeded);
    Ok(())
}

/// Has the guest see what is no device file's: memory of this process, the guest's own in the window, a kernel's, nothing at all.
fn maps(function: &Function, window: &GuestMemoryMmap, rounds: u32) -> Count {
    let mut count = Count::default();
    let own = window.get_host_address(GuestAddress(0)).map_or(0, |at| at as u64);
    let last = (DEVFILE_MAPS_SIZE / PAGE as u64) as u32;
    let mut attempt = |local: u64, first: u32, pages: u32| {
        count.tried += 1;
        count.succeeded += u64::from(function.show(local, first, pages, first & 1 == 0).is_ok());
    };
    for local in ELSEWHERE.into_iter().chain([LOCAL, own, !0xfff]) {
        for (first, pages) in
            [(0, 1), (1, 1), (last - 1, 2), (last, 1), (u32::MAX, 1), (0, 0), (0, last), (0, u32::MAX)]
        {
            attempt(local, first, pages);
            attempt(local | 0x800, first, pages);
        }
    }
    for _ in 0..rounds {
        let local =
            [LOCAL, own + u64::from(fastrand::u16(..)) * 0x1000, fastrand::u64(..)][fastrand::usize(..3)];
        attempt(local, fastrand::u32(..), fastrand::u32(..64));
    }
    count
}

fn copy(function: &Function, tag: u32, address: u64, bytes: u32, way: u32) -> bool {
    let asked = Copy { address, local: LOCAL, tag, bytes, way, reserved: 0 };
    // SAFETY: The page is mapped, nothing in Rust refers to it, and no more than that is copied.
    bytes as usize <= PAGE && unsafe { function.copy(&asked) }.is_ok()
}
