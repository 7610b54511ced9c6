//! A camera, by include/uapi/linux/videodev2.h, with frames that are read.

use crate::result;
use anyhow::{Context, Result, ensure};
use sluice_backend::sys::{Call, Plain};
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::Path;
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE, ioctl_expr};

const WIDTH: u32 = 320;
const HEIGHT: u32 = 180;
/// Bytes of a pixel of YUYV.
const PIXEL: u32 = 2;
const YUYV: u32 = u32::from_le_bytes(*b"YUYV");
/// `V4L2_BUF_TYPE_VIDEO_CAPTURE`.
const CAPTURE: u32 = 1;
/// vivid's control `OSD Text Mode`, and its value for no text.
const TEXT: u32 = 0x00f0_f001;
const NO_TEXT: i32 = 2;

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

const fn number(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    ioctl_expr(direction, b'V' as u32, number, size as u32) as libc::c_ulong
}

// SAFETY: The driver writes `struct v4l2_capability`.
const CAPABILITY: Call<Capability> = unsafe { Call::new(number(_IOC_READ, 0, size_of::<Capability>())) };
// SAFETY: The driver reads and writes `struct v4l2_format`.
const SET_FORMAT: Call<Format> = unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, 5, size_of::<Format>())) };
// SAFETY: The driver reads and writes `struct v4l2_control`.
const SET_CONTROL: Call<Control> =
    unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, 28, size_of::<Control>())) };

/// Reads frames.
pub fn run(path: &Path, frames: u32) -> Result<()> {
    let mut file =
        OpenOptions::new().read(true).write(true).open(path).context("could not open the camera")?;
    let capability = CAPABILITY.get(&file).context("VIDIOC_QUERYCAP failed")?;
    let mut format = Format::default();
    format.words[..4].copy_from_slice(&[WIDTH, HEIGHT, YUYV, 1]);
    SET_FORMAT.update(&file, &mut format).context("VIDIOC_S_FMT failed")?;
    let [width, height, pixels, _, line, size, ..] = format.words;
    ensure!((width, height, pixels) == (WIDTH, HEIGHT, YUYV), "the format is {:x?}", &format.words[..6]);
    ensure!(line == WIDTH * PIXEL && size == WIDTH * HEIGHT * PIXEL, "a frame has {size} bytes");
    let mut control = Control { number: TEXT, value: NO_TEXT };
    let plain = SET_CONTROL.update(&file, &mut control);
    let mut digest = DefaultHasher::new();
    let mut frame = vec![0; size as usize];
    for _ in 0..frames {
        file.read_exact(&mut frame).context("could not read a frame")?;
        frame.hash(&mut digest);
    }
    let driver = String::from_utf8_lossy(&capability.driver).trim_end_matches('\0').to_owned();
    result(&format!(
        "camera={driver} camera_frames={frames} camera_text={}",
        if plain.is_ok() { "off" } else { "on" }
    ));
    result(&format!("camera_digest={:016x}", digest.finish()));
    Ok(())
}
