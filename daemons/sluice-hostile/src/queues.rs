//! What the guest sees of a back end: used rings, and the notifications that tell of them. A daemon that was taken over can do this, with
//! no right but to open its device files.

use crate::Count;
use anyhow::{Context, Result};
use sluice_backend::function::{Function, QueueSetup, Window};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

/// Where the module has its device files.
const DEVICES: &str = "/dev/sluice";
/// The daemon that had a device file may just have ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// Offsets in a used ring (Virtio 1.2, 2.7.8): index, and elements of eight bytes.
const INDEX: u64 = 2;
const ELEMENTS: u64 = 4;

/// Every device file.
pub fn files() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(DEVICES).context("no device files")? {
        found.push(entry?.path());
    }
    found.sort();
    Ok(found)
}

/// Has the guest told of used buffers when there are none, as fast as that goes, and then of used rings full of nonsense.
pub fn attack(file: &Path, rounds: u32, count: &mut Count) -> Result<()> {
    let function = open(file)?;
    let info = function.info()?;
    let window = function.window(info.window)?;
    let began = Instant::now();
    // Queues that the guest does not use are notified, too.
    let calls =
        (0..info.queue_count.max(1)).map(|queue| function.calls(queue)).collect::<Result<Vec<_>>>()?;
    for round in 0..rounds {
        calls[round as usize % calls.len()].write(1)?;
        count.notifications += 1;
    }
    println!("flood of {} notifications took {:.1} s", rounds, began.elapsed().as_secs_f64());
    for (queue, call) in info.queues.iter().zip(&calls).filter(|(queue, _)| queue.enabled != 0) {
        for _ in 0..rounds / 10 {
            nonsense(&window, queue)?;
            call.write(1)?;
            count.rings += 1;
        }
    }
    Ok(())
}

pub fn open(file: &Path) -> Result<Function> {
    let began = Instant::now();
    loop {
        match Function::open(file) {
            Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
}

/// An index, and an element that it may make valid: one that the guest asked for or none, of a length that its buffer has or has not.
fn nonsense(window: &Window, queue: &QueueSetup) -> Result<()> {
    let entries = queue.entries.max(1);
    let small = fastrand::bool();
    let index = GuestAddress(queue.device + INDEX);
    let old: u16 = window.read_obj(index)?;
    let id = if small { fastrand::u32(..entries) } else { fastrand::u32(..) };
    let length = if fastrand::bool() { fastrand::u32(..0x2000) } else { fastrand::u32(..) };
    let place = u64::from(u32::from(old) % entries);
    let element = GuestAddress(queue.device + ELEMENTS + place * 8);
    window.write_obj(u64::from(length) << 32 | u64::from(id), element)?;
    let step = if small { 1 } else { fastrand::u16(..) };
    window.write_obj(old.wrapping_add(step), index)?;
    Ok(())
}
