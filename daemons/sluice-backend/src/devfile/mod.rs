//! Device files: operations of a guest's processes on a file of this domain's.
//!
//! Each address space of the guest has a process here, its *shadow* ([`shadow`]), which makes the guest's system calls with the guest's
//! addresses. This module takes requests from the queue, keeps the open files, and hands each request with its file to the shadow. Files are opened
//! here, since a shadow may not.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 3.1, 5.1. Deviation: processes make the real
//! system calls, where the source runs drivers in threads of the kernel that are marked; so drivers find their callers' memory as they always do.

mod card;
mod description;
mod focus;
mod keyboard;
mod neighbours;
mod region;
mod screen;
pub mod shadow;
mod turns;

use crate::hang::HangWatch;
use anyhow::{Context, Result, bail};
use card::{Card, Turn};
use focus::Sharing;
use keyboard::KeyboardShare;
use screen::{Screen, Wish};
use shadow::Told;
use sluice_backend::device::Device;
use sluice_backend::function::{Function, Info, Offer, QueueSetup, Window};
use sluice_backend::sys;
use sluice_devfile::{Operation, Request, Taken};
use sluice_hypercall::devfile::{
    DEVFILE_ANSWER_SIZE, DEVFILE_CLASS_SIZE, DEVFILE_CONFIG_SIZE, DEVFILE_MAX_SPACES, DEVFILE_NODE_SIZE,
    DEVFILE_UNKNOWN_FILE, DEVFILE_VERSION,
};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use turns::Ticket;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Entries of the queue: two for each request.
const QUEUE_SIZE: u16 = 256;

/// How long a file that is opened waits for others to be closed that should be.
const CLOSING: Duration = Duration::from_secs(1);

/// What of the flags of open(2) a guest may choose.
const FLAGS: i32 = libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_APPEND | libc::O_DSYNC | libc::O_SYNC;

/// A device file that is served.
pub struct DeviceFile {
    path: PathBuf,
    configuration: Vec<u8>,
    sharing: Sharing,
    /// The guest is in the background.
    background: bool,
    /// `None`: it has not been looked for.
    keyboard: Option<Option<Arc<KeyboardShare>>>,
    /// How long shadows look for the next request.
    patience: Duration,
    hang: HangWatch,
    /// What its guest shares in turns, with its weight.
    card: Option<(Arc<Card>, u32)>,
    live: Option<Arc<Live>>,
    kicks: Option<EventFd>,
}

/// What is under way between a start and a stop.
struct Live {
    window: Window,
    /// `None`: the queue may not be touched any more.
    queue: Mutex<Option<Queue>>,
    calls: EventFd,
    function: File,
    /// Whose it is, by the hypervisor's word.
    guest: Vec<u8>,
    /// The guest's number for this life of the device; 0: it has said none yet.
    number: AtomicU32,
    path: PathBuf,
    /// What programs look for in sysfs.
    description: Vec<u8>,
    sharing: Sharing,
    patience: Duration,
    hang: HangWatch,
    card: Option<(Arc<Card>, u32)>,
    keyboard: Option<Arc<KeyboardShare>>,
    state: Mutex<State>,
    /// A file is not open in a shadow any more.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    under_way: HashMap<u32, UnderWay>,
    files: HashMap<u32, Arc<OpenFile>>,
    shadows: HashMap<u64, Shadow>,
    /// The guest is in the background.
    background: bool,
    /// Files that shadows, by address space, have been told to close.
    closing: HashSet<(u64, u32)>,
    /// Files that the guest has closed, and where it is told that none has them open any more.
    released: HashMap<u32, Place>,
    /// Of a graphics card.
    screen: Screen,
}

/// A request that is to be answered.
struct UnderWay {
    place: Place,
    /// The address space whose shadow does it; `None`: this daemon does.
    space: Option<u64>,
    /// The file that it was passed with.
    file: Option<Arc<OpenFile>>,
    /// Number of the file that it makes.
    returns: Option<u32>,
    /// When it was interrupted first.
    interrupted: Option<Instant>,
    /// What it waits for.
    ticket: Option<Ticket>,
}

