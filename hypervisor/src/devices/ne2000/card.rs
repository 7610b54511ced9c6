//! A physical card under its monitor, and the guests that have it in turn.

use super::super::device::Device;
use super::super::error::AttachError;
use super::super::guest::Guest;
use super::super::ports::PortDevice;
use super::Ne2000Function;
use super::ports::SharedPorts;
use crate::domain::{Answer, Domain};
use crate::pci;
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluice_abi::config::{Mode, Vpio};
use sluice_abi::report::{Count, DeviceReport, ShareReport};
use sluice_emulated::Handoffs;
use sluice_vpio::{Changes, ClientId, Monitor, Policy, Timing};

/// A physical card that guests have in turn.
pub struct Card {
    device: Arc<Device>,
    state: SpinLock<State>,
}

struct State {
    monitor: Box<Monitor>,
    clients: Vec<Client>,
}

/// What a call of the monitor left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing that a processor has to look at.
    Unchanged,
    /// Lines, hooks, or when the monitor wants to be polled.
    Changed,
}

impl After {
    /// The answer to an access that was carried out.
    pub fn done(self) -> Answer {
        match self {
            Self::Unchanged => Answer::Done,
            Self::Changed => Answer::Attend,
        }
    }
}

/// A guest as a client of the monitor.
struct Client {
    id: ClientId,
    function: Arc<Ne2000Function>,
    /// Level of its line, as the guest's platform last heard.
    line: bool,
}

impl Card {
    /// A card that nobody has yet; `None` where no device state model knows it.
    pub fn new(device: &Arc<Device>) -> Option<Arc<Self>> {
        let pci::Function { vendor, device: id, .. } = device.function;
        let monitor = Box::new(Monitor::for_device(vendor, id, Timing::default())?);
        if device.rate.is_some() {
            log::error!(
                "device {}: guests have it in turns, and nobody holds what they send to its rate",
                device.name
            );
        }
        let state = State { monitor, clients: Vec::new() };
        Some(Arc::new(Self { device: device.clone(), state: SpinLock::new(Rank::Card, state) }))
    }

    /// The physical function.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Base and number of its ports.
    pub fn ports(&self) -> (u16, u16) {
        self.device.ports
    }

