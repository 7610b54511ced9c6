//! A pair of queues of a network card (Virtio 1.2, 5.1.6) whose packets this process moves, by a call of the kernel's for each: for guests that lend pages by a table, of which vhost-net
//! knows nothing, and where that is not to do it.
//!
//! What is sent goes out of the guest's memory, or out of the room into which it was copied. What is received is in the room first, since nobody knows how long it
//! is before it is there.

use crate::device::take_up;
use crate::function::{QueueSetup, ROOM_SIZE, Window};
use crate::request::{Broken, Pieces, pieces};
use crate::sys;
use crate::table::Table;
use anyhow::{Context, Result, ensure};
use smallvec::SmallVec;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, MmapRegion, VolatileMemory};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Bytes before each packet, for the guest and for the tap (`struct virtio_net_hdr_v1`), and where in them the number of buffers is.
const HEADER: usize = 12;
const BUFFERS_AT: usize = 10;

/// Bytes of a packet, header and all, at most: 65,535 of IP behind an Ethernet header with a tag or two.
const LONGEST: usize = HEADER + 14 + 8 + 65_535;

/// Packets, or buffers for them, that are dealt with at once. The guest's pages are mapped for them in one call.
const AT_ONCE: usize = 32;

/// So many times that is done before the card looks at anything else, such as a reset.
const TURN: usize = 16;

const WRONG: &str = "the guest's queue is broken";

/// How the guest's memory is reached.
pub enum Reach {
    /// It is in the window, or what was issued of it.
    Window,
    /// By a table: it is mapped for each packet.
    Mapped(Table),
    /// By a table: it is copied. What leads to it, rings and tables of descriptors, is mapped.
    Copied(Table),
}

impl Reach {
    const fn table(&mut self) -> Option<&mut Table> {
        match self {
            Self::Window => None,
            Self::Mapped(table) | Self::Copied(table) => Some(table),
        }
    }

    const fn is_by_copy(&self) -> bool {
        matches!(self, Self::Copied(_))
    }

    /// Makes parts of the guest's memory be in the window, or copies between them and the room, from a place on: address, bytes, and whether they are written.
    fn open(&mut self, parts: impl Iterator<Item = (u64, u32, bool)>, place: usize) {
        match self {
            Self::Window => {}
            Self::Mapped(table) => table.map_parts(parts),
            Self::Copied(table) => table.copy_parts(parts, place as u64),
        }
    }

    /// They are not needed there any more.
    fn close(&mut self) {
        if let Some(table) = self.table() {
            table.unmap();
        }
    }
}

/// A queue and its events.
pub struct Line {
    queue: Queue,
    /// From the guest.
    kicks: EventFd,
    /// To the guest.
    calls: EventFd,
}

impl Line {
    /// Takes a queue up where it was left.
    ///
    /// # Errors
    /// The guest has not set it up as it must be.
    pub fn new(
        setup: &QueueSetup,
        most: u16,
        event_idx: bool,
        window: &Window,
        [kicks, calls]: [EventFd; 2],
    ) -> Result<Self> {
        let queue = take_up(setup, most, event_idx, window)?;
        // What a former life answered may not have been told.
        calls.write(1).context("could not notify the guest")?;
        Ok(Self { queue, kicks, calls })
    }

    /// Whether there is nothing in it.
    fn is_empty(&self, window: &GuestMemoryMmap) -> Result<bool> {
        Ok(self.queue.avail_idx(window, Ordering::Acquire).context(WRONG)?.0 == self.queue.next_avail())
    }

    /// Asks to be told of chains beyond this index. Returns whether there are any already.
    fn ask(&mut self, seen: u16, window: &GuestMemoryMmap) -> Result<bool> {
        let next = self.queue.next_avail();
        self.queue.set_next_avail(seen);
        let more = self.queue.enable_notification(window).context(WRONG);
        self.queue.set_next_avail(next);
        more
    }

