//! A camera, by include/uapi/linux/videodev2.h, with frames that are read, or streamed into buffers that are mapped.

use crate::result;
use anyhow::{Context, Result, bail, ensure};
use sluice_backend::sys::{self, Call, Mapping, PAGE, Plain};
use sluice_devfile::Map;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE, ioctl_expr};

pub const WIDTH: u32 = 320;
pub const HEIGHT: u32 = 180;
/// Bytes of a pixel of YUYV.
const PIXEL: u32 = 2;
pub const YUYV: u32 = u32::from_le_bytes(*b"YUYV");
/// `V4L2_BUF_TYPE_VIDEO_CAPTURE`.
pub const CAPTURE: u32 = 1;
/// vivid's control `OSD Text Mode`, and its value for no text.
pub const TEXT: u32 = 0x00f0_f001;
pub const NO_TEXT: i32 = 2;

/// `struct v4l2_capability`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Capability {
    driver: [u8; 16],
    card: [u8; 32],
    bus: [u8; 32],
    numbers: [u32; 6],
}

/// `struct v4l2_format`: its type, four bytes of padding, then `struct v4l2_pix_format` in 200 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Format {
    kind: u32,
    padding: u32,
    words: [u32; 50],
}

impl Default for Format {
    fn default() -> Self {
        Self { kind: CAPTURE, padding: 0, words: [0; 50] }
    }
}

/// `struct v4l2_control`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Control {
    number: u32,
    value: i32,
}

// SAFETY: It is numbers.
unsafe impl Plain for Capability {}
// SAFETY: It is numbers.
unsafe impl Plain for Format {}
// SAFETY: It is numbers.
unsafe impl Plain for Control {}

/// Number of an ioctl.
pub const fn number(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    ioctl_expr(direction, b'V' as u32, number, size as u32) as libc::c_ulong
}

// SAFETY: The driver writes `struct v4l2_capability`.
const CAPABILITY: Call<Capability> = unsafe { Call::new(number(_IOC_READ, 0, size_of::<Capability>())) };
// SAFETY: The driver reads and writes `struct v4l2_format`.
const SET_FORMAT: Call<Format> = unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, 5, size_of::<Format>())) };
// SAFETY: The driver reads and writes `struct v4l2_control`.
const SET_CONTROL: Call<Control> =
    unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, 28, size_of::<Control>())) };

/// `struct v4l2_requestbuffers`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Buffers {
    count: u32,
    kind: u32,
    memory: u32,
    rest: [u32; 2],
}

/// `struct v4l2_buffer`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Buffer {
    /// Which one.
    pub index: u32,
    kind: u32,
    used: u32,
    /// `V4L2_BUF_FLAG_` bits.
    pub flags: u32,
    field: u32,
    padding: u32,
    time: [u64; 4],
    sequence: u32,
    memory: u32,
    /// Or the descriptor of its memory.
    offset: u64,
    length: u32,
    reserved: u32,
    /// Descriptor of the request that it is of.
    pub request: u32,
    end: u32,
}

/// `struct v4l2_exportbuffer`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Export {
    kind: u32,
    index: u32,
    plane: u32,
    flags: u32,
    descriptor: i32,
    rest: [u32; 11],
}

/// How long buffers may be there when nothing else of the camera is.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time until a frame comes, in ms.
pub const FRAME_TIME: i32 = 10_000;
/// `V4L2_MEMORY_MMAP`.
pub const MAPPED: u32 = 1;
/// `V4L2_MEMORY_DMABUF`.
const SHARED: u32 = 4;

// SAFETY: It is numbers.
unsafe impl Plain for Buffers {}
// SAFETY: It is numbers.
unsafe impl Plain for Export {}
// SAFETY: It is numbers; what leads into memory is not used with `MAPPED` or `SHARED`.
unsafe impl Plain for Buffer {}

