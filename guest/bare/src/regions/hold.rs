//! The guest: it fills pages of its region, and looks at the end what has become of them.

use super::{DAMAGE, LEN, PAGE, PATIENCE, command, page, secret};
use crate::console::println;
use crate::dma::memory::{get, put};
use crate::machine::{sleep, wait_for};
use crate::pci;
use sluice_hypercall::devfile::DEVFILE_KIND;

/// BAR of the memory of maps.
const MAPS_BAR: u32 = 4;
/// Offset of the device's status (Virtio 1.2, 4.1.4.3).
const STATUS: u64 = 20;

/// Words of a page.
fn words(maps: u64, page: u64) -> impl Iterator<Item = u64> {
    (maps + page * PAGE..maps + page * PAGE + LEN).step_by(4)
}

fn all(maps: u64, page: u64, value: u32) -> bool {
    words(maps, page).all(|at| get(at) == value)
}

/// Runs it as guest `number`.
pub fn run(number: u32) {
    let identifiers = (0x1040 + DEVFILE_KIND) << 16 | 0x1af4;
    // Function 0 says who the device behind the file is.
    let Some(file) = pci::find(|function| pci::next(function).read(0) == identifiers).map(pci::next) else {
        println!("no device file");
        return;
    };
    file.enable();
    let (registers, maps) = (file.memory(0), file.memory(MAPS_BAR));
    let told = |what: u32| {
        wait_for(PATIENCE, || {
            sleep(1_000_000);
            get(maps + page::COMMAND * PAGE) == what
        })
    };
    if !told(command::BEGIN) {
        println!("SLUICE-RESULT begun=never done=failed");
        return;
    }
    let (mine, secrets) = (secret(number), page::SECRETS..page::SECRETS_END);
    for at in secrets.clone().flat_map(|page| words(maps, page)) {
        put(at, mine);
    }
    println!("SLUICE-RESULT held=yes");
    unsafe { ((registers + STATUS) as *mut u8).write_volatile(1) };
    let done = told(command::LOOK);
    let changed = secrets.filter(|page| !all(maps, *page, mine)).count();
    let foreign = words(maps, page::FOREIGN).filter(|at| ![0, mine, DAMAGE].contains(&get(*at))).count();
    let carried = words(maps, page::CARRIED).any(|at| ![0, mine, DAMAGE].contains(&get(at)));
    let carried = if carried { "yes" } else { "no" };
    let works = if all(maps, page::OWN, mine) { "yes" } else { "no" };
    println!("SLUICE-RESULT changed={changed} foreign={foreign} carried={carried} works={works}");
    println!("SLUICE-RESULT done={}", if done { "ok" } else { "failed" });
}
