//! Who is in the foreground: what the person at a device does is meant for one guest at a time.
//!
//! The hypervisor says whose guest that is, and this module what it means for a file of a class. A guest in the background
//!
//! - of an input device is told of nothing: the driver's own filter of the file lets nothing pass. What it can ask for shows no key as pressed, and
//!   what would change the device for others is refused (EBUSY);
//! - of a sound card stands still: streams are paused, or stopped as if they had run empty where they cannot be, and what would move them on waits;
//! - of a graphics card is not master ([`screen`](super::screen)): what only the master may, the driver refuses.
//!
//! The foreground is passed on by both Ctrl keys of a shared keyboard, when they and all others are let go again.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 5.1, for input devices; the kernel's
//! include/uapi/linux/input.h and include/uapi/sound/asound.h.

use super::lock;
use super::screen::{self, Wish};
use sluice_backend::function::Function;
use sluice_backend::sys::{Call, Order, Plain};
use sluice_devfile::Operation;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

/// How guests share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All use it whenever they want.
    Free,
    /// An input device.
    Input,
    /// A stream of a sound card.
    Sound,
    /// The screen of a graphics card.
    Screen,
}

/// What an operation of a guest in the background comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// The same as in the foreground.
    Free,
    /// The answer is cleared, but for so many bytes at its beginning, and so many at its end.
    Cleared(u32, u32),
    /// EBUSY.
    Refused,
    /// It waits until the guest is in the foreground.
    Held,
    /// Nothing is ready.
    Nothing,
}

/// `struct input_mask`: of which events of a type a file tells.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Mask {
    kind: u32,
    bytes: u32,
    /// Address of the bits.
    bits: u64,
}

/// One bit for each key.
#[derive(Clone, Copy, Debug)]
struct Keys([u8; 96]);

impl Default for Keys {
    fn default() -> Self {
        Self([0; _])
    }
}

impl Keys {
    /// Those that are pressed.
    fn pressed(&self) -> BTreeSet<u16> {
        (0..8 * self.0.len())
            .filter(|key| self.0[key / 8] >> (key % 8) & 1 != 0)
            .map(|key| key as u16)
            .collect()
    }
}

// SAFETY: These are numbers. The address is one for the driver, which checks it and only reads there.
unsafe impl Plain for Mask {}
// SAFETY: As above.
unsafe impl Plain for Keys {}

const fn number(direction: u32, kind: u8, number: u32, size: usize) -> sluice_backend::sys::Request {
    ioctl_expr(direction, kind as u32, number, size as u32)
}

// SAFETY: The driver reads `struct input_mask`, and the bits that it names.
const SET_MASK: Call<Mask> = unsafe { Call::new(number(_IOC_WRITE, b'E', 0x93, size_of::<Mask>())) };
// SAFETY: The argument is a number.
const GRAB: Order = unsafe { Order::new(number(_IOC_WRITE, b'E', 0x90, 4)) };
// SAFETY: The driver writes up to so many bytes.
const GET_KEYS: Call<Keys> = unsafe { Call::new(number(_IOC_READ, b'E', 0x18, size_of::<Keys>())) };
// SAFETY: The argument is a number.
const PAUSE: Order = unsafe { Order::new(number(_IOC_WRITE, b'A', 0x45, 4)) };
// SAFETY: It has no argument.
const RUN_EMPTY: Order = unsafe { Order::new(number(_IOC_NONE, b'A', 0x48, 0)) };

/// Words of 64 keys.
const KEY_WORDS: usize = 12;

/// Has a file tell of these events of a type, and of no others; of type 0 it is types that are meant.
fn mask(file: &File, kind: u32, bits: &[u64]) -> io::Result<()> {
    SET_MASK.set(file, &Mask { kind, bytes: size_of_val(bits) as u32, bits: bits.as_ptr() as u64 })
}

