//! A device file of the module `sluice-backend`: the registers and the window of a back-end function.
//!
//! Source: guest/linux/sluice-backend/sluice_backend.h, whose layouts are repeated here.

use crate::sys::{Call, LanePage, Mapping, Order, Plain};
use anyhow::{Context, Result};
use sluice_hypercall::backend;
use sluice_hypercall::devfile::{DEVFILE_IN, DEVFILE_MAX_COPY};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

/// The guest's memory as far as it issued it, by I/O address; what is not issued is memory without a meaning.
pub type Window = Arc<GuestMemoryMmap>;

/// A part of the window in which the guest issued memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Range {
    /// I/O address.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A queue as the guest set it up; nothing of it has been checked.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QueueSetup {
    /// Entries.
    pub entries: u32,
    /// 1 if the guest uses it.
    pub enabled: u32,
    /// I/O address of the descriptors.
    pub descriptors: u64,
    /// I/O address of the available ring.
    pub driver: u64,
    /// I/O address of the used ring.
    pub device: u64,
}

/// The registers; [`sluice_hypercall::backend`] says what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Info {
    /// Virtio device type.
    pub kind: u32,
    /// The guest's device status.
    pub status: u32,
    /// `STATE_` bits.
    pub state: u32,
    /// Slot of the function on its bus.
    pub slot: u32,
    /// What is offered.
    pub device_features: u64,
    /// What the guest accepted.
    pub driver_features: u64,
    /// Bytes of the window.
    pub window: u64,
    /// Queues that are offered.
    pub queue_count: u32,
    /// Most entries of one.
    pub queue_size: u32,
    /// Bytes of the configuration.
    pub config_len: u32,
    /// Ranges in which memory is issued.
    pub range_count: u32,
    /// "guest.device", ended by zeros.
    pub name: [u8; backend::NAME_SIZE as usize],
    /// What the configuration says is behind it, ended by zeros.
    pub source: [u8; backend::SOURCE_SIZE as usize],
    /// The configuration as the guest sees it.
    pub config: [u8; backend::CONFIG_SIZE as usize],
    /// Where memory is issued.
    pub ranges: [Range; backend::MAX_RANGES as usize],
    /// Queues as the guest set them up.
    pub queues: [QueueSetup; backend::MAX_QUEUES as usize],
}

const _: () = assert!(size_of::<Info>() == 56 + 64 + 128 + 256 + 16 * 16 + 17 * 32);

impl Default for Info {
    fn default() -> Self {
        Self {
            kind: 0,
            status: 0,
            state: 0,
            slot: 0,
            device_features: 0,
            driver_features: 0,
            window: 0,
            queue_count: 0,
            queue_size: 0,
            config_len: 0,
            range_count: 0,
            name: [0; _],
            source: [0; _],
            config: [0; _],
            ranges: Default::default(),
            queues: Default::default(),
        }
    }
}

/// The driver of the guest uses its device (Virtio 1.2, 2.1).
const DRIVER_OK: u32 = 4;

impl Info {
    /// What is behind the device, if the configuration says so in text.
    pub fn source(&self) -> Option<&str> {
        let end = self.source.iter().position(|byte| *byte == 0).unwrap_or(self.source.len());
        std::str::from_utf8(&self.source[..end]).ok().filter(|text| !text.is_empty())
    }

    /// The name of the device.
    pub fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        &self.name[..end]
    }

    /// The guest waits until nothing of its queues is touched any more.
    pub fn is_resetting(&self) -> bool {
        self.state & backend::STATE_RESETTING != 0
    }

    /// Another guest is in the foreground.
    pub fn is_in_background(&self) -> bool {
        self.state & backend::STATE_BACKGROUND != 0
    }

    /// The guest has set its queues up and uses them.
    pub fn is_live(&self) -> bool {
        self.status & DRIVER_OK != 0 && self.state & backend::STATE_PEER != 0 && !self.is_resetting()
    }
}

/// What the guest is offered.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Offer {
    /// Features.
    pub features: u64,
    /// Number of queues.
    pub queue_count: u32,
    /// Most entries of one.
    pub queue_size: u32,
    /// Bytes of the configuration.
    pub config_len: u32,
    reserved: u32,
    /// The configuration.
    pub config: [u8; backend::CONFIG_SIZE as usize],
}

impl Default for Offer {
    fn default() -> Self {
        Self { features: 0, queue_count: 0, queue_size: 0, config_len: 0, reserved: 0, config: [0; _] }
    }
}

