//! Networks of virtual interfaces: each is served by engines, on processors that run no guest.
//!
//! Key types: [`Network`], [`Control`] (all its engines, while none is at work), [`Interface`] (a guest's), [`Member`] (who is told of signals: a guest's virtio function). `sluice_vif` decides what happens to frames; this module
//! brings it the guests' memory, a processor, and sleep. The hypervisor is not on a frame's path otherwise: it makes VIFs, and passes signals on.
//!
//! An engine with nothing to do asks the drivers to tell of frames, looks once more, and halts. What a driver tells then ends as an
//! interrupt of the engine's processor; while the engine is at work, drivers need not tell, and do not exit.
//!
//! Source: Raj and Schwan, "High Performance and Scalable I/O Virtualization via Self-Virtualized Devices", 2 (design) and 3.2 (cores).

mod bars;
mod card;
mod controller;
mod front;
mod interface;
pub mod link;
mod messages;
mod native;
mod patience;
mod pool;
mod reach;
mod relay;
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
use arrayvec::ArrayVec;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use patience::Patience;
use reach::Reach;
use relay::Relay;
use sluice_abi::config;
use sluice_abi::report::{Count, NetworkReport};
use sluice_vif::{
    Active, Attributes, Counters, Duty, Identifiers, Layout, MAX_ENGINES, MAX_VIFS, Next, Outcome, RECEIVE,
    Rung, SEND, VifId,
};
use wire::{Way, Wire};

pub use controller::{CONTROLLER, controller};
pub use front::front;
pub use interface::{Face, Interface};
pub use relay::Member;

/// A network, and its engines.
pub struct Network {
    name: String,
    engines: ArrayVec<Engine, MAX_ENGINES>,
    /// The physical card, if the network reaches others.
    wire: Once<Wire>,
    /// Most bytes of a frame after its header.
    mtu: u16,
    identifiers: Identifiers,
    /// Signals to drivers, and those to others with the same identifier.
    signals: AtomicU64,
    redundant: AtomicU64,
    /// They go by way of a controller domain.
    relay: Option<Relay>,
}

/// One of them.
struct Engine {
    /// Index of its processor.
    core: u32,
    state: SpinLock<State>,
    duty: Duty,
    /// Its index among those that send.
    sender: usize,
    /// VIFs whose drivers have told of frames.
    rung: Rung,
    /// It does not look: it is to be woken.
    asleep: AtomicBool,
    rounds: AtomicU64,
    sleeps: AtomicU64,
    wakes: AtomicU64,
}

struct State {
    engine: sluice_vif::Engine<Reach>,
    members: [Option<Weak<dyn Member>>; MAX_VIFS],
    /// Where frames from the wire are meanwhile, if others need the card.
    copies: Option<wire::Copies>,
}

/// What frames are counted as that went by each queue of a card.
const QUEUES: [&str; 2] = ["tx_packets_0", "tx_packets_1"];

/// The locks of a network's engines, which are taken in this order.
const RANKS: [Rank; MAX_ENGINES] = [Rank::Engine0, Rank::Engine1, Rank::Engine2, Rank::Engine3];

static NETWORKS: Once<Vec<Option<Arc<Network>>>> = Once::new();

fn networks() -> impl Iterator<Item = &'static Arc<Network>> {
    NETWORKS.get().into_iter().flatten().flatten()
}

