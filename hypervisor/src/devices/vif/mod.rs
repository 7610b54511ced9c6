//! Networks of virtual interfaces: each is served by an engine, on a processor that runs no guest.
//!
//! Key types: [`Network`], [`Member`] (who is told of signals: a guest's virtio function). `sluice_vif` decides what happens to frames; this module
//! brings it the guests' memory, a processor, and sleep. The hypervisor is not on a frame's path otherwise: it makes VIFs, and passes signals on.
//!
//! An engine with nothing to do asks the drivers to tell of frames, looks once more, and halts. What a driver tells then ends as an
//! interrupt of the engine's processor; while the engine is at work, drivers need not tell, and do not exit.
//!
//! Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via Self-Virtualized Devices", 2 (design) and 3.2 (cores).

mod patience;
mod wire;

use super::device::Device;
use super::error::AttachError;
use super::ram::Ram;
use crate::cpu::{self, Cpu, timer};
use crate::domain::Domain;
use crate::sync::{Once, Rank, SpinLock, SpinLockGuard};
use crate::x86::tsc;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use patience::Patience;
use sluice_abi::config;
use sluice_abi::report::{Count, NetworkReport};
use sluice_vif::{Active, Attributes, Counters, MAX_VIFS, Next, Outcome, RECEIVE, SEND, VifId};
use wire::Wire;

/// Who drives a VIF. It is called with the lock of the network held.
pub trait Member: Send + Sync {
    /// Its driver is to be signalled: buffers of this queue were used.
    fn used(&self, queue: u16);
    /// Its driver broke the rules: nothing more is done for it before it resets its device.
    fn broke(&self);
}

/// A network, and its engine.
pub struct Network {
    name: String,
    /// Index of the engine's processor.
    core: u32,
    state: SpinLock<State>,
    /// Nobody looks: the engine is to be woken.
    asleep: AtomicBool,
    rounds: AtomicU64,
    sleeps: AtomicU64,
    wakes: AtomicU64,
}

struct State {
    vifs: sluice_vif::Network<Ram>,
    /// The physical card, if the network reaches others.
    wire: Option<Wire>,
    members: [Option<Weak<dyn Member>>; MAX_VIFS],
}

static NETWORKS: Once<Vec<Option<Arc<Network>>>> = Once::new();

fn networks() -> impl Iterator<Item = &'static Arc<Network>> {
    NETWORKS.get().into_iter().flatten().flatten()
}

/// Makes the configured networks, and takes their processors. Of one that there is no processor for the log says so: guests that are on it
/// cannot be built.
pub fn init(configured: &[config::Network]) {
    let mut taken: Vec<(u8, u32)> = Vec::new();
    let mut start = |network: &config::Network| {
        let known = taken.iter().find(|(nth, _)| *nth == network.core).map(|(_, core)| *core);
        let core = known.or_else(|| cpu::dedicate(network.core));
        let Some(core) = core else {
            log::error!(
                "network {}: there is no processor {} that can be its engine's; give the machine more, of which guests keep one",
                network.name,
                network.core
            );
            return None;
        };
        taken.push((network.core, core));
        let made = Arc::new(Network::new(&network.name, core));
        if let Some(nic) = network.nic
            && let Err(error) = super::dedicate(nic, &made)
        {
            log::error!("network {}: cannot have its card: {error}", network.name);
            return None;
        }
        log::info!("network {}: served by an engine on processor {core}", network.name);
        Some(made)
    };
    NETWORKS.call_once(|| configured.iter().map(&mut start).collect());
    // Only now: an engine that finds no network never looks again.
    networks().for_each(|network| cpu::kick(network.core));
}

/// The network at a place of the configuration, if there is a processor for it.
pub fn network(index: u16) -> Option<Arc<Network>> {
    NETWORKS.get()?.get(usize::from(index))?.clone()
}

/// The place in the configuration of the network of this name, if a processor serves it.
pub fn index_of(name: &str) -> Option<u16> {
    let mut all = NETWORKS.get()?.iter();
    all.position(|network| network.as_ref().is_some_and(|network| network.name == name))?.try_into().ok()
}

/// All networks, for a report.
pub fn reports() -> Vec<NetworkReport> {
    networks().map(|network| network.report()).collect()
}

/// The life of an engine's processor.
pub fn run(cpu: &'static Cpu) -> ! {
    log::debug!("processor {}: an engine's from now on", cpu.index);
    let own = || networks().filter(|network| network.core == cpu.index);
    let serve = || own().map(|network| network.serve()).min().unwrap_or(Next::Idle);
    let mut patience = Patience::new(tsc::now());
    loop {
        if serve() == Next::Now {
            patience.found(tsc::now());
        } else if !patience.is_over(tsc::now()) {
            core::hint::spin_loop();
        } else {
            own().for_each(|network| network.doze());
            let next = serve();
            if next != Next::Now {
                sleep(own(), next);
                patience.slept(tsc::now());
            }
            own().for_each(|network| network.wake_up());
        }
        cpu::with_interrupts_window();
    }
}

