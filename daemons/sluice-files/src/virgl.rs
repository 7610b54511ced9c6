//! A virtio graphics card by its render node: buffers, and commands of the protocol that virglrenderer takes.
//!
//! Sources: include/uapi/drm/virtgpu_drm.h; virgl_protocol.h and virgl_hw.h of virglrenderer.

use crate::drm::{call, number, plain};
use anyhow::{Context, Result};
use sluice_backend::sys::{Call, Mapping, PAGE, Plain};
use sluice_devfile::Map;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use vmm_sys_util::ioctl::_IOC_WRITE;

/// Words of a buffer of either shape: a page.
pub const WORDS: usize = PAGE / 4;
/// Pixels of a line, and lines.
const SIDE: u32 = 32;

/// `struct drm_virtgpu_map`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Place {
    pub offset: u64,
    pub handle: u32,
    pub padding: u32,
}

/// `struct drm_virtgpu_execbuffer`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Batch {
    flags: u32,
    bytes: u32,
    commands: u64,
    handles: u64,
    handle_count: u32,
    fence: i32,
    ring: u32,
    padding: u32,
}

/// The same, which another thread alters.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Changing(pub [AtomicU32; 10]);

/// `struct drm_virtgpu_resource_create`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Create {
    target: u32,
    format: u32,
    bind: u32,
    size: [u32; 3],
    layers: u32,
    last_level: u32,
    samples: u32,
    flags: u32,
    handle: u32,
    id: u32,
    bytes: u32,
    stride: u32,
}

/// `struct drm_virtgpu_resource_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Info {
    pub handle: u32,
    pub answers: [u32; 3],
}

/// `struct drm_virtgpu_3d_transfer_to_host`, and from there.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Transfer {
    pub handle: u32,
    pub place: [u32; 3],
    pub size: [u32; 3],
    pub level: u32,
    pub offset: u32,
    pub strides: [u32; 2],
}

/// `struct drm_virtgpu_3d_wait`, `struct drm_gem_flink`, `struct drm_gem_close`: a buffer, or a name, and something beside it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pair(pub [u32; 2]);

/// `struct drm_gem_open`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Named {
    pub name: u32,
    pub handle: u32,
    pub bytes: u64,
}

/// `struct drm_prime_handle`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Prime {
    pub handle: u32,
    pub flags: u32,
    pub descriptor: i32,
}

/// `struct drm_virtgpu_resource_create_blob`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Blob {
    pub memory: u32,
    pub flags: u32,
    pub handle: u32,
    pub id: u32,
    pub bytes: u64,
    pub padding: u32,
    pub command_bytes: u32,
    pub commands: u64,
    pub blob: u64,
}

plain!(Place, Batch, Changing, Create, Info, Transfer, Pair, Named, Prime, Blob);

// SAFETY: The driver reads two numbers.
pub const CLOSE: Call<Pair> = unsafe { Call::new(number(_IOC_WRITE, 0x09, size_of::<Pair>())) };
pub const FLINK: Call<Pair> = call(0x0a);
pub const OPEN: Call<Named> = call(0x0b);
pub const EXPORT: Call<Prime> = call(0x2d);
pub const IMPORT: Call<Prime> = call(0x2e);
pub const PLACE: Call<Place> = call(0x41);
const EXECUTE: Call<Batch> = call(0x42);
pub const EXECUTE_CHANGING: Call<Changing> = call(0x42);
const CREATE: Call<Create> = call(0x44);
pub const INFO: Call<Info> = call(0x45);
pub const FROM_HOST: Call<Transfer> = call(0x46);
pub const TO_HOST: Call<Transfer> = call(0x47);
pub const WAIT: Call<Pair> = call(0x48);
pub const BLOB: Call<Blob> = call(0x4a);

/// What a buffer is to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Pixels, 32 lines of 32.
    Texture,
    /// Bytes.
    Bytes,
    /// Memory of the card's for what it counts.
    Results,
}

impl Shape {
    /// `PIPE_TEXTURE_2D` of `R8G8B8A8_UNORM`, to be drawn to and sampled; or `PIPE_BUFFER` of `R8_UNORM`, for vertices, or for what has no other purpose.
    const fn kind(self) -> [u32; 3] {
        match self {
            Self::Texture => [2, RGBA, 1 << 1 | 1 << 3],
            Self::Bytes => [0, 64, 1 << 4],
            Self::Results => [0, 64, 1 << 17],
        }
    }

    /// All of it.
    pub const fn size(self) -> [u32; 3] {
        match self {
            Self::Texture => [SIDE, SIDE, 1],
            Self::Bytes | Self::Results => [PAGE as u32, 1, 1],
        }
    }
}

/// Who has the node open: a context of the card's, and numbers of buffers.
pub struct Card {
    file: File,
    path: PathBuf,
}