pub const BOTH: u32 = _IOC_READ | _IOC_WRITE;
// SAFETY: The driver reads and writes `struct v4l2_requestbuffers`.
const REQUEST_BUFFERS: Call<Buffers> = unsafe { Call::new(number(BOTH, 8, size_of::<Buffers>())) };
// SAFETY: The driver reads and writes `struct v4l2_buffer`.
const QUERY_BUFFER: Call<Buffer> = unsafe { Call::new(number(BOTH, 9, size_of::<Buffer>())) };
// SAFETY: The driver reads and writes `struct v4l2_exportbuffer`.
const EXPORT: Call<Export> = unsafe { Call::new(number(BOTH, 16, size_of::<Export>())) };
// SAFETY: The driver reads and writes `struct v4l2_buffer`.
pub const QUEUE: Call<Buffer> = unsafe { Call::new(number(BOTH, 15, size_of::<Buffer>())) };
// SAFETY: As above.
pub const DEQUEUE: Call<Buffer> = unsafe { Call::new(number(BOTH, 17, size_of::<Buffer>())) };
// SAFETY: The driver reads a number.
pub const START: Call<u32> = unsafe { Call::new(number(_IOC_WRITE, 18, 4)) };
// SAFETY: As above.
const STOP: Call<u32> = unsafe { Call::new(number(_IOC_WRITE, 19, 4)) };

/// How a program gets at frames.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Way {
    /// It reads them.
    Read,
    /// It maps the driver's buffers.
    Mapped,
    /// It has the driver export its buffers, and has another program map what was exported.
    Exported,
}

/// Where this program finds a frame.
enum Place {
    Here(Mapping),
    /// In memory that this descriptor is of.
    Elsewhere(OwnedFd),
}

impl Place {
    fn read(&self, frame: &mut [u8]) -> Result<()> {
        match self {
            Self::Here(mapping) => mapping.read(frame),
            Self::Elsewhere(descriptor) => {
                let mut other = Command::new("/proc/self/exe");
                other.args(["frame", "--bytes", &frame.len().to_string()]).stdin(descriptor.try_clone()?);
                let found = other.stderr(Stdio::inherit()).output().context("no other program")?.stdout;
                ensure!(found.len() == frame.len(), "the other program found {} bytes", found.len());
                frame.copy_from_slice(&found);
            }
        }
        Ok(())
    }
}

/// Writes what is in the exported buffer that is the standard input.
pub fn frame(bytes: usize) -> Result<()> {
    let pages = bytes.div_ceil(PAGE) as u32;
    let map = Map { offset: 0, first: 0, pages, read: true, write: false };
    let mapping = Mapping::new(&std::io::stdin(), &map).context("could not map what was exported")?;
    let mut frame = vec![0; bytes];
    mapping.read(&mut frame);
    Ok(std::io::stdout().write_all(&frame)?)
}

/// Buffers of the driver that this program, or another, has mapped.
pub struct Stream<'f> {
    file: &'f File,
    places: Vec<Place>,
    memory: u32,
    /// Tells that a frame is there, so that nobody waits for one in the driver.
    epoll: Epoll,
}

impl<'f> Stream<'f> {
    /// Has the driver fill buffers.
    fn start(file: &'f File, exported: bool) -> Result<Self> {
        let mut places = Vec::new();
        for index in 0..Self::buffers(file, MAPPED)? {
            let mut buffer = Self::buffer(index, MAPPED);
            QUERY_BUFFER.update(file, &mut buffer).context("VIDIOC_QUERYBUF failed")?;
            let place = if exported {
                Self::export(file, index).map(Place::Elsewhere)
            } else {
                let pages = buffer.length.div_ceil(PAGE as u32);
                let map = Map { offset: buffer.offset, first: 0, pages, read: true, write: true };
                Mapping::new(file, &map).map(Place::Here)
            };
            places.push(place.with_context(|| format!("could not get at buffer {index}"))?);
        }
        Self::begin(file, places, MAPPED)
    }

