//! What guests say to Sluice on purpose: hypercalls ([`call`], those of grant spaces in [`grant`] and of grants by a table in [`table`], those of device files in [`devfile`] and of regions in [`region`], of paravirtual guests in [`paravirtual`]), the structure of a virtual network interface ([`vif`]), the function of who passes its signals on ([`signals`]), what a module shares of a software card ([`symbiotic`]), and the registers through which a driver domain serves a
//! virtual device ([`backend`]).
//!
//! This is the whole interface that modules in guests are written against; `guest/linux/sluice.h` is generated from it.
#![no_std]
#![forbid(unsafe_code)]

pub mod backend;
pub mod call;
pub mod devfile;
pub mod grant;
pub mod paravirtual;
pub mod region;
pub mod signals;
pub mod symbiotic;
pub mod table;
pub mod vif;
