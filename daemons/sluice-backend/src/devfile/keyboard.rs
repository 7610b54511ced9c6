//! A keyboard that guests share: whose its keys are, what passes the foreground on, and what guests press on it.
//!
//! Who leaves the foreground leaves no key held down, and who comes hears nothing of one that was. What a guest writes this daemon presses for it, while
//! nobody comes or leaves: the files of guests and their shadows can only be read, so that no write of theirs is under way when another guest comes.
//!
//! Source: the kernel's drivers/input/evdev.c and include/uapi/linux/input.h.

use super::focus::{mask, number};
use super::lock;
use sluice_backend::function::Function;
use sluice_backend::sys::{Call, Plain};
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
use vmm_sys_util::ioctl::_IOC_READ;

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

// SAFETY: These are bits.
unsafe impl Plain for Keys {}

// SAFETY: The driver writes up to so many bytes.
const GET_KEYS: Call<Keys> = unsafe { Call::new(number(_IOC_READ, b'E', 0x18, size_of::<Keys>())) };

/// Words of 64 keys.
const KEY_WORDS: usize = 12;

/// Bytes of `struct input_event`.
const EVENT: usize = 24;
/// Of those, when: nothing, in one that is written.
const WHEN: usize = 16;
/// When, as a program of 32 bits has it.
const WHEN_NARROW: usize = 8;
/// Most bytes that are written at once.
pub const MOST_BYTES: usize = 256 * EVENT;
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
    /// Who holds it comes, leaves, or presses keys.
    turn: Mutex<()>,
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

    /// The guest goes to the background, or comes to the foreground. All keys are let go: who leaves is told so, and who comes is not.
    pub fn turn(&self, background: bool) {
        let _turn = lock(&self.keyboard.turn);
        self.background.store(background, Ordering::Relaxed);
        self.keyboard.let_go();
    }

    /// Writes events for the guest. Returns how many bytes of `written` those are.
    ///
    /// # Parameters
    /// - `narrow`: they are a program's of 32 bits.
    /// - `is_behind`: whether the guest is in the background. Who comes is told so after who leaves: as long as this one has not left, nobody came.
    ///
    /// # Errors
    /// EBUSY: it is in the background. EINVAL: it is no event. What the driver says.
    pub fn press(
        &self,
        written: &[u8],
        narrow: bool,
        is_behind: impl Fn() -> io::Result<bool>,
    ) -> io::Result<usize> {
        let when = if narrow { WHEN_NARROW } else { WHEN };
        let size = when + EVENT - WHEN;
        let mut events = Vec::with_capacity(written.len() / size * EVENT);
        for event in written.chunks_exact(size) {
            events.extend([0; WHEN]);
            events.extend(&event[when..]);
        }
        if events.is_empty() && !written.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let _turn = lock(&self.keyboard.turn);
        if is_behind()? {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        Ok((&*self.keyboard.file).write(&events)? / EVENT * size)
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
        Ok(Self { node: node.to_owned(), file, guests, turn: Mutex::default(), end, watcher: Some(watcher) })
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
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

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

    fn share(file: File) -> KeyboardShare {
        let keyboard = Keyboard {
            node: PathBuf::new(),
            file: Arc::new(file),
            guests: Arc::default(),
            turn: Mutex::default(),
            end: EventFd::new(EFD_NONBLOCK).unwrap(),
            watcher: None,
        };
        KeyboardShare { keyboard: Arc::new(keyboard), background: Arc::default() }
    }

    #[test]
    fn who_is_in_the_foreground_presses_keys_and_nobody_comes_meanwhile() {
        let (mut hears, file) = UnixStream::pair().unwrap();
        let share = share(File::from(OwnedFd::from(file)));
        let pressed = [[9; WHEN].as_slice(), &[1, 0, 30, 0, 1, 0, 0, 0]].concat();
        let is_behind = |behind| {
            assert!(share.keyboard.turn.try_lock().is_err(), "who comes waits");
            Ok(behind)
        };
        assert_eq!(share.press(&pressed, false, || is_behind(false)).unwrap(), EVENT);
        let narrow = [&pressed[..WHEN_NARROW], &pressed[WHEN..], &[7; 3]].concat();
        assert_eq!(
            share.press(&narrow, true, || is_behind(false)).unwrap(),
            16,
            "what is no whole event is left"
        );
        let number = |result: io::Result<usize>| result.unwrap_err().raw_os_error();
        assert_eq!(number(share.press(&pressed, false, || is_behind(true))), Some(libc::EBUSY));
        assert_eq!(number(share.press(&pressed[1..], false, || is_behind(false))), Some(libc::EINVAL));
        let mut event = [0; EVENT];
        event[WHEN..].copy_from_slice(&pressed[WHEN..]);
        let mut heard = [0; 2 * EVENT];
        hears.read_exact(&mut heard).unwrap();
        assert_eq!(heard.as_chunks().0, [event; 2]);
        drop(share);
        assert_eq!(hears.read(&mut heard).unwrap(), 0, "and nothing else");
    }

    #[test]
    fn pressed_keys_are_found() {
        let mut keys = Keys::default();
        (keys.0[3], keys.0[12]) = (1 << 5, 1 << 1);
        assert_eq!(keys.pressed(), BTreeSet::from(CTRL));
    }
}
