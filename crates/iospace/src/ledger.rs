//! Who keeps account of the frames that spaces show.

use crate::Piece;
use sluice_memory::Hpa;

/// Pages cannot be issued: the memory behind them is not this space's to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

/// The account of frames, as one space uses it.
pub trait Ledger {
    /// A piece is about to be shown: from now on nothing else becomes of its frames.
    ///
    /// # Errors
    /// They are not this space's to show.
    fn pin(&self, piece: &Piece) -> Result<(), Foreign>;

    /// Nobody reaches these bytes through the space any more.
    fn unpin(&self, hpa: Hpa, len: u64);
}
