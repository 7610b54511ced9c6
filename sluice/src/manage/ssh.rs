//! `ssh`: logs in to a domain through the port of this machine that leads to its sshd.

use crate::cli::SshArguments;
use crate::control::{Client, choose};
use crate::disks::own_key;
use crate::info::DomainInfo;
use crate::outcome::state_word;
use crate::progress::Step;
use crate::workspace::not_found;
use anyhow::{Context, Result, bail};
use sluice_abi::report::DomainState;
use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Where sshd listens.
const SSH: u16 = 22;

/// How a server of this protocol greets (RFC 4253, section 4.2).
const GREETING: &[u8] = b"SSH-";

/// A guest of an emulated machine takes its time.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(500);

/// Becomes ssh, once the domain's sshd answers.
pub fn ssh(arguments: &SshArguments) -> Result<()> {
    let instance = choose(arguments.instance.as_ref())?;
    let name = &arguments.domain;
    let client = Client::connect(&instance)?;
    let domain = client.domain(name)?;
    let known = instance.info().domain(name);
    let Some((port, _)) = known.forward.iter().find(|(_, guest)| *guest == SSH) else {
        bail!(
            "no port of this machine leads to the sshd of '{name}'\n\
             help: add to [domain.{name}]: forward = [\"2222:22\"] (docs/configuration.md), and run it again"
        );
    };
    let state = client.domains.get(domain.index()).map_or(DomainState::Created, |(_, state)| *state);
    if state != DomainState::Running {
        bail!("'{name}' is {}; see: cargo sluice ps", state_word(state));
    }
    wait(name, *port, arguments.wait)?;
    let error = command(arguments, &known, *port).exec();
    Err(error).with_context(|| not_found("ssh"))
}

/// Waits for the greeting. Where nobody listens in the guest QEMU takes the connection, and closes it.
fn wait(name: &str, port: u16, patience: Duration) -> Result<()> {
    let step = Step::begin(format!("waiting for the sshd of {name}"));
    let end = Instant::now() + patience;
    loop {
        if greets(port) {
            step.done();
            return Ok(());
        }
        if Instant::now() >= end {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    bail!(
        "the sshd of '{name}' did not answer on port {port} of 127.0.0.1 for {} s\n\
         help: cargo sluice logs {name} shows how far it is; does it have an sshd, and a network?",
        patience.as_secs()
    )
}

fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let mut greeting = [0; GREETING.len()];
    stream.set_read_timeout(Some(PATIENCE)).is_ok()
        && stream.read_exact(&mut greeting).is_ok()
        && greeting == GREETING
}

/// The host key of a disk that Sluice made is known; any other is asked for, once, as ssh does.
fn command(arguments: &SshArguments, known: &DomainInfo, port: u16) -> Command {
    let name = &arguments.domain;
    let mut command = Command::new("ssh");
    command.args(["-p", &port.to_string()]).arg("-o").arg(format!("HostKeyAlias={name}"));
    if let Some(file) = known.known_hosts.as_ref().filter(|file| file.is_file()) {
        // In quotes it may have spaces (ssh_config(5)).
        command.arg("-o").arg(format!("UserKnownHostsFile=\"{}\"", file.display()));
        command.args(["-o", "GlobalKnownHostsFile=none", "-o", "StrictHostKeyChecking=yes"]);
    }
    if let Some(key) = own_key() {
        command.arg("-i").arg(key);
    }
    command.arg("-l").arg(&arguments.user).args(["--", "127.0.0.1"]).args(&arguments.command);
    command
}
