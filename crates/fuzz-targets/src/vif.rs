//! Virtual interfaces with hostile drivers, on one network.

use crate::Input;
use crate::wire::{Card, attributes, check_signals, mac};
use sluice_vif::{Active, Engine, Layout, Memory, Network, Outcome, Queues, VifId, VifSet, Wire};
use sluice_virtio::{Fault, Queue};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of a guest's memory, entries of its queues, and guests.
const BYTES: usize = 16 * 1024;
const SIZE: u16 = 16;
const GUESTS: usize = 3;
/// Where the queues are.
const RECEIVE: u64 = 0;
const SEND: u64 = 0x800;

#[derive(Clone)]
struct Ram(Rc<RefCell<Vec<u8>>>);

impl Ram {
    fn new() -> Self {
        Self(Rc::new(RefCell::new(vec![0; BYTES])))
    }
}

fn range(address: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
    let start = usize::try_from(address).map_err(|_| Fault)?;
    let end = start.checked_add(len).filter(|end| *end <= BYTES).ok_or(Fault)?;
    Ok(start..end)
}

impl sluice_virtio::Memory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        buffer.copy_from_slice(&self.0.borrow()[range(address, buffer.len())?]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.0.borrow_mut()[range(address, bytes.len())?].copy_from_slice(bytes);
        Ok(())
    }
}

impl Memory for Ram {
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault> {
        let bytes = self.0.borrow()[range(from, len as usize)?].to_vec();
        sluice_virtio::Memory::write(other, to, &bytes)
    }

    fn holds(&self, address: u64, len: u32) -> bool {
        range(address, len as usize).is_ok()
    }
}

fn queue(at: u64) -> Queue {
    Queue { size: SIZE, enabled: true, desc: at, driver: at + 0x200, device: at + 0x400, vector: 0 }
}

/// One guest, and whether the engine may reach its memory.
struct Guest {
    ram: Ram,
    id: Option<VifId>,
    reachable: bool,
    memory: Vec<u8>,
}

/// Drivers that write anything into their queues, while they come and go. Asserts that memory of a guest is left alone which has no
/// VIF, whose driver has let go of its queues, or that broke the rules and was not set up anew; that what is put on the wire are frames, from who
/// sent them; and that only the VIFs that are there are signalled.
pub fn network(data: &[u8]) {
    let mut input = Input::new(data);
    let layout = input.choose(&[Layout::Split, Layout::Spread]);
    let mut engines = sluice_vif::engines::<Ram>(layout, usize::from(input.u8() % 4));
    macro_rules! network {
        () => {
            Network::new(engines.iter_mut())
        };
    }
    let mut guests: Vec<Guest> = (0..GUESTS)
        .map(|_| Guest { ram: Ram::new(), id: None, reachable: false, memory: Vec::new() })
        .collect();
    let mut now = 0u64;
    while !input.is_empty() {
        let nth = usize::from(input.u8()) % GUESTS;
        let guest = &mut guests[nth];
        match input.u8() % 12 {
            0 if guest.id.is_none() => {
                guest.id = network!().join(attributes(nth, &mut input), guest.ram.clone(), None, now)
            }
            0 if input.u8().is_multiple_of(4) => {
                let id = guest.id.take().expect("it has one");
                assert!(network!().leave(id).is_some());
                guest.reachable = false;
            }
            1 => {
                let Some(id) = guest.id else { continue };
                let features = input.choose(&[0, sluice_vif::FEATURES]);
                let active = Active {
                    queues: Queues::Virtio { receive: queue(RECEIVE), send: queue(SEND) },
                    features,
                };
                assert!(network!().activate(id, None));
                guest.reachable = network!().activate(id, Some(active));
            }
            2 if input.flag() => {
                let Some(id) = guest.id else { continue };
                assert!(network!().activate(id, None));
                guest.reachable = false;
            }
            2 => {
                let Some(id) = guest.id else { continue };
                assert!(network!().set(id, attributes(nth, &mut input), now));
            }
            // A descriptor, an entry of the available ring, its index, anything.
            3..=6 => {
                let at = input.choose(&[RECEIVE, SEND])
                    + input.choose(&[0, 16, 32, 0x200, 0x202, 0x204, 0x206, 0x400, 0x1000])
                    + u64::from(input.u8() % 16);
                let bytes: Vec<u8> = (0..input.u8() % 17).map(|_| input.u8()).collect();
                let _ = sluice_virtio::Memory::write(&guest.ram, at, &bytes);
            }
            // A frame as a driver sends it.
            7 => {
                let head = u64::from(input.u8()) % u64::from(SIZE);
                let to = input.choose(&[mac(0), mac(1), mac(2), [0xff; 6], [2, 0, 0, 0, 1, 0]]);
                let len = u32::from(input.u16() % 1600) + 12;
                let words = u128::from(0x1000u64) | u128::from(len) << 64;
                let mut bytes = guest.ram.0.borrow_mut();
                bytes[SEND as usize + 16 * head as usize..][..16].copy_from_slice(&words.to_le_bytes());
                bytes[0x100c..0x1018].copy_from_slice(&[to, mac(nth)].concat());
                let index = u16::from_le_bytes([bytes[0xa02], bytes[0xa03]]);
                let entry = SEND as usize + 0x204 + 2 * usize::from(index % SIZE);
                bytes[entry..entry + 2].copy_from_slice(&(head as u16).to_le_bytes());
                bytes[0xa02..0xa04].copy_from_slice(&index.wrapping_add(1).to_le_bytes());
            }
            8 => {
                engines.iter_mut().for_each(Engine::doze);
                now = now.saturating_add(u64::from(input.u32()));
            }
            9 => engines.iter_mut().for_each(Engine::wake),
            _ => {
                guests.iter_mut().for_each(|guest| guest.memory = guest.ram.0.borrow().clone());
                let busy = input.u8().is_multiple_of(4);
                let cuts = input.flag();
                let mut card = Card { input: &mut input, guests: GUESTS, busy, cuts };
                let wired = busy || card.input.flag();
                let outcomes: Vec<Outcome> = engines
                    .iter_mut()
                    .map(|engine| engine.round(wired.then_some(&mut card as &mut dyn Wire), now))
                    .collect();
                now = now.saturating_add(1000);
                for guest in &mut guests {
                    if !guest.reachable {
                        assert!(
                            guest.memory == *guest.ram.0.borrow(),
                            "memory is reached of who lets nobody"
                        );
                    }
                    let is_in = |set: VifSet| guest.id.is_some_and(|id| set.contains(id));
                    for outcome in &outcomes {
                        if is_in(outcome.broken) {
                            assert!(guest.reachable, "it is broken already");
                            guest.reachable = false;
                        }
                    }
                }
                let there: Vec<VifId> = guests.iter().filter_map(|guest| guest.id).collect();
                check_signals(&outcomes, &there);
            }
        }
    }
}
