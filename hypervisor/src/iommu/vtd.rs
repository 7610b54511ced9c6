//! VT-d units.

use super::unit::Units;

/// Finds and starts all units that DMAR lists.
pub fn start() -> Units {
    Units::new()
}
