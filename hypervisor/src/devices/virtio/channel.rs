//! The stream by which a control domain reaches the management channel.
//!
//! The guest's stock virtio-console driver shows it as `/dev/virtio-ports/sluice`. What it writes is taken out of its memory in its own time,
//! when it tells of it; a bounded amount is kept for [`read`], and the rest waits in its queue.

use super::{Link, State, Which};
use crate::devices::ram::Ram;
use crate::devices::virtio::front::FrontFunction;
use crate::domain::{Domain, attention};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_abi::DomainId;
use sluice_virtio::{Changes, Fault, Signals};

/// Its name.
pub const NAME: &str = "sluice";

fn link(of: DomainId) -> Option<Arc<Link>> {
    super::link(of, |which| *which == Which::Channel).ok()
}

/// Whether a program of the guest's has its stream open.
pub fn is_open(of: DomainId) -> bool {
    link(of)
        .is_some_and(|link| link.with(|state| state.port.as_ref().is_some_and(sluice_virtio::Port::is_open)))
}

/// What a guest has written, at most so many bytes.
pub fn read(of: DomainId, most: usize) -> Vec<u8> {
    let Some(link) = link(of) else { return Vec::new() };
    link.change(|state| {
        let bytes = state.port.as_mut().map_or(Vec::new(), |port| port.read(most));
        // There is room for what still waits in its queue.
        let changes = if bytes.is_empty() { Changes::empty() } else { state.serve_port() };
        (bytes, changes)
    })
}

/// Gives a guest bytes, and returns how many it took.
pub fn write(of: DomainId, bytes: &[u8]) -> usize {
    let Some(link) = link(of) else { return 0 };
    link.change(|state| {
        let nothing = (0, Changes::empty());
        let Some((front, domain)) = state.front() else { return nothing };
        let Some(port) = &mut state.port else { return nothing };
        let (taken, done) = match port.write(&state.device, &Ram(domain.clone()), bytes) {
            Ok((taken, signals)) => (taken, Ok(signals)),
            Err(fault) => (0, Err(fault)),
        };
        (taken, state.port_served(&front, &domain, done))
    })
}

impl State {
    /// The guest told of buffers, or there is room again: takes what it has to say.
    pub(super) fn serve_port(&mut self) -> Changes {
        let Some((front, domain)) = self.front() else { return Changes::empty() };
        let Some(port) = &mut self.port else { return Changes::empty() };
        let done = port.serve(&self.device, &Ram(domain.clone()));
        // Somebody else looks: here other locks may not be taken.
        attention::ask();
        self.port_served(&front, &domain, done)
    }

    fn port_served(
        &mut self,
        front: &FrontFunction,
        domain: &Domain,
        done: Result<Signals, Fault>,
    ) -> Changes {
        match done {
            Ok(signals) => {
                signals.queues().for_each(|queue| self.signal_used(front, domain, queue));
                Changes::empty()
            }
            Err(Fault) => {
                if self.complains() {
                    log::warn!(
                        "domain {}: its driver of the management channel breaks virtio's rules",
                        domain.name()
                    );
                }
                self.device.break_down()
            }
        }
    }
}
