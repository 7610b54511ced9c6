//! Ioctls of graphics cards, by include/uapi/drm/drm.h: what programs for their screens and for their memory share.

use sluice_backend::sys::{Call, Plain, Request};
use vmm_sys_util::ioctl::{_IOC_READ, _IOC_WRITE, ioctl_expr};

/// Structures of the kernel's that an ioctl may read and write.
macro_rules! plain {
    ($($structure:ty),* $(,)?) => {$(
        // SAFETY: It is numbers. Addresses are for the driver, which checks them; what they are of lives as long as the call.
        unsafe impl Plain for $structure {}
    )*};
}
pub(crate) use plain;

/// The number of an ioctl.
pub const fn number(direction: u32, nr: u32, size: usize) -> Request {
    ioctl_expr(direction, b'd' as u32, nr, size as u32) as Request
}

/// An ioctl that reads and writes its argument.
pub const fn call<T: Plain>(nr: u32) -> Call<T> {
    // SAFETY: The driver reads and writes the structure, and what it leads to, as its fields say.
    unsafe { Call::new(number(_IOC_READ | _IOC_WRITE, nr, size_of::<T>())) }
}
