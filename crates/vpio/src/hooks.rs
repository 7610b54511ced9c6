//! Hook sets, computed from a model, a state and what must be known now.

use crate::model::{Effects, Event, Model};

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

impl Questions {
    /// The effects that must be seen to answer these questions.
    const fn effects(self) -> Effects {
        let mut wanted = Effects::empty();
        if self.contains(Self::SHADOW) {
            wanted = wanted.union(Effects::LASTING).union(Effects::RESETS).union(Effects::UNLOCKS);
        }
        if self.contains(Self::ISOLATE) {
            wanted = wanted
                .union(Effects::REVEALS_MEMORY)
                .union(Effects::REVEALS_RECEIVE)
                .union(Effects::WRITES_MEMORY)
                .union(Effects::MOVES_RECEIVE)
                .union(Effects::MOVES_SEND)
                .union(Effects::RESETS)
                .union(Effects::UNLOCKS);
        }
        if self.contains(Self::FOLLOW) {
            wanted = wanted.union(Effects::TRANSIENT);
        }
        if self.contains(Self::GUARD) {
            wanted = wanted.union(Effects::COMMANDS);
        }
        wanted
    }
}

/// What must exit for these questions while the machines are in these states: every register with
/// an effect that a question asks about, and, to follow the device, every register that an edge
/// leaving a present state looks at.
pub fn hook_set(model: &Model, states: &[u8], questions: Questions) -> HookSet {
    if questions.contains(Questions::ABSENT) {
        return HookSet::ALL;
    }
    let wanted = questions.effects();
    let mut set = HookSet::NONE;
    for register in model.registers {
        if register.read.intersects(wanted) {
            set.reads |= register.ports();
        }
        if register.write.intersects(wanted) {
            set.writes |= register.ports();
        }
    }
    if questions.contains(Questions::FOLLOW) {
        for (machine, &state) in model.machines.iter().zip(states) {
            for edge in machine.edges.iter().filter(|edge| edge.leaves(state)) {
                if let Event::Write { register, .. } = edge.on {
                    set.writes |= model.register(register).map_or(0, |register| register.ports());
                }
            }
        }
    }
    set
}
