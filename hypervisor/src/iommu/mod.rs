//! IOMMUs: every device in its place.

mod amdvi;
mod frames;
mod unit;
mod vtd;

pub use frames::Frames;
pub use unit::Unit;
