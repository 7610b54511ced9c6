//! The physical disk, and the guests that have parts of it.

use super::super::device::Device;
use super::super::error::AttachError;
use super::super::guest::Guest;
use super::super::hardware::{Buffers, Window};
use super::super::told::Told;
use super::NvmeFunction;
use crate::cpu;
use crate::domain::Domain;
use crate::iommu::DmaEndpoint;
use crate::irq::message::Vector;
use crate::pci;
use crate::pci::messages::{self, write_entry};
use crate::pci::reset::{self, Registers};
use crate::sync::{Rank, SpinLock};
use crate::x86::tsc;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use sluice_abi::config::{Mode, Sectors};
use sluice_abi::report::{DeviceReport, ShareReport};
use sluice_disk::Slice;
use sluice_memory::Gpa;
use sluice_nvme::{Engine, Facts, Failure, Front, Lists, Offer, Shared, Status, Taken};
use sluice_platform::pci::BarAddresses;
use sluice_uplink::DmaMemory;

/// Guests that can share a disk.
const CLIENTS: usize = 8;
/// Commands that are taken, and as many completions, before a guest's processor goes on with something else.
const AT_ONCE: usize = 16;
/// A command that has not ended after so many nanoseconds is lost: a second more than Linux waits.
const PATIENCE: u64 = 31_000_000_000;
/// Between looks at a disk that has commands, in nanoseconds.
const LOOK: u64 = 1_000_000_000;
/// What a guest is told of commands when there is no disk any more: an internal error (NVMe, 4.6.1.2.1).
const DEAD: Status = Status(1 << 14 | 0x06);

/// A physical disk that guests have parts of.
pub struct SharedNvme {
    device: Arc<Device>,
    state: SpinLock<State>,
}

struct State {
    engine: Engine<Hardware, CLIENTS>,
    /// What the disk reaches besides guests' memory; `None` once it is given back.
    buffers: Option<Buffers>,
    facts: Facts,
    clients: [Option<Client>; CLIENTS],
}

/// A guest at the disk.
struct Client {
    front: Front,
    slice: Slice,
    function: Arc<NvmeFunction>,
    /// The interrupt that tells of its completions.
    vector: Vector,
    /// The disk may reach the guest's memory.
    lent: bool,
    /// The disk was started anew: what it had of the guest's is lost.
    lost: bool,
    /// When a command of the guest's last began or ended, in nanoseconds.
    moved: u64,
    /// Accesses that exited.
    hooked: u64,
}

/// The registers of the disk.
struct Hardware(Registers);

impl sluice_nvme::Hardware for Hardware {
    fn read(&self, offset: u32) -> u32 {
        self.0.read(offset.into())
    }

    fn write(&self, offset: u32, value: u32) {
        self.0.write(offset.into(), value);
    }

    fn delay_us(&self, us: u64) {
        tsc::delay_us(us);
    }
}

impl Shared for Buffers {
    fn bus(&self) -> u64 {
        DmaMemory::bus(self).into()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        DmaMemory::read(self, offset, into);
    }

    fn read_word(&self, offset: usize) -> u32 {
        self.word(offset).unwrap_or(u32::MAX)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        DmaMemory::write(self, offset, bytes);
    }
}

/// A guest's memory, for its controller and for the disk.
struct Reach<'a> {
    domain: &'a Domain,
    /// The guest lets its controller master the bus.
    may: bool,
    /// Where the disk finds it; `None`: it does not reach it.
    window: Option<Window>,
}

impl sluice_nvme::Memory for Reach<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.may && self.domain.read(Gpa::new(at), into).is_ok()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.may && self.domain.write(Gpa::new(at), bytes).is_ok()
    }

    fn read_word(&self, at: u64) -> Option<u32> {
        self.domain.read_u32(Gpa::new(at)).ok().filter(|_| self.may)
    }

    fn write_word(&self, at: u64, value: u32) -> bool {
        self.may && self.domain.write_u32(Gpa::new(at), value).is_ok()
    }

    fn bus(&self, at: u64, len: u64) -> Option<u64> {
        let window = self.window.filter(|_| self.may)?;
        window.find(self.domain.in_one_piece(Gpa::new(at), len)?, len)
    }
}

