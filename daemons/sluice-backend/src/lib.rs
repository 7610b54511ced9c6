//! The device files of the module `sluice-backend`, for the daemon and for the program that attacks by them.

pub mod function;
pub mod sys;