    /// Has the driver fill memory behind these descriptors.
    pub fn import(file: &'f File, buffers: Vec<OwnedFd>) -> Result<Self> {
        let mut asked = Buffers { count: buffers.len() as u32, ..Self::asked(SHARED) };
        REQUEST_BUFFERS.update(file, &mut asked).context("VIDIOC_REQBUFS of shared memory failed")?;
        Self::begin(file, buffers.into_iter().map(Place::Elsewhere).collect(), SHARED)
    }

    fn begin(file: &'f File, places: Vec<Place>, memory: u32) -> Result<Self> {
        let epoll = Epoll::new()?;
        // Whoever listens may say later what for.
        epoll.ctl(ControlOperation::Add, file.as_raw_fd(), EpollEvent::new(EventSet::empty(), 0))?;
        epoll.ctl(ControlOperation::Modify, file.as_raw_fd(), EpollEvent::new(EventSet::IN, 0))?;
        let stream = Self { file, places, memory, epoll };
        (0..stream.places.len() as u32).try_for_each(|index| stream.queue(index))?;
        START.set(file, &CAPTURE).context("VIDIOC_STREAMON failed")?;
        Ok(stream)
    }

    fn asked(memory: u32) -> Buffers {
        Buffers { count: 4, kind: CAPTURE, memory, ..Buffers::default() }
    }

    /// Has the driver make buffers. Returns how many.
    pub fn buffers(file: &File, memory: u32) -> Result<u32> {
        let mut asked = Self::asked(memory);
        REQUEST_BUFFERS.update(file, &mut asked).context("VIDIOC_REQBUFS failed")?;
        Ok(asked.count)
    }

    /// Has the driver make buffers, and export them.
    pub fn buffers_of(file: &File) -> Result<Vec<OwnedFd>> {
        let export = |index| Self::export(file, index).context("VIDIOC_EXPBUF failed");
        (0..Self::buffers(file, MAPPED)?).map(export).collect()
    }

    fn export(file: &File, index: u32) -> std::io::Result<OwnedFd> {
        let flags = (libc::O_CLOEXEC | libc::O_RDWR) as u32;
        let mut asked = Export { kind: CAPTURE, index, flags, ..Export::default() };
        EXPORT.update(file, &mut asked)?;
        sys::take_descriptor(asked.descriptor, |number| number == file.as_raw_fd()).map(Into::into)
    }

    /// What says which buffer.
    pub fn buffer(index: u32, memory: u32) -> Buffer {
        Buffer { index, kind: CAPTURE, memory, ..Buffer::default() }
    }

    /// Gives a buffer to the driver.
    fn queue(&self, index: u32) -> Result<()> {
        let mut buffer = Self::buffer(index, self.memory);
        if let (SHARED, Some(Place::Elsewhere(descriptor))) = (self.memory, self.places.get(index as usize)) {
            buffer.offset = descriptor.as_raw_fd() as u64;
        }
        QUEUE.update(self.file, &mut buffer).context("VIDIOC_QBUF failed")
    }

    /// The next frame.
    pub fn next(&self, frame: &mut [u8]) -> Result<()> {
        self.next_shared(frame).map(|_| ())
    }

    /// The next frame, and the descriptor that the driver tells of, where there is one.
    pub fn next_shared(&self, frame: &mut [u8]) -> Result<i32> {
        let ready = self.epoll.wait(FRAME_TIME, &mut [EpollEvent::default()])?;
        ensure!(ready == 1, "epoll does not tell of a frame");
        let mut buffer = Self::buffer(0, self.memory);
        DEQUEUE.update(self.file, &mut buffer).context("VIDIOC_DQBUF failed")?;
        ensure!(buffer.used as usize == frame.len(), "a frame has {} bytes", buffer.used);
        self.places.get(buffer.index as usize).context("there is no such buffer")?.read(frame)?;
        self.queue(buffer.index)?;
        Ok(buffer.offset as i32)
    }

