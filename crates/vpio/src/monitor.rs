//! The monitor of the NE2000 (the paper's DMM): who holds the device, who waits, what is hooked, when
//! it changes hands.
//!
//! Key type: [`Monitor`]. It leaves to `ne2000` what touches the card: to serve accesses, to move
//! contexts in and out, and to say who is on-line. But it is made for that card alone: its accesses
//! are to ports, its hook sets are ports, and it knows the card's regimes. Source: Xia et al.,
//! sections 3.3 and 5.1.

mod handoff;

use core::array;

use crate::access::{Cause, ClientId, Outcome, RawDevice, Reaction, Refusal, RegisterAccess, Served};
use crate::counters::{ClientCounters, DeviceCounters};
use crate::ne2000::{CountingDevice, Device, Regime, Stirred};
use handoff::Queue;
use sluice_model::models::ne2000::id;
use sluice_model::{
    DeviceEvent, HookSet, MAX_REGISTERS, Model, Questions, RegisterId, Seen, Tracker, hook_set, models,
};

/// When the monitor acts, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A holder that has not touched the device for this long is taken to be between operations.
    pub grace: u64,
    /// The same for a holder that has it undivided, whose last register sequence was not seen: if
    /// it was interrupted for longer than this in the middle of one, one transmission fails.
    pub sole_grace: u64,
    /// A holder of weight 1 keeps the device at least this long (unless it is idle).
    pub min_hold: u64,
    /// After this long a waiting client gets the device even if the holder never comes to rest, unless its [`Policy`]
    /// says otherwise.
    pub max_wait: u64,
    /// How long a single user must stay alone before it gets the card undivided again.
    pub undivide_after: u64,
    /// While several share: how often the monitor looks whether the holder stopped the card.
    pub watch: u64,
    /// For how long after a client wrote its interrupt mask it is not told that its line went up. A driver that masks the card
    /// while it sends unmasks it before it takes interrupts of the line again: one that comes between is taken for nothing
    /// and comes twice. A real card is still sending then.
    pub quiet: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            grace: 1_000_000,
            sole_grace: 10_000_000,
            min_hold: 2_000_000,
            max_wait: 20_000_000,
            undivide_after: 100_000_000,
            watch: 10_000_000,
            quiet: 8_000,
        }
    }
}

/// What a client may claim when others want the device too. A device that nobody else wants is never taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A busy holder keeps the device for so many times [`Timing::min_hold`]; 1-100. Of busy clients each has it for a
    /// share of the time that is about its share of all weights.
    pub weight: u8,
    /// Nanoseconds after which the client gets the device even if the holder never comes to rest; the default is
    /// [`Timing::max_wait`].
    pub max_wait: Option<u64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { weight: 1, max_wait: None }
    }
}

/// Why a client could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// [`ClientId::MAX`] clients are attached.
    Full,
    /// A multicast or null address.
    BadAddress,
    /// Another client has this address.
    AddressTaken,
}

/// What the caller must act on; taken by [`Monitor::changes`]. Masks have bit `ClientId::index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Clients whose [`Monitor::hooks`] changed: install before any of them runs again.
    pub hooks: u8,
    /// Clients whose [`Monitor::line`] changed.
    pub lines: u8,
    /// Clients that waited and may repeat their access now.
    pub wake: u8,
    /// Somebody asked for the device and did not get it at once: call [`Monitor::poll`] to learn
    /// when it wants to be called.
    pub poll: bool,
}

impl Changes {
    /// Nothing to do.
    pub const fn is_empty(self) -> bool {
        self.hooks | self.lines | self.wake == 0 && !self.poll
    }
}

/// What decides a hook set: the last are ports that tell of an error that only the monitor knows.
type HookKey = (Questions, Option<Tracker>, u32);

/// One client as the monitor sees it.
#[derive(Debug)]
struct Slot {
    counters: ClientCounters,
    policy: Policy,
    /// To refused accesses, by register.
    reactions: [Option<Reaction>; MAX_REGISTERS],
    /// Its last hooked access.
    touched: u64,
    /// All its processors halted since then.
    halted: bool,
    /// When it last wrote its interrupt mask.
    masked: Option<u64>,
    /// Since when it waits, if it does.
    waiting: Option<u64>,
    hooks: HookSet,
    key: HookKey,
}

