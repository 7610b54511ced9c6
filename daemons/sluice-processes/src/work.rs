//! The operations. They are calls of the system as they are: what a library does around them would be counted, too.

use crate::check;
use anyhow::{Result, bail};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd};

/// Marks that each operation has.
pub const MARKS: usize = 3;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are mapped at once, all in one page table.
const PAGES: usize = 256;
/// Bytes from one look into a mapped file to the next: beyond what a fault brings with it.
const STRIDE: usize = 16 * PAGE;

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A process is made, ends at once, and is waited for.
    ForkExit,
    /// The same, and it becomes another program, which ends at once.
    Execve,
    /// The same with a shell, which starts that program.
    Sh,
    /// A page is written for the first time.
    Fault,
    /// The system is asked for something that it knows.
    Syscall,
    /// A file is mapped, looked at here and there, and unmapped: as lmbench's lat_mmap, with a file of its own size.
    Mmap,
    /// A byte goes to another process and comes back: two switches, as lmbench's lat_ctx with two processes, pipes included.
    Context,
}

impl Work {
    /// Every one, in the order in which they are marked.
    pub const ALL: [Self; 7] =
        [Self::ForkExit, Self::Execve, Self::Sh, Self::Fault, Self::Syscall, Self::Mmap, Self::Context];

    /// Its name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForkExit => "fork_exit",
            Self::Execve => "execve",
            Self::Sh => "sh",
            Self::Fault => "fault",
            Self::Syscall => "syscall",
            Self::Mmap => "mmap",
            Self::Context => "context",
        }
    }

    /// How often at first.
    pub const fn few(self) -> usize {
        match self {
            Self::ForkExit => 50,
            Self::Execve | Self::Sh => 20,
            Self::Mmap => 50,
            Self::Context => 200,
            Self::Fault => 8 * PAGES,
            Self::Syscall => 1_000,
        }
    }

    /// How often then.
    pub const fn many(self) -> usize {
        5 * self.few()
    }

    /// Does it so many times.
    pub fn run(self, times: usize) -> Result<()> {
        match self {
            Self::ForkExit => (0..times).try_for_each(|_| child(&[])),
            Self::Execve => (0..times).try_for_each(|_| child(&[c"/bin/nothing"])),
            Self::Sh => (0..times).try_for_each(|_| child(&[c"/bin/sh", c"-c", c"/bin/nothing; exit 0"])),
            Self::Fault => (0..times.div_ceil(PAGES)).try_for_each(|_| touch()),
            Self::Syscall => {
                for _ in 0..times {
                    // SAFETY: getppid takes no arguments and always succeeds.
                    unsafe { libc::syscall(libc::SYS_getppid) };
                }
                Ok(())
            }
            Self::Mmap => look(times),
            Self::Context => pass(times),
        }
    }
}

/// Makes a process that becomes this program, or ends at once if there is none, and waits for it.
fn child(arguments: &[&CStr]) -> Result<()> {
    let mut list = [std::ptr::null(); 4];
    for (slot, argument) in list.iter_mut().zip(arguments.iter().take(3)) {
        *slot = argument.as_ptr();
    }
    let nothing = [std::ptr::null()];
    // SAFETY: this process has one thread, so that the child may do what its parent may; it only becomes another program or ends. Both lists
    // end with a null pointer and live until then.
    let process = unsafe {
        let process = libc::syscall(libc::SYS_fork);
        if process == 0 {
            if !arguments.is_empty() {
                libc::execve(list[0], list.as_ptr(), nothing.as_ptr());
            }
            libc::_exit(if arguments.is_empty() { 0 } else { 127 });
        }
        process
    };
    let process = check("fork", process)?;
    let mut status = 0;
    // SAFETY: `status` is written and nothing else.
    let ended = unsafe { libc::waitpid(i32::try_from(process)?, &mut status, 0) };
    check("waitpid", i64::from(ended))?;
    if status != 0 {
        bail!("a process ended with status {status:#x}");
    }
    Ok(())
}

