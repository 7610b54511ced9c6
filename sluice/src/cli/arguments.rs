//! Arguments that commands have in common, and how values are read.

use crate::config;
use crate::name::Name;
use crate::qemu::{Accel, Boot};
use clap::{Args, Subcommand};
use sluice_abi::config::{Face, MAX_ADDRESSES, MAX_QUEUE_PAIRS, MAX_SOURCE, VLANS};
use std::path::PathBuf;
use std::time::Duration;

/// The longest time that can be asked for: about three years.
const LONGEST: f64 = 1e8;

/// A span of time in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
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

/// Which running instance.
#[derive(Debug, Args)]
pub struct Which {
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
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

/// A station address.
#[derive(Clone, Copy, Debug)]
pub struct Mac(pub [u8; 6]);

fn mac(text: &str) -> Result<Mac, String> {
    config::parse_mac(text).map(Mac).ok_or_else(|| "write six bytes: 52:54:00:00:00:0a".to_owned())
}

fn behind(text: &str) -> Result<String, String> {
    let fits = (1..=MAX_SOURCE).contains(&text.len()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or_else(|| format!("write 1 to {MAX_SOURCE} bytes: a disk, a file or a bridge"))
}

/// Arguments of `attach-device`.
#[derive(Debug, Args)]
pub struct AttachDevice {
    /// Domain that gets it
    pub domain: Name,
    /// What it is called; no other of the domain's is
    pub device: Name,
    /// What it is: a disk, a network card or a source of random numbers
    #[arg(long = "type", value_parser = ["blk", "net", "rng"])]
    pub kind: String,
    /// Domain that serves it
    #[arg(long, value_name = "DOMAIN")]
    pub by: Name,
    /// What is behind it: a disk, a file, a bridge or a device file of the domain that serves it
    #[arg(long, value_parser = behind)]
    pub source: String,
    /// Station address of a network card
    #[arg(long, value_parser = mac)]
    pub mac: Option<Mac>,
    /// Pairs of queues of a network card, of which its driver uses as many as the domain has processors [default: 1]
    #[arg(long, value_name = "PAIRS", value_parser = clap::value_parser!(u8).range(1..=MAX_QUEUE_PAIRS as i64))]
    pub queues: Option<u8>,
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
}

/// Arguments of `detach-device`.
#[derive(Debug, Args)]
pub struct DetachDevice {
    /// Domain that has it
    pub domain: Name,
    /// What it is called
    pub device: Name,
    /// Wait at most so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "30")]
    pub wait: Duration,
    /// Take it at once, whatever the guest does with it
    #[arg(long)]
    pub force: bool,
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
}

/// A limit of what is sent, or none.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub Option<u64>);

fn limit(text: &str) -> Result<Limit, String> {
    let rate = config::vif::parse_rate(text).map(Some).or((text == "none").then_some(None));
    rate.map(Limit).ok_or_else(|| "write a number and a unit, 100Mbit, or none".to_owned())
}

fn face(text: &str) -> Result<Face, String> {
    Face::of(text).ok_or_else(|| "write virtio, native or e1000".to_owned())
}

/// A VLAN, or none.
#[derive(Clone, Copy, Debug)]
pub struct Vlan(pub Option<u16>);

fn vlan(text: &str) -> Result<Vlan, String> {
    let number = text.parse().ok().filter(|number| VLANS.contains(number)).map(Some);
    let number = number.or((text == "none").then_some(None));
    number.map(Vlan).ok_or_else(|| "write a number from 1 to 4094, or none".to_owned())
}

/// IP addresses, as the hypervisor is told of them; none for any.
#[derive(Clone, Debug)]
pub struct Addresses(pub Vec<[u8; 16]>);

fn addresses(text: &str) -> Result<Addresses, String> {
    if text == "any" {
        return Ok(Addresses(Vec::new()));
    }
    let all = text.split(',').map(config::vif::parse_address).collect::<Option<Vec<_>>>();
    let all = all.filter(|all| all.len() <= MAX_ADDRESSES).map(Addresses);
    all.ok_or_else(|| format!("write up to {MAX_ADDRESSES} addresses, 10.0.0.2,fd00::2, or any"))
}

/// What a domain's interface may send, and where it is.
#[derive(Debug, Args)]
pub struct VifOptions {
    /// What it may send when others want to, too, beside one of share 1
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub share: Option<u8>,
    /// Most that it sends in a second: 100Mbit, or none
    #[arg(long, value_parser = limit)]
    pub limit: Option<Limit>,
    /// The VLAN that it is in: 1 to 4094, or none
    #[arg(long, value_parser = vlan)]
    pub vlan: Option<Vlan>,
    /// The only IP addresses that it speaks for, with commas between; or any
    #[arg(long, value_parser = addresses)]
    pub addresses: Option<Addresses>,
    /// Microseconds for which it does not hear of a few frames that it has sent, 0 to 1000
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub moderation: Option<u16>,
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
}

/// What can be done with interfaces.
#[derive(Debug, Subcommand)]
pub enum VifCommand {
    /// List the networks that engines serve, and the interfaces on them
    Ls(Which),
    /// Give a domain an interface on a network, while it runs
    Add {
        /// Domain that gets it
        domain: Name,
        /// What it is called; no other virtual device of the domain's is
        device: Name,
        /// Name of the network
        #[arg(long)]
        network: Name,
        /// Station address
        #[arg(long, value_parser = mac)]
        mac: Mac,
        /// Most bytes of a frame after its header
        #[arg(long, default_value = "1500", value_parser = clap::value_parser!(u16).range(576..=9000))]
        mtu: u16,
        /// What the domain finds: virtio (a virtio network card), native (for the module sluice-vif) or e1000 (an Intel 82540EM)
        #[arg(long, default_value = "virtio", value_parser = face)]
        face: Face,
        #[command(flatten)]
        options: VifOptions,
    },
    /// Set what an interface may send, in whose name, and its VLAN; what is not said stays
    Set {
        /// Domain that has it
        domain: Name,
        /// What it is called
        device: Name,
        #[command(flatten)]
        options: VifOptions,
    },
    /// Ask a domain for an interface, and wait until it has let go of it
    Rm(DetachDevice),
}

/// Arguments of `rootfs`.
#[derive(Debug, Args)]
pub struct RootfsArguments {
    /// What the disk is called, and the system on it
    pub name: Name,
    /// Debian's release
    #[arg(long, default_value = "bookworm", value_parser = ["bookworm", "trixie"])]
    pub suite: String,
    /// Its size; what is empty takes no room [default: 4GiB, or as large as the image that it begins with]
    #[arg(long, value_parser = size)]
    pub size: Option<u64>,
    /// Begin with this image (raw or qcow2), such as Debian's for clouds, instead of a fresh Debian
    #[arg(long, value_name = "IMAGE", conflicts_with = "suite")]
    pub from: Option<PathBuf>,
    /// Replace a disk of this name, and lose all data on it
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `ssh`.
#[derive(Debug, Args)]
pub struct SshArguments {
    /// Domain
    pub domain: Name,
    /// Who to log in as
    #[arg(long, default_value = "root")]
    pub user: String,
    /// Wait at most so long for the domain's sshd; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds_or_none, allow_negative_numbers = true)]
    pub wait: Duration,
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
    /// Command to run there instead of a shell
    #[arg(trailing_var_arg = true)]
    pub command: Vec<String>,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// Instance, if several run or it is another checkout's
    #[arg(long)]
    pub instance: Option<Name>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub interval: Duration,
    /// Leave after this many looks
    #[arg(long)]
    pub count: Option<u64>,
    /// Print a line of JSON for each look, for programs
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Configuration (TOML)
    pub file: PathBuf,
    /// Go on in the background, once the machine has started; see attach, logs, stop
    #[arg(long, conflicts_with_all = ["verbose", "quiet"])]
    pub detach: bool,
    /// Write what happened as JSON (see docs/json.md); '-' is the standard output
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write <domain>.log per guest and sluice.log here [default: run/<instance>]
    #[arg(long, value_name = "DIR")]
    pub consoles: Option<PathBuf>,
    /// Give up when the machine has been on for this time
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
    /// Print the list as JSON, for programs
    #[arg(long, requires = "list")]
    pub json: bool,
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
