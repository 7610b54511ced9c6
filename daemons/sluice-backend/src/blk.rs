//! A virtio disk (Virtio 1.2, 5.2).

use crate::disk::{AT_ONCE, Disk, SECTOR};
use anyhow::{Context, Result};
use sluice_backend::device::{Device, take_up};
use sluice_backend::function::{Function, Info, Offer, Window};
use sluice_backend::request::{Broken, MAX_SEGMENTS, Request, take};
use sluice_backend::sys::{Part, Way};
use sluice_backend::table::Table;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR,
    VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// Entries of the queue.
const QUEUE_SIZE: u16 = 256;

/// Most sectors that one part of a request discards or zeroes: what takes long is the guest's own time, but a reset waits for it.
const MAX_CLEARED_SECTORS: u32 = 1 << 16;

/// Most parts of such a request.
const MAX_CLEARED_PARTS: usize = 1;

/// A disk and its queue.
pub struct Blk {
    service: Service,
    features: u64,
    queue: Option<Live>,
    poll: Duration,
}

/// A queue that its guest uses.
struct Live {
    queue: Queue,
    window: Window,
    kicks: EventFd,
    calls: EventFd,
    pace: Pace,
    /// The guest lends by a table.
    table: Option<Table>,
}

/// What answers requests.
struct Service {
    disk: Disk,
    name: [u8; VIRTIO_BLK_ID_BYTES as usize],
    accepted: u64,
    failed: bool,
}

impl Blk {
    /// Opens what is behind the device.
    pub fn open(info: &Info, poll: Duration) -> Result<Self> {
        let source = info.source().context("the configuration names no disk (source)")?;
        let disk = Disk::open(Path::new(source))?;
        let mut features = bits(&[
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
        ]);
        features |= match disk.read_only {
            true => bits(&[VIRTIO_BLK_F_RO]),
            false => bits(&[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]),
        };
        let mut name = [0; _];
        for (to, from) in std::iter::zip(&mut name, info.name()) {
            *to = *from;
        }
        let service = Service { disk, name, accepted: 0, failed: false };
        Ok(Self { service, features, queue: None, poll })
    }
}

fn bits(numbers: &[u32]) -> u64 {
    numbers.iter().fold(0, |bits, number| bits | 1 << number)
}

/// The configuration space (Virtio 1.2, 5.2.4).
fn configuration(disk: &Disk) -> [u8; 60] {
    let mut bytes = [0; 60];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let block_sectors = disk.block / SECTOR as u32;
    put(0, &disk.sectors.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &disk.block.to_le_bytes());
    put(24, &[(disk.physical_block / disk.block).max(1).ilog2() as u8]);
    put(26, &1u16.to_le_bytes());
    put(34, &1u16.to_le_bytes());
    put(36, &MAX_CLEARED_SECTORS.to_le_bytes());
    put(40, &(MAX_CLEARED_PARTS as u32).to_le_bytes());
    put(44, &block_sectors.to_le_bytes());
    put(48, &MAX_CLEARED_SECTORS.to_le_bytes());
    put(52, &(MAX_CLEARED_PARTS as u32).to_le_bytes());
    put(56, &[1]);
    bytes
}

impl Device for Blk {
    fn offer(&self) -> Offer {
        Offer::new(self.features, 1, u32::from(QUEUE_SIZE), &configuration(&self.service.disk))
    }

    fn knows_tables(&self) -> bool {
        true
    }

    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>> {
        let event_idx = info.driver_features & bits(&[VIRTIO_RING_F_EVENT_IDX]) != 0;
        let table = Table::find(function, &info.queues[..1])?;
        let queue = take_up(&info.queues[0], QUEUE_SIZE, event_idx, window)?;
        self.service.accepted = info.driver_features;
        let live = Live {
            queue,
            window: Window::clone(window),
            kicks: function.kicks(0)?,
            calls: function.calls(0)?,
            pace: Pace::new(self.poll),
            table,
        };
        // What a former life answered may not have been told.
        live.calls.write(1).context("could not notify the guest")?;
        let waited = vec![live.kicks.as_raw_fd()];
        self.queue = Some(live);
        Ok(waited)
    }

