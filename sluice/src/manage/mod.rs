//! The commands on running instances.

mod console;
mod create;
mod devices;
mod logs;
mod look;
mod metrics;
pub mod ssh;
mod stop;
mod top;
mod vif;

pub use console::console;
pub use create::create;
pub use devices::{attach as attach_device, detach as detach_device};
pub use logs::logs;
pub use look::{devices, info, ps, report};
pub use metrics::metrics;
pub use ssh::ssh;
pub use stop::{shutdown, stop};
pub use top::top;
pub use vif::vif;

use crate::cli::Target;
use crate::control::{Client, choose};
use anyhow::Result;
use sluice_abi::DomainId;
use sluice_abi::channel::Command;
use sluice_abi::report::DomainReport;

/// Sends one command to one domain.
pub fn command(target: &Target, command: impl FnOnce(DomainId) -> Command) -> Result<()> {
    let mut client = Client::connect(&choose(target.instance.as_ref())?)?;
    let domain = client.domain(&target.domain)?;
    client.command(command(domain))
}

fn total_exits(domain: &DomainReport) -> u64 {
    domain.exits.iter().map(|count| count.value).sum()
}