/// Where an answer goes.
#[derive(Clone, Copy)]
struct Place {
    head: u16,
    address: GuestAddress,
}

/// A file that the guest has opened, or that a driver has made for it.
struct OpenFile {
    file: File,
    /// Calls on it wait now.
    waits: Mutex<bool>,
    /// It goes on when its guest is back in the foreground.
    goes_on: AtomicBool,
    /// Address spaces whose shadows it was passed to, and whether they have it for certain: they do once they have answered.
    passed: Mutex<HashMap<u64, bool>>,
}

/// A process that stands for an address space of the guest.
struct Shadow {
    /// `None`: it was killed.
    child: Option<Child>,
    /// What it uses.
    path: PathBuf,
    hang: HangWatch,
    socket: UnixDatagram,
}

impl OpenFile {
    fn new(file: File, waits: bool, passed: HashMap<u64, bool>) -> Self {
        Self { file, waits: Mutex::new(waits), goes_on: AtomicBool::new(false), passed: Mutex::new(passed) }
    }

    /// Its guest goes to the background, or comes to the foreground.
    fn turn(&self, sharing: Sharing, background: bool) {
        if background {
            self.goes_on.store(sharing.leave(&self.file), Ordering::Relaxed);
        } else {
            sharing.enter(&self.file, self.goes_on.swap(false, Ordering::Relaxed));
        }
    }
}

impl Shadow {
    /// Tells it how the device is shared, and where its guest is.
    fn turn(&self, sharing: Sharing, background: bool) {
        let _ = self.ask(&sharing.encode(background), &[]);
    }

    /// Has it carry out a request.
    ///
    /// # Errors
    /// `EIO`: it is no more.
    fn ask(&self, bytes: &[u8], files: &[RawFd]) -> std::io::Result<()> {
        // Nobody listens in one that was killed, even if it is still there.
        let sent = self.child.is_some() && self.socket.send_with_fds(&[bytes], files).is_ok();
        if sent { Ok(()) } else { Err(gone()) }
    }

    /// Kills it. Returns whether it is gone.
    fn end(&mut self) -> bool {
        let Some(child) = self.child.take() else { return false };
        self.hang.bury(child, self.path.display().to_string())
    }
}

/// What befalls operations of who is no more.
fn gone() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::EIO)
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.end();
    }
}

impl DeviceFile {
    /// The device file that the configuration names.
    ///
    /// # Parameters
    /// - `patience`: how long it is looked for the next request where the guest posts them.
    /// - `hang`: what becomes of what does not end.
    /// - `turns`: the guest's weight where guests share cards in turns.
    pub fn open(info: &Info, patience: Duration, hang: HangWatch, turns: Option<u32>) -> Result<Self> {
        let source = info.source().context("the configuration names no device file (source)")?;
        let path = PathBuf::from(source);
        let class = class(&path);
        let configuration = configuration(&path, &class)?;
        let sharing = Sharing::of(&path, &class);
        let card = turns.map(|_| Card::of(&path)).transpose().context("could not watch a card")?.flatten();
        Ok(Self {
            path,
            configuration,
            sharing,
            background: false,
            keyboard: None,
            patience,
            hang,
            card: card.zip(turns),
            live: None,
            kicks: None,
        })
    }
}

/// The folder of a node in sysfs, which is there if the node is one of characters that a driver has.
fn in_sysfs(node: &Path) -> PathBuf {
    let number = std::fs::metadata(node).map_or(0, |found| found.rdev());
    PathBuf::from(format!("/sys/dev/char/{}:{}", libc::major(number), libc::minor(number)))
}

/// What sysfs calls the class of a node's device; nothing, if it has none.
fn class(path: &Path) -> String {
    let class = std::fs::read_link(in_sysfs(path).join("subsystem")).unwrap_or_default();
    class.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
}

