//! The command line: what can be typed, and the help texts.

use crate::config;
use crate::name::Name;
use crate::qemu::{Accel, Boot};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

const STATUSES: &str = "\
Exit status of `run`:
  0  every guest did its job and powered off by itself; the hypervisor saw no fault
  1  something around the run went wrong (files, packages, QEMU), or a result could not be written
  2  the command line is wrong
  3  the configuration is wrong
  4  a guest crashed, was destroyed, or reported a failure
  5  the hypervisor failed
  6  the time was over";

/// Sluice: a bare-metal hypervisor that lets guests share ordinary devices.
#[derive(Debug, Parser)]
#[command(name = "cargo sluice", bin_name = "cargo sluice", version, after_help = STATUSES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the host command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a configuration and say what is wrong with it
    #[command(after_help = "Example:\n  cargo sluice check examples/two-guests.toml")]
    Check {
        /// Configuration (TOML)
        file: PathBuf,
    },
    /// Run a configuration in QEMU to its end
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice run examples/two-guests.toml\n",
        "  cargo sluice run my.toml --json out.json --consoles logs --timeout 120\n",
        "  cargo sluice run my.toml --qemu-arg=-trace --qemu-arg='ne2000_*'\n\n",
        "While it runs, in another terminal: cargo sluice ps, top, console alice, pause alice, ..."))]
    Run(RunArguments),
    /// Write an image that boots a configuration on a PC (BIOS and UEFI)
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice image examples/two-guests.toml -o sluice.iso\n",
        "  dd if=sluice.iso of=/dev/sdX bs=4M        # to a USB stick"))]
    Image {
        /// Configuration (TOML)
        file: PathBuf,
        /// Image to write
        #[arg(short, long, default_value = "sluice.iso")]
        output: PathBuf,
    },
    /// Write the bundle (configuration, kernels, initrds) that the hypervisor boots with
    #[command(after_help = "Example:\n  cargo sluice bundle examples/two-guests.toml -o bundle.cpio")]
    Bundle {
        /// Configuration (TOML)
        file: PathBuf,
        /// Bundle to write
        #[arg(short, long, default_value = "bundle.cpio")]
        output: PathBuf,
        /// Put in front of every guest's command line
        #[arg(long, default_value = "")]
        cmdline: String,
    },
    /// Build the hypervisor and print the path of its ELF file
    Build {
        /// Features to build with
        #[arg(long, value_delimiter = ',')]
        features: Vec<Name>,
        /// Lint it instead
        #[arg(long)]
        lint: bool,
    },
    /// Download what guests need: the newest kernels of Debian, busybox
    #[command(after_help = "Example:\n  cargo sluice fetch debian-6.12")]
    Fetch {
        /// Kernels by name; all if none is given
        kernels: Vec<String>,
    },
    /// Serve the test guests' downloads and uploads, for runs started by hand
    #[command(after_help = concat!(
        "Example:\n  cargo sluice serve --port 8080\n",
        "  curl http://127.0.0.1:8080/blob/1000/some-seed | sha256sum\n",
        "  curl http://127.0.0.1:8080/blob/1000/some-seed.sha256"))]
    Serve {
        /// TCP port on 127.0.0.1
        #[arg(long, default_value_t = 8080)]
        port: u16,
    },
    /// List your running instances, of all checkouts, and their domains
    Ps,
    /// Start a domain that waits, or that has ended
    #[command(after_help = "Example:\n  cargo sluice start alice")]
    Start(Target),
    /// Ask domains to power off (their ACPI power button), and wait until they are
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice stop alice\n",
        "  cargo sluice stop --all --wait 60 --force    end what is not off after a minute\n",
        "  cargo sluice stop alice --wait 0             do not wait"))]
    Stop(StopArguments),
    /// Stop a domain's processors
    Pause(Target),
    /// Let a paused domain go on
    Resume(Target),
    /// End a domain at once and take everything back
    Destroy(Target),
    /// Destroy a domain and start it again
    Restart(Target),
    /// Stop all domains as `stop` does, and switch the machine off
    Shutdown {
        /// Wait at most so long [default: until all are off]
        #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
        wait: Option<Duration>,
        /// Destroy domains that are not off by then (without --wait: after 10 seconds)
        #[arg(long)]
        force: bool,
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
    },
    /// Connect to a domain's console; Ctrl-] leaves it
    #[command(after_help = concat!(
        "Example:\n  cargo sluice console alice\n\n",
        "What a shell needs to edit its line passes: cursor movement, erasing, colours. All else that could steer the\n",
        "terminal (title, clipboard, modes, requests for an answer) is shown escaped or left out."))]
    Console {
        /// Domain
        #[command(flatten)]
        target: Target,
        /// Pass all that the guest writes as it is, for full-screen programs of guests that you trust
        #[arg(long)]
        raw: bool,
    },
    /// Watch domains and devices live
    Top {
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
        /// Seconds between two looks
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
        interval: Duration,
        /// Leave after this many looks
        #[arg(long)]
        count: Option<u64>,
    },
    /// Print the counters of a running instance as JSON
    Report {
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
    },
    /// Show where the devices of a running instance stand: IOMMUs, groups, I/O spaces, refused requests, flushes
    Devices {
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
    },
    /// Measure, beside Linux KVM on the same emulated machine; results go to bench/results
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice bench                all, about 40 minutes\n",
        "  cargo sluice bench boot           those whose name contains this\n",
        "  cargo sluice bench vpio --only fairness,sole.e1000\n",
        "  cargo sluice bench --list"))]
    Bench {
        /// Parts of names; all if none is given
        names: Vec<String>,
        /// Measure these parts again, or only a card of one, and keep the other results
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<String>,
        /// Only list them
        #[arg(long)]
        list: bool,
    },
    /// Run test scenarios (tests/*.toml) in QEMU, side by side
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice test                 the suite\n",
        "  cargo sluice test two-guests      those whose name contains this\n",
        "  cargo sluice test --jobs 1        one after the other\n",
        "  cargo sluice test --list"))]
    Test(TestArguments),
    /// Take checks out of a copy of the sources, one at a time, and see whether a test notices
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice mutate               all of tests/mutations.toml\n",
        "  cargo sluice mutate rdpmc         those whose name contains this\n",
        "  cargo sluice mutate crate.        those of a ring: crate, hypervisor, host\n",
        "  cargo sluice mutate --list"))]
    Mutate {
        /// Parts of names; all if none is given
        names: Vec<String>,
        /// Only list them
        #[arg(long)]
        list: bool,
    },
}

