//! A shadow: the process that makes system calls for one address space of a guest.
//!
//! What an operation may reach is mapped here at the guest's own addresses while it is under way, so that structures with pointers in them mean
//! here what they mean there; the driver's access to anything else faults, as in a program that passed a bad pointer. The hypervisor copies
//! what was declared, before and after. A guest can have a driver write to any address here: so a shadow has no rights, and nothing open but the
//! file of the function. It gets the file of each operation with it.
//!
//! Deviation: addresses that the shadow has its own memory at cannot be mapped. Both lay their memory out at random, and such an operation fails with ENOMEM.

use super::lock;
use anyhow::{Context, Result};
use sluice_backend::function::{Copy, Function};
use sluice_backend::sys::{self, Mapping, PAGE, ShadowPage};
use sluice_devfile::{Map, Operation, Range, Request};
use sluice_hypercall::devfile::{DEVFILE_IN, DEVFILE_MAX_COPY, DEVFILE_MAX_OPERATIONS, DEVFILE_OUT};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Threads: one for each operation, and some that listen.
const MOST_THREADS: usize = DEVFILE_MAX_OPERATIONS as usize + 8;
const STACK: usize = 128 * 1024;

/// How often a copy is tried for which the guest's process has no page just now, and how long after each other.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_millis(1);

/// How often an operation is interrupted that does not end: it may not have been in its system call yet.
const INTERRUPTIONS: u32 = 500;

/// What became of an operation, for who started the shadow.
pub struct Answer {
    /// Tag of the operation.
    pub tag: u32,
    /// As the guest gets it.
    pub result: i64,
}

impl Answer {
    /// Bytes of one.
    pub const SIZE: usize = 12;

    fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.tag.to_le_bytes());
        bytes[4..].copy_from_slice(&self.result.to_le_bytes());
        bytes
    }

    /// The answer in these bytes.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Self {
        let [a, b, c, d, result @ ..] = *bytes;
        Self { tag: u32::from_le_bytes([a, b, c, d]), result: i64::from_le_bytes(result) }
    }
}

struct Shadow {
    socket: UnixDatagram,
    function: Function,
    /// Threads in operations, by tag.
    running: Mutex<HashMap<u32, libc::pid_t>>,
    /// Pages that operations reach, and how many.
    pages: Mutex<HashMap<u64, (ShadowPage, usize)>>,
    /// What is mapped of device files, by the first page in the memory of maps.
    mappings: Mutex<HashMap<u32, Mapping>>,
    listening: AtomicUsize,
    threads: AtomicUsize,
}

/// Serves as a shadow: by the socket that is standard input, with the function's file that is standard output.
pub fn run() -> Result<()> {
    let own =
        |stream: io::Result<std::os::fd::OwnedFd>| stream.context("a shadow is started by the daemon only");
    let socket = UnixDatagram::from(own(io::stdin().as_fd().try_clone_to_owned())?);
    let function = Function::shared(File::from(own(io::stdout().as_fd().try_clone_to_owned())?));
    sys::heed_interruptions().context("could not heed interruptions")?;
    sys::drop_privileges().context("could not give up rights")?;
    let shadow = Arc::new(Shadow {
        socket,
        function,
        running: Mutex::default(),
        pages: Mutex::default(),
        mappings: Mutex::default(),
        listening: AtomicUsize::new(0),
        threads: AtomicUsize::new(1),
    });
    shadow.listen();
    Ok(())
}

impl Shadow {
    /// Carries out what comes, until nobody asks any more.
    fn listen(self: &Arc<Self>) {
        let mut bytes = [0; Request::SIZE];
        loop {
            self.listening.fetch_add(1, Ordering::SeqCst);
            let received = loop {
                match self.socket.recv_with_fd(&mut bytes[..]) {
                    Err(error) if error.errno() == libc::EINTR => {}
                    received => break received,
                }
            };
            if self.listening.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.add_thread();
            }
            match received {
                Ok((Request::SIZE, file)) => {
                    if let Some(request) = Request::decode(&bytes) {
                        self.carry_out(&request, file.as_ref());
                    }
                }
                // Its end is the end of the process.
                _ => std::process::exit(0),
            }
        }
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

    fn carry_out(&self, request: &Request, file: Option<&File>) {
        if request.operation == Operation::Cancel {
            return self.interrupt(request.tag);
        }
        lock(&self.running).insert(request.tag, sys::thread());
        let result = match file {
            None => -i64::from(libc::EINVAL),
            Some(file) => self
                .operate(request, file)
                .unwrap_or_else(|error| -i64::from(error.raw_os_error().unwrap_or(libc::EIO))),
        };
        lock(&self.running).remove(&request.tag);
        let _ = self.socket.send(&Answer { tag: request.tag, result }.encode());
    }

    /// Interrupts an operation as a signal does.
    fn interrupt(&self, tag: u32) {
        for _ in 0..INTERRUPTIONS {
            match lock(&self.running).get(&tag) {
                // The lock is held, so that it is still in this operation.
                Some(thread) => sys::interrupt(*thread),
                None => return,
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn operate(&self, request: &Request, file: &File) -> io::Result<i64> {
        let _mapped = Mapped::new(self, &request.ranges)?;
        let inside = |address: u64, bytes: u32| {
            let covers = |range: &&Range| {
                range.address <= address
                    && address.saturating_add(bytes.into()) <= range.address + u64::from(range.bytes)
            };
            let covered = bytes == 0 || request.ranges.iter().any(|range| covers(&range));
            if covered { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
        };
        for range in request.ranges.iter().filter(|range| range.input) {
            self.copy(request.tag, range.address, range.bytes, DEVFILE_IN)?;
        }
        match request.operation {
            Operation::Read { address, bytes, .. } => {
                inside(address, bytes)?;
                // SAFETY: The bytes are in a range, and all ranges are mapped.
                let result = unsafe { sys::read_to(file, address, bytes) };
                self.copy(request.tag, address, u32::try_from(result).unwrap_or(0), DEVFILE_OUT)?;
                Ok(result)
            }
            Operation::Write { address, bytes, .. } => {
                inside(address, bytes)?;
                // SAFETY: As above.
                Ok(unsafe { sys::write_from(file, address, bytes) })
            }
            Operation::Ioctl { number, argument } => {
                // SAFETY: This is a shadow.
                let result = unsafe { sys::ioctl_for_guest(file, number, argument) };
                for range in request.ranges.iter().filter(|range| range.output) {
                    self.copy(request.tag, range.address, range.bytes, DEVFILE_OUT)?;
                }
                Ok(result)
            }
            Operation::Poll { events } => Ok(sys::poll(file, events, false)),
            Operation::Await { events } => Ok(sys::poll(file, events, true)),
            Operation::Map(map) => self.map(file, &map).map(|()| 0),
            Operation::Unmap { first } => self.unmap(first).map(|()| 0),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
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
        let mut done = 0;
        while done < bytes {
            let at = address + u64::from(done);
            let part = (bytes - done).min(DEVFILE_MAX_COPY);
            let copy = Copy { address: at, local: at, tag, bytes: part, way, reserved: 0 };
            let mut tries = 0;
            // SAFETY: The range is mapped in pages of the guest's.
            while let Err(error) = unsafe { self.function.copy(&copy) } {
                tries += 1;
                match error.raw_os_error() {
                    Some(libc::EFAULT) if tries < TRIES => std::thread::sleep(PAUSE),
                    // What is not declared is no memory of the caller's.
                    Some(libc::EPERM) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                    _ => return Err(error),
                }
            }
            done += part;
        }
        Ok(())
    }
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