/// What the guest learns of a file: its node, mode and class.
fn configuration(path: &Path, class: &str) -> Result<Vec<u8>> {
    let shown = path.display();
    let found = std::fs::metadata(path).with_context(|| format!("there is no {shown}"))?;
    if !found.file_type().is_char_device() {
        bail!("{shown} is no device file of characters");
    }
    let node = path.strip_prefix("/dev").ok().and_then(Path::to_str);
    let node = node.filter(|node| node.len() < DEVFILE_NODE_SIZE as usize);
    let node = node.with_context(|| format!("{shown} has no name below /dev that is short enough"))?;
    let class = class.get(..class.len().min(DEVFILE_CLASS_SIZE as usize - 1)).unwrap_or_default();
    let mut bytes = vec![0; DEVFILE_CONFIG_SIZE as usize];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &DEVFILE_VERSION.to_le_bytes());
    put(4, &(found.mode() & 0o666).to_le_bytes());
    put(8, node.as_bytes());
    put(8 + DEVFILE_NODE_SIZE as usize, class.as_bytes());
    Ok(bytes)
}

impl Device for DeviceFile {
    fn offer(&self) -> Offer {
        Offer::new(0, 1, u32::from(QUEUE_SIZE), &self.configuration)
    }

    fn start(&mut self, function: &Function, window: &Window, info: &Info) -> Result<Vec<RawFd>> {
        let queue = take_up(&info.queues[0], window)?;
        let kicks = function.kicks(0)?;
        let live = Live {
            window: Window::clone(window),
            queue: Mutex::new(Some(queue)),
            calls: function.calls(0)?,
            function: function.share().context("could not share the device file")?,
            guest: info.name().split(|byte| *byte == b'.').next().unwrap_or_default().to_vec(),
            number: AtomicU32::new(0),
            path: self.path.clone(),
            description: description::of(&self.path),
            sharing: self.sharing,
            patience: self.patience,
            hang: self.hang,
            card: self.card.clone(),
            keyboard: self.keyboard.clone().flatten(),
            state: Mutex::new(State { background: self.background, ..State::default() }),
            closed: Condvar::new(),
        };
        let waited = vec![kicks.as_raw_fd()];
        let live = Arc::new(live);
        neighbours::add(&live);
        (self.live, self.kicks) = (Some(live), Some(kicks));
        Ok(waited)
    }

    fn work(&mut self, _which: usize) -> Result<()> {
        let (Some(live), Some(kicks)) = (&self.live, &self.kicks) else { return Ok(()) };
        let _ = kicks.read();
        while let Some((place, bytes)) = live.take()? {
            live.request(place, &bytes);
        }
        Ok(())
    }

    fn look(&mut self, function: &Function, info: &Info) {
        if self.keyboard.is_none() {
            let share = || KeyboardShare::take(&self.path, Function::shared(function.share().ok()?)).ok();
            self.keyboard = Some((self.sharing == Sharing::Input).then(share).flatten().map(Arc::new));
        }
        let background = info.is_in_background();
        if std::mem::replace(&mut self.background, background) == background {
            return;
        }
        if let Some(Some(keyboard)) = &self.keyboard {
            keyboard.turn(background);
        }
        if let Some(live) = &self.live {
            live.turn(background);
        }
    }

    fn tick(&mut self) {
        if let Some(live) = &self.live {
            live.end_what_hangs();
            // Another guest's master may have gone.
            live.take_screen();
        }
    }

    fn stop(&mut self) {
        self.kicks = None;
        if let Some(live) = self.live.take() {
            *lock(&live.queue) = None;
            let state = std::mem::take(&mut *lock(&live.state));
            drop(state);
        }
    }
}