/// The longest time that can be asked for: about three years.
const LONGEST: f64 = 1e8;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=LONGEST).contains(seconds));
    let seconds = seconds.ok_or("write a number of seconds, more than 0, such as 90 or 0.5")?;
    Ok(Duration::from_secs_f64(seconds))
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { seconds(text) }
}

fn size(text: &str) -> Result<u64, String> {
    let size = config::parse_size(text).ok_or("write a number and a unit: 256MiB or 2GiB")?;
    if size == 0 { Err("a machine has memory".to_owned()) } else { Ok(size) }
}

/// A domain of a running instance.
#[derive(Debug, Args)]
pub struct Target {
    /// Domain
    pub domain: Name,
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub struct StopArguments {
    /// Domains
    #[arg(required_unless_present = "all")]
    pub domains: Vec<Name>,
    /// All domains of the instance
    #[arg(long, conflicts_with = "domains")]
    pub all: bool,
    /// Wait at most so long; 0: only ask [default: until they are off]
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none, allow_negative_numbers = true)]
    pub wait: Option<Duration>,
    /// Destroy those that are not off by then (without --wait: after 10 seconds)
    #[arg(long)]
    pub force: bool,
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Configuration (TOML)
    pub file: PathBuf,
    /// Write what happened as JSON (see docs/json.md); '-' is the standard output
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write <domain>.log per guest and sluice.log here [default: run/<instance>]
    #[arg(long, value_name = "DIR")]
    pub consoles: Option<PathBuf>,
    /// Give up after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,
    /// How guest instructions are run
    #[arg(long, value_enum, default_value_t)]
    pub accel: Accel,
    /// How the hypervisor is loaded
    #[arg(long, value_enum, default_value_t)]
    pub boot: Boot,
    /// Physical processors of the emulated machine [default: the configuration's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub cpus: Option<u8>,
    /// Memory of the emulated machine, such as 2GiB [default: the configuration's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Let time be the number of instructions executed: slower, and repeatable
    #[arg(long)]
    pub icount: bool,
    /// Further argument for QEMU; can be given several times
    #[arg(long = "qemu-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_args: Vec<String>,
    /// Name of the instance: 1 to 31 of a-z, 0-9 and '-' [default: the file's]
    #[arg(long)]
    pub name: Option<Name>,
    /// Build the hypervisor with these features
    #[arg(long, value_delimiter = ',')]
    pub features: Vec<Name>,
    /// Print all that guests write on their consoles
    #[arg(long)]
    pub verbose: bool,
    /// Print only what went wrong
    #[arg(long, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// Arguments of `test`.
#[derive(Debug, Args)]
pub struct TestArguments {
    /// Parts of names of scenarios or cases; all if none is given
    pub names: Vec<String>,
    /// Only list them
    #[arg(long)]
    pub list: bool,
    /// Also the rest of each matrix, more seeds, and long runs
    #[arg(long)]
    pub all: bool,
    /// At most so many scenarios at a time [default: two for each processor]
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// How many processors they may keep busy together [default: those of this machine]
    #[arg(long, value_name = "N")]
    pub capacity: Option<f64>,
    /// Remember in tests/durations.toml how long they took: the longest start first
    #[arg(long)]
    pub record: bool,
    /// Run this one and print a report for the suite
    #[arg(long, hide = true, value_name = "NAME", conflicts_with_all = ["names", "list", "record"])]
    pub worker: Option<String>,
}
