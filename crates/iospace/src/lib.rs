//! I/O spaces.
#![no_std]
#![forbid(unsafe_code)]
