//! Who is in the foreground: what the person at a device does is meant for one guest at a time.
//!
//! The hypervisor says whose guest that is, and this module what it means for a file of a class. A guest in the background
//!
//! - of an input device is told of nothing: the driver's own filter of the file lets nothing pass. What it can ask for shows no key as pressed, and
//!   what would change the device for others is refused (EBUSY);
//! - of a sound card stands still: streams are paused, or stopped as if they had run empty where they cannot be, and what would move them on waits;
//! - of a graphics card is not master ([`screen`](super::screen)): what only the master may, the driver refuses.
//!
//! What a guest writes to an input device is for the daemon to do ([`keyboard`](super::keyboard)).
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 5.1, for input devices; the kernel's
//! include/uapi/linux/input.h and include/uapi/sound/asound.h.

use super::screen::{self, Wish};
use sluice_backend::sys::{Call, Order, Plain};
use sluice_devfile::Operation;
use std::fs::File;
use std::io;
use std::path::Path;
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

// SAFETY: These are numbers. The address is one for the driver, which checks it and only reads there.
unsafe impl Plain for Mask {}

pub const fn number(direction: u32, kind: u8, number: u32, size: usize) -> sluice_backend::sys::Request {
    ioctl_expr(direction, kind as u32, number, size as u32)
}

// SAFETY: The driver reads `struct input_mask`, and the bits that it names.
const SET_MASK: Call<Mask> = unsafe { Call::new(number(_IOC_WRITE, b'E', 0x93, size_of::<Mask>())) };
// SAFETY: The argument is a number.
const GRAB: Order = unsafe { Order::new(number(_IOC_WRITE, b'E', 0x90, 4)) };
// SAFETY: The argument is a number.
const PAUSE: Order = unsafe { Order::new(number(_IOC_WRITE, b'A', 0x45, 4)) };
// SAFETY: It has no argument.
const RUN_EMPTY: Order = unsafe { Order::new(number(_IOC_NONE, b'A', 0x48, 0)) };

/// Has a file tell of these events of a type, and of no others; of type 0 it is types that are meant.
pub fn mask(file: &File, kind: u32, bits: &[u64]) -> io::Result<()> {
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

    /// What an operation wishes that the daemon does at once.
    pub fn wish(self, operation: &Operation) -> Option<Wish> {
        if self == Self::Screen { Wish::of(operation) } else { None }
    }

    /// Whether an operation is for the daemon, and no shadow makes it.
    pub fn is_for_daemon(self, operation: &Operation) -> bool {
        self.wish(operation).is_some() || self.presses(operation)
    }

    /// Whether an operation presses keys.
    pub fn presses(self, operation: &Operation) -> bool {
        self == Self::Input && matches!(operation, Operation::Write { .. })
    }

    /// How the daemon opens a file that a guest opens for this (O_ACCMODE).
    pub const fn access(self, wanted: i32) -> i32 {
        if matches!(self, Self::Input) { libc::O_RDONLY } else { wanted }
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
        assert!(Sharing::Input.is_for_daemon(&write(24)), "pressing a key");
        assert_eq!(Sharing::Input.access(libc::O_RDWR), libc::O_RDONLY, "which no shadow can do");
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
}
