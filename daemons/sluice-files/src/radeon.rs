//! A Radeon card by its own ioctls, by include/uapi/drm/radeon_drm.h: what it says of itself, memory of the card that is mapped, and what fails.
//!
//! Nothing depends on who asks: a guest's answers are compared with those in the domain that has the card.

use crate::drm::{call, number, plain};
use crate::result;
use anyhow::{Context, Result, bail, ensure};
use sluice_backend::sys::{Call, Mapping, PAGE, Plain};
use sluice_devfile::Map;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use vmm_sys_util::ioctl::_IOC_WRITE;

/// Requests of `RADEON_INFO`, and some that there are not.
const REQUESTS: u32 = 0x2a;
/// Bytes of the longest answer.
const ANSWER: usize = 128;
/// `RADEON_INFO_DEVICE_ID`.
const DEVICE_ID: u32 = 0x00;
/// Answers that differ from one moment to the next: `TIMESTAMP`, `NUM_BYTES_MOVED`, `VRAM_USAGE`, `GTT_USAGE`.
const MOVING: [u32; 4] = [0x11, 0x1d, 0x1e, 0x1f];

/// `RADEON_GEM_DOMAIN_CPU`, `RADEON_GEM_DOMAIN_VRAM`, and what results call them. A card without firmware reaches no memory of the host's.
const DOMAINS: [(u32, &str); 2] = [(1, "host"), (4, "card")];
/// Pages of a buffer: more than a driver maps at once, and than a list of grants has.
const PAGES: u32 = 300;

/// `struct drm_version`, with room for a name.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Version {
    numbers: [u32; 4],
    texts: [u64; 6],
}

/// `struct drm_radeon_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Info {
    request: u32,
    padding: u32,
    value: u64,
}

/// `struct drm_radeon_gem_info`: bytes of the memory that the card reaches, of its own, and of its own that processors reach.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Sizes([u64; 3]);

/// `struct drm_radeon_gem_create`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Create {
    size: u64,
    alignment: u64,
    handle: u32,
    domain: u32,
    flags: u32,
    padding: u32,
}

/// `struct drm_radeon_gem_mmap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Place {
    handle: u32,
    padding: u32,
    offset: u64,
    size: u64,
    address: u64,
}

/// `struct drm_radeon_gem_userptr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct OwnMemory {
    address: u64,
    size: u64,
    flags: u32,
    handle: u32,
}

/// `struct drm_radeon_cs`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Commands {
    count: u32,
    number: u32,
    chunks: u64,
    limits: [u64; 2],
}

plain!(Version, Info, Sizes, Create, Place, OwnMemory, Commands);

const VERSION: Call<Version> = call(0x00);
// SAFETY: The driver reads two numbers.
const CLOSE: Call<u64> = unsafe { Call::new(number(_IOC_WRITE, 0x09, size_of::<u64>())) };
const SIZES: Call<Sizes> = call(0x5c);
const CREATE: Call<Create> = call(0x5d);
const PLACE: Call<Place> = call(0x5e);
const COMMANDS: Call<Commands> = call(0x66);
const INFO: Call<Info> = call(0x67);
const OWN_MEMORY: Call<OwnMemory> = call(0x6d);
/// `DRM_RADEON_CP_INIT`, of drivers that set no modes: there is none any more.
const GONE: Call<[u64; 2]> = call(0x40);

