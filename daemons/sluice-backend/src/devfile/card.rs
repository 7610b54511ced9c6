//! A graphics card that guests share in turns: this daemon hands their commands over, each guest's when its turn has come ([`turns`](super::turns)), and
//! is told by the card's fences when they are done.
//!
//! A shadow could not be trusted with it, since a guest may have taken it over: so it may not make this ioctl at all ([`sys::refuse_ioctls`]). What the card is
//! told is read here, by the hypervisor's copies of what the guest has declared, and means nothing to this program.
//!
//! The driver is the kernel's for virtio graphics cards: include/uapi/drm/virtgpu_drm.h. It does what it is given in that order.

use super::turns::{Ticket, Turns};
use super::{in_sysfs, lock};
use sluice_backend::function::Function;
use sluice_backend::sys::{self, Call, Plain};
use sluice_devfile::Operation;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE, ioctl_expr};

/// Type and number of the ioctl that hands commands over, `DRM_VIRTGPU_EXECBUFFER`.
pub const WORK: u16 = 0x6442;

/// The driver whose ioctl that is, as sysfs calls it.
const DRIVER: &str = "virtio_gpu";

/// Bytes of commands in a batch, at most: Mesa's have 256 KiB.
const MOST_BYTES: u32 = 1 << 20;
/// Buffers that a batch uses, at most.
const MOST_HANDLES: u32 = 1 << 14;

/// `struct drm_virtgpu_execbuffer`, as long as it is in any kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Batch {
    flags: u32,
    bytes: u32,
    commands: u64,
    handles: u64,
    handle_count: u32,
    /// Descriptor of the fence before it, and of the one after it.
    fence: i32,
    ring: u32,
    /// What it has been given since: lists of which no program of Debian's knows.
    rest: [u32; 7],
}

/// Bytes of what every kernel has of it.
const LEAST: usize = 32;

impl Batch {
    /// The one in these bytes; `None`: it is more than the card is given for anybody.
    fn decode(bytes: &[u8; size_of::<Self>()]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let pair = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let batch = Self {
            flags: word(0),
            bytes: word(4),
            commands: pair(8),
            handles: pair(16),
            handle_count: word(24),
            fence: word(28) as i32,
            ring: word(32),
            rest: std::array::from_fn(|place| word(36 + 4 * place)),
        };
        let fits = batch.bytes <= MOST_BYTES && batch.handle_count <= MOST_HANDLES && batch.rest == [0; 7];
        fits.then_some(batch)
    }
}

/// It begins when a fence is told, and tells one.
const FENCE_BEFORE: u32 = 1;
const FENCE_AFTER: u32 = 2;

// SAFETY: These are numbers. Addresses are for the driver, which checks them and only reads there.
unsafe impl Plain for Batch {}

const NUMBER: sluice_backend::sys::Request =
    ioctl_expr(_IOC_READ | _IOC_WRITE, b'd' as u32, 0x42, size_of::<Batch>() as u32);
// SAFETY: The driver takes structures that are longer than its own, and reads where the two addresses lead to.
const HAND_OVER: Call<Batch> = unsafe { Call::new(NUMBER) };

/// Whether a device's driver is the one whose ioctl that is: the card's own, or that of the virtio device on it, by which later kernels name the card.
fn is_in_order(device: &Path) -> bool {
    let drives =
        |device: &Path| std::fs::read_link(device.join("driver")).is_ok_and(|link| link.ends_with(DRIVER));
    let on_it = std::fs::read_dir(device).into_iter().flatten().flatten();
    drives(device) || on_it.map(|entry| entry.path()).any(|entry| entry.is_dir() && drives(&entry))
}

/// Whether an operation has a card do something.
pub const fn is_work(operation: &Operation) -> bool {
    matches!(operation, Operation::Ioctl { number, .. } if *number as u16 == WORK)
}

/// The event that is none of a batch.
const WAKE: u64 = 0;

/// How often it is looked whether somebody's turn has come that waits for another to ask.
const LOOK: Duration = Duration::from_millis(5);

/// A card, and who wants what of it.
pub struct Card {
    device: PathBuf,
    state: Mutex<State>,
    /// Somebody may go, or has given up.
    changed: Condvar,
    epoll: Epoll,
    wake: EventFd,
}

#[derive(Default)]
struct State {
    turns: Turns,
    tickets: Ticket,
    /// Who may go.
    going: HashSet<Ticket>,
    /// Who waits for that.
    waiting: HashSet<Ticket>,
    /// What tells that a batch is done.
    fences: HashMap<Ticket, File>,
}

/// All cards, which are never fewer.
static CARDS: Mutex<Vec<Arc<Card>>> = Mutex::new(Vec::new());

/// What a guest asks of a card: its batch may be given once it is its turn, and has its end when this is dropped, if it has not been given.
pub struct Turn {
    card: Arc<Card>,
    ticket: Ticket,
}

