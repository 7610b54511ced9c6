//! What is behind a virtual disk: a file or a block device, past the page cache where that can be.

use anyhow::{Context, Result, bail};
use sluice_backend::sys::{self, Call, Part, Ring, Way};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use vm_memory::{Bytes, VolatileSlice};

/// Bytes of a sector, the unit of virtio.
pub const SECTOR: u64 = 512;

/// Bytes that are moved at once where the guest's own memory cannot be used.
const BOUNCE: usize = 256 << 10;

/// Parts that are moved at once.
pub const AT_ONCE: u32 = 32;

// SAFETY: BLKSSZGET writes an int.
const LOGICAL_BLOCK: Call<i32> = unsafe { Call::new(0x1268) };
// SAFETY: BLKPBSZGET writes an unsigned int.
const PHYSICAL_BLOCK: Call<u32> = unsafe { Call::new(0x127b) };
// SAFETY: BLKDISCARD reads two u64: offset and bytes.
const DISCARD: Call<[u64; 2]> = unsafe { Call::new(0x1277) };

/// A disk.
pub struct Disk {
    file: File,
    /// Sectors.
    pub sectors: u64,
    /// Smallest unit that can be read and written, in bytes.
    pub block: u32,
    /// Unit that is written without reading first, in bytes.
    pub physical_block: u32,
    /// It can only be read.
    pub read_only: bool,
    is_device: bool,
    bounce: Bounce,
    /// None where the kernel has no such thing: then one part is moved after the other.
    ring: Option<Ring>,
}

/// Memory of this process whose address suits any disk.
struct Bounce {
    memory: Vec<u8>,
    start: usize,
}

impl Bounce {
    fn new() -> Self {
        let memory = vec![0; BOUNCE + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start }
    }

    fn slice(&mut self, len: usize) -> VolatileSlice<'_> {
        VolatileSlice::from(&mut self.memory[self.start..self.start + len])
    }
}