/// Nobody panics while holding one of these locks and leaves it half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue of a guest that has just set it up. What a former life of this daemon has answered cannot be told from what it has only begun.
fn take_up(setup: &QueueSetup, window: &GuestMemoryMmap) -> Result<Queue> {
    let wrong = "the guest's queue is not set up as it must be";
    if setup.enabled == 0 {
        bail!("the guest does not use the queue");
    }
    let mut queue = Queue::new(QUEUE_SIZE).context(wrong)?;
    queue.try_set_size(setup.entries.try_into().context(wrong)?).context(wrong)?;
    queue.try_set_desc_table_address(GuestAddress(setup.descriptors)).context(wrong)?;
    queue.try_set_avail_ring_address(GuestAddress(setup.driver)).context(wrong)?;
    queue.try_set_used_ring_address(GuestAddress(setup.device)).context(wrong)?;
    queue.set_ready(true);
    if !queue.is_valid(window) {
        bail!(wrong);
    }
    if queue.used_idx(window, Ordering::Acquire).context(wrong)?.0 != 0 {
        bail!("files that the guest opened were open in a process that is no more");
    }
    Ok(queue)
}

impl State {
    /// Places of files that the guest has closed, and no shadow has open any more.
    fn over(&mut self) -> Vec<Place> {
        let closing = &self.closing;
        let is_over = |file: &u32| !closing.iter().any(|(_, other)| other == file);
        self.released.extract_if(|file, _| is_over(file)).map(|(_, place)| place).collect()
    }

    /// Keeps a file that the shadow of an address space has, or none. Returns what the guest is answered.
    fn take_in(&mut self, number: u32, shadow: Option<u64>, made: Option<File>) -> i64 {
        let Some((waits, file)) = made.and_then(|file| Some((sys::waits(&file).ok()?, file))) else {
            return -i64::from(libc::EIO);
        };
        match self.files.entry(number) {
            Entry::Occupied(_) => -i64::from(libc::EBADF),
            Entry::Vacant(place) => {
                place.insert(Arc::new(OpenFile::new(
                    file,
                    waits,
                    shadow.map(|space| (space, true)).into_iter().collect(),
                )));
                0
            }
        }
    }
}

impl Live {
    /// The guest goes to the background, or comes to the foreground.
    fn turn(&self, background: bool) {
        let mut state = lock(&self.state);
        state.background = background;
        state.files.values().for_each(|file| file.turn(self.sharing, background));
        state.shadows.values().for_each(|shadow| shadow.turn(self.sharing, background));
        drop(state);
        self.take_screen();
        // Who came to the foreground before this one left it has not got the screen.
        if self.sharing == Sharing::Screen && background {
            neighbours::beside(self).iter().for_each(|other| other.take_screen());
        }
    }

    /// The guest's master becomes the driver's, if the guest is in the foreground and no other has the screen.
    fn take_screen(&self) {
        let state = lock(&self.state);
        if self.sharing == Sharing::Screen && !state.background {
            state.screen.enter(&state.files);
        }
    }

    /// A file asks to be master, or not to be.
    fn grant(&self, state: &mut State, wish: Wish, number: u32) -> i64 {
        let background = state.background;
        let Some(open) = state.files.get(&number) else { return -i64::from(libc::ENODEV) };
        shadow::answer(state.screen.grant(wish, number, &open.file, background).map(|()| 0))
    }

    /// Writes what programs look for in sysfs into a page that the guest has for it. Returns how much it is.
    fn describe(&self, page: Option<NonZeroU32>) -> i64 {
        let Some(page) = page.filter(|_| !self.description.is_empty()) else { return 0 };
        let address = GuestAddress(u64::from(page.get()) * sys::PAGE as u64);
        match self.window.write_slice(&self.description, address) {
            Ok(()) => self.description.len() as i64,
            Err(_) => 0,
        }
    }

    /// Kills the shadows of operations that were interrupted and do not end.
    fn end_what_hangs(&self) {
        let mut state = lock(&self.state);
        let hangs = |under_way: &&UnderWay| {
            under_way.interrupted.is_some_and(|since| since.elapsed() >= self.hang.patience)
        };
        let hanging = state.under_way.values().filter(hangs);
        let spaces: Vec<u64> = hanging.filter_map(|one| one.space).collect();
        // What they were asked for fails when they are gone; nothing more is asked of them.
        let shadows = spaces.iter().filter_map(|space| state.shadows.get_mut(space)?.child.take());
        let shadows: Vec<Child> = shadows.collect();
        drop(state);
        for child in shadows {
            self.hang.bury(child, self.path.display().to_string());
        }
    }