impl Card {
    /// The card behind a node, if it does what it is given in turn.
    pub fn of(node: &Path) -> io::Result<Option<Arc<Self>>> {
        let Ok(device) = in_sysfs(node).join("device").canonicalize() else { return Ok(None) };
        if !is_in_order(&device) {
            return Ok(None);
        }
        let mut cards = lock(&CARDS);
        if let Some(card) = cards.iter().find(|card| card.device == device) {
            return Ok(Some(Arc::clone(card)));
        }
        let card = Arc::new(Self::new(device)?);
        let watched = Arc::clone(&card);
        std::thread::Builder::new().spawn(move || watched.watch())?;
        cards.push(Arc::clone(&card));
        Ok(Some(card))
    }

    fn new(device: PathBuf) -> io::Result<Self> {
        let (epoll, wake) = (Epoll::new()?, EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?);
        epoll.ctl(ControlOperation::Add, wake.as_raw_fd(), EpollEvent::new(EventSet::IN, WAKE))?;
        Ok(Self { device, state: Mutex::default(), changed: Condvar::new(), epoll, wake })
    }

    /// A guest asks for its next batch.
    pub fn ask(self: &Arc<Self>, guest: &[u8], weight: u32) -> Turn {
        let mut state = lock(&self.state);
        state.tickets += 1;
        let ticket = state.tickets;
        state.waiting.insert(ticket);
        state.turns.ask(guest, weight, ticket, Instant::now());
        self.settle(&mut state);
        if state.turns.is_held() {
            // From now on it is looked now and then.
            let _ = self.wake.write(1);
        }
        Turn { card: Arc::clone(self), ticket }
    }

    /// A turn is not to be waited for any more.
    pub fn give_up(&self, ticket: Ticket) {
        lock(&self.state).waiting.remove(&ticket);
        self.changed.notify_all();
    }

    /// Has all go whose turn it is.
    fn settle(&self, state: &mut State) {
        while let Some(ticket) = state.turns.next(Instant::now()) {
            state.going.insert(ticket);
        }
        self.changed.notify_all();
    }

    /// Sees to it that turns end when the card is done.
    fn watch(&self) {
        let mut ready = [EpollEvent::default(); 32];
        loop {
            let is_held = lock(&self.state).turns.is_held();
            let patience = if is_held { LOOK.as_millis() as i32 } else { -1 };
            let count = self.epoll.wait(patience, &mut ready).unwrap_or(0);
            let done: Vec<Ticket> = ready[..count].iter().map(EpollEvent::data).collect();
            if done.contains(&WAKE) {
                let _ = self.wake.read();
            }
            self.look(&done);
        }
    }

    /// The card is done with these, if any.
    fn look(&self, done: &[Ticket]) {
        let mut state = lock(&self.state);
        for ticket in done {
            if let Some(fence) = state.fences.remove(ticket) {
                // The guest's program may have it open, too, so that closing it does not end the watch.
                let none = EpollEvent::default();
                let _ = self.epoll.ctl(ControlOperation::Delete, fence.as_raw_fd(), none);
            }
        }
        state.turns.over(done, Instant::now());
        self.settle(&mut state);
    }
}

