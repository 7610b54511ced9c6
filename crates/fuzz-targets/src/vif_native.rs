//! Virtual interfaces with the native face, and hostile drivers.

use crate::Input;
use crate::wire::{Card, attributes, check_signals, mac};
use sluice_hypercall::vif::{
    VIF_DESCRIPTOR, VIF_ENTRIES, VIF_OFFERED, VIF_OFFERED_RING, VIF_RECEIVED_RING, VIF_SEND_RING,
    VIF_STRUCTURE, VIF_TO_SEND, VIF_WANTS_SENT,
};
use sluice_vif::native::{PAGE, POOL};
use sluice_vif::{Active, Engine, Layout, Memory, Network, Outcome, VifId, VifSet, Wire};
use sluice_virtio::Fault;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

const GUESTS: usize = 3;
/// Pages that a guest hands over at most.
const PAGES: usize = 5;
const BYTES: usize = PAGE as usize;
/// The driver's part of the structure; the rest only the engine writes.
const DRIVERS: Range<u32> = VIF_TO_SEND..VIF_RECEIVED_RING;

/// Memory of a guest as an engine reaches it.
#[derive(Clone, PartialEq)]
struct Parts {
    structure: Vec<u8>,
    /// Pages of the guest's, of which the first are in its pool.
    pages: Vec<Vec<u8>>,
    pool: usize,
}

#[derive(Clone)]
struct Native(Rc<RefCell<Parts>>);

impl Parts {
    /// A range of the pool, if it is in it.
    fn piece(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let at = address.checked_sub(POOL).expect("no page of the pool's") as usize;
        let (number, start) = (at / BYTES, at % BYTES);
        assert!(start + len <= BYTES, "over the end of a page");
        let page = self.pages[..self.pool].get_mut(number)?;
        Some(&mut page[start..start + len])
    }
}

impl Native {
    fn new() -> Self {
        let pages = vec![vec![0; BYTES]; PAGES];
        Self(Rc::new(RefCell::new(Parts { structure: vec![0; VIF_STRUCTURE as usize], pages, pool: 0 })))
    }

    /// Stores of the driver's.
    fn store(&self, at: u32, bytes: &[u8]) {
        assert!(DRIVERS.contains(&at));
        let end = (at as usize + bytes.len()).min(DRIVERS.end as usize);
        let place = &mut self.0.borrow_mut().structure[at as usize..end];
        place.copy_from_slice(&bytes[..place.len()]);
    }

    fn load(&self, at: u32) -> u16 {
        let structure = &self.0.borrow().structure;
        u16::from_le_bytes([structure[at as usize], structure[at as usize + 1]])
    }
}

impl sluice_virtio::Memory for Native {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let parts = &mut *self.0.borrow_mut();
        let len = buffer.len();
        buffer.copy_from_slice(match usize::try_from(address) {
            Ok(at) if address < POOL => &parts.structure[at..at + len],
            _ => parts.piece(address, len).expect("the engine reads what the guest has not handed over"),
        });
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let parts = &mut *self.0.borrow_mut();
        if address >= POOL {
            parts.piece(address, bytes.len()).ok_or(Fault)?.copy_from_slice(bytes);
            return Ok(());
        }
        let range = address as usize..address as usize + bytes.len();
        let (first, last) = (range.start as u32, range.end as u32 - 1);
        assert!(last < DRIVERS.start || first >= DRIVERS.end, "the engine writes what is the driver's");
        parts.structure[range].copy_from_slice(bytes);
        Ok(())
    }
}

impl Memory for Native {
    fn copy(&self, from: u64, other: &Self, to: u64, len: u32) -> Result<(), Fault> {
        let mut bytes = vec![0; len as usize];
        sluice_virtio::Memory::read(self, from, &mut bytes)?;
        assert!(to >= POOL, "a frame in the structure");
        sluice_virtio::Memory::write(other, to, &bytes)
    }

    fn holds(&self, address: u64, len: u32) -> bool {
        self.0.borrow_mut().piece(address, len as usize).is_some()
    }
}

struct Guest {
    memory: Native,
    id: Option<VifId>,
    /// It has started, and broke no rule.
    running: bool,
}

/// A frame as a driver sends it: in one page or in several, with a header of any kind.
fn send(guest: &Guest, nth: usize, input: &mut Input<'_>) {
    let to = input.choose(&[mac(0), mac(1), mac(2), [0xff; 6], [2, 0, 0, 0, 1, 0]]);
    let from = mac(if input.u8().is_multiple_of(8) { (nth + 1) % GUESTS } else { nth });
    let count = u16::from(input.choose(&[1u8, 1, 1, 2, 5]));
    let first = u16::from(input.u8()) % PAGES as u16;
    let memory = &guest.memory;
    memory.0.borrow_mut().pages[usize::from(first)][..12].copy_from_slice(&[to, from].concat());
    let header: Vec<u8> = if input.flag() { vec![0; 10] } else { (0..10).map(|_| input.u8()).collect() };
    let index = memory.load(VIF_TO_SEND);
    for piece in 0..count {
        let goes_on = u16::from(piece + 1 < count);
        let len = if goes_on != 0 { PAGE as u16 } else { 1 + input.u16() % 1600 };
        let words = [(first + piece) % PAGES as u16, len, goes_on].map(u16::to_le_bytes);
        let entry = u32::from(index.wrapping_add(piece) % VIF_ENTRIES);
        memory.store(VIF_SEND_RING + VIF_DESCRIPTOR * entry, &[words.as_flattened(), &header].concat());
    }
    memory.store(VIF_TO_SEND, &index.wrapping_add(count).to_le_bytes());
}