    fn work(&mut self, _which: usize) -> Result<()> {
        let Some(live) = &mut self.queue else { return Ok(()) };
        let _ = live.kicks.read();
        let notify = || live.calls.write(1).context("could not notify the guest");
        let (service, table) = (&mut self.service, live.table.as_mut());
        if serve_queue(&mut live.queue, &live.window, service, &mut live.pace, table, notify)? {
            // Others first.
            live.kicks.write(1).context("could not go on")?;
        }
        Ok(())
    }

    fn changed_configuration(&mut self) -> Result<Option<Vec<u8>>> {
        let disk = &mut self.service.disk;
        Ok(disk.measure()?.then(|| configuration(disk).to_vec()))
    }

    fn stop(&mut self) {
        self.queue = None;
    }
}

/// How long to look for more requests after the last: as long as was allowed where that finds some, not at all where it does not, so that a
/// guest that is slower than this, or that runs on the same processor, does not cost it.
struct Pace {
    most: Duration,
    now: Duration,
    /// When notifications were asked for.
    asked: Option<Instant>,
}

impl Pace {
    fn new(most: Duration) -> Self {
        Self { most, now: most, asked: None }
    }

    /// Looks for more until the time is over.
    fn look(&mut self, mut more: impl FnMut() -> Result<bool>) -> Result<bool> {
        let begin = Instant::now();
        while !self.now.is_zero() && begin.elapsed() < self.now {
            if more()? {
                self.now = self.most;
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        self.now = Duration::ZERO;
        Ok(false)
    }

    /// Notifications are asked for from now on.
    fn asks(&mut self) {
        self.asked = Some(Instant::now());
    }

    /// Requests have come: if that is so soon after notifications were asked for that looking would have found them, it pays again.
    fn was_told(&mut self) {
        if self.asked.take().is_some_and(|asked| asked.elapsed() < self.most) {
            self.now = self.most;
        }
    }
}

/// Requests that are answered before the device looks at anything else, such as a reset.
const TURN: u32 = 2 * QUEUE_SIZE as u32;

/// Answered requests that a guest need not be told of yet, while there are more to answer, and for how long.
const UNSAID: u32 = 32;
const UNSAID_TIME: Duration = Duration::from_micros(500);

/// A request with the head of its chain.
type Asked<'w> = (u16, Request<'w>);

/// Bytes of requests that are done at once: who asked for less before should not wait for much more.
const GATHERED: u64 = 1 << 20;

/// Takes requests from the queue, up to one that is broken.
fn gather<'w>(
    queue: &mut Queue,
    window: &'w GuestMemoryMmap,
    mut table: Option<&mut Table>,
) -> Result<(Vec<Asked<'w>>, Option<Broken>)> {
    let descriptors = queue.desc_table();
    let mut requests = Vec::with_capacity(AT_ONCE as usize);
    let mut bytes = 0;
    let mut chains = queue.iter(window).context("the guest's queue is broken")?;
    while requests.len() < AT_ONCE as usize
        && bytes < GATHERED
        && let Some(chain) = chains.next()
    {
        let head = chain.head_index();
        if let Some(table) = &mut table {
            table.map_chain(&chain, descriptors, window)?;
        }
        match Request::parse(chain, window) {
            Ok(request) => {
                bytes += request.data_len();
                requests.push((head, request));
            }
            Err(broken) => return Ok((requests, Some(broken))),
        }
    }
    Ok((requests, None))
}