impl Sharing {
    /// How a node is shared.
    ///
    /// # Parameters
    /// - `class`: of the device, as sysfs calls it.
    pub fn of(node: &Path, class: &str) -> Self {
        let name = node.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match class {
            "input" if name.starts_with("event") => Self::Input,
            "sound" if name.starts_with("pcm") => Self::Sound,
            "drm" if name.starts_with("card") => Self::Screen,
            _ => Self::Free,
        }
    }

    /// What is told to a shadow.
    pub const fn encode(self, background: bool) -> [u8; 2] {
        [self as u8, background as u8]
    }

    /// The same there.
    pub const fn decode(told: [u8; 2]) -> (Self, bool) {
        let sharing = match told[0] {
            1 => Self::Input,
            2 => Self::Sound,
            3 => Self::Screen,
            _ => Self::Free,
        };
        (sharing, told[1] != 0)
    }

    /// What becomes of an operation in the background.
    pub fn manner(self, operation: &Operation) -> Manner {
        match self {
            Self::Free | Self::Screen => Manner::Free,
            Self::Input => match *operation {
                Operation::Write { .. } => Manner::Refused,
                Operation::Ioctl { number, .. } => input(number),
                _ => Manner::Free,
            },
            Self::Sound => match *operation {
                Operation::Read { .. } | Operation::Write { .. } | Operation::Await { .. } => Manner::Held,
                Operation::Poll { .. } => Manner::Nothing,
                Operation::Ioctl { number, .. } => sound(number),
                _ => Manner::Free,
            },
        }
    }

    /// What an operation wishes that the daemon does.
    pub fn wish(self, operation: &Operation) -> Option<Wish> {
        if self == Self::Screen { Wish::of(operation) } else { None }
    }

    /// A file's guest goes to the background. Returns whether the file is to go on when it comes back.
    pub fn leave(self, file: &File) -> bool {
        match self {
            Self::Free => false,
            Self::Input => {
                // The one who has not grabbed it is told so.
                let _ = GRAB.give_number(file, 0);
                let _ = mask(file, 0, &[]);
                false
            }
            Self::Sound => {
                let paused = PAUSE.give_number(file, 1).is_ok();
                if !paused {
                    self.stop(file);
                }
                paused
            }
            Self::Screen => {
                screen::leave(file);
                false
            }
        }
    }

    /// An operation has met the change: nothing of it lasts.
    pub fn stop(self, file: &File) {
        match self {
            Self::Sound => {
                // One that does not run cannot run empty.
                let _ = RUN_EMPTY.give(file);
            }
            // The daemon has seen to it, and a shadow may not.
            Self::Screen => {}
            Self::Free | Self::Input => {
                self.leave(file);
            }
        }
    }

    /// A file's guest comes to the foreground.
    pub fn enter(self, file: &File, goes_on: bool) {
        match self {
            // One file has the screen, and which says the guest's device.
            Self::Free | Self::Screen => {}
            Self::Input => {
                let _ = mask(file, 0, &[u64::MAX]);
            }
            Self::Sound if goes_on => {
                let _ = PAUSE.give_number(file, 0);
            }
            Self::Sound => {}
        }
    }
}

/// Direction, type, number and size of an ioctl (include/uapi/asm-generic/ioctl.h).
const fn parts(number: u32) -> (u32, u8, u8, u32) {
    (number >> 30, (number >> 8) as u8, number as u8, number >> 16 & 0x3fff)
}

fn input(number: u32) -> Manner {
    match parts(number) {
        // Slots of a touch screen: behind their code. Keys, lights, sounds and switches. Axes: only where they are.
        (_IOC_READ, b'E', 0x0a, _) => Manner::Cleared(4, 0),
        (_IOC_READ, b'E', 0x18..=0x1b, _) => Manner::Cleared(0, 0),
        (_IOC_READ, b'E', 0x40..=0x7f, size) => Manner::Cleared(0, size.saturating_sub(4)),
        (_IOC_READ, b'E', ..) => Manner::Free,
        // Its clock, and its end: the file's own.
        (_, b'E', 0x91 | 0xa0, _) => Manner::Free,
        (_, b'E', ..) => Manner::Refused,
        _ => Manner::Free,
    }
}

