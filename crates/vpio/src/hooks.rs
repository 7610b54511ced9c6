//! Hook sets, computed from a model, a state and what must be known now.

bitflags::bitflags! {
    /// What must be known or prevented now. The hook set answers exactly these.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Questions: u8 {
        /// Keep what the device will not give back: values that cannot be read, and its identity.
        const SHADOW = 1;
        /// Several clients use the device: received data and memory must stay apart.
        const ISOLATE = 2;
        /// Somebody waits: when is the device reusable?
        const FOLLOW = 4;
        /// This client stopped reception for others before: see the commands that can.
        const GUARD = 8;
        /// The client does not hold the device: see everything.
        const ABSENT = 16;
    }
}

/// The accesses that must exit, by port offset, reads and writes apart. AMD's I/O permission map
/// has one bit per port: use [`Self::ports`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookSet {
    /// Ports whose reads must be seen.
    pub reads: u32,
    /// Ports whose writes must be seen.
    pub writes: u32,
}

impl HookSet {
    /// Everything exits.
    pub const ALL: Self = Self { reads: u32::MAX, writes: u32::MAX };
    /// Nothing exits.
    pub const NONE: Self = Self { reads: 0, writes: 0 };

    /// Bit `n` set: port offset `n` must exit.
    pub const fn ports(self) -> u32 {
        self.reads | self.writes
    }

    /// An access of `width` bytes at `offset` exits.
    pub const fn catches(self, offset: u16, width: u8) -> bool {
        let mut byte = 0;
        while byte < width as u16 {
            let port = offset.wrapping_add(byte);
            if port >= 32 || self.ports() & (1 << port) != 0 {
                return true;
            }
            byte += 1;
        }
        false
    }
}
