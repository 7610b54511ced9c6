//! Virtual passthrough of cards that master the bus: a hostile guest, a neighbour with a driver, one physical card.

use crate::Input;
use sluice_abi::config::NicModel;
use sluice_emulated::{
    DirectPolicy, Direction, Environment, Guests, Mirror, PAGES, PortId, Register, SharedNic, Shown,
};
use sluice_hypercall::symbiotic::{SYMBIOTIC_BEGIN, SYMBIOTIC_CONTROL, SYMBIOTIC_END, SYMBIOTIC_RING};
use sluice_nic::dma::{Dma, DmaError, VecMemory};
use sluice_nic::{Budget, E1000, Rtl8139, e1000};
use sluice_uplink::{Card, DmaMemory, RawDevice, Uplink, for_device};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const MALLORY: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const BOB: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const ROUTER: [u8; 6] = [0x52, 0x55, 0, 0, 0, 3];
/// In every frame from and for Bob, and nowhere else.
const SECRET: &[u8] = b"\xa7of-bob!";
/// Where guests' memory and the driver's begin, and bytes of it.
const BUS: u32 = 0x10_0000;
const MEMORY: usize = 0x8_0000;
/// Bytes of registers that guests use.
const WINDOW: u32 = PAGES as u32 * 4096;

#[derive(Clone)]
struct Memory(Rc<RefCell<VecMemory>>);

impl Memory {
    fn new() -> Self {
        Self(Rc::new(RefCell::new(VecMemory::new(BUS.into(), MEMORY))))
    }
}

impl Dma for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.0.borrow_mut().read(address, buffer)
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.0.borrow_mut().write(address, bytes)
    }
}

impl DmaMemory for Memory {
    fn bus(&self) -> u32 {
        BUS
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        let _ = self.0.borrow_mut().read(u64::from(BUS) + offset as u64, into);
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let _ = self.0.borrow_mut().write(u64::from(BUS) + offset as u64, bytes);
    }
    fn with(&mut self, offset: usize, len: usize, act: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        self.0.borrow_mut().at_mut(u64::from(BUS) + offset as u64, len).is_some_and(act)
    }
}

/// Whose memory the physical card reaches, if not its driver's.
type Lent = Rc<RefCell<Option<(PortId, Memory)>>>;

enum Nic {
    E1000(Box<E1000>),
    Rtl8139(Box<Rtl8139>),
}

/// The physical card: what it reaches is who it is lent to, or its driver.
struct Physical {
    nic: Nic,
    own: Memory,
    lent: Lent,
    now: u64,
}

impl Physical {
    fn reached(&self) -> Memory {
        self.lent.borrow().as_ref().map_or_else(|| self.own.clone(), |(_, memory)| memory.clone())
    }

    /// Everything that the card does by itself. While it is the driver's, only guests' own frames go out.
    fn work(&mut self) {
        let holder = self.lent.borrow().as_ref().map(|(port, _)| port.index());
        let mut memory = self.reached();
        let mut buffer = vec![0; e1000::MAX_OUTGOING];
        let check = |frame: &[u8]| {
            let from = frame.get(6..12);
            let own = from == Some(&MALLORY) || from == Some(&BOB);
            // Of the frames that scrub it, none reaches the wire.
            assert!(holder.is_some() || own, "{from:x?}");
            assert!(holder != Some(0) || !holds_secret(frame), "the holder sends what is its neighbour's");
        };
        self.now += 10_000_000;
        match &mut self.nic {
            Nic::E1000(card) => {
                card.advance(self.now);
                for _ in 0..512 {
                    match card.transmit(&mut memory, &mut buffer, &mut Budget::default()) {
                        e1000::Transmission::Frame(len) => check(&buffer[..len]),
                        e1000::Transmission::Busy => {}
                        e1000::Transmission::Idle => break,
                    }
                }
            }
            Nic::Rtl8139(card) => {
                card.advance(self.now);
                for _ in 0..512 {
                    if !card.busy() {
                        break;
                    }
                    if let Some(frame) = card.transmit(&mut memory, &mut Budget::default()) {
                        check(frame);
                    }
                }
            }
        }
    }

    fn receive(&mut self, frame: &[u8]) {
        let mut memory = self.reached();
        match &mut self.nic {
            Nic::E1000(card) => drop(card.receive(&mut memory, frame, &mut Budget::default())),
            Nic::Rtl8139(card) => drop(card.receive(frame, &mut memory)),
        }
    }

    fn interrupt(&self) -> bool {
        match &self.nic {
            Nic::E1000(card) => card.interrupt(),
            Nic::Rtl8139(card) => card.interrupt(),
        }
    }
}

impl RawDevice for Physical {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        let value = match &mut self.nic {
            Nic::E1000(card) => card.read(offset.into(), width),
            Nic::Rtl8139(card) => card.read(offset, width),
        };
        self.work();
        value
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        let mut memory = self.reached();
        match &mut self.nic {
            Nic::E1000(card) => card.write(offset.into(), width, value),
            Nic::Rtl8139(card) => card.write(offset, width, value, &mut memory),
        }
        self.work();
    }
}