impl From<Failure> for AttachError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Kind => Self::NoModel,
            Failure::Silent | Failure::Refused(_) => Self::NoAnswer,
            Failure::Namespace => Self::NoNamespace,
            Failure::Queues => Self::TooMany,
        }
    }
}

impl SharedNvme {
    /// Takes a disk that nobody has.
    ///
    /// # Errors
    /// Says why it cannot be shared.
    pub fn start(device: &Arc<Device>) -> Result<Arc<Self>, AttachError> {
        // A message for each guest, behind that of the admin queue, which nobody waits for.
        let messages = device.function.msix.map_or(0, |msix| usize::from(msix.vectors));
        if messages <= CLIENTS {
            return Err(AttachError::NoModel);
        }
        device.wait_ready();
        device.decode();
        let registers = Registers::of(&device.function, 0).ok_or(AttachError::NoAddress)?;
        let mut buffers =
            Buffers::allocate(device, Engine::<Hardware, CLIENTS>::MEMORY as u64, Window::WIDE)?;
        let mut engine = Engine::new(Hardware(registers));
        let facts = match bring_up(device, &mut engine, &mut buffers) {
            Ok(facts) => facts,
            Err(failure) => {
                log::warn!("device {}: it cannot be shared: {failure:?}", device.name);
                give_back(device, &mut engine, buffers);
                return Err(failure.into());
            }
        };
        log::info!("device {}: a disk of {} sectors, shared", device.name, facts.blocks());
        let state = State { engine, buffers: Some(buffers), facts, clients: [const { None }; CLIENTS] };
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
    pub fn attach(
        self: &Arc<Self>,
        sectors: Sectors,
        guest: Guest,
        addresses: &mut BarAddresses,
    ) -> Result<Arc<NvmeFunction>, AttachError> {
        if guest.knows_machine {
            // Among its pages are tables that the hardware uses, which no device may write.
            return Err(AttachError::NoModel);
        }
        let mut state = self.state.lock();
        let State { engine, buffers, facts, clients } = &mut *state;
        let buffers = buffers.as_mut().ok_or(AttachError::NoAnswer)?;
        let slice = Slice::new(sectors.first, sectors.count, facts.blocks()).ok_or(AttachError::NoSectors)?;
        if clients.iter().flatten().any(|client| client.slice.overlaps(&slice)) {
            return Err(AttachError::Overlap);
        }
        let place = clients.iter().position(Option::is_none).ok_or(AttachError::TooMany)?;
        let gate = self.device.dma_endpoint().filter(DmaEndpoint::remaps_interrupts);
        let vector =
            Vector::allocate(self.device.index, message_of(place), gate).ok_or(AttachError::TooMany)?;
        let mut serial = *b"SLUICE              ";
        for (to, from) in serial.iter_mut().skip(7).zip(guest.name.bytes()) {
            *to = from;
        }
        let front = Front::new(Offer::new(facts.clone(), slice, serial));
        let function = Arc::new(NvmeFunction::new(
            self.clone(),
            place,
            guest,
            addresses,
            Told::new(sectors.on_refusal),
        )?);
        engine.open(place, message_of(place), buffers)?;
        clients[place] = Some(Client {
            front,
            slice,
            function: function.clone(),
            vector,
            lent: false,
            lost: false,
            moved: 0,
            hooked: 0,
        });
        Ok(function)
    }

    /// The guest exists: the disk reaches its memory from now on, and tells the processor that its first one is at home on.
    pub fn enter(&self, place: usize, domain: &Domain) {
        let mut state = self.state.lock();
        let State { buffers, clients, .. } = &mut *state;
        let (Some(client), Some(buffers)) = (clients.get_mut(place).and_then(Option::as_mut), buffers) else {
            return;
        };
        match buffers.lend(domain.id, domain.extents()) {
            Ok(()) => client.lent = true,
            Err(error) => {
                log::error!("device {}: domain {}: no data: {error}", self.device.name, domain.name());
            }
        }
        client.route(&self.device, place);
    }

    /// A guest leaves the disk, which reaches nothing of it when this returns. Returns what it did.
    pub fn detach(&self, place: usize) -> Option<ShareReport> {
        let mut state = self.state.lock();
        let State { engine, buffers, .. } = &mut *state;
        write_entry(&self.device.function, message_of(place), None);
        if let Some(buffers) = buffers
            && let Err(failure) = engine.close(place, buffers)
        {
            log::warn!("device {}: it keeps a queue: {failure:?}", self.device.name);
            state.recover(&self.device, Some(place));
        }
        let client = state.clients.get_mut(place)?.take()?;
        if let (true, Some(buffers), Some((domain, _))) =
            (client.lent, &mut state.buffers, client.function.guest.domain())
        {
            buffers.take_back(domain.extents());
        }
        Some(client.report())
    }

    /// Whether guests have it.
    pub fn has_guests(&self) -> bool {
        self.state.lock().clients.iter().any(Option::is_some)
    }

    /// An access of a guest's to its registers. Returns how much was forbidden it in all.
    pub fn access(&self, place: usize, act: impl FnOnce(&mut Front)) -> u64 {
        let mut forbidden = 0;
        self.with(place, |client| {
            client.hooked += 1;
            act(&mut client.front);
            forbidden = client.front.counters().forbidden;
        });
        forbidden
    }

    /// Goes on with what a guest has left to do, in its time.
    pub fn resume(&self, place: usize) {
        self.with(place, |_| ());
    }

    /// The disk has done something for the guest that this message tells of.
    pub fn message(&self, message: u16) {
        let place = usize::from(message).wrapping_sub(1);
        if let Some(client) = self.state.lock().clients.get(place).and_then(Option::as_ref) {
            client.function.go_on();
        }
    }

    /// Looks whether the disk does what it was told.
    pub fn poll(&self) {
        let now = tsc::uptime_ns();
        let mut state = self.state.lock();
        let State { engine, buffers: Some(buffers), clients, .. } = &*state else { return };
        let present = (0..).zip(clients).filter_map(|(place, client)| Some((place, client.as_ref()?)));
        let mut busy = present.filter(|(_, client)| client.front.is_busy()).peekable();
        if busy.peek().is_none() {
            return;
        }
        // A guest that makes no room for completions, or is paused, does not make the disk a dead one.
        let is_lost = |(place, client): (usize, &Client)| {
            client.moved + PATIENCE < now && !engine.has_ended(place, buffers)
        };
        if busy.any(is_lost) || !engine.is_alive() {
            log::warn!("device {}: it does not answer, and is started anew", self.device.name);
            state.recover(&self.device, None);
        }
        self.device.poll_next(Some(now + LOOK));
    }

    /// Runs `act`, and goes on with what it led to.
    fn with(&self, place: usize, act: impl FnOnce(&mut Client)) {
        let mut state = self.state.lock();
        let Some(client) = state.clients.get_mut(place).and_then(Option::as_mut) else { return };
        act(client);
        let function = client.function.clone();
        let Some((domain, _)) = function.guest.domain() else { return };
        let signals = state.go_on(place, &domain, &self.device);
        drop(state);
        function.signal(&domain, signals);
    }

    /// Adds what the present guests did.
    pub fn add_to(&self, report: &mut DeviceReport) {
        let state = self.state.lock();
        state.clients.iter().flatten().for_each(|client| client.report().add_to(&mut report.shares));
    }
}

impl State {
    /// Brings completions to a guest, and its commands to the disk. Returns which messages the guest is due.
    fn go_on(&mut self, place: usize, domain: &Domain, device: &Device) -> u8 {
        let Self { engine, buffers, clients, .. } = self;
        let (Some(client), Some(buffers)) = (clients.get_mut(place).and_then(Option::as_mut), buffers) else {
            return 0;
        };
        let memory = Reach {
            domain,
            may: client.function.masters.load(Ordering::SeqCst),
            window: client.lent.then(|| buffers.window()),
        };
        if core::mem::take(&mut client.lost) {
            client.front.give_up(&memory);
        }
        let (mut ended, mut begun, mut left) = (0, 0, AT_ONCE);
        while ended < AT_ONCE && client.front.has_room(&memory) {
            let Some((slot, status)) = engine.take(place, buffers) else { break };
            client.front.complete(slot, status, &memory);
            ended += 1;
        }
        if ended > 0 {
            engine.acknowledge(place);
        }
        while left > 0 {
            let (at, len) = Engine::<Hardware, CLIENTS>::lists(place);
            let bus = Shared::bus(buffers) + at as u64;
            let Some(bytes) = buffers.part(at, len) else { break };
            match client.front.take(&memory, &mut Lists { bytes, bus }) {
                Taken::Nothing => break,
                Taken::Answered => {}
                Taken::Issue(command) if engine.submit(place, &command, buffers) => begun += 1,
                Taken::Issue(command) => client.front.complete(command.id(), DEAD, &memory),
            }
            left -= 1;
        }
        if begun > 0 {
            engine.ring_for(place);
        }
        if left == 0 || ended == AT_ONCE {
            client.function.go_on();
        }
        if ended + begun > 0 {
            let now = tsc::uptime_ns();
            client.moved = now;
            if device.poll_at() == u64::MAX {
                device.poll_next(Some(now + LOOK));
            }
        }
        client.front.take_signals()
    }

