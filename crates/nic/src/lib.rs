//! Sluice: software network cards.
#![no_std]
#![forbid(unsafe_code)]