    /// Looks at a frame again and again until there is none any more, and says whether the buffers are gone then, too.
    pub fn outlive(&self, frame: &mut [u8]) -> Result<bool> {
        while self.next(frame).is_ok() {}
        let Some(Place::Here(mapping)) = self.places.first() else { bail!("no buffer is mapped here") };
        let began = Instant::now();
        while mapping.is_there()? {
            if began.elapsed() > PATIENCE {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(true)
    }

    /// Has the driver fill none of them any more, and maps none. Another time it does nothing.
    pub fn unmap(&mut self) -> Result<()> {
        STOP.set(self.file, &CAPTURE).context("VIDIOC_STREAMOFF failed")?;
        self.places.clear();
        Ok(())
    }

    /// Gives the buffers back.
    pub fn stop(mut self) -> Result<()> {
        self.unmap()?;
        let mut none = Buffers { kind: CAPTURE, memory: self.memory, ..Buffers::default() };
        REQUEST_BUFFERS.update(self.file, &mut none).context("VIDIOC_REQBUFS failed at the end")
    }
}

/// An open camera, and what it shows.
pub struct Camera {
    file: File,
    driver: String,
    /// Text could be left out of the frames.
    plain: bool,
    bytes: usize,
}

impl Camera {
    /// Opens a camera, and has it make frames of this size.
    pub fn open(path: &Path, width: u32, height: u32) -> Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).open(path).context("could not open the camera")?;
        let capability = CAPABILITY.get(&file).context("VIDIOC_QUERYCAP failed")?;
        let mut format = Format::default();
        format.words[..4].copy_from_slice(&[width, height, YUYV, 1]);
        SET_FORMAT.update(&file, &mut format).context("VIDIOC_S_FMT failed")?;
        let [wide, high, pixels, _, line, size, ..] = format.words;
        ensure!((wide, high, pixels) == (width, height, YUYV), "the format is {:x?}", &format.words[..6]);
        ensure!(line == width * PIXEL && size == width * height * PIXEL, "a frame has {size} bytes");
        let plain = SET_CONTROL.update(&file, &mut Control { number: TEXT, value: NO_TEXT }).is_ok();
        let driver = String::from_utf8_lossy(&capability.driver).trim_end_matches('\0').to_owned();
        Ok(Self { file, driver, plain, bytes: size as usize })
    }

    /// Its file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of a frame.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has the driver fill buffers.
    pub fn stream(&self) -> Result<Stream<'_>> {
        Stream::start(&self.file, false)
    }
}

/// Has frames put into buffers that are mapped here, until the camera is gone.
pub fn outlive(path: &Path) -> Result<()> {
    let camera = Camera::open(path, WIDTH, HEIGHT)?;
    let mut frame = vec![0; camera.bytes()];
    let stream = camera.stream()?;
    stream.next(&mut frame)?;
    result("streaming=yes");
    let gone = stream.outlive(&mut frame)?;
    result(&format!("buffers={}", if gone { "gone" } else { "there" }));
    Ok(())
}

/// Gets at frames in one of the ways.
///
/// # Parameters
/// - `held`: what is streamed by goes on until a line comes.
pub fn run(path: &Path, frames: u32, way: Way, held: bool) -> Result<()> {
    let camera = Camera::open(path, WIDTH, HEIGHT)?;
    let mut digest = DefaultHasher::new();
    let mut frame = vec![0; camera.bytes()];
    if way != Way::Read {
        let stream = Stream::start(&camera.file, way == Way::Exported)?;
        for _ in 0..frames {
            stream.next(&mut frame)?;
            frame.hash(&mut digest);
        }
        if held {
            result("streaming=yes");
            std::io::stdin().read_line(&mut String::new())?;
        }
        stream.stop()?;
    } else {
        for _ in 0..frames {
            (&camera.file).read_exact(&mut frame).context("could not read a frame")?;
            frame.hash(&mut digest);
        }
    }
    let way = match way {
        Way::Read => "camera",
        Way::Mapped => "stream",
        Way::Exported => "exported",
    };
    let (driver, text) = (&camera.driver, if camera.plain { "off" } else { "on" });
    result(&format!("{way}={driver} {way}_frames={frames} {way}_text={text}"));
    result(&format!("{way}_digest={:016x}", digest.finish()));
    Ok(())
}
