//! A program that is watched: its ioctls on devices, and what was in its memory.
//!
//! It stops before and after each system call (ptrace). While it stands before an ioctl its argument is copied; when the ioctl is done, what the kernel has
//! reached meanwhile, and what is there.

use crate::reach::{Reach, Reached};
use anyhow::{Context, Result, bail};
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use sluice_slice::{Copy, Sample};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Most samples of one command, and bytes of a piece of memory that are kept: more says nothing new.
const SAMPLES: usize = 256;
const PIECE: u64 = 1 << 20;
/// AUDIT_ARCH_X86_64: calls of programs of 64 bits.
const X86_64: u32 = 0xc000_003e;

/// What was seen of each command that the program gave, by the device's class, as its table has it, and the ioctl's number.
pub type Given = BTreeMap<(String, u32), Vec<Sample>>;

/// A thread of the program's.
#[derive(Default)]
struct Thread {
    /// The ioctl that it is in, on a device of this class.
    ioctl: Option<(String, Sample)>,
    reached: Vec<Reach>,
}

/// Runs a program to its end. Returns its ioctls on devices, and its status.
pub fn watch(arguments: &[OsString]) -> Result<(Given, i32)> {
    let kernel = Reached::open()?;
    let (name, rest) = arguments.split_first().context("no program is named")?;
    let mut command = Command::new(name);
    command.args(rest);
    // SAFETY: one system call is made, which is safe after a fork.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    // It is waited for below, with all that it starts.
    let first = command.spawn().with_context(|| format!("could not start {}", name.display()))?.id();
    let first = Pid::from_raw(first.try_into()?);
    waitpid(first, None).context("the program did not start")?;
    ptrace::setoptions(
        first,
        Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_EXITKILL,
    )?;
    ptrace::syscall(first, None)?;
    let mut watch = Watch { kernel, threads: HashMap::new(), given: Given::new() };
    let status = watch.run(first)?;
    Ok((watch.given, status))
}

struct Watch {
    kernel: Reached,
    threads: HashMap<i32, Thread>,
    given: Given,
}

impl Watch {
    fn run(&mut self, first: Pid) -> Result<i32> {
        let mut status = 0;
        loop {
            let stopped = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Ok(stopped) => stopped,
                Err(nix::errno::Errno::ECHILD) => return Ok(status),
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => bail!("could not wait for the program: {error}"),
            };
            let (thread, signal) = match stopped {
                WaitStatus::PtraceSyscall(thread) => {
                    self.turn(thread)?;
                    (thread, None)
                }
                WaitStatus::PtraceEvent(thread, ..) => (thread, None),
                // A new thread stops before it begins.
                WaitStatus::Stopped(thread, Signal::SIGSTOP | Signal::SIGTRAP) => (thread, None),
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
                WaitStatus::Exited(thread, code) => {
                    self.threads.remove(&thread.as_raw());
                    if thread == first {
                        status = code;
                    }
                    continue;
                }
                WaitStatus::Signaled(thread, signal, _) => {
                    self.threads.remove(&thread.as_raw());
                    if thread == first {
                        status = 128 + signal as i32;
                    }
                    continue;
                }
                _ => continue,
            };
            // One that was killed meanwhile is waited for as well.
            let _ = ptrace::syscall(thread, signal);
        }
    }

    /// A thread stands before a system call, or behind one.
    fn turn(&mut self, thread: Pid) -> Result<()> {
        let Ok(call) = ptrace::syscall_info(thread) else { return Ok(()) };
        for (by, reach) in self.kernel.since()? {
            self.threads.entry(by).or_default().reached.push(reach);
        }
        let known = self.threads.entry(thread.as_raw()).or_default();
        let reached = std::mem::take(&mut known.reached);
        if call.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            // SAFETY: of the union's parts it is this one, before a call; all are numbers.
            let libc::__c_anonymous_ptrace_syscall_info_entry { nr, args } = unsafe { call.u.entry };
            let is_ioctl = call.arch == X86_64 && nr == libc::SYS_ioctl as u64;
            known.ioctl = if is_ioctl { begin(thread, args) } else { None };
            return Ok(());
        }
        let Some((class, mut sample)) = known.ioctl.take() else { return Ok(()) };
        let samples = self.given.entry((class, sample.number)).or_default();
        if samples.len() < SAMPLES {
            end(thread, &mut sample, &reached);
            // The same once more says nothing.
            let is_same =
                |known: &Sample| known.structure == sample.structure && known.copies == sample.copies;
            if !samples.iter().any(is_same) {
                samples.push(sample);
            }
        }
        Ok(())
    }
}

/// An ioctl begins: if it is on a device, its class and what is at its argument.
fn begin(thread: Pid, [file, number, argument, ..]: [u64; 6]) -> Option<(String, Sample)> {
    let mut sample = Sample { number: number as u32, argument, ..Sample::default() };
    sample.structure = read(thread, argument, sample.size()).unwrap_or_default();
    let file = file as i32;
    let file = std::fs::metadata(format!("/proc/{thread}/fd/{file}")).ok()?;
    let (major, minor) = (libc::major(file.rdev()), libc::minor(file.rdev()));
    let class = std::fs::read_link(format!("/sys/dev/char/{major}:{minor}/subsystem")).ok()?;
    Some((class.file_name()?.to_string_lossy().into_owned(), sample))
}

/// It is over.
fn end(thread: Pid, sample: &mut Sample, reached: &[Reach]) {
    for reach in reached {
        match reach {
            Reach::Bytes(copy) => sample.copies.push(*copy),
            Reach::Text { address, most } => {
                let text = read(thread, *address, (*most).min(PIECE)).unwrap_or_default();
                let end = text.iter().position(|byte| *byte == 0);
                let bytes = end.map_or(*most, |end| end as u64 + 1);
                sample.copies.push(Copy { address: *address, bytes, is_written: false });
            }
            Reach::Hold(by) => {
                sample.holds.insert(by.clone());
            }
        }
    }
    sample.copies.sort_unstable();
    sample.copies.dedup();
    let mut pieces: BTreeMap<u64, u64> = BTreeMap::new();
    for copy in sample.copies.iter().filter(|copy| !copy.is_written) {
        let end = copy.address.saturating_add(copy.bytes);
        match pieces.last_entry() {
            Some(mut last) if copy.address <= *last.get() => {
                let most = end.max(*last.get());
                last.insert(most);
            }
            _ => {
                pieces.insert(copy.address, end);
            }
        }
    }
    for (address, end) in pieces {
        let there = read(thread, address, (end - address).min(PIECE)).unwrap_or_default();
        sample.memory.push((address, there));
    }
}

/// What is at an address of the program's.
fn read(thread: Pid, address: u64, bytes: u64) -> Result<Vec<u8>> {
    let memory = File::open(format!("/proc/{thread}/mem"))?;
    let mut there = vec![0; bytes.try_into()?];
    // A text may end before its most bytes do, at the end of what is mapped.
    let mut done = 0;
    while done < there.len() {
        match memory.read_at(&mut there[done..], address + done as u64) {
            Ok(0) | Err(_) => break,
            Ok(count) => done += count,
        }
    }
    there.truncate(done);
    Ok(there)
}
