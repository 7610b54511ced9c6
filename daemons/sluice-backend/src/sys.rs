//! System calls that no crate wraps. All unsafe code of the daemon is here.

use io_uring::{IoUring, opcode, squeue, types};
use sluice_devfile::Position;
use sluice_hypercall::devfile::{DEVFILE_LENT, DEVFILE_MAX_NUMBER};
use smallvec::SmallVec;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::AtomicU32;
use vm_memory::VolatileSlice;
use vm_memory::volatile_memory::PtrGuardMut;
use vmm_sys_util::ioctl::{ioctl, ioctl_with_mut_ref, ioctl_with_ref};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// A number of an ioctl.
pub type Request = libc::c_ulong;

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A type that holds nothing but plain numbers, in the layout of the kernel's.
///
/// # Safety
/// Every pattern of bits is a value, and there is no pointer in it.
pub unsafe trait Plain: Default {}

// SAFETY: These are numbers.
unsafe impl Plain for i32 {}
// SAFETY: As above.
unsafe impl Plain for u32 {}
// SAFETY: As above.
unsafe impl Plain for u64 {}
// SAFETY: As above.
unsafe impl Plain for [u64; 2] {}

/// What a request takes or gives, whose number names the type's size, or which is known to be of this type.
pub struct Call<T> {
    number: Request,
    kind: std::marker::PhantomData<T>,
}

impl<T: Plain> Call<T> {
    /// # Safety
    /// The request reads or writes a `T` at its argument, and nothing else of the caller's memory.
    pub const unsafe fn new(number: Request) -> Self {
        Self { number, kind: std::marker::PhantomData }
    }

    /// Asks with a value.
    pub fn set(&self, file: &impl AsRawFd, value: &T) -> io::Result<()> {
        self.ask(file, value).map(|_| ())
    }

    /// Asks with a value, where the answer is a number.
    pub fn ask(&self, file: &impl AsRawFd, value: &T) -> io::Result<libc::c_int> {
        // SAFETY: The request reads a `T` (see `new`), and `value` is one.
        let answer = unsafe { ioctl_with_ref(file, self.number, value) };
        check(answer)?;
        Ok(answer)
    }

    /// Asks for a value.
    pub fn get(&self, file: &impl AsRawFd) -> io::Result<T> {
        let mut value = T::default();
        self.update(file, &mut value)?;
        Ok(value)
    }

    /// Asks with a value that the answer replaces.
    pub fn update(&self, file: &impl AsRawFd, value: &mut T) -> io::Result<()> {
        // SAFETY: The request reads and writes a `T` (see `new`), of which every pattern of bits is a value.
        check(unsafe { ioctl_with_mut_ref(file, self.number, value) })
    }
}

/// A request without an argument.
pub struct Order(Request);

impl Order {
    /// # Safety
    /// The request touches no memory of the caller's.
    pub const unsafe fn new(number: Request) -> Self {
        Self(number)
    }

    /// Asks.
    pub fn give(&self, file: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: No memory is touched (see `new`).
        check(unsafe { ioctl(file, self.0) })
    }

    /// Asks, where the answer is a number.
    pub fn ask(&self, file: &impl AsRawFd) -> io::Result<libc::c_int> {
        // SAFETY: No memory is touched (see `new`).
        let answer = unsafe { ioctl(file, self.0) };
        check(answer)?;
        Ok(answer)
    }

    /// Asks with a number.
    pub fn give_number(&self, file: &impl AsRawFd, number: libc::c_ulong) -> io::Result<()> {
        // SAFETY: The argument is a number, and no memory is touched (see `new`).
        check(unsafe { libc::ioctl(file.as_raw_fd(), self.0, number) })
    }
}

/// A request whose argument is a number, and whose answer is a descriptor.
pub struct Opening(Request);

impl Opening {
    /// # Safety
    /// The request touches no memory of the caller's, and answers with a descriptor that is nobody's yet.
    pub const unsafe fn new(number: Request) -> Self {
        Self(number)
    }

    /// Asks.
    pub fn open(&self, file: &impl AsRawFd, number: libc::c_ulong) -> io::Result<File> {
        // SAFETY: The argument is a number, and no memory is touched (see `new`).
        let descriptor = unsafe { libc::ioctl(file.as_raw_fd(), self.0, number) };
        check(descriptor)?;
        // SAFETY: It is nobody's yet (see `new`).
        Ok(unsafe { File::from_raw_fd(descriptor) })
    }
}

