//! Xen's paravirtual interface for 64-bit guests, as far as an unmodified Linux needs it.
//!
//! Such a guest's kernel runs at privilege level 3, as its programs do. It knows machine frames, its page tables are the hardware's
//! ([`sluice_pagetypes`]), and it asks by hypercalls for what it cannot do itself.
//!
//! - [`Guest`]: what the interface keeps of a domain. [`Guest::hypercall`], [`Guest::exception`], [`Guest::deliver`] and
//!   [`Guest::cpuid`] say what becomes of an exit.
//! - [`Host`]: memory and hardware behind it. [`Registers`]: the processor's.
//! - [`Hardware`]: devices that the domain has to itself.
//! - [`build`]: memory as a kernel finds it when it starts.
//! - [`Counters`]: what was asked and refused.
//!
//! Everything that a guest says is an allegation: addresses are walked by its own validated page tables, never those of the
//! hypervisor, and what cannot be done is one of Xen's errors.
//!
//! Source: Xen's public headers (xen/include/public, as Linux has them in include/xen/interface), Xen 4.17's behaviour where they are silent.
//!
//! Deviations: no grants, no store, no linear page tables, no large pages; XSAVE, AVX and FSGSBASE are hidden; batches
//! of more than [`abi::MAX_BATCH`] requests are refused rather than continued.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod abi;
mod bounce;
pub mod build;
mod calls;
mod console;
mod counters;
mod cpuid;
mod emulate;
mod events;
mod gate;
mod guest;
mod hardware;
mod host;
mod memory;
mod mmu;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod processor;
mod processors;
mod quick;
mod reservation;
mod tables;
#[cfg(test)]
mod tests;

pub use bounce::sane;
pub use build::{Built, Image, Layout};
pub use counters::{COUNTS, Counters};
pub use emulate::PAT;
pub use gate::Asked;
pub use guest::{After, End, Guest, Registers};
pub use hardware::{BIOS, Hardware, LINES};
pub use host::Host;
pub use processor::{Area, MAX_PROCESSORS};
pub use quick::QUICK;
