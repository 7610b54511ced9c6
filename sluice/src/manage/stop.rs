//! `stop` and `shutdown`: guests power off by themselves, and are waited for.

use crate::cli::StopArguments;
use crate::control::{Client, choose};
use crate::ending::{Ending, Serves, serves};
use crate::output;
use crate::progress::{Position, Step};
use anyhow::{Result, bail};
use sluice_abi::DomainId;
use sluice_abi::channel::{Command, CommandError, Event};
use sluice_abi::report::DomainState;
use std::time::{Duration, Instant};

/// How long `--force` waits where nothing is said.
const FORCED_AFTER: Duration = Duration::from_secs(10);

/// How often it is looked whether somebody must be asked again.
const TICK: Duration = Duration::from_millis(200);

/// Asks domains of one instance to power off.
struct Stop {
    client: Client,
    /// Those that are meant, by index.
    meant: Vec<DomainId>,
    /// Those of them that had ended and were to be started again.
    restarting: Vec<DomainId>,
    /// Who serves whom.
    serves: Vec<Serves>,
}

impl Stop {
    fn states(&self) -> Vec<(DomainId, DomainState)> {
        let state = |id: &DomainId| Some((*id, self.client.domains.get(id.index())?.1));
        self.meant.iter().filter_map(state).collect()
    }

    fn note_restarting(&mut self, states: &[(DomainId, DomainState)]) {
        for (id, _) in states.iter().filter(|(_, state)| *state == DomainState::Restarting) {
            if !self.restarting.contains(id) {
                self.restarting.push(*id);
            }
        }
    }

    fn running(&self) -> Vec<&str> {
        self.running_if(|_| true)
    }

    fn running_if(&self, wanted: impl Fn(DomainId) -> bool) -> Vec<&str> {
        let domains = self.meant.iter().filter(|id| wanted(**id));
        let domains = domains.filter_map(|id| self.client.domains.get(id.index()));
        let running =
            domains.filter(|(_, state)| matches!(state, DomainState::Running | DomainState::Paused));
        running.map(|(name, _)| name.as_str()).collect()
    }

    /// Waits until none of them runs; false if that takes longer than `wait`.
    fn follow(&mut self, wait: Option<Duration>) -> Result<bool> {
        let mut ending = Ending::begin(self.serves.clone());
        let step = Step::begin("waiting until the guests are off");
        loop {
            let states = self.states();
            if Ending::is_over(&states) {
                step.done();
                return Ok(true);
            }
            let commands = ending.commands(&states);
            self.note_restarting(&states);
            for command in commands {
                // Its state may have changed meanwhile; that is heard below.
                self.client.request(command)?;
            }
            if wait.is_some_and(|wait| ending.took() >= wait) {
                return Ok(false);
            }
            let running = self.running();
            step.at(Position::Note(format!("{} still run", running.join(", "))));
            let late: Vec<DomainId> = self.meant.iter().copied().filter(|id| ending.is_late(*id)).collect();
            if let Some(complaint) = ending.complaint(&self.running_if(|id| late.contains(&id))) {
                step.aside(format!(
                    "sluice: {complaint}\n  help: --force ends it at once, and so does: cargo sluice destroy"
                ));
            }
            match self.client.poll_event(Instant::now() + TICK) {
                Ok(Some(Event::Reply { result: Err(error), .. })) if error != CommandError::WrongState => {
                    bail!(crate::control::explain(error))
                }
                Ok(_) => {}
                // The machine goes off with its last guest.
                Err(_) if self.client.has_ended() => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Asks those that no other needs, and waits for nobody. A domain that serves others which still run would take their disks from under
/// them, so it is not asked.
fn ask_only(stop: &mut Stop) -> Result<()> {
    let states = stop.states();
    let mut ending = Ending::begin(stop.serves.clone());
    for command in ending.commands(&states) {
        stop.client.command(command)?;
    }
    let left = stop.running_if(|id| !ending.has_asked(id));
    if !left.is_empty() {
        bail!(
            "not asked, since guests that they serve still run: {}\n  help: without --wait 0 they are asked when those are off",
            left.join(", ")
        );
    }
    Ok(())
}

/// Ends those that still run.
fn force(stop: &mut Stop) -> Result<()> {
    for name in stop.running().into_iter().map(str::to_owned).collect::<Vec<_>>() {
        let index = stop.client.domain(&name)?;
        match stop.client.command(Command::Destroy(index)) {
            Ok(()) => output::print(format!("{name}: did not power off, and was destroyed\n"))?,
            Err(_) if stop.client.has_ended() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Stops some domains, or all, and waits.
pub fn stop(arguments: &StopArguments) -> Result<()> {
    let instance = choose(arguments.instance.as_ref())?;
    let mut client = Client::connect(&instance)?;
    let meant = if arguments.all {
        (0..client.domains.len()).map_while(DomainId::at).collect()
    } else {
        arguments.domains.iter().map(|name| client.domain(name)).collect::<Result<_>>()?
    };
    let serves = serves(&client.report()?);
    let mut stop = Stop { client, meant, restarting: Vec::new(), serves };
    if arguments.wait.is_some_and(|wait| wait.is_zero()) {
        return ask_only(&mut stop);
    }
    let wait = arguments.wait.or(arguments.force.then_some(FORCED_AFTER));
    let off = stop.follow(wait)?;
    if !off && !arguments.force {
        bail!(
            "still running after {:.0} s: {}\n  help: --force ends it, and so does: cargo sluice destroy",
            wait.unwrap_or_default().as_secs_f64(),
            stop.running().join(", ")
        );
    }
    if !off {
        force(&mut stop)?;
    }
    for (id, state) in stop.states() {
        if let Some((name, _)) = stop.client.domains.get(id.index()) {
            let remark = if stop.restarting.contains(&id) { "; it is not started again" } else { "" };
            output::print(format!("{name}: {}{remark}\n", state.word()))?;
        }
    }
    Ok(())
}

/// Stops all domains, waits, and switches the machine off.
pub fn shutdown(arguments: &StopArguments) -> Result<()> {
    stop(arguments)?;
    let mut client = match choose(arguments.instance.as_ref()).and_then(|found| Client::connect(&found)) {
        Ok(client) => client,
        // It went off with its last guest.
        Err(_) => return Ok(()),
    };
    match client.command(Command::Shutdown) {
        Err(_) if client.has_ended() => Ok(()),
        other => other,
    }
}