/// Which way data go between a file and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// Moves all of these bytes, from this offset of the file on. A file that ends early is an error.
pub fn transfer(file: RawFd, slices: &[VolatileSlice<'_>], offset: u64, way: Way) -> io::Result<()> {
    // Guards keep what is behind the addresses.
    let guards: Vec<_> = slices.iter().map(VolatileSlice::ptr_guard_mut).collect();
    let mut parts: Vec<libc::iovec> = guards
        .iter()
        .map(|guard| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: guard.len() })
        .collect();
    let mut rest = &mut parts[..];
    let mut offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    while !rest.is_empty() {
        let count = rest.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
        // SAFETY: Each part is memory of the slices, which `guards` keeps. Nothing in Rust refers to it, since it is a guest's, which may
        // change it at any time.
        let moved = unsafe {
            match way {
                Way::Read => libc::preadv(file, rest.as_ptr(), count, offset),
                Way::Write => libc::pwritev(file, rest.as_ptr(), count, offset),
            }
        };
        let moved = match moved {
            0 if rest.iter().all(|part| part.iov_len == 0) => return Ok(()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => moved as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
        };
        offset = offset.saturating_add(moved as libc::off_t);
        rest = advance(rest, moved);
    }
    Ok(())
}

/// Gives a message to a tap or a socket, in one piece.
pub fn send(file: &impl AsRawFd, slices: &[VolatileSlice<'_>]) -> io::Result<()> {
    let guards: Vec<_> = slices.iter().map(VolatileSlice::ptr_guard).collect();
    let parts: SmallVec<[libc::iovec; 4]> = guards
        .iter()
        .map(|guard| libc::iovec { iov_base: guard.as_ptr().cast_mut().cast(), iov_len: guard.len() })
        .collect();
    // SAFETY: As in `transfer`; it is only read.
    let moved = unsafe { libc::writev(file.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
    if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes a message of a tap or a socket, up to as many bytes as there is room for. Returns how long it is.
pub fn take(file: &impl AsRawFd, to: &VolatileSlice<'_>) -> io::Result<usize> {
    let guard = to.ptr_guard_mut();
    // SAFETY: As in `transfer`; no more than the slice is written.
    let moved = unsafe { libc::read(file.as_raw_fd(), guard.as_ptr().cast(), guard.len()) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// What is moved between a file and memory.
pub struct Part<'s, 'w> {
    /// Memory.
    pub slices: &'s [VolatileSlice<'w>],
    /// Where in the file.
    pub offset: u64,
    /// Which way.
    pub way: Way,
}

/// Moves several parts at once, by io_uring. A request that is under way keeps its file open, also after the end of this process.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// For so many parts at once, and for the thread that makes it. Fails where the kernel has none.
    pub fn new(most: u32) -> io::Result<Self> {
        // Since Linux 6.1 a thread need not wake for each part that is done.
        let quiet = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(most);
        let ring = quiet.or_else(|_| IoUring::new(most))?;
        Ok(Self { ring })
    }

    /// Moves each part as [`transfer`] does. The results are in the order of the parts.
    pub fn transfer(&mut self, file: RawFd, parts: &[Part<'_, '_>]) -> Vec<io::Result<()>> {
        let most = self.ring.params().sq_entries() as usize;
        parts.chunks(most).flat_map(|parts| self.transfer_some(file, parts)).collect()
    }

    fn transfer_some(&mut self, file: RawFd, parts: &[Part<'_, '_>]) -> Vec<io::Result<()>> {
        // Guards keep what is behind the addresses.
        let guards: Vec<PtrGuardMut> =
            parts.iter().flat_map(|part| part.slices).map(VolatileSlice::ptr_guard_mut).collect();
        let vector =
            |guard: &PtrGuardMut| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: guard.len() };
        let vectors: Vec<libc::iovec> = guards.iter().map(vector).collect();
        let mut rest = &vectors[..];
        for (number, part) in (0..).zip(parts) {
            let (own, others) = rest.split_at(part.slices.len());
            rest = others;
            let entry = entry(types::Fd(file), own, part.offset, part.way);
            // SAFETY: What the entry names are memory of the slices, which `guards` keeps, and `vectors`; both stay until all parts have
            // been answered: this function ends no earlier, and the process does if it cannot wait for them. Nothing in Rust refers to
            // the memory, since it is a guest's, which may change it at any time.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(number)) };
            pushed.expect("the ring has an entry for each part");
        }
        let mut moved: Vec<Option<i32>> = vec![None; parts.len()];
        while moved.contains(&None) {
            let missing = moved.iter().filter(|moved| moved.is_none()).count();
            match self.ring.submit_and_wait(missing) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    eprintln!("sluice-backend: io_uring fails while requests are under way: {error}");
                    std::process::abort();
                }
                _ => {}
            }
            for answer in self.ring.completion() {
                moved[answer.user_data() as usize] = Some(answer.result());
            }
        }
        let result = |(part, moved): (&Part<'_, '_>, Option<i32>)| {
            let whole: usize = part.slices.iter().map(VolatileSlice::len).sum();
            match moved.unwrap_or(-libc::EIO) {
                moved if usize::try_from(moved).is_ok_and(|moved| moved == whole) => Ok(()),
                // The rest, or what the kernel had no room for just now.
                0.. => transfer(file, part.slices, part.offset, part.way),
                moved if moved == -libc::EAGAIN || moved == -libc::EINTR => {
                    transfer(file, part.slices, part.offset, part.way)
                }
                error => Err(io::Error::from_raw_os_error(-error)),
            }
        };
        parts.iter().zip(moved).map(result).collect()
    }
}

/// What the kernel is asked for. It need not read a list of parts where there is one, as in most small requests.
fn entry(file: types::Fd, parts: &[libc::iovec], offset: u64, way: Way) -> squeue::Entry {
    let only = match parts {
        [only] => u32::try_from(only.iov_len).ok().map(|bytes| (only.iov_base.cast(), bytes)),
        _ => None,
    };
    let (first, count) = (parts.as_ptr(), parts.len() as u32);
    match (way, only) {
        (Way::Read, Some((base, bytes))) => opcode::Read::new(file, base, bytes).offset(offset).build(),
        (Way::Write, Some((base, bytes))) => opcode::Write::new(file, base, bytes).offset(offset).build(),
        (Way::Read, None) => opcode::Readv::new(file, first, count).offset(offset).build(),
        (Way::Write, None) => opcode::Writev::new(file, first, count).offset(offset).build(),
    }
}

/// What is left of the parts after their first bytes.
fn advance(mut parts: &mut [libc::iovec], mut bytes: usize) -> &mut [libc::iovec] {
    while let Some(first) = parts.first_mut() {
        if bytes < first.iov_len {
            first.iov_base = first.iov_base.wrapping_byte_add(bytes);
            first.iov_len -= bytes;
            break;
        }
        bytes -= first.iov_len;
        parts = &mut parts[1..];
    }
    parts
}

/// Changes the space behind a part of a file (fallocate(2)).
pub fn allocate(file: RawFd, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
    let number =
        |value| libc::off_t::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    // SAFETY: No memory is touched.
    check(unsafe { libc::fallocate(file, mode, number(offset)?, number(bytes)?) })
}

/// Memory of so many bytes, which others can be given as a file.
pub fn memory_file(bytes: u64) -> io::Result<File> {
    // SAFETY: The name is a string with its end.
    let descriptor = unsafe { libc::memfd_create(c"rings".as_ptr(), libc::MFD_CLOEXEC) };
    check(descriptor)?;
    // SAFETY: The descriptor is new, and nobody else's.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes)?;
    Ok(file)
}

/// A datagram socket, which stands for the network in requests about interfaces.
pub fn network() -> io::Result<std::os::fd::OwnedFd> {
    std::net::UdpSocket::bind(("127.0.0.1", 0)).map(Into::into)
}

/// A pair of sockets that keep messages apart, and of which one notices the other's end.
pub fn socket_pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
    let mut ends = [-1; 2];
    // SAFETY: The call writes two descriptors to `ends`.
    check(unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
    })?;
    // SAFETY: Both descriptors are new, and nobody else's.
    Ok(unsafe { (UnixDatagram::from_raw_fd(ends[0]), UnixDatagram::from_raw_fd(ends[1])) })
}

