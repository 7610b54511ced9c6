//! The kernel, linked at 16 MiB.
#![no_std]
#![no_main]

use sluice_bare as _;
