//! Who has the screen of a graphics card: of the guests that have its primary node, the one in the foreground.
//!
//! The driver knows one *master* of a card, the only file that may set modes and flip pages. Each guest has a master of its own by the same rules:
//! the file that it opened first, until that is closed or drops it; then the one that asks. The master of the guest in the foreground is the driver's.
//! While all guests are in the foreground, it is who came first. A shadow cannot make itself master: it has no rights, and did not open the file.
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 5.1; the kernel's drivers/gpu/drm/drm_auth.c.

use super::OpenFile;
use sluice_backend::sys::Order;
use sluice_devfile::Operation;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use vmm_sys_util::ioctl::{_IOC_NONE, ioctl_expr};

const SET_MASTER: u32 = ioctl_expr(_IOC_NONE, b'd' as u32, 0x1e, 0) as u32;
const DROP_MASTER: u32 = ioctl_expr(_IOC_NONE, b'd' as u32, 0x1f, 0) as u32;
// SAFETY: It has no argument.
const SET: Order = unsafe { Order::new(SET_MASTER as sluice_backend::sys::Request) };
// SAFETY: As above.
const DROP: Order = unsafe { Order::new(DROP_MASTER as sluice_backend::sys::Request) };

/// What a guest asks for that the daemon does: the driver lets no shadow do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To be master.
    Set,
    /// To be it no more.
    Drop,
}

impl Wish {
    /// What an operation wishes.
    pub fn of(operation: &Operation) -> Option<Self> {
        match *operation {
            Operation::Ioctl { number: SET_MASTER, .. } => Some(Self::Set),
            Operation::Ioctl { number: DROP_MASTER, .. } => Some(Self::Drop),
            _ => None,
        }
    }
}

/// A file is the driver's master no more. Nothing happens to one that is not.
pub fn leave(file: &File) {
    let _ = DROP.give(file);
}

/// Which file of a guest's is its master, by its number.
#[derive(Debug, Default)]
pub struct Screen {
    master: Option<u32>,
}

impl Screen {
    /// A file was opened. The driver has made it its master if there was none.
    pub fn opened(&mut self, number: u32, file: &File) {
        if *self.master.get_or_insert(number) != number {
            leave(file);
        }
    }

    /// A file is closed.
    pub fn closed(&mut self, number: u32) {
        self.master.take_if(|master| *master == number);
    }

    /// The master becomes the driver's, if no other guest's is.
    pub fn enter(&self, files: &HashMap<u32, Arc<OpenFile>>) {
        if let Some(open) = self.master.and_then(|master| files.get(&master)) {
            let _ = SET.give(&open.file);
        }
    }

    /// A file of the guest's asks.
    pub fn grant(&mut self, wish: Wish, number: u32, file: &File, background: bool) -> io::Result<()> {
        let is_master = self.master == Some(number);
        match wish {
            Wish::Set if self.master.is_some() && !is_master => {
                Err(io::Error::from_raw_os_error(libc::EBUSY))
            }
            Wish::Set => {
                if !background {
                    SET.give(file)?;
                }
                self.master = Some(number);
                Ok(())
            }
            Wish::Drop if !is_master => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            Wish::Drop => {
                self.master = None;
                leave(file);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(wish: Wish, master: Option<u32>, asks: u32) -> (Option<i32>, Option<u32>) {
        let mut screen = Screen { master };
        let null = File::open("/dev/null").unwrap();
        let error = screen.grant(wish, asks, &null, true).err();
        (error.and_then(|error| error.raw_os_error()), screen.master)
    }

    #[test]
    fn a_guest_has_one_master_until_that_drops_it() {
        assert_eq!(number(Wish::Set, None, 3), (None, Some(3)));
        assert_eq!(number(Wish::Set, Some(3), 3), (None, Some(3)));
        assert_eq!(number(Wish::Set, Some(3), 4), (Some(libc::EBUSY), Some(3)));
        assert_eq!(number(Wish::Drop, Some(3), 4), (Some(libc::EINVAL), Some(3)));
        assert_eq!(number(Wish::Drop, Some(3), 3), (None, None));
    }

    #[test]
    fn the_first_file_is_master_until_it_is_closed() {
        let null = File::open("/dev/null").unwrap();
        let mut screen = Screen::default();
        screen.opened(3, &null);
        screen.opened(4, &null);
        screen.closed(4);
        assert_eq!(screen.master, Some(3));
        screen.closed(3);
        assert_eq!(screen.master, None);
    }

    #[test]
    fn only_two_ioctls_are_the_daemons() {
        let ioctl = |number| Operation::Ioctl { number, argument: 0, narrow: false, answer: None };
        assert_eq!(Wish::of(&ioctl(0x641e)), Some(Wish::Set));
        assert_eq!(Wish::of(&ioctl(0x641f)), Some(Wish::Drop));
        assert_eq!(Wish::of(&ioctl(0x6411)), None);
    }
}
