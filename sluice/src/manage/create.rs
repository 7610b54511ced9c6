//! `create`: domains for a machine that runs already.

use crate::bundle;
use crate::config;
use crate::control::{Client, choose};
use crate::name::Name;
use crate::output;
use crate::progress::{Position, Step};
use anyhow::{Context, Result, bail};
use sluice_abi::channel::{Command, MAX_PIECE};
use sluice_abi::config::AtEnd;
use std::path::Path;

/// Makes the domains of a file, and starts those that do not wait for a command.
pub fn create(file: &Path, instance: Option<&Name>) -> Result<()> {
    let instance = choose(instance)?;
    let mut client = Client::connect(&instance)?;
    let running = client.domains.iter().filter(|(_, state)| !state.is_ended()).map(|(name, _)| name.clone());
    let setup = config::load_beside(file, running.collect())?;
    for domain in &setup.domains {
        let name = domain.name.get_ref();
        if client.domains.iter().any(|(known, state)| **known == **name && !state.is_ended()) {
            bail!("there is a domain '{name}': destroy it first, or choose another name");
        }
    }
    let bundle = bundle::build(&setup, "", AtEnd::Off)?;
    let total = bundle.bytes.len() as u64;
    let step = Step::begin(format!("sending {} to {}", config::human_size(total), instance.name));
    for (piece, offset) in bundle.bytes.chunks(MAX_PIECE).zip((0..).step_by(MAX_PIECE)) {
        step.at(Position::Percent((offset * 100 / total.max(1)) as u8));
        client
            .command(Command::Upload { offset, total, bytes: piece.to_vec() })
            .context("the upload failed")?;
    }
    step.done();
    client.command(Command::Create)?;
    for domain in &bundle.config.domains {
        let started = if domain.paused { "made" } else { "started" };
        if !domain.paused {
            let id = client.domain(&domain.name)?;
            client
                .command(Command::Start(id))
                .with_context(|| format!("{}: made, but not started", domain.name))?;
        }
        output::print(format_args!("{}: {started}\n", domain.name))?;
    }
    Ok(())
}
