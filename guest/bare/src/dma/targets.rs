//! Bus addresses at which a guest has nothing to look for.

use super::memory::Own;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The message window: every write in it is an interrupt.
pub const MESSAGES: (u64, u64) = (0xfee0_0000, 0xfef0_0000);

/// Calls `try_at` with every page of the first 64 MiB, every 64th of the machine's `memory` bytes, every
/// 2 MiB below the PCI window, and what is above; of all that with every `stride`th only, for who has not the time.
///
/// In the first 64 MiB are the hypervisor's image and its page tables. Pages that are the guest's own are
/// among them: it is for the caller to see that they are *its own* there and nobody else's.
pub fn pages(own: &Own, memory: u64, stride: u64, mut strike: impl FnMut(u64)) {
    let mut number = 0u64;
    let mut try_at = |at| {
        if number.is_multiple_of(stride.max(1)) {
            strike(at);
        }
        number += 1;
    };
    let low = if own.has_low() { MIB } else { 0 };
    (low..64 * MIB).step_by(PAGE as usize).for_each(&mut try_at);
    let foreign = |at: &u64| !own.contains(*at);
    let spread = (64 * MIB..memory).step_by(64 * PAGE as usize);
    spread.filter(foreign).for_each(&mut try_at);
    let beyond = (memory.max(64 * MIB)..3 * GIB).step_by(2 * MIB as usize);
    beyond.filter(foreign).for_each(&mut try_at);
    // Registers: windows of devices (also as the guest sees them), configuration, timers, firmware.
    let windows = (3 * GIB..0xfe00_0000).step_by(MIB as usize);
    let registers = (0xfe00_0000..MESSAGES.0).step_by(2 * PAGE as usize);
    let firmware = (MESSAGES.1..4 * GIB).step_by(16 * PAGE as usize);
    windows.chain(registers).chain(firmware).for_each(&mut try_at);
    for at in [0xfec0_0000, 0xfec0_0010, 0xfed0_0000, 0xfed9_0000, 0xfed4_0000, 0xffff_f000] {
        try_at(at);
    }
    // Above 4 GiB, up to and past what any table can translate. Low bits lead past the own memory, should
    // somebody ignore the high ones.
    (4 * GIB..8 * GIB).step_by(16 * MIB as usize).for_each(&mut try_at);
    for bit in 33..64 {
        for low in [0, 0xfec0_0000, 0xc000_0000, own.end() + 2 * MIB] {
            if low != 0 || !own.has_low() {
                try_at(1 << bit | low);
            }
            try_at((1 << bit) - PAGE);
        }
    }
    try_at(u64::MAX << 12);
}

/// A few of each kind, for what takes long.
pub fn some(own: &Own, memory: u64) -> impl Iterator<Item = u64> + use<> {
    // As above: high bits that are ignored do not make it an address of its own.
    let beyond = own.end() + 2 * MIB;
    let list = [
        2 * MIB,
        3 * MIB,
        4 * MIB + 0x3000,
        8 * MIB,
        own.end(),
        own.end() + 64 * MIB,
        memory / 2,
        memory - 2 * MIB,
        0xc000_0000,
        0xe000_0000,
        0xfeb0_0000,
        0xfec0_0000,
        0xfee0_0000,
        0xfee0_1000,
        4 * GIB,
        1 << 40 | beyond,
        1 << 51 | beyond,
        (1 << 52) - PAGE,
        1 << 63 | beyond,
    ];
    let foreign: [bool; 19] = core::array::from_fn(|index| !own.contains(list[index]));
    list.into_iter().zip(foreign).filter_map(|(at, foreign)| foreign.then_some(at))
}