impl Disk {
    /// Opens the disk at a path. Nobody else may use it: neither a file system of this domain nor another guest.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let metadata = std::fs::metadata(path).with_context(|| format!("there is no disk {shown}"))?;
        let is_device = metadata.file_type().is_block_device();
        if !is_device && !metadata.is_file() {
            bail!("{shown} is neither a file nor a block device");
        }
        let (file, read_only) =
            open(path, is_device).with_context(|| format!("could not open the disk {shown}"))?;
        if !is_device {
            let lock = if read_only { file.try_lock_shared() } else { file.try_lock() };
            match lock {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => bail!("the disk {shown} is in use"),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("could not lock the disk {shown}"));
                }
            }
        }
        let mut disk = Self {
            file,
            sectors: 0,
            block: 512,
            physical_block: 4096,
            read_only,
            is_device,
            bounce: Bounce::new(),
            ring: Ring::new(AT_ONCE).ok(),
        };
        if is_device {
            disk.block =
                LOGICAL_BLOCK.get(&disk.file).context("could not ask for the size of a block")? as u32;
            disk.physical_block = PHYSICAL_BLOCK.get(&disk.file).unwrap_or(disk.block).max(disk.block);
        } else if disk.bytes()? >= 4096 && !disk.can_read_block() {
            disk.block = 4096;
        }
        if !disk.block.is_power_of_two() || !(512..=4096).contains(&disk.block) {
            bail!("the disk {shown} has blocks of {} bytes; 512 to 4096 are known", disk.block);
        }
        disk.measure()?;
        if disk.sectors == 0 {
            bail!("the disk {shown} is empty");
        }
        Ok(disk)
    }

    fn bytes(&self) -> Result<u64> {
        (&self.file).seek(SeekFrom::End(0)).context("could not measure the disk")
    }

    /// Looks how large the disk is now. Returns whether that has changed.
    pub fn measure(&mut self) -> Result<bool> {
        let block = u64::from(self.block);
        let sectors = self.bytes()? / block * block / SECTOR;
        Ok(std::mem::replace(&mut self.sectors, sectors) != sectors)
    }

    /// Whether the file system below lets blocks of the assumed size be read.
    fn can_read_block(&mut self) -> bool {
        let slice = self.bounce.slice(self.block as usize);
        sys::transfer(self.file.as_raw_fd(), &[slice], 0, Way::Read).is_ok()
    }

    /// Whether this is a part of the disk in whole blocks.
    pub fn holds(&self, sector: u64, bytes: u64) -> bool {
        let block = u64::from(self.block);
        let end = sector.checked_add(bytes.div_ceil(SECTOR));
        bytes.is_multiple_of(block)
            && sector.is_multiple_of(block / SECTOR)
            && end.is_some_and(|end| end <= self.sectors)
    }

    /// Reads or writes a part of the disk ([`Disk::holds`]). What is written has left this domain when this returns.
    pub fn transfer(&mut self, slices: &[VolatileSlice<'_>], sector: u64, way: Way) -> io::Result<()> {
        if suits(self.block, slices) {
            return sys::transfer(self.file.as_raw_fd(), slices, sector * SECTOR, way);
        }
        self.transfer_by_copy(slices, sector * SECTOR, way)
    }

    /// Several parts as [`Disk::transfer`], at once where they can be. The results are in their order.
    pub fn transfer_all(&mut self, parts: &[Part<'_, '_>]) -> Vec<io::Result<()>> {
        match &mut self.ring {
            Some(ring) if parts.iter().all(|part| suits(self.block, part.slices)) => {
                ring.transfer(self.file.as_raw_fd(), parts)
            }
            _ => {
                parts.iter().map(|part| self.transfer(part.slices, part.offset / SECTOR, part.way)).collect()
            }
        }
    }

    /// From now on one part is moved after the other, as where the kernel has no ring.
    #[cfg(test)]
    pub fn one_by_one(&mut self) {
        self.ring = None;
    }

    /// As [`Disk::transfer`], where addresses or lengths do not suit the disk.
    fn transfer_by_copy(
        &mut self,
        slices: &[VolatileSlice<'_>],
        mut offset: u64,
        way: Way,
    ) -> io::Result<()> {
        let failed = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let mut left: usize = slices.iter().map(VolatileSlice::len).sum();
        let (mut place, mut within) = (0, 0);
        while left > 0 {
            let count = left.min(BOUNCE);
            let file = self.file.as_raw_fd();
            let buffer = self.bounce.slice(count);
            if way == Way::Read {
                sys::transfer(file, &[buffer], offset, way)?;
            }
            let mut done = 0;
            while done < count {
                let slice = slices[place];
                let part = (slice.len() - within).min(count - done);
                let guests = slice.subslice(within, part).map_err(failed)?;
                let ours = buffer.subslice(done, part).map_err(failed)?;
                match way {
                    Way::Read => ours.copy_to_volatile_slice(guests),
                    Way::Write => guests.copy_to_volatile_slice(ours),
                }
                (done, within) = (done + part, within + part);
                if within == slice.len() {
                    (place, within) = (place + 1, 0);
                }
            }
            if way == Way::Write {
                sys::transfer(file, &[buffer], offset, way)?;
            }
            offset += count as u64;
            left -= count;
        }
        Ok(())
    }

    /// What was written is on the medium when this returns.
    pub fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// The guest does not need these data any more. A disk that cannot make use of that keeps them.
    pub fn discard(&self, sector: u64, bytes: u64) -> io::Result<()> {
        let done = if self.is_device {
            DISCARD.set(&self.file, &[sector * SECTOR, bytes])
        } else {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            sys::allocate(self.file.as_raw_fd(), mode, sector * SECTOR, bytes)
        };
        match done {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            done => done,
        }
    }

    /// These data are zeros from now on.
    pub fn write_zeros(&mut self, sector: u64, bytes: u64, unmap: bool) -> io::Result<()> {
        let way = if unmap { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
        let file = self.file.as_raw_fd();
        match sys::allocate(file, way | libc::FALLOC_FL_KEEP_SIZE, sector * SECTOR, bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            done => return done,
        }
        let (mut offset, mut left) = (sector * SECTOR, bytes);
        while left > 0 {
            let count = left.min(BOUNCE as u64);
            let zeros = self.bounce.slice(count as usize);
            zeros.write_slice(&[0; BOUNCE][..count as usize], 0).map_err(io::Error::other)?;
            sys::transfer(file, &[zeros], offset, Way::Write)?;
            (offset, left) = (offset + count, left - count);
        }
        Ok(())
    }
}

/// The disk can reach this memory as it is.
fn suits(block: u32, slices: &[VolatileSlice<'_>]) -> bool {
    let unit = block as usize;
    slices.iter().all(|slice| {
        slice.len().is_multiple_of(unit) && (slice.ptr_guard().as_ptr() as usize).is_multiple_of(unit)
    })
}

/// Opens past the page cache. Where a file system refuses that, what is written is waited for instead.
fn open(path: &Path, is_device: bool) -> io::Result<(File, bool)> {
    // For a block device O_EXCL means that nothing is mounted from it, and nobody else opened it so (open(2)).
    let alone = if is_device { libc::O_EXCL } else { 0 };
    let attempt = |write: bool, flags: i32| {
        OpenOptions::new().read(true).write(write).custom_flags(flags | alone | libc::O_CLOEXEC).open(path)
    };
    let with = |write| match attempt(write, libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => attempt(write, libc::O_DSYNC),
        opened => opened,
    };
    match with(true) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM)) => {
            with(false).map(|file| (file, true))
        }
        opened => opened.map(|file| (file, false)),
    }
}
