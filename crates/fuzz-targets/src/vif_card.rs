//! Virtual interfaces with the face of a card, and hostile drivers.

use crate::Input;
use crate::wire::{LONGEST, attributes, bring, check_addresses, check_frame, mac};
use sluice_emulated::{Mirror, PAGES, PolledNic, Register};
use sluice_nic::dma::{Dma, DmaError, NoMemory};
use sluice_nic::e1000::{Reception, Transmission, WINDOW};
use sluice_nic::{Budget, HEAD, Offload};
use sluice_vif::{Card, Engine, Given, Layout, Memory, Network, Outcome, Packet, VifId, Wire};
use sluice_virtio::Fault;
use std::sync::{Arc, Mutex};

/// Bytes of a guest's memory, and guests.
const BYTES: usize = 32 * 1024;
const GUESTS: usize = 3;

#[derive(Clone)]
struct Ram(Arc<Mutex<Vec<u8>>>);

fn range(address: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(address).ok()?;
    let end = start.checked_add(len).filter(|end| *end <= BYTES)?;
    Some(start..end)
}

impl Dma for Ram {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let range = range(address, buffer.len()).ok_or(DmaError)?;
        buffer.copy_from_slice(&self.0.lock().unwrap()[range]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let range = range(address, bytes.len()).ok_or(DmaError)?;
        self.0.lock().unwrap()[range].copy_from_slice(bytes);
        Ok(())
    }
}

impl sluice_virtio::Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        Dma::read(&mut self.clone(), address, buffer).map_err(|_| Fault)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        Dma::write(&mut self.clone(), address, bytes).map_err(|_| Fault)
    }
}

impl Memory for Ram {
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault> {
        let mut bytes = vec![0; len as usize];
        sluice_virtio::Memory::read(self, from, &mut bytes)?;
        sluice_virtio::Memory::write(other, to, &bytes)
    }

    fn holds(&self, address: u64, len: u32) -> bool {
        range(address, len as usize).is_some()
    }
}

/// What the guest has of its card as memory.
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

/// A card, as the hypervisor has it.
struct Face(Mutex<(PolledNic, bool, u64)>);

impl Face {
    fn with<R>(&self, memory: &Ram, act: impl FnOnce(&mut PolledNic, &mut dyn Dma, u64) -> R) -> R {
        let (nic, master, now) = &mut *self.0.lock().unwrap();
        if *master { act(nic, &mut memory.clone(), *now) } else { act(nic, &mut NoMemory, *now) }
    }
}

impl Card<Ram> for Face {
    fn is_sending(&self) -> bool {
        self.0.lock().unwrap().0.is_sending()
    }

    fn peek(&self, memory: &Ram) -> Option<[u8; HEAD]> {
        self.with(memory, |nic, memory, _| nic.peek(memory))
    }

    fn next_packet(&self, memory: &Ram, longest: u32) -> Option<Packet> {
        self.with(memory, |nic, memory, _| {
            let whole = nic.next_packet(memory, longest as usize)?;
            Packet::new(whole.len(), whole.offload())
        })
    }

    fn take_packet(
        &self,
        memory: &Ram,
        into: &mut [u8],
        accept: &mut dyn FnMut(&[u8; HEAD]) -> bool,
    ) -> bool {
        self.with(memory, |nic, memory, _| nic.take_packet(memory, into, accept))
    }

    fn send(&self, memory: &Ram, into: &mut [u8], work: &mut u32) -> Transmission {
        let mut budget = Budget::new(4096, 16);
        let sent = self.with(memory, |nic, memory, _| nic.send(memory, into, &mut budget));
        *work += (4096 - budget.left().0) as u32;
        sent
    }

    fn receive(&self, memory: &Ram, frame: &[u8]) -> Reception {
        self.with(memory, |nic, memory, now| nic.offer(memory, frame, now))
    }

    fn settle(&self, now: u64) -> Option<u64> {
        let (nic, _, own) = &mut *self.0.lock().unwrap();
        *own = now;
        nic.settle(now);
        nic.deadline()
    }

    fn listen(&self, _: bool) {}
}

/// Checks what is put on the wire.
struct Physical<'a, 'd> {
    input: &'a mut Input<'d>,
    busy: bool,
}

impl Wire for Physical<'_, '_> {
    fn longest(&self) -> u32 {
        LONGEST
    }

    fn tells(&self) -> bool {
        true
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        check_frame(frame, GUESTS);
        !self.busy
    }

    fn send_packet(
        &mut self,
        len: usize,
        offload: &Offload,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Given {
        if self.busy {
            return Given::Full;
        }
        assert!(offload.frames(len).is_some(), "no card finishes this");
        let sums = offload.ip.into_iter().chain(offload.transport);
        assert!(sums.into_iter().all(|sum| sum.offset >= 12), "the card would write another address");
        let mut packet = vec![0; len];
        if fill(&mut packet) {
            check_addresses(&packet, GUESTS);
        }
        Given::Sent
    }

    fn receive(&mut self, _: usize, take: &mut dyn FnMut(&[u8], bool)) -> usize {
        bring(self.input, false, take)
    }

    fn flush(&mut self) {}
}

struct Guest {
    ram: Ram,
    words: Words,
    face: Arc<Face>,
    id: Option<VifId>,
}

impl Guest {
    fn new(nth: usize) -> Self {
        let words = Words(Arc::new(Mutex::new(vec![0; PAGES * 1024])));
        let nic = PolledNic::new(mac(nth), Box::new(words.clone()));
        let ram = Ram(Arc::new(Mutex::new(vec![0; BYTES])));
        Self { ram, words, face: Arc::new(Face(Mutex::new((nic, false, 0)))), id: None }
    }

