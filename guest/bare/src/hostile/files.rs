//! A device file that another domain serves, used as no front end would: requests with anything in them, that change while they are read and name
//! address spaces and files without end; declarations of what is no program's, beyond all bounds; copies, which are not this guest's to ask for.
//! In between the server must answer a plain request.

use super::Tally;
use super::virtio::{AVAILABLE, BUFFERS, Device, Kind, PATIENCE, SIZE, USED};
use crate::console::println;
use crate::dma::memory::{get, put, put64};
use crate::entry::BootInfo;
use crate::machine::call;
use crate::machine::{outw, sleep, wait_for};
use crate::random::Random;
use sluice_hypercall::devfile as df;

/// Bytes from a request to the next, of which the answer is the last.
const STRIDE: u64 = 0x200;
const ANSWER: u64 = STRIDE - df::DEVFILE_ANSWER_SIZE as u64;
/// BAR of the memory of maps.
const MAPS_BAR: u32 = 4;
/// The first address that is a kernel's.
const KERNEL: u64 = 1 << 47;

/// Fills a request with what may be right or not.
fn wild_request(at: u64, random: &mut Random) {
    let mostly = |random: &mut Random, below: u64| match random.below(16) {
        0 => random.wild() as u32,
        _ => random.below(below) as u32,
    };
    put(at, mostly(random, 15));
    put(at + 4, mostly(random, 102));
    put64(at + 8, random.below(40));
    put(at + 16, mostly(random, 66));
    put(at + 20, if random.below(2) == 0 { 0 } else { random.wild() as u32 });
    for argument in [24, 32, 40] {
        let value = match random.below(4) {
            0 => random.wild(),
            // Parts of a file, and where they are to be seen.
            1 => random.below(0x40) << 12 | random.below(4) << 32,
            _ => random.below(0x2000),
        };
        put64(at + argument, value);
    }
    let taken = if random.below(4) == 0 { mostly(random, 11) << 16 } else { 0 };
    put(at + 48, mostly(random, 18) & 0xffff | taken);
    let ranges = at + u64::from(df::DEVFILE_REQUEST_RANGES);
    for range in 0..16 {
        wild_range(ranges + range * 16, random);
    }
    for descriptor in 0..u64::from(df::DEVFILE_MAX_DESCRIPTORS) {
        let place = at + u64::from(df::DEVFILE_REQUEST_DESCRIPTORS) + descriptor * 16;
        // Where the first range begins, or anywhere.
        let first = u64::from(get(ranges)) | u64::from(get(ranges + 4)) << 32;
        put64(place, if random.below(4) == 0 { random.wild() } else { first });
        put(place + 8, random.below(66) as u32 | mostly(random, 4100) << 16);
        put(place + 12, mostly(random, 0x40));
    }
}

/// A range. Returns whether it can be declared.
fn wild_range(at: u64, random: &mut Random) -> bool {
    let address = match random.below(6) {
        0 => random.wild(),
        1 => KERNEL - random.below(64),
        2 => u64::MAX - random.below(64),
        _ => random.below(KERNEL),
    };
    let bytes = if random.below(8) == 0 { random.wild() as u32 } else { random.below(0x3000) as u32 };
    let ways = if random.below(8) == 0 { random.wild() as u32 } else { random.below(4) as u32 };
    put64(at, address);
    put(at + 8, bytes);
    put(at + 12, ways);
    let end = address.checked_add(bytes.into());
    bytes > 0 && end.is_some_and(|end| end <= KERNEL) && (1..4).contains(&ways)
}

/// Whether the server answers that it is there.
fn is_served(file: &Device) -> bool {
    file.lend();
    if !file.reset() || !file.start(false) {
        return false;
    }
    let at = file.at + BUFFERS;
    put(at, df::DEVFILE_HELLO);
    put64(at + ANSWER, u64::MAX);
    ask(file, 0);
    file.offer(0, 1);
    wait_for(PATIENCE, || {
        sleep(1_000_000);
        get(file.at + USED) >> 16 == 1
    }) && get(at + ANSWER) == 0
}

