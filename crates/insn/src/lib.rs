//! Executing the few guest instructions that touch trapped memory, and taking string I/O apart.
//!
//! - [`translate`], [`touch`]: a guest's linear address through its own page tables ([`walk`]).
//! - [`Addressing`]: what a processor checks of an operand before it touches memory ([`operand`]).
//! - [`step`]: one instruction, its operands going to a [`Machine`] ([`execute`]).
//! - [`Moves`](plain::Moves): instructions that come again and again ([`plain`]).
//! - [`StringIo`]: what an INS or OUTS moves ([`string_io`]).
//!
//! Everything a guest controls here (code bytes, page tables, registers) is hostile: whatever is
//! not understood is an error, and nothing panics.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod execute;
pub mod operand;
mod operation;
pub mod plain;
pub mod string_io;
pub mod walk;

pub use execute::{Error, Machine, cr8_write, length, prepare, step};
pub use operand::{Addressing, Fault, Pieces, Segment, SegmentRegister};
pub use string_io::StringIo;
pub use walk::{PageFault, PagingState, Tables, touch, translate};