/// Makes the configured networks, and takes their processors. Of one that there are no processors for the log says so: guests that are on it
/// cannot be built.
pub fn init(configured: &[config::Network]) {
    let mut taken: Vec<(u8, u32)> = Vec::new();
    let mut take = |nth: u8| {
        let known = taken.iter().find(|(other, _)| *other == nth).map(|(_, core)| *core);
        known.or_else(|| cpu::dedicate(nth).inspect(|core| taken.push((nth, *core))))
    };
    let mut start = |network: &config::Network| {
        let mut cores = ArrayVec::<u32, MAX_ENGINES>::new();
        for nth in network.cores.iter().copied().take(MAX_ENGINES) {
            let Some(core) = take(nth) else {
                log::error!(
                    "network {}: there is no processor {nth} that can be its engine's; give the machine more, of which guests keep one",
                    network.name
                );
                return None;
            };
            cores.push(core);
        }
        let made = Arc::new(Network::new(network, &cores));
        if let Some(nic) = network.nic
            && let Err(error) = super::dedicate(nic, &made)
        {
            log::error!("network {}: cannot have its card: {error}", network.name);
            return None;
        }
        for core in cores {
            log::info!("network {}: served by an engine on processor {core}", network.name);
        }
        Some(made)
    };
    NETWORKS.call_once(|| configured.iter().map(&mut start).collect());
    // Only now: an engine that finds no network never looks again.
    networks().flat_map(|network| &network.engines).for_each(|engine| cpu::kick(engine.core));
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

/// The engines of a processor, and their networks.
fn engines_of(cpu: u32) -> impl Iterator<Item = (&'static Network, &'static Engine)> {
    let all = networks().flat_map(|network| network.engines.iter().map(move |engine| (&**network, engine)));
    all.filter(move |(_, engine)| engine.core == cpu)
}

/// The life of an engine's processor.
pub fn run(cpu: &'static Cpu) -> ! {
    log::debug!("processor {}: an engine's from now on", cpu.index);
    let own = || engines_of(cpu.index);
    let serve = || own().map(|(network, engine)| network.serve(engine)).min().unwrap_or(Next::Idle);
    let mut patience = Patience::new(tsc::now());
    loop {
        if serve() == Next::Now {
            patience.found(tsc::now());
        } else if !patience.is_over(tsc::now()) {
            core::hint::spin_loop();
        } else {
            own().for_each(|(network, engine)| network.doze(engine));
            let next = serve();
            if next != Next::Now {
                own().for_each(|(network, engine)| network.sleep(engine));
                sleep(next);
                patience.slept(tsc::now());
            }
            own().for_each(|(_, engine)| engine.wake_up());
        }
        cpu::with_interrupts_window();
    }
}

/// Until somebody has something new, or until it is time. Who has says so by an interrupt, which is taken here at the earliest.
fn sleep(next: Next) {
    match next {
        Next::At(ns) => {
            let wait = ns.saturating_sub(tsc::uptime_ns());
            timer::set_deadline(tsc::now().saturating_add(tsc::ticks_from_ns(wait)));
        }
        _ => timer::disarm(),
    }
    cpu::idle();
}

impl Engine {
    fn new(core: u32, sender: usize, rank: Rank, engine: sluice_vif::Engine<Reach>) -> Self {
        let duty = engine.duty();
        let state = State { engine, members: [const { None }; MAX_VIFS], copies: None };
        Self {
            core,
            state: SpinLock::new(rank, state),
            duty,
            sender,
            rung: Rung::default(),
            asleep: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
        }
    }

    /// There is something to do: it looks.
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            cpu::kick(self.core);
        }
    }

    /// It looks again.
    fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.state.lock().engine.wake();
    }
}

impl Network {
    fn new(network: &config::Network, cores: &[u32]) -> Self {
        let layout = match network.layout {
            config::Layout::Split => Layout::Split,
            config::Layout::Spread => Layout::Spread,
        };
        let engines = sluice_vif::engines(layout, cores.len());
        let mut senders = 0;
        let mut engine = |((engine, rank), core): ((sluice_vif::Engine<Reach>, Rank), &u32)| {
            let sender = senders;
            senders += usize::from(engine.duty().sends);
            Engine::new(*core, sender, rank, engine)
        };
        Self {
            name: network.name.clone(),
            engines: engines.into_iter().zip(RANKS).zip(cores).map(&mut engine).collect(),
            wire: Once::new(),
            mtu: network.mtu,
            identifiers: Identifiers::new(network.signal_bits),
            signals: AtomicU64::new(0),
            redundant: AtomicU64::new(0),
            relay: network.controller.map(|_| Relay::new()),
        }
    }