/// An error's number; 0 of none.
fn outcome<T>(done: &io::Result<T>) -> i32 {
    done.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

/// The name of the driver.
fn driver(file: &File) -> Result<String> {
    let mut name = [0_u8; 32];
    let mut version = Version::default();
    version.texts[..2].copy_from_slice(&[name.len() as u64, name.as_mut_ptr() as u64]);
    VERSION.update(file, &mut version).context("VERSION failed")?;
    let len = (version.texts[0] as usize).min(name.len());
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// What comes of a request, in memory that is filled with a byte but for the number that some read at its beginning: 0.
fn ask(file: &File, request: u32, fill: u8) -> (i32, [u8; ANSWER]) {
    let mut answer = [fill; ANSWER];
    answer[..4].fill(0);
    let mut info = Info { request, padding: 0, value: answer.as_mut_ptr() as u64 };
    let done = INFO.update(file, &mut info);
    (outcome(&done), answer)
}

/// All requests: their errors, or how many bytes they write and what.
fn answers(file: &File) -> String {
    let one = |request: u32| {
        let (first, second) = (ask(file, request, 0x00), ask(file, request, 0xff));
        if first.0 != 0 {
            return format!("{request:x}:e{}", first.0);
        }
        let written = (0..ANSWER).rev().find(|at| first.1[*at] == second.1[*at]).map_or(0, |at| at + 1);
        let value = if MOVING.contains(&request) { 0 } else { word(&first.1) };
        format!("{request:x}:{written}:{value:x}")
    };
    (0..REQUESTS).map(one).collect::<Vec<_>>().join(",")
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// Bytes that are others on each page, and for each buffer.
fn pattern(which: u32) -> Vec<u8> {
    let words = (0..PAGES * (PAGE / 4) as u32).map(|word| (word ^ which << 28).wrapping_mul(0x9e37_79b1));
    words.flat_map(u32::to_le_bytes).collect()
}

/// A buffer of the card's, and what can be mapped of it.
fn buffer(file: &File, domain: u32) -> Result<(u32, Map)> {
    let size = u64::from(PAGES) * PAGE as u64;
    let mut create = Create { size, alignment: PAGE as u64, domain, ..Create::default() };
    CREATE.update(file, &mut create).context("GEM_CREATE failed")?;
    let mut place = Place { handle: create.handle, size, ..Place::default() };
    PLACE.update(file, &mut place).context("GEM_MMAP failed")?;
    Ok((create.handle, Map { offset: place.address, first: 0, pages: PAGES, read: true, write: true }))
}

/// Writes buffers by one mapping and reads them by another; each has what was written to it.
fn use_memory(file: &File) -> Result<()> {
    for (domain, name) in DOMAINS {
        let buffers = [buffer(file, domain)?, buffer(file, domain)?];
        let mut bytes = vec![0; PAGES as usize * PAGE];
        Mapping::new(file, &buffers[0].1).context("could not map a buffer")?.read(&mut bytes);
        let left = if bytes.iter().any(|byte| *byte != 0) { "something" } else { "nothing" };
        for (which, (_, map)) in (0..).zip(&buffers) {
            Mapping::new(file, map).context("could not map a buffer")?.write(&pattern(which));
        }
        let mut wrong = 0;
        for (which, (_, map)) in (0..).zip(&buffers) {
            Mapping::new(file, map).context("could not map a buffer again")?.read(&mut bytes);
            wrong += bytes.iter().zip(pattern(which)).filter(|(found, written)| *found != written).count();
        }
        let (_, map) = &buffers[1];
        let beyond = Mapping::new(file, &Map { pages: PAGES + 1, ..*map });
        for (handle, _) in &buffers {
            CLOSE.set(file, &u64::from(*handle)).context("GEM_CLOSE failed")?;
        }
        let closed = Mapping::new(file, map);
        let (beyond, closed) = (outcome(&beyond), outcome(&closed));
        result(&format!(
            "radeon_{name}_left={left} radeon_{name}_wrong={wrong} radeon_{name}_beyond={beyond} radeon_{name}_closed={closed}"
        ));
    }
    Ok(())
}

/// What cannot be done fails as the driver has it, but for memory of the program's own.
fn ask_wrongly(file: &File) {
    let nowhere = 0x1000;
    let mut info = Info { request: DEVICE_ID, padding: 0, value: nowhere };
    let pointer = outcome(&INFO.update(file, &mut info));
    let gone = outcome(&GONE.update(file, &mut [0; 2]));
    // Two words of commands, in one chunk.
    let words = [0_u32; 2];
    let chunk = [1_u32, 2, words.as_ptr() as u32, (words.as_ptr() as u64 >> 32) as u32];
    let chunks = [chunk.as_ptr() as u64];
    let mut commands = Commands { count: 1, chunks: chunks.as_ptr() as u64, ..Commands::default() };
    let commands = outcome(&COMMANDS.update(file, &mut commands));
    // ANONONLY and REGISTER.
    let memory = vec![0_u8; 2 * PAGE];
    let address = (memory.as_ptr() as u64).next_multiple_of(PAGE as u64);
    let mut own = OwnMemory { address, size: PAGE as u64, flags: 2 | 8, handle: 0 };
    let own_memory = outcome(&OWN_MEMORY.update(file, &mut own));
    if own_memory == 0 {
        let _ = CLOSE.set(file, &u64::from(own.handle));
    }
    result(&format!(
        "radeon_pointer={pointer} radeon_gone={gone} radeon_commands={commands} radeon_own_memory={own_memory}"
    ));
}

/// Keeps a buffer of the card's memory mapped, and says when a line comes whether what was written is there: `look`, and `map` after it was mapped anew.
fn hold(file: &File) -> Result<()> {
    let (_, map) = buffer(file, DOMAINS[1].0)?;
    let mut mapping = Mapping::new(file, &map).context("could not map a buffer")?;
    let written = pattern(2);
    mapping.write(&written);
    result("radeon_held=ready");
    for (number, line) in (1..).zip(io::stdin().lines()) {
        match line.context("no line came")?.trim() {
            "look" => {}
            "map" => mapping = Mapping::new(file, &map).context("could not map a buffer again")?,
            "end" => return Ok(()),
            other => bail!("what is '{other}'?"),
        }
        let mut bytes = vec![0; written.len()];
        mapping.read(&mut bytes);
        let pages = bytes.chunks(PAGE).zip(written.chunks(PAGE));
        let count = pages.filter(|(found, written)| found == written).count();
        result(&format!("radeon_look_{number}={count}"));
    }
    bail!("no line came")
}

/// Maps a page of a file that has places, at each of these.
pub fn map(path: &Path, places: &[String]) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path).context("could not open the file")?;
    for place in places {
        let offset = u64::from_str_radix(place, 16).context("a place is no number")?;
        let mapped = Mapping::new(&file, &Map { offset, first: 0, pages: 1, read: true, write: true });
        result(&format!("map_{place}={}", outcome(&mapped)));
    }
    Ok(())
}

/// Asks a card, by one of its nodes, and uses its memory; or holds a part of that.
pub fn run(path: &Path, held: bool) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path).context("could not open the card")?;
    if held {
        return hold(&file);
    }
    result(&format!("radeon_driver={}", driver(&file)?));
    let (error, id) = ask(&file, DEVICE_ID, 0);
    ensure!(error == 0, "INFO failed: error {error}");
    let Sizes(sizes) = SIZES.get(&file).context("GEM_INFO failed")?;
    let sizes = sizes.map(|bytes| (bytes >> 20).to_string()).join("/");
    result(&format!("radeon_id={:#06x} radeon_mib={sizes} radeon_answers={}", word(&id), answers(&file)));
    use_memory(&file)?;
    ask_wrongly(&file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        // 64 bits: include/uapi/drm/drm.h, radeon_drm.h.
        assert_eq!(size_of::<Version>(), 64);
        assert_eq!(size_of::<Info>(), 16);
        assert_eq!(size_of::<Create>(), 32);
        assert_eq!(size_of::<Place>(), 32);
        assert_eq!(size_of::<OwnMemory>(), 24);
        assert_eq!(size_of::<Commands>(), 32);
    }

    #[test]
    fn buffers_have_other_bytes_on_each_page() {
        let (first, second) = (pattern(0), pattern(1));
        let pages = |bytes: &[u8]| bytes.chunks(PAGE).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut all = [pages(&first), pages(&second)].concat();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count), (count, 2 * PAGES as usize));
    }
}
