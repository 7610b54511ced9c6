//! Marks for whoever counts from outside (sluice/src/bench/tally.rs): a write to the port `0x5a0 + 2n` begins part `n`, one to the next port
//! ends it. Where `/dev/port` is missing, as in a test on the host, nobody counts. Right after the one and before the other there is a mark for who counts places
//! (bench/instructions.rs), which no hypervisor sees.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The port of the first mark.
const PORTS: u64 = 0x5a0;

/// What can be told from each other: the number of the mark, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Large requests in order that write.
    WriteLarge,
    /// Large requests in order that read.
    ReadLarge,
    /// Small requests at random places that write.
    WriteSmall,
    /// Small requests at random places that read.
    ReadSmall,
    /// Data from guest to guest.
    Talk,
    /// Small messages to and fro, one at a time.
    Trips,
    /// A download.
    Get,
    /// An upload.
    Put,
}

impl Part {
    const fn number(self) -> u64 {
        match self {
            Self::WriteLarge | Self::Talk | Self::Get => 0,
            Self::ReadLarge | Self::Put | Self::Trips => 1,
            Self::WriteSmall => 2,
            Self::ReadSmall => 3,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::WriteLarge => "write_1m",
            Self::ReadLarge => "read_1m",
            Self::WriteSmall => "write_4k",
            Self::ReadSmall => "read_4k",
            Self::Talk => "inter",
            Self::Trips => "trips",
            Self::Get => "rx",
            Self::Put => "tx",
        }
    }
}

/// Does something between the two marks of a part.
pub fn marked<T>(part: Part, work: impl FnOnce() -> T) -> T {
    let ports = File::options().write(true).open("/dev/port").ok();
    let mark = |number: u64| {
        if let Some(ports) = &ports {
            // A kernel that refuses it is noticed by who counts.
            let _ = ports.write_at(b".", PORTS + number);
        }
    };
    mark(2 * part.number());
    sluice_processes::mark();
    let done = work();
    sluice_processes::mark();
    mark(2 * part.number() + 1);
    done
}

/// The same, and says how much it moved, in how many operations as it knows afterwards.
pub fn measured<T>(
    part: Part,
    bytes: usize,
    operations: impl FnOnce() -> usize,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let done = marked(part, work)?;
    let operations = operations();
    println!("SLUICE-RESULT at={} bytes={bytes} operations={operations}", part.name());
    Ok(done)
}
