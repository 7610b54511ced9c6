//! The host command of Sluice: checks configurations, builds the hypervisor and its bundle, runs them in
//! QEMU, and steers running instances.
//!
//! - [`config`] is what the user writes; [`bundle`] what the hypervisor reads, with [`kernels`] and
//!   [`rootfs`] from Debian [`packages`].
//! - [`image`] builds the hypervisor; [`qemu`] is the emulated machine; [`session`] one run of it,
//!   [`outcome`] what came of it.
//! - [`name`] is what may become part of a path, [`claim`] a directory whose files are this process's to remove;
//!   [`printable`], [`mod@console`] and [`terminal`] stand between a guest's words and the operator's screen.
//! - [`mod@progress`] tells how far a build or a download is.
//! - [`control`] and [`manage`] are the commands on running instances; [`scenario`] the tests, [`mutate`]
//!   whether they notice, [`bench`] the measurements.

mod bench;
mod bundle;
mod claim;
mod cli;
mod config;
mod console;
mod control;
mod cpio;
mod image;
mod iommu;
mod kernels;
mod manage;
mod mutate;
mod name;
mod outcome;
mod packages;
mod printable;
mod progress;
mod qemu;
mod rootfs;
mod run;
mod scenario;
mod server;
mod session;
mod summary;
mod table;
mod terminal;
mod workspace;

use anyhow::{Context, Result};
use clap::Parser;
use cli::{Cli, Command, TestArguments};
use outcome::Status;
use printable::Lines;
use sluice_abi::channel::Command as Order;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let status = match dispatch(cli.command) {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => Status::Ok,
        Err(error) => match error.downcast_ref::<config::ConfigError>() {
            Some(wrong) => {
                eprintln!("{}", Lines(wrong));
                Status::Configuration
            }
            None => {
                eprintln!("sluice: {}", Lines(format_args!("{error:#}")));
                Status::Trouble
            }
        },
    };
    ExitCode::from(status as u8)
}

/// Writes lines to the standard output, and nothing that steers a terminal. `println!` would panic where whoever reads it has seen enough.
fn print(text: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{}", Lines(text))?;
    Ok(out.flush()?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn dispatch(command: Command) -> Result<Status> {
    match command {
        Command::Check { file } => {
            let setup = config::load(&file)?;
            print(config::describe(&file, &setup) + "\n")?;
        }
        Command::Run(arguments) => return run::run(&arguments),
        Command::Image { file, output } => {
            let setup = config::load(&file)?;
            let bundle = bundle::build(&setup, "")?;
            image::iso(&image::hypervisor(&[])?, &bundle.bytes, &output)?;
            println!("{}: boots under BIOS and UEFI", output.display());
        }
        Command::Bundle { file, output, cmdline } => {
            let bundle = bundle::build(&config::load(&file)?, &cmdline)?;
            std::fs::write(&output, &bundle.bytes)
                .with_context(|| format!("could not write {}", output.display()))?;
            let guests = bundle.config.domains.len();
            println!(
                "{}: {guests} guests, {}",
                output.display(),
                config::human_size(bundle.bytes.len() as u64)
            );
        }
        Command::Build { lint: true, .. } => image::lint()?,
        Command::Build { features, .. } => println!("{}", image::hypervisor(&features)?.display()),
        Command::Fetch { kernels } => fetch(&kernels)?,
        Command::Serve { port } => {
            let server = server::Server::start(port)?;
            println!("serving on {}; guests on QEMU's user network reach 10.0.2.2", server.address);
            loop {
                std::thread::park();
            }
        }
        Command::Ps => manage::ps()?,
        Command::Start(target) => manage::command(&target, Order::Start)?,
        Command::Stop(target) => manage::command(&target, Order::Stop)?,
        Command::Pause(target) => manage::command(&target, Order::Pause)?,
        Command::Resume(target) => manage::command(&target, Order::Resume)?,
        Command::Destroy(target) => manage::command(&target, Order::Destroy)?,
        Command::Restart(target) => manage::command(&target, Order::Restart)?,
        Command::Shutdown { instance } => manage::shutdown(instance.as_ref())?,
        Command::Console { target, raw } => manage::console(&target, raw)?,
        Command::Top { instance, interval, count } => manage::top(instance.as_ref(), interval, count)?,
        Command::Devices { instance } => manage::devices(instance.as_ref())?,
        Command::Report { instance } => manage::report(instance.as_ref())?,
        Command::Bench { names, only, list } => return bench::run(&names, &only, list),
        Command::Mutate { names, list } => return mutate::run(&names, list),
        Command::Test(TestArguments { worker: Some(name), .. }) => return scenario::run_one(&name),
        Command::Test(arguments) => {
            let TestArguments { names, list, all, jobs, capacity, record, .. } = arguments;
            return scenario::run_all(&scenario::Options { names, list, all, jobs, capacity, record });
        }
    }
    Ok(Status::Ok)
}

fn fetch(names: &[String]) -> Result<()> {
    packages::Apt::open()?.update()?;
    let known = kernels::debian();
    for name in if names.is_empty() { &known } else { names } {
        let kernel = kernels::fetch(name).with_context(|| format!("known kernels: {}", known.join(", ")))?;
        for (rootfs, about) in rootfs::list() {
            let path = rootfs::get(&rootfs, &kernel)?;
            println!("{name} + {rootfs} ({about}): {}", path.display());
        }
    }
    Ok(())
}
