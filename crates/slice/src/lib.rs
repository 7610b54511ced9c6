//! What a driver's ioctls copy from and to a program's memory, found in the driver's intermediate code by walking it with what is
//! known of each value.
//!
//! Key types: [`Program`] (the files of a driver), [`Operation`] (one copy, where it is and how long), [`Slice`] (copies as the
//! front end of device files follows them, and why some cannot be), [`Line`] (the same in the front end's own tables), [`Table`]
//! (lines as C), [`Comparison`] (what was found, with a table).
//!
//! Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File Boundary", 4.1 and 5.3.
//!
//! Deviations: the source slices clang's syntax tree, and executes the slice's statements; here clang's intermediate code is walked,
//! where macros, sizes and offsets are numbers already, and what remains of a slice is written as a table.
#![forbid(unsafe_code)]
#![allow(
    clippy::only_used_in_recursion,
    clippy::collapsible_match,
    clippy::question_mark,
    reason = "the shape of the grammar"
)]

mod compare;
pub mod ir;
mod lead;
mod learn;
mod lex;
mod line;
mod memory;
mod parse;
mod program;
mod table;
mod value;
mod walk;

pub use compare::{Comparison, Verdict};
pub use lead::{From, Lead, Slice, slice};
pub use learn::{Copy, Sample, learn};
pub use line::{Count, Line, lines, numbers, probe};
pub use parse::module;
pub use program::Program;
pub use table::Table;
pub use value::{Id, Node, Values};
pub use walk::{Kind, Operation, Walk};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Something that is no word.
    #[error("line {line} has what is no word of intermediate code: {text}")]
    Word {
        /// Which line, from one.
        line: usize,
        /// How it begins.
        text: String,
    },
    /// A statement that is none.
    #[error("no statement of intermediate code: {0}")]
    Statement(String),
    /// A table that cannot be read.
    #[error("no table of what ioctls lead to: {0}")]
    Table(String),
}
