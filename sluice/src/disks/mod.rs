//! Disks of guests: images that stay between runs.
//!
//! - [`store`] says how a disk is called and where its image is.
//! - [`debian`] makes one with a Debian on it, or from an image of somebody else's; [`keys`] are who may log in, [`personal`] puts
//!   them and a name into the image.
//! - [`boot`] reads the kernel and the initial ramdisk that the guest itself has in `/boot`. The guest wrote that image, so nothing
//!   in it is believed. [`ramdisk`] adds our module for single pages to that ramdisk.

mod boot;
mod debian;
mod extent;
mod keys;
mod personal;
mod ramdisk;
mod store;

pub use boot::{BootFiles, read as read_boot};
pub use debian::{Recipe, make};
pub use keys::own as own_key;
pub use ramdisk::{WORD as MODULE_WORD, with_module};
pub use store::Disk;