/// Drivers that write anything into their part of the structure, with pools of any size, while they come and go. Asserts that an engine writes no
/// page that is not in a pool, reads none before it knows, takes none for longer than it is, and writes nothing that is the driver's; that nothing is reached of who has no
/// VIF, has not started, has stopped, or broke the rules; that what is put on the wire are frames, from who sent them; and that only the VIFs that are there are
/// signalled.
pub fn native(data: &[u8]) {
    let mut input = Input::new(data);
    let layout = input.choose(&[Layout::Split, Layout::Spread]);
    let mut engines = sluice_vif::engines::<Native>(layout, usize::from(input.u8() % 4));
    macro_rules! network {
        () => {
            Network::new(engines.iter_mut())
        };
    }
    let mut guests: Vec<Guest> =
        (0..GUESTS).map(|_| Guest { memory: Native::new(), id: None, running: false }).collect();
    let mut now = 0u64;
    while !input.is_empty() {
        let nth = usize::from(input.u8()) % GUESTS;
        let guest = &mut guests[nth];
        let memory = guest.memory.clone();
        match input.u8() % 14 {
            0 if guest.id.is_none() => {
                guest.id = network!().join(attributes(nth, &mut input), memory, None, now)
            }
            0 if input.u8().is_multiple_of(4) => {
                let id = guest.id.take().expect("it has one");
                assert!(network!().leave(id).is_some());
                guest.running = false;
            }
            // The three commands, as the hypervisor carries them out.
            1 => {
                let Some(id) = guest.id.filter(|_| !guest.running) else { continue };
                if !input.u8().is_multiple_of(8) {
                    memory.0.borrow_mut().pool = PAGES;
                }
                let mut parts = memory.0.borrow_mut();
                parts.structure[..0x200].fill(0);
                parts.structure[VIF_TO_SEND as usize..VIF_SEND_RING as usize].fill(0);
                drop(parts);
                guest.running = network!().activate(id, Some(Active::NATIVE));
            }
            2 if input.flag() => {
                let Some(id) = guest.id else { continue };
                assert!(network!().activate(id, None));
                guest.running = false;
            }
            2 if !guest.running => memory.0.borrow_mut().pool = usize::from(input.u8()) % (PAGES + 1),
            2 => {
                let Some(id) = guest.id else { continue };
                assert!(network!().set(id, attributes(nth, &mut input), now));
            }
            // Anything in the driver's pages; indices and entries to begin with.
            3..=5 => {
                let ring = input.choose(&[VIF_TO_SEND, VIF_OFFERED, VIF_WANTS_SENT, VIF_SEND_RING]);
                let any = DRIVERS.start + u32::from(input.u16()) % (DRIVERS.end - DRIVERS.start);
                let at = if input.flag() { ring + u32::from(input.u8() % 32) } else { any };
                let bytes: Vec<u8> = (0..input.u8() % 17).map(|_| input.u8()).collect();
                memory.store(at, &bytes);
            }
            // Pages on offer.
            6 | 7 => {
                let index = memory.load(VIF_OFFERED);
                let count = u16::from(input.u8()) % 8;
                for nth in 0..count {
                    let most = if input.u8().is_multiple_of(16) { u16::MAX } else { PAGES as u16 };
                    let entry = u32::from(index.wrapping_add(nth) % VIF_ENTRIES);
                    memory.store(VIF_OFFERED_RING + 2 * entry, &(input.u16() % most).to_le_bytes());
                }
                memory.store(VIF_OFFERED, &index.wrapping_add(count).to_le_bytes());
            }
            8 | 9 => send(guest, nth, &mut input),
            10 => {
                if input.flag() {
                    engines.iter_mut().for_each(Engine::doze);
                } else {
                    engines.iter_mut().for_each(Engine::wake);
                }
                now = now.saturating_add(u64::from(input.u32()));
            }
            11 => {
                let Some(id) = guest.id else { continue };
                let rung = sluice_vif::Rung::default();
                rung.ring(id);
                let rung = rung.take();
                engines.iter_mut().for_each(|engine| engine.ring(rung));
            }
            _ => {
                let before: Vec<Parts> = guests.iter().map(|guest| guest.memory.0.borrow().clone()).collect();
                let busy = input.u8().is_multiple_of(4);
                let cuts = input.flag();
                let mut card = Card { input: &mut input, guests: GUESTS, busy, cuts };
                let wired = busy || card.input.flag();
                let outcomes: Vec<Outcome> = engines
                    .iter_mut()
                    .map(|engine| engine.round(wired.then_some(&mut card as &mut dyn Wire), now))
                    .collect();
                now = now.saturating_add(1000);
                for (guest, before) in guests.iter_mut().zip(before) {
                    let after = guest.memory.0.borrow();
                    assert!(guest.running || before == *after, "memory is reached of who lets nobody");
                    let foreign = before.pool..;
                    assert!(
                        before.pages[foreign.clone()] == after.pages[foreign],
                        "a page of no pool is written"
                    );
                    drop(after);
                    let is_in = |set: VifSet| guest.id.is_some_and(|id| set.contains(id));
                    for outcome in &outcomes {
                        if is_in(outcome.broken) {
                            assert!(guest.running, "it is broken already");
                            guest.running = false;
                        }
                    }
                }
                let there: Vec<VifId> = guests.iter().filter_map(|guest| guest.id).collect();
                check_signals(&outcomes, &there);
            }
        }
    }
}
