//! The screen of a graphics card, by include/uapi/drm/drm_mode.h: a mode is set, and pages are flipped, with buffers that this program draws into.
//!
//! What is drawn is known: a picture of the screen can be compared with it.

use crate::drm::{call, number, plain};
use crate::result;
use anyhow::{Context, Result, bail, ensure};
use sluice_backend::sys::{self, Call, Mapping, Order, PAGE, Plain};
use sluice_devfile::Map;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_WRITE};

/// Pixels of the mode that is set.
const SIZE: (u32, u32) = (1024, 768);
/// The user of a process without privileges.
const NOBODY: u32 = 65534;
/// Longest time until a page is flipped, in ms.
const FLIP_TIME: i32 = 10_000;

/// `struct drm_mode_modeinfo`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Mode([u32; 17]);

impl Mode {
    fn size(&self) -> (u32, u32) {
        (self.0[1] & 0xffff, self.0[3] >> 16)
    }
}

/// `struct drm_mode_card_res`: addresses and numbers of framebuffers, CRTCs, connectors and encoders; bounds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Resources {
    lists: [u64; 4],
    counts: [u32; 4],
    bounds: [u32; 4],
}

/// `struct drm_mode_get_connector`: encoders, modes, properties, values.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Connector {
    lists: [u64; 4],
    modes: u32,
    properties: u32,
    encoders: u32,
    encoder: u32,
    number: u32,
    kind: [u32; 2],
    connection: u32,
    rest: [u32; 4],
}

/// `struct drm_mode_crtc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Crtc {
    connectors: u64,
    count: u32,
    number: u32,
    framebuffer: u32,
    rest: [u32; 3],
    mode_valid: u32,
    mode: Mode,
}

/// `struct drm_mode_create_dumb`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Dumb {
    height: u32,
    width: u32,
    bits: u32,
    flags: u32,
    handle: u32,
    pitch: u32,
    size: u64,
}

/// `struct drm_mode_map_dumb`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct MapDumb {
    handle: u32,
    padding: u32,
    offset: u64,
}

/// `struct drm_mode_fb_cmd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Framebuffer {
    number: u32,
    width: u32,
    height: u32,
    pitch: u32,
    bits: u32,
    depth: u32,
    handle: u32,
}

/// `struct drm_mode_crtc_page_flip`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Flip {
    crtc: u32,
    framebuffer: u32,
    flags: u32,
    reserved: u32,
    data: u64,
}

/// `struct drm_mode_fb_dirty_cmd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Dirty {
    framebuffer: u32,
    flags: u32,
    color: u32,
    count: u32,
    clips: u64,
}

/// `struct drm_mode_get_plane_res`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Planes {
    list: u64,
    count: u32,
    padding: u32,
}

/// `struct drm_mode_obj_get_properties`: numbers and values.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Properties {
    lists: [u64; 2],
    count: u32,
    object: u32,
    kind: u32,
    padding: u32,
}

/// `struct drm_mode_get_property`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Property {
    lists: [u64; 2],
    number: u32,
    flags: u32,
    name: [u8; 32],
    counts: [u32; 2],
}

/// `struct drm_mode_atomic`: objects, how many properties of each, properties, values.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Atomic {
    flags: u32,
    count: u32,
    lists: [u64; 4],
    reserved: u64,
    data: u64,
}

/// `struct drm_client`: a number, whether it is authenticated, process, user, and what is not used any more.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Client {
    number: u32,
    is_authenticated: u32,
    process: u64,
    rest: [u64; 3],
}

/// `struct drm_mode_create_lease`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Lease {
    objects: u64,
    count: u32,
    flags: u32,
    lessee: u32,
    descriptor: u32,
}

plain!(
    Client,
    Lease,
    Resources,
    Connector,
    Crtc,
    Dumb,
    MapDumb,
    Framebuffer,
    Flip,
    Dirty,
    Planes,
    Properties,
    Property,
    Atomic
);

