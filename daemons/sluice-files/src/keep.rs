//! A guest that keeps looking at what was mapped of a device file, where its front end has long taken it away: in the device's memory of maps, which
//! a guest's kernel reaches at any time.

use crate::camera::Camera;
use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{Mapping, PAGE};
use sluice_devfile::Map;
use sluice_hypercall::devfile::{DEVFILE_KIND, DEVFILE_MAPS_SIZE};
use std::fs::{File, read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// Pages that are looked at: the first buffers are in them.
const PAGES: u32 = 64;
/// Lines of the camera's pictures, and pixels of each.
const SIZE: (u32, u32) = (320, 180);

/// Looks while the buffers are mapped, and then.
pub fn run(path: &Path) -> Result<()> {
    let camera = Camera::open(path, SIZE.0, SIZE.1)?;
    let memory = File::options().read(true).write(true).open("/dev/mem").context("there is no /dev/mem")?;
    let places = maps()?;
    let look = || -> Result<u64> {
        let mut seen = 0;
        for place in &places {
            let map = Map { offset: *place, first: 0, pages: PAGES, read: true, write: false };
            let mapping = Mapping::new(&memory, &map).context("could not map the memory of maps")?;
            let mut bytes = vec![0; PAGES as usize * PAGE];
            mapping.read(&mut bytes);
            seen += bytes.iter().filter(|byte| **byte != 0).count() as u64;
        }
        Ok(seen)
    };
    let before = look()?;
    let mut stream = camera.stream()?;
    let mut frame = vec![0; camera.bytes()];
    for _ in 0..4 {
        stream.next(&mut frame)?;
    }
    let during = look()?;
    stream.unmap()?;
    let after = look()?;
    stream.stop()?;
    ensure!(during > 0, "nothing is seen while buffers are mapped");
    result(&format!("kept_before={before} kept_during=some kept_after={after}"));
    Ok(())
}

/// Where this guest's devices have their memory of maps.
fn maps() -> Result<Vec<u64>> {
    let mut places = Vec::new();
    for entry in read_dir("/sys/bus/pci/devices").context("there is no PCI bus")? {
        let device: PathBuf = entry?.path();
        let identifier = read_to_string(device.join("device"))?;
        if identifier.trim() != format!("{:#06x}", 0x1040 + DEVFILE_KIND) {
            continue;
        }
        for line in read_to_string(device.join("resource"))?.lines() {
            let mut words = line
                .split_whitespace()
                .filter_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
            if let (Some(first), Some(last)) = (words.next(), words.next())
                && last.wrapping_sub(first).wrapping_add(1) == DEVFILE_MAPS_SIZE
            {
                places.push(first);
            }
        }
    }
    ensure!(!places.is_empty(), "no device file has a memory of maps");
    Ok(places)
}
