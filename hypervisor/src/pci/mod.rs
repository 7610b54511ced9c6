//! Physical PCI functions: finding them, what configuration space says of them, where their memory is, how they interrupt by messages and are reset.

pub mod bars;
mod function;
pub mod messages;
pub mod reset;

pub use function::*;
