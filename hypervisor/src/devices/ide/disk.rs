//! The physical disk, and the guests that have it part by part.

use super::super::device::Device;
use super::super::error::AttachError;
use super::super::guest::Guest;
use super::super::hardware::{Buffers, Window};
use super::super::told::Told;
use super::IdeFunction;
use super::ports;
use crate::domain::Domain;
use crate::pci;
use crate::pci::reset;
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::sync::Arc;
use sluice_abi::config::{Mode, Sectors};
use sluice_abi::report::{DeviceReport, ShareReport};
use sluice_ide::channel::Action;
use sluice_ide::identify::{self, Words};
use sluice_ide::{
    Channel, Disk, Engine, Failure, Front, GivenUp, Issue, Kind, PART, SECTOR, SETTLES_US, Slice, Wish, prd,
};
use sluice_memory::Gpa;
use sluice_uplink::DmaMemory;

/// Guests that can share a disk.
const CLIENTS: usize = 8;
/// Bytes that the disk moves at a time.
const DATA: usize = PART as usize * SECTOR as usize;
/// What each guest has of the buffers: its data where they are copied, and behind them the bus master's table.
const SPAN: usize = DATA + prd::TABLE;
/// A command that has not ended after so many nanoseconds is lost. Disks that spin up take up to 31 s (ATA-6, 9.2).
const PATIENCE: u64 = 31_000_000_000;
/// Between looks at a disk that is being reset, in nanoseconds.
const LOOK: u64 = 3_000_000;
const _: () = assert!(LOOK > 1000 * SETTLES_US);
/// What a guest is shown of a command that was lost: aborted, and a fault of the device's.
const LOST: Failure = Failure { status: sluice_ide::bits::DF, error: sluice_ide::bits::ABRT };

/// A physical disk that guests have part by part.
pub struct SharedDisk {
    device: Arc<Device>,
    state: SpinLock<State>,
}

struct State {
    engine: Engine<ports::Channel>,
    /// What the disk reaches; `None` once it is given back.
    buffers: Option<Buffers>,
    channel: Channel<CLIENTS>,
    identity: Words,
    clients: [Option<Client>; CLIENTS],
    /// What runs, and whether its data move in the memory of whose part it is.
    running: Option<(Issue, bool)>,
    /// When a disk that is being reset is to be looked at. Its guests may look at their registers all the time, and do not put it off.
    reset_looks_at: Option<u64>,
}

/// A guest at the disk.
struct Client {
    front: Front,
    slice: Slice,
    function: Arc<IdeFunction>,
    /// The disk may reach the guest's memory.
    lent: bool,
    /// The data of the part that was asked for last move there.
    in_place: bool,
    /// Nothing of who had this place before is in its part of the buffers.
    clean: bool,
    /// Level of its line, as the guest's platform last heard.
    line: bool,
    /// Accesses that exited.
    hooked: u64,
}

/// A guest's memory, for its controller and for the disk.
struct Reach {
    domain: Arc<Domain>,
    /// The guest lets its controller master the bus.
    may: bool,
    /// Where the disk finds it; `None`: it does not reach it.
    window: Option<Window>,
}

impl Client {
    fn memory(&self, buffers: &Buffers) -> Option<Reach> {
        let (domain, _) = self.function.guest.domain()?;
        let may = self.function.masters();
        Some(Reach { domain, may, window: self.lent.then(|| buffers.window()) })
    }
}

impl sluice_ide::Memory for Reach {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.may && self.domain.read(Gpa::new(at), into).is_ok()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.may && self.domain.write(Gpa::new(at), bytes).is_ok()
    }

    fn bus(&self, at: u64, bytes: u64) -> Option<u32> {
        let window = self.window.filter(|_| self.may)?;
        window.find(self.domain.in_one_piece(Gpa::new(at), bytes)?, bytes)?.try_into().ok()
    }
}

