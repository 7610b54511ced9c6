//! The bare-metal image of the Sluice hypervisor: the only place for assembly and for talking to hardware.
//!
//! [`boot`] lays the ground, builds the domains and sends every processor into [`run`], with interrupts off. Modules import only
//! those below them: docs/architecture.md has the list, and a test holds it (`sluice/tests/imports`).
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

mod boot;
mod cpu;
mod devices;
mod domain;
mod exit;
mod firmware;
mod handover;
mod iommu;
mod irq;
mod log;
mod manage;
mod mm;
mod panic;
mod pci;
mod power;
mod run;
mod sched;
mod screen;
mod svm;
mod sync;
mod uart;
mod x86;