fn sound(number: u32) -> Manner {
    match parts(number) {
        // Start, drain, pause, resume, transfers, link: what can have it run.
        (_, b'A', 0x42 | 0x44 | 0x45 | 0x47 | 0x50..=0x53 | 0x60, _) => Manner::Held,
        _ => Manner::Free,
    }
}

/// Bytes of `struct input_event`.
const EVENT: usize = 24;
const EV_SYN: u16 = 0;
const EV_KEY: u16 = 1;
const SYN_DROPPED: u16 = 3;
/// The key on either side.
const CTRL: [u16; 2] = [29, 97];

/// How often a keyboard is asked which keys are pressed: a guest that has grabbed it is told of all events, and nobody else.
const LOOK: Duration = Duration::from_millis(200);

/// What keys say of the foreground.
#[derive(Debug, Default)]
struct Chord {
    pressed: BTreeSet<u16>,
    /// Both Ctrl keys were pressed, and not all keys have been let go since.
    complete: bool,
}

impl Chord {
    /// The keys that are pressed now. Returns whether the foreground is to be passed on.
    fn look(&mut self, pressed: BTreeSet<u16>) -> bool {
        self.pressed = pressed;
        self.settle()
    }

    /// A key goes down or up. Returns the same.
    fn key(&mut self, key: u16, down: bool) -> bool {
        if down {
            self.pressed.insert(key);
        } else {
            self.pressed.remove(&key);
        }
        self.settle()
    }

    fn settle(&mut self) -> bool {
        self.complete |= CTRL.iter().all(|key| self.pressed.contains(key));
        self.pressed.is_empty() && std::mem::take(&mut self.complete)
    }
}

/// A guest's share of a keyboard.
pub struct KeyboardShare {
    keyboard: Arc<Keyboard>,
    background: Arc<AtomicBool>,
}

/// Who is at a keyboard: the back ends, and whether their guests are in the background.
type Guests = Mutex<Vec<(Function, Arc<AtomicBool>)>>;

/// A keyboard that guests share, as this domain sees it. It is watched once, so that its keys are heard once.
struct Keyboard {
    node: PathBuf,
    file: Arc<File>,
    guests: Arc<Guests>,
    end: EventFd,
    watcher: Option<JoinHandle<()>>,
}

/// Those that there are.
static KEYBOARDS: Mutex<Vec<Weak<Keyboard>>> = Mutex::new(Vec::new());

impl KeyboardShare {
    /// A share of the keyboard behind a node, which is watched for the keys that pass the foreground on.
    ///
    /// # Errors
    /// It cannot be opened or watched.
    pub fn take(node: &Path, function: Function) -> io::Result<Self> {
        let mut keyboards = lock(&KEYBOARDS);
        keyboards.retain(|keyboard| keyboard.strong_count() > 0);
        let keyboard = keyboards.iter().filter_map(Weak::upgrade).find(|keyboard| keyboard.node == node);
        let keyboard = match keyboard {
            Some(keyboard) => keyboard,
            None => {
                let keyboard = Arc::new(Keyboard::open(node)?);
                keyboards.push(Arc::downgrade(&keyboard));
                keyboard
            }
        };
        drop(keyboards);
        let background = Arc::new(AtomicBool::new(false));
        lock(&keyboard.guests).push((function, Arc::clone(&background)));
        Ok(Self { keyboard, background })
    }

    /// The guest goes to the background, or comes to the foreground. To who leaves all keys are let go: those that are pressed now, it is not told
    /// of any more.
    pub fn turn(&self, background: bool) {
        self.background.store(background, Ordering::Relaxed);
        if background {
            self.keyboard.let_go();
        }
    }
}

