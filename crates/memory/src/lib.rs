//! Sluice: address types, frames, nested page tables and validated guest memory.
#![no_std]
#![forbid(unsafe_code)]
