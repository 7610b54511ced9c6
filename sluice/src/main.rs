//! The host command of Sluice: checks configurations, builds the hypervisor and its bundle, runs them in
//! QEMU, and steers running instances.
//!
//! - [`config`] is what the user writes; [`bundle`] what the hypervisor reads, with [`kernels`] and
//!   [`rootfs`] from Debian [`packages`].
//! - [`disks`] are what guests keep between runs.
//! - [`image`] builds the hypervisor; [`qemu`] is the emulated machine; [`session`] one run of it,
//!   [`outcome`] what came of it; [`logs`] and [`document`] are what a run leaves behind.
//! - [`name`] is what may become part of a path, [`claim`] a directory whose files are this process's to remove;
//!   [`printable`], [`mod@console`] and [`terminal`] stand between a guest's words and the operator's screen.
//! - [`analyze`] reads drivers' sources for what their ioctls copy; [`threshold`] replays what a guest recorded of its page tables.
//! - [`output`] is where words go; [`mod@progress`] tells how far a build or a download is.
//! - [`control`] and [`manage`] are the commands on running instances, [`broker`] what they reach the hypervisor by, [`control_domain`] the same in a
//!   guest, [`ending`] and [`interrupt`] how guests are stopped in order; [`scenario`] the tests, [`mutate`]
//!   whether they notice, [`bench`] the measurements,
//!   [`screens`] the pictures in docs.

// They panic where there is a closed pipe or a full disk: `output` has what does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod analyze;
mod bench;
mod broker;
mod bundle;
mod claim;
mod cli;
mod config;
mod console;
mod control;
mod control_domain;
mod cpio;
mod detached;
mod disks;
mod document;
mod ending;
mod image;
mod info;
mod interrupt;
mod iommu;
mod kernels;
mod logs;
mod made;
mod manage;
mod modules;
mod mutate;
mod name;
mod observer;
mod outcome;
mod output;
mod packages;
mod printable;
mod progress;
mod qemu;
mod qmp;
mod rootfs;
mod run;
mod scenario;
mod screens;
mod selftests;
mod server;
mod session;
mod summary;
mod table;
mod terminal;
mod threshold;
mod workspace;

use anyhow::{Context, Result};
use cli::{Command, StopArguments, TestArguments};
use outcome::Status;
use sluice_abi::channel::Command as Order;
use sluice_abi::config::AtEnd;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::parse();
    let status = match dispatch(cli.command) {
        Ok(status) => status,
        Err(error) if error.is::<output::ClosedPipe>() => Status::Ok,
        Err(error) => match error.downcast_ref::<config::ConfigError>() {
            Some(wrong) => {
                output::note(wrong);
                Status::Configuration
            }
            None => {
                output::note(format_args!("sluice: {error:#}"));
                Status::Trouble
            }
        },
    };
    ExitCode::from(status as u8)
}