/// Gives up all that this process may do beyond using what it has open; it ends with the thread that started it.
pub fn drop_privileges() -> io::Result<()> {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: No memory is touched: the list of groups is empty.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: No memory is touched.
    check(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) })?;
    // SAFETY: As above.
    check(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) })?;
    // SAFETY: As above.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: As above. A change of the user would have undone it, so it comes last.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
}

/// Has ioctls of a type and number refused (EPERM) from now on, of this process and what it starts, whatever the size in them; threads that there are already
/// may go on.
///
/// # Parameters
/// - `which`: the type in the higher byte, the number in the lower one.
pub fn refuse_ioctls(which: u16) -> io::Result<()> {
    /// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_I386` (include/uapi/linux/audit.h).
    const LONG: u32 = 0xc000_003e;
    const NARROW: u32 = 0x4000_0003;
    /// The call among those of 64 bits, of 64 bits with short addresses, and of 32 bits.
    const CALLS: [u32; 3] = [16, 514, 54];
    /// What tells calls with short addresses apart.
    const SHORT: u32 = 0x4000_0000;
    // Places in `struct seccomp_data`: the call, the architecture, the lower half of the second argument.
    let (call, architecture, second) = (0, 4, 24);
    let code = |code: u32| code as u16;
    let load = |place| libc::sock_filter {
        code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS),
        jt: 0,
        jf: 0,
        k: place,
    };
    let and =
        |k| libc::sock_filter { code: code(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K), jt: 0, jf: 0, k };
    let skip =
        |k, jt, jf| libc::sock_filter { code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), jt, jf, k };
    let end = |k| libc::sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k };
    let mut filter = [
        load(architecture),
        skip(NARROW, 5, 0),
        skip(LONG, 0, 10),
        load(call),
        and(!SHORT),
        skip(CALLS[0], 3, 0),
        skip(CALLS[1], 2, 6),
        load(call),
        skip(CALLS[2], 0, 4),
        load(second),
        and(0xffff),
        skip(which.into(), 0, 1),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let program = &raw const program;
    // SAFETY: The program is whole, and the kernel checks it.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, program, 0, 0) })
}