    /// Most bytes of a frame after its header.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its signals, if they go by way of a controller domain.
    fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// The VIFs, while nothing is done for them.
    pub fn lock(&self) -> Control<'_> {
        Control {
            network: sluice_vif::Network::new(self.engines.iter().map(|engine| Held(engine.state.lock()))),
            relay: self.relay(),
        }
    }

    /// The driver of a VIF whose send queue this engine serves tells of frames: it looks.
    pub fn ring(&self, engine: usize, vif: VifId) {
        if let Some(engine) = self.engines.get(engine) {
            engine.rung.ring(vif);
            engine.wake();
        }
    }

    /// The card has something, and says so by its line.
    pub fn interrupt(&self) {
        self.engines.iter().filter(|engine| engine.duty.receives).for_each(Engine::wake);
    }

    /// Puts a physical card behind the network. Returns what its driver is called.
    ///
    /// # Errors
    /// The card cannot be driven.
    pub fn connect(&self, device: &Arc<Device>) -> Result<&'static str, AttachError> {
        let engines: ArrayVec<_, MAX_ENGINES> =
            self.engines.iter().map(|engine| (engine.duty, engine.core)).collect();
        let wire = Wire::connect(device, longest(self.mtu), &engines)?;
        if engines.len() > 1 && !wire.has_queues() {
            for engine in self.engines.iter().filter(|engine| engine.duty.receives) {
                engine.state.lock().copies = Some(wire::Copies::new(longest(self.mtu)));
            }
        }
        Ok(self.wire.call_once(|| wire).driver())
    }

    /// Messages that the card sent.
    pub fn messages(&self) -> u64 {
        self.wire.get().map_or(0, Wire::messages)
    }

    /// A round of an engine.
    fn serve(&self, engine: &Engine) -> Next {
        let mut state = engine.state.lock();
        let State { engine: served, members, copies } = &mut *state;
        served.ring(engine.rung.take());
        let alone = self.engines.len() == 1;
        let mut way = self.wire.get().map(|wire| {
            let route = wire.route(engine.sender, alone);
            Way::new(wire, route, copies.as_mut(), alone, longest(self.mtu))
        });
        let wire = way.as_mut().map(|way| way as &mut dyn sluice_vif::Wire);
        let Outcome { sent, received, broken, next } = served.round(wire, tsc::uptime_ns());
        let member = |vif: VifId| members.get(vif.index())?.as_ref()?.upgrade();
        for (set, queue) in [(received, RECEIVE), (sent, SEND)] {
            let redundant = self.identifiers.redundant(set, served.all_live());
            for (vifs, counter) in [(set, &self.signals), (redundant, &self.redundant)] {
                let is_passed_on = self.relay().is_some_and(|relay| relay.owe(queue, vifs));
                for member in vifs.iter().filter_map(member) {
                    counter.fetch_add(1, Ordering::Relaxed);
                    if !is_passed_on {
                        member.used(queue);
                    }
                }
            }
        }
        broken.iter().filter_map(member).for_each(|member| member.broke());
        count(&engine.rounds);
        next
    }

    /// The engine does not look after its next round, unless that finds something: who has something new is to say so.
    fn doze(&self, engine: &Engine) {
        engine.asleep.store(true, Ordering::SeqCst);
        engine.state.lock().engine.doze();
        if let Some(wire) = self.wire.get().filter(|_| engine.duty.receives) {
            wire.doze();
        }
    }

    /// That round found nothing.
    fn sleep(&self, engine: &Engine) {
        count(&engine.sleeps);
        if let Some(wire) = self.wire.get().filter(|_| engine.duty.receives) {
            wire.sleep();
        }
    }

    fn report(&self) -> NetworkReport {
        let sum = |counter: fn(&Engine) -> &AtomicU64| {
            self.engines.iter().map(|engine| counter(engine).load(Ordering::Relaxed)).sum()
        };
        let own = [
            ("rounds", sum(|engine| &engine.rounds)),
            ("sleeps", sum(|engine| &engine.sleeps)),
            ("wakes", sum(|engine| &engine.wakes)),
            ("signals", self.signals.load(Ordering::Relaxed)),
            ("redundant_signals", self.redundant.load(Ordering::Relaxed)),
        ];
        let unclaimed = self.lock().network.unclaimed();
        let wire = self.wire.get().map(|wire| {
            let sluice_uplink::Counters { sent, received, overruns, restarts } = wire.counters();
            [
                ("tx_packets", sent),
                ("rx_packets", received),
                ("overruns", overruns),
                ("restarts", restarts),
                ("messages", wire.messages()),
            ]
        });
        let queues = self.wire.get().into_iter().flat_map(|wire| QUEUES.into_iter().zip(wire.sent()));
        let relayed = self.relay.iter().flat_map(Relay::counts);
        let wire = wire.into_iter().flatten();
        let all = own.into_iter().chain(relayed).chain(wire).chain(queues).chain([("unclaimed", unclaimed)]);
        NetworkReport {
            name: self.name.clone(),
            cores: self.engines.iter().map(|engine| engine.core as u16).collect(),
            counts: all.map(|(name, value)| Count { name: name.into(), value }).collect(),
        }
    }
}