fn dispatch(command: Command) -> Result<Status> {
    let is_installed = workspace::installed_hypervisor().is_some();
    if command.needs_sources() || command.needs_hypervisor() && !is_installed {
        workspace::check_sources()?;
    }
    match command {
        Command::Check { file, json: true } => {
            let setup = config::load(&file)?;
            output::print(printable::json(&info::Info::new(&setup, Path::new("")).domains)?)?;
        }
        Command::Check { file, .. } => {
            let setup = config::load(&file)?;
            output::print(config::describe(&file, &setup) + "\n")?;
        }
        Command::Run(arguments) => return run::run(&arguments),
        Command::Image { file, output } => {
            let setup = config::load(&file)?;
            workspace::check_target(&output)?;
            let bundle = bundle::build(&setup, "", AtEnd::Stay)?;
            image::iso(&image::hypervisor(&[])?, &bundle.bytes, "", &output)?;
            output::print(format_args!("{}: boots under BIOS and UEFI\n", output.display()))?;
        }
        Command::Bundle { file, output, cmdline } => {
            let setup = config::load(&file)?;
            workspace::check_target(&output)?;
            let bundle = bundle::build(&setup, &cmdline, AtEnd::Off)?;
            std::fs::write(&output, &bundle.bytes)
                .with_context(|| format!("could not write {}", output.display()))?;
            let guests = bundle.config.domains.len();
            let size = config::human_size(bundle.bytes.len() as u64);
            output::print(format_args!("{}: {guests} guests, {size}\n", output.display()))?;
        }
        Command::Build { lint: true, .. } => image::lint()?,
        Command::Build { features, .. } => {
            output::print(format_args!("{}\n", image::hypervisor(&features)?.display()))?;
        }
        Command::Fetch { kernels, json } => fetch(&kernels, json)?,
        Command::Rootfs(arguments) => rootfs_command(arguments)?,
        Command::Ssh(arguments) => manage::ssh(&arguments)?,
        Command::Serve { port } => {
            let server = server::Server::start(port)?;
            output::print(format_args!(
                "serving on {}; guests on QEMU's user network reach 10.0.2.2\n",
                server.address
            ))?;
            loop {
                std::thread::park();
            }
        }
        Command::Control { stream } => control_domain::serve(&stream)?,
        Command::Ps { json } => manage::ps(json)?,
        Command::Info { target, json } => manage::info(&target, json)?,
        Command::Logs { target, follow, lines } => manage::logs(&target, follow, lines)?,
        Command::Attach { instance } => run::attach(instance.as_ref())?,
        Command::Metrics => manage::metrics()?,
        Command::Screens { names, output } => {
            screens::take(&names, &output.unwrap_or_else(|| workspace::root().join("docs/screens")))?;
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::command(), "sluice", &mut script);
            output::print(String::from_utf8_lossy(&script))?;
        }
        Command::Man { directory } => manual(&directory)?,
        Command::Create { file, instance } => manage::create(&file, instance.as_ref())?,
        Command::AttachDevice(arguments) => manage::attach_device(&arguments)?,
        Command::DetachDevice(arguments) => manage::detach_device(&arguments)?,
        Command::Vif { what } => manage::vif(&what)?,
        Command::Start(target) => manage::command(&target, Order::Start)?,
        Command::Stop(arguments) => manage::stop(&arguments)?,
        Command::Pause(target) => manage::command(&target, Order::Pause)?,
        Command::Resume(target) => manage::command(&target, Order::Resume)?,
        Command::Focus(target) => manage::command(&target, Order::Focus)?,
        Command::Destroy(target) => manage::command(&target, Order::Destroy)?,
        Command::Restart(target) => manage::command(&target, Order::Restart)?,
        Command::Shutdown { wait, force, instance } => {
            manage::shutdown(&StopArguments { domains: Vec::new(), all: true, wait, force, instance })?;
        }
        Command::Console { target, raw } => manage::console(&target, raw)?,
        Command::Top(arguments) => manage::top(&arguments)?,
        Command::Devices(which) => manage::devices(&which)?,
        Command::Report { instance } => manage::report(instance.as_ref())?,
        Command::Bench { names, only, list: true, json } => bench::list(&names, &only, json)?,
        Command::Bench { names, only, .. } => return bench::run(&names, &only),
        Command::Analyze { learned: Some(file), kernel, .. } => analyze::learned(&file, &kernel)?,
        Command::Analyze { names, kernel, diff, details, c, check, .. } => {
            let form = match (details, c, check) {
                (true, ..) => analyze::Form::Details,
                (_, true, _) => analyze::Form::C,
                (.., true) => analyze::Form::Check,
                _ => analyze::Form::Sums,
            };
            analyze::command(&names, &kernel, diff.as_deref(), form)?;
        }
        Command::Threshold { file } => output::print(threshold::command(&file)?)?,
        Command::Mutate { names, list: true, json } => mutate::list(&names, json)?,
        Command::Mutate { names, .. } => return mutate::run(&names),
        Command::Test(TestArguments { worker: Some(name), .. }) => return scenario::run_one(&name),
        Command::Test(arguments) => {
            let TestArguments { names, list, json, all, jobs, capacity, record, .. } = arguments;
            if list {
                scenario::list(&names, all, json)?;
            } else {
                return scenario::run_all(&scenario::Options { names, all, jobs, capacity, record });
            }
        }
    }
    Ok(Status::Ok)
}

fn rootfs_command(arguments: cli::RootfsArguments) -> Result<()> {
    let cli::RootfsArguments { name, suite, size, from, force } = arguments;
    let disk = disks::make(&disks::Recipe { name: name.clone(), suite, size, from, force })?;
    output::print(format_args!(
        "{}: in a configuration it is the disk '{name}' (examples/servers.toml)\n",
        workspace::shortened(&disk.image()).display()
    ))
}

/// Writes a page for the command and one for each of its commands.
fn manual(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(cli::command().name("sluice").bin_name("sluice"), directory)
        .with_context(|| format!("could not write the manual pages into {}", directory.display()))?;
    output::print(format_args!("{}: see man -l {0}/sluice.1\n", directory.display()))
}

fn fetch(names: &[String], as_json: bool) -> Result<()> {
    let known = kernels::debian();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        anyhow::bail!("'{name}' is no kernel of Debian's that Sluice knows; there are: {}", known.join(", "));
    }
    packages::Apt::open()?.update()?;
    let mut found = Vec::new();
    for name in if names.is_empty() { &known } else { names } {
        let kernel = kernels::fetch(name)?;
        for (initrd, about) in rootfs::list() {
            let path = rootfs::get(&initrd, &kernel)?;
            if !as_json {
                output::print(format_args!("{name} + {initrd} ({about}): {}\n", path.display()))?;
            }
            found.push(serde_json::json!({
                "kernel": name, "kernel_path": kernel.image, "release": kernel.release,
                "initrd": initrd, "about": about, "initrd_path": path,
            }));
        }
    }
    if as_json { output::print(printable::json(&found)?) } else { Ok(()) }
}