/// Has SIGUSR1 interrupt system calls, and do nothing else.
pub fn heed_interruptions() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: All zeros are a `sigaction` without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: `action` is whole, and its handler does nothing.
    check(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) })
}

/// The calling thread, as [`interrupt`] knows it.
pub fn thread() -> libc::pid_t {
    thread_local! {
        // SAFETY: No memory is touched.
        static THREAD: libc::pid_t = unsafe { libc::gettid() };
    }
    THREAD.with(|thread| *thread)
}

/// Interrupts the system call that a thread of this process is in.
pub fn interrupt(thread: libc::pid_t) {
    // SAFETY: No memory is touched. A thread that is no more is an error, which does not matter.
    unsafe { libc::tgkill(libc::getpid(), thread, libc::SIGUSR1) };
}

/// Receives a message, and the files that come with it, of which there are `most` at most.
///
/// # Errors
/// `EMFILE`: too many are open here for the numbers from [`DEVFILE_LENT`] on to stay free.
pub fn receive(socket: &UnixDatagram, bytes: &mut [u8], most: usize) -> io::Result<(usize, Vec<File>)> {
    let mut descriptors = vec![0; most];
    let mut parts = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    // SAFETY: The part is `bytes`, which may hold anything.
    let received = unsafe { socket.recv_with_fds(&mut parts, &mut descriptors) };
    let (length, count) = received.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
    // SAFETY: The descriptors are new, and nobody else's.
    let files = descriptors.iter().take(count).map(|number| unsafe { File::from_raw_fd(*number) });
    let files: Vec<File> = files.collect();
    let fit = files.iter().all(|file| file.as_raw_fd() < DEVFILE_LENT as RawFd);
    if fit { Ok((length, files)) } else { Err(io::Error::from_raw_os_error(libc::EMFILE)) }
}

/// Has numbers of descriptors up to those at which files are lent, which need rights to be given.
pub fn make_room_for_lent() -> io::Result<()> {
    let most = libc::rlim_t::from(DEVFILE_LENT + DEVFILE_MAX_NUMBER);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: `limit` is whole.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })
}

