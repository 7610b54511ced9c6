//! Requests of a media device: controls that a camera sets for one buffer, by include/uapi/linux/media.h and videodev2.h.

use crate::camera::{
    BOTH, Buffer, Camera, DEQUEUE, FRAME_TIME, HEIGHT, MAPPED, QUEUE, START, Stream, WIDTH, number,
};
use crate::{result, topology};
use anyhow::{Context, Result, bail, ensure};
use sluice_backend::sys::{self, Call, Order, Plain};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, ioctl_expr};

/// `V4L2_CID_BRIGHTNESS`, and what the first request sets it to.
const BRIGHTNESS: u32 = 0x0098_0900;
const FIRST: i32 = 100;
/// `V4L2_CTRL_WHICH_REQUEST_VAL`.
const OF_REQUEST: u32 = 0x0f01_0000;
/// `V4L2_BUF_FLAG_REQUEST_FD`.
const HAS_REQUEST: u32 = 0x0080_0000;

/// `struct v4l2_ext_controls`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Controls {
    which: u32,
    count: u32,
    error: u32,
    request: i32,
    reserved: u32,
    padding: u32,
    controls: u64,
}

/// `struct v4l2_ext_control`, in words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Control([u32; 5]);

// SAFETY: These are numbers. The address is one of a `Control` (see `value`), of which every pattern of bits is one.
unsafe impl Plain for Controls {}

// SAFETY: The driver reads and writes `struct v4l2_ext_controls`, and the one control that it leads to.
const GET: Call<Controls> = unsafe { Call::new(number(BOTH, 71, size_of::<Controls>())) };
// SAFETY: As above.
const SET: Call<Controls> = unsafe { Call::new(number(BOTH, 72, size_of::<Controls>())) };
// SAFETY: The driver writes an `int`.
const ALLOCATE: Call<i32> = unsafe { Call::new(ioctl_expr(_IOC_READ, b'|' as u32, 5, 4) as libc::c_ulong) };
// SAFETY: It has no argument.
const HAND_OVER: Order = unsafe { Order::new(ioctl_expr(_IOC_NONE, b'|' as u32, 0x80, 0) as libc::c_ulong) };
// SAFETY: As above.
const BEGIN_ANEW: Order = unsafe { Order::new(ioctl_expr(_IOC_NONE, b'|' as u32, 0x81, 0) as libc::c_ulong) };

/// Sets or gets the brightness of a request.
fn value(call: &Call<Controls>, camera: &File, request: i32, value: i32) -> std::io::Result<i32> {
    let mut control = Control([BRIGHTNESS, 0, 0, value as u32, 0]);
    let controls = &raw mut control as u64;
    let mut all = Controls { which: OF_REQUEST, count: 1, request, controls, ..Controls::default() };
    call.update(camera, &mut all)?;
    if all.request != request {
        return Err(std::io::Error::other("the driver answers with another request"));
    }
    // SAFETY: It is there, and the driver may have written to it.
    Ok(unsafe { (&raw const control.0[3]).read_volatile() } as i32)
}

/// Has frames made by requests of which each sets another brightness.
pub fn run(path: &Path, media: &Path) -> Result<()> {
    let media = OpenOptions::new().read(true).write(true).open(media).context("no media device")?;
    topology::show(&media)?;
    let camera = Camera::open(path, WIDTH, HEIGHT)?;
    let camera = camera.file();
    let count = Stream::buffers(camera, MAPPED)?;
    let mut requests = Vec::new();
    for index in 0..count {
        let request = ALLOCATE.get(&media).context("MEDIA_IOC_REQUEST_ALLOC failed")?;
        let request = sys::take_descriptor(request, |_| false)?;
        let descriptor = request.as_raw_fd();
        value(&SET, camera, descriptor, FIRST + index as i32).context("VIDIOC_S_EXT_CTRLS failed")?;
        let mut buffer = Stream::buffer(index, MAPPED);
        buffer.flags = HAS_REQUEST;
        buffer.request = media.as_raw_fd() as u32;
        let refused = QUEUE.update(camera, &mut buffer.clone()).err().and_then(|error| error.raw_os_error());
        ensure!(refused == Some(libc::EINVAL), "what is no request is refused otherwise: {refused:?}");
        buffer.request = descriptor as u32;
        QUEUE.update(camera, &mut buffer).context("VIDIOC_QBUF with a request failed")?;
        ensure!(buffer.request == descriptor as u32, "the driver answers with request {}", buffer.request);
        HAND_OVER.give(&request).context("MEDIA_REQUEST_IOC_QUEUE failed")?;
        requests.push(request);
    }
    START.set(camera, &1).context("VIDIOC_STREAMON failed")?;
    let mut right = 0;
    for (index, request) in requests.iter().enumerate() {
        if sys::poll_for(request, libc::POLLPRI as u16, FRAME_TIME) <= 0 {
            bail!("request {index} is never complete");
        }
        let mut buffer: Buffer = Stream::buffer(0, MAPPED);
        DEQUEUE.update(camera, &mut buffer).context("VIDIOC_DQBUF failed")?;
        let is = value(&GET, camera, request.as_raw_fd(), 0).context("VIDIOC_G_EXT_CTRLS failed")?;
        right += u32::from(buffer.index as usize == index && is == FIRST + index as i32);
        BEGIN_ANEW.give(request).context("MEDIA_REQUEST_IOC_REINIT failed")?;
    }
    result(&format!("requests={count} requests_right={right}"));
    Ok(())
}
