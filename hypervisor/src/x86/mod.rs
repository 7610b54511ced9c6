//! The instructions that Rust has no name for, and the time-stamp counter: what any processor offers before anything is set up.

pub mod control;
pub mod msr;
pub mod port;
pub mod tsc;

#[allow(unused_imports)] // The set is the interface, whatever is used of it so far.
pub use control::{
    cpuid, cpuid_checked, rdtsc, read_breakpoints, read_cr0, read_cr2, read_cr3, read_cr4, write_breakpoints,
    write_cr0, write_cr2, write_cr3, write_cr4, xgetbv, xsetbv,
};
pub use msr::{rdmsr, wrmsr};

/// Most processors that one image drives.
pub const MAX_CPUS: usize = 64;
