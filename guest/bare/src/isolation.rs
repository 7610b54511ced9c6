//! Whose memory is it? One guest fills its memory with a pattern, another looks everywhere for it.
//!
//! [`scan`] also looks for the hypervisor: the instructions around VMRUN, which no other program here
//! contains. Neither pattern is in this kernel as such: both are put together while it runs.

use crate::console::{println, typed};
use crate::entry::{self, BootInfo};
use crate::machine;

/// Written here inverted, so that this kernel does not find itself.
const MARKER: u64 = !0x5a17_c0de_feed_b175;
/// CLGI, STI, VMLOAD, VMRUN: eight bytes of the hypervisor's way into a guest, inverted.
const HYPERVISOR: u64 = !u64::from_le_bytes([0x0f, 0x01, 0xdd, 0xfb, 0x0f, 0x01, 0xda, 0x0f]);

const PAGE: u64 = 4096;
/// The windows of the virtual platform: ECAM, I/O APIC, local APIC.
const WINDOWS: [(u64, u64); 3] =
    [(0xe000_0000, 0xe010_0000), (0xfec0_0000, 0xfec0_1000), (0xfee0_0000, 0xfee0_1000)];

fn not(value: u64) -> u64 {
    // The compiler must not compute the pattern beforehand.
    !core::hint::black_box(value)
}

fn read(at: u64) -> u64 {
    unsafe { (at as *const u64).read_volatile() }
}

/// Waits for a key: sleeps but for a look at the console every ten million ticks. The end of a line is none.
pub fn wait_for_key() {
    while !matches!(typed(), Some(key) if key != b'\n') {
        machine::sleep(10_000_000);
    }
}

/// Checks that its memory came clean, fills it, waits for a key, and checks that nobody wrote to it.
pub fn mark(boot: &BootInfo) {
    let (start, end) = boot.spare();
    let dirty = (start..end).step_by(8).filter(|at| read(*at) != 0).count();
    let marker = not(MARKER);
    for at in (start..end).step_by(8) {
        unsafe { (at as *mut u64).write_volatile(marker ^ (at & !0xfff)) };
        if at % PAGE == 0 {
            unsafe { (at as *mut u64).write_volatile(marker) };
        }
    }
    machine::set_dr0(marker);
    println!("SLUICE-RESULT dirty={dirty} marked={}", end - start);
    wait_for_key();
    let changed = (start..end).step_by(8).filter(|at| {
        let page = if at % PAGE == 0 { 0 } else { at & !0xfff };
        read(*at) != marker ^ page
    });
    println!("SLUICE-RESULT changed={} done=ok", changed.count());
}

/// Reads and writes every page of the machine's memory that is not its own, every `stride=`th from there to 4 GiB, some above, and
/// searches all it can read.
pub fn scan(boot: &BootInfo) {
    let (marker, hypervisor) = (not(MARKER), not(HYPERVISOR));
    let (mut markers, mut code) = (0u64, 0u64);
    // Its own memory: nothing of former owners.
    for &(start, end) in boot.ram() {
        for at in start..end - 8 {
            // The hypervisor's code can start at any byte, marked words only at a multiple of eight.
            let word = unsafe { (at as *const u64).read_unaligned() };
            code += u64::from(word == hypervisor);
            markers += u64::from(at % 8 == 0 && word == marker);
        }
    }
    markers += u64::from(machine::dr0() == marker);
    println!("SLUICE-RESULT own.markers={markers} own.code={code}");
    let (mut pages, mut foreign, mut kept) = (0u64, 0u64, 0u64);
    let number = |name: &str| boot.argument(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    let memory = (number("machine") << 20).max(boot.top());
    let within = (boot.top()..memory).step_by(PAGE as usize);
    let below = (memory..1 << 32).step_by((number("stride").max(1) * PAGE) as usize);
    let above = (1 << 32..8 << 30).step_by(2 << 20);
    let beyond = ((8 << 30) + 0x20_0000..entry::MAPPED).step_by(1 << 30);
    for at in within.chain(below).chain(above).chain(beyond) {
        if WINDOWS.iter().any(|window| (window.0..window.1).contains(&at)) {
            continue;
        }
        pages += 1;
        let before = read(at);
        markers += u64::from(before == marker);
        code += u64::from(before == hypervisor);
        foreign += u64::from(before != u64::MAX);
        if pages % 16 == 0 {
            unsafe { (at as *mut u64).write_volatile(0) };
            kept += u64::from(read(at) != u64::MAX);
        }
        if pages % 0x1_0000 == 0 {
            println!("SLUICE-RESULT scanned={at:#x}");
        }
    }
    println!("SLUICE-RESULT pages={pages} markers={markers} code={code} foreign={foreign} kept={kept}");
    wait_for_key();
    println!("SLUICE-RESULT done=ok");
}