impl Turn {
    /// Waits until the batch may be given.
    ///
    /// # Errors
    /// `EINTR`: it has been given up.
    fn wait(&self) -> io::Result<()> {
        let state = lock(&self.card.state);
        let waits =
            |state: &mut State| state.waiting.contains(&self.ticket) && !state.going.contains(&self.ticket);
        let state = self.card.changed.wait_while(state, waits);
        let mut state = state.unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_wanted = state.waiting.remove(&self.ticket);
        drop(state);
        if is_wanted { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINTR)) }
    }

    /// Its name for [`Card::give_up`].
    pub const fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The card has the batch, and tells this fence when it is done.
    fn begun(self, fence: File) -> io::Result<()> {
        let mut state = lock(&self.card.state);
        let event = EpollEvent::new(EventSet::IN, self.ticket);
        self.card.epoll.ctl(ControlOperation::Add, fence.as_raw_fd(), event)?;
        state.fences.insert(self.ticket, fence);
        state.going.remove(&self.ticket);
        drop(state);
        Ok(())
    }

    /// Gives the card the commands of a guest's program, when it is their turn.
    ///
    /// # Parameters
    /// - `number`: of the ioctl, which has the length of the structure.
    /// - `argument`: the structure's address in the guest's process; what it leads to is declared under `tag`.
    /// - `file`: the program's.
    /// - `before`: a fence that it has to be told first.
    /// - `told`: whether the program is to have a fence.
    pub fn hand_over(
        self,
        function: &Function,
        (tag, number, argument): (u32, u32, u64),
        file: &File,
        before: Option<&File>,
        told: bool,
    ) -> io::Result<Option<File>> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let mut bytes = [0; size_of::<Batch>()];
        let given = bytes.get_mut(..(number >> 16 & 0x3fff) as usize).filter(|given| given.len() >= LEAST);
        function.read(tag, argument, given.ok_or_else(invalid)?)?;
        let mut batch = Batch::decode(&bytes).ok_or_else(invalid)?;
        let mut commands = vec![0; batch.bytes as usize];
        function.read(tag, batch.commands, &mut commands)?;
        let mut handles = vec![0; batch.handle_count as usize * 4];
        function.read(tag, batch.handles, &mut handles)?;
        (batch.commands, batch.handles) = (commands.as_ptr() as u64, handles.as_ptr() as u64);
        let waits = batch.flags & FENCE_BEFORE != 0;
        batch.fence = match before {
            Some(fence) if waits => fence.as_raw_fd(),
            None if !waits => -1,
            _ => return Err(invalid()),
        };
        batch.flags |= FENCE_AFTER;
        self.wait()?;
        HAND_OVER.update(file, &mut batch)?;
        let fence = sys::take_descriptor(batch.fence, |_| false)?;
        let made = told.then(|| fence.try_clone()).transpose()?;
        self.begun(fence)?;
        Ok(made)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.card.state);
        state.waiting.remove(&self.ticket);
        state.turns.give_up(self.ticket);
        if state.going.remove(&self.ticket) {
            // The card never had it.
            state.turns.over(&[self.ticket], Instant::now());
        }
        self.card.settle(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn bytes(words: &[(usize, u32)]) -> [u8; size_of::<Batch>()] {
        let mut bytes = [0; _];
        for (at, word) in words {
            bytes[*at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_batch_has_its_fields_where_the_kernel_has_them() {
        let given = bytes(&[(0, 3), (4, 40), (8, 5), (12, 6), (16, 7), (24, 8), (28, u32::MAX), (32, 9)]);
        let batch = Batch {
            flags: 3,
            bytes: 40,
            commands: 6 << 32 | 5,
            handles: 7,
            handle_count: 8,
            fence: -1,
            ring: 9,
            rest: [0; 7],
        };
        assert_eq!(Batch::decode(&given), Some(batch));
        assert_eq!(size_of::<Batch>(), 64);
    }

    #[test]
    fn what_is_too_much_or_not_known_is_refused() {
        let fits = |words: &[(usize, u32)]| Batch::decode(&bytes(words)).is_some();
        assert!(fits(&[(4, MOST_BYTES), (24, MOST_HANDLES)]));
        assert!(!fits(&[(4, MOST_BYTES + 1)]) && !fits(&[(24, MOST_HANDLES + 1)]));
        assert!((36..64).step_by(4).all(|at| !fits(&[(at, 1)])));
    }

    #[test]
    fn work_is_known_by_type_and_number() {
        let ioctl = |number| Operation::Ioctl { number, argument: 0, narrow: false, answer: None };
        assert!(is_work(&ioctl(0xc028_6442)) && is_work(&ioctl(0xc040_6442)));
        assert!(!is_work(&ioctl(0xc028_6443)) && !is_work(&Operation::Poll { events: 1 }));
    }

    fn card() -> Arc<Card> {
        let card = Arc::new(Card::new(PathBuf::new()).unwrap());
        let watched = Arc::clone(&card);
        std::thread::spawn(move || watched.watch());
        card
    }

    #[test]
    fn who_is_held_has_the_watch_woken_once() {
        let card = Arc::new(Card::new(PathBuf::new()).unwrap());
        // Two guests use it, and more batches than a few of one are asked for.
        drop(card.ask(b"bob", 100));
        let turns: Vec<Turn> = (0..8).map(|_| card.ask(b"alice", 100)).collect();
        assert!(lock(&card.state).turns.is_held());
        assert!(card.wake.read().is_ok());
        (0..3).for_each(|_| card.look(&[]));
        assert!(lock(&card.state).turns.is_held());
        assert_eq!(card.wake.read().unwrap_err().kind(), io::ErrorKind::WouldBlock, "a look wakes nobody");
        drop(turns);
    }

    #[test]
    fn who_gives_up_waits_no_more() {
        let turn = card().ask(b"alice", 100);
        turn.card.give_up(turn.ticket());
        assert_eq!(turn.wait().unwrap_err().raw_os_error(), Some(libc::EINTR));
    }

    #[test]
    fn a_turn_ends_when_its_fence_is_told_though_another_has_that_open() {
        let card = card();
        let fence = EventFd::new(EFD_NONBLOCK).unwrap();
        let open = |fence: &EventFd| -> OwnedFd {
            // SAFETY: It is open for as long as `fence` is there, which is longer than this.
            unsafe { std::os::fd::BorrowedFd::borrow_raw(fence.as_raw_fd()) }.try_clone_to_owned().unwrap()
        };
        for _ in 0..3 {
            let turn = card.ask(b"alice", 100);
            turn.wait().unwrap();
            turn.begun(File::from(open(&fence))).unwrap();
        }
        assert_eq!(lock(&card.state).fences.len(), 3);
        fence.write(1).unwrap();
        while !lock(&card.state).fences.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let turn = card.ask(b"bob", 100);
        turn.wait().unwrap();
        let waiting = card.ask(b"alice", 100);
        drop(turn);
        waiting.wait().unwrap();
    }
}