/// The descriptors of a request, and its place in the ring.
fn ask(file: &Device, number: u64) {
    let at = file.at + BUFFERS + number * STRIDE;
    let head = number * 2;
    file.descriptor(file.at, head, at, df::DEVFILE_REQUEST_SIZE, 1, head as u32 + 1);
    file.descriptor(file.at, head + 1, at + ANSWER, df::DEVFILE_ANSWER_SIZE, 2, 0);
    let entry = file.at + AVAILABLE + 4 + number * 2;
    unsafe { (entry as *mut u16).write_volatile(head as u16) };
}

fn attack(file: &Device, random: &mut Random) {
    let most = SIZE / 2;
    for number in 0..most {
        wild_request(file.at + BUFFERS + number * STRIDE, random);
        ask(file, number);
        if random.below(64) == 0 {
            file.wild_descriptor(file.at, 0, number * 2 + random.below(2), random);
        }
    }
    file.offer(0, most as u32);
    for _ in 0..20 {
        wild_request(file.at + BUFFERS + random.below(most) * STRIDE, random);
        sleep(200_000);
    }
}

/// Calls with anything as arguments. Returns how many were answered as they should not be.
fn calls(file: &Device, random: &mut Random) -> u32 {
    let slot = u64::from(file.function.slot());
    let list = file.at + BUFFERS;
    let mut wrong = 0;
    for _ in 0..4_000u32 {
        let which = if random.below(8) == 0 { random.below(256) } else { slot };
        let tag = if random.below(8) == 0 { random.wild() } else { random.below(104) };
        match random.below(4) {
            0 | 1 => {
                let count = if random.below(8) == 0 { random.wild() } else { random.below(4) };
                let mut sound = true;
                for range in 0..count.min(16) {
                    sound &= wild_range(list + range * 16, random);
                }
                let at = match random.below(8) {
                    0 => file.end - random.below(16) * u64::from(count > 0),
                    1 => random.wild(),
                    _ => list,
                };
                let done = call(df::DEVFILE_DECLARE, [which, tag, at, count]) >= 0;
                let may = which == slot && tag < 100 && count <= 16 && (sound || at != list);
                wrong += u32::from(done && !may);
            }
            2 => {
                let done = call(df::DEVFILE_WITHDRAW, [which, tag, 0, 0]) >= 0;
                wrong += u32::from(done && (which != slot || tag >= 100));
            }
            _ => {
                let way = random.below(4) << 32 | random.below(0x8000);
                wrong +=
                    u32::from(call(df::DEVFILE_COPY, [which | tag << 32, random.wild(), list, way]) >= 0);
            }
        }
    }
    wrong
}

/// Moves the memory of maps about, over whatever is there. Its last place is the first.
fn move_maps(file: &Device, random: &mut Random) {
    let (low, high) = (0x10 + 4 * MAPS_BAR, 0x14 + 4 * MAPS_BAR);
    let place = [low, high].map(|register| file.function.read(register));
    for _ in 0..200u32 {
        let high_part = if random.below(2) == 0 { random.below(0x80) } else { random.wild() };
        file.function.write(high, high_part as u32);
        file.function.write(low, random.wild() as u32);
    }
    file.function.write(low, place[0]);
    file.function.write(high, place[1]);
}

/// Runs the attack.
pub fn run(random: &mut Random, boot: &BootInfo) {
    let Some(file) = Device::find(Kind::File, boot) else {
        println!("no device file");
        return;
    };
    let mut tally = Tally::default();
    let (mut served, mut asked, mut wrong) = (0, 0, 0);
    let mut ask = |file: &Device| {
        asked += 1;
        served += u32::from(is_served(file));
        println!("SLUICE-RESULT requests={asked} served={served}");
    };
    ask(&file);
    for round in 1..=24u32 {
        file.lend();
        if file.reset() && file.start(false) {
            tally.attempt(|| attack(&file, random));
            wrong += calls(&file, random);
            tally.attempt(|| move_maps(&file, random));
        }
        if round % 8 == 0 {
            ask(&file);
        }
    }
    for _ in 0..5_000u32 {
        tally.attempt(|| outw(file.doorbell, 0));
    }
    ask(&file);
    println!("SLUICE-RESULT calls_wrong={wrong}");
    tally.report("files");
}
