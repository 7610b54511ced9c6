//! Work that is counted from outside, in a guest as in the domain that has the device.

use crate::camera::Camera;
use crate::counted::{TwoCounts, counted};
use crate::sound::Sound;
use crate::{noop, packets};
use anyhow::{Context, Result};
use clap::Subcommand;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// What is done again and again.
#[derive(Debug, Subcommand)]
pub enum Work {
    /// An ioctl that no driver knows.
    Noop {
        /// The device file.
        file: PathBuf,
    },
    /// A read of 4 KiB.
    Random {
        /// The device file.
        file: PathBuf,
    },
    /// A hundredth of a second of sound, written when there is room for it.
    Sound {
        /// The device file.
        file: PathBuf,
    },
    /// A frame that the driver puts into a buffer which is mapped here, and that is copied from there.
    Camera {
        /// The device file.
        file: PathBuf,
        /// Pixels of a line.
        width: u32,
        /// Lines.
        height: u32,
    },
    /// A frame of 64 bytes that a network card sends by netmap.
    Packets {
        /// The device file.
        file: PathBuf,
        /// The card's name in the domain that has it.
        port: String,
        /// How many frames are sent at once, one after the other.
        batches: Vec<u32>,
    },
}

/// Does it `few` times, then `many` times.
pub fn run(work: &Work) -> Result<()> {
    match work {
        Work::Noop { file } => {
            let file = File::open(file).context("could not open the file")?;
            twice("noop", 200, 3200, || noop::nothing(&file))
        }
        Work::Random { file } => {
            let mut file = File::open(file).context("could not open the file")?;
            let mut bytes = [0; 4096];
            twice("random", 20, 120, || file.read_exact(&mut bytes).context("could not read"))
        }
        Work::Sound { file } => {
            let mut sound = Sound::open(file)?;
            // From then on there is room as one is played.
            for _ in 0..Sound::ROOM {
                sound.play()?;
            }
            twice("sound", 20, 120, || sound.play())
        }
        Work::Camera { file, width, height } => {
            let camera = Camera::open(file, *width, *height)?;
            let stream = camera.stream()?;
            let mut frame = vec![0; camera.bytes()];
            twice(&format!("camera_{width}x{height}"), 5, 25, || stream.next(&mut frame))?;
            stream.stop()
        }
        Work::Packets { file, port, batches } => packets::measure(file, port, batches),
    }
}

fn twice(name: &str, few: u32, many: u32, mut act: impl FnMut() -> Result<()>) -> Result<()> {
    let mut repeat = |times| (0..times).try_for_each(|_| act());
    // The first ones fill caches.
    repeat(4)?;
    counted(name, TwoCounts { few, many }, repeat)
}
