//! The kernel, linked below 1 MiB: a guest under `dma = "unprotected"` has no RAM at 16 MiB.
#![no_std]
#![no_main]

use sluice_bare as _;
