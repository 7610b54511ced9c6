//! The command line: what can be typed ([`arguments`] has the longer lists), and the help texts ([`help`]).

mod arguments;
mod help;

pub use arguments::{
    AttachDevice, DetachDevice, RootfsArguments, RunArguments, SshArguments, StopArguments, Target,
    TestArguments, TopArguments, VifCommand, VifOptions, Which,
};
pub use help::{command, parse};

use crate::name::Name;
use arguments::seconds;
use clap::{Parser, Subcommand};
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
#[command(name = "sluice", version, after_help = STATUSES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Command {
    /// It uses what is built; others only talk to what runs.
    pub const fn needs_hypervisor(&self) -> bool {
        let uses = matches!(
            self,
            Self::Check { .. }
                | Self::Run(_)
                | Self::Image { .. }
                | Self::Bundle { .. }
                | Self::Fetch { .. }
                | Self::Rootfs(_)
        );
        uses || self.needs_sources()
    }

    /// It builds something, or looks at the sources.
    pub const fn needs_sources(&self) -> bool {
        matches!(
            self,
            Self::Build { .. }
                | Self::Test(_)
                | Self::Bench { .. }
                | Self::Mutate { .. }
                | Self::Analyze { .. }
                | Self::Screens { .. }
        )
    }
}

