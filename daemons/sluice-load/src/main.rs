//! The load of the benchmark `driver-domain`, the same program in every guest under every hypervisor: a disk written and read past the
//! page cache with several requests under way ([`disk`]), or data sent from one guest to another ([`line`]), messages of several pairs of guests at the same time ([`exchange`]). What was moved is compared
//! with what it must be ([`pattern`]), outside of what is measured. [`soak`] is the load under which those who serve are ended and started again.
//!
//! Whoever counts instructions from outside is told where a part begins and ends by a write to a port that nobody has ([`mark`]); what was
//! moved in it is a line `SLUICE-RESULT at=PART ...` on the console.

mod disk;
mod exchange;
mod flood;
mod line;
mod mark;
mod pattern;
mod ring;
mod soak;

use clap::Parser;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;

/// Loads a disk or a connection, checks what came of it, and marks where it begins and ends.
#[derive(Debug, Parser)]
#[command(version)]
enum Load {
    /// Write and read a disk: in order in large requests, then small ones at random places. What is on it is lost.
    Disk {
        /// The disk.
        device: PathBuf,
        /// MiB that are written and read in order.
        #[arg(long, default_value_t = 16)]
        mib: usize,
        /// Requests of 4 KiB at random places.
        #[arg(long, default_value_t = 2048)]
        requests: usize,
        /// Small requests that are under way at once.
        #[arg(long, default_value_t = 32)]
        depth: usize,
        /// Large requests that are under way at once.
        #[arg(long, default_value_t = 4)]
        large_depth: usize,
    },
    /// Take data from whoever connects.
    Listen {
        /// Where.
        at: SocketAddrV4,
        /// MiB to take.
        #[arg(long, default_value_t = 4)]
        mib: usize,
    },
    /// Send data to who listens.
    Talk {
        /// Who listens.
        to: SocketAddr,
        /// MiB to send.
        #[arg(long, default_value_t = 4)]
        mib: usize,
    },
    /// Exchange small messages with who listens and takes no data, from when a line is typed.
    Exchange {
        /// Who listens.
        to: SocketAddr,
        /// How many.
        #[arg(long, default_value_t = 500)]
        trips: usize,
    },
    /// Download from the server of `sluice`.
    Get {
        /// The server.
        from: SocketAddr,
        /// What, as HTTP names it.
        name: String,
        /// How many bytes it has.
        #[arg(long)]
        bytes: usize,
        /// Where it is left.
        #[arg(long)]
        to: PathBuf,
    },
    /// Upload to the server of `sluice`.
    Put {
        /// The server.
        to: SocketAddr,
        /// How HTTP is to name it.
        name: String,
        /// What.
        #[arg(long)]
        from: PathBuf,
    },
    /// Send datagrams as fast as they are taken, until it is ended.
    Flood {
        /// Where to.
        to: SocketAddr,
        /// Bytes of each.
        #[arg(long)]
        bytes: usize,
    },
    /// Write, read and check a disk until a line is typed.
    SoakDisk {
        /// The disk.
        device: PathBuf,
    },
    /// Take numbered blocks until the end of the connection, and check them.
    SoakListen {
        /// Where.
        at: SocketAddrV4,
    },
    /// Send numbered blocks until a line is typed.
    SoakTalk {
        /// Who listens.
        to: SocketAddr,
    },
}

fn main() -> anyhow::Result<()> {
    match Load::parse() {
        Load::Disk { device, mib, requests, depth, large_depth } => {
            let disk = disk::Disk::open(&device)?;
            disk::load(&disk, &disk::Amounts { bytes: mib << 20, requests, depth, large_depth })
        }
        Load::Listen { at, mib } => line::listen(at, mib << 20),
        Load::Talk { to, mib } => line::talk(to, mib << 20),
        Load::Exchange { to, trips } => exchange::exchange(to, trips),
        Load::Get { from, name, bytes, to } => line::get(from, &name, bytes, &to),
        Load::Put { to, name, from } => line::put(to, &name, &from),
        Load::Flood { to, bytes } => flood::send(to, bytes),
        Load::SoakDisk { device } => soak::disk(&disk::Disk::open(&device)?),
        Load::SoakListen { at } => soak::listen(at),
        Load::SoakTalk { to } => soak::talk(to),
    }
}