    /// Answers chains, by head and bytes written. The guest sees all of them at once, as it must see the buffers of one packet (Virtio 1.2, 5.1.6.4).
    fn answer(&mut self, answers: &[(u16, u32)], window: &GuestMemoryMmap) -> Result<()> {
        let queue = &mut self.queue;
        let (ring, size, before) = (queue.used_ring(), queue.size(), queue.next_used());
        let mut after = before;
        for (head, bytes) in answers {
            let place = GuestAddress(ring + 4 + 8 * u64::from(after % size));
            window.write_obj([u32::from(*head).to_le(), bytes.to_le()], place).context(WRONG)?;
            after = after.wrapping_add(1);
        }
        window.store(after.to_le(), GuestAddress(ring + 2), Ordering::Release).context(WRONG)?;
        queue.set_next_used(after);
        // The guest says whether it wants to be told, and looks at the ring then (2.7.7.2, 2.7.10).
        fence(Ordering::SeqCst);
        let of_guest =
            queue.avail_ring() + if queue.event_idx_enabled() { 4 + 2 * u64::from(size) } else { 0 };
        let said = u16::from_le(window.load(GuestAddress(of_guest), Ordering::Relaxed).context(WRONG)?);
        let wants = match queue.event_idx_enabled() {
            true => after.wrapping_sub(said).wrapping_sub(1) < after.wrapping_sub(before),
            false => said & 1 == 0,
        };
        if wants {
            self.calls.write(1).context("could not notify the guest")?;
        }
        Ok(())
    }
}

fn len(parts: &Pieces) -> usize {
    parts.iter().map(|(_, len)| *len as usize).sum()
}

/// A packet that the guest sends.
struct Sent {
    head: u16,
    parts: Pieces,
    /// It can be one.
    is_packet: bool,
}

/// Why no more was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The room is full, and there may be more.
    Room,
    /// There is no packet.
    Tap,
    /// There are no buffers, or not enough, among those up to this index.
    Buffers(u16),
}

/// What came of taking buffers for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// So many.
    Buffers(u16),
    /// Those up to this index are not enough.
    TooFew(u16),
    /// It is longer than all that this guest can offer for one packet: it is lost.
    Never,
}

/// Events that are waited for.
const OFFERED: u64 = 0;
const SENT: u64 = 1;
const ARRIVED: u64 = 2;

/// What moves the packets of a pair.
pub struct Packets {
    window: Window,
    tap: File,
    receive: Line,
    send: Line,
    reach: Reach,
    room: MmapRegion,
    /// Bytes of a packet at the beginning of the room, which the guest has no buffers for yet; 0: there is none.
    held: usize,
    /// A packet may lie in several buffers.
    merges: bool,
    ready: Epoll,
    /// Packets from the tap are waited for.
    listens: bool,
}

