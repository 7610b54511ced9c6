//! The device models there are.
