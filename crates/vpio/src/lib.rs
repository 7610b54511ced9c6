//! Sluice: device state models and the monitor that drives them.
#![no_std]
#![forbid(unsafe_code)]
