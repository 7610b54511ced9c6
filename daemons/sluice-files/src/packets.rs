//! Packets that a network card sends out of memory that is mapped, by netmap.
//!
//! Source: luigirizzo/netmap at 89607e1406c1, `sys/net/netmap.h` (version 14 of its interface). Layouts and numbers are stated here again; nothing
//! of it is taken over.

use crate::counted::{TwoCounts, counted};
use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{self, Call, Mapping, Order, PAGE, Plain};
use sluice_devfile::Map;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

/// `NETMAP_API`.
const VERSION: u16 = 14;
/// `NETMAP_REQ_REGISTER`.
const REGISTER: u16 = 1;
/// `NR_REG_ALL_NIC`.
const ALL_QUEUES: u32 = 1;
/// Bytes of a frame without its check sequence: with it there are 64.
const FRAME: usize = 60;
/// An EtherType for experiments (IEEE 802, 9.2.4), which nobody on the wire answers.
const ETHERTYPE: u16 = 0x88b5;
/// How often the whole ring is sent before the second mark, and after it.
const ROUNDS: TwoCounts = TwoCounts { few: 2, many: 10 };
/// How long the card's link usually takes to come up, since the driver starts the card anew. Nothing is asked meanwhile, as by pkt-gen.
const LINK_TIME: Duration = Duration::from_secs(4);
/// How long frames may take to be gone then.
const PATIENCE: Duration = Duration::from_secs(30);

/// `struct nmreq_header`.
#[repr(C)]
struct Header {
    version: u16,
    request: u16,
    reserved: u32,
    name: [u8; 64],
    options: u64,
    body: u64,
}

impl Default for Header {
    fn default() -> Self {
        Self { version: VERSION, request: 0, reserved: 0, name: [0; 64], options: 0, body: 0 }
    }
}

/// `struct nmreq_register`.
#[derive(Default)]
#[repr(C)]
struct Register {
    offset: u64,
    memory: u64,
    slots: [u32; 2],
    rings: [u16; 4],
    allocator: u16,
    ring: u16,
    mode: u32,
    extra: u32,
    flags: u64,
}

const _: () = assert!(size_of::<Header>() == 88 && size_of::<Register>() == 56);

// SAFETY: It is numbers; the address among them is of a body that `open` has for as long as the ioctl takes.
unsafe impl Plain for Header {}

const fn number(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    ioctl_expr(direction, b'i' as u32, number, size as u32) as libc::c_ulong
}

// SAFETY: The driver reads and writes `struct nmreq_header` and the body that it leads to.
const CONTROL: Call<Header> = unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, 151, size_of::<Header>())) };
// SAFETY: It takes no argument.
const SEND: Order = unsafe { Order::new(number(_IOC_NONE, 148, 0)) };

/// Words of `struct netmap_if`: where its first ring is from there, in bytes.
const FIRST_RING: usize = 56 / 4;
/// Words of `struct netmap_ring`: where buffers are from there in bytes, how many slots it has, how large a buffer is, the first slot that is the
/// program's, the one that it waits for, the first that is the kernel's, and the slots.
const BUFFERS: usize = 0;
const SLOTS: usize = 2;
const BUFFER_SIZE: usize = 3;
const HEAD: usize = 5;
const CURRENT: usize = 6;
const TAIL: usize = 7;
const FIRST_SLOT: usize = 256 / 4;
/// Words of `struct netmap_slot`, and in it: the number of its buffer, and the length of what is there with flags.
const SLOT: usize = 4;
const LENGTH: usize = 1;

/// A card's first ring of frames that are to be sent.
struct Ring {
    file: File,
    memory: Mapping,
    /// Where it begins, in words.
    at: usize,
    slots: u32,
    /// Frames that were given to the card.
    sent: u64,
}