/// Answers what is in the queue. Returns whether the turn is over before the queue is empty.
fn serve_queue(
    queue: &mut Queue,
    window: &GuestMemoryMmap,
    service: &mut Service,
    pace: &mut Pace,
    mut table: Option<&mut Table>,
    mut notify: impl FnMut() -> Result<()>,
) -> Result<bool> {
    let wrong = "the guest's queue is broken";
    let is_empty = |queue: &Queue| -> Result<bool> {
        Ok(queue.avail_idx(window, Ordering::Acquire).context(wrong)?.0 == queue.next_avail())
    };
    pace.was_told();
    let mut served = 0;
    loop {
        queue.disable_notification(window).context(wrong)?;
        let (mut unsaid, mut since) = (0, Instant::now());
        while served < TURN {
            let (requests, broken) = gather(queue, window, table.as_deref_mut())?;
            if requests.is_empty() && broken.is_none() {
                break;
            }
            let answers = service.answer_all(requests);
            // The guest ends what it permitted once it is answered.
            if let Some(table) = &mut table {
                table.unmap();
            }
            for (head, written) in answers {
                queue.add_used(window, head, written).context(wrong)?;
                (served, unsaid) = (served + 1, unsaid + 1);
            }
            if let Some(broken) = broken {
                return Err(broken.into());
            }
            if unsaid >= UNSAID || since.elapsed() >= UNSAID_TIME || is_empty(queue)? {
                if queue.needs_notification(window).context(wrong)? {
                    notify()?;
                }
                (unsaid, since) = (0, Instant::now());
            }
        }
        if unsaid > 0 && queue.needs_notification(window).context(wrong)? {
            notify()?;
        }
        if served >= TURN {
            return Ok(true);
        }
        if pace.look(|| Ok(!is_empty(queue)?))? {
            continue;
        }
        if !queue.enable_notification(window).context(wrong)? {
            pace.asks();
            return Ok(false);
        }
    }
}

impl Service {
    /// Does what requests ask for and answers them, in their order: reads and writes that follow each other at once, all else when what
    /// came before it is done. Returns the head of each chain with the number of bytes that were written to the guest.
    fn answer_all(&mut self, mut requests: Vec<Asked<'_>>) -> Vec<(u16, u32)> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut rest = &mut requests[..];
        while !rest.is_empty() {
            let plain = rest.iter().take_while(|(_, request)| self.plain(request).is_some()).count();
            let (now, later) = rest.split_at_mut(plain.max(1));
            let results = if plain > 1 { self.transfer(now) } else { vec![self.execute(&mut now[0].1)] };
            answers.extend(
                now.iter()
                    .zip(results)
                    .map(|((head, request), result)| (*head, self.conclude(request, result))),
            );
            rest = later;
        }
        answers
    }

