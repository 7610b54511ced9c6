//! Serves the virtio devices of guests from a driver domain: one thread for each `/dev/sluice/GUEST.DEVICE`, also for those
//! that come later.
//!
//! A disk is a file or block device ([`disk`], [`blk`]); a network card is the kernel's vhost-net, or this daemon, between the guest's queues
//! and a tap on a bridge ([`net`]). A disk can also be another program's, and a file system always is ([`sluice_backend::vhost_user`]). Device files of this domain are mirrored in guests
//! ([`devfile`]). [`function`] is the device file, [`serve`] the life of a device.
//!
//! # After a crash
//! What the daemon knows of a queue is in the guest's memory: all requests up to the used index are answered, none after it
//! is. A daemon that comes up takes every queue up there, so that a request whose answer was not written yet is done again.
//! This is right because requests are answered in order, a write is on its disk before it is answered, and doing a read or
//! a write twice is doing it once: the guest does not touch its buffers before the answer. For a network card it means that
//! a few packets may be sent twice. A device file's operations cannot be done again: the guest is told that they have failed.

mod blk;
mod charge;
mod devfile;
mod disk;
mod hang;
mod net;
mod serve;
mod tap;

use charge::{Charges, Weight};
use clap::Parser;
use hang::{HangWatch, OnHang};
use net::{ByTable, Mover, Moving};
use serve::Patience;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Serves guests' virtio disks, network cards and device files from a driver domain.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where the device files are.
    #[arg(long, default_value = "/dev/sluice")]
    devices: PathBuf,
    /// A folder with an empty file for each device that is offered to its guest.
    #[arg(long, default_value = "/run/sluice-backend")]
    state: PathBuf,
    /// How long a disk's queue is looked at for more requests before its guest has to notify again, in microseconds.
    #[arg(long, default_value_t = 50)]
    poll: u64,
    /// How long it is looked for the next operation on a device file before its guest has to notify again, in microseconds; 0: not at all.
    #[arg(long, default_value_t = 200)]
    poll_files: u64,
    /// Who moves packets between guests and bridges: the kernel's vhost-net, or this daemon with a call for each. Those of guests that lend pages by a table it always moves.
    #[arg(long, value_enum, default_value_t = Mover::Kernel)]
    packets: Mover,
    /// How packets are reached that a guest lends by a table.
    #[arg(long, value_enum, default_value_t = ByTable::Map)]
    table: ByTable,
    /// How much of the processors a guest gets when others want more than is left, as in bob=300; 100 if it is not named, up to 10000.
    #[arg(long, value_name = "GUEST=WEIGHT")]
    weight: Vec<Weight>,
    /// How long a driver may take to end an operation that was interrupted, and then a process that was killed for it, until it is said to hang, in seconds.
    #[arg(long, default_value_t = 10)]
    hang_after: u64,
    /// What follows when a driver hangs.
    #[arg(long, value_enum, default_value_t = OnHang::Say)]
    on_hang: OnHang,
    /// Guests share the work of graphics cards by their weights: this daemon gives a card their commands, each guest's when its turn has come. Cards with the
    /// kernel's virtio driver, which do what they are given in that order.
    #[arg(long)]
    turns: bool,
    /// Makes system calls for a process of a guest (the daemon starts itself with this).
    #[arg(long, hide = true)]
    shadow: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.shadow {
        return devfile::shadow::run(Duration::from_micros(arguments.poll_files), arguments.turns);
    }
    std::fs::create_dir_all(&arguments.state)?;
    for entry in std::fs::read_dir(&arguments.state)? {
        std::fs::remove_file(entry?.path())?;
    }
    let charges = match Charges::open(&arguments.weight) {
        Ok(charges) => Some(Arc::new(charges)),
        Err(error) if arguments.weight.is_empty() => {
            eprintln!("sluice-backend: work for guests is not charged to them: {error:#}");
            None
        }
        Err(error) => return Err(error.context("guests cannot be weighed")),
    };
    let served = Arc::new(Mutex::new(BTreeSet::new()));
    loop {
        for path in device_files(&arguments.devices) {
            let fresh = served.lock().map(|mut served| served.insert(path.clone())).unwrap_or(false);
            if fresh {
                let (arguments, served, charges) = (arguments.clone(), Arc::clone(&served), charges.clone());
                std::thread::spawn(move || {
                    keep_serving(&path, &arguments, charges.as_deref());
                    let _ = served.lock().map(|mut served| served.remove(&path));
                });
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Files of the folder, if it is there yet.
fn device_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Serves a device until its file is gone, again and again, and has that charged to its guest. What is wrong is said once, not each time.
fn keep_serving(path: &Path, arguments: &Arguments, charges: Option<&Charges>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(Err(error)) = charges.map(|charges| charges.enter(&name)) {
        eprintln!("sluice-backend: {name}: not charged to its guest: {error:#}");
    }
    let mark = arguments.state.join(&name);
    let mut said = String::new();
    while path.exists() {
        let patience = Patience {
            queue: Duration::from_micros(arguments.poll),
            files: Duration::from_micros(arguments.poll_files),
            hang: HangWatch {
                patience: Duration::from_secs(arguments.hang_after),
                action: arguments.on_hang,
            },
        };
        let moving = Moving { by: arguments.packets, table: arguments.table };
        let turns = arguments.turns.then(|| charge::weight(&arguments.weight, &name));
        let end = serve::serve(path, patience, moving, turns, || {
            println!("sluice-backend: {name} is offered to its guest");
            std::fs::write(&mark, "")
        });
        let _ = std::fs::remove_file(&mark);
        if let Err(error) = end {
            let text = format!("{error:#}");
            if text != said {
                eprintln!("sluice-backend: {name}: {text}");
                said = text;
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