// SAFETY: The driver reads two numbers.
const CAPABILITY: Call<[u64; 2]> = unsafe { Call::new(number(_IOC_WRITE, 0x0d, 16)) };
// SAFETY: They have no arguments.
const SET_MASTER: Order = unsafe { Order::new(number(_IOC_NONE, 0x1e, 0)) };
// SAFETY: As above.
const DROP_MASTER: Order = unsafe { Order::new(number(_IOC_NONE, 0x1f, 0)) };
const CLIENT: Call<Client> = call(0x05);
const RESOURCES: Call<Resources> = call(0xa0);
const SET_CRTC: Call<Crtc> = call(0xa2);
const CONNECTOR: Call<Connector> = call(0xa7);
const PROPERTY: Call<Property> = call(0xaa);
const ADD_FRAMEBUFFER: Call<Framebuffer> = call(0xae);
const FLIP: Call<Flip> = call(0xb0);
const DIRTY: Call<Dirty> = call(0xb1);
const CREATE_DUMB: Call<Dumb> = call(0xb2);
const MAP_DUMB: Call<MapDumb> = call(0xb3);
const PLANES: Call<Planes> = call(0xb5);
const PROPERTIES: Call<Properties> = call(0xb9);
const ATOMIC: Call<Atomic> = call(0xbc);
const LEASE: Call<Lease> = call(0xc6);

/// `DRM_MODE_PAGE_FLIP_EVENT`.
const EVENT: u32 = 1;
/// `DRM_MODE_ATOMIC_TEST_ONLY`.
const TEST_ONLY: u32 = 0x100;
/// `DRM_MODE_OBJECT_PLANE`.
const PLANE: u32 = 0xeeee_eeee;
/// `DRM_CLIENT_CAP_UNIVERSAL_PLANES`, `DRM_CLIENT_CAP_ATOMIC`.
const CAPABILITIES: [u64; 2] = [2, 3];
/// `DRM_MODE_OBJECT_CRTC`.
const CRTC: u32 = 0xcccc_cccc;
/// `DRM_EVENT_FLIP_COMPLETE`.
const FLIP_COMPLETE: u32 = 2;

/// Where a list is.
fn at<T>(list: &mut [T]) -> u64 {
    list.as_mut_ptr() as u64
}

/// Memory that is drawn into, and can be shown.
struct Buffer {
    framebuffer: u32,
    pitch: u32,
    mapping: Mapping,
}

impl Buffer {
    fn new(file: &File) -> Result<Self> {
        let (width, height) = SIZE;
        let mut dumb = Dumb { width, height, bits: 32, ..Dumb::default() };
        CREATE_DUMB.update(file, &mut dumb).context("CREATE_DUMB failed")?;
        let Dumb { handle, pitch, .. } = dumb;
        let mut framebuffer =
            Framebuffer { width, height, pitch, bits: 32, depth: 24, handle, ..Framebuffer::default() };
        ADD_FRAMEBUFFER.update(file, &mut framebuffer).context("ADDFB failed")?;
        let mut place = MapDumb { handle, ..MapDumb::default() };
        MAP_DUMB.update(file, &mut place).context("MAP_DUMB failed")?;
        let pages = (dumb.size as usize).div_ceil(PAGE) as u32;
        let map = Map { offset: place.offset, first: 0, pages, read: true, write: true };
        let mapping = Mapping::new(file, &map).context("could not map a buffer")?;
        Ok(Self { framebuffer: framebuffer.number, pitch, mapping })
    }

    /// Draws a picture, of which there are some. Returns its digest.
    fn draw(&self, which: u32) -> u64 {
        let (width, height) = SIZE;
        let mut bytes = vec![0; (self.pitch * height) as usize];
        let mut digest = FNV_BASIS;
        for (y, row) in (0..height).zip(bytes.chunks_exact_mut(self.pitch as usize)) {
            for (x, pixel) in (0..width).zip(row.chunks_exact_mut(4)) {
                let rgb = [3 * x + 85 * which, 5 * y + 40 * which, (x ^ y) + which].map(|value| value as u8);
                pixel.copy_from_slice(&[rgb[2], rgb[1], rgb[0], 0]);
                digest = rgb.iter().fold(digest, |digest, byte| fnv(digest, *byte));
            }
        }
        self.mapping.write(&bytes);
        digest
    }
}

/// FNV-1a, which who looks at a picture of the screen takes as well.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(digest: u64, byte: u8) -> u64 {
    (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
}

/// A card, with the first connector that has a screen.
struct Card {
    file: File,
    connector: u32,
    crtc: u32,
    mode: Mode,
    buffers: [Buffer; 2],
    shown: usize,
    plane: u32,
    framebuffer_of_plane: u32,
    /// Properties: of the plane a fence that is waited for, of the CRTC where one is told.
    in_fence: u32,
    out_fence: u32,
}