/// What the host command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a configuration and say what is wrong with it
    #[command(after_help = "Example:\n  cargo sluice check examples/two-guests.toml")]
    Check {
        /// Configuration (TOML)
        file: PathBuf,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
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
        "  cargo sluice image examples/pc.toml -o sluice.iso\n",
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
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Make a disk with a Debian for a guest: systemd, sshd, your keys
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice rootfs web\n",
        "  cargo sluice rootfs db --suite trixie --size 20GiB\n",
        "  cargo sluice rootfs cloud --from debian-12-generic-amd64.raw\n\n",
        "It is kept in images/NAME, and never replaced without --force. Who may log in as root: this checkout's own key, and those in\n",
        "~/.ssh/*.pub. Installing Debian takes a minute, once; each further disk is a copy."))]
    Rootfs(RootfsArguments),
    /// Log in to a domain, or run a command there
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice ssh web\n",
        "  cargo sluice ssh web -- apt-get install nginx\n\n",
        "The domain needs a port that leads to its port 22: forward = [\"2222:22\"]. Its sshd is waited for."))]
    Ssh(SshArguments),
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
    /// In a control domain: answer the other commands, which steer the machine that it runs on
    #[command(after_help = concat!(
        "A domain is one by control = true in its configuration; docs/driver-domain.md says more.\n",
        "Example, as root in the domain:\n  sluice control &\n  sluice ps"))]
    Control {
        /// The stream to the management channel
        #[arg(default_value = crate::control_domain::STREAM)]
        stream: PathBuf,
    },
    /// List your running instances, of all checkouts, and their domains
    Ps {
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Show what is known of a domain: configuration, address, counters, where its console is kept
    Info {
        /// Domain
        #[command(flatten)]
        target: Target,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Print what a domain has written on its console, also of the last run
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice logs alice -f\n",
        "  cargo sluice logs sluice                  the hypervisor's own log"))]
    Logs {
        /// Domain, or 'sluice' for the hypervisor
        #[command(flatten)]
        target: Target,
        /// Go on as long as the instance runs
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines
        #[arg(short = 'n', long, value_name = "N")]
        lines: Option<usize>,
    },
    /// Watch the progress of an instance that runs elsewhere, to its end; Ctrl-C leaves it
    Attach {
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
    },
    /// Make the domains of a file on a machine that runs, and start them
    #[command(after_help = concat!(
        "Devices are those that the machine was started with, by name; nothing of the file's [machine] is used.\n",
        "Example, on the host or in a control domain:\n  cargo sluice create bob.toml"))]
    Create {
        /// Configuration file
        file: PathBuf,
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
    },
    /// Give a domain a virtual device, while it runs, that another domain serves
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice attach-device web data --type blk --by driver --source /dev/sdb\n",
        "  cargo sluice attach-device web lan --type net --by driver --source br0 --mac 52:54:00:00:00:0b\n\n",
        "It stays the domain's when that is started again. Words are those of a configuration's virtual devices."))]
    AttachDevice(AttachDevice),
    /// Ask a domain for a virtual device, and wait until it has let go of it
    #[command(after_help = "Example:\n  cargo sluice detach-device web data")]
    DetachDevice(DetachDevice),
    /// List, give, change and take back guests' interfaces on the networks of engines
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice vif ls\n",
        "  cargo sluice vif add web vif1 --network lan --mac 52:54:00:00:00:0c --limit 20Mbit\n",
        "  cargo sluice vif set web vif1 --share 3 --limit none\n",
        "  cargo sluice vif rm web vif1"))]
    Vif {
        /// What to do
        #[command(subcommand)]
        what: VifCommand,
    },
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
    /// Mean a domain with what is typed and heard at device files that domains share, and no other
    #[command(after_help = concat!(
        "Both Ctrl keys of a shared keyboard, pressed together and let go, mean the next domain.\n\n",
        "Example:\n  cargo sluice focus alice"))]
    Focus(Target),
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
    /// Watch domains and devices live; keys sort, q leaves
    #[command(after_help = concat!(
        "Without a terminal, or with --count, each look is plain text.\n\n",
        "Examples:\n",
        "  cargo sluice top\n",
        "  cargo sluice top --count 1 --interval 5\n",
        "  cargo sluice top --json | jq '.domains[].cpu_percent'"))]
    Top(TopArguments),
    /// Print the counters of a running instance as JSON
    Report {
        /// Instance, if several run or it is another checkout's
        #[arg(long)]
        instance: Option<Name>,
    },
    /// Print the counters of all your running instances in the text format of Prometheus
    #[command(after_help = concat!(
        "Example, for node_exporter's textfile collector:\n",
        "  cargo sluice metrics > /var/lib/node_exporter/sluice.prom.new && mv ..."))]
    Metrics,
    /// Show the devices of a running instance, who has them, and what keeps them from memory: IOMMUs, groups, refused requests
    Devices(Which),
    /// Measure, beside Linux KVM and Xen on the same emulated machine; results go to bench/results
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice bench                all, about an hour\n",
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
        /// Print the list as JSON, for programs
        #[arg(long, requires = "list")]
        json: bool,
    },
    /// Run test scenarios (tests/*.toml) in QEMU, side by side
    #[command(after_help = concat!(
        "Examples:\n",
        "  cargo sluice test                 the suite\n",
        "  cargo sluice test two-guests      those whose name contains this\n",
        "  cargo sluice test --jobs 1        one after the other\n",
        "  cargo sluice test --list"))]
    Test(TestArguments),
    /// Take the pictures of a PC's screen that are in the documents
    #[command(after_help = "Example:\n  cargo sluice screens no-svm panic -o /tmp")]
    Screens {
        /// Pictures by name; all if none is given
        names: Vec<String>,
        /// Folder to write them into [default: docs/screens]
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Write a script that completes commands: bash, zsh, fish, elvish, powershell
    #[command(
        after_help = "Example:\n  sluice completions bash > ~/.local/share/bash-completion/completions/sluice"
    )]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder
    #[command(after_help = "Example:\n  cargo sluice man ~/.local/share/man/man1")]
    Man {
        /// Folder
        directory: PathBuf,
    },
    /// Say what the ioctls of a driver copy, from its source
    #[command(
        after_help = "Examples:\n  cargo sluice analyze radeon virtio-gpu --details\n  cargo sluice analyze drm --diff debian-6.12\n  cargo sluice analyze drm --check"
    )]
    Analyze {
        /// Drivers: drm, virtio-gpu, radeon, nouveau, i915, evdev, alsa-pcm
        #[arg(required_unless_present = "learned")]
        names: Vec<String>,
        /// Whose source
        #[arg(long, default_value = "debian-6.1")]
        kernel: String,
        /// Print what differs in this kernel's
        #[arg(long, value_name = "KERNEL", conflicts_with = "details")]
        diff: Option<String>,
        /// Print each command
        #[arg(long)]
        details: bool,
        /// Print the table for the front end of device files, in C
        #[arg(long, conflicts_with_all = ["details", "diff"])]
        c: bool,
        /// Compare the front end's hand-written table with what is found
        #[arg(long, conflicts_with_all = ["details", "diff", "c"])]
        check: bool,
        /// Compare the front end's hand-written tables with what sluice-learn wrote to a file
        #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "details", "diff", "c", "check"])]
        learned: Option<PathBuf>,
    },
    /// Compare bounds of the cache of page-table pages by what a guest recorded: fixed ones, and the one that adapts itself
    #[command(after_help = concat!(
        "Example, the first lines in a guest with the module sluice-pibooster:\n",
        "  echo 64 >/sys/kernel/sluice_pibooster/trace_kib\n",
        "  cat /sys/kernel/sluice_pibooster/trace >load.trace\n",
        "  cargo sluice threshold load.trace"))]
    Threshold {
        /// What was recorded
        file: PathBuf,
    },
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
        /// Print the list as JSON, for programs
        #[arg(long, requires = "list")]
        json: bool,
    },
}
