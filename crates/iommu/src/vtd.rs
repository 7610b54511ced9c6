//! Intel VT-d.

pub mod page;
