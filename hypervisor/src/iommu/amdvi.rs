//! AMD-Vi units.

use super::unit::Units;

/// Finds and starts all units that IVRS lists.
pub fn start() -> Units {
    Units::new()
}