impl Card {
    fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path).context("could not open the card")?;
        CAPABILITIES.iter().try_for_each(|which| CAPABILITY.set(&file, &[*which, 1]))?;
        let (crtcs, connectors) = resources(&file)?;
        let found = connectors.iter().find_map(|connector| Some((*connector, mode(&file, *connector)?)));
        let (connector, mode) = found.context("no connector has a screen with such a mode")?;
        let crtc = *crtcs.first().context("no CRTC")?;
        let plane = plane(&file)?;
        let framebuffer_of_plane = property(&file, plane, PLANE, b"FB_ID\0")?;
        let in_fence = property(&file, plane, PLANE, b"IN_FENCE_FD\0")?;
        let out_fence = property(&file, crtc, CRTC, b"OUT_FENCE_PTR\0")?;
        let buffers = [Buffer::new(&file)?, Buffer::new(&file)?];
        Ok(Self {
            file,
            connector,
            crtc,
            mode,
            buffers,
            shown: 1,
            plane,
            framebuffer_of_plane,
            in_fence,
            out_fence,
        })
    }

    /// The mode, with a buffer.
    fn set_mode(&self, framebuffer: u32) -> io::Result<()> {
        let mut connectors = [self.connector];
        let mut crtc = Crtc {
            connectors: at(&mut connectors),
            count: 1,
            number: self.crtc,
            framebuffer,
            mode_valid: 1,
            mode: self.mode,
            ..Crtc::default()
        };
        SET_CRTC.update(&self.file, &mut crtc)
    }

    fn flip(&self, framebuffer: u32, data: u64) -> io::Result<()> {
        let mut flip = Flip { crtc: self.crtc, framebuffer, flags: EVENT, reserved: 0, data };
        FLIP.update(&self.file, &mut flip)
    }

    /// The same by properties.
    fn commit(&self, framebuffer: u32, data: u64) -> io::Result<()> {
        let (mut objects, mut counts) = ([self.plane], [1_u32]);
        let (mut properties, mut values) = ([self.framebuffer_of_plane], [u64::from(framebuffer)]);
        let lists = [at(&mut objects), at(&mut counts), at(&mut properties), at(&mut values)];
        ATOMIC.update(&self.file, &mut Atomic { flags: EVENT, count: 1, lists, reserved: 0, data })
    }

    /// Shows a framebuffer once a fence is signalled (-1: at once), and has a fence told at this address (0: nowhere).
    fn commit_fenced(&self, framebuffer: u32, fence: i32, told: u64) -> io::Result<()> {
        let (mut objects, mut counts) = ([self.plane, self.crtc], [2_u32, 1]);
        let mut properties = [self.framebuffer_of_plane, self.in_fence, self.out_fence];
        let mut values = [u64::from(framebuffer), i64::from(fence) as u64, told];
        let lists = [at(&mut objects), at(&mut counts), at(&mut properties), at(&mut values)];
        ATOMIC.update(&self.file, &mut Atomic { flags: 0, count: 2, lists, reserved: 0, data: 0 })?;
        // The program's number is in its place again.
        if values[1] != i64::from(fence) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// Shows a framebuffer, and it once more when that is done, which the fence of the first one says.
    fn commit_twice(&self, framebuffer: u32) -> io::Result<()> {
        let mut fences = [-1_i32, -1];
        self.commit_fenced(framebuffer, -1, at(&mut fences[..1]))?;
        let first = taken(fences[0])?;
        self.commit_fenced(framebuffer, first.as_raw_fd(), at(&mut fences[1..]))?;
        let second = taken(fences[1])?;
        if sys::poll_for(&second, libc::POLLIN as u16, FLIP_TIME) & i64::from(libc::POLLIN) == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// The event of a page that was flipped.
    fn await_flip(&self, data: u64) -> Result<()> {
        let ready = sys::poll_for(&self.file, libc::POLLIN as u16, FLIP_TIME);
        ensure!(ready & i64::from(libc::POLLIN) != 0, "no page was flipped: poll says {ready}");
        let mut event = [0; 32];
        let read = (&self.file).read(&mut event).context("could not read an event")?;
        let word = |at: usize| u32::from_le_bytes([event[at], event[at + 1], event[at + 2], event[at + 3]]);
        let found = u64::from(word(8)) | u64::from(word(12)) << 32;
        ensure!(
            (read, word(0), found) == (event.len(), FLIP_COMPLETE, data),
            "an event is {:x?}",
            &event[..read]
        );
        Ok(())
    }

    /// Shows a picture, in one of the ways.
    fn show(&mut self, way: &str, which: u32) -> Result<()> {
        let next = if way == "dirty" { self.shown } else { 1 - self.shown };
        let digest = self.buffers[next].draw(which);
        let framebuffer = self.buffers[next].framebuffer;
        let data = 0x1234_5678_0000 | u64::from(which);
        let done = match way {
            "mode" => self.set_mode(framebuffer),
            "flip" => self.flip(framebuffer, data),
            "atomic" => self.commit(framebuffer, data),
            "fenced" => self.commit_twice(framebuffer),
            "dirty" => {
                let mut clips = [[0_u16, 0, SIZE.0 as u16, SIZE.1 as u16]];
                let clips = at(&mut clips);
                DIRTY.update(&self.file, &mut Dirty { framebuffer, count: 1, clips, ..Dirty::default() })
            }
            _ => bail!("nothing is shown by '{way}'"),
        };
        if done.is_ok() {
            self.shown = next;
            if matches!(way, "flip" | "atomic") {
                self.await_flip(data)?;
            }
        }
        result(&format!("{way}_{which}={} digest_{which}={digest:016x}", outcome(&done)));
        Ok(())
    }

    /// Asks whether a framebuffer could be shown, and a fence be told: where one would be, there is none.
    fn ask_only(&self, framebuffer: u32) -> io::Result<()> {
        let mut fence = [77_i32];
        let (mut objects, mut counts) = ([self.plane, self.crtc], [1_u32, 1]);
        let mut properties = [self.framebuffer_of_plane, self.out_fence];
        let mut values = [u64::from(framebuffer), at(&mut fence)];
        let lists = [at(&mut objects), at(&mut counts), at(&mut properties), at(&mut values)];
        ATOMIC.update(&self.file, &mut Atomic { flags: TEST_ONLY, count: 2, lists, reserved: 0, data: 0 })?;
        if fence[0] != -1 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// The one client that the driver tells of is this process.
    fn is_client(&self) -> io::Result<()> {
        let mut client = Client::default();
        CLIENT.update(&self.file, &mut client)?;
        if (client.is_authenticated, client.process) != (1, u64::from(std::process::id())) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// A file with the screen lent to it maps a buffer, to write there.
    fn lend(&self) -> Result<()> {
        let mut objects = [self.crtc, self.connector, self.plane];
        let mut lease = Lease { objects: at(&mut objects), count: 3, ..Lease::default() };
        LEASE.update(&self.file, &mut lease).context("CREATE_LEASE failed")?;
        let lessee = taken(lease.descriptor as i32).context("there is no lease")?;
        let buffer = Buffer::new(&lessee)?;
        buffer.draw(0);
        Ok(())
    }

    /// What only the process that opened the card may do, and others only with privileges.
    fn own(&self) -> Result<()> {
        let say = |what: &str, done: io::Result<()>| result(&format!("own_{what}={}", outcome(&done)));
        say("test", self.ask_only(self.buffers[self.shown].framebuffer));
        say("client", self.is_client());
        self.lend()?;
        say("lease", Ok(()));
        let mut other = Command::new(std::env::current_exe()?);
        other.args(["screen", "stdin", "--other"]).stdin(self.file.try_clone()?).uid(NOBODY);
        ensure!(other.status()?.success(), "the other process failed");
        Ok(())
    }

    /// What is wrong fails as the driver has it.
    fn ask_wrongly(&self) {
        let nowhere = 0x1000;
        let ask = |what: &str, done: io::Result<()>| result(&format!("wrong_{what}={}", outcome(&done)));
        let mut resources =
            Resources { lists: [0, 0, nowhere, 0], counts: [0, 0, 1, 0], ..Resources::default() };
        ask("pointer", RESOURCES.update(&self.file, &mut resources));
        ask("framebuffer", self.set_mode(0x7fff_ffff));
        ask("flip", self.flip(self.connector, 0));
        // The first array says that more follow than there are.
        let (mut objects, mut counts) = ([self.plane], [u32::MAX]);
        let lists = [at(&mut objects), at(&mut counts), nowhere, nowhere];
        let commit = |count, lists| {
            ATOMIC.update(&self.file, &mut Atomic { flags: 0, count, lists, reserved: 0, data: 0 })
        };
        ask("sum", commit(1, lists));
        ask("count", commit(u32::MAX, [nowhere; 4]));
        counts[0] = 1;
        let (mut property, mut value) = ([0x7fff_ffff_u32], [0_u64]);
        ask("property", commit(1, [lists[0], at(&mut counts), at(&mut property), at(&mut value)]));
        let shown = self.buffers[self.shown].framebuffer;
        ask("fence_place", self.commit_fenced(shown, -1, nowhere));
        ask("fence_none", self.commit_fenced(shown, 999, 0));
        ask("fence_own", self.commit_fenced(shown, io::stdin().as_raw_fd(), 0));
        ask("fence_card", self.commit_fenced(shown, self.file.as_raw_fd(), 0));
        let mut dirty =
            Dirty { framebuffer: self.buffers[0].framebuffer, count: 1, clips: nowhere, ..Dirty::default() };
        ask("clips", DIRTY.update(&self.file, &mut dirty));
    }
}

/// `ok`, or an error's number.
fn outcome(done: &io::Result<()>) -> String {
    match done {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.raw_os_error().unwrap_or(0).to_string(),
    }
}

/// CRTCs and connectors.
fn resources(file: &File) -> Result<(Vec<u32>, Vec<u32>)> {
    let mut counted = RESOURCES.get(file).context("GETRESOURCES failed")?;
    let mut lists = counted.counts.map(|count| vec![0_u32; count as usize]);
    for (address, list) in counted.lists.iter_mut().zip(&mut lists) {
        *address = at(list);
    }
    RESOURCES.update(file, &mut counted).context("GETRESOURCES failed")?;
    let [_, crtcs, connectors, _] = lists;
    Ok((crtcs, connectors))
}

/// The mode of a connector that this program sets.
fn mode(file: &File, number: u32) -> Option<Mode> {
    let mut connector = Connector { number, ..Connector::default() };
    CONNECTOR.update(file, &mut connector).ok()?;
    let mut modes = vec![Mode::default(); connector.modes as usize];
    let mut encoders = vec![0_u32; connector.encoders as usize];
    let mut properties = vec![0_u32; connector.properties as usize];
    let mut values = vec![0_u64; connector.properties as usize];
    connector.lists = [at(&mut encoders), at(&mut modes), at(&mut properties), at(&mut values)];
    CONNECTOR.update(file, &mut connector).ok()?;
    modes.into_iter().find(|mode| mode.size() == SIZE)
}

/// A descriptor that the driver has told.
fn taken(descriptor: i32) -> io::Result<File> {
    if descriptor <= 2 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    sys::take_descriptor(descriptor, |_| false)
}

/// The first plane.
fn plane(file: &File) -> Result<u32> {
    let mut planes = PLANES.get(file).context("GETPLANERESOURCES failed")?;
    let mut list = vec![0_u32; planes.count as usize];
    planes.list = at(&mut list);
    PLANES.update(file, &mut planes).context("GETPLANERESOURCES failed")?;
    list.first().copied().context("no plane")
}

/// An object's property of this name.
fn property(file: &File, object: u32, kind: u32, name: &[u8]) -> Result<u32> {
    let mut properties = Properties { object, kind, ..Properties::default() };
    PROPERTIES.update(file, &mut properties).context("OBJ_GETPROPERTIES failed")?;
    let mut numbers = vec![0_u32; properties.count as usize];
    let mut values = vec![0_u64; properties.count as usize];
    properties.lists = [at(&mut numbers), at(&mut values)];
    PROPERTIES.update(file, &mut properties).context("OBJ_GETPROPERTIES failed")?;
    for number in numbers {
        let mut property = Property { number, ..Property::default() };
        PROPERTY.update(file, &mut property).context("GETPROPERTY failed")?;
        if property.name.starts_with(name) {
            return Ok(number);
        }
    }
    bail!("no property of {object} is called {}", String::from_utf8_lossy(name))
}

/// Another process than the one that opened the card, which is its standard input, without privileges, asks not to be master, and to be it.
pub fn be_another() -> Result<()> {
    let card = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (dropped, set) = (DROP_MASTER.give(&card), SET_MASTER.give(&card));
    result(&format!("own_dropped_by_other={} own_set_by_other={}", outcome(&dropped), outcome(&set)));
    Ok(())
}

/// Does what lines say: `mode 1`, `flip 2`, `atomic 3`, `dirty 4`, `fenced 5` show a picture, `wrong` asks for what fails, `own` for what depends on who asks, `set-master` and `drop-master` are the
/// ioctls; `end`.
pub fn run(path: &Path) -> Result<()> {
    let mut card = Card::open(path)?;
    result("screen=ready");
    for line in io::stdin().lines() {
        let line = line.context("no line came")?;
        match line.trim().split_once(' ') {
            Some((way, which)) => card.show(way, which.parse().context("no number of a picture")?)?,
            None => match line.trim() {
                "wrong" => card.ask_wrongly(),
                "own" => card.own()?,
                "set-master" => result(&format!("set_master={}", outcome(&SET_MASTER.give(&card.file)))),
                "drop-master" => result(&format!("drop_master={}", outcome(&DROP_MASTER.give(&card.file)))),
                "end" => break,
                other => bail!("what is '{other}'?"),
            },
        }
    }
    result("screen=ended");
    Ok(())
}
