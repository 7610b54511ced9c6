//! Sluice: the virtual platform of a guest.
#![no_std]
#![forbid(unsafe_code)]
