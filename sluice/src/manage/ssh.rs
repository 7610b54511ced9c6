//! `ssh`: logs in to a domain through the port of this machine that leads to its sshd.

use crate::cli::SshArguments;
use crate::control::{Client, choose};
use crate::disks::own_key;
use crate::info::DomainInfo;

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
        bail!("'{name}' is {}; see: cargo sluice ps", state.word());
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

/// An sshd answers behind this port of this machine's.
pub fn greets(port: u16) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    fn words(known: &DomainInfo, typed: &[&str]) -> Vec<String> {
        let arguments = SshArguments {
            domain: "web".parse().unwrap(),
            user: "root".to_owned(),
            wait: Duration::ZERO,
            instance: None,
            command: typed.iter().map(|word| (*word).to_owned()).collect(),
        };
        let command = command(&arguments, known, 2222);
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_host_key_of_a_disk_is_the_only_one_that_is_taken() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let known = DomainInfo { known_hosts: Some(file.path().to_owned()), ..DomainInfo::default() };
        let words = words(&known, &[]);
        let only = format!("UserKnownHostsFile=\"{}\"", file.path().display());
        for option in [only.as_str(), "GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes"] {
            assert!(words.windows(2).any(|pair| pair == ["-o", option]), "{option}: {words:?}");
        }
        let without = super::tests::words(&DomainInfo::default(), &[]);
        assert!(
            !without.iter().any(|word| word.contains("KnownHosts") || word.contains("Strict")),
            "{without:?}"
        );
    }

    #[test]
    fn a_command_is_for_the_guest_and_no_option_of_sshs() {
        let words = words(&DomainInfo::default(), &["-oProxyCommand=reboot", "x"]);
        assert!(
            words.ends_with(&["--", "127.0.0.1", "-oProxyCommand=reboot", "x"].map(str::to_owned)),
            "{words:?}"
        );
    }

    #[test]
    fn only_an_sshd_greets_like_one() {
        let answers = |greeting: &'static [u8]| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let server =
                std::thread::spawn(move || listener.accept().unwrap().0.write_all(greeting).unwrap());
            let said = greets(port);
            server.join().unwrap();
            said
        };
        assert!(answers(b"SSH-2.0-OpenSSH_9.2p1\r\n"));
        // QEMU takes a connection before it knows whether the guest does.
        assert!(!answers(b""));
        assert!(!answers(b"HTTP/1.0 400\r\n"));
    }
}
