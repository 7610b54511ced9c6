//! The operations. They are calls of the system as they are: what a library does around them would be counted, too.

use crate::check;
use anyhow::{Result, bail};
use std::ffi::CStr;

/// Marks that each operation has.
pub const MARKS: usize = 3;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are mapped at once, all in one page table.
const PAGES: usize = 256;

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
}

impl Work {
    /// Every one, in the order in which they are marked.
    pub const ALL: [Self; 5] = [Self::ForkExit, Self::Execve, Self::Sh, Self::Fault, Self::Syscall];

    /// Its name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForkExit => "fork_exit",
            Self::Execve => "execve",
            Self::Sh => "sh",
            Self::Fault => "fault",
            Self::Syscall => "syscall",
        }
    }

    /// How often at first.
    pub const fn few(self) -> usize {
        match self {
            Self::ForkExit => 50,
            Self::Execve | Self::Sh => 20,
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
        for work in [Work::ForkExit, Work::Fault, Work::Syscall] {
            work.run(3).unwrap();
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_noticed() {
        assert!(child(&[c"/nowhere/nothing"]).is_err());
    }
}