impl Offer {
    /// An offer with this configuration, which is short enough.
    pub fn new(features: u64, queue_count: u32, queue_size: u32, config: &[u8]) -> Self {
        let mut offer = Self { features, queue_count, queue_size, ..Self::default() };
        offer.config[..config.len()].copy_from_slice(config);
        offer.config_len = config.len() as u32;
        offer
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Configuration {
    len: u32,
    reserved: u32,
    bytes: [u8; backend::CONFIG_SIZE as usize],
}

impl Default for Configuration {
    fn default() -> Self {
        Self { len: 0, reserved: 0, bytes: [0; _] }
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Event {
    queue: u32,
    descriptor: i32,
}

// SAFETY: These are numbers in the layouts of sluice_backend.h.
unsafe impl Plain for Info {}
// SAFETY: As above.
unsafe impl Plain for Offer {}
// SAFETY: As above.
unsafe impl Plain for Configuration {}
// SAFETY: As above.
unsafe impl Plain for Event {}

const fn number(direction: u32, number: u32, size: usize) -> crate::sys::Request {
    ioctl_expr(direction, b'L' as u32, number, size as u32)
}

// SAFETY: The module writes `struct sluice_backend_info`.
const INFO: Call<Info> = unsafe { Call::new(number(_IOC_READ, 0, size_of::<Info>())) };
// SAFETY: The module reads `struct sluice_backend_offer`.
const OFFER: Call<Offer> = unsafe { Call::new(number(_IOC_WRITE, 1, size_of::<Offer>())) };
// SAFETY: It has no argument.
const RESET_DONE: Order = unsafe { Order::new(number(_IOC_NONE, 2, 0)) };
// SAFETY: The module reads `struct sluice_backend_config`.
const CONFIG_CHANGED: Call<Configuration> =
    unsafe { Call::new(number(_IOC_WRITE, 3, size_of::<Configuration>())) };
// SAFETY: It has no argument.
const NEEDS_RESET: Order = unsafe { Order::new(number(_IOC_NONE, 4, 0)) };
// SAFETY: It has no argument.
const PASS_FOCUS: Order = unsafe { Order::new(number(_IOC_NONE, 11, 0)) };
// SAFETY: It has no argument.
const ACT: Order = unsafe { Order::new(number(_IOC_NONE, 12, 0)) };
// SAFETY: The module reads `struct sluice_backend_copy`. What that leads to is what the caller of `copy` answers for.
const COPY: Call<Copy> = unsafe { Call::new(number(_IOC_WRITE, 8, size_of::<Copy>())) };
// SAFETY: The module reads `struct sluice_backend_event`.
const SET_EVENT: Call<Event> = unsafe { Call::new(number(_IOC_WRITE, 5, size_of::<Event>())) };
// SAFETY: As above.
const SET_KICK: Call<Event> = unsafe { Call::new(number(_IOC_WRITE, 6, size_of::<Event>())) };
// SAFETY: As above.
const SET_CALL: Call<Event> = unsafe { Call::new(number(_IOC_WRITE, 7, size_of::<Event>())) };

/// How often a copy is tried for which the guest's process has no page just now, and how long after each other.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_millis(1);

/// What is copied between a process of the guest and this one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Copy {
    /// Address in the guest's process.
    pub address: u64,
    /// Address here.
    pub local: u64,
    /// Tag of the operation.
    pub tag: u32,
    /// Bytes.
    pub bytes: u32,
    /// `DEVFILE_IN` or `DEVFILE_OUT`.
    pub way: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: All of it is numbers; the address is one for the kernel, which checks it.
unsafe impl Plain for Copy {}

/// What the guest is to see as a map of a device file.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Shown {
    local: u64,
    first: u32,
    pages: u32,
    write: u32,
    reserved: u32,
}

/// What it is to see no more.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Hidden {
    first: u32,
    reserved: u32,
}

// SAFETY: As above.
unsafe impl Plain for Shown {}
// SAFETY: As above.
unsafe impl Plain for Hidden {}

// SAFETY: The module reads `struct sluice_backend_map`. It reads the mapping that this names, too, but only to find the frames behind it.
const MAP: Call<Shown> = unsafe { Call::new(number(_IOC_WRITE, 9, size_of::<Shown>())) };
// SAFETY: The module reads `struct sluice_backend_unmap`.
const UNMAP: Call<Hidden> = unsafe { Call::new(number(_IOC_WRITE, 10, 8)) };

/// What a guest that lends by a table is asked for.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Wanted {
    list: u64,
    count: u32,
    unmap: u32,
}

// SAFETY: As above.
unsafe impl Plain for Wanted {}

// SAFETY: The module reads `struct sluice_backend_table`, and the list that this names, which it copies.
const TABLE: Call<Wanted> = unsafe { Call::new(number(_IOC_WRITE, 13, size_of::<Wanted>())) };

/// What is copied between its pages and the room.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct WantedCopies {
    list: u64,
    count: u32,
    reserved: u32,
}

