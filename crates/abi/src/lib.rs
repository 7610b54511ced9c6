//! Layouts shared by the hypervisor, the host command and (later) guests.
//!
//! - [`bundle`]: the archive that holds everything a run needs.
//! - [`config`]: what the host command validates and the hypervisor runs.
//! - [`report`]: what the hypervisor counted.
//! - [`DomainId`], [`DomainSet`]: which domains something is about.
//! - [`channel`]: the framed messages of the management channel.
//!
//! Everything is plain data encoded with postcard. Neither side trusts the other's bytes:
//! decoding can fail and never panics.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bundle;
pub mod channel;
pub mod config;
mod domain_id;
pub mod report;

pub use domain_id::{DomainId, DomainSet};
