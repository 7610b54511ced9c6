//! Uses device files as their stock programs do, and says what came of it in lines that a scenario can expect.

mod attack;
mod camera;
mod counted;
mod drm;
mod endure;
mod flood;
mod focus;
mod hung;
mod input;
mod keep;
mod lane;
mod measure;
mod narrow;
mod noop;
mod packets;
mod radeon;
mod random;
mod requests;
mod screen;
mod seek;
mod shared;
mod sound;
mod terminal;
mod topology;
mod virgl;
mod watchdog;
mod wild;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Uses device files.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Reads random numbers and puts them to the tests of FIPS 140-2.
    Random {
        /// The device file.
        file: PathBuf,
        /// Blocks of 20,000 bits.
        #[arg(long, default_value_t = 16)]
        blocks: u32,
    },
    /// Waits for events of an input device and reads them.
    Events {
        /// The device file.
        file: PathBuf,
        /// Key presses and releases to wait for.
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Waits for signals, and does not poll.
        #[arg(long)]
        signals: bool,
        /// Marks each for who counts instructions from outside.
        #[arg(long)]
        marked: bool,
        /// Reads as a program of 32 bits.
        #[arg(long)]
        narrow: bool,
    },
    /// Is the driver of a device file, `/dev/hung`, that hangs when 13 bytes are read.
    Hung,
    /// Reads 13 bytes, is interrupted, and holds the file open until it is no file any more.
    Hang {
        /// The device file.
        file: PathBuf,
    },
    /// Listens to an input device and plays, as long as it may, and tells of both when a line comes.
    Focus {
        /// The device file of an input device.
        input: PathBuf,
        /// That of a sound card.
        #[arg(long)]
        sound: Option<PathBuf>,
    },
    /// Makes an input device, and has it press keys when a line comes.
    Keys {
        /// Presses and releases.
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Milliseconds from one to the next.
        #[arg(long, default_value_t = 5)]
        pace: u64,
        /// Marks each for who counts instructions from outside.
        #[arg(long)]
        marked: bool,
    },
    /// Asks a watchdog for what it can do, keeps it quiet, and closes it as it wants to be.
    Watchdog {
        /// The device file.
        file: PathBuf,
    },
    /// Uses a file until that has failed so often, and opens it anew each time.
    Endure {
        /// The device file.
        file: PathBuf,
        /// Failures.
        #[arg(long, default_value_t = 1)]
        failures: u32,
        /// How it is used.
        #[arg(long, default_value = "reads")]
        how: endure::How,
    },
    /// Waits in a read, and looks at a line whether memory around its buffer has changed.
    Canary {
        /// The device file.
        file: PathBuf,
        /// The buffer is made read-only once it is declared.
        #[arg(long)]
        protected: bool,
    },
    /// Reads frames of a camera that shows the same ones each time, and tells a digest of them.
    Camera {
        /// The device file.
        file: PathBuf,
        /// Frames.
        #[arg(long, default_value_t = 3)]
        frames: u32,
        /// How it gets at them.
        #[arg(long, value_enum, default_value_t = camera::Way::Read)]
        way: camera::Way,
        /// What it streams by goes on until a line comes.
        #[arg(long)]
        held: bool,
    },
    /// Does so as a program of 32 bits, from buffers that are mapped.
    Narrow {
        /// The device file.
        file: PathBuf,
        /// Frames.
        #[arg(long, default_value_t = 3)]
        frames: u32,
    },
    /// Has a camera put frames into buffers of another's.
    Shared {
        /// The device file.
        file: PathBuf,
        /// That of the other.
        of: PathBuf,
        /// Frames.
        #[arg(long, default_value_t = 3)]
        frames: u32,
    },
    /// Has a camera make frames by requests, each with a control of its own.
    Requests {
        /// The device file.
        file: PathBuf,
        /// That of the media device.
        media: PathBuf,
    },
    /// Plays with a buffer for each channel, and hears it so.
    Apart {
        /// The device file of the stream that plays.
        plays: PathBuf,
        /// That of the one that hears it.
        hears: PathBuf,
    },
    /// Opens a terminal's other end, and has another program read there.
    Terminal {
        /// The device file.
        file: PathBuf,
    },
    /// Writes what is in a buffer that a driver has exported, by the descriptor that is the standard input.
    Frame {
        /// Bytes.
        #[arg(long)]
        bytes: usize,
    },
    /// Has a camera put frames into buffers that are mapped, until the camera is gone, and says whether they are, too.
    Outlive {
        /// The device file.
        file: PathBuf,
    },
    /// Sets modes and flips pages of a graphics card, as lines say.
    Screen {
        /// The device file: a primary node.
        file: PathBuf,
        /// It is open as standard input already, by another process, and only asked to be master.
        #[arg(long)]
        other: bool,
    },
    /// Asks a Radeon card what it is, and uses its memory.
    Radeon {
        /// The device file: either of its nodes.
        file: PathBuf,
        /// A part of its memory stays mapped, and is looked at as lines say.
        #[arg(long)]
        held: bool,
    },
    /// Attacks those who have a virtio graphics card, too, by its commands.
    CardAttack {
        /// The device file: a render node.
        file: PathBuf,
        /// Names of buffers that are tried: from one on.
        #[arg(long, default_value_t = 64)]
        ids: u32,
        /// Batches that make no sense.
        #[arg(long, default_value_t = 100)]
        batches: u32,
    },
    /// Keeps buffers of a virtio graphics card, and looks whether they have changed until a line comes.
    CardKeep {
        /// The device file: a render node.
        file: PathBuf,
    },
    /// Maps a page of a file at each of some places.
    Map {
        /// The device file.
        file: PathBuf,
        /// Bytes from its beginning, hexadecimal.
        places: Vec<String>,
    },
    /// Looks at a camera's buffers past the front end, which this guest's own root can, while they are mapped and when they are not any more.
    Keep {
        /// The device file.
        file: PathBuf,
    },
    /// Does something some times and then more times, and marks where each begins and ends for who counts instructions from outside.
    Measure {
        /// What is done.
        #[command(subcommand)]
        work: measure::Work,
    },
    /// Makes operations in a row, until the kernel says that some of them went without waking the other domain; then waits in reads that are interrupted, and that
    /// are not to wait.
    Lane {
        /// The device file of an input device that is silent.
        file: PathBuf,
    },
    /// Makes operations so slowly that nobody looks for the next one, and then in a row, most of which are to go without waking the other domain again.
    LaneAgain {
        /// The device file.
        file: PathBuf,
    },
    /// Reads as much as it gets for a while, in processes of their own, once a line has come.
    Flood {
        /// The device file.
        file: PathBuf,
        /// Processes.
        #[arg(long, default_value_t = 1)]
        processes: u32,
        /// Seconds.
        #[arg(long, default_value_t = 8)]
        seconds: u64,
    },
    /// Moves in a file that has places: a processor's CPUID leaves.
    Seek {
        /// The device file.
        file: PathBuf,
    },
    /// Counts how long operations take that do nothing.
    Noop {
        /// The device file.
        file: PathBuf,
        /// Operations.
        #[arg(long, default_value_t = 1000)]
        count: u32,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Random { file, blocks } => random::run(&file, blocks),
        What::Events { file, count, signals, marked, narrow } => {
            input::events(&file, count, signals, marked, narrow)
        }
        What::Hung => hung::run(),
        What::Hang { file } => hung::hang(&file),
        What::Focus { input, sound } => focus::run(&input, sound.as_deref()),
        What::Keys { count, pace, marked } => input::keys(count, Duration::from_millis(pace), marked),
        What::Watchdog { file } => watchdog::run(&file),
        What::Endure { file, failures, how } => endure::endure(&file, failures, how),
        What::Canary { file, protected } => endure::canary(&file, protected),
        What::Camera { file, frames, way, held } => camera::run(&file, frames, way, held),
        What::Narrow { file, frames } => narrow::run(&file, frames),
        What::Shared { file, of, frames } => shared::run(&file, &of, frames),
        What::Requests { file, media } => requests::run(&file, &media),
        What::Apart { plays, hears } => sound::apart(&plays, &hears),
        What::Terminal { file } => terminal::run(&file),
        What::Frame { bytes } => camera::frame(bytes),
        What::Screen { other: true, .. } => screen::be_another(),
        What::Screen { file, .. } => screen::run(&file),
        What::Radeon { file, held } => radeon::run(&file, held),
        What::CardAttack { file, ids, batches } => attack::attack(&file, ids, batches),
        What::CardKeep { file } => attack::keep(&file),
        What::Map { file, places } => radeon::map(&file, &places),
        What::Keep { file } => keep::run(&file),
        What::Outlive { file } => camera::outlive(&file),
        What::Measure { work } => measure::run(&work),
        What::Flood { file, processes, seconds } => flood::run(&file, processes, seconds),
        What::Seek { file } => seek::run(&file),
        What::Lane { file } => lane::run(&file),
        What::LaneAgain { file } => lane::again(&file),
        What::Noop { file, count } => noop::run(&file, count),
    }
}

/// Says what came of something.
fn result(text: &str) {
    println!("SLUICE-RESULT {text}");
}