impl Packets {
    /// Moves packets between a tap, of which a call never waits, and the queues to receive and to send. `room` has [`ROOM_SIZE`] bytes, and is the file's if pages are copied.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(
        window: Window,
        tap: File,
        [receive, send]: [Line; 2],
        (reach, room): (Reach, MmapRegion),
        merges: bool,
    ) -> Result<Self> {
        let ready = Epoll::new().context("could not wait for events")?;
        sys::set_waiting(&tap, false).context("could not set the tap up")?;
        let made = Self { window, tap, receive, send, reach, room, held: 0, merges, ready, listens: false };
        made.watch(ControlOperation::Add, made.receive.kicks.as_raw_fd(), OFFERED)?;
        made.watch(ControlOperation::Add, made.send.kicks.as_raw_fd(), SENT)?;
        // What was asked for before may not have been heard.
        made.receive.kicks.write(1).and_then(|()| made.send.kicks.write(1)).context("could not begin")?;
        Ok(made)
    }

    /// Room of this process's own.
    ///
    /// # Errors
    /// There is no memory.
    pub fn room() -> Result<MmapRegion> {
        MmapRegion::new(ROOM_SIZE).context("there is no memory for packets")
    }

    /// Readable if there is something to do.
    pub fn waited(&self) -> RawFd {
        self.ready.as_raw_fd()
    }

    fn watch(&self, operation: ControlOperation, descriptor: RawFd, token: u64) -> Result<()> {
        let event = EpollEvent::new(EventSet::IN, token);
        self.ready.ctl(operation, descriptor, event).context("could not wait for packets")
    }

    /// Waits for packets from the tap from now on, or does not: the guest has no buffers for them.
    fn listen(&mut self, listens: bool) -> Result<()> {
        let operation = if listens { ControlOperation::Add } else { ControlOperation::Delete };
        if std::mem::replace(&mut self.listens, listens) != listens {
            self.watch(operation, self.tap.as_raw_fd(), ARRIVED)?;
        }
        Ok(())
    }

    /// Does what there is to do, or a part of it, and is called again.
    ///
    /// # Errors
    /// The guest broke a rule, or the tap is gone.
    pub fn work(&mut self) -> Result<()> {
        let mut events = [EpollEvent::default(); 3];
        let count = self.ready.wait(0, &mut events).context("could not look for events")?;
        for event in &events[..count] {
            match event.data() {
                SENT => {
                    let _ = self.send.kicks.read();
                    self.send_all()?;
                }
                OFFERED => {
                    let _ = self.receive.kicks.read();
                    self.listen(true)?;
                    self.receive_all()?;
                }
                _ => self.receive_all()?,
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> Result<()> {
        self.send.queue.disable_notification(&*self.window).context(WRONG)?;
        for _ in 0..TURN {
            if !self.send_some()? && !self.send.ask(self.send.queue.next_avail(), &self.window)? {
                return Ok(());
            }
        }
        // Others first.
        self.send.kicks.write(1).context("could not go on")
    }

    /// Sends some packets. Returns whether there were any.
    fn send_some(&mut self) -> Result<bool> {
        let sent = self.gather()?;
        let packets = || sent.iter().filter(|packet| packet.is_packet);
        // After a packet that waits there.
        let mut place = self.held;
        let parts = packets().flat_map(|packet| &packet.parts);
        self.reach.open(parts.map(|(at, len)| (*at, *len, false)), place);
        for packet in packets() {
            // What the tap does not take is lost, as on a wire.
            if self.reach.is_by_copy() {
                let bytes = len(&packet.parts);
                let _ = sys::send(&self.tap, &[self.room.get_slice(place, bytes)?]);
                place += bytes;
            } else {
                let slice = |(at, len): &(u64, u32)| self.window.get_slice(GuestAddress(*at), *len as usize);
                let slices: Result<SmallVec<[_; 2]>, _> = packet.parts.iter().map(slice).collect();
                let _ = sys::send(&self.tap, &slices.context(WRONG)?);
            }
        }
        self.reach.close();
        let answers: SmallVec<[(u16, u32); AT_ONCE]> = sent.iter().map(|packet| (packet.head, 0)).collect();
        if !answers.is_empty() {
            self.send.answer(&answers, &self.window)?;
        }
        Ok(!answers.is_empty())
    }

    /// Takes packets from the queue, as many as there is room for.
    fn gather(&mut self) -> Result<SmallVec<[Sent; AT_ONCE]>> {
        let window = &*self.window;
        let queue = &mut self.send.queue;
        let descriptors = queue.desc_table();
        let mut left = ROOM_SIZE - self.held;
        let mut sent = SmallVec::new();
        let mut chains = queue.iter(window).context(WRONG)?;
        while sent.len() < AT_ONCE
            && let Some(chain) = chains.next()
        {
            let head = chain.head_index();
            if let Some(table) = self.reach.table() {
                table.map_indirect(&chain, descriptors, window)?;
            }
            let (parts, answer) = pieces(chain, window)?;
            ensure!(answer.is_empty(), Broken::Order);
            let bytes = len(&parts);
            let is_packet = (HEADER..=LONGEST).contains(&bytes);
            if is_packet && bytes > left {
                chains.go_to_previous_position();
                break;
            }
            left -= if is_packet { bytes } else { 0 };
            sent.push(Sent { head, parts, is_packet });
        }
        Ok(sent)
    }

    fn receive_all(&mut self) -> Result<()> {
        self.receive.queue.disable_notification(&*self.window).context(WRONG)?;
        for _ in 0..TURN {
            match self.receive_some()? {
                Stop::Room => {}
                Stop::Tap => return Ok(()),
                Stop::Buffers(seen) => {
                    if !self.receive.ask(seen, &self.window)? {
                        return self.listen(false);
                    }
                }
            }
        }
        // Others first.
        self.receive.kicks.write(1).context("could not go on")
    }

    /// Receives some packets: each is taken into the room, and all of them to the guest.
    fn receive_some(&mut self) -> Result<Stop> {
        let mut end = 0;
        let mut parts = Vec::new();
        let mut answers: SmallVec<[(u16, u32); AT_ONCE]> = SmallVec::new();
        let mut packets = 0;
        let stop = loop {
            if packets == AT_ONCE || ROOM_SIZE - end < LONGEST {
                break Stop::Room;
            }
            packets += 1;
            let bytes = match std::mem::take(&mut self.held) {
                0 if self.receive.is_empty(&self.window)? => {
                    break Stop::Buffers(self.receive.queue.next_avail());
                }
                0 => match sys::take(&self.tap, &self.room.get_slice(end, LONGEST)?) {
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Stop::Tap,
                    Err(error) => return Err(error).context("could not read from the tap"),
                },
                held => held,
            };
            ensure!(bytes >= HEADER, "what the tap gives is no packet");
            let (parts_before, answers_before) = (parts.len(), answers.len());
            let taken = self.take_buffers(bytes, &mut parts, &mut answers)?;
            if let Taken::Buffers(buffers) = taken {
                self.room.get_slice(end + BUFFERS_AT, 2)?.write_obj(buffers.to_le(), 0)?;
                end += bytes;
                continue;
            }
            parts.truncate(parts_before);
            answers.truncate(answers_before);
            if let Taken::TooFew(seen) = taken {
                self.held = bytes;
                break Stop::Buffers(seen);
            }
        };
        self.deliver(&parts)?;
        if !answers.is_empty() {
            self.receive.answer(&answers, &self.window)?;
        }
        if self.held != 0 && end != 0 {
            // They may lie in each other; few packets wait.
            let mut waits = vec![0_u8; self.held];
            self.room.get_slice(end, self.held)?.copy_to(&mut waits[..]);
            self.room.get_slice(0, self.held)?.copy_from(&waits[..]);
        }
        Ok(stop)
    }

    /// Takes buffers for a packet of so many bytes: where it goes, and what is answered. They are taken only if they are enough.
    fn take_buffers(
        &mut self,
        bytes: usize,
        parts: &mut Vec<(u64, u32)>,
        answers: &mut SmallVec<[(u16, u32); AT_ONCE]>,
    ) -> Result<Taken> {
        let window = &*self.window;
        let queue = &mut self.receive.queue;
        let (begun, descriptors) = (queue.next_avail(), queue.desc_table());
        let most = if self.merges { queue.size() } else { 1 };
        let (mut left, mut buffers) = (bytes, 0);
        while left > 0 {
            let next = if buffers < most { queue.iter(window).context(WRONG)?.next() } else { None };
            let Some(chain) = next else {
                let seen = queue.next_avail();
                queue.set_next_avail(begun);
                return Ok(if buffers < most { Taken::TooFew(seen) } else { Taken::Never });
            };
            let head = chain.head_index();
            if let Some(table) = self.reach.table() {
                table.map_indirect(&chain, descriptors, window)?;
            }
            let (output, input) = pieces(chain, window)?;
            ensure!(output.is_empty(), Broken::Order);
            let before = left;
            for (at, len) in input {
                let len = left.min(len as usize);
                parts.push((at, len as u32));
                left -= len;
            }
            answers.push((head, (before - left) as u32));
            buffers += 1;
        }
        Ok(Taken::Buffers(buffers))
    }

    /// Moves what is in the room, from its beginning on, to parts of the guest's memory.
    fn deliver(&mut self, parts: &[(u64, u32)]) -> Result<()> {
        self.reach.open(parts.iter().map(|(at, len)| (*at, *len, true)), 0);
        if !self.reach.is_by_copy() {
            let mut place = 0;
            for (at, len) in parts {
                let len = *len as usize;
                let guests = self.window.get_slice(GuestAddress(*at), len).context(WRONG)?;
                self.room.get_slice(place, len)?.copy_to_volatile_slice(guests);
                place += len;
            }
        }
        self.reach.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
