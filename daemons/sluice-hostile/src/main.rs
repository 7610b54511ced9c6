//! What a domain that serves devices can do to others with all rights in its own system, but without the memory that was lent to it: its
//! back-end functions' registers, the window beyond what is lent, addresses of BARs, and its own card told to reach memory that it has not
//! got; before that, what a daemon can do that has device files only ([`queues`]). Or, instead of
//! all that, what it finds in the memory that is lent ([`secrets`]). For the scenario `hostile-server`; who lends it memory
//! may suffer, nobody else.
//!
//! It counts attacks whose outcome it sees, and those that gave it something: memory of a window that is neither zero nor its own, registers
//! where none are. What it does to the registers, to used rings, by notifications and by DMA only others can judge: those are provocations.

mod files;
mod queues;
mod secrets;

use anyhow::{Context, Result};
use clap::Parser;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Attacks from a domain that serves devices.
#[derive(Debug, Parser)]
struct Hostile {
    /// Accesses of each kind.
    #[arg(long, default_value_t = 20_000)]
    rounds: u32,
    /// Notifications for each device, and a tenth as many used rings for each of its queues.
    #[arg(long, default_value_t = 20_000)]
    notifications: u32,
    /// MiB of each window that are lent, and left alone.
    #[arg(long, default_value_t = 256)]
    lent: u64,
    /// Nothing of this: the windows are looked through for what a guest keeps to itself.
    #[arg(long)]
    look: bool,
    /// Nothing of this: memory of a guest's processes that use this device file, by its `/dev/sluice/GUEST.DEVICE`.
    #[arg(long)]
    files: Option<PathBuf>,
    /// What is done at random follows from this.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Vendor of back-end functions (`sluice_hypercall::backend`).
const BACK_END: &str = "0x534c";
/// Class of network cards.
const NETWORK: &str = "0x020000";
/// Upper half of what is written into windows.
const MARK: u64 = 0x5107_ce00_0000_0000;
/// Where addresses are that are not the domain's, or not memory: of the first guests, above 4 GiB, of the firmware, of both kinds of
/// interrupt controllers, of the configuration of PCI.
const ELSEWHERE: [u64; 10] = [
    0x0,
    0x10_0000,
    0x2000_0000,
    0x3fff_f000,
    0xe000_0000,
    0xfec0_0000,
    0xfee0_0000,
    0xffff_f000,
    0x1_0000_0000,
    0x40_0000_0000,
];

#[derive(Debug, Default)]
struct Count {
    tried: u64,
    succeeded: u64,
    provocations: u64,
    notifications: u64,
    rings: u64,
}

fn main() -> Result<()> {
    let Hostile { rounds, notifications, lent, look, files, seed } = Hostile::parse();
    fastrand::seed(seed);
    if let Some(file) = files {
        return self::files::attack(&file, rounds);
    }
    if look {
        return secrets::look(&functions("vendor", BACK_END)?);
    }
    let mut count = Count::default();
    for file in queues::files()? {
        queues::attack(&file, notifications, &mut count)
            .with_context(|| format!("queues of {}", file.display()))?;
    }
    println!("SLUICE-RESULT notifications={} rings={}", count.notifications, count.rings);
    let functions = functions("vendor", BACK_END)?;
    anyhow::ensure!(!functions.is_empty(), "this domain serves nothing");
    for function in &functions {
        let_go(function)?;
        registers(function, rounds, &mut count).context("registers")?;
        beyond(function, lent << 20, rounds, &mut count).context("window")?;
    }
    for function in &functions {
        bars(function, &mut count).context("addresses")?;
    }
    for card in self::functions("class", NETWORK)? {
        let_go(&card)?;
        dma(&card, &mut count).context("DMA")?;
    }
    let Count { tried, succeeded, provocations, .. } = count;
    println!("SLUICE-RESULT attacks={tried} succeeded={succeeded} provocations={provocations}");
    Ok(())
}

/// Functions on the bus of which this is said.
fn functions(what: &str, value: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/bus/pci/devices")? {
        let path = entry?.path();
        if std::fs::read_to_string(path.join(what))?.trim() == value {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Has no driver drive a function, which answers and masters the bus all the same.
fn let_go(function: &Path) -> Result<()> {
    let name = function.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if function.join("driver").exists() {
        std::fs::write(function.join("driver/unbind"), name)?;
    }
    configuration(function)?.write_all_at(&6u16.to_le_bytes(), 4)?;
    Ok(())
}

fn configuration(function: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).write(true).open(function.join("config"))?)
}

/// A memory BAR.
fn map(function: &Path, bar: u8) -> Result<MmapRegion> {
    let file = OpenOptions::new().read(true).write(true).open(function.join(format!("resource{bar}")))?;
    let size = usize::try_from(file.metadata()?.len())?;
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    Ok(MmapRegion::build(Some(FileOffset::new(file, 0)), size, access, shared)?)
}

/// Any register, by accesses of any width, with any value.
fn registers(function: &Path, rounds: u32, count: &mut Count) -> Result<()> {
    let region = map(function, 0)?;
    let registers = region.as_volatile_slice();
    let size = registers.len();
    for _ in 0..rounds {
        let small = fastrand::bool();
        let value = if small { fastrand::u64(0..64) } else { fastrand::u64(..) };
        // Most of them are at the beginning.
        let at = if fastrand::u8(..) < 200 { fastrand::usize(..0x400) } else { fastrand::usize(..size) };
        let write = fastrand::bool();
        match fastrand::u8(..4) {
            0 if write => registers.store(value as u8, at, Relaxed)?,
            0 => drop(registers.load::<u8>(at, Relaxed)?),
            1 if write => registers.store(value as u16, at & !1, Relaxed)?,
            1 => drop(registers.load::<u16>(at & !1, Relaxed)?),
            2 if write => registers.store(value as u32, at & !3, Relaxed)?,
            2 => drop(registers.load::<u32>(at & !3, Relaxed)?),
            _ if write => registers.store(value, at & !7, Relaxed)?,
            _ => drop(registers.load::<u64>(at & !7, Relaxed)?),
        }
        count.provocations += 1;
    }
    Ok(())
}

/// The window where nothing is lent: what is there must be the domain's own.
fn beyond(function: &Path, lent: u64, rounds: u32, count: &mut Count) -> Result<()> {
    let region = map(function, 2)?;
    let window = region.as_volatile_slice();
    let lent = usize::try_from(lent)?;
    anyhow::ensure!(lent < window.len(), "all of the window is lent");
    for round in 0..rounds {
        let at = fastrand::usize(lent..window.len()) & !7;
        let found: u64 = window.load(at, Relaxed)?;
        if found != 0 && found & !0xffff_ffff != MARK {
            count.succeeded += 1;
        }
        window.store(MARK | u64::from(round), at, Relaxed)?;
        count.tried += 1;
    }
    Ok(())
}

/// BARs at addresses where they cannot be, all of them at each. Where the registers were nobody answers then.
fn bars(function: &Path, count: &mut Count) -> Result<()> {
    let configuration = configuration(function)?;
    let region = map(function, 0)?;
    let registers = region.as_volatile_slice();
    let mut old = [0; 24];
    configuration.read_exact_at(&mut old, 0x10)?;
    for address in ELSEWHERE {
        for bar in [0u64, 2] {
            configuration.write_all_at(&(address as u32).to_le_bytes(), 0x10 + bar * 4)?;
            if bar == 2 {
                configuration.write_all_at(&((address >> 32) as u32).to_le_bytes(), 0x1c)?;
            }
            count.tried += 1;
            if registers.load::<u32>(0, Relaxed)? != u32::MAX {
                count.succeeded += 1;
            }
        }
    }
    for (register, value) in (0x10..).step_by(4).zip(old.as_chunks::<4>().0) {
        configuration.write_all_at(value, register)?;
    }
    Ok(())
}

/// Has an e1000 send from memory that is not the domain's, and receive into it.
fn dma(card: &Path, count: &mut Count) -> Result<()> {
    /// Registers of the card (Intel PCI/PCI-X Family of Gigabit Ethernet Controllers, 13.4).
    const RCTL: usize = 0x0100;
    const TCTL: usize = 0x0400;
    const RING: [usize; 2] = [0x2800, 0x3800];
    let region = map(card, 0)?;
    let registers = region.as_volatile_slice();
    for address in ELSEWHERE.into_iter().filter(|address| *address >= 0x2000_0000) {
        for control in [RCTL, TCTL] {
            registers.store(0u32, control, Relaxed)?;
        }
        for ring in RING {
            registers.store(address as u32, ring, Relaxed)?;
            registers.store((address >> 32) as u32, ring + 4, Relaxed)?;
            // 256 descriptors: length, head, tail.
            for (offset, value) in [(0x08, 4096u32), (0x10, 0), (0x18, 200)] {
                registers.store(value, ring + offset, Relaxed)?;
            }
        }
        // Everything that comes, from everybody.
        registers.store(0x8000_801eu32, RCTL, Relaxed)?;
        registers.store(0x0000_000au32, TCTL, Relaxed)?;
        registers.store(0u32, RING[1] + 0x18, Relaxed)?;
        registers.store(200u32, RING[1] + 0x18, Relaxed)?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        count.provocations += 1;
    }
    for control in [RCTL, TCTL] {
        registers.store(0u32, control, Relaxed)?;
    }
    // A fault that is looked at when the card is nobody's any more counts as nobody's.
    std::thread::sleep(std::time::Duration::from_millis(500));
    Ok(())
}