impl SharedDisk {
    /// Takes a disk that nobody has.
    ///
    /// # Errors
    /// Says why it cannot be shared.
    pub fn start(device: &Arc<Device>) -> Result<Arc<Self>, AttachError> {
        let pci::Function { vendor, device: id, .. } = device.function;
        if !sluice_abi::config::is_ide(vendor, id) {
            return Err(AttachError::NoModel);
        }
        let ports = ports::Channel::of(&device.function).ok_or(AttachError::NoAddress)?;
        device.wait_ready();
        device.decode();
        let buffers = Buffers::allocate(device, (CLIENTS * SPAN) as u64, Window::NARROW)?;
        device.function.bdf.set_command(pci::COMMAND_MASTER, 0);
        let mut engine = Engine::new(ports);
        let Some(identity) = engine.identify() else {
            give_back(device, &mut engine, buffers);
            return Err(AttachError::NoAnswer);
        };
        log::info!("device {}: a disk of {} sectors, shared", device.name, identify::capacity(&identity));
        let state = State {
            engine,
            buffers: Some(buffers),
            channel: Channel::new(PATIENCE),
            identity,
            clients: [const { None }; CLIENTS],
            running: None,
            reset_looks_at: None,
        };
        Ok(Arc::new(Self { device: device.clone(), state: SpinLock::new(Rank::Card, state) }))
    }

    /// Gives the disk back.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        if let Some(buffers) = state.buffers.take() {
            give_back(&self.device, &mut state.engine, buffers);
        }
    }

    /// The physical function.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes a guest's range of sectors its disk.
    ///
    /// # Errors
    /// The disk does not have them, or somebody else does; or there are too many guests already.
    pub fn attach(self: &Arc<Self>, sectors: Sectors, guest: Guest) -> Result<Arc<IdeFunction>, AttachError> {
        let mut state = self.state.lock();
        let capacity = identify::capacity(&state.identity);
        let slice = Slice::new(sectors.first, sectors.count, capacity).ok_or(AttachError::NoSectors)?;
        if state.clients.iter().flatten().any(|client| client.slice.overlaps(&slice)) {
            return Err(AttachError::Overlap);
        }
        let place = state.clients.iter().position(Option::is_none).ok_or(AttachError::TooMany)?;
        let disk = Disk { long: state.identity[83] & 1 << 10 != 0 };
        let mut serial = *b"SLUICE              ";
        for (to, from) in serial.iter_mut().skip(7).zip(guest.name.bytes()) {
            *to = from;
        }
        let identity = identify::filter(&state.identity, &slice, &serial);
        let function = IdeFunction::new(self.clone(), place, guest, Told::new(sectors.on_refusal))
            .ok_or(AttachError::NoPorts)?;
        let function = Arc::new(function);
        let front = Front::new(slice, disk, identity);
        state.clients[place] = Some(Client {
            front,
            slice,
            function: function.clone(),
            lent: false,
            in_place: false,
            clean: false,
            line: false,
            hooked: 0,
        });
        Ok(function)
    }

    /// The guest exists: the disk reaches its memory from now on.
    pub fn enter(&self, place: usize, domain: &Domain) {
        let mut state = self.state.lock();
        let State { buffers, clients, .. } = &mut *state;
        let (Some(client), Some(buffers)) = (clients.get_mut(place).and_then(Option::as_mut), buffers) else {
            return;
        };
        if client.function.guest.knows_machine {
            // Among its pages are tables that the hardware uses, which no device may write.
            return;
        }
        match buffers.lend(domain.id, domain.extents()) {
            Ok(()) => client.lent = true,
            Err(error) => {
                let (device, domain) = (&self.device.name, domain.name());
                log::warn!("device {device}: domain {domain}: its data are copied: {error}");
            }
        }
    }

    /// A guest leaves the disk, which reaches nothing of it when this returns. Returns what it did.
    pub fn detach(&self, place: usize) -> Option<ShareReport> {
        let mut state = self.state.lock();
        let in_place = state.running.is_some_and(|(_, in_place)| in_place);
        let what = if in_place { GivenUp::InPlace } else { GivenUp::Buffered };
        state.give_up(place, what, tsc::uptime_ns());
        let client = state.clients.get_mut(place)?.take()?;
        if let (true, Some(buffers), Some((domain, _))) =
            (client.lent, &mut state.buffers, client.function.guest.domain())
        {
            buffers.take_back(domain.extents());
        }
        self.device.poll_next(state.wants_poll());
        Some(client.report())
    }

    /// Whether guests have it.
    pub fn has_guests(&self) -> bool {
        self.state.lock().clients.iter().any(Option::is_some)
    }

    /// An access of a guest's to its registers. What has arrived for it comes first: it may look for it there. Returns how much was refused to
    /// it in all.
    pub fn access(&self, place: usize, act: impl FnOnce(&mut Front)) -> u64 {
        let mut refused = 0;
        self.with(|state, now| {
            state.deliver(place);
            let Some(client) = state.clients.get_mut(place).and_then(Option::as_mut) else { return };
            client.hooked += 1;
            act(&mut client.front);
            refused = client.front.counters().refused;
            state.heed_given_up(place, now);
            state.ask(place, now);
        });
        refused
    }

    /// The guest does not let its controller master the bus any more.
    pub fn leave_bus(&self, place: usize) {
        self.with(|state, now| {
            let Some(client) = state.client(place) else { return };
            client.front.leave_bus();
            state.heed_given_up(place, now);
        });
    }

    /// Goes on with what a guest has left to do, in its time.
    pub fn resume(&self, place: usize) {
        self.with(|state, now| {
            state.deliver(place);
            state.ask(place, now);
        });
    }

    /// The physical line went up.
    pub fn interrupt(&self) {
        self.with(State::take_result);
        self.device.unmask();
    }

    /// It is the time that the disk asked for.
    pub fn poll(&self) {
        self.with(|state, now| {
            state.take_result(now);
            let next = match state.reset_looks_at {
                Some(_) if state.engine.is_ready() => {
                    state.reset_looks_at = None;
                    state.channel.is_reset(now)
                }
                Some(_) => {
                    state.reset_looks_at = Some(now + LOOK);
                    None
                }
                None => state.channel.poll(now),
            };
            if let Some(Action::Reset(_)) = next {
                log::warn!("device {}: it does not answer, and its channel is reset", self.device.name);
            }
            state.carry_out(next, now);
        });
    }

    /// Runs `act`, then tells guests of their lines, and says when the disk is to be looked at.
    fn with(&self, act: impl FnOnce(&mut State, u64)) {
        let now = tsc::uptime_ns();
        let mut state = self.state.lock();
        if state.buffers.is_none() {
            return;
        }
        act(&mut state, now);
        for client in state.clients.iter_mut().flatten() {
            let level = client.front.line();
            if level != client.line
                && let Some((domain, _)) = client.function.guest.domain()
            {
                client.line = level;
                domain.set_line(client.function.guest.pin, level);
            }
        }
        self.device.poll_next(state.wants_poll());
    }

    /// Adds what the present guests did.
    pub fn add_to(&self, report: &mut DeviceReport) {
        let state = self.state.lock();
        state.clients.iter().flatten().for_each(|client| client.report().add_to(&mut report.shares));
    }
}