/// Until somebody has something new, or until it is time. Who has says so by an interrupt, which is taken here at the earliest.
fn sleep(networks: impl Iterator<Item = &'static Arc<Network>>, next: Next) {
    networks.for_each(|network| network.sleep());
    match next {
        Next::At(ns) => {
            let wait = ns.saturating_sub(tsc::uptime_ns());
            timer::set_deadline(tsc::now().saturating_add(tsc::ticks_from_ns(wait)));
        }
        _ => timer::disarm(),
    }
    cpu::idle();
}

impl Network {
    fn new(name: &str, core: u32) -> Self {
        let state =
            State { vifs: sluice_vif::Network::new(), wire: None, members: [const { None }; MAX_VIFS] };
        Self {
            name: name.into(),
            core,
            state: SpinLock::new(Rank::Network, state),
            asleep: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The VIFs, while nothing is done for them.
    pub fn lock(&self) -> Control<'_> {
        Control { state: self.state.lock() }
    }

    /// A driver tells of frames, or there is something else to do: the engine looks.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            cpu::kick(self.core);
        }
    }

    /// Puts a physical card behind the network. Returns what its driver is called.
    ///
    /// # Errors
    /// The card cannot be driven.
    pub fn connect(&self, device: &Arc<Device>) -> Result<&'static str, AttachError> {
        let wire = Wire::connect(device)?;
        Ok(self.state.lock().wire.insert(wire).driver())
    }

    /// A round of the engine.
    fn serve(&self) -> Next {
        let mut state = self.state.lock();
        let State { vifs, wire, members } = &mut *state;
        let wire = wire.as_mut().map(|wire| wire as &mut dyn sluice_vif::Wire);
        let Outcome { sent, received, broken, next } = vifs.round(wire, tsc::uptime_ns());
        let member = |vif: VifId| members.get(vif.index())?.as_ref()?.upgrade();
        for (set, queue) in [(received, RECEIVE), (sent, SEND)] {
            set.iter().filter_map(member).for_each(|member| member.used(queue));
        }
        broken.iter().filter_map(member).for_each(|member| member.broke());
        count(&self.rounds);
        next
    }

    /// Nobody looks after the next round, unless that finds something: who has something new is to say so.
    fn doze(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        let mut state = self.state.lock();
        state.vifs.doze();
        if let Some(wire) = &mut state.wire {
            wire.doze();
        }
    }

    /// That round found nothing.
    fn sleep(&self) {
        count(&self.sleeps);
        if let Some(wire) = &self.state.lock().wire {
            wire.sleep();
        }
    }

    /// The engine looks again.
    fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.state.lock().vifs.wake();
    }

    fn report(&self) -> NetworkReport {
        let own = [("rounds", &self.rounds), ("sleeps", &self.sleeps), ("wakes", &self.wakes)];
        let own = own.map(|(name, counter)| (name, counter.load(Ordering::Relaxed)));
        let state = self.state.lock();
        let wire = state.wire.as_ref().map(Wire::counters);
        let wire = wire.map(|sluice_uplink::Counters { sent, received, overruns, restarts }| {
            [("tx_packets", sent), ("rx_packets", received), ("overruns", overruns), ("restarts", restarts)]
        });
        let all =
            own.into_iter().chain(wire.into_iter().flatten()).chain([("unclaimed", state.vifs.unclaimed())]);
        NetworkReport {
            name: self.name.clone(),
            core: self.core as u16,
            counts: all.map(|(name, value)| Count { name: name.into(), value }).collect(),
        }
    }
}

/// Counts one more. Only the engine does.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The VIFs of a network, in the hands of who makes, changes or ends them.
pub struct Control<'a> {
    state: SpinLockGuard<'a, State>,
}

impl Control<'_> {
    /// Makes a VIF of a domain. `None`: there are too many, or its address is another's.
    pub fn join(
        &mut self,
        attributes: Attributes,
        domain: &Arc<Domain>,
        member: Weak<dyn Member>,
    ) -> Option<VifId> {
        let vif = self.state.vifs.join(attributes, Ram(domain.clone()), tsc::uptime_ns())?;
        self.state.members[vif.index()] = Some(member);
        Some(vif)
    }

    /// Ends a VIF: when this returns, nothing of its domain's memory is reached. Returns what happened at it.
    pub fn leave(&mut self, vif: VifId) -> Option<Counters> {
        self.state.members[vif.index()] = None;
        self.state.vifs.leave(vif)
    }

    /// The driver of a VIF has set its queues up, or let go of them. False: it broke the rules.
    pub fn activate(&mut self, vif: VifId, active: Option<Active>) -> bool {
        self.state.vifs.activate(vif, active)
    }

    /// Sets what is set of a VIF from outside.
    pub fn set(&mut self, vif: VifId, attributes: Attributes) {
        self.state.vifs.set(vif, attributes, tsc::uptime_ns());
    }

    /// What happened at a VIF.
    pub fn counters(&self, vif: VifId) -> Option<Counters> {
        self.state.vifs.counters(vif)
    }
}