impl Ring {
    /// Has a card send out of memory that is mapped, and waits until it does.
    fn open(path: &Path, port: &str) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("could not open {}", path.display()))?;
        let mut body = Register { mode: ALL_QUEUES, ..Register::default() };
        let mut header = Header { request: REGISTER, body: (&raw mut body) as u64, ..Header::default() };
        let name = header.name.get_mut(..port.len()).context("the card's name is too long")?;
        name.copy_from_slice(port.as_bytes());
        CONTROL.update(&file, &mut header).context("could not have the card for ourselves")?;
        let pages = u32::try_from(body.memory.div_ceil(PAGE as u64)).context("its memory is too large")?;
        let map = Map { offset: 0, first: 0, pages, read: true, write: true };
        let memory = Mapping::new(&file, &map).context("could not map its memory")?;
        let interface = usize::try_from(body.offset)? / 4;
        let at = interface + long(&memory, interface + FIRST_RING)? / 4;
        let slots = word(&memory, at + SLOTS)?.load(Ordering::Relaxed);
        let mut ring = Self { file, memory, at, slots, sent: 0 };
        ring.fill()?;
        ring.start()?;
        result(&format!("packets_memory_kib={} packets_slots={slots}", body.memory >> 10));
        Ok(ring)
    }

    fn word(&self, at: usize) -> Result<&AtomicU32> {
        word(&self.memory, self.at + at)
    }

    /// Has the same frame in all buffers.
    fn fill(&self) -> Result<()> {
        let mut frame = [0; FRAME];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let size = self.word(BUFFER_SIZE)?.load(Ordering::Relaxed) as usize / 4;
        let buffers = self.at + long(&self.memory, self.at + BUFFERS)? / 4;
        for slot in 0..self.slots as usize {
            let buffer = self.word(FIRST_SLOT + SLOT * slot)?.load(Ordering::Relaxed) as usize;
            for (number, bytes) in frame.as_chunks::<4>().0.iter().enumerate() {
                let place = word(&self.memory, buffers + buffer * size + number)?;
                place.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Slots that frames can be put into.
    fn room(&self) -> Result<u32> {
        let [head, tail] = [HEAD, TAIL].map(|at| self.word(at).map(|word| word.load(Ordering::Acquire)));
        Ok((tail? + self.slots - head?) % self.slots)
    }

    /// Puts frames into so many slots.
    fn put(&mut self, frames: u32) -> Result<()> {
        let mut head = self.word(HEAD)?.load(Ordering::Relaxed);
        for _ in 0..frames {
            // Its upper half are flags, of which none is wanted.
            let length = self.word(FIRST_SLOT + SLOT * head as usize + LENGTH)?;
            length.store(FRAME as u32, Ordering::Relaxed);
            head = if head + 1 == self.slots { 0 } else { head + 1 };
        }
        self.word(CURRENT)?.store(head, Ordering::Relaxed);
        self.word(HEAD)?.store(head, Ordering::Release);
        self.sent += u64::from(frames);
        Ok(())
    }

    /// Sends so many frames, at most a batch by each poll, as pkt-gen does.
    fn send(&mut self, frames: u32, batch: u32) -> Result<()> {
        let mut left = frames;
        while left > 0 {
            let now = left.min(batch).min(self.room()?);
            self.put(now)?;
            left -= now;
            let ready = sys::poll(&self.file, libc::POLLOUT as u16, true);
            ensure!(ready == i64::from(libc::POLLOUT), "poll answered {ready}");
        }
        Ok(())
    }

    /// Sends a frame when the card has a link.
    fn start(&mut self) -> Result<()> {
        sleep(LINK_TIME);
        self.put(1)?;
        self.finish()
    }

    /// Waits until the card has taken all frames: the slots come back.
    fn finish(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            SEND.give(&self.file).context("could not have frames sent")?;
            if self.room()? == self.slots - 1 {
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE, "the card does not take frames");
            sleep(Duration::from_millis(10));
        }
    }
}

fn word(memory: &Mapping, at: usize) -> Result<&AtomicU32> {
    memory.words().get(at).context("something is beyond the memory that is mapped")
}

/// A number of eight bytes, of which the upper half is 0.
fn long(memory: &Mapping, at: usize) -> Result<usize> {
    let [low, high] = [at, at + 1].map(|at| word(memory, at).map(|word| word.load(Ordering::Relaxed)));
    ensure!(high? == 0, "something is beyond the memory that is mapped");
    Ok(low? as usize)
}

/// Sends frames of 64 bytes by a card, in batches of all these sizes, and has what each frame costs counted.
pub fn measure(path: &Path, port: &str, batches: &[u32]) -> Result<()> {
    let mut ring = Ring::open(path, port)?;
    // Each round begins and ends with an empty ring.
    let frames = ring.slots - 1;
    let counts = TwoCounts { few: ROUNDS.few * frames, many: ROUNDS.many * frames };
    for batch in batches {
        ring.send(frames, *batch)?;
        counted(&format!("packets_{batch}"), counts, |count| ring.send(count, *batch))?;
        ring.finish()?;
    }
    result(&format!("packets_sent={}", ring.sent));
    Ok(())
}
