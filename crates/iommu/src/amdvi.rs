//! AMD-Vi.

pub mod page;