/// Maps pages, writes each, and gives them back.
fn touch() -> Result<()> {
    // Twice as much: what lies within one page table's reach is taken of it.
    let size = 2 * PAGES * PAGE;
    // SAFETY: new memory, which nothing else knows of, is written within its bounds and unmapped.
    unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            bail!("mmap failed: {}", std::io::Error::last_os_error());
        }
        let first = memory as usize;
        let reach = PAGE * 512;
        // If the reach of a page table ends within the first half, its second half lies in the next one.
        let end_of_reach = (first / reach + 1) * reach - first;
        let offset = if end_of_reach < PAGES * PAGE { end_of_reach } else { 0 };
        for page in 0..PAGES {
            memory.cast::<u8>().add(offset + page * PAGE).write_volatile(1);
        }
        check("munmap", i64::from(libc::munmap(memory, size)))?;
    }
    Ok(())
}

/// Maps a file, reads a byte of it every [`STRIDE`] bytes, and unmaps it.
fn look(times: usize) -> Result<()> {
    let size = PAGES * PAGE;
    // SAFETY: the name ends with a zero; the system makes a file that nobody else has.
    let file = unsafe { libc::memfd_create(c"mapped".as_ptr(), libc::MFD_CLOEXEC) };
    check("memfd_create", i64::from(file))?;
    // SAFETY: the file is ours, and closed once. Each mapping is within its size, only read within that, and unmapped.
    unsafe {
        let file = std::os::fd::OwnedFd::from_raw_fd(file);
        check("ftruncate", i64::from(libc::ftruncate(file.as_raw_fd(), i64::try_from(size)?)))?;
        for _ in 0..times {
            let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
            let memory = libc::mmap(std::ptr::null_mut(), size, read, shared, file.as_raw_fd(), 0);
            if memory == libc::MAP_FAILED {
                bail!("mmap failed: {}", std::io::Error::last_os_error());
            }
            for offset in (0..size).step_by(STRIDE) {
                memory.cast::<u8>().add(offset).read_volatile();
            }
            check("munmap", i64::from(libc::munmap(memory, size)))?;
        }
    }
    Ok(())
}

/// Two pipes: each process waits for the other's byte.
fn pass(times: usize) -> Result<()> {
    let (mut to, mut from) = ([0; 2], [0; 2]);
    for ends in [&mut to, &mut from] {
        // SAFETY: the two numbers are written and nothing else.
        check("pipe", i64::from(unsafe { libc::pipe(ends.as_mut_ptr()) }))?;
    }
    let mut byte = 0_u8;
    // SAFETY: this process has one thread; the child only reads and writes, and ends. The byte lives until then.
    unsafe {
        let bytes = std::ptr::from_mut(&mut byte).cast();
        let process = libc::fork();
        if process == 0 {
            libc::close(to[1]);
            while libc::read(to[0], bytes, 1) == 1 && libc::write(from[1], bytes, 1) == 1 {}
            libc::_exit(0);
        }
        check("fork", i64::from(process))?;
        let passed =
            (0..times).all(|_| libc::write(to[1], bytes, 1) == 1 && libc::read(from[0], bytes, 1) == 1);
        for end in to.into_iter().chain(from) {
            libc::close(end);
        }
        check("waitpid", i64::from(libc::waitpid(process, std::ptr::null_mut(), 0)))?;
        if !passed {
            bail!("a pipe failed: {}", std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Ends the machine.
pub fn power_off() {
    // SAFETY: nothing comes after it.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_end_and_pages_are_given_back() {
        for work in [Work::ForkExit, Work::Fault, Work::Syscall, Work::Mmap, Work::Context] {
            work.run(3).unwrap();
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_noticed() {
        assert!(child(&[c"/nowhere/nothing"]).is_err());
    }
}