struct Both([(PortId, Memory); 2], Lent);

impl Guests for Both {
    type Memory = Memory;
    fn memory(&mut self, port: PortId) -> Option<Memory> {
        self.0.iter().find(|(own, _)| *own == port).map(|(_, memory)| memory.clone())
    }
    fn confine_dma(&mut self, to: Option<PortId>) -> bool {
        let memory = to.and_then(|port| Some((port, self.memory(port)?)));
        *self.1.borrow_mut() = memory;
        true
    }
}

#[derive(Clone)]
struct Words(Arc<Mutex<Vec<u32>>>);

impl Mirror for Words {
    fn show(&mut self, offset: u32, value: u32) {
        self.0.lock().unwrap()[offset as usize / 4] = value;
    }
    fn look(&self, offset: u32) -> u32 {
        self.0.lock().unwrap()[offset as usize / 4]
    }
}

struct Machine {
    shared: SharedNic,
    physical: Physical,
    guests: Both,
    mirrors: [(Words, Shown); 2],
    now: u64,
}

impl Machine {
    /// calls the shared card as the hypervisor does.
    fn with<R>(&mut self, act: impl FnOnce(&mut SharedNic, &mut Environment<'_, Both>) -> R) -> R {
        let ports = [self.port(0), self.port(1)];
        let mut own = self.physical.own.clone();
        let card = Card { registers: &mut self.physical, memory: &mut own };
        let now = self.now;
        let mut env = Environment { card, guests: &mut self.guests, now, clock: &|| now };
        let result = act(&mut self.shared, &mut env);
        for _ in 0..16 {
            let changed = self.shared.take_changes();
            for ((_, shown), port) in self.mirrors.iter_mut().zip(ports) {
                if changed.shown & port.bit() != 0 {
                    *shown = self.shared.shown(port);
                }
                assert_eq!(*shown, self.shared.shown(port), "a page changed and nobody was told");
            }
            if changed.is_empty() {
                return result;
            }
            self.shared.carried_out(&mut env, changed.shown);
        }
        panic!("hooks change for ever");
    }

    fn port(&self, guest: usize) -> PortId {
        self.guests.0[guest].0
    }

    fn write(&mut self, guest: usize, offset: u32, width: u8, value: u32) {
        let (words, Shown { direct, hardware, .. }) = &self.mirrors[guest];
        let open = direct.get(offset as usize / 4096).is_some_and(|page| page.contains(Direction::WRITE));
        match (open, hardware) {
            (true, true) => self.physical.write(offset as u16, width, value),
            (true, false) => words.clone().show(offset & !3, value),
            (false, _) => {
                let register = Register { io: false, offset };
                let (port, bytes) = (self.port(guest), value.to_le_bytes());
                self.with(|shared, env| shared.write(env, port, register, width, &bytes[..width.into()]));
            }
        }
    }

    fn read(&mut self, guest: usize, offset: u32, width: u8) -> u32 {
        let (words, Shown { direct, hardware, .. }) = &self.mirrors[guest];
        let open = direct.get(offset as usize / 4096).is_some_and(|page| page.contains(Direction::READ));
        match (open, hardware) {
            (true, true) => self.physical.read(offset as u16, width),
            (true, false) => words.look(offset & !3) >> (8 * (offset & 3)),
            (false, _) => {
                let register = Register { io: false, offset };
                let (port, mut bytes) = (self.port(guest), [0; 4]);
                let into = &mut bytes[..width.into()];
                self.with(|shared, env| shared.read(env, port, register, width, into));
                u32::from_le_bytes(bytes)
            }
        }
    }

    /// Time passes: the card's line, the shared card's deadlines.
    fn pass(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        self.physical.work();
        if self.physical.interrupt() && self.shared.holder().is_none() {
            self.with(|shared, env| shared.interrupt(env));
        }
        self.with(|shared, env| shared.poll(env));
        for port in [self.port(0), self.port(1)] {
            if self.shared.resumes_at(port).is_some_and(|at| at <= self.now) {
                self.with(|shared, env| shared.resume(env, port));
            }
        }
    }

    /// Bob's driver does something.
    fn bob<R>(&mut self, act: impl FnOnce(&mut Card<'_>) -> R) -> R {
        let mut memory = self.guests.0[1].1.clone();
        act(&mut Card { registers: &mut Bob(self), memory: &mut memory })
    }
}

struct Bob<'a>(&'a mut Machine);

impl RawDevice for Bob<'_> {
    fn read(&mut self, offset: u16, width: u8) -> u32 {
        self.0.read(1, offset.into(), width)
    }
    fn write(&mut self, offset: u16, width: u8, value: u32) {
        self.0.write(1, offset.into(), width, value);
    }
}

fn holds_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

fn secret(to: [u8; 6], from: [u8; 6], copies: usize) -> Vec<u8> {
    [&to[..], &from[..], &[0x88, 0xb5], &SECRET.repeat(copies.clamp(8, 180))].concat()
}