impl State {
    fn client(&mut self, place: usize) -> Option<&mut Client> {
        self.clients.get_mut(place)?.as_mut()
    }

    /// When the disk is to be looked at.
    fn wants_poll(&self) -> Option<u64> {
        self.reset_looks_at.or_else(|| self.channel.deadline())
    }

    /// A guest may have given something up.
    fn heed_given_up(&mut self, place: usize, now: u64) {
        if let Some(what) = self.client(place).and_then(|client| client.front.take_given_up()) {
            self.give_up(place, what, now);
        }
    }

    /// A guest does not want any more what it asked for.
    fn give_up(&mut self, place: usize, what: GivenUp, now: u64) {
        let next = match what {
            GivenUp::InPlace => self.channel.stop(place),
            GivenUp::Buffered => {
                self.channel.withdraw(place);
                None
            }
        };
        self.carry_out(next, now);
    }

    /// Asks for what a guest's disk wants of the physical one. Where its data are is found out now, and what is copied to be written is taken out of the
    /// guest's memory, in the guest's time: when its turn comes, nothing is left to do that depends on the guest.
    fn ask(&mut self, place: usize, now: u64) {
        // What this guest, or one before it, had running and has given up still moves this part of the buffers.
        if self.channel.mover() == Some(place) {
            return;
        }
        let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) else { return };
        let Some(buffers) = self.buffers.as_mut() else { return };
        let Some(memory) = client.memory(buffers) else { return };
        let bus = buffers.bus() + (place * SPAN) as u32;
        let Some((data, table)) = buffers.part(place * SPAN, SPAN).map(|part| part.split_at_mut(DATA)) else {
            return;
        };
        let Some(Wish { issue, in_place }) = client.front.take_wish(&memory, table) else { return };
        client.in_place = in_place;
        if !in_place {
            if !client.clean {
                data.fill(0);
                client.clean = true;
            }
            let bytes = issue.bytes() as usize;
            let out = if issue.kind == Kind::DmaOut { bytes } else { 0 };
            let Some(out) = data.get_mut(..out).filter(|_| bytes <= DATA) else { return };
            if !client.front.supply(&memory, out) {
                return;
            }
            prd::lead_to(table, bus, issue.bytes());
        }
        match self.channel.request(place, issue, now) {
            Ok(next) => self.carry_out(next, now),
            // It has one command at a time, and has withdrawn what it reset.
            Err(refusal) => log::error!("a guest's command was lost: {refusal:?}"),
        }
    }

    /// If the disk is done, so is somebody's part, and it is the next one's turn. Nothing here takes longer for one guest than for
    /// another: it is whoever has this processor that pays for it.
    fn take_result(&mut self, now: u64) {
        if self.channel.is_free() || self.reset_looks_at.is_some() {
            return self.engine.silence();
        }
        let Some(result) = self.engine.take_result() else { return };
        let read = self.running.take().filter(|(issue, in_place)| issue.kind == Kind::DmaIn && !in_place);
        let bytes = read.map_or(0, |(issue, _)| issue.bytes() as usize);
        let (mover, holder) = (self.channel.mover(), self.channel.finished());
        if let Some(client) = mover.and_then(|place| self.client(place)) {
            if holder.is_some() {
                client.front.arrive(result.map(|()| bytes));
            }
            // Or it waits for its part of the buffers.
            client.function.go_on();
        }
        let next = self.channel.go_on(now);
        self.carry_out(next, now);
    }

    /// Tells a guest's disk what became of its part, in the guest's time.
    fn deliver(&mut self, place: usize) {
        let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) else { return };
        let Some(result) = client.front.take_arrival() else { return };
        let Some(buffers) = self.buffers.as_mut() else { return };
        let Some(memory) = client.memory(buffers) else { return };
        let data = buffers.part(place * SPAN, result.unwrap_or(0)).unwrap_or_default();
        client.front.finish(&memory, result.map(|_| &*data));
    }

    fn carry_out(&mut self, next: Option<Action>, now: u64) {
        match next {
            None => {}
            Some(Action::Start(place, issue)) => self.start(place, issue),
            Some(Action::Reset(place)) => {
                self.running = None;
                self.engine.reset();
                self.reset_looks_at = Some(now + LOOK);
                if let Some(client) = place.and_then(|place| self.client(place)) {
                    client.front.arrive(Err(LOST));
                }
                // One of them may wait for its part of the buffers.
                self.clients.iter().flatten().for_each(|client| client.function.go_on());
            }
        }
    }

    /// Starts a guest's part.
    fn start(&mut self, place: usize, issue: Issue) {
        let Some(buffers) = self.buffers.as_ref() else { return };
        let table = buffers.bus() + (place * SPAN + DATA) as u32;
        self.engine.start(&issue, table);
        let in_place = self.client(place).is_some_and(|client| client.in_place);
        self.running = Some((issue, in_place));
    }
}

/// The disk stops whatever it does, and is off the bus.
fn give_back(device: &Device, engine: &mut Engine<ports::Channel>, buffers: Buffers) {
    engine.reset();
    reset::quiet(&device.function);
    device.reset();
    buffers.free();
    device.leave_bus();
}

impl Client {
    fn report(&self) -> ShareReport {
        let counters = self.front.counters();
        ShareReport {
            domain: self.function.guest.name.clone(),
            mode: Mode::Vpio.word().into(),
            hooked_instructions: self.hooked,
            commands: counters.commands,
            sectors_read: counters.read,
            sectors_written: counters.written,
            refused: counters.refused,
            ..ShareReport::default()
        }
    }
}
