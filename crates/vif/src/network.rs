//! All engines of a network in one hand: what is made, changed and ended while none of them is at work.

use crate::active::Active;
use crate::card::{Card, Outbox};
use crate::chain::Memory;
use crate::directory::Entry;
use crate::engine::{Duty, Engine};
use crate::port::Port;
use crate::shared::Shared;
use crate::vif::{Attributes, Counters, Sender};
use crate::{MAX_ENGINES, VifId};
use alloc::boxed::Box;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::ops::DerefMut;
use sluice_switch::is_group;

/// How several engines share the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The first takes what comes from the wire, and nothing else; VIFs are spread over the others, which send.
    #[default]
    Split,
    /// VIFs are spread over all; the first takes what comes from the wire, too.
    Spread,
}

impl Layout {
    /// What the engine of this index is for, of so many.
    const fn duty(self, index: usize, count: usize) -> Duty {
        let receives = index == 0;
        let sends = !receives || count == 1 || matches!(self, Self::Spread);
        Duty { sends, receives }
    }
}

/// The engines of a new network: at least one, and [`MAX_ENGINES`] at most.
pub fn engines<M: Memory>(layout: Layout, count: usize) -> ArrayVec<Engine<M>, MAX_ENGINES> {
    let shared = Arc::new(Shared::new());
    let count = count.clamp(1, MAX_ENGINES);
    (0..count).map(|index| Engine::new(shared.clone(), layout.duty(index, count))).collect()
}

/// All engines of a network, of which none is at work meanwhile.
pub struct Network<E> {
    engines: ArrayVec<E, MAX_ENGINES>,
}

impl<M: Memory + Clone, E: DerefMut<Target = Engine<M>>> Network<E> {
    /// Of all the engines that [`engines`] made at once.
    pub fn new(engines: impl Iterator<Item = E>) -> Self {
        Self { engines: engines.take(MAX_ENGINES).collect() }
    }

    /// The engines, in the order of their index.
    pub fn engines(&mut self) -> impl Iterator<Item = &mut E> {
        self.engines.iter_mut()
    }

    /// The engine that serves the send queue of a VIF.
    fn home(&mut self, id: VifId) -> Option<&mut Engine<M>> {
        self.engines.iter_mut().map(|engine| &mut **engine).find(|engine| engine.serves(id))
    }

    /// Index of the engine that serves the send queue of a VIF, whose driver wakes it.
    pub fn home_of(&self, id: VifId) -> Option<usize> {
        self.engines.iter().position(|engine| engine.serves(id))
    }

    /// Tells all engines what is known of a VIF that begins anew. What it has received and was not shown is gone.
    fn announce(&mut self, id: VifId, entry: Option<Entry>) {
        for engine in &mut self.engines {
            engine.directory.set(id, entry);
            engine.fresh.remove(id);
            engine.broken.remove(id);
            engine.awake.insert(id);
        }
    }

    /// Makes a VIF of a guest with this memory, at the engine with the fewest; with a card, that is served from now on. `None`: there are
    /// [`crate::MAX_VIFS`], or the address is a group's or another's.
    pub fn join(
        &mut self,
        attributes: Attributes,
        memory: M,
        card: Option<Arc<dyn Card<M>>>,
        now: u64,
    ) -> Option<VifId> {
        let directory = &self.engines.first()?.directory;
        if is_group(attributes.mac) || directory.find(attributes.mac).is_some() {
            return None;
        }
        let id = directory.vacancy()?;
        let senders = self.engines.iter_mut().filter(|engine| engine.duty.sends);
        let home = senders.min_by_key(|engine| engine.own.iter().count())?;
        *home.shared.port(id) = Some(Port::new(memory.clone(), card.clone()));
        let is_card = card.is_some();
        let outbox = card.map(Outbox::new);
        home.senders[id.index()] = Some(Box::new(Sender::new(attributes, memory, outbox, now)));
        home.own.insert(id);
        home.shared.set_live(id, is_card);
        self.announce(id, Some(Entry::new(&attributes, 0, is_card)));
        Some(id)
    }

    /// Ends a VIF. When this returns, nothing of its guest's memory is reached any more.
    pub fn leave(&mut self, id: VifId) -> Option<Counters> {
        let counters = self.counters(id);
        self.announce(id, None);
        let home = self.home(id)?;
        home.own.remove(id);
        home.senders[id.index()] = None;
        home.shared.set_live(id, false);
        *home.shared.port(id) = None;
        counters
    }

    /// The driver of a VIF has set its queues up, or has let go of them. What was under way is gone. Returns false if it broke the rules.
    pub fn activate(&mut self, id: VifId, active: Option<Active>) -> bool {
        let Some(home) = self.home(id) else { return true };
        let is_live = home.shared.live().contains(id);
        let Some(sender) = home.senders[id.index()].as_mut() else { return true };
        if sender.outbox.is_some() || is_live && sender.active == active {
            return true;
        }
        sender.activate(active);
        // An engine that does not look says so again: a driver of the native face takes it that nobody wants to hear of frames.
        let told = !home.dozes || sender.listen(true).is_ok();
        let port = home.shared.port(id).as_mut().is_none_or(|port| port.activate(active).is_ok());
        let sound = told && port;
        home.shared.set_live(id, active.is_some() && sound);
        let entry = Entry::new(&sender.attributes, active.map_or(0, |active| active.features), false);
        self.announce(id, Some(entry));
        sound
    }

    /// Sets what is set of a VIF from outside. False: the address is a group's or another's.
    pub fn set(&mut self, id: VifId, attributes: Attributes, now: u64) -> bool {
        let Some(home) = self.home(id) else { return false };
        if is_group(attributes.mac) || home.directory.find(attributes.mac).is_some_and(|other| other != id) {
            return false;
        }
        let (features, is_card) = (home.directory.features(id), home.directory.is_card(id));
        let Some(sender) = home.senders[id.index()].as_mut() else { return false };
        if sender.attributes.limit != attributes.limit {
            sender.bucket = attributes.limit.map(|rate| sluice_switch::Bucket::new(rate, now));
        }
        sender.attributes = attributes;
        for engine in &mut self.engines {
            engine.directory.set(id, Some(Entry::new(&attributes, features, is_card)));
        }
        true
    }

    /// What happened at a VIF.
    pub fn counters(&mut self, id: VifId) -> Option<Counters> {
        let home = self.home(id)?;
        let mut counters = home.senders[id.index()].as_ref()?.counters;
        counters += home.shared.port(id).as_ref()?.counters;
        Some(counters)
    }

    /// Frames from the wire that went nowhere.
    pub fn unclaimed(&self) -> u64 {
        self.engines.iter().map(|engine| engine.unclaimed()).sum()
    }
}
