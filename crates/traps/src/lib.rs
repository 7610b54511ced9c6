//! Sluice: which guest accesses exit, as data.
#![no_std]
#![forbid(unsafe_code)]
