//! What the driver of a VIF has set up.

use sluice_virtio::Queue;

/// Where the queues of a VIF are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// Where a virtio driver has put them: [`crate::RECEIVE`] and [`crate::SEND`].
    Virtio {
        /// The first.
        receive: Queue,
        /// The second.
        send: Queue,
    },
    /// Where they always are: [`sluice_hypercall::vif`].
    Native,
}

/// What the driver of a VIF has set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Its queues.
    pub queues: Queues,
    /// What it accepted of [`crate::FEATURES`].
    pub features: u64,
}

impl Active {
    /// A driver of the native face, that has started.
    pub const NATIVE: Self = Self { queues: Queues::Native, features: crate::NATIVE_FEATURES };
}