// SAFETY: As above.
unsafe impl Plain for WantedCopies {}

// SAFETY: The module reads `struct sluice_backend_table_copy`, and the list that this names, which it copies. What it writes to is the room, which is memory of its own.
const TABLE_COPY: Call<WantedCopies> =
    unsafe { Call::new(number(_IOC_WRITE, 14, size_of::<WantedCopies>())) };

/// Bytes of the room: memory of this domain that the module has, for what is copied.
pub const ROOM_SIZE: usize = 256 << 10;
/// Most copies of one call.
pub const MAX_COPIES: usize = 256;

/// A part of a page of a guest that lends by a table, and a place in the room.
pub type TableCopy = [u64; 2];

/// An open device file.
pub struct Function {
    file: File,
}

impl Function {
    /// Opens the file. One whose last program has just ended can be in use for a moment.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Ok(Self { file: file.with_context(|| format!("could not open {}", path.display()))? })
    }

    /// The registers.
    pub fn info(&self) -> Result<Info> {
        INFO.get(&self.file).context("could not read the registers")
    }

    /// Maps the window.
    pub fn window(&self, bytes: u64) -> Result<Window> {
        let failed = "could not map the window";
        let size = usize::try_from(bytes).context(failed)?;
        let region = self.part(0, size).context(failed)?;
        let region = GuestRegionMmap::new(region, GuestAddress(0)).context(failed)?;
        Ok(Arc::new(GuestMemoryMmap::from_regions(vec![region]).context(failed)?))
    }

    /// Maps the room, which is in the file after the window, of so many bytes.
    pub fn room(&self, window: u64) -> Result<MmapRegion> {
        self.part(window, ROOM_SIZE).context("could not map memory for copies")
    }

    fn part(&self, offset: u64, size: usize) -> Result<MmapRegion> {
        let region = MmapRegionBuilder::new(size)
            .with_file_offset(FileOffset::new(self.file.try_clone()?, offset))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE);
        Ok(region.build()?)
    }

    /// Offers the device to its guest.
    pub fn offer(&self, offer: &Offer) -> Result<()> {
        OFFER.set(&self.file, offer).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                anyhow::anyhow!("the guest uses features that this daemon does not offer: restart the guest")
            }
            _ => anyhow::Error::new(error).context("the hypervisor refuses the offer"),
        })
    }

    /// Says that nothing of the queues is touched any more.
    pub fn reset_done(&self) -> Result<()> {
        RESET_DONE.give(&self.file).context("could not finish the reset")
    }

    /// Tells the guest that the configuration, which is short enough, is now this.
    pub fn change_configuration(&self, bytes: &[u8]) -> Result<()> {
        let mut configuration = Configuration { len: bytes.len() as u32, ..Configuration::default() };
        configuration.bytes[..bytes.len()].copy_from_slice(bytes);
        CONFIG_CHANGED.set(&self.file, &configuration).context("could not change the configuration")
    }

    /// Tells the guest that the device cannot go on.
    pub fn needs_reset(&self) -> Result<()> {
        NEEDS_RESET.give(&self.file).context("could not ask for a reset")
    }

    /// Says that the person at the device wants the next guest in the foreground. It is for who is there now to say.
    pub fn pass_focus(&self) -> Result<()> {
        PASS_FOCUS.give(&self.file).context("could not pass the focus on")
    }

    /// This process acts for a process of the guest from now on: memory that drivers take for it is of the guest's region. Returns whether it has one.
    pub fn act(&self) -> Result<bool> {
        Ok(ACT.ask(&self.file).context("could not act for the guest")? != 0)
    }

    /// The same open file for another process: it can copy, and what this one does it can do.
    pub fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// A file that [`Function::share`] gave to this process.
    pub fn shared(file: File) -> Self {
        Self { file }
    }

    /// Copies what the guest has declared for an operation, in the way that `copy` says, however much it is.
    ///
    /// # Errors
    /// `EFAULT`: the guest has not declared it, or its process has no such memory.
    ///
    /// # Safety
    /// `copy.local` leads to so many bytes of this process that may be read, or written to, and which nothing in Rust refers to meanwhile.
    pub unsafe fn copy(&self, copy: &Copy) -> io::Result<()> {
        let mut done = 0;
        while done < copy.bytes {
            let (address, local) = (copy.address + u64::from(done), copy.local + u64::from(done));
            let part = Copy { address, local, bytes: (copy.bytes - done).min(DEVFILE_MAX_COPY), ..*copy };
            let mut tries = 0;
            while let Err(error) = COPY.set(&self.file, &part) {
                tries += 1;
                match error.raw_os_error() {
                    Some(libc::EFAULT) if tries < TRIES => std::thread::sleep(PAUSE),
                    // What is not declared is no memory of the caller's.
                    Some(libc::EPERM) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                    _ => return Err(error),
                }
            }
            done += part.bytes;
        }
        Ok(())
    }

    /// Reads what the guest has declared for the operation with this tag.
    ///
    /// # Errors
    /// As [`Function::copy`].
    pub fn read(&self, tag: u32, address: u64, to: &mut [u8]) -> io::Result<()> {
        let bytes = u32::try_from(to.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let local = to.as_mut_ptr() as u64;
        // SAFETY: These are bytes of the caller's, which nobody else refers to.
        unsafe { self.copy(&Copy { address, local, tag, bytes, way: DEVFILE_IN, reserved: 0 }) }
    }

    /// Maps pages of a guest that lends by a table, by entries of `TABLE_MAP`, up to `GRANT_MAX_BATCH` of them. Returns how many were mapped, up to one that could not be.
    ///
    /// # Errors
    /// As the first entry says, or ENOTCONN: the guest does not lend so.
    pub fn map_granted(&self, entries: &[u64]) -> io::Result<usize> {
        self.use_table(entries, false)
    }

    /// Unmaps them again.
    ///
    /// # Errors
    /// The first one is not mapped.
    pub fn unmap_granted(&self, references: &[u64]) -> io::Result<usize> {
        self.use_table(references, true)
    }

    fn use_table(&self, list: &[u64], unmap: bool) -> io::Result<usize> {
        let count = u32::try_from(list.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let wanted = Wanted { list: list.as_ptr() as u64, count, unmap: unmap.into() };
        let done = TABLE.ask(&self.file, &wanted)?;
        Ok(usize::try_from(done).unwrap_or(0).min(list.len()))
    }

    /// Copies between pages of a guest that lends by a table and the room: entries of `TABLE_COPY`, up to [`MAX_COPIES`], with a place in the room instead of an address.
    /// Returns how many were carried out, up to one that could not be.
    ///
    /// # Errors
    /// As [`Function::map_granted`]; ERANGE: a place is not in the room.
    pub fn copy_granted(&self, entries: &[TableCopy]) -> io::Result<usize> {
        let count = u32::try_from(entries.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let wanted = WantedCopies { list: entries.as_ptr() as u64, count, reserved: 0 };
        let done = TABLE_COPY.ask(&self.file, &wanted)?;
        Ok(usize::try_from(done).unwrap_or(0).min(entries.len()))
    }

    /// A page of the window that is a lane.
    pub fn lane(&self, page: std::num::NonZeroU32) -> io::Result<LanePage> {
        LanePage::map(&self.file, page)
    }

    /// Shows a mapping of a device file to the guest, from page `first` of the memory of maps on, for as long as it is there.
    pub fn map(&self, mapping: &Mapping, first: u32) -> io::Result<()> {
        self.show(mapping.address(), first, mapping.pages(), mapping.writable())
    }

    /// The same of whatever is at an address here: the module takes nothing but mappings of device files.
    pub fn show(&self, local: u64, first: u32, pages: u32, writable: bool) -> io::Result<()> {
        MAP.set(&self.file, &Shown { local, first, pages, write: writable.into(), reserved: 0 })
    }

    /// Shows what begins at a page no more.
    pub fn unmap(&self, first: u32) -> io::Result<()> {
        UNMAP.set(&self.file, &Hidden { first, reserved: 0 })
    }

    /// An event that says that the registers may have changed.
    pub fn changes(&self) -> Result<EventFd> {
        self.event(&SET_EVENT, 0)
    }

    /// An event that says that the guest made buffers available.
    pub fn kicks(&self, queue: u32) -> Result<EventFd> {
        self.event(&SET_KICK, queue)
    }

    /// An event by which the guest is told of used buffers.
    pub fn calls(&self, queue: u32) -> Result<EventFd> {
        self.event(&SET_CALL, queue)
    }

    fn event(&self, call: &Call<Event>, queue: u32) -> Result<EventFd> {
        let make = || -> io::Result<EventFd> {
            let event = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?;
            call.set(&self.file, &Event { queue, descriptor: event.as_raw_fd() })?;
            Ok(event)
        };
        make().context("could not connect an event")
    }
}