/// A file that a driver finds under a number of a guest's choice, for as long as this is there.
#[derive(Debug)]
pub struct Lent(RawFd);

impl Lent {
    /// Lends a file under a number below [`DEVFILE_MAX_NUMBER`]. What was lent under it before is so no more.
    pub fn new(file: &impl AsRawFd, number: u16) -> io::Result<Self> {
        let lent = DEVFILE_LENT as RawFd + RawFd::from(number);
        // SAFETY: No memory is touched, and nothing in Rust owns a descriptor with such a number: `receive` and `take_descriptor` see to it.
        check(unsafe { libc::dup3(file.as_raw_fd(), lent, libc::O_CLOEXEC) })?;
        Ok(Self(lent))
    }

    /// The number.
    pub fn number(&self) -> RawFd {
        self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: Nothing but this owns the descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Whether calls on a file wait.
pub fn waits(file: &impl AsRawFd) -> io::Result<bool> {
    Ok(flags(file)? & libc::O_NONBLOCK == 0)
}

/// Has calls on a file wait or not.
pub fn set_waiting(file: &impl AsRawFd, waits: bool) -> io::Result<()> {
    let flags = flags(file)?;
    let flags = if waits { flags & !libc::O_NONBLOCK } else { flags | libc::O_NONBLOCK };
    // SAFETY: No memory is touched.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) })
}

fn flags(file: &impl AsRawFd) -> io::Result<libc::c_int> {
    // SAFETY: No memory is touched.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    check(flags).map(|()| flags)
}

/// Takes over a descriptor that a driver has made for this process.
///
/// # Parameters
/// - `number`: as the driver, or a guest that makes believe to be one, said.
/// - `is_ours`: whether it was this program's before.
///
/// # Errors
/// `EBADF`: there is no such descriptor, or it was, or it is lent.
pub fn take_descriptor(number: RawFd, is_ours: impl Fn(RawFd) -> bool) -> io::Result<File> {
    // SAFETY: No memory is touched.
    check(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    if number >= DEVFILE_LENT as RawFd || is_ours(number) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: It is open, and nothing in Rust owns it.
    Ok(unsafe { File::from_raw_fd(number) })
}

/// A page of this process that stands for the one of a guest's process at the same address.
pub struct ShadowPage(u64);

impl ShadowPage {
    /// Maps an empty page at an address where nothing is.
    pub fn map(address: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: Nothing that is mapped already is replaced.
        let at = unsafe { libc::mmap(address as *mut libc::c_void, PAGE, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = Self(at as u64);
        if page.0 == address { Ok(page) } else { Err(io::ErrorKind::AlreadyExists.into()) }
    }

    /// The word at an offset; `None`: it does not lie wholly in the page.
    pub fn word(&self, offset: usize) -> Option<u32> {
        // SAFETY: It is the page, which stays, and nothing in Rust refers to it.
        let bytes = unsafe { VolatileSlice::new(self.0 as *mut u8, PAGE) };
        let mut word = [0; 4];
        bytes.subslice(offset, word.len()).ok()?.copy_to(&mut word);
        Some(u32::from_le_bytes(word))
    }

    /// Puts a word at an offset. Returns whether it lies wholly in the page.
    pub fn put_word(&self, offset: usize, word: u32) -> bool {
        // SAFETY: It is the page, which stays, and nothing in Rust refers to it.
        let bytes = unsafe { VolatileSlice::new(self.0 as *mut u8, PAGE) };
        let place = bytes.subslice(offset, size_of::<u32>());
        place.map(|place| place.copy_from(&word.to_le_bytes())).is_ok()
    }
}

impl ShadowPage {
    /// Clears so many bytes from an offset on, as far as they are in the page.
    pub fn clear(&self, offset: usize, bytes: usize) {
        // SAFETY: It is the page, which stays, and nothing in Rust refers to it.
        let page = unsafe { VolatileSlice::new(self.0 as *mut u8, PAGE) };
        if let Ok(part) = page.subslice(offset, bytes) {
            part.copy_from(&[0_u8; PAGE][..bytes]);
        }
    }
}

impl Drop for ShadowPage {
    fn drop(&mut self) {
        // SAFETY: The page was mapped by `map`, and nothing in Rust refers to what is in it.
        unsafe { libc::munmap(self.0 as *mut libc::c_void, PAGE) };
    }
}

/// A part of a device file that is mapped somewhere in this process.
pub struct Mapping {
    at: *mut libc::c_void,
    pages: u32,
    writable: bool,
}

// SAFETY: The address is only given to the kernel, which knows it in all threads.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a part of a file, shared with whoever has it mapped.
    pub fn new(file: &impl AsRawFd, map: &sluice_devfile::Map) -> io::Result<Self> {
        let right = |given, bit| if given { bit } else { 0 };
        let protection = right(map.read, libc::PROT_READ) | right(map.write, libc::PROT_WRITE);
        let offset = libc::off_t::try_from(map.offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let bytes = map.pages as usize * PAGE;
        let (nowhere, file) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: The kernel finds a place where nothing is.
        let at = unsafe { libc::mmap(nowhere, bytes, protection, libc::MAP_SHARED, file, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at, pages: map.pages, writable: map.write })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.at as u64
    }

    /// Copies the bytes from the start of it, as many as fit. Whoever else has it mapped may change them meanwhile.
    pub fn read(&self, to: &mut [u8]) {
        // SAFETY: It is the mapping, which stays, and nothing in Rust refers to it.
        let bytes = unsafe { VolatileSlice::new(self.at.cast(), self.pages as usize * PAGE) };
        bytes.copy_to(to);
    }

    /// Its words. Whoever else has it mapped may change them at any time.
    pub fn words(&self) -> &[AtomicU32] {
        let words = self.pages as usize * PAGE / size_of::<AtomicU32>();
        // SAFETY: It is the mapping, which stays as long as this borrow of it, and is aligned to a page; what others change at any time is read and
        // written by atomic accesses only.
        unsafe { std::slice::from_raw_parts(self.at.cast::<AtomicU32>(), words) }
    }

    /// Copies bytes to the start of it, as many as fit. Nothing is written where it may not be.
    pub fn write(&self, from: &[u8]) {
        if !self.writable {
            return;
        }
        // SAFETY: It is the mapping, which stays and may be written, and nothing in Rust refers to it.
        let bytes = unsafe { VolatileSlice::new(self.at.cast(), self.pages as usize * PAGE) };
        bytes.copy_from(from);
    }

    /// Whether there is memory at its start: a program that touched it otherwise would end by SIGBUS.
    pub fn is_there(&self) -> io::Result<bool> {
        let (_reader, mut writer) = std::io::pipe()?;
        // SAFETY: The kernel reads a byte of the mapping, or finds that there is none.
        let byte = unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), 1) };
        match std::io::Write::write(&mut writer, byte) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// It may be written.
    pub fn writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: It was mapped by `new`, and nothing in Rust refers to what is in it.
        unsafe { libc::munmap(self.at, self.pages as usize * PAGE) };
    }
}

/// A lane in a guest's memory, mapped here.
pub struct LanePage(Mapping);

// SAFETY: A lane is shared between threads, and with the guest.
unsafe impl Sync for LanePage {}

impl LanePage {
    /// Maps a page of the window behind a function's file.
    pub fn map(file: &impl AsRawFd, page: std::num::NonZeroU32) -> io::Result<Self> {
        let offset = u64::from(page.get()) * PAGE as u64;
        Mapping::new(file, &sluice_devfile::Map { offset, first: 0, pages: 1, read: true, write: true })
            .map(Self)
    }
}

impl std::ops::Deref for LanePage {
    type Target = sluice_devfile::Lane;

    fn deref(&self) -> &Self::Target {
        // SAFETY: It is a whole page, as long as this is there. A lane is atomic numbers only, of which every pattern of bits is a value.
        unsafe { &*self.0.at.cast() }
    }
}

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// What a system call answered: a number, or that of an error, negative.
fn outcome(answer: i64) -> i64 {
    match answer {
        0.. => answer,
        _ => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Reads from a file to an address that a guest's process named.
///
/// # Safety
/// These bytes are in [`ShadowPage`]s.
pub unsafe fn read_to(file: &impl AsRawFd, address: u64, bytes: u32, from: Position, narrow: bool) -> i64 {
    /// `read` and `pread64` among the system calls of 32 bits.
    const CALLS: [u32; 2] = [3, 180];
    if narrow {
        // SAFETY: As below.
        return unsafe { narrow_move(CALLS, file, address, bytes, from) };
    }
    let (file, to, bytes) = (file.as_raw_fd(), address as *mut libc::c_void, bytes as usize);
    // SAFETY: The bytes are in pages to which nothing in Rust refers.
    let moved = unsafe {
        match from.offset() {
            None => libc::read(file, to, bytes),
            Some(offset) => libc::pread(file, to, bytes, offset),
        }
    };
    outcome(moved as i64)
}

/// Writes to a file from an address that a guest's process named.
///
/// # Safety
/// As [`read_to`].
pub unsafe fn write_from(file: &impl AsRawFd, address: u64, bytes: u32, to: Position, narrow: bool) -> i64 {
    /// `write` and `pwrite64` among the system calls of 32 bits.
    const CALLS: [u32; 2] = [4, 181];
    if narrow {
        // SAFETY: As below.
        return unsafe { narrow_move(CALLS, file, address, bytes, to) };
    }
    let (file, from, bytes) = (file.as_raw_fd(), address as *const libc::c_void, bytes as usize);
    // SAFETY: The bytes are in pages to which nothing in Rust refers.
    let moved = unsafe {
        match to.offset() {
            None => libc::write(file, from, bytes),
            Some(offset) => libc::pwrite(file, from, bytes, offset),
        }
    };
    outcome(moved as i64)
}

/// Reads or writes as a program of 32 bits does.
///
/// # Safety
/// As [`read_to`].
unsafe fn narrow_move(
    [here, at]: [u32; 2],
    file: &impl AsRawFd,
    address: u64,
    bytes: u32,
    position: Position,
) -> i64 {
    let (call, offset) = position.offset().map_or((here, 0), |offset| (at, offset));
    let arguments =
        [file.as_raw_fd() as u32, address as u32, bytes, offset as u32, (offset as u64 >> 32) as u32];
    // SAFETY: The caller answers for what is read and written.
    unsafe { narrow_call(call, arguments) }
}

/// Makes an ioctl with the argument that a guest's process gave.
///
/// # Safety
/// Whatever the driver writes may be written: the process is a shadow, which holds nothing but what is its guest's, and may do nothing.
pub unsafe fn ioctl_for_guest(file: &impl AsRawFd, number: u32, argument: u64, narrow: bool) -> i64 {
    if narrow {
        // SAFETY: As below.
        return unsafe { narrow_ioctl(file, number, argument as u32) };
    }
    let mut result = libc::SYS_ioctl;
    // SAFETY: The caller answers for what is written. The kernel changes two registers beside its answer's. What a C library adds
    // (an error's number in the thread's memory, in some another call with structures of former times) is nothing that a guest asked for.
    unsafe {
        core::arch::asm!(
            "syscall",
            inout("rax") result,
            in("rdi") file.as_raw_fd(),
            in("rsi") u64::from(number),
            in("rdx") argument,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes an ioctl as a program of 32 bits does: structures with addresses or long numbers in them are others for it.
///
/// # Safety
/// What the driver writes at the argument may be written.
pub unsafe fn narrow_ioctl(file: &impl AsRawFd, number: u32, argument: u32) -> i64 {
    /// `ioctl` among the system calls of 32 bits.
    const IOCTL: u32 = 54;
    // SAFETY: The caller answers for what is written.
    unsafe { narrow_call(IOCTL, [file.as_raw_fd() as u32, number, argument, 0, 0]) }
}

/// Makes a system call as a program of 32 bits does.
///
/// # Safety
/// As of the call.
unsafe fn narrow_call(call: u32, [first, second, third, fourth, fifth]: [u32; 5]) -> i64 {
    let result: u32;
    // SAFETY: The caller answers for what the call does. The compiler keeps a register for itself that the call takes its first argument in; the call
    // may alter four that it does not know.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first:r}",
            "int 0x80",
            "xchg rbx, {first:r}",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") call => result,
            in("ecx") second,
            in("edx") third,
            in("esi") fourth,
            in("edi") fifth,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    i64::from(result as i32)
}

/// Moves where a file is read and written next.
pub fn seek(file: &impl AsRawFd, offset: i64, whence: u32) -> i64 {
    // SAFETY: No memory is touched.
    outcome(unsafe { libc::lseek(file.as_raw_fd(), offset, whence as libc::c_int) })
}

/// Has a file's driver say by SIGIO that it has something, which the calling thread then waits for by [`SignalWait::next`].
pub struct SignalWait(libc::sigset_t);

impl SignalWait {
    /// From now on.
    pub fn new(file: &impl AsRawFd) -> io::Result<Self> {
        // SAFETY: All zeros are room for a set.
        let mut set = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is one.
        check(unsafe { libc::sigemptyset(&mut set) })?;
        // SAFETY: As above.
        check(unsafe { libc::sigaddset(&mut set, libc::SIGIO) })?;
        // SAFETY: As above; nobody asks what was blocked before.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) })?;
        // SAFETY: No memory is touched.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETOWN, libc::getpid()) })?;
        let flags = flags(file)?;
        // SAFETY: As above.
        check(unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_ASYNC | libc::O_NONBLOCK)
        })?;
        Ok(Self(set))
    }

    /// Waits for a signal, for so many seconds at most. Returns whether one came.
    pub fn next(&self, seconds: i64) -> bool {
        let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
        // SAFETY: Both are whole, and nobody asks what came with the signal.
        unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &time) == libc::SIGIO }
    }
}

/// Which of these events a file is ready for, as poll(2); waits for one, if it is to.
pub fn poll(file: &impl AsRawFd, events: u16, waits: bool) -> i64 {
    poll_for(file, events, if waits { -1 } else { 0 })
}

/// Which of these events a file is ready for, as poll(2), within so many milliseconds; below 0: however long it takes.
pub fn poll_for(file: &impl AsRawFd, events: u16, milliseconds: i32) -> i64 {
    let mut asked = libc::pollfd { fd: file.as_raw_fd(), events: events as i16, revents: 0 };
    // SAFETY: There is one entry, which the call writes to.
    match outcome(unsafe { libc::poll(&mut asked, 1, milliseconds) }.into()) {
        0.. => i64::from(asked.revents as u16),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn an_ioctl_is_refused_whatever_its_size_and_way() {
        let refused = || {
            // SAFETY: No memory is touched.
            check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).unwrap();
            refuse_ioctls(0x6442).unwrap();
            let null = File::open("/dev/null").unwrap();
            // SAFETY: The driver knows none of these.
            let ask = |number, narrow| unsafe { ioctl_for_guest(&null, number, 0, narrow) };
            let all = [0xc020_6442, 0xc040_6442, 0xc028_6443, 0xc028_4142];
            all.map(|number| [false, true].map(|narrow| -ask(number, narrow) as i32))
        };
        // Only for this thread.
        let refused = std::thread::spawn(refused).join().unwrap();
        let [refuses, has_none] = [[libc::EPERM; 2], [libc::ENOTTY; 2]];
        assert_eq!(refused, [refuses, refuses, has_none, has_none]);
    }

    #[test]
    fn a_descriptor_is_taken_over_by_one() {
        let ours = File::open("/dev/null").unwrap();
        let made = File::open("/dev/null").unwrap().into_raw_fd();
        let is_ours = |number| number == ours.as_raw_fd();
        let refused = |number| take_descriptor(number, is_ours).unwrap_err().raw_os_error();
        assert_eq!(refused(ours.as_raw_fd()), Some(libc::EBADF));
        assert_eq!(refused(-1), Some(libc::EBADF));
        assert_eq!(take_descriptor(made, is_ours).unwrap().as_raw_fd(), made);
    }

    #[test]
    fn a_file_that_is_lent_has_its_number_and_is_nobodys_to_take() {
        make_room_for_lent().unwrap();
        let lent = Lent::new(&File::open("/dev/null").unwrap(), 4095).unwrap();
        assert_eq!(lent.number(), (DEVFILE_LENT + 4095) as RawFd);
        let refused = take_descriptor(lent.number(), |_| false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn a_message_comes_with_its_files() {
        let (ours, theirs) = socket_pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        ours.send_with_fds(&[&[7_u8, 8][..]], &[null.as_raw_fd(), null.as_raw_fd()]).unwrap();
        let mut bytes = [0; 4];
        let (length, files) = receive(&theirs, &mut bytes, 3).unwrap();
        assert_eq!((length, files.len(), bytes), (2, 2, [7, 8, 0, 0]));
    }
}