    /// The next request, and where its answer goes.
    fn take(&self) -> Result<Option<(Place, [u8; Request::SIZE])>> {
        let mut queue = lock(&self.queue);
        let Some(queue) = &mut *queue else { return Ok(None) };
        let window = &*self.window;
        let Some(chain) = queue.iter(window).context("the guest's queue is broken")?.next() else {
            return Ok(None);
        };
        let head = chain.head_index();
        let parts: Vec<_> = chain.take(3).collect();
        let [request, answer] = &parts[..] else { bail!("a request of the guest has not two parts") };
        let fits = !request.is_write_only()
            && request.len() as usize >= Request::SIZE
            && answer.is_write_only()
            && answer.len() >= DEVFILE_ANSWER_SIZE;
        if !fits {
            bail!("a request of the guest has no room for itself or its answer");
        }
        let mut bytes = [0; Request::SIZE];
        let wrong = "a request leads out of the guest's memory";
        window.read_slice(&mut bytes, request.addr()).context(wrong)?;
        Ok(Some((Place { head, address: answer.addr() }, bytes)))
    }

    fn answer(&self, place: Place, result: i64) {
        let mut queue = lock(&self.queue);
        let Some(queue) = &mut *queue else { return };
        let mut answer = [0; DEVFILE_ANSWER_SIZE as usize];
        answer[..8].copy_from_slice(&result.to_le_bytes());
        // A guest that gave no memory for it gets no answer.
        let _ = self.window.write_slice(&answer, place.address);
        let _ = queue.add_used(&*self.window, place.head, DEVFILE_ANSWER_SIZE);
        let _ = self.calls.write(1);
    }

    /// An operation is over, and has perhaps made a file.
    fn finish(&self, tag: u32, result: i64, made: Option<File>) {
        let mut state = lock(&self.state);
        let Some(under_way) = state.under_way.remove(&tag) else { return };
        let UnderWay { place, space: shadow, file, returns, .. } = under_way;
        // A shadow that does not know the file of what was posted has not been passed it.
        let is_known = result != -i64::from(DEVFILE_UNKNOWN_FILE);
        if let Some((file, space)) = file.zip(shadow).filter(|_| is_known) {
            lock(&file.passed).insert(space, true);
        }
        let result = match returns.filter(|_| result >= 0) {
            Some(number) => state.take_in(number, shadow, made),
            None => result,
        };
        drop(state);
        self.answer(place, result);
    }

