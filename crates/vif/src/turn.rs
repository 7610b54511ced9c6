//! A VIF's turn, and what is counted in it.

/// Bytes that the work for a frame counts for, beside its own, and that for a piece of memory that it is in.
pub(crate) const OVERHEAD: u32 = 256;
pub(crate) const PER_PIECE: u32 = 32;
/// Bytes that the work for a frame in place of a longer one counts for, beside its own.
pub(crate) const PER_SEGMENT: u32 = 64;

/// What became of the frame at the head of a send queue.
pub(crate) enum Sent {
    /// It is where it is to be, or nowhere.
    Done,
    /// It has to wait for the wire.
    Full,
    /// It has to wait for its sender's next turn on the wire.
    Over,
}

/// What a VIF has had done for it in its turn, in bytes: for frames that went out by the wire, and for others.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turn {
    pub outside: i64,
    pub inside: i64,
    /// Frames and packets that were looked at, of a card's.
    pub frames: u32,
}