    /// Reads and writes of the disk's, all at once.
    fn transfer(&mut self, requests: &[Asked<'_>]) -> Vec<Result<u64, Failure>> {
        let parts: Vec<Part<'_, '_>> =
            requests.iter().filter_map(|(_, request)| self.plain(request)).collect();
        let done = self.disk.transfer_all(&parts);
        let read = |part: &Part<'_, '_>| match part.way {
            Way::Read => part.slices.iter().map(|slice| slice.len() as u64).sum(),
            Way::Write => 0,
        };
        parts.iter().zip(done).map(|(part, done)| done.map(|()| read(part)).map_err(Failure::from)).collect()
    }

    /// The transfer that a request is, if it is one of the disk's that makes sense and needs nothing else.
    fn plain<'r, 'w>(&self, request: &'r Request<'w>) -> Option<Part<'r, 'w>> {
        let (slices, others, way) = match request.kind {
            VIRTIO_BLK_T_IN => (&request.input, &request.output, Way::Read),
            VIRTIO_BLK_T_OUT => (&request.output, &request.input, Way::Write),
            _ => return None,
        };
        let flushed = self.accepted & bits(&[VIRTIO_BLK_F_FLUSH]) != 0;
        let may_write = !self.disk.read_only && flushed;
        let is_right = others.is_empty() && self.disk.holds(request.sector, request.data_len());
        (is_right && (way == Way::Read || may_write)).then(|| Part {
            slices,
            offset: request.sector * SECTOR,
            way,
        })
    }

    /// Answers a request. Returns the number of bytes that were written to the guest.
    fn conclude(&mut self, request: &Request<'_>, result: Result<u64, Failure>) -> u32 {
        let room: u64 = request.input.iter().map(|slice| slice.len() as u64).sum();
        let (status, written) = match result {
            Ok(written) => (VIRTIO_BLK_S_OK, written),
            Err(Failure::Unknown) => (VIRTIO_BLK_S_UNSUPP, 0),
            Err(Failure::Refused) => (VIRTIO_BLK_S_IOERR, 0),
            Err(Failure::Disk(error)) => {
                if !std::mem::replace(&mut self.failed, true) {
                    eprintln!(
                        "sluice-backend: {}: the disk fails: {error}; said once",
                        String::from_utf8_lossy(&self.name).trim_end_matches('\0')
                    );
                }
                (VIRTIO_BLK_S_IOERR, 0)
            }
        };
        request.answer(status as u8);
        // The answer is behind all room for data: a driver may not read past the number that it is told.
        let written = if status == VIRTIO_BLK_S_OK { written } else { room };
        u32::try_from(written).unwrap_or(u32::MAX).saturating_add(1)
    }

    fn execute(&mut self, request: &mut Request<'_>) -> Result<u64, Failure> {
        let accepted = |feature: u32| self.accepted & bits(&[feature]) != 0;
        let writes = matches!(
            request.kind,
            VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES | VIRTIO_BLK_T_FLUSH
        );
        if writes && !request.input.is_empty() || !writes && !request.output.is_empty() {
            return Err(Failure::Refused);
        }
        match request.kind {
            VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT => {
                let bytes = request.data_len();
                if !self.disk.holds(request.sector, bytes) {
                    return Err(Failure::Refused);
                }
                if request.kind == VIRTIO_BLK_T_IN {
                    self.disk.transfer(&request.input, request.sector, Way::Read)?;
                    return Ok(bytes);
                }
                if self.disk.read_only {
                    return Err(Failure::Refused);
                }
                let write_through = !accepted(VIRTIO_BLK_F_FLUSH);
                self.disk.transfer(&request.output, request.sector, Way::Write)?;
                if write_through {
                    self.disk.flush()?;
                }
                Ok(0)
            }
            VIRTIO_BLK_T_FLUSH => {
                self.disk.flush()?;
                Ok(0)
            }
            VIRTIO_BLK_T_GET_ID => {
                let mut left = &self.name[..];
                for slice in &request.input {
                    let count = slice.len().min(left.len());
                    // Within the slice: it cannot fail.
                    let _ = slice.write_slice(&left[..count], 0);
                    left = &left[count..];
                }
                Ok((self.name.len() - left.len()) as u64)
            }
            VIRTIO_BLK_T_DISCARD if accepted(VIRTIO_BLK_F_DISCARD) => self.clear(request),
            VIRTIO_BLK_T_WRITE_ZEROES if accepted(VIRTIO_BLK_F_WRITE_ZEROES) => self.clear(request),
            _ => Err(Failure::Unknown),
        }
    }

    /// Discards or zeroes: parts of a sector, a number of sectors and flags each (Virtio 1.2, 5.2.6).
    fn clear(&mut self, request: &mut Request<'_>) -> Result<u64, Failure> {
        const PART: usize = 16;
        let bytes = request.data_len();
        if self.disk.read_only
            || !bytes.is_multiple_of(PART as u64)
            || bytes > (PART * MAX_CLEARED_PARTS) as u64
        {
            return Err(Failure::Refused);
        }
        let mut part = [0; PART];
        while take(&mut request.output, &mut part).is_some() {
            let [low, high, count, flags] = std::array::from_fn(|word| {
                u32::from_le_bytes(std::array::from_fn(|byte| part[word * 4 + byte]))
            });
            let sector = u64::from(low) | u64::from(high) << 32;
            let bytes = u64::from(count) * SECTOR;
            let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
            if count > MAX_CLEARED_SECTORS || !self.disk.holds(sector, bytes) {
                return Err(Failure::Refused);
            }
            let discards = request.kind == VIRTIO_BLK_T_DISCARD;
            if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 || discards && unmap {
                return Err(Failure::Unknown);
            }
            if bytes == 0 {
                continue;
            }
            match discards {
                true => self.disk.discard(sector, bytes)?,
                false => self.disk.write_zeros(sector, bytes, unmap)?,
            }
        }
        Ok(0)
    }
}

/// Why a request failed.
enum Failure {
    /// There is no such request.
    Unknown,
    /// It makes no sense.
    Refused,
    /// The disk says so.
    Disk(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Disk(error)
    }
}

#[cfg(test)]
mod tests;