    /// Starts the disk anew, for all guests but the one that leaves. What it had of them is given up; it reaches no memory meanwhile.
    fn recover(&mut self, device: &Device, leaves: Option<usize>) {
        let Self { engine, buffers, clients, .. } = self;
        let Some(buffers) = buffers else { return };
        reset::quiet(&device.function);
        device.reset();
        device.wait_ready();
        device.decode();
        let started = bring_up(device, engine, buffers);
        for (place, client) in clients.iter_mut().enumerate() {
            let Some(client) = client.as_mut().filter(|_| leaves != Some(place)) else { continue };
            let opened = started.as_ref().map_err(|failure| *failure);
            let opened = opened.and_then(|_| engine.open(place, message_of(place), buffers));
            if let Err(failure) = opened {
                log::error!("device {}: it stays away: {failure:?}", device.name);
            }
            client.route(device, place);
            client.lost = true;
            client.function.go_on();
        }
    }
}

/// The message that tells of the completions of a guest.
fn message_of(place: usize) -> u16 {
    place as u16 + 1
}

/// Starts a disk that decodes its addresses and is off the bus.
fn bring_up(
    device: &Device,
    engine: &mut Engine<Hardware, CLIENTS>,
    buffers: &mut Buffers,
) -> Result<Facts, Failure> {
    messages::enable(&device.function);
    device.function.bdf.set_command(pci::COMMAND_MASTER, 0);
    engine.start(buffers)
}

/// The disk stops whatever it does, and is off the bus.
fn give_back(device: &Device, engine: &mut Engine<Hardware, CLIENTS>, buffers: Buffers) {
    if !engine.stop() {
        log::warn!("device {}: it does not stop", device.name);
    }
    reset::quiet(&device.function);
    messages::disable(&device.function);
    device.reset();
    buffers.free();
    device.leave_bus();
}

impl Client {
    /// Has the disk tell the processor that the guest's first one is at home on.
    fn route(&mut self, device: &Device, place: usize) {
        let Some((domain, _)) = self.function.guest.domain() else { return };
        let home = domain.vcpus.first().and_then(|vcpu| cpu::get(vcpu.home));
        let home = home.filter(|cpu| cpu.apic_id < 0xff).or_else(|| cpu::get(0));
        if let Some(home) = home {
            write_entry(&device.function, message_of(place), Some(self.vector.message(home.apic_id)));
        }
    }

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
