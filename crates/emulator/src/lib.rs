//! Sluice: decoding and executing the guest instructions that touch trapped memory and ports.
#![no_std]
#![forbid(unsafe_code)]
