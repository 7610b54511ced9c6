//! Ends of the daemon and of the driver domain under load.

use super::Bench;
use crate::bench::record::Record;

/// Measures what is wanted.
pub fn measure(_bench: &Bench, _record: &mut Record) {}