impl AsRawFd for Card {
    fn as_raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

/// A buffer of the card's, and this program's side of it, which the card reads and writes when it is told to.
pub struct Buffer {
    pub handle: u32,
    /// Its name in commands: one for all who have the card.
    pub id: u32,
    pub shape: Shape,
    /// Where it is mapped in the node.
    pub offset: u64,
    mapping: Mapping,
}

impl Buffer {
    pub fn read(&self) -> Vec<u32> {
        let mut bytes = vec![0; PAGE];
        self.mapping.read(&mut bytes);
        bytes
            .chunks(4)
            .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
            .collect()
    }

    pub fn write(&self, words: &[u32]) {
        self.mapping.write(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    }
}

impl Card {
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path).context("could not open the card")?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Opens the node once more: another context.
    pub fn another(&self) -> Result<Self> {
        Self::open(&self.path)
    }

    pub fn create(&self, shape: Shape) -> Result<Buffer> {
        let ([target, format, bind], size) = (shape.kind(), shape.size());
        let mut create =
            Create { target, format, bind, size, layers: 1, bytes: PAGE as u32, ..Create::default() };
        CREATE.update(self, &mut create).context("RESOURCE_CREATE failed")?;
        let mut place = Place { handle: create.handle, ..Place::default() };
        PLACE.update(self, &mut place).context("MAP failed")?;
        let map = Map { offset: place.offset, first: 0, pages: 1, read: true, write: true };
        let mapping = Mapping::new(self, &map).context("could not map a buffer")?;
        Ok(Buffer { handle: create.handle, id: create.id, shape, offset: place.offset, mapping })
    }

    /// Has the card do this, and tells those buffers when it is done.
    pub fn execute(&self, commands: &[u32], handles: &[u32]) -> io::Result<()> {
        let mut batch = Batch {
            bytes: size_of_val(commands) as u32,
            commands: commands.as_ptr() as u64,
            handles: handles.as_ptr() as u64,
            handle_count: handles.len() as u32,
            fence: -1,
            ..Batch::default()
        };
        EXECUTE.update(self, &mut batch)
    }

    pub fn wait(&self, buffer: &Buffer) -> Result<()> {
        WAIT.update(self, &mut Pair([buffer.handle, 0])).context("WAIT failed")
    }

    /// Has the card's side be as this program's.
    pub fn upload(&self, buffer: &Buffer) -> Result<()> {
        let mut transfer =
            Transfer { handle: buffer.handle, size: buffer.shape.size(), ..Transfer::default() };
        TO_HOST.update(self, &mut transfer).context("TRANSFER_TO_HOST failed")?;
        self.wait(buffer)
    }

    /// Has this program's side be as the card's.
    pub fn download(&self, buffer: &Buffer) -> Result<()> {
        let mut transfer =
            Transfer { handle: buffer.handle, size: buffer.shape.size(), ..Transfer::default() };
        FROM_HOST.update(self, &mut transfer).context("TRANSFER_FROM_HOST failed")?;
        self.wait(buffer)
    }

    /// A descriptor by which others have the buffer, too.
    pub fn export(&self, buffer: &Buffer) -> Result<OwnedFd> {
        // DRM_CLOEXEC and DRM_RDWR.
        let flags = (libc::O_CLOEXEC | libc::O_RDWR) as u32;
        let mut prime = Prime { handle: buffer.handle, flags, descriptor: -1 };
        EXPORT.update(self, &mut prime).context("PRIME_HANDLE_TO_FD failed")?;
        // SAFETY: The driver has just made it, and it is nobody's yet.
        Ok(unsafe { OwnedFd::from_raw_fd(prime.descriptor) })
    }

    /// The number of a buffer that has been exported.
    pub fn import(&self, descriptor: &OwnedFd) -> Result<u32> {
        let mut prime = Prime { descriptor: descriptor.as_raw_fd(), ..Prime::default() };
        IMPORT.update(self, &mut prime).context("PRIME_FD_TO_HANDLE failed")?;
        Ok(prime.handle)
    }
}

/// `R8G8B8A8_UNORM`.
const RGBA: u32 = 67;
/// Objects of a context get this number.
const OBJECT: u32 = 1;

/// How many commands there are.
pub const COMMANDS: u32 = 52;

/// A command with what it is given.
pub fn command(number: u32, object: u32, words: &[u32]) -> Vec<u32> {
    [&[number | object << 8 | (words.len() as u32) << 16], words].concat()
}

/// Commands by their effect.
pub mod commands {
    use super::{OBJECT, RGBA, Shape, WORDS, command};

    /// Makes an object of a context that names a buffer.
    fn create(object: u32, words: &[u32]) -> Vec<u32> {
        command(1, object, &[&[OBJECT], words].concat())
    }

    /// A buffer, and what of it: the words that several commands begin with.
    fn part(id: u32, shape: Shape) -> Vec<u32> {
        [&[id, 0, 0, 0, 0, 0, 0, 0], &shape.size()[..]].concat()
    }