    /// Begins what the guest asks for.
    fn request(self: &Arc<Self>, place: Place, bytes: &[u8; Request::SIZE]) {
        let Some(request) = Request::decode(bytes) else {
            return self.answer(place, -i64::from(libc::EINVAL));
        };
        // Before this device's lock is held, since others of the guest look here as well.
        let taken: Option<Vec<_>> = request.taken.iter().map(|taken| self.find(taken)).collect();
        let Some(taken) = taken else { return self.answer(place, -i64::from(libc::EBADF)) };
        let mut state = lock(&self.state);
        let result = match request.operation {
            Operation::Hello { device } => {
                self.number.store(device, Ordering::Relaxed);
                self.describe(request.lane)
            }
            Operation::Nothing => 0,
            Operation::Release => {
                let file = state.files.remove(&request.file);
                state.screen.closed(request.file);
                let spaces = file.as_ref().map(|file| std::mem::take(&mut *lock(&file.passed)));
                for space in spaces.unwrap_or_default().into_keys() {
                    let told = state.shadows.get(&space).map(|shadow| shadow.ask(bytes, &[]));
                    if let Some(Ok(())) = told {
                        state.closing.insert((space, request.file));
                    }
                }
                let before = state.released.insert(request.file, place);
                let over = state.over();
                drop(state);
                // It may be the last that has the file open, and closing may take its time.
                drop(file);
                return before.into_iter().chain(over).for_each(|place| self.answer(place, 0));
            }
            Operation::Forget => {
                let shadow = state.shadows.remove(&request.space);
                drop(state);
                // One that is not gone may look at its lane yet, which the guest must not use for another.
                let is_gone = shadow.is_none_or(|mut shadow| shadow.end());
                return self.answer(place, if is_gone { 0 } else { -i64::from(libc::EIO) });
            }
            Operation::Cancel => {
                let now = Instant::now();
                let space = state.under_way.get_mut(&request.tag).and_then(|under_way| {
                    if let Some((ticket, (card, _))) = under_way.ticket.zip(self.card.as_ref()) {
                        card.give_up(ticket);
                        return None;
                    }
                    under_way.interrupted.get_or_insert(now);
                    under_way.space
                });
                if let Some(shadow) = space.and_then(|space| state.shadows.get(&space)) {
                    let _ = shadow.ask(bytes, &[]);
                }
                0
            }
            _ if state.under_way.contains_key(&request.tag) => -i64::from(libc::EBUSY),
            _ if let Some(wish) = self.sharing.wish(&request.operation) => {
                self.grant(&mut state, wish, request.file)
            }
            _ => {
                let file = state.files.get(&request.file).cloned();
                let returns = request.returns();
                let turn = self.card.as_ref().filter(|_| card::is_work(&request.operation));
                let turn = turn.map(|(card, weight)| card.ask(&self.guest, *weight));
                let ticket = turn.as_ref().map(Turn::ticket);
                let presses = self.sharing.presses(&request.operation);
                let space = Some(request.space).filter(|_| turn.is_none() && !presses);
                let under_way = UnderWay { place, space, file, returns, interrupted: None, ticket };
                state.under_way.insert(request.tag, under_way);
                let begun = match turn {
                    Some(turn) => self.hand_over(&state, turn, &request, &taken),
                    None if presses => self.press(&state, &request),
                    None => self.begin(&mut state, &request, bytes, &taken),
                };
                match begun {
                    Ok(()) => return,
                    Err(error) => {
                        state.under_way.remove(&request.tag);
                        shadow::answer(Err(error))
                    }
                }
            }
        };
        drop(state);
        self.answer(place, result);
    }

    /// Has this daemon give a card the commands of a program when it is the guest's turn.
    fn hand_over(
        self: &Arc<Self>,
        state: &State,
        turn: Turn,
        request: &Request,
        taken: &[Arc<OpenFile>],
    ) -> std::io::Result<()> {
        let Operation::Ioctl { number, argument, .. } = request.operation else { return Ok(()) };
        let no_device = || std::io::Error::from_raw_os_error(libc::ENODEV);
        let file = Arc::clone(state.files.get(&request.file).ok_or_else(no_device)?);
        let function = Function::shared(self.function.try_clone()?);
        let (live, tag, told) = (Arc::clone(self), request.tag, request.returns().is_some());
        let before = taken.first().cloned();
        std::thread::Builder::new().spawn(move || {
            let before = before.as_ref().map(|open| &open.file);
            let made = turn.hand_over(&function, (tag, number, argument), &file.file, before, told);
            let (result, made) = made.map_or_else(|error| (Err(error), None), |made| (Ok(0), made));
            live.finish(tag, shadow::answer(result), made);
        })?;
        Ok(())
    }

    /// Has this daemon press keys for a program.
    fn press(self: &Arc<Self>, state: &State, request: &Request) -> std::io::Result<()> {
        let failed = |number| Err(std::io::Error::from_raw_os_error(number));
        let Operation::Write { address, bytes, from, narrow } = request.operation else { return Ok(()) };
        let Some(keyboard) = self.keyboard.clone().filter(|_| state.files.contains_key(&request.file)) else {
            return failed(libc::ENODEV);
        };
        if from.offset().is_some() {
            return failed(libc::ESPIPE);
        }
        let function = Function::shared(self.function.try_clone()?);
        let (live, tag) = (Arc::clone(self), request.tag);
        std::thread::Builder::new().spawn(move || {
            let mut written = vec![0; (bytes as usize).min(keyboard::MOST_BYTES)];
            let is_behind = || Ok(function.info().map_err(std::io::Error::other)?.is_in_background());
            let read = function.read(tag, address, &mut written);
            let result = read.and_then(|()| keyboard.press(&written, narrow, is_behind));
            live.finish(tag, shadow::answer(result.map(|bytes| bytes as i64)), None);
        })?;
        Ok(())
    }