fn machine(input: &mut Input<'_>) -> (Machine, Box<dyn Uplink>) {
    let lent = Rc::default();
    let model = input.choose(&[NicModel::E1000, NicModel::E1000, NicModel::Rtl8139]);
    let address = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    let (nic, ids) = match model {
        NicModel::E1000 => (Nic::E1000(Box::new(E1000::new(address))), (0x8086, 0x100e)),
        _ => (Nic::Rtl8139(Box::new(Rtl8139::new(address))), (0x10ec, 0x8139)),
    };
    let mut physical = Physical { nic, own: Memory::new(), lent: Rc::clone(&lent), now: 0 };
    (0..200).for_each(|_| physical.work());
    let mut uplink = for_device(ids.0, ids.1, &|_| 0).unwrap();
    let mut own = physical.own.clone();
    assert!(uplink.start(&mut Card { registers: &mut physical, memory: &mut own }));
    let mut shared = SharedNic::new(uplink);
    let policy = input.choose(&[DirectPolicy::Never, DirectPolicy::Guarded, DirectPolicy::Open]);
    let mut plug = |mac| {
        let port = shared.attach(model, mac).unwrap();
        shared.configure(port, true, false);
        let words = Words(Arc::new(Mutex::new(vec![0; WINDOW as usize / 4])));
        shared.show(port, Box::new(words.clone()));
        shared.allow(port, policy);
        (port, words)
    };
    let [(mallory, first), (bob, second)] = [plug(MALLORY), plug(BOB)];
    let mirrors = [first, second].map(|words| (words, Shown::default()));
    let guests = Both([(mallory, Memory::new()), (bob, Memory::new())], lent);
    let mut machine = Machine { shared, physical, guests, mirrors, now: 0 };
    machine.pass(1_000_000_000);
    (machine, for_device(ids.0, ids.1, &|_| 0).unwrap())
}

/// A guest does anything to its card and to its memory, shared by virtual passthrough with a neighbour who comes and goes,
/// sends and receives; an IOMMU lets the card reach whoever it is lent to. Asserts that nothing of the neighbour's traffic
/// comes into the guest's memory, its mirror or a register it reads, or out of the card while the guest has it; that while the
/// card is shared only guests' own addresses go out; that hooks settle, and are told of.
pub fn masters(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut machine, mut bob) = machine(&mut input);
    let mut online = false;
    let mut steps = 0;
    while !input.is_empty() && steps < 400 {
        steps += 1;
        let width = input.choose(&[4, 4, 4, 2, 1]);
        let offset = match input.u8() % 5 {
            0 => u32::from(input.u16()) % WINDOW,
            // Words of symbiosis.
            4 => 0x6000 + u32::from(input.u8()) % 0x48,
            1 => 0x2800 + u32::from(input.u8()) % 0x30,
            2 => 0x3800 + u32::from(input.u8()) % 0x30,
            _ => u32::from(input.u8()),
        };
        match input.u8() % 14 {
            0..=4 => {
                let small = input.flag();
                let value = if small { u32::from(input.u8()) } else { BUS + input.u32() % MEMORY as u32 };
                machine.write(0, offset, width, value);
            }
            5 => drop(machine.read(0, offset, width)),
            6 => {
                let address = u64::from(BUS) + u64::from(input.u32()) % MEMORY as u64;
                let count = usize::from(input.u8());
                let bytes = input.bytes(count).to_vec();
                let _ = Dma::write(&mut machine.guests.0[0].1.clone(), address, &bytes);
            }
            7 => {
                online = !online;
                machine.bob(|card| if online { assert!(bob.start(card)) } else { bob.stop(card) });
            }
            8 if online => {
                let frame = secret(ROUTER, BOB, input.u8().into());
                machine.bob(|card| bob.send(card, &frame));
                machine.bob(|card| bob.poll(card, &mut |_| ()));
            }
            // While Bob is off-line nobody defends his address: see the threat model.
            9 if online && machine.shared.holder().is_none() => {
                machine.physical.receive(&secret(BOB, ROUTER, input.u8().into()));
            }
            10 => machine.pass(u64::from(input.u8()) << 22),
            11 => {
                let value = input.choose(&[SYMBIOTIC_BEGIN, SYMBIOTIC_BEGIN, SYMBIOTIC_END]);
                machine.write(0, SYMBIOTIC_CONTROL, 4, value);
            }
            12 => {
                let port = machine.port(0);
                machine.write(0, SYMBIOTIC_RING, 4, 1);
                machine.shared.end_of_interrupt(port);
            }
            _ => {
                let (port, master) = (machine.port(0), !input.u8().is_multiple_of(8));
                machine.with(|shared, env| {
                    shared.configure(port, master, false);
                    shared.poll(env);
                });
            }
        }
    }
    assert!(!holds_secret(&machine.guests.0[0].1.0.borrow().bytes));
    let mirror = machine.mirrors[0].0.0.lock().unwrap();
    let bytes: Vec<u8> = mirror.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(!holds_secret(&bytes));
}