    /// Name of its model.
    pub fn model(&self) -> &'static str {
        self.state.lock().monitor.model_name()
    }

    /// Makes a guest a client.
    ///
    /// # Errors
    /// There are as many as there can be.
    pub fn attach(
        self: &Arc<Self>,
        options: &Vpio,
        guest: Guest,
    ) -> Result<Arc<Ne2000Function>, AttachError> {
        let mut state = self.state.lock();
        let State { monitor, clients } = &mut *state;
        let id = monitor.attach(options.mac).map_err(|_| AttachError::TooMany)?;
        let max_wait = options.max_wait_ms.map(|wait| u64::from(wait) * 1_000_000);
        monitor.set_policy(id, Policy { weight: options.weight, max_wait });
        monitor.set_reactions(id, |register| options.refusals.reaction(register));
        self.device.wait_ready();
        let bdf = self.device.function.bdf;
        bdf.set_command(pci::COMMAND_IO, pci::COMMAND_MASTER | pci::COMMAND_NO_INTX);
        let function = Arc::new(Ne2000Function::new(self.clone(), id, guest));
        clients.push(Client { id, function: function.clone(), line: false });
        Ok(function)
    }

    /// Takes a client's guest away from the card. Returns what it did.
    pub fn detach(&self, client: ClientId) -> Option<ShareReport> {
        let report = {
            let State { monitor, clients } = &*self.state.lock();
            clients.iter().find(|known| known.id == client).map(|known| known.report(monitor))
        };
        self.with(None, |monitor, raw, now| monitor.detach(raw, client, now));
        self.state.lock().clients.retain(|known| known.id != client);
        report
    }

    /// Whether guests have it.
    pub fn has_guests(&self) -> bool {
        !self.state.lock().clients.is_empty()
    }

    /// How often it changed hands.
    pub fn handoffs(&self) -> Handoffs {
        let state = self.state.lock();
        let counters = state.monitor.device_counters();
        Handoffs { all: counters.handoffs, forced: counters.forced }
    }

    /// The physical line went up.
    pub fn interrupt(&self) {
        self.with(None, |monitor, raw, now| monitor.interrupt(raw, now));
    }

    /// The monitor wanted to be polled now.
    pub fn poll(&self) {
        self.with(None, |_, _, _| ());
    }

    /// Runs `act` on the monitor, then carries out what changed. From its first access to the device on, or where its hooks
    /// change, no client executes with direct access. `within`: whose exit this is, if anybody's.
    pub fn with<R>(
        &self,
        within: Option<(ClientId, &Domain)>,
        act: impl FnOnce(&mut Monitor, &mut SharedPorts, u64) -> R,
    ) -> (R, After) {
        let mut state = self.state.lock();
        let State { monitor, clients } = &mut *state;
        let now = tsc::uptime_ns();
        let mut raw = SharedPorts::new(self.device.ports.0, Self::holder_elsewhere(monitor, clients, within));
        let result = act(monitor, &mut raw, now);
        (result, self.finish(monitor, clients, &mut raw, now, within))
    }

    /// An access of one byte of a guest with one processor, a read if nothing is `written`, if it can be served in a few steps.
    pub fn quick(
        &self,
        client: ClientId,
        domain: &Domain,
        offset: u16,
        written: Option<u8>,
    ) -> Option<(u8, After)> {
        if !is_all_here(domain) {
            return None;
        }
        let mut state = self.state.lock();
        let State { monitor, clients } = &mut *state;
        let now = tsc::uptime_ns();
        let value = monitor.quick(&mut PortDevice::new(self.device.ports.0), client, now, offset, written)?;
        if monitor.is_unchanged() {
            return Some((value, After::Unchanged));
        }
        let mut raw = SharedPorts::new(self.device.ports.0, None);
        Some((value, self.finish(monitor, clients, &mut raw, now, Some((client, domain)))))
    }

    /// Carries out what a call of the monitor changed, and moves handoffs along where it is time. Most accesses change nothing that
    /// others see, and it is not. Who neither has the device nor waits for it moves none along, or it could stop the holder as
    /// often as it likes.
    fn finish(
        &self,
        monitor: &mut Monitor,
        clients: &mut [Client],
        raw: &mut SharedPorts,
        now: u64,
        within: Option<(ClientId, &Domain)>,
    ) -> After {
        let changes = self.carry_out(monitor, clients, raw, now);
        let others = changes.hooks | changes.wake != 0 || changes.poll;
        let concerned = |(own, _)| monitor.holder() == Some(own) || !monitor.may_run(own);
        if others || within.is_none() || monitor.is_due(now) && within.is_some_and(concerned) {
            let wanted = monitor.poll(raw, now);
            self.carry_out(monitor, clients, raw, now);
            self.device.poll_next(wanted);
            return After::Changed;
        }
        if changes.is_empty() { After::Unchanged } else { After::Changed }
    }

    /// The holder's domain, if any of its processors may be in the guest.
    fn holder_elsewhere(
        monitor: &Monitor,
        clients: &[Client],
        within: Option<(ClientId, &Domain)>,
    ) -> Option<Arc<Domain>> {
        let holder = monitor.holder()?;
        if within.is_some_and(|(own, domain)| own == holder && is_all_here(domain)) {
            return None;
        }
        let client = clients.iter().find(|client| client.id == holder)?;
        client.function.guest.domain().map(|(domain, _)| domain)
    }

    /// Carries out what a call of the monitor changed; returns what did.
    fn carry_out(
        &self,
        monitor: &mut Monitor,
        clients: &mut [Client],
        raw: &mut SharedPorts,
        now: u64,
    ) -> Changes {
        if self.device.is_masked() && monitor.physical_unmask() {
            self.device.unmask();
        }
        let changes = monitor.changes();
        if (changes.hooks | changes.lines | changes.wake) != 0 {
            Self::show(changes, monitor, clients, raw, now);
        }
        changes
    }

    /// Shows the guests what changed.
    #[inline(never)]
    fn show(changes: Changes, monitor: &Monitor, clients: &mut [Client], raw: &mut SharedPorts, now: u64) {
        if changes.hooks != 0 {
            raw.freeze();
        }
        for Client { id, function, line } in clients {
            let bit = id.bit();
            if (changes.hooks | changes.lines | changes.wake) & bit == 0 {
                continue;
            }
            let Some((domain, index)) = function.guest.domain() else { continue };
            if changes.hooks & bit != 0 {
                function.set_hooks(&domain, index, monitor.hooks(*id).ports());
            }
            if changes.lines & bit != 0 {
                let level = monitor.line(*id);
                if level != *line {
                    *line = level;
                    let wait = if level { monitor.quiet_for(*id, now) } else { 0 };
                    if wait == 0 {
                        domain.set_line(function.guest.pin, level);
                    } else {
                        let until = tsc::now().saturating_add(tsc::ticks_from_ns(wait));
                        domain.raise_line_later(function.guest.pin, until);
                    }
                }
            }
            if changes.wake & bit != 0 {
                domain.vcpus.iter().for_each(|vcpu| vcpu.device_is_here());
            }
        }
    }

    /// Adds what the present guests did.
    pub fn add_to(&self, report: &mut DeviceReport) {
        let state = self.state.lock();
        let State { monitor, clients } = &*state;
        report.handoffs += monitor.device_counters().handoffs;
        report.forced += monitor.device_counters().forced;
        let holder = clients.iter().find(|client| monitor.holder() == Some(client.id));
        report.holder = holder.map(|client| client.function.guest.name.clone());
        clients.iter().for_each(|client| client.report(monitor).add_to(&mut report.shares));
    }
}

/// Whether a domain, one of whose processors is here in its exit, has no other that may be at the device meanwhile.
fn is_all_here(domain: &Domain) -> bool {
    let is_alone = domain.vcpus.len() <= 1;
    #[cfg(feature = "check-stillness")]
    assert!(
        !is_alone || !domain.is_in_guest(),
        "a card is touched while a processor of its holder may be at it"
    );
    is_alone
}

impl Client {
    fn report(&self, monitor: &Monitor) -> ShareReport {
        let domain = self.function.guest.name.clone();
        let share = ShareReport { domain, mode: Mode::Vpio.word().into(), ..ShareReport::default() };
        let Some(counters) = monitor.counters(self.id) else { return share };
        let by_register = counters.hooked_by_register.iter().enumerate();
        let hooked_by_register = by_register
            .filter(|(_, count)| **count != 0)
            .map(|(index, count)| Count {
                name: monitor.register_name(index).unwrap_or("?").into(),
                value: *count,
            })
            .collect();
        ShareReport {
            hooked_elements: counters.hooked_elements,
            hooked_instructions: counters.hooked_instructions,
            hooked_by_register,
            forwarded_elements: counters.forwarded_elements,
            tx_packets: counters.tx_packets,
            rx_packets: counters.rx_packets,
            rx_dropped: counters.rx_dropped,
            refused: counters.refused,
            waits: counters.waits,
            wait_ns: counters.wait_ns,
            held_ns: monitor.held_ns(self.id, tsc::uptime_ns()),
            ..share
        }
    }
}