impl Slot {
    const fn new() -> Self {
        Self {
            counters: ClientCounters::new(),
            policy: Policy { weight: 1, max_wait: None },
            reactions: [None; MAX_REGISTERS],
            touched: 0,
            halted: false,
            masked: None,
            waiting: None,
            hooks: HookSet::ALL,
            key: (Questions::ABSENT, None, 0),
        }
    }
}

/// One shared device. All times are nanoseconds of one monotonic clock.
///
/// While a method that takes the raw device runs, no processor of any client may run with direct
/// access to the device; before they run again, [`Self::changes`] must have been installed.
#[derive(Debug)]
pub struct Monitor {
    model: &'static Model,
    timing: Timing,
    device: Device,
    slots: [Slot; ClientId::MAX],
    /// Slots in use, bit per client.
    attached: u8,
    queue: Queue,
    /// The holder is being followed, from this time on, until it rests.
    following: Option<(Tracker, u64)>,
    /// Hooks are those of a holder that is followed.
    follows: bool,
    /// The holder as last accounted for, and since when.
    held: Option<(ClientId, u64)>,
    /// The holder before, for counting handoffs.
    last: Option<ClientId>,
    /// Since when the device has one user or none.
    alone: Option<u64>,
    next_watch: u64,
    /// Time alone moves no handoff along before this: what [`Self::poll`] said last, unless something has changed since.
    due: u64,
    /// What decides all hooks now: whose are not those of a client that has nothing.
    decided: Option<(ClientId, HookKey)>,
    lines: u8,
    changes: Changes,
}

impl Monitor {
    /// A monitor for the device with this PCI id, if there is a model of it. Allocates.
    pub fn for_device(vendor: u16, device: u16, timing: Timing) -> Option<Self> {
        Some(Self {
            model: models::find(vendor, device)?,
            timing,
            device: Device::new(),
            slots: array::from_fn(|_| Slot::new()),
            attached: 0,
            queue: Queue::default(),
            following: None,
            follows: false,
            held: None,
            last: None,
            alone: None,
            next_watch: 0,
            due: 0,
            decided: None,
            lines: 0,
            changes: Changes::default(),
        })
    }