impl Drop for KeyboardShare {
    fn drop(&mut self) {
        lock(&self.keyboard.guests).retain(|(_, background)| !Arc::ptr_eq(background, &self.background));
    }
}

impl Keyboard {
    fn open(node: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(node)?;
        // The daemon is not woken by what everybody types.
        mask(&file, 0, &[1 << EV_KEY])?;
        let mut ctrl = [0; KEY_WORDS];
        CTRL.iter().for_each(|key| ctrl[usize::from(key / 64)] |= 1 << (key % 64));
        mask(&file, EV_KEY.into(), &ctrl)?;
        let (file, end) = (Arc::new(file), EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?);
        let epoll = Epoll::new()?;
        for (descriptor, token) in [(file.as_raw_fd(), 0), (end.as_raw_fd(), 1)] {
            epoll.ctl(ControlOperation::Add, descriptor, EpollEvent::new(EventSet::IN, token))?;
        }
        let guests = Arc::new(Guests::default());
        let (watched, places) = (Arc::clone(&file), Arc::clone(&guests));
        let watcher = std::thread::Builder::new().spawn(move || watch(&watched, &epoll, || pass(&places)))?;
        Ok(Self { node: node.to_owned(), file, guests, end, watcher: Some(watcher) })
    }

    /// Lets all keys go.
    fn let_go(&self) {
        let mut events = Vec::new();
        for key in GET_KEYS.get(&*self.file).unwrap_or_default().pressed() {
            events.extend(event(EV_KEY, key));
        }
        if !events.is_empty() {
            events.extend(event(EV_SYN, 0));
            let _ = (&*self.file).write_all(&events);
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        let _ = self.end.write(1);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Passes the foreground on, from the guest that is there.
fn pass(guests: &Guests) {
    let guests = lock(guests);
    if let Some((function, _)) = guests.iter().find(|(_, background)| !background.load(Ordering::Relaxed)) {
        let _ = function.pass_focus();
    }
}

/// Something is now 0.
fn event(kind: u16, code: u16) -> [u8; EVENT] {
    let mut event = [0; EVENT];
    event[16..18].copy_from_slice(&kind.to_le_bytes());
    event[18..20].copy_from_slice(&code.to_le_bytes());
    event
}

/// Calls `pass` each time that the foreground is to be passed on, until the second event comes, or the keyboard is gone.
fn watch(file: &File, epoll: &Epoll, pass: impl Fn()) {
    let mut chord = Chord::default();
    let mut ready = [EpollEvent::default(); 2];
    loop {
        let count = match epoll.wait(LOOK.as_millis() as i32, &mut ready) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if ready[..count].iter().any(|event| event.data() == 1) {
            return;
        }
        let (mut look, mut let_go) = (count == 0, false);
        if !look {
            let Ok(lost) = hear(file, |key, down| let_go |= chord.key(key, down)) else { return };
            look = lost;
        }
        if look || let_go {
            let Ok(keys) = GET_KEYS.get(file) else { return };
            // Of other keys nothing is heard.
            chord.complete |= let_go;
            if chord.look(keys.pressed()) {
                pass();
            }
        }
    }
}

/// Reads the events that there are, and calls `key` for each key that goes down or up. Returns whether some were lost.
fn hear(mut file: &File, mut key: impl FnMut(u16, bool)) -> io::Result<bool> {
    let mut buffer = [0; 64 * EVENT];
    let mut lost = false;
    loop {
        let length = match file.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lost),
            Err(error) => return Err(error),
        };
        for event in buffer[..length].chunks_exact(EVENT) {
            let half = |at: usize| u16::from_le_bytes([event[at], event[at + 1]]);
            match (half(16), half(18)) {
                (EV_KEY, code) => key(code, half(20) != 0),
                (EV_SYN, SYN_DROPPED) => lost = true,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_devfile::Position;

    fn ioctl(number: u32) -> Operation {
        Operation::Ioctl { number, argument: 0, narrow: false, answer: None }
    }

    fn write(bytes: u32) -> Operation {
        Operation::Write { address: 0, bytes, from: Position::HERE, narrow: false }
    }

    #[test]
    fn nodes_are_shared_by_class() {
        let of = |node: &str, class| Sharing::of(Path::new(node), class);
        assert_eq!(of("/dev/input/event3", "input"), Sharing::Input);
        assert_eq!(of("/dev/snd/pcmC0D0p", "sound"), Sharing::Sound);
        assert_eq!(of("/dev/snd/controlC0", "sound"), Sharing::Free);
        assert_eq!(of("/dev/video0", "video4linux"), Sharing::Free);
        assert_eq!(of("/dev/dri/card0", "drm"), Sharing::Screen);
        assert_eq!(of("/dev/dri/renderD128", "drm"), Sharing::Free);
        for sharing in [Sharing::Free, Sharing::Input, Sharing::Sound, Sharing::Screen] {
            for background in [false, true] {
                assert_eq!(Sharing::decode(sharing.encode(background)), (sharing, background));
            }
        }
    }

    #[test]
    fn in_the_background_nothing_is_learned_of_keys_and_nothing_changed() {
        let manner = |number| Sharing::Input.manner(&ioctl(number));
        assert_eq!(manner(0x8060_4518), Manner::Cleared(0, 0), "keys");
        assert_eq!(manner(0x8018_4540), Manner::Cleared(0, 20), "where an axis is, not how far it goes");
        assert_eq!(manner(0x8024_450a), Manner::Cleared(4, 0), "slots");
        assert_eq!(manner(0x8040_4506), Manner::Free, "a name");
        assert_eq!(manner(0x4004_45a0), Manner::Free, "a clock");
        for (number, what) in [
            (0x4004_4590, "grab"),
            (0x4010_4593, "mask"),
            (0x4008_4504, "a key's code"),
            (0x4018_45c0, "an axis"),
            (0x4030_4580, "an effect"),
        ] {
            assert_eq!(manner(number), Manner::Refused, "{what}");
        }
        assert_eq!(Sharing::Input.manner(&write(24)), Manner::Refused);
        assert_eq!(Sharing::Free.manner(&ioctl(0x4004_4590)), Manner::Free);
    }

    #[test]
    fn in_the_background_no_stream_runs() {
        let manner = |operation| Sharing::Sound.manner(&operation);
        for number in [0x4142, 0x4144, 0x4004_4145, 0x4147, 0x4018_4150, 0x8018_4151, 0x4004_4160] {
            assert_eq!(manner(ioctl(number)), Manner::Held, "{number:#x}");
        }
        assert_eq!(manner(ioctl(0x4140)), Manner::Free, "it may prepare");
        assert_eq!(manner(write(4)), Manner::Held);
        assert_eq!(manner(Operation::Poll { events: 4 }), Manner::Nothing);
    }

    #[test]
    fn both_ctrl_keys_pass_the_foreground_on_when_all_are_let_go() {
        let mut chord = Chord::default();
        let mut play =
            |keys: &[(u16, bool)]| keys.iter().filter(|(key, down)| chord.key(*key, *down)).count();
        assert_eq!(play(&[(29, true), (30, true), (30, false), (29, false)]), 0, "one of them");
        assert_eq!(play(&[(29, true), (97, true)]), 0, "not yet");
        assert_eq!(play(&[(29, false)]), 0);
        assert_eq!(play(&[(97, false)]), 1);
        assert_eq!(play(&[(97, true), (97, false)]), 0, "once");
        assert!(!chord.look(BTreeSet::from(CTRL)));
        assert!(chord.look(BTreeSet::new()), "though no event came");
    }

    #[test]
    fn pressed_keys_are_found() {
        let mut keys = Keys::default();
        (keys.0[3], keys.0[12]) = (1 << 5, 1 << 1);
        assert_eq!(keys.pressed(), BTreeSet::from(CTRL));
    }
}
