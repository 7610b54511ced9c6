//! Software network cards: pure state machines with the ports of a real card on one side and
//! Ethernet frames on the other.
//!
//! They serve three purposes: the card a guest sees in emulated mode, the context in which the
//! virtual passthrough monitor keeps a guest's card while it is not on the hardware, and the
//! hardware itself in host tests.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod budget;
pub mod checksum;
pub mod dma;
pub mod e1000;
mod hash;
pub mod ne2000;
pub mod offload;
mod packets;
pub mod rtl8139;
mod time;

pub use budget::Budget;
pub use e1000::E1000;
pub use hash::multicast_index;
pub use ne2000::Ne2000;
pub use offload::Offload;
pub use packets::{HEAD, Packets, Size};
pub use rtl8139::Rtl8139;
pub use time::earliest;