    /// Name of the model, such as `ne2000`.
    pub const fn model_name(&self) -> &'static str {
        self.model.name
    }

    /// Name of a register by its index in [`ClientCounters::hooked_by_register`].
    pub fn register_name(&self, index: usize) -> Option<&'static str> {
        self.model.registers.get(index).map(|register| register.name)
    }

    /// Adds a client with this station address. Allocates its context; touches no hardware.
    pub fn attach(&mut self, mac: [u8; 6]) -> Result<ClientId, AttachError> {
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(AttachError::BadAddress);
        }
        if self.device.has_address(mac) {
            return Err(AttachError::AddressTaken);
        }
        let client = self.device.attach(mac).ok_or(AttachError::Full)?;
        if let Some(slot) = self.slots.get_mut(client.index()) {
            *slot = Slot::new();
        }
        self.attached |= client.bit();
        self.changes.hooks |= client.bit();
        Ok(client)
    }

    /// Says what a client may claim from now on.
    pub fn set_policy(&mut self, client: ClientId, policy: Policy) {
        if let Some(slot) = self.slots.get_mut(client.index()) {
            slot.policy = Policy { weight: policy.weight.clamp(1, 100), ..policy };
        }
    }

    /// Says what a client sees when an access is refused, by the register's name. `None`: nothing, but that a transmission
    /// that it may not make is reported as failed.
    pub fn set_reactions(&mut self, client: ClientId, reaction: impl Fn(&str) -> Option<Reaction>) {
        if let Some(slot) = self.slots.get_mut(client.index()) {
            for (to, register) in slot.reactions.iter_mut().zip(self.model.registers) {
                *to = reaction(register.name);
            }
        }
    }

    /// Removes a client (its guest is gone): quiesces, scrubs, passes the device on.
    pub fn detach(&mut self, raw: &mut dyn RawDevice, client: ClientId, now: u64) {
        self.withdraw(raw, client, now);
        if let (Some(last), Some(slot)) = (self.counters(client), self.slots.get_mut(client.index())) {
            slot.counters = last;
        }
        self.device.forget(client);
        self.attached &= !client.bit();
        if self.device.users() == 0 && self.device.regime() != Regime::Unused {
            self.device.retire(raw);
        }
        self.progress(raw, now);
        self.refresh(now);
    }

    /// Takes hardware and place in the queue from a client.
    fn withdraw(&mut self, raw: &mut dyn RawDevice, client: ClientId, now: u64) {
        if self.device.holder() == Some(client) {
            match self.device.regime() {
                Regime::Sole(_) => self.device.scrub(raw),
                _ => self.device.let_go(raw),
            }
        }
        self.queue.remove(client);
        self.stop_waiting(client, now);
    }

    /// Ports that must exit for this client now.
    pub fn hooks(&self, client: ClientId) -> HookSet {
        self.slots.get(client.index()).map_or(HookSet::ALL, |slot| slot.hooks)
    }

    /// Serves a hooked access. Also correct for an access that was hooked when it exited and is
    /// not any more.
    pub fn access<R: RawDevice + ?Sized>(
        &mut self,
        raw: &mut R,
        client: ClientId,
        now: u64,
        access: RegisterAccess<'_>,
    ) -> Outcome {
        let single = match access {
            RegisterAccess::Read { offset, width: 1 } => Some((offset, None)),
            RegisterAccess::Write { offset, width: 1, value } => Some((offset, Some(value as u8))),
            _ => None,
        };
        if let Some(value) =
            single.and_then(|(offset, written)| self.quick(raw, client, now, offset, written))
        {
            return Outcome::Done(value.into());
        }
        let attached = self.attached & client.bit() != 0;
        let Some(slot) = self.slots.get_mut(client.index()).filter(|_| attached) else {
            if let RegisterAccess::ReadString { into, .. } = access {
                into.fill(0xff);
            }
            return Outcome::Refused(Refusal {
                value: u32::MAX,
                register: None,
                reaction: Reaction::Discard,
            });
        };
        slot.touched = now;
        slot.halted = false;
        let (elements, writes) = (access.elements(), access.is_write());
        let mut raw = CountingDevice::new(raw);
        let concerned = self.device.holder() == Some(client) || self.device.online(client);
        let served = self.serve(&mut raw, client, now, access);
        let register = self.device.named();
        let outcome = match served {
            None => Outcome::Wait,
            Some(Ok(value)) => Outcome::Done(value),
            Some(Err((value, cause))) => Outcome::Refused(self.refuse(client, register, value, cause)),
        };
        // Who is off-line moves no handoff along: it could have the holder stopped as often as it likes. Of who is on-line, an
        // access does so while it is followed, or when it is time.
        if self.following.is_some() || !self.queue.is_empty() {
            let online = self.device.online(client);
            let wanted = self.following.is_some() || !online || self.is_due(now);
            if (concerned || online) && wanted {
                self.progress(&mut raw, now);
            }
        }
        let named = usize::from(register.0);
        if let Some(slot) = self.slots.get_mut(client.index()) {
            if writes && register == id::IMR {
                slot.masked = Some(now);
            }
            let counters = &mut slot.counters;
            counters.forwarded_elements += raw.elements;
            if outcome != Outcome::Wait {
                counters.hooked_elements += elements;
                counters.hooked_instructions += 1;
                if let Some(count) = counters.hooked_by_register.get_mut(named) {
                    *count += 1;
                }
            }
            counters.refused += u64::from(matches!(outcome, Outcome::Refused(_)));
        }
        self.refresh(now);
        outcome
    }

    /// Serves a hooked access of one byte, a read if nothing is `written`, as [`Self::access`] does, in a few steps, if that is
    /// possible: the shared holder makes it, who is not followed, it is not time for anything, and it is to a register that can
    /// be served so. Else `None`, and nothing was done.
    pub fn quick<R: RawDevice + ?Sized>(
        &mut self,
        raw: &mut R,
        client: ClientId,
        now: u64,
        offset: u16,
        written: Option<u8>,
    ) -> Option<u8> {
        if self.following.is_some() || !self.queue.is_empty() && self.is_due(now) {
            return None;
        }
        let mut raw = CountingDevice::new(raw);
        let value = self.device.quick(&mut raw, client, offset, written)?;
        let register = self.device.named();
        let slot = self.slots.get_mut(client.index())?;
        slot.touched = now;
        slot.halted = false;
        if register == id::IMR && written.is_some() {
            slot.masked = Some(now);
        }
        let counters = &mut slot.counters;
        counters.forwarded_elements += raw.elements;
        counters.hooked_elements += 1;
        counters.hooked_instructions += 1;
        if let Some(count) = counters.hooked_by_register.get_mut(usize::from(register.0)) {
            *count += 1;
        }
        self.refresh(now);
        Some(value)
    }

    /// Decides what a client sees of a refused access.
    fn refuse(&mut self, client: ClientId, register: RegisterId, value: u32, cause: Cause) -> Refusal {
        let slot = self.slots.get(client.index());
        let wanted = slot.and_then(|slot| slot.reactions.get(usize::from(register.0)).copied().flatten());
        let reaction = wanted.unwrap_or(match cause {
            Cause::RegisterAccess => Reaction::Discard,
            Cause::Send => Reaction::Interrupt,
        });
        if reaction == Reaction::Interrupt {
            self.device.fail(client, cause);
        }
        let register = Some(register).filter(|register| self.model.register(*register).is_some());
        Refusal { value, register, reaction }
    }

    /// `None`: it must wait.
    fn serve(
        &mut self,
        raw: &mut dyn RawDevice,
        client: ClientId,
        now: u64,
        access: RegisterAccess<'_>,
    ) -> Option<Served> {
        if !self.device.online(client) {
            if !self.device.engages(client, &access) {
                let served = self.device.emulate(client, access);
                if self.device.online(client) {
                    self.request(raw, client, now);
                }
                return Some(served);
            }
            self.device.engage(client);
        }
        if self.device.holder() != Some(client) {
            self.request(raw, client, now);
            if self.device.holder() != Some(client) {
                self.start_waiting(client, now);
                return None;
            }
        }
        // Bytes written to registers are events of the model; remembered before they are consumed.
        let written = match access {
            RegisterAccess::Write { width: 1, value, .. } => Some(value as u8),
            RegisterAccess::WriteString { width: 1, from, .. } => from.last().copied(),
            _ => None,
        };
        let served = self.device.serve(raw, client, access);
        if let (Some((tracker, _)), Some(value), Ok(_)) = (&mut self.following, written, served) {
            tracker.step(self.model, Seen::Write(self.device.named(), value));
            if self.device.holder() == Some(client)
                && !tracker.resting(self.model)
                && !self.device.activity(raw).sending
            {
                tracker.step(self.model, Seen::Device(DeviceEvent::Sent));
            }
        }
        Some(served)
    }

    /// The physical line was asserted; the caller has masked it at the I/O APIC.
    pub fn interrupt(&mut self, raw: &mut dyn RawDevice, now: u64) {
        self.device.counters.interrupts += 1;
        self.device.interrupt(raw);
        self.refresh(now);
    }

    /// The client's virtual interrupt controller saw the end of its interrupt.
    pub fn end_of_interrupt(&mut self, client: ClientId) {
        self.device.end_of_interrupt(client);
        let Stirred { lines, hooks } = self.device.take_stirred();
        debug_assert!(!hooks, "the end of an interrupt changes no hooks");
        self.refresh_lines(lines);
    }

    /// Level of the client's virtual interrupt line.
    pub fn line(&self, client: ClientId) -> bool {
        self.lines & client.bit() != 0
    }

    /// Nanoseconds after which the client is to be told that its line went up at `now`; see [`Timing::quiet`].
    pub fn quiet_for(&self, client: ClientId, now: u64) -> u64 {
        let masked = self.slots.get(client.index()).and_then(|slot| slot.masked);
        masked.map_or(0, |masked| masked.saturating_add(self.timing.quiet).saturating_sub(now))
    }

    /// The physical line may be unmasked now. Ask after every call of the monitor.
    pub const fn physical_unmask(&self) -> bool {
        !self.device.sole_line()
    }

    /// False while the client waits for the device.
    pub fn may_run(&self, client: ClientId) -> bool {
        self.slots.get(client.index()).is_none_or(|slot| slot.waiting.is_none())
    }

    /// It is time for [`Self::poll`], whoever calls and why.
    pub const fn is_due(&self, now: u64) -> bool {
        self.due <= now
    }

    /// Nothing changed since the last call of [`Self::changes`].
    pub const fn is_unchanged(&self) -> bool {
        self.changes.is_empty()
    }

    /// Takes what changed since the last call.
    pub fn changes(&mut self) -> Changes {
        core::mem::take(&mut self.changes)
    }

    /// Who has direct access.
    pub const fn holder(&self) -> Option<ClientId> {
        self.device.holder()
    }

    /// One client's counters; kept after it detaches, until the slot is used again.
    pub fn counters(&self, client: ClientId) -> Option<ClientCounters> {
        let counters = self.slots.get(client.index())?.counters.clone();
        Some(match self.device.context(client) {
            Some(context) => ClientCounters {
                tx_packets: context.tx_packets,
                rx_packets: context.rx_packets,
                rx_dropped: context.rx_dropped,
                ..counters
            },
            None => counters,
        })
    }

    /// Nanoseconds that a client has held the device until `now`, also if it still does.
    pub fn held_ns(&self, client: ClientId, now: u64) -> u64 {
        let so_far = self.slots.get(client.index()).map_or(0, |slot| slot.counters.held_ns);
        let since = self.held.filter(|(holder, _)| *holder == client).map_or(now, |(_, since)| since);
        so_far + now.saturating_sub(since)
    }

    /// The device's counters.
    pub const fn device_counters(&self) -> &DeviceCounters {
        &self.device.counters
    }

    /// Brings what the caller sees up to date with what happened. After most accesses nothing has.
    fn refresh(&mut self, now: u64) {
        let Stirred { lines, hooks } = self.device.take_stirred();
        if hooks || self.following.is_some() || self.follows {
            self.refresh_holder(now);
        }
        debug_assert_eq!(self.decided, self.decides(), "hooks that nobody looked at");
        self.refresh_lines(lines);
    }

    /// What decides all hooks: whose are not those of a client that has nothing.
    fn decides(&self) -> Option<(ClientId, HookKey)> {
        self.device.holder().map(|client| (client, self.questions(client)))
    }

    fn refresh_holder(&mut self, now: u64) {
        let holder = self.device.holder();
        if holder != self.held.map(|(client, _)| client) {
            if let Some((old, since)) = self.held
                && let Some(slot) = self.slots.get_mut(old.index())
            {
                slot.counters.held_ns += now.saturating_sub(since);
            }
            self.held = holder.map(|client| (client, now));
            self.following = None;
        }
        self.follows = self.following.is_some();
        let decides = self.decides();
        if decides != self.decided {
            self.decided = decides;
            self.due = 0;
            self.refresh_hooks();
        }
    }

    /// Finds out whose hooks are others now.
    fn refresh_hooks(&mut self) {
        for client in ClientId::of(self.attached) {
            let key = self.questions(client);
            let Some(slot) = self.slots.get_mut(client.index()).filter(|slot| slot.key != key) else {
                continue;
            };
            slot.key = key;
            let hooks = hook_set(self.model, key.1.as_ref().map_or(&[], |t| t.states()), key.0)
                .union(HookSet::of_ports(key.2));
            if hooks != slot.hooks {
                slot.hooks = hooks;
                self.changes.hooks |= client.bit();
            }
        }
    }

    /// Finds out which of these clients' lines have another level.
    fn refresh_lines(&mut self, stirred: u8) {
        // Of who has just left, only a line that is up can be another.
        for client in ClientId::of(stirred & (self.attached | self.lines)) {
            let up = if self.device.line(client) { client.bit() } else { 0 };
            let changed = (self.lines ^ up) & client.bit();
            self.changes.lines |= changed;
            self.lines ^= changed;
        }
        debug_assert!(
            ClientId::of(u8::MAX).all(|client| self.device.line(client) == self.line(client)),
            "a line that nobody looked at"
        );
    }

    /// What must be known of this client now.
    fn questions(&self, client: ClientId) -> HookKey {
        if self.device.holder() != Some(client) {
            return (Questions::ABSENT, None, 0);
        }
        let mut questions = match self.device.regime() {
            Regime::Shared(_) => Questions::SHADOW | Questions::ISOLATE,
            _ => Questions::SHADOW,
        };
        questions.set(Questions::GUARD, self.device.guards(client));
        questions.set(Questions::FOLLOW, self.following.is_some());
        (questions, self.following.map(|(tracker, _)| tracker), self.device.telling(client))
    }
}
