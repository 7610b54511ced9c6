//! A shadow: the process that makes system calls for one address space of a guest.
//!
//! What an operation may reach is mapped here at the guest's own addresses while it is under way, so that structures with pointers in them mean
//! here what they mean there; the driver's access to anything else faults, as in a program that passed a bad pointer. The hypervisor copies
//! what was declared, before and after. A guest can have a driver write to any address here: so a shadow has no rights, and nothing open but the
//! file of the function. It gets each file with the first operation on it.
//!
//! Requests come by a socket, and for a while after one also by the *lane* ([`Lane`]), where this process looks for them: then neither side has to be woken.
//!
//! Deviation: addresses that the shadow has its own memory at cannot be mapped. Both lay their memory out at random, and such an operation fails with ENOMEM.

use super::focus::{Manner, Sharing};
use super::{card, lock, region};
use anyhow::{Context, Result};
use sluice_backend::function::{Copy, Function};
use sluice_backend::sys::{self, LanePage, Lent, Mapping, PAGE, ShadowPage};
use sluice_devfile::{Answer, Descriptor, Lane, Map, Operation, Range, Request};
use sluice_hypercall::devfile::{
    DEVFILE_IN, DEVFILE_MAX_DESCRIPTORS, DEVFILE_MAX_FILES, DEVFILE_MAX_OPERATIONS, DEVFILE_OUT,
    DEVFILE_UNKNOWN_FILE,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Threads: one for each operation, and some that listen.
const MOST_THREADS: usize = DEVFILE_MAX_OPERATIONS as usize + 8;
const STACK: usize = 128 * 1024;

/// Files that come with a request: its own, and those that it takes.
const MOST_FILES: usize = 1 + DEVFILE_MAX_DESCRIPTORS as usize;

/// How often an operation is interrupted that does not end, and how long after each other: it may not have been in its system call yet.
const INTERRUPTIONS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(1);

/// What who started the shadow is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// An operation is over.
    Done {
        /// Its tag.
        tag: u32,
        /// As the guest gets it.
        result: i64,
    },
    /// A file is not open here any more.
    Closed {
        /// By the guest's number.
        file: u32,
    },
}

impl Told {
    /// Bytes of one.
    pub const SIZE: usize = 16;
    const DONE: u32 = 0;
    const CLOSED: u32 = 1;

    fn encode(&self) -> [u8; Self::SIZE] {
        let (kind, number, result) = match *self {
            Self::Done { tag, result } => (Self::DONE, tag, result),
            Self::Closed { file } => (Self::CLOSED, file, 0),
        };
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&result.to_le_bytes());
        bytes
    }

    /// What is said in these bytes; `None`: nothing that is known.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let (head, result) = bytes.split_first_chunk::<8>()?;
        let (kind, number) = head.split_first_chunk::<4>()?;
        let number = u32::from_le_bytes(number.try_into().ok()?);
        match u32::from_le_bytes(*kind) {
            Self::DONE => {
                Some(Self::Done { tag: number, result: i64::from_le_bytes(result.try_into().ok()?) })
            }
            Self::CLOSED => Some(Self::Closed { file: number }),
            _ => None,
        }
    }
}

/// The request that was posted last: whether it is over, whether it is answered by the queue, and who does it.
#[derive(Debug, Default)]
struct Posted {
    /// Its number, from bit 32 on; the tag under which it is adopted, from bit 8 on; bits.
    state: AtomicU64,
    result: AtomicI64,
    thread: AtomicI32,
    /// Threads that interrupt it, perhaps: it is not over as long as there are some.
    interrupters: AtomicUsize,
}

impl Posted {
    const OVER: u64 = 1;
    const ADOPTED: u64 = 2;
    const TAG: u32 = 8;

