//! One of the two queues of a VIF, in the form in which its driver has it.

use crate::active::{Active, Queues};
use crate::chain::{Chain, Memory};
use crate::feature;
use crate::frame::Frame;
use crate::native;
use crate::offload::Header;
use arrayvec::ArrayVec;
use sluice_virtio::{Buffer, Fault, Queue, Ring, buffers};

/// Most pieces of memory that a received frame is spread over: a driver that offers smaller ones would have others wait.
const MAX_PIECES: usize = 64;

/// A queue, and how far the engine has come with it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Virtio's; whether a frame may take several of its buffers.
    Virtio { queue: Queue, ring: Ring, merges: bool },
    /// Of the native face.
    Native(native::Ring),
}

/// The frame that is next to be sent.
pub(crate) struct Entry {
    /// It can be sent.
    pub is_sound: bool,
    /// What its queue calls it.
    head: u16,
    /// Entries that it takes.
    count: u16,
}

impl Lane {
    /// The queue of what is sent.
    pub fn send(active: Active) -> Self {
        match active.queues {
            Queues::Virtio { send, .. } => Self::virtio(send, active),
            Queues::Native => Self::Native(native::Ring::new(native::Side::Send)),
        }
    }

    /// The queue of what is received.
    pub fn receive(active: Active) -> Self {
        match active.queues {
            Queues::Virtio { receive, .. } => Self::virtio(receive, active),
            Queues::Native => Self::Native(native::Ring::new(native::Side::Receive)),
        }
    }

    fn virtio(queue: Queue, active: Active) -> Self {
        let has = |feature: u64| active.features & feature != 0;
        Self::Virtio { queue, ring: Ring::new(has(feature::EVENT_INDICES)), merges: has(feature::MERGEABLE) }
    }

    /// Entries that the driver has handed over.
    pub fn waiting<M: Memory>(&self, memory: &M) -> Result<u16, Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => ring.waiting(queue, memory),
            Self::Native(ring) => ring.waiting(memory),
        }
    }

    /// Fills `chain` with the next frame that is to be sent, of those that wait: there are some.
    pub fn next<M: Memory>(&self, memory: &M, waiting: u16, chain: &mut Chain) -> Result<Entry, Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => {
                let head = ring.head(queue, memory, 0)?;
                Ok(Entry { is_sound: chain.read(queue, memory, head)?, head, count: 1 })
            }
            Self::Native(ring) => {
                Ok(Entry { is_sound: true, head: 0, count: ring.next(memory, waiting, chain)? })
            }
        }
    }

    /// Has done with that frame. Returns how many entries it took.
    pub fn finish<M: Memory>(&mut self, memory: &M, entry: &Entry) -> Result<u16, Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => ring.give(queue, memory, entry.head, 0)?,
            Self::Native(ring) => ring.finish(entry.count),
        }
        Ok(entry.count)
    }

    /// Shows the driver what is done with. Returns how many entries it has been shown, modulo 65,536.
    pub fn show<M: Memory>(&mut self, memory: &M) -> Result<u16, Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => ring.show(queue, memory),
            Self::Native(ring) => ring.show(memory),
        }
    }

    /// Whether the driver wants to hear of what it has been shown after this number of entries.
    pub fn is_awaited<M: Memory>(&self, memory: &M, before: u16) -> Result<bool, Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => ring.is_awaited(queue, memory, before),
            Self::Native(ring) => ring.is_awaited(memory, before),
        }
    }

    /// Shows the driver what is done with. Returns whether it wants to hear of it.
    pub fn publish<M: Memory>(&mut self, memory: &M) -> Result<bool, Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => ring.publish(queue, memory),
            Self::Native(ring) => ring.publish(memory),
        }
    }

    /// Says whether the driver is to tell of what it hands over. After it was asked to, the caller looks once more.
    pub fn listen<M: Memory>(&self, memory: &M, wanted: bool) -> Result<(), Fault> {
        match self {
            Self::Virtio { queue, ring, .. } => ring.listen(queue, memory, wanted),
            Self::Native(ring) => ring.listen(memory, wanted),
        }
    }

    /// Puts a frame into what the driver offers. Returns whether there was room for it, and how many pieces of memory were looked at; the driver sees
    /// the frame once that is published.
    pub fn put<M: Memory>(&mut self, memory: &M, frame: &Frame<'_, M>) -> Result<(bool, u32), Fault> {
        match self {
            Self::Virtio { queue, ring, merges } => put(queue, ring, *merges, memory, frame),
            Self::Native(ring) => ring.put(memory, frame),
        }
    }
}

/// Puts a frame into buffers of virtio's.
fn put<M: Memory>(
    queue: &Queue,
    ring: &mut Ring,
    merges: bool,
    memory: &M,
    frame: &Frame<'_, M>,
) -> Result<(bool, u32), Fault> {
    let waiting = ring.waiting(queue, memory)?;
    let most = if merges { MAX_PIECES } else { 1 };
    // What is given back for the frame: nothing, before it is known to fit.
    let mut used = ArrayVec::<(u16, u32), MAX_PIECES>::new();
    let mut header_at = None;
    let (mut done, mut pieces) = (0, 0);
    'buffers: for after in 0..waiting.min(most as u16) {
        let head = ring.head(queue, memory, after)?;
        let mut written = 0;
        for buffer in buffers(queue, memory, head) {
            let Buffer { mut address, mut len, writable } = buffer?;
            if !writable {
                return Err(Fault);
            }
            if pieces == MAX_PIECES as u32 {
                break 'buffers;
            }
            pieces += 1;
            if header_at.is_none() {
                len = len.checked_sub(Header::BYTES as u32).ok_or(Fault)?;
                header_at = Some(address);
                address = address.checked_add(Header::BYTES as u64).ok_or(Fault)?;
                written = Header::BYTES as u32;
            }
            let part = len.min(frame.len() - done);
            frame.copy(done, memory, address, part)?;
            (done, written) = (done + part, written + part);
            if done == frame.len() {
                break;
            }
        }
        // A buffer without room would be taken for ever.
        if written == 0 {
            return Err(Fault);
        }
        let _ = used.try_push((head, written));
        if done == frame.len() {
            break;
        }
    }
    let Some(header_at) = header_at.filter(|_| done == frame.len()) else { return Ok((false, pieces)) };
    let header = Header { num_buffers: used.len() as u16, ..frame.header };
    memory.write(header_at, &header.bytes())?;
    for &(head, written) in &used {
        ring.give(queue, memory, head, written)?;
    }
    Ok((true, pieces))
}
