//! Input devices, by the interfaces of include/uapi/linux/input.h and uinput.h.

use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{self, Call, Order, Plain, ShadowPage, SignalWait};
use sluice_devfile::Position;
use sluice_processes::mark;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

/// Bytes of `struct input_event`.
const EVENT: usize = 24;
const EV_SYN: u16 = 0;
const EV_KEY: u16 = 1;
/// Keys from `KEY_A` on are pressed in turn.
const FIRST: u32 = 30;
const KEYS: u32 = 8;
/// Control, left and right.
const CTRL: [u16; 2] = [29, 97];
const NAME: &[u8] = b"sluice keys";

#[derive(Clone, Copy, Debug)]
struct Text([u8; 64]);

impl Default for Text {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// `struct uinput_setup`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Setup {
    id: [u16; 4],
    name: [u8; 80],
    effects: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self { id: [3, 0x534c, 1, 1], name: [0; 80], effects: 0 }
    }
}

/// One bit for each key.
#[derive(Clone, Copy, Debug)]
struct Pressed([u8; 96]);

impl Default for Pressed {
    fn default() -> Self {
        Self([0; 96])
    }
}

// SAFETY: It is numbers.
unsafe impl Plain for Text {}
// SAFETY: It is numbers.
unsafe impl Plain for Pressed {}
// SAFETY: It is numbers.
unsafe impl Plain for Setup {}

const fn number(direction: u32, kind: u8, number: u32, size: usize) -> libc::c_ulong {
    ioctl_expr(direction, kind as u32, number, size as u32) as libc::c_ulong
}

// SAFETY: The driver writes up to 64 bytes.
const GET_NAME: Call<Text> = unsafe { Call::new(number(_IOC_READ, b'E', 6, 64)) };
// SAFETY: The driver writes up to 8 bytes.
const GET_KINDS: Call<u64> = unsafe { Call::new(number(_IOC_READ, b'E', 0x20, 8)) };
// SAFETY: The driver writes up to 96 bytes.
const GET_PRESSED: Call<Pressed> = unsafe { Call::new(number(_IOC_READ, b'E', 0x18, 96)) };
// SAFETY: The argument is a number.
const GRAB: Order = unsafe { Order::new(number(_IOC_WRITE, b'E', 0x90, 4)) };
// SAFETY: The argument is a number.
const SET_KIND: Order = unsafe { Order::new(number(_IOC_WRITE, b'U', 100, 4)) };
// SAFETY: The argument is a number.
const SET_KEY: Order = unsafe { Order::new(number(_IOC_WRITE, b'U', 101, 4)) };
// SAFETY: The driver reads `struct uinput_setup`.
const SETUP: Call<Setup> = unsafe { Call::new(number(_IOC_WRITE, b'U', 3, size_of::<Setup>())) };
// SAFETY: It has no argument.
const CREATE: Order = unsafe { Order::new(number(_IOC_NONE, b'U', 1, 0)) };

/// An address that programs of 32 bits have, too.
const LOW: u64 = 0x1000_0000;

/// What the nth event of a key is.
fn expected(nth: u32) -> (u16, u32) {
    ((FIRST + nth / 2 % KEYS) as u16, 1 - nth % 2)
}