    pub fn copy(to: u32, from: u32, shape: Shape) -> Vec<u32> {
        command(17, 0, &[&[to, 0, 0, 0, 0, from, 0, 0, 0, 0], &shape.size()[..]].concat())
    }

    pub fn blit(to: u32, from: u32) -> Vec<u32> {
        let side = |id| [&[id, 0, RGBA, 0, 0, 0], &Shape::Texture.size()[..]].concat();
        command(16, 0, &[&[0xf, 0, 0], &side(to)[..], &side(from)].concat())
    }

    pub fn write(id: u32, shape: Shape, word: u32) -> Vec<u32> {
        command(9, 0, &[&part(id, shape)[..], &[word; WORDS]].concat())
    }

    /// `TRANSFER3D`: to the card's side (1), or to the program's (2).
    pub fn transfer(id: u32, shape: Shape, way: u32) -> Vec<u32> {
        command(43, 0, &[&part(id, shape)[..], &[0, way]].concat())
    }

    /// `COPY_TRANSFER3D`: out of the program's side of one buffer.
    pub fn stage(to: u32, from: u32, shape: Shape) -> Vec<u32> {
        command(45, 0, &[&part(to, shape)[..], &[from, 0, 1]].concat())
    }

    /// Copies in another context within this one.
    pub fn copy_in_other(to: u32, from: u32, shape: Shape) -> Vec<u32> {
        [command(29, 0, &[from]), command(28, 0, &[from]), copy(to, from, shape)].concat()
    }

    pub fn surface(id: u32) -> Vec<u32> {
        create(8, &[id, RGBA, 0, 0])
    }

    /// Clears what is drawn to.
    pub fn clear(id: u32) -> Vec<u32> {
        let colour = 0.5_f32.to_bits();
        let target = command(5, 0, &[1, 0, OBJECT]);
        [surface(id), target, command(7, 0, &[4, colour, colour, colour, colour, 0, 0, 0])].concat()
    }

    pub fn clear_texture(id: u32) -> Vec<u32> {
        command(47, 0, &[&[id, 0, 0, 0, 0], &Shape::Texture.size()[..], &[0x5a5a_5a5a; 4]].concat())
    }

    /// Counts what is drawn, and has the number written into the program's side of a buffer.
    pub fn count(id: u32) -> Vec<u32> {
        let query = create(9, &[0, 0, id]);
        [query, command(19, 0, &[OBJECT]), command(20, 0, &[OBJECT]), command(21, 0, &[OBJECT, 1])].concat()
    }

    pub fn sample(id: u32) -> Vec<u32> {
        // Colours as they are: 0, 1, 2, 3, of three bits each.
        create(6, &[id, RGBA | 2 << 24, 0, 0, 1 << 3 | 2 << 6 | 3 << 9])
    }

    pub fn stream_out(id: u32) -> Vec<u32> {
        create(10, &[id, 0, 64])
    }

    pub fn vertices(id: u32) -> Vec<u32> {
        command(6, 0, &[16, 0, id])
    }

    pub fn indices(id: u32) -> Vec<u32> {
        command(11, 0, &[id, 4, 0])
    }

    pub fn uniforms(id: u32) -> Vec<u32> {
        command(27, 0, &[1, 1, 0, 64, id])
    }

    pub fn storage(id: u32) -> Vec<u32> {
        command(34, 0, &[1, 0, 0, 64, id])
    }

    pub fn image(id: u32) -> Vec<u32> {
        command(35, 0, &[1, 0, RGBA, 3, 0, 0, id])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        // include/uapi/drm/virtgpu_drm.h and drm.h.
        assert_eq!(size_of::<Place>(), 16);
        assert_eq!(size_of::<Batch>(), 40);
        assert_eq!(size_of::<Changing>(), size_of::<Batch>());
        assert_eq!(size_of::<Create>(), 56);
        assert_eq!(size_of::<Info>(), 16);
        assert_eq!(size_of::<Transfer>(), 44);
        assert_eq!(size_of::<Named>(), 16);
        assert_eq!(size_of::<Prime>(), 12);
        assert_eq!(size_of::<Blob>(), 48);
    }

    #[test]
    fn commands_are_as_long_as_they_say() {
        use commands::*;
        // virgl_protocol.h has the lengths of each.
        let lengths = [
            (copy(1, 2, Shape::Texture), 13),
            (blit(1, 2), 21),
            (write(1, Shape::Bytes, 0), 11 + WORDS),
            (transfer(1, Shape::Bytes, 1), 13),
            (stage(1, 2, Shape::Texture), 14),
            (surface(1), 5),
            (clear_texture(1), 12),
            (sample(1), 6),
            (stream_out(1), 4),
            (uniforms(1), 5),
            (image(1), 7),
        ];
        for (words, length) in lengths {
            assert_eq!((words[0] >> 16) as usize, length, "{:?}", &words[..2]);
            assert_eq!(words.len(), length + 1);
        }
    }
}
