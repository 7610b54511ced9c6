//! A camera as a program of 32 bits uses it: its structures have other layouts, and other ioctls.

use crate::camera::{CAPTURE, HEIGHT, MAPPED, NO_TEXT, TEXT, WIDTH, YUYV, number};
use crate::result;
use anyhow::{Context, Result, bail, ensure};
use sluice_backend::sys::{self, Mapping, PAGE, ShadowPage};
use sluice_devfile::Map;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE};

/// An address that programs of 32 bits have, too, and where on its page a second structure is.
const LOW: u64 = 0x1000_0000;
const SECOND: usize = 0x800;
const BOTH: u32 = _IOC_READ | _IOC_WRITE;

/// Words of `struct v4l2_format`, of `struct v4l2_buffer`, and where in that some fields are.
const FORMAT: usize = 51;
const BUFFER: usize = 19;
const USED: usize = 2;
const MEMORY: usize = 14;
const OFFSET: usize = 15;
const LENGTH: usize = 16;

/// A camera, and a page that both can name.
struct Narrow {
    file: File,
    page: ShadowPage,
}

impl Narrow {
    /// Makes an ioctl with a structure of these words, which the answer replaces.
    fn call<const N: usize>(&self, direction: u32, what: u32, words: &mut [u32; N]) -> std::io::Result<()> {
        for (at, word) in words.iter().enumerate() {
            self.page.put_word(4 * at, *word);
        }
        let number = number(direction, what, 4 * N) as u32;
        // SAFETY: The driver writes such a structure, and what one leads to, to the page, to which nothing in Rust refers.
        let answer = unsafe { sys::narrow_ioctl(&self.file, number, LOW as u32) };
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.page.word(4 * at).unwrap_or_default();
        }
        if answer < 0 { Err(std::io::Error::from_raw_os_error(-answer as i32)) } else { Ok(()) }
    }

    fn buffer(index: u32) -> [u32; BUFFER] {
        let mut buffer = [0; BUFFER];
        (buffer[0], buffer[1], buffer[MEMORY]) = (index, CAPTURE, MAPPED);
        buffer
    }
}

/// Has frames put into buffers that are mapped.
pub fn run(path: &Path, frames: u32) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path).context("could not open the camera")?;
    let page = ShadowPage::map(LOW).context("could not map a page at a low address")?;
    let camera = Narrow { file, page };
    let mut format = [0; FORMAT];
    format[..5].copy_from_slice(&[CAPTURE, WIDTH, HEIGHT, YUYV, 1]);
    camera.call(BOTH, 5, &mut format).context("VIDIOC_S_FMT failed")?;
    let bytes = format[6] as usize;
    ensure!(bytes == (WIDTH * HEIGHT * 2) as usize, "a frame has {bytes} bytes");
    // A control that is somewhere else, by an address of four bytes.
    let control = [TEXT, 0, 0, NO_TEXT as u32, 0];
    for (at, word) in control.iter().enumerate() {
        camera.page.put_word(SECOND + 4 * at, *word);
    }
    let mut controls = [0, 1, 0, 0, 0, LOW as u32 + SECOND as u32];
    camera.call(BOTH, 72, &mut controls).context("VIDIOC_S_EXT_CTRLS failed")?;
    camera.page.put_word(SECOND + 12, 77);
    camera.call(BOTH, 71, &mut controls).context("VIDIOC_G_EXT_CTRLS failed")?;
    let is = camera.page.word(SECOND + 12);
    ensure!(is == Some(NO_TEXT as u32), "the control is {is:?}");
    let mut asked = [4, CAPTURE, MAPPED, 0, 0];
    camera.call(BOTH, 8, &mut asked).context("VIDIOC_REQBUFS failed")?;
    let mut places = Vec::new();
    for index in 0..asked[0] {
        let mut buffer = Narrow::buffer(index);
        camera.call(BOTH, 9, &mut buffer).context("VIDIOC_QUERYBUF failed")?;
        let pages = buffer[LENGTH].div_ceil(PAGE as u32);
        let map = Map { offset: buffer[OFFSET].into(), first: 0, pages, read: true, write: true };
        places.push(Mapping::new(&camera.file, &map).context("could not map a buffer")?);
        camera.call(BOTH, 15, &mut Narrow::buffer(index)).context("VIDIOC_QBUF failed")?;
    }
    camera.call(_IOC_WRITE, 18, &mut [CAPTURE]).context("VIDIOC_STREAMON failed")?;
    let (mut digest, mut frame) = (DefaultHasher::new(), vec![0; bytes]);
    for _ in 0..frames {
        let mut buffer = Narrow::buffer(0);
        camera.call(BOTH, 17, &mut buffer).context("VIDIOC_DQBUF failed")?;
        ensure!(buffer[USED] as usize == bytes, "a frame has {} bytes", buffer[USED]);
        let Some(place) = places.get(buffer[0] as usize) else { bail!("there is no such buffer") };
        place.read(&mut frame);
        frame.hash(&mut digest);
        camera.call(BOTH, 15, &mut Narrow::buffer(buffer[0])).context("VIDIOC_QBUF failed")?;
    }
    camera.call(_IOC_WRITE, 19, &mut [CAPTURE]).context("VIDIOC_STREAMOFF failed")?;
    result(&format!("narrow_digest={:016x}", digest.finish()));
    Ok(())
}