/// Reads events, and checks that none is missing, double or out of order.
///
/// # Parameters
/// - `signals`: it waits for SIGIO, and not in poll.
/// - `marked`: each event is marked, once it is read.
/// - `narrow`: it reads as a program of 32 bits, for which events have other times.
pub fn events(path: &Path, count: u32, signals: bool, marked: bool, narrow: bool) -> Result<()> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file =
        file.as_mut().map_err(|error| anyhow::anyhow!("could not open {}: {error}", path.display()))?;
    let name = GET_NAME.get(file).context("EVIOCGNAME failed")?;
    ensure!(name.0.starts_with(NAME), "the device is another one");
    let kinds = GET_KINDS.get(file).context("EVIOCGBIT failed")?;
    ensure!(kinds & 0b11 == 0b11, "the device has no keys");
    GRAB.give_number(file, 1).context("EVIOCGRAB failed")?;
    GRAB.give_number(file, 0).context("EVIOCGRAB failed")?;
    let signals = signals.then(|| SignalWait::new(file)).transpose().context("could not ask for signals")?;
    let narrow = narrow.then(|| ShadowPage::map(LOW)).transpose().context("could not map a low page")?;
    result("events=ready");
    let (mut seen, mut wrong, mut waits) = (0, 0, 0u32);
    let mut buffer = [0; 16 * EVENT];
    while seen < count {
        let read = match &narrow {
            Some(page) => read_narrow(file, page, &mut buffer),
            None => file.read(&mut buffer),
        };
        let length = match read {
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                waits += 1;
                if let Some(signals) = &signals {
                    ensure!(signals.next(60), "no signal came");
                    continue;
                }
                let ready = sys::poll(file, libc::POLLIN as u16, true);
                ensure!(ready == i64::from(libc::POLLIN), "poll answered {ready}");
                continue;
            }
            Err(error) => return Err(error).context("could not read events"),
        };
        if marked {
            mark();
        }
        for event in buffer[..length].chunks_exact(EVENT) {
            let half = |at: usize| u16::from_le_bytes([event[at], event[at + 1]]);
            if half(16) == EV_KEY {
                let value = u32::from_le_bytes([event[20], event[21], event[22], event[23]]);
                wrong += u32::from((half(18), value) != expected(seen));
                seen += 1;
            }
        }
    }
    result(&format!("events_seen={seen}"));
    result(&format!("events_wrong={wrong}"));
    result(&format!("events_waited={}", if waits > 0 { "yes" } else { "no" }));
    Ok(())
}

/// Reads events as a program of 32 bits, and has them as they are for others, but for their times.
fn read_narrow(file: &File, page: &ShadowPage, buffer: &mut [u8; 16 * EVENT]) -> std::io::Result<usize> {
    /// Bytes of one, and of its times.
    const NARROW: usize = 16;
    const TIMES: usize = 8;
    // SAFETY: The bytes are on the page, to which nothing in Rust refers.
    let read = unsafe { sys::read_to(file, LOW, 16 * NARROW as u32, Position::HERE, true) };
    if read < 0 {
        return Err(std::io::Error::from_raw_os_error(-read as i32));
    }
    let events = read as usize / NARROW;
    for (event, place) in buffer.chunks_exact_mut(EVENT).take(events).enumerate() {
        let rest = [0, 4].map(|at| page.word(NARROW * event + TIMES + at).unwrap_or_default().to_le_bytes());
        place[16..].copy_from_slice(rest.as_flattened());
    }
    Ok(events * EVENT)
}

/// What a guest learns of an input device that others have, too, and what it can do to it.
pub struct Shared {
    file: File,
    heard: Arc<AtomicU32>,
}