    /// A file that an operation takes: one of this device's, or of another that the same guest has here.
    fn find(&self, taken: &Taken) -> Option<Arc<OpenFile>> {
        let device = neighbours::find(&self.guest, taken.device)?;
        lock(&device.state).files.get(&taken.file.into()).cloned()
    }

    /// Has an operation carried out, which tells when it is over.
    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        request: &Request,
        bytes: &[u8; Request::SIZE],
        taken: &[Arc<OpenFile>],
    ) -> std::io::Result<()> {
        let (tag, number, flags) = (request.tag, request.file, request.flags as i32);
        if request.operation == Operation::Open {
            let live = Arc::clone(self);
            std::thread::Builder::new().spawn(move || {
                let result = live.open(number, flags & FLAGS);
                live.finish(tag, result, None);
            })?;
            return Ok(());
        }
        if let Operation::Adopt { .. } = request.operation {
            return state.shadows.get(&request.space).ok_or_else(gone)?.ask(bytes, &[]);
        }
        let no_device = std::io::Error::from_raw_os_error(libc::ENODEV);
        let file = Arc::clone(state.files.get(&number).ok_or(no_device)?);
        let waits = flags & libc::O_NONBLOCK == 0;
        use Operation::{Ioctl, Read, Write};
        let moves = matches!(request.operation, Read { .. } | Write { .. } | Ioctl { .. });
        if moves && std::mem::replace(&mut *lock(&file.waits), waits) != waits {
            sys::set_waiting(&file.file, waits)?;
        }
        if !state.shadows.contains_key(&request.space) {
            if state.shadows.len() >= DEVFILE_MAX_SPACES as usize {
                return Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
            }
            let shadow = self.spawn(request.space)?;
            shadow.turn(self.sharing, state.background);
            state.shadows.insert(request.space, shadow);
        }
        let Some(shadow) = state.shadows.get(&request.space) else { return Ok(()) };
        let mut passed = lock(&file.passed);
        let is_there = passed.get(&request.space) == Some(&true);
        let own = (!is_there).then_some(&file.file);
        let files = own.into_iter().chain(taken.iter().map(|taken| &taken.file));
        shadow.ask(bytes, &files.map(AsRawFd::as_raw_fd).collect::<Vec<_>>())?;
        passed.entry(request.space).or_insert(false);
        Ok(())
    }

    fn open(&self, number: u32, flags: i32) -> i64 {
        // Some devices are one program's at a time: who has closed one may open it again.
        let closing = |state: &mut State| !state.closing.is_empty();
        drop(self.closed.wait_timeout_while(lock(&self.state), CLOSING, closing));
        let access = self.sharing.access(flags & libc::O_ACCMODE);
        let mut options = OpenOptions::new();
        options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY);
        options.custom_flags(flags & !libc::O_ACCMODE | libc::O_NOCTTY);
        match options.open(&self.path) {
            Ok(file) => {
                let open = OpenFile::new(file, flags & libc::O_NONBLOCK == 0, HashMap::new());
                let mut state = lock(&self.state);
                if self.sharing == Sharing::Screen {
                    state.screen.opened(number, &open.file);
                }
                if state.background {
                    open.turn(self.sharing, true);
                }
                state.files.insert(number, Arc::new(open));
                drop(state);
                self.take_screen();
                0
            }
            Err(error) => shadow::answer(Err(error)),
        }
    }

    /// Starts the process for an address space, and listens to it.
    fn spawn(self: &Arc<Self>, space: u64) -> std::io::Result<Shadow> {
        let (ours, theirs) = sys::socket_pair()?;
        let child = Command::new("/proc/self/exe")
            .args(["--shadow", "--poll-files", &self.patience.as_micros().to_string()])
            .args(self.card.as_ref().map(|_| "--turns"))
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::from(self.function.try_clone()?))
            .spawn()?;
        let (live, socket) = (Arc::clone(self), ours.try_clone()?);
        std::thread::Builder::new().spawn(move || live.listen(space, &socket))?;
        Ok(Shadow { child: Some(child), path: self.path.clone(), hang: self.hang, socket: ours })
    }

    /// Answers what a shadow has done, until it ends.
    fn listen(&self, space: u64, socket: &UnixDatagram) {
        let mut bytes = [0; Told::SIZE];
        loop {
            match socket.recv_with_fd(&mut bytes[..]) {
                Err(error) if error.errno() == libc::EINTR => continue,
                Ok((Told::SIZE, made)) => match Told::decode(&bytes) {
                    Some(Told::Done { tag, result }) => self.finish(tag, result, made),
                    Some(Told::Closed { file }) => {
                        let mut state = lock(&self.state);
                        state.closing.remove(&(space, file));
                        let over = state.over();
                        drop(state);
                        over.into_iter().for_each(|place| self.answer(place, 0));
                        self.closed.notify_all();
                    }
                    None => break,
                },
                _ => break,
            }
        }
        let mut state = lock(&self.state);
        state.closing.retain(|(of, _)| *of != space);
        let over = state.over();
        for file in state.files.values() {
            lock(&file.passed).remove(&space);
        }
        let lost: Vec<u32> =
            state.under_way.iter().filter(|(_, one)| one.space == Some(space)).map(|(tag, _)| *tag).collect();
        let shadow = state.shadows.remove(&space);
        drop(state);
        drop(shadow);
        over.into_iter().for_each(|place| self.answer(place, 0));
        for tag in lost {
            self.finish(tag, -i64::from(libc::EIO), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hang::OnHang;

    #[test]
    fn a_file_that_was_made_comes_under_a_free_number() {
        let mut state = State::default();
        let file = || Some(File::open("/dev/null").unwrap());
        assert_eq!(state.take_in(7, Some(1), None), -i64::from(libc::EIO), "there is none");
        assert!(state.files.is_empty());
        assert_eq!(state.take_in(7, Some(1), file()), 0);
        assert_eq!(*lock(&state.files[&7].passed), HashMap::from([(1, true)]));
        assert_eq!(state.take_in(7, Some(2), file()), -i64::from(libc::EBADF));
        assert_eq!(*lock(&state.files[&7].passed), HashMap::from([(1, true)]));
    }

    #[test]
    fn a_number_is_free_when_no_shadow_has_its_file() {
        let mut state = State::default();
        let place = |head| Place { head, address: GuestAddress(0) };
        state.closing.extend([(1, 7), (2, 7), (1, 8)]);
        state.released.extend([(7, place(3)), (9, place(4))]);
        let heads = |over: Vec<Place>| over.iter().map(|place| place.head).collect::<Vec<_>>();
        assert_eq!(heads(state.over()), [4], "nobody had it");
        state.closing.remove(&(1, 7));
        assert!(state.over().is_empty(), "one has it yet");
        state.closing.remove(&(2, 7));
        assert_eq!(heads(state.over()), [3]);
        assert!(state.over().is_empty(), "it is told once");
    }

    #[test]
    fn what_is_asked_of_a_shadow_that_was_killed_fails_as_any_operation_of_the_dead() {
        let (ours, theirs) = sys::socket_pair().unwrap();
        let child = Command::new("true").spawn().unwrap();
        let hang = HangWatch { patience: Duration::from_secs(10), action: OnHang::Say };
        let shadow = Shadow { child: Some(child), path: PathBuf::new(), hang, socket: ours };
        let bytes = [0; Request::SIZE];
        assert!(shadow.ask(&bytes, &[]).is_ok());
        // Not closed: a child that another test has just started may have a copy of it yet.
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
        let file = File::open("/dev/null").unwrap();
        for files in [&[][..], &[file.as_raw_fd()]] {
            assert_eq!(shadow.ask(&bytes, files).unwrap_err().raw_os_error(), Some(libc::EIO));
        }
    }
}
