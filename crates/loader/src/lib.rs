//! Sluice: putting a kernel into guest memory.
#![no_std]
#![forbid(unsafe_code)]