impl Shared {
    /// Opens the device, and listens.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.with_context(|| format!("could not open {}", path.display()))?;
        let heard = Arc::new(AtomicU32::new(0));
        let (mut events, count) = (file.try_clone()?, Arc::clone(&heard));
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * EVENT];
            while let Ok(length) = events.read(&mut buffer) {
                let keys = buffer[..length].chunks_exact(EVENT).filter(|event| event[16] == EV_KEY as u8);
                count.fetch_add(keys.count() as u32, Ordering::Relaxed);
            }
        });
        Ok(Self { file, heard })
    }

    /// Presses and lets go a key as fast as it can, until that is refused.
    pub fn press_on(&mut self) -> Result<()> {
        /// Times of one write.
        const TIMES: usize = 32;
        let (down, up) = (event_of(EV_KEY, FIRST as u16, 1), event_of(EV_KEY, FIRST as u16, 0));
        let end = event_of(EV_SYN, 0, 0);
        let events = [down, end, up, end].concat().repeat(TIMES);
        loop {
            match self.file.write(&events) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(()),
                Err(error) => return Err(error).context("could not press a key"),
            }
        }
    }

    /// Tells what was heard since it told last, how many keys are pressed, and whether it could grab the device or press a key.
    pub fn tell(&mut self, about: &str) -> Result<()> {
        result(&format!("heard_{about}={}", self.heard.swap(0, Ordering::Relaxed)));
        let pressed = GET_PRESSED.get(&self.file).context("EVIOCGKEY failed")?;
        result(&format!("pressed_{about}={}", pressed.0.iter().map(|byte| byte.count_ones()).sum::<u32>()));
        let grabbed = GRAB.give_number(&self.file, 1).and_then(|()| GRAB.give_number(&self.file, 0));
        result(&format!("grabbed_{about}={}", outcome(grabbed)));
        // Nothing follows of it: the key is not pressed.
        result(&format!("wrote_{about}={}", outcome(event(&mut self.file, EV_KEY, FIRST as u16, 0))));
        Ok(())
    }
}

fn outcome(result: std::io::Result<()>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.raw_os_error().unwrap_or(0).to_string(),
    }
}

/// Makes a device and presses its keys for each line that comes: both Ctrl keys for "ctrl", one key that stays down for "hold", or lets it go for "let-go".
///
/// # Parameters
/// - `pace`: time from one event to the next.
/// - `marked`: each is marked, before the device tells of it.
pub fn keys(count: u32, pace: Duration, marked: bool) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open("/dev/uinput").context("could not open uinput")?;
    SET_KIND.give_number(&file, EV_KEY.into()).context("UI_SET_EVBIT failed")?;
    for key in (FIRST..FIRST + KEYS).chain(CTRL.map(u32::from)) {
        SET_KEY.give_number(&file, key.into()).context("UI_SET_KEYBIT failed")?;
    }
    let mut setup = Setup::default();
    setup.name[..NAME.len()].copy_from_slice(NAME);
    SETUP.set(&file, &setup).context("UI_DEV_SETUP failed")?;
    CREATE.give(&file).context("UI_DEV_CREATE failed")?;
    result("keys=ready");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).context("no line came")? > 0 {
        let typed = std::mem::take(&mut line);
        let (first, [left, right]) = (FIRST as u16, CTRL);
        let few: &[(u16, u32)] = match typed.trim() {
            "ctrl" => &[(left, 1), (right, 1), (left, 0), (right, 0)],
            "hold" => &[(first, 1)],
            "let-go" => &[(first, 0)],
            _ => &[],
        };
        for (key, value) in few {
            press(&mut file, *key, *value)?;
        }
        if !few.is_empty() {
            result(&format!("keys_pressed={}", typed.trim()));
            continue;
        }
        for nth in 0..count {
            let (key, value) = expected(nth);
            event(&mut file, EV_KEY, key, value)?;
            if marked {
                mark();
            }
            event(&mut file, EV_SYN, 0, 0)?;
            std::thread::sleep(pace);
        }
        result(&format!("keys_pressed={count}"));
    }
    Ok(())
}

fn press(file: &mut File, key: u16, value: u32) -> Result<()> {
    event(file, EV_KEY, key, value).and_then(|()| event(file, EV_SYN, 0, 0)).context("could not press a key")
}

fn event(file: &mut File, kind: u16, code: u16, value: u32) -> std::io::Result<()> {
    file.write_all(&event_of(kind, code, value))
}

fn event_of(kind: u16, code: u16, value: u32) -> [u8; EVENT] {
    let mut bytes = [0; EVENT];
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    bytes[18..20].copy_from_slice(&code.to_le_bytes());
    bytes[20..].copy_from_slice(&value.to_le_bytes());
    bytes
}
