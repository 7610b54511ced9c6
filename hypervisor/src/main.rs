//! The bare-metal image.
#![no_std]
#![no_main]