    /// It is noticed by who adopts it, who may be the first.
    fn begin(&self, number: u32) {
        let state = self.state.load(Ordering::Acquire);
        if state >> 32 != u64::from(number) {
            let fresh = u64::from(number) << 32;
            let _ = self.state.compare_exchange(state, fresh, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// It is over. Returns the tag under which it was adopted.
    fn end(&self, number: u32, result: i64) -> Option<u32> {
        self.result.store(result, Ordering::Relaxed);
        let state = self.state.swap(u64::from(number) << 32 | Self::OVER, Ordering::SeqCst);
        while self.interrupters.load(Ordering::SeqCst) != 0 {
            std::hint::spin_loop();
        }
        // What is there of another number was another request's.
        (state & Self::ADOPTED != 0 && state >> 32 == u64::from(number)).then_some(state as u32 >> Self::TAG)
    }

    /// It is to be answered under this tag, with what is returned if it is over.
    fn adopt(&self, tag: u32, number: u32) -> Option<i64> {
        self.begin(number);
        let state = self.state.fetch_or(Self::ADOPTED | u64::from(tag) << Self::TAG, Ordering::AcqRel);
        (state & Self::OVER != 0).then(|| self.result.load(Ordering::Relaxed))
    }

    /// Interrupts it as a signal does, if it is under way under this tag. Returns whether it is.
    fn interrupt(&self, tag: u32) -> bool {
        self.interrupters.fetch_add(1, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        let adopted =
            state & (Self::ADOPTED | Self::OVER) == Self::ADOPTED && state as u32 >> Self::TAG == tag;
        if adopted {
            sys::interrupt(self.thread.load(Ordering::Relaxed));
        }
        self.interrupters.fetch_sub(1, Ordering::SeqCst);
        adopted
    }
}

/// How long passing an answer on takes, about.
const PASSING: Duration = Duration::from_micros(10);

/// How looking for requests in the lane pays: who looked in vain does so less often.
#[derive(Debug, Default)]
struct Prospects {
    /// Occasions that are let pass now, and how many were last time.
    left: u32,
    last: u32,
}

impl Prospects {
    const MOST: u32 = 63;

    /// Whether to look this time.
    fn look(&mut self) -> bool {
        let look = self.left == 0;
        self.left = self.left.saturating_sub(1);
        look
    }

    fn looked(&mut self, in_vain: bool) {
        self.last = if in_vain { (2 * self.last + 1).min(Self::MOST) } else { 0 };
        self.left = self.last;
    }
}

struct Shadow {
    socket: UnixDatagram,
    function: Function,
    /// First descriptor that is none of the program's own.
    bound: RawFd,
    /// Files that have been passed here, or that drivers have made, by the guest's numbers.
    files: [Mutex<Option<Arc<File>>>; DEVFILE_MAX_FILES as usize],
    /// Files that operations take, by the program's numbers, and how many operations do.
    lent: Mutex<HashMap<u16, (Lent, usize)>>,
    /// Threads in operations, by tag.
    running: [Mutex<Option<libc::pid_t>>; DEVFILE_MAX_OPERATIONS as usize],
    /// Pages that operations reach, and how many.
    pages: Mutex<HashMap<u64, (ShadowPage, usize)>>,
    /// What is mapped of device files, by the first page in the memory of maps.
    mappings: Mutex<HashMap<u32, Mapping>>,
    listening: AtomicUsize,
    threads: AtomicUsize,
    /// How long the lane is looked at.
    patience: Duration,
    lane: OnceLock<LanePage>,
    /// A thread looks at the lane, or does what was posted there.
    looking: AtomicBool,
    prospects: Mutex<Prospects>,
    posted: Posted,
    sharing: AtomicU8,
    background: AtomicBool,
    /// Drivers' buffers are in the guest's region.
    has_region: bool,
    /// What has a card do something is the daemon's, and refused here.
    in_turns: bool,
    /// Can be read while the guest is in the foreground.
    foreground: EventFd,
}

/// Serves as a shadow: by the socket that is standard input, with the function's file that is standard output.
///
/// # Parameters
/// - `patience`: how long it looks for the next request of a guest that posts them; zero: not at all.
/// - `in_turns`: the device is a card whose work the daemon hands over.
pub fn run(patience: Duration, in_turns: bool) -> Result<()> {
    let own =
        |stream: io::Result<std::os::fd::OwnedFd>| stream.context("a shadow is started by the daemon only");
    let socket = UnixDatagram::from(own(io::stdin().as_fd().try_clone_to_owned())?);
    let file = File::from(own(io::stdout().as_fd().try_clone_to_owned())?);
    sys::heed_interruptions().context("could not heed interruptions")?;
    sys::make_room_for_lent().context("could not have as many descriptors as are needed")?;
    sys::drop_privileges().context("could not give up rights")?;
    if in_turns {
        sys::refuse_ioctls(card::WORK).context("could not have what the daemon does refused")?;
    }
    let mut shadow = Shadow::new(socket, file, patience)?;
    shadow.in_turns = in_turns;
    shadow.has_region = shadow.function.act()?;
    Arc::new(shadow).listen();
    Ok(())
}

impl Shadow {
    fn new(socket: UnixDatagram, file: File, patience: Duration) -> io::Result<Self> {
        let foreground = EventFd::new(EFD_NONBLOCK)?;
        foreground.write(1)?;
        let bound = socket.as_raw_fd().max(file.as_raw_fd()).max(foreground.as_raw_fd()) + 1;
        Ok(Self {
            socket,
            function: Function::shared(file),
            bound,
            files: [const { Mutex::new(None) }; _],
            lent: Mutex::default(),
            running: [const { Mutex::new(None) }; _],
            pages: Mutex::default(),
            mappings: Mutex::default(),
            listening: AtomicUsize::new(0),
            threads: AtomicUsize::new(1),
            patience,
            lane: OnceLock::new(),
            looking: AtomicBool::new(false),
            prospects: Mutex::default(),
            posted: Posted::default(),
            sharing: AtomicU8::new(Sharing::Free as u8),
            background: AtomicBool::new(false),
            has_region: false,
            in_turns: false,
            foreground,
        })
    }

    /// Carries out what comes, until nobody asks any more.
    fn listen(self: &Arc<Self>) {
        loop {
            self.listening.fetch_add(1, Ordering::SeqCst);
            let heard = self.hear();
            if self.listening.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.add_thread();
            }
            if let Some((request, taken)) = heard {
                self.heed(&request, &taken);
            }
        }
    }

    /// What comes next, with the files that it takes; `None`: nothing that is to be carried out.
    fn hear(&self) -> Option<(Request, Vec<File>)> {
        let mut bytes = [0; Request::SIZE];
        let received = loop {
            match sys::receive(&self.socket, &mut bytes, MOST_FILES) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        match received {
            Ok((Request::SIZE, mut files)) => {
                let request = Request::decode(&bytes)?;
                let known = files.len().checked_sub(request.taken.len()).filter(|own| *own <= 1);
                if known.is_none() {
                    self.tell(Told::Done { tag: request.tag, result: -i64::from(libc::EBADF) });
                    return None;
                }
                // The file itself comes first, if it has not been passed before.
                if files.len() > request.taken.len() {
                    *lock(&self.files[request.file as usize]) = Some(Arc::new(files.remove(0)));
                }
                Some((request, files))
            }
            Ok((2, _)) => {
                self.turn([bytes[0], bytes[1]]);
                None
            }
            // Its end is the end of the process.
            _ => std::process::exit(0),
        }
    }

    /// The guest goes to the background, or comes to the foreground.
    fn turn(&self, told: [u8; 2]) {
        let (sharing, background) = Sharing::decode(told);
        self.sharing.store(told[0], Ordering::Relaxed);
        self.background.store(background, Ordering::SeqCst);
        if !background {
            let _ = self.foreground.write(1);
            return;
        }
        let _ = self.foreground.read();
        for file in self.files.iter().filter_map(|file| lock(file).clone()) {
            sharing.stop(&file);
        }
    }

    /// Waits until the guest is in the foreground, if the file's calls wait.
    fn hold(&self, file: &File) -> io::Result<()> {
        while self.background.load(Ordering::SeqCst) {
            if !sys::waits(file)? {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            let ready = sys::poll(&self.foreground, libc::POLLIN as u16, true);
            if ready < 0 {
                return Err(io::Error::from_raw_os_error(-ready as i32));
            }
        }
        Ok(())
    }

    /// Somebody has to listen while this thread is in an operation.
    fn add_thread(self: &Arc<Self>) {
        if self.threads.fetch_add(1, Ordering::SeqCst) >= MOST_THREADS {
            self.threads.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let shadow = Arc::clone(self);
        let _ = std::thread::Builder::new().stack_size(STACK).spawn(move || shadow.listen());
    }

    fn tell(&self, told: Told) {
        let _ = self.socket.send(&told.encode());
    }

    /// Tells something, and passes the file with this number along.
    fn tell_of(&self, told: Told, number: u32) {
        if let Some(file) = &*lock(&self.files[number as usize]) {
            let _ = self.socket.send_with_fd(&told.encode()[..], file.as_raw_fd());
        }
    }

    /// Does what the socket brought.
    fn heed(&self, request: &Request, taken: &[File]) {
        match request.operation {
            Operation::Cancel => self.interrupt(request.tag),
            Operation::Adopt { number } => self.adopt(request.tag, number),
            Operation::Release => {
                *lock(&self.files[request.file as usize]) = None;
                self.tell(Told::Closed { file: request.file });
            }
            _ => {
                // The lock is held when an operation is interrupted: so it is that one, and none after it.
                let running = &self.running[request.tag as usize];
                *lock(running) = Some(sys::thread());
                let result = self.carry_out(request, taken).unwrap_or(-i64::from(libc::EINVAL));
                *lock(running) = None;
                let told = Told::Done { tag: request.tag, result };
                match request.returns().filter(|_| result >= 0) {
                    Some(number) => self.tell_of(told, number),
                    None => self.tell(told),
                }
                if let Some(page) = request.lane {
                    self.look(page);
                }
            }
        }
    }

    /// Makes an operation; `None`: its file was never passed here.
    #[inline(always)]
    fn carry_out(&self, request: &Request, taken: &[File]) -> Option<i64> {
        let file = lock(&self.files[request.file as usize]).clone()?;
        if self.background.load(Ordering::Relaxed) {
            return Some(self.carry_out_in_background(request, &file, taken));
        }
        let result = answer(self.operate(request, &file, taken, Manner::Free));
        // Who was in the foreground before may have left it since.
        if self.background.load(Ordering::SeqCst) {
            self.stop(request, &file);
        }
        Some(result)
    }

    /// Looks for requests in the lane, and does what they ask for, as long as there are some.
    fn look(&self, page: NonZeroU32) {
        if self.patience.is_zero() || self.looking.swap(true, Ordering::Acquire) {
            return;
        }
        if lock(&self.prospects).look() {
            let lane = match self.lane.get() {
                Some(lane) => Some(lane),
                None => self.function.lane(page).ok().map(|lane| self.lane.get_or_init(|| lane)),
            };
            let served = lane.map(|lane| self.serve(lane));
            lock(&self.prospects).looked(served.is_none_or(|served| served == 0));
        }
        self.looking.store(false, Ordering::Release);
    }

    /// Serves the lane until nothing has been posted for a while. Returns how many requests were.
    fn serve(&self, lane: &Lane) -> u32 {
        /// Looks from one look at the clock to the next.
        const LOOKS: u32 = 64;
        let (mut served, mut looks) = (0_u32, 0_u32);
        let mut since = Instant::now();
        self.posted.thread.store(sys::thread(), Ordering::Relaxed);
        lane.open();
        // Who passes the last answer on may need this processor, and has had more of it lately: a yield would not give it to them.
        std::thread::sleep(PASSING);
        loop {
            if lane.is_posted() {
                self.serve_posted(lane);
                (served, looks) = (served.saturating_add(1), 0);
                continue;
            }
            looks += 1;
            if looks == LOOKS {
                since = Instant::now();
            } else if looks.is_multiple_of(LOOKS) && since.elapsed() >= self.patience && lane.close() {
                return served;
            }
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    fn serve_posted(&self, lane: &Lane) {
        let number = lane.number();
        let result = match lane.request() {
            None => -i64::from(libc::EINVAL),
            // The daemon has to know of its file first, or to pass others along.
            Some(request) if request.returns().is_some() || !request.taken.is_empty() => {
                -i64::from(libc::EINVAL)
            }
            // The daemon's: it comes again by the queue.
            Some(request)
                if self.sharing().is_for_daemon(&request.operation)
                    || self.in_turns && card::is_work(&request.operation) =>
            {
                -i64::from(DEVFILE_UNKNOWN_FILE)
            }
            Some(request) => self.carry_out(&request, &[]).unwrap_or(-i64::from(DEVFILE_UNKNOWN_FILE)),
        };
        if let Some(tag) = self.posted.end(number, result) {
            self.tell(Told::Done { tag, result });
        }
        lane.answer(number, result);
    }

    /// Has a request that was posted answered by the queue. It may be over, and it may be that it has not been noticed yet.
    fn adopt(&self, tag: u32, number: u32) {
        if let Some(result) = self.posted.adopt(tag, number) {
            self.tell(Told::Done { tag, result });
        }
    }

    /// Interrupts an operation as a signal does.
    fn interrupt(&self, tag: u32) {
        for _ in 0..INTERRUPTIONS {
            let running = lock(&self.running[tag as usize]);
            running.iter().for_each(|thread| sys::interrupt(*thread));
            if running.is_none() && !self.posted.interrupt(tag) {
                return;
            }
            drop(running);
            std::thread::sleep(PAUSE);
        }
    }

    fn sharing(&self) -> Sharing {
        Sharing::decode([self.sharing.load(Ordering::Relaxed), 0]).0
    }

    /// Undoes what an operation may have done that a guest in the background may not.
    #[cold]
    fn stop(&self, request: &Request, file: &File) {
        let sharing = self.sharing();
        if self.background.load(Ordering::SeqCst)
            && matches!(sharing.manner(&request.operation), Manner::Refused | Manner::Held)
        {
            sharing.stop(file);
        }
    }

    #[cold]
    fn carry_out_in_background(&self, request: &Request, file: &File, taken: &[File]) -> i64 {
        let result = answer(self.operate_in_background(request, file, taken));
        self.stop(request, file);
        result
    }

    fn operate_in_background(&self, request: &Request, file: &File, taken: &[File]) -> io::Result<i64> {
        let manner = self.sharing().manner(&request.operation);
        match manner {
            Manner::Free | Manner::Cleared(..) => {}
            Manner::Nothing => return Ok(0),
            Manner::Refused => return Err(io::Error::from_raw_os_error(libc::EBUSY)),
            // To be told when it is ready is no call that the file can have fail.
            Manner::Held if matches!(request.operation, Operation::Await { .. }) => {
                let ready = sys::poll(&self.foreground, libc::POLLIN as u16, true);
                if ready < 0 {
                    return Ok(ready);
                }
            }
            Manner::Held => self.hold(file)?,
        }
        self.operate(request, file, taken, manner)
    }

    /// Inlined: what an operation by the lane takes is some hundred instructions in all.
    #[inline(always)]
    fn operate(&self, request: &Request, file: &File, taken: &[File], manner: Manner) -> io::Result<i64> {
        let ranges = Some(&request.ranges).filter(|ranges| !ranges.is_empty());
        let _mapped = ranges.map(|ranges| Mapped::new(self, ranges)).transpose()?;
        let inside = |address: u64, bytes: u32| {
            let covered = bytes == 0 || request.ranges.iter().any(|range| range.holds(address, bytes));
            if covered { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
        };
        for range in request.ranges.iter().filter(|range| range.input) {
            self.copy(request.tag, range.address, range.bytes, DEVFILE_IN)?;
        }
        match request.operation {
            Operation::Read { address, bytes, from, narrow } => {
                inside(address, bytes)?;
                // SAFETY: The bytes are in a range, and all ranges are mapped.
                let result = unsafe { sys::read_to(file, address, bytes, from, narrow) };
                self.copy(request.tag, address, u32::try_from(result).unwrap_or(0), DEVFILE_OUT)?;
                Ok(result)
            }
            Operation::Write { address, bytes, from, narrow } => {
                inside(address, bytes)?;
                // SAFETY: As above.
                Ok(unsafe { sys::write_from(file, address, bytes, from, narrow) })
            }
            Operation::Ioctl { number, argument, narrow, answer } => {
                let takes = (!taken.is_empty()).then(|| Taking::new(self, request, taken));
                let _lent = takes.transpose()?;
                if self.has_region {
                    self.leave_out_copies(number, argument)?;
                }
                // SAFETY: This is a shadow.
                let mut result = unsafe { sys::ioctl_for_guest(file, number, argument, narrow) };
                if let Some(descriptor) = answer.filter(|_| result >= 0) {
                    self.keep(&descriptor, request, argument, result)?;
                    result = 0;
                }
                if let Manner::Cleared(first, last) = manner {
                    self.clear(
                        argument.saturating_add(first.into()),
                        (number >> 16 & 0x3fff).saturating_sub(first + last),
                    );
                }
                for range in request.ranges.iter().filter(|range| range.output) {
                    self.copy(request.tag, range.address, range.bytes, DEVFILE_OUT)?;
                }
                Ok(result)
            }
            Operation::Seek { offset, whence } => Ok(sys::seek(file, offset, whence)),
            Operation::Poll { events } => Ok(sys::poll(file, events, false)),
            Operation::Await { events } => Ok(sys::poll(file, events, true)),
            Operation::Map(map) => self.map(file, &map).map(|()| 0),
            Operation::Unmap { first } => self.unmap(first).map(|()| 0),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Of the ways to a stream's buffer that a program can have, takes out those by which the driver copies: it does not see what it would copy.
    #[cold]
    fn leave_out_copies(&self, number: u32, argument: u64) -> io::Result<()> {
        let choice = argument.saturating_add(region::PCM_ACCESS);
        let Some(asked) = region::chooses_access(number).then(|| self.word(choice)).flatten() else {
            return Ok(());
        };
        match asked & region::PCM_MAPPED {
            0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            left => self.put_word(choice, left).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Keeps the file that a driver has made a descriptor for.
    fn keep(&self, descriptor: &Descriptor, request: &Request, argument: u64, result: i64) -> io::Result<()> {
        let number = match descriptor.place {
            Answer::Field(field) => argument.checked_add(field.into()).and_then(|at| self.word(at)),
            Answer::Result => u32::try_from(result).ok(),
            Answer::Range(number) => {
                request.ranges.get(usize::from(number)).and_then(|range| self.word(range.address))
            }
        };
        let number = number.ok_or(io::ErrorKind::InvalidInput)? as RawFd;
        let passed = |number| {
            let is_it = |file: &Mutex<Option<Arc<File>>>| {
                lock(file).as_ref().is_some_and(|file| file.as_raw_fd() == number)
            };
            self.files.iter().any(is_it)
        };
        let file = sys::take_descriptor(number, |number| number < self.bound || passed(number))?;
        *lock(&self.files[usize::from(descriptor.file)]) = Some(Arc::new(file));
        Ok(())
    }

    /// Clears what operations reach of these bytes.
    #[cold]
    fn clear(&self, address: u64, bytes: u32) {
        let pages = lock(&self.pages);
        let end = address.saturating_add(bytes.into());
        let mut at = address;
        while at < end {
            let offset = at as usize % PAGE;
            let part = (end - at).min((PAGE - offset) as u64);
            if let Some((page, _)) = pages.get(&(at - offset as u64)) {
                page.clear(offset, part as usize);
            }
            at += part;
        }
    }

    /// A word of what operations reach; `None`: none does, or it is not in one page.
    fn word(&self, address: u64) -> Option<u32> {
        let offset = address as usize % PAGE;
        let pages = lock(&self.pages);
        let (page, _) = pages.get(&(address - offset as u64))?;
        page.word(offset)
    }

    /// Puts a word where operations reach; `None`: none does, or it is not in one page.
    fn put_word(&self, address: u64, word: u32) -> Option<()> {
        let offset = address as usize % PAGE;
        let pages = lock(&self.pages);
        let (page, _) = pages.get(&(address - offset as u64))?;
        page.put_word(offset, word).then_some(())
    }

    /// Maps a part of a file, and shows it to the guest.
    fn map(&self, file: &File, map: &Map) -> io::Result<()> {
        let mapping = Mapping::new(file, map)?;
        self.function.map(&mapping, map.first)?;
        lock(&self.mappings).insert(map.first, mapping);
        Ok(())
    }

    /// Takes away what was mapped.
    fn unmap(&self, first: u32) -> io::Result<()> {
        let mapping = lock(&self.mappings).remove(&first);
        drop(mapping.ok_or(io::ErrorKind::NotFound)?);
        // Nothing of it is shown any more: this only frees what the module knows of it.
        self.function.unmap(first)
    }

    /// Copies between the guest's process and the pages that stand for its own.
    fn copy(&self, tag: u32, address: u64, bytes: u32, way: u32) -> io::Result<()> {
        // SAFETY: The range is mapped in pages of the guest's.
        unsafe { self.function.copy(&Copy { address, local: address, tag, bytes, way, reserved: 0 }) }
    }
}

/// What the guest is answered.
pub fn answer(result: io::Result<i64>) -> i64 {
    result.unwrap_or_else(|error| -i64::from(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Pages that an operation reaches, for as long as it is under way.
struct Mapped<'s> {
    shadow: &'s Shadow,
    pages: Vec<u64>,
}

impl<'s> Mapped<'s> {
    fn new(shadow: &'s Shadow, ranges: &[Range]) -> io::Result<Self> {
        let mut mapped = Self { shadow, pages: Vec::new() };
        let mut pages = lock(&shadow.pages);
        for range in ranges {
            let first = range.address / PAGE as u64;
            let end = (range.address + u64::from(range.bytes)).div_ceil(PAGE as u64);
            for page in (first..end).map(|page| page * PAGE as u64) {
                match pages.get_mut(&page) {
                    Some((_, users)) => *users += 1,
                    None => {
                        let fresh =
                            ShadowPage::map(page).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM));
                        match fresh {
                            Ok(fresh) => pages.insert(page, (fresh, 1)),
                            Err(error) => {
                                drop(pages);
                                return Err(error);
                            }
                        };
                    }
                }
                mapped.pages.push(page);
            }
        }
        drop(pages);
        Ok(mapped)
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        let mut pages = lock(&self.shadow.pages);
        for page in &self.pages {
            if let Some((_, users)) = pages.get_mut(page) {
                *users -= 1;
                if *users == 0 {
                    pages.remove(page);
                }
            }
        }
    }
}

/// Files that an operation takes, and the driver finds, for as long as it is under way.
struct Taking<'s> {
    shadow: &'s Shadow,
    numbers: Vec<u16>,
}

impl<'s> Taking<'s> {
    /// Lends them, and puts the numbers that the driver finds them by where it looks.
    #[cold]
    fn new(shadow: &'s Shadow, request: &Request, files: &[File]) -> io::Result<Self> {
        let mut taking = Self { shadow, numbers: Vec::new() };
        for (taken, file) in request.taken.iter().zip(files) {
            let mut all = lock(&shadow.lent);
            let lent = Lent::new(file, taken.number)?;
            let number = lent.number();
            match all.entry(taken.number) {
                Entry::Vacant(place) => {
                    place.insert((lent, 1));
                }
                // Another operation takes what the program calls so: it is one descriptor.
                Entry::Occupied(mut place) => {
                    std::mem::forget(lent);
                    place.get_mut().1 += 1;
                }
            }
            drop(all);
            taking.numbers.push(taken.number);
            let put = shadow.put_word(taken.address, number as u32);
            put.ok_or(io::Error::from_raw_os_error(libc::EFAULT))?;
        }
        Ok(taking)
    }
}

impl Drop for Taking<'_> {
    #[cold]
    fn drop(&mut self) {
        let mut all = lock(&self.shadow.lent);
        for number in &self.numbers {
            if let Entry::Occupied(mut place) = all.entry(*number) {
                place.get_mut().1 -= 1;
                if place.get().1 == 0 {
                    place.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_hypercall::devfile::{DEVFILE_IOCTL, DEVFILE_READ, DEVFILE_RELEASE, DEVFILE_WRITE};

    #[test]
    fn what_is_posted_is_answered_once() {
        let posted = Posted::default();
        assert_eq!(posted.end(1, 5), None, "in the lane");
        assert_eq!(posted.adopt(99, 2), None, "it is under way");
        assert_eq!(posted.end(2, 6), Some(99));
        assert_eq!(posted.adopt(7, 3), None, "it has not been noticed");
        assert_eq!(posted.end(3, 8), Some(7));
        assert_eq!(posted.end(4, 9), None);
        assert_eq!(posted.adopt(1, 4), Some(9), "it is over");
        assert_eq!(posted.end(5, -5), None, "nothing of a former one is left");
    }

    #[test]
    fn adopted_at_any_moment_it_is_answered_once() {
        let posted = Posted::default();
        for number in 1..20_000 {
            let answers = std::thread::scope(|scope| {
                let other = (number % 10 == 0).then(|| scope.spawn(|| posted.adopt(number % 100, number)));
                let told = posted.end(number, i64::from(number));
                let adopted = other.map(|other| other.join().unwrap());
                (told, adopted)
            });
            match answers {
                (told, None) => assert_eq!(told, None),
                (Some(tag), Some(None)) => assert_eq!(tag, number % 100),
                (None, Some(Some(result))) => assert_eq!(result, i64::from(number)),
                other => panic!("{number}: {other:?}"),
            }
        }
    }

    #[test]
    fn who_looks_in_vain_looks_less_often() {
        let mut prospects = Prospects::default();
        let mut passed = || {
            let passed = (0..).take_while(|_| !prospects.look()).count();
            prospects.looked(true);
            passed
        };
        assert_eq!([0; 8].map(|_| passed()), [0, 1, 3, 7, 15, 31, 63, 63]);
        prospects.left = 0;
        assert!(prospects.look());
        prospects.looked(false);
        assert!(prospects.look(), "it pays");
    }

    #[test]
    fn a_file_that_the_guest_closes_is_open_no_more() {
        let (ours, theirs) = sys::socket_pair().unwrap();
        let null = || File::open("/dev/null").unwrap();
        let shadow = Arc::new(Shadow::new(ours, null(), Duration::ZERO).unwrap());
        *lock(&shadow.files[3]) = Some(Arc::new(null()));
        let mut bytes = [0; Request::SIZE];
        bytes[..4].copy_from_slice(&DEVFILE_RELEASE.to_le_bytes());
        bytes[16] = 3;
        theirs.send(&bytes).unwrap();
        let (request, taken) = shadow.hear().unwrap();
        shadow.heed(&request, &taken);
        assert!(lock(&shadow.files[3]).is_none());
        let mut told = [0; Told::SIZE];
        assert_eq!(theirs.recv(&mut told).unwrap(), Told::SIZE);
        assert_eq!(Told::decode(&told), Some(Told::Closed { file: 3 }));
    }

    /// A request on file 3 that declares nothing.
    fn request(operation: u32, arguments: [u64; 3]) -> Request {
        let mut bytes = [0; Request::SIZE];
        bytes[..4].copy_from_slice(&operation.to_le_bytes());
        bytes[16] = 3;
        for (at, argument) in [24, 32, 40].into_iter().zip(arguments) {
            bytes[at..at + 8].copy_from_slice(&argument.to_le_bytes());
        }
        Request::decode(&bytes).unwrap()
    }

    fn shadow(file: File) -> Shadow {
        let (ours, _) = sys::socket_pair().unwrap();
        let shadow = Shadow::new(ours, File::open("/dev/null").unwrap(), Duration::ZERO).unwrap();
        *lock(&shadow.files[3]) = Some(Arc::new(file));
        shadow
    }

    #[test]
    fn what_is_not_declared_is_not_read_into() {
        let shadow = shadow(File::open("/dev/zero").unwrap());
        let own = [7_u8; 8];
        let read = request(DEVFILE_READ, [own.as_ptr() as u64, 8, 0]);
        assert_eq!(shadow.carry_out(&read, &[]), Some(-i64::from(libc::EFAULT)));
        assert_eq!(own, [7; 8]);
    }

    #[test]
    fn what_is_not_declared_is_not_written_from() {
        let file = sys::memory_file(0).unwrap();
        let shadow = shadow(file.try_clone().unwrap());
        let own = [7_u8; 8];
        let write = request(DEVFILE_WRITE, [own.as_ptr() as u64, 8, 0]);
        assert_eq!(shadow.carry_out(&write, &[]), Some(-i64::from(libc::EFAULT)));
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    #[test]
    fn a_result_that_is_a_descriptor_is_none_of_the_shadows_own() {
        let shadow = shadow(File::open("/dev/null").unwrap());
        let descriptor = Descriptor { place: Answer::Result, file: 4 };
        let asked = request(DEVFILE_IOCTL, [1, 0, 0]);
        let kept =
            |result| shadow.keep(&descriptor, &asked, 0, result).err().and_then(|error| error.raw_os_error());
        assert_eq!(kept(i64::from(shadow.socket.as_raw_fd())), Some(libc::EBADF));
        let passed = lock(&shadow.files[3]).as_ref().unwrap().as_raw_fd();
        assert_eq!(kept(passed.into()), Some(libc::EBADF));
        assert!(lock(&shadow.files[4]).is_none());
    }

    #[test]
    fn a_descriptor_in_a_range_is_looked_for_in_memory_that_stands_for_the_guests() {
        let shadow = shadow(File::open("/dev/null").unwrap());
        let own = [i64::from(shadow.socket.as_raw_fd()); 2];
        let mut asked = request(DEVFILE_IOCTL, [1, 0, 0]);
        asked.ranges = vec![Range { address: own.as_ptr() as u64, bytes: 4, input: true, output: true }];
        for range in [0, 1] {
            let descriptor = Descriptor { place: Answer::Range(range), file: 4 };
            let error = shadow.keep(&descriptor, &asked, 0, 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "the shadow's own memory, or no range");
        }
        assert!(lock(&shadow.files[4]).is_none());
    }

    #[test]
    fn what_is_told_is_understood() {
        for told in [Told::Done { tag: 99, result: -5 }, Told::Closed { file: 255 }] {
            assert_eq!(Told::decode(&told.encode()), Some(told));
        }
        assert_eq!(Told::decode(&[7; Told::SIZE]), None);
    }
}