/// Bytes of the longest frame, with a tag, of a network whose frames have so many after their headers.
const fn longest(mtu: u16) -> usize {
    mtu as usize + sluice_uplink::MAX_FRAME - config::DEFAULT_MTU as usize
}

/// Counts one more. Only the engine does.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// An engine that is not at work.
struct Held<'a>(SpinLockGuard<'a, State>);

impl Deref for Held<'_> {
    type Target = sluice_vif::Engine<Reach>;

    fn deref(&self) -> &Self::Target {
        &self.0.engine
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.engine
    }
}

/// The VIFs of a network, in the hands of who makes, changes or ends them.
pub struct Control<'a> {
    network: sluice_vif::Network<Held<'a>>,
    relay: Option<&'a Relay>,
}

impl Control<'_> {
    /// Makes a VIF of a domain. Returns it, and the index of the engine that its driver tells of frames. `None`: there are too many, or its
    /// address is another's.
    pub fn join(
        &mut self,
        attributes: Attributes,
        domain: &Arc<Domain>,
        face: Face,
    ) -> Option<(VifId, usize)> {
        let all = || Reach::Guest(Ram(domain.clone()));
        let (memory, member, card) = match face {
            Face::Queues(member) => (all(), Some(member), None),
            Face::Native(member, pool) => (Reach::Native(domain.clone(), pool), Some(member), None),
            Face::Card(card) => (all(), None, Some(card)),
        };
        let vif = self.network.join(attributes, memory, card, tsc::uptime_ns())?;
        self.set_member(vif, member.as_ref());
        Some((vif, self.network.home_of(vif)?))
    }

    /// Ends a VIF: when this returns, nothing of its domain's memory is reached. Returns what happened at it.
    pub fn leave(&mut self, vif: VifId) -> Option<Counters> {
        self.set_member(vif, None);
        self.network.leave(vif)
    }

    /// Any engine may have to signal it.
    fn set_member(&mut self, vif: VifId, member: Option<&Weak<dyn Member>>) {
        for engine in self.network.engines() {
            engine.0.members[vif.index()] = member.cloned();
        }
        if let Some(relay) = self.relay {
            relay.set_member(vif, member.cloned());
        }
    }

    /// The driver of a VIF has set its queues up, or let go of them. False: it broke the rules.
    pub fn activate(&mut self, vif: VifId, active: Option<Active>) -> bool {
        self.network.activate(vif, active)
    }

    /// Sets what is set of a VIF from outside.
    pub fn set(&mut self, vif: VifId, attributes: Attributes) {
        self.network.set(vif, attributes, tsc::uptime_ns());
    }

    /// What happened at a VIF.
    pub fn counters(&mut self, vif: VifId) -> Option<Counters> {
        self.network.counters(vif)
    }
}
