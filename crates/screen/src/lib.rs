//! What the screen of a PC shows: a table of guests and devices, and below it the log or the console of a guest.
//!
//! Key types: [`Tail`] keeps the last lines of a text that nobody vouches for; [`Page`] lays a report and a tail out on a
//! [`Canvas`] of characters; [`Screen`] brings a canvas to the machine's screen, of which it writes only what changed.
//! A screen is a [`Surface`]: the text mode of a VGA ([`text_mode`]), or a [`Framebuffer`].
//!
//! Neighbours: `sluice_abi::report` says what there is to show. The hypervisor owns the memory of the screen and reads the keys.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod canvas;
pub mod decode;
mod framebuffer;
mod page;
mod screen;
mod tail;
pub mod text_mode;

pub use canvas::{Canvas, Cell, Colour, Style};
pub use framebuffer::{Channel, Framebuffer, Geometry, GeometryError, Pixels};
pub use page::{Page, Progress, View};
pub use screen::{Screen, Surface};
pub use tail::{Lines, Tail};