    /// An access that exits.
    fn access(&self, offset: u32, width: usize, write: Option<u32>) {
        let (nic, _, now) = &mut *self.face.0.lock().unwrap();
        let register = Register { io: false, offset };
        match write {
            Some(value) => nic.write(register, &value.to_le_bytes()[..width], *now),
            None => nic.read(register, &mut [0; 4][..width], *now),
        }
    }
}

/// Registers of both rings and of what switches them, to begin with.
const REGISTERS: [u32; 14] =
    [0x0, 0x20, 0x100, 0x400, 0x2800, 0x2804, 0x2808, 0x2810, 0x2818, 0x3800, 0x3804, 0x3808, 0x3810, 0x3818];

/// Drivers that write anything into their cards' registers, rings and buffers, while they come and go. Asserts that what is put on the wire are
/// frames from who sent them, whoever finishes them; and that memory of a guest is left alone which has no VIF, or whose card may not master the bus.
pub fn card(data: &[u8]) {
    let mut input = Input::new(data);
    let layout = input.choose(&[Layout::Split, Layout::Spread]);
    let mut engines = sluice_vif::engines::<Ram>(layout, usize::from(input.u8() % 3));
    let mut guests: Vec<Guest> = (0..GUESTS).map(Guest::new).collect();
    let mut now = 0u64;
    while !input.is_empty() {
        let nth = usize::from(input.u8()) % GUESTS;
        let guest = &mut guests[nth];
        match input.u8() % 12 {
            0 if guest.id.is_none() => {
                let attributes = attributes(nth, &mut input);
                let card: Arc<dyn Card<Ram>> = guest.face.clone();
                let mut network = Network::new(engines.iter_mut());
                guest.id = network.join(attributes, guest.ram.clone(), Some(card), now);
            }
            0 if input.u8().is_multiple_of(8) => {
                let id = guest.id.take().expect("it has one");
                assert!(Network::new(engines.iter_mut()).leave(id).is_some());
                assert_eq!(Arc::strong_count(&guest.face), 1, "somebody has the card yet");
            }
            1 => guest.face.0.lock().unwrap().1 = !input.u8().is_multiple_of(4),
            // A register, by an exit or as memory.
            2..=4 => {
                let named = input.choose(&REGISTERS);
                let any = input.u32() % WINDOW;
                let offset = if input.flag() { named } else { any };
                let value = if input.flag() { u32::from(input.u8()) } else { input.u32() };
                match input.u8() % 4 {
                    0 => guest.access(offset, 1 << (input.u8() % 3), None),
                    1 => guest.access(offset, 1 << (input.u8() % 3), Some(value)),
                    _ if (0x2000..0x4000).contains(&offset) => guest.words.clone().show(offset & !3, value),
                    _ => guest.access(offset & !3, 4, Some(value)),
                }
            }
            5..=7 => {
                let at = u64::from(input.u16()) % BYTES as u64;
                let bytes: Vec<u8> = (0..input.u8() % 33).map(|_| input.u8()).collect();
                let _ = sluice_virtio::Memory::write(&guest.ram, at, &bytes);
            }
            // A frame or a packet as a driver sends it: a context, and data with the addresses.
            8 => {
                let to = input.choose(&[mac(0), mac(1), [0xff; 6], [2, 0, 0, 0, 1, 0]]);
                let from = mac(if input.u8().is_multiple_of(8) { (nth + 1) % GUESTS } else { nth });
                let _ = sluice_virtio::Memory::write(&guest.ram, 0x1000, &[to, from].concat());
                let context: Vec<u8> = (0..16).map(|_| input.u8()).collect();
                let command = [input.u8() & 0x2f | 0x20, input.u8() & 0xf];
                let length = input.u16() % 4096;
                let [l0, l1] = length.to_le_bytes();
                let data =
                    [0, 0x10, 0, 0, 0, 0, 0, 0, l0, l1, 0x10, command[0] | 1, command[1], input.u8(), 0, 0];
                let _ = sluice_virtio::Memory::write(&guest.ram, 0, &[context, data.to_vec()].concat());
                for (register, value) in [
                    (0x400, 0),
                    (0x3800, 0),
                    (0x3804, 0),
                    (0x3808, 128),
                    (0x3810, 0),
                    (0x3818, 2),
                    (0x400, 2),
                ] {
                    guest.access(register, 4, Some(value));
                }
            }
            _ => {
                let memories: Vec<_> =
                    guests.iter().map(|guest| guest.ram.0.lock().unwrap().clone()).collect();
                let busy = input.u8().is_multiple_of(4);
                let wired = busy || input.flag();
                let mut physical = Physical { input: &mut input, busy };
                for engine in &mut engines {
                    let wire = wired.then_some(&mut physical as &mut dyn Wire);
                    let Outcome { sent, received, broken, .. } = Engine::round(engine, wire, now);
                    assert!(
                        sent.is_empty() && received.is_empty() && broken.is_empty(),
                        "cards tell themselves"
                    );
                }
                now = now.saturating_add(1 << (physical.input.u8() % 40));
                for (guest, before) in guests.iter().zip(memories) {
                    let reaches = guest.id.is_some() && guest.face.0.lock().unwrap().1;
                    let same = before == *guest.ram.0.lock().unwrap();
                    assert!(reaches || same, "memory is reached of who lets nobody");
                }
            }
        }
    }
}
